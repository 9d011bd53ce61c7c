//! [`Tier`]: what a shared tier can do, and the shapes of its answers.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::deadline::Deadline;
use crate::error::TierError;

use super::envelope;
use super::event::{Listener, Reaction};
use super::key::{Key, Table};
use super::token::{Epoch, Origin, Token};

/// A place that all processes of a fleet share: values, and leases to fill them.
///
/// # For whoever writes one
///
/// **One step.** Each method is one step to everybody else: nobody sees half of a commit, and
/// nothing comes between the look at a lease and what follows from it. The lease is compared where
/// the value is written; that, and not the clock of whoever held it, is what keeps a late holder
/// from writing over a newer value.
///
/// **Time.** A lease has an end from the moment it is there. So has a value. Both are counted by
/// the tier, on one clock; how much is left is what it answers, never a time of day. Lives lie
/// between one millisecond and [`MAX_LIFE`](envelope::MAX_LIFE), since [`Entry`] and [`Lease`] are
/// made so.
///
/// **Bytes.** What is stored is an [`envelope`], but to a tier it is bytes. A value of no bytes at
/// all is no value: lookup and acquire do not answer with it, a commit does not yield to it.
/// Anything else that is stored, however broken, is handed out: the caller finds the fault, and
/// passes it as [seen](Seen) to replace it.
///
/// **Deadlines.** A method returns by its deadline, with [`TierError::TooSlow`] at the latest, and
/// does nothing at all if it has passed already. It should come back sooner from a tier that is
/// not there.
///
/// **Errors.** A tier that answers no is [`Refused`](TierError::Refused), and nothing was written.
/// After any other error of a method that writes, the caller takes nothing for granted, and may
/// call again: twice with the same arguments is as good as once.
///
/// **Notices.** A method that changes something tells the [`Listener`]s of all processes,
/// including this one's, after it is done. They may be lost; a failure to send one is no error.
///
/// # Example
///
/// Written around another tier: one that knows what its users asked for.
///
/// ```
/// use onefill::fleet::*;
/// use onefill::{Deadline, TierError};
/// use std::sync::Weak;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// #[derive(Debug)]
/// struct Counted<T> {
///     tier: T,
///     misses: AtomicU64,
/// }
///
/// impl<T: Tier> Tier for Counted<T> {
///     fn lookup(&self, key: &Key, deadline: Deadline) -> Result<Option<Stored>, TierError> {
///         let found = self.tier.lookup(key, deadline)?;
///         self.misses.fetch_add(found.is_none().into(), Ordering::Relaxed);
///         Ok(found)
///     }
///     fn acquire(
///         &self, key: &Key, lease: Lease, seen: Option<Seen>, deadline: Deadline,
///     ) -> Result<Acquired, TierError> {
///         self.tier.acquire(key, lease, seen, deadline)
///     }
///     fn commit(
///         &self, key: &Key, entry: Entry<'_>, from: Origin, deadline: Deadline,
///     ) -> Result<Committed, TierError> {
///         self.tier.commit(key, entry, from, deadline)
///     }
///     fn renew(&self, key: &Key, lease: Lease, deadline: Deadline) -> Result<Ownership, TierError> {
///         self.tier.renew(key, lease, deadline)
///     }
///     fn release(
///         &self, key: &Key, token: Token, reaction: Reaction, from: Origin, deadline: Deadline,
///     ) -> Result<Ownership, TierError> {
///         self.tier.release(key, token, reaction, from, deadline)
///     }
///     fn invalidate(&self, key: &Key, from: Origin, deadline: Deadline) -> Result<(), TierError> {
///         self.tier.invalidate(key, from, deadline)
///     }
///     fn put(
///         &self, key: &Key, entry: Entry<'_>, from: Origin, deadline: Deadline,
///     ) -> Result<(), TierError> {
///         self.tier.put(key, entry, from, deadline)
///     }
///     fn epoch(&self, table: &Table, deadline: Deadline) -> Result<Epoch, TierError> {
///         self.tier.epoch(table, deadline)
///     }
///     fn invalidate_all(
///         &self, table: &Table, epoch: Epoch, from: Origin, deadline: Deadline,
///     ) -> Result<(), TierError> {
///         self.tier.invalidate_all(table, epoch, from, deadline)
///     }
///     fn listen(&self, listener: Weak<dyn Listener>) {
///         self.tier.listen(listener)
///     }
/// }
///
/// let tier = Counted { tier: memory::Memory::new(), misses: AtomicU64::new(0) };
/// let key = Key::new(&Table::new("product"), &42);
/// assert_eq!(tier.lookup(&key, Deadline::NEVER)?, None);
/// assert_eq!(tier.misses.into_inner(), 1);
/// # Ok::<(), TierError>(())
/// ```
pub trait Tier: Send + Sync + fmt::Debug {
    /// The value of `key`, if there is one. Takes no lease.
    ///
    /// # Errors
    ///
    /// Any [`TierError`].
    fn lookup(&self, key: &Key, deadline: Deadline) -> Result<Option<Stored>, TierError>;

    /// The value of `key`; or, where there is none, the lease.
    ///
    /// With `seen`, a value that is still the one its caller has seen counts as none: it is stale,
    /// faulty, or of an epoch that is over. Whoever takes the lease with a token that holds it
    /// already has [`Won`](Acquired::Won) it again, for the new time; so the call can be repeated
    /// when its answer was lost.
    ///
    /// # Errors
    ///
    /// Any [`TierError`]. A value that is there is answered even by a tier that refuses writes.
    fn acquire(
        &self,
        key: &Key,
        lease: Lease,
        seen: Option<Seen>,
        deadline: Deadline,
    ) -> Result<Acquired, TierError>;

    /// Stores the value and ends the lease, if the lease is held by the entry's version; otherwise
    /// touches neither.
    ///
    /// The listeners are told that the key is filled. Repeated after its answer was lost, it is
    /// [`Superseded`](Committed::Superseded) by its own version.
    ///
    /// # Errors
    ///
    /// Any [`TierError`]. The lease is as it was, then, or gone.
    fn commit(
        &self,
        key: &Key,
        entry: Entry<'_>,
        from: Origin,
        deadline: Deadline,
    ) -> Result<Committed, TierError>;

    /// Makes the lease end `lease.ttl` from now, if it is held by `lease.token`.
    ///
    /// # Errors
    ///
    /// Any [`TierError`].
    fn renew(&self, key: &Key, lease: Lease, deadline: Deadline) -> Result<Ownership, TierError>;

    /// Ends the lease without a value, if it is held by `token`; otherwise touches nothing, and
    /// nobody is told anything.
    ///
    /// The listeners are told that the fill failed, and how to react.
    ///
    /// # Errors
    ///
    /// Any [`TierError`]. The lease ends by itself, then. A tier whose memory is full should still
    /// do this.
    fn release(
        &self,
        key: &Key,
        token: Token,
        reaction: Reaction,
        from: Origin,
        deadline: Deadline,
    ) -> Result<Ownership, TierError>;

    /// Removes the value, and the lease, whoever holds it: a fill that is under way, and may have
    /// read what is now out of date, cannot be committed any more.
    ///
    /// # Errors
    ///
    /// Any [`TierError`]. The value may live on until it expires. A tier whose memory is full
    /// should still do this.
    fn invalidate(&self, key: &Key, from: Origin, deadline: Deadline) -> Result<(), TierError>;

    /// Stores the value, and removes the lease, whoever holds it.
    ///
    /// # Errors
    ///
    /// Any [`TierError`].
    fn put(
        &self,
        key: &Key,
        entry: Entry<'_>,
        from: Origin,
        deadline: Deadline,
    ) -> Result<(), TierError>;

    /// The epoch of a table. If the tier has none, because nobody has asked before or because it
    /// lost it, it takes a new random one and keeps that.
    ///
    /// It must be kept for longer than any value of the table may live: for
    /// [`MAX_LIFE`](envelope::MAX_LIFE) after it was last asked for. What comes after a loss must
    /// be another one, or values from before would be taken for current.
    ///
    /// # How a table is invalidated
    ///
    /// Removing each value would mean to find each value, in a store that has others', while new
    /// ones are stored. So nothing is removed. Each value carries the epoch that its table had, as
    /// far as its process knew, before it was loaded; readers take a value of another epoch for
    /// none, and replace it.
    ///
    /// What that costs: one call of this method a table and process at the start, and one from
    /// time to time, since the process must notice a new epoch even when the notice was lost. The
    /// old values take up room until they expire. And every key of the table is cold at once, so
    /// the source is asked for each of them, once. Until it knows of the new epoch, a process reads
    /// and stores values of the old one.
    ///
    /// # Errors
    ///
    /// Any [`TierError`]. Without an epoch nothing that is stored can be trusted.
    fn epoch(&self, table: &Table, deadline: Deadline) -> Result<Epoch, TierError>;

    /// Makes `epoch`, a new random one, the epoch of the table. See [`epoch`](Tier::epoch).
    ///
    /// # Errors
    ///
    /// Any [`TierError`].
    fn invalidate_all(
        &self,
        table: &Table,
        epoch: Epoch,
        from: Origin,
        deadline: Deadline,
    ) -> Result<(), TierError>;

    /// Tells `listener` what happens from now on, until it is dropped.
    ///
    /// The first thing it is told is [`Up`](super::Event::Up), as soon as notices come; that may be
    /// before this returns, or never.
    fn listen(&self, listener: Weak<dyn Listener>);

    /// What there is to tell besides answers; it becomes part of the fleet's
    /// [health](super::Health). Nothing, unless a tier says otherwise.
    fn report(&self) -> Report {
        Report::default()
    }
}

/// A tier that its caller keeps a handle of: to look into it, or to make trouble, behind the fleet
/// that is on it.
///
/// ```
/// use onefill::fleet::{Fleet, memory::Memory};
/// use std::sync::Arc;
///
/// let tier = Arc::new(Memory::new());
/// let fleet = Fleet::on(Arc::clone(&tier));
/// tier.down();
/// assert!(!fleet.health().hears);
/// ```
impl<T: Tier + ?Sized> Tier for Arc<T> {
    fn lookup(&self, key: &Key, deadline: Deadline) -> Result<Option<Stored>, TierError> {
        (**self).lookup(key, deadline)
    }

    fn acquire(
        &self,
        key: &Key,
        lease: Lease,
        seen: Option<Seen>,
        deadline: Deadline,
    ) -> Result<Acquired, TierError> {
        (**self).acquire(key, lease, seen, deadline)
    }

    fn commit(
        &self,
        key: &Key,
        entry: Entry<'_>,
        from: Origin,
        deadline: Deadline,
    ) -> Result<Committed, TierError> {
        (**self).commit(key, entry, from, deadline)
    }

    fn renew(&self, key: &Key, lease: Lease, deadline: Deadline) -> Result<Ownership, TierError> {
        (**self).renew(key, lease, deadline)
    }

    fn release(
        &self,
        key: &Key,
        token: Token,
        reaction: Reaction,
        from: Origin,
        deadline: Deadline,
    ) -> Result<Ownership, TierError> {
        (**self).release(key, token, reaction, from, deadline)
    }

    fn invalidate(&self, key: &Key, from: Origin, deadline: Deadline) -> Result<(), TierError> {
        (**self).invalidate(key, from, deadline)
    }

    fn put(
        &self,
        key: &Key,
        entry: Entry<'_>,
        from: Origin,
        deadline: Deadline,
    ) -> Result<(), TierError> {
        (**self).put(key, entry, from, deadline)
    }

    fn epoch(&self, table: &Table, deadline: Deadline) -> Result<Epoch, TierError> {
        (**self).epoch(table, deadline)
    }

    fn invalidate_all(
        &self,
        table: &Table,
        epoch: Epoch,
        from: Origin,
        deadline: Deadline,
    ) -> Result<(), TierError> {
        (**self).invalidate_all(table, epoch, from, deadline)
    }

    fn listen(&self, listener: Weak<dyn Listener>) {
        (**self).listen(listener);
    }

    fn report(&self) -> Report {
        (**self).report()
    }
}

/// What a [`Tier`] has to tell besides its answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// How many times something of a foreign type was found under a name of ours: a list, say, where
    /// a value should be. It counts as no value, and is replaced; or as a lease that is held.
    pub foreign: u64,
    /// How many times another key's value came where this one's was asked for. It was asked for
    /// again, over another connection.
    pub misplaced: u64,
    /// How many messages came over the channel of notices that are none.
    pub strange: u64,
    /// How many times notices began to come.
    pub heard: u64,
    /// Why none come, where that is known.
    pub deaf: Option<String>,
}

/// The right to fill a key, as it is asked for.
///
/// ```
/// use onefill::fleet::{Lease, Token};
/// use std::time::Duration;
///
/// // A lease always has an end, and a beginning.
/// assert_eq!(Lease::new(Token::random(), Duration::ZERO).ttl(), Duration::from_millis(1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Who is to hold it.
    pub token: Token,
    ttl: Duration,
}

impl Lease {
    /// For `ttl` from now on, in whole milliseconds: at least one, and at most
    /// [`MAX_LIFE`](envelope::MAX_LIFE).
    pub fn new(token: Token, ttl: Duration) -> Lease {
        Lease { token, ttl: envelope::clamp_life(ttl) }
    }

    /// For how long.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }
}

/// A value that is to be stored.
///
/// ```
/// use onefill::fleet::{Entry, Token};
/// use std::time::Duration;
///
/// let entry = Entry::new(Token::random(), b"bytes", Duration::from_secs(360)).announced();
/// assert_eq!(entry.life(), Duration::from_secs(360));
/// assert!(entry.announce);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Which version of the value it is. For a commit, the token of the lease.
    pub version: Token,
    /// Its envelope.
    pub bytes: &'a [u8],
    life: Duration,
    /// Whether the notice is to bring the envelope along.
    pub announce: bool,
}

impl<'a> Entry<'a> {
    /// To be kept for `life`, in whole milliseconds: at least one, and at most
    /// [`MAX_LIFE`](envelope::MAX_LIFE). Not announced.
    pub fn new(version: Token, bytes: &'a [u8], life: Duration) -> Entry<'a> {
        Entry { version, bytes, life: envelope::clamp_life(life), announce: false }
    }

    /// The same, announced: those who wait for it need not ask. Good for small values; a notice
    /// goes to every process.
    #[must_use]
    pub fn announced(mut self) -> Entry<'a> {
        self.announce = true;
        self
    }

    /// For how long it is to be kept: as long as its [`Header`](envelope::Header) says.
    pub fn life(&self) -> Duration {
        self.life
    }
}

/// A value that is stored.
#[derive(Clone, PartialEq, Eq)]
pub struct Stored {
    /// An envelope, or anything else.
    pub bytes: Vec<u8>,
    /// What is left of its life; zero if it was about to end. `None` if it never ends, which no
    /// value of ours does.
    pub left: Option<Duration>,
}

impl Stored {
    /// With what is left in milliseconds as Redis says it: -1 for no end, -2 for a value that is
    /// gone since.
    ///
    /// ```
    /// use onefill::fleet::Stored;
    /// use std::time::Duration;
    ///
    /// let left = |pttl| Stored::with_pttl(vec![1], pttl).left;
    /// assert_eq!(left(1_500), Some(Duration::from_millis(1_500)));
    /// assert_eq!(left(0), Some(Duration::ZERO));
    /// assert_eq!(left(-1), None);
    /// assert_eq!(left(-2), Some(Duration::ZERO));
    /// ```
    pub fn with_pttl(bytes: Vec<u8>, pttl: i64) -> Stored {
        let left = (pttl != -1).then(|| Duration::from_millis(pttl.try_into().unwrap_or(0)));
        Stored { bytes, left }
    }
}

/// Without the bytes, which may be many, and are nobody's business.
impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored").field("len", &self.bytes.len()).field("left", &self.left).finish()
    }
}

/// A version of a value that its reader has no use for: its first [`SEEN`](envelope::SEEN) bytes,
/// or all of them if there are fewer.
///
/// ```
/// use onefill::fleet::Seen;
///
/// let seen = Seen::of(b"a broken envelope").unwrap();
/// assert!(seen.is(b"a broken envelope"));
/// assert!(!seen.is(b"another value"));
/// assert_eq!(Seen::of(b""), None); // which is no value
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    bytes: [u8; envelope::SEEN],
    len: usize,
}

impl Seen {
    /// Of a value as it was stored; `None` if that has no bytes.
    pub fn of(stored: &[u8]) -> Option<Seen> {
        let len = stored.len().min(envelope::SEEN);
        let mut bytes = [0; envelope::SEEN];
        bytes[..len].copy_from_slice(&stored[..len]);
        (len > 0).then_some(Seen { bytes, len })
    }

    /// How the value begins: what a script has to compare.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Whether a stored value is this one, still.
    pub fn is(&self, stored: &[u8]) -> bool {
        stored.starts_with(self.as_bytes())
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seen({})", self.as_bytes().escape_ascii())
    }
}

/// What [`Tier::acquire`] came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// There is a value, and not the one that was seen.
    Hit(Stored),
    /// The lease is the caller's.
    Won,
    /// The lease is somebody else's.
    Held {
        /// Whose: of the notices that come late, only those of this lease are an answer to whoever
        /// waits for it. `None` if that is not known.
        holder: Option<Token>,
        /// When it ends at the latest, from now, unless it is renewed. Zero if that is not known.
        left: Duration,
    },
}

/// What [`Tier::commit`] came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Committed {
    /// The value is stored.
    Stored,
    /// The lease was lost, and there is a value already: a newer one, or, if it has the version
    /// that was to be stored, this very one.
    Superseded(Stored),
    /// The lease was lost, and there is no value. It may have run out, or the key may have been
    /// invalidated: there is no telling, so the value must not be stored.
    Refused,
}

/// Whose a lease was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The caller's, and what was asked was done.
    Ours,
    /// Somebody else's or nobody's, and nothing was touched.
    Lost,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::fleet::envelope::MAX_LIFE;

    #[test]
    fn lives_are_never_none_and_never_overflow_a_server() {
        let token = Token::random();
        let lives = [
            (Duration::ZERO, Duration::from_millis(1)),
            (Duration::from_nanos(1), Duration::from_millis(1)),
            (Duration::from_micros(1_999), Duration::from_millis(1)),
            (Duration::from_secs(10), Duration::from_secs(10)),
            (Duration::MAX, MAX_LIFE),
        ];
        for (asked, given) in lives {
            assert_eq!(Lease::new(token, asked).ttl(), given);
            assert_eq!(Entry::new(token, b"", asked).life(), given);
        }
    }

    #[test]
    fn what_is_left_is_no_number_of_milliseconds() {
        let left = |pttl| Stored::with_pttl(Vec::new(), pttl).left;
        assert_eq!(left(i64::MAX), Some(Duration::from_millis(i64::MAX as u64)));
        assert_eq!(left(i64::MIN), Some(Duration::ZERO));
    }

    #[test]
    fn seen_is_the_beginning_of_a_value() {
        let long: Vec<u8> = (0..100).collect();
        let seen = Seen::of(&long).unwrap();
        assert_eq!(seen.as_bytes(), &long[..18]);
        assert!(seen.is(&long));
        assert!(!seen.is(&long[..17]), "a value that is shorter is another");
        assert!(!seen.is(b""));
        assert!(Seen::of(b"x").unwrap().is(b"x"));
    }

    #[test]
    fn a_tier_can_be_an_object() {
        fn assert_thread_safe<T: Send + Sync + ?Sized>() {}
        assert_thread_safe::<dyn Tier>();
        assert_thread_safe::<dyn Listener>();
    }
}
