//! The contract of a tier, as the one in memory keeps it.

use onefill::fleet::memory::Memory;

use super::support::*;

with_each_client! {
    it_answers_as_the_tier_in_memory_does
}

/// Both tiers, and what their listeners heard.
struct Both {
    memory: Memory,
    redis: Redis,
    heard: [Arc<Mutex<Vec<Event>>>; 2],
    _listeners: [Arc<dyn Listener>; 2],
    draw: fastrand::Rng,
    tokens: Vec<Token>,
    /// The epochs of both, where they were taken by the tier.
    epochs: Vec<Option<(Epoch, Epoch)>>,
}

impl Both {
    fn new(server: &Server, client: Client, seed: u64) -> Both {
        let heard = [(); 2].map(|()| Arc::new(Mutex::new(Vec::new())));
        let listeners = heard.each_ref().map(|heard| {
            let book = Arc::clone(heard);
            let listener: Arc<dyn Listener> =
                Arc::new(move |event: &Event| book.lock().unwrap().push(event.clone()));
            listener
        });
        let memory = Memory::new();
        let redis = patient(address(server, client)).tier().unwrap();
        memory.listen(Arc::downgrade(&listeners[0]));
        redis.listen(Arc::downgrade(&listeners[1]));
        eventually("both are heard", || heard.iter().all(|h| !h.lock().unwrap().is_empty()));
        let tokens = (0..3).map(|_| Token::random()).collect();
        let draw = fastrand::Rng::with_seed(seed);
        Both {
            memory,
            redis,
            heard,
            _listeners: listeners,
            draw,
            tokens,
            epochs: vec![None; KEYS as usize],
        }
    }

    fn token(&mut self) -> Token {
        self.tokens[self.draw.usize(..self.tokens.len())]
    }

    fn life(&mut self) -> Duration {
        secs(LIVES[self.draw.usize(..LIVES.len())])
    }

    /// What may be stored: mostly something that begins like an envelope of a few versions.
    fn bytes(&mut self) -> Vec<u8> {
        match self.draw.u8(..10) {
            0 => Vec::new(),
            1 => b"x".to_vec(),
            2 => b"\r\n$-1\r\n:1\r\n".to_vec(),
            _ => {
                let token = self.token();
                let rest = self.draw.usize(..40);
                [&[0xc1, 1], &token.as_bytes()[..], &vec![b'.'; rest]].concat()
            }
        }
    }

    fn seen(&mut self, key: &Key) -> Option<Seen> {
        match self.draw.u8(..4) {
            0 => None,
            1 => Seen::of(&self.bytes()),
            _ => self.memory.stored(key).and_then(|stored| Seen::of(&stored.bytes)),
        }
    }

    fn step(&mut self, server: &Server) {
        let never = Deadline::NEVER;
        let id = self.draw.u64(..KEYS);
        let (key, token, life) = (key(id), self.token(), self.life());
        let lease = Lease::new(token, life);
        let bytes = self.bytes();
        let mut entry = Entry::new(token, &bytes, life);
        if self.draw.bool() && !bytes.is_empty() {
            entry = entry.announced();
        }
        match self.draw.u8(..14) {
            0 | 1 => {
                let answers = (self.memory.lookup(&key, never), self.redis.lookup(&key, never));
                match answers {
                    (Ok(None), Ok(None)) => {}
                    (Ok(Some(one)), Ok(Some(two))) if same_value(&one, &two) => {}
                    other => panic!("lookup: {other:?}"),
                }
            }
            2..=5 => {
                let seen = self.seen(&key);
                let answers = (
                    self.memory.acquire(&key, lease, seen, never),
                    self.redis.acquire(&key, lease, seen, never),
                );
                match answers {
                    (Ok(Acquired::Won), Ok(Acquired::Won)) => {}
                    (Ok(Acquired::Hit(one)), Ok(Acquired::Hit(two))) if same_value(&one, &two) => {}
                    (
                        Ok(Acquired::Held { holder: one, left }),
                        Ok(Acquired::Held { holder: two, left: also }),
                    ) if one == two && about_the_same(Some(left), Some(also)) => {}
                    other => panic!("acquire: {other:?}"),
                }
            }
            6..=8 => {
                let answers = (
                    self.memory.commit(&key, entry, ME, never),
                    self.redis.commit(&key, entry, ME, never),
                );
                match answers {
                    (Ok(Committed::Stored), Ok(Committed::Stored)) => {}
                    (Ok(Committed::Refused), Ok(Committed::Refused)) => {}
                    (Ok(Committed::Superseded(one)), Ok(Committed::Superseded(two)))
                        if same_value(&one, &two) => {}
                    other => panic!("commit: {other:?}"),
                }
            }
            9 => assert_eq!(
                self.redis.renew(&key, lease, never),
                self.memory.renew(&key, lease, never)
            ),
            10 => {
                let all = [Reaction::TakeOver, Reaction::LoadAlone, Reaction::BackOff];
                let reaction = all[self.draw.usize(..3)];
                assert_eq!(
                    self.redis.release(&key, token, reaction, ME, never),
                    self.memory.release(&key, token, reaction, ME, never)
                );
            }
            11 => {
                self.memory.invalidate(&key, ME, never).unwrap();
                self.redis.invalidate(&key, ME, never).unwrap();
            }
            12 => {
                self.memory.put(&key, entry, ME, never).unwrap();
                self.redis.put(&key, entry, ME, never).unwrap();
            }
            _ => self.trouble(server, id, &bytes),
        }
    }

    /// What happens behind everybody's back, or concerns a table.
    fn trouble(&mut self, server: &Server, id: u64, bytes: &[u8]) {
        let never = Deadline::NEVER;
        let (table, names) = (Table::new(format!("table {id}")), Namespace::new("onefill"));
        match self.draw.u8(..6) {
            0 => {
                self.memory.evict(&key(id));
                server.command(&[b"DEL", &value_name(id)[..]]);
            }
            1 => {
                self.memory.drop_lease(&key(id));
                server.command(&[b"DEL", &lease_name(id)[..]]);
            }
            2 => {
                self.memory.plant(&key(id), bytes, None);
                server.command(&[b"SET", &value_name(id)[..], bytes]);
            }
            3 => {
                let epoch = Epoch::random();
                self.memory.invalidate_all(&table, epoch, ME, never).unwrap();
                self.redis.invalidate_all(&table, epoch, ME, never).unwrap();
                self.epochs[id as usize] = Some((epoch, epoch));
            }
            _ => {
                let both = (
                    self.memory.epoch(&table, never).unwrap(),
                    self.redis.epoch(&table, never).unwrap(),
                );
                assert_eq!(*self.epochs[id as usize].get_or_insert(both), both);
                let left = server.command(&[b"PTTL", &names.epoch(&table)[..]]).integer();
                assert!(left > 9 * 365 * 24 * 3_600_000, "an epoch is kept for {left} ms");
            }
        }
    }
}

/// Lifetimes that are told apart on any machine.
const LIVES: [u64; 3] = [1_000, 10_000, 100_000];

fn about_the_same(one: Option<Duration>, two: Option<Duration>) -> bool {
    match (one, two) {
        (Some(one), Some(two)) => one.abs_diff(two) < secs(200),
        (one, two) => one == two,
    }
}

fn same_value(one: &Stored, two: &Stored) -> bool {
    one.bytes == two.bytes && about_the_same(one.left, two.left)
}

const KEYS: u64 = 4;

fn it_answers_as_the_tier_in_memory_does(client: Client) {
    let server = Server::start();
    let seed = fastrand::u64(..);
    println!("seed {seed:#x}");
    let mut both = Both::new(&server, client, seed);
    for _ in 0..5_000 {
        both.step(&server);
    }
    // And what was heard is the same, too, in the same order, with nothing missing.
    let [memory, redis] = &both.heard;
    let expected = memory.lock().unwrap().clone();
    eventually("all notices came", || redis.lock().unwrap().len() >= expected.len());
    assert_eq!(*redis.lock().unwrap(), expected);
    assert_eq!(both.redis.report().foreign, 0);
    assert_eq!(both.redis.report().strange, 0);
}

#[test]
fn a_deadline_that_has_passed_sends_nothing() {
    let tier = Redis::over(Address::tcp("127.0.0.1", 1)).tier().unwrap();
    let passed = Deadline::at(Instant::now());
    assert!(matches!(tier.lookup(&key(1), passed), Err(TierError::TooSlow { .. })));
    assert!(matches!(tier.invalidate(&key(1), ME, passed), Err(TierError::TooSlow { .. })));
}

/// What travels is what [`Notice`] says.
#[test]
fn notices_travel_as_their_bytes() {
    let (server, never) = (Server::start(), Deadline::NEVER);
    let mut subscriber = server.connect().unwrap();
    subscriber.call(&["SUBSCRIBE", "onefill:ev"]).unwrap();
    let tier = patient(address(&server, Client::default())).tier().unwrap();
    tier.invalidate(&key(7), ME, never).unwrap();
    let message = subscriber.receive().unwrap().items();
    let payload = message.last().unwrap().clone().bytes().unwrap();
    let news = News::Invalidated { key: key(7).fingerprint() };
    assert_eq!(Notice::from_bytes(&payload), Some(Notice { from: ME, news }));
}
