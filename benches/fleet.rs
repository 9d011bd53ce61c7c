//! What a fleet on a real server costs, as ratios within one run.
//!
//! - **A hit in the shared tier**: a key that another process has filled and this one has never
//!   asked for, against the bare client that sends the same two commands in one round trip.
//! - **A fill**: a key that nobody has, whose loader returns at once, against the bare client that
//!   sends the same commands: the look, the lease, and the commit with its notice.
//! - **A herd**: 40 processes' worth of instances, five callers each, one cold key, a load of 30 ms:
//!   how many commands were sent in all, for each process.
//! - **A loser's wait**: 40 instances, one caller each, a load of 50 ms: when the last caller has
//!   the value, in loads. Once with notices, and once with no subscription to be had.
//!
//! `cargo bench --bench fleet --features redis` measures everything, `… -- herd` what has a ratio of
//! such a name; with `--features r2d2_redis` instead, on that client. How is told in [`support`]. It
//! starts a `redis-server` of its own on a free port of the loopback, and says that it skips if there
//! is none. Values are strings of 1 KiB.

#[cfg(any(feature = "redis", feature = "r2d2_redis"))]
mod support;

#[cfg(any(feature = "redis", feature = "r2d2_redis"))]
#[path = "../tests/servers/mod.rs"]
mod servers;

#[cfg(not(any(feature = "redis", feature = "r2d2_redis")))]
fn main() {
    println!("SKIPPED: all of fleet, for want of a client: --features redis, or r2d2_redis");
}

#[cfg(any(feature = "redis", feature = "r2d2_redis"))]
fn main() {
    on_a_server::main();
}

#[cfg(any(feature = "redis", feature = "r2d2_redis"))]
mod on_a_server {
    use std::convert::Infallible;
    use std::hint::black_box;
    use std::process::Command as Process;
    use std::sync::Arc;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use onefill::fleet::redis::{Command, Dial, Redis, Reply, Server as Place, Subscription, Wire};
    use onefill::fleet::{Fleet, Key, News, Notice, Origin, Table, Token, codec};
    use onefill::{Cache, Deadline, Load, TierError};
    #[cfg(not(feature = "redis"))]
    use r2d2_redis::redis as bare;
    #[cfg(feature = "redis")]
    use redis as bare;

    use crate::servers::Server;
    use crate::support::{Ratio, Report, medians, ratio};

    type Pages = Cache<u64, String, Infallible>;

    pub(crate) fn main() {
        if Process::new(Server::program()).arg("--version").output().is_err() {
            println!("SKIPPED: all of fleet, for want of a redis-server");
            return;
        }
        let report = Report::asked_for();
        let server = Server::start();
        let ratios = [
            hit(&report, &server),
            fill(&report, &server),
            commands(&report, &server),
            waits(&report, &server),
        ];
        report.print(ratios.into_iter().flatten());
    }

    /// The server as a fleet reaches it; counts what is sent.
    #[derive(Debug)]
    struct Counted {
        place: Place,
        commands: Arc<AtomicU64>,
        /// Whether there are subscriptions to be had.
        hears: bool,
    }

    struct CountedWire(Box<dyn Wire>, Arc<AtomicU64>);

    impl Dial for Counted {
        fn dial(&self, deadline: Deadline) -> Result<Box<dyn Wire>, TierError> {
            let wire = self.place.dial(deadline)?;
            Ok(Box::new(CountedWire(wire, Arc::clone(&self.commands))))
        }

        fn subscribe(
            &self,
            channels: &[&[u8]],
            deadline: Deadline,
        ) -> Result<Box<dyn Subscription>, TierError> {
            match self.hears {
                true => self.place.subscribe(channels, deadline),
                false => Err(TierError::Unreachable("no subscriptions here".into())),
            }
        }
    }

    impl Wire for CountedWire {
        fn call(
            &mut self,
            commands: &[Command<'_>],
            deadline: Deadline,
        ) -> Result<Vec<Reply>, TierError> {
            self.1.fetch_add(commands.len() as u64, Ordering::Relaxed);
            self.0.call(commands, deadline)
        }
    }

    /// A process's worth of a fleet, with one cache.
    struct Instance {
        fleet: Fleet,
        pages: Pages,
    }

    /// What a busy machine may add to an answer, so that none is taken for a fault.
    const PATIENCE: Duration = Duration::from_secs(10);

    impl Instance {
        fn new(
            server: &Server,
            commands: &Arc<AtomicU64>,
            hears: bool,
            load: impl Fn() + Send + Sync + 'static,
        ) -> Instance {
            let place = Place::tcp("127.0.0.1", server.port());
            let dial = Counted { place, commands: Arc::clone(commands), hears };
            let fleet = Redis::over(dial)
                .pool_wait(PATIENCE)
                .connect_timeout(PATIENCE)
                .io_timeout(PATIENCE)
                .budget(PATIENCE)
                .build()
                .expect("its settings are right");
            let pages = Cache::builder("page")
                .ttl(Duration::from_secs(3_600))
                .capacity(100)
                .loader(move |_: &Load<'_, u64, String>| {
                    load();
                    Ok(text())
                })
                .fleet(&fleet, codec::Raw)
                .build()
                .expect("its settings are right");
            let began = Instant::now();
            while hears && !fleet.health().hears {
                assert!(began.elapsed() < PATIENCE, "no notices: {:?}", fleet.health());
                thread::sleep(Duration::from_millis(1));
            }
            Instance { fleet, pages }
        }
    }

    fn text() -> String {
        "tea ".repeat(256)
    }

    /// The client that both sides are built on, by itself.
    struct Bare {
        connection: bare::Connection,
        acquire: String,
        commit: String,
    }

    impl Bare {
        fn new(server: &Server) -> Bare {
            let url = server.url();
            let client = bare::Client::open(url.as_str()).expect("the URL is right");
            let mut connection = client.get_connection().expect("the server is there");
            let mut load = |script: &str| -> String {
                let load = bare::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut connection);
                load.expect("scripts are allowed")
            };
            let acquire = load(include_str!("../src/fleet/redis/lua/acquire.lua"));
            let commit = load(include_str!("../src/fleet/redis/lua/commit.lua"));
            Bare { connection, acquire, commit }
        }

        fn look(&mut self, name: &[u8]) -> Option<Vec<u8>> {
            let mut both = bare::pipe();
            both.cmd("PTTL").arg(name).cmd("GET").arg(name);
            let (_, value): (i64, _) = both.query(&mut self.connection).expect("it answers");
            value
        }

        fn fill(&mut self, number: u64, envelope: &[u8]) {
            let key = Key::new(&Table::new("bare"), &number);
            let names = onefill::fleet::Namespace::new("onefill").names(&key);
            assert_eq!(self.look(&names.value), None);
            let token = Token::random();
            let mut acquire = bare::cmd("EVALSHA");
            acquire.arg(&self.acquire).arg(2).arg(&names.value[..]).arg(&names.lease[..]);
            acquire.arg(&token.as_bytes()[..]).arg(10_000).arg("");
            let won: Vec<i64> = acquire.query(&mut self.connection).expect("it answers");
            assert_eq!(won, [2]);
            let news = News::Filled {
                key: key.fingerprint(),
                version: token,
                envelope: Some(envelope.into()),
            };
            let notice = Notice { from: Origin::random(), news }.to_bytes();
            let mut commit = bare::cmd("EVALSHA");
            commit.arg(&self.commit).arg(2).arg(&names.value[..]).arg(&names.lease[..]);
            commit.arg(&token.as_bytes()[..]).arg(envelope).arg(3_600_000);
            commit.arg("onefill:ev").arg(notice);
            let stored: Vec<i64> = commit.query(&mut self.connection).expect("it answers");
            assert_eq!(stored, [1]);
        }
    }

    /// Keys that are filled: more than L1 has room for, by so much that next to none is asked for
    /// again before it is forgotten.
    const FILLED: u64 = 20_000;
    /// Calls of a round.
    const CALLS: u64 = 200;

    fn hit(report: &Report, server: &Server) -> Vec<Ratio> {
        const NAME: &str = "l2_hit_vs_raw_get";
        if !report.wants(NAME) {
            return Vec::new();
        }
        let commands = Arc::default();
        let other = Instance::new(server, &commands, true, || ());
        for key in 0..FILLED {
            let _ = other.pages.get(&key).expect("the loader does not fail");
        }
        let ours = Instance::new(server, &commands, true, || unreachable!("it is there"));
        let mut bare = Bare::new(server);
        let namespace = onefill::fleet::Namespace::new("onefill");
        let names: Vec<_> = (0..FILLED)
            .map(|key| namespace.names(&Key::new(&Table::new("page"), &key)).value)
            .collect();

        let mut next = 0;
        let mut keys = || {
            next = (next + CALLS) % FILLED;
            next..next + CALLS
        };
        let rounds = report.rounds(1, Duration::from_secs(6), || {
            [
                timed(|| {
                    for key in keys() {
                        let _ = black_box(ours.pages.get(&(key % FILLED)).expect("it is there"));
                    }
                }),
                timed(|| {
                    for key in keys() {
                        black_box(bare.look(&names[(key % FILLED) as usize]).expect("so is it"));
                    }
                }),
            ]
        });
        let stats = ours.pages.stats();
        // L1 keeps one or another that was asked for twice.
        assert!(stats.loads == 0 && stats.hits < stats.calls() / 50, "{stats}");
        vec![compared(NAME, "a hit in the shared tier", &rounds)]
    }

    fn fill(report: &Report, server: &Server) -> Vec<Ratio> {
        const NAME: &str = "fill_vs_raw_acquire_commit";
        if !report.wants(NAME) {
            return Vec::new();
        }
        let ours = Instance::new(server, &Arc::default(), true, || ());
        let mut bare = Bare::new(server);
        // Of the length that ours have, and nobody reads it.
        let _ = ours.pages.get(&u64::MAX).expect("the loader does not fail");
        let key = Key::new(&Table::new("page"), &u64::MAX);
        let name = onefill::fleet::Namespace::new("onefill").names(&key).value;
        let envelope = bare.look(&name).expect("it has just been filled");

        let mut cold = 1_000_000..;
        let mut keys = move || cold.by_ref().take(CALLS as usize).collect::<Vec<u64>>();
        let rounds = report.rounds(1, Duration::from_secs(6), || {
            let keys = keys();
            [
                timed(|| {
                    for key in &keys {
                        let _ = black_box(ours.pages.get(key).expect("the loader does not fail"));
                    }
                }),
                timed(|| keys.iter().for_each(|key| bare.fill(*key, &envelope))),
            ]
        });
        let stats = ours.pages.stats();
        assert_eq!((stats.degraded, stats.leases_lost), (0, 0), "{stats}");
        vec![compared(NAME, "a fill", &rounds)]
    }

    fn timed(calls: impl FnOnce()) -> f64 {
        let began = Instant::now();
        calls();
        began.elapsed().as_nanos() as f64 / CALLS as f64
    }

    fn compared(name: &str, what: &str, rounds: &[[f64; 2]]) -> Ratio {
        let [ours, bare] = medians(rounds);
        println!("{what}, {} rounds: us per call", rounds.len());
        println!("  onefill                  {:>9.1}", ours / 1_000.0);
        println!("  the bare client          {:>9.1}\n", bare / 1_000.0);
        ratio(name, ours, bare, 1.5)
    }

    const INSTANCES: usize = 40;

    /// What is common to all: an epoch that is known, and connections that are made.
    fn fleet_of(
        server: &Server,
        commands: &Arc<AtomicU64>,
        hears: bool,
        load: Duration,
    ) -> Vec<Instance> {
        let instances: Vec<_> = (0..INSTANCES)
            .map(|_| Instance::new(server, commands, hears, move || thread::sleep(load)))
            .collect();
        for instance in &instances {
            let _ = instance.pages.get(&u64::MAX).expect("the loader does not fail");
        }
        instances
    }

    /// All callers ask for a key at once: how long each waited.
    fn herd(instances: &[Instance], callers: usize, key: u64) -> Vec<Duration> {
        let start = Barrier::new(instances.len() * callers);
        thread::scope(|scope| {
            let calls: Vec<_> = instances
                .iter()
                .flat_map(|instance| std::iter::repeat_n(instance, callers))
                .map(|instance| {
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        let began = Instant::now();
                        let answer = instance.pages.get(&key).expect("the loader does not fail");
                        assert_eq!(answer.value().map(String::len), Some(1_024));
                        began.elapsed()
                    })
                })
                .collect();
            calls.into_iter().map(|call| call.join().expect("no caller panics")).collect()
        })
    }

    fn loads(instances: &[Instance]) -> u64 {
        instances.iter().map(|instance| instance.pages.stats().loads).sum()
    }

    fn commands(report: &Report, server: &Server) -> Vec<Ratio> {
        const NAME: &str = "herd_commands_per_process";
        if !report.wants(NAME) {
            return Vec::new();
        }
        let commands = Arc::new(AtomicU64::new(0));
        let instances = fleet_of(server, &commands, true, Duration::from_millis(30));
        let mut keys = 2_000_000..;
        let rounds = report.rounds(15, Duration::from_secs(3), || {
            let (sent, loaded) = (commands.load(Ordering::Relaxed), loads(&instances));
            herd(&instances, 5, keys.next().expect("there are more"));
            assert_eq!(loads(&instances) - loaded, 1, "one load in all");
            [(commands.load(Ordering::Relaxed) - sent) as f64 / INSTANCES as f64]
        });
        let [value] = medians(&rounds);
        println!("a herd of 40 x 5, {} rounds: {value:.2} commands per process\n", rounds.len());
        vec![Ratio { name: NAME.to_owned(), value, target: 4.0 }]
    }

    fn waits(report: &Report, server: &Server) -> Vec<Ratio> {
        const LOAD: Duration = Duration::from_millis(50);
        let kinds = [("loser_wake_vs_load", true, 1.10), ("loser_wake_deaf_vs_load", false, 1.5)];
        let mut keys = 3_000_000..;
        let mut measured = Vec::new();
        for (name, hears, target) in kinds {
            if !report.wants(name) {
                continue;
            }
            let instances = fleet_of(server, &Arc::default(), hears, LOAD);
            let rounds = report.rounds(15, Duration::from_secs(3), || {
                let loaded = loads(&instances);
                let waits = herd(&instances, 1, keys.next().expect("there are more"));
                assert_eq!(loads(&instances) - loaded, 1, "one load in all");
                assert!(instances.iter().all(|instance| instance.fleet.health().hears == hears));
                let last = waits.into_iter().max().expect("there are callers");
                [last.as_secs_f64() / LOAD.as_secs_f64()]
            });
            let [value] = medians(&rounds);
            println!("{name}, {} rounds: {:.2?} for {LOAD:?}\n", rounds.len(), LOAD.mul_f64(value));
            measured.push(Ratio { name: name.to_owned(), value, target });
        }
        measured
    }
}
