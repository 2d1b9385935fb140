//! Listeners and connections, for any protocol. What is of HTTP alone: ALPN and HSTS in `tls`, and the counts of HTTP/2 in
//! `activity`.
//!
//! [`serve`] accepts connections within [`Limits`], reads the header of the PROXY protocol and makes the TLS handshake if
//! these are configured, and passes socket, peer and activity to the protocol of the address. It closes connections that
//! are idle or do not make progress, which `connections` finds at each of its checks, and drains all at the end. [`rate`]
//! limits the requests of each client. Nothing here knows a request or a document.
//!
//! Each connection stays on the runtime that it was given to, so an answer takes no lock and waits for no other thread.

mod activity;
mod connection;
mod connections;
mod limits;
mod listener;
mod proxy;
pub mod rate;
mod socket;
mod stream;
pub mod tls;
mod validity;

use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

pub use crate::server::activity::Activity;
pub(crate) use crate::server::activity::{ConnectionCommand, Stage, UnsentBytes};
pub use crate::server::limits::{ClientCounts, Limits};
pub(crate) use crate::server::limits::{ClientPlace, client_network, trusts};
pub use crate::server::socket::Socket;

use crate::metrics::Metrics;
use crate::server::connection::ConnectionConfig;
use crate::server::connections::{CHECK_INTERVAL, Connections};
use crate::server::listener::{AcceptedConnection, Listener};
use crate::server::tls::Tls;

/// Connections that may wait in the kernel until they are accepted. The kernel lowers it to `net.core.somaxconn`, by
/// default 4096 since Linux 5.4 and 128 before.
const BACKLOG_MAX: u16 = u16::MAX;

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The client's address. An IPv4 address is never mapped to IPv6.
    pub address: IpAddr,
    /// Whether a proxy has named the address by the PROXY protocol.
    pub is_proxied: bool,
}

/// How an address is served.
#[derive(Clone)]
pub struct ServerConfig {
    /// Limits of clients.
    pub limits: Limits,
    /// Counts the connections that larder closes.
    pub metrics: Arc<Metrics>,
    /// Addresses that share it count a client's connections together.
    pub clients: ClientCounts,
    /// The certificate; `None` for an address without TLS.
    pub tls: Option<Arc<Tls>>,
}

/// Listens at `address`, with the largest backlog that the kernel allows.
///
/// [`TcpListener::bind`] has one of 128. Where more clients connect at once, each of the others waits for a second or more
/// until it sends its SYN again.
///
/// # Errors
/// The address is in use, is none of this machine, or may not be used.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG_MAX.into())
}

/// Serves each connection by `protocol` until `stop` ends; then accepts no more, and ends when every connection has ended.
///
/// Connections are distributed to `runtimes` in turn. The protocol reports to the activity what it reads and writes, and
/// obeys its commands. A connection of HTTP/1.1 without a request at
/// the stop is closed at once or within 0.3 s, one with an unfinished head within 2.1 s.
pub async fn serve<P, F>(
    listener: TcpListener,
    protocol: P,
    runtimes: Vec<Handle>,
    config: ServerConfig,
    stop: impl Future<Output = ()>,
) where
    P: Fn(Socket, Peer, Arc<Activity>) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let ServerConfig {
        limits,
        metrics,
        clients,
        tls,
    } = config;
    let connection_config = ConnectionConfig {
        tls,
        proxy_protocol: limits.proxy_protocol.as_slice().into(),
        metrics: Arc::clone(&metrics),
    };
    let mut connections = Connections::new(&limits, &metrics);
    let mut accepting = Listener::new(limits, clients, metrics);
    let mut runtimes = runtimes.iter().cycle();
    let mut open =
        |connections: &mut Connections, accepting: &mut Listener, client: AcceptedConnection| {
            let slot = accepting.admit(&client, connections.tasks.len());
            if let (Some(slot), Some(runtime)) = (slot, runtimes.next()) {
                let activity = Arc::new(Activity::default());
                let config = connection_config.clone();
                let (protocol, own) = (protocol.clone(), Arc::clone(&activity));
                let served = connection::serve_client(client, slot, config, protocol, own);
                connections.spawn(served, activity, runtime);
            }
        };
    let mut checks = interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            accepted = accepting.accept(&listener) => match accepted {
                Ok(client) => open(&mut connections, &mut accepting, client),
                Err(error) if concerns_one_client(&error) => {}
                Err(error) => accepting.handle_error(&error, &listener),
            },
            Some(ended) = connections.tasks.join_next_with_id() => connections.remove(ended),
            _ = checks.tick() => connections.check(),
        }
    }
    for client in waiting_connections(listener) {
        open(&mut connections, &mut accepting, client);
    }
    connections.drain().await;
}

/// Connections that the kernel has already accepted, whose requests may have been sent too. Closes the listener.
fn waiting_connections(listener: TcpListener) -> Vec<AcceptedConnection> {
    let Ok(listener) = listener.into_std() else {
        return Vec::new();
    };
    // The listener does not block, so this ends when no connection waits any more.
    std::iter::from_fn(|| listener.accept().ok())
        .take(BACKLOG_MAX.into())
        .filter(|(stream, _)| stream.set_nonblocking(true).is_ok())
        .map(AcceptedConnection::new)
        .collect()
}

fn concerns_one_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn hundreds_of_connections_wait_to_be_accepted() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn");
        let allowed = allowed.map_or(128, |allowed| allowed.trim().parse().unwrap());
        // More than the 128 of [`TcpListener::bind`], if the kernel allows it.
        let count = 200.min(allowed);
        let mut clients = Vec::new();
        for _ in 0..count {
            let connected = timeout(Duration::from_secs(20), TcpStream::connect(address));
            clients.push(connected.await.unwrap().unwrap());
        }
        assert_eq!(waiting_connections(listener).len(), count);
    }
}
