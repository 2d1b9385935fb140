//! `loadtest models`: what serves a small answer cheapest, from a pool of threads to larder.
//!
//! Each turn starts one server, on a port of its own, and stops it. All send the bytes that larder sends for the
//! document of the median length, but for larder, which sends the document that is asked for. How many connections were
//! answered is counted from outside, by `ss`, so that no model pays for it.

mod contender;
mod model;
mod request;
mod selectors;
mod tasks;
#[cfg(test)]
mod tests;
mod threads;
mod uring;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use nix::unistd::Pid;
use tokio::process::Command;
use tokio::time::sleep;

use crate::bench::benchmark::{Benchmark, CoreArgs, RunArgs, Setup, Turn, connections};
use crate::harness::demo::documents::median_response;
use crate::harness::demo::{Demo, WarmTier};
use crate::harness::process::{self, Meter, find_program};
use crate::harness::tools::wrk::{self, Wrk, WrkRequest, WrkRun};
pub(crate) use crate::labs::models::contender::Contender;
pub(crate) use crate::labs::models::model::{Model, run};
use crate::report::benchmark_report::{Group, Measurement};
use crate::report::results::RunEnvironment;

/// Documents, more than the caches of a core hold.
const DEPTS: u32 = 10_000;
const WARM_UP_SECONDS: u64 = 1;
/// wrk sends nothing until all connections are open, which may take longer than larder waits for a request.
const LARDER_SETTING: [&str; 2] = ["LARDER_LIMITS__HEADER_TIMEOUT", "1m"];
/// On how many of the server's cores 100 connections are served, too.
const BY_CORES: [usize; 4] = [1, 2, 4, 8];
/// When sockets are counted, in parts of the turn.
const COUNTED_AT: f64 = 0.9;
/// How long a request has waited whose connection is silent. Turns of a second, as in CI, have none: then a model may still
/// be accepting connections.
const SILENT_AFTER: Duration = Duration::from_secs(2);

/// Each model with the one whose figures its own are divided by.
const PAIRS: [(Model, Model); 3] = [
    (Model::Epoll, Model::Threads20),
    (Model::NioEpoll, Model::Threads20),
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
    #[arg(long, value_delimiter = ',', default_values_t = [20, 100, 1000, 5000, 16384], value_parser = connections)]
    connections: Vec<usize>,
    /// Which models.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Model::value_variants())]
    models: Vec<Model>,
    /// What they answer with.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Series::value_variants())]
    series: Vec<Series>,
}

/// What the turns of a group have in common.
struct Setting {
    name: String,
    series: Series,
    connections: usize,
    /// As a list for `taskset`.
    cores: String,
}

/// The settings, and what all servers need.
pub(crate) struct Models {
    args: ModelsArgs,
    binary: PathBuf,
    settings: Vec<Setting>,
    /// Models that run here.
    available: Vec<Model>,
    /// Why others do not.
    left_out: String,
    wrk: Wrk,
    ss: PathBuf,
    /// A file of head and body.
    response: PathBuf,
    demo: Demo,
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
        let connections = args.connections.iter().copied().max().unwrap_or_default();
        // Some are not those of connections.
        let (needed, files) = (connections as u64 + 200, process::open_files_max()?);
        ensure!(
            needed <= files,
            "{connections} connections need {needed} open files, and the limit is {files}; raise it by ulimit -Hn, or \
             give fewer --connections"
        );
        ensure!(
            is_distinct(&args.connections)
                && is_distinct(&args.models)
                && is_distinct(&args.series),
            "--connections, --models and --series have each value once"
        );
        let ss = find_program("ss", "on Debian: apt-get install iproute2")?;
        let mut demo = Demo::start(setup.binary, DEPTS, 0, setup.seed).await?;
        let directory = demo.run_directory.directory().to_owned();
        let wrk = Wrk::new(&directory, &args.server.tool_cores, DEPTS)?;
        let cores = &args.server.server_cores;
        let larder = demo.larder("larder", setup.binary, WarmTier::Memory, cores);
        let mut larder = larder.await?;
        let median = median_response(larder.config.listen, DEPTS).await?;
        let response = directory.join("response");
        std::fs::write(&response, median)?;
        larder.terminate().await?;
        let (mut available, mut left_out) = (Vec::new(), String::new());
        for model in args.models.iter().copied() {
            let is_java = model.java_selector().is_some();
            // Not every kernel has io_uring, and not every machine Java.
            if is_java || model == Model::Uring {
                let started = Contender::start(model, cores, &response, false).await;
                if let Err(reason) = started {
                    left_out += &format!(" Left out: {reason:#}.");
                    continue;
                }
            }
            if is_java {
                environment.version(Path::new("java"), "-version").await;
            }
            available.push(model);
        }
        environment.version(wrk.program(), "--version").await;
        environment.version(&ss, "--version").await;
        Ok(Self {
            args: args.clone(),
            binary: setup.binary.to_owned(),
            settings: settings(cores, &args.connections, &args.series)?,
            available,
            left_out,
            wrk,
            ss,
            response,
            demo,
        })
    }

    fn conditions(&self) -> String {
        format!(
            "Servers on core {}, wrk on core {}; answers of {} bytes; {DEPTS} documents in larder, random keys. \
             loadtest/README.md explains the further columns. The original experiment (Java, 300 s) left 16.6 % of \
             requests unanswered with a pool of 20 threads, and answered 42.5 % more by a selector.{}",
            self.args.server.server_cores,
            self.args.server.tool_cores,
            std::fs::metadata(&self.response).map_or(0, |file| file.len()),
            self.left_out
        )
    }

    fn groups(&self) -> Vec<Group> {
        let group = |setting: &Setting| {
            let models = self.models(setting.series);
            let has = |model: &Model| models.contains(model);
            let pairs = PAIRS.iter().filter(|(one, other)| has(one) && has(other));
            let pairs = pairs.map(|(one, other)| (one.name(), other.name()));
            let layers = LAYERS.iter().filter(|model| has(model));
            Group {
                name: setting.name.clone(),
                unit: "requests/s".to_owned(),
                cases: models.iter().map(|model| model.name()).collect(),
                pairs: pairs.collect(),
                layers: layers.map(|model| model.name()).collect(),
            }
        };
        self.settings.iter().map(group).collect()
    }

    async fn turn(&mut self, turn: Turn) -> anyhow::Result<Measurement> {
        let setting = &self.settings[turn.group];
        let (series, connections) = (setting.series, setting.connections);
        let model = self.models(series)[turn.case];
        let run = |target| WrkRun {
            target,
            connections,
            // wrk opens all connections before it sends a request, on a slow machine 1,000 a second.
            seconds: turn.seconds + connections as u64 / 1_000,
            pipeline: 1,
            seed: turn.round as u64,
            request: WrkRequest::DOCUMENTS,
        };
        let (binary, cores) = (&self.binary, &setting.cores);
        let mut measurement = if model == Model::Larder {
            let mut config = self.demo.config("larder", binary, Some(cores))?;
            let setting = LARDER_SETTING.map(str::to_owned);
            config.environment.push(setting.into());
            let larder = self.demo.start_filled("larder", config, WarmTier::Memory);
            let mut larder = larder.await?;
            let (run, pid) = (run(larder.config.listen), larder.pid()?);
            let stop = async { larder.terminate().await.map(|()| 0) };
            self.measure(model, run, pid, stop).await?
        } else {
            let is_rendered = series == Series::Rendered;
            let contender = Contender::start(model, cores, &self.response, is_rendered).await?;
            let (run, pid) = (run(contender.address), contender.pid);
            self.measure(model, run, pid, contender.stop()).await?
        };
        // With more connections, those without an answer are a result.
        let answered_min = match model {
            Model::Larder => usize::MAX,
            Model::Threads20 | Model::Threads20Close => 0,
            _ => 1_000,
        };
        measurement.is_excused = connections > answered_min;
        Ok(measurement)
    }

    /// wrk has checked the status of each answer, and the tests of this module the answers of all models.
    async fn verify(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    async fn shutdown(self) -> anyhow::Result<()> {
        self.demo.stop().await;
        Ok(())
    }
}

impl Models {
    /// The cases of each group of a series.
    fn models(&self, series: Series) -> Vec<Model> {
        let mut models = self.available.clone();
        models.retain(|model| series == Series::Ready || model.renders());
        models
    }

    /// Measures `model`, whose process is `pid`, by `run`; `stop` returns how many connections it has closed without an
    /// answer.
    async fn measure(
        &self,
        model: Model,
        run: WrkRun<'_>,
        pid: Pid,
        stop: impl Future<Output = anyhow::Result<u64>>,
    ) -> anyhow::Result<Measurement> {
        let warm_up = WrkRun {
            connections: 20,
            seconds: WARM_UP_SECONDS,
            ..run
        };
        // The switches of threads that end before the turn could not be told from its own.
        if !model.ends_threads() {
            self.wrk.invocation(&warm_up).run().await?;
        }
        let cores = process::cores(&self.args.server.all())?;
        process::forget_peak_resident_bytes(pid)?;
        let resident = process::resident_bytes(pid)?;
        let switches = process::context_switches(pid)?;
        let invocation = self.wrk.invocation(&run);
        let meter = Meter::start(Some(pid), &cores)?;
        let turn = Duration::from_secs(run.seconds);
        let mut ss = Command::new(&self.ss);
        ss.args(["-atinHO", &format!("sport = :{}", run.target.port())]);
        let counted = async {
            sleep(turn.mul_f64(COUNTED_AT)).await;
            Ok(ss.kill_on_drop(true).output().await?)
        };
        let (output, counted) = tokio::try_join!(invocation.run(), counted)?;
        let (cost, peak) = (meter.stop(), process::peak_resident_bytes(pid));
        let ended = process::ended_context_switches()?;
        // A server that has ended is told by this error, and with its reason.
        let refused = stop.await?;
        let (cost, grown) = (cost?, peak?.saturating_sub(resident));
        let switches = (process::ended_context_switches()? - ended).saturating_sub(switches);
        let listed = String::from_utf8_lossy(&counted.stdout);
        let has_listener = counted.status.success() && listed.contains("LISTEN");
        ensure!(
            has_listener,
            "ss: {}",
            String::from_utf8_lossy(&counted.stderr)
        );
        let sockets = Sockets::of(&listed);
        let mut measured = wrk::parse(&output).with_context(|| output.clone())?;
        let unasked = (run.connections as u64).saturating_sub(sockets.asked);
        measured.errors += sockets.silent + unasked;
        // Counts are far below 2^52, so the casts are exact.
        let (requests, connections) = (measured.requests as f64, run.connections as f64);
        let unanswered = (sockets.silent + refused) as f64;
        let figures = [
            ("switches", switches as f64 / requests),
            ("kB", grown as f64 / 1e3 / connections),
            ("no answer %", 100.0 * unanswered / (requests + unanswered)),
            ("silent", sockets.silent as f64),
            ("backlog", sockets.backlog as f64),
            ("unasked", unasked as f64),
            ("refused", refused as f64),
        ];
        let errors = wrk::socket_errors(&output)?.map(|(name, count)| (name, count as f64));
        let figures = figures.into_iter().chain(errors);
        let figures = figures.filter(|(_, figure)| *figure > 0.0 && figure.is_finite());
        let figures = figures.map(|(name, figure)| (name.to_owned(), figure));
        Ok(Measurement {
            cpu_micros: cost.micros_per(measured.requests),
            others: Some(cost.others),
            figures: figures.collect(),
            command: Some(invocation.shown()),
            measured,
            ..Measurement::default()
        })
    }
}

fn is_distinct<T: PartialEq>(list: &[T]) -> bool {
    let mut places = list.iter().enumerate();
    places.all(|(place, value)| !list[..place].contains(value))
}

/// Returns the settings of a run: each number of connections on all cores of the server, then 100 on some of them.
fn settings(cores: &str, connections: &[usize], series: &[Series]) -> anyhow::Result<Vec<Setting>> {
    let cores = process::cores(cores)?;
    let cores: Vec<String> = cores.iter().map(usize::to_string).collect();
    let most = cores.len();
    let all = connections.iter();
    let all = all.map(|count| (format!("{count} connections"), *count, most));
    let some = BY_CORES.iter().filter(|count| most > 1 && **count <= most);
    let name = |count| format!("100 connections, {count} of {most} cores");
    let some = some.map(|count| (name(count), 100, *count));
    let groups = all.chain(some);
    let mut settings = Vec::new();
    for series in series.iter().copied() {
        let kind = ["", "rendered, "][usize::from(series == Series::Rendered)];
        settings.extend(groups.clone().map(|(name, connections, count)| Setting {
            name: format!("{kind}{name}"),
            series,
            connections,
            cores: cores[..count].join(","),
        }));
    }
    Ok(settings)
}

/// Connections of a server.
#[derive(Default)]
struct Sockets {
    /// Have sent a request.
    asked: u64,
    /// Have waited too long for the answer to their first one.
    silent: u64,
    /// Are not accepted yet.
    backlog: u64,
}

impl Sockets {
    /// Reads the lines of `ss`: state, receive queue, which counts connections where the socket listens, and words such
    /// as `lastrcv:40`, in milliseconds.
    fn of(lines: &str) -> Self {
        let mut sockets = Self::default();
        for line in lines.lines() {
            let number = |name: &str| {
                let (_, rest) = line.split_once(name)?;
                rest.split_whitespace().next()?.parse::<u64>().ok()
            };
            sockets.backlog += number("LISTEN").unwrap_or(0);
            if line.contains("ESTAB") && number("bytes_received:").is_some() {
                let waited = Duration::from_millis(number("lastrcv:").unwrap_or(0));
                let is_silent = number("bytes_sent:").is_none() && waited >= SILENT_AFTER;
                sockets.asked += 1;
                sockets.silent += u64::from(is_silent);
            }
        }
        sockets
    }
}
