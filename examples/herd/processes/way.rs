//! [`Way`]: the strategies that processes have, and how each is set up in one of them.

use std::convert::Infallible;
use std::time::Duration;

use onefill::fleet::Fleet;
use onefill::{Cache, Group};
use serde::{Deserialize, Serialize};

use super::word::Plan;
use crate::lease::Lease;
use crate::link::Link;
use crate::strategy::{BOTH, Digits, EachForItself, Fault, Promise, Row, Strategy};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Way {
    None,
    Coalescing,
    Lease,
    LeaseOutside,
    Both,
}

/// For how long Redis keeps a row that nobody comes to remove.
const KEPT: Duration = Duration::from_secs(60 * 60);

impl Way {
    pub(super) const ALL: [Way; 5] =
        [Way::None, Way::Coalescing, Way::Lease, Way::LeaseOutside, Way::Both];

    pub(super) fn name(self) -> &'static str {
        match self {
            Way::None => "none",
            Way::Coalescing => "coalescing",
            Way::Lease => "lease",
            Way::LeaseOutside => "lease outside",
            Way::Both => BOTH,
        }
    }

    /// What it promises if nothing is broken. A lease that was written by hand promises nothing: it
    /// is not renewed, and here a load can be slow.
    pub(super) fn promise(self) -> Promise {
        match self {
            Way::None | Way::Lease | Way::LeaseOutside => Promise::Nothing,
            Way::Coalescing => Promise::Coalesces,
            Way::Both => Promise::ClaimsOnce,
        }
    }

    pub(super) fn needs_a_tier(self) -> bool {
        !matches!(self, Way::None | Way::Coalescing)
    }

    /// In one process, whose connection to the tier is the one that `link` makes.
    pub(super) fn strategy(self, plan: &Plan, link: impl FnOnce() -> Link) -> Box<dyn Strategy> {
        // Nobody renews it. Were it shorter than a load, each holder's would be over when it commits:
        // nothing would ever be stored, and all callers would load, one after the other.
        let by_hand = plan.lease.saturating_add(plan.slow).saturating_add(plan.price.load);
        match self {
            Way::None => Box::new(EachForItself),
            Way::Coalescing => Box::new(Group::new()),
            Way::Lease => Box::new(Lease::new(link(), by_hand)),
            Way::LeaseOutside => {
                let lease = Lease::new(link(), by_hand);
                Box::new(LeaseOutside { lease, group: Group::new() })
            }
            Way::Both => {
                let fleet = Fleet::builder(link())
                    .lease(plan.lease)
                    .lease_cap(plan.patience)
                    .budget(plan.budget)
                    .build();
                let cache = Cache::builder("row").ttl(KEPT).loser_wait(plan.patience);
                let cache = cache.capacity(plan.keys.max(1_000));
                Box::new(cache.fleet(&fleet, Digits).build().expect("the settings mean something"))
            }
        }
    }
}

/// The wrong order. There is nobody left to coalesce with for the one who has the lease, and all
/// the others are at the tier, each for itself.
struct LeaseOutside {
    lease: Lease,
    group: Group<usize, Row, Infallible>,
}

impl Strategy for LeaseOutside {
    fn get(&self, key: usize, load: &dyn Fn() -> Row) -> Result<Row, Fault> {
        self.lease.get(key, &|| {
            let row = self.group.run(&key, || Ok(load()));
            row.expect("loads do not fail")
        })
    }
}
