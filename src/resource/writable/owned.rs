//! What a restricted principal may write: documents with its own claim, whose rows point to rows that it may point to.

use crate::resource::catalogue::{Table, TableName};
use crate::resource::condition::Condition;
use crate::resource::key::{KeyColumn, KeyType};
use crate::resource::value::ValueType;
use crate::resource::writable::{ColumnInput, Level, Levels, Rows, Writable};
use crate::resource::{Lookup, LookupTargets, Owner, Row};

/// The column of the root's rows that holds the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerColumn {
    /// A place in the root's [`Level::columns`].
    pub column: usize,
    /// Its type.
    pub key_type: KeyType,
}

/// A lookup of a level that may not point to every row.
#[derive(Clone, Debug)]
pub struct Pointer {
    /// The columns that hold the key of the looked-up row, as places in [`Level::columns`].
    pub columns: Vec<usize>,
    /// Those of them whose values the client chooses.
    pub chosen: Vec<usize>,
    /// The looked-up table.
    pub table: TableName,
    /// Its columns, one for each of `columns`.
    pub target: Vec<KeyColumn>,
    /// What is true for the rows of that table that exist for larder.
    pub condition: Option<Condition>,
    /// The column of that table that must have the claim; `None`: no row may be pointed to.
    pub owner: Option<KeyColumn>,
}

impl Writable {
    /// Whether PostgreSQL computes the owner from other columns, so that no body names it.
    pub fn has_generated_owner(&self) -> bool {
        let column = self.owner_column().map(|(_, column)| column);
        column.is_some_and(|column| !self.levels[0].columns[column].is_inserted())
    }

    /// The number of the first document of `rows` whose owner is not `claim`, counted from 0. The owner of a generated
    /// column is known only once it is stored.
    pub fn foreign_document(&self, rows: &Rows, claim: Option<&str>) -> Option<usize> {
        let (key_type, at) = self.owner_column()?;
        let column = &self.levels[0].columns[at];
        if !column.is_inserted() {
            return None;
        }
        // PostgreSQL would remove blanks at the end of a text that is too long, and so make it the claim of another.
        let fits = |claim: &str| match column.value {
            ValueType::Text { max: Some(max) } => claim.chars().count() <= max as usize,
            _ => true,
        };
        let claim = claim.filter(|claim| fits(claim));
        let is_own = |input: &ColumnInput| match input {
            ColumnInput::Text(text) => {
                let text = key_type.canonical_input(text);
                claim.is_some_and(|claim| text.is_ok_and(|text| text == claim))
            }
            ColumnInput::Absent | ColumnInput::Null => false,
        };
        let inputs = rows.levels.first()?.columns.get(at)?;
        inputs.iter().position(|input| !is_own(input))
    }

    fn owner_column(&self) -> Option<(KeyType, usize)> {
        self.owner.map(|owner| (owner.key_type, owner.column))
    }
}

impl Levels<'_> {
    /// The owner's column in the level of the root.
    pub(super) fn owner_column(&self) -> Option<OwnerColumn> {
        let column = &self.owner?.column;
        Some(OwnerColumn {
            column: self.levels.first()?.at(&column.name)?,
            key_type: column.key_type,
        })
    }
}

impl Level {
    /// Adds the columns of the `owner` and of lookups that a restricted principal may not make point to every row.
    ///
    /// # Errors
    /// A sentence, if PostgreSQL computes the column of such a lookup: what it will be is known only once it is stored.
    pub(super) fn add_owned(
        &mut self,
        table: &Table,
        row: &Row,
        owner: Option<&Owner>,
        path: &str,
    ) -> Result<(), String> {
        let Some(owner) = owner else {
            return Ok(());
        };
        let own = match self.parent {
            None => Some(self.add_kept(table, &owner.column.name)?),
            Some(_) => None,
        };
        for lookup in &row.lookups {
            self.add_pointer(table, lookup, own, path)?;
        }
        Ok(())
    }

    /// Adds the pointer of `lookup`, unless it may point to every row, or the client chooses none of its columns: the
    /// owner is the client itself, and a link leads to the row above. `own` is the owner's column.
    fn add_pointer(
        &mut self,
        table: &Table,
        lookup: &Lookup,
        own: Option<usize>,
        path: &str,
    ) -> Result<(), String> {
        let owner = match &lookup.targets {
            LookupTargets::None => None,
            LookupTargets::Own(column) => Some(column.clone()),
            LookupTargets::Shared => return Ok(()),
        };
        let is_chosen = |level: &Self, at: usize| {
            let is_link = level.link.iter().any(|(link, _)| *link == at);
            let is_named = level.columns[at].field.is_some() || level.key.contains(&at);
            is_named && !is_link && own != Some(at)
        };
        let names = || lookup.on.iter().map(|pair| pair.upper.name.as_str());
        let mut known = names().filter_map(|name| self.at(name));
        if !known.any(|at| is_chosen(self, at)) {
            return Ok(());
        }
        let columns = names().map(|name| self.add_kept(table, name));
        let columns = columns.collect::<Result<Vec<usize>, String>>()?;
        let mut generated = columns.iter().filter(|&&at| self.columns[at].generated);
        if let Some(&at) = generated.next() {
            return Err(format!(
                "{} of {} points to rows of {} and is generated, so who may write it is not known before",
                self.shown(at),
                super::rows_at(path),
                lookup.name
            ));
        }
        let chosen = columns.iter().copied();
        self.pointers.push(Pointer {
            chosen: chosen.filter(|&at| is_chosen(self, at)).collect(),
            columns,
            table: lookup.row.table.clone(),
            target: lookup.on.iter().map(|pair| pair.own.clone()).collect(),
            condition: lookup.row.condition.clone(),
            owner,
        });
        Ok(())
    }

    /// As [`Self::add`]; a column that was missing is not changed by updates.
    fn add_kept(&mut self, table: &Table, column: &str) -> Result<usize, String> {
        let count = self.columns.len();
        let at = self.add(table, column)?;
        if at == count {
            self.columns[at].is_kept = true;
        }
        Ok(at)
    }
}
