//! [`Database`]: what all processes load from, and the version that each key has in it.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::{self, JoinHandle};

/// How many keys there are.
pub(crate) const KEYS: u64 = 20;

const READ: u8 = b'r';
const WRITE: u8 = b'w';

/// The source of truth, behind a socket in `directory`. It goes when this is dropped; whoever is
/// connected then is served until he hangs up.
#[derive(Debug)]
pub(crate) struct Database {
    path: PathBuf,
    stopped: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Database {
    pub(crate) fn open(directory: &Path) -> Database {
        let path = path(directory);
        let listener = UnixListener::bind(&path).expect("the directory is the test's own");
        let stopped = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&stopped);
        let acceptor = thread::spawn(move || {
            let versions: Arc<[AtomicU64]> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
            while let Ok((client, _)) = listener.accept() {
                if over.load(SeqCst) {
                    break;
                }
                let versions = Arc::clone(&versions);
                // It ends as its client does.
                thread::spawn(move || serve(client, &versions));
            }
        });
        Database { path, stopped, acceptor: Some(acceptor) }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.stopped.store(true, SeqCst);
        // Wakes the acceptor.
        let _ = UnixStream::connect(&self.path);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn path(directory: &Path) -> PathBuf {
    directory.join("database")
}

/// An error is the client's end.
fn serve(mut client: UnixStream, versions: &[AtomicU64]) -> io::Result<()> {
    loop {
        let mut asked = [0; 2];
        client.read_exact(&mut asked)?;
        let [what, key] = asked;
        let version = &versions[usize::from(key)];
        let version = match what {
            WRITE => version.fetch_add(1, SeqCst) + 1,
            _ => version.load(SeqCst),
        };
        client.write_all(&version.to_be_bytes())?;
    }
}

/// A connection to the database.
#[derive(Debug)]
pub(crate) struct Client(UnixStream);

impl Client {
    pub(crate) fn connect(directory: &Path) -> Client {
        Client(UnixStream::connect(path(directory)).expect("the database is up"))
    }

    /// Which version it has of the key.
    pub(crate) fn read(&mut self, key: u64) -> u64 {
        self.ask(READ, key)
    }

    /// Makes a new version of the key, and says which that is.
    pub(crate) fn write(&mut self, key: u64) -> u64 {
        self.ask(WRITE, key)
    }

    fn ask(&mut self, what: u8, key: u64) -> u64 {
        let key = u8::try_from(key).expect("there are not so many keys");
        let mut version = [0; 8];
        let asked = self.0.write_all(&[what, key]);
        asked.and_then(|()| self.0.read_exact(&mut version)).expect("the database is up");
        u64::from_be_bytes(version)
    }
}
