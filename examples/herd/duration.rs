//! Durations as people write and read them.

use std::fmt;
use std::time::Duration;

const UNITS: [(&str, f64); 6] =
    [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0)];

/// Reads a number and its unit, such as `50ms`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 =
        number.parse().map_err(|_| "a duration is a number and a unit, as in 50ms")?;
    let unit = unit.trim_start();
    match UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, seconds)) => Duration::try_from_secs_f64(number * seconds)
            .map_err(|_| "that is longer than can be counted".into()),
        // Nothing takes no time in every unit.
        None if unit.is_empty() && number == 0.0 => Ok(Duration::ZERO),
        None => Err("the unit is one of ns, us, ms, s, m".into()),
    }
}

/// Shows a duration to three digits, or, from a minute up, in its two largest units.
pub(crate) struct Span(pub(crate) Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minutes = self.0.as_secs() / 60;
        let long = match (minutes / 60 / 24, minutes / 60 % 24, minutes % 60) {
            (0, 0, 0) => return f.pad(&short(self.0)),
            (0, 0, minutes) => two(minutes, "min", self.0.as_secs() % 60, "s"),
            (0, hours, minutes) => two(hours, "h", minutes, "min"),
            (days, hours, _) => two(days, "d", hours, "h"),
        };
        f.pad(&long)
    }
}

fn two(large: u64, unit: &str, small: u64, small_unit: &str) -> String {
    match small {
        0 => format!("{large} {unit}"),
        _ => format!("{large} {unit} {small} {small_unit}"),
    }
}

fn short(span: Duration) -> String {
    let nanos = span.as_nanos() as f64;
    let (number, unit) = match nanos {
        ..999.5 => (nanos, "ns"),
        ..999.5e3 => (nanos / 1e3, "µs"),
        ..999.5e6 => (nanos / 1e6, "ms"),
        _ => (nanos / 1e9, "s"),
    };
    let digits = match number {
        _ if unit == "ns" => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    let number = format!("{number:.digits$}");
    let number = match digits {
        0 => &number,
        _ => number.trim_end_matches('0').trim_end_matches('.'),
    };
    format!("{number} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_number_and_a_unit() {
        assert_eq!(parse("50ms"), Ok(Duration::from_millis(50)));
        assert_eq!(parse("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse("500us"), Ok(Duration::from_micros(500)));
        assert_eq!(parse("500 µs"), Ok(Duration::from_micros(500)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in ["", "ms", "50", "-1s", "1.2.3s", "50 parsecs", "1e9s", "99999999999999999999s"]
        {
            assert!(parse(bad).is_err(), "{bad:?} was taken for a duration");
        }
    }

    #[test]
    fn three_digits_are_shown() {
        let shown = |nanos| Span(Duration::from_nanos(nanos)).to_string();
        assert_eq!(shown(0), "0 ns");
        assert_eq!(shown(999), "999 ns");
        assert_eq!(shown(14_230), "14.2 µs");
        assert_eq!(shown(999_600), "1 ms");
        assert_eq!(shown(50_000_000), "50 ms");
        assert_eq!(shown(100_000_000), "100 ms");
        assert_eq!(shown(1_234_000_000), "1.23 s");
        assert_eq!(shown(59_990_000_000), "60 s");
    }

    #[test]
    fn long_spans_are_shown_in_two_units() {
        let shown = |seconds| Span(Duration::from_secs(seconds)).to_string();
        assert_eq!(shown(60), "1 min");
        assert_eq!(shown(125), "2 min 5 s");
        assert_eq!(shown(7_260), "2 h 1 min");
        assert_eq!(shown(302_459), "3 d 12 h");
    }
}
