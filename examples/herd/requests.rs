//! [`Requests`]: what a log asks for, read as a whole.

use std::collections::HashMap;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::Failure;
use crate::log::{self, Line, Read};
use crate::progress::Progress;
use crate::schedule::Request;
use crate::source::{Kept, LONGEST_LINE, Source};
use crate::table::count;

/// The requests of a log.
pub(crate) struct Requests {
    pub(crate) all: Vec<Request>,
    pub(crate) keys: Vec<Arc<[u8]>>,
    /// What the requests of each key took, as far as the log says so.
    pub(crate) took: Vec<Took>,
    /// Whether the log says where they came from.
    pub(crate) name_clients: bool,
    pub(crate) skipped: Skipped,
}

/// What some requests took together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Took {
    pub(crate) requests: u64,
    nanos: u64,
}

/// The lines of a log that are not replayed.
#[derive(Default)]
pub(crate) struct Skipped {
    pub(crate) writes: u64,
    pub(crate) bad: u64,
    /// The number of the first bad line, and what is wrong with it.
    pub(crate) first_bad: Option<(u64, String)>,
}

impl Took {
    fn add(&mut self, nanos: u64) {
        self.requests += 1;
        self.nanos = self.nanos.saturating_add(nanos);
    }

    /// All of them together.
    pub(crate) fn sum(all: &[Took]) -> Took {
        all.iter().fold(Took::default(), |sum, took| Took {
            requests: sum.requests + took.requests,
            nanos: sum.nanos.saturating_add(took.nanos),
        })
    }

    /// What one took on average, in nanoseconds.
    pub(crate) fn mean(self) -> Option<u64> {
        self.nanos.checked_div(self.requests)
    }
}

impl Requests {
    /// Reads the log in `file`, which is called `name`, but no more than the `first` requests.
    pub(crate) fn read(
        file: &str,
        name: &str,
        ignore_query: bool,
        first: Option<NonZeroUsize>,
    ) -> Result<Requests, Failure> {
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
        let mut source = Source::open(file).map_err(|error| unreadable(error, 0))?;
        let mut log = Requests {
            all: Vec::new(),
            keys: Vec::new(),
            took: Vec::new(),
            name_clients: false,
            skipped: Skipped::default(),
        };
        let mut numbers: HashMap<Arc<[u8]>, u32> = HashMap::new();
        let most = first.map_or(usize::MAX, NonZeroUsize::get);
        let (mut kept, mut line_number) = (Vec::new(), 0);
        while log.all.len() < most {
            let line = source.line(&mut kept).map_err(|error| unreadable(error, line_number))?;
            let Some(line) = line else { break };
            line_number += 1;
            // Looking at the clock for every line would take longer than reading it.
            if line_number % 1024 == 0 {
                progress.set(line_number);
            }
            let line = match line {
                Kept::Whole(line) if line.trim_ascii().is_empty() => continue,
                Kept::Whole(line) => log::parse(line, ignore_query).map_err(str::to_string),
                Kept::TooLong => Err(format!("longer than {} bytes", count(LONGEST_LINE as u64))),
            };
            match line {
                Ok(Line::Write) => log.skipped.writes += 1,
                Ok(Line::Read(Read { at, key, client, took })) => {
                    let known = numbers.get(key).copied();
                    let key = known.unwrap_or_else(|| {
                        let key: Arc<[u8]> = key.into();
                        let number = u32::try_from(log.keys.len()).expect("memory ends before");
                        log.keys.push(Arc::clone(&key));
                        log.took.push(Took::default());
                        numbers.insert(key, number);
                        number
                    });
                    if let Some(nanos) = took {
                        log.took[key as usize].add(nanos);
                    }
                    log.name_clients |= !client.is_empty();
                    log.all.push(Request { at, key, client: crc32fast::hash(client) });
                }
                Err(reason) => {
                    log.skipped.bad += 1;
                    log.skipped.first_bad.get_or_insert((line_number, reason));
                }
            }
        }
        drop(progress);
        match log.all.is_empty() {
            true => Err(Failure::Told(format!("{name} {}", log.skipped.nothing_left()))),
            false => Ok(log),
        }
    }
}

impl Skipped {
    pub(crate) fn tell(&self, out: &mut impl Write) -> io::Result<()> {
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
                "holds nothing to replay; bad lines: {}, the first, line {line}: {reason}. Expected \
                 are lines such as 198.18.0.1 - - [17/May/2015:10:05:03 +0000] \"GET /path \
                 HTTP/1.1\" 200 12, or 12.5 key",
                count(self.bad)
            ),
        }
    }
}

#[cfg(test)]
impl Took {
    pub(crate) fn of(nanos: &[u64]) -> Took {
        let mut took = Took::default();
        nanos.iter().for_each(|nanos| took.add(*nanos));
        took
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_over_the_requests_that_say_what_they_took() {
        assert_eq!(Took::default().mean(), None);
        let all = [Took::of(&[10, 30]), Took::default(), Took::of(&[50])];
        assert_eq!(all.map(Took::mean), [Some(20), None, Some(50)]);
        assert_eq!(Took::sum(&all).mean(), Some(30));
        assert!(Took::of(&[u64::MAX, u64::MAX]).mean().is_some());
    }
}
