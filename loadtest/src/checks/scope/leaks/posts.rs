//! New documents, alone and many, and the same request again, by the same customer and by another one.

use serde_json::{Value, json};
use testkit::http::{Answer, Request};

use crate::checks::scope::leaks::clients::DrawingClient;
use crate::checks::scope::leaks::history::{Sees, State};
use crate::checks::scope::leaks::judge::Target;
use crate::checks::scope::leaks::world::{CUSTOMERS, KEPT_ITEMS, STAFF_KEY, number_of};

/// A document that a customer posts.
struct NewItem {
    id: i64,
    version: i64,
    document: Value,
    /// It names another owner, or a key that is taken.
    is_refused: bool,
}

impl DrawingClient {
    /// New documents of a customer.
    pub(super) async fn post(&mut self) -> anyhow::Result<()> {
        let principal = self.principal();
        let Sees::Own(Some(owner)) = self.principals[principal].sees else {
            return Ok(());
        };
        match self.rng.u8(..4) {
            0 => self.post_lines(principal, owner).await,
            1 => self.post_again(principal, owner).await,
            _ => self.post_one(principal, owner).await,
        }
    }

    fn new_item(&mut self, owner: i64) -> NewItem {
        let version = self.world.version();
        let id = self.world.note_new(version, owner);
        let mut document = json!({"id": id, "version": version, "number": number_of(id)});
        let mut is_refused = false;
        match self.rng.u8(..4) {
            0 => document["owner"] = json!(owner),
            1 => {
                document["owner"] = json!(owner % CUSTOMERS + 1);
                is_refused = true;
            }
            2 if self.rng.bool() => {
                document["id"] = json!(self.rng.i64(1..=KEPT_ITEMS));
                is_refused = true;
            }
            _ => {}
        }
        NewItem {
            id,
            version,
            document,
            is_refused,
        }
    }

    /// Notes whether the document is there now. While that is not known, both are possible.
    fn settle(&self, item: &NewItem, status: u16, request: &Request, answer: &Answer) {
        match status {
            200..300 if item.is_refused => {
                self.broken(
                    "LEAK: a document was posted that is not the customer's",
                    request,
                    answer,
                );
            }
            200..300 => self.world.settle(item.id, item.version, true),
            400..500 => self.world.settle(item.id, item.version, false),
            _ => {}
        }
    }

    async fn post_one(&mut self, principal: usize, owner: i64) -> anyhow::Result<()> {
        let item = self.new_item(owner);
        let request = request(&item.document.to_string(), "application/json");
        let answer = self
            .send(principal, &Target::Other, request.clone())
            .await?;
        self.settle(&item, answer.status, &request, &answer);
        Ok(())
    }

    async fn post_lines(&mut self, principal: usize, owner: i64) -> anyhow::Result<()> {
        let items: Vec<NewItem> = (0..self.rng.usize(1..4))
            .map(|_| self.new_item(owner))
            .collect();
        let is_lenient = self.rng.bool();
        let lines: Vec<String> = items.iter().map(|item| item.document.to_string()).collect();
        let mut request = request(&lines.join("\n"), "application/x-ndjson");
        if is_lenient {
            request = request.with("prefer", "handling=lenient");
        }
        let answer = self
            .send(principal, &Target::Other, request.clone())
            .await?;
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        // 0: not told.
        let has_lines = is_lenient && answer.status == 200;
        let mut statuses = vec![if has_lines { 0 } else { answer.status }; items.len()];
        if has_lines {
            for line in body.lines() {
                let line: Value = serde_json::from_str(line)?;
                let place = line["index"]
                    .as_u64()
                    .and_then(|index| usize::try_from(index).ok());
                let status = line["status"]
                    .as_u64()
                    .and_then(|status| u16::try_from(status).ok());
                if let (Some(place), Some(status)) =
                    (place.filter(|place| *place < items.len()), status)
                {
                    statuses[place] = status;
                }
            }
        }
        for (item, status) in items.iter().zip(statuses) {
            self.settle(item, status, &request, &answer);
        }
        Ok(())
    }

    /// A POST with `Idempotency-Key`, again by the same customer, whose document it may no longer be, and by another one.
    async fn post_again(&mut self, principal: usize, owner: i64) -> anyhow::Result<()> {
        let item = self.new_item(owner);
        let repetition = format!("repetition {}", self.rng.u32(..));
        let request = request(&item.document.to_string(), "application/json")
            .with("idempotency-key", repetition);
        let answer = self
            .send(principal, &Target::Other, request.clone())
            .await?;
        self.settle(&item, answer.status, &request, &answer);
        let is_given =
            answer.status == 201 && self.rng.bool() && self.give_away(item.id, owner).await?;
        let again = self
            .send(principal, &Target::Other, request.clone())
            .await?;
        if is_given && !again.json()["id"].is_null() {
            self.broken(
                "LEAK: a repeated request shows a document that was given away",
                &request,
                &again,
            );
        }
        if answer.status == 201 {
            let other = self.principal();
            if matches!(self.principals[other].sees, Sees::Own(_)) {
                self.send(other, &Target::Other, request).await?;
            }
        }
        Ok(())
    }

    /// The staff gives a new document to another customer. Returns whether it is certain that it has.
    async fn give_away(&mut self, id: i64, owner: i64) -> anyhow::Result<bool> {
        let next = State {
            version: self.world.version(),
            owner: Some(owner % CUSTOMERS + 1),
            is_visible: true,
            number: number_of(id),
        };
        let version = next.version;
        let body = json!({"owner": next.owner, "version": version}).to_string();
        let request = Request::new("PATCH", format!("/items/{id}"))
            .with("x-api-key", STAFF_KEY)
            .with_body("application/merge-patch+json", body);
        self.world.note(id, next);
        let answer = self.client.send(&request).await?;
        match answer.status {
            200 => self.world.settle(id, version, true),
            400..500 => self.world.settle(id, version, false),
            _ => {}
        }
        Ok(answer.status == 200)
    }
}

fn request(body: &str, content_type: &str) -> Request {
    Request::new("POST", "/items").with_body(content_type, body.to_owned())
}
