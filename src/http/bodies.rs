//! The memory of request bodies that are received whole before they are parsed, and of decoders of bodies.
//!
//! All of them share one bound, and those of one client a quarter of it, or what one body may take if that is more. If a
//! body finds no room, the bodies of which nothing has arrived for the longest time are given up.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

use crate::clock::Boottime;
use crate::server::client_network;

/// The longest body of a batch request.
pub(super) const BATCH_BYTES_MAX: usize = 1 << 20;

/// A body is not given up before nothing of it has arrived for this long.
const STALL_MIN: Duration = Duration::from_secs(1);

/// What a frame takes at least. A client may send each byte in a frame of its own.
const FRAME_BYTES: usize = 64;

/// The share of one client is this part of the whole.
const CLIENTS: usize = 4;

/// The memory that request bodies share.
#[derive(Clone)]
pub(super) struct BodiesMemory(Arc<Shared>);

struct Shared {
    bytes_max: usize,
    client_bytes_max: usize,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    bytes: usize,
    next: u64,
    bodies: HashMap<u64, Receiving>,
    /// The bytes of each client that has some.
    clients: HashMap<IpAddr, usize>,
}

/// A body that is being received.
struct Receiving {
    client: IpAddr,
    bytes: usize,
    /// When the last frame arrived.
    progressed_at: Boottime,
    /// Wakes the task that waits for the next frame. `None` while larder is busy with the frames before.
    waker: Option<Waker>,
}

/// There is no memory for the body.
#[derive(Debug, thiserror::Error)]
#[error("too many request bodies are being received")]
pub(super) struct NoRoom;

impl BodiesMemory {
    /// `body_bytes_max`: what one body may take with its decoder.
    pub(super) fn new(bytes_max: u64, body_bytes_max: usize) -> Self {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        Self(Arc::new(Shared {
            bytes_max,
            client_bytes_max: body_bytes_max.max(bytes_max / CLIENTS),
            held: Mutex::default(),
        }))
    }

    /// The same `body`, of `client`. It fails with [`NoRoom`] if there is no memory for it. The memory is released with the
    /// result.
    pub(super) fn hold(&self, body: Body, client: IpAddr) -> Body {
        if body.is_end_stream() {
            return body;
        }
        let share = self.share(client);
        Body::new(HeldBody { body, share })
    }

    /// The share of a body of `client`, of 0 bytes yet.
    pub(super) fn share(&self, client: IpAddr) -> BodyShare {
        let mut held = self.0.lock();
        let id = held.next;
        held.next += 1;
        let receiving = Receiving {
            client: client_network(client),
            bytes: 0,
            progressed_at: Boottime::now(),
            waker: None,
        };
        held.bodies.insert(id, receiving);
        drop(held);
        let shared = Arc::clone(&self.0);
        BodyShare { shared, id }
    }
}

/// The memory of one body that is being received. Dropping it releases the memory.
pub(super) struct BodyShare {
    shared: Arc<Shared>,
    id: u64,
}

impl BodyShare {
    /// Notes that something of the body has arrived, and that it takes so many more `bytes`. Other bodies are given up for
    /// them.
    ///
    /// # Errors
    /// There is no memory for them, or this body was given up.
    pub(super) fn grow(&self, bytes: usize) -> Result<(), NoRoom> {
        self.shared.grow(self.id, bytes)
    }

    /// Notes that the body's task waits for its client.
    ///
    /// # Errors
    /// The body was given up.
    pub(super) fn wait(&self, context: &Context<'_>) -> Result<(), NoRoom> {
        let mut held = self.shared.lock();
        let receiving = held.bodies.get_mut(&self.id).ok_or(NoRoom)?;
        receiving.waker = Some(context.waker().clone());
        Ok(())
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.shared.lock().end(self.id);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that so many bytes of a body have arrived, and gives up other bodies for them.
    fn grow(&self, id: u64, bytes: usize) -> Result<(), NoRoom> {
        let mut held = self.lock();
        let now = Boottime::now();
        let receiving = held.bodies.get_mut(&id).ok_or(NoRoom)?;
        receiving.progressed_at = now;
        receiving.waker = None;
        let client = receiving.client;
        loop {
            let of_client = held.clients.get(&client).copied().unwrap_or_default();
            let is_client_full = of_client + bytes > self.client_bytes_max;
            if !is_client_full && held.bytes + bytes <= self.bytes_max {
                break;
            }
            let of = is_client_full.then_some(client);
            let stalled = held.most_stalled(of, now).ok_or(NoRoom)?;
            if let Some(waker) = held.end(stalled) {
                waker.wake();
            }
        }
        held.bytes += bytes;
        *held.clients.entry(client).or_default() += bytes;
        let receiving = held.bodies.get_mut(&id).ok_or(NoRoom)?;
        receiving.bytes += bytes;
        Ok(())
    }
}

impl Held {
    /// The body whose client has been waited for the longest time, and at least for [`STALL_MIN`].
    fn most_stalled(&self, client: Option<IpAddr>, now: Boottime) -> Option<u64> {
        let bodies = self
            .bodies
            .iter()
            .filter(|(_, body)| body.bytes > 0 && body.waker.is_some());
        let bodies = bodies.filter(|(_, body)| client.is_none_or(|client| client == body.client));
        let (id, oldest) = bodies.min_by_key(|(_, body)| body.progressed_at.0)?;
        (now.since(oldest.progressed_at) >= STALL_MIN).then_some(*id)
    }

    /// Releases the memory of a body. Returns what wakes its reader, if that waits.
    fn end(&mut self, id: u64) -> Option<Waker> {
        let body = self.bodies.remove(&id)?;
        self.bytes -= body.bytes;
        if let Some(bytes) = self.clients.get_mut(&body.client) {
            *bytes -= body.bytes;
            if *bytes == 0 {
                self.clients.remove(&body.client);
            }
        }
        body.waker
    }
}

/// A body whose bytes are counted.
struct HeldBody {
    body: Body,
    share: BodyShare,
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                self.share.grow(bytes.max(FRAME_BYTES))?;
            }
            Poll::Ready(_) => {}
            Poll::Pending => self.share.wait(context)?,
        }
        frame.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use axum::http::StatusCode;
    use futures_util::StreamExt;
    use futures_util::stream::{self, Stream};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::clock::stopped;
    use crate::http::body::read_body;
    use crate::http::problem::Problem;

    const KIB: usize = 1 << 10;

    fn client(number: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, number).into()
    }

    /// A body of frames of a KiB each that does not end.
    fn frames(count: usize) -> impl Stream<Item = Result<Bytes, BoxError>> + Send {
        let frame = || Ok(Bytes::from(vec![b' '; KIB]));
        stream::iter((0..count).map(move |_| frame())).chain(stream::pending())
    }

    fn receive(memory: &BodiesMemory, number: u8, count: usize) -> JoinHandle<StatusCode> {
        let body = memory.hold(Body::from_stream(frames(count)), client(number));
        let read = async move { read_body(body, 1 << 20).await };
        tokio::spawn(async {
            read.await
                .map_or_else(|problem: Problem| problem.status(), |_| StatusCode::OK)
        })
    }

    async fn held(memory: &BodiesMemory, bytes: usize) {
        while memory.0.lock().bytes != bytes {
            tokio::task::yield_now().await;
        }
    }

    fn at(start: Boottime, milliseconds: u64) {
        stopped::set(Boottime(start.0 + milliseconds * 1_000_000));
    }

    #[tokio::test]
    async fn the_body_that_stalls_gives_way() {
        let memory = BodiesMemory::new(64 * KIB as u64, 0);
        let start = Boottime::now();
        at(start, 0);
        let bodies = [1, 2, 3, 4].map(|number| receive(&memory, number, 16));
        held(&memory, 64 * KIB).await;
        let late = receive(&memory, 5, 8);
        assert_eq!(late.await.unwrap(), StatusCode::SERVICE_UNAVAILABLE);
        held(&memory, 64 * KIB).await;
        at(start, 1_000);
        let late = receive(&memory, 5, 8);
        held(&memory, 56 * KIB).await;
        let [first, second, third, fourth] = bodies;
        let given_up = [&first, &second, &third, &fourth].map(JoinHandle::is_finished);
        assert_eq!(
            given_up.iter().filter(|is_given_up| **is_given_up).count(),
            1
        );
        for body in [first, second, third, fourth, late] {
            body.abort();
        }
        held(&memory, 0).await;
        assert!(memory.0.lock().clients.is_empty());
    }

    #[tokio::test]
    async fn a_client_has_a_quarter() {
        let memory = BodiesMemory::new(64 * KIB as u64, 0);
        let start = Boottime::now();
        at(start, 0);
        let first = receive(&memory, 1, 10);
        let other = receive(&memory, 2, 4);
        held(&memory, 14 * KIB).await;
        let second = receive(&memory, 1, 7);
        assert_eq!(second.await.unwrap(), StatusCode::SERVICE_UNAVAILABLE);
        at(start, 1_000);
        let third = receive(&memory, 1, 7);
        assert_eq!(first.await.unwrap(), StatusCode::SERVICE_UNAVAILABLE);
        held(&memory, 11 * KIB).await;
        assert!(!other.is_finished() && !third.is_finished());
    }

    #[tokio::test]
    async fn a_body_that_ends_is_read_and_released() {
        let memory = BodiesMemory::new(64 * KIB as u64, 0);
        let body = memory.hold(Body::from("text"), client(1));
        assert_eq!(read_body(body, 4).await.unwrap(), "text");
        assert!(memory.0.lock().bodies.is_empty());
        held(&memory, 0).await;
    }
}
