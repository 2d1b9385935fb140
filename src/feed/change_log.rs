//! The SQL of a pass: what committed since a position, mapped to documents, in one snapshot.
//!
//! Which transactions are new is decided by snapshots, never by the order of numbers: a row counts if its transaction
//! was not visible in the old position and is now. Keys that are not documents' are mapped in the same statement. That
//! is exact: of the rows on a document's way take the topmost that differs between the two snapshots; what is above it
//! is equal in both, and its transaction logged its old and its new parent.
//!
//! A transaction that was prepared before a crash has lost its rows of the log. So `larder.epoch` names those that were
//! prepared when it began: where one has become visible, nothing that was known before counts (`tests/model`, module
//! `prepared`).
//!
//! A new partition or a trigger that was disabled for a while logs nothing: see `definition`. The snapshot of a pass
//! gives the remainder of what freshness rests on, and where the pass judges, its fingerprints.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::TryStreamExt;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::feed::Change;
use crate::feed::definition::{Definitions, Fingerprints, Remainder, fingerprints_sql, pairs};
use crate::feed::position::{Position, contains_sql};
use crate::feed::ranges::{OPEN, range_sql};
use crate::feed::touched::{Cut, KEYS_MAX, Touched};
use crate::resource::link::{Link, Said, Way, links, sql_literal};
use crate::resource::proof::{PROOF, Proved};
use crate::resource::row_security::{RowSecurity, unchanged_sql};
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;

/// Settings of the connection that passes run on. A log that was never analysed misleads the planner: measured, 62 to
/// 70 ms a pass without these, 0.15 to 0.35 ms with them. A lock on a table that a pass joins ends the statement, and
/// the pass goes on without that table. Heartbeats and pruning need not outlive a crash, which begins a new epoch, and passes
/// must not wait for their reaching the disk.
pub(super) const SETTINGS: [(&str, &str); 7] = [
    ("synchronous_commit", "off"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("statement_timeout", "4s"),
    ("lock_timeout", "50ms"),
    ("idle_in_transaction_session_timeout", "30s"),
];

/// What one pass read.
#[derive(Debug)]
pub(super) struct Read {
    /// The snapshot that it read in.
    pub(super) position: Position,
    /// The log still reaches back to the old position, and it is the same log.
    pub(super) valid: bool,
    /// The database's nonce; `None` after a crash.
    pub(super) nonce: Option<String>,
    /// What no mark tells of.
    pub(super) remainder: String,
    /// Where the pass judges.
    pub(super) fingerprints: Option<Fingerprints>,
    pub(super) changes: Vec<Change>,
    /// The server process that answered.
    pub(super) process: i32,
}

/// How much a statement of a pass reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Map what is in the log to documents; else find out only whether there is anything new in it.
    pub(super) changes: bool,
    /// Fingerprints of the resources, too.
    pub(super) fingerprints: bool,
}

impl Extent {
    const ALL: [Self; 4] = [
        Self::new(false, false),
        Self::new(false, true),
        Self::new(true, false),
        Self::new(true, true),
    ];

    const fn new(changes: bool, fingerprints: bool) -> Self {
        Self {
            changes,
            fingerprints,
        }
    }

    /// Its place in [`Extent::ALL`].
    fn number(self) -> usize {
        2 * usize::from(self.changes) + usize::from(self.fingerprints)
    }
}

/// How what is in the log leads to documents: common tables, and the arms that read them.
#[derive(Clone, Debug)]
struct Mapping {
    tables: String,
    arms: String,
    /// A condition on the row security of the tables that the arms read.
    unchanged: String,
    /// SQL for the remainder.
    remainder: String,
}

/// Which keys a pass names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    /// All.
    All,
    /// Those of ASCII; another one stands for all documents of its resource. A database that is not in UTF-8 may hold
    /// keys that UTF-8 lacks.
    Ascii,
}

impl Mapping {
    fn sql(&self, extent: Extent, keys: Keys) -> Proved {
        let key = match keys {
            Keys::All => "t.key",
            Keys::Ascii => "case when t.key !~ '[^\\x01-\\x7f]' then t.key end",
        };
        // Whether there is anything new, though it may lead to no document.
        let new = "exists (select from larder.change where xid >= pg_snapshot_xmax(s.old)) \
            or exists (select from larder.change where xid = any(array(select pg_snapshot_xip(s.old))))";
        let (fingerprints, hashes, from) = if extent.fingerprints {
            (
                format!(
                    ", f as materialized ({})",
                    fingerprints_sql(["$2", "$3", "$4"])
                ),
                "f.hashes, f.resources",
                "s cross join f",
            )
        } else {
            (
                String::new(),
                "null::text[] as hashes, null::int4[] as resources",
                "s",
            )
        };
        let (tables, new, arms) = if extent.changes {
            (
                self.tables.as_str(),
                "false",
                format!(
                    " union all select null, null, null, null, null, null, null, null, t.path, t.resource::int4, {key} \
                 from ({}) t (path, resource, key){}",
                    self.arms, self.unchanged
                ),
            )
        } else {
            ("", new, String::new())
        };
        Proved::new(&format!(
            "with s as materialized (select pg_current_snapshot() as now, $1::text::pg_snapshot as old, \
               (select snapshot from larder.horizon) as horizon, e.nonce, e.prepared \
               from (select) one left join larder.epoch e on true){tables}{fingerprints} \
             select s.now::text as now, s.nonce::text as nonce, {hashes}, {remainder} as remainder, \
               {PROOF} as proof, coalesce({reaches_back} and pg_snapshot_xmax(s.old) <= pg_snapshot_xmax(s.now), false) \
               and not exists (select from unnest(s.prepared) x where pg_visible_in_snapshot(x, s.now) and not pg_visible_in_snapshot(x, s.old)) as valid, \
               {new} as new, null::int4 as path, null::int4 as resource, null::text as key \
             from {from}{arms}",
            remainder = self.remainder,
            reaches_back = contains_sql("s.old", "s.horizon"),
        ))
    }
}

/// The statements of a pass, and what the paths in its rows lead to.
#[derive(Clone, Debug)]
pub(super) struct PassQuery {
    /// In the order of [`Extent::ALL`].
    sql: [Proved; 4],
    mapping: Mapping,
    paths: Vec<Path>,
}

/// A path of the log, and the resources that it leads to. What is said of it has a number in a pass: that of the path
/// times four, and the place in [`Said::ALL`].
#[derive(Clone, Debug, Default)]
struct Path {
    /// Without an ending.
    name: String,
    /// The keys are those of these resources' documents, and its rows their roots.
    roots: Vec<ResourceId>,
    /// The keys are those of these resources' documents.
    children: Vec<ResourceId>,
    mapped: Vec<ResourceId>,
}

impl Path {
    fn is_direct(&self) -> bool {
        !(self.roots.is_empty() && self.children.is_empty())
    }

    /// Adds what a row of the log says, of all keys where it names none.
    ///
    /// A new root leaves every document as it was: its key is unique, so before it there was none. New rows below may
    /// belong to documents that are there.
    fn touch(&self, said: Said, key: Option<&str>, touched: &mut Touched) {
        for &resource in &self.roots {
            match key {
                Some(key) if !said.range => touched.add_key(resource, key.to_owned(), Cut::No),
                _ if said.range && said.new => touched.add_absences(resource),
                Some(range) => touched.add_range(resource, range),
                None => touched.add_all(resource),
            }
        }
        for &resource in &self.children {
            match key {
                Some(key) if !said.range => touched.add_key(resource, key.to_owned(), Cut::No),
                Some(range) => touched.add_range(resource, range),
                None => touched.add_all(resource),
            }
        }
        if key.is_none() {
            let mapped = self.mapped.iter();
            mapped.for_each(|&resource| touched.add_all(resource));
        }
    }
}

impl PassQuery {
    /// A pass over `resources`. `$1` is the old position, `$2` to `$4` are what is watched.
    ///
    /// One row tells of the pass, the others each of a change: keys that are documents' come once for each path,
    /// however many resources share it; mapped keys come for their resource. The tables of those in `locked` are not
    /// asked: whatever leads through them stands for all documents of its resource.
    pub(super) fn new(
        resources: &[(ResourceId, Arc<Resource>)],
        remainder: &Remainder,
        locked: &BTreeSet<ResourceId>,
    ) -> Self {
        let mut paths: Vec<Path> = Vec::new();
        let mut arms = Vec::new();
        let mut row_security = Vec::new();
        for (id, resource) in resources {
            for (place, link) in links(resource).into_iter().enumerate() {
                let name = link.path();
                let number = paths.iter().position(|known| known.name == name);
                let number = number.unwrap_or_else(|| {
                    paths.push(Path {
                        name,
                        ..Path::default()
                    });
                    paths.len() - 1
                });
                let path = &mut paths[number];
                match &link.way {
                    Way::Key if place == 0 => path.roots.push(*id),
                    Way::Key => path.children.push(*id),
                    Way::Mapped { select } => {
                        path.mapped.push(*id);
                        let is_locked = locked.contains(id);
                        arms.push(whole_arm(&link, *id, is_locked));
                        if !is_locked {
                            arms.push(mapped_arm(select, *id));
                            row_security.extend(&resource.row_security);
                        }
                    }
                }
            }
        }
        let values: Vec<String> = paths.iter().enumerate().flat_map(values_sql).collect();
        let values = if values.is_empty() {
            "(null::text, null::int4, null::bool)".into()
        } else {
            values.join(", ")
        };
        let (range_tables, direct_arms) = direct_sql();
        arms.push(direct_arms);
        arms.push(
            "select distinct w.number, null::int4, null::text from c join w on w.path = c.path where c.key is null"
                .into(),
        );
        let mapping = Mapping {
            tables: format!(
                ", c as materialized ( \
                   select path, key from larder.change where xid >= pg_snapshot_xmax($1::text::pg_snapshot) \
                   union select path, key from larder.change \
                     where xid = any(array(select pg_snapshot_xip($1::text::pg_snapshot)))), \
                 w (path, number, direct) as (values {values}), \
                 d as materialized (select w.number as path, c.key from c join w on w.path = c.path \
                   where w.direct and c.key is not null){range_tables}"
            ),
            arms: arms.join(" union all "),
            unchanged: unchanged_sql(RowSecurity::union(row_security).as_ref()),
            remainder: remainder.sql(),
        };
        Self {
            sql: Extent::ALL.map(|extent| mapping.sql(extent, Keys::All)),
            mapping,
            paths,
        }
    }

    /// Adds what a row says under this number.
    fn touch(&self, number: i32, key: Option<&str>, touched: &mut Touched) {
        let Ok(number) = usize::try_from(number) else {
            return;
        };
        let said = Said::ALL[number % Said::ALL.len()];
        if let Some(path) = self.paths.get(number / Said::ALL.len()) {
            path.touch(said, key, touched);
        }
    }
}

/// The rows of `w` for a path: one for each thing that can be said of it.
fn values_sql((number, path): (usize, &Path)) -> impl Iterator<Item = String> {
    let said = Said::ALL.into_iter().enumerate();
    said.map(move |(place, said)| {
        format!(
            "({}, {}, {})",
            sql_literal(&format!("{}{}", path.name, said.ending())),
            number * Said::ALL.len() + place,
            path.is_direct()
        )
    })
}

/// All documents of the resource, where the log has ranges of `link`'s texts, which no index can map; or, where a table
/// on the way `is_locked`, has anything of it.
fn whole_arm(link: &Link, resource: ResourceId, is_locked: bool) -> String {
    let said = Said::ALL.into_iter().filter(|said| is_locked || said.range);
    let paths: Vec<String> = said.map(|said| sql_literal(&link.path_of(said))).collect();
    format!(
        "select distinct null::int4, {}, null::text from c where c.path in ({})",
        resource.index(),
        paths.join(", ")
    )
}

fn mapped_arm(select: &str, resource: ResourceId) -> String {
    format!(
        "(select null::int4 as path, {index} as resource, m.key from ({select}) m limit {limit})",
        index = resource.index(),
        limit = KEYS_MAX + 1
    )
}

/// The texts that are documents' keys, and ranges of them, in `d`: as they are, or where they are too many as ranges,
/// or as all of their paths. Common tables behind `d`, and the arms.
fn direct_sql() -> (String, String) {
    let rows = |table: &str| {
        format!(
            "select {table}.path, null::int4, {table}.key from {table} where (select count(*) from {table}) <= {KEYS_MAX}"
        )
    };
    let mut tables = String::new();
    let mut arms = vec![rows("d")];
    let mut last = "d".to_owned();
    for open in OPEN {
        let table = format!("d{open}");
        // In `Said::ALL` a range follows its key.
        tables.push_str(&format!(
            ", {table} as materialized (select distinct d.path / 2 * 2 + 1 as path, \
               case d.path % 2 when 0 then {range} else d.key end as key \
             from d where (select count(*) from {last}) > {KEYS_MAX})",
            range = range_sql("d.key", &format!("-{open}")),
        ));
        arms.push(rows(&table));
        last = table;
    }
    arms.push(format!(
        "select distinct {last}.path, null::int4, null::text from {last} where (select count(*) from {last}) > {KEYS_MAX}"
    ));
    (tables, arms.join(" union all "))
}

/// Reads a pass from `position`: what is new, and with `judge` the fingerprints. Where changes are `expected`, one
/// statement looks for them and maps them; else a shorter one looks whether there are any.
pub(super) async fn read(
    connection: &mut PgConnection,
    query: &PassQuery,
    definitions: &Definitions,
    position: &Position,
    judge: bool,
    expected: bool,
) -> Result<Read, SourceError> {
    let mut extent = Extent::new(expected, judge);
    if !expected {
        let sql = &query.sql[extent.number()];
        let reading = read_extent(connection, query, sql, definitions, position, extent);
        if let (read, false) = reading.await? {
            return Ok(read);
        }
        extent.changes = true;
    }
    let sql = &query.sql[extent.number()];
    let reading = read_extent(connection, query, sql, definitions, position, extent);
    let (read, _) = match reading.await {
        Err(error) if error.is_of_encoding() => {
            tracing::warn!(
                "larder.change has a key that is not valid UTF-8; the cache of its resource was emptied"
            );
            let sql = query.mapping.sql(extent, Keys::Ascii);
            read_extent(connection, query, &sql, definitions, position, extent).await?
        }
        outcome => outcome?,
    };
    Ok(read)
}

/// What a statement of this extent gives, and whether the log has more.
async fn read_extent(
    connection: &mut PgConnection,
    query: &PassQuery,
    sql: &Proved,
    definitions: &Definitions,
    position: &Position,
    extent: Extent,
) -> Result<(Read, bool), SourceError> {
    let watched = &definitions.watched;
    let mut statement = sqlx::query(AssertSqlSafe(sql.as_str())).bind(position.as_str());
    if extent.fingerprints {
        statement = statement
            .bind(&watched.resources)
            .bind(&watched.oids)
            .bind(&watched.named);
    }
    let mut rows = statement.fetch(connection);
    let mut read = None;
    let mut touched = Touched::default();
    while let Some(row) = rows.try_next().await? {
        if let Some(now) = row.try_get::<Option<&str>, _>("now")? {
            let proof = sql.proof().process(row.try_get("proof")?);
            let found = Read {
                process: proof.ok_or(SourceError::Pooler("another statement was answered"))?,
                position: Position::new(now),
                valid: row.try_get("valid")?,
                nonce: row.try_get("nonce")?,
                remainder: row.try_get("remainder")?,
                fingerprints: if extent.fingerprints {
                    Some(pairs(&row)?)
                } else {
                    None
                },
                changes: Vec::new(),
            };
            read = Some((found, row.try_get("new")?));
            continue;
        }
        let key: Option<String> = row.try_get("key")?;
        if let Some(number) = row.try_get::<Option<i32>, _>("path")? {
            query.touch(number, key.as_deref(), &mut touched);
        } else if let Ok(resource) = ResourceId::try_from(row.try_get::<i32, _>("resource")?) {
            match key {
                Some(key) => touched.add_key(resource, key, Cut::AtLimit),
                None => touched.add_all(resource),
            }
        }
    }
    let (read, more) = read.ok_or_else(|| SourceError::Unexpected("a pass gave no row".into()))?;
    let changes = touched.into_changes();
    Ok((Read { changes, ..read }, more))
}
