//! Servers that are away, or that say no.

use super::support::*;

with_each_client! {
    a_restart_without_data_is_survived
    a_server_that_hangs_is_noticed_by_its_silence
    a_full_server_is_read_from
    a_server_that_takes_no_writes_is_read_from
    a_server_that_is_loading_is_no_outage
    a_server_that_serves_nobody_is_no_outage
    a_server_that_has_too_many_clients_is_no_outage
    an_outage_does_not_make_each_call_wait
    a_deadline_holds_where_no_connection_comes_about
    a_call_holds_its_deadline_while_another_has_the_only_connection
    a_server_that_hangs_costs_a_call_its_budget
    connections_that_were_closed_while_idle_are_noticed_by_nobody
}

fn a_restart_without_data_is_survived(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| {
        let fleet = patient(address(&server, client)).pool_wait(secs(1));
        Instance::counting(fleet, |cache| cache).hearing()
    });
    one.got(7);
    two.got(7);
    server.kill9();
    eventually("it is noticed", || !one.fleet.health().hears && !two.fleet.health().hears);
    assert!(two.fleet.health().report.deaf.is_some());
    assert!(one.got(8).1 == Source::Alone, "it is no outage");
    server.restart();
    eventually("it is heard again", || one.fleet.health().hears && two.fleet.health().hears);
    eventually("values are shared again", || {
        let id = 1_000 + one.loads.load(SeqCst) as u64;
        one.got(id).1 == Source::Loaded && two.got(id).1 == Source::Fleet
    });
    one.cache.put(&7, String::from("newer")).unwrap();
    eventually("notices come", || two.got(7).0 == "newer");
    tidy(&server);
}

fn a_server_that_hangs_is_noticed_by_its_silence(client: Client) {
    let server = Server::start();
    let fleet = Redis::over(address(&server, client)).build().unwrap();
    let one =
        Instance::on(fleet, |cache| cache.loader(|load| Ok(load.key().to_string()))).hearing();
    server.pause();
    let paused = Instant::now();
    eventually("it is noticed", || !one.fleet.health().hears);
    let after = paused.elapsed();
    assert!(after >= ms(1_500) && after < secs(9) + NOISE, "{after:?}");
    let deaf = one.fleet.health().report.deaf.unwrap();
    assert!(deaf.contains("nothing was heard"), "{deaf}");
    server.resume();
    eventually("it is heard again", || one.fleet.health().hears);
}

fn a_full_server_is_read_from(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client));
    one.got(7);
    server.make_oom();
    assert_eq!(two.got(7), ("7: 1".into(), Source::Fleet));
    assert_eq!(two.got(8).1, Source::Alone);
    let health = two.fleet.health();
    assert_eq!(health.troubles.refused(Refusal::OutOfMemory), 1, "{health:?}");
    assert!(!health.reads_open && !health.misconfigured);
    two.cache.invalidate(&7).unwrap();
    assert_eq!(server.command(&[b"EXISTS", &value_name(7)[..]]), Resp::Integer(0));
    let full = two.cache.put(&7, String::from("put")).unwrap_err();
    assert_eq!(full.refusal(), Some(Refusal::OutOfMemory));
    server.end_oom();
    assert_eq!(two.got(9).1, Source::Loaded);
    tidy(&server);
}

fn a_server_that_takes_no_writes_is_read_from(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client));
    one.got(7);
    let stored = |id| server.command(&[b"EXISTS", &value_name(id)[..]]) == Resp::Integer(1);
    for (id, class) in
        [(100, Refusal::ReadOnly), (101, Refusal::NotPersisting), (102, Refusal::TooFewReplicas)]
    {
        one.cache.put(&8, String::from("old")).unwrap();
        match class {
            Refusal::ReadOnly => server.make_readonly(),
            Refusal::TooFewReplicas => server.make_noreplicas(),
            _ => server.make_misconf(),
        }
        let three = Instance::new(&server, client);
        assert_eq!(three.got(7), ("7: 1".into(), Source::Fleet), "{class:?}");
        assert_eq!(three.got(id).1, Source::Alone, "{class:?}");
        assert_eq!(three.cache.invalidate(&8).unwrap_err().refusal(), Some(class));
        let health = three.fleet.health();
        assert!(health.troubles.refused(class) >= 2 && !health.reads_open, "{health:?}");
        match class {
            Refusal::ReadOnly => server.make_writable(),
            Refusal::TooFewReplicas => server.end_noreplicas(),
            _ => server.end_misconf(),
        }
        eventually("values are stored again", || {
            three.cache.invalidate(&id).is_ok() && three.get(id).is_ok() && stored(id)
        });
        let mut next = 1_000 * id..;
        eventually("what could not be invalidated is", || {
            three.value(next.next().unwrap());
            !stored(8)
        });
    }
    assert_eq!(two.got(7), ("7: 1".into(), Source::Fleet));
    tidy(&server);
}

fn a_server_that_is_loading_is_no_outage(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client).hearing());
    one.got(7);
    server.loading_restart(NOISE);
    assert_eq!(two.got(7).1, Source::Alone);
    let refused = |one: &Instance| one.fleet.health().troubles.refused(Refusal::Loading);
    assert!(refused(&two) >= 1, "{:?}", two.fleet.health());
    server.end_loading();
    eventually("it is heard again", || two.fleet.health().hears);
    let three = Instance::new(&server, client);
    assert_eq!(three.got(7), ("7: 1".into(), Source::Fleet), "it has its data");
}

fn a_server_that_serves_nobody_is_no_outage(client: Client) {
    let server = Server::start();
    let one = Instance::new(&server, client);
    one.value(7);
    type Step = fn(&Server);
    let states: [(&str, Refusal, Step, Step); 2] = [
        ("BUSY", Refusal::Busy, Server::make_busy, Server::end_busy),
        ("MASTERDOWN", Refusal::Incomplete, Server::make_masterdown, |server| {
            server.make_writable();
            server.set_config("replica-serve-stale-data", "yes");
        }),
    ];
    for (code, class, begin, end) in states {
        let two = Instance::new(&server, client);
        two.value(1_000);
        begin(&server);
        for id in 0..10 {
            assert_eq!(two.got(id), (format!("{id}: {}", two.loads()), Source::Alone), "{code}");
        }
        let health = two.fleet.health();
        let refused = health.troubles.refused(class);
        // After three of them it is left alone, for a quarter of a second at first.
        assert!((3..10).contains(&refused) && health.reads_open, "{code}: {health:?}");
        assert!(health.last_trouble.unwrap().contains(code));
        assert!(two.cache.invalidate(&7).is_err());
        assert_eq!(two.cache.stats().gauges.absences, 0);
        end(&server);
        let mut id = 2_000;
        eventually("values are shared again", || {
            id += 1;
            two.got(id).1 == Source::Loaded
        });
        let three = Instance::new(&server, client);
        assert_eq!(three.got(id).1, Source::Fleet, "{code}");
        two.idle();
    }
    tidy(&server);
}

fn a_server_that_has_too_many_clients_is_no_outage(client: Client) {
    let server = Server::start();
    let one = Instance::new(&server, client).hearing();
    one.value(7);
    server.set_config("maxclients", "1");
    let two = Instance::counting(patient(address(&server, client)).pool_wait(ms(300)), |c| c);
    for id in 0..5 {
        assert_eq!(two.got(id).1, Source::Alone);
    }
    let health = two.fleet.health();
    assert!(health.troubles.unreachable >= 3 && health.reads_open, "{health:?}");
    assert!(!health.misconfigured && !health.hears, "{health:?}");
    let last = health.last_trouble.unwrap();
    assert!(last.contains("max number of clients"), "{last}");
    assert_eq!(one.got(8).1, Source::Loaded, "whoever is in stays in");
    server.set_config("maxclients", "10000");
    let two = two.hearing();
    eventually("values are shared", || {
        one.cache.put(&9, String::from("put")).unwrap();
        two.got(9) == ("put".into(), Source::Fleet)
    });
    two.idle();
    tidy(&server);
}

fn an_outage_does_not_make_each_call_wait(client: Client) {
    let server = Server::start();
    let proxy = Proxy::new(server.address());
    proxy.set(Mode::BlackHole);
    // Everything at its default.
    let one = Instance::counting(Redis::over(through(&proxy, client)), |cache| cache);
    let started = Instant::now();
    for id in 0..100 {
        let answer = one.cache.with().timeout(secs(5)).get(&id).unwrap();
        assert_eq!(answer.source(), Source::Alone);
    }
    // A hundred times a tenth of a second is ten.
    assert!(started.elapsed() < secs(5), "{:?}", started.elapsed());
    assert_eq!(one.loads(), 100);
    let health = one.fleet.health();
    assert!(health.reads_open && health.opened >= 1 && health.troubles.too_slow >= 3, "{health:?}");
    proxy.heal();
    let mut id = 1_000;
    eventually("values are stored again", || {
        id += 1;
        one.value(id);
        stored(&server, id).is_some()
    });
    one.idle();
    tidy(&server);
}

fn a_deadline_holds_where_no_connection_comes_about(client: Client) {
    let nowhere = Unreachable::new();
    let address = Address::tcp("127.0.0.1", nowhere.address().port()).client(client);
    // Everything at its default: r2d2's would be half a minute.
    let one = Instance::counting(Redis::over(address), |cache| cache);
    let started = Instant::now();
    thread::scope(|s| {
        for nth in 0..4 {
            let one = &one;
            s.spawn(move || {
                for id in 0..5 {
                    let began = Instant::now();
                    let answer = one.cache.with().timeout(secs(2)).get(&(nth * 100 + id)).unwrap();
                    assert_eq!(answer.source(), Source::Alone);
                    assert!(began.elapsed() < secs(2), "{:?}", began.elapsed());
                }
            });
        }
    });
    assert!(started.elapsed() < secs(6), "{:?}", started.elapsed());
    assert_eq!(one.loads(), 20);
    let health = one.fleet.health();
    assert!(health.troubles.unreachable >= 1 && health.reads_open, "{health:?}");
    one.idle();
}

fn a_call_holds_its_deadline_while_another_has_the_only_connection(client: Client) {
    let server = Server::start();
    teach(&server, client);
    let proxy = Proxy::new(server.address());
    let fleet = patient(through(&proxy, client)).pool_size(1).pool_wait(ms(100));
    let one = Instance::counting(fleet, |cache| cache).hearing();
    one.value(1_000);
    // No answer, and nobody gives up.
    let name = value_name(0);
    proxy.once(move |command| command.last() == Some(&name), Fault::Pause(0, secs(2)));
    thread::scope(|s| {
        let hangs = s.spawn(|| one.got(0));
        eventually("it hangs", || {
            let commands = proxy.commands();
            commands.iter().any(|command| command.last() == Some(&value_name(0)))
        });
        let began = Instant::now();
        for id in 1..=3 {
            let asked = Instant::now();
            assert_eq!(one.got(id).1, Source::Alone);
            let took = asked.elapsed();
            assert!(took >= ms(100) && took < secs(2), "{took:?}");
        }
        assert!(began.elapsed() < secs(2), "{:?}", began.elapsed());
        let health = one.fleet.health();
        assert_eq!((health.troubles.unreachable, health.troubles.too_slow), (3, 0), "{health:?}");
        let last = health.last_trouble.unwrap();
        assert!(last.contains("are in use"), "{last}");
        // Left alone by now, with the lookup under way.
        assert_eq!(hangs.join().unwrap().0, format!("0: {}", one.loads()));
    });
    one.idle();
    tidy(&server);
}

fn a_server_that_hangs_costs_a_call_its_budget(client: Client) {
    let (server, budget) = (Server::start(), ms(300));
    let two = Instance::new(&server, client);
    (0..40).for_each(|id| drop(two.value(id)));
    let fleet = patient(address(&server, client)).budget(budget);
    let one = Instance::over(fleet, |cache| cache.loader(|load| Ok(format!("own {}", load.key()))))
        .hearing();
    for round in 0..3 {
        assert_eq!(one.got(round * 10).1, Source::Fleet);
        server.pause();
        thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    let id = round * 10 + 1;
                    let started = Instant::now();
                    assert_eq!(one.got(id).0, format!("own {id}"));
                    let took = started.elapsed();
                    assert!(took < budget + NOISE / 2, "{took:?}");
                });
            }
        });
        let slow = one.cache.stats().call_times.quantile(1.0);
        assert!(slow >= budget, "{slow:?}");
        assert_eq!(one.fleet.health().troubles.too_slow, round + 1);
        server.resume();
        // What comes late is nobody's answer.
        for id in round * 10 + 2..round * 10 + 10 {
            assert_eq!(one.got(id), (format!("{id}: {}", id + 1), Source::Fleet));
        }
    }
    one.idle();
    tidy(&server);
}

fn connections_that_were_closed_while_idle_are_noticed_by_nobody(client: Client) {
    let server = Server::builder().idle_timeout(0).start();
    let two = Instance::new(&server, client);
    (0..64).for_each(|id| drop(two.value(id)));
    let one = Instance::counting(patient(address(&server, client)), |cache| cache).hearing();
    // As many connections as there are threads, since none of them is given back meanwhile.
    let eight = |from: u64| {
        let start = Barrier::new(8);
        thread::scope(|s| {
            for id in from..from + 8 {
                let (one, start) = (&one, &start);
                s.spawn(move || {
                    start.wait();
                    assert_eq!(one.got(id), (format!("{id}: {}", id + 1), Source::Fleet));
                });
            }
        });
    };
    server.pause();
    thread::scope(|s| {
        s.spawn(|| eight(0));
        thread::sleep(ms(200));
        server.resume();
    });
    assert!(server.clients() > 2);
    server.client_kill_all();
    eight(8);
    eight(16);
    server.restart_keeping_data();
    eight(24);
    eight(32);
    server.set_config("timeout", "1");
    // Those that listen are left alone by the server.
    eventually("the others are closed", || server.clients() <= 2);
    eight(40);
    eight(48);
    let health = one.fleet.health();
    assert_eq!((one.loads(), health.last_trouble, health.opened), (0, None, 0));
    assert_eq!(one.cache.stats().gauges.absences, 0);
    one.idle();
    tidy(&server);
}
