//! The paths of a resource: the template's, filled with its key, its schemas and the roles that each operation needs.

use serde_json::{Map, Value, json};

use crate::auth::Right;
use crate::http::auth::Auth;
use crate::http::openapi::documents::{Purpose, written_example};
use crate::http::openapi::template::{Template, Values, reference};
use crate::http::openapi::{keys, parameters, security};
use crate::http::read::{KEYS_MAX, LIMIT, LIMIT_MAX};
use crate::resource::{Alias, Resource};

/// What the paths of `resource` are filled with, besides its schemas; writes may have an `Idempotency-Key` if they are
/// `repeatable`.
pub(super) fn values(template: &Template, resource: &Resource, repeatable: bool) -> Values {
    let key = &resource.key;
    let idempotency_key = repeatable.then(|| reference("parameters", "idempotency-key"));
    let mut values = Values::from([
        ("limit", json!(LIMIT)),
        ("limit_max", json!(LIMIT_MAX)),
        ("keys_max", json!(KEYS_MAX)),
        ("key", keys::in_query(key)),
        ("name", keys::any_in_query(resource)),
        ("json_name", keys::any(resource, keys::in_body)),
        ("json_name_read", keys::any(resource, keys::in_answer)),
        ("key_example", keys::example(key)),
        ("path_parameters", json!(keys::parameters(key))),
        ("filters", json!(parameters::filters(resource))),
        ("fields", parameters::fields(&resource.root)),
        ("by", Value::from_iter(parameters::by(resource))),
        ("idempotency_key", Value::from_iter(idempotency_key)),
    ]);
    let keys = match key.columns.len() {
        1 => "keys_of_one_column",
        _ => "keys_of_columns",
    };
    values.insert("keys", template.fill(keys, &values));
    if let Ok(writable) = &resource.writable {
        for (name, purpose) in [
            ("new_example", Purpose::New),
            ("replacement_example", Purpose::Replacement),
            ("patch_example", Purpose::Patch),
        ] {
            values.insert(name, written_example(resource, writable, purpose));
        }
    }
    values
}

/// The paths of `resource`, without the operations that are never allowed.
pub(super) fn paths(
    template: &Template,
    resource: &Resource,
    values: &Values,
    auth: Option<&Auth>,
) -> impl Iterator<Item = (String, Value)> {
    let key = keys::path(&resource.key);
    let paths = template.fill_object("resource", values).into_iter();
    let paths = paths.map(move |(path, operations)| (path.replace("{key}", &key), operations));
    let aliases = resource.by.iter();
    let aliases = aliases.flat_map(|alias| alias_paths(template, alias, values));
    paths.chain(aliases).map(move |(path, mut operations)| {
        let path = path.replace("{resource}", &resource.name);
        if let Value::Object(operations) = &mut operations {
            operations.retain(|method, operation| {
                let right = if method == "get" || path.ends_with(":batch") {
                    Right::Read
                } else {
                    Right::Write
                };
                match operation {
                    Value::Object(operation) => {
                        complete(template, operation, resource, right, auth)
                    }
                    // The parameters of all operations.
                    _ => true,
                }
            });
        }
        (path, operations)
    })
}

/// The path of documents by `alias`.
fn alias_paths(template: &Template, alias: &Alias, values: &Values) -> Map<String, Value> {
    let mut values = values.clone();
    values.extend([
        ("path_parameters", json!(keys::parameters(&alias.key))),
        ("alias_operation", json!(format!("get-by-{}", alias.name))),
    ]);
    let value = keys::path(&alias.key);
    let paths = template.fill_object("alias", &values).into_iter();
    let named = |path: String| {
        path.replace("{alias}", &alias.name)
            .replace("{value}", &value)
    };
    paths
        .map(|(path, operations)| (named(path), operations))
        .collect()
}

/// Adds what the operations of a resource have in common; false if the operation is never allowed.
fn complete(
    template: &Template,
    operation: &mut Map<String, Value>,
    resource: &Resource,
    right: Right,
    auth: Option<&Auth>,
) -> bool {
    if right == Right::Write && resource.writable.is_err() {
        return false;
    }
    let mut problems = &[][..];
    if let Some(auth) = auth {
        let requirements =
            security::requirements(&auth.schemes(), auth.roles(&resource.name, right));
        if requirements.is_empty() {
            return false;
        }
        operation.insert("security".into(), json!(requirements));
        problems = &security::PROBLEMS;
    }
    let verb = operation["operationId"].as_str().unwrap_or_default();
    let id = format!("{}.{verb}", resource.name);
    operation.insert("operationId".into(), json!(id));
    operation.insert("tags".into(), json!([resource.name]));
    template.add_problems(operation, problems);
    true
}
