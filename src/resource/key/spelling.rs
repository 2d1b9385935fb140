//! The canonical text of each value that can be a part of a key: PostgreSQL's own output for it.

use std::borrow::Cow;

use uuid::Uuid;

use crate::resource::date_time;
use crate::resource::key::KeyType;

impl KeyType {
    /// The canonical text of `text`.
    ///
    /// # Errors
    /// If it is not a value of this type, the end of a sentence that says what is expected.
    pub(super) fn canonical(self, text: &str) -> Result<Cow<'_, str>, String> {
        match self {
            Self::SmallInt => integer(text, "smallint", i16::MIN.into(), i16::MAX.into()),
            Self::Integer => integer(text, "integer", i32::MIN.into(), i32::MAX.into()),
            Self::BigInt => integer(text, "bigint", i64::MIN, i64::MAX),
            Self::Numeric { digits } => numeric(text, digits),
            Self::Text => Ok(Cow::Borrowed(text)),
            Self::Char => Ok(Cow::Borrowed(text.trim_end_matches(' '))),
            Self::Uuid => uuid(text),
            Self::Date => date(text),
        }
    }
}

fn integer<'t>(text: &'t str, name: &str, min: i64, max: i64) -> Result<Cow<'t, str>, String> {
    let refuse = || format!("is not a {name} ({min} to {max})");
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
