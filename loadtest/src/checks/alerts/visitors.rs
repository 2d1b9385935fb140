//! Clients that read and write a little, so that every metric has something to tell.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testkit::http::{Client, Request};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::checks::alerts::site::ITEMS;

const PAUSE: Duration = Duration::from_millis(5);
/// One request in so many writes the document that it would have read.
const WRITE_EVERY: u32 = 100;
/// Keys of no document, of which hardly one is drawn twice.
const ABSENT: std::ops::Range<u32> = 1_000_000..1_000_000_000;

/// A task that sends a request every few milliseconds; it ends when dropped.
pub(super) struct Visitors {
    are_lost: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Visitors {
    pub(super) fn start(larder: SocketAddr, rng: fastrand::Rng) -> Self {
        let are_lost = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(visit(larder, rng, Arc::clone(&are_lost)));
        Self { are_lost, task }
    }

    /// Whether they read documents that do not exist.
    pub(super) fn lose(&self, are_lost: bool) {
        self.are_lost.store(are_lost, Ordering::Relaxed);
    }
}

impl Drop for Visitors {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn visit(larder: SocketAddr, mut rng: fastrand::Rng, are_lost: Arc<AtomicBool>) {
    let mut pauses = interval(PAUSE);
    pauses.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut client = Client::new(larder);
    for turn in 0_u32.. {
        pauses.tick().await;
        let key = if are_lost.load(Ordering::Relaxed) {
            rng.u32(ABSENT)
        } else {
            rng.u32(1..=ITEMS)
        };
        let request = if turn % WRITE_EVERY == 0 && key <= ITEMS {
            let body = format!("{{\"title\":\"{turn}\"}}");
            Request::new("PUT", format!("/items/{key}")).with_body("application/json", body)
        } else {
            Request::get(format!("/items/{key}"))
        };
        // While a cause lasts, requests fail.
        client.send(&request).await.ok();
    }
}
