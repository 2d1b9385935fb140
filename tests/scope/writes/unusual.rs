//! Owners that are keys, generated or changed by triggers, and claims that do not fit.

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::harness::service::TestService;
use crate::scope::clients;
use crate::scope::writes::is;

/// A table `thing` with the column `owner`, whose documents have `fields`.
async fn start(schema: &str, fields: &str) -> TestService {
    let toml = format!(
        "{}[[resource]]\nname = 'things'\ntable = 'thing'\n{fields}\n\
         read = ['customer', 'staff']\nwrite = ['customer', 'staff']\n\
         [resource.owner]\ncolumn = 'owner'\nclaim = 'sub'\nroles = ['customer']\n",
        clients()
    );
    TestService::start(schema, &toml).await
}

const ROWS: &str = "select string_agg(t::text, '' order by t::text) from thing t";

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_may_be_the_key() {
    let schema =
        "create table thing (owner int primary key, note text); insert into thing values (18, 'b')";
    let larder = start(schema, "").await;
    for (path, status) in [
        ("/things/17", StatusCode::CREATED),
        ("/things/17", StatusCode::OK),
        ("/things/18", StatusCode::NOT_FOUND),
        ("/things/19", StatusCode::FORBIDDEN),
    ] {
        is(&larder.put_by("c17", path, r#"{"note":"a"}"#).await, status);
    }
    let deleted = larder.by("c17", Method::DELETE, "/things/17", &[], "");
    is(&deleted.await, StatusCode::NO_CONTENT);
    let answer = larder.post_by("c17", "/things", r#"{"note":"c"}"#).await;
    is(&answer, StatusCode::CREATED);
    assert_eq!(answer.header("location"), "/things/17");
    let answer = larder.post_by("c17", "/things", r#"{"owner":20}"#).await;
    is(&answer, StatusCode::FORBIDDEN);
    assert_eq!(larder.text(ROWS).await, "(17,c)(18,b)");
}

/// A composite key with the owner links the rows below, too.
#[tokio::test(flavor = "multi_thread")]
async fn the_owner_may_be_a_part_of_links() {
    let schema = "create table thing (owner int, no int, note text, primary key (owner, no));
        create table part (owner int, no int, id int, primary key (owner, no, id),
                           foreign key (owner, no) references thing)";
    let child = "[[resource.children]]\nname = 'parts'\ntable = 'part'";
    let toml = format!(
        "{}[[resource]]\nname = 'things'\ntable = 'thing'\nread = ['customer']\nwrite = ['customer']\n\
         [resource.owner]\ncolumn = 'owner'\nclaim = 'sub'\nroles = ['customer']\n{child}",
        clients()
    );
    let larder = TestService::start(schema, &toml).await;
    let document = json!({"no": 1, "parts": [{"id": 1}, {"id": 2, "owner": 17}]});
    let answer = larder
        .post_by("c17", "/things", &document.to_string())
        .await;
    is(&answer, StatusCode::CREATED);
    assert_eq!(answer.header("location"), "/things/17,1");
    let parts = "select string_agg(p::text, '' order by id) from part p";
    assert_eq!(larder.text(parts).await, "(17,1,1)(17,1,2)");
    let answer = larder
        .put_by("c17", "/things/18,1", r#"{"parts":[]}"#)
        .await;
    is(&answer, StatusCode::FORBIDDEN);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generated_owner_is_checked_once_it_is_stored() {
    let schema = "create table thing (id int primary key, code text,
                    owner text generated always as (substr(code, 1, 2)) stored);
        insert into thing values (1, '17a'), (2, '18a')";
    let larder = start(schema, "").await;
    for (method, path, body, status) in [
        (Method::PATCH, "/things/1", r#"{"code":"17b"}"#, 200),
        (Method::PATCH, "/things/1", r#"{"code":"18b"}"#, 403),
        (Method::PUT, "/things/1", r#"{"code":"18b"}"#, 403),
        (Method::PATCH, "/things/2", r#"{"code":"17b"}"#, 404),
        (Method::PUT, "/things/3", r#"{"code":"17c"}"#, 201),
        (Method::PUT, "/things/4", r#"{"code":"18c"}"#, 403),
        (Method::POST, "/things", r#"{"id":4,"code":"18c"}"#, 403),
        (
            Method::POST,
            "/things",
            r#"[{"id":5,"code":"17d"},{"id":6,"code":"18d"}]"#,
            403,
        ),
        (
            Method::POST,
            "/things",
            r#"[{"id":5,"code":"17d"},{"id":6,"code":"17e"}]"#,
            201,
        ),
    ] {
        let answer = larder.by("c17", method, path, &[], body).await;
        assert_eq!(
            answer.status.as_u16(),
            status,
            "{path} {body} {}",
            answer.body
        );
    }
    let rows = "(1,17b,17)(2,18a,18)(3,17c,17)(5,17d,17)(6,17e,17)";
    assert_eq!(larder.text(ROWS).await, rows);
}

/// What triggers change is theirs to say; the client is not shown what has become another's.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_a_trigger_gives_away_is_not_shown() {
    let schema = "create table thing (id int primary key, note text, owner int);
        insert into thing values (1, 'a', 17), (2, 'b', 17), (3, 'c', 17);
        create function give() returns trigger language plpgsql as $$ begin
          if tg_op = 'DELETE' then update thing set owner = 18 where id = old.id; return null; end if;
          if new.note = 'give' then new.owner := 18; end if; return new; end $$;
        create trigger give before insert or update of note or delete on thing
          for each row execute function give()";
    let larder = start(schema, "").await;
    let give = r#"{"note":"give"}"#;
    let answer = larder
        .post_by("c17", "/things", r#"{"id":4,"note":"give"}"#)
        .await;
    is(&answer, StatusCode::CREATED);
    assert_eq!((answer.header("location"), answer.body.as_str()), ("", ""));
    let answer = larder.put_by("c17", "/things/5", give).await;
    is(&answer, StatusCode::CREATED);
    assert_eq!((answer.header("location"), answer.body.as_str()), ("", ""));
    let shown = [("prefer", "return=representation")];
    let array = r#"[{"id":6,"note":"keep"},{"id":7,"note":"give"}]"#;
    let answer = larder
        .by("c17", Method::POST, "/things", &shown, array)
        .await;
    assert_eq!(
        answer.json(),
        json!([{"id": 6, "note": "keep", "owner": 17}])
    );
    for (method, path) in [
        (Method::PATCH, "/things/1"),
        (Method::PUT, "/things/2"),
        (Method::DELETE, "/things/3"),
    ] {
        let answer = larder.by("c17", method.clone(), path, &shown, give).await;
        is(&answer, StatusCode::NO_CONTENT);
        assert_eq!(answer.body, "");
        let answer = larder.by("c17", method, path, &shown, give).await;
        is(&answer, StatusCode::NOT_FOUND);
    }
    let rows = "(1,give,18)(2,give,18)(3,c,18)(4,give,18)(5,give,18)(6,keep,17)(7,give,18)";
    assert_eq!(larder.text(ROWS).await, rows);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_does_not_fit_owns_nothing() {
    let schema = "create table thing (id int primary key, owner varchar(1))";
    let larder = start(schema, "").await;
    let answer = larder.post_by("c17", "/things", r#"{"id":1}"#).await;
    is(&answer, StatusCode::FORBIDDEN);
    let schema = "create table thing (id int primary key, owner uuid)";
    let larder = start(schema, "").await;
    let answer = larder.post_by("c17", "/things", r#"{"id":1}"#).await;
    is(&answer, StatusCode::FORBIDDEN);
    let answer = larder.put_by("c17", "/things/1", "{}").await;
    is(&answer, StatusCode::NOT_FOUND);
}
