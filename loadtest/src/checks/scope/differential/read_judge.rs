//! Judges the answer to a read: it must be what SQL says of the principal's documents.

use serde_json::{Map, Value, json};
use testkit::http::{Answer, Request};

use crate::checks::scope::differential::documents::VisibleDocument;
use crate::checks::scope::differential::principals::Right;
use crate::checks::scope::differential::reads::{Named, Read, ReadOf, canonical_path};
use crate::checks::scope::differential::schema::Schema;
use crate::checks::scope::kinds::Kind;

/// Headers of an answer that has a document, and of none that has not.
const BETRAYING: [&str; 7] = [
    "etag",
    "content-location",
    "accept-ranges",
    "content-range",
    "surrogate-key",
    "age",
    "warning",
];

/// What is known of a read.
pub(super) struct Judge<'j> {
    pub(super) schema: &'j Schema,
    pub(super) right: Right,
    /// The principal's documents; of a list those after its `after`.
    pub(super) visible: &'j [VisibleDocument],
    /// The entity tag and the body that the unrestricted get, if the document exists.
    pub(super) whole: Option<&'j Answer>,
}

impl Judge<'_> {
    /// The document of a name, if the principal may see it.
    pub(super) fn find(&self, named: &Named) -> Option<&VisibleDocument> {
        let parts = named.parts(self.schema);
        self.visible.iter().find(|visible| match named.by {
            None => visible.key == parts,
            Some(by) => visible.aliases[by] == parts,
        })
    }

    /// Why the answer is wrong; `None` if it is right.
    pub(super) fn wrong(&self, read: &Read, request: &Request, answer: &Answer) -> Option<String> {
        if self.right == Right::None {
            let is_refused = matches!(answer.status, 401 | 403);
            return (!is_refused).then(|| "expected 401 or 403".to_owned());
        }
        if self.schema.owner.is_some() && !answer.header("cache-control").contains("private") {
            return Some("expected Cache-Control: private".to_owned());
        }
        match &read.of {
            ReadOf::One(named) => self.wrong_document(named, read, request, answer),
            ReadOf::Many { by, names, .. } => {
                let names = names.iter().map(|numbers| Named {
                    by: *by,
                    numbers: numbers.clone(),
                });
                let expected = self.batch(&names.collect::<Vec<_>>(), read);
                unlike(&expected, read, answer)
            }
            ReadOf::List { .. } => self.wrong_list(read, answer),
        }
    }

    fn wrong_document(
        &self,
        named: &Named,
        read: &Read,
        request: &Request,
        answer: &Answer,
    ) -> Option<String> {
        let Some(found) = self.find(named) else {
            return self.wrong_absence(request, answer);
        };
        let etag = self.whole.map_or("", |whole| whole.header("etag"));
        let names_it =
            |header: Option<&str>| header.is_some_and(|tags| tags == "*" || tags == etag);
        let unmatched = request
            .header("if-match")
            .is_some_and(|tags| !names_it(Some(tags)));
        let expected = match request.header("range") {
            _ if unmatched => vec![412],
            _ if names_it(request.header("if-none-match")) => vec![304],
            Some(_) if read.fields.is_none() => vec![200, 206, 416],
            _ => vec![200],
        };
        if !expected.contains(&answer.status) {
            return Some(format!("expected {expected:?}"));
        }
        let mut location = canonical_path(self.schema, &found.key);
        if let Some(fields) = &read.fields {
            location += &format!("?fields={}", fields.join(","));
        }
        if named.by.is_some()
            && answer.status == 200
            && !is_same_path(answer.header("content-location"), &location)
        {
            return Some(format!("expected Content-Location: {location}"));
        }
        match answer.status {
            200 => unlike(&projected(&found.document, read), read, answer),
            206 if answer.header("content-encoding").is_empty() && read.method == "GET" => {
                let whole = self.whole.map_or(&[][..], |whole| &whole.body);
                let is_part = whole
                    .windows(answer.body.len().max(1))
                    .any(|part| part == answer.body);
                (!is_part).then(|| "not a part of the document".to_owned())
            }
            _ => None,
        }
    }

    fn wrong_absence(&self, request: &Request, answer: &Answer) -> Option<String> {
        let is_restricted = matches!(self.right, Right::Own(_));
        let is_conditional = request.header("if-match").is_some() && !is_restricted;
        if answer.status != 404 && !(is_conditional && answer.status == 412) {
            return Some("expected 404".to_owned());
        }
        if !is_restricted {
            return None;
        }
        let betraying = BETRAYING
            .iter()
            .find(|name| !answer.header(name).is_empty());
        match betraying {
            Some(name) => Some(format!("a 404 with {name}")),
            None if answer.header("cache-status").contains("detail") => {
                Some("a 404 that tells what the tiers have".to_owned())
            }
            None => None,
        }
    }

    fn batch(&self, names: &[Named], read: &Read) -> Value {
        let (mut documents, mut missing) = (Vec::new(), Vec::new());
        for named in names {
            match self.find(named) {
                Some(found) => documents.push(projected(&found.document, read)),
                None => missing.push(named.json(self.schema)),
            }
        }
        json!({"documents": documents, "missing": missing})
    }

    fn wrong_list(&self, read: &Read, answer: &Answer) -> Option<String> {
        let ReadOf::List { limit, filter, .. } = &read.of else {
            return None;
        };
        let is_filtered = |document: &Value| {
            filter.is_none_or(|(field, number)| {
                let kind = if field == "a" {
                    Kind::Integer
                } else {
                    Kind::Text
                };
                document[field] == number.map_or(Value::Null, |number| kind.json(number))
            })
        };
        let rest = self.visible.iter().map(|visible| &visible.document);
        let mut rest: Vec<&Value> = rest.filter(|document| is_filtered(document)).collect();
        let follows = rest.len() > *limit;
        rest.truncate(*limit);
        let expected = rest
            .iter()
            .map(|document| projected(document, read))
            .collect();
        if answer.status == 200 && follows != answer.header("link").contains("rel=\"next\"") {
            return Some(format!("expected Link: {follows}"));
        }
        unlike(&Value::Array(expected), read, answer)
    }
}

/// Whether two paths name the same; each may encode more than it must.
fn is_same_path(one: &str, other: &str) -> bool {
    decoded(one) == decoded(other)
}

/// The path with what it encodes, but for the comma, as it is.
fn decoded(path: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), path.as_bytes());
    while let [first, after @ ..] = rest {
        rest = after;
        let digits = after
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let value = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (first, value) {
            (b'%', Some(value)) if value != b',' => {
                bytes.push(value);
                rest = &after[2..];
            }
            (first, _) => bytes.push(*first),
        }
    }
    bytes
}

/// A document with the members that are asked for.
fn projected(document: &Value, read: &Read) -> Value {
    let (Some(fields), Value::Object(members)) = (&read.fields, document) else {
        return document.clone();
    };
    let chosen = members.iter().filter(|(name, _)| fields.contains(name));
    Value::Object(
        chosen
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect::<Map<_, _>>(),
    )
}

/// Why the answer is not 200 with this body.
fn unlike(expected: &Value, read: &Read, answer: &Answer) -> Option<String> {
    let is_right = answer.status == 200 && (read.method == "HEAD" || answer.json() == *expected);
    (!is_right).then(|| format!("expected 200 {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_compared_decoded() {
        assert!(is_same_path("/s/%61,b", "/s/a,b"));
        assert!(!is_same_path("/s/a%2Cb", "/s/a,b"));
        assert!(is_same_path("/s/a%2Cb", "/s/%61%2Cb"));
    }
}
