//! [`Cluster`]: a cluster, each key of which is on one of its nodes.
//!
//! Written here rather than left to a client's own cluster connection. That one bounds single reads
//! by a timeout, not a call by its deadline; and after a write that was cut off it uses a node's
//! connection again, so that what follows ends up within a stored value.

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;

use super::connection::Connection;
use super::refusal::refused;
use super::sentinel::share;
use super::{Client, Command, Dial, Reply, Server, Subscription, Wire};
use crate::deadline::Deadline;
use crate::error::{BuildError, TierError};
use crate::sync::{Arc, Mutex};

/// A key has one of so many slots, and each slot is on one node.
const SLOTS: u16 = 16384;
/// A command follows at most so many redirections.
const REDIRECTIONS: usize = 3;

/// A cluster, by some of its nodes.
///
/// Which node has a key is asked when the first connection is made, and again when a node says that
/// it has moved. What makes a connection here is one socket for each node that was needed so far.
/// Each call, redirections included, ends by its deadline. Notices come from any one node, since
/// nodes pass them on to each other.
///
/// ```
/// use onefill::fleet::redis::{Cluster, Server};
///
/// // How to talk to the others, wherever they are: as to this one.
/// let cluster = Cluster::new([Server::tcp("node1.internal", 6379).credentials("app", "secret")])?;
/// # Ok::<(), onefill::BuildError>(())
/// ```
#[derive(Clone)]
pub struct Cluster {
    seeds: Vec<Server>,
    map: Arc<Mutex<Arc<Map>>>,
}

/// Which node has which slots; empty if nobody knows.
type Map = Vec<(RangeInclusive<u16>, Node)>;
/// A host and a port.
type Node = (String, u16);

impl Cluster {
    /// The cluster that these nodes belong to. Its other nodes are asked with the credentials and
    /// the encryption of the first of these.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if there is no node.
    pub fn new(nodes: impl IntoIterator<Item = Server>) -> Result<Cluster, BuildError> {
        // A cluster has one database.
        let seeds: Vec<_> = nodes.into_iter().map(|node| node.database(0)).collect();
        if seeds.is_empty() {
            return Err(BuildError::new("nodes", 0, "one or more"));
        }
        Ok(Cluster { seeds, map: Arc::default() })
    }

    /// Whose parser reads the replies.
    #[must_use]
    pub fn client(mut self, client: Client) -> Cluster {
        self.seeds = self.seeds.into_iter().map(|seed| seed.client(client)).collect();
        self
    }

    /// Encrypts the connections to all nodes.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: super::Tls) -> Cluster {
        self.seeds = self.seeds.into_iter().map(|seed| seed.tls(tls.clone())).collect();
        self
    }

    fn node(&self, (host, port): &Node) -> Server {
        self.seeds[0].elsewhere(host, *port)
    }

    /// What any of the nodes says; each of them has its share of the time.
    fn any<R>(
        &self,
        deadline: Deadline,
        ask: impl Fn(&Server, Deadline) -> Result<R, TierError>,
    ) -> Result<R, TierError> {
        let map = Arc::clone(&self.map.lock());
        let mut nodes: Vec<&Node> = map.iter().map(|(_, node)| node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let known: Vec<_> = nodes.into_iter().map(|node| self.node(node)).collect();
        let all: Vec<_> = self.seeds.iter().chain(&known).collect();
        let mut last = None;
        for (tried, server) in all.iter().enumerate() {
            match ask(server, share(deadline, all.len() - tried)) {
                Ok(answer) => return Ok(answer),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("there is at least one"))
    }

    /// Asks a node which has which slots.
    fn learn(
        &self,
        connection: &mut Connection,
        host: &str,
        deadline: Deadline,
    ) -> Result<(), TierError> {
        let map = match connection.ask(&[b"CLUSTER", b"SLOTS"], deadline)? {
            Reply::Error { code, text } => return Err(refused(&code, &text)),
            reply => map_of(reply, host),
        };
        let map =
            map.ok_or_else(|| TierError::Garbled("no map of a cluster's slots".to_owned()))?;
        *self.map.lock() = Arc::new(map);
        Ok(())
    }

    fn find(&self, slot: u16) -> Option<Node> {
        let map = Arc::clone(&self.map.lock());
        map.iter().find(|(slots, _)| slots.contains(&slot)).map(|(_, node)| node.clone())
    }

    /// The map is of no more use: a node that it names does not answer.
    fn forget(&self) {
        *self.map.lock() = Arc::default();
    }
}

fn map_of(reply: Reply, asked: &str) -> Option<Map> {
    let Reply::Array(ranges) = reply else { return None };
    let range = |range| {
        let Reply::Array(parts) = range else { return None };
        let [Reply::Int(first), Reply::Int(last), Reply::Array(node), ..] = &parts[..] else {
            return None;
        };
        let [host, Reply::Int(port), ..] = &node[..] else { return None };
        let host = match host {
            Reply::Bytes(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
            // A node that does not know its own name, or is not to tell.
            Reply::Bytes(_) | Reply::Nil => asked.to_owned(),
            _ => return None,
        };
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        Some((first..=last, (host, u16::try_from(*port).ok()?)))
    };
    ranges.into_iter().map(range).collect()
}

/// The slot of the key that a command is about. One that is about none can go anywhere.
fn slot_of(command: Command<'_>) -> u16 {
    let name = command.first().copied().unwrap_or_default();
    let is_script = name.eq_ignore_ascii_case(b"EVAL") || name.eq_ignore_ascii_case(b"EVALSHA");
    command.get(if is_script { 3 } else { 1 }).map_or(0, |key| slot(key))
}

/// CRC16 (XMODEM) of the key, or of what is between the first `{` and the next `}`.
fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let len = rest.iter().position(|&byte| byte == b'}')?;
        (len > 0).then(|| &rest[..len])
    });
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

/// Where an error sends its reader: `MOVED 3999 127.0.0.1:6381`.
fn redirection(replies: &[Reply], asked: &str) -> Option<(bool, Node)> {
    replies.iter().find_map(|reply| match reply {
        Reply::Error { code, text } if code == "MOVED" || code == "ASK" => {
            let (host, port) = text.split_once(' ')?.1.rsplit_once(':')?;
            let host = if host.is_empty() { asked } else { host };
            Some((code == "ASK", (host.to_owned(), port.parse().ok()?)))
        }
        _ => None,
    })
}

/// Connections to those nodes that were needed so far.
struct Nodes {
    cluster: Cluster,
    connections: HashMap<Node, Connection>,
    broken: bool,
}

impl Nodes {
    fn connection(
        &mut self,
        node: &Node,
        deadline: Deadline,
    ) -> Result<&mut Connection, TierError> {
        if !self.connections.contains_key(node) {
            let connection = self.cluster.node(node).connect(deadline)?;
            self.connections.insert(node.clone(), connection);
        }
        Ok(self.connections.get_mut(node).expect("it was just made"))
    }

    /// Commands about keys of one slot. All of them are sent again to where one of them is sent on.
    fn of_slot(
        &mut self,
        slot: u16,
        commands: &[Command<'_>],
        deadline: Deadline,
    ) -> Result<Vec<Reply>, TierError> {
        let Some(mut node) = self.cluster.find(slot) else {
            // The cluster's own words, for a slot that no node has.
            let text = "Hash slot not served".to_owned();
            let reply = Reply::Error { code: "CLUSTERDOWN".to_owned(), text };
            return Ok(vec![reply; commands.len()]);
        };
        let mut replies = self.connection(&node, deadline)?.call(commands, deadline)?;
        for _ in 0..REDIRECTIONS {
            let Some((asking, to)) = redirection(&replies, &node.0) else { break };
            let connection = self.connection(&to, deadline)?;
            replies = if asking {
                // Its keys are on their way there, and the slot is still here.
                let asking: Command<'_> = &[b"ASKING"];
                let pairs: Vec<_> = commands.iter().flat_map(|command| [asking, command]).collect();
                let replies = connection.call(&pairs, deadline)?;
                replies.into_iter().skip(1).step_by(2).collect()
            } else {
                let replies = connection.call(commands, deadline)?;
                let cluster = self.cluster.clone();
                let connection = self.connection(&to, deadline)?;
                cluster.learn(connection, &to.0, deadline)?;
                replies
            };
            node = to;
        }
        Ok(replies)
    }

    fn call(
        &mut self,
        commands: &[Command<'_>],
        deadline: Deadline,
    ) -> Result<Vec<Reply>, TierError> {
        let mut replies = Vec::with_capacity(commands.len());
        for group in commands.chunk_by(|a, b| slot_of(a) == slot_of(b)) {
            replies.append(&mut self.of_slot(slot_of(group[0]), group, deadline)?);
        }
        Ok(replies)
    }
}

impl Wire for Nodes {
    fn call(
        &mut self,
        commands: &[Command<'_>],
        deadline: Deadline,
    ) -> Result<Vec<Reply>, TierError> {
        if std::mem::replace(&mut self.broken, true) {
            let why = "the connections to the cluster were given up".to_owned();
            return Err(TierError::Unreachable(why));
        }
        let replies =
            Nodes::call(self, commands, deadline).inspect_err(|_| self.cluster.forget())?;
        self.broken = false;
        Ok(replies)
    }
}

impl Dial for Cluster {
    fn dial(&self, deadline: Deadline) -> Result<Box<dyn Wire>, TierError> {
        if self.map.lock().is_empty() {
            self.any(deadline, |server, deadline| {
                self.learn(&mut server.connect(deadline)?, server.host(), deadline)
            })?;
        }
        let connections = HashMap::new();
        Ok(Box::new(Nodes { cluster: self.clone(), connections, broken: false }))
    }

    fn subscribe(
        &self,
        channels: &[&[u8]],
        deadline: Deadline,
    ) -> Result<Box<dyn Subscription>, TierError> {
        self.any(deadline, |server, deadline| {
            Ok(Box::new(server.connect(deadline)?.subscribe(channels, deadline)?) as _)
        })
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seeds: Vec<_> = self.seeds.iter().map(Server::peer).collect();
        write!(f, "Cluster(redis-cluster://{})", seeds.join(","))
    }
}
