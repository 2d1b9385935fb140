//! The body of an answer with many documents, made as they are found.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::sync::Arc;

use axum::body::Bytes;
use xxhash_rust::xxh3::Xxh3;

use crate::cache::document::{Document, ETAG_BYTES, digest, entity_tag};
use crate::http::answers::{AnswersMemory, PIECE_BYTES, Reservation};
use crate::http::problem::Problem;
use crate::http::work::{self, Waiting};
use crate::resource::projection::Projection;

/// A longer document is sent from its own memory, not copied.
const COPIED_BYTES_MAX: usize = 4096;

/// The body between its beginning and its end, and its hash.
pub(super) struct Composition {
    memory: AnswersMemory,
    fields: Option<Arc<Projection>>,
    bytes_max: usize,
    waiting: Waiting,
    /// `HEAD` needs the hash and the length only.
    is_kept: bool,
    /// Of the documents' digests and the end. The beginning is the same for each kind of body.
    hash: Xxh3,
    parts: Vec<Bytes>,
    part: Vec<u8>,
    /// Of the whole body.
    bytes: usize,
    documents: usize,
    reservation: Reservation,
}

/// A body that is complete.
pub(super) struct Composed {
    pub(super) etag: [u8; ETAG_BYTES],
    pub(super) bytes: usize,
    /// Empty for `HEAD`.
    pub(super) parts: Vec<Bytes>,
    pub(super) reservation: Reservation,
}

impl Composition {
    /// A body that begins with `begin`, with the members `fields` of the documents or all of each.
    pub(super) fn new(
        memory: &AnswersMemory,
        fields: Option<Arc<Projection>>,
        begin: &str,
        is_kept: bool,
        waiting: Waiting,
    ) -> Self {
        let mut composition = Self {
            memory: memory.clone(),
            fields,
            bytes_max: memory.answer_bytes_max(),
            waiting,
            is_kept,
            hash: Xxh3::new(),
            parts: Vec::new(),
            part: Vec::new(),
            bytes: 0,
            documents: 0,
            reservation: memory.reservation(),
        };
        composition.push_text(begin.as_bytes());
        composition
    }

    /// Adds documents until the body would be too long. Returns how many were added.
    ///
    /// # Errors
    /// 503 if there is no memory for them, or too many others are projected; 500 if a document can't be projected.
    pub(super) async fn add(mut self, documents: Vec<Document>) -> Result<(Self, usize), Problem> {
        let bytes: usize = documents.iter().map(|document| document.body().len()).sum();
        // While the documents are held only for their text or their hash.
        let mut window = self.memory.reservation();
        if self.fields.is_some() || !self.is_kept {
            let mut seen = HashSet::new();
            let once = documents
                .iter()
                .map(Document::body)
                .filter(|body| seen.insert(body.as_ptr()));
            window.grow(once.map(<[u8]>::len).sum())?;
        }
        let Some(fields) = self.fields.clone() else {
            let added = self.add_whole(&documents)?;
            return Ok((self, added));
        };
        let waiting = self.waiting;
        let project = move || {
            let added = self.add_projected(&documents, &fields)?;
            Ok((self, added))
        };
        work::run(waiting, bytes, Problem::NOT_PROJECTED, project).await?
    }

    fn add_whole(&mut self, documents: &[Document]) -> Result<usize, Problem> {
        for (added, document) in documents.iter().enumerate() {
            let shared = || Bytes::from_owner(document.clone());
            if !self.push(document.body(), shared, document.digest())? {
                return Ok(added);
            }
        }
        Ok(documents.len())
    }

    fn add_projected(
        &mut self,
        documents: &[Document],
        fields: &Projection,
    ) -> Result<usize, Problem> {
        // What was projected of long documents, by their address: a key may be named often.
        let mut projected: HashMap<*const u8, (Bytes, [u8; 16])> = HashMap::new();
        let mut short = Vec::new();
        for (added, document) in documents.iter().enumerate() {
            let body = document.body();
            let is_added = if body.len() <= COPIED_BYTES_MAX {
                short.clear();
                let written = fields.write(body, &mut short);
                written.ok_or(Problem::NOT_PROJECTED)?;
                self.push(&short, || Bytes::copy_from_slice(&short), digest(&short))?
            } else {
                let (text, digest) = match projected.get(&body.as_ptr()) {
                    Some(known) => known.clone(),
                    None => {
                        let mut text = Vec::new();
                        let written = fields.write(body, &mut text);
                        written.ok_or(Problem::NOT_PROJECTED)?;
                        let digest = digest(&text);
                        let new = (Bytes::from(text), digest);
                        projected.insert(body.as_ptr(), new.clone());
                        new
                    }
                };
                self.push(&text, || text.clone(), digest)?
            };
            if !is_added {
                return Ok(added);
            }
        }
        Ok(documents.len())
    }

    /// Adds the text of a document, unless the body would be too long. The first one is always added: it can't be split.
    fn push(
        &mut self,
        text: &[u8],
        shared: impl FnOnce() -> Bytes,
        digest: [u8; 16],
    ) -> Result<bool, Problem> {
        if self.documents > 0 && self.bytes + text.len() > self.bytes_max {
            return Ok(false);
        }
        if self.documents > 0 {
            self.push_text(b",");
        }
        self.hash.update(&digest);
        self.documents += 1;
        self.bytes += text.len();
        if !self.is_kept {
            return Ok(true);
        }
        self.reservation.grow(text.len())?;
        if text.len() <= COPIED_BYTES_MAX {
            self.part.extend_from_slice(text);
            if self.part.len() >= PIECE_BYTES {
                self.end_part();
                // Small documents follow each other; growing step by step copies them, and takes up to twice the memory.
                self.part.reserve(PIECE_BYTES + COPIED_BYTES_MAX);
            }
        } else {
            self.end_part();
            self.parts.push(shared());
        }
        Ok(true)
    }

    /// Adds what stands around documents.
    fn push_text(&mut self, text: &[u8]) {
        self.bytes += text.len();
        if self.is_kept {
            self.part.extend_from_slice(text);
        }
    }

    fn end_part(&mut self) {
        if !self.part.is_empty() {
            self.parts.push(mem::take(&mut self.part).into());
        }
    }

    /// Completes the body with `end`.
    pub(super) fn end(mut self, end: &str) -> Composed {
        self.push_text(end.as_bytes());
        self.hash.update(end.as_bytes());
        self.end_part();
        Composed {
            etag: entity_tag(self.hash.digest128().to_be_bytes()),
            bytes: self.bytes,
            parts: self.parts,
            reservation: self.reservation,
        }
    }
}
