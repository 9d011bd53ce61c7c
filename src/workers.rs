//! [`Workers`]: a bounded pool of threads for what is done behind a caller's back.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::deadline::Deadline;
use crate::sync::channel::{self, Receiver, Sender};
use crate::sync::{Arc, Condvar, Mutex, local, spawn};

/// What a worker does.
///
/// Whoever waits for a job, or has marked something as taken care of by one, must hear of it on
/// every way a job can go: it may run to its end, panic, or be dropped without having run, by
/// [`Workers::close`] or by whoever got it back [`Rejected`]. The `Drop` of what it captures is
/// run on all of them, so that is where the mark is cleared and the waiting told; it is run on the
/// worker, the closer or the submitter, and never under a lock of the pool.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The pool has no room for the job, or is closed. Here it is again.
pub(crate) struct Rejected(pub(crate) Job);

/// A fixed number of threads, and a queue of fixed length before them.
///
/// - Threads start when they are first needed: one for each job that finds no thread free.
/// - Submitting never waits: a job that would make the queue too long is given back.
/// - A panic ends the job it came from and nothing else.
/// - A pool that is dropped is closed, and waits for its running jobs for [`LINGER`].
///
/// A job that waits for another job of the same pool waits for itself once every thread does so.
/// So a load that is asked for on a worker runs there: [`is_worker`](Workers::is_worker).
pub(crate) struct Workers {
    pool: Arc<Pool>,
}

/// How long the drop of a pool waits for the jobs that are running.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// The pool as its threads hold it: they may outlive its owner.
struct Pool {
    number: u64,
    name: String,
    threads: usize,
    queue: usize,
    jobs: Receiver<Job>,
    crew: Mutex<Crew>,
    /// The last thread has left.
    empty: Condvar,
}

struct Crew {
    /// Where jobs come in; closed for good once it is `None`.
    door: Option<Sender<Job>>,
    /// Threads that have not left.
    threads: usize,
    /// Jobs that have been let in and have not begun.
    queued: usize,
    running: usize,
}

/// How busy a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gauge {
    /// Jobs that have been let in and have not begun.
    pub(crate) queued: usize,
    /// Jobs that are running.
    pub(crate) running: usize,
    /// Threads that have started and have not left.
    pub(crate) threads: usize,
}

local! {
    /// The pool this thread works for, 0 for none.
    static WORKS_FOR: Cell<u64> = Cell::new(0);
}

impl Workers {
    /// A pool that has `threads` threads at most, called `onefill-<name>-<n>`, each with the stack
    /// that threads have by default, and lets `queue` jobs wait while all of them are busy. Memory
    /// for `threads + queue` jobs is taken now, threads are not started.
    ///
    /// # Panics
    ///
    /// If `threads` is 0: nothing would ever run.
    pub(crate) fn new(name: &str, threads: usize, queue: usize) -> Workers {
        assert!(threads > 0, "workers must be at least 1");
        // Not a model's atomic: the numbers are compared, never ordered by.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // A job let in because a thread is free for it is in here, too, until the thread has it.
        let (door, jobs) = channel::bounded(threads + queue);
        Workers {
            pool: Arc::new(Pool {
                number: NEXT.fetch_add(1, Ordering::Relaxed),
                // A thread's name cannot have a zero byte in it.
                name: name.replace('\0', ""),
                threads,
                queue,
                jobs,
                crew: Mutex::new(Crew { door: Some(door), threads: 0, queued: 0, running: 0 }),
                empty: Condvar::new(),
            }),
        }
    }

    /// Has `job` run on a thread of the pool. Never waits for one.
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the job, if all threads are busy and the queue is full, if the pool is
    /// closed, or if there is no thread and none can be started.
    pub(crate) fn submit(&self, job: Job) -> Result<(), Rejected> {
        self.submit_behind(self.pool.queue, job)
    }

    /// [`submit`](Workers::submit), if a thread is free: the job begins without waiting for another
    /// to end.
    pub(crate) fn submit_at_once(&self, job: Job) -> Result<(), Rejected> {
        self.submit_behind(0, job)
    }

    /// Submits the job if no more than `queue` would wait, itself among them.
    fn submit_behind(&self, queue: usize, job: Job) -> Result<(), Rejected> {
        let mut crew = self.pool.crew.lock();
        if crew.door.is_none() || crew.in_hand() >= self.pool.threads + queue {
            return Err(Rejected(job));
        }
        // A thread that is about to ask for its next job counts as busy with it, or a job could
        // be left to wait behind that one while a thread was still to be had. So does a thread that
        // runs one (seeded bug: `busy_threads_do_not_count`).
        if crew.in_hand() >= crew.threads && crew.threads < self.pool.threads {
            self.start_thread(&mut crew);
        }
        // Fewer than there may be, if one could not be started.
        let room = crew.threads > 0 && crew.in_hand() < crew.threads + queue;
        let Some(door) = crew.door.as_ref().filter(|_| room) else {
            return Err(Rejected(job));
        };
        // Counted under the lock it is let in under: a thread counts it off as soon as it has it
        // (seeded bug: `counted_once_it_is_let_in`).
        door.try_send(job).map_err(|refused| Rejected(refused.into_inner()))?;
        crew.queued += 1;
        Ok(())
    }

    /// Whether the calling thread is one of this pool's.
    pub(crate) fn is_worker(&self) -> bool {
        WORKS_FOR.with(Cell::get) == self.pool.number
    }

    /// Closes the pool and returns how many of its threads are still busy.
    ///
    /// No job is let in and none begins any more: those in the queue are dropped unrun. The jobs
    /// that are running are waited for until `deadline`; those that are not done by then are left
    /// behind, and their threads leave when they are. A thread that has left may yet have to run
    /// the destructors of its own variables.
    ///
    /// Closing again waits again. A worker that closes its own pool waits for nobody: not for
    /// itself, and not for another that may be closing it as well. It is not counted.
    pub(crate) fn close(&self, deadline: Deadline) -> usize {
        let mut crew = self.pool.crew.lock();
        let door = crew.door.take();
        drop(crew);
        // Threads that wait for a job find that there will be none (seeded bug: `door_left_open`).
        // What is in the queue they may have before it is drained here.
        drop(door);
        while let Ok(job) = self.pool.jobs.try_recv() {
            // Counted, and the lock given back: to drop a job is to run the code of others (seeded
            // bug: `drained_under_the_lock`).
            self.pool.crew.lock().queued -= 1;
            contain(|| drop(job));
        }

        let mut crew = self.pool.crew.lock();
        // Seeded bug: `worker_waits_for_itself`.
        if self.is_worker() {
            return crew.threads - 1;
        }
        while crew.threads > 0 && deadline.wait(&self.pool.empty, &mut crew) {}
        crew.threads
    }

    /// How many threads it has at most.
    pub(crate) fn threads(&self) -> usize {
        self.pool.threads
    }

    /// How busy the pool is in this moment.
    pub(crate) fn gauge(&self) -> Gauge {
        let crew = self.pool.crew.lock();
        Gauge { queued: crew.queued, running: crew.running, threads: crew.threads }
    }

    fn start_thread(&self, crew: &mut Crew) {
        let name = format!("onefill-{}-{}", self.pool.name, crew.threads + 1);
        let pool = Arc::clone(&self.pool);
        if spawn(name, move || pool.work()).is_ok() {
            crew.threads += 1;
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.close(Deadline::after(LINGER));
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers")
            .field("name", &self.pool.name)
            .field("gauge", &self.gauge())
            .finish()
    }
}

impl fmt::Debug for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejected").finish_non_exhaustive()
    }
}

impl Pool {
    /// What a thread of the pool does with its life.
    fn work(&self) {
        WORKS_FOR.with(|pool| pool.set(self.number));
        while let Ok(job) = self.jobs.recv() {
            if self.begin() {
                contain(job);
                self.crew.lock().running -= 1;
            } else {
                contain(|| drop(job));
            }
        }
        let mut crew = self.crew.lock();
        crew.threads -= 1;
        if crew.threads == 0 {
            // All: there may be several who close (seeded bugs: `closer_not_woken`,
            // `one_closer_woken`).
            self.empty.notify_all();
        }
    }

    /// Whether the job just taken from the queue is to be run. Not if the pool was closed since: a
    /// closed channel still gives out what is in it (seeded bug: `begin_after_the_close`). From here
    /// to its end it counts as running (seeded bug: `serve_without_counting`).
    fn begin(&self) -> bool {
        let mut crew = self.crew.lock();
        crew.queued -= 1;
        let open = crew.door.is_some();
        if open {
            crew.running += 1;
        }
        open
    }
}

impl Crew {
    /// Jobs that have been let in and are not done.
    fn in_hand(&self) -> usize {
        self.queued + self.running
    }
}

/// Runs what belongs to others so that a panic of it goes no further, nor one of what it panicked
/// with.
pub(crate) fn contain(run: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run))
        && let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload)))
    {
        std::mem::forget(again);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::channel::{Receiver, bounded, unbounded};
    use crate::sync::watched;
    use std::panic::resume_unwind;
    use std::thread;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn wait_for(what: impl Fn() -> bool) {
        while !what() {
            thread::yield_now();
        }
    }

    /// A job that runs until this is dropped.
    struct Busy(#[expect(dead_code, reason = "only its drop matters")] Sender<()>);

    /// Gives the pool a job to run, and returns once it does.
    fn occupy(workers: &Workers) -> Busy {
        let (begun, has_begun) = bounded(0);
        let (release, released) = bounded::<()>(0);
        let job = move || {
            begun.send(()).unwrap();
            let _ = released.recv();
        };
        workers.submit(Box::new(job)).unwrap();
        has_begun.recv().unwrap();
        Busy(release)
    }

    /// What `f` returns on a thread of the pool.
    fn on_a_worker<R: Send + 'static>(
        workers: &Workers,
        f: impl FnOnce() -> R + Send + 'static,
    ) -> R {
        let (result, results) = bounded(1);
        workers.submit(Box::new(move || result.send(f()).unwrap())).unwrap();
        results.recv().unwrap()
    }

    /// Sends when it is dropped.
    struct Notice(Sender<&'static str>, &'static str);

    impl Drop for Notice {
        fn drop(&mut self) {
            let _ = self.0.send(self.1);
        }
    }

    /// A job that sends "run" if it runs, and "gone" when it is gone.
    fn noticed() -> (Job, Receiver<&'static str>) {
        let (send, notices) = unbounded();
        let notice = Notice(send, "gone");
        let job = move || {
            let notice = notice;
            notice.0.send("run").unwrap();
        };
        (Box::new(job), notices)
    }

    fn nothing() -> Job {
        Box::new(|| ())
    }

    #[test]
    #[should_panic(expected = "workers must be at least 1")]
    fn a_pool_without_threads_is_refused() {
        Workers::new("t", 0, 1);
    }

    #[test]
    fn threads_start_when_no_thread_is_free() {
        watched(|| {
            let workers = Workers::new("t", 2, 8);
            assert_eq!(workers.gauge().threads, 0);
            let first = occupy(&workers);
            assert_eq!(workers.gauge(), Gauge { queued: 0, running: 1, threads: 1 });
            let second = occupy(&workers);
            assert_eq!(workers.gauge(), Gauge { queued: 0, running: 2, threads: 2 });
            workers.submit(nothing()).unwrap();
            assert_eq!(workers.gauge(), Gauge { queued: 1, running: 2, threads: 2 });
            drop((first, second));
            wait_for(|| workers.gauge() == Gauge { queued: 0, running: 0, threads: 2 });
        });
    }

    #[test]
    fn a_free_thread_is_used_before_another_is_started() {
        watched(|| {
            let workers = Workers::new("t", 8, 8);
            for _ in 0..100 {
                workers.submit(nothing()).unwrap();
                wait_for(|| workers.gauge().running + workers.gauge().queued == 0);
            }
            assert_eq!(workers.gauge().threads, 1);
        });
    }

    #[test]
    fn no_job_waits_while_a_thread_can_be_had() {
        watched(|| {
            for _ in 0..200 {
                let workers = Workers::new("t", 2, 8);
                // Each job ends only when the other runs, too.
                let (a, b) = bounded(0);
                workers.submit(Box::new(move || a.send(()).unwrap())).unwrap();
                workers.submit(Box::new(move || b.recv().unwrap())).unwrap();
                wait_for(|| workers.gauge().running + workers.gauge().queued == 0);
            }
        });
    }

    #[test]
    fn workers_are_named_after_their_table() {
        watched(|| {
            let name = || thread::current().name().unwrap().to_string();
            let workers = Workers::new("product", 2, 1);
            assert_eq!(on_a_worker(&workers, name), "onefill-product-1");
            wait_for(|| workers.gauge().running == 0);
            let _busy = occupy(&workers);
            assert_eq!(on_a_worker(&workers, name), "onefill-product-2");
            let workers = Workers::new("zero\0byte", 1, 1);
            assert_eq!(on_a_worker(&workers, name), "onefill-zerobyte-1");
        });
    }

    #[test]
    fn a_full_queue_gives_the_job_back() {
        watched(|| {
            for (threads, queue) in [(1, 0), (1, 1), (2, 3)] {
                let workers = Workers::new("t", threads, queue);
                let busy: Vec<_> = (0..threads).map(|_| occupy(&workers)).collect();
                for _ in 0..queue {
                    workers.submit(nothing()).unwrap();
                }
                let (job, notices) = noticed();
                let Rejected(job) = workers.submit(job).unwrap_err();
                assert!(notices.is_empty(), "neither run nor dropped");
                assert_eq!(workers.gauge(), Gauge { queued: queue, running: threads, threads });

                drop(busy);
                wait_for(|| workers.gauge().running + workers.gauge().queued == 0);
                workers.submit(job).unwrap();
                assert_eq!(notices.recv(), Ok("run"));
                assert_eq!(notices.recv(), Ok("gone"));
            }
        });
    }

    #[test]
    fn a_burst_is_let_in_up_to_threads_and_queue() {
        watched(|| {
            for _ in 0..100 {
                let workers = Workers::new("t", 2, 3);
                let (release, released) = bounded::<()>(0);
                let let_in = |_: &usize| {
                    let released = released.clone();
                    let job = move || {
                        let _ = released.recv();
                    };
                    workers.submit(Box::new(job)).is_ok()
                };
                // However quick the threads are to begin.
                assert_eq!((0..10).filter(let_in).count(), 5);
                drop(release);
            }
        });
    }

    #[test]
    fn jobs_begin_in_the_order_they_came() {
        watched(|| {
            let workers = Workers::new("t", 1, 10);
            let (begun, order) = unbounded();
            let busy = occupy(&workers);
            for n in 0..10 {
                let begun = begun.clone();
                workers.submit(Box::new(move || begun.send(n).unwrap())).unwrap();
            }
            drop((busy, begun));
            assert!(order.iter().eq(0..10));
        });
    }

    #[test]
    fn a_panic_does_not_kill_a_worker() {
        /// A payload that panics in its turn, a few times over.
        struct Bomb(u32);
        impl Drop for Bomb {
            fn drop(&mut self) {
                if self.0 > 0 {
                    std::panic::panic_any(Bomb(self.0 - 1));
                }
            }
        }
        watched(|| {
            let workers = Workers::new("t", 1, 1);
            let before = on_a_worker(&workers, || thread::current().id());
            for bombs in 0..3 {
                wait_for(|| workers.gauge().running == 0);
                let (send, notices) = unbounded();
                let notice = Notice(send, "gone");
                let job = move || {
                    let _notice = notice;
                    resume_unwind(Box::new(Bomb(bombs)));
                };
                workers.submit(Box::new(job)).unwrap();
                assert_eq!(notices.recv(), Ok("gone"), "what it captured is dropped");
            }
            wait_for(|| workers.gauge().running == 0);
            assert_eq!(on_a_worker(&workers, || thread::current().id()), before);
            assert_eq!(workers.gauge().threads, 1);
        });
    }

    #[test]
    fn a_worker_knows_its_own_pool() {
        watched(|| {
            let (a, b) = (Arc::new(Workers::new("a", 1, 1)), Arc::new(Workers::new("b", 1, 1)));
            assert!(!a.is_worker());
            let both = (Arc::clone(&a), Arc::clone(&b));
            let known = on_a_worker(&a, move || (both.0.is_worker(), both.1.is_worker()));
            assert_eq!(known, (true, false));
        });
    }

    #[test]
    fn a_job_may_submit_jobs() {
        watched(|| {
            let workers = Arc::new(Workers::new("t", 1, 1));
            let (job, notices) = noticed();
            let pool = Arc::clone(&workers);
            let let_in = on_a_worker(&workers, move || {
                let let_in = pool.submit(job).is_ok();
                let_in && pool.submit(nothing()).is_err()
            });
            assert!(let_in);
            assert_eq!(notices.recv(), Ok("run"));
        });
    }

    #[test]
    fn closing_drops_the_queue_unrun() {
        watched(|| {
            let workers = Workers::new("t", 1, 2);
            let busy = occupy(&workers);
            // A job that panics while it is dropped keeps nothing from being dropped after it.
            struct Bomb;
            impl Drop for Bomb {
                fn drop(&mut self) {
                    resume_unwind(Box::new("dropped"));
                }
            }
            let bomb = Bomb;
            workers.submit(Box::new(move || std::mem::forget(bomb))).unwrap();
            let (job, notices) = noticed();
            workers.submit(job).unwrap();

            assert_eq!(workers.close(Deadline::after(Duration::ZERO)), 1);
            assert_eq!(notices.recv(), Ok("gone"));
            assert_eq!(workers.gauge(), Gauge { queued: 0, running: 1, threads: 1 });
            drop(busy);
            assert_eq!(workers.close(Deadline::NEVER), 0);
        });
    }

    #[test]
    fn no_job_begins_once_the_pool_is_closed() {
        /// Dropped by whoever closes, it keeps the rest of the queue from being dropped there.
        struct Stall(Option<Busy>, Receiver<&'static str>, Sender<&'static str>);
        impl Drop for Stall {
            fn drop(&mut self) {
                self.0 = None; // the worker goes on to the next job
                self.2.send(self.1.recv().unwrap()).unwrap();
            }
        }
        watched(|| {
            let workers = Workers::new("t", 1, 2);
            let busy = occupy(&workers);
            let (job, notices) = noticed();
            let (first, fate) = bounded(1);
            let stall = Stall(Some(busy), notices, first);
            workers.submit(Box::new(move || drop(stall))).unwrap();
            workers.submit(job).unwrap();
            assert_eq!(workers.close(Deadline::NEVER), 0);
            assert_eq!(fate.recv(), Ok("gone"));
        });
    }

    #[test]
    fn a_closed_pool_gives_the_job_back() {
        watched(|| {
            let workers = Workers::new("t", 1, 1);
            assert_eq!(workers.close(Deadline::NEVER), 0);
            let (job, notices) = noticed();
            let Rejected(job) = workers.submit(job).unwrap_err();
            assert!(notices.is_empty());
            drop(job);
            assert_eq!(notices.recv(), Ok("gone"));
            assert_eq!(workers.gauge().threads, 0, "no thread was started for it");
        });
    }

    #[test]
    fn closing_waits_for_what_is_running() {
        watched(|| {
            let workers = Workers::new("t", 2, 1);
            let busy = (occupy(&workers), occupy(&workers));
            thread::scope(|s| {
                // Several may close, and each of them waits.
                let closing = [(); 3].map(|()| s.spawn(|| workers.close(Deadline::NEVER)));
                wait_for(|| workers.submit(nothing()).is_err());
                drop(busy.0);
                wait_for(|| workers.gauge().threads == 1);
                assert!(!closing.iter().any(|closing| closing.is_finished()));
                drop(busy.1);
                assert_eq!(closing.map(|closing| closing.join().unwrap()), [0, 0, 0]);
            });
            assert_eq!(workers.gauge(), Gauge { queued: 0, running: 0, threads: 0 });
        });
    }

    #[test]
    fn closing_leaves_behind_what_takes_too_long() {
        watched(|| {
            let workers = Workers::new("t", 2, 1);
            let (busy, done) = (occupy(&workers), occupy(&workers));
            drop(done);
            workers.close(Deadline::after(Duration::ZERO));
            wait_for(|| workers.gauge().threads == 1);
            let closing = std::time::Instant::now();
            assert_eq!(workers.close(Deadline::after(ms(20))), 1);
            assert!(closing.elapsed() >= ms(20));
            drop(busy);
            assert_eq!(workers.close(Deadline::NEVER), 0);
        });
    }

    #[test]
    fn closing_from_a_worker_does_not_join_itself() {
        watched(|| {
            // Two at once: neither waits for the other.
            let workers = Arc::new(Workers::new("t", 2, 1));
            let both = Arc::new(std::sync::Barrier::new(2));
            let (left, lefts) = unbounded();
            for _ in 0..2 {
                let (pool, both, left) = (Arc::clone(&workers), Arc::clone(&both), left.clone());
                let job = move || {
                    both.wait();
                    left.send(pool.close(Deadline::NEVER)).unwrap();
                    both.wait();
                };
                workers.submit(Box::new(job)).unwrap();
            }
            assert_eq!((lefts.recv(), lefts.recv()), (Ok(1), Ok(1)));
            assert_eq!(workers.close(Deadline::NEVER), 0);
        });
    }

    #[test]
    fn a_pool_may_be_dropped_by_its_own_worker() {
        watched(|| {
            let workers = Arc::new(Workers::new("t", 1, 1));
            let (handed_over, last) = bounded(0);
            let (gone, is_gone) = bounded(1);
            let pool = Arc::clone(&workers);
            let job = move || {
                last.recv().unwrap();
                let begun = std::time::Instant::now();
                drop(pool);
                gone.send(begun.elapsed()).unwrap();
            };
            workers.submit(Box::new(job)).unwrap();
            drop(workers);
            handed_over.send(()).unwrap();
            assert!(is_gone.recv().unwrap() < LINGER, "it did not wait for itself");
        });
    }

    #[test]
    fn a_pool_that_is_dropped_waits_for_its_jobs() {
        watched(|| {
            let workers = Workers::new("t", 1, 1);
            let (job, notices) = noticed();
            let busy = occupy(&workers);
            workers.submit(job).unwrap();
            let pool = Arc::clone(&workers.pool);
            let dropping = thread::spawn(move || drop(workers));
            assert_eq!(notices.recv(), Ok("gone"), "unrun");
            assert!(!dropping.is_finished());
            drop(busy);
            dropping.join().unwrap();
            assert_eq!(pool.crew.lock().threads, 0);
        });
    }
}
