//! How PostgreSQL's text of a value becomes JSON: a second implementation, independent of the product's.

use std::iter::Peekable;
use std::str::Chars;

/// What a column holds, as far as its JSON depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ColumnKind {
    /// Digits as they are; NaN and the infinities as strings.
    Number,
    Bool,
    /// Everything whose text is the string.
    Text,
    /// `char(n)` with its blanks, which the cast to text takes away.
    Padded(usize),
    Bytea,
    /// `json` and `jsonb`.
    Embedded,
    /// Without zone.
    Timestamp,
    /// With zone, in UTC.
    Zoned,
    /// The cast to text names the mask of a host, the output doesn't.
    Inet,
    Array(&'static ColumnKind),
    /// A composite type's members.
    Composite(&'static [(&'static str, ColumnKind)]),
}

/// `text` as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

impl ColumnKind {
    /// The JSON of a value that PostgreSQL writes as `text`; none is null.
    pub(crate) fn json(self, text: Option<&str>) -> String {
        let Some(text) = text else {
            return "null".into();
        };
        match self {
            Self::Number if text.ends_with(['N', 'y']) => quoted(text),
            Self::Number | Self::Embedded => text.into(),
            Self::Bool => if text.starts_with('t') {
                "true"
            } else {
                "false"
            }
            .into(),
            Self::Text => quoted(text),
            Self::Padded(length) => quoted(&format!("{text:length$}")),
            Self::Bytea => quoted(&base64(&bytes(text))),
            Self::Timestamp => quoted(&instant(text, "")),
            Self::Zoned => quoted(&instant(text, "+00")),
            Self::Inet => {
                let host = if text.contains(':') { "/128" } else { "/32" };
                quoted(text.strip_suffix(host).unwrap_or(text))
            }
            Self::Array(element) => {
                // Bounds other than from 1 stand before the elements.
                let elements = if text.starts_with('[') {
                    text.split_once('=').unwrap().1
                } else {
                    text
                };
                array(&mut elements.chars().peekable(), *element)
            }
            Self::Composite(members) => composite(text, members),
        }
    }
}

/// RFC 3339 of `2024-01-02 03:04:05.6` followed by `zone` and maybe ` BC`.
fn instant(text: &str, zone: &str) -> String {
    if text.ends_with("infinity") {
        return text.into();
    }
    let (text, era) = match text.strip_suffix(" BC") {
        Some(text) => (text, " BC"),
        None => (text, ""),
    };
    let text = text.strip_suffix(zone).expect("a session in UTC");
    let (day, time) = text.split_once(' ').unwrap();
    format!("{day}T{time}+00:00{era}")
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits = hexadecimal.strip_prefix("\\x").unwrap();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let mut bits = [0_u8; 3];
        bits[..group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes([0, bits[0], bits[1], bits[2]]);
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place)) as usize & 63];
            let present = place <= group.len();
            text.push(if present { char::from(digit) } else { '=' });
        }
    }
    text
}

/// Reads `{…}`, elements in quotes where they need it, nested where there are more dimensions.
fn array(text: &mut Peekable<Chars<'_>>, element: ColumnKind) -> String {
    assert_eq!(text.next(), Some('{'));
    let mut elements = Vec::new();
    loop {
        match text.peek().unwrap() {
            '}' => {
                text.next();
                return format!("[{}]", elements.join(","));
            }
            ',' => {
                text.next();
            }
            '{' => elements.push(array(text, element)),
            '"' => elements.push(element.json(Some(&in_quotes(text)))),
            _ => {
                let bare = bare(text, '}');
                elements.push(element.json(Some(&bare[..]).filter(|&bare| bare != "NULL")));
            }
        }
    }
}

/// Reads `(…)`: nothing at all is null.
fn composite(text: &str, members: &[(&str, ColumnKind)]) -> String {
    let mut text = text.strip_prefix('(').unwrap().chars().peekable();
    let mut written = Vec::new();
    for (name, kind) in members {
        let value = match text.peek().unwrap() {
            ',' | ')' => None,
            '"' => Some(in_quotes(&mut text)),
            _ => Some(bare(&mut text, ')')),
        };
        text.next();
        written.push(format!("{}:{}", quoted(name), kind.json(value.as_deref())));
    }
    assert_eq!(text.next(), None);
    format!("{{{}}}", written.join(","))
}

fn bare(text: &mut Peekable<Chars<'_>>, end: char) -> String {
    let mut bare = String::new();
    while let Some(character) = text.next_if(|&next| next != ',' && next != end) {
        bare.push(character);
    }
    bare
}

/// Reads `"…"`, in which `\x` is x and `""` is a quote.
fn in_quotes(text: &mut Peekable<Chars<'_>>) -> String {
    let mut inside = String::new();
    text.next();
    loop {
        match text.next().unwrap() {
            '\\' => inside.push(text.next().unwrap()),
            '"' => match text.next_if_eq(&'"') {
                Some(_) => inside.push('"'),
                None => return inside,
            },
            character => inside.push(character),
        }
    }
}

#[test]
fn the_oracle_reads_what_postgresql_writes() {
    let texts = ColumnKind::Array(&ColumnKind::Text);
    assert_eq!(texts.json(Some(r#"[0:1]={a,NULL}"#)), r#"["a",null]"#);
    assert_eq!(
        texts.json(Some(r#"{{"a\"b\\","NULL"},{"",x}}"#)),
        r#"[["a\"b\\","NULL"],["","x"]]"#
    );
    let composite = ColumnKind::Composite(&[
        ("a", ColumnKind::Text),
        ("b", ColumnKind::Bool),
        ("c", ColumnKind::Text),
    ]);
    assert_eq!(
        composite.json(Some(r#"("x "",y\\",t,)"#)),
        r#"{"a":"x \",y\\","b":true,"c":null}"#
    );
    for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v")] {
        assert_eq!(base64(bytes.as_bytes()), text);
    }
    assert_eq!(
        ColumnKind::Zoned.json(Some("0044-03-15 12:00:00+00 BC")),
        r#""0044-03-15T12:00:00+00:00 BC""#
    );
}
