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
/// Nodes are reached where the cluster says that they are. With TLS their certificates must be for
/// those names or addresses: see `cluster-announce-hostname` and `cluster-preferred-endpoint-type`.
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
    known: Arc<Mutex<Known>>,
}

/// What the connections to a cluster know of it.
#[derive(Debug, Default)]
struct Known {
    map: Arc<Map>,
    /// Whether to ask again before the next connection: a node was not where the map says, or gave
    /// no answer.
    doubtful: bool,
}

/// Which node has which slots.
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
        Ok(Cluster { seeds, known: Arc::default() })
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

    /// What any of the nodes says, from the `first` of them on; each has its share of the time.
    fn any<R>(
        &self,
        first: usize,
        deadline: Deadline,
        ask: impl Fn(&Server, Deadline) -> Result<R, TierError>,
    ) -> Result<R, TierError> {
        let map = Arc::clone(&self.known.lock().map);
        let mut nodes: Vec<&Node> = map.iter().map(|(_, node)| node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let known: Vec<_> = nodes.into_iter().map(|node| self.node(node)).collect();
        let mut all: Vec<_> = self.seeds.iter().chain(&known).collect();
        let first = first % all.len();
        all.rotate_left(first);
        let mut last = None;
        for (tried, server) in all.iter().enumerate() {
            match ask(server, deadline.share(all.len() - tried)) {
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
        *self.known.lock() = Known { map: Arc::new(map), doubtful: false };
        Ok(())
    }

    /// The node that has a slot. If nobody knows of one, any node: it will say what there is to
    /// say.
    fn find(&self, slot: u16) -> Node {
        let map = Arc::clone(&self.known.lock().map);
        let found = map.iter().find(|(slots, _)| slots.contains(&slot)).or(map.first());
        match found {
            Some((_, node)) => node.clone(),
            None => (self.seeds[0].host().to_owned(), self.seeds[0].port()),
        }
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
        let mut node = self.cluster.find(slot);
        let mut replies = self.connection(&node, deadline)?.call(commands, deadline)?;
        for _ in 0..REDIRECTIONS {
            let Some((asking, to)) = redirection(&replies, &node.0) else { break };
            let connection = self.connection(&to, deadline)?;
            if asking {
                // Its keys are on their way there, and the slot is still here.
                let asking: Command<'_> = &[b"ASKING"];
                let pairs: Vec<_> = commands.iter().flat_map(|command| [asking, command]).collect();
                let answers = connection.call(&pairs, deadline)?;
                replies = answers.into_iter().skip(1).step_by(2).collect();
            } else {
                replies = connection.call(commands, deadline)?;
                let cluster = self.cluster.clone();
                cluster.learn(self.connection(&to, deadline)?, &to.0, deadline)?;
            }
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
            match self.of_slot(slot_of(group[0]), group, deadline) {
                Ok(mut answers) => replies.append(&mut answers),
                // A node would not let us in: its words are the answer to each of the commands.
                Err(TierError::Refused { text, .. }) => {
                    let (code, text) = text.split_once(' ').unwrap_or((&text, ""));
                    let answer = Reply::Error { code: code.to_owned(), text: text.to_owned() };
                    replies.extend(group.iter().map(|_| answer.clone()));
                }
                Err(error) => return Err(error),
            }
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
        let result = Nodes::call(self, commands, deadline);
        if result.is_err() {
            self.cluster.known.lock().doubtful = true;
        }
        let replies = result?;
        self.broken = false;
        Ok(replies)
    }
}

impl Dial for Cluster {
    fn dial(&self, deadline: Deadline) -> Result<Box<dyn Wire>, TierError> {
        let (empty, doubtful) = {
            let known = self.known.lock();
            (known.map.is_empty(), known.doubtful)
        };
        if empty || doubtful {
            self.any(0, deadline, |server, deadline| {
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
        // Wherever: or one node would have the subscriptions of all processes that have one URL.
        self.any(fastrand::usize(..), deadline, |server, deadline| {
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

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::time::Duration;

    use super::*;
    use crate::fleet::redis::stub::Stub;

    const FOO: Command<'static> = &[b"GET", b"{foo}1"];
    const BAR: Command<'static> = &[b"GET", b"bar"];

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(20))
    }

    /// A node that knows the cluster by `map`, and answers everything else with `answer`, after it
    /// has said `once`.
    fn node(map: &'static OnceLock<String>, once: String, answer: &'static str) -> Stub {
        Stub::new(move |_, mut caller| {
            let mut once = once.clone();
            while let Some(request) = caller.request() {
                let request = String::from_utf8(request).unwrap();
                if request.contains("SLOTS") {
                    caller.say(map.get().unwrap().as_bytes());
                    continue;
                }
                let commands = request.matches('*').count();
                let once = std::mem::take(&mut once);
                let asking = request.contains("ASKING");
                for command in 0..commands {
                    caller.say(match (once.as_str(), asking && command % 2 == 0) {
                        ("", false) => answer.as_bytes(),
                        ("", true) => b"+OK\r\n",
                        (once, _) => once.as_bytes(),
                    });
                }
            }
        })
    }

    fn slots(ranges: &[(u16, u16, u16)]) -> String {
        let range = |(first, last, port)| {
            format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
        };
        format!("*{}\r\n", ranges.len()) + &ranges.iter().copied().map(range).collect::<String>()
    }

    fn cluster(seeds: &[&Stub]) -> Cluster {
        Cluster::new(seeds.iter().map(|stub| stub.server())).unwrap()
    }

    #[test]
    fn commands_are_about_the_slot_of_their_key() {
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot_of(FOO), 12182);
        assert_eq!(slot_of(BAR), 5061);
        assert_eq!(slot_of(&[b"EVALSHA", b"sha", b"2", b"v:{foo}", b"l:{foo}"]), 12182);
        assert_eq!(slot_of(&[b"eval", b"return 1", b"0"]), 0);
        assert_eq!(slot_of(&[b"PING"]), 0);
        assert_eq!(slot(b"{}foo"), slot(b"{}foo"));
        assert_ne!(slot(b"{}foo"), slot(b"{}bar"));
    }

    #[test]
    fn each_command_goes_to_the_node_of_its_key() {
        static MAP: OnceLock<String> = OnceLock::new();
        let (a, b) = (node(&MAP, String::new(), ":1\r\n"), node(&MAP, String::new(), ":2\r\n"));
        MAP.set(slots(&[(0, 8000, a.port), (8001, 16383, b.port)])).unwrap();
        let mut wire = cluster(&[&a]).dial(soon()).unwrap();
        let replies = wire.call(&[BAR, BAR, FOO, BAR], soon()).unwrap();
        assert_eq!(replies, [1, 1, 2, 1].map(Reply::Int));
    }

    #[test]
    fn what_has_moved_is_followed_and_remembered() {
        static MAP: OnceLock<String> = OnceLock::new();
        let b = node(&MAP, String::new(), ":2\r\n");
        let moved = format!("-MOVED 12182 127.0.0.1:{}\r\n", b.port);
        let a = node(&MAP, moved.clone(), ":1\r\n");
        MAP.set(slots(&[(0, 16383, b.port)])).unwrap();
        let cluster = cluster(&[&a]);
        *cluster.known.lock() = Known {
            map: Arc::new(vec![(0..=16383, ("127.0.0.1".to_owned(), a.port))]),
            doubtful: false,
        };
        let mut wire = cluster.dial(soon()).unwrap();
        assert_eq!(wire.call(&[FOO, FOO], soon()), Ok(vec![Reply::Int(2), Reply::Int(2)]));
        assert_eq!(cluster.find(12182).1, b.port);
    }

    #[test]
    fn what_is_on_its_way_is_asked_for_where_it_goes() {
        static MAP: OnceLock<String> = OnceLock::new();
        let b = node(&MAP, String::new(), ":2\r\n");
        let a = node(&MAP, format!("-ASK 12182 127.0.0.1:{}\r\n", b.port), ":1\r\n");
        MAP.set(slots(&[(0, 16383, a.port)])).unwrap();
        let cluster = cluster(&[&a]);
        let mut wire = cluster.dial(soon()).unwrap();
        assert_eq!(wire.call(&[FOO, FOO], soon()), Ok(vec![Reply::Int(2), Reply::Int(2)]));
        assert_eq!(wire.call(&[FOO], soon()), Ok(vec![Reply::Int(1)]), "the slot is still here");
    }

    #[test]
    fn after_a_failure_the_nodes_are_asked_again() {
        static MAP: OnceLock<String> = OnceLock::new();
        let gone = Stub::new(|_, mut caller| assert!(caller.hear()));
        let b = node(&MAP, String::new(), ":2\r\n");
        MAP.set(slots(&[(0, 16383, b.port)])).unwrap();
        let cluster = cluster(&[&gone, &b]);
        *cluster.known.lock() = Known {
            map: Arc::new(vec![(0..=16383, ("127.0.0.1".to_owned(), gone.port))]),
            doubtful: false,
        };
        let mut wire = cluster.dial(soon()).unwrap();
        assert!(matches!(wire.call(&[FOO], soon()), Err(TierError::Unreachable(_))));
        assert!(wire.call(&[FOO], soon()).is_err(), "it was given up");
        let mut wire = cluster.dial(soon()).unwrap();
        assert_eq!(wire.call(&[FOO], soon()), Ok(vec![Reply::Int(2)]));
    }

    #[test]
    fn a_slot_that_no_node_has_is_no_failure_of_the_connection() {
        static MAP: OnceLock<String> = OnceLock::new();
        let a = node(&MAP, String::new(), "-CLUSTERDOWN Hash slot not served\r\n");
        MAP.set("*0\r\n".to_owned()).unwrap();
        let mut wire = cluster(&[&a]).dial(soon()).unwrap();
        let replies = wire.call(&[FOO], soon()).unwrap();
        assert!(matches!(&replies[..], [Reply::Error { code, .. }] if code == "CLUSTERDOWN"));
    }
}
