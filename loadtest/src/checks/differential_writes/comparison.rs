//! Sends the requests of one drawn schema to larder and to the oracle, and compares what they leave.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use serde_json::Value;
use sqlx::postgres::PgConnection;
use testkit::http::{self, Answer, HttpConnection};

use crate::checks::differential_writes::contents::{Contents, DrawnValues};
use crate::checks::differential_writes::oracle::{ANY_REFUSAL, Choice, Oracle};
use crate::checks::differential_writes::requests::{
    Operation, Request, Step, draw_document, draw_step,
};
use crate::checks::differential_writes::schema::{Kind, Role, Schema};
use crate::checks::differential_writes::state::State;
use crate::checks::twins::{Condition, run_sql};

/// The documents that a schema has before the first request.
const DOCUMENTS: usize = 6;

/// What was compared.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) requests: u64,
    /// How many answers had each status.
    pub(super) statuses: BTreeMap<u16, u64>,
    /// The differences, as text.
    pub(super) differences: Vec<String>,
}

/// One schema in both databases.
pub(super) struct Comparison {
    pub(super) schema: Schema,
    /// The address of larder.
    pub(super) larder: SocketAddr,
    /// The address of its client.
    pub(super) own: Ipv4Addr,
    /// The database that larder writes to.
    pub(super) written: PgConnection,
    /// Its copy, which the oracle writes to.
    pub(super) copy: PgConnection,
}

/// Creates the tables of a schema and fills them.
pub(super) async fn create(connection: &mut PgConnection, schema: &Schema) -> anyhow::Result<()> {
    run_sql(connection, &schema.ddl())
        .await
        .with_context(|| schema.ddl())?;
    // No trigger is called, and no foreign key checked.
    run_sql(connection, "set session_replication_role = replica").await?;
    let mut rng = fastrand::Rng::with_seed(schema.seed);
    let drawn = DrawnValues {
        request: 0,
        sequences: schema.drawn_columns().count(),
    };
    run_sql(connection, &drawn.prepare_sql(schema)).await?;
    for _ in 0..DOCUMENTS {
        let document = draw_document(&mut rng, schema);
        let mut oracle = Oracle {
            connection,
            schema,
            choice: Choice::default(),
            has_kept: false,
        };
        oracle.seed(&document).await?;
    }
    for sql in unusual_values(&mut rng, schema) {
        run_sql(connection, &sql).await?;
    }
    run_sql(connection, "set session_replication_role = origin").await
}

/// Statements that store values that a document can't tell apart from others, and rows outside the document.
fn unusual_values(rng: &mut fastrand::Rng, schema: &Schema) -> Vec<String> {
    let mut statements = Vec::new();
    for (number, level) in schema.levels.iter().enumerate() {
        for column in level.of_role(Role::Shown) {
            let value = match column.kind {
                Kind::Json | Kind::Jsonb => "'null'",
                Kind::Array => "'[0:2]={1,2,3}'",
                _ => continue,
            };
            let remainder = rng.u8(..3);
            statements.push(format!(
                "update {} set {} = {value} where a % 3 = {remainder}",
                schema.table(number),
                column.name
            ));
        }
    }
    if let Some(outside) = &schema.outside {
        let key = schema.levels[outside.level].primary_key();
        let names: Vec<&str> = key.iter().map(|column| &*column.name).collect();
        let names = names.join(", ");
        statements.push(format!(
            "insert into {}.outside select row_number() over (order by {names}), {names} from {} order by {names} limit 5",
            schema.name,
            schema.table(outside.level)
        ));
    }
    statements
}

impl Comparison {
    /// Sends `count` steps, or less: the first difference ends it.
    pub(super) async fn run(mut self, count: u32) -> anyhow::Result<Tally> {
        let mut tally = Tally::default();
        // Other values than those of the schema.
        let mut rng = fastrand::Rng::with_seed(self.schema.seed ^ u64::MAX);
        for request in 1..=count {
            let state = State::read(&mut self.copy, &self.schema).await?;
            let step = draw_step(&mut rng, &self.schema, &state);
            let drawn = DrawnValues {
                request: i64::from(request),
                sequences: self.schema.drawn_columns().count(),
            };
            if let Some(difference) = self.step(&step, drawn, &mut tally).await? {
                tally.differences.push(difference);
                break;
            }
        }
        Ok(tally)
    }

    /// Sends one step to both. Returns the difference, if there is one.
    async fn step(
        &mut self,
        step: &Step,
        drawn: DrawnValues,
        tally: &mut Tally,
    ) -> anyhow::Result<Option<String>> {
        let schema = &self.schema;
        let before = Contents::read(&mut self.copy, schema).await?;
        let prepare = drawn.prepare_sql(schema);
        run_sql(&mut self.written, &prepare).await?;
        let requests = match step {
            Step::One(request) => std::slice::from_ref(request),
            Step::Race(requests) => requests.as_slice(),
        };
        let answers = self.send(step, drawn).await?;
        tally.requests += answers.len() as u64;
        for answer in &answers {
            *tally.statuses.entry(answer.status).or_default() += 1;
        }
        let unreadable = match (requests, answers.first()) {
            ([request], Some(answer)) => self.unlike_read(request, answer).await?,
            _ => None,
        };
        let schema = &self.schema;
        // Lines that are written by themselves may run beside each other, too.
        let is_single = matches!(requests, [request] if !request.is_lenient());
        let comparable = |contents: Contents| {
            if is_single {
                contents
            } else {
                contents.without_counts()
            }
        };
        let found = comparable(Contents::read(&mut self.written, schema).await?);
        let got: Vec<Vec<u16>> = answers.iter().map(statuses_of).collect();
        let mut triggers = schema.triggers.iter();
        let mut operations = requests.iter().map(|request| &request.operation);
        let has_order = is_single
            && operations.all(Operation::gives_same_members)
            && !triggers.any(|trigger| trigger.draws(&schema.levels));
        let mut first = None;
        for choice in Choice::all(requests) {
            if first.is_some() {
                run_sql(&mut self.copy, &before.restore_sql(schema)).await?;
            }
            run_sql(&mut self.copy, &prepare).await?;
            let expected = execute(&mut self.copy, schema, requests, choice).await?;
            let contents = comparable(Contents::read(&mut self.copy, schema).await?);
            let has_statuses = is_expected(requests, &expected, &got);
            if has_statuses && contents.is_like(&found, drawn, has_order) {
                if !contents.has_same_rows(&found) {
                    run_sql(&mut self.copy, &found.restore_sql(schema)).await?;
                }
                return Ok(unreadable.map(|why| self.shown(requests, &answers, &why)));
            }
            first.get_or_insert((expected, contents));
        }
        let (expected, contents) = first.context("no choice")?;
        let why = format!(
            "expected {expected:?}, got {got:?}\nrows of larder (-), expected (+):\n{}",
            found
                .ordered(drawn)
                .difference(&contents.ordered(drawn), schema)
        );
        Ok(Some(self.shown(requests, &answers, &why)))
    }

    /// Sends the requests of a step to larder: two of a race at once, and a repeated one twice.
    async fn send(&self, step: &Step, drawn: DrawnValues) -> anyhow::Result<Vec<Answer>> {
        let repetition = format!("{}-{}", self.schema.seed, drawn.request);
        match step {
            Step::Race(requests) => {
                let [one, other] = [0, 1].map(|at| requests[at].http(&self.schema, "", ""));
                let (one, other) = tokio::join!(self.answer(&one), self.answer(&other));
                Ok(vec![one?, other?])
            }
            Step::One(request) => {
                let path = request.path(&self.schema);
                let read = match request.condition {
                    Condition::Match => self.answer(&http::Request::get(path)).await?,
                    _ => Answer::default(),
                };
                // Without a document there is no entity tag, and no document fulfils this one.
                let etag = Some(read.header("etag")).filter(|etag| !etag.is_empty());
                let sent = request.http(&self.schema, etag.unwrap_or("\"none\""), &repetition);
                let mut answers = vec![self.answer(&sent).await?];
                if request.is_repeated {
                    answers.push(self.answer(&sent).await?);
                }
                Ok(answers)
            }
        }
    }

    /// Sends one request on a connection of its own.
    async fn answer(&self, request: &http::Request) -> anyhow::Result<Answer> {
        let mut connection = HttpConnection::connect_from(self.own, self.larder).await?;
        connection.send(request).await
    }

    /// Why the answer to a write is not what a read returns afterwards.
    async fn unlike_read(
        &self,
        request: &Request,
        answer: &Answer,
    ) -> anyhow::Result<Option<String>> {
        let path = match answer.header("location") {
            "" => request.path(&self.schema),
            location => location.to_owned(),
        };
        let has_document = match &request.operation {
            Operation::Post { .. } => !answer.header("location").is_empty(),
            _ => matches!(answer.status, 200 | 201),
        };
        if !has_document || !(200..300).contains(&answer.status) {
            return Ok(None);
        }
        let read = self.answer(&http::Request::get(&path)).await?;
        let has_same_etag = answer.header("etag") == read.header("etag");
        let is_same = read.status == 200
            && (answer.body.is_empty() || (answer.body == read.body && has_same_etag));
        Ok(
            (!is_same)
                .then(|| format!("the answer is {answer:?}, but GET {path} returns {read:?}")),
        )
    }

    fn shown(&self, requests: &[Request], answers: &[Answer], why: &str) -> String {
        let schema = &self.schema;
        let mut text = format!("--seed {} --schemas 1\n{}", schema.seed, schema.shown_ddl());
        for request in requests {
            text += &format!("\n{}\n", request.shown(schema));
        }
        for answer in answers {
            text += &format!("answer {}: {}\n", answer.status, answer.text().trim_end());
        }
        text + why
    }
}

/// Lets the oracle execute requests, one after the other.
async fn execute(
    connection: &mut PgConnection,
    schema: &Schema,
    requests: &[Request],
    choice: Choice,
) -> anyhow::Result<Vec<Vec<u16>>> {
    let mut oracle = Oracle {
        connection,
        schema,
        choice,
        has_kept: false,
    };
    if requests.len() > 1 {
        let mut expected = vec![Vec::new(); requests.len()];
        for number in oracle.choice.order.clone() {
            expected[number] = oracle.execute(&requests[number]).await?;
        }
        return Ok(expected);
    }
    let mut expected = Vec::new();
    for request in requests {
        expected.push(oracle.execute(request).await?);
        if request.is_repeated {
            let is_stored = |statuses: &&Vec<u16>| statuses.iter().all(|status| *status < 300);
            // What was refused is executed again.
            let again = match expected.last().filter(is_stored) {
                Some(statuses) => statuses.clone(),
                None => oracle.execute(request).await?,
            };
            expected.push(again);
        }
    }
    Ok(expected)
}

/// The status of an answer, or of each of its lines.
fn statuses_of(answer: &Answer) -> Vec<u16> {
    let line_status = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        u16::try_from(line.get("index").and(line.get("status"))?.as_u64()?).ok()
    };
    let text = answer.text();
    let lines = text.lines().map(line_status);
    match lines.collect::<Option<Vec<u16>>>() {
        Some(statuses) if answer.status == 200 && !statuses.is_empty() => statuses,
        _ => vec![answer.status],
    }
}

/// Whether the statuses `got` are those that are expected.
fn is_expected(requests: &[Request], expected: &[Vec<u16>], got: &[Vec<u16>]) -> bool {
    let is_invalid = requests.iter().any(|request| request.is_invalid);
    let is_refusal = |status: u16| (400..500).contains(&status);
    let is_same = |expected: u16, got: u16| {
        expected == got
            || (is_refusal(expected) && is_refusal(got) && (is_invalid || expected == ANY_REFUSAL))
    };
    let same_answers = |expected: &Vec<u16>, got: &Vec<u16>| {
        let mut pairs = expected.iter().zip(got);
        expected.len() == got.len() && pairs.all(|(expected, got)| is_same(*expected, *got))
    };
    let mut pairs = expected.iter().zip(got);
    expected.len() == got.len() && pairs.all(|(expected, got)| same_answers(expected, got))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lenient_answer_has_a_status_for_each_line() {
        let answer = |status, body: &str| Answer {
            status,
            body: body.to_owned().into(),
            ..Answer::default()
        };
        let lines = "{\"index\":0,\"status\":201}\n{\"index\":1,\"status\":409}\n";
        assert_eq!(statuses_of(&answer(200, lines)), [201, 409]);
        assert_eq!(statuses_of(&answer(200, "{\"status\":201}")), [200]);
        assert_eq!(statuses_of(&answer(204, "")), [204]);
    }
}
