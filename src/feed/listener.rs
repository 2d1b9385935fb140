//! The bell, from the other side: a connection that listens for notifications.
//!
//! A notification carries no data; it only makes the next pass start earlier. A lost one delays a pass by at most
//! `poll_interval`, so freshness does not depend on this file.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::Notify;

use crate::feed::bell::CHANNEL;
use crate::metrics::Metrics;
use crate::source::session::Database;

/// Pauses between attempts to listen again: short, to listen soon after a restart of PostgreSQL; longer if it stays
/// away.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Notifies `bell` of every notification and whenever it listens again. Never returns.
pub(super) async fn listen(database: Database, bell: Arc<Notify>, metrics: Arc<Metrics>) {
    let mut pause = RETRY_MIN;
    loop {
        match connect(database.listener_options()).await {
            Ok(mut listener) => {
                pause = RETRY_MIN;
                // A pass has to follow, since notifications were lost until now.
                bell.notify_one();
                // Unlike recv(), try_recv() does not reconnect silently: None and every error are a gap.
                while let Ok(Some(_)) = listener.try_recv().await {
                    bell.notify_one();
                }
                metrics.feed_gaps.inc();
                tracing::info!("the LISTEN connection was lost; polling until it is restored");
            }
            Err(error) => tracing::debug!("LISTEN failed: {error}"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

async fn connect(options: PgConnectOptions) -> Result<PgListener, sqlx::Error> {
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
