//! What a document is: its key, its rows and the SQL text that reads it. Does no I/O.
//!
//! A [`definition::ResourceDefinition`] is what the configuration says, a [`catalogue::Catalogue`] what PostgreSQL has.
//! [`resolve::resolve`] checks the first against the second and returns [`Resource`]s. For a resource, [`query`] has
//! the statement that reads documents, [`document`] converts its result to JSON, and [`link`] says which rows' changes
//! affect which documents. For writes, [`writable`] describes the rows of a document, [`body`] reads them from JSON,
//! and [`mod@write`] has the statements that put them into the tables.

pub mod body;
mod calendar;
pub mod catalogue;
pub(crate) mod changes;
pub mod condition;
mod date_time;
pub mod definition;
pub mod document;
pub mod due;
pub mod filter;
pub mod find;
pub mod fingerprint;
pub mod kept;
pub mod key;
pub mod link;
pub mod page;
pub mod projection;
pub mod proof;
pub mod query;
pub mod resolve;
pub mod row_security;
pub(crate) mod sql;
pub mod sql_type;
pub mod suggest;
pub(crate) mod suggestion;
#[cfg(test)]
pub(crate) mod testing;
pub mod value;
pub mod writable;
pub mod write;

use std::borrow::Cow;
use std::num::TryFromIntError;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::resource::catalogue::TableName;
use crate::resource::condition::Condition;
use crate::resource::definition::{Place, Tiers};
use crate::resource::document::{DocumentTemplate, Scalar};
use crate::resource::filter::Filter;
use crate::resource::fingerprint::Fingerprint;
use crate::resource::kept::KeptColumns;
use crate::resource::key::{KeyColumn, KeyShape};
use crate::resource::proof::ProvedSql;
use crate::resource::row_security::RowSecurity;
use crate::resource::sql::identifier;
use crate::resource::value::ValueType;
use crate::resource::writable::Writable;
use crate::resource::write::WriteSql;

/// The number of a resource: its place in the configuration, which does not change while larder runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceId(usize);

impl ResourceId {
    /// The resource at `index`, counted from 0.
    pub const fn new(index: usize) -> Self {
        Self(index)
    }

    /// The place of the resource in lists that have one item for each resource.
    pub const fn index(self) -> usize {
        self.0
    }

    /// All numbers in ascending order, without end, to number a list that has one item for each resource.
    pub fn in_order() -> impl Iterator<Item = Self> {
        (0..).map(Self)
    }
}

/// From an `int4` of a statement.
impl TryFrom<i32> for ResourceId {
    type Error = TryFromIntError;

    fn try_from(index: i32) -> Result<Self, TryFromIntError> {
        usize::try_from(index).map(Self)
    }
}

/// A resource, checked against the database.
#[derive(Clone, Debug)]
pub struct Resource {
    /// The path segment.
    pub name: String,
    /// The place of the resource in the configuration.
    pub place: Place,
    /// The tiers that keep its documents.
    pub tiers: Tiers,
    /// The columns of the key.
    pub key: KeyShape,
    /// If no tier keeps its documents, the reason: row security of a table that they show depends on more than the
    /// rows, or larder's triggers on such a table are missing.
    pub uncached: Option<String>,
    /// What the definition depends on in the catalogue, to be compared with the database; `None` until the feed knows it,
    /// and in tests without PostgreSQL.
    pub fingerprint: Option<Arc<Fingerprint>>,
    /// The tables of extensions whose rows the JSON of shown columns may depend on.
    pub type_tables: Vec<TableName>,
    /// What row security lets larder's role see of the tables that documents show; `None` if none of them has row
    /// security. It may change for a moment and leave no trace.
    pub row_security: Option<RowSecurity>,
    /// The root row.
    pub root: Row,
    /// The statement that reads its documents (see [`query`]).
    pub documents_sql: ProvedSql,
    /// The same statement with a condition: PostgreSQL refuses it unless larder's role sees what `row_security` says.
    /// `None` without row security, and while schema larder can't be used, which has the check.
    pub checked_sql: Option<ProvedSql>,
    /// The columns of the root row that lists can be filtered by, in the order of the configuration.
    pub filters: Vec<Filter>,
    /// How documents have owners; `None` if they have none.
    pub owner: Option<Owner>,
    /// Its documents' other keys, in the order of the configuration.
    pub by: Vec<Alias>,
    /// Converts the result of the statement to documents.
    pub template: DocumentTemplate,
    /// The rows that a document is written to, or a sentence that says why documents can't be written.
    pub writable: Result<Writable, String>,
    /// The statements that write documents, if they can be written.
    pub write_sql: Option<WriteSql>,
}

impl Resource {
    /// What its statements can check of row security.
    pub(crate) fn checked_row_security(&self) -> Option<&RowSecurity> {
        self.checked_sql.as_ref().and(self.row_security.as_ref())
    }

    /// Whether PostgreSQL may keep the plans of its statements. Where row security can't be checked it may not: a plan
    /// has what larder's role saw when it was made, and PostgreSQL keeps it when attributes of the role change.
    pub(crate) fn may_keep_plans(&self) -> bool {
        self.row_security.is_none() || self.checked_sql.is_some()
    }

    /// The alias of this name, with its place in [`Resource::by`].
    pub fn alias(&self, name: &str) -> Option<(usize, &Alias)> {
        let mut aliases = self.by.iter().enumerate();
        aliases.find(|(_, alias)| alias.name == name)
    }

    /// The columns of the alias with this number, or of the key.
    pub fn shape_of(&self, alias: Option<usize>) -> &KeyShape {
        let alias = alias.and_then(|alias| self.by.get(alias));
        alias.map_or(&self.key, |alias| &alias.key)
    }

    /// SQL for the canonical keys that have a document, of the keys that are bound as for `documents_sql`.
    pub fn stored_keys_sql(&self) -> String {
        query::stored_keys_sql(&self.key, &self.root)
    }

    /// A hash of all that determines a document's bytes and its kept values apart from the data.
    pub fn shape(&self) -> u64 {
        // The number is the version of the code that writes JSON.
        let mut shape = format!("4 {:?} {:?} ", self.name, self.key);
        self.root.describe(&mut shape);
        let kept = KeptColumns::new(self.owner.as_ref(), &self.by);
        if kept.count() > 0 {
            shape.push_str(&format!(" {kept:?}"));
        }
        xxh3_64(shape.as_bytes())
    }

    /// The tables that documents of this resource show, root first, with repetitions.
    pub fn tables(&self) -> Vec<&TableName> {
        let rows = self.rows().into_iter();
        rows.map(|row| &row.table).collect()
    }

    /// The rows that documents of this resource show, root first.
    pub fn rows(&self) -> Vec<&Row> {
        self.root.with_rows_below()
    }

    /// The columns that the statement for documents reads, each with its table, with repetitions.
    pub(crate) fn columns_read(&self) -> Vec<(&TableName, Cow<'_, str>)> {
        let aliases = self.by.iter().flat_map(|alias| &alias.key.columns);
        let owner = self.owner.iter().map(|owner| &owner.column);
        let of_root = self.key.columns.iter().chain(aliases).chain(owner);
        let of_root = of_root.map(|column| (&self.root.table, Cow::from(&*column.name)));
        let below = self.rows().into_iter().flat_map(Row::columns_read);
        of_root.chain(below).collect()
    }

    /// The first place in the configuration that names a table which documents of this resource show.
    pub fn place_of(&self, table: &TableName) -> Option<&Place> {
        let mut rows = self.rows().into_iter();
        let row = rows.find(|row| row.table == *table)?;
        Some(&row.place)
    }
}

/// How the documents of a resource have owners: restricted principals read and write only documents whose column has the value
/// of their claim.
#[derive(Clone, Debug)]
pub struct Owner {
    /// A column of the root row, which a document may show. It may be null: then the document has no owner.
    pub column: KeyColumn,
    /// The claim's name.
    pub claim: String,
    /// The place of the column in the configuration.
    pub place: Place,
}

impl Owner {
    /// The canonical text of `claim` as a value of the column; `None` if it is not of the column's type.
    pub fn claimed<'c>(&self, claim: &'c str) -> Option<Cow<'c, str>> {
        self.column.canonical(claim).ok()
    }

    /// SQL that is true for a row called `alias` if its owner is parameter `number`, a text.
    pub(crate) fn owned_sql(&self, alias: &str, number: usize) -> String {
        format!(
            "{alias}.{} = {}",
            identifier(&self.column.name),
            self.column.value_sql(&format!("${number}::text"))
        )
    }
}

/// The documents of a resource that a request may read or write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope<'s> {
    /// All of them.
    All,
    /// Those of one owner: the canonical text of a claim, as a value of the owner's column ([`Owner::claimed`]). `None`
    /// owns nothing.
    Own(Option<Cow<'s, str>>),
}

impl Scope<'_> {
    /// The same, without borrowing.
    pub fn into_owned(self) -> Scope<'static> {
        match self {
            Self::All => Scope::All,
            Self::Own(claim) => Scope::Own(claim.map(|claim| Cow::Owned(claim.into_owned()))),
        }
    }

    /// Whether it has only documents of one owner, or none.
    pub fn is_restricted(&self) -> bool {
        *self != Self::All
    }

    /// Whether it has a document with this owner, as kept values say it ([`kept::Kept::owner`]).
    pub fn contains(&self, owner: Option<&[u8]>) -> bool {
        match self {
            Self::All => true,
            Self::Own(claim) => {
                let claim = claim.as_ref().map(|claim| claim.as_bytes());
                claim.is_some() && claim == owner
            }
        }
    }

    /// The claim of its owner; `None` without one, also if it has all documents.
    pub fn claim(&self) -> Option<&str> {
        match self {
            Self::All => None,
            Self::Own(claim) => claim.as_deref(),
        }
    }
}

/// A second key of a resource's documents: columns with a unique index that are not null.
#[derive(Clone, Debug)]
pub struct Alias {
    /// The path segment after `by`.
    pub name: String,
    /// The columns of the root row.
    pub key: KeyShape,
    /// Its place in the configuration.
    pub place: Place,
}

/// What a row of a document shows.
#[derive(Clone, Debug)]
pub struct Row {
    /// The table that the row comes from.
    pub table: TableName,
    /// Where the configuration names the table.
    pub place: Place,
    /// What is true for the rows of the table that exist for larder; `None`: all exist.
    pub condition: Option<Condition>,
    /// Its columns, in document order.
    pub fields: Vec<Field>,
    /// Arrays of rows that refer to it.
    pub children: Vec<Child>,
    /// Rows that it refers to.
    pub lookups: Vec<Lookup>,
}

impl Row {
    /// Writes all that determines the bytes of its JSON. The types of values do not.
    fn describe(&self, out: &mut String) {
        out.push_str(&format!("{:?} {{", self.table));
        if let Some(condition) = &self.condition {
            out.push_str(&format!("where {condition:?} "));
        }
        for field in &self.fields {
            let (column, name, rendering) = (&field.column, &field.name, &field.rendering);
            out.push_str(&format!("{column:?} {name:?} {rendering:?},"));
        }
        for child in &self.children {
            let (name, on, order_by) = (&child.name, &child.on, &child.order_by);
            out.push_str(&format!("{name:?} {on:?} {order_by:?} "));
            child.row.describe(out);
        }
        for lookup in &self.lookups {
            out.push_str(&format!("{:?} {:?} ", lookup.name, lookup.on));
            lookup.row.describe(out);
        }
        out.push('}');
    }

    /// The columns of its table that documents need, and those of the rows below by which these are found and sorted.
    fn columns_read(&self) -> Vec<(&TableName, Cow<'_, str>)> {
        let fields = self.fields.iter().map(|field| Cow::from(&*field.column));
        let conditions = self.condition.iter().flat_map(Condition::columns);
        let own = fields.chain(conditions);
        let mut columns: Vec<_> = own.map(|column| (&self.table, column)).collect();
        let children = self.children.iter().map(|child| (&child.row, &child.on));
        let lookups = self.lookups.iter().map(|lookup| (&lookup.row, &lookup.on));
        for (row, on) in children.chain(lookups) {
            for Pair { own, upper } in on {
                columns.push((&self.table, Cow::from(&*upper.name)));
                columns.push((&row.table, Cow::from(&*own.name)));
            }
        }
        for Child { row, order_by, .. } in &self.children {
            let sorted = order_by.iter().map(|column| Cow::from(&*column.name));
            columns.extend(sorted.map(|column| (&row.table, column)));
        }
        columns
    }

    /// This row and all below it.
    pub(crate) fn with_rows_below(&self) -> Vec<&Self> {
        let children = self.children.iter().map(|child| &child.row);
        let below = children.chain(self.lookups.iter().map(|lookup| &lookup.row));
        let below = below.flat_map(Self::with_rows_below);
        std::iter::once(self).chain(below).collect()
    }
}

/// A column as a member of a JSON object.
#[derive(Clone, Debug)]
pub struct Field {
    /// The table's column.
    pub column: String,
    /// The member's name.
    pub name: String,
    /// How its values become JSON.
    pub rendering: Rendering,
    /// The values that it can have.
    pub value: ValueType,
    /// The column's type as `format_type` writes it.
    pub type_text: String,
    /// It may be null.
    pub nullable: bool,
}

/// How a column's values become JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendering {
    /// By larder, as PostgreSQL's `to_json` does under UTC; a `timestamp` as a `timestamptz`.
    Scalar {
        /// The type of the values, below all domains.
        scalar: Scalar,
        /// `pg_attribute.atttypid`: the type, or a domain over it.
        type_oid: u32,
    },
    /// By PostgreSQL's `to_json`.
    Json,
    /// By PostgreSQL's `to_json`, but for values of `timestamp` and `bytea` in an array or a composite value.
    Nested(Arc<ValueType>),
    /// `bytea`: base64 without line breaks.
    Bytea,
}

/// An array of rows that refer to the row above.
#[derive(Clone, Debug)]
pub struct Child {
    /// The member's name.
    pub name: String,
    /// The pairs of equal columns of the child's row and of the row above.
    pub on: Vec<Pair>,
    /// The child's columns to sort by.
    pub order_by: Vec<OrderColumn>,
    /// The child's row.
    pub row: Row,
}

/// A column that children are sorted by.
#[derive(Clone, Debug)]
pub struct OrderColumn {
    /// The column's name.
    pub name: String,
    /// How its values become JSON, which also says what type they have.
    pub rendering: Rendering,
}

/// One row that the row above refers to, or null.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The member's name.
    pub name: String,
    /// The pairs of equal columns of the looked-up row and of the row above.
    pub on: Vec<Pair>,
    /// The rows that the row above may point to after a write by a restricted principal.
    pub targets: LookupTargets,
    /// The looked-up row.
    pub row: Row,
}

/// The rows of a lookup that a restricted principal may make a row point to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupTargets {
    /// None.
    None,
    /// Those whose column has the value of the principal's claim.
    Own(KeyColumn),
    /// All.
    Shared,
}

/// Two columns that are equal in a row and in the row above it in the document.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The column of the row itself.
    pub own: KeyColumn,
    /// The column of the row above.
    pub upper: KeyColumn,
}
