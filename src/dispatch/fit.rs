//! Whether a dispatch fits the database: its table, columns and indexes.

use std::sync::Arc;

use sqlx::Connection;
use sqlx::postgres::PgConnection;

use crate::dispatch::definition::{Delivery, DispatchDefinition, IntervalFrom};
use crate::dispatch::{DispatchError, DispatchSetup};
use crate::feed::inspect::read_resources;
use crate::resource::Resource;
use crate::resource::catalogue::{Catalogue, Table};
use crate::resource::definition::{Located, Mistake, ResourceDefinition, RowDefinition};
use crate::resource::due::{DueRows, DueType, Reschedule};
use crate::resource::key::{KeyColumn, key_type};
use crate::resource::sql::{identifier, literal};
use crate::resource::suggestion::nearest;
use crate::source::rights::{Right, read_rights};
use crate::source::session::READ_ONLY;

/// Reads what the rows of a dispatch are.
///
/// # Errors
/// [`DispatchError::Unfit`]; PostgreSQL can't be reached or refuses a statement.
pub(super) async fn read_rows(
    connection: &mut PgConnection,
    setup: &DispatchSetup,
) -> Result<DueRows, DispatchError> {
    let definition = &setup.definition;
    let mut definitions = setup.resources.clone();
    let place = match &definition.resource {
        Some(name) => (definitions.iter()).position(|resource| resource.name.value == name.value),
        None => None,
    };
    let own = place.unwrap_or(definitions.len());
    if place.is_none() {
        definitions.extend(resource_of(definition));
    }
    let mut transaction = connection.begin_with(READ_ONLY).await?;
    let read = read_resources(&mut transaction, &definitions, &setup.feed).await;
    let encoding: String = sqlx::query_scalar("select getdatabaseencoding()::text")
        .fetch_one(&mut *transaction)
        .await?;
    transaction.rollback().await?;
    if encoding == "SQL_ASCII" {
        let message =
            "the database's encoding is SQL_ASCII: a text that is not UTF-8 could not be sent";
        return Err(unfit(definition, "name", message));
    }
    let (mut checked, catalogue) = read?;
    let table = definitions.get(own).map(|own| own.table.value.as_str());
    let table = table.and_then(|table| catalogue.tables.get(table));
    if let Some(table) = table.filter(|table| table.row_security.is_some()) {
        let message = format!(
            "{} has row security: a role that may not see a row would never send it",
            table.name
        );
        return Err(unfit(definition, "table", message));
    }
    if own >= checked.len() {
        return Err(unfit(
            definition,
            "resource",
            "there is no [[resource]] of this name",
        ));
    }
    let resource = checked.swap_remove(own).map_err(DispatchError::Unfit)?;
    let Some(table) = table else {
        return Err(unfit(definition, "table", "there is no such table"));
    };
    let mut fit = Fit {
        definition,
        table,
        mistakes: Vec::new(),
    };
    let readers: Vec<&Resource> = checked.iter().flatten().map(Arc::as_ref).collect();
    let is_read = place.is_some() || fit.is_read_by(&readers, &catalogue);
    fit.check_batch(is_read, setup.feed.keys_per_statement);
    let rows = fit.rows(resource);
    let rows = rows.ok_or(DispatchError::Unfit(fit.mistakes))?;
    Ok(DueRows {
        is_utf8: encoding == "UTF8",
        ..rows
    })
}

/// Returns what larder's role needs of the tables that `rows` are of.
pub(super) fn table_rights(rows: &DueRows) -> Vec<Right> {
    let table = &rows.resource.root.table;
    let mut privileges = vec![format!("update ({})", identifier(&rows.due))];
    let mut held = vec![format!(
        "(has_table_privilege(asked.role, {oid}::oid, 'update') or has_column_privilege(asked.role, {oid}::oid, {due}, 'update'))",
        oid = table.oid,
        due = literal(&rows.due)
    )];
    if rows.reschedule == Reschedule::Delete {
        privileges.push("delete".to_owned());
        held.push(format!(
            "has_table_privilege(asked.role, {}::oid, 'delete')",
            table.oid
        ));
    }
    let mut rights = read_rights(&[&rows.resource]);
    rights.push(Right {
        object: table.to_string(),
        privilege: format!("{} on {}", privileges.join(", "), table.sql()),
        is_held_sql: held.join(" and "),
    });
    rights
}

fn unfit(definition: &DispatchDefinition, key: &str, message: impl Into<String>) -> DispatchError {
    DispatchError::Unfit(vec![definition.mistake(key, message)])
}

/// Returns the rows of a table as documents with all columns, which are read only.
fn resource_of(definition: &DispatchDefinition) -> Option<ResourceDefinition> {
    let row = RowDefinition {
        condition: None,
        fields: None,
        children: Vec::new(),
        lookups: Vec::new(),
    };
    let table = definition.table.clone()?;
    let mut resource = ResourceDefinition::new(definition.name.clone(), table, row);
    resource.key.clone_from(&definition.key);
    resource.write = Some(Located {
        value: Vec::new(),
        place: definition.place.clone(),
    });
    Some(resource)
}

/// A definition beside its table.
struct Fit<'d> {
    definition: &'d DispatchDefinition,
    table: &'d Table,
    mistakes: Vec<Mistake>,
}

impl Fit<'_> {
    fn refuse(&mut self, key: &str, message: impl Into<String>) {
        self.mistakes.push(self.definition.mistake(key, message));
    }

    /// Returns whether documents of one of `resources` show the table, or a table above or below it.
    fn is_read_by(&self, resources: &[&Resource], catalogue: &Catalogue) -> bool {
        let mut shown = resources.iter().flat_map(|resource| resource.tables());
        shown.any(|shown| {
            let is_below =
                |table: &Table, oid| table.descendants.iter().any(|below| below.name.oid == oid);
            let above = catalogue.table(shown);
            shown.oid == self.table.name.oid
                || is_below(self.table, shown.oid)
                || above.is_some_and(|above| is_below(above, self.table.name.oid))
        })
    }

    fn check_batch(&mut self, is_read: bool, keys_per_statement: u32) {
        let batch = self.definition.batch;
        if is_read && batch > keys_per_statement as usize {
            let message = format!(
                "must be at most feed.keys_per_statement ({keys_per_statement}), since documents show the table: a statement \
                 that reschedules more rows would invalidate ranges of them"
            );
            self.refuse("batch", message);
        }
    }

    /// Makes the rows; `None` if there are mistakes.
    fn rows(&mut self, resource: Arc<Resource>) -> Option<DueRows> {
        let due_type = self.due_type();
        let partition = self.partition();
        let due = &self.definition.due.value;
        let is_due = |column: &KeyColumn| column.name == *due;
        if resource.key.columns.iter().chain(&partition).any(is_due) {
            let message =
                format!("column {due} changes, so it can't be part of the key or of the partition");
            self.refuse("due", message);
        }
        if resource.row_security.is_some() {
            self.refuse("resource", "shows a table with row security");
        }
        if !self.mistakes.is_empty() {
            return None;
        }
        let names: Vec<&str> = partition
            .iter()
            .map(|column| column.name.as_str())
            .collect();
        let slot_index = self
            .table
            .indexes
            .iter()
            .find(|index| begins_with(index, &names));
        let is_due_indexed = (self.table.indexes.iter())
            .any(|index| begins_with(index, &names) && index.get(names.len()) == Some(due));
        Some(DueRows {
            dispatch: self.definition.name.value.clone(),
            due: due.clone(),
            due_type: due_type?,
            slot_order: slot_index
                .and_then(|index| index.get(..names.len()))
                .map(<[String]>::to_vec),
            is_due_indexed,
            partition,
            reschedule: reschedule(self.definition),
            tells_moments: self.definition.delivery == Delivery::AtMostOnce,
            is_utf8: false,
            resource,
        })
    }

    fn due_type(&mut self) -> Option<DueType> {
        let name = &self.definition.due.value;
        let Some(column) = self.table.column(name) else {
            self.refuse_column("due", name);
            return None;
        };
        if column.generated || column.is_virtual {
            self.refuse(
                "due",
                format!("column {name} is generated: it can't be set"),
            );
        }
        match column.base_type.as_str() {
            "timestamptz" if column.built_in => Some(DueType::Timestamp),
            "int4" | "int8" if column.built_in => Some(DueType::Seconds),
            _ => {
                let message = format!(
                    "column {name} is of type {}; a due moment is a timestamptz, or an integer of seconds since 1970",
                    column.type_text
                );
                self.refuse("due", message);
                None
            }
        }
    }

    fn partition(&mut self) -> Vec<KeyColumn> {
        let names = self.definition.partition.iter();
        let names: Vec<&String> = names.flat_map(|names| &names.value).collect();
        let mut columns = Vec::with_capacity(names.len());
        for name in names {
            let Some(column) = self.table.column(name) else {
                self.refuse_column("partition", name);
                continue;
            };
            if !column.not_null {
                self.refuse(
                    "partition",
                    format!("column {name} may be null: such a row is in no slot"),
                );
            }
            match key_type(column) {
                Ok(key_type) => columns.push(KeyColumn::new(column, key_type)),
                Err(why) => self.refuse("partition", format!("column {name} {why}")),
            }
        }
        columns
    }

    fn refuse_column(&mut self, key: &str, name: &str) {
        let columns = self.table.columns.iter().map(|column| column.name.as_str());
        let near = nearest(name, columns);
        let near = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
        self.refuse(
            key,
            format!("{} has no column {name}{near}", self.table.name),
        );
    }
}

/// Returns whether the index `columns` begins with `names`, in any order.
fn begins_with(columns: &[String], names: &[&str]) -> bool {
    let first = columns.get(..names.len());
    first.is_some_and(|first| {
        names
            .iter()
            .all(|name| first.iter().any(|column| column == name))
    })
}

fn reschedule(definition: &DispatchDefinition) -> Reschedule {
    match (
        definition.interval,
        &definition.next,
        definition.interval_from,
    ) {
        (Some(interval), _, IntervalFrom::Now) => Reschedule::AfterNow(interval),
        (Some(interval), _, IntervalFrom::Due) => Reschedule::AfterDue(interval),
        (None, Some(next), _) => Reschedule::Next(next.value.clone()),
        (None, None, _) => Reschedule::Delete,
    }
}
