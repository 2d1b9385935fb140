//! `loadtest bulk-kills`: SIGKILL of larder during bulk writes. Is each transaction there as a whole or not at all, and
//! is each that was acknowledged there?

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use testkit::http::{HttpConnection, Request};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::harness::demo::{Demo, WarmTier};
use crate::harness::progress;
use crate::harness::session::SqlSession;

const DEPTS: u32 = 10;
const SERVER_CORES: &str = "0,1";
/// Each has an address of its own, since one client may have only a quarter of the bulk writes.
const CLIENTS: u8 = 8;
/// Documents of a bulk write, each with two emps.
const DOCUMENTS: u64 = 500;
/// Above the keys of the demo.
const FIRST_KEY: u64 = 1_000_000_000;
const LIFE_MILLIS_MAX: u64 = 1_500;
/// Within this time PostgreSQL notices that larder is gone, and ends its transactions.
const SETTLE_TRIES_MAX: u32 = 200;
const SETTLE_PAUSE: Duration = Duration::from_millis(50);

/// Whether all transactions were whole or absent, and all that were acknowledged were there.
pub(crate) async fn run(count: u32, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut demo = Demo::start(&binary, DEPTS, 0, seed).await?;
    let mut session = SqlSession::new(demo.url(), 0)?;
    let mut larder = demo
        .larder("kills", &binary, WarmTier::Memory, SERVER_CORES)
        .await?;
    let next = Arc::new(AtomicU64::new(1));
    let mut acknowledged: HashSet<u64> = HashSet::new();
    for number in 1..=count {
        progress::note(number, count, "kills");
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let local = Ipv4Addr::new(127, 0, 0, 1 + client);
            let writing = write_until_cut(local, larder.config.listen, Arc::clone(&next));
            clients.spawn(writing);
        }
        sleep(Duration::from_millis(rng.u64(..LIFE_MILLIS_MAX))).await;
        larder.kill().await?;
        while let Some(client) = clients.join_next().await {
            acknowledged.extend(client??);
        }
        larder.start_ready().await?;
    }
    larder.terminate().await?;
    settle(&mut session).await?;
    let found = transactions(&mut session).await?;
    demo.stop().await;
    let begun = next.load(Ordering::SeqCst) - 1;
    let torn = found
        .values()
        .filter(|rows| **rows != (DOCUMENTS, 2 * DOCUMENTS))
        .count();
    let lost = acknowledged
        .iter()
        .filter(|id| !found.contains_key(id))
        .count();
    println!(
        "{count} kills; {begun} bulk writes of {DOCUMENTS} documents begun, {} there, {} acknowledged; {torn} torn, {lost} lost",
        found.len(),
        acknowledged.len()
    );
    // Kills without a bulk write under way prove nothing.
    ensure!(begun > found.len() as u64, "no kill met a bulk write");
    Ok(torn == 0 && lost == 0 && !acknowledged.is_empty())
}

/// Writes in bulk until the connection ends; returns what was acknowledged.
async fn write_until_cut(
    local: Ipv4Addr,
    target: SocketAddr,
    next: Arc<AtomicU64>,
) -> anyhow::Result<Vec<u64>> {
    let mut acknowledged = Vec::new();
    let Ok(mut connection) = HttpConnection::connect_from(local, target).await else {
        return Ok(acknowledged);
    };
    loop {
        let id = next.fetch_add(1, Ordering::SeqCst);
        let Ok(answer) = connection.send(&request(id)?).await else {
            return Ok(acknowledged);
        };
        ensure!(answer.status == 201, "POST: {}", answer.shown());
        acknowledged.push(id);
    }
}

fn request(id: u64) -> anyhow::Result<Request> {
    let mut body = String::new();
    for number in 0..DOCUMENTS {
        let key = FIRST_KEY + id * DOCUMENTS + number;
        writeln!(
            body,
            r#"{{"deptNumber":{key},"deptName":"BULK","deptLocation":"{id}","emps":[{{"empNo":{},"empName":"A"}},{{"empNo":{},"empName":"B"}}]}}"#,
            2 * key,
            2 * key + 1
        )?;
    }
    let request = Request::new("POST", "/depts").with("prefer", "return=minimal");
    Ok(request.with_body("application/x-ndjson", body))
}

/// Waits until no other session is in a transaction.
async fn settle(session: &mut SqlSession) -> anyhow::Result<()> {
    let others = "select count(*)::text from pg_stat_activity \
        where backend_type = 'client backend' and pid <> pg_backend_pid() and state <> 'idle'";
    for _ in 0..SETTLE_TRIES_MAX {
        if session.texts(others).await? == ["0"] {
            return Ok(());
        }
        sleep(SETTLE_PAUSE).await;
    }
    anyhow::bail!("transactions do not end")
}

/// The bulk writes in the database, with their depts and emps.
async fn transactions(session: &mut SqlSession) -> anyhow::Result<HashMap<u64, (u64, u64)>> {
    let sql = format!(
        "select loc || ' ' || count(distinct deptno) || ' ' || count(empno) \
         from dept left join emp using (deptno) where deptno >= {FIRST_KEY} group by loc"
    );
    let mut found = HashMap::new();
    for line in session.texts(&sql).await? {
        let numbers: Vec<u64> = line
            .split(' ')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .context(line.clone())?;
        let [id, depts, emps] = numbers[..] else {
            anyhow::bail!("{line}");
        };
        found.insert(id, (depts, emps));
    }
    Ok(found)
}
