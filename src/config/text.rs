//! A TOML text with the places of its values, and the messages about its keys.

use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::places::mistake;
use super::value::describe;
use crate::resource::definition::{Located, Mistake, Place};
use crate::resource::suggestion::nearest;

/// A key of a TOML table, as parsed.
pub(super) type TomlKey<'i> = Spanned<DeString<'i>>;
/// A value of a TOML table, as parsed.
pub(super) type TomlValue<'i> = Spanned<DeValue<'i>>;

/// The origin of a text, and its lines.
pub(super) struct TomlText {
    origin: Arc<str>,
    /// The byte at which each line begins.
    line_starts: Vec<usize>,
}

impl TomlText {
    /// Notes the lines of `toml`.
    pub(super) fn new(origin: &str, toml: &str) -> Self {
        let breaks = toml.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self {
            origin: origin.into(),
            line_starts: std::iter::once(0)
                .chain(breaks.map(|(at, _)| at + 1))
                .collect(),
        }
    }

    /// The place of the byte `at`, under the dotted `key`.
    pub(super) fn place(&self, at: usize, key: impl Into<String>) -> Place {
        let line = self.line_starts.partition_point(|start| *start <= at);
        Place {
            origin: Arc::clone(&self.origin),
            line,
            key: key.into(),
        }
    }

    /// A mistake at the byte `at`.
    pub(super) fn mistake(
        &self,
        at: usize,
        key: impl Into<String>,
        message: impl Into<String>,
    ) -> Mistake {
        Mistake {
            place: self.place(at, key),
            message: message.into(),
        }
    }
}

/// The file that is being read, and the mistakes so far.
///
/// A wrong value is `None`, so that the rest of the file is still read and checked.
pub(super) struct TomlReader<'t> {
    pub(super) text: &'t TomlText,
    pub(super) mistakes: &'t mut Vec<Mistake>,
}

/// One table within the file.
pub(super) struct TomlTable<'t, 'i> {
    pub(super) entries: &'t DeTable<'i>,
    /// Its dotted key, such as `resource[0].children[1]`.
    pub(super) path: String,
    /// The byte of its header or brace.
    pub(super) at: usize,
}

impl TomlTable<'_, '_> {
    /// The dotted path of a key in this table.
    pub(super) fn path_of(&self, key: &str) -> String {
        dotted(&self.path, key)
    }
}

impl TomlReader<'_> {
    /// Adds a mistake at the byte `at`.
    pub(super) fn refuse(&mut self, at: usize, key: impl Into<String>, message: impl Into<String>) {
        self.mistakes.push(self.text.mistake(at, key, message));
    }

    /// Adds a mistake at a place that is known already.
    pub(super) fn refuse_at(&mut self, place: &Place, message: impl Into<String>) {
        self.mistakes.push(mistake(place, message));
    }

    /// `value` as a table whose keys are all among `known`.
    pub(super) fn table<'v, 'i>(
        &mut self,
        value: &'v TomlValue<'i>,
        path: String,
        known: &[&str],
    ) -> Option<TomlTable<'v, 'i>> {
        let at = value.span().start;
        let DeValue::Table(entries) = value.get_ref() else {
            self.refuse(
                at,
                path,
                format!("expected a table, found {}", describe(value.get_ref())),
            );
            return None;
        };
        let table = TomlTable { entries, path, at };
        for key in entries
            .keys()
            .filter(|key| !known.contains(&key.get_ref().as_ref()))
        {
            let message = unknown_key(key.get_ref(), known.iter().copied());
            self.refuse(key.span().start, table.path_of(key.get_ref()), message);
        }
        Some(table)
    }

    /// The tables of a list of tables; absent is empty.
    pub(super) fn list<'v, 'i>(
        &mut self,
        value: Option<&'v TomlValue<'i>>,
        path: &str,
    ) -> &'v [TomlValue<'i>] {
        match value.map(|value| (value, value.get_ref())) {
            None => &[],
            Some((_, DeValue::Array(items))) => items,
            Some((value, other)) => {
                let message = format!(
                    "expected [[{}]], found {}",
                    without_indices(path),
                    describe(other)
                );
                self.refuse(value.span().start, path, message);
                &[]
            }
        }
    }

    /// A string.
    pub(super) fn string(&mut self, value: &TomlValue<'_>, path: &str) -> Option<Located<String>> {
        let at = value.span().start;
        if let DeValue::String(text) = value.get_ref() {
            return Some(Located {
                value: text.to_string(),
                place: self.text.place(at, path),
            });
        }
        self.refuse(
            at,
            path,
            format!("expected a string, found {}", describe(value.get_ref())),
        );
        None
    }

    /// The strings of a list, each of them once; `None` if the value is not the list that is `expected`.
    pub(super) fn strings(
        &mut self,
        value: &TomlValue<'_>,
        path: &str,
        expected: &str,
    ) -> Option<Located<Vec<Located<String>>>> {
        let at = value.span().start;
        let place = self.text.place(at, path);
        let DeValue::Array(items) = value.get_ref() else {
            let message = format!("expected {expected}, found {}", describe(value.get_ref()));
            self.refuse(at, path, message);
            return None;
        };
        let mut strings: Vec<Located<String>> = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let Some(text) = self.string(item, &format!("{path}[{index}]")) else {
                continue;
            };
            if strings.iter().any(|other| other.value == text.value) {
                let message = format!("`{}` is named twice", text.value);
                self.refuse_at(&text.place, message);
            } else {
                strings.push(text);
            }
        }
        Some(Located {
            value: strings,
            place,
        })
    }
}

/// The message about a key that is not one of `known`.
pub(super) fn unknown_key<'k>(key: &str, known: impl Iterator<Item = &'k str> + Clone) -> String {
    match nearest(key, known.clone()) {
        Some(near) => format!("unknown key; did you mean `{near}`?"),
        None => format!(
            "unknown key; known here: {}",
            known.collect::<Vec<_>>().join(", ")
        ),
    }
}

/// `path.key`, the key quoted where TOML needs it.
pub(super) fn dotted(path: &str, key: &str) -> String {
    let key = bare_or_quoted(key);
    if path.is_empty() {
        key
    } else {
        format!("{path}.{key}")
    }
}

/// A key as TOML writes it.
pub(super) fn bare_or_quoted(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !key.is_empty() && key.chars().all(bare) {
        key.to_owned()
    } else {
        super::value::toml_string(key)
    }
}

/// `resource[0].children` as a header has it: `resource.children`.
fn without_indices(path: &str) -> String {
    let parts = path
        .split('.')
        .map(|part| part.split('[').next().unwrap_or(part));
    parts.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::{mistakes, only};

    #[test]
    fn lines_are_counted_from_one() {
        let text = TomlText::new("a.toml", "a\nb\r\n\nc");
        let lines: Vec<usize> = [0, 1, 2, 4, 5, 6, 100]
            .map(|at| text.place(at, "").line)
            .to_vec();
        assert_eq!(lines, [1, 1, 2, 2, 3, 4, 4]);
    }

    #[test]
    fn without_a_near_key_all_are_named() {
        let known = ["listen", "admin", "workers"];
        assert!(unknown_key("xyz", known.into_iter()).contains("listen, admin, workers"));
    }

    #[test]
    fn keys_are_quoted_where_toml_needs_it() {
        assert_eq!(
            dotted("resource[0].fields", "a b"),
            "resource[0].fields.\"a b\""
        );
        assert_eq!(dotted("", "listen"), "listen");
    }

    #[test]
    fn unknown_keys_suggest_the_nearest_or_their_home() {
        only(
            "lisen = 'x'",
            "1: lisen: unknown key; did you mean `listen`?",
        );
        only("[memery]", "1: memery: unknown key; did you mean `memory`?");
        only(
            "[feed]\nmax_stalenes = '1s'",
            "2: feed.max_stalenes: unknown key; did you mean `max_staleness`?",
        );
        only(
            "[feed]\nlisten = 'x'",
            "2: feed.listen: unknown key here; it belongs at the top of the file",
        );
        only(
            "max_bytes = 1",
            "1: max_bytes: unknown key here; it belongs under [memory] or under [disk]",
        );
        only(
            "[disk]\nquux = 1",
            "2: disk.quux: unknown key; known here: max_bytes, cache, batch, linger",
        );
    }

    #[test]
    fn syntax_errors_name_their_line() {
        only("workers = 1\nlisten =\n", "2: TOML: ");
        only("workers = 1\nworkers = 2\n", "2: TOML: duplicate key");
        let mistakes = mistakes("listen = \"x\na b c\n[memory\nworkers = 1");
        let lines: Vec<&str> = mistakes
            .iter()
            .map(|mistake| mistake.split(':').next().unwrap())
            .collect();
        assert_eq!(lines, ["1", "2", "3"]);
    }

    #[test]
    fn all_mistakes_are_told_at_once_in_the_order_of_the_file() {
        let mistakes = mistakes(
            "workers = 0\n[[resource]]\nname = 'a/b'\n[memory]\nmax_bytes = -1\n[feed]\nnotfy = 1\npoll_interval = '1m'",
        );
        let lines: Vec<&str> = mistakes
            .iter()
            .map(|mistake| mistake.split(':').next().unwrap())
            .collect();
        assert_eq!(lines, ["1", "2", "3", "5", "7", "8"]);
    }

    #[test]
    fn no_mistake_repeats_a_password() {
        let text = "listen = 'postgres://app:s3cret@db/x'\nurl = 'postgres://app:s3cret@db/x'\n[database]\n\
             url = 'mysql://app:s3cret@db/x'\nlisten_url = 'postgres://app:s3cret/x@db/x'\nconnections = 'postgres://app:s3cret@db'";
        let mistakes = mistakes(text);
        assert_eq!(mistakes.len(), 5, "{mistakes:#?}");
        assert!(!mistakes.concat().contains("s3cret"), "{mistakes:#?}");
    }
}
