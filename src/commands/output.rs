//! What commands print.
//!
//! The program that reads it may end before all is printed, as `head` does. That is no failure: nothing more is printed, and
//! the exit code is that of the command.

use std::io::{ErrorKind, Write};

use anyhow::Context;

/// Writes `text` to `out`. Returns whether `out` is still read.
///
/// # Errors
/// If it can't be written, as on a full disk.
pub(super) fn print(out: &mut impl Write, text: &str) -> anyhow::Result<bool> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("writing the output"),
    }
}

/// Writes to stderr why a command fails. If stderr is closed, nobody can be told.
pub fn print_error(error: &anyhow::Error) {
    drop(writeln!(std::io::stderr(), "larder: {error:#}"));
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

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
    fn a_closed_pipe_is_no_failure() {
        assert!(print(&mut Vec::new(), "text").unwrap());
        assert!(!print(&mut Failing(ErrorKind::BrokenPipe), "text").unwrap());
        assert!(print(&mut Failing(ErrorKind::StorageFull), "text").is_err());
    }
}
