//! Reads the tables that [`crate::resource::catalogue`] describes from PostgreSQL's catalogue.

mod condition_tree;
pub mod conditions;
mod outputs;
mod policies;
mod types;

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row};

use crate::resource::catalogue::{
    Catalogue, Column, Constraint, Descendant, ForeignKey, OnWrite, Table, TableName, UniqueKey,
};
use crate::resource::row_security::{STATE_SQL, TableRowSecurity};
use crate::resource::sql_type::{Equality, SqlType};
use crate::resource::value::ValueType;
use crate::source::SourceError;
use crate::source::catalogue::outputs::{read_dependent_columns, read_dependent_expressions};
use crate::source::catalogue::policies::read_policies;
use crate::source::catalogue::types::read_types;

/// The most names of tables that are read for suggestions.
const KNOWN_NAMES_MAX: i64 = 10_000;

/// Reads the tables called `names`: `table` (in schema `public`) or `schema.table`, with double quotes around a part
/// that contains a dot or begins with a double quote. Names are not folded to lower case.
///
/// # Errors
/// Those of the statements.
pub async fn read_catalogue(
    connection: &mut PgConnection,
    names: &[String],
) -> Result<Catalogue, SourceError> {
    let mut catalogue = Catalogue::default();
    let mut tables: HashMap<u32, Table> = HashMap::new();
    let mut found_names: Vec<(String, u32)> = Vec::new();
    for (name, table) in read_tables(connection, names).await? {
        found_names.push((name, table.name.oid));
        tables.insert(table.name.oid, table);
    }
    let table_oids: Vec<i64> = tables.keys().map(|&oid| i64::from(oid)).collect();
    read_columns(connection, &table_oids, &mut tables).await?;
    read_dependent_columns(connection, &table_oids, &mut tables).await?;
    read_dependent_expressions(connection, &table_oids, &mut tables).await?;
    read_policies(connection, &table_oids, &mut tables).await?;
    read_indexes(connection, &table_oids, &mut tables).await?;
    read_foreign_keys(connection, &table_oids, &mut tables).await?;
    read_descendants(connection, &table_oids, &mut tables).await?;
    read_other_ancestors(connection, &table_oids, &mut tables).await?;
    read_constraints(connection, &table_oids, &mut tables).await?;
    read_on_write(connection, &table_oids, &mut tables).await?;
    if found_names.len() < names.len() {
        catalogue.known_names = read_known_names(connection).await?;
    }
    for (name, oid) in found_names {
        if let Some(table) = tables.get(&oid) {
            catalogue.tables.insert(name, table.clone());
        }
    }
    Ok(catalogue)
}

/// Splits a configured name into schema and table. A part may be in double quotes, within which a double quote is
/// doubled.
fn split_name(name: &str) -> (String, String) {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    let mut characters = name.chars().peekable();
    while let Some(character) = characters.next() {
        let begins = parts.last().is_some_and(String::is_empty);
        match character {
            '"' if quoted && characters.next_if_eq(&'"').is_none() => quoted = false,
            '"' if !quoted && begins => quoted = true,
            '.' if !quoted => parts.push(String::new()),
            _ => {
                if let Some(part) = parts.last_mut() {
                    part.push(character);
                }
            }
        }
    }
    let table = parts.pop().unwrap_or_default();
    if parts.is_empty() {
        ("public".into(), table)
    } else {
        (parts.join("."), table)
    }
}

pub(super) fn oid(row: &PgRow, column: &str) -> Result<u32, SourceError> {
    let value: i64 = row.try_get(column)?;
    u32::try_from(value).map_err(|_| SourceError::Unexpected("an oid out of range".into()))
}

/// The table that the columns `oid`, `schema` and `name` name.
pub(super) fn table_name(row: &PgRow) -> Result<TableName, SourceError> {
    Ok(TableName {
        oid: oid(row, "oid")?,
        schema: row.try_get("schema")?,
        name: row.try_get("name")?,
    })
}

/// The one character of a column of type `"char"`, as text.
pub(super) fn character(row: &PgRow, column: &str) -> Result<char, SourceError> {
    let text: String = row.try_get(column)?;
    Ok(text.chars().next().unwrap_or(' '))
}

/// The tables called `names`, each with its name as it is written there.
async fn read_tables(
    connection: &mut PgConnection,
    names: &[String],
) -> Result<Vec<(String, Table)>, SourceError> {
    let (schemas, tables): (Vec<String>, Vec<String>) =
        names.iter().map(|name| split_name(name)).unzip();
    let sql = format!(
        "select w.name as written, n.nspname::text as schema, c.relname::text as name, \
           c.oid::int8 as oid, c.relkind::text as kind, case when c.relrowsecurity then {STATE_SQL} end as row_security \
         from unnest($1::text[], $2::text[], $3::text[]) w (name, schema, \"table\") \
         join pg_namespace n on n.nspname = w.schema join pg_class c on c.relnamespace = n.oid and c.relname = w.\"table\" \
         where c.relkind in ('r', 'p', 'v', 'm', 'f')"
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(names)
        .bind(schemas)
        .bind(tables)
        .fetch_all(connection)
        .await?;
    rows.iter()
        .map(|row| Ok((row.try_get("written")?, table(row)?)))
        .collect()
}

/// A table of which only the name and what is in its row of `pg_class` is known.
fn table(row: &PgRow) -> Result<Table, SourceError> {
    let name = table_name(row)?;
    let oid = name.oid;
    let row_security: Option<String> = row.try_get("row_security")?;
    Ok(Table {
        name,
        kind: character(row, "kind")?,
        row_security: row_security.map(|state| TableRowSecurity::new(oid, state)),
        has_other_ancestors: false,
        uncached: None,
        columns: Vec::new(),
        unique_keys: Vec::new(),
        foreign_keys: Vec::new(),
        indexes: Vec::new(),
        descendants: Vec::new(),
        constraints: Vec::new(),
        on_write: OnWrite::default(),
    })
}

/// A part of `with`: `part` pairs each of the tables in `$1` with itself and all its descendants.
const HIERARCHIES_SQL: &str = "\
with recursive part (top, oid) as ( \
  select w, w from unnest($1::int8[]::oid[]) w \
  union select part.top, i.inhrelid from pg_inherits i join part on part.oid = i.inhparent)";

/// A part of `with recursive`: `used` pairs the columns of the tables in `$1` with their types, and with those that these consist
/// of.
const USED_TYPES_SQL: &str = "\
used (relation, number, type) as ( \
      select a.attrelid, a.attnum, a.atttypid from pg_attribute a \
        where a.attrelid::int8 = any($1) and a.attnum > 0 and not a.attisdropped \
      union select u.relation, u.number, part.type from used u join pg_type t on t.oid = u.type cross join lateral ( \
        select t.typbasetype as type union all select t.typelem \
        union all select a.atttypid from pg_attribute a \
          where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped \
        union all select r.rngsubtype from pg_range r where r.rngtypid = t.oid \
        union all select r.rngtypid from pg_range r where r.rngmultitypid = t.oid) part where part.type <> 0)";

/// Runs `sql` with `table_oids` as `$1`, and calls `add` with each row and the table that its column `oid` names.
async fn read_for_tables(
    connection: &mut PgConnection,
    sql: &str,
    table_oids: &[i64],
    tables: &mut HashMap<u32, Table>,
    add: impl Fn(&mut Table, &PgRow) -> Result<(), SourceError>,
) -> Result<(), SourceError> {
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(table_oids)
        .fetch_all(connection)
        .await?;
    for row in rows {
        if let Some(table) = tables.get_mut(&oid(&row, "oid")?) {
            add(table, &row)?;
        }
    }
    Ok(())
}

/// The columns of the tables `$1`.
///
/// Domains are followed down to the type below; the innermost one carries the type modifier.
/// As PostgreSQL does (indexcmds.c, `GetDefaultOpClass`), the default operator class of a type is that of a type to which it is cast
/// without a function, if it has none of its own. A full join needs an operator by which rows can be sorted or hashed.
/// Statements name the types of schema pg_catalog and of the table's schema. Values of others come from a null row of the table
/// (`resource/sql_type.rs`); that row has fields, all null, if a domain of the table may refuse null.
const COLUMNS_SQL: &str = "with recursive chain (oid, base, modifier) as ( \
           select oid, typbasetype, typtypmod from pg_type where typtype = 'd' \
           union all select c.oid, t.typbasetype, t.typtypmod from chain c join pg_type t on t.oid = c.base \
           where t.typtype = 'd'), \
         domain as (select c.oid, c.base, c.modifier from chain c join pg_type t on t.oid = c.base \
           where t.typtype <> 'd'), \
         sequences as materialized (select f.adrelid, f.adnum, array_agg(format('%I.%I', n.nspname, s.relname)) as names \
           from pg_attrdef f join pg_depend p on p.classid = 'pg_attrdef'::regclass and p.objid = f.oid \
             and p.refclassid = 'pg_class'::regclass \
           join pg_class s on s.oid = p.refobjid and s.relkind = 'S' join pg_namespace n on n.oid = s.relnamespace \
           where f.adrelid::int8 = any($1) group by f.adrelid, f.adnum), \
         equality as materialized (select distinct on (k.oid) k.oid, case when n.nspname = 'pg_catalog' then p.oprname::text \
             when has_schema_privilege(n.oid, 'usage') and (p.oprcanmerge or p.oprcanhash) \
             then format('operator(%I.%s)', n.nspname, p.oprname) else '' end as operator \
           from pg_opclass o join pg_am m on m.oid = o.opcmethod and m.amname = 'btree' \
           cross join lateral (select o.opcintype union all select c.castsource from pg_cast c \
             where c.casttarget = o.opcintype and c.castmethod = 'b' and c.castcontext = 'i') k (oid) \
           join pg_amop w on w.amopfamily = o.opcfamily and w.amoplefttype = o.opcintype and w.amoprighttype = o.opcintype \
             and w.amopstrategy = 3 \
           join pg_operator p on p.oid = w.amopopr join pg_namespace n on n.oid = p.oprnamespace \
           join pg_type i on i.oid = o.opcintype \
           where o.opcdefault order by k.oid, k.oid = o.opcintype desc, i.typispreferred desc) \
         select a.attrelid::int8 as oid, a.attname::text as name, \
           format_type(a.atttypid, a.atttypmod) as type_text, \
           format_type(t.oid, case when t.oid in ('numeric'::regtype, 'time'::regtype, 'timetz'::regtype, \
             'timestamp'::regtype, 'timestamptz'::regtype, 'interval'::regtype) \
             then coalesce(d.modifier, a.atttypmod) else -1 end) as plain_type, \
           format_type(t.oid, coalesce(d.modifier, a.atttypmod)) as stored_type, \
           case when t.typnamespace not in ('pg_catalog'::regnamespace, r.relnamespace) then ( \
             select case when bool_or(ot.typtype = 'd' and o.attnum <> a.attnum) then format('row(%s)::%I.%I', \
                 string_agg(format('(null::%I.%I).%I', n.nspname, r.relname, o.attname), ', ' order by o.attnum), \
                 n.nspname, r.relname) \
               else format('null::%I.%I', n.nspname, r.relname) end \
             from pg_attribute o join pg_type ot on ot.oid = o.atttypid \
             where o.attrelid = a.attrelid and o.attnum > 0 and not o.attisdropped) end as null_row, \
           a.atttypid::int8 as type, \
           a.attcollation::int8 as collation, t.typname::text as base_type, \
           t.typnamespace = 'pg_catalog'::regnamespace as built_in, \
           coalesce(d.modifier, a.atttypmod) as modifier, \
           coalesce(l.collisdeterministic, true) as deterministic, \
           e.operator as equality, \
           a.atttypmod as own_modifier, a.attnotnull and not exists (select from pg_constraint u \
             where u.conrelid = a.attrelid and u.contype = 'n' and u.conkey = array[a.attnum] and not u.convalidated) \
             or at.typnotnull or exists (select from chain c \
             join pg_type b on b.oid = c.base where c.oid = a.atttypid and b.typnotnull) as not_null, \
           a.attgenerated <> '' as generated, a.attgenerated = 'v' as virtual, a.attidentity = 'a' as identity_always, \
           a.attgenerated = '' and (a.atthasdef or a.attidentity <> '' or at.typdefault is not null) as has_default, \
           coalesce(q.names, '{}') as sequences \
         from pg_attribute a \
         join pg_class r on r.oid = a.attrelid join pg_namespace n on n.oid = r.relnamespace \
         join pg_type at on at.oid = a.atttypid \
         left join sequences q on q.adrelid = a.attrelid and q.adnum = a.attnum \
         left join domain d on d.oid = a.atttypid \
         join pg_type t on t.oid = coalesce(d.base, a.atttypid) \
         left join equality e on e.oid = t.oid \
         left join pg_collation l on l.oid = a.attcollation \
         where a.attrelid::int8 = any($1) and a.attnum > 0 and not a.attisdropped \
         order by a.attrelid, a.attnum";

async fn read_columns(
    connection: &mut PgConnection,
    table_oids: &[i64],
    tables: &mut HashMap<u32, Table>,
) -> Result<(), SourceError> {
    let types = read_types(connection, table_oids).await?;
    read_for_tables(connection, COLUMNS_SQL, table_oids, tables, |table, row| {
        let type_oid = oid(row, "type")?;
        let null_row: Option<String> = row.try_get("null_row")?;
        let null_row: Option<Arc<str>> = null_row.map(Arc::from);
        let name: String = row.try_get("name")?;
        let sql_type = |named: String| match &null_row {
            None => SqlType::Named(named),
            Some(null_row) => SqlType::OfColumn {
                name: named,
                row: Arc::clone(null_row),
                column: name.clone(),
            },
        };
        let equality: Option<String> = row.try_get("equality")?;
        table.columns.push(Column {
            type_text: row.try_get("type_text")?,
            plain_type: sql_type(row.try_get("plain_type")?),
            stored_type: sql_type(row.try_get("stored_type")?),
            name,
            type_oid,
            collation: oid(row, "collation")?,
            base_type: row.try_get("base_type")?,
            built_in: row.try_get("built_in")?,
            type_modifier: row.try_get("modifier")?,
            deterministic: row.try_get("deterministic")?,
            equality: equality.map(|operator| match operator.as_str() {
                "" => Equality::Records,
                _ => Equality::Operator(operator.into()),
            }),
            value: ValueType::of(&types, type_oid, row.try_get("own_modifier")?),
            not_null: row.try_get("not_null")?,
            has_default: row.try_get("has_default")?,
            sequences: row.try_get("sequences")?,
            generated: row.try_get("generated")?,
            is_virtual: row.try_get("virtual")?,
            identity_always: row.try_get("identity_always")?,
            dependent: None,
            type_tables: Vec::new(),
        });
        Ok(())
    })
    .await
}

async fn read_indexes(
    connection: &mut PgConnection,
    table_oids: &[i64],
    tables: &mut HashMap<u32, Table>,
) -> Result<(), SourceError> {
    // Column 0 stands for an expression. Such an index does not identify or find a row by its columns alone, and one with
    // another collation than the column's does not find it by a comparison of columns.
    let sql = "select i.indrelid::int8 as oid, x.relname::text as name, i.indisprimary as primary, \
           i.indisunique and (i.indimmediate or i.indisprimary) as is_unique, not i.indimmediate as deferrable, \
           array(select a.attname::text from generate_series(0, i.indnkeyatts - 1) k \
             join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[k] order by k) as columns \
         from pg_index i join pg_class x on x.oid = i.indexrelid \
         where i.indrelid::int8 = any($1) and i.indisvalid and i.indpred is null \
           and 0 <> all (i.indkey::int2[]) \
           and not exists (select from generate_series(0, i.indnkeyatts - 1) k join pg_attribute a \
             on a.attrelid = i.indrelid and a.attnum = i.indkey[k] where a.attcollation <> i.indcollation[k]) \
         order by i.indisprimary desc, i.indexrelid";
    read_for_tables(connection, sql, table_oids, tables, |table, row| {
        let columns: Vec<String> = row.try_get("columns")?;
        if row.try_get("is_unique")? {
            table.unique_keys.push(UniqueKey {
                name: row.try_get("name")?,
                columns: columns.clone(),
                primary: row.try_get("primary")?,
                deferrable: row.try_get("deferrable")?,
            });
        }
        table.indexes.push(columns);
        Ok(())
    })
    .await
}

/// Those of periods (PostgreSQL 18) are left out: their last columns are not equal, as a link's are, but one period contains
/// the other. `conenforced` came with 18, too: without it nothing cascades.
async fn read_foreign_keys(
    connection: &mut PgConnection,
    table_oids: &[i64],
    tables: &mut HashMap<u32, Table>,
) -> Result<(), SourceError> {
    let sql = "select c.conrelid::int8 as oid, c.confrelid::int8 as target, \
           c.confdeltype = 'c' and coalesce((to_jsonb(c) ->> 'conenforced')::bool, true) as cascades, \
           case when c.condeferrable then (select format('%I.%I', n.nspname, c.conname) from pg_namespace n \
             where n.oid = c.connamespace) end as deferrable, \
           array(select a.attname::text from unnest(c.conkey) with ordinality k(n, place) \
             join pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.n order by k.place) as columns, \
           array(select a.attname::text from unnest(c.confkey) with ordinality k(n, place) \
             join pg_attribute a on a.attrelid = c.confrelid and a.attnum = k.n order by k.place) as target_columns \
         from pg_constraint c where c.contype = 'f' and c.conrelid::int8 = any($1) \
           and not coalesce((to_jsonb(c) ->> 'conperiod')::bool, false) order by c.oid";
    read_for_tables(connection, sql, table_oids, tables, |table, row| {
        table.foreign_keys.push(ForeignKey {
            columns: row.try_get("columns")?,
            target: oid(row, "target")?,
            target_columns: row.try_get("target_columns")?,
            cascades: row.try_get("cascades")?,
            deferrable: row.try_get("deferrable")?,
        });
        Ok(())
    })
    .await
}

async fn read_descendants(
    connection: &mut PgConnection,
    table_oids: &[i64],
    tables: &mut HashMap<u32, Table>,
) -> Result<(), SourceError> {
    let sql = "with recursive part (top, oid) as ( \
           select inhparent, inhrelid from pg_inherits where inhparent::int8 = any($1) \
           union select part.top, i.inhrelid from pg_inherits i join part on part.oid = i.inhparent) \
         select part.top::int8 as oid, c.oid::int8 as descendant, n.nspname::text as schema, c.relname::text as name, \
           c.relkind::text as kind \
         from part join pg_class c on c.oid = part.oid join pg_namespace n on n.oid = c.relnamespace \
         order by part.top, c.oid";
    read_for_tables(connection, sql, table_oids, tables, |table, row| {
        table.descendants.push(Descendant {
            name: TableName {
                oid: oid(row, "descendant")?,
                schema: row.try_get("schema")?,
                name: row.try_get("name")?,
            },
            kind: character(row, "kind")?,
        });
        Ok(())
    })
    .await
}

/// Marks the tables whose rows, or whose descendants' rows, can be changed through an ancestor outside their own
/// hierarchy.
async fn read_other_ancestors(
    connection: &mut PgConnection,
    table_oids: &[i64],
    tables: &mut HashMap<u32, Table>,
) -> Result<(), SourceError> {
    let sql = format!(
        "{HIERARCHIES_SQL} select distinct part.top::int8 as oid from part join pg_inherits i on i.inhrelid = part.oid \
         where not exists (select from part other where other.top = part.top and other.oid = i.inhparent)"
    );
    read_for_tables(connection, &sql, table_oids, tables, |table, _| {
        table.has_other_ancestors = true;
        Ok(())
    })
    .await
}

/// Reads the constraints and unique indexes that errors may name, with the columns of their expressions and predicates, and
/// the domains of columns or of what they consist of.
async fn read_constraints(
    connection: &mut PgConnection,
    table_oids: &[i64],
    tables: &mut HashMap<u32, Table>,
) -> Result<(), SourceError> {
    let sql = format!(
        "{HIERARCHIES_SQL}, {USED_TYPES_SQL} select part.top::int8 as oid, n.nspname::text as schema, c.relname::text as table, k.name::text as name, \
           array(select a.attname::text from pg_attribute a where a.attrelid = c.oid and (a.attnum = any(k.columns) \
             or a.attnum > 0 and exists (select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = k.index \
               and d.refclassid = 'pg_class'::regclass and d.refobjid = c.oid and d.refobjsubid = a.attnum)) \
             order by a.attnum) as columns \
         from part join pg_class c on c.oid = part.oid join pg_namespace n on n.oid = c.relnamespace \
         cross join lateral (select s.conname as name, s.conkey as columns, \
             case when s.contype <> 'f' then s.conindid end as index \
             from pg_constraint s where s.conrelid = c.oid and s.contype in ('c', 'f', 'p', 'u', 'x') \
           union all select i.relname, '{{}}', x.indexrelid from pg_index x join pg_class i on i.oid = x.indexrelid \
             where x.indrelid = c.oid and x.indisunique \
             and not exists (select from pg_constraint s where s.conindid = x.indexrelid and s.contype in ('p', 'u', 'x'))) k \
         union all select used.relation::int8, n.nspname, t.typname, null, array_agg(distinct a.attname::text order by a.attname::text) \
           from used join pg_attribute a on a.attrelid = used.relation and a.attnum = used.number \
           join pg_type t on t.oid = used.type and t.typtype = 'd' join pg_namespace n on n.oid = t.typnamespace \
           group by used.relation, n.nspname, t.typname"
    );
    read_for_tables(connection, &sql, table_oids, tables, |table, row| {
        table.constraints.push(Constraint {
            schema: row.try_get("schema")?,
            table: row.try_get("table")?,
            name: row.try_get("name")?,
            columns: row.try_get("columns")?,
        });
        Ok(())
    })
    .await
}

/// Reads what runs when rows are written. Users' functions may be in schema larder, too: it is the first in the search path of a
/// role of this name. `tgtype` is a set of bits: 1 for each row, 2 before, 4 insert, 8 delete (pg_trigger.h).
/// Triggers that are called only under `session_replication_role = replica` are not called for larder.
async fn read_on_write(
    connection: &mut PgConnection,
    table_oids: &[i64],
    tables: &mut HashMap<u32, Table>,
) -> Result<(), SourceError> {
    let sql = format!(
        "{HIERARCHIES_SQL} select part.top::int8 as oid, \
           coalesce(bool_or(t.is_user), false) as triggers, \
           coalesce(bool_or(t.is_user and t.tgtype & 7 = 7), false) as before_insert, \
           coalesce(bool_or(t.is_user and t.tgtype & 11 = 11), false) as before_delete, \
           coalesce(bool_or(t.is_user and t.tgtype & 9 = 8), false) as statement_delete, \
           coalesce(bool_or(t.tginitdeferred), false) as deferred, \
           exists (select from pg_rewrite r join part p on p.oid = r.ev_class \
             where p.top = part.top and r.ev_type <> '1' and r.ev_enabled in ('O', 'A')) as rules \
         from part left join lateral (select t.tgtype, t.tginitdeferred, \
             not t.tgisinternal and (n.nspname <> 'larder' or p.proname !~ '^log_[0-9a-f]{{16}}$') as is_user \
           from pg_trigger t join pg_proc p on p.oid = t.tgfoid join pg_namespace n on n.oid = p.pronamespace \
           where t.tgrelid = part.oid and t.tgenabled in ('O', 'A')) t on true \
         group by part.top"
    );
    read_for_tables(connection, &sql, table_oids, tables, |table, row| {
        table.on_write = OnWrite {
            has_triggers: row.try_get("triggers")?,
            has_before_insert: row.try_get("before_insert")?,
            has_before_delete: row.try_get("before_delete")?,
            has_statement_delete: row.try_get("statement_delete")?,
            has_deferred: row.try_get("deferred")?,
            has_rules: row.try_get("rules")?,
        };
        Ok(())
    })
    .await
}

async fn read_known_names(connection: &mut PgConnection) -> Result<Vec<String>, SourceError> {
    let rows = sqlx::query(
        "select n.nspname || '.' || c.relname as name from pg_class c join pg_namespace n on n.oid = c.relnamespace \
         where c.relkind in ('r', 'p') and n.nspname not in ('pg_catalog', 'information_schema', 'larder') \
         and n.nspname not like 'pg\\_%' order by 1 limit $1",
    )
    .bind(KNOWN_NAMES_MAX)
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| row.try_get("name").map_err(SourceError::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_split_at_the_dot_outside_quotes() {
        let split = |name| split_name(name);
        assert_eq!(split("dept"), ("public".into(), "dept".into()));
        assert_eq!(split("Hr.Dept"), ("Hr".into(), "Dept".into()));
        assert_eq!(split("\"a.b\".\"c.d\""), ("a.b".into(), "c.d".into()));
        for name in ["we\"ird", "\"we\"\"ird\"", "public.we\"ird"] {
            assert_eq!(split(name), ("public".into(), "we\"ird".into()), "{name}");
        }
        assert_eq!(split("\"\"\"\"\"\".x"), ("\"\"".into(), "x".into()));
    }
}
