//! Checks children and lookups: the columns that join them to the row above, and the order of children.

use crate::resource::catalogue::{ForeignKey, Table};
use crate::resource::definition::{ChildDefinition, Located, LookupDefinition, Place};
use crate::resource::key::{KeyColumn, key_type};
use crate::resource::resolve::{Resolver, rendering};
use crate::resource::{Child, Lookup, OrderColumn, Pair};

impl Resolver<'_> {
    pub(super) fn child(
        &mut self,
        parent: &Table,
        definition: &ChildDefinition,
        parent_key: Option<&[KeyColumn]>,
    ) -> Option<Child> {
        let table = self.table(&definition.table)?;
        let on = match &definition.foreign_key {
            Some(columns) => self.named_foreign_key(table, columns, parent, parent_key),
            None => self.only_foreign_key(table, &definition.table, parent),
        };
        let order_by = self.order(table, definition);
        let own_key = table.primary_key().map(<[String]>::to_vec);
        let own_key = own_key.and_then(|names| {
            // Only children of this child that have no foreign key need this key.
            let columns: Vec<KeyColumn> = names
                .iter()
                .filter_map(|name| {
                    let column = table.column(name)?;
                    let key_type = key_type(column).ok()?;
                    Some(KeyColumn::new(column, key_type))
                })
                .collect();
            (columns.len() == names.len()).then_some(columns)
        });
        let row = self.row(
            table,
            &definition.table,
            &definition.row,
            own_key.as_deref(),
        );
        Some(Child {
            name: definition.name.value.clone(),
            on: on?,
            order_by: order_by?,
            row: row?,
        })
    }

    pub(super) fn lookup(
        &mut self,
        pointing: &Table,
        definition: &LookupDefinition,
    ) -> Option<Lookup> {
        let table = self.table(&definition.table)?;
        let place = &definition.column.place;
        let upper = self.key_columns(pointing, &definition.column.value, place);
        let own = match &definition.references {
            Some(columns) => self.referenced(table, columns),
            None => self.declared_reference(pointing, table, definition),
        };
        let row = self.row(table, &definition.table, &definition.row, None);
        let allowed = self.lookup_targets(table, definition);
        Some(Lookup {
            name: definition.name.value.clone(),
            on: self.pairs(own?, upper?, place)?,
            targets: allowed?,
            row: row?,
        })
    }

    /// The columns of `table` that a lookup names as those that it points to.
    fn referenced(
        &mut self,
        table: &Table,
        columns: &Located<Vec<String>>,
    ) -> Option<Vec<KeyColumn>> {
        let Located { value, place } = columns;
        let own = self.key_columns(table, value, place)?;
        let names = value.join(", ");
        let known = value.iter().filter_map(|name| table.column(name));
        let nullable = known.filter(|column| !column.not_null);
        let message = if let Some(column) = nullable.into_iter().next() {
            let name = &column.name;
            format!("column {name} of {} may be null", table.name)
        } else if !table.is_unique(value) {
            format!("{names} is not unique in {}", table.name)
        } else {
            return Some(own);
        };
        let message = format!("{message}: references names columns that are unique and not null");
        self.mistake(place, message);
        None
    }

    /// The columns of `table` that the foreign key of a lookup's columns references.
    fn declared_reference(
        &mut self,
        pointing: &Table,
        table: &Table,
        definition: &LookupDefinition,
    ) -> Option<Vec<KeyColumn>> {
        let Located { value, place } = &definition.column;
        let declared = pointing.foreign_keys.iter().find(|key| {
            key.target == table.name.oid
                && key.columns.len() == value.len()
                && value.iter().all(|name| key.columns.contains(name))
        });
        let Some(key) = declared else {
            let known = value.iter().all(|name| pointing.column(name).is_some());
            if known {
                let message = missing_reference(pointing, table, value);
                self.mistake(place, message);
            }
            return None;
        };
        let targets: Vec<String> = value
            .iter()
            .filter_map(|name| {
                let position = key.columns.iter().position(|column| column == name)?;
                Some(key.target_columns[position].clone())
            })
            .collect();
        self.key_columns(table, &targets, &definition.table.place)
    }

    fn named_foreign_key(
        &mut self,
        table: &Table,
        columns: &Located<Vec<String>>,
        parent: &Table,
        parent_key: Option<&[KeyColumn]>,
    ) -> Option<Vec<Pair>> {
        let own = self.key_columns(table, &columns.value, &columns.place)?;
        let declared = table.foreign_keys.iter().find(|key| {
            key.target == parent.name.oid
                && key.columns.len() == own.len()
                && own.iter().all(|column| key.columns.contains(&column.name))
        });
        let upper: Vec<KeyColumn> = match (declared, parent_key) {
            (Some(key), _) => {
                let targets: Vec<String> = own
                    .iter()
                    .filter_map(|column| {
                        let position = key.columns.iter().position(|name| *name == column.name)?;
                        Some(key.target_columns[position].clone())
                    })
                    .collect();
                self.key_columns(parent, &targets, &columns.place)?
            }
            (None, Some(key)) => key.to_vec(),
            (None, None) => {
                let message = format!("{} has no key that these columns could hold", parent.name);
                self.mistake(&columns.place, message);
                return None;
            }
        };
        self.pairs(own, upper, &columns.place)
    }

    fn only_foreign_key(
        &mut self,
        table: &Table,
        written: &Located<String>,
        parent: &Table,
    ) -> Option<Vec<Pair>> {
        let candidates: Vec<&ForeignKey> = table
            .foreign_keys
            .iter()
            .filter(|key| key.target == parent.name.oid)
            .collect();
        let message = match candidates.as_slice() {
            [key] => {
                let own = self.key_columns(table, &key.columns, &written.place);
                let upper = self.key_columns(parent, &key.target_columns, &written.place);
                return self.pairs(own?, upper?, &written.place);
            }
            [] => format!(
                "{} has no foreign key to {}: name the columns that hold its key with foreign_key = …",
                table.name, parent.name
            ),
            several => {
                let columns: Vec<String> =
                    several.iter().map(|key| key.columns.join(", ")).collect();
                format!(
                    "{} has several foreign keys to {} ({}): choose one with foreign_key = …",
                    table.name,
                    parent.name,
                    columns.join("; ")
                )
            }
        };
        self.mistake(&written.place, message);
        None
    }

    fn pairs(
        &mut self,
        own: Vec<KeyColumn>,
        upper: Vec<KeyColumn>,
        place: &Place,
    ) -> Option<Vec<Pair>> {
        if own.len() != upper.len() {
            let names: Vec<&str> = upper.iter().map(|column| column.name.as_str()).collect();
            let message = format!(
                "{} columns, but the key has {}: {}",
                own.len(),
                names.len(),
                names.join(", ")
            );
            self.mistake(place, message);
            return None;
        }
        let pairs: Vec<Pair> = own
            .into_iter()
            .zip(upper)
            .map(|(own, upper)| Pair { own, upper })
            .collect();
        for (number, pair) in pairs.iter().enumerate() {
            let own = &pair.own.name;
            if pairs[..number].iter().any(|other| other.own.name == *own) {
                self.mistake(place, format!("the foreign key names column {own} twice"));
                return None;
            }
            if !pair.own.is_comparable(&pair.upper) {
                let message = format!(
                    "columns {own} and {} have different collations, by which PostgreSQL can't compare them",
                    pair.upper.name
                );
                self.mistake(place, message);
                return None;
            }
            if !pair.own.same_text(&pair.upper) {
                let message = format!(
                    "columns {own} and {} are of types too different to hold the same key",
                    pair.upper.name
                );
                self.mistake(place, message);
                return None;
            }
        }
        Some(pairs)
    }

    /// The columns of `order_by`, followed by those of the primary key, so that the order of rows is always the same.
    fn order(&mut self, table: &Table, definition: &ChildDefinition) -> Option<Vec<OrderColumn>> {
        let primary = table.primary_key().unwrap_or_default();
        let written = definition.order_by.as_ref();
        if primary.is_empty() && written.is_none() {
            let message = format!(
                "{} has no primary key: say how to sort it with order_by = …",
                table.name
            );
            self.mistake(&definition.table.place, message);
            return None;
        }
        let mut order: Vec<OrderColumn> = Vec::new();
        let names = written.map_or(&[][..], |written| &written.value);
        let place = written.map_or(&definition.table.place, |written| &written.place);
        self.check_expressions(table, names, place);
        let rest = primary.iter().filter(|name| !names.contains(name));
        for name in names.iter().chain(rest) {
            let column = self.column(table, name, place)?;
            order.push(OrderColumn {
                name: name.clone(),
                rendering: rendering(column),
            });
        }
        Some(order)
    }
}

/// The message about a lookup from `columns` of `pointing` to `table` that no foreign key defines. It proposes the primary
/// key, else another unique key, of as many columns.
fn missing_reference(pointing: &Table, table: &Table, columns: &[String]) -> String {
    let names = columns.join(", ");
    let is_not_null = |name: &String| table.column(name).is_some_and(|column| column.not_null);
    let mut keys = table.unique_keys.iter();
    let proposed = keys
        .find(|key| key.columns.len() == columns.len() && key.columns.iter().all(is_not_null))
        .map(|key| match key.columns.as_slice() {
            [column] => format!("{column:?}"),
            columns => format!("{columns:?}"),
        });
    let remedy = match proposed {
        Some(proposed) => {
            format!(
                "if it holds the row's key, say references = {proposed}, else name the unique columns that it holds"
            )
        }
        None => format!(
            "{} has no unique key of so many columns to look up by",
            table.name
        ),
    };
    format!(
        "{names} of {} has no foreign key to {}: {remedy}",
        pointing.name, table.name
    )
}
