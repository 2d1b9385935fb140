//! Pipelines of requests, and how their answers are sent.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::get;
use futures_util::{StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::super::*;

/// A client of `router`, and the activity of its connection.
async fn connect(router: Router) -> (TcpStream, Arc<Activity>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = TcpStream::connect(address).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    stream.set_nodelay(true).unwrap();
    let activity = Arc::new(Activity::default());
    let socket = Socket::plain(stream, Arc::clone(&activity));
    let counted = Arc::clone(&activity);
    tokio::spawn(serve_connection(
        socket,
        router,
        HttpConfig {
            is_http2: false,
            body_timeout: Duration::from_secs(30),
            hsts: None,
        },
        counted,
    ));
    (client, activity)
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n")
}

async fn read_until(client: &mut TcpStream, end: impl Fn(&str) -> bool) -> String {
    let mut received = Vec::new();
    while !end(&String::from_utf8_lossy(&received)) {
        let read = timeout(Duration::from_secs(30), client.read_buf(&mut received)).await;
        assert_ne!(read.expect("an answer").unwrap(), 0);
    }
    String::from_utf8(received).unwrap()
}

#[tokio::test]
async fn answers_to_a_pipeline_are_sent_together() {
    let (mut client, activity) = connect(Router::new().route("/", get(async || "text"))).await;
    let mut steps = 0;
    // The first answer may be the only one. A client that has pipelined requests is expected to do so again.
    for writes_max in [3, 2] {
        let requests = request("/").repeat(16);
        client.write_all(requests.as_bytes()).await.unwrap();
        let all = |received: &str| received.matches("\r\n\r\ntext").count() == 16;
        read_until(&mut client, all).await;
        let before = std::mem::replace(&mut steps, activity.progress.load(Ordering::Relaxed));
        let writes = steps - before - 16;
        assert!(writes <= writes_max, "{writes}");
    }
}

#[tokio::test]
async fn answers_of_any_length_come_whole_and_in_order() {
    let router = Router::new().route(
        "/{length}",
        get(async |Path(length): Path<usize>| "x".repeat(length)),
    );
    let (mut client, _) = connect(router).await;
    let lengths = [
        1, 100_000, 16_000, 0, 16_000, 20_000, 16_000, 16_000, 16_000, 7,
    ]
    .repeat(40);
    let requests: String = lengths
        .iter()
        .map(|length| request(&format!("/{length}")))
        .collect();
    client.write_all(requests.as_bytes()).await.unwrap();
    client.shutdown().await.unwrap();
    let mut received = String::new();
    client.read_to_string(&mut received).await.unwrap();
    let mut rest = received.as_str();
    for length in lengths {
        let (head, after) = rest.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("content-length: {length}\r\n")),
            "{head}"
        );
        let (body, after) = after.split_at(length);
        assert!(body.bytes().all(|byte| byte == b'x'));
        rest = after;
    }
    assert_eq!(rest, "");
}

#[tokio::test]
async fn answers_are_sent_however_the_connection_ends() {
    let offer = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n";
    let last = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let half = request("/").repeat(2) + "GET / HT";
    for sent in [offer.to_owned() + last, half] {
        let router = Router::new().route("/", get(async || "text"));
        let (mut client, _) = connect(router).await;
        client.write_all(sent.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut received = String::new();
        client.read_to_string(&mut received).await.unwrap();
        assert_eq!(received.matches("\r\n\r\ntext").count(), 2, "{received}");
    }
}

#[tokio::test]
async fn parts_of_an_answer_are_sent_as_they_are_made() {
    let begun = async || {
        let begin = stream::iter([Ok::<_, Infallible>("begin")]);
        Body::from_stream(begin.chain(stream::pending()))
    };
    let router = Router::new()
        .route("/", get(async || "text"))
        .route("/begun", get(begun));
    let (mut client, _) = connect(router).await;
    let requests = request("/").repeat(2) + &request("/begun");
    client.write_all(requests.as_bytes()).await.unwrap();
    read_until(&mut client, |received| received.contains("begin")).await;
}
