//! An address that swallows connections while they are being made.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, listen, socket};

use super::patience::PATIENCE;

/// A port of the loopback as behind a firewall that drops what comes: whoever connects waits until
/// its own time is up.
#[derive(Debug)]
pub(crate) struct Unreachable {
    address: SocketAddr,
    // Nobody accepts these, and there is no room in the queue for another one.
    listener: TcpListener,
    queue: Vec<TcpStream>,
}

impl Unreachable {
    #[track_caller]
    pub(crate) fn new() -> Unreachable {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port is free");
        listen(&socket, 0).expect("it is bound");
        let listener = TcpListener::from(socket);
        let address = listener.local_addr().expect("it has an address");
        let mut unreachable = Unreachable { address, listener, queue: Vec::new() };
        let began = Instant::now();
        while let Ok(queued) = TcpStream::connect_timeout(&address, Duration::from_millis(50)) {
            assert!(began.elapsed() < PATIENCE, "the queue does not become full");
            unreachable.queue.push(queued);
        }
        unreachable
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }
}
