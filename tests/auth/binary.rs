//! The command: hashing a password, refusing to start, and keeping secrets to itself.

use std::process::Stdio;

use axum::http::StatusCode;
use tempfile::TempDir;
use testkit::http::Request;
use tokio::io::AsyncWriteExt;

use super::{ITEMS, KEY, MEMORY, RESOURCES, SCHEMA, basic};
use crate::harness::cluster::TestCluster;
use crate::harness::larder_process::{LarderProcess, command, run, stderr, stdout};
use crate::harness::raw_http::{fetch, send};
use crate::harness::reachable_directory;
use crate::harness::service::execute;

const PASSWORD: &str = "correct horse battery staple";
const SECRET: &str = "the-secret-of-tokens-in-its-file";
const MISS: &str = "larder; fwd=miss; stored; detail=postgres";
const ADMIN_TOKEN: &str = "the-token-of-operators";

async fn hash_of(input: &str) -> (Option<i32>, String, String) {
    let directory = TempDir::new().unwrap();
    let mut child = command(directory.path(), None, &["hash-password"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    let output = child.wait_with_output().await.unwrap();
    (output.status.code(), stdout(&output), stderr(&output))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_password_has_no_hash() {
    for input in ["", "\n", "\nsecond line"] {
        let (code, out, told) = hash_of(input).await;
        assert_eq!((code, out.as_str()), (Some(1), ""), "{input:?}");
        assert!(told.contains("the password is empty"), "{told}");
    }
    let (code, _, told) = hash_of(&"s3cret".repeat(1000)).await;
    assert_eq!(code, Some(1));
    assert!(
        told.contains("longer") && !told.contains("s3cret"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_beyond_loopback_without_auth_are_refused() {
    let directory = TempDir::new().unwrap();
    let unreadable = "[auth.jwt]\nalgorithms = ['HS256']\nsecret_file = 'none'\n";
    let unreadable = format!("{unreadable}{RESOURCES}");
    std::fs::write(directory.path().join("jwt.toml"), unreadable).unwrap();
    std::fs::write(directory.path().join("larder.toml"), ITEMS).unwrap();
    for (args, told) in [
        (
            &["--listen", "0.0.0.0:0"][..],
            "listen: 0.0.0.0:0 can be reached from other machines without auth",
        ),
        (
            &["--admin", "0.0.0.0:0"],
            "admin: 0.0.0.0:0 can be reached from other machines",
        ),
        (
            &["--config", "jwt.toml"],
            "none: auth.jwt.secret_file: can't be read",
        ),
    ] {
        let output = run(directory.path(), Some("postgres://127.0.0.1:1/x"), args).await;
        assert_eq!(
            output.status.code(),
            Some(78),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn purge_drops_documents_of_a_running_larder() {
    let directory = reachable_directory();
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    std::fs::write(directory.path().join("token"), ADMIN_TOKEN).unwrap();
    let toml = format!("[auth]\nadmin_token_file = 'token'\n{ITEMS}");
    std::fs::write(directory.path().join("larder.toml"), toml).unwrap();
    let serving = LarderProcess::start(directory.path(), Some(&url), &[]).await;
    serving.ready().await;
    let admin = serving.admin.to_string();
    let purge = async |args: &[&str]| {
        let args = [&["purge", "--admin", &admin], args].concat();
        run(directory.path(), Some(&url), &args).await
    };
    for args in [&["items", "1"][..], &["items"]] {
        fetch(serving.listen, "GET", "/items/1").await;
        let hit = fetch(serving.listen, "GET", "/items/1").await;
        assert_eq!(hit.cache_status(), MEMORY);
        let purged = purge(args).await;
        assert_eq!(purged.status.code(), Some(0), "{purged:?}");
        let missed = fetch(serving.listen, "GET", "/items/1").await;
        assert_eq!(missed.cache_status(), MISS, "{args:?}");
    }
    for (args, why) in [
        (&["none"][..], "answers 404: there is no resource"),
        (&["items", "x"], "answers 400: "),
    ] {
        let refused = purge(args).await;
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(stderr(&refused).contains(why), "{refused:?}");
    }
    std::fs::write(directory.path().join("larder.toml"), ITEMS).unwrap();
    let refused = purge(&["items"]).await;
    assert!(stderr(&refused).contains("answers 401: "), "{refused:?}");
    assert_eq!(serving.terminate().await.code(), Some(0));
    let refused = purge(&["items"]).await;
    assert!(
        stderr(&refused).contains("the admin address"),
        "{refused:?}"
    );
}

/// With such a token every request to the admin address was answered with 401.
#[tokio::test(flavor = "multi_thread")]
async fn an_admin_token_that_no_header_can_carry_is_a_mistake() {
    let directory = reachable_directory();
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let toml = format!("[auth]\nadmin_token_file = 'token'\n{ITEMS}");
    std::fs::write(directory.path().join("larder.toml"), toml).unwrap();
    let addresses = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    for end in [" \n", "\t", "\n\n", "\0"] {
        let token = format!("{ADMIN_TOKEN}{end}");
        std::fs::write(directory.path().join("token"), token).unwrap();
        for command in [&["serve"][..], &["status"]] {
            let args = [command, &addresses].concat();
            let refused = run(directory.path(), Some(&url), &args).await;
            assert_eq!(refused.status.code(), Some(78), "{end:?} {refused:?}");
            let told = stderr(&refused);
            let expected = "token: auth.admin_token_file: can't be sent in a header";
            assert!(told.contains(expected), "{end:?} {told}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_reaches_logs_status_metrics_or_the_dump() {
    let (code, hash, _) = hash_of(&format!("{PASSWORD}\n")).await;
    assert_eq!(code, Some(0));
    let hash = hash.trim().to_owned();
    let directory = reachable_directory();
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    std::fs::write(directory.path().join("secret"), SECRET).unwrap();
    std::fs::write(directory.path().join("token"), ADMIN_TOKEN).unwrap();
    let toml = format!(
        "[auth]\nadmin_token_file = 'token'\n[auth.jwt]\nalgorithms = ['HS256']\nsecret_file = 'secret'\n\
         [[auth.user]]\nname = 'anna'\npassword = '{hash}'\nroles = ['staff']\n\
         [[auth.key]]\nname = 'job'\nhash = '{}'\n{RESOURCES}",
        KEY.1
    );
    std::fs::write(directory.path().join("larder.toml"), toml).unwrap();
    let level = ["--log-level", "debug"];
    let serving = LarderProcess::start(directory.path(), Some(&url), &level).await;
    serving.ready().await;

    let anna = basic("anna", PASSWORD);
    let request = Request::get("/closed/1").with("authorization", &anna);
    let answer = send(serving.listen, request).await;
    assert_eq!(
        answer.status,
        StatusCode::OK,
        "the printed hash is the password's"
    );
    let request = Request::new("POST", "/signin").with("authorization", &anna);
    let signed = send(serving.listen, request).await.json();
    let token = signed["token"].as_str().unwrap().to_owned();
    for credential in [
        format!("Bearer {token}"),
        format!("Bearer {token}x"),
        format!("Bearer {SECRET}"),
        basic("anna", &format!("{PASSWORD}!")),
    ] {
        let request = Request::get("/items/1").with("authorization", credential);
        send(serving.listen, request).await;
    }
    let mut shown = String::new();
    for path in ["/status", "/metrics"] {
        let operator = format!("Bearer {ADMIN_TOKEN}");
        let request = Request::get(path).with("authorization", operator);
        let answer = send(serving.admin, request).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        shown += &answer.body;
    }
    assert_eq!(serving.terminate().await.code(), Some(0));
    let log = std::fs::read_to_string(directory.path().join("larder.log")).unwrap();
    for line in log.lines().filter(|line| line.contains("anna")) {
        assert!(
            line.contains("DEBUG") || line.contains("\"level\":\"DEBUG\""),
            "{line}"
        );
    }
    assert!(
        log.contains("User \"anna\"") || log.contains("User \\\"anna\\\""),
        "{log}"
    );
    shown += &log;
    let dump = run(directory.path(), Some(&url), &["config", "--dump"]).await;
    shown += &stdout(&dump);
    assert!(shown.contains("password = \"***\""), "{shown}");
    let hidden = [PASSWORD, SECRET, ADMIN_TOKEN, &hash, KEY.1, &token];
    for hidden in hidden {
        assert!(!shown.contains(hidden), "{hidden}: {shown}");
    }
}
