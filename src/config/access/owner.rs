//! Checks whether the owner of documents fits roles, claims and lookups.

use crate::auth::config::{ANONYMOUS, AuthConfig};
use crate::config::places::mistake;
use crate::resource::definition::{
    Located, LookupDefinition, Mistake, OwnerDefinition, ResourceDefinition, RowDefinition,
};

/// Finds what is wrong with the owner of a resource, and with the owners of its lookups.
pub(super) fn check_owner(resource: &ResourceDefinition, auth: &AuthConfig) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    if let Some(owner) = &resource.owner {
        mistakes.extend(check_claim(owner, auth));
        mistakes.extend(check_roles(resource, owner));
    }
    let has_owner = resource.owner.is_some();
    check_lookups(&resource.row, has_owner, &mut mistakes);
    mistakes
}

/// A token may have any claim.
fn check_claim(
    OwnerDefinition { claim, .. }: &OwnerDefinition,
    auth: &AuthConfig,
) -> Option<Mistake> {
    let users = auth.users.iter().map(|user| &user.claims);
    let mut claims = users.chain(auth.keys.iter().map(|key| &key.claims));
    let message = if !auth.is_on() {
        "requires claims, but [auth] has no user, no key and no [auth.jwt]".to_owned()
    } else if !auth.jwt.is_on() && !claims.any(|claims| claims.contains_key(&claim.value)) {
        format!(
            "no user and no key has claim {:?}: add it to the claims of [[auth.user]] or [[auth.key]]",
            claim.value
        )
    } else {
        return None;
    };
    Some(mistake(&claim.place, message))
}

/// Restricted roles are roles of the resource, and some clients are restricted.
fn check_roles(resource: &ResourceDefinition, owner: &OwnerDefinition) -> Vec<Mistake> {
    let lists = [&resource.read, &resource.write];
    let has = |role: &String| {
        lists
            .iter()
            .copied()
            .flatten()
            .any(|list| list.value.contains(role))
    };
    let restricted = owner.roles.as_ref().map_or(&[][..], |roles| &roles.value);
    let unknown = restricted.iter().filter(|role| !has(role));
    let mut mistakes: Vec<Mistake> = unknown
        .map(|role| {
            let place = owner
                .roles
                .as_ref()
                .map_or(&owner.claim.place, |roles| &roles.place);
            mistake(
                place,
                format!("role {role:?} is in neither read nor write of the resource"),
            )
        })
        .collect();
    let restricts = |list: &Option<Located<Vec<String>>>| match list {
        None => true,
        Some(list) => {
            let mut roles = list.value.iter();
            roles.any(|role| role == ANONYMOUS || restricted.contains(role))
        }
    };
    if mistakes.is_empty() && !lists.into_iter().any(restricts) {
        let message = "restricts no client: name in roles those of read and write that see only their own documents";
        let place = owner
            .roles
            .as_ref()
            .map_or(&owner.column.place, |roles| &roles.place);
        mistakes.push(mistake(place, message));
    }
    mistakes
}

/// Only columns of rows that are written are compared with owners: those of the root and of children.
fn check_lookups(row: &RowDefinition, has_owner: bool, mistakes: &mut Vec<Mistake>) {
    let without = (!has_owner).then_some("has no effect without [resource.owner]");
    for lookup in &row.lookups {
        mistakes.extend(check_lookup(lookup, without));
        refuse_owners(&lookup.row, mistakes);
    }
    for child in &row.children {
        check_lookups(&child.row, has_owner, mistakes);
    }
}

fn refuse_owners(row: &RowDefinition, mistakes: &mut Vec<Mistake>) {
    let why = "has no effect in a lookup of a lookup, since the column that points to it is never written";
    for lookup in &row.lookups {
        mistakes.extend(check_lookup(lookup, Some(why)));
        refuse_owners(&lookup.row, mistakes);
    }
}

/// `idle` says why an owner has no effect here.
fn check_lookup(lookup: &LookupDefinition, idle: Option<&str>) -> Option<Mistake> {
    let shared = Some(&lookup.shared).filter(|shared| shared.value);
    let owner = lookup.owner.as_ref();
    let place = owner.map(|owner| &owner.place);
    let place = place.or(shared.map(|shared| &shared.place))?;
    let both = "shared = true is set, too: the rows have an owner, or are shared";
    let message = idle.or(owner.and(shared).map(|_| both))?;
    Some(mistake(place, message))
}

#[cfg(test)]
mod tests {
    use crate::config::testing::{mistakes, only};
    use crate::config::{Config, dump};

    const KEY: &str = "[[auth.key]]\nname = 'k'\n\
        hash = '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08'\n\
        roles = ['customer', 'staff']\nclaims = { sub = '17' }\n";
    const JWT: &str = "[auth.jwt]\nalgorithms = ['HS256']\nsecret_file = 'f'\n";
    const RESOURCE: &str = "[[resource]]\nname = 'n'\ntable = 't'\n";
    const ROLES: &str = "read = ['customer', 'staff']\nwrite = ['staff']\n";
    const OWNER: &str = "[resource.owner]\ncolumn = 'c'\nclaim = 'sub'\n";
    const LOOKUP: &str = "[[resource.lookups]]\nname = 'l'\ntable = 't'\ncolumn = 'a'\n";

    /// The lines of the key are 1 to 5, of the resource 6 to 8, of its roles 9 and 10, of its owner 11 to 13.
    fn owned(below: &str) -> String {
        format!("{KEY}{RESOURCE}{ROLES}{OWNER}{below}")
    }

    #[test]
    fn owners_are_read_and_dumped() {
        let text = owned("roles = ['customer']\n[[resource.by]]\nname = 'no'\ncolumns = 'a'\n");
        let text =
            text + "[[resource.by]]\nname = 'two'\ncolumns = ['a', 'b']\n" + LOOKUP + "owner = 'o'";
        let config = Config::from_toml(&text, &[]).unwrap();
        let resource = &config.resources[0];
        let owner = resource.owner.as_ref().unwrap();
        assert_eq!((&*owner.column.value, &*owner.claim.value), ("c", "sub"));
        assert_eq!(owner.roles.as_ref().unwrap().value, ["customer"]);
        assert_eq!(resource.by[1].columns.value, ["a", "b"]);
        assert_eq!(resource.row.lookups[0].owner.as_ref().unwrap().value, "o");
        assert_eq!(config.auth.keys[0].claims["sub"], "17");
        let dumped = dump(&config);
        for part in [
            "\n[resource.owner]\ncolumn = \"c\"\nclaim = \"sub\"\nroles = [\"customer\"]\n",
            "\n[[resource.by]]\nname = \"two\"\ncolumns = [\"a\", \"b\"]\n",
            "claims = { sub = \"17\" }\n",
            "owner = \"o\"\n",
        ] {
            assert!(dumped.contains(part), "{part} {dumped}");
        }
    }

    #[test]
    fn somebody_can_have_the_claim() {
        let other = OWNER.replace("sub", "subject");
        only(
            &format!("{KEY}{RESOURCE}{other}"),
            "11: resource[0].owner.claim: no user and no key has claim \"subject\"",
        );
        only(
            &format!("{RESOURCE}{OWNER}"),
            "6: resource[0].owner.claim: requires claims, but [auth] has no user",
        );
        let any = Config::from_toml(&format!("{JWT}{RESOURCE}{other}"), &[]);
        assert!(any.is_ok());
        only(
            &format!("{JWT}{RESOURCE}[resource.owner]\ncolumn = 'c'\nclaim = ''"),
            "9: resource[0].owner.claim: the claim's name is empty",
        );
        only(
            &KEY.replace("'17'", "17"),
            "5: auth.key[0].claims.sub: expected a string, found the integer 17",
        );
        only(
            &KEY.replace("{ sub = '17' }", "'17'"),
            "5: auth.key[0].claims: expected { claim = \"value\" }, found",
        );
    }

    #[test]
    fn restricted_roles_are_roles_of_the_resource() {
        only(
            &owned("roles = ['staff', 'custom']"),
            "14: resource[0].owner.roles: role \"custom\" is in neither read nor write",
        );
        only(
            &owned(""),
            "12: resource[0].owner.column: restricts no client: name in roles those",
        );
        only(
            &owned("roles = []"),
            "14: resource[0].owner.roles: restricts no client",
        );
        let open =
            format!("{KEY}{RESOURCE}read = ['anonymous', 'staff']\nwrite = ['staff']\n{OWNER}");
        assert!(Config::from_toml(&open, &[]).is_ok());
        assert!(Config::from_toml(&format!("{KEY}{RESOURCE}{OWNER}"), &[]).is_ok());
    }

    #[test]
    fn owners_of_lookups_have_an_effect() {
        let with = |lookup: &str| owned(&format!("roles = ['customer']\n{LOOKUP}{lookup}"));
        only(
            &with("owner = 'o'\nshared = true"),
            "19: resource[0].lookups[0].owner: shared = true is set, too",
        );
        let nested =
            "[[resource.lookups.lookups]]\nname = 'm'\ntable = 't'\ncolumn = 'b'\nshared = true";
        only(
            &with(nested),
            "23: resource[0].lookups[0].lookups[0].shared: has no effect in a lookup of a lookup",
        );
        let child = "[[resource.children]]\nname = 'c'\ntable = 't'\n[[resource.children.lookups]]\n\
            name = 'm'\ntable = 't'\ncolumn = 'b'\nshared = true";
        assert!(Config::from_toml(&with(child), &[]).is_ok());
        let unowned = format!("{KEY}{RESOURCE}{LOOKUP}owner = 'o'\n{child}");
        let unowned = mistakes(&unowned);
        assert!(
            unowned[0].starts_with("13: resource[0].lookups[0].owner: has no effect without")
                && unowned[1]
                    .starts_with("21: resource[0].children[0].lookups[0].shared: has no effect"),
            "{unowned:#?}"
        );
        only(
            &with("shared = 'yes'"),
            "19: resource[0].lookups[0].shared: expected true or false, found the string \"yes\"",
        );
    }

    #[test]
    fn names_of_aliases_are_single_and_usable_in_a_path() {
        let by = |name: &str| format!("[[resource.by]]\nname = '{name}'\ncolumns = 'a'\n");
        only(
            &format!("{RESOURCE}{}{}", by("a"), by("a")),
            "8: resource[0].by[1].name: duplicate alias name: \"a\" is already used on line 5",
        );
        only(
            &format!("{RESOURCE}{}", by("a/b")),
            "5: resource[0].by[0].name: \"a/b\" can't be a path segment",
        );
        only(
            &format!("{RESOURCE}{}", by("")),
            "5: resource[0].by[0].name: the name is empty",
        );
        only(
            &format!("{RESOURCE}[[resource.by]]\nname = 'a'"),
            "4: resource[0].by[0].columns: `columns` is missing",
        );
        only(
            &format!("{RESOURCE}[[resource.by]]\nname = 'a'\ncolumns = []"),
            "6: resource[0].by[0].columns: the list is empty",
        );
        let field = format!(
            "{RESOURCE}fields = {{ a = 'a' }}\n{}{}",
            by("a"),
            by("docs")
        );
        assert!(Config::from_toml(&field, &[]).is_ok());
    }
}
