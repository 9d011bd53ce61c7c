//! What is left when it is over.

use super::support::*;

with_each_client! {
    when_the_last_handle_goes_so_does_everything
}

fn when_the_last_handle_goes_so_does_everything(client: Client) {
    let server = Server::start();
    let one = Instance::new(&server, client).hearing();
    one.got(7);
    assert!(server.clients() >= 2);
    drop(one);
    let dropped = Instant::now();
    eventually("all connections are closed", || server.clients() == 0);
    assert!(dropped.elapsed() < secs(1) + NOISE);
    tidy(&server);
}
