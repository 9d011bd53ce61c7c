//! A way to a server on which things go wrong when a test says so.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::patience::PATIENCE;
use super::{ports, resp};

/// What happens on all connections, until the next mode is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Everything goes through.
    Pass,
    /// Connections are accepted, and whatever arrives on them is swallowed. A connection that has
    /// lost anything stays dumb, whatever comes after.
    BlackHole,
    /// Nobody listens. Open connections stay, and everything goes through on them.
    Refuse,
    /// Connections are accepted and closed at once. Open ones are as with `Refuse`.
    HangUp,
    /// Commands are held back until the next mode. Replies go through.
    Freeze,
    /// Replies come so many bytes at a time, with a pause after each.
    Drip { bytes: usize, every: Duration },
    /// Each reply comes so much later.
    Delay(Duration),
}

/// What happens to one command or its reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The command does not reach the server, and the connection is closed.
    Unsent,
    /// The command does not reach the server; this is its reply.
    Answer(Vec<u8>),
    /// So many bytes of the reply, then the connection is closed. With none, the answer of a
    /// command that was executed is lost.
    Cut(usize),
    /// So many bytes of the reply, then nothing on this connection any more.
    Stall(usize),
    /// So many bytes of the reply, then the rest after this time.
    Pause(usize, Duration),
    /// Foreign bytes before the reply.
    Before(Vec<u8>),
    /// Foreign bytes after the reply.
    After(Vec<u8>),
    /// Foreign bytes in place of the reply.
    Replace(Vec<u8>),
}

type Command = [Vec<u8>];

type Choice = Box<dyn Fn(&Command) -> bool + Send>;

/// Chooses each command.
pub(crate) fn any() -> impl Fn(&Command) -> bool + Send + 'static {
    |_| true
}

/// Chooses commands by their name, whatever its case.
pub(crate) fn named(name: &str) -> impl Fn(&Command) -> bool + Send + 'static + use<> {
    let name = name.as_bytes().to_vec();
    move |command| command.first().is_some_and(|word| word.eq_ignore_ascii_case(&name))
}

/// A TCP proxy on the loopback. Dropped, it closes all that it has opened.
///
/// It takes what it sees for commands and replies in turn, so a fault meets exactly the reply to
/// its command. Where it cannot do so, as with TLS or after a subscription, there are only modes,
/// [`Proxy::inject`] and [`Proxy::cut`].
#[derive(Debug)]
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    /// Counts the modes.
    turn: u64,
    stopped: bool,
    listening: bool,
    rules: Vec<Rule>,
    links: Vec<Arc<Link>>,
    opened: usize,
    commands: Vec<Vec<Vec<u8>>>,
    threads: Vec<JoinHandle<()>>,
}

struct Rule {
    chooses: Choice,
    fault: Fault,
    once: bool,
}

/// A client's connection and the one on its behalf. One thread serves each direction.
#[derive(Debug)]
struct Link {
    client: TcpStream,
    server: Option<TcpStream>,
    closed: AtomicBool,
    /// Nothing goes through any more.
    dumb: AtomicBool,
    /// Replies do not answer commands in turn: their bytes are passed on as they are.
    opaque: AtomicBool,
    /// The faults of the commands that were sent and not answered yet.
    pending: Mutex<VecDeque<Option<Fault>>>,
    answered: Condvar,
}

impl Proxy {
    /// A proxy in front of this address, in [`Mode::Pass`].
    #[track_caller]
    pub(crate) fn new(server: SocketAddr) -> Proxy {
        let began = Instant::now();
        let (address, listener) = loop {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
            // Somebody else may take the port between the draw and this.
            match TcpListener::bind(address) {
                Ok(listener) => break (address, listener),
                Err(error) => assert!(began.elapsed() < PATIENCE, "no port: {error}"),
            }
        };
        let state = State {
            mode: Mode::Pass,
            turn: 0,
            stopped: false,
            listening: true,
            rules: Vec::new(),
            links: Vec::new(),
            opened: 0,
            commands: Vec::new(),
            threads: Vec::new(),
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { server, state, changed });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept(listener, address)
        });
        Proxy { shared, address, acceptor: Some(acceptor) }
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

    /// Sets the mode for all connections, open and to come.
    #[track_caller]
    pub(crate) fn set(&self, mode: Mode) {
        let mut state = self.shared.state();
        state.mode = mode;
        state.turn += 1;
        self.shared.changed.notify_all();
        let listens = mode != Mode::Refuse;
        if state.listening && !listens {
            drop(state);
            self.wake_acceptor();
            state = self.shared.state();
        }
        let began = Instant::now();
        while state.listening != listens {
            assert!(began.elapsed() < PATIENCE, "the proxy does not come to {mode:?}");
            state = self.shared.wait(state, Duration::from_secs(1));
        }
    }

    /// Has this happen to the next command that is chosen. Of several faults that wait for a
    /// command, the one that was set first meets it. A client's introductions on a new connection,
    /// as `CLIENT SETINFO`, are commands, too.
    pub(crate) fn once(&self, chooses: impl Fn(&Command) -> bool + Send + 'static, fault: Fault) {
        self.rule(Box::new(chooses), fault, true);
    }

    /// Has this happen to each command that is chosen, until [`Proxy::heal`].
    pub(crate) fn always(&self, chooses: impl Fn(&Command) -> bool + Send + 'static, fault: Fault) {
        self.rule(Box::new(chooses), fault, false);
    }

    fn rule(&self, chooses: Choice, fault: Fault, once: bool) {
        self.shared.state().rules.push(Rule { chooses, fault, once });
    }

    /// Back to [`Mode::Pass`], and no faults any more.
    #[track_caller]
    pub(crate) fn heal(&self) {
        self.shared.state().rules.clear();
        self.set(Mode::Pass);
    }

    /// Closes all open connections, and says how many those were.
    pub(crate) fn cut(&self) -> usize {
        let state = self.shared.state();
        let open = state.links.iter().filter(|link| link.close()).count();
        self.shared.changed.notify_all();
        open
    }

    /// Sends foreign bytes to the clients of all open connections, now.
    pub(crate) fn inject(&self, bytes: &[u8]) {
        let links = self.shared.state().links.clone();
        for link in links {
            // It may be closing.
            let _ = (&link.client).write_all(bytes);
        }
    }

    /// How many connections were opened since the beginning.
    pub(crate) fn opened(&self) -> usize {
        self.shared.state().opened
    }

    /// How many connections are open.
    pub(crate) fn open(&self) -> usize {
        let state = self.shared.state();
        state.links.iter().filter(|link| !link.closed.load(SeqCst)).count()
    }

    /// The commands that arrived, whatever became of them; those that a black hole swallowed are
    /// not among them.
    pub(crate) fn commands(&self) -> Vec<Vec<Vec<u8>>> {
        self.shared.state().commands.clone()
    }

    /// How often a command of this name arrived.
    pub(crate) fn count(&self, name: &str) -> usize {
        let chosen = named(name);
        self.shared.state().commands.iter().filter(|command| chosen(command)).count()
    }

    /// Counts commands from zero.
    pub(crate) fn forget_commands(&self) {
        self.shared.state().commands.clear();
    }

    fn wake_acceptor(&self) {
        // Refused if it has closed its listener in the meantime.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state().stopped = true;
        self.shared.changed.notify_all();
        self.wake_acceptor();
        if let Some(acceptor) = self.acceptor.take() {
            join(acceptor);
        }
        self.cut();
        let threads = std::mem::take(&mut self.shared.state().threads);
        threads.into_iter().for_each(join);
    }
}

/// Waits for a thread to end, but not for ever: the test has its own verdict to give.
pub(super) fn join(thread: JoinHandle<()>) {
    let began = Instant::now();
    while !thread.is_finished() {
        if began.elapsed() > Duration::from_secs(5) {
            eprintln!("a thread of the harness does not end");
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    if thread.join().is_err() {
        eprintln!("a thread of the harness has panicked");
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn accept(self: &Arc<Shared>, listener: TcpListener, address: SocketAddr) {
        let mut listener = Some(listener);
        loop {
            let mut state = self.state();
            if state.stopped {
                return;
            }
            let listens = state.mode != Mode::Refuse;
            match &listener {
                Some(open) if listens => {
                    drop(state);
                    if let Ok((client, _)) = open.accept() {
                        self.open(client);
                    }
                }
                Some(_) => {
                    listener = None;
                    state.listening = false;
                    self.changed.notify_all();
                }
                None if listens => match TcpListener::bind(address) {
                    Ok(bound) => {
                        listener = Some(bound);
                        state.listening = true;
                        self.changed.notify_all();
                    }
                    // Somebody has it for a moment.
                    Err(_) => drop(self.wait(state, Duration::from_millis(50))),
                },
                None => drop(self.wait(state, Duration::from_secs(1))),
            }
        }
    }

    /// Serves a client, or does to it what the mode says.
    fn open(self: &Arc<Shared>, client: TcpStream) {
        let mut state = self.state();
        // Else it is the one that wakes the acceptor.
        if state.stopped || state.mode == Mode::Refuse {
            return;
        }
        state.opened += 1;
        let mode = state.mode;
        drop(state);
        if mode == Mode::HangUp {
            return;
        }
        let server = match mode {
            Mode::BlackHole => None,
            _ => match TcpStream::connect_timeout(&self.server, Duration::from_secs(1)) {
                Ok(server) => Some(server),
                // Refused here, so closed there.
                Err(_) => return,
            },
        };
        // Pauses are the proxy's to make.
        let _ = client.set_nodelay(true);
        let _ = server.as_ref().map(|server| server.set_nodelay(true));
        let link = Arc::new(Link {
            dumb: AtomicBool::new(server.is_none()),
            client,
            server,
            closed: AtomicBool::new(false),
            opaque: AtomicBool::new(false),
            pending: Mutex::default(),
            answered: Condvar::new(),
        });
        let serve = |direction: fn(&Shared, &Link) -> io::Result<()>| {
            let (shared, link) = (Arc::clone(self), Arc::clone(&link));
            thread::spawn(move || {
                // Either way, the connection has come to its end.
                let _ = direction(&shared, &link);
                link.close();
                shared.state().links.retain(|other| !other.closed.load(SeqCst));
                shared.changed.notify_all();
            })
        };
        let mut state = self.state();
        state.threads.retain(|thread| !thread.is_finished());
        state.links.push(Arc::clone(&link));
        state.threads.push(serve(Shared::commands));
        if link.server.is_some() {
            state.threads.push(serve(Shared::replies));
        }
    }

    /// From the client to the server.
    fn commands(&self, link: &Link) -> io::Result<()> {
        let (mut unread, mut foreign) = (Vec::new(), false);
        let mut chunk = [0; 16 * 1024];
        loop {
            let count = (&link.client).read(&mut chunk)?;
            self.admit(link)?;
            unread.extend(&chunk[..count]);
            let Some(mut server) = link.server.as_ref().filter(|_| !link.dumb.load(SeqCst)) else {
                if count == 0 {
                    return Ok(());
                }
                unread.clear();
                continue;
            };
            while !foreign && !unread.is_empty() {
                match resp::command(&unread) {
                    Ok(Some((command, length))) => {
                        let rest = unread.split_off(length);
                        self.command(link, server, command, &unread)?;
                        unread = rest;
                    }
                    Ok(None) => break,
                    Err(_) => foreign = true,
                }
            }
            // Also the rest of a client that has gone in the middle of a command.
            if foreign || count == 0 {
                link.opaque.store(true, SeqCst);
                server.write_all(&unread)?;
                unread.clear();
            }
            if count == 0 {
                return Ok(());
            }
        }
    }

    /// Waits while commands are held back, and then finds out whether they are swallowed.
    fn admit(&self, link: &Link) -> io::Result<()> {
        let mut state = self.state();
        while state.mode == Mode::Freeze && !state.stopped && !link.closed.load(SeqCst) {
            state = self.wait(state, Duration::from_secs(1));
        }
        if state.stopped || link.closed.load(SeqCst) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if state.mode == Mode::BlackHole {
            link.dumb.store(true, SeqCst);
        }
        Ok(())
    }

    fn command(
        &self,
        link: &Link,
        mut server: &TcpStream,
        command: Vec<Vec<u8>>,
        bytes: &[u8],
    ) -> io::Result<()> {
        let subscribes = ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR"];
        let subscribes = subscribes.iter().any(|name| named(name)(&command));
        let fault = {
            let mut state = self.state();
            let rule = state.rules.iter().position(|rule| (rule.chooses)(&command));
            state.commands.push(command);
            rule.map(|rule| match state.rules[rule].once {
                true => state.rules.remove(rule).fault,
                false => state.rules[rule].fault.clone(),
            })
        };
        match fault {
            Some(Fault::Unsent) => Err(io::ErrorKind::ConnectionAborted.into()),
            Some(Fault::Answer(answer)) => {
                link.until_answered();
                (&link.client).write_all(&answer)
            }
            fault => {
                if subscribes {
                    link.until_answered();
                    link.opaque.store(true, SeqCst);
                }
                if !link.opaque.load(SeqCst) {
                    link.pending().push_back(fault);
                }
                server.write_all(bytes)
            }
        }
    }

    /// From the server to the client.
    fn replies(&self, link: &Link) -> io::Result<()> {
        let Some(mut server) = link.server.as_ref() else { return Ok(()) };
        let mut unread = Vec::new();
        let mut chunk = [0; 16 * 1024];
        loop {
            let count = server.read(&mut chunk)?;
            if link.dumb.load(SeqCst) {
                if count == 0 {
                    return Ok(());
                }
                continue;
            }
            unread.extend(&chunk[..count]);
            while !unread.is_empty() {
                let length = match link.opaque.load(SeqCst) || count == 0 {
                    true => Ok(Some(unread.len())),
                    false => resp::length(&unread),
                };
                let Some(length) = length.unwrap_or(Some(unread.len())) else { break };
                let rest = unread.split_off(length);
                self.reply(link, &unread)?;
                unread = rest;
            }
            if count == 0 {
                return Ok(());
            }
        }
    }

    fn reply(&self, link: &Link, bytes: &[u8]) -> io::Result<()> {
        let fault = link.pending().front().cloned().flatten();
        match fault {
            None | Some(Fault::Unsent | Fault::Answer(_)) => self.deliver(link, bytes)?,
            Some(Fault::Cut(count)) => {
                self.deliver(link, &bytes[..count.min(bytes.len())])?;
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            Some(Fault::Stall(count)) => {
                self.deliver(link, &bytes[..count.min(bytes.len())])?;
                link.dumb.store(true, SeqCst);
            }
            Some(Fault::Pause(count, time)) => {
                let (first, rest) = bytes.split_at(count.min(bytes.len()));
                self.deliver(link, first)?;
                self.pause(link, time, None)?;
                self.deliver(link, rest)?;
            }
            Some(Fault::Before(foreign)) => self.deliver(link, &[&foreign, bytes].concat())?,
            Some(Fault::After(foreign)) => self.deliver(link, &[bytes, &foreign].concat())?,
            Some(Fault::Replace(foreign)) => self.deliver(link, &foreign)?,
        }
        // Only now: until then, the next command's own reply would overtake it.
        link.pending().pop_front();
        link.answered.notify_all();
        Ok(())
    }

    /// Writes to the client in the way of the mode.
    fn deliver(&self, link: &Link, mut bytes: &[u8]) -> io::Result<()> {
        let mut delayed = false;
        while !bytes.is_empty() && !link.dumb.load(SeqCst) {
            let (mode, turn) = {
                let state = self.state();
                (state.mode, state.turn)
            };
            match mode {
                Mode::BlackHole => link.dumb.store(true, SeqCst),
                Mode::Delay(time) if !delayed => delayed = self.pause(link, time, Some(turn))?,
                Mode::Drip { bytes: count, every } => {
                    let (drop, rest) = bytes.split_at(count.clamp(1, bytes.len()));
                    (&link.client).write_all(drop)?;
                    bytes = rest;
                    self.pause(link, every, Some(turn))?;
                }
                _ => {
                    (&link.client).write_all(bytes)?;
                    bytes = &[];
                }
            }
        }
        Ok(())
    }

    /// Lets the time pass, unless the mode is no longer that of this turn; whether all of it has.
    fn pause(&self, link: &Link, time: Duration, turn: Option<u64>) -> io::Result<bool> {
        let began = Instant::now();
        let mut state = self.state();
        loop {
            if state.stopped || link.closed.load(SeqCst) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            let left = time.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(true);
            }
            if turn.is_some_and(|turn| state.turn != turn) {
                return Ok(false);
            }
            state = self.wait(state, left);
        }
    }
}

impl Link {
    fn pending(&self) -> MutexGuard<'_, VecDeque<Option<Fault>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the client has the replies to all that it has sent before.
    fn until_answered(&self) {
        let mut pending = self.pending();
        while !pending.is_empty() && !self.closed.load(SeqCst) {
            pending = self.answered.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Closes both connections, which wakes the threads that serve them. Whether they were open.
    fn close(&self) -> bool {
        let was_open = !self.closed.swap(true, SeqCst);
        for socket in std::iter::once(&self.client).chain(&self.server) {
            // The other end may have done it.
            let _ = socket.shutdown(Shutdown::Both);
        }
        // Under its lock, else the waiter could miss it.
        drop(self.pending());
        self.answered.notify_all();
        was_open
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, once: {}", self.fault, self.once)
    }
}
