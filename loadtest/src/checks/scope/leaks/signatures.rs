//! What answers look like for documents of others, and for documents that do not exist: both must look alike.

use std::collections::{BTreeMap, BTreeSet};

use hyper::header::HeaderName;
use testkit::http::Answer;

use crate::checks::scope::leaks::world::Phase;

/// With fewer answers for absent documents nothing is compared.
const ABSENT_MIN: u64 = 200;
/// So few answers may look like none for absent documents by chance, such as a rare error.
const ODD_MAX: u64 = 2;
/// Headers whose values tell nothing.
const FREE_HEADERS: [&str; 3] = ["date", "x-request-id", "content-length"];

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Foreign,
    Absent,
}

/// The form of a request, without the document that it names.
pub(super) type RequestForm = (Phase, &'static str, String);

/// How often answers looked how.
#[derive(Debug, Default)]
pub(super) struct Signatures {
    counts: BTreeMap<RequestForm, BTreeMap<(Subject, String), u64>>,
}

impl Signatures {
    pub(super) fn note(&mut self, form: RequestForm, subject: Subject, answer: &Answer) {
        let counts = self.counts.entry(form).or_default();
        *counts.entry((subject, signature(answer))).or_default() += 1;
    }

    /// How many answers were noted for documents of others.
    pub(super) fn foreign(&self) -> u64 {
        let counts = self.counts.values().flatten();
        counts
            .filter(|((subject, _), _)| *subject == Subject::Foreign)
            .map(|(_, count)| count)
            .sum()
    }

    /// What tells documents of others from those that do not exist.
    pub(super) fn betrayals(&self) -> Vec<String> {
        let forms = self.counts.iter().flat_map(|(form, counts)| {
            let all = |subject| {
                let counts = counts.iter().filter(move |((of, _), _)| *of == subject);
                counts.map(|((_, signature), count)| (signature, *count))
            };
            let absent: BTreeSet<&String> = all(Subject::Absent).map(|(signature, _)| signature).collect();
            let sum: u64 = all(Subject::Absent).map(|(_, count)| count).sum();
            let odd = all(Subject::Foreign).filter(move |(signature, count)| {
                sum >= ABSENT_MIN && *count > ODD_MAX && !absent.contains(signature)
            });
            odd.map(move |(signature, count)| {
                format!("{form:?}: {count} answers for documents of others, and none of {sum} for absent ones:\n{signature}")
            })
        });
        forms.collect()
    }
}

fn signature(answer: &Answer) -> String {
    let names = answer.headers.keys().map(HeaderName::as_str);
    let headers: String = names
        .filter(|name| !FREE_HEADERS.contains(name))
        .map(|name| format!("  {name}: {}\n", answer.header(name)))
        .collect();
    format!("  {}\n{headers}  {}", answer.status, answer.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16) -> Answer {
        Answer {
            status,
            ..Answer::default()
        }
    }

    #[test]
    fn only_what_is_unlike_all_answers_for_absent_documents_betrays() {
        let mut signatures = Signatures::default();
        let form = || (Phase::Up, "GET", String::new());
        for _ in 0..ABSENT_MIN {
            signatures.note(form(), Subject::Absent, &answer(404));
            signatures.note(form(), Subject::Foreign, &answer(404));
        }
        assert!(signatures.betrayals().is_empty());
        for _ in 0..=ODD_MAX {
            assert!(signatures.betrayals().is_empty());
            signatures.note(form(), Subject::Foreign, &answer(412));
        }
        assert_eq!(signatures.betrayals().len(), 1);
        signatures.note(form(), Subject::Absent, &answer(412));
        assert!(signatures.betrayals().is_empty());
    }
}
