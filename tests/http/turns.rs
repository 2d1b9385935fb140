//! Requests for many documents let others be served meanwhile.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use axum::http::StatusCode;

use crate::harness::service::{TestResponse, TestService};
use crate::harness::table_locks::{await_waiter, lock_table, unlock};

const NOTES: usize = 1_000;
const SCHEMA: &str = "
    create table note (id bigint primary key, body text);
    insert into note select n, repeat('x', 20) from generate_series(1, 1000) n;";
const CONFIG: &str = "
    [[resource]]
    name = 'notes'
    table = 'note'
    tiers = ['memory']";

/// A larder that has all notes in memory, and the path of a batch of all.
async fn larder() -> (TestService, String) {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    let keys: Vec<String> = (1..=NOTES).map(|id| id.to_string()).collect();
    let batch = format!("/notes?keys={}", keys.join(","));
    assert_eq!(larder.get(&batch).await.status, StatusCode::OK);
    (larder, batch)
}

/// Requests `path`, and counts in `pauses` how often other requests could be served meanwhile.
async fn get_counting(larder: &TestService, path: &str, pauses: &Cell<usize>) -> TestResponse {
    let mut answer = pin!(larder.get(path));
    poll_fn(|context| {
        let polled = answer.as_mut().poll(context);
        pauses.set(pauses.get() + usize::from(polled.is_pending()));
        polled
    })
    .await
}

/// A batch of 1,000 documents in memory was looked up and composed in one go. On a busy machine that took more than a
/// millisecond, for which hits waited.
#[tokio::test]
async fn a_batch_from_memory_is_made_in_parts() {
    let (larder, batch) = larder().await;
    let pauses = Cell::default();
    let answer = get_counting(&larder, &batch, &pauses).await;
    assert_eq!(answer.json()["documents"].as_array().unwrap().len(), NOTES);
    assert!((8..=12).contains(&pauses.get()), "{pauses:?}");
    // A repeated key costs no second lookup.
    let repeated = format!("/notes?keys={}", ["7"; NOTES].join(","));
    pauses.set(0);
    let answer = get_counting(&larder, &repeated, &pauses).await;
    assert_eq!(answer.json()["documents"].as_array().unwrap().len(), NOTES);
    assert!((1..=4).contains(&pauses.get()), "{pauses:?}");
}

/// Requests that wait for their turn hold no parsed keys and no documents, so a turn lasts for all parts of a batch.
#[tokio::test]
async fn batches_from_memory_are_made_one_after_another() {
    let (larder, batch) = larder().await;
    let (first, second) = (Cell::default(), Cell::default());
    let mut begun = pin!(get_counting(&larder, &batch, &first));
    let mut waiting = pin!(get_counting(&larder, &batch, &second));
    let mut at_end = None;
    let answer = poll_fn(|context| {
        if at_end.is_none() && begun.as_mut().poll(context).is_ready() {
            at_end = Some(second.get());
        }
        match waiting.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(answer),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    assert_eq!(answer.status, StatusCode::OK);
    let after = second.get() - at_end.unwrap();
    assert!(after >= 8, "{after} pauses after the first batch");
}

/// A list with a long query kept its turn while PostgreSQL answered, and batches waited for it.
#[tokio::test]
async fn a_list_that_waits_for_postgresql_keeps_no_turn() {
    let (larder, batch) = larder().await;
    let mut holder = lock_table(&larder.url, "note").await;
    let fields = ["body"; 300].join(",");
    let list = format!("/notes?limit=20&fields={fields}");
    let beside = async {
        await_waiter(&mut holder, "note").await;
        let answer = larder.get(&batch).await;
        unlock(holder).await;
        answer
    };
    let (list, answer) = tokio::join!(larder.get(&list), beside);
    assert_eq!(list.status, StatusCode::OK, "{}", list.body);
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
}
