//! Accepts connections as far as limits and descriptors allow.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpStream as StdStream};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use nix::errno::Errno;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep_until};

use crate::metrics::Metrics;
use crate::server::Peer;
use crate::server::limits::{Admitted, Clients, Limits};

/// Pause after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);
/// What lasts is warned of this often.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// A connection that was accepted.
pub(super) struct Client {
    pub(super) stream: StdStream,
    pub(super) peer: Peer,
}

impl Client {
    pub(super) fn new((stream, address): (StdStream, SocketAddr)) -> Self {
        let address = address.ip().to_canonical();
        Self {
            stream,
            peer: Peer {
                address,
                secure: false,
            },
        }
    }
}

/// Accepts connections, as far as the limits and the system have room for them.
pub(super) struct Listener {
    limits: Limits,
    clients: Clients,
    metrics: Arc<Metrics>,
    /// Given up for a moment where no descriptor is left, so that a client can be told.
    reserve: Option<File>,
    /// Nobody is let in until then.
    shut_until: Option<Instant>,
    warned_at: Option<Instant>,
}

impl Listener {
    pub(super) fn new(limits: Limits, metrics: Arc<Metrics>) -> Self {
        Self {
            clients: Clients::new(&limits),
            limits,
            metrics,
            reserve: reserve(),
            shut_until: None,
            warned_at: None,
        }
    }

    /// The next connection.
    ///
    /// Cancel safe.
    pub(super) async fn accept(&mut self, listener: &TcpListener) -> io::Result<Client> {
        if let Some(until) = self.shut_until {
            sleep_until(until).await;
            self.shut_until = None;
        }
        let (stream, address) = listener.accept().await?;
        if self.reserve.is_none() {
            self.reserve = reserve();
        }
        Ok(Client::new((stream.into_std()?, address)))
    }

    /// Whether `client` may stay beside `open` others; what it gets counts it.
    pub(super) fn admit(&mut self, client: &Client, open: usize) -> Option<Admitted> {
        if open >= self.limits.connections {
            self.refused("connections", &"limits.connections is reached");
            return None;
        }
        let admitted = self.clients.admit(client.peer.address);
        if admitted.is_none() {
            let address = client.peer.address;
            let why = format_args!("limits.connections_per_address is reached by {address}");
            self.refused("connections_per_address", &why);
        }
        admitted
    }

    /// What to do where a connection could not be accepted.
    pub(super) fn failed(&mut self, error: &io::Error, listener: &TcpListener) {
        let errno = error.raw_os_error().map(Errno::from_raw);
        let full = matches!(errno, Some(Errno::EMFILE | Errno::ENFILE));
        self.refused("descriptors", error);
        // Who waits would else wait until there is a descriptor again.
        if full && self.reserve.take().is_some() {
            drop(listener.poll_accept(&mut Context::from_waker(Waker::noop())));
            self.reserve = reserve();
        }
        if !full || self.reserve.is_none() {
            self.shut_until = Some(Instant::now() + ACCEPT_PAUSE);
        }
    }

    fn refused(&mut self, reason: &'static str, why: &dyn Display) {
        self.metrics
            .connections_closed
            .with_label_values(&[reason])
            .inc();
        let silent = self
            .warned_at
            .is_some_and(|warned_at| warned_at.elapsed() < WARNING_INTERVAL);
        if !silent {
            self.warned_at = Some(Instant::now());
            tracing::warn!("connections are refused: {why}");
        }
    }
}

fn reserve() -> Option<File> {
    File::open("/dev/null").ok()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn a_reserve_that_was_not_to_be_had_is_taken_later() {
        let limits = Limits {
            connections: 1,
            connections_per_address: 1,
            header_timeout: Duration::ZERO,
            idle_timeout: Duration::ZERO,
            body_timeout: Duration::ZERO,
            write_timeout: Duration::ZERO,
            requests_per_second: 0,
            burst: 1,
            trusted_proxies: Vec::new(),
            proxy_protocol: false,
        };
        let mut accepting = Listener::new(limits, Arc::new(Metrics::new().unwrap()));
        accepting.reserve = None;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_client, accepted) =
            tokio::join!(TcpStream::connect(address), accepting.accept(&listener));
        accepted.unwrap();
        assert!(accepting.reserve.is_some());
    }
}
