//! The accept loop: connections over HTTP/1.1 and HTTP/2, how long they may idle, and their end.
//!
//! Each connection stays on the runtime it was given to: it meets no lock and no other thread on its way to an answer.
//!
//! `limits` bounds how many there are, the looks in `connections` how long each may take.

mod arriving;
mod connection;
mod connections;
mod door;
mod limits;
mod progress;
mod proxy;
mod socket;
mod stream;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use axum::http::{Request, Response};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tower_service::Service;

pub use self::arriving::{Arriving, BodyTimeout};
pub use self::limits::Limits;
pub(super) use self::limits::{network, trusts};

use crate::http::accept::connection::{Ways, serve_connection};
use crate::http::accept::connections::{Connections, LOOK_INTERVAL};
use crate::http::accept::door::{Client, Door};
use crate::http::accept::progress::Progress;
use crate::http::tls::Tls;
use crate::metrics::Metrics;

/// Clients that the kernel lets in before they are accepted, as tokio asks for when it binds.
const BACKLOG_MAX: usize = 1_024;
/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The client's address; one of IPv4 is never written as one of IPv6.
    pub address: IpAddr,
    /// Whether it came over TLS.
    pub secure: bool,
}

/// How an address is served.
#[derive(Clone)]
pub struct AcceptConfig {
    /// What clients may take.
    pub limits: Limits,
    /// Counts whom larder closes.
    pub metrics: Arc<Metrics>,
    /// Without it, clients are served without TLS.
    pub tls: Option<Arc<Tls>>,
}

/// Serves each connection by what `make` makes for it, until `stop` ends; then accepts nothing more and ends when every
/// request has been answered.
///
/// Connections are dealt out to `runtimes` in turn. One that has sent no whole request at the stop is closed within
/// 2.1 s.
pub async fn serve<S, B>(
    listener: TcpListener,
    make: impl Fn(Peer) -> S + Clone + Send + 'static,
    runtimes: Vec<Handle>,
    config: AcceptConfig,
    stop: impl Future<Output = ()>,
) where
    S: Service<Request<Arriving>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send,
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static,
{
    let AcceptConfig {
        limits,
        metrics,
        tls,
    } = config;
    let ways = Ways {
        tls,
        body_timeout: limits.body_timeout,
        proxy_protocol: limits.proxy_protocol,
        metrics: Arc::clone(&metrics),
    };
    let mut connections = Connections::new(&limits, metrics.connections_closed.clone());
    let mut door = Door::new(limits, metrics);
    let mut runtimes = runtimes.iter().cycle();
    let mut open = |connections: &mut Connections, door: &mut Door, client: Client| {
        let admitted = door.admit(&client, connections.tasks.len());
        if let (Some(admitted), Some(runtime)) = (admitted, runtimes.next()) {
            let progress = Arc::new(Progress::default());
            let (make, ways, counted) = (make.clone(), ways.clone(), Arc::clone(&progress));
            let served = serve_connection(client, admitted, ways, make, counted);
            connections.spawn(served, progress, runtime);
        }
    };
    let mut looks = interval_at(Instant::now() + LOOK_INTERVAL, LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            accepted = door.accept(&listener) => match accepted {
                Ok(client) => open(&mut connections, &mut door, client),
                Err(error) if concerns_one_client(&error) => {}
                Err(error) => door.failed(&error, &listener),
            },
            Some(ended) = connections.tasks.join_next_with_id() => connections.forget(ended),
            _ = looks.tick() => connections.look(),
        }
    }
    for client in waiting_clients(listener) {
        open(&mut connections, &mut door, client);
    }
    connections.drain().await;
}

/// Whom the kernel has let in already: they may have asked, too. Closes the listener.
fn waiting_clients(listener: TcpListener) -> Vec<Client> {
    let Ok(listener) = listener.into_std() else {
        return Vec::new();
    };
    // The listener does not block, so this ends where nobody waits any more.
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
