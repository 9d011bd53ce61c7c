//! Every public error, in the order of the methods that return it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why [`Group::run`], [`Group::run_timeout`], [`Group::run_deadline`], [`Group::try_run`] or
/// [`Group::join`] has no value for its caller.
///
/// `E` is the loader's own error. It is shared between the callers that waited for one load, hence
/// the [`Arc`]; an error is `Clone` whatever `E` is.
///
/// [`Group::run`]: crate::Group::run
/// [`Group::run_timeout`]: crate::Group::run_timeout
/// [`Group::run_deadline`]: crate::Group::run_deadline
/// [`Group::try_run`]: crate::Group::try_run
/// [`Group::join`]: crate::Group::join
///
/// # Example
///
/// ```
/// use onefill::{Error, Group};
///
/// let group: Group<&str, u32, std::num::ParseIntError> = Group::new();
/// let error = group.run(&"answer", || "forty-two".parse()).unwrap_err();
///
/// assert!(error.is_failed());
/// assert_eq!(error.failure().unwrap().to_string(), "invalid digit found in string");
/// assert_eq!(error.to_string(), "loader failed: invalid digit found in string");
/// ```
#[non_exhaustive]
pub enum Error<E> {
    /// The loader returned this error. Whoever waited for that load gets this very one; it is not
    /// remembered, so the next caller loads again.
    Failed(Arc<E>),
    /// The loader this caller waited for panicked, and the panic went on in the leader's thread.
    /// What the panic said, if it said it in a string.
    Panicked(Option<Arc<str>>),
    /// The leader gave its [`Lead`](crate::Lead) up without an outcome, and the group's policy is
    /// to tell those who waited.
    Abandoned,
    /// The caller's deadline passed before the flight landed. The load itself goes on.
    TimedOut {
        /// How long this caller waited.
        waited: Duration,
    },
    /// [`Group::try_run`](crate::Group::try_run) would have had to wait for another caller's load.
    WouldBlock,
    /// Waiting would never have ended: this thread is itself loading the key, or the thread that
    /// loads it waits, at first or second hand, for something this thread is loading.
    WouldDeadlock,
    /// As many callers were waiting as may wait, so this one was turned away at once.
    Overloaded {
        /// The cap that was reached.
        cap: Cap,
        /// How many may wait.
        limit: usize,
    },
}

/// The cap that an [`Error::Overloaded`] ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cap {
    /// [`max_followers_per_key`](crate::GroupBuilder::max_followers_per_key).
    PerKey,
    /// [`max_followers`](crate::GroupBuilder::max_followers), over all keys of the group.
    InAll,
}

impl<E> Error<E> {
    /// The loader's own error, if that is what this is.
    pub fn failure(&self) -> Option<&E> {
        match self {
            Error::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// Whether the loader returned an error.
    pub fn is_failed(&self) -> bool {
        matches!(self, Error::Failed(_))
    }

    /// Whether the loader panicked in another caller's thread.
    pub fn is_panicked(&self) -> bool {
        matches!(self, Error::Panicked(_))
    }

    /// Whether the leader gave up without an outcome.
    pub fn is_abandoned(&self) -> bool {
        matches!(self, Error::Abandoned)
    }

    /// Whether the deadline passed.
    pub fn is_timed_out(&self) -> bool {
        matches!(self, Error::TimedOut { .. })
    }

    /// Whether the call would have had to wait and was told not to.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Error::WouldBlock)
    }

    /// Whether waiting would never have ended.
    pub fn is_would_deadlock(&self) -> bool {
        matches!(self, Error::WouldDeadlock)
    }

    /// Whether too many callers were waiting already.
    pub fn is_overloaded(&self) -> bool {
        matches!(self, Error::Overloaded { .. })
    }
}

/// Clones the handle, never the loader's error.
impl<E> Clone for Error<E> {
    fn clone(&self) -> Self {
        match self {
            Error::Failed(error) => Error::Failed(Arc::clone(error)),
            Error::Panicked(message) => Error::Panicked(message.clone()),
            Error::Abandoned => Error::Abandoned,
            Error::TimedOut { waited } => Error::TimedOut { waited: *waited },
            Error::WouldBlock => Error::WouldBlock,
            Error::WouldDeadlock => Error::WouldDeadlock,
            Error::Overloaded { cap, limit } => Error::Overloaded { cap: *cap, limit: *limit },
        }
    }
}

impl<E: fmt::Debug> fmt::Debug for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Failed(error) => f.debug_tuple("Failed").field(error).finish(),
            Error::Panicked(message) => f.debug_tuple("Panicked").field(message).finish(),
            Error::Abandoned => f.write_str("Abandoned"),
            Error::TimedOut { waited } => {
                f.debug_struct("TimedOut").field("waited", waited).finish()
            }
            Error::WouldBlock => f.write_str("WouldBlock"),
            Error::WouldDeadlock => f.write_str("WouldDeadlock"),
            Error::Overloaded { cap, limit } => {
                f.debug_struct("Overloaded").field("cap", cap).field("limit", limit).finish()
            }
        }
    }
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Failed(error) => write!(f, "loader failed: {error}"),
            Error::Panicked(Some(message)) => write!(f, "loader panicked: {message}"),
            Error::Panicked(None) => f.write_str("loader panicked, and not with a string"),
            Error::Abandoned => f.write_str("the load was abandoned by the caller that led it"),
            Error::TimedOut { waited } => {
                write!(f, "deadline passed after waiting {waited:?} for another caller's load")
            }
            Error::WouldBlock => f.write_str("another caller is loading this key"),
            Error::WouldDeadlock => f.write_str(
                "waiting would deadlock: the load waited for depends on one this thread is running",
            ),
            Error::Overloaded { cap: Cap::PerKey, limit } => {
                write!(f, "{limit} callers are waiting for this key already, as many as may")
            }
            Error::Overloaded { cap: Cap::InAll, limit } => {
                write!(f, "{limit} callers of this group are waiting already, as many as may")
            }
        }
    }
}

/// [`source`](std::error::Error::source) is the loader's own error, unchanged.
impl<E: std::error::Error + 'static> std::error::Error for Error<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Failed(error) => Some(error.as_ref()),
            _ => None,
        }
    }
}
