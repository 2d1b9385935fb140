//! What hostile clients send, and what they leave unread: over plain sockets, since no HTTP client does so.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use flate2::Compression;
use flate2::read::GzEncoder;
use testkit::http::{HttpConnection, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::harness::demo::documents::read;

/// The longest time that a hostile client keeps its connection.
pub(super) const MISBEHAVIOUR_MAX: Duration = Duration::from_secs(2);
/// For the answer to garbage.
const READ_MAX: Duration = Duration::from_millis(50);
/// For the answer to one of the expensive requests, without others beside it.
const STATUS_MAX: Duration = Duration::from_secs(20);
const STATUS_LINE: &[u8] = b"HTTP/1.1 ";
/// So much of an endless head is sent.
const HEAD_BYTES: usize = 256 << 10;
/// Requests whose answers are never read.
const UNREAD_REQUESTS: usize = 20_000;
/// Batches that are requested on one connection; each answer has some 52 MB.
const UNREAD_BATCHES: usize = 64;
/// The keys of a batch: of demo documents, and of the large document, which is named several times.
const SMALL_KEYS: u32 = 950;
const LARGE_TIMES: usize = 50;
const LARGE_KEY: u32 = 1_000_000;
const LARGE_BYTES: usize = 1_000_000;
/// A body that is announced with 1 MiB, and never ends.
const UNENDED_BYTES: usize = 1_000_000;
/// The length of the compressed body when it is decoded: above `document_max`.
const BOMB_BYTES: u64 = 64 << 20;
const HUGE_NUMBERS: u32 = 4_000;

const BROKEN_CHUNKS: &[u8] = b"POST /depts HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

static BOMB: LazyLock<Vec<u8>> = LazyLock::new(compressed_bomb);

/// What a hostile client does with a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Misbehaviour {
    OpenAndClose,
    OpenAndReset,
    HalfClose,
    HalfRequest,
    PipelinedGarbage,
    GarbageAfterRequest,
    EndlessHead,
    NeverRead,
    UnreadBatches,
    UnendedBody,
    ResetInAnswer,
    BrokenChunks,
    BrokenFrames,
    HeadOfFields,
    CompressedBomb,
    HugeExponents,
}

impl Misbehaviour {
    pub(super) const ALL: [Self; 16] = [
        Self::OpenAndClose,
        Self::OpenAndReset,
        Self::HalfClose,
        Self::HalfRequest,
        Self::PipelinedGarbage,
        Self::GarbageAfterRequest,
        Self::EndlessHead,
        Self::NeverRead,
        Self::UnreadBatches,
        Self::UnendedBody,
        Self::ResetInAnswer,
        Self::BrokenChunks,
        Self::BrokenFrames,
        Self::HeadOfFields,
        Self::CompressedBomb,
        Self::HugeExponents,
    ];

    /// Small or slow requests that cost much memory or CPU time if nothing bounds them.
    pub(super) const EXPENSIVE: [Self; 5] = [
        Self::UnreadBatches,
        Self::UnendedBody,
        Self::HeadOfFields,
        Self::CompressedBomb,
        Self::HugeExponents,
    ];

    pub(super) async fn show(
        self,
        target: SocketAddr,
        rng: &mut fastrand::Rng,
    ) -> anyhow::Result<()> {
        let mut stream = TcpStream::connect(target).await?;
        let request = b"GET /depts/1 HTTP/1.1\r\nHost: localhost\r\n\r\n";
        match self {
            Self::OpenAndClose => {}
            Self::OpenAndReset => stream.set_zero_linger()?,
            Self::HalfClose => {
                stream.shutdown().await?;
                drain(&mut stream).await;
            }
            Self::HalfRequest => {
                stream
                    .write_all(&request[..rng.usize(1..request.len())])
                    .await?;
                stream.shutdown().await?;
                drain(&mut stream).await;
            }
            Self::PipelinedGarbage => {
                for _ in 0..rng.usize(1..20) {
                    stream.write_all(&garbage(rng)).await?;
                }
                drain(&mut stream).await;
            }
            Self::GarbageAfterRequest => {
                let requests = request.repeat(rng.usize(1..10));
                send_with_garbage(&mut stream, &requests, rng).await?;
            }
            Self::EndlessHead => {
                stream.write_all(b"GET / HTTP/1.1\r\nX: ").await?;
                stream.write_all(&vec![b'a'; HEAD_BYTES]).await?;
                drain(&mut stream).await;
            }
            Self::NeverRead => {
                stream.write_all(&request.repeat(UNREAD_REQUESTS)).await?;
            }
            Self::UnreadBatches => {
                stream
                    .write_all(&batch("GET", "").repeat(UNREAD_BATCHES))
                    .await?;
                sleep(MISBEHAVIOUR_MAX).await;
            }
            Self::UnendedBody => {
                let head = "POST /depts:batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n";
                stream.write_all(head.as_bytes()).await?;
                stream.write_all(&vec![b' '; UNENDED_BYTES]).await?;
                sleep(MISBEHAVIOUR_MAX).await;
            }
            Self::ResetInAnswer => {
                stream.set_zero_linger()?;
                stream.write_all(&request.repeat(rng.usize(1..100))).await?;
            }
            Self::BrokenChunks => send_with_garbage(&mut stream, BROKEN_CHUNKS, rng).await?,
            Self::BrokenFrames => send_with_garbage(&mut stream, HTTP2_PREFACE, rng).await?,
            Self::HeadOfFields | Self::CompressedBomb | Self::HugeExponents => {
                self.status(&mut stream).await?;
            }
        }
        Ok(())
    }

    /// Sends one of the requests that larder has to answer; returns the status.
    async fn status(self, stream: &mut TcpStream) -> anyhow::Result<u16> {
        let request = match self {
            Self::HeadOfFields => batch("HEAD", "&fields=deptName"),
            Self::CompressedBomb => BOMB.clone(),
            Self::HugeExponents => huge_exponents(),
            _ => bail!("{self:?} has no answer"),
        };
        // larder may answer before it has read all.
        stream.write_all(&request).await.ok();
        let mut begin = [0; STATUS_LINE.len() + 3];
        stream.read_exact(&mut begin).await?;
        let digits = begin.strip_prefix(STATUS_LINE).context("no status line")?;
        Ok(std::str::from_utf8(digits)?.parse()?)
    }
}

/// Checks that larder understands the expensive requests, and refuses those that it has to refuse.
///
/// # Errors
/// A request that is answered otherwise than expected.
pub(super) async fn check_expensive(target: SocketAddr) -> anyhow::Result<()> {
    for (misbehaviour, expected) in [
        (Misbehaviour::HeadOfFields, 200),
        (Misbehaviour::CompressedBomb, 413),
        (Misbehaviour::HugeExponents, 422),
    ] {
        let mut stream = TcpStream::connect(target).await?;
        let status = timeout(STATUS_MAX, misbehaviour.status(&mut stream)).await??;
        ensure!(
            status == expected,
            "{misbehaviour:?} was answered with {status}, not {expected}"
        );
    }
    Ok(())
}

/// Writes the document that is longer than all others, and reads it once.
pub(super) async fn add_large_document(target: SocketAddr) -> anyhow::Result<()> {
    let body = format!(
        r#"{{"deptNumber":{LARGE_KEY},"deptName":"{}","deptLocation":null,"emps":[]}}"#,
        "a".repeat(LARGE_BYTES)
    );
    let mut connection = HttpConnection::connect(target).await?;
    let request = Request::new("POST", "/depts").with_body("application/json", body);
    let answer = connection.send(&request).await?;
    ensure!(answer.status == 201, "POST: {}", answer.status);
    read(&mut connection, LARGE_KEY).await?;
    Ok(())
}

/// A request for many documents, one of which is large and named many times.
fn batch(method: &str, parameters: &str) -> Vec<u8> {
    let keys: Vec<String> = (1..=SMALL_KEYS)
        .chain(std::iter::repeat_n(LARGE_KEY, LARGE_TIMES))
        .map(|key| key.to_string())
        .collect();
    let keys = keys.join(",");
    format!("{method} /depts?keys={keys}{parameters} HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .into_bytes()
}

/// A document with numbers that are short in JSON, and have 131,072 digits each in PostgreSQL.
fn huge_exponents() -> Vec<u8> {
    let emps: Vec<String> = (1..=HUGE_NUMBERS)
        .map(|emp| format!(r#"{{"empNo":{emp},"sal":1e131071}}"#))
        .collect();
    let emps = emps.join(",");
    let body = format!(r#"{{"deptNumber":1000000,"deptName":"a","emps":[{emps}]}}"#);
    post("", body.as_bytes())
}

/// A small body that is a long document when it is decoded.
fn compressed_bomb() -> Vec<u8> {
    let begin = &br#"{"deptNumber":1000001,"deptName":""#[..];
    let document = Read::chain(begin, std::io::repeat(b'a').take(BOMB_BYTES));
    let mut body = Vec::new();
    // Reading from memory does not fail; if it did, larder's answer would not be the expected one.
    GzEncoder::new(document, Compression::fast())
        .read_to_end(&mut body)
        .ok();
    post("Content-Encoding: gzip\r\n", &body)
}

fn post(headers: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST /depts HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Prefer: return=minimal\r\n{headers}Content-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

fn garbage(rng: &mut fastrand::Rng) -> Vec<u8> {
    let length = rng.usize(1..2_000);
    std::iter::repeat_with(|| rng.u8(..)).take(length).collect()
}

/// Sends `begin` and bytes that are not HTTP after it.
async fn send_with_garbage(
    stream: &mut TcpStream,
    begin: &[u8],
    rng: &mut fastrand::Rng,
) -> anyhow::Result<()> {
    stream.write_all(begin).await?;
    stream.write_all(&garbage(rng)).await?;
    drain(stream).await;
    Ok(())
}

/// Reads for a short time.
async fn drain(stream: &mut TcpStream) {
    let mut answer = [0; 4096];
    while let Ok(Ok(1..)) = timeout(READ_MAX, stream.read(&mut answer)).await {}
}
