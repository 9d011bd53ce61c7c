//! No more loaders run than may, and no permit is lost.

use std::sync::Arc;

use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use loom_tests::model::{explore, fires};

use super::herd::together;
use super::onefill::Deadline;
use super::onefill::doors::{Admission, Lane};

use Lane::{Background, Foreground};

pub fn a_permit_that_is_given_back_serves_who_waits() {
    const NAME: &str = "a_permit_that_is_given_back_serves_who_waits";
    explore(NAME, 2, None, 12, || crowd(1, &[Foreground; 2], 0));
    explore(NAME, 3, Some(3), 350, || crowd(1, &[Foreground, Foreground, Background], 0));
    explore(NAME, 4, Some(2), 1400, || crowd(2, &[Foreground; 4], 0));
}

pub fn a_permit_is_not_lost_to_a_deadline() {
    const NAME: &str = "a_permit_is_not_lost_to_a_deadline";
    explore(NAME, 2, None, 16, || crowd(1, &[Foreground; 2], 1));
    explore(NAME, 3, Some(3), 340, || crowd(1, &[Foreground; 3], 1));
    explore(NAME, 3, Some(3), 310, || crowd(1, &[Foreground, Background, Foreground], 2));
}

pub fn the_background_leaves_room() {
    const NAME: &str = "the_background_leaves_room";
    explore(NAME, 3, Some(3), 1000, || crowd(2, &[Foreground, Background, Background], 0));
    explore(NAME, 4, Some(2), 1400, || {
        crowd(2, &[Background, Foreground, Background, Background], 1)
    });
}

/// As many callers as there are `lanes`, one in each, load at once; the deadlines of the last
/// `late` fire. Of two permits one is for the background.
pub fn crowd(permits: usize, lanes: &'static [Lane], late: usize) {
    let admission = Admission::new(permits);
    let admitted = {
        let admission = admission.clone();
        // The model's own, or no two loads would ever be run at the same time.
        let loading = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        together(lanes.len(), move |me| {
            let deadline = if me + late >= lanes.len() { fires() } else { Deadline::NEVER };
            let Some(_permit) = admission.enter(lanes[me], deadline) else { return false };
            let [all, behind] = &*loading;
            assert!(all.fetch_add(1, SeqCst) < permits, "more loaders run than may");
            if lanes[me] == Background {
                assert_eq!(behind.fetch_add(1, SeqCst), 0, "more loaders run than may");
                behind.fetch_sub(1, SeqCst);
            }
            all.fetch_sub(1, SeqCst);
            true
        })
    };
    let waited_for_ever = |me: &usize| me + late < lanes.len();
    assert!((0..lanes.len()).filter(waited_for_ever).all(|me| admitted[me]));
    settled(&admission);
}

/// Nothing is left when everybody has left.
fn settled(admission: &Admission) {
    let (running, waiting) = admission.gauge();
    assert_eq!(running, 0, "a permit is out, but nobody has it");
    assert_eq!(waiting, 0, "nobody waits, but somebody is in the queue");
}

pub fn two_that_need_each_others_admission_get_it() {
    const NAME: &str = "two_that_need_each_others_admission_get_it";
    explore(NAME, 2, Some(4), 210, || crosswise(2, 0));
    explore(NAME, 2, Some(4), 320, || crosswise(2, 1));
    explore(NAME, 3, Some(2), 370, || crosswise(3, 0));
}

/// Each caller loads under one admission, and needs the other for it.
pub fn crosswise(callers: usize, late: usize) {
    let admissions = [Admission::new(1), Admission::new(1)];
    {
        let admissions = admissions.clone();
        together(callers, move |me| {
            let [one, other] = [&admissions[me % 2], &admissions[(me + 1) % 2]];
            let outer = one.enter(Foreground, Deadline::NEVER).unwrap();
            let deadline = if me + late >= callers { fires() } else { Deadline::NEVER };
            drop(other.enter(Foreground, deadline));
            // It has its own back by now, though nobody has waited for it.
            assert!(one.gauge().0 >= 1, "a permit that was lent is not taken back");
            drop(outer);
        });
    }
    admissions.iter().for_each(settled);
}
