//! What a flight takes from the allocator, and that it gives it back.

use allocation_counter::{AllocationInfo, measure};
use onefill::{Deadline, Group, Join, Lead};

const MILLION: u64 = 1_000_000;

type Numbers = Group<u64, u64, String>;

/// Counts what `fly` does once the tables have their room and the thread its number.
fn measure_warm(mut fly: impl FnMut()) -> AllocationInfo {
    (0..1_000).for_each(|_| fly());
    measure(fly)
}

fn lead(group: &Numbers, key: u64) -> Lead<'_, u64, u64, String> {
    match group.join(&key, Deadline::NEVER) {
        Ok(Join::Lead(lead)) => lead,
        other => panic!("nobody else loads {key}, but: {other:?}"),
    }
}

#[test]
fn a_flight_nobody_joins_allocates_nothing() {
    let group = Numbers::new();
    let made = measure_warm(|| assert_eq!(group.run(&7, || Ok(49)).unwrap(), 49));
    assert_eq!(made.count_total, 0, "{made:?}");
    assert_eq!(made.bytes_current, 0);
}

#[test]
fn a_key_is_cloned_once() {
    let group: Group<String, u64, String> = Group::new();
    let key = "seven".to_string();
    let made = measure_warm(|| assert_eq!(group.run(&key, || Ok(49)).unwrap(), 49));
    assert!(made.count_total <= 1, "{made:?}");
    assert_eq!(made.bytes_current, 0);
}

#[test]
fn keys_that_come_and_go_leave_nothing_behind() {
    let group = Numbers::new();
    let made = measure(|| {
        for key in 0..MILLION {
            assert_eq!(group.run(&key, || Ok(key)).unwrap(), key);
        }
    });
    // But the room for a few flights in each shard, which the first of them take.
    assert!(made.bytes_current <= 64 * 1024, "{made:?}");
    let more = measure(|| {
        for key in MILLION..2 * MILLION {
            assert_eq!(group.run(&key, || Ok(key)).unwrap(), key);
        }
    });
    assert_eq!((more.bytes_current, group.len()), (0, 0));
}

#[test]
fn a_million_flights_at_once_give_their_tables_back() {
    let group = Numbers::new();
    let made = measure(|| {
        let leads: Vec<_> = (0..MILLION).map(|key| lead(&group, key)).collect();
        assert_eq!(group.len(), MILLION as usize);
        for (key, lead) in (0..).zip(leads) {
            assert_eq!(lead.land(Ok(key)).unwrap(), key);
        }
        assert!(group.is_empty());
    });
    assert_eq!(made.bytes_current, 0, "{made:?}");
}
