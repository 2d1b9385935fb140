//! From a stream of bytes to the texts of its documents, before anything is parsed.
//!
//! A bulk write may be longer than memory, and simd-json needs a whole text, so the stream is split first. The splitter
//! looks only at what separates documents: ends of lines, or the strings, brackets and commas of one array. A text that
//! it returns may be invalid JSON. If the stream is valid, each text is a whole document.

use std::ops::Range;

/// What separates documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// They are the elements of one JSON array.
    Array,
    /// Each is a line (NDJSON). Lines that contain only white space are skipped.
    Lines,
}

/// Why the stream can't be split further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// A document is longer than allowed.
    #[error("the document is too long")]
    TooLong,
    /// The stream is not a JSON array. The words follow `the body`.
    #[error("{0}")]
    Malformed(&'static str),
}

/// Splits the part of the stream that has been received.
#[derive(Debug)]
pub struct Splitter {
    framing: Framing,
    bytes_max: usize,
    buffer: Vec<u8>,
    /// The place of the first byte after the documents that were returned.
    start: usize,
    /// The place of the first byte that was not examined.
    at: usize,
    /// The stream has ended.
    ended: bool,
    /// The number of lines that were returned or skipped.
    lines: u64,
    place: ArrayPlace,
    /// The number of arrays and objects that are open within the element.
    depth: usize,
    /// The next byte is within a string.
    is_in_string: bool,
    /// The next byte follows a backslash.
    is_escaped: bool,
    failed: Option<SplitError>,
}

/// A place in the stream of an array: before it, in its first or a further element, or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArrayPlace {
    Before,
    First,
    Further,
    After,
}

impl Splitter {
    /// For documents of at most `bytes_max` bytes.
    pub fn new(framing: Framing, bytes_max: usize) -> Self {
        Self {
            framing,
            bytes_max,
            buffer: Vec::new(),
            start: 0,
            at: 0,
            ended: false,
            lines: 0,
            place: ArrayPlace::Before,
            depth: 0,
            is_in_string: false,
            is_escaped: false,
            failed: None,
        }
    }

    /// Adds the next part of the stream.
    pub fn push(&mut self, part: &[u8]) {
        self.buffer.drain(..self.start);
        self.at -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(part);
    }

    /// Notes that the stream has ended.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Whether the stream has ended.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The number of bytes that were received and not returned.
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// The number of the line that was returned last, counted from 1; `None` for an array.
    pub fn line(&self) -> Option<u64> {
        (self.framing == Framing::Lines).then_some(self.lines)
    }

    /// The text of the next document; `None` if its end was not received yet, or if there are no more documents.
    ///
    /// # Errors
    /// [`SplitError`]. Every later call returns the same error, since the start of the next document is unknown.
    pub fn document(&mut self) -> Result<Option<&[u8]>, SplitError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        match self.cut() {
            Ok(found) => Ok(found.and_then(|text| self.buffer.get(text))),
            Err(error) => {
                self.failed = Some(error);
                Err(error)
            }
        }
    }

    fn cut(&mut self) -> Result<Option<Range<usize>>, SplitError> {
        let found = match self.framing {
            Framing::Array => self.element()?,
            Framing::Lines => self.next_line()?,
        };
        // A document whose end was not received yet may be too long already.
        let length = found.as_ref().map_or(self.pending(), Range::len);
        if length > self.bytes_max {
            Err(SplitError::TooLong)
        } else {
            Ok(found)
        }
    }

    fn next_line(&mut self) -> Result<Option<Range<usize>>, SplitError> {
        while self.pending() > 0 {
            let rest = self.buffer.get(self.at..).unwrap_or_default();
            let (end, next) = match rest.iter().position(|byte| *byte == b'\n') {
                Some(length) => (self.at + length, self.at + length + 1),
                None => {
                    self.at = self.buffer.len();
                    if !self.ended {
                        break;
                    }
                    (self.at, self.at)
                }
            };
            let line = self.start..end;
            (self.start, self.at) = (next, next);
            self.lines += 1;
            if !self.is_blank(&line) {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }

    fn element(&mut self) -> Result<Option<Range<usize>>, SplitError> {
        while let Some(&byte) = self.buffer.get(self.at) {
            self.at += 1;
            match (self.place, byte) {
                (ArrayPlace::Before | ArrayPlace::After, byte) if is_space(byte) => {}
                (ArrayPlace::Before, b'[') => self.place = ArrayPlace::First,
                (ArrayPlace::Before, _) => return Err(SplitError::Malformed("is not an array")),
                (ArrayPlace::After, _) => {
                    return Err(SplitError::Malformed("continues after the array"));
                }
                (place, byte) => {
                    if !self.ends_element(byte) {
                        continue;
                    }
                    let element = self.start..self.at - 1;
                    let is_empty_array = place == ArrayPlace::First && byte == b']';
                    self.place = if byte == b']' {
                        ArrayPlace::After
                    } else {
                        ArrayPlace::Further
                    };
                    self.start = self.at;
                    if !self.is_blank(&element) {
                        return Ok(Some(element));
                    } else if !is_empty_array {
                        return Err(SplitError::Malformed("has a superfluous comma"));
                    }
                }
            }
            self.start = self.at;
        }
        if self.ended && self.place != ArrayPlace::After {
            Err(SplitError::Malformed("ends before the array does"))
        } else {
            Ok(None)
        }
    }

    /// Whether `byte`, the next byte of the stream, ends the element. It is a comma or a bracket then.
    fn ends_element(&mut self, byte: u8) -> bool {
        if self.is_in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.is_in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.is_in_string = true,
            b'[' | b'{' => self.depth += 1,
            b']' | b',' if self.depth == 0 => return true,
            b']' | b'}' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        false
    }

    fn is_blank(&self, text: &Range<usize>) -> bool {
        let text = self.buffer.get(text.clone()).unwrap_or_default();
        text.iter().all(|byte| is_space(*byte))
    }
}

/// White space of JSON (RFC 8259, section 2).
pub fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: usize = 40;

    /// The documents of `text`, which comes in parts of `size` bytes, and how it ended.
    fn split(framing: Framing, text: &str, size: usize) -> (Vec<String>, Result<(), SplitError>) {
        let mut splitter = Splitter::new(framing, BYTES_MAX);
        let mut found = Vec::new();
        let mut parts = text.as_bytes().chunks(size);
        loop {
            let ended = splitter.has_ended();
            match splitter.document() {
                Ok(Some(text)) => {
                    found.push(String::from_utf8(text.trim_ascii().to_vec()).unwrap())
                }
                Ok(None) if ended => return (found, Ok(())),
                Ok(None) => match parts.next() {
                    Some(part) => splitter.push(part),
                    None => splitter.end(),
                },
                Err(error) => {
                    // The error stays.
                    assert_eq!(splitter.document(), Err(error));
                    return (found, Err(error));
                }
            }
        }
    }

    #[track_caller]
    fn check(framing: Framing, text: &str, expected: &[&str], end: Result<(), SplitError>) {
        for size in 1..=text.len().max(1) {
            let (found, ended) = split(framing, text, size);
            assert_eq!(found, expected, "{text:?} by {size}");
            assert_eq!(ended, end, "{text:?} by {size}");
        }
    }

    #[test]
    fn elements_of_an_array_are_cut_out() {
        let array = Framing::Array;
        check(array, " [ ] \n", &[], Ok(()));
        check(
            array,
            r#" [{"a":"]},[\"\\"} , [1,[2]],"\\",3 ] "#,
            &[r#"{"a":"]},[\"\\"}"#, "[1,[2]]", r#""\\""#, "3"],
            Ok(()),
        );
        // Elements may be invalid JSON. The parser refuses them.
        check(array, "[{]},nul}]", &["{]}", "nul}"], Ok(()));
    }

    #[test]
    fn invalid_arrays_are_refused() {
        let malformed = |why| Err(SplitError::Malformed(why));
        for (text, found, why) in [
            ("", &[][..], "ends before the array does"),
            ("[", &[], "ends before the array does"),
            ("[1,\"]", &["1"], "ends before the array does"),
            ("{}", &[], "is not an array"),
            ("[,1]", &[], "has a superfluous comma"),
            ("[1,]", &["1"], "has a superfluous comma"),
            ("[1,,2]", &["1"], "has a superfluous comma"),
            ("[1]]", &["1"], "continues after the array"),
        ] {
            check(Framing::Array, text, found, malformed(why));
        }
    }

    #[test]
    fn lines_are_cut_out_and_counted() {
        let lines = Framing::Lines;
        check(lines, "", &[], Ok(()));
        check(lines, "{}\r\n \n\n[1,\n2", &["{}", "[1,", "2"], Ok(()));
        let mut splitter = Splitter::new(lines, BYTES_MAX);
        splitter.push(b"{}\n\n{}\n");
        for line in [1, 3] {
            assert!(splitter.document().unwrap().is_some());
            assert_eq!(splitter.line(), Some(line));
        }
    }

    #[test]
    fn long_documents_are_refused_before_they_end() {
        let long = "1".repeat(BYTES_MAX + 1);
        for framing in [Framing::Array, Framing::Lines] {
            let begin = match framing {
                Framing::Array => "[",
                Framing::Lines => "",
            };
            let text = format!("{begin}{long}");
            check(framing, &text, &[], Err(SplitError::TooLong));
        }
        check(
            Framing::Lines,
            &format!("{long}\n"),
            &[],
            Err(SplitError::TooLong),
        );
        let most = "1".repeat(BYTES_MAX);
        check(Framing::Lines, &most, &[&most], Ok(()));
    }
}
