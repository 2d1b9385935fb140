//! Reads the documents of a body of any length, in batches.
//!
//! Memory is bounded: a batch or one document, and the rest of the frame that it arrived in.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use crate::documents::Scope;
use crate::http::body::body_problem;
use crate::http::problem::Problem;
use crate::http::work::{self, Waiting};
use crate::resource::Resource;
use crate::resource::body::{
    BodyError, Framing, Scratch, SplitError, Splitter, WriteMode, rows_of,
};
use crate::resource::writable::Rows;

/// The text of a batch, unless one document alone is longer: about 1,000 rows and more. More text in a statement does not
/// insert rows faster.
pub(super) const BATCH_BYTES: usize = 512 << 10;

/// The most documents of a batch.
const DOCUMENTS_MAX: usize = 4_096;

/// If documents are written separately, those that have arrived after this time are written, even if they are few.
const BATCH_WAIT: Duration = Duration::from_secs(1);

/// Documents that follow each other.
pub(super) struct BulkBatch<D> {
    /// The number of the first one in the body, counted from 0.
    pub(super) first: u64,
    /// At least one.
    pub(super) documents: D,
}

/// Reads the documents of a body.
pub(super) struct BulkReader {
    body: Body,
    parser: BulkParser,
    /// Why the body can't be read any further, if that was not returned yet.
    broken: Option<Problem>,
    waiting: Waiting,
}

struct BulkParser {
    resource: Arc<Resource>,
    /// The documents that may be written.
    writer: Scope<'static>,
    splitter: Splitter,
    scratch: Scratch,
    bytes_max: usize,
    /// The number of documents that were read.
    count: u64,
}

impl BulkReader {
    /// Reads documents of `resource` that are in the scope `writer`, each of at most `bytes_max` bytes, out of `body`.
    pub(super) fn new(
        resource: Arc<Resource>,
        writer: Scope<'static>,
        framing: Framing,
        body: Body,
        bytes_max: usize,
        waiting: Waiting,
    ) -> Self {
        let parser = BulkParser {
            resource,
            writer,
            splitter: Splitter::new(framing, bytes_max),
            scratch: Scratch::default(),
            bytes_max,
            count: 0,
        };
        Self {
            body,
            parser,
            broken: None,
            waiting,
        }
    }

    /// The rows of the next documents; `None` at the end.
    ///
    /// # Errors
    /// The problem of the first document that is invalid.
    pub(super) async fn rows(self) -> Result<Option<(BulkBatch<Rows>, Self)>, Problem> {
        self.next(BulkParser::rows, None).await
    }

    /// The next documents, each with its rows or its problem; `None` at the end.
    ///
    /// # Errors
    /// Why the body can't be read any further, after all documents before were returned.
    pub(super) async fn documents(
        self,
    ) -> Result<Option<(BulkBatch<Vec<ParsedDocument>>, Self)>, Problem> {
        let deadline = Instant::now() + BATCH_WAIT;
        self.next(BulkParser::documents, Some(deadline)).await
    }

    async fn next<D: Send + 'static>(
        mut self,
        parse: fn(&mut BulkParser) -> Result<Option<BulkBatch<D>>, Problem>,
        mut deadline: Option<Instant>,
    ) -> Result<Option<(BulkBatch<D>, Self)>, Problem> {
        let mut bytes_wanted = BATCH_BYTES;
        loop {
            let filled = match self.broken.take() {
                None => self.fill(bytes_wanted, deadline).await,
                Some(problem) => Err(problem),
            };
            let (ended, broken) = match filled {
                Ok(ended) => (ended, None),
                // Documents that are written separately are written if they are complete.
                Err(problem) if deadline.is_some() => (true, Some(problem)),
                Err(problem) => return Err(problem),
            };
            let mut parser = self.parser;
            let bytes = parser.splitter.pending();
            let parse = move || {
                let batch = parse(&mut parser);
                (parser, batch)
            };
            let parsed = work::run(self.waiting, bytes, Problem::NOT_PARSED, parse).await;
            let (parser, batch) = parsed?;
            self.parser = parser;
            match batch? {
                Some(batch) => {
                    self.broken = broken;
                    return Ok(Some((batch, self)));
                }
                None if ended => return broken.map_or(Ok(None), Err),
                // A document that is longer than a batch or arrives slowly is not parsed again for each frame.
                None => {
                    self.receive().await?;
                    bytes_wanted = self.parser.splitter.pending() + BATCH_BYTES;
                    deadline = deadline.map(|_| Instant::now() + BATCH_WAIT);
                }
            }
        }
    }

    /// Waits until `bytes_wanted` bytes have arrived or `deadline` has passed; true at the end of the body.
    async fn fill(
        &mut self,
        bytes_wanted: usize,
        deadline: Option<Instant>,
    ) -> Result<bool, Problem> {
        while !self.parser.splitter.has_ended() && self.parser.splitter.pending() < bytes_wanted {
            match deadline {
                None => self.receive().await?,
                Some(deadline) => match timeout_at(deadline, self.receive()).await {
                    Ok(received) => received?,
                    Err(_) => break,
                },
            }
        }
        Ok(self.parser.splitter.has_ended())
    }

    /// Receives the next frame, or the end of the body.
    async fn receive(&mut self) -> Result<(), Problem> {
        match self.body.frame().await {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.parser.splitter.push(data);
                }
            }
            Some(Err(error)) => return Err(body_problem(&error)),
            None => self.parser.splitter.end(),
        }
        Ok(())
    }
}

/// The rows of one document, or its problem.
pub(super) type ParsedDocument = Result<Rows, Problem>;

impl BulkParser {
    fn rows(&mut self) -> Result<Option<BulkBatch<Rows>>, Problem> {
        let Ok(writable) = &self.resource.writable else {
            return Err(Problem::internal("the resource can't be written"));
        };
        let (first, bytes_max) = (self.count, self.bytes_max);
        let mut rows = Rows::of(writable);
        while rows.documents() < DOCUMENTS_MAX {
            let found = self.splitter.document();
            let Some(text) = found.map_err(|error| split_problem(error, bytes_max, self.count))?
            else {
                break;
            };
            let read = rows_of(
                writable,
                text,
                WriteMode::Insert,
                self.writer.claim(),
                &mut self.scratch,
                &mut rows,
            );
            if let Err(error) = read {
                return Err(match (&error, self.splitter.line()) {
                    (BodyError::Malformed(_), Some(line)) => {
                        Problem::from(error).with_place(&format!("line {line}"))
                    }
                    _ => Problem::from(error).in_document(self.count),
                });
            }
            self.count += 1;
        }
        Ok((rows.documents() > 0).then_some(BulkBatch {
            first,
            documents: rows,
        }))
    }

    fn documents(&mut self) -> Result<Option<BulkBatch<Vec<ParsedDocument>>>, Problem> {
        let Ok(writable) = &self.resource.writable else {
            return Err(Problem::internal("the resource can't be written"));
        };
        let (first, bytes_max) = (self.count, self.bytes_max);
        let mut documents = Vec::new();
        while documents.len() < DOCUMENTS_MAX {
            let text = match self.splitter.document() {
                Ok(Some(text)) => text,
                Ok(None) => break,
                // The documents before are returned first; the next call finds the error again.
                Err(_) if !documents.is_empty() => break,
                Err(error) => return Err(split_problem(error, bytes_max, self.count)),
            };
            let mut rows = Rows::of(writable);
            let read = rows_of(
                writable,
                text,
                WriteMode::Insert,
                self.writer.claim(),
                &mut self.scratch,
                &mut rows,
            );
            documents.push(read.map(|()| rows).map_err(Problem::from));
            self.count += 1;
        }
        Ok((!documents.is_empty()).then_some(BulkBatch { first, documents }))
    }
}

fn split_problem(error: SplitError, bytes_max: usize, document: u64) -> Problem {
    match error {
        SplitError::TooLong => {
            Problem::body_too_large(bytes_max).with_place(&format!("document {document}"))
        }
        SplitError::Malformed(why) => Problem::bad_request(format!("the body {why}")),
    }
}
