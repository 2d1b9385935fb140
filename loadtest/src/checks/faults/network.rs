//! Between larder and PostgreSQL.

use std::time::Duration;

use crate::harness::proxy::{Proxy, Weather};
use crate::harness::stage::Stage;

const TERMINATIONS: u32 = 6;
const TERMINATION_PAUSE: Duration = Duration::from_millis(200);

/// So that knowledge that does not grow has aged past `max_staleness`, and some more.
const PAST_STALENESS: f64 = 1.6;

pub(super) async fn terminate_backends(stage: &mut Stage) -> anyhow::Result<()> {
    for _ in 0..TERMINATIONS {
        let sql = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'larder'";
        stage.session.run(sql).await?;
        tokio::time::sleep(TERMINATION_PAUSE).await;
    }
    Ok(())
}

/// Bad weather for the connections that follow changes.
pub(super) async fn feed(stage: &Stage, weather: Weather) {
    endure(stage, &stage.feed, weather).await;
}

/// Bad weather for the connections that load documents.
pub(super) async fn loader(stage: &Stage, weather: Weather) {
    endure(stage, &stage.loader, weather).await;
}

async fn endure(stage: &Stage, proxy: &Proxy, weather: Weather) {
    proxy.set(weather);
    stage.hold(PAST_STALENESS).await;
    proxy.set(Weather::Clear);
}
