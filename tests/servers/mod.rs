//! Real servers, and trouble on the way to them, for tests, benches and examples:
//!
//! - [`Server`]: a `redis-server` of its own, and the states that it can be brought into;
//! - [`Cluster`] and [`Sentinels`]: several of them;
//! - [`Proxy`]: a connection to a server that misbehaves on demand;
//! - [`Stub`]: a server that answers what a closure says;
//! - [`Unreachable`]: an address at which not even a connection comes about.
//!
//! It speaks to the servers with a few lines of its own, so that a fault in a client library
//! cannot hide itself from the tests of that library.
//!
//! Pulled in with `#[path = "servers/mod.rs"] mod servers;`.
#![allow(dead_code, unused_imports, reason = "each program that pulls this in uses a part of it")]

mod cluster;
mod connection;
mod patience;
mod ports;
mod process;
mod proxy;
mod resp;
mod sentinel;
mod server;
mod stub;
mod tls;
mod unreachable;

pub(crate) use cluster::{Cluster, Migration};
pub(crate) use connection::Connection;
pub(crate) use patience::{PATIENCE, eventually};
pub(crate) use ports::{free as free_port, ipv6_available};
pub(crate) use proxy::{Fault, Mode, Proxy, any, named};
pub(crate) use resp::{Resp, encode};
pub(crate) use sentinel::Sentinels;
pub(crate) use server::{Builder, Server};
pub(crate) use stub::{Action, Call, Stub};
pub(crate) use tls::Certificates;
pub(crate) use unreachable::Unreachable;
