//! Loads that run on workers: refreshes behind their readers, and loads that callers wait for.

use std::sync::{Arc, Mutex};

use loom_tests::model::{explore, fires};

use super::herd::{KEY, Signal, Ticket, together};
use super::onefill::{Clock, Load};
use super::shop::{FRESH, Row, STALE, Shop, settled, shop, value};

/// Keys beside [`KEY`].
const OTHER: u64 = 2;
const THIRD: u64 = 3;

pub fn what_is_stale_is_refreshed_once() {
    const NAME: &str = "what_is_stale_is_refreshed_once";
    explore(NAME, 3, Some(3), 2800, || {
        let row = Row::new();
        let clock = Clock::manual();
        let shop = shop().clock(clock.clone()).stale_while_revalidate(STALE).workers(1);
        let shop = shop.loader(row.loader()).build().unwrap();
        shop.put(&KEY, 0).unwrap();
        clock.advance(FRESH);
        let got = {
            let shop = shop.clone();
            together(2, move |_| value(shop.get(&KEY)))
        };
        assert!(got.iter().all(|got| [0, 1].contains(got)));
        settled(&shop);
        assert!(row.loads() <= 1, "refreshed again what was fresh");
    });
}

pub fn what_is_stale_is_loaded_once_by_its_callers() {
    const NAME: &str = "what_is_stale_is_loaded_once_by_its_callers";
    explore(NAME, 2, None, 150, || {
        let row = Row::new();
        let clock = Clock::manual();
        let shop = shop().clock(clock.clone()).stale_while_revalidate(STALE).build().unwrap();
        shop.put(&KEY, 0).unwrap();
        clock.advance(FRESH);
        let got = {
            let (shop, row) = (shop.clone(), row.clone());
            together(2, move |_| value(shop.get_with(&KEY, |_| Ok(row.load()))))
        };
        assert!(got.iter().all(|got| [0, 1].contains(got)));
        settled(&shop);
        assert_eq!(row.loads(), 1, "loaded again what was fresh");
    });
}

pub fn what_has_just_failed_is_not_tried_again() {
    const NAME: &str = "what_has_just_failed_is_not_tried_again";
    explore(NAME, 3, Some(3), 2700, || fail_among(true));
    explore(NAME, 2, None, 1370, || fail_among(false));
}

/// Two ask for what is stale, and the load fails: behind them, or in front of one of them.
fn fail_among(behind: bool) {
    let row = Row::new();
    let clock = Clock::manual();
    let loader = {
        let row = row.clone();
        move |_: &Load<'_, u64, Ticket>| Err::<Ticket, Ticket>(row.load())
    };
    let shop = shop().clock(clock.clone());
    let shop = match behind {
        true => shop.stale_while_revalidate(STALE).workers(1),
        false => shop.stale_if_error(STALE),
    };
    let shop = shop.loader(loader).build().unwrap();
    shop.put(&KEY, 0).unwrap();
    clock.advance(FRESH);
    let got = {
        let shop = shop.clone();
        together(2, move |_| value(shop.get(&KEY)))
    };
    assert_eq!(got, [0, 0]);
    settled(&shop);
    assert!(row.loads() <= 1, "tried again what had just failed");
}

pub fn a_refresh_that_is_not_admitted_leaves_no_mark() {
    const NAME: &str = "a_refresh_that_is_not_admitted_leaves_no_mark";
    explore(NAME, 3, Some(2), 340, || {
        let row = Row::new();
        let clock = Clock::manual();
        let shop = shop().clock(clock.clone()).stale_while_revalidate(STALE).admission(1);
        let shop = shop.loader(row.loader()).build().unwrap();
        shop.put(&KEY, 0).unwrap();
        clock.advance(FRESH);
        // Who loads the other key has the one permit for as long as that takes.
        let got = {
            let shop = shop.clone();
            together(2, move |me| value(shop.get(&[KEY, OTHER][me])))
        };
        assert_eq!(got, [0, 1]);
        settled(&shop);
        assert_eq!(row.overlaps(), 0, "more loaders run than may");
    });
}

pub fn a_worker_loads_for_whoever_waits() {
    const NAME: &str = "a_worker_loads_for_whoever_waits";
    explore(NAME, 2, Some(3), 230, || on_a_worker(1, 0));
    explore(NAME, 2, Some(3), 770, || on_a_worker(1, 1));
    explore(NAME, 3, Some(2), 1000, || on_a_worker(2, 0));
    explore(NAME, 3, Some(2), 1300, || on_a_worker(2, 1));
}

/// `callers` of one key, which a worker loads; the deadlines of the last `late` fire.
fn on_a_worker(callers: usize, late: usize) {
    let row = Row::new();
    let shop = shop().workers(1).loader(row.loader()).build().unwrap();
    let got = {
        let shop = shop.clone();
        together(callers, move |me| {
            if me + late < callers {
                return Some(value(shop.get(&KEY)));
            }
            match shop.with().deadline(fires().instant().unwrap()).get(&KEY) {
                Err(error) if error.is_timed_out() => None,
                served => Some(value(served)),
            }
        })
    };
    assert!(got.iter().flatten().all(|got| *got == 1));
    assert!(got.iter().take(callers - late).all(Option::is_some));
    settled(&shop);
    assert!(row.loads() <= 1, "loaded again what was kept");
}

pub fn a_hung_refresh_leaves_threads_for_loads() {
    const NAME: &str = "a_hung_refresh_leaves_threads_for_loads";
    explore(NAME, 3, Some(2), 2800, || {
        let clock = Clock::manual();
        let loaded = Signal::new();
        let loader = move |load: &Load<'_, u64, Ticket>| {
            match *load.key() {
                THIRD => loaded.give(),
                // A refresh, which hangs.
                _ => loaded.wait(),
            }
            Ok(1)
        };
        let shop = shop().clock(clock.clone()).stale_while_revalidate(STALE).workers(2);
        let shop = shop.loader(loader).build().unwrap();
        for key in [KEY, OTHER] {
            shop.put(&key, 0).unwrap();
        }
        clock.advance(FRESH);
        for key in [KEY, OTHER] {
            assert_eq!(value(shop.get(&key)), 0);
        }
        assert_eq!(value(shop.get(&THIRD)), 1);
        settled(&shop);
    });
}

/// A cache whose loader asks it for other keys: `needs` says which, if any.
fn asking(row: &Row, needs: fn(u64) -> Option<u64>) -> (Shop, Arc<Mutex<Option<Shop>>>) {
    // To be emptied in the end: a loader that owns its cache keeps it open.
    let own: Arc<Mutex<Option<Shop>>> = Arc::default();
    let loader = {
        let (own, row) = (Arc::clone(&own), row.clone());
        move |load: &Load<'_, u64, Ticket>| {
            if let Some(needed) = needs(*load.key()) {
                let shop = own.lock().unwrap().clone().unwrap();
                value(shop.get(&needed));
            }
            Ok(row.load())
        }
    };
    let shop = shop().workers(1).loader(loader).build().unwrap();
    *own.lock().unwrap() = Some(shop.clone());
    (shop, own)
}

pub fn a_loader_on_a_worker_may_ask() {
    const NAME: &str = "a_loader_on_a_worker_may_ask";
    explore(NAME, 3, Some(2), 2100, || {
        let row = Row::new();
        let (shop, own) = asking(&row, |key| (key == KEY).then_some(OTHER));
        let got = {
            let shop = shop.clone();
            together(2, move |me| value(shop.get(&[KEY, OTHER][me])))
        };
        assert_eq!(got, [1, 1]);
        drop(own.lock().unwrap().take());
        settled(&shop);
        assert_eq!(row.loads(), 2, "loaded again what was kept");
    });
}

pub fn a_loader_that_asks_does_not_wait_for_the_queue() {
    const NAME: &str = "a_loader_that_asks_does_not_wait_for_the_queue";
    explore(NAME, 3, Some(2), 1600, || {
        let row = Row::new();
        // The worker needs what a caller loads itself, and that caller needs the third.
        let (shop, own) = asking(&row, |key| (key == OTHER).then_some(KEY));
        let got = {
            let shop = shop.clone();
            together(2, move |me| match me {
                0 => value(shop.get(&OTHER)),
                _ => value(shop.get_with(&KEY, |_| Ok(value(shop.get(&THIRD))))),
            })
        };
        assert_eq!(got, [1, 1]);
        drop(own.lock().unwrap().take());
        settled(&shop);
    });
}
