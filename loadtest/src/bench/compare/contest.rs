//! All that is compared, running side by side; the idle cost next to nothing.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use nix::unistd::Pid;
use tokio::process::Child;

use crate::bench::compare::CompareArgs;
use crate::bench::compare::contender::{Contender, Endpoint, Role};
use crate::bench::compare::outcome::Sample;
use crate::bench::other_servers::{OtherServer, ServerSetup};
use crate::harness;
use crate::harness::demo::{Demo, WarmTier, read, read_all};
use crate::harness::http::HttpConnection;
use crate::harness::larder::Larder;
use crate::harness::process::{self, Meter, child_of, pinned};
use crate::harness::session::SqlSession;
use crate::harness::tools::pgbench::{self, Pgbench, ReadStatement};
use crate::harness::tools::wrk::{self, Wrk, WrkRun};
use crate::report::results::RunEnvironment;

const RESPONSE_FILE: &str = "response";
const TAGS_FILE: &str = "tags";

/// The contenders and what they run on.
pub(crate) struct Contest {
    pub(crate) contenders: Vec<Contender>,
    /// Of the last measurement.
    pub(crate) commands: Vec<String>,
    wrk: Wrk,
    pgbench: Option<Pgbench>,
    pipeline: usize,
    /// Of servers and tools.
    cores: BTreeSet<usize>,
    larders: Vec<(Larder, WarmTier)>,
    servers: Vec<Child>,
    demo: Demo,
}

impl Contest {
    /// Starts them all and fills their tiers.
    pub(crate) async fn set(
        args: &CompareArgs,
        binary: PathBuf,
        seed: u64,
        provenance: &mut RunEnvironment,
    ) -> anyhow::Result<Self> {
        let clients = args.connections.iter().copied().max().unwrap_or(1);
        let pgbench_clients = if args.tiers.contains(&WarmTier::None) {
            clients
        } else {
            0
        };
        let demo = Demo::start(&binary, args.trial.depts, pgbench_clients, seed).await?;
        let wrk = Wrk::new(
            demo.run_directory.directory(),
            &args.trial.tool_cores,
            args.trial.depts,
        )?;
        provenance.version(wrk.program(), "--version").await;
        let mut contest = Self {
            contenders: Vec::new(),
            commands: Vec::new(),
            wrk,
            pgbench: None,
            pipeline: args.pipeline,
            cores: process::cores(&args.trial.all_cores())?,
            larders: Vec::new(),
            servers: Vec::new(),
            demo,
        };
        for tier in &args.tiers {
            contest
                .add_larder("larder", &binary, *tier, Role::Subject(*tier), args)
                .await?;
            if let Some(other) = &args.against {
                contest
                    .add_larder("other", other, *tier, Role::Other(*tier), args)
                    .await?;
            }
        }
        provenance.binary("larder", &binary)?;
        if let Some(other) = &args.against {
            provenance.binary("other", other)?;
        }
        if args.tiers.contains(&WarmTier::Memory) {
            contest.add_limit(args).await?;
        }
        for server in &args.with {
            contest.add_other_server(*server, args, provenance).await?;
        }
        if args.not_modified {
            contest.add_tagged().await?;
        }
        if args.tiers.contains(&WarmTier::None) {
            contest.add_pgbench(args, provenance).await?;
        }
        Ok(contest)
    }

    async fn add_larder(
        &mut self,
        name: &str,
        binary: &Path,
        tier: WarmTier,
        role: Role,
        args: &CompareArgs,
    ) -> anyhow::Result<()> {
        let name = format!("{name} {}", tier.name());
        let larder = self
            .demo
            .larder(
                &name.replace(' ', "-"),
                binary,
                tier,
                &args.trial.server_cores,
            )
            .await?;
        self.contenders.push(Contender {
            name,
            way: Endpoint::Http(larder.config.listen),
            pid: Some(larder.pid()?),
            role,
        });
        self.larders.push((larder, tier));
        Ok(())
    }

    /// The first larder: what others are given is its.
    fn first(&self) -> anyhow::Result<&Larder> {
        Ok(&self.larders.first().context("no larder")?.0)
    }

    /// The limit, sending what larder sends for a document of the median length.
    async fn add_limit(&mut self, args: &CompareArgs) -> anyhow::Result<()> {
        let listen = self.first()?.config.listen;
        let lengths = read_all(listen, 1..=self.demo.depts, |key, answer| {
            Ok((answer.body.len(), key))
        })
        .await?;
        let mut lengths = lengths;
        lengths.sort_unstable();
        let (_, key) = lengths.get(lengths.len() / 2).context("no documents")?;
        let mut wire = HttpConnection::connect(listen).await?;
        let response = read(&mut wire, *key).await?.whole.to_vec();
        let file = self.demo.run_directory.directory().join(RESPONSE_FILE);
        std::fs::write(&file, response)?;
        let address = self.demo.address()?;
        let child = pinned(Some(&args.trial.server_cores), std::env::current_exe()?)
            .arg("limit")
            .arg(address.to_string())
            .arg(file)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("starting the limit server")?;
        self.servers.push(child);
        self.add_server("limit", address).await
    }

    async fn add_other_server(
        &mut self,
        server: OtherServer,
        args: &CompareArgs,
        provenance: &mut RunEnvironment,
    ) -> anyhow::Result<()> {
        let larder = self.first()?.config.listen;
        let address = self.demo.address()?;
        let directory = self.demo.run_directory.directory();
        let invocation = server
            .prepare(&ServerSetup {
                address,
                larder,
                directory,
                cores: &args.trial.server_cores,
                depts: args.trial.depts,
            })
            .await?;
        provenance
            .version(&invocation.program, server.version_flag())
            .await;
        self.servers.push(invocation.start()?);
        let log = || std::fs::read_to_string(invocation.log()).unwrap_or_default();
        let added = self.add_server(server.name(), address).await;
        added.with_context(log)?;
        // Fills what has to be filled, and shows that it has all documents.
        if server != OtherServer::Nginx {
            read_all(address, 1..=args.trial.depts, |_, _| Ok(())).await?;
        }
        Ok(())
    }

    /// The server that was started last, once it answers.
    async fn add_server(&mut self, name: &str, address: SocketAddr) -> anyhow::Result<()> {
        let child = self
            .servers
            .last()
            .and_then(Child::id)
            .context("it ended")?;
        harness::answers(address)
            .await
            .with_context(|| format!("{name} does not answer"))?;
        self.contenders.push(Contender {
            name: name.to_owned(),
            way: Endpoint::Http(address),
            // Varnish has a process that looks after the one that serves.
            pid: Some(child_of(Pid::from_raw(i32::try_from(child)?))),
            role: Role::Server,
        });
        Ok(())
    }

    /// The first larder again, asked for what the client has.
    async fn add_tagged(&mut self) -> anyhow::Result<()> {
        let first = self.contenders.first().context("no larder")?;
        let Role::Subject(tier) = first.role else {
            anyhow::bail!("the first contender is no larder");
        };
        let listen = self.first()?.config.listen;
        let tagged = Contender {
            name: format!("{} 304", first.name),
            way: Endpoint::Tagged(listen),
            pid: first.pid,
            role: Role::Variant(tier),
        };
        let mut tags = read_all(listen, 1..=self.demo.depts, |key, answer| {
            Ok((key, answer.etag.to_owned()))
        })
        .await?;
        tags.sort_unstable();
        let lines: Vec<String> = tags.into_iter().map(|(_, tag)| tag).collect();
        std::fs::write(
            self.demo.run_directory.directory().join(TAGS_FILE),
            lines.join("\n"),
        )?;
        self.contenders.push(tagged);
        Ok(())
    }

    /// PostgreSQL itself; its client may use all cores that larder and its client have.
    async fn add_pgbench(
        &mut self,
        args: &CompareArgs,
        provenance: &mut RunEnvironment,
    ) -> anyhow::Result<()> {
        let cores = args.trial.all_cores();
        let pgbench = Pgbench::new(
            self.demo.run_directory.directory(),
            &cores,
            self.cores.len(),
            self.demo.url(),
            self.demo.depts,
        )?;
        provenance.version(pgbench.program(), "--version").await;
        self.pgbench = Some(pgbench);
        self.check_statement().await?;
        for (name, statement) in [
            ("pgbench, documents", ReadStatement::Document),
            ("pgbench, rows", ReadStatement::Rows),
        ] {
            self.contenders.push(Contender {
                name: name.to_owned(),
                way: Endpoint::ReadStatement(statement),
                pid: None,
                role: Role::Client,
            });
        }
        Ok(())
    }

    /// Whether pgbench's statement makes the document that larder answers with.
    async fn check_statement(&mut self) -> anyhow::Result<()> {
        let mut wire = HttpConnection::connect(self.first()?.config.listen).await?;
        let wanted = read(&mut wire, 1).await?.body;
        let mut session = SqlSession::new(self.demo.url(), 0)?;
        session.run("set timezone = 'UTC'").await?;
        let made = session
            .texts(&ReadStatement::Document.sql().replace(":key", "1"))
            .await?;
        ensure!(
            made.first().map(String::as_bytes) == Some(wanted),
            "pgbench's statement makes another document: {made:?}"
        );
        Ok(())
    }

    /// Subject and reference of each ratio, by name.
    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        for one in &self.contenders {
            let others = self
                .contenders
                .iter()
                .filter(|other| one.role.is_divided_by(other.role));
            pairs.extend(others.map(|other| (one.name.clone(), other.name.clone())));
        }
        pairs
    }

    /// One turn of one contender.
    pub(crate) async fn measure(
        &mut self,
        number: usize,
        connections: usize,
        seconds: u64,
        seed: u64,
    ) -> anyhow::Result<Sample> {
        let contender = &self.contenders[number];
        let by_wrk = |target, tags| {
            self.wrk.invocation(&WrkRun {
                target,
                connections,
                seconds,
                pipeline: self.pipeline,
                seed,
                tags,
            })
        };
        let invocation = match contender.way {
            Endpoint::Http(target) => by_wrk(target, None),
            Endpoint::Tagged(target) => by_wrk(target, Some(TAGS_FILE)),
            Endpoint::ReadStatement(statement) => {
                let pgbench = self.pgbench.as_ref().context("no pgbench")?;
                pgbench.invocation(statement, connections, seconds)
            }
        };
        let meter = Meter::start(contender.pid, &self.cores)?;
        let (output, progress) = invocation.run_both().await?;
        let cost = meter.stop()?;
        let measured = match contender.way {
            Endpoint::ReadStatement(_) => pgbench::parse(&output, &progress, connections),
            Endpoint::Http(_) | Endpoint::Tagged(_) => wrk::parse(&output),
        };
        let mut measured = measured.with_context(|| format!("{}\n{output}", invocation.shown()))?;
        if self.pipeline > 1 {
            // wrk notes one time for all that it sent at once, and corrects it as if each had been sent alone.
            measured.times = None;
        }
        self.commands = vec![invocation.shown()];
        Ok(Sample {
            contender: contender.name.clone(),
            connections,
            round: 0,
            cpu_micros: cost.micros_per(measured.requests),
            others: cost.others,
            measured,
        })
    }

    /// Whether each larder still answers with the right documents out of its tier.
    pub(crate) async fn check(&mut self) -> anyhow::Result<()> {
        for (larder, tier) in &self.larders {
            self.demo.check(larder.config.listen, *tier).await?;
        }
        Ok(())
    }

    /// Stops everything in good order.
    pub(crate) async fn shutdown(mut self) -> anyhow::Result<()> {
        for server in &mut self.servers {
            server.kill().await?;
        }
        for (larder, _) in &mut self.larders {
            larder.terminate().await?;
        }
        self.demo.stop().await;
        Ok(())
    }
}
