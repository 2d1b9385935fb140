//! The canonical text of each value that can be a part of a key: PostgreSQL's own output for it.

use std::borrow::Cow;

use uuid::Uuid;

use crate::resource::date_time;
use crate::resource::document::timestamp_text;
use crate::resource::key::{KeyType, address};

impl KeyType {
    /// The canonical text of `text`.
    ///
    /// # Errors
    /// If it is not a value of this type, the end of a sentence that says what is expected.
    pub(super) fn canonical(self, text: &str) -> Result<Cow<'_, str>, String> {
        match self {
            Self::SmallInt => integer(text, "a smallint", i16::MIN.into(), i16::MAX.into()),
            Self::Integer => integer(text, "an integer", i32::MIN.into(), i32::MAX.into()),
            Self::BigInt => integer(text, "a bigint", i64::MIN, i64::MAX),
            Self::Numeric { digits } => numeric(text, digits),
            Self::Text | Self::Enum => Ok(Cow::Borrowed(text)),
            Self::Char => Ok(Cow::Borrowed(text.trim_end_matches(' '))),
            Self::Uuid => uuid(text),
            Self::Date => date(text),
            Self::Timestamp { precision } => timestamp(text, true, precision),
            Self::TimestampTz { precision } => timestamp(text, false, precision),
            Self::Boolean => boolean(text),
            Self::Bytea => bytea(text),
            Self::Inet => address::inet(text),
            Self::Cidr => address::cidr(text),
            Self::MacAddr => address::macaddr(text),
        }
    }
}

fn integer<'t>(text: &'t str, name: &str, min: i64, max: i64) -> Result<Cow<'t, str>, String> {
    let refuse = || format!("is not {name} ({min} to {max})");
    let (negative, digits) = sign_and_digits(text).ok_or_else(refuse)?;
    let value: i64 = match (negative, digits) {
        (_, "0") => 0,
        (false, digits) => digits.parse().map_err(|_| refuse())?,
        (true, digits) => format!("-{digits}").parse().map_err(|_| refuse())?,
    };
    if !(min..=max).contains(&value) {
        return Err(refuse());
    }
    Ok(spelled(text, negative && value != 0, digits))
}

fn numeric(text: &str, precision: u16) -> Result<Cow<'_, str>, String> {
    let refuse = || format!("is not a whole number of at most {precision} digits");
    let (negative, digits) = sign_and_digits(text).ok_or_else(refuse)?;
    if digits.len() > usize::from(precision) {
        return Err(refuse());
    }
    Ok(spelled(text, negative && digits != "0", digits))
}

/// Whether the number `[+-]?[0-9]+` is negative, and its digits without leading zeros; `None` for other texts.
pub(in crate::resource) fn sign_and_digits(text: &str) -> Option<(bool, &str)> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let significant = digits.trim_start_matches('0');
    Some((
        negative,
        if significant.is_empty() {
            "0"
        } else {
            significant
        },
    ))
}

/// `digits` with its sign, borrowed if `text` has this form already.
fn spelled<'t>(text: &'t str, negative: bool, digits: &'t str) -> Cow<'t, str> {
    if !negative {
        Cow::Borrowed(digits)
    } else if text.len() == digits.len() + 1 {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("-{digits}"))
    }
}

fn uuid(text: &str) -> Result<Cow<'_, str>, String> {
    // try_parse also accepts braces, urn: and digits without hyphens, which are longer or shorter.
    match Uuid::try_parse(text) {
        Ok(_) if text.len() != 36 => Err("is not a uuid of the form 8-4-4-4-12".into()),
        Ok(_) if !text.bytes().any(|byte| byte.is_ascii_uppercase()) => Ok(Cow::Borrowed(text)),
        Ok(uuid) => Ok(Cow::Owned(uuid.hyphenated().to_string())),
        Err(_) => Err("is not a uuid of the form 8-4-4-4-12".into()),
    }
}

fn date(text: &str) -> Result<Cow<'_, str>, String> {
    if date_time::is_date(text) {
        Ok(Cow::Borrowed(text))
    } else {
        Err("is not a date of the form YYYY-MM-DD".to_owned())
    }
}

/// The digits that PostgreSQL stores after the second.
const FRACTION_DIGITS: u8 = 6;

/// A moment in UTC as documents have it. Its offset may be missing if it is `local`.
fn timestamp(text: &str, local: bool, precision: u8) -> Result<Cow<'_, str>, String> {
    if date_time::is_infinite(text) {
        return Ok(Cow::Borrowed(text));
    }
    let Some(microseconds) = date_time::parse_timestamp(text, local) else {
        return Err("is not a date and time as in RFC 3339".to_owned());
    };
    let beyond = FRACTION_DIGITS.saturating_sub(precision);
    if microseconds % 10_i64.pow(beyond.into()) != 0 {
        return Err(format!("has more than {precision} digits after the second"));
    }
    let canonical = timestamp_text(microseconds);
    Ok(if canonical == text {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(canonical)
    })
}

fn boolean(text: &str) -> Result<Cow<'_, str>, String> {
    match text {
        "true" | "false" => Ok(Cow::Borrowed(text)),
        _ => Err("is not true or false".to_owned()),
    }
}

fn bytea(text: &str) -> Result<Cow<'_, str>, String> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("is not a sequence of bytes, each as two hexadecimal digits".to_owned());
    }
    Ok(if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(text.to_ascii_lowercase())
    } else {
        Cow::Borrowed(text)
    })
}
