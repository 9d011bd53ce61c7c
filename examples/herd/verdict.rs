//! [`Verdict`]: which layers a log is worth, in words and with the arithmetic.

use std::time::Duration;

use serde::Serialize;

use crate::duration::Span;
use crate::findings::{LoadFrom, Settings, Traffic};
use crate::simulation::Outcome;
use crate::table::{count, counted};

/// What the layers remove, and what that costs. Times are in nanoseconds here, and in milliseconds
/// as JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Worth {
    /// Loads without any layer.
    pub(crate) none: u64,
    /// Loads that coalescing removes, of those.
    pub(crate) by_coalescing: u64,
    /// Loads that the shared tier and its lease remove, of what coalescing leaves.
    pub(crate) by_tier: u64,
    /// Those of them that the lease removes: who claimed, and got the value instead.
    pub(crate) by_lease: u64,
    /// What is left of loads with both.
    pub(crate) left: u64,
    /// Claims of the lease with both, and with the lease alone.
    pub(crate) claims: u64,
    pub(crate) claims_alone: u64,
    /// Anything the tier is asked for with both.
    pub(crate) commands: u64,
    /// What the loads take that the tier and its lease remove.
    #[serde(rename = "tier_saves_ms", serialize_with = "millis")]
    pub(crate) tier_saves: u128,
    /// What its commands take.
    #[serde(rename = "tier_costs_ms", serialize_with = "millis")]
    pub(crate) tier_costs: u128,
    #[serde(rename = "lease_saves_ms", serialize_with = "millis")]
    pub(crate) lease_saves: u128,
    #[serde(rename = "lease_costs_ms", serialize_with = "millis")]
    pub(crate) lease_costs: u128,
    /// For which loads what is saved is what it costs, with these numbers of loads and commands.
    #[serde(rename = "tier_pays_above_ms", serialize_with = "some_millis")]
    pub(crate) tier_pays_above: Option<u128>,
    #[serde(rename = "lease_pays_above_ms", serialize_with = "some_millis")]
    pub(crate) lease_pays_above: Option<u128>,
}

/// What is to be done, and why.
#[derive(Serialize)]
pub(crate) struct Verdict {
    pub(crate) advice: Advice,
    pub(crate) headline: String,
    pub(crate) reasons: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Advice {
    Neither,
    Coalescing,
    /// Both, but the lease for its own sake is not worth its claims.
    SharedValues,
    Both,
}

/// A log of fewer requests is an anecdote.
const FEW: u64 = 1_000;

impl Worth {
    /// Of the outcomes of none, coalescing, lease and both, with a tier that far away.
    pub(crate) fn new(outcomes: &[Outcome; 4], round_trip: u64) -> Worth {
        let [none, coalescing, lease, both] = outcomes;
        let loads = outcomes.each_ref().map(|outcome| outcome.loads.all());
        let by_tier = loads[1].saturating_sub(loads[3]);
        let by_lease = both.spared.min(by_tier);
        let tier_saves = coalescing.loading.saturating_sub(both.loading);
        let cost = |times: u64| u128::from(times) * u128::from(round_trip);
        let above = |cost: u128, removed: u64| cost.checked_div(removed.into());
        let (tier_costs, lease_costs) = (cost(both.commands), cost(both.claims));
        Worth {
            none: none.loads.all(),
            by_coalescing: loads[0].saturating_sub(loads[1]),
            by_tier,
            by_lease,
            left: loads[3],
            claims: both.claims,
            claims_alone: lease.claims,
            commands: both.commands,
            tier_saves,
            tier_costs,
            lease_saves: (tier_saves * u128::from(by_lease))
                .checked_div(by_tier.into())
                .unwrap_or_default(),
            lease_costs,
            tier_pays_above: above(tier_costs, by_tier),
            lease_pays_above: above(lease_costs, by_lease),
        }
    }

    /// Less than one load in a hundred is not worth a layer.
    pub(crate) fn advice(&self) -> Advice {
        let coalesced = self.none - self.by_coalescing;
        let tier = self.by_tier * 100 >= coalesced && self.tier_saves > self.tier_costs;
        let lease = self.by_lease > 0 && self.lease_saves > self.lease_costs;
        match self.coalescing_matters() {
            _ if tier && lease => Advice::Both,
            _ if tier => Advice::SharedValues,
            true => Advice::Coalescing,
            false => Advice::Neither,
        }
    }

    fn coalescing_matters(&self) -> bool {
        self.by_coalescing > 0 && self.by_coalescing * 100 >= self.none
    }

    /// What [`cells`](Worth::cells) are.
    pub(crate) const CELLS: [&str; 3] =
        ["coalescing removes", "tier pays above", "lease pays above"];

    /// What coalescing removes, and above which loads the tier and the lease pay.
    pub(crate) fn cells(&self) -> [String; 3] {
        [
            percent(self.by_coalescing, self.none),
            pays_above(self.tier_pays_above),
            pays_above(self.lease_pays_above),
        ]
    }
}

impl Verdict {
    /// `largest` is the largest herd of loads: how many, of what key, and when.
    pub(crate) fn new(
        worth: &Worth,
        outcomes: &[Outcome; 4],
        settings: &Settings,
        traffic: &[Traffic],
        largest: &(u64, String, u64),
    ) -> Verdict {
        let advice = worth.advice();
        let mut reasons = vec![
            worth.coalescing(),
            worth.tier(settings),
            worth.lease(settings),
            at_worst(settings, largest),
        ];
        reasons.extend(with_more(worth, traffic));
        let [none, .., both] = outcomes;
        if none.calls() < FEW {
            reasons.push(format!(
                "{} are too few to decide by.",
                counted(none.calls() as usize, "request")
            ));
        }
        if none.queued > 0 {
            let longest = Span(Duration::from_nanos(none.waits.max()));
            reasons.push(format!(
                "There were not threads enough: {} without help, {} with both, found none free, and \
                 waited up to {longest}. Waits, and what overlaps, are the queue's more than the \
                 cache's; see what --threads does.",
                counted(none.queued as usize, "call"),
                count(both.queued),
            ));
        }
        Verdict { advice, headline: advice.headline().to_string(), reasons }
    }
}

impl Advice {
    pub(crate) fn headline(self) -> &'static str {
        match self {
            Advice::Neither => {
                "neither changes much here. Coalescing costs nothing; leave out the lease."
            }
            Advice::Coalescing => "coalescing is worth it, a shared tier with a lease is not.",
            Advice::SharedValues => {
                "a shared tier is worth it for the values it shares; its lease alone would not be."
            }
            Advice::Both => "coalescing and a shared tier with a lease: both are worth it.",
        }
    }
}

impl Worth {
    fn coalescing(&self) -> String {
        let all = counted(self.none as usize, "load");
        match self.by_coalescing {
            0 => format!(
                "Coalescing removes none of {all}: no two callers of an instance wanted a key while \
                 it was being loaded. It costs a mutex, and is there for the day on which they do."
            ),
            removed => format!(
                "Coalescing removes {} of {all} ({}), and costs a mutex.",
                count(removed),
                percent(removed, self.none)
            ),
        }
    }

    fn tier(&self, settings: &Settings) -> String {
        let remain = counted((self.none - self.by_coalescing) as usize, "load");
        let cost = format!(
            "{} × {} = {}",
            counted(self.commands as usize, "command"),
            Span(settings.round_trip),
            span(self.tier_costs)
        );
        let Some(above) = self.tier_pays_above else {
            return format!(
                "A shared tier with its lease removes none of the {remain} that are left, and would \
                 cost {cost} of waiting."
            );
        };
        let removed = self.by_tier;
        let worth = match self.tier_saves > self.tier_costs {
            true => "Not worth it for loads below",
            false => "That is not worth it: it would be for loads above",
        };
        format!(
            "A shared tier with its lease removes another {} of the {remain} that are left ({}): {} \
             because another instance had loaded the value, {} because another was just loading it. \
             It saves {} of loading and costs {cost} of waiting. {worth} {}.",
            count(removed),
            percent(removed, self.none - self.by_coalescing),
            count(removed - self.by_lease),
            count(self.by_lease),
            span(self.tier_saves),
            span(above),
        )
    }

    fn lease(&self, settings: &Settings) -> String {
        let claims = counted(self.claims as usize, "claim");
        let alone = match self.claims_alone > self.claims {
            true => format!(" (without coalescing: {})", count(self.claims_alone)),
            false => String::new(),
        };
        let Some(above) = self.lease_pays_above else {
            return format!(
                "The lease by itself prevents no load at all in {claims}: no two instances loaded a \
                 key at once. For this log it is not worth its round trip."
            );
        };
        let each = self.by_lease as f64 / self.claims as f64;
        let (worth, below) = match self.lease_saves > self.lease_costs {
            true => ("It is worth its round trip; not so for loads below", span(above)),
            false => ("It is not worth its round trip; that takes loads above", span(above)),
        };
        let guess = match settings.load_from {
            LoadFrom::Default => ", which is a guess: the log does not say",
            LoadFrom::Arguments | LoadFrom::Log => "",
        };
        format!(
            "The lease by itself prevents {} in {claims}{alone}: {} for each. A claim costs {}, a \
             load {}{guess}. {worth} {below}.",
            counted(self.by_lease as usize, "load"),
            significant(each),
            Span(settings.round_trip),
            Span(settings.load),
        )
    }
}

/// The arithmetic of a herd of all threads, and the largest one there was.
fn at_worst(settings: &Settings, (size, key, at): &(u64, String, u64)) -> String {
    let (instances, threads) = (u64::from(settings.instances), settings.threads as u64);
    let largest = match size {
        0 | 1 => "Here no key was loaded twice at once".to_string(),
        size => format!(
            "The largest herd here was {} of {key} at once, {} after the start",
            counted(*size as usize, "load"),
            Span(Duration::from_nanos(*at)),
        ),
    };
    format!(
        "At worst all threads want one cold key at once: {} instances × {} threads = {} loads, of \
         which coalescing leaves {}, and a lease 1. {largest}.",
        count(instances),
        count(threads),
        count(instances.saturating_mul(threads)),
        count(instances),
    )
}

/// What changes with more traffic than there is.
fn with_more(worth: &Worth, traffic: &[Traffic]) -> Option<String> {
    let most = traffic.last()?.times;
    let first = |matters: fn(&Worth) -> bool| {
        (!matters(worth)).then(|| traffic.iter().find(|traffic| matters(&traffic.worth)))
    };
    let tell = |what: &str, does: &str, found: Option<Option<&Traffic>>| {
        found.map(|found| match found {
            Some(traffic) => format!("{what} {does} at × {}", count(traffic.times.into())),
            None => format!("{what} {does}: not even at × {}", count(most.into())),
        })
    };
    let told = [
        tell("coalescing", "removes 1 % of the loads", first(Worth::coalescing_matters)),
        tell("a shared tier", "pays", first(|worth| worth.advice() >= Advice::SharedValues)),
        tell("the lease by itself", "pays", first(|worth| worth.lease_saves > worth.lease_costs)),
    ];
    let told: Vec<String> = told.into_iter().flatten().collect();
    (!told.is_empty()).then(|| {
        format!("With more traffic, where × 10, 100 and 1,000 were tried: {}.", told.join("; "))
    })
}

/// A part of a whole in percent.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    match 100.0 * part as f64 / whole.max(1) as f64 {
        0.0 => "0 %".into(),
        ..0.1 => "< 0.1 %".into(),
        share if share < 10.0 => format!("{share:.1} %"),
        share => format!("{share:.0} %"),
    }
}

fn pays_above(load: Option<u128>) -> String {
    load.map_or("never".into(), |load| span(load).to_string())
}

fn span(nanos: u128) -> Span {
    Span(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
}

/// To two digits that say something.
fn significant(number: f64) -> String {
    match number {
        0.0995.. => format!("{number:.2}"),
        0.00995.. => format!("{number:.3}"),
        _ => format!("{number:.4}"),
    }
}

fn millis<S: serde::Serializer>(nanos: &u128, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(*nanos as f64 / 1e6)
}

fn some_millis<S: serde::Serializer>(
    nanos: &Option<u128>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match nanos {
        Some(nanos) => millis(nanos, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use crate::schedule::Arrival;
    use crate::simulation::{self, Fleet, STRATEGIES};

    use super::*;

    const MILLI: u64 = 1_000_000;

    /// A storm of all threads of a fleet on each of so many keys, one a second; what is kept is
    /// kept for a tenth of one.
    fn storms(instances: u16, threads: usize, load: u64, keys: u32) -> [Outcome; 4] {
        let all = u32::from(instances) * threads as u32;
        let arrivals = (0..keys * all).map(|call| Arrival {
            at: u64::from(call / all) * 1_000 * MILLI,
            key: call / all,
            instance: (call % u32::from(instances)) as u16,
        });
        let arrivals: Vec<Arrival> = arrivals.collect();
        let fleet = Fleet {
            instances: instances.into(),
            threads,
            ttl: 100 * MILLI,
            round_trip: MILLI,
            loads: vec![load; keys as usize],
            pool: None,
            speed_up: 1.0,
        };
        STRATEGIES.map(|layers| simulation::run(layers, &fleet, &arrivals, |_| ()))
    }

    #[test]
    fn coalescing_removes_a_factor_of_threads_and_the_lease_one_of_instances() {
        let worth = Worth::new(&storms(8, 50, 40 * MILLI, 10), MILLI);
        assert_eq!((worth.none, worth.by_coalescing, worth.by_tier), (4_000, 3_920, 70));
        assert_eq!((worth.by_lease, worth.left, worth.claims), (70, 10, 80));
        assert_eq!(worth.claims_alone, 4_000);
        // A look, a claim, and a commit or a look again.
        assert_eq!((worth.commands, worth.tier_costs), (240, 240 * u128::from(MILLI)));
        assert_eq!(worth.tier_saves, 70 * 40 * u128::from(MILLI));
        assert_eq!(worth.lease_pays_above, Some(80 * u128::from(MILLI) / 70));
        assert_eq!(worth.advice(), Advice::Both);
    }

    #[test]
    fn a_lease_is_not_worth_its_round_trip_for_loads_as_short_as_that() {
        let worth = Worth::new(&storms(8, 50, MILLI, 10), MILLI);
        assert_eq!(worth.advice(), Advice::Coalescing);
        let single = Worth::new(&storms(1, 50, 40 * MILLI, 10), MILLI);
        assert_eq!((single.by_tier, single.lease_pays_above), (0, None));
        assert_eq!(single.advice(), Advice::Coalescing);
    }

    #[test]
    fn where_nothing_is_asked_for_twice_no_layer_is_worth_anything() {
        let worth = Worth::new(&storms(1, 1, 40 * MILLI, 10), MILLI);
        assert_eq!((worth.by_coalescing, worth.by_tier), (0, 0));
        assert_eq!(worth.advice(), Advice::Neither);
        assert!(worth.coalescing().contains("removes none of 10 loads"));
    }

    #[test]
    fn a_share_is_told_in_as_many_digits_as_say_something() {
        let shares = [(0, 7), (1, 10_000), (1, 200), (1, 3), (5, 5), (0, 0)];
        let told = shares.map(|(part, whole)| percent(part, whole));
        assert_eq!(told, ["0 %", "< 0.1 %", "0.5 %", "33 %", "100 %", "0 %"]);
    }
}
