//! The drawn schemas: the tables of a resource, the owners of its documents, which of its rows are visible, and its aliases.

mod draw;

use std::ops::Range;

use crate::checks::scope::kinds::Kind;

/// Keys of roots have parts below this.
pub(super) const KEYS: i64 = 12;
/// The second part of a key, or of an alias, is below this.
pub(super) const SECOND_PARTS: i64 = 3;
/// Owners. The last one is no principal's.
pub(super) const OWNERS: Range<i64> = 1..5;
/// Rows of each table of lookups.
pub(super) const LOOKUP_ROWS: i64 = 6;
/// Rows below one row, when documents are drawn.
pub(super) const ROWS_BELOW: i64 = 3;
/// How often the default of a long column repeats a word.
pub(super) const LONG: usize = 300;
/// Keys of rows below are below this.
pub(super) const CHILD_KEYS: i64 = 60;

/// The tables of one resource.
#[derive(Clone, Debug)]
pub(super) struct Schema {
    pub(super) seed: u64,
    /// Of the schema in PostgreSQL and of the resource.
    pub(super) name: String,
    /// The root first, each other table after the one that it belongs to.
    pub(super) tables: Vec<Table>,
    pub(super) owner: Option<Owner>,
    pub(super) aliases: Vec<Alias>,
    /// Roles.
    pub(super) read: Vec<&'static str>,
    pub(super) write: Vec<&'static str>,
    /// Documents are long enough to be encoded.
    pub(super) is_long: bool,
}

/// A table, whose rows are the roots of documents or belong to another table's rows.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// Also the member of the document.
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) columns: Vec<Column>,
    /// Rows are visible if all of these are true.
    pub(super) conditions: Vec<&'static str>,
    /// A trigger sets `gone` instead of deleting a row.
    pub(super) is_soft: bool,
}

/// Where the rows of a table belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Root,
    Child {
        parent: usize,
        /// `on delete cascade`; else PostgreSQL refuses to delete the row above.
        cascades: bool,
    },
    Lookup {
        of: usize,
        /// The column of the table above that points to the row.
        column: String,
        access: Access,
        has_foreign_key: bool,
    },
}

/// Which rows of a lookup a restricted principal may point to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Nobody,
    Owner,
    Shared,
}

#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) kind: Kind,
    /// The type is a domain over `kind`.
    pub(super) is_domain: bool,
    pub(super) is_nullable: bool,
    /// The document has it.
    pub(super) is_shown: bool,
    /// SQL for what a new row has without a value.
    pub(super) default: Option<&'static str>,
}

/// What a column is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Key,
    /// Holds the key of the row above.
    Link,
    Owner,
    /// A part of an alias.
    Alias,
    /// Points to the row of a lookup.
    Pointer,
    /// `a`, `b` and `gone`.
    Plain,
}

/// Who owns a document.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub(super) kind: Kind,
    pub(super) claim: &'static str,
    /// Restricted roles.
    pub(super) roles: Vec<&'static str>,
}

/// Another key of the documents.
#[derive(Clone, Debug)]
pub(super) struct Alias {
    pub(super) name: String,
    /// Names and types of its columns.
    pub(super) columns: Vec<(String, Kind)>,
    /// The conditions of the root that its index has.
    pub(super) index_conditions: Vec<&'static str>,
}

impl Schema {
    /// A table, as SQL names it.
    pub(super) fn table_sql(&self, table: usize) -> String {
        format!("{}.{}", self.name, self.tables[table].name)
    }

    /// The visible rows of a table, as SQL.
    pub(super) fn visible_sql(&self, table: usize) -> String {
        let condition = self.tables[table].condition_sql();
        format!(
            "(select * from {} where {condition})",
            self.table_sql(table)
        )
    }

    /// The types of the parts of a key.
    pub(super) fn key_kinds(&self) -> Vec<Kind> {
        self.tables[0]
            .of_role(Role::Key)
            .map(|column| column.kind)
            .collect()
    }

    /// The tables of children directly below `table`.
    pub(super) fn children(&self, table: usize) -> impl Iterator<Item = usize> {
        let numbered = self.tables.iter().enumerate();
        numbered.filter_map(move |(number, below)| {
            matches!(below.place, Place::Child { parent, .. } if parent == table).then_some(number)
        })
    }

    /// The tables of the lookups of `table`, with the columns that point to their rows.
    pub(super) fn lookups(&self, table: usize) -> impl Iterator<Item = (usize, &str, Access)> {
        let numbered = self.tables.iter().enumerate();
        numbered.filter_map(move |(number, below)| match &below.place {
            Place::Lookup {
                of, column, access, ..
            } if *of == table => Some((number, &**column, *access)),
            _ => None,
        })
    }
}

impl Table {
    /// The condition of visible rows, as SQL.
    pub(super) fn condition_sql(&self) -> String {
        let conditions: Vec<String> = self
            .conditions
            .iter()
            .map(|one| format!("({one})"))
            .collect();
        match &conditions[..] {
            [] => "true".to_owned(),
            conditions => conditions.join(" and "),
        }
    }

    pub(super) fn of_role(&self, role: Role) -> impl Iterator<Item = &Column> {
        self.columns
            .iter()
            .filter(move |column| column.role == role)
    }

    pub(super) fn shown(&self) -> impl Iterator<Item = &Column> {
        self.columns.iter().filter(|column| column.is_shown)
    }
}
