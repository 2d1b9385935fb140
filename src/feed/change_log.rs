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

use futures_util::TryStreamExt;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row};

use crate::feed::Change;
use crate::feed::position::Position;
use crate::resource::Resource;
use crate::resource::link::{Way, links, sql_literal};
use crate::source::SourceError;

/// Documents of one resource that a pass names, at most, and rows that it reads of the keys that are documents' and of
/// each way that is mapped; more empty the resources concerned.
const KEYS_MAX: usize = 100_000;

/// Documents of all resources that a pass names, at most; more empty each resource that was touched.
const CHANGES_MAX: usize = 1_000_000;

/// Settings of the connection that passes run on. A log that was never analysed misleads the planner: measured, 62 to
/// 70 ms a pass without these, 0.15 to 0.35 ms with them. A lock on a table that a pass joins ends the pass, not the
/// position that it began at. Heartbeats and pruning need not outlive a crash, which begins a new epoch, and passes
/// must not wait for their reaching the disk.
pub(super) const SETTINGS: [(&str, &str); 7] = [
    ("synchronous_commit", "off"),
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
/// `used` are the types that columns consist of, through arrays, ranges, domains and composite types; PostgreSQL's own,
/// below the first oid for others (`FirstNormalObjectId`), never change.
const FINGERPRINTS_SQL: &str = "\
with recursive used (oid, type) as ( \
  select a.attrelid, a.atttypid from pg_attribute a \
    where a.attrelid = any($2::int8[]::oid[]) and a.attnum > 0 and a.atttypid >= 16384 \
  union select u.oid, n.type from used u join pg_type t on t.oid = u.type cross join lateral ( \
    select t.typelem as type union all select t.typbasetype \
    union all select r.rngsubtype from pg_range r where r.rngtypid = t.oid \
    union all select r.rngtypid from pg_range r where r.rngmultitypid = t.oid \
    union all select a.atttypid from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0) n \
    where n.type >= 16384), \
own as materialized (select md5(coalesce(string_agg(line, ',' order by line), '')) as hash from ( \
    select format('o %s %s %s', c.relname, c.oid, c.relfilenode) as line from pg_class c \
      where c.relnamespace = (select oid from pg_namespace where nspname = 'larder') and c.relkind = 'r' \
    union all select format('p %s %s', p.oid, p.xmin) from pg_proc p \
      where p.oid in (select t.tgfoid from pg_trigger t where t.tgrelid = any($2::int8[]::oid[]) and not t.tgisinternal) \
  ) o) \
select coalesce(array_agg(hash order by resource), '{}') as hashes, coalesce(array_agg(resource order by resource), '{}') as resources from ( \
  select w.resource, md5(string_agg(coalesce(l.line, 'gone ' || w.oid), ',' order by w.oid, l.line) || (select own.hash from own)) as hash \
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
  group by w.resource) h";

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

/// The statement of a pass, and what the paths in its rows lead to.
#[derive(Clone, Debug)]
pub(super) struct PassQuery {
    sql: String,
    /// By number of a path: the resources whose documents' keys are logged under it.
    direct: Vec<Vec<usize>>,
    /// By number of a path: all resources that it leads to.
    all: Vec<Vec<usize>>,
}

impl PassQuery {
    /// A pass over `resources`, each with its index. `$1` and `$2` are what is watched, `$3` is the old position.
    ///
    /// The first row tells of the pass, the others each of a change: keys that are documents' come once for each path,
    /// however many resources share it; mapped keys come for their resource.
    pub(super) fn new(resources: &[(usize, &Resource)]) -> Self {
        let mut paths: Vec<String> = Vec::new();
        let mut direct: Vec<Vec<usize>> = Vec::new();
        let mut all: Vec<Vec<usize>> = Vec::new();
        let mut arms = Vec::new();
        for (index, resource) in resources {
            for link in links(resource) {
                let path = link.path();
                let number = paths.iter().position(|known| *known == path);
                let number = number.unwrap_or_else(|| {
                    paths.push(path);
                    direct.push(Vec::new());
                    all.push(Vec::new());
                    paths.len() - 1
                });
                if !all[number].contains(index) {
                    all[number].push(*index);
                }
                match link.way {
                    Way::Key => direct[number].push(*index),
                    Way::Mapped { select } => arms.push(format!(
                        "(select null::int4 as path, {index} as resource, m.key from ({select}) m limit {limit})",
                        limit = KEYS_MAX + 1
                    )),
                }
            }
        }
        let values: Vec<String> = paths
            .iter()
            .zip(&direct)
            .enumerate()
            .map(|(number, (path, direct))| {
                format!("({}, {number}, {})", sql_literal(path), !direct.is_empty())
            })
            .collect();
        let values = match values.is_empty() {
            true => "(null::text, null::int4, null::bool)".into(),
            false => values.join(", "),
        };
        arms.push(format!(
            "select d.path, null::int4, d.key from d where (select count(*) from d) <= {KEYS_MAX} \
             union all select distinct d.path, null::int4, null::text from d where (select count(*) from d) > {KEYS_MAX} \
             union all select w.number, null::int4, null::text from c join w on w.path = c.path where c.key is null"
        ));
        let sql = format!(
            "with s as materialized (select pg_current_snapshot() as now, $3::text::pg_snapshot as old, \
               (select xid from larder.horizon) as horizon, (select nonce from larder.epoch) as nonce), \
             c as materialized ( \
               select path, key from larder.change where xid >= pg_snapshot_xmax($3::text::pg_snapshot) \
               union select path, key from larder.change \
                 where xid = any(array(select pg_snapshot_xip($3::text::pg_snapshot)))), \
             w (path, number, direct) as (values {values}), \
             d as materialized (select w.number as path, c.key from c join w on w.path = c.path \
               where w.direct and c.key is not null), \
             f as materialized ({FINGERPRINTS_SQL}) \
             select s.now::text as now, s.nonce::text as nonce, f.hashes, f.resources, \
               coalesce(s.horizon <= pg_snapshot_xmin(s.old) and pg_snapshot_xmax(s.old) <= pg_snapshot_xmax(s.now), false) as valid, \
               null::int4 as path, null::int4 as resource, null::text as key \
             from s cross join f \
             union all select null, null, null, null, null, t.path, t.resource::int4, t.key from ({}) t (path, resource, key)",
            arms.join(" union all ")
        );
        Self { sql, direct, all }
    }

    fn resources(&self, path: i32, key: Option<&String>) -> &[usize] {
        let by_number = match key {
            Some(_) => &self.direct,
            None => &self.all,
        };
        usize::try_from(path)
            .ok()
            .and_then(|number| by_number.get(number))
            .map_or(&[], Vec::as_slice)
    }
}

/// Runs a pass from `position`.
pub(super) async fn read(
    connection: &mut PgConnection,
    query: &PassQuery,
    watched: &Watched,
    position: &Position,
) -> Result<Read, SourceError> {
    let mut rows = sqlx::query(AssertSqlSafe(query.sql.as_str()))
        .bind(&watched.resources)
        .bind(&watched.oids)
        .bind(position.as_str())
        .fetch(connection);
    let mut read = None;
    let mut touched = Touched::default();
    while let Some(row) = rows.try_next().await? {
        if let Some(now) = row.try_get::<Option<&str>, _>("now")? {
            read = Some(Read {
                position: Position::new(now),
                valid: row.try_get("valid")?,
                nonce: row.try_get("nonce")?,
                fingerprints: pairs(&row)?,
                changes: Vec::new(),
            });
            continue;
        }
        let key: Option<String> = row.try_get("key")?;
        if let Some(path) = row.try_get::<Option<i32>, _>("path")? {
            for &resource in query.resources(path, key.as_ref()) {
                touched.add(resource, key.clone(), Cut::No);
            }
        } else {
            let resource = usize::try_from(row.try_get::<i32, _>("resource")?);
            touched.add(resource.unwrap_or(usize::MAX), key, Cut::AtLimit);
        }
    }
    let read = read.ok_or_else(|| SourceError::Unexpected("a pass gave no row".into()))?;
    Ok(Read {
        changes: touched.into_changes(),
        ..read
    })
}

/// Whether the rows of an arm may be fewer than there are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    No,
    AtLimit,
}

/// What a pass has found, each key once; a resource that is touched whole, or by too many keys, without them.
#[derive(Default)]
struct Touched {
    /// By resource; none where it is touched whole.
    keys: HashMap<usize, Option<HashSet<String>>>,
    /// Rows by resource that came out of arms with a limit, repeated keys counted: an arm that reached its limit may
    /// hide keys, however few it showed.
    rows: HashMap<usize, usize>,
    total: usize,
}

impl Touched {
    fn add(&mut self, resource: usize, key: Option<String>, cut: Cut) {
        let Some(keys) = self
            .keys
            .entry(resource)
            .or_insert_with(|| Some(HashSet::new()))
        else {
            return;
        };
        let Some(key) = key else {
            return self.touch_whole(resource);
        };
        let rows = self.rows.entry(resource).or_insert(0);
        *rows += usize::from(cut == Cut::AtLimit);
        let rows = *rows;
        self.total += usize::from(keys.insert(key));
        if rows > KEYS_MAX || keys.len() > KEYS_MAX {
            self.touch_whole(resource);
        }
        if self.total > CHANGES_MAX {
            for keys in self.keys.values_mut() {
                *keys = None;
            }
            self.total = 0;
        }
    }

    fn touch_whole(&mut self, resource: usize) {
        if let Some(Some(keys)) = self.keys.insert(resource, None) {
            self.total -= keys.len();
        }
    }

    fn into_changes(self) -> Vec<Change> {
        let mut changes = Vec::with_capacity(self.total);
        for (resource, keys) in self.keys {
            match keys {
                None => changes.push(Change {
                    resource,
                    key: None,
                }),
                Some(keys) => changes.extend(keys.into_iter().map(|key| Change {
                    resource,
                    key: Some(key),
                })),
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(touched: Touched) -> Vec<(usize, Option<String>)> {
        let changes = touched.into_changes().into_iter();
        let mut keys: Vec<_> = changes
            .map(|change| (change.resource, change.key))
            .collect();
        keys.sort();
        keys
    }

    #[test]
    fn each_key_comes_once_and_a_whole_resource_without_keys() {
        let mut touched = Touched::default();
        for (resource, key) in [
            (1, Some("a")),
            (1, Some("a")),
            (2, Some("b")),
            (2, None),
            (2, Some("c")),
        ] {
            touched.add(resource, key.map(str::to_owned), Cut::No);
        }
        assert_eq!(keys(touched), [(1, Some("a".to_owned())), (2, None)]);
    }

    #[test]
    fn repeated_keys_count_only_where_an_arm_may_have_been_cut() {
        for (cut, expected) in [(Cut::No, Some("a".to_owned())), (Cut::AtLimit, None)] {
            let mut touched = Touched::default();
            for _ in 0..=KEYS_MAX {
                touched.add(1, Some("a".to_owned()), cut);
            }
            touched.add(2, Some("b".to_owned()), cut);
            assert_eq!(keys(touched), [(1, expected), (2, Some("b".to_owned()))]);
        }
    }

    #[test]
    fn the_whole_is_bounded() {
        let mut touched = Touched::default();
        let resources = CHANGES_MAX / KEYS_MAX + 1;
        for resource in 0..resources {
            for key in 0..KEYS_MAX {
                touched.add(resource, Some(key.to_string()), Cut::No);
                assert!(touched.total <= CHANGES_MAX);
            }
        }
        let changes = touched.into_changes();
        assert!((0..resources - 1).all(|resource| changes.contains(&Change {
            resource,
            key: None
        })));
    }
}
