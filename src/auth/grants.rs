//! The rights of roles on resources.

use std::collections::HashMap;

use crate::auth::config::ANONYMOUS;
use crate::resource::ResourceId;
use crate::resource::definition::{Located, ResourceDefinition};

/// The right that an operation on documents requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// To read them.
    Read,
    /// To change them.
    Write,
}

/// The roles that each resource requires, in the order of the configuration.
pub(crate) struct Rules {
    by_name: HashMap<String, ResourceId>,
    resources: Vec<Rule>,
}

/// `None`: any authenticated principal.
struct Rule {
    read: Option<Vec<String>>,
    write: Option<Vec<String>>,
}

/// The rights of a principal, by resource.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    reads: Box<[bool]>,
    writes: Box<[bool]>,
    /// The principal may read every resource.
    pub(crate) reads_all: bool,
    /// The principal may read or write at least one resource.
    pub(crate) allows_any: bool,
}

impl Grants {
    /// Whether the principal may read or write documents of `resource`.
    pub(crate) fn allow_any(&self, resource: ResourceId) -> bool {
        self.allow(resource, Right::Read) || self.allow(resource, Right::Write)
    }

    /// Whether the principal has `right` on documents of `resource`.
    pub(crate) fn allow(&self, resource: ResourceId, right: Right) -> bool {
        let table = match right {
            Right::Read => &self.reads,
            Right::Write => &self.writes,
        };
        table.get(resource.index()).copied().unwrap_or(false)
    }
}

impl Rules {
    pub(crate) fn new(resources: &[ResourceDefinition]) -> Self {
        let roles =
            |roles: &Option<Located<Vec<String>>>| roles.as_ref().map(|roles| roles.value.clone());
        let names = resources.iter().map(|resource| resource.name.value.clone());
        let rules = resources.iter().map(|resource| Rule {
            read: roles(&resource.read),
            write: roles(&resource.write),
        });
        Self {
            by_name: names.zip(ResourceId::in_order()).collect(),
            resources: rules.collect(),
        }
    }

    /// The resource called `name`.
    fn id_of(&self, name: &str) -> Option<ResourceId> {
        self.by_name.get(name).copied()
    }

    /// The roles of which one is needed for `right` on documents of `resource`; `None`: any authenticated principal.
    pub(crate) fn roles(&self, resource: &str, right: Right) -> Option<&[String]> {
        let rule = self.resources.get(self.id_of(resource)?.index())?;
        let roles = match right {
            Right::Read => &rule.read,
            Right::Write => &rule.write,
        };
        roles.as_deref()
    }

    /// The rights of `roles`; `None`: of a request without credentials.
    pub(crate) fn grants(&self, roles: Option<&[String]>) -> Grants {
        let has = |wanted: &Option<Vec<String>>| match wanted {
            None => roles.is_some(),
            Some(wanted) => wanted
                .iter()
                .any(|role| role == ANONYMOUS || roles.is_some_and(|roles| roles.contains(role))),
        };
        let reads: Box<[bool]> = self.resources.iter().map(|rule| has(&rule.read)).collect();
        let writes: Box<[bool]> = self.resources.iter().map(|rule| has(&rule.write)).collect();
        Grants {
            reads_all: reads.iter().all(|&may| may),
            allows_any: reads.iter().chain(&writes).any(|&may| may),
            writes,
            reads,
        }
    }
}
