//! Pausing, stopping, other sinks, other commands.

use std::process::Stdio;

use nix::sys::signal::Signal;
use testkit::http::Request;
use tokio::io::AsyncReadExt;

use super::processes::Dispatching;
use super::sink::TestSink;
use super::{Bed, SUBSCRIBERS, subscribers};
use crate::harness::cluster::TestRole;
use crate::harness::eventually;
use crate::harness::larder_process::{self, command, stderr, stdout};
use crate::harness::raw_http::{fetch, send};

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_holds_for_all_processes_and_after_a_restart() {
    let toml = subscribers("interval = '1day'");
    let sql = format!(
        "{SUBSCRIBERS}; update subscriber set notify_after = null; create index on subscriber (notify_after)"
    );
    let bed = Bed::new(&sql, &toml, TestSink::start().await).await;
    let [first, second] = [
        Dispatching::start(&bed).await,
        Dispatching::start(&bed).await,
    ];
    let paused = fetch(first.admin, "POST", "/dispatch/subscribers/pause").await;
    assert_eq!(paused.status, 204);
    eventually("the other one knows", async || {
        let status = fetch(second.admin, "GET", "/status").await.json();
        (status["dispatches"][0]["paused"] == true).then_some(())
    })
    .await;
    bed.execute("update subscriber set notify_after = now()")
        .await;
    let told = bed.once(1).await;
    assert!(
        bed.sink.received().is_empty() && told.contains("it is paused"),
        "{told}"
    );
    assert_eq!(
        fetch(second.admin, "POST", "/dispatch/subscribers/resume")
            .await
            .status,
        204
    );
    eventually("all rows", async || {
        (bed.sink.rows().len() == 200).then_some(())
    })
    .await;
    assert_eq!(
        fetch(second.admin, "POST", "/dispatch/other/pause")
            .await
            .status,
        404
    );
    let metrics = fetch(first.admin, "GET", "/metrics").await.body;
    assert!(
        metrics.contains("larder_dispatch_paused{dispatch=\"subscribers\"} 0"),
        "{metrics}"
    );
    for process in [first, second] {
        process.terminate().await;
    }
}

/// The advised index had no effect on a running process.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_is_created_meanwhile_is_used() {
    let toml = subscribers("interval = '1day'");
    let sql = format!("{SUBSCRIBERS}; update subscriber set notify_after = null");
    let bed = Bed::new(&sql, &toml, TestSink::start().await).await;
    let dispatching = Dispatching::start(&bed).await;
    bed.execute("create index on subscriber (notify_after)")
        .await;
    eventually("the index is known", async || {
        let status = fetch(dispatching.admin, "GET", "/status").await.json();
        (status["dispatches"][0]["due_indexed"] == true).then_some(())
    })
    .await;
    bed.execute("update subscriber set notify_after = now()")
        .await;
    eventually("all rows", async || {
        (bed.sink.rows().len() == 200).then_some(())
    })
    .await;
    dispatching.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_privileges_are_told_with_their_grants() {
    let toml = subscribers("interval = '1day'");
    let owner = Bed::new(SUBSCRIBERS, &toml, TestSink::start().await).await;
    let role = TestRole::create(&owner.url).await;
    let grant = |privilege: &str| format!("grant {privilege} to \"{}\";", role.name);
    let update = grant("update (\"notify_after\") on \"public\".\"subscriber\"");
    let run = async |args: &[&str]| {
        let output = larder_process::run(owner.directory.path(), Some(&role.url), args).await;
        let told = stdout(&output) + &stderr(&output);
        (output.status.code().unwrap(), told)
    };
    let once = ["dispatch", "--once", "--admin", "127.0.0.1:0"];
    let (code, told) = run(&once).await;
    assert!(
        code != 0 && told.contains("grant create on database"),
        "{told}"
    );
    // The role of another command owns the schema.
    owner.execute("create schema larder").await;
    let create = grant("create, usage on schema larder");
    let (code, told) = run(&["check"]).await;
    assert!(code != 0 && told.contains(&create), "{told}");
    let (code, told) = run(&once).await;
    assert!(
        code != 0 && told.contains("run `larder install` as"),
        "{told}"
    );
    // Another role runs the script.
    let (code, script) = run(&["install", "--print"]).await;
    assert!(code == 0 && script.contains(&update), "{script}");
    owner.execute(&script).await;
    for lost in ["update on subscriber", "usage on schema larder"] {
        owner
            .execute(&format!("revoke {lost} from {}", role.name))
            .await;
    }
    let usage = grant("usage on schema larder");
    for (args, expected) in [
        (&once[..], [&usage, &usage]),
        (&["check"], [&usage, &update]),
    ] {
        let (code, told) = run(args).await;
        assert!(code != 0, "{told}");
        assert!(expected.iter().all(|grant| told.contains(*grant)), "{told}");
    }
    owner.execute(&usage).await;
    let (_, told) = run(&once).await;
    assert!(told.contains(&update), "{told}");
    assert!(owner.sink.received().is_empty());
    owner.execute(&update).await;
    assert_eq!(run(&once).await.0, 0);
    assert_eq!(owner.sink.rows().len(), 180);
    // Privileges on columns suffice; they do not include the system columns.
    let columns = "select string_agg(quote_ident(attname), ', ') from pg_attribute \
                   where attrelid = 'subscriber'::regclass and attnum > 0";
    let columns: String = owner.value(columns).await;
    owner
        .execute(&format!(
            "revoke select on subscriber from {role}; grant select ({columns}) on subscriber to {role}; \
             update subscriber set notify_after = now()",
            role = role.name
        ))
        .await;
    let (code, told) = run(&once).await;
    assert_eq!((code, owner.sink.rows().len()), (0, 380), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_is_awaited_and_rescheduled() {
    let (sink, mut requests) = TestSink::holding(|_| true).await;
    let toml = subscribers("interval = '1day'") + "rows = 10\nconcurrency = 2";
    let bed = Bed::new(SUBSCRIBERS, &toml, sink).await;
    let mut dispatching = Dispatching::start(&bed).await;
    let held = [
        requests.recv().await.unwrap(),
        requests.recv().await.unwrap(),
    ];
    dispatching.signal(Signal::SIGTERM);
    eventually("no further request can come", async || {
        let log = std::fs::read_to_string(&dispatching.log).unwrap();
        log.contains("stopping").then_some(())
    })
    .await;
    drop(held);
    assert!(dispatching.ended().await.success());
    assert_eq!(bed.sink.received().len(), 2);
    let moved = "select count(*) from subscriber where notify_after > now()";
    assert_eq!(bed.value::<i64>(moved).await, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn stdout_gets_a_line_a_row_and_may_be_closed() {
    let toml = subscribers("interval = '1day'").replace("SINK", "type = 'stdout'\nrows = 10");
    let bed = Bed::new(SUBSCRIBERS, &toml, TestSink::start().await).await;
    let args = ["dispatch", "--once", "--admin", "127.0.0.1:0"];
    let (lines, _) = bed.run(&args, 0).await;
    let mut ids: Vec<i64> = lines
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["row"]["id"]
                .as_i64()
                .unwrap()
        })
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 180);
    bed.execute("update subscriber set notify_after = now()")
        .await;
    let mut larder = command(bed.directory.path(), Some(&bed.url), &args);
    let mut larder = larder
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(larder.stdout.take());
    let mut told = String::new();
    larder
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut told)
        .await
        .unwrap();
    assert_eq!(larder.wait().await.unwrap().code(), Some(1), "{told}");
    assert!(told.contains("stdout is closed"), "{told}");
}

/// Its role owns the tables of `larder dispatch`, and that of `serve` may not read them.
#[tokio::test(flavor = "multi_thread")]
async fn serve_needs_none_of_it() {
    let toml = subscribers("interval = '1day'");
    let bed = Bed::new(SUBSCRIBERS, &toml, TestSink::start().await).await;
    bed.once(0).await;
    let served = format!(
        "{}[[resource]]\nname = 's'\ntable = 'subscriber'",
        toml.replace("SINK", "type = 'discard'")
    );
    let larder = crate::harness::service::TestService::start_on(&bed.url, &served, &[]).await;
    assert_eq!(larder.get("/s/1").await.status, 200);
    // Without any resource it serves its admin address.
    let empty = crate::harness::service::TestService::start_on(
        &bed.url,
        &toml.replace("SINK", "type = 'discard'"),
        &[],
    )
    .await;
    assert_eq!(empty.admin("/readyz").await.status, 200);
    bed.run(&["install"], 0).await;
    let (script, _) = bed.run(&["install", "--print"], 0).await;
    assert!(
        script.contains("create table if not exists larder.dead_letter"),
        "{script}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seeded_table_is_sent_by_the_section_that_seed_prints() {
    let bed = Bed::new("", &subscribers("delete = true"), TestSink::start().await).await;
    let (section, _) = bed.run(&["seed", "--subscribers", "500"], 0).await;
    let url = "http://127.0.0.1:8000/hook";
    assert!(section.contains(url), "{section}");
    let file = bed.directory.path().join("larder.toml");
    std::fs::write(file, section.replace(url, &bed.sink.url)).unwrap();
    bed.once(0).await;
    assert!(bed.sink.rows().into_iter().eq(1..=500));
}

/// Without the token the page asks for it; its files must not tell anything else.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_needs_no_token_and_what_it_shows_does() {
    const TOKEN: &str = "0123456789abcdef0123456789abcdef";
    let toml = format!(
        "{}[auth]\nadmin_token = '{TOKEN}'",
        subscribers("interval = '1day'")
    );
    let bed = Bed::new(SUBSCRIBERS, &toml, TestSink::start().await).await;
    let dispatching = Dispatching::start(&bed).await;
    let page = fetch(dispatching.admin, "GET", "/").await;
    let files = page
        .body
        .split('"')
        .filter(|part| part.starts_with("dashboard/"));
    let files: Vec<String> = files.map(|file| format!("/{file}")).collect();
    assert!(files.contains(&"/dashboard/dispatch.js".to_owned()));
    for file in files.iter().map(String::as_str).chain(["/"]) {
        let answer = fetch(dispatching.admin, "GET", file).await;
        assert_eq!(answer.status, 200, "{file}");
        let policy = answer.header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'"),
            "{file}"
        );
    }
    let path = "/dispatch/subscribers/pause";
    for (method, path) in [("GET", "/status"), ("GET", "/metrics"), ("POST", path)] {
        let answer = fetch(dispatching.admin, method, path).await;
        assert_eq!(answer.status, 401, "{path}");
    }
    let request = Request::get("/status").with("authorization", format!("Bearer {TOKEN}"));
    let status = eventually("all rows", async || {
        let answer = send(dispatching.admin, request.clone()).await;
        let status = answer.json()["dispatches"][0].clone();
        (status["delivered"] == 180).then_some(status)
    })
    .await;
    assert!(status["rate"].as_f64().unwrap() > 1.0, "{status}");
    dispatching.terminate().await;
}

/// Slots that are worked on or wait for that are not looked at: their backlog was shown as no lag.
#[tokio::test(flavor = "multi_thread")]
async fn the_lag_is_also_that_of_slots_that_are_not_looked_at() {
    let (sink, mut requests) = TestSink::holding(|_| true).await;
    let toml = subscribers("interval = '1day'\npartition = 'zone'");
    let sql = format!(
        "{SUBSCRIBERS}; update subscriber set notify_after = null where zone = 0; \
         create index on subscriber (zone, notify_after)"
    );
    let bed = Bed::new(&sql, &toml, sink).await;
    let dispatching = Dispatching::start(&bed).await;
    let status = async || {
        let status = fetch(dispatching.admin, "GET", "/status").await.json();
        status["dispatches"][0].clone()
    };
    let held = requests.recv().await.unwrap();
    // The poller looks for due rows between two pauses.
    for is_paused in [true, false, true] {
        let sql = format!(
            "insert into larder.dispatch (name, is_paused) values ('subscribers', {is_paused}) \
             on conflict (name) do update set is_paused = excluded.is_paused"
        );
        bed.execute(&sql).await;
        eventually("the poller knows", async || {
            (status().await["paused"] == is_paused).then_some(())
        })
        .await;
    }
    let lag = status().await["lag_seconds"].as_f64().unwrap();
    assert!((100.0..1000.0).contains(&lag), "{lag}");
    drop((held, requests));
    dispatching.terminate().await;
}
