//! Redis and Valkey as the shared tier.

mod builder;
mod client;
mod connection;
mod ear;
mod frame;
mod pool;
mod refusal;
mod script;
mod server;
mod stream;
mod tier;
#[cfg(feature = "tls")]
mod tls;
mod wire;

pub use builder::RedisBuilder;
pub use client::Client;
pub(crate) use pool::{Pool, Settings};
pub use refusal::refusal;
pub use server::Server;
pub use tier::Redis;
pub use wire::{Command, Dial, Message, Reply, Subscription, Wire};

#[cfg(test)]
mod fake;
