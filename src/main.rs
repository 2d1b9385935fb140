//! The `larder` command: parse, set up, run, exit code.

use std::process::ExitCode;

use anyhow::Context;
use larder::cli::{Cli, Command, SeedArgs};
use larder::commands::config::ConfigCommandError;
use larder::commands::database::CommandDatabase;
use larder::commands::{config, hash_password, install, prune, purge, seed, serve};
use larder::config::{Config, ConfigError, Environment, Sources};
use larder::telemetry::{self, LogLevel};

/// Wrong configuration (`EX_CONFIG` of BSD's sysexits.h).
const EXIT_CONFIG: u8 = 78;

fn main() -> ExitCode {
    let cli = Cli::of_process();
    let environment = Environment::of_process();
    let log_level = match telemetry::init(&cli.telemetry(&environment)) {
        Ok(log_level) => log_level,
        Err(error) => return fail(&error.into()),
    };
    let sources = cli.sources(environment);
    match run(cli.command(), &sources, log_level) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn run(command: Command, sources: &Sources, log_level: LogLevel) -> anyhow::Result<()> {
    if let Command::Config(args) = &command {
        return Ok(config::run(args, sources, std::io::stdout())?);
    }
    if let Command::HashPassword = command {
        return hash_password::run(&mut std::io::stdout());
    }
    let config = Config::load(sources)?;
    // What serves has threads of its own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    runtime.block_on(async {
        match command {
            Command::Serve(_) | Command::Config(_) | Command::HashPassword => {
                serve::run(&config, Some(log_level)).await
            }
            Command::Purge(args) => purge::run(&config, &args).await,
            Command::Prune(args) => prune::run(&config, &args).await,
            Command::Seed(args) => seed_demo(&config, &args).await,
            Command::Install(args) => install::install(&config, args.print).await,
            Command::Uninstall(args) => install::uninstall(&config, args.print).await,
        }
    })
}

async fn seed_demo(config: &Config, args: &SeedArgs) -> anyhow::Result<()> {
    let database = CommandDatabase::join(config).await?;
    let outcome = seed::seed(database.url(), args.depts, args.emps_per_dept).await;
    database.close().await;
    outcome?;
    Ok(())
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("larder: {error:#}");
    let misconfigured = error.is::<ConfigError>()
        || matches!(error.downcast_ref(), Some(ConfigCommandError::Config(_)));
    ExitCode::from(if misconfigured { EXIT_CONFIG } else { 1 })
}
