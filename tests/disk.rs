//! The disk tier over restarts and under changes: what it may answer, and what it must not.

mod damage;

use std::time::Duration;

use axum::http::StatusCode;
use sqlx::Connection;
use tempfile::TempDir;

use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService, execute};

const SQL: &str = "create table item (id int primary key, name text not null); \
                   insert into item select n, 'first' from generate_series(1, 300) n";

const ITEMS: &str = "[[resource]]\nname = 'items'\ntable = 'public.item'\nkey = 'id'\n";

/// Everything that is queued is written at once.
const PROMPT: [(&str, &str); 2] = [("disk.linger", "1ms"), ("feed.poll_interval", "20ms")];

const DISK_HIT: &str = "larder; hit; detail=disk";

async fn database() -> String {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    url
}

async fn get(larder: &TestService, key: u32) -> TestResponse {
    let answer = larder.get(&format!("/items/{key}")).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    answer
}

fn name(answer: &TestResponse) -> String {
    answer.json()["name"].as_str().unwrap().to_owned()
}

/// A state directory whose disk tier holds keys 1 to 20.
async fn filled(url: &str) -> TempDir {
    let larder = TestService::start_on(url, ITEMS, &PROMPT).await;
    for key in 1..=20 {
        get(&larder, key).await;
    }
    larder.stop().await
}

async fn restarted(state: TempDir, url: &str) -> TestService {
    TestService::start_in(state, url, ITEMS, &PROMPT).await
}

/// Waits until the passes have applied all that is committed by now.
///
/// A pass drops one document after the other, so only the second one proves that the first is applied whole. A document
/// has to be a hit before it changes, or its change would be seen without any pass.
async fn applied(larder: &TestService, url: &str) {
    for round in ["one pass", "another pass"] {
        eventually("a hit", async || {
            let answer = get(larder, 300).await;
            answer
                .cache_status()
                .starts_with("larder; hit")
                .then_some(())
        })
        .await;
        execute(
            url,
            &format!("update item set name = '{round}' where id = 300"),
        )
        .await;
        eventually(round, async || {
            (name(&get(larder, 300).await) == round).then_some(())
        })
        .await;
    }
}

/// How many of keys 1 to 20 disk answers; every one must be `expected`.
async fn disk_hits(larder: &TestService, expected: &str) -> usize {
    let mut hits = 0;
    for key in 1..=20 {
        let answer = get(larder, key).await;
        assert_eq!(name(&answer), expected, "key {key}");
        hits += usize::from(answer.cache_status() == DISK_HIT);
    }
    hits
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_on_disk_answers_after_a_restart_unless_it_changed() {
    let url = database().await;
    let state = filled(&url).await;
    execute(
        &url,
        "update item set name = 'second' where id = 1; delete from item where id = 2",
    )
    .await;
    let larder = restarted(state, &url).await;
    assert_eq!(name(&get(&larder, 1).await), "second");
    let answer = larder.get("/items/2").await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    let mut hits = 0;
    for key in 3..=20 {
        let answer = get(&larder, key).await;
        assert_eq!(name(&answer), "first");
        hits += usize::from(answer.cache_status() == DISK_HIT);
    }
    // A slow machine may take a lookup for a miss.
    assert!(hits > 9, "{hits} hits");
}

#[tokio::test(flavor = "multi_thread")]
async fn absence_is_remembered_on_disk_and_ends_with_an_insert() {
    let url = database().await;
    let larder = TestService::start_on(&url, ITEMS, &PROMPT).await;
    for key in [901, 902] {
        larder.get(&format!("/items/{key}")).await;
    }
    let state = larder.stop().await;
    execute(&url, "insert into item values (901, 'new')").await;
    let larder = restarted(state, &url).await;
    assert_eq!(name(&get(&larder, 901).await), "new");
    let answer = larder.get("/items/902").await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert_eq!(answer.cache_status(), DISK_HIT);
}

/// The log says nothing of what happened meanwhile, and the trigger looks as before.
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_that_was_off_for_a_while_costs_the_disk_tier() {
    let url = database().await;
    let state = filled(&url).await;
    execute(
        &url,
        "do $$ declare t name; begin \
           for t in select tgname from pg_trigger where tgrelid = 'item'::regclass and tgname like 'larder%' loop \
             execute format('alter table item disable trigger %I', t); end loop; \
           update item set name = 'second'; \
           for t in select tgname from pg_trigger where tgrelid = 'item'::regclass and tgname like 'larder%' loop \
             execute format('alter table item enable always trigger %I', t); end loop; end $$",
    )
    .await;
    let larder = restarted(state, &url).await;
    assert_eq!(disk_hits(&larder, "second").await, 0);
}

/// A larder that may not create its triggers yet keeps nothing, and its passes do not name what changes. Its
/// fingerprint is that of the larder before it, and of the one after it.
#[tokio::test(flavor = "multi_thread")]
async fn what_changed_while_nothing_was_kept_costs_the_disk_tier() {
    let url = database().await;
    execute(
        &url,
        "create table other as select * from item limit 1; alter table other add primary key (id)",
    )
    .await;
    let state = filled(&url).await;
    let mut writer = sqlx::PgConnection::connect(&url).await.unwrap();
    let sql = "begin; insert into item values (400, 'uncommitted')";
    sqlx::raw_sql(sql).execute(&mut writer).await.unwrap();
    let two = format!("{ITEMS}[[resource]]\nname = 'others'\ntable = 'other'\n");
    let few = [&PROMPT[..], &[("feed.keys_per_statement", "3")]].concat();
    let larder = TestService::start_in(state, &url, &two, &few).await;
    let other = async || larder.get("/others/1").await;
    eventually("a hit", async || {
        let answer = other().await;
        answer
            .cache_status()
            .starts_with("larder; hit")
            .then_some(())
    })
    .await;
    let status = get(&larder, 1).await;
    assert_eq!(status.cache_status(), "larder; fwd=bypass; detail=uncached");
    execute(
        &url,
        "begin; update item set name = 'second'; update other set name = 'second'; commit",
    )
    .await;
    eventually("a pass", async || {
        (name(&other().await) == "second").then_some(())
    })
    .await;
    let state = larder.stop().await;
    sqlx::raw_sql("rollback")
        .execute(&mut writer)
        .await
        .unwrap();
    let larder = restarted(state, &url).await;
    assert_eq!(disk_hits(&larder, "second").await, 0);
}

/// What larder's role sees of it may have changed and changed back, unnoticed, before the stop.
#[tokio::test(flavor = "multi_thread")]
async fn documents_of_a_table_with_row_security_are_not_resumed() {
    let url = database().await;
    execute(&url, "alter table item enable row level security").await;
    let guarded = format!("{ITEMS}row_security = 'as-larder'\n");
    let larder = TestService::start_on(&url, &guarded, &PROMPT).await;
    for key in 1..=20 {
        get(&larder, key).await;
    }
    let state = larder.stop().await;
    let larder = TestService::start_in(state, &url, &guarded, &PROMPT).await;
    assert_eq!(disk_hits(&larder, "first").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_purged_while_postgresql_was_away_is_not_on_disk_after_a_restart() {
    let url = database().await;
    let state = filled(&url).await;
    let nowhere = "postgres://nobody@127.0.0.1:1/none";
    let larder = TestService::begin_in(state, nowhere, ITEMS, &PROMPT);
    let answer = larder.post_admin("/purge/items").await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
    let state = larder.stop().await;
    let larder = restarted(state, &url).await;
    assert_eq!(disk_hits(&larder, "first").await, 0);
}

/// What was loaded meanwhile may be another schema's.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_had_another_name_for_a_while_costs_the_disk_tier() {
    let url = database().await;
    let state = filled(&url).await;
    for (from, to) in [("public", "away"), ("away", "public")] {
        execute(&url, &format!("alter schema {from} rename to {to}")).await;
    }
    let larder = restarted(state, &url).await;
    assert_eq!(disk_hits(&larder, "first").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_databases_disk_tier_is_not_used() {
    let state = filled(&database().await).await;
    let url = database().await;
    execute(&url, "update item set name = 'of the other'").await;
    let larder = restarted(state, &url).await;
    assert_eq!(disk_hits(&larder, "of the other").await, 0);
}

/// The same larder.toml but for a field's name: the bytes are others.
#[tokio::test(flavor = "multi_thread")]
async fn another_shape_of_the_resource_finds_nothing_of_the_old_one() {
    let url = database().await;
    let state = filled(&url).await;
    let renamed = format!("{ITEMS}fields = {{ id = 'id', name = 'title' }}\n");
    let larder = TestService::start_in(state, &url, &renamed, &PROMPT).await;
    for key in 1..=20 {
        let answer = get(&larder, key).await;
        assert_eq!(answer.json()["title"], "first");
        assert_ne!(answer.cache_status(), DISK_HIT);
    }
}

/// Memory holds a few documents only.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_tier_keeps_what_was_read_last() {
    const DOCUMENTS: u32 = 2_000;
    let url = TestCluster::database().await.url;
    // Each of md5's blocks is another one, so that they shrink to a half at most: some 20 MB.
    execute(
        &url,
        "create table item (id int primary key, name text); insert into item \
         select n, (select string_agg(md5(n || '-' || m), '') from generate_series(1, 600) m) \
         from generate_series(1, 2000) n",
    )
    .await;
    let settings = [
        &PROMPT[..],
        &[("disk.max_bytes", "16MiB"), ("memory.max_bytes", "100KiB")],
    ]
    .concat();
    let larder = TestService::start_on(&url, ITEMS, &settings).await;
    for key in 1..=DOCUMENTS {
        get(&larder, key).await;
    }
    let status = larder.admin("/status").await.json();
    assert_eq!(status["disk"]["in_use"], true);
    let entries = status["disk"]["entries"].as_u64().unwrap();
    assert!((200..1_500).contains(&entries), "{entries} entries");
    let bytes = status["disk"]["bytes"].as_u64().unwrap();
    assert!(bytes < 20 << 20, "{bytes} bytes");
    eventually("the documents read last", async || {
        let response = get(&larder, DOCUMENTS - 100).await;
        (response.cache_status() == DISK_HIT).then_some(())
    })
    .await;
    execute(&url, "update item set name = 'short' where id > 1900").await;
    eventually("the change", async || {
        (name(&get(&larder, 1_950).await) == "short").then_some(())
    })
    .await;
}

/// Memory holds a few documents only, so that disk answers all the time, amid changes.
#[tokio::test(flavor = "multi_thread")]
async fn answers_from_disk_are_true_under_churn() {
    let url = database().await;
    let settings = [&PROMPT[..], &[("memory.max_bytes", "2KiB")]].concat();
    let larder = TestService::start_on(&url, ITEMS, &settings).await;
    let mut hits = 0;
    for round in 0..10 {
        let expected = format!("round {round}");
        execute(
            &url,
            &format!("update item set name = '{expected}' where id between 1 and 10"),
        )
        .await;
        applied(&larder, &url).await;
        for _ in 0..3 {
            for key in 1..=20 {
                let answer = get(&larder, key).await;
                let expected = if key <= 10 {
                    expected.as_str()
                } else {
                    "first"
                };
                assert_eq!(name(&answer), expected, "key {key}");
                hits += usize::from(answer.cache_status() == DISK_HIT);
            }
        }
    }
    assert!(hits > 0);
}

async fn on_disk(larder: &TestService, key: u32) -> bool {
    let answer = larder.admin(&format!("/explain/items/{key}")).await;
    !answer.json()["disk"].is_null()
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_wait_for_their_batch_and_are_written_at_the_end() {
    let url = database().await;
    let settings = [("disk.linger", "60s"), ("disk.batch", "1000000")];
    let larder = TestService::start_on(&url, ITEMS, &settings).await;
    get(&larder, 1).await;
    assert!(!on_disk(&larder, 1).await);
    let state = larder.stop().await;
    let larder = restarted(state, &url).await;
    eventually("on disk", async || on_disk(&larder, 1).await.then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_batch_does_not_wait() {
    let url = database().await;
    let settings = [("disk.linger", "60s"), ("disk.batch", "100")];
    let larder = TestService::start_on(&url, ITEMS, &settings).await;
    for key in 1..=100 {
        get(&larder, key).await;
    }
    eventually("on disk", async || on_disk(&larder, 1).await.then_some(())).await;
}

/// The document waits for its batch when it is invalidated, and both are written when larder stops.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_invalidated_before_its_batch_is_not_on_disk() {
    let url = database().await;
    let settings = [("disk.linger", "60s"), ("disk.batch", "1000000")];
    let larder = TestService::start_on(&url, ITEMS, &settings).await;
    get(&larder, 1).await;
    execute(&url, "update item set name = 'second' where id = 1").await;
    eventually("out of memory", async || {
        let answer = larder.admin("/explain/items/1").await;
        answer.json()["memory"].is_null().then_some(())
    })
    .await;
    let state = larder.stop().await;
    let larder = restarted(state, &url).await;
    let answer = get(&larder, 1).await;
    assert_eq!(name(&answer), "second");
    assert_ne!(answer.cache_status(), DISK_HIT);
}

/// Another larder has pruned what this one would need.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_back_after_its_retention_begins_empty() {
    let url = database().await;
    let state = filled(&url).await;
    execute(
        &url,
        "update item set name = 'second'; delete from larder.node",
    )
    .await;
    execute(&url, "select larder.prune()").await;
    assert!(keys(&url).await.is_empty());
    let larder = restarted(state, &url).await;
    assert_eq!(disk_hits(&larder, "second").await, 0);
}

/// Rows of the log up to the oldest node's position go, those behind it stay.
#[tokio::test(flavor = "multi_thread")]
async fn pruning_deletes_what_no_node_needs_and_nothing_else() {
    let url = database().await;
    let settings = [("feed.retention", "3s")];
    let larder = TestService::start_on(&url, ITEMS, &settings).await;
    execute(&url, "update item set name = 'early' where id = 1").await;
    execute(
        &url,
        "insert into larder.node (name, position, seen_at, kept_until) values \
         ('00000000-0000-0000-0000-000000000001', pg_current_snapshot(), now(), now() + interval '1 hour'), \
         ('00000000-0000-0000-0000-000000000002', '3:3:', now(), now() - interval '1 hour')",
    )
    .await;
    execute(&url, "update item set name = 'late' where id = 2").await;
    eventually("pruned", async || (keys(&url).await == ["2"]).then_some(())).await;
    execute(&url, "update item set name = 'later' where id = 3").await;
    eventually("the change", async || {
        (name(&get(&larder, 3).await) == "later").then_some(())
    })
    .await;
    assert_eq!(keys(&url).await, ["2", "3"]);
}

async fn keys(url: &str) -> Vec<String> {
    let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
    let keys = sqlx::query_scalar("select key from larder.change order by xid")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    keys
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_is_prompt() {
    let url = database().await;
    let larder = TestService::start_on(&url, ITEMS, &PROMPT).await;
    get(&larder, 1).await;
    tokio::time::timeout(Duration::from_secs(10), larder.stop())
        .await
        .expect("stopping hangs");
}
