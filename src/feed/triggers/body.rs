//! The bodies of the trigger functions that log. A body decides the name of its function by its hash, so a change of
//! the text replaces all triggers.

use xxhash_rust::xxh3::xxh3_64;

use crate::feed::FeedConfig;
use crate::feed::locks::{BELL_LOCK, LOCK_CLASS};
use crate::feed::ranges::{OPEN_LENGTHS, range_sql};
use crate::feed::triggers::level::TriggerLevel;
use crate::resource::link::{Link, PathKind, sql_literal};

/// The body of the trigger function of `link`.
///
/// A function that sets its own search path costs the writer 6.5 µs, each expression in it 1 µs (2026-11-21, PostgreSQL
/// 15, 16 clients that update single rows on 2 cores). So all names are qualified, and the common case comes first with
/// few tests. Names of transition tables are resolved before those of other tables, whatever the search path is
/// (PostgreSQL's parse_clause.c, `getNSItemForSpecialRelationTypes`).
pub(super) fn function_body(link: &Link, level: TriggerLevel, config: &FeedConfig) -> String {
    if link.columns.is_empty() {
        let whole = truncate_body(link, config);
        return format!("\nbegin\n{whole}  return null;\nend\n");
    }
    let by_statement = match level {
        TriggerLevel::Statement => statement_body(link, config),
        TriggerLevel::Row { .. } => truncate_body(link, config),
    };
    // A key column may have the name of a variable of PL/pgSQL, such as found.
    format!(
        "\n#variable_conflict use_column\ndeclare\n  larder_logged pg_catalog.int8;\n  larder_ranges pg_catalog.int8;\n{variables}begin\n  \
         if tg_level operator(pg_catalog.=) 'ROW' then\n{by_row}  end if;\n{by_statement}  return null;\nend\n",
        variables = ROW_VARIABLES,
        by_row = row_body(link, level, config),
    )
}

/// A statement that logs that all keys may have changed.
fn log_all_keys(link: &Link, kind: PathKind) -> String {
    let path = sql_literal(&link.path_of(kind));
    format!("insert into larder.change (path, key) values ({path}, null);\n")
}

/// The most keys, or ranges of one size, that a statement logs. Past it, the statement logs ranges, larger ranges, then
/// all keys.
fn limit(config: &FeedConfig) -> u64 {
    u64::from(config.keys_per_statement)
}

/// The part that runs once for each statement: it logs each key once; if there are too many, ranges of keys; if there
/// are too many of these, larger ranges; then all keys.
fn statement_body(link: &Link, config: &FeedConfig) -> String {
    let limit = limit(config);
    let columns = link.column_list();
    // If a column was renamed or dropped, its name is resolved to the null of `larder_gone`, so that no writer fails.
    // Nothing is missed: the pass that sees what was written also sees that the table's fingerprint has changed.
    let keys = |tables: &[&str]| {
        let rows: Vec<String> = tables
            .iter()
            .map(|table| format!("select {columns} from {table}"))
            .collect();
        format!(
            "select {key} as larder_key\n    \
             from ({nulls}) as larder_gone, lateral ({rows}) as larder_rows\n    where {present}",
            key = link.key_sql("larder_rows"),
            nulls = link.nulls_sql(),
            rows = rows.join(" union all "),
            present = link.not_null_sql("larder_rows"),
        )
    };
    let log = |kind: PathKind, text: &str, tables: &[&str]| {
        format!(
            "    insert into larder.change (path, key)\n    \
             select distinct {path}, {text}\n    from ({keys}) as larder_keys limit {past};\n",
            path = sql_literal(&link.path_of(kind)),
            keys = keys(tables),
            past = limit + 1,
        )
    };
    let kind = |is_new, is_range| PathKind { is_new, is_range };
    let keys_of = |new, tables: &[&str]| log(kind(new, false), "larder_key", tables);
    let ranges_of = |new: bool, tables: &[&str]| {
        let mut body = String::new();
        for open in OPEN_LENGTHS {
            let text = range_sql("larder_key", &format!("-{open}"));
            body.push_str(&log(kind(new, true), &text, tables));
            body.push_str("    get diagnostics larder_ranges = row_count;\n    ");
            body.push_str(&format!(
                "if larder_ranges operator(pg_catalog.>) {limit} then\n"
            ));
        }
        let all = log_all_keys(link, kind(new, new));
        let ends = "    end if;\n".repeat(OPEN_LENGTHS.len());
        format!("{body}    {all}{ends}")
    };
    let (update, delete) = (["larder_old", "larder_new"], ["larder_old"]);
    let insert = ["larder_new"];
    // One test for both rare cases, too many keys and a free bell. A transaction that holds the lock of the bell gets
    // it again; the text of `ring_bell` asks again for a statement that came here because of its number of keys.
    let or_bell_is_free = if config.notify {
        let is_free = bell_is_free();
        format!(" or larder_logged operator(pg_catalog.>) 0 and {is_free}")
    } else {
        String::new()
    };
    format!(
        "  if tg_op operator(pg_catalog.=) 'UPDATE' then\n{update_keys}  \
         elsif tg_op operator(pg_catalog.=) 'INSERT' then\n{insert_keys}  \
         elsif tg_op operator(pg_catalog.=) 'DELETE' then\n{delete_keys}  \
         else\n    {whole}  end if;\n  get diagnostics larder_logged = row_count;\n  \
         if larder_logged operator(pg_catalog.>) {limit}{or_bell_is_free} then\n    \
         if larder_logged operator(pg_catalog.>) {limit} then\n      \
         if tg_op operator(pg_catalog.=) 'UPDATE' then\n{update_ranges}      \
         elsif tg_op operator(pg_catalog.=) 'INSERT' then\n{insert_ranges}      \
         else\n{delete_ranges}      end if;\n    end if;\n{bell}  end if;\n",
        update_keys = keys_of(false, &update),
        insert_keys = keys_of(true, &insert),
        delete_keys = keys_of(false, &delete),
        update_ranges = ranges_of(false, &update),
        insert_ranges = ranges_of(true, &insert),
        delete_ranges = ranges_of(false, &delete),
        whole = log_all_keys(link, kind(false, false)),
        bell = ring_bell(config),
    )
}

fn truncate_body(link: &Link, config: &FeedConfig) -> String {
    format!(
        "  {}{}",
        log_all_keys(link, PathKind::CHANGED),
        ring_bell(config)
    )
}

/// Types are qualified, since a name without schema would be searched in the writer's search path.
const ROW_VARIABLES: &str = "  larder_setting pg_catalog.text;\n  larder_new pg_catalog.text;\n  \
    larder_old pg_catalog.text;\n  larder_whole pg_catalog.bool := false;\n  \
    larder_ending pg_catalog.text := '';\n  larder_left pg_catalog.int4;\n";

/// The part that runs for each row: it logs the row's old and new key, unless the row before had the same; past the
/// limit, their ranges.
///
/// A trigger for a row can't know how many rows will follow, and must not read the log. So a setting of the
/// transaction, which is rolled back with its savepoints, records what was logged: the number of log rows in ten
/// digits, the ending of the last path, a comma and the last key or range. Or it is `all` if all keys were logged as
/// changed, or `new` if all were logged as new.
fn row_body(link: &Link, level: TriggerLevel, config: &FeedConfig) -> String {
    let path = sql_literal(&link.path());
    let limit = limit(config);
    let most = limit * (1 + OPEN_LENGTHS.len() as u64);
    let setting = format!("larder.logged_{:016x}", xxh3_64(path.as_bytes()));
    let inserts = match level {
        TriggerLevel::Row {
            has_inheriting_tables: true,
        } => "false",
        _ => "tg_op operator(pg_catalog.=) 'INSERT'",
    };
    // The block with an exception handler is for columns that were renamed or dropped, as in `statement_body`. It
    // writes nothing, so its subtransaction takes no transaction number. `old` of an insert and `new` of a delete are
    // all nulls.
    format!(
        "    larder_setting := pg_catalog.current_setting('{setting}', true);\n    \
         if larder_setting operator(pg_catalog.=) 'all' or larder_setting operator(pg_catalog.=) 'new' and {inserts} then\n      \
         return null;\n    end if;\n    \
         begin\n      \
         if {new_present} then\n        larder_new := {new_key};\n        larder_whole := larder_new is null;\n      end if;\n      \
         if {old_present} then\n        larder_old := {old_key};\n        larder_whole := larder_whole or larder_old is null;\n      end if;\n    \
         exception when undefined_column then\n      return null;\n    end;\n    \
         if {inserts} then\n      larder_ending := '{new}';\n    end if;\n    \
         larder_logged := 0;\n    \
         if larder_setting operator(pg_catalog.=) 'new' then\n      \
         larder_whole := larder_new is not null or larder_old is not null;\n    \
         elsif larder_setting operator(pg_catalog.<>) '' then\n      \
         larder_logged := pg_catalog.left(larder_setting, 10);\n      larder_setting := pg_catalog.substr(larder_setting, 11);\n      \
         if larder_logged operator(pg_catalog.>=) {limit} then\n        \
         larder_ending := larder_ending operator(pg_catalog.||) '{range}';\n        \
         larder_left := case {wider} end;\n{new_range}{old_range}      end if;\n\
         {new_repeated}{old_repeated}    end if;\n    \
         if larder_old operator(pg_catalog.=) larder_new then\n      larder_old := null;\n    end if;\n    \
         if larder_new is null and larder_old is null and not larder_whole then\n      return null;\n    end if;\n    \
         if larder_logged operator(pg_catalog.=) 0 then\n{bell}    end if;\n    \
         if larder_whole or larder_logged operator(pg_catalog.>=) {most} then\n      \
         if {inserts} and not larder_whole then\n        \
         {all_new}        perform pg_catalog.set_config('{setting}', 'new', true);\n      \
         else\n        {all}        perform pg_catalog.set_config('{setting}', 'all', true);\n      end if;\n      \
         return null;\n    end if;\n\
         {old}{new_logged}    \
         perform pg_catalog.set_config('{setting}', pg_catalog.concat(pg_catalog.lpad(larder_logged::pg_catalog.text, 10, '0'), \
         larder_ending, ',', case when larder_new is null then larder_old else larder_new end), true);\n    \
         return null;\n",
        new_present = link.not_null_sql("new"),
        new_key = link.key_sql("new"),
        old_present = link.not_null_sql("old"),
        old_key = link.key_sql("old"),
        new = PathKind::NEW.ending(),
        range = PathKind::CHANGED_RANGE.ending(),
        wider = open_lengths_sql(limit),
        new_range = to_range("larder_new"),
        old_range = to_range("larder_old"),
        new_repeated = without_repetition("larder_new"),
        old_repeated = without_repetition("larder_old"),
        all = log_all_keys(link, PathKind::CHANGED),
        all_new = log_all_keys(link, PathKind::NEW_RANGE),
        old = log_row(&path, "larder_old"),
        new_logged = log_row(&path, "larder_new"),
        bell = ring_bell(config),
    )
}

/// Branches of a `case` for the number of open characters, negative: by how many rows were logged, the size of ranges.
fn open_lengths_sql(limit: u64) -> String {
    let branches = (2..).zip(OPEN_LENGTHS).map(|(times, open)| {
        let most = limit * times;
        format!("when larder_logged operator(pg_catalog.<) {most} then -{open}")
    });
    branches.collect::<Vec<_>>().join(" ")
}

/// Replaces the key in the variable `key` by its range.
fn to_range(key: &str) -> String {
    let range = range_sql(key, "larder_left");
    format!("        {key} := case when {key} is not null then {range} end;\n")
}

/// Sets the variable `key` to null if the same text was logged last.
fn without_repetition(key: &str) -> String {
    format!(
        "      if larder_setting operator(pg_catalog.=) \
         pg_catalog.concat(larder_ending, ',', {key}) then\n        {key} := null;\n      end if;\n"
    )
}

/// Logs the text in the variable `key`.
fn log_row(path: &str, key: &str) -> String {
    format!(
        "    if {key} is not null then\n      insert into larder.change (path, key)\n      \
         values ({path} operator(pg_catalog.||) larder_ending, {key});\n      \
         larder_logged := larder_logged operator(pg_catalog.+) 1;\n    end if;\n"
    )
}

/// Notifies if no other transaction and no feed holds the bell's lock.
///
/// A transaction that has called NOTIFY takes a lock of the whole cluster when it commits. So only one open transaction
/// notifies, or none while a feed holds the lock; transactions that commit beside it are found by the passes that
/// follow. A transaction that has called NOTIFY can't be prepared, and fails if some listener has let the queue become
/// full.
fn ring_bell(config: &FeedConfig) -> String {
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

/// An expression that takes the bell's lock until the end of the transaction, if it is free.
fn bell_is_free() -> String {
    format!("pg_catalog.pg_try_advisory_xact_lock({LOCK_CLASS}, {BELL_LOCK})")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::feed::OnLoss;
    use crate::resource::catalogue::TableName;
    use crate::resource::key::{KeyColumn, KeyType};
    use crate::resource::link::KeyMapping;
    use crate::resource::sql_type::SqlType;

    /// A link by columns of these types.
    fn link_of(types: &[KeyType]) -> Link {
        let columns = types.iter().enumerate();
        Link {
            table: TableName {
                oid: 1,
                schema: "s".into(),
                name: "t".into(),
            },
            columns: columns
                .map(|(number, &key_type)| KeyColumn {
                    name: format!("c{number}"),
                    key_type,
                    sql_type: SqlType::Named("type".into()),
                    type_text: "type".into(),
                    type_oid: 1,
                    collation: 0,
                })
                .collect(),
            mapping: KeyMapping::Direct,
        }
    }

    /// A function runs with the rights of the role that installed it, but with the writer's search path.
    #[test]
    fn every_name_is_qualified() {
        let link = link_of(&[
            KeyType::Text,
            KeyType::Char,
            KeyType::Date,
            KeyType::BigInt,
            KeyType::Timestamp { precision: 6 },
            KeyType::TimestampTz { precision: 6 },
            KeyType::Boolean,
            KeyType::Bytea,
            KeyType::Inet,
            KeyType::Enum,
        ]);
        let config = FeedConfig {
            max_staleness: Duration::ZERO,
            poll_interval: Duration::ZERO,
            notify: true,
            on_loss: OnLoss::Bypass,
            retention: Duration::ZERO,
            keys_per_statement: 1,
            answers: false,
        };
        let bodies = [
            TriggerLevel::Statement,
            TriggerLevel::Row {
                has_inheriting_tables: false,
            },
        ]
        .map(|level| function_body(&link, level, &config));
        let body = bodies.concat();
        let is_name = |c: char| c.is_alphanumeric() || "_.".contains(c);
        for (place, _) in body.match_indices('(') {
            let before = body[..place].trim_end_matches(is_name);
            let called = &body[before.len()..place];
            let trusted = ["", "operator", "row"].contains(&called);
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
        let body = body.replace("get diagnostics larder_ranges = row_count", "");
        for operator in ["=", "<>", "<", ">", "||", "#>>", "+", "-", "~", "/", "%"] {
            let bare = format!(" {operator} ");
            assert!(!body.contains(&bare), "{operator}");
        }
    }
}
