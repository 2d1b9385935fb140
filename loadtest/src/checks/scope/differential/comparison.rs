//! Sends drawn requests of one schema to larder, and compares the answers with the oracle's.

mod read_step;
mod write_step;

use anyhow::ensure;
use sqlx::postgres::PgConnection;
use testkit::http::{Answer, Client, Request};

use crate::checks::scope::differential::Tally;
use crate::checks::scope::differential::principals::{Principal, Right};
use crate::checks::scope::differential::rows::RowDraw;
use crate::checks::scope::differential::schema::{LONG, Schema};
use crate::checks::twins::run_sql;

/// The API key that may write the marker.
pub(super) const MARKER_KEY: &str = "marker";
/// Changes by plain SQL between two requests.
const CHANGES_MAX: usize = 4;
/// Headers that differ between two answers that are alike otherwise.
const OWN_HEADERS: [&str; 5] = [
    "date",
    "content-length",
    "etag",
    "x-request-id",
    "larder-token",
];

/// Headers that follow from the size of the body: small bodies are not compressed.
const SIZE_HEADERS: [&str; 2] = ["content-encoding", "vary"];

/// One schema in both databases.
pub(super) struct Comparison {
    pub(super) schema: Schema,
    /// The first is unrestricted.
    pub(super) principals: Vec<Principal>,
    pub(super) rng: fastrand::Rng,
    pub(super) client: Client,
    /// The database that larder writes to.
    pub(super) written: PgConnection,
    /// Its copy, which the oracle writes to.
    pub(super) copy: PgConnection,
    pub(super) tally: Tally,
}

impl Comparison {
    /// Sends requests in so many steps, or less: the first difference ends it.
    pub(super) async fn run(mut self, steps: u32) -> anyhow::Result<Tally> {
        for _ in 0..steps {
            if self.rng.bool() {
                self.change().await?;
            }
            let difference = match self.rng.u8(..5) {
                0 | 1 => {
                    let principal = self.writer();
                    self.write(principal).await?
                }
                _ => {
                    let principal = self.rng.usize(..self.principals.len());
                    self.read(principal).await?
                }
            };
            if let Some(difference) = difference {
                self.tally.differences.push(difference);
                break;
            }
        }
        Ok(self.tally)
    }

    /// A principal, mostly one that may write.
    fn writer(&mut self) -> usize {
        let principal = self.rng.usize(..self.principals.len());
        match self.principals[principal].rights(&self.schema).write {
            Right::None | Right::Own(None) => self.rng.usize(..self.principals.len()),
            Right::All | Right::Own(_) => principal,
        }
    }

    /// Changes rows of both databases, then waits until larder has applied it.
    async fn change(&mut self) -> anyhow::Result<()> {
        for _ in 0..self.rng.usize(1..CHANGES_MAX) {
            let mut draw = RowDraw {
                rng: &mut self.rng,
                schema: &self.schema,
            };
            let sql = draw.change();
            self.run_both(&sql).await?;
        }
        self.catch_up().await
    }

    async fn run_both(&mut self, sql: &str) -> anyhow::Result<()> {
        let written = run_sql(&mut self.written, sql).await.is_ok();
        let copied = run_sql(&mut self.copy, sql).await.is_ok();
        ensure!(written == copied, "the databases differ: {sql}");
        Ok(())
    }

    /// The answer to a write comes when larder has applied what committed before it.
    async fn catch_up(&mut self) -> anyhow::Result<()> {
        let body = format!("{{\"n\":{}}}", self.rng.i32(0..));
        let request = Request::new("PATCH", "/marker/1")
            .with("x-api-key", MARKER_KEY)
            .with_body("application/merge-patch+json", body);
        let answer = self.client.send(&request).await?;
        ensure!(answer.status == 200, "the marker: {}", answer.shown());
        Ok(())
    }

    /// Sends a request of a principal.
    async fn send(&mut self, principal: usize, request: &Request) -> anyhow::Result<Answer> {
        let mut request = request.clone();
        request
            .headers
            .extend(self.principals[principal].header(&mut self.rng));
        let answer = self.client.send(&request).await?;
        self.tally.requests += 1;
        let statuses = &mut self.tally.statuses;
        *statuses.entry((request.method, answer.status)).or_default() += 1;
        Ok(answer)
    }

    /// A difference, as text.
    fn shown(&self, principal: usize, exchanges: &[(&Request, &Answer)], why: &str) -> String {
        let schema = &self.schema;
        let mut text = format!(
            "--seed {} --schemas 1\n{}\n{}",
            schema.seed,
            schema.ddl(),
            schema.resource()
        );
        text += &format!("\n{:#?}\n", self.principals[principal]);
        for (request, answer) in exchanges {
            text += &format!("\n{}\n{}\n", request.shown(), answer.shown());
        }
        (text + why).replace(&"long ".repeat(LONG), "long … ")
    }
}

/// How the answer for a document of others differs from the one for a document that does not exist.
fn unlike_absence(foreign: &Answer, absent: &Answer) -> Option<String> {
    // The lists of missing keys differ, and with them the sizes.
    let is_same_size = foreign.header("content-length") == absent.header("content-length");
    let is_told = |name: &str| {
        !OWN_HEADERS.contains(&name) && (is_same_size || !SIZE_HEADERS.contains(&name))
    };
    let told = |answer: &Answer| {
        let headers = answer.headers.iter();
        let told = headers.filter(|(name, _)| is_told(name.as_str()));
        let told = told.map(|(name, value)| (name.clone(), value.clone()));
        (answer.status, told.collect::<Vec<_>>())
    };
    if told(foreign) != told(absent) {
        return Some(
            "the answer differs from the one for a document that does not exist".to_owned(),
        );
    }
    let is_same = foreign.status < 400 || foreign.body == absent.body;
    (!is_same)
        .then(|| "the body differs from the one for a document that does not exist".to_owned())
}
