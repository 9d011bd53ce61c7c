//! The replay of a real log.

use std::io::{self, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use parking_lot::Mutex;

use crate::caller::Caller;
use crate::duration::{self, Span};
use crate::loader::{Cost, LoadSpread, Loader, Price};
use crate::progress::Progress;
use crate::requests::Requests;
use crate::schedule::{Schedule, SpeedUp};
use crate::strategy::{self, Column};
use crate::table::{self, count};
use crate::tally::{Pass, Tally};
use crate::{Failure, crew, study};

/// Replay the requests of an access log
///
/// Reads the common and combined log formats, and lines of `seconds key` such as `12.5 user:7`.
/// What is loaded is the path that was asked for, with its query. Requests other than GET and HEAD
/// are left out, bad lines are counted and skipped.
///
/// With --instances it is a fleet, simulated by a virtual clock: days are over in a moment, and the
/// same log and settings have the same outcome on every machine. Each instance has a cache with a
/// TTL. All strategies are played: no help (none), one load of a key in each instance (coalescing),
/// a shared tier with a lease for every caller (lease), and one caller of each instance that asks
/// for it (both). A verdict says which of them this log is worth.
///
/// The simulated caches are those of the crate without jitter, early refresh, stale windows, and
/// bounds on their size; nothing fails, and nobody gives up. Times in whole seconds are spread
/// over their second at random. A request takes some 40 bytes of memory, whatever its line says.
///
/// Without --instances it is one process with real threads, which take the requests in the order of
/// the log, each when it is due, first without help and then with coalescing. So it takes the time of
/// the log, divided by --speed-up, twice; less, where long pauses are cut. Times in whole seconds are
/// spread evenly over their second. Nothing is cached, so what is shared between requests is shared
/// because their loads overlap.
#[derive(Args)]
#[command(args_override_self = true)]
pub(crate) struct Replay {
    /// The log, plain or compressed with gzip; - is standard input
    pub(crate) file: String,
    /// How many times as fast as the log; max, or 0, is as fast as the threads can [default: 600,
    /// or 1 with --instances]
    ///
    /// A load takes what it takes at any speed. So a log replayed 600 times as fast is the
    /// traffic of a site 600 times as busy, against the same database. With 1 it is the log as it was.
    #[arg(long, value_name = "TIMES", value_parser = SpeedUp::parse, allow_negative_numbers = true)]
    speed_up: Option<SpeedUp>,
    /// How many threads there are to serve the requests, in each instance if there are several
    #[arg(long, value_name = "N", default_value = "64")]
    pub(crate) threads: NonZeroUsize,
    /// Pauses between requests are cut to this, in the time of the replay [default: two loads, and
    /// 100ms at least]
    ///
    /// Nothing overlaps across a pause that is longer than a load, so no more than waiting is cut.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = duration::parse,
        conflicts_with = "instances"
    )]
    longest_pause: Option<Duration>,
    /// Take the path alone for the key, without its query
    #[arg(long)]
    pub(crate) ignore_query: bool,
    /// Read no more than so many requests
    #[arg(long, value_name = "N")]
    pub(crate) first: Option<NonZeroUsize>,
    /// How many of the hottest keys to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) hottest: usize,
    /// How long one load takes: 50ms, 1.5s, 500us [default: 50ms; with --instances what the
    /// requests of its key took on average, if the log says so]
    ///
    /// A log says so where its lines end in a time: microseconds (Apache's %D), seconds with a point
    /// (nginx's $request_time), or 12ms. Time that went into sending is part of it.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = LOADED)]
    pub(crate) load: Option<Duration>,
    /// What a load does in that time
    #[arg(
        long,
        value_enum,
        default_value_t = Cost::Sleep,
        help_heading = LOADED,
        conflicts_with = "instances"
    )]
    cost: Cost,
    /// How many loads run at once, as with a pool of connections; the others queue for their turn
    /// [default: no bound]
    #[arg(long, value_name = "N", help_heading = LOADED)]
    pub(crate) pool: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) fleet: study::Arguments,
}

const LOADED: &str = "What is loaded";

/// What a load takes if neither the user nor the log says so.
pub(crate) const LOAD: Duration = Duration::from_millis(50);

pub(crate) fn run(replay: &Replay, out: &mut impl Write) -> Result<(), Failure> {
    let log = Requests::read(&replay.file, replay.name(), replay.ignore_query, replay.first)?;
    match replay.fleet.instances {
        Some(instances) => study::run(replay, instances, log, out),
        None => for_real(replay, log, out),
    }
}

/// In one process, with real threads.
fn for_real(replay: &Replay, log: Requests, out: &mut impl Write) -> Result<(), Failure> {
    let price = replay.price();
    let load = price.load;
    let shortest = Duration::from_millis(100);
    let longest_pause = replay.longest_pause.unwrap_or(load.saturating_mul(2).max(shortest));
    let schedule = Schedule::new(log.all, replay.speed_up(), longest_pause);

    let name = replay.name();
    let within = match schedule.span {
        Duration::ZERO => "at one moment".into(),
        span => format!("within {}", Span(span)),
    };
    let requests = table::counted(schedule.due.len(), "request");
    let keys = table::counted(log.keys.len(), "key");
    writeln!(out, "{name}: {requests} for {keys} {within}.")?;
    log.skipped.tell(out)?;
    let threads = table::counted(replay.threads.get(), "thread");
    write!(out, "Replayed {}, by {threads}; {}", replay.speed(), price)?;
    if let SpeedUp::Times(times) = replay.speed_up() {
        let stretch = Duration::try_from_secs_f64(load.as_secs_f64() * times);
        write!(out, ", or {} of the log", Span(stretch.unwrap_or(Duration::MAX)))?;
    }
    writeln!(out, ".")?;
    if schedule.pauses_cut > 0 {
        let pauses = count(schedule.pauses_cut);
        writeln!(out, "Pauses cut to {}: {pauses}.", Span(longest_pause))?;
    }
    writeln!(out, "Nothing is cached: only loads that overlap are shared.\n")?;
    out.flush()?;
    if let Some(last) = schedule.due.last().filter(|last| !last.after.is_zero())
        && io::stderr().is_terminal()
    {
        let each = Span(last.after);
        // Whether it can be read is not worth an end.
        let _ = writeln!(
            io::stderr(),
            "This takes {each} for each of the two ways, or more if the threads cannot keep up. \
             (--instances simulates, in a moment.)"
        );
    }

    let keys = log.keys.len();
    let passes = strategy::one_process()
        .iter()
        .map(|column| pass(column, replay, &schedule, keys))
        .collect::<Result<Vec<Pass>, Failure>>()?;
    let printed = replay.print(&passes, &schedule, &log.keys, out);
    // Whether anyone wanted to see the tables or not.
    passes.iter().try_for_each(Pass::verdict).map_err(Failure::Told)?;
    Ok(printed?)
}

fn pass(
    column: &Column,
    replay: &Replay,
    schedule: &Schedule,
    keys: usize,
) -> Result<Pass, Failure> {
    let loader = Loader::new(&replay.price(), keys, column.instances.len());
    let tally = Mutex::new(Tally::new());
    let progress = Progress::bar(column.name, schedule.due.len());
    let next = AtomicUsize::new(0);
    let work = |number, start: Instant| {
        let mut caller = Caller::new(number, column, &loader, &tally);
        while let Some(due) = schedule.due.get(next.fetch_add(1, Ordering::Relaxed)) {
            let behind = match replay.speed_up() {
                SpeedUp::Max => None,
                SpeedUp::Times(_) => {
                    let at = start + due.after;
                    thread::sleep(at.saturating_duration_since(Instant::now()));
                    Some(Instant::now().saturating_duration_since(at))
                }
            };
            caller.call(due.key, behind);
        }
    };
    // A thread that finds nothing left to do has counted on.
    let taken = || next.load(Ordering::Relaxed).min(schedule.due.len()) as u64;
    crew::run(replay.threads.get(), |finished| progress.follow(taken, finished), work)?;
    Ok(Pass::new(column, &loader, tally.into_inner()))
}

impl Replay {
    pub(crate) fn name(&self) -> &str {
        if self.file == "-" { "standard input" } else { &self.file }
    }

    pub(crate) fn speed_up(&self) -> SpeedUp {
        let default = if self.fleet.instances.is_some() { 1.0 } else { 600.0 };
        self.speed_up.unwrap_or(SpeedUp::Times(default))
    }

    fn price(&self) -> Price {
        let load = self.load.unwrap_or(LOAD);
        Price { load, load_spread: LoadSpread::Fixed, cost: self.cost, pool: self.pool }
    }

    pub(crate) fn speed(&self) -> String {
        match self.speed_up() {
            SpeedUp::Times(1.0) => "as it was".into(),
            SpeedUp::Times(times) if times.fract() == 0.0 => {
                format!("{} times as fast", count(times as u64))
            }
            SpeedUp::Times(times) => format!("{times} times as fast"),
            SpeedUp::Max => "as fast as can be".into(),
        }
    }

    fn print(
        &self,
        passes: &[Pass],
        schedule: &Schedule,
        keys: &[Arc<[u8]>],
        out: &mut impl Write,
    ) -> io::Result<()> {
        writeln!(out, "{}", table::costs(passes).trim_fmt())?;
        for pass in passes {
            let behind = pass.tally.most_behind.unwrap_or_default();
            // Less than that is the scheduler's, and changes little in what overlaps.
            if behind > self.price().load.max(Duration::from_millis(20)) {
                writeln!(
                    out,
                    "\n{}: the threads could not keep up, and were {} behind the log at worst, in real time.\n\
                     For its own timing use more threads or a lower speed-up.",
                    pass.strategy,
                    Span(behind)
                )?;
            }
        }
        let hottest = hottest(requested(schedule), keys.len(), self.hottest);
        if !hottest.is_empty() {
            let table = table::hottest(&hottest, |key| shown(&keys[key]), passes);
            writeln!(out, "\n{}", table.trim_fmt())?;
        }
        Ok(())
    }
}

fn requested(schedule: &Schedule) -> impl Iterator<Item = usize> {
    schedule.due.iter().map(|due| due.key)
}

/// The keys with the most requests, and how many those are.
pub(crate) fn hottest(
    requested: impl Iterator<Item = usize>,
    keys: usize,
    how_many: usize,
) -> Vec<(usize, u64)> {
    let mut requests = vec![0; keys];
    requested.for_each(|key| requests[key] += 1);
    let mut hottest: Vec<(usize, u64)> = requests.into_iter().enumerate().collect();
    hottest.sort_by_key(|(_, requests)| std::cmp::Reverse(*requests));
    hottest.truncate(how_many);
    hottest
}

/// A key as a terminal can bear it: clients decide what is in it.
pub(crate) fn shown(key: &[u8]) -> String {
    const WIDEST: usize = 44;
    let text = String::from_utf8_lossy(&key[..key.len().min(4 * WIDEST)]);
    let mut shown = String::new();
    for char in text.chars() {
        match char {
            '"' | '\'' | '\\' => shown.push(char),
            _ => shown.extend(char.escape_debug()),
        }
    }
    if shown.chars().count() > WIDEST {
        shown = shown.chars().take(WIDEST - 1).chain(['…']).collect();
    }
    shown
}

#[cfg(test)]
mod tests {
    use crate::log::Moment;
    use crate::schedule::Request;

    use super::*;

    #[test]
    fn a_key_cannot_speak_to_the_terminal() {
        assert_eq!(shown(b"/plain?a=\"b\"\\"), "/plain?a=\"b\"\\");
        assert_eq!(shown(b"/\x1b[31mred\x07"), "/\\u{1b}[31mred\\u{7}");
        assert_eq!(shown(b"/caf\xc3\xa9/\xff"), "/café/\u{fffd}");
    }

    #[test]
    fn a_long_key_is_cut_between_characters() {
        let long = shown("é".repeat(10_000).as_bytes());
        assert_eq!(long.chars().count(), 44);
        assert!(long.ends_with('…'));
    }

    #[test]
    fn the_hottest_keys_come_first_and_ties_in_the_order_of_the_log() {
        let at = Moment { nanos: 0, whole_second: false };
        let requests = [0, 1, 2, 2, 1, 3].map(|key| Request { at, key, client: 0 });
        let schedule = Schedule::new(requests.into(), SpeedUp::Max, Duration::ZERO);
        assert_eq!(hottest(requested(&schedule), 4, 3), [(1, 2), (2, 2), (0, 1)]);
    }
}
