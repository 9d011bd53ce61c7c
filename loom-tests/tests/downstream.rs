//! A model of somebody else's code on top of [`onefill::Group`]: a read-through cache, whose
//! author wants to know that it never serves what was invalidated.
//!
//! To check code of your own like this, have loom as a dependency of `cfg(loom)`, take locks and
//! threads from it in such builds, and run the tests with `RUSTFLAGS="--cfg loom"`. The library's
//! own locks are loom's then, too. Deadlines within the hour fire, at any point of their wait;
//! others do not. loom runs five threads at most, the one that asks among them.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Mutex, MutexGuard};
use onefill::Group;

type Loader<'a> = &'a dyn Fn() -> u64;

/// Keeps what was loaded until it is invalidated.
#[derive(Default)]
struct ReadThrough {
    group: Group<u64, u64, Infallible>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    values: HashMap<u64, u64>,
    /// How many times something was invalidated.
    era: u64,
}

impl ReadThrough {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap()
    }

    fn get(&self, key: u64, load: Loader<'_>) -> u64 {
        if let Some(value) = self.kept().values.get(&key) {
            return *value;
        }
        let value = self.group.run(&key, || {
            let era = self.kept().era;
            let value = load();
            let mut kept = self.kept();
            // Something was invalidated meanwhile, and it may have been this.
            if kept.era == era {
                kept.values.insert(key, value);
            }
            Ok(value)
        });
        value.unwrap()
    }

    /// No call of `get` that begins after this has returned gets a value loaded before.
    fn invalidate(&self, key: u64) {
        {
            let mut kept = self.kept();
            kept.era += 1;
            kept.values.remove(&key);
        }
        // And no later caller joins a load that may have begun before (take this line out, and
        // the model says so).
        self.group.forget(&key);
    }
}

const KEY: u64 = 7;

#[test]
fn what_was_invalidated_is_never_served() {
    let mut explorer = loom::model::Builder::new();
    explorer.preemption_bound = explorer.preemption_bound.or(Some(3));
    explorer.check(|| {
        let cache = Arc::new(ReadThrough::default());
        let row = Arc::new(AtomicU64::new(1));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (cache, row) = (Arc::clone(&cache), Arc::clone(&row));
                loom::thread::spawn(move || cache.get(KEY, &|| row.load(Ordering::SeqCst)))
            })
            .collect();

        row.store(2, Ordering::SeqCst);
        cache.invalidate(KEY);
        let value = cache.get(KEY, &|| row.load(Ordering::SeqCst));
        assert_eq!(value, 2, "served a value that was invalidated");

        for reader in readers {
            assert!([1, 2].contains(&reader.join().unwrap()));
        }
        let value = cache.get(KEY, &|| row.load(Ordering::SeqCst));
        assert_eq!(value, 2, "kept a value that was invalidated");
    });
}

/// A caller that would rather have nothing than wait.
#[test]
fn a_reader_may_give_up_at_any_point() {
    let mut explorer = loom::model::Builder::new();
    explorer.preemption_bound = explorer.preemption_bound.or(Some(3));
    explorer.check(|| {
        let group: Arc<Group<u64, u64, Infallible>> = Arc::new(Group::new());
        let patient = {
            let group = Arc::clone(&group);
            loom::thread::spawn(move || group.run(&KEY, || Ok(1)).unwrap())
        };
        match group.run_timeout(&KEY, std::time::Duration::from_millis(50), || Ok(2)) {
            Ok(value) => assert!([1, 2].contains(&value)),
            Err(error) => assert!(error.is_timed_out()),
        }
        assert!([1, 2].contains(&patient.join().unwrap()));
        assert!(group.is_empty());
    });
}
