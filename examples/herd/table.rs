//! The tables that are printed.

use std::time::Duration;

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

use crate::duration::Span;
use crate::tally::{Pass, Traffic};

const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// The cell of what there is none of.
const NONE: &str = "–";

/// What every strategy cost, a column each.
pub(crate) fn costs(passes: &[Pass]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    let mut row = |title: &str, cell: &dyn Fn(&Pass) -> String| {
        let cells = passes.iter().map(cell);
        table.add_row(std::iter::once(title.to_string()).chain(cells).collect::<Vec<_>>());
    };
    row("calls", &|pass| count(pass.tally.calls()));
    row("loads", &|pass| count(pass.all_loads()));
    row("duplicates avoided", &|pass| count(pass.tally.calls().saturating_sub(pass.all_loads())));
    if passes.iter().any(|pass| pass.fleet.is_some()) {
        row("lease claims", &|pass| fleet(pass, |traffic| traffic.claims));
        row("tier commands", &|pass| fleet(pass, |traffic| traffic.commands));
        row("messages heard", &|pass| fleet(pass, |traffic| traffic.messages));
    }
    if passes.iter().any(|pass| pass.peak.is_some()) {
        row("loads at once, peak", &|pass| pass.peak.map_or(NONE.into(), count));
    }
    if passes.iter().any(|pass| pass.unanswered > 0) {
        row("killed with their process", &|pass| count(pass.unanswered));
    }
    row("wait, p50", &|pass| time(pass.tally.waits.quantile(0.5)));
    row("wait, p99", &|pass| time(pass.tally.waits.quantile(0.99)));
    row("wait, max", &|pass| time(pass.tally.waits.quantile(1.0)));
    row("leader's return, p50", &|pass| time(pass.tally.leads.quantile(0.5)));
    row("leader's return, max", &|pass| time(pass.tally.leads.quantile(1.0)));
    if passes.iter().any(|pass| pass.tally.most_behind.is_some()) {
        row("behind, max (real time)", &|pass| time(pass.tally.most_behind));
    }
    let names = passes.iter().map(|pass| pass.strategy);
    table.set_header(std::iter::once("").chain(names).collect::<Vec<_>>());
    align_right(&mut table, 1..=passes.len());
    table
}

/// The keys asked for most often, each with the loads it cost under every strategy.
pub(crate) fn hottest(
    hottest: &[(usize, u64)],
    name: impl Fn(usize) -> String,
    passes: &[Pass],
) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    for (key, requests) in hottest {
        let loads = passes.iter().map(|pass| count(pass.loads[*key]));
        let cells = std::iter::once(count(*requests)).chain(loads);
        table.add_row(cells.chain([name(*key)]).collect::<Vec<_>>());
    }
    let loads = passes.iter().map(|pass| format!("loads {}", pass.strategy));
    let header = std::iter::once("requests".to_string()).chain(loads);
    table.set_header(header.chain(["hottest keys".to_string()]).collect::<Vec<_>>());
    align_right(&mut table, 0..=passes.len());
    table
}

/// A table of numbers, and of what they are about: in the first column, or, with `named_last`, in
/// the last one.
pub(crate) fn numbers(
    header: &[String],
    rows: impl IntoIterator<Item = Vec<String>>,
    named_last: bool,
) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    for row in rows {
        table.add_row(row);
    }
    table.set_header(header);
    let last = header.len() - 1;
    align_right(&mut table, if named_last { 0..last } else { 1..last + 1 });
    table
}

/// A number with its thousands set apart.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// How many there are of a thing.
pub(crate) fn counted(number: usize, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", count(number as u64))
}

/// A text in which no line begins with a unit, or with the number after a `×`.
pub(crate) fn glued(text: &str) -> String {
    const UNITS: [&str; 8] = ["%", "ns", "µs", "ms", "s", "min", "h", "d"];
    let mut glued = String::new();
    for word in text.split(' ') {
        let letters = word.trim_end_matches([',', '.', ';', ':', ')']);
        let unit = glued.ends_with(|last: char| last.is_ascii_digit()) && UNITS.contains(&letters);
        match glued.is_empty() {
            true => {}
            false if unit || glued.ends_with('×') => glued.push('\u{a0}'),
            false => glued.push(' '),
        }
        glued.push_str(word);
    }
    glued
}

fn time(time: Option<Duration>) -> String {
    time.map_or(NONE.into(), |time| Span(time).to_string())
}

fn fleet(pass: &Pass, what: impl Fn(Traffic) -> u64) -> String {
    pass.fleet.map_or(NONE.into(), |traffic| count(what(traffic)))
}

fn align_right(table: &mut Table, columns: impl IntoIterator<Item = usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{count, counted, glued};

    #[test]
    fn a_number_stays_with_its_unit() {
        let text = "8 × 50 ms (7 %), 3 h 10 min. 5 minutes";
        let expected = "8 ×_50_ms (7_%), 3_h 10_min. 5 minutes";
        assert_eq!(glued(text), expected.replace('_', "\u{a0}"));
    }

    #[test]
    fn one_is_not_many() {
        let keys = [0, 1, 1_496].map(|number| counted(number, "key"));
        assert_eq!(keys, ["0 keys", "1 key", "1,496 keys"]);
    }

    #[test]
    fn thousands_are_set_apart() {
        let counts = [0, 7, 999, 1_000, 12_345, 1_234_567].map(count);
        assert_eq!(counts, ["0", "7", "999", "1,000", "12,345", "1,234,567"]);
    }
}
