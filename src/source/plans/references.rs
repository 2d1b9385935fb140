//! Reads the foreign keys that reference tables.

use std::collections::BTreeSet;

use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::check::question::{Reference, ReferenceColumn};
use crate::resource::catalogue::TableName;
use crate::source::SourceError;
use crate::source::catalogue::oid;

/// The foreign keys that reference the tables `$1` or parts of them, each with the one of `$1` as its target. Values of domains are searched for as those of the type below: a domain may
/// refuse null. `conenforced` came with PostgreSQL 18. Constraints of partitions follow from those of their tables.
///
/// A foreign key may compare its column as another type: `numeric` for an `int4` that references one. No index on the column
/// serves that, so such keys are left out. The `PERIOD` of a temporal foreign key, its last column (PostgreSQL 18), is left out, too: an
/// index on the other columns finds the rows.
const REFERENCES_SQL: &str = "\
with recursive family (oid, root) as (select u.oid::oid, u.oid::oid from unnest($1::int8[]) u (oid) \
    union select i.inhrelid, family.root from family join pg_inherits i on i.inhparent = family.oid), \
  base (domain, oid, below, kind, namespace) as ( \
    select t.oid, t.oid, t.typbasetype, t.typtype, t.typnamespace from pg_type t \
    union all select base.domain, t.oid, t.typbasetype, t.typtype, t.typnamespace from base join pg_type t on t.oid = base.below where base.kind = 'd') \
select c.conname::text as name, t.oid::int8 as oid, n.nspname::text as schema, t.relname::text as relname, \
  t.relkind = 'p' as partitioned, f.oid::int8 as target, fn.nspname::text as target_schema, f.relname::text as target_name, \
  coalesce(s.n_tup_del, 0) > 0 as deletes, \
  concat_ws(' ', case when not has_schema_privilege(n.oid, 'usage') then format('grant usage on schema %I to %I;', n.nspname, current_user) end, \
    case when not (select bool_and(has_column_privilege(t.oid, k.number, 'select')) from unnest(c.conkey) k (number)) \
      then format('grant select (%s) on %I.%I to %I;', (select string_agg(quote_ident(a.attname), ', ' order by k.place) \
        from unnest(c.conkey) with ordinality k (number, place) join pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.number), \
        n.nspname, t.relname, current_user) end) as grants, \
  array(select a.attname::text from unnest(c.conkey[:w.compared]) with ordinality k(number, place) \
    join pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.number order by k.place) as columns, \
  array(select case when has_schema_privilege(b.namespace, 'usage') then '::' || format_type(b.oid, null) else '' end from unnest(c.confkey[:w.compared]) with ordinality k(number, place) \
    join pg_attribute a on a.attrelid = c.confrelid and a.attnum = k.number \
    join base b on b.domain = a.atttypid and b.kind <> 'd' order by k.place) as types, \
  array(select case when has_schema_privilege(o.oid, 'usage') then format('operator(%I.%s)', o.nspname, p.oprname) else p.oprname::text end from unnest(c.conpfeqop[:w.compared]) with ordinality k(oid, place) \
    join pg_operator p on p.oid = k.oid join pg_namespace o on o.oid = p.oprnamespace order by k.place) as operators \
from pg_constraint c cross join lateral ( \
    select cardinality(c.conkey) - coalesce((to_jsonb(c) ->> 'conperiod')::bool, false)::int as compared) w \
  join pg_class t on t.oid = c.conrelid join pg_namespace n on n.oid = t.relnamespace \
  join pg_class f on f.oid = (select root from family where oid = c.confrelid order by root = oid desc, root limit 1) \
  join pg_namespace fn on fn.oid = f.relnamespace \
  left join pg_stat_user_tables s on s.relid = c.confrelid \
where c.contype = 'f' and c.conparentid = 0 \
  and coalesce((to_jsonb(c) ->> 'conenforced')::bool, true) \
  and not exists (select from unnest(c.conkey[:w.compared], c.conpfeqop[:w.compared]) k (number, operator) \
    join pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.number \
    join base b on b.domain = a.atttypid and b.kind <> 'd' join pg_operator p on p.oid = k.operator \
    where not exists (select from pg_amop o join pg_opclass d on d.opcfamily = o.amopfamily and d.opcdefault \
      join pg_am m on m.oid = d.opcmethod and m.amname = 'btree' \
      where o.amopopr = p.oid and (d.opcintype = b.oid or d.opcintype = p.oprright and not exists ( \
        select from pg_opclass e where e.opcintype = b.oid and e.opcmethod = d.opcmethod and e.opcdefault)))) \
order by n.nspname, t.relname, c.conname";

pub(super) async fn read_references(
    connection: &mut PgConnection,
    targets: &BTreeSet<u32>,
) -> Result<Vec<Reference>, SourceError> {
    let targets: Vec<i64> = targets.iter().map(|&oid| i64::from(oid)).collect();
    let rows = sqlx::query(REFERENCES_SQL)
        .persistent(false)
        .bind(targets)
        .fetch_all(connection)
        .await?;
    let mut references = Vec::with_capacity(rows.len());
    for row in rows {
        let names: Vec<String> = row.try_get("columns")?;
        let types: Vec<String> = row.try_get("types")?;
        let operators: Vec<String> = row.try_get("operators")?;
        let columns = names.into_iter().zip(types).zip(operators);
        references.push(Reference {
            name: row.try_get("name")?,
            table: TableName {
                oid: oid(&row, "oid")?,
                schema: row.try_get("schema")?,
                name: row.try_get("relname")?,
            },
            is_partitioned: row.try_get("partitioned")?,
            grant: Some(row.try_get("grants")?).filter(|grants: &String| !grants.is_empty()),
            target: TableName {
                oid: oid(&row, "target")?,
                schema: row.try_get("target_schema")?,
                name: row.try_get("target_name")?,
            },
            has_deletes: row.try_get("deletes")?,
            columns: columns
                .map(|((name, target_cast), operator)| ReferenceColumn {
                    name,
                    target_cast,
                    operator,
                })
                .collect(),
        });
    }
    Ok(references)
}
