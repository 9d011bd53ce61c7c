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

const FLIGHT: &str = "flight/mod.rs";
const GROUP: &str = "flight/group.rs";
const LEAD: &str = "flight/lead.rs";
const REGISTRY: &str = "flight/registry.rs";
const SEATS: &str = "flight/seats.rs";
const WAITS: &str = "flight/waits.rs";

/// What loom says when everybody waits.
const DEADLOCK: &str = "deadlock; threads =";
const TWO_LOADS: &str = "two loads of one key at once";
const STILL_BOARDED: &str = "a landed flight is still boarded";
const NOT_BOARDED: &str = "a flight in the air is not boarded";
const REMEMBERED: &str = "an outcome was remembered";
const MISCOUNTED: &str = "nobody waits, but somebody is counted";
const CAP_BROKEN: &str = "more wait than may";
const NO_ROOM: &str = "turned away although there was room";
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
            "self.finish(Outcome::Panicked(message(payload.as_ref())), |_| ());",
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
                "let mut shard = self.shard(hash); match shard.entry(",
                "{
                    let shard = self.shard(hash);
                    if let Some(boarded) = shard.find(hash, |boarded| boarded.key == *key) {
                        if !max_age.is_some_and(|max_age| boarded.flight.is_overdue(max_age)) {
                            return Role::Follow(Handle::clone(&boarded.flight));
                        }
                    }
                }
                let mut shard = self.shard(hash);
                match shard.entry(",
            ),
            Edit(
                REGISTRY,
                "Role::Follow(Handle::clone(boarded)) }",
                "*boarded = new(); Role::Lead(Handle::clone(boarded)) }",
            ),
        ],
        caught_by: &[("landing::every_follower_is_called", TWO_LOADS)],
    },
    Bug {
        name: "never_retire",
        edits: &[Edit(
            LEAD,
            "let retire = || group.registry.retire(*hash, flight, store);",
            "let retire = || { drop(store); None };",
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
                "let retire = || group.registry.retire(*hash, flight, store);",
                "let retire = || { drop(store); None };",
            ),
            Edit(
                LEAD,
                "flight.land(outcome);",
                "flight.land(outcome); group.registry.retire(*hash, flight, || ());",
            ),
        ],
        caught_by: &[
            ("landing::a_failure_is_not_remembered", REMEMBERED),
            ("landing::nothing_is_remembered", REMEMBERED),
        ],
    },
    Bug {
        name: "retire_without_ptr_eq",
        edits: &[Edit(
            REGISTRY,
            "find_entry(hash, |boarded| Handle::ptr_eq(&boarded.flight, flight))",
            "find_entry(hash, |_| true)",
        )],
        caught_by: &[
            ("registry::a_forgotten_flight_spares_its_successor", NOT_BOARDED),
            ("registry::an_overdue_flight_is_replaced", NOT_BOARDED),
        ],
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
        edits: &[Edit(
            FLIGHT,
            "!seats.driven_here() && seats.handed_over()",
            "seats.handed_over()",
        )],
        caught_by: &[(
            "registry::ones_own_flight_is_never_overdue",
            "called `Result::unwrap_err()` on an `Ok` value: 2",
        )],
    },
    // Handing over.
    Bug {
        name: "abandoned_lands_nothing",
        edits: &[Edit(LEAD, "if !self.over {", "if false {")],
        caught_by: &[("hand_over::an_abandoned_flight_is_led_by_a_follower", DEADLOCK)],
    },
    Bug {
        name: "hand_over_to_nobody",
        edits: &[Edit(
            LEAD,
            "if !group.registry.while_boarded(*hash, flight, || flight.hand_over()) { self.finish(Outcome::Disbanded, |_| ()); }",
            "flight.hand_over();",
        )],
        caught_by: &[("hand_over::an_abandoned_flight_is_led_by_a_follower", DEADLOCK)],
    },
    Bug {
        name: "late_promotion_keeps_the_lead",
        edits: &[Edit(GROUP, "Lead::new(self, hash, flight).hand_over();", "")],
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
        edits: &[Edit(SEATS, "self.driver = driver; self.handed_over", "self.handed_over")],
        caught_by: &[("waits::a_cycle_through_a_promoted_follower_is_found", DEADLOCK)],
    },
];
