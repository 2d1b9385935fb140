//! What makes alerts fire.

use std::time::Duration;

use anyhow::ensure;
use testkit::fault_proxy::NetworkFault;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::checks::alerts::site::{PLANTED, Site};
use crate::harness::http;
use crate::harness::session::SqlSession;

/// Changes a document, and takes away what the triggers have logged of it. Who edits the log moves the horizon.
const PLANT: &str = "\
    create temp table h on commit drop as select snapshot from larder.horizon; \
    delete from larder.change where xid = pg_current_xact_id(); \
    update larder.horizon set snapshot = (select snapshot from h)";
const PLANT_TIMEOUT: Duration = Duration::from_secs(20);
const PLANT_PAUSE: Duration = Duration::from_millis(20);
/// Reads of a planted document before it is planted again: an audit may be left out.
const PLANT_READS: u32 = 50;

/// How long a table is locked. The check's own requests wait for 2 s.
const LOCKED: Duration = Duration::from_millis(1_500);
const LOCKED_READS: u32 = 50;

/// Updates of every row of a table: each logs 5,000 keys.
const UPDATES: u32 = 20;

/// A transaction that stays open until the cause ends.
type Held = Option<SqlSession>;

/// What an alert is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    StaleHit,
    LostFeed,
    DroppedColumn,
    CutReads,
    AbsentKeys,
    LockedTable,
    /// The log does not become shorter again, so this is the last.
    OpenTransaction,
}

impl Cause {
    pub(super) const ALL: [Self; 7] = [
        Self::StaleHit,
        Self::LostFeed,
        Self::DroppedColumn,
        Self::CutReads,
        Self::AbsentKeys,
        Self::LockedTable,
        Self::OpenTransaction,
    ];

    /// The alert that has to fire.
    pub(super) fn alert(self) -> &'static str {
        match self {
            Self::StaleHit => "LarderStaleAudit",
            Self::LostFeed => "LarderFeedLost",
            Self::DroppedColumn => "LarderResourceUnfit",
            Self::CutReads => "LarderNotReady",
            Self::AbsentKeys => "LarderLowHitRatio",
            Self::LockedTable => "LarderSlowLoads",
            Self::OpenTransaction => "LarderChangeLogGrows",
        }
    }

    /// Other alerts that may fire for it, too.
    pub(super) fn beside(self) -> &'static [&'static str] {
        match self {
            // Requests bypass the tiers meanwhile.
            Self::LostFeed => &["LarderNotReady", "LarderLowHitRatio"],
            // Loads fail after a while.
            Self::CutReads => &["LarderSlowLoads"],
            _ => &[],
        }
    }

    /// What is done.
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::StaleHit => "a change that the log did not have",
            Self::LostFeed => "the feed's connections passed nothing any more",
            Self::DroppedColumn => "a column was dropped",
            Self::CutReads => "connections for reads and writes were cut",
            Self::AbsentKeys => "visitors asked for documents that do not exist",
            Self::LockedTable => "a table was locked",
            Self::OpenTransaction => "changes of many rows beside an open transaction",
        }
    }

    pub(super) async fn begin(self, site: &mut Site) -> anyhow::Result<Held> {
        match self {
            Self::StaleHit => plant(site).await?,
            Self::LostFeed => site.feed.set(NetworkFault::BlackHole),
            Self::DroppedColumn => {
                let dropping = "alter table other drop column note";
                site.session()?.run(dropping).await?;
            }
            Self::CutReads => site.loader.set(NetworkFault::Cut),
            Self::AbsentKeys => site.visitors.lose(true),
            Self::LockedTable => lock(site).await?,
            Self::OpenTransaction => return hold_open(site).await.map(Some),
        }
        Ok(None)
    }

    pub(super) async fn end(self, site: &mut Site, held: Held) -> anyhow::Result<()> {
        match self {
            Self::StaleHit | Self::LockedTable => {}
            Self::LostFeed => site.feed.set(NetworkFault::None),
            Self::DroppedColumn => {
                let adding = "alter table other add column note text";
                site.session()?.run(adding).await?;
            }
            Self::CutReads => site.loader.set(NetworkFault::None),
            Self::AbsentKeys => site.visitors.lose(false),
            Self::OpenTransaction => drop(held),
        }
        Ok(())
    }
}

/// Makes a hit stale, and has the audit find it.
async fn plant(site: &Site) -> anyhow::Result<()> {
    let deadline = Instant::now() + PLANT_TIMEOUT;
    let path = format!("/items/{PLANTED}");
    let mut session = site.session()?;
    for turn in 0.. {
        ensure!(Instant::now() < deadline, "the audit finds nothing");
        site.read(&path).await?;
        site.read(&path).await?;
        let change = format!("update item set title = 'planted {turn}' where id = {PLANTED}");
        session
            .run(&format!("begin; {change}; {PLANT}; commit"))
            .await?;
        for _ in 0..PLANT_READS {
            site.read(&path).await?;
            if !site
                .metrics()
                .await?
                .contains("\nlarder_audit_stale_total 0\n")
            {
                return Ok(());
            }
            tokio::time::sleep(PLANT_PAUSE).await;
        }
    }
    Ok(())
}

/// Locks a table while documents of it are loaded.
async fn lock(site: &Site) -> anyhow::Result<()> {
    let mut session = site.session()?;
    session.run("begin; lock table other").await?;
    let listen = site.larder.config.listen;
    let mut reads = JoinSet::new();
    for key in 1..=LOCKED_READS {
        reads.spawn(async move { http::get(listen, &format!("/others/{key}")).await.is_ok() });
    }
    tokio::time::sleep(LOCKED).await;
    session.run("commit").await?;
    // Some have given up.
    reads.join_all().await;
    Ok(())
}

/// Changes many rows beside a transaction that began before, and stays open.
async fn hold_open(site: &Site) -> anyhow::Result<SqlSession> {
    let mut held = site.session()?;
    held.run("begin; select pg_current_xact_id()").await?;
    let mut session = site.session()?;
    for _ in 0..UPDATES {
        session.run("update other set name = name || '.'").await?;
    }
    Ok(held)
}
