//! A server that answers what a test says.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

use super::proxy::join;
use super::resp::{self, Resp};

/// A command, as a [`Stub`] has received it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// Of which connection: the first one is 0.
    pub(crate) connection: usize,
    /// Which command on this connection: the first one is 0.
    pub(crate) nth: usize,
    /// The command's words.
    pub(crate) words: Vec<Vec<u8>>,
}

impl Call {
    /// The command's name in upper case.
    pub(crate) fn name(&self) -> String {
        self.text(0).to_uppercase()
    }

    /// A word, empty if there is none at this place.
    pub(crate) fn text(&self, place: usize) -> String {
        let word = self.words.get(place).map(Vec::as_slice);
        String::from_utf8_lossy(word.unwrap_or_default()).into_owned()
    }
}

/// What a [`Stub`] does about a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Sends these bytes.
    Reply(Vec<u8>),
    /// Sends these bytes, so many at a time, with a pause after each.
    Drip { reply: Vec<u8>, bytes: usize, every: Duration },
    /// Does something else after a while.
    Later(Duration, Box<Action>),
    /// One after the other.
    All(Vec<Action>),
    /// Closes the connection.
    Close,
    /// Closes the connection in such a way that the client sees a reset.
    Reset,
    /// Swallows this command and all that follow on this connection.
    Hang,
}

impl Action {
    pub(crate) fn reply(reply: &Resp) -> Action {
        Action::Reply(reply.to_bytes())
    }

    pub(crate) fn ok() -> Action {
        Action::reply(&Resp::Simple(String::from("OK")))
    }

    pub(crate) fn nil() -> Action {
        Action::reply(&Resp::Nil)
    }

    pub(crate) fn integer(number: i64) -> Action {
        Action::reply(&Resp::Integer(number))
    }

    pub(crate) fn bulk(bytes: impl Into<Vec<u8>>) -> Action {
        Action::reply(&Resp::Bulk(bytes.into()))
    }

    /// An error, as `LOADING Redis is loading the dataset in memory`.
    pub(crate) fn error(text: &str) -> Action {
        Action::reply(&Resp::Error(text.to_string()))
    }

    pub(crate) fn after(self, time: Duration) -> Action {
        Action::Later(time, Box::new(self))
    }
}

type Script = Box<dyn Fn(&Call) -> Action + Send + Sync>;

type Greeting = Box<dyn Fn(usize) -> Option<Action> + Send + Sync>;

/// A scripted server on the loopback. Dropped, it closes all connections, and nobody listens.
#[derive(Debug)]
pub(crate) struct Stub {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    script: Script,
    greeting: Greeting,
    state: Mutex<State>,
    stopped: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    calls: Vec<Call>,
    opened: usize,
    open: BTreeMap<usize, Arc<TcpStream>>,
    threads: Vec<JoinHandle<()>>,
}

/// Whether a connection goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    On,
    Dumb,
    Over,
}

impl Stub {
    /// A server that does what `script` says about each command. Each connection has a thread of
    /// its own, so the script may block.
    pub(crate) fn new(script: impl Fn(&Call) -> Action + Send + Sync + 'static) -> Stub {
        Stub::greeting(|_| None, script)
    }

    /// One that does something to a new connection before any command, as to say that it has too
    /// many of them.
    #[track_caller]
    pub(crate) fn greeting(
        greeting: impl Fn(usize) -> Option<Action> + Send + Sync + 'static,
        script: impl Fn(&Call) -> Action + Send + Sync + 'static,
    ) -> Stub {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let shared = Arc::new(Shared {
            script: Box::new(script),
            greeting: Box::new(greeting),
            state: Mutex::default(),
            stopped: Condvar::new(),
        });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept(&listener)
        });
        Stub { shared, address, acceptor: Some(acceptor) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// The commands so far, in the order of their arrival.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.shared.state().calls.clone()
    }

    /// How many commands of this name there were.
    pub(crate) fn count(&self, name: &str) -> usize {
        let name = name.to_uppercase();
        self.shared.state().calls.iter().filter(|call| call.name() == name).count()
    }

    /// How many connections were opened since the beginning.
    pub(crate) fn opened(&self) -> usize {
        self.shared.state().opened
    }

    /// How many of them have been closed, by either end.
    pub(crate) fn closed(&self) -> usize {
        let state = self.shared.state();
        state.opened - state.open.len()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state();
            state.stopped = true;
            for socket in state.open.values() {
                // The other end may have done it.
                let _ = socket.shutdown(Shutdown::Both);
            }
            self.shared.stopped.notify_all();
        }
        // Wakes the acceptor.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let Some(acceptor) = self.acceptor.take() {
            join(acceptor);
        }
        let threads = std::mem::take(&mut self.shared.state().threads);
        threads.into_iter().for_each(join);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: &Arc<Shared>, listener: &TcpListener) {
        while let Ok((socket, _)) = listener.accept() {
            let mut state = self.state();
            if state.stopped {
                return;
            }
            let _ = socket.set_nodelay(true);
            let socket = Arc::new(socket);
            let number = state.opened;
            state.opened += 1;
            state.open.insert(number, Arc::clone(&socket));
            state.threads.retain(|thread| !thread.is_finished());
            let shared = Arc::clone(self);
            state.threads.push(thread::spawn(move || {
                // Either way, the connection has come to its end.
                let _ = shared.serve(number, &socket);
                // Closed in the moment in which it is counted as such.
                let mut state = shared.state();
                state.open.remove(&number);
                drop(socket);
            }));
        }
    }

    fn serve(&self, connection: usize, mut socket: &TcpStream) -> io::Result<()> {
        let mut course = Course::On;
        if let Some(action) = (self.greeting)(connection) {
            course = self.act(socket, action)?;
        }
        let (mut unread, mut nth) = (Vec::new(), 0);
        let mut chunk = [0; 16 * 1024];
        while course != Course::Over {
            let count = socket.read(&mut chunk)?;
            if count == 0 {
                return Ok(());
            }
            unread.extend(&chunk[..count]);
            while let Some((words, length)) = resp::command(&unread)? {
                unread.drain(..length);
                let call = Call { connection, nth, words };
                nth += 1;
                self.state().calls.push(call.clone());
                if course == Course::On {
                    course = self.act(socket, (self.script)(&call))?;
                }
                if course == Course::Over {
                    break;
                }
            }
        }
        Ok(())
    }

    fn act(&self, mut socket: &TcpStream, action: Action) -> io::Result<Course> {
        match action {
            Action::Reply(bytes) => socket.write_all(&bytes)?,
            Action::Drip { reply, bytes, every } => {
                for drop in reply.chunks(bytes.max(1)) {
                    socket.write_all(drop)?;
                    self.pause(every)?;
                }
            }
            Action::Later(time, action) => {
                self.pause(time)?;
                return self.act(socket, *action);
            }
            Action::All(actions) => {
                for action in actions {
                    match self.act(socket, action)? {
                        Course::On => {}
                        end => return Ok(end),
                    }
                }
            }
            Action::Close => return Ok(Course::Over),
            Action::Reset => {
                set_socket_linger(socket, Some(Duration::ZERO))?;
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            Action::Hang => return Ok(Course::Dumb),
        }
        Ok(Course::On)
    }

    /// Lets the time pass, unless all is over.
    fn pause(&self, time: Duration) -> io::Result<()> {
        let began = Instant::now();
        let mut state = self.state();
        while !state.stopped {
            let left = time.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            let waited = self.stopped.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Err(io::ErrorKind::ConnectionAborted.into())
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.state())
    }
}
