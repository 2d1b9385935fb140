//! Tables, types and triggers that change while larder follows them.

use axum::http::{Method, StatusCode};
use futures_util::future::join_all;
use sqlx::{AssertSqlSafe, Connection};

use crate::documents::oracle::{DocumentedResource, Shape, TableColumns};
use crate::documents::rendering::ColumnKind::{Array, Bool, Composite, Number, Text};
use crate::documents::shapes::people;
use crate::documents::{ROWS, SCHEMA};
use crate::freshness::testbed::{FreshnessTestbed, is_hit};
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};

const TABLES: &str = r#"
set search_path = public;
create table thing (id integer primary key, label text, amount integer, moods "Sales".mood[], place "Sales".address);
create table piece (id integer primary key, thing_id integer references thing on delete cascade, label text);
create index on piece (thing_id);
insert into thing values (1, 'one', 1, '{calm}', row('a', 1, true)), (2, 'two', null, '{}', null);
insert into piece values (1, 1, 'a'), (2, 1, 'b'), (3, 2, 'c');
"#;

const CONFIG: &str = r#"
[feed]
max_staleness = "30s"
[[resource]]
name = "things"
table = "thing"
  [[resource.children]]
  name = "pieces"
  table = "piece"
  foreign_key = "thing_id"
[[resource]]
name = "people"
table = "Sales.person"
  [[resource.lookups]]
  name = "ally"
  table = "Sales.person"
  column = "friend"
  fields = { "visits" = "visits" }
"#;

static PIECE: TableColumns = TableColumns {
    sql: "public.piece",
    columns: &[("id", Number), ("thing_id", Number), ("label", Text)],
};
static PIECE_OF_TEXT_KEY: TableColumns = TableColumns {
    sql: "public.piece",
    columns: &[("id", Number), ("thing_id", Text), ("label", Text)],
};
static THING: TableColumns = TableColumns {
    sql: "public.thing",
    columns: &[
        ("id", Number),
        ("label", Text),
        ("amount", Number),
        ("moods", Array(&Text)),
        (
            "place",
            Composite(&[("street", Text), ("No", Number), ("ok", Bool)]),
        ),
    ],
};
static WITH_ROAD: TableColumns = TableColumns {
    sql: "public.thing",
    columns: &[
        ("id", Number),
        ("label", Text),
        ("amount", Number),
        ("moods", Array(&Text)),
        (
            "place",
            Composite(&[("road", Text), ("No", Number), ("ok", Bool)]),
        ),
    ],
};
static AMOUNT_OF_TEXT: TableColumns = TableColumns {
    sql: "public.thing",
    columns: &[("id", Number), ("label", Text), ("amount", Text)],
};
static MORE_COLUMNS: TableColumns = TableColumns {
    sql: "public.thing",
    columns: &[
        ("id", Number),
        ("title", Text),
        ("amount", Text),
        ("extra", Number),
    ],
};
static TEXT_KEY: TableColumns = TableColumns {
    sql: "public.thing",
    columns: &[("id", Text), ("label", Text)],
};

fn things(table: &'static TableColumns, pieces: &'static TableColumns) -> Vec<DocumentedResource> {
    let shape =
        Shape::whole(table).children("pieces", &[("thing_id", "id")], "id", Shape::whole(pieces));
    let things = DocumentedResource {
        name: "things",
        key: &["id"],
        shape,
    };
    vec![people(), things]
}

async fn testbed() -> FreshnessTestbed {
    testbed_with(&[]).await
}

/// Makes a testbed whose larder has further settings.
async fn testbed_with(overrides: &[(&str, &str)]) -> FreshnessTestbed {
    let mut testbed = FreshnessTestbed::without_larder(&format!("{SCHEMA}{ROWS}{TABLES}")).await;
    testbed.add(CONFIG, things(&THING, &PIECE), overrides).await;
    testbed.warm().await;
    testbed
}

/// Runs `sql`; then the documents are those of `table`, and stay right when rows change.
async fn define(
    testbed: &mut FreshnessTestbed,
    what: &str,
    sql: &str,
    table: &'static TableColumns,
) {
    execute(&testbed.url, sql).await;
    testbed.expect(things(table, &PIECE));
    testbed.become_right(what).await;
    let change = "set session_replication_role = replica; \
                  update piece set label = label || '+' where id = 1";
    testbed.step(&format!("{what}, and a change"), change).await;
}

/// A block that runs `statement` with each of larder's triggers on table thing.
fn on_each_trigger(statement: &str) -> String {
    format!(
        "do $$ declare t name; begin for t in select tgname from pg_trigger where tgrelid = 'thing'::regclass \
         and tgname like 'larder%' loop execute format('{statement}', t); end loop; end $$;"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_columns_and_types_are_seen() {
    let mut testbed = testbed().await;
    for (what, sql, table) in [
        (
            "a new enum value",
            "alter type \"Sales\".mood add value 'new'",
            &THING,
        ),
        (
            "a row with it",
            "update thing set moods = '{calm,new}'",
            &THING,
        ),
        (
            "an enum value renamed below an array",
            "alter type \"Sales\".mood rename value 'calm' to 'quiet'",
            &THING,
        ),
        (
            "an attribute renamed",
            "alter type \"Sales\".address rename attribute street to road",
            &WITH_ROAD,
        ),
        (
            "columns dropped",
            "alter table thing drop column moods, drop column place; \
            alter table thing alter column amount type text using coalesce(amount, 0) || ' pieces'",
            &AMOUNT_OF_TEXT,
        ),
        (
            "columns added and renamed",
            "alter table thing add column extra int default 5; \
            alter table thing rename column label to title",
            &MORE_COLUMNS,
        ),
        (
            "the table rewritten",
            "alter table thing alter column extra type int using 7",
            &MORE_COLUMNS,
        ),
    ] {
        define(&mut testbed, what, sql, table).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_triggers_did_not_log_is_seen() {
    let mut testbed = testbed().await;
    let write = "update thing set label = label || '!'; update piece set label = 'p' where id = 2;";
    let disable = on_each_trigger("alter table thing disable trigger %I");
    let enable = on_each_trigger("alter table thing enable always trigger %I");
    let drop = on_each_trigger("drop trigger %I on thing");
    for (what, sql) in [
        (
            "a write past all triggers",
            format!(
                "alter table thing disable trigger all; {write} alter table thing enable trigger all"
            ),
        ),
        (
            "a write past larder's triggers",
            format!("{disable} {write} {enable}"),
        ),
        (
            "triggers disabled and left so",
            format!("{disable} {write}"),
        ),
        ("triggers dropped", format!("{drop} {write}")),
        (
            "the table written anew",
            format!(
                "begin; create temp table copy as table thing; truncate thing cascade; \
            insert into thing table copy; insert into piece values (1, 1, 'x'); drop table copy; {write} commit"
            ),
        ),
    ] {
        define(&mut testbed, what, &sql, &THING).await;
    }
}

/// A restore may be under way where they are replaced, so they are trusted again only after half a minute; their
/// documents are right all the time. All at the same time, each in a database of its own.
pub(crate) async fn what_was_replaced_is_right_and_trusted_late() {
    let change_places = "begin; create schema other; create table other.thing (like thing including all); \
        insert into other.thing table thing; update other.thing set label = 'of the other'; \
        create table other.piece (like piece including all, foreign key (thing_id) references other.thing on delete cascade); \
        insert into other.piece table piece; alter schema public rename to away; \
        alter schema other rename to public; commit";
    let replace = "begin; alter table piece drop constraint piece_thing_id_fkey; \
        alter table thing rename to old; create table public.thing (like old including all); \
        insert into thing table old; drop table old; commit";
    let cases = [
        ("the log dropped", "drop table larder.change cascade"),
        ("the schema dropped", "drop schema larder cascade"),
        ("schemas that changed names", change_places),
        ("the table replaced", replace),
    ];
    join_all(cases.map(async |(what, sql)| {
        let mut testbed = testbed().await;
        let write =
            "update thing set label = label || '!'; update piece set label = 'p' where id = 2;";
        define(&mut testbed, what, &format!("{sql}; {write}"), &THING).await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_does_not_fit_is_unavailable_until_it_fits() {
    // A request for a missing table waits for it until this timeout.
    let mut testbed = testbed_with(&[("request_timeout", "1s")]).await;
    for (what, why, away, back) in [
        (
            "the table renamed",
            "was dropped or altered",
            "alter table thing rename to other",
            "update other set label = 'r'; alter table other rename to thing",
        ),
        (
            "the table in another schema",
            "was dropped or altered",
            "alter table thing set schema \"Sales\"",
            "update \"Sales\".thing set label = 's'; \
            alter table \"Sales\".thing set schema public",
        ),
        (
            "no foreign column",
            "not ready",
            "alter table piece rename thing_id to t",
            "alter table piece rename t to thing_id; update piece set label = 'f'",
        ),
    ] {
        execute(&testbed.url, away).await;
        let service = &testbed.larders[0].service;
        eventually(what, async || {
            let answer = service.get("/things/1").await;
            (answer.status == 503 && answer.body.contains(why)).then_some(())
        })
        .await;
        execute(&testbed.url, back).await;
        testbed.become_right(&format!("{what}, and back")).await;
    }
    let sql = "alter table piece drop constraint piece_thing_id_fkey; alter table thing drop column amount, drop column moods, drop column place; \
               alter table thing alter column id type text using 'k' || id; \
               alter table piece alter column thing_id type text using 'k' || thing_id";
    execute(&testbed.url, sql).await;
    testbed.expect(things(&TEXT_KEY, &PIECE_OF_TEXT_KEY));
    testbed.become_right("a key of another type").await;
    testbed
        .step(
            "a change under the new key",
            "update piece set label = 'new'",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enum_below_a_range_is_seen_to_change() {
    let sql = "create type level as enum ('low', 'high'); create type span as range (subtype = level); \
               create table measure (id int primary key, span span, spans span[]); \
               insert into measure values (1, '[low,high]', array['[low,high]'::span])";
    let config = "[[resource]]\nname = 'measures'\ntable = 'measure'\n";
    let larder = TestService::start(sql, config).await;
    eventually("a hit", async || {
        is_hit(&larder.get("/measures/1").await).then_some(())
    })
    .await;
    larder
        .execute("alter type level rename value 'low' to 'bottom'")
        .await;
    let expected = r#"{"id":1,"span":"[bottom,high]","spans":["[bottom,high]"]}"#;
    eventually("the new name", async || {
        (larder.get("/measures/1").await.body == expected).then_some(())
    })
    .await;
}

/// Without `order_by` children come in the order of their primary key, which may change while rows stay.
#[tokio::test(flavor = "multi_thread")]
async fn another_primary_key_of_children_gives_another_order() {
    let sql = "create table parent (id int primary key); \
        create table child (parent_id int references parent, a int not null, b int not null, \
          constraint child_pkey primary key (parent_id, a)); \
        insert into parent values (1); insert into child values (1, 1, 2), (1, 2, 1)";
    let config = "[feed]\nmax_staleness = '30s'\n[[resource]]\nname = 'parents'\ntable = 'parent'\n\
        [[resource.children]]\nname = 'children'\ntable = 'child'\nfields = { a = 'a' }\n";
    let larder = TestService::start(sql, config).await;
    for (sql, expected) in [
        ("select 1", r#"{"id":1,"children":[{"a":1},{"a":2}]}"#),
        (
            "alter table child drop constraint child_pkey, add primary key (parent_id, b)",
            r#"{"id":1,"children":[{"a":2},{"a":1}]}"#,
        ),
    ] {
        larder.execute(sql).await;
        eventually(sql, async || {
            let answer = larder.get("/parents/1").await;
            (answer.body == expected && is_hit(&answer)).then_some(())
        })
        .await;
    }
}

/// A trigger is disabled by a transaction of its own, a moment before the write that goes unlogged. The pass that
/// covers that write has read the mark, long before fingerprints are due: a reader with its token sees it.
pub(crate) async fn the_mark_tells_of_a_disabled_trigger_before_fingerprints_do() {
    let config = "[feed]\nmax_staleness = '60s'\n[[resource]]\nname = 'items'\ntable = 'item'\n";
    let sql = "create table item (id int primary key, n int); insert into item values (1, 0); \
        create procedure unlogged(value int, inout token text) language plpgsql as $$ begin \
          alter table item disable trigger user; commit; \
          update item set n = value; token := larder.token(); commit; end $$";
    let larder = TestService::start(sql, config).await;
    let mut connection = larder.connect().await;
    for value in 1..=10 {
        eventually("a hit", async || {
            is_hit(&larder.get("/items/1").await).then_some(())
        })
        .await;
        let call = format!("call unlogged({value}, null)");
        let token: String = sqlx::query_scalar(AssertSqlSafe(call))
            .fetch_one(&mut connection)
            .await
            .unwrap();
        let headers = [("larder-token", token.as_str())];
        let answer = larder.request(Method::GET, "/items/1", &headers).await;
        // While the resource is checked it may be unavailable.
        if answer.status == StatusCode::OK {
            assert_eq!(answer.body, format!(r#"{{"id":1,"n":{value}}}"#));
        }
    }
    connection.close().await.unwrap();
}

/// No plan depends on the names of an enum's values, so each pass looks at those itself: a reader with a token of the
/// transaction that renames one gets no old hit, long before fingerprints are due.
#[tokio::test(flavor = "multi_thread")]
async fn a_pass_sees_a_renamed_enum_value_before_fingerprints_are_due() {
    let config = "[feed]\nmax_staleness = '60s'\n[[resource]]\nname = 'items'\ntable = 'item'\n";
    let sql = "create type mood as enum ('0'); create table item (id int primary key, mood mood); \
        insert into item values (1, '0')";
    let larder = TestService::start(sql, config).await;
    let mut connection = larder.connect().await;
    eventually("a hit", async || {
        is_hit(&larder.get("/items/1").await).then_some(())
    })
    .await;
    for value in 1..=10 {
        let mut renaming = connection.begin().await.unwrap();
        let rename = format!("alter type mood rename value '{}' to '{value}'", value - 1);
        sqlx::raw_sql(AssertSqlSafe(rename))
            .execute(&mut *renaming)
            .await
            .unwrap();
        let token: String = sqlx::query_scalar("select larder.token()")
            .fetch_one(&mut *renaming)
            .await
            .unwrap();
        renaming.commit().await.unwrap();
        let headers = [("larder-token", token.as_str())];
        eventually("a hit", async || {
            let answer = larder.request(Method::GET, "/items/1", &headers).await;
            // While the resource is checked it may be unavailable.
            if answer.status == StatusCode::OK {
                assert_eq!(answer.body, format!(r#"{{"id":1,"mood":"{value}"}}"#));
            }
            is_hit(&answer).then_some(())
        })
        .await;
    }
    connection.close().await.unwrap();
}
