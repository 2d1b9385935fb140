//! Sinks that hang, want a pause, or refuse rows at random.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::header::RETRY_AFTER;
use fastrand::Rng;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::processes::Dispatching;
use super::sink::{Answer, TestSink};
use super::{Bed, SUBSCRIBERS, subscribers};
use crate::harness::eventually;

/// How much is known of failures.
const FAILURES: &str =
    "select (select count(*) from larder.dead_letter) + (select count(*) from larder.delivery)";

/// A request that is never answered fails all of its rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_hangs_costs_an_attempt_after_the_timeout() {
    let (hangs, wait) = oneshot::channel();
    let wait = Mutex::new(Some(wait));
    let sink = TestSink::answering(move |_, _| Answer {
        wait: wait.lock().unwrap().take(),
        ..Answer::of(200, "")
    });
    let toml = subscribers("interval = '1day'\nretry = ['0s']")
        + "rows = 10\nconcurrency = 1\ntimeout = '1s'";
    let bed = Bed::new(SUBSCRIBERS, &toml, sink.await).await;
    bed.once(0).await;
    drop(hangs);
    let received = bed.sink.received();
    let pause = received[1].at.duration_since(received[0].at).unwrap();
    // The timeout begins before the first request arrives.
    assert!(pause >= Duration::from_millis(950), "{pause:?}");
    let mut attempts: HashMap<i64, Vec<i64>> = HashMap::new();
    for element in bed.sink.elements() {
        let id = element["row"]["id"].as_i64().unwrap();
        let of_row = attempts.entry(id).or_default();
        of_row.push(element["attempt"].as_i64().unwrap());
    }
    assert_eq!(attempts.len(), 180);
    for element in received[0].elements() {
        let id = element["row"]["id"].as_i64().unwrap();
        assert_eq!(attempts.remove(&id).unwrap(), [1, 2]);
    }
    assert!(attempts.values().all(|of_row| *of_row == [1]));
    assert_eq!(bed.value::<i64>(FAILURES).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_wants_a_pause_gets_it_and_then_all_rows_at_their_first_attempt() {
    let sink = TestSink::answering(|number, _| {
        let mut answer = Answer::of(if number == 0 { 429 } else { 200 }, "");
        let headers = answer.response.headers_mut();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("3"));
        answer
    });
    let toml = subscribers("interval = '1day'\nretry = []") + "rows = 10\nconcurrency = 1";
    let bed = Bed::new(SUBSCRIBERS, &toml, sink.await).await;
    let dispatching = Dispatching::start(&bed).await;
    let late = "select count(*) from subscriber where notify_after <= now()";
    eventually("all rows", async || {
        (bed.value::<i64>(late).await == 0).then_some(())
    })
    .await;
    dispatching.terminate().await;
    let received = bed.sink.received();
    let pause = received[1].at.duration_since(received[0].at).unwrap();
    assert!(pause >= Duration::from_secs(3), "{pause:?}");
    let elements = bed.sink.elements();
    assert!(elements.iter().all(|one| one["attempt"] == 1));
    // Those of the first request came twice.
    assert_eq!(elements.len(), 180 + received[0].elements().len());
    assert_eq!(bed.value::<i64>(FAILURES).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_fail_at_random_are_all_delivered_in_the_end() {
    let rng = Mutex::new(Rng::with_seed(7));
    let taken = std::sync::Arc::new(Mutex::new(HashMap::<String, usize>::new()));
    let takes = std::sync::Arc::clone(&taken);
    let sink = TestSink::answering(move |_, one| {
        let mut failed = Vec::new();
        for element in one.elements() {
            if rng.lock().unwrap().usize(..10) == 0 {
                failed.push(json!({"id": element["id"], "error": "bad luck"}));
            } else {
                let id = element["id"].as_str().unwrap().to_owned();
                *takes.lock().unwrap().entry(id).or_default() += 1;
            }
        }
        Answer::of(200, &json!({ "failed": failed }).to_string())
    });
    let retries = ["'0s'"; 12].join(", ");
    let toml = subscribers(&format!("interval = '1day'\nretry = [{retries}]"));
    let bed = Bed::new(SUBSCRIBERS, &toml, sink.await).await;
    bed.once(0).await;
    let sent = bed.sink.elements();
    let again: Vec<&Value> = sent.iter().filter(|one| one["attempt"] != 1).collect();
    assert!(!again.is_empty());
    let taken = std::mem::take(&mut *taken.lock().unwrap());
    assert_eq!(taken.len(), 180);
    assert!(taken.values().all(|times| *times == 1));
    assert_eq!(bed.value::<i64>(FAILURES).await, 0);
}

/// The pause of the breaker was over when the run looked at it.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_sink_refuses_all_requests_fails() {
    let toml = subscribers("interval = '1day'").replace("'50ms'", "'3s'") + "rows = 10";
    let sink = TestSink::answering(|_, _| Answer::of(500, "")).await;
    let bed = Bed::new(SUBSCRIBERS, &toml, sink).await;
    let told = bed.once(1).await;
    assert!(told.contains(": 0 rows were delivered"), "{told}");
}
