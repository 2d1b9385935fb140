//! The demo's documents as clients read them, and whether an answer is the right one.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use testkit::http::{Answer, HttpConnection};
use tokio::task::JoinSet;
use xxhash_rust::xxh3::xxh3_64;

use crate::harness::demo::WarmTier;
use crate::workload::counters::ReadResult;

/// Concurrent requests while tiers are filled, so that misses share statements.
const FILLERS: usize = 64;
/// Of an unexpected body, so many bytes are printed.
const SHOWN_BYTES: usize = 300;

/// Length and hash of a document, by which answers are checked.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct KnownDocument {
    key: u32,
    pub(super) bytes: usize,
    hash: u64,
}

impl KnownDocument {
    fn of(key: u32, body: &[u8]) -> Self {
        Self {
            key,
            bytes: body.len(),
            hash: xxh3_64(body),
        }
    }
}

/// A connection that asks for random documents and knows the answers.
pub(crate) struct Checker {
    pub(super) connection: HttpConnection,
    pub(super) documents: Arc<Vec<KnownDocument>>,
    /// The tier that has to answer; `None`: any.
    pub(super) tier: Option<WarmTier>,
    pub(super) rng: fastrand::Rng,
}

impl Checker {
    /// Checks a running larder; what it answers now counts as right.
    pub(crate) async fn of_running(target: SocketAddr, depts: u32) -> anyhow::Result<Self> {
        Ok(Self {
            documents: Arc::new(documents(target, 1..=depts).await?),
            connection: HttpConnection::connect(target).await?,
            tier: None,
            rng: fastrand::Rng::new(),
        })
    }

    /// Goes on with a new connection, after an answer that was none.
    pub(crate) async fn reconnect(&mut self, target: SocketAddr) -> anyhow::Result<()> {
        self.connection = HttpConnection::connect(target).await?;
        Ok(())
    }

    /// Reads one document; returns whether it came from the tier. If dropped, an answer may still be received.
    ///
    /// # Errors
    /// Another answer than this document; if a tier has to answer, an answer without `Cache-Status`.
    pub(crate) async fn check(&mut self) -> anyhow::Result<bool> {
        let known = self.documents[self.rng.usize(..self.documents.len())];
        let key = known.key;
        let answer = read(&mut self.connection, key).await?;
        ensure!(
            KnownDocument::of(key, &answer.body) == known,
            "/depts/{key} is another document than before"
        );
        let Some(tier) = self.tier else {
            return Ok(true);
        };
        let cache_status = answer.header("cache-status");
        let way = ReadResult::of(answer.status, cache_status);
        ensure!(
            way.is_answer(),
            "/depts/{key} was answered with Cache-Status {cache_status:?}"
        );
        Ok(way == tier.result())
    }
}

/// Reads the documents of `keys`, which fills the tiers, and returns them in the order of keys.
pub(super) async fn documents(
    target: SocketAddr,
    keys: RangeInclusive<u32>,
) -> anyhow::Result<Vec<KnownDocument>> {
    let mut documents = read_all(target, keys, |key, answer| {
        Ok(KnownDocument::of(key, &answer.body))
    })
    .await?;
    documents.sort_unstable();
    Ok(documents)
}

/// Reads the documents of `keys` and returns the result of `each` for each key and answer, in no order.
pub(crate) async fn read_all<T: Send + 'static>(
    target: SocketAddr,
    keys: RangeInclusive<u32>,
    each: impl Fn(u32, &Answer) -> anyhow::Result<T> + Send + Sync + 'static,
) -> anyhow::Result<Vec<T>> {
    let each = Arc::new(each);
    let mut fillers = JoinSet::new();
    for first in keys.clone().take(FILLERS) {
        let last = *keys.end();
        let each = Arc::clone(&each);
        fillers.spawn(async move {
            let mut connection = HttpConnection::connect(target).await?;
            let mut made = Vec::new();
            for key in (first..=last).step_by(FILLERS) {
                made.push(each(key, &read(&mut connection, key).await?)?);
            }
            anyhow::Ok(made)
        });
    }
    let mut all = Vec::new();
    while let Some(made) = fillers.join_next().await {
        all.extend(made??);
    }
    Ok(all)
}

/// Reads all documents up to `depts`, and returns the answer, head and body, with the document of the median length.
pub(crate) async fn median_response(target: SocketAddr, depts: u32) -> anyhow::Result<Vec<u8>> {
    let mut lengths = read_all(target, 1..=depts, |key, answer| {
        Ok((answer.body.len(), key))
    })
    .await?;
    lengths.sort_unstable();
    let (_, key) = lengths.get(lengths.len() / 2).context("no documents")?;
    let mut connection = HttpConnection::connect(target).await?;
    let answer = read(&mut connection, *key).await?;
    let names = answer.headers.keys();
    let fields = names.map(|name| format!("{name}: {}\r\n", answer.header(name.as_str())));
    let head = format!("HTTP/1.1 200 OK\r\n{}\r\n", fields.collect::<String>());
    Ok([head.as_bytes(), &answer.body].concat())
}

/// Reads the document of `key`.
///
/// # Errors
/// Another answer than this document.
pub(crate) async fn read(connection: &mut HttpConnection, key: u32) -> anyhow::Result<Answer> {
    let answer = connection.get(format!("/depts/{key}")).await?;
    let begin = format!("{{\"deptNumber\":{key},");
    if answer.status != 200 || !answer.body.starts_with(begin.as_bytes()) {
        let body = String::from_utf8_lossy(&answer.body[..answer.body.len().min(SHOWN_BYTES)]);
        bail!("/depts/{key} was answered with {} {body}", answer.status);
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// The result for `body` with this `Cache-Status` if document 1 is expected from the disk tier.
    async fn checked(body: &str, way: &str) -> anyhow::Result<bool> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mut checker = Checker {
            connection: HttpConnection::connect(listener.local_addr()?).await?,
            documents: Arc::new(vec![KnownDocument::of(1, br#"{"deptNumber":1,"loc":"a"}"#)]),
            tier: Some(WarmTier::Disk),
            rng: fastrand::Rng::with_seed(1),
        };
        let (mut stream, _) = listener.accept().await?;
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncache-status: {way}\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let serve = async {
            let mut request = [0; 256];
            ensure!(stream.read(&mut request).await? > 0, "nothing asked");
            anyhow::Ok(stream.write_all(answer.as_bytes()).await?)
        };
        let (verdict, served) = tokio::join!(checker.check(), serve);
        served?;
        verdict
    }

    #[tokio::test]
    async fn another_tier_is_no_wrong_answer() {
        let right = r#"{"deptNumber":1,"loc":"a"}"#;
        assert!(checked(right, "larder; hit; detail=disk").await.unwrap());
        for other in [
            "hit; detail=memory",
            "fwd=miss; stored",
            "fwd=bypass; detail=x",
        ] {
            assert!(!checked(right, &format!("larder; {other}")).await.unwrap());
        }
        let wrong = r#"{"deptNumber":1,"loc":"b"}"#;
        assert!(checked(wrong, "larder; hit; detail=disk").await.is_err());
        assert!(checked(wrong, "larder; fwd=miss; stored").await.is_err());
        assert!(checked(right, "larder; whatever").await.is_err());
    }
}
