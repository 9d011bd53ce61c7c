//! [`Answer`]: what a caller gets, and where it came from.

use std::time::Duration;

/// A value or its absence, with its source and its age.
///
/// # Example
///
/// ```
/// use onefill::{Cache, Source};
/// use std::time::Duration;
///
/// let squares: Cache<u64, u64, std::io::Error> = Cache::builder("squares")
///     .ttl(Duration::from_secs(60))
///     .loader(|load: &onefill::Load<'_, u64, u64>| Ok(load.key() * load.key()))
///     .build()?;
///
/// let first = squares.get(&7).unwrap();
/// assert_eq!((first.value(), first.source()), (Some(&49), Source::Loaded));
///
/// let second = squares.get(&7).unwrap();
/// assert_eq!((second.source(), second.is_stale()), (Source::Local, false));
/// assert_eq!(second.into_value(), Some(49));
/// # Ok::<(), onefill::BuildError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Answer<V> {
    pub(crate) found: Option<V>,
    pub(crate) source: Source,
    pub(crate) age: Duration,
}

/// Where an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// L1, this process's own memory, and fresh.
    Local,
    /// L1, past its freshness but within a stale window; for the reason given.
    Stale(Why),
    /// The shared tier: another process loaded it.
    Fleet,
    /// The load that this call set off.
    Loaded,
    /// A load that this call set off without the lease of its fleet: the shared tier was in
    /// trouble, or the process that had the lease took too long.
    Alone,
    /// The load of another caller, which this call waited for.
    Followed,
}

/// Why a stale value was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// It is in its stale-while-revalidate window: a refresh is under way, or due, or has failed a
    /// moment ago and is to be tried again.
    Revalidating,
    /// It is in its stale-if-error window, and the load failed, now or within the back-off.
    Failed,
    /// It is in its stale-if-error window, and the caller's deadline passed before the load ended.
    TimedOut,
    /// It is in its stale-if-error window, and too many callers were waiting or loading.
    Overloaded,
}

impl<V> Answer<V> {
    /// The value, or `None` if there is no such thing.
    pub fn value(&self) -> Option<&V> {
        self.found.as_ref()
    }

    /// The value itself, or `None` if there is no such thing.
    pub fn into_value(self) -> Option<V> {
        self.found
    }

    /// Whether the answer is that there is no such thing.
    pub fn is_absent(&self) -> bool {
        self.found.is_none()
    }

    /// Where it came from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// How long ago its load ended, to a tick of the [`Clock`](crate::Clock).
    pub fn age(&self) -> Duration {
        self.age
    }

    /// Whether it is past its freshness.
    pub fn is_stale(&self) -> bool {
        matches!(self.source, Source::Stale(_))
    }
}
