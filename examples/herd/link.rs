//! [`Link`]: an instance's connection to the shared tier, which keeps count of what is asked.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};

use onefill::fleet::memory::Memory;
use onefill::fleet::{
    Acquired, Committed, Entry, Epoch, Event, Fingerprint, Key, Lease, Listener, Origin, Ownership,
    Reaction, Report, Seen, Stored, Table, Tier, Token,
};
use onefill::{Deadline, TierError};
use parking_lot::Mutex;

#[derive(Debug)]
pub(crate) struct Link {
    tier: Box<dyn Tier>,
    asked: Arc<Asked>,
    /// The listeners, each behind the one that counts what it hears.
    listeners: Mutex<Vec<Arc<Counted>>>,
}

/// What an instance asked the tier for, and heard from it.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    commands: AtomicU64,
    claims: AtomicU64,
    /// The threads that claimed the lease of each key. Waiting for another instance's load, one
    /// and the same thread may claim again, in case the notice was lost.
    claimants: Mutex<HashMap<Fingerprint, HashSet<ThreadId>>>,
    messages: AtomicU64,
    hears: AtomicBool,
}

/// Counts what it passes on.
struct Counted {
    listener: Weak<dyn Listener>,
    asked: Arc<Asked>,
}

impl Link {
    /// A connection of its own to the store of `memory`.
    pub(crate) fn to(memory: &Memory) -> Link {
        Link::over(memory.peer())
    }

    pub(crate) fn over(tier: impl Tier + 'static) -> Link {
        Link { tier: Box::new(tier), asked: Arc::default(), listeners: Mutex::default() }
    }

    /// The count, which outlives the connection.
    pub(crate) fn asked(&self) -> Arc<Asked> {
        Arc::clone(&self.asked)
    }

    fn command(&self) -> &dyn Tier {
        self.asked.commands.fetch_add(1, Ordering::Relaxed);
        self.tier.as_ref()
    }
}

impl Asked {
    /// Everything, claims included.
    pub(crate) fn commands(&self) -> u64 {
        self.commands.load(Ordering::Relaxed)
    }

    /// How often the lease was asked for, of whatever key.
    pub(crate) fn claims(&self) -> u64 {
        self.claims.load(Ordering::Relaxed)
    }

    /// How many threads asked for the lease of one and the same key, at most.
    pub(crate) fn most_claimants(&self) -> usize {
        self.claimants.lock().values().map(HashSet::len).max().unwrap_or_default()
    }

    /// How many threads asked for the lease of a key, summed over the keys: the claims, without
    /// those of who waits and looks whether it was forgotten.
    pub(crate) fn claimants(&self) -> u64 {
        self.claimants.lock().values().map(|threads| threads.len() as u64).sum()
    }

    /// How often the instance was told what another one did, or heard itself.
    pub(crate) fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// Whether messages come.
    #[cfg(any(feature = "redis", feature = "r2d2_redis"))]
    pub(crate) fn hears(&self) -> bool {
        self.hears.load(Ordering::Relaxed)
    }
}

impl Tier for Link {
    fn lookup(&self, key: &Key, deadline: Deadline) -> Result<Option<Stored>, TierError> {
        self.command().lookup(key, deadline)
    }

    fn acquire(
        &self,
        key: &Key,
        lease: Lease,
        seen: Option<Seen>,
        deadline: Deadline,
    ) -> Result<Acquired, TierError> {
        self.asked.claims.fetch_add(1, Ordering::Relaxed);
        let claimant = thread::current().id();
        self.asked.claimants.lock().entry(key.fingerprint()).or_default().insert(claimant);
        self.command().acquire(key, lease, seen, deadline)
    }

    fn commit(
        &self,
        key: &Key,
        entry: Entry<'_>,
        from: Origin,
        deadline: Deadline,
    ) -> Result<Committed, TierError> {
        self.command().commit(key, entry, from, deadline)
    }

    fn renew(&self, key: &Key, lease: Lease, deadline: Deadline) -> Result<Ownership, TierError> {
        self.command().renew(key, lease, deadline)
    }

    fn release(
        &self,
        key: &Key,
        token: Token,
        reaction: Reaction,
        from: Origin,
        deadline: Deadline,
    ) -> Result<Ownership, TierError> {
        self.command().release(key, token, reaction, from, deadline)
    }

    fn invalidate(&self, key: &Key, from: Origin, deadline: Deadline) -> Result<(), TierError> {
        self.command().invalidate(key, from, deadline)
    }

    fn put(
        &self,
        key: &Key,
        entry: Entry<'_>,
        from: Origin,
        deadline: Deadline,
    ) -> Result<(), TierError> {
        self.command().put(key, entry, from, deadline)
    }

    fn epoch(&self, table: &Table, deadline: Deadline) -> Result<Epoch, TierError> {
        self.command().epoch(table, deadline)
    }

    fn invalidate_all(
        &self,
        table: &Table,
        epoch: Epoch,
        from: Origin,
        deadline: Deadline,
    ) -> Result<(), TierError> {
        self.command().invalidate_all(table, epoch, from, deadline)
    }

    /// No command: what is heard costs whoever asks nothing.
    fn listen(&self, listener: Weak<dyn Listener>) {
        let counted = Arc::new(Counted { listener, asked: self.asked() });
        self.listeners.lock().push(Arc::clone(&counted));
        let counted: Arc<dyn Listener> = counted;
        self.tier.listen(Arc::downgrade(&counted));
    }

    fn report(&self) -> Report {
        self.tier.report()
    }
}

impl Listener for Counted {
    fn hear(&self, event: &Event) {
        if let Event::Notice(_) = event {
            self.asked.messages.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(listener) = self.listener.upgrade() {
            listener.hear(event);
        }
        match event {
            Event::Up => self.asked.hears.store(true, Ordering::Relaxed),
            Event::Down => self.asked.hears.store(false, Ordering::Relaxed),
            _ => {}
        }
    }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counted").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn claim(link: &Link, key: u64) -> Result<Acquired, TierError> {
        let lease = Lease::new(Token::random(), Duration::from_secs(60));
        link.acquire(&Key::new(&Table::new("t"), &key), lease, None, Deadline::NEVER)
    }

    #[test]
    fn each_connection_counts_its_own_commands() {
        let memory = Memory::new();
        let (one, two) = (Link::to(&memory), Link::to(&memory));
        assert_eq!(claim(&one, 1), Ok(Acquired::Won));
        assert!(matches!(claim(&two, 1), Ok(Acquired::Held { .. })));
        let key = Key::new(&Table::new("t"), &1);
        assert_eq!(two.lookup(&key, Deadline::NEVER), Ok(None));
        let asked = [one.asked(), two.asked()].map(|asked| (asked.claims(), asked.commands()));
        assert_eq!(asked, [(1, 1), (1, 2)]);
    }

    #[test]
    fn a_thread_that_claims_again_is_one_claimant() {
        let link = Link::to(&Memory::new());
        assert_eq!(link.asked().most_claimants(), 0);
        for key in [1, 1, 2] {
            claim(&link, key).expect("the memory is well");
        }
        assert_eq!(link.asked().most_claimants(), 1);
        thread::scope(|scope| {
            scope.spawn(|| claim(&link, 2).expect("the memory is well"));
        });
        assert_eq!((link.asked().most_claimants(), link.asked().claims()), (2, 4));
    }
}
