//! Checks owners and aliases: columns of the root table, and of the tables that lookups point to.

use crate::resource::catalogue::{Table, is_same_set};
use crate::resource::definition::{Located, LookupDefinition, ResourceDefinition};
use crate::resource::kept::ALIASES_MAX;
use crate::resource::key::{KeyColumn, owner_type};
use crate::resource::resolve::{Resolver, key_shape};
use crate::resource::{Alias, LookupTargets, Owner, Row};

impl Resolver<'_> {
    /// The owner of documents whose root rows are in `table`; `Some(None)` if they have none.
    pub(super) fn owner(
        &mut self,
        table: &Table,
        definition: &ResourceDefinition,
    ) -> Option<Option<Owner>> {
        self.owner_type = None;
        let Some(definition) = &definition.owner else {
            return Some(None);
        };
        let column = self.owner_column(table, &definition.column)?;
        self.owner_type = Some(column.key_type);
        Some(Some(Owner {
            column,
            claim: definition.claim.value.clone(),
            place: definition.column.place.clone(),
        }))
    }

    fn owner_column(&mut self, table: &Table, name: &Located<String>) -> Option<KeyColumn> {
        let Located { value: name, place } = name;
        let column = self.column(table, name, place)?;
        self.check_expressions(table, std::slice::from_ref(name), place);
        match owner_type(column) {
            Ok(key_type) => Some(KeyColumn::new(column, key_type)),
            Err(why) => {
                let why = why.replace("keys are", "owners, as keys, are");
                self.mistake(place, format!("column {name} of {} {why}", table.name));
                None
            }
        }
    }

    /// The rows of `table` that a restricted principal may make a row point to.
    pub(super) fn lookup_targets(
        &mut self,
        table: &Table,
        definition: &LookupDefinition,
    ) -> Option<LookupTargets> {
        let Some(name) = &definition.owner else {
            return Some(if definition.shared.value {
                LookupTargets::Shared
            } else {
                LookupTargets::None
            });
        };
        let column = self.owner_column(table, name)?;
        let mut types = self.owner_type.into_iter();
        if types.any(|owner| !owner.same_text(column.key_type)) {
            let message = format!(
                "column {} of {} and the owner of the resource are of types too different to hold the same owner",
                name.value, table.name
            );
            self.mistake(&name.place, message);
            return None;
        }
        Some(LookupTargets::Own(column))
    }

    /// The aliases of documents whose root rows are in `table`.
    pub(super) fn aliases(
        &mut self,
        table: &Table,
        root: &Row,
        definition: &ResourceDefinition,
    ) -> Option<Vec<Alias>> {
        if let Some(alias) = definition.by.get(ALIASES_MAX) {
            let message = format!("a resource has at most {ALIASES_MAX} aliases");
            self.mistake(&alias.name.place, message);
            return None;
        }
        let mut aliases = Vec::with_capacity(definition.by.len());
        for alias in &definition.by {
            if let Some(columns) = self.alias_columns(table, definition, &alias.columns) {
                aliases.push(Alias {
                    name: alias.name.value.clone(),
                    key: key_shape(columns, root),
                    place: alias.name.place.clone(),
                });
            }
        }
        (aliases.len() == definition.by.len()).then_some(aliases)
    }

    /// Columns that identify a row of the resource `definition`. The value of a row that a partial index lacks may be that
    /// of another row, so it is enough only if it has all rows of the condition.
    fn alias_columns(
        &mut self,
        table: &Table,
        definition: &ResourceDefinition,
        names: &Located<Vec<String>>,
    ) -> Option<Vec<KeyColumn>> {
        let Located {
            value: names,
            place,
        } = names;
        let columns = self.key_columns(table, names, place)?;
        let mistakes = self.mistakes.len();
        let known = names.iter().filter_map(|name| table.column(name));
        for column in known.filter(|column| !column.not_null) {
            let message = format!(
                "column {} of {} may be null: an alias needs columns that are not null",
                column.name, table.name
            );
            self.mistake(place, message);
        }
        if let ('r', [part, ..]) = (table.kind, &*table.descendants) {
            let message = format!(
                "{} inherits from {}, and a unique index is on the rows of one table: an alias needs a table without \
                 inheriting tables; partitions have no such limit",
                part.name, table.name
            );
            self.mistake(place, message);
        }
        let condition = definition.row.condition.as_ref();
        let judged = condition.and_then(|text| self.judged(&definition.table.value, &text.value));
        let partial = match judged {
            Some(Ok(accepted)) => &*accepted.unique_columns,
            _ => &[],
        };
        if !table.is_unique_by(names) && !partial.iter().any(|key| is_same_set(key, names)) {
            let names = names.join(", ");
            let message = format!(
                "{} has no unique index on exactly {names}: create one; if it is partial, the resource's `where` has to imply \
                 its predicate",
                table.name
            );
            self.mistake(place, message);
        }
        (self.mistakes.len() == mistakes).then_some(columns)
    }
}
