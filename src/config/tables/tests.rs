use crate::config::{Config, testing};
use crate::resource::definition::{ResourceDefinition, Tiers};

const HASH: &str =
    "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
const KEY: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const ROOT: &str = "[[resource]]\nname = 'n'\ntable = 't'\n";

/// The lines below the root begin with 4.
#[track_caller]
fn only(below: &str, beginning: &str) {
    testing::only(&format!("{ROOT}{below}"), beginning);
}

fn root(below: &str) -> ResourceDefinition {
    Config::from_toml(&format!("{ROOT}{below}"), &[])
        .unwrap()
        .resources
        .remove(0)
}

#[test]
fn the_order_of_the_file_stays() {
    let row = root("fields = { z = 'c', a = 'b', m = 'a' }\n\
         [[resource.children]]\nname = 'y'\ntable = 't'\n[[resource.lookups]]\nname = 'x'\ntable = 't'\ncolumn = 'q'\n\
         [[resource.children]]\nname = 'w'\ntable = 't'").row;
    let fields = row.fields.unwrap();
    let pairs: Vec<(&str, &str)> = fields
        .iter()
        .map(|f| (&*f.column.value, &*f.name.value))
        .collect();
    assert_eq!(pairs, [("z", "c"), ("a", "b"), ("m", "a")]);
    let names: Vec<&str> = row
        .children
        .iter()
        .map(|child| &*child.name.value)
        .collect();
    assert_eq!(names, ["y", "w"]);
    assert_eq!(row.lookups[0].column.value, ["q"]);
}

#[test]
fn a_list_of_columns_is_a_table_of_fields_that_keep_their_names() {
    let list = root("fields = ['z', 'a']");
    let table = root("fields = { z = 'z', a = 'a' }");
    assert_eq!(list.hash(), table.hash());
    let again = crate::config::dump(
        &Config::from_toml(&format!("{ROOT}fields = ['z', 'a']"), &[]).unwrap(),
    );
    assert!(
        again.contains("fields = { z = \"z\", a = \"a\" }"),
        "{again}"
    );
    only(
        "fields = ['a']\n[[resource.children]]\nname = 'a'\ntable = 't'",
        "6: resource[0].children[0].name: duplicate field name: \"a\" is already used on line 4 by resource[0].fields[0]",
    );
    only(
        "fields = ['']",
        "4: resource[0].fields[0]: the field name is empty",
    );
}

#[test]
fn places_are_kept() {
    let root = root(
        "[[resource.children]]\nname = 'c'\ntable = 't'\norder_by = ['a',\n 'b']\nfields = { a = 'b' }",
    );
    let child = &root.row.children[0];
    let place = &child.order_by.as_ref().unwrap().place;
    assert_eq!(
        (place.line, place.key.as_str()),
        (7, "resource[0].children[0].order_by")
    );
    let field = &child.row.fields.as_ref().unwrap()[0];
    assert_eq!(
        field.column.place.to_string(),
        "larder.toml:9: resource[0].children[0].fields.a"
    );
}

#[test]
fn names_are_single_within_a_row() {
    only(
        "fields = { a = 'x', b = 'x' }",
        "4: resource[0].fields.b: duplicate field name: \"x\"",
    );
    only(
        "fields = { a = 'x' }\n[[resource.children]]\nname = 'x'\ntable = 't'",
        "6: resource[0].children[0].name: duplicate field name: \"x\" is already used on line 4 by resource[0].fields.a",
    );
    only(
        "[[resource.children]]\nname = 'x'\ntable = 't'\n[[resource.lookups]]\nname = 'x'\ntable = 't'\ncolumn = 'c'",
        "8: resource[0].lookups[0].name: duplicate field name",
    );
    let nested = "[[resource.children]]\nname = 'n'\ntable = 't'\n[[resource.children.children]]\nname = 'n'\ntable = 't'";
    assert_eq!(
        root(nested).row.children[0].row.children[0].name.value,
        "n",
        "another row, another space"
    );
}

#[test]
fn identifiers_fit_postgres() {
    only(
        "fields = { a = '' }",
        "4: resource[0].fields.a: the field name is empty",
    );
    only(
        "fields = { '' = 'a' }",
        "4: resource[0].fields.\"\": the column is empty",
    );
    only(
        &format!("fields = {{ a = '{}' }}", "x".repeat(64)),
        "4: resource[0].fields.a: the field name has 64 bytes",
    );
    only(
        &format!("key = '{}'", "é".repeat(32)),
        "4: resource[0].key: the column has 64 bytes",
    );
    only(
        "key = ['a', '']",
        "4: resource[0].key[1]: the column is empty",
    );
    assert_eq!(
        root(&format!("key = '{}'", "x".repeat(63)))
            .key
            .unwrap()
            .value[0]
            .len(),
        63
    );
}

#[test]
fn wrong_shapes_name_themselves() {
    only(
        "fields = 'a'",
        "4: resource[0].fields: expected { column = \"name\" } or a list of columns, found the string",
    );
    only("fields = []", "4: resource[0].fields: names no column");
    only(
        "fields = ['a', 1]",
        "4: resource[0].fields[1]: expected a string",
    );
    only(
        "fields = ['a', 'a']",
        "4: resource[0].fields[1]: `a` is named twice",
    );
    only(
        "fields = { a = 1 }",
        "4: resource[0].fields.a: expected a string, found the integer 1",
    );
    only(
        "fields.a.b = 'c'",
        "4: resource[0].fields.a: expected a string, found a table",
    );
    only(
        "children = { name = 'a' }",
        "4: resource[0].children: expected [[resource.children]], found a table",
    );
    only(
        "children = ['a']",
        "4: resource[0].children[0]: expected a table, found the string \"a\"",
    );
}

#[test]
fn lookups_need_a_column_and_have_no_children() {
    only(
        "[[resource.lookups]]\nname = 'x'\ntable = 't'",
        "4: resource[0].lookups[0].column: `column` is missing",
    );
    only(
        "[[resource.lookups]]\nname = 'x'\ntable = 't'\ncolumn = 'c'\n[[resource.lookups.children]]\nname = 'y'\ntable = 't'",
        "8: resource[0].lookups[0].children: unknown key",
    );
}

#[test]
fn conditions_are_texts_at_any_depth() {
    let row = root(
        "where = 'a is null'\n[[resource.children]]\nname = 'c'\ntable = 't'\n\
         [[resource.children.lookups]]\nname = 'l'\ntable = 't'\ncolumn = 'c'\nwhere = '\"where\" > 1'",
    )
    .row;
    assert_eq!(row.condition.unwrap().value, "a is null");
    let child = &row.children[0].row;
    assert!(child.condition.is_none());
    let condition = child.lookups[0].row.condition.as_ref().unwrap();
    assert_eq!(condition.value, "\"where\" > 1");
    assert_eq!(
        condition.place.to_string(),
        "larder.toml:12: resource[0].children[0].lookups[0].where"
    );
    for wrong in ["' '", "\"a = '\\u0000'\""] {
        only(
            &format!("where = {wrong}"),
            "4: resource[0].where: expected an SQL condition such as",
        );
    }
    only(
        "where = true",
        "4: resource[0].where: expected a string, found",
    );
}

#[test]
fn mistakes_at_any_depth_are_told_together() {
    let mistakes = testing::mistakes(&format!(
        "{ROOT}{}",
        "kee = 'x'\n[[resource.children]]\nname = 'c'\n[[resource.children.children]]\ntable = 't'\n\
         [[resource.children.children.lookups]]\nname = 'l'\ntable = 't'\ncolumn = []"
    ));
    let keys = [
        "4: resource[0].kee: ",
        "5: resource[0].children[0].table: ",
        "7: resource[0].children[0].children[0].name: ",
        "12: resource[0].children[0].children[0].lookups[0].column: ",
    ];
    assert_eq!(mistakes.len(), keys.len(), "{mistakes:#?}");
    for (mistake, key) in mistakes.iter().zip(keys) {
        assert!(mistake.starts_with(key), "{mistake}");
    }
}

#[test]
fn lists_are_neither_empty_nor_repeat() {
    only("key = []", "4: resource[0].key: the list is empty");
    only("fields = {}", "4: resource[0].fields: names no column");
    only(
        "key = ['a', 'b', 'a']",
        "4: resource[0].key[2]: `a` is named twice",
    );
    only(
        "key = 1",
        "4: resource[0].key: expected a column or a list of columns, found the integer 1",
    );
    only(
        "key = ['a', 1]",
        "4: resource[0].key[1]: expected a string, found the integer 1",
    );
    let key = |text: &str| {
        let config = Config::from_toml(&format!("{ROOT}{text}"), &[]).unwrap();
        config.resources[0].key.as_ref().unwrap().value.clone()
    };
    assert_eq!(key("key = 'a'"), ["a"]);
    assert_eq!(key("key = ['b', 'a']"), ["b", "a"]);
}

#[test]
fn a_resource_needs_name_and_table() {
    testing::only(
        "\n[[resource]]\ntable = 't'",
        "2: resource[0].name: `name` is missing",
    );
    testing::only(
        "[[resource]]\nname = 'n'",
        "1: resource[0].table: `table` is missing",
    );
    testing::only(
        "[[resource]]\nname = 'n'\ntable = ''",
        "3: resource[0].table: expected a table such as",
    );
    testing::only(
        "resource = 1",
        "1: resource: expected [[resource]], found the integer 1",
    );
    testing::only(
        "[resource]\nname = 'n'",
        "1: resource: expected [[resource]], found a table",
    );
}

#[test]
fn names_are_single_and_usable_in_a_path() {
    let two = "[[resource]]\nname = 'n'\ntable = 't'\n[[resource]]\nname = 'n'\ntable = 't'";
    testing::only(
        two,
        "5: resource[1].name: duplicate resource name: \"n\" is already used on line 2",
    );
    for name in ["a/b", "a b", "é", ".", "..", "a:batch", "a%20"] {
        let text = format!("[[resource]]\nname = '{name}'\ntable = 't'");
        testing::only(&text, "2: resource[0].name: ");
    }
    for name in ["docs", "openapi.json"] {
        let text = format!("[[resource]]\nname = '{name}'\ntable = 't'");
        testing::only(&text, "2: resource[0].name: ");
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
    testing::only(
        &with("['memory', 'tape']"),
        "4: resource[0].tiers[1]: expected \"memory\" or \"disk\", found \"tape\"",
    );
    testing::only(
        &with("['disk', 'disk']"),
        "4: resource[0].tiers[1]: `disk` is named twice",
    );
    testing::only(
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
    testing::only(
        &with("'a'"),
        "4: resource[0].filters: expected a list of fields such as [\"deptLocation\"], found",
    );
    testing::only(
        &with("['a', 'b', 'a']"),
        "4: resource[0].filters[2]: `a` is named twice",
    );
    testing::only(
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
            testing::only(
                &with(&format!("{key} = {wrong}")),
                &format!("4: resource[0].{key}: expected visible ASCII"),
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
    testing::only(
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
    testing::only(
        "[[resource]]\nname = 'n'\ntable = 't'\ntabel = 't'",
        "4: resource[0].tabel: unknown key; did you mean `table`?",
    );
}

#[test]
fn users_and_keys_are_read() {
    let text = format!(
        "[[auth.user]]\nname = 'anna'\npassword = '{HASH}'\nroles = ['a', 'b']\n\
         [[auth.key]]\nname = 'job'\nhash = '{KEY}'\n"
    );
    let auth = Config::from_toml(&text, &[]).unwrap().auth;
    assert_eq!(auth.users[0].roles, ["a", "b"]);
    assert_eq!(
        (auth.keys[0].name.as_str(), auth.keys[0].hash[0]),
        ("job", 0x9f)
    );
    assert!(auth.is_on() && !auth.signs_in());
}

#[test]
fn mistakes_name_their_place_and_no_secret() {
    testing::only(
        "[[auth.user]]\nname = 'a'\npassword = 's3cret'",
        "3: auth.user[0].password: expected what `larder hash-password` prints",
    );
    testing::only(
        "[[auth.user]]\nname = 'a'\npassword = 123456",
        "3: auth.user[0].password: expected a string, found something else (not shown)",
    );
    testing::only(
        "[[auth.user]]\nname = 'a'",
        "1: auth.user[0].password: `password` is missing",
    );
    testing::only(
        &format!("[[auth.key]]\nname = 'a'\nhash = '{}'", &KEY[1..]),
        "3: auth.key[0].hash: expected the key's SHA-256",
    );
    testing::only(
        &format!("[[auth.user]]\nname = 'a:b'\npassword = '{HASH}'"),
        "2: auth.user[0].name: expected a name without colons",
    );
    testing::only(
        &format!(
            "[[auth.user]]\nname = 'a'\npassword = '{HASH}'\n[[auth.key]]\nname = 'a'\nhash = '{KEY}'"
        ),
        "5: auth.key[0].name: duplicate principal name",
    );
    let upper = KEY.to_uppercase();
    testing::only(
        &format!(
            "[[auth.key]]\nname = 'a'\nhash = '{KEY}'\n[[auth.key]]\nname = 'b'\nhash = '{upper}'"
        ),
        "6: auth.key[1].hash: the key on line 3 has the same hash",
    );
    testing::only(
        &format!(
            "[[auth.user]]\nname = 'a'\npassword = '{HASH}'\n[[auth.user]]\nname = 'a'\npassword = '{HASH}'"
        ),
        "5: auth.user[1].name: duplicate principal name",
    );
    testing::only(
        "[[auth.usr]]\nname = 'a'",
        "1: auth.usr: unknown key; did you mean `user`?",
    );
    testing::only(
        "[auth.jtw]\nleeway = '1s'",
        "1: auth.jtw: unknown key; did you mean `jwt`?",
    );
    testing::only(
        "auth = 1",
        "1: auth: expected a section [auth], found the integer 1",
    );
    testing::only(
        "[auth.jwt]\nsecret = 123456",
        "2: auth.jwt.secret: expected a string, found something else (not shown)",
    );
}
