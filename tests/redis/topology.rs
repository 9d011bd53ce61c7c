//! Several servers, and the ways to one.

use super::support::*;

with_each_client! {
    a_cluster_is_shared_like_one_server
    a_node_of_a_cluster_says_that_it_is_one
    after_a_failover_values_are_shared_through_the_other_server
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
    sentinels.until_replicated();
    sentinels.fail_over();
    let mut id = 1_000;
    eventually("values are shared again", || {
        id += 1;
        one.got(id).1 == Source::Loaded && two.got(id).1 == Source::Fleet
    });
    eventually("notices come", || one.fleet.health().hears && two.fleet.health().hears);
    one.cache.put(&7, String::from("put")).unwrap();
    eventually("notices come", || two.got(7).0 == "put");
}
