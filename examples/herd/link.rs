//! [`Link`]: an instance's connection to the shared tier, which keeps count of what is asked.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};

use onefill::fleet::memory::Memory;
use onefill::fleet::{
    Acquired, Committed, Entry, Epoch, Fingerprint, Key, Lease, Listener, Origin, Ownership,
    Reaction, Seen, Stored, Table, Tier, Token,
};
use onefill::{Deadline, TierError};
use parking_lot::Mutex;

#[derive(Debug)]
pub(crate) struct Link {
    memory: Memory,
    asked: Arc<Asked>,
}

/// What an instance asked the tier for.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    commands: AtomicU64,
    claims: AtomicU64,
    /// The threads that claimed the lease of each key. Waiting for another instance's load, one
    /// and the same thread may claim again, in case the notice was lost.
    claimants: Mutex<HashMap<Fingerprint, HashSet<ThreadId>>>,
}

impl Link {
    /// A connection of its own to the store of `memory`.
    pub(crate) fn to(memory: &Memory) -> Link {
        Link { memory: memory.peer(), asked: Arc::default() }
    }

    /// The count, which outlives the connection.
    pub(crate) fn asked(&self) -> Arc<Asked> {
        Arc::clone(&self.asked)
    }

    fn command(&self) -> &Memory {
        self.asked.commands.fetch_add(1, Ordering::Relaxed);
        &self.memory
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
        self.memory.listen(listener);
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
