//! The history check: processes that get, put and invalidate what they share on one real server,
//! while that is stopped, killed and cut off; and afterwards a look at all that they saw.
//!
//! The short form is one of the tests. The long one takes a minute for each client:
//!
//! ```text
//! cargo test --features redis --test history -- --ignored --nocapture long
//! ```
#![cfg(all(unix, any(feature = "redis", feature = "r2d2_redis")))]

mod check;
mod database;
mod hand_made;
mod process;
mod record;
#[path = "../servers/mod.rs"]
mod servers;
mod witness;

use std::env;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use onefill::fleet::redis::Client;

use check::{Bounds, check};
use database::Database;
use process::{BUDGET, LEASE, LOAD, NAMESPACE, Orders, STALE, TTL, log_of};
use record::{Log, Record, Time, Trouble, What, nanos, now};
use servers::Server;

/// How much there is to be of it.
#[derive(Debug, Clone, Copy)]
struct Form {
    processes: usize,
    threads: usize,
    time: Duration,
    /// What happens to the server, for how long, and how long after the one before. Again and
    /// again.
    troubles: &'static [(Trouble, Duration, Duration)],
}

const SHORT: Form = Form {
    processes: 3,
    threads: 8,
    time: Duration::from_secs(8),
    troubles: &[
        (Trouble::Pause, Duration::from_millis(500), Duration::from_millis(1_500)),
        (Trouble::Kill, Duration::from_millis(300), Duration::from_millis(1_500)),
        (Trouble::Cut, Duration::ZERO, Duration::from_millis(2_000)),
        (Trouble::Cut, Duration::ZERO, Duration::from_secs(60)),
    ],
};

const LONG: Form = Form {
    processes: 8,
    threads: 16,
    time: Duration::from_secs(60),
    troubles: &[
        (Trouble::Pause, Duration::from_millis(500), Duration::from_millis(2_500)),
        (Trouble::Kill, Duration::from_millis(300), Duration::from_millis(3_000)),
        (Trouble::Cut, Duration::ZERO, Duration::from_millis(2_500)),
        (Trouble::Pause, Duration::from_millis(80), Duration::from_millis(1_000)),
        (Trouble::Kill, Duration::from_secs(2), Duration::from_millis(2_500)),
        // Longer than a lease.
        (Trouble::Pause, Duration::from_secs(2), Duration::from_millis(5_000)),
        (Trouble::Cut, Duration::ZERO, Duration::from_millis(2_000)),
        (Trouble::Kill, Duration::ZERO, Duration::from_millis(2_000)),
        // Longer than a copy may live then.
        (Trouble::Deafen, Duration::from_secs(6), Duration::from_millis(2_000)),
        // Longer than a subscription may be silent.
        (Trouble::Pause, Duration::from_secs(8), Duration::from_millis(5_000)),
    ],
};

const BOUNDS: fn() -> Bounds = || Bounds {
    copy: nanos(TTL + STALE),
    deaf: nanos(Duration::from_secs(1)),
    // A load, and the tier asked before and after it.
    flight: nanos(LOAD + 2 * BUDGET),
    // To store what was loaded, and once more for a connection that was found dead.
    budget: nanos(2 * BUDGET),
    allowance: nanos(Duration::from_secs(1)),
};

/// How long processes may take to start, and to come to an end.
const START: Duration = Duration::from_secs(1);
const FINISH: Duration = Duration::from_secs(30);
/// How often somebody looks at what is stored.
const LOOK: Duration = Duration::from_millis(100);

/// Each of these is a test with each client.
macro_rules! with_each_client {
    ($($(#[$how:meta])* $name:ident: $form:ident;)*) => {
        #[cfg(feature = "redis")]
        mod on_redis {
            $(#[test] $(#[$how])* fn $name() { super::all_is_as_promised(super::$form, super::Client::Redis) })*
        }
        #[cfg(feature = "r2d2_redis")]
        mod on_r2d2_redis {
            $(#[test] $(#[$how])* fn $name() { super::all_is_as_promised(super::$form, super::Client::R2d2Redis) })*
        }
    };
}
with_each_client! {
    a_short_history_is_as_promised: SHORT;
    #[ignore = "takes a minute"]
    a_long_history_is_as_promised: LONG;
}

/// Not a test, but what the processes of a history do, which are this very program.
#[test]
#[ignore = "for the processes that the others start"]
fn one_process_of_a_history() {
    if let Some(orders) = Orders::of_this_process() {
        orders.follow();
    }
}

#[track_caller]
fn all_is_as_promised(form: Form, client: Client) {
    // Those of both clients would be in each other's way.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);

    let directory = tempfile::Builder::new().prefix("onefill-history-").tempdir();
    let mut directory = directory.expect("a directory for temporary files can be written to");
    // Whatever goes wrong, there is something to look at.
    directory.disable_cleanup(true);
    let server = Server::start();
    let records = run(form, client, &server, directory.path());

    // What a process leaves behind ends by itself. Looked at before a long history is read, for which
    // a slow machine takes longer than any value lives.
    thread::sleep(LEASE);
    assert_eq!(server.leases(NAMESPACE), [""; 0]);
    assert_eq!(server.keys_without_ttl(), [""; 0]);
    assert!(!server.keys().is_empty(), "there is something to look at");

    let (tally, violations) = check(&records, BOUNDS());
    println!("{} × {} threads on {client:?}: {tally}", form.processes, form.threads);
    println!("allowed for a machine that is busy: {:?}", Duration::from_nanos(BOUNDS().allowance));
    if !violations.is_empty() {
        for violation in violations.iter().take(3) {
            println!("\n{}", violation.with_excerpt(&records));
        }
        let first = violations.iter().map(ToString::to_string).take(20).collect::<Vec<_>>();
        let path = directory.path().display();
        panic!("{} violations; all is in {path}\n{}", violations.len(), first.join("\n"));
    }
    // A history in which nothing happens proves nothing.
    let happened = [
        tally.hits,
        tally.fleet_hits,
        tally.leases,
        tally.renewals,
        tally.commits,
        tally.commits_refused,
        tally.writes_refused,
        tally.troubles,
    ];
    assert!(happened.iter().all(|count| *count > 0), "too little has happened: {tally:?}");
    assert!(tally.writes_refused < tally.writes / 4 * 3, "too little went well: {tally:?}");
    directory.disable_cleanup(false);
}

/// Lets it happen, and returns what was seen, in the order in which it began.
fn run(form: Form, client: Client, server: &Server, directory: &Path) -> Vec<Record> {
    let _database = Database::open(directory);
    let until = now() + nanos(START + form.time);
    let mut children = Children(Vec::new());
    for process in 0..form.processes {
        let orders = Orders {
            process,
            threads: form.threads,
            until,
            client,
            url: server.url(),
            directory: directory.to_path_buf(),
        };
        children.0.push(start(&orders));
    }
    let own = form.processes;
    trouble(&form, server, until, &Log::create(&log_of(directory, own), own));
    children.end_well(directory, until);

    let mut records = (0..=own).flat_map(|process| record::read(&log_of(directory, process)));
    let mut records = records.by_ref().collect::<Vec<_>>();
    records.sort_by_key(|record| record.begin);
    records
}

/// This program, as a process that follows orders.
fn start(orders: &Orders) -> Child {
    let output = File::create(output_of(&orders.directory, orders.process));
    let output = output.expect("the directory is the test's own");
    let (name, value) = orders.to_environment();
    let mut command = Command::new(env::current_exe().expect("this program is a file"));
    command.args(["--exact", "one_process_of_a_history", "--ignored", "--nocapture"]);
    command.env(name, value).stdin(Stdio::null());
    command.stdout(output.try_clone().expect("it is open")).stderr(output);
    command.spawn().expect("this program can be started again")
}

fn output_of(directory: &Path, process: usize) -> std::path::PathBuf {
    directory.join(format!("process-{process}.out"))
}

/// No trouble in the end of a history.
const CALM: Duration = Duration::from_secs(1);

/// Makes trouble for as long as there is time. In the end the server is well, and has been for long
/// enough that there is something in it.
fn trouble(form: &Form, server: &Server, until: Time, log: &Log) {
    let wait = |time: Duration| {
        let left = Duration::from_nanos(until.saturating_sub(now()));
        thread::sleep(time.min(left));
        time < left
    };
    // At no time is there anything that would stay for ever.
    let quiet = |time: Duration| {
        let end = now() + nanos(time);
        while now() < end {
            if !wait(LOOK.min(time)) {
                return false;
            }
            assert_eq!(server.keys_without_ttl(), [""; 0]);
        }
        true
    };
    if !wait(START) {
        return;
    }
    for (trouble, lasts, after) in form.troubles.iter().cycle() {
        if !quiet(*after) || now() + nanos(*lasts + CALM) > until {
            break;
        }
        let begin = now();
        match trouble {
            Trouble::Cut => {
                server.client_kill_all();
            }
            Trouble::Pause => {
                server.pause();
                wait(*lasts);
                server.resume();
            }
            Trouble::Kill => {
                server.kill9();
                wait(*lasts);
                server.restart();
            }
            Trouble::Deafen => {
                // Whoever listens is cut off by that.
                server.command(&["ACL", "SETUSER", "default", "resetchannels"]).good();
                wait(*lasts);
                server.command(&["ACL", "SETUSER", "default", "allchannels"]).good();
            }
        }
        log.write(0, begin, now(), What::Trouble(*trouble));
    }
    log.flush();
}

/// Processes that do not outlive a test that fails.
struct Children(Vec<Child>);

impl Children {
    /// Waits until all have done what they were told.
    #[track_caller]
    fn end_well(&mut self, directory: &Path, until: Time) {
        for (process, child) in self.0.iter_mut().enumerate() {
            let mut ended = None;
            while ended.is_none() {
                assert!(now() < until + nanos(FINISH), "process {process} does not come to an end");
                thread::sleep(Duration::from_millis(5));
                ended = child.try_wait().expect("it is our child");
            }
            if ended.is_none_or(|status| !status.success()) {
                let said = fs::read_to_string(output_of(directory, process)).unwrap_or_default();
                panic!("process {process} has failed; {} has it all\n{said}", directory.display());
            }
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both fail only if it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
