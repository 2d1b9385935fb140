//! What a definition has gained and lost since a table was altered, for the log.

use std::collections::BTreeMap;

use crate::resource::{Resource, Row};

/// The differences between two definitions of a resource. Each text begins with the path of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DefinitionChanges {
    /// What only the new definition has.
    pub(crate) gained: Vec<String>,
    /// What only the old definition has.
    pub(crate) lost: Vec<String>,
    /// What both have, with another column, type or reason.
    pub(crate) changed: Vec<String>,
}

impl DefinitionChanges {
    /// What `new` has gained and lost in comparison with `old`.
    pub(crate) fn between(old: &Resource, new: &Resource) -> Self {
        let (old, mut new) = (parts(old), parts(new));
        let mut changes = Self::default();
        for (path, before) in old {
            match new.remove(&path) {
                None => changes.lost.push(format!("{path}: {before}")),
                Some(after) if after != before => {
                    changes.changed.push(format!("{path}: {before} -> {after}"));
                }
                Some(_) => {}
            }
        }
        let gained = new.into_iter();
        changes.gained = gained
            .map(|(path, after)| format!("{path}: {after}"))
            .collect();
        changes
    }

    /// Whether nothing that clients see has changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.gained.is_empty() && self.lost.is_empty() && self.changed.is_empty()
    }
}

/// The members of a document by their paths, its key, and whether it can be written.
fn parts(resource: &Resource) -> BTreeMap<String, String> {
    let mut parts = BTreeMap::new();
    add_members(&resource.root, "", &mut parts);
    let columns = resource.key.columns.iter();
    let key: Vec<String> = columns
        .map(|column| format!("{} {}", column.name, column.type_text))
        .collect();
    parts.insert("(key)".to_owned(), key.join(", "));
    let writable = match &resource.writable {
        Ok(_) => "possible",
        Err(why) => why.as_str(),
    };
    parts.insert("(writes)".to_owned(), writable.to_owned());
    parts
}

/// Adds the members of `row` and of the rows below it. `path` leads to the row.
fn add_members(row: &Row, path: &str, parts: &mut BTreeMap<String, String>) {
    for field in &row.fields {
        let null = if field.nullable { "" } else { " not null" };
        let (column, type_text) = (&field.column, &field.type_text);
        parts.insert(
            format!("{path}{}", field.name),
            format!("column {column} {type_text}{null}"),
        );
    }
    let children = row.children.iter().map(|child| (&child.name, &child.row));
    let lookups = row.lookups.iter().map(|lookup| (&lookup.name, &lookup.row));
    for (name, below) in children.chain(lookups) {
        parts.insert(format!("{path}{name}"), format!("table {}", below.table));
        add_members(below, &format!("{path}{name}."), parts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::testing::named;
    use crate::resource::value::ValueType;
    use crate::resource::{Field, Lookup, LookupTargets, Rendering};

    fn field(name: &str, type_text: &str) -> Field {
        Field {
            column: name.to_owned(),
            name: name.to_owned(),
            rendering: Rendering::Json,
            value: ValueType::Other,
            type_text: type_text.to_owned(),
            nullable: true,
        }
    }

    fn resource(fields: Vec<Field>, of_city: Vec<Field>) -> Resource {
        let mut resource = named("orders");
        let mut row = resource.root.clone();
        row.fields = of_city;
        resource.root.fields = fields;
        resource.root.lookups.push(Lookup {
            name: "city".to_owned(),
            on: Vec::new(),
            targets: LookupTargets::None,
            row,
        });
        resource
    }

    #[test]
    fn a_renamed_column_is_a_member_lost_and_one_gained() {
        let old = resource(
            vec![field("id", "integer"), field("mail", "text")],
            vec![field("zip", "integer")],
        );
        let new = resource(
            vec![field("id", "integer"), field("email", "text")],
            vec![field("zip", "text")],
        );
        let changes = DefinitionChanges::between(&old, &new);
        assert_eq!(changes.gained, ["email: column email text"]);
        assert_eq!(changes.lost, ["mail: column mail text"]);
        assert_eq!(
            changes.changed,
            ["city.zip: column zip integer -> column zip text"]
        );
        assert!(DefinitionChanges::between(&new, &new).is_empty());
    }

    #[test]
    fn a_reason_against_writes_is_a_change() {
        let old = resource(Vec::new(), Vec::new());
        let mut new = old.clone();
        new.writable = Err("another reason".to_owned());
        let changes = DefinitionChanges::between(&old, &new);
        assert_eq!(changes.changed.len(), 1, "{changes:?}");
    }
}
