//! Indexes that look as if they served no search, and serve it; and some that look as if they did, and do not.

use super::{execute, found};
use crate::harness::cluster::TestCluster;

/// Parents and children, and a list by `kind`.
const TABLES: &str = "\
create table parent (id int primary key, kind text collate \"C\" not null);
create table child (id int primary key, parent_id int references parent, name text, gone timestamptz);";

const TOML: &str = "\
[[resource]]
name = 'parents'
table = 'parent'
filters = ['kind']
[[resource.children]]
name = 'children'
table = 'child'
";

/// SQL, and whether it serves the search for children.
const CHILD_INDEXES: [(&str, bool); 19] = [
    ("create index on child (parent_id)", true),
    ("create index on child (parent_id desc)", true),
    ("create index on child (parent_id nulls first)", true),
    ("create index on child (parent_id) include (name)", true),
    ("create index on child (parent_id, name)", true),
    ("create index on child using hash (parent_id)", true),
    (
        "create index on child (parent_id) where parent_id is not null",
        true,
    ),
    ("create unique index on child (parent_id, id)", true),
    (
        "create index on child (parent_id) with (fillfactor = 50)",
        true,
    ),
    ("create index on child (parent_id, lower(name))", true),
    (
        "create index on child (parent_id) where gone is null",
        false,
    ),
    (
        "create index on child (parent_id) where parent_id > 5",
        false,
    ),
    ("create index on child (name, parent_id)", false),
    ("create index on child (id, parent_id)", false),
    ("create index on child ((parent_id + 0))", false),
    ("create index on child (name) include (parent_id)", false),
    ("create index on child using brin (parent_id)", false),
    ("create index on child (lower(name), parent_id)", false),
    (
        // It will serve once it is built: `invalid-index` says so.
        "create index i on child (parent_id); update pg_index set indisvalid = false where indexrelid = 'i'::regclass",
        true,
    ),
];

/// SQL, and whether it serves lists by kind.
const LIST_INDEXES: [(&str, bool); 12] = [
    ("create index on parent (kind, id)", true),
    ("create index on parent (kind desc, id desc)", true),
    ("create index on parent (kind, id desc)", true),
    (
        "create index on parent (kind, id) where kind is not null",
        true,
    ),
    ("create index on parent (kind, id, (id + 1))", true),
    ("create unique index on parent (kind)", true),
    ("create unique index on parent (kind, id)", true),
    ("create index on parent (kind, id nulls first)", false),
    ("create index on parent (kind collate \"POSIX\", id)", false),
    ("create index on parent (kind text_pattern_ops, id)", true),
    ("create index on parent (kind)", false),
    ("create index on parent (lower(kind), id)", false),
];

/// Drops all indexes but those of keys.
const DROP_INDEXES: &str = "\
do $$ declare i regclass; begin \
  for i in select indexrelid from pg_index where indrelid in ('parent'::regclass, 'child'::regclass) and not indisprimary loop \
    execute format('drop index %s', i); end loop; end $$";

/// Creates the tables, with so many rows in each.
async fn fill(url: &str, rows: usize) {
    execute(url, "drop table if exists child, parent").await;
    execute(url, TABLES).await;
    let fill = format!(
        "insert into parent select n, 'k' || n from generate_series(1, {rows}) n;
         insert into child select n, n, 'c' from generate_series(1, {rows}) n"
    );
    execute(url, &fill).await;
    execute(url, "analyze parent, child").await;
}

/// What is found with these indexes.
async fn found_with(url: &str, sql: &str) -> Vec<String> {
    execute(url, sql).await;
    let found = found(url, TOML).await;
    execute(url, DROP_INDEXES).await;
    found
}

#[tokio::test]
async fn the_planner_decides_which_indexes_serve() {
    let url = TestCluster::database().await.url;
    for rows in [1, 2000] {
        fill(&url, rows).await;
        for (sql, serves) in CHILD_INDEXES {
            let all = format!("create index on parent (kind, id); {sql}");
            let told = found_with(&url, &all).await;
            assert_eq!(told.is_empty(), serves, "{rows} rows, {sql}: {told:?}");
        }
        for (sql, serves) in LIST_INDEXES {
            let all = format!("create index on child (parent_id); {sql}");
            let told = found_with(&url, &all).await;
            assert_eq!(told.is_empty(), serves, "{rows} rows, {sql}: {told:?}");
        }
    }
}
