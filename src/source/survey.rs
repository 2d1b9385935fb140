//! Reads what [`suggest`](crate::resource::suggest) knows of a database besides its catalogue: [`Survey`].
//!
//! The number of statements does not depend on the number of tables, but for one that looks at 100 rows of each table with texts.

use std::collections::HashMap;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row};

use crate::resource::suggest::secret_values::SecretValues;
use crate::resource::suggest::survey::{ColumnStatistics, Survey, SurveyedTable};
use crate::source::SourceError;
use crate::source::catalogue::{character, oid, table_name};

/// A regular expression for the hexadecimal digits of a text in UTF-8 (RFC 3629, section 4). In a database in SQL_ASCII names are
/// any bytes, of which PostgreSQL sends only those that are UTF-8.
const UTF8: &str = "^([0-7].|(c[2-9a-f]|d.)[89ab].|e0[ab].[89ab].|(e[1-9a-cef]([89ab].){2})|ed[89].[89ab].|f0[9ab].([89ab].){2}\
    |f[1-3]([89ab].){3}|f48.([89ab].){2})*$";

/// Tables that were never analysed have -1 rows; then those count that statements have inserted since the statistics were
/// reset.
const TABLES_SQL: &str = "\
with recursive sized (oid, rows) as (select c.oid, case when c.reltuples >= 0 then c.reltuples \
      else coalesce(pg_stat_get_live_tuples(c.oid), 0) end::float8 from pg_class c where c.relkind in ('r', 'p')), \
  part (top, oid) as (select c.oid, c.oid from pg_class c where c.relkind in ('r', 'p') and not c.relispartition \
    union select part.top, i.inhrelid from part join pg_inherits i on i.inhparent = part.oid), \
  total (oid, rows) as (select part.top, sum(sized.rows) from part join sized on sized.oid = part.oid \
    join pg_class c on c.oid = part.oid where c.relkind = 'r' group by part.top), \
  extended (class, oid, name) as (select d.classid, d.objid, e.extname from pg_depend d join pg_extension e on e.oid = d.refobjid \
    where d.refclassid = 'pg_extension'::regclass and d.deptype = 'e'), \
  stored (oid, schema, name) as (select c.oid, convert_to(n.nspname::text, 'SQL_ASCII'), convert_to(c.relname::text, 'SQL_ASCII') \
    from pg_class c join pg_namespace n on n.oid = c.relnamespace \
    where getdatabaseencoding() = 'SQL_ASCII' and c.relkind in ('r', 'p', 'v', 'm', 'f')), \
  odd (oid, schema, name) as (select s.oid, encode(s.schema, 'escape'), encode(s.name, 'escape') from stored s \
    where encode(s.schema, 'hex') !~ '{utf8}' or encode(s.name, 'hex') !~ '{utf8}' or exists (select from pg_attribute a \
      where a.attrelid = s.oid and a.attnum > 0 and encode(convert_to(a.attname::text, 'SQL_ASCII'), 'hex') !~ '{utf8}')) \
select c.oid::int8 as oid, coalesce(odd.schema, n.nspname::text) as schema, coalesce(odd.name, c.relname::text) as name, \
  case when odd.oid is null then c.relkind::text else 'x' end as kind, \
  coalesce(total.rows, 0)::float8 as rows, coalesce(x.name, xn.name)::text as extension, \
  coalesce(has_schema_privilege(n.oid, 'usage'), false) as usable, coalesce(has_any_column_privilege(c.oid, 'select'), false) as readable, \
  case when odd.oid is not null or has_table_privilege(c.oid, 'select') then array[]::text[] else array(select a.attname::text from pg_attribute a \
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and not has_column_privilege(c.oid, a.attnum, 'select') \
    order by a.attnum) end as unreadable \
from pg_class c join pg_namespace n on n.oid = c.relnamespace left join total on total.oid = c.oid \
  left join odd on odd.oid = c.oid left join extended x on x.class = 'pg_class'::regclass and x.oid = c.oid \
  left join extended xn on xn.class = 'pg_namespace'::regclass and xn.oid = n.oid \
where c.relkind in ('r', 'p', 'v', 'm', 'f') and not c.relispartition \
  and n.nspname <> 'information_schema' and n.nspname !~ '^pg_' \
  and (n.nspname <> 'larder' or to_regclass('larder.epoch') is null \
    or c.relname not in ('change', 'horizon', 'epoch', 'node', 'logger', 'served', 'answer')) \
order by n.nspname <> 'public', n.nspname collate \"C\", c.relname collate \"C\"";

/// Those of a table with parts are of all parts together.
const STATISTICS_SQL: &str = "\
with linked (oid, number) as (select distinct k.conrelid, n.number from pg_constraint k cross join unnest(k.conkey) n (number) \
    where k.contype = 'f'), \
  named (oid, schema, name, col, inherited) as (select c.oid, n.nspname, c.relname, a.attname, \
      exists (select from pg_inherits i where i.inhparent = c.oid) from linked l join pg_class c on c.oid = l.oid \
    join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = l.oid and a.attnum = l.number \
    where not c.relispartition) \
select named.oid::int8 as oid, named.col::text as column, s.n_distinct::float8 as distinct, s.null_frac::float8 as nulls, \
  coalesce(s.most_common_freqs[1], 0)::float8 as most_common \
from named join pg_stats s on s.schemaname = named.schema and s.tablename = named.name and s.attname = named.col \
  and s.inherited = named.inherited \
where getdatabaseencoding() <> 'SQL_ASCII' or encode(convert_to(named.col::text, 'SQL_ASCII'), 'hex') ~ '{utf8}'";

/// An expression depends on the columns that it names; in PostgreSQL 14 the generated column itself does.
const GENERATED_SQL: &str = "\
select g.attrelid::int8 as oid, g.attname::text as column, s.attname::text as source \
from pg_attribute g join pg_class c on c.oid = g.attrelid and not c.relispartition \
  join pg_attrdef f on f.adrelid = g.attrelid and f.adnum = g.attnum \
  join lateral (select a.refobjsubid as number from pg_depend a where a.classid = 'pg_attrdef'::regclass and a.objid = f.oid \
      and a.refclassid = 'pg_class'::regclass and a.refobjid = g.attrelid \
    union select c.refobjsubid from pg_depend c where c.classid = 'pg_class'::regclass and c.objid = g.attrelid \
      and c.objsubid = g.attnum and c.refclassid = 'pg_class'::regclass and c.refobjid = g.attrelid) d \
    on d.number > 0 and d.number <> g.attnum \
  join pg_attribute s on s.attrelid = g.attrelid and s.attnum = d.number \
where g.attgenerated <> '' and (getdatabaseencoding() <> 'SQL_ASCII' \
  or encode(convert_to(concat(g.attname, s.attname), 'SQL_ASCII'), 'hex') ~ '{utf8}')";

/// Columns whose values may be texts or bytes, or have texts: arrays, JSON, hstore. A virtual column may fail when it is read, and
/// foreign tables are elsewhere.
const TEXTS_SQL: &str = "\
select c.oid::int8 as oid, format('%I.%I', n.nspname, c.relname) as table, array_agg(a.attname::text order by a.attnum) as columns, \
  array_agg(case when 'bytea'::regtype in (t.oid, t.typbasetype) then format('encode(substring(%I from 1 for 65), ''hex'')', a.attname) \
    else format('left(%I::text, %s)', a.attname, case t.typcategory when 'S' then 129 else 4096 end) end order by a.attnum) as values, \
  array_agg(t.typcategory <> 'S' and 'bytea'::regtype not in (t.oid, t.typbasetype) order by a.attnum) as structured \
from pg_class c join pg_namespace n on n.oid = c.relnamespace \
  join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' \
  join pg_type t on t.oid = a.atttypid left join pg_type e on e.oid = t.typelem and t.typcategory = 'A' \
where c.relkind in ('r', 'p') and not c.relispartition and (t.typcategory = 'S' or 'bytea'::regtype in (t.oid, t.typbasetype) \
    or e.typcategory = 'S' or t.typname in ('json', 'jsonb', 'hstore')) \
  and n.nspname <> 'information_schema' and n.nspname !~ '^pg_' and has_schema_privilege(n.oid, 'usage') \
  and has_column_privilege(c.oid, a.attnum, 'select') \
  and (getdatabaseencoding() <> 'SQL_ASCII' \
    or encode(convert_to(concat(n.nspname, c.relname, a.attname), 'SQL_ASCII'), 'hex') ~ '{utf8}') \
  and not exists (select from pg_partition_tree(c.oid) p join pg_class f on f.oid = p.relid where f.relkind = 'f') \
group by c.oid, n.nspname, c.relname order by c.oid";

/// Rows of a table whose values are looked at, at most.
const ROWS_SAMPLED: usize = 100;

/// Where a table is locked, or its rows can't be read, its values are not looked at.
const SAMPLE_LIMITS: &str =
    "savepoint sample; set local statement_timeout = '1s'; set local lock_timeout = '100ms'";
const SAMPLE_END: &str = "rollback to sample; release sample";

/// Reads the tables that may be served, and those that may not.
///
/// # Errors
/// Those of the statements.
pub async fn read_survey(connection: &mut PgConnection) -> Result<Survey, SourceError> {
    let rows = fetch(connection, TABLES_SQL).await?;
    let mut survey = Survey {
        tables: rows.iter().map(table).collect::<Result<_, _>>()?,
        ..Survey::default()
    };
    for row in &fetch(connection, STATISTICS_SQL).await? {
        let statistics = ColumnStatistics {
            distinct: row.try_get("distinct")?,
            nulls: row.try_get("nulls")?,
            most_common: row.try_get("most_common")?,
        };
        let columns = survey.statistics.entry(oid(row, "oid")?).or_default();
        columns.insert(row.try_get("column")?, statistics);
    }
    for row in &fetch(connection, GENERATED_SQL).await? {
        let columns = survey.generated.entry(oid(row, "oid")?).or_default();
        let sources = columns.entry(row.try_get("column")?).or_default();
        sources.push(row.try_get("source")?);
    }
    for row in &fetch(connection, TEXTS_SQL).await? {
        if let Some(found) = read_sample(connection, row).await? {
            survey.secret_values.insert(oid(row, "oid")?, found);
        }
    }
    Ok(survey)
}

/// The columns of a row of [`TEXTS_SQL`] whose values look like secrets; `None` if the values can't be read.
async fn read_sample(
    connection: &mut PgConnection,
    row: &PgRow,
) -> Result<Option<HashMap<String, SecretValues>>, SourceError> {
    let table: &str = row.try_get("table")?;
    let columns: Vec<String> = row.try_get("columns")?;
    let values: Vec<String> = row.try_get("values")?;
    let structured: Vec<bool> = row.try_get("structured")?;
    let sql = format!(
        "select array[{}] as sample from {table} limit {ROWS_SAMPLED}",
        values.join(", ")
    );
    sqlx::raw_sql(SAMPLE_LIMITS)
        .execute(&mut *connection)
        .await?;
    let statement = sqlx::query(AssertSqlSafe(sql)).persistent(false);
    let sampled = statement.fetch_all(&mut *connection).await;
    sqlx::raw_sql(SAMPLE_END).execute(&mut *connection).await?;
    // In SQL_ASCII values are any bytes.
    let rows = sampled.iter().flatten().map(|row| row.try_get("sample"));
    let Ok(rows) = rows.collect::<Result<Vec<Vec<Option<String>>>, _>>() else {
        return Ok(None);
    };
    let found = columns.into_iter().enumerate().filter_map(|(at, column)| {
        let values = rows.iter().filter_map(|row| row.get(at)?.as_deref());
        let is_structured = structured.get(at) == Some(&true);
        let values = values.map(|value| {
            if is_structured {
                SecretValues::within(value)
            } else {
                value
            }
        });
        let found = SecretValues::of(&values.collect::<Vec<_>>())?;
        Some((column, found))
    });
    Ok(Some(found.collect()))
}

/// The rows of a statement that has [`UTF8`] as `{utf8}`.
async fn fetch(connection: &mut PgConnection, sql: &str) -> Result<Vec<PgRow>, SourceError> {
    let statement = sqlx::query(AssertSqlSafe(sql.replace("{utf8}", UTF8)));
    Ok(statement.persistent(false).fetch_all(connection).await?)
}

fn table(row: &PgRow) -> Result<SurveyedTable, SourceError> {
    Ok(SurveyedTable {
        name: table_name(row)?,
        kind: character(row, "kind")?,
        rows: row.try_get("rows")?,
        extension: row.try_get("extension")?,
        is_usable: row.try_get("usable")?,
        is_readable: row.try_get("readable")?,
        unreadable_columns: row.try_get("unreadable")?,
    })
}
