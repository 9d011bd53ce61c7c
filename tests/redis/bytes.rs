//! What is stored, and what is found stored.

use super::support::*;

with_each_client! {
    a_foreign_type_in_a_values_place_is_replaced
    a_foreign_type_in_a_leases_place_holds_nobody_up_for_ever
    bytes_that_are_no_value_of_the_key_are_replaced
    every_byte_comes_back_and_no_key_changes_a_command
    a_value_that_is_too_large_is_not_sent_or_not_sent_again
    a_value_without_an_end_or_at_its_end_is_not_kept
}

fn a_foreign_type_in_a_values_place_is_replaced(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client));
    server.command(&[b"LPUSH", &value_name(7)[..], b"an application's own"]);
    assert_eq!(one.got(7), ("7: 1".into(), Source::Loaded));
    assert_eq!(server.command(&[b"TYPE", &value_name(7)[..]]).text(), "string");
    assert!(server.command(&[b"PTTL", &value_name(7)[..]]).integer() > 0);
    assert_eq!(two.got(7), ("7: 1".into(), Source::Fleet));
    assert_eq!(one.fleet.health().report.foreign, 1);
    assert!(!one.fleet.health().reads_open);

    // Of an epoch, too; and that ends it.
    let name = Namespace::new("onefill").epoch(&Table::new("page"));
    server.command(&[b"DEL", &name[..]]);
    server.command(&[b"SADD", &name[..], b"1"]);
    let three = Instance::new(&server, client);
    assert_eq!(three.got(7).1, Source::Loaded);
    assert_eq!(server.command(&[b"TYPE", &name[..]]).text(), "string");
    tidy(&server);
}

fn a_foreign_type_in_a_leases_place_holds_nobody_up_for_ever(client: Client) {
    let server = Server::start();
    let fleet = patient(address(&server, client)).lease(secs(2)).build().unwrap();
    let one = Instance::on(fleet, |cache| {
        cache.loser_wait(ms(300)).loader(|load| Ok(format!("page {}", load.key())))
    });
    let name = lease_name(7);
    server.command(&[b"LPUSH", &name[..], b"an application's own"]);
    assert_eq!(one.got(7), ("page 7".into(), Source::Alone));
    assert_eq!(server.command(&[b"TYPE", &name[..]]).text(), "list", "it is not ours to remove");
    let left = server.command(&[b"PTTL", &name[..]]).integer();
    assert!((1..=2_000).contains(&left), "{left}");
    assert!(one.fleet.health().report.foreign >= 1);

    // A token that is not known there is not ours, whatever is there.
    let tier = patient(address(&server, client)).tier().unwrap();
    let (token, never) = (Token::random(), Deadline::NEVER);
    let lease = Lease::new(token, secs(2));
    assert_eq!(tier.renew(&key(7), lease, never), Ok(Ownership::Lost));
    let released = tier.release(&key(7), token, Reaction::TakeOver, ME, never);
    assert_eq!(released, Ok(Ownership::Lost));
    let entry = Entry::new(token, b"bytes", secs(60));
    assert_eq!(tier.commit(&key(7), entry, ME, never), Ok(Committed::Refused));
    eventually("the key heals", || tier.acquire(&key(7), lease, None, never) == Ok(Acquired::Won));
    tier.release(&key(7), token, Reaction::TakeOver, ME, never).unwrap();
    tidy(&server);
}

fn bytes_that_are_no_value_of_the_key_are_replaced(client: Client) {
    let server = Server::start();
    let other = Instance::new(&server, client);
    other.value(8);
    let good = server.command(&[b"GET", &value_name(8)[..]]).bytes().unwrap();
    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let planted: [(&str, Vec<u8>, u64); 8] = [
        ("random bytes", (0..300).map(|_| fastrand::u8(..)).collect(), 1),
        ("nothing", Vec::new(), 0),
        ("one byte", vec![0], 1),
        ("cut off", good[..good.len() - 3].to_vec(), 1),
        ("a header cut off", good[..20].to_vec(), 1),
        ("damaged", damaged, 1),
        ("another key's", good, 1),
        ("ten million zeros", vec![0; 10 << 20], 1),
    ];
    for (what, bytes, counted) in planted {
        let command: [&[u8]; 5] = [b"SET", &value_name(7), &bytes, b"PX", b"600000"];
        server.command(&command).good();
        let [one, two] = [(); 2].map(|()| Instance::new(&server, client));
        assert_eq!(one.got(7), ("7: 1".into(), Source::Loaded), "{what}");
        assert_eq!(one.cache.stats().undecodable, counted, "{what}");
        assert_eq!(one.fleet.health().last_trouble, None, "{what}");
        assert_eq!(stored(&server, 7).unwrap(), "7: 1", "{what}");
        assert_eq!(two.got(7), ("7: 1".into(), Source::Fleet), "{what}");
        assert_eq!(two.cache.stats().undecodable, 0, "{what}");
        one.idle();
    }
    tidy(&server);
}

fn every_byte_comes_back_and_no_key_changes_a_command(client: Client) {
    let server = Server::start();
    teach(&server, client);
    let proxy = Proxy::new(server.address());
    let value: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
    let loads = Arc::new(AtomicUsize::new(0));
    let [one, two] = [(); 2].map(|()| {
        let (loads, value) = (Arc::clone(&loads), value.clone());
        let fleet = patient(through(&proxy, client)).build().unwrap();
        let cache = Cache::<Vec<u8>, Vec<u8>, &'static str>::builder("bytes").ttl(secs(600));
        let cache = cache.jitter(0.0).early_refresh(0.0).fleet(&fleet, codec::Raw);
        let cache = cache.loader(move |load: &Load<'_, Vec<u8>, Vec<u8>>| {
            loads.fetch_add(1, SeqCst);
            Ok([&value[..], load.key()].concat())
        });
        let cache = cache.build().unwrap();
        eventually("notices come", || fleet.health().hears);
        cache
    });
    let mut keys: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"\0".to_vec(),
        b"\r\n".to_vec(),
        b"a\r\n$3\r\nDEL\r\n".to_vec(),
        b"*1\r\n$8\r\nFLUSHALL\r\n".to_vec(),
        b" ".to_vec(),
        b"'\"".to_vec(),
        "\u{1f980}".into(),
        b"\xff\xfe\xc3\x28".to_vec(),
        b"{}".to_vec(),
        b"}{".to_vec(),
        b"{a}b".to_vec(),
        vec![b'k'; 64 << 10],
        vec![0; 64 << 10],
    ];
    keys.extend((0..=255).map(|byte| vec![byte, byte]));
    // The epoch is known.
    for cache in [&one, &two] {
        drop(cache.get(&b"something else".to_vec()).unwrap());
    }
    let before = server.raw_keys().len();
    loads.store(0, SeqCst);
    proxy.forget_commands();
    for key in &keys {
        let answer = one.get(key).unwrap();
        assert_eq!(answer.source(), Source::Loaded);
    }
    for key in &keys {
        let answer = two.get(key).unwrap();
        assert_eq!(answer.source(), Source::Fleet, "{}", key.escape_ascii());
        let bytes = answer.into_value().unwrap();
        assert!(bytes == [&value[..], key].concat(), "{}", key.escape_ascii());
    }
    assert_eq!(loads.load(SeqCst), keys.len());
    assert_eq!(server.raw_keys().len() - before, keys.len());
    let commands = proxy.commands();
    let count = |name| commands.iter().filter(|command| command[0] == name).count();
    let names: [&[u8]; 3] = [b"PTTL", b"GET", b"EVALSHA"];
    assert_eq!(names.map(count), [2 * keys.len(); 3]);
    let rest = commands.len() - 6 * keys.len();
    assert_eq!(rest, count(b"PUBLISH") + count(b"SUBSCRIBE"), "and no other");
    tidy(&server);
}

fn a_value_that_is_too_large_is_not_sent_or_not_sent_again(client: Client) {
    let server = Server::builder().longest_string(1 << 20).start();
    teach(&server, client);
    for (limit, sent) in [(1 << 20, 0), (4 << 20, 1)] {
        let proxy = Proxy::new(server.address());
        let fleet = patient(through(&proxy, client));
        let one = Instance::over(fleet, |cache| {
            cache.max_stored(limit).loader(|load| match load.key() {
                0 => Ok("x".repeat(2 << 20)),
                key => Ok(format!("page {key}")),
            })
        })
        .hearing();
        one.value(1_000);
        // A command that the server does not read to its end has not arrived in the proxy's eyes.
        let before = proxy.opened();
        thread::scope(|s| {
            for nth in 1..=4 {
                let one = &one;
                s.spawn(move || {
                    for id in 0..50 {
                        let id = nth * 100 + id;
                        assert_eq!(one.value(id), format!("page {id}"));
                    }
                });
            }
            for _ in 0..2 {
                assert_eq!(one.value(0).len(), 2 << 20);
            }
        });
        let (stats, health) = (one.cache.stats(), one.fleet.health());
        let told = (stats.not_encoded, stats.fleet_writes_failed);
        assert_eq!(told, (1 - sent, sent), "{health:?}");
        // The server says why, and hangs up; whether that is heard depends on how far it came.
        let troubles = &health.troubles;
        assert_eq!(troubles.unreachable + troubles.refused(Refusal::Other), sent, "{health:?}");
        assert_eq!((holder(&server, 0), stored(&server, 0)), (None, None));
        let sets = proxy.commands().iter().filter(|command| script("commit")(command)).count();
        assert_eq!(sets, 1 + 200 + sent as usize);
        assert!(proxy.opened() - before <= 16);
        assert!(!health.reads_open && !health.writes_open);
        one.idle();
        (1..=4).for_each(|nth| {
            (0..50).for_each(|id| one.cache.invalidate(&(nth * 100 + id)).unwrap())
        });
        one.cache.invalidate(&1_000).unwrap();
    }
    tidy(&server);
}

fn a_value_without_an_end_or_at_its_end_is_not_kept(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client));
    one.value(7);
    server.command(&[b"PERSIST", &value_name(7)[..]]).good();
    // Whoever read it would find it new.
    assert_eq!(two.got(7), ("7: 1".into(), Source::Loaded));
    assert_eq!(two.cache.stats().undecodable, 1);
    assert!(server.command(&[b"PTTL", &value_name(7)[..]]).integer() > 0);

    // Gone, or at its end, between the two questions.
    let proxy = Proxy::new(server.address());
    let three = Instance::counting(patient(through(&proxy, client)), |cache| cache).hearing();
    let spoilt: [(u64, &'static str, Resp); 4] = [
        (10, "PTTL", Resp::Integer(-2)),
        (11, "PTTL", Resp::Integer(0)),
        (12, "GET", Resp::Nil),
        (13, "PTTL", Resp::Integer(i64::MIN)),
    ];
    for (id, command, reply) in spoilt {
        let theirs = one.value(id);
        let name = value_name(id);
        let chosen = move |words: &[Vec<u8>]| named(command)(words) && words[1] == name;
        proxy.once(chosen, Fault::Replace(reply.to_bytes()));
        let before = three.loads();
        let (value, source) = three.got(id);
        match three.loads() - before {
            0 => assert_eq!((value, source), (theirs, Source::Fleet), "{command} {reply:?}"),
            _ => assert_eq!((value, source), (format!("{id}: {}", before + 1), Source::Loaded)),
        }
        let left = server.command(&[b"PTTL", &value_name(id)[..]]).integer();
        assert!((1..=600_000).contains(&left), "{command} {reply:?}: {left}");
        proxy.heal();
    }
    assert_eq!(three.cache.stats().gauges.absences, 0);
    assert_eq!(three.fleet.health().last_trouble, None);
    tidy(&server);
}
