//! The statements that insert documents.

use crate::resource::key::sql::canonical_key_sql;
use crate::resource::proof::PROOF;
use crate::resource::write::{
    Change, InsertSql, LevelInsert, Parameter, Parameters, StatementBuilder, WriteStatement, XID,
    has_key_sql, inserted_sql, same_row_sql, value_sql,
};

/// A condition: the running transaction has written row `r`, maybe in a subtransaction, such as a block of PL/pgSQL that
/// catches exceptions. What one sees and is in progress is one's own. The numbers of subtransactions follow that of the
/// transaction; `xmin` has the lower 32 bits of these numbers, and those below 3 are special.
const IS_OWN: &str = "(select case when n.after < 2147483648 and n.xmin > 2 \
    then pg_xact_status((n.xid + n.after)::text::xid8) = 'in progress' else false end from \
    (select o.xid, o.xmin, (o.xmin - o.xid) & 4294967295 as after from \
      (select pg_current_xact_id()::text::int8 as xid, r.xmin::text::int8 as xmin) o) n)";

impl StatementBuilder<'_> {
    pub(super) fn insert(&self) -> InsertSql {
        if !self.writable.has_triggers {
            return InsertSql::Together(self.insert_together());
        }
        InsertSql::ByLevel {
            existing: self.existing(),
            root: self.insert_root(),
        }
    }

    fn insert_together(&self) -> WriteStatement {
        let mut parameters = Parameters::default();
        let root = &self.writable.levels[0];
        let columns = root.inserted_columns();
        let number = (Parameter::Documents(0), "n");
        let input = self.body_rows_sql(0, &columns, Some(number), &mut parameters);
        let values: Vec<String> = columns
            .iter()
            .map(|&column| inserted_sql(root, column))
            .collect();
        let key: Vec<String> = root.key.iter().map(|&n| value_sql(root, n)).collect();
        let returned: Vec<String> = root.key.iter().map(|&n| root.column_sql(n)).collect();
        let same: Vec<String> = root
            .key
            .iter()
            .map(|&column| {
                format!(
                    "{} = i0.{}",
                    value_sql(root, column),
                    root.column_sql(column)
                )
            })
            .collect();
        // PostgreSQL expects one row of `g0`. It compares each row with each for a join, but never for a full join, which
        // is the same here, since all rows are inserted.
        //
        // Of two documents with one key the first is inserted, as if the second had come later. `on conflict do nothing`
        // would also hide violations of other constraints. Defaults are evaluated in the order of the documents.
        let mut sql = format!(
            "with g0 as materialized (select distinct on ({key}) u.* from {input} \
               where not exists (select from {table} r where {exists}) order by {key}, u.n), \
             i0 as ({into} select {values} from g0 u order by u.n returning {returned}), \
             d as materialized (select u.n, case when {same} then {canonical} end as key \
               from g0 u full join i0 on {same})",
            key = key.join(", "),
            values = values.join(", "),
            table = root.table.sql(),
            exists = has_key_sql(root),
            into = root.insert_into_sql(),
            returned = returned.join(", "),
            canonical = canonical_key_sql(&self.key.columns, "i0"),
            same = same.join(" and "),
        );
        for (number, level) in self.levels().skip(1) {
            let columns = level.inserted_columns();
            let document = (Parameter::Documents(number), "n");
            let input = self.body_rows_sql(number, &columns, Some(document), &mut parameters);
            let values: Vec<String> = columns.iter().map(|&n| inserted_sql(level, n)).collect();
            sql.push_str(&format!(
                ", i{number} as ({} select {} from {input} where u.n in (select n from d))",
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

    /// Finds the root row that has the key of the body, and whether the running transaction has written it.
    fn existing(&self) -> WriteStatement {
        let mut parameters = Parameters::default();
        let root = &self.writable.levels[0];
        let input = self.body_rows_sql(0, &root.key, None, &mut parameters);
        let sql = format!(
            "select x.xid, d.key, d.is_own, x.proof from (select {XID} as xid, {PROOF} as proof) x \
             left join (select {key} as key, {IS_OWN} as is_own from {table} r, {input} where {same}) d on true",
            key = canonical_key_sql(&self.key.columns, "r"),
            table = root.table.sql(),
            same = has_key_sql(root),
        );
        parameters.statement(&sql)
    }

    fn insert_root(&self) -> WriteStatement {
        let mut parameters = Parameters::default();
        let root = &self.writable.levels[0];
        let inserted = self.inserted_rows_sql(0, &mut parameters);
        let parts = root.key.iter().map(|&column| root.column_sql(column));
        let parts: Vec<String> = parts.map(|part| format!(", i.{part}::text")).collect();
        let input = self.body_rows_sql(0, &root.key, None, &mut parameters);
        // The snapshot of the statement does not show what its own triggers have done.
        let sql = format!(
            "with i as ({inserted} returning *) select x.xid, \
             d.key is null and exists (select from {table} r, {input} where {same}) as existed, d.*, x.proof \
             from (select {XID} as xid, {PROOF} as proof) x left join (select {key} as key{parts} from i) d on true",
            table = root.table.sql(),
            same = has_key_sql(root),
            key = canonical_key_sql(&self.key.columns, "i"),
            parts = parts.concat(),
        );
        parameters.statement(&sql)
    }

    pub(super) fn insert_level(&self, number: usize) -> LevelInsert {
        let mut parameters = Parameters::default();
        let level = &self.writable.levels[number];
        let is_upper = self.levels().any(|(_, below)| below.parent == Some(number));
        let is_searched = is_upper || level.condition.is_some();
        let returns_keys = level.has_before_insert && is_searched;
        let inserted = self.inserted_rows_sql(number, &mut parameters);
        let wanted = parameters.placeholder(Parameter::Count(number));
        let key = if returns_keys {
            level.key.as_slice()
        } else {
            &[]
        };
        let parts = key.iter().map(|&column| level.column_sql(column));
        let parts: Vec<String> = parts.map(|part| format!(", i.{part}::text")).collect();
        let sql = format!(
            "with i as ({inserted} returning *) select x.xid, x.vetoed{parts}, x.proof from (select {XID} as xid, \
             {wanted}::int8 - (select count(*) from i) as vetoed, {PROOF} as proof) x left join i on {returns_keys}",
            parts = parts.concat(),
        );
        LevelInsert {
            level: number,
            change: Change {
                statement: parameters.statement(&sql),
                missing: self.missing(number),
            },
            returns_keys,
        }
    }

    /// Inserts all rows of a level that the body has.
    fn inserted_rows_sql(&self, number: usize, parameters: &mut Parameters) -> String {
        let level = &self.writable.levels[number];
        let columns = level.inserted_columns();
        let input = self.body_rows_sql(number, &columns, None, parameters);
        let values: Vec<String> = columns.iter().map(|&n| inserted_sql(level, n)).collect();
        format!(
            "{} select {} from {input}",
            level.insert_into_sql(),
            values.join(", ")
        )
    }

    /// Counts the rows of a level that the body has and the table lacks.
    fn missing(&self, number: usize) -> WriteStatement {
        let mut parameters = Parameters::default();
        let level = &self.writable.levels[number];
        let input = self.body_rows_sql(number, &level.identity(), None, &mut parameters);
        let sql = format!(
            "select {XID} as xid, (select count(*) from {input} where not exists (select from {} r where {})) as missing, \
             {PROOF} as proof",
            level.table.sql(),
            same_row_sql(level),
        );
        parameters.statement(&sql)
    }
}
