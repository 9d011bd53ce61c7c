//! Servers that are away, or that say no.

use super::support::*;

with_each_client! {
    a_restart_without_data_is_survived
    a_server_that_hangs_is_noticed_by_its_silence
    a_full_server_is_read_from
    a_server_that_takes_no_writes_is_read_from
    a_server_that_is_loading_is_no_outage
}

fn a_restart_without_data_is_survived(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client).hearing());
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
    for (id, class) in [(100, Refusal::ReadOnly), (101, Refusal::NotPersisting)] {
        match class {
            Refusal::ReadOnly => server.make_readonly(),
            _ => server.make_misconf(),
        }
        let three = Instance::new(&server, client);
        assert_eq!(three.got(7), ("7: 1".into(), Source::Fleet), "{class:?}");
        assert_eq!(three.got(id).1, Source::Alone, "{class:?}");
        assert_eq!(three.cache.invalidate(&7).unwrap_err().refusal(), Some(class));
        let health = three.fleet.health();
        assert!(health.troubles.refused(class) >= 2 && !health.reads_open, "{health:?}");
        match class {
            Refusal::ReadOnly => server.make_writable(),
            _ => server.end_misconf(),
        }
        let stored = || server.command(&[b"EXISTS", &value_name(id)[..]]) == Resp::Integer(1);
        eventually("values are stored again", || {
            three.cache.invalidate(&id).is_ok() && three.get(id).is_ok() && stored()
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
