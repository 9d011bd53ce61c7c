//! Redis and Valkey as the shared tier.

mod client;
mod cluster;
mod connection;
mod frame;
#[expect(dead_code, reason = "the tier that stands on it is a branch away")]
mod pool;
mod refusal;
mod sentinel;
mod server;
mod stream;
#[cfg(feature = "tls")]
mod tls;
mod url;
mod wire;

pub use client::Client;
pub use cluster::Cluster;
#[expect(unused_imports, reason = "as above")]
pub(crate) use pool::{Pool, Settings};
pub use refusal::refusal;
pub use sentinel::Sentinel;
pub use server::Server;
#[cfg(feature = "tls")]
pub use tls::{Tls, TlsBuilder};
pub use url::Address;
pub use wire::{Command, Dial, Message, Reply, Subscription, Wire};

#[cfg(test)]
mod stub;
