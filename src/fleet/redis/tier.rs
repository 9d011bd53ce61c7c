//! [`Redis`]: a [`Tier`] on a server.

use std::fmt;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::deadline::Deadline;
use crate::error::{Refusal, TierError};
use crate::fleet::envelope::MAX_LIFE;
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
use super::wire::{Dial, Reply};
use super::{Pool, Settings};

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
}

impl Redis {
    pub(super) fn new(dial: Arc<dyn Dial>, namespace: Namespace, settings: Settings) -> Redis {
        let pool = Arc::new(Pool::new(dial, settings));
        let channel = namespace.channel().into_bytes();
        let heartbeats = namespace.heartbeats(Origin::random()).into_bytes();
        let ear = Ear::new(&pool, channel.clone(), heartbeats);
        Redis { pool, namespace, channel, ear, foreign: AtomicU64::new(0) }
    }

    fn run(
        &self,
        script: &Script,
        keys: &[&[u8]],
        arguments: &[&[u8]],
        deadline: Deadline,
    ) -> Result<Reply, TierError> {
        in_time(deadline)?;
        match script.run(&self.pool, keys, arguments, deadline)? {
            Reply::Error { code, text } => Err(refused(&code, &text)),
            reply => Ok(reply),
        }
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
        let replies = self.pool.call(&commands, deadline)?;
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
            Reply::Bytes(bytes) => Ok(Some(Stored::with_pttl(bytes, left))),
            other => match unexpected("GET", &other) {
                error if error.refusal() == Some(Refusal::WrongType) => {
                    self.found_foreign();
                    Ok(None)
                }
                error => Err(error),
            },
        }
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
        let reply = self.run(&script::ACQUIRE, &[&value, &name], &arguments, deadline)?;
        let Reply::Array(row) = &reply else { return Err(garbled("acquire", &reply)) };
        match &row[..] {
            [Reply::Int(1), ..] => stored(reply).map(Acquired::Hit),
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
        let reply = self.run(&script::COMMIT, &[&value, &lease], &arguments, deadline)?;
        match &reply {
            Reply::Array(row) => match row[..] {
                [Reply::Int(1)] => Ok(Committed::Stored),
                [Reply::Int(2), ..] => stored(reply).map(Committed::Superseded),
                [Reply::Int(3)] => Ok(Committed::Refused),
                _ => Err(garbled("commit", &reply)),
            },
            _ => Err(garbled("commit", &reply)),
        }
    }

    fn renew(&self, key: &Key, lease: Lease, deadline: Deadline) -> Result<Ownership, TierError> {
        let name = self.namespace.names(key).lease;
        let arguments: [&[u8]; 2] = [lease.token.as_bytes(), &millis(lease.ttl())];
        ownership(self.run(&script::RENEW, &[&name], &arguments, deadline)?)
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
        ownership(self.run(&script::RELEASE, &[&name], &arguments, deadline)?)
    }

    fn invalidate(&self, key: &Key, from: Origin, deadline: Deadline) -> Result<(), TierError> {
        let Names { value, lease } = self.namespace.names(key);
        let notice = Notice { from, news: News::Invalidated { key: key.fingerprint() } };
        let arguments: [&[u8]; 2] = [&self.channel, &notice.to_bytes()];
        done(self.run(&script::INVALIDATE, &[&value, &lease], &arguments, deadline)?)
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
        done(self.run(&script::PUT, &[&value, &lease], &arguments, deadline)?)
    }

    fn epoch(&self, table: &Table, deadline: Deadline) -> Result<Epoch, TierError> {
        let name = self.namespace.epoch(table);
        let offered = Epoch::random().as_u64().to_be_bytes();
        let arguments: [&[u8]; 2] = [&offered, &millis(MAX_LIFE)];
        let reply = self.run(&script::EPOCH, &[&name], &arguments, deadline)?;
        match &reply {
            Reply::Bytes(bytes) => match bytes[..].try_into() {
                Ok(bytes) => Ok(Epoch::from_u64(u64::from_be_bytes(bytes))),
                Err(_) => Err(garbled("epoch", &reply)),
            },
            _ => Err(garbled("epoch", &reply)),
        }
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
        done(self.run(&script::INVALIDATE_ALL, &[&name], &arguments, deadline)?)
    }

    fn listen(&self, listener: Weak<dyn Listener>) {
        self.ear.listen(listener);
    }

    fn report(&self) -> Report {
        let mut report =
            Report { foreign: self.foreign.load(Ordering::Relaxed), ..Report::default() };
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
