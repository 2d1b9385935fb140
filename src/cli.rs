//! The command line: commands, flags, and what they set in the configuration.
//!
//! A malformed flag ends in clap's usage error, exit code 2; [`config`](crate::config) checks
//! whether the values fit together, exit code 78.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use uuid::Uuid;

use crate::check::Ignored;
use crate::check::report::Format;
use crate::config::{Environment, Sources};
use crate::resource::definition::Tiers;
use crate::source::plans::Hypothetical;
use crate::telemetry::{self, LogFormat, LogLevelError, TelemetryConfig};

const AFTER_HELP: &str = "\
Examples:
  larder                                  serve the demo from a private PostgreSQL
  larder config --example > larder.toml   write an example configuration
  DATABASE_URL=postgres://app@db/app larder init   write larder.toml for the tables of a database
  DATABASE_URL=postgres://app@db/app larder --config shop.toml
  larder check --format sql               print the SQL that mends what is slow or could go stale
  larder install --print                  show the SQL and the grants that larder's role needs
  larder serve --tiers memory             measure one tier alone

Every setting can also be set in the environment: LARDER_LISTEN, LARDER_MEMORY__MAX_BYTES, ...
The file is --config, else LARDER_CONFIG, else larder.toml if there is one, else the built-in demo.

Exit codes:
  0   success
  1   failure; check: it has findings, or not all could be checked
  2   wrong usage
  69  status, explain, purge: the larder is not ready, or its admin address does not respond
  78  wrong configuration; the message names file, line and key";

/// Serves rows of PostgreSQL as JSON documents, caches them in memory and on disk, and invalidates them at each change.
#[derive(Clone, Debug, Parser)]
#[command(name = "larder", version, after_help = AFTER_HELP, max_term_width = 100)]
pub struct Cli {
    /// Flags that every command takes, before or after its name.
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(flatten)]
    serve: ServeArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

/// Flags that every command takes.
#[derive(Args, Clone, Debug)]
pub struct GlobalArgs {
    /// The configuration file [default: larder.toml if there is one]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The public address, such as 127.0.0.1:8080
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// The admin address, such as 127.0.0.1:8081
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub admin: Option<SocketAddr>,
    /// Directory of the private PostgreSQL and the disk tier
    #[arg(long, global = true, value_name = "DIRECTORY")]
    pub state_dir: Option<String>,
    /// What to log: a level, or directives such as larder=debug,info [default: RUST_LOG, else info]
    #[arg(long, global = true, value_name = "LEVEL", value_parser = log_filter)]
    pub log_level: Option<String>,
    /// Format of log lines: human or json
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Human, hide_possible_values = true, value_name = "FORMAT")]
    pub log_format: LogFormat,
}

/// The command.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Serve the resources; this is the default
    Serve(ServeArgs),
    /// Write a configuration file for the tables of the database; changes nothing in it
    Init(InitArgs),
    /// Insert rows into the demo tables; missing tables are created
    Seed(SeedArgs),
    /// Create schema larder and the triggers on the configured tables, one transaction for each table
    Install(InstallArgs),
    /// Remove the triggers and schema larder, one transaction for each table
    Uninstall(UninstallArgs),
    /// Send the due rows of the configured dispatches to their sinks, until SIGTERM
    Dispatch(DispatchArgs),
    /// Name what makes documents slow or could make them stale, with the SQL that mends it; changes nothing
    Check(CheckArgs),
    /// Print an example file, or the configuration in force, or check it
    Config(ConfigArgs),
    /// Remove documents from the tiers of a running larder, through its admin address
    Purge(PurgeArgs),
    /// Print how a running larder is, through its admin address
    Status(StatusArgs),
    /// Print what the tiers of a running larder know of one key, through its admin address
    Explain(ExplainArgs),
    /// Delete the rows of the change log that no larder needs, and print which larders need the rest
    Prune(PruneArgs),
    /// Read a password from the terminal or stdin, and print its hash for [[auth.user]]
    HashPassword,
}

/// Flags of `serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Use only these tiers, to measure each alone: memory,disk or memory or disk or none
    #[arg(long, value_name = "TIERS", value_parser = tiers)]
    pub tiers: Option<Tiers>,
}

/// Flags of `init`.
#[derive(Args, Clone, Debug)]
pub struct InitArgs {
    /// Only tables of this schema become resources; can be repeated
    #[arg(long, value_name = "NAME")]
    pub schema: Vec<String>,
    /// Only this table becomes a resource, as NAME or SCHEMA.NAME; can be repeated
    #[arg(long, value_name = "NAME")]
    pub table: Vec<String>,
    /// Levels of children
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=8))]
    pub depth: u8,
    /// Documents may be written, too
    #[arg(long)]
    pub writable: bool,
    /// The file to write (-: stdout) [default: that of --config, else larder.toml]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace the file if there is one
    #[arg(long)]
    pub force: bool,
    /// Ask nothing and take all tables
    #[arg(long)]
    pub yes: bool,
}

/// Flags of `seed`.
#[derive(Args, Clone, Debug)]
pub struct SeedArgs {
    /// Rows of table dept
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub depts: u32,
    /// Rows of table emp for each row of dept
    #[arg(long, value_name = "M", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub emps_per_dept: u32,
    /// Instead of these, create table subscribers for `dispatch`, with N rows that are due, and print its `[[dispatch]]`
    #[arg(long, value_name = "N", conflicts_with_all = ["depts", "emps_per_dept"], value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub subscribers: Option<u32>,
    /// Its index: due suits where few rows are due at a time, slot where most are
    #[arg(long, value_enum, requires = "subscribers", default_value_t = SubscribersLayout::Due)]
    pub layout: SubscribersLayout,
}

/// The index of table `subscribers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SubscribersLayout {
    /// With the due moment.
    Due,
    /// Without it, and with room for updates in each page.
    Slot,
}

/// Flags of `install`.
#[derive(Args, Clone, Debug)]
pub struct InstallArgs {
    /// Print the SQL and change nothing
    #[arg(long)]
    pub print: bool,
}

/// Flags of `uninstall`.
#[derive(Args, Clone, Debug)]
pub struct UninstallArgs {
    /// Print the SQL and change nothing
    #[arg(long)]
    pub print: bool,
    /// Remove the dead letters of larder dispatch, too
    #[arg(long)]
    pub dead_letters: bool,
}

/// Arguments of `dispatch`.
#[derive(Args, Clone, Debug)]
pub struct DispatchArgs {
    /// The names of the dispatches; without one, all
    pub name: Vec<String>,
    /// End when no row is due; exit with 1 if the sink takes nothing or there are new dead letters
    #[arg(long)]
    pub once: bool,
    /// Print the dead letters of a dispatch, and send nothing
    #[arg(long, value_name = "NAME", conflicts_with_all = ["name", "once"])]
    pub dead_letters: Option<String>,
    /// Send the dead letters of a dispatch again: those of the keys, or all
    #[arg(long, num_args = 1.., allow_negative_numbers = true, value_names = ["NAME", "KEY"], conflicts_with_all = ["name", "once", "dead_letters"])]
    pub replay: Vec<String>,
    /// Delete the dead letters of a dispatch: those of the keys, or all
    #[arg(long, num_args = 1.., allow_negative_numbers = true, value_names = ["NAME", "KEY"], conflicts_with_all = ["name", "once", "dead_letters", "replay"])]
    pub discard: Vec<String>,
}

/// Flags of `check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// How the report is written
    #[arg(long, value_enum, default_value_t = Format::Human, value_name = "FORMAT")]
    pub format: Format,
    /// Exit with 1 if there is a finding of this severity or a worse one
    #[arg(long, value_enum, default_value_t = FailOn::Warning, value_name = "SEVERITY")]
    pub fail_on: FailOn,
    /// Leave out the findings of a rule, on one object or on all; can be repeated
    #[arg(long, value_name = "ID[:OBJECT]", value_parser = Ignored::parse)]
    pub ignore: Vec<Ignored>,
    /// Also check the statements of a file, or of stdin (-); they may have $1, $2, ..., and are never run
    #[arg(long, value_name = "FILE")]
    pub queries: Vec<PathBuf>,
    /// Also check the N statements of pg_stat_statements that took the most time
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "100", value_parser = clap::value_parser!(u32).range(1..=5000))]
    pub statements: Option<u32>,
    /// Also check the tables whose schema.name matches, with * for any characters; can be repeated
    #[arg(long, value_name = "PATTERN")]
    pub table: Vec<String>,
    /// Whether the extension hypopg tries what is advised for users' statements
    #[arg(long, value_enum, default_value_t = Hypothetical::Auto, value_name = "WHEN")]
    pub hypothetical: Hypothetical,
    /// Print the rules and check nothing
    #[arg(long)]
    pub list: bool,
}

/// The least severity of findings for which `check` fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    /// Something is refused, or could go stale
    Error,
    /// Something is slow, or worse
    Warning,
    /// Something may become slow, or worse
    Info,
    /// None
    Never,
}

/// Arguments of `purge`.
#[derive(Args, Clone, Debug)]
pub struct PurgeArgs {
    /// The resource's name
    pub resource: String,
    /// The key of one document as in its path, such as 42 or 7,NO; without it all documents are removed
    #[arg(allow_negative_numbers = true)]
    pub key: Option<String>,
}

/// Flags of `status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Print it each second, until Ctrl-C
    #[arg(long)]
    pub watch: bool,
    /// A table, or the JSON of /status
    #[arg(long, value_enum, default_value_t = StatusFormat::Human, value_name = "FORMAT")]
    pub format: StatusFormat,
}

/// How `status` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StatusFormat {
    /// For people
    Human,
    /// As /status answers
    Json,
}

/// Arguments of `explain`.
#[derive(Args, Clone, Debug)]
pub struct ExplainArgs {
    /// The resource's name
    pub resource: String,
    /// The key as in the document's path, such as 42 or 7,NO
    #[arg(allow_negative_numbers = true)]
    pub key: String,
}

/// Flags of `prune`.
#[derive(Args, Clone, Debug)]
pub struct PruneArgs {
    /// Forget a larder that will not run again, by the name that `prune` prints: nothing is kept for it
    #[arg(long, value_name = "NODE")]
    pub forget: Option<Uuid>,
}

/// Flags of `config`: exactly one of them.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct ConfigArgs {
    /// Print an example file with comments
    #[arg(long)]
    pub example: bool,
    /// Print the configuration in force as TOML, secrets masked
    #[arg(long)]
    pub dump: bool,
    /// Check file, environment and flags, and print every mistake; the database is not asked
    #[arg(long)]
    pub check: bool,
}

impl Cli {
    /// Reads the process's arguments.
    ///
    /// # Errors
    /// A usage error; the text of `--help` or `--version`.
    pub fn of_process() -> Result<Self, clap::Error> {
        Self::parse_from_checked(std::env::args_os())
    }

    /// The command; `serve` where none is given.
    pub fn command(&self) -> Command {
        match &self.command {
            None => Command::Serve(self.serve.clone()),
            Some(Command::Serve(args)) => Command::Serve(ServeArgs {
                tiers: args.tiers.or(self.serve.tiers),
            }),
            Some(other) => other.clone(),
        }
    }

    /// The sources of the configuration, with these flags as overrides.
    pub fn sources(&self, environment: Environment) -> Sources {
        let flags = [
            (
                "listen",
                self.global.listen.map(|address| address.to_string()),
            ),
            (
                match self.command() {
                    Command::Dispatch(_) => "dispatch_admin",
                    _ => "admin",
                },
                self.global.admin.map(|address| address.to_string()),
            ),
            ("state_dir", self.global.state_dir.clone()),
        ];
        let tiers = match self.command() {
            Command::Serve(args) => args.tiers,
            _ => None,
        };
        Sources {
            file: self.global.config.clone(),
            directory: PathBuf::new(),
            environment,
            overrides: flags
                .into_iter()
                .filter_map(|(path, text)| Some((path.to_owned(), text?)))
                .collect(),
            tiers,
        }
    }

    /// What to log, with colours where stderr is a terminal and `NO_COLOR` is not set.
    pub fn telemetry(&self, environment: &Environment) -> TelemetryConfig {
        let rust_log = environment.get("RUST_LOG");
        TelemetryConfig {
            level: self.global.log_level.clone(),
            rust_log: rust_log.map(|text| text.to_string_lossy().into_owned()),
            format: self.global.log_format,
            ansi: std::io::stderr().is_terminal() && environment.get("NO_COLOR").is_none(),
        }
    }

    /// Parses, and refuses `--tiers` before a command that does not serve.
    fn parse_from_checked<T: Into<std::ffi::OsString> + Clone>(
        args: impl IntoIterator<Item = T>,
    ) -> Result<Self, clap::Error> {
        let cli = Self::try_parse_from(args)?;
        let serves = matches!(cli.command, None | Some(Command::Serve(_)));
        if cli.serve.tiers.is_some() && !serves {
            let message = "--tiers is a flag of serve";
            return Err(
                <Self as CommandFactory>::command().error(ErrorKind::ArgumentConflict, message)
            );
        }
        Ok(cli)
    }
}

/// The value of `--tiers` is invalid.
#[derive(Debug, thiserror::Error)]
#[error("expected memory,disk or memory or disk or none")]
struct TiersError;

fn tiers(text: &str) -> Result<Tiers, TiersError> {
    let mut tiers = Tiers {
        memory: false,
        disk: false,
    };
    if text == "none" {
        return Ok(tiers);
    }
    for tier in text.split(',') {
        match tier.trim() {
            "memory" => tiers.memory = true,
            "disk" => tiers.disk = true,
            _ => return Err(TiersError),
        }
    }
    Ok(tiers)
}

fn log_filter(text: &str) -> Result<String, LogLevelError> {
    telemetry::check_filter(text)?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
        Cli::parse_from_checked([&["larder"], args].concat())
    }

    #[test]
    fn the_definition_is_sound() {
        <Cli as CommandFactory>::command().debug_assert();
    }

    #[test]
    fn global_flags_stand_before_and_after_the_command() {
        for args in [
            &["--listen", "127.0.0.1:1", "--config", "a.toml", "serve"][..],
            &["serve", "--listen", "127.0.0.1:1", "--config", "a.toml"],
            &["--config", "a.toml", "serve", "--listen", "127.0.0.1:1"],
            &["--config", "a.toml", "--listen", "127.0.0.1:1"],
            &[
                "--config",
                "a.toml",
                "config",
                "--dump",
                "--listen",
                "127.0.0.1:1",
            ],
        ] {
            let sources = parse(args)
                .unwrap()
                .sources(Environment::of_pairs::<&str, &str>([]));
            assert_eq!(sources.file, Some(PathBuf::from("a.toml")), "{args:?}");
            assert_eq!(
                sources.overrides,
                [("listen".to_owned(), "127.0.0.1:1".to_owned())],
                "{args:?}"
            );
        }
    }

    #[test]
    fn serve_is_the_default_and_takes_tiers() {
        for args in [
            &["--tiers", "memory"][..],
            &["serve", "--tiers", "memory"],
            &["--tiers", "memory", "serve"],
        ] {
            let sources = parse(args)
                .unwrap()
                .sources(Environment::of_pairs::<&str, &str>([]));
            assert_eq!(
                sources.tiers,
                Some(Tiers {
                    memory: true,
                    disk: false
                }),
                "{args:?}"
            );
        }
        let read = |text| tiers(text).ok();
        assert_eq!(
            read("memory,disk"),
            Some(Tiers {
                memory: true,
                disk: true
            })
        );
        assert_eq!(
            read("none"),
            Some(Tiers {
                memory: false,
                disk: false
            })
        );
        assert_eq!(read("tape"), None);
        assert_eq!(read(""), None);
    }

    #[test]
    fn wrong_usage_exits_2() {
        for args in [
            &["--lisen", "x"][..],
            &["--listen", "nowhere"],
            &["--log-level", "loud"],
            &["--log-format", "xml"],
            &["--tiers", "tape"],
            &["--tiers", "memory", "seed"],
            &["config"],
            &["config", "--example", "--dump"],
            &["seed", "--depts", "-1"],
            &["seed", "--subscribers", "0"],
            &["seed", "--subscribers", "1", "--depts", "1"],
            &["seed", "--layout", "slot"],
            &["dance"],
        ] {
            assert_eq!(parse(args).unwrap_err().exit_code(), 2, "{args:?}");
        }
    }

    #[test]
    fn help_and_version_exit_0() {
        for args in [&["--help"][..], &["--version"], &["seed", "--help"]] {
            assert_eq!(parse(args).unwrap_err().exit_code(), 0, "{args:?}");
        }
        assert!(
            parse(&["--help"])
                .unwrap_err()
                .to_string()
                .contains("78  wrong configuration")
        );
    }

    #[test]
    fn commands_take_their_flags() {
        let command = |args| parse(args).unwrap().command();
        assert!(matches!(
            command(&["install", "--print"]),
            Command::Install(InstallArgs { print: true })
        ));
        let Command::Purge(purge) = command(&["purge", "depts", "-7"]) else {
            panic!("another command");
        };
        assert_eq!(
            (purge.resource.as_str(), purge.key.as_deref()),
            ("depts", Some("-7"))
        );
        assert!(matches!(
            command(&["uninstall"]),
            Command::Uninstall(UninstallArgs {
                print: false,
                dead_letters: false
            })
        ));
        assert!(matches!(
            command(&["seed", "--depts", "7", "--emps-per-dept", "0"]),
            Command::Seed(SeedArgs {
                depts: 7,
                emps_per_dept: 0,
                subscribers: None,
                ..
            })
        ));
    }

    #[test]
    fn the_environment_says_how_to_log() {
        let environment = Environment::of_pairs([("RUST_LOG", "debug")]);
        let telemetry = parse(&["--log-format", "json"])
            .unwrap()
            .telemetry(&environment);
        assert_eq!(telemetry.rust_log.as_deref(), Some("debug"));
        assert_eq!(telemetry.format, LogFormat::Json);
        assert_eq!(telemetry.level, None);
    }
}
