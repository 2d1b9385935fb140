//! Which rows a document is written to, and the rows that a body means.

use crate::resource::catalogue::{Catalogue, Column, Table, TableName};
use crate::resource::key::KeyColumn;
use crate::resource::value::ValueType;
use crate::resource::{Child, Pair, Row};

/// Which rows a document is written to.
#[derive(Clone, Debug)]
pub struct Writable {
    /// The root's first, then its children's and theirs: a level follows the one above it. Never empty.
    pub levels: Vec<Level>,
}

/// The rows of one table that stand at one place of a document.
#[derive(Clone, Debug)]
pub struct Level {
    /// The resource's name at the root, the member's below.
    pub name: String,
    /// The level above in [`Writable::levels`]; none at the root.
    pub parent: Option<usize>,
    /// Where its rows are.
    pub table: TableName,
    /// Fields in document order, then columns of keys and links that are no fields.
    pub columns: Vec<WritableColumn>,
    /// What the JSON object may hold, in document order.
    pub members: Vec<Member>,
    /// What identifies a row, in `columns`: the resource's key at the root, the table's primary key below.
    pub key: Vec<usize>,
    /// Columns that equal the row above's: in `columns`, and in those of the level above. Empty at the root.
    pub link: Vec<(usize, usize)>,
}

/// A member of the JSON object of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// What it stands for.
    pub means: Means,
}

/// What a member stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// A column, in [`Level::columns`].
    Column(usize),
    /// An array of rows, in [`Writable::levels`].
    Rows(usize),
    /// A row that this one points to; it is only read.
    Lookup,
}

/// A column that is written.
#[derive(Clone, Debug)]
pub struct WritableColumn {
    /// The table's column.
    pub column: String,
    /// The member's name; none for a column of a key or a link that is not shown.
    pub field: Option<String>,
    /// Its type as `format_type` writes it. An explicit cast to it cuts what is too long.
    pub type_sql: String,
    /// The same without a length: what is too long for the column is refused when it is stored.
    pub plain_type_sql: String,
    /// What values it takes.
    pub value: ValueType,
    /// It may be null.
    pub nullable: bool,
    /// SQL for the value of a row that is inserted without one, an identity's `nextval(…)` too.
    pub default: Option<String>,
    /// PostgreSQL computes it from other columns: it is only read.
    pub generated: bool,
    /// `generated always as identity`: a value of one's own needs `overriding system value`.
    pub identity_always: bool,
}

impl Writable {
    /// The levels below the row `root` of the resource `name`, whose key is `key`.
    ///
    /// # Errors
    /// A sentence that says why documents of this shape can't be written.
    pub(super) fn new(
        name: &str,
        root: &Row,
        key: &[KeyColumn],
        catalogue: &Catalogue,
    ) -> Result<Self, String> {
        let mut levels = Levels {
            catalogue,
            levels: Vec::new(),
        };
        let key: Vec<&str> = key.iter().map(|column| column.name.as_str()).collect();
        levels.add(name, root, &key, None)?;
        Ok(Self {
            levels: levels.levels,
        })
    }

    /// The JSON pointer (RFC 6901) of row `row` of level `level` in its document, empty for the document itself.
    pub fn pointer(&self, rows: &Rows, level: usize, row: usize) -> String {
        let mut parts = Vec::new();
        let (mut level, mut row) = (level, row);
        while let (Some(at), Some(of)) = (self.levels.get(level), rows.levels.get(level)) {
            let (Some(parent), Some(&upper), Some(place)) =
                (at.parent, of.parents.get(row), of.places.get(row))
            else {
                break;
            };
            parts.push(format!("/{}/{place}", pointer_token(&at.name)));
            (level, row) = (parent, upper as usize);
        }
        parts.reverse();
        parts.concat()
    }
}

/// `name` as a part of a JSON pointer (RFC 6901, section 3).
pub(crate) fn pointer_token(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Rows of one or more documents, level by level, in the order of [`Writable::levels`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// As many as the resource has levels. A document's rows follow those of the documents before it.
    pub levels: Vec<LevelRows>,
}

/// The rows of one level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LevelRows {
    /// For each row the row above it, in the level above; at the root the document's number in these [`Rows`].
    pub parents: Vec<u32>,
    /// For each row its place in the JSON array; 0 at the root.
    pub places: Vec<u32>,
    /// For each column of the level the value of each row.
    pub columns: Vec<Vec<Given>>,
}

impl LevelRows {
    /// The number of rows.
    pub fn count(&self) -> usize {
        self.parents.len()
    }

    /// Adds a row of which nothing is said; gives its number.
    pub(super) fn add(&mut self, parent: u32, place: u32) -> usize {
        self.parents.push(parent);
        self.places.push(place);
        for column in &mut self.columns {
            column.push(Given::Absent);
        }
        self.count() - 1
    }

    /// Forgets all but the first rows.
    pub(super) fn truncate(&mut self, count: usize) {
        self.parents.truncate(count);
        self.places.truncate(count);
        for column in &mut self.columns {
            column.truncate(count);
        }
    }
}

impl Rows {
    /// No rows of `writable`.
    pub fn of(writable: &Writable) -> Self {
        let levels = writable.levels.iter().map(|level| LevelRows {
            columns: vec![Vec::new(); level.columns.len()],
            ..LevelRows::default()
        });
        Self {
            levels: levels.collect(),
        }
    }

    /// The number of documents.
    pub fn documents(&self) -> usize {
        self.levels.first().map_or(0, LevelRows::count)
    }

    /// Forgets all rows and keeps their space.
    pub fn clear(&mut self) {
        for level in &mut self.levels {
            level.truncate(0);
        }
    }
}

/// What a body says of a column.
///
/// The column of a link is the row above's: its text where the body or the path tells it, absent where the row above
/// gets it by default.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Given {
    /// Nothing: the column's default, or null.
    Absent,
    /// Null.
    Null,
    /// The text that PostgreSQL reads as a value of the column's type.
    Text(String),
}

struct Levels<'a> {
    catalogue: &'a Catalogue,
    levels: Vec<Level>,
}

impl Levels<'_> {
    /// Adds the level of `row` and those below it. `above`: the level above and what links to it.
    fn add(
        &mut self,
        name: &str,
        row: &Row,
        key: &[&str],
        above: Option<(usize, &[Pair])>,
    ) -> Result<usize, String> {
        let catalogue = self.catalogue;
        let mut known = catalogue.tables.values();
        let Some(table) = known.find(|table| table.name == row.table) else {
            return Err(format!("{} is not in the catalogue", row.table));
        };
        if self.levels.iter().any(|level| level.table == row.table) {
            return Err(format!(
                "{} stands at several places of the document, so its rows can't be told apart",
                row.table
            ));
        }
        let mut level = Level {
            name: name.to_owned(),
            parent: above.map(|(parent, _)| parent),
            table: row.table.clone(),
            columns: Vec::with_capacity(row.fields.len()),
            members: Vec::new(),
            key: Vec::new(),
            link: Vec::new(),
        };
        for field in &row.fields {
            let at = level.add(table, &field.column)?;
            level.columns[at].field = Some(field.name.clone());
            level.member(&field.name, Means::Column(at));
        }
        for column in key {
            let at = level.identifying(table, column)?;
            level.key.push(at);
        }
        let (parent, pairs) = above.unzip();
        let upper = parent.and_then(|parent: usize| self.levels.get(parent));
        if let (Some(upper), Some(pairs)) = (upper, pairs)
            && !is_kept_by_a_foreign_key(table, upper.table.oid, pairs)
        {
            return Err(format!(
                "no foreign key of {} holds the rows above while documents are written, so they can't be",
                row.table
            ));
        }
        for pair in pairs.unwrap_or_default() {
            let own = level.identifying(table, &pair.own.name)?;
            let upper = upper.and_then(|upper| upper.at(&pair.upper.name));
            let unknown = || format!("{} is linked to a column that is not there", row.table);
            level.link.push((own, upper.ok_or_else(unknown)?));
        }
        // A row that is there keeps its key; another column that rows below are linked to might not stay the same.
        for pair in row.children.iter().flat_map(|child| &child.on) {
            let upper = level.identifying(table, &pair.upper.name)?;
            if !level.key.contains(&upper) {
                return Err(format!(
                    "rows are linked to column {} of {}, which is not of the key here, so they can't be written",
                    pair.upper.name, row.table
                ));
            }
        }
        let number = self.levels.len();
        self.levels.push(level);
        for child in &row.children {
            let key = child_key(catalogue, child)?;
            let at = self.add(&child.name, &child.row, &key, Some((number, &child.on)))?;
            self.levels[number].member(&child.name, Means::Rows(at));
        }
        for lookup in &row.lookups {
            self.levels[number].member(&lookup.name, Means::Lookup);
        }
        Ok(number)
    }
}

/// Whether rows of `table` can't be added below a row that somebody has locked: a foreign key takes that lock, too.
fn is_kept_by_a_foreign_key(table: &Table, upper: u32, pairs: &[Pair]) -> bool {
    let is_pair = |own: &String, upper: &String| {
        let mut pairs = pairs.iter();
        pairs.any(|pair| pair.own.name == *own && pair.upper.name == *upper)
    };
    let mut keys = table.foreign_keys.iter().filter(|key| key.target == upper);
    keys.any(|key| {
        let mut columns = key.columns.iter().zip(&key.target_columns);
        columns.all(|(own, upper)| is_pair(own, upper))
    })
}

/// The primary key of a child's table. A body must tell it: what other columns of the row hold would be lost with a
/// row that is taken for another.
fn child_key<'c>(catalogue: &'c Catalogue, child: &Child) -> Result<Vec<&'c str>, String> {
    let name = &child.row.table;
    let mut known = catalogue.tables.values();
    let table = known.find(|table| table.name == *name);
    let Some(key) = table.and_then(Table::primary_key) else {
        return Err(format!(
            "{name} has no primary key to tell its rows apart by, so they can't be written"
        ));
    };
    let told = |column: &str| {
        child.on.iter().any(|pair| pair.own.name == column)
            || child.row.fields.iter().any(|field| field.column == column)
    };
    match key.iter().find(|column| !told(column)) {
        None => Ok(key.iter().map(String::as_str).collect()),
        Some(column) => Err(format!(
            "column {column} of {name}'s primary key is not among the fields, so its rows can't be told apart"
        )),
    }
}

impl Level {
    /// The place in `members` of the one called `name`, most likely `expected`.
    pub(super) fn member_at(&self, name: &str, expected: usize) -> Option<usize> {
        match self.members.get(expected) {
            Some(member) if member.name == name => Some(expected),
            _ => self.members.iter().position(|member| member.name == name),
        }
    }

    fn at(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|known| known.column == column)
    }

    fn member(&mut self, name: &str, means: Means) {
        let name = name.to_owned();
        self.members.push(Member { name, means });
    }

    /// The place of `column`, added if need be.
    fn add(&mut self, table: &Table, column: &str) -> Result<usize, String> {
        if let Some(at) = self.at(column) {
            return Ok(at);
        }
        let Some(found) = table.column(column) else {
            return Err(format!("{} has no column {column}", table.name));
        };
        self.columns.push(WritableColumn::new(found));
        Ok(self.columns.len() - 1)
    }

    /// The same for a column of a key or a link.
    fn identifying(&mut self, table: &Table, column: &str) -> Result<usize, String> {
        let at = self.add(table, column)?;
        if self.columns[at].generated {
            let table = &table.name;
            return Err(format!(
                "column {column} of {table} identifies or links rows and is generated, so they can't be written"
            ));
        }
        Ok(at)
    }
}

impl WritableColumn {
    fn new(column: &Column) -> Self {
        Self {
            column: column.name.clone(),
            field: None,
            type_sql: column.type_text.clone(),
            plain_type_sql: column.plain_type_text.clone(),
            value: column.value.clone(),
            nullable: !column.not_null,
            default: column.default.clone(),
            generated: column.generated,
            identity_always: column.identity_always,
        }
    }
}
