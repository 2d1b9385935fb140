//! Answers over real connections to requests that reach no handler, and what the access log has of them.

use axum::http::StatusCode;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{serve, serve_with, server, statuses};
use crate::harness::eventually;
use crate::harness::raw_http::{exchange, parse, read_all};
use crate::harness::service::TestService;
use crate::http::assert_problem;

/// hyper answers such requests without calling a service.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_not_parsed_are_problems_in_the_access_log() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("access.log");
    let config = format!(
        "access_log = 'json'\naccess_log_file = '{}'\n[[resource]]\nname = 'items'\ntable = 'item'",
        file.display()
    );
    let schema = "create table item (id int primary key); insert into item values (42)";
    let server = serve(TestService::start(schema, &config).await).await;
    let good = "GET /items/42 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(101));
    for (wrong, status) in [
        ("no request\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        (&many, 431),
    ] {
        // Alone, and behind a request that is answered.
        let alone = parse(&exchange(server.address, wrong.as_bytes()).await);
        assert_problem(&alone, status);
        let received = exchange(server.address, format!("{good}{wrong}").as_bytes()).await;
        assert_eq!(statuses(&received), ["200".to_owned(), status.to_string()]);
        let text = String::from_utf8(received).unwrap();
        let at = text.rfind("HTTP/1.1").unwrap();
        assert_problem(&parse(&text.as_bytes()[at..]), status);
    }
    let lines = eventually("the lines", async || {
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map_while(|line| serde_json::from_str(line).ok())
            .filter(|line: &serde_json::Value| line["method"] == "-")
            .collect();
        (lines.len() == 8).then_some(lines)
    })
    .await;
    let statuses: Vec<_> = lines
        .iter()
        .map(|line| line["status"].as_u64().unwrap())
        .collect();
    assert_eq!(statuses, [400, 400, 400, 400, 400, 400, 431, 431]);
    assert_eq!(lines[0]["client"], "127.0.0.1");
}

/// The client of a persistent connection would send its next request on a connection that ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_before_the_body_was_read_announces_the_end() {
    let server = server().await;
    let head =
        "POST /items HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: ";
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream
        .write_all(format!("{head}1000000\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let answer = parse(&read_all(&mut stream).await);
    assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(answer.header("connection"), "close");
    let empty = format!(
        "{head}0\r\n\r\nGET /items/42 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    );
    let received = exchange(server.address, empty.as_bytes()).await;
    assert_eq!(statuses(&received), ["415", "200"]);
    // A body that was read ends no connection, also if its length was not known before.
    let chunked = "POST /items:batch HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n\
        1\r\n[\r\n0\r\n\r\nGET /items/42 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let received = exchange(server.address, chunked.as_bytes()).await;
    assert_eq!(statuses(&received), ["400", "200"]);
}

/// What a client writes into `X-Forwarded-For` was believed if a proxy with the PROXY protocol stood between.
#[tokio::test(flavor = "multi_thread")]
async fn behind_proxy_protocol_only_a_trusted_client_names_another() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("access.log");
    let config = format!(
        "access_log = 'json'\naccess_log_file = '{}'\n\
         [limits]\ntrusted_proxies = ['127.0.0.1', '10.0.0.0/8']\n\
         [[resource]]\nname = 'items'\ntable = 'item'",
        file.display()
    );
    let schema = "create table item (id int primary key); insert into item values (42)";
    let larder = TestService::start(schema, &config).await;
    let mut server_config = larder.server_config();
    server_config.limits.proxy_protocol = vec!["127.0.0.1/32".parse().unwrap()];
    let server = serve_with(larder, server_config).await;
    for named in ["192.0.2.1", "10.0.0.1"] {
        let request = format!(
            "PROXY TCP4 {named} 127.0.0.1 1024 80\r\nGET /items/42 HTTP/1.1\r\nHost: localhost\r\n\
             X-Forwarded-For: 203.0.113.9\r\nConnection: close\r\n\r\n"
        );
        let answer = parse(&exchange(server.address, request.as_bytes()).await);
        assert_eq!(answer.status, StatusCode::OK);
    }
    // Without the header there is no connection.
    let plain = b"GET /items/42 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(exchange(server.address, plain).await, b"");
    let clients = eventually("two lines", async || {
        let text = std::fs::read_to_string(&file).unwrap();
        let lines = text
            .lines()
            .map_while(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let clients: Vec<_> = lines.map(|line| line["client"].clone()).collect();
        (clients.len() == 2).then_some(clients)
    })
    .await;
    assert_eq!(clients, ["192.0.2.1", "203.0.113.9"]);
}
