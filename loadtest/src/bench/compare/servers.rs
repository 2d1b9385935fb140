//! The servers of a comparison, started one after the other.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, ensure};
use nix::unistd::Pid;
use testkit::http::HttpConnection;
use tokio::process::Child;

use crate::bench::compare::case::{ComparedCase, Endpoint, Role};
use crate::bench::compare::{Compare, TAGS_FILE};
use crate::bench::other_servers::{OtherServer, ServerSetup};
use crate::harness;
use crate::harness::demo::WarmTier;
use crate::harness::demo::documents::{median_response, read, read_all};
use crate::harness::larder::Larder;
use crate::harness::process::child_of;
use crate::harness::session::SqlSession;
use crate::harness::tools::pgbench::{Pgbench, ReadStatement};
use crate::harness::tools::wrk::WrkRequest;
use crate::labs::models::{Contender, Model};
use crate::report::results::RunEnvironment;

const RESPONSE_FILE: &str = "response";

impl Compare {
    /// Starts them all and fills their tiers.
    pub(super) async fn add_all(
        &mut self,
        binary: &Path,
        environment: &mut RunEnvironment,
    ) -> anyhow::Result<()> {
        let args = self.args.clone();
        for tier in &args.tiers {
            self.add_larder("larder", binary, *tier, Role::Subject(*tier))
                .await?;
            if let Some(other) = &args.against {
                self.add_larder("other", other, *tier, Role::Other(*tier))
                    .await?;
            }
        }
        if let Some(other) = &args.against {
            environment.binary("other", other)?;
        }
        if args.tiers.contains(&WarmTier::Memory) {
            self.add_limit().await?;
        }
        for server in &args.with {
            self.add_other_server(*server, environment).await?;
        }
        if args.not_modified {
            self.add_tagged().await?;
        }
        if args.scopes {
            self.add_scopes(binary).await?;
        }
        if args.tiers.contains(&WarmTier::None) {
            self.add_pgbench(environment).await?;
        }
        Ok(())
    }

    async fn add_larder(
        &mut self,
        name: &str,
        binary: &Path,
        tier: WarmTier,
        role: Role,
    ) -> anyhow::Result<()> {
        let name = format!("{name} {}", tier.name());
        let larder = self
            .demo
            .larder(
                &name.replace(' ', "-"),
                binary,
                tier,
                &self.args.cores.server_cores,
            )
            .await?;
        self.cases.push(ComparedCase {
            name,
            endpoint: Endpoint::Http(larder.config.listen, WrkRequest::DOCUMENTS),
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
    async fn add_limit(&mut self) -> anyhow::Result<()> {
        let listen = self.first()?.config.listen;
        let response = median_response(listen, self.demo.depts).await?;
        let file = self.demo.run_directory.directory().join(RESPONSE_FILE);
        std::fs::write(&file, response)?;
        let cores = &self.args.cores.server_cores;
        let limit = Contender::start(Model::EpollPerCore, cores, &file, false).await?;
        self.servers.push(limit.child);
        self.add_server("limit", limit.address).await
    }

    async fn add_other_server(
        &mut self,
        server: OtherServer,
        environment: &mut RunEnvironment,
    ) -> anyhow::Result<()> {
        let larder = self.first()?.config.listen;
        let address = self.demo.address()?;
        let directory = self.demo.run_directory.directory();
        let invocation = server
            .prepare(&ServerSetup {
                address,
                larder,
                directory,
                cores: &self.args.cores.server_cores,
                depts: self.args.depts,
            })
            .await?;
        environment
            .version(&invocation.program, server.version_flag())
            .await;
        self.servers.push(invocation.start()?);
        let log = || std::fs::read_to_string(invocation.log()).unwrap_or_default();
        let added = self.add_server(server.name(), address).await;
        added.with_context(log)?;
        // Fills what has to be filled, and shows that it has all documents.
        if server != OtherServer::Nginx {
            read_all(address, 1..=self.args.depts, |_, _| Ok(())).await?;
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
        harness::await_listening(address)
            .await
            .with_context(|| format!("{name} does not answer"))?;
        self.cases.push(ComparedCase {
            name: name.to_owned(),
            endpoint: Endpoint::Http(address, WrkRequest::DOCUMENTS),
            // Varnish has a process that looks after the one that serves.
            pid: Some(child_of(Pid::from_raw(i32::try_from(child)?))),
            role: Role::Server,
        });
        Ok(())
    }

    /// The first larder again, asked for what the client has.
    async fn add_tagged(&mut self) -> anyhow::Result<()> {
        let first = self.cases.first().context("no larder")?;
        let Role::Subject(tier) = first.role else {
            anyhow::bail!("the first case is no larder");
        };
        let listen = self.first()?.config.listen;
        let tagged = ComparedCase {
            name: format!("{} 304", first.name),
            endpoint: Endpoint::Http(
                listen,
                WrkRequest {
                    tags: Some(TAGS_FILE),
                    ..WrkRequest::DOCUMENTS
                },
            ),
            pid: first.pid,
            role: Role::Variant(tier),
        };
        let mut tags = read_all(listen, 1..=self.demo.depts, |key, answer| {
            Ok((key, answer.header("etag").to_owned()))
        })
        .await?;
        tags.sort_unstable();
        let lines: Vec<String> = tags.into_iter().map(|(_, tag)| tag).collect();
        std::fs::write(
            self.demo.run_directory.directory().join(TAGS_FILE),
            lines.join("\n"),
        )?;
        self.cases.push(tagged);
        Ok(())
    }

    /// PostgreSQL itself; its client may use all cores that larder and its client have.
    async fn add_pgbench(&mut self, environment: &mut RunEnvironment) -> anyhow::Result<()> {
        let cores = self.args.cores.all();
        let pgbench = Pgbench::new(
            self.demo.run_directory.directory(),
            Some(&cores),
            self.cores.len(),
            self.demo.url(),
        )?;
        pgbench.write_reads(self.demo.depts)?;
        environment.version(pgbench.program(), "--version").await;
        self.pgbench = Some(pgbench);
        self.check_statement().await?;
        for (name, statement) in [
            ("pgbench, documents", ReadStatement::Document),
            ("pgbench, rows", ReadStatement::Rows),
        ] {
            self.cases.push(ComparedCase {
                name: name.to_owned(),
                endpoint: Endpoint::Statement(statement),
                pid: None,
                role: Role::Client,
            });
        }
        Ok(())
    }

    /// Whether pgbench's statement makes the document that larder answers with.
    async fn check_statement(&mut self) -> anyhow::Result<()> {
        let mut connection = HttpConnection::connect(self.first()?.config.listen).await?;
        let wanted = read(&mut connection, 1).await?.body;
        let mut session = SqlSession::new(self.demo.url(), 0)?;
        session.run("set timezone = 'UTC'").await?;
        let made = session
            .texts(&ReadStatement::Document.sql().replace(":key", "1"))
            .await?;
        ensure!(
            made.first().map(String::as_bytes) == Some(&wanted),
            "pgbench's statement makes another document: {made:?}"
        );
        Ok(())
    }
}
