//! [`Findings`]: what a study found, for tables, for the report, and as JSON.

use std::time::Duration;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::duration::Span;
use crate::requests::Skipped;
use crate::simulation::Outcome;
use crate::table::{count, counted};
use crate::verdict::{Verdict, Worth};

#[derive(Serialize)]
pub(crate) struct Findings {
    pub(crate) log: Log,
    pub(crate) settings: Settings,
    /// What each number of `over_time` stands for.
    #[serde(rename = "stretch_s", serialize_with = "seconds")]
    pub(crate) stretch: Duration,
    pub(crate) strategies: Vec<Strategy>,
    pub(crate) worth: Worth,
    pub(crate) traffic: Vec<Traffic>,
    pub(crate) hottest: Vec<Hot>,
    pub(crate) verdict: Verdict,
}

#[derive(Serialize)]
pub(crate) struct Log {
    pub(crate) name: String,
    pub(crate) requests: usize,
    pub(crate) keys: usize,
    #[serde(rename = "span_s", serialize_with = "seconds")]
    pub(crate) span: Duration,
    /// How many requests say what they took.
    pub(crate) timed: u64,
    pub(crate) skipped: Skipped,
}

#[derive(Serialize)]
pub(crate) struct Settings {
    pub(crate) instances: u16,
    pub(crate) threads: usize,
    #[serde(rename = "ttl_ms", serialize_with = "millis")]
    pub(crate) ttl: Duration,
    /// On average over the keys.
    #[serde(rename = "load_ms", serialize_with = "millis")]
    pub(crate) load: Duration,
    pub(crate) load_from: LoadFrom,
    #[serde(rename = "round_trip_ms", serialize_with = "millis")]
    pub(crate) round_trip: Duration,
    pub(crate) pool: Option<usize>,
    pub(crate) spread: Option<String>,
    pub(crate) seed: u64,
    /// None if all requests come at once.
    pub(crate) speed_up: Option<f64>,
    #[serde(skip)]
    pub(crate) speed: String,
}

/// Who says what a load takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LoadFrom {
    Arguments,
    Log,
    Default,
}

#[derive(Serialize)]
pub(crate) struct Strategy {
    pub(crate) name: &'static str,
    #[serde(skip)]
    pub(crate) tier: bool,
    pub(crate) calls: u64,
    pub(crate) hits: u64,
    pub(crate) joined: u64,
    pub(crate) shared: u64,
    pub(crate) spared: u64,
    pub(crate) loads: u64,
    pub(crate) needed: u64,
    pub(crate) duplicates: u64,
    pub(crate) in_instance: u64,
    pub(crate) in_fleet: u64,
    pub(crate) kept_elsewhere: u64,
    pub(crate) most_at_once: u64,
    pub(crate) claims: u64,
    pub(crate) commands: u64,
    /// Calls that found no thread free.
    pub(crate) queued: u64,
    pub(crate) wait: Wait,
    pub(crate) over_time: Vec<u64>,
    /// Loads that began after the last request came, and are in no stretch.
    pub(crate) late: u64,
    /// How many calls waited for how long, with the longest wait of each class.
    #[serde(skip)]
    pub(crate) classes: Vec<u64>,
}

#[derive(Serialize)]
pub(crate) struct Wait {
    #[serde(rename = "mean_ms", serialize_with = "millis")]
    pub(crate) mean: Duration,
    #[serde(rename = "p50_ms", serialize_with = "millis")]
    pub(crate) p50: Duration,
    #[serde(rename = "p90_ms", serialize_with = "millis")]
    pub(crate) p90: Duration,
    #[serde(rename = "p99_ms", serialize_with = "millis")]
    pub(crate) p99: Duration,
    #[serde(rename = "p999_ms", serialize_with = "millis")]
    pub(crate) p999: Duration,
    #[serde(rename = "max_ms", serialize_with = "millis")]
    pub(crate) max: Duration,
}

/// The log with so many times the traffic.
#[derive(Serialize)]
pub(crate) struct Traffic {
    pub(crate) times: u32,
    /// Of the log, from its start.
    pub(crate) requests: usize,
    /// Of each strategy.
    pub(crate) loads: [u64; 4],
    pub(crate) worth: Worth,
}

#[derive(Serialize)]
pub(crate) struct Hot {
    pub(crate) key: String,
    /// Short enough for a table, and nothing in it that a terminal obeys.
    #[serde(skip)]
    pub(crate) shown: String,
    pub(crate) requests: u64,
    /// Of each strategy.
    pub(crate) loads: [u64; 4],
}

/// Bounds of the classes of waits, in nanoseconds: 1, 2, 5, 10 and so on, from 100 µs to 50 s. What
/// is less than the first is an answer at once.
pub(crate) fn bounds() -> impl Iterator<Item = u64> {
    (5..11).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power)))
}

impl Strategy {
    pub(crate) fn new(outcome: Outcome) -> Strategy {
        let wait = |quantile| Duration::from_nanos(outcome.wait(quantile));
        let mut classes = vec![0; bounds().count() + 1];
        for wait in outcome.waits.iter_recorded() {
            let class = bounds().filter(|bound| wait.value_iterated_to() >= *bound).count();
            classes[class] += wait.count_at_value();
        }
        Strategy {
            name: outcome.layers.name,
            tier: outcome.layers.lease,
            calls: outcome.calls(),
            hits: outcome.hits,
            joined: outcome.joined,
            shared: outcome.shared,
            spared: outcome.spared,
            loads: outcome.loads.all(),
            needed: outcome.loads.needed,
            duplicates: outcome.loads.duplicates(),
            in_instance: outcome.loads.in_instance,
            in_fleet: outcome.loads.in_fleet,
            kept_elsewhere: outcome.loads.kept_elsewhere,
            most_at_once: outcome.most_at_once,
            claims: outcome.claims,
            commands: outcome.commands,
            queued: outcome.queued,
            wait: Wait {
                mean: Duration::from_nanos(outcome.waits.mean() as u64),
                p50: wait(0.5),
                p90: wait(0.9),
                p99: wait(0.99),
                p999: wait(0.999),
                max: wait(1.0),
            },
            over_time: outcome.over_time,
            late: outcome.late,
            classes,
        }
    }
}

impl Findings {
    /// What the rows of other traffic are about.
    pub(crate) fn traffic_note(&self) -> String {
        let start = self.traffic.first().map_or(0, |traffic| traffic.requests);
        let part = match start < self.log.requests {
            true => format!(" Played for the first {}.", counted(start, "request")),
            false => String::new(),
        };
        format!(
            "× 100 is the same requests in a hundredth of the time; loads and TTL take as long as \
             before. A layer pays for loads that take longer than it says there.{part}"
        )
    }
}

impl Settings {
    /// As sentences, a line each.
    pub(crate) fn lines(&self) -> [String; 3] {
        let threads = counted(self.threads, "thread");
        let spread = match self.spread.as_deref() {
            Some("random") => format!("at random (seed {})", self.seed),
            Some("client") => "by the client's address".into(),
            _ => "in turn".into(),
        };
        let instances = counted(self.instances.into(), "instance");
        let said = match self.load_from {
            LoadFrom::Arguments => "",
            LoadFrom::Log => " on average, by the request times in the log",
            LoadFrom::Default => ", a guess: the log does not say (--load)",
        };
        let pool = match self.pool {
            Some(pool) => format!("; at most {} at once", count(pool as u64)),
            None => String::new(),
        };
        let speed = match self.speed_up {
            Some(1.0) => "as they came",
            _ => &self.speed,
        };
        [
            format!("Simulated: {instances} of {threads}; requests {speed}, spread {spread}."),
            format!("A load takes {}{said}{pool}.", Span(self.load)),
            format!(
                "What was loaded is kept for {}. The shared tier is {} away, there and back.",
                Span(self.ttl),
                Span(self.round_trip)
            ),
        ]
    }
}

impl Serialize for Skipped {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut skipped = serializer.serialize_struct("Skipped", 4)?;
        skipped.serialize_field("writes", &self.writes)?;
        skipped.serialize_field("bad", &self.bad)?;
        let first = self.first_bad.as_ref();
        skipped.serialize_field("first_bad_line", &first.map(|(line, _)| line))?;
        skipped.serialize_field("first_bad_reason", &first.map(|(_, reason)| reason))?;
        skipped.end()
    }
}

fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

fn millis<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_nanos() as f64 / 1e6)
}
