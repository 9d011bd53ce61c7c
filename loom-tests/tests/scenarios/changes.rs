//! What is changed while it is loaded: an invalidation and a put against loads and refreshes.

use loom::thread;
use loom_tests::model::explore;

use super::herd::{KEY, Ticket};
use super::onefill::{Clock, Fill, Load};
use super::shop::{FRESH, Row, STALE, Shop, settled, shop, value};

const SERVED: &str = "served what was invalidated";

pub fn what_was_invalidated_is_never_served() {
    const NAME: &str = "what_was_invalidated_is_never_served";
    explore(NAME, 2, Some(4), 1000, || invalidate_among(1, false));
    explore(NAME, 3, Some(3), 6100, || invalidate_among(2, false));
    explore(NAME, 2, Some(3), 290, || invalidate_among(1, true));
}

/// While `readers` call, the row changes and is invalidated, or everything is.
pub fn invalidate_among(readers: usize, all: bool) {
    let row = Row::new();
    let shop = shop().loader(row.loader()).build().unwrap();
    let readers: Vec<_> = (0..readers).map(|_| reader(&shop)).collect();
    row.change();
    if all {
        shop.invalidate_all().unwrap();
    } else {
        shop.invalidate(&KEY).unwrap();
    }
    assert_eq!(value(shop.get(&KEY)), 2, "{SERVED}");
    for reader in readers {
        assert!([1, 2].contains(&reader.join().unwrap()));
    }
    assert_eq!(value(shop.get(&KEY)), 2, "{SERVED}");
    settled(&shop);
}

fn reader(shop: &Shop) -> thread::JoinHandle<Ticket> {
    let shop = shop.clone();
    thread::spawn(move || value(shop.get(&KEY)))
}

pub fn what_was_invalidated_is_not_refreshed() {
    const NAME: &str = "what_was_invalidated_is_not_refreshed";
    explore(NAME, 3, Some(2), 1200, || invalidate_under_a_refresh(true));
    explore(NAME, 3, Some(3), 1000, || invalidate_under_a_refresh(false));
}

/// The row changes and is invalidated while it is refreshed, and is asked for again, or not.
pub fn invalidate_under_a_refresh(asked_again: bool) {
    let row = Row::new();
    let clock = Clock::manual();
    let shop = shop().clock(clock.clone()).stale_while_revalidate(STALE).workers(1);
    let shop = shop.loader(row.loader()).build().unwrap();
    shop.put(&KEY, 1).unwrap();
    clock.advance(FRESH);
    // Gets what is stale, and has it refreshed; or comes later, and loads.
    let reader = reader(&shop);
    row.change();
    shop.invalidate(&KEY).unwrap();
    if asked_again {
        assert_eq!(value(shop.get(&KEY)), 2, "{SERVED}");
    }
    assert!([1, 2].contains(&reader.join().unwrap()));
    settled(&shop);
    // With the refresh over.
    let kept = shop.peek(&KEY).map(|kept| kept.into_value());
    assert!(kept.is_some() || !asked_again, "forgot what was loaded after it was invalidated");
    assert!(kept.is_none_or(|kept| kept == Some(2)), "{SERVED}");
}

pub fn a_put_wins_over_a_load() {
    const NAME: &str = "a_put_wins_over_a_load";
    explore(NAME, 2, None, 76, || put_among(1));
    explore(NAME, 3, Some(3), 900, || put_among(2));
}

/// While `readers` call, another value is put.
pub fn put_among(readers: usize) {
    const PUT: Ticket = 7;
    let row = Row::new();
    let shop = shop().loader(row.loader()).build().unwrap();
    let readers: Vec<_> = (0..readers).map(|_| reader(&shop)).collect();
    shop.put(&KEY, PUT).unwrap();
    assert_eq!(value(shop.get(&KEY)), PUT, "a load won over a put");
    for reader in readers {
        assert!([1, PUT].contains(&reader.join().unwrap()));
    }
    assert_eq!(value(shop.get(&KEY)), PUT, "a load won over a put");
    settled(&shop);
}

pub fn of_two_puts_one_stays() {
    const NAME: &str = "of_two_puts_one_stays";
    explore(NAME, 2, None, 66, || {
        let row = Row::new();
        let shop = shop().loader(row.loader()).build().unwrap();
        let other = {
            let shop = shop.clone();
            thread::spawn(move || {
                shop.put(&KEY, 8).unwrap();
                value(shop.get(&KEY))
            })
        };
        shop.put(&KEY, 7).unwrap();
        let seen = [value(shop.get(&KEY)), other.join().unwrap()];
        let stays = value(shop.get(&KEY));
        // Whose put was second sees its own. The other may have looked before.
        assert!(seen.contains(&stays) && [7, 8].contains(&stays), "{seen:?}, then {stays}");
        assert!(seen != [8, 7], "each put came before the other");
        assert_eq!(row.loads(), 0, "loaded what was put");
        settled(&shop);
    });
}

pub fn what_was_invalidated_is_not_unchanged() {
    const NAME: &str = "what_was_invalidated_is_not_unchanged";
    explore(NAME, 2, Some(3), 240, || {
        let row = Row::new();
        let clock = Clock::manual();
        let read = row.clone();
        let loader = move |load: &Load<'_, u64, Ticket>| match load.previous() {
            Some(_) => Ok::<_, Ticket>(Fill::unchanged()),
            None => Ok(Fill::new(read.load())),
        };
        let shop = shop().clock(clock.clone()).stale_if_error(STALE).loader(loader);
        let shop = shop.build().unwrap();
        shop.put(&KEY, 1).unwrap();
        clock.advance(FRESH);
        let reader = reader(&shop);
        row.change();
        shop.invalidate(&KEY).unwrap();
        assert_eq!(value(shop.get(&KEY)), 2, "{SERVED}");
        assert!([1, 2].contains(&reader.join().unwrap()));
        settled(&shop);
    });
}
