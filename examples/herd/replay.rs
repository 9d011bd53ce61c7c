//! The replay of a real log.

use std::collections::HashMap;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use parking_lot::Mutex;

use crate::caller::Caller;
use crate::duration::{self, Span};
use crate::loader::{Loader, Price};
use crate::log::{self, Line};
use crate::progress::Progress;
use crate::schedule::{Request, Schedule, SpeedUp};
use crate::source::{Kept, LONGEST_LINE, Source};
use crate::strategy::{self, Column};
use crate::table::{self, count};
use crate::tally::{Pass, Tally};
use crate::{Failure, crew};

/// Replay the requests of an access log
///
/// Reads the common and combined log formats, and lines of `seconds key` such as `12.5 user:7`.
/// What is loaded is the path that was asked for, with its query. Requests other than GET and HEAD
/// are left out, bad lines are counted and skipped.
///
/// The threads take the requests in the order of the log, each when it is due. Times in whole
/// seconds are spread evenly over their second. Nothing is cached, so what is shared between
/// requests is shared because their loads overlap.
#[derive(Args)]
#[command(args_override_self = true)]
pub(crate) struct Replay {
    /// The log, plain or compressed with gzip; - is standard input
    file: String,
    /// How many times as fast as the log; max, or 0, is as fast as the threads can
    ///
    /// A load takes what it takes at any speed. So a log replayed 600 times as fast is the
    /// traffic of a site 600 times as busy, against the same database. With 1 it is the log as it was.
    #[arg(long, value_name = "TIMES", default_value = "600", value_parser = SpeedUp::parse, allow_negative_numbers = true)]
    speed_up: SpeedUp,
    /// How many threads there are to serve the requests
    #[arg(long, value_name = "N", default_value = "64")]
    threads: NonZeroUsize,
    /// Pauses between requests are cut to this, in the time of the replay [default: two loads, and
    /// 100ms at least]
    ///
    /// Nothing overlaps across a pause that is longer than a load, so no more than waiting is cut.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    longest_pause: Option<Duration>,
    /// Take the path alone for the key, without its query
    #[arg(long)]
    ignore_query: bool,
    /// Read no more than so many requests
    #[arg(long, value_name = "N")]
    first: Option<NonZeroUsize>,
    /// How many of the hottest keys to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    hottest: usize,
    #[command(flatten)]
    price: Price,
}

pub(crate) fn run(replay: &Replay, out: &mut impl Write) -> Result<(), Failure> {
    let log = Log::read(replay)?;
    let load = replay.price.load;
    let shortest = Duration::from_millis(100);
    let longest_pause = replay.longest_pause.unwrap_or(load.saturating_mul(2).max(shortest));
    let schedule = Schedule::new(log.requests, replay.speed_up, longest_pause);

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
    write!(out, "Replayed {}, by {threads}; {}", replay.speed(), replay.price)?;
    if let SpeedUp::Times(times) = replay.speed_up {
        let stretch = Duration::try_from_secs_f64(load.as_secs_f64() * times);
        write!(out, ", or {} of the log", Span(stretch.unwrap_or(Duration::MAX)))?;
    }
    writeln!(out, ".")?;
    if schedule.pauses_cut > 0 {
        let pauses = count(schedule.pauses_cut);
        writeln!(out, "Pauses cut to {}: {pauses}.", Span(longest_pause))?;
    }
    writeln!(out, "Nothing is cached: only loads that overlap are shared.\n")?;

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
    let loader = Loader::new(&replay.price, keys, column.instances.len());
    let tally = Mutex::new(Tally::new());
    let progress = Progress::bar(column.name, schedule.due.len());
    let next = AtomicUsize::new(0);
    let work = |number, start: Instant| {
        let mut caller = Caller::new(number, column, &loader, &tally);
        while let Some(due) = schedule.due.get(next.fetch_add(1, Ordering::Relaxed)) {
            let behind = match replay.speed_up {
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
    fn name(&self) -> &str {
        if self.file == "-" { "standard input" } else { &self.file }
    }

    fn speed(&self) -> String {
        match self.speed_up {
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
            if behind > self.price.load.max(Duration::from_millis(20)) {
                writeln!(
                    out,
                    "\n{}: the threads could not keep up, and were {} behind the log at worst.\n\
                     For its own timing use more threads or a lower speed-up.",
                    pass.strategy,
                    Span(behind)
                )?;
            }
        }
        let hottest = hottest(schedule, keys.len(), self.hottest);
        if !hottest.is_empty() {
            let table = table::hottest(&hottest, |key| shown(&keys[key]), passes);
            writeln!(out, "\n{}", table.trim_fmt())?;
        }
        Ok(())
    }
}

/// The keys with the most requests, and how many those are.
fn hottest(schedule: &Schedule, keys: usize, how_many: usize) -> Vec<(usize, u64)> {
    let mut requests = vec![0; keys];
    for due in &schedule.due {
        requests[due.key] += 1;
    }
    let mut hottest: Vec<(usize, u64)> = requests.into_iter().enumerate().collect();
    hottest.sort_by_key(|(_, requests)| std::cmp::Reverse(*requests));
    hottest.truncate(how_many);
    hottest
}

/// A key as a terminal can bear it: clients decide what is in it.
fn shown(key: &[u8]) -> String {
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

/// The requests of a log.
struct Log {
    requests: Vec<Request>,
    keys: Vec<Arc<[u8]>>,
    skipped: Skipped,
}

/// The lines of a log that are not replayed.
#[derive(Default)]
struct Skipped {
    writes: u64,
    bad: u64,
    /// The number of the first bad line, and what is wrong with it.
    first_bad: Option<(u64, String)>,
}

impl Log {
    fn read(replay: &Replay) -> Result<Log, Failure> {
        let name = replay.name();
        let unreadable = |error: io::Error, line: u64| {
            let what = match error.kind() {
                io::ErrorKind::UnexpectedEof => "the compressed file is cut off".into(),
                _ => error.to_string(),
            };
            Failure::Told(match line {
                0 => format!("cannot read {name}: {what}"),
                _ => format!("cannot read {name} beyond line {line}: {what}"),
            })
        };
        let progress = Progress::counting(&format!("reading {name}"), "lines");
        let mut source = Source::open(&replay.file).map_err(|error| unreadable(error, 0))?;
        let mut log = Log { requests: Vec::new(), keys: Vec::new(), skipped: Skipped::default() };
        let mut numbers: HashMap<Arc<[u8]>, usize> = HashMap::new();
        let most = replay.first.map_or(usize::MAX, NonZeroUsize::get);
        let (mut kept, mut line_number) = (Vec::new(), 0);
        while log.requests.len() < most {
            let line = source.line(&mut kept).map_err(|error| unreadable(error, line_number))?;
            let Some(line) = line else { break };
            line_number += 1;
            // Looking at the clock for every line would take longer than reading it.
            if line_number % 1024 == 0 {
                progress.set(line_number);
            }
            let line = match line {
                Kept::Whole(line) if line.trim_ascii().is_empty() => continue,
                Kept::Whole(line) => log::parse(line, replay.ignore_query).map_err(str::to_string),
                Kept::TooLong => Err(format!("longer than {} bytes", count(LONGEST_LINE as u64))),
            };
            match line {
                Ok(Line::Write) => log.skipped.writes += 1,
                Ok(Line::Read { at, key }) => {
                    let known = numbers.get(key).copied();
                    let key = known.unwrap_or_else(|| {
                        let key: Arc<[u8]> = key.into();
                        log.keys.push(Arc::clone(&key));
                        numbers.insert(key, log.keys.len() - 1);
                        log.keys.len() - 1
                    });
                    log.requests.push(Request { at, key });
                }
                Err(reason) => {
                    log.skipped.bad += 1;
                    log.skipped.first_bad.get_or_insert((line_number, reason));
                }
            }
        }
        drop(progress);
        match log.requests.is_empty() {
            true => Err(Failure::Told(format!("{name} {}", log.skipped.nothing_left()))),
            false => Ok(log),
        }
    }
}

impl Skipped {
    fn tell(&self, out: &mut impl Write) -> io::Result<()> {
        if self.writes > 0 {
            writeln!(out, "Left out, as neither GET nor HEAD: {}.", count(self.writes))?;
        }
        if let Some((line, reason)) = &self.first_bad {
            writeln!(
                out,
                "Bad lines skipped: {}. The first, line {line}: {reason}.",
                count(self.bad)
            )?;
        }
        Ok(())
    }

    /// What there was in a log without a request to replay.
    fn nothing_left(&self) -> String {
        match &self.first_bad {
            None if self.writes == 0 => "is empty: there is nothing to replay".into(),
            None => "holds nothing to replay: no request is a GET or a HEAD".into(),
            Some((line, reason)) => format!(
                "holds nothing to replay; bad lines: {}, the first, line {line}: {reason}",
                count(self.bad)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
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
        let at = log::Moment { nanos: 0, whole_second: false };
        let requests = [0, 1, 2, 2, 1, 3].map(|key| Request { at, key });
        let schedule = Schedule::new(requests.into(), SpeedUp::Max, Duration::ZERO);
        assert_eq!(hottest(&schedule, 4, 3), [(1, 2), (2, 2), (0, 1)]);
    }
}
