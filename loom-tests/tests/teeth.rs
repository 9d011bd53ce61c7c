//! The scenarios have teeth: each seeded bug is caught, with the words expected.
//!
//! Each runs in a process of its own. A model that deadlocks while it is torn down may abort, and
//! that says nothing; the words do.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use loom_tests::bugs::BUGS;

include!(concat!(env!("OUT_DIR"), "/teeth.rs"));

/// What a child said.
struct Said {
    passed: bool,
    text: String,
    executions: usize,
    time: Duration,
}

fn child(library: &str, scenario: &str) -> Said {
    let begun = Instant::now();
    let test = format!("{library}::{}", scenario.rsplit("::").next().unwrap());
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "--test-threads=1", &test])
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("running 1 test"), "there is no {test}:\n{text}");
    let executions = text
        .split(" executions ")
        .skip(1)
        .map(|count| count.split(' ').next().unwrap().parse::<usize>().unwrap())
        .sum();
    Said { passed: output.status.success(), text, executions, time: begun.elapsed() }
}

#[test]
fn every_seeded_bug_is_caught() {
    // With no words to find, the scenario is to pass.
    let mut rows: Vec<(&str, &str, Option<&str>)> = Vec::new();
    let all = BUGS.iter().flat_map(|bug| bug.caught_by).map(|(scenario, _)| *scenario);
    rows.extend(all.collect::<BTreeSet<_>>().into_iter().map(|scenario| ("sound", scenario, None)));
    for bug in BUGS {
        rows.extend(
            bug.caught_by.iter().map(|(scenario, words)| (bug.name, *scenario, Some(*words))),
        );
    }

    let (rows, failures) = (Mutex::new(rows.into_iter()), Mutex::new(Vec::new()));
    let work = || {
        while let Some((bug, scenario, words)) = { rows.lock().unwrap().next() } {
            let said = child(bug, scenario);
            let as_it_should = match words {
                Some(words) => !said.passed && said.text.contains(words),
                None => said.passed,
            };
            let verdict = match (as_it_should, words) {
                (true, Some(words)) => format!("caught: {words}"),
                (true, None) => "passes".to_string(),
                (false, _) => "NOT AS IT SHOULD".to_string(),
            };
            let _ = writeln!(
                io::stdout(),
                "teeth {bug} | {scenario} | {verdict} | {} executions in {:.2?}",
                said.executions,
                said.time,
            );
            if !as_it_should {
                let text = said.text;
                failures.lock().unwrap().push(format!("{bug} under {scenario}: {words:?}\n{text}"));
            }
        }
    };
    std::thread::scope(|scope| {
        let helpers = std::thread::available_parallelism().map_or(1, |n| n.get());
        for _ in 0..helpers {
            scope.spawn(work);
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// A comment in the source that names a bug names one that is seeded.
#[test]
fn every_bug_that_a_comment_names_is_seeded() {
    let mut named = BTreeSet::new();
    comments(Path::new("../src"), &mut |text| {
        let plain = text.replace("///", " ").replace("//", " ");
        let words: Vec<&str> = plain.split_whitespace().collect();
        let pairs =
            words.windows(3).filter(|words| words[0].ends_with("seeded") && words[1] == "bug:");
        named.extend(pairs.map(|words| words[2].split('`').nth(1).unwrap().to_string()));
    });
    assert!(!named.is_empty());
    let seeded: BTreeSet<_> = BUGS.iter().map(|bug| bug.name.to_string()).collect();
    let stale: Vec<_> = named.difference(&seeded).collect();
    assert!(stale.is_empty(), "named in ../src, but not seeded: {stale:?}");
}

fn comments(path: &Path, read: &mut impl FnMut(&str)) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            comments(&entry.unwrap().path(), read);
        }
    } else {
        read(&fs::read_to_string(path).unwrap());
    }
}
