//! Documents whose rows refer to rows that are written after them.

use axum::http::StatusCode;
use serde_json::json;

use crate::harness::service::TestService;

const SCHEMA: &str = "
    create table person (id int primary key, name text, main int);
    create table address (id int primary key, person_id int not null references person on delete cascade, street text unique);
    create index on address (person_id);
    alter table person add constraint person_main foreign key (main) references address DEFERRABLE;
    insert into person values (1, 'p'); insert into address values (1, 1, 'a'), (2, 1, 'b');
    update person set main = 2;
";

const CONFIG: &str = "[[resource]]\nname = 'person'\ntable = 'person'\n\
    [[resource.children]]\nname = 'addresses'\ntable = 'address'\nforeign_key = 'person_id'";

const TRIGGER: &str =
    "create function noted() returns trigger language plpgsql as $$ begin return new; end $$;
    create trigger noted before insert or update on address for each row execute function noted()";

const DELETE_TRIGGERS: &str =
    "create function goes() returns trigger language plpgsql as $$ begin return old; end $$;
    create trigger goes before delete on address for each row execute function goes();
    create trigger goes before delete on person for each row execute function goes()";

/// It was 409: rows were deleted first, then updated from the root down, then inserted.
#[tokio::test(flavor = "multi_thread")]
async fn a_reference_to_a_child_moves_in_one_write() {
    for (deferrable, triggers) in [
        ("", ""),
        ("deferrable", ""),
        ("", TRIGGER),
        ("", DELETE_TRIGGERS),
    ] {
        let schema = SCHEMA.replace("DEFERRABLE", deferrable);
        let larder = TestService::start(&format!("{schema}{triggers}"), CONFIG).await;
        let address = |id: i32, street: &str| json!({"id": id, "person_id": 1, "street": street});
        let steps = [
            // A new one, and the old one goes.
            json!({"main": 3, "addresses": [address(1, "a"), address(3, "c")]}),
            json!({"main": 1, "addresses": [address(1, "a")]}),
            // Nothing is left.
            json!({"main": null, "addresses": []}),
            json!({"main": 7, "addresses": [address(7, "g"), address(8, "h")]}),
            // The new one takes a unique value of another one.
            json!({"main": 7, "addresses": [address(7, "g"), address(9, "h")]}),
        ];
        for step in steps {
            let answer = larder.patch("/person/1", &step).await;
            assert_eq!(answer.status, StatusCode::OK, "{step} {}", answer.body);
            let stored = answer.json();
            assert_eq!(stored["main"], step["main"]);
            assert_eq!(stored["addresses"], step["addresses"]);
        }
        let both =
            json!({"id": 5, "name": "q", "main": 50, "addresses": [{"id": 50, "street": "s"}]});
        let answer = larder.post("/person", &both).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        assert_eq!(answer.json()["main"], 50);
        let answer = larder.delete("/person/5").await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
    }
}

/// Rows were updated last or deleted first, but a reference to a row whose unique value a new row takes has to go before both.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_row_takes_the_unique_value_of_the_row_that_was_referred_to() {
    for triggers in ["", TRIGGER] {
        let schema = SCHEMA.replace("DEFERRABLE", "");
        let larder = TestService::start(&format!("{schema}{triggers}"), CONFIG).await;
        let address = |id: i32, street: &str| json!({"id": id, "person_id": 1, "street": street});
        for step in [
            json!({"main": 1, "addresses": [address(1, "a"), address(3, "b")]}),
            json!({"main": 4, "addresses": [address(3, "b"), address(4, "a")]}),
            json!({"main": null, "addresses": [address(3, "b"), address(5, "a")]}),
            json!({"main": 5, "addresses": [address(3, "b"), address(5, "a")]}),
            // A row that stays takes the value.
            json!({"main": 3, "addresses": [address(3, "a")]}),
        ] {
            for answer in [
                larder.patch("/person/1", &step).await,
                larder.get("/person/1").await,
            ] {
                assert_eq!(answer.status, StatusCode::OK, "{step} {}", answer.body);
                let stored = answer.json();
                assert_eq!(stored["main"], step["main"]);
                assert_eq!(stored["addresses"], step["addresses"]);
            }
        }
    }
}

/// The reference is on the second level, and whole branches come and go.
#[tokio::test(flavor = "multi_thread")]
async fn branches_with_circles_are_replaced() {
    let larder = TestService::start(
        "create table house (id int primary key);
         create table family (id int primary key, house int not null references house, head int); create index on family (house);
         create table member (id int primary key, family int not null references family, name text); create index on member (family);
         alter table family add foreign key (head) references member",
        "[[resource]]\nname = 'house'\ntable = 'house'\n\
         [[resource.children]]\nname = 'families'\ntable = 'family'\n\
         [[resource.children.children]]\nname = 'members'\ntable = 'member'",
    )
    .await;
    for base in [10, 20, 30] {
        let member = |id: i32| json!({"id": id, "family": base, "name": "n"});
        let house = json!({"id": 1, "families": [
            {"id": base, "house": 1, "head": base + 2, "members": [member(base + 1), member(base + 2)]}]});
        let answer = larder.put("/house/1", &house).await;
        assert!(answer.status.is_success(), "{}", answer.body);
        assert_eq!(larder.get("/house/1").await.json(), house);
    }
    let answer = larder.delete("/house/1").await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
}
