//! Request bodies with a `Content-Encoding`: gzip and zstd are decoded while they arrive.
//!
//! A decoded body is read in pieces, so the limits of its reader hold for the decoded bytes, and a reader that stops early
//! stops the decoder. The memory of a decoder counts as that of a body that is being received. What follows the first
//! [`INLINE_BYTES_MAX`] bytes is decoded by tokio's threads for blocking work, not by the workers.

pub(super) mod decoder;

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_ENCODING;
use futures_util::future::{BoxFuture, FutureExt};
use hyper::body::Frame;
use tokio::sync::Semaphore;

use crate::http::bodies::BodyShare;
use crate::http::decoding::decoder::{ContentCoding, Decoder, DecodingError};
use crate::http::headers::members;
use crate::http::problem::Problem;
use crate::http::work::run_blocking;

/// The encoded and decoded bytes at the beginning of a body that the worker itself decodes.
const INLINE_BYTES_MAX: usize = 64 << 10;

/// The decoded bytes of a piece.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// Pieces that are decoded at the same time by threads for blocking work; other bodies wait.
static DECODERS: Semaphore = Semaphore::const_new(2);

/// The coding of a request's body; `None` if it is not encoded.
///
/// # Errors
/// 415 if it has several codings, or one that larder does not decode.
pub(super) fn content_coding(headers: &HeaderMap) -> Result<Option<ContentCoding>, Problem> {
    if !headers.contains_key(CONTENT_ENCODING) {
        return Ok(None);
    }
    let mut lines = headers.get_all(CONTENT_ENCODING).iter();
    let is_text = lines.all(|line| line.to_str().is_ok());
    let is_coding = |name: &&str| !name.is_empty() && !name.eq_ignore_ascii_case("identity");
    let mut codings = members(headers, CONTENT_ENCODING).filter(is_coding);
    let (coding, other) = (codings.next(), codings.next());
    let is = |coding: &str, name: &str| coding.eq_ignore_ascii_case(name);
    match coding {
        _ if !is_text || other.is_some() => Err(Problem::unsupported_encoding()),
        None => Ok(None),
        // RFC 9110, section 8.4.1.3: "x-gzip" is the same.
        Some(coding) if is(coding, "gzip") || is(coding, "x-gzip") => Ok(Some(ContentCoding::Gzip)),
        Some(coding) if is(coding, "zstd") => Ok(Some(ContentCoding::Zstd)),
        Some(_) => Err(Problem::unsupported_encoding()),
    }
}

/// The decoded `body`, whose decoder counts in `share`. It fails with a [`DecodingError`], or as `body` does.
pub(super) fn decode(body: Body, coding: ContentCoding, share: BodyShare) -> Body {
    if body.is_end_stream() {
        return body;
    }
    Body::new(DecodedBody {
        body,
        share,
        share_bytes: 0,
        inline_bytes: 0,
        state: State::Ready(Box::new(Decoder::new(coding))),
    })
}

/// A body that is decoded while it arrives.
struct DecodedBody {
    body: Body,
    share: BodyShare,
    /// The decoder's bytes that `share` has counted.
    share_bytes: usize,
    inline_bytes: usize,
    state: State,
}

enum State {
    Ready(Box<Decoder>),
    Running(BoxFuture<'static, Result<Decoded, DecodingError>>),
    Ended,
}

/// A decoder, and what it has decoded.
type Decoded = (Box<Decoder>, Result<Vec<u8>, DecodingError>);

/// Decodes a piece on a thread for blocking work.
async fn decode_blocking(mut decoder: Box<Decoder>) -> Result<Decoded, DecodingError> {
    // The semaphore is never closed.
    let permit = DECODERS.acquire().await;
    let decode = move || {
        // Held until the work ends, even if the body is dropped.
        let _permit = permit;
        let decoded = decoder.decode(PIECE_BYTES_MAX);
        (decoder, decoded)
    };
    run_blocking(decode)
        .await
        .map_err(|_| DecodingError::Failed)
}

impl DecodedBody {
    /// The next piece; `None` at the end.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<u8>, BoxError>>> {
        loop {
            let (decoder, decoded) = match std::mem::replace(&mut self.state, State::Ended) {
                State::Ended => return Poll::Ready(None),
                State::Running(mut running) => {
                    let Poll::Ready(decoded) = running.as_mut().poll(context) else {
                        self.state = State::Running(running);
                        return Poll::Pending;
                    };
                    decoded?
                }
                State::Ready(mut decoder) if decoder.has_input() => {
                    self.inline_bytes += decoder.input_bytes();
                    if self.inline_bytes >= INLINE_BYTES_MAX {
                        self.state = State::Running(decode_blocking(decoder).boxed());
                        continue;
                    }
                    let decoded = decoder.decode(INLINE_BYTES_MAX - self.inline_bytes);
                    self.inline_bytes += decoded.as_ref().map_or(0, Vec::len);
                    (decoder, decoded)
                }
                State::Ready(mut decoder) => match self.poll_input(context) {
                    Poll::Pending => {
                        self.state = State::Ready(decoder);
                        self.share.wait(context)?;
                        return Poll::Pending;
                    }
                    Poll::Ready(Some(input)) => {
                        decoder.push(input?);
                        self.share.grow(0)?;
                        self.state = State::Ready(decoder);
                        continue;
                    }
                    Poll::Ready(None) => {
                        let rest = decoder.finish()?;
                        return Poll::Ready((!rest.is_empty()).then_some(Ok(rest)));
                    }
                },
            };
            let decoded = decoded?;
            let bytes = decoder.memory_bytes();
            self.share.grow(bytes.saturating_sub(self.share_bytes))?;
            self.share_bytes = self.share_bytes.max(bytes);
            self.state = State::Ready(decoder);
            if !decoded.is_empty() {
                return Poll::Ready(Some(Ok(decoded)));
            }
        }
    }

    /// The next encoded bytes. Trailers are dropped.
    fn poll_input(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>> {
        loop {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
            }
        }
    }
}

impl HttpBody for DecodedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let piece = ready!(self.poll_piece(context));
        Poll::Ready(piece.map(|piece| piece.map(|bytes| Frame::data(bytes.into()))))
    }
}

#[cfg(test)]
mod tests;
