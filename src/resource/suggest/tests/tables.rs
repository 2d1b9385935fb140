//! Names, keys, columns, and tables that are not served.

use crate::resource::catalogue::{ForeignKey, TableName};
use crate::resource::suggest::tests::{Database, outline, owned};
use crate::resource::value::ValueType;

#[test]
fn names_of_resources_fit_a_path_and_are_not_taken() {
    let mut database = Database::default();
    let long = "ü".repeat(31);
    for name in [
        "docs", "a b/c", "é", "è", "a/t", "b/t", "a/b_t", "..", "Order", "order", "signin", &long,
    ] {
        let schema_and_name = if name == "a b/c" {
            "public/a b/c"
        } else {
            name
        };
        database.add(schema_and_name, "id int8");
    }
    database.add("a_b/t", "id int8").add("a/b_t2", "id int8");
    let names: Vec<String> = database
        .suggest()
        .resources
        .into_iter()
        .map(|resource| resource.name)
        .collect();
    let expected = [
        "public_docs",
        "a_b_c",
        "_",
        "public__",
        "t",
        "b_t",
        "a_b_t",
        "__",
        "Order",
        "order",
        "public_signin",
        &"_".repeat(31),
        "a_b_t_2",
        "b_t2",
    ];
    assert_eq!(names, expected);
}

#[test]
fn names_are_cut_and_numbered() {
    use crate::resource::suggest::names::Names;
    let mut names = Names::default();
    let long = "é".repeat(40);
    assert_eq!(names.give(std::slice::from_ref(&long)), "é".repeat(31));
    assert_eq!(
        names.give(std::slice::from_ref(&long)),
        format!("{}_2", "é".repeat(30))
    );
    assert_eq!(names.give(&["x".to_owned(), long]), "x");
}

/// Each of 6,000 names in other letters tried all numbers before its own, which took 20 s.
#[test]
fn equal_names_are_numbered_without_trying_each_number() {
    use crate::resource::suggest::names::Names;
    let mut names = Names::default();
    let same = ["__".to_owned()];
    let began = tokio::time::Instant::now();
    let given: std::collections::HashSet<String> = (0..30_000).map(|_| names.give(&same)).collect();
    assert_eq!(given.len(), 30_000);
    // It takes 0.1 s, and took minutes.
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}

#[test]
fn keys_are_primary_else_unique_and_not_null() {
    let mut database = Database::default();
    database
        .add("a", "id interval, code text, two? text")
        .unique(&["two"])
        .unique(&["code"])
        .add("b", "id interval")
        .add("c", "id int8, n? int8")
        .keyless()
        .unique(&["n"])
        .add("d", "x int8, y int8, z int8")
        .keyless()
        .unique(&["x", "y"])
        .unique(&["z"]);
    let suggestion = database.suggest();
    assert_eq!(outline(&suggestion), "/a by code\n/d by z\n");
    let [b, c] = &suggestion.left_out[..] else {
        panic!("{:?}", suggestion.left_out);
    };
    assert_eq!(b.name, "public.b");
    assert!(
        b.why
            .starts_with("has a key with column id, which is of type interval"),
        "{b:?}"
    );
    assert!(
        c.why
            .starts_with("has no primary key, and no other unique key"),
        "{c:?}"
    );
}

#[test]
fn secrets_are_left_out() {
    let mut database = Database::default();
    database
        .add(
            "users",
            "id int8, passwd text, PassWord text, secret_key text, accessToken text, salt? text, hash text, digest text, \
             api_key text, apiKey text, private_key text, session_key text, session_data text, name text",
        )
        .unique(&["api_key"])
        .unique(&["name"])
        .add("keys", "token text, n int8");
    let suggestion = database.suggest();
    let users = &suggestion.resources[0];
    assert_eq!(users.row.fields, ["id", "name"]);
    assert_eq!(users.row.left_out.len(), 12);
    assert!(!users.row.needed.contains(&"salt".to_owned()) && users.row.needed.len() == 11);
    assert_eq!(users.filters, ["name"]);
    assert_eq!(users.by.len(), 1);
    assert_eq!(users.by[0].name, "name");
    let keys = suggestion.resources[1].off.as_ref().unwrap();
    assert!(
        keys.contains("column token of its key may hold a secret"),
        "{keys}"
    );
}

/// Values of a foreign key are those that it refers to.
#[test]
fn what_shows_a_secret_is_left_out() {
    let mut database = Database::default();
    database
        .add("session", "session_key text, n int8")
        .primary(&["session_key"])
        .add("login", "id int8, session_id text, account row")
        .refers(&["session_id"], "public.session")
        .unique(&["session_id"])
        .add("visit", "id int8, login_id text, other_id int8")
        .refers(&["other_id"], "public.login")
        .add("meeting", "id text, topic text")
        .add("guest", "id int8, session_id text")
        .refers(&["session_id"], "public.meeting")
        .add("vault", "token text, n int8");
    database.surveyed().is_readable = false;
    database
        .add("claim", "id int8, vault_id text")
        .refers(&["vault_id"], "public.vault");
    let login = database
        .catalogue
        .tables
        .get("public.login")
        .unwrap()
        .name
        .oid;
    let visit = database.catalogue.tables.get_mut("public.visit").unwrap();
    visit.foreign_keys.push(ForeignKey {
        columns: owned(&["login_id"]),
        target: login,
        target_columns: owned(&["session_id"]),
        cascades: false,
        deferrable: None,
    });
    let table = database.catalogue.tables.get_mut("public.login").unwrap();
    let part = ("password".to_owned(), ValueType::Other);
    table.columns[2].value = ValueType::Array(Box::new(ValueType::Composite(vec![part])));
    let suggestion = database.suggest();
    let resource = |name: &str| {
        let mut resources = suggestion.resources.iter();
        resources.find(|resource| resource.name == name).unwrap()
    };
    assert_eq!(resource("login").row.fields, ["id"]);
    assert!(resource("login").by.is_empty() && resource("login").filters.is_empty());
    assert_eq!(resource("visit").row.fields, ["id", "other_id"]);
    assert_eq!(resource("claim").row.fields, ["id"]);
    // It has the key of a meeting, which is shown.
    assert!(resource("guest").row.left_out.is_empty());
    // Rows of sessions change too often to be shown.
    let session = &resource("login").row.lookups[0];
    assert!(
        session.off.as_ref().unwrap().contains("sessions"),
        "{session:?}"
    );
}

#[test]
fn rows_that_are_marked_as_deleted_are_told_of() {
    for (column, condition) in [
        ("deleted_at? timestamptz", Some("deleted_at is null")),
        ("deletedAt? timestamp", Some("\"deletedAt\" is null")),
        ("is_deleted bool", Some("is_deleted is not true")),
        ("deleted int2", Some("deleted = 0")),
        ("deleted? int8", Some("coalesce(deleted, 0) = 0")),
        ("removed_on? date", Some("removed_on is null")),
        ("deleted_at timestamptz", None),
        ("deleted_by? int8", None),
        ("undeleted bool", None),
    ] {
        let mut database = Database::default();
        database.add("a", &format!("id int8, {column}"));
        let suggestion = database.suggest();
        assert_eq!(
            suggestion.resources[0].row.not_deleted.as_deref(),
            condition,
            "{column}"
        );
    }
}

#[test]
fn sessions_and_queues_are_offered_only() {
    let mut database = Database::default();
    for (name, columns) in [
        ("sessions", "id int8"),
        (
            "django_session",
            "id text, session_data text, expire_date timestamptz",
        ),
        (
            "delayed_jobs",
            "id int8, attempts int8, run_at? timestamptz, handler text",
        ),
        ("solid_queue_ready", "id int8"),
        ("training_sessions", "id int8, room text"),
        ("jobs", "id int8, title text, queue text"),
    ] {
        database.add(name, columns);
    }
    let expected = "#/sessions\n#/django_session\n#/delayed_jobs\n#/solid_queue_ready\n/training_sessions\n/jobs\n";
    assert_eq!(outline(&database.suggest()), expected);
}

#[test]
fn tables_that_are_not_served_say_why() {
    let mut database = Database::default();
    database
        .add("schema_migrations", "version text")
        .add("Flyway_Schema_History", "installed_rank int8")
        .add("migrations", "id int8, migration text, batch int8")
        .add("spatial_ref_sys", "srid int8");
    database.surveyed().extension = Some("postgis".into());
    database.add("hidden", "id int8");
    database.surveyed().is_readable = false;
    database.add("apart/hidden", "id int8");
    database.surveyed().is_usable = false;
    database.surveyed().is_readable = false;
    for kind in ['v', 'm', 'f'] {
        database.add(&format!("kind_{kind}"), "id int8");
        database.surveyed().kind = kind;
    }
    database
        .add("part", "id int8, secret_id? int8")
        .refers(&["secret_id"], "public.hidden");
    database.surveyed().unreadable_columns = vec!["secret_id".into()];
    let suggestion = database.suggest();
    assert_eq!(outline(&suggestion), "/part\n");
    let told: Vec<String> = suggestion
        .left_out
        .iter()
        .map(|left| format!("{} {}", left.name, left.why))
        .collect();
    for (told, expected) in told.iter().zip([
        "public.schema_migrations holds the state of a migration tool",
        "public.Flyway_Schema_History holds",
        "public.migrations holds",
        "public.spatial_ref_sys belongs to extension postgis",
        "public.hidden can't be read by larder's role, which needs: grant select on \"public\".\"hidden\"",
        "apart.hidden can't be read by larder's role, which needs: grant usage on schema \"apart\" and grant select on \"apart\".\"hidden\"",
        "public.kind_v is a view; ",
        "public.kind_m is a materialized view; ",
        "public.kind_f is a foreign table",
    ]) {
        assert!(told.starts_with(expected), "{told}");
    }
    assert_eq!(told.len(), 9);
}

#[test]
fn what_is_refused_is_off_with_its_message() {
    use crate::resource::catalogue::Descendant;
    let mut database = Database::default();
    database
        .add("a", "id int8")
        .add("a_part", "id int8, a_id int8")
        .belongs(&["a_id"], "public.a");
    let foreign = Descendant {
        name: TableName {
            oid: 99,
            schema: "public".into(),
            name: "far".into(),
        },
        kind: 'f',
    };
    database.last().descendants.push(foreign);
    let suggestion = database.suggest();
    // Nothing shows the child, so it gets a resource, which is refused, too.
    assert_eq!(
        outline(&suggestion),
        "/a\n  #- a_part by a_id\n#/a_part\n  > a by a_id\n"
    );
    let why = suggestion.resources[0].row.children[0]
        .off
        .as_ref()
        .unwrap();
    assert!(why.contains("public.far is a foreign table"), "{why}");
    // To remove the `#` is not enough.
    assert!(why.starts_with("larder refuses it: "), "{why}");
}

#[test]
fn columns_that_depend_on_other_rows_are_left_out() {
    let mut database = Database::default();
    database.add("a", "id int8, kind regclass");
    database.last().columns[1].dependent = Some("whose text depends on other rows".into());
    let suggestion = database.suggest();
    assert_eq!(suggestion.resources[0].row.fields, ["id"]);
    assert_eq!(suggestion.resources[0].row.left_out[0].name, "kind");
}

/// A name of 63 bytes in another encoding may have more in UTF-8.
#[test]
fn columns_that_can_not_be_named_are_left_out() {
    let mut database = Database::default();
    let long = "é".repeat(40);
    database
        .add("a", &format!("id int8, {long} int8"))
        .unique(&[&long])
        .refers(&[&long], "public.a");
    let suggestion = database.suggest();
    assert_eq!(outline(&suggestion), "/a\n");
    let resource = &suggestion.resources[0];
    assert_eq!((resource.row.fields.len(), resource.by.len()), (1, 0));
    assert!(resource.row.left_out[0].why.contains("more than 63 bytes"));
}

/// `where` on such a column was refused once it was taken.
#[test]
fn deleted_rows_are_hidden_by_a_column_that_can_be_read_and_has_a_fitting_type() {
    let mut database = Database::default();
    database.add("a", "id int8, deleted jsonb, trashed bool");
    let hides = |database: &Database| {
        let suggestion = database.suggest();
        suggestion.resources[0].row.not_deleted.clone()
    };
    assert_eq!(hides(&database).as_deref(), Some("trashed is not true"));
    database.surveyed().unreadable_columns = owned(&["trashed"]);
    assert_eq!(hides(&database), None);
}

#[test]
fn tables_in_a_schema_called_larder_are_named() {
    let mut database = Database::default();
    database.add("larder/shelf", "id int8");
    let suggestion = database.suggest();
    assert_eq!(suggestion.left_out[0].name, "larder.shelf");
    assert!(suggestion.left_out[0].why.contains("schema larder"));
}
