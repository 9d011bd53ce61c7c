//! The server: plain commands over a connection of our own, and the tier for what changes things.

use std::time::Duration;

use onefill::fleet::redis::{Address, Redis, Reply, Wire, refusal};
use onefill::fleet::{Epoch, Fleet, Namespace, Table};
use onefill::{Deadline, Refusal, TierError};

use crate::Failure;

/// Where the fleet is, and what it is called there.
pub(crate) struct Place {
    url: String,
    address: Address,
    /// Whose names are listed, where the server is a cluster.
    nodes: Vec<Address>,
    namespace: String,
    pub(crate) names: Namespace,
    pub(crate) timeout: Duration,
}

impl Place {
    pub(crate) fn new(
        url: String,
        nodes: &[String],
        namespace: &str,
        timeout: Duration,
    ) -> Result<Place, Failure> {
        let parse =
            |url: &str| Address::parse(url).map_err(|error| Failure::Told(error.to_string()));
        Ok(Place {
            address: parse(&url)?,
            url,
            nodes: nodes.iter().map(|url| parse(url)).collect::<Result<_, _>>()?,
            namespace: namespace.to_owned(),
            names: Namespace::new(namespace),
            timeout,
        })
    }

    /// What all names of the namespace begin with.
    pub(crate) fn prefix(&self) -> Vec<u8> {
        let channel = self.names.channel();
        channel.strip_suffix("ev").unwrap_or(&channel).as_bytes().to_vec()
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(crate) fn deadline(&self) -> Deadline {
        Deadline::after(self.timeout)
    }

    /// A connection of our own. That it is one to a server of the right kind, which lets us in, is
    /// known from its first answer.
    pub(crate) fn connect(&self) -> Result<Server<'_>, Failure> {
        self.connect_to(&self.address)
    }

    fn connect_to(&self, address: &Address) -> Result<Server<'_>, Failure> {
        let dial = address.clone().into_dial();
        let wire = dial.dial(self.deadline()).map_err(failure)?;
        Ok(Server { wire, place: self })
    }

    /// The tier as a process of the fleet has it: what it does, all of them hear.
    pub(crate) fn tier(&self) -> Result<Redis, Failure> {
        Fleet::redis(&self.url)
            .namespace(&self.namespace)
            .pool_size(1)
            .pool_wait(self.timeout)
            .connect_timeout(self.timeout)
            .io_timeout(self.timeout)
            .tier()
            .map_err(|error| Failure::Told(error.to_string()))
    }
}

pub(crate) struct Server<'p> {
    wire: Box<dyn Wire>,
    place: &'p Place,
}

impl Server<'_> {
    /// The replies to these commands.
    pub(crate) fn ask(&mut self, commands: &[Vec<&[u8]>]) -> Result<Vec<Reply>, Failure> {
        let commands: Vec<&[&[u8]]> = commands.iter().map(Vec::as_slice).collect();
        self.wire.call(&commands, self.place.deadline()).map_err(failure)
    }

    /// The reply to one command that the server has no reason to refuse.
    pub(crate) fn ask_one(&mut self, command: &[&[u8]]) -> Result<Reply, Failure> {
        match self.ask(&[command.to_vec()])?.pop() {
            Some(Reply::Error { code, text }) => Err(refused(&code, &text)),
            Some(reply) => Ok(reply),
            None => Err(Failure::told("the server answered nothing")),
        }
    }

    /// The epoch of a table, if any process of the fleet has ever asked for it. Not as the tier asks:
    /// that would make one.
    pub(crate) fn epoch(&mut self, table: &Table) -> Result<Option<Epoch>, Failure> {
        match self.ask_one(&[b"GET", &self.place.names.epoch(table)])? {
            Reply::Bytes(bytes) => Ok(bytes[..]
                .try_into()
                .ok()
                .map(|bytes| Epoch::from_u64(u64::from_be_bytes(bytes)))),
            _ => Ok(None),
        }
    }

    /// All names that match, on all nodes of a cluster that were named.
    pub(crate) fn scan(&mut self, pattern: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
        let mut names = match (&self.place.address, &self.place.nodes[..]) {
            (Address::Cluster(_), []) => {
                return Err(Failure::told(
                    "the names on a cluster are on all of its nodes: name each master, as in \
                     --node redis://node1.internal:6379 --node redis://node2.internal:6379",
                ));
            }
            (_, []) => self.scan_here(pattern)?,
            (_, nodes) => {
                let mut names = Vec::new();
                for node in nodes {
                    names.append(&mut self.place.connect_to(node)?.scan_here(pattern)?);
                }
                names
            }
        };
        // A server may tell a name twice; and a replica tells its master's.
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn scan_here(&mut self, pattern: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
        let (mut names, mut cursor) = (Vec::new(), b"0".to_vec());
        loop {
            let command: [&[u8]; 6] = [b"SCAN", &cursor, b"MATCH", pattern, b"COUNT", b"1000"];
            let Reply::Array(page) = self.ask_one(&command)? else { return Err(no_page()) };
            let Ok([Reply::Bytes(next), Reply::Array(found)]) = <[Reply; 2]>::try_from(page) else {
                return Err(no_page());
            };
            names.extend(found.into_iter().filter_map(|name| match name {
                Reply::Bytes(name) => Some(name),
                _ => None,
            }));
            if next == b"0" {
                return Ok(names);
            }
            cursor = next;
        }
    }
}

fn no_page() -> Failure {
    Failure::told("SCAN was answered by something else")
}

/// What the server said no with.
pub(crate) fn refused(code: &str, text: &str) -> Failure {
    let class = refusal(code, text);
    failure(TierError::Refused { class, text: format!("{code} {text}") })
}

/// The error, and what to do about it where that is known.
pub(crate) fn failure(error: TierError) -> Failure {
    let advice = match &error {
        TierError::Refused { class: Refusal::Denied, text } if text.starts_with("NOPERM") => {
            "\nThis user may not do that; see the rights in the manual of onefill::fleet::redis."
        }
        TierError::Refused { class: Refusal::Denied, .. } => {
            "\nCredentials are part of the URL: redis://user:password@host:6379"
        }
        TierError::Refused { class: Refusal::Misrouted, .. } => {
            "\nThe server is a node of a cluster: redis-cluster://host:6379 knows which node has what"
        }
        TierError::Garbled(_) => {
            "\nIs this the port of a Redis, and are both sides of one mind about TLS?"
        }
        _ => "",
    };
    Failure::Told(format!("{error}{advice}"))
}
