//! What PostgreSQL's catalogue says about the tables that the configuration names. `source/catalogue.rs` has the SQL
//! that reads it.

use std::collections::HashMap;
use std::fmt;

use crate::resource::condition::{AcceptedCondition, WrittenCondition};
use crate::resource::row_security::TableRowSecurity;
use crate::resource::sql::identifier;
use crate::resource::sql_type::{Equality, SqlType};
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

    /// Schema and name as the configuration has them: a part with a dot, or that begins with a double quote, is in double
    /// quotes.
    pub fn written(&self) -> String {
        let part = |text: &str| {
            if text.contains('.') || text.starts_with('"') {
                format!("\"{}\"", text.replace('"', "\"\""))
            } else {
                text.to_owned()
            }
        };
        format!("{}.{}", part(&self.schema), part(&self.name))
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
    /// The tables by their names as they are written in the configuration. A name that is missing is not a table.
    pub tables: HashMap<String, Table>,
    /// The names of all tables of the database, as `schema.name`, for suggestions.
    pub known_names: Vec<String>,
    /// The conditions on their rows, each as PostgreSQL writes it, or a sentence that says why it can't be used.
    pub conditions: HashMap<WrittenCondition, Result<AcceptedCondition, String>>,
}

/// A table as the catalogue describes it.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its name and oid.
    pub name: TableName,
    /// `pg_class.relkind`.
    pub kind: char,
    /// What row security lets larder's role see; `None` if the table has none.
    pub row_security: Option<TableRowSecurity>,
    /// The table or one of its descendants is a partition or an inheriting table of a table that is neither.
    pub has_other_ancestors: bool,
    /// If larder's role may see other rows although none of them has changed, the reason: a policy that depends on more
    /// than the row.
    pub uncached: Option<String>,
    /// The columns in table order, without dropped ones.
    pub columns: Vec<Column>,
    /// Unique constraints and indexes that apply to every row: valid, not partial, on plain columns; immediate, but for
    /// the primary key.
    pub unique_keys: Vec<UniqueKey>,
    /// Foreign keys of this table.
    pub foreign_keys: Vec<ForeignKey>,
    /// The columns of every valid index that is not partial, in index order.
    pub indexes: Vec<Vec<String>>,
    /// Partitions and inheriting tables at all levels.
    pub descendants: Vec<Descendant>,
    /// Constraints and unique indexes of the table and its descendants, and the domains of its columns.
    pub constraints: Vec<Constraint>,
    /// What runs when its rows are written.
    pub on_write: OnWrite,
}

/// A constraint or a unique index, by the names that PostgreSQL's errors have; or a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// The schema of the table or domain.
    pub schema: String,
    /// The table that has it, which may be a descendant; or the domain.
    pub table: String,
    /// Its name; `None` for all constraints of a domain.
    pub name: Option<String>,
    /// The columns that it depends on; the columns that have the domain, also within their type.
    pub columns: Vec<String>,
}

/// What PostgreSQL runs when rows of a table, or of its descendants, are written, besides larder's own triggers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnWrite {
    /// There are triggers that users have made.
    pub has_triggers: bool,
    /// One of them is called before a row is inserted, which it may change or leave out.
    pub has_before_insert: bool,
    /// One of them is called before a row is deleted, which it may keep.
    pub has_before_delete: bool,
    /// One of them is called by a statement that deletes rows, also if it deletes none.
    pub has_statement_delete: bool,
    /// A constraint or a trigger is checked or called only before the commit, unless `set constraints` says otherwise.
    pub has_deferred: bool,
    /// There are rules (`create rule`), which replace statements by others.
    pub has_rules: bool,
}

impl Catalogue {
    /// The table of this name.
    pub fn table(&self, name: &TableName) -> Option<&Table> {
        self.tables.values().find(|table| table.name == *name)
    }
}

impl Table {
    /// The first of the columns `names` that is virtual and may change without its row, with the reason.
    pub(crate) fn dependent_expression<N: AsRef<str>>(&self, names: &[N]) -> Option<String> {
        let columns = names.iter().filter_map(|name| self.column(name.as_ref()));
        let mut dependent = columns
            .filter(|column| column.is_virtual)
            .filter_map(|column| Some((&column.name, column.dependent.as_ref()?)));
        let (name, why) = dependent.next()?;
        Some(format!("column {name} of {}, {why}", self.name))
    }

    /// The column of this name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The primary key's columns.
    pub fn primary_key(&self) -> Option<&[String]> {
        let key = self.unique_keys.iter().find(|key| key.primary)?;
        Some(&key.columns)
    }

    /// Whether `columns` contain all columns of a unique key.
    pub fn is_unique(&self, columns: &[String]) -> bool {
        self.unique_keys
            .iter()
            .any(|key| key.columns.iter().all(|column| columns.contains(column)))
    }

    /// Whether a unique key has exactly these columns, in any order.
    pub fn is_unique_by(&self, columns: &[String]) -> bool {
        let mut keys = self.unique_keys.iter();
        keys.any(|key| is_same_set(&key.columns, columns))
    }

    /// Whether `columns` contain all columns of a unique key that no statement can violate.
    pub fn is_always_unique(&self, columns: &[&str]) -> bool {
        let mut immediate = self.unique_keys.iter().filter(|key| !key.deferrable);
        immediate.any(|key| {
            let mut parts = key.columns.iter();
            parts.all(|column| columns.contains(&column.as_str()))
        })
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

    /// Whether an index starts with `columns` in this order.
    pub fn is_ordered_by(&self, columns: &[&str]) -> bool {
        let mut indexes = self.indexes.iter();
        indexes.any(|index| {
            index.len() >= columns.len() && index.iter().zip(columns).all(|(has, name)| has == name)
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

/// A column as the catalogue describes it.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// The type as `format_type` writes it, with domains.
    pub type_text: String,
    /// The type below all domains, without a length, in a form that allows any length.
    pub plain_type: SqlType,
    /// The type below all domains, with its length and precision.
    pub stored_type: SqlType,
    /// `pg_attribute.atttypid`.
    pub type_oid: u32,
    /// `pg_attribute.attcollation`.
    pub collation: u32,
    /// `pg_type.typname` below all domains: `int8`, `_timestamp`, `my_enum`.
    pub base_type: String,
    /// The base type is a built-in type, in schema `pg_catalog`.
    pub built_in: bool,
    /// The type modifier below all domains, or -1 without one.
    pub type_modifier: i32,
    /// False for a nondeterministic collation.
    pub deterministic: bool,
    /// How its values are compared, if PostgreSQL has a default btree operator class for its type below all domains, or for a
    /// type that has the same values. `None` for arrays, ranges, enums and composite types, whose classes are those of all such.
    pub equality: Option<Equality>,
    /// The values that it can have.
    pub value: ValueType,
    /// It or its domain is `not null`.
    pub not_null: bool,
    /// PostgreSQL gives it a value in a row that is inserted without one: it or its domain has a default, or it is an
    /// identity column.
    pub has_default: bool,
    /// The sequences that its default calls, as `schema.name`, quoted where that is needed.
    pub sequences: Vec<String>,
    /// PostgreSQL computes it from other columns.
    pub generated: bool,
    /// PostgreSQL computes it when it is read (PostgreSQL 18). Triggers do not see its value.
    pub is_virtual: bool,
    /// `generated always as identity`
    pub identity_always: bool,
    /// If its JSON may change without a change of its row, the reason, in words that follow the column's name.
    pub dependent: Option<String>,
    /// The tables of extensions that its JSON may depend on.
    pub type_tables: Vec<TableName>,
}

/// Whether both have the same columns, in any order.
pub(crate) fn is_same_set(one: &[String], other: &[String]) -> bool {
    one.len() == other.len() && one.iter().all(|column| other.contains(column))
}

/// A unique constraint or index.
#[derive(Clone, Debug)]
pub struct UniqueKey {
    /// Of its index, which its constraint has, too.
    pub name: String,
    /// Its columns.
    pub columns: Vec<String>,
    /// It is the primary key.
    pub primary: bool,
    /// Rows may violate it until their transaction ends.
    pub deferrable: bool,
}

/// A foreign key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignKey {
    /// The referencing columns.
    pub columns: Vec<String>,
    /// The referenced table.
    pub target: u32,
    /// The referenced columns, one for each of `columns`.
    pub target_columns: Vec<String>,
    /// A referenced row that is deleted takes the referencing ones with it.
    pub cascades: bool,
    /// For one that may be checked at the end of the transaction: its name with its schema, as SQL.
    pub deferrable: Option<String>,
}
