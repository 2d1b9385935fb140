//! Who may: `[[auth.user]]`, `[[auth.key]]`, the roles of resources, and whether all of it fits together.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;

use jsonwebtoken::AlgorithmFamily;
use toml::de::{DeTable, DeValue};

use super::Config;
use super::names::Names;
use super::places::{Places, mistake};
use super::text::{Reader, Table};
use crate::auth::config::{
    ANONYMOUS, AuthConfig, JwtConfig, KeyDefinition, Secret, UserDefinition,
};
use crate::auth::passwords;
use crate::resource::definition::{Located, Mistake};

/// The section that holds the lists.
pub(super) const SECTION: &str = "auth";
/// Tables of tables, which are no settings.
pub(super) const LISTS: [&str; 2] = ["auth.user", "auth.key"];
/// What `[[auth.user]]` may hold.
pub(super) const USER_KEYS: [&str; 3] = ["name", "password", "roles"];
/// What `[[auth.key]]` may hold.
pub(super) const KEY_KEYS: [&str; 3] = ["name", "hash", "roles"];

/// Paths that a resource can't have once there are users to sign in.
const SIGNING_IN: [&str; 2] = ["signin", "refresh"];
/// Hexadecimal digits of a SHA-256.
const HASH_DIGITS: usize = 64;
type Hash = [u8; HASH_DIGITS / 2];

/// Reads the lists in `[auth]`. A principal is known by its name, so users and keys share the names.
pub(super) fn read(entries: &DeTable<'_>, auth: &mut AuthConfig, reader: &mut Reader<'_>) {
    let mut names = Names::default();
    let users = tables(entries, "user", &USER_KEYS, reader);
    auth.users = users
        .iter()
        .filter_map(|table| user(table, &mut names, reader))
        .collect();
    let keys = tables(entries, "key", &KEY_KEYS, reader);
    let mut hashes = HashMap::new();
    auth.keys = keys
        .iter()
        .filter_map(|table| key(table, &mut names, &mut hashes, reader))
        .collect();
}

fn tables<'t, 'i>(
    entries: &'t DeTable<'i>,
    list: &str,
    known: &[&str],
    reader: &mut Reader<'_>,
) -> Vec<Table<'t, 'i>> {
    let path = format!("{SECTION}.{list}");
    let items = reader.list(entries.get(list), &path).iter().enumerate();
    items
        .filter_map(|(index, item)| reader.table(item, format!("{path}[{index}]"), known))
        .collect()
}

fn user(
    table: &Table<'_, '_>,
    names: &mut Names,
    reader: &mut Reader<'_>,
) -> Option<UserDefinition> {
    let name = name(table, names, reader);
    let password = hidden(table, "password", reader)?;
    let roles = roles(table, "roles", reader).map_or_else(Vec::new, |roles| roles.value);
    if !passwords::is_hash(&password.value) {
        let message = "expected what `larder hash-password` prints ($argon2id$...)";
        reader.refuse_at(&password.place, message);
    }
    Some(UserDefinition {
        name: name?,
        password: Secret::new(&password.value),
        roles,
    })
}

fn key(
    table: &Table<'_, '_>,
    names: &mut Names,
    hashes: &mut HashMap<Hash, usize>,
    reader: &mut Reader<'_>,
) -> Option<KeyDefinition> {
    let name = name(table, names, reader);
    let hash = hidden(table, "hash", reader)?;
    let roles = roles(table, "roles", reader).map_or_else(Vec::new, |roles| roles.value);
    let read = sha256(&hash.value);
    if read.is_none() {
        let message = "expected the key's SHA-256 in 64 hexadecimal digits";
        reader.refuse_at(&hash.place, message);
    }
    // A key is one principal's, so a second one would take it from the first.
    match read.map(|read| hashes.entry(read)) {
        Some(Entry::Occupied(first)) => {
            let message = format!("the key on line {} has this hash", first.get());
            reader.refuse_at(&hash.place, message);
        }
        Some(Entry::Vacant(free)) => {
            free.insert(hash.place.line);
        }
        None => {}
    }
    Some(KeyDefinition {
        name: name?,
        hash: read?,
        roles,
    })
}

fn sha256(text: &str) -> Option<Hash> {
    let mut hash = Hash::default();
    if text.len() != HASH_DIGITS || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(hash)
}

/// The name of a principal. HTTP Basic ends it at a colon.
fn name(table: &Table<'_, '_>, names: &mut Names, reader: &mut Reader<'_>) -> Option<String> {
    let name = reader.required(table, "name")?;
    let unusable = |c: char| c == ':' || c.is_control();
    if name.value.is_empty() || name.value.contains(unusable) {
        let message = "expected a name without colons and control characters";
        reader.refuse_at(&name.place, message);
    }
    names.claim(&name, "principal", reader);
    Some(name.value)
}

/// A string that no message repeats.
fn hidden(table: &Table<'_, '_>, key: &str, reader: &mut Reader<'_>) -> Option<Located<String>> {
    match table.get(key).map(|value| (value, value.get_ref())) {
        Some((value, DeValue::String(text))) => Some(Located {
            value: text.to_string(),
            place: reader.text.place(value.span().start, table.path_of(key)),
        }),
        Some((value, _)) => {
            let message = "expected a string, found something else (not shown)";
            reader.refuse(value.span().start, table.path_of(key), message);
            None
        }
        None => reader.required(table, key),
    }
}

/// A list of roles. In a token they may stand between spaces, so none holds one.
pub(super) fn roles(
    table: &Table<'_, '_>,
    key: &str,
    reader: &mut Reader<'_>,
) -> Option<Located<Vec<String>>> {
    let Located { mut value, place } = reader.strings(table, key, "a list such as [\"staff\"]")?;
    value.retain(|role| {
        let usable = !role.value.is_empty() && !role.value.contains(char::is_whitespace);
        if !usable {
            let message = "expected a role without white space";
            reader.refuse_at(&role.place, message);
        }
        usable
    });
    Some(Located {
        value: value.into_iter().map(|role| role.value).collect(),
        place,
    })
}

/// Finds what is wrong between the settings of who may.
pub(super) fn check(config: &Config, places: &Places) -> Vec<Mistake> {
    let mut mistakes = exposed(config, places);
    mistakes.extend(tokens(config, places));
    let auth = &config.auth;
    if auth.admin_token.is_some() && auth.admin_token_file.is_some() {
        let paths = ["auth.admin_token", "auth.admin_token_file"];
        mistakes.push(places.mistake(&paths, "the token is given twice"));
    }
    for resource in &config.resources {
        for roles in [&resource.read, &resource.write].into_iter().flatten() {
            if !auth.is_on() {
                // It would mean nothing, and everyone might do everything.
                let message = "asks for roles, but [auth] has no user, no key and no [auth.jwt]";
                mistakes.push(mistake(&roles.place, message));
                continue;
            }
            let unknown = roles.value.iter().filter(|role| !is_known(auth, role));
            let message = |role| format!("nobody has role {role:?}: no user and no key names it");
            let unknown = unknown.map(|role| mistake(&roles.place, message(role)));
            mistakes.extend(unknown);
        }
        if let (Some(read), Some(write)) = (&resource.read, &resource.write) {
            let is_open = |roles: &Vec<String>| roles.iter().any(|role| role == ANONYMOUS);
            if is_open(&write.value) && !is_open(&read.value) {
                let message = "who shows no credentials may write but not read: a write shows what it changes";
                mistakes.push(mistake(&write.place, message));
            }
        }
        let name = &resource.name;
        if auth.signs_in() && SIGNING_IN.contains(&name.value.as_str()) {
            let message = format!("/{} is larder's own: users sign in there", name.value);
            mistakes.push(mistake(&name.place, message));
        }
    }
    mistakes
}

/// A token may hold any role, as far as larder knows.
fn is_known(auth: &AuthConfig, role: &str) -> bool {
    let users = auth.users.iter().map(|user| &user.roles);
    let mut given = users.chain(auth.keys.iter().map(|key| &key.roles));
    role == ANONYMOUS
        || auth.jwt.is_on()
        || given.any(|roles| roles.iter().any(|given| given == role))
}

/// Addresses beyond loopback that anybody could use.
fn exposed(config: &Config, places: &Places) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    let beyond = |address: SocketAddr| !address.ip().is_loopback();
    let open = [
        (!config.auth.is_on(), "authentication ([auth])"),
        (!config.has_tls(), "TLS ([tls])"),
    ];
    let open: Vec<&str> = open
        .into_iter()
        .filter_map(|(missing, what)| missing.then_some(what))
        .collect();
    if beyond(config.listen) && !config.insecure && !open.is_empty() {
        let message = format!(
            "{} lies beyond loopback without {}: configure it, or accept that with insecure = true \
             at the top of the file",
            config.listen,
            open.join(" and without ")
        );
        mistakes.push(places.mistake(&["listen"], message));
    }
    let auth = &config.auth;
    if beyond(config.admin) && auth.admin_token.is_none() && auth.admin_token_file.is_none() {
        let message = format!(
            "{} lies beyond loopback: the admin address then needs [auth] admin_token_file or \
             LARDER_AUTH__ADMIN_TOKEN",
            config.admin
        );
        mistakes.push(places.mistake(&["admin"], message));
    }
    mistakes
}

fn tokens(config: &Config, places: &Places) -> Vec<Mistake> {
    let jwt = &config.auth.jwt;
    let mut mistakes = Vec::new();
    let keys = jwt.keys();
    if let (Some(first), Some(message)) = (keys.first(), unfit_algorithms(jwt)) {
        let paths = ["auth.jwt.algorithms", *first];
        mistakes.push(places.mistake(&paths, message));
    }
    let mut refuse = |path: &str, message: &str| mistakes.push(places.mistake(&[path], message));
    match keys.as_slice() {
        [] => {
            let idle = [
                ("auth.jwt.algorithms", !jwt.algorithms.is_empty()),
                ("auth.jwt.private_key_file", jwt.private_key_file.is_some()),
                ("auth.jwt.issuer", jwt.issuer.is_some()),
                ("auth.jwt.audience", jwt.audience.is_some()),
                ("auth.jwt.cookie", jwt.cookie.is_some()),
            ];
            for (path, _) in idle.iter().filter(|(_, set)| *set) {
                refuse(
                    path,
                    "has no effect without secret_file, public_key_file, jwks_file or jwks_url",
                );
            }
            return mistakes;
        }
        [_] => {}
        [first, others @ ..] => {
            for other in others {
                refuse(
                    other,
                    &format!("the keys of tokens come from {first} already"),
                );
            }
        }
    }
    if jwt.private_key_file.is_some() && jwt.public_key_file.is_none() {
        refuse(
            "auth.jwt.private_key_file",
            "needs public_key_file beside it",
        );
    }
    let token = |c: char| c.is_ascii_graphic() && !"()<>@,;:\\\"/[]?={}".contains(c);
    let cookie = jwt.cookie.as_ref();
    if cookie.is_some_and(|name| !name.chars().all(token)) {
        refuse("auth.jwt.cookie", "can't be the name of a cookie");
    }
    mistakes
}

/// What is wrong with the algorithms for the key that is given.
fn unfit_algorithms(jwt: &JwtConfig) -> Option<&'static str> {
    let is_secret = jwt.secret.is_some() || jwt.secret_file.is_some();
    let mut families = jwt.algorithms.iter().map(|algorithm| algorithm.family());
    let Some(first) = families.next() else {
        return Some("name the algorithms to accept: a token must not choose its own");
    };
    let alike = families.all(|family| family == first);
    let mut families = jwt.algorithms.iter().map(|algorithm| algorithm.family());
    if is_secret && !(alike && first == AlgorithmFamily::Hmac) {
        Some("a secret is for HS256, HS384 and HS512 alone")
    } else if !is_secret && families.any(|family| family == AlgorithmFamily::Hmac) {
        Some("a public key is no secret: HS256, HS384 and HS512 need secret_file")
    } else if jwt.public_key_file.is_some() && !alike {
        Some("one public key is for algorithms of one family")
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
