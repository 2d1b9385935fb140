//! `loadtest models`: what serves a small answer cheapest, from a pool of threads to larder.
//!
//! Each turn starts one server, on a port of its own, and stops it. All send the bytes that larder sends for the document
//! of the median length, but for larder, which sends the document that is asked for. How many connections were answered is
//! counted from outside, by `ss`, so that no model pays for it.

mod contender;
mod model;
mod request;
mod selectors;
mod tasks;
#[cfg(test)]
mod tests;
mod threads;
mod uring;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use tokio::process::Command;
use tokio::time::sleep;

use crate::bench::benchmark::{
    Benchmark, CoreArgs, Measurement, RunArgs, Setup, Turn, connections,
};
use crate::harness::demo::documents::median_response;
use crate::harness::demo::{Demo, WarmTier};
use crate::harness::http;
use crate::harness::larder::Larder;
use crate::harness::process::{self, Meter, find_program};
use crate::harness::tools::wrk::{self, Wrk, WrkRequest, WrkRun};
pub(crate) use crate::labs::models::contender::Contender;
pub(crate) use crate::labs::models::model::{Model, run};
use crate::report::benchmark_report::Group;
use crate::report::results::RunEnvironment;

/// Documents, more than the caches of a core hold.
const DEPTS: u32 = 10_000;
/// Of the series that varies cores, and of the sum of layers.
const CONNECTIONS: usize = 100;
const WARM_UP_SECONDS: u64 = 1;
const WARM_UP_CONNECTIONS: usize = 20;
/// Up to here every connection has to be answered, by larder with any number.
const ANSWERED_CONNECTIONS_MIN: usize = 1_000;
/// When sockets are counted, in parts of the turn.
const COUNTED_AT: f64 = 0.9;
/// Descriptors besides those of connections.
const OTHER_FILES: u64 = 200;
const RESPONSE_FILE: &str = "response";

/// Each model with the one whose figures its own are divided by.
const PAIRS: [(Model, Model); 7] = [
    (Model::Epoll, Model::Threads20),
    (Model::NioEpoll, Model::Threads20),
    (Model::Epoll, Model::Threads),
    (Model::TokioPerCore, Model::EpollPerCore),
    (Model::Hyper, Model::TokioPerCore),
    (Model::Larder, Model::Hyper),
    (Model::Larder, Model::EpollPerCore),
];
/// Each does what the one before does, and more.
const LAYERS: [Model; 4] = [
    Model::EpollPerCore,
    Model::TokioPerCore,
    Model::Hyper,
    Model::Larder,
];

/// What the models answer with.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum Series {
    /// The same bytes each time.
    Ready,
    /// JSON that is made for each request.
    Rendered,
}

/// What is measured, and how often.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelsArgs {
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    server: CoreArgs,
    /// Connections at once; in each round, all these numbers have their turns.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "20,100,1000,5000,16384", value_parser = connections)]
    connections: Vec<usize>,
    /// Which models [default: all]
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    models: Vec<Model>,
    /// What they answer with.
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "ready,rendered"
    )]
    series: Vec<Series>,
    /// Numbers of cores to serve 100 connections on, each the first of --server-cores.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cores: Vec<usize>,
}

/// What a group of turns has in common.
#[derive(Clone)]
struct Setting {
    name: String,
    connections: usize,
    series: Series,
    /// As a list for `taskset`.
    cores: String,
    models: Vec<Model>,
}

/// The settings, and what all servers need.
pub(crate) struct Models {
    args: ModelsArgs,
    binary: PathBuf,
    settings: Vec<Setting>,
    /// Models that do not run here, with the reason.
    left_out: Vec<String>,
    wrk: Wrk,
    ss: PathBuf,
    seed: u64,
    /// A file of head and body, and its body.
    response: PathBuf,
    document: String,
    demo: Demo,
}

/// What is measured in a turn; both can be stopped.
enum Server {
    Contender(Contender),
    Larder(Larder),
}

impl Benchmark for Models {
    const NAME: &'static str = "models";
    type Args = ModelsArgs;

    fn run_args(args: &ModelsArgs) -> &RunArgs {
        &args.run
    }

    async fn prepare(
        args: &ModelsArgs,
        setup: Setup<'_>,
        environment: &mut RunEnvironment,
    ) -> anyhow::Result<Self> {
        let most = args.connections.iter().copied().max().unwrap_or_default() as u64;
        let files = process::open_files_max()?;
        ensure!(
            most + OTHER_FILES <= files,
            "{most} connections need {} open files, and the limit is {files}; raise it by ulimit -Hn, or give fewer --connections",
            most + OTHER_FILES
        );
        let ss = find_program("ss", "on Debian: apt-get install iproute2")?;
        let mut demo = Demo::start(setup.binary, DEPTS, 0, setup.seed).await?;
        let directory = demo.run_directory.directory().to_owned();
        let wrk = Wrk::new(&directory, &args.server.tool_cores, DEPTS)?;
        environment.version(wrk.program(), "--version").await;
        environment.version(&ss, "--version").await;
        let cores = &args.server.server_cores;
        let larder = demo.larder("larder", setup.binary, WarmTier::Memory, cores);
        let mut larder = larder.await?;
        let response = median_response(larder.config.listen, DEPTS).await?;
        larder.terminate().await?;
        let file = directory.join(RESPONSE_FILE);
        std::fs::write(&file, &response)?;
        let text = String::from_utf8(response).context("the document")?;
        let (_, document) = text.split_once("\r\n\r\n").context("no body")?;
        let mut models = Self {
            args: args.clone(),
            binary: setup.binary.to_owned(),
            settings: Vec::new(),
            left_out: Vec::new(),
            wrk,
            ss,
            seed: setup.seed,
            response: file,
            document: document.to_owned(),
            demo,
        };
        let available = models.available(environment).await?;
        models.settings = settings(args, &available)?;
        Ok(models)
    }

    fn conditions(&self) -> String {
        let CoreArgs {
            server_cores,
            tool_cores,
        } = &self.args.server;
        let mut text = format!(
            "Servers on core {server_cores}, wrk on core {tool_cores}; {DEPTS} documents in larder, random keys; a document of {} \
             bytes; backlog {}, TCP_NODELAY, {WARM_UP_SECONDS} s of warming up. Context switches are counted for a request, \
             growth of resident memory for a connection. `silent`: connections that had no answer at {:.0} % of the turn, of \
             these `backlog` were not accepted; `refused`: closed without an answer; `no answer %`: both, of all requests. The \
             original experiment (Java, 300 s) left 16.6 % of requests unanswered with a pool of 20 threads, and answered 42.5 % \
             more by a selector.",
            self.document.len(),
            model::BACKLOG,
            COUNTED_AT * 100.0
        );
        for reason in &self.left_out {
            text += &format!(" Left out: {reason}.");
        }
        text
    }

    fn groups(&self) -> Vec<Group> {
        let group = |setting: &Setting| {
            let has = |model: Model| setting.models.contains(&model);
            let pairs = PAIRS.iter().filter(|(one, other)| has(*one) && has(*other));
            let layers = LAYERS.into_iter().filter(|model| has(*model));
            Group {
                name: setting.name.clone(),
                unit: "requests/s".to_owned(),
                cases: setting.models.iter().map(|model| model.name()).collect(),
                pairs: pairs
                    .map(|(one, other)| (one.name(), other.name()))
                    .collect(),
                layers: if setting.connections == CONNECTIONS {
                    layers.map(Model::name).collect()
                } else {
                    Vec::new()
                },
            }
        };
        self.settings.iter().map(group).collect()
    }

    async fn turn(&mut self, turn: Turn) -> anyhow::Result<Measurement> {
        let setting = self.settings[turn.group].clone();
        let (model, connections) = (setting.models[turn.case], setting.connections);
        let cores = format!("{},{}", setting.cores, self.args.server.tool_cores);
        let server = self.start(model, &setting.cores, setting.series).await?;
        let mut run = WrkRun {
            target: match &server {
                Server::Contender(contender) => contender.address,
                Server::Larder(larder) => larder.config.listen,
            },
            connections: WARM_UP_CONNECTIONS,
            seconds: WARM_UP_SECONDS,
            pipeline: 1,
            seed: self.seed.wrapping_add(turn.round as u64),
            request: WrkRequest::DOCUMENTS,
        };
        self.check(model, run.target).await?;
        self.wrk.invocation(&run).run().await?;
        (run.connections, run.seconds) = (connections, turn.seconds);
        let mut measurement = self.measure(server, &run, &process::cores(&cores)?).await?;
        let may_refuse = match model {
            Model::Larder => false,
            Model::Threads20 | Model::Threads20Close => true,
            Model::Select => connections >= ANSWERED_CONNECTIONS_MIN,
            _ => connections > ANSWERED_CONNECTIONS_MIN,
        };
        if may_refuse {
            // A result, which the further columns show.
            measurement.measured.errors = 0;
        }
        Ok(measurement)
    }

    /// Each turn has checked its server.
    async fn verify(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    async fn shutdown(self) -> anyhow::Result<()> {
        self.demo.stop().await;
        Ok(())
    }
}

impl Models {
    /// The models that are asked for and run here; notes why others don't, and Java's version.
    async fn available(&mut self, environment: &mut RunEnvironment) -> anyhow::Result<Vec<Model>> {
        let asked = match self.args.models.as_slice() {
            [] => Model::value_variants().to_vec(),
            some => some.to_vec(),
        };
        let mut available = Vec::new();
        for model in asked {
            if model == Model::Uring || model.selector_provider().is_some() {
                let cores = &self.args.server.server_cores;
                match Contender::start(model, cores, &self.response, false).await {
                    Err(error) => {
                        self.left_out.push(format!("{error:#}"));
                        continue;
                    }
                    Ok(contender) => contender.stop().await?,
                };
            }
            if model.selector_provider().is_some() {
                environment.version(Path::new("java"), "-version").await;
            }
            available.push(model);
        }
        Ok(available)
    }

    async fn start(&mut self, model: Model, cores: &str, series: Series) -> anyhow::Result<Server> {
        if model == Model::Larder {
            let larder = self
                .demo
                .larder("larder", &self.binary, WarmTier::Memory, cores);
            return Ok(Server::Larder(larder.await?));
        }
        let is_rendered = series == Series::Rendered;
        let contender = Contender::start(model, cores, &self.response, is_rendered).await?;
        Ok(Server::Contender(contender))
    }

    /// Checks that a contender sends the document.
    async fn check(&self, model: Model, target: SocketAddr) -> anyhow::Result<()> {
        let (status, body) = http::get(target, "/depts/1").await?;
        let is_right = model == Model::Larder || body == self.document;
        ensure!(
            status == 200 && is_right,
            "{} answers {status} {body}",
            model.name()
        );
        Ok(())
    }

    async fn sockets(&self, port: u16) -> anyhow::Result<(u64, u64)> {
        let mut command = Command::new(&self.ss);
        command.args(["-atinHO", &format!("sport = :{port}")]);
        let output = command.kill_on_drop(true).output().await?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(answered_and_waiting(&text))
    }

    async fn measure(
        &self,
        server: Server,
        run: &WrkRun<'_>,
        cores: &BTreeSet<usize>,
    ) -> anyhow::Result<Measurement> {
        let pid = match &server {
            Server::Contender(contender) => contender.pid()?,
            Server::Larder(larder) => larder.pid()?,
        };
        let resident = process::resident_bytes(pid)?;
        let switches = process::context_switches(pid)?;
        let invocation = self.wrk.invocation(run);
        let meter = Meter::start(Some(pid), cores)?;
        let counted = async {
            sleep(Duration::from_secs(run.seconds).mul_f64(COUNTED_AT)).await;
            self.sockets(run.target.port()).await
        };
        let (output, (answered, backlog)) = tokio::try_join!(invocation.run(), counted)?;
        let cost = meter.stop()?;
        let grown = process::peak_resident_bytes(pid)?.saturating_sub(resident);
        let ended = process::ended_context_switches()?;
        let refused = match server {
            Server::Contender(contender) => contender.stop().await?,
            Server::Larder(mut larder) => larder.terminate().await.map(|()| 0)?,
        };
        let switches = (process::ended_context_switches()? - ended).saturating_sub(switches);
        let mut measured = wrk::parse(&output).with_context(|| output.clone())?;
        let silent = (run.connections as u64).saturating_sub(answered);
        measured.errors += silent;
        // Counts are far below 2^52, so the casts are exact.
        let (requests, unanswered) = (measured.requests as f64, (silent + refused) as f64);
        let mut figures = vec![
            ("switches", switches as f64 / requests),
            ("kB", grown as f64 / 1e3 / run.connections as f64),
            ("no answer %", 100.0 * unanswered / (requests + unanswered)),
        ];
        let counts = [
            ("silent", silent),
            ("backlog", backlog),
            ("refused", refused),
        ];
        for (name, count) in counts.into_iter().chain(wrk::socket_errors(&output)?) {
            if count > 0 {
                figures.push((name, count as f64));
            }
        }
        Ok(Measurement {
            cpu_micros: cost.micros_per(measured.requests),
            others: Some(cost.others),
            figures,
            command: Some(invocation.shown()),
            note: None,
            measured,
        })
    }
}

/// How many of a server's connections were answered, since it has sent bytes, and how many wait to be accepted.
///
/// Of each line, the first word is the state, the second the receive queue: of connections where the socket listens.
fn answered_and_waiting(sockets: &str) -> (u64, u64) {
    let (mut answered, mut waiting) = (0, 0);
    for line in sockets.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("LISTEN") => waiting += words.next().map_or(0, |count| count.parse().unwrap_or(0)),
            Some("ESTAB") => {
                answered += u64::from(words.any(|word| word.starts_with("bytes_sent:")))
            }
            _ => {}
        }
    }
    (answered, waiting)
}

/// The groups: for each series all numbers of connections, then the numbers of cores.
fn settings(args: &ModelsArgs, available: &[Model]) -> anyhow::Result<Vec<Setting>> {
    let server_cores = &args.server.server_cores;
    let setting = |name: String, connections: usize, series: Series, cores: &str| Setting {
        name,
        connections,
        series,
        cores: cores.to_owned(),
        models: available
            .iter()
            .copied()
            .filter(|model| series == Series::Ready || model.renders())
            .collect(),
    };
    let mut settings = Vec::new();
    for series in &args.series {
        let suffix = match series {
            Series::Ready => "",
            Series::Rendered => ", rendered",
        };
        for count in &args.connections {
            let name = format!("{count} connections{suffix}");
            settings.push(setting(name, *count, *series, server_cores));
        }
    }
    let all = process::cores(server_cores)?;
    for count in &args.cores {
        let first = all.iter().take(*count).map(usize::to_string);
        let cores: Vec<String> = first.collect();
        ensure!(
            cores.len() == (*count).max(1),
            "--cores {count}, but --server-cores are {server_cores}"
        );
        let name = format!("{CONNECTIONS} connections, {count} cores");
        settings.push(setting(name, CONNECTIONS, Series::Ready, &cores.join(",")));
    }
    settings.retain(|setting| !setting.models.is_empty());
    Ok(settings)
}
