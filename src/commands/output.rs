//! What commands print.
//!
//! The program that reads it may end before all is printed, as `head` does. That is no failure: nothing more is printed, and
//! the exit code is that of the command.

use std::error::Error;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;

use anyhow::Context;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::commands::check::QueryErrors;
use crate::config::ConfigError;
use crate::source::embedded::EmbeddedError;
use crate::unseen::escaped;

/// Writes `text` to `out`. Returns whether `out` is still read.
///
/// # Errors
/// If it can't be written, as on a full disk.
pub(super) fn print(out: &mut impl Write, text: &str) -> anyhow::Result<bool> {
    is_written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Whether stdout is still read. A pipe that is not tells so without being written to.
pub(super) fn is_read() -> bool {
    let stdout = io::stdout();
    let mut polled = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    let closed = poll(&mut polled, PollTimeout::ZERO).is_ok_and(|events| events > 0);
    !closed
}

/// Writes the text of `--help` or `--version` to stdout, with colours on a terminal.
///
/// # Errors
/// If it can't be written, as on a full disk.
pub fn print_help(help: &clap::Error) -> anyhow::Result<()> {
    is_written(help.print().and_then(|()| io::stdout().flush())).map(drop)
}

/// Whether what was written is still read.
fn is_written(written: io::Result<()>) -> anyhow::Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("writing the output"),
    }
}

/// Writes to stderr why a command fails. If stderr is closed, the message is lost.
pub fn print_error(error: &anyhow::Error) {
    drop(writeln!(std::io::stderr(), "larder: {}", shown(error)));
}

/// What a terminal shows of an error. It may contain names and messages of the database: no line break in them begins a
/// line, and a terminal obeys none of it.
pub(super) fn shown(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    // These have lines of their own: a mistake each, or the end of a log.
    let has_lines = |cause: &(dyn Error + 'static)| {
        cause.is::<ConfigError>() || cause.is::<QueryErrors>() || cause.is::<EmbeddedError>()
    };
    if error.chain().any(has_lines) {
        let lines: Vec<String> = text.lines().map(escaped).collect();
        lines.join("\n")
    } else {
        escaped(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::definition::{Mistake, Place};

    struct Failing(ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_error_forges_no_line_and_a_terminal_obeys_none() {
        let name = "no\ndb\u{1b}[2J\u{202e}";
        let seen = r"no\ndb\u{1b}[2J\u{202e}";
        let error = anyhow::anyhow!("{name}").context(name);
        assert_eq!(shown(&error), format!("{seen}: {seen}"));
        let mistakes = ["a", "b"].map(|key| Mistake {
            place: Place {
                origin: "larder.toml".into(),
                line: 1,
                key: key.to_owned(),
            },
            message: name.to_owned(),
        });
        let error = ConfigError {
            mistakes: mistakes.into(),
        };
        let expected = format!("larder.toml:1: a: {seen}\nlarder.toml:1: b: {seen}");
        assert_eq!(shown(&error.into()), expected);
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        assert!(print(&mut Vec::new(), "text").unwrap());
        assert!(!print(&mut Failing(ErrorKind::BrokenPipe), "text").unwrap());
        assert!(print(&mut Failing(ErrorKind::StorageFull), "text").is_err());
    }
}
