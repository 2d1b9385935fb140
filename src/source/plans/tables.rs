//! Reads what the rules about plans know of tables: [`crate::check::table`].

use std::collections::{BTreeSet, HashMap};

use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};

use crate::check::table::{ColumnShape, IndexColumn, IndexShape, TableShape, TableShapes};
use crate::source::SourceError;
use crate::source::catalogue::{character, oid, table_name};

/// The tables called `$1` and `$2`, and all that are partitions of the same tables or inherit from them.
const TABLES_SQL: &str = "\
with recursive wanted (oid) as ( \
    select c.oid from unnest($1::text[], $2::text[]) w (schema, name) join pg_namespace n on n.nspname = w.schema \
      join pg_class c on c.relnamespace = n.oid and c.relname = w.name \
    union select i.inhparent from wanted join pg_inherits i on i.inhrelid = wanted.oid), \
  family (oid) as (select oid from wanted union select i.inhrelid from family join pg_inherits i on i.inhparent = family.oid) \
select c.oid::int8 as oid, n.nspname::text as schema, c.relname::text as name, c.relkind::text as kind, \
  c.reltuples::float8 as rows, coalesce(s.n_tup_del, 0) as deletes, \
  array(select i.inhrelid::int8 from pg_inherits i where i.inhparent = c.oid order by i.inhrelid) as partitions, \
  (select i.inhparent::int8 from pg_inherits i where i.inhrelid = c.oid order by i.inhseqno limit 1) as parent \
from family join pg_class c on c.oid = family.oid join pg_namespace n on n.oid = c.relnamespace \
  left join pg_stat_user_tables s on s.relid = c.oid where c.relkind in ('r', 'p', 'f')";

/// Values of these types may be equal and look different, so a B-tree keeps each of them (`nbtree`, `equalimage`).
///
/// The provider of a collation decides how texts are ordered, not `lc_collate` alone: PostgreSQL's own one (17) by bytes, ICU never.
/// A database has a provider since PostgreSQL 15.
///
/// PostgreSQL 18 gives the expression of a virtual column the column's collation, which the node tree of most names first if it is
/// theirs already.
///
/// A type without an operator class of its own has that of the type that it may be taken for (PostgreSQL: `GetDefaultOpClass`).
const COLUMNS_SQL: &str = "\
with recursive base (type, oid, below, kind) as ( \
    select t.oid, t.oid, t.typbasetype, t.typtype from pg_type t where t.oid in (select atttypid from pg_attribute where attrelid = any($1::int8[]::oid[])) \
    union all select base.type, t.oid, t.typbasetype, t.typtype from base join pg_type t on t.oid = base.below where base.kind = 'd'), \
  ordered as (select o.opcintype, t.typispreferred as preferred from pg_opclass o join pg_am m on m.oid = o.opcmethod join pg_type t on t.oid = o.opcintype where m.amname = 'btree' and o.opcdefault) \
select a.attrelid::int8 as oid, a.attname::text as name, b.typname::text as base_type, \
  case when s.avg_width > 0 then s.avg_width when a.attlen > 0 then a.attlen else 32 end::float8 as width, \
  case a.attalign when 'c' then 1 when 's' then 2 when 'i' then 4 else 8 end::float8 as alignment, a.attlen < 0 as variable, \
  case when s.n_distinct is null then greatest(c.reltuples, 1) \
    when s.n_distinct < 0 then -s.n_distinct * greatest(c.reltuples, 1) else s.n_distinct end::float8 as distinct_values, \
  coalesce(s.null_frac, 0)::float8 as nulls, \
  b.typname not in ('numeric', 'float4', 'float8', 'jsonb', 'interval') and b.typtype in ('b', 'e') and b.typelem = 0 \
    and coalesce(l.collisdeterministic, true) as deduplicated, \
  a.attcollation = 0 or case coalesce(nullif(l.collprovider::text, 'd'), to_jsonb(d) ->> 'datlocprovider', 'c') when 'b' then true \
    when 'c' then coalesce(case when l.collprovider = 'd' then d.datcollate else l.collcollate end in ('C', 'POSIX'), false) \
    else false end as byte_order, \
  case a.attgenerated when 'v' then format('(%s)', pg_get_expr(f.adbin, f.adrelid)) || coalesce(' collate ' \
    || nullif(a.attcollation, substring(f.adbin::text from '^{[A-Z]+ (?::[a-z_]+ [^ :{}()]+ )*?:(?!input)[a-z_]*collid (\\d+)')::oid)::regcollation::text, \
    '') end as expression, \
  (select format_type(case when o.opcintype in ('anyenum'::regtype, 'anyarray'::regtype, 'anyrange'::regtype) then b.oid else o.opcintype end, null) \
    from ordered o where o.opcintype = b.oid or o.opcintype = 'anyenum'::regtype and b.typtype = 'e' \
      or o.opcintype = 'anyrange'::regtype and b.typtype = 'r' \
      or o.opcintype = 'anyarray'::regtype and exists (select from pg_type e join ordered i on i.opcintype = e.oid where e.typarray = b.oid) \
      or exists (select from pg_cast k where k.castsource = b.oid and k.casttarget = o.opcintype and k.castmethod = 'b' and k.castcontext = 'i') \
    order by o.opcintype = b.oid desc, o.preferred desc, o.opcintype limit 1) as compared_as \
from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace \
  join base on base.type = a.atttypid and base.kind <> 'd' join pg_type b on b.oid = base.oid \
  join pg_database d on d.datname = current_database() \
  left join pg_collation l on l.oid = a.attcollation left join pg_attrdef f on f.adrelid = a.attrelid and f.adnum = a.attnum \
  left join pg_stats s on s.schemaname = n.nspname and s.tablename = c.relname and s.attname = a.attname and not s.inherited \
where a.attrelid = any($1::int8[]::oid[]) and a.attnum > 0 and not a.attisdropped order by a.attrelid, a.attnum";

/// An index on the expression of a virtual generated column is one on the column, for which PostgreSQL puts its expression.
///
/// `cluster` names rows by an index that it used before, so that one is needed. A column of an index is plain if a search by the operators of its column's type can use it. `indoption` has 1 for `desc`
/// and 2 for `nulls first`.
const INDEXES_SQL: &str = "\
select x.indrelid::int8 as oid, i.relname::text as name, m.amname::text as method, x.indisunique as is_unique, \
  x.indisvalid and x.indisready and x.indislive as is_valid, x.indnatts > x.indnkeyatts as has_included, \
  x.indisreplident or x.indisclustered or i.relispartition or exists (select from pg_constraint k where k.conindid = x.indexrelid and k.contype in ('p', 'u', 'x', 'f')) \
    as is_needed, \
  pg_get_expr(x.indpred, x.indrelid) as predicate, \
  array(select a.attname::text from generate_series(0, x.indnkeyatts - 1) k \
    left join pg_attribute a on a.attrelid = x.indrelid and a.attnum = case x.indkey[k] when 0 then v.number else x.indkey[k] end order by k) as columns, \
  array(select coalesce(o.opcdefault and x.indcollation[k] in (0, a.attcollation), false) \
    from generate_series(0, x.indnkeyatts - 1) k join pg_opclass o on o.oid = x.indclass[k] \
    left join pg_attribute a on a.attrelid = x.indrelid and a.attnum = case x.indkey[k] when 0 then v.number else x.indkey[k] end order by k) as plain, \
  array(select coalesce(o.opcname in ('text_pattern_ops', 'varchar_pattern_ops', 'bpchar_pattern_ops') and x.indcollation[k] = a.attcollation, false) \
    from generate_series(0, x.indnkeyatts - 1) k join pg_opclass o on o.oid = x.indclass[k] \
    left join pg_attribute a on a.attrelid = x.indrelid and a.attnum = case x.indkey[k] when 0 then v.number else x.indkey[k] end order by k) as patterns, \
  array(select x.indoption[k]::int4 from generate_series(0, x.indnkeyatts - 1) k order by k) as options \
from pg_index x join pg_class i on i.oid = x.indexrelid join pg_am m on m.oid = i.relam \
  left join lateral (select g.attnum as number from pg_attribute g join pg_attrdef f on f.adrelid = g.attrelid and f.adnum = g.attnum \
    where g.attrelid = x.indrelid and g.attgenerated = 'v' and pg_get_expr(f.adbin, f.adrelid) = pg_get_expr(x.indexprs, x.indrelid) \
    order by g.attcollation = any(x.indcollation::oid[]) desc, g.attnum limit 1) v on true \
where x.indrelid = any($1::int8[]::oid[]) order by x.indrelid, i.relname";

const NAMES_SQL: &str = "\
select n.nspname::text as schema, c.relname::text as name from pg_class c join pg_namespace n on n.oid = c.relnamespace \
where n.nspname = any($1::text[]) and c.relname ~ '_idx[0-9]*$'";

/// Reads the tables of these schemas and names, with all that they are parts of, in a fixed number of statements.
pub(super) async fn read_shapes(
    connection: &mut PgConnection,
    names: &BTreeSet<(String, String)>,
) -> Result<TableShapes, SourceError> {
    let (schemas, tables): (Vec<String>, Vec<String>) = names.iter().cloned().unzip();
    let mut shapes = TableShapes::default();
    let rows = sqlx::query(TABLES_SQL)
        .persistent(false)
        .bind(&schemas)
        .bind(&tables)
        .fetch_all(&mut *connection)
        .await?;
    for row in &rows {
        let table = table(row)?;
        shapes.tables.insert(table.name.oid, table);
    }
    let oids: Vec<i64> = shapes.tables.keys().map(|&oid| i64::from(oid)).collect();
    read_columns(connection, &oids, &mut shapes.tables).await?;
    read_indexes(connection, &oids, &mut shapes.tables).await?;
    let schemas: BTreeSet<&String> = shapes
        .tables
        .values()
        .map(|table| &table.name.schema)
        .collect();
    let schemas: Vec<&String> = schemas.into_iter().collect();
    let taken = sqlx::query(NAMES_SQL)
        .persistent(false)
        .bind(schemas)
        .fetch_all(connection)
        .await?;
    for row in &taken {
        let name = (row.try_get("schema")?, row.try_get("name")?);
        shapes.taken_names.insert(name);
    }
    Ok(shapes)
}

fn table(row: &PgRow) -> Result<TableShape, SourceError> {
    let partitions: Vec<i64> = row.try_get("partitions")?;
    let parent: Option<i64> = row.try_get("parent")?;
    let small = |oid: i64| u32::try_from(oid).ok();
    Ok(TableShape {
        name: table_name(row)?,
        kind: character(row, "kind")?,
        rows: row.try_get("rows")?,
        deletes: row.try_get("deletes")?,
        columns: Vec::new(),
        indexes: Vec::new(),
        partitions: partitions.into_iter().filter_map(small).collect(),
        parent: parent.and_then(small),
    })
}

/// The rows that `sql` returns for the tables `$1`.
async fn of_tables(
    connection: &mut PgConnection,
    sql: &'static str,
    oids: &[i64],
) -> sqlx::Result<Vec<PgRow>> {
    let statement = sqlx::query(sql).persistent(false).bind(oids);
    statement.fetch_all(connection).await
}

async fn read_columns(
    connection: &mut PgConnection,
    oids: &[i64],
    tables: &mut HashMap<u32, TableShape>,
) -> Result<(), SourceError> {
    for row in &of_tables(connection, COLUMNS_SQL, oids).await? {
        let Some(table) = tables.get_mut(&oid(row, "oid")?) else {
            continue;
        };
        table.columns.push(ColumnShape {
            name: row.try_get("name")?,
            base_type: row.try_get("base_type")?,
            width: row.try_get("width")?,
            alignment: row.try_get("alignment")?,
            is_variable: row.try_get("variable")?,
            distinct: row.try_get("distinct_values")?,
            nulls: row.try_get("nulls")?,
            is_deduplicated: row.try_get("deduplicated")?,
            is_in_byte_order: row.try_get("byte_order")?,
            compared_as: row.try_get("compared_as")?,
            expression: row.try_get("expression")?,
        });
    }
    Ok(())
}

async fn read_indexes(
    connection: &mut PgConnection,
    oids: &[i64],
    tables: &mut HashMap<u32, TableShape>,
) -> Result<(), SourceError> {
    for row in &of_tables(connection, INDEXES_SQL, oids).await? {
        let Some(table) = tables.get_mut(&oid(row, "oid")?) else {
            continue;
        };
        let columns: Vec<Option<String>> = row.try_get("columns")?;
        let plain: Vec<bool> = row.try_get("plain")?;
        let patterns: Vec<bool> = row.try_get("patterns")?;
        let options: Vec<i32> = row.try_get("options")?;
        let columns = columns.into_iter().zip(plain).zip(patterns).zip(options);
        let columns = columns.map(|(((column, is_plain), is_of_patterns), option)| {
            let is_descending = option & 1 != 0;
            IndexColumn {
                column,
                is_plain,
                is_of_patterns,
                is_descending,
                has_default_nulls: is_descending == (option & 2 != 0),
            }
        });
        table.indexes.push(IndexShape {
            name: row.try_get("name")?,
            method: row.try_get("method")?,
            columns: columns.collect(),
            has_included: row.try_get("has_included")?,
            is_unique: row.try_get("is_unique")?,
            is_needed: row.try_get("is_needed")?,
            predicate: row.try_get("predicate")?,
            is_valid: row.try_get("is_valid")?,
        });
    }
    Ok(())
}
