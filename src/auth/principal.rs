//! Principals: the users and programs that credentials identify.

use std::fmt;
use std::sync::Arc;

use crate::auth::grants::{Access, Grants, Right, Rules};
use crate::resource::ResourceId;

/// The kind of a principal. Principals of two kinds with equal names are different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrincipalKind {
    /// `[[auth.user]]`, by password or by a token that larder has signed.
    User,
    /// `[[auth.key]]`
    Key,
    /// A JSON Web Token of another issuer.
    Token {
        /// Its `iss`, which may be empty.
        issuer: String,
    },
}

/// The user or program that a credential identifies.
pub struct Principal {
    /// The kind.
    pub kind: PrincipalKind,
    /// The name of the user or the key, or the token's `sub`, which may be empty.
    pub name: String,
    /// As configured, or as in the token.
    pub roles: Vec<String>,
    /// Those that owners of documents are compared with.
    claims: Box<[(String, String)]>,
    grants: Grants,
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.kind, self.name)
    }
}

impl Principal {
    /// A text that identifies the principal; `None` if it has no name.
    pub(crate) fn scope(&self) -> Option<String> {
        let kind = match &self.kind {
            PrincipalKind::User => "user".to_owned(),
            PrincipalKind::Key => "key".to_owned(),
            // In quotes, so that no issuer and subject look like another pair.
            PrincipalKind::Token { issuer } => format!("token:{issuer:?}"),
        };
        // A token's name may contain the zero character, which PostgreSQL's texts can't.
        let named = !self.name.is_empty() && !self.name.contains('\0');
        named.then(|| format!("{kind}:{}", self.name))
    }

    /// Its rights.
    pub(crate) fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Whether it may read documents of `resource`.
    pub(crate) fn may_read(&self, resource: ResourceId) -> bool {
        self.grants.allow(resource, Right::Read)
    }

    /// The documents of `resource` on which it has `right`.
    pub(crate) fn access(&self, resource: ResourceId, right: Right) -> Access {
        self.grants.access(resource, right)
    }

    /// The text of the claim `name`, which a resource compares with owners; `None` if the principal lacks it.
    pub(crate) fn claim(&self, name: &str) -> Option<&str> {
        let claim = self.claims.iter().find(|(claim, _)| claim == name);
        claim.map(|(_, text)| text.as_str())
    }

    /// A principal whose claims have the texts that `claim` returns for their names.
    pub(crate) fn new(
        rules: &Rules,
        kind: PrincipalKind,
        name: &str,
        roles: &[String],
        claim: impl Fn(&str) -> Option<String>,
    ) -> Arc<Self> {
        let claims = rules
            .claims()
            .filter_map(|name| Some((name.to_owned(), claim(name)?)));
        let mut claims: Vec<(String, String)> = claims.collect();
        claims.sort_unstable();
        claims.dedup();
        Arc::new(Self {
            kind,
            name: name.to_owned(),
            roles: roles.to_vec(),
            claims: claims.into(),
            grants: rules.grants(Some(roles)),
        })
    }

    #[cfg(test)]
    pub(crate) fn named(name: &str) -> Self {
        Self {
            kind: PrincipalKind::User,
            name: name.to_owned(),
            roles: Vec::new(),
            claims: Box::default(),
            grants: Grants::default(),
        }
    }
}
