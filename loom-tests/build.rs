//! Writes a copy of the library's rooms for each seeded bug, and the modules that hold them.
//!
//! `mutants.rs`, for the library here, has one module per bug, which looks like the library's
//! root. `teeth.rs`, for the tests, has one per bug too: the scenarios over that library, and an
//! ignored test for each that must catch the bug.

#[path = "src/bugs.rs"]
mod bugs;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use bugs::{BUGS, Edit};

/// The rooms that hold an order to get wrong, and what goes with them: where each is, the file or
/// directory, and the module.
const ROOMS: &[(&str, &str, &str)] = &[
    ("../src", "flight", "flight"),
    ("../src", "admission", "admission"),
    ("../src", "workers", "workers"),
    ("../src", "local", "unstepped"),
    ("src", "stepped", "local"),
    ("../src", "cache", "cache"),
    ("src", "doors", "doors"),
];

/// The rooms that all share with the sound library. Not copying [`sync`](../src/sync.rs) keeps the
/// model itself one.
const SHARED: &str = "clock, deadline, error, fleet, freshness, moment, stats, sync, telemetry";

/// What a scenario imports from its library.
const FACADE: &str = "pub use crate::{Cap, Clock, Deadline, Error};
    pub use cache::{Answer, Cache, CacheBuilder, Fill, Load, Source};
    pub use flight::{FailurePolicy, Group, GroupBuilder, Join, Lead};";

/// What the scenarios have in common, beside them.
const COMMON: &[&str] = &["herd", "shop"];

fn main() {
    println!("cargo::rerun-if-changed=../src");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src");
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap());
    let scenarios = here.join("tests/scenarios");

    let (mut mutants, mut teeth) = (String::new(), String::new());
    let caught_by = BUGS.iter().flat_map(|bug| bug.caught_by).map(|(scenario, _)| *scenario);
    // The sound source is to survive whatever catches a bug.
    teeth += &children("sound", "loom_tests", &scenarios, caught_by.collect());
    for bug in BUGS {
        let name = bug.name;
        let mut made = 0;
        let mut rooms = String::new();
        for (root, room, module) in ROOMS {
            let root = here.join(root);
            let source = root.join(room);
            let (source, file) = if source.is_dir() {
                (source, PathBuf::from(room).join("mod.rs"))
            } else {
                (source.with_extension("rs"), PathBuf::from(room).with_extension("rs"))
            };
            let copy = out.join(name);
            for file in files(&source) {
                let path = file.strip_prefix(&root).unwrap();
                let text = fs::read_to_string(&file).unwrap();
                let (text, edits) = edit(name, path, text, bug.edits);
                made += edits;
                let text = text.replace("crate::", &format!("crate::mutants::{name}::"));
                fs::create_dir_all(copy.join(path).parent().unwrap()).unwrap();
                fs::write(copy.join(path), text).unwrap();
            }
            writeln!(rooms, "    #[path = {:?}] pub mod {module};", copy.join(file)).unwrap();
        }
        assert_eq!(made, bug.edits.len(), "{name}: an edit of a file that is in no room");
        writeln!(
            mutants,
            "pub mod {name} {{\n    use crate::{{{SHARED}}};\n{rooms}    {FACADE}\n}}"
        )
        .unwrap();

        let caught_by = bug.caught_by.iter().map(|(scenario, _)| *scenario).collect();
        let library = format!("loom_tests::mutants::{name}");
        teeth += &children(name, &library, &scenarios, caught_by);
    }
    fs::write(out.join("mutants.rs"), mutants).unwrap();
    fs::write(out.join("teeth.rs"), teeth).unwrap();
}

/// A module with a test for each of `caught_by`, over `library`, and no more of the scenarios than
/// those need: they are compiled for each bug.
fn children(
    name: &str,
    library: &str,
    scenarios: &Path,
    caught_by: BTreeSet<&'static str>,
) -> String {
    let rooms = caught_by.iter().map(|scenario| scenario.split("::").next().unwrap());
    let rooms: String = COMMON
        .iter()
        .copied()
        .chain(rooms)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .map(|room| {
            format!(
                "        #[path = {:?}] pub mod {room};\n",
                scenarios.join(room).with_extension("rs")
            )
        })
        .collect();
    let tests: String = caught_by
        .iter()
        .map(|scenario| {
            let test = scenario.rsplit("::").next().unwrap();
            let why = "a child of `every_seeded_bug_is_caught`";
            format!("    #[test] #[ignore = {why:?}] fn {test}() {{ scenarios::{scenario}() }}\n")
        })
        .collect();
    format!(
        "mod {name} {{
    use {library} as onefill;
    #[allow(dead_code)] mod scenarios {{\n        use super::onefill;\n{rooms}    }}
{tests}}}\n"
    )
}

/// The file, or every file below the directory.
fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_path_buf()];
    }
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|entry| files(&entry)).collect()
}

/// Makes those of `edits` that are for the file at `path`.
fn edit(bug: &str, path: &Path, mut text: String, edits: &[Edit]) -> (String, usize) {
    let mut made = 0;
    for Edit(_, from, to) in edits.iter().filter(|Edit(file, ..)| Path::new(file) == path) {
        let found = places(&text, from);
        let [place] = &found[..] else {
            panic!("{bug}: found {} times in {}, not once: {from}", found.len(), path.display());
        };
        text.replace_range(place.clone(), to);
        made += 1;
    }
    (text, made)
}

/// Where `wanted` stands in `text`, if any white space is as good as any other.
fn places(text: &str, wanted: &str) -> Vec<std::ops::Range<usize>> {
    let words: Vec<&str> = wanted.split_whitespace().collect();
    let starts = text.match_indices(words[0]).map(|(start, _)| start);
    let end_of = |start: usize| {
        let mut end = start + words[0].len();
        for word in &words[1..] {
            let rest = &text[end..];
            let gap = rest.len() - rest.trim_start().len();
            if gap == 0 || !rest[gap..].starts_with(word) {
                return None;
            }
            end += gap + word.len();
        }
        Some(end)
    };
    starts.filter_map(|start| Some(start..end_of(start)?)).collect()
}
