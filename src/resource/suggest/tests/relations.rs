//! Children and lookups.

use crate::resource::catalogue::{Descendant, ForeignKey, TableName};
use crate::resource::row_security::TableRowSecurity;
use crate::resource::suggest::survey::ColumnStatistics;
use crate::resource::suggest::tests::{Database, options, outline, owned, shop};
use crate::resource::suggest::{SuggestOptions, SuggestedRow};

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
        deferrable: None,
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
        deferrable: None,
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

/// An offer that would be refused once it is taken is none.
#[test]
fn children_without_a_primary_key_are_sorted_by_another_one() {
    let mut database = Database::default();
    database
        .add("users", "id int8")
        .add("words", "user_id? int8, word text")
        .keyless()
        .unique(&["user_id", "word"])
        .refers(&["user_id"], "public.users")
        .add("notes", "user_id int8, note text")
        .keyless()
        .indexed(&["user_id"])
        .refers(&["user_id"], "public.users");
    let suggestion = database.suggest();
    assert_eq!(outline(&suggestion), "/users\n  #- words by user_id\n");
    let words = &suggestion.resources[0].row.children[0];
    assert_eq!(words.order_by, Some(owned(&["user_id", "word"])));
    assert_eq!(suggestion.left_out.len(), 2);
}

#[test]
fn values_that_new_rows_need_are_told_of_rows_that_are_written() {
    let shop = shop();
    let suggestion = shop.suggest_with(&SuggestOptions {
        is_writable: true,
        ..options()
    });
    assert_eq!(suggestion.resources[0].row.needed, ["password_hash"]);
    let customer = &suggestion.resources[2].row.lookups[0];
    assert_eq!(
        (&*customer.name, customer.row.needed.len()),
        ("customer", 0)
    );
    assert_eq!(customer.row.left_out.len(), 1);
}

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

/// Rows below `row`, and the greatest level of children.
fn extent(row: &SuggestedRow) -> (usize, usize) {
    let below = row.children.iter().map(|child| extent(&child.row));
    let (rows, level) = below.fold((row.lookups.len(), 0), |(rows, level), (more, deep)| {
        (rows + more + 1, level.max(deep + 1))
    });
    (rows, level)
}

/// With `--depth 4` the suggestion took gigabytes, though each table is a child of others for a good reason.
#[test]
fn tables_that_belong_to_each_other_are_followed_to_a_bounded_number() {
    let mut database = Database::default();
    let name = |number: usize| "a".repeat(number + 1);
    for number in 0..20 {
        let above: Vec<String> = (0..number).map(|other| format!("x{other}")).collect();
        let columns: Vec<String> = above.iter().map(|x| format!(", {x} int8")).collect();
        database.add(&name(number), &format!("id int8{}", columns.concat()));
        for (other, x) in above.iter().enumerate() {
            database.belongs(&[x], &format!("public.{}", name(other)));
        }
    }
    let options = SuggestOptions {
        depth: 12,
        ..options()
    };
    let suggestion = database.suggest_with(&options);
    // The last one is shown by others, and no table refers to it.
    assert_eq!(suggestion.resources.len(), 19);
    for resource in &suggestion.resources {
        let (rows, level) = extent(&resource.row);
        assert!(rows <= 1_000, "{}: {rows}", resource.name);
        if let Some(depth) = resource.depth {
            assert!(level <= depth && depth < 12, "{level} {depth}");
        }
    }
    assert!(suggestion.resources[0].depth.is_some());
    assert_eq!(suggestion.resources[18].depth, None);
}

/// Rows with a null are not unique, so nothing sorted them always in the same way.
#[test]
fn a_link_whose_key_may_be_null_is_no_child() {
    let mut database = Database::default();
    database
        .add("one", "id int8")
        .add("two", "id int8")
        .add("one_two", "one_id int8, two_id? int8")
        .keyless()
        .unique(&["one_id", "two_id"])
        .indexed(&["two_id"])
        .refers(&["one_id"], "public.one")
        .refers(&["two_id"], "public.two");
    let suggestion = database.suggest();
    let found = outline(&suggestion);
    assert!(found.starts_with("/one\n/two\n"), "{found}");
}

#[test]
fn new_rows_of_a_child_need_no_value_of_its_foreign_key() {
    let mut database = Database::default();
    database
        .add("vault", "token int8, name text")
        .add("vault_items", "id int8, vault_token int8, pass_hash text")
        .indexed(&["vault_token"])
        .belongs(&["vault_token"], "public.vault");
    let suggestion = database.suggest();
    let child = &suggestion.resources[0].row.children[0];
    assert_eq!(child.row.needed, ["pass_hash"]);
}

/// Superusers, owners and roles with `bypassrls` see what the policies hide from all others.
#[test]
fn rows_that_row_security_hides_from_others_are_not_in_force() {
    let mut database = shop();
    let secured = TableRowSecurity::new(1, "1 off".into());
    for name in ["public.tags", "public.order_lines", "public.countries"] {
        let table = database.catalogue.tables.get_mut(name).unwrap();
        table.row_security = Some(secured.clone());
    }
    let found = outline(&database.suggest());
    for part in [
        "#/tags",
        "#/countries",
        "  #- order_lines by order_id",
        "    #> tag by tag_id",
        "  #> country by country_id",
    ] {
        assert!(found.contains(part), "{part}: {found}");
    }
}

/// A key is unique in each of the tables only: documents were 500.
#[test]
fn tables_that_others_inherit_from_are_not_in_force() {
    let mut database = Database::default();
    database.add("base", "id int8");
    let child = Descendant {
        name: TableName {
            oid: 99,
            schema: "public".into(),
            name: "derived".into(),
        },
        kind: 'r',
    };
    database.last().descendants.push(child);
    database
        .add("item", "id int8, base_id int8")
        .refers(&["base_id"], "public.base");
    assert_eq!(
        outline(&database.suggest()),
        "#/base\n/item\n  #> base by base_id\n"
    );
}
