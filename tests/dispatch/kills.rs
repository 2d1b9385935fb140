//! Rows that become due again and again, while processes are killed or PostgreSQL is started again.
//!
//! `LARDER_KILLS_SECONDS=120` goes on for two minutes, with a kill every five seconds.

use std::time::{Duration, SystemTime};

use nix::sys::signal::{Signal, kill};
use tokio::time::sleep;

use super::Bed;
use super::deliveries::{
    BATCH, CONNECTIONS, COUNT, Deliveries, JOBS, POLL_INTERVAL, TAKEOVER, jobs, slow_sink,
};
use super::processes::Dispatching;
use crate::harness::cluster::start_postgres;
use crate::harness::{eventually, reachable_directory};
use crate::outage::postmaster;

/// How long each test goes on, in seconds.
const SECONDS: u64 = 10;
const KILL_PAUSE: Duration = Duration::from_secs(5);

/// What a crash repeats or loses at most.
const CRASH_ROWS: usize = BATCH * CONNECTIONS;

/// A request may arrive so long after it was sent, and a row come so much later, if other tests keep the machine busy.
const BUSY: Duration = Duration::from_secs(1);

/// The pauses before kills: four at least.
fn pauses() -> Vec<Duration> {
    let seconds = std::env::var_os("LARDER_KILLS_SECONDS");
    let seconds = seconds.map_or(SECONDS, |text| text.to_str().unwrap().parse().unwrap());
    let all = Duration::from_secs(seconds);
    let pause = KILL_PAUSE.min(all / 4);
    vec![pause; (all.as_millis() / pause.as_millis()) as usize]
}

/// Waits until each job has come once more.
async fn all_come_again(bed: &Bed) {
    let since = SystemTime::now();
    eventually("each job once more", async || {
        let received = bed.sink.received();
        let new = received.iter().filter(|one| one.at > since);
        let mut rows: Vec<i64> = new
            .flat_map(|one| one.elements())
            .map(|element| element["row"]["id"].as_i64().unwrap())
            .collect();
        rows.sort_unstable();
        rows.dedup();
        (rows.len() == COUNT).then_some(())
    })
    .await;
}

/// Runs two processes, of which one is killed after each pause. Returns the moments of the kills, and the deliveries.
async fn run_kills(bed: &Bed) -> (Vec<SystemTime>, Deliveries) {
    let mut kills = Vec::new();
    let survivor = Dispatching::start(bed).await;
    let log = survivor.log.clone();
    let mut killed = Dispatching::start(bed).await;
    for pause in pauses() {
        sleep(pause).await;
        kills.push(SystemTime::now());
        killed.signal(Signal::SIGKILL);
        killed.ended().await;
        killed = Dispatching::start(bed).await;
    }
    all_come_again(bed).await;
    for process in [survivor, killed] {
        process.terminate().await;
    }
    eprintln!("{}", std::fs::read_to_string(log).unwrap());
    let deliveries = Deliveries::of(bed).await;
    (kills, deliveries)
}

/// Each repetition comes after a kill, and they are at most `rows_max` of each kill. After one, what was matched before is sent
/// for at most `sends`.
fn check_repetitions(
    deliveries: &Deliveries,
    kills: &[SystemTime],
    sends: Duration,
    rows_max: usize,
) {
    let repetitions = deliveries.repetitions();
    eprintln!(
        "{} kills, {} deliveries, {} repetitions",
        kills.len(),
        deliveries.count(),
        repetitions.len()
    );
    for (first, second) in &repetitions {
        let has_kill = kills
            .iter()
            .any(|kill| *first < *kill + sends + BUSY && kill < second);
        assert!(has_kill, "repeated without a kill: {first:?}, {second:?}");
    }
    assert!(repetitions.len() <= kills.len() * rows_max);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_rows_come_while_a_process_is_killed_again_and_again() {
    let bed = Bed::new(JOBS, &jobs("at-least-once"), slow_sink().await).await;
    let (kills, deliveries) = run_kills(&bed).await;
    check_repetitions(&deliveries, &kills, Duration::ZERO, CRASH_ROWS);
    assert_eq!(deliveries.lost(), 0);
    let latest = deliveries.latest(kills[0]);
    eprintln!("at most {latest:?} late");
    let promised = TAKEOVER + POLL_INTERVAL + Duration::from_secs(1);
    assert!(latest < promised + BUSY, "{latest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_once_repeats_nothing_of_killed_processes() {
    let bed = Bed::new(JOBS, &jobs("at-most-once"), slow_sink().await).await;
    let (kills, deliveries) = run_kills(&bed).await;
    check_repetitions(&deliveries, &kills, Duration::ZERO, 0);
    let lost = deliveries.lost();
    eprintln!("{lost} lost");
    assert!(lost <= kills.len() * CRASH_ROWS, "{lost}");
}

/// In good order, and by a crash.
#[tokio::test(flavor = "multi_thread")]
async fn all_rows_come_while_postgresql_is_started_again() {
    let directory = reachable_directory();
    let postgres = start_postgres(directory.path(), &[("max_connections", "30")]).await;
    let url = postgres.url().to_owned();
    let bed = Bed::on(url, JOBS, &jobs("at-least-once"), slow_sink().await).await;
    let processes = [
        Dispatching::start(&bed).await,
        Dispatching::start(&bed).await,
    ];
    let mut restarts = Vec::new();
    for signal in [Signal::SIGINT, Signal::SIGKILL, Signal::SIGINT] {
        restarts.push(SystemTime::now());
        kill(postmaster(postgres.data_directory()), signal).unwrap();
        all_come_again(&bed).await;
    }
    for process in processes {
        eprintln!("{}", std::fs::read_to_string(&process.log).unwrap());
        process.terminate().await;
    }
    let deliveries = Deliveries::of(&bed).await;
    check_repetitions(&deliveries, &restarts, TAKEOVER, 2 * CRASH_ROWS);
    assert_eq!(deliveries.lost(), 0);
    let known =
        "select (select count(*) from larder.dead_letter) + (select count(*) from larder.delivery)";
    assert_eq!(bed.value::<i64>(known).await, 0);
    postgres.stop().await;
}
