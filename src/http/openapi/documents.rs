//! JSON Schema and examples of whole documents, as responses and as request bodies.

use serde_json::{Map, Value, json};

use crate::http::openapi::schema::{self, object, or_null};
use crate::resource::key::{KeyColumn, KeyType};
use crate::resource::value::ValueType;
use crate::resource::writable::{Level, MemberKind, Writable, WritableColumn};
use crate::resource::{Field, Resource, Row};

/// The names of a resource's schemas in the template.
pub(super) const SCHEMAS: [&str; 5] = ["document", "part", "new", "replacement", "patch"];

/// The schemas of [`SCHEMAS`]; `None` for bodies if it can't be written.
pub(super) fn schemas(resource: &Resource) -> [Option<Value>; SCHEMAS.len()] {
    let mut document = read(&resource.root, true);
    document["examples"] = json!([read_example(resource)]);
    let writable = resource.writable.as_ref().ok();
    let body = |purpose| writable.map(|writable| written(writable, purpose));
    [
        Some(document),
        Some(read(&resource.root, false)),
        body(Purpose::New),
        body(Purpose::Replacement),
        body(Purpose::Patch),
    ]
}

/// What a body is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// `POST`
    New,
    /// `PUT`: the path has the key.
    Replacement,
    /// `PATCH`: as `PUT`; members that are absent stay as they are.
    Patch,
}

/// A document in a response; `whole` is false if the request chose its members with `fields`.
fn read(row: &Row, whole: bool) -> Value {
    let fields = row.fields.iter().map(|field| {
        let schema = schema::read(&field.value, field.nullable);
        (field.name.as_str(), schema, whole)
    });
    let children = row.children.iter().map(|child| {
        let schema = json!({"type": "array", "items": read(&child.row, whole)});
        (child.name.as_str(), schema, whole)
    });
    let lookups = row.lookups.iter().map(|lookup| {
        let schema = or_null(read(&lookup.row, whole));
        (lookup.name.as_str(), schema, whole)
    });
    object(fields.chain(children).chain(lookups))
}

/// A document in a request body.
fn written(writable: &Writable, purpose: Purpose) -> Value {
    match writable.levels.first() {
        Some(root) => written_level(writable, root, purpose),
        None => json!({}),
    }
}

fn written_level(writable: &Writable, level: &Level, purpose: Purpose) -> Value {
    let members = level.members.iter().map(|member| {
        let (schema, required) = match member.kind {
            MemberKind::Column(at) => match level.columns.get(at) {
                Some(column) => {
                    let (schema, required) = written_column(level, at, column, purpose);
                    (schema, required && !is_owner(writable, level, at))
                }
                None => (json!({}), false),
            },
            // The rows below are always complete, in a patch too.
            MemberKind::Rows(below) => {
                let rows = writable.levels.get(below);
                let rows = rows.map(|rows| written_level(writable, rows, Purpose::New));
                (json!({"type": "array", "items": rows}), false)
            }
            MemberKind::Lookup => (json!({"type": ["object", "null"], "readOnly": true}), false),
        };
        (member.name.as_str(), schema, required)
    });
    object(members)
}

fn written_column(
    level: &Level,
    at: usize,
    column: &WritableColumn,
    purpose: Purpose,
) -> (Value, bool) {
    if is_given(level, at, column, purpose) {
        let mut schema = schema::read(&column.value, column.nullable);
        schema["readOnly"] = json!(true);
        return (schema, false);
    }
    let nullable = level.may_be_null(at);
    let required = !nullable && !column.has_default && purpose != Purpose::Patch;
    (schema::written(&column.value, nullable), required)
}

/// Whether the column holds the owner, which restricted clients may leave out.
fn is_owner(writable: &Writable, level: &Level, at: usize) -> bool {
    level.parent.is_none() && writable.owner.is_some_and(|owner| owner.column == at)
}

/// Whether the value comes from PostgreSQL, the row above or the path, so that a body can only repeat it.
fn is_given(level: &Level, at: usize, column: &WritableColumn, purpose: Purpose) -> bool {
    let linked = level.link.iter().any(|&(own, _)| own == at);
    let keyed = level.parent.is_none() && level.key.contains(&at) && purpose != Purpose::New;
    !column.is_inserted() || linked || keyed
}

/// An example of a document in a response, with the key of [`key_example`].
fn read_example(resource: &Resource) -> Value {
    let key = resource.key.columns.iter();
    let given: Vec<(&str, Value)> = key
        .map(|column| (column.name.as_str(), key_example(column)))
        .collect();
    row_example(&resource.root, &given)
}

/// `given`: columns and their values.
fn row_example(row: &Row, given: &[(&str, Value)]) -> Value {
    let known = |column: &str| {
        let found = given.iter().find(|(name, _)| *name == column);
        found.map(|(_, value)| value.clone())
    };
    let mut example = Map::new();
    for Field {
        column,
        name,
        value,
        ..
    } in &row.fields
    {
        let value = known(column).unwrap_or_else(|| value_example(value, name));
        example.insert(name.clone(), value);
    }
    for child in &row.children {
        let linked: Vec<(&str, Value)> = child
            .on
            .iter()
            .map(|pair| {
                let upper = known(&pair.upper.name).unwrap_or_else(|| key_example(&pair.upper));
                (pair.own.name.as_str(), upper)
            })
            .collect();
        example.insert(
            child.name.clone(),
            json!([row_example(&child.row, &linked)]),
        );
    }
    for lookup in &row.lookups {
        example.insert(lookup.name.clone(), row_example(&lookup.row, &[]));
    }
    Value::Object(example)
}

/// An example of a request body: a document without its read-only members.
pub(super) fn written_example(resource: &Resource, writable: &Writable, purpose: Purpose) -> Value {
    let mut example = read_example(resource);
    if let Some(root) = writable.levels.first() {
        keep_written(writable, root, purpose, &mut example);
    }
    example
}

fn keep_written(writable: &Writable, level: &Level, purpose: Purpose, example: &mut Value) {
    let Value::Object(members) = example else {
        return;
    };
    for member in &level.members {
        let kept = match member.kind {
            MemberKind::Lookup => false,
            MemberKind::Rows(_) => purpose != Purpose::Patch,
            MemberKind::Column(at) => level.columns.get(at).is_some_and(|column| {
                let has_example = !matches!(
                    column.value,
                    ValueType::Other | ValueType::NumericText | ValueType::Bits { .. }
                );
                !is_given(level, at, column, purpose) && has_example
            }),
        };
        if !kept {
            members.shift_remove(&member.name);
        } else if let MemberKind::Rows(below) = member.kind
            && let Some(rows) = writable.levels.get(below)
            && let Some(Value::Array(examples)) = members.get_mut(&member.name)
        {
            for example in examples {
                keep_written(writable, rows, Purpose::New, example);
            }
        }
    }
}

/// An example of a part of a key.
pub(super) fn key_example(column: &KeyColumn) -> Value {
    match column.key_type {
        KeyType::SmallInt | KeyType::Integer | KeyType::BigInt => json!(42),
        KeyType::Numeric { .. } => json!(7),
        KeyType::Text | KeyType::Char => json!("A"),
        KeyType::Uuid => value_example(&ValueType::Uuid, &column.name),
        KeyType::Date => value_example(&ValueType::Date, &column.name),
        KeyType::Timestamp { .. } | KeyType::TimestampTz { .. } => {
            value_example(&ValueType::Timestamp, &column.name)
        }
        KeyType::Boolean => json!(true),
        KeyType::Bytea => json!("00ff"),
        KeyType::Inet => json!("192.0.2.1"),
        KeyType::Cidr => json!("192.0.2.0/24"),
        KeyType::MacAddr => json!("00:00:5e:00:53:01"),
        KeyType::Enum => json!("A"),
    }
}

/// An example of the member `name`.
fn value_example(value: &ValueType, name: &str) -> Value {
    match value {
        ValueType::Boolean => json!(true),
        ValueType::SmallInt | ValueType::Integer | ValueType::BigInt => json!(7),
        ValueType::Real | ValueType::Double => json!(1.5),
        ValueType::Numeric { digits } => match digits {
            None => json!(1.5),
            Some((precision, scale)) if i32::from(*precision) <= i32::from(*scale) => json!(0),
            Some((_, scale)) if *scale > 0 => json!(1.5),
            Some(_) => json!(0),
        },
        ValueType::Text { max } | ValueType::Char { length: max } => {
            let max = max.map_or(usize::MAX, |max| max as usize);
            json!(words(name).chars().take(max).collect::<String>())
        }
        ValueType::Name => json!(words(name).chars().take(15).collect::<String>()),
        ValueType::Uuid => json!("3f0c3a52-9a0b-4c1e-8f5d-2b7e6a1c9d40"),
        ValueType::Date => json!("2024-05-17"),
        ValueType::Timestamp | ValueType::TimestampTz => json!("2024-05-17T09:30:00+00:00"),
        ValueType::Time => json!("09:30:00"),
        ValueType::TimeTz => json!("09:30:00+00"),
        ValueType::Interval => json!("1 day"),
        ValueType::Bytea => json!("bGFyZGVy"),
        ValueType::Json | ValueType::Jsonb => json!({"any": "JSON"}),
        ValueType::Enum(labels) => json!(labels.first()),
        ValueType::Array(element) => json!([value_example(element, name)]),
        ValueType::Composite(attributes) => Value::Object(
            attributes
                .iter()
                .map(|(name, value)| (name.clone(), value_example(value, name)))
                .collect(),
        ),
        ValueType::Byte { .. } => json!("A"),
        ValueType::Bits { .. } => json!("1"),
        ValueType::Other | ValueType::NumericText | ValueType::Unwritable => Value::Null,
    }
}

/// `deptName` and `dept_name` as `dept name`.
fn words(name: &str) -> String {
    let mut words = String::with_capacity(name.len() + 2);
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        match letter {
            '_' => words.push(' '),
            letter => words.extend(letter.to_lowercase()),
        }
    }
    words
}
