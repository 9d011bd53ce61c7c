//! How it is, for people and for whoever watches over it.
//!
//! Always 200: a server whose fleet is in trouble serves all the same, and to take it out of the
//! balance for that would make an outage of what is none. What is wrong stands in the body.

use std::time::Duration;

use onefill::fleet::{Fleet, Health};
use serde_json::{Value, json};

use crate::caches::Caches;
use crate::reply::Reply;

/// A load that has taken longer than this says that the database is in trouble, before anything
/// else does.
const LONG: Duration = Duration::from_secs(5);

pub(crate) fn reply(caches: &Caches) -> Reply {
    let fleet = caches.fleet.as_ref().map(Fleet::health);
    let oldest = caches.stats().map(|(_, stats)| stats.gauges.oldest_flight);
    let oldest = oldest.into_iter().max().unwrap_or_default();
    let well = oldest < LONG && fleet.as_ref().is_none_or(Health::is_well);
    let body = json!({
        "status": if well { "ok" } else { "degraded" },
        "oldest_load_ms": u64::try_from(oldest.as_millis()).unwrap_or(u64::MAX),
        // Null: this process caches for itself.
        "fleet": fleet.as_ref().map(of_fleet),
    });
    Reply::json(200, &body)
}

fn of_fleet(health: &Health) -> Value {
    let breaker = |open| if open { "left alone" } else { "asked" };
    json!({
        "reads": breaker(health.reads_open),
        "writes": breaker(health.writes_open),
        "left_alone": health.opened,
        "hears": health.hears,
        "deaf_because": health.report.deaf,
        "misconfigured": health.misconfigured,
        "last_trouble": health.last_trouble,
        "leases": health.leases,
    })
}
