//! What a database shows of its tables besides their definitions. `source/survey.rs` reads it.

use std::collections::HashMap;

use crate::resource::catalogue::TableName;
use crate::resource::suggest::secret_values::SecretValues;

/// The tables of a database.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Tables and views that are no partitions and not PostgreSQL's or larder's own: those of schema `public` first, then by
    /// schema and name.
    pub tables: Vec<SurveyedTable>,
    /// What is known of the values of columns that foreign keys consist of, by table and column.
    pub statistics: HashMap<u32, HashMap<String, ColumnStatistics>>,
    /// The columns of the same table that PostgreSQL computes a generated column from, by table and column.
    pub generated: HashMap<u32, HashMap<String, Vec<String>>>,
    /// The columns of some of whose values the look of a secret is known, by table and column.
    pub secret_values: HashMap<u32, HashMap<String, SecretValues>>,
}

/// A table or a view.
#[derive(Clone, Debug)]
pub struct SurveyedTable {
    /// Its name and oid; with escapes if it is not UTF-8.
    pub name: TableName,
    /// `pg_class.relkind`; `x` if its name, or that of a column, is not UTF-8.
    pub kind: char,
    /// Estimated, with those of its partitions; 0 if nothing is known.
    pub rows: f64,
    /// The extension that it belongs to.
    pub extension: Option<String>,
    /// larder's role may use its schema.
    pub is_usable: bool,
    /// larder's role may read some of its columns.
    pub is_readable: bool,
    /// The columns that larder's role may not read.
    pub unreadable_columns: Vec<String>,
}

/// What `pg_stats` has about a column.
#[derive(Clone, Copy, Debug)]
pub struct ColumnStatistics {
    /// The number of different values; if it is negative, their share of the rows, negated.
    pub distinct: f64,
    /// The share of rows in which it is null.
    pub nulls: f64,
    /// The share of rows that have the most common value; 0 if none is known.
    pub most_common: f64,
}
