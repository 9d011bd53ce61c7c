//! [`Stream`]: bytes to and from a server, none of them waited for after a deadline.
//!
//! A timeout that a socket has is one of each read. A server that sends a byte now and then, each
//! of them in time, would be waited for as long as it likes; so each read is given only what is left
//! until the deadline.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
#[cfg(unix)]
use std::path::Path;
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::error::TierError;

/// A deadline, and since when it has been waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) deadline: Deadline,
    began: Instant,
}

impl Budget {
    pub(super) fn new(deadline: Deadline) -> Budget {
        Budget { deadline, began: Instant::now() }
    }

    /// What an error of a socket comes to.
    pub(super) fn failed(&self, peer: &str, error: &io::Error) -> TierError {
        if is_deadline(error) {
            self.passed()
        } else {
            TierError::Unreachable(format!("{peer}: {error}"))
        }
    }

    pub(super) fn passed(&self) -> TierError {
        TierError::TooSlow { waited: self.began.elapsed() }
    }
}

/// Whether our own deadline has passed, rather than the system's patience with a peer.
pub(super) fn is_deadline(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none()
}

/// A connected socket. Its reads and writes end by [`deadline`](Raw::deadline), with an error that
/// [`is_deadline`].
#[derive(Debug)]
pub(super) struct Raw {
    socket: Socket,
    deadline: Deadline,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Raw {
    /// To the first address of `host` that answers, each of them having its share of the time. How
    /// long the name takes to resolve, the system decides.
    pub(super) fn tcp(host: &str, port: u16, deadline: Deadline) -> io::Result<Raw> {
        if deadline.has_passed() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let addresses: Vec<_> = (host, port).to_socket_addrs()?.collect();
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for (tried, address) in addresses.iter().enumerate() {
            let connected = match deadline.remaining() {
                None => TcpStream::connect(address),
                Some(Duration::ZERO) => return Err(io::ErrorKind::TimedOut.into()),
                Some(left) => {
                    let share = left / (addresses.len() - tried) as u32;
                    TcpStream::connect_timeout(address, share.max(Duration::from_micros(1)))
                }
            };
            match connected {
                Ok(socket) => {
                    // A command is one write, and is not to wait for the answer to another.
                    socket.set_nodelay(true)?;
                    return Ok(Raw { socket: Socket::Tcp(socket), deadline });
                }
                Err(error) => last = error,
            }
        }
        // The system's own wait for a connection is longer than any of ours.
        if deadline.has_passed() { Err(io::ErrorKind::TimedOut.into()) } else { Err(last) }
    }

    /// To a socket in the file system. Nothing bounds how long a server takes that has a queue of
    /// connections to accept; most have none.
    #[cfg(unix)]
    pub(super) fn unix(path: &Path, deadline: Deadline) -> io::Result<Raw> {
        if deadline.has_passed() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Raw { socket: Socket::Unix(UnixStream::connect(path)?), deadline })
    }

    /// What the peer has done since the last read, without waiting for it. Elsewhere than on Linux
    /// nothing can be told for the price of one call of the system.
    fn glance(&self) -> Glance {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            use rustix::io::Errno;
            use rustix::net::{RecvFlags, recv};

            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            let mut byte = [0];
            let peeked = match &self.socket {
                Socket::Tcp(socket) => recv(socket, &mut byte[..], flags),
                Socket::Unix(socket) => recv(socket, &mut byte[..], flags),
            };
            match peeked {
                Ok((0, _)) => Glance::HungUp,
                Ok(_) => Glance::Sent,
                Err(Errno::AGAIN | Errno::INTR) => Glance::Quiet,
                Err(_) => Glance::HungUp,
            }
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        Glance::Quiet
    }

    /// What is left, as sockets like it.
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.remaining() {
            Some(Duration::ZERO) => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(left),
        }
    }

    /// Does `io` until it does not end early: a socket's clock is coarser than ours.
    fn bounded<R>(
        &mut self,
        mut io: impl FnMut(&mut Socket, Option<Duration>) -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            let left = self.left()?;
            match io(&mut self.socket, left) {
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => {}
                    io::ErrorKind::TimedOut if error.raw_os_error().is_none() => {}
                    _ => return Err(error),
                },
                done => return done,
            }
        }
    }
}

impl Read for Raw {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.bounded(|socket, left| match socket {
            Socket::Tcp(socket) => {
                socket.set_read_timeout(left)?;
                socket.read(buffer)
            }
            #[cfg(unix)]
            Socket::Unix(socket) => {
                socket.set_read_timeout(left)?;
                socket.read(buffer)
            }
        })
    }
}

impl Write for Raw {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bounded(|socket, left| match socket {
            Socket::Tcp(socket) => {
                socket.set_write_timeout(left)?;
                socket.write(bytes)
            }
            #[cfg(unix)]
            Socket::Unix(socket) => {
                socket.set_write_timeout(left)?;
                socket.write(bytes)
            }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // neither kind of socket has anything to flush
    }
}

/// What a peer has done that nobody asked it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Glance {
    Quiet,
    Sent,
    HungUp,
}

/// A stream of bytes, encrypted or not.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(Raw),
    #[cfg(feature = "tls")]
    Tls(Box<super::tls::Encrypted>),
}

impl Stream {
    /// Until when reads and writes are waited for from now on.
    pub(super) fn set_deadline(&mut self, deadline: Deadline) {
        match self {
            Stream::Plain(raw) => raw.deadline = deadline,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.sock.deadline = deadline,
        }
    }

    /// Whether bytes have come already that no read has returned, as far as that can be told without
    /// asking the system.
    pub(super) fn has_more(&mut self) -> bool {
        match self {
            Stream::Plain(_) => false,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => super::tls::has_more(stream),
        }
    }

    /// What the peer has done since the last read. TLS sends things of its own at any time, so of an
    /// encrypted stream nothing is told.
    pub(super) fn glance(&self) -> Glance {
        match self {
            Stream::Plain(raw) => raw.glance(),
            #[cfg(feature = "tls")]
            Stream::Tls(_) => Glance::Quiet,
        }
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(raw) => raw.read(buffer),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.read(buffer),
        }
    }

    /// Writes all of it, or fails.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Plain(raw) => raw.write_all(bytes),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => {
                stream.write_all(bytes)?;
                stream.flush()
            }
        }
    }
}
