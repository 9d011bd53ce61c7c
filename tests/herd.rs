//! The herd example as its users run it: real arguments, real files, exit codes.
#![cfg(all(feature = "cache", not(loom)))]

#[path = "programs/mod.rs"]
mod programs;

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

#[cfg(any(feature = "redis", feature = "r2d2_redis"))]
#[path = "servers/mod.rs"]
mod servers;

/// Five good lines with one key asked for twice in one second, a write, and two bad lines.
const LOG: &str = r#"198.18.0.1 - - [17/May/2015:10:05:03 +0000] "GET /hot?page=1 HTTP/1.1" 200 12 "-" "-"
198.18.0.2 - - [17/May/2015:12:05:03 +0200] "GET /hot?page=1 HTTP/1.1" 200 12 "-" "-"
198.18.0.3 - - [17/May/2015:10:05:01 +0000] "HEAD /cold HTTP/1.1" 200 12
this line is no line of a log
198.18.0.3 - - [17/May/2015:10:05:04 +0000] "POST /form HTTP/1.1" 200 12
198.18.0.4 - - [31/Feb/2015:10:05:04 +0000] "GET /never HTTP/1.1" 200 12
4.5 a bare key
1431857105 another
"#;

fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| programs::build("herd"))
}

struct Ran {
    succeeded: bool,
    code: Option<i32>,
    out: String,
    err: String,
}

fn herd(arguments: &[&OsStr], input: &[u8]) -> Ran {
    let mut herd = Command::new(binary());
    herd.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = herd.spawn().expect("the example starts");
    let mut stdin = running.stdin.take().expect("it was piped");
    // Whoever refuses its arguments does not read its input.
    let _ = stdin.write_all(input);
    drop(stdin);
    let ended = running.wait_with_output().expect("the example ends");
    Ran {
        succeeded: ended.status.success(),
        code: ended.status.code(),
        out: String::from_utf8(ended.stdout).expect("it writes UTF-8"),
        err: String::from_utf8(ended.stderr).expect("it writes UTF-8"),
    }
}

fn storm(arguments: &[&str]) -> Ran {
    herd(&arguments.iter().map(OsStr::new).collect::<Vec<_>>(), b"")
}

/// Replays `file` at full speed with loads that cost nothing.
fn replay(file: impl AsRef<OsStr>, more: &[&str], input: &[u8]) -> Ran {
    let quick = ["--speed-up", "max", "--threads", "8", "--load", "0"];
    let mut arguments = vec![OsStr::new("replay"), file.as_ref()];
    arguments.extend(quick.iter().chain(more).map(OsStr::new));
    herd(&arguments, input)
}

/// A directory of its own, gone at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Scratch {
        let name = format!("onefill-herd-{}-{test}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).expect("the directory for temporary files takes one more");
        Scratch(directory)
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).expect("the scratch directory takes a file");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).expect("a vector takes everything");
    encoder.finish().expect("a vector takes everything")
}

/// The numbers in the row of a table that begins with `title`; where there is none, there is a
/// dash.
fn row(ran: &Ran, title: &str) -> Vec<u64> {
    let row = ran.out.lines().find_map(|line| line.trim_start().strip_prefix(title));
    let row = row.unwrap_or_else(|| panic!("no row {title:?} in\n{}", ran.out));
    let number = |word: &str| word.replace(',', "").parse().expect("a count");
    row.split_whitespace().filter(|word| *word != "–").map(number).collect()
}

#[track_caller]
fn assert_refused(ran: &Ran, reason: &str) {
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
    assert!(ran.err.starts_with("herd: ") && ran.err.contains(reason), "{}", ran.err);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    assert_eq!(ran.out, "");
}

/// The small log, whichever way it came.
#[track_caller]
fn assert_replayed(ran: &Ran) {
    assert!(ran.succeeded, "{}{}", ran.out, ran.err);
    assert_eq!(ran.err, "", "nothing is drawn where nobody looks");
    assert!(ran.out.contains("5 requests for 4 keys"), "{}", ran.out);
    assert!(ran.out.contains("neither GET nor HEAD: 1."), "{}", ran.out);
    let bad = "Bad lines skipped: 2. The first, line 4: neither an access log line";
    assert!(ran.out.contains(bad), "{}", ran.out);
    assert_eq!(row(ran, "calls"), [5, 5]);
    let (loads, avoided) = (row(ran, "loads"), row(ran, "duplicates avoided"));
    assert_eq!((loads[0], avoided[0]), (5, 0));
    assert_eq!(loads[1] + avoided[1], 5);
    let hottest = ran.out.lines().find(|line| line.ends_with("/hot?page=1"));
    let hottest = hottest.unwrap_or_else(|| panic!("the hottest key is missing in\n{}", ran.out));
    assert!(hottest.trim_start().starts_with("2 "), "{hottest}");
}

#[test]
fn a_storm_costs_one_load() {
    // Long enough for twenty threads to be there before it is over, however busy the machine.
    let ran = storm(&["--threads", "20", "--load", "500ms"]);
    assert!(ran.succeeded, "{}{}", ran.out, ran.err);
    assert_eq!(ran.err, "", "nothing is drawn where nobody looks");
    assert_eq!(row(&ran, "calls"), [20, 20]);
    assert_eq!(row(&ran, "loads"), [20, 1]);
    assert_eq!(row(&ran, "duplicates avoided"), [0, 19]);
}

#[test]
fn a_storm_of_one_thread_has_nothing_to_share() {
    let ran = storm(&["--threads", "1", "--load", "5ms", "--rounds", "3", "--pool", "1"]);
    assert!(ran.succeeded, "{}{}", ran.out, ran.err);
    assert_eq!(row(&ran, "loads"), [3, 3]);
}

#[test]
fn a_storm_over_instances_costs_one_load_with_a_lease() {
    let ran = storm(&["storm", "--instances", "4", "--threads", "5", "--load", "20ms"]);
    assert!(ran.succeeded, "{}{}", ran.out, ran.err);
    assert_eq!(ran.err, "", "nothing is drawn where nobody looks");
    assert!(ran.out.contains("20 threads in 4 instances asking"), "{}", ran.out);
    let [none, coalescing, lease, both] = row(&ran, "loads")[..] else {
        panic!("four strategies have four columns\n{}", ran.out)
    };
    assert_eq!(row(&ran, "calls"), [20, 20, 20, 20]);
    assert_eq!((none, lease, both), (20, 1, 1));
    assert!((4..=20).contains(&coalescing), "each instance loads for itself\n{}", ran.out);
    assert_eq!(row(&ran, "duplicates avoided"), [0, 20 - coalescing, 19, 19]);
}

#[test]
fn only_what_has_a_tier_claims_leases() {
    let ran = storm(&["--instances", "3", "--threads", "4", "--load", "5ms", "--rounds", "2"]);
    assert!(ran.succeeded, "{}{}", ran.out, ran.err);
    let (claims, commands) = (row(&ran, "lease claims"), row(&ran, "tier commands"));
    assert_eq!((claims.len(), commands.len()), (2, 2), "{}", ran.out);
    // Whoever loads has claimed, and has committed then.
    assert!(claims.iter().all(|claims| *claims >= 2), "{}", ran.out);
    assert!(claims.iter().zip(&commands).all(|(claims, all)| *all >= claims + 2), "{}", ran.out);
    // Every caller looks, who has only the lease.
    assert!(commands[0] >= claims[0] + 2 + 24, "{}", ran.out);
}

#[test]
fn a_fleet_of_one_caller_loads_once() {
    let ran = storm(&["storm", "--instances", "1", "--threads", "1", "--load", "0"]);
    assert!(ran.succeeded, "{}{}", ran.out, ran.err);
    assert_eq!(row(&ran, "loads"), [1, 1, 1, 1]);
    assert_eq!(row(&ran, "lease claims"), [1, 1]);
}

#[test]
fn a_storm_in_one_process_can_be_asked_for_by_name() {
    let ran = storm(&["storm", "--threads", "1", "--load", "0"]);
    assert!(ran.succeeded, "{}{}", ran.out, ran.err);
    assert_eq!(row(&ran, "loads"), [1, 1]);
    assert!(!ran.out.contains("lease"), "{}", ran.out);
}

#[test]
fn a_storm_can_be_had_as_json() {
    let ran = storm(&["storm", "--instances", "2", "--threads", "3", "--load", "200ms", "--json"]);
    assert!(ran.succeeded, "{}{}", ran.out, ran.err);
    let figures = Figures::of(&ran);
    assert_eq!(figures.0["storm"]["instances"], 2);
    assert_eq!(figures.0["fault"], serde_json::Value::Null);
    for (name, loads) in [("none", 6), ("coalescing", 2), ("lease", 1), ("both", 1)] {
        assert_eq!((figures.of_way(name, "calls"), figures.of_way(name, "loads")), (6, loads));
    }
    assert_eq!(figures.of_way("both", "messages"), 2, "each instance hears of the one fill");
    assert!(figures.way("both")["wait"]["max"].as_u64() >= Some(200_000_000), "{}", ran.out);
}

#[test]
fn loads_can_be_spread() {
    let spread = ["--threads", "3", "--load", "1ms", "--rounds", "2", "--load-spread", "lognormal"];
    let ran = storm(&spread);
    assert!(ran.out.contains("1 ms in the median, spread log-normally"), "{}{}", ran.out, ran.err);
}

/// What `--json` writes.
struct Figures(serde_json::Value);

impl Figures {
    fn of(ran: &Ran) -> Figures {
        let figures = serde_json::from_str(&ran.out);
        Figures(figures.unwrap_or_else(|error| panic!("{error}:\n{}{}", ran.out, ran.err)))
    }

    fn way(&self, name: &str) -> &serde_json::Value {
        let ways = self.0["strategies"].as_array().into_iter().flatten();
        ways.into_iter().find(|way| way["name"] == name).expect("a strategy of that name")
    }

    #[track_caller]
    fn of_way(&self, name: &str, what: &str) -> u64 {
        let number = self.way(name)[what].as_u64();
        number.unwrap_or_else(|| panic!("{name} has no {what}: {}", self.0))
    }
}

#[cfg(not(any(feature = "redis", feature = "r2d2_redis")))]
#[test]
fn without_a_client_for_redis_the_error_says_how_to_get_one() {
    let ran = storm(&["storm", "--processes", "4"]);
    assert_refused(&ran, "--example herd --features redis -- storm --processes 4");
}

/// Storms over real processes.
#[cfg(any(feature = "redis", feature = "r2d2_redis"))]
mod real {
    use super::servers::{Server, eventually};
    use super::*;

    use std::process::Child;

    use rustix::process::{Pid, Signal, kill_process};

    /// Whether there is a server to be had.
    fn possible() -> bool {
        let possible = Command::new("redis-server").arg("--version").output().is_ok();
        if !possible {
            eprintln!("SKIPPED: there is no redis-server");
        }
        possible
    }

    /// Over four processes of eight threads.
    fn over_processes(more: &[&str]) -> Ran {
        let mut arguments = vec!["storm", "--processes", "4", "--threads", "8", "--json"];
        arguments.extend(more);
        storm(&arguments)
    }

    #[test]
    fn both_is_one_load_and_one_claim_of_each_process() {
        if !possible() {
            return;
        }
        let ran = over_processes(&["--load", "100ms"]);
        assert!(ran.succeeded, "{}{}", ran.out, ran.err);
        assert_eq!(ran.err, "", "nothing is drawn where nobody looks");
        let figures = Figures::of(&ran);
        for name in ["none", "coalescing", "lease", "lease outside", "both"] {
            assert_eq!((figures.of_way(name, "calls"), figures.of_way(name, "faults")), (32, 0));
        }
        assert_eq!(figures.of_way("none", "loads"), 32);
        assert!(figures.of_way("coalescing", "loads") >= 4);
        assert_eq!(figures.of_way("both", "loads"), 1);
        // Not the claims: who is kept waiting by a busy machine claims again.
        let claimants = figures.of_way("both", "claimants");
        assert!((1..=4).contains(&claimants), "{}", ran.out);
        let wrong_order = figures.of_way("lease outside", "claimants");
        assert!(wrong_order > 8, "each thread claims for itself: {}", ran.out);
        // Who found the value by itself may be done before it hears of it.
        assert!((1..=4).contains(&figures.of_way("both", "messages")), "{}", ran.out);
    }

    #[test]
    fn the_table_says_what_was_expected() {
        if !possible() {
            return;
        }
        let ran = storm(&["storm", "--processes", "2", "--threads", "3", "--load", "20ms"]);
        assert!(ran.succeeded, "{}{}", ran.out, ran.err);
        assert!(ran.out.starts_with("6 threads in 2 processes asking for one cold key at once; "));
        assert_eq!(row(&ran, "calls"), [6, 6, 6, 6, 6]);
        assert!(ran.out.contains("\nAs expected of both: one load, "), "{}", ran.out);
    }

    #[test]
    fn another_process_takes_over_from_a_holder_that_was_killed() {
        if !possible() {
            return;
        }
        let ran = over_processes(&["--load", "20ms", "--kill-holder", "--lease", "400ms"]);
        assert!(ran.succeeded, "{}{}", ran.out, ran.err);
        let figures = Figures::of(&ran);
        let both = |what| figures.of_way("both", what);
        assert_eq!((both("calls"), both("faults"), both("killed_with_their_process")), (24, 0, 8));
        assert_eq!(both("loads"), 2, "that of the killed one, and that of whoever took over");
        let longest = figures.way("both")["wait"]["max"].as_u64();
        assert!(longest >= Some(300_000_000), "not before its lease had ended: {}", ran.out);
    }

    #[test]
    fn a_server_that_stands_still_costs_time_and_no_load() {
        if !possible() {
            return;
        }
        let ran = over_processes(&["--load", "20ms", "--pause-redis", "300ms"]);
        assert!(ran.succeeded, "{}{}", ran.out, ran.err);
        assert_eq!(Figures::of(&ran).of_way("both", "loads"), 1);
        let ran = over_processes(&["--load", "20ms", "--pause-redis", "600ms", "--budget", "50ms"]);
        assert!(ran.succeeded, "{}{}", ran.out, ran.err);
    }

    #[test]
    fn a_load_longer_than_its_lease_is_one_load() {
        if !possible() {
            return;
        }
        let ran = over_processes(&["--load", "20ms", "--slow-load", "900ms", "--lease", "300ms"]);
        assert!(ran.succeeded, "{}{}", ran.out, ran.err);
        assert_eq!(Figures::of(&ran).of_way("both", "loads"), 1);
    }

    #[test]
    fn a_server_of_ones_own_is_left_as_it_was_found() {
        if !possible() {
            return;
        }
        let server = Server::start();
        server.command(&["SET", "mine", "1"]);
        let url = server.url();
        let ran = over_processes(&[
            "--redis", &url, "--keys", "30", "--zipf", "0.9", "--calls", "20", "--load", "2ms",
        ]);
        assert!(ran.succeeded, "{}{}", ran.out, ran.err);
        let figures = Figures::of(&ran);
        assert_eq!(figures.of_way("both", "calls"), 640);
        assert_eq!(figures.of_way("both", "loads_of_one_key_at_most"), 1);
        assert_eq!(server.keys(), ["mine"]);
    }

    #[test]
    fn a_server_that_is_not_there_is_a_clear_error() {
        let ran = over_processes(&["--redis", "redis://127.0.0.1:1"]);
        assert_refused(&ran, "cannot reach Redis");
        let ran = over_processes(&["--redis", "amqp://127.0.0.1"]);
        assert_refused(&ran, "scheme of the url");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn neither_a_process_nor_a_server_is_left_behind() {
        if !possible() {
            return;
        }
        for signal in [Signal::KILL, Signal::INT, Signal::TERM] {
            // What runs in the background of a script ignores Ctrl-C, and so does what it starts.
            if is_ignored(signal) {
                continue;
            }
            let mut herd = Command::new(binary());
            herd.args(["storm", "--processes", "3", "--threads", "2", "--load", "60s"]);
            let mut herd = herd.stdout(Stdio::null()).spawn().expect("the example starts");
            // The server, its watchdog, and three processes that are loading.
            eventually("all are there", || children(&herd).len() == 5);
            let children = children(&herd);
            kill_process(Pid::from_child(&herd), signal).expect("it is our child");
            herd.wait().expect("it ends");
            eventually("all have ended", || children.iter().all(|child| !is_running(child)));
        }
    }

    fn children(parent: &Child) -> Vec<String> {
        let pid = parent.id();
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let children =
            tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        children
            .flat_map(|pids| pids.split_whitespace().map(String::from).collect::<Vec<_>>())
            .collect()
    }

    fn is_ignored(signal: Signal) -> bool {
        let status = fs::read_to_string("/proc/self/status").expect("this process runs");
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        ignored.expect("it is told in there") >> (signal.as_raw() - 1) & 1 == 1
    }

    /// One that nobody has asked for its exit status is there, but runs no more.
    fn is_running(pid: &str) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
        !matches!(state, None | Some("Z"))
    }
}

#[test]
fn a_log_is_replayed_from_a_plain_file() {
    let scratch = Scratch::new("plain");
    assert_replayed(&replay(scratch.file("access.log", LOG), &[], b""));
}

#[test]
fn a_log_is_replayed_from_a_compressed_file_of_two_parts() {
    let scratch = Scratch::new("compressed");
    let (start, rest) = LOG.as_bytes().split_at(200);
    let log = scratch.file("access.log.gz", [compressed(start), compressed(rest)].concat());
    assert_replayed(&replay(log, &[], b""));
}

#[test]
fn a_log_is_replayed_from_standard_input_plain_and_compressed() {
    assert_replayed(&replay("-", &[], LOG.as_bytes()));
    assert_replayed(&replay("-", &[], &compressed(LOG.as_bytes())));
}

#[test]
fn a_log_is_replayed_in_its_own_time() {
    let log = b"0.00 a\n0.02 a\n3600 b\n";
    let ran = replay("-", &["--speed-up", "2", "--longest-pause", "50ms"], log);
    assert!(ran.succeeded, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("within 1 h."), "{}", ran.out);
    assert!(ran.out.contains("2 times as fast"), "{}", ran.out);
    assert!(ran.out.contains("Pauses cut to 50 ms: 1."), "{}", ran.out);
    assert!(ran.out.contains("behind, max (real time)"), "{}", ran.out);
}

#[test]
fn reading_ends_after_the_first_requests_asked_for() {
    let ran = replay("-", &["--first", "2"], b"0 a\n1 b\n2 c\n");
    assert!(ran.out.contains("2 requests for 2 keys"), "{}{}", ran.out, ran.err);
}

#[test]
fn an_empty_log_is_a_clear_error() {
    let scratch = Scratch::new("empty");
    assert_refused(&replay(scratch.file("access.log", ""), &[], b""), "access.log is empty");
    let log = scratch.file("access.log.gz", compressed(b""));
    assert_refused(&replay(log, &[], b""), "access.log.gz is empty");
    assert_refused(&replay("-", &[], b"\n\n"), "standard input is empty");
}

#[test]
fn a_missing_log_is_a_clear_error() {
    let scratch = Scratch::new("missing");
    let ran = replay(scratch.0.join("no-such.log"), &[], b"");
    assert_refused(&ran, "cannot read");
    assert!(ran.err.contains("no-such.log"), "{}", ran.err);
}

#[test]
fn a_directory_is_no_log() {
    let scratch = Scratch::new("directory");
    assert_refused(&replay(&scratch.0, &[], b""), "cannot read");
}

#[test]
fn a_log_of_bad_lines_alone_is_a_clear_error() {
    let noise: Vec<u8> =
        (0..200_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let scratch = Scratch::new("garbage");
    let ran = replay(scratch.file("access.log", [b"\n?".to_vec(), noise].concat()), &[], b"");
    assert_refused(&ran, "holds nothing to replay; bad lines: ");
    assert!(ran.err.contains("the first, line 2: "), "{}", ran.err);
}

#[test]
fn a_line_of_megabytes_is_one_bad_line() {
    let log = [vec![b'7'; 5 << 20], b"\n1 a\n".to_vec()].concat();
    let ran = replay("-", &[], &log);
    assert!(ran.succeeded, "{}{}", ran.out, ran.err);
    let bad = "Bad lines skipped: 1. The first, line 1: longer than 65,536 bytes.";
    assert!(ran.out.contains(bad), "{}", ran.out);
}

#[test]
fn a_log_of_writes_alone_is_a_clear_error() {
    let write = br#"h - - [17/May/2015:10:05:04 +0000] "POST / HTTP/1.1" 200 12"#;
    assert_refused(&replay("-", &[], write), "no request is a GET or a HEAD");
}

#[test]
fn a_compressed_log_that_is_cut_off_is_a_clear_error() {
    let mut log = compressed(LOG.repeat(200).as_bytes());
    log.truncate(log.len() - 20);
    let scratch = Scratch::new("cut");
    let ran = replay(scratch.file("access.log.gz", log), &[], b"");
    assert_refused(&ran, "the compressed file is cut off");
}

/// Plays `log` on a fleet, against a virtual clock.
fn fleet(file: impl AsRef<OsStr>, more: &[&str], input: &[u8]) -> Ran {
    let mut arguments = vec![OsStr::new("replay"), file.as_ref()];
    arguments.extend(["--instances", "4"].iter().chain(more).map(OsStr::new));
    herd(&arguments, input)
}

fn findings(ran: &Ran) -> Value {
    assert!(ran.succeeded, "{}{}", ran.out, ran.err);
    assert_eq!(ran.err, "", "nothing is drawn where nobody looks");
    serde_json::from_str(&ran.out).expect("it is JSON, and nothing else")
}

/// A number of each strategy.
fn each(findings: &Value, field: &str) -> Vec<u64> {
    let strategies = findings["strategies"].as_array().expect("there are strategies");
    let numbers = strategies.iter().map(|strategy| strategy[field].as_u64());
    numbers.collect::<Option<_>>().unwrap_or_else(|| panic!("{field} is a count"))
}

/// A minute of three keys, each asked for ten times a second, from clients in turn.
fn busy_log() -> String {
    let line = |number: u32| {
        let (second, client, key) = (number / 30, number % 7, number % 3);
        format!(
            "198.18.0.{client} - - [17/May/2015:10:05:{second:02} +0000] \"GET /{key} HTTP/1.1\" \
             200 12 \"-\" \"-\" 0.{:03}\n",
            100 + key
        )
    };
    (0..1_800).map(line).collect()
}

#[track_caller]
fn assert_adds_up(findings: &Value) {
    let parts = |fields: &[&str]| {
        let parts = fields.iter().map(|field| each(findings, field));
        parts.reduce(|sum, part| sum.iter().zip(part).map(|(a, b)| a + b).collect())
    };
    let (calls, loads) = (each(findings, "calls"), each(findings, "loads"));
    assert_eq!(parts(&["hits", "joined", "shared", "spared", "loads"]).as_ref(), Some(&calls));
    assert_eq!(parts(&["needed", "duplicates"]).as_ref(), Some(&loads));
    let duplicates = parts(&["in_instance", "in_fleet", "kept_elsewhere"]);
    assert_eq!(duplicates, Some(each(findings, "duplicates")));
    let requests = findings["log"]["requests"].as_u64();
    assert!(calls.iter().all(|calls| Some(*calls) == requests), "{calls:?}");
    let [none, coalescing, lease, both] = loads[..] else { panic!("there are four strategies") };
    assert!(none >= coalescing && coalescing >= both && none >= lease, "{loads:?}");
    let worth = |field: &str| findings["worth"][field].as_u64().expect("it is a count");
    assert_eq!(worth("none") - worth("by_coalescing") - worth("by_tier"), worth("left"));
    assert_eq!((worth("none"), worth("left")), (none, both));
    let traffic = findings["traffic"].as_array().expect("other traffic is played, too");
    let times: Vec<_> = traffic.iter().map(|traffic| traffic["times"].as_u64()).collect();
    assert_eq!(times, [Some(1), Some(10), Some(100), Some(1_000)]);
    assert_eq!(traffic[0]["loads"], serde_json::json!(loads));
}

#[test]
fn the_findings_of_a_fleet_are_json_that_adds_up() {
    let ran = fleet("-", &["--json", "--ttl", "2s"], busy_log().as_bytes());
    let found = findings(&ran);
    assert_adds_up(&found);
    assert_eq!(found["log"]["timed"], 1_800);
    assert_eq!(found["settings"]["load_from"], "log");
    assert_eq!(found["settings"]["load_ms"], 101.0);
    assert!(each(&found, "joined")[1] > 0 && each(&found, "spared")[3] > 0, "{}", ran.out);
    assert_eq!(found["verdict"]["advice"], "both");
}

#[test]
fn the_same_log_and_settings_have_the_same_findings() {
    let (log, json) = (busy_log(), ["--json", "--ttl", "2s", "--seed"]);
    let seeded = |seed| fleet("-", &[&json[..], &[seed]].concat(), log.as_bytes()).out;
    assert_eq!(seeded("7"), seeded("7"));
    assert_ne!(seeded("7"), seeded("8"));
}

#[test]
fn a_client_stays_with_its_instance_if_requests_are_spread_by_address() {
    let log = "198.18.0.9 - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1\n".repeat(9);
    let loads = |spread| {
        let more = ["--json", "--load", "0", "--spread", spread];
        each(&findings(&fleet("-", &more, log.as_bytes())), "loads")
    };
    assert_eq!(loads("client"), [1, 1, 1, 1]);
    assert_eq!(loads("round-robin"), [4, 4, 1, 1]);
    assert_refused(&fleet("-", &["--spread", "client"], b"1 a\n"), "names no clients");
}

#[test]
fn a_fleet_tells_its_verdict_and_the_lines_it_skipped() {
    let ran = fleet("-", &[], LOG.as_bytes());
    assert!(ran.succeeded, "{}{}", ran.out, ran.err);
    assert_eq!(ran.err, "", "nothing is drawn where nobody looks");
    for told in [
        "5 requests for 4 keys",
        "neither GET nor HEAD: 1.",
        "Bad lines skipped: 2. The first, line 4: neither an access log line",
        "4 instances of 64 threads",
        "a guess: the log does not say",
        "Verdict: a shared tier is worth it for the values it shares",
        "5 requests are too few to decide by.",
        "4 instances × 64 threads = 256 loads",
    ] {
        assert!(ran.out.contains(told), "{told}: {}", ran.out);
    }
}

#[test]
fn what_a_lease_is_worth_is_told_with_the_guess_that_it_stands_on() {
    let log = "0.0 a\n".repeat(50);
    let told = |more: &[&str]| {
        let ran = fleet("-", more, log.as_bytes());
        assert!(ran.succeeded, "{}{}", ran.out, ran.err);
        ran.out.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let (guessed, said) = (told(&[]), told(&["--load", "50ms"]));
    assert!(guessed.contains("a load 50 ms, which is a guess: the log does not say."), "{guessed}");
    assert!(said.contains("a load 50 ms. "), "{said}");
}

#[test]
fn a_fleet_of_one_request_or_of_none_is_no_trouble() {
    let scratch = Scratch::new("one");
    let report = scratch.0.join("report.html");
    let more = ["--json", "--report", report.to_str().expect("it is text")];
    let one = findings(&fleet("-", &more, b"7 a\n"));
    assert_eq!(each(&one, "loads"), [1, 1, 1, 1]);
    assert!(fs::read_to_string(report).is_ok_and(|page| page.contains("All at one moment.")));
    let at_once = ["--json", "--speed-up", "max"];
    let at_once = findings(&fleet("-", &at_once, b"7 a\n3600 a\n7200 b\n"));
    assert_eq!(at_once["stretch_s"], 0.0);
    assert_refused(&fleet("-", &[], b""), "standard input is empty");
}

#[test]
fn a_log_in_no_known_format_is_an_error_that_shows_a_known_one() {
    let ran = fleet("-", &[], b"{\"path\": \"/\"}\n");
    assert_refused(&ran, "line 1: neither an access log line");
    assert!(ran.err.contains("Expected are lines such as"), "{}", ran.err);
}

/// What the page would fetch, or run.
fn assert_self_contained(page: &str) {
    for outside in ["http://", "https://", "<script", "<link", "<img", "src=", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn a_report_is_one_page_for_day_and_night_and_phones() {
    let scratch = Scratch::new("report");
    let report = scratch.0.join("report.html");
    let more = ["--report", report.to_str().expect("it is text")];
    let ran = fleet("-", &more, busy_log().as_bytes());
    assert!(ran.out.contains("Report: "), "{}{}", ran.out, ran.err);
    let page = fs::read_to_string(report).expect("the report was written");
    assert_self_contained(&page);
    for part in [
        "<!DOCTYPE html>",
        "name=\"viewport\"",
        "prefers-color-scheme: dark",
        "aria-label=\"none: ",
        "Loads over time, both: ",
        "Waits, lease: ",
        "<caption>",
        "1,800 requests for 3 keys",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn a_path_in_a_log_is_text_in_the_report() {
    let scratch = Scratch::new("hostile");
    let hostile = "/<script src=//evil.example>alert(1)</script>?\\\"&'<b>";
    let line =
        format!("h - - [17/May/2015:10:05:03 +0000] \"GET {hostile} HTTP/1.1\" 200 1\n").repeat(20);
    let log = scratch.file("a<img src=x>&.log", line);
    let report = scratch.0.join("report.html");
    let ran = fleet(log, &["--json", "--report", report.to_str().expect("it is text")], b"");
    assert_eq!(findings(&ran)["hottest"][0]["key"], hostile);
    let page = fs::read_to_string(report).expect("the report was written");
    assert!(page.contains("&lt;script") && page.contains("&lt;img"), "{page}");
    assert_self_contained(&page.replace("&lt;script src=", "").replace("&lt;img src=", ""));
}

#[test]
fn a_report_neither_replaces_the_log_nor_hides_that_it_was_not_written() {
    let scratch = Scratch::new("replace");
    let log = scratch.file("access.log", LOG);
    let path = log.to_str().expect("it is text");
    assert_refused(&fleet(&log, &["--report", path], b""), "would replace the log");
    assert_eq!(fs::read_to_string(&log).expect("it is there"), LOG);
    let nowhere = scratch.0.join("missing/report.html");
    let more = ["--report", nowhere.to_str().expect("it is text")];
    assert_refused(&fleet(&log, &more, b""), "cannot write the report");
}

#[test]
fn arguments_that_make_no_sense_are_refused_with_the_reason() {
    for (arguments, reason) in [
        (&["--threads", "0"][..], "--threads"),
        (&["--load", "50"], "the unit is one of"),
        (&["--instances", "0"], "--instances"),
        (&["storm", "--instances", "10001"], "1..=10000"),
        (&["storm", "--processes", "501"], "1..=500"),
        (&["storm", "--processes", "2", "--instances", "2"], "--instances"),
        (&["storm", "--processes", "2", "--rounds", "2"], "--rounds"),
        (&["storm", "--kill-holder"], "--processes"),
        (&["storm", "--keys", "2"], "--processes"),
        (&["storm", "--instances", "3", "--pause-redis", "300ms"], "--processes"),
        (&["storm", "--instances", "3", "--kill-holder"], "--processes"),
        (&["--rounds", "2", "--slow-load", "1s"], "--processes"),
        (&["storm", "--processes", "2", "--lease", "1ms"], "20ms at least"),
        (&["storm", "--processes", "2", "--zipf", "-1"], "--zipf"),
        (&["--instances", "2", "storm"], "--instances"),
        (&["replay", "-", "--instances", "0"], "--instances"),
        (&["replay", "-", "--json"], "--instances"),
        (&["replay", "-", "--report", "report.html"], "--instances"),
        (&["replay", "-", "--json", "--longest-pause", "1s"], "--instances"),
        (&["replay", "-", "--instances", "2", "--cost", "cpu"], "--cost"),
        (&["replay", "-", "--instances", "2", "--ttl", "0"], "--ttl"),
        (&["replay"], "<FILE>"),
        (&["replay", "-", "--speed-up", "-1"], "--speed-up"),
        (&["replay", "-", "--speed-up", "fast"], "or max"),
        (&["--rounds", "2", "replay", "-"], "--rounds"),
    ] {
        let ran = storm(arguments);
        assert_eq!(ran.code, Some(2), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(reason), "{arguments:?}: {}", ran.err);
    }
}

#[test]
fn a_reader_that_has_read_enough_is_no_failure() {
    let mut herd = Command::new(binary());
    herd.args(["--threads", "2", "--load", "200ms"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = herd.spawn().expect("the example starts");
    drop(running.stdout.take());
    let ended = running.wait_with_output().expect("the example ends");
    assert!(ended.status.success());
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
}

fn real_log() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/traces/access.log.gz")
}

#[test]
fn a_real_log_is_replayed() {
    let log = real_log();
    if !log.exists() {
        eprintln!("SKIPPED: there is no {}", log.display());
        return;
    }
    let ran = replay(log, &["--threads", "64"], b"");
    assert!(ran.succeeded, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("9,994 requests for 1,496 keys"), "{}", ran.out);
    assert!(!ran.out.contains("Bad lines"), "{}", ran.out);
    let loads = row(&ran, "loads");
    assert_eq!(loads[0], 9_994);
    assert!(loads[1] <= loads[0]);
}

#[test]
fn a_real_log_is_played_on_a_fleet() {
    let log = real_log();
    if !log.exists() {
        eprintln!("SKIPPED: there is no {}", log.display());
        return;
    }
    assert_adds_up(&findings(&fleet(&log, &["--json"], b"")));
    assert_adds_up(&findings(&fleet(&log, &["--json", "--speed-up", "1000"], b"")));
}
