//! Conditions on rows (`where`): whether PostgreSQL accepts them, and how it writes them.
//!
//! PostgreSQL judges a condition as the predicate of an index on an empty temporary table that has the table's columns. It
//! refuses what is not one expression over these columns, subqueries, parameters, and functions that are not immutable.
//! larder then uses what PostgreSQL has stored, and never the text of the configuration: it writes the stored predicate
//! out, which is one expression whatever the text was, without comments and with the schemas of types. A view has it write
//! the names of the columns with that of their row, and a second index shows that the result means the same.
//!
//! Which partial unique indexes contain all rows of a condition PostgreSQL's planner says: it uses an index that has their
//! predicate only if the condition implies it.
//!
//! Some functions PostgreSQL refuses only when it calls them. So the condition is evaluated on rows, too.
//!
//! All of it is done in a transaction, or after a savepoint, that is rolled back. No lock of the table is needed but to
//! evaluate the condition on its rows, which is left out where there is none.

use std::collections::BTreeSet;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Row, raw_sql};

use crate::resource::catalogue::{Catalogue, TableName};
use crate::resource::condition::{AcceptedCondition, CONDITIONAL_ROW, Condition, WrittenCondition};
use crate::resource::sql::{identifier, literal};
use crate::source::catalogue::condition_tree::{ConditionTree, ROW_ONLY_IF_IMMUTABLE};
use crate::source::{INSUFFICIENT_PRIVILEGE, LOCK_NOT_AVAILABLE, SourceError};

/// The statement that grants what creating a temporary table needs, and whether larder's role lacks it.
const GRANT_SQL: &str = "\
    select format('grant temporary on database %I to %I', current_database(), current_user) as grant, \
      not has_database_privilege(current_database(), 'temporary') as is_missing";

/// The statements that let larder's role name those of the types `$1` that the condition `$2` names.
const USAGE_SQL: &str = "\
    select string_agg(distinct format('grant usage on schema %I to %I', n.nspname, current_user), '; ') \
    from unnest($1::int8[]) w (oid) join pg_type t on t.oid::int8 = w.oid join pg_namespace n on n.oid = t.typnamespace \
    where not has_schema_privilege(n.oid, 'usage') and position('::' || quote_ident(n.nspname) || '.' in $2) > 0";

/// The columns of the table `$1`, as `create table` takes them. If larder's role may not name all their types, they come from a
/// row of the table that is null.
const COLUMNS_SQL: &str = "\
    select case when bool_and(has_schema_privilege(t.typnamespace, 'usage')) is not false then format('(%s)', \
        string_agg(format('%I %s%s', a.attname, format_type(a.atttypid, a.atttypmod), \
          case when a.attcollation <> t.typcollation then format(' collate %I.%I', n.nspname, l.collname) end), ', ' \
          order by a.attnum)) \
      else format('as select %s limit 0', string_agg(format('(null::%I.%I).%I', cn.nspname, c.relname, a.attname), ', ' \
        order by a.attnum)) end \
    from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace cn on cn.oid = c.relnamespace \
      join pg_type t on t.oid = a.atttypid left join pg_collation l on l.oid = a.attcollation \
      left join pg_namespace n on n.oid = l.collnamespace \
    where a.attrelid::int8 = $1 and a.attnum > 0 and not a.attisdropped";

/// The predicates and columns of the partial unique indexes on plain columns of the table `$1`, as
/// [`Table::unique_keys`](crate::resource::catalogue::Table::unique_keys) has those of others.
const PARTIAL_INDEXES_SQL: &str = "\
    select pg_get_expr(i.indpred, i.indrelid) as predicate, array(select a.attname::text \
        from generate_series(0, i.indnkeyatts - 1) k join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[k] \
        order by k) as columns \
    from pg_index i where i.indrelid::int8 = $1 and i.indisunique and i.indimmediate and i.indisvalid \
      and i.indpred is not null and 0 <> all (i.indkey::int2[]) \
      and not exists (select from generate_series(0, i.indnkeyatts - 1) k join pg_attribute a \
        on a.attrelid = i.indrelid and a.attnum = i.indkey[k] where a.attcollation <> i.indcollation[k]) \
    order by i.indexrelid";

/// The rows of a table on which a condition is evaluated at most.
const TRIED_ROWS_MAX: usize = 100;

/// Errors that functions raise whatever values they are called with: `feature_not_supported` (of a nondeterministic
/// collation), `indeterminate_collation` and `undefined_function` (of the elements of an array); and
/// `invalid_regular_expression`, unless a row has the expression (PostgreSQL manual, appendix A).
const RAISED_BY_CALLS: [&str; 4] = ["0A000", "42P22", "42883", "2201B"];

/// Why a condition was not accepted.
enum Refusal {
    /// A sentence for the user.
    Mistake(String),
    /// PostgreSQL could not judge it.
    Source(SourceError),
}

impl From<sqlx::Error> for Refusal {
    fn from(error: sqlx::Error) -> Self {
        SourceError::from(error).into()
    }
}

impl From<SourceError> for Refusal {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Refused { ref message, .. } if !error.is_transient() => {
                Self::Mistake(format!("PostgreSQL refuses the condition: {message}"))
            }
            error => Self::Source(error),
        }
    }
}

/// A privilege that larder's role needs.
pub struct Grant {
    /// The statement that grants it.
    pub sql: String,
    /// Larder's role lacks it.
    pub is_missing: bool,
}

/// The privilege that larder's role needs to have conditions judged.
///
/// # Errors
/// Those of the statement.
pub async fn read_grant(connection: &mut PgConnection) -> Result<Grant, SourceError> {
    let row = sqlx::query(GRANT_SQL).fetch_one(connection).await?;
    Ok(Grant {
        sql: row.try_get("grant")?,
        is_missing: row.try_get("is_missing")?,
    })
}

/// Has PostgreSQL judge the conditions `written` on tables of `catalogue`, which gets the outcomes.
///
/// # Errors
/// PostgreSQL can't be reached, or another transaction prevents it.
pub async fn read_conditions(
    connection: &mut PgConnection,
    written: Vec<WrittenCondition>,
    catalogue: &mut Catalogue,
) -> Result<(), SourceError> {
    if written.is_empty() {
        return Ok(());
    }
    let grant = read_grant(connection).await?;
    for written in written {
        let Some(table) = catalogue.tables.get(&written.table) else {
            continue;
        };
        if catalogue.conditions.contains_key(&written) {
            continue;
        }
        let outcome = if grant.is_missing {
            Err(Refusal::Mistake(format!(
                "PostgreSQL can't check the condition, since larder's role may not create temporary tables; run: {}",
                grant.sql
            )))
        } else {
            let mut attempt = connection.begin().await?;
            let outcome = judge(&mut attempt, &table.name, &written.text).await;
            attempt.rollback().await?;
            outcome
        };
        let outcome = match outcome {
            Ok(condition) => Ok(condition),
            Err(Refusal::Mistake(why)) => Err(why),
            Err(Refusal::Source(error)) => return Err(error),
        };
        catalogue.conditions.insert(written, outcome);
    }
    Ok(())
}

/// Has PostgreSQL plan the conditions `written` on the tables of `catalogue`, which gets the outcomes: a condition that
/// it plans counts as accepted, and as true only for rows that partial unique indexes have. Creates nothing, so it may be
/// done in a transaction that is read only.
///
/// # Errors
/// PostgreSQL can't be reached.
pub async fn plan_conditions(
    connection: &mut PgConnection,
    written: Vec<WrittenCondition>,
    catalogue: &mut Catalogue,
) -> Result<(), SourceError> {
    for written in written {
        let Some(table) = catalogue.tables.get(&written.table) else {
            continue;
        };
        let mut attempt = connection.begin().await?;
        let planned = plan_condition(&mut attempt, &table.name, &written.text).await;
        let tried = match planned {
            Ok(condition) => {
                let tried = try_on_rows(&mut attempt, &table.name, &condition).await;
                tried.map(|()| condition)
            }
            Err(error) => Err(error.into()),
        };
        attempt.rollback().await?;
        let outcome = match tried {
            Ok(condition) => {
                let indexes = sqlx::query(PARTIAL_INDEXES_SQL)
                    .bind(i64::from(table.name.oid))
                    .fetch_all(&mut *connection)
                    .await?;
                let columns = indexes.iter().map(|index| index.try_get("columns"));
                Ok(AcceptedCondition {
                    condition,
                    unique_columns: columns.collect::<Result<_, _>>()?,
                })
            }
            Err(Refusal::Mistake(why)) => Err(why),
            Err(Refusal::Source(error)) => return Err(error),
        };
        catalogue.conditions.insert(written, outcome);
    }
    Ok(())
}

/// The condition `text` on the rows of `table`, as PostgreSQL writes it in a plan: with the name of the row before each
/// column. The row is that of a function, so that no index and no partition takes part in it.
async fn plan_condition(
    connection: &mut PgConnection,
    table: &TableName,
    text: &str,
) -> Result<Condition, SourceError> {
    let table = table.sql();
    // A comment ends with its line.
    let filter = format!("({text}\n)");
    let of_table = format!("explain select from {table} where {filter}");
    let refused_by = |error: &SourceError, codes: &[&str]| matches!(error, SourceError::Refused { code, .. } if codes.contains(&code.as_str()));
    let mut attempt = connection.begin().await?;
    let planned = run(&mut attempt, &of_table).await;
    attempt.rollback().await?;
    match planned {
        // While the table is locked, nothing can be said of it; without rights on it only which columns it has.
        Err(error) if refused_by(&error, &[LOCK_NOT_AVAILABLE]) => {
            return Ok(Condition::new(filter));
        }
        Err(error) if refused_by(&error, &[INSUFFICIENT_PRIVILEGE]) => {}
        planned => planned?,
    }
    let of_row = format!(
        "explain (format json, verbose, costs off) select \
         from pg_catalog.jsonb_populate_record(null::{table}, '{{}}') as {CONDITIONAL_ROW} where {filter}"
    );
    let explained = raw_sql(AssertSqlSafe(of_row)).fetch_one(connection).await;
    let explained = match explained.map_err(SourceError::from) {
        Err(error) if refused_by(&error, &[LOCK_NOT_AVAILABLE, INSUFFICIENT_PRIVILEGE]) => {
            return Ok(Condition::new(filter));
        }
        explained => explained?,
    };
    let explained = explained
        .try_get_raw(0)?
        .as_str()
        .map_err(sqlx::Error::Decode)?;
    let explained: serde_json::Value = serde_json::from_str(explained).unwrap_or_default();
    let plan = &explained[0]["Plan"];
    // A condition that is true for all rows is left out, one that is true for none needs no row.
    let condition = plan["Filter"].as_str().or(plan["One-Time Filter"].as_str());
    Ok(Condition::new(condition.unwrap_or("true").to_owned()))
}

async fn judge(
    connection: &mut PgConnection,
    table: &TableName,
    text: &str,
) -> Result<AcceptedCondition, Refusal> {
    // Objects of the temporary schema come last, since a table or its type may have the name of one of PostgreSQL's own.
    run(connection, "set local search_path = pg_catalog, pg_temp").await?;
    let columns: String = sqlx::query_scalar(COLUMNS_SQL)
        .bind(i64::from(table.oid))
        .fetch_one(&mut *connection)
        .await?;
    let row = format!("create temporary table {CONDITIONAL_ROW} {columns}");
    run(connection, &row).await?;
    let (stored, tree) = store(connection, "larder_written", text).await?;
    let tree = ConditionTree::read(&tree, &ROW_ONLY_IF_IMMUTABLE);
    if let Some(why) = tree.find_dependence(connection).await? {
        return Err(Refusal::Mistake(format!(
            "the condition {why}; it may consist of the row's own columns, constants, and PostgreSQL's own immutable \
             functions and operators"
        )));
    }
    let grants: Option<String> = sqlx::query_scalar(USAGE_SQL)
        .bind(tree.types())
        .bind(&stored)
        .fetch_one(&mut *connection)
        .await?;
    if let Some(grants) = grants {
        return Err(Refusal::Mistake(format!(
            "the condition has a constant of a type in a schema that larder's role may not use; run: {grants}"
        )));
    }
    if let Some(object) = tree.find_unbound(connection).await? {
        return Err(Refusal::Mistake(format!(
            "the condition uses {object}, which none of its columns has, so that it could be dropped and created again unnoticed"
        )));
    }
    // What follows replaces this name.
    if stored.contains(CONDITIONAL_ROW) {
        let message = format!("the condition contains {CONDITIONAL_ROW}, a name of larder's");
        return Err(Refusal::Mistake(message));
    }
    let qualified = qualify(connection, &stored).await?;
    let (again, _) = store(connection, "larder_qualified", &qualified).await?;
    if again != stored {
        return Err(Refusal::Mistake(format!(
            "PostgreSQL reads its own form of the condition as another one ({stored}); write it in another way"
        )));
    }
    let condition = Condition::new(qualified);
    try_on_rows(connection, table, &condition).await?;
    let unique_columns = read_implied_indexes(connection, table.oid, &stored).await?;
    Ok(AcceptedCondition {
        condition,
        unique_columns,
    })
}

/// Evaluates `condition` on some rows of `table`, and on rows that larder makes: each has a text in one of the columns that
/// the condition reads and that have a collation, or in all of them, and nulls in the others, so that most other parts of
/// the condition decide nothing. What depends on the values of a row is not refused.
async fn try_on_rows(
    connection: &mut PgConnection,
    table: &TableName,
    condition: &Condition,
) -> Result<(), Refusal> {
    let columns: BTreeSet<_> = condition.columns().into_iter().collect();
    if columns.is_empty() {
        return Ok(());
    }
    let list = |quote: fn(&str) -> String| {
        let quoted: Vec<String> = columns.iter().map(|column| quote(column)).collect();
        quoted.join(", ")
    };
    let stored = format!(
        "select {} from {} limit {TRIED_ROWS_MAX}",
        list(identifier),
        table.sql()
    );
    let made = format!(
        "with text (name, value) as (select a.attname::text, case t.typcategory when 'A' then '[\"a\"]' else '\"a\"' end::jsonb \
           from pg_attribute a join pg_type t on t.oid = a.atttypid \
           where a.attrelid = {oid} and a.attcollation <> 0 and a.attname in ({names})) \
         select r.* from (select jsonb_build_object(name, value) from text union all \
           select jsonb_object_agg(name, value) from text) m (row) \
           cross join lateral jsonb_populate_record(null::{table}, m.row) r",
        oid = table.oid,
        names = list(literal),
        table = table.sql(),
    );
    for (rows, codes) in [
        (stored, &RAISED_BY_CALLS[..3]),
        (made, &RAISED_BY_CALLS[..]),
    ] {
        // As a filter its parts would not be evaluated behind one that is null.
        let sql = format!(
            "select count({}) from ({rows}) as {CONDITIONAL_ROW}",
            condition.sql(CONDITIONAL_ROW)
        );
        let mut attempt = connection.begin().await?;
        let tried = run(&mut attempt, &sql).await;
        attempt.rollback().await?;
        match tried {
            Err(SourceError::Refused { code, message }) if codes.contains(&code.as_str()) => {
                return Err(Refusal::Mistake(format!(
                    "PostgreSQL refuses the condition when it meets a row: {message}"
                )));
            }
            Err(error) if error.is_connection_error() => return Err(error.into()),
            // The table is locked or altered, larder's role may not read it, or a row has a value of which PostgreSQL makes
            // none of another type.
            _ => {}
        }
    }
    Ok(())
}

/// The columns of the partial unique indexes of `table` whose predicates the `stored` condition implies.
async fn read_implied_indexes(
    connection: &mut PgConnection,
    table: u32,
    stored: &str,
) -> Result<Vec<Vec<String>>, SourceError> {
    let indexes = sqlx::query(PARTIAL_INDEXES_SQL)
        .bind(i64::from(table))
        .fetch_all(&mut *connection)
        .await?;
    let mut implied = Vec::new();
    for index in indexes {
        let mut attempt = connection.begin().await?;
        let is_implied = implies(&mut attempt, stored, index.try_get("predicate")?).await;
        attempt.rollback().await?;
        match is_implied {
            Ok(true) => implied.push(index.try_get("columns")?),
            Ok(false) => {}
            // Its predicate has the whole row, or a function that larder's role may not call.
            Err(error @ SourceError::Refused { .. }) if !error.is_transient() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(implied)
}

/// Whether the `stored` condition implies `predicate`: an index with this predicate, the only one, is used to find the rows.
async fn implies(
    connection: &mut PgConnection,
    stored: &str,
    predicate: &str,
) -> Result<bool, SourceError> {
    const INDEX: &str = "larder_partial";
    run(
        connection,
        "drop index pg_temp.larder_written, pg_temp.larder_qualified",
    )
    .await?;
    store(connection, INDEX, predicate).await?;
    for setting in [
        "enable_seqscan = off",
        "enable_bitmapscan = off",
        "enable_indexscan = on",
    ] {
        run(connection, &format!("set local {setting}")).await?;
    }
    let explain = format!("explain select from pg_temp.{CONDITIONAL_ROW} where {stored}");
    let plan: Vec<String> = sqlx::query_scalar(AssertSqlSafe(explain))
        .persistent(false)
        .fetch_all(connection)
        .await?;
    // The lines that follow have the condition.
    let scan = plan.first().map_or("", String::as_str);
    Ok(scan.contains(&format!(" using {INDEX} on ")))
}

/// Has PostgreSQL store `text` as the predicate of an index called `name`. Returns what it has stored: in SQL, without
/// the name of the row, and as a node tree.
async fn store(
    connection: &mut PgConnection,
    name: &str,
    text: &str,
) -> Result<(String, String), SourceError> {
    // The text is the end of the statement, and a prepared statement is only one. So PostgreSQL's grammar takes it only if it
    // is one expression.
    let index = format!("create index {name} on pg_temp.{CONDITIONAL_ROW} ((true)) where {text}");
    run(connection, &index).await?;
    // A constant that is true is no predicate.
    let stored = sqlx::query(
        "select coalesce(pg_get_expr(indpred, indrelid), 'true') as stored, coalesce(indpred::text, '') as tree \
         from pg_index where indexrelid = to_regclass('pg_temp.' || $1)",
    )
    .bind(name)
    .fetch_one(connection)
    .await?;
    Ok((stored.try_get("stored")?, stored.try_get("tree")?))
}

/// Has PostgreSQL write the `stored` condition with the name of the row before each column, which it does where several
/// tables are read.
async fn qualify(connection: &mut PgConnection, stored: &str) -> Result<String, SourceError> {
    let view = format!(
        "create temporary view larder_view as select from pg_temp.{CONDITIONAL_ROW}, (select) as larder_other where {stored}"
    );
    run(connection, &view).await?;
    let view: String =
        sqlx::query_scalar("select pg_get_viewdef(to_regclass('pg_temp.larder_view'))")
            .fetch_one(connection)
            .await?;
    let condition = view.split_once("WHERE");
    let condition = condition.and_then(|(_, condition)| condition.strip_suffix(';'));
    let unexpected = || SourceError::Unexpected(format!("the definition of a view: {view}"));
    Ok(condition.ok_or_else(unexpected)?.trim().to_owned())
}

async fn run(connection: &mut PgConnection, sql: &str) -> Result<(), SourceError> {
    let statement = sqlx::query(AssertSqlSafe(sql)).persistent(false);
    statement.execute(connection).await?;
    Ok(())
}
