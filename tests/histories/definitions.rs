//! Steps that change tables: which belong to which, what their columns and keys are, and where they are stored.

use crate::histories::oracle::TableState;
use crate::histories::plan::{Form, TableFamily, UNIVERSE, bound};
use crate::histories::rows;
use crate::histories::step::{HistoryStep, Message, StepGenerator};

/// With rows that change meanwhile, now and then.
fn definition(
    draw: &mut StepGenerator<'_>,
    kind: &'static str,
    messages: Vec<Message>,
) -> Option<HistoryStep> {
    let storm = draw.once_in(3);
    Some(HistoryStep {
        storm,
        ..HistoryStep::new(kind, messages)
    })
}

/// One statement or many, as one transaction.
fn at_once(draw: &mut StepGenerator<'_>, kind: &'static str, sql: String) -> Option<HistoryStep> {
    let mut sql = sql;
    if draw.once_in(3) {
        let statement = rows::statement(draw);
        sql = format!("begin; {sql}; {statement}; commit");
    }
    definition(draw, kind, vec![Message::Sql(sql)])
}

/// The values of a partition's bound.
fn values(bound: &str) -> Option<(usize, usize)> {
    let numbers: Vec<usize> = bound
        .split(|character: char| !character.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect();
    let (first, last) = (*numbers.iter().min()?, *numbers.iter().max()?);
    Some((
        first,
        if bound.contains(" IN ") {
            last + 1
        } else {
            last
        },
    ))
}

/// A partitioned table of a family that is partitioned, and whether by list.
fn partitioned(draw: &mut StepGenerator<'_>) -> Option<(char, String, bool)> {
    let prefix = draw.family().prefix;
    let tables: Vec<(String, bool)> = draw
        .tables(prefix)
        .iter()
        .filter(|table| table.kind == "p")
        .map(|table| (table.name.clone(), table.strategy.starts_with("LIST")))
        .collect();
    let (name, list) = draw.one_of(&tables)?;
    Some((prefix, name.clone(), *list))
}

/// Values that `upper` has no partition for.
fn free_values(draw: &mut StepGenerator<'_>, upper: &str) -> Option<(usize, usize)> {
    let tables = &draw.state.tables;
    let (low, high) = tables
        .iter()
        .find(|table| table.name == upper)
        .and_then(|table| values(&table.bound))
        .unwrap_or((0, UNIVERSE));
    let taken: Vec<(usize, usize)> = tables
        .iter()
        .filter(|table| table.parents.iter().any(|parent| parent == upper))
        .filter_map(|table| values(&table.bound))
        .collect();
    let free = |value: &usize| taken.iter().all(|(from, to)| value < from || value >= to);
    let first = (low..high).find(free)?;
    let length = (first..high).take_while(free).count();
    let length = if length > 4 && draw.once_in(2) {
        length / 2
    } else {
        length
    };
    Some((first, first + length))
}

/// A row of a new table, within the values of its bound.
fn row(draw: &mut StepGenerator<'_>, family: char, (from, to): (usize, usize)) -> String {
    let value = from + draw.rng.usize(..to - from);
    let by_key = draw
        .plan
        .family(family)
        .is_some_and(|family| family.form == Form::PartitionedByKey);
    if by_key {
        format!("'{value}', {}, 'born{}'", rows::part(draw), draw.number)
    } else {
        format!(
            "'{}', {value}, 'born{}'",
            draw.fresh_id(family),
            draw.number
        )
    }
}

fn key_of_leaf(family: Option<&TableFamily>, name: &str) -> String {
    match family.map(|family| family.form) {
        Some(Form::KeyedLeaves) => format!("; alter table {name} add primary key (id)"),
        _ => String::new(),
    }
}

/// A table that has rows already becomes a partition; it may have partitions itself.
pub(super) fn attach(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let (prefix, upper, list) = partitioned(draw)?;
    let span = free_values(draw, &upper)?;
    let name = draw.new_name(prefix);
    let family = draw.plan.family(prefix)?;
    let (by, key) = (family.partition_column(), key_of_leaf(Some(family), &name));
    let values = bound(list, span.0, span.1);
    let row = row(draw, prefix, span);
    let owned = draw.owned(&name);
    let insert = format!("insert into {name} (id, part, label) values ({row})");
    let sql = if draw.once_in(3) {
        let leaf = format!("{name}0");
        let all = bound(false, span.0, span.1);
        format!(
            "create table {name} (like {upper} including all) partition by range ({by}); \
             create table {leaf} partition of {name} for values {all}{}{}{owned}; {insert}; \
             alter table {upper} attach partition {name} for values {values}",
            key_of_leaf(draw.plan.family(prefix), &leaf),
            draw.owned(&leaf)
        )
    } else {
        format!(
            "create table {name} (like {upper} including all){key}{owned}; {insert}; \
             alter table {upper} attach partition {name} for values {values}"
        )
    };
    at_once(draw, "attach", sql)
}

/// Tables that were detached, or have never been attached.
fn detached(draw: &mut StepGenerator<'_>, prefix: char) -> Option<String> {
    let top = format!("{prefix}0");
    let names: Vec<String> = draw
        .tables(prefix)
        .iter()
        .filter(|table| table.parents.is_empty() && table.name != top)
        .map(|table| table.name.clone())
        .collect();
    draw.one_of(&names).cloned()
}

pub(super) fn attach_again(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let (prefix, upper, list) = partitioned(draw)?;
    let name = detached(draw, prefix)?;
    let (from, to) = free_values(draw, &upper)?;
    let sql = format!(
        "alter table {upper} attach partition {name} for values {}",
        bound(list, from, to)
    );
    at_once(draw, "attach again", sql)
}

/// A partition and what it belongs to.
fn part(draw: &mut StepGenerator<'_>) -> Option<TableState> {
    let prefix = draw.family().prefix;
    let parts: Vec<TableState> = draw
        .tables(prefix)
        .into_iter()
        .filter(|table| table.is_partition && !table.parents.is_empty())
        .cloned()
        .collect();
    draw.one_of(&parts).cloned()
}

pub(super) fn detach(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let TableState { name, parents, .. } = part(draw)?;
    at_once(
        draw,
        "detach",
        format!("alter table {} detach partition {name}", parents[0]),
    )
}

pub(super) fn detach_concurrently(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let TableState { name, parents, .. } = part(draw)?;
    let sql = format!(
        "alter table {} detach partition {name} concurrently",
        parents[0]
    );
    definition(draw, "detach concurrently", vec![Message::Sql(sql)])
}

/// What is written in between belongs to the same transaction or not.
pub(super) fn detach_and_attach(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let TableState {
        name,
        parents,
        bound,
        ..
    } = part(draw)?;
    let (upper, from) = (&parents[0], rows::part(draw));
    let parts = [
        format!("alter table {upper} detach partition {name}"),
        format!("update {name} set label = 'alone{}'", draw.number),
        format!("alter table {upper} attach partition {name} {bound}"),
        format!(
            "update {}0 set label = 'together{}' where part > {from}",
            &name[..1],
            draw.number
        ),
    ];
    let messages = if draw.once_in(2) {
        vec![Message::Sql(format!("begin; {}; commit", parts.join("; ")))]
    } else {
        parts.map(Message::Sql).to_vec()
    };
    definition(draw, "detach and attach", messages)
}

pub(super) fn create_part(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let (prefix, upper, list) = partitioned(draw)?;
    let (from, to) = free_values(draw, &upper)?;
    let name = draw.new_name(prefix);
    let family = draw.plan.family(prefix);
    let key = key_of_leaf(family, &name);
    let owned = draw.owned(&name);
    let row = row(draw, prefix, (from, to));
    let whole = draw.once_in(6);
    let values = if whole {
        "default".to_owned()
    } else {
        format!("for values {}", bound(list, from, to))
    };
    let sql = format!(
        "create table {name} partition of {upper} {values}{key}{owned}; \
         insert into {upper} (id, part, label) values ({row})"
    );
    at_once(draw, "create part", sql)
}

pub(super) fn drop_part(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let name = part(draw)?.name;
    let mut tables = draw.state.tables.iter();
    let lost = tables.any(|table| draw.is_followed(&table.name) && draw.is_below(table, &name));
    // The tops are what rows change by.
    if lost || draw.is_followed(&name) || name.ends_with('0') {
        return None;
    }
    at_once(draw, "drop part", format!("drop table {name}"))
}

/// Another table under the same name.
pub(super) fn replace(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let TableState {
        name,
        parents,
        bound,
        kind,
        ..
    } = part(draw)?;
    if kind == "p" {
        return None;
    }
    let (upper, prefix) = (&parents[0], name.chars().next()?);
    let owned = draw.owned(&name);
    let view = format!("{prefix}old{}", draw.number);
    let sql = format!(
        "begin; alter table {upper} detach partition {name}; alter table {name} rename to {view}; \
         create table {name} (like {view} including all){owned}; insert into {name} table {view}; \
         update {name} set label = 'replaced{}'; alter table {upper} attach partition {name} {bound}; commit",
        draw.number
    );
    definition(draw, "replace", vec![Message::Sql(sql)])
}

/// Two tables exchange their names.
pub(super) fn swap(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let one = part(draw)?;
    let prefix = one.name.chars().next()?;
    let other = draw
        .tables(prefix)
        .into_iter()
        .find(|table| table.kind == one.kind && table.name != one.name && table.is_partition)?;
    let (one, other) = (one.name, other.name.clone());
    let sql = format!(
        "begin; alter table {one} rename to swapped; alter table {other} rename to {one}; \
         alter table swapped rename to {other}; update {one} set label = 'swapped{}'; commit",
        draw.number
    );
    // Who comes in between finds no table of the name, without larder as well.
    Some(HistoryStep::sql("swap", sql))
}

/// What was a table of its own becomes a part of another, and is written to by that.
pub(super) fn new_ancestor(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let prefix = draw.family().prefix;
    let roots: Vec<String> = draw
        .tables(prefix)
        .iter()
        .filter(|table| table.parents.is_empty())
        .map(|table| table.name.clone())
        .collect();
    let table = draw.one_of(&roots)?.clone();
    let name = draw.new_name(prefix);
    let family = draw.plan.family(prefix)?;
    let owned = draw.owned(&name);
    let link = if family.is_partitioned() || draw.once_in(2) {
        format!(
            "create table {name} (like {table}) partition by range (part){owned}; \
         alter table {name} attach partition {table} for values from (minvalue) to (maxvalue)"
        )
    } else {
        format!("create table {name} (like {table}){owned}; alter table {table} inherit {name}")
    };
    let from = rows::part(draw);
    let write = format!(
        "update {name} set label = 'from above {}' where part > {from}",
        draw.number
    );
    let messages = vec![Message::Sql(link), Message::Sql(write)];
    definition(draw, "new ancestor", messages)
}

/// The tables of a family.
fn names(draw: &StepGenerator<'_>, prefix: char) -> Vec<String> {
    let tables = draw.tables(prefix).into_iter();
    tables.map(|table| table.name.clone()).collect()
}

pub(super) fn inherit(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let prefix = draw.family().prefix;
    let names = names(draw, prefix);
    let (one, other) = (draw.one_of(&names)?.clone(), draw.one_of(&names)?.clone());
    at_once(
        draw,
        "inherit",
        format!("alter table {one} inherit {other}"),
    )
}

pub(super) fn no_inherit(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let prefix = draw.family().prefix;
    let heirs: Vec<(String, String)> = draw
        .tables(prefix)
        .iter()
        .filter(|table| !table.is_partition)
        .flat_map(|table| {
            table
                .parents
                .iter()
                .map(|parent| (table.name.clone(), parent.clone()))
        })
        .collect();
    let (heir, parent) = draw.one_of(&heirs)?.clone();
    at_once(
        draw,
        "no inherit",
        format!("alter table {heir} no inherit {parent}"),
    )
}

pub(super) fn new_heir(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let prefix = draw.family().prefix;
    let names = names(draw, prefix);
    let parent = draw.one_of(&names)?.clone();
    let name = draw.new_name(prefix);
    let owned = draw.owned(&name);
    let (id, part) = (draw.fresh_id(prefix), rows::part(draw));
    let sql = format!(
        "create table {name} (more int default 1, primary key (id)) inherits ({parent}){owned}; \
         insert into {name} (id, part, label) values ('{id}', {part}, 'heir')"
    );
    at_once(draw, "new heir", sql)
}

pub(super) fn column(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let prefix = draw.family().prefix;
    let top = draw.target(prefix).replace("_v", "");
    let number = draw.number;
    let sql = match draw.rng.usize(..6) {
        0 => format!("alter table {top} add column x{number} int default {number}"),
        1 => format!("alter table {top} rename column v to v{number}"),
        2 => format!("alter table {top} alter column v type text using 'text ' || v::text"),
        3 => format!("alter table {top} alter column v set default null"),
        4 => format!(
            "alter table {top} add column x{number} timestamp default '2024-01-02 03:04:05.6'"
        ),
        _ => format!("alter table {top} drop column if exists v"),
    };
    at_once(draw, "column", sql)
}

pub(super) fn enum_value(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let number = draw.number;
    let sql = match draw.rng.usize(..3) {
        0 => format!("alter type kinds.mood add value 'mood{number}'"),
        1 => format!("alter type kinds.mood rename value 'calm' to 'calm{number}'"),
        _ => format!("alter type kinds.mood rename value 'wild' to 'wild{number}'"),
    };
    definition(draw, "enum", vec![Message::Sql(sql)])
}

/// Children without an order of their own follow the primary key's.
pub(super) fn primary_key(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let names: Vec<String> = draw
        .tables('c')
        .iter()
        .map(|table| table.name.clone())
        .collect();
    let table = draw.one_of(&names)?.clone();
    let columns = ["id", "part, id", "id, part", "label, id"][draw.rng.usize(..4)];
    let sql =
        format!("alter table {table} drop constraint {table}_pkey, add primary key ({columns})");
    at_once(draw, "primary key", sql)
}

/// A name that is missing for a moment.
pub(super) fn away_and_back(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let table = draw.plan.resources[0].table.clone();
    let sql = [
        format!("alter table {table} rename to away"),
        format!("update away set label = 'away{}'", draw.number),
        format!("alter table away rename to {table}"),
    ];
    Some(HistoryStep::new(
        "away and back",
        sql.map(Message::Sql).to_vec(),
    ))
}

/// Two migrations in quick succession, of which the second takes the first back.
pub(super) fn quick_pair(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let prefix = draw.family().prefix;
    let table = draw.target(prefix).replace("_v", "");
    let number = draw.number;
    let (there, back) = match draw.rng.usize(..4) {
        0 => (
            format!("add column x{number} int default {number}"),
            format!("drop column x{number}"),
        ),
        1 => (
            format!("rename column label to label{number}"),
            format!("rename column label{number} to label"),
        ),
        2 => (
            "alter column ref type bigint".to_owned(),
            "alter column ref type int".to_owned(),
        ),
        _ => (
            "drop column if exists v".to_owned(),
            format!("add column v int default {number}"),
        ),
    };
    let is_label = there.starts_with("rename column label");
    let messages = [there, back].map(|what| Message::Sql(format!("alter table {table} {what}")));
    let mut step = definition(draw, "quick pair", messages.to_vec())?;
    // A storm writes that column, and would fail without larder, too.
    step.storm &= !is_label;
    Some(step)
}

/// Changes of storage, which change no document.
pub(super) fn storage(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let prefix = draw.family().prefix;
    let table = draw.target(prefix).replace("_v", "");
    let sql = match draw.rng.usize(..8) {
        0 => format!("vacuum full {table}"),
        1 => format!("cluster {table} using {table}_pkey"),
        2 => format!("reindex table {table}"),
        3 => format!("alter table {table} set unlogged"),
        4 => format!("alter table {table} set logged"),
        5 => format!("create index on {table} (label)"),
        6 => format!("vacuum (freeze, analyze) {table}"),
        _ => format!("alter table {table} set (fillfactor = 50)"),
    };
    definition(draw, "storage", vec![Message::Sql(sql)])
}

/// A table with a rule, which rewrites statements.
pub(super) fn rule(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let prefix = draw.family().prefix;
    let (from, to) = (draw.target(prefix), draw.target(prefix).replace("_v", ""));
    let number = draw.number;
    let sql = format!(
        "create rule rule{number} as on update to {from} do also \
         update {to} set label = 'by rule' where id = old.id and label <> 'by rule'; \
         update {from} set label = 'rule {number}' where part < {part}; drop rule rule{number} on {from}",
        part = rows::part(draw)
    );
    definition(draw, "rule", vec![Message::Sql(sql)])
}

pub(super) fn publication(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    let prefix = draw.family().prefix;
    let table = draw.target(prefix).replace("_v", "");
    let number = draw.number;
    let sql = match draw.rng.usize(..5) {
        0 | 1 => "create publication everything for all tables".to_owned(),
        2 => format!("create publication p{number} for table {table}"),
        3 => format!("alter table {table} replica identity full"),
        _ => "drop publication everything".to_owned(),
    };
    definition(draw, "publication", vec![Message::Sql(sql)])
}
