//! What the subcommands do, one module each.
pub mod admin;
pub mod check;
pub mod config;
pub mod database;
pub mod dispatch;
pub mod explain;
pub mod hash_password;
pub mod init;
pub mod install;
pub mod output;
pub mod prune;
pub mod purge;
pub mod seed;
pub mod serve;
mod shutdown;
pub mod status;

use anyhow::Context;
use tokio::runtime::Builder;

use crate::cli::Command;
use crate::config::{Config, Sources};
use crate::telemetry::LogLevel;

/// Runs `command` to its end.
///
/// The runtime is started here and not by the binary: code of a future is generated where it is polled, and would be
/// generated a second time there.
///
/// # Errors
/// See the command's module; [`crate::config::ConfigError`] if the configuration is wrong.
pub fn run(command: Command, sources: &Sources, log_level: LogLevel) -> anyhow::Result<()> {
    if let Command::Config(args) = &command {
        return config::run(args, sources, &mut std::io::stdout());
    }
    if let Command::HashPassword = command {
        return hash_password::run(&mut std::io::stdout());
    }
    let config = match &command {
        Command::Init(_) => Config::load_without_file(sources)?,
        Command::Status(_) | Command::Explain(_) | Command::Purge(_) => {
            Config::load_for_admin(sources)?
        }
        Command::Serve(_) | Command::Config(_) | Command::HashPassword => Config::load(sources)?,
        Command::Check(_)
        | Command::Prune(_)
        | Command::Seed(_)
        | Command::Install(_)
        | Command::Dispatch(_)
        | Command::Uninstall(_) => Config::load_for_database(sources)?,
    };
    // `serve` starts further threads for requests.
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let outcome = runtime.block_on(async {
        match command {
            Command::Serve(_) | Command::Config(_) | Command::HashPassword => {
                serve::run(&config, Some(log_level)).await
            }
            Command::Init(args) => init::run(&config, &sources.path().0, &args).await,
            Command::Check(args) => check::run(&config, &args).await,
            Command::Purge(args) => purge::run(&config, &args).await,
            Command::Status(args) => status::run(&config, &args).await,
            Command::Explain(args) => explain::run(&config, &args, &mut std::io::stdout()).await,
            Command::Prune(args) => prune::run(&config, &args).await,
            Command::Seed(args) => seed::run(&config, &args).await,
            Command::Install(args) => install::install(&config, args.print).await,
            Command::Uninstall(args) => install::uninstall(&config, &args).await,
            Command::Dispatch(args) => dispatch::run(&config, &args, log_level).await,
        }
    });
    // A thread may read a file whose file system has stalled.
    runtime.shutdown_background();
    outcome
}
