//! Connections that break, hang, or carry something else.

use std::sync::atomic::AtomicBool;

use super::support::*;

with_each_client! {
    somebody_else_at_the_address_is_said
    trouble_at_any_step_costs_nobody_the_value_and_no_second_load
    answers_that_were_lost_are_asked_for_again_and_nothing_is_done_twice
    a_late_answer_is_nobody_elses
    another_keys_value_on_a_connection_out_of_step_is_found_out
    bytes_that_nobody_asked_for_are_nobodys_answer
    an_answer_that_drips_costs_a_call_its_budget
    a_command_that_was_cut_off_is_not_carried_on_by_the_next_one
    a_storm_of_faults_harms_no_answer_and_leaves_nothing_behind
}

fn somebody_else_at_the_address_is_said(client: Client) {
    let web = |_: &Call| Action::Reply(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    let stub = Stub::new(web);
    let one = Instance::at(&stub.url(), client, |key| Ok(format!("page {key}").into()));
    for id in 0..5 {
        assert_eq!(one.got(id), (format!("page {id}"), Source::Alone));
    }
    let health = one.fleet.health();
    assert!(health.reads_open && health.troubles.garbled >= 3, "{health:?}");
    let last = health.last_trouble.unwrap();
    assert!(last.contains("HTTP/1.1 400"), "{last}");
}

/// What is expected of an answer that was spoilt.
fn spoilt() -> Vec<(&'static str, Fault)> {
    let http = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
    vec![
        ("not sent", Fault::Unsent),
        ("lost", Fault::Cut(0)),
        ("cut off", Fault::Cut(2)),
        ("of HTTP", Fault::Replace(http)),
        ("random", Fault::Replace(b"\x00\xff\x13\x37".to_vec())),
        ("of another type", Fault::Replace(b"+OK\r\n".to_vec())),
        ("after something else", Fault::Before(b"$2\r\nhi\r\n".to_vec())),
        ("with something behind it", Fault::After(b":1\r\n".to_vec())),
        ("never there", Fault::Stall(0)),
        ("half there", Fault::Stall(2)),
        ("closed in an array", Fault::Replace(b"*2\r\n:1\r\n".to_vec())),
    ]
}

fn trouble_at_any_step_costs_nobody_the_value_and_no_second_load(client: Client) {
    let server = Server::start();
    teach(&server, client);
    thread::scope(|s| {
        for (nth, step) in (1..).zip(["epoch", "PTTL", "GET", "acquire", "commit"]) {
            let server = &server;
            s.spawn(move || trouble_at(step, nth * 100, server, client));
        }
    });
    tidy(&server);
}

fn trouble_at(step: &'static str, first: u64, server: &Server, client: Client) {
    let proxy = Proxy::new(server.address());
    for (id, (what, fault)) in (first..).zip(spoilt()) {
        let what = format!("the answer to {step} is {what}");
        let fleet = patient(through(&proxy, client)).io_timeout(ms(500));
        let one = Instance::counting(fleet, |cache| cache).hearing();
        let two = Instance::new(server, client);
        match step {
            "PTTL" | "GET" => proxy.once(named(step), fault.clone()),
            _ => proxy.once(script(step), fault.clone()),
        }
        let start = Barrier::new(8);
        thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    start.wait();
                    assert_eq!(one.value(id), format!("{id}: 1"), "{what}");
                });
            }
        });
        assert_eq!(one.loads(), 1, "{what}");
        let (stats, health) = (one.cache.stats(), one.fleet.health());
        assert_eq!((stats.gauges.absences, stats.failed), (0, 0), "{what}");
        let troubles = health.troubles;
        let count = troubles.unreachable + troubles.too_slow + troubles.garbled;
        assert!(count <= 2, "{what}: {troubles:?}");
        assert_eq!(stats.degraded + stats.fleet_writes_failed, count.min(1), "{what}");
        assert!(!health.reads_open && !health.writes_open, "{what}");
        // What was lost is asked for again; and a text may have been stored since it was asked
        // how long it stays.
        let harmless = matches!(fault, Fault::Unsent | Fault::Cut(_));
        let text = step == "GET" && fault == Fault::Replace(b"+OK\r\n".to_vec());
        assert!(count > 0 || harmless || text, "{what}");
        if count == 0 {
            assert_eq!(stored(server, id).unwrap(), format!("{id}: 1"), "{what}");
        }
        assert_eq!(holder(server, id), None, "{what}");
        proxy.heal();
        // Either there, or loaded anew, but no wait for anybody.
        assert!(two.got(id).0.starts_with(&format!("{id}: ")), "{what}");
        let next = 10_000 + id;
        assert_eq!(one.got(next).1, Source::Loaded, "{what}");
        one.idle();
    }
}

fn answers_that_were_lost_are_asked_for_again_and_nothing_is_done_twice(client: Client) {
    let server = Server::start();
    teach(&server, client);
    let proxy = Proxy::new(server.address());
    let one = Instance::counting(patient(through(&proxy, client)), |cache| cache).hearing();
    let two = Instance::new(&server, client).hearing();
    one.value(1_000);
    two.value(1_001);
    for (id, step) in (0..).zip(["acquire", "commit"]) {
        // Executed, and nobody was told.
        proxy.once(script(step), Fault::Cut(0));
        assert_eq!(one.got(id).1, Source::Loaded, "{step}");
        assert_eq!((holder(&server, id), two.got(id).1), (None, Source::Fleet), "{step}");
    }
    assert_eq!((one.loads(), one.cache.stats().leases_lost), (3, 0));
    proxy.once(script("put"), Fault::Cut(0));
    one.cache.put(&7, String::from("put")).unwrap();
    assert_eq!(stored(&server, 7).unwrap(), "put");
    proxy.once(script("invalidate"), Fault::Cut(0));
    one.cache.invalidate(&7).unwrap();
    assert_eq!(stored(&server, 7), None);
    assert_eq!(one.fleet.health().last_trouble, None);
    tidy(&server);
}

fn a_late_answer_is_nobody_elses(client: Client) {
    let server = Server::start();
    let two = Instance::new(&server, client);
    (0..200).for_each(|id| drop(two.value(id)));
    let proxy = Proxy::new(server.address());
    let fleet = patient(through(&proxy, client)).io_timeout(ms(60)).pool_size(1);
    let one =
        Instance::over(fleet, |cache| cache.loader(|load| Ok(format!("{}: own", load.key()))))
            .hearing();
    let mut slow = 0;
    for (round, id) in (0..200).step_by(2).enumerate() {
        if round % 4 == 3 {
            // Not so often in a row that it would be left alone.
            // On a machine that is slow, these may be too late, too.
            for id in [id, id + 1] {
                let right = [format!("{id}: own"), format!("{id}: {}", id + 1)];
                assert!(right.contains(&one.value(id)));
            }
            continue;
        }
        let late = Fault::Pause([0, 1, 9, 60][round % 4], ms(90));
        let (name, chosen) = (value_name(id), ["PTTL", "GET"][round % 2]);
        let name = move |command: &[Vec<u8>]| named(chosen)(command) && command[1] == name;
        proxy.once(name, late);
        let first = one.value(id);
        slow += u64::from(first == format!("{id}: own"));
        assert!(first == format!("{id}: own") || first == format!("{id}: {}", id + 1), "{first}");
        // Over a connection of its own, while the late answer is on its way.
        let (next, id) = (one.got(id + 1), id + 1);
        assert!(
            next.0 == format!("{id}: own") || next.0 == format!("{id}: {}", id + 1),
            "{next:?}"
        );
    }
    assert!(slow >= 60, "{slow}");
    // Each of them has cost its connection; where three came in a row there was a pause.
    let late = one.fleet.health().troubles.too_slow;
    assert!(late >= 30 && proxy.opened() as u64 > late, "{late} of {}", proxy.opened());
    assert_eq!(one.fleet.health().report.misplaced, 0);
    one.idle();
    tidy(&server);
}

fn another_keys_value_on_a_connection_out_of_step_is_found_out(client: Client) {
    let server = Server::start();
    let two = Instance::new(&server, client);
    (0..3).for_each(|id| drop(two.value(id)));
    let proxy = Proxy::new(server.address());
    let one = Instance::counting(patient(through(&proxy, client)), |cache| cache).hearing();
    one.value(1_000);
    let other = server.command(&[b"GET", &value_name(2)[..]]);
    let foreign = [b":600000\r\n".to_vec(), other.to_bytes()].concat();
    // As if two answers had been left over from somebody else's question.
    let name = value_name(0);
    proxy.once(move |command| named("PTTL")(command) && command[1] == name, Fault::Before(foreign));
    assert_eq!(one.got(0), ("0: 2".into(), Source::Alone));
    assert_eq!(one.fleet.health().troubles.garbled, 1);
    // One that fits in number, too.
    let name = value_name(1);
    let replace = Fault::Replace(other.to_bytes());
    proxy.once(move |command| named("GET")(command) && command[1] == name, replace);
    assert_eq!(one.got(1), ("1: 2".into(), Source::Fleet));
    assert_eq!(one.fleet.health().report.misplaced, 1);
    assert_eq!(one.value(2), "2: 3");
    assert!(one.loads() <= 2);
    one.idle();
    tidy(&server);
}

fn bytes_that_nobody_asked_for_are_nobodys_answer(client: Client) {
    let server = Server::start();
    let two = Instance::new(&server, client).hearing();
    (0..40).for_each(|id| drop(two.value(id)));
    let proxy = Proxy::new(server.address());
    let one = Instance::counting(patient(through(&proxy, client)), |cache| cache).hearing();
    let stray: [&[u8]; 5] = [
        b":600000\r\n",
        b"$-1\r\n",
        b"-ERR something\r\n",
        b"*3\r\n$7\r\nmessage\r\n$11\r\nonefill:ev2\r\n$2\r\nhi\r\n",
        b"HTTP/1.1 200 OK\r\n",
    ];
    for (round, bytes) in (0..).zip(stray) {
        assert_eq!(one.value(round * 8), format!("{}: {}", round * 8, round * 8 + 1));
        // To the one that listens, too.
        proxy.inject(bytes);
        for id in round * 8 + 1..round * 8 + 8 {
            let value = one.value(id);
            let right = [format!("{id}: {}", id + 1), format!("{id}: {}", one.loads())];
            assert!(right.contains(&value), "{value} after {}", bytes.escape_ascii());
        }
        eventually("it is heard", || one.fleet.health().hears);
    }
    // Each connection that there was is given up once.
    assert!(one.loads() < 20, "{}", one.loads());
    two.cache.put(&3, String::from("newer")).unwrap();
    eventually("notices come", || one.value(3) == "newer");
    one.idle();
    tidy(&server);
}

fn an_answer_that_drips_costs_a_call_its_budget(client: Client) {
    let (server, budget) = (Server::start(), ms(200));
    let two = Instance::with(&server, client, |_| Ok("x".repeat(400).into()));
    (0..8).for_each(|id| drop(two.value(id)));
    let proxy = Proxy::new(server.address());
    let fleet = patient(through(&proxy, client)).budget(budget);
    let one = Instance::over(fleet, |cache| cache.loader(|_| Ok(String::from("own")))).hearing();
    // The whole of it would take twenty seconds, and no read of it more than a moment.
    proxy.set(Mode::Drip { bytes: 1, every: ms(50) });
    for id in 0..3 {
        let started = Instant::now();
        assert_eq!(one.got(id), ("own".into(), Source::Alone));
        let took = started.elapsed();
        assert!(took >= budget && took < budget + secs(5), "{took:?}");
    }
    let health = one.fleet.health();
    assert_eq!((health.troubles.too_slow, health.reads_open), (3, true), "{health:?}");
    let started = Instant::now();
    assert_eq!(one.cache.with().timeout(secs(5)).get(&3).unwrap().value().unwrap(), "own");
    assert!(started.elapsed() < secs(5));
    proxy.heal();
    eventually("values are shared again", || {
        one.cache.invalidate(&7).is_ok() && two.get(7).is_ok() && one.got(7).0.len() == 400
    });
    one.idle();
    tidy(&server);
}

fn a_command_that_was_cut_off_is_not_carried_on_by_the_next_one(client: Client) {
    let server = Server::start();
    teach(&server, client);
    let proxy = Proxy::new(server.address());
    let large = "x".repeat(24 << 20);
    let fleet = patient(through(&proxy, client)).io_timeout(ms(700)).pool_size(1);
    let value = large.clone();
    let one = Instance::over(fleet, |cache| {
        cache.max_stored(32 << 20).loader(move |load| match load.key() {
            0 => Ok(value.clone()),
            key => Ok(format!("page {key}")),
        })
    })
    .hearing();
    one.value(1_000);
    // More than fits into what lies between: it is not sent to its end.
    proxy.set(Mode::Freeze);
    let error = one.cache.put(&0, large.clone()).unwrap_err();
    assert!(matches!(error, TierError::TooSlow { .. }), "{error:?}");
    proxy.heal();
    assert_eq!(stored(&server, 0), None);
    eventually("the connection is given up", || {
        one.value(1) == "page 1" && one.cache.put(&2, String::from("small")).is_ok()
    });
    assert_eq!(stored(&server, 2).unwrap(), "small");
    assert_eq!(one.value(0), large, "in this process it was put");
    one.idle();
    tidy(&server);
}

fn a_storm_of_faults_harms_no_answer_and_leaves_nothing_behind(client: Client) {
    const KEYS: u64 = 20;
    let server = Server::start();
    let proxy = Proxy::new(server.address());
    let rows = Arc::new([const { AtomicUsize::new(0) }; KEYS as usize]);
    let instances = [(); 3].map(|()| {
        let rows = Arc::clone(&rows);
        let fleet = Redis::over(through(&proxy, client)).lease(secs(2)).lease_cap(secs(2));
        Instance::over(fleet, |cache| {
            cache.workers(2).loser_wait(ms(200)).loader(move |load: &Load<'_, u64, String>| {
                Ok(format!("{} {}", load.key(), rows[*load.key() as usize].load(SeqCst)))
            })
        })
    });
    let over = AtomicBool::new(false);
    thread::scope(|s| {
        for one in &instances {
            for _ in 0..3 {
                let (over, rows) = (&over, &rows);
                s.spawn(move || {
                    let mut draw = fastrand::Rng::new();
                    while !over.load(SeqCst) {
                        let id = draw.u64(..KEYS);
                        match draw.u8(..20) {
                            0 => {
                                let row = rows[id as usize].fetch_add(1, SeqCst) + 1;
                                if one.cache.invalidate(&id).is_ok() {
                                    let seen = row_of(&one.value(id), id);
                                    assert!(seen >= row, "{seen} after {row}");
                                }
                            }
                            1 => drop(one.cache.invalidate_all()),
                            _ => {
                                let started = Instant::now();
                                row_of(&one.value(id), id);
                                assert!(started.elapsed() < NOISE, "{:?}", started.elapsed());
                            }
                        }
                        thread::sleep(ms(1));
                    }
                });
            }
        }
        let mut draw = fastrand::Rng::new();
        let faults = spoilt();
        let began = Instant::now();
        while began.elapsed() < ms(2_500) {
            match draw.u8(..10) {
                0 => drop(proxy.cut()),
                1 => drop(server.client_kill_all()),
                2 => server.script_flush(),
                3 => proxy.inject(b"+SPURIOUS\r\n"),
                4 => proxy.set(Mode::BlackHole),
                5 => proxy.set(Mode::HangUp),
                6 => proxy.set(Mode::Drip { bytes: 3, every: ms(5) }),
                _ => proxy.once(|_| true, faults[draw.usize(..faults.len())].1.clone()),
            }
            thread::sleep(ms(draw.u64(1..30)));
            if draw.bool() {
                proxy.set(Mode::Pass);
            }
        }
        proxy.heal();
        over.store(true, SeqCst);
    });
    for one in &instances {
        one.idle();
        assert!(one.fleet.health().troubles != Default::default());
    }
    for one in &instances {
        eventually("the tier is in use again", || {
            one.cache.invalidate_all().is_ok() && one.fleet.health().hears
        });
    }
    for id in 0..KEYS {
        let row = rows[id as usize].fetch_add(1, SeqCst) + 1;
        instances[0].cache.invalidate(&id).unwrap();
        for one in &instances {
            eventually("all see the same", || row_of(&one.value(id), id) == row);
        }
    }
    tidy(&server);
}

/// The row that a value was made of, which must be one of its key.
#[track_caller]
fn row_of(value: &str, id: u64) -> usize {
    let (key, row) = value.split_once(' ').unwrap();
    assert_eq!(key, id.to_string());
    row.parse().unwrap()
}
