//! Loggers: the trigger functions that write to `larder.change` which keys a transaction touched.
//!
//! Triggers log and decide nothing. They never join: in the writer's snapshot a join would miss rows that a concurrent
//! transaction moves. They read nothing that other transactions write. There are two forms, chosen for each link by
//! [`TriggerLevel`]:
//!
//! - Statement triggers with transition tables, always enabled, on the table and on each of its descendants. They fire
//!   for the table that a statement names, and not for what logical replication applies. So each ordinary table also
//!   has a row trigger that is enabled for replication only.
//! - Row triggers, always enabled, on each ordinary table. They fire whichever ancestor a statement names, and can be
//!   used where PostgreSQL refuses transition tables.
//!
//! A statement that touches many keys logs ranges of them (`ranges`), and marks rows that it inserts as new
//! (`PathKind`). So the number of rows that it logs is bounded, and documents that it can't have changed stay in the
//! tiers.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

use crate::feed::FeedConfig;
use crate::feed::triggers::body::function_body;
use crate::feed::triggers::level::TriggerLevel;
use crate::resource::Resource;
use crate::resource::catalogue::{Catalogue, TableName};
use crate::resource::link::links;

/// A condition that is always true and makes the trigger depend on `larder.change`. So PostgreSQL refuses to drop that
/// table while triggers write to it, and `drop … cascade` drops them as well: users' writes succeed in both cases. A
/// test for null takes 1.0 µs for each statement; a function in SQL, which is planned each time, takes 5.5 µs
/// (2026-11-21, PostgreSQL 15).
const TRIGGER_WHEN: &str = "when (null::larder.change is null)";

/// In which sessions a trigger fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Firing {
    /// In all, whatever `session_replication_role` is.
    Always,
    /// In those that apply replicated changes.
    Replica,
}

impl Firing {
    /// The word for `alter table … enable … trigger`.
    fn sql(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Replica => "replica",
        }
    }

    /// `pg_trigger.tgenabled`.
    pub(super) fn code(self) -> &'static str {
        match self {
            Self::Always => "A",
            Self::Replica => "R",
        }
    }
}

/// One of a logger's triggers, on a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trigger {
    pub(super) name: String,
    pub(super) table: TableName,
    pub(super) firing: Firing,
    /// `pg_trigger.tgtype`: a bit for row level, and one for each event (pg_trigger.h).
    pub(super) code: i16,
    /// The part of `create trigger` from the events to the level, with `{}` for the table.
    event: &'static str,
}

/// Statement triggers: the name of the operation, `tgtype` and [`Trigger::event`].
const STATEMENT_TRIGGERS: [(&str, i16, &str); 4] = [
    (
        "insert",
        4,
        "insert on {} referencing new table as larder_new for each statement",
    ),
    (
        "update",
        16,
        "update on {} referencing old table as larder_old new table as larder_new for each statement",
    ),
    (
        "delete",
        8,
        "delete on {} referencing old table as larder_old for each statement",
    ),
    TRUNCATE,
];
const TRUNCATE: (&str, i16, &str) = ("truncate", 32, "truncate on {} for each statement");
const ROW: (&str, i16, &str) = (
    "row",
    1 + 4 + 8 + 16,
    "insert or update or delete on {} for each row",
);

/// A function that logs the changes of one link, and the triggers that call it.
#[derive(Clone, Debug)]
pub(in crate::feed) struct Logger {
    pub(super) hash: String,
    pub(super) body: String,
    pub(super) triggers: Vec<Trigger>,
}

/// The loggers that `resources` need. Resources share a logger whose body is the same.
pub(in crate::feed) fn loggers(
    resources: &[&Resource],
    catalogue: &Catalogue,
    config: &FeedConfig,
) -> Vec<Logger> {
    let mut loggers: BTreeMap<String, Logger> = BTreeMap::new();
    for link in resources.iter().flat_map(|resource| links(resource)) {
        let table = catalogue.table(&link.table);
        let level = TriggerLevel::of(table);
        let body = function_body(&link, level, config);
        let hash = hash(&body);
        let logger = loggers.entry(hash.clone()).or_insert_with(|| Logger {
            hash,
            body,
            triggers: Vec::new(),
        });
        let parts = table.iter().flat_map(|table| &table.descendants);
        let parts = parts.map(|part| (&part.name, part.kind));
        let own = (&link.table, table.map_or('r', |table| table.kind));
        for (table, kind) in std::iter::once(own).chain(parts) {
            logger.add_triggers(table, kind, level);
        }
    }
    loggers.into_values().collect()
}

fn hash(body: &str) -> String {
    format!(
        "{:016x}",
        xxh3_64(format!("{TRIGGER_WHEN}{body}").as_bytes())
    )
}

impl Logger {
    /// The tables that have its triggers, with repetitions.
    pub(in crate::feed) fn tables(&self) -> impl Iterator<Item = &TableName> {
        self.triggers.iter().map(|trigger| &trigger.table)
    }

    /// The tables that have its row trigger in all sessions.
    pub(in crate::feed) fn tables_with_row_triggers(&self) -> impl Iterator<Item = &TableName> {
        let rows = |trigger: &&Trigger| trigger.code == ROW.1 && trigger.firing == Firing::Always;
        self.triggers
            .iter()
            .filter(rows)
            .map(|trigger| &trigger.table)
    }

    /// The function's name in schema larder.
    pub(in crate::feed) fn function_name(&self) -> String {
        format!("log_{}", self.hash)
    }

    pub(super) fn function_sql(&self) -> String {
        format!(
            "create or replace function larder.{name}() returns trigger language plpgsql security definer\n\
             as {body};\n\
             revoke all on function larder.{name}() from public;\n",
            name = self.function_name(),
            body = dollar_quoted(&self.body),
        )
    }

    fn add_triggers(&mut self, table: &TableName, kind: char, level: TriggerLevel) {
        let is_ordinary = kind == 'r';
        let row_firing = match level {
            TriggerLevel::Statement => Firing::Replica,
            TriggerLevel::Row { .. } => Firing::Always,
        };
        let statements = match level {
            TriggerLevel::Statement => &STATEMENT_TRIGGERS[..],
            TriggerLevel::Row { .. } => &[TRUNCATE],
        };
        let statements = statements.iter().map(|event| (event, Firing::Always));
        let rows = is_ordinary.then_some((&ROW, row_firing));
        for (&(name, code, event), firing) in statements.chain(rows) {
            let trigger = Trigger {
                name: format!("larder_{}_{name}", self.hash),
                table: table.clone(),
                firing,
                code,
                event,
            };
            if !self.triggers.contains(&trigger) {
                self.triggers.push(trigger);
            }
        }
    }

    pub(super) fn trigger_sql(&self, trigger: &Trigger) -> String {
        let table = trigger.table.sql();
        let Trigger { name, firing, .. } = trigger;
        format!(
            "create or replace trigger {name} after {event}\n\
             {TRIGGER_WHEN} execute function larder.{function}();\n\
             alter table only {table} enable {firing} trigger {name};\n",
            event = trigger.event.replace("{}", &table),
            firing = firing.sql(),
            function = self.function_name(),
        )
    }
}

/// `text` between dollar quotes whose tag does not occur in it.
fn dollar_quoted(text: &str) -> String {
    let mut tag = String::from("$larder$");
    while text.contains(&tag) {
        tag.insert(tag.len() - 1, '_');
    }
    format!("{tag}{text}{tag}")
}
