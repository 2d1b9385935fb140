//! Row security on a followed table: what larder's role may see changes without a change of any row.

use std::time::Duration;

use anyhow::{bail, ensure};
use larder::clock::Boottime;
use tokio::time::Instant;

use crate::harness::stage::Stage;
use crate::harness::stage::readers::sweep;
use crate::workload::NOTES_PLAIN;
use crate::workload::history::Outcome;

const RENEWAL_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Of [`POLICIES`], in one fault.
const POLICIES_AT_ONCE: usize = 2;

/// What has begun before a role was altered ends.
const TERMINATE: &str = "select pg_terminate_backend(pid) from pg_stat_activity \
    where usename = 'follower' and backend_start < ";
const LEFT: &str =
    "select count(*)::text from pg_stat_activity where usename = 'follower' and backend_start < ";

/// When a change is to be seen at the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    /// With its commit.
    Commit,
    /// In sessions that began after it.
    Sessions,
    /// Once the time of `note.visible_until` has come.
    Time,
}

/// A transaction, and the rows that a policy shows after it.
struct Step {
    sql: &'static str,
    takes: Takes,
    shown: fn(u32) -> bool,
}

const fn step(sql: &'static str, shown: fn(u32) -> bool) -> Step {
    let takes = Takes::Commit;
    Step { sql, takes, shown }
}

fn all(_: u32) -> bool {
    true
}

fn even(key: u32) -> bool {
    key.is_multiple_of(2)
}

fn odd(key: u32) -> bool {
    !even(key)
}

fn third(key: u32) -> bool {
    key.is_multiple_of(3)
}

fn even_or_third(key: u32) -> bool {
    even(key) || third(key)
}

/// What policies can rest on. The first step of each sets the policy, the others change what it says.
const POLICIES: [&[Step]; 6] = [
    &[
        step(
            "alter policy note_shown on note using (visible_until is null or visible_until > now())",
            all,
        ),
        Step {
            sql: "update note set visible_until = now() + '700 ms' where id % 2 = 1",
            takes: Takes::Time,
            shown: even,
        },
    ],
    &[
        step(
            "alter policy note_shown on note using (exists (select from note_grant g where g.id = note.id and g.open))",
            all,
        ),
        step("update note_grant set open = id % 3 = 0", third),
    ],
    &[
        step(
            "alter policy note_shown on note using (note_shown(id))",
            all,
        ),
        step(
            "create or replace function note_shown(id integer) returns boolean language sql stable \
             as 'select id % 2 = 1'",
            odd,
        ),
    ],
    &[
        Step {
            sql: "alter policy note_shown on note using (tenant = current_setting('app.tenant', true))",
            takes: Takes::Sessions,
            shown: even,
        },
        Step {
            sql: "alter role follower set app.tenant = 'odd'",
            takes: Takes::Sessions,
            shown: odd,
        },
    ],
    &[
        step("alter policy note_shown on note using (id % 2 = 0)", even),
        step(
            "create policy note_more on note using (id % 3 = 0)",
            even_or_third,
        ),
        step("drop policy note_shown on note", third),
    ],
    &[
        step(
            "create policy note_less on note as restrictive using (id % 2 = 0)",
            even,
        ),
        step("alter table note disable row level security", all),
    ],
];

/// Memberships and attributes of larder's role.
const ROLES: [&[Step]; 3] = [
    &[
        step(
            "drop policy note_shown on note; create policy note_shown on note to note_reader using (true); \
             create policy note_more on note using (id % 3 = 0)",
            third,
        ),
        step("grant note_reader to follower", all),
        step("revoke note_reader from follower", third),
    ],
    &[
        step(
            "drop policy note_shown on note; create policy note_shown on note to note_reader using (id % 2 = 0); \
             grant note_group to follower",
            |_| false,
        ),
        step("grant note_reader to note_group", even),
        step("revoke note_group from follower", |_| false),
    ],
    &[
        step("alter policy note_shown on note using (id % 3 = 0)", third),
        step("alter role follower bypassrls", all),
        step("alter role follower nobypassrls", third),
    ],
];

/// Policies, and what they rest on, change.
pub(super) async fn change(stage: &mut Stage) -> anyhow::Result<()> {
    let mut kinds = POLICIES;
    stage.rng.shuffle(&mut kinds);
    run(stage, &kinds[..POLICIES_AT_ONCE]).await
}

/// A role that a policy names is granted and revoked, and larder's role is put above policies and below.
pub(super) async fn grant(stage: &mut Stage) -> anyhow::Result<()> {
    let kind = ROLES[stage.rng.usize(..ROLES.len())];
    run(stage, &[kind]).await
}

async fn run(stage: &mut Stage, kinds: &[&[Step]]) -> anyhow::Result<()> {
    let mut outcome = Ok(());
    for kind in kinds {
        outcome = each(stage, kind).await;
        take(stage, &step(NOTES_PLAIN, all)).await?;
        if outcome.is_err() {
            break;
        }
    }
    stage.hold(1.1).await;
    read(stage).await?;
    outcome
}

async fn each(stage: &mut Stage, steps: &[Step]) -> anyhow::Result<()> {
    for (number, step) in steps.iter().enumerate() {
        take(stage, step).await?;
        if number > 0 {
            stage.hold(1.1).await;
            read(stage).await?;
        }
    }
    Ok(())
}

/// One transaction, after which all notes are in tiers; what it hides or shows is due once it has taken.
async fn take(stage: &mut Stage, step: &Step) -> anyhow::Result<()> {
    read(stage).await?;
    let changed = stage.notes.changed(step.shown);
    let revision = stage.record.revision();
    let tickets = stage.record.note(&changed, revision, Outcome::Open);
    let sql = format!("begin; {}; commit", step.sql);
    if let Err(error) = stage.session.run(&sql).await {
        stage.renew_session().await;
        // A statement has failed: nothing of it is there.
        stage.record.settle(&tickets, Outcome::RolledBack);
        return Err(error.into());
    }
    match step.takes {
        Takes::Commit => {}
        Takes::Sessions => renew_sessions(stage).await?,
        Takes::Time => {
            read(stage).await?;
            let passed = "select (max(visible_until) < clock_timestamp())::text from note";
            while stage.session.texts(passed).await? != ["true"] {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    }
    let now = Outcome::Committed(Boottime::now());
    stage.record.settle(&tickets, now);
    stage.notes.show(step.shown);
    Ok(())
}

/// Ends larder's sessions: a role's settings are those of the time when a session begins.
async fn renew_sessions(stage: &mut Stage) -> anyhow::Result<()> {
    let now = stage
        .session
        .texts("select clock_timestamp()::text")
        .await?;
    let now = now.concat();
    let deadline = Instant::now() + RENEWAL_TIMEOUT;
    while stage.session.texts(&format!("{LEFT}'{now}'")).await? != ["0"] {
        if Instant::now() > deadline {
            bail!("sessions of larder's do not end");
        }
        stage.session.run(&format!("{TERMINATE}'{now}'")).await?;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Reads every note, and judges it.
async fn read(stage: &Stage) -> anyhow::Result<()> {
    let target = stage.larder.config.listen;
    let keys = stage.notes.keys();
    ensure!(!keys.is_empty(), "there are no notes");
    sweep(&stage.record, target, keys).await?;
    Ok(())
}
