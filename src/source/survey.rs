//! Reads what [`suggest`](crate::resource::suggest) knows of a database besides its catalogue: [`Survey`].
//!
//! The number of statements does not depend on the number of tables, and none of them reads a user's table or locks one.

use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};

use crate::resource::suggest::survey::{ColumnStatistics, Survey, SurveyedTable};
use crate::source::SourceError;
use crate::source::catalogue::{character, oid, table_name};

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
    where d.refclassid = 'pg_extension'::regclass and d.deptype = 'e') \
select c.oid::int8 as oid, n.nspname::text as schema, c.relname::text as name, c.relkind::text as kind, \
  coalesce(total.rows, 0)::float8 as rows, coalesce(x.name, xn.name)::text as extension, \
  coalesce(has_schema_privilege(n.oid, 'usage') and has_any_column_privilege(c.oid, 'select'), false) as readable, \
  case when has_table_privilege(c.oid, 'select') then '{}' else array(select a.attname::text from pg_attribute a \
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and not has_column_privilege(c.oid, a.attnum, 'select') \
    order by a.attnum) end as unreadable \
from pg_class c join pg_namespace n on n.oid = c.relnamespace left join total on total.oid = c.oid \
  left join extended x on x.class = 'pg_class'::regclass and x.oid = c.oid \
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
  and s.inherited = named.inherited";

/// Reads the tables that may be served, and those that may not.
///
/// # Errors
/// Those of the statements.
pub async fn read_survey(connection: &mut PgConnection) -> Result<Survey, SourceError> {
    let rows = sqlx::query(TABLES_SQL)
        .persistent(false)
        .fetch_all(&mut *connection)
        .await?;
    let mut survey = Survey {
        tables: rows.iter().map(table).collect::<Result<_, _>>()?,
        ..Survey::default()
    };
    let rows = sqlx::query(STATISTICS_SQL)
        .persistent(false)
        .fetch_all(connection)
        .await?;
    for row in &rows {
        let statistics = ColumnStatistics {
            distinct: row.try_get("distinct")?,
            nulls: row.try_get("nulls")?,
            most_common: row.try_get("most_common")?,
        };
        let columns = survey.statistics.entry(oid(row, "oid")?).or_default();
        columns.insert(row.try_get("column")?, statistics);
    }
    Ok(survey)
}

fn table(row: &PgRow) -> Result<SurveyedTable, SourceError> {
    Ok(SurveyedTable {
        name: table_name(row)?,
        kind: character(row, "kind")?,
        rows: row.try_get("rows")?,
        extension: row.try_get("extension")?,
        is_readable: row.try_get("readable")?,
        unreadable_columns: row.try_get("unreadable")?,
    })
}
