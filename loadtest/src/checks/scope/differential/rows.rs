//! The rows that a drawn schema begins with, and how plain SQL changes them afterwards.

use crate::checks::scope::differential::ddl::names;
use crate::checks::scope::differential::schema::{
    CHILD_KEYS, Column, KEYS, LOOKUP_ROWS, OWNERS, Place, Role, SECOND_PARTS, Schema,
};

/// Documents at the start; some have equal keys or aliases, and are left out.
const DOCUMENTS: usize = 16;
const CHILDREN: i64 = 30;
/// Values of `a` and `b` are below this.
const PLAIN: i64 = 10;

/// Draws rows of a schema and changes of them.
pub(super) struct RowDraw<'d> {
    pub(super) rng: &'d mut fastrand::Rng,
    pub(super) schema: &'d Schema,
}

impl RowDraw<'_> {
    /// The statements that fill the tables. Rows that violate a constraint are left out.
    pub(super) fn fill(&mut self) -> Vec<String> {
        let mut statements = Vec::new();
        for table in self.schema.creation_order() {
            match self.schema.tables[table].place {
                Place::Root => {
                    for _ in 0..DOCUMENTS {
                        let key = self.key();
                        statements.push(self.root_sql(&key));
                    }
                }
                Place::Child { .. } => {
                    for number in 0..CHILDREN {
                        statements.push(self.child_sql(table, number));
                    }
                }
                Place::Lookup { .. } => {
                    for number in 0..LOOKUP_ROWS {
                        statements.push(self.lookup_sql(table, number));
                    }
                }
            }
        }
        statements
    }

    /// A statement that changes rows as another program does. It may fail.
    pub(super) fn change(&mut self) -> String {
        let table = match self.rng.u8(..4) {
            0 => self.rng.usize(..self.schema.tables.len()),
            _ => 0,
        };
        match (&self.schema.tables[table].place, self.rng.u8(..12)) {
            (Place::Root, 0) => {
                let key = self.key();
                self.root_sql(&key)
            }
            (Place::Root, 1) => self.update_key(),
            (Place::Child { .. }, 0 | 1) => {
                let number = self.rng.i64(0..CHILD_KEYS);
                self.child_sql(table, number)
            }
            (Place::Root | Place::Child { .. }, 2) => {
                // A soft deletion may prevent it.
                let row = self.some_row(table);
                format!("delete from {} where {row}", self.schema.table_sql(table))
            }
            _ => self.update(table),
        }
    }

    /// The numbers of a root's key; few keys are not there.
    pub(super) fn key(&mut self) -> Vec<i64> {
        let parts = self.schema.key_kinds().len();
        self.numbers(parts)
    }

    /// The numbers of an alias.
    pub(super) fn alias(&mut self, alias: usize) -> Vec<i64> {
        let parts = self.schema.aliases[alias].columns.len();
        self.numbers(parts)
    }

    fn numbers(&mut self, parts: usize) -> Vec<i64> {
        match parts {
            1 => vec![self.rng.i64(0..KEYS + 2)],
            _ => vec![self.rng.i64(0..KEYS / 3 + 1), self.rng.i64(0..SECOND_PARTS)],
        }
    }

    /// The number of a value of a column.
    pub(super) fn number(&mut self, column: &Column) -> Option<i64> {
        if column.is_nullable && self.rng.u8(..8) == 0 {
            return None;
        }
        Some(match column.role {
            Role::Key => self.rng.i64(0..CHILD_KEYS),
            Role::Owner => self.rng.i64(OWNERS),
            // Not the first part of two: these are few.
            Role::Alias if column.name.ends_with('1') => self.rng.i64(0..SECOND_PARTS),
            Role::Alias => self.rng.i64(0..KEYS + 2),
            Role::Pointer => self.rng.i64(0..LOOKUP_ROWS),
            Role::Link | Role::Plain => self.rng.i64(0..PLAIN),
        })
    }

    fn literal(&mut self, column: &Column) -> String {
        if column.name == "gone" {
            let drawn = self.rng.u8(..6);
            let gone = ["true", "null", "null", "false", "false", "false"];
            return gone[usize::from(drawn)].to_owned();
        }
        let number = self.number(column);
        number.map_or("null".to_owned(), |number| column.kind.literal(number))
    }

    fn insert_sql(&mut self, table: usize, known: &[String]) -> String {
        let of = &self.schema.tables[table];
        let (stored, others): (Vec<&Column>, Vec<&Column>) = of
            .columns
            .iter()
            .partition(|column| matches!(column.role, Role::Key | Role::Link));
        let others: Vec<&Column> = others
            .into_iter()
            .filter(|column| column.name != "pad")
            .collect();
        let mut values = known.to_vec();
        values.extend(others.iter().map(|column| self.literal(column)));
        format!(
            "insert into {} ({}) values ({}) on conflict do nothing",
            self.schema.table_sql(table),
            names(stored.into_iter().chain(others)),
            values.join(", ")
        )
    }

    fn root_sql(&mut self, key: &[i64]) -> String {
        let kinds = self.schema.key_kinds();
        let key: Vec<String> = kinds
            .iter()
            .zip(key)
            .map(|(kind, part)| kind.literal(*part))
            .collect();
        self.insert_sql(0, &key)
    }

    fn child_sql(&mut self, table: usize, number: i64) -> String {
        let key = self.schema.tables[table].of_role(Role::Key).next();
        let mut known: Vec<String> = key
            .map(|key| key.kind.literal(number))
            .into_iter()
            .collect();
        known.extend(self.link(table));
        self.insert_sql(table, &known)
    }

    fn lookup_sql(&mut self, table: usize, number: i64) -> String {
        let key = self.schema.tables[table].of_role(Role::Key).next();
        let known: Vec<String> = key
            .map(|key| key.kind.literal(number))
            .into_iter()
            .collect();
        self.insert_sql(table, &known)
    }

    /// The key of a row that rows of `table` may be below.
    fn link(&mut self, table: usize) -> Vec<String> {
        let Place::Child { parent, .. } = self.schema.tables[table].place else {
            return Vec::new();
        };
        let links: Vec<Column> = self.schema.tables[table]
            .of_role(Role::Link)
            .cloned()
            .collect();
        let numbers = match parent {
            0 => self.key(),
            _ => vec![self.rng.i64(0..CHILDREN)],
        };
        links
            .iter()
            .zip(numbers)
            .map(|(link, number)| link.kind.literal(number))
            .collect()
    }

    /// A condition that a row of `table`, or a few, fulfil.
    fn some_row(&mut self, table: usize) -> String {
        let key: Vec<Column> = self.schema.tables[table]
            .of_role(Role::Key)
            .cloned()
            .collect();
        let numbers = match self.schema.tables[table].place {
            Place::Root => self.key(),
            Place::Child { .. } => vec![self.rng.i64(0..CHILD_KEYS)],
            Place::Lookup { .. } => vec![self.rng.i64(0..LOOKUP_ROWS)],
        };
        let equal = key.iter().zip(numbers);
        let equal: Vec<String> = equal
            .map(|(column, number)| format!("{} = {}", column.name, column.kind.literal(number)))
            .collect();
        equal.join(" and ")
    }

    fn update(&mut self, table: usize) -> String {
        let columns: Vec<Column> = self.schema.tables[table]
            .columns
            .iter()
            .filter(|column| column.role != Role::Key && column.name != "pad")
            .cloned()
            .collect();
        let mut column = &columns[self.rng.usize(..columns.len())];
        // Columns on which scopes and conditions depend change more often.
        if self.rng.bool() {
            let deciding = columns.iter().find(|column| match self.rng.u8(..3) {
                0 => column.name == "gone",
                _ => column.role == Role::Owner,
            });
            column = deciding.unwrap_or(column);
        }
        let value = match column.role {
            Role::Link => {
                let names = columns.iter().filter(|column| column.role == Role::Link);
                let (names, values) = (names_of(names), self.link(table).join(", "));
                let (table_sql, row) = (self.schema.table_sql(table), self.some_row(table));
                return format!("update {table_sql} set ({names}) = row({values}) where {row}");
            }
            _ => self.literal(column),
        };
        let (table_sql, row) = (self.schema.table_sql(table), self.some_row(table));
        format!(
            "update {table_sql} set {} = {value} where {row}",
            column.name
        )
    }

    /// A root moves to another key; one with rows below it can't.
    fn update_key(&mut self) -> String {
        let kinds = self.schema.key_kinds();
        let (key, row) = (self.key(), self.some_row(0));
        let values: Vec<String> = kinds
            .iter()
            .zip(key)
            .map(|(kind, part)| kind.literal(part))
            .collect();
        format!(
            "update {} set ({}) = row({}) where {row}",
            self.schema.table_sql(0),
            names(self.schema.tables[0].of_role(Role::Key)),
            values.join(", ")
        )
    }
}

fn names_of<'c>(columns: impl Iterator<Item = &'c Column>) -> String {
    names(columns)
}
