//! The study of a log: what a fleet would make of it, under every strategy.

use std::fs;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use fastrand::Rng;

use crate::Failure;
use crate::duration::{self, Span};
use crate::findings::{Findings, Hot, LoadFrom, Log, Settings, Strategy, Traffic};
use crate::progress::Progress;
use crate::replay::{self, LOAD, Replay};
use crate::report;
use crate::requests::{Requests, Took};
use crate::schedule::{self, Arrival, SpeedUp};
use crate::simulation::{self, Fleet, Outcome, STRATEGIES, STRETCHES};
use crate::table::{self, count, counted, glued};
use crate::verdict::{Verdict, Worth};

/// Each needs `instances`; see [`needs`](crate::needs).
#[derive(Args)]
#[command(next_help_heading = "A fleet")]
pub(crate) struct Arguments {
    /// Simulate so many instances, up to 1000, which share the requests of the log
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=1000))]
    pub(crate) instances: Option<u16>,
    /// How long an instance, and the shared tier, keep what was loaded
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "60s",
        value_parser = positive
    )]
    ttl: Duration,
    /// How far away the shared tier is: there and back
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "500us",
        value_parser = duration::parse
    )]
    round_trip: Duration,
    /// Which instance a request goes to
    #[arg(long, value_enum, default_value_t = Spread::Random)]
    spread: Spread,
    /// What the random choices begin with; another seed shows how much is due to chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the findings as JSON, and nothing else, to standard output
    ///
    /// Times end in _ms or _s, and say so. For each of the `strategies`: calls = hits (in the memory
    /// of the instance) + joined (another caller) + shared (found in the tier) + spared (asked for
    /// the lease, got the value) + loads; and loads = needed + duplicates, which are loads of what
    /// the same instance was loading (in_instance), another was loading (in_fleet), or another had
    /// (kept_elsewhere). `over_time` counts loads by stretches of `stretch_s`, `late` those
    /// after the last request. `worth` is the
    /// arithmetic of the verdict, `traffic` the same log with so many `times` the traffic.
    #[arg(long)]
    json: bool,
    /// Write a report with charts to this file: one page of HTML that needs no other file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Spread {
    /// To any, as from a balancer that looks for the least busy one
    Random,
    /// To one after the other
    RoundRobin,
    /// To the same for all requests of a client's address
    Client,
}

fn positive(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err("a cache keeps things for some time; try 1ms".into()),
        time => Ok(time),
    }
}

/// With how many times the traffic the log is played, too.
const TIMES: [u32; 4] = [1, 10, 100, 1000];

/// Of a longer log only the start is played for each of those.
const MOST_FOR_TRAFFIC: usize = 300_000;

pub(crate) fn run(
    replay: &Replay,
    instances: u16,
    log: Requests,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let arguments = &replay.fleet;
    if let Some(report) = &arguments.report
        && same_file(report, Path::new(&replay.file))
    {
        return Err(Failure::Told("the report would replace the log".into()));
    }
    let findings = findings(replay, instances, log)?;
    if let Some(path) = &arguments.report {
        let page = report::page(&findings).into_string();
        fs::write(path, page).map_err(|error| {
            Failure::Told(format!("cannot write the report to {}: {error}", path.display()))
        })?;
    }
    if arguments.json {
        serde_json::to_writer_pretty(&mut *out, &findings).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        print(&findings, out)?;
        if let Some(path) = &arguments.report {
            writeln!(out, "\nReport: {}", path.display())?;
        }
    }
    Ok(())
}

fn same_file(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

fn findings(replay: &Replay, instances: u16, log: Requests) -> Result<Findings, Failure> {
    let arguments = &replay.fleet;
    if arguments.spread == Spread::Client && !log.name_clients {
        let name = replay.name();
        return Err(Failure::Told(format!("{name} names no clients to spread the requests by")));
    }
    let (loads, load_from) = loads(replay.load, &log.took);
    let mean_load = loads.iter().map(|load| u128::from(*load)).sum::<u128>() / loads.len() as u128;
    let mut random = Rng::with_seed(arguments.seed);
    // The order of arrival is not known before they are sorted, and routes must not depend on how
    // many draws that took.
    let mut routes = random.fork();
    let route = |place: usize, request: &schedule::Request| match arguments.spread {
        Spread::Random => routes.u16(..instances),
        Spread::RoundRobin => (place % usize::from(instances)) as u16,
        Spread::Client => (request.client % u32::from(instances)) as u16,
    };
    let arrivals = schedule::arrivals(log.all, &mut random, route);
    let speed_up = match replay.speed_up() {
        SpeedUp::Times(times) => times,
        SpeedUp::Max => f64::INFINITY,
    };
    let fleet = Fleet {
        instances: instances.into(),
        threads: replay.threads.get(),
        ttl: nanos(arguments.ttl),
        round_trip: nanos(arguments.round_trip),
        loads,
        pool: replay.pool.map(NonZeroUsize::get),
        speed_up,
    };
    let outcomes = STRATEGIES.map(|layers| {
        let progress = Progress::bar(layers.name, arrivals.len());
        simulation::run(layers, &fleet, &arrivals, |come| progress.set(come))
    });
    let worth = Worth::new(&outcomes, fleet.round_trip);
    let traffic = traffic(&fleet, &arrivals, &outcomes);

    let span = arrivals.last().map_or(0, |last| last.at);
    let played = (span as f64 / speed_up) as u64;
    let herd = outcomes[0].herd;
    let requested = arrivals.iter().map(|arrival| arrival.key as usize);
    let hottest = replay::hottest(requested, log.keys.len(), replay.hottest);
    let hottest = hottest.iter().map(|(key, requests)| Hot {
        key: String::from_utf8_lossy(&log.keys[*key]).into_owned(),
        shown: replay::shown(&log.keys[*key]),
        requests: *requests,
        loads: outcomes.each_ref().map(|outcome| outcome.by_key[*key].into()),
    });
    let hottest = hottest.collect();
    let settings = Settings {
        instances,
        threads: replay.threads.get(),
        ttl: arguments.ttl,
        load: Duration::from_nanos(u64::try_from(mean_load).unwrap_or(u64::MAX)),
        load_from,
        round_trip: arguments.round_trip,
        pool: fleet.pool,
        spread: arguments.spread.to_possible_value().map(|spread| spread.get_name().to_string()),
        seed: arguments.seed,
        speed_up: speed_up.is_finite().then_some(speed_up),
        speed: replay.speed(),
    };
    let largest = (herd.size, replay::shown(&log.keys[herd.key as usize]), herd.at);
    let verdict = Verdict::new(&worth, &outcomes, &settings, &traffic, &largest);
    Ok(Findings {
        log: Log {
            name: replay.name().to_string(),
            requests: arrivals.len(),
            keys: log.keys.len(),
            span: Duration::from_nanos(span),
            timed: Took::sum(&log.took).requests,
            skipped: log.skipped,
        },
        settings,
        stretch: Duration::from_nanos(played / STRETCHES as u64),
        strategies: outcomes.into_iter().map(Strategy::new).collect(),
        worth,
        traffic,
        hottest,
        verdict,
    })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What the load of each key takes, and who says so.
fn loads(given: Option<Duration>, took: &[Took]) -> (Vec<u64>, LoadFrom) {
    match (given, Took::sum(took).mean()) {
        (Some(load), _) => (vec![nanos(load); took.len()], LoadFrom::Arguments),
        (None, None) => (vec![nanos(LOAD); took.len()], LoadFrom::Default),
        // One load for each key, not for each request: which request loads differs between the
        // strategies, and they are to pay the same price.
        (None, Some(mean)) => {
            let loads = took.iter().map(|took| took.mean().unwrap_or(mean));
            (loads.collect(), LoadFrom::Log)
        }
    }
}

/// The same requests with so many times the traffic.
fn traffic(fleet: &Fleet, arrivals: &[Arrival], played: &[Outcome; 4]) -> Vec<Traffic> {
    if fleet.speed_up.is_infinite() {
        return Vec::new();
    }
    let start = &arrivals[..arrivals.len().min(MOST_FOR_TRAFFIC)];
    let all = (TIMES.len() * STRATEGIES.len() * start.len()) as u64;
    let progress = Progress::bar("more traffic", all as usize);
    let mut done = 0;
    let rows = TIMES.map(|times| {
        let faster = Fleet { speed_up: fleet.speed_up * f64::from(times), ..fleet.clone() };
        let outcomes = match times {
            1 if start.len() == arrivals.len() => played.clone(),
            _ => STRATEGIES.map(|layers| {
                let outcome =
                    simulation::run(layers, &faster, start, |come| progress.set(done + come));
                done += start.len() as u64;
                outcome
            }),
        };
        Traffic {
            times,
            requests: start.len(),
            loads: outcomes.each_ref().map(|outcome| outcome.loads.all()),
            worth: Worth::new(&outcomes, fleet.round_trip),
        }
    });
    rows.into()
}

fn print(findings: &Findings, out: &mut impl Write) -> io::Result<()> {
    let Findings { log, settings, strategies, .. } = findings;
    writeln!(out, "{}", log.summary())?;
    log.skipped.tell(out)?;
    for line in settings.lines() {
        writeln!(out, "{line}")?;
    }
    let names = strategies.iter().map(|strategy| strategy.name.to_string());
    let header: Vec<String> = std::iter::once(String::new()).chain(names).collect();
    let row = |title: &str, cell: &dyn Fn(&Strategy) -> String| {
        std::iter::once(title.to_string()).chain(strategies.iter().map(cell)).collect()
    };
    let tier = |strategy: &Strategy, number: u64| match strategy.tier {
        true => count(number),
        false => "–".to_string(),
    };
    let wait = |quantile: fn(&Strategy) -> Duration| {
        move |strategy: &Strategy| Span(quantile(strategy)).to_string()
    };
    let rows: Vec<Vec<String>> = vec![
        row("calls", &|strategy| count(strategy.calls)),
        row("hits in memory", &|strategy| count(strategy.hits)),
        row("joined a caller", &|strategy| count(strategy.joined)),
        row("found in the tier", &|strategy| tier(strategy, strategy.shared)),
        row("spared by the lease", &|strategy| tier(strategy, strategy.spared)),
        row("loads", &|strategy| count(strategy.loads)),
        row("· duplicates", &|strategy| count(strategy.duplicates)),
        row("loads at once, max", &|strategy| count(strategy.most_at_once)),
        row("lease claims", &|strategy| tier(strategy, strategy.claims)),
        row("tier commands", &|strategy| tier(strategy, strategy.commands)),
        row("wait, mean", &wait(|strategy| strategy.wait.mean)),
        row("wait, p90", &wait(|strategy| strategy.wait.p90)),
        row("wait, p99", &wait(|strategy| strategy.wait.p99)),
        row("wait, max", &wait(|strategy| strategy.wait.max)),
    ];
    writeln!(out, "\n{}", table::numbers(&header, rows, false).trim_fmt())?;

    writeln!(out, "\nVerdict: {}", findings.verdict.headline)?;
    for reason in &findings.verdict.reasons {
        writeln!(out, "\n{}", wrapped(reason))?;
    }
    if !findings.traffic.is_empty() {
        let times = findings.traffic.iter().map(|traffic| count(traffic.times.into()));
        let times = times.map(|times| format!("× {times}"));
        let header: Vec<String> = std::iter::once("traffic".to_string()).chain(times).collect();
        let row = |title: String, cell: &dyn Fn(&Traffic) -> String| {
            std::iter::once(title).chain(findings.traffic.iter().map(cell)).collect()
        };
        let loads = strategies.iter().enumerate().map(|(place, strategy)| {
            row(format!("loads, {}", strategy.name), &|traffic| count(traffic.loads[place]))
        });
        let cells = Worth::CELLS
            .into_iter()
            .enumerate()
            .map(|(place, name)| row(name.into(), &|traffic| traffic.worth.cells()[place].clone()));
        let rows: Vec<Vec<String>> = loads.chain(cells).collect();
        writeln!(out, "\n{}", table::numbers(&header, rows, false).trim_fmt())?;
        writeln!(out, "\n{}", wrapped(&findings.traffic_note()))?;
    }
    if !findings.hottest.is_empty() {
        let names = strategies.iter().map(|strategy| format!("loads {}", strategy.name));
        let header = std::iter::once("requests".to_string()).chain(names);
        let header: Vec<String> = header.chain(["hottest keys".into()]).collect();
        let rows = findings.hottest.iter().map(|hot| {
            let loads = hot.loads.iter().map(|loads| count(*loads));
            std::iter::once(count(hot.requests)).chain(loads).chain([hot.shown.clone()]).collect()
        });
        writeln!(out, "\n{}", table::numbers(&header, rows, true).trim_fmt())?;
    }
    Ok(())
}

/// In lines as wide as the tables.
fn wrapped(text: &str) -> String {
    const WIDTH: usize = 88;
    let mut wrapped = String::new();
    let mut width = 0;
    for word in glued(text).split(' ') {
        let letters = word.chars().count();
        if width > 0 && width + 1 + letters > WIDTH {
            wrapped.push('\n');
            width = 0;
        } else if width > 0 {
            wrapped.push(' ');
            width += 1;
        }
        wrapped.push_str(word);
        width += letters;
    }
    // What kept them together is done, and would only be in the way of whoever searches.
    wrapped.replace('\u{a0}', " ")
}

impl Log {
    pub(crate) fn summary(&self) -> String {
        let requests = counted(self.requests, "request");
        let keys = counted(self.keys, "key");
        match self.span {
            Duration::ZERO => format!("{}: {requests} for {keys} at one moment.", self.name),
            span => format!("{}: {requests} for {keys} within {}.", self.name, Span(span)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_wide_as_they_may_be_and_no_word_is_lost() {
        let text = "word ".repeat(50);
        let lines = wrapped(text.trim());
        assert!(lines.lines().all(|line| line.len() <= 88));
        assert_eq!(lines.replace('\n', " "), text.trim());
    }

    #[test]
    fn a_load_takes_what_the_user_says_else_the_log_else_the_default() {
        let unknown = [Took::default(); 2];
        let known = [Took::of(&[10, 30]), Took::default()];
        assert_eq!(loads(None, &unknown), (vec![50_000_000; 2], LoadFrom::Default));
        assert_eq!(loads(None, &known), (vec![20, 20], LoadFrom::Log));
        let given = Some(Duration::from_nanos(7));
        assert_eq!(loads(given, &known), (vec![7, 7], LoadFrom::Arguments));
    }

    #[test]
    fn a_cache_that_keeps_nothing_is_refused() {
        assert!(positive("0").is_err() && positive("0s").is_err());
        assert_eq!(positive("1ms"), Ok(Duration::from_millis(1)));
    }
}
