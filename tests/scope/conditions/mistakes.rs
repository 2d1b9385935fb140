//! Conditions that PostgreSQL or larder refuse, and odd ones that mean what they say.

use axum::http::StatusCode;
use larder::config::Config;
use larder::feed::install_script;
use larder::source::session::Database;
use sqlx::{Connection, PgConnection};

use crate::catalogue::mistakes;
use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};

const SCHEMA: &str = "
    create collation folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
    create collation free (provider = icu, locale = 'und'); create collation held (provider = icu, locale = 'und');
    create type loose as enum ('a'); create domain held_code as text collate held;
    create table item (id int primary key, name text, held held_code, gone timestamptz, parent_only int,
      word text collate folded default 'word', points point[] default '{}');
    create table part (id int primary key, item_id int references item);
    create function same(int) returns bool immutable language sql as 'select true';
    create operator public.=== (leftarg = int, rightarg = int, function = int4eq);
    insert into item values (1, 'one'), (2, 'two');";

/// Conditions on rows of `item`, and a part of the message about each.
const REFUSED: &[(&str, &str)] = &[
    ("goen is null", "column \"goen\" does not exist"),
    ("exists (select)", "cannot use subquery"),
    ("id in (select id from public.part)", "cannot use subquery"),
    ("id = $1", "there is no parameter $1"),
    ("gone < now()", "must be marked IMMUTABLE"),
    ("random() > 0.5", "must be marked IMMUTABLE"),
    ("name = current_user", "must be marked IMMUTABLE"),
    ("gone::text = name", "must be marked IMMUTABLE"),
    ("count(*) > 1", "aggregate functions are not allowed"),
    (
        "row_number() over () = 1",
        "window functions are not allowed",
    ),
    (
        "generate_series(1, id) = 1",
        "set-returning functions are not allowed",
    ),
    ("ctid is not null", "system columns"),
    ("xmin is not null", "system columns"),
    ("same(id)", "function same(integer) does not exist"),
    ("public.same(id)", "the condition calls public.same()"),
    (
        "id operator(public.===) 1",
        "the condition uses operator public.===(integer,integer)",
    ),
    (
        "to_tsvector('english', name) @@ 'one'",
        "the condition calls to_tsvector()",
    ),
    (
        "name collate public.free < 'B'",
        "the condition uses collation public.free, which none of its columns has",
    ),
    (
        "held is not null and upper(name collate public.free) = 'B'",
        "the condition uses collation public.free",
    ),
    (
        "cardinality('{a}'::public.loose[]) = id",
        "the condition uses type public.loose[], which none of its columns has",
    ),
    ("larder_conditional_row is null", "reads the whole row"),
    ("name = 'larder_conditional_row'", "a name of larder's"),
    ("name = E'larder\\x5fconditional_row'", "a name of larder's"),
    ("item is null", "column \"item\" does not exist"),
    (
        "public.item.id = 1",
        "missing FROM-clause entry for table \"item\"",
    ),
    ("id", "must be type boolean, not type integer"),
    ("id = 1) or (id = 2", "syntax error at or near \")\""),
    (
        "true); drop table item; select (true",
        "syntax error at or near \")\"",
    ),
    ("id = 1; drop table item", "cannot insert multiple commands"),
    ("id = 1 where id = 2", "syntax error at or near \"where\""),
    ("id = 1, id = 2", "syntax error at or near \",\""),
    ("-- id = 1", "syntax error at end of input"),
    ("name = 'one", "unterminated quoted string"),
    ("name = $$one", "unterminated dollar-quoted string"),
    ("\"name = 'one'", "unterminated quoted identifier"),
    ("id = 1 /* one", "unterminated /* comment"),
    // What only a call shows: no row of the table gets so far, or one does.
    (
        "case id when 2 then starts_with(word, 'o') else true end",
        "when it meets a row: nondeterministic collations are not supported",
    ),
    (
        "id > 2 and starts_with(word, 'o')",
        "collations are not supported",
    ),
    (
        "points = '{}'",
        "when it meets a row: could not identify an equality operator",
    ),
    ("name ~ '('", "invalid regular expression"),
];

fn toml_string(text: &str) -> String {
    format!("'''{text}'''")
}

#[tokio::test]
async fn what_is_not_one_condition_on_the_row_is_refused_with_its_place() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let mut file = String::new();
    for (number, (condition, _)) in REFUSED.iter().enumerate() {
        let condition = toml_string(condition);
        file.push_str(&format!(
            "[[resource]]\nname = 'r{number}'\ntable = 'item'\nwhere = {condition}\n"
        ));
    }
    let told = mistakes(&url, &file).await;
    let told: Vec<String> = told.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), REFUSED.len(), "{}", told.join("\n"));
    for (number, ((condition, message), told)) in REFUSED.iter().zip(&told).enumerate() {
        let place = format!("larder.toml:{}: resource[{number}].where: ", 4 * number + 4);
        assert!(
            told.starts_with(&place) && told.contains(message),
            "{condition}: {told}"
        );
    }
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let items: i64 = sqlx::query_scalar("select count(*) from item")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(items, 2);
}

/// The statement of documents would take it for a column of the row above.
#[tokio::test]
async fn a_condition_of_a_row_below_knows_no_columns_of_the_row_above() {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    let file = "[[resource]]\nname = 'items'\ntable = 'item'\n\
        [[resource.children]]\nname = 'parts'\ntable = 'part'\nwhere = 'parent_only is null'\n\
        [[resource]]\nname = 'parts'\ntable = 'part'\n\
        [[resource.lookups]]\nname = 'item'\ntable = 'item'\ncolumn = 'item_id'\nwhere = 'item_id > 0'";
    let told = mistakes(&url, file).await;
    let told: Vec<String> = told.iter().map(ToString::to_string).collect();
    let place = |line, key| format!("larder.toml:{line}: resource[{key}.where: ");
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].starts_with(&place(7, "0].children[0]")),
        "{}",
        told[0]
    );
    assert!(told[0].contains("\"parent_only\" does not exist"));
    assert!(
        told[1].starts_with(&place(15, "1].lookups[0]")),
        "{}",
        told[1]
    );
    assert!(told[1].contains("\"item_id\" does not exist"));
}

/// Conditions on rows of `odd`, and the keys of the rows for which they are true.
const ODD: &[(&str, &[i32])] = &[
    ("held < 'B' and name collate shop.held < 'B'", &[1, 2]),
    ("true", &[1, 2, 3]),
    ("null", &[]),
    ("\"a \"\"b\"\" c\" = 'it''s \\ -- x'", &[1]),
    ("odd", &[1, 3]),
    ("\"where\" > 1 -- and false", &[2, 3]),
    ("/* ; */ \"where\" > 1;", &[2, 3]),
    ("status = 'open'", &[1]),
    ("status in ('open', 'paid')", &[1, 2]),
    ("'vip' = any (tags)", &[2]),
    ("states @> '{open}'", &[2]),
    ("code = 'x' or code is null", &[1, 3]),
    ("(data->>'on')::boolean", &[2]),
    ("case when odd then id = 1 else id = 2 end", &[1, 2]),
    ("name = 'ü'", &[3]),
    ("name collate \"C\" < 'b'", &[1]),
    ("greatest(id, 2) = 2", &[1, 2]),
    ("day between '2020-01-01' and 'infinity'", &[2]),
    ("own is not null", &[1, 2]),
    ("whole is not null", &[3]),
];

#[tokio::test(flavor = "multi_thread")]
async fn odd_conditions_mean_what_they_say() {
    let sql = r#"
        create schema shop; create type shop.status as enum ('open', 'paid', 'sent');
        create collation shop.held (provider = icu, locale = 'und'); create domain shop.code as text; create domain shop.code2 as shop.code;
        create table shop.point (x int);
        create function shop.own_in(cstring) returns shop.own language internal immutable strict as 'textin';
        create function shop.own_out(shop.own) returns cstring language internal immutable strict as 'textout';
        create type shop.own (input = shop.own_in, output = shop.own_out);
        create table shop.odd (id int primary key, "a ""b"" c" text, odd bool, "where" int, status shop.status,
            tags text[], states shop.status[], code shop.code2, data jsonb, name varchar(9), day date, own shop.own,
            whole shop.point, held text collate shop.held default 'a');
        insert into shop.odd values
            (1, 'it''s \ -- x', true, 1, 'open', '{}', '{paid}', 'x', '{"on": false}', 'a', '2019-12-31', 'o', null),
            (2, 'x', false, 2, 'paid', '{vip}', '{sent,open}', 'y', '{"on": true}', 'b', '2020-01-01', 'o', null),
            (3, null, true, 3, 'sent', null, null, null, null, 'ü', null, null, row(1));"#;
    let mut file = String::new();
    for (number, (condition, _)) in ODD.iter().enumerate() {
        let condition = toml_string(condition);
        file.push_str(&format!(
            "[[resource]]\nname = 'r{number}'\ntable = 'shop.odd'\nfields = {{ id = 'id' }}\nwhere = {condition}\n"
        ));
    }
    let url = TestCluster::database().await.url;
    execute(&url, sql).await;
    let told = mistakes(&url, &file).await;
    assert!(told.is_empty(), "{told:?}");
    let larder = TestService::start_on(&url, &file, &[]).await;
    for (number, (condition, expected)) in ODD.iter().enumerate() {
        let list = larder.get(&format!("/r{number}")).await.json();
        let list = list.as_array().unwrap();
        let ids: Vec<i64> = list
            .iter()
            .map(|item| item["id"].as_i64().unwrap())
            .collect();
        let expected: Vec<i64> = expected.iter().map(|&id| i64::from(id)).collect();
        assert_eq!(ids, expected, "{condition}");
        for id in 1..=3 {
            let status = larder.get(&format!("/r{number}/{id}")).await.status;
            let exists = expected.contains(&id);
            assert_eq!(status == StatusCode::OK, exists, "{condition} for {id}");
        }
    }
}

#[tokio::test]
async fn the_privilege_that_checking_takes_is_named_and_granted() {
    let url = TestCluster::database().await.url;
    let role = TestRole::create(&url).await;
    let database = url.rsplit_once('/').unwrap().1;
    execute(&url, SCHEMA).await;
    execute(
        &url,
        &format!("revoke temporary on database {database} from public"),
    )
    .await;
    let without = "[[resource]]\nname = 'items'\ntable = 'item'\n";
    let file = format!("{without}where = 'gone is null'");
    let grant = format!("grant temporary on database {database} to {}", role.name);
    let told = mistakes(&role.url, &file).await;
    let expected = "larder.toml:4: resource[0].where: PostgreSQL can't check the condition";
    assert_eq!(told.len(), 1);
    let told = told[0].to_string();
    assert!(
        told.starts_with(expected) && told.ends_with(&grant),
        "{told}"
    );
    let script = async |toml: &str| {
        let config = Config::from_toml(toml, &[("database.url", &role.url)]).unwrap();
        let database = Database::new(&role.url, false, config.source.statement_timeout).unwrap();
        install_script(&database, &config.resources, &config.feed)
            .await
            .unwrap()
    };
    assert!(!script(without).await.contains("temporary"));
    let printed = script(&file).await;
    assert!(printed.contains(&grant), "{printed}");
    execute(&url, &printed).await;
    assert!(mistakes(&role.url, &file).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_of_the_condition_is_dropped_and_comes_back() {
    let file = "[[resource]]\nname = 'items'\ntable = 'item'\nfields = { id = 'id' }\nwhere = 'gone is null'";
    let larder = TestService::start(SCHEMA, file).await;
    assert_eq!(larder.get("/items/1").await.status, StatusCode::OK);
    larder.execute("alter table item drop column gone").await;
    eventually("unfit", async || {
        let ready = larder.admin("/readyz").await.body;
        ready
            .contains("column \"gone\" does not exist")
            .then_some(())
    })
    .await;
    let response = larder.get("/items/1").await;
    assert_eq!(response.status, StatusCode::SERVICE_UNAVAILABLE);
    larder
        .execute("alter table item add column gone int; update item set gone = 0 where id = 1")
        .await;
    eventually("hidden now", async || {
        let status = larder.get("/items/1").await.status;
        (status == StatusCode::NOT_FOUND).then_some(())
    })
    .await;
    assert_eq!(larder.get("/items/2").await.body, r#"{"id":2}"#);
}

/// Before larder learns of it, statements are planned again without the column.
#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_is_dropped_is_not_taken_for_one_of_the_row_above() {
    let sql = "
        create table upper (id int primary key, gone bool);
        create table lower (id int primary key, upper_id int references upper, gone bool);
        insert into upper values (1, false); insert into lower values (1, 1, true);";
    let file = "[[resource]]\nname = 'uppers'\ntable = 'upper'\ntiers = []\n\
        [[resource.children]]\nname = 'lowers'\ntable = 'lower'\nfields = { id = 'id' }\nwhere = 'not gone'";
    let larder = TestService::start(sql, file).await;
    let without = r#"{"id":1,"gone":false,"lowers":[]}"#;
    assert_eq!(larder.get("/uppers/1").await.body, without);
    larder.execute("alter table lower drop column gone").await;
    for _ in 0..10 {
        let response = larder.get("/uppers/1").await;
        assert_eq!(
            response.status,
            StatusCode::SERVICE_UNAVAILABLE,
            "{}",
            response.body
        );
    }
}
