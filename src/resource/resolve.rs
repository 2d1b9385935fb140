//! Checks definitions against the catalogue. It reports all mistakes at once, each with its place and what to write
//! instead.

mod access;
mod joins;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::resource::catalogue::{Catalogue, Column, Descendant, Table, TableName};
use crate::resource::condition::{AcceptedCondition, Condition, WrittenCondition};
use crate::resource::definition::{Located, Mistake, Place, ResourceDefinition, RowDefinition};
use crate::resource::document::{DocumentTemplate, Scalar};
use crate::resource::filter::{Filter, FilterColumn};
use crate::resource::kept::KeptColumns;
use crate::resource::key::{KeyColumn, KeyShape, KeyType, key_type};
use crate::resource::query::documents_sql;
use crate::resource::row_security::{RowSecurity, TableRowSecurity};
use crate::resource::suggestion::nearest;
use crate::resource::value::ValueType;
use crate::resource::writable::Writable;
use crate::resource::write::WriteSql;
use crate::resource::{Child, Field, Lookup, Rendering, Resource, Row};

/// Checks `definitions` against `catalogue`.
///
/// # Errors
/// Every mistake that was found, in the order of the file.
pub fn resolve(
    definitions: &[ResourceDefinition],
    catalogue: &Catalogue,
) -> Result<Vec<Resource>, Vec<Mistake>> {
    let mut resolver = Resolver {
        catalogue,
        row_security_accepted: false,
        owner_type: None,
        mistakes: Vec::new(),
    };
    let resources: Vec<Resource> = definitions
        .iter()
        .filter_map(|definition| resolver.resource(definition))
        .collect();
    if resolver.mistakes.is_empty() {
        Ok(resources)
    } else {
        Err(resolver.mistakes)
    }
}

/// The end of a message about an unknown `name`: the most similar of the `known` names, if one is similar.
fn suggestion<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    let nearest = nearest(name, known);
    nearest.map_or_else(String::new, |name| format!("; did you mean {name}?"))
}

struct Resolver<'a> {
    catalogue: &'a Catalogue,
    /// Whether the present resource has `row_security = "as-larder"`.
    row_security_accepted: bool,
    /// The type of the present resource's owner.
    owner_type: Option<KeyType>,
    mistakes: Vec<Mistake>,
}

impl<'a> Resolver<'a> {
    fn mistake(&mut self, place: &Place, message: impl Into<String>) {
        self.mistakes.push(Mistake {
            place: place.clone(),
            message: message.into(),
        });
    }

    fn resource(&mut self, definition: &ResourceDefinition) -> Option<Resource> {
        self.row_security_accepted = definition.row_security_as_larder;
        let table = self.table(&definition.table)?;
        let columns = match &definition.key {
            Some(key) => self.key(table, key),
            None => self.primary_key(table, &definition.table),
        };
        let owner = self.owner(table, definition);
        let root = self.row(
            table,
            &definition.table,
            &definition.row,
            columns.as_deref(),
        );
        let by = root
            .as_ref()
            .and_then(|root| self.aliases(table, root, definition));
        let filters = root
            .as_ref()
            .and_then(|root| self.filters(table, root, definition));
        let (columns, root) = (columns?, root?);
        let key = key_shape(columns, &root);
        let shown = self.shown_tables(&root);
        let secured = shown
            .iter()
            .filter_map(|table| Some((table.name.oid, table.row_security.clone()?)));
        let row_security = RowSecurity::of(secured);
        let name = &definition.name.value;
        let (owner, by) = (owner?, by?);
        let writable = if definition.is_read_only() {
            Err(format!(
                "{name} can't be written: its definition has write = []"
            ))
        } else {
            Writable::new(name, &root, &key.columns, owner.as_ref(), self.catalogue)
        };
        let write_sql = writable.as_ref().ok();
        let names: Vec<&TableName> = shown.iter().map(|table| &table.name).collect();
        let is_secured = row_security.is_some();
        let write_sql = write_sql
            .map(|writable| WriteSql::new(writable, &key, owner.as_ref(), &names, is_secured));
        let kept = KeptColumns::new(owner.as_ref(), &by);
        Some(Resource {
            name: definition.name.value.clone(),
            place: definition.name.place.clone(),
            tiers: definition.tiers,
            uncached: shown.iter().find_map(|table| table.uncached.clone()),
            fingerprint: None,
            type_tables: self.type_tables(&root),
            documents_sql: documents_sql(&key, &root, &kept, None),
            checked_sql: row_security
                .as_ref()
                .map(|row_security| documents_sql(&key, &root, &kept, Some(row_security))),
            row_security,
            filters: filters?,
            template: DocumentTemplate::new(&root, &kept),
            writable,
            write_sql,
            owner,
            by,
            key,
            root,
        })
    }

    /// The tables of extensions that the columns which a document with this root shows may depend on.
    fn type_tables(&self, root: &Row) -> Vec<TableName> {
        let mut tables = BTreeMap::new();
        for row in root.with_rows_below() {
            let columns = self.catalogue.table(&row.table).map(|table| &table.columns);
            let is_shown = |name: &str| row.fields.iter().any(|field| field.column == name);
            let shown = columns.into_iter().flatten();
            let shown = shown.filter(|column| is_shown(&column.name));
            tables.extend(shown.flat_map(|column| {
                column
                    .type_tables
                    .iter()
                    .map(|table| (table.oid, table.clone()))
            }));
        }
        tables.into_values().collect()
    }

    /// The tables of the catalogue that a document with this root shows, root first.
    fn shown_tables(&self, root: &Row) -> Vec<&'a Table> {
        let rows = root.with_rows_below().into_iter();
        rows.filter_map(|row| self.catalogue.table(&row.table))
            .collect()
    }

    /// The table of this name. Adds a mistake if there is no such table, or if larder can't follow its changes.
    fn table(&mut self, written: &Located<String>) -> Option<&'a Table> {
        let catalogue = self.catalogue;
        let Some(table) = catalogue.tables.get(&written.value) else {
            let known = catalogue.known_names.iter().map(String::as_str);
            let bare = known
                .clone()
                .filter_map(|name| name.split_once('.').map(|(_, bare)| bare));
            let same = known.clone().find(|name| {
                let of_schema = name.split_once('.');
                of_schema.is_some_and(|(_, bare)| bare == written.value)
            });
            let hint = match same {
                Some(name) => format!("; did you mean {name}?"),
                None => suggestion(&written.value, known.chain(bare)),
            };
            self.mistake(
                &written.place,
                format!("there is no table {}{hint}", written.value),
            );
            return None;
        };
        let refusal = match table.kind {
            'v' | 'm' => Some("is a view; name the tables it reads from"),
            'f' => Some("is a foreign table, whose changes can't be seen"),
            'r' | 'p' => None,
            _ => Some("is not a table"),
        };
        if let Some(refusal) = refusal {
            self.mistake(&written.place, format!("{} {refusal}", table.name));
            return None;
        }
        if let Some(part) = table.descendants.iter().find(|part| !is_plain(part)) {
            let message = format!(
                "its part {} is a foreign table, whose changes can't be seen",
                part.name
            );
            self.mistake(&written.place, message);
        }
        let row_security = table.row_security.as_ref();
        if row_security.is_some_and(TableRowSecurity::is_active) && !self.row_security_accepted {
            let message = format!(
                "{} has row security, and every reader would see what larder's role sees; \
                 if that is meant, say row_security = \"as-larder\" in the resource",
                table.name
            );
            self.mistake(&written.place, message);
        }
        Some(table)
    }

    fn key(&mut self, table: &Table, key: &Located<Vec<String>>) -> Option<Vec<KeyColumn>> {
        let columns = self.key_columns(table, &key.value, &key.place)?;
        if !table.is_unique(&key.value) {
            let message = format!(
                "{} is not unique in {}: create a unique index on it, or name columns that have one",
                key.value.join(", "),
                table.name
            );
            self.mistake(&key.place, message);
        }
        Some(columns)
    }

    fn primary_key(&mut self, table: &Table, written: &Located<String>) -> Option<Vec<KeyColumn>> {
        let Some(columns) = table.primary_key() else {
            let message = format!(
                "{} has no primary key: name its unique columns with key = …",
                table.name
            );
            self.mistake(&written.place, message);
            return None;
        };
        self.key_columns(table, columns, &written.place)
    }

    /// The fields of the root row that lists can be filtered by.
    fn filters(
        &mut self,
        table: &Table,
        root: &Row,
        definition: &ResourceDefinition,
    ) -> Option<Vec<Filter>> {
        let mistakes = self.mistakes.len();
        let mut filters = Vec::with_capacity(definition.filters.len());
        for Located { value: name, place } in &definition.filters {
            let fields = &root.fields;
            let Some(field) = fields.iter().find(|field| field.name == *name) else {
                let hint = suggestion(name, fields.iter().map(|field| field.name.as_str()));
                self.mistake(place, format!("the document has no field {name}{hint}"));
                continue;
            };
            let Some(column) = self.column(table, &field.column, place) else {
                continue;
            };
            match FilterColumn::new(column) {
                Ok(column) => filters.push(Filter {
                    name: name.clone(),
                    column,
                    place: place.clone(),
                }),
                Err(why) => {
                    let message = format!("column {} of {} {why}", field.column, table.name);
                    self.mistake(place, message);
                }
            }
        }
        (self.mistakes.len() == mistakes).then_some(filters)
    }

    /// The columns of these names as key columns.
    fn key_columns(
        &mut self,
        table: &Table,
        names: &[String],
        place: &Place,
    ) -> Option<Vec<KeyColumn>> {
        let mut columns = Vec::with_capacity(names.len());
        for name in names {
            if let Some(column) = self.column(table, name, place) {
                match key_type(column) {
                    Ok(key_type) => columns.push(KeyColumn::new(column, key_type)),
                    Err(why) => {
                        self.mistake(place, format!("column {name} of {} {why}", table.name))
                    }
                }
            }
        }
        (columns.len() == names.len()).then_some(columns)
    }

    fn column<'t>(&mut self, table: &'t Table, name: &str, place: &Place) -> Option<&'t Column> {
        let column = table.column(name);
        if column.is_none() {
            let known = table.columns.iter().map(|column| column.name.as_str());
            let hint = suggestion(name, known);
            self.mistake(
                place,
                format!("there is no column {name} in {}{hint}", table.name),
            );
        }
        column
    }

    /// Resolves a row of `table`, whose name in the file is `written`. `key` has the columns that children without a
    /// foreign key in the catalogue refer to: the resource's key for a root, else the primary key.
    fn row(
        &mut self,
        table: &Table,
        written: &Located<String>,
        definition: &RowDefinition,
        key: Option<&[KeyColumn]>,
    ) -> Option<Row> {
        let mistakes = self.mistakes.len();
        let condition = self.condition(table, &written.value, definition);
        let fields = self.fields(table, &written.place, definition);
        let children: Vec<Child> = definition
            .children
            .iter()
            .filter_map(|child| self.child(table, child, key))
            .collect();
        let lookups: Vec<Lookup> = definition
            .lookups
            .iter()
            .filter_map(|lookup| self.lookup(table, lookup))
            .collect();
        self.check_names(&fields, definition);
        (self.mistakes.len() == mistakes).then(|| Row {
            table: table.name.clone(),
            place: written.place.clone(),
            condition,
            fields,
            children,
            lookups,
        })
    }

    /// The condition on the rows of `table`, whose name in the file is `written`.
    fn condition(
        &mut self,
        table: &Table,
        written: &str,
        definition: &RowDefinition,
    ) -> Option<Condition> {
        let condition = definition.condition.as_ref()?;
        match self.judged(written, &condition.value) {
            Some(Ok(accepted)) => {
                self.check_expressions(table, &accepted.condition.columns(), &condition.place);
                return Some(accepted.condition.clone());
            }
            Some(Err(why)) => self.mistake(&condition.place, why),
            None => {
                let message = format!("the condition on {} was not checked", table.name);
                self.mistake(&condition.place, message);
            }
        }
        None
    }

    /// What PostgreSQL has said of the condition `text` on the table whose name in the file is `written`.
    fn judged(&self, written: &str, text: &str) -> Option<&'a Result<AcceptedCondition, String>> {
        let known = WrittenCondition {
            table: written.to_owned(),
            text: text.to_owned(),
        };
        self.catalogue.conditions.get(&known)
    }

    /// Resolves the fields of a row. `place` is the place of the table, for mistakes in columns that the file does not
    /// name.
    fn fields(&mut self, table: &Table, place: &Place, definition: &RowDefinition) -> Vec<Field> {
        let field = |column: &Column, name: &str| Field {
            column: column.name.clone(),
            name: name.to_owned(),
            rendering: rendering(column),
            value: column.value.clone(),
            type_text: column.type_text.clone(),
            nullable: !column.not_null,
        };
        let Some(written) = &definition.fields else {
            for column in &table.columns {
                self.check_dependence(table, column, place);
            }
            return table
                .columns
                .iter()
                .map(|column| field(column, &column.name))
                .collect();
        };
        let mut fields = Vec::with_capacity(written.len());
        for entry in written {
            if let Some(column) = self.column(table, &entry.column.value, &entry.column.place) {
                self.check_dependence(table, column, &entry.column.place);
                fields.push(field(column, &entry.name.value));
            }
        }
        fields
    }

    /// Adds a mistake if the JSON of a column may change without a change of its row.
    fn check_dependence(&mut self, table: &Table, column: &Column, place: &Place) {
        if let Some(why) = &column.dependent {
            let message = format!(
                "{} has a column {}, {why}; leave it out by fields = …",
                table.name, column.name
            );
            self.mistake(place, message);
        }
    }

    /// Adds a mistake if one of the columns `names`, shown or not, is virtual and may change without its row.
    fn check_expressions<N: AsRef<str>>(&mut self, table: &Table, names: &[N], place: &Place) {
        if let Some(why) = table.dependent_expression(names) {
            self.mistake(place, format!("depends on {why}"));
        }
    }

    /// Adds a mistake for each child or lookup that has the name of a field.
    fn check_names(&mut self, fields: &[Field], definition: &RowDefinition) {
        let children = definition.children.iter().map(|child| &child.name);
        let lookups = definition.lookups.iter().map(|lookup| &lookup.name);
        let repeated: Vec<&Located<String>> = children
            .chain(lookups)
            .filter(|name| fields.iter().any(|field| field.name == name.value))
            .collect();
        for name in repeated {
            let message = format!(
                "a field of this row is called {} already: choose another name, or rename the column with fields = …",
                name.value
            );
            self.mistake(&name.place, message);
        }
    }
}

/// A key of these columns, with the fields of `root` that show them.
fn key_shape(columns: Vec<KeyColumn>, root: &Row) -> KeyShape {
    let shown = |column: &KeyColumn| {
        let field = root.fields.iter().find(|field| field.column == column.name);
        field.map(|field| field.name.clone())
    };
    KeyShape {
        fields: columns.iter().map(shown).collect(),
        columns,
    }
}

fn is_plain(part: &Descendant) -> bool {
    matches!(part.kind, 'r' | 'p')
}

pub(super) fn rendering(column: &Column) -> Rendering {
    let scalar = Scalar::named(&column.base_type).filter(|_| column.built_in);
    match (scalar, &column.value) {
        (Some(scalar), _) => Rendering::Scalar {
            scalar,
            type_oid: column.type_oid,
        },
        (None, ValueType::Bytea) => Rendering::Bytea,
        (None, value) if value.has_own_form() => Rendering::Nested(Arc::new(value.clone())),
        (None, _) => Rendering::Json,
    }
}
