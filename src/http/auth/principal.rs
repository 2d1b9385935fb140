//! Who sends a request.

use std::fmt;
use std::sync::Arc;

use crate::http::auth::grants::{Grants, Rules};

/// Who says who somebody is: names of one kind tell nothing of those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrincipalKind {
    /// `[[auth.user]]`, by password.
    User,
    /// `[[auth.key]]`
    Key,
    /// Whoever signs tokens.
    Token,
}

/// Who sends a request.
pub struct Principal {
    /// Who says so.
    pub kind: PrincipalKind,
    /// The user's or the key's name, or what the token calls its subject: empty if it names none.
    pub name: String,
    /// As configured, or as the token says.
    pub roles: Vec<String>,
    pub(super) grants: Grants,
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.kind, self.name)
    }
}

impl Principal {
    /// By which it is told apart from all others; `None` for who has no name.
    pub(in crate::http) fn scope(&self) -> Option<String> {
        let kind = match self.kind {
            PrincipalKind::User => "user",
            PrincipalKind::Key => "key",
            PrincipalKind::Token => "token",
        };
        // No text of PostgreSQL's holds the zero character, which a token's may.
        let named = !self.name.is_empty() && !self.name.contains('\0');
        named.then(|| format!("{kind}:{}", self.name))
    }

    /// Whether it may read documents of the resource with this index.
    pub(in crate::http) fn may_read(&self, index: usize) -> bool {
        self.grants.may_read(index)
    }

    pub(super) fn new(
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
    pub(super) fn named(name: &str) -> Self {
        Self {
            kind: PrincipalKind::User,
            name: name.to_owned(),
            roles: Vec::new(),
            grants: Grants::default(),
        }
    }
}
