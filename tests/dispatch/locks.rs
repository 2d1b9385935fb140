//! Rows that the application changes and refers to while they are rescheduled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::{Instant, sleep};

use super::Bed;
use super::deliveries::{COUNT, Deliveries, JOBS, jobs};
use super::processes::Dispatching;
use super::sink::TestSink;

/// How long the application works on the rows.
const LOAD: Duration = Duration::from_secs(4);

/// The statements of a transaction.
const STATEMENTS: usize = 8;

/// A statement that waits longer fails. Deadlocks are looked for at once.
const SETTINGS: &str = "set lock_timeout = '5s'; set deadlock_timeout = '10ms'";

/// Runs transactions of `statement` for jobs in descending order, until `is_over`. Returns how long each statement took.
async fn run_transactions(
    url: &str,
    seed: u64,
    statement: &str,
    is_over: &AtomicBool,
) -> Vec<Duration> {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(SETTINGS)
        .execute(&mut connection)
        .await
        .unwrap();
    let (mut rng, mut waits) = (Rng::with_seed(seed), Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        let mut ids = [(); STATEMENTS].map(|()| 1 + rng.usize(..COUNT) as i32);
        ids.sort_unstable_by(|one, other| other.cmp(one));
        let mut transaction = connection.begin().await.unwrap();
        for id in ids {
            let began = Instant::now();
            sqlx::query(AssertSqlSafe(statement))
                .bind(id)
                .execute(&mut *transaction)
                .await
                .unwrap();
            waits.push(began.elapsed());
        }
        transaction.commit().await.unwrap();
        sleep(Duration::from_millis(5)).await;
    }
    connection.close().await.unwrap();
    waits
}

/// Larder locks rows in ascending order. It waits for none, so there is no deadlock; each delivery is sent once and no update of
/// the application is lost.
#[tokio::test(flavor = "multi_thread")]
async fn an_application_that_locks_rows_in_another_order_meets_no_deadlock() {
    let sql = format!(
        "{JOBS}; create table device (id int generated always as identity, job int not null references job)"
    );
    let bed = Bed::new(&sql, &jobs("at-least-once"), TestSink::start().await).await;
    let dispatching = Dispatching::start(&bed).await;
    let update = "update job set touched = touched + 1 where id = $1";
    let refer = "insert into device (job) values ($1)";
    let is_over = AtomicBool::new(false);
    let ending = async {
        sleep(LOAD).await;
        is_over.store(true, Ordering::Relaxed);
    };
    let (first, second, inserts, ()) = tokio::join!(
        run_transactions(&bed.url, 1, update, &is_over),
        run_transactions(&bed.url, 2, update, &is_over),
        run_transactions(&bed.url, 3, refer, &is_over),
        ending,
    );
    dispatching.terminate().await;
    let updates = [first, second].concat();
    let made = (updates.len(), inserts.len());
    for (what, mut waits) in [("updates", updates), ("inserts", inserts)] {
        waits.sort_unstable();
        let (count, p99) = (waits.len(), waits[waits.len() * 99 / 100]);
        eprintln!(
            "{count} {what}: p99 {p99:?}, at most {:?}",
            waits[count - 1]
        );
    }
    let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
    assert_eq!(bed.value::<i64>(deadlocks).await, 0);
    let counts =
        "select array[(select sum(touched) from job), (select count(*) from device)]::int8[]";
    let counts: Vec<i64> = bed.value(counts).await;
    assert_eq!(counts, [made.0 as i64, made.1 as i64]);
    let deliveries = Deliveries::of(&bed).await;
    eprintln!("{} deliveries", deliveries.count());
    assert!(deliveries.count() > 2 * COUNT);
    assert_eq!((deliveries.lost(), deliveries.repetitions().len()), (0, 0));
}
