//! Code that the end-to-end tests share.
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep};

pub(crate) mod cluster;
pub(crate) mod larder_process;
pub(crate) mod programs;
pub(crate) mod raw_http;
pub(crate) mod service;
pub(crate) mod swapping_pooler;
pub(crate) mod table_locks;

/// [`eventually`] fails after this time.
const DEADLINE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A temporary directory that an unprivileged PostgreSQL can reach when root runs the tests.
pub(crate) fn reachable_directory() -> TempDir {
    tempfile::Builder::new()
        .prefix("larder-")
        .permissions(Permissions::from_mode(0o755))
        .tempdir()
        .unwrap()
}

/// Calls `question` until it returns a value; `what` describes that for the failure.
pub(crate) async fn eventually<T>(what: &str, mut question: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = question().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "still not: {what}");
        sleep(POLL_INTERVAL).await;
    }
}
