//! What was found, as a table and as JSON.

use std::io::Write;
use std::time::Duration;

use comfy_table::{LineStyle, Table as Grid, TableStyle};
use onefill::fleet::Table;
use serde_json::{Value as Json, json};

use crate::Failure;
use crate::inspect::{Found, Lease, State, Value, What};
use crate::keys;

const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// The cell of what there is none of.
const NONE: &str = "–";

pub(crate) fn table(out: &mut impl Write, table: &Table, all: &[Found]) -> Result<(), Failure> {
    if all.is_empty() {
        writeln!(out, "nothing is stored of the table {:?}", table.name())?;
        return Ok(());
    }
    let mut grid = Grid::new();
    grid.load_style(STYLE);
    let heads =
        ["key", "state", "age", "fresh for", "gone in", "load took", "bytes", "version", "lease"];
    grid.set_header(heads);
    for found in all {
        let [state, age, fresh, gone, cost, bytes, version] = value(found.value.as_ref());
        let lease = found.lease.as_ref().map_or(NONE.into(), lease);
        grid.add_row([name(found), state, age, fresh, gone, cost, bytes, version, lease]);
    }
    for line in grid.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// As it is typed, or that it cannot be read.
fn name(found: &Found) -> String {
    match &found.key {
        Some(key) => keys::shown(key),
        None => format!("hashed, {}", found.fingerprint),
    }
}

fn value(value: Option<&Value>) -> [String; 7] {
    let none = || NONE.to_owned();
    let Some(Value { what, left }) = value else {
        return ["not there".into(), none(), none(), none(), none(), none(), none()];
    };
    let gone = left.map_or("never".into(), time);
    match what {
        What::Broken(fault) => {
            [format!("broken: {fault}"), none(), none(), gone, none(), none(), none()]
        }
        What::Envelope { header, len, state } => {
            let age = header.age(*left);
            let absent = if header.absent { ", absent" } else { "" };
            let fresh = age.filter(|_| *state == State::Fresh);
            [
                format!("{}{absent}", word(*state)),
                age.map_or_else(none, time),
                fresh.map_or_else(none, |age| time(header.ttl.saturating_sub(age))),
                gone,
                time(header.cost),
                len.to_string(),
                header.version.to_string(),
            ]
        }
    }
}

fn word(state: State) -> &'static str {
    match state {
        State::Fresh => "fresh",
        State::Stale => "stale",
        State::Expired => "expired",
        State::Invalidated => "invalidated",
        State::Endless => "endless",
    }
}

fn lease(lease: &Lease) -> String {
    let holder = lease.token.map_or("of a type that is not ours".into(), |token| token.to_string());
    match lease.left {
        Some(left) => format!("{holder}, {} left", time(left)),
        None => format!("{holder}, without an end"),
    }
}

fn time(time: Duration) -> String {
    format!("{time:.1?}")
}

pub(crate) fn json(out: &mut impl Write, table: &Table, all: &[Found]) -> Result<(), Failure> {
    let all: Vec<Json> = all.iter().map(|found| one(table, found)).collect();
    let text = serde_json::to_string_pretty(&all).expect("nothing in it is a map with odd keys");
    writeln!(out, "{text}")?;
    Ok(())
}

fn one(table: &Table, found: &Found) -> Json {
    let value = found.value.as_ref().map(|Value { what, left }| match what {
        What::Broken(fault) => {
            json!({ "state": "broken", "fault": fault, "left_ms": left.map(millis) })
        }
        What::Envelope { header, len, state } => json!({
            "state": word(*state),
            "absent": header.absent,
            "age_ms": header.age(*left).map(millis),
            "ttl_ms": millis(header.ttl),
            "life_ms": millis(header.life),
            "left_ms": left.map(millis),
            "cost_us": u64::try_from(header.cost.as_micros()).unwrap_or(u64::MAX),
            "bytes": len,
            "version": header.version.to_string(),
            "schema": header.schema.to_string(),
            "epoch": header.epoch.to_string(),
        }),
    });
    let lease = found.lease.as_ref().map(|lease| {
        json!({
            "token": lease.token.map(|token| token.to_string()),
            "left_ms": lease.left.map(millis),
        })
    });
    json!({
        "table": table.name(),
        "key": found.key.as_ref().map(|key| key.escape_ascii().to_string()),
        "fingerprint": found.fingerprint.to_string(),
        "value": value,
        "lease": lease,
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
