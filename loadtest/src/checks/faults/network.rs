//! Faults of the connections between larder and PostgreSQL.

use std::time::Duration;

use testkit::fault_proxy::{FaultProxy, NetworkFault};

use crate::harness::testbed::Testbed;

const TERMINATIONS: u32 = 6;
const TERMINATION_PAUSE: Duration = Duration::from_millis(200);

/// In `max_staleness`: long enough that tiers without passes are no longer fresh.
const PAST_STALENESS: f64 = 1.6;

pub(super) async fn terminate_backends(testbed: &mut Testbed) -> anyhow::Result<()> {
    for _ in 0..TERMINATIONS {
        let sql = "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'larder%'";
        testbed.session.run(sql).await?;
        tokio::time::sleep(TERMINATION_PAUSE).await;
    }
    Ok(())
}

/// Injects a fault of the feed's connections.
pub(super) async fn feed(testbed: &Testbed, fault: NetworkFault) {
    endure(testbed, &testbed.feed, fault).await;
}

/// Injects a fault of the loader's connections.
pub(super) async fn loader(testbed: &Testbed, fault: NetworkFault) {
    endure(testbed, &testbed.loader, fault).await;
}

async fn endure(testbed: &Testbed, proxy: &FaultProxy, fault: NetworkFault) {
    proxy.set(fault);
    testbed.hold(PAST_STALENESS).await;
    proxy.set(NetworkFault::None);
}
