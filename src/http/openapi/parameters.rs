//! The parameters of the queries of a resource.

use serde_json::{Value, json};

use crate::http::openapi::documents::key_example;
use crate::http::openapi::keys;
use crate::http::read::{KEYS_MAX, LIMIT, LIMIT_MAX};
use crate::resource::key::{KeyShape, KeyType};
use crate::resource::{Resource, Row};

/// Those that ask for many documents by their keys.
pub(super) fn keys(key: &KeyShape) -> Vec<Value> {
    match key.columns.as_slice() {
        [column] => {
            let part = keys::part(column);
            vec![
                json!({
                    "name": "keys",
                    "in": "query",
                    "description": "Keys, separated by commas.",
                    "style": "form",
                    "explode": false,
                    "schema": {"type": "array", "items": part, "minItems": 1, "maxItems": KEYS_MAX},
                    "example": [key_example(column)]
                }),
                json!({
                    "name": "key",
                    "in": "query",
                    "description": "A key; as often as need be.",
                    "schema": {"type": "array", "items": part, "maxItems": KEYS_MAX}
                }),
            ]
        }
        columns => vec![json!({
            "name": "key",
            "in": "query",
            "description": "A key, its parts separated by commas; as often as need be.",
            "style": "form",
            "explode": false,
            "schema": keys::array(columns.iter().map(keys::part)),
            "example": columns.iter().map(key_example).collect::<Vec<_>>()
        })],
    }
}

/// Those that ask for a page.
pub(super) fn page(resource: &Resource) -> Vec<Value> {
    let after = match resource.key.columns.as_slice() {
        [column] => keys::part(column),
        columns => keys::array(columns.iter().map(keys::part)),
    };
    let mut asked = vec![
        json!({
            "name": "limit",
            "in": "query",
            "description": "Documents on the page.",
            "schema": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT}
        }),
        json!({
            "name": "after",
            "in": "query",
            "description": "The key before the page, as `Link` has it.",
            "style": "form",
            "explode": false,
            "schema": after
        }),
    ];
    asked.extend(resource.filters.iter().map(|filter| {
        json!({
            "name": filter.name,
            "in": "query",
            "description": format!(
                "Only documents whose {} equals `eq.VALUE`, or is null: `is.null`.",
                filter.name
            ),
            "schema": {"type": "string", "pattern": asked_value(filter.column.key_type)}
        })
    }));
    asked
}

/// What a filter may say.
fn asked_value(key_type: KeyType) -> String {
    let value = match key_type {
        KeyType::SmallInt | KeyType::Integer | KeyType::BigInt => "[+-]?[0-9]+".to_owned(),
        KeyType::Numeric { digits } => format!("[+-]?0*[0-9]{{1,{digits}}}"),
        KeyType::Text | KeyType::Char => "[\\s\\S]*".to_owned(),
        KeyType::Uuid => "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}".to_owned(),
        KeyType::Date => "(?:[0-9]{4,}-[0-9]{2}-[0-9]{2}(?: BC)?|-?infinity)".to_owned(),
    };
    format!("^(?:eq\\.{value}|is\\.null)$")
}

/// The parameter that chooses parts of documents.
pub(super) fn fields(root: &Row) -> Value {
    let mut paths = Vec::new();
    add_paths(root, "", &mut paths);
    json!({
        "name": "fields",
        "in": "query",
        "description": "The members wanted, those of rows below behind a dot; all where absent.",
        "style": "form",
        "explode": false,
        "schema": {"type": "array", "items": {"type": "string", "enum": paths}, "minItems": 1}
    })
}

fn add_paths(row: &Row, above: &str, paths: &mut Vec<String>) {
    let fields = row.fields.iter().map(|field| (&field.name, None));
    let children = row.children.iter();
    let children = children.map(|child| (&child.name, Some(&child.row)));
    let lookups = row.lookups.iter();
    let lookups = lookups.map(|lookup| (&lookup.name, Some(&lookup.row)));
    for (name, below) in fields.chain(children).chain(lookups) {
        // What clients leave as it is, though it separates names.
        if name.contains('.') {
            continue;
        }
        let path = format!("{above}{name}");
        paths.push(path.clone());
        if let Some(below) = below {
            add_paths(below, &format!("{path}."), paths);
        }
    }
}
