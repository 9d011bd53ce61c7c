//! What is asked for, and what becomes of each answer and each error of a cache.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use onefill::{Answer, Error, Source, Why};
use serde::Serialize;
use tiny_http::Method;

use crate::caches::Caches;
use crate::database::{self, Database, Draft};
use crate::reply::Reply;
use crate::{health, metrics};

/// A request, as far as it concerns us.
pub(crate) struct Asked {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: Vec<u8>,
    pub(crate) deadline: Instant,
}

/// All that a request may need.
pub(crate) struct App {
    pub(crate) database: Arc<Database>,
    pub(crate) caches: Caches,
    /// How many requests are being worked on.
    pub(crate) in_flight: AtomicUsize,
    /// How many were answered, by route and status.
    answered: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

/// Counts a request for as long as it is there.
struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl App {
    pub(crate) fn new(database: Arc<Database>, caches: Caches) -> App {
        App { database, caches, in_flight: AtomicUsize::new(0), answered: Mutex::default() }
    }

    /// The answer, and the route that gave it.
    pub(crate) fn answer(&self, asked: &Asked) -> (&'static str, Reply) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let _in_flight = InFlight(&self.in_flight);
        let parts: Vec<&str> = asked.path.split('/').skip(1).collect();
        match (&asked.method, &parts[..]) {
            (Method::Get, ["products", id]) => {
                ("get_product", with_id(id, |id| self.product(id, asked.deadline)))
            }
            (Method::Put, ["products", id]) => {
                ("put_product", with_id(id, |id| self.put_product(id, asked)))
            }
            (Method::Get, ["report"]) => ("report", self.report(asked.deadline)),
            (Method::Get, ["metrics"]) => ("metrics", metrics::reply(self)),
            (Method::Get, ["health"]) => ("health", health::reply(&self.caches)),
            (_, ["products", _]) => ("other", not_allowed("GET, PUT")),
            (_, ["report" | "metrics" | "health"]) => ("other", not_allowed("GET")),
            _ => ("other", Reply::error(404, "there is nothing at this path")),
        }
    }

    fn product(&self, id: u64, deadline: Instant) -> Reply {
        match self.caches.products.with().deadline(deadline).get(&id) {
            Ok(answer) => found(&answer, "there is no such product"),
            Err(error) => failed(&error),
        }
    }

    fn report(&self, deadline: Instant) -> Reply {
        match self.caches.reports.with().deadline(deadline).get(&()) {
            Ok(answer) => found(&answer, "there is no report"),
            Err(error) => failed(&error),
        }
    }

    fn put_product(&self, id: u64, asked: &Asked) -> Reply {
        if i64::try_from(id).is_err() {
            return Reply::error(400, "no product has such an id");
        }
        let draft: Draft = match serde_json::from_slice(&asked.body) {
            Ok(draft) => draft,
            Err(error) => return Reply::error(400, &format!("this is no product: {error}")),
        };
        // First the row, then the cache. The other way round, a load in between would store the old
        // row as the new one.
        if let Err(error) = self.database.write(id, &draft, asked.deadline) {
            // It may have been written all the same, if all that failed was to hear of it.
            drop(self.caches.products.invalidate(&id));
            return match error {
                database::Error::NoConnection | database::Error::TooSlow => {
                    Reply::unavailable(&error.to_string())
                }
                database::Error::Sqlite(_) => Reply::error(502, &error.to_string()),
            };
        }
        // Invalidated rather than put: a product is more than its row, and of two writers at once
        // the second to come here is not always the second to have written.
        let told = match self.caches.products.invalidate(&id) {
            Ok(()) => "invalidated",
            // The row is written, and this process knows. Others may show the old one until it is
            // no longer fresh; that is no reason to have the client write it again.
            Err(_) => "invalidated here",
        };
        Reply::json(200, &serde_json::json!({ "id": id })).header("X-Cache", told)
    }

    /// Counts an answer.
    pub(crate) fn count(&self, route: &'static str, status: u16) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        *answered.entry((route, status)).or_default() += 1;
    }

    pub(crate) fn answered(&self) -> BTreeMap<(&'static str, u16), u64> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn with_id(id: &str, answer: impl FnOnce(u64) -> Reply) -> Reply {
    match id.parse() {
        Ok(id) => answer(id),
        Err(_) => Reply::error(404, "the id of a product is a number"),
    }
}

fn not_allowed(allowed: &'static str) -> Reply {
    Reply::error(405, "not with this method").header("Allow", allowed)
}

/// What was found, or that there is none: also an answer, and as often as not a remembered one.
fn found<T: Serialize>(answer: &Answer<Arc<T>>, none: &str) -> Reply {
    let reply = match answer.value() {
        Some(value) => Reply::json(200, value),
        None => Reply::error(404, none),
    };
    reply
        .header("Age", answer.age().as_secs().to_string())
        .header("X-Cache", source(answer.source()))
}

/// Where it came from, as the header says it.
fn source(source: Source) -> &'static str {
    match source {
        Source::Local => "local",
        Source::Stale(Why::Revalidating) => "stale, revalidating",
        Source::Stale(Why::Failed) => "stale, source failed",
        Source::Stale(Why::TimedOut) => "stale, source slow",
        Source::Stale(Why::Overloaded) => "stale, overloaded",
        Source::Stale(_) => "stale",
        Source::Fleet => "fleet",
        Source::Loaded => "loaded",
        Source::Alone => "loaded alone",
        Source::Followed => "followed",
        _ => "other",
    }
}

/// Why there is none. Whether it is worth asking again is what tells the statuses apart.
fn failed(error: &Error<database::Error>) -> Reply {
    match error {
        // Its load goes on, so the next one who asks may be lucky.
        Error::TimedOut { .. } => Reply::unavailable("timed out while loading"),
        Error::Overloaded { .. } => Reply::unavailable("too many are waiting for it"),
        Error::Closed => Reply::unavailable("this server is stopping"),
        // What is behind us failed, not we.
        Error::Failed(error) => Reply::error(502, &format!("the database: {error}")),
        Error::FailedElsewhere => Reply::error(502, "the database failed another process"),
        // A bug of ours: a loader that panicked, or one that waits for itself.
        _ => Reply::error(500, "this is a bug"),
    }
}
