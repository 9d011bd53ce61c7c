//! What is told to the outside: one line for each change of state, with the feature `tracing`, and
//! the counters, with the feature `metrics`. Without them nothing is told and nothing is paid.

/// A tier is left alone from now on, or is asked again.
pub(crate) fn breaker_changed(kind: &str, open: bool, trouble: Option<&str>) {
    #[cfg(feature = "tracing")]
    match open {
        true => tracing::warn!(kind, trouble, "shared tier in trouble, left alone for a while"),
        false => tracing::info!(kind, "shared tier answers again"),
    }
    #[cfg(not(feature = "tracing"))]
    let _ = (kind, open, trouble);
}

/// Notices of other processes come from now on, or do not.
pub(crate) fn hearing_changed(hears: bool) {
    #[cfg(feature = "tracing")]
    match hears {
        true => tracing::info!("notices of other processes come"),
        false => {
            tracing::warn!("notices of other processes do not come, local copies are in doubt")
        }
    }
    #[cfg(not(feature = "tracing"))]
    let _ = hears;
}

/// Why no notices come.
#[cfg(any(feature = "r2d2_redis", feature = "redis"))]
pub(crate) fn deaf(why: &str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(why, "cannot listen to other processes, trying again");
    #[cfg(not(feature = "tracing"))]
    let _ = why;
}

/// Something came over the channel of notices that is none.
#[cfg(any(feature = "r2d2_redis", feature = "redis"))]
pub(crate) fn strange_notice(len: usize) {
    #[cfg(feature = "tracing")]
    tracing::debug!(len, "a message that is no notice");
    #[cfg(not(feature = "tracing"))]
    let _ = len;
}

#[cfg(feature = "metrics")]
pub(crate) use self::publishing::publish;

#[cfg(feature = "metrics")]
mod publishing {
    use metrics::{counter, gauge};

    use crate::stats::{Histogram, Stats};

    /// Hands a snapshot to the installed recorder.
    pub(crate) fn publish(cache: &str, stats: &Stats) {
        for (end, count) in stats.ends() {
            counter!("onefill_calls_total", "cache" => cache.to_string(), "end" => end)
                .absolute(count);
        }
        for (event, count) in stats.events() {
            counter!("onefill_events_total", "cache" => cache.to_string(), "event" => event)
                .absolute(count);
        }
        for (name, value) in stats.gauges.counts() {
            gauge!("onefill_now", "cache" => cache.to_string(), "what" => name).set(value as f64);
        }
        gauge!("onefill_oldest_flight_seconds", "cache" => cache.to_string())
            .set(stats.gauges.oldest_flight.as_secs_f64());
        quantiles("onefill_load_seconds", cache, &stats.load_times);
        quantiles("onefill_call_seconds", cache, &stats.call_times);
    }

    fn quantiles(name: &'static str, cache: &str, times: &Histogram) {
        for (label, q) in [("0.5", 0.5), ("0.99", 0.99), ("1", 1.0)] {
            gauge!(name, "cache" => cache.to_string(), "quantile" => label)
                .set(times.quantile(q).as_secs_f64());
        }
    }
}
