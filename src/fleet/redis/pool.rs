//! [`Pool`]: connections that are kept for the next call.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use r2d2::{ManageConnection, NopErrorHandler, PooledConnection};
use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use super::{Command, Dial, Reply, Subscription, Wire};
use crate::deadline::Deadline;
use crate::error::{Refusal, TierError};
use crate::sync::{Arc, Mutex};

/// The threads of a pool, which make connections and end idle ones.
const THREADS: usize = 2;
/// A request of more bytes than this is not made twice: its size may be what broke the connection.
const RETRY_LIMIT: usize = 64 << 10;

/// How a [`Pool`] goes about it.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Connections at most. 16.
    pub(crate) size: u32,
    /// How long a call waits for one of them. 50 ms.
    pub(crate) wait: Duration,
    /// How long a connection may take to be made. 200 ms.
    pub(crate) connect: Duration,
    /// How long a call waits for its replies. 100 ms.
    pub(crate) io: Duration,
    /// After how long unused a connection is closed: sooner than what lies between us and the
    /// server forgets it. 60 s.
    pub(crate) idle: Duration,
    /// After how long a connection is closed. 30 min.
    pub(crate) life: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            size: 16,
            wait: Duration::from_millis(50),
            connect: Duration::from_millis(200),
            io: Duration::from_millis(100),
            idle: Duration::from_secs(60),
            life: Duration::from_secs(30 * 60),
        }
    }
}

/// Connections to whatever a [`Dial`] reaches.
///
/// Callers never make one: they wait for one that is free, and meanwhile a thread of the pool makes
/// another. A server that hangs, or a name that does not resolve, holds up that thread.
pub(crate) struct Pool {
    connections: r2d2::Pool<Manager>,
    shared: Arc<Shared>,
    settings: Settings,
}

/// What the connections of a pool have in common.
#[derive(Debug)]
struct Shared {
    dial: Arc<dyn Dial>,
    connect: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Connections of an earlier one are not used again: one of them was found dead, and so they
    /// all may be, as after a restart of the server.
    generation: u64,
    /// Why the last connection was not made, if it was not.
    trouble: Option<TierError>,
}

impl Pool {
    /// Makes no connection before one is needed.
    pub(crate) fn new(dial: Arc<dyn Dial>, settings: Settings) -> Pool {
        let shared = Arc::new(Shared {
            dial,
            connect: settings.connect,
            state: Mutex::new(State::default()),
        });
        // Our own, for its end: r2d2's default threads stay for half a minute after the pool.
        let threads = ScheduledThreadPool::builder()
            .num_threads(THREADS)
            .thread_name_pattern("onefill-dial-{}")
            .on_drop_behavior(OnPoolDropBehavior::DiscardPendingScheduled)
            .build();
        let connections = r2d2::Pool::builder()
            .max_size(settings.size)
            .min_idle(Some(0))
            .thread_pool(Arc::new(threads))
            // Looks at the generation; sends nothing.
            .test_on_check_out(true)
            .idle_timeout(Some(settings.idle))
            .max_lifetime(Some(settings.life))
            // Calls bring a timeout of their own. This one is the pace, doubled, at which a
            // connection is tried again that could not be made.
            .connection_timeout(Duration::from_secs(2))
            .error_handler(Box::new(NopErrorHandler))
            .build_unchecked(Manager(Arc::clone(&shared)));
        Pool { connections, shared, settings }
    }

    /// Sends the commands over a connection that is free, and returns their replies.
    ///
    /// If it turns out that the server has closed that connection since it was last used, the
    /// commands are sent once more, over one that is made for them: they must be such that this
    /// does no harm.
    ///
    /// # Errors
    ///
    /// As [`Wire::call`]. If there is no connection, the reason why none was made, which may be
    /// that the server has [refused](TierError::Refused); or that all are in use.
    pub(crate) fn call(
        &self,
        commands: &[Command<'_>],
        deadline: Deadline,
    ) -> Result<Vec<Reply>, TierError> {
        self.call_with(commands, deadline, Ok)
    }

    /// The same, and what `read` makes of the replies. If it finds them
    /// [garbled](TierError::Garbled), they are answers to something else, and the connection has
    /// lost its place: it is closed. So are all of them if the server is a replica.
    ///
    /// # Errors
    ///
    /// As [`call`](Pool::call), and `read`'s.
    pub(crate) fn call_with<T>(
        &self,
        commands: &[Command<'_>],
        deadline: Deadline,
        read: impl FnOnce(Vec<Reply>) -> Result<T, TierError>,
    ) -> Result<T, TierError> {
        let began = Instant::now();
        let mut again = false;
        loop {
            let mut slot = self.check_out(began, deadline)?;
            match slot.call(commands, deadline.earlier(self.settings.io)) {
                Err(TierError::Unreachable(_))
                    if !again && slot.made < began && size(commands) <= RETRY_LIMIT =>
                {
                    self.shared.outlive(slot.generation);
                    again = true;
                }
                Err(error) => return Err(error),
                Ok(replies) => {
                    let read = read(replies);
                    match &read {
                        Err(TierError::Garbled(_)) => slot.poisoned = true,
                        // Perhaps another server has taken over, and is who is dialled now.
                        Err(TierError::Refused { class: Refusal::ReadOnly, .. }) => {
                            slot.poisoned = true;
                            self.shared.outlive(slot.generation);
                        }
                        _ => {}
                    }
                    return read;
                }
            }
        }
    }

    /// Makes a connection that has subscribed to `channels`; not one of the pool's.
    ///
    /// # Errors
    ///
    /// As [`Dial::subscribe`].
    pub(crate) fn subscribe(
        &self,
        channels: &[&[u8]],
        deadline: Deadline,
    ) -> Result<Box<dyn Subscription>, TierError> {
        let deadline = deadline.earlier(self.settings.connect);
        self.shared.dial(|dial| dial.subscribe(channels, deadline))
    }

    fn check_out(
        &self,
        began: Instant,
        deadline: Deadline,
    ) -> Result<PooledConnection<Manager>, TierError> {
        if deadline.has_passed() {
            return Err(TierError::TooSlow { waited: began.elapsed() });
        }
        let wait =
            deadline.remaining().map_or(self.settings.wait, |left| left.min(self.settings.wait));
        self.connections.get_timeout(wait).map_err(|_| {
            if let Some(trouble) = self.shared.state.lock().trouble.clone() {
                return trouble;
            }
            if deadline.has_passed() {
                return TierError::TooSlow { waited: began.elapsed() };
            }
            let state = self.connections.state();
            let (size, in_use) = (self.settings.size, state.connections - state.idle_connections);
            TierError::Unreachable(format!(
                "no connection was free within {wait:?}: {in_use} of {size} are in use"
            ))
        })
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("dial", &self.shared.dial).finish_non_exhaustive()
    }
}

fn size(commands: &[Command<'_>]) -> usize {
    commands.iter().flat_map(|command| command.iter()).map(|word| word.len()).sum()
}

impl Shared {
    /// A connection of this generation was found dead.
    fn outlive(&self, generation: u64) {
        let mut state = self.state.lock();
        state.generation = state.generation.max(generation + 1);
    }

    /// Whatever `make` does, there is an end to it that a pool can deal with.
    fn dial<R>(
        &self,
        make: impl FnOnce(&dyn Dial) -> Result<R, TierError>,
    ) -> Result<R, TierError> {
        let dial = &*self.dial;
        match catch_unwind(AssertUnwindSafe(|| make(dial))) {
            Ok(Err(TierError::TooSlow { waited })) => {
                Err(TierError::Unreachable(format!("no connection to {dial:?} after {waited:?}")))
            }
            Ok(result) => result,
            Err(panic) => {
                let what = said(&*panic).unwrap_or("not with a string");
                Err(TierError::Unreachable(format!("connecting to {dial:?} panicked: {what}")))
            }
        }
    }
}

fn said(panic: &(dyn Any + Send)) -> Option<&str> {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(|s| &**s))
}

/// Makes connections for r2d2, and tells it which are of no more use.
#[derive(Debug)]
struct Manager(Arc<Shared>);

impl ManageConnection for Manager {
    type Connection = Slot;
    type Error = TierError;

    /// Never panics: r2d2 would count the connection as one that is being made for ever.
    fn connect(&self) -> Result<Slot, TierError> {
        let generation = self.0.state.lock().generation;
        let deadline = Deadline::after(self.0.connect);
        let dialled = self.0.dial(|dial| dial.dial(deadline));
        self.0.state.lock().trouble = dialled.as_ref().err().cloned();
        Ok(Slot { wire: dialled?, poisoned: false, generation, made: Instant::now() })
    }

    /// Sends nothing: a PING would double the time that a call takes, is refused by servers that
    /// still answer reads, and a stray reply would pass for its own.
    fn is_valid(&self, slot: &mut Slot) -> Result<(), TierError> {
        if slot.generation == self.0.state.lock().generation {
            Ok(())
        } else {
            Err(TierError::Unreachable("another connection of its time was found dead".to_owned()))
        }
    }

    fn has_broken(&self, slot: &mut Slot) -> bool {
        slot.poisoned
    }
}

/// One connection of a pool.
struct Slot {
    wire: Box<dyn Wire>,
    /// Set for as long as nobody knows what comes next: also if a call panics.
    poisoned: bool,
    generation: u64,
    made: Instant,
}

impl Slot {
    fn call(
        &mut self,
        commands: &[Command<'_>],
        deadline: Deadline,
    ) -> Result<Vec<Reply>, TierError> {
        self.poisoned = true;
        let replies = self.wire.call(commands, deadline)?;
        self.poisoned = false;
        Ok(replies)
    }
}
