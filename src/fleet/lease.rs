//! [`Held`]: a lease in this process's hands, and [`Renewal`], which keeps it there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::error::TierError;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, spawn};

use super::event::Reaction;
use super::handle::{Access, Shared, contained};
use super::key::Key;
use super::tier::{Committed, Entry, Lease, Ownership, Tier};
use super::token::{Origin, Token};

/// A lease that was won. However it is dropped, it is released, unless it was committed.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    shared: &'a Shared,
    key: &'a Key,
    token: Token,
    number: u64,
    /// What those who wait are told if nothing is committed; `None` once something was.
    otherwise: Option<Reaction>,
    /// Until when it may be released; `None` for a budget from then on.
    deadline: Option<Deadline>,
}

impl<'a> Held<'a> {
    /// A lease that was won by a call sent at `sent`.
    pub(crate) fn new(shared: &'a Shared, key: &'a Key, lease: Lease, sent: Instant) -> Held<'a> {
        let number = shared.renewal.begin(key, lease, sent, shared.lease_cap, shared.budget);
        // Until its holder says otherwise it has been given up for reasons of its own, a panic
        // for one.
        let otherwise = Some(Reaction::TakeOver);
        Held { shared, key, token: lease.token, number, otherwise, deadline: None }
    }

    /// What to tell those who wait when this is dropped.
    pub(crate) fn otherwise(&mut self, reaction: Reaction) {
        self.otherwise = Some(reaction);
    }

    /// Stores the entry, if the lease is held still, and ends the lease. If that fails it is
    /// released, by the same deadline.
    pub(crate) fn commit(
        mut self,
        entry: Entry<'_>,
        deadline: Deadline,
    ) -> Result<Committed, TierError> {
        let Shared { origin, .. } = *self.shared;
        let committed =
            self.shared.ask(Access::Write, |tier| tier.commit(self.key, entry, origin, deadline));
        match &committed {
            Ok(_) => self.otherwise = None,
            // It may be held still, so it is released: the tier takes no writes, perhaps, but
            // this it may take. Those who wait had better load for themselves.
            Err(_) => {
                self.otherwise(Reaction::LoadAlone);
                self.deadline = Some(deadline);
            }
        }
        committed
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.shared.renewal.end(self.number);
        if let Some(reaction) = self.otherwise {
            let Shared { origin, budget, .. } = *self.shared;
            let deadline = self.deadline.unwrap_or_else(|| Deadline::after(budget));
            // Should it fail, the lease ends by itself.
            let _ = self.shared.ask(Access::Remove, |tier| {
                tier.release(self.key, self.token, reaction, origin, deadline)
            });
        }
    }
}

/// Renews the leases of a process, on one thread, at a third of their time.
#[derive(Debug)]
pub(crate) struct Renewal {
    book: Arc<Book>,
}

#[derive(Debug)]
struct Book {
    tier: Arc<dyn Tier>,
    pages: Mutex<Pages>,
    changed: Condvar,
}

#[derive(Debug)]
struct Pages {
    leases: BTreeMap<u64, Page>,
    /// Leases that may have been won, by callers who had no time left to hear of it.
    unheard: Vec<Unheard>,
    next: u64,
    /// Whether the thread has been started.
    started: bool,
    closed: bool,
}

/// A lease to be given back, if it is held.
#[derive(Debug)]
struct Unheard {
    key: Key,
    token: Token,
    from: Origin,
    patience: Duration,
}

/// So many of them at most: with a tier that answers nobody they are of no use.
const UNHEARD: usize = 1_000;

#[derive(Clone, Debug)]
struct Page {
    key: Key,
    lease: Lease,
    /// When to renew it next; `None` once that is over: it was lost, or held for too long.
    due: Option<Instant>,
    /// No more renewals after this: a loader that hangs must not hold its key for ever.
    cap: Option<Instant>,
    /// How long an answer is waited for: the other leases wait meanwhile.
    patience: Duration,
}

impl Renewal {
    pub(super) fn new(tier: Arc<dyn Tier>) -> Renewal {
        let pages = Pages {
            leases: BTreeMap::new(),
            unheard: Vec::new(),
            next: 0,
            started: false,
            closed: false,
        };
        Renewal { book: Arc::new(Book { tier, pages: Mutex::new(pages), changed: Condvar::new() }) }
    }

    /// How many leases are held.
    pub(super) fn held(&self) -> usize {
        self.book.pages.lock().leases.len()
    }

    fn begin(
        &self,
        key: &Key,
        lease: Lease,
        sent: Instant,
        cap: Duration,
        budget: Duration,
    ) -> u64 {
        let mut pages = self.book.pages.lock();
        let number = pages.next;
        pages.next += 1;
        let page = Page {
            key: key.clone(),
            lease,
            due: sent.checked_add(lease.ttl() / 3),
            cap: sent.checked_add(cap),
            patience: budget.min(lease.ttl() / 3),
        };
        pages.leases.insert(number, page);
        self.wake(pages);
        number
    }

    /// Gives a lease back that may have been won, behind the back of a caller whose time is up.
    pub(super) fn disown(&self, key: &Key, token: Token, from: Origin, patience: Duration) {
        let mut pages = self.book.pages.lock();
        if pages.unheard.len() < UNHEARD {
            pages.unheard.push(Unheard { key: key.clone(), token, from, patience });
            self.wake(pages);
        }
    }

    fn wake(&self, mut pages: MutexGuard<'_, Pages>) {
        if !pages.started {
            let book = Arc::clone(&self.book);
            // Without a thread leases end in their own time, and what is loaded in it is stored.
            pages.started = spawn("onefill-leases".to_string(), move || book.renew()).is_ok();
        }
        drop(pages);
        self.book.changed.notify_one();
    }

    fn end(&self, number: u64) {
        self.book.pages.lock().leases.remove(&number);
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.book.pages.lock().closed = true;
        self.book.changed.notify_one();
    }
}

impl Book {
    /// The thread.
    fn renew(&self) {
        let mut pages = self.pages.lock();
        while !pages.closed {
            if let Some(Unheard { key, token, from, patience }) = pages.unheard.pop() {
                drop(pages);
                let deadline = Deadline::after(patience);
                // Should it fail, the lease ends by itself.
                let _ = contained(|| {
                    self.tier.release(&key, token, Reaction::TakeOver, from, deadline)
                });
                pages = self.pages.lock();
                continue;
            }
            let first =
                pages.leases.iter().filter_map(|(number, page)| Some((page.due?, *number))).min();
            let Some((due, number)) = first else {
                self.changed.wait(&mut pages);
                continue;
            };
            if Instant::now() < due {
                self.changed.wait_until(&mut pages, due);
                continue;
            }
            let Some(page) = pages.leases.get(&number).cloned() else { continue };
            // The tier is asked without the lock: holders come and go meanwhile.
            drop(pages);
            let due = self.renew_one(&page);
            pages = self.pages.lock();
            if let Some(page) = pages.leases.get_mut(&number) {
                page.due = due;
            }
        }
    }

    /// When the lease is to be renewed next.
    fn renew_one(&self, page: &Page) -> Option<Instant> {
        let sent = Instant::now();
        if page.cap.is_some_and(|cap| sent >= cap) {
            return None;
        }
        let third = page.lease.ttl() / 3;
        let deadline = Deadline::after(page.patience);
        match contained(|| self.tier.renew(&page.key, page.lease, deadline)) {
            Ok(Ownership::Ours) => sent.checked_add(third),
            Ok(Ownership::Lost) => None,
            // It may be held still. The attempts come closer.
            Err(_) => sent.checked_add(third / 2),
        }
    }
}
