//! How clients show who they are, which roles each operation takes, and the paths where users sign in.

use serde_json::{Map, Value, json};

use crate::auth::config::ANONYMOUS;
use crate::auth::{AuthSchemes, Right};
use crate::http::auth::Auth;
use crate::http::auth::session::{REFRESH, SIGNIN};
use crate::http::openapi::parts::problems;

const BASIC: &str = "basic";
const BEARER: &str = "bearer";
const KEY: &str = "apiKey";
const COOKIE: &str = "cookie";

/// What may go wrong with credentials.
const DENIED: [u16; 3] = [401, 403, 429];

/// The schemes by name.
pub(super) fn schemes(schemes: &AuthSchemes<'_>) -> Value {
    let schemes = names(schemes).map(|name| {
        let scheme = match name {
            BASIC => json!({
                "type": "http",
                "scheme": "basic",
                "description": "A user's name and password."
            }),
            BEARER => json!({
                "type": "http",
                "scheme": "bearer",
                "description": "A JSON Web Token, or a key."
            }),
            KEY => json!({"type": "apiKey", "in": "header", "name": "X-API-Key"}),
            _ => json!({
                "type": "apiKey",
                "in": "cookie",
                "name": schemes.cookie,
                "description": "A JSON Web Token. What changes anything takes the Origin of this host as well."
            }),
        };
        (name.to_owned(), scheme)
    });
    Value::Object(schemes.collect())
}

fn names(schemes: &AuthSchemes<'_>) -> impl Iterator<Item = &'static str> {
    let used = [
        (BASIC, schemes.basic),
        (BEARER, schemes.bearer),
        (KEY, schemes.key),
        (COOKIE, schemes.cookie.is_some()),
    ];
    used.into_iter()
        .filter_map(|(name, used)| used.then_some(name))
}

/// Says of each operation in `paths`, those of `resource`, who may; what nobody may is left out.
pub(super) fn guard(auth: &Auth, resource: &str, paths: &mut [(String, Value)]) {
    let schemes = auth.schemes();
    for (path, item) in paths {
        let Value::Object(operations) = item else {
            continue;
        };
        operations.retain(|method, operation| {
            if method == "parameters" {
                return true;
            }
            let right = match method == "get" || path.ends_with(":batch") {
                true => Right::Read,
                false => Right::Write,
            };
            let requirements = requirements(&schemes, auth.roles(resource, right));
            if requirements.is_empty() {
                return false;
            }
            deny(operation, &DENIED);
            operation["security"] = json!(requirements);
            true
        });
    }
}

/// Any of them is enough. `roles`: one of these is needed, `None` for none.
fn requirements(schemes: &AuthSchemes<'_>, roles: Option<&[String]>) -> Vec<Value> {
    let of = |name: &str, role: Option<&String>| json!({ name: Vec::from_iter(role) });
    let names = names(schemes);
    match roles {
        None => names.map(|name| of(name, None)).collect(),
        Some(roles) if roles.iter().any(|role| role == ANONYMOUS) => {
            let nothing = std::iter::once(json!({}));
            nothing.chain(names.map(|name| of(name, None))).collect()
        }
        Some(roles) => names
            .flat_map(|name| roles.iter().map(move |role| of(name, Some(role))))
            .collect(),
    }
}

/// Adds problems to the answers of an operation.
fn deny(operation: &mut Value, statuses: &[u16]) {
    if let Value::Object(responses) = &mut operation["responses"] {
        let denied = problems(statuses).map(|(status, answer)| (status.to_string(), answer));
        responses.extend(denied);
        responses.sort_keys();
    }
}

/// The paths where users sign in, if they do.
pub(super) fn paths(schemes: &AuthSchemes<'_>) -> Map<String, Value> {
    let mut paths = Map::new();
    if schemes.signs_in {
        paths.insert(SIGNIN.to_owned(), json!({"post": signin(schemes)}));
        paths.insert(REFRESH.to_owned(), json!({"post": refresh(schemes)}));
    }
    paths
}

fn signin(schemes: &AuthSchemes<'_>) -> Value {
    let asked = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "password": {"type": "string"}},
        "required": ["name", "password"]
    });
    let mut operation = json!({
        "operationId": "signin",
        "summary": "A token for name and password",
        "description": "By HTTP Basic, or by the body.",
        "security": [{}, {BASIC: []}],
        "requestBody": {"content": {"application/json": {"schema": asked}}},
        "responses": {"200": granted(schemes)}
    });
    deny(&mut operation, &[401, 413, 415, 429]);
    operation
}

fn refresh(schemes: &AuthSchemes<'_>) -> Value {
    let mut security = vec![json!({BEARER: []})];
    security.extend(schemes.cookie.map(|_| json!({COOKIE: []})));
    let mut operation = json!({
        "operationId": "refresh",
        "summary": "A new token for one that was given out here",
        "security": security,
        "responses": {"200": granted(schemes)}
    });
    deny(&mut operation, &[401, 403]);
    operation
}

fn granted(schemes: &AuthSchemes<'_>) -> Value {
    let mut granted = json!({
        "description": "The token",
        "headers": {"Cache-Control": {"$ref": "#/components/headers/Cache-Control"}},
        "content": {"application/json": {"schema": {
            "type": "object",
            "properties": {
                "token": {"type": "string"},
                "expires_in": {"type": "integer", "minimum": 0, "description": "Seconds."}
            },
            "required": ["token", "expires_in"],
            "additionalProperties": false
        }}}
    });
    if schemes.cookie.is_some() {
        granted["headers"]["Set-Cookie"] =
            json!({"description": "The token, for browsers.", "schema": {"type": "string"}});
    }
    granted
}
