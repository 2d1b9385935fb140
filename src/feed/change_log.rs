//! The SQL of a pass: what committed since a position, mapped to documents, in one snapshot.
//!
//! Which transactions are new is decided by snapshots, never by the order of numbers: a row counts if its transaction
//! was not visible in the old position and is now. Keys that are not documents' are mapped in the same statement. That
//! is exact: of the rows on a document's way take the topmost that differs between the two snapshots; what is above it
//! is equal in both, and its transaction logged its old and its new parent.
//!
//! The same snapshot gives the fingerprint of what freshness rests on: triggers, columns, partitions, larder's own
//! objects. A new partition or a trigger that was disabled for a while logs nothing, but it changes the fingerprint.

use std::collections::{HashMap, HashSet};

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row};

use crate::feed::Change;
use crate::feed::position::Position;
use crate::resource::Resource;
use crate::resource::link::{Way, links, sql_literal};
use crate::source::SourceError;

/// Keys that a pass reads for one resource on each way, repeated ones counted; more empty the resource.
const KEYS_MAX: usize = 100_000;

/// Settings of the connection that passes run on. A log that was never analysed misleads the planner: measured, 62 to
/// 70 ms a pass without these, 0.15 to 0.35 ms with them. A lock on a table that a pass joins ends the pass, not the
/// position that it began at.
pub(super) const SETTINGS: [(&str, &str); 6] = [
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("statement_timeout", "4s"),
    ("lock_timeout", "250ms"),
    ("idle_in_transaction_session_timeout", "30s"),
];

/// Which tables the freshness of each resource rests on: parallel lists for SQL.
#[derive(Clone, Debug, Default)]
pub(super) struct Watched {
    pub(super) resources: Vec<i32>,
    pub(super) oids: Vec<i64>,
}

/// One hash for each resource in `$1` over its tables in `$2`, in the order of the resources.
///
/// Schemas stand in it by name, since the SQL of documents and passes names them so, and renaming one touches no table.
/// `used` are the types that columns consist of, through arrays, ranges, domains and composite types; PostgreSQL's own, below
/// the first oid for others (`FirstNormalObjectId`), never change.
const FINGERPRINTS_SQL: &str = "\
with recursive used (oid, type) as ( \
  select a.attrelid, a.atttypid from pg_attribute a \
    where a.attrelid = any($2::int8[]::oid[]) and a.attnum > 0 and a.atttypid >= 16384 \
  union select u.oid, n.type from used u join pg_type t on t.oid = u.type cross join lateral ( \
    select t.typelem as type union all select t.typbasetype \
    union all select r.rngsubtype from pg_range r where r.rngtypid = t.oid \
    union all select r.rngtypid from pg_range r where r.rngmultitypid = t.oid \
    union all select a.atttypid from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0) n \
    where n.type >= 16384) \
select coalesce(array_agg(hash order by resource), '{}') as hashes, coalesce(array_agg(resource order by resource), '{}') as resources from ( \
  select w.resource, md5(string_agg(coalesce(l.line, 'gone ' || w.oid), ',' order by w.oid, l.line) || own.line) as hash \
  from unnest($1::int4[], $2::int8[]) as w (resource, oid) \
  left join ( \
    select c.oid::int8 as oid, format('c %s %s %s %s', c.oid, c.relfilenode, c.xmin, c.relnamespace::regnamespace) as line \
      from pg_class c where c.oid = any($2::int8[]::oid[]) \
    union all select t.tgrelid::int8, format('t %s %s %s %s', t.oid, t.tgenabled, t.tgfoid, t.xmin) \
      from pg_trigger t where t.tgrelid = any($2::int8[]::oid[]) and not t.tgisinternal \
    union all select a.attrelid::int8, format('a %s %s', a.attnum, a.xmin) \
      from pg_attribute a where a.attrelid = any($2::int8[]::oid[]) and a.attnum > 0 \
    union all select i.inhparent::int8, format('i %s %s', i.inhrelid, i.xmin) \
      from pg_inherits i where i.inhparent = any($2::int8[]::oid[]) \
    union all select p.polrelid::int8, format('r %s %s', p.oid, p.xmin) \
      from pg_policy p where p.polrelid = any($2::int8[]::oid[]) \
    union all select u.oid::int8, format('y %s %s %s', t.oid, t.xmin, t.typnamespace::regnamespace) from used u join pg_type t on t.oid = u.type \
    union all select u.oid::int8, format('e %s %s', e.oid, e.xmin) from used u join pg_enum e on e.enumtypid = u.type \
    union all select u.oid::int8, format('m %s %s %s', a.attrelid, a.attnum, a.xmin) \
      from used u join pg_type t on t.oid = u.type join pg_attribute a on a.attrelid = t.typrelid and a.attnum > 0 \
  ) l on l.oid = w.oid \
  cross join (select coalesce(string_agg(line, ',' order by line), '') as line from ( \
    select format('o %s %s %s', c.relname, c.oid, c.relfilenode) as line from pg_class c \
      where c.relnamespace = (select oid from pg_namespace where nspname = 'larder') and c.relkind = 'r' \
    union all select format('p %s %s', p.oid, p.xmin) from pg_proc p \
      where p.oid in (select t.tgfoid from pg_trigger t where t.tgrelid = any($2::int8[]::oid[]) and not t.tgisinternal) \
  ) o) own \
  group by w.resource, own.line) h";

/// The fingerprints of the watched resources: resource and hash.
pub(super) async fn fingerprints(
    connection: &mut PgConnection,
    watched: &Watched,
) -> Result<Vec<(usize, String)>, SourceError> {
    let row = sqlx::query(FINGERPRINTS_SQL)
        .bind(&watched.resources)
        .bind(&watched.oids)
        .fetch_one(connection)
        .await?;
    pairs(&row)
}

fn pairs(row: &PgRow) -> Result<Vec<(usize, String)>, SourceError> {
    let resources: Vec<i32> = row.try_get("resources")?;
    let hashes: Vec<String> = row.try_get("hashes")?;
    let resources = resources
        .into_iter()
        .map(|index| usize::try_from(index).unwrap_or(usize::MAX));
    Ok(resources.zip(hashes).collect())
}

/// What one pass read.
#[derive(Debug)]
pub(super) struct Read {
    /// The snapshot that it read in.
    pub(super) position: Position,
    /// The log still reaches back to the old position, and it is the same log.
    pub(super) valid: bool,
    /// The database's nonce; `None` after a crash.
    pub(super) nonce: Option<String>,
    pub(super) fingerprints: Vec<(usize, String)>,
    pub(super) changes: Vec<Change>,
}

/// The statement of a pass over `resources`, each with its index. `$3` is the old position.
pub(super) fn pass_sql(resources: &[(usize, &Resource)]) -> String {
    let limit = KEYS_MAX + 1;
    let mut all = Vec::new();
    let mut arms = Vec::new();
    for (index, resource) in resources {
        let mut direct = Vec::new();
        for link in links(resource) {
            let path = sql_literal(&link.path());
            match link.way {
                Way::Key => direct.push(path.clone()),
                Way::Mapped { select } => {
                    arms.push(format!(
                        "(select {index} as resource, m.key from ({select}) m limit {limit})"
                    ));
                }
            }
            all.push(format!("({path}, {index})"));
        }
        if !direct.is_empty() {
            arms.push(format!(
                "(select {index} as resource, c.key from c where c.path in ({}) and c.key is not null limit {limit})",
                direct.join(", ")
            ));
        }
    }
    if !all.is_empty() {
        arms.push(format!(
            "select distinct w.resource, null::text as key from c \
             join (values {}) as w (path, resource) on w.path = c.path where c.key is null",
            all.join(", ")
        ));
    }
    if arms.is_empty() {
        arms.push("(select 0 as resource, null::text as key where false)".into());
    }
    format!(
        "with s as materialized (select pg_current_snapshot() as now, $3::text::pg_snapshot as old, \
           (select xid from larder.horizon) as horizon, (select nonce from larder.epoch) as nonce), \
         c as materialized ( \
           select path, key from larder.change where xid >= pg_snapshot_xmax($3::text::pg_snapshot) \
           union select path, key from larder.change \
             where xid = any(array(select pg_snapshot_xip($3::text::pg_snapshot)))), \
         f as materialized ({FINGERPRINTS_SQL}), \
         t as ({}) \
         select s.now::text as now, s.nonce::text as nonce, f.hashes, f.resources, \
           coalesce(s.horizon <= pg_snapshot_xmin(s.old) and pg_snapshot_xmax(s.old) <= pg_snapshot_xmax(s.now), false) as valid, \
           t.resource::int4 as resource, t.key \
         from s cross join f left join t on true",
        arms.join(" union all ")
    )
}

/// Runs a pass from `position`.
pub(super) async fn read(
    connection: &mut PgConnection,
    pass_sql: &str,
    watched: &Watched,
    position: &Position,
) -> Result<Read, SourceError> {
    let rows = sqlx::query(AssertSqlSafe(pass_sql))
        .bind(&watched.resources)
        .bind(&watched.oids)
        .bind(position.as_str())
        .fetch_all(connection)
        .await?;
    let Some(first) = rows.first() else {
        return Err(SourceError::Unexpected("a pass gave no row".into()));
    };
    let mut read = Read {
        position: Position::new(first.try_get("now")?),
        valid: first.try_get("valid")?,
        nonce: first.try_get("nonce")?,
        fingerprints: pairs(first)?,
        changes: Vec::new(),
    };
    for row in &rows {
        if let Some(resource) = row.try_get::<Option<i32>, _>("resource")? {
            read.changes.push(Change {
                resource: usize::try_from(resource).unwrap_or(usize::MAX),
                key: row.try_get("key")?,
            });
        }
    }
    read.changes = bounded(read.changes);
    Ok(read)
}

/// Each change once; where a resource is touched whole, or a way was cut at its limit, one stands for all.
///
/// Rows are counted before repeated keys go: a way that reached its limit may hide keys, however few it showed.
fn bounded(changes: Vec<Change>) -> Vec<Change> {
    let mut counts = HashMap::new();
    for change in &changes {
        let count = counts.entry(change.resource).or_insert(0_usize);
        *count = match change.key {
            None => usize::MAX,
            Some(_) => count.saturating_add(1),
        };
    }
    let whole = |resource: &usize| counts[resource] > KEYS_MAX;
    let mut kept: HashSet<Change> = counts
        .keys()
        .filter(|resource| whole(resource))
        .map(|&resource| Change {
            resource,
            key: None,
        })
        .collect();
    kept.extend(
        changes
            .into_iter()
            .filter(|change| !whole(&change.resource)),
    );
    kept.into_iter().collect()
}
