//! The commands that `serve` prints: a shell runs them as they stand.

use std::fmt::Write as _;
use std::path::Path;

use tokio::process::Command;

use super::configured;
use crate::harness::cluster::TestCluster;
use crate::harness::larder_process::LarderProcess;
use crate::harness::service::execute;

/// Keys that a shell, curl or larder could take for something else.
const KEYS: [&str; 14] = [
    "plain",
    "a b",
    "a/b",
    "a,b",
    "100%25",
    "it's \"quoted\" $HOME `id`",
    "né ☂\u{202e}",
    "?q=1#x",
    "[1-3]{a,b}",
    "&;|<>\\*~!",
    "line\nbreak",
    "",
    ".",
    "..",
];

/// Runs what larder proposes for `config`; returns the response to the first command.
async fn try_it(directory: &Path, url: &str) -> String {
    let serving = LarderProcess::start(directory, Some(url), &[]).await;
    let (_, commands) = serving.banner.split_once("try: ").unwrap();
    let mut answers = Vec::new();
    for command in commands.lines() {
        let output = Command::new("sh")
            .args(["-c", &format!("{} -sS", command.trim())])
            .output()
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{command}: {said}");
        answers.push(String::from_utf8(output.stdout).unwrap());
    }
    assert!(answers[1].contains("\"resources\""), "{answers:?}");
    assert_eq!(serving.terminate().await.code(), Some(0));
    answers.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_of_each_kind_of_key_can_be_tried() {
    let url = TestCluster::database().await.url;
    let mut sql = String::new();
    for (number, key) in KEYS.iter().enumerate() {
        let key = key.replace('\'', "''");
        write!(
            sql,
            "create table t{number} (k text primary key, n int); insert into t{number} values ('{key}', {number});"
        )
        .unwrap();
    }
    execute(&url, &sql).await;
    for number in 0..KEYS.len() {
        let directory = configured(&format!("[[resource]]\nname = 'ts'\ntable = 't{number}'\n"));
        let answer = try_it(directory.path(), &url).await;
        let number = format!("\"n\":{number}}}");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains(&number), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_several_columns_and_an_empty_table_can_be_tried() {
    let url = TestCluster::database().await.url;
    execute(
        &url,
        "create table two (a text, b int, c date, primary key (a, b, c)); \
         insert into two values ('x, %2C y', -7, '2026-11-27'); create table none (id int primary key)",
    )
    .await;
    let directory = configured("[[resource]]\nname = 'two'\ntable = 'two'\n");
    let answer = try_it(directory.path(), &url).await;
    assert!(answer.contains("\"b\":-7"), "{answer}");
    let directory = configured("[[resource]]\nname = 'none'\ntable = 'none'\n");
    let answer = try_it(directory.path(), &url).await;
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("[]"),
        "{answer}"
    );
}
