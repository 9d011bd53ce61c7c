//! The simulation: the requests of a log on many instances, against a virtual clock.
//!
//! What the instances do is what the caches of the crate do, step by step: look into their own
//! memory; join a load that is in the air; look into the shared tier; claim the lease, or wait for
//! the notice of who holds it; load; commit. Nothing runs, so nothing depends on the machine: the same
//! log and settings have the same outcome everywhere, and a day is over in a moment.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use foldhash::fast::FixedState;
use hdrhistogram::Histogram;

use crate::schedule::Arrival;

/// What stands between a herd and its source, besides the memory of each instance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Layers {
    pub(crate) name: &'static str,
    /// Callers of an instance that ask for one key at once share a load.
    pub(crate) coalescing: bool,
    /// The instances share what they load, and claim a lease before.
    pub(crate) lease: bool,
}

pub(crate) const STRATEGIES: [Layers; 4] = [
    Layers { name: "none", coalescing: false, lease: false },
    Layers { name: "coalescing", coalescing: true, lease: false },
    Layers { name: "lease", coalescing: false, lease: true },
    Layers { name: "both", coalescing: true, lease: true },
];

/// The fleet and its surroundings. All times are in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    pub(crate) instances: usize,
    /// Of each instance.
    pub(crate) threads: usize,
    pub(crate) ttl: u64,
    /// To the shared tier and back.
    pub(crate) round_trip: u64,
    /// What the load of each key takes.
    pub(crate) loads: Vec<u64>,
    /// How many loads run at once at the source.
    pub(crate) pool: Option<usize>,
    /// How many times as fast as the log the requests come; infinitely fast, all at once.
    pub(crate) speed_up: f64,
}

/// Into how many stretches the time is divided for [`Outcome::over_time`].
pub(crate) const STRETCHES: usize = 120;

/// What became of all calls under one strategy.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) layers: Layers,
    /// Calls answered from the memory of their instance.
    pub(crate) hits: u64,
    /// Calls that joined another caller of their instance.
    pub(crate) joined: u64,
    /// Calls answered from the shared tier, at their first look.
    pub(crate) shared: u64,
    /// Calls that asked for the lease, and got the value of whoever had it instead.
    pub(crate) spared: u64,
    pub(crate) loads: Loads,
    /// The loads of each key.
    pub(crate) by_key: Vec<u32>,
    pub(crate) claims: u64,
    /// What the tier was asked for: looks, claims and commits.
    pub(crate) commands: u64,
    /// The loads that ran, or waited for a place in the pool, at one moment at most.
    pub(crate) most_at_once: u64,
    pub(crate) herd: Herd,
    /// From the arrival of each call to its answer.
    pub(crate) waits: Histogram<u64>,
    /// The loads that began in each stretch of the time from the first arrival to the last.
    pub(crate) over_time: Vec<u64>,
    /// The loads that began after the last arrival, for calls that had to queue or to ask before.
    pub(crate) late: u64,
    /// What all loads took together.
    pub(crate) loading: u128,
    /// Calls that found no thread free when they came.
    pub(crate) queued: u64,
}

/// The loads of a strategy, by whether they were needed when they began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Loads {
    /// No instance had the value or was loading it.
    pub(crate) needed: u64,
    /// The same instance was loading it.
    pub(crate) in_instance: u64,
    /// Another instance was loading it.
    pub(crate) in_fleet: u64,
    /// Another instance had it.
    pub(crate) kept_elsewhere: u64,
}

impl Loads {
    pub(crate) fn all(self) -> u64 {
        self.needed + self.duplicates()
    }

    pub(crate) fn duplicates(self) -> u64 {
        self.in_instance + self.in_fleet + self.kept_elsewhere
    }
}

/// The most loads of one key at once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Herd {
    pub(crate) size: u64,
    pub(crate) key: u32,
    pub(crate) at: u64,
}

impl Outcome {
    pub(crate) fn calls(&self) -> u64 {
        self.hits + self.joined + self.shared + self.spared + self.loads.all()
    }

    /// The longest of the shortest waits that make up this share of all.
    pub(crate) fn wait(&self, quantile: f64) -> u64 {
        self.waits.value_at_quantile(quantile)
    }
}

/// Plays the arrivals, which are in order of time, and tells now and then how many have come.
pub(crate) fn run(
    layers: Layers,
    fleet: &Fleet,
    arrivals: &[Arrival],
    come: impl Fn(u64),
) -> Outcome {
    let scaled = |at: u64| (at as f64 / fleet.speed_up) as u64;
    let span = arrivals.last().map_or(0, |last| scaled(last.at));
    let mut play = Play::new(layers, fleet, span);
    for (number, arrival) in arrivals.iter().enumerate() {
        let at = scaled(arrival.at);
        play.until(at);
        play.arrive(Call {
            arrived: at,
            key: arrival.key,
            instance: arrival.instance,
            claimed: false,
        });
        if number % 4096 == 0 {
            come(number as u64);
        }
    }
    play.until(u64::MAX);
    play.outcome
}

struct Call {
    arrived: u64,
    key: u32,
    instance: u16,
    /// Whether it asked for a lease, and did not get it.
    claimed: bool,
}

/// What happens next to a call.
enum Step {
    /// The tier is asked for the value.
    Look,
    /// The tier is asked for the lease.
    Claim,
    /// The source is asked.
    Load,
    Loaded,
    /// The tier is given the value, and the lease is given back.
    Commit,
    /// The instance has the value, for as long as until then.
    Answered {
        until: u64,
        by: By,
    },
}

#[derive(Clone, Copy, PartialEq)]
enum By {
    Load,
    Tier,
}

struct Event {
    at: u64,
    /// Of two events at one moment, what was decided first comes first.
    number: u64,
    call: Call,
    step: Step,
}

impl Ord for Event {
    fn cmp(&self, other: &Event) -> std::cmp::Ordering {
        (other.at, other.number).cmp(&(self.at, self.number)) // a heap gives the greatest first
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.number == other.number
    }
}

impl Eq for Event {}

struct Instance {
    free: usize,
    /// Calls without a thread.
    queue: VecDeque<Call>,
}

/// What is going on in one instance about one key.
#[derive(Default)]
struct Flight {
    loads: u32,
    followers: Vec<Call>,
}

/// A key in all the fleet.
#[derive(Clone, Copy, Default)]
struct Everywhere {
    loads: u32,
    /// When the last copy in any instance expires.
    fresh_until: u64,
}

/// A key in the shared tier.
#[derive(Default)]
struct Shared {
    fresh_until: u64,
    leased: bool,
    /// Those who wait for the notice.
    losers: Vec<Call>,
}

type Map<V> = HashMap<(u16, u32), V, FixedState>;

struct Play<'a> {
    layers: Layers,
    fleet: &'a Fleet,
    span: u64,
    events: BinaryHeap<Event>,
    numbers: u64,
    instances: Vec<Instance>,
    fresh_until: Map<u64>,
    flights: Map<Flight>,
    everywhere: Vec<Everywhere>,
    tier: HashMap<u32, Shared, FixedState>,
    /// When each place in the pool is free.
    pool: BinaryHeap<Reverse<u64>>,
    running: u64,
    outcome: Outcome,
}

impl<'a> Play<'a> {
    fn new(layers: Layers, fleet: &'a Fleet, span: u64) -> Play<'a> {
        let instance = || Instance { free: fleet.threads, queue: VecDeque::new() };
        let keys = fleet.loads.len();
        // To three digits, up to the longest time that can be added.
        let waits = Histogram::new_with_max(u64::MAX / 2, 3);
        Play {
            layers,
            fleet,
            span,
            events: BinaryHeap::new(),
            numbers: 0,
            instances: std::iter::repeat_with(instance).take(fleet.instances).collect(),
            fresh_until: Map::default(),
            flights: Map::default(),
            everywhere: vec![Everywhere::default(); keys],
            tier: HashMap::default(),
            pool: std::iter::repeat_n(Reverse(0), fleet.pool.unwrap_or(0)).collect(),
            running: 0,
            outcome: Outcome {
                layers,
                hits: 0,
                joined: 0,
                shared: 0,
                spared: 0,
                loads: Loads::default(),
                by_key: vec![0; keys],
                claims: 0,
                commands: 0,
                most_at_once: 0,
                herd: Herd::default(),
                waits: waits.expect("a histogram keeps up to five digits"),
                over_time: vec![0; STRETCHES],
                late: 0,
                loading: 0,
                queued: 0,
            },
        }
    }

    /// All that happens up to that moment.
    fn until(&mut self, moment: u64) {
        while self.events.peek().is_some_and(|event| event.at <= moment) {
            let Some(Event { at, call, step, .. }) = self.events.pop() else { break };
            match step {
                Step::Look => self.look(call, at),
                Step::Claim => self.claim(call, at),
                Step::Load => self.load(call, at),
                Step::Loaded => self.loaded(call, at),
                Step::Commit => self.commit(call, at),
                Step::Answered { until, by } => self.answered(&call, at, until, by),
            }
        }
    }

    fn then(&mut self, at: u64, call: Call, step: Step) {
        self.events.push(Event { at, number: self.numbers, call, step });
        self.numbers += 1;
    }

    /// One way between an instance and the tier.
    fn way(&self) -> u64 {
        self.fleet.round_trip / 2
    }

    fn arrive(&mut self, call: Call) {
        let instance = &mut self.instances[usize::from(call.instance)];
        if instance.free == 0 {
            self.outcome.queued += 1;
            instance.queue.push_back(call);
            return;
        }
        instance.free -= 1;
        let (at, place) = (call.arrived, call.instance);
        if self.begin(call, at) {
            self.release(place, at);
        }
    }

    /// A thread takes the call. Whether it is answered at once.
    fn begin(&mut self, call: Call, now: u64) -> bool {
        let place = (call.instance, call.key);
        if self.fresh_until.get(&place).is_some_and(|until| *until > now) {
            self.outcome.hits += 1;
            self.ended(&call, now);
            return true;
        }
        if self.layers.coalescing {
            if let Some(flight) = self.flights.get_mut(&place) {
                flight.followers.push(call);
                return false;
            }
            self.flights.insert(place, Flight::default());
        }
        match self.layers.lease {
            true => self.then(now + self.way(), call, Step::Look),
            false => self.then(now, call, Step::Load),
        }
        false
    }

    fn look(&mut self, call: Call, now: u64) {
        self.outcome.commands += 1;
        let until = self.tier.get(&call.key).map_or(0, |shared| shared.fresh_until);
        match until > now {
            true => self.then(now + self.way(), call, Step::Answered { until, by: By::Tier }),
            false => self.then(now + 2 * self.way(), call, Step::Claim),
        }
    }

    fn claim(&mut self, mut call: Call, now: u64) {
        self.outcome.commands += 1;
        self.outcome.claims += 1;
        let way = self.way();
        let shared = self.tier.entry(call.key).or_default();
        if shared.fresh_until > now {
            let until = shared.fresh_until;
            call.claimed = true;
            self.then(now + way, call, Step::Answered { until, by: By::Tier });
        } else if shared.leased {
            call.claimed = true;
            shared.losers.push(call);
        } else {
            shared.leased = true;
            self.then(now + way, call, Step::Load);
        }
    }

    fn load(&mut self, call: Call, now: u64) {
        let key = call.key as usize;
        let takes = self.fleet.loads[key];
        let here = self.flights.entry((call.instance, call.key)).or_default();
        let everywhere = &mut self.everywhere[key];
        let outcome = &mut self.outcome;
        let kind = match (here.loads, everywhere.loads) {
            (1.., _) => &mut outcome.loads.in_instance,
            (_, 1..) => &mut outcome.loads.in_fleet,
            _ if everywhere.fresh_until > now => &mut outcome.loads.kept_elsewhere,
            _ => &mut outcome.loads.needed,
        };
        *kind += 1;
        here.loads += 1;
        everywhere.loads += 1;
        self.running += 1;
        outcome.by_key[key] += 1;
        outcome.loading += u128::from(takes);
        outcome.most_at_once = outcome.most_at_once.max(self.running);
        if u64::from(everywhere.loads) > outcome.herd.size {
            outcome.herd = Herd { size: everywhere.loads.into(), key: call.key, at: now };
        }
        match now <= self.span {
            true => {
                let stretch = u128::from(now) * STRETCHES as u128 / (u128::from(self.span) + 1);
                outcome.over_time[stretch as usize] += 1;
            }
            false => outcome.late += 1,
        }
        // Whoever comes first gets the place that is free first.
        let begun = self.pool.pop().map_or(now, |Reverse(free)| free.max(now));
        let over = begun.saturating_add(takes);
        if self.fleet.pool.is_some() {
            self.pool.push(Reverse(over));
        }
        self.then(over, call, Step::Loaded);
    }

    fn loaded(&mut self, call: Call, now: u64) {
        let place = (call.instance, call.key);
        self.running -= 1;
        self.everywhere[call.key as usize].loads -= 1;
        if let Some(flight) = self.flights.get_mut(&place) {
            flight.loads -= 1;
            if flight.loads == 0 && !self.layers.coalescing {
                self.flights.remove(&place);
            }
        }
        match self.layers.lease {
            true => self.then(now.saturating_add(self.way()), call, Step::Commit),
            false => {
                let until = now.saturating_add(self.fleet.ttl);
                self.answered(&call, now, until, By::Load);
            }
        }
    }

    fn commit(&mut self, call: Call, now: u64) {
        self.outcome.commands += 1;
        let until = now.saturating_add(self.fleet.ttl);
        let shared = self.tier.entry(call.key).or_default();
        shared.fresh_until = until;
        shared.leased = false;
        let losers = std::mem::take(&mut shared.losers);
        // The notice comes, and they look.
        let told = now.saturating_add(2 * self.way());
        for loser in losers {
            self.then(told, loser, Step::Look);
        }
        let answered = Step::Answered { until, by: By::Load };
        self.then(now.saturating_add(self.way()), call, answered);
    }

    fn answered(&mut self, call: &Call, now: u64, until: u64, by: By) {
        let place = (call.instance, call.key);
        let everywhere = &mut self.everywhere[call.key as usize];
        everywhere.fresh_until = everywhere.fresh_until.max(until);
        let fresh_until = self.fresh_until.entry(place).or_default();
        *fresh_until = until.max(*fresh_until);
        match by {
            By::Load => {} // it is counted where it began
            By::Tier if call.claimed => self.outcome.spared += 1,
            By::Tier => self.outcome.shared += 1,
        }
        let flight = self.layers.coalescing.then(|| self.flights.remove(&place)).flatten();
        self.ended(call, now);
        self.release(call.instance, now);
        for follower in flight.into_iter().flat_map(|flight| flight.followers) {
            self.outcome.joined += 1;
            self.ended(&follower, now);
            self.release(follower.instance, now);
        }
    }

    fn ended(&mut self, call: &Call, now: u64) {
        self.outcome.waits.saturating_record(now - call.arrived);
    }

    /// A thread is free, and takes the next calls, up to one that is not answered at once.
    fn release(&mut self, instance: u16, now: u64) {
        while let Some(call) = self.instances[usize::from(instance)].queue.pop_front() {
            if !self.begin(call, now) {
                return;
            }
        }
        self.instances[usize::from(instance)].free += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::thread;
    use std::time::{Duration, Instant};

    use onefill::fleet::Fleet as Tier;
    use onefill::fleet::memory::Memory;
    use onefill::{Cache, Stats};
    use proptest::prelude::*;

    use crate::strategy::{Digits, Row};

    use super::*;

    const MILLI: u64 = 1_000_000;

    fn fleet(instances: usize, threads: usize) -> Fleet {
        Fleet {
            instances,
            threads,
            ttl: 1_000 * MILLI,
            round_trip: 2 * MILLI,
            loads: vec![50 * MILLI; 4],
            pool: None,
            speed_up: 1.0,
        }
    }

    /// Key 0, at so many milliseconds, in that instance.
    fn at(millis: u64, instance: u16) -> Arrival {
        Arrival { at: millis * MILLI, key: 0, instance }
    }

    fn play(fleet: &Fleet, arrivals: &[Arrival]) -> [Outcome; 4] {
        STRATEGIES.map(|layers| run(layers, fleet, arrivals, |_| ()))
    }

    fn loads(outcomes: &[Outcome]) -> Vec<u64> {
        outcomes.iter().map(|outcome| outcome.loads.all()).collect()
    }

    #[test]
    fn a_herd_of_every_thread_costs_what_the_arithmetic_says() {
        let (instances, threads) = (4, 5);
        let herd: Vec<Arrival> =
            (0..instances * threads).map(|call| at(0, (call % instances) as u16)).collect();
        let outcomes = play(&fleet(instances, threads), &herd);
        assert_eq!(loads(&outcomes), [20, 4, 1, 1]);
        assert_eq!(outcomes.each_ref().map(|outcome| outcome.claims), [0, 0, 20, 4]);
        let [none, coalescing, lease, both] = &outcomes;
        assert_eq!(
            none.loads,
            Loads { needed: 1, in_instance: 16, in_fleet: 3, kept_elsewhere: 0 }
        );
        assert_eq!((none.herd.size, none.most_at_once), (20, 20));
        assert_eq!((coalescing.joined, coalescing.loads.in_fleet), (16, 3));
        assert_eq!((lease.spared, both.spared, both.joined), (19, 3, 16));
    }

    #[test]
    fn a_load_with_a_lease_costs_three_round_trips_more_and_the_loser_one_beyond() {
        let [_, coalescing, _, both] = play(&fleet(2, 1), &[at(0, 0), at(10, 1)]);
        assert_eq!((coalescing.wait(1.0), coalescing.loads.all()), (50_003_967, 2)); // three digits
        // Look 2 ms, claim 2, load 50, commit 2. The loser came 10 ms later, and hears of the commit
        // at 56 ms, a way before it has read the value at 58.
        let [least, most] = [both.waits.min(), both.waits.max()].map(|wait| wait / MILLI);
        assert_eq!((least, most, both.commands, both.spared), (47, 56, 6, 1));
    }

    #[test]
    fn what_another_instance_keeps_is_a_duplicate_that_only_a_tier_removes() {
        let outcomes = play(&fleet(2, 8), &[at(0, 0), at(100, 1), at(200, 0), at(900, 1)]);
        assert_eq!(loads(&outcomes), [2, 2, 1, 1]);
        let [none, coalescing, lease, both] = outcomes;
        assert_eq!((none.loads.kept_elsewhere, coalescing.loads.kept_elsewhere), (1, 1));
        assert_eq!((lease.shared, both.shared, both.hits), (1, 1, 2));
    }

    #[test]
    fn a_value_is_loaded_again_when_its_time_is_over_and_not_before() {
        let outcomes = play(&fleet(1, 8), &[at(0, 0), at(1_049, 0), at(1_060, 0)]);
        assert_eq!(loads(&outcomes), [2, 2, 2, 2]);
        assert_eq!(outcomes.map(|outcome| outcome.hits), [1, 1, 1, 1]);
    }

    #[test]
    fn a_call_without_a_thread_waits_for_one() {
        let [none, coalescing, ..] = play(&fleet(1, 1), &[at(0, 0), at(0, 0)]);
        // It then finds what the first one loaded.
        assert_eq!((none.loads.all(), none.hits, none.queued), (1, 1, 1));
        assert_eq!(none.waits.min() / MILLI, 49);
        assert_eq!((none.over_time[0], none.late), (1, 0));
        assert_eq!((coalescing.hits, coalescing.joined), (1, 0));
    }

    #[test]
    fn a_pool_makes_loads_queue() {
        let pooled = Fleet { pool: Some(1), ..fleet(1, 8) };
        let [none, coalescing, ..] = play(&pooled, &[at(0, 0), at(0, 0), at(0, 0)]);
        assert_eq!((none.waits.max() / MILLI, none.most_at_once), (150, 3));
        assert_eq!((coalescing.waits.max() / MILLI, coalescing.most_at_once), (50, 1));
    }

    #[test]
    fn infinitely_fast_is_all_at_once() {
        let hurried = Fleet { speed_up: f64::INFINITY, ..fleet(1, 8) };
        let outcomes = play(&hurried, &[at(0, 0), at(3_600_000, 0)]);
        assert_eq!(loads(&outcomes), [2, 1, 1, 1]);
        assert_eq!(outcomes[0].over_time.iter().sum::<u64>(), 2);
    }

    /// The same calls to real caches, in real time: hits, joined, from the tier, loads.
    fn real(fleet: &Fleet, arrivals: &[Arrival], lease: bool) -> [u64; 4] {
        let memory = Memory::new();
        let patience = Duration::from_secs(60);
        let instance = || {
            let cache = Cache::<u32, Row, Infallible>::builder("row");
            let cache = cache.ttl(Duration::from_nanos(fleet.ttl)).loser_wait(patience);
            let tier = Tier::builder(memory.peer()).lease_cap(patience).budget(patience).build();
            let cache = if lease { cache.fleet(&tier, Digits) } else { cache };
            cache.build().expect("the settings mean something")
        };
        let instances: Vec<_> = std::iter::repeat_with(instance).take(fleet.instances).collect();
        let start = Instant::now();
        thread::scope(|scope| {
            for arrival in arrivals {
                let cache = &instances[usize::from(arrival.instance)];
                scope.spawn(move || {
                    let due = start + Duration::from_nanos(arrival.at);
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    let load = Duration::from_nanos(fleet.loads[arrival.key as usize]);
                    let answer = cache.get_with(&arrival.key, |_| {
                        thread::sleep(load);
                        Ok(Row { key: arrival.key as usize })
                    });
                    assert!(answer.is_ok());
                });
            }
        });
        let stats = instances.iter().map(Cache::stats);
        stats.fold([0; 4], |[hits, joined, tier, loads], stats| {
            let Stats { hits: more, followed, fleet_hits, loads: loaded, .. } = stats;
            [hits + more, joined + followed, tier + fleet_hits, loads + loaded]
        })
    }

    #[test]
    fn the_caches_of_the_crate_do_what_is_simulated() {
        // Far enough apart for a busy machine.
        let half = Fleet { ttl: 60_000 * MILLI, loads: vec![600 * MILLI; 4], ..fleet(2, 8) };
        let calls = [at(0, 0), at(150, 0), at(300, 1), at(400, 1), at(1_200, 0), at(1_200, 1)];
        let calls = [&calls[..], &[Arrival { at: 1_500 * MILLI, key: 1, instance: 0 }]].concat();
        let [_, coalescing, _, both] = play(&half, &calls);
        for (outcome, lease) in [(coalescing, false), (both, true)] {
            let tier = outcome.shared + outcome.spared;
            let simulated = [outcome.hits, outcome.joined, tier, outcome.loads.all()];
            assert_eq!(real(&half, &calls, lease), simulated, "{}", outcome.layers.name);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// With a thread for everybody, and values that outlive a few round trips, a strategy with
        /// a layer more never loads more: what the stronger one loads are requests further apart
        /// than a load and a TTL, and each of those costs the weaker one a load of its own. A value
        /// that has expired by the time its message arrives is loaded once more.
        #[test]
        fn calls_add_up_and_no_layer_costs_loads(
            mut log in prop::collection::vec((0..3_000_u64, 0..4_u32, 0..3_u16), 1..200),
            (ttl, load, round_trip) in (100..500_u64, 0..300_u64, 0..20_u64),
        ) {
            log.sort_unstable();
            let arrivals = log.iter().map(|(at, key, instance)| Arrival {
                at: at * MILLI,
                key: *key,
                instance: *instance,
            });
            let arrivals: Vec<Arrival> = arrivals.collect();
            let fleet = Fleet {
                ttl: ttl * MILLI,
                loads: vec![load * MILLI; 4],
                round_trip: round_trip * MILLI,
                ..fleet(3, 200)
            };
            let outcomes = play(&fleet, &arrivals);
            for outcome in &outcomes {
                prop_assert_eq!(outcome.calls(), arrivals.len() as u64);
                prop_assert_eq!(outcome.waits.len(), arrivals.len() as u64);
                let begun = outcome.over_time.iter().sum::<u64>() + outcome.late;
                prop_assert_eq!(begun, outcome.loads.all());
                let by_key: u32 = outcome.by_key.iter().sum();
                prop_assert_eq!(u64::from(by_key), outcome.loads.all());
                if outcome.layers.coalescing || outcome.layers.lease {
                    prop_assert_eq!(outcome.loads.in_instance, 0);
                }
                if outcome.layers.lease {
                    prop_assert_eq!(outcome.loads.duplicates(), 0);
                }
            }
            let [none, coalescing, lease, both] = loads(&outcomes)[..] else { unreachable!() };
            prop_assert!(none >= coalescing && coalescing >= both && none >= lease);
        }
    }
}
