//! What every document must be, assembled from one plain `select` of each table.
//!
//! Shares nothing with the product: neither its SQL nor PostgreSQL's functions for JSON. All rows come from one
//! snapshot.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row as _};

use crate::documents::rendering::{ColumnKind, quoted};

/// A table's name in SQL and its columns.
pub(crate) struct TableColumns {
    pub(crate) sql: &'static str,
    pub(crate) columns: &'static [(&'static str, ColumnKind)],
}

/// The members of one JSON object.
#[derive(Clone)]
pub(crate) struct Shape {
    table: &'static TableColumns,
    /// Column and member name.
    fields: Vec<(&'static str, &'static str)>,
    /// Arrays, then single rows.
    below: Vec<ShapeLink>,
}

#[derive(Clone)]
struct ShapeLink {
    name: &'static str,
    /// The row's own column and the one above it that it equals.
    on: Vec<(&'static str, &'static str)>,
    /// An array in this order, or one row.
    order: Option<&'static str>,
    shape: Shape,
}

/// Documents under a path segment.
#[derive(Clone)]
pub(crate) struct DocumentedResource {
    pub(crate) name: &'static str,
    pub(crate) key: &'static [&'static str],
    pub(crate) shape: Shape,
}

/// The JSON of documents, by path.
pub(crate) type DocumentsByPath = BTreeMap<String, String>;

type TableRows = Vec<HashMap<&'static str, Option<String>>>;

impl TableColumns {
    fn select(&self, order: Option<&str>) -> String {
        let columns: Vec<String> = self
            .columns
            .iter()
            // Under its own name the text would be what `order by` sorts.
            .map(|(name, _)| format!("\"{}\"::text as text", name.replace('"', "\"\"")))
            .collect();
        let order = order.unwrap_or("1");
        format!(
            "select {} from {} order by {order}",
            columns.join(", "),
            self.sql
        )
    }

    fn kind(&self, column: &str) -> ColumnKind {
        let found = self.columns.iter().find(|(name, _)| *name == column);
        found
            .unwrap_or_else(|| panic!("no {column} in {}", self.sql))
            .1
    }
}

impl Shape {
    /// These columns under these names.
    pub(crate) fn of(
        table: &'static TableColumns,
        fields: &[(&'static str, &'static str)],
    ) -> Self {
        Self {
            table,
            fields: fields.to_vec(),
            below: Vec::new(),
        }
    }

    /// Every column under its own name.
    pub(crate) fn whole(table: &'static TableColumns) -> Self {
        let fields: Vec<_> = table
            .columns
            .iter()
            .map(|(name, _)| (*name, *name))
            .collect();
        Self::of(table, &fields)
    }

    pub(crate) fn children(
        mut self,
        name: &'static str,
        on: &[(&'static str, &'static str)],
        order: &'static str,
        shape: Shape,
    ) -> Self {
        let (on, order) = (on.to_vec(), Some(order));
        self.below.push(ShapeLink {
            name,
            on,
            order,
            shape,
        });
        self
    }

    pub(crate) fn lookup(
        mut self,
        name: &'static str,
        on: &[(&'static str, &'static str)],
        shape: Shape,
    ) -> Self {
        let on = on.to_vec();
        self.below.push(ShapeLink {
            name,
            on,
            order: None,
            shape,
        });
        self
    }

    fn wide(&self) -> Self {
        let below = self.below.iter().map(|link| ShapeLink {
            shape: link.shape.wide(),
            ..link.clone()
        });
        Self {
            below: below.collect(),
            ..Self::whole(self.table)
        }
    }

    fn collect_selects(
        &self,
        order: Option<&'static str>,
        selects: &mut Vec<(String, &'static TableColumns)>,
    ) {
        let select = self.table.select(order);
        if !selects.iter().any(|(known, _)| *known == select) {
            selects.push((select, self.table));
        }
        for link in &self.below {
            link.shape.collect_selects(link.order, selects);
        }
    }

    fn write(
        &self,
        row: &HashMap<&'static str, Option<String>>,
        tables: &HashMap<String, TableRows>,
        out: &mut String,
    ) {
        let mut separator = '{';
        for (column, name) in &self.fields {
            let value = self.table.kind(column).json(row[column].as_deref());
            write!(out, "{separator}{}:{value}", quoted(name)).unwrap();
            separator = ',';
        }
        for link in &self.below {
            write!(out, "{separator}{}:", quoted(link.name)).unwrap();
            separator = ',';
            let belongs = |below: &&HashMap<&'static str, Option<String>>| {
                link.on
                    .iter()
                    .all(|(own, upper)| below[own].is_some() && below[own] == row[upper])
            };
            let rows = &tables[&link.shape.table.select(link.order)];
            let mut rows = rows.iter().filter(belongs);
            if link.order.is_none() {
                match rows.next() {
                    Some(below) => link.shape.write(below, tables, out),
                    None => out.push_str("null"),
                }
                assert!(rows.next().is_none(), "{} finds several rows", link.name);
                continue;
            }
            out.push('[');
            for (number, below) in rows.enumerate() {
                if number > 0 {
                    out.push(',');
                }
                link.shape.write(below, tables, out);
            }
            out.push(']');
        }
        out.push('}');
    }
}

impl DocumentedResource {
    /// The same rows with every column: what differs here is touched, whether it shows or not.
    pub(crate) fn wide(&self) -> Self {
        Self {
            shape: self.shape.wide(),
            ..self.clone()
        }
    }
}

/// Every document of `documented` as the database at `connection` has it now.
pub(crate) async fn documents(
    connection: &mut PgConnection,
    documented: &[DocumentedResource],
) -> DocumentsByPath {
    let mut selects = Vec::new();
    for documented in documented {
        documented.shape.collect_selects(None, &mut selects);
    }
    let mut snapshot = connection
        .begin_with("begin isolation level repeatable read, read only")
        .await
        .unwrap();
    sqlx::raw_sql("set local timezone = 'UTC'; set local search_path = pg_catalog")
        .execute(&mut *snapshot)
        .await
        .unwrap();
    let mut tables: HashMap<String, TableRows> = HashMap::new();
    for (select, table) in selects {
        let found = sqlx::query(AssertSqlSafe(select.clone()))
            .persistent(false)
            .fetch_all(&mut *snapshot)
            .await
            .unwrap();
        let rows = found.iter().map(|row| {
            let columns = table.columns.iter().enumerate();
            columns
                .map(|(number, (name, _))| (*name, row.get(number)))
                .collect()
        });
        tables.insert(select, rows.collect());
    }
    snapshot.commit().await.unwrap();
    let mut documents = DocumentsByPath::new();
    for DocumentedResource { name, key, shape } in documented {
        for row in &tables[&shape.table.select(None)] {
            let parts: Vec<String> = key
                .iter()
                .map(|column| encoded(row[column].as_deref().unwrap()))
                .collect();
            let mut document = String::new();
            shape.write(row, &tables, &mut document);
            documents.insert(format!("/{name}/{}", parts.join(",")), document);
        }
    }
    documents
}

/// Percent-encodes all but letters, digits, `-`, `.` and `_`.
fn encoded(part: &str) -> String {
    let mut encoded = String::new();
    for byte in part.bytes() {
        match byte {
            b'-' | b'.' | b'_' => encoded.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => encoded.push(char::from(byte)),
            byte => write!(encoded, "%{byte:02X}").unwrap(),
        }
    }
    encoded
}
