//! Bodies with `Content-Encoding`: they are decoded while they arrive, within the limits of bodies that are not encoded.

use std::convert::Infallible;
use std::io::Write;

use axum::body::{Body, Bytes};
use axum::http::{Method, Request, StatusCode};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream::{self, StreamExt};
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;

use crate::harness::service::{TestResponse, TestService};
use crate::writes::{CONFIG, dept, start};

const CODINGS: [&str; 2] = ["gzip", "zstd"];
const JSON: (&str, &str) = ("content-type", "application/json");
const NDJSON: (&str, &str) = ("content-type", "application/x-ndjson");
const LENIENT: (&str, &str) = ("prefer", "handling=lenient");

fn encoded(coding: &str, text: &str) -> Vec<u8> {
    match coding {
        "gzip" => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(text.as_bytes()).unwrap();
            encoder.finish().unwrap()
        }
        "zstd" => zstd::encode_all(text.as_bytes(), 3).unwrap(),
        _ => text.as_bytes().to_vec(),
    }
}

/// Sends `text` in this encoding, with its own length as `Content-Length`.
async fn send(
    larder: &TestService,
    coding: &str,
    (method, path): (Method, &str),
    headers: &[(&str, &str)],
    text: &str,
) -> TestResponse {
    let body = encoded(coding, text);
    let length = body.len().to_string();
    let mut all = vec![("content-encoding", coding), ("content-length", &length)];
    all.extend_from_slice(headers);
    larder.send_bytes(method, path, &all, body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_body_of_documents_may_be_encoded() {
    let larder = start().await;
    for (coding, no) in CODINGS.into_iter().zip([1, 2]) {
        let path = format!("/depts/{no}");
        let text = dept(no).to_string();
        let answer = send(&larder, coding, (Method::POST, "/depts"), &[JSON], &text).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        assert_eq!(larder.get(&path).await.json(), dept(no));
        let patch = r#"{"name":"PATCHED"}"#;
        let answer = send(&larder, coding, (Method::PATCH, &path), &[JSON], patch).await;
        assert_eq!(answer.json()["name"], "PATCHED", "{}", answer.body);
        let answer = send(&larder, coding, (Method::PUT, &path), &[JSON], &text).await;
        assert_eq!(answer.json(), dept(no), "{}", answer.body);
        let keys = format!("{{\"keys\":[{no}]}}");
        let answer = send(&larder, coding, (Method::POST, "/depts:batch"), &[], &keys).await;
        assert_eq!(answer.json()["documents"], json!([dept(no)]));
        // Far more than a batch and a piece.
        let lines: String = (0..40_000)
            .map(|n| format!("{{\"no\":{},\"name\":\"N\"}}\n", no * 100_000 + n))
            .collect();
        let answer = send(&larder, coding, (Method::POST, "/depts"), &[NDJSON], &lines).await;
        assert_eq!(answer.body, r#"{"count":40000}"#);
        let array = json!([dept(no + 10), dept(no + 20)]).to_string();
        let answer = send(&larder, coding, (Method::POST, "/depts"), &[JSON], &array).await;
        assert_eq!(answer.body, r#"{"count":2}"#);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_for_decoded_bytes() {
    let larder = start().await;
    let url = larder.url.clone();
    let state = larder.stop().await;
    let bound = [("document_max", "4KiB")];
    let larder = TestService::start_in(state, &url, CONFIG, &bound).await;
    for coding in CODINGS {
        let long = json!({"no": 1, "name": "S".repeat(5_000)}).to_string();
        assert!(encoded(coding, &long).len() < 400);
        for (target, headers) in [
            ((Method::POST, "/depts"), &[JSON][..]),
            ((Method::PUT, "/depts/1"), &[JSON]),
            ((Method::PATCH, "/depts/1"), &[JSON]),
            ((Method::POST, "/depts"), &[NDJSON]),
        ] {
            let answer = send(&larder, coding, target, headers, &long).await;
            assert_eq!(
                answer.status,
                StatusCode::PAYLOAD_TOO_LARGE,
                "{}",
                answer.body
            );
        }
        // The encoded length is no bound: each byte is a stream of its own.
        let fits = json!({"no": 1, "name": "S".repeat(3_000)}).to_string();
        let bytes = fits.chars().map(|byte| encoded(coding, &byte.to_string()));
        let long: Vec<u8> = bytes.flatten().collect();
        let length = long.len().to_string();
        assert!(long.len() > 10_000);
        let headers = [
            JSON,
            ("content-encoding", coding),
            ("content-length", length.as_str()),
        ];
        let put = larder.send_bytes(Method::PUT, "/depts/1", &headers, long);
        let answer = put.await;
        assert!(answer.status.is_success(), "{}", answer.body);
        let keys = format!("{{\"keys\":[1]}}{}", " ".repeat(2 << 20));
        let answer = send(&larder, coding, (Method::POST, "/depts:batch"), &[], &keys).await;
        assert_eq!(
            answer.status,
            StatusCode::PAYLOAD_TOO_LARGE,
            "{}",
            answer.body
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_encodings_and_broken_streams_are_refused() {
    let larder = start().await;
    let text = dept(1).to_string();
    let targets = || {
        [
            (Method::POST, "/depts"),
            (Method::PUT, "/depts/1"),
            (Method::PATCH, "/depts/1"),
            (Method::POST, "/depts:batch"),
        ]
    };
    for coding in ["br", "deflate", "gzip, zstd", "gzip, gzip"] {
        for target in targets() {
            let answer = send(&larder, coding, target, &[JSON], &text).await;
            assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
            assert_eq!(answer.header("accept-encoding"), "gzip, zstd");
        }
    }
    for coding in CODINGS {
        let whole = encoded(coding, &text);
        let garbage = [&whole[..], b"garbage"].concat();
        for broken in [
            &whole[..whole.len() / 2],
            &whole[..whole.len() - 1],
            &garbage,
            text.as_bytes(),
        ] {
            for (method, path) in targets() {
                let headers = [JSON, ("content-encoding", coding)];
                let answer = larder
                    .send_bytes(method, path, &headers, broken.to_vec())
                    .await;
                assert_eq!(
                    answer.status,
                    StatusCode::BAD_REQUEST,
                    "{path} {}",
                    answer.body
                );
                assert!(answer.body.contains(coding), "{}", answer.body);
            }
        }
    }
    for coding in ["", "identity", "identity, identity"] {
        let answer = send(&larder, coding, (Method::PUT, "/depts/1"), &[JSON], &text).await;
        assert!(answer.status.is_success(), "{coding}: {}", answer.body);
    }
    let media_type = [("content-type", "text/plain")];
    let answer = larder
        .send(Method::POST, "/depts:batch", &media_type, "")
        .await;
    assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(answer.header("accept-encoding"), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_knows_a_body_in_every_encoding() {
    let larder = start().await;
    let key = ("idempotency-key", "k");
    let text = dept(1).to_string();
    let first = send(
        &larder,
        "identity",
        (Method::POST, "/depts"),
        &[JSON, key],
        &text,
    )
    .await;
    assert_eq!(first.status, StatusCode::CREATED, "{}", first.body);
    for coding in CODINGS {
        let again = send(
            &larder,
            coding,
            (Method::POST, "/depts"),
            &[JSON, key],
            &text,
        )
        .await;
        assert_eq!(again.status, StatusCode::CREATED, "{}", again.body);
        assert_eq!(again.header("larder-token"), first.header("larder-token"));
        let other = dept(2).to_string();
        let other = send(
            &larder,
            coding,
            (Method::POST, "/depts"),
            &[JSON, key],
            &other,
        )
        .await;
        assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);
    }
}

/// A client that sends lines and reads their outcomes may encode what it sends.
#[tokio::test(flavor = "multi_thread")]
async fn encoded_lines_are_written_as_they_arrive() {
    let larder = start().await;
    for (coding, no) in CODINGS.into_iter().zip([1, 2]) {
        let line = format!("{{\"no\":{no},\"name\":\"N\"}}\n");
        // Flushed, and not ended.
        let begun = match coding {
            "gzip" => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(line.as_bytes()).unwrap();
                encoder.flush().unwrap();
                encoder.get_ref().clone()
            }
            _ => {
                let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
                encoder.write_all(line.as_bytes()).unwrap();
                encoder.flush().unwrap();
                encoder.get_ref().clone()
            }
        };
        let begun = stream::iter([Ok::<_, Infallible>(Bytes::from(begun))]);
        let request = Request::post("/depts")
            .header("host", "localhost")
            .header(NDJSON.0, NDJSON.1)
            .header(LENIENT.0, LENIENT.1)
            .header("content-encoding", coding)
            .body(Body::from_stream(begun.chain(stream::pending())))
            .unwrap();
        let mut response = larder.public().oneshot(request).await.unwrap();
        let outcome = response.body_mut().frame().await.unwrap().unwrap();
        let outcome = outcome.into_data().unwrap();
        assert!(
            outcome.starts_with(br#"{"index":0,"status":201"#),
            "{outcome:?}"
        );
    }
}
