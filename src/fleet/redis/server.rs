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
                return Err(refused(&code, &text));
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
            Reply::Error { code, text } => Err(match refused(&code, &text) {
                // Whatever there is to say against credentials, asking again will not help.
                TierError::Refused { class: Refusal::Other, text } => {
                    TierError::Refused { class: Refusal::Denied, text }
                }
                error => error,
            }),
            _ => Ok(()),
        }
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
