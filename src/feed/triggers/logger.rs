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
use crate::resource::catalogue::{Attributes, Catalogue, TableName};
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
    let unknown = Attributes::new();
    for link in resources.iter().flat_map(|resource| links(resource)) {
        let table = catalogue
            .tables
            .values()
            .find(|table| table.name == link.table);
        let parts = table
            .iter()
            .flat_map(|table| table.descendants.iter().map(|part| &part.name));
        for table in std::iter::once(&link.table).chain(parts) {
            let attributes = catalogue.attributes.get(&table.oid);
            let body = body(&link, attributes.unwrap_or(&unknown), config);
            let hash = format!(
                "{:016x}",
                xxh3_64(format!("{TRIGGER_WHEN}{body}").as_bytes())
            );
            let logger = loggers.entry(hash.clone()).or_insert_with(|| Logger {
                hash,
                body,
                tables: Vec::new(),
            });
            if !logger.tables.contains(table) {
                logger.tables.push(table.clone());
            }
        }
    }
    loggers.into_values().collect()
}

/// The body of the trigger function of `link` for tables that have these `attributes`.
fn body(link: &Link, attributes: &Attributes, config: &FeedConfig) -> String {
    let path = sql_literal(&link.path());
    let limit = config.keys_per_statement;
    let changed = |rows: &str| {
        format!(
            "    insert into larder.change (path, key)\n    \
             select distinct {path}, {key} from {rows} where {present} limit {past};\n",
            key = link.key_sql(attributes),
            present = link.not_null_sql(),
            past = u64::from(limit) + 1,
        )
    };
    let columns = link.column_list();
    let both = format!(
        "(select {columns} from larder_old union all select {columns} from larder_new) as larder_rows"
    );
    let bell = if config.notify {
        // NOTIFY takes one lock for the whole database until commit, so only one open transaction rings, or none while
        // a feed holds the bell; whoever commits beside it is found by the passes that follow. NOTIFY also forbids
        // PREPARE TRANSACTION, and fails where some listener has let the queue fill. The lock, which most can't have, is
        // the cheapest to ask for.
        format!(
            "  if larder_logged > 0 and pg_try_advisory_xact_lock({LOCK_SPACE}, {BELL_LOCK})\n     \
             and current_setting('max_prepared_transactions') = '0' and pg_notification_queue_usage() < 0.5 then\n    \
             perform pg_notify('larder', '');\n  end if;\n"
        )
    } else {
        String::new()
    };
    // Where a column was renamed or dropped, no writer may fail: every document is named until the feed has found the
    // change. A key column may bear the name of a variable, such as found.
    format!(
        "\n#variable_conflict use_column\ndeclare\n  larder_logged bigint;\nbegin\n  \
         if tg_op = 'TRUNCATE' or ({unchanged}) is not true then\n    \
         insert into larder.change (path, key) values ({path}, null);\n  \
         elsif tg_op = 'INSERT' then\n{insert}  elsif tg_op = 'UPDATE' then\n{update}  \
         else\n{delete}  end if;\n  get diagnostics larder_logged = row_count;\n  \
         if larder_logged > {limit} then\n    \
         delete from larder.change where xid = pg_current_xact_id() and path = {path};\n    \
         insert into larder.change (path, key) values ({path}, null);\n  end if;\n{bell}  return null;\nend\n",
        unchanged = link.unchanged_sql(attributes),
        insert = changed("larder_new"),
        update = changed(&both),
        delete = changed("larder_old"),
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
             set search_path = pg_catalog, pg_temp as {body};\n\
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
