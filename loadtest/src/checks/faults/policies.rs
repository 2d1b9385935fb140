//! Row security on a followed table: what larder's role may see changes without a change of any row.

use std::time::Duration;

use anyhow::{bail, ensure};
use larder::clock::Boottime;
use tokio::time::Instant;

use crate::harness::testbed::Testbed;
use crate::harness::testbed::readers::sweep;
use crate::workload::NOTES_PLAIN;
use crate::workload::history::TransactionEnd;

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
enum VisibleFrom {
    /// With its commit.
    Commit,
    /// In sessions that began after it.
    Sessions,
    /// Once the time of `note.visible_until` has come.
    Time,
}

/// A transaction, and the rows that a policy shows after it.
struct PolicyStep {
    sql: &'static str,
    visible_from: VisibleFrom,
    shown: fn(u32) -> bool,
}

const fn step(sql: &'static str, shown: fn(u32) -> bool) -> PolicyStep {
    let visible_from = VisibleFrom::Commit;
    PolicyStep {
        sql,
        visible_from,
        shown,
    }
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
const POLICIES: [&[PolicyStep]; 6] = [
    &[
        step(
            "alter policy note_shown on note using (visible_until is null or visible_until > now())",
            all,
        ),
        PolicyStep {
            sql: "update note set visible_until = now() + '700 ms' where id % 2 = 1",
            visible_from: VisibleFrom::Time,
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
        PolicyStep {
            sql: "alter policy note_shown on note using (tenant = current_setting('app.tenant', true))",
            visible_from: VisibleFrom::Sessions,
            shown: even,
        },
        PolicyStep {
            sql: "alter role follower set app.tenant = 'odd'",
            visible_from: VisibleFrom::Sessions,
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
const ROLES: [&[PolicyStep]; 3] = [
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
pub(super) async fn change(testbed: &mut Testbed) -> anyhow::Result<()> {
    let mut kinds = POLICIES;
    testbed.rng.shuffle(&mut kinds);
    run(testbed, &kinds[..POLICIES_AT_ONCE]).await
}

/// A role that a policy names is granted and revoked, and larder's role is put above policies and below.
pub(super) async fn grant(testbed: &mut Testbed) -> anyhow::Result<()> {
    let kind = ROLES[testbed.rng.usize(..ROLES.len())];
    run(testbed, &[kind]).await
}

async fn run(testbed: &mut Testbed, kinds: &[&[PolicyStep]]) -> anyhow::Result<()> {
    let mut outcome = Ok(());
    for kind in kinds {
        outcome = each(testbed, kind).await;
        apply(testbed, &step(NOTES_PLAIN, all)).await?;
        if outcome.is_err() {
            break;
        }
    }
    testbed.hold(1.1).await;
    read(testbed).await?;
    outcome
}

async fn each(testbed: &mut Testbed, steps: &[PolicyStep]) -> anyhow::Result<()> {
    for (number, step) in steps.iter().enumerate() {
        apply(testbed, step).await?;
        if number > 0 {
            testbed.hold(1.1).await;
            read(testbed).await?;
        }
    }
    Ok(())
}

/// Brings all notes into the tiers, then runs the step in one transaction; what it shows or hides is visible from
/// `visible_from` on.
async fn apply(testbed: &mut Testbed, step: &PolicyStep) -> anyhow::Result<()> {
    read(testbed).await?;
    let changed = testbed.notes.changed(step.shown);
    let revision = testbed.record.revision();
    let tickets = testbed
        .record
        .note(&changed, revision, TransactionEnd::Open);
    let sql = format!("begin; {}; commit", step.sql);
    if let Err(error) = testbed.session.run(&sql).await {
        testbed.renew_session().await;
        // A statement has failed: nothing of it is there.
        testbed.record.settle(&tickets, TransactionEnd::RolledBack);
        return Err(error.into());
    }
    match step.visible_from {
        VisibleFrom::Commit => {}
        VisibleFrom::Sessions => renew_sessions(testbed).await?,
        VisibleFrom::Time => {
            read(testbed).await?;
            let passed = "select (max(visible_until) < clock_timestamp())::text from note";
            while testbed.session.texts(passed).await? != ["true"] {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    }
    let now = TransactionEnd::Committed(Boottime::now());
    testbed.record.settle(&tickets, now);
    testbed.notes.show(step.shown);
    Ok(())
}

/// Ends larder's sessions: a role's settings are those of the time when a session begins.
async fn renew_sessions(testbed: &mut Testbed) -> anyhow::Result<()> {
    let now = testbed
        .session
        .texts("select clock_timestamp()::text")
        .await?;
    let now = now.concat();
    let deadline = Instant::now() + RENEWAL_TIMEOUT;
    while testbed.session.texts(&format!("{LEFT}'{now}'")).await? != ["0"] {
        if Instant::now() > deadline {
            bail!("sessions of larder's do not end");
        }
        testbed.session.run(&format!("{TERMINATE}'{now}'")).await?;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Reads and checks every note.
async fn read(testbed: &Testbed) -> anyhow::Result<()> {
    let target = testbed.larder.config.listen;
    let keys = testbed.notes.keys();
    ensure!(!keys.is_empty(), "there are no notes");
    sweep(&testbed.record, target, keys).await?;
    Ok(())
}
