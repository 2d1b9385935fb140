//! Subjects of NATS that name members of rows: `subscribers.{worker_id}`.

use serde::Deserialize;
use serde_json::{Map, Value};

/// A subject with members of the row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Member(String),
}

/// An element of a request, as far as a subject needs it.
#[derive(Deserialize)]
struct Element {
    row: Map<String, Value>,
}

impl Subject {
    /// Reads a subject; returns why it is none.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (member, after) = after.split_once('}').ok_or("a { has no }")?;
            parts.push(Part::Text(before.to_owned()));
            parts.push(Part::Member(member.to_owned()));
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        let subject = Self(parts);
        let filled = subject.filled(|_| Ok("x".to_owned())).unwrap_or_default();
        let is_token = |token: &str| !token.is_empty() && !token.contains(is_forbidden);
        if filled.split('.').all(is_token) {
            Ok(subject)
        } else {
            Err("must be tokens separated by `.`, without white space, `*`, `>` and a stray }")
        }
    }

    /// Returns the members of rows that it names.
    pub(crate) fn members(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Member(name) => Some(name.as_str()),
            Part::Text(_) => None,
        })
    }

    /// Returns the subjects of all rows as a subscription names them.
    pub(crate) fn wildcard(&self) -> String {
        let filled = self.filled(|_| Ok("*".to_owned())).unwrap_or_default();
        let tokens = filled.split('.');
        // A wildcard is a token of its own.
        let tokens = tokens.map(|token| if token.contains('*') { "*" } else { token });
        tokens.collect::<Vec<_>>().join(".")
    }

    /// Makes the subject of the row in `element`.
    ///
    /// # Errors
    /// Why the values of the row are no tokens.
    pub(crate) fn of(&self, element: &[u8]) -> Result<String, String> {
        if self.members().next().is_none() {
            return self.filled(|_| Ok(String::new()));
        }
        let element = serde_json::from_slice(element);
        let Element { row } = element.map_err(|error| error.to_string())?;
        self.filled(|name| {
            let text = match row.get(name) {
                Some(Value::String(text)) => text.clone(),
                None | Some(Value::Null) => String::new(),
                Some(value) => value.to_string(),
            };
            if text.is_empty() || text.contains('.') || text.contains(is_forbidden) {
                let why = "is empty or holds `.`, `*`, `>` or white space";
                return Err(format!("the value of {name} in the subject {why}"));
            }
            Ok(text)
        })
    }

    fn filled(&self, value: impl Fn(&str) -> Result<String, String>) -> Result<String, String> {
        let parts = self.0.iter().map(|part| match part {
            Part::Text(text) => Ok(text.clone()),
            Part::Member(name) => value(name),
        });
        parts.collect()
    }
}

fn is_forbidden(c: char) -> bool {
    c.is_whitespace() || c.is_control() || "*>{}".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_row_are_tokens() {
        let subject = Subject::parse("s.{a}.p-{b}").unwrap();
        assert_eq!(subject.members().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(subject.wildcard(), "s.*.*");
        let of = |row: &str| subject.of(format!(r#"{{"id":"x","row":{row}}}"#).as_bytes());
        assert_eq!(of(r#"{"a":7,"b":"é"}"#), Ok("s.7.p-é".to_owned()));
        for row in [
            r#"{"a":7}"#,
            r#"{"a":null,"b":1}"#,
            r#"{"a":"","b":1}"#,
            r#"{"a":1.5,"b":1}"#,
            r#"{"a":"x y","b":1}"#,
            r#"{"a":">","b":1}"#,
        ] {
            assert!(of(row).unwrap_err().contains("in the subject"), "{row}");
        }
        assert_eq!(Subject::parse("s.x").unwrap().of(b""), Ok("s.x".to_owned()));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", ".", "s.", "s..x", "s.*", "s.>", "a b", "s.{a", "s.a}"] {
            assert!(Subject::parse(text).is_err(), "{text}");
        }
    }
}
