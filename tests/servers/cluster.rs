//! A cluster of three masters.

use std::time::Duration;

use super::patience::eventually;
use super::resp::Resp;
use super::server::Server;

const MASTERS: usize = 3;

const SLOTS: usize = 16_384;

/// A cluster in which each master serves a third of the slots.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// Starts it and waits until each node knows that all is well.
    #[track_caller]
    pub(crate) fn start() -> Cluster {
        // Short, so that the death of a node is noticed within a test, and not so short that a busy
        // machine looks like one.
        let node = || Server::builder().cluster_node().line("cluster-node-timeout 3000");
        let nodes = (0..MASTERS).map(|_| node().start()).collect::<Vec<_>>();
        for (nth, node) in nodes.iter().enumerate() {
            let slots = SLOTS * nth / MASTERS..SLOTS * (nth + 1) / MASTERS;
            let mut add = vec![String::from("CLUSTER"), String::from("ADDSLOTS")];
            add.extend(slots.map(|slot| slot.to_string()));
            node.command(&add).good();
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(nth + 1).to_string()]).good();
        }
        for (nth, node) in nodes.iter().enumerate() {
            for other in &nodes[nth + 1..] {
                let port = other.port().to_string();
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port]).good();
            }
        }
        let cluster = Cluster { nodes };
        cluster.until_ok();
        cluster
    }

    pub(crate) fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// Waits until all nodes say that all slots are served.
    #[track_caller]
    pub(crate) fn until_ok(&self) {
        for node in &self.nodes {
            eventually("the cluster is complete", || {
                let text = node.command(&["CLUSTER", "INFO"]).good().text();
                let known = format!("cluster_known_nodes:{MASTERS}");
                let says = |wanted: &str| text.lines().any(|line| line == wanted);
                says("cluster_state:ok") && says("cluster_slots_ok:16384") && says(&known)
            });
        }
    }

    /// The slot of a key.
    #[track_caller]
    pub(crate) fn slot(&self, key: impl AsRef<[u8]>) -> u16 {
        let command = [b"CLUSTER".as_slice(), b"KEYSLOT", key.as_ref()];
        let slot = self.nodes[0].command(&command).good().integer();
        u16::try_from(slot).expect("a slot")
    }

    /// Which node serves a slot: its place among [`Cluster::nodes`].
    #[track_caller]
    pub(crate) fn owner(&self, slot: u16) -> usize {
        let serves = |node: &Server| {
            let text = node.command(&["CLUSTER", "NODES"]).good().text();
            let line = text.lines().find(|line| line.contains("myself")).expect("itself");
            // Ranges of slots follow eight other fields; those on the move are in brackets.
            line.split(' ').skip(8).filter(|range| !range.starts_with('[')).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let bound = |text: &str| text.parse::<u16>().expect("a slot");
                (bound(first)..=bound(last)).contains(&slot)
            })
        };
        self.nodes.iter().position(serves).expect("the slot is served")
    }

    /// The node that serves a key.
    #[track_caller]
    pub(crate) fn node_of(&self, key: impl AsRef<[u8]>) -> &Server {
        &self.nodes[self.owner(self.slot(key))]
    }

    /// All keys of all nodes, in order.
    #[track_caller]
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys = self.nodes.iter().flat_map(Server::keys).collect::<Vec<_>>();
        keys.sort();
        keys
    }

    /// Begins to move a slot to the node at this place. The old node sends clients to the new one
    /// for keys that it does not have (`ASK`); the new one answers `TRYAGAIN` to a command whose
    /// keys are torn apart, as does the old one since Redis 7.
    #[track_caller]
    pub(crate) fn begin_migration(&self, slot: u16, to: usize) -> Migration<'_> {
        let (from, to) = (&self.nodes[self.owner(slot)], &self.nodes[to]);
        let number = slot.to_string();
        let (old, new) = (id(from), id(to));
        to.command(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &old]).good();
        from.command(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &new]).good();
        Migration { cluster: self, slot: number, from, to }
    }

    /// Moves a slot and its keys to the node at this place.
    #[track_caller]
    pub(crate) fn migrate_slot(&self, slot: u16, to: usize) {
        self.begin_migration(slot, to).finish();
    }
}

/// A slot between two nodes. It stays there until the migration is finished.
#[derive(Debug)]
pub(crate) struct Migration<'a> {
    cluster: &'a Cluster,
    slot: String,
    from: &'a Server,
    to: &'a Server,
}

impl Migration<'_> {
    pub(crate) fn from(&self) -> &Server {
        self.from
    }

    pub(crate) fn to(&self) -> &Server {
        self.to
    }

    /// Moves this key.
    #[track_caller]
    pub(crate) fn move_key(&self, key: impl AsRef<[u8]>) {
        let port = self.to.port().to_string();
        let timeout = Duration::from_secs(5).as_millis().to_string();
        let words = ["MIGRATE", "127.0.0.1", &port, "", "0", &timeout, "KEYS"];
        let mut command = words.map(|word| word.as_bytes().to_vec()).to_vec();
        command.push(key.as_ref().to_vec());
        self.from.command(&command).good();
    }

    /// Moves up to so many keys of those that are left, and says how many those were.
    #[track_caller]
    pub(crate) fn move_keys(&self, limit: usize) -> usize {
        let limit = limit.to_string();
        let found = self.from.command(&["CLUSTER", "GETKEYSINSLOT", &self.slot, &limit]).good();
        let keys = found.items().into_iter().filter_map(Resp::bytes).collect::<Vec<_>>();
        keys.iter().for_each(|key| self.move_key(key));
        keys.len()
    }

    /// Moves the rest, and tells all nodes who serves the slot.
    #[track_caller]
    pub(crate) fn finish(self) {
        while self.move_keys(100) > 0 {}
        let new = id(self.to);
        // The new one first, else there is a moment in which nobody serves it.
        let others = self.cluster.nodes.iter().filter(|node| node.port() != self.to.port());
        for node in std::iter::once(self.to).chain(others) {
            node.command(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &new]).good();
        }
    }
}

fn id(node: &Server) -> String {
    node.command(&["CLUSTER", "MYID"]).good().text()
}
