//! The report: the findings of a study as one page of HTML, for a desk and for a phone, for day and
//! for night.
//!
//! It needs nothing but itself, and no script. Its charts are shapes alone: what is text in them is
//! HTML beside the shapes, so it keeps its size however narrow the page, takes the colours of the
//! theme, and can be read aloud. That is why no crate for charts draws them: those write text and
//! colours into a picture of a fixed size. Whatever comes from a log is escaped by `maud`.

use std::fmt::Write;
use std::time::Duration;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::duration::Span;
use crate::findings::{Findings, Strategy, bounds};
use crate::table::{count, counted, glued};
use crate::verdict::{Worth, percent};

const STYLE: &str = include_str!("report.css");

pub(crate) fn page(findings: &Findings) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "herd: " (findings.log.name) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "Coalescing, a lease, or both?" }
                    p { (findings.log.summary()) }
                    @for line in findings.settings.lines() {
                        p.quiet.small { (line) }
                    }
                }
                main {
                    (verdict(findings))
                    (loads(&findings.strategies))
                    (over_time(findings))
                    (waits(&findings.strategies))
                    @if !findings.traffic.is_empty() { (traffic(findings)) }
                    @if !findings.hottest.is_empty() { (hottest(findings)) }
                    (settings(findings))
                }
                footer {
                    p.quiet.small {
                        "Made by " code { "herd replay" } ", an example of onefill. The same log and \
                         settings make the same page."
                    }
                }
            }
        }
    }
}

fn verdict(findings: &Findings) -> Markup {
    let worth = &findings.worth;
    let coalesced = worth.none - worth.by_coalescing;
    html! {
        section.verdict aria-labelledby="verdict" {
            h2 id="verdict" { (findings.verdict.headline) }
            dl.facts {
                div { dt { "Loads, no help" } dd { (count(worth.none)) small { "of " (counted(findings.log.requests, "call")) } } }
                div { dt { "Coalescing" } dd { (less(worth.by_coalescing)) small { (percent(worth.by_coalescing, worth.none)) " of those" } } }
                div { dt { "Shared tier" } dd { (less(worth.by_tier)) small { (percent(worth.by_tier, coalesced)) " of the rest, " (count(worth.by_lease)) " by the lease" } } }
                div { dt { "Loads, both" } dd { (count(worth.left)) small { (percent(worth.left, worth.none)) " are left" } } }
            }
            ul { @for reason in &findings.verdict.reasons { li { (glued(reason)) } } }
        }
    }
}

fn less(loads: u64) -> String {
    match loads {
        0 => "0".into(),
        loads => format!("−{}", count(loads)),
    }
}

/// What a load is, by its class in the style sheet: a name for it, and its number.
type Kind = (&'static str, &'static str, fn(&Strategy) -> u64);

const KINDS: [Kind; 4] = [
    ("needed", "needed", |strategy| strategy.needed),
    ("kept", "another instance had it", |strategy| strategy.kept_elsewhere),
    ("fleet", "another instance was loading it", |strategy| strategy.in_fleet),
    ("instance", "the same instance was loading it", |strategy| strategy.in_instance),
];

fn loads(strategies: &[Strategy]) -> Markup {
    let most = strategies.iter().map(|strategy| strategy.loads).max().unwrap_or(0).max(1);
    let width = |part: u64| format!("width:{:.3}%", 100.0 * part as f64 / most as f64);
    let told = |strategy: &Strategy| {
        let duplicates = count(strategy.duplicates);
        format!(
            "{}: {} loads, {duplicates} of them duplicates",
            strategy.name,
            count(strategy.loads)
        )
    };
    let tier = |strategy: &Strategy, number: u64| match strategy.tier {
        true => count(number),
        false => "–".to_string(),
    };
    html! {
        section aria-labelledby="loads" {
            h2 id="loads" { "Loads, and how many were duplicates" }
            p.quiet.small {
                "A load is a duplicate if, when it began, the value was there or on its way. Without a \
                 tier each instance keeps a copy from when it loaded it itself, so there are fewer \
                 moments at which nobody has one, and fewer loads that are needed."
            }
            div.bars {
                @for strategy in strategies {
                    span { (strategy.name) }
                    div.bar role="img" aria-label=(told(strategy)) {
                        @for (class, _, number) in KINDS {
                            @if number(strategy) > 0 { i class=(class) style=(width(number(strategy))) {} }
                        }
                    }
                    span.number { (count(strategy.loads)) }
                }
            }
            ul.legend { @for (class, name, _) in KINDS { li { i class=(class) {} (name) } } }
            div.scroll { table {
                caption { "What became of the calls" }
                (heads(strategies))
                tbody {
                    tr.sum { th scope="row" { "calls" } @for strategy in strategies { td { (count(strategy.calls)) } } }
                    (row("part", "hits in memory", strategies, |strategy| count(strategy.hits)))
                    (row("part", "joined a caller", strategies, |strategy| count(strategy.joined)))
                    (row("part", "found in the tier", strategies, |strategy| tier(strategy, strategy.shared)))
                    (row("part", "spared by the lease", strategies, |strategy| tier(strategy, strategy.spared)))
                    (row("sum", "loads", strategies, |strategy| count(strategy.loads)))
                    @for (_, name, number) in KINDS {
                        (row("part", name, strategies, |strategy| count(number(strategy))))
                    }
                    (row("", "loads at once, max", strategies, |strategy| count(strategy.most_at_once)))
                    (row("", "lease claims", strategies, |strategy| tier(strategy, strategy.claims)))
                    (row("", "tier commands", strategies, |strategy| tier(strategy, strategy.commands)))
                }
            } }
        }
    }
}

fn heads(strategies: &[Strategy]) -> Markup {
    html! {
        thead { tr {
            th scope="col" { span aria-hidden="true" { "" } }
            @for strategy in strategies { th scope="col" { (strategy.name) } }
        } }
    }
}

fn row(
    class: &str,
    name: &str,
    strategies: &[Strategy],
    cell: impl Fn(&Strategy) -> String,
) -> Markup {
    html! {
        tr class=(class) {
            th scope="row" { (name) }
            @for strategy in strategies { td { (cell(strategy)) } }
        }
    }
}

fn over_time(findings: &Findings) -> Markup {
    let strategies = &findings.strategies;
    let numbers = strategies.iter().flat_map(|strategy| &strategy.over_time);
    let most = numbers.copied().max().unwrap_or(0).max(1);
    let span = findings.stretch.saturating_mul(strategies[0].over_time.len() as u32);
    let at = |part: u32| match part {
        0 => "0".to_string(),
        part => Span(span * part / 4).to_string(),
    };
    html! {
        section aria-labelledby="over-time" {
            h2 id="over-time" { "Loads over time" }
            p.quiet.small {
                @if span.is_zero() { "All at one moment. " }
                @else { "Loads in each " (Span(findings.stretch)) ". " }
                "All four have one scale: the line at the top is " (counted(most as usize, "load")) "."
            }
            @for strategy in strategies {
                @let busiest = strategy.over_time.iter().copied().max().unwrap_or(0);
                @let late = match strategy.late {
                    0 => String::new(),
                    late => format!(", {} after the last request", count(late)),
                };
                @let caption = format!("{} in all, {} at most{late}", count(strategy.loads), count(busiest));
                figure {
                    figcaption { b { (strategy.name) } span.quiet { (caption) } }
                    (columns(&format!("Loads over time, {}: {caption}", strategy.name), &strategy.over_time, most, 0.0))
                }
            }
            div.axis aria-hidden="true" {
                @if !span.is_zero() {
                    span.first style="left:0" { (at(0)) }
                    span.minor style="left:25%" { (at(1)) }
                    span style="left:50%" { (at(2)) }
                    span.minor style="left:75%" { (at(3)) }
                    span.last style="left:100%" { (at(4)) }
                }
            }
        }
    }
}

fn waits(strategies: &[Strategy]) -> Markup {
    // The first class is answers at once: they would dwarf the others.
    let used = |class: &usize| strategies.iter().any(|strategy| strategy.classes[*class] > 0);
    let classes = 1..strategies[0].classes.len();
    let first = classes.clone().find(used);
    let last = classes.rev().find(used);
    html! {
        section aria-labelledby="waits" {
            h2 id="waits" { "How long callers waited" }
            @match (first, last) {
                (Some(first), Some(last)) => { (wait_charts(strategies, first, last)) }
                _ => { p { "Nobody waited for longer than 100 µs." } }
            }
            div.scroll { table {
                caption { "Waits of all calls, hits included" }
                (heads(strategies))
                tbody {
                    (row("", "mean", strategies, |strategy| Span(strategy.wait.mean).to_string()))
                    (row("", "median", strategies, |strategy| Span(strategy.wait.p50).to_string()))
                    (row("", "90 %", strategies, |strategy| Span(strategy.wait.p90).to_string()))
                    (row("", "99 %", strategies, |strategy| Span(strategy.wait.p99).to_string()))
                    (row("", "99.9 %", strategies, |strategy| Span(strategy.wait.p999).to_string()))
                    (row("", "longest", strategies, |strategy| Span(strategy.wait.max).to_string()))
                }
            } }
        }
    }
}

/// The classes from `first` to `last`, one chart for each strategy.
fn wait_charts(strategies: &[Strategy], first: usize, last: usize) -> Markup {
    // A column alone would say nothing about what is beside it.
    let first = first.saturating_sub(1).max(1);
    let last = (last + 1).min(strategies[0].classes.len() - 1);
    let shown = |strategy: &Strategy| strategy.classes[first..=last].to_vec();
    let most = strategies.iter().flat_map(shown).max().unwrap_or(0).max(1);
    let number = last + 1 - first;
    let ticks = bounds().skip(first - 1).take(number).enumerate();
    let is_power = |nanos: u64| nanos.to_string().trim_end_matches('0') == "1";
    html! {
        p.quiet.small {
            "Calls by the time to their answer; those answered within 100 µs are left out of the \
             columns. All four have one scale: the line at the top is " (counted(most as usize, "call")) "."
        }
        @for strategy in strategies {
            @let at_once = strategy.classes[0];
            @let caption = format!("{} at once, {} waited", count(at_once), count(strategy.calls - at_once));
            figure {
                figcaption { b { (strategy.name) } span.quiet { (caption) } }
                (columns(&format!("Waits, {}: {caption}", strategy.name), &shown(strategy), most, 0.04))
            }
        }
        div.axis aria-hidden="true" {
            @for (place, nanos) in ticks {
                @let left = format!("left:{:.3}%", 100.0 * place as f64 / number as f64);
                span.first[place == 0].minor[!is_power(nanos)] style=(left) { (Span(Duration::from_nanos(nanos))) }
            }
        }
    }
}

/// Columns side by side, with so much of each left free on both sides.
fn columns(title: &str, numbers: &[u64], most: u64, free: f64) -> Markup {
    const HEIGHT: f64 = 100.0;
    let mut path = String::new();
    for (place, number) in numbers.iter().enumerate().filter(|(_, number)| **number > 0) {
        // What is there is to be seen, however little it is.
        let height = (HEIGHT * *number as f64 / most as f64).max(1.5);
        let (left, width) = (place as f64 + free, 1.0 - 2.0 * free);
        let top = HEIGHT - height;
        write!(path, "M{left:.2} {HEIGHT}V{top:.2}h{width:.2}V{HEIGHT}z")
            .expect("a string takes everything");
    }
    html! {
        svg role="img" aria-label=(title) viewBox=(format!("0 0 {} {HEIGHT}", numbers.len())) preserveAspectRatio="none" {
            title { (title) }
            path.shape d=(path) {}
        }
    }
}

fn traffic(findings: &Findings) -> Markup {
    html! {
        section aria-labelledby="traffic" {
            h2 id="traffic" { "With more traffic" }
            p.quiet.small { (findings.traffic_note()) }
            div.scroll { table {
                caption { "Loads, and from which load on a layer pays" }
                thead { tr {
                    th scope="col" { "traffic" }
                    @for traffic in &findings.traffic { th scope="col" { "× " (count(traffic.times.into())) } }
                } }
                tbody {
                    @for (place, strategy) in findings.strategies.iter().enumerate() { tr {
                        th scope="row" { "loads, " (strategy.name) }
                        @for traffic in &findings.traffic { td { (count(traffic.loads[place])) } }
                    } }
                    @for (place, name) in Worth::CELLS.into_iter().enumerate() { tr {
                        th scope="row" { (name) }
                        @for traffic in &findings.traffic { td { (traffic.worth.cells()[place]) } }
                    } }
                }
            } }
        }
    }
}

fn hottest(findings: &Findings) -> Markup {
    html! {
        section aria-labelledby="hottest" {
            h2 id="hottest" { "The hottest keys" }
            div.scroll { table.keys {
                caption { "Requests, and the loads they cost" }
                thead { tr {
                    th scope="col" { "key" }
                    th scope="col" { "requests" }
                    @for strategy in &findings.strategies { th scope="col" { (strategy.name) } }
                } }
                tbody { @for hot in &findings.hottest { tr {
                    th scope="row" { (hot.shown) }
                    td { (count(hot.requests)) }
                    @for loads in hot.loads { td { (count(loads)) } }
                } } }
            } }
        }
    }
}

fn settings(findings: &Findings) -> Markup {
    let (log, settings) = (&findings.log, &findings.settings);
    html! {
        section aria-labelledby="settings" {
            h2 id="settings" { "Settings" }
            dl.settings {
                dt { "log" } dd { (log.name) }
                dt { "instances" } dd { (count(settings.instances.into())) " of " (counted(settings.threads, "thread")) }
                dt { "requests go" } dd { (settings.spread.as_deref().unwrap_or("–")) ", seed " (settings.seed) }
                dt { "speed" } dd { (settings.speed) }
                dt { "kept for" } dd { (Span(settings.ttl)) }
                dt { "a load" } dd { (Span(settings.load)) ", " (counted(log.timed as usize, "request")) " of the log with a time" }
                dt { "loads at once" } dd { @match settings.pool { Some(pool) => (count(pool as u64)), None => "no bound" } }
                dt { "tier" } dd { (Span(settings.round_trip)) " there and back" }
                dt { "left out" } dd { (counted(log.skipped.writes as usize, "write")) ", " (counted(log.skipped.bad as usize, "bad line"))
                    @if let Some((line, reason)) = &log.skipped.first_bad { "; the first is line " (line) ": " (reason) }
                }
            }
            p.quiet.small {
                "Simulated by a virtual clock. Each instance has a cache with this TTL; “none” and \
                 “lease” let each of its callers load or claim by itself. No jitter, early refresh, \
                 stale windows or bounds on size; nothing fails, and nobody gives up."
            }
        }
    }
}
