//! How long an entry lives: TTL, jitter, stale windows, early refresh.
//!
//! Arithmetic, and nothing else: the time and the random draws are passed in, nothing panics, and
//! nothing wraps. Every sum saturates, and whatever a difference would make negative is zero.
//!
//! An entry's life is counted from the moment it was loaded:
//!
//! ```text
//! loaded                fresh until                       kept until
//!    |------- fresh -------|---- stale-while-revalidate ----|
//!    |      (early refresh)|-------- stale-if-error -----|
//! ```
//!
//! The TTL is shortened by jitter once, when the entry is loaded, and the two windows are counted
//! from the end of freshness. So the order of the three moments holds whatever was drawn.

use std::time::Duration;

use crate::error::BuildError;
use crate::moment::{Moment, nanos};

/// The longest TTL, the longest window, and the longest that any tier keeps an entry: 10 years.
/// Whatever is longer, [`Duration::MAX`] included, means this.
pub(crate) const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// [`LONGEST`] in nanoseconds.
const MOST: u64 = LONGEST.as_nanos() as u64;

/// Jitter leaves at least this much of a TTL, unless the TTL itself is shorter: 1 ms, in nanoseconds.
const SHORTEST: u64 = 1_000_000;

/// By how much a shared tier, which tells what is left in whole milliseconds, may be beyond what a
/// record was to live, in nanoseconds.
const ROUNDED: u64 = 2_000_000;

/// How long an entry may be served after its freshness has ended: two windows, independent of each
/// other, both counted from the end of freshness ([RFC 5861]). Zero closes a window.
///
/// [RFC 5861]: https://www.rfc-editor.org/rfc/rfc5861
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Served at once, while a refresh runs behind the caller's back.
    pub(crate) stale_while_revalidate: Duration,
    /// Served only if a load was tried and failed.
    pub(crate) stale_if_error: Duration,
}

impl Windows {
    fn longer(self) -> Duration {
        self.stale_while_revalidate.max(self.stale_if_error)
    }
}

/// How long the entries of a cache live, and when they are refreshed. Times longer than
/// [`LONGEST`] mean [`LONGEST`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Policy {
    /// How long a value is fresh. Zero: it is not stored.
    pub(crate) ttl: Duration,
    /// How long it stays known that there is no value. Zero: it is not stored.
    pub(crate) absent_ttl: Duration,
    /// How long an entry may be served stale.
    pub(crate) windows: Windows,
    /// By how much of itself a TTL is shortened at most: a fraction from 0 to 1.
    pub(crate) jitter: f64,
    /// How eagerly an entry is refreshed before its freshness ends: the beta of
    /// [`Span::due_early`]. A finite factor, 0 for never.
    pub(crate) early_refresh: f64,
    /// How long after a failed refresh of a key the next may begin. Jitter does not touch it.
    pub(crate) refresh_backoff: Duration,
}

impl Policy {
    /// The given TTL, which has no default, and every default.
    pub(crate) fn new(ttl: Duration) -> Policy {
        Policy {
            ttl,
            absent_ttl: Duration::from_secs(30),
            windows: Windows {
                stale_while_revalidate: Duration::ZERO,
                stale_if_error: Duration::ZERO,
            },
            jitter: 0.10,
            early_refresh: 1.0,
            refresh_backoff: Duration::from_secs(5),
        }
    }

    /// Refuses the factors that mean nothing. No duration is refused.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        // NaN is in no range.
        if !(0.0..=1.0).contains(&self.jitter) {
            return Err(BuildError::new("jitter", self.jitter, "a fraction from 0 to 1"));
        }
        if !(0.0..=f64::MAX).contains(&self.early_refresh) {
            let allowed = "a finite factor, 0 or more";
            return Err(BuildError::new("early_refresh", self.early_refresh, allowed));
        }
        Ok(())
    }

    /// The lifetime of a value with this `ttl`, be it [`ttl`](Policy::ttl) or one that the loader
    /// chose. `None`: not to be stored.
    ///
    /// Drawn once for each load, so that all tiers agree. `draw` is uniform over all of `u64`.
    pub(crate) fn lifetime(&self, ttl: Duration, draw: u64) -> Option<Lifetime> {
        self.lifetime_and(self.windows.longer(), ttl, draw)
    }

    /// The same of an absence, with [`absent_ttl`](Policy::absent_ttl) or one that the loader chose.
    /// No window applies to it, so it is kept for no longer than it is fresh.
    pub(crate) fn absence_lifetime(&self, ttl: Duration, draw: u64) -> Option<Lifetime> {
        self.lifetime_and(Duration::ZERO, ttl, draw)
    }

    /// The same of an entry that is kept for a `window` past its freshness.
    fn lifetime_and(&self, window: Duration, ttl: Duration, draw: u64) -> Option<Lifetime> {
        let fresh = jittered(nanos(ttl), self.jitter, draw);
        (fresh > 0).then(|| Lifetime::of(fresh, fresh.saturating_add(nanos(window))))
    }

    /// Before this moment no refresh is to follow the one that failed at `failed`.
    pub(crate) fn retry_at(&self, failed: Moment) -> Moment {
        failed.plus(self.refresh_backoff.min(LONGEST))
    }
}

/// `ttl`, in nanoseconds, shortened by a fraction of itself that is uniform from 0 up to, but not
/// including, `jitter`. `draw` is uniform over all of `u64`.
///
/// It never gets longer, so nothing is served for longer than was promised. It never gets shorter
/// than 1 ms, unless `ttl` is. With a jitter of 0 it is `ttl`; it is zero only if `ttl` is.
fn jittered(ttl: u64, jitter: f64, draw: u64) -> u64 {
    let ttl = ttl.min(MOST);
    // The conversion to an integer saturates, and makes a zero of NaN.
    let most = (ttl as f64 * jitter) as u64;
    let cut = (u128::from(most) * u128::from(draw)) >> u64::BITS;
    ttl.saturating_sub(cut as u64).max(ttl.min(SHORTEST))
}

/// `draw`, uniform over all of `u64`, as a number in (0, 1].
pub(crate) fn unit_draw(draw: u64) -> f64 {
    // 53 bits is what an f64 holds exactly. One more than the draw: 0 has no logarithm.
    ((draw >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// How long an entry is fresh and how long it is kept, both from when it was loaded.
///
/// What is written next to the value in the shared tier, so that every reader of the record goes by
/// what its writer drew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifetime {
    /// In nanoseconds, as a [`Moment`] is: each load adds them to one.
    fresh: u64,
    kept: u64,
}

impl Lifetime {
    /// Fresh for `fresh`, kept for `kept`. Neither is longer than [`LONGEST`], and freshness ends
    /// with the keeping, whatever a damaged record may say.
    pub(crate) fn new(fresh: Duration, kept: Duration) -> Lifetime {
        Lifetime::of(nanos(fresh), nanos(kept))
    }

    fn of(fresh: u64, kept: u64) -> Lifetime {
        let kept = kept.min(MOST);
        Lifetime { fresh: fresh.min(kept), kept }
    }

    pub(crate) fn fresh(self) -> Duration {
        Duration::from_nanos(self.fresh)
    }

    /// Freshness and the longer of the two windows.
    pub(crate) fn kept(self) -> Duration {
        Duration::from_nanos(self.kept)
    }
}

/// What may be done with an entry at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Serve it.
    Fresh,
    /// Within stale-while-revalidate: serve it and refresh it. (Within stale-if-error it may be
    /// too.)
    Stale,
    /// Only within stale-if-error: load, and serve it if that fails.
    IfError,
    /// Past all windows, or past the time for which this tier keeps it: as if it were not there.
    Expired,
}

/// The times of one entry in one tier, on the local clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    loaded: Moment,
    fresh_until: Moment,
    kept_until: Moment,
}

impl Span {
    /// Of an entry loaded here at `loaded`, in a tier that keeps nothing for longer than `at_most`
    /// (zero: keeps nothing at all).
    pub(crate) fn loaded(loaded: Moment, lifetime: Lifetime, at_most: Duration) -> Span {
        Span {
            loaded,
            fresh_until: loaded.plus_nanos(lifetime.fresh),
            kept_until: loaded.plus_nanos(lifetime.kept.min(nanos(at_most))),
        }
    }

    /// Of a copy of a record in the shared tier, never kept here for longer than the record itself.
    ///
    /// The age is what has passed of the record's life by the shared tier's own clock: no clock of
    /// another machine, and no wall clock, has a part in it. `asked` is the moment *before* the
    /// question was sent, so the answer's journey counts as age.
    ///
    /// `left` is what the tier says is left of its life: `None` for no end, zero for a record that is
    /// gone, or will be in a millisecond. That has [expired](Phase::Expired), though its bytes have
    /// come: whatever removed it, an expiry or an invalidation, was meant.
    ///
    /// `None` if there is no end, or more left than the record was ever to live: somebody else's hand
    /// was in it, or the tier's clock was set back. Its age cannot be known, and each reader would
    /// find it new again. A [little](ROUNDED) more is taken for rounding, and the record for new.
    pub(crate) fn copied(
        asked: Moment,
        lifetime: Lifetime,
        left: Option<Duration>,
    ) -> Option<Span> {
        let left = nanos(left?);
        if left > lifetime.kept.saturating_add(ROUNDED) {
            return None;
        }
        let left = left.min(lifetime.kept);
        let loaded = asked.minus(Duration::from_nanos(lifetime.kept - left));
        Some(Span {
            loaded,
            fresh_until: loaded.plus_nanos(lifetime.fresh),
            kept_until: asked.plus_nanos(left),
        })
    }

    /// Whether it is [fresh](Phase::Fresh): the one question that a hit asks.
    #[inline]
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        now < self.fresh_until && now < self.kept_until
    }

    /// What may be done with it. A window ends with its last moment excluded.
    pub(crate) fn phase(&self, windows: Windows, now: Moment) -> Phase {
        let stale_for = now.since(self.fresh_until);
        if self.is_fresh(now) {
            Phase::Fresh
        } else if now >= self.kept_until {
            Phase::Expired
        } else if stale_for < windows.stale_while_revalidate {
            Phase::Stale
        } else if stale_for < windows.stale_if_error {
            Phase::IfError
        } else {
            Phase::Expired
        }
    }

    /// When its load ended.
    pub(crate) fn loaded_at(&self) -> Moment {
        self.loaded
    }

    /// How long ago it was loaded.
    pub(crate) fn age(&self, now: Moment) -> Duration {
        now.since(self.loaded)
    }

    /// The same, kept for `at_most` from `now` on at most.
    pub(crate) fn kept_at_most(self, now: Moment, at_most: Duration) -> Span {
        Span { kept_until: self.kept_until.min(now.plus(at_most)), ..self }
    }

    /// When its freshness ends.
    pub(crate) fn fresh_until(&self) -> Moment {
        self.fresh_until
    }

    /// By how much its load was later than the other's; zero if it was not.
    pub(crate) fn newer_by(&self, other: &Span) -> Duration {
        self.loaded.since(other.loaded)
    }

    /// The moment before which [`due_early`](Span::due_early) says no whatever is drawn: so a hit
    /// need not draw. The end of freshness, if nothing is ever due early.
    pub(crate) fn early_from(&self, cost: Duration, beta: f64) -> Moment {
        // No draw of [`unit_draw`] is below 2^-53.
        let reach =
            nanos(cost) as f64 * beta * (f64::from(f64::MANTISSA_DIGITS) * std::f64::consts::LN_2);
        // The conversion to an integer saturates, and makes a zero of NaN. What it cuts off is added.
        let reach = if reach > 0.0 { (reach as u64).saturating_add(1) } else { 0 };
        Moment(self.fresh_until.0.saturating_sub(reach))
    }

    /// Whether a fresh entry should be refreshed already, so that it is new again before it ends
    /// and no herd meets its end.
    ///
    /// XFetch, from Vattani, Chierichetti and Lowenstein, "Optimal Probabilistic Cache Stampede
    /// Prevention", VLDB 2015: yes if `now - cost * beta * ln(u) >= fresh_until`. Each caller draws
    /// a `u` of its own from (0, 1] (see [`unit_draw`]), so that the nearer the end and the dearer the
    /// load, the likelier one of them begins. A `beta` above 1 begins earlier, below 1 later.
    ///
    /// Never if the `cost` of the load is zero or not known, or `beta` is zero; and never once
    /// freshness has ended, for then the phase decides.
    pub(crate) fn due_early(&self, now: Moment, cost: Option<Duration>, beta: f64, u: f64) -> bool {
        let left = self.fresh_until.since(now).as_secs_f64();
        let cost = cost.unwrap_or(Duration::ZERO).as_secs_f64();
        if left == 0.0 || cost == 0.0 || beta == 0.0 {
            return false;
        }
        // In this order no zero meets an infinity, not even with a `u` of 0. Were it to happen,
        // what compares with NaN is false.
        cost * (beta * -u.ln()) >= left
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const ZERO: Duration = Duration::ZERO;
    const MAX: Duration = Duration::MAX;
    const NANO: Duration = Duration::from_nanos(1);
    /// Where a clock may start.
    const START: Moment = Moment(2 * LONGEST.as_nanos() as u64);

    fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn windows(stale_while_revalidate: Duration, stale_if_error: Duration) -> Windows {
        Windows { stale_while_revalidate, stale_if_error }
    }

    fn policy(ttl: Duration, windows: Windows) -> Policy {
        Policy { windows, jitter: 0.0, ..Policy::new(ttl) }
    }

    /// Without jitter.
    fn lifetime(ttl: Duration, windows: Windows) -> Lifetime {
        policy(ttl, windows).lifetime(ttl, u64::MAX).unwrap()
    }

    /// As the shared tier tells it `after` a record of this lifetime was written.
    fn left(lifetime: Lifetime, after: Duration) -> Option<Duration> {
        Some(lifetime.kept().saturating_sub(after))
    }

    fn jittered(ttl: Duration, jitter: f64, draw: u64) -> Duration {
        Duration::from_nanos(super::jittered(nanos(ttl), jitter, draw))
    }

    /// Durations of all sizes, the extremes among them.
    fn durations() -> impl Strategy<Value = Duration> {
        let odd = [ZERO, NANO, us(400), ms(1), secs(1), LONGEST - NANO, LONGEST, LONGEST + NANO];
        let huge = [ms(u64::MAX), Duration::from_nanos(u64::MAX), MAX - secs(1), MAX];
        prop_oneof![
            prop::sample::select([odd.as_slice(), &huge].concat()),
            any::<u64>().prop_map(Duration::from_nanos),
            (0..u64::BITS, any::<u64>()).prop_map(|(bits, n)| Duration::from_nanos(n >> bits)),
        ]
    }

    /// The extremes, and all distances from [`START`], so that they meet.
    fn moments() -> impl Strategy<Value = Moment> {
        prop_oneof![
            prop::sample::select(vec![START, Moment(0), Moment(1), Moment(u64::MAX)]),
            durations().prop_map(|wait| START.plus(wait)),
            durations().prop_map(|age| START.minus(age)),
            any::<u64>().prop_map(Moment),
        ]
    }

    fn draws() -> impl Strategy<Value = u64> {
        prop_oneof![prop::sample::select(vec![0, 1, u64::MAX]), any::<u64>()]
    }

    fn fractions() -> impl Strategy<Value = f64> {
        prop_oneof![prop::sample::select(vec![0.0, f64::MIN_POSITIVE, 0.1, 1.0]), 0.0..=1.0]
    }

    fn units() -> impl Strategy<Value = f64> {
        let ends = vec![0.0, f64::from_bits(1), f64::MIN_POSITIVE, 1.0 - f64::EPSILON, 1.0];
        prop_oneof![prop::sample::select(ends), 0.0..=1.0]
    }

    prop_compose! {
        fn any_windows()(revalidate in durations(), error in durations()) -> Windows {
            windows(revalidate, error)
        }
    }

    prop_compose! {
        fn lifetimes()(fresh in durations(), kept in durations()) -> Lifetime {
            Lifetime::new(fresh, kept)
        }
    }

    prop_compose! {
        /// Times of an entry from either source.
        fn spans()(
            at in moments(),
            lifetime in lifetimes(),
            at_most in durations(),
            answer in prop::option::of(durations()),
        ) -> Span {
            let copied = Span::copied(at, lifetime, answer).map(|span| span.kept_at_most(at, at_most));
            copied.unwrap_or(Span::loaded(at, lifetime, at_most))
        }
    }

    // Moments.

    proptest! {
        #[test]
        fn moments_saturate_at_both_ends(at in moments(), by in durations()) {
            prop_assert!(at.plus(by) >= at);
            prop_assert!(at.minus(by) <= at);
            let room = at.plus(by) < Moment(u64::MAX);
            prop_assert!(!room || at.plus(by).since(at) == by && at.plus(by).minus(by) == at);
        }

        #[test]
        fn a_clock_that_runs_backwards_stands_still(a in moments(), b in moments()) {
            prop_assert_eq!(a.since(b).is_zero(), a <= b);
            prop_assert!(a.since(b).is_zero() || b.since(a).is_zero());
        }
    }

    // TTL and jitter.

    proptest! {
        #[test]
        fn jitter_only_shortens(ttl in durations(), jitter in fractions(), draw in draws()) {
            let drawn = jittered(ttl, jitter, draw);
            let ttl = ttl.min(LONGEST);
            prop_assert!(drawn <= ttl);
            // An f64 holds ten years to within a few dozen nanoseconds.
            let least = ttl.as_secs_f64() * (1.0 - jitter) - 1e-7;
            prop_assert!(drawn.as_secs_f64() >= least, "{drawn:?} is shorter than {least} s");
        }

        #[test]
        fn jitter_leaves_a_millisecond_where_there_was_one(
            ttl in durations(),
            jitter in fractions(),
            draw in draws(),
        ) {
            prop_assert!(jittered(ttl, jitter, draw) >= ttl.min(ms(1)));
        }

        #[test]
        fn no_jitter_changes_nothing(ttl in durations(), draw in draws()) {
            prop_assert_eq!(jittered(ttl, 0.0, draw), ttl.min(LONGEST));
        }

        #[test]
        fn a_greater_draw_shortens_more(
            ttl in durations(),
            jitter in fractions(),
            draws in (any::<u64>(), any::<u64>()),
        ) {
            let (less, more) = (draws.0.min(draws.1), draws.0.max(draws.1));
            prop_assert!(jittered(ttl, jitter, less) >= jittered(ttl, jitter, more));
        }

        #[test]
        fn even_a_factor_that_was_never_checked_does_no_harm(
            ttl in durations(),
            jitter in any::<f64>(),
            draw in draws(),
        ) {
            let drawn = jittered(ttl, jitter, draw);
            prop_assert!(ttl.min(ms(1)) <= drawn && drawn <= ttl.min(LONGEST));
        }
    }

    /// Draws spread evenly over all there are.
    fn even_draws(n: u64) -> impl Iterator<Item = u64> {
        (0..n).map(move |i| i * (u64::MAX / n))
    }

    #[test]
    fn every_ttl_and_every_jitter_keeps_its_bounds_in_all_draws() {
        for ttl in [ms(1), ms(100), secs(3_600), LONGEST - ms(1)] {
            for jitter in [0.0, 0.1, 0.5, 1.0] {
                let windows = windows(secs(5), ZERO);
                let policy = Policy { jitter, windows, ..Policy::new(ttl) };
                assert_eq!(policy.check(), Ok(()));
                for draw in even_draws(100_000) {
                    let lifetime = policy.lifetime(ttl, draw).unwrap();
                    assert!(ms(1) <= lifetime.fresh() && lifetime.fresh() <= ttl);
                    assert!(lifetime.fresh() < lifetime.kept() && lifetime.kept() <= LONGEST);
                    assert!(jitter != 0.0 || lifetime.fresh() == ttl);
                }
            }
        }
    }

    #[test]
    fn jitter_of_a_tenth_spreads_a_hundred_milliseconds_evenly_over_ten() {
        let drawn: Vec<_> =
            even_draws(100_000).map(|draw| jittered(ms(100), 0.1, draw).as_micros()).collect();
        assert!(drawn.iter().all(|us| (90_000..=100_000).contains(us)));
        // Not whole milliseconds, of which there would be ten.
        assert!(drawn.iter().collect::<BTreeSet<_>>().len() >= 10_000);
        for millis in 90..100 {
            let share = drawn.iter().filter(|us| *us / 1_000 == millis).count();
            assert!((9_900..=10_100).contains(&share), "{share} of 100,000 within {millis} ms");
        }
    }

    #[test]
    fn a_zero_ttl_is_not_stored_whatever_the_windows() {
        for jitter in [0.0, 0.1, 1.0] {
            let windows = windows(MAX, MAX);
            let policy = Policy { jitter, windows, ..Policy::new(secs(1)) };
            for draw in [0, u64::MAX] {
                assert_eq!(policy.lifetime(ZERO, draw), None);
                assert!(policy.lifetime(NANO, draw).is_some());
            }
        }
    }

    #[test]
    fn no_duration_is_too_long() {
        for long in [ms(u64::MAX), MAX - secs(1), MAX] {
            let policy = Policy {
                absent_ttl: long,
                refresh_backoff: long,
                ..policy(long, windows(long, long))
            };
            assert_eq!(policy.check(), Ok(()));
            assert_eq!(policy.retry_at(START), START.plus(LONGEST));
            for ttl in [policy.ttl, policy.absent_ttl] {
                let lifetime = policy.lifetime(ttl, 0).unwrap();
                assert_eq!((lifetime.fresh(), lifetime.kept()), (LONGEST, LONGEST));
                let span = Span::loaded(START, lifetime, long);
                assert_eq!(span.phase(policy.windows, START.plus(secs(1))), Phase::Fresh);
            }
        }
    }

    // Factors.

    #[test]
    fn a_factor_without_meaning_is_refused_by_name() {
        for jitter in [-0.1, -f64::MIN_POSITIVE, 1.0 + f64::EPSILON, 1.5, f64::NAN, f64::INFINITY] {
            let policy = Policy { jitter, ..Policy::new(secs(1)) };
            assert_eq!(policy.check().unwrap_err().field(), "jitter");
        }
        for early_refresh in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let policy = Policy { early_refresh, ..Policy::new(secs(1)) };
            assert_eq!(policy.check().unwrap_err().field(), "early_refresh");
        }
        for (jitter, early_refresh) in [(0.0, 0.0), (-0.0, -0.0), (1.0, 1e300), (0.1, f64::MAX)] {
            let policy = Policy { jitter, early_refresh, ..Policy::new(secs(1)) };
            assert_eq!(policy.check(), Ok(()));
        }
    }

    #[test]
    fn the_refusal_tells_the_field_the_value_and_what_is_allowed() {
        let refused = |policy: Policy| policy.check().unwrap_err().to_string();
        assert_eq!(
            refused(Policy { jitter: 1.5, ..Policy::new(secs(1)) }),
            "jitter is 1.5, but must be a fraction from 0 to 1"
        );
        assert_eq!(
            refused(Policy { early_refresh: f64::NAN, ..Policy::new(secs(1)) }),
            "early_refresh is NaN, but must be a finite factor, 0 or more"
        );
    }

    #[test]
    fn the_defaults_are_allowed() {
        for ttl in [ZERO, secs(1), MAX] {
            assert_eq!(Policy::new(ttl).check(), Ok(()));
        }
    }

    // Windows and phases.

    #[test]
    fn the_windows_begin_where_freshness_ends() {
        // Longer than the grace, and shorter than it: the same total.
        for (ttl, grace) in [(secs(600), secs(120)), (secs(120), secs(600))] {
            for windows in [windows(grace, ZERO), windows(ZERO, grace), windows(grace, secs(1))] {
                let lifetime = lifetime(ttl, windows);
                assert_eq!((lifetime.fresh(), lifetime.kept()), (ttl, secs(720)));
            }
        }

        let windows = windows(secs(120), ZERO);
        let span = Span::loaded(START, lifetime(secs(600), windows), LONGEST);
        let phase = |after| span.phase(windows, START.plus(secs(after)));
        assert_eq!(phase(590), Phase::Fresh);
        assert_eq!(phase(650), Phase::Stale);
        assert_eq!(phase(721), Phase::Expired);
    }

    #[test]
    fn the_stale_window_does_not_shorten_the_fresh_life() {
        let windows = windows(secs(5), ZERO);
        let lifetime = lifetime(secs(300), windows);
        assert_eq!((lifetime.fresh(), lifetime.kept()), (secs(300), secs(305)));
        let span = Span::loaded(START, lifetime, LONGEST);
        assert_eq!(span.phase(windows, START.plus(secs(20))), Phase::Fresh);
        assert_eq!(span.phase(windows, START.plus(secs(299))), Phase::Fresh);
        assert_eq!(span.phase(windows, START.plus(secs(300))), Phase::Stale);
    }

    #[test]
    fn the_two_windows_are_independent() {
        let at = |windows, after| {
            // Kept for as long as some other call may want it.
            let span = Span::loaded(START, Lifetime::new(secs(10), secs(100)), LONGEST);
            span.phase(windows, START.plus(ms(after)))
        };
        use Phase::*;
        let revalidate_first = windows(secs(2), secs(5));
        let phases = [9_999, 10_000, 11_999, 12_000, 14_999, 15_000];
        assert_eq!(
            phases.map(|after| at(revalidate_first, after)),
            [Fresh, Stale, Stale, IfError, IfError, Expired]
        );
        let error_first = windows(secs(5), secs(2));
        assert_eq!(
            phases.map(|after| at(error_first, after)),
            [Fresh, Stale, Stale, Stale, Stale, Expired]
        );
        // A call that will have nothing stale.
        let none = windows(ZERO, ZERO);
        assert_eq!(phases.map(|after| at(none, after))[..2], [Fresh, Expired]);
        // A call that will have anything: what is not kept it cannot have.
        let all = windows(MAX, MAX);
        assert_eq!(at(all, 99_999), Stale);
        assert_eq!(at(all, 100_000), Expired);
    }

    proptest! {
        #[test]
        fn an_entry_only_ever_gets_older(
            span in spans(),
            windows in any_windows(),
            a in moments(),
            b in moments(),
        ) {
            let (first, then) = (a.min(b), a.max(b));
            prop_assert!(span.phase(windows, first) as u8 <= span.phase(windows, then) as u8);
            prop_assert!(span.age(first) <= span.age(then));
        }

        #[test]
        fn nothing_is_served_that_is_not_kept(
            span in spans(),
            windows in any_windows(),
            now in moments(),
        ) {
            let phase = span.phase(windows, now);
            prop_assert!(phase == Phase::Expired || now < span.kept_until);
            prop_assert_eq!(phase == Phase::Fresh, span.is_fresh(now));
        }

        #[test]
        fn soft_expiry_comes_before_hard_expiry(
            ttl in durations(),
            windows in any_windows(),
            jitter in fractions(),
            draw in draws(),
        ) {
            let policy = Policy { windows, jitter, ..Policy::new(ttl) };
            if let Some(lifetime) = policy.lifetime(ttl, draw) {
                prop_assert!(ZERO < lifetime.fresh());
                prop_assert!(lifetime.fresh() <= lifetime.kept());
                prop_assert!(lifetime.kept() <= LONGEST);
                let span = Span::loaded(START, lifetime, LONGEST);
                prop_assert!(span.loaded < span.fresh_until);
                prop_assert!(span.fresh_until <= span.kept_until);
            } else {
                prop_assert!(ttl.is_zero());
            }
        }

        #[test]
        fn a_tier_keeps_nothing_longer_than_it_may(
            at in moments(),
            lifetime in lifetimes(),
            at_most in durations(),
        ) {
            let span = Span::loaded(at, lifetime, at_most);
            prop_assert!(span.kept_until <= at.plus(at_most.min(lifetime.kept())));
            prop_assert!(!at_most.is_zero() || span.phase(windows(MAX, MAX), at) == Phase::Expired);
        }
    }

    #[test]
    fn a_failed_refresh_is_not_repeated_before_the_backoff_is_over() {
        let policy = Policy { jitter: 1.0, ..Policy::new(secs(60)) };
        assert_eq!(policy.retry_at(START).since(START), secs(5));
        let at_once = Policy { refresh_backoff: ZERO, ..policy };
        assert_eq!(at_once.retry_at(START), START);
        assert_eq!(at_once.retry_at(Moment(u64::MAX)), Moment(u64::MAX));
    }

    // Early refresh.

    #[test]
    fn early_refresh_is_decided_for_all_extremes() {
        let costs = [ZERO, NANO, secs(1), MAX];
        let betas = [0.0, 1.0, 1e300];
        let us = [0.0, f64::from_bits(1), f64::MIN_POSITIVE, 0.5, 1.0 - f64::EPSILON, 1.0];
        let span = Span::loaded(START, lifetime(secs(60), Windows::default()), LONGEST);
        let before = START.plus(secs(59));
        let expiry = START.plus(secs(60));
        for cost in costs {
            for beta in betas {
                for u in us {
                    let due = |now| span.due_early(now, Some(cost), beta, u);
                    for late in [expiry, expiry.plus(secs(1)), Moment(u64::MAX)] {
                        assert!(!due(late), "{cost:?} {beta} {u}: from expiry on not asked");
                    }
                    let expected = match (cost, beta, u) {
                        (ZERO, _, _) | (_, 0.0, _) | (_, _, 1.0) => false,
                        (_, _, 0.0) => true,
                        _ => cost.as_secs_f64() * beta * -u.ln() >= 1.0,
                    };
                    assert_eq!(due(before), expected, "{cost:?} {beta} {u}");
                }
            }
        }
        assert!(!span.due_early(before, None, 1e300, 0.0), "cost not known");
    }

    #[test]
    fn what_takes_a_second_to_load_is_due_a_second_before_its_end_once_in_e_times() {
        let span = Span::loaded(START, lifetime(secs(60), Windows::default()), LONGEST);
        let share = |now: u64, cost, beta| {
            let due =
                |draw| span.due_early(START.plus(secs(now)), Some(cost), beta, unit_draw(draw));
            even_draws(10_000).filter(|draw| due(*draw)).count()
        };
        // exp(-left / (cost * beta)) of 10,000.
        assert!((3_670..=3_690).contains(&share(59, secs(1), 1.0)));
        assert!((1_344..=1_364).contains(&share(58, secs(1), 1.0)));
        assert!((3_670..=3_690).contains(&share(58, secs(1), 2.0)));
        assert!((3_670..=3_690).contains(&share(58, secs(2), 1.0)));
        assert!(share(0, secs(1), 1.0) <= 1);
    }

    proptest! {
        #[test]
        fn early_refresh_is_asked_only_of_what_is_fresh(
            span in spans(),
            now in moments(),
            cost in prop::option::of(durations()),
            beta in prop_oneof![Just(0.0), Just(f64::MAX), 0.0..1e9],
            u in units(),
        ) {
            let due = span.due_early(now, cost, beta, u);
            prop_assert!(!due || now < span.fresh_until);
            prop_assert!(!due || u < 1.0);
            prop_assert!(!due || beta > 0.0 && cost.is_some_and(|cost| !cost.is_zero()));
        }

        #[test]
        fn the_nearer_the_end_the_likelier_a_refresh(
            span in spans(),
            a in moments(),
            b in moments(),
            cost in durations(),
            u in units(),
        ) {
            let (first, then) = (a.min(b), a.max(b));
            let due = |now| span.due_early(now, Some(cost), 1.0, u);
            prop_assert!(!due(first) || due(then) || then >= span.fresh_until);
        }

        #[test]
        fn nothing_is_due_before_it_is_worth_a_draw(
            lifetime in lifetimes(),
            cost in durations(),
            beta in prop_oneof![Just(0.0), Just(1.0), 0.0..1e9],
            sooner in prop_oneof![Just(ZERO), durations()],
            draw in draws(),
        ) {
            let span = Span::loaded(START, lifetime, MAX);
            let early = span.early_from(cost, beta);
            // An f64 holds ten years to within a few dozen nanoseconds.
            let now = early.minus(sooner.max(us(1)));
            // There may be nothing before it.
            let worth_it = now == early;
            prop_assert!(worth_it || !span.due_early(now, Some(cost), beta, unit_draw(draw)));
        }

        #[test]
        fn a_unit_draw_has_a_logarithm(draw in draws()) {
            prop_assert!(0.0 < unit_draw(draw) && unit_draw(draw) <= 1.0);
            prop_assert!(unit_draw(draw).ln().is_finite());
        }
    }

    // The shared tier.

    #[test]
    fn less_than_a_second_is_not_cut_to_seconds() {
        for ttl in [NANO, us(400), ms(345), ms(999), ms(1_500), us(1_999_600)] {
            assert_eq!(lifetime(ttl, Windows::default()).kept(), ttl);
        }
    }

    proptest! {
        #[test]
        fn a_local_copy_never_outlives_its_record(
            asked in moments(),
            lifetime in lifetimes(),
            left in durations(),
        ) {
            if let Some(span) = Span::copied(asked, lifetime, Some(left)) {
                prop_assert!(span.kept_until <= asked.plus(left));
                // Nor is it ever fresh for longer than a value that was loaded just now.
                prop_assert!(span.fresh_until <= asked.plus(lifetime.fresh()));
                prop_assert!(span.age(asked) <= lifetime.kept());
            }
        }

        #[test]
        fn a_record_keeps_the_age_it_has_in_the_shared_tier(
            fresh in 1..10_000_u64,
            window in 0..10_000_u64,
            age in 0..20_000_u64,
        ) {
            let windows = windows(ms(window), ZERO);
            let lifetime = lifetime(ms(fresh), windows);
            let there = Span::loaded(START, lifetime, LONGEST);
            let now = START.plus(ms(age));
            let here = Span::copied(now, lifetime, left(lifetime, ms(age))).unwrap();
            prop_assert_eq!(here.phase(windows, now), there.phase(windows, now));
            prop_assert_eq!(here.is_fresh(now), there.is_fresh(now));
            prop_assert!(age >= fresh + window || here == there);
        }

        #[test]
        fn a_record_that_has_more_left_than_its_life_is_none(
            asked in moments(),
            lifetime in lifetimes(),
            more in 3..u64::MAX,
        ) {
            let left = lifetime.kept().saturating_add(ms(more));
            prop_assert_eq!(Span::copied(asked, lifetime, Some(left)), None);
            prop_assert_eq!(Span::copied(asked, lifetime, None), None);
        }

        #[test]
        fn a_record_that_has_a_little_more_left_than_its_life_is_new(
            asked in moments(),
            lifetime in lifetimes(),
            more in 0..=2_000_u64,
        ) {
            let left = lifetime.kept().saturating_add(us(more));
            let span = Span::copied(asked, lifetime, Some(left)).unwrap();
            prop_assert_eq!(span, Span::loaded(asked, lifetime, MAX));
            prop_assert_eq!(span.age(asked), ZERO);
        }

        #[test]
        fn a_damaged_record_never_lives_longer_than_the_longest(
            asked in moments(),
            fresh in any::<u64>(),
            kept in any::<u64>(),
            answer in prop::option::of(durations()),
        ) {
            let lifetime = Lifetime::new(ms(fresh), ms(kept));
            prop_assert!(lifetime.fresh() <= lifetime.kept() && lifetime.kept() <= LONGEST);
            if let Some(span) = Span::copied(asked, lifetime, answer) {
                prop_assert!(span.kept_until <= asked.plus(LONGEST));
            }
        }
    }

    #[test]
    fn a_copy_made_near_the_end_ends_with_its_record() {
        let lifetime = lifetime(secs(2), Windows::default());
        let at = |after| START.plus(ms(after));
        let span = Span::copied(at(1_500), lifetime, left(lifetime, ms(1_500))).unwrap();
        assert_eq!(span.phase(Windows::default(), at(1_500)), Phase::Fresh);
        assert_eq!(span.phase(Windows::default(), at(1_900)), Phase::Fresh);
        assert_eq!(span.phase(Windows::default(), at(2_000)), Phase::Expired);
        assert_eq!(span.age(at(1_900)), ms(1_900));
    }

    #[test]
    fn a_copy_older_than_the_clock_has_its_age() {
        let windows = windows(secs(3_600), ZERO);
        let lifetime = lifetime(secs(3_600), windows);
        let span = Span::copied(START, lifetime, left(lifetime, secs(5_400))).unwrap();
        assert_eq!(span.age(START), secs(5_400));
        assert_eq!(span.phase(windows, START), Phase::Stale);
        assert_eq!(span.phase(windows, START.plus(secs(1_800))), Phase::Expired);
    }

    #[test]
    fn a_record_that_has_just_gone_is_neither_kept_nor_served() {
        let windows = windows(MAX, MAX);
        let lifetime = lifetime(secs(60), windows);
        let span = Span::copied(START, lifetime, Some(ZERO)).unwrap();
        assert_eq!(span.kept_until, START);
        assert_eq!(span.phase(windows, START), Phase::Expired);
    }
}
