//! Listeners and connections, whatever protocol is spoken on them.
//!
//! [`serve`] accepts connections within [`Limits`], reads a header of the PROXY protocol and makes TLS where configured,
//! and hands socket, peer and activity to the protocol of the address. It closes connections that idle or stall, which
//! `connections` finds at each of its checks, and drains all at the end. [`rate`] counts requests of a client. Nothing
//! here knows a request or a document.
//!
//! Each connection stays on the runtime it was given to: it meets no lock and no other thread on its way to an answer.

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

use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

pub use crate::server::activity::Activity;
pub(crate) use crate::server::activity::{Order, Stage, Unsent};
pub use crate::server::limits::Limits;
pub(crate) use crate::server::limits::{network, trusts};
pub use crate::server::socket::Socket;

use crate::metrics::Metrics;
use crate::server::connection::ConnectionConfig;
use crate::server::connections::{CHECK_INTERVAL, Connections};
use crate::server::listener::{Client, Listener};
use crate::server::tls::Tls;

/// Clients that the kernel lets in before they are accepted, as tokio asks for when it binds.
const BACKLOG_MAX: usize = 1_024;

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The client's address; one of IPv4 is never written as one of IPv6.
    pub address: IpAddr,
    /// Whether it came over TLS.
    pub secure: bool,
}

/// How an address is served.
#[derive(Clone)]
pub struct ServerConfig {
    /// What clients may take.
    pub limits: Limits,
    /// Counts connections that larder closes.
    pub metrics: Arc<Metrics>,
    /// Without it, clients are served without TLS.
    pub tls: Option<Arc<Tls>>,
}

/// Serves each connection by `protocol` until `stop` ends; then accepts nothing more and ends when every connection has
/// ended.
///
/// Connections are dealt out to `runtimes` in turn. The protocol reports to the activity what it reads and answers, and
/// ends as that says. One that has sent no whole request at the stop is closed within 2.1 s.
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
        tls,
    } = config;
    let connection_config = ConnectionConfig {
        tls,
        proxy_protocol: limits.proxy_protocol,
        metrics: Arc::clone(&metrics),
    };
    let mut connections = Connections::new(&limits, metrics.connections_closed.clone());
    let mut accepting = Listener::new(limits, metrics);
    let mut runtimes = runtimes.iter().cycle();
    let mut open = |connections: &mut Connections, accepting: &mut Listener, client: Client| {
        let admitted = accepting.admit(&client, connections.tasks.len());
        if let (Some(admitted), Some(runtime)) = (admitted, runtimes.next()) {
            let activity = Arc::new(Activity::default());
            let config = connection_config.clone();
            let (protocol, own) = (protocol.clone(), Arc::clone(&activity));
            let served = connection::serve(client, admitted, config, protocol, own);
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
                Err(error) => accepting.failed(&error, &listener),
            },
            Some(ended) = connections.tasks.join_next_with_id() => connections.forget(ended),
            _ = checks.tick() => connections.check(),
        }
    }
    for client in waiting_clients(listener) {
        open(&mut connections, &mut accepting, client);
    }
    connections.drain().await;
}

/// Connections that the kernel has accepted already: their requests may have been sent, too. Closes the listener.
fn waiting_clients(listener: TcpListener) -> Vec<Client> {
    let Ok(listener) = listener.into_std() else {
        return Vec::new();
    };
    // The listener does not block, so this ends where no connection waits any more.
    std::iter::from_fn(|| listener.accept().ok())
        .take(BACKLOG_MAX)
        .filter(|(stream, _)| stream.set_nonblocking(true).is_ok())
        .map(Client::new)
        .collect()
}

fn concerns_one_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset
    )
}
