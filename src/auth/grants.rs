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

/// The documents of a resource on which a principal has a right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Access {
    /// None of them.
    #[default]
    None,
    /// Those that it owns.
    Own,
    /// All of them.
    All,
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
    owner: Option<OwnerRule>,
}

/// Which claim is compared with the owner of a document, and which roles are restricted to documents of their own.
struct OwnerRule {
    claim: String,
    roles: Vec<String>,
}

impl Rule {
    /// What `roles` may do that requires one of `wanted`; `None`: a request without credentials.
    fn access(&self, wanted: Option<&Vec<String>>, roles: Option<&[String]>) -> Access {
        let has = |role: &String| roles.is_some_and(|roles| roles.contains(role));
        let is_allowed = match wanted {
            None => roles.is_some(),
            Some(wanted) => wanted.iter().any(|role| role == ANONYMOUS || has(role)),
        };
        let is_unrestricted = |owner: &OwnerRule| {
            let mut wanted = wanted.into_iter().flatten();
            wanted.any(|role| role != ANONYMOUS && has(role) && !owner.roles.contains(role))
        };
        match &self.owner {
            _ if !is_allowed => Access::None,
            Some(owner) if !is_unrestricted(owner) => Access::Own,
            _ => Access::All,
        }
    }
}

/// The rights of a principal, by resource.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    reads: Box<[Access]>,
    writes: Box<[Access]>,
    /// The principal may read documents of every resource.
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
        self.access(resource, right) != Access::None
    }

    /// The documents of `resource` on which the principal has `right`.
    pub(crate) fn access(&self, resource: ResourceId, right: Right) -> Access {
        let table = match right {
            Right::Read => &self.reads,
            Right::Write => &self.writes,
        };
        table.get(resource.index()).copied().unwrap_or_default()
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
            owner: resource.owner.as_ref().map(|owner| OwnerRule {
                claim: owner.claim.value.clone(),
                roles: roles(&owner.roles).unwrap_or_default(),
            }),
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

    /// The claims that owners are compared with, with repetitions.
    pub(super) fn claims(&self) -> impl Iterator<Item = &str> {
        let owners = self.resources.iter().filter_map(|rule| rule.owner.as_ref());
        owners.map(|owner| owner.claim.as_str())
    }

    /// The rights of `roles`; `None`: of a request without credentials.
    pub(crate) fn grants(&self, roles: Option<&[String]>) -> Grants {
        let rules = self.resources.iter();
        let reads = rules
            .clone()
            .map(|rule| rule.access(rule.read.as_ref(), roles));
        let reads: Box<[Access]> = reads.collect();
        let writes = rules.map(|rule| rule.access(rule.write.as_ref(), roles));
        let writes: Box<[Access]> = writes.collect();
        let is_allowed = |access: &Access| *access != Access::None;
        Grants {
            reads_all: reads.iter().all(is_allowed),
            allows_any: reads.iter().chain(&writes).any(is_allowed),
            writes,
            reads,
        }
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
        name = 'orders'
        table = 't'
        read = ['customer', 'staff', 'anonymous']
        write = ['customer', 'boss']
        [resource.owner]
        column = 'c'
        claim = 'sub'
        roles = ['customer']
        [[resource]]
        name = 'notes'
        table = 't'
        write = []
        [resource.owner]
        column = 'c'
        claim = 'sub'
        [[resource]]
        name = 'free'
        table = 't'";

    /// The rights to read and write each resource.
    fn rights(roles: Option<&[&str]>) -> Vec<(Access, Access)> {
        let resources = Config::from_toml(RESOURCES, &[]).unwrap().resources;
        let roles: Option<Vec<String>> =
            roles.map(|roles| roles.iter().map(|&role| role.to_owned()).collect());
        let grants = Rules::new(&resources).grants(roles.as_deref());
        let ids = ResourceId::in_order().take(resources.len());
        let of = |id| {
            (
                grants.access(id, Right::Read),
                grants.access(id, Right::Write),
            )
        };
        ids.map(of).collect()
    }

    #[test]
    fn roles_that_are_not_restricted_have_all_documents() {
        use Access::{All, None as Nothing, Own};
        let free = (All, All);
        assert_eq!(
            rights(None),
            [(Own, Nothing), (Nothing, Nothing), (Nothing, Nothing)]
        );
        assert_eq!(rights(Some(&[])), [(Own, Nothing), (Own, Nothing), free]);
        assert_eq!(rights(Some(&["customer"]))[0], (Own, Own));
        assert_eq!(rights(Some(&["staff"]))[0], (All, Nothing));
        assert_eq!(rights(Some(&["customer", "staff"]))[0], (All, Own));
        assert_eq!(rights(Some(&["boss", "customer"]))[0], (Own, All));
        // Every client has it, so it lifts no restriction.
        assert_eq!(rights(Some(&["anonymous"]))[0], (Own, Nothing));
    }
}
