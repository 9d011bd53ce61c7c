//! Leases: who loads, who waits, and what becomes of it.

use super::support::*;

with_each_client! {
    a_herd_over_instances_is_one_load
    an_absence_and_a_failure_travel
    scripts_may_be_forgotten_at_any_time
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
    assert_eq!(loads.load(SeqCst), 1);
    for instance in &instances {
        assert_eq!(instance.got(7).1, Source::Local);
    }
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
