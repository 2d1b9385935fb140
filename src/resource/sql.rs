//! Quoting of names and strings for SQL text.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_doubled() {
        assert_eq!(identifier("a\"b\\"), "\"a\"\"b\\\"");
        assert_eq!(identifier("a\"\n\\b"), "U&\"a\"\"\\000A\\\\b\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\b'"), "E'a\\\\b'''");
    }
}
