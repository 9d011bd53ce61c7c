//! [`Server`]: one server, by its address.

use std::fmt;
#[cfg(unix)]
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::connection::Connection;
use super::refusal::refused;
use super::stream::{Budget, Raw, Stream};
use super::{Client, Dial, Reply, Subscription, Wire};
use crate::deadline::Deadline;
use crate::error::{Refusal, TierError};

/// One server, reached over TCP or over a socket in the file system.
///
/// What a connection takes to be made, encryption and credentials included, is bounded by the
/// connect timeout of the fleet. The exceptions, which std has no way to bound: how long the system
/// takes to resolve a name, and how long a socket in the file system takes to accept. Neither is
/// waited for by callers, who go on without a connection.
///
/// ```
/// use onefill::fleet::redis::Server;
///
/// let server = Server::tcp("cache.internal", 6379).credentials("app", "secret").database(2);
/// assert_eq!(format!("{server:?}"), "Server(redis://app@cache.internal:6379/2)");
/// ```
#[derive(Clone)]
pub struct Server {
    endpoint: Endpoint,
    credentials: Option<Credentials>,
    database: u32,
    #[cfg(feature = "tls")]
    tls: Option<super::Tls>,
    client: Client,
}

#[derive(Clone)]
enum Endpoint {
    Tcp {
        host: String,
        port: u16,
    },
    #[cfg(unix)]
    Unix(PathBuf),
}

/// Who asks. Nothing prints the password.
#[derive(Clone)]
pub(super) struct Credentials {
    pub(super) user: Option<String>,
    pub(super) password: String,
}

impl Server {
    /// A server at a name, or an address: of IPv4, or of IPv6 with or without brackets.
    pub fn tcp(host: impl Into<String>, port: u16) -> Server {
        let host = host.into();
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(literal) => literal.to_owned(),
            None => host,
        };
        Server::at(Endpoint::Tcp { host, port })
    }

    /// A server at a socket in the file system.
    #[cfg(unix)]
    pub fn unix(path: impl AsRef<Path>) -> Server {
        Server::at(Endpoint::Unix(path.as_ref().to_owned()))
    }

    fn at(endpoint: Endpoint) -> Server {
        Server {
            endpoint,
            credentials: None,
            database: 0,
            #[cfg(feature = "tls")]
            tls: None,
            client: Client::default(),
        }
    }

    /// As whom to ask. Without it the server is not told.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Server {
        self.credentials = Some(Credentials { user: Some(user.into()), password: password.into() });
        self
    }

    /// The password of a server that knows no users, or of its default user.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Server {
        self.credentials = Some(Credentials { user: None, password: password.into() });
        self
    }

    pub(super) fn with(self, credentials: Option<Credentials>) -> Server {
        Server { credentials, ..self }
    }

    /// Which of the server's databases to use: 0 unless set.
    #[must_use]
    pub fn database(mut self, database: u32) -> Server {
        self.database = database;
        self
    }

    /// Encrypts connections; the server's certificate must be for the host it is reached by, or, at
    /// a socket in the file system, for `localhost`.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: super::Tls) -> Server {
        self.tls = Some(tls);
        self
    }

    /// The same settings for another server.
    pub(super) fn elsewhere(&self, host: &str, port: u16) -> Server {
        let Server { endpoint, .. } = Server::tcp(host, port);
        Server { endpoint, ..self.clone() }
    }

    /// Whose parser reads the replies.
    #[must_use]
    pub fn client(mut self, client: Client) -> Server {
        self.client = client;
        self
    }

    pub(super) fn host(&self) -> &str {
        match &self.endpoint {
            Endpoint::Tcp { host, .. } => host,
            #[cfg(unix)]
            Endpoint::Unix(_) => "localhost",
        }
    }

    /// 0 at a socket in the file system.
    pub(super) fn port(&self) -> u16 {
        match &self.endpoint {
            Endpoint::Tcp { port, .. } => *port,
            #[cfg(unix)]
            Endpoint::Unix(_) => 0,
        }
    }

    /// Where it is, as errors say it.
    pub(super) fn peer(&self) -> Arc<str> {
        match &self.endpoint {
            Endpoint::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}").into(),
            Endpoint::Tcp { host, port } => format!("{host}:{port}").into(),
            #[cfg(unix)]
            Endpoint::Unix(path) => path.display().to_string().into(),
        }
    }

    pub(super) fn connect(&self, deadline: Deadline) -> Result<Connection, TierError> {
        let (peer, budget) = (self.peer(), Budget::new(deadline));
        let raw = match &self.endpoint {
            Endpoint::Tcp { host, port } => Raw::tcp(host, *port, deadline),
            #[cfg(unix)]
            Endpoint::Unix(path) => Raw::unix(path, deadline),
        };
        let raw = raw.map_err(|error| budget.failed(&peer, &error))?;
        #[cfg(feature = "tls")]
        let stream = match &self.tls {
            None => Stream::Plain(raw),
            Some(tls) => tls.wrap(raw, self.host(), &peer, budget)?,
        };
        #[cfg(not(feature = "tls"))]
        let stream = Stream::Plain(raw);
        let mut connection = Connection::new(stream, self.client, peer);
        if let Some(credentials) = &self.credentials {
            credentials.present(&mut connection, deadline)?;
        }
        if self.database != 0 {
            let database = self.database.to_string();
            let reply = connection.ask(&[b"SELECT", database.as_bytes()], deadline)?;
            if let Reply::Error { code, text } = reply {
                return Err(unwelcome(&code, &text));
            }
        }
        Ok(connection)
    }
}

impl Credentials {
    fn present(&self, connection: &mut Connection, deadline: Deadline) -> Result<(), TierError> {
        let password = self.password.as_bytes();
        let mut reply = match &self.user {
            Some(user) => connection.ask(&[b"AUTH", user.as_bytes(), password], deadline)?,
            None => connection.ask(&[b"AUTH", password], deadline)?,
        };
        if let (Some(_), Reply::Error { text, .. }) = (&self.user, &reply) {
            // Before Redis 6 there were no users.
            if text.starts_with("wrong number of arguments") {
                reply = connection.ask(&[b"AUTH", password], deadline)?;
            }
        }
        match reply {
            Reply::Error { code, text } => Err(unwelcome(&code, &text)),
            _ => Ok(()),
        }
    }
}

/// What a server says that does not let us in. Unless it will by itself, asking again is no use.
fn unwelcome(code: &str, text: &str) -> TierError {
    match refused(code, text) {
        TierError::Refused { class: Refusal::Other, text } => {
            TierError::Refused { class: Refusal::Denied, text }
        }
        error => error,
    }
}

impl Dial for Server {
    fn dial(&self, deadline: Deadline) -> Result<Box<dyn Wire>, TierError> {
        Ok(Box::new(self.connect(deadline)?))
    }

    fn subscribe(
        &self,
        channels: &[&[u8]],
        deadline: Deadline,
    ) -> Result<Box<dyn Subscription>, TierError> {
        Ok(Box::new(self.connect(deadline)?.subscribe(channels, deadline)?))
    }
}

/// The URL, without the password.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.credentials.as_ref().map(|credentials| credentials.user.as_deref());
        let user = match user {
            None => String::new(),
            Some(user) => format!("{}@", user.unwrap_or_default()),
        };
        #[cfg(feature = "tls")]
        let encrypted = self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let encrypted = false;
        let scheme = match &self.endpoint {
            Endpoint::Tcp { .. } if encrypted => "rediss",
            Endpoint::Tcp { .. } => "redis",
            #[cfg(unix)]
            Endpoint::Unix(_) => "unix",
        };
        write!(f, "Server({scheme}://{user}{}/{})", self.peer(), self.database)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fleet::redis::stub::Stub;

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(20))
    }

    /// What a server was told by a connection that was made, if it answers like this.
    fn told(answers: &[&'static str], make: impl Fn(Server) -> Server) -> (String, String) {
        let (tell, requests) = std::sync::mpsc::channel();
        let say = answers.to_vec();
        let stub = Stub::new(move |_, mut caller| {
            for answer in &say {
                let request = caller.request().unwrap();
                tell.send(String::from_utf8(request).unwrap()).unwrap();
                caller.say(answer.as_bytes());
            }
        });
        let dialled = make(stub.server()).dial(soon());
        drop(stub);
        let requests: Vec<_> = answers.iter().filter_map(|_| requests.recv().ok()).collect();
        let words = requests.concat();
        let words: Vec<_> = words.split("\r\n").filter(|w| !w.starts_with(['*', '$'])).collect();
        (words.join(" "), dialled.err().map_or(String::new(), |error| error.to_string()))
    }

    #[test]
    fn a_connection_begins_with_what_it_takes() {
        let ok = "+OK\r\n";
        let (words, _) = told(&[ok, ok], |server| server.credentials("app", "secret").database(3));
        assert_eq!(words, "AUTH app secret SELECT 3 ");
        let (words, _) = told(&[ok], |server| server.password("secret"));
        assert_eq!(words, "AUTH secret ");

        let old = "-ERR wrong number of arguments for 'auth' command\r\n";
        let (words, error) = told(&[old, ok], |server| server.credentials("app", "secret"));
        assert_eq!((&*words, &*error), ("AUTH app secret AUTH secret ", ""));
    }

    #[test]
    fn a_server_that_does_not_let_us_in_says_why() {
        let no = "-ERR Client sent AUTH, but no password is set\r\n";
        let (_, error) = told(&[no], |server| server.password("secret"));
        assert_eq!(
            error,
            "refused by the shared tier: ERR Client sent AUTH, but no password is set"
        );

        let stub = Stub::saying(b"-ERR DB index is out of range\r\n");
        let error = stub.server().database(99).dial(soon()).err().unwrap();
        assert!(error.is_misconfigured(), "{error}");
        let stub = Stub::saying(b"-LOADING Redis is loading the dataset in memory\r\n");
        let error = stub.server().password("secret").dial(soon()).err().unwrap();
        assert_eq!(error.refusal(), Some(Refusal::Loading));
    }

    #[test]
    #[cfg(unix)]
    fn a_socket_in_the_file_system_will_do() {
        use std::io::{Read, Write};

        let path = std::env::temp_dir().join(format!("onefill-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut request = [0; 64];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(b":7\r\n").unwrap();
        });
        let mut wire = Server::unix(&path).dial(soon()).unwrap();
        assert_eq!(wire.call(&[&[b"GET", b"key"]], soon()), Ok(vec![Reply::Int(7)]));
        server.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn addresses_of_ipv6_may_have_their_brackets() {
        assert_eq!(&*Server::tcp("[::1]", 7).peer(), "[::1]:7");
        assert_eq!(&*Server::tcp("::1", 7).peer(), "[::1]:7");
    }
}
