//! The epoch of a table, what is heard of other instances, and what is in doubt when nothing is.

use std::sync::Arc;
use std::thread;

use onefill::fleet::memory::{Memory, Moment, Op};
use onefill::fleet::{Event, News, Notice, Origin, Reaction, Tier};
use onefill::{Clock, Deadline, Source};

use super::support::*;

#[test]
fn values_of_an_epoch_that_is_over_are_misses_and_are_replaced() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let [one, two, late] = [0; 3].map(|_| instance(&memory, meter.numbered()));
        assert_eq!(one.value(7), "1");
        let before = memory.stored(&key(7)).unwrap();
        two.cache.invalidate_all().unwrap();
        // Its bytes are there still, and nobody takes them for a value.
        assert_eq!(memory.stored(&key(7)).unwrap().bytes, before.bytes);
        assert_eq!(late.value(7), "2");
        assert_ne!(memory.stored(&key(7)).unwrap().bytes, before.bytes);
        assert_eq!((one.value(7).as_str(), two.value(7).as_str()), ("2", "2"));
        assert_eq!([&one, &two, &late].map(|one| one.cache.stats().undecodable), [0; 3]);
    });
}

#[test]
fn an_epoch_that_was_asked_for_before_it_ended_is_not_remembered_after_that() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let [one, two] = [0; 2].map(|_| instance(&memory, meter.numbered()));
        assert_eq!(two.value(7), "1");
        thread::scope(|s| {
            let answer = one.link.hold(Op::Epoch, Moment::Reply);
            let asks = s.spawn(|| one.value(7));
            assert!(answer.wait_for(1, NOISE));
            two.cache.invalidate_all().unwrap();
            answer.release();
            // It began before, so it may have the value of before.
            let _ = asks.join().unwrap();
        });
        assert_eq!(one.value(7), two.value(7));
        assert_ne!(one.value(7), "1");
    });
}

/// What is loaded by the process that has the lease, from before everything is invalidated, and does
/// or does not come with its notice.
const SIZES: [usize; 2] = [0, 5_000];

fn page(value: &str, size: usize) -> String {
    format!("{value}{}", " ".repeat(size))
}

#[test]
fn who_waits_while_everything_is_invalidated_takes_nothing_of_before() {
    within(|| {
        for (size, expects_misses) in SIZES.into_iter().flat_map(|s| [(s, false), (s, true)]) {
            let (memory, old, new) = (Memory::new(), Stage::new(), Stage::new());
            let (one, three) = (instance(&memory, old.loader()), instance(&memory, new.loader()));
            let settings = |c: Builder| if expects_misses { c.expect_misses() } else { c };
            let two = start(&memory, |f| f, |c| settings(c).loader(new.loader()));
            new.end_with("new");
            thread::scope(|s| {
                let loads = s.spawn(|| one.value(7));
                old.begun();
                let before = s.spawn(|| two.value(7));
                two.until_claimed(1);
                three.cache.invalidate_all().unwrap();
                // It has heard of that, and waits on.
                two.until_claimed(2);
                let after = s.spawn(|| two.value(7));
                two.until_following(1);
                old.end_with(&page("old", size));
                assert_eq!(loads.join().unwrap().trim(), "old");
                before.join().unwrap();
                assert_eq!(after.join().unwrap(), "new", "{size}, {expects_misses}");
            });
            for instance in [&two, &three, &one] {
                assert_eq!(instance.value(7), "new", "{size}, {expects_misses}");
            }
            assert_eq!((old.loads(), new.loads()), (1, 1));
        }
    });
}

#[test]
fn what_comes_with_a_notice_is_of_the_epoch_that_was_heard_before_it() {
    within(|| {
        let (memory, old, new) = (Memory::new(), Stage::new(), Stage::new());
        let one = instance(&memory, old.loader());
        let [two, three] = [0; 2].map(|_| instance(&memory, new.loader()));
        new.end_with("new");
        thread::scope(|s| {
            let loads = s.spawn(|| one.value(7));
            old.begun();
            // The lease is taken; when it hears so, two things have happened since.
            let claim = two.link.hold(Op::Acquire, Moment::Reply);
            let waits = s.spawn(|| two.value(7));
            assert!(claim.wait_for(1, NOISE));
            three.cache.invalidate_all().unwrap();
            old.end_with("old");
            assert_eq!(loads.join().unwrap(), "old");
            claim.release();
            waits.join().unwrap();
        });
        assert_eq!((two.value(7), three.value(7)), ("new".to_string(), "new".to_string()));
    });
}

#[test]
fn a_claim_that_everything_overtakes_is_no_answer_to_calls_after_it() {
    within(|| {
        for moment in [Moment::Request, Moment::Reply] {
            let (memory, old, new) = (Memory::new(), Stage::new(), Stage::new());
            let one = instance(&memory, old.loader());
            let [two, three] = [0; 2].map(|_| instance(&memory, new.loader()));
            new.end_with("new");
            thread::scope(|s| {
                // The epoch is known to it, and nothing is stored yet.
                let lookup = two.link.hold(Op::Lookup, Moment::Reply);
                let before = s.spawn(|| two.value(7));
                assert!(lookup.wait_for(1, NOISE));
                let claim = two.link.hold(Op::Acquire, moment);
                if moment == Moment::Reply {
                    old.end_with("old");
                    assert_eq!(one.value(7), "old");
                }
                lookup.release();
                assert!(claim.wait_for(1, NOISE));
                if moment == Moment::Request {
                    old.end_with("old");
                    assert_eq!(one.value(7), "old");
                }
                three.cache.invalidate_all().unwrap();
                let after = s.spawn(|| two.value(7));
                two.until_following(1);
                claim.release();
                before.join().unwrap();
                assert_eq!(after.join().unwrap(), "new", "{moment:?}");
            });
            assert_eq!((two.value(7), three.value(7)), ("new".to_string(), "new".to_string()));
        }
    });
}

#[test]
fn who_waits_while_nothing_is_heard_takes_nothing_of_before() {
    within(|| {
        for size in SIZES {
            let (memory, old, new) = (Memory::new(), Stage::new(), Stage::new());
            let (one, three) = (instance(&memory, old.loader()), instance(&memory, new.loader()));
            let link = Arc::new(memory.peer());
            let tapped = Arc::new(Tapped::new(&link));
            let two = on(Arc::clone(&tapped), link, |f| f, |c| c.loader(new.loader()));
            new.end_with("new");
            thread::scope(|s| {
                let loads = s.spawn(|| one.value(7));
                old.begun();
                let before = s.spawn(|| two.value(7));
                two.until_claimed(1);
                two.link.mute(1);
                three.cache.invalidate_all().unwrap();
                // As after the subscription was lost and made again.
                tapped.tell(&Event::Up);
                two.until_claimed(2);
                let after = s.spawn(|| two.value(7));
                two.until_following(1);
                old.end_with(&page("old", size));
                assert_eq!(loads.join().unwrap().trim(), "old");
                before.join().unwrap();
                assert_eq!(after.join().unwrap(), "new", "{size}");
            });
            assert_eq!((two.value(7), three.value(7)), ("new".to_string(), "new".to_string()));
        }
    });
}

#[test]
fn a_lease_won_after_everything_was_invalidated_is_for_a_value_of_after() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let [two, three] = [0; 2].map(|_| instance(&memory, meter.numbered()));
        let holder = dead_holder(&memory, 7, ms(60_000));
        thread::scope(|s| {
            let waits = s.spawn(|| two.get(7).unwrap());
            two.until_claimed(1);
            three.cache.invalidate_all().unwrap();
            two.until_claimed(2);
            let (give, from) = (Reaction::TakeOver, Origin::random());
            memory.release(&key(7), holder, give, from, Deadline::NEVER).unwrap();
            assert_eq!(waits.join().unwrap().source(), Source::Loaded);
        });
        assert_eq!(three.get(7).unwrap().source(), Source::Fleet);
        assert_eq!(two.get(7).unwrap().source(), Source::Local);
        assert_eq!(meter.loads(), 1);
    });
}

#[test]
fn what_everything_made_out_of_date_is_not_good_as_new() {
    within(|| {
        let (memory, clock) = (Memory::manual(), Clock::manual());
        let [one, two] = two_that_see_no_change(&memory, &clock);
        one.cache.put(&7, "old".to_string()).unwrap();
        assert_eq!(two.value(7), "old");
        clock.advance(TTL);
        memory.advance(TTL);
        thread::scope(|s| {
            // It has found the old one in the tier, and asks for the lease to replace it.
            let claim = two.link.hold(Op::Acquire, Moment::Request);
            let loads = s.spawn(|| two.value(7));
            assert!(claim.wait_for(1, NOISE));
            one.cache.invalidate_all().unwrap();
            claim.release();
            assert_eq!(loads.join().unwrap(), "new");
        });
        assert_eq!((one.value(7), two.value(7)), ("new".to_string(), "new".to_string()));
    });
}

#[test]
fn everything_at_once_is_forgotten_in_the_moment_it_is_asked_for() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let [one, two] = [0; 2].map(|_| instance(&memory, meter.numbered()));
        for round in 0..200 {
            let (this, other) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
            this.cache.put(&7, "before".to_string()).unwrap();
            assert_eq!(other.value(7), "before");
            this.cache.invalidate_all().unwrap();
            assert!(this.cache.peek(&7).is_none() && other.cache.peek(&7).is_none());
            this.cache.put(&7, format!("after {round}")).unwrap();
            assert_eq!(other.value(7), format!("after {round}"));
            this.cache.invalidate_all().unwrap();
        }
        assert_eq!(meter.loads(), 0);
    });
}

#[test]
fn a_late_notice_does_not_bring_back_what_was_invalidated_since() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let link = Arc::new(memory.peer());
        let tapped = Arc::new(Tapped::new(&link));
        let one = on(Arc::clone(&tapped), link, |f| f, |c| c.loader(meter.numbered()));
        for from in [Origin::random(), Origin::random()] {
            one.cache.invalidate_all().unwrap();
            let earlier = memory.epoch(&table(), Deadline::NEVER).unwrap();
            one.cache.put(&7, "before".to_string()).unwrap();
            one.cache.invalidate_all().unwrap();
            let news = News::InvalidatedAll { table: table().fingerprint(), epoch: earlier };
            tapped.tell(&Event::Notice(Notice { from, news }));
            assert_eq!(one.get(7).unwrap().source(), Source::Loaded);
        }
    });
}

#[test]
fn of_two_epochs_that_cross_on_their_way_the_tiers_last_is_everybodys() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let [one, two] = [0; 2].map(|_| instance(&memory, meter.numbered()));
        for moment in [Moment::Request, Moment::Reply] {
            let last = thread::scope(|s| {
                let gate = one.link.hold(Op::InvalidateAll, moment);
                let first = s.spawn(|| one.cache.invalidate_all());
                assert!(gate.wait_for(1, NOISE));
                two.cache.invalidate_all().unwrap();
                two.cache.put(&7, "between".to_string()).unwrap();
                gate.release();
                first.join().unwrap().unwrap();
                if moment == Moment::Request { &one } else { &two }
            });
            let between = std::ptr::eq(last, &two);
            for instance in [&one, &two] {
                assert_eq!(instance.value(7) == "between", between, "{moment:?}");
            }
        }
    });
}

#[test]
fn a_tier_that_lost_everything_is_filled_anew() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let fleet = [0; 3].map(|_| instance(&memory, meter.numbered()));
        fleet.iter().for_each(|one| assert_eq!(one.value(7), "1"));
        // A restart, as the instances see it.
        fleet.iter().for_each(|one| one.link.down());
        memory.wipe();
        fleet.iter().for_each(|one| one.link.up());
        for one in &fleet {
            assert_eq!(one.value(7), "2");
            assert_eq!(one.get(7).unwrap().source(), Source::Local);
        }
        assert_eq!(memory.values(), 1);
    });
}

#[test]
fn after_a_gap_in_what_is_heard_every_entry_is_confirmed_by_one_look_at_the_tier() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let [one, two] = [0; 2].map(|_| instance(&memory, meter.numbered()));
        for id in 0..5 {
            assert_eq!(one.value(id), two.value(id));
        }
        two.link.down();
        assert!(!two.fleet.health().hears);
        // Not heard by two.
        one.cache.invalidate(&0).unwrap();
        assert_eq!(one.value(0), "6");
        two.link.up();
        assert!(two.fleet.health().hears);

        let looks = two.count(Op::Lookup);
        for id in 0..5 {
            assert!(two.cache.peek(&id).is_none(), "in doubt");
            assert_eq!(two.get(id).unwrap().source(), Source::Fleet);
            assert_eq!(two.get(id).unwrap().source(), Source::Local);
            assert_eq!(two.value(id), one.value(id));
        }
        assert_eq!(two.count(Op::Lookup), looks + 5);
        assert_eq!(meter.loads(), 6);
    });
}

#[test]
fn while_nothing_is_heard_an_entry_is_kept_for_a_second() {
    within(|| {
        let (memory, meter, clock) = (Memory::manual(), Meter::default(), Clock::manual());
        let one = instance(&memory, meter.numbered());
        let deaf = start_deaf(&memory, |f| f, |c| c.clock(clock.clone()).loader(meter.numbered()));
        // Read from the tier, loaded, and put.
        assert_eq!(one.value(0), "1");
        assert_eq!(deaf.get(0).unwrap().source(), Source::Fleet);
        assert_eq!(deaf.get(1).unwrap().source(), Source::Loaded);
        deaf.cache.put(&2, "put".to_string()).unwrap();
        for second in 0..3 {
            if second > 0 {
                // Confirmed by the tier, and good for another second.
                (0..3).for_each(|id| assert_eq!(deaf.get(id).unwrap().source(), Source::Fleet));
            }
            clock.advance(ms(999));
            memory.advance(ms(999));
            (0..3).for_each(|id| assert_eq!(deaf.get(id).unwrap().source(), Source::Local));
            clock.advance(ms(1));
            memory.advance(ms(1));
            (0..3).for_each(|id| assert!(deaf.cache.peek(&id).is_none(), "{id}"));
        }
        one.cache.invalidate(&0).unwrap();
        assert_eq!(deaf.value(0), "3");
        assert_eq!(meter.loads(), 3);
    });
}

#[test]
fn while_nothing_is_heard_the_end_of_a_second_is_none_to_refresh_ahead_of() {
    within(|| {
        let (memory, clock) = (Memory::manual(), Clock::manual());
        // A load that takes long enough for a refresh ahead of an end that is a second off.
        let hand = clock.clone();
        let loader = move |_: &Asked<'_>| -> Loaded {
            hand.advance(ms(100));
            Ok("loaded".to_string().into())
        };
        let deaf = start_deaf(
            &memory,
            |f| f,
            |c| c.clock(clock.clone()).ttl(ms(3_600_000)).early_refresh(1.0).loader(loader),
        );
        for _ in 0..3_000 {
            assert_eq!(deaf.value(7), "loaded");
            clock.advance(ms(10));
            memory.advance(ms(10));
        }
        let stats = deaf.cache.stats();
        assert_eq!((stats.loads, stats.refreshes_started, stats.refreshes_skipped), (1, 0, 0));
    });
}

#[test]
fn while_nothing_is_heard_an_epoch_is_asked_for_again_after_a_second() {
    within(|| {
        let (memory, meter, clock) = (Memory::new(), Meter::default(), Clock::manual());
        let one = instance(&memory, meter.numbered());
        let deaf = start_deaf(&memory, |f| f, |c| c.clock(clock.clone()).loader(meter.numbered()));
        assert_eq!((one.value(7).as_str(), deaf.value(7).as_str()), ("1", "1"));
        one.cache.invalidate_all().unwrap();
        let invalidated = std::time::Instant::now();
        until("the deaf one reads the new epoch", || {
            clock.advance(ms(1_000));
            deaf.value(7) != "1"
        });
        assert!(invalidated.elapsed() < ms(1_000) + NOISE);
    });
}

#[test]
fn a_change_of_one_key_leaves_the_others_alone() {
    within(|| {
        let (memory, meter) = (Memory::new(), Meter::default());
        let [one, two] = [0; 2].map(|_| instance(&memory, meter.numbered()));
        for id in 0..200 {
            one.value(id);
        }
        for id in 0..200 {
            two.value(id);
        }
        let looks = two.count(Op::Lookup);
        one.cache.invalidate(&0).unwrap();
        for id in 1..200 {
            two.value(id);
        }
        // One in 4,096 shares the part of the key that was changed.
        assert!(two.count(Op::Lookup) - looks <= 2);
    });
}
