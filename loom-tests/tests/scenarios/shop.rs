//! What the scenarios of a cache have in common: a row that changes, and a cache of it.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize as Plain;
use std::time::Duration;

use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::herd::Ticket;
use super::onefill::{Answer, Cache, CacheBuilder, Clock, Deadline, Error, Load};

pub type Shop = Cache<u64, Ticket, Ticket>;
pub type Builder = CacheBuilder<u64, Ticket, Ticket>;
pub type Served = Result<Answer<Ticket>, Error<Ticket>>;

/// How long a value is fresh, and then stale.
pub const FRESH: Duration = Duration::from_secs(60);
pub const STALE: Duration = Duration::from_secs(60);

/// A cache with nothing left to chance.
pub fn shop() -> Builder {
    Cache::builder("model").ttl(FRESH).jitter(0.0).early_refresh(0.0).clock(Clock::manual())
}

/// What the cache is of. Its version is what a load comes to.
#[derive(Clone)]
pub struct Row {
    /// The model's own, or a load and a change would never be run at the same time.
    version: Arc<AtomicUsize>,
    loads: Arc<Plain>,
    loading: Arc<AtomicUsize>,
    overlaps: Arc<Plain>,
}

impl Row {
    pub fn new() -> Row {
        Row {
            version: Arc::new(AtomicUsize::new(1)),
            loads: Arc::new(Plain::new(0)),
            loading: Arc::new(AtomicUsize::new(0)),
            overlaps: Arc::new(Plain::new(0)),
        }
    }

    pub fn load(&self) -> Ticket {
        self.loads.fetch_add(1, SeqCst);
        // Counted, not asserted: what a worker panics with is heard of by nobody.
        if self.loading.fetch_add(1, SeqCst) > 0 {
            self.overlaps.fetch_add(1, SeqCst);
        }
        // A read-modify-write: see the library's own counts.
        let version = self.version.fetch_add(0, SeqCst);
        self.loading.fetch_sub(1, SeqCst);
        version
    }

    /// Another version, higher by one.
    pub fn change(&self) {
        self.version.fetch_add(1, SeqCst);
    }

    pub fn loads(&self) -> usize {
        self.loads.load(SeqCst)
    }

    /// How often a load began while another was running.
    pub fn overlaps(&self) -> usize {
        self.overlaps.load(SeqCst)
    }

    /// A loader of it, whatever the key.
    pub fn loader(
        &self,
    ) -> impl Fn(&Load<'_, u64, Ticket>) -> Result<Ticket, Ticket> + Send + Sync + 'static {
        let row = self.clone();
        move |_| Ok(row.load())
    }
}

/// The value that was served.
pub fn value(served: Served) -> Ticket {
    match served {
        Ok(answer) => answer.into_value().expect("no load comes to an absence"),
        Err(error) => panic!("an end that should not be: {error:?}"),
    }
}

/// Closes the cache. Nothing is left when everybody has left.
pub fn settled(shop: &Shop) {
    assert_eq!(shop.close(Deadline::NEVER), 0, "a worker is left");
    let now = shop.stats().gauges;
    assert_eq!(now.flights, 0, "a landed flight is still boarded");
    assert_eq!(now.waiting, 0, "nobody waits, but somebody is counted");
    assert_eq!((now.loading, now.not_admitted), (0, 0), "a permit is out, but nobody has it");
    assert_eq!((now.queued, now.working), (0, 0), "something is left in a pool that is closed");
}
