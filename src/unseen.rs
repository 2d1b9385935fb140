//! Characters that are not seen, and texts of others shown without them.

use std::borrow::Cow;

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

/// Whether a character is a control character, separates lines, or is one of format, which Unicode has for what is not seen
/// and for the direction of text: a name could look like another one. Unassigned characters, too, since many of them are
/// set aside for such use (Unicode Standard Annex 44, General_Category).
pub(crate) fn is_unseen(character: char) -> bool {
    // Nearly all characters, without a search in Unicode's tables.
    if character.is_ascii() {
        return character.is_ascii_control();
    }
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

/// JSON without such characters: in its strings they are escaped as JSON does it. Outside of strings only line breaks may be.
pub(crate) fn escaped_json(json: &str) -> Cow<'_, str> {
    let is_escaped = |character| character != '\n' && is_unseen(character);
    if !json.contains(is_escaped) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        if !is_escaped(character) {
            escaped.push(character);
        } else {
            let mut units = [0; 2];
            let units = character.encode_utf16(&mut units).iter();
            escaped.extend(units.map(|unit| format!("\\u{unit:04x}")));
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_json_is_the_same_json() {
        let text = "a\u{7f}\u{9b}2J\u{202e}\u{2028}\u{e0041}\n\u{1b}Süd \\ \"";
        let json = serde_json::to_string_pretty(&[text]).unwrap();
        let shown = escaped_json(&json);
        assert!(!shown.contains(|c| c != '\n' && is_unseen(c)), "{shown:?}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&shown).unwrap(), [text]);
    }

    #[test]
    fn a_terminal_obeys_no_text() {
        assert_eq!(escaped("Süd <b> 日本 \\"), "Süd <b> 日本 \\");
        assert_eq!(
            escaped("\x1b[2J\u{202e}abc\u{2066}\n\u{9b}\u{200b}\u{e0041}\u{2065}"),
            "\\u{1b}[2J\\u{202e}abc\\u{2066}\\n\\u{9b}\\u{200b}\\u{e0041}\\u{2065}"
        );
    }
}
