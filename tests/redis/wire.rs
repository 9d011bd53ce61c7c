//! Connections that break, hang, or carry something else.

use super::support::*;

with_each_client! {
    somebody_else_at_the_address_is_said
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
