//! From what PostgreSQL's `to_json` writes for arrays and composite values to the form that documents have.
//!
//! `to_json` writes a `timestamp` without an offset and a `bytea` in hexadecimal. A document has one form of a type at
//! every depth. All other parts are copied as they are.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::resource::document::RenderError;
use crate::resource::value::ValueType;

/// Writes the value of type `value` that `to_json` has written as `json`.
///
/// # Errors
/// If it is no value of that type, which may have been altered.
pub(super) fn write(value: &ValueType, json: &[u8], out: &mut Vec<u8>) -> Result<(), RenderError> {
    let mut rewriter = Rewriter { rest: json, out };
    rewriter.value(value)?;
    match rewriter.rest {
        [] => Ok(()),
        _ => Err(MALFORMED),
    }
}

const MALFORMED: RenderError =
    RenderError::Malformed("the JSON of an array or a composite value has an unexpected form");

struct Rewriter<'r> {
    /// What was not read yet.
    rest: &'r [u8],
    out: &'r mut Vec<u8>,
}

impl<'r> Rewriter<'r> {
    fn value(&mut self, value: &ValueType) -> Result<(), RenderError> {
        match (value, self.rest.first()) {
            (_, None) => Err(MALFORMED),
            (ValueType::Timestamp, Some(b'"')) => self.timestamp(),
            (ValueType::Bytea, Some(b'"')) => self.bytea(),
            (ValueType::Array(element), Some(b'[')) if value.has_own_form() => {
                self.list(b']', |this, _| match this.rest.first() {
                    // Another dimension.
                    Some(b'[') => this.value(value),
                    _ => this.value(element),
                })
            }
            (ValueType::Composite(attributes), Some(b'{')) if value.has_own_form() => {
                self.list(b'}', |this, place| {
                    let (_, attribute) = attributes.get(place).ok_or(MALFORMED)?;
                    let name = value_length(this.rest, b':');
                    this.copy(name + 1)?;
                    this.value(attribute)
                })
            }
            _ => self.copy(value_length(self.rest, b',')),
        }
    }

    /// Rewrites an array or an object, which begins here, item by item. `item` gets the number of each.
    fn list(
        &mut self,
        end: u8,
        mut item: impl FnMut(&mut Self, usize) -> Result<(), RenderError>,
    ) -> Result<(), RenderError> {
        self.copy(1)?;
        for place in 0.. {
            match self.rest.first() {
                Some(next) if *next == end => return self.copy(1),
                Some(b',') if place > 0 => self.copy(1)?,
                Some(_) if place == 0 => {}
                _ => break,
            }
            item(self, place)?;
        }
        Err(MALFORMED)
    }

    /// `"2026-01-01T10:00:00"`, perhaps with ` BC` at its end, or `"infinity"`.
    fn timestamp(&mut self) -> Result<(), RenderError> {
        let text = self.string()?;
        let (moment, era) = match text.strip_suffix(b" BC") {
            Some(moment) => (moment, &b" BC\""[..]),
            None => (text, &b"\""[..]),
        };
        let is_finite = moment.first().is_some_and(u8::is_ascii_digit);
        let offset = if is_finite { &b"+00:00"[..] } else { b"" };
        for part in [&b"\""[..], moment, offset, era] {
            self.out.extend_from_slice(part);
        }
        Ok(())
    }

    /// `"\\x00ff"`: JSON escapes the backslash.
    fn bytea(&mut self) -> Result<(), RenderError> {
        let digits = self.string()?.strip_prefix(br"\\x").ok_or(MALFORMED)?;
        let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
        let text = STANDARD.encode(bytes.ok_or(MALFORMED)?);
        for part in ["\"", &text, "\""] {
            self.out.extend_from_slice(part.as_bytes());
        }
        Ok(())
    }

    /// Takes the string that begins here. Returns its text, with its escapes.
    fn string(&mut self) -> Result<&'r [u8], RenderError> {
        let (string, rest) = self.rest.split_at(value_length(self.rest, b','));
        self.rest = rest;
        let text = string.strip_prefix(b"\"");
        text.and_then(|text| text.strip_suffix(b"\""))
            .ok_or(MALFORMED)
    }

    fn copy(&mut self, length: usize) -> Result<(), RenderError> {
        let (copied, rest) = self.rest.split_at_checked(length).ok_or(MALFORMED)?;
        self.out.extend_from_slice(copied);
        self.rest = rest;
        Ok(())
    }
}

/// The byte with two hexadecimal digits.
fn byte(digits: &[u8]) -> Option<u8> {
    let [high, low] = digits else {
        return None;
    };
    let digit = |digit: &u8| char::from(*digit).to_digit(16);
    u8::try_from((digit(high)? << 4) | digit(low)?).ok()
}

/// The length of the value, or of the member's name, at the start of `json`: up to `separator` or the end of what it is in.
fn value_length(json: &[u8], separator: u8) -> usize {
    let (mut depth, mut is_in_string, mut is_escaped) = (0_usize, false, false);
    for (at, byte) in json.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_in_string,
            b'"' => is_in_string = !is_in_string,
            _ if is_in_string => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' if depth > 0 => depth -= 1,
            b']' | b'}' => return at,
            byte if *byte == separator && depth == 0 => return at,
            _ => {}
        }
    }
    json.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_and_bytes_have_one_form_at_every_depth() {
        let array = |element| ValueType::Array(Box::new(element));
        let text = ValueType::Text { max: None };
        let visit = ValueType::Composite(vec![
            ("a,\"]:".into(), text.clone()),
            ("at".into(), ValueType::Timestamp),
            ("raw".into(), array(ValueType::Bytea)),
            ("json".into(), ValueType::Json),
        ]);
        let written = |value: &ValueType, json: &str| {
            let mut out = Vec::new();
            write(value, json.as_bytes(), &mut out).map(|()| String::from_utf8(out).unwrap())
        };
        let visits = array(visit.clone());
        let json = r#"[[{"a,\"]:":"\"2026-01-01T10:00:00,]}\\","at":"0044-03-15T00:00:00 BC","raw":["\\x",null,"\\x00fFfb"],"json":{"at": "2026-01-01T10:00:00", "raw": ["\\x00"]} },null],[{"a,\"]:":null,"at":"-infinity","raw":[],"json":[[] , 1]}]]"#;
        let expected = json
            .replace("15T00:00:00 BC", "15T00:00:00+00:00 BC")
            .replace(r#"["\\x",null,"\\x00fFfb"]"#, r#"["",null,"AP/7"]"#);
        assert_eq!(written(&visits, json).unwrap(), expected);
        for (value, json, expected) in [
            (&visits, "[]", "[]"),
            (
                &array(ValueType::Timestamp),
                r#"[["2026-01-01T10:00:00.5"],[null]]"#,
                r#"[["2026-01-01T10:00:00.5+00:00"],[null]]"#,
            ),
            (&array(text), r#"["\\x00"]"#, r#"["\\x00"]"#),
        ] {
            assert_eq!(written(value, json).unwrap(), expected);
        }
        // As if the type had been altered.
        for json in [
            "",
            "[",
            "[1,",
            r#"[{"at":"2026"#,
            r#"[{"a":1,"b":2,"c":3,"d":4,"e":5}]"#,
            r#"[{"a":1,"b":2,"c":["00"]}]"#,
            r#"[{"a":1,"b":2,"c":["\\x0"]}]"#,
            r#"[{"a":1,"b":2,"c":["\\x0g"]}]"#,
            "[]]",
        ] {
            assert!(written(&visits, json).is_err(), "{json}");
        }
    }
}
