//! What is checked and what it runs on: a private PostgreSQL, larders, and the network between them.

pub(crate) mod binary;
pub(crate) mod demo;
pub(crate) mod http;
pub(crate) mod inspection;
pub(crate) mod interference;
pub(crate) mod larder;
pub(crate) mod metrics;
pub(crate) mod postgres;
pub(crate) mod process;
pub(crate) mod progress;
pub(crate) mod run_directory;
pub(crate) mod session;
pub(crate) mod testbed;
pub(crate) mod tools;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Below the range of ephemeral ports, so that no outgoing connection takes the port of a server that is restarted.
const PORTS: std::ops::Range<u16> = 12_000..20_000;
const PORT_TRIES_MAX: usize = 100;
const START_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A loopback address that was free a moment ago.
pub(crate) fn free_address(rng: &mut fastrand::Rng) -> anyhow::Result<SocketAddr> {
    (0..PORT_TRIES_MAX)
        .map(|_| SocketAddr::from((Ipv4Addr::LOCALHOST, rng.u16(PORTS))))
        .find(|address| TcpListener::bind(address).is_ok())
        .context("no port is free")
}

/// Waits until a server accepts connections at `address`.
pub(crate) async fn await_listening(address: SocketAddr) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        match TcpStream::connect(address).await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() >= deadline => return Err(error.into()),
            Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}
