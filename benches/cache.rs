//! How fast and how big a [`Cache`] is, as ratios to its peers in the same run.
//!
//! The peers are moka (`sync`), with a TTL like ours, and quick_cache (`sync`), which has none. All
//! have `u64` keys and values and whatever hasher they come with.
//!
//! - **A hit**: 1,024 keys that are all there; from one thread, and from two at the same time. Ours
//!   comes with an expiry, a source, an age and a count; quick_cache's with nothing.
//! - **A real day**: the database objects that a shop's pages asked for, 5,000,000 requests for
//!   76,349 objects, by 8 threads, with room for 10,000 entries, a TTL of 60 s and a loader that
//!   takes a microsecond. Each thread takes the next 1,000 requests that nobody has taken yet. A
//!   round is a twentieth of the day, and the day is what the hit ratio is of.
//! - **An entry**: what it takes beyond what it takes in quick_cache. Entries are in a slab that
//!   grows by doubling, so there are as many as fill one to the brim.
//!
//! `cargo bench --bench cache` measures everything, `cargo bench --bench cache -- hit` what has a
//! ratio of such a name. How is told in [`support`]. The trace is part of those of cache2k (Jens
//! Wilke, headissue GmbH, CC BY 4.0), and not of this project: it is looked for beside it, in
//! `../shared/traces`, or in the directory that the variable `TRACES` names.

mod support;

use std::convert::Infallible;
use std::fs::File;
use std::hint::{black_box, spin_loop};
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;
use onefill::{Cache, CacheBuilder, Load};

use support::{Ratio, Report, medians, ratio};

const TTL: Duration = Duration::from_secs(60);

/// Room for more than the warm keys, and for an eighth of the day's objects.
const CAPACITY: usize = 10_000;

/// Something that keeps what it loads.
trait Keeps: Sync {
    fn get(&self, key: u64) -> u64;
}

struct OneFill(Cache<u64, u64, Infallible>);

impl Keeps for OneFill {
    #[inline(always)]
    fn get(&self, key: u64) -> u64 {
        let answer = self.0.get(&key).expect("the loader does not fail");
        // What nobody looks at would be left out.
        black_box(answer.source());
        black_box(answer.age());
        answer.into_value().expect("nothing is absent")
    }
}

struct QuickCache<F>(quick_cache::sync::Cache<u64, u64>, F);

impl<F: Fn(u64) -> u64 + Sync> Keeps for QuickCache<F> {
    #[inline(always)]
    fn get(&self, key: u64) -> u64 {
        let Ok(value) = self.0.get_or_insert_with(&key, || Ok::<_, Infallible>(self.1(key)));
        value
    }
}

/// Nothing but a look.
struct QuickCacheBare(quick_cache::sync::Cache<u64, u64>);

impl Keeps for QuickCacheBare {
    #[inline(always)]
    fn get(&self, key: u64) -> u64 {
        self.0.get(&key).expect("all keys are there")
    }
}

struct Moka<F>(moka::sync::Cache<u64, u64>, F);

impl<F: Fn(u64) -> u64 + Sync> Keeps for Moka<F> {
    #[inline(always)]
    fn get(&self, key: u64) -> u64 {
        self.0.get_with(key, || self.1(key))
    }
}

/// The same.
struct MokaBare(moka::sync::Cache<u64, u64>);

impl Keeps for MokaBare {
    #[inline(always)]
    fn get(&self, key: u64) -> u64 {
        self.0.get(&key).expect("all keys are there")
    }
}

/// [`Keeps`] as an object. The loop over the keys is compiled for each kind, with what the benchmark
/// adds to a call, so that no call but the cache's own is counted.
trait Contender: Sync {
    fn hits(&self, first: u64);
    fn all(&self, keys: &[u32]);
}

impl<T: Keeps> Contender for T {
    fn hits(&self, first: u64) {
        for key in first..first + HITS {
            black_box(self.get(black_box(key % WARM)));
        }
    }

    fn all(&self, keys: &[u32]) {
        for &key in keys {
            black_box(self.get(key.into()));
        }
    }
}

fn onefill(loader: impl Fn(u64) -> u64 + Send + Sync + 'static) -> OneFill {
    let loader = move |load: &Load<'_, u64, u64>| Ok(loader(*load.key()));
    OneFill(built(builder().capacity(CAPACITY).loader(loader)))
}

fn builder() -> CacheBuilder<u64, u64, Infallible> {
    Cache::builder("bench").ttl(TTL)
}

fn built(builder: CacheBuilder<u64, u64, Infallible>) -> Cache<u64, u64, Infallible> {
    builder.build().expect("it has a TTL")
}

fn quick_cache() -> quick_cache::sync::Cache<u64, u64> {
    quick_cache::sync::Cache::new(CAPACITY)
}

fn moka() -> moka::sync::Cache<u64, u64> {
    moka::sync::Cache::builder().max_capacity(CAPACITY as u64).time_to_live(TTL).build()
}

fn main() {
    let report = Report::asked_for();
    let ratios = [hits_of_one(&report), hits_of_two(&report), day(&report), entry(&report)];
    report.print(ratios.into_iter().flatten());
}

fn table(names: &[&str], columns: &[&[f64]]) {
    for (row, name) in names.iter().enumerate() {
        print!("  {name:<24}");
        columns.iter().for_each(|figures| print!(" {:>9.1}", figures[row]));
        println!();
    }
    println!();
}

const WARM: u64 = 1_024;

/// Hits of each thread and round: less than a thread may run on a busy machine before another gets
/// its turn.
const HITS: u64 = 20_000;

fn hits_of_one(report: &Report) -> Vec<Ratio> {
    const QUICK_CACHE: &str = "hit_1t_vs_quick_cache_bare";
    const MOKA: &str = "hit_1t_vs_moka_ttl";
    if !report.wants(QUICK_CACHE) && !report.wants(MOKA) {
        return Vec::new();
    }
    let figures = hits::<1>(report);
    vec![ratio(QUICK_CACHE, figures[0], figures[1], 1.6), ratio(MOKA, figures[0], figures[2], 0.25)]
}

fn hits_of_two(report: &Report) -> Vec<Ratio> {
    const MOKA: &str = "hit_2t_vs_moka_ttl";
    if !report.wants(MOKA) {
        return Vec::new();
    }
    let figures = hits::<2>(report);
    vec![ratio(MOKA, figures[0], figures[2], 0.35)]
}

/// Hits from `THREADS` threads at the same time: nanoseconds per hit, of each thread.
fn hits<const THREADS: usize>(report: &Report) -> [f64; 3] {
    let ours = onefill(|key| key);
    let quick_cache = QuickCacheBare(quick_cache());
    let moka = MokaBare(moka());
    for key in 0..WARM {
        ours.get(key);
        quick_cache.0.insert(key, key);
        moka.0.insert(key, key);
    }
    moka.0.run_pending_tasks();
    let contenders: [&dyn Contender; 3] = [&ours, &quick_cache, &moka];
    let rounds = report.in_turns(1, Duration::from_secs(4), THREADS, |turn| {
        contenders[turn.contender].hits(turn.thread as u64 * WARM / THREADS as u64);
    });

    let figures = medians(&rounds).map(|turn| turn / HITS as f64);
    println!("hits, {THREADS} thread(s), {} rounds: ns per call and thread", rounds.len());
    table(&["onefill", "quick_cache", "moka, TTL"], &[&figures]);
    figures
}

const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/traces");
const TRACE: &str = "orm-busy.u32be.gz";
const THREADS: usize = 8;
/// What a thread takes at a time.
const CHUNK: usize = 1_000;
const PIECE: usize = 250_000;

fn day(report: &Report) -> Vec<Ratio> {
    const MOKA: &str = "orm_busy_time_vs_moka";
    const QUICK_CACHE: &str = "orm_busy_time_vs_quick_cache";
    const LOSS: &str = "orm_busy_hit_ratio_loss_vs_quick_cache";
    if ![MOKA, QUICK_CACHE, LOSS].iter().any(|name| report.wants(name)) {
        return Vec::new();
    }
    let keys = match trace(if report.in_earnest { u64::MAX } else { PIECE as u64 }) {
        Ok(keys) => keys,
        Err(error) => {
            println!("SKIPPED: all of orm_busy, for want of {TRACE}: {error}\n");
            return Vec::new();
        }
    };

    let loads: [&'static AtomicU64; 3] = std::array::from_fn(|_| &*Box::leak(Box::default()));
    let loader = |contender: usize| {
        let loads = loads[contender];
        move |key| {
            loads.fetch_add(1, Ordering::Relaxed);
            a_microsecond();
            key
        }
    };
    let contenders: [&dyn Contender; 3] =
        [&onefill(loader(0)), &QuickCache(quick_cache(), loader(1)), &Moka(moka(), loader(2))];
    let pieces: Vec<&[u32]> = keys.chunks_exact(PIECE).collect();
    let cursors: Vec<AtomicUsize> = (0..3 * pieces.len()).map(|_| AtomicUsize::new(0)).collect();
    let rounds = report.in_turns::<3>(pieces.len() - 1, Duration::ZERO, THREADS, |turn| {
        let piece = pieces[turn.number / contenders.len()];
        let next = || cursors[turn.number].fetch_add(1, Ordering::Relaxed);
        while let Some(chunk) = piece.chunks(CHUNK).nth(next()) {
            contenders[turn.contender].all(chunk);
        }
    });

    let asked = (pieces.len() * PIECE) as f64;
    let figures = medians(&rounds).map(|turn| turn / PIECE as f64);
    let hits = loads.map(|loads| 1.0 - loads.load(Ordering::Relaxed) as f64 / asked);
    println!("a day of {asked} requests, {THREADS} threads: ns per request, and % hits");
    table(&["onefill", "quick_cache", "moka, TTL"], &[&figures, &hits.map(|hits| 100.0 * hits)]);
    vec![
        ratio(MOKA, figures[0], figures[2], 0.33),
        ratio(QUICK_CACHE, figures[0], figures[1], 1.3),
        Ratio { name: LOSS.to_owned(), value: hits[1] - hits[0], target: 0.005 },
    ]
}

/// The keys of the trace, so many at most.
fn trace(at_most: u64) -> io::Result<Vec<u32>> {
    let traces = std::env::var_os("TRACES").unwrap_or_else(|| TRACES.into());
    let file = File::open(Path::new(&traces).join(TRACE))?;
    let mut bytes = Vec::new();
    GzDecoder::new(file).take(at_most.saturating_mul(4)).read_to_end(&mut bytes)?;
    let (keys, _) = bytes.as_chunks();
    Ok(keys.iter().map(|key| u32::from_be_bytes(*key)).collect())
}

fn a_microsecond() {
    let began = Instant::now();
    while began.elapsed() < Duration::from_micros(1) {
        spin_loop();
    }
}

/// Fills a slab to the brim.
const ENTRIES: usize = 1 << 16;

fn entry(report: &Report) -> Vec<Ratio> {
    const OVERHEAD: &str = "l1_entry_overhead_bytes";
    if !report.wants(OVERHEAD) {
        return Vec::new();
    }
    // By weight and below a million there is one shard, so one slab.
    let ours = |entries: usize| built(builder().capacity_by_weight(entries as u64, |_, _| 1));
    let theirs = |entries: usize| {
        let mut options = quick_cache::OptionsBuilder::new();
        options.shards(1).estimated_items_capacity(entries).weight_capacity(entries as u64);
        quick_cache::sync::Cache::<u64, u64>::with_options(
            options.build().expect("both capacities are set"),
            Default::default(),
            Default::default(),
            Default::default(),
        )
    };
    let brimful =
        [bytes_of_ours(ours(ENTRIES), ENTRIES), bytes_of_theirs(theirs(ENTRIES), ENTRIES)];
    // As a cache comes, its slabs are some way between two sizes.
    let usual = [
        bytes_of_ours(built(builder().capacity(CAPACITY)), CAPACITY),
        bytes_of_theirs(quick_cache(), CAPACITY),
    ];
    println!("memory: bytes per entry, in a full slab of {ENTRIES}, and in a cache of {CAPACITY}");
    table(&["onefill", "quick_cache"], &[&brimful, &usual]);
    vec![Ratio { name: OVERHEAD.to_owned(), value: brimful[0] - brimful[1], target: 48.0 }]
}

fn bytes_of_ours(cache: Cache<u64, u64, Infallible>, entries: usize) -> f64 {
    bytes_per_entry(entries, |key| cache.put(&key, key).expect("it is on no fleet"))
}

fn bytes_of_theirs(cache: quick_cache::sync::Cache<u64, u64>, entries: usize) -> f64 {
    bytes_per_entry(entries, |key| cache.insert(key, key))
}

fn bytes_per_entry(entries: usize, put: impl FnMut(u64)) -> f64 {
    let filled = allocation_counter::measure(|| (0..entries as u64).for_each(put));
    filled.bytes_current as f64 / entries as f64
}
