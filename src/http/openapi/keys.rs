//! Keys as parameters.

use serde_json::{Value, json};

use crate::http::openapi::documents::key_example;
use crate::http::openapi::schema::integer;
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
            let KeyColumn {
                name: known,
                type_text,
                ..
            } = column;
            json!({
                "name": name,
                "in": "path",
                "required": true,
                "description": format!("{known} ({type_text}). {}", spellings(column)),
                "schema": part(column),
                "example": key_example(column)
            })
        })
        .collect()
}

/// A template's names hold no brace, slash or comma; columns may.
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
pub(super) fn part(column: &KeyColumn) -> Value {
    match column.key_type {
        KeyType::SmallInt => integer("int16", i16::MIN.into(), i16::MAX.into()),
        KeyType::Integer => integer("int32", i32::MIN.into(), i32::MAX.into()),
        KeyType::BigInt => integer("int64", i64::MIN, i64::MAX),
        KeyType::Numeric { digits } => {
            json!({"type": "string", "pattern": format!("^[+-]?[0-9]{{1,{digits}}}$")})
        }
        KeyType::Text | KeyType::Char => json!({"type": "string"}),
        KeyType::Uuid => json!({"type": "string", "format": "uuid"}),
        KeyType::Date => json!({
            "anyOf": [
                {"type": "string", "format": "date"},
                {"type": "string", "enum": ["infinity", "-infinity"]}
            ]
        }),
    }
}

/// A part of a key in a body: a number may be a string as well.
fn json_part(column: &KeyColumn) -> Value {
    let digits = match column.key_type {
        KeyType::SmallInt => 4,
        KeyType::Integer => 9,
        KeyType::BigInt => 18,
        KeyType::Numeric { digits } => digits,
        _ => return part(column),
    };
    let mut schema = part(column);
    schema["type"] = json!(["integer", "string"]);
    schema["pattern"] = json!(format!("^[+-]?0*[0-9]{{1,{digits}}}$"));
    schema
}

/// A part of a key in an answer.
fn json_part_read(column: &KeyColumn) -> Value {
    match column.key_type {
        KeyType::Numeric { .. } => json!({"type": "integer"}),
        KeyType::Date => json!({"type": "string"}),
        _ => part(column),
    }
}

/// A key in a body: a value, for several columns an array of them.
pub(super) fn json_key(key: &KeyShape) -> Value {
    match key.columns.as_slice() {
        [column] => json_part(column),
        columns => array(columns.iter().map(json_part)),
    }
}

/// The same in an answer, for tools that know no `prefixItems` there.
pub(super) fn json_key_read(key: &KeyShape) -> Value {
    match key.columns.as_slice() {
        [column] => json_part_read(column),
        columns => json!({
            "type": "array",
            "items": {"type": ["integer", "string"]},
            "minItems": columns.len(),
            "maxItems": columns.len()
        }),
    }
}

/// One value for each of `parts`.
pub(super) fn array(parts: impl ExactSizeIterator<Item = Value>) -> Value {
    let length = parts.len();
    json!({
        "type": "array",
        "prefixItems": parts.collect::<Vec<_>>(),
        "minItems": length,
        "maxItems": length
    })
}

fn spellings(column: &KeyColumn) -> &'static str {
    match column.key_type {
        KeyType::SmallInt | KeyType::Integer | KeyType::BigInt | KeyType::Numeric { .. } => {
            "A plus sign and leading zeros are taken and don't count."
        }
        KeyType::Text => "Any text of at most 4,096 bytes, percent-encoded.",
        KeyType::Char => {
            "Any text of at most 4,096 bytes, percent-encoded; trailing blanks don't count."
        }
        KeyType::Uuid => "Of the form 8-4-4-4-12, in either case.",
        KeyType::Date => {
            "YYYY-MM-DD; years after 9999 have more digits, those before 1 end with BC."
        }
    }
}
