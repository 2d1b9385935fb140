//! Asks PostgreSQL for the plans of larder's statements, and of users', for the rules of [`crate::check`].
//!
//! Nothing here runs a statement: it is prepared and explained without `analyze`. Each is planned under a savepoint, so that
//! one that fails or takes too long ends alone. With generic plans, without scans of whole tables and with all partitions,
//! an empty database has the plans of a full one.

mod hypothetical;
mod patterns;
mod references;
mod statements;
mod tables;

use std::collections::BTreeSet;
use std::sync::Arc;

use sqlx::postgres::{PgConnection, PgDatabaseError, PgErrorPosition};
use sqlx::{AssertSqlSafe, Row, raw_sql};

use crate::check::Finding;
use crate::check::facts::PlannedIndexes;
use crate::check::judge::Judge;
use crate::check::plan::Plan;
use crate::check::queries::QueryError;
use crate::check::question::{
    PlanSettings, PlannedStatement, Question, QuestionKind, UserStatement, questions,
    reference_question,
};
use crate::check::report::{Skipped, Unchecked};
use crate::resource::Resource;
use crate::resource::catalogue::TableName;
use crate::resource::sql::literal;
use crate::source::plans::hypothetical::Trial;
pub use crate::source::plans::patterns::matching_tables;
use crate::source::plans::references::read_references;
use crate::source::plans::statements::read_statements;
use crate::source::plans::tables::read_shapes;
use crate::source::{INSUFFICIENT_PRIVILEGE, SourceError, message_of};

/// What is before the text of a statement.
const PREPARE: &str = "prepare larder_checked as";

/// Since this version a B-tree keeps equal values once.
const DEDUPLICATES_SINCE: u32 = 130_000;

/// For all statements: every index that could serve one has to be cheaper than all that reads a table whole. Joins of two
/// tables that are read whole would be cheaper than many searches in tables of few rows.
const SETTINGS: &str = "set local plan_cache_mode = force_generic_plan; set local enable_partition_pruning = off; \
    set local enable_seqscan = off; set local enable_hashjoin = off; set local enable_mergejoin = off; \
    set local enable_material = off; set local enable_sort = on; set local enable_bitmapscan = on; \
    set local enable_indexscan = on; set local enable_indexonlyscan = on; set local enable_nestloop = on; \
    set local enable_tidscan = on; set local max_parallel_workers_per_gather = 0; set local jit = off; ";

/// What is planned besides the statements of resources.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// The oids of further tables: foreign keys that reference them are checked, too.
    pub tables: Vec<u32>,
    /// Statements of files.
    pub queries: Vec<UserStatement>,
    /// So many of the statements that took the most time, from pg_stat_statements; 0: none.
    pub statements: u32,
    /// Whether advice about users' statements is tried with hypothetical indexes.
    pub hypothetical: Hypothetical,
}

/// Whether advice about users' statements is tried with hypothetical indexes of the extension hypopg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Hypothetical {
    /// If the extension is there.
    #[default]
    Auto,
    /// Always; without the extension the check is not complete.
    On,
    /// Never.
    Off,
}

/// What the plans have shown.
#[derive(Clone, Debug, Default)]
pub struct PlanReport {
    /// In the order of rules and objects.
    pub findings: Vec<Finding>,
    /// What is to be said about indexes.
    pub indexes: PlannedIndexes,
    /// What could not be checked.
    pub unchecked: Vec<Unchecked>,
    /// What larder's role may not see.
    pub skipped: Vec<Skipped>,
    /// Statements of files that PostgreSQL does not accept.
    pub rejected: Vec<QueryError>,
}

/// Plans the statements of `resources`, and the searches behind foreign keys that reference their tables, and what `options`
/// name.
///
/// `connection` has to be in a transaction; it is left with the settings that it had.
///
/// # Errors
/// Only if the catalogue can't be read or the connection fails.
pub async fn check_plans(
    connection: &mut PgConnection,
    resources: &[Arc<Resource>],
    options: &PlanOptions,
) -> Result<PlanReport, SourceError> {
    let mut report = PlanReport::default();
    let path = read_search_path(connection).await?;
    let resources_asked = resources.iter();
    let mut asked: Vec<Question> = resources_asked
        .flat_map(|resource| questions(resource))
        .collect();
    let tables = &options.tables;
    asked.extend(reference_questions(connection, resources, tables, &mut report).await?);
    asked.extend(options.queries.iter().cloned().map(Question::from));
    if options.statements > 0 {
        let dearest = read_statements(connection, options.statements, &mut report).await?;
        asked.extend(dearest.into_iter().map(Question::from));
    }
    let mut answered = Vec::new();
    for question in asked {
        match plan_all(connection, &question, &path).await? {
            Ok(plans) => answered.push((question, plans)),
            Err(refusal) => report.add_refusal(question, &refusal),
        }
    }
    let shapes = read_shapes(connection, &scanned_tables(&answered)).await?;
    let version = connection.server_version_num().unwrap_or_default();
    let judge = Judge {
        shapes: &shapes,
        deduplicates: version >= DEDUPLICATES_SINCE,
    };
    let trial = Trial::find(connection, options.hypothetical, &path, &mut report).await?;
    let mut advice = Vec::new();
    for (question, plans) in &answered {
        report.indexes.used.extend(judge.used(question, plans));
        let given = judge.advice(question, plans);
        match (&question.kind, &trial) {
            (QuestionKind::Users(statement), Some(trial)) => {
                advice.extend(trial.proven(connection, &statement.text, given).await?);
            }
            _ => advice.extend(given),
        }
    }
    (report.findings, report.indexes.dropped) = judge.findings(advice);
    Ok(report)
}

/// The schemas and names of the tables that plans read.
fn scanned_tables(answered: &[(Question, Vec<Plan>)]) -> BTreeSet<(String, String)> {
    let plans = answered.iter().flat_map(|(_, plans)| plans);
    let scans = plans.flat_map(|plan| &plan.scans);
    scans
        .map(|scan| (scan.schema.clone(), scan.table.clone()))
        .collect()
}

impl PlanReport {
    fn add_refusal(&mut self, question: Question, refusal: &Refusal) {
        let statement = match question.kind {
            QuestionKind::Users(statement) => Some(statement),
            _ => None,
        };
        let rejected = statement
            .as_ref()
            .filter(|_| refusal.is_of_statement)
            .and_then(|statement| statement.error_at(refusal.place, &refusal.message));
        if let Some(rejected) = rejected {
            self.rejected.push(rejected);
            return;
        }
        self.unchecked.push(Unchecked {
            name: question.name,
            place: statement.and_then(|statement| statement.place),
            reason: refusal.message.clone(),
        });
    }
}

/// The questions about foreign keys. Those of tables that larder's role may not read are noted in `report`.
async fn reference_questions(
    connection: &mut PgConnection,
    resources: &[Arc<Resource>],
    tables: &[u32],
    report: &mut PlanReport,
) -> Result<Vec<Question>, SourceError> {
    let mut targets: BTreeSet<u32> = tables.iter().copied().collect();
    let mut deleted: Vec<&TableName> = Vec::new();
    for resource in resources {
        targets.extend(resource.tables().iter().map(|table| table.oid));
        let levels = resource
            .writable
            .iter()
            .flat_map(|writable| &writable.levels);
        deleted.extend(levels.map(|level| &level.table));
    }
    let references = read_references(connection, &targets).await?;
    let questions = references.iter().filter_map(|reference| {
        if let Some(grant) = &reference.grant {
            report.skipped.push(Skipped {
                name: format!("foreign key {} of {}", reference.name, reference.table),
                grant: grant.clone(),
            });
            return None;
        }
        let mut resources = resources.iter();
        let place = resources.find_map(|resource| resource.place_of(&reference.target));
        Some(reference_question(reference, place, &deleted))
    });
    Ok(questions.collect())
}

/// The search path of the role in the database. larder's own connections have another one.
#[derive(Clone, Debug)]
struct SearchPath(String);

/// Reads it. A setting of a role in a database comes before one of the role, and that before one of the database.
async fn read_search_path(connection: &mut PgConnection) -> Result<SearchPath, SourceError> {
    let path: Option<String> = sqlx::query_scalar(
        "select substring(c from 13) from pg_db_role_setting s cross join unnest(s.setconfig) c \
         where c like 'search\\_path=%' and s.setdatabase in (0, (select oid from pg_database where datname = current_database())) \
           and s.setrole in (0, (select oid from pg_roles where rolname = current_user)) \
         order by s.setrole <> 0 desc, s.setdatabase <> 0 desc limit 1",
    )
    .persistent(false)
    .fetch_optional(connection)
    .await?;
    let path = path.unwrap_or_else(|| "\"$user\", public".to_owned());
    Ok(SearchPath(path))
}

/// Why PostgreSQL does not plan a statement.
#[derive(Clone, Debug)]
struct Refusal {
    message: String,
    /// The statement is wrong, or names what does not exist.
    is_of_statement: bool,
    /// The character of the statement that is wrong, counted from 0.
    place: usize,
}

impl Refusal {
    fn of(error: &sqlx::Error) -> Self {
        let error = error.as_database_error();
        let error = error.and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
        let Some(error) = error else {
            return Self {
                message: "PostgreSQL's response was not understood".to_owned(),
                is_of_statement: false,
                place: 0,
            };
        };
        let place = match error.position() {
            Some(PgErrorPosition::Original(place)) => place.saturating_sub(PREPARE.len() + 2),
            _ => 0,
        };
        // Syntax errors and access rule violations (PostgreSQL manual, appendix A), without missing privileges.
        let is_of_statement =
            error.code().starts_with("42") && error.code() != INSUFFICIENT_PRIVILEGE;
        Self {
            message: message_of(error),
            is_of_statement,
            place,
        }
    }
}

/// The plans of a question's statements, or why PostgreSQL makes none.
async fn plan_all(
    connection: &mut PgConnection,
    question: &Question,
    path: &SearchPath,
) -> Result<Result<Vec<Plan>, Refusal>, SourceError> {
    let mut plans = Vec::with_capacity(question.statements.len());
    for statement in &question.statements {
        match plan(connection, statement, path).await? {
            Ok(plan) => plans.push(plan),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    Ok(Ok(plans))
}

/// The plan of a statement, or why PostgreSQL makes none.
///
/// # Errors
/// If the connection fails.
async fn plan(
    connection: &mut PgConnection,
    statement: &PlannedStatement,
    path: &SearchPath,
) -> Result<Result<Plan, Refusal>, SourceError> {
    let prepared = prepare(connection, statement, path).await;
    // A prepared statement outlives the savepoint.
    let (explained, deallocate) = match prepared {
        Ok(()) => (explain(connection).await, "deallocate larder_checked; "),
        Err(error) => (Err(error), ""),
    };
    let end = format!(
        "rollback to savepoint larder_checked; release savepoint larder_checked; {deallocate}"
    );
    raw_sql(AssertSqlSafe(end))
        .execute(&mut *connection)
        .await?;
    let json = match explained {
        Ok(json) => json,
        Err(error) => return Ok(Err(Refusal::of(&error))),
    };
    Ok(Plan::parse(&json).ok_or_else(|| Refusal {
        message: "its plan was not understood".to_owned(),
        is_of_statement: false,
        place: 0,
    }))
}

async fn prepare(
    connection: &mut PgConnection,
    statement: &PlannedStatement,
    path: &SearchPath,
) -> sqlx::Result<()> {
    let (common, own) = match statement.settings {
        PlanSettings::Passes => (SETTINGS, "set local enable_bitmapscan = off; "),
        PlanSettings::Pages => (SETTINGS, "set local enable_sort = off; "),
        PlanSettings::Documents | PlanSettings::Users => (SETTINGS, ""),
        PlanSettings::Unchanged => ("set local plan_cache_mode = force_generic_plan; ", ""),
    };
    let path = match statement.settings {
        PlanSettings::Users | PlanSettings::Unchanged => path.0.as_str(),
        _ => "pg_catalog",
    };
    let path = literal(path);
    let settings = format!(
        "savepoint larder_checked; {common}{own}select pg_catalog.set_config('search_path', {path}, true)"
    );
    raw_sql(AssertSqlSafe(settings))
        .execute(&mut *connection)
        .await?;
    // The extended protocol refuses several statements in one text.
    let prepare = format!("{PREPARE} {}", statement.sql);
    sqlx::query(AssertSqlSafe(prepare))
        .persistent(false)
        .execute(connection)
        .await?;
    Ok(())
}

/// The plan of the prepared statement, as JSON. Null stands for each of its parameters.
async fn explain(connection: &mut PgConnection) -> sqlx::Result<String> {
    let row = raw_sql(
        "select pg_catalog.cardinality(parameter_types) from pg_catalog.pg_prepared_statements \
         where name operator(pg_catalog.=) 'larder_checked'",
    )
    .fetch_one(&mut *connection)
    .await?;
    let count: i32 = row.try_get(0)?;
    let nulls: Vec<&str> = (0..count).map(|_| "null").collect();
    let nulls = match nulls.as_slice() {
        [] => String::new(),
        nulls => format!("({})", nulls.join(", ")),
    };
    let explain = format!("explain (format json, verbose, costs) execute larder_checked{nulls}");
    let row = raw_sql(AssertSqlSafe(explain))
        .fetch_one(connection)
        .await?;
    let json = row.try_get_raw(0)?;
    Ok(json.as_str().map_err(sqlx::Error::Decode)?.to_owned())
}
