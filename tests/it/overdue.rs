//! Flights that are up for longer than they should be: the next caller leads.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use onefill::{Error, Group, Lead};

use crate::support::*;

type Numbers = Group<u64, u64, String>;

/// The age at which a flight of these tests is overdue.
const AGE: Duration = Duration::from_millis(20);

fn group_with_age(age: Duration) -> Numbers {
    Group::builder().max_flight_age(age).build()
}

/// Lets all flights that are boarded now become overdue.
fn until_overdue(age: Duration) {
    let now = Instant::now();
    until("a flight is overdue", || now.elapsed() > age);
}

type Follower<'s> = thread::ScopedJoinHandle<'s, (Result<u64, Error<String>>, Duration)>;

/// Leads a flight that has one follower, which says how it ended and how long that took.
///
/// A follower that was so slow to start that the flight was overdue leads instead. Then anew.
fn lead_followed<'s, 'g: 's>(
    s: &'s thread::Scope<'s, '_>,
    group: &'g Numbers,
    timeout: Duration,
    loader: impl Fn() -> u64 + Copy + Send + 's,
) -> (Lead<'g, u64, u64, String>, Follower<'s>) {
    loop {
        let lead = lead(group, &1);
        let in_time = Arc::new(AtomicBool::new(false));
        let follower = s.spawn({
            let in_time = Arc::clone(&in_time);
            move || {
                let called = Instant::now();
                let load = || {
                    if in_time.load(SeqCst) { Ok(loader()) } else { Err("too late".into()) }
                };
                (group.run_timeout(&1, timeout, load), called.elapsed())
            }
        });
        until("the follower waits, or does not", || group.waiting() == 1 || follower.is_finished());
        if group.waiting() == 1 {
            in_time.store(true, SeqCst);
            return (lead, follower);
        }
        let _ = follower.join().unwrap();
    }
}

#[test]
fn an_overdue_flight_is_replaced_and_does_not_remove_its_successor() {
    within(|| {
        let group = &group_with_age(AGE);
        let ((board, boarded), (release, released)) = (bounded::<()>(0), bounded::<()>(0));
        thread::scope(|s| {
            let (hung, follower) = lead_followed(s, group, Duration::MAX, || unreachable!());
            until_overdue(AGE);
            let next = s.spawn(|| {
                let next = lead(group, &1);
                board.send(()).unwrap();
                released.recv().unwrap();
                next.land(Ok(2))
            });
            boarded.recv().unwrap();
            assert_eq!(
                (group.len(), group.waiting()),
                (1, 1),
                "the follower stays with its flight"
            );
            assert_eq!(hung.land(Ok(1)).must(), 1);
            assert_eq!(follower.join().unwrap().0.must(), 1);
            assert_eq!(group.len(), 1, "the successor is boarded still");
            release.send(()).unwrap();
            assert_eq!(next.join().unwrap().must(), 2);
        });
        assert_idle(group);
    });
}

#[test]
fn the_successor_of_an_overdue_flight_may_land_first() {
    within(|| {
        let group = &group_with_age(AGE);
        thread::scope(|s| {
            let (hung, follower) = lead_followed(s, group, Duration::MAX, || unreachable!());
            until_overdue(AGE);
            assert_eq!(s.spawn(|| group.run(&1, || Ok(2))).join().unwrap().must(), 2);
            assert_eq!((group.len(), group.waiting()), (0, 1));
            assert_eq!(hung.land(Ok(1)).must(), 1);
            assert_eq!(follower.join().unwrap().0.must(), 1);
        });
        assert_idle(group);
    });
}

/// Who comes next follows the successor, unless that has become overdue in its turn.
#[test]
fn a_successor_is_followed_until_it_is_overdue_itself() {
    within(|| {
        let group = &group_with_age(ms(200));
        let ((begin, begun), (release, released)) = (bounded::<()>(0), bounded::<()>(0));
        thread::scope(|s| {
            let hung = lead(group, &1);
            until_overdue(ms(200));
            let called = Instant::now();
            let next = s.spawn(|| {
                group.run(&1, || {
                    begin.send(()).unwrap();
                    let _ = released.recv();
                    Ok(2)
                })
            });
            begun.recv().unwrap();
            let third = s.spawn(move || {
                group.run(&1, || {
                    assert!(called.elapsed() >= ms(200), "a flight in good time was replaced");
                    Ok(2)
                })
            });
            until("the third is served", || group.waiting() == 1 || third.is_finished());
            drop(release);
            assert_eq!(next.join().unwrap().must(), 2);
            assert_eq!(third.join().unwrap().must(), 2);
            hung.land(Ok(1)).must();
        });
        assert_idle(group);
    });
}

#[test]
fn a_flight_in_good_time_is_followed() {
    within(|| {
        for age in [Duration::from_secs(3_600), Duration::MAX] {
            let group = group_with_age(age);
            thread::scope(|s| {
                let lead = lead(&group, &1);
                let follower = s.spawn(|| group.run(&1, unwanted));
                until_waiting(&group, 1);
                lead.land(Ok(1)).must();
                assert_eq!(follower.join().unwrap().must(), 1);
            });
            assert_idle(&group);
        }
    });
}

#[test]
fn followers_of_an_overdue_flight_keep_their_deadlines() {
    within(|| {
        let group = &group_with_age(AGE);
        thread::scope(|s| {
            let timeout = ms(100);
            let (hung, follower) = lead_followed(s, group, timeout, || unreachable!());
            until_overdue(AGE);
            s.spawn(|| group.run(&1, || Ok(2)).must()).join().unwrap();
            let (end, took) = follower.join().unwrap();
            assert!(end.unwrap_err().is_timed_out());
            assert!((timeout..timeout + NOISE).contains(&took), "{took:?}");
            hung.land(Ok(1)).must();
        });
        assert_idle(group);
    });
}

/// It cannot be told that somebody else should load: it is this one who is loading.
#[test]
fn ones_own_flight_is_never_overdue() {
    within(|| {
        for age in [Duration::ZERO, AGE] {
            let group = group_with_age(age);
            let value = group.run(&1, || {
                until_overdue(AGE);
                assert!(group.run(&1, unwanted).unwrap_err().is_would_deadlock());
                Ok(1)
            });
            assert_eq!(value.must(), 1);
            assert_idle(&group);
        }
    });
}

#[test]
fn with_an_age_of_zero_everybody_loads() {
    within(|| {
        let group = group_with_age(Duration::ZERO);
        let all_load = Barrier::new(6);
        thread::scope(|s| {
            for value in 0..6 {
                let (group, all_load) = (&group, &all_load);
                s.spawn(move || {
                    let own = group.run(&1, || {
                        all_load.wait();
                        Ok(value)
                    });
                    assert_eq!(own.must(), value);
                });
            }
        });
        assert_idle(&group);
    });
}

/// What was too slow is the load that was given up. The next one has just begun.
#[test]
fn a_flight_that_is_handed_over_begins_its_age_anew() {
    within(|| {
        let age = ms(200);
        let group = &group_with_age(age);
        let ((begin, begun), (release, released)) = (bounded::<()>(0), bounded::<()>(0));
        thread::scope(|s| {
            let (begin, released) = (&begin, &released);
            let (first, second) = lead_followed(s, group, Duration::MAX, || {
                begin.send(()).unwrap();
                let _ = released.recv();
                2
            });
            until_overdue(age);
            let handed_over = Instant::now();
            drop(first);
            begun.recv().unwrap();
            let third = s.spawn(move || {
                group.run(&1, || {
                    assert!(handed_over.elapsed() >= age, "a load in good time was replaced");
                    Ok(2)
                })
            });
            until("the third is served", || group.waiting() == 1 || third.is_finished());
            drop(release);
            assert_eq!(second.join().unwrap().0.must(), 2);
            assert_eq!(third.join().unwrap().must(), 2);
        });
        assert_idle(group);
    });
}

/// Or its followers would load beside the successor, which does so already.
#[test]
fn followers_of_a_replaced_flight_that_is_given_up_join_the_successor() {
    within(|| {
        let age = ms(200);
        // On a busy machine the follower may come so late that it is none, or be back so late
        // that the successor is overdue, too. Then anew.
        until("the follower joins the successor", || {
            let group: Group<Watched, u64, String> = Group::builder().max_flight_age(age).build();
            let key = Watched::default();
            let ((board, boarded), (release, released)) = (bounded::<()>(0), bounded::<()>(0));
            let value = thread::scope(|s| {
                let hung = lead(&group, &key);
                let follower = s.spawn(|| group.run(&key, || Ok(1)));
                until("the follower waits, or has led", || {
                    group.waiting() == 1 || follower.is_finished()
                });
                until_overdue(age);
                let next = s.spawn(|| {
                    let next = lead(&group, &key);
                    board.send(()).unwrap();
                    let _ = released.recv();
                    next.land(Ok(2))
                });
                boarded.recv().unwrap();
                let found = key.found();
                drop(hung);
                until("the follower is back", || key.found() > found || follower.is_finished());
                drop(release);
                next.join().unwrap().must();
                follower.join().unwrap().must()
            });
            assert_idle(&group);
            value == 2
        });
    });
}
