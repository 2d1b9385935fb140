//! `loadtest bench writes`: every kind of write, on tables with and without triggers of users, by this larder and by another
//! binary of it.
//!
//! Each larder writes to a PostgreSQL of its own. A kind's turn is a number of clients that each send one request after the
//! other, or one bulk write.

mod requests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use nix::unistd::Pid;
use testkit::http::{HttpConnection, Request};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::bench::benchmark::{Benchmark, RunArgs, Setup, Turn};
use crate::bench::writes::requests::{Kind, TABLES_SQL, Table, bulk, resources};
use crate::harness::demo::Demo;
use crate::harness::larder::Larder;
use crate::harness::process::{self, Meter};
use crate::harness::session::SqlSession;
use crate::harness::tools::Measured;
use crate::report::benchmark_report::{Group, Measurement};
use crate::report::results::RunEnvironment;
use crate::workload::counters::Durations;

const DEPTS: u32 = 1_000;
/// Documents that a client replaces or patches, one after the other; other ones for each kind.
const KEPT: u64 = 50;
/// Documents that are inserted before a turn that deletes documents, for each client.
const DELETED: u64 = 500;
/// The keys of a turn follow those of the turn before; the demo's are below the first.
const TURN_KEYS: u64 = 20_000_000;
/// Of one client within a turn.
const CLIENT_KEYS: u64 = 1_000_000;
const BULK_MAX: Duration = Duration::from_secs(120);
const MEMORY_BYTES: u64 = 1 << 30;

/// What is compared.
#[derive(Args, Clone, Debug)]
pub(crate) struct WritesArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Clients that write at a time.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=16))]
    pub(crate) clients: u64,
    /// Documents of a bulk write.
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) bulk: u64,
    /// Another binary of larder, by whose rates those of this one are divided.
    #[arg(long, value_name = "PATH")]
    pub(crate) against: Option<PathBuf>,
}

/// The larders that take turns.
pub(crate) struct Writes {
    clients: u64,
    bulk: u64,
    servers: Vec<Server>,
}

/// One larder, and the PostgreSQL that it writes to.
struct Server {
    name: &'static str,
    clients: u64,
    session: SqlSession,
    /// The first key of the last turn.
    key: u64,
    /// How many documents each of [`Table::ALL`] should have.
    documents: [u64; 2],
    pid: Pid,
    larder: Larder,
    demo: Demo,
}

impl Benchmark for Writes {
    const NAME: &'static str = "writes";
    type Args = WritesArgs;

    fn run_args(args: &WritesArgs) -> &RunArgs {
        &args.run
    }

    async fn prepare(
        args: &WritesArgs,
        setup: Setup<'_>,
        environment: &mut RunEnvironment,
    ) -> anyhow::Result<Self> {
        let mut servers =
            vec![Server::start("larder", setup.binary, args.clients, setup.seed).await?];
        if let Some(other) = &args.against {
            environment.binary("other", other)?;
            servers.push(Server::start("other", other, args.clients, setup.seed).await?);
        }
        for server in &servers {
            environment.commands.push(server.larder.shown());
        }
        Ok(Self {
            clients: args.clients,
            bulk: args.bulk,
            servers,
        })
    }

    fn conditions(&self) -> String {
        format!(
            "Documents of a dept and ten emps, {} connections, or {} documents in one stream; without fsync; larder, \
             PostgreSQL and clients on any core. The triggers set a column, and log each change of a row. CPU time is larder's for each document.",
            self.clients, self.bulk
        )
    }

    fn groups(&self) -> Vec<Group> {
        let cases: Vec<String> = self.servers.iter().map(|s| s.name.to_owned()).collect();
        let pairs = match cases.as_slice() {
            [one, other] => vec![(one.clone(), other.clone())],
            _ => Vec::new(),
        };
        let group = |(table, kind): (Table, Kind)| Group {
            name: format!("{}, {}", kind.name(), table.name()),
            unit: "documents/s".to_owned(),
            cases: cases.clone(),
            pairs: pairs.clone(),
            layers: Vec::new(),
        };
        kinds().map(group).collect()
    }

    async fn turn(&mut self, turn: Turn) -> anyhow::Result<Measurement> {
        let (table, kind) = kinds().nth(turn.group).context("no such group")?;
        let server = self.servers.get_mut(turn.case).context("no such case")?;
        server.key += TURN_KEYS;
        match kind {
            Kind::Bulk | Kind::LenientBulk => server.write_bulk(table, kind, self.bulk).await,
            _ => {
                let duration = Duration::from_secs(turn.seconds);
                server.write(table, kind, duration).await
            }
        }
    }

    /// Whether the tables have all documents that were acknowledged, with all their rows.
    async fn verify(&mut self) -> anyhow::Result<()> {
        for server in &mut self.servers {
            for (table, documents) in Table::ALL.into_iter().zip(server.documents) {
                let counted = format!(
                    "select concat_ws(' ', (select count(*) from {}), (select count(*) from {}))",
                    table.dept(),
                    table.emp()
                );
                let found = server.session.texts(&counted).await?;
                let wanted = format!("{documents} {}", documents * 10);
                ensure!(
                    found == [wanted.clone()],
                    "{}: depts and emps of {} should be {wanted}, but are {found:?}",
                    server.name,
                    table.dept()
                );
            }
        }
        Ok(())
    }

    async fn shutdown(self) -> anyhow::Result<()> {
        for mut server in self.servers {
            server.larder.terminate().await?;
            server.demo.stop().await;
        }
        Ok(())
    }
}

fn kinds() -> impl Iterator<Item = (Table, Kind)> {
    let of = |table| Kind::ALL.into_iter().map(move |kind| (table, kind));
    Table::ALL.into_iter().flat_map(of)
}

impl Server {
    async fn start(
        name: &'static str,
        binary: &Path,
        clients: u64,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let mut demo = Demo::start(binary, DEPTS, 0, seed).await?;
        let mut session = SqlSession::new(demo.url(), 0)?;
        session.run(TABLES_SQL).await?;
        let mut config = demo.config(name, binary, None)?;
        config.memory_bytes = MEMORY_BYTES;
        config.settings = resources();
        let mut larder = Larder::new(config)?;
        larder.start_ready().await?;
        let mut server = Self {
            name,
            clients,
            session,
            key: TURN_KEYS,
            documents: [u64::from(DEPTS), 0],
            pid: larder.pid()?,
            larder,
            demo,
        };
        for table in Table::ALL {
            let kinds = Kind::ALL.len() as u64;
            server.fill(table, TURN_KEYS, kinds * KEPT).await?;
        }
        Ok(server)
    }

    /// Inserts `count` documents for each client, with keys from `first` on.
    async fn fill(&mut self, table: Table, first: u64, count: u64) -> anyhow::Result<()> {
        let clients = (0..self.clients).map(|client| first + client * CLIENT_KEYS);
        let keys = clients.flat_map(|first| first..first + count);
        self.send_bulk(&bulk(table, Kind::Bulk, keys)).await?;
        self.note(table, self.clients * count, 0);
        Ok(())
    }

    fn note(&mut self, table: Table, inserted: u64, deleted: u64) {
        let documents = &mut self.documents[table as usize];
        *documents = *documents + inserted - deleted;
    }

    async fn send_bulk(&self, request: &Request) -> anyhow::Result<()> {
        let mut connection = HttpConnection::connect(self.larder.config.listen).await?;
        connection.answer_max = BULK_MAX;
        let answer = connection.send(request).await?;
        ensure!(
            matches!(answer.status, 200 | 201),
            "POST: {}",
            answer.shown()
        );
        Ok(())
    }

    async fn write_bulk(
        &mut self,
        table: Table,
        kind: Kind,
        count: u64,
    ) -> anyhow::Result<Measurement> {
        let request = bulk(table, kind, self.key..self.key + count);
        let meter = Meter::start(Some(self.pid), &process::cores("0")?)?;
        let began = Instant::now();
        self.send_bulk(&request).await?;
        let took = began.elapsed();
        let cpu_micros = meter.stop()?.micros_per(count);
        self.note(table, count, 0);
        Ok(measurement(count, took, took, cpu_micros))
    }

    async fn write(
        &mut self,
        table: Table,
        kind: Kind,
        duration: Duration,
    ) -> anyhow::Result<Measurement> {
        // What is replaced is the same in all turns.
        let (first, count) = match kind {
            Kind::Post => (self.key, CLIENT_KEYS),
            Kind::Delete => (self.key, DELETED),
            _ => (TURN_KEYS + kind as u64 * KEPT, KEPT),
        };
        if kind == Kind::Delete {
            self.fill(table, first, count).await?;
        }
        let mut connections = Vec::new();
        for _ in 0..self.clients {
            connections.push(HttpConnection::connect(self.larder.config.listen).await?);
        }
        let meter = Meter::start(Some(self.pid), &process::cores("0")?)?;
        let began = Instant::now();
        let mut clients = JoinSet::new();
        for (number, connection) in (0..).zip(connections) {
            let first = first + number * CLIENT_KEYS;
            let client = Client {
                connection,
                table,
                kind,
                turn: self.key,
                first,
                count,
            };
            clients.spawn(client.run(began + duration));
        }
        let mut latencies = Durations::new()?;
        while let Some(client) = clients.join_next().await {
            latencies.add(&client??)?;
        }
        let took = began.elapsed();
        let requests = latencies.count();
        let cpu_micros = meter.stop()?.micros_per(requests);
        match kind {
            Kind::Post => self.note(table, requests, 0),
            Kind::Delete => self.note(table, 0, requests),
            _ => {}
        }
        Ok(measurement(requests, took, latencies.mean(), cpu_micros))
    }
}

fn measurement(
    requests: u64,
    took: Duration,
    mean: Duration,
    cpu_micros: Option<f64>,
) -> Measurement {
    Measurement {
        measured: Measured {
            requests,
            // Counts are far below 2^52, so the cast is exact.
            per_second: requests as f64 / took.as_secs_f64(),
            mean_ms: mean.as_secs_f64() * 1e3,
            ..Measured::default()
        },
        cpu_micros,
        ..Measurement::default()
    }
}

/// Sends one request after the other.
struct Client {
    connection: HttpConnection,
    table: Table,
    kind: Kind,
    /// Values differ from turn to turn.
    turn: u64,
    first: u64,
    /// Of its documents.
    count: u64,
}

impl Client {
    /// Returns how long each request took.
    async fn run(mut self, until: Instant) -> anyhow::Result<Durations> {
        let mut latencies = Durations::new()?;
        let mut number = 0;
        while Instant::now() < until {
            let key = self.first + number % self.count;
            if self.kind == Kind::Delete && number == self.count {
                break;
            }
            let request = self.kind.request(self.table, key, self.turn + number);
            number += 1;
            let began = Instant::now();
            let answer = self.connection.send(&request).await?;
            ensure!(
                answer.status == self.kind.status(),
                "{}: {}",
                self.kind.name(),
                answer.shown()
            );
            latencies.note(began.elapsed());
        }
        Ok(latencies)
    }
}
