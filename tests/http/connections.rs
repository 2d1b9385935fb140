//! Real connections: framing, limits, pipelining and incomplete requests.

mod refusals;

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, StatusCode};
use larder::server::ServerConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{assert_problem, larder};
use crate::harness::eventually;
use crate::harness::raw_http::{exchange, fetch, parse, read_all};
use crate::harness::service::TestService;
use crate::harness::table_locks::{await_waiter, lock_table, unlock};

struct SocketServer {
    larder: TestService,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

async fn server() -> SocketServer {
    serve(larder().await).await
}

async fn serve(larder: TestService) -> SocketServer {
    let config = larder.server_config();
    serve_with(larder, config).await
}

async fn serve_with(larder: TestService, config: ServerConfig) -> SocketServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async {
        stopped.await.ok();
    };
    let public = larder.public();
    let refusing = public.clone();
    let ended = tokio::spawn(larder::http::connection::serve_http(
        listener,
        move |peer| public.for_connection(peer),
        move |peer, status, bytes| refusing.log_refusal(peer, status, bytes),
        vec![Handle::current()],
        config,
        stopped,
    ));
    SocketServer {
        larder,
        address,
        stop,
        ended,
    }
}

/// The statuses of all responses in `received`.
fn statuses(received: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(received);
    text.split("HTTP/1.")
        .skip(1)
        .map(|response| response.split(' ').nth(1).unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_are_refused_and_harm_no_other_connection() {
    let server = server().await;
    let huge_uri = format!(
        "GET /tags/{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "x".repeat(100_000)
    );
    let huge_header = format!(
        "GET /items/42 HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "x".repeat(1_000_000)
    );
    let many_headers = format!(
        "GET /items/42 HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
        "X: y\r\n".repeat(1_000)
    );
    let mut answered = 0;
    for request in [
        b"\0\0\0\0\0\0\0\0\r\n\r\n".as_slice(),
        b"GET\r\n\r\n",
        b"GET /items/42\r\n\r\n",
        b"GET /items/42 HTTP/9.9\r\n\r\n",
        b"GET /items/4 2 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET items/42 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"G\xffT /items/42 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /items/42 HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /items/42 HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /items/42 HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello\r\n\r\n",
        huge_uri.as_bytes(),
        huge_header.as_bytes(),
        many_headers.as_bytes(),
    ] {
        let received = exchange(server.address, request).await;
        let start = String::from_utf8_lossy(&request[..request.len().min(60)]);
        let statuses = statuses(&received);
        assert!(
            statuses.iter().all(|status| status.starts_with('4')) && statuses.len() <= 1,
            "{start}: {statuses:?}"
        );
        // What a client still sends may reset the connection before it has read the answer.
        if !received.is_empty() {
            let answer = parse(&received);
            assert_problem(&answer, answer.status.as_u16());
            assert_eq!(answer.header("connection"), "close", "{start}");
            answered += 1;
        }
    }
    assert!(answered >= 10, "{answered}");
    let answer = fetch(server.address, "GET", "/items/42").await;
    assert_eq!(answer.status, StatusCode::OK);
}

/// A proxy and larder could disagree on the host or on the end of such a request.
#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_heads_are_a_problem() {
    let server = server().await;
    for (head, status) in [
        ("HTTP/1.1\r\nHost: localhost\r\n", 200),
        ("HTTP/1.0\r\n", 200),
        ("HTTP/1.1\r\n", 400),
        ("HTTP/1.1\r\nHost: localhost\r\nHost: 127.0.0.1\r\n", 400),
        ("HTTP/1.0\r\nHost: localhost\r\nHost: localhost\r\n", 400),
        ("HTTP/1.1\r\nHost: :80\r\n", 400),
        ("HTTP/1.1\r\nHost: [foo]\r\n", 400),
    ] {
        let request = format!("GET /items/42 {head}Connection: close\r\n\r\n");
        let answer = parse(&exchange(server.address, request.as_bytes()).await);
        assert_eq!(answer.status.as_u16(), status, "{head}");
        if status == 400 {
            super::assert_problem(&answer, 400);
        }
    }
    for (coding, status) in [
        ("chunked", 200),
        ("identity, chunked", 400),
        ("gzip, chunked", 400),
    ] {
        let body = r#"{"keys":[42]}"#;
        let request = format!(
            "POST /items:batch HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Transfer-Encoding: {coding}\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
        let answer = parse(&exchange(server.address, request.as_bytes()).await);
        assert_eq!(answer.status.as_u16(), status, "{coding}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_too_long_is_a_problem() {
    let server = server().await;
    for (bytes, status) in [(40 << 10, 400), (50 << 10, 414)] {
        let path = format!("/tags/{}", "x".repeat(bytes));
        let answer = fetch(server.address, "GET", &path).await;
        super::assert_problem(&answer, status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn head_sends_the_length_and_no_body() {
    let server = server().await;
    for path in ["/items/42", "/items/404", "/items/x", "/nothing"] {
        fetch(server.address, "GET", path).await;
        let get = fetch(server.address, "GET", path).await;
        // A client would not notice a body.
        let request =
            format!("HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let head = parse(&exchange(server.address, request.as_bytes()).await);
        assert_eq!(head.body, "", "{path}");
        assert_eq!(head.status, get.status, "{path}");
        for name in [
            "content-length",
            "content-type",
            "etag",
            "cache-status",
            "cache-control",
        ] {
            assert_eq!(head.header(name), get.header(name), "{path}: {name}");
        }
        assert_eq!(get.header("content-length"), get.body.len().to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn not_modified_has_no_body_and_keeps_the_connection() {
    let server = server().await;
    let etag = fetch(server.address, "GET", "/items/42")
        .await
        .header("etag")
        .to_owned();
    let request = format!(
        "GET /items/42 HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: {etag}\r\n\r\n\
         GET /items/7 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    );
    let received = exchange(server.address, request.as_bytes()).await;
    assert_eq!(statuses(&received), ["304", "200"]);
    assert!(received.ends_with(br#"{"id":7,"title":"seven"}"#));
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_requests_are_answered_in_order() {
    let server = server().await;
    let one = "GET /items/42 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let body = "POST /items/42 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nGET /";
    let last = "GET /items/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let request = format!("{one}{one}{body}{one}{last}");
    let received = exchange(server.address, request.as_bytes()).await;
    // A body that was not read is never taken for a request.
    let expected = ["200", "200", "405", "200", "400"];
    let statuses = statuses(&received);
    assert!(expected.starts_with(&statuses.iter().map(String::as_str).collect::<Vec<_>>()));
    assert!(statuses.len() >= 3, "{statuses:?}");

    let request = format!("{}{last}", one.repeat(50));
    let received = exchange(server.address, request.as_bytes()).await;
    assert_eq!(self::statuses(&received).len(), 51);
}

/// RFC 9112, section 2.2: old clients send an empty line after a request.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_does_not_wait_for_the_next_request() {
    let server = server().await;
    for rest in ["\r\n", "GET /items/4"] {
        let mut client = TcpStream::connect(server.address).await.unwrap();
        let request = format!("GET /items/42 HTTP/1.1\r\nHost: localhost\r\n\r\n{rest}");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(br#"{"id":42,"title":"answer"}"#) {
            let read = client.read_buf(&mut answer);
            let read = tokio::time::timeout(Duration::from_secs(30), read).await;
            assert_ne!(read.expect("an answer").unwrap(), 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_in_pieces_is_answered_and_others_do_not_wait_for_it() {
    let server = server().await;
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.set_nodelay(true).unwrap();
    for piece in [
        "GE",
        "T /items",
        "/42 HTTP/1.1\r\nHo",
        "st: localhost\r\nConnection: cl",
    ] {
        slow.write_all(piece.as_bytes()).await.unwrap();
        let answer = fetch(server.address, "GET", "/items/7").await;
        assert_eq!(answer.status, StatusCode::OK);
    }
    slow.write_all(b"ose\r\n\r\n").await.unwrap();
    let answer = parse(&read_all(&mut slow).await);
    assert_eq!(answer.json()["title"], "answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_answers_pending_requests_and_closes_idle_connections() {
    let server = server().await;
    // One connection without a request so far, one idle after a request, one in the middle of a request.
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    idle.write_all(b"GET /items/42 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut first = [0; 1];
    idle.read_exact(&mut first).await.unwrap();

    let url = server.larder.url.clone();
    let mut holder = lock_table(&url, "tag").await;
    let mut asked = TcpStream::connect(server.address).await.unwrap();
    asked
        .write_all(b"GET /tags/a,b HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .unwrap();
    await_waiter(&mut holder, "tag").await;
    server.stop.send(()).unwrap();
    read_all(&mut idle).await;
    read_all(&mut silent).await;
    unlock(holder).await;
    let answer = parse(&read_all(&mut asked).await);
    assert_eq!(answer.json()["n"], 3);
    server.ended.await.unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_share_one_connection_over_http2() {
    let server = server().await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    // Answers that are not read yet must not hold up the others.
    let (client, connection): (h2::client::SendRequest<Bytes>, _) = h2::client::Builder::new()
        .initial_connection_window_size(16 << 20)
        .initial_window_size(1 << 20)
        .handshake(stream)
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let mut answers = Vec::new();
    // A hit, a miss at first, a long list, an error.
    let long = format!(
        "/items?keys={}",
        vec!["1234567890123456789"; 1_000].join(",")
    );
    let asked = [
        ("GET", "/items/42"),
        ("HEAD", "/items/42"),
        ("GET", "/items/7"),
        ("GET", &long),
        ("HEAD", "/items/404"),
        ("GET", "/items/x"),
    ];
    for (method, path) in asked.iter().cycle().take(100) {
        let request = Request::builder()
            .method(*method)
            .uri(format!("http://localhost{path}"));
        let (answer, _) = client
            .send_request(request.body(()).unwrap(), true)
            .unwrap();
        answers.push((method, path, answer));
        client = client.ready().await.unwrap();
    }
    for (method, path, answer) in answers {
        let answer = answer.await.unwrap();
        let (head, mut stream) = answer.into_parts();
        let mut body = Vec::new();
        while let Some(data) = stream.data().await {
            body.extend_from_slice(&data.unwrap());
        }
        let expected = fetch(server.address, method, path).await;
        assert_eq!(head.status, expected.status, "{path}");
        assert_eq!(
            head.headers["content-length"],
            expected.header("content-length")
        );
        assert_eq!(String::from_utf8(body).unwrap(), expected.body, "{path}");
    }
    // A stop ends the connection, although the client would send more.
    server.stop.send(()).unwrap();
    connection.await.unwrap().unwrap();
    server.ended.await.unwrap();
}

/// Zeros that are ignored make a path long that leads to a document in memory.
#[tokio::test(flavor = "multi_thread")]
async fn memory_does_not_answer_a_path_that_is_too_long() {
    let columns: Vec<String> = (1..=13).map(|number| format!("c{number}")).collect();
    let sql = format!(
        "create table wide ({} int, primary key ({})); insert into wide select {}",
        columns.join(" int, "),
        columns.join(", "),
        ["1"; 13].join(", "),
    );
    let larder = TestService::start(&sql, "[[resource]]\nname = 'wide'\ntable = 'wide'").await;
    eventually("the document is in memory", async || {
        let answer = larder.get(&format!("/wide/{}", ["1"; 13].join(","))).await;
        (answer.cache_status() == "larder; hit; detail=memory").then_some(())
    })
    .await;
    let path = |zeros: usize| format!("/wide/{}", vec!["0".repeat(zeros) + "1"; 13].join(","));
    assert_eq!(larder.get(&path(3_000)).await.status, StatusCode::OK);
    assert_problem(&larder.get(&path(4_000)).await, 414);
}
