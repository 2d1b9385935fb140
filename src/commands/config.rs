//! `larder config`: prints what can be set, or what is set, or checks it. Uses no database.

use std::io::Write;

use crate::cli::ConfigArgs;
use crate::commands::output::print;
use crate::config::{self, Config, Sources};

/// Writes the example file, the configuration in force, or that it is valid to `out`.
///
/// # Errors
/// [`ConfigError`](crate::config::ConfigError) if the configuration in force is wrong; `out` fails.
pub fn run(args: &ConfigArgs, sources: &Sources, out: &mut impl Write) -> anyhow::Result<()> {
    let text = if args.example {
        config::example()
    } else if args.check {
        valid(&Config::load(sources)?)
    } else {
        config::dump(&Config::load(sources)?)
    };
    print(out, &text)?;
    Ok(())
}

fn valid(config: &Config) -> String {
    let counted = |count: usize, one: &str, many: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    };
    let resources = counted(config.resources.len(), "resource", "resources");
    let dispatches = match config.dispatches.len() {
        0 => String::new(),
        count => format!(", {}", counted(count, "dispatch", "dispatches")),
    };
    format!("the configuration is valid: {resources}{dispatches}\n")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::config::{ConfigError, Environment};

    fn run_with(args: &ConfigArgs, overrides: &[(&str, &str)]) -> anyhow::Result<String> {
        let empty = tempfile::tempdir().unwrap();
        let sources = Sources {
            file: None,
            directory: PathBuf::from(empty.path()),
            environment: Environment::of_pairs::<&str, &str>([]),
            overrides: overrides
                .iter()
                .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
                .collect(),
            tiers: None,
        };
        let mut out = Vec::new();
        run(args, &sources, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    /// The flags, of which all are off.
    const NONE: ConfigArgs = ConfigArgs {
        example: false,
        dump: false,
        check: false,
    };

    #[test]
    fn the_example_needs_no_valid_configuration() {
        let args = ConfigArgs {
            example: true,
            ..NONE
        };
        let text = run_with(&args, &[("listen", "nowhere")]).unwrap();
        assert!(Config::from_toml(&text, &[]).is_ok());
    }

    #[test]
    fn the_dump_shows_what_flags_set() {
        let args = ConfigArgs { dump: true, ..NONE };
        let text = run_with(&args, &[("listen", "127.0.0.1:9")]).unwrap();
        assert!(text.contains("listen = \"127.0.0.1:9\""), "{text}");
        let refused = run_with(&args, &[("listen", "nowhere")]).unwrap_err();
        assert!(refused.is::<ConfigError>());
    }

    #[test]
    fn a_check_says_that_all_is_valid_or_what_is_not() {
        let args = ConfigArgs {
            check: true,
            ..NONE
        };
        let text = run_with(&args, &[]).unwrap();
        assert_eq!(text, "the configuration is valid: 1 resource\n");
        let error = run_with(&args, &[("listen", "nowhere"), ("workers", "0")]).unwrap_err();
        let told = error.to_string();
        assert!(
            told.contains("listen") && told.contains("workers"),
            "{told}"
        );
    }
}
