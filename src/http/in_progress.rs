//! Bounds the requests that memory did not answer, while they are in progress.
//!
//! Over HTTP/2 a client may open 100 streams on each of its connections, and each request that waits takes memory: the
//! stream and its task in hyper, and the state of the handler. So their number has a bound, whatever they wait for.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::problem::Problem;
use crate::server::{ClientCounts, ClientPlace};

/// As many as there may be connections by default: over HTTP/1.1 each has one request.
const REQUESTS_MAX: usize = 16_384;
/// The most of one client, as many as it may have connections by default.
const REQUESTS_OF_CLIENT_MAX: usize = 4_096;

/// The requests in progress; clones are the same.
#[derive(Clone)]
pub(super) struct InProgress {
    all: Arc<Semaphore>,
    clients: ClientCounts,
}

impl InProgress {
    pub(super) fn new() -> Self {
        Self {
            all: Arc::new(Semaphore::new(REQUESTS_MAX)),
            clients: ClientCounts::default(),
        }
    }

    /// Counts a request of `client` until the result is dropped.
    ///
    /// # Errors
    /// 503 if there are too many.
    pub(super) fn begin(
        &self,
        client: IpAddr,
    ) -> Result<(ClientPlace, OwnedSemaphorePermit), Problem> {
        let place = self.clients.take(client, REQUESTS_OF_CLIENT_MAX);
        let place = place.ok_or(Problem::REQUESTS_OF_CLIENT)?;
        let permit = Arc::clone(&self.all).try_acquire_owned();
        let permit = permit.map_err(|_| Problem::REQUESTS_FULL)?;
        Ok((place, permit))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn requests_in_progress_are_bounded_and_a_client_has_a_quarter() {
        let in_progress = InProgress::new();
        let begin = |client: u32| in_progress.begin(Ipv4Addr::from_bits(client).into());
        let mut requests = Vec::new();
        for client in 0..4 {
            requests.extend((0..REQUESTS_OF_CLIENT_MAX).map(|_| begin(client).unwrap()));
            let refused = begin(client).unwrap_err();
            assert!(
                format!("{refused:?}").contains("this client"),
                "{refused:?}"
            );
        }
        let refused = begin(4).unwrap_err();
        assert!(
            !format!("{refused:?}").contains("this client"),
            "{refused:?}"
        );
        requests.pop();
        assert!(begin(4).is_ok());
        assert!(begin(3).is_ok());
    }
}
