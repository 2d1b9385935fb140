//! Reads what the rules about tables and indexes know: [`crate::check::facts`].
//!
//! The number of statements does not depend on the number of tables, and none of them reads a user's table.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};

use crate::check::facts::{Facts, IndexFacts, KeyColumn, TableFacts};
use crate::resource::definition::Place;
use crate::source::SourceError;
use crate::source::catalogue::{character, oid, table_name};

/// The tables `$1` with all that are parts of them, and the tables that refer to one of these.
///
/// To write out the indexes of a table takes a lock that waits for `ACCESS EXCLUSIVE`. `pg_stats` shows what the role may
/// read; the time of the last analysis is lost with the counters. So either of them
/// says that a table was analysed.
const TABLES_SQL: &str = "\
with recursive family (oid, root) as (select u.oid::oid, u.oid from unnest($1::int8[]) u (oid) \
    union select i.inhrelid, family.root from family join pg_inherits i on i.inhparent = family.oid), \
  referring (oid) as (select k.conrelid from pg_constraint k where k.contype = 'f' and k.confrelid in (select oid from family) \
    union select i.inhrelid from referring join pg_inherits i on i.inhparent = referring.oid) \
select c.oid::int8 as oid, n.nspname::text as schema, c.relname::text as name, c.relkind::text as kind, \
  (select min(f.root) from family f where f.oid = c.oid) as root, \
  coalesce(s.n_live_tup, 0) as live, coalesce(s.n_dead_tup, 0) as dead, \
  coalesce(s.n_tup_upd, 0) as updates, coalesce(s.n_tup_hot_upd, 0) as hot_updates, \
  coalesce((select o.option_value::int8 from pg_options_to_table(c.reloptions) o where o.option_name = 'fillfactor'), 100) \
    as fillfactor, \
  exists (select from pg_locks l join pg_database d on d.oid = l.database and d.datname = current_database() \
    where l.relation = c.oid and l.mode = 'AccessExclusiveLock' and l.granted and l.pid is distinct from pg_backend_pid()) \
    as is_locked, \
  coalesce(s.last_analyze, s.last_autoanalyze) is not null \
    or exists (select from pg_stats p where p.schemaname = n.nspname and p.tablename = c.relname) as is_analysed, \
  array(select array_to_json(array(select quote_ident(a.attname) from unnest(k.conkey) with ordinality u(number, place) \
      join pg_attribute a on a.attrelid = k.conrelid and a.attnum = u.number order by u.place))::text \
    from pg_constraint k where k.conrelid = c.oid and k.contype = 'f' order by k.conname) as foreign_keys \
from (select oid from family union select oid from referring) t join pg_class c on c.oid = t.oid \
  join pg_namespace n on n.oid = c.relnamespace left join pg_stat_user_tables s on s.relid = c.oid \
where c.relkind in ('r', 'p', 'm') order by n.nspname, c.relname";

/// The indexes of the tables `$1`. A role without `pg_read_all_stats` does not see which index another role builds, so any
/// that is built in this database counts.
const INDEXES_SQL: &str = "\
select x.indrelid::int8 as oid, n.nspname::text as schema, i.relname::text as name, m.amname::text as method, \
  array(select pg_get_indexdef(x.indexrelid, k, false) from generate_series(1, x.indnkeyatts::int4) k order by k) as texts, \
  array(select x.indkey[k] = 0 from generate_series(0, x.indnkeyatts - 1) k order by k) as expressions, \
  array(select x.indclass[k]::int8 from generate_series(0, x.indnkeyatts - 1) k order by k) as classes, \
  array(select x.indcollation[k]::int8 from generate_series(0, x.indnkeyatts - 1) k order by k) as collations, \
  array(select x.indoption[k]::int4 from generate_series(0, x.indnkeyatts - 1) k order by k) as options, \
  array(select a.attoptions::text from generate_series(1, x.indnkeyatts::int4) k \
    left join pg_attribute a on a.attrelid = x.indexrelid and a.attnum = k order by k) as parameters, \
  array(select pg_get_indexdef(x.indexrelid, k, false) from generate_series(x.indnkeyatts + 1, x.indnatts::int4) k order by k) \
    as included, \
  pg_get_expr(x.indpred, x.indrelid) as predicate, x.indisunique as is_unique, not x.indimmediate as is_deferrable, \
  coalesce((to_jsonb(x) ->> 'indnullsnotdistinct')::bool, false) as nulls_are_equal, \
  case when m.amname not in ('btree', 'hash') then i.reloptions::text end as method_parameters, \
  exists (select from pg_constraint k where k.conindid = x.indexrelid) as is_of_constraint, \
  x.indisreplident as is_replica_identity, x.indisclustered as is_clustered, i.relkind = 'I' as is_partitioned, \
  array(select p.inhrelid::int8 from pg_inherits p where i.relkind = 'I' and p.inhparent = x.indrelid and not exists ( \
    select from pg_inherits c join pg_index of_part on of_part.indexrelid = c.inhrelid \
    where c.inhparent = x.indexrelid and of_part.indrelid = p.inhrelid) order by p.inhrelid) as unattached, \
  i.relispartition as is_attached, x.indisvalid and x.indisready and x.indislive as is_valid, \
  exists (select from pg_stat_progress_create_index p where p.datname = current_database() \
    and coalesce(p.relid, x.indrelid) = x.indrelid) as is_being_built, \
  i.relpages::int8 * current_setting('block_size')::int8 as bytes, coalesce(s.idx_scan, 0) as scans \
from pg_index x join pg_class i on i.oid = x.indexrelid join pg_namespace n on n.oid = i.relnamespace \
  join pg_am m on m.oid = i.relam left join pg_stat_user_indexes s on s.indexrelid = x.indexrelid \
where x.indrelid = any($1::int8[]::oid[]) order by x.indrelid, i.relname";

/// A crash resets the counters of all databases, and with them those of the background writer. A logical subscriber reads
/// no index here.
const SERVER_SQL: &str = "\
select extract(epoch from now() - greatest(d.stats_reset, b.stats_reset))::float8 as counted_for, \
  exists (select from pg_replication_slots where slot_type = 'physical') \
    or exists (select from pg_stat_replication r where not exists ( \
      select from pg_replication_slots s where s.active_pid = r.pid and s.slot_type = 'logical')) as has_standby \
from pg_stat_database d cross join pg_stat_bgwriter b where d.datname = current_database()";

/// Reads the tables with the oids of `named`, which say what of the configuration names them, those that are parts of them,
/// and those that refer to them.
///
/// # Errors
/// Those of the statements.
pub async fn read_facts(
    connection: &mut PgConnection,
    named: &BTreeMap<u32, Place>,
) -> Result<Facts, SourceError> {
    let oids: Vec<i64> = named.keys().map(|&oid| i64::from(oid)).collect();
    let rows = sqlx::query(TABLES_SQL)
        .persistent(false)
        .bind(oids)
        .fetch_all(&mut *connection)
        .await?;
    let mut tables = Vec::with_capacity(rows.len());
    let mut locked = Vec::new();
    for row in &rows {
        let table = table(row, named)?;
        if row.try_get("is_locked")? {
            locked.push(table.name);
        } else {
            tables.push(table);
        }
    }
    let oids: Vec<i64> = tables
        .iter()
        .map(|table| i64::from(table.name.oid))
        .collect();
    let rows = sqlx::query(INDEXES_SQL)
        .persistent(false)
        .bind(oids)
        .fetch_all(&mut *connection)
        .await?;
    let mut indexes: HashMap<u32, Vec<IndexFacts>> = HashMap::new();
    for row in &rows {
        let of_table = indexes.entry(oid(row, "oid")?).or_default();
        of_table.push(index(row)?);
    }
    for table in &mut tables {
        table.indexes = indexes.remove(&table.name.oid).unwrap_or_default();
    }
    let server = sqlx::query(SERVER_SQL)
        .persistent(false)
        .fetch_one(connection)
        .await?;
    let counted_for: Option<f64> = server.try_get("counted_for")?;
    Ok(Facts {
        tables,
        locked,
        counted_for: Duration::try_from_secs_f64(counted_for.unwrap_or_default())
            .unwrap_or_default(),
        has_standby: server.try_get("has_standby")?,
    })
}

fn table(row: &PgRow, named: &BTreeMap<u32, Place>) -> Result<TableFacts, SourceError> {
    let root: Option<i64> = row.try_get("root")?;
    let root = root.and_then(|root| u32::try_from(root).ok());
    let foreign_keys: Vec<String> = row.try_get("foreign_keys")?;
    let columns = |json: &String| serde_json::from_str(json).unwrap_or_default();
    Ok(TableFacts {
        name: table_name(row)?,
        kind: character(row, "kind")?,
        place: root.and_then(|root| named.get(&root)).cloned(),
        live_rows: row.try_get("live")?,
        dead_rows: row.try_get("dead")?,
        updates: row.try_get("updates")?,
        hot_updates: row.try_get("hot_updates")?,
        fillfactor: row.try_get("fillfactor")?,
        is_analysed: row.try_get("is_analysed")?,
        foreign_keys: foreign_keys.iter().map(columns).collect(),
        indexes: Vec::new(),
    })
}

fn index(row: &PgRow) -> Result<IndexFacts, SourceError> {
    let bytes: i64 = row.try_get("bytes")?;
    let unattached: Vec<i64> = row.try_get("unattached")?;
    let unattached = unattached.into_iter();
    Ok(IndexFacts {
        schema: row.try_get("schema")?,
        name: row.try_get("name")?,
        method: row.try_get("method")?,
        columns: columns(row)?,
        included: row.try_get("included")?,
        predicate: row.try_get("predicate")?,
        is_unique: row.try_get("is_unique")?,
        is_deferrable: row.try_get("is_deferrable")?,
        nulls_are_equal: row.try_get("nulls_are_equal")?,
        parameters: row.try_get("method_parameters")?,
        is_of_constraint: row.try_get("is_of_constraint")?,
        is_replica_identity: row.try_get("is_replica_identity")?,
        is_clustered: row.try_get("is_clustered")?,
        is_partitioned: row.try_get("is_partitioned")?,
        unattached: unattached
            .filter_map(|oid| u32::try_from(oid).ok())
            .collect(),
        is_attached: row.try_get("is_attached")?,
        is_valid: row.try_get("is_valid")?,
        is_being_built: row.try_get("is_being_built")?,
        bytes: u64::try_from(bytes).unwrap_or_default(),
        scans: row.try_get("scans")?,
    })
}

fn columns(row: &PgRow) -> Result<Vec<KeyColumn>, SourceError> {
    let texts: Vec<String> = row.try_get("texts")?;
    let expressions: Vec<bool> = row.try_get("expressions")?;
    let classes: Vec<i64> = row.try_get("classes")?;
    let collations: Vec<i64> = row.try_get("collations")?;
    let options: Vec<i32> = row.try_get("options")?;
    let parameters: Vec<Option<String>> = row.try_get("parameters")?;
    let names = texts.into_iter().zip(expressions);
    let kinds = classes.into_iter().zip(collations);
    let details = options.into_iter().zip(parameters);
    let columns = names.zip(kinds).zip(details);
    let columns = columns.map(
        |(((text, is_expression), (operator_class, collation)), (options, parameters))| KeyColumn {
            text,
            is_expression,
            operator_class,
            parameters,
            collation,
            options,
        },
    );
    Ok(columns.collect())
}
