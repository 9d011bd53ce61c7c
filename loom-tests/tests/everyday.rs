//! What the library promises, under every schedule within the bounds: one test a claim.
//!
//! A deterministic test of the same name, where there is one, shows the claim on real threads.

use loom_tests as onefill;

mod scenarios;

macro_rules! claims {
    ($($room:ident: $($claim:ident)*;)*) => {$($(
        #[test]
        fn $claim() {
            scenarios::$room::$claim();
        }
    )*)*};
}

claims! {
    landing:
        every_follower_is_called
        a_deadline_fires_at_any_point
        landed_beats_late
        a_failure_is_not_remembered
        nothing_is_remembered
        a_panic_is_not_a_hang
        a_panicking_clone_wedges_nothing
        try_run_never_waits;
    registry:
        two_keys_do_not_meet
        a_forgotten_flight_spares_its_successor
        an_overdue_flight_is_replaced
        the_followers_of_an_overdue_flight_stay_with_it
        ones_own_flight_is_never_overdue;
    hand_over:
        an_abandoned_flight_is_led_by_a_follower
        a_late_promotion_passes_the_flight_on
        an_abandoned_flight_is_shared_if_told_to
        a_failure_is_handed_over_if_told_to
        each_retries_for_itself
        the_most_patient_follower_leads;
    caps:
        the_cap_holds
        the_cap_in_all_holds
        a_late_follower_gives_its_place_back;
    waits:
        a_wait_cycle_is_found_under_every_schedule
        a_landed_flight_closes_no_cycle
        a_wait_that_timed_out_closes_no_cycle
        a_cycle_through_a_promoted_follower_is_found;
}
