//! The rows that a document is written to, and the rows that the body of a write consists of.

mod given;
mod owned;

use crate::resource::catalogue::{Catalogue, Column, Constraint, Table, TableName};
use crate::resource::condition::Condition;
use crate::resource::key::{KeyColumn, KeyType};
use crate::resource::sql_type::{Equality, SqlType};
use crate::resource::value::ValueType;
pub use crate::resource::writable::given::GivenColumns;
pub use crate::resource::writable::owned::{OwnerColumn, Pointer};
use crate::resource::{Child, Owner, Pair, Row};

/// The tables and columns that a document is written to.
#[derive(Clone, Debug)]
pub struct Writable {
    /// The level of the root first, then those of its children and their children: each level after the one above it.
    /// There is at least one.
    pub levels: Vec<Level>,
    /// Writes call triggers of users, which see the rows of one level after those of another, and may veto.
    pub has_triggers: bool,
    /// One of these triggers is called before a row is deleted, which it may keep.
    pub has_before_delete: bool,
    /// One of these triggers is called by each statement that deletes rows of its level, also if there are none.
    pub has_statement_delete: bool,
    /// Something may be checked or called only before the commit.
    pub has_deferred: bool,
    /// Rows of a document may refer to rows of others, so what is inserted together with it may decide whether it can be.
    pub has_cross_references: bool,
    /// References from rows of a level to rows of a lower one, so that these have to be inserted first, and deleted last.
    pub forward_references: Vec<ForwardReference>,
    /// The column of the root's rows that holds the owner, if documents have owners.
    pub owner: Option<OwnerColumn>,
}

/// A foreign key from a level to a level that is written after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardReference {
    /// The level of the referencing rows.
    pub level: usize,
    /// Their columns, as places in [`Level::columns`].
    pub columns: Vec<usize>,
    /// The level of the referenced rows.
    pub target: usize,
    /// The constraint's name as SQL, if it may be checked at the end of the transaction.
    pub deferrable: Option<String>,
}

/// The rows of one table at one place of the document's structure, such as all rows of one child.
#[derive(Clone, Debug)]
pub struct Level {
    /// The resource's name for the root, the member's name for other levels.
    pub name: String,
    /// The level above, as a place in [`Writable::levels`]; `None` for the root.
    pub parent: Option<usize>,
    /// The table of the rows.
    pub table: TableName,
    /// What is true for the rows that exist for larder; `None`: all exist.
    pub condition: Option<Condition>,
    /// Fields in document order, then columns of the key and of links that the document does not show.
    pub columns: Vec<WritableColumn>,
    /// The members that the JSON object of a row may have, in document order.
    pub members: Vec<WritableMember>,
    /// The columns that identify a row, as places in `columns`: the resource's key for the root, the primary key of the
    /// table for other levels.
    pub key: Vec<usize>,
    /// The name of the unique index on the columns of `key`.
    pub key_name: Option<String>,
    /// Pairs of columns that are equal in a row and in the row above: a place in `columns`, and one in the columns of
    /// the level above. Empty for the root.
    pub link: Vec<(usize, usize)>,
    /// Sets of columns, as places in `columns`, whose values together are unique and can be changed.
    pub unique: Vec<Vec<usize>>,
    /// The lookups that a restricted principal may not make point to every row.
    pub pointers: Vec<Pointer>,
    /// A trigger is called before a row is inserted, which it may change or leave out.
    pub has_before_insert: bool,
    /// Schemas and names of the table and its descendants.
    pub tables: Vec<(String, String)>,
    /// What PostgreSQL's errors may name.
    pub constraints: Vec<Constraint>,
}

/// A member of the JSON object of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritableMember {
    /// Its name.
    pub name: String,
    /// What its value describes.
    pub kind: MemberKind,
}

/// What the value of a member describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberKind {
    /// A column, as a place in [`Level::columns`].
    Column(usize),
    /// The rows of a level below, as a place in [`Writable::levels`]. The value is an array.
    Rows(usize),
    /// A row that this row refers to. It can be read, not written.
    Lookup,
}

/// A column that is written.
#[derive(Clone, Debug)]
pub struct WritableColumn {
    /// The table's column.
    pub column: String,
    /// The member's name; `None` for a column that the document does not show: of a key, a link, the owner or a pointer.
    pub field: Option<String>,
    /// Only new rows get a value: the document does not show it, and neither the key nor a link has it.
    pub is_kept: bool,
    /// Its type below all domains, with its length. An explicit cast to this type truncates a value that is too long.
    pub stored_type: SqlType,
    /// Its type below all domains, without a length, but with a precision, to which PostgreSQL rounds also when it stores a
    /// value. With a cast to this type, it refuses a value that is too long for the column or its domain when the value is
    /// stored.
    pub plain_type: SqlType,
    /// How its values are compared.
    pub equality: Equality,
    /// The values that it can have.
    pub value: ValueType,
    /// It may be null.
    pub nullable: bool,
    /// PostgreSQL gives it a value in a row that is inserted without one.
    pub has_default: bool,
    /// The sequences that its default calls.
    pub sequences: Vec<String>,
    /// PostgreSQL computes it from other columns. It can be read, not written.
    pub generated: bool,
    /// Its type as a part of the resource's key, or of a link whose texts have several spellings; `None` if it is none.
    pub key_type: Option<KeyType>,
    /// `generated always as identity`: an explicit value needs `overriding system value`.
    pub identity_always: bool,
    /// Bodies give values that PostgreSQL calls equal, or stores as equal ones, only as equal texts.
    pub has_one_spelling: bool,
}

impl Writable {
    /// The levels of the row `root` and of all rows below it. `name` is the resource's name, `key` its key, and `owner` the
    /// owner of its documents.
    ///
    /// # Errors
    /// A sentence that says why documents of this resource can't be written.
    pub(super) fn new(
        name: &str,
        root: &Row,
        key: &[KeyColumn],
        owner: Option<&Owner>,
        catalogue: &Catalogue,
    ) -> Result<Self, String> {
        let mut levels = Levels {
            catalogue,
            owner,
            levels: Vec::new(),
            has_triggers: false,
            has_before_delete: false,
            has_statement_delete: false,
            has_deferred: false,
        };
        let names: Vec<&str> = key.iter().map(|column| column.name.as_str()).collect();
        levels.add(name, root, &names, None)?;
        if let Some(root) = levels.levels.first_mut() {
            for (column, &at) in key.iter().zip(&root.key) {
                root.columns[at].key_type = Some(column.key_type);
            }
        }
        let forward_references = levels.forward_references();
        let mut deferrable = forward_references.iter().map(|key| &key.deferrable);
        Ok(Self {
            owner: levels.owner_column(),
            has_cross_references: levels.have_cross_references(),
            levels: levels.levels,
            has_triggers: levels.has_triggers,
            has_before_delete: levels.has_before_delete,
            has_statement_delete: levels.has_statement_delete,
            has_deferred: levels.has_deferred || deferrable.any(Option::is_some),
            forward_references,
        })
    }

    /// Whether rows may refer to rows of later levels.
    pub fn has_forward_references(&self) -> bool {
        !self.forward_references.is_empty()
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
    /// For each row the number of the row above it in the level above; for a root row the number of its document.
    pub parents: Vec<u32>,
    /// For each row its place in the JSON array; 0 for a root row.
    pub places: Vec<u32>,
    /// For each column of the level the inputs of all rows.
    pub columns: Vec<Vec<ColumnInput>>,
}

impl LevelRows {
    /// The number of rows.
    pub fn count(&self) -> usize {
        self.parents.len()
    }

    /// Adds a row whose columns are all absent. Returns its number.
    pub(super) fn add(&mut self, parent: u32, place: u32) -> usize {
        self.parents.push(parent);
        self.places.push(place);
        for column in &mut self.columns {
            column.push(ColumnInput::Absent);
        }
        self.count() - 1
    }

    /// Removes all rows but the first `count`.
    pub(super) fn truncate(&mut self, count: usize) {
        self.parents.truncate(count);
        self.places.truncate(count);
        for column in &mut self.columns {
            column.truncate(count);
        }
    }
}

impl Rows {
    /// An empty list of rows for each level of `writable`.
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

    /// Removes all rows and keeps the allocated memory.
    pub fn clear(&mut self) {
        for level in &mut self.levels {
            level.truncate(0);
        }
    }
}

/// What a body says about a column of a row.
///
/// A column of a link has the input of the row above: its text if the body or the path says it, absent if the row above
/// gets the value by default.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ColumnInput {
    /// Nothing: the column's default, or null.
    Absent,
    /// Null.
    Null,
    /// The text that PostgreSQL reads as a value of the column's type.
    Text(String),
}

struct Levels<'a> {
    catalogue: &'a Catalogue,
    owner: Option<&'a Owner>,
    levels: Vec<Level>,
    has_triggers: bool,
    has_before_delete: bool,
    has_statement_delete: bool,
    has_deferred: bool,
}

impl Levels<'_> {
    /// Adds the level of `row` and the levels below it, and returns the place of the level of `row`. `above` has the
    /// level above and the columns that link to it.
    fn add(
        &mut self,
        name: &str,
        row: &Row,
        key: &[&str],
        above: Option<(usize, &[Pair])>,
    ) -> Result<usize, String> {
        let catalogue = self.catalogue;
        let path = self.path(name, above.map(|(parent, _)| parent));
        let Some(table) = catalogue.table(&row.table) else {
            return Err(format!("the table of {} was not found", rows_at(&path)));
        };
        self.check_table(table, key, &path)?;
        let mut level = Level::new(name, row, table);
        for field in &row.fields {
            let at = level.add(table, &field.column)?;
            level.columns[at].field = Some(field.name.clone());
            level.member(&field.name, MemberKind::Column(at));
        }
        for column in key {
            let at = level.identifying(table, column, &path)?;
            level.key.push(at);
        }
        let (parent, pairs) = above.unzip();
        level.parent = parent;
        let upper = parent.and_then(|parent: usize| self.levels.get(parent));
        if let (Some(upper), Some(pairs)) = (upper, pairs)
            && !is_kept_by_a_foreign_key(table, upper.table.oid, pairs)
        {
            return Err(format!(
                "no foreign key leads from {} to the rows above, so documents can't be written: other rows could be added meanwhile",
                rows_at(&path)
            ));
        }
        for pair in pairs.unwrap_or_default() {
            let own = level.identifying(table, &pair.own.name, &path)?;
            level.columns[own].add_spelling(pair.own.key_type);
            let upper = upper.and_then(|upper| upper.at(&pair.upper.name));
            let unknown = || format!("the link of {} was not found", rows_at(&path));
            level.link.push((own, upper.ok_or_else(unknown)?));
        }
        for unique in table.unique_keys.iter().filter(|unique| !unique.deferrable) {
            let columns = unique.columns.iter().map(|column| level.at(column));
            match columns.collect::<Option<Vec<usize>>>() {
                Some(columns) if columns != level.key => level.unique.push(columns),
                Some(_) => {
                    level.key_name.get_or_insert_with(|| unique.name.clone());
                }
                None => {}
            }
        }
        // A write never changes the key of an existing row, but may change other columns, and rows below would lose
        // their link.
        for pair in row.children.iter().flat_map(|child| &child.on) {
            let upper = level.identifying(table, &pair.upper.name, &path)?;
            level.columns[upper].add_spelling(pair.upper.key_type);
            if !level.key.contains(&upper) {
                return Err(format!(
                    "rows below are linked to {} of {}, which is not part of the key there, so they can't be written",
                    level.shown(upper),
                    rows_at(&path)
                ));
            }
        }
        level.add_owned(table, row, self.owner, &path)?;
        let number = self.levels.len();
        self.levels.push(level);
        for child in &row.children {
            let path = self.path(&child.name, Some(number));
            let key = child_key(catalogue, child, &path)?;
            let at = self.add(&child.name, &child.row, &key, Some((number, &child.on)))?;
            self.levels[number].member(&child.name, MemberKind::Rows(at));
        }
        for lookup in &row.lookups {
            self.levels[number].member(&lookup.name, MemberKind::Lookup);
        }
        Ok(number)
    }

    /// Checks that rows of `table` can be a level, the one at `path`, with the key `key`, and notes what runs when they are
    /// written.
    fn check_table(&mut self, table: &Table, key: &[&str], path: &str) -> Result<(), String> {
        if self.levels.iter().any(|level| level.table == table.name) {
            return Err(format!(
                "{} are in a table that the document shows at another place, too, so they can't be written",
                rows_at(path)
            ));
        }
        if !table.is_always_unique(key) {
            return Err(format!(
                "the primary key of {} is deferrable, so several rows may have one key until a transaction ends, and they can't be written",
                rows_at(path)
            ));
        }
        if table.on_write.has_rules {
            return Err(format!(
                "the table of {} has rules, which replace what larder would write, so they can't be written",
                rows_at(path)
            ));
        }
        self.has_triggers |= table.on_write.has_triggers;
        self.has_before_delete |= table.on_write.has_before_delete;
        self.has_statement_delete |= table.on_write.has_statement_delete;
        // A trigger may write other tables, where something is deferred.
        self.has_deferred |= table.on_write.has_deferred || table.on_write.has_triggers;
        Ok(())
    }

    /// Whether a foreign key leads from a level to a level, and not only from a row to the row above.
    fn have_cross_references(&self) -> bool {
        self.levels.iter().any(|level| {
            let table = self.catalogue.table(&level.table);
            let keys = table.map_or(&[][..], |table| &table.foreign_keys);
            let upper = level.parent.and_then(|parent| self.levels.get(parent));
            keys.iter().any(|key| {
                let is_upper = |upper: &&Level| upper.table.oid == key.target;
                let is_link = upper.filter(is_upper).is_some_and(|upper| {
                    let mut pairs = key.columns.iter().zip(&key.target_columns);
                    pairs.all(|(own, target)| level.links(own, upper, target))
                });
                let mut levels = self.levels.iter();
                !is_link && levels.any(|level| level.table.oid == key.target)
            })
        })
    }

    /// The foreign keys that lead from a level to one below it or after it, as far as bodies give their columns.
    fn forward_references(&self) -> Vec<ForwardReference> {
        let mut found = Vec::new();
        for (number, level) in self.levels.iter().enumerate() {
            let table = self.catalogue.table(&level.table);
            for key in table.map_or(&[][..], |table| &table.foreign_keys) {
                let mut later = self.levels.iter().enumerate().skip(number + 1);
                let target = later.find(|(_, later)| later.table.oid == key.target);
                let columns = key.columns.iter().map(|column| level.at(column));
                let columns: Option<Vec<usize>> = columns.collect();
                if let (Some((target, _)), Some(columns)) = (target, columns) {
                    found.push(ForwardReference {
                        level: number,
                        columns,
                        target,
                        deferrable: key.deferrable.clone(),
                    });
                }
            }
        }
        found
    }

    /// The place of a level in the document, as in `fields=emps.skills`; empty for the root.
    fn path(&self, name: &str, parent: Option<usize>) -> String {
        let Some(parent) = parent.and_then(|parent| self.levels.get(parent)) else {
            return String::new();
        };
        match self.path(&parent.name, parent.parent) {
            above if above.is_empty() => name.to_owned(),
            above => format!("{above}.{name}"),
        }
    }
}

/// The rows at `path` of a document in messages to clients, which know no tables.
fn rows_at(path: &str) -> String {
    match path {
        "" => "the document".to_owned(),
        path => format!("the rows of {path}"),
    }
}

/// Whether a lock on a row of the table `upper` keeps others from adding rows of `table` below it. With a foreign key
/// it does, since the check of a foreign key locks the row that is referred to.
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

/// The primary key of a child's table.
///
/// # Errors
/// A sentence, if there is none or if the document does not contain all of it. A body must tell which row it means; if
/// a row were taken for another, columns that the document does not show would be lost.
fn child_key<'c>(
    catalogue: &'c Catalogue,
    child: &Child,
    path: &str,
) -> Result<Vec<&'c str>, String> {
    let table = catalogue.table(&child.row.table);
    let Some(key) = table.and_then(Table::primary_key) else {
        return Err(format!(
            "the table of {} has no primary key to tell them apart by, so they can't be written",
            rows_at(path)
        ));
    };
    let is_known = |column: &str| {
        child.on.iter().any(|pair| pair.own.name == column)
            || child.row.fields.iter().any(|field| field.column == column)
    };
    if key.iter().all(|column| is_known(column)) {
        Ok(key.iter().map(String::as_str).collect())
    } else {
        Err(format!(
            "{} do not show their whole primary key, so they can't be told apart and written",
            rows_at(path)
        ))
    }
}

impl Level {
    /// A level without columns and parent.
    fn new(name: &str, row: &Row, table: &Table) -> Self {
        Self {
            name: name.to_owned(),
            parent: None,
            table: row.table.clone(),
            condition: row.condition.clone(),
            columns: Vec::with_capacity(row.fields.len()),
            members: Vec::new(),
            key: Vec::new(),
            key_name: None,
            link: Vec::new(),
            unique: Vec::new(),
            pointers: Vec::new(),
            has_before_insert: table.on_write.has_before_insert,
            tables: std::iter::once(&table.name)
                .chain(table.descendants.iter().map(|descendant| &descendant.name))
                .map(|name| (name.schema.clone(), name.name.clone()))
                .collect(),
            constraints: table.constraints.clone(),
        }
    }

    /// The place in `members` of the member `name`. `expected` is tried first.
    pub(super) fn member_at(&self, name: &str, expected: usize) -> Option<usize> {
        match self.members.get(expected) {
            Some(member) if member.name == name => Some(expected),
            _ => self.members.iter().position(|member| member.name == name),
        }
    }

    /// Whether a new row may lack a value for the column `at`, in a body: it is nullable, or a trigger may set it. A key is
    /// never null, although the columns of a unique index may be nullable.
    pub fn may_be_null(&self, at: usize) -> bool {
        let column = &self.columns[at];
        let is_key = self.parent.is_none() && self.key.contains(&at);
        // A key with a default is left out rather than null.
        let may_be_set = self.has_before_insert && !(is_key && column.has_default);
        may_be_set || column.nullable && !is_key
    }

    /// The columns that statements may write.
    pub(super) fn inserted_columns(&self) -> Vec<usize> {
        let all = 0..self.columns.len();
        all.filter(|&number| self.columns[number].is_inserted())
            .collect()
    }

    /// Whether the link pairs the column `own` with the column `target` of the level above.
    fn links(&self, own: &str, upper: &Self, target: &str) -> bool {
        let mut link = self.link.iter();
        link.any(|&(at, above)| {
            self.columns[at].column == *own && upper.columns[above].column == *target
        })
    }

    fn at(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|known| known.column == column)
    }

    fn member(&mut self, name: &str, kind: MemberKind) {
        let name = name.to_owned();
        self.members.push(WritableMember { name, kind });
    }

    /// The place of `column` in `columns`. Adds the column if it is missing.
    fn add(&mut self, table: &Table, column: &str) -> Result<usize, String> {
        if let Some(at) = self.at(column) {
            return Ok(at);
        }
        let Some(found) = table.column(column) else {
            return Err(format!("a column of {} was not found", table.name));
        };
        self.columns.push(WritableColumn::new(found));
        Ok(self.columns.len() - 1)
    }

    /// As [`Self::add`], for a column of a key or a link.
    fn identifying(&mut self, table: &Table, column: &str, path: &str) -> Result<usize, String> {
        let at = self.add(table, column)?;
        if !self.columns[at].is_inserted() {
            let why = if self.columns[at].generated {
                "is generated"
            } else {
                "is of a type that larder can't write"
            };
            return Err(format!(
                "{} of {} identifies or links rows and {why}, so they can't be written",
                self.shown(at),
                rows_at(path)
            ));
        }
        Ok(at)
    }

    /// The column at the place `at` in messages to clients, which know fields only.
    fn shown(&self, at: usize) -> String {
        match &self.columns[at].field {
            Some(field) => format!("field {field}"),
            None => "a column that is not a field".to_owned(),
        }
    }
}

impl WritableColumn {
    /// Whether statements that insert rows write the column.
    pub fn is_inserted(&self) -> bool {
        !self.generated && !self.value.is_unwritable()
    }

    /// Why a body can't change the column, as the end of a sentence about it; `None` if it can.
    pub fn read_only(&self) -> Option<&'static str> {
        if self.generated {
            Some("is read-only, and can't be patched")
        } else if self.value.is_unwritable() {
            Some("is read-only, since larder can't write values of its type")
        } else if self.identity_always {
            Some("is read-only once a row exists, since it is generated always as identity")
        } else {
            None
        }
    }

    /// The texts of both ends of a link are compared. Most types have one text for each value.
    fn add_spelling(&mut self, key_type: KeyType) {
        if self.value == ValueType::Other {
            self.key_type = Some(key_type);
        }
    }

    fn new(column: &Column) -> Self {
        Self {
            column: column.name.clone(),
            field: None,
            is_kept: false,
            stored_type: column.stored_type.clone(),
            plain_type: column.plain_type.clone(),
            equality: column.equality.clone().unwrap_or(Equality::BUILT_IN),
            value: column.value.clone(),
            nullable: !column.not_null,
            has_default: column.has_default,
            sequences: column.sequences.clone(),
            generated: column.generated,
            key_type: None,
            identity_always: column.identity_always,
            has_one_spelling: has_one_spelling(column),
        }
    }
}

/// Whether values of `column` that are equal for PostgreSQL have one text in [`ColumnInput::Text`].
fn has_one_spelling(column: &Column) -> bool {
    match column.value {
        ValueType::Boolean
        | ValueType::SmallInt
        | ValueType::Integer
        | ValueType::BigInt
        | ValueType::Byte { .. }
        | ValueType::Uuid
        | ValueType::Date
        | ValueType::Bytea
        | ValueType::Enum(_) => true,
        ValueType::Text { .. } | ValueType::Char { .. } | ValueType::Name => column.deterministic,
        // With a precision they are rounded.
        ValueType::Timestamp | ValueType::TimestampTz => column.type_modifier == -1,
        _ => false,
    }
}
