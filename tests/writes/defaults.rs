//! Values that PostgreSQL gives: defaults, keys that it draws, and what larder's role may not set.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::cluster::TestRole;
use crate::harness::service::TestService;
use crate::writes::grants_on_larder;

/// An insert wrote the text of the default as the catalogue had it up to `max_staleness` before. Columns get and lose
/// defaults here, too: those without one are null in rows that do not give them.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_gets_the_defaults_of_its_moment() {
    let larder = TestService::start(
        "create domain mood as text default 'd0'; create domain tone as text;
         create table ticket (id bigserial primary key, title text, state text default 'v0', mood mood);
         create table entry (ticket_id bigint references ticket on delete cascade, no int, state text default 'v0',
           late text, tone tone, primary key (ticket_id, no))",
        "[[resource]]\nname = 'ticket'\ntable = 'ticket'\n[[resource.children]]\nname = 'entries'\ntable = 'entry'",
    )
    .await;
    for round in 0..4 {
        let (change, late) = match round % 2 {
            0 => ("drop default", Value::Null),
            _ => ("set default 'late'", json!("late")),
        };
        larder
            .execute(&format!(
                "alter table ticket alter state set default 'v{round}';
                 alter table entry alter state set default 'v{round}'; alter domain mood set default 'd{round}';
                 alter table entry alter late {change}; alter domain tone {change}"
            ))
            .await;
        let given = json!({"no": 2, "state": "given", "late": "given", "tone": "given"});
        let document = json!({"title": "after", "entries": [{"no": 1}, given]});
        let answer = larder.post("/ticket", &document).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        let stored = answer.json();
        assert_eq!(stored["state"], format!("v{round}"));
        assert_eq!(stored["mood"], format!("d{round}"));
        assert_eq!(stored["entries"][0]["state"], format!("v{round}"));
        assert_eq!(stored["entries"][0]["late"], late);
        assert_eq!(stored["entries"][0]["tone"], late);
        for member in ["state", "late", "tone"] {
            assert_eq!(stored["entries"][1][member], "given");
        }
        let path = format!("/ticket/{}", stored["id"]);
        let patch = json!({"entries": [{"no": 3}]});
        let answer = larder.patch(&path, &patch).await;
        assert_eq!(answer.json()["entries"][0]["state"], format!("v{round}"));
    }
}

/// A member of such a type had to be given, as if it had no default.
#[tokio::test(flavor = "multi_thread")]
async fn a_type_may_have_a_default() {
    let larder = TestService::start(
        "create type rank; create function rank_in(cstring) returns rank language internal immutable strict as 'int4in';
         create function rank_out(rank) returns cstring language internal immutable strict as 'int4out';
         create type rank (input = rank_in, output = rank_out, like = integer, default = '7');
         create table player (id int primary key, rank rank not null)",
        "[[resource]]\nname = 'player'\ntable = 'player'",
    )
    .await;
    let answer = larder.post("/player", &json!({"id": 1})).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.json()["rank"], "7");
}

/// Plain inserts need no privilege on the schema of what a default calls, nor on columns that they do not name.
#[tokio::test(flavor = "multi_thread")]
async fn inserts_need_the_privileges_of_plain_ones() {
    let file = "[[resource]]\nname = 'invoice'\ntable = 'invoice'\n\
         [[resource]]\nname = 'comment'\ntable = 'comment'\n\
         [[resource.children]]\nname = 'flags'\ntable = 'flag'";
    let larder = TestService::start(
        "create schema ids; create sequence ids.numbers;
         create function ids.stamp() returns text language sql as $$ select 'st' $$;
         create table invoice (id bigint primary key default nextval('ids.numbers'), v text, s text default ids.stamp());
         create table comment (id bigserial primary key, body text, approved bool not null default false);
         create table flag (comment_id bigint references comment on delete cascade, no int, why text,
           seen bool default false, by text, primary key (comment_id, no))",
        file,
    )
    .await;
    let role = TestRole::create(&larder.url).await;
    let name = &role.name;
    larder
        .execute(&format!(
            "{} grant usage on sequence ids.numbers, comment_id_seq to {name};
             grant select, insert on invoice to {name}; grant select on comment, flag to {name};
             grant insert (body), update (body), delete on comment to {name};
             grant insert (comment_id, no, why), update (why, by), delete on flag to {name}",
            grants_on_larder(name)
        ))
        .await;
    let writer = TestService::start_on(&role.url, file, &[("install", "manual")]).await;
    let answer = writer.post("/invoice", &json!({"v": "x"})).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.json(), json!({"id": 1, "v": "x", "s": "st"}));
    let comment = json!({"body": "b", "flags": [{"no": 1}, {"no": 2, "why": "spam"}]});
    let answer = writer.post("/comment", &comment).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.json()["approved"], false);
    assert_eq!(answer.json()["flags"][1]["why"], "spam");
    // The kept row gives `by`, which this role may not insert; the new row does not.
    let patch = json!({"flags": [{"no": 1, "by": "me"}, {"no": 3, "why": "late"}]});
    let answer = writer.patch("/comment/1", &patch).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(answer.json()["flags"][1]["seen"], false);
    let answer = writer
        .post("/comment", &json!({"body": "b", "approved": true}))
        .await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN, "{}", answer.body);
}

const DEEP: &str = "
    create table orders (id bigint generated by default as identity primary key, x text);
    create table line (order_id bigint references orders on delete cascade, no int, primary key (order_id, no));
    create table part (order_id bigint, no int, seq int, note text default 'n', primary key (order_id, no, seq),
      foreign key (order_id, no) references line on delete cascade);
";

const DEEP_CONFIG: &str = "[[resource]]\nname = 'orders'\ntable = 'orders'\n\
    [[resource.children]]\nname = 'lines'\ntable = 'line'\n\
    [[resource.children.children]]\nname = 'parts'\ntable = 'part'";

/// The third level was said to need a value in the object above.
#[tokio::test(flavor = "multi_thread")]
async fn a_drawn_key_reaches_every_level() {
    let before =
        "create function noted() returns trigger language plpgsql as $$ begin return new; end $$;
        create trigger noted before insert on line for each row execute function noted()";
    for triggers in ["", before] {
        let larder = TestService::start(&format!("{DEEP}{triggers}"), DEEP_CONFIG).await;
        let document = |x: &str| {
            json!({"x": x, "lines": [
                {"no": 1, "parts": [{"seq": 1}, {"seq": 2, "note": x}]},
                {"no": 2, "parts": [{"seq": 1, "note": null}]}]})
        };
        let answer = larder.post("/orders", &document("one")).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        // Some documents name their key, some give other members.
        let mut documents: Vec<Value> = (0..40).map(|no| document(&no.to_string())).collect();
        for (number, document) in documents.iter_mut().enumerate() {
            if number % 3 == 1 {
                document["id"] = json!(1000 + number);
            }
            if number % 4 == 1 {
                document.as_object_mut().unwrap().remove("x");
            }
        }
        let full = [("prefer", "return=representation")];
        let body = json!(documents).to_string();
        let answer = larder.write(Method::POST, "/orders", &full, &body).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        for (sent, stored) in documents.iter().zip(answer.json().as_array().unwrap()) {
            let note = |stored: &Value| stored["lines"][0]["parts"][1]["note"].clone();
            assert_eq!(note(stored), note(sent), "{stored}");
            assert_eq!(stored["x"], sent["x"]);
            assert_eq!(stored["lines"][0]["parts"][0]["note"], "n");
            assert_eq!(stored["lines"][1]["parts"][0]["note"], Value::Null);
            assert_eq!(stored["lines"][1]["parts"][0]["order_id"], stored["id"]);
            if sent["id"] != Value::Null {
                assert_eq!(stored["id"], sent["id"]);
            }
        }
    }
}

/// A document whose rows give many sets of columns is inserted by several statements.
#[tokio::test(flavor = "multi_thread")]
async fn rows_may_give_any_set_of_columns() {
    let larder = TestService::start(
        "create table r (id bigserial primary key, t text);
         create table c (r_id bigint not null references r, id bigserial primary key, a text default 'a', b text default 'b',
           c text default 'c', d text default 'd', e text default 'e'); create index on c (r_id)",
        "[[resource]]\nname = 'r'\ntable = 'r'\n[[resource.children]]\nname = 'cs'\ntable = 'c'",
    )
    .await;
    let names = ["a", "b", "c", "d", "e"];
    let given = |set: usize, at: usize| set & (1 << at) != 0;
    let child = |set: usize| {
        let members = names.iter().enumerate().filter(|(at, _)| given(set, *at));
        let members = members.map(|(_, name)| ((*name).to_owned(), json!(format!("{name}{set}"))));
        let mut members: serde_json::Map<String, Value> = members.collect();
        members.insert("id".into(), json!(set + 1000));
        Value::Object(members)
    };
    let children: Vec<Value> = (0..32).map(child).collect();
    let answer = larder.post("/r", &json!({"cs": children})).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let stored = answer.json();
    for (set, stored) in stored["cs"].as_array().unwrap().iter().enumerate() {
        for (at, name) in names.iter().enumerate() {
            let value = if given(set, at) {
                format!("{name}{set}")
            } else {
                (*name).to_owned()
            };
            assert_eq!(stored[name], value, "{stored}");
        }
    }
}
