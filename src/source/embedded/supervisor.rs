//! The task that owns the running server, and starts it again if it ends by itself.
use std::error::Error;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::source::embedded::process::{PrivateServer, ServerProcess};
use crate::source::embedded::{EmbeddedError, leftover};

/// The first pause before a start, and the longest. Each is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// After a run of this length the next pause is the shortest again.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Keeps the server running until `stop` is sent or dropped, then stops it.
pub(super) async fn supervise(
    server: PrivateServer,
    process: ServerProcess,
    stop: oneshot::Receiver<()>,
) {
    let mut running = Some(process);
    tokio::select! {
        _ = stop => {}
        () = keep_running(&server, &mut running) => {}
    }
    if let Some(process) = running {
        process.stop().await;
    }
    tracing::info!("the private PostgreSQL is stopped");
}

/// Starts the server again each time that it ends. Does not return.
///
/// Cancel safe: `running` always holds the process, if there is one.
async fn keep_running(server: &PrivateServer, running: &mut Option<ServerProcess>) {
    let mut pause = PAUSE_MIN;
    loop {
        let since = Instant::now();
        if let Some(process) = running {
            match process.wait().await {
                Ok(status) => tracing::error!(%status, "the private PostgreSQL ended by itself"),
                Err(error) => {
                    tracing::error!(%error, "could not wait for the end of the private PostgreSQL")
                }
            }
        }
        if since.elapsed() >= STABLE_AFTER {
            pause = PAUSE_MIN;
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
        match start_again(server, running).await {
            Ok(()) => tracing::info!("the private PostgreSQL runs again"),
            Err(error) => tracing::error!(
                error = &error as &dyn Error,
                "the private PostgreSQL could not be started again"
            ),
        }
    }
}

/// Stores the new process in `running` before it waits for it.
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
