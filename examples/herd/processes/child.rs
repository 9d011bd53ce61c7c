//! One process of a storm.

use std::io::{self, Write};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use onefill::fleet::redis::{Address, Redis};
use parking_lot::{Condvar, Mutex};

use super::mix::Mix;
use super::now;
use super::wire::Counted;
use super::word::{self, Done, Order, Plan, Seen, Word};
use crate::caller::Caller;
use crate::link::{Asked, Link};
use crate::loader::Loader;
use crate::strategy::{Column, Fault, Row, Strategy};
use crate::tally::{Tally, Traffic};
use crate::{Failure, crew};

/// So many callers of a process can be at the server at once. A server of forty processes is to
/// have connections to spare.
const CONNECTIONS: u32 = 8;

/// Does what the parent says on standard input. Ends with the parent: then there is no more input.
pub(crate) fn run() -> Result<(), Failure> {
    let plan: Plan = heard()?;
    match storm(&plan) {
        Ok(done) => tell(&Word::Done(Box::new(done))),
        Err(failure) => tell(&Word::Failed(failure.to_string())),
    }
    Ok(())
}

fn heard<T: serde::de::DeserializeOwned>() -> Result<T, Failure> {
    let mut line = String::new();
    match io::stdin().read_line(&mut line) {
        Ok(1..) => word::read(&line).map_err(Failure::Output),
        // Nobody is left to be told anything.
        Ok(0) | Err(_) => process::exit(1),
    }
}

fn tell(word: &Word) {
    // If the parent is gone, this process ends in a moment.
    let _ = io::stdout().write_all(word::line(word).as_bytes());
}

fn storm(plan: &Plan) -> Result<Done, Failure> {
    let commands = Arc::<AtomicU64>::default();
    let mut asked = None;
    let inner = if plan.way.needs_a_tier() {
        let link = link(plan, &commands)?;
        asked = Some(link.asked());
        plan.way.strategy(plan, || link)
    } else {
        plan.way.strategy(plan, || unreachable!("it needs none"))
    };
    let log = Arc::<Log>::default();
    let column = Column {
        name: plan.way.name(),
        promise: plan.way.promise(),
        instances: vec![Box::new(Watched { inner, plan: plan.clone(), log: Arc::clone(&log) })],
        asked: Vec::new(),
    };
    let loader = Loader::new(&plan.price, plan.keys, 1);
    let (tally, mix) = (Mutex::new(Tally::new()), Mix::new(plan.keys, plan.zipf));
    let called = AtomicU64::new(0);
    let mut started = Instant::now();

    let signal = || {
        if let Some(asked) = &asked {
            wait_until_it_hears(asked, plan.patience)?;
        }
        tell(&Word::Ready);
        let Order::Start(start) = heard()? else {
            return Err(Failure::Told("the parent does not keep to the order".into()));
        };
        let follower = Arc::clone(&log);
        thread::spawn(move || {
            while let Ok(Order::GoOn) = heard() {
                follower.go_on();
            }
        });
        thread::sleep(start.saturating_sub(now()));
        // What it took to get here, to hear oneself for one, is no part of the storm.
        commands.store(0, Ordering::Relaxed);
        started =
            Instant::now().checked_sub(now().saturating_sub(start)).unwrap_or_else(Instant::now);
        Ok(started)
    };
    let watch = |finished: &dyn Fn() -> bool| {
        let mut told = 0;
        while !finished() {
            thread::sleep(Duration::from_millis(50));
            let calls = called.load(Ordering::Relaxed);
            if calls != told {
                tell(&Word::Calls(calls));
                told = calls;
            }
        }
    };
    let work = |number: usize, _| {
        let mut caller = Caller::new(number, &column, &loader, &tally);
        let seed = plan.number * plan.threads as u64 + number as u64;
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..plan.calls {
            caller.call(mix.draw(&mut random), None);
            called.fetch_add(1, Ordering::Relaxed);
        }
    };
    crew::run_on_signal(plan.threads, signal, watch, work)?;

    let traffic = asked
        .map(|asked| Traffic { commands: commands.load(Ordering::Relaxed), ..Traffic::of(&asked) });
    let tally = tally.into_inner();
    let nanos = |at: Instant| {
        u64::try_from(at.saturating_duration_since(started).as_nanos()).unwrap_or(u64::MAX)
    };
    let loads = log.loads.lock();
    let loads = loads.iter().map(|&(key, begun, ended)| Seen {
        key,
        begun: nanos(begun),
        ended: nanos(ended),
    });
    Ok(Done {
        waits: tally.waits.counts(),
        leads: tally.leads.counts(),
        faults: tally.faults,
        fault: tally.fault,
        loads: loads.collect(),
        overlapping: loader.overlapping(),
        traffic,
    })
}

fn link(plan: &Plan, commands: &Arc<AtomicU64>) -> Result<Link, Failure> {
    let told = |error: onefill::BuildError| Failure::Told(error.to_string());
    let dial = Address::parse(&plan.url).map_err(told)?.into_dial();
    let tier = Redis::over(Counted { dial, commands: Arc::clone(commands) })
        .namespace(&plan.namespace)
        .pool_size(CONNECTIONS)
        .pool_wait(plan.patience)
        .connect_timeout(plan.patience)
        .io_timeout(plan.patience)
        .tier();
    Ok(Link::over(tier.map_err(told)?))
}

fn wait_until_it_hears(asked: &Asked, patience: Duration) -> Result<(), Failure> {
    let began = Instant::now();
    while !asked.hears() {
        if began.elapsed() > patience {
            return Err(Failure::Told("it hears nothing of what is published".into()));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A strategy whose loads are written down.
struct Watched {
    inner: Box<dyn Strategy>,
    plan: Plan,
    log: Arc<Log>,
}

#[derive(Default)]
struct Log {
    /// Of each load, its key, and when it began and ended.
    loads: Mutex<Vec<(usize, Instant, Instant)>>,
    begun: AtomicBool,
    may_go_on: Mutex<bool>,
    changed: Condvar,
}

impl Log {
    fn go_on(&self) {
        *self.may_go_on.lock() = true;
        self.changed.notify_all();
    }

    /// The first load of this process tells the parent, and is held until it may go on.
    fn wait(&self, key: usize) {
        if !self.begun.swap(true, Ordering::Relaxed) {
            tell(&Word::Loading(key));
            self.changed.wait_while(&mut self.may_go_on.lock(), |may| !*may);
        }
    }
}

impl Strategy for Watched {
    fn get(&self, key: usize, load: &dyn Fn() -> Row) -> Result<Row, Fault> {
        self.inner.get(key, &|| {
            let begun = Instant::now();
            if self.plan.waits {
                self.log.wait(key);
            }
            if key == 0 {
                thread::sleep(self.plan.slow);
            }
            let row = load();
            self.log.loads.lock().push((key, begun, Instant::now()));
            row
        })
    }
}
