//! What is stored, and what is found stored.

use super::support::*;

with_each_client! {
    a_foreign_type_in_a_values_place_is_replaced
    a_foreign_type_in_a_leases_place_holds_nobody_up_for_ever
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
