//! Leases: who loads, who waits, and what becomes of it.

use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::support::*;

with_each_client! {
    a_herd_over_instances_is_one_load
    an_absence_and_a_failure_travel
    scripts_may_be_forgotten_at_any_time
    when_a_holder_is_dead_one_of_all_takes_over
    past_the_wait_bound_each_instance_loads_once_for_itself
    a_killed_process_holds_nobody_up_longer_than_its_lease
    a_load_that_takes_longer_than_its_lease_keeps_it
    a_late_holder_touches_neither_the_lease_nor_the_value_of_another
    a_lease_that_the_server_forgot_is_a_lost_one
    a_server_that_comes_back_empty_in_the_middle_of_a_load_costs_nobody_the_value
    whatever_becomes_of_a_load_its_lease_is_given_back_at_once
    a_refresh_gives_back_its_lease
    whoever_waits_asks_seldom
    whoever_waits_holds_no_connection
    what_is_there_costs_one_round_trip_and_what_is_here_none
}

fn a_herd_over_instances_is_one_load(client: Client) {
    let server = Server::start();
    let loads = Arc::new(AtomicUsize::new(0));
    let instances: Vec<_> = (0..4)
        .map(|_| {
            let loads = Arc::clone(&loads);
            let load = move |key: u64| {
                loads.fetch_add(1, SeqCst);
                thread::sleep(ms(100));
                Ok(format!("page {key}").into())
            };
            Instance::with(&server, client, load).hearing()
        })
        .collect();
    let start = Barrier::new(20);
    thread::scope(|s| {
        for instance in instances.iter().cycle().take(20) {
            s.spawn(|| {
                start.wait();
                assert_eq!(instance.got(7).0, "page 7");
            });
        }
    });
    // Also of those who read it before the notice that it is there came, and doubt it now.
    for instance in &instances {
        assert_eq!(instance.got(7).0, "page 7");
    }
    assert_eq!(loads.load(SeqCst), 1);
    tidy(&server);
}

fn an_absence_and_a_failure_travel(client: Client) {
    let server = Server::start();
    let loads = Arc::new(AtomicUsize::new(0));
    let [one, two] = [(); 2].map(|()| {
        let loads = Arc::clone(&loads);
        let load = move |key: u64| {
            loads.fetch_add(1, SeqCst);
            thread::sleep(ms(300));
            if key == 1 { Ok(Fill::absent()) } else { Err("no such database") }
        };
        Instance::with(&server, client, load).hearing()
    });
    assert!(one.get(1).unwrap().is_absent());
    let answer = two.get(1).unwrap();
    assert!(answer.is_absent() && answer.source() == Source::Fleet, "{answer:?}");

    assert_eq!(loads.swap(0, SeqCst), 1);
    thread::scope(|s| {
        let failing = s.spawn(|| one.get(2));
        eventually("it loads", || loads.load(SeqCst) == 1);
        let other = two.get(2).unwrap_err();
        assert!(matches!(other, Error::FailedElsewhere), "{other:?}");
        assert!(failing.join().unwrap().unwrap_err().is_failed());
    });
    assert_eq!(loads.load(SeqCst), 1);
    assert_eq!(server.command(&[b"EXISTS", &value_name(2)[..]]), Resp::Integer(0));
    tidy(&server);
}

fn scripts_may_be_forgotten_at_any_time(client: Client) {
    let server = Server::start();
    let (begin, begun) = mpsc::sync_channel(0);
    let (end, ended) = mpsc::sync_channel(0);
    let ended = Mutex::new(ended);
    let load = move |key: u64| {
        begin.send(()).unwrap();
        ended.lock().unwrap().recv().unwrap();
        Ok(format!("page {key}").into())
    };
    let (one, two) = (Instance::with(&server, client, load), Instance::new(&server, client));
    for id in 0..10 {
        thread::scope(|s| {
            s.spawn(|| one.got(id));
            begun.recv().unwrap();
            assert_eq!(server.leases("onefill").len(), 1);
            server.script_flush();
            end.send(()).unwrap();
        });
        assert_eq!(server.leases("onefill").len(), 0);
        assert_eq!(two.got(id), (format!("page {id}"), Source::Fleet));
    }
    server.script_flush();
    one.cache.invalidate(&3).unwrap();
    one.cache.invalidate_all().unwrap();
    server.script_flush();
    one.cache.put(&4, String::from("put")).unwrap();
    assert_eq!(one.cache.stats().fleet_writes_failed, 0);
    assert_eq!(one.fleet.health().last_trouble, None);

    // What is known is not sent again.
    server.reset_calls();
    two.cache.invalidate(&1).unwrap();
    two.cache.invalidate(&2).unwrap();
    assert!(server.calls("eval") <= 1);
    tidy(&server);
}

fn when_a_holder_is_dead_one_of_all_takes_over(client: Client) {
    let (server, ttl) = (Server::start(), ms(700));
    let loads = Arc::new(AtomicUsize::new(0));
    let instances = [(); 4].map(|()| {
        let loads = Arc::clone(&loads);
        Instance::over(patient(address(&server, client)), |cache| {
            cache.loser_wait(NOISE).loader(move |load| {
                thread::sleep(ms(50));
                Ok(format!("page {}, load {}", load.key(), loads.fetch_add(1, SeqCst) + 1))
            })
        })
        .hearing()
    });
    let started = Instant::now();
    dead_holder(&server, 7, ttl);
    thread::scope(|s| {
        for _ in 0..5 {
            for instance in &instances {
                s.spawn(|| assert_eq!(instance.value(7), "page 7, load 1"));
            }
        }
    });
    let took = started.elapsed();
    assert!(took >= ttl && took < ttl + NOISE / 2, "{took:?}");
    assert_eq!(loads.load(SeqCst), 1);
    assert_eq!(stored(&server, 7).unwrap(), "page 7, load 1");
    instances.iter().for_each(Instance::idle);
    tidy(&server);
}

fn past_the_wait_bound_each_instance_loads_once_for_itself(client: Client) {
    let (server, bound) = (Server::start(), ms(400));
    let instances = [(); 4].map(|()| {
        let fleet = patient(address(&server, client));
        Instance::counting(fleet, |cache| cache.loser_wait(bound)).hearing()
    });
    let token = dead_holder(&server, 7, secs(60));
    thread::scope(|s| {
        for _ in 0..5 {
            for instance in &instances {
                s.spawn(|| {
                    let started = Instant::now();
                    assert_eq!(instance.value(7), "7: 1");
                    let took = started.elapsed();
                    assert!(took < bound + NOISE / 2, "{took:?}");
                });
            }
        }
    });
    for instance in &instances {
        assert_eq!(instance.loads(), 1);
        let stats = instance.cache.stats();
        assert_eq!((stats.loaded_alone, stats.degraded), (1, 0));
        assert!(stats.call_times.quantile(1.0) >= bound, "the one that led has waited");
        instance.idle();
    }
    assert_eq!(stored(&server, 7), None, "what was loaded without the lease");
    assert_eq!(holder(&server, 7), Some(token), "is not the end of another's");
    server.command(&[b"DEL", &lease_name(7)[..]]);
    tidy(&server);
}

/// The process that is killed.
#[test]
#[ignore = "run by the test of a killed process"]
fn is_killed_in_its_loader() {
    let fleet = patient(told()).lease(secs(1)).build().unwrap();
    let one = Instance::on(fleet, |cache| {
        cache.loader(|_| -> Loaded {
            println!("\nit loads");
            loop {
                thread::park();
            }
        })
    });
    drop(one.get(7));
}

fn a_killed_process_holds_nobody_up_longer_than_its_lease(client: Client) {
    let server = Server::start();
    let fleet = patient(address(&server, client));
    let two = Instance::counting(fleet, |cache| cache.loser_wait(NOISE)).hearing();
    server.reset_calls();
    let mut one = alone("herd::is_killed_in_its_loader", &server, client);
    let output = BufReader::new(one.stdout.take().unwrap());
    assert!(output.lines().map_while(Result::ok).any(|line| line == "it loads"));
    let calls = server.calls_by_name();
    let of_leases = ["setnx", "expire", "setex", "psetex", "getset"];
    assert!(of_leases.iter().all(|name| !calls.contains_key(*name)), "{calls:?}");
    one.kill().unwrap();
    let killed = Instant::now();
    one.wait().unwrap();
    let left = server.command(&[b"PTTL", &lease_name(7)[..]]).integer();
    assert!((1..=1_000).contains(&left), "{left}");
    assert_eq!(two.value(7), "7: 1");
    let took = killed.elapsed();
    assert!(took < secs(1) + NOISE / 2, "{took:?}");
    let stats = two.cache.stats();
    assert_eq!((two.loads(), stats.loaded_alone), (1, 0));
    assert_eq!(stored(&server, 7).unwrap(), "7: 1");
    tidy(&server);
}

fn a_load_that_takes_longer_than_its_lease_keeps_it(client: Client) {
    let (server, stage) = (Server::start(), Stage::new());
    let load = stage.loader();
    let fleet = patient(address(&server, client)).lease(ms(900));
    let one = Instance::over(fleet, |cache| cache.loader(move |asked| load(*asked.key())));
    let two = Instance::new(&server, client);
    thread::scope(|s| {
        let loads = s.spawn(|| one.value(7));
        stage.begun();
        let (token, began) = (holder(&server, 7), Instant::now());
        assert!(token.is_some());
        while began.elapsed() < ms(2_000) {
            assert_eq!(holder(&server, 7), token);
            thread::sleep(ms(20));
        }
        stage.end_with("late");
        assert_eq!(loads.join().unwrap(), "late");
    });
    assert_eq!(one.cache.stats().leases_lost, 0);
    assert_eq!(two.got(7), ("late".into(), Source::Fleet));
    tidy(&server);
}

fn a_late_holder_touches_neither_the_lease_nor_the_value_of_another(client: Client) {
    let server = Server::start();
    let three = Instance::new(&server, client);
    let ends: [(u64, Loaded); 2] = [(7, Ok(String::from("old").into())), (8, Err("too late"))];
    for (id, end) in ends {
        for overtaken in [false, true] {
            let id = if overtaken { id + 10 } else { id };
            let (late, next) = (Stage::new(), Stage::new());
            let (load, also) = (late.loader(), next.loader());
            // Held as long as it was taken for, and no longer.
            let short = patient(address(&server, client)).lease(ms(300)).lease_cap(ms(1));
            let one = Instance::over(short, |cache| cache.loader(move |asked| load(*asked.key())));
            let fleet = patient(address(&server, client)).lease(secs(60));
            let two = Instance::over(fleet, |cache| cache.loader(move |asked| also(*asked.key())));
            thread::scope(|s| {
                let one = s.spawn(|| (one.get(id), one.cache.stats()));
                late.begun();
                let first = holder(&server, id);
                eventually("the lease has ended", || holder(&server, id).is_none());
                let two = s.spawn(|| two.get(id).unwrap());
                next.begun();
                let second = holder(&server, id);
                assert!(first.is_some() && second.is_some() && first != second);
                let newer = |two: thread::ScopedJoinHandle<'_, Answer<String>>| {
                    next.end_with("new");
                    assert_eq!(two.join().unwrap().into_value().unwrap(), "new");
                };
                let older = |one: thread::ScopedJoinHandle<'_, _>| {
                    late.end(end.clone());
                    let (answer, stats): (Result<Answer<String>, Error<&str>>, onefill::Stats) =
                        one.join().unwrap();
                    match &end {
                        Ok(_) => assert_eq!(answer.unwrap().into_value().unwrap(), "old"),
                        Err(_) => assert!(answer.unwrap_err().is_failed()),
                    }
                    assert_eq!(stats.leases_lost, u64::from(end.is_ok()));
                };
                if overtaken {
                    newer(two);
                    older(one);
                } else {
                    older(one);
                    assert_eq!(holder(&server, id), second, "it is not the late one's to end");
                    assert_eq!(stored(&server, id), None);
                    newer(two);
                }
            });
            assert_eq!(stored(&server, id).unwrap(), "new");
            assert_eq!(three.got(id), ("new".into(), Source::Fleet));
        }
    }
    tidy(&server);
}

fn a_lease_that_the_server_forgot_is_a_lost_one(client: Client) {
    let (server, stages) = (Server::start(), [Stage::new(), Stage::new()]);
    let [one, two] = stages.each_ref().map(|stage| Instance::with(&server, client, stage.loader()));
    thread::scope(|s| {
        let a = s.spawn(|| one.value(7));
        stages[0].begun();
        // Evicted, or lost in a failover.
        server.command(&[b"DEL", &lease_name(7)[..]]);
        let b = s.spawn(|| two.value(7));
        stages[1].begun();
        let token = holder(&server, 7);
        stages[0].end_with("a");
        assert_eq!(a.join().unwrap(), "a");
        assert_eq!((holder(&server, 7), stored(&server, 7)), (token, None));
        stages[1].end_with("b");
        assert_eq!(b.join().unwrap(), "b");
    });
    assert_eq!(stored(&server, 7).unwrap(), "b");
    assert_eq!(one.cache.stats().leases_lost, 1);
    assert_eq!(two.cache.stats().leases_lost, 0);
    assert_eq!(one.value(7), "b", "what was not stored is not kept");
    tidy(&server);
}

fn a_server_that_comes_back_empty_in_the_middle_of_a_load_costs_nobody_the_value(client: Client) {
    let server = Server::start();
    for back in [true, false] {
        let stage = Stage::new();
        let load = stage.loader();
        let load = move |key| if key == 7 { load(key) } else { Ok(format!("page {key}").into()) };
        // Short, as there is nobody for a while.
        let fleet = patient(address(&server, client)).pool_wait(secs(1));
        let one = Instance::over(fleet, |cache| cache.loader(move |asked| load(*asked.key())));
        let one = one.hearing();
        thread::scope(|s| {
            let callers: Vec<_> = (0..4).map(|_| s.spawn(|| one.value(7))).collect();
            stage.begun();
            eventually("three wait", || one.cache.stats().gauges.waiting == 3);
            server.kill9();
            if back {
                server.restart();
            }
            stage.end_with("tea");
            assert!(callers.into_iter().all(|caller| caller.join().unwrap() == "tea"));
        });
        assert_eq!(stage.loads(), 1);
        let stats = one.cache.stats();
        match back {
            // The lease went with the server: nobody knows who came after it.
            true => assert_eq!((stats.leases_lost, stored(&server, 7)), (1, None)),
            false => assert_eq!(stats.fleet_writes_failed, 1),
        }
        one.idle();
        if !back {
            server.restart();
        }
        let mut id = 100;
        eventually("values are stored again", || {
            id += 1;
            one.value(id) == format!("page {id}") && stored(&server, id).is_some()
        });
        tidy(&server);
    }
}

fn whatever_becomes_of_a_load_its_lease_is_given_back_at_once(client: Client) {
    let server = Server::start();
    let keeper = Instance::new(&server, client);
    type End = fn(&Load<'_, u64, String>) -> Loaded;
    let ends: [(&str, End); 7] = [
        ("not to be stored", |_| Ok(Fill::new("x".to_string()).do_not_store())),
        ("without a life", |_| Ok(Fill::new("x".to_string()).ttl(Duration::ZERO))),
        ("absent", |_| Ok(Fill::absent())),
        ("unchanged, but from nothing", |_| Ok(Fill::unchanged())),
        ("a failure", |_| Err("no")),
        ("a panic", |_| panic!("on purpose")),
        ("too large", |_| Ok("x".repeat(3 << 20).into())),
    ];
    for (nth, (what, end)) in (0..).zip(ends) {
        // So long that nobody could wait for its end.
        let fleet = patient(address(&server, client)).lease(secs(600)).lease_cap(secs(600));
        let one = Instance::over(fleet, |cache| cache.loader(end));
        let ended = catch_unwind(AssertUnwindSafe(|| drop(one.get(nth))));
        assert_eq!(ended.is_err(), what == "a panic");
        assert_eq!(holder(&server, nth), None, "{what}");
        let two = Instance::new(&server, client);
        let source = two.get(nth).unwrap().source();
        assert_eq!(source == Source::Fleet, what == "absent", "{what}: {source:?}");
        one.idle();
    }
    // Invalidated meanwhile.
    let stage = Stage::new();
    let one = Instance::with(&server, client, stage.loader());
    thread::scope(|s| {
        let loads = s.spawn(|| one.value(100));
        stage.begun();
        keeper.cache.invalidate(&100).unwrap();
        assert_eq!(holder(&server, 100), None);
        stage.end_with("old");
        assert_eq!(loads.join().unwrap(), "old");
    });
    assert_eq!(stored(&server, 100), None);
    // Its caller is gone when it ends.
    let load = stage.loader();
    let one = Instance::over(patient(address(&server, client)), |cache| {
        cache.workers(1).loader(move |asked| load(*asked.key()))
    });
    assert!(one.cache.with().timeout(ms(200)).get(&101).unwrap_err().is_timed_out());
    stage.begun();
    assert!(holder(&server, 101).is_some());
    stage.end_with("late");
    eventually("it is stored", || stored(&server, 101).is_some());
    assert_eq!(holder(&server, 101), None);
    one.idle();
    tidy(&server);
}

fn a_refresh_gives_back_its_lease(client: Client) {
    let server = Server::start();
    let one = Instance::counting(patient(address(&server, client)), |cache| {
        cache.workers(2).ttl(ms(50)).stale_while_revalidate(secs(600))
    })
    .hearing();
    assert_eq!(one.value(7), "7: 1");
    thread::sleep(ms(80));
    let answer = one.get(7).unwrap();
    assert_eq!(answer.value().unwrap(), "7: 1");
    assert!(answer.is_stale());
    eventually("it is refreshed", || stored(&server, 7).is_some_and(|value| value != "7: 1"));
    // In one step with the value.
    assert_eq!(holder(&server, 7), None);
    one.idle();
    assert_eq!(one.cache.stats().leases_lost, 0);
    tidy(&server);
}

fn whoever_waits_asks_seldom(client: Client) {
    let (server, bound) = (Server::start(), ms(1_000));
    teach(&server, client);
    let proxy = Proxy::new(server.address());
    let one = Instance::counting(patient(through(&proxy, client)), |cache| cache.loser_wait(bound))
        .hearing();
    one.value(1_000);
    (0..20).for_each(|id| drop(dead_holder(&server, id, secs(60))));
    for keys in [1, 19] {
        proxy.forget_commands();
        let started = Instant::now();
        thread::scope(|s| {
            for nth in 0..20 {
                let id = if keys == 1 { 0 } else { 1 + nth % keys };
                let one = &one;
                s.spawn(move || {
                    assert_eq!(one.got(id).0.split(':').next().unwrap(), id.to_string())
                });
            }
        });
        let took = started.elapsed();
        assert!(took >= bound && took < bound + NOISE / 2, "{took:?}");
        let commands = proxy.commands().len();
        // The look, the claim, and one more for each 187 ms in which nothing was heard.
        let most = keys as usize * (3 + (took.as_millis() / 187) as usize);
        assert!(commands <= most, "{commands} commands for {keys} keys in {took:?}");
    }
    assert_eq!(one.loads(), 21);
    (0..20).for_each(|id| drop(server.command(&[b"DEL", &lease_name(id)[..]])));
    tidy(&server);
}

fn whoever_waits_holds_no_connection(client: Client) {
    let (server, stage) = (Server::start(), Stage::new());
    let load = stage.loader();
    let count = AtomicUsize::new(0);
    let fleet = patient(address(&server, client)).pool_size(4);
    let one = Instance::over(fleet, |cache| {
        cache.loser_wait(secs(600)).loader(move |asked| match asked.key() {
            100 => load(100),
            key => Ok(format!("{key}: {}", count.fetch_add(1, SeqCst)).into()),
        })
    })
    .hearing();
    (0..20).for_each(|id| drop(dead_holder(&server, id, secs(600))));
    thread::scope(|s| {
        for id in 0..20 {
            let one = &one;
            s.spawn(move || one.value(id));
        }
        eventually("twenty wait", || one.cache.stats().gauges.flights == 20);
        server.reset_calls();
        eventually("all of them have asked", || server.calls("evalsha") >= 20);
        let loads = s.spawn(|| one.value(100));
        stage.begun();
        let ended = Instant::now();
        stage.end_with("tea");
        assert_eq!(loads.join().unwrap(), "tea");
        // The wait for a connection is as long as that for a busy machine: none at all is had.
        assert!(ended.elapsed() < NOISE, "{:?}", ended.elapsed());
        assert_eq!(stored(&server, 100).unwrap(), "tea");
        // Who waits is told by an invalidation.
        (0..20).for_each(|id| one.cache.invalidate(&id).unwrap());
    });
    let troubles = one.fleet.health().troubles;
    assert_eq!(troubles, Default::default());
    one.idle();
    tidy(&server);
}

fn what_is_there_costs_one_round_trip_and_what_is_here_none(client: Client) {
    let server = Server::start();
    let proxy = Proxy::new(server.address());
    let two = Instance::new(&server, client);
    (0..100).for_each(|id| drop(two.value(id)));
    let one = Instance::counting(patient(through(&proxy, client)), |cache| cache).hearing();
    one.value(1_000);
    let asked = |what: &dyn Fn()| {
        proxy.forget_commands();
        what();
        let commands = proxy.commands();
        let names =
            commands.iter().map(|command| String::from_utf8_lossy(&command[0]).into_owned());
        // By which a silent connection proves itself.
        names.filter(|name| name != "PUBLISH").collect::<Vec<_>>()
    };
    let there = asked(&|| (0..100).for_each(|id| assert_eq!(one.got(id).1, Source::Fleet)));
    assert_eq!(there, ["PTTL", "GET"].repeat(100));
    let here = asked(&|| (0..100).for_each(|id| assert_eq!(one.got(id).1, Source::Local)));
    assert_eq!(here, [""; 0]);
    let cold = asked(&|| assert_eq!(one.got(2_000).1, Source::Loaded));
    assert_eq!(cold, ["PTTL", "GET", "EVALSHA", "EVALSHA"]);
    tidy(&server);
}
