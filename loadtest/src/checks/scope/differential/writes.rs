//! Drawn writes: documents with and without their owner, lookups of oneself and of others, bulk and repeated writes.

mod bodies;

use serde_json::{Map, Value};
use testkit::http::Request;

use crate::checks::scope::differential::documents::VisibleDocument;
use crate::checks::scope::differential::reads::canonical_path;
use crate::checks::scope::differential::rows::RowDraw;
use crate::checks::scope::differential::schema::Schema;
use crate::checks::scope::differential::writes::bodies::BodyDraw;
use crate::checks::twins::{Condition, Form};

/// The members of a row that a body has.
pub(super) type Members = Map<String, Value>;

/// A write.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) of: WriteOf,
    pub(super) condition: Condition,
    pub(super) is_minimal: bool,
    /// The value of `Idempotency-Key`.
    pub(super) repetition: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) enum WriteOf {
    Post { documents: Vec<Members>, form: Form },
    Put { key: Vec<i64>, document: Members },
    Patch { key: Vec<i64>, document: Members },
    Delete { key: Vec<i64> },
}

impl Write {
    /// Draws a write; `stored` are all documents, `own` those that the principal may write, and `owner` is the principal's.
    pub(super) fn draw(
        rng: &mut fastrand::Rng,
        schema: &Schema,
        [stored, own]: [&[VisibleDocument]; 2],
        owner: Option<i64>,
    ) -> Self {
        let mut draw = BodyDraw {
            rows: RowDraw { rng, schema },
            stored,
            own,
            owner,
        };
        let of = match draw.rows.rng.u8(..8) {
            0..=2 => draw.post(),
            3 | 4 => draw.put(),
            5 | 6 => draw.patch(),
            _ => WriteOf::Delete { key: draw.key() },
        };
        let condition = match (&of, rng.u8(..8)) {
            (WriteOf::Post { .. }, _) => Condition::None,
            (_, 0) => Condition::Match,
            (_, 1) => Condition::MatchOther,
            (_, 2) => Condition::MatchAny,
            (WriteOf::Put { .. }, 3) => Condition::MatchNone,
            _ => Condition::None,
        };
        let is_bulk = matches!(&of, WriteOf::Post { form, .. } if *form != Form::One);
        // Another principal would send an old entity tag.
        let is_repeatable = !is_bulk && condition != Condition::Match;
        let repetition = format!("repetition {}", rng.u64(..));
        Self {
            condition,
            is_minimal: rng.u8(..5) == 0,
            repetition: (is_repeatable && rng.u8(..4) == 0).then_some(repetition),
            of,
        }
    }

    /// The numbers of the key in the path.
    pub(super) fn key(&self) -> Option<&[i64]> {
        match &self.of {
            WriteOf::Post { .. } => None,
            WriteOf::Put { key, .. } | WriteOf::Patch { key, .. } | WriteOf::Delete { key } => {
                Some(key)
            }
        }
    }

    pub(super) fn is_lenient(&self) -> bool {
        matches!(
            self.of,
            WriteOf::Post {
                form: Form::Lenient,
                ..
            }
        )
    }

    /// The path of the document, or of the resource.
    pub(super) fn path(&self, schema: &Schema) -> String {
        match self.key() {
            None => format!("/{}", schema.name),
            Some(key) => {
                let parts = schema.key_kinds().into_iter().zip(key);
                let parts: Vec<String> = parts.map(|(kind, part)| kind.canonical(*part)).collect();
                canonical_path(schema, &parts)
            }
        }
    }

    /// The request; `etag` is the entity tag of the document, if it exists.
    pub(super) fn request(&self, schema: &Schema, etag: &str) -> Request {
        let (method, content_type, body) = match &self.of {
            WriteOf::Post { documents, form } => {
                let texts = documents
                    .iter()
                    .map(|document| Value::Object(document.clone()).to_string());
                let texts: Vec<String> = texts.collect();
                match form {
                    Form::One => ("POST", "application/json", texts.concat()),
                    Form::Array => ("POST", "application/json", format!("[{}]", texts.join(","))),
                    Form::Lines | Form::Lenient => {
                        ("POST", "application/x-ndjson", texts.join("\n"))
                    }
                }
            }
            WriteOf::Put { document, .. } => (
                "PUT",
                "application/json",
                Value::Object(document.clone()).to_string(),
            ),
            WriteOf::Patch { document, .. } => (
                "PATCH",
                "application/merge-patch+json",
                Value::Object(document.clone()).to_string(),
            ),
            WriteOf::Delete { .. } => ("DELETE", "", String::new()),
        };
        let mut request = Request::new(method, self.path(schema));
        request.body = body.into();
        if !content_type.is_empty() {
            request = request.with("content-type", content_type);
        }
        request = match self.condition {
            Condition::None => request,
            Condition::Match => request.with("if-match", etag),
            Condition::MatchOther => {
                request.with("if-match", "\"00000000000000000000000000000000\"")
            }
            Condition::MatchAny => request.with("if-match", "*"),
            Condition::MatchNone => request.with("if-none-match", "*"),
        };
        if self.is_lenient() {
            request = request.with("prefer", "handling=lenient");
        } else if self.is_minimal {
            request = request.with("prefer", "return=minimal");
        }
        match &self.repetition {
            Some(key) => request.with("idempotency-key", key.clone()),
            None => request,
        }
    }
}

/// The rows of a member.
pub(super) fn rows_of<'m>(members: &'m Members, name: &str) -> impl Iterator<Item = &'m Members> {
    let rows = members.get(name).and_then(Value::as_array);
    rows.into_iter().flatten().filter_map(Value::as_object)
}
