//! `loadtest sweep`: one larder by the number of connections, tier by tier, driven by oha, ab or wrk.

pub(crate) mod driver;

use std::cell::Cell;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use nix::unistd::Pid;
use tokio::time::{MissedTickBehavior, interval};

use crate::bench::benchmark::{CoreArgs, FolderArgs, connections};
use crate::bench::sweep::driver::{Driver, ToolName};
use crate::harness::demo::documents::Checker;
use crate::harness::demo::{Demo, WarmTier};
use crate::harness::process::{self, Meter, resident_bytes};
use crate::harness::progress;
use crate::report::results::{Folder, RunEnvironment};
use crate::report::sweep_run::{FILE, KeyChoice, SweepPoint, SweepRun};

/// Between two answers that are checked while the tool runs: next to no load.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// What is measured, and by which tool.
#[derive(Args, Clone, Debug)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    #[command(flatten)]
    pub(crate) cores: CoreArgs,
    /// Documents, each of a dept and ten emps, about 1.7 kB.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) depts: u32,
    /// What makes the load; it must be installed. ab can ask for one document only.
    #[arg(long, value_enum, default_value_t = ToolName::Oha, value_name = "TOOL")]
    pub(crate) tool: ToolName,
    /// Connections at once, one measurement after the other.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8,16,128,512,2048,4096", value_parser = connections)]
    pub(crate) concurrency: Vec<usize>,
    /// The one tier in use, one larder after the other.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "none,disk,memory"
    )]
    pub(crate) tiers: Vec<WarmTier>,
    /// Of each measurement, with oha and ab.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: u64,
    /// Of each measurement, with wrk, which counts time.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,
    /// A larder that runs already with the demo tables, such as http://127.0.0.1:8080, instead of one of this program's
    /// own.
    #[arg(long, value_name = "URL", conflicts_with = "tiers")]
    pub(crate) url: Option<String>,
}

/// Whether every request was answered well.
///
/// When `stop` is, what has been measured until then is kept.
pub(crate) async fn run(
    args: &SweepArgs,
    binary: PathBuf,
    seed: u64,
    stop: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<bool> {
    let directory = tempfile::tempdir().context("no temporary directory")?;
    let driver = Driver::find(args, directory.path(), seed)?;
    let mut environment = RunEnvironment::now().await;
    environment
        .version(driver.program(), driver.version_flag())
        .await;
    let mut sweep = Sweeper {
        args,
        driver,
        run: SweepRun {
            name: String::new(),
            environment,
            tool: args.tool.name().to_owned(),
            keys: if args.tool == ToolName::Ab {
                KeyChoice::One
            } else {
                KeyChoice::Random
            },
            depts: args.depts,
            server_cores: args.cores.server_cores.clone(),
            tool_cores: args.cores.tool_cores.clone(),
            footprint: None,
            points: Vec::new(),
        },
        folder: None,
        progress: progress(args)?,
    };
    let outcome = tokio::select! {
        outcome = sweep.all(binary, seed) => outcome,
        stopped = stop => stopped,
    };
    sweep.progress.finish_and_clear();
    if let Some(folder) = &sweep.folder {
        println!("{}", sweep.run.table());
        println!(
            "kept in {0}; loadtest report {0} draws it",
            folder.path().display()
        );
    }
    outcome?;
    Ok(sweep.run.is_good())
}

struct Sweeper<'a> {
    args: &'a SweepArgs,
    driver: Driver,
    run: SweepRun,
    /// Created with the first measurement.
    folder: Option<Folder>,
    progress: ProgressBar,
}

impl Sweeper<'_> {
    async fn all(&mut self, binary: PathBuf, seed: u64) -> anyhow::Result<()> {
        let args = self.args;
        if let Some(url) = &args.url {
            let target = address(url).await?;
            self.progress.set_message("reading all documents");
            let checker = Checker::of_running(target, args.depts).await?;
            return self.line("url", target, None, checker).await;
        }
        self.run.environment.binary("larder", &binary)?;
        self.progress.set_message("starting PostgreSQL");
        let mut demo = Demo::start(&binary, args.depts, 0, seed).await?;
        for tier in &args.tiers {
            self.progress
                .set_message(format!("filling {}", tier.name()));
            let mut larder = demo
                .larder(tier.name(), &binary, *tier, &args.cores.server_cores)
                .await?;
            let target = larder.config.listen;
            self.run.environment.commands.push(larder.shown());
            if *tier == WarmTier::Memory {
                self.run.footprint = demo.footprint;
            }
            let checker = demo.checker(target, Some(*tier)).await?;
            self.line(tier.name(), target, Some(larder.pid()?), checker)
                .await?;
            larder.terminate().await?;
        }
        demo.stop().await;
        Ok(())
    }

    /// All numbers of connections with one tier.
    async fn line(
        &mut self,
        tier: &str,
        target: SocketAddr,
        server: Option<Pid>,
        mut checker: Checker,
    ) -> anyhow::Result<()> {
        let cores = process::cores(&self.args.cores.all())?;
        self.run
            .environment
            .commands
            .extend(self.driver.prepare(target)?);
        for concurrency in &self.args.concurrency {
            self.progress
                .set_message(format!("{tier}, {concurrency} at once"));
            let invocation = self.driver.invocation(target, *concurrency);
            self.run.environment.commands.push(invocation.shown());
            let meter = Meter::start(server, &cores)?;
            let mut checks = Checks::default();
            let ended = Cell::new(false);
            let (output, ()) = tokio::join!(
                async {
                    let output = invocation.run().await;
                    ended.set(true);
                    output
                },
                checks.until(&ended, &mut checker),
            );
            let output = output?;
            let cost = meter.stop()?;
            let measured = self
                .driver
                .parse(&output)
                .with_context(|| format!("{}\n{output}", invocation.shown()))?;
            self.run.points.push(SweepPoint {
                tier: tier.to_owned(),
                concurrency: *concurrency,
                cpu_micros: cost.micros_per(measured.requests),
                others: cost.others,
                resident_bytes: server.map(resident_bytes).transpose()?,
                checked: checks.answers,
                wrong: checks.wrong,
                elsewhere: checks.elsewhere,
                measured,
            });
            self.keep()?;
            self.progress.inc(1);
        }
        Ok(())
    }

    /// Writes what there is.
    fn keep(&mut self) -> anyhow::Result<()> {
        let folder = match self.folder.take() {
            Some(folder) => folder,
            None => {
                let folder = &self.args.folder;
                let name = folder.name.clone();
                let name = name.unwrap_or_else(|| format!("sweep-{}", self.args.tool.name()));
                let folder = Folder::create(&folder.results, &name)?;
                self.run.name = folder.name();
                folder
            }
        };
        let folder = self.folder.insert(folder);
        folder.write(FILE, &serde_json::to_string_pretty(&self.run)?)?;
        folder.write("README.md", &self.run.readme())
    }
}

/// Answers that were checked beside the load.
#[derive(Default)]
struct Checks {
    answers: u64,
    wrong: u64,
    elsewhere: u64,
}

impl Checks {
    /// Checks until the tool has ended. After a wrong answer nothing is asked any more, since the connection may be out
    /// of step.
    async fn until(&mut self, ended: &Cell<bool>, checker: &mut Checker) {
        let mut pace = interval(CHECK_INTERVAL);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.wrong == 0 && !ended.get() {
            pace.tick().await;
            self.answers += 1;
            match checker.check().await {
                Ok(true) => {}
                Ok(false) => self.elsewhere += 1,
                Err(error) => {
                    eprintln!("loadtest: {error:#}");
                    self.wrong += 1;
                }
            }
        }
    }
}

fn progress(args: &SweepArgs) -> anyhow::Result<ProgressBar> {
    let tiers = if args.url.is_some() {
        1
    } else {
        args.tiers.len()
    };
    let progress = ProgressBar::new((tiers * args.concurrency.len()) as u64);
    progress.set_style(ProgressStyle::with_template(
        "{elapsed_precise} [{bar:30}] {pos}/{len} {msg}",
    )?);
    progress::show(&progress);
    Ok(progress)
}

/// Where `http://HOST:PORT` is.
async fn address(url: &str) -> anyhow::Result<SocketAddr> {
    let host = url
        .strip_prefix("http://")
        .unwrap_or(url)
        .trim_end_matches('/');
    let mut found = tokio::net::lookup_host(host)
        .await
        .with_context(|| format!("{url:?}, expected http://HOST:PORT"))?;
    found
        .next()
        .with_context(|| format!("{url:?} has no address"))
}
