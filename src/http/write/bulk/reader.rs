//! The documents of a body that may be of any length, batch by batch.
//!
//! What is held at a time is bounded: a batch, or one document, and what came in with it. Long texts are parsed apart
//! from the threads that answer.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use crate::http::body::body_problem;
use crate::http::problem::Problem;
use crate::resource::Resource;
use crate::resource::body::{BodyError, Framing, Mode, Scratch, SplitError, Splitter, rows_of};
use crate::resource::writable::Rows;

/// Text that is parsed at once, unless a document alone is longer: about 1,000 rows and more. More text to a statement
/// makes rows no faster.
pub(super) const BATCH_BYTES: usize = 512 << 10;

/// Documents of a batch.
const DOCUMENTS_MAX: usize = 4_096;

/// Of documents that are written each by itself, what has come for so long goes on its way, be it little.
const BATCH_WAIT: Duration = Duration::from_secs(1);

/// A longer text is parsed apart from the threads that answer.
const INLINE_BYTES_MAX: usize = 16 << 10;

/// Documents that follow each other.
pub(super) struct Batch<D> {
    /// The place of the first one in the body, counted from 0.
    pub(super) first: u64,
    /// At least one.
    pub(super) documents: D,
}

/// What reads a body.
pub(super) struct Reader {
    body: Body,
    parser: Parser,
    /// Why nothing more comes, where that is not yet told.
    broken: Option<Problem>,
}

struct Parser {
    resource: Arc<Resource>,
    splitter: Splitter,
    scratch: Scratch,
    bytes_max: usize,
    /// Documents that were read.
    count: u64,
}

impl Reader {
    /// Reads documents of `resource`, each of at most `bytes_max` bytes, out of `body`.
    pub(super) fn new(
        resource: Arc<Resource>,
        framing: Framing,
        body: Body,
        bytes_max: usize,
    ) -> Self {
        let parser = Parser {
            resource,
            splitter: Splitter::new(framing, bytes_max),
            scratch: Scratch::default(),
            bytes_max,
            count: 0,
        };
        Self {
            body,
            parser,
            broken: None,
        }
    }

    /// The rows of the next documents; none at the end.
    ///
    /// # Errors
    /// What is wrong with the first document that is not right.
    pub(super) async fn rows(self) -> Result<Option<(Batch<Rows>, Self)>, Problem> {
        self.next(Parser::rows, None).await
    }

    /// The next documents, each by itself, and what is wrong with it; none at the end.
    ///
    /// # Errors
    /// Why there are no more documents to be had, once it was told of those before.
    pub(super) async fn each(self) -> Result<Option<(Batch<Vec<Document>>, Self)>, Problem> {
        let late = Instant::now() + BATCH_WAIT;
        self.next(Parser::each, Some(late)).await
    }

    async fn next<D: Send + 'static>(
        mut self,
        parse: fn(&mut Parser) -> Result<Option<Batch<D>>, Problem>,
        mut late: Option<Instant>,
    ) -> Result<Option<(Batch<D>, Self)>, Problem> {
        let mut enough = BATCH_BYTES;
        loop {
            let filled = match self.broken.take() {
                None => self.fill(enough, late).await,
                Some(problem) => Err(problem),
            };
            let (ended, broken) = match filled {
                Ok(ended) => (ended, None),
                // Documents that are written each by itself are, if they came whole.
                Err(problem) if late.is_some() => (true, Some(problem)),
                Err(problem) => return Err(problem),
            };
            let mut parser = self.parser;
            let (parser, batch) = if parser.splitter.pending() <= INLINE_BYTES_MAX {
                let batch = parse(&mut parser);
                (parser, batch)
            } else {
                tokio::task::spawn_blocking(move || {
                    let batch = parse(&mut parser);
                    (parser, batch)
                })
                .await
                .map_err(|_| Problem::internal("the body could not be parsed"))?
            };
            self.parser = parser;
            match batch? {
                Some(batch) => {
                    self.broken = broken;
                    return Ok(Some((batch, self)));
                }
                None if ended => return broken.map_or(Ok(None), Err),
                // A document that is longer than a batch, or comes slowly: it is not looked at for each byte of it.
                None => {
                    self.receive().await?;
                    enough = self.parser.splitter.pending() + BATCH_BYTES;
                    late = late.map(|_| Instant::now() + BATCH_WAIT);
                }
            }
        }
    }

    /// Waits for `enough` bytes, or for all that came until `late`; says whether no more is to come.
    async fn fill(&mut self, enough: usize, late: Option<Instant>) -> Result<bool, Problem> {
        while !self.parser.splitter.has_ended() && self.parser.splitter.pending() < enough {
            match late {
                None => self.receive().await?,
                Some(late) => match timeout_at(late, self.receive()).await {
                    Ok(received) => received?,
                    Err(_) => break,
                },
            }
        }
        Ok(self.parser.splitter.has_ended())
    }

    /// Takes in what comes next, or that nothing does.
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

/// One document by itself.
pub(super) type Document = Result<Rows, Problem>;

impl Parser {
    fn rows(&mut self) -> Result<Option<Batch<Rows>>, Problem> {
        let Ok(writable) = &self.resource.writable else {
            return Err(Problem::internal("the resource can't be written"));
        };
        let (first, bytes_max) = (self.count, self.bytes_max);
        let mut rows = Rows::of(writable);
        while rows.documents() < DOCUMENTS_MAX {
            let found = self.splitter.document();
            let Some(text) = found.map_err(|error| unsplit(error, bytes_max, self.count))? else {
                break;
            };
            let read = rows_of(writable, text, Mode::Insert, &mut self.scratch, &mut rows);
            if let Err(error) = read {
                return Err(match (&error, self.splitter.line()) {
                    (BodyError::Malformed(_), Some(line)) => {
                        Problem::from(error).at(&format!("line {line}"))
                    }
                    _ => Problem::from(error).in_document(self.count),
                });
            }
            self.count += 1;
        }
        Ok((rows.documents() > 0).then_some(Batch {
            first,
            documents: rows,
        }))
    }

    fn each(&mut self) -> Result<Option<Batch<Vec<Document>>>, Problem> {
        let Ok(writable) = &self.resource.writable else {
            return Err(Problem::internal("the resource can't be written"));
        };
        let (first, bytes_max) = (self.count, self.bytes_max);
        let mut documents = Vec::new();
        while documents.len() < DOCUMENTS_MAX {
            let text = match self.splitter.document() {
                Ok(Some(text)) => text,
                Ok(None) => break,
                // Those before come first; it is met again with the next batch.
                Err(_) if !documents.is_empty() => break,
                Err(error) => return Err(unsplit(error, bytes_max, self.count)),
            };
            let mut rows = Rows::of(writable);
            let read = rows_of(writable, text, Mode::Insert, &mut self.scratch, &mut rows);
            documents.push(read.map(|()| rows).map_err(Problem::from));
            self.count += 1;
        }
        Ok((!documents.is_empty()).then_some(Batch { first, documents }))
    }
}

fn unsplit(error: SplitError, bytes_max: usize, document: u64) -> Problem {
    match error {
        SplitError::TooLong => {
            Problem::body_too_large(bytes_max).at(&format!("document {document}"))
        }
        SplitError::Malformed(why) => Problem::bad_request(format!("the body {why}")),
    }
}
