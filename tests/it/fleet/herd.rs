//! A herd over many instances: one load, one claim an instance, and the answer travels.

use std::panic::resume_unwind;
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;
use std::time::Instant;

use crossbeam_channel::bounded;
use onefill::fleet::memory::{Memory, Moment, Op};
use onefill::{Clock, Error, Fill, Refusal, Source, TierError};

use super::support::*;

#[test]
fn forty_instances_that_miss_one_key_load_it_once_with_one_claim_each() {
    within(|| {
        const INSTANCES: usize = 40;
        const THREADS: usize = 3;
        let (memory, stage) = (Memory::new(), Stage::new());
        let fleet: Vec<_> = (0..INSTANCES).map(|_| instance(&memory, stage.loader())).collect();
        let started = Instant::now();
        let sources = thread::scope(|s| {
            let herd: Vec<_> = fleet
                .iter()
                .flat_map(|one| (0..THREADS).map(|_| s.spawn(|| one.get(7).unwrap())))
                .collect();
            stage.begun();
            for one in &fleet {
                one.until_claimed(1);
                one.until_following(THREADS - 1);
            }
            stage.end_with("tea");
            herd.into_iter()
                .map(|caller| {
                    let answer = caller.join().unwrap();
                    assert_eq!(answer.value().unwrap(), "tea");
                    answer.source()
                })
                .collect::<Vec<_>>()
        });
        assert_eq!(stage.loads(), 1);
        let from = |source| sources.iter().filter(|from| **from == source).count();
        assert_eq!(from(Source::Loaded), 1);
        assert_eq!(from(Source::Fleet), INSTANCES - 1);
        assert_eq!(from(Source::Followed), INSTANCES * (THREADS - 1));
        let claims = claims_in(started.elapsed());
        for one in &fleet {
            // The value came with the notice: nobody had to read it.
            assert_eq!(one.count(Op::Lookup), 1);
            assert!((1..=claims).contains(&one.count(Op::Acquire)));
            assert_eq!(one.count(Op::Release), 0);
            // And what came is not in doubt.
            assert_eq!(one.get(7).unwrap().source(), Source::Local);
            assert_eq!(one.count(Op::Lookup), 1);
        }
        assert_eq!(fleet.iter().map(|one| one.count(Op::Commit)).sum::<u64>(), 1);
        assert_eq!((memory.values(), memory.leases()), (1, 0));
    });
}

#[test]
fn a_value_too_big_to_travel_is_read_by_those_who_are_told_of_it() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let fleet = [0; 5].map(|_| instance(&memory, stage.loader()));
        let big = "x".repeat(10_000);
        let started = Instant::now();
        thread::scope(|s| {
            let herd = fleet.each_ref().map(|one| s.spawn(|| one.value(7)));
            stage.begun();
            fleet.iter().for_each(|one| one.until_claimed(1));
            stage.end_with(&big);
            for caller in herd {
                assert_eq!(caller.join().unwrap(), big);
            }
        });
        assert_eq!(stage.loads(), 1);
        let claims: u64 = fleet.iter().map(|one| one.count(Op::Acquire)).sum();
        assert!((1 + 2 * 4..=1 + 4 * (1 + claims_in(started.elapsed()))).contains(&claims));
        for one in &fleet {
            assert_eq!(one.get(7).unwrap().source(), Source::Local);
            assert_eq!(one.count(Op::Lookup), 1);
        }
    });
}

#[test]
fn a_notice_that_comes_before_the_claims_answer_is_heard() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let (one, two) = (instance(&memory, stage.loader()), instance(&memory, stage.loader()));
        thread::scope(|s| {
            let leader = s.spawn(|| one.value(7));
            stage.begun();
            let answer = two.link.hold(Op::Acquire, Moment::Reply);
            let loser = s.spawn(|| two.get(7).unwrap());
            assert!(answer.wait_for(1, NOISE));
            // Two has lost, and does not know; the value is there before it does.
            stage.end_with("tea");
            assert_eq!(leader.join().unwrap(), "tea");
            answer.release();
            let got = loser.join().unwrap();
            assert_eq!((got.value().unwrap().as_str(), got.source()), ("tea", Source::Fleet));
        });
        // A second claim would be the net below the notices.
        assert_eq!(two.count(Op::Acquire), 1);
        assert_eq!(stage.loads(), 1);
    });
}

#[test]
fn a_notice_of_another_lease_than_the_one_waited_for_is_no_answer() {
    within(|| {
        for failed in [true, false] {
            let (memory, stage) = (Memory::new(), Stage::new());
            let [one, two] = [0; 2].map(|_| instance(&memory, stage.loader()));
            thread::scope(|s| {
                let claim = two.link.hold(Op::Acquire, Moment::Request);
                let waits = s.spawn(|| two.get(7));
                assert!(claim.wait_for(1, NOISE));
                // Two stands in line, and hears of a load that is over before it makes its claim.
                let first = s.spawn(|| one.get(7));
                stage.begun();
                stage.end(if failed { Err("no") } else { Ok(Fill::new("old".into())) });
                assert_eq!(first.join().unwrap().is_err(), failed);
                // Nor does it hear that what it has heard is out of date.
                two.link.mute(1);
                one.cache.invalidate(&7).unwrap();
                let second = s.spawn(|| one.value(7));
                stage.begun();
                claim.release();
                two.until_claimed(1);
                stage.end_with("new");
                assert_eq!(second.join().unwrap(), "new");
                assert_eq!(value(waits.join().unwrap()), "new", "failed: {failed}");
            });
        }
    });
}

#[test]
fn a_lost_notice_is_made_up_for_by_asking() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let (one, two) = (instance(&memory, stage.loader()), instance(&memory, stage.loader()));
        two.link.mute(u64::MAX);
        thread::scope(|s| {
            let leader = s.spawn(|| one.value(7));
            stage.begun();
            let loser = s.spawn(|| two.value(7));
            two.until_claimed(1);
            stage.end_with("tea");
            assert_eq!(leader.join().unwrap(), "tea");
            assert_eq!(loser.join().unwrap(), "tea");
        });
        assert_eq!(stage.loads(), 1);
    });
}

#[test]
fn an_instance_that_hears_nothing_waits_for_the_others_all_the_same() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let one = instance(&memory, stage.loader());
        let deaf = start_deaf(&memory, |fleet| fleet, |cache| cache.loader(stage.loader()));
        assert!(!deaf.fleet.health().hears);
        thread::scope(|s| {
            let leader = s.spawn(|| one.value(7));
            stage.begun();
            let loser = s.spawn(|| deaf.value(7));
            deaf.until_claimed(3);
            stage.end_with("tea");
            assert_eq!(leader.join().unwrap(), "tea");
            assert_eq!(loser.join().unwrap(), "tea");
        });
        assert_eq!(stage.loads(), 1);
    });
}

#[test]
fn a_failure_travels_to_everybody_who_waits_and_is_forgotten() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let fleet = [0; 4].map(|_| instance(&memory, stage.loader()));
        let ends = thread::scope(|s| {
            let herd: Vec<_> =
                fleet.iter().flat_map(|one| (0..3).map(|_| s.spawn(|| one.get(7)))).collect();
            stage.begun();
            for one in &fleet {
                one.until_claimed(1);
                one.until_following(2);
            }
            let told = Instant::now();
            stage.end(Err("no"));
            let ends: Vec<_> =
                herd.into_iter().map(|caller| caller.join().unwrap().unwrap_err()).collect();
            assert!(told.elapsed() < NOISE, "the wait is 2 s, and a load each would be 12");
            ends
        });
        assert_eq!(stage.loads(), 1);
        let failed = ends.iter().filter(|end| end.failure() == Some(&"no")).count();
        let elsewhere = ends.iter().filter(|end| matches!(end, Error::FailedElsewhere)).count();
        assert_eq!((failed, elsewhere), (3, 9));
        assert_eq!((memory.values(), memory.leases()), (0, 0));
        for one in &fleet {
            assert_eq!(one.cache.stats().failed, 3);
        }

        stage.end_with("tea");
        assert_eq!(fleet[3].value(7), "tea");
        assert_eq!(fleet[0].value(7), "tea");
        assert_eq!(stage.loads(), 2);
    });
}

#[test]
fn an_absence_travels_like_a_value() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let fleet = [0; 4].map(|_| instance(&memory, stage.loader()));
        thread::scope(|s| {
            let herd = fleet.each_ref().map(|one| s.spawn(|| one.get(7).unwrap()));
            stage.begun();
            fleet.iter().for_each(|one| one.until_claimed(1));
            stage.end(Ok(Fill::absent()));
            for caller in herd {
                assert!(caller.join().unwrap().is_absent());
            }
        });
        for one in &fleet {
            let again = one.get(7).unwrap();
            assert!(again.is_absent());
            assert_eq!(again.source(), Source::Local);
            assert_eq!(one.cache.stats().absent_hits, 1);
        }
        let late = instance(&memory, stage.loader());
        assert!(late.get(7).unwrap().is_absent());
        assert_eq!(stage.loads(), 1);
    });
}

#[test]
fn what_is_not_to_be_stored_makes_no_queue() {
    within(|| {
        let (memory, stage, clock) = (Memory::new(), Stage::new(), Clock::manual());
        let fleet = [0; 3]
            .map(|_| start(&memory, |f| f, |c| c.clock(clock.clone()).loader(stage.loader())));
        for batch in 1..=2 {
            thread::scope(|s| {
                let herd: Vec<_> =
                    fleet.iter().flat_map(|one| (0..5).map(|_| s.spawn(|| one.value(7)))).collect();
                stage.begun();
                fleet.iter().for_each(|one| one.until_following(4));
                stage.end(Ok(Fill::new("secret".into()).do_not_store()));
                // The others do not wait for each other: both loads have begun before either ends.
                stage.begun();
                stage.begun();
                stage.end(Ok(Fill::new("secret".into()).do_not_store()));
                stage.end(Ok(Fill::new("secret".into()).do_not_store()));
                for caller in herd {
                    assert_eq!(caller.join().unwrap(), "secret");
                }
            });
            assert_eq!(stage.loads(), 3 * batch);
            assert_eq!((memory.values(), memory.leases()), (0, 0));
            assert!(fleet.iter().all(|one| one.cache.peek(&7).is_none()));
        }
    });
}

#[test]
fn a_loader_that_panics_leaves_its_place_to_the_next_instance() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let (now, cue) = bounded::<()>(0);
        let one = instance(&memory, move |_| {
            cue.recv().unwrap();
            resume_unwind(Box::new("a quiet panic"))
        });
        let (two, three) = (instance(&memory, stage.loader()), instance(&memory, stage.loader()));
        thread::scope(|s| {
            let panics = s.spawn(|| one.get(7));
            one.until_claimed(1);
            let others = [&two, &three].map(|other| s.spawn(|| other.value(7)));
            two.until_claimed(1);
            three.until_claimed(1);
            now.send(()).unwrap();
            assert!(panics.join().is_err());
            stage.begun();
            stage.end_with("tea");
            for other in others {
                assert_eq!(other.join().unwrap(), "tea");
            }
        });
        assert_eq!(one.cache.stats().loads_panicked, 1);
        assert_eq!(stage.loads(), 1);
    });
}

#[test]
fn a_circle_of_loads_over_two_instances_ends_with_the_wait() {
    within(|| {
        let memory = Memory::new();
        let both = Arc::new(Barrier::new(2));
        let nested = |needs: u64| {
            let inner = Arc::new(OnceLock::<Pages>::new());
            let (cell, both) = (Arc::clone(&inner), Arc::clone(&both));
            let built = start(
                &memory,
                |fleet| fleet,
                |cache| {
                    cache.loser_wait(ms(200)).loader(move |load: &Asked<'_>| {
                        if *load.key() == needs {
                            return Ok(Fill::new("alone".into()));
                        }
                        both.wait();
                        // What the other instance is loading just now.
                        let needed = cell.get().unwrap().get(&needs).map_err(|_| "no")?;
                        Ok(Fill::new(format!("{} and more", needed.into_value().unwrap())))
                    })
                },
            );
            inner.set(built.cache.clone()).unwrap();
            built
        };
        let (one, two) = (nested(2), nested(1));
        let started = Instant::now();
        thread::scope(|s| {
            let a = s.spawn(|| one.value(1));
            let b = s.spawn(|| two.value(2));
            // Whoever has waited long enough loads what it needs for itself; the other one may
            // get what comes of that.
            let [a, b] = [a, b].map(|caller| caller.join().unwrap());
            let ends = ["alone and more", "alone and more and more"];
            assert!(ends.contains(&a.as_str()) && ends.contains(&b.as_str()), "{a}, {b}");
        });
        assert!(started.elapsed() >= ms(200));
    });
}

#[test]
fn a_table_that_expects_misses_asks_for_value_and_lease_in_one_step() {
    within(|| {
        let memory = Memory::new();
        let loader = |asked: &Asked<'_>| Ok(Fill::from(format!("tea {}", asked.key())));
        let expecting =
            || start(&memory, |fleet| fleet, |cache| cache.loader(loader).expect_misses());
        let (one, two) = (expecting(), expecting());
        assert_eq!(one.get(7).unwrap().source(), Source::Loaded);
        assert_eq!(two.get(7).unwrap().source(), Source::Fleet);
        for instance in [&one, &two] {
            assert_eq!((instance.count(Op::Lookup), instance.count(Op::Acquire)), (0, 1));
        }
        assert_eq!((one.count(Op::Commit), memory.leases()), (1, 0));
    });
}

/// A claim is a write: what is there must not be out of reach where nothing can be written.
#[test]
fn a_table_that_expects_misses_reads_from_a_tier_that_takes_no_writes() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let loader = |asked: &Asked<'_>| Ok(Fill::from(format!("tea {}", asked.key())));
        let one = instance(&memory, loader);
        assert_eq!(one.value(7), "tea 7");
        let loader = stage.loader();
        let two = start(&memory, |fleet| fleet, |cache| cache.loader(loader).expect_misses());
        let full = TierError::Refused { class: Refusal::OutOfMemory, text: "OOM".into() };
        two.link.fail(Op::Acquire, Moment::Request, full);
        for id in 1..=3 {
            stage.end_with("degraded");
            assert_eq!(two.get(id).unwrap().source(), Source::Alone);
        }
        assert!(two.fleet.health().writes_open);
        assert_eq!(two.get(7).unwrap().source(), Source::Fleet);
    });
}
