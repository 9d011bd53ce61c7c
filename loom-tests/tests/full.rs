//! What takes too long for every day: three callers, and two of the larger scenarios, under every
//! schedule there is; four under those with three preemptions at most.
//!
//! Run by hand: `cargo test --test full -- --ignored --test-threads=2`.

use loom_tests as onefill;
use loom_tests::FailurePolicy;
use loom_tests::model::explore;

#[allow(dead_code, reason = "the scenarios' everyday sizes")]
mod scenarios;

use loom_tests::doors::Lane::{Background, Foreground};
use scenarios::herd::{End, KEY, herd};
use scenarios::{caps, changes, closing, hand_over, landing, permits, registry, waits};

macro_rules! explorations {
    ($($claim:ident: $callers:literal, $bound:expr, $scenario:expr;)*) => {$(
        #[test]
        #[ignore = "takes long"]
        fn $claim() {
            explore(stringify!($claim), $callers, $bound, 1, $scenario);
        }
    )*};
}

mod exhaustively {
    use super::*;

    explorations! {
        every_follower_is_called: 3, None, herd(3, 0, End::Value);
        a_deadline_fires_at_any_point: 3, None, herd(3, 1, End::Value);
        a_panic_is_not_a_hang: 3, None, herd(3, 0, End::Panic);
        a_failure_is_not_remembered: 3, None, landing::twice(3, 0, End::Failure);
        landed_beats_late: 3, None, || landing::landed_beats_late_among(1);
        a_forgotten_flight_spares_its_successor: 3, None, || registry::forget_among(1);
        an_overdue_flight_is_replaced: 3, None, || registry::replace_among(2);
        the_followers_of_an_overdue_flight_stay_with_it: 3, None, || registry::grow_old_among(1);
        an_abandoned_flight_is_led_by_a_follower: 3, None,
            || hand_over::abandon_among(3, 1, 0, FailurePolicy::HandOver);
        a_late_promotion_passes_the_flight_on: 3, None,
            || hand_over::abandon_among(3, 1, 1, FailurePolicy::HandOver);
        the_cap_holds: 3, None, || caps::the_cap_among(2, 1);
        a_wait_cycle_is_found_under_every_schedule: 3, None, || waits::cycle_of(3, 1);
        a_landed_flight_closes_no_cycle: 2, None, || waits::landed_among(1);
        a_wait_that_timed_out_closes_no_cycle: 2, None, waits::timed_out;
        a_permit_is_not_lost_to_a_deadline: 3, None,
            || permits::crowd(1, &[Foreground, Background, Foreground], 2);
        two_that_need_each_others_admission_get_it: 2, None, || permits::crosswise(2, 1);
        what_was_invalidated_is_never_served: 2, None, || changes::invalidate_among(1, false);
    }
}

mod four_callers {
    use super::*;

    explorations! {
        every_follower_is_called: 4, Some(3), herd(4, 0, End::Value);
        a_deadline_fires_at_any_point: 4, Some(3), herd(4, 1, End::Value);
        a_failure_is_not_remembered: 4, Some(3), landing::twice(4, 1, End::Failure);
        landed_beats_late: 4, Some(3), || landing::landed_beats_late_among(2);
        a_forgotten_flight_spares_its_successor: 4, Some(3), || registry::forget_among(2);
        the_followers_of_an_overdue_flight_stay_with_it: 4, Some(3),
            || registry::grow_old_among(2);
        an_abandoned_flight_is_led_by_a_follower: 4, Some(3),
            || hand_over::abandon_among(4, 2, 0, FailurePolicy::HandOver);
        a_late_promotion_passes_the_flight_on: 4, Some(3),
            || hand_over::abandon_among(4, 1, 2, FailurePolicy::HandOver);
        the_cap_holds: 4, Some(3), || caps::the_cap_among(3, 2);
        a_wait_cycle_is_found_under_every_schedule: 4, Some(3), || waits::cycle_of(4, 1);
        what_was_invalidated_is_never_served: 4, Some(3), || changes::invalidate_among(3, false);
        a_put_wins_over_a_load: 4, Some(3), || changes::put_among(3);
        everyone_comes_back_from_a_cache_that_is_closed: 4, Some(2),
            || closing::close_among(2, true, &[KEY, KEY + 1]);
    }
}
