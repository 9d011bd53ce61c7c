//! Freshness, refreshes and stale windows over a fleet: every tier goes by what its record says.

use std::thread;
use std::time::{Duration, Instant};

use onefill::fleet::memory::{Memory, Op};
use onefill::{Clock, Fill, Source, Why};

use super::support::*;

/// A memory and a clock for its instances, which stand still until both are advanced.
struct World {
    memory: Memory,
    clock: Clock,
}

impl World {
    fn new() -> World {
        World { memory: Memory::manual(), clock: Clock::manual() }
    }

    fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.memory.advance(time);
    }

    fn instances<const N: usize>(&self, settings: impl Fn(Builder) -> Builder) -> [Instance; N] {
        [0; N].map(|_| start(&self.memory, |f| f, |c| settings(c.clock(self.clock.clone()))))
    }
}

#[test]
fn a_thousand_stale_answers_begin_one_refresh_in_the_fleet() {
    within(|| {
        let (world, stage) = (World::new(), Stage::new());
        let fleet: [_; 4] =
            world.instances(|c| c.stale_while_revalidate(TTL).loader(stage.loader()));
        stage.end_with("1");
        fleet.iter().for_each(|one| assert_eq!(one.value(7), "1"));
        stage.begun();
        world.pass(TTL);
        thread::scope(|s| {
            for one in &fleet {
                for _ in 0..4 {
                    s.spawn(|| {
                        for _ in 0..63 {
                            assert_eq!(one.value(7), "1");
                        }
                    });
                }
            }
        });
        stage.begun();
        // The other three have given way.
        until("they have", || fleet.iter().filter(|one| one.count(Op::Acquire) > 0).count() == 4);
        stage.end_with("2");
        fleet.iter().for_each(Instance::until_refreshed);
        fleet.iter().for_each(|one| assert_eq!(one.value(7), "2"));
        assert_eq!(stage.loads(), 2);
        assert_eq!(world.memory.leases(), 0);
    });
}

#[test]
fn a_refresh_takes_from_the_tier_what_another_instance_has_refreshed() {
    within(|| {
        let (world, meter) = (World::new(), Meter::default());
        let clock = world.clock.clone();
        let fleet: [_; 4] = world.instances(|c| {
            let clock = clock.clone();
            // So eager that every hit is early, once it is a little old.
            c.early_refresh(1e9).loader(meter.loader(move |nth| {
                clock.advance(ms(1));
                Ok(Fill::new(nth.to_string()))
            }))
        });
        fleet.iter().for_each(|one| assert_eq!(one.value(7), "1"));
        fleet.iter().for_each(Instance::until_refreshed);
        assert_eq!(meter.loads(), 1, "nothing is refreshed that has only just come");
        world.pass(ms(1_000));
        assert_eq!(fleet[0].value(7), "1");
        fleet[0].until_refreshed();
        assert_eq!(meter.loads(), 2);
        world.pass(ms(1));
        for one in &fleet[1..] {
            // Told of it, it looks; and what it finds is the refreshed one.
            assert_eq!(one.value(7), "2");
            one.until_refreshed();
        }
        assert_eq!(meter.loads(), 2);
    });
}

#[test]
fn a_refresh_looks_in_the_tier_even_if_nobody_told_of_a_change() {
    within(|| {
        let (world, meter) = (World::new(), Meter::default());
        let [one, two]: [_; 2] =
            world.instances(|c| c.stale_while_revalidate(TTL).loader(meter.numbered()));
        assert_eq!((one.value(7).as_str(), two.value(7).as_str()), ("1", "1"));
        two.link.mute(u64::MAX);
        world.pass(TTL);
        assert!(one.get(7).unwrap().is_stale());
        one.until_refreshed();
        assert!(two.get(7).unwrap().is_stale());
        two.until_refreshed();
        assert_eq!(two.get(7).unwrap().source(), Source::Local);
        assert_eq!((two.value(7).as_str(), meter.loads()), ("2", 2));
    });
}

#[test]
fn a_refresh_that_fails_harms_nothing_and_is_not_repeated_before_its_time() {
    within(|| {
        let (world, meter) = (World::new(), Meter::default());
        let [one, two]: [_; 2] = world.instances(|c| {
            c.stale_while_revalidate(10 * TTL)
                .stale_if_error(10 * TTL)
                .refresh_backoff(ms(1_000))
                .loader(
                    meter
                        .loader(|nth| if nth == 1 { Ok(Fill::new("1".into())) } else { Err("no") }),
                )
        });
        assert_eq!(one.value(7), "1");
        world.pass(TTL);
        for _ in 0..10 {
            for _ in 0..20 {
                let answer = one.get(7).unwrap();
                assert!(answer.is_stale());
                assert_eq!(answer.value().unwrap(), "1");
                one.until_refreshed();
                assert!(world.memory.stored(&key(7)).is_some());
            }
            world.pass(ms(1_000));
        }
        assert_eq!(meter.loads(), 1 + 10);
        assert_eq!(one.cache.stats().loads_failed, 10);

        // An instance that finds the stale value in the tier tries once, and then goes by the rule.
        for _ in 0..20 {
            assert_eq!(value(two.get(7)), "1");
            two.until_refreshed();
        }
        assert_eq!(meter.loads(), 1 + 10 + 1);
    });
}

#[test]
fn in_the_stale_if_error_window_a_failure_is_answered_with_what_the_tier_has() {
    within(|| {
        let (world, stage) = (World::new(), Stage::new());
        let fleet: [_; 3] = world.instances(|c| c.stale_if_error(TTL).loader(stage.loader()));
        stage.end_with("1");
        assert_eq!(fleet[0].value(7), "1");
        stage.begun();
        world.pass(TTL);
        // The first has it in L1, the others find it in the tier: leader, followers, and those who
        // hear of the failure.
        thread::scope(|s| {
            let herd: Vec<_> =
                fleet.iter().flat_map(|one| (0..3).map(|_| s.spawn(|| one.get(7)))).collect();
            stage.begun();
            for one in &fleet {
                one.until_claimed(1);
                one.until_following(2);
            }
            stage.end(Err("no"));
            for caller in herd {
                let answer = caller.join().unwrap().unwrap();
                assert_eq!(answer.source(), Source::Stale(Why::Failed));
                assert_eq!(answer.value().unwrap(), "1");
            }
        });
        assert_eq!(stage.loads(), 2);
        // And no next attempt before the back-off is over, anywhere.
        for one in &fleet {
            for _ in 0..10 {
                assert_eq!(one.get(7).unwrap().source(), Source::Stale(Why::Failed));
            }
        }
        assert_eq!(stage.loads(), 2);
    });
}

#[test]
fn stale_if_error_has_an_end_in_every_instance() {
    within(|| {
        let (world, meter) = (World::new(), Meter::default());
        let fleet: [_; 3] = world.instances(|c| {
            c.ttl(ms(1_000)).stale_if_error(ms(2_000)).refresh_backoff(ms(100)).loader(
                meter.loader(|nth| if nth == 1 { Ok(Fill::new("1".into())) } else { Err("no") }),
            )
        });
        assert_eq!((fleet[0].value(7), fleet[1].value(7)), ("1".into(), "1".into()));
        for at in 0..60 {
            // The third has never asked before it is stale.
            let asking = if at < 15 { &fleet[..2] } else { &fleet[..] };
            for one in asking {
                let answer = one.get(7);
                match at {
                    0..10 => assert!(!answer.unwrap().is_stale()),
                    10..30 => assert!(answer.unwrap().is_stale(), "at {at}"),
                    _ => assert!(answer.is_err(), "at {at}"),
                }
            }
            world.pass(ms(100));
            if at == 29 {
                assert_eq!(world.memory.values(), 0);
            }
        }
    });
}

#[test]
fn a_record_lives_for_its_ttl_and_the_longer_of_its_windows_however_often_it_is_refreshed() {
    within(|| {
        let secs = Duration::from_secs;
        for (ttl, revalidate, error) in [(300, 5, 0), (600, 120, 60), (120, 60, 600)] {
            let (world, meter) = (World::new(), Meter::default());
            let fleet: [_; 2] = world.instances(|c| {
                c.ttl(secs(ttl))
                    .stale_while_revalidate(secs(revalidate))
                    .stale_if_error(secs(error))
                    .loader(meter.numbered())
            });
            let life = secs(ttl + revalidate.max(error));
            for round in 1..=3 {
                assert_eq!(fleet[0].value(7), round.to_string());
                assert_eq!(world.memory.stored(&key(7)).unwrap().left, Some(life));
                // Neither a hit nor a copy pushes the end away.
                world.pass(secs(ttl) - ms(1));
                for one in &fleet {
                    let answer = one.get(7).unwrap();
                    assert_eq!(answer.value().unwrap(), &round.to_string());
                    assert!(!answer.is_stale());
                }
                let left = world.memory.stored(&key(7)).unwrap().left.unwrap();
                assert_eq!(left, life - secs(ttl) + ms(1));
                world.pass(ms(1));
                // One serves it stale and refreshes it, the other is told.
                if round < 3 {
                    assert!(fleet[0].get(7).unwrap().is_stale());
                    fleet[0].until_refreshed();
                }
            }
            assert_eq!(meter.loads(), 3);
        }
    });
}

#[test]
fn a_copy_ends_with_its_record() {
    within(|| {
        let (world, meter) = (World::new(), Meter::default());
        let [one, two]: [_; 2] = world.instances(|c| c.ttl(ms(2_000)).loader(meter.numbered()));
        assert_eq!(one.value(7), "1");
        world.pass(ms(1_500));
        assert_eq!(two.get(7).unwrap().source(), Source::Fleet);
        assert_eq!(two.get(7).unwrap().age(), ms(1_500));
        world.pass(ms(499));
        assert_eq!(two.get(7).unwrap().source(), Source::Local);
        world.pass(ms(1));
        assert_eq!((two.value(7).as_str(), one.value(7).as_str()), ("2", "2"));
        assert_eq!(meter.loads(), 2);
    });
}

#[test]
fn a_hot_key_meets_its_end_with_one_load() {
    within(|| {
        for absent in [false, true] {
            let (world, meter) = (World::new(), Meter::default());
            let fleet: [_; 3] = world.instances(|c| {
                c.absent_ttl(TTL).loader(meter.loader(move |_| {
                    thread::sleep(ms(5));
                    Ok(if absent { Fill::absent() } else { Fill::new("tea".into()) })
                }))
            });
            for round in 1..=5 {
                thread::scope(|s| {
                    for one in &fleet {
                        for _ in 0..5 {
                            s.spawn(|| {
                                for _ in 0..4 {
                                    assert_eq!(one.get(7).unwrap().is_absent(), absent);
                                }
                            });
                        }
                    }
                });
                assert_eq!(meter.loads(), round);
                world.pass(TTL);
            }
        }
    });
}

#[test]
fn less_than_a_second_is_not_cut_to_seconds() {
    within(|| {
        for (ttl, left) in [(345_000, 345), (999_000, 999), (1_500_000, 1_500), (400, 1)] {
            let world = World::new();
            let [one]: [_; 1] = world.instances(|c| {
                c.ttl(Duration::from_micros(ttl)).loader(|_| Ok(Fill::new("tea".into())))
            });
            assert_eq!(one.value(7), "tea");
            assert_eq!(world.memory.stored(&key(7)).unwrap().left, Some(ms(left)));
        }
    });
}

#[test]
fn no_time_is_too_long() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let forever = Duration::MAX;
        let fleet = [0; 2].map(|_| {
            start(
                &memory,
                |f| f.lease(forever).lease_cap(forever).budget(forever),
                |c| {
                    c.ttl(forever)
                        .stale_if_error(forever)
                        .stale_while_revalidate(forever)
                        .loser_wait(forever)
                        .loader(meter.numbered())
                },
            )
        });
        let started = Instant::now();
        let timely = fleet[0].cache.with().timeout(forever).get(&7);
        assert_eq!((value(timely).as_str(), fleet[1].value(7).as_str()), ("1", "1"));
        fleet[1].cache.invalidate(&7).unwrap();
        assert_eq!((fleet[0].value(7).as_str(), fleet[1].value(7).as_str()), ("2", "2"));
        assert!(started.elapsed() < NOISE);
    });
}

/// No window applies to an absence, so nothing is left of it when it is over: neither here nor in
/// the shared tier, however long values are kept to stand in for failures.
#[test]
fn an_absence_is_stored_for_no_longer_than_it_is_fresh() {
    within(|| {
        let memory = Memory::manual();
        let one = start(
            &memory,
            |f| f,
            |c| {
                c.absent_ttl(ms(2_000)).stale_while_revalidate(TTL).stale_if_error(10 * TTL).loader(
                    |asked: &Asked<'_>| {
                        Ok(if *asked.key() == 7 { Fill::absent() } else { Fill::new("tea".into()) })
                    },
                )
            },
        );
        assert!(one.get(7).unwrap().is_absent());
        assert_eq!(one.value(8), "tea");
        assert_eq!(memory.stored(&key(7)).unwrap().left, Some(ms(2_000)));
        assert_eq!(memory.stored(&key(8)).unwrap().left, Some(TTL + 10 * TTL));
    });
}
