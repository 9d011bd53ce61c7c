//! Invalidation and put against what is in flight, in this instance and in others.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use crossbeam_channel::bounded;
use onefill::fleet::memory::{Memory, Moment, Op};
use onefill::fleet::{Event, News, Notice, Origin, codec};
use onefill::{Cache, Clock, Fill, Refusal, Source, TierError, Why};

use super::support::*;

/// What makes a value that is being loaded out of date.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Invalidate,
    InvalidateAll,
    Put,
}

const CHANGES: [Change; 3] = [Change::Invalidate, Change::InvalidateAll, Change::Put];

impl Change {
    fn make(self, at: &Instance) {
        match self {
            Change::Invalidate => at.cache.invalidate(&7),
            Change::InvalidateAll => at.cache.invalidate_all(),
            Change::Put => at.cache.put(&7, "new".to_string()),
        }
        .unwrap();
    }
}

#[test]
fn a_value_that_was_out_of_date_before_it_was_loaded_is_kept_nowhere() {
    within(|| {
        for change in CHANGES {
            for elsewhere in [false, true] {
                let (memory, stage) = (Memory::new(), Stage::new());
                let [one, two, three] = [0; 3].map(|_| instance(&memory, stage.loader()));
                thread::scope(|s| {
                    let loads = s.spawn(|| one.value(7));
                    stage.begun();
                    change.make(if elsewhere { &two } else { &one });
                    stage.end_with("old");
                    assert_eq!(loads.join().unwrap(), "old");
                });
                let what = format!("{change:?}, elsewhere: {elsewhere}");
                if change != Change::Put {
                    stage.end_with("new");
                }
                for reader in [&three, &one, &two] {
                    assert_eq!(reader.value(7), "new", "{what}");
                }
                let loads = if change == Change::Put { 1 } else { 2 };
                assert_eq!(stage.loads(), loads, "{what}");
                assert_eq!(memory.leases(), 0, "{what}");
            }
        }
    });
}

#[test]
fn a_call_that_begins_after_an_invalidation_elsewhere_does_not_join_the_load_before_it() {
    within(|| {
        for change in CHANGES {
            let (memory, stage) = (Memory::new(), Stage::new());
            let [one, two] = [0; 2].map(|_| instance(&memory, stage.loader()));
            thread::scope(|s| {
                let before = s.spawn(|| one.value(7));
                stage.begun();
                change.make(&two);
                let after = s.spawn(|| one.value(7));
                one.until_following(1);
                stage.end_with("old");
                assert_eq!(before.join().unwrap(), "old");
                if change != Change::Put {
                    stage.begun();
                    stage.end_with("new");
                }
                assert_eq!(after.join().unwrap(), "new", "{change:?}");
            });
        }
    });
}

#[test]
fn a_refresh_that_was_overtaken_by_an_invalidation_is_kept_nowhere() {
    within(|| {
        let (memory, stage, clock) = (Memory::manual(), Stage::new(), Clock::manual());
        let [one, two] = [0; 2].map(|_| {
            let settings = |c: Builder| c.stale_while_revalidate(TTL).clock(clock.clone());
            start(&memory, |f| f, |c| settings(c).loader(stage.loader()))
        });
        stage.end_with("oldest");
        assert_eq!(one.value(7), "oldest");
        stage.begun();
        clock.advance(TTL);
        memory.advance(TTL);
        assert!(one.get(7).unwrap().is_stale());
        stage.begun();
        two.cache.invalidate(&7).unwrap();
        stage.end_with("old");
        one.until_refreshed();
        assert_eq!((memory.values(), memory.leases()), (0, 0));
        assert!(one.cache.peek(&7).is_none());
        stage.end_with("new");
        assert_eq!((one.value(7).as_str(), two.value(7).as_str()), ("new", "new"));
    });
}

#[test]
fn what_was_read_from_the_tier_before_an_invalidation_is_not_kept_after_it() {
    within(|| {
        for step in [Op::Lookup, Op::Acquire] {
            for change in CHANGES {
                let (memory, stage) = (Memory::new(), Stage::new());
                let [one, two] = [0; 2].map(|_| instance(&memory, stage.loader()));
                thread::scope(|s| {
                    let lookup = one.link.hold(Op::Lookup, Moment::Reply);
                    let answer = (step == Op::Acquire).then(|| {
                        // The lookup finds nothing, and the claim a value.
                        one.link.hold(Op::Acquire, Moment::Reply)
                    });
                    if step == Op::Lookup {
                        stage.end_with("old");
                        assert_eq!(two.value(7), "old");
                    }
                    let reads = s.spawn(|| one.value(7));
                    assert!(lookup.wait_for(1, NOISE));
                    if let Some(answer) = &answer {
                        stage.end_with("old");
                        assert_eq!(two.value(7), "old");
                        drop(lookup);
                        assert!(answer.wait_for(1, NOISE));
                        change.make(&two);
                    } else {
                        change.make(&two);
                        drop(lookup);
                    }
                    drop(answer);
                    // It began before: it may have what was there then.
                    assert_eq!(reads.join().unwrap(), "old");
                });
                if change != Change::Put {
                    stage.end_with("new");
                }
                assert_eq!(one.value(7), "new", "{step:?}, {change:?}");
                assert_eq!(two.value(7), "new", "{step:?}, {change:?}");
            }
        }
    });
}

#[test]
fn what_is_read_while_a_change_is_on_its_way_is_not_kept_after_it() {
    within(|| {
        for (op, change) in [
            (Op::Invalidate, Change::Invalidate),
            (Op::InvalidateAll, Change::InvalidateAll),
            (Op::Put, Change::Put),
        ] {
            let (memory, changed) = (Memory::new(), Arc::new(AtomicBool::new(false)));
            let source = Arc::clone(&changed);
            let one = instance(&memory, move |_| {
                let row = if source.load(SeqCst) { "new" } else { "old" };
                Ok(Fill::new(row.to_string()))
            });
            assert_eq!(one.value(7), "old");
            thread::scope(|s| {
                let sent = one.link.hold(op, Moment::Request);
                changed.store(true, SeqCst);
                let changes = s.spawn(|| change.make(&one));
                assert!(sent.wait_for(1, NOISE));
                // The change is not over: either will do.
                let _ = one.value(7);
                sent.release();
                changes.join().unwrap();
            });
            assert_eq!(one.value(7), "new", "{change:?}");
        }
    });
}

#[test]
fn of_two_puts_that_cross_on_their_way_the_tiers_last_is_everybodys() {
    within(|| {
        for last in [Change::Invalidate, Change::Put] {
            let memory = Memory::new();
            let (reached, at) = bounded(1);
            let (go, cue) = bounded::<()>(1);
            let weigher = move |_: &u64, value: &String| {
                if value == "first" {
                    reached.send(()).unwrap();
                    cue.recv().unwrap();
                }
                1
            };
            let one = start(
                &memory,
                |f| f,
                |c| c.capacity_by_weight(100, weigher).loader(|_| Ok(Fill::new("loaded".into()))),
            );
            thread::scope(|s| {
                let first = s.spawn(|| one.cache.put(&7, "first".to_string()));
                // Stored in the tier, and not here yet.
                at.recv_timeout(NOISE).unwrap();
                last.make(&one);
                go.send(()).unwrap();
                first.join().unwrap().unwrap();
            });
            let expected = if last == Change::Put { "new" } else { "loaded" };
            assert_eq!(one.value(7), expected);
            assert_eq!(one.get(7).unwrap().source(), Source::Local);
        }
    });
}

#[test]
fn no_call_sees_what_was_before_an_invalidation_that_this_instance_has_made() {
    within(|| {
        const KEYS: usize = 4;
        let memory = Memory::new();
        let rows = Arc::new([const { AtomicU64::new(0) }; KEYS]);
        let fleet = [0; 3].map(|_| {
            let rows = Arc::clone(&rows);
            instance(&memory, move |load: &Asked<'_>| {
                let row = rows[*load.key() as usize].load(SeqCst);
                thread::yield_now();
                Ok(Fill::new(row.to_string()))
            })
        });
        let read = |one: &Instance, id: usize| one.value(id as u64).parse::<u64>().unwrap();
        thread::scope(|s| {
            for one in &fleet {
                for nth in 0..2 {
                    let rows = &rows;
                    s.spawn(move || {
                        for round in 0..600 {
                            let id = (round + nth) % KEYS;
                            let changed = rows[id].fetch_add(1, SeqCst) + 1;
                            one.cache.invalidate(&(id as u64)).unwrap();
                            let seen = read(one, id);
                            assert!(seen >= changed, "{seen} after {changed}");
                        }
                    });
                }
                s.spawn(move || {
                    for round in 0..3_000 {
                        read(one, round % KEYS);
                    }
                });
            }
        });
        for one in &fleet {
            for (id, row) in rows.iter().enumerate() {
                assert_eq!(read(one, id), row.load(SeqCst));
            }
        }
        assert_eq!(memory.leases(), 0);
    });
}

#[test]
fn an_invalidation_reaches_the_memory_of_every_instance_before_it_returns() {
    within(|| {
        for change in CHANGES {
            let (memory, stage) = (Memory::new(), Stage::new());
            let fleet = [0; 4].map(|_| instance(&memory, stage.loader()));
            stage.end_with("old");
            for one in &fleet {
                assert_eq!(one.value(7), "old");
                assert!(one.cache.peek(&7).is_some());
            }
            change.make(&fleet[0]);
            for one in &fleet[1..] {
                assert!(one.cache.peek(&7).is_none(), "{change:?}");
            }
            if change != Change::Put {
                stage.end_with("new");
            }
            for one in &fleet {
                assert_eq!(one.value(7), "new", "{change:?}");
                assert_eq!(one.get(7).unwrap().source(), Source::Local, "{change:?}");
            }
        }
    });
}

#[test]
fn an_invalidation_whose_notice_is_lost_is_made_up_for_by_the_ttl() {
    within(|| {
        let (memory, meter, clock) = (Memory::manual(), Meter::default(), Clock::manual());
        let [one, two] = [0; 2]
            .map(|_| start(&memory, |f| f, |c| c.clock(clock.clone()).loader(meter.numbered())));
        assert_eq!((one.value(7).as_str(), two.value(7).as_str()), ("1", "1"));
        two.link.mute(1);
        one.cache.invalidate(&7).unwrap();
        assert_eq!(one.value(7), "2");
        clock.advance(TTL);
        memory.advance(TTL - ms(1));
        assert_eq!(two.value(7), "2");
        assert_eq!(meter.loads(), 2);
    });
}

#[test]
fn nothing_of_a_key_is_left_in_the_tier_by_an_invalidation() {
    within(|| {
        let (memory, clock) = (Memory::manual(), Clock::manual());
        let meter = Meter::default();
        let ends = meter.loader(|nth| match nth {
            2 => Ok(Fill::absent()),
            _ => Ok(Fill::new(nth.to_string())),
        });
        let settings = |c: Builder| c.stale_while_revalidate(TTL).stale_if_error(2 * TTL);
        let one = start(&memory, |f| f, |c| settings(c).clock(clock.clone()).loader(ends));
        // Fresh, then absent, then stale.
        assert_eq!(one.value(7), "1");
        one.cache.invalidate(&7).unwrap();
        assert_eq!((memory.values(), memory.leases()), (0, 0));
        assert!(one.get(7).unwrap().is_absent());
        one.cache.invalidate(&7).unwrap();
        assert_eq!((memory.values(), memory.leases()), (0, 0));
        assert_eq!(one.value(7), "3");
        clock.advance(TTL);
        memory.advance(TTL);
        one.cache.invalidate(&7).unwrap();
        assert_eq!((memory.values(), memory.leases()), (0, 0));
        let next = one.get(7).unwrap();
        assert_eq!((next.value().unwrap().as_str(), next.source()), ("4", Source::Loaded));
    });
}

#[test]
fn a_record_that_was_just_made_is_not_hidden_by_its_absence() {
    within(|| {
        for change in CHANGES {
            let memory = Memory::new();
            let meter = Meter::default();
            let [one, two] = [0; 2].map(|_| {
                instance(
                    &memory,
                    meter.loader(|nth| {
                        Ok(if nth == 1 { Fill::absent() } else { Fill::new("new".into()) })
                    }),
                )
            });
            assert!(one.get(7).unwrap().is_absent());
            assert!(two.get(7).unwrap().is_absent());
            change.make(&one);
            assert_eq!((two.value(7).as_str(), one.value(7).as_str()), ("new", "new"));
            assert_eq!(meter.loads(), if change == Change::Put { 1 } else { 2 });
        }
    });
}

#[test]
fn a_tier_that_could_not_be_told_is_an_error_and_this_instance_forgets_all_the_same() {
    within(|| {
        let down = TierError::Unreachable("away".into());
        for (op, change) in [
            (Op::Invalidate, Change::Invalidate),
            (Op::InvalidateAll, Change::InvalidateAll),
            (Op::Put, Change::Put),
        ] {
            let (memory, stage) = (Memory::new(), Stage::new());
            let one = instance(&memory, stage.loader());
            thread::scope(|s| {
                let loads = s.spawn(|| one.value(7));
                stage.begun();
                one.link.fail_next(1, op, Moment::Request, down.clone());
                let told = match change {
                    Change::Invalidate => one.cache.invalidate(&7),
                    Change::InvalidateAll => one.cache.invalidate_all(),
                    Change::Put => one.cache.put(&7, "new".to_string()),
                };
                assert_eq!(told, Err(down.clone()), "{change:?}");
                stage.end_with("old");
                assert_eq!(loads.join().unwrap(), "old");
            });
            let kept = one.cache.peek(&7).and_then(|answer| answer.into_value());
            let expected = (change == Change::Put).then(|| "new".to_string());
            assert_eq!(kept, expected, "{change:?}");
        }
    });
}

impl Change {
    fn op(self) -> Op {
        match self {
            Change::Invalidate => Op::Invalidate,
            Change::InvalidateAll => Op::InvalidateAll,
            Change::Put => Op::Put,
        }
    }

    /// The same where the tier cannot be told.
    fn fails(self, at: &Instance) {
        let told = match self {
            Change::Invalidate => at.cache.invalidate(&7),
            Change::InvalidateAll => at.cache.invalidate_all(),
            Change::Put => at.cache.put(&7, "new".to_string()),
        };
        told.unwrap_err();
    }
}

fn away(_: &Asked<'_>) -> Loaded {
    Err("away")
}

fn denied() -> TierError {
    TierError::Refused { class: Refusal::Denied, text: "NOPERM".into() }
}

#[test]
fn what_the_tier_could_not_be_told_it_is_told_before_it_is_asked_again() {
    within(|| {
        for change in CHANGES {
            let (memory, clock) = (Memory::manual(), Clock::manual());
            let [one, two] = [0; 2].map(|_| {
                let settings = |c: Builder| c.clock(clock.clone()).stale_if_error(10 * TTL);
                start(&memory, |f| f, |c| settings(c).loader(|_| Ok(Fill::new("new".into()))))
            });
            two.cache.put(&7, "old".to_string()).unwrap();
            assert_eq!(one.value(7), "old");
            one.link.down();
            change.fails(&one);
            assert_eq!(one.value(7), "new", "{change:?}");
            one.link.up();
            // Not before: nobody else knows.
            assert_eq!(two.value(7), "old", "{change:?}");
            // What it leaves the tier alone for after trouble has passed, or the tier is told.
            until("the tier is asked again", || {
                let answer = one.get(7).unwrap();
                assert_eq!(answer.value().unwrap(), "new", "{change:?}");
                clock.advance(ms(1_000));
                answer.source() == Source::Loaded
            });
            assert_eq!(two.get(7).unwrap().source(), Source::Fleet, "{change:?}");
            assert_eq!(two.value(7), "new", "{change:?}");
        }
    });
}

#[test]
fn a_tier_that_cannot_be_told_is_not_asked_either() {
    within(|| {
        for change in CHANGES {
            let (memory, meter, clock) = (Memory::manual(), Meter::default(), Clock::manual());
            let settings = |c: Builder| c.clock(clock.clone()).stale_if_error(10 * TTL);
            let one = start(&memory, |f| f, |c| settings(c).loader(meter.numbered()));
            let two = instance(&memory, meter.numbered());
            let again = if change == Change::InvalidateAll { change.op() } else { Op::Invalidate };
            two.cache.put(&7, "old".to_string()).unwrap();
            two.cache.put(&8, "other".to_string()).unwrap();
            one.link.fail(change.op(), Moment::Request, denied());
            one.link.fail(again, Moment::Request, denied());
            change.fails(&one);
            let (looks, claims) = (one.count(Op::Lookup), one.count(Op::Acquire));
            for _ in 0..3 {
                assert_ne!(one.value(7), "old", "{change:?}");
                clock.advance(TTL);
            }
            assert_eq!((one.count(Op::Lookup), one.count(Op::Acquire)), (looks, claims));
            // Of another key it may be asked, unless all of them are meant.
            assert_eq!(one.value(8) == "other", change != Change::InvalidateAll, "{change:?}");
        }
    });
}

#[test]
fn a_tier_is_told_of_keys_that_nobody_here_asks_for_again() {
    within(|| {
        let memory = Memory::new();
        let one = instance(&memory, |_| Ok(Fill::new("new".into())));
        for id in 0..3 {
            one.cache.put(&id, "old".to_string()).unwrap();
        }
        let away = TierError::Refused { class: Refusal::Other, text: "ERR".into() };
        one.link.fail_next(3, Op::Invalidate, Moment::Request, away);
        for id in 0..3 {
            one.cache.invalidate(&id).unwrap_err();
        }
        assert_eq!(memory.values(), 3);
        // One with each load, after a while.
        let next = Cell::new(10);
        let load = || drop(one.value(next.replace(next.get() + 1)));
        until("it is told of one", || {
            load();
            one.count(Op::Invalidate) > 3
        });
        load();
        load();
        assert!((0..3).all(|id| memory.stored(&key(id)).is_none()));
        assert_eq!(one.count(Op::Invalidate), 6);
        load();
        assert_eq!(one.count(Op::Invalidate), 6);
    });
}

#[test]
fn what_was_heard_to_be_out_of_date_stands_in_for_nothing() {
    within(|| {
        // Fresh, and past that.
        for (change, age) in CHANGES.into_iter().flat_map(|c| [(c, ms(0)), (c, TTL)]) {
            let (memory, clock) = (Memory::manual(), Clock::manual());
            let [one, two] = [0; 2].map(|_| {
                let settings = |c: Builder| c.stale_if_error(10 * TTL).clock(clock.clone());
                start(&memory, |f| f, |c| settings(c).loader(away))
            });
            one.cache.put(&7, "old".to_string()).unwrap();
            assert_eq!(two.value(7), "old");
            clock.advance(age);
            memory.advance(age);
            change.make(&one);
            // So that it cannot find what is new.
            two.link.down();
            assert!(two.get(7).unwrap_err().is_failed(), "{change:?} at {age:?}");
            two.link.up();
            assert!(two.cache.peek(&7).is_none());
        }
    });
}

#[test]
fn what_is_merely_in_doubt_stands_in_for_a_failure() {
    within(|| {
        let memory = Memory::new();
        let [one, late] = [0; 2].map(|_| instance(&memory, |_| Ok(Fill::new("new".into()))));
        let other: Pages = Cache::builder("other")
            .ttl(TTL)
            .loader(|_: &Asked<'_>| Ok(Fill::new("other".to_string())))
            .fleet(&one.fleet, codec::Raw)
            .build()
            .unwrap();
        let two = start(&memory, |f| f, |c| c.stale_if_error(TTL).loader(away));
        one.cache.put(&7, "old".to_string()).unwrap();
        // Another table that goes, the connection, and the same key loaded anew.
        let causes: [&dyn Fn(); 3] =
            [&|| other.invalidate_all().unwrap(), &|| two.link.down(), &|| {
                memory.evict(&key(7));
                assert_eq!(late.get(7).unwrap().source(), Source::Loaded);
            }];
        for (nth, cause) in causes.into_iter().enumerate() {
            two.link.up();
            until("it is told by the tier", || two.get(7).unwrap().source() == Source::Local);
            cause();
            two.link.down();
            let answer = two.get(7).unwrap();
            assert_eq!(answer.source(), Source::Stale(Why::Failed), "{nth}");
            assert_eq!(answer.value().unwrap(), "old", "{nth}");
        }
    });
}

/// What is out of date is counted in few bits.
#[test]
fn what_is_out_of_date_stays_so_however_often_that_is_heard() {
    within(|| {
        let memory = Memory::new();
        let link = Arc::new(memory.peer());
        let tapped = Arc::new(Tapped::new(&link));
        let settings = |c: Builder| c.stale_if_error(TTL).loader(away);
        let one = on(Arc::clone(&tapped), link, |f| f, settings);
        one.cache.put(&7, "old".to_string()).unwrap();
        let news = News::Invalidated { key: key(7).fingerprint() };
        let notice = Event::Notice(Notice { from: Origin::random(), news });
        for _ in 0..=u16::MAX {
            tapped.tell(&notice);
        }
        one.link.down();
        assert!(one.get(7).unwrap_err().is_failed());
    });
}

#[test]
fn a_previous_value_is_what_the_tier_has_still() {
    within(|| {
        // Whether the second instance hears of it, and what becomes of the value.
        for (heard, change) in [(true, true), (false, true), (true, false)] {
            let (memory, clock) = (Memory::manual(), Clock::manual());
            let [one, two] = two_that_see_no_change(&memory, &clock);
            one.cache.put(&7, "old".to_string()).unwrap();
            assert_eq!(two.value(7), "old");
            clock.advance(TTL);
            memory.advance(TTL);
            if !heard {
                two.link.mute(1);
            }
            if change {
                one.cache.invalidate(&7).unwrap();
            }
            let answer = two.get(7).unwrap();
            assert_eq!(answer.source(), Source::Loaded);
            let expected = if change { "new" } else { "old" };
            assert_eq!(answer.value().unwrap(), expected, "heard: {heard}");
            assert_eq!(one.get(7).unwrap().source(), Source::Fleet);
            assert_eq!(one.value(7), expected, "heard: {heard}");
        }
    });
}

/// The shared tier has the new value by then, and a weigher is the user's.
#[test]
fn a_put_whose_weigher_panics_leaves_no_old_value_here() {
    within(|| {
        let memory = Memory::new();
        let weigher = |_: &u64, value: &String| {
            assert_ne!(value, "bomb");
            1
        };
        let loader = |_: &Asked<'_>| Ok(Fill::new("tea".into()));
        let one = start(&memory, |f| f, |c| c.capacity_by_weight(100, weigher).loader(loader));
        let two = instance(&memory, loader);
        assert_eq!(one.value(7), "tea");
        let put = catch_unwind(AssertUnwindSafe(|| one.cache.put(&7, "bomb".to_string())));
        assert!(put.is_err());
        assert!(one.cache.peek(&7).is_none());
        assert_eq!(two.value(7), "bomb");
    });
}
