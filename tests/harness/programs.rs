//! The programs of PostgreSQL's clients: `pg_dump`, `psql`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use crate::command::value;

/// The program `name` of the version of the server behind `url`.
pub(crate) async fn program(url: &str, name: &str) -> PathBuf {
    let directory: String = value(url, "select setting from pg_config where name = 'BINDIR'").await;
    Path::new(&directory).join(name)
}

/// Runs it to its end, which has to be success. Returns what it wrote to stdout.
pub(crate) async fn run_program(url: &str, name: &str, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(program(url, name).await)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {arguments:?}: {said}");
    output.stdout
}
