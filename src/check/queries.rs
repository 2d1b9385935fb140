//! Splits a file of SQL into statements, at the semicolons outside of strings, names and comments. Nothing is parsed:
//! PostgreSQL refuses what is no statement.

use std::sync::Arc;

use crate::check::question::UserStatement;
use crate::resource::definition::Place;

/// The longest file, in bytes.
pub const FILE_BYTES_MAX: usize = 16 << 20;

/// What is wrong with a file of queries, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}:{line}:{column}: {message}")]
pub struct QueryError {
    /// The file, or `stdin`.
    pub origin: Arc<str>,
    /// The line, counted from 1.
    pub line: usize,
    /// The character in the line, counted from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

/// Splits the content of the file `origin`.
///
/// # Errors
/// If it is too long, has no statement, is not UTF-8, or a string, a name or a comment does not end.
pub fn split(origin: &str, content: &[u8]) -> Result<Vec<UserStatement>, QueryError> {
    let origin: Arc<str> = origin.into();
    let error = |before: &str, message: String| {
        let (line, column) = position(before);
        QueryError {
            origin: Arc::clone(&origin),
            line,
            column,
            message,
        }
    };
    if content.len() > FILE_BYTES_MAX {
        let limit = FILE_BYTES_MAX >> 20;
        return Err(error("", format!("the file is longer than {limit} MiB")));
    }
    let text = std::str::from_utf8(content).map_err(|invalid| {
        let valid = content.get(..invalid.valid_up_to()).unwrap_or_default();
        let before = String::from_utf8_lossy(valid);
        error(&before, "the file is not UTF-8".to_owned())
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut splitter = Splitter { rest: text, text };
    let mut statements = Vec::new();
    let mut place = Cursor::default();
    loop {
        let found = splitter.next_statement();
        let found = found.map_err(|(at, message)| {
            let before = text.get(..at).unwrap_or_default();
            error(before, message.to_owned())
        })?;
        let Some((start, statement)) = found else {
            break;
        };
        let (line, column) = place.advance(text, start);
        let number = statements.len() + 1;
        statements.push(UserStatement {
            text: statement.to_owned(),
            place: Some(Place {
                origin: Arc::clone(&origin),
                line,
                key: format!("statement {number}"),
            }),
            column,
            name: format!("statement {number}"),
        });
    }
    if statements.is_empty() {
        return Err(error("", "the file has no statement".to_owned()));
    }
    Ok(statements)
}

/// A byte of a text, whose line and column are known.
#[derive(Default)]
struct Cursor {
    at: usize,
    /// The line breaks before it.
    lines: usize,
    /// The characters before it in its line.
    characters: usize,
}

impl Cursor {
    /// Moves on to the byte `at`. Returns its line and column, counted from 1.
    fn advance(&mut self, text: &str, at: usize) -> (usize, usize) {
        let passed = text.get(self.at..at).unwrap_or_default();
        let (lines, characters) = match passed.rsplit_once('\n') {
            Some((before, last)) => (before.matches('\n').count() + 1, last.chars().count()),
            None => (0, self.characters + passed.chars().count()),
        };
        self.at = at;
        self.lines += lines;
        self.characters = characters;
        (self.lines + 1, self.characters + 1)
    }
}

/// Line and column of what follows `before`, both counted from 1.
pub fn position(before: &str) -> (usize, usize) {
    Cursor::default().advance(before, before.len())
}

struct Splitter<'t> {
    text: &'t str,
    rest: &'t str,
}

/// A byte of the text, and what is wrong there.
type Unended = (usize, &'static str);

impl<'t> Splitter<'t> {
    fn at(&self) -> usize {
        self.text.len() - self.rest.len()
    }

    /// The next statement that is not empty, and the byte where it begins.
    fn next_statement(&mut self) -> Result<Option<(usize, &'t str)>, Unended> {
        let mut start = None;
        loop {
            let at = self.at();
            let Some(first) = self.rest.chars().next() else {
                return Ok(start.and_then(|start| self.from(start, at)));
            };
            let is_comment = self.rest.starts_with("--") || self.rest.starts_with("/*");
            match first {
                ';' => {
                    self.skip(1);
                    let Some(start) = start.take() else {
                        continue;
                    };
                    return Ok(self.from(start, at));
                }
                _ if first.is_whitespace() => self.skip(first.len_utf8()),
                _ => {
                    if !is_comment && start.is_none() {
                        start = Some(at);
                    }
                    self.skip_token(first)?;
                }
            }
        }
    }

    fn from(&self, start: usize, end: usize) -> Option<(usize, &'t str)> {
        Some((start, self.text.get(start..end)?.trim_end()))
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    fn skip_token(&mut self, first: char) -> Result<(), Unended> {
        let at = self.at();
        if self.rest.starts_with("--") {
            let end = self.rest.find('\n').unwrap_or(self.rest.len());
            self.skip(end);
            return Ok(());
        }
        if self.rest.starts_with("/*") {
            return self.skip_comment().ok_or((at, "this comment does not end"));
        }
        match first {
            '\'' => self.skip_quoted('\'', false),
            '"' => self.skip_quoted('"', false),
            '$' => {
                return self
                    .skip_dollar_quoted()
                    .ok_or((at, "this string does not end"));
            }
            _ if is_word(first) => {
                let end = self.rest.find(|next| !is_word(next) && next != '$');
                let (word, _) = self.rest.split_at(end.unwrap_or(self.rest.len()));
                self.skip(word.len());
                if word.eq_ignore_ascii_case("e") && self.rest.starts_with('\'') {
                    self.skip_quoted('\'', true)
                } else {
                    Some(())
                }
            }
            _ => {
                self.skip(first.len_utf8());
                Some(())
            }
        }
        .ok_or((at, "this string or name does not end"))
    }

    fn skip_quoted(&mut self, quote: char, has_escapes: bool) -> Option<()> {
        self.skip(1);
        loop {
            let next = self.rest.chars().next()?;
            self.skip(next.len_utf8());
            if next == '\\' && has_escapes {
                self.skip(self.rest.chars().next()?.len_utf8());
            } else if next == quote {
                if !self.rest.starts_with(quote) {
                    return Some(());
                }
                self.skip(1);
            }
        }
    }

    /// Skips `$1`, `$$ … $$` or `$tag$ … $tag$`.
    fn skip_dollar_quoted(&mut self) -> Option<()> {
        let after = self.rest.get(1..).unwrap_or_default();
        let length = after.find(|next| !is_word(next)).unwrap_or(after.len());
        let (tag, end) = after.split_at(length);
        if tag.starts_with(|first: char| first.is_ascii_digit()) || !end.starts_with('$') {
            self.skip(1 + length);
            return Some(());
        }
        let quote = format!("${tag}$");
        self.skip(quote.len());
        let end = self.rest.find(&quote)?;
        self.skip(end + quote.len());
        Some(())
    }

    /// Comments may contain comments.
    fn skip_comment(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.skip(2);
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.skip(2);
                if depth == 0 {
                    return Some(());
                }
            } else {
                self.skip(self.rest.chars().next()?.len_utf8());
            }
        }
    }
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_' || !character.is_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(content: &str) -> Vec<(usize, String)> {
        let statements = split("q.sql", content.as_bytes()).unwrap().into_iter();
        let place = |statement: &UserStatement| statement.place.as_ref().unwrap().line;
        statements
            .map(|statement| (place(&statement), statement.text))
            .collect()
    }

    #[test]
    fn statements_end_at_their_semicolons() {
        let one = |text: &str| vec![(1, text.to_owned())];
        for text in [
            "select 1",
            "select ';' from a where b = $1",
            "select 'it''s;', E'\\';', e'\\\\' from \";\"",
            "select $$;$$, $a$ $$; $a$, $1",
            "select a$b /* ; /* ; */ ; */ from a -- ;",
            "select 'a\\'",
        ] {
            assert_eq!(texts(text), one(text), "{text}");
            assert_eq!(texts(&format!("{text}\n;;\n;")), one(text), "{text}");
        }
        let two = texts("-- first\n/* x */ select 1;\n\n  select 2 ;");
        assert_eq!(
            two,
            [(2, "select 1".to_owned()), (4, "select 2".to_owned())]
        );
        let statements = split("q.sql", "\n é; x;\n\ny;  z".as_bytes()).unwrap();
        let places = statements.iter().map(|statement| {
            let place = statement.place.as_ref().unwrap();
            (place.line, statement.column)
        });
        assert_eq!(places.collect::<Vec<_>>(), [(2, 2), (2, 5), (4, 1), (4, 5)]);
    }

    #[test]
    fn mistakes_have_their_place() {
        for (content, place) in [
            (&b""[..], "1:1: the file has no statement"),
            (b" -- nothing\n;", "1:1: the file has no statement"),
            (b"select 1;\nselect '\xe4'", "2:9: the file is not UTF-8"),
            (
                b"select 1;\n select 'x",
                "2:9: this string or name does not end",
            ),
            (b"select \"x", "1:8: this string or name does not end"),
            (b"select $x$ $$", "1:8: this string does not end"),
            (b"select 1 /* /* */", "1:10: this comment does not end"),
        ] {
            let error = split("q.sql", content).unwrap_err().to_string();
            assert_eq!(error, format!("q.sql:{place}"));
        }
        let long = vec![b' '; FILE_BYTES_MAX + 1];
        let error = split("q.sql", &long).unwrap_err().to_string();
        assert_eq!(error, "q.sql:1:1: the file is longer than 16 MiB");
    }
}
