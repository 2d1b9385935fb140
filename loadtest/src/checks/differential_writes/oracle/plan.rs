//! The rows that a document should have after a write, level by level.

use serde_json::Value;

use crate::checks::differential_writes::requests::Node;
use crate::checks::differential_writes::schema::{
    Column, Filling, Kind, Level, Role, RowValues, Schema,
};
use crate::checks::differential_writes::state::{
    State, is_same, is_same_key, key_of, link_of, value_of,
};

/// The rows of all levels, in the order of the body.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) levels: Vec<Vec<PlannedRow>>,
    /// The levels whose rows the body tells. Rows of others stay as they are.
    pub(super) is_told: Vec<bool>,
    /// What a patch leaves out of the root row stays as it is.
    pub(super) is_patch: bool,
}

/// A row as it should be.
#[derive(Clone, Debug)]
pub(super) struct PlannedRow {
    /// The row above, in the level above.
    pub(super) parent: usize,
    /// Values of shown columns. A new row has defaults in the others, a kept one what it has.
    pub(super) values: RowValues,
    /// The primary key, if it is known.
    pub(super) key: Option<Vec<Value>>,
    /// The stored row that it is, in its level.
    pub(super) stored: Option<usize>,
}

impl Plan {
    /// The rows of a whole document; `key` is that of the path.
    pub(super) fn of_document(schema: &Schema, document: &Node, key: Option<&[Value]>) -> Self {
        let mut plan = Self {
            levels: vec![Vec::new(); schema.levels.len()],
            is_told: vec![true; schema.levels.len()],
            is_patch: false,
        };
        plan.add(0, 0, document);
        if let (Some(key), Some(root)) = (key, plan.levels[0].first_mut()) {
            let parts = schema.levels[0].primary_key().into_iter().zip(key);
            for (column, part) in parts {
                root.values.insert(column.name.clone(), part.clone());
            }
        }
        plan.set_keys(schema);
        plan
    }

    /// The rows that a patch tells.
    pub(super) fn of_patch(
        schema: &Schema,
        key: &[Value],
        values: &RowValues,
        below: &[(usize, Option<Vec<Node>>)],
    ) -> Self {
        let document = Node {
            values: values.clone(),
            below: below
                .iter()
                .map(|(level, rows)| (*level, rows.clone().unwrap_or_default()))
                .collect(),
        };
        let mut plan = Self::of_document(schema, &document, Some(key));
        plan.is_patch = true;
        for (number, level) in schema.levels.iter().enumerate() {
            plan.is_told[number] = match level.parent {
                None => true,
                Some(0) => below.iter().any(|(told, _)| *told == number),
                Some(parent) => plan.is_told[parent],
            };
        }
        plan
    }

    fn add(&mut self, level: usize, parent: usize, node: &Node) {
        let row = self.levels[level].len();
        self.levels[level].push(PlannedRow {
            parent,
            values: node.values.clone(),
            key: None,
            stored: None,
        });
        for (child, rows) in &node.below {
            for below in rows {
                self.add(*child, row, below);
            }
        }
    }

    /// Sets the keys that the body tells.
    fn set_keys(&mut self, schema: &Schema) {
        for (number, level) in schema.levels.iter().enumerate() {
            for row in 0..self.levels[number].len() {
                let key = self.known_key(level, number, row);
                self.levels[number][row].key = key;
            }
        }
    }

    fn known_key(&self, level: &Level, number: usize, row: usize) -> Option<Vec<Value>> {
        let row = &self.levels[number][row];
        let own = own_key(level, row);
        if own.contains(&Value::Null) {
            return None;
        }
        match level.parent {
            Some(parent) if level.is_link_in_key => {
                let above = self.levels[parent][row.parent].key.as_ref()?;
                Some([above.as_slice(), &own].concat())
            }
            _ => Some(own),
        }
    }

    /// Whether the body is refused before anything is written.
    pub(super) fn is_refused(&self, schema: &Schema) -> bool {
        self.has_nulls(schema) || self.has_duplicates(schema)
    }

    /// Whether the body gives null to a column that can't be. In a column of JSON it is a value.
    fn has_nulls(&self, schema: &Schema) -> bool {
        let mut levels = schema.levels.iter().zip(&self.levels);
        levels.any(|(level, rows)| {
            let is_json = |column: &Column| matches!(column.kind, Kind::Json | Kind::Jsonb);
            let columns = || level.columns.iter().filter(|column| !is_json(column));
            let required = || columns().filter(|column| !column.is_nullable);
            rows.iter().any(|row| {
                required().any(|column| row.values.get(&column.name) == Some(&Value::Null))
            })
        })
    }

    /// Whether two rows of a level have the same key.
    fn has_duplicates(&self, schema: &Schema) -> bool {
        schema.levels.iter().enumerate().any(|(number, level)| {
            let rows = &self.levels[number];
            let same = |one: &PlannedRow, other: &PlannedRow| match (&one.key, &other.key) {
                (Some(one), Some(other)) => is_same_key(one, other),
                // Rows below one row have the same link, also if its key is not known yet.
                _ => {
                    let [one_key, other_key] = [one, other].map(|row| own_key(level, row));
                    one.parent == other.parent
                        && level.parent.is_some()
                        && !one_key.contains(&Value::Null)
                        && is_same_key(&one_key, &other_key)
                }
            };
            let mut numbered = rows.iter().enumerate();
            numbered.any(|(at, one)| rows[..at].iter().any(|other| same(one, other)))
        })
    }

    /// Finds the stored row of each row.
    pub(super) fn match_stored(&mut self, schema: &Schema, stored: &State) {
        for (number, level) in schema.levels.iter().enumerate() {
            for row in &mut self.levels[number] {
                row.stored = row.key.as_ref().and_then(|key| {
                    let mut rows = stored.levels[number].iter();
                    rows.position(|known| is_same_key(&key_of(level, known), key))
                });
            }
        }
    }

    /// Sets the columns that the object of a kept row leaves out, and that have no default, to null.
    pub(super) fn clear_left_out(&mut self, schema: &Schema) {
        let first = usize::from(self.is_patch);
        for (number, level) in schema.levels.iter().enumerate().skip(first) {
            for row in &mut self.levels[number] {
                for column in level.of_role(Role::Shown) {
                    let is_left_out = !row.values.contains_key(&column.name);
                    if row.stored.is_some() && is_left_out && column.default == Filling::Nothing {
                        row.values.insert(column.name.clone(), Value::Null);
                    }
                }
            }
        }
    }

    /// The values with which a row refers to the row above, whose key must be known.
    pub(super) fn link(&self, schema: &Schema, number: usize, row: usize) -> Option<Vec<Value>> {
        let parent = schema.levels[number].parent?;
        let above = self.levels[number][row].parent;
        self.levels[parent][above].key.clone()
    }

    /// The columns of a kept row that differ from the stored row, with their new values.
    pub(super) fn changes<'s>(
        &self,
        schema: &'s Schema,
        stored: &State,
        number: usize,
        row: usize,
    ) -> Vec<(&'s Column, Value)> {
        let level = &schema.levels[number];
        let planned = &self.levels[number][row];
        let Some(known) = planned.stored.map(|at| &stored.levels[number][at]) else {
            return Vec::new();
        };
        let mut changes = Vec::new();
        if let Some(link) = self.link(schema, number, row)
            && !is_same_key(&link, &link_of(level, known))
        {
            let pairs = level.links().zip(link);
            changes.extend(
                pairs.filter(|(column, value)| !is_same(value, &value_of(known, &column.name))),
            );
        }
        for column in level.of_role(Role::Shown) {
            let Some(value) = planned.values.get(&column.name) else {
                continue;
            };
            let before = value_of(known, &column.name);
            // A document shows the digits of a numeric: `4.0` is not `4`.
            let is_same = match column.kind {
                Kind::Numeric => *value == before,
                _ => is_same(value, &before),
            };
            if !is_same {
                changes.push((column, value.clone()));
            }
        }
        changes
    }

    /// The stored rows that are not kept: those that are deleted first, and those that a kept row is moved away from.
    pub(super) fn removed(&self, schema: &Schema, stored: &State) -> [Vec<Vec<usize>>; 2] {
        let mut removed = [0, 1].map(|_| vec![Vec::new(); schema.levels.len()]);
        for number in (0..schema.levels.len())
            .rev()
            .filter(|number| self.is_told[*number])
        {
            let level = &schema.levels[number];
            for (at, row) in stored.levels[number].iter().enumerate() {
                if self.is_kept(number, at) {
                    continue;
                }
                let key = key_of(level, row);
                // A kept row below is moved to another one; a row below that is deleted last is deleted before.
                let is_last = schema.below(number).any(|child| {
                    let of = &schema.levels[child];
                    let mut below = stored.levels[child].iter().enumerate();
                    below.any(|(at, below)| {
                        is_same_key(&link_of(of, below), &key)
                            && (self.is_kept(child, at) || removed[1][child].contains(&at))
                    })
                });
                removed[usize::from(is_last)][number].push(at);
            }
        }
        removed
    }

    fn is_kept(&self, number: usize, at: usize) -> bool {
        self.levels[number].iter().any(|row| row.stored == Some(at))
    }
}

/// The parts of the key that the body tells, without the link.
fn own_key(level: &Level, row: &PlannedRow) -> Vec<Value> {
    let columns = level.of_role(Role::Key);
    columns
        .map(|column| value_of(&row.values, &column.name))
        .collect()
}
