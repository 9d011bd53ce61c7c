//! Not more wait than may.

use std::sync::Arc;

use loom::thread;
use loom_tests::model::{explore, fires};

use super::herd::{Call, Desk, End, KEY, call_for, settled};
use super::onefill::{Deadline, Group, Join};

pub fn the_cap_holds() {
    const NAME: &str = "the_cap_holds";
    explore(NAME, 2, None, 38, || the_cap_among(1, 1));
    explore(NAME, 3, Some(3), 460, || the_cap_among(2, 1));
    explore(NAME, 4, Some(2), 550, || the_cap_among(3, 2));
}

pub fn the_cap_among(others: usize, cap: usize) {
    cap_among(Group::builder().max_followers_per_key(cap).build(), others, cap, KEY);
}

pub fn the_cap_in_all_holds() {
    const NAME: &str = "the_cap_in_all_holds";
    let capped = |cap| Group::builder().max_followers(cap).build();
    explore(NAME, 2, None, 38, move || cap_among(capped(1), 1, 1, KEY + 1));
    explore(NAME, 3, Some(3), 510, move || cap_among(capped(1), 2, 1, KEY + 1));
    explore(NAME, 4, Some(2), 540, move || cap_among(capped(2), 3, 2, KEY + 1));
}

/// `others` call for [`KEY`] and `other` by turns, of which this thread leads the flights; at most
/// `cap` may wait.
fn cap_among(desk: Desk, others: usize, cap: usize, other: u64) {
    let desk = Arc::new(desk);
    let keys = if other == KEY { vec![KEY] } else { vec![KEY, other] };
    let lead = |key| match desk.join(key, Deadline::NEVER) {
        Ok(Join::Lead(lead)) => lead,
        other => panic!("nobody else is here, but {other:?}"),
    };
    let leads: Vec<_> = keys.iter().map(lead).collect();
    let crew: Vec<_> = (0..others)
        .map(|me| {
            let (desk, key) = (Arc::clone(&desk), keys[me % keys.len()]);
            thread::spawn(move || call_for(&desk, key, Deadline::NEVER, End::Value, || 2))
        })
        .collect();
    assert!(desk.waiting() <= cap, "more wait than may");
    for lead in leads {
        assert_eq!(lead.land(Ok(1)).unwrap(), 1);
    }
    let calls: Vec<Call> = crew.into_iter().map(|caller| caller.join().unwrap()).collect();
    let turned_away = calls.iter().filter(|call| call.overloaded()).count();
    assert!(turned_away + cap <= others, "turned away although there was room");
    assert!(calls.iter().all(|call| call.got.is_ok() || call.overloaded()), "{calls:?}");
    settled(&desk);
}

pub fn a_late_follower_gives_its_place_back() {
    const NAME: &str = "a_late_follower_gives_its_place_back";
    let capped = |cap| Group::builder().max_followers_per_key(cap).max_followers(cap).build();
    explore(NAME, 2, None, 540, move || time_out_among(capped(1), 1));
    explore(NAME, 3, Some(3), 1400, move || time_out_among(capped(2), 2));
}

/// `others`, for each of whom there is room, time out and call again.
fn time_out_among(desk: Desk, others: usize) {
    let desk = Arc::new(desk);
    let Ok(Join::Lead(lead)) = desk.join(&KEY, Deadline::NEVER) else { unreachable!() };
    let crew: Vec<_> = (0..others)
        .map(|_| {
            let desk = Arc::clone(&desk);
            thread::spawn(move || {
                [fires(), Deadline::NEVER]
                    .map(|deadline| call_for(&desk, KEY, deadline, End::Value, || 2))
            })
        })
        .collect();
    assert_eq!(lead.land(Ok(1)).unwrap(), 1);
    for call in crew.into_iter().flat_map(|caller| caller.join().unwrap()) {
        assert!(!call.overloaded(), "turned away although there was room");
        assert!(call.got.is_ok() || call.timed_out(), "{call:?}");
    }
    settled(&desk);
}
