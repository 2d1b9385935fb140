//! Many requests of several principals, while owners and conditions change through plain SQL and through larder, and
//! PostgreSQL goes away and comes back: does any answer show, or tell of, a document that is not the principal's?
//!
//! A document was a principal's if it was so at some time from `max_staleness` before the request until the answer.

mod clients;
mod history;
mod judge;
mod posts;
mod signatures;
mod world;
mod writers;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;
use serde_json::json;
use testkit::fault_proxy::{FaultProxy, NetworkFault};
use testkit::http::Client;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::checks::scope::credentials::{jwt_toml, key_toml, token};
use crate::checks::scope::leaks::clients::{DrawingClient, Principal};
use crate::checks::scope::leaks::history::Sees;
use crate::checks::scope::leaks::world::{CUSTOMERS, MAX_STALENESS, Phase, STAFF_KEY, World, lock};
use crate::checks::scope::leaks::writers::{SqlWriter, StaffWriter};
use crate::harness::free_address;
use crate::harness::larder::{Larder, LarderConfig};
use crate::harness::postgres::Postgres;
use crate::harness::run_directory::RunDirectory;
use crate::harness::session::SqlSession;

const CLIENTS: usize = 64;
const CONNECTIONS_MAX: usize = 60;
/// A part of the documents is on disk alone.
const MEMORY_BYTES: u64 = 64 << 10;
/// With PostgreSQL there, between two outages.
const UP: Duration = Duration::from_secs(4);
/// Out of reach: beyond `max_staleness`.
const AWAY: Duration = Duration::from_secs(3);
/// Until what began before a change of the phase is over.
const SETTLING: Duration = Duration::from_secs(1);

const SCHEMA: &str = "
create table site (id integer primary key, owner integer, version bigint not null);
create table item (
  id integer primary key, owner integer, version bigint not null, number text not null, gone boolean, site integer, note text,
  pad text default repeat('long ', 250));
create unique index on item (number) where gone is not true;
create index on item (owner, id);
create table part (id bigint primary key, item integer not null references item on delete cascade, gone boolean, note text);
create index on part (item);
";

const RESOURCE: &str = r#"
[[resource]]
name = "items"
table = "item"
where = "gone is not true"
read = ["customer", "staff", "anonymous"]
write = ["customer", "staff"]
filters = ["owner"]
fields = { id = "id", owner = "owner", version = "version", number = "number", site = "site", note = "note", pad = "pad" }
  [resource.owner]
  column = "owner"
  claim = "sub"
  roles = ["customer"]
  [[resource.by]]
  name = "number"
  columns = ["number"]
  [[resource.children]]
  name = "parts"
  table = "part"
  where = "gone is not true"
  fields = { id = "part", note = "note" }
  [[resource.lookups]]
  name = "at"
  table = "site"
  column = "site"
  references = "id"
  owner = "owner"
  fields = { id = "site_id", owner = "site_owner", version = "site_version" }
"#;

/// Whether no answer showed or told anything.
pub(super) async fn run(requests: u64, binary: &Path, seed: u64) -> anyhow::Result<bool> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut run_directory = RunDirectory::new()?;
    let postgres = Postgres::start(&mut run_directory, CONNECTIONS_MAX).await?;
    SqlSession::new(postgres.url(), 0)?.run(SCHEMA).await?;
    let world = Arc::new(World::new(requests));
    let mut writer = SqlWriter {
        world: Arc::clone(&world),
        rng: rng.fork(),
        session: SqlSession::new(postgres.url(), 0)?,
    };
    writer.fill().await?;
    let proxies = [
        FaultProxy::start(postgres.url()).await?,
        FaultProxy::start(postgres.url()).await?,
    ];
    let mut larder = Larder::new(LarderConfig {
        binary: binary.to_owned(),
        directory: run_directory.directory().join("larder"),
        listen: free_address(&mut rng)?,
        admin: free_address(&mut rng)?,
        url: proxies[0].url.clone(),
        listen_url: proxies[1].url.clone(),
        memory_bytes: MEMORY_BYTES,
        settings: settings(),
        arguments: Vec::new(),
        cores: None,
        environment: vec![
            ("LARDER_IDEMPOTENCY_KEYS".to_owned(), "true".to_owned()),
            ("LARDER_REQUEST_TIMEOUT".to_owned(), "2s".to_owned()),
        ],
    })?;
    larder.start_ready().await?;
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    tasks.spawn(writer.run());
    let listen = larder.config.listen;
    tasks.spawn(
        StaffWriter {
            world: Arc::clone(&world),
            rng: rng.fork(),
            client: Client::numbered(listen, CLIENTS),
        }
        .run(),
    );
    let principals = Arc::new(principals()?);
    for number in 0..CLIENTS {
        let client = DrawingClient {
            world: Arc::clone(&world),
            rng: rng.fork(),
            client: Client::numbered(listen, number),
            principals: Arc::clone(&principals),
            token: String::new(),
        };
        tasks.spawn(client.run());
    }
    let outages = outages(&world, &postgres, &proxies, &mut larder).await;
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let outages = outages?;
    let held = report(&world, outages, began.elapsed());
    larder.terminate().await?;
    postgres.stop().await;
    drop(run_directory);
    Ok(held)
}

/// Customers, one of them with a token; the staff; somebody without a claim, and one without credentials.
fn principals() -> anyhow::Result<Vec<Principal>> {
    let mut principals = Vec::new();
    for customer in 1..=CUSTOMERS {
        let credential = match customer {
            1 => {
                let token = token(json!({"sub": "0001", "roles": ["customer"]}))?;
                ("authorization", format!("Bearer {token}"))
            }
            _ => ("x-api-key", format!("customer{customer}")),
        };
        principals.push(Principal {
            name: format!("customer {customer}"),
            sees: Sees::Own(Some(customer)),
            credential: Some(credential),
        });
    }
    let other = |name: &str, sees, credential: Option<&str>| Principal {
        name: name.to_owned(),
        sees,
        credential: credential.map(|key| ("x-api-key", key.to_owned())),
    };
    principals.push(other("staff", Sees::All, Some(STAFF_KEY)));
    principals.push(other("claimless", Sees::Own(None), Some("claimless")));
    principals.push(other("anonymous", Sees::Own(None), None));
    Ok(principals)
}

fn settings() -> String {
    let mut settings = format!(
        "[feed]\nmax_staleness = '{}ms'\n",
        MAX_STALENESS.as_millis()
    ) + jwt_toml().as_str();
    settings += &key_toml(STAFF_KEY, "staff", None);
    settings += &key_toml("claimless", "customer", None);
    for customer in 2..=CUSTOMERS {
        let (key, claim) = (format!("customer{customer}"), customer.to_string());
        settings += &key_toml(&key, "customer", Some(&claim));
    }
    settings + RESOURCE
}

/// Takes PostgreSQL away from larder, from all of it or from all but the feed, and restarts it, until the load is over. Returns
/// how often each happened.
async fn outages(
    world: &World,
    postgres: &Postgres,
    proxies: &[FaultProxy; 2],
    larder: &mut Larder,
) -> anyhow::Result<[u64; 3]> {
    let mut counts = [0; 3];
    for kind in (0..counts.len()).cycle() {
        world.enter(Phase::Up);
        let until = Instant::now() + UP;
        while Instant::now() < until && !world.is_over() {
            sleep(SETTLING / 10).await;
        }
        if world.is_over() {
            break;
        }
        world.enter(Phase::Changing);
        match kind {
            // While the feed goes on, the tiers answer.
            0 => cut(world, &proxies[..1]).await,
            1 => cut(world, proxies).await,
            _ => postgres.restart_by(Signal::SIGINT).await?,
        }
        counts[kind] += 1;
        larder.ready().await.context("after an outage")?;
        sleep(SETTLING).await;
    }
    Ok(counts)
}

async fn cut(world: &World, proxies: &[FaultProxy]) {
    proxies
        .iter()
        .for_each(|proxy| proxy.set(NetworkFault::Cut));
    sleep(SETTLING + MAX_STALENESS).await;
    world.enter(Phase::Down);
    sleep(AWAY).await;
    world.enter(Phase::Changing);
    proxies
        .iter()
        .for_each(|proxy| proxy.set(NetworkFault::None));
}

fn report(world: &World, [loader_cuts, cuts, restarts]: [u64; 3], elapsed: Duration) -> bool {
    for violation in world.first_violations() {
        println!("\n{violation}");
    }
    let signatures = lock(&world.signatures);
    let betrayals = signatures.betrayals();
    for betrayal in &betrayals {
        println!("\nLEAK: {betrayal}");
    }
    let statuses = world.statuses();
    let statuses: Vec<String> = statuses
        .iter()
        .map(|((phase, status), count)| format!("{count} × {status} {phase:?}"))
        .collect();
    println!(
        "{} requests in {elapsed:.1?}, {} commits, without PostgreSQL {cuts} times, and {loader_cuts} times but for the feed, {restarts} restarts: {}",
        world.requests(),
        world.commits(),
        statuses.join(", ")
    );
    println!(
        "{} leaks and wrong answers; {} answers for documents of others, {} kinds unlike those for absent ones",
        world.violations(),
        signatures.foreign(),
        betrayals.len()
    );
    world.violations() == 0 && betrayals.is_empty() && signatures.foreign() > 0
}
