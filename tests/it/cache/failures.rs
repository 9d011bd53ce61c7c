//! Loaders that return an error or panic, and the user's other code that panics.

use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;

use onefill::fleet::{Fleet, codec, memory::Memory};
use onefill::{Cache, Clock, Error, Source};

use super::support::{
    FAILED, Gate, Load, Numbers, Origin, STALE, Trapped, a_stale_answer_for_another, assert_got,
    assert_idle, at_hash, at_writing, got, ms, numbers, on_workers, plain, reads, secs,
    wait_for_followers, wait_for_quiet, watched,
};

#[test]
fn a_failure_goes_to_those_who_waited_and_is_not_remembered() {
    watched(|| {
        for workers in [false, true] {
            let (origin, gate) = (Origin::new(5), Gate::new());
            origin.go_away();
            let (read, held) = (reads(&origin), Arc::clone(&gate));
            let loader = move |load: &Load<'_>| {
                held.pass();
                read(load)
            };
            let builder = plain().loader(loader);
            let cache = if workers { builder.workers(2) } else { builder }.build().unwrap();
            thread::scope(|s| {
                let callers = [(); 12].map(|()| s.spawn(|| cache.get(&1).unwrap_err()));
                wait_for_followers(&cache, if workers { 12 } else { 11 });
                gate.open();
                let errors = callers.map(|caller| caller.join().unwrap());
                let Error::Failed(first) = &errors[0] else { panic!("{errors:?}") };
                for error in &errors {
                    assert!(matches!(error, Error::Failed(error) if Arc::ptr_eq(error, first)));
                }
            });
            assert_eq!(origin.calls(), 1);
            assert!(cache.peek(&1).is_none());
            origin.come_back();
            assert_got(cache.get(&1), 5, Source::Loaded);
            assert_got(cache.get(&1), 5, Source::Local);
            assert_eq!(origin.calls(), 2);
            assert_eq!(cache.stats().failed, 12);
            wait_for_quiet(&cache);
        }
    });
}

#[test]
fn a_panic_reaches_its_leader_and_is_told_to_the_others() {
    watched(|| {
        let gate = Gate::new();
        let (held, healthy) = (Arc::clone(&gate), Arc::new(AtomicBool::new(false)));
        let well = Arc::clone(&healthy);
        let loader = move |_: &Load<'_>| {
            held.pass();
            if well.load(SeqCst) { Ok(42) } else { panic!("out of order") }
        };
        let cache = plain().loader(loader).build().unwrap();
        thread::scope(|s| {
            let leader = s.spawn(|| {
                let call = catch_unwind(AssertUnwindSafe(|| cache.get(&1)));
                *call.unwrap_err().downcast::<&str>().unwrap()
            });
            gate.wait_for(1);
            let followers = [(); 7].map(|()| s.spawn(|| cache.get(&1).unwrap_err()));
            wait_for_followers(&cache, 7);
            gate.open();
            assert_eq!(leader.join().unwrap(), "out of order");
            for follower in followers {
                let error = follower.join().unwrap();
                assert!(matches!(error, Error::Panicked(Some(what)) if &*what == "out of order"));
            }
        });
        assert_idle(&cache);
        healthy.store(true, SeqCst);
        assert_got(cache.get(&1), 42, Source::Loaded);
        let stats = cache.stats();
        assert_eq!((stats.panicked, stats.loads_panicked, stats.loads), (8, 1, 2));
    });
}

#[test]
fn a_panic_on_a_worker_is_told_to_all_callers_and_costs_no_worker() {
    watched(|| {
        let gate = Gate::new();
        let held = Arc::clone(&gate);
        let loader = move |load: &Load<'_>| {
            held.pass();
            if *load.key() == 0 { panic!("out of order") } else { Ok(42) }
        };
        let cache = plain().workers(1).loader(loader).build().unwrap();
        thread::scope(|s| {
            let callers = [(); 4].map(|()| s.spawn(|| cache.get(&0).unwrap_err().is_panicked()));
            wait_for_followers(&cache, 4);
            gate.open();
            assert!(callers.into_iter().all(|caller| caller.join().unwrap()));
        });
        wait_for_quiet(&cache);
        assert_got(cache.get(&1), 42, Source::Loaded);
    });
}

#[test]
fn a_panic_is_as_good_a_reason_for_a_stale_value_as_an_error() {
    watched(|| {
        let clock = Clock::manual();
        let loader = |load: &Load<'_>| match load.previous() {
            None => Ok(1),
            Some(_) => panic!("out of order"),
        };
        let builder = || numbers(&clock).stale_if_error(secs(60)).loader(loader);
        let cache = builder().workers(1).build().unwrap();
        assert_got(cache.get(&1), 1, Source::Loaded);
        clock.advance(secs(12));
        assert_got(cache.get(&1), 1, FAILED);
        wait_for_quiet(&cache);
        // And for waiting a while before the next attempt.
        assert_got(cache.get(&1), 1, FAILED);
        assert_eq!(cache.stats().loads_panicked, 1);
        clock.advance(secs(5));
        assert_got(cache.get(&1), 1, FAILED);
        wait_for_quiet(&cache);
        assert_eq!(cache.stats().loads_panicked, 2);

        // In the stale-while-revalidate window nobody notices.
        let cache = builder().stale_while_revalidate(secs(60)).build().unwrap();
        assert_got(cache.get(&1), 1, Source::Loaded);
        clock.advance(secs(12));
        for _ in 0..3 {
            assert_got(cache.get(&1), 1, STALE);
            wait_for_quiet(&cache);
        }
        assert_eq!(cache.stats().loads_panicked, 1);
    });
}

/// Twenty callers, ten times a second, for ten seconds; one attempt a second.
#[test]
fn a_failed_refresh_keeps_the_value_and_is_not_repeated_at_once() {
    watched(|| {
        for behind in [true, false] {
            let clock = Clock::manual();
            let origin = Origin::new(1);
            let builder = numbers(&clock).ttl(secs(1)).refresh_backoff(secs(1));
            let builder = match behind {
                true => builder.stale_while_revalidate(secs(59)),
                false => builder.stale_if_error(secs(59)),
            };
            let cache = builder.loader(reads(&origin)).build().unwrap();
            assert_got(cache.get(&1), 1, Source::Loaded);
            origin.go_away();
            clock.advance(secs(2));
            let step = Barrier::new(21);
            thread::scope(|s| {
                for _ in 0..20 {
                    s.spawn(|| {
                        for _ in 0..100 {
                            step.wait();
                            let answer = cache.get(&1).unwrap();
                            assert!(answer.is_stale() && answer.value() == Some(&1));
                            step.wait();
                        }
                    });
                }
                for _ in 0..100 {
                    step.wait();
                    step.wait();
                    wait_for_quiet(&cache);
                    clock.advance(ms(100));
                }
            });
            assert_eq!(origin.calls(), 1 + 10, "behind: {behind}");
            let stats = cache.stats();
            assert_eq!((stats.stale, stats.loads_failed), (2_000, 10));

            origin.come_back();
            origin.set(2);
            let _ = cache.get(&1).unwrap();
            wait_for_quiet(&cache);
            assert_got(cache.get(&1), 2, Source::Local);
        }
    });
}

/// Whatever step of a call another one's attempt fails before, the call makes no second one. On a fleet:
/// there the key is written down after the look at L1, if it says that the key is to be loaded now.
#[test]
fn a_caller_that_comes_to_lead_after_a_failure_does_not_repeat_it() {
    watched(|| {
        for (behind, looked) in [(true, false), (false, false), (false, true)] {
            let (clock, memory) = (Clock::manual(), Memory::new());
            let loads = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&loads);
            let builder = Cache::<Trapped, Vec<u8>, String>::builder("trapped")
                .clock(clock.clone())
                .ttl(secs(10));
            let builder = match behind {
                true => builder.stale_while_revalidate(secs(60)),
                false => builder.stale_if_error(secs(60)),
            };
            let cache = builder
                .loader(move |_: &onefill::Load<'_, Trapped, Vec<u8>>| {
                    counted.fetch_add(1, SeqCst);
                    Err::<Vec<u8>, _>("away".into())
                })
                .fleet(&Fleet::on(memory.peer()), codec::Raw)
                .build()
                .unwrap();
            cache.put(&Trapped(1), vec![1]).unwrap();
            clock.advance(secs(12));
            memory.advance(secs(12));
            let step_in = a_stale_answer_for_another(&cache);
            let call = || cache.get(&Trapped(1)).unwrap();
            let (answer, sprung) =
                if looked { at_writing(1, step_in, call) } else { at_hash(1, step_in, call) };
            assert!(sprung && answer.is_stale());
            wait_for_quiet(&cache);
            assert_eq!(loads.load(SeqCst), 1, "looked: {looked}, behind: {behind}");
        }
    });
}

#[test]
fn callers_that_take_nothing_stale_are_not_held_off() {
    watched(|| {
        let clock = Clock::manual();
        let origin = Origin::new(1);
        let cache =
            numbers(&clock).stale_if_error(secs(60)).loader(reads(&origin)).build().unwrap();
        assert_got(cache.get(&1), 1, Source::Loaded);
        origin.go_away();
        clock.advance(secs(12));
        assert_got(cache.get(&1), 1, FAILED);
        assert!(cache.with().never_stale().get(&1).unwrap_err().is_failed());
        origin.come_back();
        origin.set(2);
        assert_got(cache.get(&1), 1, FAILED);
        assert_got(cache.with().never_stale().get(&1), 2, Source::Loaded);
        assert_got(cache.get(&1), 2, Source::Local);
    });
}

// The user's other code.

/// Which code is to panic when it is called next, on any thread.
#[derive(Clone)]
struct Mine(Arc<Armed>);

#[derive(Default)]
struct Armed {
    /// What, and how many calls of it are left until then.
    next: std::sync::Mutex<Option<(&'static str, usize)>>,
}

impl Armed {
    fn panics_in(&self, code: &'static str) {
        let mut next = self.next.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((armed, left)) = next.as_mut()
            && *armed == code
            && !thread::panicking()
        {
            *left -= 1;
            if *left == 0 {
                *next = None;
                drop(next);
                panic!("{code} panics once");
            }
        }
    }

    /// The `nth` call of this code from now on panics.
    fn arm(&self, code: &'static str, nth: usize) {
        *self.next.lock().unwrap_or_else(|e| e.into_inner()) = Some((code, nth));
    }

    fn disarm(&self) -> bool {
        self.next.lock().unwrap_or_else(|e| e.into_inner()).take().is_some()
    }
}

struct Key(u64, Mine);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.1.0.panics_in("Key::hash");
        self.0.hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.1.0.panics_in("Key::eq");
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Clone for Key {
    fn clone(&self) -> Key {
        self.1.0.panics_in("Key::clone");
        Key(self.0, self.1.clone())
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.1.0.panics_in("Key::drop");
    }
}

struct Value(u64, Mine);

impl Clone for Value {
    fn clone(&self) -> Value {
        self.1.0.panics_in("Value::clone");
        Value(self.0, self.1.clone())
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.1.0.panics_in("Value::drop");
    }
}

const CODES: [&str; 7] =
    ["Key::hash", "Key::eq", "Key::clone", "Key::drop", "Value::clone", "Value::drop", "weigher"];

/// What may be going on when the user's code panics.
const OCCASIONS: [&str; 6] = ["a load", "a hit", "a refresh", "a put", "invalidate", "clear"];

#[test]
fn a_panic_of_any_code_of_the_users_wedges_nothing() {
    watched(|| {
        for workers in [None, Some(1)] {
            for code in CODES {
                for occasion in OCCASIONS {
                    // The first call of it there, the second, and so on to the last.
                    let mut nth = 1;
                    while panics_once(workers, code, nth, occasion) {
                        nth += 1;
                    }
                }
            }
        }
    });
}

/// Returns whether there was an `nth` call to panic in.
fn panics_once(workers: Option<usize>, code: &'static str, nth: usize, occasion: &str) -> bool {
    let context = format!("call {nth} of {code} in {occasion}, workers: {workers:?}");
    let clock = Clock::manual();
    let mine = Mine(Arc::default());
    let key = |n| Key(n, mine.clone());
    let weighed = mine.clone();
    let loader = |load: &onefill::Load<'_, Key, Value>| {
        Ok::<_, String>(Value(load.key().0, load.key().1.clone()))
    };
    let builder = Cache::<Key, Value, String>::builder("bad")
        .clock(clock.clone())
        .ttl(secs(10))
        .stale_while_revalidate(secs(10))
        .capacity_by_weight(50, move |_, _| {
            weighed.0.panics_in("weigher");
            1
        })
        .loader(loader);
    let cache = on_workers(builder, workers).build().unwrap();

    let bad = key(0);
    if occasion != "a load" {
        let _ = cache.get(&bad).unwrap();
    }
    if occasion == "a refresh" {
        clock.advance(secs(12));
    }
    mine.0.arm(code, nth);
    let call = || match occasion {
        "a put" => cache.put(&bad, Value(0, mine.clone())).unwrap(),
        "invalidate" => cache.invalidate(&bad).unwrap(),
        "clear" => cache.invalidate_all().unwrap(),
        _ => {
            // With workers the panic is an error, and elsewhere it goes on.
            let _ = cache.get(&bad);
        }
    };
    let _ = catch_unwind(AssertUnwindSafe(call));
    let quiet = catch_unwind(AssertUnwindSafe(|| wait_for_quiet(&cache)));
    assert!(quiet.is_ok(), "{context}: something is left");
    let panicked = !mine.0.disarm();

    for n in 1..=100 {
        let answer = cache.get(&key(n)).unwrap_or_else(|error| panic!("{context}: {error:?}"));
        assert_eq!(answer.value().unwrap().0, n, "{context}");
    }
    let answer = cache.with().timeout(secs(10)).never_stale().get(&bad);
    let answer = answer.unwrap_or_else(|error| panic!("{context}: {error:?}"));
    assert_eq!(answer.value().unwrap().0, 0, "{context}");
    wait_for_quiet(&cache);
    assert!(cache.stats().gauges.weight <= 50, "{context}");
    panicked
}

/// What is stored has to be found first if it replaces something, and the user's `Eq` may panic. The
/// value is there all the same, for those who wait.
#[test]
fn a_panic_in_a_store_costs_no_follower() {
    watched(|| {
        let mut panics = 0;
        for nth in 1.. {
            let clock = Clock::manual();
            let mine = Mine(Arc::default());
            let builder = Cache::<Key, Value, String>::builder("bad").clock(clock.clone());
            let cache = builder.ttl(secs(10)).build().unwrap();
            let value = |n| Value(n, mine.clone());
            let bad = Key(0, mine.clone());
            cache.put(&bad, value(1)).unwrap();
            clock.advance(secs(12));
            let (got, panicked) = thread::scope(|s| {
                let mut follower = None;
                let call = || {
                    cache.get_with(&bad, |_| {
                        follower = Some(s.spawn(|| cache.get_with(&bad, |_| Ok(value(3)))));
                        wait_for_followers(&cache, 1);
                        mine.0.arm("Key::eq", nth);
                        Ok(value(2))
                    })
                };
                let _ = catch_unwind(AssertUnwindSafe(call));
                let panicked = !mine.0.disarm();
                (follower.unwrap().join().unwrap(), panicked)
            });
            assert_eq!(got.unwrap().value().unwrap().0, 2, "call {nth}");
            wait_for_quiet(&cache);
            if !panicked {
                break;
            }
            panics += 1;
        }
        assert!(panics > 0);
    });
}

#[test]
fn a_call_that_ends_with_a_panic_of_the_users_counts_as_one() {
    watched(|| {
        let mine = Mine(Arc::default());
        let cache = Cache::<Key, Value, String>::builder("bad").ttl(secs(10)).build().unwrap();
        let key = Key(1, mine.clone());
        let mut calls = 0;
        for code in ["Key::hash", "Key::clone", "Value::clone"] {
            for there in [false, true] {
                if there {
                    cache.put(&key, Value(1, mine.clone())).unwrap();
                } else {
                    cache.invalidate(&key).unwrap();
                }
                mine.0.arm(code, 1);
                let value = Value(1, mine.clone());
                let _ = catch_unwind(AssertUnwindSafe(|| cache.get_with(&key, |_| Ok(value))));
                mine.0.disarm();
                calls += 1;
                assert_eq!(cache.stats().calls(), calls, "{code}, there: {there}");
            }
        }
        assert_idle(&cache);
    });
}

/// An error is the loader's own, unchanged, and is dropped with the last who has it.
#[test]
fn an_error_is_not_kept() {
    struct Fault(Arc<AtomicUsize>);
    impl Drop for Fault {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let cache = Cache::<u64, u64, Fault>::builder("faulty").ttl(secs(1)).build().unwrap();
    let result = cache.get_with(&1, |_| Err::<u64, _>(Fault(Arc::clone(&dropped))));
    assert_eq!(dropped.load(SeqCst), 0);
    drop(result);
    assert_eq!(dropped.load(SeqCst), 1);
}

#[test]
fn a_failure_in_one_cache_is_none_in_another() {
    let (a, b): (Numbers, Numbers) = (plain().build().unwrap(), plain().build().unwrap());
    assert!(a.get_with(&1, |_| Err::<u64, _>("away".into())).is_err());
    assert_eq!(got(b.get_with(&1, |_| Ok(1))).unwrap(), (Some(1), Source::Loaded));
}
