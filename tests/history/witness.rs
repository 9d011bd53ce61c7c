//! [`Witness`]: a tier that writes down what another one answers, and what it is heard to say.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use onefill::fleet::redis::Redis;
use onefill::fleet::{
    Acquired, Committed, Entry, Epoch, Event, Fingerprint, Key, Lease, Listener, News, Origin,
    Ownership, Reaction, Report, Seen, Stored, Table, Tier, Token,
};
use onefill::{Deadline, TierError};

use super::database::KEYS;
use super::process::thread_number;
use super::record::{Heard, Log, What, nanos, now};

pub(crate) struct Witness {
    tier: Redis,
    log: Arc<Log>,
    keys: HashMap<Fingerprint, u64>,
    ears: Mutex<Vec<Arc<dyn Listener>>>,
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tier.fmt(f)
    }
}

impl Witness {
    pub(crate) fn new(tier: Redis, table: &str, log: Arc<Log>) -> Witness {
        let table = Table::new(table);
        let keys = (0..KEYS).map(|key| (Key::new(&table, &key).fingerprint(), key)).collect();
        Witness { tier, log, keys, ears: Mutex::default() }
    }

    /// Asks, and writes down what that came to.
    fn ask<T>(
        &self,
        key: &Key,
        ask: impl FnOnce(&Redis) -> Result<T, TierError>,
        what: impl FnOnce(u64, Option<&T>) -> What,
    ) -> Result<T, TierError> {
        let begin = now();
        let answer = ask(&self.tier);
        let end = now();
        let what = what(self.keys[&key.fingerprint()], answer.as_ref().ok());
        self.log.write(thread_number(), begin, end, what);
        answer
    }
}

fn number(token: Token) -> u128 {
    u128::from_be_bytes(*token.as_bytes())
}

impl Tier for Witness {
    fn lookup(&self, key: &Key, deadline: Deadline) -> Result<Option<Stored>, TierError> {
        self.tier.lookup(key, deadline)
    }

    fn acquire(
        &self,
        key: &Key,
        lease: Lease,
        seen: Option<Seen>,
        deadline: Deadline,
    ) -> Result<Acquired, TierError> {
        let (token, life) = (number(lease.token), nanos(lease.ttl()));
        self.ask(
            key,
            |tier| tier.acquire(key, lease, seen, deadline),
            |key, answer| {
                let won = matches!(answer, Some(Acquired::Won));
                What::Acquired { key, token, life, won }
            },
        )
    }

    fn commit(
        &self,
        key: &Key,
        entry: Entry<'_>,
        from: Origin,
        deadline: Deadline,
    ) -> Result<Committed, TierError> {
        let token = number(entry.version);
        self.ask(
            key,
            |tier| tier.commit(key, entry, from, deadline),
            |key, answer| {
                let stored = matches!(answer, Some(Committed::Stored));
                What::Committed { key, token, stored }
            },
        )
    }

    fn renew(&self, key: &Key, lease: Lease, deadline: Deadline) -> Result<Ownership, TierError> {
        let (token, life) = (number(lease.token), nanos(lease.ttl()));
        self.ask(
            key,
            |tier| tier.renew(key, lease, deadline),
            |key, answer| {
                let ours = matches!(answer, Some(Ownership::Ours));
                What::Renewed { key, token, life, ours }
            },
        )
    }

    fn release(
        &self,
        key: &Key,
        token: Token,
        reaction: Reaction,
        from: Origin,
        deadline: Deadline,
    ) -> Result<Ownership, TierError> {
        self.ask(
            key,
            |tier| tier.release(key, token, reaction, from, deadline),
            |key, _| What::Released { key, token: number(token) },
        )
    }

    fn invalidate(&self, key: &Key, from: Origin, deadline: Deadline) -> Result<(), TierError> {
        self.ask(
            key,
            |tier| tier.invalidate(key, from, deadline),
            |key, answer| What::Removed { key, done: answer.is_some() },
        )
    }

    fn put(
        &self,
        key: &Key,
        entry: Entry<'_>,
        from: Origin,
        deadline: Deadline,
    ) -> Result<(), TierError> {
        let token = number(entry.version);
        self.ask(
            key,
            |tier| tier.put(key, entry, from, deadline),
            |key, _| What::Put { key, token },
        )
    }

    fn epoch(&self, table: &Table, deadline: Deadline) -> Result<Epoch, TierError> {
        self.tier.epoch(table, deadline)
    }

    fn invalidate_all(
        &self,
        table: &Table,
        epoch: Epoch,
        from: Origin,
        deadline: Deadline,
    ) -> Result<(), TierError> {
        self.tier.invalidate_all(table, epoch, from, deadline)
    }

    fn listen(&self, listener: Weak<dyn Listener>) {
        let log = Arc::clone(&self.log);
        let ear: Arc<dyn Listener> = Arc::new(move |event: &Event| {
            let begin = now();
            if let Some(listener) = listener.upgrade() {
                listener.hear(event);
            }
            let heard = match event {
                Event::Up => Heard::Up,
                Event::Down => Heard::Down,
                Event::Notice(notice) => match &notice.news {
                    News::Filled { version, .. } | News::Put { version, .. } => {
                        Heard::Version(number(*version))
                    }
                    // Of those nobody can tell which one it is.
                    _ => return,
                },
                other => panic!("{other:?} is new here"),
            };
            log.write(thread_number(), begin, now(), What::Heard(heard));
        });
        self.tier.listen(Arc::downgrade(&ear));
        self.ears.lock().unwrap_or_else(PoisonError::into_inner).push(ear);
    }

    fn report(&self) -> Report {
        self.tier.report()
    }
}
