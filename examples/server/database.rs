//! The database: SQLite, a few connections, and queries that cost something.
//!
//! Yours is another one, on another machine. What stays: a bounded pool, a bound on each query, and
//! queries that do not know of a cache.

use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use rusqlite::{Connection, ErrorCode, OptionalExtension, TransactionBehavior, params};
use serde::{Deserialize, Serialize};

use crate::caches::{PRODUCT_LOADS, REPORT_LOADS};

/// How many connections there are for writes, besides those that the caches load over.
const WRITES: usize = 4;

/// How many products a new database has.
const PRODUCTS: u32 = 1_000;

/// After this a query is given up. A thread that waits for a database cannot be interrupted from
/// outside, so the query must end by itself. It is not the deadline of the request that asked: a
/// load fills the cache for others, who have more time, or come later.
pub(crate) const QUERY_LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Product {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) price_cents: u32,
    /// Over all sales there are: this is what makes a product expensive to load.
    pub(crate) units_sold: u64,
}

/// What a client may say of a product.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Draft {
    pub(crate) name: String,
    pub(crate) price_cents: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) sales: u64,
    pub(crate) revenue_cents: u64,
    pub(crate) best: Vec<Best>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Best {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) revenue_cents: u64,
}

#[derive(Debug)]
pub(crate) enum Error {
    /// Every connection was in use for as long as there was time.
    NoConnection,
    /// The query was given up, for want of time: it took too long, or waited for another's write.
    TooSlow,
    /// The database said no.
    Sqlite(rusqlite::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoConnection => f.write_str("no connection to the database was free in time"),
            Error::TooSlow => f.write_str("the database took too long"),
            Error::Sqlite(error) => error.fmt(f),
        }
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Error {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::OperationInterrupted) => Error::TooSlow,
            _ => Error::Sqlite(error),
        }
    }
}

/// How many queries of each kind there were.
#[derive(Debug, Default)]
pub(crate) struct Queries {
    pub(crate) product: AtomicU64,
    pub(crate) report: AtomicU64,
    pub(crate) write: AtomicU64,
}

/// A pool: connections that nobody uses wait in a channel.
#[derive(Debug)]
pub(crate) struct Database {
    free: Receiver<Connection>,
    give_back: Sender<Connection>,
    pub(crate) queries: Queries,
}

impl Database {
    /// The database in `file`; if there is none, a new one, with so many sales.
    pub(crate) fn open(file: &Path, sales: u32) -> rusqlite::Result<Database> {
        let mut first = Connection::open(file)?;
        // Whoever else is filling it has all the time it takes.
        first.busy_timeout(Duration::from_secs(60))?;
        // Readers do not wait for a writer, nor it for them.
        first.pragma_update(None, "journal_mode", "wal")?;
        fill(&mut first, sales)?;
        let size = PRODUCT_LOADS + REPORT_LOADS + WRITES;
        let (give_back, free) = bounded(size);
        let more = std::iter::repeat_with(|| Connection::open(file)).take(size - 1);
        for connection in std::iter::once(Ok(first)).chain(more) {
            give_back.send(connection?).expect("there is room for all of them");
        }
        Ok(Database { free, give_back, queries: Queries::default() })
    }

    /// One product, with what was sold of it: a walk through all sales.
    pub(crate) fn product(&self, id: u64) -> Result<Option<Product>, Error> {
        self.queries.product.fetch_add(1, Ordering::Relaxed);
        let connection = self.connection(Instant::now() + QUERY_LIMIT)?;
        let mut query = connection.prepare_cached(
            "SELECT name, price_cents,
                    (SELECT coalesce(sum(units), 0) FROM sale WHERE product_id = product.id)
             FROM product WHERE id = ?1",
        )?;
        // Ids are what SQLite takes for a number; there is no product beyond.
        let Ok(row) = i64::try_from(id) else { return Ok(None) };
        let product = query.query_row([row], |row| {
            Ok(Product { id, name: row.get(0)?, price_cents: row.get(1)?, units_sold: row.get(2)? })
        });
        Ok(product.optional()?)
    }

    /// What all of them brought, and the ten best.
    pub(crate) fn report(&self) -> Result<Report, Error> {
        self.queries.report.fetch_add(1, Ordering::Relaxed);
        let connection = self.connection(Instant::now() + QUERY_LIMIT)?;
        let mut total = connection.prepare_cached(
            "SELECT count(*), coalesce(sum(units * price_cents), 0)
             FROM sale JOIN product ON product.id = product_id",
        )?;
        let (sales, revenue_cents) = total.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut best = connection.prepare_cached(
            "SELECT product.id, name, sum(units * price_cents) AS revenue
             FROM sale JOIN product ON product.id = product_id
             GROUP BY product.id ORDER BY revenue DESC, product.id LIMIT 10",
        )?;
        let best = best.query_map([], |row| {
            Ok(Best { id: row.get(0)?, name: row.get(1)?, revenue_cents: row.get(2)? })
        });
        Ok(Report { sales, revenue_cents, best: best?.collect::<Result<_, _>>()? })
    }

    /// Writes a product, new or not. Says whether it did by `deadline`.
    pub(crate) fn write(&self, id: u64, draft: &Draft, deadline: Instant) -> Result<(), Error> {
        self.queries.write.fetch_add(1, Ordering::Relaxed);
        let connection = self.connection(deadline)?;
        let mut write = connection.prepare_cached(
            "INSERT INTO product (id, name, price_cents) VALUES (?1, ?2, ?3)
             ON CONFLICT (id) DO UPDATE SET name = ?2, price_cents = ?3",
        )?;
        write.execute(params![id.cast_signed(), draft.name, draft.price_cents])?;
        Ok(())
    }

    /// A connection, whose queries end by `deadline`.
    fn connection(&self, deadline: Instant) -> Result<Borrowed<'_>, Error> {
        let connection = self.free.recv_deadline(deadline).map_err(|_| Error::NoConnection)?;
        let connection = Borrowed { connection: Some(connection), pool: self };
        // How long to wait for another writer, and how long to compute.
        connection.busy_timeout(deadline.saturating_duration_since(Instant::now()))?;
        connection.progress_handler(10_000, Some(move || Instant::now() > deadline))?;
        Ok(connection)
    }
}

/// A connection that goes back to the pool, whatever becomes of its query.
struct Borrowed<'d> {
    connection: Option<Connection>,
    pool: &'d Database,
}

impl Deref for Borrowed<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("it is there until it is given back")
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            // There is room: it came from there.
            let _ = self.pool.give_back.try_send(connection);
        }
    }
}

/// Makes the tables and fills them, unless that was done. One transaction: of two processes that
/// are started on one new file, one does it, and the other waits.
fn fill(connection: &mut Connection, sales: u32) -> rusqlite::Result<()> {
    let filling = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let is_filled = filling.query_row("PRAGMA user_version", [], |row| row.get::<_, u32>(0))? != 0;
    if !is_filled {
        // No index on sales: this database is meant to be asked seldom.
        filling.execute_batch(
            "CREATE TABLE product (id INTEGER PRIMARY KEY, name TEXT NOT NULL, price_cents INTEGER NOT NULL);
             CREATE TABLE sale (product_id INTEGER NOT NULL, units INTEGER NOT NULL);
             PRAGMA user_version = 1;",
        )?;
        let numbers =
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)";
        filling.execute(
            &format!(
                "{numbers} INSERT INTO product SELECT i, 'product ' || i, 99 + i * 37 % 5000 FROM n"
            ),
            [PRODUCTS],
        )?;
        if sales > 0 {
            filling.execute(
                &format!("{numbers} INSERT INTO sale SELECT 1 + i * 7919 % ?2, 1 + i % 5 FROM n"),
                [sales, PRODUCTS],
            )?;
        }
    }
    filling.commit()
}
