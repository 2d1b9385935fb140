//! The table of persons, its queries and their indexes.

/// Greater than the most rows, so that the products of all row numbers leave different remainders.
const PRIME: u32 = 15_485_863;

/// Conditions. `number` is unique and at most 0; a thousandth of the persons has each `lastname`.
pub(super) const EQUAL: &str = "number = -5000";
pub(super) const RANGES: [&str; 3] = [
    "number > -10",
    "number between -5009 and -5000",
    "lastname like 'name042%'",
];
pub(super) const ORDER: &str = "lastname = 'name042' and age between 4 and 10";
/// Nine tenths of the persons: a scan reads less.
const MOST: &str = "age > 10";

/// What follows `create index on person`, unless it is this.
pub(super) const NONE: &str = "no index";
pub(super) const RIGHT_ORDER: &str = "(lastname, age)";
pub(super) const WRONG_ORDER: &str = "(age, lastname)";
pub(super) const NUMBER: &str = "(number)";
pub(super) const NUMBER_HASH: &str = "using hash (number)";
const NUMBERS: &[&str] = &[NONE, NUMBER, NUMBER_HASH, "(number) include (firstname)"];
const LASTNAMES: &[&str] = &[
    NONE,
    "(lastname)",
    "(lastname text_pattern_ops)",
    "using hash (lastname)",
    "(lastname text_pattern_ops) include (firstname)",
];
const BOTH: &[&str] = &[NONE, RIGHT_ORDER, WRONG_ORDER, "(lastname)"];
const AGES: &[&str] = &[
    NONE,
    "(age)",
    "using hash (age)",
    "(age) include (firstname)",
];

/// Conditions, and the indexes with which each is measured.
pub(super) const QUERIES: [(&str, &[&str]); 6] = [
    (EQUAL, NUMBERS),
    (RANGES[0], NUMBERS),
    (RANGES[1], NUMBERS),
    (RANGES[2], LASTNAMES),
    (ORDER, BOTH),
    (MOST, AGES),
];

/// The query with a condition.
pub(super) fn sql(condition: &str) -> String {
    let is_counted = condition == ORDER;
    let selected = if is_counted { "count(*)" } else { "firstname" };
    format!("select {selected} from person where {condition}")
}

pub(super) fn is_hash(index: &str) -> bool {
    index.starts_with("using hash")
}

/// Whether it is a B-tree as `larder check` may propose it: without further columns.
pub(super) fn is_plain(index: &str) -> bool {
    index.starts_with('(') && !index.contains("include")
}

/// Creates the table with `rows` rows. PostgreSQL vacuums it only on command.
pub(super) fn create(rows: u32, seed: u64) -> String {
    format!(
        "drop table if exists person; \
         create table person (id int not null, number int not null, firstname text not null, \
           lastname text collate \"und-x-icu\" not null, age int not null, visits int not null) \
           with (autovacuum_enabled = off); \
         {}; alter table person add primary key (id)",
        insert(1, rows, rows, seed)
    )
}

/// Inserts the persons from `first` to `last`. `number` is unique among the first `rows`.
pub(super) fn insert(first: u32, last: u32, rows: u32, seed: u64) -> String {
    format!(
        "insert into person select i, -(i * {PRIME} % {rows}), left(h, 8), \
           'name' || to_char(i % 1000, 'FM000'), ('x' || right(h, 7))::bit(28)::int % 100, 0 \
         from generate_series({first}::bigint, {last}) i cross join lateral md5('{seed} ' || i) h"
    )
}
