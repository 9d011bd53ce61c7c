//! A plain connection to a server: one command, one reply.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::resp::{self, Resp};

/// How long a server may take for one answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that is closed when it is dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: BufReader<Socket>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connection {
    /// Over TCP to the loopback.
    pub(crate) fn tcp(address: SocketAddr) -> io::Result<Connection> {
        let socket = TcpStream::connect_timeout(&address, TIMEOUT)?;
        socket.set_nodelay(true)?;
        Connection::new(Socket::Tcp(socket))
    }

    /// Through a socket in the file system.
    pub(crate) fn unix(path: &Path) -> io::Result<Connection> {
        Connection::new(Socket::Unix(UnixStream::connect(path)?))
    }

    fn new(socket: Socket) -> io::Result<Connection> {
        let connection = Connection { socket: BufReader::new(socket) };
        connection.set_timeout(TIMEOUT)?;
        Ok(connection)
    }

    /// How long a read or a write may take.
    pub(crate) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self.socket.get_ref() {
            Socket::Tcp(socket) => {
                socket.set_read_timeout(Some(timeout))?;
                socket.set_write_timeout(Some(timeout))
            }
            Socket::Unix(socket) => {
                socket.set_read_timeout(Some(timeout))?;
                socket.set_write_timeout(Some(timeout))
            }
        }
    }

    /// Sends a command and reads its reply. After an error, the connection is of no use.
    pub(crate) fn call<A: AsRef<[u8]>>(&mut self, command: &[A]) -> io::Result<Resp> {
        self.send(&resp::encode(command))?;
        self.receive()
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.get_mut().write_all(bytes)
    }

    /// Reads one reply, or a message that nobody asked for.
    pub(crate) fn receive(&mut self) -> io::Result<Resp> {
        resp::read(&mut self.socket)
    }

    /// Reads bytes as they are: an empty result means that the other end has closed.
    pub(crate) fn receive_bytes(&mut self) -> io::Result<Vec<u8>> {
        let bytes = self.socket.fill_buf()?.to_vec();
        self.socket.consume(bytes.len());
        Ok(bytes)
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.read(buffer),
            Socket::Unix(socket) => socket.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write(bytes),
            Socket::Unix(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
