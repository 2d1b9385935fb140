//! `loadtest compare`: larder and others by turns in one run, on one core each, and their ratios.

mod contender;
mod contest;
mod outcome;

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use indicatif::{ProgressBar, ProgressStyle};

use crate::bench::compare::contest::Contest;
use crate::bench::compare::outcome::Outcome;
use crate::bench::other_servers::OtherServer;
use crate::bench::{TrialArgs, connections};
use crate::harness::demo::WarmTier;
use crate::report::results::{Folder, RunEnvironment};

/// Of each contender, before anything is noted.
const WARM_UP_SECONDS: u64 = 1;

/// Who is compared, and how often.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pub(crate) trial: TrialArgs,
    /// The one tier in use, a larder for each.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "memory"
    )]
    pub(crate) tiers: Vec<WarmTier>,
    /// Connections at once, one measurement after the other.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "128", value_parser = connections)]
    pub(crate) connections: Vec<usize>,
    /// Requests that wrk sends at once on a connection.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000))]
    pub(crate) pipeline: usize,
    /// Turns of each.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) rounds: usize,
    /// Of each turn; some thousand connections take seconds of it until all of them are open.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,
    /// Ask the first larder also by If-None-Match.
    #[arg(long)]
    pub(crate) not_modified: bool,
    /// Another binary of larder, compared with this one tier by tier.
    #[arg(long, value_name = "PATH")]
    pub(crate) against: Option<PathBuf>,
    /// Other servers, where they are installed: nginx with one document ready-made, nginx with a file for each
    /// document, Varnish in front of larder.
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    pub(crate) with: Vec<OtherServer>,
}

/// Whether all requests were answered well.
///
/// When `stop` is, what has been measured until then is told.
pub(crate) async fn run(
    args: &CompareArgs,
    binary: PathBuf,
    seed: u64,
    stop: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<bool> {
    println!("seed {seed}; starting PostgreSQL and all that is compared");
    let mut outcome = Outcome::new(args, RunEnvironment::now().await);
    let mut contest = Contest::set(args, binary, seed, &mut outcome.provenance).await?;
    outcome.pairs = contest.pairs();
    let measured = tokio::select! {
        measured = rounds(args, &mut contest, &mut outcome, seed) => measured,
        stopped = stop => stopped,
    };
    contest.shutdown().await?;
    if outcome.is_empty() {
        return measured.map(|()| false);
    }
    let folder = Folder::create(
        &args.trial.results,
        args.trial.name.as_deref().unwrap_or("compare"),
    )?;
    folder.write("compare.json", &serde_json::to_string_pretty(&outcome)?)?;
    folder.write("README.md", &outcome.readme())?;
    println!("{}", outcome.table());
    println!("kept in {}", folder.path().display());
    measured?;
    Ok(outcome.is_good())
}

async fn rounds(
    args: &CompareArgs,
    contest: &mut Contest,
    outcome: &mut Outcome,
    seed: u64,
) -> anyhow::Result<()> {
    let contenders = contest.contenders.len();
    let turns = args.connections.len() * args.rounds * contenders;
    let progress = ProgressBar::new(turns as u64).with_style(ProgressStyle::with_template(
        "{elapsed_precise} [{bar:30}] {pos}/{len} {msg}, {eta} left",
    )?);
    progress.enable_steady_tick(Duration::from_secs(1));
    for number in 0..contenders {
        progress.set_message(format!("warming {}", contest.contenders[number].name));
        let connections = args.connections.first().copied().unwrap_or(1);
        contest
            .measure(number, connections, WARM_UP_SECONDS, seed)
            .await?;
    }
    progress.reset();
    for connections in &args.connections {
        for round in 0..args.rounds {
            for turn in 0..contenders {
                // Everybody is first once, so that what comes before favours nobody.
                let number = (turn + round) % contenders;
                progress.set_message(format!(
                    "{} with {connections}",
                    contest.contenders[number].name
                ));
                let seed = seed.wrapping_add(round as u64 + 1);
                let mut sample = contest
                    .measure(number, *connections, args.seconds, seed)
                    .await?;
                ensure!(
                    sample.measured.requests > 0,
                    "{} answered nothing in {} s; opening {connections} connections may take longer",
                    contest.contenders[number].name,
                    args.seconds
                );
                sample.round = round;
                outcome.note(sample, &contest.commands);
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    contest.check().await
}
