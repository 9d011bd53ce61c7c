//! [`Address`]: where the shared tier is, as a URL says it.

use std::str::FromStr;

use super::server::Credentials;
use super::{Client, Cluster, Dial, Sentinel, Server};
use crate::error::BuildError;
use crate::sync::Arc;

const SERVER_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// Where the shared tier is: a server, the master that Sentinels know, or a cluster.
///
/// | URL | what it is |
/// |---|---|
/// | `redis://[user][:password]@host[:port][/database]` | a server |
/// | `unix:///path[?db=…&user=…&password=…]`, also `redis+unix://` | a server at a socket |
/// | `redis-sentinel://[user][:password]@host[:port],…/service[/database]` | the master named `service` |
/// | `redis-cluster://[user][:password]@host[:port],…` | the cluster that these nodes belong to |
///
/// `valkey` is as good as `redis` in each of them. With another `s`, as in `rediss://`,
/// `rediss-sentinel://` and `rediss-cluster://`, connections are encrypted, and those servers are
/// trusted that the system trusts; that takes the feature `tls`.
///
/// An IPv6 address is in brackets. Ports are 6379 and, for Sentinels, 26379, the database is 0,
/// unless given. What is no plain letter or digit in a user, a password or a service is
/// percent-encoded. The credentials of the Sentinels, if they want any, are parameters:
/// `?sentinel_user=…&sentinel_password=…`. There are no other parameters.
///
/// ```
/// use onefill::fleet::redis::Address;
///
/// let address = Address::parse("redis://app:p%40ss@[::1]:7000/3")?;
/// assert_eq!(format!("{address:?}"), "Server(redis://app@[::1]:7000/3)"); // never the password
///
/// let error = Address::parse("http://cache.internal").unwrap_err();
/// assert!(error.to_string().starts_with("scheme of the url is \"http\", but must be redis, "));
/// # Ok::<(), onefill::BuildError>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum Address {
    /// One server.
    Server(Server),
    /// The master of a group of servers.
    Sentinel(Sentinel),
    /// A cluster.
    Cluster(Cluster),
}

impl Address {
    /// What a URL says.
    ///
    /// # Errors
    ///
    /// [`BuildError`] says which part of it means nothing, and never what the password is.
    pub fn parse(url: &str) -> Result<Address, BuildError> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| {
            // All of it may be a password.
            BuildError::new("url", format_args!("without a scheme"), "as in redis://host:6379")
        })?;
        let (kind, encrypted) = kind_of(scheme)?;
        if encrypted && cfg!(not(feature = "tls")) {
            let allowed = "one without encryption, or onefill be built with its feature `tls`";
            return Err(BuildError::new("scheme of the url", scheme, allowed));
        }
        let parts = Parts::of(rest)?;
        let address = match kind {
            Kind::Server => parts.server()?,
            Kind::Unix => parts.unix()?,
            Kind::Sentinel => parts.sentinel()?,
            Kind::Cluster => parts.cluster()?,
        };
        #[cfg(feature = "tls")]
        if encrypted {
            return Ok(address.tls(super::Tls::new().build()?));
        }
        Ok(address)
    }

    /// Whose parser reads the replies.
    #[must_use]
    pub fn client(self, client: Client) -> Address {
        match self {
            Address::Server(server) => Address::Server(server.client(client)),
            Address::Sentinel(sentinel) => Address::Sentinel(sentinel.client(client)),
            Address::Cluster(cluster) => Address::Cluster(cluster.client(client)),
        }
    }

    /// Encrypts connections in this way, whatever the URL said.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(self, tls: super::Tls) -> Address {
        match self {
            Address::Server(server) => Address::Server(server.tls(tls)),
            Address::Sentinel(sentinel) => Address::Sentinel(sentinel.tls(tls)),
            Address::Cluster(cluster) => Address::Cluster(cluster.tls(tls)),
        }
    }

    /// What makes connections to it.
    pub fn into_dial(self) -> Arc<dyn Dial> {
        match self {
            Address::Server(server) => Arc::new(server),
            Address::Sentinel(sentinel) => Arc::new(sentinel),
            Address::Cluster(cluster) => Arc::new(cluster),
        }
    }
}

/// As [`Address::parse`].
impl FromStr for Address {
    type Err = BuildError;

    fn from_str(url: &str) -> Result<Address, BuildError> {
        Address::parse(url)
    }
}

/// As what it is, without the password.
impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Server(server) => server.fmt(f),
            Address::Sentinel(sentinel) => sentinel.fmt(f),
            Address::Cluster(cluster) => cluster.fmt(f),
        }
    }
}

enum Kind {
    Server,
    Unix,
    Sentinel,
    Cluster,
}

/// The kind of a scheme, and whether it is encrypted.
fn kind_of(scheme: &str) -> Result<(Kind, bool), BuildError> {
    let lower = scheme.to_ascii_lowercase();
    let unknown = || {
        let allowed = "redis, unix, redis-sentinel, redis-cluster, or with TLS rediss, \
                       rediss-sentinel, rediss-cluster";
        BuildError::new("scheme of the url", scheme, allowed)
    };
    if lower == "unix" {
        return Ok((Kind::Unix, false));
    }
    let rest = lower.strip_prefix("redis").or_else(|| lower.strip_prefix("valkey"));
    let rest = rest.ok_or_else(unknown)?;
    let (rest, encrypted) = rest.strip_prefix('s').map_or((rest, false), |rest| (rest, true));
    match rest {
        "" => Ok((Kind::Server, encrypted)),
        "-sentinel" | "+sentinel" => Ok((Kind::Sentinel, encrypted)),
        "-cluster" | "+cluster" => Ok((Kind::Cluster, encrypted)),
        "+unix" if !encrypted => Ok((Kind::Unix, false)),
        _ => Err(unknown()),
    }
}

/// What comes after the scheme.
struct Parts<'a> {
    credentials: Option<Credentials>,
    hosts: &'a str,
    /// Without the first slash.
    path: &'a str,
    query: &'a str,
}

impl<'a> Parts<'a> {
    fn of(rest: &'a str) -> Result<Parts<'a>, BuildError> {
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if path.contains('@') || query.contains('@') {
            // What looks like a host may be the beginning of a password, and is not to be shown.
            let allowed = "percent-encoded: / is %2F, ? is %3F, @ is %40";
            return Err(BuildError::new("url", format_args!("ambiguous before an @"), allowed));
        }
        let (user_info, hosts) = match authority.rsplit_once('@') {
            None => (None, authority),
            Some((user_info, hosts)) => (Some(user_info), hosts),
        };
        let credentials = match user_info {
            None | Some("" | ":") => None,
            Some(user_info) => {
                let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
                let user = decoded("user of the url", user)?;
                let password = decoded("password of the url", password)?;
                Some(Credentials { user: (!user.is_empty()).then_some(user), password })
            }
        };
        Ok(Parts { credentials, hosts, path, query })
    }

    fn server(self) -> Result<Address, BuildError> {
        let [] = self.parameters([])?;
        let [host, ..] = &hosts(self.hosts, SERVER_PORT)?[..] else { return Err(no_host()) };
        if self.hosts.contains(',') {
            let allowed = "one; redis-cluster:// and redis-sentinel:// take several";
            return Err(BuildError::new("hosts of the url", format_args!("several"), allowed));
        }
        let server = Server::tcp(&host.0, host.1).database(database(self.path)?);
        Ok(Address::Server(server.with(self.credentials)))
    }

    fn unix(self) -> Result<Address, BuildError> {
        let [db, user, password] = self.parameters(["db", "user", "password"])?;
        if !self.hosts.is_empty() || self.path.is_empty() {
            let allowed = "an absolute path, as in unix:///run/redis.sock";
            return Err(BuildError::new("url", format_args!("without a path of its own"), allowed));
        }
        #[cfg(unix)]
        {
            let path = format!("/{}", decoded("path of the url", self.path)?);
            let credentials = credentials(user, password).or(self.credentials);
            let database = database(db.as_deref().unwrap_or_default())?;
            Ok(Address::Server(Server::unix(path).database(database).with(credentials)))
        }
        #[cfg(not(unix))]
        {
            let (_, _, _) = (db, user, password);
            let allowed = "redis or rediss: this system has no sockets in its file system";
            Err(BuildError::new("scheme of the url", "unix", allowed))
        }
    }

    fn sentinel(self) -> Result<Address, BuildError> {
        let [user, password] = self.parameters(["sentinel_user", "sentinel_password"])?;
        let (service, path) = self.path.split_once('/').unwrap_or((self.path, ""));
        if service.is_empty() {
            let allowed = "the master's name, as in redis-sentinel://host:26379/name";
            return Err(BuildError::new("path of the url", "", allowed));
        }
        let service = decoded("path of the url", service)?;
        let credentials = credentials(user, password);
        let sentinels = hosts(self.hosts, SENTINEL_PORT)?
            .into_iter()
            .map(|(host, port)| Server::tcp(host, port).with(credentials.clone()));
        let master = Server::tcp("", 0).database(database(path)?).with(self.credentials);
        Ok(Address::Sentinel(Sentinel::new(service, sentinels, master)?))
    }

    fn cluster(self) -> Result<Address, BuildError> {
        let [] = self.parameters([])?;
        if database(self.path)? != 0 {
            let allowed = "0: a cluster has no others";
            return Err(BuildError::new("database of the url", self.path, allowed));
        }
        let nodes = hosts(self.hosts, SERVER_PORT)?
            .into_iter()
            .map(|(host, port)| Server::tcp(host, port).with(self.credentials.clone()));
        Ok(Address::Cluster(Cluster::new(nodes)?))
    }

    /// The values of the parameters by those names. There may be no others.
    fn parameters<const N: usize>(
        &self,
        names: [&str; N],
    ) -> Result<[Option<String>; N], BuildError> {
        let mut values = [const { None }; N];
        for parameter in self.query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let Some(index) = names.iter().position(|known| *known == name) else {
                // Without its value, and without what may be the rest of a password.
                let name: String =
                    name.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                let allowed = "one that such a url has: db, user and password with unix://, \
                               sentinel_user and sentinel_password with redis-sentinel://";
                return Err(BuildError::new("parameter of the url", name, allowed));
            };
            values[index] = Some(decoded("parameter of the url", value)?);
        }
        Ok(values)
    }
}

fn credentials(user: Option<String>, password: Option<String>) -> Option<Credentials> {
    if user.is_none() && password.is_none() {
        return None;
    }
    Some(Credentials { user, password: password.unwrap_or_default() })
}

fn hosts(hosts: &str, default: u16) -> Result<Vec<(String, u16)>, BuildError> {
    hosts.split(',').map(|host| host_of(host, default)).collect()
}

/// A host and its port: `host`, `host:port`, `[::1]`, `[::1]:port`.
fn host_of(host: &str, default: u16) -> Result<(String, u16), BuildError> {
    let (name, port) = if let Some(literal) = host.strip_prefix('[') {
        let (name, rest) = literal.split_once(']').unwrap_or((literal, "?"));
        let port = if rest.is_empty() { Some("") } else { rest.strip_prefix(':') };
        (name, port.filter(|_| name.parse::<std::net::Ipv6Addr>().is_ok()))
    } else {
        let (name, port) = host.split_once(':').unwrap_or((host, ""));
        // A second colon: an IPv6 address without its brackets.
        (name, Some(port).filter(|port| !port.contains(':')))
    };
    if name.is_empty() {
        return Err(no_host());
    }
    if name.contains(|c: char| c.is_whitespace() || c.is_control() || "#?@/".contains(c)) {
        let found = format_args!("something with a character that no host has");
        return Err(BuildError::new("host of the url", found, "a name, or an address"));
    }
    let Some(port) = port else {
        let found = format_args!("something with colons");
        return Err(BuildError::new(
            "host of the url",
            found,
            "a name, or an address: [::1] is one of IPv6",
        ));
    };
    let port = match port {
        "" => default,
        // If it is no number it may be a password that somebody gave no host to.
        port => number(port).filter(|port| *port > 0).ok_or_else(|| {
            let found = format_args!("no such number");
            BuildError::new("port of the url", found, "from 1 to 65535")
        })?,
    };
    Ok((decoded("host of the url", name)?, port))
}

/// Digits, and no sign.
fn number(text: &str) -> Option<u16> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

fn no_host() -> BuildError {
    BuildError::new("host of the url", "", "given, as in redis://host:6379")
}

fn database(text: &str) -> Result<u32, BuildError> {
    match text {
        "" => Ok(0),
        text => text
            .parse()
            .map_err(|_| BuildError::new("database of the url", text, "a number, as in /0")),
    }
}

/// Percent-decoded. Errors do not show what it was.
fn decoded(field: &'static str, text: &str) -> Result<String, BuildError> {
    let wrong = || {
        BuildError::new(
            field,
            format_args!("not percent-encoded"),
            "so: a % is followed by two digits",
        )
    };
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        rest = others;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = others.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let digits = std::str::from_utf8(digits.ok_or_else(wrong)?).map_err(|_| wrong())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
        rest = &others[2..];
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_where_it_is() {
        let urls = [
            ("redis://h", "Server(redis://h:6379/0)"),
            ("REDIS://h:1/", "Server(redis://h:1/0)"),
            ("valkey://h/7", "Server(redis://h:6379/7)"),
            ("redis://@h", "Server(redis://h:6379/0)"),
            ("redis://:secret@h", "Server(redis://@h:6379/0)"),
            ("redis://me:secret@h", "Server(redis://me@h:6379/0)"),
            ("redis://me@h", "Server(redis://me@h:6379/0)"),
            ("redis://m%40e:sec@ret@h", "Server(redis://m@e@h:6379/0)"),
            ("redis://127.0.0.1:65535", "Server(redis://127.0.0.1:65535/0)"),
            ("redis://[::1]", "Server(redis://[::1]:6379/0)"),
            ("redis://me:secret@[fe80::1]:7/2", "Server(redis://me@[fe80::1]:7/2)"),
            ("redis-sentinel://h/main", "Sentinel(redis-sentinel://h:26379/main)"),
            (
                "redis+sentinel://me:secret@a:1,[::1]/main/3?sentinel_password=secret",
                "Sentinel(redis-sentinel://a:1,[::1]:26379/main)",
            ),
            ("redis-cluster://h", "Cluster(redis-cluster://h:6379)"),
            ("redis-cluster://:secret@a,b:1/0", "Cluster(redis-cluster://a:6379,b:1)"),
            #[cfg(unix)]
            ("unix:///run/redis.sock", "Server(unix:///run/redis.sock/0)"),
            #[cfg(unix)]
            ("redis+unix:///a%20b?db=2&user=me&password=secret", "Server(unix://me@/a b/2)"),
        ];
        for (url, address) in urls {
            assert_eq!(format!("{:?}", Address::parse(url).unwrap()), address, "{url}");
        }
    }

    #[test]
    fn urls_that_mean_nothing_are_refused_and_keep_their_secrets() {
        let urls = [
            ("secret", "url is without a scheme, but"),
            ("redis://h#secret", "host of the url is something with a character"),
            ("redis:// h", "host of the url is something with a character"),
            ("redis://h\r\nX", "host of the url is something with a character"),
            ("redis://h:+1", "port of the url is no such number"),
            ("http://h", "scheme of the url is \"http\", but"),
            ("redis", "url is without a scheme, but"),
            ("redisss://h", "scheme of the url is \"redisss\", but"),
            ("redis://", "host of the url is \"\", but"),
            ("redis://me:secret@", "host of the url is \"\", but"),
            ("redis://me:sec/secret@h", "url is ambiguous before an @, but"),
            ("redis://me:sec?secret@h", "url is ambiguous before an @, but"),
            ("redis://me:secret", "port of the url is no such number, but"),
            ("redis://h:0", "port of the url is no such number, but"),
            ("redis://h:65536", "port of the url is no such number, but"),
            ("redis://::1", "host of the url is \"\", but"),
            ("redis://fe80::1", "host of the url is something with colons, but"),
            ("redis://[::1", "host of the url is something with colons, but"),
            ("redis://[h]", "host of the url is something with colons, but"),
            ("redis://a,b", "hosts of the url is several, but"),
            ("redis://me:secret%4@h", "password of the url is not percent-encoded, but"),
            ("redis://me:%ffsecret@h", "password of the url is not percent-encoded, but"),
            ("redis://h/x", "database of the url is \"x\", but"),
            ("redis://h/-1", "database of the url is \"-1\", but"),
            ("redis://h?timeout=3", "parameter of the url is \"timeout\", but"),
            ("redis-sentinel://h", "path of the url is \"\", but"),
            ("redis-sentinel://h/main/x", "database of the url is \"x\", but"),
            ("redis-cluster://h/1", "database of the url is \"1\", but"),
            ("redis-cluster://a,,b", "host of the url is \"\", but"),
            ("unix://h/path", "url is without a path of its own, but"),
            ("unix://", "url is without a path of its own, but"),
            #[cfg(unix)]
            ("unix:///path?db=x", "database of the url is \"x\", but"),
        ];
        for (url, error) in urls {
            let found = Address::parse(url).unwrap_err();
            assert!(found.to_string().starts_with(error), "{url}: {found}");
            let shown = format!("{found} {found:?} {}", found.value());
            assert!(!shown.contains("secret"), "{url}: {shown}");
        }
    }

    #[test]
    fn nothing_shows_a_password() {
        for url in [
            "redis://me:secret@h",
            "redis-sentinel://me:secret@h/main?sentinel_user=me&sentinel_password=secret",
            "redis-cluster://me:secret@h",
        ] {
            let address = Address::parse(url).unwrap();
            let shown = format!("{address:?} {address:#?} {:?}", address.clone().into_dial());
            assert!(!shown.contains("secret"), "{shown}");
        }
    }

    #[test]
    fn a_scheme_that_takes_a_feature_says_which() {
        let encrypted = Address::parse("rediss://h");
        #[cfg(not(feature = "tls"))]
        assert!(encrypted.unwrap_err().to_string().ends_with("its feature `tls`"));
        #[cfg(feature = "tls")]
        match encrypted {
            Ok(address) => assert_eq!(format!("{address:?}"), "Server(rediss://h:6379/0)"),
            // A system on which nobody is trusted.
            Err(error) => assert_eq!(error.field(), "tls"),
        }
    }
}
