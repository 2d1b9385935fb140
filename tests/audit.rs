//! The audit: it finds stale documents, and reports no document that merely changes.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService, execute};

const SQL: &str = "create table item (id int primary key, value int not null); \
                   insert into item select n, 0 from generate_series(1, 8) n";

const CONFIG: &str = r#"
[feed]
max_staleness = "30s"
[disk]
linger = "1ms"
cache = "8MiB"
[[resource]]
name = "both"
table = "item"
[[resource]]
name = "memory"
table = "item"
tiers = ["memory"]
[[resource]]
name = "disk"
table = "item"
tiers = ["disk"]
"#;

async fn start(overrides: &[(&str, &str)]) -> TestService {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    TestService::start_on(&url, CONFIG, overrides).await
}

async fn audits(larder: &TestService, outcome: &str) -> u64 {
    let text = larder.admin("/metrics").await.body;
    let name = format!("larder_audits_total{{outcome=\"{outcome}\"}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&name));
    value.map_or(0, |value| value.parse().unwrap())
}

/// Waits until every hit so far has been audited, or has been left out.
async fn settle(larder: &TestService) {
    eventually("audited", async || {
        let status = larder.admin("/status").await.json();
        let resources = status["resources"].as_array().unwrap();
        let hits: u64 = resources
            .iter()
            .flat_map(|resource| [&resource["hits_memory"], &resource["hits_disk"]])
            .filter_map(serde_json::Value::as_u64)
            .sum();
        let mut audited = 0;
        for outcome in ["same", "changed", "stale", "unknown", "skipped"] {
            audited += audits(larder, outcome).await;
        }
        (audited == hits).then_some(())
    })
    .await;
}

/// Commits a change that is not logged.
async fn plant(larder: &TestService, change: &str) {
    // Who edits the log moves the horizon.
    let unlogged = "create temp table h on commit drop as select snapshot from larder.horizon; \
        delete from larder.change where xid = pg_current_xact_id(); \
        update larder.horizon set snapshot = (select snapshot from h)";
    larder
        .execute(&format!("begin; {change}; {unlogged}; commit"))
        .await;
}

fn value(answer: &TestResponse) -> Option<i64> {
    (answer.status == 200).then(|| answer.json()["value"].as_i64().unwrap())
}

fn is_hit(answer: &TestResponse) -> bool {
    answer.cache_status().starts_with("larder; hit; ")
}

/// Makes the tiers' document of `path` stale by `changes`, of which each leads to another value, until the audit has
/// found it; then the document must be right at once.
async fn assert_audit_finds(larder: &TestService, path: &str, changes: &[(&str, Option<i64>)]) {
    eventually("a hit", async || {
        is_hit(&larder.get(path).await).then_some(())
    })
    .await;
    settle(larder).await;
    let before = larder.metric("larder_audit_stale_total").await;
    let mut changes = changes.iter().cycle();
    let mut planted = None;
    let now = eventually("found", async || {
        let seen = value(&larder.get(path).await);
        let mended = planted.is_none_or(|planted| planted == seen);
        if mended {
            settle(larder).await;
        }
        if larder.metric("larder_audit_stale_total").await > before {
            return planted;
        }
        // A disk that answers slowly is a miss, and that mends what was planted.
        if mended {
            let &(change, leads_to) = changes.next().unwrap();
            plant(larder, change).await;
            planted = Some(leads_to);
        }
        None
    })
    .await;
    let answer = larder.get(path).await;
    assert_eq!(value(&answer), now, "{path} {}", answer.cache_status());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_document_is_found_counted_and_dropped() {
    let larder = start(&[("audit.sample", "1")]).await;
    for (resource, id) in [("memory", 1), ("both", 2), ("disk", 3)] {
        let set = |value: i64| format!("update item set value = {value} where id = {id}");
        let delete = format!("delete from item where id = {id}");
        let insert = |value: i64| format!("insert into item values ({id}, {value})");
        let path = format!("/{resource}/{id}");
        assert_audit_finds(&larder, &path, &[(&set(1), Some(1)), (&set(2), Some(2))]).await;
        let (gone, back) = (delete.as_str(), insert(3));
        assert_audit_finds(&larder, &path, &[(gone, None), (&back, Some(3))]).await;
        larder.execute(&format!("{delete}; {}", insert(0))).await;
        // Absence is remembered and audited like a document.
        larder.execute(gone).await;
        eventually("absent", async || {
            let answer = larder.get(&path).await;
            (answer.status == 404 && is_hit(&answer)).then_some(())
        })
        .await;
        assert_audit_finds(&larder, &path, &[(&back, Some(3)), (gone, None)]).await;
    }
    settle(&larder).await;
    let stale = larder.metric("larder_audit_stale_total").await;
    assert!(stale >= 9.0 && audits(&larder, "stale").await == stale as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_audited_where_the_audit_is_off() {
    let larder = start(&[("audit.sample", "0")]).await;
    eventually("a hit", async || {
        is_hit(&larder.get("/memory/1").await).then_some(())
    })
    .await;
    plant(&larder, "update item set value = 1 where id = 1").await;
    for _ in 0..100 {
        assert_eq!(value(&larder.get("/memory/1").await), Some(0));
    }
    for outcome in ["same", "changed", "stale", "unknown", "skipped"] {
        assert_eq!(audits(&larder, outcome).await, 0, "{outcome}");
    }
    assert_eq!(larder.metric("larder_audit_stale_total").await, 0.0);
}

/// Sets the item to one of two values, or takes it away.
async fn write(connection: &mut PgConnection, id: usize, turn: usize) {
    let sql = match turn % 3 {
        0 => format!("delete from item where id = {id}"),
        _ => format!(
            "insert into item values ({id}, {0}) on conflict (id) do update set value = {0}",
            turn % 2
        ),
    };
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(connection)
        .await
        .unwrap();
}

/// Documents change between a hit and its audit, also back to what was served.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_under_way_is_no_alarm() {
    let larder = start(&[("audit.sample", "1")]).await;
    let (mut one, mut other) = (larder.connect().await, larder.connect().await);
    let read = async || {
        for _ in 0..4 {
            let paths = ["memory", "both", "disk"]
                .iter()
                .flat_map(|resource| (1..=8).map(move |id| format!("/{resource}/{id}")));
            for path in paths {
                larder.get(&path).await;
            }
        }
    };
    let mut turn = 0;
    eventually("audited enough", async || {
        for _ in 0..20 {
            turn += 1;
            tokio::join!(
                read(),
                write(&mut one, 1 + turn % 8, turn),
                write(&mut other, 1 + turn / 2 % 8, turn + 1)
            );
        }
        let same = audits(&larder, "same").await;
        let changed = audits(&larder, "changed").await;
        (same >= 1_000 && changed >= 100).then_some(())
    })
    .await;
    settle(&larder).await;
    assert_eq!(larder.metric("larder_audit_stale_total").await, 0.0);
    one.close().await.unwrap();
    other.close().await.unwrap();
}
