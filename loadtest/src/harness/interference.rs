//! How larder affects other clients' statements: which fail or wait because of it.
//!
//! Waits are sampled. A statement waits for larder while all processes that block it are larder's: what would wait for
//! another process as well is not counted. The waits of one statement add up, and are known to about the interval of
//! the samples. The time in which larder's process waited for a processor is taken off: on a busy machine it says
//! nothing of how long larder holds its locks.
//!
//! Failures are reported by the sessions whose statement failed. A failure is larder's if PostgreSQL's message or its
//! context names what larder installed, or if the deadlock names a process of larder's; but never if the connection or the
//! server was ended, which the faults do.

use std::collections::{BTreeMap, HashMap};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgDatabaseError};
use sqlx::{ConnectOptions, Row};
use tokio::time::{Instant, MissedTickBehavior};

/// The longest time that a statement may wait for larder.
pub(crate) const DELAY_MAX: Duration = Duration::from_millis(100);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// A process counts as larder's for so long after it was last seen: the operating system gives its number to others.
/// A deadlock is reported within a second.
const LARDER_SEEN_AGO_MAX: Duration = Duration::from_secs(10);
/// Prefix of the SQLSTATEs by which PostgreSQL says that an administrator, a crash or a shutdown ended the connection.
/// `57014` (query canceled) does not begin with it.
const CONNECTION_ENDED: &str = "57P";
/// So many statements are printed; more are only counted.
const SHOWN_MAX: usize = 20;
const SHOWN_CHARS: usize = 1_200;
const LARDERS: &str = "select pid from pg_stat_activity where application_name like 'larder%'";
/// Statements that wait for larder alone, since when, and what larder runs meanwhile.
const WAITING: &str = "with larder as materialized ( \
      select pid, query from pg_stat_activity where application_name like 'larder%'), \
    waiting as materialized ( \
      select pid, query_start, query from pg_stat_activity \
      where wait_event_type = 'Lock' and application_name not like 'larder%' and backend_type = 'client backend'), \
    blocked as materialized (select *, pg_blocking_pids(pid) as blockers from waiting) \
    select b.pid, coalesce(b.query_start::text, '') as began, b.query, \
      (select coalesce(extract(epoch from max(clock_timestamp() - waitstart)), 0)::float8 from pg_locks l \
        where l.pid = b.pid and not granted) as seconds, \
      (select coalesce(string_agg(left(query, 120), ' | '), '') from larder where pid = any (blockers)) as larder, \
      blockers \
    from blocked b where cardinality(blockers) > 0 and blockers <@ array(select pid from larder)";

/// The effect on other clients' statements during some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Impact {
    /// Statements that failed because of larder.
    pub(crate) failed: u64,
    /// Statements that waited for larder longer than [`DELAY_MAX`].
    pub(crate) delayed: u64,
    /// The longest wait of one statement for larder.
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
    /// Server processes of larder's, and when each was last seen.
    larders: HashMap<i32, Instant>,
    /// The last statement of each process that waited for larder.
    statements: HashMap<i32, WaitingStatement>,
    /// How long each process waited for larder.
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
    /// What each of larder's processes that block it had waited for a processor before, and has by now.
    queued: HashMap<i32, (Duration, Duration)>,
    /// The statement, and what larder ran meanwhile.
    text: String,
    /// It was counted as delayed.
    is_counted: bool,
}

impl WaitingStatement {
    fn new(began: String, text: String) -> Self {
        Self {
            began,
            waited: Duration::ZERO,
            queued: HashMap::new(),
            text,
            is_counted: false,
        }
    }

    /// How long it waited for larder, without the time in which larder's process waited for a processor.
    fn waited_for_larder(&self) -> Duration {
        let queued = self
            .queued
            .values()
            .map(|(before, now)| now.saturating_sub(*before));
        self.waited.saturating_sub(queued.max().unwrap_or_default())
    }
}

/// What one sample says of a statement that waits for larder.
struct Wait {
    pid: i32,
    began: String,
    /// Since the last sample.
    waited: Duration,
    /// What each of larder's processes that block it has waited for a processor since it began.
    queued: Vec<(i32, Duration)>,
    text: String,
}

impl Interference {
    /// Samples waits until it is dropped.
    pub(crate) async fn watch(self: Arc<Self>, url: String) {
        loop {
            // An error means that PostgreSQL is down: connect again.
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
        let mut waits = Vec::new();
        for row in rows {
            let seconds: f64 = row.try_get("seconds")?;
            let blockers: Vec<i32> = row.try_get("blockers")?;
            let (query, larder): (String, String) = (row.try_get("query")?, row.try_get("larder")?);
            waits.push(Wait {
                pid: row.try_get("pid")?,
                began: row.try_get("began")?,
                waited: elapsed.min(Duration::from_secs_f64(seconds.max(0.0))),
                queued: blockers.iter().map(|pid| (*pid, queued(*pid))).collect(),
                text: format!("waits for larder ({larder}): {query}"),
            });
        }
        let mut state = self.lock();
        state.note_larders(larders, Instant::now());
        state.note_waits(waits);
        Ok(())
    }

    /// Counts a failed statement of another client.
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
        if failure.is_larders(&state.larders) && !sql.contains("larder") {
            state.impact.failed += 1;
            state.show(&format!("failed because of larder: {failure:?}: {sql}"));
        } else {
            *state.others.entry(failure.code.to_owned()).or_default() += 1;
        }
    }

    /// Counts an error of a program whose statements do not fail without larder.
    pub(crate) fn note_program(&self, program: &str, error: &str) {
        let mut state = self.lock();
        state.impact.failed += 1;
        state.show(&format!("{program}: {error}"));
    }

    /// Returns the effect since the last call. Statements that still wait count with what they have waited.
    pub(crate) fn take_impact(&self) -> Impact {
        let mut state = self.lock();
        let mut waiting = std::mem::take(&mut state.statements);
        waiting
            .values_mut()
            .for_each(|statement| state.judge(statement));
        state.statements = waiting;
        std::mem::take(&mut state.impact)
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

    /// A panic leaves no inconsistent state under this lock.
    fn lock(&self) -> MutexGuard<'_, Observed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observed {
    /// These server processes are larder's now.
    fn note_larders(&mut self, pids: Vec<i32>, now: Instant) {
        self.larders
            .retain(|_, seen| now.duration_since(*seen) <= LARDER_SEEN_AGO_MAX);
        self.larders.extend(pids.into_iter().map(|pid| (pid, now)));
    }

    /// These processes are waiting for larder; all others no longer are.
    fn note_waits(&mut self, waits: Vec<Wait>) {
        let mut ended = std::mem::take(&mut self.statements);
        for wait in waits {
            *self.waited.entry(wait.pid).or_default() += wait.waited;
            let known = ended.remove(&wait.pid);
            let is_same = |known: &WaitingStatement| known.began == wait.began;
            let mut statement = match known {
                Some(known) if is_same(&known) => known,
                other => {
                    other
                        .into_iter()
                        .for_each(|mut other| self.judge(&mut other));
                    WaitingStatement::new(wait.began, wait.text)
                }
            };
            statement.waited += wait.waited;
            for (pid, queued) in wait.queued {
                statement.queued.entry(pid).or_insert((queued, queued)).1 = queued;
            }
            self.statements.insert(wait.pid, statement);
        }
        ended.values_mut().for_each(|ended| self.judge(ended));
    }

    /// A statement waits for larder no more, or a span of time ends. It counts as delayed once.
    fn judge(&mut self, statement: &mut WaitingStatement) {
        let waited = statement.waited_for_larder();
        self.impact.longest_wait = self.impact.longest_wait.max(waited);
        if waited > DELAY_MAX && !statement.is_counted {
            statement.is_counted = true;
            self.impact.delayed += 1;
            self.show(&statement.text);
        }
    }

    fn show(&mut self, text: &str) {
        if self.shown.len() < SHOWN_MAX {
            self.shown.push(text.chars().take(SHOWN_CHARS).collect());
        }
    }
}

/// How long a process has waited for a processor since it began; zero if the kernel does not tell. The second number of
/// `/proc/PID/schedstat`, in nanoseconds (Documentation/scheduler/sched-stats.rst of Linux).
fn queued(pid: i32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    let nanos = stat.split_whitespace().nth(1);
    Duration::from_nanos(nanos.and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
}

/// PostgreSQL's error for a failed statement.
#[derive(Debug)]
struct StatementFailure<'a> {
    code: &'a str,
    message: &'a str,
    detail: &'a str,
    context: &'a str,
}

impl StatementFailure<'_> {
    /// Whether larder caused it; `larders` are its server processes.
    fn is_larders(&self, larders: &HashMap<i32, Instant>) -> bool {
        const DEADLOCK: &str = "40P01";
        // The context tells which function ran when the connection was ended, not why it was.
        if self.code.starts_with(CONNECTION_ENDED) {
            return false;
        }
        let named = [self.message, self.detail, self.context]
            .iter()
            .any(|text| text.contains("larder.") || text.contains("larder_"));
        // "Process 1 waits for ShareLock on transaction 2; blocked by process 3."
        let words: Vec<&str> = self.detail.split([' ', '.', '\n']).collect();
        let is_larders = |word: &str| word.parse().is_ok_and(|pid| larders.contains_key(&pid));
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
        let larders = HashMap::from([(17, Instant::now())]);
        let of = |code, message, detail, context| {
            StatementFailure {
                code,
                message,
                detail,
                context,
            }
            .is_larders(&larders)
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
    fn ends_of_connections_are_not_larders_and_cancellations_in_its_functions_are() {
        let in_logger = |code, message| {
            StatementFailure {
                code,
                message,
                detail: "",
                context: "PL/pgSQL function larder.log_7202605a9de207d8() line 13 at IF",
            }
            .is_larders(&HashMap::new())
        };
        for (code, message) in [
            (
                "57P01",
                "terminating connection due to administrator command",
            ),
            (
                "57P02",
                "terminating connection because of crash of another server process",
            ),
            ("57P03", "the database system is shutting down"),
        ] {
            assert!(!in_logger(code, message), "{code}");
        }
        for (code, message) in [
            ("57014", "canceling statement due to statement timeout"),
            ("55P03", "canceling statement due to lock timeout"),
            (
                "40001",
                "could not serialize access due to concurrent update",
            ),
            ("P0001", "raised by a function"),
        ] {
            assert!(in_logger(code, message), "{code}");
        }
    }

    #[test]
    fn processes_are_larders_until_their_numbers_may_be_used_again() {
        let mut state = Observed::default();
        let began = Instant::now();
        state.note_larders(vec![5, 6], began);
        let later = began + LARDER_SEEN_AGO_MAX;
        state.note_larders(vec![6], later);
        assert!(state.larders.contains_key(&5));
        state.note_larders(vec![], later + Duration::from_secs(1));
        assert!(!state.larders.contains_key(&5) && state.larders.contains_key(&6));
    }

    #[test]
    fn waits_of_one_statement_add_up() {
        let mut state = Observed::default();
        for (began, millis) in [
            ("first", 60),
            ("second", 60),
            ("second", 30),
            ("third", 60),
            ("third", 60),
            ("third", 60),
        ] {
            state.note_waits(vec![wait(began, millis, &[])]);
        }
        state.note_waits(vec![]);
        assert_eq!(state.impact, impact(1, 180));
        assert_eq!(state.waited[&1], Duration::from_millis(330));
    }

    #[test]
    fn time_in_which_larder_waits_for_a_processor_is_taken_off() {
        let mut state = Observed::default();
        let waits = |queued: &[(i32, u64)]| vec![wait("first", 80, queued)];
        state.note_waits(waits(&[(7, 1000), (8, 500)]));
        state.note_waits(waits(&[(7, 1070), (8, 501)]));
        state.note_waits(vec![]);
        assert_eq!(state.impact, impact(0, 90));
    }

    #[test]
    fn a_wait_goes_on_from_one_span_to_the_next_and_counts_once() {
        let interference = Interference::default();
        let mut delayed = Vec::new();
        for millis in [60, 60, 60] {
            let waits = vec![wait("first", millis, &[])];
            interference.lock().note_waits(waits);
            delayed.push(interference.take_impact());
        }
        assert_eq!(delayed, [impact(0, 60), impact(1, 120), impact(0, 180)]);
    }

    fn wait(began: &str, millis: u64, queued: &[(i32, u64)]) -> Wait {
        let queued = queued.iter();
        Wait {
            pid: 1,
            began: began.to_owned(),
            waited: Duration::from_millis(millis),
            queued: queued
                .map(|(pid, millis)| (*pid, Duration::from_millis(*millis)))
                .collect(),
            text: String::new(),
        }
    }

    fn impact(delayed: u64, longest: u64) -> Impact {
        Impact {
            failed: 0,
            delayed,
            longest_wait: Duration::from_millis(longest),
        }
    }
}
