//! Finds missing indexes: those that documents, passes and lists would use.

use crate::resource::catalogue::{Catalogue, TableName};
use crate::resource::key::KeyColumn;
use crate::resource::sql::identifier;
use crate::resource::{Resource, Row};

/// The `create index` statements for indexes that `resource` lacks. A document reads children by their foreign key. A
/// pass reads the rows that refer to a changed looked-up row by the columns that refer to it. A list reads rows by the
/// columns of its filters. Keys have unique indexes already.
pub fn missing_indexes(resource: &Resource, catalogue: &Catalogue) -> Vec<String> {
    let mut missing = Vec::new();
    collect(&resource.root, catalogue, &mut missing);
    for filter in &resource.filters {
        missing.extend(statement(
            &resource.root.table,
            &[&filter.column],
            catalogue,
        ));
    }
    missing.sort_unstable();
    missing.dedup();
    missing
}

fn collect(row: &Row, catalogue: &Catalogue, missing: &mut Vec<String>) {
    for child in &row.children {
        let columns: Vec<&KeyColumn> = child.on.iter().map(|pair| &pair.own).collect();
        missing.extend(statement(&child.row.table, &columns, catalogue));
        collect(&child.row, catalogue, missing);
    }
    for lookup in &row.lookups {
        let columns: Vec<&KeyColumn> = lookup.on.iter().map(|pair| &pair.upper).collect();
        missing.extend(statement(&row.table, &columns, catalogue));
        collect(&lookup.row, catalogue, missing);
    }
}

fn statement(table: &TableName, columns: &[&KeyColumn], catalogue: &Catalogue) -> Option<String> {
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    let known = catalogue.table(table)?;
    if known.is_indexed(&names) {
        return None;
    }
    let list: Vec<String> = names.into_iter().map(identifier).collect();
    Some(format!(
        "create index on {} ({});",
        table.sql(),
        list.join(", ")
    ))
}
