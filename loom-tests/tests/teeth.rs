//! The scenarios have teeth: each seeded bug is caught, with the words expected.
//!
//! Each runs in a process of its own. A model that deadlocks while it is torn down may abort, and
//! that says nothing; the words do.

#![allow(
    clippy::duplicate_mod,
    reason = "the scenarios are compiled once for each seeded bug, against the library with that bug"
)]

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use loom_tests::bugs::BUGS;
use loom_tests::model::SEEDED;

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
    let seeded = (library != "sound").then_some((SEEDED, "yes"));
    let test = format!("{library}::{}", scenario.rsplit("::").next().unwrap());
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "--test-threads=1", &test])
        .env("RUST_BACKTRACE", "0")
        .envs(seeded)
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
    let seeded: BTreeSet<_> = BUGS.iter().map(|bug| bug.name).collect();
    let mut named = 0;
    each_file(Path::new("../src"), &mut |path, text| {
        // However the comment is wrapped.
        let plain = text.replace("///", "").replace("//", "");
        let plain = plain.split_whitespace().collect::<Vec<_>>().join(" ");
        for names in plain.split("eeded bug").skip(1) {
            let names = names.trim_start_matches('s').trim_start_matches(": ");
            // Names in back quotes, with commas between them.
            for name in
                names.split('`').collect::<Vec<_>>().chunks(2).map_while(|pair| match pair {
                    ["" | ", ", name] => Some(*name),
                    _ => None,
                })
            {
                assert!(seeded.contains(name), "{}: `{name}` is not seeded", path.display());
                named += 1;
            }
        }
    });
    assert!(named > 5, "found {named} bugs named in the source: the comments are read wrongly");
}

fn each_file(path: &Path, read: &mut impl FnMut(&Path, &str)) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            each_file(&entry.unwrap().path(), read);
        }
    } else {
        read(path, &fs::read_to_string(path).unwrap());
    }
}
