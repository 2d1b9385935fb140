//! Readers: keep-alive connections that read random documents and check every answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use larder::clock::Boottime;
use tokio::sync::watch;

use crate::harness::http::HttpConnection;
use crate::workload::counters::{ReadCounters, ReadResult};
use crate::workload::record::{ReadAnswer, Record};
use crate::workload::viewer::Viewer;

/// Requests sent at once; a read begins when its batch is sent.
const PIPELINE: usize = 8;
/// One batch in so many reads strictly.
const STRICT_SHARE: u32 = 4;
/// Requests sent at once in a sweep.
const SWEPT_AT_ONCE: usize = 128;
/// For one answer: more than larder's request_timeout and a pause of its process.
const ANSWER_MAX: Duration = Duration::from_secs(20);
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// A client with one connection.
pub(crate) struct ReadingClient {
    pub(crate) record: Arc<Record>,
    /// The larders; this client uses the one of its number.
    pub(crate) targets: watch::Receiver<Vec<SocketAddr>>,
    pub(crate) number: usize,
    pub(crate) rng: fastrand::Rng,
    pub(crate) counters: ReadCounters,
}

impl ReadingClient {
    /// Reads until the load is to end.
    pub(crate) async fn run(mut self) -> ReadCounters {
        let record = Arc::clone(&self.record);
        tokio::select! {
            () = self.read() => {}
            () = record.stopped() => {}
        }
        self.counters
    }

    async fn read(&mut self) {
        loop {
            let target = {
                let targets = self.targets.borrow_and_update();
                // There is always one.
                targets[self.number % targets.len()]
            };
            let phase = self.record.phase();
            match HttpConnection::connect(target).await {
                Ok(mut connection) => {
                    while self.batch(&mut connection).await {
                        if self.targets.has_changed().unwrap_or(false) {
                            break;
                        }
                    }
                }
                Err(_) => self.counters.count(phase, ReadResult::Unanswered),
            }
            if !self.targets.has_changed().unwrap_or(false) {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// Sends a batch of requests and checks the answers. Returns whether the connection can still be used.
    async fn batch(&mut self, connection: &mut HttpConnection) -> bool {
        let mut requests = Vec::with_capacity(PIPELINE * 80);
        let wanted: [u32; PIPELINE] = std::array::from_fn(|_| self.rng.u32(1..=self.record.keys()));
        let viewer = Viewer::of_connection(self.number);
        let is_strict = self.rng.u32(..STRICT_SHARE) == 0;
        for key in wanted {
            request(&mut requests, &self.record, key, viewer, is_strict);
        }
        let phase = self.record.phase();
        let began = Boottime::now();
        let mut answered = 0;
        let exchange = async {
            connection.send(&requests).await?;
            for key in wanted {
                let answer = connection.receive().await?;
                answered += 1;
                let way = ReadResult::of(answer.status, answer.cache_status);
                self.counters.count(phase, way);
                if way.is_answer() {
                    let verdict = self.record.judge(&ReadAnswer {
                        key,
                        viewer,
                        began,
                        phase,
                        cache_status: answer.cache_status,
                        body: (answer.status == 200).then_some(answer.body),
                    });
                    self.counters.note_verdict(&verdict);
                } else if way == ReadResult::Odd {
                    let body = String::from_utf8_lossy(answer.body);
                    self.counters.note_odd(answer.status, &body);
                }
            }
            anyhow::Ok(())
        };
        let whole = matches!(tokio::time::timeout(ANSWER_MAX, exchange).await, Ok(Ok(())));
        for _ in answered..PIPELINE {
            self.counters.count(phase, ReadResult::Unanswered);
        }
        whole
    }
}

/// The results of a sweep.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SweepCounts {
    pub(crate) answers: u64,
    pub(crate) disk: u64,
    pub(crate) unanswered: u64,
}

impl SweepCounts {
    pub(crate) fn add(&mut self, other: Self) {
        self.answers += other.answers;
        self.disk += other.disk;
        self.unanswered += other.unanswered;
    }
}

/// Reads each of `keys` once, over one connection; a read begins when its batch is sent.
pub(crate) async fn sweep(
    record: &Record,
    target: SocketAddr,
    keys: impl IntoIterator<Item = u32>,
) -> anyhow::Result<SweepCounts> {
    let mut swept = SweepCounts::default();
    let mut connection = HttpConnection::connect(target).await?;
    let keys: Vec<u32> = keys.into_iter().collect();
    for batch in keys.chunks(SWEPT_AT_ONCE) {
        let mut requests = Vec::with_capacity(SWEPT_AT_ONCE * 80);
        for key in batch {
            request(&mut requests, record, *key, Viewer::Staff, false);
        }
        let began = Boottime::now();
        connection.send(&requests).await?;
        for key in batch {
            let answer = tokio::time::timeout(ANSWER_MAX, connection.receive()).await??;
            let way = ReadResult::of(answer.status, answer.cache_status);
            if !way.is_answer() {
                swept.unanswered += 1;
                continue;
            }
            swept.answers += 1;
            swept.disk += u64::from(way == ReadResult::Disk);
            record.judge(&ReadAnswer {
                key: *key,
                viewer: Viewer::Staff,
                began,
                phase: record.phase(),
                cache_status: answer.cache_status,
                body: (answer.status == 200).then_some(answer.body),
            });
        }
    }
    Ok(swept)
}

fn request(requests: &mut Vec<u8>, record: &Record, key: u32, viewer: Viewer, is_strict: bool) {
    requests.extend_from_slice(b"GET ");
    requests.extend_from_slice(record.path(key).as_bytes());
    requests.extend_from_slice(b" HTTP/1.1\r\nHost: localhost\r\n");
    requests.extend_from_slice(viewer.header().as_bytes());
    if is_strict {
        requests.extend_from_slice(b"Cache-Control: no-cache\r\n");
    }
    requests.extend_from_slice(b"\r\n");
}
