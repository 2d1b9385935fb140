//! `larder seed`: the demo tables and rows for them, or a table for `larder dispatch`.
//!
//! The values are a function of the keys alone, so that two seedings agree and a larger one
//! contains a smaller one.

mod subscribers;

use std::fmt::Write;
use std::io::{IsTerminal, stderr, stdout};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use thiserror::Error;

use crate::cli::SeedArgs;
use crate::commands::database::CommandDatabase;
use crate::commands::output::print;
use crate::commands::seed::subscribers::{SECTION, seed_subscribers};
use crate::config::Config;
use crate::source::SourceError;
use crate::source::session::Database;

const TABLES: &str = include_str!("../../migrations/demo.sql");
/// An emp's key is its dept's times this, plus its number in the dept.
const EMPS_PER_DEPT_MAX: u32 = 100_000;
/// Rows are sent in pieces of about this size.
const CHUNK_BYTES: usize = 64 * 1024;

const NAMES: [&str; 16] = [
    "ACCOUNTING",
    "RESEARCH",
    "SALES",
    "OPERATIONS",
    "PURCHASING",
    "LOGISTICS",
    "MARKETING",
    "PAYROLL",
    "ENGINEERING",
    "SUPPORT",
    "LEGAL",
    "TREASURY",
    "FACILITIES",
    "QUALITY",
    "TRAINING",
    "PLANNING",
];
const CITIES: [&str; 12] = [
    "NEW YORK", "DALLAS", "CHICAGO", "BOSTON", "SEATTLE", "DENVER", "ATLANTA", "PHOENIX", "AUSTIN",
    "PORTLAND", "DETROIT", "MIAMI",
];
const FIRST_NAMES: [&str; 16] = [
    "ALICE", "BRUNO", "CARLA", "DAVID", "ELENA", "FELIX", "GRETA", "HENRY", "IRENE", "JONAS",
    "KAREN", "LEWIS", "MARIA", "NIGEL", "OLIVE", "PETER",
];
const LAST_NAMES: [&str; 16] = [
    "ADAMS", "ALLEN", "BLAKE", "CLARK", "FORD", "JAMES", "JONES", "KING", "MARTIN", "MILLER",
    "SCOTT", "SMITH", "TURNER", "WARD", "WEBER", "YOUNG",
];
const JOBS: [&str; 4] = ["CLERK", "SALESMAN", "ANALYST", "ENGINEER"];

/// Rows that a seeding added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeded {
    /// Rows of `dept`.
    pub depts: u64,
    /// Rows of `emp`.
    pub emps: u64,
}

/// Why nothing was seeded.
#[derive(Debug, Error)]
pub enum SeedError {
    /// The keys of one dept's emps would run into the next dept's.
    #[error("at most {EMPS_PER_DEPT_MAX} emps per dept, not {0}")]
    TooManyEmps(u32),
    /// It may have rows of somebody else.
    #[error(
        "public.subscribers exists already, and is not changed; `drop table public.subscribers` deletes it"
    )]
    SubscribersExist,
    /// The database refused; nothing was changed.
    #[error("could not seed the tables")]
    Postgres(#[from] sqlx::Error),
    /// The URL is not usable.
    #[error(transparent)]
    Url(#[from] SourceError),
}

/// Seeds the configured database, or the private one.
///
/// # Errors
/// [`SeedError`], and why the database can't be used.
pub async fn run(config: &Config, args: &SeedArgs) -> anyhow::Result<()> {
    let database = CommandDatabase::join(config).await?;
    let url = database.url();
    let outcome = match args.subscribers {
        Some(rows) => seed_subscribers(url, rows, args.layout).await,
        None => seed(url, args.depts, args.emps_per_dept).await.map(drop),
    };
    database.close().await;
    outcome?;
    if args.subscribers.is_some() {
        print(&mut stdout(), SECTION)?;
    }
    Ok(())
}

/// Creates the demo tables where they are missing and adds the rows whose keys are.
///
/// Depts are numbered from 1. One transaction: all or nothing. A progress bar is drawn if
/// stderr is a terminal.
/// # Errors
/// [`SeedError`]; the tables are then as before.
pub async fn seed(url: &str, depts: u32, emps_per_dept: u32) -> Result<Seeded, SeedError> {
    if emps_per_dept > EMPS_PER_DEPT_MAX {
        return Err(SeedError::TooManyEmps(emps_per_dept));
    }
    // Seeding takes long by design; sqlx would warn of each statement.
    let database = Database::new(url, false, Duration::ZERO)?;
    let mut connection = database.connect_plain().await?;
    let mut transaction = connection.begin().await?;
    // Without it every `if not exists` that finds something says so in the log.
    sqlx::raw_sql("set local client_min_messages = warning")
        .execute(&mut *transaction)
        .await?;
    sqlx::raw_sql(TABLES).execute(&mut *transaction).await?;

    let progress = progress_bar(u64::from(depts) * (1 + u64::from(emps_per_dept)));
    let dept_rows = (1..=depts).map(|dept| DemoRow::Dept(dept.into()));
    let added_depts = fill(&mut transaction, "dept", dept_rows, &progress).await?;
    let emp_rows = (1..=depts)
        .flat_map(|dept| (0..emps_per_dept).map(move |number| DemoRow::Emp(dept.into(), number)));
    let added_emps = fill(&mut transaction, "emp", emp_rows, &progress).await?;
    transaction.commit().await?;
    progress.finish_and_clear();

    // Without statistics the first plans would be guesses.
    sqlx::raw_sql("analyze public.dept, public.emp")
        .execute(&mut connection)
        .await?;
    connection.close().await?;
    tracing::info!(depts = added_depts, emps = added_emps, "rows added");
    Ok(Seeded {
        depts: added_depts,
        emps: added_emps,
    })
}

/// Adds the rows whose keys are missing and counts them.
///
/// By way of a temporary table, since COPY itself can't pass over a key that is there.
async fn fill(
    connection: &mut PgConnection,
    table: &'static str,
    rows: impl Iterator<Item = DemoRow>,
    progress: &ProgressBar,
) -> Result<u64, sqlx::Error> {
    let staging = format!(
        "create temporary table seed_{table} (like public.{table} including defaults) \
         on commit drop"
    );
    sqlx::raw_sql(AssertSqlSafe(staging))
        .execute(&mut *connection)
        .await?;
    let mut copy = connection
        .copy_in_raw(&format!("copy pg_temp.seed_{table} from stdin"))
        .await?;
    let mut chunk = String::with_capacity(CHUNK_BYTES * 2);
    let mut rows_in_chunk = 0;
    for row in rows {
        row.write(&mut chunk);
        rows_in_chunk += 1;
        if chunk.len() >= CHUNK_BYTES {
            copy.send(chunk.as_bytes()).await?;
            progress.inc(rows_in_chunk);
            chunk.clear();
            rows_in_chunk = 0;
        }
    }
    copy.send(chunk.as_bytes()).await?;
    progress.inc(rows_in_chunk);
    copy.finish().await?;
    let insert = format!(
        "insert into public.{table} select * from pg_temp.seed_{table} on conflict do nothing"
    );
    let result = sqlx::query(AssertSqlSafe(insert))
        .execute(&mut *connection)
        .await?;
    Ok(result.rows_affected())
}

/// A row to insert: a dept by its key, or an emp by its dept and its number there.
enum DemoRow {
    Dept(i64),
    Emp(i64, u32),
}

impl DemoRow {
    /// Appends a line of COPY's text format, columns in the order of the table.
    fn write(&self, line: &mut String) {
        let written = match *self {
            DemoRow::Dept(deptno) => {
                let draw = mix(deptno);
                let (name, city) = (pick(&NAMES, draw), pick(&CITIES, draw >> 8));
                writeln!(line, "{deptno}\t{name}\t{city}")
            }
            DemoRow::Emp(deptno, number) => write_emp(line, deptno, number),
        };
        debug_assert!(written.is_ok(), "a String takes all that is written");
    }
}

/// The first emp of a dept is its manager; commissions are for salesmen.
fn write_emp(line: &mut String, deptno: i64, number: u32) -> std::fmt::Result {
    let manager = deptno * i64::from(EMPS_PER_DEPT_MAX);
    let empno = manager + i64::from(number);
    let draw = mix(empno);
    let (first, last) = (pick(&FIRST_NAMES, draw), pick(&LAST_NAMES, draw >> 8));
    let (year, month, day) = (
        1980 + (draw >> 16) % 40,
        1 + (draw >> 24) % 12,
        1 + (draw >> 32) % 28,
    );
    let salary = 800 + (draw >> 40) % 400 * 10;
    write!(line, "{empno}\t{first} {last}\t")?;
    if number == 0 {
        write!(line, "MANAGER\t\\N")?;
    } else {
        write!(line, "{}\t{manager}", pick(&JOBS, draw >> 48))?;
    }
    write!(line, "\t{year}-{month:02}-{day:02} 00:00:00\t{salary}\t")?;
    if number != 0 && pick(&JOBS, draw >> 48) == "SALESMAN" {
        write!(line, "{}", (draw >> 52) % 15 * 100)?;
    } else {
        write!(line, "\\N")?;
    }
    writeln!(line, "\t{deptno}")
}

fn pick<'words>(words: &[&'words str], draw: u64) -> &'words str {
    let index = draw % words.len() as u64;
    words[index as usize]
}

/// The output function of SplitMix64 (Steele, Lea and Flood 2014): neighbouring keys get
/// unrelated bits.
fn mix(key: i64) -> u64 {
    let mut bits = key.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn progress_bar(rows: u64) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(rows).with_finish(ProgressFinish::AndClear);
    let template = "{bar:40} {human_pos}/{human_len} rows, {per_sec}, {eta} left";
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
