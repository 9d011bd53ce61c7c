//! Rights, and the lack of them.

use super::support::*;

with_each_client! {
    a_missing_password_is_said
    the_rights_in_the_manual_are_enough
    without_the_right_to_the_channel_values_are_shared_all_the_same
    whoever_may_not_touch_our_keys_is_told_so
    whoever_may_not_write_is_told_so_and_loads_alone
}

fn a_missing_password_is_said(client: Client) {
    let server = Server::builder().password("sesame").start();
    let addresses = [
        (address(&server, client), "NOAUTH"),
        (address(&server, client).password("simsalabim"), "WRONGPASS"),
    ];
    for (address, code) in addresses {
        let fleet = patient(address).pool_wait(secs(1)).build().unwrap();
        let one = Instance::on(fleet, |cache| cache.loader(|load| Ok(load.key().to_string())));
        for id in 0..10 {
            assert_eq!(one.got(id), (id.to_string(), Source::Alone));
        }
        let health = one.fleet.health();
        assert!(health.misconfigured && health.reads_open && !health.hears, "{health:?}");
        assert!(health.troubles.refused(Refusal::Denied) >= 1, "{health:?}");
        assert!(health.last_trouble.as_ref().unwrap().contains(code), "{health:?}");
        eventually("the ear says so, too", || {
            one.fleet.health().report.deaf.is_some_and(|deaf| deaf.contains(code))
        });
    }
    let right = patient(address(&server, client).password("sesame")).build().unwrap();
    let one =
        Instance::on(right, |cache| cache.loader(|load| Ok(load.key().to_string()))).hearing();
    assert_eq!(one.got(1).1, Source::Loaded);
    tidy(&server);
}

/// As in the documentation of `fleet::redis`.
const RIGHTS: &str = "resetchannels ~onefill:* &onefill:* +get +set +del +pttl +pexpire +publish \
                      +subscribe +eval +evalsha";

fn the_rights_in_the_manual_are_enough(client: Client) {
    let server = Server::builder().user(&format!("user app on >secret {RIGHTS}")).start();
    let [one, two] = [(); 2].map(|()| {
        let address = address(&server, client).credentials("app", "secret");
        let fleet = patient(address).build().unwrap();
        Instance::on(fleet, |cache| cache.loader(|load| Ok(load.key().to_string()))).hearing()
    });
    assert_eq!(one.got(7).1, Source::Loaded);
    assert_eq!(two.got(7).1, Source::Fleet);
    one.cache.put(&7, String::from("put")).unwrap();
    eventually("notices come", || two.got(7).0 == "put");
    two.cache.invalidate(&7).unwrap();
    two.cache.invalidate_all().unwrap();
    assert_eq!(one.get(8).unwrap().source(), Source::Loaded);
    for instance in [&one, &two] {
        assert_eq!(instance.fleet.health().last_trouble, None);
    }
    tidy(&server);
}

fn without_the_right_to_the_channel_values_are_shared_all_the_same(client: Client) {
    let user = "user app on >secret resetchannels ~onefill:* +@all";
    let server = Server::builder().user(user).start();
    let [one, two] = [(); 2].map(|()| {
        let address = address(&server, client).credentials("app", "secret");
        let fleet = patient(address).build().unwrap();
        Instance::on(fleet, |cache| cache.loader(|load| Ok(load.key().to_string())))
    });
    assert_eq!(one.got(7).1, Source::Loaded);
    assert_eq!(two.got(7).1, Source::Fleet);
    one.cache.put(&7, String::from("put")).unwrap();
    one.cache.invalidate(&7).unwrap();
    one.cache.invalidate_all().unwrap();
    let health = one.fleet.health();
    assert!(!health.hears && !health.misconfigured && health.last_trouble.is_none(), "{health:?}");
    eventually("the ear says why it is deaf", || {
        one.fleet.health().report.deaf.is_some_and(|deaf| deaf.contains("NOPERM"))
    });
    tidy(&server);
}

fn whoever_may_not_touch_our_keys_is_told_so(client: Client) {
    let user = "user app on >secret resetchannels ~other:* &* +@all";
    let server = Server::builder().user(user).start();
    let address = || address(&server, client).credentials("app", "secret");
    let one = Instance::counting(patient(address()), |cache| cache);
    for id in 0..10 {
        assert_eq!(one.got(id).1, Source::Alone);
    }
    let health = one.fleet.health();
    assert!(health.misconfigured && health.reads_open, "{health:?}");
    assert!(health.troubles.refused(Refusal::Denied) >= 1, "{health:?}");
    assert!(health.last_trouble.unwrap().contains("NOPERM"));
    assert!(one.cache.invalidate(&1).is_err());
    assert_eq!(server.keys(), [""; 0]);
    // Elsewhere it may.
    let two = Instance::counting(patient(address()).namespace("other"), |cache| cache);
    assert_eq!(two.got(1).1, Source::Loaded);
    assert_eq!(two.fleet.health().last_trouble, None);
    tidy(&server);
}

fn whoever_may_not_write_is_told_so_and_loads_alone(client: Client) {
    // Before 7.0 there are no rights to read alone; there it may not run what would write.
    let version = Server::start().info("server", "redis_version").unwrap();
    let rights = match version.starts_with("6.") {
        true => "~onefill:* +@all -eval -evalsha",
        false => "%R~onefill:* +@all",
    };
    let user = format!("user app on >secret resetchannels &onefill:* {rights}");
    let server = Server::builder().user(&user).user("user boss on >secret ~* &* +@all").start();
    let [one, two] = ["app", "boss"].map(|user| {
        let address = address(&server, client).credentials(user, "secret");
        Instance::counting(patient(address), |cache| cache)
    });
    two.value(7);
    // It may not even ask for the epoch: who has none yet would write one.
    assert_eq!([7, 8].map(|id| one.got(id).1), [Source::Alone; 2]);
    let health = one.fleet.health();
    assert!(health.misconfigured && health.troubles.refused(Refusal::Denied) >= 1, "{health:?}");
    assert!(one.cache.invalidate(&7).is_err());
    assert_eq!(stored(&server, 7).unwrap(), "7: 1");
    tidy(&server);
}
