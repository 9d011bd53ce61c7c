//! How it is, for Prometheus: the text format, version 0.0.4.
//!
//! By hand, as there is little to it: names, labels, numbers. With the feature `metrics` the library
//! tells the same to whatever recorder is installed; then this file is not needed.

use std::fmt::{Display, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;

use onefill::Histogram;

use crate::reply::Reply;
use crate::routes::App;

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Where buckets end, in microseconds. The library has one for each power of two, up to days; what
/// is below a quarter of a millisecond or above half a minute need not be told apart here.
const BUCKETS: [u64; 9] =
    [1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 25];

pub(crate) fn reply(app: &App) -> Reply {
    Reply::new(200, CONTENT_TYPE, render(app))
}

fn render(app: &App) -> String {
    let mut page = Page::default();
    let caches = app.caches.stats();

    page.family("onefill_calls_total", "counter", "Calls of a cache, by how they ended.");
    for (cache, stats) in &caches {
        for (end, count) in stats.ends() {
            page.sample("onefill_calls_total", &[("cache", cache), ("end", end)], count);
        }
    }
    page.family("onefill_events_total", "counter", "What a cache did besides.");
    for (cache, stats) in &caches {
        for (event, count) in stats.events() {
            page.sample("onefill_events_total", &[("cache", cache), ("event", event)], count);
        }
    }
    page.family("onefill_now", "gauge", "How things stand in a cache.");
    for (cache, stats) in &caches {
        for (what, value) in stats.gauges.counts() {
            page.sample("onefill_now", &[("cache", cache), ("what", what)], value);
        }
    }
    let name = "onefill_oldest_flight_seconds";
    page.family(name, "gauge", "For how long the oldest load has been running.");
    for (cache, stats) in &caches {
        page.sample(name, &[("cache", cache)], stats.gauges.oldest_flight.as_secs_f64());
    }
    page.family("onefill_load_seconds", "histogram", "How long loaders took.");
    for (cache, stats) in &caches {
        page.histogram("onefill_load_seconds", cache, &stats.load_times);
    }
    let name = "onefill_call_seconds";
    page.family(
        name,
        "histogram",
        "How long calls took that this process's memory did not answer.",
    );
    for (cache, stats) in &caches {
        page.histogram(name, cache, &stats.call_times);
    }

    if let Some(fleet) = &app.caches.fleet {
        let health = fleet.health();
        page.family("onefill_fleet_hears", "gauge", "Whether other processes' notices come.");
        page.sample("onefill_fleet_hears", &[], u8::from(health.hears));
        let name = "onefill_fleet_left_alone";
        page.family(name, "gauge", "Whether the shared tier is left alone after trouble.");
        page.sample(name, &[("access", "reads")], u8::from(health.reads_open));
        page.sample(name, &[("access", "writes")], u8::from(health.writes_open));
        let name = "onefill_fleet_left_alone_total";
        page.family(name, "counter", "How many times that began.");
        page.sample(name, &[], health.opened);
        let name = "onefill_fleet_troubles_total";
        page.family(name, "counter", "Calls of the shared tier that came to nothing.");
        for (kind, count) in health.troubles.counts() {
            page.sample(name, &[("kind", kind)], count);
        }
        page.family("onefill_fleet_leases", "gauge", "Leases held by this process.");
        page.sample("onefill_fleet_leases", &[], health.leases);
    }

    let queries = &app.database.queries;
    page.family("server_queries_total", "counter", "Queries of the database.");
    for (query, count) in
        [("product", &queries.product), ("report", &queries.report), ("write", &queries.write)]
    {
        let count = count.load(Ordering::Relaxed);
        page.sample("server_queries_total", &[("query", query)], count);
    }
    page.family("server_responses_total", "counter", "Requests that were answered.");
    for ((route, status), count) in app.answered() {
        let status = status.to_string();
        let labels = [("route", route), ("status", &status)];
        page.sample("server_responses_total", &labels, count);
    }
    page.family("server_in_flight", "gauge", "Requests being worked on, this one among them.");
    page.sample("server_in_flight", &[], app.in_flight.load(Ordering::Relaxed));
    page.0
}

/// Lines of the text format.
#[derive(Default)]
struct Page(String);

impl Page {
    /// What the samples that follow are. All those of a family follow each other.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<_> = labels
            .iter()
            .map(|(name, value)| {
                let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
                format!("{name}=\"{value}\"")
            })
            .collect();
        match labels.is_empty() {
            true => self.line(format_args!("{name} {value}")),
            false => self.line(format_args!("{name}{{{}}} {value}", labels.join(","))),
        }
    }

    /// Buckets as Prometheus counts them: each includes those before it, and the last is all.
    fn histogram(&mut self, name: &str, cache: &str, times: &Histogram) {
        let bucket = format!("{name}_bucket");
        for end in BUCKETS.map(Duration::from_micros) {
            let within = times.buckets().filter(|(upto, _)| *upto <= end).map(|(_, count)| count);
            let label = end.as_secs_f64().to_string();
            self.sample(&bucket, &[("cache", cache), ("le", &label)], within.sum::<u64>());
        }
        self.sample(&bucket, &[("cache", cache), ("le", "+Inf")], times.count());
        self.sample(&format!("{name}_sum"), &[("cache", cache)], times.total().as_secs_f64());
        self.sample(&format!("{name}_count"), &[("cache", cache)], times.count());
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a string takes all that is written to it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_break_a_line_is_escaped() {
        let mut page = Page::default();
        page.family("a", "gauge", "one\\two\nthree \"four\"");
        page.sample("a", &[("b", "\\ \" \n é")], 1.5);
        page.sample("a", &[], 2);
        assert_eq!(
            page.0,
            "# HELP a one\\\\two\\nthree \"four\"\n# TYPE a gauge\na{b=\"\\\\ \\\" \\n é\"} 1.5\na 2\n"
        );
    }

    #[test]
    fn a_histogram_adds_up() {
        let cache = onefill::Cache::<u8, u8, ()>::builder("c")
            .ttl(Duration::from_secs(1))
            .loader(|load: &onefill::Load<'_, u8, u8>| {
                std::thread::sleep(Duration::from_millis(u64::from(*load.key())));
                Ok(1)
            })
            .build()
            .unwrap();
        for key in [0, 0, 20] {
            assert!(cache.get(&key).is_ok());
        }
        let mut page = Page::default();
        page.histogram("t", "c", &cache.stats().load_times);
        let lines: Vec<&str> = page.0.lines().collect();
        let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
        let buckets: Vec<f64> = lines[..10].iter().map(|line| value(line)).collect();
        assert!(buckets.is_sorted(), "{}", page.0);
        assert!(lines[9].starts_with("t_bucket{cache=\"c\",le=\"+Inf\"} 2"), "{}", page.0);
        assert!(lines[10].starts_with("t_sum{cache=\"c\"} ") && value(lines[10]) >= 0.02);
        assert_eq!(lines[11], "t_count{cache=\"c\"} 2");
        assert!(lines[0].starts_with("t_bucket{cache=\"c\",le=\"0.000256\"} "), "{}", page.0);
    }
}
