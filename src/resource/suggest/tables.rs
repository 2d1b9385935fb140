//! The tables of a database with what links them, each list in an order that does not depend on oids.

use std::collections::HashMap;

use crate::resource::catalogue::{Catalogue, Column, ForeignKey, Table};
use crate::resource::key::key_type;
use crate::resource::sql::identifier;
use crate::resource::suggest::kinds::{
    SECRET_NAME, has_secret, is_of_migrations, is_secret, is_secret_of,
};
use crate::resource::suggest::names::NAME_BYTES_MAX;
use crate::resource::suggest::secret_values::SecretValues;
use crate::resource::suggest::survey::{ColumnStatistics, Survey, SurveyedTable};
use crate::resource::value::ValueType;

/// Survey and catalogue, by oid.
pub(super) struct Tables<'a> {
    survey: &'a Survey,
    surveyed: HashMap<u32, &'a SurveyedTable>,
    /// Those that may be served, alone or in other documents.
    usable: HashMap<u32, &'a Table>,
    /// Of usable tables, each pair of columns and target once.
    foreign_keys: HashMap<u32, Vec<&'a ForeignKey>>,
    /// The foreign keys that reference a usable table, by its oid, with the tables that have them.
    referring: HashMap<u32, Vec<(&'a Table, &'a ForeignKey)>>,
}

impl<'a> Tables<'a> {
    pub(super) fn new(survey: &'a Survey, catalogue: &'a Catalogue) -> Self {
        let by_oid: HashMap<u32, &Table> = catalogue
            .tables
            .values()
            .map(|table| (table.name.oid, table))
            .collect();
        let mut tables = Self {
            survey,
            surveyed: HashMap::new(),
            usable: HashMap::new(),
            foreign_keys: HashMap::new(),
            referring: HashMap::new(),
        };
        for surveyed in &survey.tables {
            let oid = surveyed.name.oid;
            tables.surveyed.insert(oid, surveyed);
            if let Some(table) = by_oid.get(&oid)
                && exclusion(surveyed, Some(table)).is_none()
            {
                tables.usable.insert(oid, table);
            }
        }
        tables.link();
        tables
    }

    fn link(&mut self) {
        for surveyed in &self.survey.tables {
            let Some(table) = self.usable.get(&surveyed.name.oid).copied() else {
                continue;
            };
            let keys = table.foreign_keys.iter();
            let mut keys: Vec<&ForeignKey> = keys.filter(|key| self.can_join(table, key)).collect();
            let place = |key: &ForeignKey| {
                let target = self.surveyed.get(&key.target).map(|target| &target.name);
                let target = target.map(|name| (&name.schema, &name.name));
                (positions(table, &key.columns), target)
            };
            keys.sort_by(|one, other| place(one).cmp(&place(other)));
            keys.dedup_by(|one, other| one.columns == other.columns && one.target == other.target);
            for key in &keys {
                let referring = self.referring.entry(key.target).or_default();
                referring.push((table, key));
            }
            self.foreign_keys.insert(table.name.oid, keys);
        }
    }

    /// Whether rows can be found by a foreign key of `table`.
    fn can_join(&self, table: &Table, key: &ForeignKey) -> bool {
        let Some(target) = self.usable(key.target) else {
            return false;
        };
        let mut columns = key.columns.iter();
        let mut referenced = key.target_columns.iter();
        !columns.any(|column| self.no_column(table, column).is_some())
            && !referenced.any(|column| self.no_column(target, column).is_some())
    }

    /// What the survey says of a table.
    pub(super) fn surveyed(&self, table: &Table) -> Option<&'a SurveyedTable> {
        self.surveyed.get(&table.name.oid).copied()
    }

    /// The table with this oid, if it may be served.
    pub(super) fn usable(&self, oid: u32) -> Option<&'a Table> {
        self.usable.get(&oid).copied()
    }

    /// The foreign keys to usable tables, in the order of their columns.
    pub(super) fn foreign_keys(&self, table: &Table) -> &[&'a ForeignKey] {
        let keys = self.foreign_keys.get(&table.name.oid);
        keys.map_or(&[], Vec::as_slice)
    }

    /// The foreign keys to `table`, in the order of the tables that have them.
    pub(super) fn referring(&self, table: &Table) -> &[(&'a Table, &'a ForeignKey)] {
        let keys = self.referring.get(&table.name.oid);
        keys.map_or(&[], Vec::as_slice)
    }

    /// The columns of the key of documents, and whether they are the primary key.
    ///
    /// # Errors
    /// Why there is none, as the end of a sentence about the table.
    pub(super) fn key(&self, table: &Table) -> Result<(Vec<String>, bool), String> {
        let mut keys: Vec<_> = table.unique_keys.iter().collect();
        keys.sort_by_key(|key| {
            let place = positions(table, &key.columns);
            (!key.primary, key.columns.len(), place)
        });
        let mut refusal = None;
        for key in keys {
            let columns = key.columns.iter().filter_map(|name| table.column(name));
            let columns: Vec<&Column> = columns.collect();
            let refused = columns.iter().find_map(|column| self.no_key(table, column));
            let may_be_key = key.primary || columns.iter().all(|column| column.not_null);
            match refused {
                None if may_be_key => return Ok((key.columns.clone(), key.primary)),
                Some(why) if may_be_key => refusal = refusal.or(Some(why)),
                _ => {}
            }
        }
        Err(refusal.unwrap_or_else(|| {
            "has no primary key, and no other unique key whose columns are not null".to_owned()
        }))
    }

    /// Why a column can't be a part of a key.
    fn no_key(&self, table: &Table, column: &Column) -> Option<String> {
        let name = &column.name;
        if let Some(why) = self.no_column(table, name) {
            return Some(format!("has a key with column {name}, {why}"));
        }
        let why = key_type(column).err()?;
        Some(format!("has a key with column {name}, which {why}"))
    }

    /// Why a column can't be read or named in a configuration, as the end of a sentence about it.
    pub(super) fn no_column(&self, table: &Table, column: &str) -> Option<&'static str> {
        let surveyed = self.surveyed(table);
        let is_unreadable = surveyed.is_some_and(|surveyed| {
            let mut columns = surveyed.unreadable_columns.iter();
            columns.any(|unreadable| unreadable == column)
        });
        if is_unreadable {
            return Some("which larder's role may not read");
        }
        // The database has another encoding.
        (column.len() > NAME_BYTES_MAX).then_some("whose name has more than 63 bytes in UTF-8")
    }

    /// The columns that a generated column is computed from.
    fn sources(&self, table: &Table, column: &str) -> &'a [String] {
        let generated = self.survey.generated.get(&table.name.oid);
        let sources = generated.and_then(|columns| columns.get(column));
        sources.map_or(&[], Vec::as_slice)
    }

    /// Why a column may hold a secret, as the end of a sentence about it: by its name, that of a part of its values, its
    /// values, or by a column which it refers to or is computed from, directly or through others. What refers to a column is
    /// judged by the name of that one, whose value it has.
    pub(super) fn secret(&self, table: &'a Table, column: &str) -> Option<&'static str> {
        let value_of = |table: &'a Table, column: &str| {
            let column = table.column(column);
            column.map_or(&ValueType::Other, |column| &column.value)
        };
        if has_secret(value_of(table, column)) {
            return Some(SECRET_NAME);
        }
        // Foreign keys may go in a circle.
        let mut seen: Vec<(u32, &str)> = Vec::new();
        let mut open = vec![(table, column)];
        while let Some((table, column)) = open.pop() {
            let value = value_of(table, column);
            let mut keys = table.foreign_keys.iter();
            let refers = keys.any(|key| key.columns.iter().any(|own| own == column));
            if !refers
                && (is_secret(column, value) || is_secret_of(&table.name.name, column, value))
            {
                return Some(SECRET_NAME);
            }
            if let Some(values) = self.secret_values(table, column) {
                return Some(values.why());
            }
            for source in self.sources(table, column) {
                let place = (table.name.oid, source.as_str());
                if !seen.contains(&place) {
                    seen.push(place);
                    open.push((table, source.as_str()));
                }
            }
            for key in &table.foreign_keys {
                let pairs = key.columns.iter().zip(&key.target_columns);
                for (_, target) in pairs.filter(|(own, _)| *own == column) {
                    if is_secret(target, value) {
                        return Some(SECRET_NAME);
                    }
                    let place = (key.target, target.as_str());
                    if let Some(table) = self.usable(key.target).filter(|_| !seen.contains(&place))
                    {
                        seen.push(place);
                        open.push((table, target));
                    }
                }
            }
        }
        None
    }

    /// What the values of a column look like. Keys are often digests that are no secrets.
    fn secret_values(&self, table: &Table, column: &str) -> Option<SecretValues> {
        let found = *self
            .survey
            .secret_values
            .get(&table.name.oid)?
            .get(column)?;
        let has = |columns: &[String]| columns.iter().any(|name| name == column);
        let mut keys = table.unique_keys.iter().filter(|key| key.primary);
        let is_key = keys.any(|key| has(&key.columns))
            || table.foreign_keys.iter().any(|key| has(&key.columns));
        Some(found).filter(|found| *found != SecretValues::Digests || !is_key)
    }

    /// The estimated rows.
    pub(super) fn rows(&self, table: &Table) -> f64 {
        self.surveyed(table).map_or(0.0, |surveyed| surveyed.rows)
    }

    fn statistics(&self, table: &Table, column: &str) -> Option<&ColumnStatistics> {
        self.survey.statistics.get(&table.name.oid)?.get(column)
    }

    /// How many rows have the same values of `columns` on average, if statistics say so.
    pub(super) fn mean_rows(&self, table: &Table, columns: &[String]) -> Option<f64> {
        let rows = self.rows(table);
        let groups = columns.iter().filter_map(|column| {
            let known = self.statistics(table, column)?;
            let distinct = if known.distinct < 0.0 {
                -known.distinct * rows
            } else {
                known.distinct
            };
            (distinct > 0.0).then(|| rows * (1.0 - known.nulls) / distinct)
        });
        groups.reduce(f64::min)
    }

    /// How many rows have the values of `columns` that most rows have, if statistics say so.
    pub(super) fn most_rows(&self, table: &Table, columns: &[String]) -> Option<f64> {
        let mean = self.mean_rows(table, columns)?;
        let rows = self.rows(table);
        let common = columns
            .iter()
            .filter_map(|column| Some(rows * self.statistics(table, column)?.most_common));
        Some(common.reduce(f64::min).map_or(mean, |most| most.max(mean)))
    }
}

/// Why a table is neither served nor shown in documents of others, as the end of a sentence about it. `table` is what the
/// catalogue has of it.
pub(super) fn exclusion(surveyed: &SurveyedTable, table: Option<&Table>) -> Option<String> {
    if let Some(extension) = &surveyed.extension {
        return Some(format!("belongs to extension {extension}"));
    }
    if surveyed.name.schema == "larder" {
        return Some("is in schema larder, a name that larder needs for its own tables".to_owned());
    }
    match surveyed.kind {
        'v' => return Some("is a view; the tables that it reads from can be served".to_owned()),
        'm' => {
            let why = "is a materialized view; the tables that it reads from can be served";
            return Some(why.to_owned());
        }
        'f' => return Some("is a foreign table, whose changes can't be seen".to_owned()),
        'x' => return Some("has a name, or a column with one, that is not UTF-8".to_owned()),
        _ => {}
    }
    let name = &surveyed.name;
    let usage = format!("grant usage on schema {}", identifier(&name.schema));
    let select = format!("grant select on {}", name.sql());
    let grants = [(surveyed.is_usable, usage), (surveyed.is_readable, select)];
    let missing = grants.into_iter().filter(|(is_held, _)| !is_held);
    let missing: Vec<String> = missing.map(|(_, grant)| grant).collect();
    if !missing.is_empty() {
        return Some(format!(
            "can't be read by larder's role, which needs: {}",
            missing.join(" and ")
        ));
    }
    match table {
        Some(table) if is_of_migrations(table) => {
            Some("holds the state of a migration tool".to_owned())
        }
        Some(_) => None,
        None => Some("was dropped or renamed meanwhile".to_owned()),
    }
}

/// The places of `columns` in the table.
pub(super) fn positions(table: &Table, columns: &[String]) -> Vec<usize> {
    let position = |name: &String| table.columns.iter().position(|column| column.name == *name);
    columns.iter().filter_map(position).collect()
}
