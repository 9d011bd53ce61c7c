//! Redis and Valkey as the shared tier.

mod wire;

pub use wire::{Command, Dial, Message, Reply, Subscription, Wire};
