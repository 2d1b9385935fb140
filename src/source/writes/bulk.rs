//! Many documents in one transaction, as they come.
//!
//! Each bulk write has a connection of its own, from its beginning to its end. Whoever drops it before it commits
//! closes the connection, and PostgreSQL rolls back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnection;
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::resource::Resource;
use crate::resource::writable::Rows;
use crate::source::SourceError;
use crate::source::loader::wait_for_new_identity;
use crate::source::session::Identity;
use crate::source::token::Token;
use crate::source::writes::bound::part;
use crate::source::writes::error::{Failure, Refusal, WriteError};
use crate::source::writes::locks::{LockRetry, Pauses};
use crate::source::writes::transaction::{Target, Transaction};
use crate::source::writes::{GRACE, Shared, Writes, followed};

/// Marks what is to stay while documents are tried.
const MARK: &str = "savepoint larder";
const BACK_TO_MARK: &str = "rollback to savepoint larder";

/// One of the bulk writes that there may be at a time.
#[derive(Debug)]
pub struct BulkPermit {
    _permit: OwnedSemaphorePermit,
}

/// Why documents were not inserted.
#[derive(Debug)]
pub struct BulkFault {
    /// What is wrong.
    pub error: WriteError,
    /// Which of the documents that were to be inserted together it is about, counted from 0, where that is known.
    pub document: Option<usize>,
}

impl BulkFault {
    fn is_of_one_document(&self) -> bool {
        let refusals = [Refusal::Conflict, Refusal::Invalid];
        matches!(&self.error, WriteError::Refused { refusal, .. } if refusals.contains(refusal))
    }
}

/// A transaction that inserts documents of one resource.
pub struct Bulk<'w> {
    shared: &'w Shared,
    transaction: Transaction<'w>,
    resource: Arc<Resource>,
    following: watch::Receiver<Option<Arc<Identity>>>,
    /// The transaction's number, once it has one.
    xid: Option<u64>,
}

impl Writes {
    /// Leave to write in bulk, until it is dropped.
    ///
    /// # Errors
    /// [`SourceError::Overloaded`] where as many do already as there are connections for.
    pub fn bulk_permit(&self) -> Result<BulkPermit, SourceError> {
        let permit = Arc::clone(&self.bulk).try_acquire_owned();
        let permit = permit.map_err(|_| SourceError::Overloaded)?;
        Ok(BulkPermit { _permit: permit })
    }

    /// Begins a transaction for documents of `resource`, for whoever holds a [`BulkPermit`]. PostgreSQL ends it where
    /// nothing is asked of it for longer than `patience` and a moment.
    ///
    /// # Errors
    /// Why PostgreSQL can't be written to.
    pub async fn bulk(
        &self,
        resource: Arc<Resource>,
        patience: Duration,
    ) -> Result<Bulk<'_>, WriteError> {
        let shared = &*self.shared;
        let mut following = shared.followed.clone();
        let mut known = followed(&mut following)?;
        let mut session = shared.connect(&known).await;
        let is_other = session.as_ref().is_err_and(Failure::is_of_other_database);
        if is_other && wait_for_new_identity(&mut following, Some(&known)).await {
            known = followed(&mut following)?;
            session = shared.connect(&known).await;
        }
        let transaction = Transaction {
            session: session.map_err(|failure| failure.error)?,
            database: &shared.database,
            document_bytes_max: shared.document_bytes_max,
            followed: known,
            lock_retry: LockRetry::Never,
            locking_since: None,
            committing: false,
            committed: &shared.committed,
        };
        let mut bulk = Bulk {
            shared,
            transaction,
            resource,
            following,
            xid: None,
        };
        let target = Target::of(&bulk.resource)?;
        let pauses = Pauses::until(shared.writing_until());
        let begin = begin(&mut bulk.transaction, &target, pauses, patience + GRACE);
        bounded(&mut bulk.following, shared.limit(), begin).await?;
        Ok(bulk)
    }
}

async fn begin(
    transaction: &mut Transaction<'_>,
    target: &Target<'_>,
    mut pauses: Pauses,
    idle: Duration,
) -> Result<(), Failure> {
    while let Err(failure) = transaction.begin(target).await {
        if !failure.error.is_held() {
            return Err(failure);
        }
        transaction.roll_back().await?;
        if !pauses.pause().await {
            return Err(failure);
        }
    }
    let idle = idle.as_millis();
    let idle = format!("set local idle_in_transaction_session_timeout = {idle}");
    Ok(say(&mut transaction.session.connection, &idle).await?)
}

async fn say(connection: &mut PgConnection, sql: &str) -> Result<(), SourceError> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(connection)
        .await?;
    Ok(())
}

/// What `step` comes to, unless it takes too long or the feed has to find its database anew.
async fn bounded<T>(
    following: &mut watch::Receiver<Option<Arc<Identity>>>,
    limit: Duration,
    step: impl Future<Output = Result<T, Failure>>,
) -> Result<T, WriteError> {
    tokio::select! {
        ended = tokio::time::timeout(limit, step) => match ended {
            Ok(ended) => ended.map_err(|failure| failure.error),
            Err(_) => Err(SourceError::Timeout.into()),
        },
        _ = following.changed() => Err(SourceError::no_response().into()),
    }
}

impl Bulk<'_> {
    /// Inserts the documents of `rows`: the canonical key of each.
    ///
    /// # Errors
    /// What is wrong with the first document that PostgreSQL refuses, or with all; the transaction is lost.
    pub async fn insert(&mut self, mut rows: Rows) -> Result<Vec<String>, BulkFault> {
        let resource = &*self.resource;
        let transaction = &mut self.transaction;
        let inserting = async {
            let target = Target::of(resource)?;
            transaction.complete(&target, &mut rows).await?;
            transaction.insert_bulk(&target, &rows).await
        };
        let error = match bounded(&mut self.following, self.shared.limit(), inserting).await {
            Ok(inserted) => {
                self.xid = inserted.xid;
                let keys = inserted.keys;
                return keys.map_err(|taken| BulkFault {
                    error: WriteError::Exists,
                    document: Some(taken),
                });
            }
            Err(error) => error,
        };
        let fault = BulkFault {
            error,
            document: None,
        };
        if !fault.is_of_one_document() {
            return Err(fault);
        }
        let searching = async {
            let target = Target::of(resource)?;
            transaction.search(&target, &rows).await
        };
        let found = bounded(&mut self.following, self.shared.limit(), searching).await;
        Err(found.ok().flatten().unwrap_or(fault))
    }

    /// The documents of `keys` as they are stored, in their order.
    ///
    /// # Errors
    /// Why one of them can't be given.
    pub async fn read(&mut self, keys: &[String]) -> Result<Vec<Bytes>, WriteError> {
        let transaction = &mut self.transaction;
        let resource = &*self.resource;
        let reading = async {
            let target = Target::of(resource)?;
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let found = transaction.read(&target, &keys).await?;
            let gone = || SourceError::Unexpected("a document that was inserted is gone".into());
            let found = found.into_iter().map(|found| found?.ok_or_else(gone));
            Ok(found.collect::<Result<Vec<Bytes>, SourceError>>()?)
        };
        bounded(&mut self.following, self.shared.limit(), reading).await
    }

    /// Commits: the transaction, none where nothing was inserted.
    ///
    /// # Errors
    /// Why nothing was written; after [`WriteError::Unknown`] it may have been.
    pub async fn commit(mut self) -> Result<Option<Token>, WriteError> {
        let transaction = &mut self.transaction;
        let target = Target::of(&self.resource)?;
        let committing = transaction.commit(&target);
        let committed = bounded(&mut self.following, self.shared.limit(), committing).await;
        committed.map_err(|error| match error {
            WriteError::Source(SourceError::Timeout) => WriteError::Unknown,
            error if error.is_connection_error() => WriteError::Unknown,
            error => error,
        })?;
        let nonce = self.transaction.followed.nonce;
        Ok(self.xid.map(|xid| Token { nonce, xid }))
    }
}

/// What became of documents that were inserted together.
struct Inserted {
    /// The canonical key of each; or the first one that was left out, since its key exists, or another value of it that
    /// is unique.
    keys: Result<Vec<String>, usize>,
    xid: Option<u64>,
}

impl Transaction<'_> {
    async fn insert_bulk(&mut self, target: &Target<'_>, rows: &Rows) -> Result<Inserted, Failure> {
        let mut keys = vec![None; rows.documents()];
        let mut xid = None;
        for (document, done) in self.insert_rows(target, rows).await? {
            if let Some(key) = keys.get_mut(document) {
                *key = Some(done.key);
                xid = Some(done.xid);
            }
        }
        let keys = keys.into_iter().enumerate();
        let keys = keys.map(|(document, key)| key.ok_or(document)).collect();
        Ok(Inserted { keys, xid })
    }

    /// The first document of `rows` that PostgreSQL refuses, after it has ended the transaction over them. In another
    /// one that is never committed they are inserted by halves, so that it is found, too, where it conflicts with one
    /// of those before it. None where it conflicted with documents that were inserted earlier.
    async fn search(
        &mut self,
        target: &Target<'_>,
        rows: &Rows,
    ) -> Result<Option<BulkFault>, Failure> {
        self.roll_back().await?;
        self.begin(target).await?;
        let mut open = 0..rows.documents();
        while !open.is_empty() {
            let half = open.start..open.start + open.len().div_ceil(2);
            let fault = |error, document| BulkFault {
                error,
                document: Some(document),
            };
            say(&mut self.session.connection, MARK).await?;
            let tried = part(target.writable, rows, &half);
            match self.insert_bulk(target, &tried).await {
                Ok(Inserted { keys: Ok(_), .. }) => open.start = half.end,
                Ok(Inserted {
                    keys: Err(taken), ..
                }) => {
                    return Ok(Some(fault(WriteError::Exists, half.start + taken)));
                }
                Err(failure) if half.len() == 1 => {
                    return Ok(Some(fault(failure.error, half.start)));
                }
                Err(_) => {
                    say(&mut self.session.connection, BACK_TO_MARK).await?;
                    open = half;
                }
            }
        }
        Ok(None)
    }
}
