//! The types of keys, owners and aliases: their values, numbered, and how each can be spelled.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

/// A value needs more than 53 bits.
const BIG: i64 = 9_000_000_000_000_000;

/// A type of PostgreSQL whose values are numbered: different numbers have different values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Integer,
    Bigint,
    Text,
    Uuid,
    Inet,
    Timestamptz,
    /// Two values are too few for keys that are drawn.
    Boolean,
}

impl Kind {
    /// The types of keys.
    pub(super) const OF_KEYS: [Self; 6] = [
        Self::Integer,
        Self::Bigint,
        Self::Text,
        Self::Uuid,
        Self::Inet,
        Self::Timestamptz,
    ];

    pub(super) fn type_sql(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::Bigint => "bigint",
            Self::Text => "text",
            Self::Uuid => "uuid",
            Self::Inet => "inet",
            Self::Timestamptz => "timestamptz",
            Self::Boolean => "boolean",
        }
    }

    /// The canonical text of a value.
    pub(super) fn canonical(self, number: i64) -> String {
        match self {
            Self::Integer if number % 5 == 4 => format!("-{number}"),
            Self::Integer => number.to_string(),
            Self::Bigint => (BIG + number).to_string(),
            Self::Text => match number % 4 {
                1 => format!("T {number}"),
                2 => format!("a,{number}"),
                3 => format!("é/{number}%"),
                _ => format!("t{number}"),
            },
            Self::Uuid => format!("abcdef00-0000-4000-8000-{number:012x}"),
            Self::Inet => {
                // Numbers are small.
                let address = Ipv4Addr::from_bits(0x0a00_0000 + number as u32);
                match number % 3 {
                    0 => format!("{address}/24"),
                    1 => format!("2001:db8::{number:x}"),
                    _ => address.to_string(),
                }
            }
            Self::Timestamptz => format!("{:04}-02-03T04:05:06.7+00:00", 1 + number),
            Self::Boolean => (number % 2 == 0).to_string(),
        }
    }

    /// The value as a document has it.
    pub(super) fn json(self, number: i64) -> Value {
        match self {
            Self::Integer if number % 5 == 4 => json!(-number),
            Self::Integer => json!(number),
            Self::Bigint => json!(BIG + number),
            Self::Boolean => json!(number % 2 == 0),
            Self::Text | Self::Uuid | Self::Inet | Self::Timestamptz => {
                json!(self.canonical(number))
            }
        }
    }

    /// The value as SQL.
    pub(super) fn literal(self, number: i64) -> String {
        format!("'{}'", self.canonical(number).replace('\'', "''"))
    }

    /// The value in any spelling that means the same.
    pub(super) fn spelled(self, number: i64, rng: &mut fastrand::Rng) -> String {
        let text = self.canonical(number);
        match (self, rng.u8(..4)) {
            (Self::Integer | Self::Bigint, 0) if !text.starts_with('-') => format!("+{text}"),
            (Self::Integer | Self::Bigint, 1 | 2) => match text.strip_prefix('-') {
                Some(digits) => format!("-00{digits}"),
                None => format!("000{text}"),
            },
            (Self::Uuid, 0 | 1) => text.to_uppercase(),
            (Self::Uuid, 2) => text.replace("ab", "Ab"),
            (Self::Inet, 0) => text.to_uppercase(),
            (Self::Inet, 1) if !text.contains([':', '/']) => format!("{text}/32"),
            (Self::Timestamptz, 0) => text.replace("+00:00", "Z"),
            (Self::Timestamptz, 1) => text.replace("T04:05:06.7+00:00", "t05:35:06.70+01:30"),
            _ => text,
        }
    }

    /// A text that is no value of this type, if there is one.
    pub(super) fn wrong(self, rng: &mut fastrand::Rng) -> Option<String> {
        let wrong: &[&str] = match self {
            Self::Integer => &["abc", "1.5", "99999999999", "1e3", "1 2", "0x1"],
            Self::Bigint => &["abc", "1.5", "99999999999999999999"],
            Self::Uuid => &["abc", "abcdef0000004000800000000000000", "17"],
            Self::Inet => &["abc", "10.0.0", "10.0.0.1/33", "1::2::3"],
            Self::Timestamptz => &["abc", "2024-02-30T00:00:00Z", "2024-02-03T04:05:06", "now"],
            Self::Text | Self::Boolean => return None,
        };
        rng.choice(wrong).map(|text| (*text).to_owned())
    }
}

/// SQL for a value as JSON has it.
pub(super) fn literal_of(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::String(text) => format!("'{}'", text.replace('\'', "''")),
        other => format!("'{other}'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_different_values() {
        for kind in Kind::OF_KEYS {
            let mut texts: Vec<String> = (0..100).map(|number| kind.canonical(number)).collect();
            texts.sort();
            texts.dedup();
            assert_eq!(texts.len(), 100, "{kind:?}");
        }
    }
}
