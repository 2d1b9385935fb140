//! JSON Schema of what columns hold.
//!
//! [`read`] describes values in responses: every value that larder sends is valid. [`written`] describes values in
//! request bodies: larder accepts every valid value, as far as the catalogue tells. A value from a response is valid in
//! a request, except for rare values, which the descriptions name. JSON Schema can't say that PostgreSQL's texts must
//! not have a zero character; the description of the whole API does.

use serde_json::{Value, json};

use crate::resource::value::ValueType;

/// Decimal digits that every `f64` keeps.
const DIGITS_KEPT: u16 = 15;

/// The values of `numeric` and of floats that are not numbers.
const WORDS: &str = "^(?:NaN|-?Infinity)$";

/// Base64 (RFC 4648, section 4) in responses: padded, with unused bits zero.
const BASE64: &str =
    "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$";

/// Dates before year 1 end with BC; years after 9999 have more digits.
const DATE: &str = "^(?:[0-9]{4,}-[0-9]{2}-[0-9]{2}(?: BC)?|-?infinity)$";
/// UTC.
const TIMESTAMP: &str = "^(?:[0-9]{4,}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\\.[0-9]{1,6})?\
                         \\+00:00(?: BC)?|-?infinity)$";
const TIME: &str = "^[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\\.[0-9]{1,6})?$";
const TIME_TZ: &str =
    "^[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\\.[0-9]{1,6})?[+-][0-9]{2}(?::[0-9]{2}){0,2}$";

/// A time of day in a request body; 24:00:00 and leap seconds are accepted too.
const TIME_WRITTEN: &str = "^(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?$";
const TIME_TZ_WRITTEN: &str =
    "^(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?[+-](?:0[0-9]|1[0-4])$";

/// The values of a column in responses.
pub(super) fn read(value: &ValueType, nullable: bool) -> Value {
    let schema = match value {
        ValueType::Date => json!({"type": "string", "pattern": DATE}),
        ValueType::Timestamp | ValueType::TimestampTz => {
            json!({"type": "string", "pattern": TIMESTAMP})
        }
        ValueType::Time => json!({"type": "string", "pattern": TIME}),
        ValueType::TimeTz => json!({"type": "string", "pattern": TIME_TZ}),
        ValueType::Numeric { digits } => {
            numeric(*digits, |(precision, _)| precision <= DIGITS_KEPT)
        }
        // An array may have several dimensions.
        ValueType::Array(element) => json!({
            "type": "array",
            "items": {"anyOf": [read(element, true), {"type": "array"}]}
        }),
        ValueType::Composite(attributes) => object(
            attributes
                .iter()
                .map(|(name, value)| (name.as_str(), read(value, true), true)),
        ),
        ValueType::Other | ValueType::NumericText | ValueType::Unwritable => {
            json!({"description": "The result of PostgreSQL's to_json."})
        }
        value => common(value),
    };
    if nullable { or_null(schema) } else { schema }
}

/// The values of a column in request bodies.
pub(super) fn written(value: &ValueType, nullable: bool) -> Value {
    let schema = match value {
        value if value.is_unwritable() => common(value),
        ValueType::Date => moment(
            "date",
            "Years after 9999 and before 1 are accepted in the form of responses.",
        ),
        ValueType::Timestamp | ValueType::TimestampTz => moment(
            "date-time",
            "Stored in microseconds. Years after 9999 and before 1 are accepted in the form of responses.",
        ),
        ValueType::Time => json!({"type": "string", "pattern": TIME_WRITTEN}),
        ValueType::TimeTz => json!({"type": "string", "pattern": TIME_TZ_WRITTEN}),
        ValueType::Numeric { digits } => numeric(*digits, |_| true),
        ValueType::Array(element) => json!({
            "type": "array",
            "items": written(element, true),
            "description": "Arrays of several dimensions are accepted in the form of responses."
        }),
        ValueType::Composite(attributes) => object(
            attributes
                .iter()
                .map(|(name, value)| (name.as_str(), written(value, true), false)),
        ),
        ValueType::Other | ValueType::NumericText => json!({
            "type": "string",
            "description": "The type's text form in PostgreSQL."
        }),
        value => common(value),
    };
    if nullable { or_null(schema) } else { schema }
}

/// The types whose values are the same in responses and request bodies.
fn common(value: &ValueType) -> Value {
    match value {
        ValueType::Boolean => json!({"type": "boolean"}),
        ValueType::SmallInt => integer("int16", i16::MIN.into(), i16::MAX.into()),
        ValueType::Integer => integer("int32", i32::MIN.into(), i32::MAX.into()),
        ValueType::BigInt => integer("int64", i64::MIN, i64::MAX),
        ValueType::Real => json!({
            "type": ["number", "string"], "format": "float",
            "minimum": f64::from(f32::MIN), "maximum": f64::from(f32::MAX), "pattern": WORDS
        }),
        ValueType::Double => json!({
            "type": ["number", "string"], "format": "double", "pattern": WORDS
        }),
        ValueType::Text { max } | ValueType::Char { length: max } => {
            let mut text = json!({"type": "string"});
            if let Some(max) = max {
                text["maxLength"] = json!(max);
            }
            text
        }
        ValueType::Name | ValueType::Byte { .. } | ValueType::Bits { .. } => {
            json!({"type": "string"})
        }
        ValueType::Uuid => json!({"type": "string", "format": "uuid"}),
        ValueType::Bytea => json!({
            "type": "string", "contentEncoding": "base64", "pattern": BASE64
        }),
        ValueType::Interval => json!({
            "type": "string", "description": "An interval in PostgreSQL's text form."
        }),
        ValueType::Enum(labels) => json!({"type": "string", "enum": labels}),
        _ => json!({"description": "Any JSON."}),
    }
}

pub(super) fn integer(format: &str, minimum: i64, maximum: i64) -> Value {
    json!({"type": "integer", "format": format, "minimum": minimum, "maximum": maximum})
}

/// `numeric`: numbers, with the bounds of precision and scale if `bounded` returns true, and NaN; without bounds also
/// infinities.
fn numeric(digits: Option<(u16, i16)>, bounded: impl Fn((u16, i16)) -> bool) -> Value {
    let Some(digits) = digits.filter(|&digits| bounded(digits)) else {
        return json!({"type": ["number", "string"], "pattern": WORDS});
    };
    let (precision, scale) = digits;
    // The largest number of the column, in as many digits as an f64 keeps.
    let nines = precision.min(DIGITS_KEPT);
    let exponent = i32::from(precision) - i32::from(scale) - i32::from(nines);
    let text = format!("{}e{exponent}", "9".repeat(nines.into()));
    // Digits with an exponent always parse.
    let maximum: f64 = text.parse().unwrap_or(f64::MAX);
    json!({
        "type": ["number", "string"],
        "minimum": -maximum, "maximum": maximum, "pattern": "^NaN$",
        "description": format!("numeric({precision},{scale})")
    })
}

fn moment(format: &str, description: &str) -> Value {
    json!({
        "anyOf": [
            {"type": "string", "format": format},
            {"type": "string", "enum": ["infinity", "-infinity"]}
        ],
        "description": description
    })
}

/// An object with these members (name, schema, whether it is required) and no others.
pub(super) fn object<'m>(members: impl Iterator<Item = (&'m str, Value, bool)>) -> Value {
    let mut properties = serde_json::Map::new();
    let mut required = Vec::new();
    for (name, schema, is_required) in members {
        if is_required {
            required.push(name.to_owned());
        }
        properties.insert(name.to_owned(), schema);
    }
    let mut object = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    object["additionalProperties"] = json!(false);
    object
}

/// The same schema or null. A schema without a type allows null already.
pub(super) fn or_null(mut schema: Value) -> Value {
    match schema.get_mut("type") {
        Some(Value::Array(types)) => types.push(json!("null")),
        Some(one) => *one = json!([one.take(), "null"]),
        None => {}
    }
    for keyword in ["enum", "anyOf"] {
        if let Some(Value::Array(choices)) = schema.get_mut(keyword) {
            choices.push(match keyword {
                "enum" => Value::Null,
                _ => json!({"type": "null"}),
            });
        }
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_have_their_offset_at_every_depth() {
        let visit = ValueType::Composite(vec![("at".into(), ValueType::Timestamp)]);
        let schema = jsonschema::draft202012::new(&read(&visit, false)).unwrap();
        assert!(schema.is_valid(&json!({"at": "2026-01-01T10:00:00+00:00"})));
        assert!(!schema.is_valid(&json!({"at": "2026-01-01T10:00:00"})));
    }
}
