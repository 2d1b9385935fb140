//! One client, one statement after the other, each committed by itself.

use sqlx::Connection;

use crate::freshness::testbed::{FreshnessTestbed, run};

const AT_ANY_LEVEL: &[(&str, &str)] = &[
    (
        "an insert of a root",
        "insert into \"Orders\" values (99, 'new', 'n', 'R99', 1, 1, 'a,b')",
    ),
    (
        "an insert of its child",
        "insert into \"Line\" values (99, 1, null, 'new', 99)",
    ),
    (
        "an insert of its child's child",
        "insert into note values (99, 'n', 1, 99), (98, 'm', null, 99)",
    ),
    (
        "an insert at the third level",
        "insert into tag values (99, 'x', 1), (1, 'y', 2)",
    ),
    (
        "an update at the third level",
        "update tag set weight = 7 where tag = 'x'",
    ),
    (
        "a delete at the third level",
        "delete from tag where tag = 'x'",
    ),
    (
        "an update at the second level",
        "update note set body = body || '!' where id in (1, 4)",
    ),
    (
        "a delete at the second level",
        "delete from note where id = 3",
    ),
    (
        "an update of a child",
        "update \"Line\" set qty = qty + 1 where id in (1, 99)",
    ),
    ("a delete of a child", "delete from \"Line\" where id = 6"),
    (
        "an update of a root",
        "update \"Orders\" set title = 'other' where \"orderNo\" = 2",
    ),
    (
        "a delete of a root",
        "delete from \"Orders\" where \"orderNo\" = 99",
    ),
    (
        "a child by a unique column",
        "insert into shipment values (9, 'R3', 'epoch')",
    ),
    (
        "its update",
        "update shipment set sent = now() where id in (1, 9)",
    ),
    ("its delete", "delete from shipment where id = 9"),
    ("a lookup", "update region set title = 'N' where id = 1"),
    (
        "a lookup's insert",
        "insert into region values (77, 'new', 'NO')",
    ),
    (
        "a lookup of a lookup",
        "update country set continent = 'E' where code = 'NO'",
    ),
    (
        "a child's lookup",
        "update product set price = price + 0.5 where title = 'Box'",
    ),
    (
        "a grandchild's lookup",
        "update author set name = 'A. L.' where id = 1",
    ),
    (
        "a lookup in the own table",
        "update person set visits = 50 where name = 'Ann'",
    ),
    (
        "a numeric key's child",
        "update entry set sum = 7 where account = -5",
    ),
    (
        "a date's child",
        "insert into event values (9, 'infinity', '01:00')",
    ),
    (
        "all kinds",
        "update kind set t = 'new', bin = '\\xff' where id = 1",
    ),
];

/// Runs `(what, sql)` one after the other.
async fn steps(testbed: &mut FreshnessTestbed, steps: &[(&str, &str)]) {
    for (what, sql) in steps {
        let sql = format!("set search_path = \"Sales\"; {sql}");
        testbed.step(what, &sql).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_at_any_level_is_seen() {
    let mut testbed = FreshnessTestbed::start().await;
    testbed
        .warm_absent(&["/orders/99,new", "/regions/77"])
        .await;
    steps(&mut testbed, AT_ANY_LEVEL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_moved_row_leaves_one_document_and_enters_another() {
    let mut testbed = FreshnessTestbed::start().await;
    testbed
        .warm_absent(&["/orders/70,x", "/accounts/9", "/countries/SE"])
        .await;
    steps(
        &mut testbed,
        &[
            ("a moved child", "update \"Line\" set \"inBranch\" = '50%' where id = 1"),
            ("a moved child with other parts", "update \"Line\" set \"inBranch\" = 'plain', \"inOrder\" = -7 where id = 4"),
            ("a moved grandchild", "update note set line_id = 5 where id = 1"),
            ("a grandchild set adrift", "update note set line_id = null where id = 4"),
            ("a grandchild that comes in", "update note set line_id = 1 where id = 5"),
            ("a moved row of the third level", "update tag set note_id = 5 where note_id = 2"),
            ("a child moved by a unique column", "update shipment set order_ref = 'R3' where id = 1"),
            ("a part of another order", "update \"Orders\" set up_no = 2, \"up,Branch\" = 'é \"q\" ''s'' \\' where \"orderNo\" = -7"),
            ("a part of half an order", "update \"Orders\" set up_no = null where \"orderNo\" = -7"),
            ("another lookup", "update \"Orders\" set region_id = 2 where \"orderNo\" = 1"),
            ("a lookup of nothing", "update \"Orders\" set region_id = null where \"orderNo\" = 2"),
            ("another lookup of a lookup", "update region set country = '50%' where id = 1"),
            ("a child's other lookup", "update \"Line\" set product_id = 'c0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11' where id = 1"),
            ("a variant of another", "update product set parent = 'c0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11' where title = 'Box'"),
            ("another friend", "update person set friend = 'é' where name = 'a,b%2C c'"),
            ("keys exchanged", "update \"Orders\" set \"Branch\" = case \"Branch\" when 'plain' then '50%' else 'plain' end \
              where \"orderNo\" in (-7)"),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_key_and_what_cascades_from_it_are_seen() {
    let mut testbed = FreshnessTestbed::start().await;
    testbed
        .warm_absent(&[
            "/orders/70,x",
            "/accounts/9",
            "/countries/SE",
            "/regions/30",
            "/people/Bob",
            "/days/2023-01-01",
        ])
        .await;
    steps(
        &mut testbed,
        &[
            ("a composite key with children", "update \"Orders\" set \"orderNo\" = 70, \"Branch\" = 'x' where ref = 'R1'"),
            ("a unique column with children", "update \"Orders\" set ref = 'R70' where ref = 'R1'"),
            ("a row that points to itself", "update \"Orders\" set \"Branch\" = 'y,%' where ref is null or ref = 'R5' or title = 'encoded'"),
            ("a child's key with children", "update \"Line\" set id = 100 + id"),
            ("a grandchild's key with children", "update note set id = 100 + id where id < 3"),
            ("a numeric key", "update account set no = 9 where no = -5"),
            ("a key of characters", "update country set code = 'SE' where code = 'NO'"),
            ("a small key that is looked up", "update region set id = 30 where id = 1"),
            ("a key of the own table's lookups", "update person set name = 'Bob' where name = 'Ann'"),
            ("a date", "update day set day = '2023-01-01' where day = '2024-02-29'"),
            ("a lookup's delete that sets null", "delete from author where id = 1"),
            ("a lookup of a lookup's delete", "delete from country where code = 'SE'"),
            ("a product's delete", "delete from product where title = 'Box'"),
            ("a root's delete with three levels", "delete from \"Orders\" where \"orderNo\" = 70"),
            ("a region's delete", "delete from region where id in (2, 30)"),
            ("an account's delete", "delete from account where no = 9"),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_of_many_rows_are_seen() {
    let mut testbed = FreshnessTestbed::start().await;
    testbed.warm_absent(&["/orders/50,m", "/orders/51,m"]).await;
    let path = "set search_path = \"Sales\";";
    let all = ["/orders/", "/products/", "/authors/", "/countries/"];
    for (what, sql, beyond) in [
        (
            "merge",
            "merge into \"Orders\" o using (values (50, 'm', 'new'), (1, 'a,b', 'merged')) v (no, b, t) \
            on o.\"orderNo\" = v.no and o.\"Branch\" = v.b when matched then update set title = v.t \
            when not matched then insert (\"orderNo\", \"Branch\", title) values (v.no, v.b, v.t)",
            &all[..0],
        ),
        (
            "merge that deletes",
            "merge into note n using (values (1), (3)) v (id) on n.id = v.id \
            when matched and n.id = 3 then delete when matched then update set line_id = 4",
            &[],
        ),
        (
            "insert on conflict",
            "insert into \"Orders\" (\"orderNo\", \"Branch\", title) values (50, 'm', 'again'), (51, 'm', 'new') \
            on conflict (\"orderNo\", \"Branch\") do update set title = excluded.title || '+'",
            &[],
        ),
        (
            "insert on conflict that moves",
            "insert into note values (2, 'x', 1, 1) on conflict (id) do update set line_id = 5",
            &[],
        ),
        (
            "several writes in one",
            "with a as (update \"Line\" set qty = 77 where id = 2 returning id), \
            b as (delete from tag where note_id = 4), c as (insert into note select 60, 'c', 3, id from a returning id), \
            d as (update author set name = 'D' where id = 3) update \"Orders\" set title = 'w' where \"Branch\" = '%2C'",
            &[],
        ),
        (
            "copy's rows",
            "update \"Line\" set qty = 0; update note set body = upper(body)",
            &[],
        ),
        ("truncate", "truncate tag", &all[..1]),
        ("truncate with cascade", "truncate note cascade", &all),
        (
            "truncate of roots",
            "truncate \"Orders\" cascade",
            &[
                "/orders/",
                "/products/",
                "/authors/",
                "/countries/",
                "/regions/",
            ],
        ),
    ] {
        testbed
            .step_beyond(what, &format!("{path}{sql}"), beyond)
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copied_rows_are_seen() {
    let mut testbed = FreshnessTestbed::start().await;
    testbed.warm_absent(&["/people/Cleo"]).await;
    let mut connection = testbed.connect().await;
    for (table, rows) in [
        ("person", "Cleo\t5\tAnn\n"),
        ("note", "70\tcopied\t1\t2\n71\t\\N\t\\N\t4\n"),
        ("tag", "70\tt\t0.25\n"),
    ] {
        let copy = format!("copy \"Sales\".{table} from stdin");
        let mut copying = connection.copy_in_raw(&copy).await.unwrap();
        copying.send(rows.as_bytes()).await.unwrap();
        copying.finish().await.unwrap();
        testbed.settle(&format!("copy into {table}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_of_more_keys_than_are_logged_is_seen() {
    let mut testbed = FreshnessTestbed::start_with(&[("feed.keys_per_statement", "2")]).await;
    let everything = ["/"];
    for (what, sql) in [
        (
            "all roots",
            "update \"Sales\".\"Orders\" set title = title || '.'",
        ),
        (
            "all children",
            "update \"Sales\".\"Line\" set qty = qty + 1",
        ),
        (
            "all grandchildren",
            "update \"Sales\".note set body = body || '.'",
        ),
        (
            "all lookups",
            "update \"Sales\".region set title = title || '.'",
        ),
        (
            "all moved",
            "update \"Sales\".\"Line\" set \"inBranch\" = 'a,b', \"inOrder\" = 1",
        ),
        ("all gone", "delete from \"Sales\".\"Line\""),
    ] {
        testbed.step_beyond(what, sql, &everything).await;
    }
    testbed
        .step(
            "two rows",
            "update \"Sales\".person set visits = 9 where name in ('Ann', 'é')",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rolled_back_changes_nothing_and_stays_a_hit() {
    let mut testbed = FreshnessTestbed::start().await;
    let mut connection = testbed.connect().await;
    let all = "insert into tag values (5, 'never', 1); update \"Orders\" set title = 'never'; \
               update \"Line\" set qty = -1; delete from note; update region set title = 'never'";
    run(&mut connection, &format!("begin; {all}")).await;
    testbed.settle("changes that are not committed").await;
    run(&mut connection, "rollback").await;
    testbed.settle("a rollback").await;
    run(&mut connection, &format!("begin; savepoint a; {all}; rollback to a; update \"Orders\" set title = 'kept' where ref = 'R6'"))
        .await;
    testbed.settle("a rollback to a savepoint").await;
    run(&mut connection, "savepoint b; update author set name = 'in b'; release b; savepoint c; delete from note; rollback to c; commit").await;
    testbed.settle("a commit of what savepoints left").await;
    run(&mut connection, "do $$ begin begin update \"Sales\".\"Line\" set qty = 5; raise 'no'; exception when others then \
        update \"Sales\".day set holiday = null where holiday; end; end $$")
        .await;
    testbed.settle("a block with an exception").await;
    connection.close().await.unwrap();
}
