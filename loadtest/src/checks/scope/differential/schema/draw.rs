//! How schemas are drawn.

use super::{Access, Alias, Column, Owner, Place, Role, Schema, Table};
use crate::checks::scope::kinds::Kind;

/// Conditions on the columns that every table has. Some are null for some rows.
const CONDITIONS: [&str; 10] = [
    "a > 2",
    "a between 1 and 8",
    "b <> 't8'",
    "a is distinct from 3",
    "coalesce(a, 0) % 4 <> 1",
    "length(b) < 4",
    "b like 't%' or a = 5",
    "lower(b) in ('t0', 't4', 't 1', 't 5', 'a,2')",
    "a = any (array[0, 1, 2, 5, 6, 7])",
    "case when b is null then a > 1 else true end",
];
/// Conditions on the column that a soft deletion sets.
const SOFT_CONDITIONS: [&str; 3] = ["gone is null", "not gone", "gone is not true"];

const READ: [&[&str]; 4] = [
    &["customer", "staff"],
    &["customer", "staff", "anonymous"],
    &["customer", "partner", "staff"],
    &["staff", "customer", "clerk"],
];
const WRITE: [&[&str]; 4] = [
    &["customer", "staff"],
    &["customer", "staff"],
    &["staff"],
    &["customer", "partner", "staff"],
];

impl Schema {
    /// Draws the schema that belongs to `seed`.
    pub(in crate::checks::scope::differential) fn draw(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let owner = (rng.u8(..8) > 0).then(|| draw_owner(&mut rng));
        let mut schema = Self {
            seed,
            name: format!("s{seed}"),
            tables: Vec::new(),
            owner,
            aliases: Vec::new(),
            read: one_of(&mut rng, &READ),
            write: one_of(&mut rng, &WRITE),
            is_long: rng.u8(..3) == 0,
        };
        schema.add_root(&mut rng);
        schema.add_children(&mut rng, 0);
        for table in 0..schema.tables.len() {
            schema.add_lookup(&mut rng, table);
        }
        schema
    }

    fn add_root(&mut self, rng: &mut fastrand::Rng) {
        let kinds = draw_kinds(rng);
        let mut columns: Vec<Column> = kinds
            .iter()
            .enumerate()
            .map(|(part, kind)| Column::key(&format!("k{part}"), *kind, rng))
            .collect();
        if let Some(owner) = &self.owner {
            columns.push(Column {
                is_nullable: rng.u8(..4) > 0,
                is_shown: rng.bool(),
                ..Column::new("o", Role::Owner, owner.kind, rng)
            });
        }
        for number in 0..rng.usize(..3) {
            let kinds = draw_kinds(rng);
            let names = (0..kinds.len()).map(|part| format!("n{number}{part}"));
            let alias_columns: Vec<(String, Kind)> = names.zip(kinds).collect();
            columns.extend(alias_columns.iter().map(|(name, kind)| Column {
                is_shown: rng.bool(),
                is_nullable: false,
                ..Column::new(name, Role::Alias, *kind, rng)
            }));
            self.aliases.push(Alias {
                name: format!("by{number}"),
                columns: alias_columns,
                index_conditions: Vec::new(),
            });
        }
        let (conditions, is_soft) = draw_conditions(rng);
        columns.extend(plain_columns(rng, &conditions));
        if self.is_long {
            columns.push(Column {
                is_domain: false,
                default: Some("repeat('long ', 300)"),
                ..Column::new("pad", Role::Plain, Kind::Text, rng)
            });
        }
        for alias in &mut self.aliases {
            if rng.bool() {
                alias.index_conditions.clone_from(&conditions);
                rng.shuffle(&mut alias.index_conditions);
                alias.index_conditions.truncate(rng.usize(1..3));
            }
        }
        self.tables.push(Table {
            name: "root".to_owned(),
            place: Place::Root,
            columns,
            conditions,
            is_soft: is_soft && rng.bool(),
        });
    }

    fn add_children(&mut self, rng: &mut fastrand::Rng, parent: usize) {
        let count = [0, 1, 1, 2][rng.usize(..4)];
        for _ in 0..if parent == 0 {
            count
        } else {
            usize::from(count > 1)
        } {
            let number = self.tables.len();
            let above = self.tables[parent].of_role(Role::Key);
            let links: Vec<Kind> = above.map(|column| column.kind).collect();
            let mut columns = vec![Column {
                is_domain: false,
                ..Column::key("k0", Kind::Integer, rng)
            }];
            columns.extend(links.iter().enumerate().map(|(part, kind)| Column {
                is_domain: false,
                is_shown: false,
                ..Column::new(&format!("p{part}"), Role::Link, *kind, rng)
            }));
            let (conditions, is_soft) = draw_conditions(rng);
            columns.extend(plain_columns(rng, &conditions));
            self.tables.push(Table {
                name: format!("c{number}"),
                place: Place::Child {
                    parent,
                    cascades: rng.bool(),
                },
                columns,
                conditions,
                is_soft: is_soft && self.tables[parent].is_soft && rng.bool(),
            });
            if parent == 0 {
                self.add_children(rng, number);
            }
        }
    }

    fn add_lookup(&mut self, rng: &mut fastrand::Rng, of: usize) {
        let is_lookup = matches!(self.tables[of].place, Place::Lookup { .. });
        if rng.u8(..if is_lookup { 4 } else { 2 }) > 0 {
            return;
        }
        let number = self.tables.len();
        let kind = one_of(rng, &Kind::OF_KEYS);
        let pointer = format!("l{number}");
        self.tables[of].columns.push(Column {
            is_domain: false,
            is_shown: rng.u8(..6) > 0,
            ..Column::new(&pointer, Role::Pointer, kind, rng)
        });
        let mut columns = vec![Column {
            is_domain: false,
            ..Column::key("k0", kind, rng)
        }];
        let mut access = Access::Nobody;
        if let Some(owner) = self.owner.as_ref().filter(|_| !is_lookup) {
            access = one_of(
                rng,
                &[Access::Nobody, Access::Owner, Access::Owner, Access::Shared],
            );
            columns.push(Column::new("o", Role::Owner, owner.kind, rng));
        }
        let (conditions, _) = draw_conditions(rng);
        columns.extend(plain_columns(rng, &conditions));
        self.tables.push(Table {
            name: format!("look{number}"),
            place: Place::Lookup {
                of,
                column: pointer,
                access,
                has_foreign_key: rng.bool(),
            },
            columns,
            conditions,
            is_soft: false,
        });
        self.add_lookup(rng, number);
    }
}

impl Column {
    fn new(name: &str, role: Role, kind: Kind, rng: &mut fastrand::Rng) -> Self {
        Self {
            name: name.to_owned(),
            role,
            kind,
            is_domain: kind != Kind::Boolean && rng.u8(..4) == 0,
            is_nullable: true,
            is_shown: true,
            default: None,
        }
    }

    fn key(name: &str, kind: Kind, rng: &mut fastrand::Rng) -> Self {
        Self {
            is_nullable: false,
            ..Self::new(name, Role::Key, kind, rng)
        }
    }
}

fn draw_owner(rng: &mut fastrand::Rng) -> Owner {
    Owner {
        kind: one_of(rng, &Kind::OF_KEYS),
        claim: one_of(rng, &["sub", "customer", "org.id"]),
        roles: vec!["customer"],
    }
}

/// The types of a key's or an alias's parts.
fn draw_kinds(rng: &mut fastrand::Rng) -> Vec<Kind> {
    let count = if rng.u8(..3) == 0 { 2 } else { 1 };
    (0..count).map(|_| one_of(rng, &Kind::OF_KEYS)).collect()
}

fn plain_columns(rng: &mut fastrand::Rng, conditions: &[&str]) -> [Column; 3] {
    let new = |name, kind| Column {
        name: String::from(name),
        role: Role::Plain,
        kind,
        is_domain: false,
        is_nullable: true,
        is_shown: true,
        default: None,
    };
    [
        new("a", Kind::Integer),
        new("b", Kind::Text),
        Column {
            is_shown: rng.bool(),
            // Otherwise no new row would be visible.
            default: conditions.contains(&"not gone").then_some("false"),
            ..new("gone", Kind::Boolean)
        },
    ]
}

/// Conditions, and whether a soft deletion hides a row.
fn draw_conditions(rng: &mut fastrand::Rng) -> (Vec<&'static str>, bool) {
    let mut conditions = Vec::new();
    let is_soft = rng.bool();
    if is_soft {
        conditions.push(one_of(rng, &SOFT_CONDITIONS));
    }
    if rng.u8(..3) == 0 {
        conditions.push(one_of(rng, &CONDITIONS));
    }
    (conditions, is_soft)
}

/// One of several, which is cloned or copied.
fn one_of<T: Clone, U: From<T>>(rng: &mut fastrand::Rng, of: &[T]) -> U {
    U::from(of[rng.usize(..of.len())].clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_draws_the_same_schema() {
        let drawn = |seed| format!("{:?}", Schema::draw(seed));
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7), drawn(8));
    }

    #[test]
    fn every_feature_is_drawn() {
        let schemas: Vec<Schema> = (0..200).map(Schema::draw).collect();
        let some = |is: &dyn Fn(&Schema) -> bool| schemas.iter().any(is);
        assert!(some(&|schema| schema.owner.is_none()));
        assert!(some(&|schema| schema.key_kinds().len() == 2));
        assert!(some(&|schema| schema
            .aliases
            .iter()
            .any(|alias| alias.columns.len() == 2)));
        assert!(some(
            &|schema| !schema.tables[0].conditions.is_empty() && schema.tables[0].is_soft
        ));
        for access in [Access::Nobody, Access::Owner, Access::Shared] {
            let has = |schema: &Schema| {
                let mut lookups = (0..schema.tables.len()).flat_map(|table| schema.lookups(table));
                lookups.any(|(_, _, of)| of == access)
            };
            assert!(some(&has));
        }
    }
}
