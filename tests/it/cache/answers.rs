//! What a caller gets: its source, its age, and the options of the call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Instant;

use onefill::fleet::{Fleet, codec, memory::Memory};
use onefill::{Cache, Clock, Deadline, Fill, Source};

use super::support::{
    FAILED, Gate, Load, Numbers, Origin, STALE, Trapped, assert_got, assert_idle, at_writing, got,
    ms, numbers, plain, reads, secs, wait_for, wait_for_followers, wait_for_quiet, watched,
};

#[test]
fn an_answer_says_where_it_came_from_and_how_old_it_is() {
    watched(|| {
        let clock = Clock::manual();
        let origin = Origin::new(1);
        let cache = numbers(&clock)
            .stale_while_revalidate(secs(10))
            .stale_if_error(secs(20))
            .loader(reads(&origin))
            .build()
            .unwrap();
        let ask = || {
            let answer = cache.get(&7).unwrap();
            (*answer.value().unwrap(), answer.source(), answer.age(), answer.is_stale())
        };

        assert_eq!(ask(), (1, Source::Loaded, ms(0), false));
        clock.advance(secs(9));
        assert_eq!(ask(), (1, Source::Local, secs(9), false));
        origin.go_away();
        clock.advance(secs(1));
        assert_eq!(ask(), (1, STALE, secs(10), true));
        wait_for_quiet(&cache);
        clock.advance(secs(15));
        assert_eq!(ask(), (1, FAILED, secs(25), true));
        origin.come_back();
        origin.set(2);
        clock.advance(secs(5));
        assert_eq!(ask(), (2, Source::Loaded, ms(0), false));
    });
}

#[test]
fn the_age_is_counted_from_the_end_of_the_load() {
    let clock = Clock::manual();
    let slow = clock.clone();
    let loader = move |_: &Load<'_>| {
        slow.advance(secs(4));
        Ok(1)
    };
    let cache = numbers(&clock).loader(loader).build().unwrap();
    assert_eq!(cache.get(&1).unwrap().age(), ms(0));
    clock.advance(secs(9));
    let answer = cache.get(&1).unwrap();
    assert_eq!((answer.source(), answer.age()), (Source::Local, secs(9)));
}

#[test]
fn those_who_wait_get_the_answer_of_the_load_they_waited_for() {
    watched(|| {
        let gate = Gate::new();
        let origin = Origin::new(5);
        let (held, read) = (Arc::clone(&gate), reads(&origin));
        let loader = move |load: &Load<'_>| {
            held.pass();
            read(load)
        };
        let cache = plain().loader(loader).build().unwrap();
        thread::scope(|s| {
            let leader = s.spawn(|| got(cache.get(&1)).unwrap());
            gate.wait_for(1);
            let followers = [(); 7].map(|()| s.spawn(|| got(cache.get(&1)).unwrap()));
            wait_for_followers(&cache, 7);
            gate.open();
            assert_eq!(leader.join().unwrap(), (Some(5), Source::Loaded));
            for follower in followers {
                assert_eq!(follower.join().unwrap(), (Some(5), Source::Followed));
            }
        });
        assert_eq!(origin.calls(), 1);
        assert_idle(&cache);
    });
}

#[test]
fn changing_an_answer_changes_nothing_for_others() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |_: &onefill::Load<'_, u64, Vec<u64>>| {
            held.pass();
            Ok(vec![1, 2, 3])
        };
        let cache: Cache<u64, Vec<u64>, String> =
            Cache::builder("lists").ttl(secs(60)).loader(loader).build().unwrap();
        thread::scope(|s| {
            let callers = [(); 10].map(|()| {
                s.spawn(|| {
                    let mut list = cache.get(&1).unwrap().into_value().unwrap();
                    list.push(4);
                    list
                })
            });
            wait_for_followers(&cache, 9);
            gate.open();
            for caller in callers {
                assert_eq!(caller.join().unwrap(), [1, 2, 3, 4]);
            }
        });
        assert_eq!(cache.get(&1).unwrap().value(), Some(&vec![1, 2, 3]));
    });
}

#[test]
fn the_loader_that_is_first_wins() {
    watched(|| {
        let cache = plain().build().unwrap();
        let gate = Gate::new();
        thread::scope(|s| {
            let first = s.spawn(|| {
                cache.get_with(&1, |_| {
                    gate.pass();
                    Ok(1)
                })
            });
            gate.wait_for(1);
            let second = s.spawn(|| cache.get_with(&1, |_| -> Result<u64, _> { panic!("second") }));
            wait_for_followers(&cache, 1);
            gate.open();
            assert_got(first.join().unwrap(), 1, Source::Loaded);
            assert_got(second.join().unwrap(), 1, Source::Followed);
        });
        let third = cache.get_with(&1, |_| -> Result<u64, _> { panic!("third") });
        assert_got(third, 1, Source::Local);
    });
}

#[test]
fn tables_are_strangers_to_each_other() {
    watched(|| {
        let together = Gate::new();
        let table = |name: &str, value: &'static str| -> Cache<String, &'static str, String> {
            let gate = Arc::clone(&together);
            let loader = move |_: &onefill::Load<'_, String, &'static str>| {
                gate.pass();
                Ok(value)
            };
            Cache::builder(name).ttl(secs(60)).loader(loader).build().unwrap()
        };
        // The same name, even, and the same keys.
        let (a, b) = (table("t", "A"), table("t", "B"));
        for round in 0..100 {
            let key = format!("priv/5/1/{round}");
            thread::scope(|s| {
                let of_a = s.spawn(|| a.get(&key).unwrap().into_value());
                let of_b = s.spawn(|| b.get(&key).unwrap().into_value());
                // Each of them loads: nobody waits for the other one's load.
                together.wait_for(2 * round + 2);
                together.let_one_pass();
                together.let_one_pass();
                assert_eq!(of_a.join().unwrap(), Some("A"));
                assert_eq!(of_b.join().unwrap(), Some("B"));
            });
        }
        a.invalidate_all().unwrap();
        assert!(b.peek(&"priv/5/1/0".into()).is_some());
    });
}

#[test]
fn keys_whose_parts_run_into_each_other_are_two_keys() {
    let cache: Cache<(&str, &str), usize, String> =
        Cache::builder("pairs").ttl(secs(60)).build().unwrap();
    let keys = [
        ("a:b", "c"),
        ("a", "b:c"),
        ("AA", "B"),
        ("A", "AB"),
        ("", "a:b"),
        ("a", "b"),
        ("a:", "b"),
        ("a", ":b"),
    ];
    for (number, key) in keys.iter().enumerate() {
        let loaded = cache.get_with(key, |_| Ok(number)).unwrap();
        assert_eq!((loaded.value(), loaded.source()), (Some(&number), Source::Loaded));
    }
    for (number, key) in keys.iter().enumerate() {
        assert_eq!(cache.peek(key).unwrap().into_value(), Some(number));
    }
}

/// Before whichever step of a call another one's load ends, the call does not load again, nor ask its
/// fleet for what is in L1 by then.
#[test]
fn a_caller_looks_again_once_it_leads() {
    watched(|| {
        let mut steps = 0;
        for n in 1.. {
            let loads = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&loads);
            let cache: Cache<Trapped, Vec<u8>, String> = Cache::builder("trapped")
                .ttl(secs(60))
                .loader(move |_: &onefill::Load<'_, Trapped, Vec<u8>>| {
                    counted.fetch_add(1, SeqCst);
                    Ok(vec![1])
                })
                .fleet(&Fleet::on(Memory::new()), codec::Raw)
                .build()
                .unwrap();
            let other = cache.clone();
            let step_in = move || {
                // Once the call leads, the other one would wait for it.
                let call = move || other.with().timeout(ms(50)).get(&Trapped(1));
                let _ = thread::spawn(call).join().unwrap();
            };
            // Written down after the look, before the boarding.
            let (answer, sprung) = at_writing(n, step_in, || cache.get(&Trapped(1)).unwrap());
            assert!(sprung);
            assert_eq!(loads.load(SeqCst), 1, "step {n}");
            assert_idle(&cache);
            if answer.source() == Source::Loaded {
                break;
            }
            assert_eq!(answer.source(), Source::Local);
            steps += 1;
        }
        assert!(steps >= 1, "{steps}");
    });
}

#[test]
fn a_herd_that_finds_nothing_loads_once_a_key() {
    watched(|| {
        let origin = Origin::new(0);
        let counted = Arc::clone(&origin);
        let cache: Numbers = plain()
            .loader(move |load: &Load<'_>| {
                let _counted = counted.count();
                Ok(*load.key())
            })
            .build()
            .unwrap();
        let start = std::sync::Barrier::new(16);
        thread::scope(|s| {
            for _ in 0..16 {
                s.spawn(|| {
                    for key in 0..300 {
                        start.wait();
                        assert_eq!(cache.get(&key).unwrap().into_value(), Some(key));
                    }
                });
            }
        });
        assert_eq!(origin.calls(), 300);
        assert_idle(&cache);
    });
}

#[test]
fn the_options_of_a_call_are_for_that_call() {
    watched(|| {
        let clock = Clock::manual();
        let origin = Origin::new(1);
        let cache = numbers(&clock)
            .stale_while_revalidate(secs(10))
            .workers(1)
            .loader(reads(&origin))
            .build()
            .unwrap();
        assert_got(cache.get(&1), 1, Source::Loaded);
        clock.advance(secs(10));
        origin.set(2);
        assert_got(cache.with().never_stale().get(&1), 2, Source::Loaded);
        clock.advance(secs(10));
        assert_got(cache.get(&1), 2, STALE);
    });
}

#[test]
fn a_call_may_take_less_or_more_of_the_windows() {
    watched(|| {
        let clock = Clock::manual();
        let origin = Origin::new(1);
        let cache = numbers(&clock)
            .stale_while_revalidate(secs(5))
            .stale_if_error(secs(20))
            .refresh_backoff(ms(0))
            .loader(reads(&origin))
            .build()
            .unwrap();
        assert_got(cache.get(&1), 1, Source::Loaded);
        origin.go_away();
        clock.advance(secs(13));

        assert_got(cache.with().stale_while_revalidate(secs(3)).get(&1), 1, FAILED);
        assert!(cache.with().never_stale().get(&1).unwrap_err().is_failed());
        let both = cache.with().stale_while_revalidate(secs(3)).stale_if_error(secs(3));
        assert!(both.get(&1).unwrap_err().is_failed());
        clock.advance(secs(10));
        assert_got(cache.get(&1), 1, FAILED);
        assert_got(cache.with().stale_while_revalidate(secs(20)).get(&1), 1, STALE);
        wait_for_quiet(&cache);

        // No entry is kept for longer because one call would have taken it.
        clock.advance(secs(7));
        let any = || cache.with().stale_while_revalidate(secs(900)).stale_if_error(secs(900));
        assert!(any().get(&1).unwrap_err().is_failed());
        assert!(cache.with().get(&1).unwrap_err().is_failed());
    });
}

#[test]
fn a_deadline_bounds_the_wait_for_another_caller() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |_: &Load<'_>| {
            held.pass();
            Ok(1)
        };
        let cache = plain().timeout(ms(60)).loader(loader).build().unwrap();
        thread::scope(|s| {
            let leader = s.spawn(|| cache.get(&1));
            gate.wait_for(1);
            let waited = |ask: &dyn Fn() -> bool| {
                let begun = Instant::now();
                assert!(ask());
                begun.elapsed()
            };
            let of_the_cache = waited(&|| cache.get(&1).unwrap_err().is_timed_out());
            assert!((ms(60)..secs(5)).contains(&of_the_cache), "{of_the_cache:?}");
            let of_the_call =
                waited(&|| cache.with().timeout(ms(130)).get(&1).unwrap_err().is_timed_out());
            assert!((ms(130)..secs(5)).contains(&of_the_call), "{of_the_call:?}");
            let passed = waited(&|| {
                cache.with().deadline(Instant::now()).get(&1).unwrap_err().is_timed_out()
            });
            assert!(passed < secs(5));
            gate.open();
            assert_got(leader.join().unwrap(), 1, Source::Loaded);
        });
        // What is there is taken even if the deadline has passed.
        assert_got(cache.with().timeout(ms(0)).get(&1), 1, Source::Local);
        assert_idle(&cache);
    });
}

#[test]
fn a_loader_is_told_the_key_the_deadline_and_what_it_replaces() {
    watched(|| {
        let clock = Clock::manual();
        let (send, told) = crossbeam_channel::unbounded();
        let loader = move |load: &Load<'_>| {
            send.send((*load.key(), load.deadline(), load.previous().copied())).unwrap();
            Ok(load.previous().map_or(1, |previous| previous + 1))
        };
        let cache =
            numbers(&clock).stale_while_revalidate(secs(10)).loader(loader).build().unwrap();

        let soon = Instant::now() + secs(1_000);
        assert_got(cache.with().deadline(soon).get(&7), 1, Source::Loaded);
        assert_eq!(told.recv(), Ok((7, Deadline::at(soon), None)));
        clock.advance(secs(10));
        assert_got(cache.with().deadline(soon).get(&7), 1, STALE);
        assert_eq!(told.recv(), Ok((7, Deadline::NEVER, Some(1))), "nobody waits for a refresh");
        wait_for_quiet(&cache);
        clock.advance(secs(10));
        assert_got(cache.with().deadline(soon).never_stale().get(&7), 3, Source::Loaded);
        assert_eq!(told.recv(), Ok((7, Deadline::at(soon), Some(2))));
        // Expired: there is nothing left that could be unchanged.
        clock.advance(secs(20));
        assert_got(cache.get(&7), 4, Source::Loaded);
    });
}

#[test]
fn an_unchanged_value_lives_on() {
    watched(|| {
        let clock = Clock::manual();
        let loads = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&loads);
        let loader = move |load: &Load<'_>| {
            counted.fetch_add(1, SeqCst);
            Ok(match load.previous() {
                Some(_) => Fill::unchanged().ttl(secs(30)),
                None => Fill::new(7),
            })
        };
        let cache = numbers(&clock).stale_if_error(secs(10)).loader(loader).build().unwrap();
        assert_got(cache.get(&1), 7, Source::Loaded);
        clock.advance(secs(12));
        let renewed = cache.get(&1).unwrap();
        assert_eq!((renewed.age(), renewed.source()), (ms(0), Source::Loaded));
        assert_eq!(renewed.value(), Some(&7));
        clock.advance(secs(29));
        assert_got(cache.get(&1), 7, Source::Local);
        assert_eq!(loads.load(SeqCst), 2);
    });
}

#[test]
fn unchanged_without_a_previous_value_is_an_error_for_all_who_waited() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |_: &Load<'_>| {
            held.pass();
            Ok(Fill::unchanged())
        };
        let cache = plain().loader(loader).build().unwrap();
        thread::scope(|s| {
            let callers = [(); 3].map(|()| s.spawn(|| cache.get(&1)));
            wait_for_followers(&cache, 2);
            gate.open();
            for caller in callers {
                let error = caller.join().unwrap().unwrap_err();
                assert!(matches!(error, onefill::Error::NothingUnchanged), "{error:?}");
            }
        });
        assert!(cache.peek(&1).is_none());
        let stats = cache.stats();
        assert_eq!((stats.failed, stats.not_stored, stats.loads), (3, 1, 1));
        assert_idle(&cache);
    });
}

#[test]
fn what_is_not_to_be_stored_is_shared_and_kept_nowhere() {
    watched(|| {
        for fill in [Fill::new(3).do_not_store(), Fill::new(3).ttl(ms(0))] {
            let gate = Gate::new();
            let held = Arc::clone(&gate);
            let loads = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&loads);
            let loader = move |_: &Load<'_>| {
                counted.fetch_add(1, SeqCst);
                held.pass();
                Ok(fill.clone())
            };
            let cache = plain().stale_if_error(secs(60)).loader(loader).build().unwrap();
            thread::scope(|s| {
                let callers = [(); 4].map(|()| s.spawn(|| got(cache.get(&1)).unwrap().0));
                wait_for_followers(&cache, 3);
                gate.open();
                assert!(callers.into_iter().all(|caller| caller.join().unwrap() == Some(3)));
            });
            assert!(cache.peek(&1).is_none());
            assert_got(cache.get(&1), 3, Source::Loaded);
            assert_got(cache.get(&1), 3, Source::Loaded);
            assert_eq!(loads.load(SeqCst), 3);
            let stats = cache.stats();
            assert_eq!((stats.stored, stats.not_stored, stats.gauges.values), (0, 3, 0));
        }
    });
}

#[test]
fn a_borrowed_loader_runs_here_even_if_there_are_workers() {
    watched(|| {
        let cache = plain().workers(2).build().unwrap();
        let here = thread::current().id();
        let mut ran_on = None;
        let answer = cache.get_with(&1, |load| {
            ran_on = Some(thread::current().id());
            Ok(load.key() + 1)
        });
        assert_got(answer, 2, Source::Loaded);
        assert_eq!(ran_on, Some(here));
        let hit = cache.get_with(&1, |_| -> Result<u64, String> { unreachable!() });
        assert_got(hit, 2, Source::Local);
    });
}

#[test]
fn without_a_loader_there_is_what_is_there() {
    let clock = Clock::manual();
    let cache = numbers(&clock).stale_while_revalidate(secs(5)).build().unwrap();
    assert!(matches!(cache.get(&1).unwrap_err(), onefill::Error::NoLoader));
    cache.put(&1, 8).unwrap();
    assert_got(cache.get(&1), 8, Source::Local);
    clock.advance(secs(10));
    assert_got(cache.get(&1), 8, STALE);
    clock.advance(secs(5));
    assert!(matches!(cache.get(&1).unwrap_err(), onefill::Error::NoLoader));
    assert_eq!(cache.stats().failed, 2);
    assert_idle(&cache);
}

/// A loader that borrows cannot run behind its caller's back.
#[test]
fn in_the_stale_window_one_borrowed_loader_runs_and_the_others_do_not_wait() {
    watched(|| {
        let clock = Clock::manual();
        let cache = numbers(&clock).stale_while_revalidate(secs(10)).build().unwrap();
        cache.put(&1, 1).unwrap();
        clock.advance(secs(12));
        let gate = Gate::new();
        thread::scope(|s| {
            let leader = s.spawn(|| {
                cache.get_with(&1, |load| {
                    assert_eq!(load.previous(), Some(&1));
                    gate.pass();
                    Ok(2)
                })
            });
            gate.wait_for(1);
            for _ in 0..5 {
                let other = cache.get_with(&1, |_| -> Result<u64, _> { panic!("a second one") });
                assert_got(other, 1, STALE);
            }
            gate.open();
            assert_got(leader.join().unwrap(), 2, Source::Loaded);
        });
        let after = cache.get_with(&1, |_| -> Result<u64, _> { panic!("it is fresh") });
        assert_got(after, 2, Source::Local);

        // And if that one fails the value is what it was, and the next waits its turn.
        clock.advance(secs(12));
        assert_got(cache.get_with(&1, |_| Err::<u64, _>("away".into())), 2, FAILED);
        let early = cache.get_with(&1, |_| -> Result<u64, _> { panic!("too early") });
        assert_got(early, 2, STALE);
        clock.advance(secs(5));
        assert_got(cache.get_with(&1, |_| Ok(3)), 3, Source::Loaded);
        assert_idle(&cache);
    });
}

#[test]
fn a_borrowed_loader_that_fails_after_the_stale_window_leaves_nothing_to_serve() {
    let clock = Clock::manual();
    let cache =
        numbers(&clock).stale_while_revalidate(secs(10)).stale_if_error(secs(20)).build().unwrap();
    for (took, result) in [(secs(1), true), (secs(10), true), (secs(19), false)] {
        cache.put(&1, 1).unwrap();
        clock.advance(secs(12));
        let answer = cache.get_with(&1, |_| {
            clock.advance(took);
            Err::<u64, _>("away".into())
        });
        match result {
            true => assert_eq!(answer.unwrap().age(), secs(12) + took),
            false => assert!(answer.unwrap_err().is_failed()),
        }
    }
}

/// In the stale window nobody has to wait, so nobody waits for longer than it would.
#[test]
fn a_borrowed_loader_in_the_stale_window_waits_for_its_turn_no_longer_than_its_caller() {
    watched(|| {
        let clock = Clock::manual();
        let cache = numbers(&clock).stale_while_revalidate(secs(10)).admission(1).build().unwrap();
        cache.put(&1, 1).unwrap();
        clock.advance(secs(12));
        let gate = Gate::new();
        thread::scope(|s| {
            let busy = s.spawn(|| {
                cache.get_with(&2, |_| {
                    gate.pass();
                    Ok(2)
                })
            });
            gate.wait_for(1);
            let begun = Instant::now();
            let mut left = None;
            let answer = cache.with().timeout(ms(50)).get_with(&1, |load| {
                left = Some(load.deadline());
                Ok(3)
            });
            assert!(begun.elapsed() >= ms(50));
            assert_eq!(answer.unwrap().into_value(), Some(1));
            assert_eq!(left, None);
            gate.open();
            assert_got(busy.join().unwrap(), 2, Source::Loaded);
        });
        assert_idle(&cache);
    });
}

#[test]
fn a_look_loads_nothing_refreshes_nothing_and_counts_as_nothing() {
    watched(|| {
        let clock = Clock::manual();
        let origin = Origin::new(1);
        let cache = numbers(&clock)
            .stale_while_revalidate(secs(5))
            .stale_if_error(secs(50))
            .loader(reads(&origin))
            .build()
            .unwrap();
        assert!(cache.peek(&1).is_none());
        assert_got(cache.get(&1), 1, Source::Loaded);
        let look = || cache.peek(&1).map(|answer| (*answer.value().unwrap(), answer.source()));
        assert_eq!(look(), Some((1, Source::Local)));
        clock.advance(secs(12));
        assert_eq!(look(), Some((1, STALE)));
        assert_eq!(cache.peek(&1).unwrap().age(), secs(12));
        clock.advance(secs(3));
        assert_eq!(look(), None, "of use to those whose load fails, and to nobody else");
        let stats = cache.stats();
        assert_eq!((stats.calls(), stats.loads, stats.refreshes_started), (1, 1, 0));
        assert_eq!(origin.calls(), 1);
    });
}

#[test]
fn handles_are_one_cache() {
    watched(|| {
        let origin = Origin::new(1);
        let cache = plain().loader(reads(&origin)).build().unwrap();
        let other = cache.clone();
        assert_got(cache.get(&1), 1, Source::Loaded);
        assert_got(other.get(&1), 1, Source::Local);
        drop(cache);
        assert_got(other.get(&1), 1, Source::Local);
        assert_got(other.get(&2), 1, Source::Loaded);
        assert_eq!(other.stats().calls(), 4);
        assert!(format!("{other:?}").contains("numbers"));
        wait_for(|| other.stats().gauges.flights == 0);
    });
}
