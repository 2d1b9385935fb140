//! A configuration that serves what larder can serve of a database: a resource for each table with a servable key, with the
//! rows that refer to it, the rows that it refers to, and lists by each column that refers to another table.

use sqlx::Row;
use sqlx::postgres::PgConnection;

/// A row for each resource.
const RESOURCES_SQL: &str = "\
with key as ( \
    select k.conrelid as oid, k.conkey as numbers from pg_constraint k where k.contype = 'p' and not exists ( \
      select from pg_attribute a join pg_type t on t.oid = a.atttypid where a.attrelid = k.conrelid and a.attnum = any(k.conkey) \
        and t.typtype <> 'e' and t.typname not in ('int2', 'int4', 'int8', 'text', 'varchar', 'bpchar', 'uuid', 'date', \
          'timestamp', 'timestamptz', 'bool', 'bytea', 'inet', 'cidr', 'macaddr'))), \
  link as ( \
    select row_number() over (order by f.conrelid::regclass::text, f.conname) as number, f.conrelid as oid, f.confrelid as target, \
      f.conkey as numbers, array_agg(format('''%s''', a.attname) order by n.place) as columns \
    from pg_constraint f join key on key.oid = f.confrelid and key.numbers = f.confkey \
      cross join unnest(f.conkey) with ordinality n(number, place) \
      join pg_attribute a on a.attrelid = f.conrelid and a.attnum = n.number \
    where f.contype = 'f' and exists (select from pg_constraint k where k.contype = 'p' and k.conrelid = f.conrelid) \
    group by f.oid, f.conrelid, f.conname, f.confrelid, f.conkey) \
select format(E'[[resource]]\\nname = ''%1$s''\\ntable = ''%1$s''\\nfilters = [%2$s]\\n', t.relname, \
    (select string_agg(distinct columns[1], ', ') from link where link.oid = t.oid and cardinality(columns) = 1)) \
  || coalesce((select string_agg(format( \
      E'[[resource.children]]\\nname = ''child_%s''\\ntable = ''%s''\\nforeign_key = [%s]\\n', \
      link.number, c.relname, array_to_string(columns, ', ')), '' order by link.number) \
    from link join pg_class c on c.oid = link.oid where link.target = t.oid), '') \
  || coalesce((select string_agg(format( \
      E'[[resource.lookups]]\\nname = ''lookup_%s''\\ntable = ''%s''\\ncolumn = [%s]\\n', \
      link.number, c.relname, array_to_string(columns, ', ')), '' order by link.number) \
    from link join pg_class c on c.oid = link.target where link.oid = t.oid), '') as toml \
from pg_class t join key on key.oid = t.oid \
where t.relkind in ('r', 'p') and not t.relispartition and t.relnamespace = 'public'::regnamespace order by t.relname";

const TABLES_SQL: &str = "\
select t.relname::text from pg_class t \
where t.relkind in ('r', 'p') and not t.relispartition and t.relnamespace = 'public'::regnamespace order by t.relname";

/// A configuration, and what it is made for.
pub(super) struct Configuration {
    pub(super) toml: String,
    /// The names of all tables.
    pub(super) tables: Vec<String>,
    pub(super) resources: usize,
}

/// Makes it from the catalogue.
pub(super) async fn read(connection: &mut PgConnection) -> anyhow::Result<Configuration> {
    let rows = sqlx::query(RESOURCES_SQL)
        .fetch_all(&mut *connection)
        .await?;
    let resources = rows.iter().map(|row| row.try_get("toml"));
    let resources = resources.collect::<Result<Vec<String>, _>>()?;
    let tables = sqlx::query_scalar(TABLES_SQL).fetch_all(connection).await?;
    Ok(Configuration {
        toml: resources.concat(),
        tables,
        resources: resources.len(),
    })
}
