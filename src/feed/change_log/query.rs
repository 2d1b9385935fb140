//! The statements of a pass, made for the resources that are followed.
//!
//! Each is one `with` query. `s` is one row: the snapshot, the old position, horizon and epoch. `f` has the
//! fingerprints. `c` has the rows of the log that are new; `w` numbers their paths; `d` has the rows whose keys are
//! documents' keys. The branches of a `union all`, called arms here, read documents' keys from these tables, and map
//! the other keys by joins.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::feed::change_set::{ChangeSet, KEYS_MAX, RowLimit};
use crate::feed::definition::{Remainder, fingerprints_sql};
use crate::feed::position::contains_sql;
use crate::feed::ranges::{OPEN_LENGTHS, range_sql};
use crate::resource::link::{KeyMapping, Link, PathKind, links, sql_literal};
use crate::resource::proof::{PROOF, ProvedSql};
use crate::resource::row_security::{RowSecurity, unchanged_sql};
use crate::resource::{Resource, ResourceId};

/// How much a statement of a pass reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Map the new rows of the log to documents; otherwise find out only whether there are new rows.
    pub(super) changes: bool,
    /// Compute the fingerprints of the resources.
    pub(super) fingerprints: bool,
}

impl Extent {
    const ALL: [Self; 4] = [
        Self::new(false, false),
        Self::new(false, true),
        Self::new(true, false),
        Self::new(true, true),
    ];

    pub(super) const fn new(changes: bool, fingerprints: bool) -> Self {
        Self {
            changes,
            fingerprints,
        }
    }

    /// Its index in [`Extent::ALL`].
    fn index(self) -> usize {
        2 * usize::from(self.changes) + usize::from(self.fingerprints)
    }
}

/// SQL that maps the rows of the log to documents.
#[derive(Clone, Debug)]
struct Mapping {
    /// Common table expressions.
    tables: String,
    /// The arms that read those.
    arms: String,
    /// A condition on the row security of the tables that the arms join.
    row_security: String,
    /// An expression for the remainder.
    remainder: String,
}

/// Which keys a statement returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyFilter {
    All,
    /// Only keys in ASCII. Another key becomes null, which stands for all documents of its resource. A database that is
    /// not in UTF-8 may contain keys that can't be converted to UTF-8.
    AsciiOnly,
}

impl Mapping {
    fn sql(&self, extent: Extent, keys: KeyFilter) -> ProvedSql {
        let key = match keys {
            KeyFilter::All => "t.key",
            KeyFilter::AsciiOnly => "case when t.key !~ '[^\\x01-\\x7f]' then t.key end",
        };
        // Whether the log has new rows, though they may lead to no document.
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
                    self.arms, self.row_security
                ),
            )
        } else {
            ("", new, String::new())
        };
        ProvedSql::new(&format!(
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

/// The statements of a pass, and the resources that the paths in their rows lead to.
#[derive(Clone, Debug)]
pub(in crate::feed) struct PassQuery {
    /// In the order of [`Extent::ALL`].
    statements: [ProvedSql; 4],
    mapping: Mapping,
    paths: Vec<PathTargets>,
}

/// The resources that a path of the log leads to. In a pass, a path with one of its endings has a number: the index of
/// the path times four, plus the index in [`PathKind::ALL`].
#[derive(Clone, Debug, Default)]
struct PathTargets {
    /// The path without an ending.
    name: String,
    /// The logged keys are keys of documents of these resources, and the logged rows are the roots.
    roots: Vec<ResourceId>,
    /// The logged keys are keys of documents of these resources; the logged rows are below the roots.
    children: Vec<ResourceId>,
    /// The logged keys have to be mapped to documents of these resources.
    mapped: Vec<ResourceId>,
}

impl PathTargets {
    /// Whether logged keys are documents' keys of some resource.
    fn is_direct(&self) -> bool {
        !(self.roots.is_empty() && self.children.is_empty())
    }

    /// Adds the changes that a row of the log stands for. No key stands for all keys.
    ///
    /// A new root row changes no document, only absences: its key is unique, so there was no document. New rows below a
    /// root may belong to existing documents.
    fn add_changes(&self, kind: PathKind, key: Option<&str>, changes: &mut ChangeSet) {
        let roots = self.roots.iter().map(|resource| (*resource, true));
        let children = self.children.iter().map(|resource| (*resource, false));
        for (resource, is_root) in roots.chain(children) {
            match key {
                Some(key) if !kind.is_range => {
                    changes.add_key(resource, key.to_owned(), RowLimit::Unlimited);
                }
                _ if is_root && kind == PathKind::NEW_RANGE => changes.add_absences(resource),
                Some(range) => changes.add_range(resource, range),
                None => changes.add_all(resource),
            }
        }
        if key.is_none() {
            let mapped = self.mapped.iter();
            mapped.for_each(|&resource| changes.add_all(resource));
        }
    }
}

impl PassQuery {
    /// Statements for passes over `resources`. `$1` is the old position; `$2` to `$4` are the lists of the watched
    /// tables.
    ///
    /// The first row describes the pass, each other row a change. Keys that are documents' keys come once for each
    /// path, even if several resources share it; mapped keys come once for each resource. No table of a resource in
    /// `locked` is joined: a row of the log that would need the join stands for all documents of the resource.
    pub(in crate::feed) fn new(
        resources: &[(ResourceId, Arc<Resource>)],
        remainder: &Remainder,
        locked: &BTreeSet<ResourceId>,
    ) -> Self {
        let mut paths: Vec<PathTargets> = Vec::new();
        let mut arms = Vec::new();
        let mut row_security = Vec::new();
        for (id, resource) in resources {
            for (place, link) in links(resource).into_iter().enumerate() {
                let name = link.path();
                let number = paths.iter().position(|known| known.name == name);
                let number = number.unwrap_or_else(|| {
                    paths.push(PathTargets {
                        name,
                        ..PathTargets::default()
                    });
                    paths.len() - 1
                });
                let path = &mut paths[number];
                match &link.mapping {
                    KeyMapping::Direct if place == 0 => path.roots.push(*id),
                    KeyMapping::Direct => path.children.push(*id),
                    KeyMapping::Query { select, .. } => {
                        path.mapped.push(*id);
                        let is_locked = locked.contains(id);
                        arms.push(all_documents_arm(&link, *id, is_locked));
                        if !is_locked {
                            arms.push(mapped_arm(select, *id));
                            row_security.extend(&resource.row_security);
                        }
                    }
                }
            }
        }
        let values: Vec<String> = paths
            .iter()
            .enumerate()
            .flat_map(numbered_paths_sql)
            .collect();
        let values = if values.is_empty() {
            "(null::text, null::int4, null::bool)".into()
        } else {
            values.join(", ")
        };
        let (range_tables, direct_arms) = direct_keys_sql();
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
            row_security: unchanged_sql(RowSecurity::union(row_security).as_ref()),
            remainder: remainder.sql(),
        };
        Self {
            statements: Extent::ALL.map(|extent| mapping.sql(extent, KeyFilter::All)),
            mapping,
            paths,
        }
    }

    /// The statement that reads `extent`.
    pub(super) fn statement(&self, extent: Extent) -> &ProvedSql {
        &self.statements[extent.index()]
    }

    /// The same, for a database whose log contains a key that can't be converted to UTF-8.
    pub(super) fn ascii_statement(&self, extent: Extent) -> ProvedSql {
        self.mapping.sql(extent, KeyFilter::AsciiOnly)
    }

    /// Adds the changes that a row stands for whose path has this number.
    pub(super) fn add_changes(&self, number: i32, key: Option<&str>, changes: &mut ChangeSet) {
        let Ok(number) = usize::try_from(number) else {
            return;
        };
        let kind = PathKind::ALL[number % PathKind::ALL.len()];
        if let Some(path) = self.paths.get(number / PathKind::ALL.len()) {
            path.add_changes(kind, key, changes);
        }
    }
}

/// The rows of `w` for a path, one for each of its endings.
fn numbered_paths_sql((number, path): (usize, &PathTargets)) -> impl Iterator<Item = String> {
    let kinds = PathKind::ALL.into_iter().enumerate();
    kinds.map(move |(place, kind)| {
        format!(
            "({}, {}, {})",
            sql_literal(&format!("{}{}", path.name, kind.ending())),
            number * PathKind::ALL.len() + place,
            path.is_direct()
        )
    })
}

/// An arm that returns "all documents of the resource" if the log has ranges of the link's keys, since no index can map
/// those; if a table of the resource `is_locked`, for any row of the link.
fn all_documents_arm(link: &Link, resource: ResourceId, is_locked: bool) -> String {
    let kinds = PathKind::ALL
        .into_iter()
        .filter(|kind| is_locked || kind.is_range);
    let paths: Vec<String> = kinds.map(|kind| sql_literal(&link.path_of(kind))).collect();
    format!(
        "select distinct null::int4, {}, null::text from c where c.path in ({})",
        resource.index(),
        paths.join(", ")
    )
}

/// An arm that maps logged keys to keys of documents. One row more than the limit shows that there are more.
fn mapped_arm(select: &str, resource: ResourceId) -> String {
    format!(
        "(select null::int4 as path, {index} as resource, m.key from ({select}) m limit {limit})",
        index = resource.index(),
        limit = KEYS_MAX + 1
    )
}

/// Common table expressions after `d`, and arms that return the keys and ranges in `d`: as they are; if there are too
/// many, as ranges, then as larger ranges, then as "all documents" of their paths.
fn direct_keys_sql() -> (String, String) {
    let rows = |table: &str| {
        format!(
            "select {table}.path, null::int4, {table}.key from {table} where (select count(*) from {table}) <= {KEYS_MAX}"
        )
    };
    let mut tables = String::new();
    let mut arms = vec![rows("d")];
    let mut last = "d".to_owned();
    for open in OPEN_LENGTHS {
        let table = format!("d{open}");
        // In `PathKind::ALL` the range follows the key, so its number is the next odd one.
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
