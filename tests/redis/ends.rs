//! What is left when it is over.

use super::support::*;

with_each_client! {
    when_the_last_handle_goes_so_does_everything
    no_thread_outlives_its_fleet
    a_handle_that_goes_takes_nothing_from_the_others
}

fn when_the_last_handle_goes_so_does_everything(client: Client) {
    let server = Server::start();
    let one = Instance::new(&server, client).hearing();
    one.got(7);
    assert!(server.clients() >= 2);
    drop(one);
    let dropped = Instant::now();
    eventually("all connections are closed", || server.clients() == 0);
    assert!(dropped.elapsed() < secs(1) + NOISE);
    tidy(&server);
}

/// The threads of this process that are ours or the pool's.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| {
        // It may have ended since.
        let name = std::fs::read_to_string(task.ok()?.path().join("comm")).ok()?;
        Some(name.trim().to_string())
    });
    names.filter(|name| name.starts_with("onefill-") || name.starts_with("r2d2")).collect()
}

/// The process whose threads are counted: those of other tests are not among them.
#[test]
#[ignore = "run by the test of threads"]
fn counts_its_threads() {
    assert_eq!(threads(), [""; 0]);
    for round in 0..3 {
        let one = Instance::counting(patient(told()), |cache| cache.workers(2)).hearing();
        let two = Instance::counting(patient(told()), |cache| cache.workers(2)).hearing();
        (0..10).for_each(|id| drop(one.value(round * 10 + id)));
        (0..10).for_each(|id| drop(two.value(round * 10 + id)));
        let running = threads();
        for name in ["onefill-ear", "onefill-leases", "onefill-dial"] {
            assert!(running.iter().any(|thread| thread.starts_with(name)), "{name}: {running:?}");
        }
        drop((one, two));
        eventually("all threads have ended", || threads().is_empty());
    }
    // And those that never reached anybody.
    let nowhere = Unreachable::new();
    let address = Address::tcp("127.0.0.1", nowhere.address().port());
    let one = Instance::counting(Redis::over(address), |cache| cache);
    one.value(7);
    drop(one);
    eventually("all threads have ended", || threads().is_empty());
}

fn no_thread_outlives_its_fleet(client: Client) {
    if !cfg!(target_os = "linux") {
        return;
    }
    let server = Server::start();
    let output = alone("ends::counts_its_threads", &server, client).wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    eventually("all connections are closed", || server.clients() == 0);
    tidy(&server);
}

fn a_handle_that_goes_takes_nothing_from_the_others(client: Client) {
    let server = Server::start();
    let fleet = patient(address(&server, client)).build().unwrap();
    let one = Instance::on(fleet.clone(), |cache| cache.loader(|load| Ok(load.key().to_string())));
    let other = Cache::<u64, String, &'static str>::builder("other").ttl(secs(600));
    let other = other.loader(|load: &Load<'_, u64, String>| Ok(load.key().to_string()));
    let other = other.fleet(&fleet, codec::Raw).build().unwrap();
    let started = Barrier::new(9);
    thread::scope(|s| {
        for nth in 0..8 {
            let (other, started) = (&other, &started);
            s.spawn(move || {
                for id in 0..150 {
                    if id == 50 {
                        started.wait();
                    }
                    let id = nth * 1_000 + id;
                    let answer = other.get(&id).unwrap();
                    assert_eq!(answer.source(), Source::Loaded);
                    assert_eq!(answer.into_value().unwrap(), id.to_string());
                }
            });
        }
        one.value(7);
        started.wait();
        drop(one);
    });
    let (health, stats) = (fleet.health(), other.stats());
    assert_eq!((health.last_trouble, stats.degraded, stats.fleet_writes_failed), (None, 0, 0));
    assert_eq!(stats.loaded, 1_200);
    drop(fleet);
    assert!(server.clients() > 0, "the other cache is on it still");
    assert_eq!(other.get(&50_000).unwrap().source(), Source::Loaded);
    drop(other);
    eventually("all connections are closed", || server.clients() == 0);
    tidy(&server);
}
