//! Documents read in lists of a hundred, as `GET /depts?keys=…` answers them.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::ensure;
use testkit::http::HttpConnection;
use tokio::time::{MissedTickBehavior, interval};

pub(super) const LIST_KEYS: u32 = 100;

/// Reads the documents of `keys` once, one list after the other over one connection: as fast as they are answered, or
/// a list each `pace`.
pub(super) async fn read_lists(
    target: SocketAddr,
    keys: RangeInclusive<u32>,
    pace: Option<Duration>,
) -> anyhow::Result<()> {
    let mut connection = HttpConnection::connect(target).await?;
    let mut pace = pace.map(interval);
    if let Some(pace) = &mut pace {
        pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    }
    let last = *keys.end();
    for first in keys.step_by(LIST_KEYS as usize) {
        if let Some(pace) = &mut pace {
            pace.tick().await;
        }
        let path = list_path(first..=last.min(first + LIST_KEYS - 1));
        let answer = connection.get(&path).await?;
        ensure!(answer.status == 200, "{path}: {}", answer.status);
    }
    Ok(())
}

/// The path of the list of these keys.
pub(super) fn list_path(keys: impl IntoIterator<Item = u32>) -> String {
    let keys: Vec<String> = keys.into_iter().map(|key| key.to_string()).collect();
    format!("/depts?keys={}", keys.join(","))
}
