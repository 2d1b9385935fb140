//! What a write should do: its checks and its rows by plain SQL, in one transaction on a copy of the database.

mod rows;

use serde_json::Value;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row};

use crate::checks::scope::differential::principals::Right;
use crate::checks::scope::differential::schema::{Access, Column, Role, Schema};
use crate::checks::scope::differential::writes::{Members, Write, WriteOf, rows_of};
use crate::checks::scope::kinds::literal_of;
use crate::checks::twins::{Condition, Form};

/// Names a savepoint before each document.
const SAVEPOINT: &str = "savepoint document";

/// What the answer may be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Expected {
    /// Any of these. Where a request is wrong in several ways, any of the refusals is right.
    pub(super) statuses: Vec<u16>,
    /// A hidden row has the key, which the unrestricted are told.
    pub(super) is_key_hidden: bool,
}

/// Executes writes in a copy of the database.
pub(super) struct Oracle<'o> {
    pub(super) connection: &'o mut PgConnection,
    pub(super) schema: &'o Schema,
    pub(super) right: Right,
}

/// What is wrong with a write so far.
#[derive(Debug, Default)]
struct Refusals(Vec<u16>);

impl Refusals {
    fn add(&mut self, status: u16) {
        if !self.0.contains(&status) {
            self.0.push(status);
        }
    }
}

/// A document that is written, and how.
struct Target<'t> {
    key: Vec<Value>,
    document: &'t Members,
    is_patch: bool,
}

impl Oracle<'_> {
    /// Executes a write. Returns what to expect; for each line of a lenient one.
    pub(super) async fn execute(&mut self, write: &Write) -> anyhow::Result<Vec<Expected>> {
        let refused = |status| Expected {
            statuses: vec![status],
            ..Expected::default()
        };
        if self.right == Right::None {
            let statuses = vec![401, 403];
            return Ok(vec![Expected {
                statuses,
                ..Expected::default()
            }]);
        }
        let is_claimless = self.right == Right::Own(None) && self.schema.owner.is_some();
        match &write.of {
            WriteOf::Post { .. } if is_claimless => Ok(vec![refused(403)]),
            WriteOf::Post {
                documents,
                form: Form::Lenient,
            } => {
                let mut expected = Vec::new();
                for document in documents {
                    expected.push(self.insert_all(std::slice::from_ref(document)).await?);
                }
                Ok(expected)
            }
            WriteOf::Post { documents, .. } if documents.is_empty() => Ok(vec![refused(422)]),
            WriteOf::Post { documents, .. } => Ok(vec![self.insert_all(documents).await?]),
            WriteOf::Put { key, document } => Ok(vec![self.write_one(write, key, document).await?]),
            WriteOf::Patch { key, document } => {
                Ok(vec![self.write_one(write, key, document).await?])
            }
            WriteOf::Delete { key } => Ok(vec![self.write_one(write, key, &Members::new()).await?]),
        }
    }

    async fn insert_all(&mut self, documents: &[Members]) -> anyhow::Result<Expected> {
        let mut refusals = Refusals::default();
        let mut is_key_hidden = false;
        self.plain("begin").await?;
        for document in documents {
            let keys = self.schema.tables[0].of_role(Role::Key);
            let key: Vec<Value> = keys.map(|column| member(document, &column.name)).collect();
            // The first document that can't be inserted decides.
            is_key_hidden |= refusals.0.is_empty() && self.is_hidden(&key).await?;
            let target = Target {
                key,
                document,
                is_patch: false,
            };
            self.insert_document(&target, &mut refusals).await?;
        }
        let mut expected = self.end(refusals, 201).await?;
        expected.is_key_hidden = is_key_hidden;
        Ok(expected)
    }

    /// PUT, PATCH or DELETE.
    async fn write_one(
        &mut self,
        write: &Write,
        key: &[i64],
        document: &Members,
    ) -> anyhow::Result<Expected> {
        let kinds = self.schema.key_kinds().into_iter();
        let key: Vec<Value> = kinds
            .zip(key)
            .map(|(kind, part)| kind.json(*part))
            .collect();
        self.plain("begin").await?;
        let stored = self.stored_root(&key).await?;
        if stored.is_none() && matches!(self.right, Right::Own(_)) {
            let refused = self.refused_absence(write, &key).await?;
            if !refused.0.is_empty() {
                return self.end(refused, 404).await;
            }
        }
        let holds = match write.condition {
            Condition::None => true,
            Condition::Match | Condition::MatchAny => stored.is_some(),
            Condition::MatchOther => false,
            Condition::MatchNone => stored.is_none(),
        };
        let mut refusals = Refusals::default();
        if !holds {
            refusals.add(412);
        }
        let is_put = matches!(write.of, WriteOf::Put { .. });
        let is_key_hidden = is_put && self.is_hidden(&key).await?;
        if is_key_hidden && matches!(self.right, Right::Own(_)) {
            // Whose a hidden document is, is not compared.
            refusals.add(404);
            if write.condition == Condition::MatchNone {
                refusals.add(412);
            }
        }
        if stored.is_none() && !is_put {
            refusals.add(404);
            return self.end(refusals, 404).await;
        }
        if !holds && matches!(write.of, WriteOf::Delete { .. }) {
            return self.end(refusals, 412).await;
        }
        // The body may be judged first.
        let target = Target {
            key,
            document,
            is_patch: matches!(write.of, WriteOf::Patch { .. }),
        };
        let status = match (stored, &write.of) {
            (None, _) => {
                self.insert_document(&target, &mut refusals).await?;
                201
            }
            (Some(_), WriteOf::Delete { .. }) => {
                let delete = self.delete_row(0, &target.key).await?;
                refusals.0.extend(delete);
                if self.stored_root(&target.key).await?.is_some() {
                    200
                } else {
                    204
                }
            }
            (Some(stored), _) => {
                self.replace_document(&target, &stored, &mut refusals)
                    .await?;
                if write.is_minimal { 204 } else { 200 }
            }
        };
        let mut expected = self.end(refusals, status).await?;
        expected.is_key_hidden = is_key_hidden;
        Ok(expected)
    }

    /// How a restricted principal is refused that writes a document which is not there, or not its own; empty: it may create
    /// the document.
    async fn refused_absence(&mut self, write: &Write, key: &[Value]) -> anyhow::Result<Refusals> {
        let is_put = matches!(write.of, WriteOf::Put { .. });
        let has_tag = matches!(write.condition, Condition::Match | Condition::MatchOther);
        let wants_document = !is_put || has_tag || write.condition == Condition::MatchAny;
        let (is_hidden, exists) = (self.is_hidden(key).await?, self.exists(0, key).await?);
        Ok(Refusals(match self.right {
            // Whoever owns nothing may read nothing, and entity tags are for those that read.
            Right::Own(None) if has_tag => vec![403, 404],
            Right::Own(None) => vec![404],
            _ if wants_document => vec![404],
            _ if exists && !is_hidden => vec![404],
            _ => Vec::new(),
        }))
    }

    /// Commits, unless something is wrong.
    async fn end(&mut self, refusals: Refusals, status: u16) -> anyhow::Result<Expected> {
        let Refusals(statuses) = refusals;
        let is_committed = statuses.is_empty();
        self.plain(if is_committed { "commit" } else { "rollback" })
            .await?;
        Ok(Expected {
            statuses: if is_committed { vec![status] } else { statuses },
            is_key_hidden: false,
        })
    }

    /// The root row, if the principal may write its document.
    async fn stored_root(&mut self, key: &[Value]) -> anyhow::Result<Option<Members>> {
        let owned = match (self.right, &self.schema.owner) {
            (Right::Own(None), Some(_)) => "false".to_owned(),
            (Right::Own(Some(owner)), Some(of)) => format!("o = {}", of.kind.literal(owner)),
            _ => "true".to_owned(),
        };
        let sql = format!(
            "select to_jsonb(t)::text from {} t where {} and {owned}",
            self.schema.visible_sql(0),
            self.is_key_sql(0, key)
        );
        let rows = self.rows(&sql).await?;
        let row = rows
            .first()
            .map(|row| Ok(serde_json::from_str(row.try_get(0)?)?));
        row.transpose()
    }

    async fn exists(&mut self, table: usize, key: &[Value]) -> anyhow::Result<bool> {
        let (table, is_key) = (self.schema.table_sql(table), self.is_key_sql(table, key));
        self.is_any(&format!("select from {table} where {is_key}"))
            .await
    }

    async fn is_hidden(&mut self, key: &[Value]) -> anyhow::Result<bool> {
        let (table, is_key) = (self.schema.table_sql(0), self.is_key_sql(0, key));
        let condition = self.schema.tables[0].condition_sql();
        self.is_any(&format!(
            "select from {table} where {is_key} and ({condition}) is not true"
        ))
        .await
    }

    /// Whether the principal may make a column point to this row.
    async fn may_point(
        &mut self,
        table: usize,
        column: &str,
        value: &Value,
    ) -> anyhow::Result<bool> {
        let (Right::Own(owner), false) = (self.right, value.is_null()) else {
            return Ok(true);
        };
        let mut lookups = self.schema.lookups(table);
        let Some((lookup, _, access)) = lookups.find(|(_, name, _)| *name == column) else {
            return Ok(true);
        };
        match (access, owner, &self.schema.owner) {
            (Access::Shared, ..) | (_, _, None) => Ok(true),
            (Access::Nobody, ..) | (_, None, _) => Ok(false),
            (Access::Owner, Some(owner), Some(of)) => {
                let (rows, value) = (self.schema.visible_sql(lookup), literal_of(value));
                let owner = of.kind.literal(owner);
                self.is_any(&format!(
                    "select from {rows} t where k0 = {value} and o = {owner}"
                ))
                .await
            }
        }
    }

    fn is_key_sql(&self, table: usize, key: &[Value]) -> String {
        let columns = self.schema.tables[table].of_role(Role::Key);
        let equal = columns
            .zip(key)
            .map(|(column, part)| format!("{} = {}", column.name, literal_of(part)));
        equal.collect::<Vec<_>>().join(" and ")
    }

    async fn is_any(&mut self, sql: &str) -> anyhow::Result<bool> {
        Ok(!self.rows(sql).await?.is_empty())
    }

    async fn rows(&mut self, sql: &str) -> anyhow::Result<Vec<PgRow>> {
        let rows = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .fetch_all(&mut *self.connection)
            .await;
        rows.map_err(|error| anyhow::anyhow!("{error}: {sql}"))
    }

    /// Runs a statement. Returns the status of its failure, which undoes nothing else.
    async fn statement(&mut self, sql: &str) -> anyhow::Result<Option<u16>> {
        self.plain(SAVEPOINT).await?;
        let ran = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(&mut *self.connection)
            .await;
        let Err(error) = ran else {
            return Ok(None);
        };
        let code = error
            .as_database_error()
            .and_then(|database| database.code().map(String::from));
        self.plain("rollback to savepoint document").await?;
        match code.as_deref() {
            Some("23505" | "23503" | "23001") => Ok(Some(409)),
            Some(code) if code.starts_with("22") || code.starts_with("23") => Ok(Some(422)),
            _ => Err(anyhow::anyhow!("{error}: {sql}")),
        }
    }

    async fn plain(&mut self, sql: &str) -> anyhow::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(&mut *self.connection)
            .await?;
        Ok(())
    }
}

/// A member of a body; null if it is left out.
fn member(members: &Members, name: &str) -> Value {
    members.get(name).cloned().unwrap_or_default()
}
