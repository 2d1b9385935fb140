//! `loadtest scope`: does anybody see, or learn of, documents that are not its own?
//!
//! Two parts, each of which can be left out: drawn schemas and requests that are compared with what SQL says
//! (`differential`), and many requests while owners change and PostgreSQL comes and goes (`leaks`). That the time of an answer
//! tells nothing is shown by the end-to-end tests: `tests/scope/reads/work.rs`.

mod credentials;
mod differential;
mod kinds;
mod leaks;
mod text;

use std::path::PathBuf;

use clap::Args;

/// What is drawn.
#[derive(Args, Clone, Debug)]
pub(crate) struct ScopeArgs {
    /// Schemas that are compared with what SQL says; 0 leaves that out.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) schemas: u32,
    /// Requests while owners change and PostgreSQL comes and goes; 0 leaves that out.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) requests: u64,
}

/// Whether nothing was seen, and everything was answered as SQL says.
pub(crate) async fn run(args: &ScopeArgs, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    println!("seed {seed}");
    let mut held = true;
    if args.schemas > 0 {
        held &= differential::run(args.schemas, &binary, seed).await?;
    }
    if args.requests > 0 {
        held &= leaks::run(args.requests, &binary, seed).await?;
    }
    Ok(held)
}
