//! [`Schedule`]: when each request of a log is due in its replay.

use std::time::Duration;

use crate::log::Moment;

/// A request of a log.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) at: Moment,
    pub(crate) key: usize,
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
        spread(&mut requests);
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
            Due { after, key: request.key }
        });
        Schedule { due: due.collect(), span, pauses_cut }
    }
}

/// Sorts by time, and spreads the requests of a second evenly over it if the log does not say when
/// within the second they came: all at its first moment would be a herd the log knows nothing of.
fn spread(requests: &mut [Request]) {
    requests.sort_by_key(|request| request.at.nanos);
    for second in requests.chunk_by_mut(|a, b| a.at.nanos == b.at.nanos) {
        let whole = second.iter_mut().filter(|request| request.at.whole_second);
        let mut whole: Vec<_> = whole.collect();
        let step = 1_000_000_000 / whole.len().max(1) as u64;
        for (place, request) in whole.iter_mut().enumerate() {
            request.at.nanos = request.at.nanos.saturating_add(step * place as u64);
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
        let requests = millis.iter().enumerate().map(|(key, millis)| Request {
            at: Moment { nanos: millis * 1_000_000, whole_second },
            key,
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
        log.push(Request { at: Moment { nanos: 5_200_000_000, whole_second: false }, key: 9 });
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
        let ends = [0, u64::MAX, u64::MAX].map(|nanos| Request { at: at(nanos), key: 0 });
        let slowest = SpeedUp::parse("0.001").unwrap();
        let schedule = Schedule::new(ends.into(), slowest, NEVER);
        assert!(std::time::Instant::now().checked_add(schedule.due[2].after).is_some());
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
