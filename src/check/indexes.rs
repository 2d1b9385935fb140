//! The rules that compare indexes with each other and with their statistics: invalid-index, duplicate-index, prefix-index
//! and unused-index.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::check::facts::{Facts, IndexFacts, TableFacts};
use crate::check::{Finding, Remedy, Rule, Severity};
use crate::resource::sql::identifier;

/// Statistics that have counted for less than this don't show that an index is unused.
const COUNTED_FOR_MIN: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Smaller indexes are not worth a finding.
const UNUSED_BYTES_MIN: u64 = 1 << 20;

/// The findings about the indexes of all tables.
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for table in &facts.tables {
        let indexes = table.indexes.iter();
        let broken = indexes.filter(|index| is_broken(index));
        let mut of_table: Vec<Finding> = broken.map(invalid).collect();
        if table.place.is_some() {
            let mut dropped = BTreeSet::new();
            of_table.extend(duplicates(table, &mut dropped));
            of_table.extend(prefixes(table, &mut dropped));
            of_table.extend(unused(facts, table, &dropped));
        }
        findings.extend(of_table.into_iter().map(|finding| Finding {
            place: table.place.clone(),
            ..finding
        }));
    }
    findings
}

fn is_broken(index: &IndexFacts) -> bool {
    !index.is_valid && !index.is_being_built && !index.is_partitioned
}

fn invalid(index: &IndexFacts) -> Finding {
    let reason = "it was not built to its end: no statement uses it, but writes may have to keep it up to date";
    let name = sql_name(index);
    // What `reindex concurrently` leaves behind is a copy, or the old index.
    let is_left_over = |ending: &str| {
        let name = index.name.trim_end_matches(|c: char| c.is_ascii_digit());
        name.ends_with(ending)
    };
    let sql = if is_left_over("_ccnew") || is_left_over("_ccold") {
        format!("drop index concurrently {name};")
    } else {
        format!("reindex index concurrently {name};")
    };
    let lock = Some("SHARE UPDATE EXCLUSIVE");
    finding(
        Rule::InvalidIndex,
        Severity::Warning,
        index,
        reason.to_owned(),
        Remedy { sql, lock },
    )
}

/// Of indexes that are equal, all but one. Notes those in `dropped`.
fn duplicates(table: &TableFacts, dropped: &mut BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut kept: Vec<&IndexFacts> = Vec::new();
    let mut indexes: Vec<&IndexFacts> = table.indexes.iter().collect();
    // What has to stay is kept, else the first by name.
    indexes.sort_by_key(|index| (may_be_dropped(index), index.name.clone()));
    for index in indexes.into_iter().filter(|index| index.is_valid) {
        match kept.iter().find(|other| are_equal(other, index)) {
            Some(other) if may_be_dropped(index) => {
                dropped.insert(index.full_name());
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
fn prefixes(table: &TableFacts, dropped: &mut BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let others = table.indexes.iter();
    let mut others: Vec<&IndexFacts> = others
        .filter(|other| other.is_valid && !dropped.contains(&other.full_name()))
        .collect();
    // The longest one is no beginning of another.
    others.sort_by_key(|other| std::cmp::Reverse(other.columns.len()));
    for index in &table.indexes {
        if !is_plain(index) || !may_be_dropped(index) || dropped.contains(&index.full_name()) {
            continue;
        }
        if let Some(other) = others.iter().find(|other| continues(other, index)) {
            dropped.insert(index.full_name());
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

/// Indexes that no statement has used while the statistics were counting.
fn unused(facts: &Facts, table: &TableFacts, dropped: &BTreeSet<String>) -> Vec<Finding> {
    if facts.has_standby || facts.counted_for < COUNTED_FOR_MIN {
        return Vec::new();
    }
    let days = facts.counted_for.as_secs() / (24 * 60 * 60);
    let is_unused = |index: &&IndexFacts| {
        index.scans == 0
            && index.bytes >= UNUSED_BYTES_MIN
            && index.is_valid
            && !index.is_unique
            && !index.has_expression()
            && !index.is_partitioned
            && may_be_dropped(index)
            && !is_only_one_of_foreign_key(table, index)
            && !dropped.contains(&index.full_name())
    };
    let unused = table.indexes.iter().filter(is_unused).map(|index| {
        let reason = format!(
            "no statement has used it in the {days} days of the statistics; it takes {} MiB",
            index.bytes >> 20
        );
        superfluous(Rule::UnusedIndex, Severity::Info, index, reason)
    });
    unused.collect()
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

/// Whether `other` is a B-tree of all rows that begins with the columns of `index`, and has more.
fn continues(other: &IndexFacts, index: &IndexFacts) -> bool {
    other.method == "btree"
        && other.predicate.is_none()
        && other.columns.len() > index.columns.len()
        && other.columns.starts_with(&index.columns)
}

/// Whether rows that refer to a deleted row are found by no other index.
fn is_only_one_of_foreign_key(table: &TableFacts, index: &IndexFacts) -> bool {
    table.foreign_keys.iter().any(|columns| {
        let serves = |index: &&IndexFacts| index.is_valid && index.begins_with(columns);
        let mut others = table
            .indexes
            .iter()
            .filter(|other| other.name != index.name);
        serves(&index) && !others.any(|other| serves(&other))
    })
}

fn superfluous(rule: Rule, severity: Severity, index: &IndexFacts, reason: String) -> Finding {
    let name = sql_name(index);
    // PostgreSQL can't drop the index of a partitioned table concurrently.
    let remedy = if index.is_partitioned {
        Remedy {
            sql: format!("drop index {name};"),
            lock: Some("ACCESS EXCLUSIVE"),
        }
    } else {
        Remedy {
            sql: format!("drop index concurrently {name};"),
            lock: Some("SHARE UPDATE EXCLUSIVE"),
        }
    };
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
        rule,
        severity,
        object: index.full_name(),
        place: None,
        reason,
        plan_line: None,
        remedies: vec![remedy],
        cost: None,
        is_unproven: false,
    }
}

fn sql_name(index: &IndexFacts) -> String {
    format!("{}.{}", identifier(&index.schema), identifier(&index.name))
}

#[cfg(test)]
mod tests;
