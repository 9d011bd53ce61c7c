//! What other processes change, and how long it takes to be known.

use super::support::*;

with_each_client! {
    an_invalidation_reaches_the_copies_of_others_even_after_a_silence
    an_invalidation_of_a_table_reaches_all_who_have_it
    values_of_a_lost_epoch_are_not_trusted
    a_cut_subscription_is_noticed_and_mended
    a_message_for_somebody_else_is_ignored
}

fn an_invalidation_reaches_the_copies_of_others_even_after_a_silence(client: Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| Instance::new(&server, client).hearing());
    one.got(7);
    // Short, so that the wait for a message has ended a few times; and long, so that the connection
    // has had to prove itself.
    for silence in [ms(900), ms(6_500)] {
        // The notice of what was loaded may come after it was read, and put it in doubt.
        eventually("both have it", || {
            let [one, two] = [&one, &two].map(|instance| instance.got(7));
            (&one.0, one.1, two.1) == (&two.0, Source::Local, Source::Local)
        });
        let (mine, heard) = (two.got(7), [one.heard(), two.heard()]);
        thread::sleep(silence);
        assert_eq!(two.got(7), mine);
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
