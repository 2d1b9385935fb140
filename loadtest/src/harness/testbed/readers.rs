//! Readers: keep-alive connections that read random documents and check every answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use larder::clock::Boottime;
use testkit::http::HttpConnection;
use tokio::sync::watch;

use crate::workload::counters::{ReadCounters, ReadResult};
use crate::workload::record::{ReadAnswer, Record};
use crate::workload::viewer::Viewer;

/// One read in so many is strict.
const STRICT_SHARE: u32 = 4;
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
                    while self.read_one(&mut connection).await {
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

    /// Reads a random document and checks the answer. Returns whether the connection can still be used.
    async fn read_one(&mut self, connection: &mut HttpConnection) -> bool {
        let key = self.rng.u32(1..=self.record.keys());
        let viewer = Viewer::of_connection(self.number);
        let mut request = viewer.get(self.record.path(key));
        if self.rng.u32(..STRICT_SHARE) == 0 {
            request = request.with("cache-control", "no-cache");
        }
        let phase = self.record.phase();
        let began = Boottime::now();
        let Ok(answer) = connection.send(&request).await else {
            self.counters.count(phase, ReadResult::Unanswered);
            return false;
        };
        let cache_status = answer.header("cache-status");
        let way = ReadResult::of(answer.status, cache_status);
        self.counters.count(phase, way);
        if way.is_answer() {
            let verdict = self.record.judge(&ReadAnswer {
                key,
                viewer,
                began,
                phase,
                cache_status,
                body: (answer.status == 200).then_some(&answer.body),
            });
            self.counters.note_verdict(&verdict);
        } else if way == ReadResult::Odd {
            self.counters.note_odd(answer.status, &answer.text());
        }
        true
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

/// Reads each of `keys` once, over one connection.
pub(crate) async fn sweep(
    record: &Record,
    target: SocketAddr,
    keys: impl IntoIterator<Item = u32>,
) -> anyhow::Result<SweepCounts> {
    let mut swept = SweepCounts::default();
    let mut connection = HttpConnection::connect(target).await?;
    let viewer = Viewer::Staff;
    for key in keys {
        let began = Boottime::now();
        let answer = connection.send(&viewer.get(record.path(key))).await?;
        let cache_status = answer.header("cache-status");
        let way = ReadResult::of(answer.status, cache_status);
        if !way.is_answer() {
            swept.unanswered += 1;
            continue;
        }
        swept.answers += 1;
        swept.disk += u64::from(way == ReadResult::Disk);
        record.judge(&ReadAnswer {
            key,
            viewer,
            began,
            phase: record.phase(),
            cache_status,
            body: (answer.status == 200).then_some(&answer.body),
        });
    }
    Ok(swept)
}
