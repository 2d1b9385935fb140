//! Quoting of names and strings for SQL text, and SQL text that is printed.

use crate::unseen::{escaped, is_unseen};

/// `name` as a quoted identifier.
///
/// Control characters are written by their numbers: a line break would let a name look like another line of a report.
pub(crate) fn identifier(name: &str) -> String {
    let quoted = name.replace('"', "\"\"");
    if !quoted.contains(|c: char| c.is_ascii_control()) {
        return format!("\"{quoted}\"");
    }
    let escaped = quoted.chars().map(|c| match c {
        '\\' => "\\\\".to_owned(),
        _ if c.is_ascii_control() => format!("\\{:04X}", u32::from(c)),
        _ => c.to_string(),
    });
    format!("U&\"{}\"", escaped.collect::<String>())
}

/// `text` as a string literal, whatever `standard_conforming_strings` says.
pub(crate) fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') {
        format!("E'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    }
}

/// `sql` with the same meaning and without characters that are not seen, for people to read and to run: a terminal would
/// obey some of them, and others would let a name look like another one, or like a line of its own.
///
/// In names and strings they are written by their numbers, as in `U&"\+00202E"` and `E'\u202E'`, which no setting changes;
/// in comments they are escaped. A database of encoding SQL_ASCII knows no such numbers, and refuses them.
pub(crate) fn printable(sql: &str) -> String {
    let mut printable = String::with_capacity(sql.len());
    let mut rest = sql;
    while let Some(place) = rest.find(['"', '\'', '$', '-']) {
        let (plain, text) = rest.split_at(place);
        printable.push_str(plain);
        if let Some(quoted) = Quoted::read(plain, text) {
            quoted.write(&mut printable);
            rest = quoted.rest;
        } else {
            let (sign, behind) = text.split_at(1);
            printable.push_str(sign);
            rest = behind;
        }
    }
    printable.push_str(rest);
    printable
}

/// How a part of a statement is quoted (PostgreSQL's manual, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quoting {
    /// `"…"`
    Name,
    /// `"…"` behind `U&`.
    NameOfNumbers,
    /// `'…'`
    Text,
    /// `'…'` behind `U&`.
    TextOfNumbers,
    /// `'…'` behind `E`.
    TextOfEscapes,
    /// `$tag$…$tag$`
    Body,
    /// `--…` up to the end of the line.
    Comment,
}

/// A quoted part of a statement.
struct Quoted<'s> {
    quoting: Quoting,
    /// With its quotes, without what is before them.
    whole: &'s str,
    inner: &'s str,
    rest: &'s str,
}

impl<'s> Quoted<'s> {
    /// The part that `text` begins with, behind `before`.
    fn read(before: &str, text: &'s str) -> Option<Self> {
        let has_numbers = before
            .strip_suffix('&')
            .is_some_and(|before| last_word(before).eq_ignore_ascii_case("u"));
        let has_escapes = last_word(before).eq_ignore_ascii_case("e");
        let (quoting, (inner, rest)) = match text.chars().next()? {
            '"' if has_numbers => (Quoting::NameOfNumbers, inside(text, '"', false)?),
            '"' => (Quoting::Name, inside(text, '"', false)?),
            '\'' if has_numbers => (Quoting::TextOfNumbers, inside(text, '\'', false)?),
            '\'' if has_escapes => (Quoting::TextOfEscapes, inside(text, '\'', true)?),
            '\'' => (Quoting::Text, inside(text, '\'', false)?),
            '$' => (Quoting::Body, inside_dollars(text)?),
            _ => {
                let comment = text.strip_prefix("--")?;
                let end = comment.find('\n').unwrap_or(comment.len());
                (Quoting::Comment, comment.split_at(end))
            }
        };
        let (whole, rest) = text.split_at(text.len() - rest.len());
        Some(Self {
            quoting,
            whole,
            inner,
            rest,
        })
    }

    fn write(&self, out: &mut String) {
        // The lines of a function's body are lines of the text.
        let is_coded = |c| is_unseen(c) && !(self.quoting == Quoting::Body && c == '\n');
        if !self.inner.contains(is_coded) {
            out.push_str(self.whole);
            return;
        }
        let (start, end) = match self.quoting {
            Quoting::Name => ("U&\"", '"'),
            Quoting::NameOfNumbers => ("\"", '"'),
            Quoting::Text | Quoting::Body => ("E'", '\''),
            Quoting::TextOfNumbers | Quoting::TextOfEscapes => ("'", '\''),
            Quoting::Comment => return out.push_str(&escaped(self.whole)),
        };
        out.push_str(start);
        for character in self.inner.chars() {
            match (self.quoting, character) {
                (Quoting::Name | Quoting::Text | Quoting::Body, '\\') => out.push_str("\\\\"),
                (Quoting::Body, '\'') => out.push_str("''"),
                (_, character) if is_coded(character) => self.write_number(character, out),
                (_, character) => out.push(character),
            }
        }
        out.push(end);
    }

    fn write_number(&self, character: char, out: &mut String) {
        let number = u32::from(character);
        out.push_str(&match self.quoting {
            Quoting::Name | Quoting::NameOfNumbers | Quoting::TextOfNumbers => {
                format!("\\+{number:06X}")
            }
            _ if number <= 0xffff => format!("\\u{number:04X}"),
            _ => format!("\\U{number:08X}"),
        });
    }
}

/// The word that `text` ends with.
fn last_word(text: &str) -> &str {
    let mut words = text.rsplit(|c: char| !c.is_alphanumeric() && c != '_');
    words.next().unwrap_or_default()
}

/// What `text`, which begins with `quote`, has up to the quote that ends it, and what follows.
fn inside(text: &str, quote: char, has_escapes: bool) -> Option<(&str, &str)> {
    let text = text.strip_prefix(quote)?;
    let mut characters = text.char_indices().peekable();
    while let Some((place, character)) = characters.next() {
        if character == '\\' && has_escapes {
            characters.next();
        } else if character == quote && characters.next_if(|(_, next)| *next == quote).is_none() {
            let (inner, rest) = text.split_at(place);
            return Some((inner, rest.strip_prefix(quote)?));
        }
    }
    None
}

/// The same between dollar signs, with a tag or without.
fn inside_dollars(text: &str) -> Option<(&str, &str)> {
    let (tag, _) = text.strip_prefix('$')?.split_once('$')?;
    let is_tag = tag.chars().all(|c| c.is_alphanumeric() || c == '_');
    if !is_tag || tag.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (delimiter, rest) = text.split_at(tag.len() + 2);
    rest.split_once(delimiter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_is_printed_as_it_is() {
        let sql = "select U&\"\\000A\"\"\", 'it''s \\', E'\\'é\"', $1 - $2, $$'$$, $a$\n'$$\"\n$a$ -- it's \"\n\
                   from \"t--\" where a = 'unterminated";
        assert_eq!(printable(sql), sql);
    }

    #[test]
    fn what_is_not_seen_is_printed_by_its_number() {
        for (sql, printed) in [
            ("\"a\u{202e}\"\"\\\n\".b", r#"U&"a\+00202E""\\\+00000A".b"#),
            ("U&\"\\000A\u{9b}\"", r#"U&"\000A\+00009B""#),
            ("'it''s\u{202e}\\'", r"E'it''s\u202E\\'"),
            ("'\u{e0041}'", r"E'\U000E0041'"),
            ("E'\\'\u{1b}'", r"E'\'\u001B'"),
            ("u&'\\000A\u{1b}'", r"u&'\000A\+00001B'"),
            ("$b$'\n\\\u{9b}$$\n$b$;", "E'''\n\\\\\\u009B$$\n';"),
            ("-- a\u{202e}'\n'b'", "-- a\\u{202e}'\n'b'"),
        ] {
            assert_eq!(printable(sql), printed);
        }
    }

    #[test]
    fn quotes_are_doubled() {
        assert_eq!(identifier("a\"b\\"), "\"a\"\"b\\\"");
        assert_eq!(identifier("a\"\n\\b"), "U&\"a\"\"\\000A\\\\b\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\b'"), "E'a\\\\b'''");
    }
}
