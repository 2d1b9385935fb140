//! What PostgreSQL's catalogue says of the tables that the configuration names. Plain values: the SQL that fills
//! them is in `source/catalogue.rs`.

use std::collections::HashMap;
use std::fmt;

use crate::resource::row_security::TableRowSecurity;
use crate::resource::sql::identifier;
use crate::resource::value::ValueType;

/// A table's name and identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableName {
    /// `pg_class.oid`.
    pub oid: u32,
    /// The schema, unquoted.
    pub schema: String,
    /// The name, unquoted.
    pub name: String,
}

impl TableName {
    /// Schema and name, quoted, for SQL text.
    pub fn sql(&self) -> String {
        format!("{}.{}", identifier(&self.schema), identifier(&self.name))
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

/// The tables that the configuration names.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    /// By the name as it is written in the configuration; a name that is missing here is no table.
    pub tables: HashMap<String, Table>,
    /// Names of the tables there are, as `schema.name`, for suggestions.
    pub known_names: Vec<String>,
}

/// One table as the catalogue has it.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its name and oid.
    pub name: TableName,
    /// `pg_class.relkind`.
    pub kind: char,
    /// What it lets larder's role see, where row security is on.
    pub row_security: Option<TableRowSecurity>,
    /// It, or one of its descendants, is a partition or an inheriting table of a table that is neither.
    pub has_other_ancestors: bool,
    /// Why larder's role may see other rows though none of them changed: a policy that is not decided by the row alone.
    pub uncached: Option<String>,
    /// In table order, without dropped ones.
    pub columns: Vec<Column>,
    /// Unique constraints and indexes that hold for every row: valid, immediate, not partial, on plain columns.
    pub unique_keys: Vec<UniqueKey>,
    /// Foreign keys of this table.
    pub foreign_keys: Vec<ForeignKey>,
    /// The columns of every valid, whole index, in index order.
    pub indexes: Vec<Vec<String>>,
    /// Partitions and inheriting tables, all levels.
    pub descendants: Vec<Descendant>,
}

impl Table {
    /// The column of this name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The primary key's columns.
    pub fn primary_key(&self) -> Option<&[String]> {
        let key = self.unique_keys.iter().find(|key| key.primary)?;
        Some(&key.columns)
    }

    /// Whether some unique key consists of a part of `columns`.
    pub fn is_unique(&self, columns: &[String]) -> bool {
        self.unique_keys
            .iter()
            .any(|key| key.columns.iter().all(|column| columns.contains(column)))
    }

    /// Whether an index starts with `columns`, in any order.
    pub fn is_indexed(&self, columns: &[&str]) -> bool {
        self.indexes.iter().any(|index| {
            index.len() >= columns.len()
                && index[..columns.len()]
                    .iter()
                    .all(|column| columns.contains(&column.as_str()))
        })
    }
}

/// A partition or an inheriting table.
#[derive(Clone, Debug)]
pub struct Descendant {
    /// Its name and oid.
    pub name: TableName,
    /// `pg_class.relkind`.
    pub kind: char,
}

/// A column as the catalogue has it.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// The type as `format_type` writes it, domains and all.
    pub type_text: String,
    /// The same without a length, in words that mean any length.
    pub plain_type_text: String,
    /// `pg_attribute.atttypid`.
    pub type_oid: u32,
    /// `pg_attribute.attcollation`.
    pub collation: u32,
    /// `pg_type.typname` below all domains: `int8`, `_timestamp`, `my_enum`.
    pub base_type: String,
    /// The base type is PostgreSQL's own, in schema `pg_catalog`.
    pub built_in: bool,
    /// For an array whose elements are of PostgreSQL's own types below all domains: that type's name.
    pub element_type: Option<String>,
    /// The type modifier below all domains; -1 where there is none.
    pub type_modifier: i32,
    /// False for a nondeterministic collation.
    pub deterministic: bool,
    /// What values it takes.
    pub value: ValueType,
    /// It or its domain is `not null`.
    pub not_null: bool,
    /// SQL for the value of a row without one: the column's default, its domain's, or an identity's `nextval(…)`.
    pub default: Option<String>,
    /// PostgreSQL computes it from other columns.
    pub generated: bool,
    /// It is computed when it is read (PostgreSQL 18): triggers do not see its value.
    pub is_virtual: bool,
    /// `generated always as identity`
    pub identity_always: bool,
    /// Why its JSON may change without a change of its row, in words that follow the column's name.
    pub dependent: Option<String>,
}

/// A unique constraint or index.
#[derive(Clone, Debug)]
pub struct UniqueKey {
    /// Its columns.
    pub columns: Vec<String>,
    /// It is the primary key.
    pub primary: bool,
}

/// A foreign key.
#[derive(Clone, Debug)]
pub struct ForeignKey {
    /// The referencing columns.
    pub columns: Vec<String>,
    /// The referenced table.
    pub target: u32,
    /// The referenced columns, one for each of `columns`.
    pub target_columns: Vec<String>,
}
