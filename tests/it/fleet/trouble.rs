//! Trouble with the shared tier is neither an outage nor a stampede.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use onefill::fleet::memory::{Memory, Moment, Op};
use onefill::fleet::{Codec, Fleet, codec};
use onefill::{Cache, CodecError, Fill, Refusal, Source, TierError};

use super::support::*;

fn away() -> TierError {
    TierError::Unreachable("connection refused".into())
}

fn full() -> TierError {
    TierError::Refused { class: Refusal::OutOfMemory, text: "OOM command not allowed".into() }
}

/// One of each kind of trouble.
fn troubles() -> Vec<TierError> {
    let refused = |class| TierError::Refused { class, text: "no".into() };
    vec![
        away(),
        TierError::TooSlow { waited: ms(100) },
        TierError::Garbled("half an answer".into()),
        full(),
        refused(Refusal::Loading),
        refused(Refusal::WrongType),
    ]
}

#[test]
fn trouble_at_any_step_costs_nobody_the_value_and_no_second_load() {
    within(|| {
        for op in [Op::Epoch, Op::Lookup, Op::Acquire, Op::Commit] {
            for moment in [Moment::Request, Moment::Reply] {
                for trouble in troubles() {
                    let what = format!("{op:?} {moment:?} {trouble:?}");
                    let (memory, stage) = (Memory::new(), Stage::new());
                    let one = instance(&memory, stage.loader());
                    one.link.fail(op, moment, trouble);
                    thread::scope(|s| {
                        let herd = [0; 4].map(|_| s.spawn(|| one.value(7)));
                        stage.begun();
                        one.until_following(3);
                        stage.end_with("tea");
                        for caller in herd {
                            assert_eq!(caller.join().unwrap(), "tea", "{what}");
                        }
                    });
                    assert_eq!(stage.loads(), 1, "{what}");
                    assert_eq!(one.get(7).unwrap().source(), Source::Local, "{what}");
                    let stats = one.cache.stats();
                    let degraded = (stats.degraded, stats.fleet_writes_failed);
                    assert_eq!(degraded, if op == Op::Commit { (0, 1) } else { (1, 0) }, "{what}");
                    assert_eq!(stats.gauges.absences, 0, "{what}");
                    assert!(one.fleet.health().last_trouble.is_some(), "{what}");
                }
            }
        }
    });
}

#[test]
fn a_lease_that_could_not_be_given_back_costs_its_time_and_nothing_else() {
    within(|| {
        for moment in [Moment::Request, Moment::Reply] {
            let memory = Memory::manual();
            let one = instance(&memory, |_| Err("no"));
            one.link.fail(Op::Release, moment, away());
            assert!(one.get(7).unwrap_err().is_failed());
            assert_eq!(one.fleet.health().leases, 0);
            memory.advance(ms(10_000));
            assert_eq!(memory.leases(), 0);
        }
    });
}

#[test]
fn a_claim_whose_answer_was_lost_leaves_no_lease_behind() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let [one, two] = [0; 2].map(|_| instance(&memory, meter.numbered()));
        let lost = TierError::Garbled("half an answer".into());
        one.link.fail_next(1, Op::Acquire, Moment::Reply, lost);
        assert_eq!(one.get(7).unwrap().source(), Source::Alone);
        assert_eq!(memory.leases(), 0);
        assert_eq!(two.get(7).unwrap().source(), Source::Loaded);
        assert_eq!(two.count(Op::Acquire), 1);
    });
}

#[test]
fn a_commit_that_failed_lets_the_others_load_at_once() {
    within(|| {
        for trouble in [full(), away()] {
            let (memory, stage) = (Memory::new(), Stage::new());
            let [one, two] = [0; 2].map(|_| instance(&memory, stage.loader()));
            one.link.fail(Op::Commit, Moment::Request, trouble);
            thread::scope(|s| {
                let fails = s.spawn(|| one.value(7));
                stage.begun();
                let waits = s.spawn(|| two.get(7).unwrap());
                two.until_claimed(1);
                stage.end_with("tea");
                assert_eq!(fails.join().unwrap(), "tea");
                stage.begun();
                stage.end_with("tea");
                assert_eq!(waits.join().unwrap().source(), Source::Alone);
            });
            assert_eq!((memory.values(), memory.leases()), (0, 0));
            assert_eq!(two.cache.stats().loaded_alone, 1);
        }
    });
}

#[test]
fn a_commit_whose_answer_was_lost_has_been_made() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let [one, two] = [0; 2].map(|_| instance(&memory, meter.numbered()));
        one.link.fail_next(1, Op::Commit, Moment::Reply, away());
        assert_eq!(one.value(7), "1");
        assert_eq!(one.cache.stats().fleet_writes_failed, 1);
        assert_eq!((memory.values(), memory.leases()), (1, 0));
        assert_eq!(two.get(7).unwrap().source(), Source::Fleet);
    });
}

#[test]
fn after_three_troubles_the_tier_is_left_alone_for_a_while_and_then_tried_again() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let one = instance(&memory, meter.numbered());
        one.value(1_000); // the epoch is known
        let asked = || Op::ALL.iter().map(|op| one.count(*op)).sum::<u64>();
        let before = asked();
        let opened = Instant::now();
        one.link.fail(Op::Lookup, Moment::Request, away());
        for id in 0..20 {
            assert_eq!(one.get(id).unwrap().source(), Source::Alone);
        }
        // On a machine that is very slow the first pause may be over.
        if opened.elapsed() < ms(200) {
            assert_eq!(asked() - before, 3);
        }
        let health = one.fleet.health();
        assert!(health.reads_open && health.opened >= 1, "{health:?}");
        assert!(health.last_trouble.unwrap().contains("connection refused"));
        assert!(one.cache.invalidate(&1).is_err());
        assert_eq!(one.count(Op::Invalidate), 0);

        one.link.heal();
        until("the tier is asked again", || {
            one.value(2_000 + meter.loads() as u64);
            !one.fleet.health().reads_open
        });
        let (id, loads) = (50_000, meter.loads());
        assert_eq!(one.get(id).unwrap().source(), Source::Loaded);
        assert_eq!(meter.loads(), loads + 1);
        assert!(memory.stored(&key(id)).is_some());
    });
}

#[test]
fn a_tier_that_takes_no_writes_is_read_still() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let [one, two] = [0; 2].map(|_| instance(&memory, meter.numbered()));
        (0..20).for_each(|id| drop(two.value(id)));
        assert_eq!(meter.loads(), 20);
        for op in [Op::Acquire, Op::Commit, Op::Put] {
            one.link.fail(op, Moment::Request, full());
        }
        for id in 0..10 {
            assert_eq!(one.get(100 + id).unwrap().source(), Source::Alone);
            assert_eq!(one.get(id).unwrap().source(), Source::Fleet);
        }
        let health = one.fleet.health();
        assert!(health.writes_open && !health.reads_open, "{health:?}");
        assert!(one.count(Op::Acquire) < 10);
        // What makes room goes through.
        one.cache.invalidate(&3).unwrap();
        assert_eq!(memory.stored(&key(3)), None);
        assert!(one.fleet.health().writes_open);

        one.link.heal();
        until("writes are tried again", || {
            one.value(200 + meter.loads() as u64);
            !one.fleet.health().writes_open
        });
        one.value(50_000);
        assert!(memory.stored(&key(50_000)).is_some());
    });
}

#[test]
fn a_lease_is_given_back_even_to_a_tier_that_takes_no_more_values() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let one = instance(&memory, stage.loader());
        one.link.fail(Op::Put, Moment::Request, full());
        thread::scope(|s| {
            let loads = s.spawn(|| one.value(7));
            stage.begun();
            for id in 100..103 {
                assert_eq!(one.cache.put(&id, "x".to_string()), Err(full()));
            }
            assert!(one.fleet.health().writes_open);
            stage.end_with("tea");
            assert_eq!(loads.join().unwrap(), "tea");
        });
        // The one is left alone, the other is not.
        assert_eq!((one.count(Op::Commit), one.count(Op::Release)), (0, 1));
        assert_eq!(memory.leases(), 0);
    });
}

#[test]
fn writes_that_hang_are_left_alone_though_reads_go_well() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let [one, two] =
            [0; 2].map(|_| start(&memory, |f| f.budget(ms(50)), |c| c.loader(meter.numbered())));
        (0..10).for_each(|id| drop(two.value(id)));
        let hangs = one.link.hold(Op::Acquire, Moment::Request);
        for id in 0..10 {
            assert_eq!(one.get(100 + id).unwrap().source(), Source::Alone);
            assert_eq!(one.get(id).unwrap().source(), Source::Fleet);
        }
        assert!(hangs.arrived() < 8, "{}", hangs.arrived());
        assert!(one.fleet.health().opened >= 1);
    });
}

#[test]
fn callers_in_a_hurry_say_nothing_about_the_tier() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let one = instance(&memory, meter.numbered());
        one.value(1_000);
        for id in 0..10 {
            let _ = one.cache.with().timeout(Duration::ZERO).get(&id);
        }
        let health = one.fleet.health();
        assert!(!health.reads_open && health.opened == 0, "{health:?}");
        assert_eq!(one.get(2_000).unwrap().source(), Source::Loaded);
    });
}

#[test]
fn a_tier_that_does_not_answer_costs_a_call_its_budget_and_no_more() {
    within(|| {
        let budget = ms(150);
        for op in [Op::Epoch, Op::Lookup, Op::Acquire, Op::Commit] {
            for moment in [Moment::Request, Moment::Reply] {
                let (memory, meter) = (Memory::new(), Meter::default());
                let settings = |c: Builder| c.loader(meter.numbered());
                let one = start(&memory, |f| f.budget(budget), settings);
                let hangs = one.link.hold(op, moment);
                let also = one.link.hold(Op::Release, Moment::Request);
                let started = Instant::now();
                assert_eq!(one.value(7), "1");
                let took = started.elapsed();
                assert!(took >= budget, "{op:?} {moment:?}: {took:?}");
                assert!(took < 2 * budget + NOISE, "{op:?} {moment:?}: {took:?}");
                assert_eq!(hangs.arrived(), 1);
                drop(also);
            }
        }
    });
}

#[test]
fn a_commit_and_a_release_that_hang_share_one_budget() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let budget = ms(1_500);
        let one = start(&memory, |f| f.budget(budget), |c| c.loader(meter.numbered()));
        let _commit = one.link.hold(Op::Commit, Moment::Request);
        let _release = one.link.hold(Op::Release, Moment::Request);
        let started = Instant::now();
        assert_eq!(one.value(7), "1");
        let took = started.elapsed();
        assert!(took >= budget && took < 2 * budget, "{took:?}");
    });
}

#[test]
fn a_call_leaves_time_for_its_load_whatever_the_budget() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let one = start(&memory, |f| f.budget(ms(60_000)), |c| c.loader(meter.numbered()));
        let _hangs = one.link.hold(Op::Lookup, Moment::Request);
        let started = Instant::now();
        let answer = one.cache.with().timeout(ms(2_000)).get(&7).unwrap();
        assert_eq!(answer.source(), Source::Alone);
        assert!(started.elapsed() < ms(2_000), "{:?}", started.elapsed());
    });
}

#[test]
fn an_outage_does_not_make_each_call_wait() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let one = start(&memory, |f| f.budget(ms(100)), |c| c.loader(meter.numbered()));
        one.value(1_000);
        let hangs = one.link.hold(Op::Lookup, Moment::Request);
        let started = Instant::now();
        for id in 0..100 {
            one.value(id);
        }
        // A hundred times a tenth of a second is ten.
        assert!(started.elapsed() < ms(5_000), "{:?}", started.elapsed());
        assert!(hangs.arrived() < 10);
        assert_eq!(meter.loads(), 101);
    });
}

#[test]
fn one_deadline_is_spent_over_all_steps() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let one = start(
            &memory,
            |f| f.budget(ms(60_000)),
            |c| c.workers(1).timeout(ms(3_000)).loser_wait(ms(60_000)).loader(stage.loader()),
        );
        dead_holder(&memory, 7, ms(60_000));
        let lookup = one.link.hold(Op::Lookup, Moment::Reply);
        let started = Instant::now();
        thread::scope(|s| {
            let caller = s.spawn(|| one.get(7));
            assert!(lookup.wait_for(1, NOISE));
            thread::sleep(ms(100));
            lookup.release();
            assert!(caller.join().unwrap().unwrap_err().is_timed_out());
        });
        assert!(started.elapsed() >= ms(3_000));
        assert!(started.elapsed() < ms(3_000) + NOISE);
        assert_eq!(stage.loads(), 0);
    });
}

#[test]
fn while_the_connection_is_down_values_are_loaded_once_and_kept_for_a_second() {
    within(|| {
        let (memory, meter) = (Memory::manual(), Meter::default());
        let clock = onefill::Clock::manual();
        let one = start(&memory, |f| f, |c| c.clock(clock.clone()).loader(meter.numbered()));
        assert_eq!(one.value(7), "1");
        one.link.down();
        // In doubt, and nobody to ask.
        thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| assert_eq!(one.value(7), "2"));
            }
        });
        clock.advance(ms(999));
        assert_eq!(one.get(7).unwrap().source(), Source::Local);
        clock.advance(ms(1));
        assert_eq!(one.value(7), "3");
        assert_eq!(meter.loads(), 3);
    });
}

#[test]
fn while_the_connection_is_down_a_value_in_doubt_stands_in_for_a_failure() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let one = start(
            &memory,
            |f| f,
            |c| {
                c.stale_if_error(TTL).loader(meter.loader(|nth| match nth {
                    1 => Ok(Fill::new("1".into())),
                    _ => Err("no"),
                }))
            },
        );
        assert_eq!(one.value(7), "1");
        one.link.down();
        let answer = one.get(7).unwrap();
        assert!(answer.is_stale());
        assert_eq!(answer.value().unwrap(), "1");
        assert!(one.cache.with().never_stale().get(&7).unwrap_err().is_failed());
    });
}

#[test]
fn a_wrong_setting_is_said_and_not_asked_about_again_and_again() {
    within(|| {
        let denied = TierError::Refused { class: Refusal::Denied, text: "NOAUTH".into() };
        let (memory, meter) = (Memory::new(), Meter::default());
        let one = instance(&memory, meter.numbered());
        one.value(1_000); // the epoch is known
        let before = one.count(Op::Lookup);
        one.link.fail(Op::Lookup, Moment::Request, denied);
        let opened = Instant::now();
        for id in 0..20 {
            assert_eq!(one.get(id).unwrap().source(), Source::Alone);
        }
        if opened.elapsed() < ms(3_900) {
            assert_eq!(one.count(Op::Lookup) - before, 1);
        }
        let health = one.fleet.health();
        assert!(health.misconfigured && health.reads_open, "{health:?}");
        assert_eq!(health.troubles.refused(Refusal::Denied), one.count(Op::Lookup) - before);
        assert!(health.last_trouble.unwrap().contains("NOAUTH"));
    });
}

#[test]
fn whoever_may_not_write_may_read() {
    within(|| {
        let denied = TierError::Refused { class: Refusal::Denied, text: "NOPERM".into() };
        let (memory, meter) = (Memory::new(), Meter::default());
        let (one, two) = (instance(&memory, meter.numbered()), instance(&memory, meter.numbered()));
        two.value(7);
        two.value(8);
        one.link.fail(Op::Acquire, Moment::Request, denied.clone());
        one.link.fail(Op::Invalidate, Moment::Request, denied);
        assert_eq!(one.get(1).unwrap().source(), Source::Alone);
        assert!(one.cache.invalidate(&1).is_err());
        assert_eq!(one.get(7).unwrap().source(), Source::Fleet);
        let health = one.fleet.health();
        assert!(health.misconfigured && health.writes_open && !health.reads_open, "{health:?}");

        // What is mended is found out, and said.
        one.link.heal();
        until("writes are tried again", || {
            one.value(2_000 + meter.loads() as u64);
            !one.fleet.health().misconfigured
        });
        assert_eq!(one.get(8).unwrap().source(), Source::Fleet);
    });
}

/// A tier may be anybody's. It is asked in the middle of an invalidation, on the thread that renews,
/// and while a loader's own panic is on its way: there a second panic would end the process.
#[test]
fn a_tier_that_panics_is_one_in_trouble() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let link = Arc::new(memory.peer());
        let tier = Arc::new(Tapped::new(&link));
        let loader = stage.loader();
        let one = on(
            Arc::clone(&tier),
            link,
            |f| f.lease(ms(300)),
            |c| {
                c.loader(move |asked: &Asked<'_>| match loader(asked) {
                    Err("panic") => panic!("the loader is broken, too"),
                    ended => ended,
                })
            },
        );
        stage.end_with("tea");
        assert_eq!(one.value(7), "tea");

        // While the loader's panic unwinds, the lease is given back.
        thread::scope(|s| {
            let caller = s.spawn(|| one.get(8));
            stage.begun();
            stage.begun();
            tier.panics.store(true, SeqCst);
            stage.end(Err("panic"));
            assert!(caller.join().is_err());
        });
        assert!(one.cache.invalidate(&7).unwrap_err().to_string().contains("the tier is broken"));
        assert!(one.cache.peek(&7).is_none(), "this process knows better");
        stage.end_with("more tea");
        assert_eq!(one.get(9).unwrap().source(), Source::Alone);

        // The thread that renews is there still.
        tier.panics.store(false, SeqCst);
        until("the tier is asked again", || one.cache.invalidate(&1).is_ok());
        thread::scope(|s| {
            let caller = s.spawn(|| one.get(10));
            stage.begun();
            stage.begun();
            let renewed = one.count(Op::Renew);
            tier.panics.store(true, SeqCst);
            thread::sleep(ms(150));
            tier.panics.store(false, SeqCst);
            until("the lease is renewed again", || one.count(Op::Renew) > renewed + 1);
            stage.end_with("tea");
            assert_eq!(caller.join().unwrap().unwrap().source(), Source::Loaded);
        });
    });
}

/// A tier may answer each claim with what the claim says is of no use. It is not asked for ever.
#[test]
fn a_tier_that_answers_with_rubbish_is_done_without() {
    within(|| {
        let link = Arc::new(Memory::new().peer());
        let rubbish = Some(AtomicUsize::new(0));
        let tier = Arc::new(Tapped { rubbish, ..Tapped::new(&link) });
        let loader = |_: &Asked<'_>| Ok(Fill::new("tea".into()));
        let one = on(Arc::clone(&tier), link, |f| f, |c| c.loader(loader));
        assert_eq!(one.get(7).unwrap().source(), Source::Alone);
        let answered = tier.rubbish.as_ref().unwrap().load(SeqCst);
        assert!((1..10).contains(&answered), "{answered}");
    });
}

/// A value that panics where it is told to: on its way from the shared tier.
struct Frail {
    armed: Arc<AtomicBool>,
    gate: Arc<Barrier>,
    panics: Arc<AtomicUsize>,
}

impl Frail {
    fn break_if_armed(&self) {
        if self.armed.load(SeqCst) {
            self.panics.fetch_add(1, SeqCst);
            self.gate.wait();
            panic!("not to be had");
        }
    }
}

impl Codec<String> for Frail {
    fn encode(&self, value: &String, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.extend_from_slice(value.as_bytes());
        Ok(())
    }

    fn decode(&self, bytes: &[u8]) -> Result<String, CodecError> {
        self.break_if_armed();
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    fn format(&self) -> std::borrow::Cow<'static, str> {
        "frail".into()
    }
}

/// Before any loader is called, too, and wherever the load runs.
#[test]
fn a_panic_on_the_way_from_the_shared_tier_is_told_to_all_who_wait_and_not_repeated() {
    for workers in [None, Some(1), Some(2)] {
        for in_the_weigher in [false, true] {
            within(move || {
                let memory = Memory::new();
                let (armed, gate) = (Arc::new(AtomicBool::new(false)), Arc::new(Barrier::new(2)));
                let panics = Arc::new(AtomicUsize::new(0));
                let frail = || Frail {
                    armed: Arc::clone(&armed),
                    gate: Arc::clone(&gate),
                    panics: Arc::clone(&panics),
                };
                let cache = || {
                    let builder = Cache::<u64, String, &'static str>::builder("page").ttl(TTL);
                    let builder = builder.loader(|_: &Asked<'_>| Ok("value".to_string()));
                    let builder = match workers {
                        Some(workers) => builder.workers(workers),
                        None => builder,
                    };
                    let fleet = Fleet::on(memory.peer());
                    if !in_the_weigher {
                        return builder.fleet(&fleet, frail()).build().unwrap();
                    }
                    let weigher = frail();
                    let builder = builder.capacity_by_weight(100, move |_, _| {
                        weigher.break_if_armed();
                        1
                    });
                    builder.fleet(&fleet, codec::Raw).build().unwrap()
                };
                let _ = cache().get(&1).unwrap();
                armed.store(true, SeqCst);
                let cache = cache();
                thread::scope(|s| {
                    let callers = [(); 3]
                        .map(|()| s.spawn(|| catch_unwind(AssertUnwindSafe(|| cache.get(&1)))));
                    // Whoever leads does so on a thread of its own, or waits as well.
                    let waiting = if workers.is_some() { 3 } else { 2 };
                    until("all wait", || cache.stats().gauges.waiting == waiting);
                    gate.wait();
                    let ends = callers.map(|caller| caller.join().unwrap());
                    let told = ends.iter().filter(|end| {
                        end.as_ref().is_ok_and(|end| end.as_ref().unwrap_err().is_panicked())
                    });
                    assert_eq!(told.count(), waiting);
                });
                assert_eq!(panics.load(SeqCst), 1);
                let stats = cache.stats();
                assert_eq!((stats.panicked, stats.loads), (3, 0));
                armed.store(false, SeqCst);
                assert_eq!(cache.get(&1).unwrap().source(), Source::Fleet);
                assert_eq!(cache.stats().gauges.flights, 0);
            });
        }
    }
}
