//! Several processes, of which some are killed, stopped or cut off.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::{Connection, PgConnection};
use tokio::process::Child;
use tokio::time::{Instant, sleep, timeout};

use super::sink::{Answer, TestSink};
use super::{Bed, SUBSCRIBERS, subscribers};
use crate::harness::cluster::StoppedProcess;
use crate::harness::eventually;
use crate::harness::larder_process::{COMMAND_TIMEOUT, command};
use crate::harness::raw_http::fetch;

/// An address of this host that nothing listens at.
pub(super) fn free_address() -> SocketAddr {
    let reserved = TcpListener::bind("127.0.0.1:0").unwrap();
    reserved.local_addr().unwrap()
}

/// A running `larder dispatch`.
pub(super) struct Dispatching {
    child: Child,
    pub(super) admin: SocketAddr,
    pub(super) log: PathBuf,
}

impl Dispatching {
    /// Starts it, and waits until it is ready.
    pub(super) async fn start(bed: &Bed) -> Self {
        let this = Self::begin(bed);
        eventually("it answers", async || {
            tokio::net::TcpStream::connect(this.admin)
                .await
                .ok()
                .map(drop)
        })
        .await;
        eventually("it is ready", async || {
            (fetch(this.admin, "GET", "/readyz").await.status == 200).then_some(())
        })
        .await;
        this
    }

    /// The same without waiting.
    fn begin(bed: &Bed) -> Self {
        let admin = free_address();
        let log = bed.directory.path().join(format!("{}.log", admin.port()));
        let address = admin.to_string();
        let args = ["dispatch", "--admin", &address];
        let child = command(bed.directory.path(), Some(&bed.url), &args)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { child, admin, log }
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    pub(super) async fn ended(&mut self) -> ExitStatus {
        timeout(COMMAND_TIMEOUT, self.child.wait())
            .await
            .unwrap()
            .unwrap()
    }

    pub(super) async fn terminate(mut self) {
        self.signal(Signal::SIGTERM);
        assert!(self.ended().await.success());
    }
}

/// All rows come, and those of a batch at most twice.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_killed_process_are_sent_by_another() {
    let toml = subscribers(
        "interval = '1day'\npartition = ['worker', 'zone']\nbatch = 5\nconnections = 2\ntakeover = '1s'",
    );
    let sink = TestSink::answering(|_, _| Answer::of(200, ""));
    let bed = Bed::new(SUBSCRIBERS, &toml, sink.await).await;
    for _ in 0..3 {
        bed.execute("update subscriber set notify_after = now()")
            .await;
        let mut killed = Dispatching::start(&bed).await;
        let before = bed.sink.rows().len();
        eventually("it works", async || {
            (bed.sink.rows().len() > before).then_some(())
        })
        .await;
        killed.signal(Signal::SIGKILL);
        killed.ended().await;
        let other = Dispatching::start(&bed).await;
        let late = "select count(*) from subscriber where notify_after <= now()";
        eventually("all rows", async || {
            (bed.value::<i64>(late).await == 0).then_some(())
        })
        .await;
        other.terminate().await;
        let sent = bed.sink.rows().len() - before;
        assert!((200..=200 + 5 * 2).contains(&sent), "{sent}");
    }
}

/// After SIGCONT it sends nothing of what it had matched: two requests are in flight then, 178 wait for their turn, and
/// PostgreSQL does not answer yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_process_loses_its_slot_and_begins_no_request() {
    use testkit::fault_proxy::{FaultProxy, NetworkFault};

    let (sink, mut requests) = TestSink::holding(|number| number < 2).await;
    let toml = subscribers("interval = '1day'\ntakeover = '1s'") + "rows = 1\nconcurrency = 2";
    let mut bed = Bed::new(SUBSCRIBERS, &toml, sink).await;
    let proxy = FaultProxy::start(&bed.url).await.unwrap();
    let direct = std::mem::replace(&mut bed.url, proxy.url.clone());
    let stopped = Dispatching::start(&bed).await;
    bed.url = direct;
    let held = [
        requests.recv().await.unwrap(),
        requests.recv().await.unwrap(),
    ];
    let other = Dispatching::start(&bed).await;
    let stopped_at = Instant::now();
    stopped.signal(Signal::SIGSTOP);
    proxy.set(NetworkFault::Silent);
    requests.recv().await.unwrap();
    // `takeover`, `poll_interval`, a second, and one more on a busy machine.
    let took = stopped_at.elapsed();
    assert!(took < Duration::from_millis(3050), "{took:?}");
    let late = "select count(*) from subscriber where notify_after <= now()";
    eventually("the other one has taken over", async || {
        (bed.value::<i64>(late).await == 0).then_some(())
    })
    .await;
    let sent = bed.sink.rows().len();
    // The first two were sent by the stopped one, too.
    assert_eq!(sent, 182);
    drop(held);
    stopped.signal(Signal::SIGCONT);
    eventually("it goes on", async || {
        let log = std::fs::read_to_string(&stopped.log).unwrap();
        log.contains("dispatch subscribers: ").then_some(())
    })
    .await;
    proxy.set(NetworkFault::None);
    bed.execute("update subscriber set notify_after = now() where id = 1")
        .await;
    eventually("the new row", async || {
        (bed.sink.rows().len() > sent).then_some(())
    })
    .await;
    assert_eq!(bed.sink.rows().len(), sent + 1);
    for process in [stopped, other] {
        process.terminate().await;
    }
}

/// The server has sent it a piece of the result, and waits for it to ask for the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_stopped_in_the_middle_of_a_match_sends_none_of_it() {
    let sql = "create table subscriber (id int primary key, notify_after timestamptz, endpoint text); \
               create index on subscriber (notify_after); alter table subscriber alter endpoint set storage plain; \
               insert into subscriber select n, null, repeat('e', 6000) from generate_series(1, 3000) n";
    let toml = subscribers("interval = '1day'\ntakeover = '1s'");
    let bed = Bed::new(sql, &toml, TestSink::start().await).await;
    let stopped = Dispatching::start(&bed).await;
    let mut connection = PgConnection::connect(&bed.url).await.unwrap();
    let reading = "select exists (select from pg_stat_activity where datname = current_database() \
                   and query like 'fetch forward%' and state = 'idle in transaction')";
    let mut is_reading = async || {
        let reading = sqlx::query_scalar(reading).fetch_one(&mut connection);
        let is_reading: bool = reading.await.unwrap();
        is_reading
    };
    bed.execute("update subscriber set notify_after = now()")
        .await;
    // A match may end before the signal.
    let stopped_at = eventually("it is stopped in the middle of a match", async || {
        if !is_reading().await {
            return None;
        }
        let stopped_at = Instant::now();
        stopped.signal(Signal::SIGSTOP);
        // The server answers what it was asked before.
        sleep(Duration::from_millis(100)).await;
        if is_reading().await {
            return Some(stopped_at);
        }
        stopped.signal(Signal::SIGCONT);
        bed.execute("update subscriber set notify_after = now()")
            .await;
        None
    })
    .await;
    eventually("its session is ended", async || {
        (!is_reading().await).then_some(())
    })
    .await;
    let took = stopped_at.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
    let before = bed.sink.rows().len();
    let other = Dispatching::start(&bed).await;
    let late = "select count(*) from subscriber where notify_after <= now()";
    eventually("the other one has taken over", async || {
        (bed.value::<i64>(late).await == 0).then_some(())
    })
    .await;
    assert_eq!(bed.sink.rows().len(), before + 3000);
    stopped.signal(Signal::SIGCONT);
    eventually("it goes on", async || {
        let log = std::fs::read_to_string(&stopped.log).unwrap();
        log.contains("dispatch subscribers: ").then_some(())
    })
    .await;
    for process in [stopped, other] {
        process.terminate().await;
    }
    assert_eq!(bed.sink.rows().len(), before + 3000);
}

/// It can't hear that its session has ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_cut_off_loses_its_slot() {
    use testkit::fault_proxy::{FaultProxy, NetworkFault};

    let (sink, mut requests) = TestSink::holding(|number| number == 0).await;
    let toml = subscribers("interval = '1day'\ntakeover = '1s'") + "rows = 1\nconcurrency = 1";
    let mut bed = Bed::new(SUBSCRIBERS, &toml, sink).await;
    let proxy = FaultProxy::start(&bed.url).await.unwrap();
    let direct = std::mem::replace(&mut bed.url, proxy.url.clone());
    let cut_off = Dispatching::start(&bed).await;
    let held = requests.recv().await.unwrap();
    proxy.set(NetworkFault::Silent);
    bed.url = direct;
    let other = Dispatching::start(&bed).await;
    let late = "select count(*) from subscriber where notify_after <= now()";
    eventually("the other one has taken over", async || {
        (bed.value::<i64>(late).await == 0).then_some(())
    })
    .await;
    drop(held);
    assert_eq!(bed.sink.rows().len(), 181);
    proxy.set(NetworkFault::None);
    tokio::time::timeout(Duration::from_secs(30), other.terminate())
        .await
        .unwrap();
    cut_off.terminate().await;
    assert_eq!(bed.sink.rows().len(), 181);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgresql_is_waited_for_at_the_start() {
    use testkit::fault_proxy::{FaultProxy, NetworkFault};

    let toml = subscribers("interval = '1day'");
    let mut bed = Bed::new(SUBSCRIBERS, &toml, TestSink::start().await).await;
    let proxy = FaultProxy::start(&bed.url).await.unwrap();
    proxy.set(NetworkFault::Cut);
    bed.url = proxy.url.clone();
    let waiting = Dispatching::begin(&bed);
    eventually("it waits", async || {
        let log = std::fs::read_to_string(&waiting.log).unwrap();
        log.contains("waiting for PostgreSQL").then_some(())
    })
    .await;
    proxy.set(NetworkFault::None);
    eventually("all rows", async || {
        (bed.sink.rows().len() == 180).then_some(())
    })
    .await;
    waiting.terminate().await;
}

/// A statement of the session that held the slot went on for longer than `takeover`, and the rows were sent again.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_can_not_be_rescheduled_for_long_are_sent_once() {
    let (sink, mut requests) = TestSink::holding(|_| true).await;
    let toml = subscribers("interval = '1day'\ntakeover = '1s'") + "rows = 200";
    let bed = Bed::new(SUBSCRIBERS, &toml, sink).await;
    let dispatching = Dispatching::start(&bed).await;
    let held = requests.recv().await.unwrap();
    let mut locking = PgConnection::connect(&bed.url).await.unwrap();
    let lock = "begin; lock table subscriber in share row exclusive mode";
    sqlx::raw_sql(lock).execute(&mut locking).await.unwrap();
    drop(held);
    // Statements fail until several sessions have been lost.
    eventually("three errors", async || {
        let metrics = fetch(dispatching.admin, "GET", "/metrics").await.body;
        let errors = metrics.lines().find_map(|line| {
            line.strip_prefix("larder_dispatch_errors_total{dispatch=\"subscribers\"} ")
        });
        errors
            .filter(|errors| errors.parse::<u32>().unwrap() >= 3)
            .map(drop)
    })
    .await;
    locking.close().await.unwrap();
    eventually("all rows are rescheduled", async || {
        let moved = "select count(*) from subscriber where notify_after > now()";
        (bed.value::<i64>(moved).await == 180).then_some(())
    })
    .await;
    dispatching.terminate().await;
    assert_eq!(bed.sink.rows().len(), 180);
}

/// The session that still held the slot was one of this process, and the rows were sent again.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_session_that_hangs_are_sent_once() {
    let (sink, mut requests) = TestSink::holding(|_| true).await;
    let toml = subscribers("interval = '1day'\ntakeover = '3s'") + "rows = 200";
    let bed = Bed::new(SUBSCRIBERS, &toml, sink).await;
    let dispatching = Dispatching::start(&bed).await;
    let held = requests.recv().await.unwrap();
    let holder = "select pid from pg_locks where locktype = 'advisory' and granted \
                  and database = (select oid from pg_database where datname = current_database())";
    let pid = Pid::from_raw(bed.value(holder).await);
    let stopped = StoppedProcess::new(pid);
    drop(held);
    let tried = format!(
        "select count(*) from pg_stat_activity where datname = current_database() and pid <> {pid} \
         and query like 'select pg_try_advisory_lock(%' and state = 'idle'"
    );
    eventually("another session has tried to lock the slot", async || {
        (bed.value::<i64>(&tried).await > 0).then_some(())
    })
    .await;
    drop(stopped);
    eventually("all rows are rescheduled", async || {
        let moved = "select count(*) from subscriber where notify_after > now()";
        (bed.value::<i64>(moved).await == 180).then_some(())
    })
    .await;
    dispatching.terminate().await;
    assert_eq!(bed.sink.rows().len(), 180);
}
