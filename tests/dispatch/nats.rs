//! A real server of NATS takes the rows. `nats-server` is no part of what `cargo test` needs, so these tests run with
//! `--ignored`.

use std::process::Stdio;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::{Config, Stream};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::processes::{Dispatching, free_address};
use super::sink::TestSink;
use super::{Bed, SUBSCRIBERS, subscribers};
use crate::harness::eventually;

/// A server with one user; it ends when dropped.
struct NatsServer {
    _child: Child,
    _store: TempDir,
    address: String,
    context: Context,
}

impl NatsServer {
    async fn start() -> Self {
        let (store, address) = (TempDir::new().unwrap(), free_address().to_string());
        let port = address.rsplit(':').next().unwrap();
        let directory = store.path().to_str().unwrap();
        let args = [
            "-a",
            "127.0.0.1",
            "-p",
            port,
            "-js",
            "-sd",
            directory,
            "--user",
            "u",
            "--pass",
            "p@ss",
        ];
        let child = Command::new("nats-server")
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("nats-server must be installed");
        let client = eventually("nats-server", async || {
            let options =
                async_nats::ConnectOptions::with_user_and_password("u".into(), "p@ss".into());
            options.connect(&address).await.ok()
        });
        let context = async_nats::jetstream::new(client.await);
        Self {
            _child: child,
            _store: store,
            address,
            context,
        }
    }

    /// The properties of a sink with this subject.
    fn sink(&self, subject: &str) -> String {
        format!(
            "type = 'nats'\nurl = 'nats://u:p%40ss@{}'\nsubject = '{subject}'",
            self.address
        )
    }

    async fn stream(&self, subject: &str, window: Duration) -> Stream {
        let config = Config {
            name: "S".to_owned(),
            subjects: vec![subject.to_owned()],
            duplicate_window: window,
            ..Config::default()
        };
        self.context.create_stream(config).await.unwrap()
    }
}

async fn messages(stream: &mut Stream) -> u64 {
    stream.info().await.unwrap().state.messages
}

async fn bed(sql: &str, more: &str, sink: &str) -> Bed {
    let toml = subscribers(&format!("interval = '1day'\n{more}")).replace("SINK", sink);
    Bed::new(sql, &toml, TestSink::start().await).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn each_row_is_a_message_and_none_comes_twice() {
    let server = NatsServer::start().await;
    let mut stream = server.stream("due.>", Duration::from_secs(120)).await;
    let bed = bed(SUBSCRIBERS, "", &server.sink("due.{zone}.n-{id}")).await;
    let due = "create table kept as select id, notify_after from subscriber where notify_after is not null";
    bed.execute(due).await;
    let told = bed.once(0).await;
    assert!(!told.contains("duplicate_window"), "{told}");
    assert_eq!(messages(&mut stream).await, 180);
    let message = stream
        .get_last_raw_message_by_subject("due.1.n-7")
        .await
        .unwrap();
    let element: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
    let id = message.headers.get("Nats-Msg-Id").unwrap().as_str();
    assert_eq!(
        (element["id"].as_str(), &element["row"]["endpoint"]),
        (Some(id), &"e7".into())
    );
    // As after a crash: they are due at the same moments, so they are the same deliveries.
    bed.execute(
        "update subscriber s set notify_after = k.notify_after from kept k where k.id = s.id",
    )
    .await;
    bed.once(0).await;
    assert_eq!(messages(&mut stream).await, 180);
    let late = "select count(*) from subscriber where notify_after <= now()";
    assert_eq!(bed.value::<i64>(late).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn a_killed_process_makes_no_message_come_twice() {
    let server = NatsServer::start().await;
    let mut stream = server.stream("due.>", Duration::from_secs(120)).await;
    let more = "partition = ['worker', 'zone']\nbatch = 5\nconnections = 2\ntakeover = '1s'";
    let bed = bed(
        SUBSCRIBERS,
        more,
        &(server.sink("due.{zone}") + "\nrows = 1\nconcurrency = 1"),
    )
    .await;
    let late = "select count(*) from subscriber where notify_after <= now()";
    for round in 1..=3 {
        bed.execute("update subscriber set notify_after = now() - interval '1 s'")
            .await;
        let mut killed = Dispatching::start(&bed).await;
        let before = 200 * (round - 1);
        eventually("it works", async || {
            (messages(&mut stream).await > before).then_some(())
        })
        .await;
        killed.signal(Signal::SIGKILL);
        killed.ended().await;
        let other = Dispatching::start(&bed).await;
        eventually("all rows", async || {
            (bed.value::<i64>(late).await == 0).then_some(())
        })
        .await;
        other.terminate().await;
        assert_eq!(messages(&mut stream).await, 200 * round);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn what_no_message_can_be_is_a_dead_letter_at_once() {
    let server = NatsServer::start().await;
    let mut stream = server.stream("due.>", Duration::from_secs(1)).await;
    let sql = format!(
        "{SUBSCRIBERS}; update subscriber set endpoint = (array['', 'a.b', 'a b', '>', repeat('x', 1 << 20)])[id] \
         where id <= 5"
    );
    let bed = bed(&sql, "", &server.sink("due.{endpoint}")).await;
    let told = bed.once(1).await;
    assert!(told.contains("set its duplicate_window"), "{told}");
    assert_eq!(messages(&mut stream).await, 175);
    let dead: String = bed
        .value("select string_agg(key || ' ' || attempts || ' ' || left(error, 15), ', ' order by key) from larder.dead_letter")
        .await;
    let of_value = "the value of en";
    let expected = format!(
        "1 1 {of_value}, 2 1 {of_value}, 3 1 {of_value}, 4 1 {of_value}, 5 1 the message has"
    );
    assert_eq!(dead, expected);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn a_stream_must_exist_and_a_server_that_is_away_costs_no_row() {
    let server = NatsServer::start().await;
    let other = bed(SUBSCRIBERS, "", &server.sink("due.{zone}")).await;
    let told = other.once(78).await;
    assert!(
        told.contains("dispatch[0].sink.subject: no stream of JetStream takes due.*"),
        "{told}"
    );
    let mut stream = server.stream("due.>", Duration::from_secs(120)).await;
    let member = bed(SUBSCRIBERS, "", &server.sink("due.{zon}")).await;
    let told = member.once(78).await;
    assert!(
        told.contains("dispatch[0].sink.subject: a row has no member \"zon\""),
        "{told}"
    );
    let keyless = server.sink("due.{zone}") + "\ncredentials_file = 'nothing'";
    let told = bed(SUBSCRIBERS, "", &keyless).await.once(78).await;
    let unread = "dispatch[0].sink.credentials_file: nothing can't be read";
    assert!(told.contains(unread), "{told}");
    let away = server
        .sink("due.{zone}")
        .replace(&server.address, "127.0.0.1:1");
    let away = bed(SUBSCRIBERS, "batch = 10\nretry = ['0s']", &away).await;
    away.once(1).await;
    let refused = server.sink("due.{zone}").replace("u:p", "u:q") + "\nrows = 10";
    let refused = bed(SUBSCRIBERS, "", &refused).await;
    let told = refused.once(1).await;
    assert!(told.contains("authorization violation"), "{told}");
    assert_eq!(messages(&mut stream).await, 0);
}
