//! The statements that write documents: SQL text only.
//!
//! The values of each column come as an array of texts, which the statement casts. So one statement writes all rows of
//! a level. An insert names the columns that its rows give, and no others: for each set of given columns
//! ([`GivenColumns`](crate::resource::writable::GivenColumns)) there is an insert of its own. Keys that PostgreSQL draws, or that triggers change, are taken by
//! the order of rows that an insert returned: `insert … select from unnest(…)` inserts one row after the other, and returns
//! each as it is inserted.
//!
//! If no table has triggers of users, one statement inserts or deletes the rows of all levels: PostgreSQL checks foreign
//! keys at the end of a statement, and promises no order of its parts. Triggers would see that order, so with them there is
//! a statement for each level. A document that exists is compared with the body, and only what differs is written, by a
//! statement for each level and kind of change: rows are deleted from the lowest level up, and updated and inserted from
//! the root down.
//!
//! Each statement returns at least one row, with a column `proof` ([`crate::resource::proof`]). If the proof shows that
//! another statement ran than the one that was sent, the transaction is rolled back.

mod compare;
mod equal_keys;
mod hidden;
mod holders;
mod insert;
mod owned;
mod read_only;

pub use self::insert::LevelInsert;
use self::owned::has_claim_sql;
use crate::resource::catalogue::TableName;
use crate::resource::key::{KeyColumn, KeyShape};
use crate::resource::proof::{PROOF, ProvedSql};
use crate::resource::sql::identifier;
use crate::resource::writable::{Level, Writable, WritableColumn};
use crate::resource::{Owner, Resource};

/// The statements that write the documents of a resource.
#[derive(Clone, Debug)]
pub struct WriteSql {
    /// Locks all tables that these statements and the statement that reads documents name. It does not lock partitions
    /// and inheriting tables, since it depends on the rows which of them are needed.
    pub lock_tables: String,
    /// Searches for the root row that has the key of the body. It returns the transaction's number, and if there is such a
    /// row the canonical key and whether the running transaction has written it.
    pub existing: WriteStatement,
    /// Locks the root row. It returns the transaction's number if the row exists, else null. Until the transaction
    /// ends, no row that refers to the root row can be added, unless the foreign key is not enforced.
    pub lock: WriteStatement,
    /// For documents with owners.
    pub owned: Option<OwnedSql>,
    /// Lock the rows below, a statement for each level, upper levels first. A statement sees all rows of its level only
    /// if those above are locked already.
    pub lock_below: Vec<WriteStatement>,
    /// Compares the rows of a document with those of the body, and locks them. It returns a row for each difference: the
    /// level, the number of the body's row counted from 1, or null, the columns in which they differ, and the key of the
    /// stored row and of the one above, as arrays of texts, or null. All are null in one row if nothing differs.
    pub compare: WriteStatement,
    /// The same for a document that was read before. Rows that were not read and that the body lacks are no difference.
    pub compare_read: WriteStatement,
    /// The same two without locks.
    pub compare_unlocked: WriteStatement,
    /// See `compare_read`.
    pub compare_read_unlocked: WriteStatement,
    /// Delete rows of a level that are given, a statement for each level. They return the number of deleted rows.
    pub delete_rows: Vec<WriteStatement>,
    /// Deletes the given rows of all levels, and returns their number, where rows may refer to rows of later levels.
    pub delete_given: Option<WriteStatement>,
    /// Search for rows of a level that are given, a statement for each level. They return the numbers of those that stand in
    /// the table, counted from 1, or null; with a condition also whether it hides them.
    pub standing_rows: Vec<WriteStatement>,
    /// Find, for each level, the rows among given ones that are to take unique values which other ones of them have: the
    /// level, the number of the row and that of the other one, counted from 1, or nulls. `None` for a level without such.
    pub holders: Vec<Option<WriteStatement>>,
    /// Count in the second column the rows of the body that are not in the table, a statement for each level. A trigger may
    /// have inserted them elsewhere, such as in an inheriting table.
    pub missing_rows: Vec<WriteStatement>,
    /// Without triggers: deletes a document.
    pub delete: WriteStatement,
    /// With triggers: delete a document, a statement for each level, the lowest first.
    pub delete_levels: Vec<WriteStatement>,
    /// Without triggers, for a document that was read before: rows below the root that were not read stay.
    pub delete_read: WriteStatement,
    /// Finds the read-only columns to which the body gives another value than the stored row has: level, column and the
    /// row's number in its level, counted from 1, or nulls. `None` if no level has such columns.
    pub read_only_changes: Option<WriteStatement>,
    /// Finds rows of one document whose keys PostgreSQL calls equal although the body spells them differently: their
    /// level and the numbers of two of them, counted from 1, or nulls. `None` if all keys have one spelling.
    pub equal_keys: Option<WriteStatement>,
    /// Finds the rows with keys of the body that conditions hide: level, number and that of the document, counted from 1,
    /// or nulls. `None` without conditions.
    pub hidden_rows: Option<WriteStatement>,
}

/// The statements for principals that are restricted to documents of their own.
#[derive(Clone, Debug)]
pub struct OwnedSql {
    /// As [`WriteSql::lock`], for a document with the claim. It waits for no lock of a document that the snapshot shows
    /// with another owner.
    pub lock: WriteStatement,
    /// Whether the document has the claim, and whether there is one with the key.
    pub find: WriteStatement,
    /// Find rows that point to rows which the principal may not make them point to, a statement for each pointer.
    pub foreign_targets: Vec<PointerCheck>,
}

/// The statement that finds rows of a level whose pointer is not allowed: level, column and the row's number in its level,
/// counted from 1, or nulls. Rows in which the body names none of the columns are left out, and so are rows that point
/// nowhere.
#[derive(Clone, Debug)]
pub struct PointerCheck {
    /// The level, in [`Writable::levels`].
    pub level: usize,
    /// The pointer, in [`Level::pointers`].
    pub pointer: usize,
    /// The statement.
    pub statement: WriteStatement,
}

/// A statement and its parameters.
#[derive(Clone, Debug)]
pub struct WriteStatement {
    /// With `$1, $2, …`.
    pub sql: ProvedSql,
    /// In their order.
    pub parameters: Vec<Parameter>,
}

/// A parameter of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// A part of the document's canonical key, as text.
    Key(usize),
    /// The claim of a restricted principal, as text.
    Claim,
    /// The values of a column, as an array of texts: the level in [`Writable::levels`] and the column in
    /// [`Level::columns`].
    Values(Origin, usize, usize),
    /// For each value of such a column whether it is absent, as an array of booleans.
    Absent(Origin, usize, usize),
    /// For each row of a level which of its columns are absent, as an array of `bytea`: a byte for each column of the
    /// level, 1 for an absent value.
    Absences(Origin, usize),
    /// The number of rows of a level that the body has, as `int8`.
    Count(usize),
    /// For each row of a level the number of its document in the body, counted from 1, as an array of `int8`.
    Documents(usize),
    /// For each row of a level the number of the row above it, counted from 1, as an array of `int8`.
    Parents(usize),
    /// For each row of a level the place of its set in [`GivenColumns::sets`](crate::resource::writable::GivenColumns), as an array of `int8`.
    Sets(usize),
}

/// Where rows that are parameters come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The body of the write.
    Body,
    /// The document as it was read in the same transaction.
    Read,
}

impl WriteSql {
    /// The statements for `writable`. The columns of `key` identify root rows, and documents belong to `owner`; `shown` are
    /// the tables that documents show. If a table `is_secured` by row security, rows that may be read are not all that may be locked.
    pub(super) fn new(
        writable: &Writable,
        key: &KeyShape,
        owner: Option<&Owner>,
        shown: &[&TableName],
        is_secured: bool,
    ) -> Self {
        let statements = StatementBuilder { writable, key };
        let levels = 0..writable.levels.len();
        let below = 1..writable.levels.len();
        Self {
            lock_tables: statements.lock_tables(shown),
            existing: statements.existing(),
            lock: statements.lock(None),
            owned: owner.map(|owner| statements.owned(&owner.column)),
            lock_below: below.map(|level| statements.lock_below(level)).collect(),
            compare: statements.compare(ChangeScope::AllRows, !is_secured),
            compare_read: statements.compare(ChangeScope::RowsRead, !is_secured),
            compare_unlocked: statements.compare(ChangeScope::AllRows, false),
            compare_read_unlocked: statements.compare(ChangeScope::RowsRead, false),
            delete_rows: levels
                .clone()
                .map(|level| statements.delete_rows(level))
                .collect(),
            delete_given: writable
                .has_forward_references()
                .then(|| statements.delete_given()),
            standing_rows: levels
                .clone()
                .map(|level| statements.standing_rows(level))
                .collect(),
            holders: levels
                .clone()
                .map(|level| statements.holders(level))
                .collect(),
            missing_rows: levels
                .clone()
                .map(|level| statements.missing(level))
                .collect(),
            delete: statements.delete(ChangeScope::AllRows),
            delete_levels: levels
                .rev()
                .map(|level| statements.delete_level(level))
                .collect(),
            delete_read: statements.delete(ChangeScope::RowsRead),
            read_only_changes: statements.read_only_changes(),
            equal_keys: statements.equal_keys(),
            hidden_rows: statements.hidden_rows(),
        }
    }

    /// The statement that sets `columns` of rows of a level that are given, as places in [`Level::columns`]. It returns the
    /// numbers of the rows that were updated, counted from 1.
    pub(crate) fn update_rows(
        resource: &Resource,
        writable: &Writable,
        level: usize,
        columns: &[usize],
    ) -> WriteStatement {
        let key = &resource.key;
        StatementBuilder { writable, key }.update_rows(level, columns)
    }
}

/// SQL for the number of the running transaction. Reads with a token wait for it.
const XID: &str = "pg_current_xact_id()::text";

/// Which rows of an existing document a statement may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeScope {
    /// All that it sees.
    AllRows,
    /// Those that it sees and that were read before.
    RowsRead,
}

/// A condition: row `r` of a level has the key of row `u`, which is a parameter.
fn has_key_sql(level: &Level) -> String {
    equal_sql(level, &level.key)
}

/// A condition: row `r` of a level has the identity of row `u`, which is a parameter.
fn same_row_sql(level: &Level) -> String {
    equal_sql(level, &level.identity())
}

fn equal_sql(level: &Level, columns: &[usize]) -> String {
    let same: Vec<String> = columns
        .iter()
        .map(|&column| has_value_sql(level, column, &format!("r.{}", level.column_sql(column))))
        .collect();
    same.join(" and ")
}

/// A condition: `stored` equals the value of column `number` of row `u`.
fn has_value_sql(level: &Level, number: usize, stored: &str) -> String {
    let equality = &level.columns[number].equality;
    equality.sql(stored, &value_sql(level, number))
}

struct StatementBuilder<'a> {
    writable: &'a Writable,
    key: &'a KeyShape,
}

/// The parameters of a statement, gathered while its text is written.
#[derive(Default)]
struct Parameters(Vec<Parameter>);

impl Parameters {
    /// SQL for `parameter`: `$n`. A parameter that occurs several times has one number.
    fn placeholder(&mut self, parameter: Parameter) -> String {
        let known = self.0.iter().position(|known| *known == parameter);
        let index = known.unwrap_or_else(|| {
            self.0.push(parameter);
            self.0.len() - 1
        });
        format!("${}", index + 1)
    }

    /// The rows of a level that the body has, as `u`, with `columns` as `c0, c1, …`, `extra` numbers, and their own numbers,
    /// counted from 1, as `r`.
    fn given_rows_sql(
        &mut self,
        number: usize,
        columns: &[usize],
        extra: &[(Parameter, &str)],
    ) -> String {
        let mut arrays = Vec::with_capacity(columns.len() + extra.len());
        let mut names = Vec::with_capacity(arrays.capacity());
        for &column in columns {
            let values = Parameter::Values(Origin::Body, number, column);
            arrays.push(format!("{}::text[]", self.placeholder(values)));
            names.push(format!("c{column}"));
        }
        for &(parameter, name) in extra {
            arrays.push(format!("{}::int8[]", self.placeholder(parameter)));
            names.push(name.to_owned());
        }
        names.push("r".to_owned());
        format!(
            "unnest({}) with ordinality as u({})",
            arrays.join(", "),
            names.join(", ")
        )
    }

    /// As [`Self::given_rows_sql`] for the columns of `sets`, with the numbers of these as `s` if there are several.
    fn rows_of_sets_sql(
        &mut self,
        number: usize,
        sets: &[Vec<usize>],
        extra: &[(Parameter, &str)],
    ) -> String {
        let mut columns = sets.concat();
        columns.sort_unstable();
        columns.dedup();
        let mut extra = extra.to_vec();
        if sets.len() > 1 {
            extra.push((Parameter::Sets(number), "s"));
        }
        self.given_rows_sql(number, &columns, &extra)
    }

    fn statement(self, template: &str) -> WriteStatement {
        WriteStatement {
            sql: ProvedSql::new(template),
            parameters: self.0,
        }
    }
}

/// Whether the statement must distinguish an absent value from null.
fn may_be_absent(column: &WritableColumn) -> bool {
    column.has_default || !column.is_inserted()
}

/// The most columns of the rows of a body, of the 1,664 that a row may have in PostgreSQL (`MaxTupleAttributeNumber`). A
/// table has at most 1,600, and statements add up to three.
const ROW_COLUMNS_MAX: usize = 1_600;

/// Whether the rows of a level have so many columns that one column has to say for all of them whether they are absent.
fn is_wide(level: &Level) -> bool {
    let columns = level.columns.iter();
    let absent = columns.filter(|column| may_be_absent(column)).count();
    level.columns.len() + absent > ROW_COLUMNS_MAX
}

/// A condition: the value of column `number` of row `u` is absent. Only for columns that may be.
fn absent_sql(level: &Level, number: usize) -> String {
    if is_wide(level) {
        format!("get_byte(u.absent, {number}) = 1")
    } else {
        format!("u.a{number}")
    }
}

/// The value of column `number` of row `u`, cast to the type without a length. An absent value is null.
fn value_sql(level: &Level, number: usize) -> String {
    level.columns[number]
        .plain_type
        .value(&format!("u.c{number}"))
}

/// The same as PostgreSQL stores it, provided that it is not too long.
fn stored_sql(level: &Level, number: usize) -> String {
    level.columns[number]
        .stored_type
        .value(&format!("u.c{number}"))
}

impl Level {
    /// The columns that identify a row within the document: those of the key, and of the link to the row above.
    fn identity(&self) -> Vec<usize> {
        let mut columns = self.key.clone();
        for (own, _) in &self.link {
            if !columns.contains(own) {
                columns.push(*own);
            }
        }
        columns
    }

    fn column_sql(&self, number: usize) -> String {
        identifier(&self.columns[number].column)
    }

    /// A condition: the row `alias` exists for larder. `None` if all rows do.
    fn exists_sql(&self, alias: &str) -> Option<String> {
        Some(self.condition.as_ref()?.sql(alias))
    }

    /// An update leaves the key of a row as it is, columns whose values only PostgreSQL generates, and those that only new
    /// rows get.
    fn changeable_columns(&self) -> Vec<usize> {
        let inserted = self.inserted_columns().into_iter();
        let is_changed = |number: &usize| {
            let column = &self.columns[*number];
            !self.key.contains(number) && !column.identity_always && !column.is_kept
        };
        inserted.filter(is_changed).collect()
    }
}

impl StatementBuilder<'_> {
    fn levels(&self) -> impl DoubleEndedIterator<Item = (usize, &Level)> + ExactSizeIterator {
        self.writable.levels.iter().enumerate()
    }

    /// SQL for the rows of a level from `origin`, and the names of their columns: `columns` as `c0, c1, …`, and for those
    /// that may be absent also `a0, a1, …`, which say whether they are, or `absent` ([`absent_sql`]).
    fn rows_sql(
        &self,
        origin: Origin,
        number: usize,
        columns: &[usize],
        extra: Option<(Parameter, &str)>,
        parameters: &mut Parameters,
    ) -> (String, String) {
        let level = &self.writable.levels[number];
        let (mut arrays, mut names) = (Vec::new(), Vec::new());
        let is_wide = is_wide(level);
        for &column in columns {
            let values = parameters.placeholder(Parameter::Values(origin, number, column));
            arrays.push(format!("{values}::text[]"));
            names.push(format!("c{column}"));
            if may_be_absent(&level.columns[column]) && !is_wide {
                let absent = parameters.placeholder(Parameter::Absent(origin, number, column));
                arrays.push(format!("{absent}::bool[]"));
                names.push(format!("a{column}"));
            }
        }
        if is_wide {
            let absences = parameters.placeholder(Parameter::Absences(origin, number));
            arrays.push(format!("{absences}::bytea[]"));
            names.push("absent".to_owned());
        }
        if let Some((parameter, name)) = extra {
            arrays.push(format!("{}::int8[]", parameters.placeholder(parameter)));
            names.push(name.to_owned());
        }
        (format!("unnest({})", arrays.join(", ")), names.join(", "))
    }

    /// Conditions: the row `alias` is the document's root row, and not hidden.
    fn root_conditions(&self, alias: &str, parameters: &mut Parameters) -> Vec<String> {
        let columns = self.key.columns.iter().enumerate();
        let is_root = columns.map(|(part, column)| {
            let number = parameters.placeholder(Parameter::Key(part));
            let value = column.value_sql(&format!("({number}::text)"));
            format!("{alias}.{} = {value}", identifier(&column.name))
        });
        let root = self.writable.levels.first();
        let exists = root.and_then(|root| root.exists_sql(alias));
        is_root.chain(exists).collect()
    }

    /// What selects the rows `r` of a level that belong to the document: the tables above, and the conditions that join
    /// them and leave out hidden rows.
    fn document_rows_sql(&self, number: usize, parameters: &mut Parameters) -> (String, String) {
        let mut tables = Vec::new();
        let mut matches = Vec::new();
        let (mut number, mut alias) = (number, "r".to_owned());
        while let Some(parent) = self.writable.levels[number].parent {
            let (level, upper) = (&self.writable.levels[number], &self.writable.levels[parent]);
            let above = format!("p{parent}");
            tables.push(format!("{} {above}", upper.table.sql()));
            for (own, up) in &level.link {
                let (own, up) = (level.column_sql(*own), upper.column_sql(*up));
                matches.push(format!("{alias}.{own} = {above}.{up}"));
            }
            matches.extend(level.exists_sql(&alias));
            (number, alias) = (parent, above);
        }
        matches.extend(self.root_conditions(&alias, parameters));
        (tables.join(", "), matches.join(" and "))
    }

    fn lock_tables(&self, shown: &[&TableName]) -> String {
        let mut written: Vec<String> = self.levels().map(|(_, level)| level.table.sql()).collect();
        written.sort_unstable();
        let mut read: Vec<String> = shown.iter().map(|table| table.sql()).collect();
        read.sort_unstable();
        read.dedup();
        read.retain(|table| !written.contains(table));
        let mut sql = format!(
            "lock table only {} in row exclusive mode",
            written.join(", only ")
        );
        if !read.is_empty() {
            sql.push_str(&format!(
                "; lock table only {} in access share mode",
                read.join(", only ")
            ));
        }
        sql
    }

    /// Locks the root row, if the column `owner` has the claim.
    fn lock(&self, owner: Option<&KeyColumn>) -> WriteStatement {
        let mut parameters = Parameters::default();
        let mut matches = self.root_conditions("r", &mut parameters);
        matches.extend(owner.map(|owner| has_claim_sql(owner, "r", &mut parameters)));
        let matches = matches.join(" and ");
        let table = self.writable.levels[0].table.sql();
        parameters.statement(&format!(
            "with l as materialized (select from {table} r where {matches} for update) \
             select case when count(*) > 0 then {XID} end, {PROOF} as proof from l"
        ))
    }

    fn lock_below(&self, number: usize) -> WriteStatement {
        let mut parameters = Parameters::default();
        let (tables, matches) = self.document_rows_sql(number, &mut parameters);
        let table = self.writable.levels[number].table.sql();
        parameters.statement(&format!(
            "with l as materialized (select from {table} r, {tables} where {matches} for update of r) \
             select count(*)::text, {PROOF} as proof from l"
        ))
    }

    fn delete(&self, scope: ChangeScope) -> WriteStatement {
        let mut parameters = Parameters::default();
        let levels = (0..self.writable.levels.len()).rev();
        let parts = levels.map(|number| self.delete_sql(number, scope, &mut parameters));
        let parts: Vec<String> = parts.collect();
        parameters.statement(&format!(
            "with {} select {PROOF} as proof",
            parts.join(", ")
        ))
    }

    /// Deletes the rows of one level of a document.
    fn delete_level(&self, number: usize) -> WriteStatement {
        let mut parameters = Parameters::default();
        let part = self.delete_sql(number, ChangeScope::AllRows, &mut parameters);
        parameters.statement(&format!("with {part} select {PROOF} as proof"))
    }

    /// A part of `with` that deletes the rows of a level.
    fn delete_sql(&self, number: usize, scope: ChangeScope, parameters: &mut Parameters) -> String {
        let (using, conditions) = match number {
            0 => (
                String::new(),
                self.root_conditions("r", parameters).join(" and "),
            ),
            number => {
                let (tables, matches) = self.document_rows_sql(number, parameters);
                let read = self.read_before_sql(scope, number, parameters);
                (format!(" using {tables}"), format!("{matches}{read}"))
            }
        };
        let table = self.writable.levels[number].table.sql();
        format!("x{number} as (delete from {table} r{using} where {conditions})")
    }

    /// A condition to append, ` and …`: row `r` of a level was read. Empty if all rows may be deleted.
    fn read_before_sql(
        &self,
        scope: ChangeScope,
        number: usize,
        parameters: &mut Parameters,
    ) -> String {
        let level = &self.writable.levels[number];
        match scope {
            ChangeScope::AllRows => String::new(),
            ChangeScope::RowsRead => {
                let (read, names) =
                    self.rows_sql(Origin::Read, number, &level.key, None, parameters);
                let same = has_key_sql(level);
                format!(" and exists (select from {read} as u({names}) where {same})")
            }
        }
    }
}
