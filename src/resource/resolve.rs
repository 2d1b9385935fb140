//! Definitions checked against the catalogue: all mistakes at once, each with its place and what to write instead.

use crate::resource::catalogue::{Catalogue, Column, Descendant, Table};
use crate::resource::definition::{
    ChildDefinition, Located, LookupDefinition, Mistake, Place, ResourceDefinition, RowDefinition,
};
use crate::resource::key::{KeyColumn, KeyShape, key_type};
use crate::resource::{Child, Field, Lookup, Pair, Rendering, Resource, Row};

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

/// The nearest of `known` to a mistyped `name`, ready for the end of a message.
pub fn suggestion<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    known
        .into_iter()
        .map(|candidate| {
            let distance =
                strsim::damerau_levenshtein(&name.to_lowercase(), &candidate.to_lowercase());
            (distance, candidate)
        })
        .filter(|(distance, candidate)| *distance <= 2.max(candidate.len() / 3))
        .min()
        .map(|(_, candidate)| format!("; did you mean {candidate}?"))
        .unwrap_or_default()
}

struct Resolver<'a> {
    catalogue: &'a Catalogue,
    /// Of the resource at hand.
    row_security_accepted: bool,
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
        let root = self.row(table, &definition.row, columns.as_deref());
        Some(Resource {
            name: definition.name.value.clone(),
            place: definition.name.place.clone(),
            tiers: definition.tiers,
            key: KeyShape { columns: columns? },
            root: root?,
        })
    }

    /// The table of this name, if larder can follow its changes.
    fn table(&mut self, written: &Located<String>) -> Option<&'a Table> {
        let catalogue = self.catalogue;
        let Some(table) = catalogue.tables.get(&written.value) else {
            let known = catalogue.known_names.iter().map(String::as_str);
            let bare = known
                .clone()
                .filter_map(|name| name.split_once('.').map(|(_, bare)| bare));
            let hint = suggestion(&written.value, known.chain(bare));
            self.mistake(
                &written.place,
                format!("there is no table {}{hint}", written.value),
            );
            return None;
        };
        let refusal = match table.kind {
            'v' | 'm' => Some("is a view; name the tables it reads from"),
            'f' => Some("is a foreign table, whose changes can't be seen"),
            'r' | 'p' if table.subscribed => {
                Some("is the target of a subscription, whose changes fire no statement triggers")
            }
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
        if table.row_security && !self.row_security_accepted {
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
                    Ok(key_type) => columns.push(KeyColumn {
                        name: name.clone(),
                        key_type,
                        type_text: column.type_text.clone(),
                    }),
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

    /// `key` is what children without a foreign key in the catalogue hold: a root's key, else the primary key.
    fn row(
        &mut self,
        table: &Table,
        definition: &RowDefinition,
        key: Option<&[KeyColumn]>,
    ) -> Option<Row> {
        let mistakes = self.mistakes.len();
        let fields = self.fields(table, definition);
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
            fields,
            children,
            lookups,
        })
    }

    fn fields(&mut self, table: &Table, definition: &RowDefinition) -> Vec<Field> {
        let field = |column: &Column, name: &str| Field {
            column: column.name.clone(),
            name: name.to_owned(),
            rendering: rendering(column),
        };
        let Some(written) = &definition.fields else {
            return table
                .columns
                .iter()
                .map(|column| field(column, &column.name))
                .collect();
        };
        let mut fields = Vec::with_capacity(written.len());
        for entry in written {
            if let Some(column) = self.column(table, &entry.column.value, &entry.column.place) {
                fields.push(field(column, &entry.name.value));
            }
        }
        fields
    }

    /// A child or lookup may bear the name of a column only where `fields` leaves that column out.
    fn check_names(&mut self, fields: &[Field], definition: &RowDefinition) {
        let children = definition.children.iter().map(|child| &child.name);
        let lookups = definition.lookups.iter().map(|lookup| &lookup.name);
        let taken: Vec<&Located<String>> = children
            .chain(lookups)
            .filter(|name| fields.iter().any(|field| field.name == name.value))
            .collect();
        for name in taken {
            let message = format!(
                "a field of this row is called {} already: choose another name, or rename the column with fields = …",
                name.value
            );
            self.mistake(&name.place, message);
        }
    }

    fn child(
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
            // Children below may have foreign keys of their own; only those without one need this key to be usable.
            let columns: Vec<KeyColumn> = names
                .iter()
                .filter_map(|name| {
                    let column = table.column(name)?;
                    let key_type = key_type(column).ok()?;
                    Some(KeyColumn {
                        name: name.clone(),
                        key_type,
                        type_text: column.type_text.clone(),
                    })
                })
                .collect();
            (columns.len() == names.len()).then_some(columns)
        });
        let row = self.row(table, &definition.row, own_key.as_deref());
        Some(Child {
            name: definition.name.value.clone(),
            on: on?,
            order_by: order_by?,
            row: row?,
        })
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
        let mut candidates = table
            .foreign_keys
            .iter()
            .filter(|key| key.target == parent.name.oid);
        match (candidates.next(), candidates.next()) {
            (Some(key), None) => {
                let own = self.key_columns(table, &key.columns, &written.place);
                let upper = self.key_columns(parent, &key.target_columns, &written.place);
                self.pairs(own?, upper?, &written.place)
            }
            (None, _) => {
                let message = format!(
                    "{} has no foreign key to {}: name the columns that hold its key with foreign_key = …",
                    table.name, parent.name
                );
                self.mistake(&written.place, message);
                None
            }
            (Some(first), Some(second)) => {
                let message = format!(
                    "{} has several foreign keys to {} ({}; {}; …): choose one with foreign_key = …",
                    table.name,
                    parent.name,
                    first.columns.join(", "),
                    second.columns.join(", ")
                );
                self.mistake(&written.place, message);
                None
            }
        }
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
        for pair in &pairs {
            if !pair.own.key_type.same_text(pair.upper.key_type) {
                let message = format!(
                    "columns {} and {} are of types too different to hold the same key",
                    pair.own.name, pair.upper.name
                );
                self.mistake(place, message);
                return None;
            }
        }
        Some(pairs)
    }

    /// `order_by`, made total by the primary key, so that equal rows always come in one order.
    fn order(&mut self, table: &Table, definition: &ChildDefinition) -> Option<Vec<String>> {
        let primary = table.primary_key().unwrap_or_default();
        let Some(written) = &definition.order_by else {
            if primary.is_empty() {
                let message = format!(
                    "{} has no primary key: say how to sort it with order_by = …",
                    table.name
                );
                self.mistake(&definition.table.place, message);
                return None;
            }
            return Some(primary.to_vec());
        };
        let mut order = Vec::new();
        for name in &written.value {
            self.column(table, name, &written.place)?;
            order.push(name.clone());
        }
        order.extend(
            primary
                .iter()
                .filter(|name| !written.value.contains(name))
                .cloned(),
        );
        Some(order)
    }

    fn lookup(&mut self, pointing: &Table, definition: &LookupDefinition) -> Option<Lookup> {
        let table = self.table(&definition.table)?;
        let place = &definition.column.place;
        let upper = self.key_columns(pointing, &definition.column.value, place);
        let declared = pointing.foreign_keys.iter().find(|key| {
            key.target == table.name.oid
                && key.columns.len() == definition.column.value.len()
                && key
                    .columns
                    .iter()
                    .all(|name| definition.column.value.contains(name))
        });
        let targets: Option<Vec<String>> = match declared {
            Some(key) => definition
                .column
                .value
                .iter()
                .map(|name| {
                    let position = key.columns.iter().position(|column| column == name)?;
                    Some(key.target_columns[position].clone())
                })
                .collect(),
            None => table.primary_key().map(<[String]>::to_vec),
        };
        let Some(targets) = targets else {
            let message = format!("{} has no primary key to look up by", table.name);
            self.mistake(&definition.table.place, message);
            return None;
        };
        let own = self.key_columns(table, &targets, &definition.table.place);
        let row = self.row(table, &definition.row, None);
        Some(Lookup {
            name: definition.name.value.clone(),
            on: self.pairs(own?, upper?, place)?,
            row: row?,
        })
    }
}

fn is_plain(part: &Descendant) -> bool {
    matches!(part.kind, 'r' | 'p')
}

fn rendering(column: &Column) -> Rendering {
    let element = column.element_type.as_deref();
    match (column.base_type.as_str(), element) {
        // The array type of a domain is the user's own, whatever its elements are.
        (_, Some("timestamp")) => Rendering::TimestampArray,
        (_, Some("bytea")) => Rendering::ByteaArray,
        _ if !column.built_in => Rendering::Json,
        ("timestamp", _) => Rendering::Timestamp,
        ("bytea", _) => Rendering::Bytea,
        _ => Rendering::Json,
    }
}
