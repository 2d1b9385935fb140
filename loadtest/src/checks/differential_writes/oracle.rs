//! What an expert does by hand: one transaction at read committed for each write, with one plain statement for each level
//! and kind of change that has rows.
//!
//! For `PUT` and `PATCH` rows are deleted first, children before parents; then each level, upper first, is updated (one
//! statement for each set of changed columns) and then inserted into (one for each set of given columns); rows that a kept row is moved away from are deleted
//! last. The transaction is rolled back unless the status is 2xx.

mod changes;
mod deletions;
mod plan;
mod statements;

use serde_json::Value;
use sqlx::postgres::{PgConnection, PgDatabaseError, PgRow};
use sqlx::{AssertSqlSafe, Row};

use crate::checks::differential_writes::oracle::plan::Plan;
use crate::checks::differential_writes::requests::{Node, Operation, Request};
use crate::checks::differential_writes::schema::Schema;
use crate::checks::differential_writes::state::{State, is_same_key, key_of};
use crate::checks::twins::Condition;

/// Stands for any status from 400 to 499: the measure does not say which.
pub(super) const ANY_REFUSAL: u16 = 499;

/// Decisions that the measure leaves open. An answer is right if it is right for one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Choice {
    /// Sets of changed columns are updated from the last to the first.
    pub(super) has_reversed_updates: bool,
    /// Rows are updated one by one, if several change unique values.
    pub(super) updates_single_rows: bool,
    /// Of several documents that are inserted together, the one whose refusal is told.
    pub(super) refused: Option<usize>,
    /// The order of racing requests, or of the documents of a lenient one; empty: as they were sent.
    pub(super) order: Vec<usize>,
}

impl Choice {
    /// All choices for the requests of a step, the most probable first.
    pub(super) fn all(requests: &[Request]) -> Vec<Self> {
        let count = match requests {
            [request] => request.transactions(),
            requests => requests.len(),
        };
        let documents = requests.iter().map(|request| match &request.operation {
            Operation::Post { documents, .. } if !request.is_lenient() => documents.len(),
            _ => 0,
        });
        let documents = documents.max().filter(|documents| *documents > 1);
        let refused = (0..documents.unwrap_or_default()).map(Some);
        let refused: Vec<Option<usize>> = [None].into_iter().chain(refused).collect();
        let mut choices = Vec::new();
        for updates_single_rows in [false, true] {
            for has_reversed_updates in [false, true] {
                // A POST updates nothing.
                let is_plain = !updates_single_rows && !has_reversed_updates;
                if !is_plain && requests.len() == 1 && count > 1 {
                    continue;
                }
                for &refused in &refused {
                    choices.extend(orders(count).into_iter().map(|order| Self {
                        has_reversed_updates,
                        updates_single_rows,
                        refused,
                        order,
                    }));
                }
            }
        }
        choices
    }
}

/// All orders of `count` things, as they are first.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let Some(last) = count.checked_sub(1) else {
        return vec![Vec::new()];
    };
    let mut all = Vec::new();
    for place in (0..count).rev() {
        for mut order in orders(last) {
            order.insert(place, last);
            all.push(order);
        }
    }
    all
}

/// Why a transaction is rolled back.
#[derive(Debug)]
pub(super) enum Stop {
    /// The request is answered with this status.
    Refused(u16),
    /// PostgreSQL refuses a statement.
    Database { code: String, is_raised: bool },
    /// The check can't go on.
    Broken(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Broken(error.into())
    }
}

impl Stop {
    /// Whether values that must be unique are not.
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Database { code, is_raised: false } if ["23505", "23P01"].contains(&&**code))
    }

    /// The status of the request.
    ///
    /// # Errors
    /// If the check can't go on.
    fn status(self) -> anyhow::Result<u16> {
        match self {
            Self::Refused(status) => Ok(status),
            Self::Database { code, is_raised } => Ok(status_of(&code, is_raised)),
            Self::Broken(error) => Err(error),
        }
    }
}

/// The status that belongs to an error of PostgreSQL.
fn status_of(code: &str, is_raised: bool) -> u16 {
    let named = code
        .strip_prefix("PT")
        .and_then(|status| status.parse().ok());
    match (code, named) {
        ("23505" | "23503" | "23001" | "23P01" | "27000", _) => 409,
        ("P0001" | "44000", _) => 422,
        (_, Some(status)) if is_raised && (400..=599).contains(&status) => status,
        _ if is_raised
            || ["22", "23", "54"]
                .iter()
                .any(|class| code.starts_with(class)) =>
        {
            422
        }
        _ => ANY_REFUSAL,
    }
}

/// Writes to the copy of the database.
pub(super) struct Oracle<'o> {
    pub(super) connection: &'o mut PgConnection,
    pub(super) schema: &'o Schema,
    pub(super) choice: Choice,
    /// A trigger has kept rows that the request was to delete.
    pub(super) has_kept: bool,
}

impl Oracle<'_> {
    /// Executes a request. Returns its status; of a lenient one the status of each document.
    pub(super) async fn execute(&mut self, request: &Request) -> anyhow::Result<Vec<u16>> {
        let Operation::Post { documents, .. } = &request.operation else {
            return Ok(vec![self.transact(request, &[]).await?]);
        };
        if !request.is_lenient() {
            return Ok(vec![self.transact(request, documents).await?]);
        }
        let mut order = self.choice.order.clone();
        if order.len() != documents.len() {
            order = (0..documents.len()).collect();
        }
        let mut statuses = vec![0; documents.len()];
        for number in order {
            let one = std::slice::from_ref(&documents[number]);
            statuses[number] = self.transact(request, one).await?;
        }
        Ok(statuses)
    }

    /// Inserts a document that is there before the first request.
    pub(super) async fn seed(&mut self, document: &Node) -> anyhow::Result<()> {
        self.plain("begin").await?;
        let inserted = self.insert_document(document).await;
        let end = if inserted.is_ok() {
            "commit"
        } else {
            "rollback"
        };
        self.plain(end).await
    }

    async fn transact(&mut self, request: &Request, documents: &[Node]) -> anyhow::Result<u16> {
        self.plain("begin").await?;
        self.has_kept = false;
        let outcome = match self.write(request, documents).await {
            Ok(status) => self.run_deferred(request, status).await,
            Err(stop) => Err(stop),
        };
        let stop = match outcome {
            Ok(status) => {
                self.plain("commit").await?;
                let is_kept = self.has_kept || request.operation.is_delete();
                let has_body = !request.is_minimal || is_kept;
                return Ok(if status == 200 && !has_body {
                    204
                } else {
                    status
                });
            }
            Err(stop) => stop,
        };
        self.plain("rollback").await?;
        // A trigger may leave the row out before its key is compared.
        let may_exist = match &stop {
            Stop::Database { code, .. } => code == "23505",
            Stop::Refused(status) => *status == 409,
            Stop::Broken(_) => false,
        };
        if may_exist
            && request.condition == Condition::MatchNone
            && let [document] = documents
            && self.exists(&document_key(self.schema, document)).await?
        {
            return Ok(412);
        }
        stop.status()
    }

    /// Checks and calls what is deferred, before the answer. Returns `status`.
    async fn run_deferred(&mut self, request: &Request, status: u16) -> Result<u16, Stop> {
        self.statement("set constraints all immediate").await?;
        if !request.operation.is_delete()
            && let Some(key) = request.operation.key()
            && !self.exists(key).await?
        {
            // A trigger would change the key.
            return Err(Stop::Refused(409));
        }
        Ok(status)
    }

    /// Inserts documents, each of which must fit the tables.
    async fn insert_documents(&mut self, documents: &[Node]) -> Result<u16, Stop> {
        let schema = self.schema;
        let is_refused =
            |document: &Node| Plan::of_document(schema, document, None).is_refused(schema);
        if documents.len() > 1
            && let Some(at) = self.choice.refused
        {
            for document in documents.iter().take(at + 1) {
                if is_refused(document) {
                    return Err(Stop::Refused(422));
                }
                self.insert_document(document).await?;
            }
            // No answer has this status: the choice is none.
            return Err(Stop::Refused(0));
        }
        if documents.iter().any(is_refused) {
            return Err(Stop::Refused(422));
        }
        for document in documents {
            self.insert_document(document).await?;
        }
        Ok(201)
    }

    async fn write(&mut self, request: &Request, documents: &[Node]) -> Result<u16, Stop> {
        let schema = self.schema;
        let Some(key) = request.operation.key() else {
            return self.insert_documents(documents).await;
        };
        let plan = match &request.operation {
            Operation::Put { document, .. } => Some(Plan::of_document(schema, document, Some(key))),
            _ => None,
        };
        if plan.as_ref().is_some_and(|plan| plan.is_refused(schema)) {
            return Err(Stop::Refused(422));
        }
        self.lock_root(key).await?;
        let state = State::read(self.connection, schema).await?;
        let stored = state.document(schema, key);
        let exists = !stored.levels[0].is_empty();
        let holds = match request.condition {
            Condition::None => true,
            Condition::Match | Condition::MatchAny => exists,
            Condition::MatchOther => false,
            Condition::MatchNone => !exists,
        };
        if !holds {
            return Err(Stop::Refused(412));
        }
        match (&request.operation, exists) {
            (Operation::Put { .. }, false) => {
                let plan = plan.ok_or(Stop::Refused(ANY_REFUSAL))?;
                let inserted = self.insert_plan(plan).await?;
                if is_same_key(&inserted, key) {
                    return Ok(201);
                }
                Err(Stop::Refused(409))
            }
            (Operation::Put { .. }, true) => {
                let plan = plan.ok_or(Stop::Refused(ANY_REFUSAL))?;
                self.replace(plan, stored).await
            }
            (Operation::Patch { values, below, .. }, true) => {
                let plan = Plan::of_patch(schema, key, values, below);
                if plan.is_refused(schema) {
                    return Err(Stop::Refused(422));
                }
                self.replace(plan, stored).await
            }
            (Operation::Delete { .. }, true) => {
                let all: Vec<Vec<usize>> = stored
                    .levels
                    .iter()
                    .map(|rows| (0..rows.len()).collect())
                    .collect();
                self.delete_rows(&stored, &all).await?;
                Ok(if self.exists(key).await? { 200 } else { 204 })
            }
            _ => Err(Stop::Refused(404)),
        }
    }

    async fn insert_document(&mut self, document: &Node) -> Result<(), Stop> {
        let plan = Plan::of_document(self.schema, document, None);
        self.insert_plan(plan).await.map(|_| ())
    }

    async fn lock_root(&mut self, key: &[Value]) -> Result<(), Stop> {
        let root = self.schema.levels[0].primary_key();
        let sql = format!(
            "select from {} x where {} for update",
            self.schema.table(0),
            statements::is_key_sql(&root, key)
        );
        self.statement(&sql).await.map(|_| ())
    }

    /// Whether a document has this key.
    async fn exists(&mut self, key: &[Value]) -> anyhow::Result<bool> {
        let state = State::read(self.connection, self.schema).await?;
        let root = &self.schema.levels[0];
        let mut rows = state.levels[0].iter();
        Ok(rows.any(|row| is_same_key(&key_of(root, row), key)))
    }

    /// Runs one statement that PostgreSQL may refuse.
    async fn statement(&mut self, sql: &str) -> Result<Vec<PgRow>, Stop> {
        let ran = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .fetch_all(&mut *self.connection)
            .await;
        ran.map_err(|error| {
            let refused = error.as_database_error().map(|database| {
                let named = database.try_downcast_ref::<PgDatabaseError>();
                let routine = named.and_then(PgDatabaseError::routine);
                Stop::Database {
                    code: database.code().unwrap_or_default().into_owned(),
                    is_raised: routine == Some("exec_stmt_raise"),
                }
            });
            match refused {
                // Syntax errors and unknown names are mistakes of this program.
                Some(Stop::Database { code, .. }) if code.starts_with("42") => {
                    Stop::Broken(anyhow::anyhow!("{error}: {sql}"))
                }
                Some(refused) => refused,
                None => Stop::Broken(error.into()),
            }
        })
    }

    /// Runs one statement that must succeed.
    async fn plain(&mut self, sql: &str) -> anyhow::Result<()> {
        let ran = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        ran.execute(&mut *self.connection).await?;
        Ok(())
    }
}

/// The key of a document that a body gives; with nulls for what it leaves out.
fn document_key(schema: &Schema, document: &Node) -> Vec<Value> {
    key_of(&schema.levels[0], &document.values)
}

/// The first column of each row, which has JSON.
fn values_of(rows: &[PgRow]) -> anyhow::Result<Vec<Vec<Value>>> {
    let values = rows.iter().map(|row| {
        let text: String = row.try_get(0)?;
        Ok(serde_json::from_str(&text)?)
    });
    values.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_those_of_the_errors() {
        assert_eq!(status_of("23505", false), 409);
        assert_eq!(status_of("23502", false), 422);
        assert_eq!(status_of("PT503", true), 503);
        assert_eq!(status_of("PT503", false), ANY_REFUSAL);
        assert_eq!(status_of("08006", true), 422);
        assert_eq!(status_of("27000", false), 409);
        assert_eq!(status_of("42P01", false), ANY_REFUSAL);
    }

    #[test]
    fn all_orders_are_tried_and_the_plain_one_first() {
        let found = orders(3);
        assert_eq!(found[0], [0, 1, 2]);
        let different: std::collections::BTreeSet<_> = found.iter().collect();
        assert_eq!((found.len(), different.len()), (6, 6));
    }
}
