//! Servers on loopback that do as they are told, for the tests of this module.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::{Client, Server};

/// A server whose connections are each given to `serve`, with their number, in a thread of its own.
pub(super) struct Stub {
    pub(super) port: u16,
    accepted: Arc<AtomicUsize>,
}

impl Stub {
    pub(super) fn new(serve: impl Fn(usize, Caller) + Send + Sync + 'static) -> Stub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (accepted, serve) = (Arc::new(AtomicUsize::new(0)), Arc::new(serve));
        let count = Arc::clone(&accepted);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, serve) = (stream.unwrap(), Arc::clone(&serve));
                stream.set_nodelay(true).unwrap();
                let number = count.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || serve(number, Caller(stream)));
            }
        });
        Stub { port, accepted }
    }

    /// Answers every request with the same bytes.
    pub(super) fn saying(answer: &'static [u8]) -> Stub {
        Stub::new(move |_, mut caller| while caller.hear() && caller.say(answer) {})
    }

    pub(super) fn server(&self) -> Server {
        Server::tcp("127.0.0.1", self.port)
    }

    /// How many connections there were.
    pub(super) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// Whoever has connected to a [`Stub`].
pub(super) struct Caller(pub(super) TcpStream);

impl Caller {
    /// Waits for a request, which is what comes at once; `false` at the end.
    pub(super) fn hear(&mut self) -> bool {
        self.request().is_some()
    }

    /// The same, and what it was.
    pub(super) fn request(&mut self) -> Option<Vec<u8>> {
        let mut request = vec![0; 64 << 10];
        let len = self.0.read(&mut request).unwrap_or(0);
        request.truncate(len);
        (len > 0).then_some(request)
    }

    /// `false` if nobody listens any more.
    pub(super) fn say(&mut self, answer: &[u8]) -> bool {
        self.0.write_all(answer).is_ok()
    }
}

/// Those that this build has.
pub(super) const CLIENTS: &[Client] = &[
    #[cfg(feature = "redis")]
    Client::Redis,
    #[cfg(feature = "r2d2_redis")]
    Client::R2d2Redis,
];
