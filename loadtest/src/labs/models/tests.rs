use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use clap::ValueEnum;
use nix::sys::select::FD_SETSIZE;
use tokio::time::timeout;

use crate::harness::http::HttpConnection;
use crate::harness::process::{find_program, raise_open_files};
use crate::labs::models::answered_and_waiting;
use crate::labs::models::contender::Contender;
use crate::labs::models::model::{self, Model};
use crate::labs::models::request::{Answer, HEAD_BYTES_MAX};
use crate::labs::models::threads::POOL_THREADS;
use crate::labs::models::uring;

const REQUEST: &str = "GET /depts/42 HTTP/1.1\r\nHost: localhost\r\n\r\n";
const RESPONSE: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{\"a\":1.5}";
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// A server for the rest of the test.
struct Server(std::net::SocketAddr);

impl Server {
    fn start(model: Model, answer: Answer) -> Self {
        let listeners = model::listeners(model).unwrap();
        let address = listeners[0].local_addr().unwrap();
        let answer = Arc::new(answer);
        std::thread::spawn(move || model::serve(model, listeners, &answer, &AtomicU64::new(0)));
        Self(address)
    }

    async fn connect(&self) -> HttpConnection {
        HttpConnection::connect(self.0).await.unwrap()
    }
}

fn ready() -> Answer {
    Answer::Ready(RESPONSE.as_bytes().to_vec())
}

/// The status of the next answer, whose body has to be right where it is 200; 0 where the connection is closed.
async fn status(client: &mut HttpConnection) -> u16 {
    let answer = timeout(ANSWER_MAX, client.receive()).await.unwrap();
    answer.map_or(0, |answer| {
        assert!(answer.status != 200 || answer.body == b"{\"a\":1.5}");
        answer.status
    })
}

/// Asks in one piece, often at once, in pieces, and with too long a head.
async fn check(name: &str, server: &Server) {
    let mut client = server.connect().await;
    for count in [1, 2, 16, 1_000] {
        client.send(REQUEST.repeat(count).as_bytes()).await.unwrap();
        for _ in 0..count {
            assert_eq!(status(&mut client).await, 200, "{name}: {count} at once");
        }
    }
    for at in 1..REQUEST.len() {
        for piece in [&REQUEST[..at], &REQUEST[at..]] {
            client.send(piece.as_bytes()).await.unwrap();
            // Most servers have read the first piece by then; none may rely on it.
            tokio::task::yield_now().await;
        }
        assert_eq!(status(&mut client).await, 200, "{name}: in pieces at {at}");
    }
    let long = format!(
        "{REQUEST}GET / HTTP/1.1\r\nX: {}",
        "a".repeat(HEAD_BYTES_MAX)
    );
    for head in [long.clone() + "\r\n\r\n", long] {
        let mut client = server.connect().await;
        client.send(head.as_bytes()).await.unwrap();
        for expected in [200, 431, 0] {
            assert_eq!(status(&mut client).await, expected, "{name}");
        }
    }
}

#[tokio::test]
async fn every_model_answers_pipelined_split_and_oversized_requests() {
    let models = Model::value_variants().iter().copied();
    for model in models.filter(|model| model.renders()) {
        if model == Model::Uring && uring::runtime().is_err() {
            continue;
        }
        check(&model.name(), &Server::start(model, ready())).await;
        let rendered = Answer::rendered(RESPONSE).unwrap();
        let name = format!("{}, rendered", model.name());
        check(&name, &Server::start(model, rendered)).await;
    }
}

#[tokio::test]
async fn java_answers_pipelined_split_and_oversized_requests() {
    if find_program("java", "").is_err() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("response");
    std::fs::write(&file, RESPONSE).unwrap();
    for model in [Model::NioPoll, Model::NioEpoll] {
        let server = Contender::start(model, "0", &file, false).await.unwrap();
        check(&model.name(), &Server(server.address)).await;
        assert_eq!(server.stop().await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_full_pool_closes_a_connection_or_lets_it_wait() {
    for (model, is_refused) in [(Model::Threads20Close, true), (Model::Threads20, false)] {
        let server = Server::start(model, ready());
        let mut clients = Vec::new();
        for _ in 0..POOL_THREADS {
            let mut client = server.connect().await;
            client.send(REQUEST.as_bytes()).await.unwrap();
            assert_eq!(status(&mut client).await, 200);
            clients.push(client);
        }
        let mut last = server.connect().await;
        if is_refused {
            assert_eq!(status(&mut last).await, 0);
        } else {
            last.send(REQUEST.as_bytes()).await.unwrap();
            drop(clients);
            assert_eq!(status(&mut last).await, 200);
        }
    }
}

#[tokio::test]
async fn select_closes_what_it_can_not_wait_for() {
    raise_open_files().unwrap();
    let server = Server::start(Model::Select, ready());
    let mut clients = Vec::new();
    // Both ends of a connection are descriptors of this process.
    for _ in 0..FD_SETSIZE {
        clients.push(server.connect().await);
    }
    clients[0].send(REQUEST.as_bytes()).await.unwrap();
    assert_eq!(status(&mut clients[0]).await, 200);
    assert_eq!(status(&mut clients[FD_SETSIZE - 1]).await, 0);
}

#[test]
fn a_connection_is_answered_once_bytes_were_sent() {
    // Of iproute2 6.1.
    let sockets = "LISTEN 2 128 127.0.0.1:36225 0.0.0.0:* bbr cwnd:10 unacked:2
        ESTAB 3 0 127.0.0.1:36225 127.0.0.1:53706 bbr rto:208 bytes_received:3 segs_out:1
        ESTAB 0 0 127.0.0.1:36225 127.0.0.1:53698 bbr rto:204 bytes_sent:5 bytes_acked:5 bytes_received:3
        TIME-WAIT 0 0 127.0.0.1:36225 127.0.0.1:53699";
    assert_eq!(answered_and_waiting(sockets), (1, 2));
}
