//! What the project's own files promise each other.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All Rust files under `folder`, with their text.
fn rust_files(folder: &str) -> Vec<(PathBuf, String)> {
    fn collect(folder: &Path, files: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, files);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = read(&path);
                files.push((path, text));
            }
        }
    }
    let mut files = Vec::new();
    collect(&root().join(folder), &mut files);
    assert!(!files.is_empty(), "nothing under {folder}");
    files
}

/// The code of the library outside its door to threads and locks, without comments, and without
/// its unit tests, which come last in a file: no model runs them.
fn code_behind_the_door() -> Vec<(PathBuf, String)> {
    let files = rust_files("src").into_iter();
    files
        .filter(|(path, _)| !path.ends_with("src/sync.rs") && !path.ends_with("flight/tests.rs"))
        .map(|(path, text)| (path, without_comments(without_tests(&text))))
        .collect()
}

fn without_tests(text: &str) -> &str {
    text.find("\nmod tests {").map_or(text, |tests| &text[..tests])
}

fn without_comments(text: &str) -> String {
    let code = text.lines().map(|line| match line.find("//") {
        Some(comment) if !line[..comment].contains('"') => &line[..comment],
        _ => line,
    });
    code.collect::<Vec<_>>().join("\n")
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// What is named after `std::sync::` or between its braces, wherever that is.
fn named_in_std_sync(code: &str) -> Vec<String> {
    let dense: String = code.split_whitespace().collect::<Vec<_>>().join(" ");
    let paths = dense.match_indices("std::sync::").map(|(at, path)| &dense[at + path.len()..]);
    paths
        .flat_map(|rest| {
            let end = if rest.starts_with('{') { '}' } else { ';' };
            let named = rest.split(end).next().unwrap_or_default();
            let one = !rest.starts_with('{');
            let named: Vec<_> = words(named).map(str::to_string).collect();
            if one { named.into_iter().take(1).collect() } else { named }
        })
        .collect()
}

#[test]
fn threads_and_locks_have_one_door() {
    let locks = ["Mutex", "MutexGuard", "Condvar", "RwLock", "OnceLock", "LazyLock", "Once"];
    let names = ["parking_lot", "once_cell", "std::thread_local", "thread_local!", "loom::"];
    for (path, code) in code_behind_the_door() {
        for name in names {
            assert!(!code.contains(name), "{} names {name}", path.display());
        }
        for named in named_in_std_sync(&code) {
            assert!(!locks.contains(&&*named), "{} names std's {named}", path.display());
        }
    }
    // The finder finds.
    let found = named_in_std_sync("use std::sync::{Arc,\n Mutex};\nlet a: std::sync::Once = b;");
    assert_eq!(found, ["Arc", "Mutex", "Once"]);
}

#[test]
fn there_is_no_unsafe_code_behind_the_door() {
    for (path, code) in code_behind_the_door() {
        assert!(!words(&code).any(|word| word == "unsafe"), "{}", path.display());
    }
    assert!(read(&root().join("src/lib.rs")).contains("forbid(unsafe_code)"));
}

#[test]
fn nothing_is_left_to_be_done() {
    // Spelt so as not to be found here.
    let marks = ["TO DO", "FIX ME", "X XX", "to do!", "un implemented!", "d bg!"]
        .map(|mark| mark.replace(' ', ""));
    for folder in ["src", "tests", "benches", "examples"] {
        for (path, text) in rust_files(folder) {
            for mark in &marks {
                assert!(!text.contains(mark), "{} has a {mark}", path.display());
            }
        }
    }
}

#[test]
fn every_file_says_what_it_is_for() {
    for folder in ["src", "tests", "benches", "examples"] {
        for (path, text) in rust_files(folder) {
            assert!(text.starts_with("//! "), "{} begins otherwise", path.display());
        }
    }
}

#[test]
fn the_changelog_begins_with_this_version() {
    let changelog = read(&root().join("CHANGELOG.md"));
    let top = changelog.lines().find_map(|line| line.strip_prefix("## "));
    let version = top.and_then(|top| top.trim_start_matches('[').split([']', ' ']).next());
    assert_eq!(version, Some(env!("CARGO_PKG_VERSION")));
}

/// A comment that names a seeded bug claims that the model checker has been seen to catch it.
#[test]
fn every_seeded_bug_exists() {
    let mut named = Vec::new();
    for (_, text) in rust_files("src") {
        let lines = text.lines().map(|line| line.trim().trim_start_matches('/').trim());
        let text = lines.collect::<Vec<_>>().join(" ");
        for (at, mark) in text.match_indices("seeded bug: `") {
            named.extend(text[at + mark.len()..].split('`').next().map(str::to_string));
        }
    }
    assert!(!named.is_empty(), "the finder finds nothing");

    let seeded = read(&root().join("loom-tests/src/bugs.rs"));
    for name in named {
        assert!(words(&seeded).any(|word| word == name), "nobody seeds {name}");
    }
}
