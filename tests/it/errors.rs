//! What an error says and can do, and what the types can be used for.

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use onefill::{Cap, Deadline, Error, FailurePolicy, Group, GroupBuilder, Join, Lead};

use crate::support::*;

/// Neither `Clone` nor `PartialEq`.
#[derive(Debug)]
struct Away(Cause);

#[derive(Debug)]
struct Cause;

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the database is away")
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no route")
    }
}

impl std::error::Error for Away {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl std::error::Error for Cause {}

/// One of each kind, with its text.
fn all() -> [(Error<Away>, &'static str); 9] {
    [
        (Error::Failed(Arc::new(Away(Cause))), "loader failed: the database is away"),
        (Error::Panicked(Some("no table".into())), "loader panicked: no table"),
        (Error::Panicked(None), "loader panicked, and not with a string"),
        (Error::Abandoned, "the load was abandoned by the caller that led it"),
        (Error::TimedOut { waited: ms(50) }, "deadline passed after waiting 50ms for a load"),
        (Error::WouldBlock, "another caller is loading this key"),
        (
            Error::WouldDeadlock,
            "waiting would deadlock: the load waited for depends on one this thread is running",
        ),
        (
            Error::Overloaded { cap: Cap::PerKey, limit: 500 },
            "500 callers are waiting for this key already, as many as may",
        ),
        (
            Error::Overloaded { cap: Cap::InAll, limit: 2_000 },
            "2000 callers are waiting already over all keys, as many as may",
        ),
    ]
}

#[test]
fn texts_begin_lower_case_and_end_without_a_full_stop() {
    for (error, text) in all() {
        assert_eq!(error.to_string(), text);
        assert!(!text.starts_with(char::is_uppercase), "{text}");
        assert!(text.ends_with(|c: char| c.is_alphanumeric()), "{text}");
    }
}

#[test]
fn the_source_is_the_loaders_own_error() {
    for (error, _) in all() {
        let source = error.source();
        assert_eq!(source.is_some(), error.is_failed());
        if let Some(source) = source {
            let own = source.downcast_ref::<Away>().unwrap();
            assert!(std::ptr::eq(own, error.failure().unwrap()));
            assert_eq!(source.source().unwrap().to_string(), "no route");
        }
    }
}

#[test]
fn each_kind_is_told_from_the_others() {
    let tests: [fn(&Error<Away>) -> bool; 7] = [
        Error::is_failed,
        Error::is_panicked,
        Error::is_abandoned,
        Error::is_timed_out,
        Error::is_would_block,
        Error::is_would_deadlock,
        Error::is_overloaded,
    ];
    let kinds = [0, 1, 1, 2, 3, 4, 5, 6, 6];
    for ((error, _), kind) in all().into_iter().zip(kinds) {
        for (number, test) in tests.iter().enumerate() {
            assert_eq!(test(&error), number == kind, "{error:?}");
        }
        assert_eq!(error.failure().is_some(), kind == 0);
    }
}

#[test]
fn an_error_is_cloned_without_its_cause() {
    for (error, text) in all() {
        let clone = error.clone();
        assert_eq!(clone.to_string(), text);
        assert_eq!(format!("{clone:?}"), format!("{error:?}"));
        if let (Error::Failed(a), Error::Failed(b)) = (&error, &clone) {
            assert!(Arc::ptr_eq(a, b));
        }
    }
}

#[test]
fn an_error_shows_its_facts_for_debugging() {
    let shown = all().map(|(error, _)| format!("{error:?}"));
    assert_eq!(
        shown,
        [
            "Failed(Away(Cause))",
            "Panicked(Some(\"no table\"))",
            "Panicked(None)",
            "Abandoned",
            "TimedOut { waited: 50ms }",
            "WouldBlock",
            "WouldDeadlock",
            "Overloaded { cap: PerKey, limit: 500 }",
            "Overloaded { cap: InAll, limit: 2000 }",
        ]
    );
}

#[test]
fn an_error_can_be_boxed_and_sent() {
    let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(Error::<Away>::WouldBlock);
    assert!(boxed.downcast_ref::<Error<Away>>().unwrap().is_would_block());
}

#[test]
fn what_threads_share_can_be_shared() {
    fn is_sent_and_shared<T: Send + Sync>() {}
    is_sent_and_shared::<Group<u64, Arc<str>, Away>>();
    is_sent_and_shared::<Error<Away>>();
    is_sent_and_shared::<Deadline>();
    is_sent_and_shared::<FailurePolicy>();
    is_sent_and_shared::<Cap>();
    is_sent_and_shared::<GroupBuilder<u64, Arc<str>, Away>>();
    // A builder holds settings only, so it may go where its group's keys may not.
    is_sent_and_shared::<GroupBuilder<std::rc::Rc<u64>, u64, Away>>();
}

#[test]
fn what_is_public_can_be_debugged() {
    fn shown(what: &dyn fmt::Debug) -> String {
        format!("{what:?}")
    }
    struct Mute;
    // Also where keys, values and errors cannot be.
    let group: Group<u64, (), Mute> = Group::default();
    assert!(shown(&group).starts_with("Group { flights: 0, waiting: 0, settings: "));
    let builder: GroupBuilder<u64, (), Mute> = Group::builder().max_followers(7);
    assert!(shown(&builder).contains("max_followers: 7"), "{builder:?}");
    let lead: Lead<'_, u64, (), Mute> = lead(&group, &1);
    assert_eq!(shown(&lead), "Lead { .. }");
    let group: Group<u64, u8, Away> = Group::new();
    let join: Join<'_, u64, u8, Away> = group.join(&1, Duration::MAX).must();
    assert_eq!(shown(&join), "Lead(Lead { .. })");
    assert_eq!(shown(&Join::<'_, u64, u8, Away>::Landed(1)), "Landed(1)");
}
