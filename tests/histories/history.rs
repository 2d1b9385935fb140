//! One history: two databases that begin with the same content, larder on one of them, and the same steps on both.

use std::fmt::Write as _;
use std::time::Duration;

use fastrand::Rng;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::service::{TestService, execute};
use crate::histories::client::{BackgroundWriter, UserSession};
use crate::histories::comparison::Comparison;
use crate::histories::oracle::Oracle;
use crate::histories::plan::{ON_LOGIN, Plan};
use crate::histories::replication::{Publisher, SubscriptionChange, SubscriptionPhase, database};
use crate::histories::step::{HistoryStep, Message, StepGenerator, StepTarget};
use crate::histories::{policies, rows};

const READY_WITHIN: Duration = Duration::from_secs(60);
/// Rows before larder starts: so many rounds of inserts.
const ROUNDS: usize = 6;

/// How a history ended.
pub(super) struct HistoryResult {
    /// The kinds of the steps that ran.
    pub(super) steps: Vec<&'static str>,
    /// How many reads were compared.
    pub(super) reads: u64,
    /// The kind of the step after which it failed, and the report.
    pub(super) failure: Option<(&'static str, String)>,
}

struct HistoryRun {
    plan: Plan,
    rng: Rng,
    role: TestRole,
    main: UserSession,
    twin: UserSession,
    main_url: String,
    oracle: Oracle,
    watch: Comparison,
    service: Option<TestService>,
    publisher: Option<Publisher>,
    /// The steps so far, for the report.
    log: Vec<String>,
    steps: Vec<&'static str>,
    /// Both databases have the same content: no step changed only one of them.
    alike: bool,
}

/// Draws and runs the history of `seed`, without the kinds of steps in `without`.
pub(super) async fn run(seed: u64, without: &[String]) -> HistoryResult {
    let mut rng = Rng::with_seed(seed);
    let plan = Plan::draw(&mut rng, without);
    let mut history = HistoryRun::create(plan, rng).await;
    let result = history.live(without).await;
    let failure = result.err().map(|why| {
        let kind = history.steps.last().copied().unwrap_or("start");
        (kind, history.report(seed, &why))
    });
    let outcome = HistoryResult {
        steps: history.steps.clone(),
        reads: history.watch.reads,
        failure,
    };
    history.end().await;
    outcome
}

impl HistoryRun {
    async fn create(plan: Plan, rng: Rng) -> Self {
        let (main_url, twin_url) = (
            TestCluster::database().await.url,
            TestCluster::database().await.url,
        );
        let role = TestRole::create(&main_url).await;
        let mut sql = format!("create role {0}_group; ", role.name);
        if !plan.policies {
            write!(sql, "alter role {} superuser; ", role.name).unwrap();
        }
        for setting in &plan.of_role {
            write!(sql, "alter role {} set {setting}; ", role.name).unwrap();
        }
        execute(&main_url, &sql).await;
        for url in [&main_url, &twin_url] {
            execute(url, &plan.setup(&role.name, database(url))).await;
        }
        let publisher = if plan.subscribed {
            Some(Publisher::create(&plan.sql).await)
        } else {
            None
        };
        Self {
            main: UserSession::connect(&main_url).await,
            twin: UserSession::connect(&twin_url).await,
            oracle: Oracle::connect(&main_url).await,
            watch: Comparison::default(),
            service: None,
            publisher,
            log: Vec::new(),
            steps: Vec::new(),
            alike: true,
            main_url,
            plan,
            rng,
            role,
        }
    }

    async fn live(&mut self, without: &[String]) -> Result<(), String> {
        for number in 0..ROUNDS {
            for prefix in ['l', 'r', 'r', 'c', 'c'] {
                let insert = |draw: &mut StepGenerator<'_>| {
                    rows::insert(draw, prefix, &format!("{prefix}0"))
                };
                let sql = self.draw(number, insert).await;
                self.perform(HistoryStep::sql("start", sql)).await?;
            }
        }
        self.start(TempDir::new().unwrap()).await?;
        self.settle().await?;
        for number in 1..=12 + self.rng.usize(..9) {
            let step = self.draw(number, |draw| draw.step(without)).await;
            let pending = Duration::from_millis(step.pending_ms);
            if step.while_down && !self.fits().await {
                continue;
            }
            self.steps.push(step.kind);
            if !self.perform(step).await? {
                self.steps.pop();
                continue;
            }
            self.settle().await?;
            if !pending.is_zero() {
                sleep(pending).await;
                self.settle().await?;
            }
        }
        self.compare().await
    }

    async fn draw<T>(&mut self, number: usize, by: impl FnOnce(&mut StepGenerator<'_>) -> T) -> T {
        let state = self.oracle.state().await;
        by(&mut StepGenerator {
            rng: &mut self.rng,
            plan: &self.plan,
            state: &state,
            role: &self.role.name,
            number,
            phase: self.publisher.as_ref().map(|publisher| publisher.phase),
            taken: Vec::new(),
        })
    }

    async fn start(&mut self, state: TempDir) -> Result<(), String> {
        let mut overrides = self.plan.overrides.clone();
        if overrides.contains(&("database.pooler", "true")) {
            overrides.push(("database.listen_url", &self.role.url));
        }
        let service = TestService::begin_in(state, &self.role.url, &self.plan.toml, &overrides);
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let answer = service.admin("/readyz").await;
            if answer.status == 200 {
                self.service = Some(service);
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "unavailable: not ready after {READY_WITHIN:?}: {}",
                    answer.body
                ));
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn settle(&mut self) -> Result<(), String> {
        let Some(service) = &self.service else {
            return Ok(());
        };
        self.watch
            .settle(service, &mut self.oracle, &self.plan, &self.role.name)
            .await
    }

    async fn fits(&mut self) -> bool {
        let (_, fitting) = self.oracle.documents(&self.plan, &self.role.name).await;
        fitting.len() == self.plan.resources.len()
    }

    /// Whether anything came of the step; what fails without larder is left out.
    async fn perform(&mut self, step: HistoryStep) -> Result<bool, String> {
        match step.place {
            StepTarget::Both => self.on_both(step).await,
            StepTarget::BesideLarder => self.beside_larder(step).await,
            StepTarget::Publisher => {
                let done = self.publish(&step).await;
                self.catch_up().await?;
                Ok(done)
            }
            StepTarget::Subscriber(change) => self.subscribe(&step, change).await,
        }
    }

    async fn on_both(&mut self, step: HistoryStep) -> Result<bool, String> {
        let mut passed = Vec::new();
        for message in &step.messages {
            match self.twin.run(message).await {
                Ok(rows) => passed.push((message, rows)),
                Err(error) => {
                    self.log.push(format!(
                        "-- {}, fails without larder: {error}\n-- {message}",
                        step.kind
                    ));
                    break;
                }
            }
        }
        if passed.is_empty() {
            return Ok(false);
        }
        let state = if step.while_down {
            self.stop().await
        } else {
            None
        };
        let mut storm = if step.storm {
            Some(BackgroundWriter::begin(&self.main_url).await)
        } else {
            None
        };
        self.alike &= storm.is_none();
        let at = [
            if step.storm { ", in a storm" } else { "" },
            if step.while_down {
                ", larder is down"
            } else {
                ""
            },
        ];
        for (message, rows) in passed {
            self.log
                .push(format!("-- {}{}\n{message}", step.kind, at.concat()));
            let done = match self.main.run(message).await {
                // The two clients conflict with each other, as they would without larder.
                Err(error) if storm.is_some() && error.is_conflict() => {
                    if let Some(storm) = storm.take() {
                        storm.end(&[self.main.pid], Some(&error)).await?;
                    }
                    self.main.run(message).await
                }
                done => done,
            };
            let affected = done.map_err(|error| {
                format!("a statement failed that passes without larder: {error}")
            })?;
            if self.alike && affected != rows {
                return Err(format!("{rows} rows without larder, {affected} with it"));
            }
        }
        if let Some(storm) = storm {
            storm.end(&[self.main.pid], None).await?;
        }
        if let Some(state) = state {
            self.start(state).await?;
        }
        Ok(true)
    }

    /// The first message is done on both, the others concern larder's own tables.
    async fn beside_larder(&mut self, step: HistoryStep) -> Result<bool, String> {
        let mut both = step.clone();
        both.while_down = false;
        let own = both.messages.split_off(1);
        let state = if step.while_down {
            self.stop().await
        } else {
            None
        };
        let done = self.on_both(both).await?;
        for message in &own {
            self.log.push(format!("{message}"));
            let run = self.main.run(message).await;
            run.map_err(|error| format!("what operators do failed: {error}"))?;
        }
        if let Some(state) = state {
            self.start(state).await?;
        }
        Ok(done)
    }

    async fn stop(&mut self) -> Option<TempDir> {
        match self.service.take() {
            Some(service) => Some(service.stop().await),
            None => None,
        }
    }

    async fn publish(&mut self, step: &HistoryStep) -> bool {
        let mut done = false;
        for message in &step.messages {
            let (Some(publisher), Message::Sql(sql)) = (&mut self.publisher, message) else {
                break;
            };
            let run = sqlx::raw_sql(AssertSqlSafe(sql.clone()))
                .execute(&mut publisher.connection)
                .await;
            if run.is_err() {
                drop(
                    sqlx::raw_sql("rollback")
                        .execute(&mut publisher.connection)
                        .await,
                );
                continue;
            }
            self.log
                .push(format!("-- {}, at the publisher\n{message}", step.kind));
            done = true;
        }
        done
    }

    async fn subscribe(
        &mut self,
        step: &HistoryStep,
        change: SubscriptionChange,
    ) -> Result<bool, String> {
        if !self.publish(step).await && change != SubscriptionChange::Unsubscribe {
            return Ok(false);
        }
        let Some(publisher) = &mut self.publisher else {
            return Ok(false);
        };
        self.log.push(format!("-- {change:?}"));
        publisher.phase = SubscriptionPhase::Active;
        if let Err(error) = publisher
            .change(&mut self.twin.connection, "twin", change)
            .await
        {
            self.log.push(format!("-- fails without larder: {error}"));
            let subscribers = [&mut self.twin.connection, &mut self.main.connection];
            publisher.end(subscribers).await;
            return Ok(true);
        }
        let changed = publisher
            .change(&mut self.main.connection, "main", change)
            .await;
        changed
            .map_err(|error| format!("a statement failed that passes without larder: {error}"))?;
        if change == SubscriptionChange::Unsubscribe {
            publisher.phase = SubscriptionPhase::Ended;
        }
        self.catch_up().await?;
        Ok(true)
    }

    async fn catch_up(&mut self) -> Result<(), String> {
        let Some(publisher) = self
            .publisher
            .as_mut()
            .filter(|publisher| publisher.phase == SubscriptionPhase::Active)
        else {
            return Ok(());
        };
        let (twin, main) = (&mut self.twin.connection, &mut self.main.connection);
        if !publisher.caught_up(twin, main).await? {
            self.log
                .push("-- the subscription stands still without larder, too".to_owned());
            publisher.end([twin, main]).await;
            // One may have replicated more than the other.
            self.alike = false;
        }
        Ok(())
    }

    /// Checks that both databases have the same rows.
    async fn compare(&mut self) -> Result<(), String> {
        if !self.alike {
            return Ok(());
        }
        let mut twin = Oracle::connect(&self.twin.url).await;
        let (with, without) = (
            self.oracle.contents(&self.plan).await,
            twin.contents(&self.plan).await,
        );
        if with == without {
            Ok(())
        } else {
            Err(format!(
                "other rows than without larder:\n{with:?}\n{without:?}"
            ))
        }
    }

    fn report(&self, seed: u64, why: &str) -> String {
        let Plan {
            sql,
            toml,
            overrides,
            of_role,
            of_database,
            ..
        } = &self.plan;
        format!(
            "history {seed}: {why}\n\n-- schema\n{sql}\n# larder.toml, {overrides:?}\n{toml}\n\
             -- role {of_role:?}, database {of_database:?}, policies {}\n{}\n",
            self.plan.policies,
            self.log.join("\n")
        )
    }

    async fn end(mut self) {
        drop(self.stop().await);
        let mut databases = vec![
            database(&self.main_url).to_owned(),
            database(&self.twin.url).to_owned(),
        ];
        let mut admin = PgConnection::connect(TestCluster::url()).await.unwrap();
        if let Some(mut publisher) = self.publisher.take() {
            publisher
                .end([&mut self.twin.connection, &mut self.main.connection])
                .await;
            databases.push(publisher.database().to_owned());
        }
        let role = self.role.name.clone();
        drop(self);
        let drops = databases
            .iter()
            .map(|name| format!("drop database {name} with (force)"));
        for sql in drops.chain([
            format!("drop role {role}"),
            format!("drop role {role}_group"),
        ]) {
            sqlx::raw_sql(AssertSqlSafe(sql))
                .execute(&mut admin)
                .await
                .unwrap();
        }
    }
}

impl Plan {
    /// The SQL with which both databases begin.
    fn setup(&self, role: &str, database: &str) -> String {
        let mut sql = self.sql.clone();
        if self.policies {
            sql.push_str(&policies::setup(role));
            writeln!(sql, "grant create on database {database} to {role};").unwrap();
            for (name, _) in self.families.iter().flat_map(|family| &family.members) {
                writeln!(sql, "alter table {name} owner to {role};").unwrap();
            }
        }
        if self.has_login_trigger {
            sql.push_str(ON_LOGIN);
        }
        for setting in &self.of_database {
            writeln!(sql, "alter database {database} set {setting};").unwrap();
        }
        sql
    }
}
