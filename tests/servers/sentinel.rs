//! A master and its replica, watched by three sentinels.

use super::patience::eventually;
use super::resp::Resp;
use super::server::Server;

const SENTINELS: usize = 3;

/// Two servers of which one is the master at a time.
#[derive(Debug)]
pub(crate) struct Sentinels {
    servers: [Server; 2],
    sentinels: Vec<Server>,
}

impl Sentinels {
    /// By which the sentinels know the master.
    pub(crate) const NAME: &str = "main";

    /// Starts all and waits until the sentinels know each other and the replica.
    #[track_caller]
    pub(crate) fn start() -> Sentinels {
        // A replica is in line at once, not after the five seconds for which a master would wait
        // for others to join.
        let server =
            || Server::builder().line("repl-diskless-sync-delay 0").line("repl-timeout 10");
        let master = server().start();
        let port = master.port();
        let replica = server().line(format!("replicaof 127.0.0.1 {port}")).start();
        eventually("the replica is in line", || {
            replica.info("replication", "master_link_status").as_deref() == Some("up")
        });
        let name = Sentinels::NAME;
        let sentinel = || {
            Server::builder()
                .sentinel()
                .line(format!("sentinel monitor {name} 127.0.0.1 {port} 2"))
                .line(format!("sentinel down-after-milliseconds {name} 500"))
                .line(format!("sentinel failover-timeout {name} 2000"))
                .start()
        };
        let sentinels = (0..SENTINELS).map(|_| sentinel()).collect();
        let started = Sentinels { servers: [master, replica], sentinels };
        started.until_watched();
        started
    }

    /// Waits until each sentinel knows the others, and a replica that could be promoted.
    #[track_caller]
    fn until_watched(&self) {
        for sentinel in &self.sentinels {
            eventually("the sentinels know each other and the replica", || {
                let master = fields(sentinel.command(&["SENTINEL", "MASTER", Self::NAME]));
                let replicas = sentinel.command(&["SENTINEL", "REPLICAS", Self::NAME]).good();
                let mut replicas = replicas.items().into_iter().map(fields);
                let says = |fields: &[(String, String)], name: &str, value: &str| {
                    fields.iter().any(|field| field.0 == name && field.1 == value)
                };
                says(&master, "num-other-sentinels", &(SENTINELS - 1).to_string())
                    && says(&master, "flags", "master")
                    && replicas.any(|replica| {
                        says(&replica, "flags", "slave")
                            && says(&replica, "master-link-status", "ok")
                    })
            });
        }
    }

    pub(crate) fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// Where clients ask for the master.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    /// Both servers, the first master first.
    pub(crate) fn servers(&self) -> &[Server; 2] {
        &self.servers
    }

    /// The master, as the first sentinel knows it.
    #[track_caller]
    pub(crate) fn master(&self) -> &Server {
        let port = self.sentinels[0].master_port();
        let mut servers = self.servers.iter();
        servers.find(|server| server.port() == port).expect("the sentinel names one of them")
    }

    /// The other one.
    #[track_caller]
    pub(crate) fn replica(&self) -> &Server {
        let port = self.sentinels[0].master_port();
        let mut servers = self.servers.iter();
        servers.find(|server| server.port() != port).expect("one of them is not the master")
    }

    /// Waits until the replica has all that the master has now.
    #[track_caller]
    pub(crate) fn until_replicated(&self) {
        let offset = |server: &Server, field| {
            let offset = server.info("replication", field).expect("it replicates");
            offset.parse::<u64>().expect("an offset")
        };
        let (replica, wanted) = (self.replica(), offset(self.master(), "master_repl_offset"));
        eventually("the replica keeps up", || offset(replica, "slave_repl_offset") >= wanted);
    }

    /// Kills the master, and waits until the replica has taken its place. The killed one is
    /// [`Sentinels::replica`] then, and stays down until it is restarted; then it takes itself for a
    /// master until the sentinels correct it, which takes them some ten seconds.
    #[track_caller]
    pub(crate) fn fail_over(&self) {
        let (old, new) = (self.master(), self.replica());
        old.kill9();
        self.until_promoted(new);
    }

    /// Has the sentinels promote the replica while the master is well. For some seconds, the old one
    /// still takes writes, which are lost in the end.
    #[track_caller]
    pub(crate) fn switch(&self) {
        let new = self.replica();
        self.sentinels[0].command(&["SENTINEL", "FAILOVER", Self::NAME]).good();
        self.until_promoted(new);
    }

    #[track_caller]
    fn until_promoted(&self, new: &Server) {
        eventually("the replica is promoted", || {
            new.info("replication", "role").as_deref() == Some("master")
        });
        for sentinel in &self.sentinels {
            eventually("the sentinels name the new master", || {
                sentinel.master_port() == new.port()
            });
        }
    }
}

impl Server {
    /// The port of the master that this sentinel names.
    #[track_caller]
    fn master_port(&self) -> u16 {
        let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Sentinels::NAME];
        let address = self.command(&command).good().items();
        address[1].text().parse().expect("a port")
    }
}

/// A flat list of names and values in pairs.
fn fields(flat: Resp) -> Vec<(String, String)> {
    let words = flat.good().items().iter().map(Resp::text).collect::<Vec<_>>();
    words.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}
