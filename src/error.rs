//! Every public error, in the order of the methods that return it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "cache")]
pub use of_caches::{BuildError, CodecError, Fault, Refusal, TierError};

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
    /// The loader this caller waited for panicked, and the panic went on in the leader's thread. What
    /// the panic said, if it said it in a string. In a cache that is so for the other code, too, that
    /// a load runs: of the key, the value, the weigher and the codec.
    Panicked(Option<Arc<str>>),
    /// The leader gave its [`Lead`](crate::Lead) up without an outcome, and the group's policy is
    /// to tell those who waited.
    Abandoned,
    /// The caller's deadline passed before there was an outcome. A load in progress goes on.
    TimedOut {
        /// How long this caller waited.
        waited: Duration,
    },
    /// [`Group::try_run`](crate::Group::try_run) would have had to wait for another caller's load.
    WouldBlock,
    /// Waiting would never have ended: this thread is itself loading the key, or the thread that
    /// loads it waits, at first or second hand, for something this thread is loading. Or it has
    /// loaded a key within a load of the same key, after a [`forget`](crate::Group::forget), and
    /// would once more within that, and so on.
    WouldDeadlock,
    /// As many callers were waiting as may wait, so this one was turned away at once.
    Overloaded {
        /// The cap that was reached.
        cap: Cap,
        /// How many may wait.
        limit: usize,
    },
    /// Another process of the fleet loaded this key while this one waited for it, and its loader
    /// failed. What with, only that process knows.
    FailedElsewhere,
    /// The cache was [closed](crate::Cache::close).
    Closed,
    /// [`Cache::get`](crate::Cache::get) was asked for something that is not in L1, and no loader
    /// was declared with the cache.
    NoLoader,
    /// The loader said [`Fill::unchanged`](crate::Fill::unchanged), and there was no previous
    /// value.
    NothingUnchanged,
}

/// The cap that an [`Error::Overloaded`] ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cap {
    /// [`max_followers_per_key`](crate::GroupBuilder::max_followers_per_key).
    PerKey,
    /// [`max_followers`](crate::GroupBuilder::max_followers), over all keys of the group.
    InAll,
    /// The workers' [`queue`](crate::CacheBuilder::queue).
    Workers,
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

    /// Whether the cache was closed.
    pub fn is_closed(&self) -> bool {
        matches!(self, Error::Closed)
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
            Error::FailedElsewhere => Error::FailedElsewhere,
            Error::Closed => Error::Closed,
            Error::NoLoader => Error::NoLoader,
            Error::NothingUnchanged => Error::NothingUnchanged,
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
            Error::FailedElsewhere => f.write_str("FailedElsewhere"),
            Error::Closed => f.write_str("Closed"),
            Error::NoLoader => f.write_str("NoLoader"),
            Error::NothingUnchanged => f.write_str("NothingUnchanged"),
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
                write!(f, "deadline passed after waiting {waited:?} for a load")
            }
            Error::WouldBlock => f.write_str("another caller is loading this key"),
            Error::WouldDeadlock => f.write_str(
                "waiting would deadlock: the load waited for depends on one this thread is running",
            ),
            Error::Overloaded { cap: Cap::PerKey, limit } => {
                write!(f, "{limit} callers are waiting for this key already, as many as may")
            }
            Error::Overloaded { cap: Cap::InAll, limit } => {
                write!(f, "{limit} callers are waiting already over all keys, as many as may")
            }
            Error::Overloaded { cap: Cap::Workers, limit } => {
                write!(f, "{limit} loads are waiting for a worker already, as many as may")
            }
            Error::FailedElsewhere => f.write_str("the loader of another process failed"),
            Error::Closed => f.write_str("the cache is closed"),
            Error::NoLoader => f.write_str("not in the cache, which has no loader of its own"),
            Error::NothingUnchanged => {
                f.write_str("loader says that nothing changed, but there was no previous value")
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

/// The errors of caches and fleets.
/// What a panic said, if it was said with a string.
pub(crate) fn said(panic: &(dyn Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
}

#[cfg(feature = "cache")]
mod of_caches {
    use std::fmt;
    use std::time::Duration;

    use crate::fleet::Fingerprint;
    use crate::fleet::envelope::Schema;

    /// Why a builder refused to build: a setting whose value means nothing.
    ///
    /// Durations are never refused for being long; they are clamped. What is refused is what no clamp
    /// could make sense of.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct BuildError {
        field: &'static str,
        value: String,
        allowed: &'static str,
    }

    impl BuildError {
        /// `allowed` is what the sentence "it must be" ends with.
        pub(crate) fn new(
            field: &'static str,
            value: impl fmt::Debug,
            allowed: &'static str,
        ) -> Self {
            BuildError { field, value: format!("{value:?}"), allowed }
        }

        /// The setting, by the name of its setter.
        pub fn field(&self) -> &str {
            self.field
        }

        /// What it was set to; `()` if it was not.
        pub fn value(&self) -> &str {
            &self.value
        }

        /// What it may be set to.
        pub fn allowed(&self) -> &str {
            self.allowed
        }
    }

    impl fmt::Display for BuildError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let BuildError { field, value, allowed } = self;
            match value.as_str() {
                "()" => write!(f, "{field} must be {allowed}"),
                value => write!(f, "{field} is {value}, but must be {allowed}"),
            }
        }
    }

    impl std::error::Error for BuildError {}

    /// Why a call of a [`Tier`](crate::fleet::Tier) has no answer.
    ///
    /// Losing a lease is none of these: that is an answer. After a call that writes, only
    /// [`Refused`](TierError::Refused) says that nothing was written; after any other error it may
    /// have been or may yet be.
    ///
    /// # Example
    ///
    /// ```
    /// use onefill::fleet::{Key, Origin, Table, Tier, memory::Memory};
    /// use onefill::{Deadline, TierError};
    ///
    /// let tier = Memory::new();
    /// tier.down();
    ///
    /// let key = Key::new(&Table::new("product"), &42);
    /// let error = tier.lookup(&key, Deadline::NEVER).unwrap_err();
    /// assert!(error.is_transport() && !error.is_writes_only());
    /// assert_eq!(error.to_string(), "shared tier unreachable: taken down");
    /// ```
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum TierError {
        /// There is no connection, or it broke. What the system said.
        Unreachable(String),
        /// No answer came by the call's deadline.
        TooSlow {
            /// How long it was waited for.
            waited: Duration,
        },
        /// Something came that is no complete answer to what was asked. What it was. The connection
        /// it came over is of no more use.
        Garbled(String),
        /// The tier answered, and the answer is no. The connection is fine.
        Refused {
            /// What kind of no.
            class: Refusal,
            /// The tier's own words.
            text: String,
        },
    }

    /// What kind of no a [`TierError::Refused`] is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Refusal {
        /// Its memory is full, and it evicts nothing. Reads go on.
        OutOfMemory,
        /// It is a replica, and takes no writes. Reads go on.
        ReadOnly,
        /// It cannot write to its disk, and takes no more writes. Reads go on.
        NotPersisting,
        /// It has fewer replicas than it must have to take writes. Reads go on.
        TooFewReplicas,
        /// It has just started, and is still reading its data.
        Loading,
        /// It is busy with a script that does not end.
        Busy,
        /// It is a replica without its primary, or a cluster with parts missing.
        Incomplete,
        /// It does not know who is asking, or does not let them.
        Denied,
        /// The key is kept elsewhere in a cluster, and the connection is to one node only.
        Misrouted,
        /// Something that is no value of ours is stored under the key's name.
        WrongType,
        /// Anything else.
        Other,
    }

    impl TierError {
        /// Whether the trouble lies between us and the tier: the same call may work over another
        /// connection, or when the tier is up again. A breaker counts these.
        pub fn is_transport(&self) -> bool {
            match self {
                TierError::Unreachable(_) | TierError::TooSlow { .. } | TierError::Garbled(_) => {
                    true
                }
                TierError::Refused { .. } => false,
            }
        }

        /// Whether the tier is there but serves nobody just now. A breaker counts these, too.
        pub fn is_unserved(&self) -> bool {
            use Refusal::{Busy, Incomplete, Loading};
            matches!(self.refusal(), Some(Loading | Busy | Incomplete))
        }

        /// Whether reads go on, and only writes are refused. A breaker for writes counts these.
        pub fn is_writes_only(&self) -> bool {
            use Refusal::{NotPersisting, OutOfMemory, ReadOnly, TooFewReplicas};
            matches!(self.refusal(), Some(OutOfMemory | ReadOnly | NotPersisting | TooFewReplicas))
        }

        /// Whether somebody has to change a setting before this can work. There is no use in asking
        /// again soon.
        pub fn is_misconfigured(&self) -> bool {
            matches!(self.refusal(), Some(Refusal::Denied | Refusal::Misrouted))
        }

        /// What kind of no it is, if the tier answered.
        pub fn refusal(&self) -> Option<Refusal> {
            match self {
                TierError::Refused { class, .. } => Some(*class),
                _ => None,
            }
        }
    }

    impl fmt::Display for TierError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                TierError::Unreachable(why) => write!(f, "shared tier unreachable: {why}"),
                TierError::TooSlow { waited } => {
                    write!(f, "no answer from the shared tier after {waited:?}")
                }
                TierError::Garbled(what) => {
                    write!(f, "no proper answer from the shared tier: {what}")
                }
                TierError::Refused { text, .. } => write!(f, "refused by the shared tier: {text}"),
            }
        }
    }

    impl std::error::Error for TierError {}

    /// Why [`envelope::decode`](crate::fleet::envelope::decode) or
    /// [`envelope::inspect`](crate::fleet::envelope::inspect) made nothing of the bytes it was given.
    ///
    /// To a cache each of them is a miss, to be counted. They are in the order in which they are
    /// looked for: once the checksum is right, the bytes are as somebody meant them to be.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum Fault {
        /// There are fewer bytes than a header has.
        TooShort {
            /// How many there are.
            len: usize,
        },
        /// They begin like something else.
        Magic {
            /// The first byte.
            found: u8,
        },
        /// They are an envelope of another format, of a version of this library to come.
        Format {
            /// The format's number.
            found: u8,
        },
        /// They were damaged.
        Checksum {
            /// The sum they came with.
            stored: u32,
            /// The sum they have.
            computed: u32,
        },
        /// They carry a flag that is not known here, or flags that cannot be together.
        Flags {
            /// All of the flags.
            found: u8,
        },
        /// They claim a life that is longer than any may be, or over before the value is stale.
        Lifetimes {
            /// How long the value is fresh, in milliseconds.
            ttl_ms: u64,
            /// How long it was to be kept, in milliseconds.
            life_ms: u64,
        },
        /// They belong to another key.
        Fingerprint {
            /// Whose they are.
            found: Fingerprint,
            /// Whose were asked for.
            expected: Fingerprint,
        },
        /// The value inside was encoded in another way, or has another shape.
        Schema {
            /// How it was encoded.
            found: Schema,
            /// How it would be decoded.
            expected: Schema,
        },
    }

    impl Fault {
        /// Whether the bytes are whole, but another key's: an answer to somebody else's question. The
        /// connection they came over is of no more use.
        pub fn is_foreign(&self) -> bool {
            matches!(self, Fault::Fingerprint { .. })
        }

        /// Whether the bytes were never an envelope, or were damaged since.
        pub fn is_damaged(&self) -> bool {
            matches!(self, Fault::TooShort { .. } | Fault::Magic { .. } | Fault::Checksum { .. })
        }

        /// Whether another version of this library or of the application wrote them, as is to be
        /// expected while one is being replaced by the other.
        pub fn is_of_another_version(&self) -> bool {
            matches!(self, Fault::Format { .. } | Fault::Flags { .. } | Fault::Schema { .. })
        }
    }

    impl fmt::Display for Fault {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Fault::TooShort { len } => write!(f, "{len} bytes are no envelope"),
                Fault::Magic { found } => write!(f, "no envelope begins with {found:#04x}"),
                Fault::Format { found } => write!(f, "envelope of an unknown format, {found}"),
                Fault::Checksum { stored, computed } => {
                    write!(
                        f,
                        "damaged envelope: its checksum says {stored:08x}, not {computed:08x}"
                    )
                }
                Fault::Flags { found } => write!(f, "envelope with unknown flags, {found:#010b}"),
                Fault::Lifetimes { ttl_ms, life_ms } => {
                    write!(f, "envelope fresh for {ttl_ms} ms and kept for {life_ms} ms")
                }
                Fault::Fingerprint { found, expected } => {
                    write!(f, "envelope of the key {found}, not of {expected}")
                }
                Fault::Schema { found, expected } => {
                    write!(f, "value of the schema {found}, not of {expected}")
                }
            }
        }
    }

    impl std::error::Error for Fault {}

    /// Why a [`Codec`](crate::fleet::Codec) made no bytes of a value, or no value of bytes.
    ///
    /// # Example
    ///
    /// ```
    /// use onefill::fleet::{Codec, codec};
    ///
    /// let error = Codec::<String>::decode(&codec::Raw, b"\xff").unwrap_err();
    /// assert!(error.is_decode());
    /// assert!(error.to_string().starts_with("value cannot be decoded: invalid utf-8"));
    /// ```
    #[derive(Debug)]
    #[non_exhaustive]
    pub enum CodecError {
        /// The value has no such form. The codec's own error.
        Encode(Box<dyn std::error::Error + Send + Sync>),
        /// The value has more bytes than may be stored.
        TooLarge {
            /// How many it has.
            len: usize,
            /// How many it may have.
            limit: usize,
        },
        /// The bytes are no such value. The codec's own error.
        Decode(Box<dyn std::error::Error + Send + Sync>),
    }

    impl CodecError {
        /// The value has no such form, for this reason.
        pub fn encode(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CodecError {
            CodecError::Encode(reason.into())
        }

        /// The bytes are no such value, for this reason.
        pub fn decode(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CodecError {
            CodecError::Decode(reason.into())
        }

        /// Whether the value has no such form.
        pub fn is_encode(&self) -> bool {
            matches!(self, CodecError::Encode(_))
        }

        /// Whether the value is too large to be stored.
        pub fn is_too_large(&self) -> bool {
            matches!(self, CodecError::TooLarge { .. })
        }

        /// Whether the bytes are no such value.
        pub fn is_decode(&self) -> bool {
            matches!(self, CodecError::Decode(_))
        }
    }

    impl fmt::Display for CodecError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                CodecError::Encode(reason) => write!(f, "value cannot be encoded: {reason}"),
                CodecError::TooLarge { len, limit } => {
                    write!(f, "value has {len} bytes, and may have {limit}")
                }
                CodecError::Decode(reason) => write!(f, "value cannot be decoded: {reason}"),
            }
        }
    }

    /// [`source`](std::error::Error::source) is the codec's own error, unchanged.
    impl std::error::Error for CodecError {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            match self {
                CodecError::Encode(reason) | CodecError::Decode(reason) => Some(reason.as_ref()),
                CodecError::TooLarge { .. } => None,
            }
        }
    }
}
