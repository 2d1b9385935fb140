use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};

use axum::http::{HeaderValue, StatusCode};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream::{self, StreamExt};
use http_body_util::BodyExt;
use zstd::zstd_safe::CParameter;

use super::*;
use crate::http::bodies::BodiesMemory;
use crate::http::body::read_body;

const CODINGS: [ContentCoding; 2] = [ContentCoding::Gzip, ContentCoding::Zstd];
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn encoded(coding: ContentCoding, text: &[u8]) -> Vec<u8> {
    match coding {
        ContentCoding::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        }
        ContentCoding::Zstd => zstd::encode_all(text, 3).unwrap(),
    }
}

fn memory() -> BodiesMemory {
    BodiesMemory::new(64 << 20, 0)
}

/// A body that arrives in pieces of `size` bytes.
fn in_pieces(bytes: &[u8], size: usize) -> Body {
    let pieces: Vec<_> = bytes.chunks(size).map(Bytes::copy_from_slice).collect();
    Body::from_stream(stream::iter(pieces.into_iter().map(Ok::<_, BoxError>)))
}

async fn decoded(coding: ContentCoding, body: Body) -> Result<Bytes, (StatusCode, String)> {
    let body = decode(body, coding, memory().share(CLIENT));
    let read = read_body(body, 64 << 20).await;
    read.map_err(|problem| {
        let body = simd_json::to_string(&problem.body()).unwrap();
        (problem.status(), body)
    })
}

/// The error of a body that is read without a limit, and the bytes that were decoded before.
async fn failure(coding: ContentCoding, body: Body) -> (Option<DecodingError>, usize) {
    let mut body = decode(body, coding, memory().share(CLIENT));
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => bytes += frame.data_ref().map_or(0, Bytes::len),
            Err(error) => {
                let error = error.into_inner();
                return (error.downcast_ref().copied(), bytes);
            }
        }
    }
    (None, bytes)
}

#[tokio::test]
async fn a_body_is_decoded_however_it_arrives() {
    let short = b"{\"no\":1}".to_vec();
    let long: Vec<u8> = (0..40_000)
        .flat_map(|n| format!("{{\"no\":{n}}}\n").into_bytes())
        .collect();
    for coding in CODINGS {
        for text in [&b""[..], &short, &long] {
            let encoded = encoded(coding, text);
            for size in [1, 7, 1_000, 1 << 20] {
                let body = in_pieces(&encoded, size);
                assert_eq!(
                    decoded(coding, body).await.unwrap(),
                    text,
                    "{coding:?} {size}"
                );
            }
        }
    }
}

#[tokio::test]
async fn members_and_frames_follow_each_other() {
    for coding in CODINGS {
        let parts = [&b"one "[..], b"", b"two ", b"three"];
        let all: Vec<u8> = parts
            .iter()
            .flat_map(|part| encoded(coding, part))
            .collect();
        for size in [1, 1 << 20] {
            let body = in_pieces(&all, size);
            assert_eq!(decoded(coding, body).await.unwrap(), "one two three");
        }
    }
}

#[tokio::test]
async fn incomplete_and_wrong_streams_are_refused() {
    for coding in CODINGS {
        let whole = encoded(coding, b"{\"no\":1,\"name\":\"SALES\"}");
        for end in 1..whole.len() {
            let (error, _) = failure(coding, in_pieces(&whole[..end], 1_000)).await;
            let name = match coding {
                ContentCoding::Gzip => "gzip",
                ContentCoding::Zstd => "zstd",
            };
            // A checksum that is cut off is wrong.
            let expected = [
                DecodingError::Truncated(name),
                DecodingError::Malformed(name),
            ];
            assert!(
                error.is_some_and(|error| expected.contains(&error)),
                "{coding:?} {end} {error:?}"
            );
        }
        for garbage in [&b"x"[..], b"garbage after the end", &[0; 64]] {
            let body = [&whole[..], garbage].concat();
            for size in [1, 1_000] {
                let (status, _) = decoded(coding, in_pieces(&body, size)).await.unwrap_err();
                assert_eq!(status, StatusCode::BAD_REQUEST, "{coding:?} {garbage:?}");
            }
        }
        let (status, problem) = decoded(coding, Body::from("{\"no\":1,\"name\":2}"))
            .await
            .unwrap_err();
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(problem.contains("not valid"), "{problem}");
    }
    let mut damaged = encoded(ContentCoding::Gzip, b"text");
    let checksum = damaged.len() - 8;
    damaged[checksum] ^= 1;
    let (error, _) = failure(ContentCoding::Gzip, Body::from(damaged)).await;
    assert_eq!(error, Some(DecodingError::Malformed("gzip")));
}

#[tokio::test]
async fn long_windows_of_zstd_are_refused() {
    for (log, is_refused) in [(23, false), (24, true)] {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.set_parameter(CParameter::WindowLog(log)).unwrap();
        encoder.write_all(b"text").unwrap();
        // Without it, the end of the frame would be known, and its window as short as its text.
        encoder.flush().unwrap();
        let encoded = encoder.finish().unwrap();
        let decoded = decoded(ContentCoding::Zstd, Body::from(encoded)).await;
        let status = decoded.map_or_else(|(status, _)| status, |_| StatusCode::OK);
        assert_eq!(
            status == StatusCode::PAYLOAD_TOO_LARGE,
            is_refused,
            "{log} {status}"
        );
    }
}

/// A few KiB decode to a GiB.
#[tokio::test]
async fn a_body_that_is_too_dense_is_refused_early() {
    let spaces = vec![b' '; 16 << 20];
    for coding in CODINGS {
        let bomb = encoded(coding, &spaces).repeat(100);
        let body = decode(Body::from(bomb.clone()), coding, memory().share(CLIENT));
        let refused = read_body(body, 2 << 20).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
        let (error, bytes) = failure(coding, in_pieces(&bomb, 4_096)).await;
        assert_eq!(error, Some(DecodingError::TooDense), "{coding:?}");
        assert!(bytes < 24 << 20, "{bytes}");
    }
}

/// Members and frames without content would be received without end.
#[tokio::test]
async fn a_body_that_is_too_sparse_is_refused() {
    let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 100, 0, 0, 0][..], &[0; 100]].concat();
    for (coding, empty) in [
        (ContentCoding::Gzip, encoded(ContentCoding::Gzip, b"")),
        (ContentCoding::Zstd, encoded(ContentCoding::Zstd, b"")),
        (ContentCoding::Zstd, skipped),
    ] {
        let body = stream::repeat(Bytes::from(empty)).map(Ok::<_, BoxError>);
        let (error, _) = failure(coding, Body::from_stream(body)).await;
        assert_eq!(error, Some(DecodingError::TooSparse), "{coding:?}");
    }
}

/// A client would otherwise pin a window of 8 MiB by each request that it does not end.
#[tokio::test]
async fn the_memory_of_decoders_counts() {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.set_parameter(CParameter::WindowLog(23)).unwrap();
    encoder.write_all(&vec![b' '; 1 << 20]).unwrap();
    encoder.flush().unwrap();
    let start = Bytes::from(encoder.finish().unwrap());
    let memory = BodiesMemory::new(32 << 20, 10 << 20);
    let receive = || {
        let start = stream::iter([Ok::<_, BoxError>(start.clone())]).chain(stream::pending());
        decode(
            Body::from_stream(start),
            ContentCoding::Zstd,
            memory.share(CLIENT),
        )
    };
    let mut held = receive();
    held.frame().await.unwrap().unwrap();
    let refused = read_body(receive(), 64 << 20).await.unwrap_err();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    drop(held);
    receive().frame().await.unwrap().unwrap();
}

#[test]
fn one_coding_is_decoded() {
    let of = |lines: &[&'static str]| {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(CONTENT_ENCODING, HeaderValue::from_static(line));
        }
        content_coding(&headers).map_err(|problem| problem.status())
    };
    for none in [&[][..], &[""], &["identity"], &["identity, Identity", ""]] {
        assert_eq!(of(none), Ok(None), "{none:?}");
    }
    for one in [
        &["gzip"][..],
        &["GZIP"],
        &["x-gzip"],
        &["identity", "gzip"],
        &[", gzip ,"],
    ] {
        assert_eq!(of(one), Ok(Some(ContentCoding::Gzip)), "{one:?}");
    }
    assert_eq!(of(&["zstd"]), Ok(Some(ContentCoding::Zstd)));
    for other in [
        &["br"][..],
        &["deflate"],
        &["gzip, gzip"],
        &["zstd", "gzip"],
        &["gzip;q=1"],
        &["*"],
    ] {
        assert_eq!(
            of(other),
            Err(StatusCode::UNSUPPORTED_MEDIA_TYPE),
            "{other:?}"
        );
    }
}
