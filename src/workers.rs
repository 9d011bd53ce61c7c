//! [`Workers`]: a bounded pool of threads for what is done behind a caller's back.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::admission::Lane;
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

/// A fixed number of threads, and before them a queue of fixed length for each [`Lane`].
///
/// - Threads start when they are first needed: one for each job that finds no thread free for it.
/// - The background has a share of the threads at most, however long its jobs take, and a thread
///   that is free takes a foreground job first. Within a lane jobs begin in the order they came.
/// - Submitting never waits: a job that would make its lane's queue too long is given back. What
///   is in one queue takes no room in the other.
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
    /// How many of them the background may have.
    background: usize,
    /// How many jobs of a lane may wait.
    queue: usize,
    /// Where a thread that has no job is handed one.
    turns: Receiver<Turn>,
    crew: Mutex<Crew>,
    /// The last thread has left.
    empty: Condvar,
}

/// A job that has a thread, or is on its way to one that is free for it.
type Turn = (Lane, Job);

/// Who runs and who waits. Whoever may begin has begun: if a thread is free, or one can be had, no
/// foreground job waits, and a background job waits only for its lane's share. Every change keeps
/// that true, so a newcomer that finds a thread free passes nobody by, and a job that ends has at
/// most one to follow it.
struct Crew {
    /// Where jobs are handed to threads; closed for good once it is `None`, and then nothing waits.
    door: Option<Sender<Turn>>,
    /// Threads that have not left.
    threads: usize,
    foreground: Line,
    background: Line,
}

/// The jobs of a lane.
struct Line {
    /// How many threads it may have (seeded bug: `background_takes_every_thread`).
    share: usize,
    /// Jobs that have a thread. From the moment it is theirs they count as running (seeded bug:
    /// `serve_without_counting`), and they run, even if the pool is closed in that moment.
    running: usize,
    /// Jobs that wait for one, in the order they came.
    waiting: VecDeque<Job>,
}

/// How busy a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gauge {
    /// Jobs that wait for a thread.
    pub(crate) queued: usize,
    /// Jobs that have one.
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
    /// that threads have by default, `background` of which the background may have; and lets
    /// `queue` jobs of each lane wait. No thread is started yet.
    ///
    /// # Panics
    ///
    /// If `threads` or `background` is 0: nothing would ever run.
    pub(crate) fn new(name: &str, threads: usize, background: usize, queue: usize) -> Workers {
        assert!(threads > 0, "workers must be at least 1");
        assert!(background > 0, "workers for the background must be at least 1");
        // Not a model's atomic: the numbers are compared, never ordered by.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (door, turns) = channel::bounded(threads);
        let crew = Crew {
            door: Some(door),
            threads: 0,
            foreground: Line::new(threads),
            background: Line::new(background),
        };
        Workers {
            pool: Arc::new(Pool {
                number: NEXT.fetch_add(1, Ordering::Relaxed),
                // A thread's name cannot have a zero byte in it.
                name: name.replace('\0', ""),
                threads,
                background,
                queue,
                turns,
                crew: Mutex::new(crew),
                empty: Condvar::new(),
            }),
        }
    }

    /// Has `job` run on a thread of the pool. Never waits for one.
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the job, if no thread is free for it and its lane's queue is full, if the
    /// pool is closed, or if there is no thread and none can be started.
    pub(crate) fn submit(&self, lane: Lane, job: Job) -> Result<(), Rejected> {
        self.submit_behind(self.pool.queue, lane, job)
    }

    /// [`submit`](Workers::submit), if a thread is free: the job begins without waiting for another
    /// to end. For somebody who waits.
    pub(crate) fn submit_at_once(&self, job: Job) -> Result<(), Rejected> {
        self.submit_behind(0, Lane::Foreground, job)
    }

    /// Submits the job if no more than `queue` of its lane would wait, itself among them.
    fn submit_behind(&self, queue: usize, lane: Lane, job: Job) -> Result<(), Rejected> {
        let mut crew = self.pool.crew.lock();
        if crew.door.is_none() {
            return Err(Rejected(job));
        }
        let has_share = crew.line(lane).has_share();
        // A thread that is about to ask for its next job is not free for this one until it has
        // found none (seeded bug: `busy_threads_do_not_count`).
        if has_share && crew.running() == crew.threads && crew.threads < self.pool.threads {
            self.start_thread(&mut crew);
        }
        let begins = has_share && crew.running() < crew.threads;
        if !begins && (crew.threads == 0 || crew.line(lane).waiting.len() >= queue) {
            return Err(Rejected(job));
        }
        crew.line(lane).waiting.push_back(job);
        // Counted under the lock it is handed over under: its thread counts it off when it is done
        // (seeded bug: `counted_once_it_is_handed_over`). It is this one, unless a thread could not
        // be started for another that came before.
        let turn = crew.take_turn();
        if let (Some(door), Some(turn)) = (&crew.door, turn) {
            let handed = door.try_send(turn);
            assert!(handed.is_ok(), "there is room for a job of each thread");
        }
        Ok(())
    }

    /// Whether the calling thread is one of this pool's.
    pub(crate) fn is_worker(&self) -> bool {
        WORKS_FOR.with(Cell::get) == self.pool.number
    }

    /// Closes the pool and returns how many of its threads are still busy.
    ///
    /// No job is let in and none begins any more: those in the queues are dropped unrun. The jobs
    /// that have a thread are waited for until `deadline`; those that are not done by then are left
    /// behind, and their threads leave when they are. A thread that has left may yet have to run
    /// the destructors of its own variables.
    ///
    /// Closing again waits again. A worker that closes its own pool waits for nobody: not for
    /// itself, and not for another that may be closing it as well. It is not counted.
    pub(crate) fn close(&self, deadline: Deadline) -> usize {
        let mut crew = self.pool.crew.lock();
        let door = crew.door.take();
        // What waits would be taken by a thread that is done with what it has (seeded bug:
        // `begin_after_the_close`).
        let waiting = LANES.map(|lane| std::mem::take(&mut crew.line(lane).waiting));
        // Given back: to drop a job is to run the code of others (seeded bug:
        // `dropped_under_the_lock`).
        drop(crew);
        // Threads that wait for a job find that there will be none (seeded bug: `door_left_open`).
        drop(door);
        for job in waiting.into_iter().flatten() {
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

    /// How many threads the background has at most.
    pub(crate) fn background(&self) -> usize {
        self.pool.background
    }

    /// How busy the pool is in this moment.
    pub(crate) fn gauge(&self) -> Gauge {
        let crew = self.pool.crew.lock();
        let queued = crew.foreground.waiting.len() + crew.background.waiting.len();
        Gauge { queued, running: crew.running(), threads: crew.threads }
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
        while let Ok(handed) = self.turns.recv() {
            let mut turn = Some(handed);
            while let Some((lane, job)) = turn {
                contain(job);
                turn = self.next(lane);
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

    /// The next job for a thread that has done one of lane `done`; if there is none, the thread is
    /// free. One hold of the lock, or a newcomer could pass for having a thread that is taken from
    /// it by who has waited longer (seeded bug: `done_and_next_in_two_steps`).
    fn next(&self, done: Lane) -> Option<Turn> {
        let mut crew = self.crew.lock();
        crew.line(done).running -= 1;
        crew.take_turn()
    }
}

/// In the order they are served (seeded bug: `background_goes_first`).
const LANES: [Lane; 2] = [Lane::Foreground, Lane::Background];

impl Crew {
    fn line(&mut self, lane: Lane) -> &mut Line {
        match lane {
            Lane::Foreground => &mut self.foreground,
            Lane::Background => &mut self.background,
        }
    }

    /// Jobs that have a thread.
    fn running(&self) -> usize {
        self.foreground.running + self.background.running
    }

    /// Takes from its line the job that a free thread serves, if there are both: of whichever lane,
    /// whatever the thread did before (seeded bug: `next_of_its_own_lane`).
    fn take_turn(&mut self) -> Option<Turn> {
        if self.running() == self.threads {
            return None;
        }
        LANES.into_iter().find_map(|lane| {
            let line = self.line(lane);
            if !line.has_share() {
                return None;
            }
            let job = line.waiting.pop_front()?;
            line.running += 1;
            Some((lane, job))
        })
    }
}

impl Line {
    fn new(share: usize) -> Line {
        Line { share, running: 0, waiting: VecDeque::new() }
    }

    /// Whether it may have another thread.
    fn has_share(&self) -> bool {
        self.running < self.share
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
    use crate::admission::Lane::{Background, Foreground};
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
        occupy_from(workers, Foreground)
    }

    fn occupy_from(workers: &Workers, lane: Lane) -> Busy {
        let (begun, has_begun) = bounded(0);
        let (release, released) = bounded::<()>(0);
        let job = move || {
            begun.send(()).unwrap();
            let _ = released.recv();
        };
        workers.submit(lane, Box::new(job)).unwrap();
        has_begun.recv().unwrap();
        Busy(release)
    }

    /// What `f` returns on a thread of the pool.
    fn on_a_worker<R: Send + 'static>(
        workers: &Workers,
        f: impl FnOnce() -> R + Send + 'static,
    ) -> R {
        let (result, results) = bounded(1);
        workers.submit(Foreground, Box::new(move || result.send(f()).unwrap())).unwrap();
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
        Workers::new("t", 0, 1, 1);
    }

    #[test]
    fn threads_start_when_no_thread_is_free() {
        watched(|| {
            let workers = Workers::new("t", 2, 1, 8);
            assert_eq!(workers.gauge().threads, 0);
            let first = occupy(&workers);
            assert_eq!(workers.gauge(), Gauge { queued: 0, running: 1, threads: 1 });
            let second = occupy(&workers);
            assert_eq!(workers.gauge(), Gauge { queued: 0, running: 2, threads: 2 });
            workers.submit(Foreground, nothing()).unwrap();
            assert_eq!(workers.gauge(), Gauge { queued: 1, running: 2, threads: 2 });
            drop((first, second));
            wait_for(|| workers.gauge() == Gauge { queued: 0, running: 0, threads: 2 });
        });
    }

    #[test]
    fn a_free_thread_is_used_before_another_is_started() {
        watched(|| {
            let workers = Workers::new("t", 8, 1, 8);
            for _ in 0..100 {
                workers.submit(Foreground, nothing()).unwrap();
                wait_for(|| workers.gauge().running + workers.gauge().queued == 0);
            }
            assert_eq!(workers.gauge().threads, 1);
        });
    }

    #[test]
    fn no_job_waits_while_a_thread_can_be_had() {
        watched(|| {
            for _ in 0..200 {
                let workers = Workers::new("t", 2, 1, 8);
                // Each job ends only when the other runs, too.
                let (a, b) = bounded(0);
                workers.submit(Foreground, Box::new(move || a.send(()).unwrap())).unwrap();
                workers.submit(Foreground, Box::new(move || b.recv().unwrap())).unwrap();
                wait_for(|| workers.gauge().running + workers.gauge().queued == 0);
            }
        });
    }

    #[test]
    fn workers_are_named_after_their_table() {
        watched(|| {
            let name = || thread::current().name().unwrap().to_string();
            let workers = Workers::new("product", 2, 1, 1);
            assert_eq!(on_a_worker(&workers, name), "onefill-product-1");
            wait_for(|| workers.gauge().running == 0);
            let _busy = occupy(&workers);
            assert_eq!(on_a_worker(&workers, name), "onefill-product-2");
            let workers = Workers::new("zero\0byte", 1, 1, 1);
            assert_eq!(on_a_worker(&workers, name), "onefill-zerobyte-1");
        });
    }

    #[test]
    fn a_full_queue_gives_the_job_back() {
        watched(|| {
            for (threads, queue) in [(1, 0), (1, 1), (2, 3)] {
                let workers = Workers::new("t", threads, 1, queue);
                let busy: Vec<_> = (0..threads).map(|_| occupy(&workers)).collect();
                for _ in 0..queue {
                    workers.submit(Foreground, nothing()).unwrap();
                }
                let (job, notices) = noticed();
                let Rejected(job) = workers.submit(Foreground, job).unwrap_err();
                assert!(notices.is_empty(), "neither run nor dropped");
                assert_eq!(workers.gauge(), Gauge { queued: queue, running: threads, threads });

                drop(busy);
                wait_for(|| workers.gauge().running + workers.gauge().queued == 0);
                workers.submit(Foreground, job).unwrap();
                assert_eq!(notices.recv(), Ok("run"));
                assert_eq!(notices.recv(), Ok("gone"));
            }
        });
    }

    #[test]
    fn a_burst_is_let_in_up_to_threads_and_queue() {
        watched(|| {
            for _ in 0..100 {
                let workers = Workers::new("t", 2, 1, 3);
                let (release, released) = bounded::<()>(0);
                let let_in = |_: &usize| {
                    let released = released.clone();
                    let job = move || {
                        let _ = released.recv();
                    };
                    workers.submit(Foreground, Box::new(job)).is_ok()
                };
                // However quick the threads are to begin.
                assert_eq!((0..10).filter(let_in).count(), 5);
                drop(release);
            }
        });
    }

    #[test]
    fn jobs_of_a_lane_begin_in_the_order_they_came() {
        watched(|| {
            for lane in LANES {
                let workers = Workers::new("t", 1, 1, 10);
                let (begun, order) = unbounded();
                let busy = occupy(&workers);
                for n in 0..10 {
                    let begun = begun.clone();
                    workers.submit(lane, Box::new(move || begun.send(n).unwrap())).unwrap();
                }
                drop((busy, begun));
                assert!(order.iter().eq(0..10));
            }
        });
    }

    #[test]
    fn the_background_leaves_threads_for_the_foreground() {
        watched(|| {
            for (threads, background) in [(2, 1), (8, 2)] {
                let workers = Workers::new("t", threads, background, 8);
                let hung: Vec<_> =
                    (0..background).map(|_| occupy_from(&workers, Background)).collect();
                let (job, notices) = noticed();
                workers.submit(Background, job).unwrap();
                let now = Gauge { queued: 1, running: background, threads: background };
                assert_eq!(workers.gauge(), now, "no thread is started for it");

                let busy: Vec<_> = (background..threads).map(|_| occupy(&workers)).collect();
                drop(busy);
                wait_for(|| workers.gauge().running == background);
                assert_eq!(workers.gauge(), Gauge { threads, ..now }, "nor is it left one");
                assert!(notices.is_empty());
                drop(hung);
                assert_eq!(notices.recv(), Ok("run"));
            }
        });
    }

    #[test]
    fn the_foreground_may_have_every_thread() {
        watched(|| {
            let workers = Workers::new("t", 4, 1, 1);
            let busy: Vec<_> = (0..4).map(|_| occupy(&workers)).collect();
            let (job, notices) = noticed();
            workers.submit(Background, job).unwrap();
            assert_eq!(workers.gauge(), Gauge { queued: 1, running: 4, threads: 4 });
            drop(busy);
            assert_eq!(notices.recv(), Ok("run"));
        });
    }

    /// On the one thread there is, which the background has first.
    #[test]
    fn the_foreground_goes_first() {
        watched(|| {
            let workers = Workers::new("t", 1, 1, 4);
            let (begun, order) = unbounded();
            let busy = occupy_from(&workers, Background);
            for (n, lane) in [Background, Foreground, Background, Foreground].iter().enumerate() {
                let begun = begun.clone();
                workers.submit(*lane, Box::new(move || begun.send(n).unwrap())).unwrap();
            }
            drop((busy, begun));
            assert!(order.iter().eq([1, 3, 0, 2]));
        });
    }

    #[test]
    fn a_full_queue_turns_nothing_of_the_other_lane_away() {
        watched(|| {
            for lanes in [[Foreground, Background], [Background, Foreground]] {
                let workers = Workers::new("t", 1, 1, 1);
                let _busy = occupy(&workers);
                for lane in lanes {
                    workers.submit(lane, nothing()).unwrap();
                    assert!(workers.submit(lane, nothing()).is_err());
                }
                assert_eq!(workers.gauge().queued, 2);
            }
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
            let workers = Workers::new("t", 1, 1, 1);
            let before = on_a_worker(&workers, || thread::current().id());
            for bombs in 0..3 {
                wait_for(|| workers.gauge().running == 0);
                let (send, notices) = unbounded();
                let notice = Notice(send, "gone");
                let job = move || {
                    let _notice = notice;
                    resume_unwind(Box::new(Bomb(bombs)));
                };
                workers.submit(Foreground, Box::new(job)).unwrap();
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
            let (a, b) =
                (Arc::new(Workers::new("a", 1, 1, 1)), Arc::new(Workers::new("b", 1, 1, 1)));
            assert!(!a.is_worker());
            let both = (Arc::clone(&a), Arc::clone(&b));
            let known = on_a_worker(&a, move || (both.0.is_worker(), both.1.is_worker()));
            assert_eq!(known, (true, false));
        });
    }

    #[test]
    fn a_job_may_submit_jobs() {
        watched(|| {
            let workers = Arc::new(Workers::new("t", 1, 1, 1));
            let (job, notices) = noticed();
            let pool = Arc::clone(&workers);
            let let_in = on_a_worker(&workers, move || {
                let let_in = pool.submit(Foreground, job).is_ok();
                let_in && pool.submit(Foreground, nothing()).is_err()
            });
            assert!(let_in);
            assert_eq!(notices.recv(), Ok("run"));
        });
    }

    #[test]
    fn closing_drops_the_queues_unrun() {
        watched(|| {
            let workers = Workers::new("t", 1, 1, 2);
            let busy = occupy(&workers);
            // A job that panics while it is dropped keeps nothing from being dropped after it.
            struct Bomb;
            impl Drop for Bomb {
                fn drop(&mut self) {
                    resume_unwind(Box::new("dropped"));
                }
            }
            let bomb = Bomb;
            workers.submit(Foreground, Box::new(move || std::mem::forget(bomb))).unwrap();
            let waiting = LANES.map(|lane| {
                let (job, notices) = noticed();
                workers.submit(lane, job).unwrap();
                notices
            });

            assert_eq!(workers.close(Deadline::after(Duration::ZERO)), 1);
            assert!(waiting.iter().all(|notices| notices.recv() == Ok("gone")));
            assert_eq!(workers.gauge(), Gauge { queued: 0, running: 1, threads: 1 });
            drop(busy);
            assert_eq!(workers.close(Deadline::NEVER), 0);
        });
    }

    #[test]
    fn no_job_begins_once_the_pool_is_closed() {
        /// Dropped by whoever closes, it keeps the rest of the queues from being dropped there.
        struct Stall(Option<Busy>, Arc<Pool>);
        impl Drop for Stall {
            fn drop(&mut self) {
                self.0 = None; // the worker looks for its next job
                wait_for(|| self.1.crew.lock().threads == 0);
            }
        }
        watched(|| {
            for lane in LANES {
                let workers = Workers::new("t", 1, 1, 2);
                let stall = Stall(Some(occupy(&workers)), Arc::clone(&workers.pool));
                workers.submit(Foreground, Box::new(move || drop(stall))).unwrap();
                let (job, notices) = noticed();
                workers.submit(lane, job).unwrap();
                assert_eq!(workers.close(Deadline::NEVER), 0);
                assert_eq!(notices.recv(), Ok("gone"));
            }
        });
    }

    #[test]
    fn a_closed_pool_gives_the_job_back() {
        watched(|| {
            let workers = Workers::new("t", 1, 1, 1);
            assert_eq!(workers.close(Deadline::NEVER), 0);
            let (job, notices) = noticed();
            let Rejected(job) = workers.submit(Foreground, job).unwrap_err();
            assert!(notices.is_empty());
            drop(job);
            assert_eq!(notices.recv(), Ok("gone"));
            assert_eq!(workers.gauge().threads, 0, "no thread was started for it");
        });
    }

    #[test]
    fn closing_waits_for_what_is_running() {
        watched(|| {
            let workers = Workers::new("t", 2, 1, 1);
            let busy = (occupy(&workers), occupy(&workers));
            thread::scope(|s| {
                // Several may close, and each of them waits.
                let closing = [(); 3].map(|()| s.spawn(|| workers.close(Deadline::NEVER)));
                wait_for(|| workers.submit(Foreground, nothing()).is_err());
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
            let workers = Workers::new("t", 2, 1, 1);
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
            let workers = Arc::new(Workers::new("t", 2, 1, 1));
            let both = Arc::new(std::sync::Barrier::new(2));
            let (left, lefts) = unbounded();
            for _ in 0..2 {
                let (pool, both, left) = (Arc::clone(&workers), Arc::clone(&both), left.clone());
                let job = move || {
                    both.wait();
                    left.send(pool.close(Deadline::NEVER)).unwrap();
                    both.wait();
                };
                workers.submit(Foreground, Box::new(job)).unwrap();
            }
            assert_eq!((lefts.recv(), lefts.recv()), (Ok(1), Ok(1)));
            assert_eq!(workers.close(Deadline::NEVER), 0);
        });
    }

    #[test]
    fn a_pool_may_be_dropped_by_its_own_worker() {
        watched(|| {
            let workers = Arc::new(Workers::new("t", 1, 1, 1));
            let (handed_over, last) = bounded(0);
            let (gone, is_gone) = bounded(1);
            let pool = Arc::clone(&workers);
            let job = move || {
                last.recv().unwrap();
                let begun = std::time::Instant::now();
                drop(pool);
                gone.send(begun.elapsed()).unwrap();
            };
            workers.submit(Foreground, Box::new(job)).unwrap();
            drop(workers);
            handed_over.send(()).unwrap();
            assert!(is_gone.recv().unwrap() < LINGER, "it did not wait for itself");
        });
    }

    #[test]
    fn a_pool_that_is_dropped_waits_for_its_jobs() {
        watched(|| {
            let workers = Workers::new("t", 1, 1, 1);
            let (job, notices) = noticed();
            let busy = occupy(&workers);
            workers.submit(Foreground, job).unwrap();
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
