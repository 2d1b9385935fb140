//! What triggers make of the rows of a write: they fill columns, delete rows, move them and insert them again.

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::harness::service::TestService;
use crate::writes::{assert_refused, assert_stored};

/// Of triggers: at the end of the statement, and before the commit.
const TIMES: [[&str; 2]; 2] = [["", ""], ["constraint", "deferrable initially deferred"]];

const ITEMS: &str = "[[resource]]\nname = 'items'\ntable = 'item'\n";

/// `return=representation` answered 500, and lines told locations of documents that are not there.
#[tokio::test(flavor = "multi_thread")]
async fn bulk_writes_show_no_document_that_a_trigger_has_moved() {
    for [time, deferrable] in TIMES {
        let larder = TestService::start(
            &format!(
                "create table item (id int primary key, t text);
                 create function moves() returns trigger language plpgsql as $$ begin
                   if new.t = 'gone' then delete from item where id = new.id; end if;
                   if new.t = 'away' then update item set id = id + 100 where id = new.id; end if;
                   return null; end $$;
                 create {time} trigger moves after insert on item {deferrable} for each row execute function moves();"
            ),
            ITEMS,
        )
        .await;
        let body = json!([{"id": 1, "t": "gone"}, {"id": 2, "t": "x"}, {"id": 3, "t": "away"}]);
        let shown = [("prefer", "return=representation")];
        let answer = larder
            .write(Method::POST, "/items", &shown, &body.to_string())
            .await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        assert_eq!(answer.json(), json!([{"id": 2, "t": "x"}]));
        let rows = "select string_agg(id || t, ' ' order by id) from item";
        assert_eq!(larder.query(rows).await, "2x 103away");
        let body = body.to_string().replace("\"id\":2", "\"id\":4");
        let lenient = [("prefer", "handling=lenient")];
        let answer = larder.write(Method::POST, "/items", &lenient, &body).await;
        let locations: Vec<bool> = answer
            .body
            .lines()
            .map(|line| line.contains("\"location\""))
            .collect();
        assert_eq!(locations, [false, true, false], "{}", answer.body);
    }
}

/// It was 204, and the document was still there.
#[tokio::test(flavor = "multi_thread")]
async fn a_delete_shows_a_document_that_a_trigger_inserts_again() {
    for [time, deferrable] in TIMES {
        let larder = TestService::start(
            &format!(
                "create table item (id int primary key, t text);
                 create table part (id int primary key, item int references item);
                 create index on part (item);
                 insert into item values (1, 'x'), (2, 'free');
                 insert into part values (1, 1), (2, 2);
                 create function marks() returns trigger language plpgsql as $$ begin
                   if old.t <> 'free' then insert into item values (old.id, 'deleted'); end if;
                   return null; end $$;
                 create {time} trigger marks after delete on item {deferrable} for each row execute function marks();"
            ),
            &format!("{ITEMS}[[resource.children]]\nname = 'parts'\ntable = 'part'\n"),
        )
        .await;
        let minimal = [("prefer", "return=minimal")];
        let answer = larder.request(Method::DELETE, "/items/1", &minimal).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        let kept = json!({"id": 1, "t": "deleted", "parts": []});
        assert_stored(&larder, &answer, "/items/1", &kept).await;
        let answer = larder.delete("/items/2").await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
        assert_eq!(larder.get("/items/2").await.status, StatusCode::NOT_FOUND);
    }
}

/// They were refused as required.
#[tokio::test(flavor = "multi_thread")]
async fn triggers_may_fill_columns_that_must_not_be_null() {
    let larder = TestService::start(
        "create table item (id text primary key, title text not null, slug text not null, j json not null);
         create table part (id int primary key, item text not null references item, n int not null);
         create table piece (part int not null references part, t text, primary key (part, t));
         create index on part (item);
         create sequence numbers start 7;
         create function fills() returns trigger language plpgsql as $$ begin
           new.slug := coalesce(new.slug, lower(new.title));
           new.j := coalesce(new.j, '[]');
           new.id := coalesce(new.id, 'i-' || new.slug); return new; end $$;
         create trigger fills before insert on item for each row execute function fills();
         create function numbers() returns trigger language plpgsql as $$ begin
           new.id := coalesce(new.id, nextval('numbers')); return new; end $$;
         create trigger numbers before insert on part for each row execute function numbers();",
        &format!(
            "{ITEMS}[[resource.children]]\nname = 'parts'\ntable = 'part'\nfields = {{ id = 'id', n = 'n' }}\n\
             [[resource.children.children]]\nname = 'pieces'\ntable = 'piece'\nfields = {{ t = 't' }}\n"
        ),
    )
    .await;
    let body = json!({"title": "A", "slug": null, "parts": [{"n": 1, "pieces": [{"t": "x"}]}]});
    let answer = larder.post("/items", &body).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.header("location"), "/items/i-a");
    let mut stored = json!({"id": "i-a", "title": "A", "slug": "a", "j": [], "parts": [
        {"id": 7, "n": 1, "pieces": [{"t": "x"}]}]});
    assert_stored(&larder, &answer, "/items/i-a", &stored).await;
    let new = json!({"n": 2, "pieces": [{"t": "y"}]});
    stored["parts"].as_array_mut().unwrap().push(new);
    let answer = larder.put("/items/i-a", &stored).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    stored["parts"][1]["id"] = json!(8);
    assert_stored(&larder, &answer, "/items/i-a", &stored).await;
    let body = json!({"title": "B", "j": null});
    let answer = larder.put("/items/b", &body).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let json_null = "select j::text from item where id = 'b'";
    assert_eq!(larder.query(json_null).await, "null");
    assert_eq!(answer.json()["slug"], "b");
    // What the trigger leaves null is refused as before.
    let answer = larder
        .post("/items", &json!({"id": "c", "parts": []}))
        .await;
    assert_refused(&answer, "/title");
    assert_eq!(answer.json()["errors"][0]["detail"], "must not be null");
    let answer = larder.put("/items/b", &body).await;
    assert_refused(&answer, "/slug");
    let answer = larder
        .post("/items", &json!({"title": "D", "parts": [{}]}))
        .await;
    assert_eq!(
        answer.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{}",
        answer.body
    );
    assert_eq!(larder.query("select count(*)::text from item").await, "2");
}

/// They were 500, since `raise` was not what gave them.
#[tokio::test(flavor = "multi_thread")]
async fn what_triggers_do_not_find_is_refused() {
    let larder = TestService::start(
        "create table item (id int primary key, t text);
         create function seeks() returns trigger language plpgsql as $$ declare n int; begin
           case new.t
             when 'none' then select id into strict n from item where id = 0;
             when 'several' then select i into strict n from generate_series(1, 2) i;
             when 'assert' then assert new.id = 0;
             when 'subquery' then n := (select i from generate_series(1, 2) i);
           end case;
           return new; end $$;
         create trigger seeks before insert on item for each row execute function seeks();",
        ITEMS,
    )
    .await;
    for (text, code) in [
        ("none", "P0002"),
        ("several", "P0003"),
        ("assert", "P0004"),
        ("subquery", "21000"),
        ("other", "20000"),
    ] {
        let answer = larder.post("/items", &json!({"id": 1, "t": text})).await;
        assert_eq!(
            answer.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{text}: {}",
            answer.body
        );
        assert_eq!(answer.json()["code"], code);
    }
}

/// A key with a default is left out, not null: the body is refused before a trigger is called.
#[tokio::test(flavor = "multi_thread")]
async fn null_is_no_key_where_there_is_a_default() {
    let larder = TestService::start(
        "create table item (id serial primary key, t text);
         create function refuses() returns trigger language plpgsql as $$ begin
           if new.id is null then raise exception 'null' using errcode = 'PT418'; end if;
           return new; end $$;
         create trigger refuses before insert on item for each row execute function refuses();",
        ITEMS,
    )
    .await;
    let answer = larder.post("/items", &json!({"id": null})).await;
    assert_refused(&answer, "/id");
    let answer = larder.post("/items", &json!({"t": "x"})).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
}
