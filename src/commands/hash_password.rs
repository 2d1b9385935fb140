//! `larder hash-password`: the hash for `password` of `[[auth.user]]`.

use std::io::{self, IsTerminal, Read, Write};

use anyhow::{Context, ensure};

use crate::auth::passwords;
use crate::commands::output::print;

/// A longer password is refused anyway.
const INPUT_BYTES_MAX: u64 = 4096;

/// Asks for a password without showing it, twice, or reads a line of `stdin` where that is no terminal; prints its hash.
///
/// # Errors
/// A password that is empty or too long, two that differ, or a terminal that fails.
pub fn run(out: &mut impl Write) -> anyhow::Result<()> {
    let stdin = io::stdin();
    let password = if stdin.is_terminal() {
        let password =
            rpassword::prompt_password("Password: ").context("reading from the terminal")?;
        let again = rpassword::prompt_password("Again: ").context("reading from the terminal")?;
        ensure!(password == again, "the passwords differ");
        password.into_bytes()
    } else {
        first_line(stdin.lock()).context("reading stdin")?
    };
    let hash = passwords::hash(&password)?;
    print(out, &format!("{hash}\n"))?;
    Ok(())
}

fn first_line(input: impl Read) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    input.take(INPUT_BYTES_MAX).read_to_end(&mut text)?;
    let end = text.iter().position(|&byte| byte == b'\n');
    text.truncate(end.unwrap_or(text.len()));
    if text.last() == Some(&b'\r') {
        text.pop();
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_the_password() {
        let line = |text: &str| String::from_utf8(first_line(text.as_bytes()).unwrap()).unwrap();
        assert_eq!(line("a b \nc\n"), "a b ");
        assert_eq!(line("a\r\n"), "a");
        assert_eq!(line("a"), "a");
        assert_eq!(line(""), "");
    }
}
