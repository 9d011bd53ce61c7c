//! [`check`]: what a history must be like, whatever happened to the server meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use super::process::is_absent;
use super::record::{End, Heard, Record, Seen, Time, Token, Trouble, What};

/// What the promises are measured by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// For how long a copy in another process may outlive a notice that is lost: its TTL, and the
    /// window in which it is served while it is refreshed.
    pub(crate) copy: Time,
    /// The same of what was stored while the process heard nothing.
    pub(crate) deaf: Time,
    /// A copy's life begins when the flight lands that brought it, and that may have read it before
    /// the notice: so long before at most.
    pub(crate) flight: Time,
    /// What a call may spend on the tier after its load, and a put or an invalidation in all.
    pub(crate) budget: Time,
    /// How late a thread may be because others have the processors, besides the time in which none
    /// was woken; and how late a server may still execute what it was sent in time.
    pub(crate) allowance: Time,
}

/// By how much the server's clock and ours may be apart in a lease's time.
const CLOCKS: Time = 10_000_000;

/// Each is checked by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// No call sees a version from before a put or an invalidation that had returned `Ok` before
    /// the call began. Three times another process may see it in its own memory: until a notice
    /// came, [while nothing is heard](Bounds::deaf), or [if the notice was lost](Bounds::copy).
    NothingOlder,
    /// No lease is won while somebody else's is live, and nothing is stored under one that somebody
    /// else's has followed.
    OneHolder,
    /// Whoever calls is answered by its deadline; its own loader is not counted.
    InTime,
    /// What a process has counted is what has happened in it.
    Counted,
}

#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) claim: Claim,
    what: String,
    key: Option<u64>,
    /// The records that contradict each other.
    records: Vec<Record>,
}

/// What a history is made of, in numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) calls: usize,
    pub(crate) answered: usize,
    pub(crate) hits: usize,
    pub(crate) fleet_hits: usize,
    pub(crate) writes: usize,
    pub(crate) writes_refused: usize,
    pub(crate) loads: usize,
    pub(crate) leases: usize,
    pub(crate) renewals: usize,
    pub(crate) commits: usize,
    pub(crate) commits_refused: usize,
    pub(crate) troubles: usize,
    /// Answers older than a write that had returned, within the bounds of what is allowed.
    pub(crate) old_copies: usize,
    /// By how much the latest answer came after its deadline.
    pub(crate) latest: Duration,
}

/// Whether all of it was as promised.
pub(crate) fn check(records: &[Record], bounds: Bounds) -> (Tally, Vec<Violation>) {
    let history = History::new(records, bounds);
    let mut tally = history.tally();
    let mut violations = Vec::new();
    history.nothing_older(&mut tally, &mut violations);
    history.one_holder(&mut violations);
    history.in_time(&mut tally, &mut violations);
    history.counted(&mut violations);
    (tally, violations)
}

struct History<'a> {
    records: &'a [Record],
    bounds: Bounds,
    /// The writes of each key, by their version.
    writes: BTreeMap<u64, BTreeMap<u64, Write<'a>>>,
    /// From when until when each key was removed from the tier, if it was.
    removals: BTreeMap<u64, Vec<(Time, Time)>>,
    /// What each process has heard, and when that was sent at the earliest.
    ears: HashMap<usize, Ear>,
    troubles: Vec<(Trouble, &'a Record)>,
}

#[derive(Clone, Copy)]
struct Write<'a> {
    record: &'a Record,
    put: bool,
    done: bool,
    /// When the version began to be.
    since: Time,
    /// By when it had happened if it ever did.
    settled: Time,
}

#[derive(Default)]
struct Ear {
    /// Whatever was sent before the first was heard by the second; in order.
    heard: Vec<(Time, Time)>,
    /// From when until when it was deaf.
    deaf: Vec<(Time, Time)>,
}

impl Ear {
    /// When it had heard of everything that was sent before `sent`.
    fn heard_of(&self, sent: Time) -> Option<Time> {
        let next = self.heard.partition_point(|(then, _)| *then < sent);
        self.heard.get(next).map(|(_, heard)| *heard)
    }

    fn is_deaf(&self, from: Time, until: Time) -> bool {
        self.deaf.iter().any(|(begin, end)| *begin <= from && until <= *end)
    }
}

impl<'a> History<'a> {
    fn new(records: &'a [Record], bounds: Bounds) -> Self {
        let troubles = records.iter().filter_map(|record| match record.what {
            What::Trouble(trouble) => Some((trouble, record)),
            _ => None,
        });
        let troubles = troubles.collect::<Vec<_>>();
        // What was sent to a server that is stopped may be executed when it goes on.
        let settled = |record: &Record, done: bool| match done {
            true => record.end,
            false => {
                let overlap = troubles.iter().filter(|(_, trouble)| overlap(record, trouble));
                let end = overlap.map(|(_, trouble)| trouble.end).fold(record.end, Time::max);
                end + bounds.allowance
            }
        };
        let mut writes = BTreeMap::<_, BTreeMap<_, _>>::new();
        let mut removals = BTreeMap::<_, Vec<_>>::new();
        let mut sent = HashMap::new();
        for record in records {
            match record.what {
                What::Wrote { key, version, put, done, since } => {
                    let settled = settled(record, done);
                    let write = Write { record, put, done, since, settled };
                    writes.entry(key).or_default().insert(version, write);
                }
                What::Removed { key, done } => {
                    let removal = (record.begin, settled(record, done));
                    removals.entry(key).or_default().push(removal);
                }
                What::Committed { token, .. } | What::Put { token, .. } => {
                    sent.insert(token, record.begin);
                }
                _ => {}
            }
        }
        let ears = ears(records, &sent);
        History { records, bounds, writes, removals, ears, troubles }
    }

    fn tally(&self) -> Tally {
        let mut tally = Tally { troubles: self.troubles.len(), ..Tally::default() };
        for record in self.records {
            match record.what {
                What::Got { seen, end, .. } => {
                    tally.calls += 1;
                    tally.answered += usize::from(seen != Seen::Nothing);
                    tally.hits += usize::from(matches!(end, End::Hit | End::AbsentHit));
                    tally.fleet_hits += usize::from(end == End::FleetHit);
                }
                What::Wrote { done, .. } => {
                    tally.writes += 1;
                    tally.writes_refused += usize::from(!done);
                }
                What::Loaded { .. } => tally.loads += 1,
                What::Acquired { won, .. } => tally.leases += usize::from(won),
                What::Renewed { ours, .. } => tally.renewals += usize::from(ours),
                What::Committed { stored: true, .. } => tally.commits += 1,
                What::Committed { stored: false, .. } => tally.commits_refused += 1,
                _ => {}
            }
        }
        tally
    }

    fn nothing_older(&self, tally: &mut Tally, violations: &mut Vec<Violation>) {
        let nothing = BTreeMap::new();
        for call in self.records {
            let What::Got { key, end, seen, .. } = call.what else { continue };
            let writes = self.writes.get(&key).unwrap_or(&nothing);
            let mut old = false;
            let mut verdict = |version| self.contradicted(call, end, version, writes, &mut old);
            let contradicted = match seen {
                Seen::Nothing => None,
                Seen::Version(version) => verdict(version),
                // It may be any of them: it is held to be the one that suits it best. As a rule
                // that is the newest.
                Seen::Absent => {
                    let then = writes.iter().rev().filter(|(_, write)| write.since <= call.end);
                    let absences = then.map(|(version, _)| *version).filter(|v| is_absent(*v));
                    let mut first = None;
                    let suits = absences.chain([0]).any(|version| {
                        let contradicted = verdict(version);
                        let suits = contradicted.is_none();
                        first = first.take().or(contradicted);
                        suits
                    });
                    first.filter(|_| !suits)
                }
            };
            violations.extend(contradicted);
            tally.old_copies += usize::from(old);
        }
    }

    /// Why this call cannot have seen this version, if it cannot. Sets `old` if it is older than
    /// one that was written before, and nobody need have known.
    fn contradicted(
        &self,
        call: &Record,
        end: End,
        version: u64,
        writes: &BTreeMap<u64, Write<'a>>,
        old: &mut bool,
    ) -> Option<Violation> {
        let key = call.key()?;
        let written = writes.get(&version).map(|write| write.record);
        let (what, newer) = if written.is_none() && version != 0 {
            (format!("version {version} of key {key} was seen, which nobody wrote"), None)
        } else {
            let newer = self.newer_that_must_be_seen(call, end, version, writes, old)?;
            let what = format!(
                "version {version} of key {key} was seen by process {} ({end:?}), {:?} after \
                 process {} had been told that a newer one is there",
                call.process,
                Duration::from_nanos(call.begin - newer.end),
                newer.process,
            );
            (what, Some(newer))
        };
        let records = [written, newer, Some(call)].into_iter().flatten().cloned().collect();
        Some(Violation { claim: Claim::NothingOlder, what, key: Some(key), records })
    }

    /// A write of a newer version, if there is one that this call must know of. Sets `old` if there
    /// is one that it need not know of, but nearly had to.
    fn newer_that_must_be_seen(
        &self,
        call: &Record,
        end: End,
        version: u64,
        writes: &BTreeMap<u64, Write<'a>>,
        old: &mut bool,
    ) -> Option<&'a Record> {
        let written = writes.get(&version);
        for newer in writes.range(version + 1..).map(|(_, write)| write) {
            // So has every version after it.
            if newer.since > call.begin {
                break;
            }
            let told = newer.record.end;
            if !newer.done || told >= call.begin {
                continue;
            }
            // It was put, and perhaps after the newer one.
            if written.is_some_and(|write| write.put && write.settled >= newer.record.begin) {
                continue;
            }
            // The process itself has forgotten what there was. So has the tier, and a call that
            // came to it, or to the database, began after that.
            let asked = matches!(end, End::FleetHit | End::Loaded);
            let ear = self.ears.get(&call.process);
            let knew = newer.record.process == call.process
                || asked
                || ear.and_then(|ear| ear.heard_of(told)).is_some_and(|heard| heard < call.begin)
                || told + self.bounds.copy + self.bounds.flight < call.begin
                || told + self.bounds.deaf + self.bounds.flight < call.begin
                    && ear.is_none_or(|ear| ear.is_deaf(told, call.begin));
            if knew {
                return Some(newer.record);
            }
            *old = true;
        }
        None
    }

    fn one_holder(&self, violations: &mut Vec<Violation>) {
        let mut leases = BTreeMap::<u64, Leases<'_>>::new();
        for record in self.records {
            match record.what {
                What::Acquired { key, token, life, won: true } => {
                    leases.entry(key).or_default().won.push((token, life, record));
                }
                What::Renewed { key, token, life, ours: true } => {
                    let renewed = &mut leases.entry(key).or_default().renewed;
                    renewed.entry(token).or_default().push((life, record));
                }
                What::Committed { key, token, stored } => {
                    let leases = leases.entry(key).or_default();
                    leases.ended.entry(token).or_default().push(record);
                    if stored {
                        leases.stored.push((token, record));
                    }
                }
                What::Released { key, token } => {
                    let ended = &mut leases.entry(key).or_default().ended;
                    ended.entry(token).or_default().push(record);
                }
                _ => {}
            }
        }
        for (key, mut leases) in leases {
            leases.won.sort_by_key(|(_, _, record)| record.begin);
            self.nothing_stored_late(key, &leases, violations);
            self.nothing_won_early(key, &leases, violations);
        }
    }

    fn nothing_stored_late(&self, key: u64, leases: &Leases<'_>, violations: &mut Vec<Violation>) {
        let claim = Claim::OneHolder;
        for (token, stored) in &leases.stored {
            let held = leases.won.iter().find(|(other, ..)| other == token);
            let Some((.., held)) = held else {
                let what = format!("key {key} was stored under a lease that nobody had won");
                let records = vec![Record::clone(stored)];
                violations.push(Violation { claim, what, key: Some(key), records });
                continue;
            };
            let next = leases.won.partition_point(|(.., won)| won.begin <= held.end);
            let since = leases.won[next..].iter().find(|(.., won)| won.end < stored.begin);
            if let Some((.., since)) = since {
                let what = format!("key {key} was stored under a lease that another has followed");
                let records = [held, since, stored].map(|record| Record::clone(record)).to_vec();
                violations.push(Violation { claim, what, key: Some(key), records });
            }
        }
    }

    fn nothing_won_early(&self, key: u64, leases: &Leases<'_>, violations: &mut Vec<Violation>) {
        for (place, (token, life, held)) in leases.won.iter().enumerate() {
            for (.., won) in &leases.won[place + 1..] {
                if won.begin <= held.end {
                    continue;
                }
                let renewals = leases.renewed.get(token).into_iter().flatten();
                let renewals = renewals.filter(|(_, renewed)| renewed.end < won.begin);
                let ends = renewals.map(|(life, renewed)| renewed.begin + life);
                let live_until = ends.fold(held.begin + life, Time::max);
                if won.end + CLOCKS >= live_until {
                    break;
                }
                let mut given_up = leases.ended.get(token).into_iter().flatten();
                let given_up = given_up.any(|ended| ended.begin <= won.end);
                let between = |begin, end| begin <= won.end && held.begin <= end;
                let written = self.writes.get(&key).into_iter().flat_map(BTreeMap::values);
                let written = written.map(|write| (write.record.begin, write.settled));
                // A write that was refused is told later, by nobody's call.
                let removed = self.removals.get(&key).into_iter().flatten().copied();
                let mut written = written.chain(removed);
                let mut killed =
                    self.troubles.iter().filter(|(trouble, _)| *trouble == Trouble::Kill);
                if !given_up
                    && !written.any(|(begin, end)| between(begin, end))
                    && !killed.any(|(_, kill)| between(kill.begin, kill.end))
                {
                    let left = Duration::from_nanos(live_until - won.end);
                    let what =
                        format!("key {key} had two leases, the first of them for {left:?} to come");
                    let records = vec![Record::clone(held), Record::clone(won)];
                    let claim = Claim::OneHolder;
                    violations.push(Violation { claim, what, key: Some(key), records });
                }
            }
        }
    }

    fn in_time(&self, tally: &mut Tally, violations: &mut Vec<Violation>) {
        let stalls = self.records.iter().filter(|record| record.what == What::Stalled);
        let stalls = stalls.collect::<Vec<_>>();
        // For how long nobody in its process was woken while it lasted.
        let stalled = |record: &Record| -> Time {
            let own = stalls.iter().filter(|stall| stall.process == record.process);
            let overlap = own.filter(|stall| overlap(record, stall));
            overlap.map(|stall| stall.end.min(record.end) - stall.begin.max(record.begin)).sum()
        };
        for record in self.records {
            let time = match record.what {
                // A load on the caller's own thread, and what it takes to store what came of it.
                What::Got { patience, loading: 0, .. } => patience,
                What::Got { patience, loading, .. } => patience + loading + self.bounds.budget,
                What::Wrote { .. } => self.bounds.budget,
                _ => continue,
            };
            let mut late = (record.end - record.begin).saturating_sub(time);
            if late > 0 {
                late = late.saturating_sub(stalled(record));
            }
            tally.latest = tally.latest.max(Duration::from_nanos(late));
            if late > self.bounds.allowance {
                let late = Duration::from_nanos(late);
                let what = format!("process {} was answered {late:?} late", record.process);
                let (claim, key) = (Claim::InTime, record.key());
                let records = vec![record.clone()];
                violations.push(Violation { claim, what, key, records });
            }
        }
    }

    fn counted(&self, violations: &mut Vec<Violation>) {
        let mut happened = HashMap::<usize, (Vec<u64>, u64)>::new();
        for record in self.records {
            let (ends, loads) =
                happened.entry(record.process).or_insert_with(|| (vec![0; End::ALL.len()], 0));
            match record.what {
                What::Got { end, .. } => ends[end as usize] += 1,
                What::Loaded { .. } => *loads += 1,
                _ => {}
            }
        }
        for record in self.records {
            let What::Counted { ends, loads, ended } = &record.what else { continue };
            let (happened, loaded) = &happened[&record.process];
            let rows = End::ALL.iter().zip(ends.iter().zip(happened));
            let rows =
                rows.map(|(end, (counted, happened))| (format!("{end:?}"), counted, happened));
            let loads = [("loads", loads, loaded), ("ends of loads", ended, loaded)];
            let loads = loads.map(|(what, counted, there)| (what.to_string(), counted, there));
            let wrong = rows.chain(loads).filter(|(_, counted, happened)| counted != happened);
            let wrong = wrong.map(|(what, counted, there)| format!("{counted} {what} of {there}"));
            let wrong = wrong.collect::<Vec<_>>();
            if !wrong.is_empty() {
                let what = format!("process {} has counted {}", record.process, wrong.join(", "));
                let (claim, records) = (Claim::Counted, vec![record.clone()]);
                violations.push(Violation { claim, what, key: None, records });
            }
        }
    }
}

/// The leases of a key.
#[derive(Default)]
struct Leases<'a> {
    won: Vec<(Token, Time, &'a Record)>,
    renewed: HashMap<Token, Vec<(Time, &'a Record)>>,
    stored: Vec<(Token, &'a Record)>,
    /// What may have ended it.
    ended: HashMap<Token, Vec<&'a Record>>,
}

fn overlap(one: &Record, two: &Record) -> bool {
    one.begin <= two.end && two.begin <= one.end
}

fn ears(records: &[Record], sent: &HashMap<Token, Time>) -> HashMap<usize, Ear> {
    let mut ears = HashMap::<usize, Ear>::new();
    let mut heard = records
        .iter()
        .filter_map(|record| match record.what {
            What::Heard(heard) => Some((heard, record)),
            _ => None,
        })
        .collect::<Vec<_>>();
    heard.sort_by_key(|(_, record)| record.begin);
    // Nobody hears anything in the beginning.
    for record in records {
        ears.entry(record.process)
            .or_insert_with(|| Ear { deaf: vec![(0, Time::MAX)], heard: vec![] });
    }
    for (heard, record) in heard {
        let ear = ears.entry(record.process).or_default();
        // One server tells each of its listeners everything in the order in which it happened.
        let then = match heard {
            // All copies are in doubt.
            Heard::Up => {
                if let Some((_, end)) = ear.deaf.last_mut() {
                    *end = record.begin;
                }
                Some(record.begin)
            }
            Heard::Down => {
                ear.deaf.push((record.end, Time::MAX));
                None
            }
            Heard::Version(token) => sent.get(&token).copied(),
        };
        ear.heard.extend(then.map(|then| (then, record.end)));
    }
    for ear in ears.values_mut() {
        ear.heard.sort_unstable();
        let mut earliest = Time::MAX;
        for (_, heard) in ear.heard.iter_mut().rev() {
            earliest = earliest.min(*heard);
            *heard = earliest;
        }
    }
    ears
}

/// How many records of an excerpt are enough.
const EXCERPT: usize = 40;

impl Violation {
    /// What happened, and what else did to this key at that time, in milliseconds since the first
    /// of it.
    pub(crate) fn with_excerpt(&self, history: &[Record]) -> String {
        let from = self.records.iter().map(|record| record.begin).min().unwrap_or(0);
        let until = self.records.iter().map(|record| record.end).max().unwrap_or(0);
        let mut near = history
            .iter()
            .filter(|record| record.begin <= until && from <= record.end)
            .filter(|record| record.key().is_none() || record.key() == self.key)
            // Other callers have seen what they have seen.
            .filter(|record| {
                !matches!(record.what, What::Got { .. } | What::Heard(Heard::Version(_)))
            })
            .collect::<Vec<_>>();
        near.sort_by_key(|record| record.begin);
        let left_out = near.len().saturating_sub(EXCERPT);
        let mut lines = near.split_off(left_out);
        lines.extend(&self.records);
        lines.sort_by_key(|record| record.begin);
        lines.dedup();
        let mut text = format!("{self}\n   milliseconds: from … until, process/thread, what\n");
        if left_out > 0 {
            text += &format!("   ({left_out} earlier records are left out)\n");
        }
        for record in lines {
            let involved = if self.records.contains(record) { "=>" } else { "  " };
            let Record { process, thread, begin, end, what } = record;
            let since = |time: Time| (time as f64 - from as f64) / 1e6;
            let (begin, end) = (since(*begin), since(*end));
            text +=
                &format!("{involved} {begin:10.3} … {end:10.3}  {process}/{thread:<3} {what}\n");
        }
        text
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.claim, self.what)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { calls, answered, hits, fleet_hits, writes, writes_refused, loads, .. } = self;
        let Tally { leases, renewals, commits, commits_refused, troubles, .. } = self;
        let Tally { old_copies, latest, .. } = self;
        write!(
            f,
            "{calls} calls: {answered} answered, {hits} from L1, {fleet_hits} from the tier; \
             {writes} writes, {writes_refused} of them in vain; {loads} loads, {leases} leases, \
             {renewals} renewals, {commits} commits and {commits_refused} more in vain; \
             {troubles} troubles; {old_copies} copies whose notice was on its way; \
             the latest answer {latest:?} after its time"
        )
    }
}
