//! Draws requests that fit the rows of a database for the most part.

use serde_json::{Value, json};

use crate::checks::differential_writes::requests::{Node, Operation, Request, Step};
use crate::checks::differential_writes::schema::{
    Column, Filling, KEYS, Kind, Level, Role, RowValues, Schema,
};
use crate::checks::differential_writes::state::{State, is_below, key_of};
use crate::checks::twins::{Condition, Form};

/// The most rows of a new array, less one.
const ROWS: usize = 4;
/// The most documents of a bulk POST, less one.
const DOCUMENTS: usize = 5;

/// Draws what is sent next, to a database in `state`.
pub(crate) fn draw_step(rng: &mut fastrand::Rng, schema: &Schema, state: &State) -> Step {
    let mut drawing = Drawing {
        rng,
        schema,
        state,
        is_invalid: false,
    };
    if drawing.rng.u8(..10) == 0 {
        return drawing.race();
    }
    Step::One(drawing.request())
}

/// Draws a document without a value that does not fit.
pub(crate) fn draw_document(rng: &mut fastrand::Rng, schema: &Schema) -> Node {
    let mut drawing = Drawing {
        rng,
        schema,
        state: &State::default(),
        is_invalid: true,
    };
    drawing.new_node(0)
}

struct Drawing<'d> {
    rng: &'d mut fastrand::Rng,
    schema: &'d Schema,
    state: &'d State,
    /// A value that does not fit was drawn; there are no further ones.
    is_invalid: bool,
}

impl Drawing<'_> {
    fn one_in(&mut self, count: u8) -> bool {
        self.rng.u8(..count) == 0
    }

    fn request(&mut self) -> Request {
        let operation = match self.rng.u8(..20) {
            0..=4 => self.post(Form::One),
            5..=10 => self.put(),
            11..=14 => self.patch(),
            15 | 16 => Operation::Delete { key: self.key() },
            17 => self.post(Form::Array),
            18 => self.post(Form::Lines),
            _ => self.post(Form::Lenient),
        };
        let condition = match (&operation, self.rng.u8(..16)) {
            (
                Operation::Post {
                    form: Form::One, ..
                },
                0 | 1,
            ) => Condition::MatchNone,
            (Operation::Post { .. }, _) => Condition::None,
            (Operation::Put { .. }, 0) => Condition::MatchNone,
            (_, 1 | 2) => Condition::Match,
            (_, 3) => Condition::MatchOther,
            (_, 4) => Condition::MatchAny,
            _ => Condition::None,
        };
        let may_be_repeated =
            !matches!(&operation, Operation::Post { form, .. } if *form != Form::One);
        Request {
            is_repeated: may_be_repeated && condition == Condition::None && self.one_in(10),
            is_minimal: self.one_in(3),
            is_invalid: std::mem::take(&mut self.is_invalid),
            operation,
            condition,
        }
    }

    /// Two requests, mostly for the same document.
    fn race(&mut self) -> Step {
        let mut requests = [self.request(), self.request()];
        let key = requests[0].operation.key().map(<[Value]>::to_vec);
        for request in &mut requests {
            request.is_repeated = false;
            request.condition = Condition::None;
            // Two requests have few orders; many transactions have many.
            if let Operation::Post { form, .. } = &mut request.operation
                && *form == Form::Lenient
            {
                *form = Form::Lines;
            }
        }
        match (key, &mut requests[1].operation) {
            (Some(same), Operation::Patch { key, .. } | Operation::Delete { key }) => *key = same,
            (Some(same), Operation::Put { key, document }) => {
                for part in self.schema.levels[0].of_role(Role::Key) {
                    document.values.remove(&part.name);
                }
                *key = same;
            }
            _ => {}
        }
        Step::Race(Box::new(requests))
    }

    fn post(&mut self, form: Form) -> Operation {
        let count = match form {
            Form::One => 1,
            _ => self.rng.usize(1..DOCUMENTS),
        };
        Operation::Post {
            documents: (0..count).map(|_| self.new_node(0)).collect(),
            form,
        }
    }

    fn root(&self) -> &Level {
        &self.schema.levels[0]
    }

    /// The key of an existing document for the most part.
    fn key(&mut self) -> Vec<Value> {
        let roots = self.state.levels[0].len();
        if roots > 0 && !self.one_in(8) {
            let row = self.rng.usize(..roots);
            return key_of(self.root(), &self.state.levels[0][row]);
        }
        let number = self.rng.i64(0..KEYS);
        let key = self.root().primary_key().into_iter();
        key.map(|column| column.kind.value(number)).collect()
    }

    fn put(&mut self) -> Operation {
        let key = self.key();
        let stored = self.state.document(self.schema, &key);
        let mut document = match stored.levels[0].first() {
            Some(root) => self.stored_node(&stored, 0, root),
            None => self.new_node(0),
        };
        if !self.one_in(8) {
            self.change(0, &mut document);
            self.move_rows(&mut document);
        }
        let names = self.root().of_role(Role::Key).map(|key| key.name.clone());
        for (name, part) in names.collect::<Vec<_>>().into_iter().zip(&key) {
            if self.rng.bool() {
                document.values.insert(name, part.clone());
            } else {
                document.values.remove(&name);
            }
        }
        Operation::Put { key, document }
    }

    fn patch(&mut self) -> Operation {
        let key = self.key();
        let stored = self.state.document(self.schema, &key);
        let mut values = RowValues::new();
        let columns: Vec<Column> = self.root().of_role(Role::Shown).cloned().collect();
        for column in columns {
            if self.one_in(3) {
                let value = self.value(&column);
                values.insert(column.name, value);
            }
        }
        let below: Vec<usize> = self.schema.below(0).collect();
        let mut patched = Vec::new();
        for level in below {
            if self.one_in(2) {
                continue;
            }
            if self.one_in(8) {
                patched.push((level, None));
                continue;
            }
            let mut node = Node {
                values: RowValues::new(),
                below: Vec::new(),
            };
            if let Some(root) = stored.levels[0].first() {
                let whole = self.stored_node(&stored, 0, root);
                node.below = whole.below;
                node.below.retain(|(of, _)| *of == level);
                self.change(0, &mut node);
                self.move_rows(&mut node);
            }
            let rows = node.below.pop().map(|(_, rows)| rows);
            patched.push((level, Some(rows.unwrap_or_default())));
        }
        Operation::Patch {
            key,
            values,
            below: patched,
        }
    }

    /// A value of a column; seldom one that does not fit.
    fn value(&mut self, column: &Column) -> Value {
        if !self.is_invalid
            && self.one_in(100)
            && let Some(value) = column.draw_invalid()
        {
            self.is_invalid = true;
            return value;
        }
        column.draw(self.rng)
    }

    fn new_node(&mut self, level: usize) -> Node {
        let of = &self.schema.levels[level];
        let mut values = RowValues::new();
        for column in of.shown() {
            let is_optional = column.is_nullable || column.default != Filling::Nothing;
            let is_absent = match (column.is_drawn(), is_optional) {
                (true, _) => !self.one_in(5),
                (false, true) => self.one_in(5),
                (false, false) => false,
            };
            if !is_absent {
                let mut value = self.value(column);
                if column.kind == Kind::Numeric && self.one_in(4) {
                    // Another spelling of the same key.
                    value = json!(value.as_f64());
                }
                values.insert(column.name.clone(), value);
            }
        }
        let mut below = Vec::new();
        for child in self.schema.below(level).collect::<Vec<_>>() {
            if self.one_in(5) {
                continue;
            }
            let count = self.rng.usize(..ROWS);
            below.push((child, (0..count).map(|_| self.new_node(child)).collect()));
        }
        Node { values, below }
    }

    /// The stored row `row` with the rows below it.
    fn stored_node(&self, stored: &State, level: usize, row: &RowValues) -> Node {
        let of = &self.schema.levels[level];
        let values = of.shown().map(|column| {
            let name = column.name.clone();
            let value = row.get(&name).cloned().unwrap_or_default();
            (name, value)
        });
        let below = self.schema.below(level).map(|child| {
            let level_below = &self.schema.levels[child];
            let rows = stored.levels[child].iter();
            let rows = rows.filter(|below| is_below(of, row, level_below, below));
            let rows = rows.map(|below| self.stored_node(stored, child, below));
            (child, rows.collect())
        });
        Node {
            values: values.collect(),
            below: below.collect(),
        }
    }

    /// Changes values, and adds and removes rows below.
    fn change(&mut self, level: usize, node: &mut Node) {
        let of = &self.schema.levels[level];
        for column in of.of_role(Role::Shown) {
            if self.one_in(5) {
                let value = self.value(column);
                node.values.insert(column.name.clone(), value);
            } else if (column.is_nullable || column.default != Filling::Nothing) && self.one_in(12)
            {
                node.values.remove(&column.name);
            }
        }
        for (child, rows) in &mut node.below {
            rows.retain(|_| self.rng.u8(..6) > 0);
            for row in &mut *rows {
                if self.rng.bool() {
                    self.change(*child, row);
                }
            }
            if self.one_in(4) {
                rows.push(self.new_node(*child));
            }
            if self.one_in(4) {
                self.rng.shuffle(rows);
            }
            if let (true, [first, .., last]) = (self.one_in(6), &mut rows[..]) {
                // Unique values move from one row to another.
                for column in self.schema.levels[*child].of_role(Role::Shown) {
                    let [one, other] =
                        [&*first, &*last].map(|row| row.values.get(&column.name).cloned());
                    if let (Some(one), Some(other)) = (one, other) {
                        first.values.insert(column.name.clone(), other);
                        last.values.insert(column.name.clone(), one);
                    }
                }
            }
        }
    }

    /// Moves rows of the third and lower levels to another row above them.
    fn move_rows(&mut self, node: &mut Node) {
        for (_, rows) in &mut node.below {
            for row in &mut *rows {
                self.move_rows(row);
            }
            if rows.len() < 2 || !self.one_in(3) {
                continue;
            }
            let [from, to] = [0, 0].map(|_| self.rng.usize(..rows.len()));
            let moved: Vec<(usize, Node)> = rows[from]
                .below
                .iter_mut()
                .filter_map(|(level, below)| Some((*level, below.pop()?)))
                .collect();
            for (level, row) in moved {
                match rows[to].below.iter_mut().find(|(of, _)| *of == level) {
                    Some((_, below)) => below.push(row),
                    None => rows[to].below.push((level, vec![row])),
                }
            }
        }
    }
}
