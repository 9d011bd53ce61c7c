//! How many callers may wait, per key and in all.

use std::thread;

use onefill::{Cap, Error, FailurePolicy, Group, Lead};

use crate::support::*;

type Numbers = Group<u64, u64, String>;

#[track_caller]
fn turned_away(end: Result<u64, Error<String>>, by: Cap) -> usize {
    match end {
        Err(Error::Overloaded { cap, limit }) if cap == by => limit,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_key_has_room_for_so_many_followers() {
    within(|| {
        let group: Numbers = Group::builder().max_followers_per_key(2).build();
        thread::scope(|s| {
            let leads = [lead(&group, &1), lead(&group, &2)];
            let followers = [1, 1, 2, 2].map(|key| {
                let group = &group;
                s.spawn(move || group.run(&key, unwanted))
            });
            until_waiting(&group, 4);
            s.spawn(|| {
                assert_eq!(turned_away(group.run(&1, unwanted), Cap::PerKey), 2);
                assert_eq!(turned_away(group.run_timeout(&2, ms(9_000), unwanted), Cap::PerKey), 2);
                assert_eq!(group.run(&3, || Ok(3)).must(), 3, "other keys are not full");
            })
            .join()
            .unwrap();
            for (lead, value) in leads.into_iter().zip([1, 2]) {
                lead.land(Ok(value)).must();
            }
            assert_eq!(followers.map(|follower| follower.join().unwrap().must()), [1, 1, 2, 2]);
        });
        assert_idle(&group);
    });
}

#[test]
fn a_group_has_room_for_so_many_followers() {
    within(|| {
        let group: Numbers = Group::builder().max_followers(3).build();
        thread::scope(|s| {
            let leads = [lead(&group, &1), lead(&group, &2), lead(&group, &3)];
            let followers = [1, 2, 2].map(|key| {
                let group = &group;
                s.spawn(move || group.run(&key, unwanted))
            });
            until_waiting(&group, 3);
            s.spawn(|| {
                for key in 1..=3 {
                    assert_eq!(turned_away(group.run(&key, unwanted), Cap::InAll), 3);
                }
                assert_eq!(group.run(&4, || Ok(4)).must(), 4, "leading takes no seat");
            })
            .join()
            .unwrap();
            for lead in leads {
                lead.land(Ok(5)).must();
            }
            assert!(followers.into_iter().all(|follower| follower.join().unwrap().must() == 5));
        });
        assert_idle(&group);
    });
}

#[test]
fn a_group_with_no_room_at_all_still_loads() {
    within(|| {
        for (group, cap) in [
            (Group::builder().max_followers_per_key(0).build(), Cap::PerKey),
            (Group::builder().max_followers(0).build(), Cap::InAll),
        ] {
            let group: Numbers = group;
            let lead = lead(&group, &1);
            thread::scope(|s| {
                s.spawn(|| assert_eq!(turned_away(group.run(&1, unwanted), cap), 0));
            });
            lead.land(Ok(1)).must();
            assert_eq!(group.run(&1, || Ok(2)).must(), 2);
        }
    });
}

#[test]
fn who_would_not_wait_is_not_turned_away_for_want_of_room() {
    within(|| {
        for group in [
            Group::builder().max_followers_per_key(0).build(),
            Group::builder().max_followers(0).build(),
        ] {
            let group: Numbers = group;
            let _lead = lead(&group, &1);
            thread::scope(|s| {
                s.spawn(|| {
                    assert!(group.try_run(&1, unwanted).unwrap_err().is_would_block());
                    assert!(group.run_timeout(&1, ms(0), unwanted).unwrap_err().is_timed_out());
                });
            });
        }
    });
}

/// Whatever ends a wait gives its room back: a group of one seat is full again and again.
#[test]
fn room_is_given_back_however_a_wait_ends() {
    type End = fn(Lead<'_, u64, u64, String>);
    within(|| {
        for group in [
            Group::builder().max_followers_per_key(1).build(),
            Group::builder().max_followers(1).build(),
            Group::builder().max_followers(1).on_abandoned(FailurePolicy::RetryEach).build(),
            Group::builder().max_followers_per_key(1).on_failure(FailurePolicy::HandOver).build(),
            Group::builder().max_followers(1).on_abandoned(FailurePolicy::Share).build(),
        ] {
            let group: Numbers = group;
            let ends: [End; 4] = [
                |lead| drop(lead.land(Ok(1))),
                |lead| drop(lead.land(Err("away".into()))),
                |lead| drop(panic_of(|| lead.run(|| panic!("seat")))),
                |lead| drop(lead),
            ];
            for round in 0..20 {
                thread::scope(|s| {
                    let lead = lead(&group, &1);
                    let follower = s.spawn(|| group.run(&1, || Ok(2)));
                    until_waiting(&group, 1);
                    s.spawn(|| assert!(group.run(&1, unwanted).unwrap_err().is_overloaded()))
                        .join()
                        .unwrap();
                    ends[round % 4](lead);
                    let _ = follower.join().unwrap();
                });
                assert_idle(&group);
            }
        }
    });
}

#[test]
fn room_is_given_back_by_those_who_give_up() {
    within(|| {
        for group in [
            Group::builder().max_followers_per_key(3).build(),
            Group::builder().max_followers(3).build(),
        ] {
            let group: Numbers = group;
            let lead = lead(&group, &1);
            for _ in 0..20 {
                thread::scope(|s| {
                    let callers =
                        [0; 3].map(|_| s.spawn(|| group.run_timeout(&1, ms(2), unwanted)));
                    for caller in callers {
                        assert!(caller.join().unwrap().unwrap_err().is_timed_out());
                    }
                });
                assert_eq!(group.waiting(), 0);
            }
            lead.land(Ok(1)).must();
        }
    });
}

#[test]
fn room_is_given_back_by_those_who_are_refused() {
    within(|| {
        let group: Numbers = Group::builder().max_followers(2).max_followers_per_key(1).build();
        for _ in 0..20 {
            thread::scope(|s| {
                let one = lead(&group, &1);
                let other = s.spawn(|| {
                    let two = lead(&group, &2);
                    assert_eq!(group.run(&1, unwanted).must(), 1);
                    two.land(Ok(2)).must();
                });
                until_waiting(&group, 1);
                pass_own_gate(&group, &1);
                assert!(group.run(&2, unwanted).unwrap_err().is_would_deadlock());
                assert_eq!(group.waiting(), 1);
                one.land(Ok(1)).must();
                other.join().unwrap();
            });
            assert_idle(&group);
        }
    });
}

/// A successor is a leader: its seat is for the next.
#[test]
fn a_promoted_follower_leaves_its_seat() {
    within(|| {
        let group: Numbers = Group::builder().max_followers_per_key(1).build();
        thread::scope(|s| {
            let lead = lead(&group, &1);
            let successor = s.spawn(|| {
                group.run(&1, || {
                    until_waiting(&group, 1);
                    Ok(2)
                })
            });
            until_waiting(&group, 1);
            drop(lead);
            until_waiting(&group, 0);
            assert_eq!(group.run(&1, unwanted).must(), 2);
            assert_eq!(successor.join().unwrap().must(), 2);
        });
        assert_idle(&group);
    });
}
