//! The resource and the right that a request takes.

use std::borrow::Cow;

use axum::http::Method;
use percent_encoding::percent_decode_str;

use crate::auth::{Grants, Right, Rules};

/// Ends the path of a resource where many keys are asked for.
const BATCH: &str = "batch";

/// Whether `grants` allow a request. A path of no resource, such as the description of all, takes the right to read any.
pub(super) fn allow(rules: &Rules, grants: &Grants, method: &Method, path: &str) -> bool {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    // A preflight comes without credentials (Fetch, section 3.3.5), and its answer holds nothing of any document.
    if (reads && grants.reads_all) || *method == Method::OPTIONS {
        return true;
    }
    let segment = path.split('/').nth(1).unwrap_or_default();
    let segment = percent_decode_str(segment)
        .decode_utf8()
        .unwrap_or(Cow::Borrowed(""));
    let (name, operation) = segment.split_once(':').unwrap_or((&segment, ""));
    let right = match reads || (operation == BATCH && *method == Method::POST) {
        true => Right::Read,
        false => Right::Write,
    };
    let index = rules.index_of(name);
    index.map_or(grants.reads_any, |index| grants.allow(index, right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const RESOURCES: &str = "
        [auth.jwt]
        algorithms = ['HS256']
        secret = 'x'
        [[resource]]
        name = 'open'
        table = 't'
        read = ['anonymous']
        write = ['staff']
        [[resource]]
        name = 'plain'
        table = 't'
        [[resource]]
        name = 'closed'
        table = 't'
        read = ['staff', 'boss']
        write = []";

    #[track_caller]
    fn check(roles: Option<&[&str]>, allowed: &[(&str, &str)], refused: &[(&str, &str)]) {
        let rules = Rules::new(&Config::from_toml(RESOURCES, &[]).unwrap().resources);
        let roles: Option<Vec<String>> =
            roles.map(|roles| roles.iter().map(|&role| role.to_owned()).collect());
        let grants = rules.grants(roles.as_deref());
        for (requests, expected) in [(allowed, true), (refused, false)] {
            for (method, path) in requests {
                let allows = allow(&rules, &grants, &method.parse().unwrap(), path);
                assert_eq!(allows, expected, "{roles:?} {method} {path}");
            }
        }
    }

    #[test]
    fn roles_say_who_reads_and_who_writes() {
        check(
            None,
            &[
                ("GET", "/open/1"),
                ("HEAD", "/open"),
                ("OPTIONS", "/closed/1"),
                ("GET", "/docs"),
            ],
            &[
                ("PUT", "/open/1"),
                ("GET", "/plain/1"),
                ("GET", "/closed/1"),
                ("POST", "/open"),
            ],
        );
        check(
            Some(&[]),
            &[
                ("GET", "/open/1"),
                ("GET", "/plain/1"),
                ("DELETE", "/plain/1"),
            ],
            &[
                ("PUT", "/open/1"),
                ("GET", "/closed/1"),
                ("BREW", "/open/1"),
            ],
        );
        check(
            Some(&["staff"]),
            &[
                ("GET", "/open/1"),
                ("PATCH", "/open/1"),
                ("GET", "/closed/1"),
            ],
            &[("PUT", "/closed/1"), ("POST", "/closed")],
        );
        check(
            Some(&["boss"]),
            &[("GET", "/closed/1")],
            &[("PUT", "/open/1")],
        );
    }

    #[test]
    fn no_spelling_of_a_path_gets_around() {
        let spellings = [
            "/closed",
            "/%63losed/1",
            "/closed/",
            "/closed:batch",
            "/closed%3Abatch",
        ];
        for path in spellings {
            check(Some(&[]), &[], &[("GET", path), ("POST", path)]);
        }
        check(
            Some(&["boss"]),
            &[("POST", "/closed:batch")],
            &[("POST", "/closed")],
        );
        check(
            Some(&["boss"]),
            &[],
            &[("PUT", "/closed:batch"), ("POST", "/closed:other")],
        );
    }
}
