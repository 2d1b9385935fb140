//! Checks whether authentication, roles of resources and addresses fit together.

mod owner;

use std::net::SocketAddr;

use jsonwebtoken::AlgorithmFamily;

use super::Config;
use super::places::{Places, mistake};
use crate::auth::config::{ANONYMOUS, AuthConfig, JwtConfig, SameSite};
use crate::config::access::owner::check_owner;
use crate::resource::definition::{Mistake, SIGNING_IN_PATHS};

/// Finds what does not fit together.
pub(super) fn check(config: &Config, places: &Places) -> Vec<Mistake> {
    let mut mistakes = check_addresses(config, places);
    mistakes.extend(check_tokens(config, places));
    let auth = &config.auth;
    if auth.admin_token.is_some() && auth.admin_token_file.is_some() {
        let paths = ["auth.admin_token", "auth.admin_token_file"];
        mistakes.push(places.mistake(&paths, "set admin_token or admin_token_file, not both"));
    }
    for resource in &config.resources {
        // That nobody may write needs no roles.
        let write = resource.write.iter().filter(|_| !resource.is_read_only());
        for roles in resource.read.iter().chain(write) {
            if !auth.is_on() {
                // Without authentication every client may read and write.
                let message = "requires roles, but [auth] has no user, no key and no [auth.jwt]";
                mistakes.push(mistake(&roles.place, message));
                continue;
            }
            let unknown = roles.value.iter().filter(|role| !is_role_known(auth, role));
            let message = |role| format!("no user and no key has role {role:?}");
            let unknown = unknown.map(|role| mistake(&roles.place, message(role)));
            mistakes.extend(unknown);
        }
        if let (Some(read), Some(write)) = (&resource.read, &resource.write) {
            let is_open = |roles: &Vec<String>| roles.iter().any(|role| role == ANONYMOUS);
            if is_open(&write.value) && !is_open(&read.value) {
                let message = "without credentials clients may write but not read: responses to writes show documents";
                mistakes.push(mistake(&write.place, message));
            }
        }
        mistakes.extend(check_owner(resource, auth));
        let name = &resource.name;
        if auth.signs_in() && SIGNING_IN_PATHS.contains(&name.value.as_str()) {
            let message = format!(
                "path /{} is reserved for signing in: choose another name",
                name.value
            );
            mistakes.push(mistake(&name.place, message));
        }
    }
    mistakes
}

/// A token may have any role.
fn is_role_known(auth: &AuthConfig, role: &str) -> bool {
    let users = auth.users.iter().map(|user| &user.roles);
    let mut given = users.chain(auth.keys.iter().map(|key| &key.roles));
    role == ANONYMOUS
        || auth.jwt.is_on()
        || given.any(|roles| roles.iter().any(|given| given == role))
}

/// Addresses that other machines can reach without authentication or TLS.
fn check_addresses(config: &Config, places: &Places) -> Vec<Mistake> {
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
            "{} can be reached from other machines without {}: configure it, or accept that with \
             insecure = true at the top of the file",
            config.listen,
            open.join(" and without ")
        );
        mistakes.push(places.mistake(&["listen"], message));
    }
    let auth = &config.auth;
    let has_token = auth.admin_token.is_some() || auth.admin_token_file.is_some();
    let admin = [
        ("admin", config.admin),
        ("dispatch_admin", config.dispatch_admin),
    ];
    for (key, address) in admin
        .into_iter()
        .filter(|(_, at)| beyond(*at) && !has_token)
    {
        let message = format!(
            "{address} can be reached from other machines: the admin address then needs [auth] \
             admin_token_file or LARDER_AUTH__ADMIN_TOKEN"
        );
        mistakes.push(places.mistake(&[key], message));
    }
    mistakes
}

fn check_tokens(config: &Config, places: &Places) -> Vec<Mistake> {
    let jwt = &config.auth.jwt;
    let mut mistakes = Vec::new();
    let keys = jwt.keys();
    if let (Some(first), Some(message)) = (keys.first(), wrong_algorithms(jwt)) {
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
                ("auth.jwt.same_site", jwt.same_site != SameSite::Strict),
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
                    &format!("{first} is set, too: the keys of tokens come from one setting"),
                );
            }
        }
    }
    if jwt.same_site == SameSite::None && jwt.cookie.is_none() {
        refuse("auth.jwt.same_site", "has no effect without cookie");
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

/// What is wrong with the algorithms for the configured key.
fn wrong_algorithms(jwt: &JwtConfig) -> Option<&'static str> {
    let is_secret = jwt.secret.is_some() || jwt.secret_file.is_some();
    let mut families = jwt.algorithms.iter().map(|algorithm| algorithm.family());
    let Some(first) = families.next() else {
        return Some(
            "auth.jwt.algorithms must list the algorithms to accept: a token must not choose its own",
        );
    };
    let alike = families.all(|family| family == first);
    let mut families = jwt.algorithms.iter().map(|algorithm| algorithm.family());
    if is_secret && !(alike && first == AlgorithmFamily::Hmac) {
        Some("a secret can only be used with HS256, HS384 and HS512")
    } else if !is_secret && families.any(|family| family == AlgorithmFamily::Hmac) {
        Some("HS256, HS384 and HS512 need secret_file: a public key is not secret")
    } else if jwt.public_key_file.is_some() && !alike {
        Some("a public key can only be used with algorithms of one family")
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
