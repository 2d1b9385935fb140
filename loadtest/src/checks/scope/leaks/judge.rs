//! Judges an answer: everything in it must have been the principal's when it was asked, or at most `max_staleness` before.

use serde_json::Value;
use testkit::http::{Answer, Request};

use crate::checks::scope::leaks::history::{Sees, Span, State};
use crate::checks::scope::leaks::signatures::{RequestForm, Subject};
use crate::checks::scope::leaks::world::{ABSENT_ITEMS, Phase, World, lock};

/// Headers of answers that have a document.
const BETRAYING: [&str; 5] = [
    "etag",
    "content-location",
    "accept-ranges",
    "content-range",
    "age",
];

/// The document that a request names.
#[derive(Clone, Debug)]
pub(super) enum Target {
    Item(i64),
    /// By its alias.
    Number(String),
    /// None, or many.
    Other,
}

/// A request with its answer.
pub(super) struct Exchange<'e> {
    pub(super) world: &'e World,
    pub(super) who: &'e str,
    pub(super) sees: Sees,
    pub(super) target: &'e Target,
    pub(super) request: &'e Request,
    pub(super) answer: &'e Answer,
    pub(super) span: Span,
    /// While the request was answered.
    pub(super) phase: Phase,
}

impl Exchange<'_> {
    /// Counts the answer and tells what is wrong with it.
    pub(super) fn judge(&self) {
        self.world.count(self.phase, self.answer.status);
        if self.answer.status == 500 {
            self.violation("an internal error", "");
        }
        let mut documents = Vec::new();
        collect(&self.answer.json(), &mut documents);
        for document in documents {
            self.judge_document(&document);
        }
        let states = match self.target {
            Target::Item(id) => self.world.possible(*id, self.span),
            Target::Number(number) => self.world.with_number(number, self.span),
            Target::Other => return,
        };
        self.judge_target(&states);
    }

    fn judge_document(&self, document: &Shown) {
        let mut states = self.world.possible(document.id, self.span).into_iter();
        let is_right = states.any(|state| {
            let is_same = state.version == document.version && state.owner == document.owner;
            let is_named = match self.target {
                Target::Item(id) => *id == document.id,
                Target::Number(number) => state.number == *number,
                Target::Other => true,
            };
            is_same && is_named && state.is_for(self.sees)
        });
        if !is_right {
            let history = self.world.shown(document.id);
            self.violation(&format!("LEAK: {document:?} at {:?}", self.span), &history);
        }
    }

    /// What the answer tells of the one document that the request names, which has had one of these states.
    fn judge_target(&self, states: &[State]) {
        let answer = self.answer;
        let is_read = matches!(self.request.method, "GET" | "HEAD");
        let is_unavailable = matches!(answer.status, 429 | 503 | 504);
        let is_conditional = self.sees == Sees::All && self.request.header("if-match").is_some();
        if !states.iter().any(|state| state.is_for(self.sees)) {
            // What a customer does not see, PostgreSQL alone decides; the staff is told of remembered absences.
            let is_known = self.phase != Phase::Down || !matches!(self.sees, Sees::Own(Some(_)));
            let is_absent =
                (is_known && answer.status == 404) || (is_conditional && answer.status == 412);
            let betrays = BETRAYING.iter().any(|name| !answer.header(name).is_empty());
            if betrays || !(is_absent || is_unavailable) {
                self.violation(
                    "LEAK: the answer tells that the document is there",
                    &self.history(),
                );
            }
            self.note_signature(states);
        } else if is_read
            && answer.status == 404
            && states.iter().all(|state| state.is_for(self.sees))
        {
            self.violation(
                "the document is there, and is said to be absent",
                &self.history(),
            );
        }
    }

    fn note_signature(&self, states: &[State]) {
        let is_absent = match self.target {
            Target::Item(id) => *id >= ABSENT_ITEMS,
            Target::Number(number) => number.len() > ABSENT_ITEMS.to_string().len(),
            Target::Other => return,
        };
        let subject = match (is_absent, states.is_empty(), self.sees) {
            (true, ..) => Subject::Absent,
            (false, false, Sees::Own(_)) => Subject::Foreign,
            _ => return,
        };
        if self.phase == Phase::Changing || self.sees == Sees::All {
            return;
        }
        lock(&self.world.signatures).note(self.form(), subject, self.answer);
    }

    fn form(&self) -> RequestForm {
        let by = match self.target {
            Target::Number(_) => "by number",
            _ => "by key",
        };
        let headers = self.request.headers.iter().map(|(name, _)| *name);
        let headers: Vec<&str> = headers
            .filter(|name| name.starts_with("if-") || *name == "range")
            .collect();
        let claims = self.sees != Sees::Own(None);
        let body = if self.request.body.is_empty() {
            ""
        } else {
            "with a body"
        };
        (
            self.phase,
            self.request.method,
            format!("{by} {headers:?} {body} {claims}"),
        )
    }

    fn history(&self) -> String {
        match self.target {
            Target::Item(id) => self.world.shown(*id),
            Target::Number(_) | Target::Other => String::new(),
        }
    }

    fn violation(&self, why: &str, history: &str) {
        let why = format!("{why} ({:?})", self.phase);
        self.world
            .note_violation(&why, self.who, self.request, self.answer, history);
    }
}

/// What a document in an answer says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    id: i64,
    version: i64,
    owner: Option<i64>,
}

/// Finds the documents in JSON.
fn collect(value: &Value, documents: &mut Vec<Shown>) {
    match value {
        Value::Array(elements) => elements
            .iter()
            .for_each(|element| collect(element, documents)),
        Value::Object(members) => {
            let number = |name| members.get(name).and_then(Value::as_i64);
            if let (Some(id), Some(version)) = (number("id"), number("version")) {
                let owner = number("owner");
                documents.push(Shown { id, version, owner });
            }
            members
                .values()
                .for_each(|member| collect(member, documents));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_are_found_wherever_they_are() {
        let answer = json!({"documents": [{"id": 1, "owner": null, "version": 7, "at": {"site_id": 3}}], "missing": [2]});
        let mut documents = Vec::new();
        collect(&answer, &mut documents);
        assert_eq!(
            documents,
            [Shown {
                id: 1,
                version: 7,
                owner: None
            }]
        );
    }
}
