//! A [`Tier`] within this process: for tests, and for caches that share no more than a process.
//!
//! [`Memory`] does what a server does, at the same steps, and it does as it is told: time stands
//! still or jumps, answers are held back, calls fail before or after they did what they should,
//! connections break, data is lost. So whatever can happen to a fleet can be made to happen in a
//! test, at an exact moment and without a sleep.
//!
//! A `Memory` is a *connection* to a *store*. Trouble with a connection ([`fail`], [`hold`],
//! [`mute`], [`down`]) is that connection's own; what happens to the store ([`advance`], [`wipe`],
//! [`evict`]) happens to all. Give each cache a connection, with [`peer`], and they are a fleet.
//!
//! [`fail`]: Memory::fail
//! [`hold`]: Memory::hold
//! [`mute`]: Memory::mute
//! [`down`]: Memory::down
//! [`advance`]: Memory::advance
//! [`wipe`]: Memory::wipe
//! [`evict`]: Memory::evict
//! [`peer`]: Memory::peer
//!
//! # Example
//!
//! A holder is so slow that its lease ends, and another process fills the key before it is done.
//!
//! ```
//! use onefill::Deadline;
//! use onefill::fleet::memory::{Memory, Op};
//! use onefill::fleet::{Acquired, Committed, Entry, Key, Lease, Origin, Table, Tier, Token};
//! use std::time::Duration;
//!
//! let ms = Duration::from_millis;
//! let (slow, quick) = (Token::random(), Token::random());
//! let (me, key, never) = (Origin::random(), Key::new(&Table::new("t"), &1), Deadline::NEVER);
//!
//! let one = Memory::manual();
//! let two = one.peer();
//! assert_eq!(one.acquire(&key, Lease::new(slow, ms(200)), None, never)?, Acquired::Won);
//!
//! one.advance(ms(200));
//! assert_eq!(two.acquire(&key, Lease::new(quick, ms(200)), None, never)?, Acquired::Won);
//! two.commit(&key, Entry::new(quick, b"b", ms(5_000)), me, never)?;
//!
//! let late = one.commit(&key, Entry::new(slow, b"a", ms(5_000)), me, never)?;
//! let Committed::Superseded(newer) = late else { panic!("{late:?}") };
//! assert_eq!(newer.bytes, b"b");
//! assert_eq!((one.count(Op::Commit), two.count(Op::Commit)), (1, 1));
//! # Ok::<(), onefill::TierError>(())
//! ```

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Weak;
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::error::TierError;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::event::{Event, Listener, News, Notice, Reaction};
use super::key::{Key, Table};
use super::tier::{Acquired, Committed, Entry, Lease, Ownership, Seen, Stored, Tier};
use super::token::{Epoch, Origin, Token};

/// A connection to a store in this process.
///
/// The connection lasts until it is dropped; the store, as long as there is a connection to it.
///
/// # Events
///
/// Whoever does something delivers the notices of it before the call returns, to the listeners of
/// every connection that is up, one at a time and in the order in which things happened. If another
/// thread is delivering already, it delivers these, too, and the call does not wait for that. No
/// lock is held meanwhile: a listener may call any method. If it panics, the panic reaches whoever
/// was delivering, and the next who does something goes on.
pub struct Memory {
    store: Arc<Store>,
    link: u64,
}

/// What can be asked of a [`Tier`], one for each of its methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// [`Tier::lookup`].
    Lookup,
    /// [`Tier::acquire`].
    Acquire,
    /// [`Tier::commit`].
    Commit,
    /// [`Tier::renew`].
    Renew,
    /// [`Tier::release`].
    Release,
    /// [`Tier::invalidate`].
    Invalidate,
    /// [`Tier::put`].
    Put,
    /// [`Tier::epoch`].
    Epoch,
    /// [`Tier::invalidate_all`].
    InvalidateAll,
}

impl Op {
    /// All of them.
    pub const ALL: &[Op] = &[
        Op::Lookup,
        Op::Acquire,
        Op::Commit,
        Op::Renew,
        Op::Release,
        Op::Invalidate,
        Op::Put,
        Op::Epoch,
        Op::InvalidateAll,
    ];
}

/// At which end of a call something goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Moment {
    /// Before the store did what it was asked to.
    Request,
    /// After it: only the caller does not know.
    Reply,
}

/// Holds calls back, until it is released or dropped. Made by [`Memory::hold`].
#[must_use = "dropping it releases whom it holds"]
pub struct Gate {
    store: Arc<Store>,
    gate: u64,
}

struct Store {
    state: Mutex<State>,
    /// A call arrived at a gate, a gate went away, or a connection broke.
    changed: Condvar,
}

/// Everything, guarded by one lock: that is what makes each call one step.
struct State {
    clock: Clock,
    values: HashMap<Key, Value>,
    leases: HashMap<Key, Held>,
    epochs: HashMap<Table, Epoch>,
    links: BTreeMap<u64, Link>,
    gates: Vec<GateRow>,
    /// For the next link, or gate.
    next_id: u64,
    /// What listeners have not been told yet.
    news: VecDeque<(Weak<dyn Listener>, Event)>,
    /// Whether some thread is telling them.
    delivering: bool,
    /// How many rows there may be before the expired ones are looked for.
    sweep_at: usize,
}

/// Begins at zero. Starts from `set`, and runs on from there if it has `since`.
#[derive(Debug)]
struct Clock {
    set: Duration,
    since: Option<Instant>,
}

struct Value {
    bytes: Arc<[u8]>,
    /// `None` only for what was planted so.
    until: Option<Duration>,
}

/// A lease. It has an end, or it could not be made.
struct Held {
    token: Token,
    until: Duration,
}

/// The store's side of a connection.
#[derive(Default)]
struct Link {
    down: bool,
    /// How many notices are still to be lost.
    muted: u64,
    listeners: Vec<Weak<dyn Listener>>,
    counts: HashMap<Op, u64>,
    failures: Vec<Failure>,
}

struct Failure {
    op: Op,
    moment: Moment,
    error: TierError,
    /// How many calls it is still to fail; `None` for all.
    left: Option<u64>,
}

struct GateRow {
    gate: u64,
    /// Whose calls it holds.
    link: u64,
    op: Op,
    moment: Moment,
    arrived: usize,
}

impl Memory {
    /// A connection to a new, empty store, whose clock runs.
    pub fn new() -> Memory {
        Memory::with_clock(Clock { set: Duration::ZERO, since: Some(Instant::now()) })
    }

    /// A connection to a new, empty store, whose clock stands still until it is
    /// [advanced](Memory::advance).
    ///
    /// ```
    /// use onefill::Deadline;
    /// use onefill::fleet::{Entry, Key, Origin, Table, Tier, Token, memory::Memory};
    /// use std::time::Duration;
    ///
    /// let tier = Memory::manual();
    /// let key = Key::new(&Table::new("t"), &1);
    /// let entry = Entry::new(Token::random(), b"tea", Duration::from_secs(60));
    /// tier.put(&key, entry, Origin::random(), Deadline::NEVER)?;
    ///
    /// tier.advance(Duration::from_secs(59));
    /// assert_eq!(tier.stored(&key).unwrap().left, Some(Duration::from_secs(1)));
    /// tier.advance(Duration::from_secs(1));
    /// assert_eq!(tier.stored(&key), None);
    /// # Ok::<(), onefill::TierError>(())
    /// ```
    pub fn manual() -> Memory {
        Memory::with_clock(Clock { set: Duration::ZERO, since: None })
    }

    fn with_clock(clock: Clock) -> Memory {
        let state = State {
            clock,
            values: HashMap::new(),
            leases: HashMap::new(),
            epochs: HashMap::new(),
            links: BTreeMap::new(),
            gates: Vec::new(),
            next_id: 0,
            news: VecDeque::new(),
            delivering: false,
            sweep_at: State::SWEEP_MIN,
        };
        Memory::connect(Arc::new(Store { state: Mutex::new(state), changed: Condvar::new() }))
    }

    fn connect(store: Arc<Store>) -> Memory {
        let link = {
            let mut state = store.state.lock();
            let link = state.id();
            state.links.insert(link, Link::default());
            link
        };
        Memory { store, link }
    }

    /// Another connection to the same store, as another process would have: without the troubles
    /// of this one, with listeners and counts of its own.
    pub fn peer(&self) -> Memory {
        Memory::connect(Arc::clone(&self.store))
    }

    /// Lets time pass: for all connections, and on top of what passes by itself.
    ///
    /// Only values and leases go by this clock. Deadlines do not: they are the caller's.
    pub fn advance(&self, by: Duration) {
        let mut state = self.state();
        state.clock.set = state.clock.set.saturating_add(by);
    }

    // Looking in. None of this counts as a call, or fails.

    /// The value that is stored under a key.
    pub fn stored(&self, key: &Key) -> Option<Stored> {
        self.state().stored(key)
    }

    /// Who holds the lease of a key, and what is left of it.
    pub fn lease(&self, key: &Key) -> Option<(Token, Duration)> {
        self.state().held(key)
    }

    /// How many values there are.
    pub fn values(&self) -> usize {
        let mut state = self.state();
        state.sweep();
        state.values.len()
    }

    /// How many leases there are.
    pub fn leases(&self) -> usize {
        let mut state = self.state();
        state.sweep();
        state.leases.len()
    }

    /// How many calls came over this connection: those that failed, too, if they were sent at all.
    pub fn count(&self, op: Op) -> u64 {
        self.with_link(|link| link.counts.get(&op).copied().unwrap_or_default())
    }

    // Trouble with the store. Nobody is told.

    /// Stores bytes, whatever they are, for `left`; or so that they never expire, as none of ours
    /// do.
    pub fn plant(&self, key: &Key, bytes: &[u8], left: Option<Duration>) {
        let mut state = self.state();
        let until = left.map(|left| state.clock.now().saturating_add(left));
        state.values.insert(key.clone(), Value { bytes: bytes.into(), until });
    }

    /// Loses the value of a key, as a store that is full might.
    pub fn evict(&self, key: &Key) {
        self.state().values.remove(key);
    }

    /// Loses the lease of a key, whoever holds it.
    pub fn drop_lease(&self, key: &Key) {
        self.state().leases.remove(key);
    }

    /// Loses everything: values, leases, epochs. With [`down`](Memory::down) and
    /// [`up`](Memory::up) around it, on each connection, it is a restart.
    pub fn wipe(&self) {
        let mut state = self.state();
        state.values.clear();
        state.leases.clear();
        state.epochs.clear();
    }

    // Trouble with this connection.

    /// Fails every such call with `error`, until [`heal`](Memory::heal).
    ///
    /// ```
    /// use onefill::fleet::memory::{Memory, Moment, Op};
    /// use onefill::fleet::{Entry, Key, Origin, Table, Tier, Token};
    /// use onefill::{Deadline, Refusal, TierError};
    /// use std::time::Duration;
    ///
    /// let tier = Memory::new();
    /// let full = TierError::Refused { class: Refusal::OutOfMemory, text: "OOM".into() };
    /// tier.fail(Op::Put, Moment::Request, full.clone());
    ///
    /// let key = Key::new(&Table::new("t"), &1);
    /// let entry = Entry::new(Token::random(), b"tea", Duration::from_secs(60));
    /// assert_eq!(tier.put(&key, entry, Origin::random(), Deadline::NEVER), Err(full));
    /// assert_eq!(tier.lookup(&key, Deadline::NEVER), Ok(None));
    /// ```
    pub fn fail(&self, op: Op, moment: Moment, error: TierError) {
        self.with_link(|link| link.failures.push(Failure { op, moment, error, left: None }));
    }

    /// Fails the next `calls` such calls with `error`. Failures take their turns in the order in
    /// which they were set up.
    ///
    /// ```
    /// # use onefill::fleet::memory::{Memory, Moment, Op};
    /// # use onefill::fleet::{Entry, Key, Origin, Table, Tier, Token};
    /// # use onefill::{Deadline, TierError};
    /// # use std::time::Duration;
    /// let tier = Memory::new();
    /// let lost = TierError::TooSlow { waited: Duration::from_millis(100) };
    /// tier.fail_next(1, Op::Put, Moment::Reply, lost.clone());
    ///
    /// let key = Key::new(&Table::new("t"), &1);
    /// let entry = Entry::new(Token::random(), b"tea", Duration::from_secs(60));
    /// assert_eq!(tier.put(&key, entry, Origin::random(), Deadline::NEVER), Err(lost));
    /// assert!(tier.lookup(&key, Deadline::NEVER)?.is_some()); // but it was stored
    /// # Ok::<(), TierError>(())
    /// ```
    pub fn fail_next(&self, calls: u64, op: Op, moment: Moment, error: TierError) {
        let left = Some(calls);
        self.with_link(|link| link.failures.push(Failure { op, moment, error, left }));
    }

    /// Fails no more calls.
    pub fn heal(&self) {
        self.with_link(|link| link.failures.clear());
    }

    /// Holds back every such call, from now on and until the gate is released: at its request,
    /// with nothing done yet; or at its reply, with all done and the caller still waiting.
    ///
    /// A call that is held until its deadline is [`TooSlow`](TierError::TooSlow).
    ///
    /// ```
    /// use onefill::fleet::memory::{Memory, Moment, Op};
    /// use onefill::fleet::{Entry, Key, Origin, Table, Tier, Token};
    /// use onefill::Deadline;
    /// use std::time::Duration;
    ///
    /// let tier = Memory::new();
    /// let key = Key::new(&Table::new("t"), &1);
    ///
    /// let gate = tier.hold(Op::Lookup, Moment::Reply);
    /// std::thread::scope(|s| {
    ///     let reader = s.spawn(|| tier.lookup(&key, Deadline::NEVER));
    ///     assert!(gate.wait_for(1, Duration::from_secs(5)));
    ///
    ///     let entry = Entry::new(Token::random(), b"tea", Duration::from_secs(60));
    ///     tier.put(&key, entry, Origin::random(), Deadline::NEVER).unwrap();
    ///     gate.release();
    ///     assert_eq!(reader.join().unwrap(), Ok(None)); // it had read before that
    /// });
    /// ```
    pub fn hold(&self, op: Op, moment: Moment) -> Gate {
        let mut state = self.state();
        let gate = state.id();
        state.gates.push(GateRow { gate, link: self.link, op, moment, arrived: 0 });
        Gate { store: Arc::clone(&self.store), gate }
    }

    /// Loses the next `notices` that should come over this connection: `u64::MAX` for all, zero
    /// for no more. The listeners notice nothing.
    pub fn mute(&self, notices: u64) {
        self.with_link(|link| link.muted = notices);
    }

    /// Breaks the connection: every call fails at once, those that are held, too, and notices are
    /// lost. The listeners are told [`Event::Down`], unless they know.
    pub fn down(&self) {
        self.set_down(true);
    }

    /// Mends the connection. The listeners are told [`Event::Up`], unless they know.
    pub fn up(&self) {
        self.set_down(false);
    }

    fn set_down(&self, down: bool) {
        let mut state = self.state();
        let link = state.link(self.link);
        if link.down != down {
            link.down = down;
            let event = if down { Event::Down } else { Event::Up };
            let listeners = link.listeners.clone();
            state.news.extend(listeners.into_iter().map(|listener| (listener, event.clone())));
        }
        drop(state);
        self.store.changed.notify_all();
        self.store.deliver();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.store.state.lock()
    }

    fn with_link<T>(&self, f: impl FnOnce(&mut Link) -> T) -> T {
        f(self.state().link(self.link))
    }

    /// One call: whatever is to go wrong with it goes wrong here.
    fn call<T>(
        &self,
        op: Op,
        deadline: Deadline,
        effect: impl FnOnce(&mut State) -> T,
    ) -> Result<T, TierError> {
        if deadline.has_passed() {
            return Err(TierError::TooSlow { waited: Duration::ZERO });
        }
        let started = Instant::now();
        let answer = {
            let mut state = self.state();
            *state.link(self.link).counts.entry(op).or_default() += 1;
            self.pass(&mut state, op, Moment::Request, deadline, started)?;
            effect(&mut state)
        };
        self.store.deliver();
        self.pass(&mut self.state(), op, Moment::Reply, deadline, started)?;
        Ok(answer)
    }

    /// Gets a call past the gates and failures at one of its ends.
    fn pass(
        &self,
        state: &mut MutexGuard<'_, State>,
        op: Op,
        moment: Moment,
        deadline: Deadline,
        started: Instant,
    ) -> Result<(), TierError> {
        let mut at = None;
        loop {
            if state.link(self.link).down {
                return Err(TierError::Unreachable("taken down".into()));
            }
            let ours = (self.link, op, moment);
            let mut gates = state.gates.iter_mut();
            let Some(row) = gates.find(|row| (row.link, row.op, row.moment) == ours) else { break };
            if at != Some(row.gate) {
                at = Some(row.gate);
                row.arrived += 1;
                self.store.changed.notify_all();
            }
            match deadline.instant() {
                None => self.store.changed.wait(state),
                Some(instant) => {
                    if self.store.changed.wait_until(state, instant).timed_out() {
                        return Err(TierError::TooSlow { waited: started.elapsed() });
                    }
                }
            }
        }
        let link = state.link(self.link);
        let due = |failure: &Failure| failure.op == op && failure.moment == moment;
        let Some(turn) = link.failures.iter().position(|f| due(f) && f.left != Some(0)) else {
            return Ok(());
        };
        let failure = &mut link.failures[turn];
        failure.left = failure.left.map(|left| left - 1);
        Err(failure.error.clone())
    }
}

impl Default for Memory {
    fn default() -> Self {
        Memory::new()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.state().links.remove(&self.link);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut state = self.state();
        let down = state.link(self.link).down;
        f.debug_struct("Memory")
            .field("clock", &state.clock)
            .field("values", &state.values.len())
            .field("leases", &state.leases.len())
            .field("links", &state.links.len())
            .field("down", &down)
            .finish()
    }
}

/// See [`Tier`] for what each of these is to do; the scripts of a server do the same.
impl Tier for Memory {
    fn lookup(&self, key: &Key, deadline: Deadline) -> Result<Option<Stored>, TierError> {
        self.call(Op::Lookup, deadline, |state| state.stored(key))
    }

    fn acquire(
        &self,
        key: &Key,
        lease: Lease,
        seen: Option<Seen>,
        deadline: Deadline,
    ) -> Result<Acquired, TierError> {
        self.call(Op::Acquire, deadline, |state| {
            if let Some(stored) = state.stored(key)
                && !seen.is_some_and(|seen| seen.is(&stored.bytes))
            {
                return Acquired::Hit(stored);
            }
            match state.held(key) {
                Some((holder, left)) if holder != lease.token => {
                    Acquired::Held { holder: Some(holder), left }
                }
                _ => {
                    state.hold(key, lease);
                    Acquired::Won
                }
            }
        })
    }

    fn commit(
        &self,
        key: &Key,
        entry: Entry<'_>,
        from: Origin,
        deadline: Deadline,
    ) -> Result<Committed, TierError> {
        self.call(Op::Commit, deadline, |state| {
            if !state.is_held_by(key, entry.version) {
                return match state.stored(key) {
                    Some(stored) => Committed::Superseded(stored),
                    None => Committed::Refused,
                };
            }
            let envelope = state.keep(key, entry);
            let news = News::Filled { key: key.fingerprint(), version: entry.version, envelope };
            state.publish(from, news);
            Committed::Stored
        })
    }

    fn renew(&self, key: &Key, lease: Lease, deadline: Deadline) -> Result<Ownership, TierError> {
        self.call(Op::Renew, deadline, |state| {
            if !state.is_held_by(key, lease.token) {
                return Ownership::Lost;
            }
            state.hold(key, lease);
            Ownership::Ours
        })
    }

    fn release(
        &self,
        key: &Key,
        token: Token,
        reaction: Reaction,
        from: Origin,
        deadline: Deadline,
    ) -> Result<Ownership, TierError> {
        self.call(Op::Release, deadline, |state| {
            if !state.is_held_by(key, token) {
                return Ownership::Lost;
            }
            state.leases.remove(key);
            state.publish(from, News::Failed { key: key.fingerprint(), token, reaction });
            Ownership::Ours
        })
    }

    fn invalidate(&self, key: &Key, from: Origin, deadline: Deadline) -> Result<(), TierError> {
        self.call(Op::Invalidate, deadline, |state| {
            state.values.remove(key);
            state.leases.remove(key);
            state.publish(from, News::Invalidated { key: key.fingerprint() });
        })
    }

    fn put(
        &self,
        key: &Key,
        entry: Entry<'_>,
        from: Origin,
        deadline: Deadline,
    ) -> Result<(), TierError> {
        self.call(Op::Put, deadline, |state| {
            let envelope = state.keep(key, entry);
            let news = News::Put { key: key.fingerprint(), version: entry.version, envelope };
            state.publish(from, news);
        })
    }

    /// Kept for as long as the store is.
    fn epoch(&self, table: &Table, deadline: Deadline) -> Result<Epoch, TierError> {
        self.call(Op::Epoch, deadline, |state| {
            *state.epochs.entry(table.clone()).or_insert_with(Epoch::random)
        })
    }

    fn invalidate_all(
        &self,
        table: &Table,
        epoch: Epoch,
        from: Origin,
        deadline: Deadline,
    ) -> Result<(), TierError> {
        self.call(Op::InvalidateAll, deadline, |state| {
            state.epochs.insert(table.clone(), epoch);
            state.publish(from, News::InvalidatedAll { table: table.fingerprint(), epoch });
        })
    }

    fn listen(&self, listener: Weak<dyn Listener>) {
        let mut state = self.state();
        let link = state.link(self.link);
        link.listeners.retain(|listener| listener.strong_count() > 0);
        link.listeners.push(Weak::clone(&listener));
        if !link.down {
            state.news.push_back((listener, Event::Up));
        }
        drop(state);
        self.store.deliver();
    }
}

impl Gate {
    /// How many calls have come to it.
    pub fn arrived(&self) -> usize {
        self.store.state.lock().arrived(self.gate)
    }

    /// Waits until `calls` calls have come to it. Whether they have, by the deadline.
    pub fn wait_for(&self, calls: usize, deadline: impl Into<Deadline>) -> bool {
        let deadline = deadline.into();
        let mut state = self.store.state.lock();
        while state.arrived(self.gate) < calls {
            match deadline.instant() {
                None => self.store.changed.wait(&mut state),
                Some(instant) => {
                    if self.store.changed.wait_until(&mut state, instant).timed_out() {
                        return state.arrived(self.gate) >= calls;
                    }
                }
            }
        }
        true
    }

    /// Lets the calls go, and those that come after them. As dropping it does.
    pub fn release(self) {}
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.store.state.lock().gates.retain(|row| row.gate != self.gate);
        self.store.changed.notify_all();
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("arrived", &self.arrived()).finish()
    }
}

impl Store {
    /// Tells the listeners what they have not been told yet, unless another thread, or this one
    /// further up, is about it: then that goes on with what was added.
    fn deliver(&self) {
        loop {
            let (listener, event) = {
                let mut state = self.state.lock();
                if state.delivering {
                    return;
                }
                let Some(next) = state.news.pop_front() else { return };
                state.delivering = true;
                next
            };
            let _delivering = Delivering(self);
            if let Some(listener) = listener.upgrade() {
                listener.hear(&event);
            }
        }
    }
}

/// Ends a delivery, even if a listener panics.
struct Delivering<'a>(&'a Store);

impl Drop for Delivering<'_> {
    fn drop(&mut self) {
        self.0.state.lock().delivering = false;
    }
}

impl State {
    const SWEEP_MIN: usize = 1_024;

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn link(&mut self, link: u64) -> &mut Link {
        self.links.get_mut(&link).expect("a link is there for as long as its connection")
    }

    fn arrived(&self, gate: u64) -> usize {
        self.gates.iter().find(|row| row.gate == gate).map_or(0, |row| row.arrived)
    }

    /// The value, unless it has expired or has no bytes.
    fn stored(&self, key: &Key) -> Option<Stored> {
        let now = self.clock.now();
        let value = self.values.get(key).filter(|value| !value.bytes.is_empty())?;
        let left = match value.until {
            None => None,
            Some(until) if until > now => Some(until - now),
            Some(_) => return None,
        };
        Some(Stored { bytes: value.bytes.to_vec(), left })
    }

    /// The lease, unless it has ended; and what is left of it.
    fn held(&self, key: &Key) -> Option<(Token, Duration)> {
        let held = self.leases.get(key)?;
        let left = held.until.saturating_sub(self.clock.now());
        (!left.is_zero()).then_some((held.token, left))
    }

    fn is_held_by(&self, key: &Key, token: Token) -> bool {
        self.held(key).is_some_and(|(holder, _)| holder == token)
    }

    fn hold(&mut self, key: &Key, lease: Lease) {
        self.make_room();
        let until = self.clock.now().saturating_add(lease.ttl());
        self.leases.insert(key.clone(), Held { token: lease.token, until });
    }

    /// Stores a value and ends the lease. Returns the envelope for the notice.
    fn keep(&mut self, key: &Key, entry: Entry<'_>) -> Option<Arc<[u8]>> {
        self.make_room();
        let bytes: Arc<[u8]> = entry.bytes.into();
        let until = Some(self.clock.now().saturating_add(entry.life()));
        self.values.insert(key.clone(), Value { bytes: Arc::clone(&bytes), until });
        self.leases.remove(key);
        entry.announce.then_some(bytes)
    }

    /// Before a row is added: what has expired must not pile up, and looking for it must not cost
    /// more than adding it did.
    fn make_room(&mut self) {
        if self.values.len() + self.leases.len() >= self.sweep_at {
            self.sweep();
            self.sweep_at = Self::SWEEP_MIN.max(2 * (self.values.len() + self.leases.len()));
        }
    }

    fn sweep(&mut self) {
        let now = self.clock.now();
        self.values.retain(|_, value| value.until.is_none_or(|until| until > now));
        self.leases.retain(|_, held| held.until > now);
    }

    /// Puts a notice in the queue of whoever is to be told.
    fn publish(&mut self, from: Origin, news: News) {
        let event = Event::Notice(Notice { from, news });
        for link in self.links.values_mut().filter(|link| !link.down) {
            if link.muted > 0 {
                link.muted = if link.muted == u64::MAX { u64::MAX } else { link.muted - 1 };
                continue;
            }
            link.listeners.retain(|listener| listener.strong_count() > 0);
            let told = link.listeners.iter().map(|listener| (Weak::clone(listener), event.clone()));
            self.news.extend(told);
        }
    }
}

impl Clock {
    fn now(&self) -> Duration {
        self.set.saturating_add(self.since.map(|since| since.elapsed()).unwrap_or_default())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::error::Refusal;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex as StdMutex;
    use std::thread;

    const NEVER: Deadline = Deadline::NEVER;
    /// Far off, for waits that end before it unless something is broken.
    const PATIENCE: Duration = Duration::from_secs(30);
    const ME: Origin = Origin::from_u64(1);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn key(id: u64) -> Key {
        Key::new(&Table::new("t"), &id)
    }

    fn token(byte: u8) -> Token {
        Token::from_bytes([byte; 16])
    }

    fn lease(byte: u8, ttl: u64) -> Lease {
        Lease::new(token(byte), ms(ttl))
    }

    fn entry(byte: u8, bytes: &[u8]) -> Entry<'_> {
        Entry::new(token(byte), bytes, ms(60_000))
    }

    fn stored(bytes: &[u8], left: u64) -> Stored {
        Stored { bytes: bytes.to_vec(), left: Some(ms(left)) }
    }

    /// Everything a connection's listener hears.
    struct Ear {
        heard: Arc<StdMutex<Vec<Event>>>,
        _listener: Arc<dyn Listener>,
    }

    impl Ear {
        fn at(tier: &Memory) -> Ear {
            let heard = Arc::new(StdMutex::new(Vec::new()));
            let book = Arc::clone(&heard);
            let listener: Arc<dyn Listener> =
                Arc::new(move |event: &Event| book.lock().unwrap().push(event.clone()));
            tier.listen(Arc::downgrade(&listener));
            Ear { heard, _listener: listener }
        }

        fn heard(&self) -> Vec<Event> {
            std::mem::take(&mut self.heard.lock().unwrap())
        }

        fn news(&self) -> Vec<News> {
            let news = |event| match event {
                Event::Notice(notice) => notice.news,
                other => panic!("{other:?}"),
            };
            self.heard().into_iter().map(news).collect()
        }
    }

    // Values and leases.

    #[test]
    fn a_miss_and_the_lease_are_one_step() {
        let tier = Memory::manual();
        assert_eq!(tier.lookup(&key(1), NEVER), Ok(None));
        assert_eq!(tier.acquire(&key(1), lease(1, 10_000), None, NEVER), Ok(Acquired::Won));
        let held = Acquired::Held { holder: Some(token(1)), left: ms(10_000) };
        assert_eq!(tier.acquire(&key(1), lease(2, 5_000), None, NEVER), Ok(held));
        assert_eq!(tier.acquire(&key(2), lease(2, 5_000), None, NEVER), Ok(Acquired::Won));
        assert_eq!(tier.lookup(&key(1), NEVER), Ok(None), "a lease is no value");
    }

    #[test]
    fn a_commit_stores_the_value_and_ends_the_lease() {
        let tier = Memory::manual();
        tier.acquire(&key(1), lease(1, 10_000), None, NEVER).unwrap();
        assert_eq!(tier.commit(&key(1), entry(1, b"a"), ME, NEVER), Ok(Committed::Stored));
        assert_eq!(tier.lease(&key(1)), None);
        assert_eq!(tier.lookup(&key(1), NEVER), Ok(Some(stored(b"a", 60_000))));
        let hit = Acquired::Hit(stored(b"a", 60_000));
        assert_eq!(tier.acquire(&key(1), lease(2, 10_000), None, NEVER), Ok(hit));
        assert_eq!(tier.lease(&key(1)), None, "a hit takes no lease");
    }

    #[test]
    fn a_commit_without_a_lease_is_refused() {
        let tier = Memory::manual();
        assert_eq!(tier.commit(&key(1), entry(1, b"a"), ME, NEVER), Ok(Committed::Refused));
        assert_eq!(tier.lookup(&key(1), NEVER), Ok(None));
    }

    #[test]
    fn a_commit_after_the_lease_ended_is_refused() {
        let tier = Memory::manual();
        tier.acquire(&key(1), lease(1, 100), None, NEVER).unwrap();
        tier.advance(ms(100));
        assert_eq!(tier.commit(&key(1), entry(1, b"a"), ME, NEVER), Ok(Committed::Refused));
    }

    #[test]
    fn a_late_holder_gets_the_newer_value() {
        let tier = Memory::manual();
        tier.acquire(&key(1), lease(1, 100), None, NEVER).unwrap();
        tier.advance(ms(100));
        tier.acquire(&key(1), lease(2, 100), None, NEVER).unwrap();
        tier.commit(&key(1), entry(2, b"newer"), ME, NEVER).unwrap();
        let late = tier.commit(&key(1), entry(1, b"older"), ME, NEVER);
        assert_eq!(late, Ok(Committed::Superseded(stored(b"newer", 60_000))));
        assert_eq!(tier.stored(&key(1)), Some(stored(b"newer", 60_000)));
    }

    #[test]
    fn a_late_holder_touches_no_later_lease() {
        let (one, two, three) = {
            let tier = Memory::manual();
            (tier.peer(), tier.peer(), tier)
        };
        one.acquire(&key(1), lease(1, 200), None, NEVER).unwrap();
        one.advance(ms(250));
        two.acquire(&key(1), lease(2, 5_000), None, NEVER).unwrap();
        one.advance(ms(250));

        assert_eq!(one.commit(&key(1), entry(1, b"a"), ME, NEVER), Ok(Committed::Refused));
        assert_eq!(one.renew(&key(1), lease(1, 200), NEVER), Ok(Ownership::Lost));
        let released = one.release(&key(1), token(1), Reaction::TakeOver, ME, NEVER);
        assert_eq!(released, Ok(Ownership::Lost));

        assert_eq!(three.lease(&key(1)), Some((token(2), ms(4_750))));
        let held = Acquired::Held { holder: Some(token(2)), left: ms(4_750) };
        assert_eq!(three.acquire(&key(1), lease(3, 100), None, NEVER), Ok(held));
    }

    #[test]
    fn when_a_lease_is_forgotten_the_newer_right_to_write_wins() {
        let one = Memory::manual();
        let two = one.peer();
        one.acquire(&key(1), lease(1, 10_000), None, NEVER).unwrap();
        one.drop_lease(&key(1));
        assert_eq!(two.acquire(&key(1), lease(2, 10_000), None, NEVER), Ok(Acquired::Won));
        assert_eq!(two.commit(&key(1), entry(2, b"b"), ME, NEVER), Ok(Committed::Stored));

        let late = one.commit(&key(1), entry(1, b"a"), ME, NEVER);
        assert_eq!(late, Ok(Committed::Superseded(stored(b"b", 60_000))));
        let released = one.release(&key(1), token(1), Reaction::TakeOver, ME, NEVER);
        assert_eq!(released, Ok(Ownership::Lost));
        assert_eq!(one.stored(&key(1)).unwrap().bytes, b"b");
    }

    #[test]
    fn renewing_moves_the_end_of_a_lease() {
        let tier = Memory::manual();
        tier.acquire(&key(1), lease(1, 300), None, NEVER).unwrap();
        tier.advance(ms(299));
        assert_eq!(tier.renew(&key(1), lease(1, 300), NEVER), Ok(Ownership::Ours));
        tier.advance(ms(299));
        assert_eq!(tier.lease(&key(1)), Some((token(1), ms(1))));
        tier.advance(ms(1));
        assert_eq!(tier.renew(&key(1), lease(1, 300), NEVER), Ok(Ownership::Lost));
        assert_eq!(tier.leases(), 0);
    }

    #[test]
    fn releasing_ends_ones_own_lease() {
        let tier = Memory::manual();
        tier.acquire(&key(1), lease(1, 300), None, NEVER).unwrap();
        let released = tier.release(&key(1), token(1), Reaction::BackOff, ME, NEVER);
        assert_eq!(released, Ok(Ownership::Ours));
        assert_eq!(tier.lease(&key(1)), None);
        assert_eq!(tier.acquire(&key(1), lease(2, 300), None, NEVER), Ok(Acquired::Won));
    }

    #[test]
    fn an_invalidation_voids_the_lease() {
        let tier = Memory::manual();
        tier.put(&key(1), entry(9, b"old"), ME, NEVER).unwrap();
        let seen = Seen::of(b"old");
        tier.acquire(&key(1), lease(1, 10_000), seen, NEVER).unwrap();
        tier.invalidate(&key(1), ME, NEVER).unwrap();
        assert_eq!((tier.values(), tier.leases()), (0, 0));
        assert_eq!(tier.commit(&key(1), entry(1, b"a"), ME, NEVER), Ok(Committed::Refused));

        // Nor may it be committed once the next holder is there, or is done.
        tier.acquire(&key(1), lease(2, 10_000), None, NEVER).unwrap();
        assert_eq!(tier.commit(&key(1), entry(1, b"a"), ME, NEVER), Ok(Committed::Refused));
        tier.commit(&key(1), entry(2, b"b"), ME, NEVER).unwrap();
        let late = tier.commit(&key(1), entry(1, b"a"), ME, NEVER);
        assert_eq!(late, Ok(Committed::Superseded(stored(b"b", 60_000))));
    }

    #[test]
    fn a_put_wins_over_a_fill() {
        let tier = Memory::manual();
        tier.acquire(&key(1), lease(1, 10_000), None, NEVER).unwrap();
        tier.put(&key(1), entry(2, b"put"), ME, NEVER).unwrap();
        assert_eq!(tier.leases(), 0);
        let late = tier.commit(&key(1), entry(1, b"loaded"), ME, NEVER);
        assert_eq!(late, Ok(Committed::Superseded(stored(b"put", 60_000))));
    }

    #[test]
    fn a_value_that_was_seen_counts_as_none_until_it_is_replaced() {
        let tier = Memory::manual();
        let (old, new) = (b"old: 18 bytes of it, and more", b"new: 18 bytes of it, and more");
        tier.put(&key(1), entry(9, old), ME, NEVER).unwrap();
        let seen = Seen::of(old);
        assert_eq!(tier.acquire(&key(1), lease(1, 10_000), seen, NEVER), Ok(Acquired::Won));
        let held = Acquired::Held { holder: Some(token(1)), left: ms(10_000) };
        assert_eq!(tier.acquire(&key(1), lease(2, 10_000), seen, NEVER), Ok(held));
        assert_eq!(tier.stored(&key(1)).unwrap().bytes, old, "the old value stays meanwhile");

        tier.commit(&key(1), entry(1, new), ME, NEVER).unwrap();
        let hit = Acquired::Hit(stored(new, 60_000));
        assert_eq!(tier.acquire(&key(1), lease(2, 10_000), seen, NEVER), Ok(hit));
    }

    #[test]
    fn broken_bytes_can_be_replaced_whatever_they_are() {
        let zeros = vec![0; 10 << 20];
        let broken =
            [&b""[..], b"x", b"\xc1", b"half an enve", b"no envelope at all, but text", &zeros];
        for (id, bytes) in (0..).zip(broken) {
            let tier = Memory::manual();
            tier.plant(&key(id), bytes, Some(ms(60_000)));
            let seen = tier.lookup(&key(id), NEVER).unwrap().and_then(|s| Seen::of(&s.bytes));
            let won = tier.acquire(&key(id), lease(1, 10_000), seen, NEVER);
            assert_eq!(won, Ok(Acquired::Won), "{} bytes", bytes.len());
            tier.commit(&key(id), entry(1, b"good"), ME, NEVER).unwrap();
            assert_eq!(tier.stored(&key(id)).unwrap().bytes, b"good");
        }
    }

    #[test]
    fn a_value_without_bytes_is_none() {
        let tier = Memory::manual();
        tier.plant(&key(1), b"", None);
        assert_eq!(tier.lookup(&key(1), NEVER), Ok(None));
        assert_eq!(tier.commit(&key(1), entry(1, b"a"), ME, NEVER), Ok(Committed::Refused));
        assert_eq!(tier.acquire(&key(1), lease(1, 100), None, NEVER), Ok(Acquired::Won));
    }

    #[test]
    fn calls_can_be_repeated() {
        let tier = Memory::manual();
        for _ in 0..2 {
            assert_eq!(tier.acquire(&key(1), lease(1, 300), None, NEVER), Ok(Acquired::Won));
            tier.advance(ms(200));
        }
        assert_eq!(tier.lease(&key(1)), Some((token(1), ms(100))), "for the new time");

        assert_eq!(tier.commit(&key(1), entry(1, b"a"), ME, NEVER), Ok(Committed::Stored));
        let own = Committed::Superseded(stored(b"a", 60_000));
        assert_eq!(tier.commit(&key(1), entry(1, b"a"), ME, NEVER), Ok(own));

        for _ in 0..2 {
            assert_eq!(tier.invalidate(&key(1), ME, NEVER), Ok(()));
            assert_eq!(tier.values(), 0);
        }
    }

    #[test]
    fn time_takes_values_and_leases() {
        let tier = Memory::manual();
        tier.put(&key(1), entry(1, b"a"), ME, NEVER).unwrap();
        tier.acquire(&key(2), lease(2, 60_000), None, NEVER).unwrap();
        tier.advance(ms(59_999));
        assert_eq!(tier.stored(&key(1)), Some(stored(b"a", 1)));
        assert_eq!((tier.values(), tier.leases()), (1, 1));
        tier.advance(ms(1));
        assert_eq!(tier.lookup(&key(1), NEVER), Ok(None));
        assert_eq!((tier.values(), tier.leases()), (0, 0));
        tier.advance(Duration::MAX);
        assert_eq!(tier.acquire(&key(1), lease(1, 100), None, NEVER), Ok(Acquired::Won));
    }

    #[test]
    fn the_clock_runs_unless_it_is_manual() {
        let tier = Memory::new();
        tier.put(&key(1), entry(1, b"a"), ME, NEVER).unwrap();
        let before = tier.stored(&key(1)).unwrap().left;
        thread::sleep(ms(2));
        assert!(tier.stored(&key(1)).unwrap().left < before);
        tier.advance(ms(60_000));
        assert_eq!(tier.stored(&key(1)), None);
    }

    #[test]
    fn what_was_planted_without_an_end_has_none() {
        let tier = Memory::manual();
        tier.plant(&key(1), b"by hand", None);
        tier.advance(Duration::from_secs(u64::from(u32::MAX)));
        let found = tier.lookup(&key(1), NEVER).unwrap().unwrap();
        assert_eq!(found.left, None);
    }

    #[test]
    fn expired_rows_do_not_pile_up() {
        let tier = Memory::manual();
        for id in 0..10_000 {
            tier.put(&key(id), Entry::new(token(1), b"a", ms(10)), ME, NEVER).unwrap();
            tier.advance(ms(1));
        }
        assert!(tier.state().values.len() <= State::SWEEP_MIN);
    }

    #[test]
    fn tables_have_their_own_epochs() {
        let tier = Memory::manual();
        let (t, u) = (Table::new("t"), Table::new("u"));
        let (of_t, of_u) = (tier.epoch(&t, NEVER).unwrap(), tier.epoch(&u, NEVER).unwrap());
        assert_ne!(of_t, of_u);
        assert_eq!(tier.peer().epoch(&t, NEVER), Ok(of_t));

        let next = Epoch::random();
        tier.invalidate_all(&t, next, ME, NEVER).unwrap();
        assert_eq!(tier.peer().epoch(&t, NEVER), Ok(next));
        assert_eq!(tier.epoch(&u, NEVER), Ok(of_u));

        tier.wipe();
        let after = tier.epoch(&t, NEVER).unwrap();
        assert!(after != of_t && after != next, "one that no value carries yet");
    }

    #[test]
    fn a_herd_of_connections_has_one_holder_at_a_time() {
        let tier = Memory::new();
        let wins = StdMutex::new(0);
        thread::scope(|s| {
            for byte in 1..=8 {
                let (tier, wins) = (tier.peer(), &wins);
                s.spawn(move || {
                    for id in 0..100 {
                        if tier.acquire(&key(id), lease(byte, 60_000), None, NEVER)
                            == Ok(Acquired::Won)
                        {
                            *wins.lock().unwrap() += 1;
                        }
                    }
                });
            }
        });
        assert_eq!(wins.into_inner().unwrap(), 100);
    }

    // Notices.

    #[test]
    fn each_change_is_told_once_to_every_connection() {
        let one = Memory::manual();
        let two = one.peer();
        let (ear, other) = (Ear::at(&one), Ear::at(&two));
        assert_eq!(ear.heard(), [Event::Up]);
        assert_eq!(other.heard(), [Event::Up]);

        let (k, t) = (key(1).fingerprint(), Table::new("t"));
        let epoch = Epoch::random();
        one.acquire(&key(1), lease(1, 100), None, NEVER).unwrap();
        one.commit(&key(1), entry(1, b"a").announced(), ME, NEVER).unwrap();
        one.put(&key(1), entry(2, b"b"), ME, NEVER).unwrap();
        one.invalidate(&key(1), ME, NEVER).unwrap();
        one.acquire(&key(1), lease(3, 100), None, NEVER).unwrap();
        one.release(&key(1), token(3), Reaction::LoadAlone, ME, NEVER).unwrap();
        one.invalidate_all(&t, epoch, ME, NEVER).unwrap();

        let news = [
            News::Filled { key: k, version: token(1), envelope: Some(Arc::from(*b"a")) },
            News::Put { key: k, version: token(2), envelope: None },
            News::Invalidated { key: k },
            News::Failed { key: k, token: token(3), reaction: Reaction::LoadAlone },
            News::InvalidatedAll { table: t.fingerprint(), epoch },
        ];
        let notices = news.map(|news| Event::Notice(Notice { from: ME, news }));
        assert_eq!(ear.heard(), notices);
        assert_eq!(other.heard(), notices);
    }

    #[test]
    fn what_changed_nothing_is_not_told() {
        let tier = Memory::manual();
        tier.acquire(&key(1), lease(1, 100), None, NEVER).unwrap();
        let ear = Ear::at(&tier);
        ear.heard();
        tier.lookup(&key(1), NEVER).unwrap();
        tier.acquire(&key(1), lease(2, 100), None, NEVER).unwrap();
        tier.commit(&key(1), entry(2, b"b"), ME, NEVER).unwrap();
        tier.renew(&key(1), lease(1, 100), NEVER).unwrap();
        tier.release(&key(1), token(2), Reaction::BackOff, ME, NEVER).unwrap();
        tier.epoch(&Table::new("t"), NEVER).unwrap();
        assert_eq!(ear.heard(), []);
    }

    #[test]
    fn notices_can_be_lost() {
        let one = Memory::manual();
        let two = one.peer();
        let (ear, other) = (Ear::at(&one), Ear::at(&two));
        ear.heard();
        other.heard();
        two.mute(1);
        one.invalidate(&key(1), ME, NEVER).unwrap();
        one.invalidate(&key(2), ME, NEVER).unwrap();
        two.mute(u64::MAX);
        one.invalidate(&key(3), ME, NEVER).unwrap();
        one.invalidate(&key(4), ME, NEVER).unwrap();
        two.mute(0);
        one.invalidate(&key(5), ME, NEVER).unwrap();

        let told = |id| News::Invalidated { key: key(id).fingerprint() };
        assert_eq!(ear.news(), [1, 2, 3, 4, 5].map(told));
        assert_eq!(other.news(), [2, 5].map(told));
    }

    #[test]
    fn a_listener_may_call_the_tier() {
        let tier = Arc::new(Memory::manual());
        let found = Arc::new(StdMutex::new(Vec::new()));
        let (inner, book) = (Arc::clone(&tier), Arc::clone(&found));
        let listener: Arc<dyn Listener> = Arc::new(move |event: &Event| {
            if let Event::Notice(Notice { news: News::Filled { .. }, .. }) = event {
                book.lock().unwrap().push(inner.lookup(&key(1), NEVER).unwrap().unwrap().bytes);
                inner.invalidate(&key(1), ME, NEVER).unwrap(); // told after this, not within it
                assert_eq!(inner.lookup(&key(1), NEVER), Ok(None));
            }
        });
        tier.listen(Arc::downgrade(&listener));
        let ear = Ear::at(&tier);
        ear.heard();
        tier.acquire(&key(1), lease(1, 100), None, NEVER).unwrap();
        tier.commit(&key(1), entry(1, b"a"), ME, NEVER).unwrap();
        assert_eq!(*found.lock().unwrap(), [b"a"]);
        let k = key(1).fingerprint();
        let filled = News::Filled { key: k, version: token(1), envelope: None };
        assert_eq!(ear.news(), [filled, News::Invalidated { key: k }]);
    }

    #[test]
    fn a_listener_that_panics_wedges_nothing() {
        let tier = Memory::manual();
        let bad: Arc<dyn Listener> = Arc::new(|event: &Event| {
            assert_eq!(*event, Event::Up, "does not like this");
        });
        tier.listen(Arc::downgrade(&bad));
        let ear = Ear::at(&tier);
        ear.heard();
        let put = || tier.put(&key(1), entry(1, b"a"), ME, NEVER);
        assert!(catch_unwind(AssertUnwindSafe(put)).is_err());
        drop(bad);
        tier.invalidate(&key(1), ME, NEVER).unwrap();
        let k = key(1).fingerprint();
        let put = News::Put { key: k, version: token(1), envelope: None };
        assert_eq!(ear.news(), [put, News::Invalidated { key: k }]);
    }

    #[test]
    fn a_dropped_listener_hears_nothing_and_is_forgotten() {
        let tier = Memory::manual();
        let ear = Ear::at(&tier);
        let heard = Arc::clone(&ear.heard);
        drop(ear);
        tier.invalidate(&key(1), ME, NEVER).unwrap();
        assert_eq!(*heard.lock().unwrap(), [Event::Up]);
        assert_eq!(tier.with_link(|link| link.listeners.len()), 0);
        assert!(tier.peer().store.state.lock().news.is_empty());
    }

    // Trouble.

    #[test]
    fn a_failed_request_has_no_effect_and_a_failed_reply_has() {
        let tier = Memory::manual();
        let ear = Ear::at(&tier);
        ear.heard();
        let lost = TierError::Garbled("half an answer".into());
        tier.acquire(&key(1), lease(1, 100), None, NEVER).unwrap();
        tier.fail_next(1, Op::Commit, Moment::Request, lost.clone());
        tier.fail_next(1, Op::Commit, Moment::Reply, lost.clone());

        assert_eq!(tier.commit(&key(1), entry(1, b"a"), ME, NEVER), Err(lost.clone()));
        assert_eq!((tier.values(), tier.leases(), ear.heard().len()), (0, 1, 0));
        assert_eq!(tier.commit(&key(1), entry(1, b"a"), ME, NEVER), Err(lost));
        assert_eq!((tier.values(), tier.leases(), ear.heard().len()), (1, 0, 1));

        let own = Committed::Superseded(stored(b"a", 60_000));
        assert_eq!(tier.commit(&key(1), entry(1, b"a"), ME, NEVER), Ok(own));
    }

    /// Every call, with its name.
    fn every_call(tier: &Memory) -> Vec<(Op, Option<TierError>)> {
        let (k, t) = (key(1), Table::new("t"));
        vec![
            (Op::Lookup, tier.lookup(&k, NEVER).err()),
            (Op::Acquire, tier.acquire(&k, lease(1, 100), None, NEVER).err()),
            (Op::Commit, tier.commit(&k, entry(1, b"a"), ME, NEVER).err()),
            (Op::Renew, tier.renew(&k, lease(1, 100), NEVER).err()),
            (Op::Release, tier.release(&k, token(1), Reaction::BackOff, ME, NEVER).err()),
            (Op::Invalidate, tier.invalidate(&k, ME, NEVER).err()),
            (Op::Put, tier.put(&k, entry(1, b"a"), ME, NEVER).err()),
            (Op::Epoch, tier.epoch(&t, NEVER).err()),
            (Op::InvalidateAll, tier.invalidate_all(&t, Epoch::random(), ME, NEVER).err()),
        ]
    }

    #[test]
    fn each_call_fails_when_told_and_only_that_one() {
        let full = TierError::Refused { class: Refusal::OutOfMemory, text: "OOM".into() };
        for &failing in Op::ALL {
            let tier = Memory::manual();
            tier.fail(failing, Moment::Request, full.clone());
            for round in 1..=2 {
                for (op, error) in every_call(&tier) {
                    assert_eq!(error.as_ref(), (op == failing).then_some(&full), "{op:?}");
                    assert_eq!(tier.count(op), round, "{op:?}");
                }
            }
            tier.heal();
            assert!(every_call(&tier).iter().all(|(_, error)| error.is_none()));
        }
    }

    #[test]
    fn a_connection_that_is_down_is_alone_in_that() {
        let one = Memory::manual();
        let two = one.peer();
        let ear = Ear::at(&two);
        two.down();
        two.down();
        for (op, error) in every_call(&two) {
            assert!(error.unwrap().is_transport(), "{op:?}");
        }
        assert!(every_call(&one).iter().all(|(_, error)| error.is_none()));
        let late = Ear::at(&two);
        two.up();
        two.up();
        assert!(every_call(&two).iter().all(|(_, error)| error.is_none()));

        assert_eq!(ear.heard()[..3], [Event::Up, Event::Down, Event::Up], "and no notice between");
        assert_eq!(late.heard()[0], Event::Up, "who listens while it is down is told later");
    }

    #[test]
    fn a_restart_leaves_nothing() {
        let tier = Memory::manual();
        tier.put(&key(1), entry(1, b"a"), ME, NEVER).unwrap();
        tier.acquire(&key(2), lease(2, 100), None, NEVER).unwrap();
        tier.down();
        tier.wipe();
        tier.up();
        assert_eq!((tier.values(), tier.leases()), (0, 0));
        assert_eq!(tier.commit(&key(2), entry(2, b"b"), ME, NEVER), Ok(Committed::Refused));
    }

    #[test]
    fn a_value_can_be_lost_alone() {
        let tier = Memory::manual();
        tier.put(&key(1), entry(1, b"a"), ME, NEVER).unwrap();
        tier.put(&key(2), entry(1, b"a"), ME, NEVER).unwrap();
        tier.evict(&key(1));
        assert_eq!((tier.stored(&key(1)), tier.values()), (None, 1));
    }

    #[test]
    fn a_gate_holds_calls_until_it_is_released() {
        let tier = Memory::manual();
        let gate = tier.hold(Op::Acquire, Moment::Request);
        assert_eq!(gate.arrived(), 0);
        assert!(!gate.wait_for(1, Duration::ZERO));
        thread::scope(|s| {
            let calls = [1, 2].map(|byte| {
                let tier = &tier;
                s.spawn(move || tier.acquire(&key(1), lease(byte, 100), None, NEVER).unwrap())
            });
            assert!(gate.wait_for(2, PATIENCE));
            assert_eq!(tier.lease(&key(1)), None, "nothing is done yet");
            assert_eq!(tier.peer().acquire(&key(2), lease(9, 100), None, NEVER), Ok(Acquired::Won));
            gate.release();
            let won = calls.map(|call| call.join().unwrap() == Acquired::Won);
            assert_eq!(won.iter().filter(|won| **won).count(), 1);
        });
    }

    #[test]
    fn a_gate_at_the_reply_lets_the_effect_pass() {
        let tier = Memory::manual();
        let ear = Ear::at(&tier);
        ear.heard();
        let gate = tier.hold(Op::Put, Moment::Reply);
        thread::scope(|s| {
            let put = s.spawn(|| tier.put(&key(1), entry(1, b"a"), ME, NEVER));
            assert!(gate.wait_for(1, PATIENCE));
            assert_eq!(tier.stored(&key(1)).unwrap().bytes, b"a");
            assert_eq!(ear.news().len(), 1);
            drop(gate);
            assert_eq!(put.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn a_held_call_ends_at_its_deadline() {
        let tier = Memory::manual();
        let gate = tier.hold(Op::Put, Moment::Request);
        let error = tier.put(&key(1), entry(1, b"a"), ME, Deadline::after(ms(20))).unwrap_err();
        assert!(matches!(error, TierError::TooSlow { waited } if waited >= ms(20)), "{error:?}");
        assert_eq!((gate.arrived(), tier.values()), (1, 0));
    }

    #[test]
    fn a_call_without_time_is_not_sent() {
        let tier = Memory::manual();
        let error = tier.lookup(&key(1), Deadline::after(Duration::ZERO)).unwrap_err();
        assert!(error.is_transport());
        assert_eq!(tier.count(Op::Lookup), 0);
    }

    #[test]
    fn a_connection_that_breaks_fails_the_calls_that_are_held() {
        let tier = Memory::manual();
        let gate = tier.hold(Op::Lookup, Moment::Request);
        thread::scope(|s| {
            let lookup = s.spawn(|| tier.lookup(&key(1), NEVER));
            assert!(gate.wait_for(1, PATIENCE));
            tier.down();
            assert!(matches!(lookup.join().unwrap(), Err(TierError::Unreachable(_))));
        });
    }

    #[test]
    fn a_gate_outlives_its_connection() {
        let tier = Memory::manual();
        let peer = tier.peer();
        let gate = peer.hold(Op::Lookup, Moment::Request);
        drop(peer);
        assert_eq!(gate.arrived(), 0);
        assert_eq!(tier.lookup(&key(1), NEVER), Ok(None));
        assert_eq!(tier.state().links.len(), 1);
    }

    #[test]
    fn debug_tells_counts_and_no_values() {
        let tier = Memory::manual();
        tier.put(&key(1), entry(1, b"secret"), ME, NEVER).unwrap();
        let text =
            format!("{tier:?} {:?} {:?}", tier.stored(&key(1)), tier.hold(Op::Put, Moment::Reply));
        assert!(text.contains("values: 1") && text.contains("len: 6"), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }
}
