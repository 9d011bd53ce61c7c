//! [`Schedule`]: when each request of a log is due in its replay.

use std::time::Duration;

use fastrand::Rng;

use crate::log::Moment;

/// A request of a log.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) at: Moment,
    pub(crate) key: u32,
    /// A hash of where it came from.
    pub(crate) client: u32,
}

/// How many times as fast as the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum SpeedUp {
    Times(f64),
    /// Everything is due at once.
    Max,
}

impl SpeedUp {
    pub(crate) fn parse(text: &str) -> Result<SpeedUp, String> {
        if text == "max" {
            return Ok(SpeedUp::Max);
        }
        match text.parse() {
            Ok(0.0) => Ok(SpeedUp::Max),
            // Slow and fast enough for anything, and no time overflows.
            Ok(times) if (0.001..=1e9).contains(&times) => Ok(SpeedUp::Times(times)),
            _ => Err("a number from 0.001 to 1000000000, or max".into()),
        }
    }
}

/// A replay in order of time.
#[derive(Debug)]
pub(crate) struct Schedule {
    pub(crate) due: Vec<Due>,
    /// From the first request of the log to its last.
    pub(crate) span: Duration,
    pub(crate) pauses_cut: u64,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Due {
    /// Since the start of the replay.
    pub(crate) after: Duration,
    pub(crate) key: usize,
}

impl Schedule {
    /// Sorts the requests, and waits between two of them for `longest_pause` at most.
    pub(crate) fn new(
        mut requests: Vec<Request>,
        speed_up: SpeedUp,
        longest_pause: Duration,
    ) -> Schedule {
        spread(&mut requests, |number| {
            let step = SECOND / number as u64;
            (0..number as u64).map(|place| step * place).collect()
        });
        let nanos = |request: Option<&Request>| request.map_or(0, |request| request.at.nanos);
        let mut last = nanos(requests.first());
        let span = Duration::from_nanos(nanos(requests.last()) - last);
        let (mut after, mut pauses_cut) = (Duration::ZERO, 0);
        let due = requests.iter().map(|request| {
            let pause = Duration::from_nanos(request.at.nanos - last);
            last = request.at.nanos;
            if let SpeedUp::Times(times) = speed_up {
                let pause = pause.div_f64(times);
                after += pause.min(longest_pause);
                pauses_cut += u64::from(pause > longest_pause);
            }
            Due { after, key: request.key as usize }
        });
        Schedule { due: due.collect(), span, pauses_cut }
    }
}

/// A request of a log whose time is kept by a virtual clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Arrival {
    /// Nanoseconds since the first one.
    pub(crate) at: u64,
    pub(crate) key: u32,
    pub(crate) instance: u16,
}

/// The requests in order of time, each with the instance that `route` sends it to, given its place
/// in that order. Whole seconds are filled at random: evenly spaced, two requests of a second would
/// never come close to each other, and those that do are what all this is about.
pub(crate) fn arrivals(
    mut requests: Vec<Request>,
    random: &mut Rng,
    mut route: impl FnMut(usize, &Request) -> u16,
) -> Vec<Arrival> {
    spread(&mut requests, |number| {
        let mut places: Vec<u64> = (0..number).map(|_| random.u64(..SECOND)).collect();
        places.sort_unstable();
        places
    });
    let first = requests.first().map_or(0, |request| request.at.nanos);
    let arrivals = requests.iter().enumerate().map(|(place, request)| Arrival {
        at: request.at.nanos - first,
        key: request.key,
        instance: route(place, request),
    });
    arrivals.collect()
}

const SECOND: u64 = 1_000_000_000;

/// Sorts by time, and spreads the requests of a second over it, to the places that `places` tells
/// in ascending order, if the log does not say when within the second they came: all at its first
/// moment would be a herd the log knows nothing of.
fn spread(requests: &mut [Request], mut places: impl FnMut(usize) -> Vec<u64>) {
    requests.sort_by_key(|request| request.at.nanos);
    for second in requests.chunk_by_mut(|a, b| a.at.nanos == b.at.nanos) {
        let whole = second.iter_mut().filter(|request| request.at.whole_second);
        let mut whole: Vec<_> = whole.collect();
        if whole.is_empty() {
            continue;
        }
        let places = places(whole.len());
        for (place, request) in places.into_iter().zip(whole.iter_mut()) {
            request.at.nanos = request.at.nanos.saturating_add(place);
        }
    }
    // Between them there may be requests whose times are known better.
    requests.sort_by_key(|request| request.at.nanos);
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: Duration = Duration::MAX;

    fn requests(whole_second: bool, millis: &[u64]) -> Vec<Request> {
        let requests = millis.iter().zip(0..).map(|(millis, key)| Request {
            at: Moment { nanos: millis * 1_000_000, whole_second },
            key,
            client: 0,
        });
        requests.collect()
    }

    fn due(schedule: &Schedule) -> Vec<(u128, usize)> {
        schedule.due.iter().map(|due| (due.after.as_millis(), due.key)).collect()
    }

    #[test]
    fn requests_of_one_second_are_spread_over_it() {
        let log = requests(true, &[5000, 5000, 5000, 5000, 6000]);
        let schedule = Schedule::new(log, SpeedUp::Times(1.0), NEVER);
        assert_eq!(due(&schedule), [(0, 0), (250, 1), (500, 2), (750, 3), (1000, 4)]);
    }

    #[test]
    fn exact_times_stay_as_they_are() {
        let log = requests(false, &[5000, 5000, 5001]);
        let schedule = Schedule::new(log, SpeedUp::Times(1.0), NEVER);
        assert_eq!(due(&schedule), [(0, 0), (0, 1), (1, 2)]);
    }

    #[test]
    fn exact_times_find_their_place_among_spread_ones() {
        let mut log = requests(true, &[5000, 5000]);
        let at = Moment { nanos: 5_200_000_000, whole_second: false };
        log.push(Request { at, key: 9, client: 0 });
        let schedule = Schedule::new(log, SpeedUp::Times(1.0), NEVER);
        assert_eq!(due(&schedule), [(0, 0), (200, 9), (500, 1)]);
    }

    #[test]
    fn lines_out_of_order_are_sorted() {
        let schedule =
            Schedule::new(requests(false, &[3000, 1000, 2000]), SpeedUp::Times(2.0), NEVER);
        assert_eq!(due(&schedule), [(0, 1), (500, 2), (1000, 0)]);
        assert_eq!(schedule.span, Duration::from_secs(2));
    }

    #[test]
    fn long_pauses_are_cut_and_counted() {
        let log = requests(false, &[0, 1000, 3_600_000, 3_601_000]);
        let schedule = Schedule::new(log, SpeedUp::Times(10.0), Duration::from_millis(200));
        assert_eq!(due(&schedule), [(0, 0), (100, 1), (300, 2), (400, 3)]);
        assert_eq!(schedule.pauses_cut, 1);
    }

    #[test]
    fn at_full_speed_all_is_due_at_once_and_in_order() {
        let schedule = Schedule::new(requests(false, &[9000, 1000]), SpeedUp::Max, Duration::ZERO);
        assert_eq!(due(&schedule), [(0, 1), (0, 0)]);
        assert_eq!(schedule.pauses_cut, 0);
    }

    #[test]
    fn the_widest_log_at_the_slowest_speed_overflows_nothing() {
        let at = |nanos| Moment { nanos, whole_second: true };
        let ends =
            [0, u64::MAX, u64::MAX].map(|nanos| Request { at: at(nanos), key: 0, client: 0 });
        let slowest = SpeedUp::parse("0.001").unwrap();
        let schedule = Schedule::new(ends.into(), slowest, NEVER);
        assert!(std::time::Instant::now().checked_add(schedule.due[2].after).is_some());
    }

    #[test]
    fn a_second_is_filled_at_random_in_the_order_of_the_log_and_the_same_for_one_seed() {
        let fill = |seed| {
            let log = requests(true, &[6000, 5000, 5000, 5000]);
            arrivals(log, &mut Rng::with_seed(seed), |place, _| place as u16)
        };
        let filled = fill(7);
        assert_eq!(filled.iter().map(|arrival| arrival.key).collect::<Vec<_>>(), [1, 2, 3, 0]);
        assert_eq!(filled.iter().map(|arrival| arrival.instance).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(filled[0].at, 0);
        assert!(filled.is_sorted_by_key(|arrival| arrival.at) && filled[2].at < SECOND);
        assert_eq!(filled, fill(7));
        assert_ne!(filled, fill(8));
    }

    #[test]
    fn a_speed_up_is_a_number_or_max() {
        assert_eq!(SpeedUp::parse("600"), Ok(SpeedUp::Times(600.0)));
        assert_eq!(SpeedUp::parse("0.5"), Ok(SpeedUp::Times(0.5)));
        assert_eq!(SpeedUp::parse("0"), Ok(SpeedUp::Max));
        assert_eq!(SpeedUp::parse("max"), Ok(SpeedUp::Max));
        for bad in ["-1", "nan", "inf", "1e-9", "fast", ""] {
            assert!(SpeedUp::parse(bad).is_err(), "{bad:?} was taken for a speed-up");
        }
    }
}
