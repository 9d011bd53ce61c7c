//! [`Record`]: one thing that a process did or saw, as a line of its log.

use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::str::SplitWhitespace;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on the clock that all processes of a machine share.
pub(crate) type Time = u64;

pub(crate) fn now() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    let nanos = Duration::new(now.tv_sec as u64, now.tv_nsec as u32).as_nanos();
    Time::try_from(nanos).expect("the machine has not been up for centuries")
}

pub(crate) fn nanos(time: Duration) -> Time {
    Time::try_from(time.as_nanos()).expect("no time in here is that long")
}

/// A lease's token, or a put's.
pub(crate) type Token = u128;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) process: usize,
    pub(crate) thread: usize,
    pub(crate) begin: Time,
    pub(crate) end: Time,
    pub(crate) what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    /// A call of `get`: for how long it would wait, and for how long its own thread was in the
    /// loader.
    Got {
        key: u64,
        patience: Time,
        loading: Time,
        end: End,
        seen: Seen,
        age: Time,
    },
    /// A put, or an invalidation, of what the database has had at the latest since `since`; and
    /// whether it came to `Ok`.
    Wrote {
        key: u64,
        version: u64,
        put: bool,
        done: bool,
        since: Time,
    },
    /// A run of the loader; without a version, one that failed.
    Loaded {
        key: u64,
        version: Option<u64>,
    },
    /// The tier's answers. What was no answer is none of them.
    Acquired {
        key: u64,
        token: Token,
        life: Time,
        won: bool,
    },
    Renewed {
        key: u64,
        token: Token,
        life: Time,
        ours: bool,
    },
    Committed {
        key: u64,
        token: Token,
        stored: bool,
    },
    Released {
        key: u64,
        token: Token,
    },
    Put {
        key: u64,
        token: Token,
    },
    /// The tier was asked to forget the key, for a caller or to make up for what it could not be
    /// told before; and whether it answered.
    Removed {
        key: u64,
        done: bool,
    },
    /// What the fleet was told, and by when it had heard it.
    Heard(Heard),
    /// A thread that wanted to sleep for a moment came back only now: the machine is busy.
    Stalled,
    /// What was done to the server.
    Trouble(Trouble),
    /// What the cache has counted: the ends of calls, loads, and the ends of loads.
    Counted {
        ends: Vec<u64>,
        loads: u64,
        ended: u64,
    },
}

/// What a call came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    Version(u64),
    Absent,
    /// An error.
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    Up,
    Down,
    /// That this was stored.
    Version(Token),
}

macro_rules! words {
    ($(#[$of_kind:meta])* $kind:ident: $($name:ident)*) => {
        $(#[$of_kind])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $kind { $($name),* }

        impl $kind {
            pub(crate) const ALL: &[$kind] = &[$($kind::$name),*];

            fn from_word(word: &str) -> Option<$kind> {
                $kind::ALL.iter().copied().find(|kind| format!("{kind:?}") == word)
            }
        }
    };
}
words! {
    /// As the cache counts the ends of calls.
    End: Hit AbsentHit FleetHit Stale Loaded Followed Failed Panicked Abandoned TimedOut Overloaded WouldDeadlock Closed
}
words! {
    /// All connections are cut; the server is stopped in its tracks for a while; it is killed, and
    /// comes back empty; it serves as ever, but nobody may listen to what is published.
    Trouble: Cut Pause Kill Deafen
}

impl Record {
    /// Whose it is, if it is about one key.
    pub(crate) fn key(&self) -> Option<u64> {
        match self.what {
            What::Got { key, .. }
            | What::Wrote { key, .. }
            | What::Loaded { key, .. }
            | What::Acquired { key, .. }
            | What::Renewed { key, .. }
            | What::Committed { key, .. }
            | What::Released { key, .. }
            | What::Put { key, .. }
            | What::Removed { key, .. } => Some(key),
            What::Heard(_) | What::Stalled | What::Trouble(_) | What::Counted { .. } => None,
        }
    }

    fn from_line(line: &str) -> Option<Record> {
        let mut words = Words(line.split_whitespace());
        let [process, thread] = [words.number()? as usize, words.number()? as usize];
        let [begin, end] = [words.number()?, words.number()?];
        let what = match words.0.next()? {
            "got" => What::Got {
                key: words.number()?,
                patience: words.number()?,
                loading: words.number()?,
                end: End::from_word(words.0.next()?)?,
                seen: match words.0.next()? {
                    "absent" => Seen::Absent,
                    "nothing" => Seen::Nothing,
                    version => Seen::Version(version.parse().ok()?),
                },
                age: words.number()?,
            },
            "wrote" => What::Wrote {
                key: words.number()?,
                version: words.number()?,
                put: words.flag()?,
                done: words.flag()?,
                since: words.number()?,
            },
            "loaded" => What::Loaded {
                key: words.number()?,
                version: match words.0.next()? {
                    "failed" => None,
                    version => Some(version.parse().ok()?),
                },
            },
            "acquired" => What::Acquired {
                key: words.number()?,
                token: words.token()?,
                life: words.number()?,
                won: words.flag()?,
            },
            "renewed" => What::Renewed {
                key: words.number()?,
                token: words.token()?,
                life: words.number()?,
                ours: words.flag()?,
            },
            "committed" => What::Committed {
                key: words.number()?,
                token: words.token()?,
                stored: words.flag()?,
            },
            "released" => What::Released { key: words.number()?, token: words.token()? },
            "put" => What::Put { key: words.number()?, token: words.token()? },
            "removed" => What::Removed { key: words.number()?, done: words.flag()? },
            "up" => What::Heard(Heard::Up),
            "down" => What::Heard(Heard::Down),
            "heard" => What::Heard(Heard::Version(words.token()?)),
            "stalled" => What::Stalled,
            "trouble" => What::Trouble(Trouble::from_word(words.0.next()?)?),
            "counted" => {
                let [loads, ended] = [words.number()?, words.number()?];
                let ends = words.0.by_ref().map(|word| word.parse().ok());
                What::Counted { ends: ends.collect::<Option<_>>()?, loads, ended }
            }
            _ => return None,
        };
        words.0.next().is_none().then_some(Record { process, thread, begin, end, what })
    }
}

struct Words<'a>(SplitWhitespace<'a>);

impl Words<'_> {
    fn number(&mut self) -> Option<u64> {
        self.0.next()?.parse().ok()
    }

    fn flag(&mut self) -> Option<bool> {
        self.0.next()?.parse().ok()
    }

    fn token(&mut self) -> Option<Token> {
        Token::from_str_radix(self.0.next()?, 16).ok()
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record { process, thread, begin, end, what } = self;
        write!(f, "{process} {thread} {begin} {end} {what}")
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Got { key, patience, loading, end, seen, age } => {
                write!(f, "got {key} {patience} {loading} {end:?} {seen} {age}")
            }
            What::Wrote { key, version, put, done, since } => {
                write!(f, "wrote {key} {version} {put} {done} {since}")
            }
            What::Loaded { key, version: Some(version) } => write!(f, "loaded {key} {version}"),
            What::Loaded { key, version: None } => write!(f, "loaded {key} failed"),
            What::Acquired { key, token, life, won } => {
                write!(f, "acquired {key} {token:032x} {life} {won}")
            }
            What::Renewed { key, token, life, ours } => {
                write!(f, "renewed {key} {token:032x} {life} {ours}")
            }
            What::Committed { key, token, stored } => {
                write!(f, "committed {key} {token:032x} {stored}")
            }
            What::Released { key, token } => write!(f, "released {key} {token:032x}"),
            What::Removed { key, done } => write!(f, "removed {key} {done}"),
            What::Put { key, token } => write!(f, "put {key} {token:032x}"),
            What::Heard(Heard::Up) => f.write_str("up"),
            What::Heard(Heard::Down) => f.write_str("down"),
            What::Heard(Heard::Version(token)) => write!(f, "heard {token:032x}"),
            What::Stalled => f.write_str("stalled"),
            What::Trouble(trouble) => write!(f, "trouble {trouble:?}"),
            What::Counted { ends, loads, ended } => {
                write!(f, "counted {loads} {ended}")?;
                ends.iter().try_for_each(|count| write!(f, " {count}"))
            }
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Seen::Version(version) => write!(f, "{version}"),
            Seen::Absent => f.write_str("absent"),
            Seen::Nothing => f.write_str("nothing"),
        }
    }
}

/// Where a process writes down what it sees.
#[derive(Debug)]
pub(crate) struct Log {
    file: Mutex<BufWriter<File>>,
    process: usize,
}

impl Log {
    pub(crate) fn create(path: &Path, process: usize) -> Log {
        let file = File::create(path).expect("the directory is the test's own");
        Log { file: Mutex::new(BufWriter::new(file)), process }
    }

    pub(crate) fn write(&self, thread: usize, begin: Time, end: Time, what: What) {
        let record = Record { process: self.process, thread, begin, end, what };
        let mut line = String::new();
        writeln!(line, "{record}").expect("a string takes everything");
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes()).expect("the disk is not full");
    }

    pub(crate) fn flush(&self) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.flush().expect("the disk is not full");
    }
}

/// What stands in a log.
pub(crate) fn read(path: &Path) -> Vec<Record> {
    let text = fs::read_to_string(path).expect("the process has left its log");
    let record = |line| {
        Record::from_line(line)
            .unwrap_or_else(|| panic!("{}: {line:?} is no record", path.display()))
    };
    text.lines().map(record).collect()
}

#[test]
fn what_is_written_down_can_be_read() {
    let (key, token, life) = (7, Token::MAX / 3, 500);
    let whats = [
        What::Got { key, patience: 9, loading: 0, end: End::Hit, seen: Seen::Version(3), age: 1 },
        What::Got { key, patience: 9, loading: 8, end: End::Loaded, seen: Seen::Absent, age: 0 },
        What::Got { key, patience: 9, loading: 0, end: End::TimedOut, seen: Seen::Nothing, age: 0 },
        What::Wrote { key, version: 4, put: true, done: false, since: 2 },
        What::Loaded { key, version: Some(4) },
        What::Loaded { key, version: None },
        What::Acquired { key, token, life, won: true },
        What::Renewed { key, token, life, ours: false },
        What::Committed { key, token, stored: true },
        What::Released { key, token },
        What::Put { key, token: 1 },
        What::Removed { key, done: true },
        What::Removed { key, done: false },
        What::Heard(Heard::Up),
        What::Heard(Heard::Down),
        What::Heard(Heard::Version(token)),
        What::Stalled,
        What::Trouble(Trouble::Kill),
        What::Counted { ends: vec![1, 2, 3], loads: 4, ended: 5 },
    ];
    for what in whats {
        let record = Record { process: 1, thread: 2, begin: 3, end: 4, what };
        assert_eq!(Record::from_line(&record.to_string()), Some(record));
    }
    assert_eq!(Record::from_line("1 2 3 4 got 7 9"), None);
    assert_eq!(Record::from_line("1 2 3 4 up and away"), None);
}
