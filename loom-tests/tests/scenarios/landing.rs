//! A flight lands, with each of its ends, and everyone who waits learns of it.

use std::sync::Arc;

use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use loom::thread;
use loom_tests::model::{explore, fires, fires_late, landed};

use super::herd::{
    Call, Crash, Desk, End, KEY, Source, call, call_for, check, crashing, herd, settled, together,
};
use super::onefill::{Deadline, Error, Group, Join};

pub fn every_follower_is_called() {
    const NAME: &str = "every_follower_is_called";
    explore(NAME, 2, None, 44, herd(2, 0, End::Value));
    explore(NAME, 3, Some(3), 370, herd(3, 0, End::Value));
    explore(NAME, 4, Some(2), 440, herd(4, 0, End::Value));
}

pub fn a_deadline_fires_at_any_point() {
    const NAME: &str = "a_deadline_fires_at_any_point";
    explore(NAME, 2, None, 1080, herd(2, 1, End::Value));
    explore(NAME, 2, None, 1550, herd(2, 2, End::Value));
    explore(NAME, 3, Some(3), 540, herd(3, 1, End::Value));
    explore(NAME, 3, Some(3), 720, herd(3, 2, End::Value));
    explore(NAME, 4, Some(2), 440, herd(4, 1, End::Value));
    explore(NAME, 4, Some(2), 450, herd(4, 2, End::Value));
}

pub fn a_panic_is_not_a_hang() {
    const NAME: &str = "a_panic_is_not_a_hang";
    explore(NAME, 2, None, 44, herd(2, 0, End::Panic));
    explore(NAME, 2, None, 870, herd(2, 1, End::Panic));
    explore(NAME, 3, Some(3), 540, herd(3, 1, End::Panic));
    explore(NAME, 4, Some(2), 440, herd(4, 1, End::Panic));
}

pub fn a_failure_is_not_remembered() {
    const NAME: &str = "a_failure_is_not_remembered";
    explore(NAME, 2, None, 140, twice(2, 0, End::Failure));
    explore(NAME, 2, None, 2650, twice(2, 1, End::Failure));
    explore(NAME, 3, Some(3), 1100, twice(3, 1, End::Failure));
    explore(NAME, 4, Some(2), 710, twice(4, 1, End::Failure));
}

/// Neither a value nor a panic is.
pub fn nothing_is_remembered() {
    const NAME: &str = "nothing_is_remembered";
    explore(NAME, 2, None, 140, twice(2, 0, End::Value));
    explore(NAME, 3, Some(3), 1100, twice(3, 1, End::Value));
    explore(NAME, 2, None, 140, twice(2, 0, End::Panic));
}

/// A herd of which the first calls twice: the second call's outcome is of a later load.
pub fn twice(callers: usize, late: usize, end: End) -> impl Fn() + Send + Sync + 'static {
    move || {
        let desk = Arc::new(Desk::new());
        let calls = {
            let (desk, source) = (Arc::clone(&desk), Source::new());
            together(callers, move |me| {
                let deadline = if me + late >= callers { fires() } else { Deadline::NEVER };
                let first = call(&desk, deadline, &source, end);
                if me > 0 {
                    return vec![first];
                }
                let second = call(&desk, deadline, &source, end);
                if let (Some(old), Some(new)) = (first.ticket(), second.ticket()) {
                    assert!(new > old, "an outcome was remembered: {old}, and {new} after it");
                }
                vec![first, second]
            })
        };
        check(&calls.into_iter().flatten().collect::<Vec<_>>(), end);
        settled(&desk);
    }
}

pub fn landed_beats_late() {
    const NAME: &str = "landed_beats_late";
    explore(NAME, 2, None, 22, || landed_beats_late_among(0));
    explore(NAME, 3, Some(3), 480, || landed_beats_late_among(1));
    explore(NAME, 4, Some(2), 530, || landed_beats_late_among(2));
}

/// The deadline of one follower fires after the landing; `others` wait with it.
pub fn landed_beats_late_among(others: usize) {
    let desk = Arc::new(Desk::new());
    let lead = lead(&desk);
    let crew: Vec<_> = (0..1 + others)
        .map(|me| {
            let desk = Arc::clone(&desk);
            let deadline = if me == 0 { fires_late() } else { Deadline::NEVER };
            thread::spawn(move || call_for(&desk, KEY, deadline, End::Value, || 2 + me))
        })
        .collect();
    assert_eq!(lead.land(Ok(1)).unwrap(), 1);
    landed();
    let calls: Vec<Call> = crew.into_iter().map(|caller| caller.join().unwrap()).collect();
    // A flight that one of the others leads may still be up when the deadline fires.
    let another = calls[1..].iter().any(|call| call.led.is_some());
    assert!(!calls[0].timed_out() || another, "timed out although the flight had landed");
    assert!(calls[1..].iter().all(|call| call.got.is_ok()), "{calls:?}");
    settled(&desk);
}

/// The caller leads [`KEY`].
fn lead(desk: &Desk) -> super::onefill::Lead<'_, u64, usize, usize> {
    match desk.join(&KEY, Deadline::NEVER) {
        Ok(Join::Lead(lead)) => lead,
        other => panic!("nobody else is here, but {other:?}"),
    }
}

/// A value whose first clone panics.
struct Fragile(Arc<AtomicUsize>);

impl Clone for Fragile {
    fn clone(&self) -> Fragile {
        if self.0.fetch_add(1, SeqCst) == 0 {
            std::panic::resume_unwind(Box::new(Crash));
        }
        Fragile(Arc::clone(&self.0))
    }
}

pub fn a_panicking_clone_wedges_nothing() {
    const NAME: &str = "a_panicking_clone_wedges_nothing";
    explore(NAME, 2, None, 130, || a_panicking_clone_among(2));
    explore(NAME, 3, Some(3), 460, || a_panicking_clone_among(3));
    explore(NAME, 4, Some(2), 490, || a_panicking_clone_among(4));
}

fn a_panicking_clone_among(callers: usize) {
    let group: Arc<Group<u64, Fragile, ()>> = Arc::new(Group::new());
    let clones = Arc::new(AtomicUsize::new(0));
    let got = {
        let (group, clones) = (Arc::clone(&group), Arc::clone(&clones));
        together(callers, move |_| {
            let value = || Ok(Fragile(Arc::clone(&clones)));
            crashing(|| group.run(&KEY, value).is_ok())
        })
    };
    let crashed = got.iter().filter(|got| got.is_none()).count();
    assert_eq!(crashed, clones.load(SeqCst).min(1), "the panic reached another than its caller");
    assert!(got.iter().flatten().all(|ok| *ok));
    assert!(group.is_empty() && group.waiting() == 0);
}

pub fn try_run_never_waits() {
    const NAME: &str = "try_run_never_waits";
    explore(NAME, 2, None, 1, || {
        let desk = Arc::new(Desk::new());
        let lead = lead(&desk);
        let trying = {
            let desk = Arc::clone(&desk);
            thread::spawn(move || desk.try_run(&KEY, || Ok(2)))
        };
        assert_eq!(desk.waiting(), 0, "a caller that must not wait waits");
        // Joined before the landing: if it waited for that, nobody would ever go on.
        assert!(trying.join().unwrap().unwrap_err().is_would_block());
        assert_eq!(lead.land(Ok(1)).unwrap(), 1);
        settled(&desk);
    });
    explore(NAME, 3, Some(3), 240, || {
        let desk = Arc::new(Desk::new());
        let (there, source) = (Arc::clone(&desk), Source::new());
        let calls = together(3, move |me| {
            if me == 0 {
                return call(&there, Deadline::NEVER, &source, End::Value).got.is_ok();
            }
            match there.try_run(&KEY, || Ok(source.load())) {
                Ok(_) | Err(Error::WouldBlock) => true,
                Err(_) => false,
            }
        });
        assert!(calls.iter().all(|as_it_should| *as_it_should));
        settled(&desk);
    });
}
