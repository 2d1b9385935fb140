//! What the catalogue and the statistics say about tables and indexes as they are. `source/facts.rs` reads it.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::resource::catalogue::TableName;
use crate::resource::definition::Place;

/// Tables with their indexes, and what their statistics are worth.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// By schema and name.
    pub tables: Vec<TableFacts>,
    /// Further tables, of which nothing could be read, since another transaction has locked them.
    pub locked: Vec<TableName>,
    /// How long the statistics have been counting.
    pub counted_for: Duration,
    /// Statements may use indexes on a standby as well, whose statistics are its own.
    pub has_standby: bool,
}

/// What the plans of statements say about indexes. Each is named by its schema and its name, unquoted.
#[derive(Clone, Debug, Default)]
pub struct PlannedIndexes {
    /// Those that serve a statement.
    pub used: BTreeSet<(String, String)>,
    /// Those that a finding drops, since the index that it creates does all that they do.
    pub dropped: BTreeSet<(String, String)>,
}

/// A table or a partition.
#[derive(Clone, Debug)]
pub struct TableFacts {
    /// Its name and oid.
    pub name: TableName,
    /// `pg_class.relkind`.
    pub kind: char,
    /// What of the configuration names it, or a table that it is a part of. Other tables only refer to such a table.
    pub place: Option<Place>,
    /// Rows as the statistics count them.
    pub live_rows: i64,
    /// Rows that are deleted or replaced, and not removed yet.
    pub dead_rows: i64,
    /// Updates since the statistics were reset.
    pub updates: i64,
    /// Those of them that wrote no index.
    pub hot_updates: i64,
    /// In percent.
    pub fillfactor: i64,
    /// There are statistics on its columns.
    pub is_analysed: bool,
    /// The columns of each of its foreign keys.
    pub foreign_keys: Vec<Vec<String>>,
    /// By name.
    pub indexes: Vec<IndexFacts>,
}

/// An index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexFacts {
    /// The schema, unquoted.
    pub schema: String,
    /// The name, unquoted.
    pub name: String,
    /// The access method.
    pub method: String,
    /// Without those of `include`.
    pub columns: Vec<KeyColumn>,
    /// The columns of `include`.
    pub included: Vec<String>,
    /// Its predicate, as PostgreSQL writes it.
    pub predicate: Option<String>,
    /// No two rows are equal in it.
    pub is_unique: bool,
    /// Its uniqueness may be checked only at the commit.
    pub is_deferrable: bool,
    /// Nulls count as equal (`nulls not distinct`).
    pub nulls_are_equal: bool,
    /// The parameters of the access method; `None` for a B-tree and a hash index, which find the same under all.
    pub parameters: Option<String>,
    /// It belongs to a constraint, or a foreign key relies on it.
    pub is_of_constraint: bool,
    /// Logical replication names rows by it.
    pub is_replica_identity: bool,
    /// `cluster` orders the table by it.
    pub is_clustered: bool,
    /// It is the index of a partitioned table, without content of its own.
    pub is_partitioned: bool,
    /// The oids of the partitions, one level below, of which no index is attached to it.
    pub unattached: Vec<u32>,
    /// It is a part of the index of a partitioned table.
    pub is_attached: bool,
    /// Statements may use it, and writes keep it up to date.
    pub is_valid: bool,
    /// A session builds an index of the table at the moment.
    pub is_being_built: bool,
    /// On disk, by the last `vacuum` or `analyze`.
    pub bytes: u64,
    /// Scans since the statistics were reset.
    pub scans: i64,
}

/// A column of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyColumn {
    /// The column's name, quoted where it has to be, or the expression.
    pub text: String,
    /// It is an expression.
    pub is_expression: bool,
    /// The oid of the operator class.
    pub operator_class: i64,
    /// The parameters of the operator class.
    pub parameters: Option<String>,
    /// The oid of the collation, or 0.
    pub collation: i64,
    /// `desc`, `nulls first`: as in `pg_index.indoption`.
    pub options: i32,
}

impl IndexFacts {
    /// Schema and name, unquoted.
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }

    /// Whether `indexes` name it.
    pub fn is_in(&self, indexes: &BTreeSet<(String, String)>) -> bool {
        indexes.contains(&(self.schema.clone(), self.name.clone()))
    }

    /// Whether it has an expression in place of a column.
    pub fn has_expression(&self) -> bool {
        self.columns.iter().any(|column| column.is_expression)
    }

    /// Whether its first columns are `columns`, in any order.
    pub fn begins_with(&self, columns: &[String]) -> bool {
        let leading = self.columns.get(..columns.len()).unwrap_or_default();
        let has = |name: &String| {
            let mut leading = leading.iter();
            leading.any(|column| !column.is_expression && column.text == *name)
        };
        !leading.is_empty() && columns.iter().all(has)
    }
}
