//! Takes out of force what [`resolve`] refuses.

use std::sync::Arc;

use crate::resource::Resource;
use crate::resource::catalogue::Catalogue;
use crate::resource::definition::{
    ChildDefinition, FieldDefinition, Located, LookupDefinition, Mistake, Place,
    ResourceDefinition, RowDefinition,
};
use crate::resource::resolve::resolve;
use crate::resource::suggest::{SuggestedResource, SuggestedRow};

/// What became of a resource.
pub(super) enum Fitted {
    /// It fits the database.
    InForce {
        /// Why its documents can't be written although they should be.
        read_only: Option<String>,
    },
    /// It does not, or was not in force before.
    Off,
}

/// Takes out of force those parts of `resource` that do not fit the database.
pub(super) fn fit(
    resource: &mut SuggestedResource,
    catalogue: &Catalogue,
    is_writable: bool,
) -> Fitted {
    while resource.off.is_none() {
        let definition = definition(resource, is_writable);
        match resolve(&[definition], catalogue) {
            Ok(resolved) => {
                let resolved: Option<&Resource> = resolved.first();
                let why = resolved.and_then(|resource| resource.writable.as_ref().err());
                return Fitted::InForce {
                    read_only: why.filter(|_| is_writable).cloned(),
                };
            }
            Err(mistakes) => {
                for mistake in mistakes {
                    take_out(resource, &mistake);
                }
            }
        }
    }
    Fitted::Off
}

/// Takes out of force the part that a mistake is in. Its place is a path of letters and numbers.
fn take_out(resource: &mut SuggestedResource, mistake: &Mistake) {
    let mut row = &mut resource.row;
    let mut off = &mut resource.off;
    for step in mistake.place.key.split('.').skip(1) {
        let (kind, number) = step.split_at(1);
        let Ok(number) = number.parse::<usize>() else {
            break;
        };
        if kind == "c" {
            let Some(child) = row.children.get_mut(number) else {
                break;
            };
            (row, off) = (&mut child.row, &mut child.off);
        } else {
            let Some(lookup) = row.lookups.get_mut(number) else {
                break;
            };
            (row, off) = (&mut lookup.row, &mut lookup.off);
        }
    }
    off.get_or_insert_with(|| format!("larder refuses it: {}", mistake.message));
}

/// The definition of what is in force.
fn definition(resource: &SuggestedResource, is_writable: bool) -> ResourceDefinition {
    let at = Maker {
        path: "r".to_owned(),
    };
    let nobody = (!is_writable).then(|| at.located(Vec::new()));
    let name = at.located(resource.name.clone());
    let table = at.located(resource.row.table.written());
    ResourceDefinition {
        key: resource.key.clone().map(|key| at.located(key)),
        write: nobody,
        ..ResourceDefinition::new(name, table, at.row(&resource.row))
    }
}

/// Makes definitions whose places are those of the suggestion.
struct Maker {
    path: String,
}

impl Maker {
    fn below(&self, kind: char, number: usize) -> Self {
        Self {
            path: format!("{}.{kind}{number}", self.path),
        }
    }

    fn located<T>(&self, value: T) -> Located<T> {
        let place = Place {
            origin: Arc::from(""),
            line: 0,
            key: self.path.clone(),
        };
        Located { value, place }
    }

    fn row(&self, row: &SuggestedRow) -> RowDefinition {
        let fields = row.fields.iter().map(|column| FieldDefinition {
            column: self.located(column.clone()),
            name: self.located(column.clone()),
        });
        let children = row.children.iter().enumerate();
        let children = children.filter(|(_, child)| child.off.is_none());
        let lookups = row.lookups.iter().enumerate();
        let lookups = lookups.filter(|(_, lookup)| lookup.off.is_none());
        RowDefinition {
            condition: None,
            fields: Some(fields.collect()),
            children: children
                .map(|(number, child)| {
                    let at = self.below('c', number);
                    ChildDefinition {
                        name: at.located(child.name.clone()),
                        table: at.located(child.row.table.written()),
                        foreign_key: Some(at.located(child.foreign_key.clone())),
                        order_by: child.order_by.clone().map(|columns| at.located(columns)),
                        row: at.row(&child.row),
                    }
                })
                .collect(),
            lookups: lookups
                .map(|(number, lookup)| {
                    let at = self.below('l', number);
                    LookupDefinition {
                        name: at.located(lookup.name.clone()),
                        table: at.located(lookup.row.table.written()),
                        column: at.located(lookup.column.clone()),
                        references: lookup.references.clone().map(|columns| at.located(columns)),
                        owner: None,
                        shared: at.located(false),
                        row: at.row(&lookup.row),
                    }
                })
                .collect(),
        }
    }
}
