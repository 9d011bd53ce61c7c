//! Who did not get the lease: serves stale, waits, takes over, loads alone or fails, in that order.

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use onefill::fleet::memory::{Memory, Moment, Op};
use onefill::{Clock, Fill, Losers, Source, Why};

use super::support::*;

#[test]
fn when_a_holder_is_dead_exactly_one_takes_over_at_the_end_of_its_lease() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let fleet = [0; 4]
            .map(|_| start(&memory, |f| f, |c| c.loser_wait(ms(20_000)).loader(meter.numbered())));
        let started = Instant::now();
        dead_holder(&memory, 7, ms(400));
        thread::scope(|s| {
            let herd: Vec<_> =
                fleet.iter().flat_map(|one| (0..5).map(|_| s.spawn(|| one.value(7)))).collect();
            for caller in herd {
                assert_eq!(caller.join().unwrap(), "1");
            }
        });
        assert!(started.elapsed() >= ms(400));
        assert!(started.elapsed() < ms(400) + NOISE);
        assert_eq!(meter.loads(), 1);
    });
}

#[test]
fn past_the_wait_bound_each_instance_loads_once_for_itself_and_keeps_it_for_a_second() {
    within(|| {
        let (memory, meter, clock) = (Memory::new(), Meter::default(), Clock::manual());
        let fleet = [0; 4].map(|_| {
            let settings = |c: Builder| c.loser_wait(ms(250)).clock(clock.clone());
            start(&memory, |f| f, |c| settings(c).loader(meter.numbered()))
        });
        let dead = dead_holder(&memory, 7, ms(60_000));
        let started = Instant::now();
        thread::scope(|s| {
            let herd: Vec<_> =
                fleet.iter().flat_map(|one| (0..5).map(|_| s.spawn(|| one.get(7)))).collect();
            for caller in herd {
                let answer = caller.join().unwrap().unwrap();
                assert!(matches!(answer.source(), Source::Alone | Source::Followed));
            }
        });
        assert!(started.elapsed() >= ms(250));
        assert!(started.elapsed() < ms(250) + NOISE);
        assert_eq!(meter.loads(), 4);
        // Not stored for the others, and the lease is left alone.
        assert_eq!(memory.stored(&key(7)), None);
        assert_eq!(memory.lease(&key(7)).unwrap().0, dead);
        for one in &fleet {
            assert_eq!(one.cache.stats().loaded_alone, 1);
            assert_eq!(one.get(7).unwrap().source(), Source::Local);
        }
        clock.advance(ms(999));
        assert!(fleet.iter().all(|one| one.cache.peek(&7).is_some()));
        clock.advance(ms(1));
        assert!(fleet.iter().all(|one| one.cache.peek(&7).is_none()));
    });
}

#[test]
fn losers_that_are_to_fail_do_so_together_and_without_a_load() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let bound = ms(400);
        let one = start(
            &memory,
            |f| f,
            |c| c.loser_wait(bound).losers(Losers::Fail).loader(meter.numbered()),
        );
        dead_holder(&memory, 7, ms(60_000));
        let started = Instant::now();
        thread::scope(|s| {
            let herd: Vec<_> = (0..20).map(|_| s.spawn(|| one.get(7))).collect();
            for caller in herd {
                assert!(caller.join().unwrap().unwrap_err().is_timed_out());
            }
        });
        assert!(started.elapsed() >= bound);
        assert!(started.elapsed() < bound + NOISE, "20 waits one after another are 8 s");
        assert_eq!(meter.loads(), 0);
        assert_eq!(one.cache.stats().timed_out, 20);
    });
}

#[test]
fn losers_that_are_to_fail_serve_what_is_stale_if_they_may() {
    within(|| {
        let (memory, meter, clock) = (Memory::manual(), Meter::default(), Clock::manual());
        let fleet = [0; 2].map(|_| {
            let settings = |c: Builder| {
                c.loser_wait(ms(50)).losers(Losers::Fail).stale_if_error(TTL).clock(clock.clone())
            };
            start(&memory, |f| f, |c| settings(c).loader(meter.numbered()))
        });
        assert_eq!(fleet[0].value(7), "1");
        clock.advance(TTL);
        memory.advance(TTL);
        dead_holder(&memory, 7, ms(60_000));
        // The one has it in L1; the other finds it in the shared tier.
        for one in &fleet {
            let answer = one.get(7).unwrap();
            assert_eq!(answer.source(), Source::Stale(Why::TimedOut));
            assert_eq!(answer.value().unwrap(), "1");
        }
        assert_eq!(meter.loads(), 1);
    });
}

#[test]
fn a_deadline_ends_the_wait_and_begins_no_load() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let one = instance(&memory, meter.numbered());
        dead_holder(&memory, 7, ms(60_000));
        let started = Instant::now();
        let error = one.cache.with().timeout(ms(150)).get(&7).unwrap_err();
        assert!(error.is_timed_out());
        assert!(started.elapsed() >= ms(150));
        assert!(started.elapsed() < ms(150) + NOISE);
        assert_eq!(meter.loads(), 0);
    });
}

#[test]
fn a_leader_whose_deadline_passes_leaves_the_wait_to_a_follower() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let (one, two) = (instance(&memory, stage.loader()), instance(&memory, stage.loader()));
        thread::scope(|s| {
            let holder = s.spawn(|| one.value(7));
            stage.begun();
            let hasty = s.spawn(|| two.cache.with().timeout(ms(150)).get(&7));
            two.until_claimed(1);
            let patient = s.spawn(|| two.get(7).unwrap());
            two.until_following(1);
            assert!(hasty.join().unwrap().unwrap_err().is_timed_out());
            // The follower waits in its place, and hears.
            two.until_claimed(2);
            stage.end_with("tea");
            assert_eq!(patient.join().unwrap().source(), Source::Fleet);
            assert_eq!(holder.join().unwrap(), "tea");
        });
        assert_eq!(stage.loads(), 1);
        assert_eq!(two.count(Op::Lookup), 2);
    });
}

#[test]
fn a_loader_that_waits_for_another_instance_lets_others_load_meanwhile() {
    within(|| {
        let memory = Memory::new();
        let inner = Arc::new(OnceLock::<Pages>::new());
        let cell = Arc::clone(&inner);
        let one = start(
            &memory,
            |f| f,
            |c| {
                c.admission(1).loser_wait(ms(20_000)).loader(move |load: &Asked<'_>| {
                    if *load.key() == 1 {
                        let needed = cell.get().unwrap().get(&2).map_err(|_| "no")?;
                        return Ok(Fill::new(needed.into_value().unwrap()));
                    }
                    Ok(Fill::new(load.key().to_string()))
                })
            },
        );
        inner.set(one.cache.clone()).unwrap();
        dead_holder(&memory, 2, ms(60_000));
        thread::scope(|s| {
            let waits = s.spawn(|| one.value(1));
            // Its claim for key 1, and for key 2.
            one.until_claimed(2);
            let started = Instant::now();
            assert_eq!(one.value(3), "3");
            assert!(started.elapsed() < NOISE);
            memory.drop_lease(&key(2));
            assert_eq!(waits.join().unwrap(), "2");
        });
    });
}

#[test]
fn whoever_waits_asks_seldom() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let settings = |c: Builder| c.loser_wait(ms(1_000)).loader(meter.numbered());
        let hears = start(&memory, |f| f, settings);
        let deaf = start_deaf(&memory, |f| f, |c| c.loser_wait(ms(1_000)).loader(meter.numbered()));
        dead_holder(&memory, 7, ms(60_000));
        thread::scope(|s| {
            for one in [&hears, &deaf] {
                for _ in 0..20 {
                    s.spawn(|| one.value(7));
                }
            }
        });
        // A second, in pauses of 187 to 250 ms.
        assert!(hears.count(Op::Acquire) <= 7, "{}", hears.count(Op::Acquire));
        // Pauses that grow from 1 ms to 50 ms, an eighth of the time passed.
        assert!(deaf.count(Op::Acquire) <= 80, "{}", deaf.count(Op::Acquire));
        assert_eq!((hears.count(Op::Lookup), deaf.count(Op::Lookup)), (1, 1));
    });
}

#[test]
fn a_lease_of_which_nothing_is_known_is_waited_for_like_any_other() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let link = Arc::new(memory.peer());
        let tier = Tapped { endless: true, ..Tapped::new(&link) };
        let one = on(tier, link, |f| f, |c| c.loser_wait(ms(20_000)).loader(stage.loader()));
        let two = instance(&memory, stage.loader());
        let started = Instant::now();
        thread::scope(|s| {
            let loads = s.spawn(|| two.value(7));
            stage.begun();
            let waits = s.spawn(|| one.value(7));
            one.until_claimed(5);
            stage.end_with("tea");
            assert_eq!(loads.join().unwrap(), "tea");
            assert_eq!(waits.join().unwrap(), "tea");
        });
        // Not at each millisecond.
        let claims = one.count(Op::Acquire);
        assert!(claims <= 2 + (started.elapsed().as_millis() / 37) as u64, "{claims}");
        assert_eq!(stage.loads(), 1);
    });
}

#[test]
fn the_time_spent_waiting_is_not_the_tiers() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        // Each answer takes a while, and all of them together more than the budget.
        let deaf = start_deaf(
            &memory,
            |f| f.budget(ms(300)),
            |c| c.loser_wait(ms(1_500)).loader(meter.numbered()),
        );
        dead_holder(&memory, 7, ms(60_000));
        let started = Instant::now();
        thread::scope(|s| {
            let caller = s.spawn(|| deaf.get(7).unwrap());
            while !caller.is_finished() {
                let gate = deaf.link.hold(Op::Acquire, Moment::Reply);
                if gate.wait_for(1, ms(20)) {
                    thread::sleep(ms(30));
                }
                gate.release();
                thread::sleep(ms(1));
            }
            assert_eq!(caller.join().unwrap().source(), Source::Alone);
        });
        assert!(started.elapsed() >= ms(1_500), "{:?}", started.elapsed());
        let stats = deaf.cache.stats();
        assert_eq!((stats.degraded, stats.loaded_alone), (0, 1));
    });
}

/// Two instances that serve stale values for a while; the first has loaded the value `1`, which is
/// stale by now, and the second knows nothing yet.
fn with_a_stale_value(memory: &Memory, stage: &Stage) -> [Instance; 2] {
    let clock = Clock::manual();
    let fleet = [0; 2].map(|_| {
        let settings = |c: Builder| c.stale_while_revalidate(TTL).clock(clock.clone());
        start(memory, |f| f, |c| settings(c).loader(stage.loader()))
    });
    stage.end_with("1");
    assert_eq!(fleet[0].value(7), "1");
    stage.begun();
    clock.advance(TTL);
    memory.advance(TTL);
    fleet
}

#[test]
fn a_stale_value_is_served_at_once_while_another_instance_loads() {
    within(|| {
        let (memory, stage) = (Memory::manual(), Stage::new());
        let [one, two] = with_a_stale_value(&memory, &stage);
        thread::scope(|s| {
            let loads = s.spawn(|| value(one.cache.with().never_stale().get(&7)));
            stage.begun();
            let started = Instant::now();
            for _ in 0..100 {
                let answer = two.get(7).unwrap();
                assert_eq!(answer.source(), Source::Stale(Why::Revalidating));
                assert_eq!(answer.value().unwrap(), "1");
            }
            assert!(started.elapsed() < NOISE, "the wait is 2 s");
            two.until_refreshed();
            // A hundred stale answers are not a hundred claims.
            assert!(two.count(Op::Acquire) <= 2, "{}", two.count(Op::Acquire));
            stage.end_with("2");
            assert_eq!(loads.join().unwrap(), "2");
        });
        assert_eq!(two.value(7), "2");
        assert_eq!(stage.loads(), 2);
    });
}

#[test]
fn whoever_takes_nothing_stale_waits_and_holds_nobody_up_who_does() {
    within(|| {
        let (memory, stage) = (Memory::manual(), Stage::new());
        let [one, two] = with_a_stale_value(&memory, &stage);
        thread::scope(|s| {
            let loads = s.spawn(|| value(one.cache.with().never_stale().get(&7)));
            stage.begun();
            let picky = s.spawn(|| two.cache.with().never_stale().get(&7).unwrap());
            two.until_claimed(1);
            let easy = s.spawn(|| two.get(7).unwrap());
            assert_eq!(easy.join().unwrap().source(), Source::Stale(Why::Revalidating));
            assert!(!picky.is_finished());
            // It waits, it does not spin.
            assert!(two.count(Op::Acquire) <= 10, "{}", two.count(Op::Acquire));
            stage.end_with("2");
            assert_eq!(picky.join().unwrap().value().unwrap(), "2");
            assert_eq!(loads.join().unwrap(), "2");
        });
        assert_eq!(stage.loads(), 2);
    });
}

#[test]
fn a_follower_that_takes_nothing_stale_is_not_given_its_leaders_stale_value() {
    within(|| {
        let (memory, stage) = (Memory::manual(), Stage::new());
        let [one, two] = with_a_stale_value(&memory, &stage);
        thread::scope(|s| {
            let loads = s.spawn(|| value(one.cache.with().never_stale().get(&7)));
            stage.begun();
            let claim = two.link.hold(Op::Acquire, Moment::Request);
            let easy = s.spawn(|| two.get(7).unwrap());
            assert!(claim.wait_for(1, NOISE));
            let picky = s.spawn(|| two.cache.with().never_stale().get(&7).unwrap());
            two.until_following(1);
            claim.release();
            assert_eq!(easy.join().unwrap().source(), Source::Stale(Why::Revalidating));
            two.until_claimed(2);
            stage.end_with("2");
            assert_eq!(picky.join().unwrap().value().unwrap(), "2");
            assert_eq!(loads.join().unwrap(), "2");
        });
        assert!(two.count(Op::Acquire) <= 10, "{}", two.count(Op::Acquire));
        assert_eq!(stage.loads(), 2);
    });
}

/// Each notice may be the one that is waited for, so each is followed by a claim; but not for ever.
#[test]
fn a_stream_of_notices_does_not_outlast_the_wait() {
    within(|| {
        let memory = Memory::new();
        dead_holder(&memory, 7, ms(600_000));
        let link = Arc::new(memory.peer());
        let one = on(
            Tapped { noisy: true, ..Tapped::new(&link) },
            link,
            |f| f,
            |c| c.loser_wait(ms(200)).loader(|_: &Asked<'_>| Ok(Fill::new("alone".into()))),
        );
        let started = Instant::now();
        assert_eq!(one.value(7), "alone");
        assert!((ms(200)..ms(200) + NOISE).contains(&started.elapsed()));
    });
}
