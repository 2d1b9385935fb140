//! `[[resource]]`: the shape of documents, read as far as that goes without a database.

use super::access;
use super::columns::{columns, relation};
use super::names::{Names, segment};
use super::rows::row;
use super::text::{Reader, Table, Value};
use super::value::{echo, found};
use crate::resource::definition::{Located, ResourceDefinition, Tiers};
use crate::resource::page::PARAMETERS;

/// What `[[resource]]` may hold.
pub(super) const RESOURCE_KEYS: [&str; 13] = [
    "name",
    "table",
    "key",
    "tiers",
    "row_security",
    "filters",
    "cache_control",
    "surrogate_key",
    "read",
    "write",
    "fields",
    "children",
    "lookups",
];

/// Reads the value of `resource`; what can't be used is left out and told in the reader's mistakes.
pub(super) fn read(value: &Value<'_>, reader: &mut Reader<'_>) -> Vec<ResourceDefinition> {
    let mut names = Names::default();
    let items = reader.list(Some(value), "resource").iter().enumerate();
    items
        .filter_map(|(index, item)| {
            let table = reader.table(item, format!("resource[{index}]"), &RESOURCE_KEYS)?;
            resource(&table, &mut names, reader)
        })
        .collect()
}

fn resource(
    table: &Table<'_, '_>,
    names: &mut Names,
    reader: &mut Reader<'_>,
) -> Option<ResourceDefinition> {
    let name = reader.required(table, "name").and_then(|name| {
        let usable = segment(&name, reader);
        names.claim(&name, "resource", reader);
        usable.then_some(name)
    });
    let root = relation(table, reader);
    let key = columns(table, "key", reader);
    let tiers = tiers(table, reader);
    let row_security_as_larder = row_security(table, reader);
    let filters = filters(table, reader);
    let cache_control = header_value(table, "cache_control", reader);
    let surrogate_key = header_value(table, "surrogate_key", reader);
    let read = access::roles(table, "read", reader);
    let write = access::roles(table, "write", reader);
    let row = row(table, reader);
    Some(ResourceDefinition {
        name: name?,
        table: root?,
        key,
        tiers,
        row_security_as_larder,
        filters,
        cache_control,
        surrogate_key,
        read,
        write,
        row,
    })
}

/// Absent: both. The empty list is a resource that is always asked of PostgreSQL.
fn tiers(table: &Table<'_, '_>, reader: &mut Reader<'_>) -> Tiers {
    let is_set = table.get("tiers").is_some();
    let mut tiers = Tiers {
        memory: !is_set,
        disk: !is_set,
    };
    let expected = "a list such as [\"memory\", \"disk\"]";
    let named = reader.strings(table, "tiers", expected);
    for tier in named.iter().flat_map(|named| &named.value) {
        match tier.value.as_str() {
            "memory" => tiers.memory = true,
            "disk" => tiers.disk = true,
            other => {
                let message = format!("expected \"memory\" or \"disk\", found {}", echo(other));
                reader.refuse_at(&tier.place, message);
            }
        }
    }
    tiers
}

/// A text that can be the value of a header.
fn header_value(
    table: &Table<'_, '_>,
    key: &str,
    reader: &mut Reader<'_>,
) -> Option<Located<String>> {
    let value = reader.string(table.get(key)?, table.path_of(key))?;
    let visible = |c: char| c == ' ' || c.is_ascii_graphic();
    let trimmed = value.value.trim() == value.value && !value.value.is_empty();
    if !trimmed || !value.value.chars().all(visible) {
        let message = "a header's value is not empty, and holds visible ASCII and spaces between";
        reader.refuse_at(&value.place, message);
    }
    Some(value)
}

/// Which fields there are is for the catalogue to say, where `fields` is absent.
fn filters(table: &Table<'_, '_>, reader: &mut Reader<'_>) -> Vec<Located<String>> {
    let expected = "a list of fields such as [\"deptLocation\"]";
    let filters = reader.strings(table, "filters", expected);
    let filters = filters.map_or_else(Vec::new, |filters| filters.value);
    for name in &filters {
        if PARAMETERS.contains(&name.value.as_str()) {
            let message = format!("`{}` is a parameter of every list", name.value);
            reader.refuse_at(&name.place, message);
        }
    }
    filters
}

fn row_security(table: &Table<'_, '_>, reader: &mut Reader<'_>) -> bool {
    let Some(value) = table.get("row_security") else {
        return false;
    };
    let as_larder = value.get_ref().as_str() == Some("as-larder");
    if !as_larder {
        let message = format!(
            "expected \"as-larder\" (everyone sees the rows that larder's role sees), found {}",
            found(value.get_ref())
        );
        reader.refuse(value.span().start, table.path_of("row_security"), message);
    }
    as_larder
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::config::testing::only;
    use crate::resource::definition::Tiers;

    #[test]
    fn a_resource_needs_name_and_table() {
        only(
            "\n[[resource]]\ntable = 't'",
            "2: resource[0].name: `name` is missing",
        );
        only(
            "[[resource]]\nname = 'n'",
            "1: resource[0].table: `table` is missing",
        );
        only(
            "[[resource]]\nname = 'n'\ntable = ''",
            "3: resource[0].table: expected a table such as",
        );
        only(
            "resource = 1",
            "1: resource: expected [[resource]], found the integer 1",
        );
        only(
            "[resource]\nname = 'n'",
            "1: resource: expected [[resource]], found a table",
        );
    }

    #[test]
    fn names_are_single_and_usable_in_a_path() {
        let two = "[[resource]]\nname = 'n'\ntable = 't'\n[[resource]]\nname = 'n'\ntable = 't'";
        only(
            two,
            "5: resource[1].name: two resources of one name: \"n\" is already taken on line 2",
        );
        for name in ["a/b", "a b", "é", ".", "..", "a:batch", "a%20"] {
            let text = format!("[[resource]]\nname = '{name}'\ntable = 't'");
            only(&text, "2: resource[0].name: ");
        }
        for name in ["docs", "openapi.json"] {
            let text = format!("[[resource]]\nname = '{name}'\ntable = 't'");
            only(&text, "2: resource[0].name: ");
        }
        for name in ["a", "A-1_b.c~", "...", "0", "docs.json"] {
            let text = format!("[[resource]]\nname = '{name}'\ntable = 't'");
            assert_eq!(
                Config::from_toml(&text, &[]).unwrap().resources[0]
                    .name
                    .value,
                name
            );
        }
    }

    #[test]
    fn tiers_are_known_and_named_once() {
        let with = |tiers: &str| format!("[[resource]]\nname = 'n'\ntable = 't'\ntiers = {tiers}");
        only(
            &with("['memory', 'tape']"),
            "4: resource[0].tiers[1]: expected \"memory\" or \"disk\", found \"tape\"",
        );
        only(
            &with("['disk', 'disk']"),
            "4: resource[0].tiers[1]: `disk` is named twice",
        );
        only(
            &with("'disk'"),
            "4: resource[0].tiers: expected a list such as",
        );
        let tiers = |text: &str| Config::from_toml(text, &[]).unwrap().resources[0].tiers;
        assert_eq!(
            tiers(&with("['disk']")),
            Tiers {
                memory: false,
                disk: true
            }
        );
        assert_eq!(
            tiers(&with("[]")),
            Tiers {
                memory: false,
                disk: false
            }
        );
        assert_eq!(
            tiers("[[resource]]\nname = 'n'\ntable = 't'"),
            Tiers {
                memory: true,
                disk: true
            }
        );
    }

    #[test]
    fn filters_are_a_list_of_names() {
        let with =
            |filters: &str| format!("[[resource]]\nname = 'n'\ntable = 't'\nfilters = {filters}");
        only(
            &with("'a'"),
            "4: resource[0].filters: expected a list of fields such as [\"deptLocation\"], found",
        );
        only(
            &with("['a', 'b', 'a']"),
            "4: resource[0].filters[2]: `a` is named twice",
        );
        only(
            &with("['limit']"),
            "4: resource[0].filters[0]: `limit` is a parameter of every list",
        );
        let config = Config::from_toml(&with("['a', 'b']"), &[]).unwrap();
        assert_eq!(config.resources[0].filters[1].value, "b");
        assert!(crate::config::dump(&config).contains("filters = [\"a\", \"b\"]\n"));
    }

    #[test]
    fn header_values_are_checked() {
        let with = |line: &str| format!("[[resource]]\nname = 'n'\ntable = 't'\n{line}");
        for key in ["cache_control", "surrogate_key"] {
            for wrong in ["''", "' a'", "\"a\\nb\"", "'é'"] {
                only(
                    &with(&format!("{key} = {wrong}")),
                    &format!("4: resource[0].{key}: a header's value is"),
                );
            }
            let text = with(&format!("{key} = 'x-{{key}} y'"));
            let config = Config::from_toml(&text, &[]).unwrap();
            let dump = crate::config::dump(&config);
            assert!(
                dump.contains(&format!("{key} = \"x-{{key}} y\"\n")),
                "{dump}"
            );
        }
    }

    #[test]
    fn row_security_is_accepted_in_so_many_words() {
        let with =
            |value: &str| format!("[[resource]]\nname = 'n'\ntable = 't'\nrow_security = {value}");
        only(
            &with("true"),
            "4: resource[0].row_security: expected \"as-larder\"",
        );
        assert!(
            Config::from_toml(&with("'as-larder'"), &[])
                .unwrap()
                .resources[0]
                .row_security_as_larder
        );
    }

    #[test]
    fn unknown_keys_suggest_the_nearest() {
        only(
            "[[resource]]\nname = 'n'\ntable = 't'\ntabel = 't'",
            "4: resource[0].tabel: unknown key; did you mean `table`?",
        );
    }
}
