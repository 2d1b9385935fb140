//! Bounds the requests that memory did not answer, while they are in progress.
//!
//! Over HTTP/2 a client may open 100 streams on each of its connections, and each request that waits takes memory: the
//! stream and its task in hyper, the state of the handler, and the head, which may have 64 KiB. So their number has a
//! bound, whatever they wait for, and one with a long head counts as several.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::HeaderMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::problem::Problem;
use crate::server::{ClientCounts, ClientPlace};

/// As many as there may be connections by default: over HTTP/1.1 each has one request.
const REQUESTS_MAX: usize = 16_384;
/// The most of one client, as many as it may have connections by default.
const REQUESTS_OF_CLIENT_MAX: usize = 4_096;

/// A request takes one place more for each so many bytes of its header fields. Without this, 4,000 requests with
/// heads of 58 KiB took 430 MB; without long heads, they take 37 MB (2026-11-26).
const HEAD_BYTES: usize = 4 << 10;
/// What a header field takes besides its name and its value (RFC 9113, section 6.5.2).
const FIELD_BYTES: usize = 32;

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

    /// Counts a request of `client` with these header fields until the result is dropped.
    ///
    /// # Errors
    /// 503 if there are too many.
    pub(super) fn begin(
        &self,
        client: IpAddr,
        headers: &HeaderMap,
    ) -> Result<(ClientPlace, OwnedSemaphorePermit), Problem> {
        let places = places(headers);
        let place = self
            .clients
            .take_many(client, places, REQUESTS_OF_CLIENT_MAX);
        let place = place.ok_or(Problem::REQUESTS_OF_CLIENT)?;
        let places = u32::try_from(places).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.all).try_acquire_many_owned(places);
        let permit = permit.map_err(|_| Problem::REQUESTS_FULL)?;
        Ok((place, permit))
    }
}

/// The places that a request with these header fields takes.
fn places(headers: &HeaderMap) -> usize {
    let fields = headers.iter();
    let lengths = fields.map(|(name, value)| name.as_str().len() + value.len() + FIELD_BYTES);
    1 + lengths.sum::<usize>() / HEAD_BYTES
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn requests_in_progress_are_bounded_and_a_client_has_a_quarter() {
        let in_progress = InProgress::new();
        let none = HeaderMap::new();
        let begin = |client: u32| in_progress.begin(Ipv4Addr::from_bits(client).into(), &none);
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

    /// Some clients send tokens of a few thousand bytes; only what is longer counts more.
    #[test]
    fn a_request_with_a_long_head_counts_as_several() {
        let long = |bytes: usize| {
            let value = HeaderValue::try_from("v".repeat(bytes)).unwrap();
            HeaderMap::from_iter([(HeaderName::from_static("x"), value)])
        };
        assert_eq!(places(&HeaderMap::new()), 1);
        assert_eq!(places(&long(4_000)), 1);
        assert_eq!(places(&long(4_096)), 2);
        assert_eq!(places(&long(65_000)), 16);
        let in_progress = InProgress::new();
        let head = long(65_000);
        let client = |number: u32| Ipv4Addr::from_bits(number).into();
        let mut requests = Vec::new();
        for number in 0..4 {
            for _ in 0..REQUESTS_OF_CLIENT_MAX / 16 {
                requests.push(in_progress.begin(client(number), &head).unwrap());
            }
            assert!(in_progress.begin(client(number), &head).is_err());
        }
        assert!(in_progress.begin(client(4), &HeaderMap::new()).is_err());
        requests.pop();
        // All its places are given back.
        assert!(in_progress.begin(client(3), &head).is_ok());
        for _ in 0..16 {
            requests.push(in_progress.begin(client(4), &HeaderMap::new()).unwrap());
        }
        assert!(in_progress.begin(client(4), &HeaderMap::new()).is_err());
    }
}
