//! The bodies of the trigger functions that log.

use xxhash_rust::xxh3::xxh3_64;

use crate::feed::FeedConfig;
use crate::feed::locks::{BELL_LOCK, LOCK_CLASS};
use crate::feed::ranges::{OPEN_LENGTHS, range_sql};
use crate::feed::triggers::level::TriggerLevel;
use crate::resource::link::{Link, Said, sql_literal};

/// The body of the trigger function of `link`.
///
/// A function that sets its own search path costs its caller 6.5 µs, each expression in it 1 µs (2026-11-21,
/// PostgreSQL 15, 16 clients that update single rows on 2 cores). So all names are qualified, and the ordinary case
/// comes first and tests little. Transition tables come before all other tables, whatever the path (PostgreSQL's
/// parse_clause.c, `getNSItemForSpecialRelationTypes`).
pub(super) fn body(link: &Link, level: TriggerLevel, config: &FeedConfig) -> String {
    let by_statement = match level {
        TriggerLevel::Statement => statement_body(link, config),
        TriggerLevel::Row { .. } => truncate_body(link, config),
    };
    // A key column may bear the name of a variable, such as found.
    format!(
        "\n#variable_conflict use_column\ndeclare\n  larder_logged pg_catalog.int8;\n  larder_ranges pg_catalog.int8;\n{variables}begin\n  \
         if tg_level operator(pg_catalog.=) 'ROW' then\n{by_row}  end if;\n{by_statement}  return null;\nend\n",
        variables = ROW_VARIABLES,
        by_row = row_body(link, level, config),
    )
}

/// All keys.
fn whole(link: &Link, said: Said) -> String {
    let path = sql_literal(&link.path_of(said));
    format!("insert into larder.change (path, key) values ({path}, null);\n")
}

/// How many keys, or ranges, a statement logs before it logs ranges, larger ones, or all.
fn limit(config: &FeedConfig) -> u64 {
    u64::from(config.keys_per_statement)
}

/// Logs each key of a statement once; past the limit ranges of them, and past that of the ranges that all were touched.
fn statement_body(link: &Link, config: &FeedConfig) -> String {
    let limit = limit(config);
    let columns = link.column_list();
    // Where a column was renamed or dropped, no writer may fail: its name leads to the null outside. Nothing is missed:
    // a pass that sees what was written then, by the next poll, sees that the table's fingerprint has changed.
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
    let log = |said: Said, text: &str, tables: &[&str]| {
        format!(
            "    insert into larder.change (path, key)\n    \
             select distinct {path}, {text}\n    from ({keys}) as larder_keys limit {past};\n",
            path = sql_literal(&link.path_of(said)),
            keys = keys(tables),
            past = limit + 1,
        )
    };
    let said = |new, range| Said { new, range };
    let keys_of = |new, tables: &[&str]| log(said(new, false), "larder_key", tables);
    let ranges_of = |new: bool, tables: &[&str]| {
        let mut body = String::new();
        for open in OPEN_LENGTHS {
            let text = range_sql("larder_key", &format!("-{open}"));
            body.push_str(&log(said(new, true), &text, tables));
            body.push_str("    get diagnostics larder_ranges = row_count;\n    ");
            body.push_str(&format!(
                "if larder_ranges operator(pg_catalog.>) {limit} then\n"
            ));
        }
        let all = whole(link, said(new, new));
        format!(
            "{body}    {all}{}",
            "    end if;\n".repeat(OPEN_LENGTHS.len())
        )
    };
    let (update, delete) = (["larder_old", "larder_new"], ["larder_old"]);
    let insert = ["larder_new"];
    // Who has the bell's lock gets it again; whom the number of keys brought there asks for the first time.
    let asked = if config.notify {
        format!(
            " or larder_logged operator(pg_catalog.>) 0 and {}",
            bell_is_free()
        )
    } else {
        String::new()
    };
    format!(
        "  if tg_op operator(pg_catalog.=) 'UPDATE' then\n{update_keys}  \
         elsif tg_op operator(pg_catalog.=) 'INSERT' then\n{insert_keys}  \
         elsif tg_op operator(pg_catalog.=) 'DELETE' then\n{delete_keys}  \
         else\n    {whole}  end if;\n  get diagnostics larder_logged = row_count;\n  \
         if larder_logged operator(pg_catalog.>) {limit}{asked} then\n    \
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
        whole = whole(link, said(false, false)),
        bell = bell(config),
    )
}

fn truncate_body(link: &Link, config: &FeedConfig) -> String {
    format!("  {}{}", whole(link, Said::ALL[0]), bell(config))
}

/// A type's bare name would be looked for in the writer's search path.
const ROW_VARIABLES: &str = "  larder_setting pg_catalog.text;\n  larder_new pg_catalog.text;\n  \
    larder_old pg_catalog.text;\n  larder_whole pg_catalog.bool := false;\n  \
    larder_ending pg_catalog.text := '';\n  larder_left pg_catalog.int4;\n";

/// Logs the row's old and new key, where they are not those of the row before; past the limit their ranges.
///
/// What was logged stands in a setting of the transaction, which follows its savepoints: how much, in ten digits, the
/// end of the last path, a comma and the last text; or that all documents were touched, or that any key may be new. A
/// row's trigger can't tell how many rows are to come, and must not read the log.
fn row_body(link: &Link, level: TriggerLevel, config: &FeedConfig) -> String {
    let path = sql_literal(&link.path());
    let limit = limit(config);
    let most = limit * (1 + OPEN_LENGTHS.len() as u64);
    let setting = format!("larder.logged_{:016x}", xxh3_64(path.as_bytes()));
    let inserts = match level {
        TriggerLevel::Row { heirs: true } => "false",
        _ => "tg_op operator(pg_catalog.=) 'INSERT'",
    };
    // The names of columns that were renamed or dropped: as in `statement_body`. Nothing is written in the block, so
    // that it costs no transaction number. The row that an operation lacks is all nulls.
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
        new = Said::ALL[2].ending(),
        range = Said::ALL[1].ending(),
        wider = wider(limit),
        new_range = range_of("larder_new"),
        old_range = range_of("larder_old"),
        new_repeated = without_repetition("larder_new"),
        old_repeated = without_repetition("larder_old"),
        all = whole(link, Said::ALL[0]),
        all_new = whole(link, Said::ALL[3]),
        old = log_row(&path, "larder_old"),
        new_logged = log_row(&path, "larder_new"),
        bell = bell(config),
    )
}

/// How much of a text is left out at its end, negative, once more than `limit` were logged.
fn wider(limit: u64) -> String {
    let wider = (2..).zip(OPEN_LENGTHS).map(|(times, open)| {
        let most = limit * times;
        format!("when larder_logged operator(pg_catalog.<) {most} then -{open}")
    });
    wider.collect::<Vec<_>>().join(" ")
}

fn range_of(key: &str) -> String {
    let range = range_sql(key, "larder_left");
    format!("        {key} := case when {key} is not null then {range} end;\n")
}

/// Forgets a text that was logged last.
fn without_repetition(key: &str) -> String {
    format!(
        "      if larder_setting operator(pg_catalog.=) \
         pg_catalog.concat(larder_ending, ',', {key}) then\n        {key} := null;\n      end if;\n"
    )
}

fn log_row(path: &str, key: &str) -> String {
    format!(
        "    if {key} is not null then\n      insert into larder.change (path, key)\n      \
         values ({path} operator(pg_catalog.||) larder_ending, {key});\n      \
         larder_logged := larder_logged operator(pg_catalog.+) 1;\n    end if;\n"
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
    format!("pg_catalog.pg_try_advisory_xact_lock({LOCK_CLASS}, {BELL_LOCK})")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::feed::OnLoss;
    use crate::resource::catalogue::TableName;
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
        let bodies = [TriggerLevel::Statement, TriggerLevel::Row { heirs: false }]
            .map(|level| body(&link, level, &config));
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
        let body = body.replace("get diagnostics larder_ranges = row_count", "");
        for operator in ["=", "<>", "<", ">", "||", "#>>", "+", "-", "~"] {
            let bare = format!(" {operator} ");
            assert!(!body.contains(&bare), "{operator}");
        }
    }
}
