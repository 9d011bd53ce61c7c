//! The seeded bugs: each is the library's source with one change, and the scenarios, each with the
//! words, that must catch it.
//!
//! A change is made by text: what is looked for must be found exactly once, however it is wrapped,
//! or `build.rs` fails. So a bug cannot go stale in silence.

/// One way to get the library wrong.
#[derive(Debug)]
pub struct Bug {
    /// As comments in the library's source call it.
    pub name: &'static str,
    pub edits: &'static [Edit],
    /// Scenarios, by path below `scenarios`, and what each must say.
    pub caught_by: &'static [(&'static str, &'static str)],
}

/// In this file of `../src`, this text becomes that one.
#[derive(Debug)]
pub struct Edit(pub &'static str, pub &'static str, pub &'static str);

const ADMISSION: &str = "admission.rs";
const CACHE: &str = "cache/mod.rs";
const FLIGHT: &str = "flight/mod.rs";
const GROUP: &str = "flight/group.rs";
const LADDER: &str = "cache/ladder.rs";
const LEAD: &str = "flight/lead.rs";
const LEADER: &str = "cache/leader.rs";
const REFRESH: &str = "cache/refresh.rs";
const REGISTRY: &str = "flight/registry.rs";
const SEAM: &str = "flight/seam.rs";
const SEATS: &str = "flight/seats.rs";
const WAITS: &str = "flight/waits.rs";
const WORKERS: &str = "workers.rs";

/// What loom says when everybody waits.
const DEADLOCK: &str = "deadlock; threads =";
const TWO_LOADS: &str = "two loads of one key at once";
const STILL_BOARDED: &str = "a landed flight is still boarded";
const NOT_BOARDED: &str = "a flight in the air is not boarded";
const REMEMBERED: &str = "an outcome was remembered";
const MISCOUNTED: &str = "nobody waits, but somebody is counted";
const CAP_BROKEN: &str = "more wait than may";
const NO_ROOM: &str = "turned away although there was room";
const UNDERFLOW: &str = "attempt to subtract with overflow";
const TOO_MANY: &str = "more loaders run than may";
const PERMIT_OUT: &str = "a permit is out, but nobody has it";
const LOADED_AGAIN: &str = "loaded again what was kept";
const INVALIDATED: &str = "served what was invalidated";
const PUT_LOST: &str = "a load won over a put";
const WENT_FIRST: &str = "the background went first";
const NO_CYCLE: &str = "refused although no cycle would have closed";

/// Every seeded bug.
pub const BUGS: &[Bug] = &[
    // Landing.
    Bug {
        name: "call_before_the_outcome",
        edits: &[
            Edit(
                FLIGHT,
                "let published = self.outcome.set(outcome);",
                "self.pass_on(|seats| seats.landed()); let published = self.outcome.set(outcome);",
            ),
            Edit(FLIGHT, "self.pass_on(|seats| seats.landed()); }", "}"),
        ],
        caught_by: &[(
            "landing::every_follower_is_called",
            "a follower is called once the flight has landed",
        )],
    },
    Bug {
        name: "land_without_gate",
        edits: &[
            Edit(
                FLIGHT,
                "let published = self.outcome.set(outcome);",
                "let next = { let mut seats = self.seats.lock(); seats.landed(); \
                 seats.next_to_call() };
                 let published = self.outcome.set(outcome);",
            ),
            Edit(
                FLIGHT,
                "self.pass_on(|seats| seats.landed()); }",
                "if let Some(row) = next { row.call(); } }",
            ),
        ],
        caught_by: &[("landing::every_follower_is_called", DEADLOCK)],
    },
    Bug {
        name: "forget_to_call",
        edits: &[Edit(FLIGHT, "row.call();", "")],
        caught_by: &[("landing::every_follower_is_called", DEADLOCK)],
    },
    Bug {
        name: "empty_rows_are_called",
        edits: &[Edit(
            SEATS,
            "if seats.any(|seat| self.seats.get(seat).is_some_and(Option::is_some)) {",
            "if seats.any(|_| true) {",
        )],
        caught_by: &[("landing::a_deadline_fires_at_any_point", DEADLOCK)],
    },
    Bug {
        name: "only_the_leader_calls",
        edits: &[Edit(FLIGHT, "self.pass_on(|_| ());", "")],
        caught_by: &[("landing::every_follower_is_called", DEADLOCK)],
    },
    Bug {
        name: "late_pays_no_debt",
        edits: &[Edit(
            FLIGHT,
            "Some(_) => Ok(Followed::Landed(self.leave_landed())),",
            "Some(outcome) => Ok(Followed::Landed(outcome)),",
        )],
        caught_by: &[("landing::a_deadline_fires_at_any_point", DEADLOCK)],
    },
    Bug {
        name: "pay_after_cloning",
        edits: &[
            Edit(FLIGHT, "self.pass_on(|_| ());", ""),
            Edit(
                GROUP,
                "Ok(Some(Join::Landed(value.clone())))",
                "{ let value = value.clone(); flight.pass_on(|_| ()); Ok(Some(Join::Landed(value))) }",
            ),
        ],
        caught_by: &[("landing::a_panicking_clone_wedges_nothing", DEADLOCK)],
    },
    Bug {
        name: "look_before_the_gate",
        edits: &[
            Edit(
                FLIGHT,
                "let mut seats = self.seats.lock(); // Under",
                "let outcome = self.outcome.get(); let mut seats = self.seats.lock(); // Under",
            ),
            Edit(
                FLIGHT,
                "if let Some(outcome) = self.outcome.get() {",
                "if let Some(outcome) = outcome {",
            ),
        ],
        caught_by: &[("landing::every_follower_is_called", DEADLOCK)],
    },
    Bug {
        name: "late_ignores_the_landing",
        edits: &[Edit(
            FLIGHT,
            "Some(_) => Ok(Followed::Landed(self.leave_landed())),",
            "Some(_) => { self.leave_landed(); Err(timed_out) }",
        )],
        caught_by: &[("landing::landed_beats_late", "timed out although the flight had landed")],
    },
    Bug {
        name: "panic_lands_nothing",
        edits: &[Edit(
            LEAD,
            "self.finish(Outcome::Panicked(said(payload.as_ref()).map(Arc::from)));",
            "self.over = true;",
        )],
        caught_by: &[("landing::a_panic_is_not_a_hang", DEADLOCK)],
    },
    Bug {
        name: "passed_deadline_takes_a_seat",
        edits: &[Edit(
            FLIGHT,
            "wait.started.is_some() && wait.deadline.instant() <= wait.started",
            "false",
        )],
        caught_by: &[("landing::try_run_never_waits", "a caller that must not wait waits")],
    },
    // The registry.
    Bug {
        name: "look_then_board",
        edits: &[
            Edit(
                REGISTRY,
                "let mut shard = self.shard(hash); let Shard { boarded, unboarded, count }",
                "{
                    let mut shard = self.shard(hash);
                    if let Some(there) = shard.boarded.find_mut(hash, |there| there.key == *key) {
                        if !max_age.is_some_and(|max_age| there.is_overdue(max_age)) {
                            return Role::Follow(follow(there));
                        }
                    }
                }
                let mut shard = self.shard(hash);
                let Shard { boarded, unboarded, count }",
            ),
            Edit(
                REGISTRY,
                "Role::Follow(follow(there)) }",
                "unboarded.extend(there.unboarded()); there.boarding = new();
                 Role::Lead(there.boarding) }",
            ),
        ],
        caught_by: &[("landing::every_follower_is_called", TWO_LOADS)],
    },
    Bug {
        name: "never_retire",
        edits: &[Edit(
            LEAD,
            "catch_unwind(AssertUnwindSafe(|| group.registry.retire(boarding, flight, store)))",
            "{ drop(store); *flight = Some(group.registry.share(boarding)); Ok(None) }",
        )],
        caught_by: &[
            ("landing::every_follower_is_called", STILL_BOARDED),
            ("landing::a_failure_is_not_remembered", REMEMBERED),
        ],
    },
    Bug {
        name: "retire_after_landing",
        edits: &[
            Edit(
                LEAD,
                "catch_unwind(AssertUnwindSafe(|| group.registry.retire(boarding, flight, store)))",
                "{ drop(store); *flight = Some(group.registry.share(boarding)); Ok(None) }",
            ),
            Edit(
                LEAD,
                "flight.land(outcome);",
                "flight.land(outcome); self.group.registry.retire(&self.boarding, &mut None, || ());",
            ),
        ],
        caught_by: &[
            ("landing::a_failure_is_not_remembered", REMEMBERED),
            ("landing::nothing_is_remembered", REMEMBERED),
        ],
    },
    Bug {
        name: "retire_whoever_is_boarded",
        edits: &[Edit(
            REGISTRY,
            "let Ok(boarded) = shard.boarded.find_entry(boarding.hash, |there| there.is(boarding)) else",
            "let Ok(boarded) = shard.boarded.find_entry(boarding.hash, |_| true) else",
        )],
        caught_by: &[
            ("registry::a_forgotten_flight_spares_its_successor", NOT_BOARDED),
            ("registry::an_overdue_flight_is_replaced", NOT_BOARDED),
        ],
    },
    Bug {
        name: "forgotten_with_its_followers",
        edits: &[Edit(REGISTRY, "unboarded.extend(boarded.unboarded());", "drop(boarded.unboarded());")],
        caught_by: &[("registry::a_forgotten_flight_spares_its_successor", DEADLOCK)],
    },
    Bug {
        name: "replaced_with_its_followers",
        edits: &[Edit(
            REGISTRY,
            "unboarded.extend(there.unboarded()); there.boarding = new(); return",
            "drop(there.unboarded()); there.boarding = new(); return",
        )],
        caught_by: &[("registry::the_followers_of_an_overdue_flight_stay_with_it", DEADLOCK)],
    },
    Bug {
        name: "only_the_seated_wait",
        edits: &[Edit(
            LEAD,
            "Handle::get_mut(flight).is_some()",
            "flight.seats.lock().taken() == 0",
        )],
        caught_by: &[("landing::every_follower_is_called", DEADLOCK)],
    },
    Bug {
        name: "own_flight_is_overdue",
        edits: &[
            Edit(FLIGHT, "!seats.driven_here() && seats.handed_over()", "seats.handed_over()"),
            Edit(REGISTRY, "None => !self.boarding.driver.is_here(),", "None => true,"),
        ],
        caught_by: &[(
            "registry::ones_own_flight_is_never_overdue",
            "called `Result::unwrap_err()` on an `Ok` value: 2",
        )],
    },
    Bug {
        name: "forgotten_and_asked_without_end",
        edits: &[Edit(GROUP, "if forgotten > 1 {", "if forgotten > 2 {")],
        caught_by: &[(
            "registry::a_thread_leads_a_key_twice_at_most",
            "called `Result::unwrap_err()` on an `Ok` value: 3",
        )],
    },
    // Handing over.
    Bug {
        name: "abandoned_lands_nothing",
        edits: &[Edit(LEAD, "if !self.over { self.end(", "if false { self.end(")],
        caught_by: &[("hand_over::an_abandoned_flight_is_led_by_a_follower", DEADLOCK)],
    },
    Bug {
        name: "hand_over_to_nobody",
        edits: &[Edit(
            LEAD,
            "if !self.group.registry.while_boarded(&self.boarding, hand_over) { self.finish(Outcome::Disbanded); }",
            "self.group.registry.while_boarded(&self.boarding, hand_over);",
        )],
        caught_by: &[("hand_over::an_abandoned_flight_is_led_by_a_follower", DEADLOCK)],
    },
    Bug {
        name: "late_promotion_keeps_the_lead",
        edits: &[Edit(GROUP, "Lead::next(self, flight).hand_over();", "")],
        caught_by: &[("hand_over::a_late_promotion_passes_the_flight_on", STILL_BOARDED)],
    },
    Bug {
        name: "late_ignores_the_promotion",
        edits: &[Edit(FLIGHT, "None if seated =>", "None if seated || true =>")],
        caught_by: &[("hand_over::a_late_promotion_passes_the_flight_on", STILL_BOARDED)],
    },
    Bug {
        name: "promoted_seat_stays_taken",
        edits: &[Edit(
            SEATS,
            "let Some(seat) = self.seats[most].take() else { return false }; self.vacant.push(most);",
            "let Some(seat) = self.seats[most].as_ref().map(|seat| Seat { ..*seat }) else { return false };",
        )],
        caught_by: &[("hand_over::the_most_patient_follower_leads", DEADLOCK)],
    },
    Bug {
        name: "least_patient_leads",
        edits: &[Edit(
            SEATS,
            ".rev().filter(may).max_by_key(patience)",
            ".rev().filter(may).min_by_key(patience)",
        )],
        caught_by: &[(
            "hand_over::the_most_patient_follower_leads",
            "a follower with less time left leads",
        )],
    },
    Bug {
        name: "late_and_disbanded_pays_no_debt",
        edits: &[Edit(FLIGHT, "self.leave_landed(); Err(timed_out)", "Err(timed_out)")],
        caught_by: &[("hand_over::each_retries_for_itself", DEADLOCK)],
    },
    // Caps.
    Bug {
        name: "cap_looked_at_before_the_gate",
        edits: &[
            Edit(
                FLIGHT,
                "let mut seats = self.seats.lock(); // Under",
                "let taken = self.seats.lock().taken(); let mut seats = self.seats.lock(); // Under",
            ),
            Edit(FLIGHT, "seats.taken() >= wait.max_per_key", "taken >= wait.max_per_key"),
        ],
        caught_by: &[("caps::the_cap_holds", CAP_BROKEN)],
    },
    Bug {
        name: "cap_off_by_one",
        edits: &[Edit(
            FLIGHT,
            "seats.taken() >= wait.max_per_key",
            "seats.taken() > wait.max_per_key",
        )],
        caught_by: &[("caps::the_cap_holds", CAP_BROKEN)],
    },
    Bug {
        name: "seat_not_given_back",
        edits: &[Edit(SEATS, "self.vacant.push(place.seat); self.unseated", "self.unseated")],
        caught_by: &[("caps::a_late_follower_gives_its_place_back", NO_ROOM)],
    },
    Bug {
        name: "cap_in_all_in_two_steps",
        edits: &[Edit(
            FLIGHT,
            "match wait.parked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below) {",
            "let room = below(wait.parked.load(Ordering::Relaxed)).is_some();
             let below = |parked: usize| room.then_some(parked + 1);
             match wait.parked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below) {",
        )],
        caught_by: &[("caps::the_cap_in_all_holds", CAP_BROKEN)],
    },
    Bug {
        name: "count_not_given_back",
        edits: &[Edit(FLIGHT, "drop(parked);", "std::mem::forget(parked);")],
        caught_by: &[
            ("caps::a_late_follower_gives_its_place_back", NO_ROOM),
            ("landing::every_follower_is_called", MISCOUNTED),
        ],
    },
    // Waits.
    Bug {
        name: "look_and_draw_in_two_steps",
        edits: &[Edit(
            WAITS,
            "edges.insert(waiter, driver); Ok(())",
            "drop(edges); EDGES.lock().insert(waiter, driver); Ok(())",
        )],
        caught_by: &[("waits::a_wait_cycle_is_found_under_every_schedule", DEADLOCK)],
    },
    Bug {
        name: "edges_outlive_the_flight",
        edits: &[Edit(
            FLIGHT,
            "self.pass_on(|seats| seats.landed()); }",
            "self.pass_on(|_| ()); }",
        )],
        caught_by: &[("waits::a_landed_flight_closes_no_cycle", NO_CYCLE)],
    },
    Bug {
        name: "edge_outlives_its_wait",
        edits: &[Edit(
            SEATS,
            "self.vacant.push(place.seat); self.unseated(&seat); true",
            "self.vacant.push(place.seat); true",
        )],
        caught_by: &[("waits::a_wait_that_timed_out_closes_no_cycle", NO_CYCLE)],
    },
    Bug {
        name: "promotion_redraws_nothing",
        edits: &[Edit(SEATS, "waits::redraw(sitters_with_edges(&self.seats), driver);", "")],
        caught_by: &[("waits::a_cycle_through_a_promoted_follower_is_found", DEADLOCK)],
    },
    Bug {
        name: "promoted_is_not_the_driver",
        edits: &[Edit(SEATS, "self.driver = driver; self.behind", "self.behind")],
        caught_by: &[("waits::a_cycle_through_a_promoted_follower_is_found", DEADLOCK)],
    },
    // A lead on its way to another thread.
    Bug {
        name: "let_go_keeps_the_driver",
        edits: &[Edit(SEAM, "seats.driven_by(ThreadNo::NOBODY); true", "true")],
        caught_by: &[("passing_on::a_lead_on_its_way_is_taken_once", "WouldDeadlock")],
    },
    Bug {
        name: "let_go_past_a_driver",
        edits: &[Edit(SEAM, "if seats.promote_a_driver() { return false; }", "")],
        caught_by: &[("passing_on::nobody_waits_for_a_thread_that_waits", DEADLOCK)],
    },
    Bug {
        name: "nobody_takes_over",
        edits: &[Edit(FLIGHT, "wait.takes_over && in_need && seats.take_over()", "false")],
        caught_by: &[
            ("passing_on::nobody_waits_for_a_thread_that_waits", DEADLOCK),
            ("behind::a_loader_on_a_worker_may_ask", DEADLOCK),
        ],
    },
    Bug {
        name: "wait_behind_a_refresh",
        edits: &[Edit(
            FLIGHT,
            "let in_need = waits::is_driving() || seats.is_behind();",
            "let in_need = waits::is_driving();",
        )],
        caught_by: &[("passing_on::nobody_waits_behind_a_refresh", DEADLOCK)],
    },
    Bug {
        name: "left_behind_with_a_follower",
        edits: &[Edit(SEAM, "if seats.promote() { return false; }", "")],
        caught_by: &[("passing_on::nobody_waits_behind_a_refresh", DEADLOCK)],
    },
    Bug {
        name: "taken_over_twice",
        edits: &[Edit(
            SEATS,
            "let undriven = self.driver == ThreadNo::NOBODY;",
            "let undriven = true;",
        )],
        caught_by: &[("passing_on::a_lead_on_its_way_is_taken_once", "Causality violation")],
    },
    Bug {
        name: "hand_over_what_was_forgotten",
        edits: &[Edit(
            LEAD,
            "self.group.registry.while_boarded(&self.boarding, hand_over)",
            "hand_over(Some(&*self.group.registry.share(&self.boarding)))",
        )],
        caught_by: &[("hand_over::a_forgotten_flight_is_not_handed_over", TWO_LOADS)],
    },
    // Admission.
    Bug {
        name: "look_and_enter_in_two_steps",
        edits: &[Edit(
            ADMISSION,
            "let admitted = self.desk.lock().admit(self, lane);",
            "let admitted = self.desk.lock().has_room(self, lane);
             if admitted { self.desk.lock().queue(lane).running += 1; }",
        )],
        caught_by: &[("permits::a_permit_that_is_given_back_serves_who_waits", TOO_MANY)],
    },
    Bug {
        name: "queue_without_looking_again",
        edits: &[Edit(ADMISSION, "if desk.admit(self, lane) { return true; }", "")],
        caught_by: &[("permits::a_permit_that_is_given_back_serves_who_waits", DEADLOCK)],
    },
    Bug {
        name: "release_without_wake",
        edits: &[Edit(ADMISSION, "turn.notify_one();", "drop(turn);")],
        caught_by: &[("permits::a_permit_that_is_given_back_serves_who_waits", DEADLOCK)],
    },
    Bug {
        name: "late_ignores_the_permit",
        edits: &[Edit(
            ADMISSION,
            "return desk.queue(lane).waiting.remove(&number).is_none();",
            "desk.queue(lane).waiting.remove(&number); return false;",
        )],
        caught_by: &[
            ("permits::a_permit_is_not_lost_to_a_deadline", PERMIT_OUT),
            ("reading::a_permit_comes_back_however_the_load_ends", PERMIT_OUT),
        ],
    },
    Bug {
        name: "leave_without_leaving_the_queue",
        edits: &[Edit(
            ADMISSION,
            "return desk.queue(lane).waiting.remove(&number).is_none();",
            "return !desk.queue(lane).waiting.contains_key(&number);",
        )],
        caught_by: &[("permits::a_permit_is_not_lost_to_a_deadline", PERMIT_OUT)],
    },
    Bug {
        name: "background_takes_all",
        edits: &[Edit(
            ADMISSION,
            "&& (lane == Lane::Foreground || self.background.running < admission.background)",
            "",
        )],
        caught_by: &[("permits::the_background_leaves_room", TOO_MANY)],
    },
    Bug {
        name: "queue_with_a_permit",
        edits: &[Edit(ADMISSION, "let lent = lend(); let admitted", "let lent = (); let admitted")],
        caught_by: &[("permits::two_that_need_each_others_admission_get_it", DEADLOCK)],
    },
    Bug {
        name: "lent_is_not_taken_back",
        edits: &[Edit(ADMISSION, "if still_lent {", "if false {")],
        caught_by: &[(
            "permits::two_that_need_each_others_admission_get_it",
            "a permit that was lent is not taken back",
        )],
    },
    // Workers.
    Bug {
        name: "counted_once_it_is_handed_over",
        edits: &[
            Edit(
                WORKERS,
                "let turn = crew.take_turn(); if let (Some(door)",
                "let turn = crew.take_turn();
                 let taken = turn.as_ref().map(|(lane, _)| *lane);
                 taken.map(|lane| crew.line(lane).running -= 1);
                 if let (Some(door)",
            ),
            Edit(
                WORKERS,
                "there is room for a job of each thread\"); }",
                "there is room for a job of each thread\"); }
                 drop(crew);
                 taken.map(|lane| self.pool.crew.lock().line(lane).running += 1);",
            ),
        ],
        caught_by: &[("pool::a_job_is_run_once_or_given_back", UNDERFLOW)],
    },
    Bug {
        name: "serve_without_counting",
        edits: &[
            Edit(WORKERS, "line.running += 1;", ""),
            Edit(WORKERS, "crew.line(done).running -= 1;", ""),
        ],
        caught_by: &[(
            "pool::at_once_is_not_behind_another",
            "there is room for a job of each thread",
        )],
    },
    Bug {
        name: "busy_threads_do_not_count",
        edits: &[Edit(
            WORKERS,
            "if has_share && crew.running() == crew.threads && crew.threads",
            "if has_share && crew.threads == 0 && crew.threads",
        )],
        caught_by: &[("pool::no_job_waits_while_a_thread_can_be_had", DEADLOCK)],
    },
    Bug {
        name: "done_and_next_in_two_steps",
        edits: &[Edit(
            WORKERS,
            "crew.line(done).running -= 1; crew.take_turn()",
            "crew.line(done).running -= 1; drop(crew); self.crew.lock().take_turn()",
        )],
        caught_by: &[("pool::at_once_is_not_behind_another", DEADLOCK)],
    },
    Bug {
        name: "background_takes_every_thread",
        edits: &[Edit(
            WORKERS,
            "background: Line::new(background),",
            "background: Line::new(threads),",
        )],
        caught_by: &[
            ("pool::the_background_leaves_threads_for_the_foreground", DEADLOCK),
            ("behind::a_hung_refresh_leaves_threads_for_loads", DEADLOCK),
        ],
    },
    Bug {
        name: "background_goes_first",
        edits: &[Edit(
            WORKERS,
            "[Lane::Foreground, Lane::Background];",
            "[Lane::Background, Lane::Foreground];",
        )],
        caught_by: &[("pool::the_foreground_goes_first", WENT_FIRST)],
    },
    Bug {
        name: "next_of_its_own_lane",
        edits: &[Edit(
            WORKERS,
            "crew.line(done).running -= 1; crew.take_turn()",
            "let line = crew.line(done);
             line.running -= 1;
             let job = line.waiting.pop_front()?;
             line.running += 1;
             Some((done, job))",
        )],
        caught_by: &[("pool::the_foreground_goes_first", WENT_FIRST)],
    },
    Bug {
        name: "begin_after_the_close",
        edits: &[Edit(
            WORKERS,
            "std::mem::take(&mut crew.line(lane).waiting)",
            "VecDeque::<Job>::new()",
        )],
        caught_by: &[(
            "pool::no_job_begins_in_a_pool_that_is_closed",
            "a job began in a pool that was closed",
        )],
    },
    Bug {
        name: "dropped_under_the_lock",
        edits: &[Edit(
            WORKERS,
            "contain(|| drop(job));",
            "let _held = self.pool.crew.lock(); contain(|| drop(job));",
        )],
        caught_by: &[("pool::a_pool_closes_whatever_is_in_it", DEADLOCK)],
    },
    Bug {
        name: "door_left_open",
        edits: &[Edit(WORKERS, "drop(door);", "std::mem::forget(door);")],
        caught_by: &[("pool::a_pool_closes_whatever_is_in_it", DEADLOCK)],
    },
    Bug {
        name: "closer_not_woken",
        edits: &[Edit(WORKERS, "self.empty.notify_all();", "")],
        caught_by: &[("pool::a_pool_closes_whatever_is_in_it", DEADLOCK)],
    },
    Bug {
        name: "one_closer_woken",
        edits: &[Edit(WORKERS, "self.empty.notify_all();", "self.empty.notify_one();")],
        caught_by: &[("pool::a_pool_closes_whatever_is_in_it", DEADLOCK)],
    },
    Bug {
        name: "worker_waits_for_itself",
        edits: &[Edit(WORKERS, "if self.is_worker() { return crew.threads - 1; }", "")],
        caught_by: &[("pool::a_worker_that_closes_waits_for_nobody", DEADLOCK)],
    },
    // The cache: what is kept.
    Bug {
        name: "lead_without_a_second_look",
        edits: &[Edit(
            LADDER,
            "turn.kept.take_if(|kept| self.is_current(&kept.stamp))",
            "turn.kept.take_if(|_| false)",
        )],
        caught_by: &[
            ("reading::what_is_kept_is_loaded_once", LOADED_AGAIN),
            ("behind::a_worker_loads_for_whoever_waits", LOADED_AGAIN),
        ],
    },
    Bug {
        name: "replaced_by_an_older_look",
        edits: &[
            Edit(
                LADDER,
                "let mut join = self.join(key, deadline, Some(times.started))?;",
                "let older = self.local.get(key);
                 let mut join = self.join(key, deadline, Some(times.started))?;",
            ),
            Edit(
                LADDER,
                "let mut turn = self.turn(lead, key); if let Some(kept) = turn.kept.take_if(",
                "let mut turn = self.turn(lead, key); turn.kept = turn.kept.or_else(|| older.clone());
                 if let Some(kept) = turn.kept.take_if(",
            ),
        ],
        caught_by: &[("changes::what_was_invalidated_is_not_unchanged", INVALIDATED)],
    },
    Bug {
        name: "stored_all_the_same",
        edits: &[Edit(LEADER, "lifetime.filter(|_| fill.store)", "lifetime")],
        caught_by: &[(
            "reading::what_is_not_to_be_stored_is_shared_and_gone",
            "stored what was not to be",
        )],
    },
    Bug {
        name: "remove_before_forget",
        edits: &[Edit(
            CACHE,
            "self.group.forget_and(key.hash, key.key, || removed = Some(self.local.remove(key)));",
            "removed = Some(self.local.remove(key)); self.group.forget_and(key.hash, key.key, || ());",
        )],
        caught_by: &[
            ("changes::what_was_invalidated_is_never_served", INVALIDATED),
            ("changes::what_was_invalidated_is_not_refreshed", INVALIDATED),
        ],
    },
    Bug {
        name: "forget_and_remove_in_two_steps",
        edits: &[Edit(
            CACHE,
            "self.group.forget_and(key.hash, key.key, || removed = Some(self.local.remove(key)));",
            "self.group.forget_and(key.hash, key.key, || ()); removed = Some(self.local.remove(key));",
        )],
        caught_by: &[("changes::what_was_invalidated_is_not_unchanged", INVALIDATED)],
    },
    Bug {
        name: "clear_before_forgetting_all",
        edits: &[Edit(
            CACHE,
            "self.room.group.forget_all(|| cleared = Some(self.room.local.clear()));",
            "cleared = Some(self.room.local.clear()); self.room.group.forget_all(|| ());",
        )],
        caught_by: &[("changes::what_was_invalidated_is_never_served", INVALIDATED)],
    },
    Bug {
        name: "store_after_retiring",
        edits: &[Edit(
            REGISTRY,
            "store(); shard.give_room_back();",
            "shard.give_room_back(); drop(shard); store();",
        )],
        caught_by: &[
            ("changes::what_was_invalidated_is_never_served", INVALIDATED),
            ("changes::a_put_wins_over_a_load", PUT_LOST),
        ],
    },
    Bug {
        name: "store_whoever_is_boarded",
        edits: &[Edit(
            REGISTRY,
            "let Ok(boarded) = shard.boarded.find_entry(boarding.hash, |there| there.is(boarding)) else {",
            "let Ok(boarded) = shard.boarded.find_entry(boarding.hash, |there| there.is(boarding)) \
             else { store();",
        )],
        caught_by: &[
            ("changes::what_was_invalidated_is_never_served", INVALIDATED),
            ("changes::what_was_invalidated_is_not_refreshed", INVALIDATED),
            ("changes::a_put_wins_over_a_load", PUT_LOST),
        ],
    },
    Bug {
        name: "put_in_two_steps",
        edits: &[Edit(
            CACHE,
            "room.group.forget_and(asked.hash, key, || {",
            "room.group.forget_and(asked.hash, key, || ()); Some(()).map(|()| {",
        )],
        caught_by: &[("changes::a_put_wins_over_a_load", PUT_LOST)],
    },
    // The cache: who loads, where, and with what in hand.
    Bug {
        name: "wait_with_a_permit",
        edits: &[Edit(
            LADDER,
            "let _lent = admission::lend(); self.group.join_by(key.hash, key.key, deadline, now)",
            "self.group.join_by(key.hash, key.key, deadline, now)",
        )],
        caught_by: &[("reading::who_waits_for_another_load_lends_its_permit", DEADLOCK)],
    },
    Bug {
        name: "refresh_without_a_second_look",
        edits: &[Edit(
            REFRESH,
            "if let Some(newer) = self.overtaken(&mut turn, kept) { self.give_way(turn.lead, newer); return; }",
            "",
        )],
        caught_by: &[("behind::what_is_stale_is_refreshed_once", "refreshed again what was fresh")],
    },
    Bug {
        name: "borrowed_without_a_second_look",
        edits: &[Edit(
            LADDER,
            "if let Some(newer) = self.overtaken(&mut turn, kept) { return",
            "if let Some(newer) = None::<Kept<V>> { return",
        )],
        caught_by: &[(
            "behind::what_is_stale_is_loaded_once_by_its_callers",
            "loaded again what was fresh",
        )],
    },
    Bug {
        name: "refreshed_again_after_a_failure",
        edits: &[Edit(
            LADDER,
            "there.stamp.span != kept.stamp.span || now < there.stamp.refresh_from)",
            "there.stamp.span != kept.stamp.span || now < now)",
        )],
        caught_by: &[(
            "behind::what_has_just_failed_is_not_tried_again",
            "tried again what had just failed",
        )],
    },
    Bug {
        name: "led_again_after_a_failure",
        edits: &[Edit(
            LADDER,
            "let held_off = now < kept.stamp.refresh_from;",
            "let held_off = false;",
        )],
        caught_by: &[(
            "behind::what_has_just_failed_is_not_tried_again",
            "tried again what had just failed",
        )],
    },
    Bug {
        name: "ask_and_queue",
        edits: &[Edit(REFRESH, "if asked_by_a_loader && !self.is_closed() {", "if false {")],
        caught_by: &[("behind::a_loader_that_asks_does_not_wait_for_the_queue", DEADLOCK)],
    },
    Bug {
        name: "refresh_in_the_foreground",
        edits: &[Edit(
            REFRESH,
            "lane: Lane::Background, report: None,",
            "lane: Lane::Foreground, report: None,",
        )],
        caught_by: &[("behind::a_hung_refresh_leaves_threads_for_loads", DEADLOCK)],
    },
    Bug {
        name: "dropped_unrun_lands_nothing",
        edits: &[Edit(REFRESH, "drop(flight.attach(&self.room.group));", "drop(flight);")],
        caught_by: &[
            ("closing::everyone_comes_back_from_a_cache_that_is_closed", DEADLOCK),
            ("closing::no_refresh_is_left_in_a_cache_that_is_closed", STILL_BOARDED),
            ("behind::a_refresh_that_is_not_admitted_leaves_no_mark", STILL_BOARDED),
        ],
    },
    Bug {
        name: "closed_after_the_workers",
        edits: &[Edit(
            CACHE,
            "self.closed.store(true, Ordering::Relaxed); self.workers.close(deadline)",
            "let left = self.workers.close(deadline);
             self.closed.store(true, Ordering::Relaxed);
             left",
        )],
        caught_by: &[(
            "closing::everyone_comes_back_from_a_cache_that_is_closed",
            "closed, but the call says Overloaded",
        )],
    },
];
