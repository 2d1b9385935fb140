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
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(5);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(250);

/// A temporary directory that an unprivileged PostgreSQL can reach when root runs the tests.
pub(crate) fn reachable_directory() -> TempDir {
    tempfile::Builder::new()
        .prefix("larder-")
        .permissions(Permissions::from_mode(0o755))
        .tempdir()
        .unwrap()
}

/// Calls `question` until it returns a value; `what` describes that for the failure. The pauses grow with the time that has
/// passed, so that long waits cost the tests beside them little.
pub(crate) async fn eventually<T>(what: &str, mut question: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = question().await {
            return answer;
        }
        let waited = began.elapsed();
        assert!(waited < DEADLINE, "still not: {what}");
        sleep((waited / 16).clamp(POLL_INTERVAL_MIN, POLL_INTERVAL_MAX)).await;
    }
}
