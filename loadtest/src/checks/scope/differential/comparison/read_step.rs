//! One drawn read: as it is, and with documents that do not exist in place of those of others.

use testkit::http::{Answer, Request};

use super::{Comparison, unlike_absence};
use crate::checks::scope::differential::documents::{VisibleDocument, visible};
use crate::checks::scope::differential::principals::Right;
use crate::checks::scope::differential::read_judge::Judge;
use crate::checks::scope::differential::reads::{Read, ReadOf};

impl Comparison {
    /// Sends a drawn read of a principal. Returns the difference, if there is one.
    pub(super) async fn read(&mut self, principal: usize) -> anyhow::Result<Option<String>> {
        let mut read = Read::draw(&mut self.rng, &self.schema);
        let whole = self.whole(&read).await?;
        self.add_conditions(&mut read, whole.as_ref());
        let right = self.principals[principal].read(&self.schema);
        let after = match &read.of {
            ReadOf::List { after, .. } => after.as_deref(),
            _ => None,
        };
        let visible = visible(&mut self.written, &self.schema, right, after).await?;
        let request = read.request(&self.schema);
        let answer = self.send(principal, &request).await?;
        let judge = Judge {
            schema: &self.schema,
            right,
            visible: &visible,
            whole: whole.as_ref(),
        };
        if let Some(why) = judge.wrong(&read, &request, &answer) {
            return Ok(Some(self.shown(principal, &[(&request, &answer)], &why)));
        }
        if !matches!(right, Right::Own(_)) || self.schema.owner.is_none() {
            return Ok(None);
        }
        self.compare_with_absent(principal, &read, &visible).await
    }

    /// What the unrestricted are answered, for half of the reads: the document is in memory then.
    async fn whole(&mut self, read: &Read) -> anyhow::Result<Option<Answer>> {
        if !matches!(read.of, ReadOf::One(_)) || self.rng.bool() {
            return Ok(None);
        }
        let plain = Read {
            headers: Vec::new(),
            fields: None,
            method: "GET",
            ..read.clone()
        };
        let answer = self.send(0, &plain.request(&self.schema)).await?;
        Ok(Some(answer).filter(|answer| answer.status == 200))
    }

    /// Adds headers that ask for a document's entity tag or for a part of it.
    fn add_conditions(&mut self, read: &mut Read, whole: Option<&Answer>) {
        let Some(etag) = whole.map(|whole| whole.header("etag").to_owned()) else {
            return;
        };
        if read.fields.is_some() {
            return;
        }
        let other = "\"00000000000000000000000000000000\"".to_owned();
        let header = match self.rng.u8(..10) {
            0 | 1 => ("if-none-match", etag),
            2 => ("if-none-match", "*".to_owned()),
            3 => ("if-none-match", other),
            4 => ("if-match", etag),
            5 => ("if-match", other),
            6 => ("if-match", "*".to_owned()),
            7 => (
                "range",
                format!("bytes={}-{}", self.rng.u8(..20), self.rng.u8(20..)),
            ),
            _ => return,
        };
        read.headers.push(header);
    }

    async fn compare_with_absent(
        &mut self,
        principal: usize,
        read: &Read,
        visible: &[VisibleDocument],
    ) -> anyhow::Result<Option<String>> {
        let judge = Judge {
            schema: &self.schema,
            right: Right::Own(None),
            visible,
            whole: None,
        };
        let Some(other) = read.with_absent(&self.schema, |named| judge.find(named).is_none())
        else {
            return Ok(None);
        };
        let requests: [Request; 2] = [read, &other].map(|read| read.request(&self.schema));
        let foreign = self.send(principal, &requests[0]).await?;
        let absent = self.send(principal, &requests[1]).await?;
        self.tally.absences += 1;
        let exchanges = [(&requests[0], &foreign), (&requests[1], &absent)];
        Ok(unlike_absence(&foreign, &absent).map(|why| self.shown(principal, &exchanges, &why)))
    }
}
