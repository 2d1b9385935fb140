//! Each rule, on small databases.

use std::fmt::Write;

use crate::resource::catalogue::{
    Catalogue, Column, ForeignKey, OnWrite, Table, TableName, UniqueKey,
};
use crate::resource::suggest::survey::{ColumnStatistics, Survey, SurveyedTable};
use crate::resource::suggest::{SuggestOptions, SuggestedRow, Suggestion, suggest};
use crate::resource::value::ValueType;

/// A database that is described table by table. All columns are indexed that are said to be.
#[derive(Default)]
struct Database {
    survey: Survey,
    catalogue: Catalogue,
}

impl Database {
    /// Adds a table. A column is `name type`, with `?` behind the name if it may be null; the first one is the primary key.
    fn add(&mut self, name: &str, columns: &str) -> &mut Self {
        let (schema, name) = name.split_once('/').unwrap_or(("public", name));
        let oid = u32::try_from(self.survey.tables.len()).unwrap() + 1;
        let name = TableName {
            oid,
            schema: schema.into(),
            name: name.into(),
        };
        self.survey.tables.push(SurveyedTable {
            name: name.clone(),
            kind: 'r',
            rows: 10.0,
            extension: None,
            is_readable: true,
            unreadable_columns: Vec::new(),
        });
        let columns: Vec<Column> = columns.split(", ").map(column).collect();
        let first = columns[0].name.clone();
        let table = Table {
            kind: 'r',
            row_security: None,
            has_other_ancestors: false,
            uncached: None,
            columns,
            unique_keys: Vec::new(),
            foreign_keys: Vec::new(),
            indexes: Vec::new(),
            descendants: Vec::new(),
            on_write: OnWrite::default(),
            name: name.clone(),
        };
        self.catalogue.tables.insert(name.written(), table);
        self.unique(&[&first]);
        self.last().unique_keys[0].primary = true;
        self
    }

    /// The table that was added last.
    fn last(&mut self) -> &mut Table {
        let name = self.survey.tables.last().unwrap().name.written();
        self.catalogue.tables.get_mut(&name).unwrap()
    }

    /// The last table has no key so far.
    fn keyless(&mut self) -> &mut Self {
        self.last().unique_keys.clear();
        self.last().indexes.clear();
        self
    }

    /// Replaces the primary key of the last table.
    fn primary(&mut self, columns: &[&str]) -> &mut Self {
        self.keyless().unique(columns);
        self.last().unique_keys[0].primary = true;
        self
    }

    fn unique(&mut self, columns: &[&str]) -> &mut Self {
        let columns = owned(columns);
        self.last().unique_keys.push(UniqueKey {
            columns: columns.clone(),
            primary: false,
            deferrable: false,
        });
        self.last().indexes.push(columns);
        self
    }

    fn indexed(&mut self, columns: &[&str]) -> &mut Self {
        let columns = owned(columns);
        self.last().indexes.push(columns);
        self
    }

    /// `columns` of the last table reference the primary key of `target`.
    fn refers(&mut self, columns: &[&str], target: &str) -> &mut Self {
        let target = &self.catalogue.tables[target];
        let key = ForeignKey {
            columns: owned(columns),
            target: target.name.oid,
            target_columns: target.primary_key().unwrap().to_vec(),
            cascades: false,
        };
        self.last().foreign_keys.push(key);
        self
    }

    /// The same, and deletes cascade.
    fn belongs(&mut self, columns: &[&str], target: &str) -> &mut Self {
        self.refers(columns, target);
        self.last().foreign_keys.last_mut().unwrap().cascades = true;
        self
    }

    fn surveyed(&mut self) -> &mut SurveyedTable {
        self.survey.tables.last_mut().unwrap()
    }

    fn rows(&mut self, rows: f64) -> &mut Self {
        self.surveyed().rows = rows;
        self
    }

    fn distinct(&mut self, column: &str, distinct: f64, most_common: f64) -> &mut Self {
        let oid = self.last().name.oid;
        let statistics = ColumnStatistics {
            distinct,
            nulls: 0.0,
            most_common,
        };
        let of_table = self.survey.statistics.entry(oid).or_default();
        of_table.insert(column.into(), statistics);
        self
    }

    fn suggest(&self) -> Suggestion {
        self.suggest_with(&options())
    }

    fn suggest_with(&self, options: &SuggestOptions) -> Suggestion {
        suggest(&self.survey, &self.catalogue, options)
    }
}

fn options() -> SuggestOptions {
    SuggestOptions {
        depth: 2,
        is_writable: false,
        schemas: Vec::new(),
        tables: None,
        keys_per_statement: 10_000,
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn column(text: &str) -> Column {
    let (name, type_text) = text.split_once(' ').unwrap();
    let not_null = !name.ends_with('?');
    Column {
        name: name.trim_end_matches('?').into(),
        type_text: type_text.into(),
        plain_type_text: type_text.into(),
        type_oid: 20,
        collation: 0,
        base_type: type_text.into(),
        built_in: true,
        element_type: None,
        type_modifier: -1,
        deterministic: true,
        value: ValueType::Other,
        not_null,
        default: None,
        generated: false,
        is_virtual: false,
        identity_always: false,
        dependent: None,
    }
}

/// Resources, children (`-`) and lookups (`>`), each with its columns; what is not in force has a `#`.
fn outline(suggestion: &Suggestion) -> String {
    let mut text = String::new();
    for resource in &suggestion.resources {
        let mark = mark(resource.off.as_ref());
        let key = resource.key.as_ref().map(|key| key.join(","));
        let key = key.map_or_else(String::new, |key| format!(" by {key}"));
        writeln!(text, "{mark}/{}{key}", resource.name).unwrap();
        below(&resource.row, 1, &mut text);
    }
    text
}

fn mark(off: Option<&String>) -> &'static str {
    if off.is_some() { "#" } else { "" }
}

fn below(row: &SuggestedRow, level: usize, text: &mut String) {
    let indent = "  ".repeat(level);
    for child in &row.children {
        let (mark, columns) = (mark(child.off.as_ref()), child.foreign_key.join(","));
        writeln!(text, "{indent}{mark}- {} by {columns}", child.name).unwrap();
        below(&child.row, level + 1, text);
    }
    for lookup in &row.lookups {
        let (mark, columns) = (mark(lookup.off.as_ref()), lookup.column.join(","));
        let to = lookup.references.as_ref().map(|to| to.join(","));
        let to = to.map_or_else(String::new, |to| format!(" to {to}"));
        writeln!(text, "{indent}{mark}> {} by {columns}{to}", lookup.name).unwrap();
    }
}

fn shop() -> Database {
    let mut shop = Database::default();
    shop.add("customers", "id int8, name text, password_hash text")
        .rows(50_000.0)
        .add("countries", "id int8, name text")
        .add(
            "orders",
            "id int8, customer_id int8, country_id? int8, no text, deleted_at? timestamptz",
        )
        .unique(&["no"])
        .indexed(&["customer_id"])
        .refers(&["customer_id"], "public.customers")
        .refers(&["country_id"], "public.countries")
        .add("products", "id int8, name text")
        .add("order_lines", "id int8, order_id int8, product_id int8")
        .indexed(&["order_id"])
        .belongs(&["order_id"], "public.orders")
        .refers(&["product_id"], "public.products")
        .add("shipments", "id int8, order_id int8")
        .unique(&["order_id"])
        .refers(&["order_id"], "public.orders")
        .add("tags", "id int8, word text")
        .add("order_tags", "order_id int8, tag_id int8")
        .primary(&["order_id", "tag_id"])
        .indexed(&["tag_id"])
        .refers(&["order_id"], "public.orders")
        .refers(&["tag_id"], "public.tags");
    shop
}

#[test]
fn a_shop_has_orders_with_their_lines_and_tags() {
    let expected = "\
/customers
  #- orders by customer_id
/countries
/orders
  - order_lines by order_id
    > product by product_id
  - order_tags by order_id
    > tag by tag_id
  #> customer by customer_id
  > country by country_id
  > shipments by id to order_id
/products
/shipments
  > order by order_id
/tags
  - order_tags by tag_id
    > order by order_id
";
    assert_eq!(outline(&shop().suggest()), expected);
}

#[test]
fn depth_bounds_children() {
    let mut database = Database::default();
    database
        .add("a", "id int8")
        .add("a_b", "id int8, a_id int8")
        .belongs(&["a_id"], "public.a")
        .add("a_b_c", "id int8, a_b_id int8")
        .belongs(&["a_b_id"], "public.a_b");
    let with = |depth| {
        let options = SuggestOptions { depth, ..options() };
        outline(&database.suggest_with(&options))
    };
    assert_eq!(
        with(2),
        "/a\n  - a_b by a_id\n    - a_b_c by a_b_id\n/a_b\n  - a_b_c by a_b_id\n  > a by a_id\n"
    );
    assert_eq!(
        with(1),
        "/a\n  - a_b by a_id\n/a_b\n  - a_b_c by a_b_id\n  > a by a_id\n"
    );
    assert_eq!(
        with(0),
        "/a\n/a_b\n  > a by a_id\n/a_b_c\n  > a_b by a_b_id\n"
    );
}

/// `tenant_id … on delete cascade` would swallow a database.
#[test]
fn a_cascade_alone_makes_no_child() {
    let mut database = Database::default();
    database
        .add("tenant", "id int8")
        .add("invoice", "id int8, tenant_id int8")
        .indexed(&["tenant_id"])
        .belongs(&["tenant_id"], "public.tenant")
        .add("tenant_note", "id int8, tenant_id? int8")
        .belongs(&["tenant_id"], "public.tenant")
        .add("tenant_mark", "id int8, tenant_id int8")
        .refers(&["tenant_id"], "public.tenant");
    // A column that may be null, and rows that stay without the tenant, make none either; without an index none is offered.
    let expected = "/tenant\n  #- invoice by tenant_id\n/invoice\n  > tenant by tenant_id\n\
        /tenant_note\n  > tenant by tenant_id\n/tenant_mark\n  > tenant by tenant_id\n";
    assert_eq!(outline(&database.suggest()), expected);
}

#[test]
fn names_of_children_begin_with_the_parents() {
    use crate::resource::suggest::kinds::begins_with_name;
    for (child, parent) in [
        ("order_lines", "orders"),
        ("OrderLine", "Order"),
        ("category_items", "categories"),
        ("box_items", "boxes"),
        ("shop_orderline", "shop_order"),
    ] {
        assert!(begins_with_name(child, parent), "{child} {parent}");
    }
    for (child, parent) in [
        ("orders", "orders"),
        ("lines", "orders"),
        ("order", "s"),
        ("s", "s"),
    ] {
        assert!(!begins_with_name(child, parent), "{child} {parent}");
    }
}

#[test]
fn a_key_that_begins_with_the_foreign_key_makes_a_child() {
    let mut database = Database::default();
    database
        .add("film", "id int8")
        .add("scene", "film int8, no int8")
        .primary(&["film", "no"])
        .refers(&["film"], "public.film")
        .add("other", "no int8, film int8")
        .primary(&["no", "film"])
        .refers(&["film"], "public.film");
    assert_eq!(
        outline(&database.suggest()),
        "/film\n  - scene by film\n/other\n  > film_row by film\n"
    );
}

#[test]
fn links_may_have_a_key_of_their_own_and_lead_back_to_the_same_table() {
    let mut database = Database::default();
    database
        .add("users", "id int8")
        .rows(1_000_000.0)
        .add("groups", "id int8")
        .add(
            "memberships",
            "id int8, user_id int8, group_id int8, since date",
        )
        .unique(&["user_id", "group_id"])
        .refers(&["group_id"], "public.groups")
        .refers(&["user_id"], "public.users")
        .add("follows", "from_id int8, to_id int8")
        .primary(&["from_id", "to_id"])
        .refers(&["from_id"], "public.users")
        .refers(&["to_id"], "public.users");
    // What a link leads to is shown however large that table is.
    let expected = "/users\n  - memberships by user_id\n    > group by group_id\n  - follows by from_id\n    > to by to_id\n  \
        - follows_to_id by to_id\n    > from by from_id\n/groups\n  - memberships by group_id\n    > user by user_id\n";
    assert_eq!(outline(&database.suggest()), expected);
    database.survey.tables[2].rows = 1e9;
    let oid = database.survey.tables[2].name.oid;
    let statistics = ColumnStatistics {
        distinct: 1e6,
        nulls: 0.0,
        most_common: 0.0,
    };
    let of_table = database.survey.statistics.entry(oid).or_default();
    of_table.insert(
        "group_id".into(),
        ColumnStatistics {
            distinct: 10.0,
            ..statistics
        },
    );
    of_table.insert("user_id".into(), statistics);
    let found = outline(&database.suggest());
    assert!(
        found.contains("- memberships by user_id\n    #> group by group_id\n"),
        "{found}"
    );
    assert!(
        found.contains("/groups\n  #- memberships by group_id\n"),
        "{found}"
    );
}

/// What refers to them needs them with an address of their own.
#[test]
fn parts_that_others_refer_to_stand_alone() {
    let mut shop = shop();
    shop.add(
        "refunds",
        "id int8, order_id int8, tag_id int8, line_id int8",
    )
    .refers(&["line_id"], "public.order_lines");
    let target = shop.catalogue.tables["public.order_tags"].name.oid;
    shop.last().foreign_keys.push(ForeignKey {
        columns: owned(&["order_id", "tag_id"]),
        target,
        target_columns: owned(&["order_id", "tag_id"]),
        cascades: false,
    });
    let found = outline(&shop.suggest());
    assert!(
        found.contains("\n/order_lines\n") && found.contains("\n/order_tags\n"),
        "{found}"
    );
}

#[test]
fn foreign_keys_that_can_not_be_read_lead_nowhere() {
    let mut shop = shop();
    let lines = shop
        .survey
        .tables
        .iter_mut()
        .find(|table| table.name.name == "order_lines");
    lines.unwrap().unreadable_columns = owned(&["order_id"]);
    let tags = shop
        .survey
        .tables
        .iter_mut()
        .find(|table| table.name.name == "tags");
    tags.unwrap().unreadable_columns = owned(&["id"]);
    let suggestion = shop.suggest();
    let found = outline(&suggestion);
    assert!(!found.contains("order_lines by"), "{found}");
    assert!(found.contains("\n/order_lines\n"), "{found}");
    // It links nothing that can be shown, and its key still begins with that of the order.
    assert!(
        found.contains("  - order_tags by order_id\n  #> customer"),
        "{found}"
    );
    assert_eq!(suggestion.left_out[0].name, "public.tags");
}

#[test]
fn cycles_end() {
    let mut database = Database::default();
    database
        .add("a", "id int8, a_id int8")
        .add("ab", "id int8, a_id int8");
    database.belongs(&["a_id"], "public.a");
    let back = ForeignKey {
        columns: owned(&["a_id"]),
        target: 2,
        target_columns: owned(&["id"]),
        cascades: true,
    };
    let own = ForeignKey {
        target: 1,
        ..back.clone()
    };
    let a = database.catalogue.tables.get_mut("public.a").unwrap();
    a.foreign_keys = vec![back, own];
    a.indexes.push(owned(&["a_id"]));
    let found = outline(&database.suggest());
    assert!(
        found.starts_with("/a\n  #- a by a_id\n  - ab by a_id\n  > a_row by a_id\n"),
        "{found}"
    );
}

#[test]
fn large_children_are_offered_only_and_get_a_resource() {
    let mut database = Database::default();
    database
        .add("a", "id int8")
        .add("a_lines", "id int8, a_id int8")
        .belongs(&["a_id"], "public.a")
        .rows(10_000.0)
        .distinct("a_id", 10.0, 0.1);
    assert_eq!(outline(&database.suggest()), "/a\n  - a_lines by a_id\n");
    database.rows(10_001.0);
    assert_eq!(
        outline(&database.suggest()),
        "/a\n  #- a_lines by a_id\n/a_lines\n  > a by a_id\n"
    );
    // A share of the rows.
    database.distinct("a_id", -0.5, 0.1);
    assert_eq!(outline(&database.suggest()), "/a\n  - a_lines by a_id\n");
}

#[test]
fn a_lookup_that_many_documents_show_is_offered_only() {
    let mut database = Database::default();
    database
        .add("state", "id int8")
        .add("item", "id int8, state_id int8")
        .refers(&["state_id"], "public.state")
        .rows(100_000.0)
        .distinct("state_id", 20.0, 0.1);
    assert_eq!(
        outline(&database.suggest()),
        "/state\n/item\n  > state by state_id\n"
    );
    database.distinct("state_id", 20.0, 0.11);
    assert_eq!(
        outline(&database.suggest()),
        "/state\n/item\n  #> state by state_id\n"
    );
    database.distinct("state_id", 9.0, 0.0);
    assert_eq!(
        outline(&database.suggest()),
        "/state\n/item\n  #> state by state_id\n"
    );
}

#[test]
fn lookups_are_named_after_their_column() {
    let mut database = Database::default();
    database
        .add("site", "id int8, no int8")
        .primary(&["id", "no"])
        .add("other", "id int8")
        .add(
            "item",
            "id int8, a_id int8, a text, b int8, site int8, no int8",
        )
        .refers(&["a_id"], "public.other")
        .refers(&["b"], "public.other")
        .refers(&["site", "no"], "public.site");
    let found = outline(&database.suggest());
    let expected = "  > a_row by a_id\n  > b_row by b\n  > site_row by site,no\n";
    assert!(found.ends_with(expected), "{found}");
}

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

#[test]
fn keys_are_primary_else_unique_and_not_null() {
    let mut database = Database::default();
    database
        .add("a", "id bytea, code text, two? text")
        .unique(&["two"])
        .unique(&["code"])
        .add("b", "id bytea")
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
            .starts_with("has a key with column id, which is of type bytea"),
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

#[test]
fn rows_that_are_marked_as_deleted_are_told_of() {
    for (column, condition) in [
        ("deleted_at? timestamptz", Some("deleted_at is null")),
        ("deletedAt? timestamp", Some("\"deletedAt\" is null")),
        ("is_deleted bool", Some("is_deleted is not true")),
        ("deleted int2", Some("deleted = 0")),
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
        "public.hidden can't be read by larder's role, which needs: grant usage on schema \"public\" and grant select on \"public\".\"hidden\"",
        "public.kind_v is a view; ",
        "public.kind_m is a materialized view; ",
        "public.kind_f is a foreign table",
    ]) {
        assert!(told.starts_with(expected), "{told}");
    }
    assert_eq!(told.len(), 8);
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
}

/// A foreign key's column has another collation, or may be null.
#[test]
fn a_row_that_points_here_must_be_unique_and_not_null() {
    let mut database = Database::default();
    database
        .add("users", "id int8")
        .add("profiles", "id int8, user_id? int8")
        .unique(&["user_id"])
        .refers(&["user_id"], "public.users");
    let suggestion = database.suggest();
    let found = outline(&suggestion);
    assert!(
        found.starts_with("/users\n  #> profiles by id to user_id\n/profiles\n"),
        "{found}"
    );
    let why = suggestion.resources[0].row.lookups[0].off.as_ref().unwrap();
    assert!(why.contains("may be null"), "{why}");
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

#[test]
fn schemas_and_tables_can_be_chosen() {
    let shop = shop();
    let by_schema = SuggestOptions {
        schemas: vec!["other".into()],
        ..options()
    };
    assert!(shop.suggest_with(&by_schema).resources.is_empty());
    let oid = |name: &str| shop.catalogue.tables[name].name.oid;
    let by_table = SuggestOptions {
        tables: Some([oid("public.order_tags"), oid("public.order_lines")].into()),
        ..options()
    };
    let suggestion = shop.suggest_with(&by_table);
    let expected = "/order_lines\n  > order by order_id\n  > product by product_id\n\
        /order_tags\n  > order by order_id\n  > tag by tag_id\n";
    assert_eq!(outline(&suggestion), expected);
    assert!(suggestion.left_out.is_empty());
}

#[test]
fn equal_databases_give_equal_suggestions() {
    let one = shop().suggest();
    let mut other = shop();
    // As after a dump: other oids, and constraints in another order.
    for surveyed in &mut other.survey.tables {
        surveyed.name.oid = 100 - surveyed.name.oid;
    }
    for table in other.catalogue.tables.values_mut() {
        table.name.oid = 100 - table.name.oid;
        table.foreign_keys.reverse();
        table.unique_keys.reverse();
        table.indexes.reverse();
        for key in &mut table.foreign_keys {
            key.target = 100 - key.target;
        }
    }
    let text = |suggestion: &Suggestion| {
        let text = format!("{suggestion:?}");
        let mut parts = text.split("oid: ");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |all, part| {
            all + part.trim_start_matches(|c: char| c.is_ascii_digit())
        })
    };
    assert_eq!(text(&one), text(&other.suggest()));
}
