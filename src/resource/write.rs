//! The statements that write documents: SQL text only.
//!
//! Values come as one array of texts for each column and are cast by the statement, so that a level of rows is one
//! statement, and the levels of a document share one: foreign keys are checked at its end. Keys that columns draw by
//! default are drawn before (`Draw`), so that rows below know them. No statement relies on the order of another's rows.
//!
//! Each answer has a row, whatever is found, with a column `proof` ([`crate::resource::proof`]): a transaction in which
//! another statement ran than the one that was sent is rolled back.

mod others;

use crate::resource::catalogue::TableName;
use crate::resource::key::KeyShape;
use crate::resource::key::sql::canonical_key_sql;
use crate::resource::proof::{PROOF, Proved};
use crate::resource::sql::identifier;
use crate::resource::writable::{Level, Writable, WritableColumn};

/// The statements that write the documents of a resource.
#[derive(Clone, Debug)]
pub struct WriteSql {
    /// Locks all tables that the statements, and the one that reads documents, name. No parts of tables: which ones
    /// are needed depends on the rows.
    pub lock_tables: String,
    /// Inserts documents whose keys do not exist. Rows: the transaction's number, how many root rows were inserted, and
    /// for each of them, or once null, the document's number counted from 1 and its canonical key.
    pub insert: Statement,
    /// Locks the root row: the transaction's number where it exists, else null. No row that refers to it can be added
    /// until the transaction ends, unless the foreign key is not enforced.
    pub lock: Statement,
    /// Lock the rows below, a statement for each level, upper ones first: only then does the next one see all of its.
    pub lock_below: Vec<Statement>,
    /// Make the rows of a document those that are given. What goes is what the first statement sees.
    pub replace: Changes,
    /// The same for a document that was read: what was not read, or was not to change, stays as it is.
    pub replace_read: Changes,
    /// Deletes a document.
    pub delete: Statement,
    /// The same for a document that was read: rows below the root that were not read stay.
    pub delete_read: Statement,
    /// What rows below must know, and columns draw by default.
    pub draws: Vec<Draw>,
}

/// The statements that make the rows of a document those that are given; none where no document needs it.
#[derive(Clone, Debug)]
pub struct Changes {
    /// Deletes the rows below the root that are not given.
    pub delete_others: Option<Statement>,
    /// Updates rows that differ from what is given.
    pub update: Option<Statement>,
    /// Inserts the rows below the root that are given and not there.
    pub insert_others: Option<Statement>,
}

/// A statement and what it takes.
#[derive(Clone, Debug)]
pub struct Statement {
    /// With `$1, $2, …`.
    pub sql: Proved,
    /// In their order.
    pub parameters: Vec<Parameter>,
}

/// What a statement takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// Part of the document's canonical key, as text.
    Key(usize),
    /// The values of a column of a level, as an array of texts.
    Values(Origin, usize, usize),
    /// For each of them whether it is absent, as an array of booleans.
    Absent(Origin, usize, usize),
    /// For each given row of a level its document's number, counted from 1, as an array of `int8`.
    Documents(usize),
}

/// Where the rows come from that a statement takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the client.
    Given,
    /// From the document as it was read in the same transaction.
    Read,
}

/// A column whose default rows below must know.
#[derive(Clone, Debug)]
pub struct Draw {
    /// In [`Writable::levels`].
    pub level: usize,
    /// In [`Level::columns`].
    pub column: usize,
    /// Gives `$1` values as text, and beside each the proof.
    pub sql: Proved,
}

impl WriteSql {
    /// The statements for `writable`, whose root rows are told apart by `key`; documents show the tables `shown`.
    pub(super) fn new(writable: &Writable, key: &KeyShape, shown: &[&TableName]) -> Self {
        let text = Text { writable, key };
        let below = 1..writable.levels.len();
        Self {
            lock_tables: text.lock_tables(shown),
            insert: text.insert(),
            lock: text.lock(),
            lock_below: below.map(|level| text.lock_below(level)).collect(),
            replace: text.changes(Basis::Seen),
            replace_read: text.changes(Basis::Read),
            delete: text.delete(Basis::Seen),
            delete_read: text.delete(Basis::Read),
            draws: text.draws(),
        }
    }
}

/// The number of the running transaction, which readers wait for.
const XID: &str = "pg_current_xact_id()::text";

/// Which rows of a document that is there a statement may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    /// Those that it sees.
    Seen,
    /// Of those the ones that were read.
    Read,
}

struct Text<'a> {
    writable: &'a Writable,
    key: &'a KeyShape,
}

/// Gathers what a statement takes while its text is written.
#[derive(Default)]
struct Parameters(Vec<Parameter>);

impl Parameters {
    /// `$n`
    fn number(&mut self, parameter: Parameter) -> String {
        let known = self.0.iter().position(|known| *known == parameter);
        let index = known.unwrap_or_else(|| {
            self.0.push(parameter);
            self.0.len() - 1
        });
        format!("${}", index + 1)
    }

    fn statement(self, template: &str) -> Statement {
        Statement {
            sql: Proved::new(template),
            parameters: self.0,
        }
    }
}

/// How a value that is absent is told from null.
fn knows_absence(column: &WritableColumn) -> bool {
    column.default.is_some()
}

/// The value of column `number` of row `u`, as its type of any length; what is absent is null.
fn value_sql(level: &Level, number: usize) -> String {
    format!("u.c{number}::{}", level.columns[number].plain_type_sql)
}

/// The same as it is stored where it fits.
fn stored_sql(level: &Level, number: usize) -> String {
    format!("u.c{number}::{}", level.columns[number].type_sql)
}

/// The value that a row is inserted with.
fn inserted_sql(level: &Level, number: usize) -> String {
    let value = value_sql(level, number);
    match &level.columns[number].default {
        // The catalogue leaves out a cast that an assignment implies.
        Some(default) => {
            let plain = &level.columns[number].plain_type_sql;
            format!("case when u.a{number} then ({default})::{plain} else {value} end")
        }
        None => value,
    }
}

impl Level {
    /// Columns that rows are told apart by: of the key, and of the link to the row above.
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

    fn inserted_columns(&self) -> Vec<usize> {
        let all = 0..self.columns.len();
        all.filter(|&number| !self.columns[number].generated)
            .collect()
    }

    /// Identity and what PostgreSQL gives alone stay as they are.
    fn updated_columns(&self) -> Vec<usize> {
        let identity = self.identity();
        let inserted = self.inserted_columns().into_iter();
        inserted
            .filter(|number| !identity.contains(number) && !self.columns[*number].identity_always)
            .collect()
    }

    fn insert_into_sql(&self) -> String {
        let columns = self.inserted_columns();
        let always = columns
            .iter()
            .any(|&number| self.columns[number].identity_always);
        let names: Vec<String> = columns.iter().map(|&n| self.column_sql(n)).collect();
        let overriding = if always {
            " overriding system value"
        } else {
            ""
        };
        format!(
            "insert into {} ({}){overriding}",
            self.table.sql(),
            names.join(", ")
        )
    }
}

impl Text<'_> {
    fn levels(&self) -> impl DoubleEndedIterator<Item = (usize, &Level)> + ExactSizeIterator {
        self.writable.levels.iter().enumerate()
    }

    /// The rows given for a level as `u`, with `columns` as `c0, c1, …`, where they may be absent also `a0, …`.
    fn given(
        &self,
        number: usize,
        columns: &[usize],
        extra: Option<(Parameter, &str)>,
        parameters: &mut Parameters,
    ) -> String {
        let (rows, names) = self.rows(Origin::Given, number, columns, extra, parameters);
        format!("{rows} as u({names})")
    }

    /// The rows of a level, and the names of their columns.
    fn rows(
        &self,
        origin: Origin,
        number: usize,
        columns: &[usize],
        extra: Option<(Parameter, &str)>,
        parameters: &mut Parameters,
    ) -> (String, String) {
        let level = &self.writable.levels[number];
        let (mut arrays, mut names) = (Vec::new(), Vec::new());
        for &column in columns {
            let values = parameters.number(Parameter::Values(origin, number, column));
            arrays.push(format!("{values}::text[]"));
            names.push(format!("c{column}"));
            if knows_absence(&level.columns[column]) {
                let absent = parameters.number(Parameter::Absent(origin, number, column));
                arrays.push(format!("{absent}::bool[]"));
                names.push(format!("a{column}"));
            }
        }
        if let Some((parameter, name)) = extra {
            arrays.push(format!("{}::int8[]", parameters.number(parameter)));
            names.push(name.to_owned());
        }
        (format!("unnest({})", arrays.join(", ")), names.join(", "))
    }

    fn insert(&self) -> Statement {
        let mut parameters = Parameters::default();
        let root = &self.writable.levels[0];
        let columns = root.inserted_columns();
        let number = (Parameter::Documents(0), "n");
        let given = self.given(0, &columns, Some(number), &mut parameters);
        let values: Vec<String> = columns
            .iter()
            .map(|&column| format!("{} as c{column}", inserted_sql(root, column)))
            .collect();
        let key: Vec<String> = root.key.iter().map(|&n| value_sql(root, n)).collect();
        let names: Vec<String> = columns.iter().map(|column| format!("c{column}")).collect();
        let returned: Vec<String> = root.key.iter().map(|&n| root.column_sql(n)).collect();
        let same: Vec<String> = root
            .key
            .iter()
            .map(|&column| format!("g0.c{column} = i0.{}", root.column_sql(column)))
            .collect();
        // Of two documents with one key the first is inserted, as if one had come after the other.
        let mut sql = format!(
            "with g0 as materialized (select distinct on ({key}) u.n, {values} from {given} order by {key}, u.n), \
             i0 as ({into} select {names} from g0 on conflict do nothing returning {returned}), \
             d as materialized (select g0.n, {canonical} as key from g0 join i0 on {same})",
            key = key.join(", "),
            values = values.join(", "),
            into = root.insert_into_sql(),
            names = names.join(", "),
            returned = returned.join(", "),
            canonical = canonical_key_sql(&self.key.columns, "i0"),
            same = same.join(" and "),
        );
        for (number, level) in self.levels().skip(1) {
            let columns = level.inserted_columns();
            let document = (Parameter::Documents(number), "n");
            let given = self.given(number, &columns, Some(document), &mut parameters);
            let values: Vec<String> = columns.iter().map(|&n| inserted_sql(level, n)).collect();
            sql.push_str(&format!(
                ", i{number} as ({} select {} from {given} where u.n in (select n from d))",
                level.insert_into_sql(),
                values.join(", ")
            ));
        }
        sql.push_str(&format!(
            " select x.xid, x.inserted, d.n, d.key, x.proof from (select {XID} as xid, \
             (select count(*) from i0) as inserted, {PROOF} as proof) x left join d on true"
        ));
        parameters.statement(&sql)
    }

    /// `r` is the document's root row.
    fn is_root(&self, alias: &str, parameters: &mut Parameters) -> Vec<String> {
        let columns = self.key.columns.iter().enumerate();
        columns
            .map(|(part, column)| {
                let number = parameters.number(Parameter::Key(part));
                let value = format!("({number}::text)::{}", column.key_type.sql_type());
                format!("{alias}.{} = {value}", identifier(&column.name))
            })
            .collect()
    }

    /// The rows `r` of a level that are the document's: the tables above, and what joins them.
    fn of_document(&self, number: usize, parameters: &mut Parameters) -> (String, String) {
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
            (number, alias) = (parent, above);
        }
        matches.extend(self.is_root(&alias, parameters));
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

    fn lock(&self) -> Statement {
        let mut parameters = Parameters::default();
        let matches = self.is_root("r", &mut parameters).join(" and ");
        let table = self.writable.levels[0].table.sql();
        parameters.statement(&format!(
            "with l as materialized (select from {table} r where {matches} for update) \
             select case when count(*) > 0 then {XID} end, {PROOF} as proof from l"
        ))
    }

    fn lock_below(&self, number: usize) -> Statement {
        let mut parameters = Parameters::default();
        let (tables, matches) = self.of_document(number, &mut parameters);
        let table = self.writable.levels[number].table.sql();
        parameters.statement(&format!(
            "with l as materialized (select from {table} r, {tables} where {matches} for update of r) \
             select count(*)::text, {PROOF} as proof from l"
        ))
    }

    fn delete(&self, basis: Basis) -> Statement {
        let mut parameters = Parameters::default();
        let mut deletes = Vec::new();
        for (number, level) in self.levels().skip(1).rev() {
            let (tables, matches) = self.of_document(number, &mut parameters);
            let read = self.was_read(basis, number, &mut parameters);
            let table = level.table.sql();
            deletes.push(format!(
                "x{number} as (delete from {table} r using {tables} where {matches}{read})"
            ));
        }
        let matches = self.is_root("r", &mut parameters).join(" and ");
        let table = self.writable.levels[0].table.sql();
        deletes.push(format!("x0 as (delete from {table} r where {matches})"));
        parameters.statement(&format!(
            "with {} select {XID}, {PROOF} as proof",
            deletes.join(", ")
        ))
    }

    fn draws(&self) -> Vec<Draw> {
        let mut draws = Vec::new();
        for (number, level) in self.levels() {
            let mut wanted = level.key.clone();
            for (_, below) in self
                .levels()
                .filter(|(_, below)| below.parent == Some(number))
            {
                wanted.extend(below.link.iter().map(|(_, upper)| *upper));
            }
            wanted.sort_unstable();
            wanted.dedup();
            for column in wanted {
                if let Some(default) = &level.columns[column].default {
                    let template = format!(
                        "select ({default})::text, {PROOF} as proof from generate_series(1, $1::int8)"
                    );
                    draws.push(Draw {
                        level: number,
                        column,
                        sql: Proved::new(&template),
                    });
                }
            }
        }
        draws
    }
}
