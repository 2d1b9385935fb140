//! Files of users' statements.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use crate::check::queries::{FILE_BYTES_MAX, QueryError, split};
use crate::check::question::UserStatement;
use crate::unseen::escaped;

/// Files of statements that can't be checked: wrong usage. A line for each mistake.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct QueryErrors(pub Vec<QueryError>);

fn lines(errors: &[QueryError]) -> String {
    let errors = errors.iter();
    let lines: Vec<String> = errors.map(|error| escaped(&error.to_string())).collect();
    lines.join("\n")
}

/// The statements of files; `-` is stdin.
///
/// # Errors
/// [`QueryErrors`] also if a file can't be read.
pub(super) fn read_queries(files: &[PathBuf]) -> Result<Vec<UserStatement>, QueryErrors> {
    let mut statements = Vec::new();
    for file in files {
        let is_stdin = file.as_os_str() == "-";
        let name = if is_stdin {
            "stdin".to_owned()
        } else {
            file.display().to_string()
        };
        let read = if is_stdin {
            read(std::io::stdin())
        } else {
            File::open(file).and_then(read)
        };
        let content = read.map_err(|error| {
            QueryErrors(vec![QueryError {
                origin: name.as_str().into(),
                line: 1,
                column: 1,
                message: error.to_string(),
            }])
        })?;
        let found = split(&name, &content).map_err(|error| QueryErrors(vec![error]))?;
        statements.extend(found);
    }
    Ok(statements)
}

/// Reads what a file may have, and one byte more.
fn read(source: impl Read) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let limit = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX);
    source
        .take(limit.saturating_add(1))
        .read_to_end(&mut content)?;
    Ok(content)
}
