//! The statements that insert documents.

use crate::resource::Resource;
use crate::resource::key::sql::canonical_key_sql;
use crate::resource::proof::PROOF;
use crate::resource::writable::{Level, Writable};
use crate::resource::write::{
    Parameter, Parameters, StatementBuilder, WriteSql, WriteStatement, XID, has_key_sql,
    same_row_sql, value_sql,
};

/// A condition: the running transaction has written row `r`, maybe in a subtransaction, such as a block of PL/pgSQL that
/// catches exceptions. What one sees and is in progress is one's own. The numbers of subtransactions follow that of the
/// transaction; `xmin` has the lower 32 bits of these numbers, and those below 3 are special.
const IS_OWN: &str = "(select case when n.after < 2147483648 and n.xmin > 2 \
    then pg_xact_status((n.xid + n.after)::text::xid8) = 'in progress' else false end from \
    (select o.xid, o.xmin, (o.xmin - o.xid) & 4294967295 as after from \
      (select pg_current_xact_id()::text::int8 as xid, r.xmin::text::int8 as xmin) o) n)";

/// The statement that inserts rows of one level below the root.
#[derive(Clone, Debug)]
pub struct LevelInsert {
    /// Inserts the rows, in the order of the body. It returns the transaction's number and the number of rows that were not
    /// inserted, since a trigger has prevented it; 0 without triggers.
    pub statement: WriteStatement,
    /// PostgreSQL draws parts of the key, or a trigger may change keys that rows below contain, or by which hidden rows are
    /// found: for each inserted row the statement returns a row, which has the parts of [`Level::key`] as further columns.
    pub returns_keys: bool,
}

impl WriteSql {
    /// Without triggers: the statement that inserts the documents whose keys do not exist, with the rows of all levels;
    /// `sets` are the sets of columns that the rows of each level give. A column of a link that is in no set gets the value
    /// that PostgreSQL has given the row above.
    ///
    /// It returns the transaction's number, and for each inserted document a row: level 0, the document's number, counted
    /// from 1, and its canonical key; or one row with nulls. With `keys` it returns for these, and for each row of further
    /// levels, the parts of [`Level::key`] as an array of texts; of further levels only if the sets lack a part.
    pub(crate) fn insert_together(
        resource: &Resource,
        writable: &Writable,
        sets: &[&[Vec<usize>]],
        keys: bool,
    ) -> WriteStatement {
        let key = &resource.key;
        StatementBuilder { writable, key }.insert_together(sets, keys)
    }

    /// The statement that inserts the root row of one document, which gives the columns `given`. It returns the
    /// transaction's number; whether a trigger has left the row out and one with its key was there before; and, unless the
    /// row was left out, the canonical key and the parts of [`Level::key`] as texts.
    pub(crate) fn insert_root(
        resource: &Resource,
        writable: &Writable,
        given: &[usize],
    ) -> WriteStatement {
        let key = &resource.key;
        StatementBuilder { writable, key }.insert_root(given)
    }

    /// The statement that inserts rows of `level` which give the columns `given`.
    pub(crate) fn insert_level(
        resource: &Resource,
        writable: &Writable,
        level: usize,
        given: &[usize],
    ) -> LevelInsert {
        let key = &resource.key;
        StatementBuilder { writable, key }.insert_level(level, given)
    }
}

impl Level {
    /// The links of rows that give the columns `set` to columns of the row above whose values PostgreSQL has given.
    fn drawn_links(&self, set: &[usize]) -> Vec<(usize, usize)> {
        let links = self.link.iter().copied();
        links.filter(|(own, _)| !set.contains(own)).collect()
    }

    fn has_key(&self, set: &[usize]) -> bool {
        self.key.iter().all(|column| set.contains(column))
    }

    /// `insert into …` the columns `columns`. Without columns PostgreSQL takes all defaults.
    fn insert_into_sql(&self, columns: &[usize]) -> String {
        let names: Vec<String> = columns.iter().map(|&n| self.column_sql(n)).collect();
        let names = match names.as_slice() {
            [] => String::new(),
            names => format!(" ({})", names.join(", ")),
        };
        let mut columns = columns.iter();
        let overriding = if columns.any(|&number| self.columns[number].identity_always) {
            " overriding system value"
        } else {
            ""
        };
        format!("insert into {} as r{names}{overriding}", self.table.sql())
    }
}

/// ` where u.s = …`, if rows have several sets.
fn of_set_sql(sets: &[Vec<usize>], set: usize) -> String {
    match sets {
        [_] => String::new(),
        _ => format!(" where u.s = {set}"),
    }
}

/// A part of `with`: `k…` has what the inserts of a level returned, with the number of the row as `r`.
fn inserted_keys_sql(number: usize, sets: &[Vec<usize>]) -> String {
    let parts = (0..sets.len()).map(|set| {
        format!(
            "select u.r, i.* from (select u.r, row_number() over (order by u.r) as m from g{number} u{of_set}) u \
             full join (select row_number() over () as n, i.* from i{number}_{set} i) i on i.n = u.m",
            of_set = of_set_sql(sets, set)
        )
    });
    let parts: Vec<String> = parts.collect();
    format!("k{number} as materialized ({})", parts.join(" union all "))
}

impl StatementBuilder<'_> {
    fn insert_together(&self, sets: &[&[Vec<usize>]], keys: bool) -> WriteStatement {
        let mut parameters = Parameters::default();
        let mut parts = self.new_documents_sql(sets[0], &mut parameters);
        let mut found = Vec::new();
        for (number, level) in self.levels() {
            let own = sets[number];
            if own.is_empty() {
                continue;
            }
            if number > 0 {
                let is_left_out = sets[0]
                    .iter()
                    .any(|set| self.writable.levels[0].has_key(set));
                parts.push(self.new_rows_sql(number, own, is_left_out, &mut parameters));
            }
            let has_drawn_key = own.iter().any(|set| !level.has_key(set));
            let returned = self.returned_sql(number, sets, keys && (number == 0 || has_drawn_key));
            for (set, columns) in own.iter().enumerate() {
                parts.push(self.insert_set_sql(number, own, set, columns, &returned));
            }
            if returned.is_empty() {
                continue;
            }
            parts.push(inserted_keys_sql(number, own));
            if number == 0 || keys && has_drawn_key {
                let key = if number == 0 { "k.key" } else { "null" };
                let texts = if keys { "k.t" } else { "null::text[]" };
                found.push(format!(
                    "select {number}::int8 as level, k.r, {key} as key, {texts} as t from k{number} k"
                ));
            }
        }
        parameters.statement(&format!(
            "with {} select x.xid, d.level, d.r, d.key, d.t, x.proof from (select {XID} as xid, {PROOF} as proof) x \
             left join ({}) d on true",
            parts.join(", "),
            found.join(" union all ")
        ))
    }

    /// Parts of `with`: `g0` has the root rows of the documents to insert.
    ///
    /// Of two documents with one key the first is inserted, as if the second had come later. `on conflict do nothing`
    /// would also hide violations of other constraints.
    fn new_documents_sql(&self, sets: &[Vec<usize>], parameters: &mut Parameters) -> Vec<String> {
        let root = &self.writable.levels[0];
        let extra = [(Parameter::Documents(0), "d")];
        let rows = parameters.rows_of_sets_sql(0, sets, &extra);
        let key: Vec<String> = root.key.iter().map(|&n| value_sql(root, n)).collect();
        let numbers = |has_key: bool| {
            let sets = sets.iter().enumerate();
            let found = sets.filter(|(_, set)| root.has_key(set) == has_key);
            let found: Vec<String> = found.map(|(number, _)| number.to_string()).collect();
            found.join(", ")
        };
        let (with_key, without) = (numbers(true), numbers(false));
        let of = |numbers: &str| match sets.len() {
            1 => "true".to_owned(),
            _ => format!("u.s in ({numbers})"),
        };
        let keyed = || {
            format!(
                "(select distinct on ({key}) u.* from b0 u where {is_keyed} \
                 and not exists (select from {table} r where {exists}) order by {key}, u.r)",
                key = key.join(", "),
                is_keyed = of(&with_key),
                table = root.table.sql(),
                exists = has_key_sql(root),
            )
        };
        let drawn = || format!("select u.* from b0 u where {}", of(&without));
        let selected = match (with_key.is_empty(), without.is_empty()) {
            (false, true) => keyed(),
            (true, _) => drawn(),
            (false, false) => format!("{} union all {}", keyed(), drawn()),
        };
        vec![
            format!("b0 as (select u.* from {rows})"),
            format!("g0 as materialized ({selected})"),
        ]
    }

    /// A part of `with`: `g…` has the rows of a level below the root, without those of documents that are left out, if
    /// some may be.
    fn new_rows_sql(
        &self,
        number: usize,
        sets: &[Vec<usize>],
        is_left_out: bool,
        parameters: &mut Parameters,
    ) -> String {
        let level = &self.writable.levels[number];
        let mut extra = vec![(Parameter::Documents(number), "d")];
        if sets.iter().any(|set| !level.drawn_links(set).is_empty()) {
            extra.push((Parameter::Parents(number), "p"));
        }
        let rows = parameters.rows_of_sets_sql(number, sets, &extra);
        let inserted = if is_left_out {
            " where u.d in (select k.r from k0 k)"
        } else {
            ""
        };
        format!("g{number} as (select u.* from {rows}{inserted})")
    }

    /// What the inserts of a level return: for the root the canonical key as `key`; with `keys` the key's parts as `t`; the
    /// columns that rows below get from here as `k0, k1, …`. Empty if nothing is needed.
    fn returned_sql(&self, number: usize, sets: &[&[Vec<usize>]], keys: bool) -> String {
        let level = &self.writable.levels[number];
        let mut returned = Vec::new();
        if number == 0 {
            let key = canonical_key_sql(&self.key.columns, "r");
            returned.push(format!("{key} as key"));
        }
        if keys {
            let texts = level.key.iter();
            let texts: Vec<String> = texts
                .map(|&column| format!("r.{}::text", level.column_sql(column)))
                .collect();
            returned.push(format!("array[{}] as t", texts.join(", ")));
        }
        let below = self
            .levels()
            .filter(|(_, below)| below.parent == Some(number));
        let links = below.flat_map(|(below, known)| {
            let sets = sets[below].iter();
            sets.flat_map(move |set| known.drawn_links(set))
        });
        let mut linked: Vec<usize> = links.map(|(_, upper)| upper).collect();
        linked.sort_unstable();
        linked.dedup();
        let linked = linked.iter();
        returned
            .extend(linked.map(|&column| format!("r.{} as k{column}", level.column_sql(column))));
        returned.join(", ")
    }

    /// A part of `with`: `i…` inserts the rows of a level that have one of its sets, in their order.
    ///
    /// PostgreSQL expects few rows, and may compare each with each for a join, but never for a full join. That has no rows
    /// of one side alone here but those that `coalesce` leaves out, which keeps the join a full one.
    fn insert_set_sql(
        &self,
        number: usize,
        sets: &[Vec<usize>],
        set: usize,
        columns: &[usize],
        returned: &str,
    ) -> String {
        let level = &self.writable.levels[number];
        let drawn = level.drawn_links(columns);
        let own = drawn.iter().map(|(own, _)| *own);
        let names: Vec<usize> = columns.iter().copied().chain(own).collect();
        let values = columns.iter().map(|&column| value_sql(level, column));
        let above = drawn.iter().map(|(_, upper)| format!("k.k{upper}"));
        let values: Vec<String> = values.chain(above).collect();
        let rows = format!("g{number} u{}", of_set_sql(sets, set));
        let rows = match (level.parent, drawn.as_slice()) {
            (Some(parent), [_, ..]) => format!(
                "(select u.* from {rows}) u full join k{parent} k on k.r = u.p where coalesce(u.r, 0) > 0"
            ),
            _ => rows,
        };
        let returning = match returned {
            "" => String::new(),
            returned => format!(" returning {returned}"),
        };
        format!(
            "i{number}_{set} as ({} select {} from {rows} order by u.r{returning})",
            level.insert_into_sql(&names),
            values.join(", "),
        )
    }

    /// Finds the root row that has the key of the body, and whether the running transaction has written it.
    pub(super) fn existing(&self) -> WriteStatement {
        let mut parameters = Parameters::default();
        let root = &self.writable.levels[0];
        let input = parameters.given_rows_sql(0, &root.key, &[]);
        let sql = format!(
            "select x.xid, d.key, d.is_own, x.proof from (select {XID} as xid, {PROOF} as proof) x \
             left join (select {key} as key, {IS_OWN} as is_own from {table} r, {input} where {same}) d on true",
            key = canonical_key_sql(&self.key.columns, "r"),
            table = root.table.sql(),
            same = has_key_sql(root),
        );
        parameters.statement(&sql)
    }

    fn insert_root(&self, given: &[usize]) -> WriteStatement {
        let mut parameters = Parameters::default();
        let root = &self.writable.levels[0];
        let inserted = self.inserted_rows_sql(0, given, &mut parameters);
        let names: Vec<_> = root.key.iter().map(|&n| root.column_sql(n)).collect();
        let parts: Vec<String> = names
            .iter()
            .map(|name| format!(", i.{name}::text"))
            .collect();
        let input = parameters.given_rows_sql(0, &root.key, &[]);
        // The snapshot of the statement does not show what its own triggers have done.
        let sql = format!(
            "with i as ({inserted} returning {names}) select x.xid, \
             d.key is null and exists (select from {table} r, {input} where {same}) as existed, d.*, x.proof \
             from (select {XID} as xid, {PROOF} as proof) x left join (select {key} as key{parts} from i) d on true",
            table = root.table.sql(),
            same = has_key_sql(root),
            names = names.join(", "),
            key = canonical_key_sql(&self.key.columns, "i"),
            parts = parts.concat(),
        );
        parameters.statement(&sql)
    }

    fn insert_level(&self, number: usize, given: &[usize]) -> LevelInsert {
        let mut parameters = Parameters::default();
        let level = &self.writable.levels[number];
        let is_upper = self.levels().any(|(_, below)| below.parent == Some(number));
        let is_searched = is_upper || level.condition.is_some();
        let returns_keys = level.has_before_insert && is_searched || !level.has_key(given);
        let inserted = self.inserted_rows_sql(number, given, &mut parameters);
        let wanted = parameters.placeholder(Parameter::Count(number));
        let key = if returns_keys {
            level.key.as_slice()
        } else {
            &[]
        };
        let names: Vec<_> = key.iter().map(|&n| level.column_sql(n)).collect();
        let parts: Vec<String> = names
            .iter()
            .map(|name| format!(", i.{name}::text"))
            .collect();
        let returned = if names.is_empty() {
            "1".to_owned()
        } else {
            names.join(", ")
        };
        // `returning *` would need the right to read hidden columns.
        let sql = format!(
            "with i as ({inserted} returning {returned}) select x.xid, x.vetoed{parts}, x.proof from (select {XID} as xid, \
             {wanted}::int8 - (select count(*) from i) as vetoed, {PROOF} as proof) x left join i on {returns_keys}",
            parts = parts.concat(),
        );
        LevelInsert {
            statement: parameters.statement(&sql),
            returns_keys,
        }
    }

    /// Inserts all rows of a level that the body has, which give the columns `given`.
    fn inserted_rows_sql(
        &self,
        number: usize,
        given: &[usize],
        parameters: &mut Parameters,
    ) -> String {
        let level = &self.writable.levels[number];
        let extra = [(Parameter::Documents(number), "d")];
        let input = parameters.given_rows_sql(number, given, &extra);
        let values: Vec<String> = given.iter().map(|&n| value_sql(level, n)).collect();
        format!(
            "{} select {} from {input}",
            level.insert_into_sql(given),
            values.join(", ")
        )
    }

    /// Counts the rows of a level that the body has and the table lacks.
    pub(super) fn missing(&self, number: usize) -> WriteStatement {
        let mut parameters = Parameters::default();
        let level = &self.writable.levels[number];
        let input = parameters.given_rows_sql(number, &level.identity(), &[]);
        let sql = format!(
            "select {XID} as xid, (select count(*) from {input} where not exists (select from {} r where {})) as missing, \
             {PROOF} as proof",
            level.table.sql(),
            same_row_sql(level),
        );
        parameters.statement(&sql)
    }
}
