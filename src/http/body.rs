//! Bodies whose bytes are all there: of answers, and of requests that are read as a whole.

use std::convert::Infallible;
use std::error::Error;
use std::iter;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use axum::body::{Body, Bytes, HttpBody};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Frame, SizeHint};

use crate::http::connection::BodyTimeout;
use crate::http::problem::Problem;

/// Bytes that are sent as they are, a frame for each part.
#[derive(Debug, Default)]
pub struct Whole {
    part: Bytes,
    rest: vec::IntoIter<Bytes>,
    /// Not yet handed on.
    bytes: u64,
}

impl Whole {
    /// A body of one part.
    pub(super) fn new(part: Bytes) -> Self {
        Self {
            bytes: part.len() as u64,
            part,
            rest: Vec::new().into_iter(),
        }
    }

    /// A body of several parts, one after the other.
    pub(super) fn of(parts: Vec<Bytes>) -> Self {
        Self {
            bytes: parts.iter().map(|part| part.len() as u64).sum(),
            part: Bytes::new(),
            rest: parts.into_iter(),
        }
    }
}

impl HttpBody for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        while self.part.is_empty() {
            match self.rest.next() {
                Some(part) => self.part = part,
                None => return Poll::Ready(None),
            }
        }
        let part = std::mem::take(&mut self.part);
        self.bytes -= part.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes)
    }
}

/// The body of a request.
///
/// # Errors
/// 408 where it comes too slowly, 413 beyond `bytes_max`, 400 where it breaks off.
pub(super) async fn read_whole(body: Body, bytes_max: usize) -> Result<Bytes, Problem> {
    let read = Limited::new(body, bytes_max).collect().await;
    let read = read.map_err(|error| match error.is::<LengthLimitError>() {
        true => Problem::body_too_large(bytes_max),
        false => broken(&*error),
    })?;
    Ok(read.to_bytes())
}

/// Why a request's body came to no end.
pub(super) fn broken(error: &(dyn Error + 'static)) -> Problem {
    // axum wraps errors of the connection.
    let mut causes = iter::successors(Some(error), |&error| error.source());
    match causes.any(|cause| cause.is::<BodyTimeout>()) {
        true => Problem::body_too_slow(),
        false => Problem::bad_request("the body broke off"),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn a_body_that_can_not_be_read_says_why() {
        let status = async |body| read_whole(body, 4).await.unwrap_err().status();
        let broken =
            |error: axum::BoxError| Body::from_stream(stream::iter([Err::<Bytes, _>(error)]));
        assert_eq!(
            status(broken(BodyTimeout.into())).await,
            StatusCode::REQUEST_TIMEOUT
        );
        assert_eq!(
            status(broken("reset".into())).await,
            StatusCode::BAD_REQUEST
        );
        assert_eq!(status("12345".into()).await, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(read_whole("1234".into(), 4).await.unwrap(), "1234");
    }

    #[tokio::test]
    async fn parts_come_in_order_and_none_is_empty() {
        let parts = vec!["ab".into(), Bytes::new(), "cde".into(), Bytes::new()];
        let mut body = Whole::of(parts);
        for (left, part) in [(5, "ab"), (3, "cde")] {
            assert!(!body.is_end_stream());
            assert_eq!(body.size_hint().exact(), Some(left));
            let frame = body.frame().await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), part);
        }
        assert!(body.is_end_stream());
        assert!(body.frame().await.is_none());
        assert!(Whole::default().is_end_stream());
    }
}
