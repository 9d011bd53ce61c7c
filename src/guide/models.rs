//! How to model-check code of your own that stands on [`Group`](crate::Group).
//!
//! [loom](https://docs.rs/loom) runs a test under every schedule of its threads, within a bound. In a
//! build with `--cfg loom` the locks of a `Group` are loom's, so your code and the real source of this
//! crate are explored together; nothing is mocked.
//!
//! 1. Depend on loom in such builds, and take locks, atomics and threads from it there:
//!
//!    ```toml
//!    [target.'cfg(loom)'.dependencies]
//!    loom = "0.7"
//!    ```
//!
//! 2. Write the test. As everywhere with loom, make everything inside of the model, join every
//!    thread, and keep it small: five threads at most, the one that asks among them.
//!
//!    ```ignore
//!    #[test]
//!    fn two_callers_make_one_load() {
//!        loom::model(|| {
//!            let group: Arc<Group<u64, u64, Infallible>> = Arc::new(Group::new());
//!            let loads = Arc::new(AtomicU64::new(0)); // loom's
//!            let call = |group: &Group<u64, u64, Infallible>, loads: &AtomicU64| {
//!                group.run(&1, || Ok(loads.fetch_add(1, Ordering::Relaxed) + 1)).unwrap()
//!            };
//!            let other = {
//!                let (group, loads) = (Arc::clone(&group), Arc::clone(&loads));
//!                loom::thread::spawn(move || call(&group, &loads))
//!            };
//!            let (mine, theirs) = (call(&group, &loads), other.join().unwrap());
//!            // They met, or they came one after the other: a group does not remember.
//!            assert!(mine == theirs || mine + theirs == 3);
//!        });
//!    }
//!    ```
//!
//! 3. Run it: `RUSTFLAGS="--cfg loom" cargo test --release`.
//!
//! **Deadlines fire.** In a model a deadline within the hour may pass at any point of its wait, and
//! loom explores both; one that is further off, or never, does not. So a test with a deadline of a
//! second is a test of what your code does when it times out, at the worst moment.
//!
//! **Break it, too.** A scenario that cannot fail proves nothing. Take a line out of your code that
//! you believe to be needed, and see the model find out. This crate does that to itself: bugs are
//! seeded into copies of its source, one at a time, and each must be caught.
//!
//! A whole example, a read-through cache of somebody else's, stands in the repository:
//! `loom-tests/tests/downstream.rs`.
