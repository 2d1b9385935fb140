use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use nix::sys::select::FD_SETSIZE;
use testkit::raw;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::harness::process::{find_program, raise_open_files};
use crate::labs::models::contender::Contender;
use crate::labs::models::model::{self, Model, POOL_THREADS};
use crate::labs::models::request::{Answer, HEAD_BYTES_MAX};
use crate::labs::models::{Series, Sockets, settings};

const REQUEST: &str = "GET /depts/42 HTTP/1.1\r\nHost: localhost\r\n\r\n";
const RESPONSE: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{\"a\":1.5}";

fn start(model: Model, is_rendered: bool) -> SocketAddr {
    let answer = Answer::new(RESPONSE, is_rendered).unwrap();
    model::start(model, &Arc::new(answer)).unwrap()
}

/// Sends `pieces` and expects answers with these statuses; 0 is the end of the connection.
///
/// Over a plain socket: no HTTP client sends requests in pieces, or many in one write.
async fn exchange(client: &mut TcpStream, pieces: &[&str], statuses: &[u16]) {
    for piece in pieces {
        client.write_all(piece.as_bytes()).await.unwrap();
    }
    for expected in statuses {
        let answer = timeout(Duration::from_secs(20), receive(client));
        let (status, body) = answer.await.unwrap();
        assert_eq!(status, *expected);
        assert!(status != 200 || body == b"{\"a\":1.5}");
    }
}

/// Receives the status and the body of the next answer; 0 at the end of the connection.
async fn receive(client: &mut TcpStream) -> (u16, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = client.read_u8().await else {
            return (0, Vec::new());
        };
        head.push(byte);
    }
    let head = raw::parse(&head).unwrap();
    let mut body = vec![0; head.header("content-length").parse().unwrap()];
    client.read_exact(&mut body).await.unwrap();
    (head.status, body)
}

/// Sends one request, many at once, many in pieces, and heads that are too long.
async fn check(address: SocketAddr) {
    let many = REQUEST.repeat(1_000);
    let endless = format!(
        "{REQUEST}GET / HTTP/1.1\r\nX: {}",
        "a".repeat(HEAD_BYTES_MAX)
    );
    let long = format!("{endless}\r\n\r\n");
    for (pieces, statuses) in [
        (vec![REQUEST], vec![200]),
        (vec![&many], vec![200; 1_000]),
        (vec![&endless], vec![200, 431, 0]),
        (vec![&long], vec![200, 431, 0]),
    ] {
        let mut client = TcpStream::connect(address).await.unwrap();
        exchange(&mut client, &pieces, &statuses).await;
    }
    let mut client = TcpStream::connect(address).await.unwrap();
    for at in 1..REQUEST.len() {
        // Once the first request is answered, the beginning of the second has been read.
        let (begin, end) = REQUEST.split_at(at);
        exchange(&mut client, &[&format!("{REQUEST}{begin}")], &[200]).await;
        exchange(&mut client, &[end], &[200]).await;
    }
}

#[tokio::test]
async fn every_model_answers_pipelined_split_and_oversized_requests() {
    let runs = |model: &Model| *model != Model::Uring || compio::runtime::Runtime::new().is_ok();
    let models = Model::value_variants().iter().copied();
    for model in models.filter(|model| model.renders() && runs(model)) {
        for is_rendered in [false, true] {
            eprintln!("{model:?}, rendered: {is_rendered}");
            check(start(model, is_rendered)).await;
        }
    }
    check_limit_of_select().await;
}

#[tokio::test]
async fn java_answers_pipelined_split_and_oversized_requests() {
    // A runtime alone may lack the compiler, which the source needs.
    if find_program("javac", "").is_err() {
        eprintln!("SKIPPED: there is no JDK");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("response");
    std::fs::write(&file, RESPONSE).unwrap();
    for model in [Model::NioPoll, Model::NioEpoll] {
        eprintln!("{model:?}");
        let server = Contender::start(model, "0", &file, false).await.unwrap();
        check(server.address).await;
        assert_eq!(server.stop().await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_full_pool_closes_a_connection_or_lets_it_wait() {
    for (model, status) in [(Model::Threads20Close, 0), (Model::Threads20, 200)] {
        let address = start(model, false);
        let mut clients = Vec::new();
        for _ in 0..POOL_THREADS {
            let mut client = TcpStream::connect(address).await.unwrap();
            exchange(&mut client, &[REQUEST], &[200]).await;
            clients.push(client);
        }
        let mut last = TcpStream::connect(address).await.unwrap();
        if status == 200 {
            last.write_all(REQUEST.as_bytes()).await.unwrap();
            clients.clear();
        }
        exchange(&mut last, &[], &[status]).await;
    }
}

/// Opens more connections than select can wait for. Their descriptors, of both ends, leave none for other tests of it.
async fn check_limit_of_select() {
    raise_open_files().unwrap();
    let address = start(Model::Select, false);
    let mut clients = Vec::new();
    for _ in 0..FD_SETSIZE {
        clients.push(TcpStream::connect(address).await.unwrap());
    }
    exchange(&mut clients[0], &[REQUEST], &[200]).await;
    exchange(&mut clients[FD_SETSIZE - 1], &[], &[0]).await;
}

#[test]
fn some_connections_are_served_on_some_cores_too() {
    let settings = settings("3-6", &[20], &[Series::Rendered]).unwrap();
    let told = settings
        .iter()
        .map(|one| format!("{} ({})", one.name, one.cores));
    let wanted = "rendered, 20 connections (3,4,5,6); rendered, 100 connections, 1 of 4 cores (3); \
        rendered, 100 connections, 2 of 4 cores (3,4); rendered, 100 connections, 4 of 4 cores (3,4,5,6)";
    assert_eq!(told.collect::<Vec<_>>().join("; "), wanted);
}

#[test]
fn a_connection_is_silent_if_its_request_has_waited_long_enough() {
    // Of iproute2 6.1.
    let lines = "LISTEN 2 128 127.0.0.1:36225 0.0.0.0:* bbr cwnd:10 unacked:2
        ESTAB 0 0 127.0.0.1:36225 127.0.0.1:53697 bbr rto:200 segs_in:2 lastsnd:700 lastrcv:700 lastack:700
        ESTAB 3 0 127.0.0.1:36225 127.0.0.1:53698 bbr rto:208 bytes_received:3 segs_out:1 lastsnd:700 lastrcv:2100
        ESTAB 3 0 127.0.0.1:36225 127.0.0.1:53699 bbr rto:208 bytes_received:3 segs_out:1 lastsnd:700 lastrcv:1900
        ESTAB 0 0 127.0.0.1:36225 127.0.0.1:53700 bbr rto:204 bytes_sent:5 bytes_acked:5 bytes_received:3 lastrcv:2900
        TIME-WAIT 0 0 127.0.0.1:36225 127.0.0.1:53701";
    let counted = Sockets::of(lines);
    assert_eq!((counted.asked, counted.silent, counted.backlog), (3, 1, 2));
}
