//! The texts of values without parts: numbers, strings, dates.

use std::borrow::Cow;
use std::fmt::Write as _;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::resource::body::decimal::Decimal;
use crate::resource::body::parse::Json;
use crate::resource::date_time;
use crate::resource::document::timestamp_text;
use crate::resource::value::{NAME_BYTES_MAX, ValueType};

/// Labels of an enum that a message lists.
const LABELS_MAX: usize = 20;

type Expected = Cow<'static, str>;

/// The text of `json` as a value of type `value`, or the end of a sentence that says what is expected.
pub(super) fn text(value: &ValueType, json: Json<'_>) -> Result<String, Expected> {
    match (value, json) {
        (ValueType::Boolean, Json::Boolean(true)) => Ok("true".to_owned()),
        (ValueType::Boolean, Json::Boolean(false)) => Ok("false".to_owned()),
        (ValueType::Boolean, _) => Err("must be true or false".into()),
        (ValueType::SmallInt, json) => integer(json, i16::MIN.into(), i16::MAX.into()),
        (ValueType::Integer, json) => integer(json, i32::MIN.into(), i32::MAX.into()),
        (ValueType::BigInt, json) => integer(json, i64::MIN, i64::MAX),
        (ValueType::Real | ValueType::Double | ValueType::Numeric { .. }, json) => {
            number(value, json)
        }
        (value, Json::String(text)) => string(value, text),
        (ValueType::Array(_), _) => Err("must be an array".into()),
        (ValueType::Composite(_), _) => Err("must be an object".into()),
        _ => Err("must be a string".into()),
    }
}

fn integer(json: Json<'_>, min: i64, max: i64) -> Result<String, Expected> {
    let text = match json {
        // An integer that i64 parses is written without leading zeros, as JSON demands. Zero may have a sign.
        Json::Number(text) if text.parse().is_ok_and(|value: i64| value != 0) => {
            Some(Cow::Borrowed(text))
        }
        Json::Number(text) => Decimal::parse(text)
            .and_then(|number| number.integer())
            .map(Cow::Owned),
        _ => None,
    };
    text.filter(|text| text.parse().is_ok_and(|value| (min..=max).contains(&value)))
        .map(Cow::into_owned)
        .ok_or_else(|| format!("must be an integer from {min} to {max}").into())
}

fn number(value: &ValueType, json: Json<'_>) -> Result<String, Expected> {
    let text = match json {
        Json::Number(text) => text,
        Json::String(text @ ("NaN" | "Infinity" | "-Infinity")) => {
            let finite = matches!(value, ValueType::Numeric { digits: Some(_) });
            return if finite && text != "NaN" {
                Err("must be a finite number or \"NaN\"".into())
            } else {
                Ok(text.to_owned())
            };
        }
        _ => return Err("must be a number".into()),
    };
    let number = Decimal::parse(text).ok_or("must be a number")?;
    match value {
        ValueType::Real => check_range(&number, text.parse().unwrap_or(f32::INFINITY).into()),
        ValueType::Double => check_range(&number, text.parse().unwrap_or(f64::INFINITY)),
        ValueType::Numeric {
            digits: Some((precision, scale)),
        } => match number.fits(*precision, *scale) {
            true if *scale == 0 => return Ok(number.integer().unwrap_or_else(|| text.to_owned())),
            true => Ok(()),
            false => Err(format!(
                "must be a number that numeric({precision},{scale}) holds, {} digits before the point",
                i32::from(*precision) - i32::from(*scale)
            )
            .into()),
        },
        _ if number.is_numeric() => Ok(()),
        _ => Err("must be a number that numeric holds".into()),
    }?;
    Ok(text.to_owned())
}

/// Checks that a number is in the range of a floating-point type, which converts it to `value`.
fn check_range(number: &Decimal<'_>, value: f64) -> Result<(), Expected> {
    if value.is_infinite() || (value == 0.0 && !number.is_zero()) {
        Err("must be a number in the range of its floating-point type".into())
    } else {
        Ok(())
    }
}

fn string(value: &ValueType, text: &str) -> Result<String, Expected> {
    if text.contains('\0') {
        return Err("must not contain \\u0000".into());
    }
    match value {
        ValueType::Text { max } => bounded(text, *max),
        // Trailing blanks do not count.
        ValueType::Char { length } => bounded(text.trim_end_matches(' '), *length),
        ValueType::Name if text.len() > NAME_BYTES_MAX => {
            Err(format!("must be at most {NAME_BYTES_MAX} bytes long").into())
        }
        ValueType::Byte { octal } => match is_byte(text, *octal) {
            true => Ok(text.to_owned()),
            false if *octal => Err(
                "must be one ASCII character or empty, or a byte as PostgreSQL writes it".into(),
            ),
            false => Err("must be one ASCII character or empty".into()),
        },
        ValueType::Name => Ok(text.to_owned()),
        ValueType::Bits { length, varying } => bits(text, *length, *varying),
        ValueType::Uuid => match uuid::Uuid::try_parse(text) {
            Ok(uuid) if text.len() == 36 => Ok(uuid.hyphenated().to_string()),
            _ => Err("must be a uuid of the form 8-4-4-4-12".into()),
        },
        ValueType::Bytea => bytea(text),
        ValueType::Date => {
            if date_time::is_date(text) {
                Ok(text.to_owned())
            } else {
                Err("must be a date of the form YYYY-MM-DD".into())
            }
        }
        ValueType::Timestamp | ValueType::TimestampTz => {
            let local = *value == ValueType::Timestamp;
            match date_time::parse_timestamp(text, local) {
                Some(microseconds) => Ok(timestamp_text(microseconds)),
                None if date_time::is_infinite(text) => Ok(text.to_owned()),
                None => Err("must be a date and time as in RFC 3339".into()),
            }
        }
        ValueType::Time | ValueType::TimeTz => {
            let zone = *value == ValueType::TimeTz;
            match date_time::is_time(text, zone) {
                true => Ok(text.to_owned()),
                false if zone => Err("must be a time of the form HH:MM:SS+HH:MM".into()),
                false => Err("must be a time of the form HH:MM:SS".into()),
            }
        }
        ValueType::Enum(labels) => {
            if labels.iter().any(|label| label == text) {
                Ok(text.to_owned())
            } else {
                Err(one_of(labels).into())
            }
        }
        ValueType::Interval | ValueType::NumericText | ValueType::Other => Ok(text.to_owned()),
        ValueType::Composite(_) => Err("must be an object".into()),
        ValueType::Array(_) => Err("must be an array".into()),
        // Values of the other types are not strings.
        _ => Err("must not be a string".into()),
    }
}

/// `text` if it has at most `max` characters. Blanks beyond are removed, as in the SQL standard.
fn bounded(text: &str, max: Option<u32>) -> Result<String, Expected> {
    let max = max.map_or(usize::MAX, |max| max as usize);
    if text.len() <= max {
        return Ok(text.to_owned());
    }
    let end = text
        .char_indices()
        .nth(max)
        .map_or(text.len(), |(at, _)| at);
    match text.split_at_checked(end) {
        Some((kept, beyond)) if beyond.bytes().all(|byte| byte == b' ') => Ok(kept.to_owned()),
        _ => Err(format!("must be at most {max} characters long").into()),
    }
}

/// Whether PostgreSQL reads all of `text` as a value of type `"char"` (char.c, `charin`).
fn is_byte(text: &str, octal: bool) -> bool {
    match text.as_bytes() {
        [] => true,
        [byte] => byte.is_ascii(),
        [b'\\', b'2' | b'3', b'0'..=b'7', b'0'..=b'7'] => octal,
        _ => false,
    }
}

/// `text` if it is a bit string of `length` bits, or at most so many if it is `varying`. PostgreSQL also reads `b101` and
/// hexadecimal digits after `x`, and checks the digits.
fn bits(text: &str, length: Option<u32>, varying: bool) -> Result<String, Expected> {
    let given = match text.as_bytes() {
        [b'x' | b'X', digits @ ..] => 4 * digits.len(),
        [b'b' | b'B', digits @ ..] => digits.len(),
        digits => digits.len(),
    };
    let fits = |length: u32| match length as usize {
        length if varying => given <= length,
        length => given == length,
    };
    match length {
        Some(length) if !fits(length) => {
            let bound = if varying { "at most " } else { "" };
            Err(format!("must have {bound}{length} bits").into())
        }
        _ => Ok(text.to_owned()),
    }
}

/// From base64 to the text that PostgreSQL reads as `bytea`.
fn bytea(text: &str) -> Result<String, Expected> {
    let bytes = STANDARD
        .decode(text)
        .map_err(|_| "must be base64 with padding and without line breaks")?;
    let mut hexadecimal = String::with_capacity(2 + 2 * bytes.len());
    hexadecimal.push_str("\\x");
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(hexadecimal, "{byte:02x}");
    }
    Ok(hexadecimal)
}

fn one_of(labels: &[String]) -> String {
    let listed: Vec<String> = labels
        .iter()
        .take(LABELS_MAX)
        .map(|label| format!("{label:?}"))
        .collect();
    let more = if labels.len() > LABELS_MAX {
        " and others"
    } else {
        ""
    };
    format!("must be one of {}{more}", listed.join(", "))
}
