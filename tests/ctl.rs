//! The ctl example as its users run it: on a real server, beside caches that use it.
#![cfg(all(feature = "redis", feature = "json", unix, not(loom)))]

#[path = "programs/mod.rs"]
mod programs;
#[path = "servers/mod.rs"]
mod servers;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use onefill::fleet::redis::RedisBuilder;
use onefill::fleet::{Fleet, Key, Namespace, Table, codec};
use onefill::{Cache, Fill, Load, Source};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use servers::{Cluster, Server, eventually};

fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| programs::build("ctl"))
}

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn ctl(url: &str, arguments: &[&str]) -> Ran {
    let mut ctl = Command::new(binary());
    // A busy machine takes long for an answer.
    ctl.args(["--redis", url, "--timeout-ms", "20000"]).args(arguments).stdin(Stdio::null());
    let ran = ctl.output().expect("the example starts");
    Ran {
        code: ran.status.code(),
        out: String::from_utf8(ran.stdout).expect("it writes UTF-8"),
        err: String::from_utf8(ran.stderr).expect("it writes UTF-8"),
    }
}

#[track_caller]
fn succeed(url: &str, arguments: &[&str]) -> String {
    let ran = ctl(url, arguments);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{}", ran.out);
    ran.out
}

#[track_caller]
fn inspect(url: &str, arguments: &[&str]) -> Vec<Value> {
    let out = succeed(url, &[&["inspect"], arguments, &["--json"]].concat());
    serde_json::from_str(&out).unwrap_or_else(|_| panic!("no JSON: {out}"))
}

#[track_caller]
fn assert_refused(url: &str, arguments: &[&str], reason: &str) {
    let ran = ctl(url, arguments);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{}", ran.err);
    assert!(ran.err.starts_with("onefill-ctl: ") && ran.err.contains(reason), "{}", ran.err);
}

type Products = Cache<u64, String, &'static str>;

/// A fleet that has patience with a busy machine.
fn patient(url: &str) -> RedisBuilder {
    let long = Duration::from_secs(20);
    Fleet::redis(url).budget(long).pool_wait(long).connect_timeout(long).io_timeout(long)
}

/// What [`products`] loads: 43 is absent, 44 takes as long as it is let, 45 is stale at once.
fn products(url: &str, until: Option<mpsc::Receiver<()>>) -> Products {
    let until = until.map(Mutex::new);
    Cache::builder("product")
        .ttl(Duration::from_secs(300))
        .jitter(0.0)
        .stale_while_revalidate(Duration::from_secs(60))
        .loader(move |load: &Load<'_, u64, String>| {
            Ok(match load.key() {
                43 => Fill::absent(),
                44 => {
                    // Until it is told, or there is nobody left to tell.
                    let _ = until.as_ref().map(|until| until.lock().unwrap().recv());
                    Fill::new(load.token().expect("it has the lease").to_string())
                }
                45 => Fill::new("tea".to_owned()).ttl(Duration::from_millis(1)),
                key => Fill::new(format!("product {key}")),
            })
        })
        .fleet(&patient(url).build().unwrap(), codec::Raw)
        .build()
        .unwrap()
}

#[test]
fn it_shows_what_is_stored_and_who_is_loading() {
    let server = Server::start();
    let url = server.url();
    let (go_on, until) = mpsc::channel();
    let products = products(&url, Some(until));
    for key in [42, 43, 45] {
        let _ = products.get(&key).unwrap();
    }
    let busy = products.clone();
    let loading = thread::spawn(move || busy.get(&44).unwrap().into_value().unwrap());
    eventually("there is a lease", || !server.leases("onefill").is_empty());

    let all = inspect(&url, &["product"]);
    let keys: Vec<_> = all.iter().map(|found| found["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["42;", "43;", "44;", "45;"]);
    let [plain, absent, held, stale] = &all[..] else { panic!("{all:?}") };

    let value = &plain["value"];
    assert_eq!(plain["fingerprint"], "b0357cc9bc56c05cf1f9222e382b6eb9");
    assert_eq!((&value["state"], &value["absent"]), (&json!("fresh"), &json!(false)));
    assert_eq!((&value["ttl_ms"], &value["life_ms"]), (&json!(300_000), &json!(360_000)));
    assert_eq!(value["bytes"], "product 42".len());
    assert_eq!(value["version"].as_str().unwrap().len(), 32);
    let (age, left) = (value["age_ms"].as_u64().unwrap(), value["left_ms"].as_u64().unwrap());
    assert_eq!(age + left, 360_000);
    assert_eq!(plain["lease"], Value::Null);

    assert_eq!((&absent["value"]["absent"], &absent["value"]["bytes"]), (&json!(true), &json!(0)));
    assert_eq!(stale["value"]["state"], "stale");
    assert_eq!(held["value"], Value::Null);
    let lease = &held["lease"];
    assert!((1..=10_000).contains(&lease["left_ms"].as_u64().unwrap()), "{lease}");

    go_on.send(()).unwrap();
    let token = loading.join().unwrap();
    assert_eq!(lease["token"], token.as_str());
    // What was loaded under a lease has its token for a version.
    let one = inspect(&url, &["product", "44"]);
    assert_eq!((&one[0]["value"]["version"], &one[0]["lease"]), (&json!(token), &Value::Null));

    // The same for people.
    let out = succeed(&url, &["inspect", "product"]);
    let lines: Vec<_> = out.lines().map(str::trim).collect();
    assert!(lines[0].starts_with("key") && lines[0].ends_with("lease"), "{out}");
    assert!(lines[2].starts_with("42 ") && lines[2].contains("fresh"), "{out}");
    assert!(lines[3].starts_with("43 ") && lines[3].contains("absent"), "{out}");

    products.invalidate_all().unwrap();
    let _ = products.get(&43).unwrap();
    let states: Vec<_> = inspect(&url, &["product"])
        .iter()
        .map(|found| found["value"]["state"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(states, ["invalidated", "fresh", "invalidated", "invalidated"]);
}

#[test]
fn keys_of_any_form_are_found_and_tables_do_not_mix() {
    let server = Server::start();
    let url = server.url();
    let fleet = patient(&url).namespace("sh*p").build().unwrap();
    let cache = |name: &str| -> Cache<(String, i64), String, ()> {
        Cache::builder(name)
            .ttl(Duration::from_secs(300))
            .loader(|load: &Load<'_, (String, i64), String>| Ok(format!("{:?}", load.key())))
            .fleet(&fleet, codec::Raw)
            .build()
            .unwrap()
    };
    let (long, names) = ("t".repeat(300), ["a", "a/b", "[a]", ""]);
    for name in names.iter().copied().chain([long.as_str()]) {
        let cache = cache(name);
        let _ = cache.get(&("tea".to_owned(), -1)).unwrap();
        let _ = cache.get(&("}{".to_owned(), 2)).unwrap(); // which is hashed
    }
    for name in names {
        let all = inspect(&url, &["--namespace", "sh*p", name]);
        let keys: Vec<_> = all.iter().map(|found| found["key"].as_str()).collect();
        assert_eq!(keys, [Some("3:tea-1;"), None], "{name}");
        let hashed = Key::new(&Table::new(name), &("}{", 2)).fingerprint().to_string();
        assert_eq!(all[1]["fingerprint"], hashed.as_str());
    }
    assert_eq!(inspect(&url, &["--namespace", "sh*p", &long]).len(), 2);
    // By name, whatever it is stored under.
    let raw = |key| inspect(&url, &["--namespace", "sh*p", "a", "--as", "raw", key]).len();
    assert_eq!((raw("3:tea-1;"), raw("2:}{2;")), (1, 1));
}

#[test]
fn what_does_not_belong_there_is_said() {
    let server = Server::start();
    let url = server.url();
    let products = products(&url, None);
    let _ = products.get(&42).unwrap();
    let name = |key: u64| Namespace::new("onefill").names(&Key::new(&Table::new("product"), &key));
    let stored = server.command(&[b"GET".as_slice(), &name(42).value]).bytes().unwrap();
    server.command(&[b"SET".as_slice(), &name(1).value, b"tea"]).good();
    server.command(&[b"LPUSH".as_slice(), &name(2).value, b"tea"]).good();
    server.command(&[b"SET".as_slice(), &name(3).value, &stored]).good();
    server.command(&[b"LPUSH".as_slice(), &name(4).lease, b"tea"]).good();
    server.command(&[b"PERSIST".as_slice(), &name(42).value]).good();

    let all = inspect(&url, &["product"]);
    let fault = |at: usize| all[at]["value"]["fault"].as_str().unwrap_or_default().to_owned();
    assert!(fault(0).contains("3 bytes"), "{}", fault(0));
    assert!(fault(1).contains("of a type that is not ours"), "{}", fault(1));
    assert!(fault(2).contains("of another key"), "{}", fault(2));
    assert_eq!(all[3]["value"]["state"], "endless");
    assert_eq!(all[3]["value"]["age_ms"], Value::Null);
    assert_eq!(all[4]["lease"], json!({ "token": null, "left_ms": null }));
    let out = succeed(&url, &["inspect", "product"]);
    assert!(out.contains("broken: ") && out.contains("never"), "{out}");
}

#[test]
fn what_it_invalidates_all_processes_forget() {
    let server = Server::start();
    let url = server.url();
    let caches = [products(&url, None), products(&url, None)];
    let all_have = |key: u64| {
        for cache in &caches {
            eventually("it is in memory", || cache.get(&key).unwrap().source() == Source::Local);
        }
    };
    let all_forget = |key: u64| {
        for cache in &caches {
            eventually("it is forgotten", || cache.peek(&key).is_none());
        }
    };
    all_have(42);
    all_have(7);
    let out = succeed(&url, &["invalidate", "product", "42"]);
    assert_eq!(out, "invalidated product/42\n");
    all_forget(42);
    assert!(caches.iter().all(|cache| cache.peek(&7).is_some()));
    assert!(ctl(&url, &["inspect", "product", "42"]).err.contains("no such key"));

    all_have(42);
    let out = succeed(&url, &["invalidate", "product", "--all"]);
    assert!(out.starts_with("invalidated all of \"product\": epoch "), "{out}");
    all_forget(42);
    all_forget(7);
}

/// A program that is killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn it_prints_notices_as_they_come_until_it_is_interrupted() {
    let server = Server::start();
    let url = server.url();
    let products = products(&url, None);
    let _ = products.get(&42).unwrap();
    let mut watch = Command::new(binary());
    watch.args(["--redis", &url, "--timeout-ms", "20000", "watch", "product"]);
    let watch = watch.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut watch = Running(watch.spawn().expect("the example starts"));
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let mut next = || {
        let line = lines.next().expect("it goes on").unwrap();
        let (seconds, line) = line.trim().split_once(' ').expect("a time, and what it says");
        let number = seconds.strip_suffix('s').expect(seconds);
        assert!(number.parse::<f64>().is_ok(), "{seconds}");
        line.to_owned()
    };
    assert_eq!(next(), "up: notices come from now on");

    products.invalidate(&42).unwrap();
    assert!(next().starts_with("invalidated product/42, from "));
    let _ = products.get(&42).unwrap();
    assert!(next().starts_with("filled product/42 version "));
    products.put(&42, "tea".to_owned()).unwrap();
    assert!(next().starts_with("put product/42 version "));
    // One that was not there when it began.
    let _ = products.get(&7).unwrap();
    assert!(next().starts_with("filled product/7 version "));
    let _ = products.get(&8).unwrap();
    assert!(next().starts_with("filled product/8 version "));
    let failing: Cache<u64, String, &str> = Cache::builder("other")
        .ttl(Duration::from_secs(1))
        .loader(|_: &Load<'_, u64, String>| Err::<String, _>("no"))
        .fleet(&patient(&url).build().unwrap(), codec::Raw)
        .build()
        .unwrap();
    assert!(failing.get(&1).is_err());
    let failed = next();
    let fingerprint = Key::new(&Table::new("other"), &1).fingerprint();
    let unknown = format!("failed unknown key {fingerprint} lease ");
    assert!(failed.starts_with(&unknown) && failed.contains("back off"), "{failed}");
    products.invalidate_all().unwrap();
    assert!(next().starts_with("invalidated all of product epoch "));
    server.restart();
    assert_eq!(next(), "down: notices may be missed");
    assert_eq!(next(), "up: notices come from now on");

    kill_process(Pid::from_child(&watch.0), Signal::INT).unwrap();
    assert_eq!(watch.0.wait().unwrap().code(), Some(0));
    let mut err = String::new();
    watch.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(err, "");
}

#[test]
fn a_cluster_is_looked_into_node_by_node() {
    let cluster = Cluster::start();
    let url = format!("redis-cluster://127.0.0.1:{}", cluster.nodes()[0].port());
    let products = products(&url, None);
    let keys = 100..120;
    for key in keys.clone() {
        let _ = products.get(&key).unwrap();
    }
    let one = inspect(&url, &["product", "107"]);
    assert_eq!((one.len(), &one[0]["value"]["state"]), (1, &json!("fresh")));
    assert_refused(&url, &["inspect", "product"], "name each master, as in --node");

    let nodes = cluster.urls();
    let nodes: Vec<_> = nodes.iter().flat_map(|url| ["--node", url]).collect();
    let all = inspect(&url, &[&["product"], &nodes[..]].concat());
    let found: Vec<_> = all.iter().map(|found| found["key"].as_str().unwrap()).collect();
    assert_eq!(found, keys.map(|key| format!("{key};")).collect::<Vec<_>>());
    assert!(all.iter().all(|found| found["value"]["state"] == "fresh"), "{all:?}");

    succeed(&url, &["invalidate", "product", "107"]);
    eventually("it is forgotten", || products.peek(&107).is_none());
}

/// Answers whatever is said with this, at this address.
fn somebody_else(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(answer);
        }
    });
    url
}

#[test]
fn what_is_wrong_is_said_and_what_to_do() {
    assert_refused("http://h", &["inspect", "product"], "scheme of the url is \"http\"");
    let nobody = format!("redis://127.0.0.1:{}", servers::free_port());
    assert_refused(&nobody, &["inspect", "product"], "unreachable");
    assert_refused(&nobody, &["invalidate", "product", "42"], "unreachable");
    assert_refused(&nobody, &["watch"], "unreachable");
    let web = somebody_else(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    assert_refused(&web, &["inspect", "product"], "Is this the port of a Redis");

    let open = Server::start();
    assert_refused(&open.url(), &["inspect", "product"], "no such table, \"product\"");
    let _ = products(&open.url(), None).get(&42).unwrap();
    assert_refused(&open.url(), &["inspect", "product", "43"], "no such key, product/43: ");
    assert_refused(&open.url(), &["inspect", "product", "tea", "--as", "int"], "no integer");

    let locked = Server::builder().password("secret").start();
    let url = format!("redis://{}", locked.address());
    for arguments in [&["inspect", "product"][..], &["invalidate", "product", "42"], &["watch"]] {
        assert_refused(&url, arguments, "NOAUTH");
        assert_refused(&url, arguments, "Credentials are part of the URL");
    }
    assert!(ctl(&locked.url(), &["invalidate", "product", "42"]).code == Some(0));

    let user = "user app on >secret resetchannels ~onefill:* &onefill:* +get +pttl +subscribe";
    let narrow = Server::builder().user(user).start();
    let url = narrow.url_as("app", "secret");
    assert_refused(&url, &["inspect", "product"], "NOPERM");
    assert_refused(&url, &["inspect", "product", "42"], "no such key");
    assert_refused(&url, &["invalidate", "product", "42"], "This user may not do that");
}

#[test]
fn arguments_that_make_no_sense_are_refused_with_the_reason() {
    for (arguments, reason) in [
        (&["invalidate", "product"][..], "KEY|--all"),
        (&["invalidate", "product", "42", "--all"], "--all"),
        (&["invalidate", "product", "--all", "--as", "int"], "--all"),
        (&["inspect"], "<TABLE>"),
        (&["inspect", "product", "--as", "int"], "<KEY>"),
        (&[], "subcommand"),
    ] {
        let ran = ctl("redis://127.0.0.1", arguments);
        assert_eq!(ran.code, Some(2), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(reason), "{arguments:?}: {}", ran.err);
    }
}
