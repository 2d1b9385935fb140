//! The `larder` command: parse, set up, run, exit code.

use std::process::ExitCode;

use larder::cli::Cli;
use larder::commands;
use larder::commands::admin::NoResponse;
use larder::commands::check::QueryErrors;
use larder::commands::output::{print_error, print_help};
use larder::commands::status::NotReady;
use larder::config::{ConfigError, Environment};
use larder::telemetry;

/// glibc's allocator keeps what sled and long documents have freed (docs/decisions/0013-allocator.md).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Wrong configuration (`EX_CONFIG` of BSD's sysexits.h).
const EXIT_CONFIG: u8 = 78;

/// A larder is not ready or does not respond (`EX_UNAVAILABLE` there).
const EXIT_UNAVAILABLE: u8 = 69;

/// Wrong usage, as clap has it, too.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = match Cli::of_process() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => error.exit(),
        Err(help) => {
            return print_help(&help).map_or_else(|error| fail(&error), |()| ExitCode::SUCCESS);
        }
    };
    let environment = Environment::of_process();
    let log_level = match telemetry::init(&cli.telemetry(&environment)) {
        Ok(log_level) => log_level,
        Err(error) => return fail(&error.into()),
    };
    let sources = cli.sources(environment);
    match commands::run(cli.command(), &sources, log_level) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    print_error(error);
    let misconfigured = error.is::<ConfigError>();
    let misused = error.is::<QueryErrors>();
    let unavailable = error.is::<NotReady>() || error.is::<NoResponse>();
    ExitCode::from(if misconfigured {
        EXIT_CONFIG
    } else if unavailable {
        EXIT_UNAVAILABLE
    } else if misused {
        EXIT_USAGE
    } else {
        1
    })
}
