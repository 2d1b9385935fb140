//! The memory of answers with many or long documents, from the time they are made until their clients have read them.
//!
//! All of them share one bound. If an answer finds no room, the answers whose clients have read nothing for the longest
//! time are dropped, and their connections end.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use prometheus::IntCounter;

use crate::clock::Boottime;
use crate::http::full_body::FullBody;
use crate::http::problem::Problem;

/// What a connection, or a stream of HTTP/2, gets at once of an answer. An answer that is not longer needs no reservation, as
/// these are limited.
pub(super) const PIECE_BYTES: usize = 16 << 10;

/// A part that is longer is copied piece by piece: a connection that holds a slice of it would hold all of it.
const WHOLE_PART_BYTES: usize = 2 * PIECE_BYTES;

/// An answer is not dropped before its client has read nothing for this long.
const STALL_MIN: Duration = Duration::from_secs(1);

/// The bounds of answers with many documents.
#[derive(Clone, Debug, Default)]
pub struct AnswersConfig {
    /// The documents of one answer, in bytes before they are compressed.
    pub answer_bytes_max: u64,
    /// All answers that are being made or sent, in bytes.
    pub memory_bytes_max: u64,
}

/// The memory that answers with many documents share.
#[derive(Clone)]
pub(super) struct AnswersMemory(Arc<Shared>);

struct Shared {
    answer_bytes_max: usize,
    bytes_max: usize,
    held: Mutex<Held>,
    dropped: IntCounter,
}

#[derive(Default)]
struct Held {
    /// Of the answers that are being made and of those that are being sent.
    bytes: usize,
    next: u64,
    sending: HashMap<u64, Sending>,
    /// How many answers hold the bytes that begin at an address, and that they share with others.
    shared: HashMap<usize, usize>,
}

/// Bytes that several answers may hold.
#[derive(Clone, Copy, Debug)]
struct SharedBytes {
    address: usize,
    bytes: usize,
}

/// An answer that is being sent.
struct Sending {
    /// The parts that were not sent yet, the next one last.
    parts: Vec<Bytes>,
    reserved: usize,
    document: Option<SharedBytes>,
    /// When its connection took the last piece.
    progressed_at: Boottime,
}

impl AnswersMemory {
    /// `dropped` counts the answers that are dropped because their clients do not read them.
    pub(super) fn new(config: &AnswersConfig, dropped: IntCounter) -> Self {
        let bytes = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self(Arc::new(Shared {
            answer_bytes_max: bytes(config.answer_bytes_max),
            bytes_max: bytes(config.memory_bytes_max),
            held: Mutex::default(),
            dropped,
        }))
    }

    /// The most bytes of the documents of one answer.
    pub(super) fn answer_bytes_max(&self) -> usize {
        self.0.answer_bytes_max
    }

    /// The reservation of an answer that is going to be made.
    pub(super) fn reservation(&self) -> Reservation {
        Reservation {
            shared: Arc::clone(&self.0),
            used: 0,
            reserved: 0,
            document: None,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves so many bytes, and drops answers for it whose clients do not read.
    fn reserve(&self, bytes: usize) -> Result<(), Problem> {
        // Freed after the lock is.
        let mut dropped = Vec::new();
        self.reserve_locked(&mut self.lock(), bytes, &mut dropped)
    }

    /// Reserves bytes that answers may share, once for all of them.
    fn reserve_shared(&self, document: SharedBytes) -> Result<(), Problem> {
        let mut dropped = Vec::new();
        let mut held = self.lock();
        if let Some(answers) = held.shared.get_mut(&document.address) {
            *answers += 1;
            return Ok(());
        }
        self.reserve_locked(&mut held, document.bytes, &mut dropped)?;
        held.shared.insert(document.address, 1);
        Ok(())
    }

    fn reserve_locked(
        &self,
        held: &mut Held,
        bytes: usize,
        dropped: &mut Vec<Sending>,
    ) -> Result<(), Problem> {
        while held.bytes.saturating_add(bytes) > self.bytes_max {
            let Some(stalled) = held.most_stalled() else {
                return Err(Problem::ANSWERS_FULL);
            };
            dropped.extend(held.end(stalled));
            self.dropped.inc();
        }
        held.bytes += bytes;
        Ok(())
    }
}

impl Held {
    fn most_stalled(&self) -> Option<u64> {
        let now = Boottime::now();
        let oldest = self
            .sending
            .iter()
            .min_by_key(|(_, sending)| sending.progressed_at.0)?;
        (now.since(oldest.1.progressed_at) >= STALL_MIN).then_some(*oldest.0)
    }

    /// Releases bytes that others may share.
    fn release(&mut self, document: SharedBytes) {
        let Some(answers) = self.shared.get_mut(&document.address) else {
            return;
        };
        *answers -= 1;
        if *answers == 0 {
            self.shared.remove(&document.address);
            self.bytes -= document.bytes;
        }
    }

    /// Ends an answer, and returns what is left of it, to be freed without the lock.
    fn end(&mut self, id: u64) -> Option<Sending> {
        let sending = self.sending.remove(&id)?;
        self.bytes -= sending.reserved;
        if let Some(document) = sending.document {
            self.release(document);
        }
        Some(sending)
    }
}

impl Sending {
    /// Takes the bytes of the next piece: one part of medium length, or slices of others up to [`PIECE_BYTES`] in all.
    fn take_piece(&mut self) -> Vec<Bytes> {
        let mut slices = Vec::new();
        let mut room = PIECE_BYTES;
        while let Some(part) = self.parts.last_mut().filter(|_| room > 0) {
            let is_medium = (PIECE_BYTES..=WHOLE_PART_BYTES).contains(&part.len());
            if is_medium && slices.is_empty() {
                slices.extend(self.parts.pop());
                break;
            }
            let slice = part.split_to(room.min(part.len()));
            if part.is_empty() {
                self.parts.pop();
            }
            room -= slice.len();
            slices.push(slice);
        }
        slices
    }
}

/// The bytes of a piece. Slices are copied, so that a connection does not hold the parts that they belong to.
fn join(slices: &[Bytes]) -> Bytes {
    match slices {
        [part] if part.len() > PIECE_BYTES => part.clone(),
        slices => slices.concat().into(),
    }
}

/// The share of an answer that is being made. Dropped with it.
pub(super) struct Reservation {
    shared: Arc<Shared>,
    used: usize,
    reserved: usize,
    document: Option<SharedBytes>,
}

impl Reservation {
    /// Reserves memory for so many bytes more.
    ///
    /// # Errors
    /// 503 if there is none, and every client reads its answer.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), Problem> {
        self.used += bytes;
        if self.used > PIECE_BYTES && self.used > self.reserved {
            // In steps, so that small documents do not take the lock each.
            let more = (self.used - self.reserved).next_multiple_of(PIECE_BYTES);
            self.shared.reserve(more)?;
            self.reserved += more;
        }
        Ok(())
    }

    /// Reserves memory for a body of one part, whose bytes the cache and other answers may hold, too: of the document,
    /// which has `bytes` in all.
    ///
    /// # Errors
    /// 503 as [`Reservation::grow`].
    pub(super) fn share(&mut self, part: &Bytes, bytes: usize) -> Result<(), Problem> {
        let document = SharedBytes {
            address: part.as_ptr().addr(),
            bytes: bytes.max(part.len()),
        };
        self.shared.reserve_shared(document)?;
        self.document = Some(document);
        Ok(())
    }

    /// The body that sends `body`, and holds the memory meanwhile.
    pub(super) fn into_body(mut self, body: FullBody) -> Body {
        let bytes = body.size_hint().lower();
        if bytes <= PIECE_BYTES as u64 {
            return Body::new(body);
        }
        let mut parts: Vec<Bytes> = body.into_parts().collect();
        parts.reverse();
        // Compression may have made it shorter.
        let reserved = self
            .reserved
            .min(usize::try_from(bytes).unwrap_or(usize::MAX));
        let mut held = self.shared.lock();
        held.bytes -= self.reserved - reserved;
        self.reserved = 0;
        let id = held.next;
        held.next += 1;
        let sending = Sending {
            parts,
            reserved,
            document: self.document.take(),
            progressed_at: Boottime::now(),
        };
        held.sending.insert(id, sending);
        drop(held);
        Body::new(SendingBody {
            shared: Arc::clone(&self.shared),
            id,
            left: bytes,
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.reserved > 0 || self.document.is_some() {
            let mut held = self.shared.lock();
            held.bytes -= self.reserved;
            if let Some(document) = self.document {
                held.release(document);
            }
        }
    }
}

/// The body of an answer with many documents.
struct SendingBody {
    shared: Arc<Shared>,
    id: u64,
    left: u64,
}

/// The answer was dropped, because its client did not read it and others needed its memory.
#[derive(Debug)]
struct AnswerDropped;

impl fmt::Display for AnswerDropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client did not read the response, whose memory was needed")
    }
}

impl std::error::Error for AnswerDropped {}

impl HttpBody for SendingBody {
    type Data = Bytes;
    type Error = AnswerDropped;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnswerDropped>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let shared = Arc::clone(&self.shared);
        let slices = {
            let mut held = shared.lock();
            let Some(sending) = held.sending.get_mut(&self.id) else {
                return Poll::Ready(Some(Err(AnswerDropped)));
            };
            sending.progressed_at = Boottime::now();
            let slices = sending.take_piece();
            let bytes: usize = slices.iter().map(Bytes::len).sum();
            let released = bytes.min(sending.reserved);
            sending.reserved -= released;
            held.bytes -= released;
            slices
        };
        let piece = join(&slices);
        self.left = self.left.saturating_sub(piece.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

impl Drop for SendingBody {
    fn drop(&mut self) {
        let ended = self.shared.lock().end(self.id);
        drop(ended);
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn memory(mib: u64) -> AnswersMemory {
        let config = AnswersConfig {
            answer_bytes_max: 1 << 20,
            memory_bytes_max: mib << 20,
        };
        let dropped = IntCounter::new("dropped", "dropped").unwrap();
        AnswersMemory::new(&config, dropped)
    }

    fn body(memory: &AnswersMemory, parts: Vec<Bytes>) -> Result<Body, Problem> {
        let mut reservation = memory.reservation();
        for part in &parts {
            reservation.grow(part.len())?;
        }
        Ok(reservation.into_body(FullBody::from_parts(parts)))
    }

    fn mib(byte: u8) -> Vec<Bytes> {
        vec![vec![byte; 1 << 20].into()]
    }

    fn held(memory: &AnswersMemory) -> usize {
        memory.0.lock().bytes
    }

    #[tokio::test]
    async fn the_bytes_come_in_order_and_their_memory_is_released() {
        let memory = memory(4);
        let lengths = [1, 70_000, 0, 400_000, 3, 65_536, 10];
        let parts = (0_u8..).zip(lengths);
        let parts: Vec<Bytes> = parts
            .map(|(byte, length)| vec![byte; length].into())
            .collect();
        let expected = parts.concat();
        let mut body = body(&memory, parts).unwrap();
        assert!(held(&memory) >= expected.len());
        let mut found = Vec::new();
        while let Some(frame) = body.frame().await {
            let data = frame.unwrap().into_data().unwrap();
            assert!(!data.is_empty() && data.len() <= WHOLE_PART_BYTES);
            found.extend_from_slice(&data);
        }
        assert!(found == expected && body.is_end_stream());
        drop(body);
        assert_eq!(held(&memory), 0);
    }

    #[tokio::test]
    async fn the_answer_that_is_not_read_gives_way() {
        let memory = memory(2);
        let start = Boottime::now();
        let at = |milliseconds: u64| {
            crate::clock::stopped::set(Boottime(start.0 + milliseconds * 1_000_000));
        };
        at(0);
        let mut first = body(&memory, mib(1)).unwrap();
        at(500);
        let mut second = body(&memory, mib(2)).unwrap();
        at(900);
        assert!(body(&memory, mib(3)).is_err(), "both may be read yet");
        assert!(first.frame().await.unwrap().is_ok());
        at(1_600);
        let third = body(&memory, mib(3)).unwrap();
        assert!(second.frame().await.unwrap().is_err());
        assert!(first.frame().await.unwrap().is_ok());
        assert_eq!(memory.0.dropped.get(), 1);
        drop((first, second, third));
        assert_eq!(held(&memory), 0);
    }

    #[tokio::test]
    async fn bytes_that_answers_share_are_counted_once() {
        let memory = memory(2);
        let document = mib(1);
        let share = |part: &Bytes| {
            let mut reservation = memory.reservation();
            let shared = reservation.share(part, part.len());
            shared.map(|()| reservation.into_body(FullBody::new(part.clone())))
        };
        let bodies: Vec<Body> = (0..10).map(|_| share(&document[0]).unwrap()).collect();
        assert_eq!(held(&memory), 1 << 20);
        let other = share(&mib(2)[0]).unwrap();
        assert!(share(&mib(3)[0]).is_err());
        drop(bodies);
        assert_eq!(held(&memory), 1 << 20);
        drop(other);
        assert_eq!(held(&memory), 0);
        assert!(memory.0.lock().shared.is_empty());
    }

    #[test]
    fn a_reservation_that_is_dropped_is_released() {
        let memory = memory(1);
        let mut reservation = memory.reservation();
        reservation.grow(1_000_000).unwrap();
        assert!(reservation.grow(1_000_000).is_err());
        drop(reservation);
        assert_eq!(held(&memory), 0);
    }
}
