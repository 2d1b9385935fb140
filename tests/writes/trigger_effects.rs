//! What triggers make of the rows of a write: they fill columns, delete rows, move them and insert them again.

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::harness::service::TestService;
use crate::writes::assert_stored;

const ITEMS: &str = "[[resource]]\nname = 'items'\ntable = 'item'\n";

/// `return=representation` answered 500, and lines told locations of documents that are not there.
#[tokio::test(flavor = "multi_thread")]
async fn bulk_writes_show_no_document_that_a_trigger_has_moved() {
    for time in ["", "constraint"] {
        let deferrable = match time {
            "" => "",
            _ => "deferrable initially deferred",
        };
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
    for time in ["", "constraint"] {
        let deferrable = match time {
            "" => "",
            _ => "deferrable initially deferred",
        };
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
