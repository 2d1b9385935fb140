//! The drawn triggers, and their functions.
//!
//! They call deterministic functions only. None depends on the order in which a statement updates or deletes rows, since
//! PostgreSQL promises none.

use crate::checks::differential_writes::schema::{Column, Filling, Kind, Level, Role, Schema};

const TRIGGERS_MAX: usize = 6;
/// Codes that triggers raise.
const RAISED: [&str; 8] = [
    "P0001", "45000", "P0002", "PT409", "PT503", "23505", "08006", "22023",
];

/// A trigger of a level.
#[derive(Clone, Debug)]
pub(super) struct Trigger {
    pub(super) name: String,
    pub(super) level: usize,
    timing: Timing,
    /// As in `create trigger`, such as `insert or update of a`.
    events: String,
    is_for_each_row: bool,
    when: Option<String>,
    /// The statement's rows are visible as `changed`.
    has_transition: bool,
    action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timing {
    Before,
    After,
    /// A constraint trigger that is deferred.
    Deferred,
}

/// What the trigger does. Numbers are levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Writes an audit row that says what the trigger sees.
    Audit,
    /// Returns null.
    Veto,
    /// Marks the row instead of deleting it.
    SoftDelete,
    RewriteValue,
    RewriteKey,
    CopyFromParent(usize),
    NoteParent(usize),
    NoteChildren(usize),
    InsertChild(usize),
    DeleteChildren(usize),
    NoteItself,
    Raise(&'static str),
    /// `suppress_redundant_updates_trigger`
    Suppress,
}

/// Draws triggers of `levels`. A quarter of all schemas has none.
pub(super) fn draw_triggers(rng: &mut fastrand::Rng, levels: &[Level]) -> Vec<Trigger> {
    let count = match rng.u8(..4) {
        0 => 0,
        _ => rng.usize(1..=TRIGGERS_MAX),
    };
    (0..count)
        .map(|number| draw_trigger(rng, levels, number))
        .collect()
}

fn draw_trigger(rng: &mut fastrand::Rng, levels: &[Level], number: usize) -> Trigger {
    let level = rng.usize(..levels.len());
    let action = draw_action(rng, levels, level);
    let (timing, events) = draw_events(rng, action);
    let is_for_each_row = action != Action::Audit || timing == Timing::Deferred || rng.u8(..3) > 0;
    let is_single = !events.contains(" or ");
    // Transition tables are not allowed with a list of columns.
    let has_transition = !is_for_each_row
        && timing == Timing::After
        && is_single
        && !events.contains(" of ")
        && rng.bool();
    let is_conditional = match action {
        Action::Veto | Action::Raise(_) => true,
        // Rows below it must take the key that it has stored.
        Action::RewriteKey => rng.bool(),
        Action::Suppress => false,
        _ => rng.u8(..3) == 0,
    };
    let row = if events == "delete" { "old" } else { "new" };
    let when = (is_for_each_row && is_conditional && (is_single || !events.contains("delete")))
        .then(|| match rng.u8(..4) {
            0 => format!("{row}.a % 2 = 0"),
            _ => format!("{row}.a = {}", rng.u8(..12)),
        });
    let order = rng.char('a'..='z');
    Trigger {
        name: format!("{order}{number}"),
        level,
        timing,
        events,
        is_for_each_row,
        when,
        has_transition,
        action,
    }
}

fn draw_action(rng: &mut fastrand::Rng, levels: &[Level], level: usize) -> Action {
    let parent = levels[level].parent;
    let numbered = levels.iter().enumerate();
    let mut below = numbered.filter(|(_, of)| of.parent == Some(level));
    let child = below.next().map(|(number, _)| number);
    loop {
        return match (rng.u8(..18), parent, child) {
            (0..=3, ..) => Action::Audit,
            (4, ..) => Action::Veto,
            (5 | 6, ..) => Action::SoftDelete,
            (7, ..) => Action::RewriteValue,
            (8, ..) => Action::RewriteKey,
            (9, Some(parent), _) => Action::CopyFromParent(parent),
            (10 | 11, Some(parent), _) => Action::NoteParent(parent),
            (12, _, Some(child)) => Action::NoteChildren(child),
            (13, _, Some(child)) if may_be_inserted(&levels[child]) => Action::InsertChild(child),
            (14, _, Some(child)) => Action::DeleteChildren(child),
            (15, ..) => Action::NoteItself,
            (16, ..) => Action::Raise(RAISED[rng.usize(..RAISED.len())]),
            (17, ..) if rng.bool() => Action::Suppress,
            _ => continue,
        };
    }
}

/// Whether a trigger can insert a row of which it gives only the own key and the link.
fn may_be_inserted(level: &Level) -> bool {
    let mut keys = level.of_role(Role::Key);
    let is_plain = keys.all(|key| key.is_drawn() || key.kind == Kind::Integer);
    let mut others = level.of_role(Role::Shown);
    is_plain && others.all(|column| column.is_nullable || column.default != Filling::Nothing)
}

fn draw_events(rng: &mut fastrand::Rng, action: Action) -> (Timing, String) {
    let any =
        |rng: &mut fastrand::Rng, choices: &[&str]| choices[rng.usize(..choices.len())].to_owned();
    let before_or_after = [Timing::After, Timing::Before];
    match action {
        Action::Audit => {
            let timing = match rng.u8(..5) {
                0 | 1 => Timing::Before,
                4 => Timing::Deferred,
                _ => Timing::After,
            };
            let events = [
                "insert",
                "update",
                "delete",
                "update of a",
                "update of b",
                "insert or update",
                "insert or update or delete",
            ];
            (timing, any(rng, &events))
        }
        Action::Veto => (
            Timing::Before,
            any(rng, &["insert", "update", "delete", "update of a"]),
        ),
        Action::SoftDelete => (Timing::Before, "delete".to_owned()),
        Action::RewriteValue | Action::CopyFromParent(_) => (
            Timing::Before,
            any(rng, &["insert", "update", "insert or update"]),
        ),
        Action::RewriteKey => (
            Timing::Before,
            any(rng, &["insert", "insert", "insert", "update"]),
        ),
        Action::NoteParent(_) => (
            before_or_after[usize::from(rng.bool())],
            any(
                rng,
                &["insert", "update", "delete", "insert or update or delete"],
            ),
        ),
        Action::NoteChildren(_) => (
            Timing::After,
            any(
                rng,
                &["insert", "update", "update of a", "insert or update"],
            ),
        ),
        Action::InsertChild(_) => (Timing::After, "insert".to_owned()),
        Action::DeleteChildren(_) => (Timing::Before, "delete".to_owned()),
        Action::NoteItself => (
            Timing::Deferred,
            any(rng, &["insert", "update", "insert or update"]),
        ),
        Action::Raise(_) => {
            let timing = match rng.u8(..3) {
                0 => Timing::Before,
                1 => Timing::After,
                _ => Timing::Deferred,
            };
            (
                timing,
                any(rng, &["insert", "update", "delete", "update of b"]),
            )
        }
        Action::Suppress => (Timing::Before, "update".to_owned()),
    }
}

impl Trigger {
    /// Whether it draws values of a sequence that an insertion of larder draws from, too.
    pub(super) fn draws(&self, levels: &[Level]) -> bool {
        matches!(self.action, Action::InsertChild(child) if levels[child].columns.iter().any(Column::is_drawn))
    }

    /// The statements that create the function and the trigger.
    pub(super) fn sql(&self, schema: &Schema) -> String {
        let name = &self.name;
        let table = schema.table(self.level);
        let (constraint, timing, deferred) = match self.timing {
            Timing::Before => ("", "before", ""),
            Timing::After => ("", "after", ""),
            Timing::Deferred => ("constraint ", "after", " deferrable initially deferred"),
        };
        let function = match self.action {
            Action::Suppress => "suppress_redundant_updates_trigger".to_owned(),
            _ => format!("{}.f_{name}", schema.name),
        };
        let transition = match (self.has_transition, &*self.events) {
            (false, _) => "",
            (true, "delete") => " referencing old table as changed",
            (true, _) => " referencing new table as changed",
        };
        let each = if self.is_for_each_row {
            "row"
        } else {
            "statement"
        };
        let when = self.when.as_ref().map(|when| format!(" when ({when})"));
        let create = format!(
            "create {constraint}trigger {name} {timing} {} on {table}{deferred}{transition} for each {each}{} \
             execute function {function}();\n",
            self.events,
            when.unwrap_or_default(),
        );
        match self.action {
            Action::Suppress => create,
            _ => format!("{}{create}", self.function_sql(schema, &function)),
        }
    }

    fn function_sql(&self, schema: &Schema, function: &str) -> String {
        let body = self.body_sql(schema);
        let begin = if self.is_for_each_row {
            "declare r record; begin\n  if tg_op = 'DELETE' then r := old; else r := new; end if;\n  "
        } else {
            "begin\n  "
        };
        let end = match (self.is_for_each_row, self.action) {
            (false, _) | (_, Action::Veto) => "return null;",
            (_, Action::RewriteValue | Action::RewriteKey | Action::CopyFromParent(_)) => {
                "return new;"
            }
            (_, Action::SoftDelete) => "return null;",
            _ => "return r;",
        };
        format!(
            "create function {function}() returns trigger language plpgsql as $$ {begin}{body}\n  {end}\nend $$;\n"
        )
    }

    fn body_sql(&self, schema: &Schema) -> String {
        let level = &schema.levels[self.level];
        let table = schema.table(self.level);
        // The row that the trigger is called for.
        let itself = equal_columns(
            level.primary_key().iter().map(|column| &*column.name),
            level.primary_key().iter().map(|column| &*column.name),
        );
        match self.action {
            Action::Audit => self.audit_sql(schema),
            Action::Veto | Action::Suppress => String::new(),
            Action::SoftDelete => format!("update {table} x set gone = true where {itself};"),
            Action::RewriteValue => "new.b := coalesce(new.b, '') || '!';".to_owned(),
            Action::RewriteKey => {
                let keys = level.of_role(Role::Key);
                let key = keys.last().map(|key| match key.kind {
                    Kind::Text => format!("new.{0} := new.{0} || 'r';", key.name),
                    _ => format!("new.{0} := new.{0} + 500;", key.name),
                });
                key.unwrap_or_default()
            }
            Action::CopyFromParent(parent) => format!(
                "new.note := (select concat_ws('/', x.a, rtrim(x.b, '!'), x.note) from {} x where {});",
                schema.table(parent),
                is_parent_sql(schema, self.level, parent)
            ),
            Action::NoteParent(parent) => {
                let links: Vec<&str> = level.links().map(|link| &*link.name).collect();
                // Before a row is deleted, the number of those that are left depends on their order.
                let count = match self.timing {
                    Timing::Before => String::new(),
                    _ => format!(
                        " || (select count(*) from {table} x where {})",
                        equal_columns(links.iter().copied(), links.iter().copied())
                    ),
                };
                guarded(&format!(
                    "update {} x set note = 'c'{count} where {};",
                    schema.table(parent),
                    is_parent_sql(schema, self.level, parent)
                ))
            }
            Action::NoteChildren(child) => guarded(&format!(
                "update {} x set note = concat('p', r.a) where {};",
                schema.table(child),
                is_child_sql(schema, self.level, child)
            )),
            Action::InsertChild(child) => guarded(&insert_child_sql(schema, self.level, child)),
            Action::DeleteChildren(child) => format!(
                "delete from {} x where {};",
                schema.table(child),
                is_child_sql(schema, self.level, child)
            ),
            // A column that documents show: an answer before the deferred trigger is not what a read returns.
            Action::NoteItself => format!(
                "update {table} x set b = concat('d', x.b) where {itself} and x.b not like 'd%';"
            ),
            Action::Raise(code) => {
                format!("raise exception 'refused' using errcode = '{code}';")
            }
        }
    }

    /// An audit row has the row as it is now, what the trigger sees of the row above, and how many rows there are at
    /// other levels. How often the row above was rewritten meanwhile depends on the order of the statement's rows.
    fn audit_sql(&self, schema: &Schema) -> String {
        let mut parts = vec!["tg_name, tg_when, tg_op".to_owned()];
        if self.is_for_each_row {
            parts.push("r::text".to_owned());
            if self.events.starts_with("update") {
                parts.push("old::text".to_owned());
            }
            if let Some(parent) = schema.levels[self.level].parent {
                parts.push(format!(
                    "(select concat('above:', x.a, ',', rtrim(x.b, '!')) from {} x where {})",
                    schema.table(parent),
                    is_parent_sql(schema, self.level, parent)
                ));
            }
        } else if self.has_transition {
            parts.push("(select count(*) from changed)".to_owned());
        }
        // In the middle of a statement that updates or deletes rows, numbers of rows depend on their order.
        let is_in_the_middle =
            self.is_for_each_row && self.timing == Timing::Before && self.events != "insert";
        if !is_in_the_middle {
            let counted = (0..schema.levels.len())
                .filter(|number| *number != self.level || !self.is_for_each_row)
                .map(|number| {
                    let (name, table) = (&schema.levels[number].table, schema.table(number));
                    format!("'{name}=' || (select count(*) from {table})")
                });
            let counted: Vec<String> = counted.collect();
            // What is deferred runs after all statements.
            let (if_outer, end) = match self.timing {
                Timing::Deferred => ("", ""),
                _ => ("case when pg_trigger_depth() = 1 then ", " end"),
            };
            if !counted.is_empty() {
                parts.push(format!(
                    "{if_outer}concat_ws(' ', {}){end}",
                    counted.join(", ")
                ));
            }
        }
        format!(
            "insert into {}.audit(entry) values (concat_ws(' ', {}));",
            schema.name,
            parts.join(", ")
        )
    }
}

/// `x.one = r.other and …`
fn equal_columns<'c>(
    ones: impl Iterator<Item = &'c str>,
    others: impl Iterator<Item = &'c str>,
) -> String {
    let pairs = ones.zip(others);
    let equal: Vec<String> = pairs
        .map(|(one, other)| format!("x.{one} = r.{other}"))
        .collect();
    equal.join(" and ")
}

/// A condition: row `x` of `parent` is above the row `r` of `level`.
fn is_parent_sql(schema: &Schema, level: usize, parent: usize) -> String {
    let keys = schema.levels[parent].primary_key();
    let links = schema.levels[level].links();
    equal_columns(
        keys.iter().map(|key| &*key.name),
        links.map(|link| &*link.name),
    )
}

/// A condition: row `x` of `child` is below the row `r` of `level`.
fn is_child_sql(schema: &Schema, level: usize, child: usize) -> String {
    let keys = schema.levels[level].primary_key();
    let links = schema.levels[child].links();
    equal_columns(
        links.map(|link| &*link.name),
        keys.iter().map(|key| &*key.name),
    )
}

fn insert_child_sql(schema: &Schema, level: usize, child: usize) -> String {
    let of = &schema.levels[child];
    let (mut names, mut values) = (Vec::new(), Vec::new());
    for (link, key) in of.links().zip(schema.levels[level].primary_key()) {
        names.push(link.name.clone());
        values.push(format!("r.{}", key.name));
    }
    for key in of.of_role(Role::Key).filter(|key| !key.is_drawn()) {
        names.push(key.name.clone());
        values.push("100 + coalesce(r.a, 0)".to_owned());
    }
    format!(
        "insert into {} ({}, a) values ({}, 1);",
        schema.table(child),
        names.join(", "),
        values.join(", ")
    )
}

/// Triggers that write other levels must not call each other without end.
fn guarded(statement: &str) -> String {
    format!("if pg_trigger_depth() < 4 then {statement} end if;")
}
