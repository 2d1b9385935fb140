//! `larder status` and `larder explain`, and `larder purge` with keys that are no usual segments of a path.

use std::net::TcpListener;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::timeout;

use crate::harness::cluster::TestCluster;
use crate::harness::larder_process::{
    COMMAND_TIMEOUT, LarderProcess, command, run, stderr, stdout,
};
use crate::harness::raw_http::fetch;
use crate::harness::service::execute;
use crate::harness::{eventually, reachable_directory};

const SCHEMA: &str = "
    create table tag (name text primary key, n int);
    insert into tag values ('.', 1), ('..', 2), ('', 3), ('a,b', 4), (e'\\u202e<b>\\u001b[2J', 5)";

const TAGS: &str = "[[resource]]\nname = 'tags'\ntable = 'tag'\ntiers = ['memory']\n";

const UNAVAILABLE: Option<i32> = Some(69);

struct Watched {
    directory: TempDir,
    url: String,
    serving: LarderProcess,
}

impl Watched {
    async fn start() -> Self {
        let directory = reachable_directory();
        let url = TestCluster::database().await.url;
        execute(&url, SCHEMA).await;
        std::fs::write(directory.path().join("larder.toml"), TAGS).unwrap();
        let serving = LarderProcess::start(directory.path(), Some(&url), &[]).await;
        serving.ready().await;
        Self {
            directory,
            url,
            serving,
        }
    }

    /// Runs a command on the larder: its exit code, stdout and stderr.
    async fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let admin = self.serving.admin.to_string();
        let args = [&["--admin", &admin], args].concat();
        let output = run(self.directory.path(), Some(&self.url), &args).await;
        (output.status.code(), stdout(&output), stderr(&output))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn status_tells_whether_larder_is_ready() {
    let watched = Watched::start().await;
    fetch(watched.serving.listen, "GET", "/tags/a%2Cb").await;
    let (code, out, told) = watched.run(&["status"]).await;
    assert_eq!(code, Some(0), "{told}");
    let title = format!("larder at {}: ready\n", watched.serving.admin);
    assert!(out.starts_with(&title), "{out}");
    for line in [
        "feed        fresh, ",
        "PostgreSQL  reads and writes work, ",
        "memory  ",
    ] {
        assert!(out.contains(&format!("\n{line}")), "{line}: {out}");
    }
    let tags = out.lines().find(|line| line.starts_with("tags")).unwrap();
    assert!(tags.contains("yes"), "{out}");
    let (code, out, _) = watched.run(&["status", "--format", "json"]).await;
    assert_eq!(code, Some(0));
    let status: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(status["resources"][0]["name"], "tags");

    execute(&watched.url, "drop table tag").await;
    eventually("not ready", async || {
        let (code, out, told) = watched.run(&["status"]).await;
        if code == Some(0) {
            return None;
        }
        assert_eq!(code, UNAVAILABLE);
        assert!(out.contains(": not ready: resource tags: "), "{out}");
        assert!(
            told.starts_with("larder: not ready: resource tags: "),
            "{told}"
        );
        Some(())
    })
    .await;
    let Watched {
        directory,
        url,
        serving,
    } = watched;
    let admin = serving.admin.to_string();
    serving.terminate().await;
    for args in [
        &["status"][..],
        &["explain", "tags", "x"],
        &["purge", "tags"],
    ] {
        let args = [&["--admin", &admin], args].concat();
        let output = run(directory.path(), Some(&url), &args).await;
        assert_eq!(output.status.code(), UNAVAILABLE, "{args:?}");
        let told = stderr(&output);
        assert!(
            told.contains("no response from the admin address"),
            "{told}"
        );
    }
}

/// Only the larder may be allowed to read its keys, and it runs on with those that it has read.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_larder_is_asked_without_its_keys() {
    let watched = Watched::start().await;
    let broken = format!(
        "{TAGS}[tls]\ncertificate_file = 'none.pem'\nkey_file = 'none.pem'\n\
         [auth.jwt]\nalgorithms = ['ES256']\npublic_key_file = 'none.pem'\n"
    );
    std::fs::write(watched.directory.path().join("larder.toml"), broken).unwrap();
    let checked = watched.run(&["config", "--check"]).await;
    assert_eq!(checked.0, Some(78), "{checked:?}");
    for args in [
        &["status"][..],
        &["explain", "tags", "x"],
        &["purge", "tags", "x"],
    ] {
        let asked = watched.run(args).await;
        assert_eq!(asked.0, Some(0), "{args:?}: {asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_key_is_explained_and_purged() {
    let watched = Watched::start().await;
    let keys = [
        (".", "."),
        ("..", ".."),
        ("", ""),
        ("a,b", "a,b"),
        ("\u{202e}<b>\u{1b}[2J", "\\u{202e}<b>\\u{1b}[2J"),
        ("a/b?c#d", "a/b?c#d"),
    ];
    let others = watched.run(&["explain", "tags", "%2E%2E"]).await;
    assert!(others.1.contains("\nkey          ..\n"), "{others:?}");
    for (key, shown) in keys {
        let path: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let path = format!("/tags/{path}");
        let found = fetch(watched.serving.listen, "GET", &path).await.status == 200;
        let explained = watched.run(&["explain", "tags", key]).await;
        assert_eq!(explained.0, Some(0), "{explained:?}");
        let expected = format!("\nkey          {shown}\n");
        assert!(explained.1.contains(&expected), "{explained:?}");
        let memory = if found {
            "a document, read "
        } else {
            "known to be absent, read "
        };
        let memory = format!("\nmemory       {memory}");
        assert!(explained.1.contains(&memory), "{explained:?}");
        assert!(!explained.1.contains('\u{1b}'));
        let purged = watched.run(&["purge", "tags", key]).await;
        assert_eq!(purged.0, Some(0), "{purged:?}");
        let explained = watched.run(&["explain", "tags", key]).await;
        assert!(
            explained.1.contains("\nmemory       no entry\n"),
            "{explained:?}"
        );
    }
    let refused = watched.run(&["explain", "none", "1"]).await;
    assert_eq!(refused.0, Some(1));
    assert!(
        refused.2.contains("answers 404: there is no resource"),
        "{refused:?}"
    );
    let long = "x".repeat(100_000);
    let refused = watched.run(&["explain", "tags", &long]).await;
    assert_eq!(refused.0, Some(1), "{}", refused.2);
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_prints_blocks_until_it_is_interrupted() {
    let watched = Watched::start().await;
    let admin = watched.serving.admin.to_string();
    for (format, first) in [("human", "larder at "), ("json", "{")] {
        let args = ["--admin", &admin, "status", "--watch", "--format", format];
        let mut watching = command(watched.directory.path(), Some(&watched.url), &args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
        let mut blocks = 0;
        while blocks < 3 {
            let line = lines.next_line().await.unwrap().unwrap();
            assert!(!line.contains('\u{1b}'), "{line}");
            blocks += usize::from(line.starts_with(first));
        }
        let id = Pid::from_raw(watching.id().unwrap().try_into().unwrap());
        kill(id, Signal::SIGINT).unwrap();
        while lines.next_line().await.unwrap().is_some() {}
        assert_eq!(watching.wait().await.unwrap().code(), Some(0));
    }
}

/// As `larder status | head -1`, and as with `2>&1` before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pipe_is_no_failure() {
    let watched = Watched::start().await;
    let admin = watched.serving.admin.to_string();
    for (args, code) in [
        (&["status"][..], Some(0)),
        (&["status", "--format", "json"], Some(0)),
        (&["status", "--watch"], Some(0)),
        (&["explain", "tags", "x"], Some(0)),
        (&["check"], Some(0)),
        (&["check", "--list"], Some(0)),
        (&["config", "--example"], Some(0)),
        (&["install", "--print"], Some(0)),
        (&["prune"], Some(0)),
        (&["init", "--output", "-"], Some(0)),
        (&["explain", "none", "x"], Some(1)),
    ] {
        let all = [&["--admin", &admin], args].concat();
        for error in [Stdio::piped(), closed_pipe()] {
            let mut larder = command(watched.directory.path(), Some(&watched.url), &all);
            let larder = larder.stdout(closed_pipe()).stderr(error).spawn().unwrap();
            let ended = timeout(COMMAND_TIMEOUT, larder.wait_with_output()).await;
            let output = ended.expect("it hangs").unwrap();
            let told = stderr(&output);
            assert_eq!(output.status.code(), code, "{args:?}: {told}");
            assert!(!told.contains("pipe"), "{args:?}: {told}");
        }
    }
}

/// It has nothing to print on stdout then, and did not end.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pipe_ends_the_watch_of_a_larder_that_does_not_respond() {
    let directory = reachable_directory();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = listener.local_addr().unwrap().to_string();
    drop(listener);
    for format in ["human", "json"] {
        let args = ["--admin", &admin, "status", "--watch", "--format", format];
        let mut larder = command(directory.path(), None, &args);
        let larder = larder.stdout(closed_pipe()).stderr(Stdio::null());
        let mut larder = larder.spawn().unwrap();
        let ended = timeout(COMMAND_TIMEOUT, larder.wait()).await;
        assert_eq!(ended.expect("it goes on").unwrap().code(), UNAVAILABLE);
    }
}

/// The end of a pipe whose other end is closed.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}
