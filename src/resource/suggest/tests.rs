//! Each rule, on small databases.

mod relations;
mod tables;

use std::fmt::Write;

use crate::resource::catalogue::{
    Catalogue, Column, ForeignKey, OnWrite, Table, TableName, UniqueKey,
};
use crate::resource::sql_type::{Equality, SqlType};
use crate::resource::suggest::survey::{ColumnStatistics, Survey, SurveyedTable};
use crate::resource::suggest::{SuggestOptions, SuggestedRow, Suggestion, suggest};
use crate::resource::value::ValueType;

/// A database that is described table by table. All columns are indexed that are said to be.
#[derive(Default)]
struct Database {
    survey: Survey,
    catalogue: Catalogue,
}

impl Database {
    /// Adds a table. A column is `name type`, with `?` behind the name if it may be null; the first one is the primary key.
    fn add(&mut self, name: &str, columns: &str) -> &mut Self {
        let (schema, name) = name.split_once('/').unwrap_or(("public", name));
        let oid = u32::try_from(self.survey.tables.len()).unwrap() + 1;
        let name = TableName {
            oid,
            schema: schema.into(),
            name: name.into(),
        };
        self.survey.tables.push(SurveyedTable {
            name: name.clone(),
            kind: 'r',
            rows: 10.0,
            extension: None,
            is_usable: true,
            is_readable: true,
            unreadable_columns: Vec::new(),
        });
        let columns: Vec<Column> = columns.split(", ").map(column).collect();
        let first = columns[0].name.clone();
        let table = Table {
            kind: 'r',
            row_security: None,
            has_other_ancestors: false,
            uncached: None,
            columns,
            unique_keys: Vec::new(),
            foreign_keys: Vec::new(),
            indexes: Vec::new(),
            descendants: Vec::new(),
            constraints: Vec::new(),
            on_write: OnWrite::default(),
            name: name.clone(),
        };
        self.catalogue.tables.insert(name.written(), table);
        self.unique(&[&first]);
        self.last().unique_keys[0].primary = true;
        self
    }

    /// The table that was added last.
    fn last(&mut self) -> &mut Table {
        let name = self.survey.tables.last().unwrap().name.written();
        self.catalogue.tables.get_mut(&name).unwrap()
    }

    /// The last table has no key so far.
    fn keyless(&mut self) -> &mut Self {
        self.last().unique_keys.clear();
        self.last().indexes.clear();
        self
    }

    /// Replaces the primary key of the last table.
    fn primary(&mut self, columns: &[&str]) -> &mut Self {
        self.keyless().unique(columns);
        self.last().unique_keys[0].primary = true;
        self
    }

    fn unique(&mut self, columns: &[&str]) -> &mut Self {
        let columns = owned(columns);
        self.last().unique_keys.push(UniqueKey {
            name: String::new(),
            columns: columns.clone(),
            primary: false,
            deferrable: false,
        });
        self.last().indexes.push(columns);
        self
    }

    fn indexed(&mut self, columns: &[&str]) -> &mut Self {
        let columns = owned(columns);
        self.last().indexes.push(columns);
        self
    }

    /// `columns` of the last table reference the primary key of `target`.
    fn refers(&mut self, columns: &[&str], target: &str) -> &mut Self {
        let target = &self.catalogue.tables[target];
        let key = ForeignKey {
            columns: owned(columns),
            target: target.name.oid,
            target_columns: target.primary_key().unwrap().to_vec(),
            cascades: false,
            deferrable: None,
        };
        self.last().foreign_keys.push(key);
        self
    }

    /// The same, and deletes cascade.
    fn belongs(&mut self, columns: &[&str], target: &str) -> &mut Self {
        self.refers(columns, target);
        self.last().foreign_keys.last_mut().unwrap().cascades = true;
        self
    }

    fn surveyed(&mut self) -> &mut SurveyedTable {
        self.survey.tables.last_mut().unwrap()
    }

    fn rows(&mut self, rows: f64) -> &mut Self {
        self.surveyed().rows = rows;
        self
    }

    fn distinct(&mut self, column: &str, distinct: f64, most_common: f64) -> &mut Self {
        let oid = self.last().name.oid;
        let statistics = ColumnStatistics {
            distinct,
            nulls: 0.0,
            most_common,
        };
        let of_table = self.survey.statistics.entry(oid).or_default();
        of_table.insert(column.into(), statistics);
        self
    }

    fn suggest(&self) -> Suggestion {
        self.suggest_with(&options())
    }

    fn suggest_with(&self, options: &SuggestOptions) -> Suggestion {
        suggest(&self.survey, &self.catalogue, options)
    }
}

fn options() -> SuggestOptions {
    SuggestOptions {
        depth: 2,
        is_writable: false,
        schemas: Vec::new(),
        tables: None,
        keys_per_statement: 10_000,
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn column(text: &str) -> Column {
    let (name, type_text) = text.split_once(' ').unwrap();
    let not_null = !name.ends_with('?');
    Column {
        name: name.trim_end_matches('?').into(),
        type_text: type_text.into(),
        plain_type: SqlType::Named(type_text.into()),
        stored_type: SqlType::Named(type_text.into()),
        type_oid: 20,
        collation: 0,
        base_type: type_text.into(),
        built_in: true,
        type_modifier: -1,
        deterministic: true,
        equality: Some(Equality::BUILT_IN),
        value: ValueType::Other,
        not_null,
        has_default: false,
        sequences: Vec::new(),
        generated: false,
        is_virtual: false,
        identity_always: false,
        dependent: None,
        type_tables: Vec::new(),
    }
}

/// Resources, children (`-`) and lookups (`>`), each with its columns; what is not in force has a `#`.
fn outline(suggestion: &Suggestion) -> String {
    let mut text = String::new();
    for resource in &suggestion.resources {
        let mark = mark(resource.off.as_ref());
        let key = resource.key.as_ref().map(|key| key.join(","));
        let key = key.map_or_else(String::new, |key| format!(" by {key}"));
        writeln!(text, "{mark}/{}{key}", resource.name).unwrap();
        below(&resource.row, 1, &mut text);
    }
    text
}

fn mark(off: Option<&String>) -> &'static str {
    if off.is_some() { "#" } else { "" }
}

fn below(row: &SuggestedRow, level: usize, text: &mut String) {
    let indent = "  ".repeat(level);
    for child in &row.children {
        let (mark, columns) = (mark(child.off.as_ref()), child.foreign_key.join(","));
        writeln!(text, "{indent}{mark}- {} by {columns}", child.name).unwrap();
        below(&child.row, level + 1, text);
    }
    for lookup in &row.lookups {
        let (mark, columns) = (mark(lookup.off.as_ref()), lookup.column.join(","));
        let to = lookup.references.as_ref().map(|to| to.join(","));
        let to = to.map_or_else(String::new, |to| format!(" to {to}"));
        writeln!(text, "{indent}{mark}> {} by {columns}{to}", lookup.name).unwrap();
    }
}

fn shop() -> Database {
    let mut shop = Database::default();
    shop.add("customers", "id int8, name text, password_hash text")
        .rows(50_000.0)
        .add("countries", "id int8, name text")
        .add(
            "orders",
            "id int8, customer_id int8, country_id? int8, no text, deleted_at? timestamptz",
        )
        .unique(&["no"])
        .indexed(&["customer_id"])
        .refers(&["customer_id"], "public.customers")
        .refers(&["country_id"], "public.countries")
        .add("products", "id int8, name text")
        .add("order_lines", "id int8, order_id int8, product_id int8")
        .indexed(&["order_id"])
        .belongs(&["order_id"], "public.orders")
        .refers(&["product_id"], "public.products")
        .add("shipments", "id int8, order_id int8")
        .unique(&["order_id"])
        .refers(&["order_id"], "public.orders")
        .add("tags", "id int8, word text")
        .add("order_tags", "order_id int8, tag_id int8")
        .primary(&["order_id", "tag_id"])
        .indexed(&["tag_id"])
        .refers(&["order_id"], "public.orders")
        .refers(&["tag_id"], "public.tags");
    shop
}

#[test]
fn schemas_and_tables_can_be_chosen() {
    let shop = shop();
    let by_schema = SuggestOptions {
        schemas: vec!["other".into()],
        ..options()
    };
    assert!(shop.suggest_with(&by_schema).resources.is_empty());
    let oid = |name: &str| shop.catalogue.tables[name].name.oid;
    let by_table = SuggestOptions {
        tables: Some([oid("public.order_tags"), oid("public.order_lines")].into()),
        ..options()
    };
    let suggestion = shop.suggest_with(&by_table);
    let expected = "/order_lines\n  > order by order_id\n  > product by product_id\n\
        /order_tags\n  > order by order_id\n  > tag by tag_id\n";
    assert_eq!(outline(&suggestion), expected);
    assert!(suggestion.left_out.is_empty());
}

#[test]
fn equal_databases_give_equal_suggestions() {
    let one = shop().suggest();
    let mut other = shop();
    // As after a dump: other oids, and constraints in another order.
    for surveyed in &mut other.survey.tables {
        surveyed.name.oid = 100 - surveyed.name.oid;
    }
    for table in other.catalogue.tables.values_mut() {
        table.name.oid = 100 - table.name.oid;
        table.foreign_keys.reverse();
        table.unique_keys.reverse();
        table.indexes.reverse();
        for key in &mut table.foreign_keys {
            key.target = 100 - key.target;
        }
    }
    let text = |suggestion: &Suggestion| {
        let text = format!("{suggestion:?}");
        let mut parts = text.split("oid: ");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |all, part| {
            all + part.trim_start_matches(|c: char| c.is_ascii_digit())
        })
    };
    assert_eq!(text(&one), text(&other.suggest()));
}
