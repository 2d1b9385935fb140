//! `config --dump`: the configuration in force as TOML that reads back to the same one, but for what is masked.

use std::fmt::Write as _;

use super::Config;
use super::settings::{SECTIONS, SETTINGS};
use super::tables::PropertyTable;
use super::tables::PropertyValue::{Aliases, Children, Lookups, Owner, Sink};

/// A dump has these keys after the roles, other than the example file.
const LAST: [&str; 8] = [
    "cache_control",
    "surrogate_key",
    "fields",
    "owner",
    "by",
    "children",
    "lookups",
    "sink",
];

/// The configuration as TOML, with `***` in place of passwords, secrets and hashes; what is not set is left out.
pub fn dump(config: &Config) -> String {
    let mut config = config.clone();
    let mut out = String::new();
    for section in &SECTIONS {
        if !section.name.is_empty() {
            line(&mut out, format_args!("\n[{}]", section.name));
        }
        for setting in &SETTINGS {
            let (home, key) = setting.section_and_key();
            let value = (setting.slot)(&mut config)
                .show()
                .filter(|_| home == section.name);
            if let Some(value) = value {
                line(&mut out, format_args!("{key} = {value}"));
            }
        }
    }
    tables(&mut out, "auth.user", &mut config.auth.users);
    tables(&mut out, "auth.key", &mut config.auth.keys);
    tables(&mut out, "resource", &mut config.resources);
    tables(&mut out, "dispatch", &mut config.dispatches);
    out
}

fn tables<T: PropertyTable>(out: &mut String, header: &str, definitions: &mut [T]) {
    for definition in definitions {
        line(out, format_args!("\n[[{header}]]"));
        table(out, header, definition);
    }
}

/// A header ends the table above it, so a table's values come before the tables in it.
fn table<T: PropertyTable>(out: &mut String, header: &str, definition: &mut T) {
    let mut properties: Vec<_> = T::PROPERTIES.iter().collect();
    properties.sort_by_key(|property| LAST.contains(&property.key));
    for property in &properties {
        let header = format!("{header}.{}", property.key);
        match (property.value)(definition) {
            Owner(owner) => {
                if let Some(owner) = owner {
                    line(out, format_args!("\n[{header}]"));
                    table(out, &header, owner);
                }
            }
            Sink(sink) => {
                line(out, format_args!("\n[{header}]"));
                table(out, &header, sink);
            }
            Aliases(aliases) => tables(out, &header, aliases),
            Children(children) => tables(out, &header, children),
            Lookups(lookups) => tables(out, &header, lookups),
            value => {
                if let Some(value) = value.show() {
                    line(out, format_args!("{} = {value}", property.key));
                }
            }
        }
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string can't fail.
    writeln!(out, "{text}").unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"
        listen = "0.0.0.0:80"
        insecure = true
        install = "manual"
        workers = 3
        access_log = "combined"
        access_log_file = "a.log"
        [limits]
        requests_per_second = 50
        burst = 20
        trusted_proxies = ["10.0.0.0/8", "fd00::1"]
        proxy_protocol = ["10.1.0.0/16"]
        [database]
        url = "postgres://app@db.example/app?sslmode=require"
        listen_url = "postgres://app@direct.example/app"
        pooler = true
        [disk]
        max_bytes = 16777217
        linger = "1500ms"
        [feed]
        on_loss = "serve-stale"
        [auth.jwt]
        algorithms = ["RS256", "EdDSA"]
        jwks_url = "https://login.example/keys"
        leeway = "5s"
        [[resource]]
        name = "orders"
        table = '"a.b".c'
        key = ["no", "shop"]
        where = '''deleted_at is null and "a b" <> 'it''s\'
          and true'''
        tiers = ["disk"]
        row_security = "as-larder"
        read = ["anonymous"]
        write = []
        fields = { "a b" = "x\"y", z = "z", a = "a" }
          [[resource.children]]
          name = "lines"
          table = "line"
            [[resource.children.children]]
            name = "parts"
            table = "part"
            order_by = ["a", "b"]
              [[resource.children.children.lookups]]
              name = "kind"
              table = "kind"
              column = "kind"
              where = "active"
          [[resource.children]]
          name = "notes"
          table = "note"
          foreign_key = "order"
          where = "not hidden"
          [[resource.lookups]]
          name = "region"
          table = "region"
          column = ["a", "b"]
          fields = { id = "id" }
            [[resource.lookups.lookups]]
            name = "country"
            table = "country"
            column = "country_id"
        [[resource]]
        name = "plain"
        table = "plain"
    "#;

    #[test]
    fn a_dump_reads_back_to_the_same_configuration() {
        let config = Config::from_toml(FULL, &[("memory.max_bytes", "7MiB")]).unwrap();
        let again = Config::from_toml(&dump(&config), &[]).unwrap();
        assert_eq!(without_places(&again), without_places(&config));
        assert_eq!(dump(&again), dump(&config));
    }

    #[test]
    fn the_demo_dumps_too() {
        let config = Config::from_toml("", &[]).unwrap();
        let again = Config::from_toml(&dump(&config), &[]).unwrap();
        assert_eq!(without_places(&again), without_places(&config));
    }

    #[test]
    fn empty_lists_stay_empty() {
        let text = "[cors]\norigins = []\nmethods = []\nheaders = []";
        let config = Config::from_toml(text, &[]).unwrap();
        let again = Config::from_toml(&dump(&config), &[]).unwrap();
        for config in [config, again] {
            assert!(config.cors.origins.is_empty());
            assert!(config.cors.methods.is_empty() && config.cors.headers.is_empty());
        }
        assert!(Config::from_toml("[cors]\norigins = ['']", &[]).is_err());
    }

    #[test]
    fn passwords_are_masked() {
        let config = Config::from_toml(
            FULL,
            &[
                ("database.url", "postgres://app:s3cret@db/app"),
                (
                    "database.listen_url",
                    "postgres://db/app?user=app&password=s3cret",
                ),
            ],
        )
        .unwrap();
        let dump = dump(&config);
        assert!(!dump.contains("s3cret"), "{dump}");
        assert!(!format!("{config:?}").contains("s3cret"));
        assert!(dump.contains("postgres://app:***@db/app"), "{dump}");
        assert!(Config::from_toml(&dump, &[]).is_ok());
    }

    /// `Debug` without the places of values.
    fn without_places(config: &Config) -> String {
        let plain = (
            config.listen,
            config.admin,
            config.insecure,
            &config.state_dir,
            config.install,
            config.workers,
        );
        let times = (
            config.shutdown_delay,
            config.shutdown_timeout,
            config.request_timeout,
        );
        let urls = (&config.database_url, &config.listen_url);
        let parts = (
            &config.source,
            &config.memory,
            &config.disk,
            &config.feed,
            &config.audit,
            &config.auth,
            &config.resources,
        );
        let text = format!("{plain:?} {times:?} {urls:?} {parts:?}");
        let mut parts = text.split("Place {");
        let first = parts.next().unwrap().to_owned();
        parts.fold(first, |kept, part| kept + part.split_once('}').unwrap().1)
    }
}
