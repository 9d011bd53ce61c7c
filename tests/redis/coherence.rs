//! What other processes change, and how long it takes to be known.

use super::support::*;

with_each_client! {
    an_invalidation_reaches_the_copies_of_others_even_after_a_silence
    an_invalidation_of_a_table_reaches_all_who_have_it
    values_of_a_lost_epoch_are_not_trusted
    a_cut_subscription_is_noticed_and_mended
    a_message_for_somebody_else_is_ignored
    what_was_loaded_before_a_change_elsewhere_is_kept_nowhere
    a_refresh_that_was_overtaken_by_an_invalidation_is_kept_nowhere
    nothing_of_a_key_is_left_by_an_invalidation
    what_was_put_just_before_everything_is_invalidated_is_gone
    a_copy_ends_with_its_record
    what_changed_while_nobody_could_be_heard_is_not_served_afterwards
}

fn an_invalidation_reaches_the_copies_of_others_even_after_a_silence(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client).hearing());
    one.got(7);
    // Short, so that the wait for a message has ended a few times; and long, so that the connection
    // has had to prove itself.
    for silence in [ms(900), ms(6_500)] {
        // The notice of what was loaded may come after that was read, and put it in doubt: once.
        eventually("it is a copy", || two.got(7) == (one.got(7).0, Source::Local));
        let heard = [one.heard(), two.heard()];
        thread::sleep(silence);
        eventually("it is still a copy", || two.got(7) == (one.got(7).0, Source::Local));
        one.cache.invalidate(&7).unwrap();
        eventually("the copy is gone", || two.got(7).1 != Source::Local);
        assert_eq!([one.heard(), two.heard()], heard, "no session was lost by being silent");
    }
    assert_eq!(one.fleet.health().report.strange, 0);
    tidy(&server);
}

fn an_invalidation_of_a_table_reaches_all_who_have_it(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client).hearing());
    for id in 0..5 {
        one.got(id);
        assert_eq!(two.got(id).1, Source::Fleet);
    }
    one.cache.invalidate_all().unwrap();
    assert_eq!(one.got(0).1, Source::Loaded);
    eventually("the copies are gone", || {
        (0..5).for_each(|id| drop(two.got(id)));
        two.loads.load(SeqCst) + one.loads.load(SeqCst) == 10
    });
    tidy(&server);
}

fn values_of_a_lost_epoch_are_not_trusted(client: Client) {
    let server = Server::start();
    let one = Instance::new(&server, client);
    assert_eq!(one.got(7).0, "7: 1");
    server.command(&[b"DEL", &Namespace::new("onefill").epoch(&Table::new("page"))[..]]);
    let two = Instance::with(&server, client, |_| Ok(String::from("of the new epoch").into()));
    assert_eq!(two.got(7), ("of the new epoch".into(), Source::Loaded));
    let three = Instance::new(&server, client);
    assert_eq!(three.got(7), ("of the new epoch".into(), Source::Fleet));
    tidy(&server);
}

fn a_cut_subscription_is_noticed_and_mended(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client).hearing());
    one.got(7);
    let before = two.got(7);
    for round in 0..3 {
        let heard = two.heard();
        server.client_kill_all();
        eventually("it is heard again", || two.heard() > heard && two.fleet.health().hears);
        // What was missed meanwhile was in doubt, and is asked for.
        if round == 0 {
            server.command(&[b"DEL", &value_name(7)[..]]);
            one.got(8);
            assert_eq!(two.got(8).1, Source::Fleet, "and dead connections are not used");
        }
    }
    assert_ne!(two.got(7), (before.0, Source::Local));
    one.got(9);
    assert_eq!(two.got(9).1, Source::Fleet);
    one.cache.put(&9, String::from("newer")).unwrap();
    eventually("notices come", || two.got(9).0 == "newer");
    assert_eq!(two.fleet.health().report.deaf, None);
    tidy(&server);
}

fn a_message_for_somebody_else_is_ignored(client: Client) {
    let server = Server::start();
    let one = Instance::new(&server, client).hearing();
    one.got(7);
    server.command(&["PUBLISH", "onefill:ev", "hello"]);
    server.command(&["PUBLISH", "onefill:ev", ""]);
    server.command(&["PUBLISH", "onefill:other", "hello"]);
    eventually("it is counted", || one.fleet.health().report.strange == 2);
    assert_eq!(one.got(7).1, Source::Local);
    assert!(one.fleet.health().hears);
    tidy(&server);
}

fn what_was_loaded_before_a_change_elsewhere_is_kept_nowhere(client: Client) {
    let server = Server::start();
    type Change = fn(&Instance, u64);
    let changes: [(&str, Change); 3] = [
        ("an invalidation", |two, id| two.cache.invalidate(&id).unwrap()),
        ("an invalidation of all", |two, _| two.cache.invalidate_all().unwrap()),
        ("a put", |two, id| two.cache.put(&id, String::from("new")).unwrap()),
    ];
    for (id, (what, change)) in (0..).zip(changes) {
        let stage = Stage::new();
        let one = Instance::with(&server, client, stage.loader()).hearing();
        let [two, three] =
            [(); 2].map(|()| Instance::with(&server, client, |_| Ok(String::from("new").into())));
        thread::scope(|s| {
            let before = s.spawn(|| one.value(id));
            stage.begun();
            change(&two, id);
            stage.end_with("old");
            assert_eq!(before.join().unwrap(), "old", "{what}");
        });
        // At once in the shared tier, and in a process that has loaded it itself.
        assert_eq!(three.value(id), "new", "{what}");
        thread::scope(|s| {
            let after = s.spawn(|| one.value(id));
            stage.end_with("new");
            assert_eq!(after.join().unwrap(), "new", "{what}");
        });
        assert_eq!(stored(&server, id).unwrap(), "new", "{what}");
        let lost = one.cache.stats().leases_lost;
        assert_eq!(lost, u64::from(what != "an invalidation of all"), "{what}");
        assert!(two.loads() + stage.loads() <= 2);
        [&one, &two, &three].iter().for_each(|instance| instance.idle());
    }
    tidy(&server);
}

fn a_refresh_that_was_overtaken_by_an_invalidation_is_kept_nowhere(client: Client) {
    let (server, stage) = (Server::start(), Stage::new());
    let load = stage.loader();
    let fleet = patient(address(&server, client));
    let one = Instance::over(fleet, |cache| {
        let cache = cache.workers(1).ttl(ms(50)).stale_while_revalidate(secs(600));
        cache.loader(move |asked| load(*asked.key()))
    })
    .hearing();
    let two = Instance::with(&server, client, |_| Ok(String::from("new").into()));
    stage.end_with("first");
    assert_eq!(one.value(7), "first");
    stage.begun();
    thread::sleep(ms(80));
    assert!(one.get(7).unwrap().is_stale());
    stage.begun();
    two.cache.invalidate(&7).unwrap();
    stage.end_with("old");
    one.idle();
    assert_eq!(stored(&server, 7), None);
    assert_eq!(two.value(7), "new");
    eventually("it is asked for", || {
        // Its own copy is in doubt, and the one in the shared tier is newer.
        one.value(7) == "new"
    });
    assert_eq!(one.cache.stats().leases_lost, 1);
    tidy(&server);
}

fn nothing_of_a_key_is_left_by_an_invalidation(client: Client) {
    let server = Server::start();
    let absent = Arc::new(AtomicUsize::new(0));
    let says = Arc::clone(&absent);
    let loads = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&loads);
    let one = Instance::over(patient(address(&server, client)), |cache| {
        let cache = cache.ttl(ms(50)).stale_while_revalidate(secs(600)).absent_ttl(secs(600));
        cache.loader(move |_| {
            count.fetch_add(1, SeqCst);
            let absent = says.load(SeqCst) == 1;
            Ok(if absent { Fill::absent() } else { Fill::new(String::from("tea")) })
        })
    })
    .hearing();
    one.value(1_000);
    let before = server.keys();
    for state in ["fresh", "stale", "absent", "being loaded"] {
        absent.store(usize::from(state == "absent"), SeqCst);
        match state {
            "being loaded" => drop(dead_holder(&server, 7, secs(60))),
            _ => drop(one.get(7).unwrap()),
        }
        if state == "stale" {
            thread::sleep(ms(60));
        }
        absent.store(0, SeqCst);
        assert!(server.keys().len() > before.len(), "{state}");
        one.cache.invalidate(&7).unwrap();
        assert_eq!(server.keys(), before, "{state}");
        let loaded = loads.load(SeqCst);
        let answer = one.get(7).unwrap();
        assert_eq!((answer.source(), answer.is_absent()), (Source::Loaded, false), "{state}");
        assert_eq!(loads.load(SeqCst), loaded + 1, "{state}");
        one.cache.invalidate(&7).unwrap();
    }
    tidy(&server);
}

fn what_was_put_just_before_everything_is_invalidated_is_gone(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client).hearing());
    for round in 0..300 {
        one.cache.put(&0, format!("put {round}")).unwrap();
        one.cache.invalidate_all().unwrap();
        assert!(one.cache.peek(&0).is_none(), "{round}");
        if round % 10 == 0 {
            assert_eq!(one.got(0).1, Source::Loaded, "{round}");
        }
    }
    one.cache.put(&0, String::from("afterwards")).unwrap();
    assert_eq!(one.value(0), "afterwards");
    eventually("notices come", || two.value(0) == "afterwards");
    tidy(&server);
}

fn a_copy_ends_with_its_record(client: Client) {
    let (server, ttl) = (Server::start(), ms(1_500));
    let loads = Arc::new(AtomicUsize::new(0));
    let [one, two] = [(); 2].map(|()| {
        let loads = Arc::clone(&loads);
        let load =
            move |_: &Load<'_, u64, String>| Ok((loads.fetch_add(1, SeqCst) + 1).to_string());
        Instance::over(patient(address(&server, client)), |cache| cache.ttl(ttl).loader(load))
            .hearing()
    });
    assert_eq!(one.value(7), "1");
    let over = Instant::now() + ttl;
    thread::sleep(ttl / 2);
    let (first, took) = (two.got(7), Instant::now());
    // On a very slow machine it is over already.
    assert!(first == ("1".into(), Source::Fleet) || took >= over, "{first:?}");
    loop {
        let (asked, value) = (Instant::now(), two.value(7));
        if value != "1" {
            break;
        }
        // Of a record, what is left is told in whole milliseconds; the clock of hits is a tick behind.
        assert!(asked < over + ms(15), "served {:?} after its end", asked - over);
        thread::sleep(ms(10));
    }
    assert_eq!(one.value(7), "2");
    assert_eq!(loads.load(SeqCst), 2);
    tidy(&server);
}

fn what_changed_while_nobody_could_be_heard_is_not_served_afterwards(client: Client) {
    let server = Server::start();
    let proxy = Proxy::new(server.address());
    let source = Arc::new(AtomicUsize::new(1));
    let [one, two] = [address(&server, client), through(&proxy, client)].map(|address| {
        let source = Arc::clone(&source);
        let load = move |_: &Load<'_, u64, String>| Ok(source.load(SeqCst).to_string());
        Instance::over(patient(address).pool_wait(ms(200)), |cache| cache.loader(load)).hearing()
    });
    assert_eq!((one.value(7), two.value(7)), ("1".into(), "1".into()));
    proxy.set(Mode::Refuse);
    proxy.cut();
    eventually("it is noticed", || !two.fleet.health().hears);
    source.store(2, SeqCst);
    one.cache.invalidate(&7).unwrap();
    for _ in 0..3 {
        assert_eq!(two.value(7), "2", "in doubt, and loaded alone");
    }
    assert!(two.cache.invalidate(&8).is_err(), "nobody was told");
    source.store(3, SeqCst);
    one.cache.invalidate(&7).unwrap();
    proxy.heal();
    eventually("it is heard again", || two.fleet.health().hears);
    let heard = Instant::now();
    // What was loaded meanwhile is in doubt once more; while the tier is left alone, nobody can say.
    eventually("it is asked for", || two.value(7) == "3");
    assert!(heard.elapsed() < NOISE);
    let health = two.fleet.health();
    assert!(health.troubles.unreachable >= 1 && health.report.heard >= 2, "{health:?}");
    tidy(&server);
}

/// Once, since it takes its time, and since the ear is the same with either client.
#[test]
fn a_subscription_that_went_dumb_is_found_out_and_what_it_missed_is_asked_for() {
    let client = Client::default();
    let server = Server::start();
    let proxy = Proxy::new(server.address());
    let one = Instance::new(&server, client).hearing();
    let two = Instance::counting(patient(through(&proxy, client)), |cache| cache).hearing();
    one.value(7);
    eventually("it has a copy", || two.got(7).1 == Source::Local);
    // As if something between had forgotten the connection: nothing comes, and nobody says so.
    proxy.set(Mode::BlackHole);
    one.cache.put(&8, String::from("dumb from here on")).unwrap();
    eventually("the message is lost", || proxy.open() >= 1);
    one.cache.put(&7, String::from("newer")).unwrap();
    thread::sleep(ms(100));
    proxy.set(Mode::Pass);
    assert_eq!(two.got(7), ("7: 1".into(), Source::Local), "it cannot know");
    let (lost, heard) = (Instant::now(), two.heard());
    eventually("it is asked for", || two.value(7) == "newer");
    // Five seconds of silence, and two for an answer.
    assert!(lost.elapsed() < secs(7) + NOISE, "{:?}", lost.elapsed());
    eventually("it is heard again", || two.heard() > heard);
    tidy(&server);
}
