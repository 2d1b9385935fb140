//! What `larder init` tells besides the file.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use crate::resource::catalogue::{Catalogue, TableName};
use crate::resource::sql::{identifier, printable};
use crate::resource::suggest::{LeftOut, SuggestedRow, Suggestion};
use crate::unseen::escaped;

/// Tables that are named in one line; of more, only the number is told.
const NAMED_MAX: usize = 12;

/// What was written, what was not and why, and what follows from it. `target` is the file; `None` for stdout.
pub(super) fn text(
    suggestion: &Suggestion,
    catalogue: &Catalogue,
    target: Option<&Path>,
) -> String {
    let mut told = String::new();
    let mut tell = |line: String| {
        told.push_str(&escaped(&line));
        told.push('\n');
    };
    let active: Vec<_> = suggestion.active().collect();
    for resource in &active {
        let mut tables = resource.row.tables();
        let root = tables.remove(0);
        let with = match names(&tables) {
            None => String::new(),
            Some(names) => format!(", with {names}"),
        };
        tell(format!("/{}: {root}{with}", resource.name));
    }
    let off = suggestion.resources.iter();
    for (resource, why) in off.filter_map(|resource| Some((resource, resource.off.as_ref()?))) {
        tell(format!("not in force: {}: {why}", resource.row.table));
    }
    let parts: usize = active.iter().map(|resource| offered(&resource.row)).sum();
    if parts > 0 {
        tell(format!(
            "not in force: {parts} children and lookups; the file says why of each"
        ));
    }
    if let Some(line) = secrets(suggestion) {
        tell(line);
    }
    for LeftOut { name, why, .. } in &suggestion.left_out {
        tell(format!("not served: {name} {why}"));
    }
    if active.is_empty() {
        return told;
    }
    let shown: Vec<&TableName> = active
        .iter()
        .flat_map(|resource| resource.row.tables())
        .collect();
    tell(format!(
        "`larder` will put triggers on {}. A statement that changes their rows takes about 1.5 times as long, 2 to 3 times \
         on partitioned tables. `larder install --print` prints them for the tables' owner to run.",
        counted(&shown)
    ));
    let missing = missing_indexes(suggestion, catalogue);
    if !missing.is_empty() {
        tell("Indexes that larder needs and that are missing:".to_owned());
    }
    for sql in missing {
        tell(sql);
    }
    match target {
        Some(path) => {
            let count = active.len();
            let s = if count == 1 { "" } else { "s" };
            let config = match path.to_str() {
                Some("larder.toml") => String::new(),
                _ => format!(" --config {}", path.display()),
            };
            tell(format!(
                "{} has {count} resource{s}. Next, with the same DATABASE_URL: larder{config}",
                path.display()
            ));
        }
        None => {
            tell("Next: save it as larder.toml, and with the same DATABASE_URL: larder".to_owned());
        }
    }
    told
}

/// Tells how many columns are left out that may hold secrets; `None` if there are none.
fn secrets(suggestion: &Suggestion) -> Option<String> {
    let mut secrets = BTreeSet::new();
    for resource in suggestion.active() {
        add_secrets(&resource.row, &mut secrets);
    }
    let columns = match secrets.len() {
        0 => return None,
        1 => "1 column".to_owned(),
        count => format!("{count} columns"),
    };
    Some(format!(
        "left out: {columns} that may hold secrets, by their names or their values; the file says why of each. Read it: other \
         secrets are not recognised."
    ))
}

/// Adds the columns of `row` and of those below it that are left out, since they may hold secrets.
fn add_secrets<'s>(row: &'s SuggestedRow, secrets: &mut BTreeSet<(u32, &'s str)>) {
    let left_out = row.left_out.iter().filter(|column| column.is_secret);
    secrets.extend(left_out.map(|column| (row.table.oid, column.name.as_str())));
    let children = row.children.iter().map(|child| &child.row);
    let lookups = row.lookups.iter().map(|lookup| &lookup.row);
    for below in children.chain(lookups) {
        add_secrets(below, secrets);
    }
}

/// The number of children and lookups of a row that are not in force.
fn offered(row: &SuggestedRow) -> usize {
    let children = row.children.iter().map(|child| (&child.off, &child.row));
    let lookups = row.lookups.iter().map(|lookup| (&lookup.off, &lookup.row));
    let parts = children.chain(lookups);
    let counts = parts.map(|(off, below)| match off {
        Some(_) => 1,
        None => offered(below),
    });
    counts.sum()
}

/// The names of `tables`, each once, or their number if they are many; `None` if there are none.
fn names(tables: &[&TableName]) -> Option<String> {
    let names: BTreeSet<String> = tables.iter().map(ToString::to_string).collect();
    let names: Vec<String> = names.into_iter().collect();
    match names.len() {
        0 => None,
        count if count > NAMED_MAX => Some(format!("{count} tables")),
        _ => Some(names.join(", ")),
    }
}

/// The number of `tables`, with their names if they are few.
fn counted(tables: &[&TableName]) -> String {
    let count = tables.iter().collect::<HashSet<_>>().len();
    let names = names(tables).unwrap_or_default();
    match count {
        1 => names,
        count if count > NAMED_MAX => names,
        count => format!("{count} tables ({names})"),
    }
}

/// Estimated rows, for people.
pub(super) fn rows(rows: f64) -> String {
    match rows {
        rows if rows < 1.0 => "no rows known".to_owned(),
        rows if rows < 1.5 => "about 1 row".to_owned(),
        rows => format!("about {rows:.0} rows"),
    }
}

/// Statements that create the indexes by which rows of children and those that show a lookup are found.
fn missing_indexes(suggestion: &Suggestion, catalogue: &Catalogue) -> Vec<String> {
    let mut wanted = BTreeSet::new();
    for resource in suggestion.active() {
        add_indexes(&resource.row, catalogue, &mut wanted);
    }
    wanted.into_iter().collect()
}

fn add_indexes(row: &SuggestedRow, catalogue: &Catalogue, wanted: &mut BTreeSet<String>) {
    for child in row.children.iter().filter(|child| child.off.is_none()) {
        wanted.extend(missing_index(
            &child.row.table,
            &child.foreign_key,
            catalogue,
        ));
        add_indexes(&child.row, catalogue, wanted);
    }
    for lookup in row.lookups.iter().filter(|lookup| lookup.off.is_none()) {
        wanted.extend(missing_index(&row.table, &lookup.column, catalogue));
    }
}

fn missing_index(name: &TableName, columns: &[String], catalogue: &Catalogue) -> Option<String> {
    let table = catalogue.table(name)?;
    let names: Vec<&str> = columns.iter().map(String::as_str).collect();
    if table.is_indexed(&names) {
        return None;
    }
    // Not possible on a partitioned table; `larder check` prints statements that lock each partition for a moment only.
    let concurrently = if table.kind == 'p' {
        ""
    } else {
        " concurrently"
    };
    let names: Vec<String> = columns.iter().map(|name| identifier(name)).collect();
    Some(printable(&format!(
        "create index{concurrently} on {} ({});",
        name.sql(),
        names.join(", ")
    )))
}
