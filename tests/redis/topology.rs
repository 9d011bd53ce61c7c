//! Several servers, and the ways to one.

use super::support::*;

with_each_client! {
    a_cluster_is_shared_like_one_server
    a_node_of_a_cluster_says_that_it_is_one
    after_a_failover_values_are_shared_through_the_other_server
    a_slot_on_the_move_is_followed_and_no_value_is_lost
    a_socket_in_the_file_system_is_as_good_as_a_port
    an_address_of_the_newer_kind_is_as_good_as_one_of_the_older
    databases_do_not_mix
}

#[cfg(feature = "tls")]
mod tls {
    use super::encrypted_both_ways_or_not_at_all;

    with_each_client! {
        encrypted_both_ways_or_not_at_all
    }
}

fn a_cluster_is_shared_like_one_server(client: Client) {
    let cluster = Cluster::start();
    let url = format!("redis-cluster://127.0.0.1:{}", cluster.nodes()[0].port());
    let loads = Arc::new(AtomicUsize::new(0));
    let [one, two] = [(); 2].map(|()| {
        let loads = Arc::clone(&loads);
        let load = move |key: u64| Ok(format!("{key}: {}", loads.fetch_add(1, SeqCst)).into());
        Instance::at(&url, client, load).hearing()
    });
    for id in 0..60 {
        assert_eq!(one.got(id).1, Source::Loaded);
        assert_eq!(two.got(id), (one.got(id).0, Source::Fleet));
    }
    assert_eq!(loads.load(SeqCst), 60);
    assert!(cluster.nodes().iter().all(|node| !node.keys().is_empty()), "on all of its nodes");
    one.cache.put(&7, String::from("put")).unwrap();
    eventually("notices come", || two.got(7).0 == "put");
    cluster.nodes().iter().for_each(Server::script_flush);
    one.cache.invalidate(&7).unwrap();
    eventually("notices come", || two.got(7).0 != "put");
    one.cache.invalidate_all().unwrap();
    assert_eq!(one.got(9).1, Source::Loaded);
    assert_eq!(one.fleet.health().last_trouble, None);
    cluster.nodes().iter().for_each(tidy);
}

fn a_node_of_a_cluster_says_that_it_is_one(client: Client) {
    let cluster = Cluster::start();
    let server = &cluster.nodes()[0];
    let one = Instance::new(server, client);
    for id in 0..20 {
        assert_eq!(one.got(id).1, Source::Alone);
        if one.fleet.health().misconfigured {
            break;
        }
    }
    let health = one.fleet.health();
    assert!(health.misconfigured && health.troubles.refused(Refusal::Misrouted) >= 1, "{health:?}");
    assert!(health.last_trouble.unwrap().contains("redis-cluster://"));
}

fn after_a_failover_values_are_shared_through_the_other_server(client: Client) {
    let sentinels = Sentinels::start();
    let addresses = sentinels.sentinels().iter().map(|one| format!("127.0.0.1:{}", one.port()));
    let addresses = addresses.collect::<Vec<_>>().join(",");
    let url = format!("redis-sentinel://{addresses}/{}", Sentinels::NAME);
    let [one, two] = [(); 2]
        .map(|()| Instance::at(&url, client, |key| Ok(format!("page {key}").into())).hearing());
    assert_eq!(one.got(7).1, Source::Loaded);
    assert_eq!(two.got(7).1, Source::Fleet);
    // One load is under way meanwhile.
    let stage = Stage::new();
    let three = Instance::at(&url, client, stage.loader()).hearing();
    thread::scope(|s| {
        let loads = s.spawn(|| three.value(8));
        stage.begun();
        sentinels.until_replicated();
        sentinels.fail_over();
        stage.end_with("tea");
        assert_eq!(loads.join().unwrap(), "tea");
    });
    assert_eq!(stage.loads(), 1);
    three.idle();
    let mut id = 1_000;
    eventually("values are shared again", || {
        id += 1;
        one.got(id).1 == Source::Loaded && two.got(id).1 == Source::Fleet
    });
    eventually("notices come", || one.fleet.health().hears && two.fleet.health().hears);
    one.cache.put(&7, String::from("put")).unwrap();
    eventually("notices come", || two.got(7).0 == "put");
    for id in [7, 8] {
        eventually("an invalidation goes through", || three.cache.invalidate(&id).is_ok());
    }
    tidy(sentinels.master());
}

fn a_slot_on_the_move_is_followed_and_no_value_is_lost(client: Client) {
    let cluster = Cluster::start();
    let url = format!("redis-cluster://127.0.0.1:{}", cluster.nodes()[0].port());
    let loads = Arc::new(AtomicUsize::new(0));
    let [one, two, three] = [(); 3].map(|()| {
        let loads = Arc::clone(&loads);
        let load = move |key: u64| Ok(format!("{key}: {}", loads.fetch_add(1, SeqCst)).into());
        Instance::at(&url, client, load).hearing()
    });
    assert_eq!(one.got(7).1, Source::Loaded);
    let slot = cluster.slot(value_name(7));
    assert_eq!(slot, cluster.slot(lease_name(7)));
    let elsewhere = (100..).find(|id| cluster.slot(value_name(*id)) != slot).unwrap();
    let to = (cluster.owner(slot) + 1) % 3;
    let migration = cluster.begin_migration(slot, to);
    // There still.
    assert_eq!(two.got(7), ("7: 0".into(), Source::Fleet));
    migration.move_key(value_name(7));
    // There already: whoever does not know that is told, by an `ASK`.
    assert_eq!(three.got(7), ("7: 0".into(), Source::Fleet));
    // Of the two names of a key one is missing, and may be on its way: `TRYAGAIN`.
    let error = one.cache.invalidate(&7).unwrap_err();
    assert_eq!(error.refusal(), Some(Refusal::Incomplete), "{error}");
    assert_eq!(two.value(7), "7: 0", "as the error has said");
    assert_eq!(one.got(7), ("7: 1".into(), Source::Alone), "not what it has invalidated");
    assert_eq!(one.got(elsewhere).1, Source::Loaded, "one slot is not all of them");
    assert_eq!(two.got(elsewhere).1, Source::Fleet);
    migration.finish();
    cluster.until_ok();
    assert_eq!(cluster.owner(slot), to);
    // Nobody was told: it is found out, by a `MOVED`.
    for instance in [&one, &two, &three] {
        instance.cache.put(&7, String::from("afterwards")).unwrap();
        for other in [&one, &two, &three] {
            eventually("notices come", || other.value(7) == "afterwards");
        }
        instance.cache.invalidate(&7).unwrap();
        let (count, answer) = (loads.load(SeqCst), instance.got(7));
        assert_eq!(answer, (format!("7: {count}"), Source::Loaded));
        let health = instance.fleet.health();
        assert!(!health.misconfigured && !health.reads_open, "{health:?}");
        instance.idle();
    }
    assert!(cluster.nodes()[to].raw_keys().contains(&value_name(7)));
    cluster.nodes().iter().for_each(tidy);
}

fn a_socket_in_the_file_system_is_as_good_as_a_port(client: Client) {
    let server = Server::builder().password("sesame").start();
    let path = server.socket();
    let address = Address::unix(&path).password("sesame").client(client);
    let one = Instance::counting(patient(address).pool_wait(secs(1)), |cache| cache).hearing();
    let url = format!("unix://{}?password=sesame", path.display());
    let two = Instance::at(&url, client, |_| Err("no")).hearing();
    assert_eq!(one.got(7).1, Source::Loaded);
    assert_eq!(two.got(7), ("7: 1".into(), Source::Fleet));
    one.cache.put(&7, String::from("put")).unwrap();
    eventually("notices come", || two.value(7) == "put");
    server.kill9();
    assert_eq!(one.got(8).1, Source::Alone);
    server.restart();
    let mut id = 100;
    eventually("values are stored again", || {
        id += 1;
        one.got(id).1 == Source::Loaded
    });
    tidy(&server);
}

fn an_address_of_the_newer_kind_is_as_good_as_one_of_the_older(client: Client) {
    if !ipv6_available() {
        return;
    }
    let server = Server::builder().ipv6().start();
    let url = server.url();
    assert!(url.contains("[::1]"), "{url}");
    let one = Instance::at(&url, client, |key| Ok(format!("page {key}").into())).hearing();
    let plain = Address::tcp("::1", server.port()).client(client);
    let two = Instance::counting(patient(plain), |cache| cache).hearing();
    assert_eq!(one.got(7).1, Source::Loaded);
    assert_eq!(two.got(7), ("page 7".into(), Source::Fleet));
    tidy(&server);
}

fn databases_do_not_mix(client: Client) {
    let server = Server::start();
    let at = |url: &str| {
        let one = Instance::at(url, client, |_| Err("no")).hearing();
        one.cache.put(&7, url.to_string()).unwrap();
        one
    };
    let [zero, three] = ["", "3"].map(|database| format!("{}{database}", server.url()));
    let (one, two) = (at(&zero), at(&three));
    for (url, instance) in [(&zero, &one), (&three, &two)] {
        let other = Instance::at(url, client, |_| Err("no")).hearing();
        assert_eq!(other.got(7), (url.clone(), Source::Fleet));
        assert_eq!(instance.got(7).0, *url);
        assert_eq!(instance.fleet.health().last_trouble, None);
    }
    // A server has sixteen of them.
    let none = patient(address(&server, client).database(99)).pool_wait(ms(300));
    let none = Instance::counting(none, |cache| cache);
    assert_eq!(none.got(7).1, Source::Alone);
    let last = none.fleet.health().last_trouble.unwrap();
    assert!(last.contains("out of range"), "{last}");
    tidy(&server);
}

#[cfg(feature = "tls")]
fn encrypted_both_ways_or_not_at_all(client: Client) {
    use onefill::fleet::redis::{Tls, TlsBuilder};

    if !Server::tls_available() {
        return;
    }
    let server = Server::builder().tls_both_ways().start();
    let read = |path: &std::path::Path| std::fs::read(path).unwrap();
    let files = server.certificates();
    let trusting = || Tls::new().only_added().authority_pem(&read(&files.authority)).unwrap();
    let shown = |tls: TlsBuilder| tls.client_pem(&read(&files.client), &read(&files.client_key));
    let at = |tls: TlsBuilder, host: &str| {
        let address = Address::tcp(host, server.port()).tls(tls.build().unwrap()).client(client);
        patient(address).pool_wait(secs(1))
    };
    let known = |host| at(shown(trusting()).unwrap(), host);
    let one = Instance::counting(known("127.0.0.1"), |cache| cache).hearing();
    let two = Instance::counting(known("localhost"), |cache| cache).hearing();
    assert_eq!(one.got(7).1, Source::Loaded);
    assert_eq!(two.got(7), ("7: 1".into(), Source::Fleet));
    one.cache.put(&7, "x".repeat(300_000)).unwrap();
    eventually("notices come", || two.value(7).len() == 300_000);
    server.client_kill_all();
    assert_eq!(one.got(8).1, Source::Loaded);
    assert_eq!(two.got(8).1, Source::Fleet);

    // An authority that is not known; a server that wants to know who we are; no encryption.
    let stranger = Server::builder().tls().start();
    let foreign = Tls::new().only_added().authority_pem(&read(&stranger.certificates().authority));
    let plain = Address::tcp("127.0.0.1", server.port()).client(client);
    let troubles = [
        ("an unknown authority", at(shown(foreign.unwrap()).unwrap(), "127.0.0.1")),
        ("an unknown client", at(trusting(), "127.0.0.1")),
        ("no encryption", patient(plain).pool_wait(secs(1)).io_timeout(secs(1))),
    ];
    for (what, fleet) in troubles {
        let one = Instance::counting(fleet, |cache| cache);
        for id in 0..3 {
            assert_eq!(one.got(id).1, Source::Alone, "{what}");
        }
        let health = one.fleet.health();
        let troubles = health.troubles;
        assert_eq!(troubles.unreachable + troubles.garbled + troubles.too_slow, 3, "{what}");
        assert!(health.reads_open && !health.hears, "{what}");
        println!("{what}: {}", health.last_trouble.unwrap());
    }
    tidy(&server);
}
