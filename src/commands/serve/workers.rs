//! The threads that serve connections and read documents out of PostgreSQL.
//!
//! Each has a runtime of its own, so that a request that memory answers involves no other thread. Neither does a load
//! if its statement runs on the same thread. (Measured on one core at 2,048 connections, a runtime that
//! moves tasks between threads had a p99 of 321 ms, one that does not 35 ms.)

use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;

/// The nice value of threads that do long work for a worker. 15 gives them a 28th of the time of a core that others use up
/// (sched(7)), and all of one that is idle; short work still begins after one slice of the scheduler.
#[cfg(target_os = "linux")]
const LONG_WORK_NICE: i32 = 15;

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
            let runtime = Builder::new_current_thread()
                .enable_all()
                .on_thread_start(yield_to_workers)
                .build()?;
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

/// Called on each thread that does long work for a worker: its runtime starts no others. Such a thread is often woken by a
/// worker, and would take its core for a slice of the scheduler, some 3 ms in which no hit is answered. On other systems than
/// Linux threads have no nice values of their own.
fn yield_to_workers() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getpriority_process, setpriority_process};

        let thread = Some(rustix::thread::gettid());
        // Whoever runs larder may have set a higher value, which can't be lowered.
        let is_higher = getpriority_process(thread).is_ok_and(|nice| nice > LONG_WORK_NICE);
        if !is_higher && let Err(error) = setpriority_process(thread, LONG_WORK_NICE) {
            tracing::debug!(%error, "the priority of a thread for long work is not lowered");
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::process::getpriority_process;
    use rustix::thread::gettid;

    use super::*;

    #[test]
    fn threads_for_long_work_have_a_lower_priority_than_workers() {
        let nice = || getpriority_process(Some(gettid())).unwrap();
        let workers = Workers::start(1).unwrap();
        let worker = &workers.runtimes()[0];
        let (told, priorities) = std::sync::mpsc::channel();
        worker.spawn(async move {
            let long = tokio::task::spawn_blocking(nice).await.unwrap();
            told.send((nice(), long)).unwrap();
        });
        let (of_worker, of_long_work) = priorities.recv().unwrap();
        workers.stop();
        assert_eq!(of_worker, nice());
        assert_eq!(of_long_work, LONG_WORK_NICE.max(of_worker));
    }
}
