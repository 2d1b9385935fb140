//! Characters that are not seen, and texts of others shown without them.

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

/// Whether a character is a control character, separates lines, or is one of format, which Unicode has for what is not seen
/// and for the direction of text: a name could look like another one. Unassigned characters, too, since many of them are
/// set aside for such use (Unicode Standard Annex 44, General_Category).
pub(crate) fn is_unseen(character: char) -> bool {
    matches!(
        character.general_category(),
        GeneralCategory::Control
            | GeneralCategory::Format
            | GeneralCategory::LineSeparator
            | GeneralCategory::ParagraphSeparator
            | GeneralCategory::Unassigned
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
            escaped("\x1b[2J\u{202e}abc\u{2066}\n\u{9b}\u{200b}\u{e0041}\u{2065}"),
            "\\u{1b}[2J\\u{202e}abc\\u{2066}\\n\\u{9b}\\u{200b}\\u{e0041}\\u{2065}"
        );
    }
}
