//! The accept loop: connections over HTTP/1.1 and HTTP/2, how long they may idle, and their end.
//!
//! Each connection stays on the runtime it was given to: it meets no lock and no other thread on its way to an answer.
//!
//! hyper's own timeout for request heads would start a timer for each request. Here all connections are looked at now
//! and then: one that has neither asked nor taken anything since the last look is closed, whether it is idle, sends
//! its request drop by drop, or does not read its answer.

mod connection;
mod progress;
mod socket;

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream as StdStream};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use axum::http::{Request, Response};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tower_service::Service;

use crate::http::accept::connection::serve_connection;
use crate::http::accept::progress::{Order, Progress, Stage};

/// Looks at an open connection are this far apart; nginx's `keepalive_timeout` is the same.
const IDLE_MAX: Duration = Duration::from_secs(75);
/// The same once larder is to stop.
const DRAIN_IDLE_MAX: Duration = Duration::from_secs(2);
/// Clients that the kernel lets in before they are accepted, as tokio asks for when it binds.
const BACKLOG_MAX: usize = 1_024;
/// Pause after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The client's address; one of IPv4 is never written as one of IPv6.
    pub address: IpAddr,
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
    stop: impl Future<Output = ()>,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send,
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static,
{
    let mut connections = Connections::default();
    let mut runtimes = runtimes.iter().cycle();
    let mut open = |connections: &mut Connections, (stream, address): (StdStream, SocketAddr)| {
        if let Some(runtime) = runtimes.next() {
            let progress = Arc::new(Progress::default());
            let address = address.ip().to_canonical();
            let served = serve_connection(
                stream,
                Peer { address },
                make.clone(),
                Arc::clone(&progress),
            );
            connections.spawn(served, progress, runtime);
        }
    };
    let mut looks = interval_at(Instant::now() + IDLE_MAX, IDLE_MAX);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stop = pin!(stop);
    let mut refused = false;
    loop {
        tokio::select! {
            () = &mut stop => break,
            accepted = accept(&listener) => match accepted {
                Ok(client) => {
                    refused = false;
                    open(&mut connections, client);
                }
                Err(error) if concerns_one_client(&error) => {}
                Err(error) => {
                    // Once for each spell, not for each attempt.
                    if !std::mem::replace(&mut refused, true) {
                        tracing::warn!("connections can't be accepted for now: {error}");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(ended) = connections.tasks.join_next_with_id() => connections.forget(ended),
            _ = looks.tick() => connections.look(Stage::Serving),
        }
    }
    for client in waiting_clients(listener) {
        open(&mut connections, client);
    }
    connections.drain().await;
}

async fn accept(listener: &TcpListener) -> io::Result<(StdStream, SocketAddr)> {
    let (stream, address) = listener.accept().await?;
    Ok((stream.into_std()?, address))
}

/// Whom the kernel has let in already: they may have asked, too. Closes the listener.
fn waiting_clients(listener: TcpListener) -> Vec<(StdStream, SocketAddr)> {
    let Ok(listener) = listener.into_std() else {
        return Vec::new();
    };
    // The listener does not block, so this ends where nobody waits any more.
    std::iter::from_fn(|| listener.accept().ok())
        .take(BACKLOG_MAX)
        .filter(|(stream, _)| stream.set_nonblocking(true).is_ok())
        .collect()
}

fn concerns_one_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset
    )
}

/// The open connections.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    looked_at: HashMap<Id, LookedAt>,
}

struct LookedAt {
    progress: Arc<Progress>,
    /// Its steps at the last look.
    steps: Option<u64>,
}

impl Connections {
    fn spawn(
        &mut self,
        served: impl Future<Output = ()> + Send + 'static,
        progress: Arc<Progress>,
        runtime: &Handle,
    ) {
        let task = self.tasks.spawn_on(served, runtime);
        let looked_at = LookedAt {
            progress,
            steps: None,
        };
        self.looked_at.insert(task.id(), looked_at);
    }

    fn forget(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => {
                tracing::error!("a connection's task failed: {error}");
                error.id()
            }
        };
        self.looked_at.remove(&id);
    }

    /// Closes connections that have made no progress since the last look.
    fn look(&mut self, stage: Stage) {
        for LookedAt { progress, steps } in self.looked_at.values_mut() {
            let now = progress.steps.load(Ordering::Relaxed);
            if *steps == Some(now) && !progress.owes(stage) {
                progress.idle_at.store(now, Ordering::Relaxed);
                progress.order(Order::Close);
            }
            *steps = Some(now);
        }
    }

    /// Lets each connection end after the answers at hand, and ends when all have.
    async fn drain(mut self) {
        for LookedAt { progress, steps } in self.looked_at.values_mut() {
            *steps = Some(progress.steps.load(Ordering::Relaxed));
            progress.order(Order::Drain);
        }
        let mut looks = interval_at(Instant::now() + DRAIN_IDLE_MAX, DRAIN_IDLE_MAX);
        loop {
            tokio::select! {
                ended = self.tasks.join_next_with_id() => match ended {
                    Some(ended) => self.forget(ended),
                    None => return,
                },
                _ = looks.tick() => self.look(Stage::Draining),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;

    use super::*;

    /// An address that answers `GET /` with `text`, and what stops it.
    async fn start(text: String) -> (TcpStream, oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        // The answer takes long enough for the end of the client's half to come first.
        let router = Router::new().route(
            "/",
            get(async || {
                sleep(Duration::from_millis(20)).await;
                text
            }),
        );
        let here = vec![Handle::current()];
        let serving = tokio::spawn(serve(listener, move |_| router.clone(), here, async {
            let _dropped = stopped.await;
        }));
        let client = TcpStream::connect(address).await.unwrap();
        (client, stop, serving)
    }

    /// With the clock paused, time passes as soon as nobody has anything to do.
    #[tokio::test(start_paused = true)]
    async fn who_neither_asks_nor_reads_is_closed() {
        for sent in ["", "GET / HT"] {
            let (mut client, _stop, _serving) = start("text".into()).await;
            client.write_all(sent.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            // Unread bytes make the end a reset.
            let _reset = client.read_to_end(&mut answer).await;
            assert!(answer.is_empty());
        }
    }

    #[tokio::test]
    async fn a_half_closed_connection_gets_its_answer() {
        let (mut client, _stop, _serving) = start("text".into()).await;
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        client.write_all(request).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("\r\n\r\ntext"), "{answer}");
    }

    #[tokio::test]
    async fn each_connection_has_a_service_of_its_own() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // It counts its own requests.
        let make = |peer: Peer| {
            let mut count = 0;
            tower::service_fn(move |_: Request<Incoming>| {
                count += 1;
                let text = format!("{} {count};", peer.address);
                async { Ok::<_, Infallible>(Response::new(axum::body::Body::from(text))) }
            })
        };
        let here = vec![Handle::current()];
        let _serving = tokio::spawn(serve(listener, make, here, std::future::pending()));
        for _ in 0..2 {
            let mut client = TcpStream::connect(address).await.unwrap();
            let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(2);
            client.write_all(&request).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answers = String::new();
            client.read_to_string(&mut answers).await.unwrap();
            let told = |text| answers.matches(text).count();
            assert_eq!((told("127.0.0.1 1;"), told("127.0.0.1 2;")), (1, 1));
        }
    }

    #[tokio::test]
    async fn a_stop_answers_those_who_wait_to_be_accepted() {
        // Stop and the client are there at once; either may be seen first.
        for _ in 0..20 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap())
                .await
                .unwrap();
            let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
            client.write_all(request).await.unwrap();
            let router = Router::new().route("/", get(async || "text"));
            let here = vec![Handle::current()];
            let make = move |_| router.clone();
            serve(listener, make, here, std::future::ready(())).await;
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.ends_with("\r\n\r\ntext"), "{answer}");
        }
    }

    /// A client that keeps its connection may have sent its next request just when larder was told to stop: closing at
    /// once cost some of them at every stop under load.
    #[tokio::test(start_paused = true)]
    async fn a_stop_answers_who_asks_again_and_says_that_it_was_the_last() {
        let (mut client, stop, serving) = start("text".into()).await;
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let mut answer = Vec::new();
        client.write_all(request).await.unwrap();
        while !answer.ends_with(b"\r\n\r\ntext") {
            assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0);
        }
        stop.send(()).unwrap();
        sleep(DRAIN_IDLE_MAX / 2).await;
        client.write_all(request).await.unwrap();
        let mut last = String::new();
        client.read_to_string(&mut last).await.unwrap();
        assert!(last.contains("\r\nconnection: close\r\n"), "{last}");
        assert!(last.ends_with("\r\n\r\ntext"), "{last}");
        serving.await.unwrap();
    }

    /// Nobody has to ask again for larder to end.
    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_a_kept_connection() {
        let (mut client, stop, serving) = start("text".into()).await;
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        client.write_all(request).await.unwrap();
        let mut answer = vec![0; 1];
        client.read_exact(&mut answer).await.unwrap();
        stop.send(()).unwrap();
        client.read_to_end(&mut answer).await.unwrap();
        serving.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_for_a_slow_reader() {
        let length = 64 << 20;
        let (mut client, stop, serving) = start("x".repeat(length)).await;
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        client.write_all(request).await.unwrap();
        let mut answer = vec![0; 1];
        client.read_exact(&mut answer).await.unwrap();
        stop.send(()).unwrap();
        sleep(Duration::from_secs(60)).await;
        client.read_to_end(&mut answer).await.unwrap();
        assert!(answer.len() > length);
        serving.await.unwrap();
    }

    /// Over HTTP/2 it is not the socket that is full: the client has not said that more may come.
    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_for_a_slow_reader_over_http2() {
        let length = 1 << 20;
        let (client, stop, serving) = start("x".repeat(length)).await;
        let (client, connection) = h2::client::handshake(client).await.unwrap();
        let reading = tokio::spawn(connection);
        let mut client = client.ready().await.unwrap();
        let request = Request::get("http://a/").body(()).unwrap();
        let (answer, _) = client.send_request(request, true).unwrap();
        let mut body = answer.await.unwrap().into_body();
        stop.send(()).unwrap();
        sleep(Duration::from_secs(60)).await;
        let mut read = 0;
        while let Some(part) = body.data().await {
            let bytes = part.unwrap().len();
            body.flow_control().release_capacity(bytes).unwrap();
            read += bytes;
        }
        assert_eq!(read, length);
        drop(client);
        reading.await.unwrap().unwrap();
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn a_stop_ends_what_has_not_asked_and_finishes_what_has() {
        let length = 8 << 20;
        let (mut reading, stop, serving) = start("x".repeat(length)).await;
        let mut half = TcpStream::connect(reading.peer_addr().unwrap())
            .await
            .unwrap();
        half.write_all(b"GET / HT").await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        reading.write_all(request).await.unwrap();
        let mut answer = vec![0; 1];
        reading.read_exact(&mut answer).await.unwrap();
        stop.send(()).unwrap();
        reading.read_to_end(&mut answer).await.unwrap();
        assert!(answer.len() > length);
        serving.await.unwrap();
    }
}
