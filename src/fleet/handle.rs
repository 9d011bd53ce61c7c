//! [`Fleet`]: one process's connection to a shared tier, for all of its caches.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::error::{Refusal, TierError, said};
use crate::sync::{Arc, Condvar, Mutex};
use crate::telemetry;

use super::breaker::{Breaker, Change};
use super::event::{Event, Listener, News, Reaction};
use super::key::{Fingerprint, Key};
use super::lease::Renewal;
use super::tier::{Report, Tier};
use super::token::{Epoch, Origin, Token};

/// One process's connection to a shared tier: a handle, shared by the caches of the process.
///
/// It stands between caches and [`Tier`]: it leaves a tier in trouble alone for a while (a breaker,
/// reads and writes apart: open after three troubles in a row, for 250 ms, doubling up to 5 s; and
/// at once for 5 s where a setting is wrong, such as a password), it renews leases, and it hears
/// what other processes do. When the last handle and the last cache on it are gone, so are its
/// thread and its ear.
///
/// # Example
///
/// Two instances of a cache, as in two processes, and one load between them:
///
/// ```
/// use onefill::fleet::{Fleet, codec, memory::Memory};
/// use onefill::{Cache, Load, Source};
/// use std::time::Duration;
///
/// let tier = Memory::new();
/// let instance = || -> Result<Cache<u64, String, std::io::Error>, onefill::BuildError> {
///     Cache::builder("page")
///         .ttl(Duration::from_secs(60))
///         .loader(|load: &Load<'_, u64, String>| Ok(format!("page {}", load.key())))
///         .fleet(&Fleet::on(tier.peer()), codec::Raw)
///         .build()
/// };
/// let (one, two) = (instance()?, instance()?);
///
/// assert_eq!(one.get(&7).unwrap().source(), Source::Loaded);
/// assert_eq!(two.get(&7).unwrap().source(), Source::Fleet);
/// # Ok::<(), onefill::BuildError>(())
/// ```
#[derive(Clone)]
pub struct Fleet {
    pub(crate) shared: Arc<Shared>,
}

/// What the caches of a process share of a fleet.
pub(crate) struct Shared {
    tier: Arc<dyn Tier>,
    /// Whose notices are our own.
    pub(crate) origin: Origin,
    reads: Breaker,
    writes: Breaker,
    troubles: Mutex<Troubled>,
    ear: Arc<Ear>,
    pub(super) renewal: Renewal,
    pub(crate) lease: Duration,
    pub(super) lease_cap: Duration,
    pub(crate) budget: Duration,
}

/// The troubles there were.
#[derive(Default)]
struct Troubled {
    last: Option<String>,
    counts: Troubles,
}

/// How many parts the keys fall into, in which L1 learns that something has changed. A notice says
/// which key by its fingerprint only; the few entries of a part that are in doubt for nothing are
/// read from the tier again.
const PARTS: usize = 4096;

/// For how long an epoch is trusted without asking: the notice of a newer one may be lost.
const EPOCH_TRUSTED: Duration = Duration::from_secs(10);
/// And where no notices come.
const EPOCH_TRUSTED_DEAF: Duration = Duration::from_secs(1);

/// A tier that was given less than this to answer in, or less than a tenth of its budget, has not
/// been slow.
const NO_TIME: Duration = Duration::from_millis(15);

/// What is heard of other processes.
struct Ear {
    origin: Origin,
    /// Whether notices come.
    up: AtomicBool,
    /// How often something has changed in each part, or may have without being heard of.
    changes: Box<[AtomicU32]>,
    /// How often another process was heard to put or invalidate something in each part. A table is
    /// in the part of its own fingerprint.
    voids: Box<[AtomicU16]>,
    /// How many puts and invalidations of this process have begun in each part, in the upper half,
    /// and how many of them are not over, in the lower.
    writing: Box<[AtomicU64]>,
    waiters: Mutex<HashMap<Fingerprint, Vec<Arc<Waiter>>>>,
    epochs: Mutex<Epochs>,
}

#[derive(Default)]
struct Epochs {
    /// The newest epoch known of each table, and since when.
    known: HashMap<Fingerprint, (Epoch, Instant)>,
    /// How often something was heard that an answer asked for before it does not know of.
    heard: u64,
}

/// What is known of a table's epoch.
pub(crate) struct EpochKnown {
    /// The newest one, and whether that was heard lately.
    pub(crate) epoch: Option<(Epoch, bool)>,
    heard: u64,
}

/// A load that waits for another process to fill its key.
#[derive(Debug)]
struct Waiter {
    heard: Mutex<Option<Heard>>,
    changed: Condvar,
}

/// What a waiter is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// A lease ended with a value, perhaps this one, after so many changes of its part.
    Filled { version: Token, envelope: Option<std::sync::Arc<[u8]>>, changes: u32 },
    /// A lease ended without one, and this is what to do.
    Failed { token: Token, reaction: Reaction },
    /// Something has changed; ask.
    Changed,
}

/// The part of a key, and how often something had changed in it at some moment. An entry that
/// carries one from before it was read is out of doubt as long as it is the same.
///
/// In doubt is not void: what is in doubt may be out of date, what is void was said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    part: u16,
    /// How much was void by then, in the parts of the key and of its table together.
    voids: u16,
    changes: u32,
}

/// After so many changes of a part the number of those that made void what was there may have gone
/// round: it is taken for void then.
const UNTELLABLE: u32 = 1 << 15;

impl Mark {
    /// Of an entry that no other process can change.
    pub(crate) const LOCAL: Mark = Mark { part: 0, voids: 0, changes: 0 };

    /// Of a change that was heard after this one was taken. What became void since then, this
    /// does not know of: it takes for void too much, and never too little.
    pub(crate) fn moved_to(self, changes: u32) -> Mark {
        Mark { changes, ..self }
    }

    /// Of an entry that is in doubt from the beginning.
    pub(crate) fn outdated(self) -> Mark {
        Mark { changes: self.changes.wrapping_sub(1), ..self }
    }

    /// Whether something had changed by `later`, a mark of the same key, that had not by this one.
    pub(crate) fn is_before(self, later: Mark) -> bool {
        // The count may have gone round.
        later.changes.wrapping_sub(self.changes) as i32 > 0
    }
}

/// How many calls of a tier came to nothing, by what there was instead of an answer.
///
/// ```
/// use onefill::Refusal;
/// use onefill::fleet::{Fleet, memory::Memory};
///
/// let troubles = Fleet::on(Memory::new()).health().troubles;
/// assert_eq!(troubles.unreachable + troubles.refused(Refusal::OutOfMemory), 0);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Troubles {
    /// No connection: [`TierError::Unreachable`].
    pub unreachable: u64,
    /// No answer in time: [`TierError::TooSlow`].
    pub too_slow: u64,
    /// Something that was no answer: [`TierError::Garbled`].
    pub garbled: u64,
    refused: [u64; REFUSALS],
}

/// How many kinds of refusal there are.
const REFUSALS: usize = Refusal::Other as usize + 1;

/// Those that there were.
impl fmt::Debug for Troubles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.counts().into_iter().filter(|(_, count)| *count > 0)).finish()
    }
}

impl Troubles {
    /// A no of this kind: [`TierError::Refused`].
    pub fn refused(&self, class: Refusal) -> u64 {
        self.refused[class as usize]
    }

    /// All of them, each by its name.
    ///
    /// ```
    /// use onefill::fleet::{Fleet, memory::Memory};
    ///
    /// let health = Fleet::on(Memory::new()).health();
    /// assert!(health.troubles.counts().iter().all(|(_, count)| *count == 0));
    /// ```
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        use Refusal::*;
        let transport = [
            ("unreachable", self.unreachable),
            ("too slow", self.too_slow),
            ("garbled", self.garbled),
        ];
        let refused = [
            ("out of memory", OutOfMemory),
            ("read only", ReadOnly),
            ("not persisting", NotPersisting),
            ("too few replicas", TooFewReplicas),
            ("loading", Loading),
            ("busy", Busy),
            ("incomplete", Incomplete),
            ("denied", Denied),
            ("misrouted", Misrouted),
            ("wrong type", WrongType),
            ("other", Other),
        ];
        let refused: [_; REFUSALS] = refused.map(|(name, class)| (name, self.refused(class)));
        transport.into_iter().chain(refused).collect()
    }

    fn count(&mut self, error: &TierError) {
        *match error {
            TierError::Unreachable(_) => &mut self.unreachable,
            TierError::TooSlow { .. } => &mut self.too_slow,
            TierError::Garbled(_) => &mut self.garbled,
            TierError::Refused { class, .. } => &mut self.refused[*class as usize],
        } += 1;
    }
}

/// How a fleet stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Whether reads are being left out because of trouble.
    pub reads_open: bool,
    /// Whether writes are.
    pub writes_open: bool,
    /// How many times the one or the other began.
    pub opened: u64,
    /// Whether other processes' notices come.
    pub hears: bool,
    /// The last trouble that a call had with the tier, in its own words. Why nothing is heard, if
    /// that is so, stands in the [report](Report::deaf).
    pub last_trouble: Option<String>,
    /// How many there were of each kind.
    pub troubles: Troubles,
    /// Whether somebody has to change a setting, for all that is known: the tier does not let this
    /// process in, or not near its keys; or the keys of a cluster are asked for at one node.
    pub misconfigured: bool,
    /// What the tier has to tell besides.
    pub report: Report,
    /// Leases held by this process just now.
    pub leases: usize,
}

impl Health {
    /// Whether everything is as it should be: the tier is asked, takes writes, and is heard; what
    /// there was of troubles is over. Where it is not, requests are served all the same, only with
    /// more loads.
    ///
    /// ```
    /// use onefill::fleet::{Fleet, memory::Memory};
    /// use std::sync::Arc;
    ///
    /// let tier = Arc::new(Memory::new());
    /// let fleet = Fleet::on(Arc::clone(&tier));
    /// assert!(fleet.health().is_well());
    /// tier.down();
    /// assert!(!fleet.health().is_well());
    /// ```
    pub fn is_well(&self) -> bool {
        !self.reads_open && !self.writes_open && self.hears && !self.misconfigured
    }
}

impl Fleet {
    /// On a tier [in memory](super::memory::Memory) or of one's own making, with every setting at
    /// its default.
    pub fn on(tier: impl Tier + 'static) -> Fleet {
        Fleet::builder(tier).build()
    }

    /// The same, with settings of its own.
    ///
    /// ```
    /// use onefill::fleet::{Fleet, memory::Memory};
    /// use std::time::Duration;
    ///
    /// let fleet = Fleet::builder(Memory::new())
    ///     .lease(Duration::from_secs(3))
    ///     .budget(Duration::from_millis(50))
    ///     .build();
    /// assert_eq!(fleet.health().leases, 0);
    /// ```
    pub fn builder(tier: impl Tier + 'static) -> FleetBuilder {
        FleetBuilder { tier: Arc::new(tier), terms: Terms::default() }
    }

    /// How it stands.
    ///
    /// ```
    /// use onefill::fleet::{Fleet, memory::Memory};
    ///
    /// let health = Fleet::on(Memory::new()).health();
    /// assert!(health.hears && !health.reads_open && health.last_trouble.is_none());
    /// ```
    pub fn health(&self) -> Health {
        let (reads, writes) = (self.shared.reads.gauge(), self.shared.writes.gauge());
        let (last, counts) = {
            let troubles = self.shared.troubles.lock();
            (troubles.last.clone(), troubles.counts.clone())
        };
        Health {
            reads_open: reads.open,
            writes_open: writes.open,
            opened: reads.opened + writes.opened,
            hears: self.shared.hears(),
            last_trouble: last,
            troubles: counts,
            misconfigured: reads.misconfigured || writes.misconfigured,
            report: self.shared.tier.report(),
            leases: self.shared.renewal.held(),
        }
    }
}

/// Settings for a [`Fleet`]. Made by [`Fleet::builder`].
#[must_use = "a builder does nothing until it builds"]
#[derive(Debug)]
pub struct FleetBuilder {
    tier: Arc<dyn Tier>,
    pub(super) terms: Terms,
}

/// What every fleet can be told, whatever its tier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) lease: Duration,
    pub(super) lease_cap: Duration,
    pub(super) budget: Duration,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            lease: Duration::from_secs(10),
            lease_cap: Duration::from_secs(60),
            budget: Duration::from_millis(150),
        }
    }
}

impl FleetBuilder {
    /// For how long a lease is taken. Defaults to 10 s, and 1 ms at least. It is renewed at a third
    /// of that for as long as its load runs, so it bounds how long others wait for a process that
    /// has died, not how long a load may take.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.terms.lease = lease;
        self
    }

    /// For how long a lease is renewed at most. Defaults to 60 s. A load that takes longer loses
    /// it: its callers get what it comes to, and nothing is stored.
    pub fn lease_cap(mut self, cap: Duration) -> Self {
        self.terms.lease_cap = cap;
        self
    }

    /// How much of its time a call may spend on the tier before it loads without, and as much again
    /// to store what it loaded. Defaults to 150 ms. Of a deadline it is half of what is left at
    /// most, so that there is time for the load. Waiting for another process's load is not counted.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.terms.budget = budget;
        self
    }

    /// Makes the connection. Needs no tier that is there: its trouble is not ours.
    pub fn build(self) -> Fleet {
        let Terms { lease, lease_cap, budget } = self.terms;
        let origin = Origin::random();
        let ear = Arc::new(Ear {
            origin,
            up: AtomicBool::new(false),
            changes: std::iter::repeat_with(|| AtomicU32::new(0)).take(PARTS).collect(),
            voids: std::iter::repeat_with(|| AtomicU16::new(0)).take(PARTS).collect(),
            writing: std::iter::repeat_with(|| AtomicU64::new(0)).take(PARTS).collect(),
            waiters: Mutex::new(HashMap::new()),
            epochs: Mutex::new(Epochs::default()),
        });
        let listener: Arc<dyn Listener> = Arc::clone(&ear) as Arc<dyn Listener>;
        self.tier.listen(Arc::downgrade(&listener));
        Fleet {
            shared: Arc::new(Shared {
                origin,
                reads: Breaker::new(),
                writes: Breaker::new(),
                troubles: Mutex::new(Troubled::default()),
                ear,
                renewal: Renewal::new(Arc::clone(&self.tier)),
                tier: self.tier,
                lease,
                lease_cap,
                budget,
            }),
        }
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("health", &self.health()).finish_non_exhaustive()
    }
}

/// What a call does in the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    /// Removes something. A tier whose memory is full does that still, and is helped by it.
    Remove,
}

impl Access {
    fn name(self) -> &'static str {
        match self {
            Access::Write => "writes",
            // What cannot be read cannot be removed either.
            Access::Read | Access::Remove => "reads",
        }
    }
}

impl Shared {
    /// Asks the tier, unless it is being left alone. `None` if it is, or if there was trouble.
    pub(crate) fn ask<T>(
        &self,
        access: Access,
        ask: impl FnOnce(&dyn Tier) -> Result<T, TierError>,
    ) -> Result<T, TierError> {
        let now = Instant::now();
        // No read, no write: what cannot be reached cannot be written to.
        let may = (access != Access::Write || self.writes.may_ask(now)) && self.reads.may_ask(now);
        if !may {
            let last = self.troubles.lock().last.clone();
            return Err(TierError::Unreachable(format!(
                "left alone after trouble: {}",
                last.as_deref().unwrap_or("none is known")
            )));
        }
        let result = contained(|| ask(self.tier.as_ref()));
        match &result {
            Ok(_) => self.well(access),
            Err(error) => self.trouble(access, error, now),
        }
        result
    }

    fn well(&self, access: Access) {
        // A write that went well says that reads would, too.
        self.closes(Access::Read);
        if access == Access::Write {
            self.closes(Access::Write);
        }
    }

    fn closes(&self, access: Access) {
        if let Some(Change::Closed) = self.breaker(access).well() {
            telemetry::breaker_changed(access.name(), false, None);
        }
    }

    fn trouble(&self, access: Access, error: &TierError, asked: Instant) {
        let text = error.to_string();
        if let TierError::TooSlow { waited } = error
            && *waited < NO_TIME.min(self.budget / 10)
        {
            // That says more about the caller, who had no time, than about the tier.
            return;
        }
        if error.is_writes_only() {
            self.counts_against(Access::Write, &text, asked);
        } else if error.is_misconfigured() {
            // Here only: whoever may not write may read, perhaps. A removal is as much as a write.
            let access = if access == Access::Read { access } else { Access::Write };
            let change = self.breaker(access).misconfigured(Instant::now(), fastrand::f64());
            self.tell_of(access, change, &text);
        } else if error.is_transport() || error.is_unserved() {
            self.counts_against(Access::Read, &text, asked);
            // Counted there as well: reads that go well in between say nothing about writes.
            if access == Access::Write {
                self.counts_against(Access::Write, &text, asked);
            }
        } else {
            // The tier is well; it is this key that is not.
            self.well(access);
        }
        let mut troubles = self.troubles.lock();
        troubles.counts.count(error);
        troubles.last = Some(text);
    }

    fn counts_against(&self, access: Access, trouble: &str, asked: Instant) {
        let change = self.breaker(access).trouble(asked, Instant::now(), fastrand::f64());
        self.tell_of(access, change, trouble);
    }

    fn tell_of(&self, access: Access, change: Option<Change>, trouble: &str) {
        if let Some(Change::Opened) = change {
            telemetry::breaker_changed(access.name(), true, Some(trouble));
        }
    }

    fn breaker(&self, access: Access) -> &Breaker {
        match access {
            Access::Write => &self.writes,
            Access::Read | Access::Remove => &self.reads,
        }
    }

    /// Whether other processes' notices come.
    pub(crate) fn hears(&self) -> bool {
        self.ear.up.load(Ordering::Acquire)
    }

    /// Gives back the lease of a claim whose answer did not come in time, if it was won.
    pub(crate) fn disown(&self, key: &Key, token: Token) {
        self.renewal.disown(key, token, self.origin, self.budget);
    }

    /// Whether writes are asked for: a claim is one, and finds what is there only where it may be
    /// made.
    pub(crate) fn takes_writes(&self) -> bool {
        !self.writes.gauge().open
    }

    /// The mark of a key as of now. To be taken before the value is read that is to carry it, and
    /// before the epoch that the value is to be of.
    pub(crate) fn mark(&self, key: &Key, table: Fingerprint) -> Mark {
        let part = part(key.fingerprint());
        // In this order: a change is counted before what it makes void, so whoever knows of the
        // one knows of the other.
        let voids = self.ear.voids(part, table);
        Mark { part, voids, changes: self.ear.changes(part) }
    }

    /// Whether nothing has been heard since of anything in the mark's part.
    #[inline]
    pub(crate) fn is_current(&self, mark: Mark) -> bool {
        self.ear.changes[usize::from(mark.part)].load(Ordering::Acquire) == mark.changes
    }

    /// Whether what carries the mark, of a key of this table, was said to be out of date, or that
    /// cannot be told any more. To be asked only of what is not current.
    pub(crate) fn is_void(&self, mark: Mark, table: Fingerprint) -> bool {
        let changes = self.ear.changes(mark.part).wrapping_sub(mark.changes);
        self.ear.voids(mark.part, table) != mark.voids || changes >= UNTELLABLE
    }

    /// A put or an invalidation of `key` by this process begins. To be held until it is done here,
    /// too.
    pub(crate) fn write(&self, key: &Key) -> Writing<'_> {
        let part = &self.ear.writing[usize::from(part(key.fingerprint()))];
        let before = part.fetch_add(BEGUN + 1, Ordering::AcqRel);
        let number = (before >> 32) as u32;
        Writing { part, number: number.wrapping_add(1), alone: before as u32 == 0 }
    }

    /// What is known of a table's epoch.
    pub(crate) fn epoch_known(&self, table: Fingerprint) -> EpochKnown {
        let trusted = if self.hears() { EPOCH_TRUSTED } else { EPOCH_TRUSTED_DEAF };
        let epochs = self.ear.epochs.lock();
        let epoch =
            epochs.known.get(&table).map(|(epoch, since)| (*epoch, since.elapsed() < trusted));
        EpochKnown { epoch, heard: epochs.heard }
    }

    /// Notes the epoch that the tier has told, unless something newer was heard since it was
    /// asked.
    pub(crate) fn note_epoch(&self, table: Fingerprint, epoch: Epoch, before: &EpochKnown) {
        let mut epochs = self.ear.epochs.lock();
        if epochs.heard == before.heard {
            epochs.known.insert(table, (epoch, Instant::now()));
        }
    }

    /// Notes an epoch that begins with this process.
    pub(crate) fn begin_epoch(&self, table: Fingerprint, epoch: Epoch) {
        self.ear.begin_epoch(table, epoch);
    }

    /// The tier has begun this epoch.
    pub(crate) fn epoch_begun(&self, table: Fingerprint, epoch: Epoch) {
        self.ear.epoch_begun(table, epoch);
    }

    /// Stands in line for what is heard of `key`. To be done before the lease is asked for, or the
    /// notice may come in between.
    pub(crate) fn wait_for(&self, key: &Key) -> Waiting<'_> {
        let waiter = Arc::new(Waiter { heard: Mutex::new(None), changed: Condvar::new() });
        let fingerprint = key.fingerprint();
        let mut waiters = self.ear.waiters.lock();
        waiters.entry(fingerprint).or_default().push(Arc::clone(&waiter));
        drop(waiters);
        Waiting { ear: &self.ear, fingerprint, waiter }
    }
}

/// A tier may be anybody's, and is asked where a panic would cost more than an answer: in the middle
/// of an invalidation, or while another panic is on its way.
pub(super) fn contained<T>(ask: impl FnOnce() -> Result<T, TierError>) -> Result<T, TierError> {
    catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|panic| {
        let what = said(&*panic).unwrap_or("not with a string");
        Err(TierError::Garbled(format!("it panicked: {what}")))
    })
}

/// One more that has begun, in [`Ear::writing`].
const BEGUN: u64 = 1 << 32;

/// A put or an invalidation that is under way. Of two at once it is not known here which came first
/// to the tier.
pub(crate) struct Writing<'a> {
    part: &'a AtomicU64,
    number: u32,
    /// Whether there was no other when it began.
    alone: bool,
}

impl Writing<'_> {
    /// Whether there has been no other in its part since before it began.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone && (self.part.load(Ordering::Acquire) >> 32) as u32 == self.number
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.part.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A place in line, given up when dropped.
pub(crate) struct Waiting<'a> {
    ear: &'a Ear,
    fingerprint: Fingerprint,
    waiter: Arc<Waiter>,
}

impl Waiting<'_> {
    /// What was heard since the last time, waiting for it until `deadline`.
    pub(crate) fn hear(&self, deadline: Deadline) -> Option<Heard> {
        let mut heard = self.waiter.heard.lock();
        while heard.is_none() {
            if !deadline.wait(&self.waiter.changed, &mut heard) {
                break;
            }
        }
        heard.take()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiters = self.ear.waiters.lock();
        if let Some(line) = waiters.get_mut(&self.fingerprint) {
            line.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
            if line.is_empty() {
                waiters.remove(&self.fingerprint);
            }
        }
    }
}

impl Ear {
    /// Something has changed in this part: L1 is in doubt about it. Returns how often by now.
    fn change(&self, part: u16) -> u32 {
        self.changes[usize::from(part)].fetch_add(1, Ordering::AcqRel).wrapping_add(1)
    }

    fn changes(&self, part: u16) -> u32 {
        self.changes[usize::from(part)].load(Ordering::Acquire)
    }

    /// What L1 has of this part, or of the table whose part it is, is out of date. To be called
    /// when that has been counted as a change.
    fn void(&self, part: u16) {
        self.voids[usize::from(part)].fetch_add(1, Ordering::AcqRel);
    }

    fn voids(&self, key: u16, table: Fingerprint) -> u16 {
        let [key, table] =
            [key, part(table)].map(|part| self.voids[usize::from(part)].load(Ordering::Acquire));
        key.wrapping_add(table)
    }

    fn begin_epoch(&self, table: Fingerprint, epoch: Epoch) {
        let mut epochs = self.epochs.lock();
        epochs.known.insert(table, (epoch, Instant::now()));
        epochs.heard += 1;
    }

    /// The tier has begun this epoch, some time ago: if it is not the one that is known it may be
    /// newer than that, or older. Only the tier can say, and it is asked when next somebody has to
    /// know.
    fn epoch_begun(&self, table: Fingerprint, epoch: Epoch) {
        let mut epochs = self.epochs.lock();
        if epochs.known.get(&table).is_none_or(|(known, _)| *known != epoch) {
            epochs.known.remove(&table);
            epochs.heard += 1;
        }
    }

    /// Anything may have changed.
    fn change_all(&self) {
        for changes in &self.changes {
            changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn tell(&self, key: Fingerprint, what: &Heard) {
        let waiters = self.waiters.lock();
        for waiter in waiters.get(&key).into_iter().flatten() {
            *waiter.heard.lock() = Some(what.clone());
            waiter.changed.notify_one();
        }
    }

    fn tell_all(&self, what: &Heard) {
        for waiter in self.waiters.lock().values().flatten() {
            *waiter.heard.lock() = Some(what.clone());
            waiter.changed.notify_one();
        }
    }
}

impl Listener for Ear {
    fn hear(&self, event: &Event) {
        let notice = match event {
            // What was read while nothing was heard may be out of date.
            Event::Up => {
                {
                    let mut epochs = self.epochs.lock();
                    epochs.known.clear();
                    epochs.heard += 1;
                }
                self.change_all();
                // Whoever sees that notices come finds in doubt already what was read before.
                if !self.up.swap(true, Ordering::AcqRel) {
                    telemetry::hearing_changed(true);
                }
                self.tell_all(&Heard::Changed);
                return;
            }
            Event::Down => {
                if self.up.swap(false, Ordering::Relaxed) {
                    telemetry::hearing_changed(false);
                }
                self.change_all();
                self.tell_all(&Heard::Changed);
                return;
            }
            Event::Notice(notice) => notice,
        };
        let ours = notice.from == self.origin;
        match &notice.news {
            News::Filled { key, version, envelope } | News::Put { key, version, envelope } => {
                let part = part(*key);
                let changes = if ours { self.changes(part) } else { self.change(part) };
                // What is loaded anew was stale, and may stand in as it did. What is put is known
                // to be another.
                if !ours && matches!(notice.news, News::Put { .. }) {
                    self.void(part);
                }
                let (version, envelope) = (*version, envelope.clone());
                self.tell(*key, &Heard::Filled { version, envelope, changes });
            }
            News::Failed { key, token, reaction } => {
                self.tell(*key, &Heard::Failed { token: *token, reaction: *reaction });
            }
            News::Invalidated { key } => {
                if !ours {
                    self.change(part(*key));
                    self.void(part(*key));
                }
                self.tell(*key, &Heard::Changed);
            }
            News::InvalidatedAll { table, epoch } => {
                // The epoch first: whoever takes a mark that knows of this finds the old one gone.
                self.epoch_begun(*table, *epoch);
                if !ours {
                    self.change_all();
                    self.void(part(*table));
                }
                self.tell_all(&Heard::Changed);
            }
        }
    }
}

fn part(key: Fingerprint) -> u16 {
    let [a, b, ..] = key.as_bytes();
    u16::from_be_bytes([*a, *b]) % PARTS as u16
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("tier", &self.tier).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::fleet::Table;
    use crate::fleet::memory::Memory;

    #[test]
    fn whoever_sees_that_notices_come_finds_in_doubt_what_was_read_before() {
        let fleet = Fleet::on(Memory::new().peer());
        let shared = &fleet.shared;
        let table = Table::new("page");
        let comes_up = || {
            while !shared.hears() {
                thread::yield_now();
            }
        };
        // From here on it is only this test that says so.
        comes_up();
        for id in 0..200_u64 {
            let key = Key::new(&table, &id);
            shared.ear.hear(&Event::Down);
            let before = shared.mark(&key, table.fingerprint());
            let start = Barrier::new(2);
            thread::scope(|s| {
                s.spawn(|| {
                    start.wait();
                    shared.ear.hear(&Event::Up);
                });
                start.wait();
                comes_up();
                assert!(!shared.is_current(before));
            });
        }
    }
}
