//! The beginning of a connection: the header of the PROXY protocol, and the TLS handshake.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::TcpStream as StdStream;
use std::sync::Arc;

use ipnet::IpNet;
use tokio::net::TcpStream;

use crate::metrics::Metrics;
use crate::server::activity::Activity;
use crate::server::limits::{ClientSlot, trusts};
use crate::server::listener::AcceptedConnection;
use crate::server::socket::Socket;
use crate::server::stream::Stream;
use crate::server::tls::Tls;
use crate::server::{Peer, proxy};

/// How connections begin.
#[derive(Clone)]
pub(super) struct ConnectionConfig {
    pub(super) tls: Option<Arc<Tls>>,
    /// Proxies that begin each connection with a header of the PROXY protocol.
    pub(super) proxy_protocol: Arc<[IpNet]>,
    pub(super) metrics: Arc<Metrics>,
}

/// Serves `client` by `protocol`, until the connection ends or is commanded to.
pub(super) async fn serve_client<F>(
    client: AcceptedConnection,
    mut slot: ClientSlot,
    config: ConnectionConfig,
    protocol: impl Fn(Socket, Peer, Arc<Activity>) -> F,
    activity: Arc<Activity>,
) where
    F: Future<Output = ()>,
{
    let AcceptedConnection { stream, mut peer } = client;
    let Some(stream) = open(stream, &mut peer, &mut slot, &config, &activity).await else {
        return;
    };
    drop(config);
    let socket = Socket::new(stream, Arc::clone(&activity));
    protocol(socket, peer, activity).await;
}

/// Prepares the connection; `None` if that fails, or if the connection has to close before.
async fn open(
    stream: StdStream,
    peer: &mut Peer,
    slot: &mut ClientSlot,
    config: &ConnectionConfig,
    activity: &Activity,
) -> Option<Stream> {
    // Boxed, or the task of every connection would be larger by this future for all of its life.
    let prepared = Box::pin(prepare(stream, peer, slot, config));
    let prepared = activity.unless_closed(prepared).await?;
    prepared
        .inspect_err(|error| tracing::debug!("a connection can't be served: {error}"))
        .ok()
}

/// Reads the header of the PROXY protocol, which sets the address of `peer`, and makes the TLS handshake, if these are
/// configured.
async fn prepare(
    stream: StdStream,
    peer: &mut Peer,
    slot: &mut ClientSlot,
    config: &ConnectionConfig,
) -> io::Result<Stream> {
    let mut stream = TcpStream::from_std(stream)?;
    stream.set_nodelay(true)?;
    if trusts(&config.proxy_protocol, peer.address) {
        let client = proxy::read_client(&mut stream).await.inspect_err(|error| {
            // A proxy may connect and send nothing, as a health check.
            if error.kind() == ErrorKind::InvalidData {
                let proxy = peer.address;
                tracing::warn!(
                    "connection from {proxy} has no valid PROXY protocol header: {error}"
                );
            }
        })?;
        peer.is_proxied = true;
        if let Some(client) = client {
            peer.address = client;
            if !slot.count(client) {
                let closed = &config.metrics.connections_closed;
                closed.with_label_values(&["connections_per_address"]).inc();
                return Err(io::Error::other(
                    "limits.connections_per_address is reached",
                ));
            }
        }
    }
    match &config.tls {
        None => Ok(Stream::Plain(stream)),
        Some(tls) => secure(tls, stream).await,
    }
}

async fn secure(tls: &Tls, stream: TcpStream) -> io::Result<Stream> {
    let stream = tls.acceptor().accept(stream).await?;
    Ok(Stream::Secure(Box::new(stream)))
}
