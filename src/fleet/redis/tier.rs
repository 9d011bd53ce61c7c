//! [`Redis`]: a [`Tier`] on a server.

use std::cell::Cell;
use std::fmt;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::deadline::Deadline;
use crate::error::{Refusal, TierError};
use crate::fleet::envelope::{self, MAX_LIFE};
use crate::fleet::event::{Listener, News, Notice, Reaction};
use crate::fleet::key::{Key, Names, Namespace, Table};
use crate::fleet::tier::{
    Acquired, Committed, Entry, Lease, Ownership, Report, Seen, Stored, Tier,
};
use crate::fleet::token::{Epoch, Origin, Token};
use crate::sync::Arc;

use super::ear::Ear;
use super::refusal::refused;
use super::script::{self, Script};
use super::{Dial, Pool, Reply, Settings};

/// Redis, Valkey, or whatever else speaks their protocol, as the shared tier of a fleet.
///
/// Usually made by [`Fleet::redis`](crate::fleet::Fleet::redis), and never seen. By itself, from
/// [`RedisBuilder::tier`](super::RedisBuilder::tier), it is for whoever wants to put something
/// around it.
///
/// When it is dropped, so are its connections, and its thread ends within a quarter of a second.
pub struct Redis {
    pool: Arc<Pool>,
    namespace: Namespace,
    channel: Vec<u8>,
    ear: Ear,
    foreign: AtomicU64,
    misplaced: AtomicU64,
}

impl Redis {
    pub(super) fn new(dial: Arc<dyn Dial>, namespace: Namespace, settings: Settings) -> Redis {
        let pool = Arc::new(Pool::new(dial, settings));
        let channel = namespace.channel().into_bytes();
        let heartbeats = namespace.heartbeats(Origin::random()).into_bytes();
        let ear = Ear::new(&pool, channel.clone(), heartbeats);
        Redis {
            pool,
            namespace,
            channel,
            ear,
            foreign: AtomicU64::new(0),
            misplaced: AtomicU64::new(0),
        }
    }

    fn run<T>(
        &self,
        script: &Script,
        keys: &[&[u8]],
        arguments: &[&[u8]],
        deadline: Deadline,
        read: impl Fn(Reply) -> Result<T, TierError>,
    ) -> Result<T, TierError> {
        in_time(deadline)?;
        script.run(&self.pool, keys, arguments, deadline, |reply| match reply {
            Reply::Error { code, text } => Err(refused(&code, &text)),
            reply => read(reply),
        })
    }

    /// Asks for a value, and asks again if it is another key's. If that was meant for somebody else,
    /// and came over a connection that has lost its place, another connection has the right one. If
    /// it is what is stored, its reader finds out, and replaces it.
    fn unless_misplaced<T>(
        &self,
        key: &Key,
        ask: impl Fn(&dyn Fn(Stored) -> Result<Stored, TierError>) -> Result<T, TierError>,
    ) -> Result<T, TierError> {
        let misplaced = Cell::new(false);
        let answer = ask(&|stored| {
            misplaced.set(envelope::is_of_another(&stored.bytes, key.fingerprint()));
            match misplaced.get() {
                true => Err(TierError::Garbled("an envelope of another key".into())),
                false => Ok(stored),
            }
        });
        if !misplaced.get() {
            return answer;
        }
        self.misplaced.fetch_add(1, Ordering::Relaxed);
        ask(&Ok)
    }

    /// Something of a foreign type is stored under a name of ours.
    fn found_foreign(&self) {
        self.foreign.fetch_add(1, Ordering::Relaxed);
    }
}

impl Tier for Redis {
    fn lookup(&self, key: &Key, deadline: Deadline) -> Result<Option<Stored>, TierError> {
        in_time(deadline)?;
        let name = self.namespace.names(key).value;
        // What is left before the value. If a newer value is stored in between, it seems to be as
        // old as the one before; the other way round an old one would seem to be new, and would be
        // kept for another lifetime.
        let commands: [&[&[u8]]; 2] = [&[b"PTTL", &name], &[b"GET", &name]];
        self.unless_misplaced(key, |read| {
            self.pool.call_with(&commands, deadline, |replies| {
                let [left, value] = <[Reply; 2]>::try_from(replies)
                    .map_err(|replies| garbled("PTTL, GET", &Reply::Array(replies)))?;
                let left = match left {
                    Reply::Int(left) => left,
                    other => return Err(unexpected("PTTL", &other)),
                };
                match value {
                    Reply::Nil => Ok(None),
                    Reply::Bytes(bytes) if bytes.is_empty() => Ok(None),
                    // It was stored in between: whoever asks again is told what is left of it.
                    Reply::Bytes(_) if left == GONE => Ok(None),
                    Reply::Bytes(bytes) => read(Stored::with_pttl(bytes, left)).map(Some),
                    other => match unexpected("GET", &other) {
                        error if error.refusal() == Some(Refusal::WrongType) => {
                            self.found_foreign();
                            Ok(None)
                        }
                        error => Err(error),
                    },
                }
            })
        })
    }

    fn acquire(
        &self,
        key: &Key,
        lease: Lease,
        seen: Option<Seen>,
        deadline: Deadline,
    ) -> Result<Acquired, TierError> {
        let Names { value, lease: name } = self.namespace.names(key);
        let seen = seen.as_ref().map(Seen::as_bytes).unwrap_or_default();
        let arguments: [&[u8]; 3] = [lease.token.as_bytes(), &millis(lease.ttl()), seen];
        self.unless_misplaced(key, |read| {
            self.run(&script::ACQUIRE, &[&value, &name], &arguments, deadline, |reply| {
                let Reply::Array(row) = &reply else { return Err(garbled("acquire", &reply)) };
                match &row[..] {
                    [Reply::Int(1), ..] => read(stored(reply)?).map(Acquired::Hit),
                    [Reply::Int(2)] => Ok(Acquired::Won),
                    [Reply::Int(3), Reply::Int(left), holder] => {
                        let holder = match holder {
                            Reply::Bytes(bytes) => bytes[..].try_into().ok().map(Token::from_bytes),
                            _ => {
                                self.found_foreign();
                                None
                            }
                        };
                        let left = Duration::from_millis((*left).try_into().unwrap_or(0));
                        Ok(Acquired::Held { holder, left })
                    }
                    _ => Err(garbled("acquire", &reply)),
                }
            })
        })
    }

    fn commit(
        &self,
        key: &Key,
        entry: Entry<'_>,
        from: Origin,
        deadline: Deadline,
    ) -> Result<Committed, TierError> {
        let Names { value, lease } = self.namespace.names(key);
        let (version, life) = (entry.version, millis(entry.life()));
        let envelope = entry.announce.then(|| entry.bytes.into());
        let news = News::Filled { key: key.fingerprint(), version, envelope };
        let notice = Notice { from, news }.to_bytes();
        let arguments: [&[u8]; 5] =
            [version.as_bytes(), entry.bytes, &life, &self.channel, &notice];
        self.run(&script::COMMIT, &[&value, &lease], &arguments, deadline, |reply| {
            let Reply::Array(row) = &reply else { return Err(garbled("commit", &reply)) };
            match row[..] {
                [Reply::Int(1)] => Ok(Committed::Stored),
                [Reply::Int(2), ..] => stored(reply).map(Committed::Superseded),
                [Reply::Int(3)] => Ok(Committed::Refused),
                _ => Err(garbled("commit", &reply)),
            }
        })
    }

    fn renew(&self, key: &Key, lease: Lease, deadline: Deadline) -> Result<Ownership, TierError> {
        let name = self.namespace.names(key).lease;
        let arguments: [&[u8]; 2] = [lease.token.as_bytes(), &millis(lease.ttl())];
        self.run(&script::RENEW, &[&name], &arguments, deadline, ownership)
    }

    fn release(
        &self,
        key: &Key,
        token: Token,
        reaction: Reaction,
        from: Origin,
        deadline: Deadline,
    ) -> Result<Ownership, TierError> {
        let name = self.namespace.names(key).lease;
        let news = News::Failed { key: key.fingerprint(), token, reaction };
        let notice = Notice { from, news }.to_bytes();
        let arguments: [&[u8]; 3] = [token.as_bytes(), &self.channel, &notice];
        self.run(&script::RELEASE, &[&name], &arguments, deadline, ownership)
    }

    fn invalidate(&self, key: &Key, from: Origin, deadline: Deadline) -> Result<(), TierError> {
        let Names { value, lease } = self.namespace.names(key);
        let notice = Notice { from, news: News::Invalidated { key: key.fingerprint() } };
        let arguments: [&[u8]; 2] = [&self.channel, &notice.to_bytes()];
        self.run(&script::INVALIDATE, &[&value, &lease], &arguments, deadline, done)
    }

    fn put(
        &self,
        key: &Key,
        entry: Entry<'_>,
        from: Origin,
        deadline: Deadline,
    ) -> Result<(), TierError> {
        let Names { value, lease } = self.namespace.names(key);
        let (version, life) = (entry.version, millis(entry.life()));
        let envelope = entry.announce.then(|| entry.bytes.into());
        let news = News::Put { key: key.fingerprint(), version, envelope };
        let notice = Notice { from, news }.to_bytes();
        let arguments: [&[u8]; 4] = [entry.bytes, &life, &self.channel, &notice];
        self.run(&script::PUT, &[&value, &lease], &arguments, deadline, done)
    }

    fn epoch(&self, table: &Table, deadline: Deadline) -> Result<Epoch, TierError> {
        let name = self.namespace.epoch(table);
        let offered = Epoch::random().as_u64().to_be_bytes();
        let arguments: [&[u8]; 2] = [&offered, &millis(MAX_LIFE)];
        self.run(&script::EPOCH, &[&name], &arguments, deadline, |reply| match &reply {
            Reply::Bytes(bytes) => match bytes[..].try_into() {
                Ok(bytes) => Ok(Epoch::from_u64(u64::from_be_bytes(bytes))),
                Err(_) => Err(garbled("epoch", &reply)),
            },
            _ => Err(garbled("epoch", &reply)),
        })
    }

    fn invalidate_all(
        &self,
        table: &Table,
        epoch: Epoch,
        from: Origin,
        deadline: Deadline,
    ) -> Result<(), TierError> {
        let name = self.namespace.epoch(table);
        let news = News::InvalidatedAll { table: table.fingerprint(), epoch };
        let notice = Notice { from, news }.to_bytes();
        let bytes = epoch.as_u64().to_be_bytes();
        let arguments: [&[u8]; 4] = [&bytes, &millis(MAX_LIFE), &self.channel, &notice];
        self.run(&script::INVALIDATE_ALL, &[&name], &arguments, deadline, done)
    }

    fn listen(&self, listener: Weak<dyn Listener>) {
        self.ear.listen(listener);
    }

    fn report(&self) -> Report {
        let mut report = Report {
            foreign: self.foreign.load(Ordering::Relaxed),
            misplaced: self.misplaced.load(Ordering::Relaxed),
            ..Report::default()
        };
        self.ear.report(&mut report);
        report
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("namespace", &self.namespace)
            .field("pool", &self.pool)
            .field("ear", &self.ear)
            .finish_non_exhaustive()
    }
}

/// What `PTTL` says of a name under which there is nothing.
const GONE: i64 = -2;

fn millis(time: Duration) -> Vec<u8> {
    time.as_millis().to_string().into_bytes()
}

fn in_time(deadline: Deadline) -> Result<(), TierError> {
    match deadline.has_passed() {
        true => Err(TierError::TooSlow { waited: Duration::ZERO }),
        false => Ok(()),
    }
}

/// A row of a number, a value, and what is left of it.
fn stored(reply: Reply) -> Result<Stored, TierError> {
    let Reply::Array(mut row) = reply else { return Err(garbled("value", &reply)) };
    match &mut row[..] {
        [_, Reply::Bytes(bytes), Reply::Int(left)] => {
            Ok(Stored::with_pttl(std::mem::take(bytes), *left))
        }
        _ => Err(garbled("value", &Reply::Array(row))),
    }
}

fn ownership(reply: Reply) -> Result<Ownership, TierError> {
    match reply {
        Reply::Int(1) => Ok(Ownership::Ours),
        Reply::Int(0) => Ok(Ownership::Lost),
        other => Err(garbled("lease", &other)),
    }
}

fn done(reply: Reply) -> Result<(), TierError> {
    match reply {
        Reply::Int(_) => Ok(()),
        other => Err(garbled("script", &other)),
    }
}

fn unexpected(asked: &str, reply: &Reply) -> TierError {
    match reply {
        Reply::Error { code, text } => refused(code, text),
        other => garbled(asked, other),
    }
}

/// An answer, but to another question.
fn garbled(asked: &str, reply: &Reply) -> TierError {
    TierError::Garbled(format!("{asked} was answered by {reply:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::envelope::{Header, Schema};
    use crate::fleet::redis::fake::Fake;
    use proptest::prelude::*;

    const ME: Origin = Origin::from_u64(7);

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(20))
    }

    fn key() -> Key {
        Key::new(&Table::new("page"), &7)
    }

    fn lease() -> Lease {
        Lease::new(Token::from_bytes([1; 16]), Duration::from_millis(1_500))
    }

    fn on(fake: &Fake) -> Redis {
        let long = Duration::from_secs(10);
        Redis::over(fake.clone()).pool_wait(long).io_timeout(long).tier().unwrap()
    }

    fn bytes(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    fn error(code: &str, text: &str) -> Reply {
        Reply::Error { code: code.into(), text: text.into() }
    }

    fn envelope_of(id: u64) -> Vec<u8> {
        let header = Header {
            version: Token::from_bytes([2; 16]),
            fingerprint: Key::new(&Table::new("page"), &id).fingerprint(),
            absent: true,
            ttl: Duration::from_secs(60),
            life: Duration::from_secs(60),
            cost: Duration::ZERO,
            schema: Schema::new(1, "raw"),
            epoch: Epoch::from_u64(3),
        };
        envelope::encode(&header, 0, |_| Ok(())).unwrap()
    }

    #[test]
    fn a_lookup_asks_what_is_left_and_then_for_the_value() {
        let fake = Fake::new(|_, command| match command[0] {
            b"PTTL" => Reply::Int(1_234),
            _ => bytes("tea"),
        });
        let stored = on(&fake).lookup(&key(), soon()).unwrap().unwrap();
        assert_eq!(stored.bytes, b"tea");
        assert_eq!(stored.left, Some(Duration::from_millis(1_234)));
        let name = b"onefill:v:{page/7;}".to_vec();
        let expected = vec![vec![b"PTTL".to_vec(), name.clone()], vec![b"GET".to_vec(), name]];
        assert_eq!(fake.commands(), expected);
    }

    #[test]
    fn what_is_no_value_is_none() {
        let wrong = || error("WRONGTYPE", "Operation against a key holding the wrong kind");
        for (left, value) in [
            (-2, Reply::Nil),
            (1_000, bytes("")),
            (-2, bytes("stored in between, for who knows how long")),
            (-1, wrong()),
        ] {
            let foreign = u64::from(value == wrong());
            let fake = Fake::new(move |_, command| match command[0] {
                b"PTTL" => Reply::Int(left),
                _ => value.clone(),
            });
            let tier = on(&fake);
            assert_eq!(tier.lookup(&key(), soon()), Ok(None));
            assert_eq!(tier.report().foreign, foreign);
        }
    }

    #[test]
    fn a_script_that_is_not_known_is_sent() {
        let fake = Fake::new(|_, command| match command[0] {
            b"EVALSHA" => error("NOSCRIPT", "No matching script."),
            _ => Reply::Array(vec![Reply::Int(2)]),
        });
        assert_eq!(on(&fake).acquire(&key(), lease(), None, soon()), Ok(Acquired::Won));
        let [known, sent] = &fake.commands()[..] else { panic!("{:?}", fake.commands()) };
        assert_eq!(known[0], b"EVALSHA");
        assert_eq!(sent[0], b"EVAL");
        assert!(sent[1].starts_with(b"--"), "the text");
        assert_eq!(sent[2..], known[2..]);
        let rest =
            [&b"2"[..], b"onefill:v:{page/7;}", b"onefill:l:{page/7;}", &[1; 16], b"1500", b""];
        assert_eq!(known[2..], rest);
        assert_eq!(fake.dialled(), 1, "it is no trouble with the connection");
    }

    #[test]
    fn a_no_keeps_the_connection_and_an_answer_to_something_else_does_not() {
        let fake = Fake::new(|number, _| match number {
            0 => error("OOM", "command not allowed"),
            _ => bytes("PONG"),
        });
        let tier = on(&fake);
        for _ in 0..3 {
            let full = tier.acquire(&key(), lease(), None, soon()).unwrap_err();
            assert_eq!(full.refusal(), Some(Refusal::OutOfMemory));
        }
        assert_eq!(fake.dialled(), 1);

        let fake = Fake::new(|_, _| bytes("PONG"));
        let tier = on(&fake);
        for calls in 1..4 {
            let other = tier.acquire(&key(), lease(), None, soon()).unwrap_err();
            assert!(matches!(other, TierError::Garbled(_)), "{other}");
            assert_eq!(fake.dialled(), calls);
        }
    }

    #[test]
    fn a_replica_is_not_asked_again_over_the_same_connections() {
        let fake = Fake::new(|number, _| match number {
            0 => error("READONLY", "You can't write against a read only replica."),
            _ => Reply::Int(1),
        });
        let tier = on(&fake);
        let replica = tier.invalidate(&key(), ME, soon()).unwrap_err();
        assert_eq!(replica.refusal(), Some(Refusal::ReadOnly));
        assert_eq!(tier.invalidate(&key(), ME, soon()), Ok(()));
        assert_eq!(fake.dialled(), 2);
    }

    #[test]
    fn another_keys_value_is_asked_for_again_over_another_connection() {
        // The first connection is an answer behind.
        let fake = Fake::new(|number, command| match (number, command[0]) {
            (_, b"PTTL") => Reply::Int(1_000),
            (0, b"GET") => Reply::Bytes(envelope_of(8)),
            (_, b"GET") => Reply::Bytes(envelope_of(7)),
            (number, _) => {
                let envelope = envelope_of(if number == 1 { 8 } else { 7 });
                Reply::Array(vec![Reply::Int(1), Reply::Bytes(envelope), Reply::Int(1_000)])
            }
        });
        let tier = on(&fake);
        let stored = tier.lookup(&key(), soon()).unwrap().unwrap();
        assert_eq!(stored.bytes, envelope_of(7));
        assert_eq!((fake.dialled(), tier.report().misplaced), (2, 1));

        let stored = tier.acquire(&key(), lease(), None, soon()).unwrap();
        assert_eq!(stored, Acquired::Hit(Stored::with_pttl(envelope_of(7), 1_000)));
        assert_eq!((fake.dialled(), tier.report().misplaced), (3, 2));
    }

    #[test]
    fn another_keys_value_that_is_what_is_stored_is_handed_out() {
        let fake = Fake::new(|_, command| match command[0] {
            b"PTTL" => Reply::Int(1_000),
            _ => Reply::Bytes(envelope_of(8)),
        });
        let stored = on(&fake).lookup(&key(), soon()).unwrap().unwrap();
        assert_eq!(
            stored.bytes,
            envelope_of(8),
            "whoever reads it finds the fault, and replaces it"
        );
        assert_eq!(fake.dialled(), 2, "and the second connection is believed");
    }

    fn any_reply() -> impl Strategy<Value = Reply> {
        let leaf = prop_oneof![
            Just(Reply::Nil),
            (-3..4i64).prop_map(Reply::Int),
            any::<i64>().prop_map(Reply::Int),
            proptest::collection::vec(any::<u8>(), 0..40).prop_map(Reply::Bytes),
            Just(Reply::Bytes(vec![0; 8])),
            Just(Reply::Bytes(vec![0; 16])),
            Just(error("NOSCRIPT", "")),
            Just(error("", "")),
            Just(error("ERR", "Error running script: -OOM ")),
            Just(Reply::Bytes(envelope_of(8))),
        ];
        leaf.prop_recursive(2, 8, 4, |inner| {
            proptest::collection::vec(inner, 0..4).prop_map(Reply::Array)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, cases: 300, ..ProptestConfig::default()
        })]

        #[test]
        fn nothing_that_a_server_can_say_is_a_panic(replies in proptest::collection::vec(any_reply(), 1..4)) {
            let turn = std::sync::atomic::AtomicUsize::new(0);
            let fake = Fake::new(move |_, _| {
                replies[turn.fetch_add(1, Ordering::Relaxed) % replies.len()].clone()
            });
            let (tier, key, token) = (on(&fake), key(), lease().token);
            let entry = Entry::new(token, b"tea", Duration::MAX);
            let _ = tier.lookup(&key, soon());
            let _ = tier.acquire(&key, lease(), Seen::of(b"tea"), soon());
            let _ = tier.commit(&key, entry.announced(), ME, soon());
            let _ = tier.renew(&key, lease(), soon());
            let _ = tier.release(&key, token, Reaction::BackOff, ME, soon());
            let _ = tier.invalidate(&key, ME, soon());
            let _ = tier.put(&key, entry, ME, soon());
            let _ = tier.epoch(key.table(), soon());
            let _ = tier.invalidate_all(key.table(), Epoch::from_u64(1), ME, soon());
        }
    }
}
