//! `larder serve`: addresses, missing databases, signals and shutdown.

use std::time::Duration;

use axum::http::StatusCode;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;
use testkit::http::{HttpConnection, Request};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::time::Instant;

use super::{configured, value};
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::larder_process::{LarderProcess, run, stderr};
use crate::harness::raw_http::{fetch, send};
use crate::harness::service::execute;
use crate::harness::table_locks::{lock_table, unlock};

const SCHEMA: &str = "
    create table item (id bigint primary key, title text);
    insert into item select n, 'item ' || n from generate_series(1, 100) n";

/// SHA-256 of `secret`.
const SECRET_HASH: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

const CONFIG: &str = "[[resource]]\nname = 'items'\ntable = 'item'\n";

async fn start(config: &str) -> (TempDir, String, LarderProcess) {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let directory = configured(config);
    let serving = LarderProcess::start(directory.path(), Some(&url), &[]).await;
    serving.ready().await;
    (directory, url, serving)
}

async fn refuses_connections(serving: &LarderProcess) {
    eventually("no more connections", async || {
        let connected = TcpStream::connect(serving.listen).await;
        connected.is_err().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_flight_are_answered_after_sigterm() {
    const REQUESTS: usize = 20;
    // On a busy machine a delayed feed must not make requests time out. One connection at a time: SCRAM is slow in a
    // debug build, and eight handshakes at once take too long.
    let config = format!(
        "request_timeout = '1m'\n{CONFIG}[feed]\nmax_staleness = '1m'\n\
         [database]\nstatement_timeout = '1m'\nconnections = 5\n"
    );
    let (_directory, url, mut serving) = start(&config).await;
    let holder = lock_table(&url, "item").await;
    let mut requests = Vec::new();
    for key in 1..=REQUESTS {
        let request = Request::get(format!("/items/{key}"));
        requests.push(tokio::spawn(send(serving.listen, request)));
    }
    eventually("every request at PostgreSQL or before it", async || {
        let status = fetch(serving.admin, "GET", "/status").await.json();
        (status["resources"][0]["lookups"] == REQUESTS).then_some(())
    })
    .await;
    serving.signal(Signal::SIGTERM);
    refuses_connections(&serving).await;
    unlock(holder).await;
    for (index, request) in requests.into_iter().enumerate() {
        let answer = request.await.unwrap();
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.json()["id"], index + 1);
    }
    assert_eq!(serving.ended().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn sigint_ends_it_too_and_an_unfinished_request_costs_no_document_on_disk() {
    let config = format!("shutdown_timeout = '1m'\n{CONFIG}");
    let (directory, url, mut serving) = start(&config).await;
    // A client that never ends its request.
    let mut half = TcpStream::connect(serving.listen).await.unwrap();
    half.write_all(b"GET /items/1 HTTP/1.1\r\nHo")
        .await
        .unwrap();
    // The document waits for its batch, for a second by default, when larder is stopped.
    fetch(serving.listen, "GET", "/items/2").await;
    serving.signal(Signal::SIGINT);
    // All requests have been answered.
    assert_eq!(serving.ended().await.code(), Some(0));

    let serving = LarderProcess::start(directory.path(), Some(&url), &[]).await;
    serving.ready().await;
    // A request may get it from PostgreSQL: on a busy machine the disk can take too long.
    eventually("it is on disk", async || {
        let explained = fetch(serving.admin, "GET", "/explain/items/2").await.json();
        (explained["disk"]["found"] == true).then_some(())
    })
    .await;
    assert_eq!(serving.terminate().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_says_why_what_is_on_disk_is_not_used() {
    let (directory, url, serving) = start(CONFIG).await;
    fetch(serving.listen, "GET", "/items/2").await;
    assert_eq!(serving.terminate().await.code(), Some(0));
    execute(&url, "alter table item add column more int").await;

    let serving = LarderProcess::start(directory.path(), Some(&url), &[]).await;
    serving.ready().await;
    let answer = fetch(serving.listen, "GET", "/items/2").await;
    assert!(!answer.cache_status().contains("disk"));
    let log = directory.path().join("larder.log");
    eventually("the reason", async || {
        let log = std::fs::read_to_string(&log).unwrap();
        log.contains("what is on disk of items is not used")
            .then_some(())
    })
    .await;
    assert_eq!(serving.terminate().await.code(), Some(0));
}

/// A load balancer learns from `/readyz` that it is to send no more requests; until then none may be refused.
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_is_announced_before_connections_are_refused() {
    let config = format!("shutdown_delay = '1h'\n{CONFIG}");
    let (_directory, _url, mut serving) = start(&config).await;
    let mut kept = HttpConnection::connect(serving.listen).await.unwrap();
    let ask = async |client: &mut HttpConnection| {
        let answer = client.get("/items/1").await.unwrap();
        assert_eq!(answer.status, 200);
        assert!(!answer.headers.contains_key("connection"));
    };
    ask(&mut kept).await;
    serving.signal(Signal::SIGTERM);
    eventually("not ready", async || {
        let answer = fetch(serving.admin, "GET", "/readyz").await;
        (answer.status == StatusCode::SERVICE_UNAVAILABLE).then(|| {
            assert_eq!(answer.body, "larder is stopping\n");
        })
    })
    .await;
    let metrics = fetch(serving.admin, "GET", "/metrics").await.body;
    assert!(metrics.contains("\nlarder_ready 0\n"), "{metrics}");
    ask(&mut kept).await;
    ask(&mut HttpConnection::connect(serving.listen).await.unwrap()).await;
    // Another signal ends the wait, and not the drain.
    serving.signal(Signal::SIGTERM);
    kept.closed().await;
    assert_eq!(serving.ended().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_delay_ends_by_itself_and_sigint_has_none() {
    for (delay, signal) in [("100ms", Signal::SIGTERM), ("1h", Signal::SIGINT)] {
        let config = format!("shutdown_delay = '{delay}'\n{CONFIG}");
        let (_directory, _url, mut serving) = start(&config).await;
        serving.signal(signal);
        assert_eq!(serving.ended().await.code(), Some(0));
    }
}

/// larder does not wait for the load of a request whose client is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_it_at_once() {
    let config = format!(
        "shutdown_timeout = '5m'\nrequest_timeout = '5m'\n{CONFIG}[feed]\nmax_staleness = '5m'\n\
         [database]\nstatement_timeout = '5m'\n"
    );
    let (_directory, url, mut serving) = start(&config).await;
    let _holder = lock_table(&url, "item").await;
    let _waiting = tokio::spawn(send(serving.listen, Request::get("/items/1")));
    eventually("the request at PostgreSQL", async || {
        let status = fetch(serving.admin, "GET", "/status").await.json();
        (status["resources"][0]["lookups"] == 1).then_some(())
    })
    .await;
    serving.signal(Signal::SIGTERM);
    refuses_connections(&serving).await;
    assert!(serving.child.try_wait().unwrap().is_none());
    serving.signal(Signal::SIGTERM);
    assert_eq!(serving.ended().await.code(), Some(1));
}

/// Sends the head of a request to the admin address, and a part of its body.
async fn half_request(serving: &LarderProcess) -> TcpStream {
    let mut half = TcpStream::connect(serving.admin).await.unwrap();
    // larder asks for the rest once it has begun to read the body.
    let head = "PUT /log-level HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n";
    half.write_all(head.as_bytes()).await.unwrap();
    let mut goes_on = [0; 25];
    half.read_exact(&mut goes_on).await.unwrap();
    assert_eq!(&goes_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    half.write_all(b"in").await.unwrap();
    half
}

/// It used up the time for requests, and the exit code was 1.
#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_request_to_the_admin_address_does_not_hold_up_the_stop() {
    let config = format!("shutdown_timeout = '10s'\n{CONFIG}");
    let (_directory, _url, mut serving) = start(&config).await;
    let _half = half_request(&serving).await;
    serving.signal(Signal::SIGTERM);
    assert_eq!(serving.ended().await.code(), Some(0));
}

/// All documents have been answered; the exit code was 1.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_wait_for_operators_without_an_error() {
    let (_directory, _url, mut serving) = start(CONFIG).await;
    let _half = half_request(&serving).await;
    serving.signal(Signal::SIGTERM);
    refuses_connections(&serving).await;
    serving.signal(Signal::SIGTERM);
    assert_eq!(serving.ended().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn address_in_use_is_named() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let directory = configured(CONFIG);
    let occupied = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = occupied.local_addr().unwrap().to_string();
    for (flag, other) in [("--listen", "--admin"), ("--admin", "--listen")] {
        let args = [flag, &address, other, "127.0.0.1:0"];
        let output = run(directory.path(), Some(&url), &args).await;
        assert_eq!(output.status.code(), Some(1));
        let told = stderr(&output);
        assert!(told.contains(&address) && told.contains("in use"), "{told}");
        assert!(told.contains(flag.trim_matches('-')), "{told}");
    }
    assert!(value::<bool>(&url, "select to_regnamespace('larder') is null").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_stdout_does_not_end_larder() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let directory = configured(CONFIG);
    let mut serving = LarderProcess::start_without_stdout(directory.path(), &url).await;
    serving.ready().await;
    // What it prints is printed when the first pass is done, and so is this.
    let answer = fetch(serving.listen, "GET", "/items/1").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(serving.child.try_wait().unwrap().is_none());
    assert_eq!(serving.terminate().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn database_may_come_later_than_larder() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let (_, rest) = url.split_once('@').unwrap();
    let (server, _) = rest.split_once('/').unwrap();
    let reserved = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let absent = reserved.local_addr().unwrap();
    drop(reserved);
    let late_url = url.replace(server, &absent.to_string());

    let directory = configured(CONFIG);
    let serving = LarderProcess::start_without_stdout(directory.path(), &late_url).await;
    let began = Instant::now();
    let answer = fetch(serving.listen, "GET", "/items/1").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.header("retry-after"), "1");
    assert!(began.elapsed() < Duration::from_secs(1));
    eventually("the reason", async || {
        let answer = fetch(serving.admin, "GET", "/readyz").await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        answer.body.contains("cannot be reached").then_some(())
    })
    .await;

    let server = server.to_owned();
    let listener = TcpListener::bind(absent).await.unwrap();
    let forward = tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let server = server.clone();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(server).await.unwrap();
                tokio::io::copy_bidirectional(&mut client, &mut server)
                    .await
                    .ok();
            });
        }
    });
    serving.ready().await;
    let answer = fetch(serving.listen, "GET", "/items/1").await;
    assert_eq!(answer.json()["title"], "item 1");
    assert_eq!(serving.terminate().await.code(), Some(0));
    forward.abort();
}

/// Without free file descriptors a connection is refused with an answer; once there are some again, the next is served.
#[tokio::test(flavor = "multi_thread")]
async fn without_descriptors_clients_are_refused_and_the_next_are_served() {
    let (_directory, _url, serving) = start(CONFIG).await;
    let request = b"GET /items/1 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let pid = serving.child.id().unwrap();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count();
    let limit = format!("--nofile={}", open + 4);
    let pid = pid.to_string();
    let limited = tokio::process::Command::new("prlimit")
        .args(["--pid", &pid, &limit])
        .status();
    assert!(limited.await.unwrap().success());
    let (mut served, mut refused) = (Vec::new(), 0);
    while refused < 5 {
        let mut client = TcpStream::connect(serving.listen).await.unwrap();
        let _reset = client.write_all(request).await;
        let mut answer = [0; 1];
        let read = tokio::time::timeout(Duration::from_secs(30), client.read(&mut answer)).await;
        match read.expect("an answer or an end") {
            Ok(1) => served.push(client),
            _ => refused += 1,
        }
        assert!(served.len() < 10);
    }
    assert!(!served.is_empty());
    drop(served);
    eventually("served again", async || {
        let mut client = TcpStream::connect(serving.listen).await.ok()?;
        client.write_all(request).await.ok()?;
        (client.read(&mut [0; 1]).await.ok()? == 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_access_log_has_answers_and_no_secrets() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("access.log");
    let config = format!(
        "access_log = 'json'\naccess_log_file = '{}'\n{CONFIG}\n\
         [limits]\ntrusted_proxies = ['127.0.0.1']\n\
         [[auth.key]]\nname = 'reporting'\nroles = ['staff']\nhash = '{SECRET_HASH}'\n",
        file.display()
    );
    let (_directory, _url, serving) = start(&config).await;
    for path in ["/items/1", "/items?limit=2&token=secret"] {
        let request = Request::get(path)
            .with("x-api-key", "secret")
            .with("cookie", "a=secret")
            .with("x-forwarded-for", "192.0.2.1");
        send(serving.listen, request).await;
    }
    assert_eq!(serving.terminate().await.code(), Some(0));
    let lines = std::fs::read_to_string(&file).unwrap();
    assert!(!lines.contains("secret"), "{lines}");
    let mut lines = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let first = lines.next().unwrap();
    assert_eq!(first["client"], "192.0.2.1");
    assert_eq!(first["user"], "reporting");
    assert_eq!(first["target"], "/items/1");
    assert!(first["cache"].as_str().unwrap().starts_with("larder; "));
    assert!(first["bytes"].as_u64().unwrap() > 0);
    assert_eq!(lines.next().unwrap()["target"], "/items?limit=2&token=***");
    assert!(lines.next().is_none());
}

/// The start waited for a reader, and signals were not obeyed.
#[tokio::test(flavor = "multi_thread")]
async fn an_access_log_in_a_fifo_needs_a_reader() {
    let directory = TempDir::new().unwrap();
    let fifo = directory.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let name = fifo.display();
    let config = format!("access_log = 'combined'\naccess_log_file = '{name}'\n{CONFIG}");
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let unread = configured(&config);
    let args = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let output = run(unread.path(), Some(&url), &args).await;
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    let expected = format!(
        "access_log_file = \"{name}\" can't be appended to: it is a FIFO that nothing reads"
    );
    assert!(told.contains(&expected), "{told}");

    let reader = pipe::OpenOptions::new().open_receiver(&fifo).unwrap();
    let (_directory, _url, serving) = start(&config).await;
    fetch(serving.listen, "GET", "/items/1").await;
    let line = BufReader::new(reader).lines().next_line().await.unwrap();
    assert!(line.unwrap().contains("\"GET /items/1 HTTP/1.1\" 200 "));
    assert_eq!(serving.terminate().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_reopens_the_access_log() {
    let directory = TempDir::new().unwrap();
    let [file, moved] = ["access.log", "access.log.1"].map(|name| directory.path().join(name));
    let config = format!(
        "access_log = 'json'\naccess_log_file = '{}'\n{CONFIG}",
        file.display()
    );
    let (larder, _url, serving) = start(&config).await;
    let lines = |file| std::fs::read_to_string(file).unwrap().lines().count();
    fetch(serving.listen, "GET", "/items/1").await;
    eventually("a line", async || (lines(&file) == 1).then_some(())).await;
    std::fs::rename(&file, &moved).unwrap();
    // Nothing can be appended to it.
    std::fs::create_dir(&file).unwrap();
    serving.signal(Signal::SIGHUP);
    let mut asked = 1;
    eventually("it is said", async || {
        fetch(serving.listen, "GET", "/items/1").await;
        asked += 1;
        let log = std::fs::read_to_string(larder.path().join("larder.log")).unwrap();
        log.contains("the access log's file can't be opened again")
            .then_some(())
    })
    .await;
    std::fs::remove_dir(&file).unwrap();
    eventually("a new file", async || {
        fetch(serving.listen, "GET", "/items/1").await;
        asked += 1;
        file.exists().then_some(())
    })
    .await;
    assert_eq!(serving.terminate().await.code(), Some(0));
    assert_eq!(lines(&moved) + lines(&file), asked);
}

/// The terminal has been closed; requests in flight are completed as after SIGTERM.
#[tokio::test(flavor = "multi_thread")]
async fn sighup_with_nothing_to_reload_ends_larder() {
    let (_directory, _url, mut serving) = start(CONFIG).await;
    serving.signal(Signal::SIGHUP);
    assert_eq!(serving.ended().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_limited_requests_have_retry_after() {
    let config = format!(
        "{CONFIG}[limits]\nrequests_per_second = 1\nburst = 3\ntrusted_proxies = ['127.0.0.1/32']"
    );
    let (_directory, _url, serving) = start(&config).await;
    let ask = async |client: &str| {
        let request = Request::get("/items/1").with("x-forwarded-for", client);
        send(serving.listen, request).await
    };
    let mut refused = None;
    for _ in 0..30 {
        let answer = ask("192.0.2.1").await;
        if answer.status == StatusCode::TOO_MANY_REQUESTS {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.unwrap();
    assert_eq!(refused.header("content-type"), "application/problem+json");
    assert!((1..=2).contains(&refused.header("retry-after").parse().unwrap()));
    assert_eq!(ask("192.0.2.2").await.status, StatusCode::OK);
    // The admin address is not limited.
    for _ in 0..10 {
        let answer = fetch(serving.admin, "GET", "/healthz").await;
        assert_eq!(answer.status, StatusCode::OK);
    }
}

/// SIGXFSZ ended larder without a word, at each start again.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_file_sizes_ends_nothing() {
    let (_directory, url, mut serving) = start(CONFIG).await;
    let pid = serving.child.id().unwrap().to_string();
    let limited = Command::new("prlimit")
        .args(["--fsize=1", "--pid", &pid])
        .status()
        .await;
    assert!(limited.unwrap().success());
    for round in 0..20 {
        execute(&url, "update item set title = title").await;
        fetch(serving.listen, "GET", "/items/1").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let ended = serving.child.try_wait().unwrap();
        assert!(ended.is_none(), "round {round}: {ended:?}");
    }
    let answer = fetch(serving.listen, "GET", "/items/1").await;
    assert_eq!(answer.status, StatusCode::OK);
}

/// An operator whose machine has filled the public address could not ask why.
#[tokio::test(flavor = "multi_thread")]
async fn connections_of_the_public_address_leave_the_admin_address_open() {
    let config = format!("{CONFIG}[limits]\nconnections_per_address = 1\n");
    let (_directory, _url, serving) = start(&config).await;
    let mut held = eventually("a place", async || {
        let mut client = TcpStream::connect(serving.listen).await.ok()?;
        let request = b"GET /items/1 HTTP/1.1\r\nHost: localhost\r\n\r\n";
        client.write_all(request).await.ok()?;
        (client.read(&mut [0; 1]).await.ok()? == 1).then_some(client)
    })
    .await;
    let answer = fetch(serving.admin, "GET", "/status").await;
    assert_eq!(answer.status, StatusCode::OK);
    let _open = held.write_all(b"G").await;
    assert_eq!(serving.terminate().await.code(), Some(0));
}
