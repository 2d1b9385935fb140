//! What the configuration says about a resource, before it is checked against the database.
//!
//! Every value has its [`Place`], so that a mistake that is found later, in comparison with PostgreSQL's catalogue, can
//! name the line and the key. Nothing here does I/O or depends on TOML.

use std::fmt;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::resource::condition::WrittenCondition;

/// Paths of the public address that are no resources.
pub const OWN_PATHS: [&str; 2] = ["docs", "openapi.json"];

/// The same if users can sign in.
pub const SIGNING_IN_PATHS: [&str; 3] = ["signin", "refresh", "signout"];

/// Whether a segment of a path may have `character`, so that no client, proxy or router rewrites it.
pub fn is_path_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || "_.~-".contains(character)
}

/// The place of a value in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The name of the file, or `environment`, `command line`, `built-in demo`.
    pub origin: Arc<str>,
    /// The line, counted from 1; 0 if the origin has no lines.
    pub line: usize,
    /// The dotted key, such as `resource[0].children[1].table`.
    pub key: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.origin, self.key),
            line => write!(f, "{}:{line}: {}", self.origin, self.key),
        }
    }
}

/// A value of the configuration and its place. Its `Debug` form is that of the value.
#[derive(Clone, PartialEq, Eq)]
pub struct Located<T> {
    /// The value, already of the right type.
    pub value: T,
    /// Its place.
    pub place: Place,
}

impl<T: fmt::Debug> fmt::Debug for Located<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// A mistake in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct Mistake {
    /// Its place.
    pub place: Place,
    /// A sentence for the user, which also says what to write instead, if that is known.
    pub message: String,
}

/// A tier that keeps documents in front of PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// The process's memory.
    Memory,
    /// Files under the state directory.
    Disk,
}

/// Which tiers a resource uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiers {
    /// Documents are kept in memory.
    pub memory: bool,
    /// Documents are kept on disk.
    pub disk: bool,
}

/// `[[resource]]`: a path segment, its root table and the shape of its documents.
#[derive(Clone, Debug)]
pub struct ResourceDefinition {
    /// The path segment.
    pub name: Located<String>,
    /// The root table's name as it is written: `dept`, `public.dept`, `"a.b".c`.
    pub table: Located<String>,
    /// The key's columns in path order; `None`: the table's primary key.
    pub key: Option<Located<Vec<String>>>,
    /// The tiers in use.
    pub tiers: Tiers,
    /// The user accepts that every reader sees the rows that larder's role sees.
    pub row_security_as_larder: bool,
    /// The names of the fields that lists can be filtered by.
    pub filters: Vec<Located<String>>,
    /// The value of `Cache-Control`; `None`: `no-cache`.
    pub cache_control: Option<Located<String>>,
    /// The words of `Surrogate-Key`. `{key}` in them stands for the document's key.
    pub surrogate_key: Option<Located<String>>,
    /// Requests may be strict: `Cache-Control: no-cache` has an effect.
    pub strict_reads: Located<bool>,
    /// The roles that may read; `None`: every authenticated client.
    pub read: Option<Located<Vec<String>>>,
    /// The roles that may write; `None`: every authenticated client; none of them: nobody.
    pub write: Option<Located<Vec<String>>>,
    /// Who owns a document; `None`: a client that may read or write may do so with all documents.
    pub owner: Option<OwnerDefinition>,
    /// Other keys of the documents.
    pub by: Vec<AliasDefinition>,
    /// Fields, children and lookups of the root row.
    pub row: RowDefinition,
}

impl ResourceDefinition {
    /// A resource of `table` with nothing else set.
    pub fn new(name: Located<String>, table: Located<String>, row: RowDefinition) -> Self {
        Self {
            strict_reads: Located {
                value: true,
                place: name.place.clone(),
            },
            name,
            table,
            key: None,
            tiers: Tiers {
                memory: true,
                disk: true,
            },
            row_security_as_larder: false,
            filters: Vec::new(),
            cache_control: None,
            surrogate_key: None,
            read: None,
            write: None,
            owner: None,
            by: Vec::new(),
            row,
        }
    }

    /// Whether nobody may write documents.
    pub fn is_read_only(&self) -> bool {
        let roles = self.write.as_ref();
        roles.is_some_and(|roles| roles.value.is_empty())
    }

    /// A hash of all that has to match the database, in hexadecimal digits. It does not depend on the place in the
    /// configuration.
    pub fn hash(&self) -> String {
        let Self {
            name: _,
            table,
            key,
            tiers: _,
            row_security_as_larder,
            filters,
            cache_control: _,
            surrogate_key: _,
            strict_reads: _,
            read: _,
            write: _,
            owner,
            by,
            row,
        } = self;
        let owner = owner.as_ref().map(|owner| &owner.column);
        let columns = (key, owner, by);
        let described = format!(
            "{:?}",
            (table, columns, row_security_as_larder, filters, row)
        );
        format!("{:016x}", xxh3_64(described.as_bytes()))
    }
}

/// `[resource.owner]`: who owns a document.
#[derive(Clone, Debug)]
pub struct OwnerDefinition {
    /// The root table's column that holds the owner.
    pub column: Located<String>,
    /// The claim that a client's owned documents have in this column.
    pub claim: Located<String>,
    /// Roles of `read` and `write` that are restricted to documents of their own.
    pub roles: Option<Located<Vec<String>>>,
}

/// `[[resource.by]]`: another key of the same documents.
#[derive(Clone, Debug)]
pub struct AliasDefinition {
    /// The path segment.
    pub name: Located<String>,
    /// The root table's columns that hold it.
    pub columns: Located<Vec<String>>,
}

/// What a row of a document shows. Roots, children and lookups have the same form.
#[derive(Clone, Debug)]
pub struct RowDefinition {
    /// `where`: an SQL condition on the row's own columns, as it is written. Rows for which it is not true do not exist
    /// for larder.
    pub condition: Option<Located<String>>,
    /// The columns to show, in order; `None`: every column under its own name.
    pub fields: Option<Vec<FieldDefinition>>,
    /// Arrays of rows that refer to this row.
    pub children: Vec<ChildDefinition>,
    /// Rows that this row refers to.
    pub lookups: Vec<LookupDefinition>,
}

impl RowDefinition {
    /// The conditions on rows of `table`, its own, and on those of the tables below, at any depth.
    pub fn conditions(&self, table: &str) -> Vec<WrittenCondition> {
        let own = self.condition.iter().map(|condition| WrittenCondition {
            table: table.to_owned(),
            text: condition.value.clone(),
        });
        let children = self.children.iter().map(|child| (&child.table, &child.row));
        let lookups = self
            .lookups
            .iter()
            .map(|lookup| (&lookup.table, &lookup.row));
        let below = children.chain(lookups);
        let below = below.flat_map(|(table, row)| row.conditions(&table.value));
        own.chain(below).collect()
    }
}

/// One entry of `fields = { column = "name" }`, or of `fields = ["column"]`.
#[derive(Clone, Debug)]
pub struct FieldDefinition {
    /// The table's column.
    pub column: Located<String>,
    /// Its name in the document.
    pub name: Located<String>,
}

/// `[[resource.children]]`: an array of objects.
#[derive(Clone, Debug)]
pub struct ChildDefinition {
    /// The field's name in the document.
    pub name: Located<String>,
    /// The child's table.
    pub table: Located<String>,
    /// The child's columns that hold the parent's key; `None`: the catalogue's one foreign key.
    pub foreign_key: Option<Located<Vec<String>>>,
    /// The child's columns to sort by; `None`: its primary key.
    pub order_by: Option<Located<Vec<String>>>,
    /// Its fields, children and lookups.
    pub row: RowDefinition,
}

/// `[[resource.lookups]]`: one object or null.
#[derive(Clone, Debug)]
pub struct LookupDefinition {
    /// The field's name in the document.
    pub name: Located<String>,
    /// The looked-up table.
    pub table: Located<String>,
    /// The columns of *this* row's table that point to the looked-up row.
    pub column: Located<Vec<String>>,
    /// The looked-up table's columns that hold the same; `None`: those that the foreign key references.
    pub references: Option<Located<Vec<String>>>,
    /// The looked-up table's column that holds the owner: a client that is restricted to its own documents may point to
    /// rows of its own.
    pub owner: Option<Located<String>>,
    /// Such a client may point to every row.
    pub shared: Located<bool>,
    /// Its fields and lookups; `children` is empty.
    pub row: RowDefinition,
}
