//! TLS on the public address: the built binary with certificates of the test's own.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Request;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rcgen::{CertificateParams, KeyPair, date_time_ymd, generate_simple_self_signed};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::command::configured;
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::larder_process::{LarderProcess, run, stderr};
use crate::harness::raw_http::{fetch, parse};
use crate::harness::service::execute;

const SQL: &str = "create table item (id bigint primary key); insert into item values (1)";

const CONFIG: &str = "
    [[resource]]
    name = 'items'
    table = 'item'
    [tls]
    certificate_file = 'certificate.pem'
    key_file = 'key.pem'
    hsts = 'max-age=60'";

/// Writes a new certificate for localhost and its key into `directory`.
fn certify(directory: &Path) -> CertificateDer<'static> {
    certify_until(directory, 4096)
}

/// The same for one that expires at the beginning of `year`.
fn certify_until(directory: &Path, year: i32) -> CertificateDer<'static> {
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_after = date_time_ymd(year, 1, 1);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    fs::write(directory.join("certificate.pem"), certificate.pem()).unwrap();
    fs::write(directory.join("key.pem"), key.serialize_pem()).unwrap();
    certificate.der().clone()
}

/// Waits until the log contains `text`.
async fn logged(directory: &Path, text: &str) {
    eventually("a line in the log", async || {
        let log = fs::read_to_string(directory.join("larder.log")).unwrap();
        log.contains(text).then_some(())
    })
    .await;
}

async fn start() -> (TempDir, CertificateDer<'static>, LarderProcess) {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("larder.toml"), CONFIG).unwrap();
    let certificate = certify(directory.path());
    let serving = LarderProcess::start(directory.path(), Some(&url), &[]).await;
    assert!(serving.banner.contains(" https://"), "{}", serving.banner);
    serving.ready().await;
    (directory, certificate, serving)
}

/// `install`, run by the owner of the tables with larder's file, ended where it could not read the key.
#[tokio::test(flavor = "multi_thread")]
async fn only_serve_and_config_need_the_key() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let directory = configured(CONFIG);
    certify(directory.path());
    fs::remove_file(directory.path().join("key.pem")).unwrap();
    let commands: [&[&str]; 7] = [
        &["install", "--print"],
        &["install"],
        &["check"],
        &["prune"],
        &["seed", "--depts", "1"],
        &["uninstall", "--print"],
        &["uninstall"],
    ];
    for command in commands {
        let output = run(directory.path(), Some(&url), command).await;
        let code = output.status.code();
        assert_eq!(code, Some(0), "{command:?}: {}", stderr(&output));
    }
    for command in [&["config", "--check"][..], &["serve"]] {
        let output = run(directory.path(), Some(&url), command).await;
        assert_eq!(output.status.code(), Some(78), "{command:?}");
        let told = stderr(&output);
        assert!(told.contains("tls.key_file"), "{command:?}: {told}");
    }
}

/// Connects as a client that trusts `certificate` alone.
async fn connect(
    serving: &LarderProcess,
    certificate: &CertificateDer<'static>,
    protocol: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let stream = TcpStream::connect(serving.listen).await?;
    let name = "localhost".try_into().unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

/// Over a plain stream: testkit's client has no TLS.
async fn get_item(client: &mut TlsStream<TcpStream>) -> String {
    let request = b"GET /items/1 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    client.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"{\"id\":1}") {
        let read = timeout(Duration::from_secs(30), client.read_buf(&mut answer)).await;
        assert_ne!(read.expect("an answer").unwrap(), 0);
    }
    String::from_utf8(answer).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_over_tls_are_those_without_and_say_hsts() {
    let (_directory, certificate, serving) = start().await;
    let mut client = connect(&serving, &certificate, "http/1.1").await.unwrap();
    assert_eq!(
        client.get_ref().1.alpn_protocol(),
        Some(b"http/1.1".as_slice())
    );
    for _ in 0..2 {
        let answer = parse(get_item(&mut client).await.as_bytes());
        assert_eq!(answer.header("strict-transport-security"), "max-age=60");
    }
    assert!(serving.terminate().await.success());
    assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_is_chosen_by_alpn() {
    let (_directory, certificate, serving) = start().await;
    let client = connect(&serving, &certificate, "h2").await.unwrap();
    assert_eq!(client.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let (client, connection) = h2::client::handshake(client).await.unwrap();
    let reading = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    for _ in 0..2 {
        let request = Request::get("https://localhost/items/1").body(()).unwrap();
        let (answer, _) = client.send_request(request, true).unwrap();
        let mut answer = answer.await.unwrap();
        assert_eq!(answer.headers()["strict-transport-security"], "max-age=60");
        let body = answer.body_mut().data().await.unwrap().unwrap();
        assert_eq!(body, "{\"id\":1}");
    }
    drop(client);
    reading.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_loads_a_new_certificate_and_keeps_every_connection() {
    let (directory, old, serving) = start().await;
    let mut kept = connect(&serving, &old, "http/1.1").await.unwrap();
    let new = certify(directory.path());
    serving.signal(Signal::SIGHUP);
    eventually("the new certificate", async || {
        connect(&serving, &new, "http/1.1").await.ok().map(drop)
    })
    .await;
    assert!(connect(&serving, &old, "http/1.1").await.is_err());
    get_item(&mut kept).await;
    // One that has expired changes nothing.
    certify_until(directory.path(), 2020);
    serving.signal(Signal::SIGHUP);
    logged(directory.path(), "it expired at 2020-01-01").await;
    connect(&serving, &new, "http/1.1").await.unwrap();
    // Nor does one that can't be used.
    fs::write(directory.path().join("key.pem"), "nothing").unwrap();
    serving.signal(Signal::SIGHUP);
    logged(directory.path(), "key.pem").await;
    let mut again = connect(&serving, &new, "http/1.1").await.unwrap();
    get_item(&mut again).await;
    get_item(&mut kept).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_when_the_certificate_expires_and_how_many_are_connected() {
    let (directory, certificate, serving) = start().await;
    let tells = async |line: &str| {
        eventually(line, async || {
            let metrics = fetch(serving.admin, "GET", "/metrics").await.body;
            let is_there = metrics.lines().any(|metric| metric == line);
            is_there.then_some(())
        })
        .await;
    };
    // 4096-01-01 and 3000-01-01.
    tells("larder_tls_certificate_expiry_timestamp_seconds 67090118400").await;
    certify_until(directory.path(), 3000);
    serving.signal(Signal::SIGHUP);
    tells("larder_tls_certificate_expiry_timestamp_seconds 32503680000").await;
    // The request for the metrics is a connection, too.
    tells("larder_connections 1").await;
    let connected = TcpStream::connect(serving.listen).await.unwrap();
    tells("larder_connections 2").await;
    drop((connected, certificate));
    tells("larder_connections 1").await;
}

/// A file system that has stalled lets the open file wait as this FIFO does.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_can_not_be_read_holds_up_no_stop() {
    let (directory, _certificate, serving) = start().await;
    let key = directory.path().join("key.pem");
    fs::remove_file(&key).unwrap();
    mkfifo(&key, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    serving.signal(Signal::SIGHUP);
    // It is opened once larder reads it.
    let opened = spawn_blocking(move || File::options().write(true).open(key).unwrap());
    let _writer = opened.await.unwrap();
    assert_eq!(serving.terminate().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_handshakes_are_closed() {
    let (_directory, certificate, serving) = start().await;
    for begun in [
        b"".as_slice(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ] {
        let mut client = TcpStream::connect(serving.listen).await.unwrap();
        client.write_all(begun).await.unwrap();
        let mut byte = [0; 1];
        let closed = client.read(&mut byte);
        let closed = timeout(Duration::from_secs(30), closed).await;
        assert!(matches!(closed.expect("an end"), Ok(0) | Err(_)));
    }
    let plain = b"GET /items/1 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let received = crate::harness::raw_http::exchange(serving.listen, plain).await;
    assert!(!received.starts_with(b"HTTP/"));
    get_item(&mut connect(&serving, &certificate, "http/1.1").await.unwrap()).await;
}

#[tokio::test]
async fn files_without_a_certificate_exit_78_and_name_the_key() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("larder.toml");
    fs::write(&file, CONFIG).unwrap();
    let refused = async |expected: &str| {
        let output = run(directory.path(), None, &["serve"]).await;
        assert_eq!(output.status.code(), Some(78));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    };
    refused("larder.toml:6: tls.certificate_file: no certificate can be read from").await;
    let _one = certify(directory.path());
    fs::write(directory.path().join("key.pem"), "nothing").unwrap();
    refused("larder.toml:7: tls.key_file: no private key can be read from").await;
    let other = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = other.signing_key.serialize_pem();
    fs::write(directory.path().join("key.pem"), key).unwrap();
    refused("larder.toml:6: tls.certificate_file: certificate and key can't be used").await;
    fs::write(&file, "[tls]\nkey_file = 'key.pem'\n").unwrap();
    refused("larder.toml:2: tls.key_file: certificate_file must name").await;
}
