//! Tiers and caches on a real `redis-server`, once with each client that the build has.
#![cfg(any(feature = "redis", feature = "r2d2_redis"))]

#[path = "../servers/mod.rs"]
mod servers;

/// Each of these is a test with each client.
macro_rules! with_each_client {
    ($($name:ident)*) => {
        #[cfg(feature = "redis")]
        mod on_redis {
            $(#[test] fn $name() {
                crate::support::within(|| super::$name(onefill::fleet::redis::Client::Redis));
            })*
        }
        #[cfg(feature = "r2d2_redis")]
        mod on_r2d2_redis {
            $(#[test] fn $name() {
                crate::support::within(|| super::$name(onefill::fleet::redis::Client::R2d2Redis));
            })*
        }
    };
}

mod bytes;
mod coherence;
mod contract;
mod ends;
mod herd;
mod rights;
mod support;
mod topology;
mod trouble;
mod wire;
