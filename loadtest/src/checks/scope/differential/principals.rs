//! The principals of a drawn schema, and what each may do.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::checks::scope::credentials;
use crate::checks::scope::differential::schema::{Owner, Schema};
use crate::checks::scope::kinds::Kind;

/// The role that needs no credentials.
const ANONYMOUS: &str = "anonymous";
/// The principal whose claim is no value of the owner's type.
const WRONG: &str = "wrong";

/// A client of a drawn schema.
#[derive(Clone, Debug)]
pub(super) struct Principal {
    pub(super) name: String,
    pub(super) roles: Vec<&'static str>,
    /// The text of its claim, if it has one.
    claim: Option<String>,
    /// The owner that it is.
    pub(super) owner: Option<i64>,
    credential: Credential,
}

#[derive(Clone, Debug)]
enum Credential {
    None,
    Key(String),
    Token(String),
}

/// What a principal may do with documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    None,
    /// With those of one owner; `None`: with none.
    Own(Option<i64>),
    All,
}

/// What a principal may do with the documents of a schema.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rights {
    pub(super) read: Right,
    pub(super) write: Right,
}

impl Rights {
    /// Whether it writes documents of its own alone.
    pub(super) fn is_restricted(self) -> bool {
        matches!(self.write, Right::Own(_))
    }
}

impl Principal {
    /// The principals of a schema. The first one is unrestricted.
    pub(super) fn draw(schema: &Schema) -> anyhow::Result<Vec<Self>> {
        // Other values than those of the schema.
        let mut rng = fastrand::Rng::with_seed(schema.seed ^ 0x5ca1_ab1e);
        let kind = schema
            .owner
            .as_ref()
            .map_or(Kind::Integer, |owner| owner.kind);
        let mut drawn: Vec<(&str, &[&'static str], Option<i64>)> = vec![
            ("staff", &["staff"], None),
            ("first", &["customer"], Some(1)),
            ("second", &["customer"], Some(2)),
            ("third", &["partner", "customer"], Some(3)),
            ("both", &["customer", "staff"], Some(2)),
            ("claimless", &["customer"], None),
            ("clerk", &["clerk", "customer"], Some(2)),
            ("stranger", &["other"], Some(1)),
        ];
        let wrong = kind.wrong(&mut rng);
        if wrong.is_some() {
            drawn.push((WRONG, &["customer"], None));
        }
        let drawn = drawn.into_iter().map(|(name, roles, owner)| {
            let claim = match owner {
                _ if name == WRONG => wrong.clone(),
                owner => owner.map(|number| kind.spelled(number, &mut rng)),
            };
            let name = format!("{}-{name}", schema.name);
            let credential = if rng.bool() {
                Credential::Key(format!("key-of-{name}"))
            } else {
                let (of, claim) = (claim_name(schema), claim.as_deref());
                Credential::Token(token(&name, roles, of, claim, &mut rng)?)
            };
            anyhow::Ok(Self {
                roles: roles.to_vec(),
                name,
                claim,
                owner,
                credential,
            })
        });
        let mut principals = drawn.collect::<anyhow::Result<Vec<_>>>()?;
        principals.push(Self {
            name: ANONYMOUS.to_owned(),
            roles: Vec::new(),
            claim: None,
            owner: None,
            credential: Credential::None,
        });
        Ok(principals)
    }

    /// `[[auth.key]]` of this principal, if it has one.
    pub(super) fn toml(&self, schema: &Schema) -> String {
        let Credential::Key(key) = &self.credential else {
            return String::new();
        };
        let (name, hash) = (&self.name, credentials::key_hash(key));
        let mut toml = format!(
            "[[auth.key]]\nname = '{name}'\nhash = '{hash}'\nroles = {:?}\n",
            self.roles
        );
        let claim_name = claim_name(schema);
        if let Some(claim) = &self.claim {
            // Writing to a string can't fail.
            let _infallible = writeln!(toml, "claims = {{ \"{claim_name}\" = {claim:?} }}");
        }
        toml
    }

    /// Whether larder can tell its repeated requests from those of others.
    pub(super) fn has_subject(&self, schema: &Schema) -> bool {
        let is_subject = claim_name(schema) == "sub";
        match self.credential {
            Credential::None => false,
            Credential::Key(_) => true,
            Credential::Token(_) => !is_subject || self.claim.is_some(),
        }
    }

    /// The header with its credential.
    pub(super) fn header(&self, rng: &mut fastrand::Rng) -> Option<(&'static str, String)> {
        match &self.credential {
            Credential::None => None,
            Credential::Key(key) if rng.bool() => Some(("x-api-key", key.clone())),
            Credential::Key(secret) | Credential::Token(secret) => {
                Some(("authorization", format!("Bearer {secret}")))
            }
        }
    }

    /// What it may do with a right for which one of `roles` is needed.
    pub(super) fn right(&self, roles: &[&str], owner: Option<&Owner>) -> Right {
        let needed = self.roles.iter().filter(|role| roles.contains(role));
        let unrestricted = |role: &&str| owner.is_none_or(|owner| !owner.roles.contains(role));
        let held: Vec<&str> = needed.copied().collect();
        let is_open = roles.contains(&ANONYMOUS);
        match (&held[..], owner) {
            ([], None) if is_open => Right::All,
            ([], _) if !is_open => Right::None,
            (held, _) if held.iter().any(unrestricted) => Right::All,
            _ => Right::Own(self.owner),
        }
    }

    pub(super) fn read(&self, schema: &Schema) -> Right {
        self.right(&schema.read, schema.owner.as_ref())
    }

    pub(super) fn rights(&self, schema: &Schema) -> Rights {
        Rights {
            read: self.read(schema),
            write: self.right(&schema.write, schema.owner.as_ref()),
        }
    }
}

fn claim_name(schema: &Schema) -> &'static str {
    schema.owner.as_ref().map_or("sub", |owner| owner.claim)
}

/// A token; its claim is a string, or a number where it is one.
fn token(
    name: &str,
    roles: &[&str],
    claim_name: &str,
    claim: Option<&str>,
    rng: &mut fastrand::Rng,
) -> anyhow::Result<String> {
    let mut claims = json!({"sub": name, "roles": roles});
    let unfit = rng.choice([Value::Null, json!([1]), json!({"id": 1})]);
    let value = match claim {
        // A subject is a text.
        None if claim_name == "sub" => return credentials::token(json!({"roles": roles})),
        // What is no text and no integer counts as missing.
        None => unfit.unwrap_or_default(),
        Some(text) if claim_name == "sub" => json!(text),
        Some(text) => match text.parse::<i64>() {
            Ok(number) if rng.bool() && !text.starts_with(['0', '+']) => json!(number),
            _ => json!(text),
        },
    };
    if let Some(object) = claims.as_object_mut() {
        match claim_name.split_once('.') {
            Some((outer, inner)) => {
                let nested = Map::from_iter([(inner.to_owned(), value)]);
                object.insert(outer.to_owned(), Value::Object(nested));
            }
            None => {
                object.insert(claim_name.to_owned(), value);
            }
        }
    }
    credentials::token(claims)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_that_is_not_restricted_sees_all() {
        let owner = Owner {
            kind: Kind::Integer,
            claim: "sub",
            roles: vec!["customer"],
        };
        let right = |roles: &[&'static str], of: &[&str]| {
            let principal = Principal {
                name: String::new(),
                roles: roles.to_vec(),
                claim: None,
                owner: Some(1),
                credential: Credential::None,
            };
            principal.right(of, Some(&owner))
        };
        let of = ["customer", "staff"];
        assert_eq!(right(&["customer"], &of), Right::Own(Some(1)));
        assert_eq!(right(&["customer", "staff"], &of), Right::All);
        assert_eq!(right(&["customer", "clerk"], &of), Right::Own(Some(1)));
        assert_eq!(right(&[], &of), Right::None);
        assert_eq!(
            right(&["clerk"], &["customer", ANONYMOUS]),
            Right::Own(Some(1))
        );
    }
}
