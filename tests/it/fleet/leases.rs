//! The lease: ends by itself, is renewed while its load runs, is given back on every way out, and
//! its loss is a value.

use std::borrow::Cow;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use onefill::fleet::memory::{Memory, Moment, Op};
use onefill::fleet::{Codec, Fleet, codec};
use onefill::{Cache, Clock, CodecError, Fill, Source, TierError};

use super::support::*;

#[test]
fn a_lease_has_an_end_from_the_moment_it_is_there() {
    within(|| {
        let (memory, stage) = (Memory::manual(), Stage::new());
        let one = start(&memory, |f| f.lease(ms(1_500)), |c| c.loader(stage.loader()));
        thread::scope(|s| {
            let loads = s.spawn(|| one.value(7));
            stage.begun();
            assert_eq!(memory.lease(&key(7)).unwrap().1, ms(1_500));
            assert_eq!(one.fleet.health().leases, 1);
            stage.end_with("tea");
            loads.join().unwrap();
        });
        assert_eq!((memory.leases(), one.fleet.health().leases), (0, 0));
    });
}

/// Loads a key in one instance, and when that is over in another, which must not have to wait.
#[track_caller]
fn the_lease_is_given_back(
    what: &str,
    settings: impl FnOnce(Builder) -> Builder + Send + 'static,
    end: fn() -> Loaded,
    get: impl FnOnce(&Instance) + Send + 'static,
) {
    let what = what.to_string();
    within(move || {
        let memory = Memory::new();
        let one = start(&memory, |f| f, |c| settings(c).loader(move |_| end()));
        get(&one);
        one.until_refreshed();
        assert_eq!(memory.lease(&key(7)), None, "{what}");
        assert_eq!(memory.stored(&key(7)), None, "{what}");
        assert_eq!(one.fleet.health().leases, 0, "{what}");
        let two = instance(&memory, |_| Ok(Fill::new("tea".into())));
        assert_eq!(two.get(7).unwrap().source(), Source::Loaded, "{what}");
        assert_eq!(two.count(Op::Acquire), 1, "{what}");
        assert!(memory.stored(&key(7)).is_some(), "{what}");
    });
}

#[test]
fn whatever_becomes_of_a_load_its_lease_is_given_back_at_once() {
    let answered = |one: &Instance| drop(one.get(7).unwrap());
    let same = |c: Builder| c;
    the_lease_is_given_back(
        "not to be stored",
        same,
        || Ok(Fill::new("tea".into()).do_not_store()),
        answered,
    );
    the_lease_is_given_back(
        "a lifetime of zero",
        same,
        || Ok(Fill::new("tea".into()).ttl(Duration::ZERO)),
        answered,
    );
    the_lease_is_given_back(
        "an absence that is not stored",
        |c| c.absent_ttl(Duration::ZERO),
        || Ok(Fill::absent()),
        answered,
    );
    the_lease_is_given_back(
        "a failure",
        same,
        || Err("no"),
        |one| {
            assert!(one.get(7).unwrap_err().is_failed());
        },
    );
    the_lease_is_given_back(
        "a panic",
        same,
        || std::panic::resume_unwind(Box::new("a quiet panic")),
        |one| {
            let get = std::panic::AssertUnwindSafe(|| one.get(7));
            assert!(std::panic::catch_unwind(get).is_err());
        },
    );
    the_lease_is_given_back(
        "nothing unchanged",
        same,
        || Ok(Fill::unchanged()),
        |one| {
            assert!(one.get(7).is_err());
        },
    );
    the_lease_is_given_back(
        "a value over the limit",
        |c| c.max_stored(10),
        || Ok(Fill::new("x".repeat(11))),
        |one| {
            assert_eq!(one.value(7).len(), 11);
            assert_eq!(one.cache.stats().not_encoded, 1);
            assert_eq!((one.count(Op::Commit), one.count(Op::Release)), (0, 1));
            // It does for this instance.
            assert_eq!(one.get(7).unwrap().source(), Source::Local);
        },
    );
}

/// Encodes nothing, and decodes all.
struct Mute;

impl Codec<String> for Mute {
    fn format(&self) -> Cow<'static, str> {
        "raw".into()
    }

    fn encode(&self, _: &String, _: &mut Vec<u8>) -> Result<(), CodecError> {
        Err(CodecError::encode("no words"))
    }

    fn decode(&self, bytes: &[u8]) -> Result<String, CodecError> {
        codec::Raw.decode(bytes)
    }
}

#[test]
fn a_value_without_bytes_leaves_no_lease_behind() {
    within(|| {
        let memory = Memory::new();
        let fleet = Fleet::on(memory.peer());
        let one: Pages = Cache::builder("page")
            .ttl(TTL)
            .loader(|_: &Asked<'_>| Ok("tea".to_string()))
            .fleet(&fleet, Mute)
            .build()
            .unwrap();
        assert_eq!(value(one.get(&7)), "tea");
        assert_eq!(one.stats().not_encoded, 1);
        assert_eq!((memory.values(), memory.leases()), (0, 0));
        assert_eq!(one.get(&7).unwrap().source(), Source::Local);
    });
}

#[test]
fn a_load_that_was_invalidated_leaves_no_lease_behind() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let (one, two) = (instance(&memory, stage.loader()), instance(&memory, stage.loader()));
        thread::scope(|s| {
            let loads = s.spawn(|| one.value(7));
            stage.begun();
            one.cache.invalidate(&7).unwrap();
            assert_eq!(memory.lease(&key(7)), None);
            stage.end_with("old");
            assert_eq!(loads.join().unwrap(), "old");
        });
        assert_eq!((memory.values(), memory.leases()), (0, 0));
        stage.end_with("new");
        assert_eq!(two.value(7), "new");
    });
}

#[test]
fn a_load_that_outlasts_its_caller_gives_its_lease_back_when_it_ends() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let one = start(&memory, |f| f, |c| c.workers(1).loader(stage.loader()));
        let two = instance(&memory, stage.loader());
        let late = one.cache.with().timeout(ms(50)).get(&7);
        assert!(late.unwrap_err().is_timed_out());
        stage.begun();
        assert!(memory.lease(&key(7)).is_some());
        stage.end_with("tea");
        one.until_refreshed();
        assert_eq!(memory.leases(), 0);
        assert_eq!(two.get(7).unwrap().source(), Source::Fleet);
    });
}

#[test]
fn a_load_that_is_not_admitted_in_time_gives_its_lease_back() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let one = start(&memory, |f| f, |c| c.admission(1).loader(stage.loader()));
        thread::scope(|s| {
            let loads = s.spawn(|| one.value(8));
            stage.begun();
            let late = one.cache.with().timeout(ms(50)).get(&7);
            assert!(late.unwrap_err().is_timed_out());
            assert_eq!((memory.lease(&key(7)), stage.loads()), (None, 1));
            stage.end_with("tea");
            loads.join().unwrap();
        });
    });
}

#[test]
fn a_refresh_gives_the_lease_back_from_the_thread_that_ran_it() {
    within(|| {
        let (memory, meter, clock) = (Memory::manual(), Meter::default(), Clock::manual());
        let settings = |c: Builder| c.stale_while_revalidate(TTL).clock(clock.clone());
        let one = start(&memory, |f| f, |c| settings(c).loader(meter.numbered()));
        assert_eq!(one.value(7), "1");
        clock.advance(TTL);
        memory.advance(TTL);
        assert!(one.get(7).unwrap().is_stale());
        one.until_refreshed();
        assert_eq!((one.value(7).as_str(), memory.leases()), ("2", 0));
        assert_eq!(one.cache.stats().leases_lost, 0);
    });
}

#[test]
fn a_load_that_takes_longer_than_its_lease_keeps_it() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let one = start(&memory, |f| f.lease(ms(600)), |c| c.loader(stage.loader()));
        let two = instance(&memory, stage.loader());
        thread::scope(|s| {
            let loads = s.spawn(|| one.value(7));
            stage.begun();
            // Renewed at a third: the fourth time it would have been over.
            until("it was renewed four times", || one.count(Op::Renew) >= 4);
            assert!(memory.lease(&key(7)).is_some());
            let waits = s.spawn(|| two.value(7));
            two.until_claimed(1);
            stage.end_with("tea");
            assert_eq!(
                (loads.join().unwrap(), waits.join().unwrap()),
                ("tea".into(), "tea".into())
            );
        });
        assert_eq!((stage.loads(), one.cache.stats().leases_lost), (1, 0));
        assert_eq!((memory.values(), memory.leases()), (1, 0));
    });
}

#[test]
fn a_renewal_that_fails_is_tried_again() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let one = start(&memory, |f| f.lease(ms(900)), |c| c.loader(stage.loader()));
        let lost = TierError::Garbled("half an answer".into());
        one.link.fail_next(1, Op::Renew, Moment::Request, lost);
        thread::scope(|s| {
            let loads = s.spawn(|| one.value(7));
            stage.begun();
            until("it was renewed", || one.count(Op::Renew) >= 4);
            stage.end_with("tea");
            loads.join().unwrap();
        });
        assert_eq!((memory.values(), one.cache.stats().leases_lost), (1, 0));
    });
}

#[test]
fn renewals_that_hang_do_not_cost_the_other_leases_their_time() {
    within(|| {
        const KEYS: u64 = 4;
        let (memory, stage) = (Memory::new(), Stage::new());
        let settings = |c: Builder| c.loader(stage.loader());
        let one = start(&memory, |f| f.lease(ms(3_000)).budget(ms(100)), settings);
        let hangs = one.link.hold(Op::Renew, Moment::Request);
        thread::scope(|s| {
            let herd: Vec<_> = (0..KEYS)
                .map(|id| {
                    let one = &one;
                    s.spawn(move || one.value(id))
                })
                .collect();
            (0..KEYS).for_each(|_| stage.begun());
            // Were each waited for until the next is due, the last would come too late.
            assert!(hangs.wait_for(3, PATIENCE));
            hangs.release();
            until("all were renewed", || one.count(Op::Renew) >= 3 + 2 * KEYS);
            (0..KEYS).for_each(|_| stage.end_with("tea"));
            herd.into_iter().for_each(|caller| assert_eq!(caller.join().unwrap(), "tea"));
        });
        assert_eq!(one.cache.stats().leases_lost, 0);
    });
}

#[test]
fn a_load_that_hangs_loses_its_lease_at_the_cap() {
    within(|| {
        let (memory, stage) = (Memory::new(), Stage::new());
        let one =
            start(&memory, |f| f.lease(ms(150)).lease_cap(ms(300)), |c| c.loader(stage.loader()));
        thread::scope(|s| {
            let started = Instant::now();
            let loads = s.spawn(|| one.value(7));
            stage.begun();
            until("the lease is over", || memory.lease(&key(7)).is_none());
            assert!(started.elapsed() >= ms(300));
            let renewals = one.count(Op::Renew);
            assert!((1..=6).contains(&renewals), "{renewals}");
            stage.end_with("late");
            // The caller has it, and nobody else: it may be out of date by now.
            assert_eq!(loads.join().unwrap(), "late");
            assert_eq!(one.count(Op::Renew), renewals);
        });
        assert_eq!((memory.values(), memory.leases()), (0, 0));
        assert!(one.cache.peek(&7).is_none());
        assert_eq!(one.cache.stats().leases_lost, 1);
    });
}

#[test]
fn one_thread_renews_all_leases_and_is_gone_with_the_last_handle() {
    within(|| {
        const KEYS: u64 = 20;
        let stage = Stage::new();
        let link = Arc::new(Memory::new());
        let tier = Arc::new(Tapped::new(&link));
        let one = on(
            Arc::clone(&tier),
            Arc::clone(&link),
            |f| f.lease(ms(600)),
            |c| c.loader(stage.loader()),
        );
        thread::scope(|s| {
            let herd: Vec<_> = (0..KEYS)
                .map(|id| {
                    let one = &one;
                    s.spawn(move || one.value(id))
                })
                .collect();
            (0..KEYS).for_each(|_| stage.begun());
            assert_eq!(one.fleet.health().leases, 20);
            until("all were renewed", || one.count(Op::Renew) >= 4 * KEYS);
            (0..KEYS).for_each(|_| stage.end_with("tea"));
            herd.into_iter().for_each(|caller| assert_eq!(caller.join().unwrap(), "tea"));
        });
        assert_eq!(one.cache.stats().leases_lost, 0);
        let mut renewers = tier.renewers.lock().unwrap().clone();
        renewers.dedup();
        assert_eq!(renewers.len(), 1);

        // It holds the tier for as long as it is there.
        let alive: Weak<Tapped> = Arc::downgrade(&tier);
        drop(tier);
        let Instance { cache, fleet, .. } = one;
        drop(fleet);
        assert_eq!(value(cache.get(&1)), "tea");
        drop(cache);
        until("the thread is gone", || alive.strong_count() == 0);
    });
}

/// Instance `one` loads key 7 for so long that its lease ends, and `two` has taken over.
fn with_a_late_holder(
    body: impl FnOnce(&Memory, [&Instance; 2], [&Stage; 2], thread::ScopedJoinHandle<'_, String>)
    + Send
    + 'static,
) {
    within(|| {
        let (memory, stages) = (Memory::manual(), [Stage::new(), Stage::new()]);
        let [one, two] = stages.each_ref().map(|stage| instance(&memory, stage.loader()));
        thread::scope(|s| {
            let late = s.spawn(|| one.value(7));
            stages[0].begun();
            memory.advance(ms(10_000));
            assert_eq!(memory.lease(&key(7)), None);
            body(&memory, [&one, &two], stages.each_ref(), late);
        });
        assert_eq!(memory.leases(), 0);
    });
}

#[test]
fn a_late_holder_keeps_its_value_and_touches_neither_the_lease_nor_the_value_of_another() {
    with_a_late_holder(|memory, [one, two], [late, quick], caller| {
        thread::scope(|s| {
            let taken_over = s.spawn(|| two.value(7));
            quick.begun();
            let holder = memory.lease(&key(7)).unwrap().0;
            late.end_with("old");
            assert_eq!(caller.join().unwrap(), "old");
            assert_eq!(memory.lease(&key(7)).unwrap().0, holder);
            assert_eq!(memory.stored(&key(7)), None);
            assert!(one.cache.peek(&7).is_none());
            assert_eq!(one.cache.stats().leases_lost, 1);
            quick.end_with("new");
            assert_eq!(taken_over.join().unwrap(), "new");
        });
        assert_eq!(one.value(7), "new");
        assert_eq!(late.loads() + quick.loads(), 2);
    });
}

#[test]
fn a_late_holder_does_not_write_over_a_newer_value() {
    with_a_late_holder(|memory, [one, two], [late, quick], caller| {
        quick.end_with("new");
        assert_eq!(two.value(7), "new");
        let stored = memory.stored(&key(7));
        late.end_with("old");
        assert_eq!(caller.join().unwrap(), "old");
        assert_eq!(memory.stored(&key(7)), stored);
        assert!(one.cache.peek(&7).is_none());
        assert_eq!((one.value(7).as_str(), two.value(7).as_str()), ("new", "new"));
        assert_eq!(one.cache.stats().leases_lost, 1);
    });
}

#[test]
fn a_late_holder_that_fails_gives_back_nobody_elses_lease() {
    with_a_late_holder(|memory, [one, two], [late, quick], caller| {
        thread::scope(|s| {
            let taken_over = s.spawn(|| two.value(7));
            quick.begun();
            let holder = memory.lease(&key(7)).unwrap().0;
            late.end(Ok(Fill::new("old".into()).do_not_store()));
            assert_eq!(caller.join().unwrap(), "old");
            assert_eq!(one.count(Op::Release), 1);
            assert_eq!(memory.lease(&key(7)).unwrap().0, holder);
            quick.end_with("new");
            assert_eq!(taken_over.join().unwrap(), "new");
        });
        assert_eq!(two.value(7), "new");
    });
}

#[test]
fn a_lease_that_the_tier_forgot_is_a_lost_one() {
    within(|| {
        let (memory, stages) = (Memory::manual(), [Stage::new(), Stage::new()]);
        let [one, two] = stages.each_ref().map(|stage| instance(&memory, stage.loader()));
        thread::scope(|s| {
            let a = s.spawn(|| one.value(7));
            stages[0].begun();
            memory.drop_lease(&key(7));
            let b = s.spawn(|| two.value(7));
            stages[1].begun();
            stages[1].end_with("b");
            assert_eq!(b.join().unwrap(), "b");
            stages[0].end_with("a");
            assert_eq!(a.join().unwrap(), "a");
        });
        assert_eq!((one.value(7).as_str(), two.value(7).as_str()), ("b", "b"));
        assert_eq!(memory.leases(), 0);
    });
}

#[test]
fn the_end_of_a_lease_is_told_by_the_tiers_clock_alone() {
    within(|| {
        for (ahead, behind) in [(ms(0), ms(3_600_000)), (ms(3_600_000), ms(0))] {
            let (memory, stage) = (Memory::manual(), Stage::new());
            let [one, two] = [ahead, behind].map(|off| {
                let clock = Clock::manual();
                clock.advance(off);
                start(
                    &memory,
                    |f| f.lease(ms(5_000)),
                    |c| c.clock(clock).loser_wait(ms(20_000)).loader(stage.loader()),
                )
            });
            thread::scope(|s| {
                let hangs = s.spawn(|| one.value(7));
                stage.begun();
                let waits = s.spawn(|| two.value(7));
                two.until_claimed(2);
                assert_eq!(stage.loads(), 1);
                memory.advance(ms(5_000));
                stage.begun();
                stage.end_with("tea");
                stage.end_with("tea");
                hangs.join().unwrap();
                assert_eq!(waits.join().unwrap(), "tea");
            });
            assert_eq!(stage.loads(), 2);
        }
    });
}

/// A loader is told the token of its lease, for a database that wants to tell a late load from a
/// later one; and that it has none, where there is none.
#[test]
fn a_loader_is_told_the_token_of_its_lease() {
    within(|| {
        let memory = Memory::new();
        let (told, tokens) = crossbeam_channel::unbounded();
        let peer = memory.peer();
        let loader = move |load: &Asked<'_>| {
            told.send((load.token(), peer.lease(&key(*load.key())))).unwrap();
            Ok(Fill::from("tea".to_string()))
        };
        let one = instance(&memory, loader);
        for id in [7, 8] {
            assert_eq!(one.value(id), "tea");
            let (token, lease) = tokens.recv().unwrap();
            assert!(token.is_some());
            assert_eq!(token, lease.map(|(holder, _)| holder));
        }
        one.link.down();
        assert_eq!(one.value(9), "tea");
        assert_eq!(tokens.recv().unwrap().0, None);
    });
}

/// The claim was made, and its answer came too late for its caller to do anything about it: nobody
/// is to wait for that lease until it ends.
#[test]
fn a_lease_that_was_won_too_late_to_hear_of_it_is_given_back() {
    within(|| {
        let memory = Memory::manual();
        let one =
            start(&memory, |f| f, |c| c.loader(|_: &Asked<'_>| Ok(Fill::from("tea".to_string()))));
        let _ = one.get(1).unwrap();
        let acquire = one.link.hold(Op::Acquire, Moment::Reply);
        let call = one.cache.with().timeout(ms(200));
        thread::scope(|s| {
            let caller = s.spawn(|| call.get(&7));
            assert!(acquire.wait_for(1, NOISE));
            // Its half of the time is over, and the whole of it.
            let answer = caller.join().unwrap();
            assert_eq!(value(answer), "tea");
        });
        acquire.release();
        until("the lease is given back", || memory.leases() == 0);
    });
}

/// Who asks with little time, and has a worker load, does not have it load in a hurry for all who
/// wait.
#[test]
fn a_worker_takes_its_time_for_the_tier_whoever_set_it_off() {
    within(|| {
        let memory = Memory::new();
        let loader = |asked: &Asked<'_>| {
            assert!(asked.token().is_some(), "under a lease");
            Ok(Fill::from("tea".to_string()))
        };
        let one = start(&memory, |f| f, |c| c.workers(1).loader(loader));
        let two = instance(&memory, |_: &Asked<'_>| panic!("it is there"));
        let lookup = one.link.hold(Op::Lookup, Moment::Reply);
        assert!(one.cache.with().timeout(ms(1)).get(&7).unwrap_err().is_timed_out());
        assert!(lookup.wait_for(1, NOISE));
        lookup.release();
        until("the load has ended", || one.cache.stats().gauges.flights == 0);
        assert_eq!(one.cache.stats().degraded, 0);
        assert_eq!(two.get(7).unwrap().source(), Source::Fleet);
    });
}

/// Whatever thread did it, an answer says where it came from.
#[test]
fn an_answer_that_a_worker_found_says_where() {
    within(|| {
        let memory = Memory::new();
        let loader = |_: &Asked<'_>| Ok(Fill::from("tea".to_string()));
        let one = start(&memory, |f| f, |c| c.workers(1).loader(loader));
        let two = start(&memory, |f| f, |c| c.workers(1).loader(loader));
        assert_eq!(one.get(7).unwrap().source(), Source::Loaded);
        assert_eq!(two.get(7).unwrap().source(), Source::Fleet);
        let stats = two.cache.stats();
        assert_eq!((stats.fleet_hits, stats.loaded, stats.loads), (1, 0, 0));
        two.link.down();
        assert_eq!(two.get(8).unwrap().source(), Source::Alone);
    });
}
