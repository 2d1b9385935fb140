//! What the tables of a drawn schema contain, and whether two databases contain the same.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Context;
use serde::Deserialize;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};
use xxhash_rust::xxh3::xxh3_64;

use crate::checks::differential_writes::schema::{Column, Filling, Schema};

/// The values that a request draws of a sequence, and what triggers add to them, are below this.
const DRAWN_MAX: i64 = 10_000;
/// Each sequence has a range of values of its own.
const SEQUENCE_RANGE: i64 = 10_000_000;
/// How often the names of drawn values are refined by the names around them: once for each level, and once more.
const PLACE_ROUNDS: usize = 5;

/// The rows of all tables, and what triggers have written to the audit table during one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    /// Each table's rows as texts, sorted.
    tables: Vec<Vec<String>>,
    /// For each transaction its statements, for each statement its audit rows, sorted. The order of transactions does
    /// not count.
    audit: Vec<Vec<Vec<String>>>,
}

/// A row of the audit table.
#[derive(Debug, Deserialize)]
struct AuditRow {
    transaction: i64,
    /// When the statement began. The order of these times is the order of the statements.
    began: String,
    entry: String,
}

/// The values that sequences draw during one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct DrawnValues {
    /// The number of the request, from 1.
    pub(super) request: i64,
    pub(super) sequences: usize,
}

impl DrawnValues {
    fn first(self, sequence: usize) -> i64 {
        let sequence = i64::try_from(sequence + 1).unwrap_or(1);
        SEQUENCE_RANGE * sequence + DRAWN_MAX * self.request
    }

    /// The statements that let each sequence begin alike in both databases, and clear the audit table.
    pub(super) fn prepare_sql(self, schema: &Schema) -> String {
        let mut sql = format!("delete from {}.audit;", schema.name);
        for (sequence, (level, column)) in schema.drawn_columns().enumerate() {
            let (name, first) = (schema.sequence_sql(level, column), self.first(sequence));
            sql += &format!("select setval({name}, {first}, false);");
        }
        sql
    }

    /// The sequence that has drawn `number`, if one has.
    fn sequence_of(self, number: i64) -> Option<usize> {
        (0..self.sequences).find(|&sequence| {
            let first = self.first(sequence);
            (first..first + DRAWN_MAX).contains(&number)
        })
    }
}

impl Contents {
    /// Reads all tables.
    pub(super) async fn read(
        connection: &mut PgConnection,
        schema: &Schema,
    ) -> anyhow::Result<Self> {
        let tables = schema.tables();
        let mut parts: Vec<String> = tables
            .iter()
            .map(|table| format!("(select coalesce(json_agg(t::text), '[]') from {table} t)"))
            .collect();
        parts.push(format!(
            "(select coalesce(json_agg(json_build_object('transaction', tx, 'began', to_char(at, 'YYYYMMDDHH24MISSUS'), \
             'entry', entry)), '[]') from {}.audit)",
            schema.name
        ));
        let sql = format!("select json_build_array({})::text", parts.join(", "));
        let row = sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_one(connection)
            .await?;
        let text: String = row.try_get(0)?;
        let mut values: Vec<serde_json::Value> = serde_json::from_str(&text)?;
        let audit = values.pop().context("no audit rows")?;
        let tables = values.into_iter().map(serde_json::from_value);
        let tables: Vec<Vec<String>> = tables.collect::<Result<_, _>>()?;
        let mut contents = Self {
            tables,
            audit: grouped(serde_json::from_value(audit)?),
        };
        contents.sort();
        Ok(contents)
    }

    fn sort(&mut self) {
        for rows in &mut self.tables {
            rows.sort();
        }
        for statements in &mut self.audit {
            for entries in statements {
                entries.sort();
            }
        }
        self.audit.sort();
    }

    /// Whether two databases contain the same but for the values that sequences have drawn.
    ///
    /// Drawn values have the order in which they were drawn. If it is not `has_order`, they only must stand at the same
    /// places: transactions, triggers that draw from the same sequence, or inserts of rows that give other members, may have
    /// drawn in another order.
    pub(super) fn is_like(&self, other: &Self, drawn: DrawnValues, has_order: bool) -> bool {
        self.ordered(drawn) == other.ordered(drawn)
            || (!has_order && self.placed(drawn) == other.placed(drawn))
    }

    /// The same with drawn values named by their order.
    pub(super) fn ordered(&self, drawn: DrawnValues) -> Self {
        let mut names = BTreeMap::new();
        let mut counts = vec![0; drawn.sequences];
        for (number, sequence) in self.drawn(drawn) {
            counts[sequence] += 1;
            names.insert(number, format!("#{sequence}.{}", counts[sequence]));
        }
        self.with(&names)
    }

    /// The same with drawn values named by the texts in which they stand. Values that are named alike can be swapped.
    fn placed(&self, drawn: DrawnValues) -> Self {
        let found = self.drawn(drawn);
        let named = found
            .iter()
            .map(|(number, sequence)| (*number, format!("#{sequence}")));
        let mut names: BTreeMap<i64, String> = named.collect();
        for _ in 0..PLACE_ROUNDS {
            let renamed = found.keys().map(|number| {
                let mut marked = names.clone();
                marked.insert(*number, "@".to_owned());
                let mut places = Vec::new();
                self.each_text(|text| {
                    if numbers(text).any(|at| at == *number) {
                        places.push(with_names(text, &marked));
                    }
                });
                places.sort();
                let hash = xxh3_64(places.join("\n").as_bytes());
                (*number, format!("{}.{hash:016x}", names[number]))
            });
            names = renamed.collect();
        }
        self.with(&names)
    }

    /// The drawn values in all texts, with their sequences.
    fn drawn(&self, drawn: DrawnValues) -> BTreeMap<i64, usize> {
        let mut found = BTreeMap::new();
        self.each_text(|text| {
            for number in numbers(text) {
                if let Some(sequence) = drawn.sequence_of(number) {
                    found.insert(number, sequence);
                }
            }
        });
        found
    }

    /// The same with numbers replaced by their names.
    fn with(&self, names: &BTreeMap<i64, String>) -> Self {
        let mut renamed = self.clone();
        let texts = renamed.tables.iter_mut().flatten();
        for text in texts.chain(renamed.audit.iter_mut().flatten().flatten()) {
            *text = with_names(text, names);
        }
        renamed.sort();
        renamed
    }

    fn each_text(&self, mut with: impl FnMut(&str)) {
        self.tables.iter().flatten().for_each(|text| with(text));
        self.audit
            .iter()
            .flatten()
            .flatten()
            .for_each(|text| with(text));
    }

    /// The same without the numbers of rows that triggers saw in tables: a transaction that runs beside another one sees
    /// numbers that it would see in no serial order.
    pub(super) fn without_counts(mut self) -> Self {
        for entry in self.audit.iter_mut().flatten().flatten() {
            let words = entry.split(' ').filter(|word| !is_count(word));
            *entry = words.collect::<Vec<_>>().join(" ");
        }
        self.sort();
        self
    }

    /// Whether the rows are the same, without audit rows.
    pub(super) fn has_same_rows(&self, other: &Self) -> bool {
        self.tables == other.tables
    }

    /// The statements that make a database contain these rows, without calling triggers.
    pub(super) fn restore_sql(&self, schema: &Schema) -> String {
        let tables = schema.tables();
        let mut sql = format!(
            "set session_replication_role = replica; truncate {};",
            tables.join(", ")
        );
        for (number, (table, rows)) in tables.iter().zip(&self.tables).enumerate() {
            if rows.is_empty() {
                continue;
            }
            let columns = schema.levels.get(number).map_or("*".to_owned(), |level| {
                let columns = level.columns.iter();
                let stored = columns.filter(|column| column.default != Filling::Generated);
                names(stored).join(", ")
            });
            let target = match &*columns {
                "*" => String::new(),
                columns => format!("({columns})"),
            };
            let rows: Vec<String> = rows
                .iter()
                .map(|row| format!("'{}'", row.replace('\'', "''")))
                .collect();
            sql += &format!(
                "insert into {table} {target} overriding system value select {columns} from unnest(array[{}]::{table}[]);",
                rows.join(", ")
            );
        }
        sql + "set session_replication_role = origin"
    }

    /// What differs, as text: rows of this one with `-`, rows of `other` with `+`.
    pub(super) fn difference(&self, other: &Self, schema: &Schema) -> String {
        let mut text = String::new();
        for (table, (rows, others)) in schema
            .tables()
            .iter()
            .zip(self.tables.iter().zip(&other.tables))
        {
            for (sign, [own, other]) in [('-', [rows, others]), ('+', [others, rows])] {
                for row in without(own, other) {
                    // Writing to a string can't fail.
                    let _infallible = writeln!(text, "  {sign} {table} {row}");
                }
            }
        }
        if self.audit != other.audit {
            for (sign, contents) in [('-', self), ('+', other)] {
                for (number, statements) in contents.audit.iter().enumerate() {
                    for (statement, entries) in statements.iter().enumerate() {
                        for entry in entries {
                            let _infallible =
                                writeln!(text, "  {sign} audit {number}.{statement} {entry}");
                        }
                    }
                }
            }
        }
        text
    }
}

/// The texts of `own` that `other` lacks, each as often as it lacks it.
fn without<'t>(own: &'t [String], other: &[String]) -> Vec<&'t String> {
    let mut other: Vec<&String> = other.iter().collect();
    let lacks = |text: &&String| match other.iter().position(|known| known == text) {
        Some(at) => {
            other.swap_remove(at);
            false
        }
        None => true,
    };
    own.iter().filter(lacks).collect()
}

fn names<'c>(columns: impl Iterator<Item = &'c Column>) -> Vec<&'c str> {
    columns.map(|column| &*column.name).collect()
}

/// Audit rows by transaction and statement.
fn grouped(rows: Vec<AuditRow>) -> Vec<Vec<Vec<String>>> {
    let mut transactions: BTreeMap<i64, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for row in rows {
        let statements = transactions.entry(row.transaction).or_default();
        statements.entry(row.began).or_default().push(row.entry);
    }
    let transactions = transactions.into_values();
    transactions
        .map(|statements| statements.into_values().collect())
        .collect()
}

/// Whether a word of an audit row is a table and the number of its rows, such as `l0=5`.
fn is_count(word: &str) -> bool {
    let parts = word.strip_prefix('l').and_then(|word| word.split_once('='));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    parts.is_some_and(|(table, count)| is_number(table) && is_number(count))
}

/// The numbers in a text.
fn numbers(text: &str) -> impl Iterator<Item = i64> {
    let digits = text.split(|character: char| !character.is_ascii_digit());
    digits.filter_map(|digits| digits.parse().ok())
}

/// The text with numbers replaced by their names.
fn with_names(text: &str, names: &BTreeMap<i64, String>) -> String {
    let mut renamed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(|character: char| character.is_ascii_digit()) {
        renamed.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest
            .find(|character: char| !character.is_ascii_digit())
            .unwrap_or(rest.len());
        let digits = &rest[..end];
        let name = digits
            .parse()
            .ok()
            .and_then(|number: i64| names.get(&number));
        renamed.push_str(name.map_or(digits, |name| name));
        rest = &rest[end..];
    }
    renamed + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWN: DrawnValues = DrawnValues {
        request: 2,
        sequences: 2,
    };

    fn contents(rows: &[&str], audit: &[&[&str]]) -> Contents {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let mut contents = Contents {
            tables: vec![texts(rows)],
            audit: vec![audit.iter().map(|entries| texts(entries)).collect()],
        };
        contents.sort();
        contents
    }

    #[test]
    fn drawn_keys_are_compared_by_renaming() {
        let one = contents(&["(10020001,5)", "(10020004,6)"], &[&["k 10020004"]]);
        let other = contents(&["(10020000,5)", "(10020001,6)"], &[&["k 10020001"]]);
        assert_ne!(one, other);
        assert!(one.is_like(&other, DRAWN, true));
        let swapped = contents(&["(10020000,6)", "(10020001,5)"], &[&["k 10020000"]]);
        assert!(!one.is_like(&swapped, DRAWN, true));
        assert!(one.is_like(&swapped, DRAWN, false));
        let mixed = contents(&["(10020000,6)", "(10020001,5)"], &[&["k 10020001"]]);
        assert!(!one.is_like(&mixed, DRAWN, false));
    }

    #[test]
    fn values_of_earlier_requests_and_of_other_sequences_stay() {
        let before = contents(&["(10019999,30030000)"], &[]);
        assert_eq!(before.ordered(DRAWN), before);
        let other = contents(&["(20020000)"], &[]);
        assert_eq!(other.ordered(DRAWN), contents(&["(#1.1)"], &[]));
    }

    #[test]
    fn numbers_of_rows_are_left_out_for_transactions_beside_others() {
        let one = contents(&["l0=5"], &[&["x AFTER INSERT (1,l0) l0=5 l1=7"]]);
        let other = contents(&["l0=5"], &[&["x AFTER INSERT (1,l0)"]]);
        assert_eq!(one.without_counts(), other);
    }

    #[test]
    fn the_order_within_a_statement_does_not_count() {
        assert_eq!(contents(&[], &[&["a", "b"]]), contents(&[], &[&["b", "a"]]));
        assert_ne!(
            contents(&[], &[&["a"], &["b"]]),
            contents(&[], &[&["b"], &["a"]])
        );
        assert_ne!(contents(&[], &[&["a", "a"]]), contents(&[], &[&["a"]]));
    }
}
