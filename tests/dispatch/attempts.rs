//! Attempts that fail, dead letters, the circuit breaker.

use std::collections::HashMap;
use std::sync::Mutex;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use super::processes::Dispatching;
use super::sink::{Answer, TestSink};
use super::{Bed, SUBSCRIBERS, subscribers};
use crate::harness::eventually;

/// A sink that refuses these rows each time, by their `id`.
async fn refusing(rows: &'static [i64]) -> TestSink {
    TestSink::answering(move |_, one| {
        let refused = one
            .elements()
            .iter()
            .filter(|one| rows.contains(&one["row"]["id"].as_i64().unwrap()));
        let failed: Vec<Value> = refused
            .map(|one| json!({"id": one["id"], "error": "no\u{1b}"}))
            .collect();
        Answer::of(200, &json!({ "failed": failed }).to_string())
    })
    .await
}

/// How often each row came, and the ids under which it came.
fn attempts(sink: &TestSink) -> HashMap<i64, (usize, Vec<String>)> {
    let mut attempts: HashMap<i64, (usize, Vec<String>)> = HashMap::new();
    for element in sink.elements() {
        let of_row = attempts
            .entry(element["row"]["id"].as_i64().unwrap())
            .or_default();
        of_row.0 += 1;
        assert_eq!(element["attempt"], of_row.0);
        of_row.1.push(element["id"].as_str().unwrap().to_owned());
        of_row.1.dedup();
    }
    attempts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_row_is_tried_again_alone_and_becomes_a_dead_letter() {
    let toml = subscribers("interval = '1day'\nretry = ['0s', '0s']");
    let bed = Bed::new(SUBSCRIBERS, &toml, refusing(&[7, 8]).await).await;
    bed.once(1).await;
    let attempts = attempts(&bed.sink);
    assert_eq!(attempts.len(), 180);
    for (id, (count, ids)) in &attempts {
        let refused = [7, 8].contains(id);
        assert_eq!(
            (*count, ids.len()),
            (if refused { 3 } else { 1 }, 1),
            "{id}"
        );
    }
    let retries = bed
        .sink
        .received()
        .into_iter()
        .filter(|one| one.elements().iter().any(|one| one["attempt"] != 1));
    for retry in retries {
        assert_eq!(retry.elements().len(), 1);
        assert_eq!(retry.header("webhook-id"), retry.elements()[0]["id"]);
    }
    assert_eq!(
        bed.value::<i64>("select count(*) from larder.delivery")
            .await,
        0
    );
    assert_eq!(
        bed.value::<i64>("select count(*) from subscriber where notify_after < now()")
            .await,
        0
    );
    let (letters, _) = bed
        .run(&["dispatch", "--dead-letters", "subscribers"], 0)
        .await;
    let mut lines: Vec<&str> = letters.lines().skip(1).collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 2, "{letters}");
    assert!(
        lines[0].starts_with("7\t3\t") && lines[0].ends_with("\tno\\u{1b}"),
        "{letters}"
    );
    let told = bed.run(&["uninstall"], 1).await.1;
    assert!(
        told.contains("2 dead letters of dispatch subscribers"),
        "{told}"
    );
    bed.run(&["dispatch", "--replay", "subscribers", "7"], 1)
        .await;
    assert_eq!(attempts_of(&bed.sink, 7), 4);
    let discard = ["dispatch", "--discard", "subscribers", "7", "-42"];
    let told = bed.run(&discard, 1).await.1;
    assert!(told.contains("no dead letter with the key -42\n"), "{told}");
    let (letters, _) = bed
        .run(&["dispatch", "--dead-letters", "subscribers"], 0)
        .await;
    assert_eq!(letters.lines().count(), 2, "{letters}");
    bed.run(&["uninstall", "--dead-letters"], 0).await;
    let left = "select count(*) from pg_class where relnamespace = to_regnamespace('larder')";
    assert_eq!(bed.value::<i64>(left).await, 0);
}

fn attempts_of(sink: &TestSink, id: i64) -> usize {
    sink.rows().into_iter().filter(|row| *row == id).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replayed_letter_has_its_old_id_and_goes_once_it_is_taken() {
    let takes = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let does = std::sync::Arc::clone(&takes);
    let sink = TestSink::answering(move |_, _| {
        let takes = does.load(std::sync::atomic::Ordering::Relaxed);
        Answer::of(if takes { 200 } else { 500 }, "")
    });
    let toml = subscribers("delete = true\nretry = []").replace("SINK", "SINK\nrows = 1");
    let sql = "create table subscriber (id int primary key, notify_after timestamptz); \
               insert into subscriber values (1, now()), (2, now())";
    let bed = Bed::new(sql, &toml, sink.await).await;
    bed.once(1).await;
    assert_eq!(bed.value::<i64>("select count(*) from subscriber").await, 0);
    takes.store(true, std::sync::atomic::Ordering::Relaxed);
    bed.run(&["dispatch", "--replay", "subscribers"], 0).await;
    let mut ids: Vec<String> = bed
        .sink
        .elements()
        .iter()
        .map(|one| one["id"].to_string())
        .collect();
    ids.sort_unstable();
    assert_eq!((ids.len(), &ids[0], &ids[2]), (4, &ids[1], &ids[3]));
    assert_eq!(
        bed.value::<i64>("select count(*) from larder.dead_letter")
            .await,
        0
    );
}

/// Attempts count only while the row has the moment that larder has set.
#[tokio::test(flavor = "multi_thread")]
async fn a_moment_that_the_application_sets_is_a_new_delivery() {
    let toml = subscribers("interval = '1day'\nretry = ['1h']");
    let sql = "create table subscriber (id int primary key, notify_after timestamptz); \
               insert into subscriber values (1, now()), (2, '2026-01-01')";
    let bed = Bed::new(sql, &toml, refusing(&[1]).await).await;
    bed.once(0).await;
    assert_eq!(
        bed.value::<i32>("select attempts from larder.delivery")
            .await,
        1
    );
    let delayed = "select count(*) from subscriber where id = 1 and notify_after between now() + interval '47 min' \
                   and now() + interval '73 min'";
    assert_eq!(bed.value::<i64>(delayed).await, 1);
    bed.execute("update subscriber set notify_after = now() where id = 1")
        .await;
    bed.once(0).await;
    let elements = bed.sink.elements();
    let of_row: Vec<_> = elements
        .iter()
        .filter(|one| one["row"]["id"] == 1)
        .collect();
    assert_eq!(of_row.len(), 2);
    assert_eq!(of_row[1]["attempt"], 1);
    assert_ne!(of_row[0]["id"], of_row[1]["id"]);
    // The same moment is the same delivery.
    bed.execute("update subscriber set notify_after = '2026-01-01' where id = 2")
        .await;
    bed.once(0).await;
    let elements = bed.sink.elements();
    let mut ids: Vec<_> = elements
        .iter()
        .filter(|one| one["row"]["id"] == 2)
        .map(|one| &one["id"])
        .collect();
    ids.dedup();
    assert_eq!(ids.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_refuses_its_new_moment_is_stuck_and_holds_up_no_other() {
    for (refusal, why) in [
        (
            "alter table subscriber add check (id <> 7 or notify_after < now())",
            "check",
        ),
        (
            "create function no() returns trigger language plpgsql as $$ begin \
             if new.id = 7 then raise exception 'not this one' using errcode = 'UX001'; end if; return new; end $$; \
             create trigger no before update on subscriber for each row execute function no()",
            "not this one",
        ),
        (
            "create function no() returns trigger language plpgsql as $$ begin \
             if new.id = 7 then return null; end if; return new; end $$; \
             create trigger no before update on subscriber for each row execute function no()",
            "keeps the row as it is",
        ),
    ] {
        let toml = subscribers("interval = '1day'");
        let sink = TestSink::start().await;
        let bed = Bed::new(&format!("{SUBSCRIBERS}; {refusal}"), &toml, sink).await;
        bed.once(1).await;
        assert_eq!(bed.sink.rows().len(), 180);
        let late = "select array_agg(id) from subscriber where notify_after < now()";
        assert_eq!(bed.value::<Vec<i32>>(late).await, [7]);
        let (letters, _) = bed
            .run(&["dispatch", "--dead-letters", "subscribers"], 0)
            .await;
        assert!(
            letters.contains("\tstuck: ") && letters.contains(why),
            "{letters}"
        );
        // It is sent no more, until its moment changes or it is replayed.
        bed.once(0).await;
        assert_eq!(bed.sink.rows().len(), 180);
        bed.run(&["dispatch", "--replay", "subscribers"], 0).await;
        bed.once(1).await;
        assert_eq!(bed.sink.rows().len(), 181, "{why}");
    }
}

/// What comes earlier than the matched moment would be due for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_moment_that_is_not_later_is_an_error_of_the_row() {
    let toml = subscribers(
        "next = '''case id when 3 then notify_after else now() + interval '1 day' end'''",
    );
    let bed = Bed::new(SUBSCRIBERS, &toml, TestSink::start().await).await;
    bed.once(1).await;
    let stuck = "select array_agg(key) from larder.dead_letter where is_stuck";
    assert_eq!(bed.value::<Vec<String>>(stuck).await, ["3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_takes_nothing_costs_no_attempts() {
    for (status, more) in [(503, ""), (429, ""), (410, "")] {
        let toml = subscribers(&format!("interval = '1day'\n{more}"));
        let sink = TestSink::answering(move |_, _| Answer::of(status, ""));
        let bed = Bed::new(SUBSCRIBERS, &toml, sink.await).await;
        let told = bed.once(1).await;
        assert!(told.contains(&status.to_string()), "{told}");
        assert_eq!(
            bed.value::<i64>("select count(*) from larder.delivery")
                .await,
            0
        );
        assert_eq!(
            bed.value::<i64>("select count(*) from subscriber where notify_after > now()")
                .await,
            0
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_requests_fail_all_of_their_rows_until_the_breaker_opens() {
    let failed = Mutex::new(0);
    let sink = TestSink::answering(move |_, one| {
        let is_retry = one.elements().iter().any(|one| one["attempt"] != 1);
        let mut failed = failed.lock().unwrap();
        let fails = !is_retry && *failed < 3;
        *failed += usize::from(fails);
        Answer::of(if fails { 500 } else { 200 }, "")
    });
    let toml =
        subscribers("interval = '1day'\nretry = ['0s', '0s']") + "rows = 10\nconcurrency = 1";
    let bed = Bed::new(SUBSCRIBERS, &toml, sink.await).await;
    bed.once(0).await;
    let counts = attempts(&bed.sink);
    let twice = counts.values().filter(|(count, _)| *count == 2).count();
    assert_eq!((counts.len(), twice), (180, 30));
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_once_sends_nothing_twice() {
    let sink = TestSink::answering(|number, _| match number {
        0 => Answer::of(500, ""),
        1 => Answer::of(200, "{\"failed\":[{\"id\":\"x\"}]}"),
        _ => Answer::of(200, ""),
    });
    let toml = subscribers("interval = '1day'\ndelivery = 'at-most-once'") + "rows = 50";
    let bed = Bed::new(SUBSCRIBERS, &toml, sink.await).await;
    bed.once(1).await;
    assert_eq!(bed.sink.rows().len(), 180);
    let failed = i64::try_from(bed.sink.received()[0].elements().len()).unwrap();
    let letters = "select count(*) from larder.dead_letter";
    assert_eq!(bed.value::<i64>(letters).await, failed);
    assert_eq!(
        bed.value::<i64>("select count(*) from subscriber where notify_after <= now()")
            .await,
        0
    );
}

/// A session that is idle for `takeover` would be ended, and with it all that was taken.
#[tokio::test(flavor = "multi_thread")]
async fn at_most_once_loses_nothing_to_a_slow_sink() {
    let (sink, mut requests) = TestSink::holding(|_| true).await;
    let toml = subscribers("interval = '1day'\ndelivery = 'at-most-once'\ntakeover = '1s'")
        + "rows = 60\nconcurrency = 1";
    let bed = Bed::new(SUBSCRIBERS, &toml, sink).await;
    let answering = async {
        while let Some(answer) = requests.recv().await {
            tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
            drop(answer);
        }
    };
    tokio::select! {
        _ = bed.once(0) => {}
        () = answering => {}
    }
    assert_eq!(bed.sink.rows().len(), 180);
}

/// What was taken and not sent gets its due moment back, and is sent by the next connection.
#[tokio::test(flavor = "multi_thread")]
async fn at_most_once_gives_back_what_a_lost_connection_leaves() {
    let (sink, mut requests) = TestSink::holding(|_| true).await;
    let toml = subscribers("interval = '1day'\ndelivery = 'at-most-once'\ntakeover = '2s'")
        + "rows = 10\nconcurrency = 1";
    let bed = Bed::new(SUBSCRIBERS, &toml, sink).await;
    let cutting = async {
        let mut is_first = true;
        while let Some(answer) = requests.recv().await {
            if std::mem::take(&mut is_first) {
                bed.execute(
                    "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' \
                     and database = (select oid from pg_database where datname = current_database())",
                )
                .await;
            }
            // The sink is slow, so that the loss is noticed before all is sent.
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            drop(answer);
        }
    };
    tokio::select! {
        _ = bed.once(0) => {}
        () = cutting => {}
    }
    assert_eq!(bed.sink.rows().len(), 180);
}

/// Only the row is at fault, whatever error its trigger raises.
#[tokio::test(flavor = "multi_thread")]
async fn errors_of_triggers_repeat_no_other_row() {
    for (body, why) in [
        ("perform 1 from nowhere;", "nowhere"),
        (
            "update subscriber set endpoint = '' where id = 7;",
            "tuple to be updated",
        ),
        ("new.notify_after := old.notify_after;", "not later"),
    ] {
        let trigger = format!(
            "create function odd() returns trigger language plpgsql as $$ begin \
             if new.id = 7 and pg_trigger_depth() = 1 then {body} end if; return new; end $$; \
             create trigger odd before update on subscriber for each row execute function odd()"
        );
        let sink = TestSink::start().await;
        let toml = subscribers("interval = '1day'");
        let bed = Bed::new(&format!("{SUBSCRIBERS}; {trigger}"), &toml, sink).await;
        bed.once(1).await;
        assert_eq!(bed.sink.rows().len(), 180, "{why}");
        let (letters, _) = bed
            .run(&["dispatch", "--dead-letters", "subscribers"], 0)
            .await;
        assert!(
            letters.contains("\tstuck: ") && letters.contains(why),
            "{letters}"
        );
    }
}

/// What was delivered and can't be rescheduled now is rescheduled later, and not sent again.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_makes_no_row_come_twice() {
    use sqlx::Connection;

    let toml = subscribers("interval = '1day'");
    let sql = format!(
        "{SUBSCRIBERS}; update subscriber set notify_after = null; create index on subscriber (notify_after)"
    );
    let bed = Bed::new(&sql, &toml, TestSink::start().await).await;
    let file = bed.directory.path().join("larder.toml");
    let quick = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        format!("database.statement_timeout = '300ms'\n{quick}"),
    )
    .unwrap();
    let dispatching = super::processes::Dispatching::start(&bed).await;
    bed.execute("update subscriber set notify_after = now() + interval '1 s'")
        .await;
    let mut other = sqlx::PgConnection::connect(&bed.url).await.unwrap();
    let mut transaction = other.begin().await.unwrap();
    sqlx::raw_sql("lock table subscriber in share mode")
        .execute(&mut *transaction)
        .await
        .unwrap();
    crate::harness::eventually("errors", async || {
        let log = std::fs::read_to_string(&dispatching.log).unwrap();
        (log.matches("statement_timeout").count() > 1).then_some(())
    })
    .await;
    transaction.commit().await.unwrap();
    let late = "select count(*) from subscriber where notify_after <= now()";
    crate::harness::eventually("all are rescheduled", async || {
        (bed.value::<i64>(late).await == 0).then_some(())
    })
    .await;
    dispatching.terminate().await;
    assert_eq!(bed.sink.rows().len(), 200);
}

/// One row that could not go back kept all others from it, and nothing told of them.
#[tokio::test(flavor = "multi_thread")]
async fn at_most_once_gives_back_what_it_can_and_tells_of_the_rest() {
    let (sink, mut requests) = TestSink::holding(|_| true).await;
    let toml = subscribers("interval = '1day'\ndelivery = 'at-most-once'\ntakeover = '2s'")
        + "rows = 10\nconcurrency = 1\ntimeout = '30s'";
    let refusal = "create function no() returns trigger language plpgsql as $$ begin \
        if new.notify_after < old.notify_after then \
          if new.id = 77 then raise exception 'not back'; end if; \
          if new.id = 78 then new.notify_after := old.notify_after; end if; \
        end if; return new; end $$; \
        create trigger no before update on subscriber for each row execute function no()";
    let bed = Bed::new(&format!("{SUBSCRIBERS}; {refusal}"), &toml, sink).await;
    let mut locking = PgConnection::connect(&bed.url).await.unwrap();
    let mut dispatching = Dispatching::start(&bed).await;
    let held = requests.recv().await.unwrap();
    let lock = "begin; select from subscriber where id = 75 for update";
    sqlx::raw_sql(lock).execute(&mut locking).await.unwrap();
    dispatching.signal(Signal::SIGTERM);
    eventually("no further request can come", async || {
        let log = std::fs::read_to_string(&dispatching.log).unwrap();
        log.contains("stopping").then_some(())
    })
    .await;
    drop(held);
    assert!(dispatching.ended().await.success());
    locking.close().await.unwrap();
    let sent = bed.sink.rows().len();
    let (due, letters): (i64, Vec<String>) = (
        bed.value("select count(*) from subscriber where notify_after < now()")
            .await,
        bed.value("select array_agg(key order by key) from larder.dead_letter")
            .await,
    );
    assert_eq!(letters, ["75", "77", "78"]);
    assert_eq!(sent + usize::try_from(due).unwrap() + letters.len(), 180);
}
