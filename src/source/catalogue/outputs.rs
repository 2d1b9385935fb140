//! Columns whose JSON depends on other rows than their own. A change of those rows would invalidate nothing.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::resource::catalogue::{Table, TableName};
use crate::source::SourceError;
use crate::source::catalogue::condition_tree::{
    ConditionTree, ROW_ONLY_IF_IMMUTABLE, find_dependences,
};
use crate::source::catalogue::{USED_TYPES_SQL, oid, read_for_tables};

/// Finds the columns of the tables `$1` with such a type, also inside domains, arrays, composite types and ranges.
///
/// Oids that are written as names (`regclass` and similar types, `aclitem`) are recognised by the output function, so
/// that a type that a user has made with it counts, too. `to_json` calls a cast to `json` for a type that is not
/// PostgreSQL's own, but not for composite types, arrays and domains, into which it looks (json.c,
/// `json_categorize_type`). Only a cast in C that is declared immutable is trusted, as extensions have it (hstore, PostGIS).
///
/// A function in C may read tables, and PostgreSQL knows nothing of it: that of PostGIS's `geometry` reads
/// `spatial_ref_sys`. It is taken to read all tables of the extension that it belongs to, and their parts, which are
/// watched. One that belongs to none may read any.
///
/// Everything else that an output function reads is set by the session (`TimeZone`, `lc_monetary`) or part of the
/// definition (the labels of an enum, the attributes of a composite type).
const DEPENDENT_SQL: &str = "\
    {used} \
    select u.relation::int8 as oid, a.attname::text as column, \
      case when o.prolang = (select oid from pg_language where lanname = 'internal') and o.prosrc ~ '^(reg[a-z]+|aclitem)out$' \
          then format('whose text depends on other rows than its own (type %s)', n.type) \
        when f.provolatile <> 'i' or l.lanname not in ('c', 'internal') then \
          format('which the cast of type %s to json by %s makes JSON, and that is not an immutable function in C', \
            n.type, f.oid::regprocedure) \
        when c.alone is not null then format('whose type %s is shown by %s, a function in C that belongs to no extension, \
          so that larder can''t know which tables it reads', n.type, c.alone::regprocedure) end as why, \
      k.oids, k.schemas, k.names \
    from used u join pg_attribute a on a.attrelid = u.relation and a.attnum = u.number \
      join pg_type t on t.oid = u.type join pg_proc o on o.oid = t.typoutput \
      left join pg_cast j on j.castsource = t.oid and j.casttarget = 'json'::regtype and t.oid >= 16384 \
        and t.typtype not in ('c', 'd') and t.typsubscript <> 'array_subscript_handler'::regproc \
      left join pg_proc f on f.oid = j.castfunc left join pg_language l on l.oid = f.prolang \
      cross join lateral (select min(p.oid::int8) filter (where d.refobjid is null)::oid as alone, \
          array_agg(d.refobjid) as extensions \
        from pg_proc p join pg_language b on b.oid = p.prolang and b.lanname = 'c' \
          left join pg_depend d on d.classid = 'pg_proc'::regclass and d.objid = p.oid \
            and d.refclassid = 'pg_extension'::regclass and d.deptype = 'e' \
        where p.oid in (o.oid, f.oid) and p.oid >= 16384) c \
      cross join lateral (select coalesce(array_agg(r.oid::int8), '{}') as oids, \
          coalesce(array_agg(s.nspname::text), '{}') as schemas, coalesce(array_agg(r.relname::text), '{}') as names \
        from (with recursive part (oid) as ( \
            select d.objid from pg_depend d where d.classid = 'pg_class'::regclass \
              and d.refclassid = 'pg_extension'::regclass and d.deptype = 'e' and d.refobjid = any(c.extensions) \
            union select i.inhrelid from part join pg_inherits i on i.inhparent = part.oid) select oid from part) m \
          join pg_class r on r.oid = m.oid and r.relkind in ('r', 'p') join pg_namespace s on s.oid = r.relnamespace) k \
      cross join lateral (select format_type(t.oid, null) as type) n \
    where k.oids <> '{}' or c.alone is not null \
      or o.prolang = (select oid from pg_language where lanname = 'internal') and o.prosrc ~ '^(reg[a-z]+|aclitem)out$' \
      or f.oid is not null and (f.provolatile <> 'i' or l.lanname not in ('c', 'internal')) \
    order by u.relation, u.number, u.type";

/// The expressions of the virtual generated columns of the tables `$1`.
const EXPRESSIONS_SQL: &str = "\
    select a.attrelid::int8 as oid, a.attname::text as column, d.adbin::text as tree \
    from pg_attribute a join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum \
    where a.attrelid::int8 = any($1) and a.attgenerated = 'v' and not a.attisdropped order by a.attrelid, a.attnum";

/// Notes in the virtual generated columns of `tables` whose expression depends on more than the row why. What users have made
/// can't be dropped while such an expression uses it.
pub(super) async fn read_dependent_expressions(
    connection: &mut PgConnection,
    table_oids: &[i64],
    tables: &mut HashMap<u32, Table>,
) -> Result<(), SourceError> {
    let rows = sqlx::query(EXPRESSIONS_SQL)
        .bind(table_oids)
        .fetch_all(&mut *connection)
        .await?;
    let mut trees = Vec::with_capacity(rows.len());
    for row in &rows {
        let tree = row.try_get("tree")?;
        trees.push(ConditionTree::read(tree, &ROW_ONLY_IF_IMMUTABLE));
    }
    let found = find_dependences(connection, &trees).await?;
    for (row, why) in rows.iter().zip(found) {
        let name: &str = row.try_get("column")?;
        let table = tables.get_mut(&oid(row, "oid")?);
        let mut columns = table.into_iter().flat_map(|table| &mut table.columns);
        if let (Some(column), Some(why)) = (columns.find(|column| column.name == name), why) {
            column.dependent = Some(format!(
                "whose value may change without its row, since its expression {why}"
            ));
        }
    }
    Ok(())
}

/// Notes in the columns of `tables` whose JSON depends on other rows why they cannot be shown.
pub(super) async fn read_dependent_columns(
    connection: &mut PgConnection,
    table_oids: &[i64],
    tables: &mut HashMap<u32, Table>,
) -> Result<(), SourceError> {
    let sql = DEPENDENT_SQL.replace("{used}", &format!("with recursive {USED_TYPES_SQL}"));
    read_for_tables(connection, &sql, table_oids, tables, |table, row| {
        let name: &str = row.try_get("column")?;
        let mut columns = table.columns.iter_mut();
        if let Some(column) = columns.find(|column| column.name == name) {
            let why: Option<String> = row.try_get("why")?;
            column.dependent = why.or(column.dependent.take());
            let oids: Vec<i64> = row.try_get("oids")?;
            let schemas: Vec<String> = row.try_get("schemas")?;
            let names: Vec<String> = row.try_get("names")?;
            let read = oids.into_iter().zip(schemas).zip(names);
            column
                .type_tables
                .extend(read.map(|((oid, schema), name)| TableName {
                    oid: u32::try_from(oid).unwrap_or_default(),
                    schema,
                    name,
                }));
        }
        Ok(())
    })
    .await
}
