//! The parameters of queries that depend on a resource's fields.

use serde_json::{Value, json};

use crate::resource::filter::FilterColumn;
use crate::resource::key::KeyType;
use crate::resource::value::ValueType;
use crate::resource::{Resource, Row};

/// Those that choose the documents of a page by a field.
pub(super) fn filters(resource: &Resource) -> Vec<Value> {
    let filters = resource.filters.iter().map(|filter| {
        let name = &filter.name;
        json!({
            "name": name,
            "in": "query",
            "description": format!("Only documents whose {name} equals VALUE (`eq.VALUE`) or is null (`is.null`)."),
            "schema": {"type": "string", "pattern": condition(&filter.column)}
        })
    });
    filters.collect()
}

/// The pattern of a filter's value.
fn condition(column: &FilterColumn) -> String {
    let value = match column {
        FilterColumn::Key(column) => of_key(column.key_type),
        FilterColumn::Other(column) => of_other(&column.value).to_owned(),
    };
    format!("^(?:eq\\.{value}|is\\.null)$")
}

/// The pattern of values of a type that is none of keys.
fn of_other(value: &ValueType) -> &'static str {
    match value {
        ValueType::Numeric { .. } | ValueType::Real | ValueType::Double => {
            "(?:-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|NaN|-?Infinity)"
        }
        ValueType::Time => "[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\\.[0-9]+)?",
        ValueType::TimeTz => "[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\\.[0-9]+)?(?:[Zz]|[+-][0-9:]+)",
        _ => "[\\s\\S]*",
    }
}

/// The pattern of values of a type of keys.
fn of_key(key_type: KeyType) -> String {
    match key_type {
        KeyType::SmallInt | KeyType::Integer | KeyType::BigInt => "[+-]?[0-9]+".to_owned(),
        KeyType::Numeric { digits } => format!("[+-]?0*[0-9]{{1,{digits}}}"),
        KeyType::Text | KeyType::Char | KeyType::Enum => "[\\s\\S]*".to_owned(),
        KeyType::Uuid => "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}".to_owned(),
        KeyType::Date => "(?:[0-9]{4,}-[0-9]{2}-[0-9]{2}(?: BC)?|-?infinity)".to_owned(),
        KeyType::Timestamp { .. } | KeyType::TimestampTz { .. } => {
            "(?:[0-9]{4,}-[0-9]{2}-[0-9]{2}[Tt ][0-9:.]+(?:[Zz]|[+-][0-9:]+)?(?: BC)?|-?infinity)"
                .to_owned()
        }
        KeyType::Boolean => "(?:true|false)".to_owned(),
        KeyType::Bytea => "(?:[0-9A-Fa-f]{2})*".to_owned(),
        KeyType::Inet | KeyType::Cidr => "[0-9A-Fa-f.:]+(?:/[0-9]{1,3})?".to_owned(),
        KeyType::MacAddr => "[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}".to_owned(),
    }
}

/// The parameter that chooses parts of documents.
pub(super) fn fields(root: &Row) -> Value {
    let mut paths = Vec::new();
    add_paths(root, "", &mut paths);
    json!({
        "name": "fields",
        "in": "query",
        "description": "The members to return, those of rows below after a dot. Without it, all members.",
        "style": "form",
        "explode": false,
        "schema": {"type": "array", "items": {"type": "string", "enum": paths}, "minItems": 1}
    })
}

/// The parameter that says what the keys of a request are, if the resource has aliases.
pub(super) fn by(resource: &Resource) -> Option<Value> {
    let names = resource.by.iter().map(|alias| alias.name.as_str());
    let names: Vec<&str> = names.collect();
    (!names.is_empty()).then(|| {
        json!({
            "name": "by",
            "in": "query",
            "description": "The keys of the request are values of this alias.",
            "schema": {"type": "string", "enum": names}
        })
    })
}

fn add_paths(row: &Row, above: &str, paths: &mut Vec<String>) {
    let fields = row.fields.iter().map(|field| (&field.name, None));
    let children = row.children.iter();
    let children = children.map(|child| (&child.name, Some(&child.row)));
    let lookups = row.lookups.iter();
    let lookups = lookups.map(|lookup| (&lookup.name, Some(&lookup.row)));
    for (name, below) in fields.chain(children).chain(lookups) {
        // Clients do not encode a dot, so a name with one can't be told from a path.
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
