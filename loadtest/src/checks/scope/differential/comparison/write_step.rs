//! One drawn write, and its repetitions by the same principal and by another.

use serde_json::Value;
use testkit::http::{Answer, Request};

use super::{Comparison, unlike_absence};
use crate::checks::scope::differential::contents::Contents;
use crate::checks::scope::differential::documents::visible;
use crate::checks::scope::differential::oracle::{Expected, Oracle};
use crate::checks::scope::differential::principals::{Right, Rights};
use crate::checks::scope::differential::schema::{OWNERS, Role};
use crate::checks::scope::differential::writes::{Write, WriteOf};
use crate::checks::twins::Condition;

/// The number of a key without a document.
const ABSENT: i64 = 901;
/// The type of problems that have none.
const NO_TYPE: &str = "about:blank";

impl Comparison {
    /// Sends a drawn write of a principal. Returns the difference, if there is one.
    pub(super) async fn write(&mut self, principal: usize) -> anyhow::Result<Option<String>> {
        let stored = visible(&mut self.written, &self.schema, Right::All, None).await?;
        let by = &self.principals[principal];
        let rights = by.rights(&self.schema);
        let own = visible(&mut self.written, &self.schema, rights.write, None).await?;
        let mut write = Write::draw(&mut self.rng, &self.schema, [&stored, &own], by.owner);
        if rights.read != rights.write {
            // Entity tags are for those that may read the document.
            write.condition = Condition::None;
        }
        if !by.has_subject(&self.schema) {
            write.repetition = None;
        }
        let request = self.write_request(&write).await?;
        let answer = self.send(principal, &request).await?;
        let expected = self.execute(&write, rights.write).await?;
        if let Some(why) = self
            .wrong_answer(&write, &expected, rights, &answer)
            .await?
        {
            return Ok(Some(self.shown(principal, &[(&request, &answer)], &why)));
        }
        if write.repetition.is_some() {
            return self.repeat(principal, &write, &request, &answer).await;
        }
        if answer.status == 404 && rights.is_restricted() {
            return self
                .compare_write_with_absent(principal, &write, &request, &answer)
                .await;
        }
        Ok(None)
    }

    /// The request, with the entity tag that the unrestricted know.
    async fn write_request(&mut self, write: &Write) -> anyhow::Result<Request> {
        let mut etag = String::new();
        if write.condition == Condition::Match {
            let read = Request::new("GET", write.path(&self.schema));
            etag = self.send(0, &read).await?.header("etag").to_owned();
        }
        // Without a document there is no entity tag, and no document fulfils this one.
        let etag = if etag.is_empty() { "\"none\"" } else { &etag };
        Ok(write.request(&self.schema, etag))
    }

    async fn execute(&mut self, write: &Write, right: Right) -> anyhow::Result<Vec<Expected>> {
        let mut oracle = Oracle {
            connection: &mut self.copy,
            schema: &self.schema,
            right,
        };
        oracle.execute(write).await
    }

    /// Why the answer, or what the tables contain now, is wrong.
    async fn wrong_write(
        &mut self,
        write: &Write,
        expected: &[Expected],
        rights: Rights,
        answer: &Answer,
    ) -> anyhow::Result<Option<String>> {
        let got = statuses_of(write, answer);
        let mut pairs = expected.iter().zip(&got);
        // Without a body 200 is 204.
        let is_one_of = |expected: &Expected, got: u16| {
            let statuses = &expected.statuses;
            statuses.contains(&got)
                || (got == 204 && statuses.contains(&200) && rights.read != Right::All)
        };
        let is_expected =
            got.len() == expected.len() && pairs.all(|(expected, got)| is_one_of(expected, *got));
        let contents = Contents::read(&mut self.written, &self.schema).await?;
        let copied = Contents::read(&mut self.copy, &self.schema).await?;
        if !is_expected || contents != copied {
            let difference = contents.difference(&copied);
            let why = format!(
                "expected {expected:?}, got {got:?}\nrows of larder (-), expected (+):\n{difference}"
            );
            return Ok(Some(why));
        }
        let names_type = answer.json()["type"]
            .as_str()
            .is_some_and(|name| name != NO_TYPE);
        let must_name = matches!(expected, [one] if one.is_key_hidden && one.statuses == [409]);
        let is_wrong_type = match rights.write {
            Right::All => must_name && !names_type,
            _ => names_type,
        };
        if answer.status == 409 && is_wrong_type {
            return Ok(Some("the type of the problem".to_owned()));
        }
        Ok(None)
    }

    /// Why the answer, what the tables contain now, or a document in the answer is wrong. Such a document is as the principal
    /// sees it now, and there is none if it does not.
    async fn wrong_answer(
        &mut self,
        write: &Write,
        expected: &[Expected],
        rights: Rights,
        answer: &Answer,
    ) -> anyhow::Result<Option<String>> {
        let wrong = self.wrong_write(write, expected, rights, answer).await?;
        if wrong.is_some() || answer.status >= 300 {
            return Ok(wrong);
        }
        let seen = visible(&mut self.written, &self.schema, rights.read, None).await?;
        let body = answer.json();
        let shown = documents_of(write, &body);
        let is_seen = |document: &&&Value| seen.iter().any(|seen| seen.document == ***document);
        if let Some(unseen) = shown.iter().find(|document| !is_seen(document)) {
            return Ok(Some(format!(
                "a document that the principal does not see: {unseen}"
            )));
        }
        if shown.is_empty() && !answer.header("etag").is_empty() {
            return Ok(Some("an entity tag without a document".to_owned()));
        }
        Ok(None)
    }

    /// The same request again: by the same principal, which may have lost the document meanwhile, and by another one.
    async fn repeat(
        &mut self,
        principal: usize,
        write: &Write,
        request: &Request,
        first: &Answer,
    ) -> anyhow::Result<Option<String>> {
        if self.rng.bool() {
            self.give_away(write, first).await?;
        }
        let rights = self.principals[principal].rights(&self.schema);
        let again = self.send(principal, request).await?;
        let why = if first.status < 300 {
            self.wrong_repetition(write, rights, first, &again).await?
        } else {
            let expected = self.execute(write, rights.write).await?;
            self.wrong_answer(write, &expected, rights, &again).await?
        };
        if let Some(why) = why {
            return Ok(Some(self.shown(
                principal,
                &[(request, first), (request, &again)],
                &why,
            )));
        }
        let owner = self.principals[principal].owner;
        let others = self.principals.iter().enumerate();
        // Entity tags are for those that may read the document.
        let others = others.filter(|(_, other)| {
            let rights = other.rights(&self.schema);
            other.owner != owner && other.has_subject(&self.schema) && rights.read == rights.write
        });
        let others: Vec<usize> = others.map(|(number, _)| number).collect();
        let Some(other) = self.rng.choice(others) else {
            return Ok(None);
        };
        let answer = self.send(other, request).await?;
        let rights = self.principals[other].rights(&self.schema);
        let expected = self.execute(write, rights.write).await?;
        let why = self.wrong_answer(write, &expected, rights, &answer).await?;
        let exchanges = [(request, first), (request, &again), (request, &answer)];
        Ok(why.map(|why| self.shown(other, &exchanges, &why)))
    }

    /// Why the answer to the same request again, which was executed already, is wrong: it has the document of the first
    /// answer, or none if the principal does not see it any more.
    async fn wrong_repetition(
        &mut self,
        write: &Write,
        rights: Rights,
        first: &Answer,
        again: &Answer,
    ) -> anyhow::Result<Option<String>> {
        let mut statuses = vec![first.status];
        if first.status == 200 {
            statuses.push(204);
        }
        let expected = [Expected {
            statuses,
            ..Expected::default()
        }];
        let wrong = self.wrong_write(write, &expected, rights, again).await?;
        if wrong.is_some() || again.body.is_empty() {
            return Ok(wrong);
        }
        if again.body != first.body {
            return Ok(Some(
                "another body than that of the first answer".to_owned(),
            ));
        }
        let seen = visible(&mut self.written, &self.schema, rights.read, None).await?;
        let keys: Vec<&str> = self.schema.tables[0]
            .of_role(Role::Key)
            .map(|column| &*column.name)
            .collect();
        let body = again.json();
        let has_key = |document: &Value| keys.iter().all(|name| document[*name] == body[*name]);
        let is_seen = seen.iter().any(|seen| has_key(&seen.document));
        Ok((!is_seen).then(|| "the principal does not see the document any more".to_owned()))
    }

    /// Gives the document that was written another owner.
    async fn give_away(&mut self, write: &Write, first: &Answer) -> anyhow::Result<()> {
        let Some(of) = self.schema.owner.clone() else {
            return Ok(());
        };
        let key: Vec<String> = match (&write.of, write.key()) {
            (WriteOf::Post { documents, .. }, _) => {
                let keys = self.schema.tables[0].of_role(Role::Key);
                let parts = keys.filter_map(|column| documents[0].get(&column.name));
                parts.map(crate::checks::scope::kinds::literal_of).collect()
            }
            (_, Some(key)) => {
                let kinds = self.schema.key_kinds().into_iter();
                kinds
                    .zip(key)
                    .map(|(kind, part)| kind.literal(*part))
                    .collect()
            }
            _ => return Ok(()),
        };
        if first.status >= 300 {
            return Ok(());
        }
        let owner = of.kind.literal(self.rng.i64(OWNERS));
        let names = self.schema.tables[0].key_names();
        let sql = format!(
            "update {} set o = {owner} where ({names}) = ({})",
            self.schema.table_sql(0),
            key.join(", ")
        );
        self.run_both(&sql).await?;
        self.catch_up().await
    }

    /// The same write of a document that does not exist, which changes nothing.
    async fn compare_write_with_absent(
        &mut self,
        principal: usize,
        write: &Write,
        request: &Request,
        foreign: &Answer,
    ) -> anyhow::Result<Option<String>> {
        let mut other = write.clone();
        match &mut other.of {
            WriteOf::Patch { key, .. } | WriteOf::Delete { key } => key.fill(ABSENT),
            WriteOf::Put { .. } | WriteOf::Post { .. } => return Ok(None),
        }
        let mut absent_request = request.clone();
        absent_request.target = other.path(&self.schema);
        let absent = self.send(principal, &absent_request).await?;
        self.tally.absences += 1;
        let exchanges = [(request, foreign), (&absent_request, &absent)];
        Ok(unlike_absence(foreign, &absent).map(|why| self.shown(principal, &exchanges, &why)))
    }
}

/// The documents in the body of an answer.
fn documents_of<'b>(write: &Write, body: &'b Value) -> Vec<&'b Value> {
    match body {
        Value::Object(members) if members.contains_key("count") || write.is_lenient() => Vec::new(),
        Value::Object(_) => vec![body],
        Value::Array(rows) => rows.iter().collect(),
        _ => Vec::new(),
    }
}

/// The status of an answer, or of each of its lines.
fn statuses_of(write: &Write, answer: &Answer) -> Vec<u16> {
    if !write.is_lenient() || answer.status != 200 {
        return vec![answer.status];
    }
    let body = String::from_utf8_lossy(&answer.body);
    let statuses = body.lines().filter_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        u16::try_from(line.get("status")?.as_u64()?).ok()
    });
    statuses.collect()
}
