//! The task that owns the running server and starts it again when it dies by itself.
use std::error::Error;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::source::embedded::process::{PrivateServer, ServerProcess};
use crate::source::embedded::{EmbeddedError, leftover};

const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A server that lived this long is no longer failing to start.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Keeps the server running until `stop` is sent or dropped, then stops it.
pub(super) async fn supervise(
    server: PrivateServer,
    process: ServerProcess,
    mut stop: oneshot::Receiver<()>,
) {
    let mut running = Some(process);
    let mut backoff = BACKOFF_MIN;
    loop {
        let since = Instant::now();
        tokio::select! {
            _ = &mut stop => break,
            () = run_to_end(&mut running) => {}
        }
        if since.elapsed() >= STABLE_AFTER {
            backoff = BACKOFF_MIN;
        }
        tokio::select! {
            _ = &mut stop => break,
            () = sleep(backoff) => {}
        }
        backoff = (backoff * 2).min(BACKOFF_MAX);
        tokio::select! {
            _ = &mut stop => break,
            result = start_again(&server, &mut running) => match result {
                Ok(()) => tracing::info!("the private PostgreSQL runs again"),
                Err(error) => tracing::error!(
                    error = &error as &dyn Error,
                    "the private PostgreSQL does not start"
                ),
            }
        }
    }
    if let Some(process) = running {
        process.stop().await;
    }
    tracing::info!("the private PostgreSQL is stopped");
}

/// Waits for the server's own end and logs it; at once where none runs.
async fn run_to_end(running: &mut Option<ServerProcess>) {
    if let Some(process) = running {
        match process.wait().await {
            Ok(status) => tracing::error!(%status, "the private PostgreSQL ended by itself"),
            Err(error) => tracing::error!(%error, "the private PostgreSQL can't be watched"),
        }
    }
}

/// Puts the new process into `running` before it waits, so that a stop finds it there.
async fn start_again(
    server: &PrivateServer,
    running: &mut Option<ServerProcess>,
) -> Result<(), EmbeddedError> {
    *running = None;
    leftover::stop(server.data()).await?;
    running
        .insert(server.spawn()?)
        .wait_until_ready(server)
        .await
}
