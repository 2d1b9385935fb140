//! A database with each fault once: exactly these are found, and none once their SQL was run.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use super::{check, found, mend};
use crate::command::configured;
use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::eventually;
use crate::harness::service::execute;

/// All that larder needs, and no more; autovacuum must not mend anything.
const SOUND: &str = "
    create table parent (id serial primary key, status text collate \"C\", kind text collate \"C\", a int, b int,
      label text collate \"und-x-icu\")
      with (autovacuum_enabled = off);
    create index by_status on parent (status, id);
    create index by_kind on parent (kind, id); create index by_label on parent (label text_pattern_ops);
    create table child (id int primary key, parent_id int not null references parent on delete cascade);
    create index child_parent on child (parent_id);
    create table part (id int, year int, child_id int not null references child, primary key (id, year))
      partition by range (year);
    create table part_1 partition of part for values from (0) to (10);
    create index part_child on part (child_id);";

const CONFIG: &str = "
    install = 'manual'
    [[resource]]
    name = 'parents'
    table = 'parent'
    filters = ['status', 'kind']
      [[resource.children]]
      name = 'children'
      table = 'child'
        [[resource.children.children]]
        name = 'parts'
        table = 'part'
        foreign_key = 'child_id'
    ";

/// Statements of users.
const QUERIES: &str = "select id from public.parent where label like 'x%'";

/// The flags of each check.
const FLAGS: [&str; 2] = ["--queries", "q.sql"];

/// The same, and the least finding is a failure.
const INFO: [&str; 4] = ["--queries", "q.sql", "--fail-on", "info"];

const UNFIT: &str = "
    [[resource]]
    name = 'others'
    table = 'parents'
    ";

/// Each is one fault: its SQL, and the rule and the object of its finding.
/// Tables are named with their schema: a user called larder would create them in schema larder.
const FAULTS: [(&str, &str, &str); 13] = [
    (
        "revoke usage on sequence parent_id_seq from ROLE",
        "rights",
        "sequence public.parent_id_seq",
    ),
    (
        "alter table child disable trigger user",
        "triggers",
        "public.child",
    ),
    (
        "alter table part_1 disable trigger user",
        "triggers",
        "public.part_1",
    ),
    ("drop index part_child", "missing-index", "public.part"),
    (
        "create table public.note (parent_id int references parent); grant select on public.note to ROLE",
        "foreign-key",
        "public.note",
    ),
    (
        "create index broken on child (id, parent_id); update pg_index set indisvalid = false where indexrelid = 'broken'::regclass",
        "invalid-index",
        "public.broken",
    ),
    (
        "create index twice on child (parent_id)",
        "duplicate-index",
        "public.twice",
    ),
    (
        "create index short on parent (a); create index long on parent (a, b)",
        "prefix-index",
        "public.short",
    ),
    (
        "drop index by_status; create index by_status on parent (status)",
        "column-order",
        "public.parent",
    ),
    (
        "drop index by_kind; create index by_kind on parent using hash (kind)",
        "hash-range",
        "public.parent",
    ),
    (
        "drop index by_label; create index by_label on parent (label)",
        "like-prefix",
        "public.parent",
    ),
    (
        "insert into larder.change (path, key) select 'x', 'y' from generate_series(1, 1000000)",
        "change-log",
        "larder.change",
    ),
    (
        "insert into parent (a) select n from generate_series(1, 1000) n",
        "upkeep",
        "public.parent",
    ),
];

/// What of the faults is found, in the order of [`FAULTS`] where nothing else is, and each once.
fn sorted(found: Vec<(String, String)>) -> Vec<(String, String)> {
    let place = |(rule, object): &(String, String)| {
        let mut faults = FAULTS.iter();
        faults.position(|(_, other, at)| other == rule && at == object)
    };
    let mut found = found;
    found.sort_by_key(place);
    found
}

/// Installs and grants what is missing, as the owner of the tables would.
async fn make_sound(directory: &Path, url: &str, role: &TestRole) {
    let (_, report) = check(directory, &role.url, &FLAGS).await;
    mend(url, &report).await;
    let (code, report) = check(directory, &role.url, &INFO).await;
    assert_eq!((code, found(&report)), (Some(0), Vec::new()), "{report}");
}

/// A directory with this configuration and the statements.
fn prepared(toml: &str) -> TempDir {
    let directory = configured(toml);
    std::fs::write(directory.path().join("q.sql"), QUERIES).unwrap();
    directory
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fault_is_found_once_and_mended_by_its_sql() {
    let url = TestCluster::database().await.url;
    execute(&url, SOUND).await;
    let role = TestRole::create(&url).await;
    let directory = prepared(CONFIG);
    make_sound(directory.path(), &url, &role).await;
    assert_skipped(directory.path(), &url, &role).await;
    for (sql, _, _) in FAULTS {
        execute(&url, &sql.replace("ROLE", &role.name)).await;
    }
    let expected: Vec<(String, String)> = FAULTS
        .iter()
        .map(|(_, rule, object)| ((*rule).to_owned(), (*object).to_owned()))
        .collect();
    // Statistics come a moment after the statement.
    let report = eventually("all faults", async || {
        let (_, report) = check(directory.path(), &role.url, &FLAGS).await;
        let is_counted = found(&report).iter().any(|(rule, _)| rule == "upkeep");
        is_counted.then_some(report)
    })
    .await;
    assert_eq!(sorted(found(&report)), expected, "{report}");
    assert_eq!(report["complete"], true, "{report}");
    let unfit = prepared(&format!("{CONFIG}{UNFIT}"));
    let (code, with_unfit) = check(unfit.path(), &role.url, &FLAGS).await;
    assert_eq!(code, Some(78));
    let rules = found(&with_unfit);
    assert_eq!(rules[0].0, "unfit", "{with_unfit}");
    assert_eq!(sorted(rules)[1..], expected, "{with_unfit}");
    assert_deterministic(directory.path(), &role.url, &report).await;

    mend(&url, &report).await;
    eventually("the statistics after analyze", async || {
        let (code, report) = check(directory.path(), &role.url, &INFO).await;
        let found = found(&report);
        assert!(found.iter().all(|(rule, _)| rule == "upkeep"), "{report}");
        (code == Some(0)).then_some(())
    })
    .await;
}

/// What the role may not see is told, with the statement that would let it, and is no failure.
async fn assert_skipped(directory: &Path, url: &str, role: &TestRole) {
    execute(
        url,
        "create table public.hidden (parent_id int references parent)",
    )
    .await;
    let (code, report) = check(directory, &role.url, &FLAGS).await;
    assert_eq!((code, found(&report)), (Some(0), Vec::new()), "{report}");
    let skipped = &report["skipped"][0];
    assert_eq!(
        skipped["name"],
        "foreign key hidden_parent_id_fkey of public.hidden"
    );
    let grant = format!(
        "grant select (parent_id) on public.hidden to {};",
        role.name
    );
    assert_eq!(skipped["grant"], grant);
    execute(url, "drop table public.hidden").await;
}

async fn assert_deterministic(directory: &Path, url: &str, report: &Value) {
    let (_, again) = check(directory, url, &FLAGS).await;
    assert_eq!(again, *report);
}
