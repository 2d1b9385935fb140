//! What larder does to the statements of others: those that fail or wait because of it.
//!
//! Waits are sampled. A statement waits for larder while all processes that block it are larder's: what would wait for
//! another process as well is not counted. The waits of one statement add up, and are known to about the interval of
//! the samples. Failures are reported by the sessions whose statement failed; they are larder's where PostgreSQL's
//! message or its context names what larder installed, or the deadlock a process of larder's.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgDatabaseError};
use sqlx::{ConnectOptions, Row};
use tokio::time::{Instant, MissedTickBehavior};

/// A statement may wait for larder as long as this.
pub(crate) const DELAY_MAX: Duration = Duration::from_millis(100);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Statements that are shown; more are only counted.
const SHOWN_MAX: usize = 20;
const SHOWN_CHARS: usize = 300;
const LARDERS: &str = "select pid from pg_stat_activity where application_name = 'larder'";
/// Statements that wait for larder alone, since when, and what larder runs meanwhile.
const WAITING: &str = "with larder as materialized ( \
      select pid, query from pg_stat_activity where application_name = 'larder'), \
    waiting as materialized ( \
      select pid, query_start, query from pg_stat_activity \
      where wait_event_type = 'Lock' and application_name <> 'larder' and backend_type = 'client backend'), \
    blocked as materialized (select *, pg_blocking_pids(pid) as blockers from waiting) \
    select b.pid, coalesce(b.query_start::text, '') as began, b.query, \
      (select coalesce(extract(epoch from max(clock_timestamp() - waitstart)), 0)::float8 from pg_locks l \
        where l.pid = b.pid and not granted) as seconds, \
      (select coalesce(string_agg(left(query, 120), ' | '), '') from larder where pid = any (blockers)) as larder \
    from blocked b where cardinality(blockers) > 0 and blockers <@ array(select pid from larder)";

/// What happened to others' statements in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Impact {
    /// Statements that failed because of larder.
    pub(crate) failed: u64,
    /// Statements that waited for larder longer than [`DELAY_MAX`].
    pub(crate) delayed: u64,
    /// Of one statement for larder.
    pub(crate) longest_wait: Duration,
}

impl Impact {
    pub(crate) fn add(&mut self, other: Self) {
        self.failed += other.failed;
        self.delayed += other.delayed;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
    }

    pub(crate) fn is_within_goal(&self) -> bool {
        self.failed == 0 && self.delayed == 0
    }
}

/// Shared by the sampler and all sessions whose failures count.
#[derive(Debug, Default)]
pub(crate) struct Interference(Mutex<Observed>);

#[derive(Debug, Default)]
struct Observed {
    /// Every server process of larder's that has been seen.
    larders: HashSet<i32>,
    /// The last statement of each process that waited for larder.
    statements: HashMap<i32, WaitingStatement>,
    /// Each process, for larder.
    waited: HashMap<i32, Duration>,
    impact: Impact,
    /// Failures that are not larder's, by SQLSTATE.
    others: BTreeMap<String, u64>,
    shown: Vec<String>,
}

#[derive(Debug)]
struct WaitingStatement {
    began: String,
    waited: Duration,
}

impl Interference {
    /// Samples waits until it is dropped.
    pub(crate) async fn watch(self: Arc<Self>, url: String) {
        loop {
            // PostgreSQL may be away.
            let _lost = self.sample_all(&url).await;
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }

    async fn sample_all(&self, url: &str) -> sqlx::Result<()> {
        let options = PgConnectOptions::from_str(url)?.application_name("interference");
        let mut connection = options.disable_statement_logging().connect().await?;
        let mut ticks = tokio::time::interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Instant::now();
        loop {
            ticks.tick().await;
            self.sample(&mut connection, &mut last).await?;
        }
    }

    async fn sample(&self, connection: &mut PgConnection, last: &mut Instant) -> sqlx::Result<()> {
        let larders: Vec<i32> = sqlx::query_scalar(LARDERS)
            .fetch_all(&mut *connection)
            .await?;
        let rows = sqlx::query(WAITING).fetch_all(connection).await?;
        let elapsed = last.elapsed();
        *last = Instant::now();
        let mut state = self.lock();
        state.larders.extend(larders);
        for row in rows {
            let seconds: f64 = row.try_get("seconds")?;
            let waited = elapsed.min(Duration::from_secs_f64(seconds.max(0.0)));
            let (query, larder): (String, String) = (row.try_get("query")?, row.try_get("larder")?);
            state.note_wait(row.try_get("pid")?, row.try_get("began")?, waited, || {
                format!("waits for larder ({larder}): {query}")
            });
        }
        Ok(())
    }

    /// A statement of others' failed.
    pub(crate) fn note_failure(&self, sql: &str, error: &sqlx::Error) {
        let error = error.as_database_error();
        let Some(error) = error.and_then(|error| error.try_downcast_ref::<PgDatabaseError>())
        else {
            return;
        };
        let mut state = self.lock();
        let failure = StatementFailure {
            code: error.code(),
            message: error.message(),
            detail: error.detail().unwrap_or_default(),
            context: error.r#where().unwrap_or_default(),
        };
        if failure.is_of(&state.larders) && !sql.contains("larder") {
            state.impact.failed += 1;
            state.show(&format!("failed because of larder: {failure:?}: {sql}"));
        } else {
            *state.others.entry(failure.code.to_owned()).or_default() += 1;
        }
    }

    /// A program's statements failed, in a way that they do not without larder.
    pub(crate) fn note_program(&self, program: &str, error: &str) {
        let mut state = self.lock();
        state.impact.failed += 1;
        state.show(&format!("{program}: {error}"));
    }

    /// What happened since this was asked the last time.
    pub(crate) fn take(&self) -> Impact {
        std::mem::take(&mut self.lock().impact)
    }

    /// How long each process of `pids` waited for larder.
    pub(crate) fn waited(&self, pids: &[i32]) -> Vec<Duration> {
        let state = self.lock();
        let waited = |pid| state.waited.get(pid).copied().unwrap_or_default();
        pids.iter().map(waited).collect()
    }

    /// Prints the first statements, and how many failed for other reasons.
    pub(crate) fn print(&self) {
        let state = self.lock();
        for line in &state.shown {
            println!("{line}");
        }
        let others: Vec<String> = state
            .others
            .iter()
            .map(|(code, count)| format!("{code}: {count}"))
            .collect();
        println!(
            "statements that failed for other reasons, by SQLSTATE: {}",
            others.join(", ")
        );
    }

    /// Nothing that a panic could leave half done is kept under this lock.
    fn lock(&self) -> MutexGuard<'_, Observed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observed {
    /// A process was found waiting for larder, `waited` longer than at the last sample.
    fn note_wait(
        &mut self,
        pid: i32,
        began: String,
        waited: Duration,
        text: impl FnOnce() -> String,
    ) {
        *self.waited.entry(pid).or_default() += waited;
        let statement = self
            .statements
            .entry(pid)
            .or_insert_with(|| WaitingStatement {
                began: began.clone(),
                waited: Duration::ZERO,
            });
        if statement.began != began {
            *statement = WaitingStatement {
                began,
                waited: Duration::ZERO,
            };
        }
        let before = statement.waited;
        statement.waited += waited;
        let now = statement.waited;
        self.impact.longest_wait = self.impact.longest_wait.max(now);
        if before <= DELAY_MAX && now > DELAY_MAX {
            self.impact.delayed += 1;
            self.show(&text());
        }
    }

    fn show(&mut self, text: &str) {
        if self.shown.len() < SHOWN_MAX {
            self.shown.push(text.chars().take(SHOWN_CHARS).collect());
        }
    }
}

/// What PostgreSQL says of a failed statement.
#[derive(Debug)]
struct StatementFailure<'a> {
    code: &'a str,
    message: &'a str,
    detail: &'a str,
    context: &'a str,
}

impl StatementFailure<'_> {
    /// Whether it is larder's; `larders` are its server processes.
    fn is_of(&self, larders: &HashSet<i32>) -> bool {
        const DEADLOCK: &str = "40P01";
        let named = [self.message, self.detail, self.context]
            .iter()
            .any(|text| text.contains("larder.") || text.contains("larder_"));
        // "Process 1 waits for ShareLock on transaction 2; blocked by process 3."
        let words: Vec<&str> = self.detail.split([' ', '.', '\n']).collect();
        let is_larders = |word: &str| word.parse().is_ok_and(|pid| larders.contains(&pid));
        let deadlocked = words
            .windows(2)
            .any(|pair| pair[0].eq_ignore_ascii_case("process") && is_larders(pair[1]));
        // Only larder's triggers have transition tables here.
        named || self.message.contains("transition t") || (self.code == DEADLOCK && deadlocked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_larders_where_they_name_it() {
        let larders = HashSet::from([17]);
        let of = |code, message, detail, context| {
            StatementFailure {
                code,
                message,
                detail,
                context,
            }
            .is_of(&larders)
        };
        let cycle = "Process 5 waits for ShareLock on transaction 90; blocked by process 17.\n\
            Process 17 waits for ShareLock on transaction 91; blocked by process 5.";
        assert!(of("40P01", "deadlock detected", cycle, ""));
        let cycle = "Process 5 waits for ShareLock on transaction 17; blocked by process 6.\n\
            Process 6 waits for ShareLock on transaction 91; blocked by process 5.";
        assert!(!of("40P01", "deadlock detected", cycle, ""));
        let context = "PL/pgSQL function larder.log_ab() line 3 at SQL statement";
        assert!(of(
            "55000",
            "cannot delete from table \"change\"",
            "",
            context
        ));
        assert!(of(
            "0A000",
            "cannot collect transition tuples from child foreign tables",
            "",
            ""
        ));
        assert!(!of(
            "55P03",
            "canceling statement due to lock timeout",
            "",
            ""
        ));
    }

    #[test]
    fn waits_of_one_statement_add_up() {
        let mut state = Observed::default();
        let mut wait = |began: &str, millis| {
            let waited = Duration::from_millis(millis);
            state.note_wait(1, began.to_owned(), waited, String::new);
        };
        wait("first", 60);
        wait("second", 60);
        wait("second", 30);
        wait("third", 60);
        wait("third", 60);
        wait("third", 60);
        let expected = Impact {
            failed: 0,
            delayed: 1,
            longest_wait: Duration::from_millis(180),
        };
        assert_eq!(state.impact, expected);
        assert_eq!(state.waited[&1], Duration::from_millis(330));
    }
}
