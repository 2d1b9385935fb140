//! Definitions: what the freshness of resources depends on besides rows, that is triggers, columns, partitions,
//! policies, types and roles. A pass has to notice if any of it has changed, since a trigger may have logged nothing
//! then.
//!
//! There are three ways to notice, from cheap to exact:
//!
//! - The *plan mark*: the value of a prepared statement whose plan depends on the tables and contains the result of
//!   `larder.plan_mark()`. The value stays the same until the definition of a table changes, because PostgreSQL then
//!   discards the plan. It takes 0.03 ms for any number of tables. It is read after the rows of a pass, in a
//!   transaction of its own. A writer that logs nothing has waited for the lock of the transaction that disabled its
//!   trigger; that transaction had sent its invalidation messages by then, and a transaction receives those when it
//!   begins. The plan mark is read before the fingerprints that belong to it.
//! - The *remainder*: what no plan depends on, such as enum values and roles. It is read in the snapshot of the pass:
//!   few rows, found by index; none in most databases.
//! - *Fingerprints*: hashes of all of it, in one snapshot. They are needed since a transaction that disables a trigger,
//!   writes, and enables the trigger again becomes visible before it sends its invalidation messages. Fingerprints are
//!   computed when the plan mark or the remainder has changed, and at least every `max_staleness / 2`. Tiers are
//!   trusted for `max_staleness` from the start of the last pass that compared them (`tests/model`, module
//!   `definition`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row};

use crate::clock::Boottime;
use crate::feed::schema::TABLES;
use crate::resource::ResourceId;
use crate::resource::fingerprint::{Fingerprint, MarkSql};
use crate::resource::proof::{PROOF, ProvedSql};
use crate::resource::row_security::STATE_SQL;
use crate::source::SourceError;

/// The tables that the freshness of each resource depends on, as parallel lists for SQL.
#[derive(Clone, Debug, Default)]
pub(super) struct WatchedTables {
    pub(super) resources: Vec<i32>,
    pub(super) oids: Vec<i64>,
    /// Whether the resource's SQL names the table. Otherwise it is a descendant of one that is named.
    pub(super) named: Vec<bool>,
}

/// The resources with a watched table on which a transaction holds an access exclusive lock, or waits for one.
const LOCKED_SQL: &str = "\
select distinct w.resource from unnest($1::int4[], $2::int8[]::oid[]) w (resource, oid) join pg_locks l on l.relation = w.oid \
where l.locktype = 'relation' and l.mode = 'AccessExclusiveLock' \
  and l.database = (select oid from pg_database where datname = current_database())";

impl WatchedTables {
    /// The `fingerprints`, with how each is read again over other connections. `types` are those of columns, each after
    /// its table; `None` while schema larder can't be used.
    pub(super) fn readable(
        &self,
        fingerprints: &Fingerprints,
        types: Option<&[(i64, i64)]>,
    ) -> BTreeMap<ResourceId, Fingerprint> {
        let sql = Arc::new(fingerprint_sql());
        let texts = fingerprints.iter().map(|(resource, text)| {
            let fingerprint = Fingerprint {
                text: text.clone(),
                sql: Arc::clone(&sql),
                oids: Vec::new(),
                named: Vec::new(),
                marks: None,
                compared_rows: Mutex::default(),
                compared_at: AtomicU64::new(Boottime::NEVER.0),
            };
            (*resource, fingerprint)
        });
        let mut readable: BTreeMap<ResourceId, Fingerprint> = texts.collect();
        let tables = self.oids.iter().zip(&self.named);
        for (resource, (oid, is_named)) in self.resources.iter().zip(tables) {
            let resource = ResourceId::try_from(*resource).ok();
            if let Some(known) = resource.and_then(|resource| readable.get_mut(&resource)) {
                known.oids.push(*oid);
                known.named.push(*is_named);
            }
        }
        for known in readable.values_mut() {
            known.marks = types.map(|types| mark_sql(&known.oids, types));
        }
        readable
    }

    /// The resources that can't be read at the moment, since one of their tables is locked.
    pub(super) async fn locked_resources(
        &self,
        connection: &mut PgConnection,
    ) -> Result<BTreeSet<ResourceId>, SourceError> {
        let locked: Vec<i32> = sqlx::query_scalar(LOCKED_SQL)
            .bind(&self.resources)
            .bind(&self.oids)
            .fetch_all(connection)
            .await?;
        let locked = locked.into_iter();
        Ok(locked
            .filter_map(|number| ResourceId::try_from(number).ok())
            .collect())
    }
}

/// The fingerprint of each resource. Parameters are the lists `resources`, `oids` and `named` of [`WatchedTables`].
///
/// A fingerprint is a hash of lines, one for each row of the catalogue that counts. The hashes of lines are combined
/// without an order; since each line contains an oid and a transaction number, no two lines are equal. What depends on
/// larder's role follows, if a table has row security: after a slash a hash of the settings of role and database, and
/// after a space what row security lets the role see, as [`STATE_SQL`] gives it, to be compared with the state in which
/// the resource was checked. [`Fingerprint::of_tables`] is the rest.
///
/// - Schemas are included by name, since the statements of documents and passes name them, and renaming a schema
///   changes no table; and by oid and transaction number, since two schemas may exchange their names and change them
///   back.
/// - `used` are the types that columns consist of, through arrays, ranges, domains and composite types. PostgreSQL's
///   own types, whose oids are below `FirstNormalObjectId`, never change.
/// - The columns of descendants are left out: they follow from those of the table above.
const FINGERPRINTS_SQL: &str = "\
with recursive w (resource, oid, named) as materialized (select * from unnest({resources}::int4[], {oids}::int8[]::oid[], {named}::bool[])), \
t (every, named) as materialized (select array_agg(distinct oid), array_agg(distinct oid) filter (where named) from w), \
used (oid, type) as ( \
  select a.attrelid, a.atttypid from pg_attribute a \
    where a.attrelid = any((select named from t)::oid[]) and a.attnum > 0 and a.atttypid >= 16384 \
  union select u.oid, n.type {parts}), \
tg as materialized (select t.tgrelid as oid, t.tgfoid, concat_ws(' ', 't', t.oid, t.tgenabled, t.tgfoid, t.xmin) as line \
  from pg_trigger t where t.tgrelid = any((select every from t)::oid[]) and not t.tgisinternal), \
fn as materialized (select p.oid, p.xmin from pg_proc p where p.oid = any(array(select distinct tgfoid from tg))), \
tr as materialized (select tg.oid, concat_ws(' ', tg.line, fn.xmin) as line from tg left join fn on fn.oid = tg.tgfoid), \
own as materialized (select bit_xor(hashtextextended(line, 0)) as hash from ( \
    select concat_ws(' ', 'o', c.relname, c.oid, c.relfilenode) as line from pg_class c \
      where c.oid = any(array[{own}]::oid[]) \
    union all select concat_ws(' ', 't', t.oid, t.tgenabled, t.tgfoid, t.xmin) \
      from pg_trigger t where t.tgrelid = to_regclass('larder.change') \
    union all select concat_ws(' ', 'a', a.attrelid, a.attnum, a.xmin) \
      from pg_attribute a where a.attrelid = any(array[{own}]::oid[]) and a.attnum > 0 \
    union all select concat_ws(' ', 'x', x.indexrelid, x.indisvalid) \
      from pg_index x where x.indrelid = any(array[{own}]::oid[]) \
  ) o), \
l (oid, line) as ( \
    select c.oid, concat_ws(' ', 'c', c.relfilenode, c.xmin, n.nspname, n.oid, n.xmin) \
      from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = any((select every from t)::oid[]) \
    union all select oid, line from tr \
    union all select i.inhparent, concat_ws(' ', 'i', i.inhrelid, i.inhdetachpending, i.xmin) \
      from pg_inherits i where i.inhparent = any((select every from t)::oid[]) \
    union all select i.inhrelid, concat_ws(' ', 'u', i.inhparent, i.inhdetachpending, i.xmin) \
      from pg_inherits i where i.inhrelid = any((select every from t)::oid[]) \
    union all select a.attrelid, concat_ws(' ', 'a', a.attnum, a.xmin) \
      from pg_attribute a where a.attrelid = any((select named from t)::oid[]) and a.attnum > 0 \
    union all select x.indrelid, concat_ws(' ', 'x', x.indexrelid, x.indisprimary, x.indisvalid, x.indimmediate, x.indkey) \
      from pg_index x where x.indrelid = any((select named from t)::oid[]) and x.indisunique \
    union all select k.conrelid, concat_ws(' ', 'k', k.oid, k.xmin) \
      from pg_constraint k where k.conrelid = any((select named from t)::oid[]) and k.contype in ('f', 'p', 'u') \
    union all select p.polrelid, concat_ws(' ', 'r', p.oid, p.xmin) \
      from pg_policy p where p.polrelid = any((select named from t)::oid[]) \
    union all select u.oid, concat_ws(' ', 'y', t.oid, t.xmin, n.nspname, n.oid, n.xmin) \
      from used u join pg_type t on t.oid = u.type join pg_namespace n on n.oid = t.typnamespace \
    union all select u.oid, concat_ws(' ', 'e', e.oid, e.xmin) from used u join pg_enum e on e.enumtypid = u.type \
    union all select u.oid, concat_ws(' ', 'm', a.attrelid, a.attnum, a.xmin) \
      from used u join pg_type t on t.oid = u.type join pg_attribute a on a.attrelid = t.typrelid and a.attnum > 0 \
    union all select x.oid, concat_ws(' ', 'd', d.objid, d.xmin) from ( \
        select distinct u.oid, f.refobjid {extensions}) x \
      cross join lateral (select objid, xmin from pg_depend where refclassid = 'pg_extension'::regclass \
        and refobjid = x.refobjid and classid = 'pg_class'::regclass and deptype = 'e' offset 0) d \
    union all select u.oid, concat_ws(' ', 'j', j.oid, j.xmin, f.xmin) from used u \
      join pg_cast j on j.castsource = u.type and j.casttarget = 'json'::regtype left join pg_proc f on f.oid = j.castfunc), \
q (oid, state) as materialized (select c.oid, {state} \
  from pg_class c where c.oid = any((select named from t)::oid[]) and c.relrowsecurity), \
gs as materialized (select bit_xor(hashtextextended(concat_ws(' ', g.setdatabase, g.setrole, g.setconfig, g.since), 0)) as hash from ({settings}) g), \
h as (select l.oid, bit_xor(hashtextextended(l.line, 0)) as hash from l group by l.oid) \
select coalesce(array_agg(hash order by resource), '{}') as hashes, coalesce(array_agg(resource order by resource), '{}') as resources from ( \
  select w.resource, concat_ws(' ', concat_ws('/', bit_xor(hashtextextended(concat_ws(' ', w.oid, h.hash, own.hash), 0)), \
    max(gs.hash) filter (where q.oid is not null)), string_agg(q.state, ', ' order by w.oid)) as hash \
  from w cross join own cross join gs left join h on h.oid = w.oid left join q on q.oid = w.oid and w.named group by w.resource) r";

/// Joins the types `u` of `used` to the types that they consist of.
const PARTS_SQL: &str = "\
from used u join pg_type t on t.oid = u.type cross join lateral ( \
    select t.typelem as type union all select t.typbasetype \
    union all select r.rngsubtype from pg_range r where r.rngtypid = t.oid \
    union all select r.rngtypid from pg_range r where r.rngmultitypid = t.oid \
    union all select a.atttypid from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0) n \
    where n.type >= 16384";

/// Joins the types `u` of `used` to the extensions `f` that show them: those whose tables `DEPENDENT_SQL` watches.
const EXTENSIONS_SQL: &str = "\
from used u join pg_type t on t.oid = u.type \
    left join pg_cast j on j.castsource = t.oid and j.casttarget = 'json'::regtype cross join lateral ( \
      select refobjid from pg_depend where classid = 'pg_proc'::regclass \
        and objid = any(array[t.typoutput, j.castfunc]) and deptype = 'e' offset 0) f";

/// The oids of [`Remainder`], for the tables in `$1`.
const REMAINDER_OIDS_SQL: &str = "\
with recursive used (oid, type) as ( \
  select a.attrelid, a.atttypid from pg_attribute a \
    where a.attrelid = any($1::int8[]::oid[]) and a.attnum > 0 and a.atttypid >= 16384 \
  union select u.oid, n.type {parts}) \
select \
  array(select oid::int8 from used order by oid, type) as tables, \
  array(select type::int8 from used order by oid, type) as types, \
  array(select distinct f.refobjid::int8 {extensions}) as extensions, \
  array(select c.oid::int8 from pg_class c where c.oid = any($1::int8[]::oid[]) and c.relrowsecurity) as guarded";

/// The rows of the catalogue that describe tables, as far as writes depend on them, as an expression. It is made of few scans,
/// since it is planned for each transaction.
const ROWS_SQL: &str = "\
concat( \
    (select string_agg(concat_ws(' ', c.oid, c.relfilenode, c.xmin, n.nspname, n.oid, n.xmin), ',' order by c.oid) \
      from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = any({tables}::int8[]::oid[])), \
    (select string_agg(concat_ws(' ', a.attrelid, a.attnum, a.xmin), ',' order by a.attrelid, a.attnum) \
      from pg_attribute a where a.attrelid = any({tables}::int8[]::oid[]) and a.attnum > 0), \
    (select string_agg(concat_ws(' ', t.oid, t.tgenabled, t.xmin), ',' order by t.oid) \
      from pg_trigger t where t.tgrelid = any({tables}::int8[]::oid[])), \
    (select string_agg(concat_ws(' ', k.oid, k.xmin), ',' order by k.oid) \
      from pg_constraint k where k.conrelid = any({tables}::int8[]::oid[])), \
    (select string_agg(concat_ws(' ', i.inhrelid, i.inhparent, i.xmin), ',' order by i.inhrelid, i.inhparent) \
      from pg_inherits i where i.inhparent = any({tables}::int8[]::oid[])))";

/// The part of the remainder that concerns types, as an expression.
const TYPES_SQL: &str = "\
concat( \
    (select string_agg(concat_ws(' ', t.oid, t.xmin), ',' order by t.oid) from pg_type t where t.oid = any({types}::int8[]::oid[])), \
    (select string_agg(concat_ws(' ', e.oid, e.xmin), ',' order by e.oid) from pg_enum e where e.enumtypid = any({types}::int8[]::oid[])), \
    (select string_agg(concat_ws(' ', a.attrelid, a.attnum, a.xmin), ',' order by a.attrelid, a.attnum) \
      from pg_type t join pg_attribute a on a.attrelid = t.typrelid and a.attnum > 0 where t.oid = any({types}::int8[]::oid[])), \
    (select string_agg(concat_ws(' ', j.oid, j.xmin, f.xmin), ',' order by j.oid) \
      from pg_cast j left join pg_proc f on f.oid = j.castfunc \
      where j.castsource = any({types}::int8[]::oid[]) and j.casttarget = 'json'::regtype))";

/// The part of the remainder that concerns the tables of extensions, as an expression.
const EXTENSION_TABLES_SQL: &str = "\
coalesce((select string_agg(concat_ws(' ', d.objid, d.xmin), ',' order by d.objid) from pg_depend d \
    where d.refclassid = 'pg_extension'::regclass and d.refobjid = any({extensions}::int8[]::oid[]) \
      and d.classid = 'pg_class'::regclass and d.deptype = 'e'), '')";

/// The part of the remainder that concerns row security and larder's role, as an expression.
const ROW_SECURITY_SQL: &str = "\
concat( \
    (select string_agg(row_security_active(o::oid)::text, ',' order by o) from unnest({tables}::int8[]) o), \
    (select string_agg(concat_ws(' ', p.oid, exists ( \
        select from unnest(p.polroles) role where role = 0 or pg_has_role(role, 'usage'))), ',' order by p.oid) \
      from pg_policy p where p.polrelid = any({tables}::int8[]::oid[])), \
    (select string_agg(concat_ws(' ', g.setdatabase, g.setrole, g.setconfig, g.since), ',' order by g.setdatabase, g.setrole) \
      from ({settings}) g))";

/// Settings of role and database, which policies may read. A session has those that were in force when it began.
const SETTINGS_SQL: &str = "\
select setdatabase, setrole, setconfig, xmin as since from pg_db_role_setting \
  where setdatabase in (0, (select oid from pg_database where datname = current_database())) \
  and setrole in (0, (select oid from pg_roles where rolname = session_user))";

/// Oids of what no plan depends on: these types and tables are compared in each pass.
#[derive(Clone, Debug, Default)]
pub(super) struct Remainder {
    pub(super) types: Vec<i64>,
    /// Extensions that show types.
    pub(super) extensions: Vec<i64>,
    /// Tables with row security.
    pub(super) row_security_tables: Vec<i64>,
}

/// What a pass needs to notice that a definition has changed.
#[derive(Clone, Debug)]
pub(super) struct Definitions {
    pub(super) watched: WatchedTables,
    pub(super) remainder: Remainder,
    /// The types of columns that are not PostgreSQL's own, each after its table.
    pub(super) types: Vec<(i64, i64)>,
    plan_mark_sql: String,
}

impl Definitions {
    /// Reads what the freshness of the resources in `watched` depends on.
    pub(super) async fn read(
        connection: &mut PgConnection,
        watched: WatchedTables,
    ) -> Result<Self, SourceError> {
        let row = sqlx::query(AssertSqlSafe(
            REMAINDER_OIDS_SQL
                .replace("{parts}", PARTS_SQL)
                .replace("{extensions}", EXTENSIONS_SQL),
        ))
        .bind(&watched.oids)
        .fetch_one(&mut *connection)
        .await?;
        let (tables, types): (Vec<i64>, Vec<i64>) = (row.try_get("tables")?, row.try_get("types")?);
        let types: Vec<(i64, i64)> = tables.into_iter().zip(types).collect();
        let remainder = Remainder {
            types: types_of(&types, |_| true),
            extensions: row.try_get("extensions")?,
            row_security_tables: row.try_get("guarded")?,
        };
        let own: Vec<i64> = sqlx::query_scalar(
            "select t::oid::int8 from unnest($1::text[]) name, to_regclass('larder.' || name) t where t is not null",
        )
        .bind(TABLES)
        .fetch_all(&mut *connection)
        .await?;
        let functions: Vec<String> = sqlx::query_scalar(
            "select distinct format('larder.%I() is null', p.proname) from pg_proc p join pg_trigger t on t.tgfoid = p.oid \
             where p.pronamespace = to_regnamespace('larder') \
             and (t.tgrelid = any($1::int8[]::oid[]) or t.tgrelid = to_regclass('larder.change'))",
        )
        .bind(&watched.oids)
        .fetch_all(connection)
        .await?;
        let mut oids: Vec<i64> = watched.oids.iter().copied().chain(own).collect();
        oids.sort_unstable();
        oids.dedup();
        // The trigger functions are never called, but the plan depends on them.
        let plan_mark_sql = format!(
            "{}, case when false then {} end",
            plan_mark_sql("''", &oids),
            if functions.is_empty() {
                "false".to_owned()
            } else {
                functions.join(" or ")
            }
        );
        Ok(Self {
            watched,
            remainder,
            types,
            plan_mark_sql,
        })
    }

    /// Reads the plan mark. It reflects the invalidation messages that had been sent when the statement began.
    pub(super) async fn plan_mark(
        &self,
        connection: &mut PgConnection,
    ) -> Result<String, SourceError> {
        let mark = sqlx::query_scalar(AssertSqlSafe(self.plan_mark_sql.as_str()));
        Ok(mark.fetch_one(connection).await?)
    }

    /// Reads the fingerprints of the watched resources.
    pub(super) async fn fingerprints(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Fingerprints, SourceError> {
        let row = sqlx::query(AssertSqlSafe(fingerprints_sql(["$1", "$2", "$3"])))
            .bind(&self.watched.resources)
            .bind(&self.watched.oids)
            .bind(&self.watched.named)
            .fetch_one(connection)
            .await?;
        read_fingerprints(&row)
    }
}

/// SQL for the fingerprints. The arguments are the parameters for the lists of [`WatchedTables`].
pub(super) fn fingerprints_sql([resources, oids, named]: [&str; 3]) -> String {
    FINGERPRINTS_SQL
        .replace("{parts}", PARTS_SQL)
        .replace("{extensions}", EXTENSIONS_SQL)
        .replace("{resources}", resources)
        .replace("{oids}", oids)
        .replace("{named}", named)
        .replace(
            "{own}",
            &TABLES
                .map(|name| format!("to_regclass('larder.{name}')"))
                .join(", "),
        )
        .replace("{settings}", SETTINGS_SQL)
        .replace("{state}", STATE_SQL)
}

/// A statement for a plan mark that depends on the tables with these `oids`, with the value of the expression `remainder`.
fn plan_mark_sql(remainder: &str, oids: &[i64]) -> String {
    let tables: Vec<String> = oids
        .iter()
        .map(|oid| format!("'{oid}'::regclass"))
        .collect();
    // A table that is named by its oid is neither locked nor opened, and may be renamed.
    format!(
        "select larder.plan_mark()::text || {remainder}, array[{}]::regclass[] is null",
        tables.join(", ")
    )
}

/// The marks of one resource with these tables.
fn mark_sql(oids: &[i64], types: &[(i64, i64)]) -> MarkSql {
    let remainder = Remainder {
        types: types_of(types, |table| oids.contains(&table)),
        ..Remainder::default()
    };
    let rows = ROWS_SQL.replace("{tables}", &oid_list(oids));
    MarkSql {
        plan: plan_mark_sql(&remainder.sql(), oids),
        rows: format!("select md5({rows}) || {}", remainder.sql()),
    }
}

/// Oids as the text of an array.
fn oid_list(oids: &[i64]) -> String {
    let oids: Vec<String> = oids.iter().map(ToString::to_string).collect();
    format!("'{{{}}}'", oids.join(","))
}

/// The types of these tables.
fn types_of(types: &[(i64, i64)], is_table: impl Fn(i64) -> bool) -> Vec<i64> {
    let of_tables = types.iter().filter(|(table, _)| is_table(*table));
    let types: BTreeSet<i64> = of_tables.map(|(_, of)| *of).collect();
    types.into_iter().collect()
}

impl Remainder {
    /// An expression for a text that differs if anything of it has changed. For most databases it is a constant.
    pub(super) fn sql(&self) -> String {
        let mut parts = Vec::new();
        if !self.types.is_empty() {
            parts.push(TYPES_SQL.replace("{types}", &oid_list(&self.types)));
        }
        if !self.extensions.is_empty() {
            let extensions = oid_list(&self.extensions);
            parts.push(EXTENSION_TABLES_SQL.replace("{extensions}", &extensions));
        }
        if !self.row_security_tables.is_empty() {
            let sql = ROW_SECURITY_SQL.replace("{tables}", &oid_list(&self.row_security_tables));
            parts.push(sql.replace("{settings}", SETTINGS_SQL));
        }
        if parts.is_empty() {
            "''".to_owned()
        } else {
            format!("md5({})", parts.join(" || "))
        }
    }
}

/// SQL for the fingerprint of one resource: see [`Fingerprint`].
fn fingerprint_sql() -> ProvedSql {
    let resources = "array_fill(0, array[cardinality($1::int8[])])";
    let fingerprints = fingerprints_sql([resources, "$1", "$2"]);
    ProvedSql::new(&format!(
        "select {PROOF} as proof, f.hashes[1] as fingerprint from ({fingerprints}) f"
    ))
}

/// Resources, each with its fingerprint.
pub(super) type Fingerprints = Vec<(ResourceId, String)>;

/// The fingerprints in a row's columns `resources` and `hashes`.
pub(super) fn read_fingerprints(row: &PgRow) -> Result<Fingerprints, SourceError> {
    let resources: Vec<i32> = row.try_get("resources")?;
    let hashes: Vec<String> = row.try_get("hashes")?;
    let pairs = resources.into_iter().zip(hashes);
    Ok(pairs
        .filter_map(|(number, hash)| Some((ResourceId::try_from(number).ok()?, hash)))
        .collect())
}
