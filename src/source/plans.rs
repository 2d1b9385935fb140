//! Asks PostgreSQL for the plans of larder's statements, and of users', for the rules of [`crate::check`].
//!
//! Nothing here runs a statement: it is prepared and explained without `analyze`. Each is planned under a savepoint, so that
//! one that fails or takes too long ends alone. With generic plans, without scans of whole tables and with all partitions,
//! an empty database has the plans of a full one.

mod references;
mod tables;

use std::collections::BTreeSet;
use std::sync::Arc;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row, raw_sql};

use crate::check::Finding;
use crate::check::judge::{Judge, findings};
use crate::check::plan::Plan;
use crate::check::question::{
    PlanSettings, PlannedStatement, Question, questions, reference_question,
};
use crate::resource::Resource;
use crate::resource::catalogue::TableName;
use crate::resource::definition::Place;
use crate::source::SourceError;
use crate::source::plans::references::read_references;
use crate::source::plans::tables::read_shapes;

/// Since this version a B-tree keeps equal values once.
const DEDUPLICATES_SINCE: u32 = 130_000;

/// For all statements: every index that could serve one has to be cheaper than all that reads a table whole. Joins of two
/// tables that are read whole would be cheaper than many searches in tables of few rows.
const SETTINGS: &str = "set local plan_cache_mode = force_generic_plan; set local enable_partition_pruning = off; \
    set local enable_seqscan = off; set local enable_hashjoin = off; set local enable_mergejoin = off; \
    set local enable_material = off; set local enable_sort = on; set local enable_bitmapscan = on; \
    set local enable_indexscan = on; set local enable_indexonlyscan = on; set local enable_nestloop = on; \
    set local enable_tidscan = on; set local max_parallel_workers_per_gather = 0; set local jit = off; ";

/// What the plans have shown.
#[derive(Clone, Debug, Default)]
pub struct PlanReport {
    /// In the order of rules and objects.
    pub findings: Vec<Finding>,
    /// What could not be checked.
    pub unchecked: Vec<Unchecked>,
}

/// A statement that PostgreSQL did not plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unchecked {
    /// What the statement does.
    pub name: String,
    /// What leads to it.
    pub place: Option<Place>,
    /// What PostgreSQL said.
    pub reason: String,
}

/// Plans the statements of `resources`, and the searches behind foreign keys that reference their tables or `tables`.
///
/// `connection` has to be in a transaction; it is left with the settings that it had.
///
/// # Errors
/// Only if the catalogue can't be read or the connection fails.
pub async fn check_plans(
    connection: &mut PgConnection,
    resources: &[Arc<Resource>],
    tables: &[u32],
) -> Result<PlanReport, SourceError> {
    let mut asked: Vec<Question> = resources
        .iter()
        .flat_map(|resource| questions(resource))
        .collect();
    asked.extend(reference_questions(connection, resources, tables).await?);
    let mut report = PlanReport::default();
    let mut answered = Vec::new();
    for question in asked {
        match plan_all(connection, &question).await? {
            Ok(plans) => answered.push((question, plans)),
            Err(reason) => report.unchecked.push(Unchecked {
                name: question.name,
                place: None,
                reason,
            }),
        }
    }
    let scanned: BTreeSet<(String, String)> = answered
        .iter()
        .flat_map(|(_, plans)| plans)
        .flat_map(|plan| &plan.scans)
        .map(|scan| (scan.schema.clone(), scan.table.clone()))
        .collect();
    let shapes = read_shapes(connection, &scanned).await?;
    let version = connection.server_version_num().unwrap_or_default();
    let judge = Judge {
        shapes: &shapes,
        deduplicates: version >= DEDUPLICATES_SINCE,
    };
    let advice = answered
        .iter()
        .flat_map(|(question, plans)| judge.advice(question, plans));
    report.findings = findings(advice.collect());
    Ok(report)
}

async fn reference_questions(
    connection: &mut PgConnection,
    resources: &[Arc<Resource>],
    tables: &[u32],
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
    let questions = references.iter().map(|reference| {
        let mut resources = resources.iter();
        let resource = resources.find(|resource| resource.tables().contains(&&reference.target));
        let place = resource.map(|resource| &resource.place);
        reference_question(reference, place, &deleted)
    });
    Ok(questions.collect())
}

/// The plans of a question's statements, or why PostgreSQL makes none.
async fn plan_all(
    connection: &mut PgConnection,
    question: &Question,
) -> Result<Result<Vec<Plan>, String>, SourceError> {
    let mut plans = Vec::with_capacity(question.statements.len());
    for statement in &question.statements {
        match plan(connection, statement).await? {
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
) -> Result<Result<Plan, String>, SourceError> {
    let prepared = prepare(connection, statement).await;
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
    match explained.map_err(SourceError::from) {
        Ok(json) => Ok(Plan::parse(&json).ok_or_else(|| "its plan was not understood".to_owned())),
        Err(error) if error.is_connection_error() => Err(error),
        Err(error) => Ok(Err(error.to_string())),
    }
}

async fn prepare(connection: &mut PgConnection, statement: &PlannedStatement) -> sqlx::Result<()> {
    let own = match statement.settings {
        PlanSettings::Passes => "set local enable_bitmapscan = off; ",
        PlanSettings::Pages => "set local enable_sort = off; ",
        PlanSettings::Documents | PlanSettings::Users => "",
    };
    let path = match statement.settings {
        PlanSettings::Users => "",
        _ => "set local search_path = pg_catalog; ",
    };
    raw_sql("savepoint larder_checked")
        .execute(&mut *connection)
        .await?;
    let sql = &statement.sql;
    let prepare = format!("{SETTINGS}{own}{path}prepare larder_checked as {sql}");
    raw_sql(AssertSqlSafe(prepare)).execute(connection).await?;
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
