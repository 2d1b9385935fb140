//! Clients that read, and that write as customers do: each request is drawn, and each answer judged.

use std::sync::Arc;

use anyhow::bail;
use larder::clock::Boottime;
use serde_json::json;
use testkit::http::{Answer, Client, Request};

use crate::checks::scope::leaks::history::{Sees, Span};
use crate::checks::scope::leaks::judge::{Exchange, Target};
use crate::checks::scope::leaks::world::{
    ABSENT_ITEMS, CUSTOMERS, HTTP_ITEMS, ITEMS, MAX_STALENESS, NEW_ITEMS, Phase, SITES, World,
    number_of,
};
use crate::checks::scope::text::encoded;

const KEYS_MAX: usize = 12;
/// Requests that fail in a row while PostgreSQL is there.
const FAILURES_MAX: usize = 20;
const ENCODINGS: [&str; 4] = ["gzip", "br", "zstd", "identity"];

/// In whose name requests are sent: its credential, and the documents that it sees.
#[derive(Clone, Debug)]
pub(super) struct Principal {
    pub(super) name: String,
    pub(super) sees: Sees,
    pub(super) credential: Option<(&'static str, String)>,
}

/// A client with one connection, which sends requests of several principals.
pub(super) struct DrawingClient {
    pub(super) world: Arc<World>,
    pub(super) rng: fastrand::Rng,
    pub(super) client: Client,
    pub(super) principals: Arc<Vec<Principal>>,
    /// `Larder-Token` of the last write.
    pub(super) token: String,
}

impl DrawingClient {
    /// Sends requests until the load is to end.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let mut failures = 0;
        while !self.world.is_over() {
            let sent = match self.rng.u8(..10) {
                0 => self.post().await,
                1 | 2 => self.change().await,
                _ => self.read().await,
            };
            match sent {
                Ok(()) => failures = 0,
                // What larder does not answer tells nothing, but it must go on.
                Err(error) => {
                    failures += 1;
                    if failures > FAILURES_MAX {
                        self.world.stop();
                        bail!("larder does not answer: {error:#}");
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn principal(&mut self) -> usize {
        self.rng.usize(..self.principals.len())
    }

    /// Sends a request of a principal and judges the answer.
    pub(super) async fn send(
        &mut self,
        principal: usize,
        target: &Target,
        request: Request,
    ) -> anyhow::Result<Answer> {
        let who = self.principals[principal].clone();
        let mut sent = request.clone();
        sent.headers.extend(who.credential.clone());
        let (began, phase) = (Boottime::now(), self.world.phase());
        let answer = self.client.send(&sent).await?;
        let span = Span {
            began,
            ended: Boottime::now(),
            max_staleness: MAX_STALENESS,
        };
        let phase = if self.world.phase() == phase {
            phase
        } else {
            Phase::Changing
        };
        let exchange = Exchange {
            world: &self.world,
            who: &who.name,
            sees: who.sees,
            target,
            request: &request,
            answer: &answer,
            span,
            phase,
        };
        exchange.judge();
        let token = answer.header("larder-token");
        if !token.is_empty() {
            token.clone_into(&mut self.token);
        }
        if let (Target::Item(id), 200, "GET") = (target, answer.status, request.method)
            && !request.target.contains('?')
        {
            let etag = answer.header("etag");
            let plain = etag.split('-').next().unwrap_or_default().trim_matches('"');
            self.world.note_etag(*id, &format!("\"{plain}\""));
        }
        Ok(answer)
    }

    /// The key of a document that may be there.
    pub(super) fn item(&mut self) -> i64 {
        let new = self.world.new_count();
        match self.rng.u8(..10) {
            0..=4 => self.rng.i64(1..=ITEMS),
            5 | 6 => ITEMS + self.rng.i64(1..=HTTP_ITEMS),
            7 if new > 0 => NEW_ITEMS + self.rng.i64(0..new),
            _ => ABSENT_ITEMS + self.rng.i64(0..ITEMS),
        }
    }

    fn key_text(&mut self) -> (i64, String) {
        let id = self.item();
        let text = match self.rng.u8(..4) {
            0 => format!("+{id}"),
            1 => format!("00{id}"),
            _ => id.to_string(),
        };
        (id, encoded(&text, &mut self.rng))
    }

    fn number_text(&mut self) -> (String, String) {
        let number = number_of(self.item());
        let text = encoded(&number, &mut self.rng);
        (number, text)
    }

    async fn read(&mut self) -> anyhow::Result<()> {
        let principal = self.principal();
        let (target, path, body) = match self.rng.u8(..10) {
            0..=3 => {
                let (id, text) = self.key_text();
                (Target::Item(id), format!("/items/{text}"), String::new())
            }
            4 | 5 => {
                let (number, text) = self.number_text();
                (
                    Target::Number(number),
                    format!("/items/by/number/{text}"),
                    String::new(),
                )
            }
            6 | 7 => self.many(),
            _ => (Target::Other, self.list(), String::new()),
        };
        let is_post = !body.is_empty();
        let method = match self.rng.u8(..6) {
            _ if is_post => "POST",
            0 => "HEAD",
            _ => "GET",
        };
        let mut request = Request::new(method, path);
        request.body = body.into();
        self.add_headers(&mut request, &target);
        if matches!(target, Target::Item(_) | Target::Number(_)) && self.rng.u8(..6) == 0 {
            let fields = ["id,version,owner", "id", "note,parts.note", "at.site_id"];
            request.target += &format!("?fields={}", fields[self.rng.usize(..fields.len())]);
        }
        self.send(principal, &target, request).await.map(|_| ())
    }

    fn many(&mut self) -> (Target, String, String) {
        let count = self.rng.usize(1..KEYS_MAX);
        let (path, body) = match self.rng.u8(..3) {
            0 => {
                let keys: Vec<i64> = (0..count).map(|_| self.item()).collect();
                ("/items:batch".to_owned(), json!({"keys": keys}).to_string())
            }
            1 => {
                let keys: Vec<String> = (0..count).map(|_| self.key_text().1).collect();
                (format!("/items?keys={}", keys.join(",")), String::new())
            }
            _ => {
                let numbers: Vec<String> = (0..count).map(|_| self.number_text().1).collect();
                (
                    format!("/items?by=number&keys={}", numbers.join(",")),
                    String::new(),
                )
            }
        };
        (Target::Other, path, body)
    }

    fn list(&mut self) -> String {
        let mut path = format!("/items?limit={}", self.rng.u8(1..30));
        if self.rng.bool() {
            path += &format!("&after={}", self.item());
        }
        if self.rng.u8(..4) == 0 {
            path += &format!("&owner=eq.{}", self.rng.i64(1..=CUSTOMERS + 1));
        }
        path
    }

    fn add_headers(&mut self, request: &mut Request, target: &Target) {
        if self.rng.bool() {
            let encoding = ENCODINGS[self.rng.usize(..ENCODINGS.len())];
            request
                .headers
                .push(("accept-encoding", encoding.to_owned()));
        }
        if self.rng.u8(..10) == 0 && !self.token.is_empty() {
            request.headers.push(("larder-token", self.token.clone()));
        }
        let Target::Item(id) = target else {
            return;
        };
        let Some(etag) = self.world.etag(*id) else {
            return;
        };
        let header = match self.rng.u8(..12) {
            0..=2 => ("if-none-match", etag),
            3 => ("if-none-match", "*".to_owned()),
            4 => ("if-match", etag),
            5 => ("if-match", "*".to_owned()),
            6 => ("range", "bytes=0-9".to_owned()),
            7 => ("range", "bytes=100000-".to_owned()),
            _ => return,
        };
        request.headers.push(header);
    }

    /// A write of a customer to a document that is there, its own or not.
    async fn change(&mut self) -> anyhow::Result<()> {
        let principal = self.principal();
        let Sees::Own(Some(owner)) = self.principals[principal].sees else {
            return Ok(());
        };
        let id = self.item();
        let mut request = Request::new("PATCH", format!("/items/{id}"));
        let mut refused = false;
        let body = match self.rng.u8(..5) {
            0 => {
                refused = true;
                json!({"owner": owner % CUSTOMERS + 1}).to_string()
            }
            1 => {
                refused = true;
                request.method = "DELETE";
                request.headers.push((
                    "if-match",
                    "\"00000000000000000000000000000000\"".to_owned(),
                ));
                String::new()
            }
            2 => return self.point(principal, owner, id).await,
            _ => json!({"note": format!("of {owner}")}).to_string(),
        };
        if !body.is_empty() {
            request = request.with_body("application/merge-patch+json", body);
        }
        if self.rng.u8(..4) == 0 && request.method == "PATCH" {
            let etag = self.world.etag(id).unwrap_or_else(|| "\"none\"".to_owned());
            request.headers.push(("if-match", etag));
        }
        let answer = self
            .send(principal, &Target::Item(id), request.clone())
            .await?;
        if refused && answer.status < 300 {
            self.broken(
                "LEAK: a customer has changed what it must not",
                &request,
                &answer,
            );
        }
        Ok(())
    }

    /// Makes a document point to a site, which must be the customer's.
    async fn point(&mut self, principal: usize, owner: i64, id: i64) -> anyhow::Result<()> {
        let site = self.rng.i64(1..=SITES);
        let mut request = Request::new("PATCH", format!("/items/{id}"))
            .with("content-type", "application/merge-patch+json");
        request.body = json!({"site": site}).to_string().into();
        let began = Boottime::now();
        let before = self
            .send(
                principal,
                &Target::Item(id),
                Request::new("GET", format!("/items/{id}")),
            )
            .await?;
        let is_unchanged = before.json()["site"] == json!(site);
        let answer = self
            .send(principal, &Target::Item(id), request.clone())
            .await?;
        let span = Span {
            began,
            ended: Boottime::now(),
            max_staleness: MAX_STALENESS,
        };
        let sees = Sees::Own(Some(owner));
        let is_own = self.world.site(site).is_some_and(|site| {
            let mut states = site.possible(span);
            states.any(|state| state.is_for(sees))
        });
        if answer.status < 300 && !is_own && !is_unchanged {
            self.broken(
                "LEAK: a document points to a site of others",
                &request,
                &answer,
            );
        }
        Ok(())
    }

    pub(super) fn broken(&self, why: &str, request: &Request, answer: &Answer) {
        self.world
            .note_violation(why, "a customer", request, answer, "");
    }
}
