//! `config --example`: a file that says what can be set, with the defaults commented out.

use std::fmt::Write as _;

use super::Config;
use super::settings::{Preset, SECTIONS, SETTINGS, Setting};
use super::tables::PropertyTable;
use crate::auth::config::{KeyDefinition, UserDefinition};
use crate::dispatch::definition::{DispatchDefinition, SinkDefinition};
use crate::resource::definition::{
    AliasDefinition, ChildDefinition, LookupDefinition, OwnerDefinition, ResourceDefinition,
};

const HEAD: &str = "\
# Configuration of larder. `# ` begins a comment. `#` without a space begins a setting at its default, or an example:
# remove the `#` to set it. Flags override environment variables, and these override this file.
# The variable of a setting is LARDER_KEY or LARDER_SECTION__KEY, such as LARDER_MEMORY__MAX_BYTES.

";

/// A second level of children and of lookups.
const CHILD_OF_CHILD: &str = r#"
    # A child of the child, which may have children and lookups too.
    #[[resource.children.children]]
    #name = "skills"
    #table = "public.skill"
    #foreign_key = "empno"
"#;
const LOOKUP_OF_LOOKUP: &str = r#"
    #[[resource.lookups.lookups]]
    #name = "country"
    #table = "public.country"
    #column = "country_id"
"#;

/// The example file; as it stands it is the demo's configuration.
pub fn example() -> String {
    let mut scratch = Config::blank();
    let mut out = HEAD.to_owned();
    for section in &SECTIONS {
        if !section.name.is_empty() {
            // Writing to a string can't fail.
            write!(out, "\n# {}\n[{}]\n", section.help, section.name).unwrap_or_default();
        }
        for setting in SETTINGS
            .iter()
            .filter(|setting| setting.section_and_key().0 == section.name)
        {
            out.push_str(&lines(setting, &mut scratch));
        }
    }
    out.push_str(&table::<UserDefinition>("", "[[auth.user]]"));
    out.push_str(&table::<KeyDefinition>("", "[[auth.key]]"));
    out.push_str(&table::<ResourceDefinition>("", "[[resource]]"));
    out.push_str(&table::<OwnerDefinition>("  ", "[resource.owner]"));
    out.push_str(&table::<AliasDefinition>("  ", "[[resource.by]]"));
    out.push_str(&table::<ChildDefinition>("  ", "[[resource.children]]"));
    out.push_str(CHILD_OF_CHILD);
    out.push_str(&table::<LookupDefinition>("  ", "[[resource.lookups]]"));
    out.push_str(LOOKUP_OF_LOOKUP);
    out.push_str(&table::<DispatchDefinition>("", "[[dispatch]]"));
    out.push_str(&table::<SinkDefinition>("  ", "[dispatch.sink]"));
    out
}

/// The comment about one setting, and its line behind a `#`.
fn lines(setting: &Setting, scratch: &mut Config) -> String {
    let (Preset::Value(text) | Preset::Absent(text) | Preset::Instead(text)) = setting.preset;
    // That every preset is valid is a test of the table of settings.
    let value = match setting.put(scratch, text) {
        Ok(()) => (setting.slot)(scratch).show().unwrap_or_default(),
        Err(_) => String::new(),
    };
    let bounds = (setting.slot)(scratch)
        .bounds()
        .map(|bounds| format!(" ({bounds})"))
        .unwrap_or_default();
    let (_, key) = setting.section_and_key();
    // A comment, since it can't be set together with the setting above.
    let mark = match setting.preset {
        Preset::Instead(_) => "# instead: ",
        _ => "#",
    };
    format!("# {}{bounds}\n{mark}{key} = {value}\n", setting.help)
}

/// The lines of one table.
fn table<T: PropertyTable>(indent: &str, header: &str) -> String {
    let mark = |is_set: bool| if is_set { "" } else { "#" };
    let is_set = T::PROPERTIES.iter().any(|property| property.is_set);
    let mut lines = vec![String::new()];
    lines.extend(T::HELP.lines().map(|line| format!("# {line}")));
    lines.push(format!("{}{header}", mark(is_set)));
    for property in T::PROPERTIES
        .iter()
        .filter(|property| !property.example.is_empty())
    {
        lines.extend(property.help.lines().map(|line| format!("# {line}")));
        let (key, example) = (property.key, property.example);
        lines.push(format!("{}{key} = {example}", mark(property.is_set)));
    }
    let indented = lines.iter().map(|line| format!("{indent}{line}"));
    indented.fold(String::new(), |text, line| text + line.trim_end() + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of the properties that are no tables.
    fn keys<T: PropertyTable>() -> Vec<&'static str> {
        let values = T::PROPERTIES
            .iter()
            .filter(|property| !property.example.is_empty());
        values.map(|property| property.key).collect()
    }

    /// Removes the `#` from every line that is no comment.
    fn uncommented() -> String {
        let setting = |line: &str| {
            let text = line.trim_start();
            let set = text.strip_prefix('#').filter(|rest| !rest.starts_with(' '));
            format!("{}\n", set.unwrap_or(line))
        };
        example().lines().map(setting).collect()
    }

    #[test]
    fn the_example_is_the_demo() {
        let example = Config::from_toml(&example(), &[]).unwrap();
        let demo = Config::from_toml("", &[]).unwrap();
        assert_eq!(crate::config::dump(&example), crate::config::dump(&demo));
    }

    #[test]
    fn every_setting_of_the_example_is_valid() {
        let config = Config::from_toml(&uncommented(), &[]).unwrap();
        assert_eq!(config.workers, 2);
        let resource = &config.resources[0];
        assert_eq!(
            resource.row.children[0].row.children[0].name.value,
            "skills"
        );
        assert_eq!(resource.row.lookups[0].row.lookups[0].name.value, "country");
        assert!(resource.row_security_as_larder);
    }

    /// Its users would be open to every reader of the documentation. It was the hash of `test`.
    #[test]
    fn no_key_of_the_example_is_known() {
        let config = Config::from_toml(&uncommented(), &[]).unwrap();
        assert_eq!(config.auth.keys[0].hash, [0; 32]);
        assert!(
            config.auth.users[0]
                .password
                .expose()
                .ends_with("$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
        );
    }

    #[test]
    fn the_example_shows_every_key() {
        let text = uncommented();
        let shows = |key: &str| {
            text.lines()
                .any(|line| line.trim_start().starts_with(&format!("{key} = ")))
        };
        for setting in &SETTINGS {
            let (_, key) = setting.section_and_key();
            let instead = text.contains(&format!("# instead: {key} = "));
            assert!(instead || shows(key), "{}", setting.path);
        }
        let keys = [
            keys::<ResourceDefinition>(),
            keys::<OwnerDefinition>(),
            keys::<AliasDefinition>(),
            keys::<ChildDefinition>(),
            keys::<LookupDefinition>(),
            keys::<UserDefinition>(),
            keys::<KeyDefinition>(),
            keys::<DispatchDefinition>(),
            keys::<SinkDefinition>(),
        ];
        for key in keys.concat() {
            assert!(shows(key), "{key}");
        }
        for header in [
            "[resource.owner]",
            "[[resource.by]]",
            "[[resource.children]]",
            "[[resource.lookups]]",
            "[[dispatch]]",
            "[dispatch.sink]",
        ] {
            assert!(text.contains(header), "{header}");
        }
    }
}
