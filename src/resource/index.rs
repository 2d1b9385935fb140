//! Finds missing indexes: those that documents, passes and lists would use.

use crate::resource::catalogue::{Catalogue, TableName};
use crate::resource::key::KeyColumn;
use crate::resource::sql::identifier;
use crate::resource::{Resource, Row};

/// The `create index` statements for indexes that `resource` lacks. A document reads children by their foreign key. A
/// pass reads the rows that refer to a changed looked-up row by the columns that refer to it. A list reads rows by the
/// columns of its filters; a list of one owner reads them by the owner, in the order of the key. Keys have unique indexes
/// already.
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
    missing.extend(owner_statement(resource, catalogue));
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

fn owner_statement(resource: &Resource, catalogue: &Catalogue) -> Option<String> {
    let owner = resource.owner.as_ref()?.column.name.as_str();
    let key = resource.key.columns.iter();
    let key = key.map(|column| column.name.as_str());
    let rest = key.filter(|name| *name != owner);
    let names: Vec<&str> = std::iter::once(owner).chain(rest).collect();
    let table = &resource.root.table;
    let is_there = catalogue.table(table)?.is_ordered_by(&names);
    (!is_there).then(|| create_sql(table, &names))
}

fn statement(table: &TableName, columns: &[&KeyColumn], catalogue: &Catalogue) -> Option<String> {
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    let known = catalogue.table(table)?;
    if known.is_indexed(&names) {
        return None;
    }
    Some(create_sql(table, &names))
}

fn create_sql(table: &TableName, names: &[&str]) -> String {
    let list: Vec<String> = names.iter().copied().map(identifier).collect();
    format!("create index on {} ({});", table.sql(), list.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::catalogue::{OnWrite, Table};
    use crate::resource::key::{KeyShape, KeyType};
    use crate::resource::{Owner, testing};

    fn column(name: &str) -> KeyColumn {
        KeyColumn {
            name: name.into(),
            key_type: KeyType::Integer,
            type_text: "integer".into(),
            type_oid: 23,
            collation: 0,
        }
    }

    /// A page reads the rows of one owner in the order of the key, for which an index in another order is of no use.
    #[test]
    fn an_owner_needs_an_index_that_ends_with_the_key() {
        let mut resource = testing::named("orders");
        resource.key = KeyShape {
            columns: vec![column("shop"), column("no")],
            fields: Vec::new(),
        };
        let missing = |resource: &Resource, index: &[&str]| {
            let table = Table {
                name: resource.root.table.clone(),
                kind: 'r',
                row_security: None,
                has_other_ancestors: false,
                uncached: None,
                columns: Vec::new(),
                unique_keys: Vec::new(),
                foreign_keys: Vec::new(),
                indexes: vec![index.iter().map(|&name| name.to_owned()).collect()],
                descendants: Vec::new(),
                on_write: OnWrite::default(),
            };
            let catalogue = Catalogue {
                tables: [("orders".to_owned(), table)].into(),
                ..Catalogue::default()
            };
            missing_indexes(resource, &catalogue)
        };
        assert!(missing(&resource, &[]).is_empty());
        let owned_by = |name: &str| {
            Some(Owner {
                column: column(name),
                claim: "sub".into(),
            })
        };
        resource.owner = owned_by("customer");
        let expected = r#"create index on "public"."orders" ("customer", "shop", "no");"#;
        assert_eq!(missing(&resource, &["shop", "no", "customer"]), [expected]);
        assert_eq!(missing(&resource, &["customer", "no", "shop"]), [expected]);
        assert_eq!(missing(&resource, &["customer", "shop"]), [expected]);
        assert!(missing(&resource, &["customer", "shop", "no", "x"]).is_empty());
        resource.owner = owned_by("no");
        let expected = r#"create index on "public"."orders" ("no", "shop");"#;
        assert_eq!(missing(&resource, &["shop", "no"]), [expected]);
        assert!(missing(&resource, &["no", "shop"]).is_empty());
    }
}
