//! Keys in paths: all spellings of a key give one document, and malformed keys 400.

use axum::http::StatusCode;

use super::{MEMORY, MISS, assert_problem, larder};

#[tokio::test(flavor = "multi_thread")]
async fn malformed_keys_are_400_and_never_reach_the_database() {
    let larder = larder().await;
    let long = "9".repeat(10_000);
    let numbers = [
        "",
        "x",
        "%2042",
        "42%20",
        "4e1",
        "42.0",
        "0x2a",
        "%00",
        "42%00",
        "%ff",
        "-",
        "+",
        "--1",
        "4_2",
        "%EF%BC%94%EF%BC%92",
        "9223372036854775808",
        "1,2",
        "%",
        "%4",
        "null",
        &long,
    ];
    for key in numbers {
        assert_problem(&larder.get(&format!("/items/{key}")).await, 400);
    }
    let uuid = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
    for key in [
        uuid.replace('-', ""),
        format!("%7B{uuid}%7D"),
        format!("urn:uuid:{uuid}"),
        format!("{uuid}%0A"),
        uuid[1..].to_owned(),
    ] {
        assert_problem(&larder.get(&format!("/things/{key}")).await, 400);
    }
    let long = "x".repeat(10_000);
    for key in ["a%00", "%ff", "%C3", &long] {
        assert_problem(&larder.get(&format!("/tags/{key}")).await, 400);
    }
    for key in [
        "",
        "7",
        "7,NO,more",
        "x,NO",
        ",NO",
        "7%2CNO",
        "7,%ff",
        "7,%00",
    ] {
        assert_problem(&larder.get(&format!("/parts/{key}")).await, 400);
    }
    let metrics = larder.admin("/metrics").await.body;
    assert!(
        metrics.contains("larder_source_batch_keys_count 0"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn spellings_of_one_key_are_one_document() {
    let larder = larder().await;
    let uuid = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
    let upper = uuid.to_uppercase();
    let zeros = format!("{}42", "0".repeat(50));
    for (resource, spellings) in [
        (
            "items",
            &["42", "042", "+42", "%2B42", "%342", zeros.as_str()][..],
        ),
        ("things", &[upper.as_str(), uuid]),
        ("parts", &["7,NO", "07,NO", "+7,%4EO"]),
        ("tags", &["a%2Fb", "a%2fb", "%61%2Fb"]),
        ("tags", &["%C3%A9", "%c3%a9"]),
    ] {
        let mut expected = MISS;
        for key in spellings {
            let answer = larder.get(&format!("/{resource}/{key}")).await;
            assert_eq!(answer.status, StatusCode::OK, "{key}");
            assert_eq!(answer.cache_status(), expected, "{key}");
            expected = MEMORY;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_may_be_empty_and_hold_separators() {
    let larder = larder().await;
    for (path, n) in [
        ("/tags/a%2Fb", 1),
        ("/tags/", 2),
        ("/tags/a,b", 3),
        ("/tags/a%2Cb", 3),
        ("/tags/50%25", 4),
        // A lone percent sign stands for itself.
        ("/tags/50%", 4),
        ("/tags/%C3%A9", 5),
        ("/tags/..", 6),
        ("/tags/a%20b", 7),
        ("/parts/7,NO", 1),
        ("/parts/7,N%2CO", 2),
        ("/parts/7,", 3),
        ("/parts/7,50%252C", 4),
    ] {
        let answer = larder.get(path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        assert_eq!(answer.json()["n"], n, "{path}");
    }
    // In a path a plus sign is not a space.
    assert_problem(&larder.get("/tags/a+b").await, 404);
    assert_problem(&larder.get("/parts/7,50%2C").await, 404);
}
