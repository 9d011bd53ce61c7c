//! A cache that is read by several at once: one load, one permit for it, and nothing left behind.

use std::panic::resume_unwind;

use loom_tests::model::{explore, fires};

use super::herd::{Crash, End, KEY, Ticket, crashing, together};
use super::onefill::{Deadline, Error, Fill, Load, Source};
use super::shop::{Row, Served, Shop, settled, shop, value};

/// A key beside [`KEY`].
const OTHER: u64 = 2;

pub fn what_is_kept_is_loaded_once() {
    const NAME: &str = "what_is_kept_is_loaded_once";
    explore(NAME, 2, None, 1200, || herd(2));
    explore(NAME, 3, Some(3), 3000, || herd(3));
}

fn herd(callers: usize) {
    let row = Row::new();
    let shop = shop().loader(row.loader()).build().unwrap();
    let got = {
        let shop = shop.clone();
        together(callers, move |_| value(shop.get(&KEY)))
    };
    assert!(got.iter().all(|got| *got == 1));
    assert_eq!(row.loads(), 1, "loaded again what was kept");
    settled(&shop);
}

pub fn what_is_not_to_be_stored_is_shared_and_gone() {
    const NAME: &str = "what_is_not_to_be_stored_is_shared_and_gone";
    explore(NAME, 2, None, 1100, || not_stored(2));
    explore(NAME, 3, Some(3), 3100, || not_stored(3));
}

/// The row changes with each load, and says that it is not to be stored.
fn not_stored(callers: usize) {
    let row = Row::new();
    let loader = {
        let row = row.clone();
        move |_: &Load<'_, u64, Ticket>| {
            let loaded = row.load();
            row.change();
            Ok(Fill::new(loaded).do_not_store())
        }
    };
    let shop: Shop = shop().loader(loader).build().unwrap();
    let got = {
        let shop = shop.clone();
        together(callers, move |_| {
            let answer = shop.get(&KEY).unwrap();
            (answer.source(), answer.into_value().unwrap())
        })
    };
    for (source, ticket) in &got {
        let loaded = got.contains(&(Source::Loaded, *ticket));
        assert!(loaded, "{source:?} of what nobody has loaded: {got:?}");
        assert!([Source::Loaded, Source::Followed].contains(source), "stored what was not to be");
    }
    assert_eq!(row.overlaps(), 0, "two loads of one key at once");
    assert!(shop.peek(&KEY).is_none(), "stored what was not to be");
    settled(&shop);
}

pub fn a_permit_comes_back_however_the_load_ends() {
    const NAME: &str = "a_permit_comes_back_however_the_load_ends";
    for end in [End::Value, End::Failure, End::Panic] {
        explore(NAME, 2, Some(3), 66, move || one_permit(2, 0, end));
    }
    explore(NAME, 2, Some(3), 110, || one_permit(2, 1, End::Value));
    explore(NAME, 3, Some(3), 3500, || one_permit(3, 1, End::Panic));
}

/// Callers of two keys by turns, of which one may be loaded at once; the deadlines of the last
/// `late` fire.
fn one_permit(callers: usize, late: usize, end: End) {
    let row = Row::new();
    let loader = {
        let row = row.clone();
        move |_: &Load<'_, u64, Ticket>| {
            let loaded = row.load();
            match end {
                End::Value => Ok(loaded),
                End::Panic => resume_unwind(Box::new(Crash)),
                End::Failure | End::FirstFails => Err(loaded),
            }
        }
    };
    let shop: Shop = shop().admission(1).loader(loader).build().unwrap();
    let got = {
        let shop = shop.clone();
        together(callers, move |me| {
            let deadline = if me + late >= callers { fires() } else { Deadline::NEVER };
            crashing(|| get_by(&shop, [KEY, OTHER][me % 2], deadline))
        })
    };
    for (me, got) in got.iter().enumerate() {
        let is_late = me + late >= callers;
        let as_it_should = match got {
            Some(Ok(_)) => end == End::Value,
            Some(Err(Error::Failed(_))) => end == End::Failure,
            None | Some(Err(Error::Panicked(_))) => end == End::Panic,
            Some(Err(error)) => error.is_timed_out() && is_late,
        };
        assert!(as_it_should, "an end that should not be: {got:?}");
    }
    assert_eq!(row.overlaps(), 0, "more loaders run than may");
    settled(&shop);
}

fn get_by(shop: &Shop, key: u64, deadline: Deadline) -> Served {
    match deadline.instant() {
        None => shop.get(&key),
        Some(at) => shop.with().deadline(at).get(&key),
    }
}

pub fn who_waits_for_another_load_lends_its_permit() {
    const NAME: &str = "who_waits_for_another_load_lends_its_permit";
    explore(NAME, 2, Some(4), 1300, || {
        let row = Row::new();
        let shop = shop().admission(1).loader(row.loader()).build().unwrap();
        let got = {
            let shop = shop.clone();
            together(2, move |me| match me {
                0 => value(shop.get(&OTHER)),
                _ => value(shop.get_with(&KEY, |_| Ok(value(shop.get(&OTHER))))),
            })
        };
        assert_eq!(got, [1, 1]);
        assert_eq!(row.loads(), 1, "loaded again what was kept");
        settled(&shop);
    });
}
