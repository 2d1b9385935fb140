//! How far stopping has come: by signals, by an error after the start, and by the delay before the drain.

use std::future::Future;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How far stopping has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::commands) enum ShutdownStage {
    /// It has not begun.
    Serving,
    /// `/readyz` is 503, and requests are served as before.
    Delaying,
    /// No connection is accepted any more, and requests are finished.
    Draining,
    /// Clients are not waited for any more.
    Ending,
}

impl ShutdownStage {
    /// The stage after one more signal.
    fn next(self, has_delay: bool) -> Self {
        match self {
            Self::Serving if has_delay => Self::Delaying,
            Self::Serving | Self::Delaying => Self::Draining,
            Self::Draining | Self::Ending => Self::Ending,
        }
    }
}

/// The stage of this process, shared by all that wait for one.
#[derive(Clone)]
pub(in crate::commands) struct Shutdown {
    stage: watch::Sender<ShutdownStage>,
    delay: Duration,
}

impl Shutdown {
    /// Handles SIGTERM and SIGINT from now on. Only SIGTERM begins with `delay`: no load balancer waits for what a terminal
    /// interrupts.
    pub(in crate::commands) fn by_signals(delay: Duration) -> anyhow::Result<Self> {
        let shutdown = Self {
            stage: watch::channel(ShutdownStage::Serving).0,
            delay,
        };
        let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
        let signalled = shutdown.clone();
        tokio::spawn(async move {
            loop {
                let has_delay = tokio::select! {
                    _ = terminate.recv() => !signalled.delay.is_zero(),
                    _ = interrupt.recv() => false,
                };
                signalled
                    .stage
                    .send_modify(|stage| *stage = stage.next(has_delay));
            }
        });
        Ok(shutdown)
    }

    /// Ends once `stage`, or a later one, is reached.
    pub(in crate::commands) fn reached(
        &self,
        stage: ShutdownStage,
    ) -> impl Future<Output = ()> + use<> {
        let mut current = self.stage.subscribe();
        async move {
            // A sender lives as long as signals are handled.
            let _reached = current.wait_for(|current| *current >= stage).await;
        }
    }

    /// Begins the drain, if it has not begun.
    pub(in crate::commands) fn drain(&self) {
        self.stage
            .send_modify(|stage| *stage = (*stage).max(ShutdownStage::Draining));
    }

    /// Ends all waiting.
    pub(in crate::commands) fn end(&self) {
        self.stage.send_replace(ShutdownStage::Ending);
    }

    /// Waits until the delay is over or a signal ends it; then the drain begins.
    pub(in crate::commands) async fn delay(&self) {
        if *self.stage.borrow() >= ShutdownStage::Draining {
            return;
        }
        let delay = self.delay;
        tracing::info!("stopping: /readyz is 503, and requests are served for {delay:?}");
        tokio::select! {
            () = tokio::time::sleep(delay) => self.drain(),
            () = self.reached(ShutdownStage::Draining) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ShutdownStage::*;

    #[test]
    fn signals_advance_to_the_end() {
        assert_eq!(Serving.next(true), Delaying);
        assert_eq!(Delaying.next(true), Draining);
        assert_eq!(Draining.next(true), Ending);
        assert_eq!(Ending.next(true), Ending);
        for stage in [Serving, Delaying] {
            assert_eq!(stage.next(false), Draining);
        }
    }
}
