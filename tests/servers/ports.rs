//! Ports of the loopback that nobody listens on.

use std::collections::{BTreeSet, hash_map::RandomState};
use std::hash::{BuildHasher, Hasher};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// Ports this process has drawn: none is drawn twice, so a server that is down for a moment finds
/// its own port free again.
static DRAWN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Where a cluster node listens for the other nodes: so much above its port for clients.
const BUS: u16 = 10_000;

/// A free port.
pub(crate) fn free() -> u16 {
    draw(&[0])
}

/// A free port whose cluster bus is free as well.
pub(super) fn free_with_bus() -> u16 {
    draw(&[0, BUS])
}

/// Draws below the range from which the system numbers the near ends of connections. It hands out
/// ports of that range to anybody at any moment, also while a server is being restarted on one.
fn draw(offsets: &[u16]) -> u16 {
    for _ in 0..10_000 {
        let random = RandomState::new().build_hasher().finish();
        let port = 10_000 + u16::try_from(random % 12_000).expect("it is below 12,000");
        let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = || offsets.iter().map(|offset| port + offset);
        if wanted().all(|port| !drawn.contains(&port) && unused(port)) {
            drawn.extend(wanted());
            return port;
        }
    }
    panic!("no free port was found on the loopback");
}

fn unused(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
        && (!ipv6_available() || TcpListener::bind((Ipv6Addr::LOCALHOST, port)).is_ok())
}

/// Whether this machine has a loopback of IPv6.
pub(crate) fn ipv6_available() -> bool {
    TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}
