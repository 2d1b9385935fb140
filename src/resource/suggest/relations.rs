//! Which tables are children of which, and which foreign keys lead to a row that is looked up.

use crate::resource::catalogue::{ForeignKey, Table, is_same_set};
use crate::resource::suggest::kinds::{begins_with_name, exposure, repetition, transience};
use crate::resource::suggest::tables::Tables;

/// Children of more rows on average are offered only.
const CHILD_ROWS_MAX: f64 = 1000.0;
/// Rows of larger tables are offered as lookups only: else every order would show its customer's address.
const LOOKUP_ROWS_MAX: f64 = 1000.0;

/// How a foreign key makes rows of its table belong to the row that it references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Belonging<'a> {
    /// They exist as parts of it.
    Part,
    /// They link it to rows of another table, by this foreign key.
    Link(&'a ForeignKey),
    /// They refer to it, and may have a life of their own.
    Reference,
}

impl<'a> Tables<'a> {
    /// How rows of `table` belong to those of `parent` by `key`; `None`: they are not found by it, or at most one row is.
    pub(super) fn belonging(
        &self,
        table: &Table,
        key: &ForeignKey,
        parent: &Table,
    ) -> Option<Belonging<'a>> {
        if table.is_unique(&key.columns) {
            return None;
        }
        if let Some(other) = self.other_side(table, key) {
            return Some(Belonging::Link(other));
        }
        if table.name.oid != parent.name.oid && is_part(table, key, parent) {
            return Some(Belonging::Part);
        }
        let columns: Vec<&str> = key.columns.iter().map(String::as_str).collect();
        table.is_indexed(&columns).then_some(Belonging::Reference)
    }

    /// The other foreign key of a table that links two tables: it has two, which are unique together.
    fn other_side(&self, table: &Table, key: &ForeignKey) -> Option<&'a ForeignKey> {
        let [one, two] = self.foreign_keys(table) else {
            return None;
        };
        let both: Vec<String> = one.columns.iter().chain(&two.columns).cloned().collect();
        let other = if *one == key { two } else { one };
        let mut keys = table.unique_keys.iter();
        keys.any(|unique| is_same_set(&unique.columns, &both))
            .then_some(*other)
    }

    /// Whether rows of `table` link rows of two tables.
    pub(super) fn is_link(&self, table: &Table) -> bool {
        let keys = self.foreign_keys(table);
        keys.first().is_some_and(|key| {
            let is_single = |key: &&ForeignKey| table.is_unique(&key.columns);
            !keys.iter().any(is_single) && self.other_side(table, key).is_some()
        })
    }

    /// Whether rows of `table` are parts of rows of another table.
    pub(super) fn is_part(&self, table: &Table) -> bool {
        let mut keys = self.foreign_keys(table).iter();
        keys.any(|key| {
            let parent = self.usable(key.target);
            parent.is_some_and(|parent| {
                parent.name.oid != table.name.oid
                    && self.belonging(table, key, parent) == Some(Belonging::Part)
            })
        })
    }

    /// Whether another table references `table`.
    pub(super) fn is_referenced(&self, table: &Table) -> bool {
        let mut referring = self.referring(table).iter();
        referring.any(|(other, _)| other.name.oid != table.name.oid)
    }

    /// Why a child should not be shown unless the user says so.
    pub(super) fn child_doubt(
        &self,
        table: &Table,
        key: &ForeignKey,
        belonging: Belonging<'_>,
    ) -> Option<String> {
        let mean = self.mean_rows(table, &key.columns);
        if let Some(mean) = mean.filter(|mean| *mean > CHILD_ROWS_MAX) {
            return Some(format!("about {mean:.0} rows in each document"));
        }
        if let Some(why) = transience(table) {
            return Some(why.to_owned());
        }
        if let Some(why) = exposure(table) {
            return Some(why);
        }
        let mut primary = table.primary_key().unwrap_or_default().iter();
        let unusable = primary.find_map(|name| Some((name, self.no_column(table, name)?)));
        if let Some((name, why)) = unusable {
            return Some(format!("its rows are sorted by column {name}, {why}"));
        }
        (belonging == Belonging::Reference)
            .then(|| "its rows refer to this one, and may have a life of their own".to_owned())
    }

    /// Why a lookup of rows of `target`, which `table` refers to by `columns`, should not be shown unless the user says so.
    pub(super) fn lookup_doubt(
        &self,
        table: &Table,
        columns: &[String],
        target: &Table,
        keys_per_statement: f64,
    ) -> Option<String> {
        let most = self.most_rows(table, columns);
        if let Some(most) = most.filter(|most| *most > keys_per_statement) {
            return Some(format!(
                "about {most:.0} rows show the same one, and a change of it would empty the resource's tiers"
            ));
        }
        let rows = self.rows(target);
        let is_large = rows > LOOKUP_ROWS_MAX;
        lookup_target_doubt(target)
            .or_else(|| is_large.then(|| format!("{} has about {rows:.0} rows", target.name)))
    }
}

/// Why rows of `target` should not be looked up unless the user says so, whatever leads to them.
pub(super) fn lookup_target_doubt(target: &Table) -> Option<String> {
    let why = transience(target).or_else(|| repetition(target));
    why.map(str::to_owned).or_else(|| exposure(target))
}

/// Whether the primary key begins with the foreign key and has further columns; or the table has a key of its own, its rows
/// are deleted with the parent's and always have one, and its name begins with the parent's. A cascade alone would make
/// every table a child of `tenant`.
fn is_part(table: &Table, key: &ForeignKey, parent: &Table) -> bool {
    let primary = table.primary_key().unwrap_or_default();
    let length = key.columns.len();
    if primary.len() > length {
        let (beginning, _) = primary.split_at(length);
        if is_same_set(beginning, &key.columns) {
            return true;
        }
    }
    let has_own_key = matches!(primary, [column] if !key.columns.contains(column));
    let mut columns = key.columns.iter().filter_map(|name| table.column(name));
    has_own_key
        && key.cascades
        && columns.all(|column| column.not_null)
        && begins_with_name(&table.name.name, &parent.name.name)
}
