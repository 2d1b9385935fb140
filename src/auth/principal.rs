//! The sender of a request, as its credential says.

use std::fmt;
use std::sync::Arc;

use crate::auth::grants::{Grants, Right, Rules};
use crate::resource::ResourceId;

/// What names a principal: equal names of two kinds are two principals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrincipalKind {
    /// `[[auth.user]]`, by password.
    User,
    /// `[[auth.key]]`
    Key,
    /// A JSON Web Token.
    Token,
}

/// The sender of a request.
pub struct Principal {
    /// What names it.
    pub kind: PrincipalKind,
    /// The user's or the key's name, or what the token calls its subject: empty if it names none.
    pub name: String,
    /// As configured, or as the token says.
    pub roles: Vec<String>,
    grants: Grants,
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.kind, self.name)
    }
}

impl Principal {
    /// A text that no other principal has; `None` without a name.
    pub(crate) fn scope(&self) -> Option<String> {
        let kind = match self.kind {
            PrincipalKind::User => "user",
            PrincipalKind::Key => "key",
            PrincipalKind::Token => "token",
        };
        // No text of PostgreSQL's holds the zero character, which a token's may.
        let named = !self.name.is_empty() && !self.name.contains('\0');
        named.then(|| format!("{kind}:{}", self.name))
    }

    /// What it may do.
    pub(crate) fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Whether it may read documents of `resource`.
    pub(crate) fn may_read(&self, resource: ResourceId) -> bool {
        self.grants.allow(resource, Right::Read)
    }

    pub(crate) fn new(
        rules: &Rules,
        kind: PrincipalKind,
        name: &str,
        roles: &[String],
    ) -> Arc<Self> {
        Arc::new(Self {
            kind,
            name: name.to_owned(),
            roles: roles.to_vec(),
            grants: rules.grants(Some(roles)),
        })
    }

    #[cfg(test)]
    pub(crate) fn named(name: &str) -> Self {
        Self {
            kind: PrincipalKind::User,
            name: name.to_owned(),
            roles: Vec::new(),
            grants: Grants::default(),
        }
    }
}
