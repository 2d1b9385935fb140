//! Bulk writes: many documents, inserted in one transaction as they arrive.
//!
//! Each bulk write has a connection of its own. Dropping it before the commit closes the connection, and PostgreSQL
//! rolls back as soon as it notices that. A client that gets an answer gets it after the rollback: its next request
//! does not meet the locks of this one.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::resource::writable::Rows;
use crate::resource::{Resource, Scope};
use crate::source::SourceError;
use crate::source::loader::{Loaded, Returned};
use crate::source::session::{Identity, wait_for_new_identity};
use crate::source::token::Token;
use crate::source::writes::error::{Failure, Refusal, WriteError};
use crate::source::writes::hidden::hidden_key;
use crate::source::writes::inputs::{Inputs, select_documents};
use crate::source::writes::locks::{AttemptPauses, LockRetry};
use crate::source::writes::owned::foreign_document;
use crate::source::writes::transaction::{
    ROLLBACK_TO_SAVEPOINT, SAVEPOINT, Transaction, WriteTarget,
};
use crate::source::writes::{Shared, TIMEOUT_MARGIN, Writes, followed};

/// Allows one bulk write.
#[derive(Debug)]
pub struct BulkPermit {
    _permit: OwnedSemaphorePermit,
}

/// Why documents were not inserted.
#[derive(Debug)]
pub struct BulkError {
    /// The error.
    pub error: WriteError,
    /// The number of the document that caused it, counted from 0 among those that were inserted together, if known.
    pub document: Option<usize>,
}

impl BulkError {
    fn is_of_one_document(&self) -> bool {
        match &self.error {
            WriteError::Body(_) | WriteError::ForeignOwner | WriteError::ForeignTargets(_) => true,
            WriteError::Refused { refusal, .. } => matches!(
                refusal,
                Refusal::Conflict | Refusal::Invalid | Refusal::Unpartitioned | Refusal::Raised(_)
            ),
            WriteError::Source(error) => error.may_be_of_text(),
            _ => false,
        }
    }
}

/// A transaction that inserts documents of one resource.
pub struct BulkTransaction<'w> {
    shared: &'w Shared,
    transaction: Transaction<'w>,
    resource: Arc<Resource>,
    /// The documents that may be inserted.
    writer: Scope<'static>,
    /// The documents that may be returned.
    reader: Scope<'static>,
    following: watch::Receiver<Option<Arc<Identity>>>,
    /// The transaction's number, once it has one.
    xid: Option<u64>,
    /// How many documents it has inserted.
    documents: u64,
}

impl Writes {
    /// Allows a bulk write until the permit is dropped.
    ///
    /// # Errors
    /// [`SourceError::Overloaded`] if as many bulk writes run as may.
    pub fn bulk_permit(&self) -> Result<BulkPermit, SourceError> {
        let permit = Arc::clone(&self.bulk).try_acquire_owned();
        let permit = permit.map_err(|_| SourceError::Overloaded)?;
        Ok(BulkPermit { _permit: permit })
    }

    /// The most bulk writes at a time.
    pub fn bulk_max(&self) -> usize {
        self.shared.connections.bulk_writes_max()
    }

    /// Begins a transaction for documents of `resource` that are in the scope `writer`; those in `reader` may be returned.
    /// The caller must hold a [`BulkPermit`]. PostgreSQL aborts the
    /// transaction if it is idle for longer than `idle_max` and a second.
    ///
    /// # Errors
    /// Why the transaction could not be begun.
    pub async fn begin_bulk(
        &self,
        resource: Arc<Resource>,
        (writer, reader): (Scope<'static>, Scope<'static>),
        idle_max: Duration,
    ) -> Result<BulkTransaction<'_>, WriteError> {
        let shared = &*self.shared;
        let mut following = shared.followed.clone();
        let mut known = followed(&mut following)?;
        let purpose = shared.connections.bulk_purpose();
        let mut session = shared.connect(purpose, &known).await;
        let is_other = session.as_ref().is_err_and(Failure::is_other_database);
        if is_other && wait_for_new_identity(&mut following, Some(&known)).await {
            known = followed(&mut following)?;
            session = shared.connect(purpose, &known).await;
        }
        let session = session.map_err(|failure| failure.error);
        shared.note_outcome(&session);
        let session = session?;
        let transaction = Transaction::new(shared, session, known, LockRetry::Never);
        let mut bulk = BulkTransaction {
            shared,
            transaction,
            resource,
            writer,
            reader,
            following,
            xid: None,
            documents: 0,
        };
        let target = WriteTarget::of(&bulk.resource)?;
        let pauses = AttemptPauses::until(shared.attempts_end());
        let limit = StepLimit::new(&mut bulk.following, &bulk.transaction, shared);
        let begin = begin(
            &mut bulk.transaction,
            &target,
            pauses,
            idle_max + TIMEOUT_MARGIN,
        );
        limit.run(begin).await?;
        Ok(bulk)
    }
}

async fn begin(
    transaction: &mut Transaction<'_>,
    target: &WriteTarget<'_>,
    mut pauses: AttemptPauses,
    idle: Duration,
) -> Result<(), Failure> {
    while let Err(failure) = transaction.begin(target).await {
        if !failure.error.is_lock_timeout() {
            return Err(failure);
        }
        transaction.roll_back().await?;
        if !pauses.pause().await {
            return Err(failure);
        }
    }
    let idle = idle.as_millis();
    let sql = format!("set local idle_in_transaction_session_timeout = {idle}");
    let set = transaction.session.execute(&sql).await;
    Ok(set.map_err(SourceError::from)?)
}

/// Limits the steps of a bulk write, each of which may run a statement or more for each document.
struct StepLimit<'f> {
    following: &'f mut watch::Receiver<Option<Arc<Identity>>>,
    /// Changes with each statement that has ended.
    progress: watch::Receiver<()>,
    /// The longest time from one to the next.
    statement_max: Duration,
}

impl<'f> StepLimit<'f> {
    fn new(
        following: &'f mut watch::Receiver<Option<Arc<Identity>>>,
        transaction: &Transaction<'_>,
        shared: &Shared,
    ) -> Self {
        Self {
            following,
            progress: transaction.progress.subscribe(),
            statement_max: shared.time_limit(),
        }
    }

    /// Runs a step.
    ///
    /// # Errors
    /// [`SourceError::Timeout`] if a statement takes too long, [`SourceError::Unavailable`] once the feed finds its database
    /// anew; else those of the step.
    async fn run<T>(
        mut self,
        step: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, WriteError> {
        let mut step = std::pin::pin!(step);
        loop {
            let ended = tokio::time::timeout(self.statement_max, self.progress.changed());
            tokio::select! {
                ended = &mut step => return ended.map_err(|failure| failure.error),
                _ = self.following.changed() => return Err(SourceError::no_response().into()),
                ended = ended => if ended.is_err() {
                    return Err(SourceError::Timeout.into());
                },
            }
        }
    }
}

impl BulkTransaction<'_> {
    /// Inserts the documents of `rows`. Returns the canonical key of each.
    ///
    /// # Errors
    /// Why PostgreSQL refused the first document that it refuses, or all of them; [`SourceError::TooLarge`] if a stored
    /// document is longer than `document_max`. The transaction cannot be continued.
    pub async fn insert(&mut self, rows: Rows) -> Result<Vec<String>, BulkError> {
        let inserted = self.try_insert(rows).await;
        inserted.map_err(|fault| BulkError {
            error: if self.writer.is_restricted() {
                fault.error.without_hidden(&self.resource)
            } else {
                fault.error
            },
            document: fault.document,
        })
    }

    async fn try_insert(&mut self, rows: Rows) -> Result<Vec<String>, BulkError> {
        let resource = &*self.resource;
        let (transaction, scope) = (&mut self.transaction, &self.writer);
        let foreign = resource.writable.as_ref().ok();
        let foreign = foreign.and_then(|writable| foreign_document(writable, scope, &rows));
        if foreign.is_some() {
            return Err(BulkError {
                error: WriteError::ForeignOwner,
                document: foreign,
            });
        }
        let limit = StepLimit::new(&mut self.following, transaction, self.shared);
        let inserting = async {
            let target = WriteTarget::of(resource)?;
            transaction.insert_bulk(&target, scope, &rows).await
        };
        let error = match limit.run(inserting).await {
            Ok(inserted) => {
                self.xid = inserted.xid;
                let keys = inserted.keys?;
                self.check(&keys).await?;
                self.documents += keys.len() as u64;
                return Ok(keys);
            }
            Err(error) => error,
        };
        let error = BulkError {
            error,
            document: None,
        };
        if !error.is_of_one_document() {
            return Err(error);
        }
        let limit = StepLimit::new(&mut self.following, transaction, self.shared);
        let searching = async {
            let target = WriteTarget::of(resource)?;
            transaction
                .find_refused_document(&target, scope, &rows)
                .await
        };
        let found = limit.run(searching).await;
        Err(found.ok().flatten().unwrap_or(error))
    }

    /// How many documents it has inserted so far.
    pub fn documents(&self) -> u64 {
        self.documents
    }

    /// Checks that the stored documents of `keys` can be read.
    async fn check(&mut self, keys: &[String]) -> Result<(), BulkError> {
        let found = self.read_written(keys, Returned::Nothing).await;
        let found = found.map_err(|error| BulkError {
            error,
            document: None,
        })?;
        for (document, found) in found.into_iter().enumerate() {
            found.map_err(|error| BulkError {
                error: error.into(),
                document: Some(document),
            })?;
        }
        Ok(())
    }

    async fn read_written(
        &mut self,
        keys: &[String],
        returned: Returned,
    ) -> Result<Vec<Loaded>, WriteError> {
        let transaction = &mut self.transaction;
        let resource = &*self.resource;
        let limit = StepLimit::new(&mut self.following, transaction, self.shared);
        let reading = async {
            let target = WriteTarget::of(resource)?;
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            if returned == Returned::Text {
                transaction.run_deferred(&target).await?;
            }
            transaction.read_written(&target, &keys, returned).await
        };
        limit.run(reading).await
    }

    /// Reads the stored documents of `keys`, in their order, without those that may not be returned, and those that a trigger
    /// has deleted or given another key or owner.
    ///
    /// # Errors
    /// Why one of them cannot be read.
    pub async fn read(&mut self, keys: &[String]) -> Result<Vec<Bytes>, WriteError> {
        let has_triggers = WriteTarget::of(&self.resource)?.writable.has_triggers;
        let found = self.read_written(keys, Returned::Text).await?;
        let gone = || SourceError::Unexpected("a document that was inserted is gone".into());
        let (writer, reader) = (&self.writer, &self.reader);
        let is_shown = |owner: Option<&[u8]>| writer.contains(owner) && reader.contains(owner);
        let found = found.into_iter().filter_map(|found| match found {
            Ok(None) if has_triggers => None,
            Ok(Some(document)) if !is_shown(document.kept().owner()) => None,
            found => Some(found.and_then(|document| Ok(document.ok_or_else(gone)?.body()))),
        });
        Ok(found.collect::<Result<Vec<Bytes>, SourceError>>()?)
    }

    /// Waits until PostgreSQL has rolled back, for at most a second.
    pub async fn roll_back(mut self) {
        // Without an answer, closing the connection rolls back.
        let _ended = tokio::time::timeout(TIMEOUT_MARGIN, self.transaction.roll_back()).await;
    }

    /// Commits. Returns the transaction; `None` if nothing was inserted.
    ///
    /// # Errors
    /// Why nothing was written. After [`WriteError::Unknown`] it may have been committed.
    pub async fn commit(mut self) -> Result<Option<Token>, WriteError> {
        let transaction = &mut self.transaction;
        let target = WriteTarget::of(&self.resource)?;
        let limit = StepLimit::new(&mut self.following, transaction, self.shared);
        let committed = limit.run(transaction.commit(&target)).await;
        let was_sent = self.transaction.committing;
        committed.map_err(|error| match error {
            WriteError::Source(SourceError::Timeout) if was_sent => WriteError::Unknown,
            error if was_sent && error.is_connection_error() => WriteError::Unknown,
            error => error,
        })?;
        let nonce = self.transaction.followed.nonce;
        Ok(self.xid.map(|xid| Token { nonce, xid }))
    }
}

/// The outcome of documents that were inserted together.
struct InsertedBatch {
    /// The canonical key of each; or the first document that was left out because its key, or another value of it that
    /// must be unique, exists.
    keys: Result<Vec<String>, BulkError>,
    /// The number of the transaction; `None` if no document was inserted.
    xid: Option<u64>,
}

impl Transaction<'_> {
    async fn insert_bulk(
        &mut self,
        target: &WriteTarget<'_>,
        scope: &Scope<'_>,
        rows: &Rows,
    ) -> Result<InsertedBatch, Failure> {
        let mut keys = vec![None; rows.documents()];
        let mut xid = None;
        self.check_equal_keys(target, Inputs::rows(rows)).await?;
        let mut inserted = self.insert_rows(target, scope, rows).await?;
        for (document, done) in mem::take(&mut inserted.documents) {
            if let Some(key) = keys.get_mut(document) {
                *key = Some(done.key);
                xid = Some(done.xid);
            }
        }
        let keys = keys.into_iter().enumerate();
        let keys = keys.map(|(document, key)| {
            key.ok_or_else(|| BulkError {
                error: inserted.conflict(target.writable, document),
                document: Some(document),
            })
        });
        Ok(InsertedBatch {
            keys: keys.collect(),
            xid,
        })
    }

    /// Searches for the first document of `rows` that PostgreSQL refuses, after it has aborted the transaction because
    /// of one of them.
    ///
    /// A binary search: another transaction, which is never committed, inserts half of the remaining documents at a
    /// time. Those that it accepts stay inserted, so that a document is found that conflicts with one before it. `None`
    /// if the document conflicted with those that were inserted earlier.
    async fn find_refused_document(
        &mut self,
        target: &WriteTarget<'_>,
        scope: &Scope<'_>,
        rows: &Rows,
    ) -> Result<Option<BulkError>, Failure> {
        self.roll_back().await?;
        self.begin(target).await?;
        let mut open = 0..rows.documents();
        while !open.is_empty() {
            let half = open.start..open.start + open.len().div_ceil(2);
            let refused = |error, document| BulkError {
                error,
                document: Some(document),
            };
            self.savepoint(SAVEPOINT).await?;
            let tried = select_documents(target.writable, rows, &half);
            match self.insert_bulk(target, scope, &tried).await {
                Ok(InsertedBatch { keys: Ok(_), .. }) => open.start = half.end,
                Ok(InsertedBatch {
                    keys: Err(BulkError { error, document }),
                    ..
                }) => {
                    let existing = half.start + document.unwrap_or_default();
                    return Ok(Some(refused(error, existing)));
                }
                Err(failure) if half.len() == 1 => {
                    let mut error = failure.error;
                    self.savepoint(ROLLBACK_TO_SAVEPOINT).await?;
                    error = self.locate(target, &tried, error).await;
                    if error.is_unique_violation() {
                        let hidden = self.find_hidden(target, &tried).await?;
                        if !hidden.is_empty() {
                            error = hidden_key(hidden);
                        }
                    }
                    return Ok(Some(refused(error, half.start)));
                }
                Err(_) => {
                    self.savepoint(ROLLBACK_TO_SAVEPOINT).await?;
                    open = half;
                }
            }
        }
        Ok(None)
    }
}
