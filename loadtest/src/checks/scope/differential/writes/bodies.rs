//! Draws the bodies of writes.

use serde_json::Value;

use super::{Members, WriteOf, rows_of};
use crate::checks::scope::differential::documents::VisibleDocument;
use crate::checks::scope::differential::rows::RowDraw;
use crate::checks::scope::differential::schema::{Column, Place, ROWS_BELOW, Role};
use crate::checks::twins::Form;

/// Attempts to draw a key that is one of certain ones.
const ATTEMPTS: usize = 8;

/// Draws bodies.
pub(super) struct BodyDraw<'b> {
    pub(super) rows: RowDraw<'b>,
    /// All documents.
    pub(super) stored: &'b [VisibleDocument],
    /// Those that the principal may write.
    pub(super) own: &'b [VisibleDocument],
    /// The principal's.
    pub(super) owner: Option<i64>,
}

impl BodyDraw<'_> {
    fn one_in(&mut self, count: u8) -> bool {
        self.rows.rng.u8(..count) == 0
    }

    /// The key of a document to change: often one that the principal may write.
    pub(super) fn key(&mut self) -> Vec<i64> {
        self.often(|draw, key| draw.find(draw.own, key).is_some())
    }

    /// A key that is often, but not always, as it is wanted.
    fn often(&mut self, is_wanted: impl Fn(&Self, &[i64]) -> bool) -> Vec<i64> {
        let mut key = self.rows.key();
        if self.one_in(3) {
            return key;
        }
        for _ in 0..ATTEMPTS {
            if is_wanted(self, &key) {
                break;
            }
            key = self.rows.key();
        }
        key
    }

    fn find<'d>(
        &self,
        documents: &'d [VisibleDocument],
        key: &[i64],
    ) -> Option<&'d VisibleDocument> {
        let kinds = self.rows.schema.key_kinds().into_iter();
        let key: Vec<String> = kinds
            .zip(key)
            .map(|(kind, part)| kind.canonical(*part))
            .collect();
        documents.iter().find(|document| document.key == key)
    }

    pub(super) fn post(&mut self) -> WriteOf {
        let form = match self.rows.rng.u8(..8) {
            0 => Form::Array,
            1 => Form::Lines,
            2 => Form::Lenient,
            _ => Form::One,
        };
        let count = if form == Form::One {
            1
        } else {
            self.rows.rng.usize(1..4)
        };
        let mut documents: Vec<Members> = Vec::new();
        for _ in 0..count {
            let mut document = self.new_row(0);
            self.remove_repeated(0, &mut document, &mut Vec::new());
            // Of two with an equal key or alias it is open which one is stored.
            let is_like = |other: &Members| self.clashes(&document, other);
            if !documents.iter().any(is_like) {
                documents.push(document);
            }
        }
        WriteOf::Post { documents, form }
    }

    /// Whether two documents have the same key or alias, or might have the same row below.
    fn clashes(&self, one: &Members, other: &Members) -> bool {
        let schema = self.rows.schema;
        let same = |names: Vec<&str>| names.iter().all(|name| one.get(*name) == other.get(*name));
        let key = schema.tables[0]
            .of_role(Role::Key)
            .map(|column| &*column.name);
        let has_rows = |document: &Members| {
            let mut children = schema.children(0);
            children.any(|child| document.contains_key(&schema.tables[child].name))
        };
        let mut aliases = schema.aliases.iter();
        let same_alias =
            aliases.any(|alias| same(alias.columns.iter().map(|(name, _)| &**name).collect()));
        same(key.collect()) || same_alias || (has_rows(one) && has_rows(other))
    }

    /// A stored document with changes, or a new one.
    pub(super) fn put(&mut self) -> WriteOf {
        let key = self.key();
        let mut document = match self.stored(&key) {
            Some(mut document) => {
                self.change(0, &mut document);
                document
            }
            None => {
                let mut document = self.new_row(0);
                let keys = self.rows.schema.tables[0].of_role(Role::Key).zip(&key);
                document.extend(
                    keys.map(|(column, part)| (column.name.clone(), column.kind.json(*part))),
                );
                document
            }
        };
        self.remove_repeated(0, &mut document, &mut Vec::new());
        self.remove_moved(&key, &mut document);
        WriteOf::Put { key, document }
    }

    pub(super) fn patch(&mut self) -> WriteOf {
        let key = self.key();
        let mut document = Members::new();
        let columns: Vec<Column> = self.rows.schema.tables[0].shown().cloned().collect();
        for column in columns {
            if column.role != Role::Key && column.name != "pad" && self.one_in(3) {
                let value = self.value(&column);
                document.insert(column.name, value);
            }
        }
        let children: Vec<usize> = self.rows.schema.children(0).collect();
        if let Some(mut whole) = self.stored(&key)
            && self.one_in(2)
        {
            self.change(0, &mut whole);
            self.remove_repeated(0, &mut whole, &mut Vec::new());
            self.remove_moved(&key, &mut whole);
            for child in children {
                let name = &self.rows.schema.tables[child].name;
                document.extend(whole.remove_entry(name));
            }
        }
        WriteOf::Patch { key, document }
    }

    /// The members of a stored document that can be written.
    fn stored(&self, key: &[i64]) -> Option<Members> {
        let found = self.find(self.stored, key)?;
        let mut document = found.document.as_object()?.clone();
        self.remove_lookups(0, &mut document);
        Some(document)
    }

    fn remove_lookups(&self, table: usize, members: &mut Members) {
        let schema = self.rows.schema;
        for (lookup, ..) in schema.lookups(table) {
            members.remove(&schema.tables[lookup].name);
        }
        for child in schema.children(table) {
            for row in rows_mut(members, &schema.tables[child].name) {
                self.remove_lookups(child, row);
            }
        }
    }

    /// Of rows below with one key only the first stays; `seen` has tables and keys.
    fn remove_repeated(&self, table: usize, members: &mut Members, seen: &mut Vec<(usize, Value)>) {
        for child in self.rows.schema.children(table) {
            let rows = members.get_mut(&self.rows.schema.tables[child].name);
            let Some(rows) = rows.and_then(Value::as_array_mut) else {
                continue;
            };
            rows.retain(|row| {
                let key = (child, row["k0"].clone());
                let is_new = !seen.contains(&key);
                seen.push(key);
                is_new
            });
            for row in rows.iter_mut().filter_map(Value::as_object_mut) {
                self.remove_repeated(child, row, seen);
            }
        }
    }

    /// Removes rows below that the stored document has below another row. larder updates such a row, so that it keeps what is
    /// not shown; the oracle deletes it and inserts another one. `differential-writes` compares moves.
    fn remove_moved(&self, key: &[i64], members: &mut Members) {
        let mut stored = Vec::new();
        if let Some(document) = self.stored(key) {
            self.note_places(0, &document, &Value::Null, &mut stored);
        }
        self.retain_places(0, members, &Value::Null, &stored);
    }

    /// Notes table, key and row above of each row below `members`, whose key is `above`.
    fn note_places(
        &self,
        table: usize,
        members: &Members,
        above: &Value,
        places: &mut Vec<(usize, Value, Value)>,
    ) {
        for child in self.rows.schema.children(table) {
            for row in rows_of(members, &self.rows.schema.tables[child].name) {
                places.push((child, row["k0"].clone(), above.clone()));
                self.note_places(child, row, &row["k0"], places);
            }
        }
    }

    fn retain_places(
        &self,
        table: usize,
        members: &mut Members,
        above: &Value,
        stored: &[(usize, Value, Value)],
    ) {
        for child in self.rows.schema.children(table) {
            let rows = members.get_mut(&self.rows.schema.tables[child].name);
            let Some(rows) = rows.and_then(Value::as_array_mut) else {
                continue;
            };
            rows.retain(|row| {
                let mut places = stored.iter();
                places.all(|(of, key, place)| *of != child || *key != row["k0"] || place == above)
            });
            for row in rows.iter_mut().filter_map(Value::as_object_mut) {
                let key = row["k0"].clone();
                self.retain_places(child, row, &key, stored);
            }
        }
    }

    fn value(&mut self, column: &Column) -> Value {
        let number = match (column.role, self.owner) {
            // For the most part its own.
            (Role::Owner, Some(owner)) if !self.one_in(4) => Some(owner),
            _ if column.name == "gone" => {
                return [Value::Null, Value::Bool(false), Value::Bool(true)]
                    [self.rows.rng.usize(..3)]
                .clone();
            }
            _ => self.rows.number(column),
        };
        number.map_or(Value::Null, |number| column.kind.json(number))
    }

    fn new_row(&mut self, table: usize) -> Members {
        let of = &self.rows.schema.tables[table];
        let mut members = Members::new();
        let key = if of.place == Place::Root {
            self.often(|draw, key| draw.find(draw.stored, key).is_none())
        } else {
            Vec::new()
        };
        let mut key = key.into_iter();
        for column in of.shown() {
            let is_left_out = match column.role {
                Role::Owner => self.one_in(2),
                Role::Key | Role::Alias => false,
                _ => column.name == "pad" || self.one_in(6),
            };
            let value = match (column.role, key.next()) {
                (Role::Key, Some(part)) => column.kind.json(part),
                _ => self.value(column),
            };
            if !is_left_out {
                members.insert(column.name.clone(), value);
            }
        }
        for child in self.rows.schema.children(table).collect::<Vec<_>>() {
            if self.one_in(2) {
                let count = self.rows.rng.i64(0..ROWS_BELOW);
                let rows: Vec<Members> = (0..count).map(|_| self.new_row(child)).collect();
                members.insert(self.rows.schema.tables[child].name.clone(), array(rows));
            }
        }
        members
    }

    /// Changes values, and adds and removes rows below.
    fn change(&mut self, table: usize, members: &mut Members) {
        let columns: Vec<Column> = self.rows.schema.tables[table].shown().cloned().collect();
        for column in columns {
            match column.role {
                Role::Key => {}
                _ if column.name == "pad" => {
                    members.remove("pad");
                }
                // Few writes name an owner at random, so that many succeed.
                Role::Owner if !self.one_in(4) => {}
                Role::Owner if self.one_in(2) => {
                    members.remove(&column.name);
                }
                _ if self.one_in(5) => {
                    let value = self.value(&column);
                    members.insert(column.name, value);
                }
                _ => {}
            }
        }
        for child in self.rows.schema.children(table).collect::<Vec<_>>() {
            let name = self.rows.schema.tables[child].name.clone();
            let mut rows: Vec<Members> = rows_of(members, &name).cloned().collect();
            rows.retain(|_| self.rows.rng.u8(..5) > 0);
            for row in &mut rows {
                if self.rows.rng.bool() {
                    self.change(child, row);
                }
            }
            if self.one_in(4) {
                rows.push(self.new_row(child));
            }
            members.insert(name, array(rows));
        }
    }
}

fn rows_mut<'m>(members: &'m mut Members, name: &str) -> impl Iterator<Item = &'m mut Members> {
    let rows = members.get_mut(name).and_then(Value::as_array_mut);
    rows.into_iter().flatten().filter_map(Value::as_object_mut)
}

fn array(rows: Vec<Members>) -> Value {
    rows.into_iter().map(Value::Object).collect()
}
