//! Columns whose JSON depends on other rows than their own. A change of those rows would invalidate nothing.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::resource::catalogue::Table;
use crate::source::SourceError;
use crate::source::catalogue::read_for_tables;

/// Finds the columns of the tables `$1` with such a type, also inside domains, arrays, composite types and ranges.
///
/// Oids that are written as names (`regclass` and similar types, `aclitem`) are recognised by the output function, so
/// that a type that a user has made with it counts, too. `to_json` calls a cast to `json` for a type that is not
/// PostgreSQL's own, but not for composite types, arrays and domains, into which it looks (json.c, `json_categorize_type`). Only a cast in C that is declared immutable is trusted, as extensions have it (hstore, PostGIS).
/// Everything else that an output function reads is set by the session (`TimeZone`, `lc_monetary`) or part of the
/// definition (the labels of an enum, the attributes of a composite type).
const DEPENDENT_SQL: &str = "\
    with recursive used (relation, number, type) as ( \
      select a.attrelid, a.attnum, a.atttypid from pg_attribute a \
        where a.attrelid::int8 = any($1) and a.attnum > 0 and not a.attisdropped \
      union select u.relation, u.number, part.type from used u join pg_type t on t.oid = u.type cross join lateral ( \
        select t.typbasetype as type union all select t.typelem \
        union all select a.atttypid from pg_attribute a \
          where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped \
        union all select r.rngsubtype from pg_range r where r.rngtypid = t.oid \
        union all select r.rngtypid from pg_range r where r.rngmultitypid = t.oid) part where part.type <> 0) \
    select u.relation::int8 as oid, a.attname::text as column, \
      case when f.oid is null then format('whose text depends on other rows than its own (type %s)', n.type) \
        else format('which the cast of type %s to json by %s makes JSON, and that is not an immutable function in C', \
          n.type, f.oid::regprocedure) end as why \
    from used u join pg_attribute a on a.attrelid = u.relation and a.attnum = u.number \
      join pg_type t on t.oid = u.type join pg_proc o on o.oid = t.typoutput \
      left join pg_cast c on c.castsource = t.oid and c.casttarget = 'json'::regtype and t.oid >= 16384 \
        and t.typtype not in ('c', 'd') and t.typsubscript <> 'array_subscript_handler'::regproc \
      left join pg_proc f on f.oid = c.castfunc left join pg_language l on l.oid = f.prolang \
      cross join lateral (select format_type(t.oid, null) as type) n \
    where o.prolang = (select oid from pg_language where lanname = 'internal') and o.prosrc ~ '^(reg[a-z]+|aclitem)out$' \
      or f.oid is not null and (f.provolatile <> 'i' or l.lanname not in ('c', 'internal')) \
    order by u.relation, u.number, u.type";

/// Notes in the columns of `tables` whose JSON depends on other rows why they cannot be shown.
pub(super) async fn read_dependent_columns(
    connection: &mut PgConnection,
    table_oids: &[i64],
    tables: &mut HashMap<u32, Table>,
) -> Result<(), SourceError> {
    let sql = DEPENDENT_SQL;
    read_for_tables(connection, sql, table_oids, tables, |table, row| {
        let name: &str = row.try_get("column")?;
        let mut columns = table.columns.iter_mut();
        if let Some(column) = columns.find(|column| column.name == name) {
            column.dependent = Some(row.try_get("why")?);
        }
        Ok(())
    })
    .await
}
