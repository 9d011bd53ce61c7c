//! What these tests share: instances, as if each were a process of its own, and loaders that wait
//! for their cue.

pub(super) use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
pub(super) use std::sync::{Arc, Barrier, Mutex, mpsc};
pub(super) use std::thread;
pub(super) use std::time::{Duration, Instant};

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Child, Command, Stdio};

pub(super) use onefill::fleet::redis::{Client, Redis, RedisBuilder, Server as Address};
pub(super) use onefill::fleet::{
    Acquired, Committed, Entry, Epoch, Event, Fleet, Key, Lease, Listener, Namespace, News, Notice,
    Origin, Ownership, Reaction, Seen, Stored, Table, Tier, Token, codec, envelope,
};
pub(super) use onefill::{
    Answer, Cache, CacheBuilder, Deadline, Error, Fill, Load, Refusal, Source, TierError,
};

pub(super) use crate::servers::{
    Action, Call, Cluster, Fault, Mode, Proxy, Resp, Sentinels, Server, Stub, Unreachable,
    eventually, ipv6_available, named,
};

/// Longer than any test takes on a busy machine: past it, something hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the body of a test where it can hang without hanging the test.
pub(super) fn within(body: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(body));
        // Nobody receives it if the test was given up.
        let _ = done.send(result);
    });
    match ended.recv_timeout(PATIENCE) {
        Ok(Ok(())) => {}
        Ok(Err(payload)) => resume_unwind(payload),
        Err(_) => panic!("some thread of this test hangs: no end within {PATIENCE:?}"),
    }
}

pub(super) type Pages = Cache<u64, String, &'static str>;

pub(super) type Builder = CacheBuilder<u64, String, &'static str>;

/// More than a busy machine takes for an answer.
pub(super) const NOISE: Duration = Duration::from_secs(10);

pub(super) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Settings for a server that is slow only because the machine is.
pub(super) fn patient(address: Address) -> RedisBuilder {
    let builder = Redis::over(address).pool_wait(NOISE).connect_timeout(NOISE).io_timeout(NOISE);
    builder.budget(NOISE)
}

pub(super) fn address(server: &Server, client: Client) -> Address {
    Address::tcp("127.0.0.1", server.port()).client(client)
}

/// A process with one cache.
pub(super) struct Instance {
    pub(super) fleet: Fleet,
    pub(super) cache: Pages,
    pub(super) loads: Arc<AtomicUsize>,
}

impl Instance {
    /// Its loader says how many loads there were.
    pub(super) fn new(server: &Server, client: Client) -> Instance {
        let loads = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&loads);
        let load = move |key: u64| Ok(format!("{key}: {}", count.fetch_add(1, SeqCst) + 1).into());
        Instance { loads, ..Instance::with(server, client, load) }
    }

    pub(super) fn with(
        server: &Server,
        client: Client,
        load: impl Fn(u64) -> Result<Fill<String>, &'static str> + Send + Sync + 'static,
    ) -> Instance {
        Instance::at(&server.url(), client, load)
    }

    pub(super) fn at(
        url: &str,
        client: Client,
        load: impl Fn(u64) -> Result<Fill<String>, &'static str> + Send + Sync + 'static,
    ) -> Instance {
        let fleet = Fleet::redis(url).client(client);
        let fleet = fleet.pool_wait(NOISE).connect_timeout(NOISE).io_timeout(NOISE).budget(NOISE);
        Instance::on(fleet.build().unwrap(), |cache| cache.loader(move |asked| load(*asked.key())))
    }

    pub(super) fn on(fleet: Fleet, cache: impl FnOnce(Builder) -> Builder) -> Instance {
        let builder = Pages::builder("page").ttl(secs(600)).jitter(0.0).early_refresh(0.0);
        let cache = cache(builder.fleet(&fleet, codec::Raw)).build().unwrap();
        Instance { fleet, cache, loads: Arc::default() }
    }

    pub(super) fn get(&self, key: u64) -> Result<Answer<String>, Error<&'static str>> {
        self.cache.get(&key)
    }

    #[track_caller]
    pub(super) fn got(&self, key: u64) -> (String, Source) {
        let answer = self.get(key).unwrap();
        (answer.value().cloned().unwrap_or_default(), answer.source())
    }

    #[track_caller]
    pub(super) fn hearing(self) -> Self {
        eventually("notices come", || self.fleet.health().hears);
        self
    }

    pub(super) fn heard(&self) -> u64 {
        self.fleet.health().report.heard
    }
}

pub(super) fn key(id: u64) -> Key {
    Key::new(&Table::new("page"), &id)
}

pub(super) fn value_name(id: u64) -> Vec<u8> {
    Namespace::new("onefill").names(&key(id)).value
}

pub(super) fn lease_name(id: u64) -> Vec<u8> {
    Namespace::new("onefill").names(&key(id)).lease
}

/// What every test leaves behind: no lease, and nothing that stays for ever.
#[track_caller]
pub(super) fn tidy(server: &Server) {
    eventually("no lease is left", || server.leases("onefill").is_empty());
    assert_eq!(server.keys_without_ttl(), [""; 0]);
}

pub(super) const ME: Origin = Origin::from_u64(7);

/// Who is reached through a proxy.
pub(super) fn through(proxy: &Proxy, client: Client) -> Address {
    Address::tcp("127.0.0.1", proxy.port()).client(client)
}

/// The value of a key on the server, if there is one.
#[track_caller]
pub(super) fn stored(server: &Server, id: u64) -> Option<String> {
    let bytes = server.command(&[b"GET", &value_name(id)[..]]).bytes()?;
    let payload = envelope::inspect(&bytes).expect("an envelope").payload;
    Some(String::from_utf8_lossy(payload).into_owned())
}

/// Who has the lease of a key.
#[track_caller]
pub(super) fn holder(server: &Server, id: u64) -> Option<Vec<u8>> {
    server.command(&[b"GET", &lease_name(id)[..]]).bytes()
}

/// A holder that takes the lease of a key and is never heard of again.
#[track_caller]
pub(super) fn dead_holder(server: &Server, id: u64, ttl: Duration) -> Vec<u8> {
    let (name, token) = (lease_name(id), Token::random());
    let ttl = ttl.as_millis().to_string();
    let command: [&[u8]; 6] = [b"SET", &name, token.as_bytes(), b"NX", b"PX", ttl.as_bytes()];
    assert_eq!(server.command(&command).text(), "OK");
    token.as_bytes().to_vec()
}

/// Has the server know all scripts that a load needs, so that none is sent twice.
pub(super) fn teach(server: &Server, client: Client) {
    let teacher = Instance::new(server, client);
    teacher.got(999_999);
    teacher.cache.invalidate(&999_999).unwrap();
}

/// Chooses a script among the commands that a proxy sees, by how many keys and arguments it has.
pub(super) fn script(name: &str) -> impl Fn(&[Vec<u8>]) -> bool + Send + 'static + use<> {
    let (keys, arguments, epoch) = match name {
        "acquire" => (2, 3, false),
        "commit" => (2, 5, false),
        "put" => (2, 4, false),
        "invalidate" => (2, 2, false),
        "release" => (1, 3, false),
        "renew" => (1, 2, false),
        "epoch" => (1, 2, true),
        other => panic!("no script of this name: {other}"),
    };
    move |command| {
        (named("EVALSHA")(command) || named("EVAL")(command))
            && command[2] == keys.to_string().into_bytes()
            && command.len() == 3 + keys + arguments
            && command[3].starts_with(b"onefill:e:") == epoch
    }
}

/// The loader of a test that decides when and how each load ends.
#[derive(Clone)]
pub(super) struct Stage {
    begun: (crossbeam_channel::Sender<u64>, crossbeam_channel::Receiver<u64>),
    ends: (crossbeam_channel::Sender<Loaded>, crossbeam_channel::Receiver<Loaded>),
    loads: Arc<AtomicUsize>,
}

pub(super) type Loaded = Result<Fill<String>, &'static str>;

impl Stage {
    pub(super) fn new() -> Stage {
        let (begun, ends) = (crossbeam_channel::unbounded(), crossbeam_channel::unbounded());
        Stage { begun, ends, loads: Arc::default() }
    }

    pub(super) fn loader(&self) -> impl Fn(u64) -> Loaded + Send + Sync + 'static + use<> {
        let stage = self.clone();
        move |key| {
            stage.loads.fetch_add(1, SeqCst);
            stage.begun.0.send(key).unwrap();
            stage.ends.1.recv_timeout(PATIENCE / 4).expect("a load is told its end")
        }
    }

    /// Waits for a load to begin.
    #[track_caller]
    pub(super) fn begun(&self) {
        self.begun.1.recv_timeout(PATIENCE / 2).expect("a load begins");
    }

    /// Ends one load.
    pub(super) fn end(&self, end: Loaded) {
        self.ends.0.send(end).unwrap();
    }

    pub(super) fn end_with(&self, value: &str) {
        self.end(Ok(value.to_string().into()));
    }

    pub(super) fn loads(&self) -> usize {
        self.loads.load(SeqCst)
    }
}

impl Instance {
    /// With settings of its own.
    pub(super) fn over(fleet: RedisBuilder, cache: impl FnOnce(Builder) -> Builder) -> Instance {
        Instance::on(fleet.build().unwrap(), cache)
    }

    /// With settings of its own, and a loader that says how many loads there were.
    pub(super) fn counting(
        fleet: RedisBuilder,
        cache: impl FnOnce(Builder) -> Builder,
    ) -> Instance {
        let loads = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&loads);
        let load = move |load: &Load<'_, u64, String>| {
            Ok(format!("{}: {}", load.key(), count.fetch_add(1, SeqCst) + 1))
        };
        Instance { loads, ..Instance::over(fleet, |builder| cache(builder.loader(load))) }
    }

    pub(super) fn loads(&self) -> usize {
        self.loads.load(SeqCst)
    }

    /// The value alone.
    #[track_caller]
    pub(super) fn value(&self, key: u64) -> String {
        self.got(key).0
    }

    /// What every test leaves behind in a process: nothing in flight, and every call counted.
    #[track_caller]
    pub(super) fn idle(&self) {
        eventually("nothing is in flight", || {
            let gauges = self.cache.stats().gauges;
            gauges.flights + gauges.waiting + gauges.loading + gauges.queued + gauges.working == 0
                && self.fleet.health().leases == 0
        });
        let stats = self.cache.stats();
        assert_eq!(stats.calls(), stats.ends().iter().map(|(_, count)| count).sum::<u64>());
    }
}

/// Runs a test that is ignored, in a process of its own.
pub(super) fn alone(test: &str, server: &Server, client: Client) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", "--test-threads=1", test]);
    command.env(PORT, server.port().to_string()).env(CLIENT, format!("{client:?}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

const PORT: &str = "ONEFILL_TEST_PORT";
const CLIENT: &str = "ONEFILL_TEST_CLIENT";

/// Where the server is of a test in a process of its own.
pub(super) fn told() -> Address {
    let told = |name| std::env::var(name).expect("this is run by another test");
    let (port, name) = (told(PORT).parse().unwrap(), told(CLIENT));
    let clients = [
        #[cfg(feature = "redis")]
        Client::Redis,
        #[cfg(feature = "r2d2_redis")]
        Client::R2d2Redis,
    ];
    let client = clients.into_iter().find(|client| format!("{client:?}") == name).unwrap();
    Address::tcp("127.0.0.1", port).client(client)
}
