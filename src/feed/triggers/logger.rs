//! Loggers: the trigger functions that write to `larder.change` what a transaction touched.
//!
//! Triggers log and decide nothing. A trigger never joins: in the writer's snapshot a join misses what a concurrent
//! transaction moves. It reads nothing that other transactions write. There are two forms, chosen for each link by
//! [`Form`] (measurements: `docs/decisions/0001-triggers.md`):
//!
//! - Statement triggers with transition tables, always enabled, on the table and on each of its descendants. They fire
//!   for the table that a statement names, and not for what logical replication applies. So each ordinary table also
//!   has a row trigger that is enabled for replication only.
//! - Row triggers, always enabled, on each ordinary table. They fire whichever ancestor a statement names, and where
//!   PostgreSQL refuses transition tables.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

use crate::feed::FeedConfig;
use crate::feed::install::{BELL_LOCK, LOCK_SPACE};
use crate::resource::Resource;
use crate::resource::catalogue::{Catalogue, Table, TableName};
use crate::resource::link::{Link, links, sql_literal};

/// Always true; it ties the trigger to the table. Dropping `larder.change` is refused while triggers write to it, or
/// with cascade takes them along: users' writes go on either way. A test for null is ready in 1.0 µs a statement, a
/// function of SQL, planned anew each time, in 5.5 µs (2026-11-21, PostgreSQL 15).
const TRIGGER_WHEN: &str = "when (null::larder.change is null)";

/// How the changes of a link's rows are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Once for each statement, and by row for what replication applies.
    Statements,
    /// Once for each row.
    Rows,
}

impl Form {
    /// Rows for tables in a hierarchy: a statement on an ancestor that is not followed fires no statement trigger; a
    /// `merge` that moves a row to another partition shows it to triggers for actions that it does not name; and a
    /// foreign table that is attached below makes PostgreSQL refuse statements where there are transition tables.
    fn of(table: Option<&Table>) -> Self {
        let in_hierarchy = table.is_some_and(|table| {
            table.kind == 'p' || !table.descendants.is_empty() || table.has_other_ancestors
        });
        match in_hierarchy {
            true => Self::Rows,
            false => Self::Statements,
        }
    }
}

/// When a trigger fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Firing {
    /// Whatever the session's replication role is.
    Always,
    /// For what replication applies.
    Replica,
}

impl Firing {
    /// As `alter table … enable … trigger` says it.
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
    /// What it fires after, its transition tables, and at which level.
    event: &'static str,
}

/// The operations that statement triggers are for, the code of each and its event.
const STATEMENTS: [(&str, i16, &str); 4] = [
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

/// The loggers that `resources` need, each once.
pub(in crate::feed) fn loggers(
    resources: &[&Resource],
    catalogue: &Catalogue,
    config: &FeedConfig,
) -> Vec<Logger> {
    let mut loggers: BTreeMap<String, Logger> = BTreeMap::new();
    for link in resources.iter().flat_map(|resource| links(resource)) {
        let table = catalogue
            .tables
            .values()
            .find(|table| table.name == link.table);
        let form = Form::of(table);
        let body = body(&link, form, config);
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
            logger.add_triggers(table, kind, form);
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

/// The body of the trigger function of `link`.
///
/// A function that sets its own search path costs its caller 6.5 µs, each expression in it 1 µs (2026-11-21,
/// PostgreSQL 15, 16 clients that update single rows on 2 cores). So all names are qualified, and the ordinary case
/// comes first and tests little. Transition tables come before all other tables, whatever the path (PostgreSQL's
/// parse_clause.c, `getNSItemForSpecialRelationTypes`).
fn body(link: &Link, form: Form, config: &FeedConfig) -> String {
    let by_statement = match form {
        Form::Statements => statement_body(link, config),
        Form::Rows => truncate_body(link, config),
    };
    // A key column may bear the name of a variable, such as found.
    format!(
        "\n#variable_conflict use_column\ndeclare\n  larder_logged pg_catalog.int8;\n{variables}begin\n  \
         if tg_level operator(pg_catalog.=) 'ROW' then\n{by_row}  end if;\n{by_statement}  return null;\nend\n",
        variables = ROW_VARIABLES,
        by_row = row_body(link, config),
    )
}

fn whole(link: &Link) -> String {
    let path = sql_literal(&link.path());
    format!("insert into larder.change (path, key) values ({path}, null);\n")
}

/// Logs each key of a statement once, or past the limit that all documents were touched.
fn statement_body(link: &Link, config: &FeedConfig) -> String {
    let path = sql_literal(&link.path());
    let limit = config.keys_per_statement;
    let columns = link.column_list();
    // Where a column was renamed or dropped, no writer may fail: its name leads to the null outside. Nothing is missed:
    // a pass that sees what was written then, by the next poll, sees that the table's fingerprint has changed.
    let changed = |tables: &[&str]| {
        let rows: Vec<String> = tables
            .iter()
            .map(|table| format!("select {columns} from {table}"))
            .collect();
        format!(
            "    insert into larder.change (path, key)\n    \
             select distinct {path}, {key}\n    \
             from ({nulls}) as larder_gone, lateral ({rows}) as larder_rows\n    \
             where {present} limit {past};\n",
            key = link.key_sql("larder_rows"),
            nulls = link.nulls_sql(),
            rows = rows.join(" union all "),
            present = link.not_null_sql("larder_rows"),
            past = u64::from(limit) + 1,
        )
    };
    // Who has the bell's lock gets it again; whom the number of keys brought there asks for the first time.
    let asked = match config.notify {
        true => format!(
            " or larder_logged operator(pg_catalog.>) 0 and {}",
            bell_is_free()
        ),
        false => String::new(),
    };
    format!(
        "  if tg_op operator(pg_catalog.=) 'UPDATE' then\n{update}  \
         elsif tg_op operator(pg_catalog.=) 'INSERT' then\n{insert}  \
         elsif tg_op operator(pg_catalog.=) 'DELETE' then\n{delete}  \
         else\n    {whole}  end if;\n  get diagnostics larder_logged = row_count;\n  \
         if larder_logged operator(pg_catalog.>) {limit}{asked} then\n    \
         if larder_logged operator(pg_catalog.>) {limit} then\n      {whole}    end if;\n{bell}  end if;\n",
        update = changed(&["larder_old", "larder_new"]),
        insert = changed(&["larder_new"]),
        delete = changed(&["larder_old"]),
        whole = whole(link),
        bell = bell(config),
    )
}

fn truncate_body(link: &Link, config: &FeedConfig) -> String {
    format!("  {}{}", whole(link), bell(config))
}

/// A type's bare name would be looked for in the writer's search path.
const ROW_VARIABLES: &str = "  larder_setting pg_catalog.text;\n  larder_new pg_catalog.text;\n  \
    larder_old pg_catalog.text;\n  larder_whole pg_catalog.bool := false;\n";

/// Logs the row's old and new key, where they are not those of the row before.
///
/// What was logged stands in a setting of the transaction, which follows its savepoints: the number of keys, in ten
/// digits, and the last one; or that all documents were touched. A row's trigger can't tell how many rows are to come,
/// and must not read the log.
fn row_body(link: &Link, config: &FeedConfig) -> String {
    let path = sql_literal(&link.path());
    let limit = config.keys_per_statement;
    let setting = format!("larder.logged_{}", hash(&path));
    let insert = |key: &str| {
        format!(
            "    if {key} is not null then\n      insert into larder.change (path, key) values ({path}, {key});\n      \
             larder_logged := larder_logged operator(pg_catalog.+) 1;\n    end if;\n"
        )
    };
    // The names of columns that were renamed or dropped: as in `statement_body`. Nothing is written in the block, so
    // that it costs no transaction number. The row that an operation lacks is all nulls.
    format!(
        "    larder_setting := pg_catalog.current_setting('{setting}', true);\n    \
         if larder_setting operator(pg_catalog.=) 'all' then\n      return null;\n    end if;\n    \
         begin\n      \
         if {new_present} then\n        larder_new := {new_key};\n        larder_whole := larder_new is null;\n      end if;\n      \
         if {old_present} then\n        larder_old := {old_key};\n        larder_whole := larder_whole or larder_old is null;\n      end if;\n    \
         exception when undefined_column then\n      return null;\n    end;\n    \
         if larder_old operator(pg_catalog.=) larder_new then\n      larder_old := null;\n    end if;\n    \
         larder_logged := 0;\n    \
         if larder_setting operator(pg_catalog.<>) '' then\n      \
         larder_logged := pg_catalog.left(larder_setting, 10);\n      larder_setting := pg_catalog.substr(larder_setting, 11);\n      \
         if larder_old is null and larder_new operator(pg_catalog.=) larder_setting then\n        larder_new := null;\n      end if;\n      \
         if larder_new is null and larder_old operator(pg_catalog.=) larder_setting then\n        larder_old := null;\n      end if;\n    \
         end if;\n    \
         if larder_new is null and larder_old is null and not larder_whole then\n      return null;\n    end if;\n    \
         if larder_logged operator(pg_catalog.=) 0 then\n{bell}    end if;\n\
         {old}{new}    \
         if larder_whole or larder_logged operator(pg_catalog.>) {limit} then\n      \
         {whole}      perform pg_catalog.set_config('{setting}', 'all', true);\n    \
         else\n      perform pg_catalog.set_config('{setting}', pg_catalog.lpad(larder_logged::pg_catalog.text, 10, '0') \
         operator(pg_catalog.||) case when larder_new is null then larder_old else larder_new end, true);\n    end if;\n    \
         return null;\n",
        new_present = link.not_null_sql("new"),
        new_key = link.key_sql("new"),
        old_present = link.not_null_sql("old"),
        old_key = link.key_sql("old"),
        old = insert("larder_old"),
        new = insert("larder_new"),
        whole = whole(link),
        bell = bell(config),
    )
}

/// Rings where the bell is free.
///
/// NOTIFY takes one lock for the whole database until commit, so only one open transaction rings, or none while a feed
/// holds the bell; whoever commits beside it is found by the passes that follow. NOTIFY also forbids PREPARE
/// TRANSACTION, and fails where some listener has let the queue fill.
fn bell(config: &FeedConfig) -> String {
    if !config.notify {
        return String::new();
    }
    format!(
        "    if {is_free} and pg_catalog.current_setting('max_prepared_transactions') operator(pg_catalog.=) '0'\n       \
         and pg_catalog.pg_notification_queue_usage() operator(pg_catalog.<) 0.5 then\n      \
         perform pg_catalog.pg_notify('larder', '');\n    end if;\n",
        is_free = bell_is_free(),
    )
}

fn bell_is_free() -> String {
    format!("pg_catalog.pg_try_advisory_xact_lock({LOCK_SPACE}, {BELL_LOCK})")
}

impl Logger {
    /// The tables that it is for.
    pub(in crate::feed) fn tables(&self) -> impl Iterator<Item = &TableName> {
        self.triggers.iter().map(|trigger| &trigger.table)
    }

    /// Those whose rows it looks at one by one, whoever writes them.
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

    fn add_triggers(&mut self, table: &TableName, kind: char, form: Form) {
        let is_ordinary = kind == 'r';
        let row_firing = match form {
            Form::Statements => Firing::Replica,
            Form::Rows => Firing::Always,
        };
        let statements = match form {
            Form::Statements => &STATEMENTS[..],
            Form::Rows => &[TRUNCATE],
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::feed::OnLoss;
    use crate::resource::key::{KeyColumn, KeyType};
    use crate::resource::link::Way;

    /// Functions run with the rights of whoever installed them, under the search path of whoever writes.
    #[test]
    fn every_name_is_qualified() {
        let columns = [KeyType::Text, KeyType::Char, KeyType::Date, KeyType::BigInt];
        let columns = columns.into_iter().enumerate();
        let link = Link {
            table: TableName {
                oid: 1,
                schema: "s".into(),
                name: "t".into(),
            },
            columns: columns
                .map(|(number, key_type)| KeyColumn {
                    name: format!("c{number}"),
                    key_type,
                    type_text: "type".into(),
                    type_oid: 1,
                    collation: 0,
                })
                .collect(),
            way: Way::Key,
        };
        let config = FeedConfig {
            max_staleness: Duration::ZERO,
            poll_interval: Duration::ZERO,
            notify: true,
            on_loss: OnLoss::Bypass,
            retention: Duration::ZERO,
            keys_per_statement: 1,
            answers: false,
        };
        let bodies = [Form::Statements, Form::Rows].map(|form| body(&link, form, &config));
        let body = bodies.concat();
        let is_name = |c: char| c.is_alphanumeric() || "_.".contains(c);
        for (place, _) in body.match_indices('(') {
            let before = body[..place].trim_end_matches(is_name);
            let called = &body[before.len()..place];
            let trusted = called.is_empty() || called == "operator";
            assert!(trusted || called.starts_with("pg_catalog."), "{called}");
        }
        for (place, _) in body.match_indices("operator(") {
            assert!(body[place..].starts_with("operator(pg_catalog."), "{body}");
        }
        for declared in body.split("declare\n").skip(1) {
            let (variables, _) = declared.split_once("begin\n").unwrap();
            for variable in variables.lines() {
                let of_catalogue = variable.contains(" pg_catalog.");
                assert!(of_catalogue, "{variable}");
            }
        }
        for (place, _) in body.match_indices("::") {
            assert!(
                body[place..].starts_with("::pg_catalog."),
                "{}",
                &body[place..]
            );
        }
        let body = body.replace("get diagnostics larder_logged = row_count", "");
        for operator in ["=", "<>", "<", ">", "||", "#>>", "+", "-", "~"] {
            let bare = format!(" {operator} ");
            assert!(!body.contains(&bare), "{operator}");
        }
    }
}
