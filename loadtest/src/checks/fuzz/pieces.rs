//! Generators of requests and configurations.

use proptest::collection::vec;
use proptest::prelude::{Just, any};
use proptest::sample::select;
use proptest::strategy::{BoxedStrategy, Strategy};
use proptest::{prop_oneof, string};

use crate::checks::fuzz::words::{
    CONTENT_TYPE, HEADER, MEMBER, METHOD, PATH, QUERY, SCALAR, TARGET, TOML, VALUE,
};

/// Requests with a random path.
pub(super) fn paths() -> impl Strategy<Value = Vec<u8>> {
    (select(&METHOD[..]), joined(&PATH))
        .prop_map(|(method, path)| request(method, &[b"/", &plain(path)[..]].concat(), &[], &[]))
}

/// Requests with a random query.
pub(super) fn queries() -> impl Strategy<Value = Vec<u8>> {
    let path = select(&["/items", "/items/1", "/prices", "/regions", "/openapi.json"][..]);
    (path, joined(&QUERY)).prop_map(|(path, query)| {
        let target = [path.as_bytes(), b"?", &plain(query)].concat();
        request("GET", &target, &[], &[])
    })
}

/// Requests with random headers.
pub(super) fn headers() -> impl Strategy<Value = Vec<u8>> {
    let header = (select(&HEADER[..]), joined(&VALUE));
    let lines = vec(header, 0..6);
    (select(&METHOD[..]), select(&TARGET[..]), lines).prop_map(|(method, target, lines)| {
        let lines: Vec<Vec<u8>> = lines
            .into_iter()
            .map(|(name, value)| [name.as_bytes(), b": ", &text(value)].concat())
            .collect();
        request(method, target.as_bytes(), &lines, &[])
    })
}

/// Requests with random bodies.
pub(super) fn bodies() -> impl Strategy<Value = Vec<u8>> {
    let method = select(&["POST", "POST", "PUT", "PATCH", "DELETE"][..]);
    let preference = select(
        &[
            "",
            "return=minimal",
            "handling=lenient",
            "return=representation",
        ][..],
    );
    let whole = (
        method,
        select(&TARGET[..]),
        select(&CONTENT_TYPE[..]),
        preference,
        lines(),
    );
    whole.prop_map(|(method, target, content_type, preference, body)| {
        let lines = [
            format!("Content-Type: {content_type}").into_bytes(),
            format!("Prefer: {preference}").into_bytes(),
        ];
        request(method, target.as_bytes(), &lines, &body)
    })
}

/// Files of settings.
pub(super) fn configuration() -> impl Strategy<Value = String> {
    let example = larder::config::example();
    let lines: Vec<String> = example
        .lines()
        .map(|line| {
            let line = line.trim_start();
            let set = line.strip_prefix('#').filter(|rest| !rest.starts_with(' '));
            format!("{}\n", set.unwrap_or(line))
        })
        .collect();
    let piece = prop_oneof![
        4 => select(lines),
        4 => select(&TOML[..]).prop_map(str::to_owned),
        1 => string::string_regex(".{0,8}").unwrap_or_else(|_| unreachable!("a constant")),
    ];
    vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

/// Pieces one after the other, and among them a few bytes of any kind.
fn joined(pieces: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let piece = select(pieces).prop_map(|piece| piece.as_bytes().to_vec());
    let bytes = vec(any::<u8>(), 1..4);
    vec(prop_oneof![8 => piece, 1 => bytes], 0..8).prop_map(|pieces| pieces.concat())
}

/// Mostly one value, or several as lines; now and then with a byte that is wrong.
fn lines() -> impl Strategy<Value = Vec<u8>> {
    let body = prop_oneof![
        4 => value(),
        1 => vec(value(), 0..4).prop_map(|values| values.join("\n")),
        1 => vec(value(), 0..4).prop_map(|values| format!("[{}]", values.join(","))),
        1 => Just("[".repeat(20_000)),
    ];
    let damage = prop_oneof![
        6 => Just(None),
        1 => (any::<usize>(), any::<u8>()).prop_map(Some),
    ];
    (body, damage).prop_map(|(body, damage)| {
        let mut body = body.into_bytes();
        let length = body.len();
        if let Some((place, byte)) = damage
            && let Some(there) = body.get_mut(place % length.max(1))
        {
            *there = byte;
        }
        body
    })
}

/// JSON that resembles a document.
fn value() -> BoxedStrategy<String> {
    let scalar = prop_oneof![
        12 => select(&SCALAR[..]).prop_map(str::to_owned),
        1 => any::<f64>().prop_map(|number| number.to_string()),
        1 => any::<i64>().prop_map(|number| number.to_string()),
        1 => any::<String>().prop_map(|text| format!("{text:?}")),
    ];
    let object = scalar.prop_recursive(4, 40, 8, |inner| {
        let member = (select(&MEMBER[..]), inner.clone());
        prop_oneof![
            3 => vec(member, 0..8).prop_map(|members| {
                let members: Vec<String> = members
                    .into_iter()
                    .map(|(name, value)| format!("\"{name}\":{value}"))
                    .collect();
                format!("{{{}}}", members.join(","))
            }),
            1 => vec(inner, 0..4).prop_map(|values| format!("[{}]", values.join(","))),
        ]
    });
    object.boxed()
}

/// A whole request after which the connection ends.
fn request(method: &str, target: &[u8], lines: &[Vec<u8>], body: &[u8]) -> Vec<u8> {
    let mut request = [
        method.as_bytes(),
        b" ",
        target,
        b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
    ]
    .concat();
    for line in lines {
        request.extend_from_slice(line);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
    request.extend_from_slice(body);
    request
}

/// What may stand in a request line.
fn plain(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.retain(|byte| !byte.is_ascii_whitespace() && !byte.is_ascii_control());
    bytes
}

/// What may stand in a header's value.
fn text(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.retain(|byte| !byte.is_ascii_control());
    bytes
}
