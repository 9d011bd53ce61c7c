//! [`Lead`]: the duty to land a flight.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

use crate::error::{Error, said};
use crate::sync::{Arc, Handle};

use super::waits::{self, Driven};
use super::{Boarding, FailurePolicy, Flight, Group, Outcome};

/// The duty to land a flight: its holder is the one caller who loads the key.
///
/// Made by [`Group::join`]. Everyone else who asks for the key waits for what becomes of this
/// guard: [`land`](Lead::land) it with a result, or let [`run`](Lead::run) call a loader. A guard
/// dropped without an outcome *abandons* its flight, and the group's
/// [`on_abandoned`](crate::GroupBuilder::on_abandoned) policy says what the followers do: by
/// default one of them leads next.
///
/// A guard stays on the thread that got it (it is not `Send`): the group knows which thread is
/// loading what, and refuses waits that could never end. A guard that is leaked with
/// [`mem::forget`](std::mem::forget) leaves its flight up for ever.
///
/// ```compile_fail,E0277
/// # use onefill::{Deadline, Group, Join};
/// # let group: Group<u64, u64, String> = Group::new();
/// # let Ok(Join::Lead(lead)) = group.join(&1, Deadline::NEVER) else { unreachable!() };
/// std::thread::scope(|s| {
///     s.spawn(move || lead.land(Ok(1)));
/// });
/// ```
///
/// # Example
///
/// ```
/// use onefill::{Deadline, Group, Join};
///
/// let group: Group<u64, String, std::io::Error> = Group::new();
/// let page = match group.join(&7, Deadline::NEVER)? {
///     Join::Landed(page) => page,                          // somebody else's load
///     Join::Lead(lead) => lead.land(Ok("page seven".into()))?,
/// };
/// assert_eq!(page, "page seven");
/// # Ok::<(), onefill::Error<std::io::Error>>(())
/// ```
#[must_use = "dropping it abandons the flight"]
pub struct Lead<'g, K, V, E> {
    pub(super) group: &'g Group<K, V, E>,
    pub(super) boarding: Boarding,
    /// What those have of the flight who share it, if the holder knows of any: it has followed
    /// itself, it has made a ticket, or the flight is boarded no more.
    pub(super) flight: Option<Handle<Flight<V, E>>>,
    /// Whether the flight has an outcome; if not by the time of the drop, it is abandoned.
    over: bool,
    /// The registry's copy of the key, once it is out of there. Dropped with the guard, so after
    /// the landing.
    retired: Option<K>,
    /// The thread that got the guard is the thread that drives the flight.
    _stays_here: PhantomData<*const ()>,
}

impl<'g, K, V, E> Lead<'g, K, V, E> {
    /// Of a flight that the caller has boarded just now.
    #[inline]
    pub(super) fn first(group: &'g Group<K, V, E>, boarding: Boarding) -> Self {
        let lead = Lead {
            group,
            boarding,
            flight: None,
            over: false,
            retired: None,
            _stays_here: PhantomData,
        };
        waits::begin_driving(lead.driven());
        lead
    }

    /// Of a flight that the caller has come to by waiting.
    pub(super) fn next(group: &'g Group<K, V, E>, flight: Handle<Flight<V, E>>) -> Self {
        // When it was boarded says nothing of when its load began.
        let mut lead = Lead::first(group, Boarding { at: None, ..flight.boarding });
        lead.flight = Some(flight);
        lead
    }

    fn driven(&self) -> Driven {
        let Boarding { hash, number, .. } = self.boarding;
        Driven { group: self.group.address(), hash, number }
    }

    /// Calls `loader` on this thread and lands the flight with what becomes of it.
    ///
    /// | the loader | this caller | those who wait |
    /// |---|---|---|
    /// | returns a value | gets it | get clones of it |
    /// | returns an error | gets it | share it, or go on without it: [`FailurePolicy`] |
    /// | panics | the panic goes on | get [`Error::Panicked`] at once |
    /// | asks for its own key | gets [`Error::WouldDeadlock`] in there | wait on |
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] with the loader's error.
    ///
    /// # Panics
    ///
    /// If the loader does; the payload is the loader's.
    ///
    /// # Example
    ///
    /// ```
    /// use onefill::{Deadline, Group, Join};
    ///
    /// let group: Group<&str, u64, std::num::ParseIntError> = Group::new();
    /// if let Join::Lead(lead) = group.join(&"answer", Deadline::NEVER)? {
    ///     assert_eq!(lead.run(|| "42".parse())?, 42);
    /// }
    /// # Ok::<(), onefill::Error<std::num::ParseIntError>>(())
    /// ```
    pub fn run(mut self, loader: impl FnOnce() -> Result<V, E>) -> Result<V, Error<E>>
    where
        V: Clone,
    {
        // The four ends of a loader:
        // - a value: published to those who wait, if any do.
        // - an error: the same, by policy.
        // - a panic: published, and let go on.
        // - it asks for its own key: `Flight::follow` sees that this thread drives the flight.
        self.sharing_panics(|lead| {
            let result = loader();
            lead.land_storing(result, |_| ())
        })
    }

    /// Does work of the holder's that runs code of the user's. A panic of it goes on, and is what those
    /// who wait get: if the flight were given up, each of them would do the same work, and a thread
    /// that is handed the flight whenever it is given up would never be done.
    ///
    /// Caught here, whatever of the work it comes from. The bookkeeping is not done while unwinding,
    /// where a second panic, from a Drop of the user's, would abort the process.
    #[inline]
    pub(crate) fn sharing_panics<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        match catch_unwind(AssertUnwindSafe(|| work(self))) {
            Ok(done) => done,
            Err(payload) => {
                if !self.over {
                    self.finish(Outcome::Panicked(said(payload.as_ref()).map(Arc::from)));
                }
                drop(self.retired.take());
                resume_unwind(payload)
            }
        }
    }

    /// Lands the flight with `result`.
    ///
    /// The value goes to everyone who waits; if nobody does it is handed back without being
    /// cloned. An error is shared or not by the group's policy, and forgotten either way.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] with the error that was passed in.
    ///
    /// # Example
    ///
    /// ```
    /// use onefill::{Deadline, Group, Join};
    ///
    /// let group: Group<u64, u64, &str> = Group::new();
    /// let Ok(Join::Lead(lead)) = group.join(&1, Deadline::NEVER) else { unreachable!() };
    /// assert_eq!(lead.land(Err("no such row")).unwrap_err().failure(), Some(&"no such row"));
    ///
    /// // A failure is not remembered.
    /// assert_eq!(group.run(&1, || Ok(11)).unwrap(), 11);
    /// ```
    pub fn land(mut self, result: Result<V, E>) -> Result<V, Error<E>>
    where
        V: Clone,
    {
        self.land_storing(result, |_| ())
    }

    /// [`land`](Lead::land), with `store` called on the value under the registry's lock, if the
    /// flight is the boarded one still, before anyone gets to see the value. To be called once.
    #[inline]
    pub(crate) fn land_storing(
        &mut self,
        result: Result<V, E>,
        store: impl FnOnce(&V),
    ) -> Result<V, Error<E>>
    where
        V: Clone,
    {
        match result {
            Ok(value) => {
                let retired = self.retire(|| store(&value));
                // Nobody is waiting, so nobody else wants it.
                if self.is_alone() {
                    self.close(retired);
                    return Ok(value);
                }
                self.publish(Outcome::Value(value));
                self.close(retired);
                match self.flight.as_ref().and_then(|flight| flight.outcome()) {
                    Some(Outcome::Value(value)) => Ok(value.clone()),
                    _ => unreachable!("the flight has just landed with a value"),
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                self.end(self.group.settings.on_failure, || Outcome::Failed(Arc::clone(&error)));
                Err(Error::Failed(error))
            }
        }
    }

    /// Ends the flight without a value, as `policy` says.
    fn end(&mut self, policy: FailurePolicy, shared: impl FnOnce() -> Outcome<V, E>) {
        match policy {
            FailurePolicy::Share => self.finish(shared()),
            FailurePolicy::HandOver => self.hand_over(),
            FailurePolicy::RetryEach => self.finish(Outcome::Disbanded),
        }
    }

    /// Retires the flight, then lands it.
    fn finish(&mut self, outcome: Outcome<V, E>) {
        let retired = self.retire(|| ());
        if !self.is_alone() {
            self.publish(outcome);
        }
        self.close(retired);
    }

    /// Takes the flight out of the registry, the first step of a landing, with what is to be stored
    /// in the same step.
    ///
    /// The flight lands whatever user code does here: `store` compares keys. What panics of it goes on
    /// when the followers have been served.
    fn retire(&mut self, store: impl FnOnce()) -> thread::Result<Option<K>> {
        self.over = true;
        let Lead { group, boarding, flight, .. } = self;
        catch_unwind(AssertUnwindSafe(|| group.registry.retire(boarding, flight, store)))
    }

    /// Whether a retired flight is of no interest to anyone else: once it is not boarded nobody can
    /// reach it who does not hold it already. Who holds it may be on the way to its seat, so seats say
    /// nothing (seeded bug: `only_the_seated_wait`).
    fn is_alone(&mut self) -> bool {
        self.flight.as_mut().is_none_or(|flight| Handle::get_mut(flight).is_some())
    }

    fn publish(&self, outcome: Outcome<V, E>) {
        if let Some(flight) = &self.flight {
            flight.land(outcome);
        }
    }

    /// The last step of a landing. What the key's, the value's and the store's code asks for from here
    /// on, it asks for when this load is over.
    fn close(&mut self, retired: thread::Result<Option<K>>) {
        self.driven_no_more();
        match retired {
            Ok(key) => self.retired = key,
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Lets a follower lead the flight in this caller's place. If there is none the flight ends:
    /// whoever comes to it in this very moment is sent back to the registry (seeded bug:
    /// `hand_over_to_nobody`). So are the followers of a flight that was forgotten or replaced: a
    /// successor would load beside whoever leads the key by now (seeded bug:
    /// `hand_over_what_was_forgotten`).
    pub(super) fn hand_over(&mut self) {
        self.over = true;
        let hand_over = |flight: Option<&Flight<V, E>>| flight.is_some_and(Flight::hand_over);
        if !self.group.registry.while_boarded(&self.boarding, hand_over) {
            self.finish(Outcome::Disbanded);
        }
        self.driven_no_more();
    }

    /// This thread does not drive the flight any more: it has landed, or another thread does.
    pub(super) fn driven_no_more(&mut self) {
        self.over = true;
        waits::end_driving(self.driven());
    }
}

impl<K, V, E> Drop for Lead<'_, K, V, E> {
    fn drop(&mut self) {
        if !self.over {
            self.end(self.group.settings.on_abandoned, || Outcome::Abandoned);
        }
    }
}

impl<K, V, E> fmt::Debug for Lead<'_, K, V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lead").finish_non_exhaustive()
    }
}
