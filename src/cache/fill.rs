//! What passes between the cache and a loader: [`Load`] in, [`Fill`] out.

use std::fmt;
use std::time::Duration;

use crate::deadline::Deadline;
use crate::fleet::Token;

/// What a loader is told about the load it is asked for.
///
/// # Example
///
/// ```
/// use onefill::{Cache, Fill, Load};
/// use std::time::Duration;
///
/// let etags: Cache<String, (u32, String), std::io::Error> = Cache::builder("pages")
///     .ttl(Duration::from_secs(60))
///     .loader(|load: &Load<'_, String, (u32, String)>| {
///         // Ask the source only for what changed since.
///         Ok(match load.previous() {
///             Some((1, _)) => Fill::unchanged(),
///             _ => Fill::new((1, format!("<h1>{}</h1>", load.key()))),
///         })
///     })
///     .build()?;
/// assert_eq!(etags.get(&"home".to_string()).unwrap().into_value().unwrap().0, 1);
/// # Ok::<(), onefill::BuildError>(())
/// ```
pub struct Load<'l, K, V> {
    pub(crate) key: &'l K,
    pub(crate) deadline: Deadline,
    pub(crate) previous: Option<&'l V>,
    pub(crate) token: Option<Token>,
}

impl<K, V> Load<'_, K, V> {
    /// The key whose value is wanted.
    pub fn key(&self) -> &K {
        self.key
    }

    /// Until when the caller that set this load off will wait; never for a refresh or a prewarm
    /// behind the caller's back, and for a prewarm on this thread the end of its budget. Others may
    /// wait longer, and the result is stored either way, so it is a hint: a good one for the timeout
    /// of a query.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// The value that is being replaced, if one is still known: stale, but perhaps all the source
    /// needs to say that nothing changed ([`Fill::unchanged`]).
    ///
    /// On a fleet it is only what the shared tier had a moment ago, and what nobody was heard to
    /// change: what says that nothing changed is as good as new in every process.
    pub fn previous(&self) -> Option<&V> {
        self.previous
    }

    /// The token of the lease that this load holds in its fleet; `None` on no fleet, or if it goes
    /// on without a lease. It is the version of what is stored, and no two loads have the same: a
    /// database that notes it beside what it hands out can tell a late load from a later one.
    pub fn token(&self) -> Option<Token> {
        self.token
    }
}

impl<K: fmt::Debug, V> fmt::Debug for Load<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Load")
            .field("key", self.key)
            .field("deadline", &self.deadline)
            .field("has_previous", &self.previous.is_some())
            .finish()
    }
}

/// What a loader found, and how it is to be kept.
///
/// A loader returns `Result<impl Into<Fill<V>>, E>`: a plain value is a fill, and an `Option` of
/// one is a value or its absence.
///
/// # Example
///
/// ```
/// use onefill::Fill;
/// use std::time::Duration;
///
/// let plain: Fill<u32> = 7.into();
/// let row: Fill<u32> = None.into(); // there is no such row
/// let short = Fill::new(7).ttl(Duration::from_secs(1));
/// let secret = Fill::new(7).do_not_store();
/// # let _ = (plain, row, short, secret);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fill<V> {
    pub(crate) what: What<V>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) store: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What<V> {
    Value(V),
    Absent,
    Unchanged,
}

impl<V> Fill<V> {
    /// A value, to be kept for the cache's TTL.
    pub fn new(value: V) -> Self {
        Fill { what: What::Value(value), ttl: None, store: true }
    }

    /// There is no such thing. An answer like any other, kept for the cache's
    /// [`absent_ttl`](crate::CacheBuilder::absent_ttl) in a share of L1 of its own.
    pub fn absent() -> Self {
        Fill { what: What::Absent, ttl: None, store: true }
    }

    /// [`Load::previous`] is as good as new: it is kept for another TTL. Not to be said without a look
    /// at the source, which may have changed a moment ago. Without a previous value the callers get
    /// [`Error::NothingUnchanged`](crate::Error::NothingUnchanged).
    pub fn unchanged() -> Self {
        Fill { what: What::Unchanged, ttl: None, store: true }
    }

    /// Kept for this long instead of the cache's TTL. Zero means not to store it.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Given to those who are waiting for it and kept nowhere.
    pub fn do_not_store(mut self) -> Self {
        self.store = false;
        self
    }
}

/// A value, to be kept for the cache's TTL.
impl<V> From<V> for Fill<V> {
    fn from(value: V) -> Self {
        Fill::new(value)
    }
}

/// A value, or that there is none.
impl<V> From<Option<V>> for Fill<V> {
    fn from(found: Option<V>) -> Self {
        found.map_or_else(Fill::absent, Fill::new)
    }
}
