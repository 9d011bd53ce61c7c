//! A job that is handed to the pool is run once, or dropped, or given back; and a pool closes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Plain, Ordering::SeqCst};
use std::time::Duration;

use loom::thread;
use loom_tests::model::explore;

use super::herd::Signal;
use super::onefill::Deadline;
use super::onefill::doors::Lane::{Background, Foreground};
use super::onefill::doors::{Busy, Job, Workers};

/// What became of a job. Counted, not asserted: a panic on a worker ends there.
#[derive(Default)]
struct Fate {
    runs: Plain,
    drops: Plain,
}

impl Fate {
    fn runs(&self) -> usize {
        self.runs.load(SeqCst)
    }

    fn is_gone(&self) -> bool {
        self.drops.load(SeqCst) == 1
    }
}

/// Counts when it is dropped.
struct Dropped(Arc<Fate>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, SeqCst);
    }
}

fn job(fate: &Arc<Fate>, body: impl FnOnce() + Send + 'static) -> Job {
    let dropped = Dropped(Arc::clone(fate));
    Box::new(move || {
        dropped.0.runs.fetch_add(1, SeqCst);
        body();
    })
}

/// Nothing is left once the pool has closed.
fn settled(workers: &Workers) {
    assert_eq!(workers.close(Deadline::NEVER), 0);
    let nothing = Busy { queued: 0, running: 0, threads: 0 };
    assert_eq!(workers.gauge(), nothing, "something is left in a pool that is closed");
}

pub fn a_job_is_run_once_or_given_back() {
    const NAME: &str = "a_job_is_run_once_or_given_back";
    explore(NAME, 2, None, 2000, || burst(1, 0, 1));
    explore(NAME, 2, None, 2100, || burst(1, 1, 1));
    explore(NAME, 3, Some(3), 3200, || burst(1, 1, 2));
    explore(NAME, 3, Some(2), 19000, || burst(2, 0, 2));
}

/// `submitters` submit a job each, one of them two, to as many threads before as long a queue.
fn burst(threads: usize, queue: usize, submitters: usize) {
    let workers = Arc::new(Workers::new(threads, queue));
    let submit = move |workers: &Workers| {
        let fate = Arc::new(Fate::default());
        let given_back = workers.submit(Foreground, job(&fate, || ())).err();
        let is_back = given_back.is_some();
        (fate, is_back, given_back.map(drop))
    };
    let crew: Vec<_> = (1..submitters)
        .map(|_| {
            let workers = Arc::clone(&workers);
            thread::spawn(move || submit(&workers))
        })
        .collect();
    let mut jobs = vec![submit(&workers), submit(&workers)];
    jobs.extend(crew.into_iter().map(|submitter| submitter.join().unwrap()));

    let given_back = jobs.iter().filter(|(_, is_back, _)| *is_back).count();
    // Whatever the order: so many are let in before the first is done.
    let room = threads + queue;
    assert!(given_back <= jobs.len().saturating_sub(room), "given back although there was room");
    settled(&workers);
    for (fate, is_back, _) in &jobs {
        assert!(fate.is_gone(), "a job is still somewhere");
        // Dropped unrun by the close, perhaps; run and given back, never.
        assert!(fate.runs() <= usize::from(!is_back), "run more often than it was let in");
    }
}

pub fn at_once_is_not_behind_another() {
    const NAME: &str = "at_once_is_not_behind_another";
    explore(NAME, 2, None, 1400, || one_waits_for_the_other(1, 0, Workers::submit_at_once));
    explore(NAME, 2, None, 1400, || one_waits_for_the_other(1, 1, Workers::submit_at_once));
    explore(NAME, 2, None, 26000, behind_one_that_waits_for_it);
}

/// What is in the queue ends when a job that is not to be behind another has been run, or was given
/// back.
fn behind_one_that_waits_for_it() {
    let workers = Workers::new(1, 1);
    let over = Signal::new();
    let fates = [(); 3].map(|()| Arc::new(Fate::default()));
    let [first, second, third] = &fates;
    let (wait, give) = (over.clone(), over.clone());
    assert!(workers.submit(Foreground, job(first, || ())).is_ok());
    assert!(workers.submit(Foreground, job(second, move || wait.wait())).is_ok());
    if workers.submit_at_once(job(third, move || give.give())).is_err() {
        over.give();
    }
    over.wait();
    settled(&workers);
    assert!(fates.iter().all(|fate| fate.is_gone()));
}

pub fn no_job_waits_while_a_thread_can_be_had() {
    const NAME: &str = "no_job_waits_while_a_thread_can_be_had";
    explore(NAME, 3, Some(3), 19000, || one_waits_for_the_other(2, 1, in_the_foreground));
}

fn in_the_foreground(workers: &Workers, job: Job) -> Result<(), Job> {
    workers.submit(Foreground, job)
}

/// The first job ends when the second has been run, or was given back.
fn one_waits_for_the_other(
    threads: usize,
    queue: usize,
    submit: fn(&Workers, Job) -> Result<(), Job>,
) {
    let workers = Workers::new(threads, queue);
    let over = Signal::new();
    let (first, second) = (Arc::new(Fate::default()), Arc::new(Fate::default()));
    let (wait, give) = (over.clone(), over.clone());
    assert!(workers.submit(Foreground, job(&first, move || wait.wait())).is_ok());
    if submit(&workers, job(&second, move || give.give())).is_err() {
        over.give();
    }
    // Not before it is over: a job in the queue would be dropped.
    over.wait();
    settled(&workers);
    assert!(first.is_gone() && second.is_gone());
}

pub fn the_background_leaves_threads_for_the_foreground() {
    const NAME: &str = "the_background_leaves_threads_for_the_foreground";
    explore(NAME, 3, Some(3), 22000, || {
        let workers = Workers::new(2, 1);
        let over = Signal::new();
        let fates = [(); 3].map(|()| Arc::new(Fate::default()));
        let [behind, queued, wanted] = &fates;
        // What the background does ends when the foreground has been served.
        for fate in [behind, queued] {
            let wait = over.clone();
            assert!(workers.submit(Background, job(fate, move || wait.wait())).is_ok());
        }
        let give = over.clone();
        assert!(workers.submit(Foreground, job(wanted, move || give.give())).is_ok());
        over.wait();
        settled(&workers);
        assert!(fates.iter().all(|fate| fate.is_gone()), "a job is still somewhere");
    });
}

pub fn the_foreground_goes_first() {
    const NAME: &str = "the_foreground_goes_first";
    explore(NAME, 2, None, 1500, || {
        let workers = Workers::new(1, 1);
        let (queued, over) = (Signal::new(), Signal::new());
        let too_early = Arc::new(Plain::new(0));
        let fates = [(); 3].map(|()| Arc::new(Fate::default()));
        let [first, behind, wanted] = &fates;
        // Whatever the lane of what keeps the thread until both others are in their queues.
        let wait = queued.clone();
        assert!(workers.submit(Background, job(first, move || wait.wait())).is_ok());
        let (give, early, served) = (over.clone(), Arc::clone(&too_early), Arc::clone(wanted));
        let body = move || {
            early.fetch_add(usize::from(served.runs() == 0), SeqCst);
            give.give();
        };
        assert!(workers.submit(Background, job(behind, body)).is_ok());
        assert!(workers.submit(Foreground, job(wanted, || ())).is_ok());
        queued.give();
        // The background has its turn, too.
        over.wait();
        assert_eq!(too_early.load(SeqCst), 0, "the background went first");
        settled(&workers);
        assert!(fates.iter().all(|fate| fate.is_gone() && fate.runs() == 1));
    });
}

pub fn a_pool_closes_whatever_is_in_it() {
    const NAME: &str = "a_pool_closes_whatever_is_in_it";
    explore(NAME, 2, None, 4100, || close_among(1, 1));
    explore(NAME, 3, Some(3), 3100, || close_among(2, 1));
    explore(NAME, 4, Some(2), 4400, || close_among(2, 2));
}

/// `closers` close a pool of so many `threads` while a job runs, and another waits or runs, too.
fn close_among(closers: usize, threads: usize) {
    let workers = Arc::new(Workers::new(threads, 1));
    let fates = [(); 2].map(|()| Arc::new(Fate::default()));
    let mut given_back = 0;
    for (lane, fate) in [Foreground, Background].into_iter().zip(&fates) {
        // What the job holds looks at the pool as it goes: it is dropped under no lock of that.
        let looks = Looks(Arc::clone(&workers));
        given_back += usize::from(workers.submit(lane, job(fate, move || drop(looks))).is_err());
    }
    assert_eq!(given_back, 0, "given back although there was room");
    let crew: Vec<_> = (1..closers)
        .map(|_| {
            let workers = Arc::clone(&workers);
            thread::spawn(move || workers.close(Deadline::NEVER))
        })
        .collect();
    assert_eq!(workers.close(Deadline::NEVER), 0);
    for closer in crew {
        assert_eq!(closer.join().unwrap(), 0);
    }
    // One closer may be done before another has dropped what it took out of the queue.
    settled(&workers);
    for fate in &fates {
        assert!(fate.is_gone() && fate.runs() <= 1, "a job is still somewhere");
    }
}

/// Looks at the pool when it is dropped.
struct Looks(Arc<Workers>);

impl Drop for Looks {
    fn drop(&mut self) {
        self.0.gauge();
    }
}

pub fn no_job_begins_in_a_pool_that_is_closed() {
    const NAME: &str = "no_job_begins_in_a_pool_that_is_closed";
    explore(NAME, 2, None, 290, || {
        let workers = Workers::new(1, 1);
        let closed = Signal::new();
        let fates = [(); 3].map(|()| Arc::new(Fate::default()));
        let [first, waiting @ ..] = &fates;
        let wait = closed.clone();
        assert!(workers.submit(Foreground, job(first, move || wait.wait())).is_ok());
        for (lane, fate) in [Foreground, Background].into_iter().zip(waiting) {
            assert!(workers.submit(lane, job(fate, || ())).is_ok());
        }
        assert_eq!(workers.close(Deadline::after(Duration::ZERO)), 1);
        // The thread is done with what it had, and looks for more.
        closed.give();
        settled(&workers);
        assert_eq!(first.runs(), 1, "a job that had begun was dropped");
        for fate in waiting {
            assert_eq!(fate.runs(), 0, "a job began in a pool that was closed");
            assert!(fate.is_gone(), "a job is still somewhere");
        }
    });
}

pub fn a_worker_that_closes_waits_for_nobody() {
    const NAME: &str = "a_worker_that_closes_waits_for_nobody";
    explore(NAME, 2, None, 350, || closed_from_within(1));
    explore(NAME, 3, Some(2), 590, || closed_from_within(2));
}

/// Each thread of the pool closes it, and so does its owner.
fn closed_from_within(threads: usize) {
    let workers = Arc::new(Workers::new(threads, 0));
    let fates: Vec<_> = (0..threads).map(|_| Arc::new(Fate::default())).collect();
    for fate in &fates {
        let pool = Arc::clone(&workers);
        let body = move || {
            pool.close(Deadline::NEVER);
        };
        // The second finds it closed, perhaps.
        drop(workers.submit(Foreground, job(fate, body)));
    }
    settled(&workers);
    assert!(fates.iter().all(|fate| fate.is_gone()), "a job is still somewhere");
}
