//! What is sent, and what becomes of the rows.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use standardwebhooks::Webhook;

use super::sink::TestSink;
use super::{Bed, SUBSCRIBERS, subscribers};

/// The numbers of the rows that are due.
fn due() -> Vec<i64> {
    (1..=200).filter(|id| id % 10 != 0).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn due_rows_are_sent_once_and_rescheduled() {
    let both = "partition = ['worker', 'zone']\n";
    for (indexes, partition) in [
        ("", ""),
        ("create index on subscriber (notify_after)", ""),
        ("create index on subscriber (zone, worker)", both),
        (
            "create index on subscriber (worker, zone, notify_after)",
            both,
        ),
        ("", "partition = 'zone'\n"),
    ] {
        let sql = format!("{SUBSCRIBERS}; {indexes}");
        let toml = subscribers(&format!("{partition}interval = '1day'\nbatch = 7"));
        let bed = Bed::new(&sql, &toml, TestSink::start().await).await;
        bed.once(0).await;
        assert_eq!(bed.sink.rows(), due(), "{indexes}");
        let moved: i64 = bed
            .value(
                "select count(*) from subscriber where notify_after between now() + interval '23 h 59 min' \
                 and now() + interval '24 h'",
            )
            .await;
        assert_eq!(moved, 180, "{indexes}");
        assert_eq!(
            bed.value::<i64>("select count(*) from larder.delivery")
                .await,
            0
        );
        bed.once(0).await;
        assert_eq!(bed.sink.rows().len(), 180, "{indexes}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_those_of_standard_webhooks() {
    let [first, second, other] =
        [7, 8, 9].map(|byte| format!("whsec_{}", STANDARD.encode([byte; 24])));
    let more =
        format!("rows = 2\nheaders = {{ x-tenant = 'a' }}\nsecret = ['{first}', '{second}']");
    let toml = subscribers("interval = '1day'") + &more;
    let sql = "create table subscriber (id int primary key, notify_after timestamptz, sum numeric); \
               insert into subscriber values (1, '2026-01-02 03:04:05.6+00', 1.50), (2, '-infinity', null), \
               (3, '2026-01-02', 3)";
    let bed = Bed::new(sql, &toml, TestSink::start().await).await;
    bed.once(0).await;
    let received = bed.sink.received();
    assert_eq!(received.len(), 2);
    for one in &received {
        let id = one.header("webhook-id");
        // The library of the specification.
        for (secret, signs) in [(&first, true), (&second, true), (&other, false)] {
            let verified = Webhook::new(secret)
                .unwrap()
                .verify(one.text.as_bytes(), &one.headers);
            assert_eq!(verified.is_ok(), signs, "{verified:?}");
        }
        assert_eq!(one.header("x-tenant"), "a");
        assert_eq!(one.header("content-type"), "application/json");
        assert_eq!(one.json["type"], "larder.subscribers.due");
        assert_eq!(one.elements().len() > 1, id.starts_with("msgs_"));
    }
    let elements = bed.sink.elements();
    let of = |id: i64| elements.iter().find(|one| one["row"]["id"] == id).unwrap();
    let row = r#"{"id":1,"notify_after":"2026-01-02T03:04:05.6+00:00","sum":1.50}"#;
    assert_eq!(of(1)["row"].to_string(), row);
    assert_eq!(of(1)["attempt"], 1);
    assert_eq!(of(1)["due"], "2026-01-02T03:04:05.6+00:00");
    assert_eq!(of(2)["due"], "-infinity");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_moments_may_be_of_many_types() {
    let sql = "create type kind as enum ('b', 'a, %'); \
        create table job (a kind, \"B b\" text, due int8, wait int, primary key (\"B b\", a)); \
        insert into job values ('b', 'x,y', 0, 10), ('a, %', '', 100, 0), ('b', '%2C', 9000000000, 1), ('b', 'z', null, 1)";
    for (reschedule, expected) in [
        (
            "interval = '1h'",
            "due between extract(epoch from now()) + 3500 and extract(epoch from now()) + 3600",
        ),
        (
            "interval = '1h'\ninterval_from = 'due'",
            "due % 3600 in (0, 100) and due > extract(epoch from now())",
        ),
        (
            "next = '''extract(epoch from now()) + job.wait + 60 -- comment'''",
            "due < extract(epoch from now()) + 71",
        ),
        ("next = 'null'", "due is null"),
        ("delete = true", "false"),
    ] {
        let toml = format!(
            "[[dispatch]]\nname = 'jobs'\ntable = 'job'\ndue = 'due'\n{reschedule}\npoll_interval = '50ms'\n\
             [dispatch.sink]\nSINK\nrows = 1"
        );
        let bed = Bed::new(sql, &toml, TestSink::start().await).await;
        bed.once(0).await;
        let mut ids: Vec<String> = bed
            .sink
            .elements()
            .iter()
            .map(|one| one["row"]["B b"].to_string())
            .collect();
        ids.sort();
        assert_eq!(ids, [r#""""#, r#""x,y""#], "{reschedule}");
        let count = format!("select count(*) from job where {expected} and \"B b\" in ('', 'x,y')");
        let kept = if reschedule == "delete = true" { 0 } else { 2 };
        assert_eq!(bed.value::<i64>(&count).await, kept, "{reschedule}");
    }
}

/// Names of larder's statements were in scope of `next`.
#[tokio::test(flavor = "multi_thread")]
async fn tables_may_have_any_name() {
    for name in ["w", "l", "m", "wanted", "locked", "moved"] {
        let sql = format!(
            "create table {name} (id int primary key, due timestamptz, days int not null); \
             insert into {name} select n, now(), 2 from generate_series(1, 3) n"
        );
        let next =
            format!("{name}.due + (select sum(other.days) from {name} other) * interval '1 day'");
        let toml = format!(
            "[[dispatch]]\nname = 'd'\ntable = '{name}'\ndue = 'due'\nnext = \"{next}\"\npoll_interval = '50ms'\n\
             [dispatch.sink]\nSINK\n"
        );
        let bed = Bed::new(&sql, &toml, TestSink::start().await).await;
        bed.once(0).await;
        let moved =
            format!("select count(*) from {name} where due > now() + interval '5 days 23 hours'");
        assert_eq!(bed.value::<i64>(&moved).await, 3, "{name}");
    }
}

/// The row is sent again when its new moment comes, as a new delivery.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_application_changes_meanwhile_wins() {
    let (sink, mut requests) = TestSink::holding(|_| true).await;
    let toml = subscribers("interval = '1day'");
    let bed = Bed::new(SUBSCRIBERS, &toml, sink).await;
    let changing = async {
        let held = [
            requests.recv().await.unwrap(),
            requests.recv().await.unwrap(),
        ];
        bed.execute(
            "update subscriber set notify_after = '2100-01-01' where id = 1; delete from subscriber where id = 2; \
             update subscriber set notify_after = now() - interval '1 ms' where id = 3",
        )
        .await;
        drop(held);
        while let Some(answer) = requests.recv().await {
            drop(answer);
        }
    };
    tokio::select! {
        _ = bed.once(0) => {}
        () = changing => {}
    }
    let rows = bed.sink.rows();
    assert_eq!(
        (rows.len(), rows.iter().filter(|id| **id == 3).count()),
        (181, 2)
    );
    let elements = bed.sink.elements();
    let mut ids: Vec<_> = elements
        .iter()
        .filter(|one| one["row"]["id"] == 3)
        .map(|one| &one["id"])
        .collect();
    ids.dedup();
    assert_eq!(ids.len(), 2);
    let kept = "select count(*) from subscriber where id = 1 and notify_after = '2100-01-01'";
    assert_eq!(bed.value::<i64>(kept).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_is_rescheduled_later_and_sent_once() {
    let toml = subscribers("interval = '1day'\ntakeover = '60s'");
    let bed = Bed::new(SUBSCRIBERS, &toml, TestSink::start().await).await;
    let mut other = sqlx::PgConnection::connect(&bed.url).await.unwrap();
    use sqlx::Connection;
    let mut transaction = other.begin().await.unwrap();
    sqlx::query("select from subscriber where id = 7 for update")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let (_, ()) = tokio::join!(bed.once(0), async {
        let others = "select count(*) from subscriber where notify_after > now()";
        crate::harness::eventually("the other rows", async || {
            (bed.value::<i64>(others).await == 179).then_some(())
        })
        .await;
        transaction.commit().await.unwrap();
    });
    assert_eq!(bed.sink.rows(), due());
}

/// The rows are the documents of a resource, whose tiers stay fresh.
#[tokio::test(flavor = "multi_thread")]
async fn documents_of_a_resource_are_sent() {
    let sql = format!(
        "{SUBSCRIBERS}; create table device (id int primary key, subscriber int references subscriber, os text); \
         create index on device (subscriber); insert into device values (1, 4, 'linux')"
    );
    let resource = "[[resource]]\nname = 'subs'\ntable = 'subscriber'\nwhere = 'id < 6'\n\
        fields = { id = 'id', notify_after = 'due' }\n[[resource.children]]\nname = 'devices'\ntable = 'device'\n";
    let toml = format!(
        "{resource}[[dispatch]]\nname = 'd'\nresource = 'subs'\ndue = 'notify_after'\ninterval = '1day'\n\
         poll_interval = '50ms'\n[dispatch.sink]\nSINK"
    );
    let bed = Bed::new(&sql, &toml, TestSink::start().await).await;
    let larder = crate::harness::service::TestService::start_on(&bed.url, resource, &[]).await;
    let before = larder.get("/subs/4").await.json();
    bed.once(0).await;
    assert_eq!(bed.sink.rows(), [1, 2, 3, 4, 5]);
    let elements = bed.sink.elements();
    let sent = elements.iter().find(|one| one["row"]["id"] == 4).unwrap();
    assert_eq!(sent["row"], before);
    crate::harness::eventually("the new moment", async || {
        let now = larder.get("/subs/4").await;
        assert_eq!(now.status, 200);
        (now.json()["due"] != before["due"]).then_some(())
    })
    .await;
    let again = larder.admin("/status").await.json();
    assert_eq!(again["resources"][0]["ready"], true);
}
