//! What roles may do to which resource.

use std::borrow::Cow;
use std::collections::HashMap;

use axum::http::Method;
use percent_encoding::percent_decode_str;

use crate::http::auth::config::ANONYMOUS;
use crate::resource::definition::{Located, ResourceDefinition};

/// Ends the path of a resource where many keys are asked for.
const BATCH: &str = "batch";

/// Which roles each resource asks for, in the order of the file.
pub(super) struct Rules {
    indices: HashMap<String, usize>,
    resources: Vec<Rule>,
}

/// `None`: whoever is authenticated.
struct Rule {
    read: Option<Vec<String>>,
    write: Option<Vec<String>>,
}

/// What somebody may do, by resource.
#[derive(Debug, Default)]
pub(super) struct Grants {
    reads: Box<[bool]>,
    writes: Box<[bool]>,
    /// Every resource may be read.
    reads_all: bool,
    /// Some resource may be read.
    reads_any: bool,
}

impl Grants {
    /// Whether documents of the resource with this index may be read.
    pub(super) fn may_read(&self, index: usize) -> bool {
        self.reads.get(index).copied().unwrap_or(false)
    }
}

impl Rules {
    pub(super) fn new(resources: &[ResourceDefinition]) -> Self {
        let roles =
            |roles: &Option<Located<Vec<String>>>| roles.as_ref().map(|roles| roles.value.clone());
        let names = resources.iter().map(|resource| resource.name.value.clone());
        let rules = resources.iter().map(|resource| Rule {
            read: roles(&resource.read),
            write: roles(&resource.write),
        });
        Self {
            indices: names.zip(0..).collect(),
            resources: rules.collect(),
        }
    }

    /// Of which roles one is needed to read, or to write, documents of `resource`; `None`: of none.
    pub(super) fn roles(&self, resource: &str, reads: bool) -> Option<&[String]> {
        let rule = self.resources.get(*self.indices.get(resource)?)?;
        let roles = if reads { &rule.read } else { &rule.write };
        roles.as_deref()
    }

    /// What `roles` may do; `None`: who shows no credentials.
    pub(super) fn grants(&self, roles: Option<&[String]>) -> Grants {
        let has = |asked: &Option<Vec<String>>| match asked {
            None => roles.is_some(),
            Some(asked) => asked
                .iter()
                .any(|role| role == ANONYMOUS || roles.is_some_and(|roles| roles.contains(role))),
        };
        let reads: Box<[bool]> = self.resources.iter().map(|rule| has(&rule.read)).collect();
        Grants {
            reads_all: reads.iter().all(|&may| may),
            reads_any: reads.iter().any(|&may| may),
            writes: self.resources.iter().map(|rule| has(&rule.write)).collect(),
            reads,
        }
    }

    /// Whether `grants` allow a request. What is no resource's, such as the description of all, is for who may read any.
    pub(super) fn allow(&self, grants: &Grants, method: &Method, path: &str) -> bool {
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
        let reads = reads || (operation == BATCH && *method == Method::POST);
        let may = self.indices.get(name).map(|&index| {
            let table = if reads { &grants.reads } else { &grants.writes };
            table.get(index).copied().unwrap_or(false)
        });
        may.unwrap_or(grants.reads_any)
    }
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
                let allows = rules.allow(&grants, &method.parse().unwrap(), path);
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
