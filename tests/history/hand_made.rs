//! Histories made by hand, some as promised and some not: the check tells them apart.

use std::time::Duration;

use super::check::{Bounds, Claim, check};
use super::record::{End, Heard, Record, Seen, Time, Token, Trouble, What, nanos};

const KEY: u64 = 3;

const BOUNDS: Bounds =
    Bounds { copy: 4_000, deaf: 1_000, flight: 200, budget: 300, allowance: 500 };

/// Times in here are milliseconds.
fn ms(millis: u64) -> Time {
    nanos(Duration::from_millis(millis))
}

fn record(process: usize, begin: u64, end: u64, what: What) -> Record {
    Record { process, thread: 1, begin: ms(begin), end: ms(end), what }
}

fn got(process: usize, begin: u64, end: u64, how: End, seen: Seen) -> Record {
    let what = What::Got { key: KEY, patience: ms(100), loading: 0, end: how, seen, age: 0 };
    record(process, begin, end, what)
}

fn hit(process: usize, begin: u64, version: u64) -> Record {
    got(process, begin, begin + 1, End::Hit, Seen::Version(version))
}

fn from_tier(process: usize, begin: u64, version: u64) -> Record {
    got(process, begin, begin + 1, End::FleetHit, Seen::Version(version))
}

fn wrote(process: usize, begin: u64, end: u64, version: u64, put: bool, done: bool) -> Record {
    let what = What::Wrote { key: KEY, version, put, done, since: ms(begin.saturating_sub(1)) };
    record(process, begin, end, what)
}

fn invalidated(process: usize, begin: u64, version: u64) -> Record {
    wrote(process, begin, begin + 5, version, false, true)
}

fn put(process: usize, begin: u64, version: u64) -> Record {
    wrote(process, begin, begin + 5, version, true, true)
}

fn won(process: usize, begin: u64, token: Token, life: u64) -> Record {
    let what = What::Acquired { key: KEY, token, life: ms(life), won: true };
    record(process, begin, begin + 1, what)
}

fn renewed(process: usize, begin: u64, token: Token, life: u64) -> Record {
    record(process, begin, begin + 1, What::Renewed { key: KEY, token, life: ms(life), ours: true })
}

fn committed(process: usize, begin: u64, token: Token, stored: bool) -> Record {
    record(process, begin, begin + 1, What::Committed { key: KEY, token, stored })
}

fn released(process: usize, begin: u64, token: Token) -> Record {
    record(process, begin, begin + 1, What::Released { key: KEY, token })
}

fn removed(process: usize, begin: u64, done: bool) -> Record {
    record(process, begin, begin + 1, What::Removed { key: KEY, done })
}

fn heard(process: usize, begin: u64, heard: Heard) -> Record {
    record(process, begin, begin + 1, What::Heard(heard))
}

fn trouble(begin: u64, end: u64, trouble: Trouble) -> Record {
    record(9, begin, end, What::Trouble(trouble))
}

/// Which claims it contradicts, in the order in which they are checked.
fn broken(history: &[Record]) -> Vec<Claim> {
    let Bounds { copy, deaf, flight, budget, allowance } = BOUNDS;
    let [copy, deaf, flight] = [copy, deaf, flight].map(ms);
    let [budget, allowance] = [budget, allowance].map(ms);
    let (_, violations) = check(history, Bounds { copy, deaf, flight, budget, allowance });
    for violation in &violations {
        let excerpt = violation.with_excerpt(history);
        assert!(excerpt.contains("=>"), "{excerpt}");
    }
    violations.iter().map(|violation| violation.claim).collect()
}

#[track_caller]
fn good(history: &[Record]) {
    assert_eq!(broken(history), []);
}

#[track_caller]
fn bad(claim: Claim, history: &[Record]) {
    assert_eq!(broken(history), [claim]);
}

#[test]
fn a_process_knows_at_once_what_it_has_written_itself() {
    let before = invalidated(0, 100, 1);
    let write = invalidated(0, 200, 2);
    good(&[before.clone(), write.clone(), hit(0, 150, 1), hit(0, 204, 1), hit(0, 206, 2)]);
    bad(Claim::NothingOlder, &[before.clone(), write.clone(), hit(0, 206, 1)]);
    bad(Claim::NothingOlder, &[before.clone(), put(0, 200, 2), hit(0, 206, 1)]);
    let followed = got(0, 206, 300, End::Followed, Seen::Version(1));
    bad(Claim::NothingOlder, &[before, write, followed]);
}

#[test]
fn what_the_tier_answers_is_never_older_than_what_it_was_told() {
    let writes = [invalidated(0, 100, 1), invalidated(0, 200, 2)];
    let and = |record| [writes.to_vec(), vec![record]].concat();
    good(&and(from_tier(1, 203, 1)));
    bad(Claim::NothingOlder, &and(from_tier(1, 206, 1)));
    let loaded = got(1, 206, 210, End::Loaded, Seen::Version(1));
    bad(Claim::NothingOlder, &and(loaded));
}

#[test]
fn another_process_may_have_a_copy_until_it_hears_of_it() {
    let history = |last: Record| {
        vec![
            heard(1, 0, Heard::Up),
            heard(2, 0, Heard::Up),
            invalidated(0, 100, 1),
            invalidated(0, 200, 2),
            // Sent after the second one, and so heard after it.
            committed(2, 300, 77, false),
            heard(1, 310, Heard::Version(77)),
            last,
        ]
    };
    good(&history(hit(1, 305, 1)));
    bad(Claim::NothingOlder, &history(hit(1, 312, 1)));
    good(&history(hit(2, 2_000, 1)));
}

#[test]
fn a_notice_that_was_sent_before_the_write_had_returned_says_nothing() {
    good(&[
        heard(1, 0, Heard::Up),
        invalidated(0, 100, 1),
        invalidated(0, 200, 2),
        committed(2, 203, 77, false),
        heard(1, 310, Heard::Version(77)),
        hit(1, 350, 1),
    ]);
}

#[test]
fn who_begins_to_hear_knows_that_copies_are_in_doubt() {
    let history = |last: Record| {
        vec![
            heard(1, 0, Heard::Up),
            invalidated(0, 100, 1),
            heard(1, 150, Heard::Down),
            invalidated(0, 200, 2),
            heard(1, 400, Heard::Up),
            last,
        ]
    };
    good(&history(hit(1, 390, 1)));
    bad(Claim::NothingOlder, &history(hit(1, 402, 1)));
}

#[test]
fn a_copy_is_bounded_by_its_time_whatever_is_heard() {
    let writes =
        |last| vec![heard(1, 0, Heard::Up), invalidated(0, 100, 1), invalidated(0, 200, 2), last];
    good(&writes(hit(1, 205 + 4_200, 1)));
    bad(Claim::NothingOlder, &writes(hit(1, 205 + 4_201, 1)));
    let deaf = |last| {
        let up = heard(1, 0, Heard::Up);
        let down = heard(1, 150, Heard::Down);
        vec![up, invalidated(0, 100, 1), down, invalidated(0, 200, 2), last]
    };
    good(&deaf(hit(1, 205 + 1_200, 1)));
    bad(Claim::NothingOlder, &deaf(hit(1, 205 + 1_201, 1)));
}

#[test]
fn a_write_in_vain_promises_nothing() {
    let history = |put| [invalidated(0, 100, 1), wrote(0, 200, 205, 2, put, false), hit(0, 300, 1)];
    good(&history(true));
    good(&history(false));
}

#[test]
fn of_two_writes_at_once_either_may_have_been_the_last() {
    let newer = invalidated(0, 200, 2);
    good(&[wrote(1, 150, 201, 1, true, true), newer.clone(), hit(0, 300, 1)]);
    good(&[put(1, 230, 1), newer.clone(), hit(0, 300, 1)]);
    bad(Claim::NothingOlder, &[put(1, 150, 1), newer.clone(), hit(0, 300, 1)]);
    // An invalidation brings nothing.
    bad(Claim::NothingOlder, &[invalidated(1, 230, 1), newer, hit(0, 300, 1)]);
}

#[test]
fn a_put_in_vain_may_happen_late_but_not_for_ever() {
    let late = || wrote(1, 100, 250, 1, true, false);
    let before = |begin| vec![late(), invalidated(0, begin, 2), hit(0, begin + 50, 1)];
    good(&before(700));
    bad(Claim::NothingOlder, &before(751));
    let paused = |begin| [before(begin), vec![trouble(200, 900, Trouble::Pause)]].concat();
    good(&paused(1_400));
    bad(Claim::NothingOlder, &paused(1_401));
}

#[test]
fn an_absence_is_the_newest_that_it_can_be() {
    let writes = [invalidated(0, 100, 4), invalidated(0, 200, 5), invalidated(0, 300, 6)];
    let and = |begin| {
        let absent = got(0, begin, begin + 1, End::AbsentHit, Seen::Absent);
        [writes.to_vec(), vec![absent]].concat()
    };
    good(&and(50));
    bad(Claim::NothingOlder, &and(150));
    good(&and(250));
    bad(Claim::NothingOlder, &and(350));
}

#[test]
fn what_nobody_wrote_is_seen_by_nobody() {
    bad(Claim::NothingOlder, &[hit(0, 100, 7)]);
    good(&[got(0, 100, 101, End::AbsentHit, Seen::Absent)]);
}

#[test]
fn nothing_is_stored_under_a_lease_that_another_has_followed() {
    let first = won(0, 100, 1, 500);
    good(&[first.clone(), committed(0, 200, 1, true), won(1, 210, 2, 500)]);
    // It has run out, and there is another one.
    let second = won(1, 700, 2, 500);
    good(&[first.clone(), second.clone(), committed(0, 710, 1, false)]);
    good(&[first.clone(), second.clone(), committed(1, 710, 2, true)]);
    bad(Claim::OneHolder, &[first.clone(), second.clone(), committed(0, 710, 1, true)]);
    // Whichever was first there.
    good(&[first, second, committed(0, 700, 1, true)]);
    bad(Claim::OneHolder, &[committed(0, 710, 1, true)]);
}

#[test]
fn no_lease_is_won_while_another_is_live() {
    let (first, second) = (won(0, 100, 1, 500), won(1, 400, 2, 500));
    bad(Claim::OneHolder, &[first.clone(), second.clone()]);
    good(&[first.clone(), won(1, 600, 2, 500)]);
    good(&[first.clone(), released(0, 300, 1), second.clone()]);
    good(&[first.clone(), committed(0, 300, 1, false), second.clone()]);
    good(&[first.clone(), invalidated(2, 300, 1), second.clone()]);
    good(&[first.clone(), wrote(2, 300, 305, 1, true, false), second.clone()]);
    good(&[first.clone(), removed(2, 300, true), second.clone()]);
    good(&[first.clone(), removed(2, 50, false), second.clone()]);
    bad(Claim::OneHolder, &[first.clone(), removed(2, 50, true), second.clone()]);
    bad(Claim::OneHolder, &[first.clone(), removed(2, 402, true), second.clone()]);
    good(&[first.clone(), trouble(200, 300, Trouble::Kill), second.clone()]);
    bad(Claim::OneHolder, &[first.clone(), trouble(200, 300, Trouble::Pause), second.clone()]);
    bad(Claim::OneHolder, &[first.clone(), invalidated(2, 50, 1), second.clone()]);
    bad(Claim::OneHolder, &[first.clone(), released(0, 402, 1), second]);
    bad(Claim::OneHolder, &[first, renewed(0, 300, 1, 500), won(1, 700, 2, 500)]);
}

#[test]
fn whoever_calls_is_answered_in_time() {
    let late = |end| [invalidated(0, 0, 1), got(0, 100, end, End::TimedOut, Seen::Nothing)];
    good(&late(700));
    bad(Claim::InTime, &late(701));
    // A machine that does not come to it is not the cache's fault.
    let stalled = |process| [&late(900)[..], &[record(process, 500, 750, What::Stalled)]].concat();
    good(&stalled(0));
    bad(Claim::InTime, &stalled(1));
    let loading = |end| {
        let (key, patience, loading) = (KEY, ms(100), ms(50));
        let (seen, how) = (Seen::Nothing, End::Failed);
        let what = What::Got { key, patience, loading, end: how, seen, age: 0 };
        [record(0, 100, end, what)]
    };
    good(&loading(100 + 100 + 50 + 300 + 500));
    bad(Claim::InTime, &loading(100 + 100 + 50 + 300 + 501));
    good(&[wrote(0, 100, 900, 1, true, false)]);
    bad(Claim::InTime, &[wrote(0, 100, 901, 1, true, false)]);
}

#[test]
fn what_was_counted_has_happened() {
    let history = |hits, loads, ended| {
        let mut ends = vec![0; End::ALL.len()];
        ends[End::Hit as usize] = hits;
        [
            invalidated(0, 0, 1),
            hit(0, 100, 1),
            hit(0, 110, 1),
            // Another process's calls are counted there.
            hit(1, 110, 1),
            record(0, 130, 135, What::Loaded { key: KEY, version: Some(1) }),
            record(0, 200, 200, What::Counted { ends, loads, ended }),
        ]
    };
    good(&history(2, 1, 1));
    bad(Claim::Counted, &history(1, 1, 1));
    bad(Claim::Counted, &history(2, 2, 1));
    bad(Claim::Counted, &history(2, 1, 0));
}
