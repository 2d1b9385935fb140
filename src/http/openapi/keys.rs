//! Keys in paths, queries and bodies.

use serde_json::{Value, json};

use crate::http::openapi::documents::key_example;
use crate::http::openapi::schema::integer;
use crate::resource::Resource;
use crate::resource::key::{KeyColumn, KeyShape, KeyType};

/// The path below the resource: `{key}`, or a parameter for each column, separated by commas.
pub(super) fn path(key: &KeyShape) -> String {
    let parts = names(key).map(|name| format!("{{{name}}}"));
    parts.collect::<Vec<_>>().join(",")
}

/// The parameters in [`path`].
pub(super) fn parameters(key: &KeyShape) -> Vec<Value> {
    let columns = names(key).zip(&key.columns);
    columns
        .map(|(name, column)| {
            json!({
                "name": name,
                "in": "path",
                "required": true,
                "description": format!("{} ({}). {}", column.name, column.type_text, spellings(column)),
                "schema": part(column),
                "example": key_example(column)
            })
        })
        .collect()
}

/// Names of parameters must not have a brace, slash or comma; names of columns may.
fn names(key: &KeyShape) -> impl Iterator<Item = String> {
    let several = key.columns.len() > 1;
    key.columns.iter().enumerate().map(move |(at, column)| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        if !several {
            "key".to_owned()
        } else if !column.name.is_empty() && column.name.chars().all(plain) {
            column.name.clone()
        } else {
            format!("part{}", at + 1)
        }
    })
}

/// The schema of a part of a key in a path or a query.
fn part(column: &KeyColumn) -> Value {
    match column.key_type {
        KeyType::SmallInt => integer("int16", i16::MIN.into(), i16::MAX.into()),
        KeyType::Integer => integer("int32", i32::MIN.into(), i32::MAX.into()),
        KeyType::BigInt => integer("int64", i64::MIN, i64::MAX),
        KeyType::Numeric { digits } => {
            json!({"type": "string", "pattern": format!("^[+-]?[0-9]{{1,{digits}}}$")})
        }
        // Labels of enums may be added and renamed.
        KeyType::Text | KeyType::Char | KeyType::Enum => json!({"type": "string"}),
        KeyType::Uuid => json!({"type": "string", "format": "uuid"}),
        KeyType::Date => moment("date"),
        KeyType::Timestamp { .. } | KeyType::TimestampTz { .. } => moment("date-time"),
        KeyType::Boolean => json!({"type": "boolean"}),
        KeyType::Bytea => json!({"type": "string", "pattern": "^(?:[0-9A-Fa-f]{2})*$"}),
        KeyType::Inet => json!({
            "anyOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}]
        }),
        KeyType::Cidr => json!({"type": "string", "pattern": "^[0-9A-Fa-f.:]+/[0-9]{1,3}$"}),
        KeyType::MacAddr => {
            json!({"type": "string", "pattern": "^[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}$"})
        }
    }
}

/// A date or a point in time, or one that is infinite.
fn moment(format: &str) -> Value {
    json!({
        "anyOf": [
            {"type": "string", "format": format},
            {"type": "string", "enum": ["infinity", "-infinity"]}
        ]
    })
}

/// A part of a key in a body, where a number may be a string, and the text of a number a number.
fn json_part(column: &KeyColumn) -> Value {
    let mut schema = part(column);
    let digits = match column.key_type {
        KeyType::SmallInt => Some(4),
        KeyType::Integer => Some(9),
        KeyType::BigInt => Some(18),
        KeyType::Numeric { digits } => Some(digits),
        KeyType::Text | KeyType::Char => None,
        KeyType::Boolean => return json!({"enum": [true, false, "true", "false"]}),
        _ => return schema,
    };
    schema["type"] = json!(["integer", "string"]);
    if let Some(digits) = digits {
        schema["pattern"] = json!(format!("^[+-]?0*[0-9]{{1,{digits}}}$"));
    }
    if schema.get("minimum").is_none() {
        // A number that neither i64 nor u64 can hold is sent as a string.
        let most = digits.and_then(|digits| 10_u64.checked_pow(digits.into()));
        let most = most.map_or(u64::MAX, |power| power - 1);
        schema["minimum"] = i64::try_from(most).map_or(i64::MIN, |most| -most).into();
        schema["maximum"] = most.into();
    }
    schema
}

/// A part of a key in a response.
fn json_part_read(column: &KeyColumn) -> Value {
    match column.key_type {
        KeyType::Numeric { .. } => json!({"type": "integer"}),
        KeyType::Date | KeyType::Timestamp { .. } | KeyType::TimestampTz { .. } | KeyType::Inet => {
            json!({"type": "string"})
        }
        _ => part(column),
    }
}

/// The schema of a key or of an alias's value, as `schema` describes each of them.
pub(super) fn any(resource: &Resource, schema: impl Fn(&KeyShape) -> Value) -> Value {
    let shapes = resource.by.iter().map(|alias| &alias.key);
    let mut schemas = vec![schema(&resource.key)];
    for other in shapes.map(schema) {
        if !schemas.contains(&other) {
            schemas.push(other);
        }
    }
    match schemas.as_slice() {
        [schema] => schema.clone(),
        schemas => json!({"anyOf": schemas}),
    }
}

/// The same in a query, where several columns of an alias are one text.
pub(super) fn any_in_query(resource: &Resource) -> Value {
    any(resource, |shape| match shape.columns.as_slice() {
        [_, _, ..] if resource.key.columns.len() == 1 => json!({"type": "string"}),
        _ => in_query(shape),
    })
}

/// A key in a query: a value, for several columns an array of them.
pub(super) fn in_query(key: &KeyShape) -> Value {
    parts(key, part)
}

/// The same in a body.
pub(super) fn in_body(key: &KeyShape) -> Value {
    parts(key, json_part)
}

fn parts(key: &KeyShape, part: fn(&KeyColumn) -> Value) -> Value {
    match key.columns.as_slice() {
        [column] => part(column),
        columns => json!({
            "type": "array",
            "prefixItems": Value::from_iter(columns.iter().map(part)),
            "minItems": columns.len(),
            "maxItems": columns.len()
        }),
    }
}

/// The same in a response, for tools that do not know `prefixItems` there.
pub(super) fn in_answer(key: &KeyShape) -> Value {
    match key.columns.as_slice() {
        [column] => json_part_read(column),
        columns => json!({
            "type": "array",
            "items": {"type": ["integer", "string", "boolean"]},
            "minItems": columns.len(),
            "maxItems": columns.len()
        }),
    }
}

/// An example of a key in a query or a body.
pub(super) fn example(key: &KeyShape) -> Value {
    match key.columns.as_slice() {
        [column] => key_example(column),
        columns => columns.iter().map(key_example).collect(),
    }
}

fn spellings(column: &KeyColumn) -> &'static str {
    match column.key_type {
        KeyType::SmallInt | KeyType::Integer | KeyType::BigInt | KeyType::Numeric { .. } => {
            "A plus sign and leading zeros are accepted and ignored."
        }
        KeyType::Text => "Any text of at most 4,096 bytes, percent-encoded.",
        KeyType::Char => {
            "Any text of at most 4,096 bytes, percent-encoded; trailing blanks are ignored."
        }
        KeyType::Uuid => "Hexadecimal digits in the form 8-4-4-4-12, in either case.",
        KeyType::Date => {
            "YYYY-MM-DD; years after 9999 have more digits, those before 1 end with BC."
        }
        KeyType::Timestamp { .. } => {
            "A date and time as in RFC 3339, in UTC if it has no offset; years as in the documents."
        }
        KeyType::TimestampTz { .. } => {
            "A date and time as in RFC 3339, with any offset; years as in the documents."
        }
        KeyType::Boolean => "true or false.",
        KeyType::Bytea => {
            "Two hexadecimal digits for each byte, in either case, at most 4,096; not base64 as in documents."
        }
        KeyType::Inet => {
            "An IP address, in any spelling; /LENGTH follows if its prefix is shorter."
        }
        KeyType::Cidr => "The address of a network, in any spelling, and the length of its prefix.",
        KeyType::MacAddr => "Six pairs of hexadecimal digits, in either case, with : or - between.",
        KeyType::Enum => "A label of the enum, percent-encoded.",
    }
}
