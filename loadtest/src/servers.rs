//! What is checked and what it runs on: a private PostgreSQL, larders, and the network between them.

pub(crate) mod binary;
pub(crate) mod larder;
pub(crate) mod postgres;
pub(crate) mod proxy;
pub(crate) mod workplace;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::Context;

/// Below the range that systems take outgoing ports from, so that a server that is away finds its port free again.
const PORTS: std::ops::Range<u16> = 12_000..20_000;
const PORT_TRIES_MAX: usize = 100;

/// A loopback address that was free a moment ago.
pub(crate) fn free_address(rng: &mut fastrand::Rng) -> anyhow::Result<SocketAddr> {
    (0..PORT_TRIES_MAX)
        .map(|_| SocketAddr::from((Ipv4Addr::LOCALHOST, rng.u16(PORTS))))
        .find(|address| TcpListener::bind(address).is_ok())
        .context("no port is free")
}
