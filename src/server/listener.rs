//! Accepts connections within the limits and as long as there are file descriptors.

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
use crate::server::limits::{ClientCounts, ClientSlot, ConnectionLimit, Limits};

/// Pause after an accept that failed because file descriptors or memory were exhausted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);
/// Time between two warnings while connections are refused.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// A connection that was accepted.
pub(super) struct AcceptedConnection {
    pub(super) stream: StdStream,
    pub(super) peer: Peer,
}

impl AcceptedConnection {
    pub(super) fn new((stream, address): (StdStream, SocketAddr)) -> Self {
        let address = address.ip().to_canonical();
        Self {
            stream,
            peer: Peer {
                address,
                is_proxied: false,
            },
        }
    }
}

/// Accepts connections, within the limits and as long as the system has file descriptors.
pub(super) struct Listener {
    limits: Limits,
    clients: ConnectionLimit,
    metrics: Arc<Metrics>,
    /// A file descriptor that is closed for a moment if no other is left, so that a waiting connection can be accepted and
    /// closed.
    reserve: Option<File>,
    /// No connection is accepted before this time.
    paused_until: Option<Instant>,
    warned_at: Option<Instant>,
}

impl Listener {
    pub(super) fn new(limits: Limits, clients: ClientCounts, metrics: Arc<Metrics>) -> Self {
        Self {
            clients: ConnectionLimit::new(&limits, clients),
            limits,
            metrics,
            reserve: reserve(),
            paused_until: None,
            warned_at: None,
        }
    }

    /// The next connection.
    ///
    /// Cancel safe.
    pub(super) async fn accept(
        &mut self,
        listener: &TcpListener,
    ) -> io::Result<AcceptedConnection> {
        if let Some(until) = self.paused_until {
            sleep_until(until).await;
            self.paused_until = None;
        }
        let (stream, address) = listener.accept().await?;
        if self.reserve.is_none() {
            self.reserve = reserve();
        }
        Ok(AcceptedConnection::new((stream.into_std()?, address)))
    }

    /// Counts `client`, unless there are too many connections; `open` others are.
    pub(super) fn admit(&mut self, client: &AcceptedConnection, open: usize) -> Option<ClientSlot> {
        if open >= self.limits.connections {
            self.note_refusal("connections", &"limits.connections is reached");
            return None;
        }
        let slot = self.clients.admit(client.peer.address);
        if slot.is_none() {
            let address = client.peer.address;
            let why = format_args!("limits.connections_per_address is reached by {address}");
            self.note_refusal("connections_per_address", &why);
        }
        slot
    }

    /// Handles an error of accept: closes a connection that waits if there is no file descriptor for it, or pauses.
    pub(super) fn handle_error(&mut self, error: &io::Error, listener: &TcpListener) {
        let errno = error.raw_os_error().map(Errno::from_raw);
        let is_full = matches!(errno, Some(Errno::EMFILE | Errno::ENFILE));
        self.note_refusal("descriptors", error);
        // Otherwise the client would wait until there is a descriptor again.
        if is_full && self.reserve.take().is_some() {
            drop(listener.poll_accept(&mut Context::from_waker(Waker::noop())));
            self.reserve = reserve();
        }
        if !is_full || self.reserve.is_none() {
            self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
        }
    }

    fn note_refusal(&mut self, reason: &'static str, why: &dyn Display) {
        self.metrics
            .connections_closed
            .with_label_values(&[reason])
            .inc();
        let is_silent = self
            .warned_at
            .is_some_and(|warned_at| warned_at.elapsed() < WARNING_INTERVAL);
        if !is_silent {
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
    async fn a_missing_reserve_descriptor_is_opened_later() {
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
            proxy_protocol: Vec::new(),
        };
        let mut accepting = Listener::new(
            limits,
            ClientCounts::default(),
            Arc::new(Metrics::new().unwrap()),
        );
        accepting.reserve = None;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_client, accepted) =
            tokio::join!(TcpStream::connect(address), accepting.accept(&listener));
        accepted.unwrap();
        assert!(accepting.reserve.is_some());
    }
}
