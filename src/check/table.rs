//! What the catalogue and the statistics say about a table as far as indexes are concerned. `source/plans/tables.rs` reads it.

use std::collections::{HashMap, HashSet};

use crate::resource::catalogue::TableName;

/// The tables that plans read, with their partitions.
#[derive(Clone, Debug, Default)]
pub struct TableShapes {
    /// By oid.
    pub tables: HashMap<u32, TableShape>,
    /// Schema and name of all tables and indexes that an index could not be named like.
    pub taken_names: HashSet<(String, String)>,
}

/// A table or a partition.
#[derive(Clone, Debug)]
pub struct TableShape {
    /// Its name and oid.
    pub name: TableName,
    /// `pg_class.relkind`.
    pub kind: char,
    /// Estimated.
    pub rows: f64,
    /// Rows that were deleted since the statistics were reset.
    pub deletes: i64,
    /// Without dropped ones.
    pub columns: Vec<ColumnShape>,
    /// Those that PostgreSQL keeps up to date.
    pub indexes: Vec<IndexShape>,
    /// The partitions and inheriting tables one level below.
    pub partitions: Vec<u32>,
    /// The first table that it is a partition of, or inherits from.
    pub parent: Option<u32>,
}

/// A column.
#[derive(Clone, Debug)]
pub struct ColumnShape {
    /// Its name.
    pub name: String,
    /// `pg_type.typname`, for a domain that of the type below all domains.
    pub base_type: String,
    /// The mean size of a value, in bytes.
    pub width: f64,
    /// In bytes: 1, 2, 4 or 8.
    pub alignment: f64,
    /// Its values have no fixed length.
    pub is_variable: bool,
    /// The number of different values.
    pub distinct: f64,
    /// The share of rows in which it is null.
    pub nulls: f64,
    /// A B-tree may keep equal values once.
    pub is_deduplicated: bool,
    /// Its collation orders texts by their bytes, or it has none.
    pub is_in_byte_order: bool,
    /// The type as which a B-tree compares its values, as PostgreSQL writes it: `text` for `varchar`, `inet` for `cidr`, the type
    /// below for a domain. `None` if it can be no column of a B-tree.
    pub compared_as: Option<String>,
    /// SQL for its value as the column of an index, if it is a virtual generated column.
    pub expression: Option<String>,
}

/// An index.
#[derive(Clone, Debug)]
pub struct IndexShape {
    /// Its name; its schema is that of the table.
    pub name: String,
    /// The access method.
    pub method: String,
    /// Its columns, without those of `include`.
    pub columns: Vec<IndexColumn>,
    /// It has further columns, of `include`.
    pub has_included: bool,
    /// No two rows are equal in it, unless null.
    pub is_unique: bool,
    /// It belongs to a constraint, is the replica identity, is the one that `cluster` uses, or is a partition of another index.
    pub is_needed: bool,
    /// Its predicate.
    pub predicate: Option<String>,
    /// Statements may use it.
    pub is_valid: bool,
}

/// A column of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexColumn {
    /// The table's column; `None` for an expression.
    pub column: Option<String>,
    /// Its operator class is the default one of the type, and its collation that of the column.
    pub is_plain: bool,
    /// Its operator class compares texts by their bytes (`text_pattern_ops`), and its collation is that of the column. It finds
    /// equal texts, too, but does not sort them.
    pub is_of_patterns: bool,
    /// `desc`
    pub is_descending: bool,
    /// Nulls stand where the direction puts them without `nulls first` and `nulls last`.
    pub has_default_nulls: bool,
}

impl TableShapes {
    /// The table of this name.
    pub fn named(&self, schema: &str, name: &str) -> Option<&TableShape> {
        let mut tables = self.tables.values();
        tables.find(|table| table.name.schema == schema && table.name.name == name)
    }

    /// The tables without partitions among `table` and what is below it, by name. Foreign tables are not among them: they can
    /// have no index.
    pub fn leaves<'t>(&'t self, table: &'t TableShape) -> Vec<&'t TableShape> {
        let mut leaves = Vec::new();
        self.collect_leaves(table, &mut leaves);
        leaves
    }

    fn collect_leaves<'t>(&'t self, table: &'t TableShape, leaves: &mut Vec<&'t TableShape>) {
        if !matches!(table.kind, 'p' | 'f') {
            leaves.push(table);
        }
        for below in self.partitions(table) {
            self.collect_leaves(below, leaves);
        }
    }

    /// Whether `parts` are all tables that make up the partitioned table `table`. One with a foreign table never is whole: no
    /// index can be on all of it.
    pub fn is_whole(&self, table: &TableShape, parts: &[&TableShape]) -> bool {
        table.kind == 'p'
            && self.leaves(table).len() == parts.len()
            && !self.has_foreign_table(table)
    }

    fn has_foreign_table(&self, table: &TableShape) -> bool {
        let mut below = self.partitions(table).into_iter();
        table.kind == 'f' || below.any(|below| self.has_foreign_table(below))
    }

    /// The partitions one level below a table, by name.
    pub fn partitions(&self, table: &TableShape) -> Vec<&TableShape> {
        let below = table.partitions.iter();
        let mut below: Vec<&TableShape> = below.filter_map(|oid| self.tables.get(oid)).collect();
        below.sort_by(|one, other| {
            (&one.name.schema, &one.name.name).cmp(&(&other.name.schema, &other.name.name))
        });
        below
    }
}

impl ColumnShape {
    /// Whether a B-tree on the column can serve a comparison of its values cast to a type.
    pub fn is_comparable_as(&self, cast: Option<&str>) -> bool {
        // A plan leaves out the schema of a type if the search path leads to it.
        let without_schema = |name: &str| name.rsplit('.').next().map(str::to_owned);
        self.compared_as.as_deref().is_some_and(|compared_as| {
            cast.is_none_or(|cast| without_schema(cast) == without_schema(compared_as))
        })
    }
}

impl TableShape {
    /// The column of this name.
    pub fn column(&self, name: &str) -> Option<&ColumnShape> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The index of this name.
    pub fn index(&self, name: &str) -> Option<&IndexShape> {
        self.indexes.iter().find(|index| index.name == name)
    }
}

impl IndexShape {
    /// Whether its first columns are `columns`, in any order, and a search by `=` finds rows by them. PostgreSQL decides
    /// whether a predicate allows that, so a partial index does not count here, except one of rows that are not null. An
    /// index that is not valid counts: what it lacks, another rule says.
    pub fn begins_with(&self, columns: &[String]) -> bool {
        let leading = self.columns.get(..columns.len()).unwrap_or_default();
        let has = |name: &String| {
            let mut leading = leading.iter();
            leading.any(|column| column.finds_equal() && column.column.as_ref() == Some(name))
        };
        matches!(self.method.as_str(), "btree" | "hash")
            && self.is_total_for(columns)
            && !leading.is_empty()
            && columns.iter().all(has)
    }

    /// Whether it finds the texts in `column` that begin with others. The column's collation may order them by their bytes.
    pub fn finds_prefixes(&self, column: &String, is_in_byte_order: bool) -> bool {
        let mut leading = self.columns.iter().take(1);
        self.method == "btree"
            && self.is_total_for(std::slice::from_ref(column))
            && leading.any(|first| {
                first.column.as_ref() == Some(column)
                    && (first.is_of_patterns || first.is_plain && is_in_byte_order)
            })
    }

    /// Whether it is a B-tree that begins with `columns` in this order, all in one direction after the first `equal` ones. It
    /// need not be valid.
    pub fn is_ordered_by(&self, columns: &[String], equal: usize) -> bool {
        let names = self.columns.iter().map(|column| column.column.as_ref());
        let is_same = names.take(columns.len()).eq(columns.iter().map(Some));
        let leading = self.columns.get(..columns.len()).unwrap_or_default();
        let mut sorting = leading.get(equal..).unwrap_or_default().iter();
        let first = leading.get(equal).is_some_and(|first| first.is_descending);
        self.method == "btree"
            && is_same
            && self.is_total_for(columns.get(..equal).unwrap_or_default())
            && leading.iter().all(|column| column.is_plain)
            && sorting.all(|column| column.is_descending == first && column.has_default_nulls)
    }

    /// Whether it has all rows in which `columns` have values.
    fn is_total_for(&self, columns: &[String]) -> bool {
        let Some(predicate) = &self.predicate else {
            return true;
        };
        columns.iter().any(|column| {
            let quoted = format!("\"{}\"", column.replace('"', "\"\""));
            [column, &quoted]
                .iter()
                .any(|name| *predicate == format!("({name} IS NOT NULL)"))
        })
    }

    /// Whether an index of `columns` in this order does all that this one does.
    pub fn is_redundant_beside(&self, columns: &[String]) -> bool {
        let names = self.columns.iter().map(|column| column.column.as_ref());
        let is_prefix = self.columns.len() <= columns.len()
            && names.eq(columns.iter().take(self.columns.len()).map(Some));
        let is_single_hash = self.method == "hash";
        let mut own = self.columns.iter();
        (self.method == "btree" || is_single_hash)
            && is_prefix
            && own
                .all(|column| column.is_plain && !column.is_descending && column.has_default_nulls)
            && !self.is_unique
            && !self.is_needed
            && !self.has_included
            && self.predicate.is_none()
    }
}

impl IndexColumn {
    /// Whether a search by `=` can use it.
    fn finds_equal(&self) -> bool {
        self.is_plain || self.is_of_patterns
    }
}
