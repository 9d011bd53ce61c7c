//! [`Pool`]: connections that are kept for the next call.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use r2d2::{ManageConnection, NopErrorHandler, PooledConnection};
use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use super::{Command, Dial, Reply, Subscription, Wire, refusal};
use crate::deadline::Deadline;
use crate::error::{Refusal, TierError, said};
use crate::sync::{Arc, Mutex};

/// The threads of a pool, which make connections and end idle ones.
const THREADS: usize = 2;
/// As long as anybody waits.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);
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
    /// lost its place: it is closed.
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
                Ok(replies) => {
                    if replies.iter().any(is_read_only) {
                        // A master until a failover: the next connection may find the new one.
                        self.shared.outlive(slot.generation);
                    }
                    let read = read(replies);
                    slot.poisoned = match &read {
                        Err(TierError::Garbled(_)) => true,
                        // The last that a server says over a connection.
                        Err(TierError::Refused { class: Refusal::Other, text }) => {
                            text.starts_with("ERR Protocol error")
                        }
                        _ => false,
                    };
                    return read;
                }
                Err(error) => return Err(error),
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
        // r2d2 adds it to now.
        let wait = wait.min(LONGEST);
        self.connections.get_timeout(wait).map_err(|_| {
            if let Some(trouble) = self.shared.state.lock().trouble.clone() {
                return trouble;
            }
            if deadline.has_passed() {
                return TierError::TooSlow { waited: began.elapsed() };
            }
            let state = self.connections.state();
            let (size, in_use) = (self.settings.size, state.connections - state.idle_connections);
            TierError::Unreachable(if in_use < size {
                let dial = &self.shared.dial;
                format!("no connection to {dial:?} yet after {wait:?}: one is being made")
            } else {
                format!("no connection was free within {wait:?}: all {size} are in use")
            })
        })
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("dial", &self.shared.dial).finish_non_exhaustive()
    }
}

fn is_read_only(reply: &Reply) -> bool {
    matches!(reply, Reply::Error { code, text } if refusal(code, text) == Refusal::ReadOnly)
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::fleet::redis::stub::Stub;

    const GET: Command<'static> = &[b"GET", b"key"];

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(20))
    }

    /// Patient, so that a busy machine is no failure.
    fn patient() -> Settings {
        let long = Duration::from_secs(10);
        Settings { wait: long, connect: long, io: long, ..Settings::default() }
    }

    fn pool(stub: &Stub, settings: Settings) -> Pool {
        Pool::new(Arc::new(stub.server()), settings)
    }

    /// Calls until it is answered, or for ten seconds.
    fn heals(pool: &Pool) {
        let deadline = Deadline::after(Duration::from_secs(10));
        while let Err(error) = pool.call(&[GET], soon()) {
            assert!(!deadline.has_passed(), "{error}");
        }
    }

    /// Why there is no connection, once it was tried to make one.
    fn reason(pool: &Pool) -> TierError {
        loop {
            match pool.call(&[GET], soon()).unwrap_err() {
                TierError::Unreachable(why) if why.ends_with("one is being made") => {}
                error => return error,
            }
        }
    }

    /// A dial that does as its closure does.
    struct With<F>(F);

    impl<F> fmt::Debug for With<F> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("With")
        }
    }

    impl<F> Dial for With<F>
    where
        F: Fn(Deadline) -> Result<Box<dyn Wire>, TierError> + Send + Sync,
    {
        fn dial(&self, deadline: Deadline) -> Result<Box<dyn Wire>, TierError> {
            (self.0)(deadline)
        }

        fn subscribe(
            &self,
            _: &[&[u8]],
            deadline: Deadline,
        ) -> Result<Box<dyn Subscription>, TierError> {
            (self.0)(deadline).map(|_| unreachable!("no test subscribes to it"))
        }
    }

    #[test]
    fn one_connection_serves_many_calls() {
        let stub = Stub::saying(b":1\r\n");
        let pool = pool(&stub, patient());
        assert_eq!(stub.accepted(), 0);
        for _ in 0..10 {
            assert_eq!(pool.call(&[GET], soon()), Ok(vec![Reply::Int(1)]));
        }
        assert_eq!(stub.accepted(), 1);
    }

    #[test]
    fn a_deadline_that_has_passed_costs_nothing() {
        let stub = Stub::saying(b":1\r\n");
        let pool = pool(&stub, patient());
        let error = pool.call(&[GET], Deadline::at(Instant::now())).unwrap_err();
        assert!(matches!(error, TierError::TooSlow { .. }));
        assert_eq!(stub.accepted(), 0);
    }

    #[test]
    fn a_late_reply_is_never_the_answer_to_another_command() {
        // Each connection is late with its first answer, and then says it together with the next.
        let stub = Stub::new(|number, mut caller| {
            caller.hear();
            if number % 2 == 1 {
                caller.say(b"$3\r\nTWO\r\n");
            } else if caller.hear() {
                caller.say(b"$3\r\nONE\r\n");
            }
        });
        let settings = Settings { io: Duration::from_millis(30), ..patient() };
        let pool = pool(&stub, settings);
        for _ in 0..5 {
            let late = pool.call(&[GET], soon()).unwrap_err();
            assert!(matches!(late, TierError::TooSlow { .. }), "{late}");
            let settings = Settings { io: Duration::from_secs(10), ..pool.settings.clone() };
            let patient = Pool {
                connections: pool.connections.clone(),
                shared: Arc::clone(&pool.shared),
                settings,
            };
            assert_eq!(patient.call(&[GET], soon()), Ok(vec![Reply::Bytes(b"TWO".to_vec())]));
            // That connection hangs up: forget it before the next round.
            let generation = pool.shared.state.lock().generation;
            pool.shared.outlive(generation);
        }
        assert_eq!(stub.accepted(), 10);
    }

    #[test]
    fn after_a_restart_all_idle_connections_are_given_up_at_once() {
        // Those of the first generation hang up when they are told to.
        let (hang_up, hung_up) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
        let flag = Arc::clone(&hang_up);
        let stub = Stub::new(move |number, mut caller| {
            while caller.hear() && caller.say(b":1\r\n") {
                if number < 4 && flag.load(Ordering::SeqCst) {
                    break;
                }
            }
            drop(caller);
            hung_up.0.send(()).unwrap();
        });
        let pool = pool(&stub, patient());
        let mut slots: Vec<_> =
            (0..4).map(|_| pool.check_out(Instant::now(), soon()).unwrap()).collect();
        hang_up.store(true, Ordering::SeqCst);
        for slot in &mut slots {
            slot.call(&[GET], soon()).unwrap();
            hung_up.1.recv().unwrap();
        }
        drop(slots);
        for _ in 0..4 {
            assert_eq!(pool.call(&[GET], soon()), Ok(vec![Reply::Int(1)]));
        }
        assert_eq!(stub.accepted(), 5, "one fresh connection served all that came after");
        assert_eq!(pool.connections.state().connections, 1);
    }

    #[test]
    fn a_server_that_has_become_a_replica_is_not_asked_again() {
        let stub = Stub::new(|number, mut caller| {
            let answer: &[u8] = if number == 0 { b"-READONLY a replica\r\n" } else { b":1\r\n" };
            while caller.hear() && caller.say(answer) {}
        });
        let pool = pool(&stub, patient());
        let replies = pool.call(&[GET], soon()).unwrap();
        assert!(matches!(&replies[..], [Reply::Error { .. }]));
        assert_eq!(pool.call(&[GET], soon()), Ok(vec![Reply::Int(1)]));
    }

    #[test]
    fn an_answer_to_something_else_costs_its_connection() {
        let stub = Stub::saying(b":1\r\n");
        let pool = pool(&stub, patient());
        let garbled = |_| Err::<(), _>(TierError::Garbled("a number".to_owned()));
        pool.call_with(&[GET], soon(), garbled).unwrap_err();
        assert_eq!(pool.connections.state().connections, 0);
    }

    #[test]
    fn what_fails_over_a_fresh_connection_is_not_tried_again() {
        let stub = Stub::new(|_, mut caller| assert!(caller.hear()));
        let pool = pool(&stub, patient());
        let error = pool.call(&[GET], soon()).unwrap_err();
        assert!(matches!(error, TierError::Unreachable(_)));
        assert_eq!(stub.accepted(), 1);
    }

    #[test]
    fn a_request_so_large_that_it_may_be_to_blame_is_not_sent_again() {
        let stub = Stub::new(|_, mut caller| {
            caller.hear();
            caller.say(b":1\r\n");
            caller.hear();
        });
        let pool = pool(&stub, patient());
        pool.call(&[GET], soon()).unwrap();
        let value = vec![0; RETRY_LIMIT + 1];
        pool.call(&[&[b"SET", b"key", &value]], soon()).unwrap_err();
        assert_eq!(stub.accepted(), 1);
    }

    #[test]
    fn after_a_command_that_the_server_could_not_read_its_connection_is_not_used_again() {
        let stub = Stub::new(|nth, mut caller| {
            caller.hear();
            let answers: [&[u8]; 2] = [b"-ERR Protocol error: invalid bulk length\r\n", b":1\r\n"];
            caller.say(answers[nth]);
            caller.hear();
        });
        let pool = pool(&stub, patient());
        let answered = pool.call_with(&[GET], soon(), |replies| match &replies[..] {
            [Reply::Int(number)] => Ok(*number),
            [Reply::Error { code, text }] => Err(crate::fleet::redis::refusal::refused(code, text)),
            other => panic!("{other:?}"),
        });
        assert_eq!(answered.unwrap_err().refusal(), Some(Refusal::Other));
        // Too large to be sent twice.
        let value = vec![0; RETRY_LIMIT + 1];
        assert_eq!(pool.call(&[&[b"SET", b"key", &value]], soon()), Ok(vec![Reply::Int(1)]));
        assert_eq!(stub.accepted(), 2);
    }

    #[test]
    fn a_server_that_hangs_while_a_connection_is_made_does_not_keep_its_slot() {
        let healed = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&healed);
        let stub = Stub::new(move |_, mut caller| {
            while caller.hear() {
                if flag.load(Ordering::SeqCst) {
                    caller.say(b"+OK\r\n");
                }
            }
        });
        let server = stub.server().credentials("app", "secret");
        let connect = Duration::from_millis(60);
        let settings = Settings { size: 1, connect, wait: Duration::from_millis(200), ..patient() };
        let pool = Pool::new(Arc::new(server), settings);
        let error = reason(&pool);
        let TierError::Unreachable(why) = error else { panic!("{error}") };
        let peer = format!("no connection to Server(redis://app@127.0.0.1:{}/0)", stub.port);
        assert!(why.starts_with(&peer), "{why}");
        healed.store(true, Ordering::SeqCst);
        heals(&pool);
    }

    #[test]
    fn a_panic_while_a_connection_is_made_does_not_keep_its_slot() {
        let stub = Stub::saying(b":1\r\n");
        let (server, panics) = (stub.server(), Arc::new(AtomicBool::new(true)));
        let flag = Arc::clone(&panics);
        let dial = With(move |deadline| {
            assert!(!flag.load(Ordering::SeqCst), "no such luck");
            server.dial(deadline)
        });
        let settings = Settings { size: 1, wait: Duration::from_millis(100), ..patient() };
        let pool = Pool::new(Arc::new(dial), settings);
        let why = "connecting to With panicked: no such luck";
        assert_eq!(reason(&pool), TierError::Unreachable(why.to_owned()));
        panics.store(false, Ordering::SeqCst);
        heals(&pool);
    }

    #[test]
    fn a_call_that_panics_takes_its_connection_along() {
        struct Panics;
        impl Wire for Panics {
            fn call(&mut self, _: &[Command<'_>], _: Deadline) -> Result<Vec<Reply>, TierError> {
                panic!("in the middle of a reply")
            }
        }
        let pool = Pool::new(Arc::new(With(|_| Ok(Box::new(Panics) as _))), patient());
        catch_unwind(AssertUnwindSafe(|| pool.call(&[GET], soon()))).unwrap_err();
        assert_eq!(pool.connections.state().connections, 0);
    }

    #[test]
    fn no_connection_is_for_a_reason() {
        let short = || Settings { wait: Duration::from_millis(100), ..patient() };

        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let nobody =
            Pool::new(Arc::new(crate::fleet::redis::Server::tcp("127.0.0.1", port)), short());
        let error = reason(&nobody);
        assert!(error.to_string().contains("Connection refused"), "{error}");

        let stub = Stub::saying(b"-WRONGPASS invalid username-password pair\r\n");
        let server = stub.server().credentials("app", "secret");
        let denied = Pool::new(Arc::new(server), short());
        let error = reason(&denied);
        assert_eq!(error.refusal(), Some(Refusal::Denied));
        assert!(error.to_string().contains("WRONGPASS") && !error.to_string().contains("secret"));

        let stub = Stub::saying(b":1\r\n");
        let full = pool(&stub, Settings { size: 1, ..patient() });
        let held = full.check_out(Instant::now(), soon()).unwrap();
        let full = Pool { settings: Settings { size: 1, ..short() }, ..full };
        let error = full.call(&[GET], soon()).unwrap_err();
        let why = "no connection was free within 100ms: all 1 are in use";
        assert_eq!(error, TierError::Unreachable(why.to_owned()));
        drop(held);
        full.call(&[GET], soon()).unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn no_thread_outlives_its_pool_for_long() {
        let (stub, (made_in, made_by)) = (Stub::saying(b":1\r\n"), mpsc::channel());
        let server = stub.server();
        let made_in = std::sync::Mutex::new(made_in);
        let dial = With(move |deadline| {
            let thread = std::fs::read_link("/proc/thread-self").unwrap();
            made_in.lock().unwrap().send(thread).unwrap();
            server.dial(deadline)
        });
        let pool = Pool::new(Arc::new(dial), patient());
        pool.call(&[GET], soon()).unwrap();
        let thread = std::path::Path::new("/proc").join(made_by.recv().unwrap());
        assert!(thread.exists());
        drop(pool);
        let deadline = Deadline::after(Duration::from_secs(10));
        while thread.exists() {
            assert!(!deadline.has_passed(), "{thread:?} is still there");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_dial_that_hangs_does_not_hold_up_another() {
        let stub = Stub::saying(b":1\r\n");
        let (server, first) = (stub.server(), AtomicBool::new(true));
        let (release, released) = mpsc::channel::<()>();
        let released = std::sync::Mutex::new(released);
        let dial = With(move |deadline| {
            if first.swap(false, Ordering::SeqCst) {
                // As a name that does not resolve.
                let _ = released.lock().unwrap().recv();
            }
            server.dial(deadline)
        });
        let pool = Pool::new(Arc::new(dial), patient());
        thread::scope(|scope| {
            let hung = scope.spawn(|| pool.call(&[GET], soon()));
            pool.call(&[GET], soon()).unwrap();
            hung.join().unwrap().unwrap();
        });
        release.send(()).unwrap();
    }
}
