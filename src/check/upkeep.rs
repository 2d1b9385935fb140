//! The rules upkeep and change-log: what vacuum, statistics and pruning have left undone.

use crate::check::facts::{Facts, TableFacts};
use crate::check::{Finding, Remedy, Rule, Severity};

/// Autovacuum looks at smaller tables too rarely for a finding to mean anything.
const ROWS_MIN: i64 = 1_000;
/// Updates from which on their kind is judged.
const UPDATES_MIN: i64 = 10_000;
/// The share of each page that is filled by inserts, where updates find too little free space.
const FILLFACTOR: i64 = 90;
/// Rows of the change log from which on it is too long.
pub const CHANGE_LOG_ROWS_MAX: i64 = 1_000_000;

const MAINTENANCE: Option<&str> = Some("SHARE UPDATE EXCLUSIVE");

/// What is known of the change log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeLogFacts {
    /// Its rows, counted up to [`CHANGE_LOG_ROWS_MAX`].
    pub rows: i64,
    /// A larder may still read it.
    pub has_live_node: bool,
}

/// The findings about tables.
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let tables = facts.tables.iter();
    let tables = tables.filter(|table| table.place.is_some() && matches!(table.kind, 'r' | 'm'));
    tables.flat_map(of_table).collect()
}

/// The finding that the change log is not pruned.
pub fn change_log(log: ChangeLogFacts) -> Option<Finding> {
    if log.rows < CHANGE_LOG_ROWS_MAX || log.has_live_node {
        return None;
    }
    let reason = format!(
        "it has at least {CHANGE_LOG_ROWS_MAX} rows, and no larder was seen for an hour, so nothing deletes them"
    );
    let sql = "select larder.prune();".to_owned();
    let remedy = Remedy { sql, lock: None };
    let object = "larder.change".to_owned();
    Some(Finding {
        remedies: vec![remedy],
        ..Finding::new(Rule::ChangeLog, Severity::Warning, object, reason)
    })
}

fn of_table(table: &TableFacts) -> Vec<Finding> {
    let name = table.name.sql();
    let mut findings = Vec::new();
    let mut add = |reason: String, sql: String| {
        let remedy = Remedy {
            sql,
            lock: MAINTENANCE,
        };
        let object = table.name.to_string();
        findings.push(Finding {
            place: table.place.clone(),
            remedies: vec![remedy],
            ..Finding::new(Rule::Upkeep, Severity::Info, object, reason)
        });
    };
    if !table.is_analysed && table.live_rows >= ROWS_MIN {
        add(
            "it was never analysed, so PostgreSQL knows nothing of its values".to_owned(),
            format!("analyze {name};"),
        );
    }
    let all = table.live_rows.saturating_add(table.dead_rows);
    if table.dead_rows >= ROWS_MIN && table.dead_rows.saturating_mul(5) >= all {
        add(
            format!(
                "{} of {all} rows are dead and take space in it and its indexes",
                table.dead_rows
            ),
            format!("vacuum {name};"),
        );
    }
    if table.updates >= UPDATES_MIN
        && table.hot_updates.saturating_mul(2) < table.updates
        && table.fillfactor == 100
    {
        add(
            format!(
                "{} of {} updates wrote all its indexes: they change indexed columns, or find no free space in the row's page",
                table.updates - table.hot_updates,
                table.updates
            ),
            format!("alter table {name} set (fillfactor = {FILLFACTOR});"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::catalogue::TableName;
    use crate::resource::definition::Place;

    fn table() -> TableFacts {
        TableFacts {
            name: TableName {
                oid: 1,
                schema: "public".to_owned(),
                name: "t".to_owned(),
            },
            kind: 'r',
            place: Some(Place {
                origin: "larder.toml".into(),
                line: 1,
                key: "resource[0]".to_owned(),
            }),
            live_rows: 10_000,
            dead_rows: 0,
            updates: 0,
            hot_updates: 0,
            fillfactor: 100,
            is_analysed: true,
            foreign_keys: Vec::new(),
            indexes: Vec::new(),
        }
    }

    fn sql(change: impl Fn(&mut TableFacts)) -> Vec<String> {
        let mut table = table();
        change(&mut table);
        let facts = Facts {
            tables: vec![table],
            ..Facts::default()
        };
        let findings = findings(&facts).into_iter();
        findings
            .flat_map(|finding| finding.remedies)
            .map(|remedy| remedy.sql)
            .collect()
    }

    #[test]
    fn tables_that_need_nothing_are_left_alone() {
        let changes: [fn(&mut TableFacts); 7] = [
            |_| {},
            |table| table.dead_rows = 2_499,
            |table| (table.live_rows, table.dead_rows) = (100, 999),
            |table| (table.is_analysed, table.live_rows) = (false, 999),
            |table| (table.updates, table.hot_updates) = (10_000, 5_000),
            |table| table.updates = 9_999,
            |table| (table.updates, table.fillfactor) = (10_000, 90),
        ];
        for change in changes {
            assert_eq!(sql(change), [""; 0]);
        }
    }

    #[test]
    fn each_neglect_is_found() {
        assert_eq!(
            sql(|table| table.is_analysed = false),
            ["analyze \"public\".\"t\";"]
        );
        assert_eq!(
            sql(|table| table.dead_rows = 2_500),
            ["vacuum \"public\".\"t\";"]
        );
        assert_eq!(
            sql(|table| (table.updates, table.hot_updates) = (10_000, 4_999)),
            ["alter table \"public\".\"t\" set (fillfactor = 90);"]
        );
        let neglect = |table: &mut TableFacts| table.is_analysed = false;
        for kind in ['p', 'f'] {
            assert_eq!(
                sql(|table| {
                    neglect(table);
                    table.kind = kind;
                }),
                [""; 0]
            );
        }
        let foreign = |table: &mut TableFacts| {
            neglect(table);
            table.place = None;
        };
        assert_eq!(sql(foreign), [""; 0]);
    }

    #[test]
    fn a_log_that_a_larder_reads_is_no_finding() {
        let facts = |rows, has_live_node| ChangeLogFacts {
            rows,
            has_live_node,
        };
        assert!(change_log(facts(CHANGE_LOG_ROWS_MAX, false)).is_some());
        assert_eq!(change_log(facts(CHANGE_LOG_ROWS_MAX, true)), None);
        assert_eq!(change_log(facts(CHANGE_LOG_ROWS_MAX - 1, false)), None);
    }
}
