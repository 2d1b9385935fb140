//! Authentication: its schemes, the roles that each operation requires, and the paths where users sign in.

use serde_json::{Map, Value, json};

use crate::auth::AuthSchemes;
use crate::auth::config::ANONYMOUS;
use crate::http::headers::JSON;
use crate::http::openapi::template::{Template, Values};

/// Problems of every operation that checks credentials.
pub(super) const PROBLEMS: [&str; 3] = ["401", "403", "429"];

/// The names of the schemes in use.
fn names(schemes: &AuthSchemes<'_>) -> impl Iterator<Item = &'static str> {
    let used = [
        ("basic", schemes.basic),
        ("bearer", schemes.bearer),
        ("apiKey", schemes.key),
        ("cookie", schemes.cookie.is_some()),
    ];
    used.into_iter()
        .filter_map(|(name, used)| used.then_some(name))
}

/// The schemes in use, by name.
pub(super) fn schemes(template: &Template, schemes: &AuthSchemes<'_>) -> Value {
    let values = Values::from([("cookie", json!(schemes.cookie))]);
    let mut all = template.fill_object("security_schemes", &values);
    all.retain(|name, _| names(schemes).any(|used| used == name));
    Value::Object(all)
}

/// Any of these is enough. `roles`: one of them is needed; `None`: any authenticated principal.
pub(super) fn requirements(schemes: &AuthSchemes<'_>, roles: Option<&[String]>) -> Vec<Value> {
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

/// The paths where users sign in, if they do.
pub(super) fn paths(template: &Template, schemes: &AuthSchemes<'_>) -> Map<String, Value> {
    if !schemes.signs_in {
        return Map::new();
    }
    let mut granted = template.fill("granted", &Values::new());
    let mut security = vec![json!({"bearer": []})];
    if schemes.cookie.is_some() {
        security.push(json!({"cookie": []}));
    } else if let Some(headers) = granted["headers"].as_object_mut() {
        headers.shift_remove("Set-Cookie");
    }
    let mut renewed = granted.clone();
    // A token that came in the cookie is renewed in the cookie alone.
    if schemes.cookie.is_some() {
        renewed["content"][JSON]["schema"]["required"] = json!(["expires_in"]);
    }
    let values = Values::from([
        ("granted", granted),
        ("renewed", renewed),
        ("refresh_security", json!(security)),
    ]);
    let mut paths = template.fill_object("sessions", &values);
    if schemes.cookie.is_none() {
        paths.shift_remove("/signout");
    }
    for path in paths.values_mut() {
        if let Some(operation) = path["post"].as_object_mut() {
            template.add_problems(operation, &[]);
        }
    }
    paths
}
