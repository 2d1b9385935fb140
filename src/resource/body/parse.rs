//! JSON text to tokens: simd-json checks the text and gives the structure, the text itself gives the numbers.
//!
//! simd-json makes an f64 of a number, or refuses it where none can hold it. Its index of the text says where each
//! token begins, so a number's own digits are read there, and a value is handed on as it was written.

use std::slice;

use simd_json::{Buffers, ErrorType, INPUT_PADDING, Node, StaticNode, Tape};

use crate::resource::body::decimal::Decimal;

/// Arrays and objects within each other, at most. Values inside `json` columns count.
pub const DEPTH_MAX: usize = 256;

/// What is kept between bodies so that they share their space.
pub struct Scratch {
    buffers: Buffers,
    tape: Tape<'static>,
    /// A copy of the body, which simd-json works in, and its padding.
    copy: Vec<u8>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            buffers: Buffers::with_max_depth(0, DEPTH_MAX),
            tape: Tape(Vec::new()),
            copy: Vec::new(),
        }
    }
}

/// Calls `read` with the tokens of `text`.
///
/// # Errors
/// Where it is not JSON, a sentence that says so and where.
pub(super) fn with_tokens<R>(
    text: &[u8],
    scratch: &mut Scratch,
    read: impl FnOnce(&mut Tokens<'_>) -> R,
) -> Result<R, String> {
    let Scratch {
        buffers,
        tape,
        copy,
    } = scratch;
    fill(copy, text);
    let mut parsed = std::mem::replace(tape, Tape(Vec::new())).reset();
    let mut outcome = simd_json::fill_tape_padded(copy, text.len(), buffers, &mut parsed);
    if matches!(&outcome, Err(error) if *error.error() == ErrorType::InvalidNumber) {
        // A number that no f64 holds, perhaps. What it found of it is in its index all the same.
        parsed = parsed.reset();
        fill(copy, text);
        blank_numbers(copy, text.len(), buffers.structural_indexes());
        outcome = simd_json::fill_tape_padded(copy, text.len(), buffers, &mut parsed);
    }
    let read = match outcome {
        Ok(()) => Ok(read(&mut Tokens {
            text,
            nodes: parsed.0.iter(),
            starts: buffers.structural_indexes().iter(),
        })),
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

/// Writes 0 over every number of JSON's grammar, which keeps the place of every token.
fn blank_numbers(copy: &mut [u8], length: usize, starts: &[u32]) {
    for &start in starts {
        let number = copy.get_mut(start as usize..length).unwrap_or_default();
        let end = number.iter().position(|byte| !is_number_byte(*byte));
        let end = end.unwrap_or(number.len());
        let (number, _) = number.split_at_mut(end);
        let is_number = str::from_utf8(number).is_ok_and(|text| Decimal::of(text).is_some());
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
        ErrorType::InvalidNumber => "has a number that is none",
        ErrorType::InvalidEscape
        | ErrorType::InvalidUnicodeEscape
        | ErrorType::InvalidUnicodeCodepoint => "has an invalid escape sequence in a string",
        ErrorType::UnterminatedString => "has a string without end",
        _ => "is not JSON",
    };
    // Some errors are found before there is a place.
    match error.index() {
        0 => format!("the body {what}"),
        at => format!("the body {what}, near byte {}", at.min(length)),
    }
}

/// The tokens of a text, in order.
#[derive(Clone)]
pub(super) struct Tokens<'t> {
    text: &'t [u8],
    nodes: slice::Iter<'t, Node<'t>>,
    /// Where each token begins, punctuation too.
    starts: slice::Iter<'t, u32>,
}

/// A token that is a value or begins one. After an array or an object come its values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'t> {
    Null,
    Boolean(bool),
    /// As it is written.
    Number(&'t str),
    String(&'t str),
    /// The number of values.
    Array(usize),
    /// The number of members.
    Object(usize),
}

impl<'t> Tokens<'t> {
    /// The next value's token. What is beyond the end is null.
    pub(super) fn next(&mut self) -> Token<'t> {
        let at = self.place();
        self.starts.next();
        match self.nodes.next() {
            None | Some(Node::Static(StaticNode::Null)) => Token::Null,
            Some(Node::Static(StaticNode::Bool(value))) => Token::Boolean(*value),
            Some(Node::Static(_)) => Token::Number(self.number(at)),
            Some(Node::String(text)) => Token::String(text),
            Some(Node::Array { len, .. }) => Token::Array(*len),
            Some(Node::Object { len, .. }) => Token::Object(*len),
        }
    }

    /// The name of the next member of an object.
    pub(super) fn name(&mut self) -> &'t str {
        match self.next() {
            Token::String(name) => name,
            _ => "",
        }
    }

    /// Passes the next value; `seen` is called with each token. Gives the value as it is written.
    pub(super) fn raw(&mut self, mut seen: impl FnMut(Token<'t>)) -> &'t [u8] {
        let start = self.place();
        let token = self.next();
        seen(token);
        let end = self.leave(token, seen);
        let end = end.unwrap_or_else(|| self.starts.as_slice().first().map_or(self.text.len(), at));
        let raw = self.text.get(start..end).unwrap_or_default();
        raw.trim_ascii_end()
    }

    /// The next value as it is written, and what `read` makes of each of its members where it is an object: it must
    /// pass the name and the value.
    pub(super) fn raw_members<M>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> M,
    ) -> (&'t [u8], Option<Vec<M>>) {
        let start = self.place();
        let mut ahead = self.clone();
        let Token::Object(length) = ahead.next() else {
            return (self.raw(|_| {}), None);
        };
        *self = ahead;
        let members = (0..length).map(|_| read(self)).collect();
        // All below has been passed, so this is its own.
        let end = self
            .starts
            .next()
            .map_or(self.text.len(), |end| at(end) + 1);
        let raw = self.text.get(start..end).unwrap_or_default();
        (raw, Some(members))
    }

    /// Passes what is below `token`, which came last; gives the end of an array or object.
    pub(super) fn leave(
        &mut self,
        token: Token<'_>,
        mut seen: impl FnMut(Token<'t>),
    ) -> Option<usize> {
        if !matches!(token, Token::Array(_) | Token::Object(_)) {
            return None;
        }
        let mut open = 1_usize;
        loop {
            let at = at(self.starts.as_slice().first()?);
            match self.text.get(at)? {
                b',' | b':' => {
                    self.starts.next();
                }
                b']' | b'}' => {
                    self.starts.next();
                    open -= 1;
                    if open == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {
                    let token = self.next();
                    seen(token);
                    if matches!(token, Token::Array(_) | Token::Object(_)) {
                        open += 1;
                    }
                }
            }
        }
    }

    /// Where the next value begins, with all punctuation before it passed.
    fn place(&mut self) -> usize {
        while let Some(start) = self.starts.as_slice().first() {
            match self.text.get(at(start)) {
                Some(b',' | b':' | b']' | b'}') => self.starts.next(),
                _ => return at(start),
            };
        }
        self.text.len()
    }

    fn number(&self, at: usize) -> &'t str {
        let text = self.text.get(at..).unwrap_or_default();
        let end = text.iter().position(|byte| !is_number_byte(*byte));
        let number = text.get(..end.unwrap_or(text.len()));
        number
            .and_then(|number| str::from_utf8(number).ok())
            .unwrap_or_default()
    }
}

fn at(start: &u32) -> usize {
    *start as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every token with the value as it is written.
    fn tokens(text: &str) -> Result<Vec<String>, String> {
        with_tokens(text.as_bytes(), &mut Scratch::default(), |tokens| {
            let mut below = tokens.clone();
            let mut seen = Vec::new();
            let raw = tokens.raw(|token| seen.push(format!("{token:?}")));
            assert_eq!(raw, text.trim_ascii().as_bytes());
            for token in &mut seen {
                let raw = below.clone().raw(|_| {});
                *token = format!("{token} = {}", str::from_utf8(raw).unwrap());
                below.next();
            }
            seen
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
        assert_eq!(tokens(text).unwrap(), expected);
        assert_eq!(tokens(" 7 ").unwrap(), [r#"Number("7") = 7"#]);
        assert_eq!(tokens("[]").unwrap(), ["Array(0) = []"]);
    }

    #[test]
    fn numbers_keep_every_digit() {
        let long = "-123456789012345678901234567890.123456789012345678901234567890";
        let text =
            format!(r#"[1e400, {long}, 1e-400,18446744073709551616,0.10,{{"a 1e400 b":1e400}}]"#);
        let tokens = tokens(&text).unwrap();
        for number in ["1e400", long, "1e-400", "18446744073709551616", "0.10"] {
            let token = format!("Number({number:?}) = {number}");
            assert!(tokens.contains(&token), "{token} is not in {tokens:?}");
        }
        let key = r#"String("a 1e400 b") = "a 1e400 b""#.to_owned();
        assert!(tokens.contains(&key), "{tokens:?}");
    }

    #[test]
    fn what_is_no_json_is_told() {
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
            let error = tokens(text).unwrap_err();
            assert!(error.starts_with("the body "), "{text}: {error}");
        }
        let not_utf8 = with_tokens(b"[\"\xff\"]", &mut Scratch::default(), |_| ());
        assert!(not_utf8.is_err());
    }

    #[test]
    fn nesting_ends_somewhere() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(tokens(&nested(DEPTH_MAX)).unwrap().len(), DEPTH_MAX);
        let told = tokens(&nested(DEPTH_MAX + 1)).unwrap_err();
        assert!(told.contains("deeper"), "{told}");
        assert!(tokens(&"[".repeat(1_000_000)).is_err());
        assert!(tokens(&"{\"a\":".repeat(100_000)).is_err());
    }

    #[test]
    fn scratch_is_used_again() {
        let mut scratch = Scratch::default();
        let mut length = |text: &str| {
            with_tokens(text.as_bytes(), &mut scratch, |tokens| {
                format!("{:?}", tokens.next())
            })
        };
        assert_eq!(length("[1,2,3,4,5,6,7,8,9]").unwrap(), "Array(9)");
        assert!(length("[1,").is_err());
        assert_eq!(length("[1e400]").unwrap(), "Array(1)");
        assert_eq!(length("[]").unwrap(), "Array(0)");
    }
}
