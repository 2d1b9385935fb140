//! JSON text to values: simd-json checks the text and gives its structure, the text itself gives the numbers.
//!
//! simd-json makes an f64 of a number, and refuses a number that no f64 can hold. Its index of the text says where each
//! value begins, so the digits of a number are read from the text, and a value is passed on as it was written.

use std::iter;
use std::ops::Range;

use simd_json::{Buffers, ErrorType, INPUT_PADDING, Node, StaticNode, Tape};

use crate::resource::body::decimal::Decimal;

/// Arrays and objects within each other, at most. Values inside `json` columns count.
pub const DEPTH_MAX: usize = 256;

/// U+FEFF in UTF-8, which some editors write at the start of a file.
pub const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// What a client is told whose body begins with [`BYTE_ORDER_MARK`] (RFC 8259, section 8.1).
pub const HAS_BYTE_ORDER_MARK: &str = "the body begins with a byte order mark (bytes EF BB BF), which JSON must not have: send it without";

/// The buffers of a parser, which bodies that are read one after the other share.
pub struct Scratch {
    buffers: Buffers,
    tape: Tape<'static>,
    /// A copy of the body, which simd-json works in, and its padding.
    copy: Vec<u8>,
    /// Where the value of each node of the tape is in the body.
    spans: Vec<Range<usize>>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            buffers: Buffers::with_max_depth(0, DEPTH_MAX),
            tape: Tape(Vec::new()),
            copy: Vec::new(),
            spans: Vec::new(),
        }
    }
}

/// Calls `read` with the value that `text` consists of.
///
/// # Errors
/// If `text` is not JSON, a sentence that says so and where.
pub(super) fn with_json<R>(
    text: &[u8],
    scratch: &mut Scratch,
    read: impl FnOnce(JsonNode<'_>) -> R,
) -> Result<R, String> {
    let Scratch {
        buffers,
        tape,
        copy,
        spans,
    } = scratch;
    fill(copy, text);
    let mut parsed = std::mem::replace(tape, Tape(Vec::new())).reset();
    let mut outcome = simd_json::fill_tape_padded(copy, text.len(), buffers, &mut parsed);
    if matches!(&outcome, Err(error) if *error.error() == ErrorType::InvalidNumber) {
        // Perhaps no f64 holds the number. The index of the text is complete nevertheless.
        parsed = parsed.reset();
        fill(copy, text);
        blank_numbers(copy, text.len(), buffers.structural_indexes());
        outcome = simd_json::fill_tape_padded(copy, text.len(), buffers, &mut parsed);
    }
    let read = match outcome {
        Ok(()) => {
            find_spans(text, buffers.structural_indexes(), spans);
            let nodes = &parsed.0;
            let parsed = Parsed { text, nodes, spans };
            Ok(read(JsonNode {
                parsed: &parsed,
                at: 0,
            }))
        }
        Err(_) if text.starts_with(BYTE_ORDER_MARK) => Err(HAS_BYTE_ORDER_MARK.to_owned()),
        Err(error) => Err(message(&error, text.len())),
    };
    *tape = parsed.reset();
    read
}

fn fill(copy: &mut Vec<u8>, text: &[u8]) {
    copy.clear();
    copy.extend_from_slice(text);
    copy.resize(text.len() + INPUT_PADDING, 0);
}

/// Replaces every number that is valid JSON by 0 and blanks, so that all other bytes keep their places.
fn blank_numbers(copy: &mut [u8], length: usize, starts: &[u32]) {
    for &start in starts {
        let number = copy.get_mut(start as usize..length).unwrap_or_default();
        let end = number.iter().position(|byte| !is_number_byte(*byte));
        let end = end.unwrap_or(number.len());
        let (number, _) = number.split_at_mut(end);
        let is_number = str::from_utf8(number).is_ok_and(|text| Decimal::parse(text).is_some());
        if is_number && let Some((first, rest)) = number.split_first_mut() {
            *first = b'0';
            rest.fill(b' ');
        }
    }
}

fn is_number_byte(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E')
}

fn message(error: &simd_json::Error, length: usize) -> String {
    let what = match error.error() {
        ErrorType::DepthLimitExceeded => {
            return format!("the body nests deeper than {DEPTH_MAX} arrays and objects");
        }
        ErrorType::InvalidUtf8 => "is not UTF-8",
        ErrorType::InvalidNumber => "has an invalid number",
        ErrorType::InvalidEscape
        | ErrorType::InvalidUnicodeEscape
        | ErrorType::InvalidUnicodeCodepoint => "has an invalid escape sequence in a string",
        ErrorType::UnterminatedString => "has an unterminated string",
        _ => "is not JSON",
    };
    // Some errors have no place.
    match error.index() {
        0 => format!("the body {what}"),
        at => format!("the body {what}, near byte {}", at.min(length)),
    }
}

/// Finds where each value and each member's name begins and ends, in the order of the tape. White space may follow
/// them. `starts` are the places of all brackets, commas, colons, strings, numbers and literals of `text`.
fn find_spans(text: &[u8], starts: &[u32], spans: &mut Vec<Range<usize>>) {
    spans.clear();
    let mut open = Vec::new();
    let ends = starts.iter().skip(1).map(|start| *start as usize);
    for (&start, end) in starts.iter().zip(ends.chain([text.len()])) {
        let start = start as usize;
        match text.get(start) {
            None | Some(b',' | b':') => {}
            Some(b']' | b'}') => {
                let span = open.pop().and_then(|at: usize| spans.get_mut(at));
                if let Some(span) = span {
                    span.end = start + 1;
                }
            }
            Some(first) => {
                if matches!(first, b'[' | b'{') {
                    open.push(spans.len());
                }
                spans.push(start..end);
            }
        }
    }
}

struct Parsed<'t> {
    text: &'t [u8],
    nodes: &'t [Node<'t>],
    /// Where the value of each node is in `text`.
    spans: &'t [Range<usize>],
}

/// A value in a parsed text, or a member's name.
#[derive(Clone, Copy)]
pub(super) struct JsonNode<'t> {
    parsed: &'t Parsed<'t>,
    /// Its place on the tape, where what it contains follows it.
    at: usize,
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Json<'t> {
    Null,
    Boolean(bool),
    /// As it is written.
    Number(&'t str),
    String(&'t str),
    /// The number of elements.
    Array(usize),
    /// The number of members.
    Object(usize),
}

impl<'t> JsonNode<'t> {
    pub(super) fn json(self) -> Json<'t> {
        match self.parsed.nodes.get(self.at) {
            None | Some(Node::Static(StaticNode::Null)) => Json::Null,
            Some(Node::Static(StaticNode::Bool(value))) => Json::Boolean(*value),
            Some(Node::Static(_)) => Json::Number(str::from_utf8(self.text()).unwrap_or_default()),
            Some(Node::String(text)) => Json::String(text),
            Some(Node::Array { len, .. }) => Json::Array(*len),
            Some(Node::Object { len, .. }) => Json::Object(*len),
        }
    }

    /// The text of a string; empty for other values.
    pub(super) fn as_str(self) -> &'t str {
        match self.json() {
            Json::String(text) => text,
            _ => "",
        }
    }

    /// The value as it is written.
    pub(super) fn text(self) -> &'t [u8] {
        let span = self.parsed.spans.get(self.at).cloned();
        let text = span.and_then(|span| self.parsed.text.get(span));
        text.unwrap_or_default().trim_ascii_end()
    }

    /// The elements of an array; none of another value.
    pub(super) fn elements(self) -> impl Iterator<Item = Self> {
        let length = match self.json() {
            Json::Array(length) => length,
            _ => 0,
        };
        self.following().take(length)
    }

    /// The name and the value of each member of an object, in the order of the text; none of another value.
    pub(super) fn members(self) -> impl Iterator<Item = (Self, Self)> {
        let length = match self.json() {
            Json::Object(length) => length,
            _ => 0,
        };
        // Names and values take turns on the tape.
        let mut nodes = self.following();
        iter::from_fn(move || nodes.next().zip(nodes.next())).take(length)
    }

    /// The first node that it contains, and the nodes beside that one, without end.
    fn following(self) -> impl Iterator<Item = Self> {
        let first = self.at(self.at + 1);
        iter::successors(Some(first), |node| Some(node.at(node.end())))
    }

    /// The value and all that it contains, names of members too.
    pub(super) fn with_contents(self) -> impl Iterator<Item = Self> {
        (self.at..self.end()).map(move |at| self.at(at))
    }

    fn at(self, at: usize) -> Self {
        Self { at, ..self }
    }

    /// The place on the tape behind the value and all that it contains.
    fn end(self) -> usize {
        let contained = match self.parsed.nodes.get(self.at) {
            Some(Node::Array { count, .. } | Node::Object { count, .. }) => *count,
            _ => 0,
        };
        self.at + 1 + contained
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every value and every name, with its text.
    fn values(text: &str) -> Result<Vec<String>, String> {
        with_json(text.as_bytes(), &mut Scratch::default(), |body| {
            assert_eq!(body.text(), text.trim_ascii().as_bytes());
            let described = |node: JsonNode<'_>| {
                let text = str::from_utf8(node.text()).unwrap();
                format!("{:?} = {text}", node.json())
            };
            body.with_contents().map(described).collect()
        })
    }

    #[test]
    fn values_are_found_as_they_are_written() {
        let text =
            r#" {"a" : [1, -2.50e3 ,[],{ }] , "b\n": "x\"\u00e9" ,"c":null, "":{"d":[ [true] ]}} "#;
        let expected = [
            &format!("Object(4) = {}", text.trim()),
            r#"String("a") = "a""#,
            "Array(4) = [1, -2.50e3 ,[],{ }]",
            r#"Number("1") = 1"#,
            r#"Number("-2.50e3") = -2.50e3"#,
            "Array(0) = []",
            "Object(0) = { }",
            r#"String("b\n") = "b\n""#,
            r#"String("x\"é") = "x\"\u00e9""#,
            r#"String("c") = "c""#,
            "Null = null",
            r#"String("") = """#,
            r#"Object(1) = {"d":[ [true] ]}"#,
            r#"String("d") = "d""#,
            "Array(1) = [ [true] ]",
            "Array(1) = [true]",
            "Boolean(true) = true",
        ];
        assert_eq!(values(text).unwrap(), expected);
        assert_eq!(values(" 7 ").unwrap(), [r#"Number("7") = 7"#]);
        assert_eq!(values("[]").unwrap(), ["Array(0) = []"]);
    }

    #[test]
    fn numbers_keep_every_digit() {
        let long = "-123456789012345678901234567890.123456789012345678901234567890";
        let text =
            format!(r#"[1e400, {long}, 1e-400,18446744073709551616,0.10,{{"a 1e400 b":1e400}}]"#);
        let values = values(&text).unwrap();
        for number in ["1e400", long, "1e-400", "18446744073709551616", "0.10"] {
            let value = format!("Number({number:?}) = {number}");
            assert!(values.contains(&value), "{value} is not in {values:?}");
        }
        let key = r#"String("a 1e400 b") = "a 1e400 b""#.to_owned();
        assert!(values.contains(&key), "{values:?}");
    }

    #[test]
    fn invalid_json_is_refused() {
        for text in [
            "",
            " ",
            "{",
            "[1,]",
            r#"{"a"}"#,
            r#"{"a":1,}"#,
            "01",
            "[1e]",
            "[1e400,01]",
            "[1e400x]",
            "[1e400 1]",
            "-",
            r#"["\x"]"#,
            r#"["\ud800"]"#,
            "\"",
            "[\"\n\"]",
            "nul",
            "1 2",
            "{}{}",
            "\u{feff}{}",
            "[1.5.2]",
            "['a']",
        ] {
            let error = values(text).unwrap_err();
            assert!(error.starts_with("the body "), "{text}: {error}");
        }
        assert_eq!(values("\u{feff}{}").unwrap_err(), HAS_BYTE_ORDER_MARK);
        let not_utf8 = with_json(b"[\"\xff\"]", &mut Scratch::default(), |_| ());
        assert!(not_utf8.is_err());
    }

    #[test]
    fn nesting_is_limited() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(values(&nested(DEPTH_MAX)).unwrap().len(), DEPTH_MAX);
        let error = values(&nested(DEPTH_MAX + 1)).unwrap_err();
        assert!(error.contains("deeper"), "{error}");
        assert!(values(&"[".repeat(1_000_000)).is_err());
        assert!(values(&"{\"a\":".repeat(100_000)).is_err());
    }

    #[test]
    fn scratch_is_used_again() {
        let mut scratch = Scratch::default();
        let mut length = |text: &str| {
            with_json(text.as_bytes(), &mut scratch, |body| {
                format!("{:?}", body.json())
            })
        };
        assert_eq!(length("[1,2,3,4,5,6,7,8,9]").unwrap(), "Array(9)");
        assert!(length("[1,").is_err());
        assert_eq!(length("[1e400]").unwrap(), "Array(1)");
        assert_eq!(length("[]").unwrap(), "Array(0)");
    }
}
