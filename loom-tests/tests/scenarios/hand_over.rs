//! A leader leaves without a value, and the flight is another's, or nobody's.

use std::sync::Arc;

use loom::thread;
use loom_tests::model::{explore, far_off, fires};

use super::herd::{
    Call, Desk, End, KEY, Source, Unmade, call, call_for, check, herd_of, settled, together,
};
use super::onefill::{Deadline, Error, FailurePolicy, Group, Join};

pub fn an_abandoned_flight_is_led_by_a_follower() {
    const NAME: &str = "an_abandoned_flight_is_led_by_a_follower";
    let policy = FailurePolicy::HandOver;
    explore(NAME, 2, None, 89, move || abandon_among(2, 1, 0, policy));
    explore(NAME, 3, Some(3), 840, move || abandon_among(3, 1, 0, policy));
    explore(NAME, 3, Some(3), 950, move || abandon_among(3, 2, 0, policy));
    explore(NAME, 4, Some(2), 870, move || abandon_among(4, 2, 0, policy));
}

pub fn a_late_promotion_passes_the_flight_on() {
    const NAME: &str = "a_late_promotion_passes_the_flight_on";
    let policy = FailurePolicy::HandOver;
    explore(NAME, 2, None, 1780, move || abandon_among(2, 1, 1, policy));
    explore(NAME, 3, Some(3), 1100, move || abandon_among(3, 1, 1, policy));
    explore(NAME, 3, Some(3), 1200, move || abandon_among(3, 1, 2, policy));
    explore(NAME, 4, Some(2), 680, move || abandon_among(4, 1, 2, policy));
}

pub fn an_abandoned_flight_is_shared_if_told_to() {
    const NAME: &str = "an_abandoned_flight_is_shared_if_told_to";
    let policy = FailurePolicy::Share;
    explore(NAME, 2, None, 870, move || abandon_among(2, 1, 1, policy));
    explore(NAME, 3, Some(3), 540, move || abandon_among(3, 1, 1, policy));
}

/// The first `abandoning` of the callers give their lead up, if they get it; the deadlines of the
/// last `late` fire.
pub fn abandon_among(callers: usize, abandoning: usize, late: usize, policy: FailurePolicy) {
    let desk: Arc<Desk> = Arc::new(Group::builder().on_abandoned(policy).build());
    let calls = {
        let (desk, source) = (Arc::clone(&desk), Source::new());
        together(callers, move |me| {
            let deadline = if me + late >= callers { fires() } else { Deadline::NEVER };
            if me >= abandoning {
                return Some(call(&desk, deadline, &source, End::Value));
            }
            let got = match desk.join(&KEY, deadline) {
                Ok(Join::Lead(lead)) => {
                    drop(lead);
                    return None;
                }
                Ok(Join::Landed(ticket)) => Ok(ticket),
                Err(error) => Err(Unmade::Error(error)),
            };
            Some(Call { led: None, got, deadline })
        })
    };
    let shared = |call: &Call| {
        policy == FailurePolicy::Share && matches!(call.got, Err(Unmade::Error(Error::Abandoned)))
    };
    let calls: Vec<Call> = calls.into_iter().flatten().filter(|call| !shared(call)).collect();
    check(&calls, End::Value);
    settled(&desk);
}

pub fn a_failure_is_handed_over_if_told_to() {
    const NAME: &str = "a_failure_is_handed_over_if_told_to";
    nobody_shares_under(NAME, FailurePolicy::HandOver);
}

pub fn each_retries_for_itself() {
    const NAME: &str = "each_retries_for_itself";
    nobody_shares_under(NAME, FailurePolicy::RetryEach);
}

fn nobody_shares_under(name: &str, policy: FailurePolicy) {
    explore(name, 2, None, 44, move || nobody_shares(policy, 2, 0, End::FirstFails));
    explore(name, 2, None, 870, move || nobody_shares(policy, 2, 1, End::Failure));
    explore(name, 3, Some(3), 610, move || nobody_shares(policy, 3, 1, End::FirstFails));
    explore(name, 3, Some(3), 510, move || nobody_shares(policy, 3, 0, End::Failure));
    explore(name, 4, Some(2), 480, move || nobody_shares(policy, 4, 1, End::FirstFails));
}

pub fn a_forgotten_flight_is_not_handed_over() {
    const NAME: &str = "a_forgotten_flight_is_not_handed_over";
    explore(NAME, 2, None, 2100, || forgotten_and_abandoned(1));
    explore(NAME, 3, Some(3), 2300, || forgotten_and_abandoned(2));
}

/// While `others` call, a flight is forgotten, and only then abandoned.
fn forgotten_and_abandoned(others: usize) {
    let (desk, source) = (Arc::new(Desk::new()), Arc::new(Source::new()));
    let Ok(Join::Lead(lead)) = desk.join(&KEY, Deadline::NEVER) else { unreachable!() };
    let crew: Vec<_> = (0..others)
        .map(|_| {
            let (desk, source) = (Arc::clone(&desk), Arc::clone(&source));
            thread::spawn(move || call(&desk, Deadline::NEVER, &source, End::Value))
        })
        .collect();
    desk.forget(&KEY);
    drop(lead);
    let mut calls = vec![call(&desk, Deadline::NEVER, &source, End::Value)];
    calls.extend(crew.into_iter().map(|caller| caller.join().unwrap()));
    check(&calls, End::Value);
    settled(&desk);
}

/// A herd in which a failure is its leader's own.
fn nobody_shares(policy: FailurePolicy, callers: usize, late: usize, end: End) {
    let calls = herd_of(Group::builder().on_failure(policy).build(), callers, late, end);
    let failed = |call: &&Call| matches!(call.got, Err(Unmade::Error(Error::Failed(_))));
    assert!(calls.iter().filter(failed).all(|call| call.led.is_some()), "a failure was shared");
}

pub fn the_most_patient_follower_leads() {
    const NAME: &str = "the_most_patient_follower_leads";
    explore(NAME, 3, Some(3), 1200, || {
        let desk = Arc::new(Desk::new());
        let Ok(Join::Lead(lead)) = desk.join(&KEY, Deadline::NEVER) else { unreachable!() };
        let crew = [far_off(), Deadline::NEVER].map(|deadline| {
            let desk = Arc::clone(&desk);
            thread::spawn(move || call_for(&desk, KEY, deadline, End::Value, || 1))
        });
        let both_wait = desk.waiting() == 2;
        drop(lead);
        let [patient, more_patient] = crew.map(|caller| caller.join().unwrap());
        assert!(
            !both_wait || patient.led.is_none() && more_patient.led.is_some(),
            "a follower with less time left leads"
        );
        assert!(patient.got.is_ok() && more_patient.got.is_ok());
        settled(&desk);
    });
}
