//! Characters that are not seen, and texts of others shown without them.

/// Whether a character is a control character, separates lines, or is one of format, which Unicode has for what is not seen
/// and for the direction of text: a name could look like another one (Unicode 17, categories Cc, Cf, Zl and Zp).
pub(crate) fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{600}'..='\u{605}'
                | '\u{61c}'
                | '\u{6dd}'
                | '\u{70f}'
                | '\u{890}'..='\u{891}'
                | '\u{8e2}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{110bd}'
                | '\u{110cd}'
                | '\u{13430}'..='\u{1343f}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0001}'..='\u{e007f}'
        )
}

/// `text` without what a terminal would obey and what would begin a line: control characters, and those that change the
/// direction of text or can't be seen, are escaped.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if is_unseen(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_no_text() {
        assert_eq!(escaped("Süd <b> 日本 \\"), "Süd <b> 日本 \\");
        assert_eq!(
            escaped("\x1b[2J\u{202e}abc\u{2066}\n\u{9b}\u{200b}\u{e0041}"),
            "\\u{1b}[2J\\u{202e}abc\\u{2066}\\n\\u{9b}\\u{200b}\\u{e0041}"
        );
    }
}
