//! A third database publishes, and both others subscribe: the one with larder and its twin without.
//!
//! If the subscription of the twin stops with an error, too (a conflicting row, a missing table), both end theirs.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::{Instant, sleep};

use crate::harness::cluster::TestCluster;
use crate::histories::hostile_settings::OF_USERS;
use crate::histories::rows;
use crate::histories::step::{HistoryStep, Message, StepGenerator, StepTarget};

/// The subscription of the database without larder catches up within this time, or never.
const TWIN_WITHIN: Duration = Duration::from_secs(4);
/// The same for the database with larder.
const LARDER_WITHIN: Duration = Duration::from_secs(20);

/// What happens to the subscriptions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SubscriptionChange {
    Subscribe { copy: bool },
    Refresh,
    Unsubscribe,
}

/// A history subscribes at most once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SubscriptionPhase {
    Never,
    Active,
    Ended,
}

/// The database that publishes.
pub(super) struct Publisher {
    url: String,
    pub(super) connection: PgConnection,
    pub(super) phase: SubscriptionPhase,
}

fn table(draw: &mut StepGenerator<'_>) -> String {
    let family = draw.family();
    let members: Vec<String> = family
        .members
        .iter()
        .map(|(name, _)| name.clone())
        .collect();
    let top = members[0].clone();
    if draw.once_in(2) {
        top
    } else {
        draw.one_of(&members).cloned().unwrap_or(top)
    }
}

pub(super) fn subscribe(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    if draw.phase != Some(SubscriptionPhase::Never) {
        return None;
    }
    let (one, other) = (table(draw), table(draw));
    let tables = if one == other {
        one
    } else {
        format!("{one}, {other}")
    };
    let via_root = draw.once_in(2);
    let sql = format!(
        "create publication feed for table {tables} with (publish_via_partition_root = {via_root})"
    );
    let mut messages = vec![Message::Sql(sql)];
    for _ in 0..draw.rng.usize(..3) {
        messages.push(Message::Sql(rows::statement(draw)));
    }
    let copy = draw.once_in(2);
    let mut step = HistoryStep::new("subscribe", messages);
    step.place = StepTarget::Subscriber(SubscriptionChange::Subscribe { copy });
    Some(step)
}

pub(super) fn publish(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    if draw.phase != Some(SubscriptionPhase::Active) {
        return None;
    }
    let count = 1 + draw.rng.usize(..3);
    let messages = (0..count)
        .map(|_| Message::Sql(rows::statement(draw)))
        .collect();
    let mut step = HistoryStep::new("publish", messages);
    step.place = StepTarget::Publisher;
    Some(step)
}

pub(super) fn refresh(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    if draw.phase != Some(SubscriptionPhase::Active) {
        return None;
    }
    let table = table(draw);
    let sql = if draw.once_in(3) {
        format!("alter publication feed drop table {table}")
    } else {
        format!("alter publication feed add table {table}")
    };
    let mut step = HistoryStep::sql("refresh", sql);
    step.place = StepTarget::Subscriber(SubscriptionChange::Refresh);
    Some(step)
}

pub(super) fn unsubscribe(draw: &mut StepGenerator<'_>) -> Option<HistoryStep> {
    if draw.phase != Some(SubscriptionPhase::Active) {
        return None;
    }
    let mut step = HistoryStep::new("unsubscribe", Vec::new());
    step.place = StepTarget::Subscriber(SubscriptionChange::Unsubscribe);
    Some(step)
}

impl Publisher {
    pub(super) async fn create(sql: &str) -> Self {
        let url = TestCluster::database().await.url;
        let mut connection = PgConnection::connect(&url).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(format!("{OF_USERS}; {sql}")))
            .execute(&mut connection)
            .await
            .unwrap();
        let phase = SubscriptionPhase::Never;
        Self {
            url,
            connection,
            phase,
        }
    }

    pub(super) fn database(&self) -> &str {
        database(&self.url)
    }

    /// Does `change` in the database of `subscriber`, which `name` tells from the other.
    pub(super) async fn change(
        &mut self,
        subscriber: &mut PgConnection,
        name: &str,
        change: SubscriptionChange,
    ) -> sqlx::Result<()> {
        let sql = match change {
            SubscriptionChange::Subscribe { copy } => {
                let slot = format!("{}_{name}", self.database());
                let create =
                    format!("select pg_create_logical_replication_slot('{slot}', 'pgoutput')");
                sqlx::raw_sql(AssertSqlSafe(create))
                    .execute(&mut self.connection)
                    .await?;
                // A URL's password and the rest need no quotes.
                format!(
                    "create subscription s connection '{}' publication feed \
                     with (create_slot = false, slot_name = '{slot}', copy_data = {copy}, synchronous_commit = 'on')",
                    self.url
                )
            }
            SubscriptionChange::Refresh => "alter subscription s refresh publication".to_owned(),
            SubscriptionChange::Unsubscribe => "drop subscription s".to_owned(),
        };
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(subscriber)
            .await?;
        Ok(())
    }

    /// Both have all that is published by now: `Ok(false)` if the one without larder has not got on.
    pub(super) async fn caught_up(
        &mut self,
        twin: &mut PgConnection,
        main: &mut PgConnection,
    ) -> Result<bool, String> {
        let lsn: String = sqlx::query_scalar("select pg_current_wal_lsn()::text")
            .fetch_one(&mut self.connection)
            .await
            .unwrap();
        if !self.has_all(twin, "twin", &lsn, TWIN_WITHIN).await {
            return Ok(false);
        }
        if self.has_all(main, "main", &lsn, LARDER_WITHIN).await {
            Ok(true)
        } else {
            Err(
                "the subscription of larder's database stands still, the other one gets on"
                    .to_owned(),
            )
        }
    }

    async fn has_all(
        &mut self,
        subscriber: &mut PgConnection,
        name: &str,
        lsn: &str,
        within: Duration,
    ) -> bool {
        let deadline = Instant::now() + within;
        let confirmed = format!(
            "select coalesce(bool_and(confirmed_flush_lsn >= '{lsn}'::pg_lsn), false) from pg_replication_slots \
             where slot_name = '{}_{name}'",
            self.database()
        );
        let ready = "select coalesce(bool_and(srsubstate = 'r'), true) from pg_subscription_rel";
        loop {
            let ready: bool = sqlx::query_scalar(ready)
                .fetch_one(&mut *subscriber)
                .await
                .unwrap();
            let confirmed: bool = sqlx::query_scalar(AssertSqlSafe(confirmed.clone()))
                .persistent(false)
                .fetch_one(&mut self.connection)
                .await
                .unwrap();
            if ready && confirmed {
                return true;
            }
            if Instant::now() > deadline {
                return false;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends the subscriptions whatever state they are in, and drops every slot.
    pub(super) async fn end(&mut self, subscribers: [&mut PgConnection; 2]) {
        self.phase = SubscriptionPhase::Ended;
        for subscriber in subscribers {
            for sql in [
                "alter subscription s disable",
                "alter subscription s set (slot_name = none)",
                "drop subscription s",
            ] {
                // It may be gone, or have been there never.
                drop(sqlx::raw_sql(sql).execute(&mut *subscriber).await);
            }
        }
        let drop_slots = "select pg_drop_replication_slot(slot_name) from pg_replication_slots \
            where database = current_database() and not active";
        let left = "select count(*) from pg_replication_slots where database = current_database()";
        let deadline = Instant::now() + LARDER_WITHIN;
        while Instant::now() < deadline {
            drop(
                sqlx::raw_sql(drop_slots)
                    .execute(&mut self.connection)
                    .await,
            );
            let left: i64 = sqlx::query_scalar(left)
                .fetch_one(&mut self.connection)
                .await
                .unwrap();
            if left == 0 {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

pub(super) fn database(url: &str) -> &str {
    url.rsplit_once('/').map_or(url, |(_, database)| database)
}
