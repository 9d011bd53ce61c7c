//! The use of the library: two caches in front of the database, and the fleet they are on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onefill::fleet::{Fleet, codec};
use onefill::{BuildError, Cache, Deadline, Load, Stats};

use crate::database::{self, Database, Product, Report};

/// How many products are being loaded at once: as many as the database has connections for it. A
/// thousand requests for a thousand cold products are a thousand loads, but never more than this
/// many at a time.
pub(crate) const PRODUCT_LOADS: usize = 6;

/// How many reports. There is one; the second is for its refresh.
pub(crate) const REPORT_LOADS: usize = 2;

pub(crate) struct Caches {
    /// In an `Arc`, since a hit clones the value, and a herd's leader clones it for everybody.
    pub(crate) products: Cache<u64, Arc<Product>, database::Error>,
    pub(crate) reports: Cache<(), Arc<Report>, database::Error>,
    pub(crate) fleet: Option<Fleet>,
}

pub(crate) struct Freshness {
    pub(crate) fresh: Duration,
    pub(crate) stale: Duration,
}

impl Caches {
    pub(crate) fn new(
        database: &Arc<Database>,
        fleet: Option<Fleet>,
        freshness: Freshness,
    ) -> Result<Caches, BuildError> {
        let Freshness { fresh, stale } = freshness;

        let source = Arc::clone(database);
        let mut products = Cache::<u64, Arc<Product>, database::Error>::builder("product")
            // Every write of ours invalidates. This is for those that pass us by.
            .ttl(fresh)
            // Nobody waits for a product that somebody has asked for lately.
            .stale_while_revalidate(stale)
            // And a price of an hour ago is better than none while the database is down.
            .stale_if_error(Duration::from_secs(3_600))
            .refresh_backoff(Duration::from_secs(1))
            // That there is no such product is known for a while, too. Whoever creates it
            // invalidates that.
            .absent_ttl(fresh.min(Duration::from_secs(30)))
            .capacity(100_000)
            // Loads run on threads of their own. So a request whose time is over leaves, whether it
            // set the load off or found it under way, and the load goes on and fills the cache.
            .workers(PRODUCT_LOADS)
            .admission(PRODUCT_LOADS)
            // More than this many waiting for one product is a client gone mad, not a herd.
            .max_followers_per_key(10_000)
            .loader(move |load: &Load<'_, u64, Arc<Product>>| {
                // No row is an answer, and no error: `None` is remembered as an absence.
                Ok(source.product(*load.key())?.map(Arc::new))
            });

        let source = Arc::clone(database);
        let mut reports = Cache::<(), Arc<Report>, database::Error>::builder("report")
            .ttl(fresh)
            // No stale-while-revalidate: whoever asks for the report gets one that is fresh, or
            // waits. But an old one is better than an error, for a day.
            .stale_if_error(Duration::from_secs(24 * 3_600))
            .refresh_backoff(Duration::from_secs(1))
            .workers(REPORT_LOADS)
            .admission(REPORT_LOADS)
            .loader(move |_: &Load<'_, (), Arc<Report>>| source.report().map(Arc::new));

        if let Some(fleet) = &fleet {
            products = products.fleet(fleet, codec::Json);
            // Others wait for a report for as long as one takes.
            reports = reports.fleet(fleet, codec::Json).loser_wait(database::QUERY_LIMIT);
        }
        Ok(Caches { products: products.build()?, reports: reports.build()?, fleet })
    }

    /// What each has done so far, by its name.
    pub(crate) fn stats(&self) -> [(&'static str, Stats); 2] {
        [("product", self.products.stats()), ("report", self.reports.stats())]
    }

    /// Ends what goes on behind requests, within `bound`.
    pub(crate) fn close(&self, bound: Duration) {
        let deadline = Deadline::at(Instant::now() + bound);
        self.products.close(deadline);
        self.reports.close(deadline);
    }
}

/// The fleet on the server at `url`. A server that is not there is no error, now or later: the
/// caches load for themselves until it is.
#[cfg(any(feature = "redis", feature = "r2d2_redis"))]
pub(crate) fn fleet(url: &str) -> Result<Fleet, String> {
    // Not `onefill`, so that this shop shares its server with others and nothing else.
    Fleet::redis(url).namespace("shop").build().map_err(|error| format!("--redis: {error}"))
}

#[cfg(not(any(feature = "redis", feature = "r2d2_redis")))]
pub(crate) fn fleet(_: &str) -> Result<Fleet, String> {
    Err("--redis: this server was built without Redis; build it with --features json,redis".into())
}
