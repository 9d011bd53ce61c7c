//! A lead on its way to another thread: somebody takes it, and nobody waits for a thread that waits.

use std::sync::Arc;

use loom::thread;
use loom_tests::model::{explore, fires};

use super::herd::{Desk, KEY, Source, Ticket, call, settled};
use super::onefill::doors::{Detached, leave_behind, let_go};
use super::onefill::{Deadline, Error, Join};

/// A key beside [`KEY`].
const OWN: u64 = 2;

/// What the thread does that the lead was meant for. It loads, if nobody took the flight over.
fn take_on(desk: &Desk, detached: Option<Detached<Ticket, Ticket>>, source: &Source) {
    if let Some(lead) = detached.and_then(|detached| detached.attach(desk)) {
        assert!(lead.run(|| Ok(source.load())).is_ok());
    }
}

/// What the thread does that has let go: it waits like the others, and may come to lead again.
fn see(
    desk: &Desk,
    joined: Result<Option<Join<'_, u64, Ticket, Ticket>>, Error<Ticket>>,
    source: &Source,
) {
    match joined {
        Ok(Some(Join::Landed(_))) => {}
        Ok(Some(Join::Lead(lead))) => assert!(lead.run(|| Ok(source.load())).is_ok()),
        Ok(None) => {
            assert!(call(desk, Deadline::NEVER, source, super::herd::End::Value).got.is_ok())
        }
        Err(error) => assert!(error.is_timed_out(), "{error:?}"),
    }
}

/// A loader of [`OWN`] that asks for [`KEY`].
fn needing(desk: &Desk, source: &Source) -> Ticket {
    let own = desk.run(&OWN, || {
        let needed = desk.run(&KEY, || Ok(source.load()));
        assert!(needed.is_ok(), "{needed:?}");
        Ok(0)
    });
    own.unwrap()
}

pub fn a_lead_on_its_way_is_taken_once() {
    const NAME: &str = "a_lead_on_its_way_is_taken_once";
    explore(NAME, 2, None, 41, || passed_on(false, Deadline::NEVER));
    explore(NAME, 2, None, 3200, || passed_on(false, fires()));
    explore(NAME, 3, Some(3), 2800, || passed_on(true, Deadline::NEVER));
}

/// A lead is passed to another thread. A loader asks for the key as well, and does not wait for
/// that thread.
fn passed_on(somebody_needs_it: bool, deadline: Deadline) {
    let (desk, source) = (Arc::new(Desk::new()), Arc::new(Source::new()));
    let Ok(Join::Lead(lead)) = desk.join(&KEY, Deadline::NEVER) else { unreachable!() };
    let needing = somebody_needs_it.then(|| {
        let (desk, source) = (Arc::clone(&desk), Arc::clone(&source));
        thread::spawn(move || needing(&desk, &source))
    });
    let (ticket, detached) = let_go(lead);
    let worker = {
        let (desk, source) = (Arc::clone(&desk), Arc::clone(&source));
        thread::spawn(move || take_on(&desk, detached, &source))
    };
    see(&desk, ticket.follow(&desk, deadline), &source);
    worker.join().unwrap();
    if let Some(needing) = needing {
        needing.join().unwrap();
    }
    settled(&desk);
}

pub fn a_lead_that_nobody_takes_on_is_a_followers() {
    const NAME: &str = "a_lead_that_nobody_takes_on_is_a_followers";
    explore(NAME, 2, None, 98, || dropped_on_its_way(0, Deadline::NEVER));
    explore(NAME, 3, Some(3), 4500, || dropped_on_its_way(1, Deadline::NEVER));
    explore(NAME, 3, Some(2), 610, || dropped_on_its_way(1, fires()));
}

/// The lead is attached and given up, as a job is that is dropped unrun.
fn dropped_on_its_way(others: usize, deadline: Deadline) {
    let (desk, source) = (Arc::new(Desk::new()), Arc::new(Source::new()));
    let Ok(Join::Lead(lead)) = desk.join(&KEY, Deadline::NEVER) else { unreachable!() };
    let crew: Vec<_> = (0..others)
        .map(|_| {
            let (desk, source) = (Arc::clone(&desk), Arc::clone(&source));
            thread::spawn(move || {
                let called = call(&desk, Deadline::NEVER, &source, super::herd::End::Value);
                assert!(called.got.is_ok(), "{called:?}");
            })
        })
        .collect();
    let (ticket, detached) = let_go(lead);
    let worker = {
        let desk = Arc::clone(&desk);
        thread::spawn(move || drop(detached.and_then(|detached| detached.attach(&desk))))
    };
    see(&desk, ticket.follow(&desk, deadline), &source);
    worker.join().unwrap();
    crew.into_iter().for_each(|caller| caller.join().unwrap());
    settled(&desk);
}

pub fn nobody_waits_for_a_thread_that_waits() {
    const NAME: &str = "nobody_waits_for_a_thread_that_waits";
    explore(NAME, 3, Some(3), 4900, || {
        let (desk, source) = (Arc::new(Desk::new()), Arc::new(Source::new()));
        let Ok(Join::Lead(lead)) = desk.join(&KEY, Deadline::NEVER) else { unreachable!() };
        let needing = {
            let (desk, source) = (Arc::clone(&desk), Arc::clone(&source));
            thread::spawn(move || needing(&desk, &source))
        };
        let (ticket, detached) = let_go(lead);
        // The thread that the lead is meant for has something to do before, and needs for it what
        // the loader that asks is loading.
        let worker = {
            let (desk, source) = (Arc::clone(&desk), Arc::clone(&source));
            thread::spawn(move || {
                assert!(desk.run(&OWN, || Ok(0)).is_ok());
                take_on(&desk, detached, &source);
            })
        };
        see(&desk, ticket.follow(&desk, Deadline::NEVER), &source);
        worker.join().unwrap();
        needing.join().unwrap();
        settled(&desk);
    });
}

pub fn nobody_waits_behind_a_refresh() {
    const NAME: &str = "nobody_waits_behind_a_refresh";
    explore(NAME, 2, None, 28, || {
        let (desk, source) = (Arc::new(Desk::new()), Arc::new(Source::new()));
        let Ok(Join::Lead(lead)) = desk.join(&KEY, Deadline::NEVER) else { unreachable!() };
        let caller = {
            let (desk, source) = (Arc::clone(&desk), Arc::clone(&source));
            thread::spawn(move || {
                let called = call(&desk, Deadline::NEVER, &source, super::herd::End::Value);
                assert!(called.got.is_ok(), "{called:?}");
            })
        };
        let detached = leave_behind(lead);
        // The thread that is to refresh has other things to do until the caller has been served.
        caller.join().unwrap();
        take_on(&desk, detached, &source);
        settled(&desk);
    });
}
