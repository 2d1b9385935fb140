//! The rules that compare indexes with each other and with their statistics: invalid-index, duplicate-index, prefix-index
//! and unused-index.

use std::time::Duration;

use crate::check::create::{NAME_BYTES_MAX, drop_statement};
use crate::check::facts::{Facts, IndexFacts, PlannedIndexes, TableFacts};
use crate::check::{Finding, Remedy, Rule, Severity};
use crate::resource::sql::identifier;

/// Statistics that have counted for less than this don't show that an index is unused.
const COUNTED_FOR_MIN: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Smaller indexes are not worth a finding.
const UNUSED_BYTES_MIN: u64 = 1 << 20;

/// The findings about the indexes of all tables, of which plans say what is `planned`.
pub fn findings(facts: &Facts, planned: &PlannedIndexes) -> Vec<Finding> {
    let mut findings = Vec::new();
    for table in &facts.tables {
        let mut dropped = Dropped::new(table, planned);
        let indexes = table.indexes.iter();
        let broken = indexes
            .clone()
            .filter(|index| is_broken(index) && !dropped.contains(index));
        let broken = broken.map(|index| invalid(table, index, &dropped));
        let mut of_table: Vec<Finding> = broken.collect();
        of_table.extend(indexes.filter_map(|index| unattached(facts, index)));
        if table.place.is_some() {
            of_table.extend(duplicates(table, &mut dropped));
            of_table.extend(prefixes(table, &mut dropped));
            of_table.extend(unused(facts, table, &mut dropped));
        }
        findings.extend(of_table.into_iter().map(|finding| Finding {
            place: table.place.clone(),
            ..finding
        }));
    }
    findings
}

/// The indexes of a table that are to be dropped, each with the one that will serve its statements, if it has any.
struct Dropped<'t> {
    indexes: Vec<(&'t IndexFacts, Option<&'t IndexFacts>)>,
    planned: &'t PlannedIndexes,
}

impl<'t> Dropped<'t> {
    /// Those that the findings of plans drop.
    fn new(table: &'t TableFacts, planned: &'t PlannedIndexes) -> Self {
        let indexes = table.indexes.iter();
        let dropped = indexes.filter(|index| index.is_in(&planned.dropped));
        Self {
            indexes: dropped.map(|index| (index, None)).collect(),
            planned,
        }
    }

    fn add(&mut self, index: &'t IndexFacts, serving_instead: Option<&'t IndexFacts>) {
        self.indexes.push((index, serving_instead));
    }

    fn contains(&self, index: &IndexFacts) -> bool {
        let mut indexes = self.indexes.iter();
        indexes.any(|(known, _)| known.name == index.name)
    }

    /// Whether statements use an index, or will use it in place of others.
    fn is_used(&self, index: &IndexFacts) -> bool {
        let replaced = self.indexes.iter();
        let mut replaced = replaced.filter(|(_, by)| by.is_some_and(|by| by.name == index.name));
        index.scans > 0
            || index.is_in(&self.planned.used)
            || replaced.any(|(replaced, _)| self.is_used(replaced))
    }
}

fn is_broken(index: &IndexFacts) -> bool {
    !index.is_valid && !index.is_being_built && !index.is_partitioned
}

fn invalid(table: &TableFacts, index: &IndexFacts, dropped: &Dropped<'_>) -> Finding {
    let mut reason = "it was not built to its end: no statement uses it, but writes may have to keep it up to date".to_owned();
    let name = sql_name(index);
    // Built, it would be a duplicate of one that is valid, or that is built before it.
    let place = |index: &IndexFacts| (may_be_dropped(index), index.name.clone());
    let is_built_before = |other: &IndexFacts| {
        is_broken(other) && !is_left_over(table, other) && place(other) < place(index)
    };
    let mut others = table.indexes.iter();
    let has_equal = others.any(|other| {
        let will_be_there = other.is_valid || is_built_before(other);
        will_be_there && !dropped.contains(other) && are_equal(other, index)
    });
    let is_needless = has_equal && may_be_dropped(index);
    let sql = if is_needless || is_left_over(table, index) {
        format!("drop index concurrently {name};")
    } else {
        if index.is_unique {
            reason.push_str(
                "; if the build said that rows are equal in its columns, change or delete these before",
            );
        }
        format!("reindex index concurrently {name};")
    };
    let lock = Some("SHARE UPDATE EXCLUSIVE");
    finding(
        Rule::InvalidIndex,
        Severity::Warning,
        index,
        reason,
        Remedy { sql, lock },
    )
}

/// The index of a partitioned table that would be valid if the indexes of its partitions were attached to it, as after statements
/// of which not all were run. If a partition has no such index, or can have none, nothing is found.
fn unattached(facts: &Facts, index: &IndexFacts) -> Option<Finding> {
    if index.is_valid || index.is_being_built || index.unattached.is_empty() {
        return None;
    }
    let may_be_attached =
        |own: &IndexFacts| !own.is_attached && (own.is_valid || own.is_partitioned);
    let of_part = |oid: &u32| {
        let part = facts.tables.iter().find(|table| table.name.oid == *oid)?;
        let indexes = part.indexes.iter();
        let equal = indexes.filter(|own| may_be_attached(own) && are_equal(own, index));
        // Of equal ones the one that stays.
        equal.min_by_key(|own| (may_be_dropped(own), own.name.clone()))
    };
    let indexes: Option<Vec<&IndexFacts>> = index.unattached.iter().map(of_part).collect();
    let name = sql_name(index);
    let attach = |part: &IndexFacts| Remedy {
        sql: format!("alter index {name} attach partition {};", sql_name(part)),
        lock: Some("ACCESS EXCLUSIVE on the partition's index"),
    };
    let reason =
        "it is not valid, since indexes of partitions that equal it are not attached to it";
    Some(Finding {
        remedies: indexes?.into_iter().map(attach).collect(),
        ..Finding::new(
            Rule::InvalidIndex,
            Severity::Warning,
            index.full_name(),
            reason.to_owned(),
        )
    })
}

/// Whether `reindex concurrently` has left it behind: a copy, or the old index. The one that it is a copy of is there, under the
/// name before the ending, which may be cut.
fn is_left_over(table: &TableFacts, index: &IndexFacts) -> bool {
    let name = index.name.trim_end_matches(|c: char| c.is_ascii_digit());
    let of_copy = name.strip_suffix("_ccnew");
    let Some(name) = of_copy.or_else(|| name.strip_suffix("_ccold")) else {
        return false;
    };
    let mut others = table.indexes.iter();
    others.any(|other| {
        let is_named = other.name == name
            || index.name.len() == NAME_BYTES_MAX && other.name.starts_with(name);
        is_named && other.name != index.name && are_equal(other, index)
    })
}

/// Of indexes that are equal, all but one. Notes those in `dropped`.
fn duplicates<'t>(table: &'t TableFacts, dropped: &mut Dropped<'t>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut kept: Vec<&IndexFacts> = Vec::new();
    let mut indexes: Vec<&IndexFacts> = table.indexes.iter().collect();
    // What has to stay is kept, else the first by name.
    indexes.sort_by_key(|index| (may_be_dropped(index), index.name.clone()));
    indexes.retain(|index| index.is_valid && !dropped.contains(index));
    for index in indexes {
        match kept.iter().find(|other| are_equal(other, index)) {
            Some(&other) if may_be_dropped(index) => {
                dropped.add(index, Some(other));
                let reason = format!("it is equal to {} in every respect", other.name);
                findings.push(superfluous(
                    Rule::DuplicateIndex,
                    Severity::Warning,
                    index,
                    reason,
                ));
            }
            _ => kept.push(index),
        }
    }
    findings
}

/// Indexes that another one begins with. Notes them in `dropped`.
fn prefixes<'t>(table: &'t TableFacts, dropped: &mut Dropped<'t>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let others = table.indexes.iter();
    let mut others: Vec<&IndexFacts> = others
        .filter(|other| other.is_valid && !dropped.contains(other))
        .collect();
    // The longest one is no beginning of another.
    others.sort_by_key(|other| std::cmp::Reverse(other.columns.len()));
    for index in &table.indexes {
        if !is_plain(index) || !may_be_dropped(index) || dropped.contains(index) {
            continue;
        }
        let other = others.iter().find(|other| continues(other, index));
        if let Some(other) = other.copied() {
            dropped.add(index, Some(other));
            let reason = format!("{} begins with its columns", other.name);
            findings.push(superfluous(
                Rule::PrefixIndex,
                Severity::Info,
                index,
                reason,
            ));
        }
    }
    findings
}

/// Indexes that no statement has used while the statistics were counting. Notes them in `dropped`.
fn unused<'t>(facts: &Facts, table: &'t TableFacts, dropped: &mut Dropped<'t>) -> Vec<Finding> {
    if facts.has_standby || facts.counted_for < COUNTED_FOR_MIN {
        return Vec::new();
    }
    let days = facts.counted_for.as_secs() / (24 * 60 * 60);
    let mut findings = Vec::new();
    for index in &table.indexes {
        let is_unused = !dropped.is_used(index)
            && index.bytes >= UNUSED_BYTES_MIN
            && index.is_valid
            && !index.is_unique
            && !index.has_expression()
            && !index.is_partitioned
            && may_be_dropped(index)
            && !is_last_one_of_foreign_key(table, index, dropped)
            && !dropped.contains(index);
        if !is_unused {
            continue;
        }
        dropped.add(index, None);
        let reason = format!(
            "no statement has used it in the {days} days of the statistics; it takes {} MiB",
            index.bytes >> 20
        );
        findings.push(superfluous(
            Rule::UnusedIndex,
            Severity::Info,
            index,
            reason,
        ));
    }
    findings
}

/// Whether nothing but statements depends on it. A part of the index of a partitioned table goes with that.
fn may_be_dropped(index: &IndexFacts) -> bool {
    !index.is_of_constraint
        && !index.is_replica_identity
        && !index.is_clustered
        && !index.is_attached
}

fn are_equal(one: &IndexFacts, other: &IndexFacts) -> bool {
    one.method == other.method
        && one.columns == other.columns
        && one.included == other.included
        && one.predicate == other.predicate
        && one.is_unique == other.is_unique
        && one.is_deferrable == other.is_deferrable
        && one.nulls_are_equal == other.nulls_are_equal
        && one.parameters == other.parameters
}

/// A B-tree that serves nothing but searches by its columns.
fn is_plain(index: &IndexFacts) -> bool {
    index.method == "btree"
        && index.is_valid
        && !index.is_unique
        && index.predicate.is_none()
        && index.included.is_empty()
        && !index.has_expression()
}

/// Whether `other` is a B-tree of all rows that begins with the columns of `index`, and has or does more.
fn continues(other: &IndexFacts, index: &IndexFacts) -> bool {
    other.method == "btree"
        && other.predicate.is_none()
        && (other.columns.len() > index.columns.len()
            || other.is_unique && other.included.is_empty())
        && other.columns.starts_with(&index.columns)
}

/// Whether rows that refer to a deleted row are found by `index`, and by none that stays beside it.
fn is_last_one_of_foreign_key(
    table: &TableFacts,
    index: &IndexFacts,
    dropped: &Dropped<'_>,
) -> bool {
    table.foreign_keys.iter().any(|columns| {
        let first = index.columns.first();
        let serves = first.is_some_and(|first| columns.contains(&first.text));
        let mut others = table
            .indexes
            .iter()
            .filter(|other| other.name != index.name && !dropped.contains(other));
        serves && !others.any(|other| finds_all(other, columns))
    })
}

/// Whether an index finds the rows with given values of all `columns`.
fn finds_all(index: &IndexFacts, columns: &[String]) -> bool {
    matches!(index.method.as_str(), "btree" | "hash")
        && index.is_valid
        && index.predicate.is_none()
        && index.begins_with(columns)
}

fn superfluous(rule: Rule, severity: Severity, index: &IndexFacts, reason: String) -> Finding {
    let remedy = drop_statement(&sql_name(index), index.is_partitioned);
    finding(rule, severity, index, reason, remedy)
}

fn finding(
    rule: Rule,
    severity: Severity,
    index: &IndexFacts,
    reason: String,
    remedy: Remedy,
) -> Finding {
    Finding {
        remedies: vec![remedy],
        ..Finding::new(rule, severity, index.full_name(), reason)
    }
}

fn sql_name(index: &IndexFacts) -> String {
    format!("{}.{}", identifier(&index.schema), identifier(&index.name))
}

#[cfg(test)]
mod tests;
