//! The drawn requests: documents, patches, and what goes with them.

mod draw;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use testkit::http;

use crate::checks::differential_writes::schema::{RowValues, Schema};
use crate::checks::twins::{Condition, Form};

pub(super) use draw::{draw_document, draw_step};

/// What is sent at one time.
#[derive(Clone, Debug)]
pub(super) enum Step {
    One(Request),
    /// Two requests at once.
    Race(Box<[Request; 2]>),
}

/// A write.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) operation: Operation,
    pub(super) condition: Condition,
    /// It is sent twice, with an `Idempotency-Key`.
    pub(super) is_repeated: bool,
    /// With `Prefer: return=minimal`.
    pub(super) is_minimal: bool,
    /// A value does not fit. Which of several errors is reported is not compared.
    pub(super) is_invalid: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Operation {
    Post {
        documents: Vec<Node>,
        form: Form,
    },
    Put {
        key: Vec<Value>,
        document: Node,
    },
    Patch {
        key: Vec<Value>,
        values: RowValues,
        /// For each patched level below the root its rows; `None`: null.
        below: Vec<(usize, Option<Vec<Node>>)>,
    },
    Delete {
        key: Vec<Value>,
    },
}

/// A row of a document, with the rows below it.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Members of columns; those that are left out are absent.
    pub(super) values: RowValues,
    /// For each level below that is a member its rows.
    pub(super) below: Vec<(usize, Vec<Node>)>,
}

impl Node {
    pub(super) fn json(&self, schema: &Schema) -> Value {
        let mut object = self.values.clone();
        for (level, rows) in &self.below {
            object.insert(schema.levels[*level].table.clone(), array(schema, rows));
        }
        Value::Object(object)
    }
}

/// Whether rows of `level`, and those below them, give the members that others of their levels give, which are in `known`.
fn give_same_members<'n>(
    level: usize,
    rows: &'n [Node],
    known: &mut BTreeMap<usize, BTreeSet<&'n String>>,
) -> bool {
    rows.iter().all(|row| {
        let members: BTreeSet<&String> = row.values.keys().collect();
        let is_same = *known.entry(level).or_insert_with(|| members.clone()) == members;
        let mut below = row.below.iter();
        is_same && below.all(|(level, rows)| give_same_members(*level, rows, known))
    })
}

fn array(schema: &Schema, rows: &[Node]) -> Value {
    Value::Array(rows.iter().map(|row| row.json(schema)).collect())
}

impl Operation {
    /// The key in the path.
    pub(super) fn key(&self) -> Option<&[Value]> {
        match self {
            Self::Post { .. } => None,
            Self::Put { key, .. } | Self::Patch { key, .. } | Self::Delete { key } => Some(key),
        }
    }

    /// Whether the rows of each level give the same members. larder inserts them by one statement then, in their order.
    pub(super) fn gives_same_members(&self) -> bool {
        let mut known = BTreeMap::new();
        match self {
            Self::Post { documents, .. } => give_same_members(0, documents, &mut known),
            Self::Put { document, .. } => {
                give_same_members(0, std::slice::from_ref(document), &mut known)
            }
            Self::Patch { below, .. } => below.iter().all(|(level, rows)| {
                give_same_members(*level, rows.as_deref().unwrap_or_default(), &mut known)
            }),
            Self::Delete { .. } => true,
        }
    }

    /// A deletion that a trigger turned into an update is answered with the document, whatever the client prefers.
    pub(super) fn is_delete(&self) -> bool {
        matches!(self, Self::Delete { .. })
    }

    fn method(&self) -> &'static str {
        match self {
            Self::Post { .. } => "POST",
            Self::Put { .. } => "PUT",
            Self::Patch { .. } => "PATCH",
            Self::Delete { .. } => "DELETE",
        }
    }

    /// The body; empty if there is none.
    pub(super) fn body(&self, schema: &Schema) -> String {
        match self {
            Self::Post { documents, form } => {
                let texts = documents
                    .iter()
                    .map(|document| document.json(schema).to_string());
                let texts: Vec<String> = texts.collect();
                match form {
                    Form::Array => format!("[{}]", texts.join(",")),
                    _ => texts.join("\n"),
                }
            }
            Self::Put { document, .. } => document.json(schema).to_string(),
            Self::Patch { values, below, .. } => {
                let mut patch: Map<String, Value> = values.clone();
                for (level, rows) in below {
                    let rows = rows
                        .as_ref()
                        .map_or(Value::Null, |rows| array(schema, rows));
                    patch.insert(schema.levels[*level].table.clone(), rows);
                }
                Value::Object(patch).to_string()
            }
            Self::Delete { .. } => String::new(),
        }
    }
}

impl Request {
    /// The path of the document, or of the resource.
    pub(super) fn path(&self, schema: &Schema) -> String {
        match self.operation.key() {
            None => format!("/{}", schema.name),
            Some(key) => document_path(schema, key),
        }
    }

    /// The request that is sent. `etag` is the entity tag of the document, if it exists; `repetition` is the
    /// `Idempotency-Key`.
    pub(super) fn http(&self, schema: &Schema, etag: &str, repetition: &str) -> http::Request {
        let request = http::Request::new(self.operation.method(), self.path(schema));
        let media_type = match &self.operation {
            Operation::Post {
                form: Form::Lines | Form::Lenient,
                ..
            } => "application/x-ndjson",
            Operation::Patch { .. } => "application/merge-patch+json",
            _ => "application/json",
        };
        let mut request = match &self.operation {
            Operation::Delete { .. } => request,
            operation => request.with_body(media_type, operation.body(schema)),
        };
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
        }
        if self.is_minimal {
            request = request.with("prefer", "return=minimal");
        }
        if self.is_repeated {
            request = request.with("idempotency-key", repetition);
        }
        request
    }

    /// How many transactions it has.
    pub(super) fn transactions(&self) -> usize {
        match &self.operation {
            Operation::Post {
                documents,
                form: Form::Lenient,
            } => documents.len(),
            _ => 1,
        }
    }

    pub(super) fn is_lenient(&self) -> bool {
        let is_lenient = |form: &Form| *form == Form::Lenient;
        matches!(&self.operation, Operation::Post { form, .. } if is_lenient(form))
    }

    /// How a reader sees it: the first line, the precondition, and the body.
    pub(super) fn shown(&self, schema: &Schema) -> String {
        let mut notes = Vec::new();
        if self.condition != Condition::None {
            notes.push(format!("{:?}", self.condition));
        }
        if self.is_repeated {
            notes.push("repeated".to_owned());
        }
        if let Operation::Post { form, .. } = &self.operation {
            notes.push(format!("{form:?}"));
        }
        format!(
            "{} {} {}\n{}",
            self.operation.method(),
            self.path(schema),
            notes.join(", "),
            self.operation.body(schema)
        )
    }
}

/// The path of a document. Drawn texts have no character that a path must encode.
pub(super) fn document_path(schema: &Schema, key: &[Value]) -> String {
    let parts = key.iter().map(|part| match part {
        Value::String(text) => text.clone(),
        part => part.to_string(),
    });
    let parts: Vec<String> = parts.collect();
    format!("/{}/{}", schema.name, parts.join(","))
}
