//! A cache that is closed while it is used: everyone comes back.

use loom::thread;
use loom_tests::model::explore;

use super::herd::{KEY, together};
use super::onefill::{Clock, Deadline};
use super::shop::{FRESH, Row, STALE, settled, shop};

pub fn everyone_comes_back_from_a_cache_that_is_closed() {
    const NAME: &str = "everyone_comes_back_from_a_cache_that_is_closed";
    explore(NAME, 2, None, 3, || close_among(1, false, &[KEY]));
    explore(NAME, 3, Some(3), 620, || close_among(2, false, &[KEY]));
    // One of two is in the queue, perhaps, when that is dropped.
    explore(NAME, 4, Some(1), 410, || close_among(2, true, &[KEY, KEY + 1]));
    explore(NAME, 3, Some(3), 3600, || close_among(1, true, &[KEY]));
    explore(NAME, 4, Some(2), 8500, || close_among(2, true, &[KEY]));
}

/// `callers` of the `keys` by turns, of which one may be loaded at once, by a worker or by
/// themselves, while the cache is closed.
pub fn close_among(callers: usize, on_a_worker: bool, keys: &'static [u64]) {
    let row = Row::new();
    let shop = shop().admission(1).loader(row.loader());
    let shop = if on_a_worker { shop.workers(1) } else { shop };
    let shop = shop.build().unwrap();
    let closing = {
        let shop = shop.clone();
        thread::spawn(move || shop.close(Deadline::NEVER))
    };
    let got = {
        let shop = shop.clone();
        together(callers, move |me| shop.get(&keys[me % keys.len()]))
    };
    assert_eq!(closing.join().unwrap(), 0);
    for got in got {
        match got {
            Ok(answer) => assert_eq!(answer.into_value(), Some(1)),
            Err(error) => assert!(error.is_closed(), "closed, but the call says {error:?}"),
        }
    }
    settled(&shop);
}

pub fn no_refresh_is_left_in_a_cache_that_is_closed() {
    const NAME: &str = "no_refresh_is_left_in_a_cache_that_is_closed";
    explore(NAME, 3, Some(3), 620, || {
        let row = Row::new();
        let clock = Clock::manual();
        let shop = shop().clock(clock.clone()).stale_while_revalidate(STALE);
        let shop = shop.workers(1).loader(row.loader()).build().unwrap();
        shop.put(&KEY, 0).unwrap();
        clock.advance(FRESH);
        let closing = {
            let shop = shop.clone();
            thread::spawn(move || shop.close(Deadline::NEVER))
        };
        match shop.get(&KEY) {
            Ok(answer) => assert!([Some(0), Some(1)].contains(&answer.into_value())),
            Err(error) => assert!(error.is_closed(), "closed, but the call says {error:?}"),
        }
        assert_eq!(closing.join().unwrap(), 0);
        settled(&shop);
    });
}
