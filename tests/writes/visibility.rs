//! Reads that begin after the answer of a write see it.

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::harness::eventually;
use crate::harness::service::TestService;
use crate::writes::{dept, start};

#[tokio::test(flavor = "multi_thread")]
async fn every_read_after_the_answer_sees_it() {
    let larder = start().await;
    larder.post("/depts", &dept(1)).await;
    for round in 0..200 {
        // Both documents are in memory.
        assert_eq!(larder.get("/depts/1").await.status, StatusCode::OK);
        assert_eq!(larder.get("/emps/10").await.status, StatusCode::OK);
        let name = format!("K{round}");
        let mut document = dept(1);
        document["emps"][0]["name"] = json!(name);
        let answer = larder.put("/depts/1", &document).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        let read = larder.get("/depts/1").await;
        assert_eq!(read.body, answer.body);
        // The same table feeds another resource.
        assert_eq!(larder.get("/emps/10").await.json()["name"], name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_users_trigger_writes_is_seen_too() {
    let larder = TestService::start(
        "create table item (id int primary key, label text);
         create table total (one int primary key, items int);
         insert into total values (1, 0);
         create function count_items() returns trigger language plpgsql as $$ begin
           update total set items = (select count(*) from item); return null; end $$;
         create trigger counts after insert or delete on item execute function count_items();",
        "[[resource]]\nname = 'items'\ntable = 'item'\n[[resource]]\nname = 'totals'\ntable = 'total'\n",
    )
    .await;
    for no in 1..=50 {
        assert_eq!(larder.get("/totals/1").await.json()["items"], no - 1);
        let answer = larder
            .post("/items", &json!({"id": no, "label": "x"}))
            .await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        assert_eq!(larder.get("/totals/1").await.json()["items"], no);
    }
}

/// Without the wait for the pass, or without a pass for the write, a hit would show the document before the write.
#[tokio::test(flavor = "multi_thread")]
async fn the_answer_waits_for_a_pass_of_its_own() {
    let slow = "[feed]\nnotify = false\npoll_interval = '5min'\nmax_staleness = '10min'\n";
    let config = "[[resource]]\nname = 'items'\ntable = 'item'\n";
    let schema =
        "create table item (id int primary key, label text); insert into item values (1, 'old')";
    let larder = TestService::start(schema, &format!("{slow}{config}")).await;
    for round in 0..20 {
        eventually("a hit", async || {
            larder
                .get("/items/1")
                .await
                .cache_status()
                .contains("detail=memory")
                .then_some(())
        })
        .await;
        let label = round.to_string();
        let answer = larder.put("/items/1", &json!({"label": label})).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        assert_eq!(larder.get("/items/1").await.json()["label"], label);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_serves_other_nodes() {
    let larder = start().await;
    let slow = [
        ("feed.notify", "false"),
        ("feed.poll_interval", "50s"),
        ("feed.max_staleness", "99s"),
    ];
    let other = TestService::start_on(&larder.url, super::CONFIG, &slow).await;
    assert_eq!(other.get("/depts/1").await.status, StatusCode::NOT_FOUND);
    let answer = larder.post("/depts", &dept(1)).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let token = [("larder-token", answer.header("larder-token"))];
    let read = other.request(Method::GET, "/depts/1", &token).await;
    assert_eq!(read.body, answer.body);
}

/// Another larder begins a new epoch, for example because its configuration has more tables: connections that are
/// opened before the feed has noticed that must not be used, and no request fails because of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_epoch_fails_no_request() {
    let config = "[[resource]]\nname = 'items'\ntable = 'item'\n";
    let schema = "create table item (id int primary key, label text)";
    let larder = TestService::start(schema, config).await;
    let mut answered = Vec::new();
    // On a slow machine the feed may need longer than requests wait for it.
    for id in 1..=3 {
        larder
            .execute("update larder.epoch set nonce = gen_random_uuid()")
            .await;
        let item = json!({"id": id, "label": "x"});
        let (read, written) = tokio::join!(larder.get("/items/9"), larder.post("/items", &item));
        answered.push((read.status, written.status));
    }
    let expected = (StatusCode::NOT_FOUND, StatusCode::CREATED);
    assert!(answered.contains(&expected), "{answered:?}");
}
