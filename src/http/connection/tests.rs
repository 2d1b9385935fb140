//! Connections and their limits, with a clock that advances when no task can run.

mod multiplexed;
mod pipeline;
mod stops;

use std::future::ready;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::body::Bytes;
use axum::routing::{get, post};
use futures_util::stream::{self, StreamExt};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio::time::sleep;

use super::*;
use crate::metrics::Metrics;
use crate::server::{ClientCounts, Limits};

/// Limits of which only the times matter here.
fn config() -> ServerConfig {
    let limits = Limits {
        connections: 10,
        connections_per_address: 10,
        header_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_secs(75),
        body_timeout: Duration::from_secs(30),
        write_timeout: Duration::from_secs(60),
        requests_per_second: 0,
        burst: 1,
        trusted_proxies: Vec::new(),
        proxy_protocol: Vec::new(),
    };
    let metrics = Arc::new(Metrics::new().unwrap());
    ServerConfig {
        limits,
        metrics,
        clients: ClientCounts::default(),
        tls: None,
    }
}

/// Answers `GET /` with `text`, after a time that is long enough for the end of the client's half to come first.
fn router(text: String) -> Router {
    let answer = async || {
        sleep(Duration::from_millis(20)).await;
        text
    };
    Router::new().route("/", get(answer))
}

/// A client of a server that answers `GET /` with `text`, and the sender that stops the server.
async fn start(text: String) -> (TcpStream, oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let (address, stop, serving) = listen(router(text), config()).await;
    let client = TcpStream::connect(address).await.unwrap();
    (client, stop, serving)
}

/// The address of a server that answers by `router`, and the sender that stops it.
async fn listen(
    router: Router,
    config: ServerConfig,
) -> (SocketAddr, oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let here = vec![Handle::current()];
    let make = move |_| router.clone();
    let serving = tokio::spawn(serve_http(
        listener,
        make,
        |_, _, _| {},
        here,
        config,
        async {
            let _dropped = stopped.await;
        },
    ));
    (address, stop, serving)
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

fn closed(config: &ServerConfig, reason: &str) -> u64 {
    let counters = &config.metrics.connections_closed;
    counters.with_label_values(&[reason]).get()
}

/// Reads to the end of the connection; a reset is one too, which the kernel sends if the server left bytes unread.
async fn read_all(client: &mut TcpStream) -> String {
    let mut received = Vec::new();
    let _reset = client.read_to_end(&mut received).await;
    String::from_utf8_lossy(&received).into_owned()
}

/// The number of whole seconds until `client` is closed, while it sends `drop` each second.
async fn seconds_until_closed(client: TcpStream, drop: &'static [u8]) -> u64 {
    let began = Instant::now();
    let (mut reading, mut writing) = client.into_split();
    let dripping = tokio::spawn(async move {
        while writing.write_all(drop).await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    });
    let mut received = Vec::new();
    let _reset = reading.read_to_end(&mut received).await;
    dripping.abort();
    began.elapsed().as_secs()
}

/// A response whose parts are sent as soon as they are known, as that to a lenient bulk write.
#[tokio::test(start_paused = true)]
async fn an_answer_that_begins_before_its_request_ends_is_made_to_the_end() {
    let config = config();
    let early = async |body: Body| {
        let rest = async { body.collect().await.map(|_| Bytes::from("end")) };
        let begun = stream::once(ready(Ok(Bytes::from("begun "))));
        Body::from_stream(begun.chain(stream::once(rest)))
    };
    let router = Router::new().route("/", post(early));
    let (address, _stop, _serving) = listen(router, config.clone()).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    // Else the kernel keeps small writes back, by a clock that is not paused.
    client.set_nodelay(true).unwrap();
    let head = b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 20\r\n\r\n";
    client.write_all(head).await.unwrap();
    for _ in 0..20 {
        client.write_all(b"x").await.unwrap();
        sleep(Duration::from_secs(1)).await;
    }
    let answer = read_all(&mut client).await;
    assert!(answer.contains("end"), "{answer}");
    assert_eq!(closed(&config, "header"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_head_in_time_is_closed() {
    let config = config();
    let router = Router::new().route("/", get(async || "text"));
    let (address, _stop, _serving) = listen(router, config.clone()).await;
    let mut count = 0;
    for begun in [
        b"".as_slice(),
        b"GET / HT",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        for drop in [b"".as_slice(), b"x"] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(begun).await.unwrap();
            let seconds = seconds_until_closed(client, drop).await;
            // HTTP/2 takes no such bytes.
            assert!(seconds <= 7, "{begun:?} {seconds}");
            count += u64::from(seconds >= 5);
        }
    }
    assert!(count >= 5, "{count}");
    assert_eq!(closed(&config, "header"), count);
}

#[tokio::test(start_paused = true)]
async fn a_second_head_has_its_timeout_from_its_first_byte() {
    let config = config();
    let router = Router::new().route("/", get(async || "text"));
    let (address, _stop, _serving) = listen(router, config.clone()).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    for _ in 0..3 {
        client.write_all(REQUEST).await.unwrap();
        let mut answer = vec![0; 1];
        while !answer.ends_with(b"\r\n\r\ntext") {
            client.read_buf(&mut answer).await.unwrap();
        }
        sleep(Duration::from_secs(60)).await;
    }
    client.write_all(b"GET / HT").await.unwrap();
    let seconds = seconds_until_closed(client, b"x").await;
    assert!((5..=7).contains(&seconds), "{seconds}");
    assert_eq!(closed(&config, "header"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed() {
    let config = config();
    let echo = post(async |text: String| text);
    let router = Router::new().route("/", get(async || "text").merge(echo));
    let (address, _stop, _serving) = listen(router, config.clone()).await;
    let post = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n".as_slice();
    for (request, body) in [(REQUEST, b"".as_slice()), (post, b"text")] {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(request).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        client.write_all(body).await.unwrap();
        let began = Instant::now();
        assert!(read_all(&mut client).await.ends_with("text"));
        let seconds = began.elapsed().as_secs();
        assert!((75..=77).contains(&seconds), "{seconds}");
    }
    assert_eq!(closed(&config, "idle"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_disconnected() {
    let config = config();
    let router = Router::new().route("/", get(async || "x".repeat(64 << 20)));
    let (address, _stop, _serving) = listen(router, config.clone()).await;
    let mut over_http1 = TcpStream::connect(address).await.unwrap();
    over_http1.write_all(REQUEST).await.unwrap();
    let over_http2 = TcpStream::connect(address).await.unwrap();
    let (client, connection) = h2::client::handshake(over_http2).await.unwrap();
    let reading = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = Request::get("http://a/").body(()).unwrap();
    let (answer, _) = client.send_request(request, true).unwrap();
    let answer = answer.await.unwrap();
    sleep(Duration::from_secs(58)).await;
    assert_eq!(closed(&config, "write"), 0);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(closed(&config, "write"), 2);
    assert!(read_all(&mut over_http1).await.len() < 64 << 20);
    drop((answer, client));
    let _closed = reading.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_body_must_come_fast_enough() {
    let length = async |body: Body| match axum::body::to_bytes(body, usize::MAX).await {
        Ok(bytes) => bytes.len().to_string(),
        Err(error) => error.to_string(),
    };
    let router = Router::new().route("/", post(length));
    let (address, _stop, _serving) = listen(router, config()).await;
    for (bytes, expected, seconds) in [
        (1, "the request body arrived too slowly", 30),
        (600, "72000", 120),
    ] {
        let mut client = TcpStream::connect(address).await.unwrap();
        let began = Instant::now();
        let length = 120 * bytes;
        let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
        client.write_all(head.as_bytes()).await.unwrap();
        let (mut reading, mut writing) = client.split();
        let sending = async {
            for _ in 0..120 {
                if writing.write_all(&b"x".repeat(bytes)).await.is_err() {
                    break;
                }
                sleep(Duration::from_secs(1)).await;
            }
        };
        let mut answer = vec![0; 1];
        let answered = async {
            while !String::from_utf8_lossy(&answer).contains(expected) {
                assert_ne!(reading.read_buf(&mut answer).await.unwrap(), 0);
            }
            began.elapsed().as_secs()
        };
        let took = tokio::select! {
            took = answered => took,
            () = async { sending.await; std::future::pending().await } => unreachable!(),
        };
        assert!((seconds - 1..=seconds + 1).contains(&took), "{took}");
    }
}

#[tokio::test]
async fn connections_are_limited() {
    for reason in ["connections", "connections_per_address"] {
        let mut config = config();
        match reason {
            "connections" => config.limits.connections = 2,
            _ => config.limits.connections_per_address = 2,
        }
        let router = Router::new().route("/", get(async || "text"));
        let (address, _stop, _serving) = listen(router, config.clone()).await;
        let mut first = TcpStream::connect(address).await.unwrap();
        let _second = TcpStream::connect(address).await.unwrap();
        let mut third = TcpStream::connect(address).await.unwrap();
        assert_eq!(read_all(&mut third).await, "");
        assert_eq!(closed(&config, reason), 1);
        first.write_all(REQUEST).await.unwrap();
        first.shutdown().await.unwrap();
        assert!(read_all(&mut first).await.ends_with("text"));
        // The end of the first makes room, as soon as larder has seen it.
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let mut fourth = TcpStream::connect(address).await.unwrap();
            let _reset = fourth.write_all(REQUEST).await;
            let _reset = fourth.shutdown().await;
            if read_all(&mut fourth).await.ends_with("text") {
                break;
            }
            assert!(Instant::now() < deadline);
        }
    }
}

/// Each address counted for itself.
#[tokio::test]
async fn a_clients_connections_to_all_addresses_count() {
    let mut config = config();
    config.limits.connections_per_address = 1;
    let router = Router::new().route("/", get(async || "text"));
    let (public, _stop, _serving) = listen(router.clone(), config.clone()).await;
    let (admin, _stop_admin, _serving_admin) = listen(router, config.clone()).await;
    let mut first = TcpStream::connect(public).await.unwrap();
    first.write_all(REQUEST).await.unwrap();
    first.read_u8().await.unwrap();
    let mut second = TcpStream::connect(admin).await.unwrap();
    assert_eq!(read_all(&mut second).await, "");
    assert_eq!(closed(&config, "connections_per_address"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_trusted_proxy_names_its_client() {
    let mut config = config();
    config.limits.connections_per_address = 1;
    config.limits.proxy_protocol = vec!["127.0.0.1/32".parse().unwrap()];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let make = |peer: Peer| {
        tower::service_fn(move |_: Request<RequestBody>| async move {
            let text = peer.address.to_string();
            Ok::<_, Infallible>(Response::new(Body::from(text)))
        })
    };
    let here = vec![Handle::current()];
    let never = std::future::pending();
    let _serving = tokio::spawn(serve_http(
        listener,
        make,
        |_, _, _| {},
        here,
        config.clone(),
        never,
    ));
    let ask = async |header: &str| {
        let mut client = TcpStream::connect(address).await.unwrap();
        let sent = [header.as_bytes(), REQUEST].concat();
        client.write_all(&sent).await.unwrap();
        let mut answer = Vec::new();
        let whole =
            |answer: &[u8]| answer.ends_with(b"192.0.2.1") || answer.ends_with(b"192.0.2.2");
        while !whole(&answer)
            && client
                .read_buf(&mut answer)
                .await
                .is_ok_and(|read| read > 0)
        {}
        (client, String::from_utf8(answer).unwrap())
    };
    let (_first, answer) = ask("PROXY TCP4 192.0.2.1 10.0.0.1 1 2\r\n").await;
    assert!(answer.ends_with("\r\n\r\n192.0.2.1"), "{answer}");
    let (_second, answer) = ask("PROXY TCP4 192.0.2.2 10.0.0.1 1 2\r\n").await;
    assert!(answer.ends_with("\r\n\r\n192.0.2.2"), "{answer}");
    let (_third, answer) = ask("PROXY TCP4 192.0.2.1 10.0.0.1 1 2\r\n").await;
    assert_eq!(answer, "");
    assert_eq!(closed(&config, "connections_per_address"), 1);
    let (_none, answer) = ask("").await;
    assert_eq!(answer, "");
    // Without an end of the line.
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"PROXY TCP4 ").await.unwrap();
    let seconds = seconds_until_closed(client, b"").await;
    assert!((5..=7).contains(&seconds), "{seconds}");
    assert_eq!(closed(&config, "header"), 1);
}

#[tokio::test]
async fn heads_are_bounded() {
    let router = Router::new().route("/", get(async || "text"));
    let (address, _stop, _serving) = listen(router, config()).await;
    let with = |headers: &str| format!("GET / HTTP/1.1\r\nhost: a\r\n{headers}\r\n");
    for (request, status) in [
        (with(&"a: b\r\n".repeat(99)), 200),
        (with(&"a: b\r\n".repeat(100)), 431),
        (with(&format!("a: {}\r\n", "b".repeat(60 << 10))), 200),
        (with(&format!("a: {}\r\n", "b".repeat(70 << 10))), 431),
    ] {
        let mut client = TcpStream::connect(address).await.unwrap();
        let _reset = client.write_all(request.as_bytes()).await;
        let _reset = client.shutdown().await;
        let mut answer = vec![0; 0];
        let _read = client.read_buf(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
}

/// CVE-2023-44487 ("rapid reset").
#[tokio::test]
async fn rapid_resets_end_the_connection() {
    let (client, _stop, _serving) = start("text".into()).await;
    let (mut client, connection) = h2::client::handshake(client).await.unwrap();
    for _ in 0..100 {
        let request = Request::get("http://a/").body(()).unwrap();
        let Ok((_, mut stream)) = client.send_request(request, false) else {
            break;
        };
        stream.send_reset(h2::Reason::CANCEL);
    }
    let error = connection.await.unwrap_err();
    assert_eq!(error.reason(), Some(h2::Reason::ENHANCE_YOUR_CALM));
}

/// CERT/CC VU#421644.
#[tokio::test]
async fn an_endless_header_list_ends_the_connection() {
    let (mut client, _stop, _serving) = start("text".into()).await;
    client
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await
        .unwrap();
    client
        .write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])
        .await
        .unwrap();
    // HEADERS of GET, then CONTINUATIONs with nothing in them.
    client
        .write_all(&[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82])
        .await
        .unwrap();
    let endless = [0, 0, 0, 9, 0, 0, 0, 0, 1].repeat(10_000);
    let _reset = client.write_all(&endless).await;
    let began = Instant::now();
    read_all(&mut client).await;
    assert!(began.elapsed() < Duration::from_secs(4));
}

#[tokio::test]
async fn a_half_closed_connection_gets_its_answer() {
    let (mut client, _stop, _serving) = start("text".into()).await;
    client.write_all(REQUEST).await.unwrap();
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
        tower::service_fn(move |_: Request<RequestBody>| {
            count += 1;
            let text = format!("{} {count};", peer.address);
            async { Ok::<_, Infallible>(Response::new(axum::body::Body::from(text))) }
        })
    };
    let here = vec![Handle::current()];
    let _serving = tokio::spawn(serve_http(
        listener,
        make,
        |_, _, _| {},
        here,
        config(),
        std::future::pending(),
    ));
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
