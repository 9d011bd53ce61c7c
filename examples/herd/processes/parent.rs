//! The parent: raises a storm over processes, once for each [`Way`], and judges what came of it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::server::Server;
use super::way::Way;
use super::word::{self, Done, Order, Plan, Word};
use super::{CHILD, now};
use crate::Failure;
use crate::across::Across;
use crate::duration::Span;
use crate::loader::Price;
use crate::progress::Progress;
use crate::tally::{Pass, Tally, Traffic};

/// How long it may take besides loads until something is heard of one of the processes. Hundreds of
/// threads share a core.
const PATIENCE: Duration = Duration::from_secs(60);

/// Raises the storm. Afterwards neither a process nor a server is left.
pub(crate) fn run(across: &Across, threads: usize, price: &Price) -> Result<Vec<Pass>, Failure> {
    let storm = Storm { across, threads, price, processes: across.processes.unwrap_or(1).into() };
    let server = match &across.redis {
        Some(url) => Server::at(url)?,
        None => Server::start()?,
    };
    let name = format!("herd-{:08x}", fastrand::u32(..));
    let raise = |way: Way| {
        let namespace = format!("{name}-{way:?}");
        let pass = storm.raise(way, &server, &namespace);
        // Whatever came of it.
        let cleaned = if way.needs_a_tier() { server.clean(&namespace) } else { Ok(()) };
        pass.and_then(|pass| cleaned.map(|()| pass))
    };
    Way::ALL.into_iter().map(raise).collect()
}

struct Storm<'a> {
    across: &'a Across,
    threads: usize,
    price: &'a Price,
    processes: usize,
}

impl Storm<'_> {
    fn raise(&self, way: Way, server: &Server, namespace: &str) -> Result<Pass, Failure> {
        let slow = self.across.slow_load.unwrap_or_default();
        let patience = PATIENCE
            .saturating_add(slow)
            .saturating_add(self.across.lease())
            .saturating_add(self.across.pause_redis.unwrap_or_default())
            .saturating_add(self.price.load.saturating_mul(20));
        let plan = Plan {
            way,
            number: 0,
            threads: self.threads,
            keys: self.across.keys.get(),
            zipf: self.across.zipf,
            calls: self.across.calls.get(),
            price: self.price.clone(),
            slow,
            waits: self.across.kill_holder || self.across.pause_redis.is_some(),
            url: server.url().to_string(),
            namespace: namespace.to_string(),
            lease: self.across.lease(),
            budget: self.across.budget.unwrap_or(patience),
            patience,
        };
        let mut herd = Herd::start(&plan, self.processes)?;
        herd.send_off(patience)?;
        herd.watch(self.across, server, &plan)
    }
}

/// The processes of one storm. They end with it.
struct Herd {
    processes: Vec<Process>,
    heard: Receiver<(usize, Option<Word>)>,
}

struct Process {
    child: Child,
    orders: ChildStdin,
    killed: bool,
}

impl Herd {
    fn start(plan: &Plan, processes: usize) -> Result<Herd, Failure> {
        let (tell, heard) = unbounded();
        let mut herd = Herd { processes: Vec::new(), heard };
        for number in 0..processes {
            let plan = Plan { number: number as u64, ..plan.clone() };
            herd.processes.push(Process::start(&plan, number, tell.clone())?);
        }
        Ok(herd)
    }

    /// Once all are there.
    fn send_off(&mut self, patience: Duration) -> Result<(), Failure> {
        let mut missing = self.processes.len();
        while missing > 0 {
            match self.next(patience)? {
                (_, Word::Ready) => missing -= 1,
                (number, _) => return Err(Process::out_of_order(number)),
            }
        }
        // Time for all of them to be told, and to fall asleep again.
        let start = now()
            + Duration::from_millis(50)
            + Duration::from_millis(2) * self.processes.len() as u32;
        for process in &mut self.processes {
            process.order(&Order::Start(start));
        }
        Ok(())
    }

    /// Does the harm that is asked for, and hears the processes out.
    fn watch(mut self, across: &Across, server: &Server, plan: &Plan) -> Result<Pass, Failure> {
        let in_each = plan.threads as u64 * plan.calls;
        let progress =
            Progress::bar(plan.way.name(), self.processes.len().saturating_mul(in_each as usize));
        let mut calls = vec![0; self.processes.len()];
        let mut sum = Sum::new(plan);
        let (mut harmed, mut left) = (false, self.processes.len());
        while left > 0 {
            let (number, word) = self.next(plan.patience)?;
            match word {
                Word::Calls(done) => {
                    calls[number] = done;
                    progress.set(calls.iter().sum());
                }
                Word::Loading(key) if across.kill_holder && !harmed => {
                    self.processes[number].kill();
                    sum.killed(key, in_each);
                    (harmed, left) = (true, left - 1);
                }
                Word::Loading(_) => {
                    if let (Some(time), false) = (across.pause_redis, harmed) {
                        server.pause(time)?;
                        harmed = true;
                    }
                    self.processes[number].order(&Order::GoOn);
                }
                Word::Done(done) => {
                    sum.add(&done);
                    left -= 1;
                }
                Word::Ready | Word::Failed(_) => return Err(Process::out_of_order(number)),
            }
        }
        Ok(sum.into_pass(plan, across))
    }

    /// The next word of any of them, but those that were killed.
    fn next(&self, patience: Duration) -> Result<(usize, Word), Failure> {
        let by = Instant::now() + patience;
        loop {
            let Ok((number, word)) = self.heard.recv_deadline(by) else {
                let silence = Span(patience);
                return Err(Failure::Told(format!(
                    "{silence} without a word of any process: some callers are never answered"
                )));
            };
            match word {
                Some(Word::Failed(reason)) => {
                    return Err(Failure::Told(format!("process {number}: {reason}")));
                }
                Some(word) => return Ok((number, word)),
                None if self.processes[number].killed => {}
                None => return Err(Failure::Told(format!("process {number} ended too early"))),
            }
        }
    }
}

impl Process {
    fn start(
        plan: &Plan,
        number: usize,
        tell: Sender<(usize, Option<Word>)>,
    ) -> Result<Process, Failure> {
        let told = |error| Failure::Told(format!("cannot start process {number}: {error}"));
        let mut command = Command::new(std::env::current_exe().map_err(told)?);
        command.arg(CHILD).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(told)?;
        let (orders, words) = (child.stdin.take(), child.stdout.take());
        let (Some(orders), Some(words)) = (orders, words) else { unreachable!("both are piped") };
        let mut process = Process { child, orders, killed: false };
        process.orders.write_all(word::line(plan).as_bytes()).map_err(told)?;
        let hear = move || {
            for line in BufReader::new(words).lines() {
                let word = line.and_then(|line| word::read(&line));
                let Ok(word) = word else { break };
                let done = matches!(word, Word::Done(_));
                // Nobody listens any more once the storm is over.
                if tell.send((number, Some(word))).is_err() || done {
                    return;
                }
            }
            let _ = tell.send((number, None));
        };
        thread::Builder::new().spawn(hear).map_err(told)?;
        Ok(process)
    }

    /// If it is gone, that is heard of otherwise.
    fn order(&mut self, order: &Order) {
        let _ = self.orders.write_all(word::line(order).as_bytes());
    }

    fn kill(&mut self) {
        self.killed = true;
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn out_of_order(number: usize) -> Failure {
        Failure::Told(format!("process {number} does not keep to the order"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What all processes have seen, together.
struct Sum {
    tally: Tally,
    loads: Vec<u64>,
    /// When each load began, and ended.
    spans: Vec<(u64, u64)>,
    overlapping: u64,
    traffic: Option<Traffic>,
    unanswered: u64,
}

impl Sum {
    fn new(plan: &Plan) -> Sum {
        Sum {
            tally: Tally::new(),
            loads: vec![0; plan.keys],
            spans: Vec::new(),
            overlapping: 0,
            traffic: None,
            unanswered: 0,
        }
    }

    fn add(&mut self, done: &Done) {
        self.tally.waits.add_counts(&done.waits);
        self.tally.leads.add_counts(&done.leads);
        self.tally.faults += done.faults;
        if let Some(fault) = &done.fault {
            self.tally.fault.get_or_insert_with(|| fault.clone());
        }
        for load in &done.loads {
            self.loads[load.key] += 1;
            self.spans.push((load.begun, load.ended));
        }
        self.overlapping += done.overlapping;
        self.traffic = match (self.traffic, done.traffic) {
            (Some(sum), Some(more)) => Some(sum.and(more)),
            (sum, more) => sum.or(more),
        };
    }

    /// A process was, in the middle of a load of this key.
    fn killed(&mut self, key: usize, callers: u64) {
        self.loads[key] += 1;
        self.unanswered += callers;
    }

    fn into_pass(self, plan: &Plan, across: &Across) -> Pass {
        Pass {
            strategy: plan.way.name(),
            promise: across.leaves(plan.way.promise()),
            tally: self.tally,
            loads: self.loads,
            overlapping: self.overlapping,
            fleet: self.traffic,
            peak: Some(peak(&self.spans)),
            unanswered: self.unanswered,
        }
    }
}

/// How many of the spans overlap, at most.
fn peak(spans: &[(u64, u64)]) -> u64 {
    let begun = spans.iter().map(|(begun, _)| (*begun, 1_i64));
    let ended = spans.iter().map(|(_, ended)| (*ended, -1_i64));
    let mut changes: Vec<_> = begun.chain(ended).collect();
    // In one moment, those that end come first.
    changes.sort_unstable();
    let (mut running, mut most) = (0, 0);
    for (_, change) in changes {
        running += change;
        most = most.max(running);
    }
    most.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_as_another_begins_does_not_overlap_it() {
        assert_eq!(peak(&[]), 0);
        assert_eq!(peak(&[(0, 10), (10, 20)]), 1);
        assert_eq!(peak(&[(0, 10), (5, 15), (9, 30), (12, 13)]), 3);
    }
}
