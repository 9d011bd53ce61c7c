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
        ones_own_flight_is_never_overdue
        a_thread_leads_a_key_twice_at_most;
    hand_over:
        an_abandoned_flight_is_led_by_a_follower
        a_late_promotion_passes_the_flight_on
        an_abandoned_flight_is_shared_if_told_to
        a_failure_is_handed_over_if_told_to
        each_retries_for_itself
        a_forgotten_flight_is_not_handed_over
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
    passing_on:
        a_lead_on_its_way_is_taken_once
        a_lead_that_nobody_takes_on_is_a_followers
        nobody_waits_for_a_thread_that_waits
        nobody_waits_behind_a_refresh;
    permits:
        a_permit_that_is_given_back_serves_who_waits
        a_permit_is_not_lost_to_a_deadline
        the_background_leaves_room
        two_that_need_each_others_admission_get_it;
    pool:
        a_job_is_run_once_or_given_back
        at_once_is_not_behind_another
        no_job_waits_while_a_thread_can_be_had
        the_background_leaves_threads_for_the_foreground
        the_foreground_goes_first
        a_pool_closes_whatever_is_in_it
        no_job_begins_in_a_pool_that_is_closed
        a_worker_that_closes_waits_for_nobody;
    reading:
        what_is_kept_is_loaded_once
        what_is_not_to_be_stored_is_shared_and_gone
        a_permit_comes_back_however_the_load_ends
        who_waits_for_another_load_lends_its_permit;
    changes:
        what_was_invalidated_is_never_served
        what_was_invalidated_is_not_refreshed
        what_was_invalidated_is_not_unchanged
        a_put_wins_over_a_load
        of_two_puts_one_stays;
    behind:
        what_is_stale_is_refreshed_once
        what_is_stale_is_loaded_once_by_its_callers
        what_has_just_failed_is_not_tried_again
        a_refresh_that_is_not_admitted_leaves_no_mark
        a_worker_loads_for_whoever_waits
        a_loader_on_a_worker_may_ask
        a_loader_that_asks_does_not_wait_for_the_queue
        a_hung_refresh_leaves_threads_for_loads;
    closing:
        everyone_comes_back_from_a_cache_that_is_closed
        no_refresh_is_left_in_a_cache_that_is_closed;
}
