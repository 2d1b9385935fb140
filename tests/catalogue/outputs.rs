//! Columns whose JSON changes although their row does not: PostgreSQL's output depends on other rows.

use axum::http::{Method, StatusCode};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

use super::mistakes::{CatalogueMistake, case};
use super::{assert_told, file_of, mistakes};
use crate::command::value;
use crate::freshness::testbed::is_hit;
use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::eventually;
use crate::harness::larder_process::LarderProcess;
use crate::harness::service::{TestService, execute};

/// The types whose output shows an oid as a name.
const NAMED: [&str; 12] = [
    "regclass",
    "regproc",
    "regprocedure",
    "regoper",
    "regoperator",
    "regtype",
    "regrole",
    "regnamespace",
    "regconfig",
    "regdictionary",
    "regcollation",
    "aclitem",
];

const SCHEMA: &str = "
    create domain named as regclass;
    create domain twice_named as named;
    create type held as (a int, b twice_named[]);
    create type pair as (n int, held held);
    create type spread as range (subtype = regtype);
    create type mood as enum ('glad', 'sad');
    create function mood_json(mood) returns json language sql immutable as 'select json ''{}''';
    create cast (mood as json) with function mood_json(mood);
    create type grade as enum ('a', 'b');
    create function grade_json(grade) returns json language internal stable as 'to_json';
    create cast (grade as json) with function grade_json(grade);
    create domain shy as mood;
    create type place as (a int, at timestamp);
    create function place_json(place) returns json language sql immutable as 'select json ''{}''';
    create cast (place as json) with function place_json(place);
    create function places_json(place[]) returns json language sql immutable as 'select json ''{}''';
    create cast (place[] as json) with function places_json(place[]);
    create domain spot as place;
    create function spot_json(spot) returns json language sql immutable as 'select json ''{}''';
    create cast (spot as json) with function spot_json(spot);
    create table places (id int primary key, c place, d place[], e spot);
    create table by_domain (id int primary key, c twice_named);
    create table by_array (id int primary key, c regrole[]);
    create table by_composite (id int primary key, c pair);
    create table by_range (id int primary key, c spread);
    create table by_ranges (id int primary key, c spread_multirange[]);
    create table by_cast (id int primary key, c mood);
    create table by_casts (id int primary key, n int references by_cast, c shy[], d grade);
    create table plain (id int primary key, c regclass, n int);";

const CASES: &[CatalogueMistake] = &[
    case(
        "table = 'by_domain' # here",
        "table",
        "column c, whose text depends on other rows than its own (type public.twice_named)",
    ),
    case("table = 'by_array' # here", "table", "(type regrole)"),
    case(
        "table = 'by_composite' # here",
        "table",
        "(type public.twice_named)",
    ),
    case("table = 'by_range' # here", "table", "(type regtype)"),
    case("table = 'by_ranges' # here", "table", "(type regtype)"),
    case(
        "table = 'by_cast' # here",
        "table",
        "public.by_cast has a column c, which the cast of type public.mood to json by public.mood_json(public.mood)",
    ),
    case(
        "table = 'by_casts'\nfields = { id = 'id', d = 'e' } # here",
        "fields.d",
        "by public.grade_json(public.grade) makes JSON, and that is not an immutable function in C",
    ),
    case(
        "table = 'by_cast'\nfields = { id = 'id' }\n\
         [[resource.children]]\nname = 'below'\ntable = 'by_casts'\nfields = { c = 'c' } # here",
        "children[0].fields.c",
        "leave it out by fields",
    ),
];

/// Documents with `regclass` or `aclitem` once kept the names of the time of their load: renaming the object of an oid
/// changes another table. The same happened with a cast to `json` whose function was replaced, or reads tables.
#[tokio::test]
async fn columns_that_other_rows_decide_are_refused() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let (file, expected) = file_of(CASES);
    assert_told(&mistakes(&url, &file).await, &expected);
    for name in NAMED {
        execute(
            &url,
            &format!("create table of_{name} (id int primary key, c {name})"),
        )
        .await;
        let file = format!("[[resource]]\nname = 'r'\ntable = 'of_{name}'");
        let told = mistakes(&url, &file).await;
        let place = "larder.toml:3: resource[0].table: ".to_owned();
        assert_told(
            &told,
            &[(
                place,
                &format!(
                    "has a column c, whose text depends on other rows than its own (type {name})"
                ),
            )],
        );
    }
}

/// Columns that are not shown may have any type, and casts in C that are declared immutable are allowed, as extensions
/// define them. `to_json` never calls a cast of a composite type, an array or a domain.
#[tokio::test(flavor = "multi_thread")]
async fn columns_that_are_left_out_and_casts_in_c_are_served() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    execute(
        &url,
        "insert into plain values (1, 'plain', 2);
         insert into places values (1, row(1, null), array[row(2, null)::place], row(3, null))",
    )
    .await;
    let mut file =
        "[[resource]]\nname = 'plain'\ntable = 'plain'\nfields = { id = 'id', n = 'n' }\n\
         [[resource]]\nname = 'places'\ntable = 'places'\n"
            .to_owned();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let hstore: bool = sqlx::query_scalar(
        "select exists (select from pg_available_extensions where name = 'hstore')",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    connection.close().await.unwrap();
    if hstore {
        let sql =
            "create extension hstore; create table sets (id int primary key, c hstore, d hstore[]);
                   insert into sets values (1, 'a=>1', array['b=>2'::hstore])";
        execute(&url, sql).await;
        file += "[[resource]]\nname = 'sets'\ntable = 'sets'";
    }
    let told = mistakes(&url, &file).await;
    assert!(told.is_empty(), "{told:?}");
    let larder = TestService::start_on(&url, &file, &[]).await;
    assert_eq!(larder.get("/plain/1").await.body, r#"{"id":1,"n":2}"#);
    let places = r#"{"id":1,"c":{"a":1,"at":null},"d":[{"a":2,"at":null}],"e":{"a":3,"at":null}}"#;
    assert_eq!(larder.get("/places/1").await.body, places);
    let changed = json!({"c": {"a": 4, "at": null}, "e": {"a": 5, "at": null}});
    let answer = larder
        .write(Method::PATCH, "/places/1", &[], &changed.to_string())
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(answer.json()["e"], changed["e"]);
    if hstore {
        let expected = r#"{"id":1,"c":{"a": "1"},"d":[{"b": "2"}]}"#;
        assert_eq!(larder.get("/sets/1").await.body, expected);
    }
}

const OF_EXTENSIONS: &str = "
    create extension hstore; create extension ltree;
    create table units (id int); create table labels (id int primary key, name text);
    alter extension hstore add table units; alter extension ltree add table labels;
    create domain trail as ltree; create type place as (trail trail, n int);
    create table sets (id int primary key, c hstore[]);
    create table trees (id int primary key, c place);
    create table plain (id int primary key);
    insert into sets values (1, array['a=>1'::hstore]); insert into trees values (1, row('a.b', 1));
    insert into plain values (1);";

/// The server processes that have read documents of `sets`.
const READERS: &str = "select coalesce(array_agg(pid), '{}') from pg_stat_activity where datname = current_database() \
    and pid <> pg_backend_pid() and query like '%sets%' and query not like '%larder.change%'";

/// The text of PostGIS's `geometry` depends on `spatial_ref_sys`. A change there reached no cached document, nor the
/// sessions in which the extension had read it.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_an_extensions_table_ends_documents_with_its_types() {
    let paths = ["/sets/1", "/trees/1", "/plain/1"];
    let mut file = "[feed]\nmax_staleness = '30s'\n".to_owned();
    for name in ["sets", "trees", "plain"] {
        file += &format!("[[resource]]\nname = '{name}'\ntable = '{name}'\n");
    }
    let larder = TestService::start(OF_EXTENSIONS, &file).await;
    for (change, ended) in [
        ("insert into units values (1)", 0),
        ("insert into labels values (1, 'a')", 1),
        ("update labels set name = 'b'", 1),
        ("delete from units", 0),
        ("truncate labels", 1),
    ] {
        for path in paths {
            eventually("a hit", async || {
                is_hit(&larder.get(path).await).then_some(())
            })
            .await;
        }
        let before: Vec<i32> = value(&larder.url, READERS).await;
        larder.execute(change).await;
        eventually("a miss", async || {
            (!is_hit(&larder.get(paths[ended]).await)).then_some(())
        })
        .await;
        for (number, path) in paths.iter().enumerate() {
            let is_kept = number == ended || is_hit(&larder.get(path).await);
            assert!(is_kept, "{path} after {change}");
        }
        if ended == 0 {
            let now: Vec<i32> = value(&larder.url, READERS).await;
            assert!(
                now.iter().all(|pid| !before.contains(pid)),
                "{before:?} {now:?}"
            );
        }
    }
}

/// Rows that were written directly into a partition or a table that inherits, which is no member of the extension, reached no
/// document.
#[tokio::test(flavor = "multi_thread")]
async fn parts_of_an_extensions_table_are_watched() {
    let parts = "create table split (id int) partition by list (id); alter extension hstore add table split;
        create table first partition of split for values in (1)";
    let sql = format!("{OF_EXTENSIONS} {parts}");
    let file = "[feed]\nmax_staleness = '30s'\n[[resource]]\nname = 'sets'\ntable = 'sets'\n";
    let larder = TestService::start(&sql, file).await;
    for (made, part) in [
        ("select", "first"),
        (
            "create table second partition of split for values in (2)",
            "second",
        ),
        ("create table heir () inherits (units)", "heir"),
        (
            "create table late (id int); alter extension hstore add table late",
            "late",
        ),
    ] {
        larder.execute(made).await;
        let watched = format!(
            "select exists (select from pg_trigger where tgrelid = '{part}'::regclass and tgname like 'larder%')"
        );
        eventually("the triggers", async || {
            value::<bool>(&larder.url, &watched).await.then_some(())
        })
        .await;
        eventually("a hit", async || {
            is_hit(&larder.get("/sets/1").await).then_some(())
        })
        .await;
        let id = if part == "second" { 2 } else { 1 };
        larder
            .execute(&format!("insert into {part} values ({id})"))
            .await;
        eventually("a miss", async || {
            (!is_hit(&larder.get("/sets/1").await)).then_some(())
        })
        .await;
    }
}

/// After `alter extension`, on which no plan depends, the log said that the server does not invalidate plans, and each pass
/// compared fingerprints from then on.
#[tokio::test]
async fn the_plan_mark_stays_reliable_while_extensions_get_and_lose_tables() {
    let url = TestCluster::database().await.url;
    let bare = OF_EXTENSIONS.replace("alter extension hstore add table units;", "");
    execute(&url, &bare).await;
    let directory = TempDir::new().unwrap();
    let file = "[[resource]]\nname = 'sets'\ntable = 'sets'\n";
    std::fs::write(directory.path().join("larder.toml"), file).unwrap();
    let larder = LarderProcess::start(directory.path(), Some(&url), &[]).await;
    larder.ready().await;
    for (altered, added) in [
        (
            "create table early (id int); alter extension hstore add table early",
            "early",
        ),
        (
            "alter extension hstore drop table early; alter extension hstore add table units",
            "units",
        ),
    ] {
        execute(&url, altered).await;
        let watched = format!(
            "select exists (select from pg_trigger where tgrelid = '{added}'::regclass and tgname like 'larder%')"
        );
        eventually("the triggers", async || {
            value::<bool>(&url, &watched).await.then_some(())
        })
        .await;
    }
    let log = std::fs::read_to_string(directory.path().join("larder.log")).unwrap();
    assert!(!log.contains("plans are not invalidated"), "{log}");
}

/// Without triggers on the extension's table, and for a function whose tables are not known.
#[tokio::test(flavor = "multi_thread")]
async fn types_that_read_what_can_not_be_watched_are_refused() {
    let url = TestCluster::database().await.url;
    execute(&url, OF_EXTENSIONS).await;
    let alone = "create type tint as enum ('red');
        create function tint_json(tint) returns json language c immutable as '$libdir/hstore', 'hstore_to_json';
        create cast (tint as json) with function tint_json(tint); create table tints (id int primary key, c tint[])";
    execute(&url, alone).await;
    let told = mistakes(&url, "[[resource]]\nname = 'tints'\ntable = 'tints'").await;
    let place = "larder.toml:3: resource[0].table: ".to_owned();
    assert_told(
        &told,
        &[(
            place,
            "shown by public.tint_json(public.tint), a function in C that belongs to no extension, so that",
        )],
    );

    let role = TestRole::create(&url).await;
    let name = &role.name;
    let grants = format!(
        "grant create on database {} to {name}; alter table sets owner to {name}; grant usage, create on schema public to {name}",
        value::<String>(&url, "select quote_ident(current_database())").await
    );
    execute(&url, &grants).await;
    let told = mistakes(&role.url, "[[resource]]\nname = 'sets'\ntable = 'sets'").await;
    let told: Vec<String> = told.iter().map(ToString::to_string).collect();
    let told = told.join("\n");
    assert!(told.contains("depends on public.units, and"), "{told}");
    assert!(told.contains(&format!("to \"{name}\";")), "{told}");
}

const VIRTUAL: &str = "
    create text search configuration cfg (copy = simple);
    create table doc (id int primary key, body text, data jsonb, rel regclass,
      v tsvector generated always as (to_tsvector('public.cfg', body)) virtual,
      n int generated always as (length(to_tsvector('public.cfg', body))) virtual,
      h text generated always as (ts_headline('simple', body, 'dogs'::tsquery)) virtual,
      o oid generated always as (json_value(data, '$.rel' returning regclass)::oid) virtual,
      x xml generated always as (xmlelement(name rel, rel)) virtual,
      a text generated always as (upper(body) || coalesce(nullif(left(body, 2), 'ru'), '-')) virtual,
      b numeric generated always as (json_value(data, '$.n' returning numeric)) virtual,
      c bool generated always as (body is json or json_exists(data, '$.n')) virtual,
      d bool generated always as (body collate \"C\" < 'z') virtual);
    create table part (id int primary key, doc_id int references doc, body text,
      n int generated always as (length(to_tsvector('public.cfg', body))) virtual);
    insert into doc (id, body, data) values (1, 'run', '{\"n\": 1.50}');";

const DEPENDENT: &[CatalogueMistake] = &[
    case(
        "table = 'doc'\nfields = ['id', 'v'] # here",
        "fields[1]",
        "public.doc has a column v, whose value may change without its row, since its expression calls to_tsvector(); leave",
    ),
    case(
        "table = 'doc'\nfields = ['id', 'h'] # here",
        "fields[1]",
        "its expression calls ts_headline()",
    ),
    case(
        "table = 'doc'\nfields = ['id', 'o'] # here",
        "fields[1]",
        "its expression uses type regclass",
    ),
    case(
        "table = 'doc'\nfields = ['id', 'x'] # here",
        "fields[1]",
        "its expression contains an expression that larder does not know (XMLEXPR)",
    ),
    case(
        "table = 'doc'\nfields = ['id']\nwhere = 'n > 1' # here",
        "where",
        "depends on column n of public.doc, whose value may change without its row",
    ),
    case(
        "table = 'doc'\nfields = ['id']\n[[resource.children]]\nname = 'parts'\ntable = 'part'\nfields = ['id']\n\
         order_by = ['n'] # here",
        "children[0].order_by",
        "depends on column n of public.part",
    ),
];

/// PostgreSQL calls functions immutable that read its catalogue. `alter text search configuration` changed no cached document.
#[tokio::test(flavor = "multi_thread")]
async fn virtual_columns_that_more_than_the_row_decides_are_refused() {
    if !TestCluster::has(18, "virtual generated columns") {
        return;
    }
    let url = TestCluster::database().await.url;
    execute(&url, VIRTUAL).await;
    let (file, expected) = file_of(DEPENDENT);
    assert_told(&mistakes(&url, &file).await, &expected);
    let owned = "[[resource]]\nname = 'r'\ntable = 'doc'\nfields = ['id']\nowner = { column = 'n', claim = 'sub' } # here\n\
        [[auth.key]]\nname = 'k'\nclaims = { sub = '1' }\nhash = ";
    let told = mistakes(&url, &format!("{owned}'{}'", "0".repeat(64))).await;
    let place = "larder.toml:5: resource[0].owner".to_owned();
    assert_told(&told, &[(place, "depends on column n of public.doc")]);
    let file = "[[resource]]\nname = 'doc'\ntable = 'doc'\nfields = ['id', 'a', 'b', 'c', 'd']\nwhere = 'd'";
    let larder = TestService::start_on(&url, file, &[]).await;
    let expected = r#"{"id":1,"a":"RUN-","b":1.50,"c":true,"d":true}"#;
    assert_eq!(larder.get("/doc/1").await.body, expected);
}
