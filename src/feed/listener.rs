//! The bell: a connection that listens for larder's notifications.
//!
//! A notification carries nothing; it only brings the next pass forward. One that is lost costs at most
//! `poll_interval`, so this file has no part in what is true.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::Notify;

use crate::feed::bell::CHANNEL;
use crate::metrics::Metrics;

/// Pauses between attempts to listen again: short enough to be back soon after a restart, long enough not to hammer.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Rings `bell` on every notification and after every return of the connection. Never ends by itself.
pub(super) async fn ring(options: PgConnectOptions, bell: Arc<Notify>, metrics: Arc<Metrics>) {
    let mut pause = RETRY_MIN;
    loop {
        match listen(options.clone()).await {
            Ok(mut listener) => {
                pause = RETRY_MIN;
                // Subscribe, then read: what was sent while nobody listened is in the log.
                bell.notify_one();
                // recv() would reconnect silently; None and every error are a gap.
                while let Ok(Some(_)) = listener.try_recv().await {
                    bell.notify_one();
                }
                metrics.feed_gaps.inc();
                tracing::info!("the LISTEN connection was lost; polling until it is restored");
            }
            Err(error) => tracing::debug!("can't listen: {error}"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

async fn listen(options: PgConnectOptions) -> Result<PgListener, sqlx::Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .acquire_timeout(RETRY_MAX)
        .connect_with(options)
        .await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.ignore_pool_close_event(true);
    listener.eager_reconnect(false);
    listener.listen(CHANNEL).await?;
    Ok(listener)
}
