//! A `redis-server` of a test's own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use tempfile::TempDir;

use super::connection::Connection;
use super::patience::{PATIENCE, eventually};
use super::ports;
use super::process::Process;
use super::resp::{Resp, encode};
use super::tls::Certificates;

/// How the harness calls itself, so that it can tell its own connections from others.
const OURSELVES: &str = "harness";

/// The harness's password where there are users.
const OUR_PASSWORD: &str = "seen-by-tests-only";

/// The keys that take a while to load stand in the last database, where nobody counts them.
const BALLAST: &str = "15";

/// A path of a socket may have 107 bytes, and the name of the directory comes on top.
const LONGEST_ROOT: usize = 70;

/// What a server is like. [`Builder::start`] starts it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Builder {
    password: Option<String>,
    users: Vec<String>,
    tls: bool,
    client_certificates: bool,
    ipv6: bool,
    bus: bool,
    sentinel: bool,
    lines: Vec<String>,
}

impl Builder {
    /// The password of the default user.
    pub(crate) fn password(mut self, password: &str) -> Builder {
        self.password = Some(password.to_string());
        self
    }

    /// A line of the file of users, as `user app on >secret ~* &* +@all`. Can be given many times.
    /// The default user needs no password, unless a line says so, as `user default off`.
    pub(crate) fn user(mut self, line: &str) -> Builder {
        self.users.push(line.to_string());
        self
    }

    /// TLS on the port, with certificates made for this server; clients need none.
    pub(crate) fn tls(mut self) -> Builder {
        self.tls = true;
        self
    }

    /// TLS, and each client must show a certificate.
    pub(crate) fn tls_both_ways(mut self) -> Builder {
        self.client_certificates = true;
        self.tls()
    }

    /// On `::1` instead of `127.0.0.1`. See [`ipv6_available`](super::ipv6_available).
    pub(crate) fn ipv6(mut self) -> Builder {
        self.ipv6 = true;
        self
    }

    /// The limit of memory and what happens at it, as `noeviction` or `allkeys-lru`.
    pub(crate) fn maxmemory(self, bytes: u64, policy: &str) -> Builder {
        self.line(format!("maxmemory {bytes}")).line(format!("maxmemory-policy {policy}"))
    }

    /// The seconds after which the server closes an idle connection.
    pub(crate) fn idle_timeout(self, seconds: u32) -> Builder {
        self.line(format!("timeout {seconds}"))
    }

    /// The longest string that the server takes, at least 1 MiB: it closes on whoever sends more.
    pub(crate) fn longest_string(self, bytes: u64) -> Builder {
        self.line(format!("proto-max-bulk-len {bytes}"))
    }

    /// A line of the configuration file.
    pub(crate) fn line(mut self, line: impl Into<String>) -> Builder {
        self.lines.push(line.into());
        self
    }

    /// A node of a cluster, which listens on a second port.
    pub(super) fn cluster_node(mut self) -> Builder {
        self.bus = true;
        self.line("cluster-enabled yes").line("cluster-config-file nodes.conf")
    }

    /// A sentinel.
    pub(super) fn sentinel(mut self) -> Builder {
        self.sentinel = true;
        self
    }

    /// Starts it and waits until it answers.
    #[track_caller]
    pub(crate) fn start(self) -> Server {
        match self.try_start() {
            Ok(server) => server,
            Err(log) => panic!("the server does not start:\n{log}"),
        }
    }

    /// An error is what the server has to say before it ends.
    #[track_caller]
    fn try_start(self) -> Result<Server, String> {
        let root = match env::temp_dir() {
            root if root.as_os_str().len() <= LONGEST_ROOT => root,
            _ => PathBuf::from("/tmp"),
        };
        let directory = tempfile::Builder::new().prefix("onefill-").tempdir_in(root);
        let directory = directory.expect("a directory for temporary files can be written to");
        let certificates = self.tls.then(|| Certificates::make(directory.path()));
        let mut server = Server {
            builder: self,
            certificates,
            port: 0,
            process: Mutex::default(),
            admin: Mutex::default(),
            script: Mutex::default(),
            directory,
        };
        // Somebody else may take the port between the draw and the start.
        for _ in 0..10 {
            server.port = match server.builder.bus {
                true => ports::free_with_bus(),
                false => ports::free(),
            };
            match server.launch(&[]) {
                Err(log) if log.contains("ddress already in use") => {}
                end => return end.map(|()| server),
            }
        }
        Err(String::from("each port is in use that was free just before"))
    }

    fn config(&self, port: u16, directory: &Path, certificates: Option<&Certificates>) -> String {
        let host = if self.ipv6 { "::1" } else { "127.0.0.1" };
        let mut lines = vec![
            format!("bind {host}"),
            format!("dir \"{}\"", directory.display()),
            format!("unixsocket \"{}\"", directory.join("socket").display()),
            String::from("logfile log"),
            String::from("protected-mode no"),
        ];
        match certificates {
            None => lines.push(format!("port {port}")),
            Some(files) => lines.extend([
                String::from("port 0"),
                format!("tls-port {port}"),
                format!("tls-ca-cert-file \"{}\"", files.authority.display()),
                format!("tls-cert-file \"{}\"", files.server.display()),
                format!("tls-key-file \"{}\"", files.server_key.display()),
                format!("tls-auth-clients {}", if self.client_certificates { "yes" } else { "no" }),
            ]),
        }
        if !self.sentinel {
            // Data goes to the disk only when a test says so.
            lines.extend(["save \"\"", "appendonly no", "dbfilename dump.rdb"].map(String::from));
        }
        if !self.users.is_empty() {
            lines.push(format!("aclfile \"{}\"", directory.join("users.acl").display()));
        }
        if let Some(password) = &self.password {
            match self.users.is_empty() {
                true => lines.push(format!("requirepass {password}")),
                // With a file of users, the server takes no password from elsewhere.
                false => panic!("the file of users says the password of the default user, too"),
            }
        }
        lines.extend(self.lines.iter().cloned());
        lines.join("\n") + "\n"
    }
}

/// A server. Dropped, it is killed and its directory removed.
///
/// Commands of the harness go through a socket in its directory, whatever its port speaks.
#[derive(Debug)]
pub(crate) struct Server {
    builder: Builder,
    certificates: Option<Certificates>,
    port: u16,
    // Dropped before the directory, which it writes to.
    process: Mutex<Option<Process>>,
    admin: Mutex<Option<Connection>>,
    script: Mutex<Option<Connection>>,
    directory: TempDir,
}

impl Server {
    /// One with nothing special about it.
    #[track_caller]
    pub(crate) fn start() -> Server {
        Server::builder().start()
    }

    pub(crate) fn builder() -> Builder {
        Builder::default()
    }

    /// The program: what `ONEFILL_REDIS_SERVER` names, else `redis-server` in the path.
    pub(crate) fn program() -> OsString {
        env::var_os("ONEFILL_REDIS_SERVER").unwrap_or_else(|| OsString::from("redis-server"))
    }

    /// Whether the program was built with TLS.
    pub(crate) fn tls_available() -> bool {
        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        // Says that it is not to listen for it, in words that only such a program knows.
        *AVAILABLE.get_or_init(|| Server::builder().line("tls-port 0").try_start().is_ok())
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn address(&self) -> SocketAddr {
        let host = match self.builder.ipv6 {
            true => IpAddr::V6(Ipv6Addr::LOCALHOST),
            false => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        SocketAddr::new(host, self.port)
    }

    /// Where clients connect to, with the password of the default user if it has one.
    pub(crate) fn url(&self) -> String {
        let password = self.builder.password.as_ref().map(|password| format!(":{password}@"));
        self.url_of(&password.unwrap_or_default())
    }

    /// The same for a user of the file of users.
    pub(crate) fn url_as(&self, user: &str, password: &str) -> String {
        self.url_of(&format!("{user}:{password}@"))
    }

    fn url_of(&self, credentials: &str) -> String {
        let scheme = if self.builder.tls { "rediss" } else { "redis" };
        format!("{scheme}://{credentials}{}/", self.address())
    }

    /// The socket in the file system.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The certificates of a server with TLS.
    #[track_caller]
    pub(crate) fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("the server was built with TLS")
    }

    /// The process, if there is one.
    pub(crate) fn process_id(&self) -> Option<u32> {
        self.process().as_ref().map(Process::id)
    }

    // ---- commands

    /// The answer to a command of the harness's.
    #[track_caller]
    pub(crate) fn command<A: AsRef<[u8]>>(&self, command: &[A]) -> Resp {
        match self.try_command(command) {
            Ok(answer) => answer,
            Err(error) => {
                let name = command.first().map(|name| name.as_ref().escape_ascii().to_string());
                panic!("the server does not answer {}: {error}", name.unwrap_or_default());
            }
        }
    }

    /// The same for a server that may be down.
    pub(crate) fn try_command<A: AsRef<[u8]>>(&self, command: &[A]) -> io::Result<Resp> {
        let mut admin = self.admin.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut connection) = admin.take() {
            match connection.call(command) {
                Ok(answer) => {
                    *admin = Some(connection);
                    return Ok(answer);
                }
                Err(error) if is_timeout(&error) => return Err(error),
                // The server has been restarted since, or has closed it for being idle.
                Err(_) => {}
            }
        }
        let mut connection = self.connect()?;
        let answer = connection.call(command)?;
        *admin = Some(connection);
        Ok(answer)
    }

    /// A connection of the harness's own, with all rights. It is not counted among the clients.
    pub(crate) fn connect(&self) -> io::Result<Connection> {
        let mut connection = Connection::unix(&self.socket())?;
        let refused = |answer: Resp| io::Error::other(answer.text());
        let login = match (&self.builder.password, self.builder.users.is_empty()) {
            (_, false) => vec!["AUTH", OURSELVES, OUR_PASSWORD],
            (Some(password), true) => vec!["AUTH", password],
            (None, true) => Vec::new(),
        };
        if !login.is_empty() {
            match connection.call(&login)? {
                answer if answer.is_error() => return Err(refused(answer)),
                _ => {}
            }
        }
        // A server that is loading refuses it, and then it does not matter.
        connection.call(&["CLIENT", "SETNAME", OURSELVES])?;
        Ok(connection)
    }

    /// A field of `INFO`.
    #[track_caller]
    pub(crate) fn info(&self, section: &str, field: &str) -> Option<String> {
        let text = self.command(&["INFO", section]).good().text();
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(name, _)| *name == field).map(|(_, value)| value.to_string())
    }

    #[track_caller]
    pub(crate) fn set_config(&self, name: &str, value: &str) {
        self.command(&["CONFIG", "SET", name, value]).good();
    }

    // ---- what is seen on it

    /// How often each command was executed, by its name in lower case; calls made by scripts count
    /// as well. The harness's own are among them.
    #[track_caller]
    pub(crate) fn calls_by_name(&self) -> BTreeMap<String, u64> {
        let text = self.command(&["INFO", "commandstats"]).good().text();
        let lines = text.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'));
        let calls = lines.filter_map(|(name, fields)| {
            let calls = fields.split(',').find_map(|field| field.strip_prefix("calls="))?;
            Some((name.to_string(), calls.parse().ok()?))
        });
        calls.collect()
    }

    /// How often this command was executed.
    #[track_caller]
    pub(crate) fn calls(&self, name: &str) -> u64 {
        self.calls_by_name().get(&name.to_lowercase()).copied().unwrap_or_default()
    }

    /// How many commands were executed, other than those by which the harness and clients learn
    /// about the server and introduce themselves.
    #[track_caller]
    pub(crate) fn total_calls(&self) -> u64 {
        let about = ["auth", "client", "config", "hello", "info", "ping", "scan", "select", "pttl"];
        let of_data = |name: &str| !about.contains(&name.split('|').next().unwrap_or(name));
        let calls = self.calls_by_name();
        calls.iter().filter(|(name, _)| of_data(name)).map(|(_, calls)| calls).sum()
    }

    /// Counts calls from zero.
    #[track_caller]
    pub(crate) fn reset_calls(&self) {
        self.command(&["CONFIG", "RESETSTAT"]).good();
    }

    /// All keys as they are, in order.
    #[track_caller]
    pub(crate) fn raw_keys(&self) -> Vec<Vec<u8>> {
        let (mut keys, mut cursor) = (Vec::new(), String::from("0"));
        loop {
            let page = self.command(&["SCAN", &cursor, "COUNT", "1000"]).good().items();
            let [next, found] = <[Resp; 2]>::try_from(page).expect("a cursor and keys");
            keys.extend(found.items().into_iter().filter_map(Resp::bytes));
            cursor = next.text();
            if cursor == "0" {
                break;
            }
        }
        keys.sort();
        keys.dedup();
        keys
    }

    /// All keys, readable: bytes that are no printable ASCII are escaped.
    #[track_caller]
    pub(crate) fn keys(&self) -> Vec<String> {
        self.raw_keys().iter().map(|key| readable(key)).collect()
    }

    /// The leases in this namespace.
    #[track_caller]
    pub(crate) fn leases(&self, namespace: &str) -> Vec<String> {
        let prefixes = [format!("{namespace}:l:"), format!("{namespace}:L:")];
        let mut keys = self.raw_keys();
        keys.retain(|key| prefixes.iter().any(|prefix| key.starts_with(prefix.as_bytes())));
        keys.iter().map(|key| readable(key)).collect()
    }

    /// The keys that would stay for ever.
    #[track_caller]
    pub(crate) fn keys_without_ttl(&self) -> Vec<String> {
        let mut keys = self.raw_keys();
        keys.retain(|key| self.command(&[b"PTTL".as_slice(), key]).good().integer() == -1);
        keys.iter().map(|key| readable(key)).collect()
    }

    /// How many clients are connected, subscribers among them, the harness not.
    #[track_caller]
    pub(crate) fn clients(&self) -> usize {
        let list = self.command(&["CLIENT", "LIST"]).good().text();
        let ours = format!(" name={OURSELVES} ");
        list.lines().filter(|line| !line.is_empty() && !line.contains(&ours)).count()
    }

    // ---- trouble

    /// Kills the process. Then the server is down until it is restarted.
    pub(crate) fn kill9(&self) {
        self.process().take();
    }

    /// Starts it on the same port, without any data; kills it before if need be.
    #[track_caller]
    pub(crate) fn restart(&self) {
        self.kill9();
        self.remove_dump();
        self.relaunch(&[]);
    }

    /// Writes the data to its disk, from where [`Server::restart_keeping_data`] loads them.
    #[track_caller]
    pub(crate) fn save(&self) {
        self.command(&["SAVE"]).good();
    }

    /// Starts it on the same port with its data, or, if it is down already, with those of the last
    /// [`Server::save`].
    #[track_caller]
    pub(crate) fn restart_keeping_data(&self) {
        if self.process().is_some() {
            self.save();
            self.kill9();
        }
        self.relaunch(&[]);
    }

    /// Stops the process in its tracks: connections stay open, and new ones are accepted by the
    /// system, but nothing is answered.
    #[track_caller]
    pub(crate) fn pause(&self) {
        self.process().as_ref().expect("the server is running").pause();
    }

    #[track_caller]
    pub(crate) fn resume(&self) {
        self.process().as_ref().expect("the server is running").resume();
    }

    /// Closes the connections of all clients, subscribers among them, and says how many those were.
    #[track_caller]
    pub(crate) fn client_kill_all(&self) -> usize {
        let kill = |kind| self.command(&["CLIENT", "KILL", "TYPE", kind]).good().integer();
        usize::try_from(kill("normal") + kill("pubsub")).expect("a number of clients")
    }

    /// Forgets all scripts.
    #[track_caller]
    pub(crate) fn script_flush(&self) {
        self.command(&["SCRIPT", "FLUSH"]).good();
    }

    /// Answers `MISCONF` to writes and to `PING`: the last attempt to save has failed.
    #[track_caller]
    pub(crate) fn make_misconf(&self) {
        self.remove_dump();
        // Nothing can be renamed to a directory that is not empty.
        let in_the_way = self.dump().join("in the way");
        fs::create_dir_all(in_the_way).expect("the directory is our own");
        self.set_config("save", "3600 1000000");
        // Fails at once, or in the background.
        self.command(&["BGSAVE"]);
        eventually("a save has failed", || {
            self.info("persistence", "rdb_last_bgsave_status").as_deref() == Some("err")
        });
    }

    #[track_caller]
    pub(crate) fn end_misconf(&self) {
        self.set_config("save", "");
        self.remove_dump();
    }

    /// Makes it the replica of a master that is not there: it keeps its data, answers reads, and `READONLY` to
    /// writes.
    #[track_caller]
    pub(crate) fn make_readonly(&self) {
        self.command(&["REPLICAOF", "127.0.0.1", "1"]).good();
    }

    #[track_caller]
    pub(crate) fn make_writable(&self) {
        self.command(&["REPLICAOF", "NO", "ONE"]).good();
    }

    /// Answers `OOM` to commands that take memory.
    #[track_caller]
    pub(crate) fn make_oom(&self) {
        self.set_config("maxmemory-policy", "noeviction");
        self.set_config("maxmemory", "1");
    }

    #[track_caller]
    pub(crate) fn end_oom(&self) {
        self.set_config("maxmemory", "0");
    }

    /// Answers `NOREPLICAS` to writes.
    #[track_caller]
    pub(crate) fn make_noreplicas(&self) {
        self.set_config("min-replicas-to-write", "1");
    }

    #[track_caller]
    pub(crate) fn end_noreplicas(&self) {
        self.set_config("min-replicas-to-write", "0");
    }

    /// Makes it the replica of a master that is not there, and one that does not read without it:
    /// it answers `MASTERDOWN` to reads, and since Redis 7 to `PING`, until
    /// [`Server::make_writable`].
    #[track_caller]
    pub(crate) fn make_masterdown(&self) {
        self.set_config("replica-serve-stale-data", "no");
        self.make_readonly();
    }

    /// Answers `BUSY` to everything, since a script does not come to its end. It takes a whole
    /// processor, so not for long: until [`Server::end_busy`].
    #[track_caller]
    pub(crate) fn make_busy(&self) {
        // The milliseconds for which a script may keep others waiting.
        self.set_config("lua-time-limit", "5");
        let mut connection = self.connect().expect("the server is up");
        let script = encode(&["EVAL", "while true do end", "0"]);
        connection.send(&script).expect("the server is up");
        eventually("the script runs", || self.command(&["PING"]).error_code() == Some("BUSY"));
        // Else the server would find, once it has time, that nobody wants the script's result.
        *self.script.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
    }

    #[track_caller]
    pub(crate) fn end_busy(&self) {
        self.command(&["SCRIPT", "KILL"]).good();
        // It ends at its next turn, not with this answer.
        eventually("the script has ended", || !self.command(&["PING"]).is_error());
        self.script.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Restarts it with its data, which take at least so long to load: until then, or until
    /// [`Server::end_loading`], it answers `LOADING`.
    #[track_caller]
    pub(crate) fn loading_restart(&self, time: Duration) {
        // While it loads, the server has an ear for clients only after so many bytes; Redis 6 knows
        // no other number than 2 MiB, so it needs large keys. Each key takes the time that it is
        // told, and more on a machine that is busy.
        let interval = "loading-process-events-interval-bytes";
        let known = !self.command(&["CONFIG", "GET", interval]).good().items().is_empty();
        let (per_key, bytes) = match known {
            true => (Duration::from_micros(200), 48),
            false => (Duration::from_millis(3), 32 << 10),
        };
        let keys = time.as_micros() / per_key.as_micros() + 100;
        let fill = format!(
            "redis.call('SELECT', {BALLAST}) local value = string.rep('x', {bytes}) \
             for i = 1, {keys} do redis.call('SET', 'ballast:' .. i, value) end"
        );
        self.set_config("rdbcompression", "no");
        self.command(&["EVAL", &fill, "0"]).good();
        self.save();
        self.kill9();
        let delay = format!("key-load-delay {}", per_key.as_micros());
        let interval = format!("{interval} 1024");
        let lines = [delay.as_str(), interval.as_str()];
        self.relaunch(if known { &lines } else { &lines[..1] });
    }

    /// Waits until the data are there, and forgets what only made it slow. The rest is loaded at
    /// once; Redis 6, which takes no settings while it loads, needs all its time.
    #[track_caller]
    pub(crate) fn end_loading(&self) {
        let mut connection = self.connect().expect("the server is up");
        let mut call = |command: &[&str]| connection.call(command).expect("the server is up");
        call(&["CONFIG", "SET", "key-load-delay", "0"]);
        // Allowed at any time, unlike the other one.
        call(&["SELECT", BALLAST]).good();
        eventually("the server has loaded its data", || !call(&["FLUSHDB"]).is_error());
    }

    // ---- its process

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dump(&self) -> PathBuf {
        self.directory.path().join("dump.rdb")
    }

    /// Removes the file, or the directory that is in its way. Both may be absent.
    fn remove_dump(&self) {
        let _ = fs::remove_file(self.dump());
        let _ = fs::remove_dir_all(self.dump());
    }

    /// Starts it once more on its port, which is nobody else's in this process, but somebody
    /// outside may have taken it for a moment.
    #[track_caller]
    fn relaunch(&self, lines: &[&str]) {
        let began = Instant::now();
        while let Err(log) = self.launch(lines) {
            let taken = log.contains("ddress already in use");
            assert!(taken && began.elapsed() < PATIENCE, "the server does not restart:\n{log}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Starts it, with these lines after its configuration, and waits until it answers. An error is
    /// what it has to say before it ends.
    #[track_caller]
    fn launch(&self, lines: &[&str]) -> Result<(), String> {
        let directory = self.directory.path();
        let write = |name: &str, content: &str| {
            let path = directory.join(name);
            fs::write(&path, content).expect("the directory is our own");
            path
        };
        let config = self.builder.config(self.port, directory, self.certificates.as_ref());
        let config = write("server.conf", &(config + &lines.join("\n") + "\n"));
        if !self.builder.users.is_empty() {
            let ours = format!("user {OURSELVES} on >{OUR_PASSWORD} ~* &* +@all\n");
            write("users.acl", &(self.builder.users.join("\n") + "\n" + &ours));
        }
        // What it has to say goes to the log, unless it does not understand its configuration.
        let logs = [write("log", ""), write("output", "")];
        let output = File::create(&logs[1]).expect("the directory is our own");

        let program = Server::program();
        let mut command = Command::new(&program);
        command.arg(config).args(self.builder.sentinel.then_some("--sentinel"));
        let mut process = match Process::start(&mut command, directory, &output) {
            Ok(process) => process,
            Err(error) => panic!(
                "this test needs a Redis or Valkey server, and {} cannot be started: {error}. \
                 Install one, or name it in ONEFILL_REDIS_SERVER; ./tests/run does the former",
                program.display()
            ),
        };
        let began = Instant::now();
        loop {
            // It has bound its port before it listens on the socket.
            if let Ok(answer) = self.connect().and_then(|mut line| line.call(&["PING"])) {
                // With a delay it is to be met while it loads.
                if answer.error_code() != Some("LOADING") || !lines.is_empty() {
                    *self.process() = Some(process);
                    return Ok(());
                }
            }
            let log = || logs.each_ref().map(|log| fs::read_to_string(log).unwrap_or_default());
            let log = || log().concat();
            if process.has_ended() {
                return Err(log());
            }
            assert!(began.elapsed() < PATIENCE, "the server does not answer:\n{}", log());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn readable(key: &[u8]) -> String {
    key.escape_ascii().to_string()
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
