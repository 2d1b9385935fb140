//! `config --example`: a file that says what can be set, with the defaults commented out.

use std::fmt::Write as _;

use super::Config;
use super::settings::{Preset, SECTIONS, SETTINGS, Setting};

const HEAD: &str = "\
# larder's configuration. `# ` begins a remark; a line that begins with `#` alone is a setting at its default
# or an example: take the `#` away to set it. Flags beat environment variables beat this file.
# The variable of a setting is LARDER_KEY or LARDER_SECTION__KEY, such as LARDER_MEMORY__MAX_BYTES.

";

const AUTH: &str = r##"
# Who may sign in by name and password (HTTP Basic, POST /signin).
#[[auth.user]]
#name = "anna"
# What `larder hash-password` prints.
#password = "$argon2id$v=19$m=19456,t=2,p=1$c29tZSBzYWx0IGZvciBh$WHqF8SBHpn2Nn2Bf5lxYJWYIV2WEgx4T4UbS1xpQwU4"
#roles = ["staff"]

# A program's key, sent as Authorization: Bearer KEY or X-API-Key: KEY. Draw it, since a plain hash keeps no guessable
# one: openssl rand -hex 32.
#[[auth.key]]
#name = "reporting"
# The key's SHA-256: printf %s KEY | sha256sum
#hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
#roles = ["reports"]
"##;

const RESOURCES: &str = r##"
# One resource: the JSON documents under /depts/KEY.
[[resource]]
# The segment of the path.
name = "depts"
# The root table; a document is one of its rows.
table = "public.dept"
# The key's columns, a unique key of the table: one, or a list such as ["no", "shop"] for /orders/7,NO.
# Absent: the primary key.
key = "deptno"
# The tiers in use. [] asks PostgreSQL every time.
#tiers = ["memory", "disk"]
# A table with row security is refused unless everyone may see the rows that larder's role sees.
#row_security = "as-larder"
# Fields that lists may be asked by, as in /depts?deptLocation=eq.BOSTON; each column should have an index.
#filters = ["deptLocation"]
# What caches may do with its answers. Absent: "no-cache", ask again each time.
#cache_control = "public, max-age=1"
# Names by which shared caches purge its answers; {key} is the document's key. Absent: none.
#surrogate_key = "dept-{key} depts"
# The roles that may GET, and those that may POST, PUT, PATCH and DELETE; "anonymous" needs no credentials.
# Absent: everyone who is authenticated. [] is nobody.
#read = ["anonymous"]
#write = ["staff"]
# Column = name in the document, in the document's order. Absent: every column under its own name.
fields = { deptno = "deptNumber", dname = "deptName", loc = "deptLocation" }

  # An array of objects: the rows that point to this row. Children nest to any depth.
  [[resource.children]]
  name = "emps"
  table = "public.emp"
  # The child's column, or list of columns, that holds the parent's key. Absent: the one foreign key there is.
  foreign_key = "deptno"
  # The order within the array. Absent: the child's primary key.
  order_by = ["empno"]
  fields = { empno = "empNo", ename = "empName", job = "job", mgr = "mgr", hiredate = "hiredate", sal = "sal", comm = "comm", deptno = "deptNumber" }

    # A child of the child, which may have children and lookups too.
    #[[resource.children.children]]
    #name = "skills"
    #table = "public.skill"
    #foreign_key = "empno"

  # One object or null: the row that this row points to. Lookups nest, but have no children.
  #[[resource.lookups]]
  #name = "site"
  #table = "public.site"
  # The column, or list of columns, of the table above that holds the looked-up row's key.
  #column = "site_id"
  #fields = { site_id = "siteNumber", city = "city" }

    #[[resource.lookups.lookups]]
    #name = "country"
    #table = "public.country"
    #column = "country_id"
"##;

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
    out.push_str(AUTH);
    out.push_str(RESOURCES);
    out
}

/// The remark about one setting and its commented line.
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
    // A remark, since it can't be set beside the setting above.
    let mark = match setting.preset {
        Preset::Instead(_) => "# instead: ",
        _ => "#",
    };
    format!("# {}{bounds}\n{mark}{key} = {value}\n", setting.help)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::access::{KEY_KEYS, USER_KEYS};
    use crate::config::resources::RESOURCE_KEYS;
    use crate::config::rows::{CHILD_KEYS, LOOKUP_KEYS};

    /// Takes the `#` from every line that is no remark.
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
            &RESOURCE_KEYS[..],
            &CHILD_KEYS,
            &LOOKUP_KEYS,
            &USER_KEYS,
            &KEY_KEYS,
        ];
        let keys = keys.concat();
        for key in keys
            .iter()
            .filter(|key| !["children", "lookups"].contains(key))
        {
            assert!(shows(key), "{key}");
        }
        assert!(text.contains("[[resource.children]]") && text.contains("[[resource.lookups]]"));
    }
}
