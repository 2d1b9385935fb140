//! Bodies of requests that are read completely before they are parsed.

use std::error::Error;
use std::iter;

use axum::body::{Body, Bytes};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::http::bodies::NoRoom;
use crate::http::connection::BodyTimeout;
use crate::http::decoding::decoder::DecodingError;
use crate::http::problem::Problem;

/// The body of a request.
///
/// # Errors
/// 408 if it arrives too slowly, 413 if it is longer than `bytes_max`, 503 if there is no memory for it, 400 if it ends
/// early or can't be decoded.
pub(super) async fn read_body(body: Body, bytes_max: usize) -> Result<Bytes, Problem> {
    let read = Limited::new(body, bytes_max).collect().await;
    let read = read.map_err(|error| {
        if error.is::<LengthLimitError>() {
            Problem::body_too_large(bytes_max)
        } else {
            body_problem(&*error)
        }
    })?;
    Ok(read.to_bytes())
}

/// The problem for a body that could not be read to its end.
pub(super) fn body_problem(error: &(dyn Error + 'static)) -> Problem {
    // axum wraps errors of the connection.
    let causes = || iter::successors(Some(error), |&error| error.source());
    if causes().any(|cause| cause.is::<BodyTimeout>()) {
        Problem::BODY_TOO_SLOW
    } else if causes().any(|cause| cause.is::<NoRoom>()) {
        Problem::BODIES_FULL
    } else if let Some(error) = causes().find_map(|cause| cause.downcast_ref::<DecodingError>()) {
        Problem::undecodable(*error)
    } else {
        Problem::bad_request("the request body ended early")
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn a_body_that_can_not_be_read_is_a_problem() {
        let status = async |body| read_body(body, 4).await.unwrap_err().status();
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
        assert_eq!(read_body("1234".into(), 4).await.unwrap(), "1234");
    }
}
