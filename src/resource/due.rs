//! The statements of a dispatch: SQL text only.
//!
//! A statement names the dispatch, the table and its columns; slots, positions and rows are parameters. Values are compared
//! as their types do. A moment is the text that PostgreSQL writes for it in UTC, so that none is rounded.

use std::sync::Arc;
use std::time::Duration;

use crate::resource::Resource;
use crate::resource::condition::and_sql;
use crate::resource::kept::KeptColumns;
use crate::resource::key::KeyColumn;
use crate::resource::key::sql::{canonical_key_sql, key_part_sql};
use crate::resource::query::limited_documents_sql;
use crate::resource::sql::{identifier, literal};

/// The most slots of a dispatch.
pub const SLOTS_MAX: usize = 100_000;

/// The most rows of `larder.delivery` that are looked at in one statement.
const HOUSEKEEPING_ROWS: u32 = 10_000;

/// The arrays that tell what attempts came to, by name and type.
const OF_ATTEMPTS: [(&str, &str); 6] = [
    ("delay", "float8[]"),
    ("attempts", "int4[]"),
    ("first due", "text[]"),
    ("error", "text[]"),
    ("id", "text[]"),
    ("element", "text[]"),
];

/// How a column holds moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueType {
    /// `timestamptz`
    Timestamp,
    /// An integer: seconds since 1970.
    Seconds,
}

/// What becomes of a row that was delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reschedule {
    /// It is due again so long after the statement.
    AfterNow(Duration),
    /// It is due again at the first moment after the statement that is a multiple of this after the due moment.
    AfterDue(Duration),
    /// It is due again at the moment that this SQL expression says.
    Next(String),
    /// It is deleted.
    Delete,
}

/// The rows of a dispatch, checked against the database.
#[derive(Clone, Debug)]
pub struct DueRows {
    /// The name of the dispatch.
    pub dispatch: String,
    /// What a row shows, and its key.
    pub resource: Arc<Resource>,
    /// The column with the moment.
    pub due: String,
    /// How it holds moments.
    pub due_type: DueType,
    /// The columns whose combinations are slots.
    pub partition: Vec<KeyColumn>,
    /// The columns of `partition` in the order of an index that begins with them; `None` without such an index.
    pub slot_order: Option<Vec<String>>,
    /// An index begins with the columns of `partition` and goes on with `due`.
    pub is_due_indexed: bool,
    /// What becomes of a row that was delivered.
    pub reschedule: Reschedule,
    /// The new due moments of rows have to be known.
    pub tells_moments: bool,
    /// The database stores every character.
    pub is_utf8: bool,
}

impl DueType {
    /// Returns the present moment, as a value of the column.
    fn now_sql(self) -> &'static str {
        match self {
            Self::Timestamp => "now()",
            Self::Seconds => "floor(extract(epoch from now()))::int8",
        }
    }

    fn sql_type(self) -> &'static str {
        match self {
            Self::Timestamp => "timestamptz",
            Self::Seconds => "int8",
        }
    }

    /// Returns the seconds from `due` until now.
    fn age_sql(self, due: &str) -> String {
        match self {
            Self::Timestamp => format!(
                "case when not isfinite({due}) then 0 else extract(epoch from now() - {due}) end::float8"
            ),
            Self::Seconds => format!("(extract(epoch from now()) - {due})::float8"),
        }
    }

    /// Returns the moment that is `seconds` after `from`, both SQL.
    fn after_sql(self, from: &str, seconds: &str) -> String {
        match self {
            Self::Timestamp => format!("{from} + make_interval(secs => {seconds})"),
            Self::Seconds => format!("{from} + ceil({seconds})::int8"),
        }
    }

    /// Returns the text of a moment before all others.
    pub fn first(self) -> &'static str {
        match self {
            Self::Timestamp => "-infinity",
            Self::Seconds => "-9223372036854775808",
        }
    }
}

impl DueRows {
    /// Returns SQL for due rows of a slot: key, record, due moment, the one before the first attempt (null: it is the same),
    /// the latter as JSON, and the number of attempts before.
    ///
    /// Its parameters are the values of the slot as text, the most bytes of a record, the most rows; with `is_after` also the
    /// place to read on from: the due moment, unless rows are read by key, and the parts of the key.
    pub fn match_sql(&self, is_after: bool) -> String {
        let key = canonical_key_sql(&self.resource.key.columns, "t0");
        let due = self.due_sql("t0");
        let (name, first) = (literal(&self.dispatch), self.due_type.sql_type());
        let mut conditions = self.of_slot_sql(|number| format!("${}::text", number + 1));
        conditions.push(format!("{due} <= {}", self.due_type.now_sql()));
        conditions.extend(self.exists_sql());
        let bound = self.partition.len() + 1;
        let keys = self.resource.key.columns.iter();
        let order = keys
            .clone()
            .map(|column| format!("t0.{}", identifier(&column.name)));
        let mut order: Vec<String> = order.collect();
        let mut parameter = bound + 1;
        let mut next = || {
            parameter += 1;
            format!("${parameter}::text")
        };
        let mut after = Vec::new();
        if self.is_due_indexed {
            order.insert(0, due.clone());
            after.push(format!("{}::{first}", next()));
        }
        after.extend(keys.map(|column| column.place_sql(&next())));
        let order = order.join(", ");
        if is_after {
            conditions.push(format!("({order}) > ({})", after.join(", ")));
        }
        // Without a row of the dispatch, the table is not looked at for each row.
        let from = format!(
            "{table} t0 left join lateral (select v.attempts, v.first_due from larder.delivery v \
             where exists (select from larder.delivery where dispatch = {name}) \
             and v.dispatch = {name} and v.key = {key} and v.due = {due}::text) v on true \
             where {conditions} order by {order} limit ${limit}",
            table = self.resource.root.table.sql(),
            conditions = conditions.join(" and "),
            limit = bound + 1,
        );
        let more = [
            format!("{due}::text"),
            "v.first_due".to_owned(),
            format!("to_json(coalesce(v.first_due::{first}, {due}))::text"),
            "coalesce(v.attempts, 0)".to_owned(),
        ];
        let kept = KeptColumns::new(self.resource.owner.as_ref(), &self.resource.by);
        limited_documents_sql(
            &from,
            bound,
            &self.resource.key,
            &self.resource.root,
            &kept,
            &more,
        )
    }

    /// Returns why polls are expensive, and the statement that creates the index for it; `None` if there is one.
    pub fn missing_index(&self) -> Option<(String, String)> {
        let names = |more: &[&String]| {
            let columns = self.partition.iter().map(|column| &column.name);
            let names = columns.chain(more.iter().copied());
            let names = names.map(|name| identifier(name));
            names.collect::<Vec<_>>().join(", ")
        };
        let table = &self.resource.root.table;
        let create =
            |columns: String| format!("create index concurrently on {} ({columns});", table.sql());
        if self.is_due_indexed {
            return None;
        }
        let slot = if self.partition.is_empty() {
            "the table"
        } else {
            "a slot"
        };
        let reason = format!(
            "no index finds the due rows of dispatch {}: each look reads all rows of {slot}, so looks are up to 60 s apart, and a \
             row may wait that long. That suits where most of them are due at a time: an index without {} leaves updates HOT, \
             with a fillfactor of 45 to 90. Else create one",
            self.dispatch, self.due
        );
        if self.slot_order.is_none() && !self.partition.is_empty() {
            let reason = format!(
                "no index has the rows of a slot of dispatch {} together: each look reads the whole table, so looks are up to \
                 60 s apart, and a row may wait that long",
                self.dispatch
            );
            return Some((reason, create(names(&[]))));
        }
        // Rows that are due at one moment are read in the order of their keys.
        let keys = self.resource.key.columns.iter().map(|column| &column.name);
        let more: Vec<&String> = std::iter::once(&self.due).chain(keys).collect();
        Some((reason, create(names(&more))))
    }

    /// Returns SQL for the values of all slots as text, a column for each column of the partition.
    pub fn slots_sql(&self) -> String {
        let values: Vec<String> = (self.partition.iter())
            .map(|column| canonical_key_sql(std::slice::from_ref(column), "t0"))
            .collect();
        let (values, table) = (values.join(", "), self.resource.root.table.sql());
        let limit = SLOTS_MAX + 1;
        let Some(order) = &self.slot_order else {
            let names = self.partition.iter().map(|column| identifier(&column.name));
            let names = names.collect::<Vec<_>>().join(", ");
            return format!(
                "select {values} from (select distinct {names} from {table}) t0 limit {limit}"
            );
        };
        let of = |alias: &str| {
            let names = order
                .iter()
                .map(|name| format!("{alias}.{}", identifier(name)));
            names.collect::<Vec<_>>().join(", ")
        };
        // Each step of the recursion is one search of the index, however many rows a slot has.
        format!(
            "with recursive slot as ((select {row} from {table} t0 order by {row} limit 1) union all \
             select n.* from slot s cross join lateral \
             (select {row} from {table} t0 where ({row}) > ({last}) order by {row} limit 1) n) \
             select {values} from slot t0 limit {limit}",
            row = of("t0"),
            last = of("s"),
        )
    }

    /// Returns SQL for those of the slots in `$1, $2, …`, an array of texts for each column, that have a due row from the
    /// moment in the last array on: the number of the slot from 1, and the seconds since its first such row was due.
    pub fn poll_sql(&self) -> String {
        let columns = self.partition.len();
        let names = (0..columns).map(|number| format!("p{number}"));
        let names: Vec<String> = names.chain(["after".to_owned(), "n".to_owned()]).collect();
        let arrays = (1..=columns + 1).map(|number| format!("${number}::text[]"));
        let due = self.due_sql("t0");
        let mut conditions = self.of_slot_sql(|number| format!("w.p{number}"));
        conditions.push(format!("{due} <= {}", self.due_type.now_sql()));
        conditions.push(format!("{due} >= w.after::{}", self.due_type.sql_type()));
        conditions.extend(self.exists_sql());
        format!(
            "select w.n, f.age from unnest({arrays}) with ordinality w ({names}) cross join lateral \
             (select {age} as age from {table} t0 where {conditions} order by {due} limit 1) f",
            arrays = arrays.collect::<Vec<_>>().join(", "),
            names = names.join(", "),
            age = self.due_type.age_sql(&due),
            table = self.resource.root.table.sql(),
            conditions = conditions.join(" and "),
        )
    }

    /// Returns SQL for the seconds until the first row of a slot is due, negative if one is; null if none will be. Its
    /// parameters are the values of the slot as text.
    pub fn earliest_sql(&self) -> String {
        let due = self.due_sql("t0");
        let mut conditions = self.of_slot_sql(|number| format!("${}::text", number + 1));
        if self.due_type == DueType::Timestamp {
            conditions.push(format!("{due} < 'infinity'"));
        }
        conditions.extend(self.exists_sql());
        format!(
            "select -({age}) from (select min({due}) as due from {table} t0 where {conditions}) m",
            age = self.due_type.age_sql("m.due"),
            table = self.resource.root.table.sql(),
            conditions = conditions.join(" and "),
        )
    }

    /// Returns SQL that reschedules rows, each only if its due moment is still the given one and no other transaction has
    /// locked it.
    ///
    /// Its parameters are arrays with an item for each row: the parts of the key; the due moment; the seconds until the next
    /// attempt, null for a row that is done; the number of attempts; the first due moment; why the attempt failed; the id and
    /// the element of a dead letter, null for others. It returns a row for each that was not rescheduled, or for all with
    /// `tells_moments`: its number from 1, whether it was locked, whether its new due moment is later (null: it was not
    /// rescheduled), that moment, and whether the due moment is still the given one in the statement's snapshot.
    ///
    /// With `is_plain` all rows were delivered at their first attempt, and the due moment is the last parameter.
    pub fn settle_sql(&self, is_plain: bool) -> String {
        // An expression of users may name the table, so all other names have a space.
        let own = identifier(&self.resource.root.table.name);
        let table = self.resource.root.table.sql();
        let due = identifier(&self.due);
        let is_key = |alias: &str, of: &str| self.is_key_sql(alias, of);
        let keys = self.resource.key.columns.iter();
        let order = keys.map(|column| format!("{own}.{}", identifier(&column.name)));
        let moment = format!("text[]::{}[]", self.due_type.sql_type());
        let mut given = vec![("due", &*moment)];
        if !is_plain {
            given.extend(OF_ATTEMPTS);
        }
        let (wanted, next) = (self.wanted_sql(&given), self.next_sql(&own, is_plain));
        let new_due = if is_plain && !self.tells_moments {
            "null".to_owned()
        } else {
            format!("{own}.{due}")
        };
        let is_later = r#"("larder l"."larder next" is null or "larder l"."larder next" > "larder l"."larder due")"#;
        let update = |condition: &str| {
            format!(
                "update {table} {own} set {due} = \"larder l\".\"larder next\" from \"larder locked\" \"larder l\" \
                 where {} and {condition} and {is_later} returning \"larder l\".*, {new_due}::text as due, \
                 coalesce({own}.{due} > \"larder l\".\"larder due\", true) as is_later",
                is_key(&own, "larder l")
            )
        };
        let remove = |condition: &str| {
            format!(
                "delete from {table} {own} using \"larder locked\" \"larder l\" where {} and {condition} \
                 returning \"larder l\".*, null::text as due, true as is_later",
                is_key(&own, "larder l")
            )
        };
        let moved = match self.reschedule {
            Reschedule::Delete if is_plain => format!("moved as ({})", remove("true")),
            Reschedule::Delete => format!(
                "removed as ({}), retried as ({}), moved as (table removed union all table retried)",
                remove("\"larder l\".\"larder delay\" is null"),
                update("\"larder l\".\"larder delay\" is not null")
            ),
            _ => format!("moved as ({})", update("true")),
        };
        let (key, records) = if is_plain {
            (String::new(), String::new())
        } else {
            let key = canonical_key_sql(&self.resource.key.columns, &own);
            (format!(", {key} as \"larder key\""), self.records_sql())
        };
        format!(
            "with {wanted}, \"larder locked\" as materialized (select \"larder w\".*{key}, {next} as \"larder next\" \
             from \"larder wanted\" \"larder w\" join {table} {own} on {same} \
             where {own}.{due} = \"larder w\".\"larder due\"{exists} \
             order by {order} for {lock} of {own} skip locked), {moved}{records} \
             select \"larder w\".\"larder n\" as n, \"larder l\".\"larder n\" is not null as locked, m.is_later, m.due, \
             \"larder l\".\"larder n\" is null and exists (select from {table} {own} where {same} \
             and {own}.{due} = \"larder w\".\"larder due\"{exists}) as waiting \
             from \"larder wanted\" \"larder w\" left join \"larder locked\" \"larder l\" using (\"larder n\") \
             left join moved m using (\"larder n\") \
             where {tells_moments} or m.is_later is not true",
            tells_moments = self.tells_moments,
            same = is_key(&own, "larder w"),
            exists = and_sql(self.resource.root.condition.as_ref(), &own),
            order = order.collect::<Vec<_>>().join(", "),
            // Rows that refer to this one can be inserted meanwhile, unless it goes.
            lock = if self.reschedule == Reschedule::Delete {
                "update"
            } else {
                "no key update"
            },
        )
    }

    /// Returns the parts of [`Self::settle_sql`] that write what is known of attempts. None of them joins two parts of the
    /// statement: PostgreSQL does not know how many rows those have, and would compare each with each.
    fn records_sql(&self) -> String {
        let name = literal(&self.dispatch);
        format!(
            ", kept as (insert into larder.delivery as v (dispatch, key, due, first_due, attempts, error) \
             select {name}, m.\"larder key\", m.due, m.\"larder first due\", m.\"larder attempts\", m.\"larder error\" \
             from moved m where m.\"larder delay\" is not null \
             on conflict (dispatch, key) do update set due = excluded.due, first_due = excluded.first_due, \
             attempts = excluded.attempts, error = excluded.error, failed_at = now()), \
             cleared as (delete from larder.delivery v using moved m \
             where m.\"larder delay\" is null and m.\"larder attempts\" > 1 and v.dispatch = {name} and v.key = m.\"larder key\"), \
             dead as (insert into larder.dead_letter (dispatch, id, key, due, element, attempts, error) \
             select {name}, m.\"larder id\", m.\"larder key\", m.\"larder first due\", m.\"larder element\", \
             m.\"larder attempts\", m.\"larder error\" from moved m \
             where m.\"larder element\" is not null on conflict (dispatch, id) do nothing)"
        )
    }

    /// Returns rows as a part of `with`: the parts of their keys, then `columns` by name and type, all of them arrays that
    /// are parameters, and the number of the row from 1. The names have a space, so that an expression of users names none of
    /// them.
    fn wanted_sql(&self, columns: &[(&str, &str)]) -> String {
        let mut arrays: Vec<String> = Vec::new();
        let mut names: Vec<String> = Vec::new();
        for (number, column) in self.resource.key.columns.iter().enumerate() {
            arrays.push(column.parameter_sql(number + 1));
            names.push(format!("\"larder k{number}\""));
        }
        for (name, sql_type) in columns {
            arrays.push(format!("${}::{sql_type}", arrays.len() + 1));
            names.push(format!("\"larder {name}\""));
        }
        format!(
            "\"larder wanted\" as materialized (select * from unnest({arrays}) with ordinality w ({names}, \"larder n\"))",
            arrays = arrays.join(", "),
            names = names.join(", "),
        )
    }

    /// Returns the moment at which a row of the table `own` is due again.
    fn next_sql(&self, own: &str, is_plain: bool) -> String {
        let (due_type, delay) = (self.due_type, "\"larder w\".\"larder delay\"");
        let (now, due) = (
            due_type.now_sql(),
            format!("{own}.{}", identifier(&self.due)),
        );
        let next = match &self.reschedule {
            Reschedule::AfterNow(interval) => {
                due_type.after_sql(now, &interval.as_secs_f64().to_string())
            }
            Reschedule::AfterDue(interval) => {
                let seconds = match due_type {
                    DueType::Timestamp => interval.as_secs_f64(),
                    DueType::Seconds => interval.as_secs_f64().ceil(),
                };
                let age = due_type.age_sql(&due);
                due_type.after_sql(
                    &due,
                    &format!("{seconds} * (floor(({age}) / {seconds}) + 1)"),
                )
            }
            // A comment at its end ends with the line.
            Reschedule::Next(expression) => format!("({expression}\n)"),
            Reschedule::Delete => "null".to_owned(),
        };
        let retry = match due_type {
            DueType::Timestamp => due_type.after_sql(now, delay),
            DueType::Seconds => format!("greatest({}, {due} + 1)", due_type.after_sql(now, delay)),
        };
        let of_type = due_type.sql_type();
        if is_plain {
            return format!("({next})::{of_type}");
        }
        format!("case when {delay} is null then ({next})::{of_type} else ({retry})::{of_type} end")
    }

    /// Returns SQL that gives rows their former due moments back, unless another transaction has locked them. Its parameters
    /// are arrays: the parts of the keys, the present moments and the former ones. It returns the numbers, from 1, of rows
    /// that still have the present moment.
    pub fn restore_sql(&self) -> String {
        let moment = format!("text[]::{}[]", self.due_type.sql_type());
        let keys = self.resource.key.columns.iter();
        let order = keys.map(|column| format!("t0.{}", identifier(&column.name)));
        format!(
            "with {wanted}, locked as materialized (select w.* from \"larder wanted\" w join {table} t0 on {same} \
             where t0.{due} = w.\"larder now\" order by {order} for no key update of t0 skip locked), \
             restored as (update {table} t0 set {due} = w.\"larder before\" from locked w where {same} \
             returning w.\"larder n\" as n, t0.{due} is distinct from w.\"larder now\" as is_moved) \
             select w.\"larder n\" from \"larder wanted\" w \
             where not exists (select from restored r where r.n = w.\"larder n\" and r.is_moved) \
             and exists (select from {table} t0 where {same} and t0.{due} = w.\"larder now\")",
            wanted = self.wanted_sql(&[("now", &*moment), ("before", &*moment)]),
            table = self.resource.root.table.sql(),
            due = identifier(&self.due),
            same = self.is_key_sql("t0", "w"),
            order = order.collect::<Vec<_>>().join(", "),
        )
    }

    /// Returns SQL that deletes what is known of attempts for rows that have another due moment by now, or are gone.
    pub fn housekeeping_sql(&self) -> String {
        let columns = &self.resource.key.columns;
        let same = columns.iter().enumerate().map(|(number, column)| {
            let part = key_part_sql(columns, number, "v.key");
            format!("t0.{} = {part}", identifier(&column.name))
        });
        format!(
            "delete from larder.delivery v where v.ctid = any (array(select o.ctid from larder.delivery o \
             where o.dispatch = {name} order by o.failed_at limit {HOUSEKEEPING_ROWS})) and v.dispatch = {name} \
             and not exists (select from {table} t0 where {same} and {due}::text = v.due)",
            name = literal(&self.dispatch),
            table = self.resource.root.table.sql(),
            same = same.collect::<Vec<_>>().join(" and "),
            due = self.due_sql("t0"),
        )
    }

    fn due_sql(&self, alias: &str) -> String {
        format!("{alias}.{}", identifier(&self.due))
    }

    /// Returns conditions: row `t0` is of the slot whose values are the texts that `text` gives by number.
    fn of_slot_sql(&self, text: impl Fn(usize) -> String) -> Vec<String> {
        let columns = self.partition.iter().enumerate();
        let conditions = columns.map(|(number, column)| {
            let value = column.value_sql(&text(number));
            format!("t0.{} = {value}", identifier(&column.name))
        });
        conditions.collect()
    }

    /// Returns conditions: row `t0` has a key, exists for larder, and is not stuck.
    fn exists_sql(&self) -> Vec<String> {
        let columns = &self.resource.key.columns;
        let named = columns
            .iter()
            .map(|column| format!("t0.{} is not null", identifier(&column.name)));
        let mut conditions: Vec<String> = named.collect();
        let condition = self.resource.root.condition.iter();
        conditions.extend(condition.map(|condition| condition.sql("t0")));
        let (name, key) = (literal(&self.dispatch), canonical_key_sql(columns, "t0"));
        let stuck = format!("from larder.dead_letter d where d.dispatch = {name} and d.is_stuck");
        // The first part is computed once for a statement.
        conditions.push(format!(
            "(not (select exists (select {stuck})) or not exists (select {stuck} and d.key = {key} and d.due = {}::text))",
            self.due_sql("t0")
        ));
        conditions
    }

    /// Returns a condition: the row called `alias` has the key of the row called `of` of the statement.
    fn is_key_sql(&self, alias: &str, of: &str) -> String {
        let columns = self.resource.key.columns.iter().enumerate();
        let same = columns.map(|(number, column)| {
            format!(
                "{alias}.{} = {}.\"larder k{number}\"",
                identifier(&column.name),
                identifier(of)
            )
        });
        same.collect::<Vec<_>>().join(" and ")
    }
}
