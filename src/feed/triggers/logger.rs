//! Loggers: the trigger functions that write to `larder.change` what a statement touched.
//!
//! Triggers log and decide nothing. They are statement level with transition tables, always enabled (replication roles
//! don't silence them), on every configured table and each of its partitions and descendants. A trigger never joins:
//! in the writer's snapshot a join misses what a concurrent transaction moves. It has no exception block: a swallowed
//! insert would be a lost invalidation.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

use crate::feed::FeedConfig;
use crate::feed::triggers::{BELL_LOCK, LOCK_SPACE};
use crate::resource::Resource;
use crate::resource::catalogue::{Catalogue, TableName};
use crate::resource::link::{Link, links, sql_literal};

/// Always true; it ties the trigger to the table. Dropping `larder.change` is refused while triggers write to it, or
/// with cascade takes them along: users' writes go on either way. A test for null is ready in 1.0 µs a statement, a
/// function of SQL, planned anew each time, in 5.5 µs (2026-11-21, PostgreSQL 15).
const TRIGGER_WHEN: &str = "when (null::larder.change is null)";

/// The operations that change rows, and the transition tables of each.
pub(super) const OPERATIONS: [(&str, &str); 4] = [
    ("insert", "referencing new table as larder_new "),
    (
        "update",
        "referencing old table as larder_old new table as larder_new ",
    ),
    ("delete", "referencing old table as larder_old "),
    ("truncate", ""),
];

/// A function that logs the changes of one link, and the tables that it serves.
#[derive(Clone, Debug)]
pub(in crate::feed) struct Logger {
    pub(super) hash: String,
    pub(super) body: String,
    pub(super) tables: Vec<TableName>,
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
        let parts = table
            .iter()
            .flat_map(|table| table.descendants.iter().map(|part| &part.name));
        let body = body(&link, config);
        let hash = format!(
            "{:016x}",
            xxh3_64(format!("{TRIGGER_WHEN}{body}").as_bytes())
        );
        let logger = loggers.entry(hash.clone()).or_insert_with(|| Logger {
            hash,
            body,
            tables: Vec::new(),
        });
        for table in std::iter::once(&link.table).chain(parts) {
            if !logger.tables.contains(table) {
                logger.tables.push(table.clone());
            }
        }
    }
    loggers.into_values().collect()
}

/// The body of the trigger function of `link`.
///
/// A function that sets its own search path costs its caller 6.5 µs, each expression in it 1 µs (2026-11-21,
/// PostgreSQL 15, 16 clients that update single rows on 2 cores). So all names are qualified, and the ordinary case
/// comes first and tests little. Transition tables come before all other tables, whatever the path (PostgreSQL's
/// parse_clause.c, `getNSItemForSpecialRelationTypes`).
fn body(link: &Link, config: &FeedConfig) -> String {
    let path = sql_literal(&link.path());
    let limit = config.keys_per_statement;
    let whole = format!("insert into larder.change (path, key) values ({path}, null);\n");
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
    let (asked, bell) = if config.notify {
        // NOTIFY takes one lock for the whole database until commit, so only one open transaction rings, or none while
        // a feed holds the bell; whoever commits beside it is found by the passes that follow. NOTIFY also forbids
        // PREPARE TRANSACTION, and fails where some listener has let the queue fill. Who has the lock gets it again;
        // whom the number of keys brought there asks for the first time.
        let lock = format!("pg_catalog.pg_try_advisory_xact_lock({LOCK_SPACE}, {BELL_LOCK})");
        (
            format!(" or larder_logged operator(pg_catalog.>) 0 and {lock}"),
            format!(
                "    if {lock} and pg_catalog.current_setting('max_prepared_transactions') operator(pg_catalog.=) '0'\n       \
                 and pg_catalog.pg_notification_queue_usage() operator(pg_catalog.<) 0.5 then\n      \
                 perform pg_catalog.pg_notify('larder', '');\n    end if;\n"
            ),
        )
    } else {
        (String::new(), String::new())
    };
    // A key column may bear the name of a variable, such as found.
    format!(
        "\n#variable_conflict use_column\ndeclare\n  larder_logged bigint;\nbegin\n  \
         if tg_op operator(pg_catalog.=) 'UPDATE' then\n{update}  \
         elsif tg_op operator(pg_catalog.=) 'INSERT' then\n{insert}  \
         elsif tg_op operator(pg_catalog.=) 'DELETE' then\n{delete}  \
         else\n    {whole}  end if;\n  get diagnostics larder_logged = row_count;\n  \
         if larder_logged operator(pg_catalog.>) {limit}{asked} then\n    \
         if larder_logged operator(pg_catalog.>) {limit} then\n      \
         delete from larder.change where xid operator(pg_catalog.=) pg_catalog.pg_current_xact_id()\n        \
         and path operator(pg_catalog.=) {path};\n      {whole}    end if;\n{bell}  end if;\n  \
         return null;\nend\n",
        update = changed(&["larder_old", "larder_new"]),
        insert = changed(&["larder_new"]),
        delete = changed(&["larder_old"]),
    )
}

impl Logger {
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

    pub(super) fn trigger_name(&self, operation: &str) -> String {
        format!("larder_{}_{operation}", self.hash)
    }

    pub(super) fn trigger_sql(
        &self,
        table: &TableName,
        operation: &str,
        transition: &str,
    ) -> String {
        let name = self.trigger_name(operation);
        let table = table.sql();
        format!(
            "create or replace trigger {name} after {operation} on {table} {transition}for each statement\n\
             {TRIGGER_WHEN} execute function larder.{function}();\n\
             alter table only {table} enable always trigger {name};\n",
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
        };
        let body = body(&link, &config);
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
        let assigned = "get diagnostics larder_logged = row_count";
        for operator in ["=", "<>", "<", ">", "||", "#>>", "+", "-", "~"] {
            let bare = format!(" {operator} ");
            assert!(!body.replace(assigned, "").contains(&bare), "{operator}");
        }
    }
}
