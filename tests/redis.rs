//! Tiers and caches on a real `redis-server`, once with each client that the build has.
#![cfg(any(feature = "redis", feature = "r2d2_redis"))]

#[path = "servers/mod.rs"]
mod servers;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use onefill::fleet::memory::Memory;
use onefill::fleet::redis::{Client, Redis, RedisBuilder, Server as Address};
use onefill::fleet::{
    Acquired, Committed, Entry, Epoch, Event, Fleet, Key, Lease, Listener, Namespace, Notice,
    Origin, Ownership, Reaction, Seen, Stored, Table, Tier, Token, codec,
};
use onefill::{Answer, Cache, CacheBuilder, Deadline, Error, Fill, Refusal, Source, TierError};

use servers::{Action, Call, Cluster, Resp, Sentinels, Server, Stub, eventually};

/// Each of these is a test with each client.
macro_rules! with_each_client {
    ($($name:ident)*) => {
        #[cfg(feature = "redis")]
        mod on_redis {
            $(#[test] fn $name() { super::$name(super::Client::Redis) })*
        }
        #[cfg(feature = "r2d2_redis")]
        mod on_r2d2_redis {
            $(#[test] fn $name() { super::$name(super::Client::R2d2Redis) })*
        }
    };
}
with_each_client! {
    it_answers_as_the_tier_in_memory_does
    a_herd_over_instances_is_one_load
    an_invalidation_reaches_the_copies_of_others_even_after_a_silence
    an_invalidation_of_a_table_reaches_all_who_have_it
    scripts_may_be_forgotten_at_any_time
    a_foreign_type_in_a_values_place_is_replaced
    a_foreign_type_in_a_leases_place_holds_nobody_up_for_ever
    an_absence_and_a_failure_travel
    values_of_a_lost_epoch_are_not_trusted
    a_cut_subscription_is_noticed_and_mended
    a_restart_without_data_is_survived
    a_server_that_hangs_is_noticed_by_its_silence
    when_the_last_handle_goes_so_does_everything
    a_missing_password_is_said
    the_rights_in_the_manual_are_enough
    without_the_right_to_the_channel_values_are_shared_all_the_same
    a_full_server_is_read_from
    a_server_that_takes_no_writes_is_read_from
    a_server_that_is_loading_is_no_outage
    a_message_for_somebody_else_is_ignored
    a_cluster_is_shared_like_one_server
    a_node_of_a_cluster_says_that_it_is_one
    after_a_failover_values_are_shared_through_the_other_server
    somebody_else_at_the_address_is_said
}

type Pages = Cache<u64, String, &'static str>;
type Builder = CacheBuilder<u64, String, &'static str>;

/// More than a busy machine takes for an answer.
const NOISE: Duration = Duration::from_secs(10);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Settings for a server that is slow only because the machine is.
fn patient(address: Address) -> RedisBuilder {
    let builder = Redis::over(address).pool_wait(NOISE).connect_timeout(NOISE).io_timeout(NOISE);
    builder.budget(NOISE)
}

fn address(server: &Server, client: Client) -> Address {
    Address::tcp("127.0.0.1", server.port()).client(client)
}

/// A process with one cache.
struct Instance {
    fleet: Fleet,
    cache: Pages,
    loads: Arc<AtomicUsize>,
}

impl Instance {
    /// Its loader says how many loads there were.
    fn new(server: &Server, client: Client) -> Instance {
        let loads = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&loads);
        let load = move |key: u64| Ok(format!("{key}: {}", count.fetch_add(1, SeqCst) + 1).into());
        Instance { loads, ..Instance::with(server, client, load) }
    }

    fn with(
        server: &Server,
        client: Client,
        load: impl Fn(u64) -> Result<Fill<String>, &'static str> + Send + Sync + 'static,
    ) -> Instance {
        Instance::at(&server.url(), client, load)
    }

    fn at(
        url: &str,
        client: Client,
        load: impl Fn(u64) -> Result<Fill<String>, &'static str> + Send + Sync + 'static,
    ) -> Instance {
        let fleet = Fleet::redis(url).client(client);
        let fleet = fleet.pool_wait(NOISE).connect_timeout(NOISE).io_timeout(NOISE).budget(NOISE);
        Instance::on(fleet.build().unwrap(), |cache| cache.loader(move |asked| load(*asked.key())))
    }

    fn on(fleet: Fleet, cache: impl FnOnce(Builder) -> Builder) -> Instance {
        let builder = Pages::builder("page").ttl(secs(600)).jitter(0.0).early_refresh(0.0);
        let cache = cache(builder.fleet(&fleet, codec::Raw)).build().unwrap();
        Instance { fleet, cache, loads: Arc::default() }
    }

    fn get(&self, key: u64) -> Result<Answer<String>, Error<&'static str>> {
        self.cache.get(&key)
    }

    #[track_caller]
    fn got(&self, key: u64) -> (String, Source) {
        let answer = self.get(key).unwrap();
        (answer.value().cloned().unwrap_or_default(), answer.source())
    }

    #[track_caller]
    fn hearing(self) -> Self {
        eventually("notices come", || self.fleet.health().hears);
        self
    }

    fn heard(&self) -> u64 {
        self.fleet.health().report.heard
    }
}

fn key(id: u64) -> Key {
    Key::new(&Table::new("page"), &id)
}

fn value_name(id: u64) -> Vec<u8> {
    Namespace::new("onefill").names(&key(id)).value
}

fn lease_name(id: u64) -> Vec<u8> {
    Namespace::new("onefill").names(&key(id)).lease
}

/// What every test leaves behind: no lease, and nothing that stays for ever.
#[track_caller]
fn tidy(server: &Server) {
    eventually("no lease is left", || server.leases("onefill").is_empty());
    assert_eq!(server.keys_without_ttl(), [""; 0]);
}

// The contract.

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

const ME: Origin = Origin::from_u64(7);
const KEYS: u64 = 4;

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

fn it_answers_as_the_tier_in_memory_does(client: Client) {
    let server = Server::start();
    let seed = fastrand::u64(..);
    println!("seed {seed:#x}");
    let mut both = Both::new(&server, client, seed);
    for _ in 0..20_000 {
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

// A fleet of caches.

fn a_herd_over_instances_is_one_load(client: Client) {
    let server = Server::start();
    let loads = Arc::new(AtomicUsize::new(0));
    let instances: Vec<_> = (0..4)
        .map(|_| {
            let loads = Arc::clone(&loads);
            let load = move |key: u64| {
                loads.fetch_add(1, SeqCst);
                thread::sleep(ms(100));
                Ok(format!("page {key}").into())
            };
            Instance::with(&server, client, load).hearing()
        })
        .collect();
    let start = Barrier::new(20);
    thread::scope(|s| {
        for instance in instances.iter().cycle().take(20) {
            s.spawn(|| {
                start.wait();
                assert_eq!(instance.got(7).0, "page 7");
            });
        }
    });
    // Also of those who read it before the notice that it is there came, and doubt it now.
    for instance in &instances {
        assert_eq!(instance.got(7).0, "page 7");
    }
    assert_eq!(loads.load(SeqCst), 1);
    tidy(&server);
}

fn an_invalidation_reaches_the_copies_of_others_even_after_a_silence(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client).hearing());
    one.got(7);
    // Short, so that the wait for a message has ended a few times; and long, so that the connection
    // has had to prove itself.
    for silence in [ms(900), ms(6_500)] {
        // The notice of what was loaded may come after that was read, and put it in doubt: once.
        eventually("it is a copy", || two.got(7) == (one.got(7).0, Source::Local));
        let heard = [one.heard(), two.heard()];
        thread::sleep(silence);
        eventually("it is still a copy", || two.got(7) == (one.got(7).0, Source::Local));
        one.cache.invalidate(&7).unwrap();
        eventually("the copy is gone", || two.got(7).1 != Source::Local);
        assert_eq!([one.heard(), two.heard()], heard, "no session was lost by being silent");
    }
    assert_eq!(one.fleet.health().report.strange, 0);
    tidy(&server);
}

fn an_invalidation_of_a_table_reaches_all_who_have_it(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client).hearing());
    for id in 0..5 {
        one.got(id);
        assert_eq!(two.got(id).1, Source::Fleet);
    }
    one.cache.invalidate_all().unwrap();
    assert_eq!(one.got(0).1, Source::Loaded);
    eventually("the copies are gone", || {
        (0..5).for_each(|id| drop(two.got(id)));
        two.loads.load(SeqCst) + one.loads.load(SeqCst) == 10
    });
    tidy(&server);
}

fn scripts_may_be_forgotten_at_any_time(client: Client) {
    let server = Server::start();
    let (begin, begun) = mpsc::sync_channel(0);
    let (end, ended) = mpsc::sync_channel(0);
    let ended = Mutex::new(ended);
    let load = move |key: u64| {
        begin.send(()).unwrap();
        ended.lock().unwrap().recv().unwrap();
        Ok(format!("page {key}").into())
    };
    let (one, two) = (Instance::with(&server, client, load), Instance::new(&server, client));
    for id in 0..10 {
        thread::scope(|s| {
            s.spawn(|| one.got(id));
            begun.recv().unwrap();
            assert_eq!(server.leases("onefill").len(), 1);
            server.script_flush();
            end.send(()).unwrap();
        });
        assert_eq!(server.leases("onefill").len(), 0);
        assert_eq!(two.got(id), (format!("page {id}"), Source::Fleet));
    }
    server.script_flush();
    one.cache.invalidate(&3).unwrap();
    one.cache.invalidate_all().unwrap();
    server.script_flush();
    one.cache.put(&4, String::from("put")).unwrap();
    assert_eq!(one.cache.stats().fleet_writes_failed, 0);
    assert_eq!(one.fleet.health().last_trouble, None);

    // What is known is not sent again.
    server.reset_calls();
    two.cache.invalidate(&1).unwrap();
    two.cache.invalidate(&2).unwrap();
    assert!(server.calls("eval") <= 1);
    tidy(&server);
}

fn a_foreign_type_in_a_values_place_is_replaced(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client));
    server.command(&[b"LPUSH", &value_name(7)[..], b"an application's own"]);
    assert_eq!(one.got(7), ("7: 1".into(), Source::Loaded));
    assert_eq!(server.command(&[b"TYPE", &value_name(7)[..]]).text(), "string");
    assert!(server.command(&[b"PTTL", &value_name(7)[..]]).integer() > 0);
    assert_eq!(two.got(7), ("7: 1".into(), Source::Fleet));
    assert_eq!(one.fleet.health().report.foreign, 1);
    assert!(!one.fleet.health().reads_open);

    // Of an epoch, too; and that ends it.
    let name = Namespace::new("onefill").epoch(&Table::new("page"));
    server.command(&[b"DEL", &name[..]]);
    server.command(&[b"SADD", &name[..], b"1"]);
    let three = Instance::new(&server, client);
    assert_eq!(three.got(7).1, Source::Loaded);
    assert_eq!(server.command(&[b"TYPE", &name[..]]).text(), "string");
    tidy(&server);
}

fn a_foreign_type_in_a_leases_place_holds_nobody_up_for_ever(client: Client) {
    let server = Server::start();
    let fleet = patient(address(&server, client)).lease(secs(2)).build().unwrap();
    let one = Instance::on(fleet, |cache| {
        cache.loser_wait(ms(300)).loader(|load| Ok(format!("page {}", load.key())))
    });
    let name = lease_name(7);
    server.command(&[b"LPUSH", &name[..], b"an application's own"]);
    assert_eq!(one.got(7), ("page 7".into(), Source::Alone));
    assert_eq!(server.command(&[b"TYPE", &name[..]]).text(), "list", "it is not ours to remove");
    let left = server.command(&[b"PTTL", &name[..]]).integer();
    assert!((1..=2_000).contains(&left), "{left}");
    assert!(one.fleet.health().report.foreign >= 1);

    // A token that is not known there is not ours, whatever is there.
    let tier = patient(address(&server, client)).tier().unwrap();
    let (token, never) = (Token::random(), Deadline::NEVER);
    let lease = Lease::new(token, secs(2));
    assert_eq!(tier.renew(&key(7), lease, never), Ok(Ownership::Lost));
    let released = tier.release(&key(7), token, Reaction::TakeOver, ME, never);
    assert_eq!(released, Ok(Ownership::Lost));
    let entry = Entry::new(token, b"bytes", secs(60));
    assert_eq!(tier.commit(&key(7), entry, ME, never), Ok(Committed::Refused));
    eventually("the key heals", || tier.acquire(&key(7), lease, None, never) == Ok(Acquired::Won));
    tier.release(&key(7), token, Reaction::TakeOver, ME, never).unwrap();
    tidy(&server);
}

fn an_absence_and_a_failure_travel(client: Client) {
    let server = Server::start();
    let loads = Arc::new(AtomicUsize::new(0));
    let [one, two] = [(); 2].map(|()| {
        let loads = Arc::clone(&loads);
        let load = move |key: u64| {
            loads.fetch_add(1, SeqCst);
            thread::sleep(ms(300));
            if key == 1 { Ok(Fill::absent()) } else { Err("no such database") }
        };
        Instance::with(&server, client, load).hearing()
    });
    assert!(one.get(1).unwrap().is_absent());
    let answer = two.get(1).unwrap();
    assert!(answer.is_absent() && answer.source() == Source::Fleet, "{answer:?}");

    assert_eq!(loads.swap(0, SeqCst), 1);
    thread::scope(|s| {
        let failing = s.spawn(|| one.get(2));
        eventually("it loads", || loads.load(SeqCst) == 1);
        let other = two.get(2).unwrap_err();
        assert!(matches!(other, Error::FailedElsewhere), "{other:?}");
        assert!(failing.join().unwrap().unwrap_err().is_failed());
    });
    assert_eq!(loads.load(SeqCst), 1);
    assert_eq!(server.command(&[b"EXISTS", &value_name(2)[..]]), Resp::Integer(0));
    tidy(&server);
}

fn values_of_a_lost_epoch_are_not_trusted(client: Client) {
    let server = Server::start();
    let one = Instance::new(&server, client);
    assert_eq!(one.got(7).0, "7: 1");
    server.command(&[b"DEL", &Namespace::new("onefill").epoch(&Table::new("page"))[..]]);
    let two = Instance::with(&server, client, |_| Ok(String::from("of the new epoch").into()));
    assert_eq!(two.got(7), ("of the new epoch".into(), Source::Loaded));
    let three = Instance::new(&server, client);
    assert_eq!(three.got(7), ("of the new epoch".into(), Source::Fleet));
    tidy(&server);
}

// The ear.

fn a_cut_subscription_is_noticed_and_mended(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client).hearing());
    one.got(7);
    let before = two.got(7);
    for round in 0..3 {
        let heard = two.heard();
        server.client_kill_all();
        eventually("it is heard again", || two.heard() > heard && two.fleet.health().hears);
        // What was missed meanwhile was in doubt, and is asked for.
        if round == 0 {
            server.command(&[b"DEL", &value_name(7)[..]]);
            one.got(8);
            assert_eq!(two.got(8).1, Source::Fleet, "and dead connections are not used");
        }
    }
    assert_ne!(two.got(7), (before.0, Source::Local));
    one.got(9);
    assert_eq!(two.got(9).1, Source::Fleet);
    one.cache.put(&9, String::from("newer")).unwrap();
    eventually("notices come", || two.got(9).0 == "newer");
    assert_eq!(two.fleet.health().report.deaf, None);
    tidy(&server);
}

fn a_restart_without_data_is_survived(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client).hearing());
    one.got(7);
    two.got(7);
    server.kill9();
    eventually("it is noticed", || !one.fleet.health().hears && !two.fleet.health().hears);
    assert!(two.fleet.health().report.deaf.is_some());
    assert!(one.got(8).1 == Source::Alone, "it is no outage");
    server.restart();
    eventually("it is heard again", || one.fleet.health().hears && two.fleet.health().hears);
    eventually("values are shared again", || {
        let id = 1_000 + one.loads.load(SeqCst) as u64;
        one.got(id).1 == Source::Loaded && two.got(id).1 == Source::Fleet
    });
    one.cache.put(&7, String::from("newer")).unwrap();
    eventually("notices come", || two.got(7).0 == "newer");
    tidy(&server);
}

fn a_server_that_hangs_is_noticed_by_its_silence(client: Client) {
    let server = Server::start();
    let fleet = Redis::over(address(&server, client)).build().unwrap();
    let one =
        Instance::on(fleet, |cache| cache.loader(|load| Ok(load.key().to_string()))).hearing();
    server.pause();
    let paused = Instant::now();
    eventually("it is noticed", || !one.fleet.health().hears);
    let after = paused.elapsed();
    assert!(after >= ms(1_500) && after < secs(9) + NOISE, "{after:?}");
    let deaf = one.fleet.health().report.deaf.unwrap();
    assert!(deaf.contains("nothing was heard"), "{deaf}");
    server.resume();
    eventually("it is heard again", || one.fleet.health().hears);
}

fn when_the_last_handle_goes_so_does_everything(client: Client) {
    let server = Server::start();
    let one = Instance::new(&server, client).hearing();
    one.got(7);
    assert!(server.clients() >= 2);
    drop(one);
    let dropped = Instant::now();
    eventually("all connections are closed", || server.clients() == 0);
    assert!(dropped.elapsed() < secs(1) + NOISE);
    tidy(&server);
}

// Rights, and the lack of them.

fn a_missing_password_is_said(client: Client) {
    let server = Server::builder().password("sesame").start();
    let addresses = [
        (address(&server, client), "NOAUTH"),
        (address(&server, client).password("simsalabim"), "WRONGPASS"),
    ];
    for (address, code) in addresses {
        let fleet = patient(address).pool_wait(secs(1)).build().unwrap();
        let one = Instance::on(fleet, |cache| cache.loader(|load| Ok(load.key().to_string())));
        for id in 0..10 {
            assert_eq!(one.got(id), (id.to_string(), Source::Alone));
        }
        let health = one.fleet.health();
        assert!(health.misconfigured && health.reads_open && !health.hears, "{health:?}");
        assert!(health.troubles.refused(Refusal::Denied) >= 1, "{health:?}");
        assert!(health.last_trouble.as_ref().unwrap().contains(code), "{health:?}");
        eventually("the ear says so, too", || {
            one.fleet.health().report.deaf.is_some_and(|deaf| deaf.contains(code))
        });
    }
    let right = patient(address(&server, client).password("sesame")).build().unwrap();
    let one =
        Instance::on(right, |cache| cache.loader(|load| Ok(load.key().to_string()))).hearing();
    assert_eq!(one.got(1).1, Source::Loaded);
    tidy(&server);
}

/// As in the documentation of `fleet::redis`.
const RIGHTS: &str = "resetchannels ~onefill:* &onefill:* +get +set +del +pttl +pexpire +publish \
                      +subscribe +eval +evalsha";

fn the_rights_in_the_manual_are_enough(client: Client) {
    let server = Server::builder().user(&format!("user app on >secret {RIGHTS}")).start();
    let [one, two] = [(); 2].map(|()| {
        let address = address(&server, client).credentials("app", "secret");
        let fleet = patient(address).build().unwrap();
        Instance::on(fleet, |cache| cache.loader(|load| Ok(load.key().to_string()))).hearing()
    });
    assert_eq!(one.got(7).1, Source::Loaded);
    assert_eq!(two.got(7).1, Source::Fleet);
    one.cache.put(&7, String::from("put")).unwrap();
    eventually("notices come", || two.got(7).0 == "put");
    two.cache.invalidate(&7).unwrap();
    two.cache.invalidate_all().unwrap();
    assert_eq!(one.get(8).unwrap().source(), Source::Loaded);
    for instance in [&one, &two] {
        assert_eq!(instance.fleet.health().last_trouble, None);
    }
    tidy(&server);
}

fn without_the_right_to_the_channel_values_are_shared_all_the_same(client: Client) {
    let user = "user app on >secret resetchannels ~onefill:* +@all";
    let server = Server::builder().user(user).start();
    let [one, two] = [(); 2].map(|()| {
        let address = address(&server, client).credentials("app", "secret");
        let fleet = patient(address).build().unwrap();
        Instance::on(fleet, |cache| cache.loader(|load| Ok(load.key().to_string())))
    });
    assert_eq!(one.got(7).1, Source::Loaded);
    assert_eq!(two.got(7).1, Source::Fleet);
    one.cache.put(&7, String::from("put")).unwrap();
    one.cache.invalidate(&7).unwrap();
    one.cache.invalidate_all().unwrap();
    let health = one.fleet.health();
    assert!(!health.hears && !health.misconfigured && health.last_trouble.is_none(), "{health:?}");
    eventually("the ear says why it is deaf", || {
        one.fleet.health().report.deaf.is_some_and(|deaf| deaf.contains("NOPERM"))
    });
    tidy(&server);
}

fn a_full_server_is_read_from(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client));
    one.got(7);
    server.make_oom();
    assert_eq!(two.got(7), ("7: 1".into(), Source::Fleet));
    assert_eq!(two.got(8).1, Source::Alone);
    let health = two.fleet.health();
    assert_eq!(health.troubles.refused(Refusal::OutOfMemory), 1, "{health:?}");
    assert!(!health.reads_open && !health.misconfigured);
    two.cache.invalidate(&7).unwrap();
    assert_eq!(server.command(&[b"EXISTS", &value_name(7)[..]]), Resp::Integer(0));
    let full = two.cache.put(&7, String::from("put")).unwrap_err();
    assert_eq!(full.refusal(), Some(Refusal::OutOfMemory));
    server.end_oom();
    assert_eq!(two.got(9).1, Source::Loaded);
    tidy(&server);
}

fn a_server_that_takes_no_writes_is_read_from(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client));
    one.got(7);
    for (id, class) in [(100, Refusal::ReadOnly), (101, Refusal::NotPersisting)] {
        match class {
            Refusal::ReadOnly => server.make_readonly(),
            _ => server.make_misconf(),
        }
        let three = Instance::new(&server, client);
        assert_eq!(three.got(7), ("7: 1".into(), Source::Fleet), "{class:?}");
        assert_eq!(three.got(id).1, Source::Alone, "{class:?}");
        assert_eq!(three.cache.invalidate(&7).unwrap_err().refusal(), Some(class));
        let health = three.fleet.health();
        assert!(health.troubles.refused(class) >= 2 && !health.reads_open, "{health:?}");
        match class {
            Refusal::ReadOnly => server.make_writable(),
            _ => server.end_misconf(),
        }
        let stored = || server.command(&[b"EXISTS", &value_name(id)[..]]) == Resp::Integer(1);
        eventually("values are stored again", || {
            three.cache.invalidate(&id).is_ok() && three.get(id).is_ok() && stored()
        });
    }
    assert_eq!(two.got(7), ("7: 1".into(), Source::Fleet));
    tidy(&server);
}

fn a_server_that_is_loading_is_no_outage(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client).hearing());
    one.got(7);
    server.loading_restart(NOISE);
    assert_eq!(two.got(7).1, Source::Alone);
    let refused = |one: &Instance| one.fleet.health().troubles.refused(Refusal::Loading);
    assert!(refused(&two) >= 1, "{:?}", two.fleet.health());
    server.end_loading();
    eventually("it is heard again", || two.fleet.health().hears);
    let three = Instance::new(&server, client);
    assert_eq!(three.got(7), ("7: 1".into(), Source::Fleet), "it has its data");
}

fn a_message_for_somebody_else_is_ignored(client: Client) {
    let server = Server::start();
    let one = Instance::new(&server, client).hearing();
    one.got(7);
    server.command(&["PUBLISH", "onefill:ev", "hello"]);
    server.command(&["PUBLISH", "onefill:ev", ""]);
    server.command(&["PUBLISH", "onefill:other", "hello"]);
    eventually("it is counted", || one.fleet.health().report.strange == 2);
    assert_eq!(one.got(7).1, Source::Local);
    assert!(one.fleet.health().hears);
    tidy(&server);
}

// Elsewhere.

fn a_cluster_is_shared_like_one_server(client: Client) {
    let cluster = Cluster::start();
    let url = format!("redis-cluster://127.0.0.1:{}", cluster.nodes()[0].port());
    let loads = Arc::new(AtomicUsize::new(0));
    let [one, two] = [(); 2].map(|()| {
        let loads = Arc::clone(&loads);
        let load = move |key: u64| Ok(format!("{key}: {}", loads.fetch_add(1, SeqCst)).into());
        Instance::at(&url, client, load).hearing()
    });
    for id in 0..60 {
        assert_eq!(one.got(id).1, Source::Loaded);
        assert_eq!(two.got(id), (one.got(id).0, Source::Fleet));
    }
    assert_eq!(loads.load(SeqCst), 60);
    assert!(cluster.nodes().iter().all(|node| !node.keys().is_empty()), "on all of its nodes");
    one.cache.put(&7, String::from("put")).unwrap();
    eventually("notices come", || two.got(7).0 == "put");
    cluster.nodes().iter().for_each(Server::script_flush);
    one.cache.invalidate(&7).unwrap();
    eventually("notices come", || two.got(7).0 != "put");
    one.cache.invalidate_all().unwrap();
    assert_eq!(one.got(9).1, Source::Loaded);
    assert_eq!(one.fleet.health().last_trouble, None);
    cluster.nodes().iter().for_each(tidy);
}

fn a_node_of_a_cluster_says_that_it_is_one(client: Client) {
    let cluster = Cluster::start();
    let server = &cluster.nodes()[0];
    let one = Instance::new(server, client);
    for id in 0..20 {
        assert_eq!(one.got(id).1, Source::Alone);
        if one.fleet.health().misconfigured {
            break;
        }
    }
    let health = one.fleet.health();
    assert!(health.misconfigured && health.troubles.refused(Refusal::Misrouted) >= 1, "{health:?}");
    assert!(health.last_trouble.unwrap().contains("redis-cluster://"));
}

fn after_a_failover_values_are_shared_through_the_other_server(client: Client) {
    let sentinels = Sentinels::start();
    let addresses = sentinels.sentinels().iter().map(|one| format!("127.0.0.1:{}", one.port()));
    let addresses = addresses.collect::<Vec<_>>().join(",");
    let url = format!("redis-sentinel://{addresses}/{}", Sentinels::NAME);
    let [one, two] = [(); 2]
        .map(|()| Instance::at(&url, client, |key| Ok(format!("page {key}").into())).hearing());
    assert_eq!(one.got(7).1, Source::Loaded);
    assert_eq!(two.got(7).1, Source::Fleet);
    sentinels.until_replicated();
    sentinels.fail_over();
    let mut id = 1_000;
    eventually("values are shared again", || {
        id += 1;
        one.got(id).1 == Source::Loaded && two.got(id).1 == Source::Fleet
    });
    eventually("notices come", || one.fleet.health().hears && two.fleet.health().hears);
    one.cache.put(&7, String::from("put")).unwrap();
    eventually("notices come", || two.got(7).0 == "put");
}

fn somebody_else_at_the_address_is_said(client: Client) {
    let web = |_: &Call| Action::Reply(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    let stub = Stub::new(web);
    let one = Instance::at(&stub.url(), client, |key| Ok(format!("page {key}").into()));
    for id in 0..5 {
        assert_eq!(one.got(id), (format!("page {id}"), Source::Alone));
    }
    let health = one.fleet.health();
    assert!(health.reads_open && health.troubles.garbled >= 3, "{health:?}");
    let last = health.last_trouble.unwrap();
    assert!(last.contains("HTTP/1.1 400"), "{last}");
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
    let news = onefill::fleet::News::Invalidated { key: key(7).fingerprint() };
    assert_eq!(Notice::from_bytes(&payload), Some(Notice { from: ME, news }));
}
