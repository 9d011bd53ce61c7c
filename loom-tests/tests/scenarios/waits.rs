//! Waits that could never end are refused, and no others.

use std::sync::Arc;

use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use loom::thread;
use loom_tests::model::{explore, far_off, fires};

use super::herd::{Desk, KEY, settled, together};
use super::onefill::{Deadline, Join, Lead};

/// Keys beside [`KEY`].
const OWN: u64 = 2;
const OTHERS: [u64; 2] = [3, 4];

pub fn a_wait_cycle_is_found_under_every_schedule() {
    const NAME: &str = "a_wait_cycle_is_found_under_every_schedule";
    explore(NAME, 2, None, 230, || cycle_of(2, 1));
    explore(NAME, 2, None, 180, || cycle_of(2, 2));
    explore(NAME, 3, Some(3), 1400, || cycle_of(3, 1));
    explore(NAME, 4, Some(2), 1100, || cycle_of(4, 1));
}

/// Each caller loads its key and needs the next one's for it. The keys are spread over `groups`.
pub fn cycle_of(callers: usize, groups: usize) {
    let desks: Arc<Vec<Desk>> = Arc::new((0..groups).map(|_| Desk::new()).collect());
    let loads = {
        let desks = Arc::clone(&desks);
        together(callers, move |me| {
            let ask = |whose: usize, loader: &mut dyn FnMut() -> usize| {
                desks[whose % desks.len()].run(&(whose as u64), || Ok(loader()))
            };
            let mut refused = None;
            let outer = ask(me, &mut || {
                let inner = ask((me + 1) % callers, &mut || 0);
                let cycle = inner.as_ref().is_err_and(|error| error.is_would_deadlock());
                assert!(cycle || inner.is_ok(), "{inner:?}");
                refused = Some(cycle);
                0
            });
            assert!(outer.is_ok(), "{outer:?}");
            refused
        })
    };
    let refused = loads.iter().filter(|load| **load == Some(true)).count();
    let all_led = loads.iter().all(|load| load.is_some());
    assert!(refused <= usize::from(all_led), "refused although no cycle would have closed");
    desks.iter().for_each(settled);
}

/// This thread leads `key`.
fn lead(desk: &Desk, key: u64) -> Lead<'_, u64, usize, usize> {
    match desk.join(&key, Deadline::NEVER) {
        Ok(Join::Lead(lead)) => lead,
        other => panic!("nobody else is here, but {other:?}"),
    }
}

pub fn a_landed_flight_closes_no_cycle() {
    const NAME: &str = "a_landed_flight_closes_no_cycle";
    explore(NAME, 2, Some(5), 430, || landed_among(1));
    explore(NAME, 3, Some(3), 2700, || landed_among(2));
}

/// `others` need [`KEY`] for keys of theirs. Once it has landed its leader, who has yet another to
/// load, needs theirs.
pub fn landed_among(others: usize) {
    let desk = Arc::new(Desk::new());
    let (own, lead) = (lead(&desk, OWN), lead(&desk, KEY));
    let crew: Vec<_> = OTHERS[..others]
        .iter()
        .map(|key| {
            let desk = Arc::clone(&desk);
            thread::spawn(move || {
                desk.run(key, || {
                    let needed = desk.run(&KEY, || Ok(1));
                    assert!(needed.is_ok(), "refused although no cycle would have closed");
                    Ok(2)
                })
            })
        })
        .collect();
    assert_eq!(lead.land(Ok(1)).unwrap(), 1);
    for key in &OTHERS[..others] {
        let needed = desk.run(key, || Ok(3));
        assert!(needed.is_ok(), "refused although no cycle would have closed");
    }
    assert_eq!(own.land(Ok(4)).unwrap(), 4);
    assert!(crew.into_iter().all(|caller| caller.join().unwrap().is_ok()));
    settled(&desk);
}

pub fn a_wait_that_timed_out_closes_no_cycle() {
    explore("a_wait_that_timed_out_closes_no_cycle", 2, Some(5), 2000, timed_out);
}

/// One caller needs [`KEY`] for a key of its own, until its deadline fires; then that key's leader
/// needs the other.
pub fn timed_out() {
    let desk = Arc::new(Desk::new());
    let lead = lead(&desk, KEY);
    let over = Arc::new(AtomicUsize::new(0));
    let waiting = {
        let (desk, over) = (Arc::clone(&desk), Arc::clone(&over));
        thread::spawn(move || {
            desk.run(&OWN, || {
                let needed = desk.run_deadline(&KEY, fires().instant().unwrap(), || Ok(1));
                over.store(1, SeqCst);
                needed.or(Ok(2))
            })
        })
    };
    let was_over = over.load(SeqCst) == 1;
    let needed = desk.run(&OWN, || Ok(3));
    let refused = needed.is_err_and(|error| error.is_would_deadlock());
    assert!(!(refused && was_over), "refused although no cycle would have closed");
    assert_eq!(lead.land(Ok(1)).unwrap(), 1);
    assert!(waiting.join().unwrap().is_ok());
    settled(&desk);
}

pub fn a_cycle_through_a_promoted_follower_is_found() {
    const NAME: &str = "a_cycle_through_a_promoted_follower_is_found";
    explore(NAME, 3, Some(3), 1100, || {
        let desk = Arc::new(Desk::new());
        let lead = lead(&desk, KEY);
        // One needs the flight for a key of its own ...
        let needing = {
            let desk = Arc::clone(&desk);
            thread::spawn(move || {
                let mut refused = false;
                let own = desk.run(&OWN, || {
                    let at = far_off().instant().unwrap();
                    let needed = desk.run_deadline(&KEY, at, || Ok(1));
                    refused = needed.is_err_and(|error| error.is_would_deadlock());
                    Ok(2)
                });
                assert!(own.is_ok());
                refused
            })
        };
        // ... and one, if it comes to lead the flight, needs that key.
        let promoted = {
            let desk = Arc::clone(&desk);
            thread::spawn(move || {
                let mut refused = false;
                let own = desk.run(&KEY, || {
                    refused =
                        desk.run(&OWN, || Ok(2)).is_err_and(|error| error.is_would_deadlock());
                    Ok(1)
                });
                assert!(own.is_ok());
                refused
            })
        };
        drop(lead);
        let refused = [needing, promoted].map(|caller| caller.join().unwrap());
        assert!(refused != [true, true], "refused although no cycle would have closed");
        settled(&desk);
    });
}
