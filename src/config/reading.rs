//! One reading of the configuration: defaults, then the file, then the environment, then the flags.
//!
//! Each source overrides the one before it, and each is checked whole: a wrong value in the file is a mistake
//! even where a flag overrides it.

use toml::de::{DeTable, DeValue};

use super::environment::Environment;
use super::fit;
use super::names::UniqueNames;
use super::places::{Places, mistake, unlined};
use super::settings::{Preset, SECTIONS, SETTINGS, Setting};
use super::tables;
use super::text::{TomlKey, TomlReader, TomlText, TomlValue, dotted, unknown_key};
use super::value::describe;
use super::{Config, ConfigError};
use crate::resource::definition::{Mistake, Place};
use crate::resource::suggestion::nearest;

const DEMO: &str = include_str!("demo.toml");
/// The variable that hosting platforms and PostgreSQL tools share.
const DATABASE_URL: &str = "DATABASE_URL";

/// The configuration so far and what is wrong with it.
pub(super) struct ConfigReader {
    config: Config,
    places: Places,
    mistakes: Vec<Mistake>,
    /// Where `[[resource]]` belongs: the end of the file, if there is one.
    file_end: Option<Place>,
    has_resources: bool,
    has_dispatches: bool,
    /// The file could not be read or is no TOML, so nothing is known of what it holds.
    is_file_unreadable: bool,
}

impl ConfigReader {
    /// Starts from the defaults.
    pub(super) fn new() -> Self {
        let mut reader = Self {
            config: Config::blank(),
            places: Places::default(),
            mistakes: Vec::new(),
            file_end: None,
            has_resources: false,
            has_dispatches: false,
            is_file_unreadable: false,
        };
        for setting in &SETTINGS {
            if let Preset::Value(text) = setting.preset {
                reader.set(setting, text, unlined("built-in default", setting.path));
            }
        }
        reader.places = Places::default();
        reader
    }

    /// Reads the text of a file.
    pub(super) fn read_file(&mut self, origin: &str, toml: &str) {
        let text = TomlText::new(origin, toml);
        self.file_end = Some(text.place(toml.trim_end().len(), "resource"));
        self.read_toml(&text, toml);
    }

    /// Notes that the file can't be read, at `line` if that is known, else 0; `key` is what names the file.
    pub(super) fn unreadable(&mut self, origin: &str, line: usize, key: &str, message: String) {
        let place = Place {
            origin: origin.into(),
            line,
            key: key.to_owned(),
        };
        self.mistakes.push(Mistake { place, message });
        self.is_file_unreadable = true;
    }

    /// Reads `LARDER_*` and `DATABASE_URL`.
    pub(super) fn read_environment(&mut self, environment: &Environment) {
        let url = Setting::find("database.url").map(|setting| (setting, DATABASE_URL.to_owned()));
        let own = SETTINGS.iter().map(|setting| (setting, setting.variable()));
        for (setting, variable) in url.into_iter().chain(own) {
            let Some(value) = environment.get(&variable) else {
                continue;
            };
            let place = unlined("environment", variable);
            match value.to_str() {
                Some(text) => self.set(setting, text, place),
                None => self.mistakes.push(mistake(&place, "is not UTF-8")),
            }
        }
        let known: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
        let ours = |name: &&str| {
            name.strip_prefix("LARDER_")
                .is_some_and(|rest| rest.contains("__"))
        };
        for name in environment.names().into_iter().filter(ours) {
            if known.iter().any(|known| known == name) {
                continue;
            }
            let message = match nearest(name, known.iter().map(String::as_str)) {
                _ if name.starts_with("LARDER_RESOURCE_") => {
                    "resources can only be written in the file".to_owned()
                }
                Some(near) => format!("no such setting; did you mean {near}?"),
                None => "no such setting; `larder config --example` shows them all".to_owned(),
            };
            let place = unlined("environment", name);
            self.mistakes.push(mistake(&place, message));
        }
    }

    /// Reads pairs of a setting's dotted key and its value.
    pub(super) fn read_overrides<K: AsRef<str>, V: AsRef<str>>(
        &mut self,
        pairs: impl IntoIterator<Item = (K, V)>,
    ) {
        for (path, text) in pairs {
            let path = path.as_ref();
            let place = unlined("command line", path);
            match Setting::find(path) {
                Some(setting) => self.set(setting, text.as_ref(), place),
                None => {
                    let message = unknown_key(path, SETTINGS.iter().map(|setting| setting.path));
                    self.mistakes.push(Mistake { place, message });
                }
            }
        }
    }

    /// Checks what concerns several settings, and gives the configuration if nothing at all was wrong.
    pub(super) fn finish(mut self) -> Result<Config, ConfigError> {
        self.mistakes.extend(fit::check(&self.config, &self.places));
        self.finish_unfitted()
    }

    /// As [`ConfigReader::finish`], but does not check whether settings fit together.
    pub(super) fn finish_unfitted(mut self) -> Result<Config, ConfigError> {
        self.fill_in_resources();
        if !self.mistakes.is_empty() {
            return Err(ConfigError {
                mistakes: self.mistakes,
            });
        }
        self.config.disk.directory = self.config.state_dir.join("disk");
        // The private PostgreSQL has no publication that would send the responses.
        self.config.feed.answers |= self.config.database_url.is_none();
        Ok(self.config)
    }

    fn read_toml(&mut self, text: &TomlText, toml: &str) {
        let (document, errors) = DeTable::parse_recoverable(toml);
        if !errors.is_empty() {
            self.is_file_unreadable = true;
            let at = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
            let mistakes = errors
                .iter()
                .map(|error| text.mistake(at(error), "TOML", error.message()));
            self.mistakes.extend(mistakes);
            self.mistakes.sort_by_key(|mistake| mistake.place.line);
            // One mistake often causes several errors on its line; the first describes it best.
            self.mistakes.dedup_by_key(|mistake| mistake.place.clone());
            return;
        }
        let already = self.mistakes.len();
        for (key, value) in document.get_ref() {
            self.read_top_level(text, key, value);
        }
        self.mistakes[already..].sort_by_key(|mistake| mistake.place.line);
    }

    fn read_top_level(&mut self, text: &TomlText, key: &TomlKey<'_>, value: &TomlValue<'_>) {
        let name = key.get_ref().as_ref();
        if name == "resource" {
            let mut reader = TomlReader {
                text,
                mistakes: &mut self.mistakes,
            };
            let names = &mut UniqueNames::default();
            self.config.resources = tables::read(Some(value), "resource", names, &mut reader);
            self.has_resources |= value
                .get_ref()
                .as_array()
                .is_none_or(|items| !items.is_empty());
        } else if name == "dispatch" {
            let mut reader = TomlReader {
                text,
                mistakes: &mut self.mistakes,
            };
            let names = &mut UniqueNames::default();
            self.config.dispatches = tables::read(Some(value), "dispatch", names, &mut reader);
            self.has_dispatches = true;
        } else if is_section(name) {
            self.read_section(text, name, key, value);
        } else {
            self.read_setting(text, "", key, value);
        }
    }

    fn read_section(
        &mut self,
        text: &TomlText,
        name: &str,
        key: &TomlKey<'_>,
        value: &TomlValue<'_>,
    ) {
        if let DeValue::Table(entries) = value.get_ref() {
            for (key, value) in entries {
                let path = dotted(name, key.get_ref());
                if is_section(&path) {
                    self.read_section(text, &path, key, value);
                } else if !tables::PRINCIPALS.contains(&path.as_str()) {
                    self.read_setting(text, name, key, value);
                }
            }
            if name == "auth" {
                let mut reader = TomlReader {
                    text,
                    mistakes: &mut self.mistakes,
                };
                // A principal is known by its name, so users and keys share the names.
                let names = &mut UniqueNames::default();
                let [users, keys] = tables::PRINCIPALS;
                let auth = &mut self.config.auth;
                auth.users = tables::read(entries.get("user"), users, names, &mut reader);
                auth.keys = tables::read(entries.get("key"), keys, names, &mut reader);
            }
        } else {
            let found = describe(value.get_ref());
            let message = format!("expected a section [{name}], found {found}");
            let mistake = text.mistake(key.span().start, name, message);
            self.mistakes.push(mistake);
        }
    }

    fn read_setting(
        &mut self,
        text: &TomlText,
        section: &str,
        key: &TomlKey<'_>,
        value: &TomlValue<'_>,
    ) {
        let path = dotted(section, key.get_ref());
        let Some(setting) =
            Setting::find(&path).filter(|setting| setting.section_and_key().0 == section)
        else {
            let message = unknown_setting(section, key.get_ref());
            self.mistakes
                .push(text.mistake(key.span().start, path, message));
            return;
        };
        let place = text.place(value.span().start, path);
        match (setting.slot)(&mut self.config).text_of(value.get_ref()) {
            Ok(text) => self.set(setting, &text, place),
            Err(error) => self.mistakes.push(mistake(&place, error.to_string())),
        }
    }

    /// Checks the files that settings name.
    pub(super) fn check_files(&mut self) {
        let mistake = fit::check_files(&self.config, &self.places);
        self.mistakes.extend(mistake);
    }

    fn set(&mut self, setting: &'static Setting, text: &str, place: Place) {
        match setting.put(&mut self.config, text) {
            Ok(()) => self.places.set(setting.path, place),
            Err(error) => self.mistakes.push(mistake(&place, error.to_string())),
        }
    }

    /// Without resources those of the demo are used. Beside a file and a database URL that is a mistake.
    fn fill_in_resources(&mut self) {
        if self.has_resources || self.has_dispatches || self.is_file_unreadable {
            return;
        }
        match self.file_end.take() {
            Some(place) if self.config.database_url.is_some() => {
                let message = "there is a database URL but nothing to serve: write at least \
                     [[resource]] with name = \"depts\" (for /depts/KEY) and table = \"public.dept\"";
                self.mistakes.push(mistake(&place, message));
            }
            _ => self.read_toml(&TomlText::new("built-in demo", DEMO), DEMO),
        }
    }
}

fn is_section(name: &str) -> bool {
    !name.is_empty() && SECTIONS.iter().any(|section| section.name == name)
}

/// The message about a key that its section does not have.
fn unknown_setting(section: &str, key: &str) -> String {
    let elsewhere = SETTINGS
        .iter()
        .map(Setting::section_and_key)
        .filter(|(_, other)| *other == key);
    let homes: Vec<String> = elsewhere
        .map(|(section, _)| match section {
            "" => "at the top of the file, before the first section".to_owned(),
            section => format!("under [{section}]"),
        })
        .collect();
    if !homes.is_empty() {
        return format!("unknown key here; it belongs {}", homes.join(" or "));
    }
    let settings = SETTINGS.iter().map(Setting::section_and_key);
    let keys = settings
        .filter(|(other, _)| *other == section)
        .map(|(_, key)| key);
    let sections = SECTIONS.iter().map(|section| section.name);
    let tables = sections
        .chain(tables::PRINCIPALS)
        .chain(["resource", "dispatch"]);
    let here = tables.filter_map(|name| match name.rsplit_once('.') {
        Some((above, name)) => (above == section).then_some(name),
        None => (section.is_empty() && !name.is_empty()).then_some(name),
    });
    unknown_key(key, keys.chain(here))
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::config::testing::load;

    #[test]
    fn flags_beat_environment_beats_file_beats_default() {
        let file = Some("workers = 3\n[memory]\nmax_bytes = '3MiB'");
        let environment = [
            ("LARDER_WORKERS", "4"),
            ("LARDER_MEMORY__MAX_BYTES", "4MiB"),
        ];
        let seen = |config: Config| {
            (
                config.workers,
                config.memory.bytes_max >> 20,
                config.disk.batch_entries,
            )
        };
        assert_eq!(seen(load(file, &[], &[]).unwrap()), (3, 3, 10_000));
        assert_eq!(seen(load(file, &environment, &[]).unwrap()), (4, 4, 10_000));
        let flags = [("workers", "5"), ("disk.batch", "5")];
        assert_eq!(seen(load(file, &environment, &flags).unwrap()), (5, 4, 5));
    }

    #[test]
    fn the_more_specific_url_variable_wins() {
        let file =
            Some("[database]\nurl = 'postgres://file/x'\n[[resource]]\nname = 'n'\ntable = 't'");
        let shared = ("DATABASE_URL", "postgres://shared/x");
        let own = ("LARDER_DATABASE__URL", "postgres://own/x");
        let url = |environment: &[(&str, &str)]| {
            load(file, environment, &[]).unwrap().database_url.unwrap()
        };
        assert_eq!(url(&[]), "postgres://file/x");
        assert_eq!(url(&[shared]), "postgres://shared/x");
        assert_eq!(url(&[own, shared]), "postgres://own/x");
        assert_eq!(
            url(&[("DATABASE_URL", "")]),
            "postgres://file/x",
            "an empty variable is absent"
        );
    }

    #[test]
    fn unknown_variables_of_a_section_are_mistakes() {
        let environment = [
            ("LARDER_MEMORY__MAXBYTES", "1"),
            ("LARDER_SERVICE_HOST", "10.0.0.1"),
            ("LARDER_RESOURCE__0__NAME", "x"),
            ("OTHER__THING", "x"),
            ("LARDER_WORKERS", "many"),
        ];
        let error = load(None, &environment, &[]).unwrap_err().to_string();
        let expected = "environment: LARDER_WORKERS: expected a whole number, found \"many\"\n\
             environment: LARDER_MEMORY__MAXBYTES: no such setting; did you mean LARDER_MEMORY__MAX_BYTES?\n\
             environment: LARDER_RESOURCE__0__NAME: resources can only be written in the file";
        assert_eq!(error, expected);
    }

    #[test]
    fn unknown_overrides_are_mistakes() {
        let error = Config::from_toml("", &[("feed.notfy", "true")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "command line: feed.notfy: unknown key; did you mean `feed.notify`?"
        );
    }
}
