//! The server example as its users run it: over HTTP, under load, and through trouble.
#![cfg(all(feature = "json", unix, not(loom)))]

#[path = "programs/mod.rs"]
mod programs;
#[path = "servers/mod.rs"]
mod servers;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use servers::{PATIENCE, eventually};

fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| programs::build("server"))
}

/// A running server. Killed when it is dropped.
struct Shop {
    child: Child,
    address: SocketAddr,
}

/// What came back.
#[derive(Clone, Debug)]
struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

impl Answer {
    #[track_caller]
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no header {name} in {self:?}"))
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    fn name(&self) -> String {
        self.json()["name"].as_str().unwrap_or_default().to_owned()
    }
}

impl Shop {
    fn start(database: &Path, options: &[&str]) -> Shop {
        let mut command = Command::new(binary());
        command.args(["--listen", "127.0.0.1:0", "--sales", "20000", "--db"]).arg(database);
        let started = command.args(options).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = started.expect("the example starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("it was piped");
        BufReader::new(out).read_line(&mut line).expect("it says where it listens");
        let address = line.trim().strip_prefix("listening on http://").expect(&line);
        Shop { child, address: address.parse().expect("an address") }
    }

    fn try_ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> io::Result<Answer> {
        ask(self.address, method, path, headers, body)
    }

    #[track_caller]
    fn get(&self, path: &str) -> Answer {
        self.try_ask("GET", path, &[("X-Request-Timeout-Ms", "10000")], "").expect("an answer")
    }

    /// The first answer that is not a fresh one of the server's memory, of which `fresh` is the TTL.
    /// Its clock for that is a tick or more behind; and who asks before the end may set off an early
    /// refresh, and never see the old one.
    #[track_caller]
    fn get_once_stale(&self, path: &str, fresh: Duration) -> Answer {
        thread::sleep(fresh + Duration::from_millis(50));
        let mut answer = self.get(path);
        eventually("what is there is stale", || {
            let is_stale = answer.header("X-Cache") != "local";
            if !is_stale {
                answer = self.get(path);
            }
            is_stale
        });
        answer
    }

    #[track_caller]
    fn put(&self, id: u64, name: &str) -> Answer {
        let body = format!(r#"{{"name": "{name}", "price_cents": 5}}"#);
        let path = format!("/products/{id}");
        self.try_ask("PUT", &path, &[], &body).expect("an answer")
    }

    #[track_caller]
    fn metrics(&self) -> BTreeMap<String, f64> {
        let answer = self.get("/metrics");
        assert_eq!(answer.status, 200);
        parse(&answer.body)
    }

    #[track_caller]
    fn queries(&self, kind: &str) -> u64 {
        self.metrics()[&format!("server_queries_total{{query=\"{kind}\"}}")] as u64
    }

    /// Loads of products that the fleet would have spared, had all gone well with it.
    #[cfg(any(feature = "redis", feature = "r2d2_redis"))]
    fn loads_for_oneself(&self) -> u64 {
        let metrics = self.metrics();
        let of = |event| {
            metrics[&format!("onefill_events_total{{cache=\"product\",event=\"{event}\"}}")] as u64
        };
        of("degraded") + of("loaded alone")
    }

    #[cfg(any(feature = "redis", feature = "r2d2_redis"))]
    fn is_well(&self) -> bool {
        let answer = self.get("/health");
        assert_eq!(answer.status, 200, "a server that serves is healthy");
        match answer.json()["status"].as_str() {
            Some("ok") => true,
            Some("degraded") => false,
            _ => panic!("{answer:?}"),
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is our child");
    }

    fn end(&mut self) -> ExitStatus {
        let mut end = None;
        eventually("the server has ended", || {
            end = self.child.try_wait().expect("it is our child");
            end.is_some()
        });
        end.expect("it was waited for")
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One request over a connection of its own.
fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        request += &format!("Content-Length: {}\r\n", body.len());
    }
    request += "\r\n";
    stream.write_all((request + body).as_bytes())?;

    let mut reader = BufReader::new(stream);
    let mut line = || -> io::Result<String> {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    };
    let foreign = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let first = line()?;
    let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    let status = status.and_then(|status| status.parse().ok()).ok_or_else(|| foreign(&first))?;
    let mut headers = BTreeMap::new();
    while let Some((name, value)) = line()?.split_once(": ") {
        headers.insert(name.to_owned(), value.to_owned());
    }
    let length = headers.get("Content-Length").and_then(|length| length.parse().ok());
    let mut body = vec![0; length.ok_or_else(|| foreign("a body without a length"))?];
    reader.read_exact(&mut body)?;
    let body = String::from_utf8(body).map_err(|_| foreign("no UTF-8"))?;
    Ok(Answer { status, headers, body })
}

/// Reads the text format of Prometheus, version 0.0.4, and believes nothing.
#[track_caller]
fn parse(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with('\n'), "the last line has an end, too");
    let (mut samples, mut seen) = (BTreeMap::new(), BTreeSet::new());
    let (mut family, mut kind, mut helped) = ("", "", "");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            helped = rest.split_once(' ').expect(line).0;
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            (family, kind) = rest.split_once(' ').expect(line);
            assert_eq!(helped, family, "HELP comes before TYPE");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(seen.insert(family), "{family} comes twice");
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').expect(line);
        let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
        let suffixes: &[&str] = match kind {
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        let is_of_family = suffixes.iter().any(|suffix| name == format!("{family}{suffix}"));
        assert!(is_of_family, "{line} is not of the family {family}");
        assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{line}");
        for label in labels.strip_suffix('}').expect(line).split(',').filter(|l| !l.is_empty()) {
            let (name, value) = label.split_once('=').expect(line);
            assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{line}");
            let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
            assert!(!value.expect(line).contains(['"', '\\']), "{line}");
        }
        let value: f64 = value.parse().expect(line);
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert!(samples.insert(sample.to_owned(), value).is_none(), "{sample} comes twice");
    }
    samples
}

fn scratch() -> TempDir {
    tempfile::Builder::new().prefix("onefill-").tempdir().expect("a directory can be made")
}

/// A directory, and a server on a new database in it.
fn shop(options: &[&str]) -> (TempDir, Shop) {
    let directory = scratch();
    let shop = Shop::start(&directory.path().join("shop.sqlite"), options);
    (directory, shop)
}

/// The database, behind the server's back.
fn database(directory: &TempDir) -> Connection {
    let connection = Connection::open(directory.path().join("shop.sqlite"));
    let connection = connection.expect("the server has made it");
    connection.busy_timeout(PATIENCE).expect("a number of milliseconds");
    connection
}

/// What each of `clients` gets, who all ask at once.
fn herd(clients: usize, ask: impl Fn(usize) -> Answer + Sync) -> Vec<Answer> {
    let together = Barrier::new(clients);
    thread::scope(|scope| {
        let (together, ask) = (&together, &ask);
        let one = |client| {
            scope.spawn(move || {
                together.wait();
                ask(client)
            })
        };
        let running: Vec<_> = (0..clients).map(one).collect();
        running.into_iter().map(|client| client.join().expect("a client panicked")).collect()
    })
}

#[test]
fn a_herd_on_a_cold_product_is_one_query() {
    let (_directory, shop) = shop(&[]);
    let answers = herd(200, |_| shop.get("/products/7"));
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    assert!(answers.iter().all(|answer| answer.body == answers[0].body));
    let loaded = answers.iter().filter(|answer| answer.header("X-Cache") == "loaded").count();
    assert_eq!((loaded, shop.queries("product")), (1, 1));
    assert_eq!(answers[0].json()["units_sold"], 100);
}

#[test]
fn what_there_is_not_is_remembered_until_it_is_written() {
    let (_directory, shop) = shop(&[]);
    let first = shop.get("/products/5000");
    assert_eq!((first.status, first.header("X-Cache")), (404, "loaded"));
    let second = shop.get("/products/5000");
    assert_eq!(
        (second.status, second.header("X-Cache"), second.header("Age")),
        (404, "local", "0")
    );
    assert_eq!(shop.queries("product"), 1);

    assert_eq!(shop.put(5000, "tea").status, 200);
    let third = shop.get("/products/5000");
    assert_eq!((third.status, third.name()), (200, "tea".to_owned()));
    assert_eq!(shop.put(5000, "coffee").header("X-Cache"), "invalidated");
    assert_eq!(shop.get("/products/5000").name(), "coffee");
}

#[test]
fn a_stale_product_is_served_while_it_is_loaded_behind() {
    let (directory, shop) = shop(&["--fresh-ms", "200", "--stale-ms", "600000"]);
    assert_eq!(shop.get("/products/7").name(), "product 7");
    database(&directory).execute("UPDATE product SET name = 'tea' WHERE id = 7", []).unwrap();
    let stale = shop.get_once_stale("/products/7", Duration::from_millis(200));
    assert_eq!((stale.status, stale.name()), (200, "product 7".to_owned()));
    assert_eq!(stale.header("X-Cache"), "stale, revalidating");
    eventually("the refresh is seen", || shop.get("/products/7").name() == "tea");
}

#[test]
fn an_old_report_is_better_than_an_error() {
    let (directory, shop) = shop(&["--fresh-ms", "200"]);
    let good = shop.get("/report");
    assert_eq!((good.status, good.header("X-Cache")), (200, "loaded"));
    assert_eq!(good.json()["sales"], 20_000);

    let database = database(&directory);
    database.execute_batch("ALTER TABLE sale RENAME TO sold").unwrap();
    let old = shop.get_once_stale("/report", Duration::from_millis(200));
    assert_eq!((old.status, old.header("X-Cache")), (200, "stale, source failed"));
    assert_eq!(old.body, good.body);
    // Where nothing is known, the error is what there is; and it is not remembered.
    let cold = shop.get("/products/7");
    assert_eq!(cold.status, 502, "{cold:?}");
    assert!(cold.body.contains("no such table"), "{cold:?}");

    database.execute_batch("ALTER TABLE sold RENAME TO sale").unwrap();
    assert_eq!(shop.get("/products/7").status, 200);
    eventually("the report is loaded again", || shop.get("/report").header("X-Cache") == "loaded");
}

#[test]
fn whoever_has_no_time_leaves_and_the_load_goes_on() {
    let (directory, shop) = shop(&[]);
    // So many that no report is made within a millisecond.
    database(&directory)
        .execute_batch(
            "INSERT INTO sale SELECT product_id, units FROM sale;
             INSERT INTO sale SELECT product_id, units FROM sale;",
        )
        .unwrap();
    let hurried = |millis| {
        shop.try_ask("GET", "/report", &[("X-Request-Timeout-Ms", millis)], "").expect("an answer")
    };
    let answer = hurried("1");
    assert_eq!((answer.status, answer.header("Retry-After")), (503, "1"));
    let queued = hurried("0");
    assert_eq!(queued.status, 503);
    assert!(queued.body.contains("in the queue, before any work"), "{}", queued.body);
    assert_eq!(hurried("soon").status, 400);
    assert_eq!(hurried("99999999").status, 200, "what exceeds the cap is the cap");
    assert_eq!(shop.get("/report").header("X-Cache"), "local");
    assert_eq!(shop.queries("report"), 1);
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    let (_directory, shop) = shop(&[]);
    let long = format!(r#"{{"name": "{}", "price_cents": 5}}"#, "x".repeat(1_500));
    for (method, path, body, status) in [
        ("GET", "/", "", 404),
        ("GET", "/products", "", 404),
        ("GET", "/products/tea", "", 404),
        ("GET", "/products/-1", "", 404),
        ("GET", "/products/18446744073709551615", "", 404),
        ("DELETE", "/products/7", "", 405),
        ("POST", "/report", "", 405),
        ("PUT", "/products/7", "", 400),
        ("PUT", "/products/7", r#"{"name": "tea"}"#, 400),
        ("PUT", "/products/7", r#"{"name": "tea", "price_cents": -5}"#, 400),
        ("PUT", "/products/18446744073709551615", r#"{"name": "tea", "price_cents": 5}"#, 400),
        ("PUT", "/products/7", &long, 413),
    ] {
        let answer = shop.try_ask(method, path, &[], body).expect("an answer");
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        assert!(answer.json()["error"].is_string(), "{answer:?}");
    }
    let answer = shop.try_ask("PATCH", "/products/7", &[], "").expect("an answer");
    assert_eq!(answer.header("Allow"), "GET, PUT");
    assert_eq!(shop.queries("write"), 0);
}

#[test]
fn metrics_are_what_prometheus_reads() {
    let (_directory, shop) = shop(&[]);
    let answers = herd(20, |client| shop.get(&format!("/products/{}", client % 4)));
    assert!(answers.iter().all(|answer| answer.status == 200 || answer.status == 404));
    let answer = shop.get("/metrics");
    assert_eq!(answer.header("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
    let metrics = parse(&answer.body);
    let sum = |prefix: &str| -> f64 {
        metrics.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, value)| value).sum()
    };
    assert_eq!(sum("onefill_calls_total{cache=\"product\""), 20.0);
    assert_eq!(sum("server_responses_total{route=\"get_product\""), 20.0);
    assert_eq!(metrics["server_queries_total{query=\"product\"}"], 4.0);
    assert_eq!(metrics["onefill_load_seconds_count{cache=\"product\"}"], 4.0);
    let all = "onefill_load_seconds_bucket{cache=\"product\",le=\"+Inf\"}";
    assert_eq!(metrics[all], 4.0);
    assert!(metrics["onefill_load_seconds_sum{cache=\"product\"}"] > 0.0);

    let health = shop.get("/health").json();
    assert_eq!((&health["status"], &health["fleet"]), (&"ok".into(), &Value::Null));
}

#[test]
fn a_write_that_has_no_time_is_given_up() {
    let (directory, shop) = shop(&[]);
    assert_eq!(shop.get("/products/7").status, 200);
    let database = database(&directory);
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    let body = r#"{"name": "tea", "price_cents": 5}"#;
    let answer = shop.try_ask("PUT", "/products/7", &[("X-Request-Timeout-Ms", "50")], body);
    let answer = answer.expect("an answer");
    assert_eq!((answer.status, answer.header("Retry-After")), (503, "1"));
    // Readers do not wait for writers.
    assert_eq!(shop.get("/products/7").name(), "product 7");
    database.execute_batch("ROLLBACK").unwrap();
    assert_eq!(shop.put(7, "tea").status, 200);
    assert_eq!(shop.get("/products/7").name(), "tea");
}

/// Waits until a write is under way that waits for `lock`, a transaction that writes, too.
fn until_a_write_waits(shop: &Shop) {
    // This request is one of them.
    eventually("the write is in", || shop.metrics()["server_in_flight"] == 2.0);
}

#[test]
fn a_stop_finishes_what_is_in_flight() {
    for signal in [Signal::TERM, Signal::INT] {
        let (directory, mut shop) = shop(&[]);
        let database = database(&directory);
        database.execute_batch("BEGIN IMMEDIATE").unwrap();
        let address = shop.address;
        let write = thread::spawn(move || {
            let headers = [("X-Request-Timeout-Ms", "10000")];
            let body = r#"{"name": "tea", "price_cents": 5}"#;
            ask(address, "PUT", "/products/7", &headers, body)
        });
        until_a_write_waits(&shop);
        shop.signal(signal);
        eventually("nobody is let in", || TcpStream::connect(address).is_err());
        database.execute_batch("COMMIT").unwrap();
        assert_eq!(write.join().unwrap().expect("an answer").status, 200);
        assert_eq!(shop.end().code(), Some(0));
    }
}

#[test]
fn a_stop_waits_no_longer_than_it_says() {
    let (directory, mut shop) = shop(&["--grace-ms", "100"]);
    let database = database(&directory);
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    let address = shop.address;
    let write = thread::spawn(move || {
        let headers = [("X-Request-Timeout-Ms", "10000")];
        ask(address, "PUT", "/products/7", &headers, r#"{"name": "tea", "price_cents": 5}"#)
    });
    until_a_write_waits(&shop);
    shop.signal(Signal::TERM);
    assert_eq!(shop.end().code(), Some(1));
    assert!(write.join().unwrap().is_err(), "its connection ends with the server");
}

#[test]
fn options_that_make_no_sense_are_refused_with_the_reason() {
    let directory = scratch();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let taken = taken.local_addr().map(|address| (taken, address.to_string()));
    let (_taken, address) = taken.expect("it has an address");
    let database = directory.path().join("shop.sqlite");
    let no_directory = directory.path().join("none").join("shop.sqlite");
    let run = |database: &Path, options: &[&str]| {
        let mut command = Command::new(binary());
        command.arg("--db").arg(database).args(["--sales", "0", "--listen", &address]);
        let ran = command.args(options).output().expect("the example starts");
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        String::from_utf8(ran.stderr).expect("it writes UTF-8")
    };
    let said = run(&database, &[]);
    assert!(said.starts_with("server: cannot listen on 127.0.0.1:"), "{said}");
    let said = run(&no_directory, &[]);
    assert!(said.starts_with("server: cannot use the database "), "{said}");
    let said = run(&database, &["--redis", "http://127.0.0.1"]);
    match cfg!(any(feature = "redis", feature = "r2d2_redis")) {
        true => assert!(said.starts_with("server: --redis: scheme of the url is"), "{said}"),
        false => assert!(said.contains("was built without Redis"), "{said}"),
    }
}

#[cfg(any(feature = "redis", feature = "r2d2_redis"))]
mod on_redis {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;
    use servers::Server;

    /// Two servers, on one database and one Redis, that hear each other.
    fn two(redis: &Server, options: &[&str]) -> (TempDir, [Shop; 2]) {
        let directory = scratch();
        let (database, url) = (directory.path().join("shop.sqlite"), redis.url());
        let options = [&["--redis", &url], options].concat();
        let shops = [(); 2].map(|()| Shop::start(&database, &options));
        for shop in &shops {
            eventually("the fleet is up", || shop.is_well());
        }
        (directory, shops)
    }

    /// Writes a product until all were told that it has changed: on a busy machine a server may
    /// take longer than it is waited for.
    fn put(shop: &Shop, id: u64, name: &str) {
        eventually("others are told", || {
            let answer = shop.put(id, name);
            answer.status == 200 && answer.header("X-Cache") == "invalidated"
        });
    }

    #[test]
    fn a_herd_over_two_processes_is_one_query() {
        let redis = Server::start();
        let (_directory, shops) = two(&redis, &[]);
        let answers = herd(200, |client| shops[client % 2].get("/products/7"));
        assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
        assert!(answers.iter().all(|answer| answer.body == answers[0].body));
        let queries: u64 = shops.iter().map(|shop| shop.queries("product")).sum();
        let spared: u64 = shops.iter().map(Shop::loads_for_oneself).sum();
        assert!(queries >= 1 && queries <= 1 + spared, "{queries} queries, {spared} on purpose");
    }

    #[test]
    fn a_write_in_one_process_is_seen_in_all() {
        let redis = Server::start();
        let (_directory, [one, other]) = two(&redis, &[]);
        for shop in [&one, &other] {
            assert_eq!(shop.get("/products/7").name(), "product 7");
            assert_eq!(shop.get("/products/5000").status, 404);
        }
        put(&one, 7, "tea");
        assert_eq!(one.get("/products/7").name(), "tea");
        eventually("the other has heard of it", || other.get("/products/7").name() == "tea");
        put(&other, 5000, "coffee");
        assert_eq!(other.get("/products/5000").name(), "coffee");
        eventually("the one has heard of it", || one.get("/products/5000").status == 200);
    }

    #[test]
    fn redis_may_die_and_come_back_while_clients_ask() {
        let redis = Server::start();
        let (_directory, shops) = two(&redis, &["--fresh-ms", "300", "--stale-ms", "300"]);
        let (stop, asked) = (AtomicBool::new(false), [(); 2].map(|()| AtomicU64::new(0)));
        let more_is_asked = || {
            let before: Vec<_> = asked.iter().map(|asked| asked.load(Ordering::SeqCst)).collect();
            eventually("clients go on", || {
                let now = asked.iter().map(|asked| asked.load(Ordering::SeqCst));
                now.zip(&before).all(|(now, before)| now > before + 100)
            });
        };
        /// Ends the clients, also when this test does before them.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        thread::scope(|scope| {
            let (shops, stop, asked) = (&shops, &stop, &asked);
            let until_the_end = Stop(stop);
            for client in 0..8 {
                scope.spawn(move || {
                    for round in (0_u64..).take_while(|_| !stop.load(Ordering::SeqCst)) {
                        let shop = &shops[client % 2];
                        let (path, expected) = match round % 10 {
                            0 => ("/report".to_owned(), 200),
                            1 => ("/products/9999".to_owned(), 404),
                            n => (format!("/products/{}", n % 4 + 1), 200),
                        };
                        let answer = shop.get(&path);
                        assert_eq!(answer.status, expected, "{path}: {answer:?}");
                        asked[client % 2].fetch_add(1, Ordering::SeqCst);
                        thread::sleep(Duration::from_millis(2));
                    }
                });
            }
            for _ in 0..2 {
                more_is_asked();
                redis.kill9();
                for shop in shops {
                    eventually("trouble shows", || !shop.is_well());
                    eventually("it has a name", || {
                        shop.get("/health").json()["fleet"]["last_trouble"].is_string()
                    });
                }
                more_is_asked();
                redis.restart();
                for shop in shops {
                    eventually("all is well again", || shop.is_well());
                }
                more_is_asked();
            }
            put(&shops[0], 3, "tea");
            eventually("they share again", || shops[1].get("/products/3").name() == "tea");
            drop(until_the_end);
        });
        let metrics = shops[0].metrics();
        assert_eq!(metrics["onefill_fleet_hears"], 1.0);
        assert!(metrics["onefill_fleet_troubles_total{kind=\"unreachable\"}"] > 0.0);
    }
}
