//! Writes that are refused, and their problem details.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::cluster::TestRole;
use crate::harness::service::TestService;
use crate::harness::table_locks::{lock_table, unlock};
use crate::writes::{CONFIG, SCHEMA, dept, grants_on_larder, start};

#[tokio::test(flavor = "multi_thread")]
async fn methods_belong_to_paths() {
    const DOCUMENT: &str = "GET, HEAD, PUT, PATCH, DELETE, OPTIONS";
    let larder = start().await;
    for (method, path, allow) in [
        (Method::PUT, "/depts", "GET, HEAD, POST, OPTIONS"),
        (Method::DELETE, "/depts", "GET, HEAD, POST, OPTIONS"),
        (Method::POST, "/depts/1", DOCUMENT),
        (Method::TRACE, "/depts/1", DOCUMENT),
    ] {
        let answer = larder.write(method, path, &[], "{}").await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(answer.header("allow"), allow);
    }
    assert_eq!(
        larder.put("/depts/x", &dept(1)).await.status,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(
        larder.put("/none/1", &dept(1)).await.status,
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        larder.put("/depts/1/2", &dept(1)).await.status,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_written_says_why() {
    let larder = TestService::start(
        "create table p (id int primary key); create table c (p int references p, n int unique)",
        "[[resource]]\nname = 'ps'\ntable = 'p'\n[[resource.children]]\nname = 'cs'\ntable = 'c'\norder_by = 'n'\n",
    )
    .await;
    let answer = larder.post("/ps", &json!({"id": 1})).await;
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(answer.header("allow"), "GET, HEAD, OPTIONS");
    let options = larder.request(Method::OPTIONS, "/ps/1", &[]).await;
    assert_eq!(options.header("allow"), "GET, HEAD, OPTIONS");
    assert!(answer.body.contains("primary key"), "{}", answer.body);
}

/// A generated default replaced the key of each comment, and all comments were deleted and inserted again.
#[tokio::test(flavor = "multi_thread")]
async fn rows_linked_to_no_key_are_only_read() {
    let larder = TestService::start(
        "create table article (id bigserial primary key, slug text unique, title text);
         create table comment (id int primary key, article bigint references article, kept text default 'k');
         create index on comment (article);
         insert into article (slug) values ('a'); insert into comment (id, article) values (1, 1)",
        "[[resource]]\nname = 'articles'\ntable = 'article'\nkey = 'slug'\n\
         [[resource.children]]\nname = 'comments'\ntable = 'comment'\n",
    )
    .await;
    assert_eq!(larder.get("/articles/a").await.status, StatusCode::OK);
    let answer = larder.put("/articles/a", &json!({"title": "x"})).await;
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
    assert!(
        answer.body.contains("linked to field id of the document"),
        "{}",
        answer.body
    );
}

/// Another client could add a row between a PATCH's read and its statements, and the PATCH deleted it unread.
#[tokio::test(flavor = "multi_thread")]
async fn rows_below_need_a_foreign_key_and_a_place_of_their_own() {
    let larder = TestService::start(
        "create table p (id int primary key);
         create table c (id int primary key, p int); create index on c (p);
         create table e (id int primary key, boss int references e); create index on e (boss)",
        "[[resource]]\nname = 'ps'\ntable = 'p'\n\
         [[resource.children]]\nname = 'cs'\ntable = 'c'\nforeign_key = 'p'\n\
         [[resource]]\nname = 'es'\ntable = 'e'\n\
         [[resource.children]]\nname = 'reports'\ntable = 'e'\n",
    )
    .await;
    for (path, why) in [
        ("/ps", "no foreign key leads from the rows of cs"),
        (
            "/es",
            "the rows of reports are in a table that the document shows at another place",
        ),
    ] {
        let answer = larder.post(path, &json!({"id": 1})).await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
        assert!(answer.body.contains(why), "{}", answer.body);
    }
}

/// A cast to `varchar(5)` truncates, so another document than the path's was written.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_does_not_fit_writes_no_other_document() {
    let larder = TestService::start(
        "create table t (key varchar(5) primary key, bits bit(3))",
        "[[resource]]\nname = 'ts'\ntable = 't'\n",
    )
    .await;
    let answer = larder.put("/ts/abcdefgh", &json!({"bits": "101"})).await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(answer.json()["code"], "22001");
    let answer = larder.put("/ts/abcde", &json!({"bits": "10101"})).await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    let list = larder.get("/ts").await;
    assert_eq!(list.body, "[]");
}

/// The catalogue shows `default 0` of a text without the cast that it implies.
#[tokio::test(flavor = "multi_thread")]
async fn defaults_of_another_type_are_stored() {
    let larder = TestService::start(
        "create table t (key int primary key, flag text default 0, at time default now())",
        "[[resource]]\nname = 'ts'\ntable = 't'\n",
    )
    .await;
    let answer = larder.post("/ts", &json!({"key": 1})).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.json()["flag"], "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_refusals_carry_their_code_and_nothing_else() {
    let larder = TestService::start(
        &format!(
            "{SCHEMA} alter table dept add check (loc <> 'secret');
             create function no() returns trigger language plpgsql as $$ begin
               raise exception 'secret %', new.dname; end $$;
             create trigger no before insert on dept for each row when (new.dname = 'raise') execute function no();"
        ),
        CONFIG,
    )
    .await;
    larder.post("/depts", &dept(1)).await;
    let mut taken = dept(2);
    taken["code"] = json!("c1");
    for (document, status, code) in [
        (taken, StatusCode::CONFLICT, "23505"),
        (
            json!({"no": 3, "name": "x", "loc": "secret"}),
            StatusCode::UNPROCESSABLE_ENTITY,
            "23514",
        ),
        (
            json!({"no": 3, "name": "raise"}),
            StatusCode::UNPROCESSABLE_ENTITY,
            "P0001",
        ),
    ] {
        for answer in [
            larder.post("/depts", &document).await,
            larder
                .put(&format!("/depts/{}", document["no"]), &document)
                .await,
        ] {
            assert_eq!(answer.status, status, "{}", answer.body);
            assert_eq!(answer.header("content-type"), "application/problem+json");
            assert_eq!(answer.json()["code"], code);
            assert!(!answer.body.contains("secret"), "{}", answer.body);
        }
    }
    larder
        .execute("create table badge (empno bigint references emp); insert into badge values (10)")
        .await;
    let answer = larder.delete("/depts/1").await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert_eq!(answer.json()["code"], "23503");
    assert_eq!(larder.get("/depts/1").await.json(), dept(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_table_is_waited_for_within_the_bound() {
    let larder = start().await;
    larder.post("/depts", &dept(1)).await;
    let url = larder.url.clone();
    let state = larder.stop().await;
    let brief = [("database.statement_timeout", "200ms")];
    let larder = TestService::start_in(state, &url, CONFIG, &brief).await;
    let holder = lock_table(&url, "dept").await;
    let answer = larder.delete("/depts/1").await;
    assert_eq!(
        answer.status,
        StatusCode::SERVICE_UNAVAILABLE,
        "{}",
        answer.body
    );
    assert_eq!(answer.json()["code"], "55P03");
    unlock(holder).await;
    assert_eq!(
        larder.delete("/depts/1").await.status,
        StatusCode::NO_CONTENT
    );
}

/// A read is refused by then: another tier, or the next request, may have its answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_waits_for_a_server_that_is_slow_to_take_connections() {
    let larder = start().await;
    // Whoever begins a session looks for functions there.
    let holder = lock_table(&larder.url, "pg_proc").await;
    let document = dept(1);
    let posted = larder.post("/depts", &document);
    let released = async {
        let answer = larder.get("/depts/2").await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        unlock(holder).await;
    };
    let (answer, ()) = tokio::join!(posted, released);
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_only_read_is_forbidden_to_write() {
    let larder = start().await;
    let role = TestRole::create(&larder.url).await;
    let grants = format!(
        "grant usage on schema larder to {name}; grant select on all tables in schema larder to {name};
         grant insert, update, delete on larder.change, larder.horizon, larder.epoch, larder.node, larder.logger, larder.answer to {name};
         grant select on dept, emp, skill to {name}; grant execute on all functions in schema larder to {name};
         grant execute on function pg_control_system() to {name}",
        name = role.name
    );
    larder.execute(&grants).await;
    let reader = TestService::start_on(&role.url, CONFIG, &[("install", "manual")]).await;
    let answer = reader.post("/depts", &dept(1)).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN, "{}", answer.body);
    assert_eq!(answer.json()["code"], "42501");
}

/// A client knows the field `no`, not the column `deptno`.
#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_key_is_named_by_its_field() {
    let larder = start().await;
    let answers = [
        larder.get("/depts/x").await,
        larder.get("/depts?after=x").await,
        larder.write(Method::DELETE, "/depts/x", &[], "").await,
    ];
    for answer in answers {
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert!(
            answer.body.contains("the key's part no "),
            "{}",
            answer.body
        );
        assert!(!answer.body.contains("deptno"), "{}", answer.body);
    }
}

/// Policies show larder's role rows that it may not change. A write to them was 404 or 409.
#[tokio::test(flavor = "multi_thread")]
async fn documents_that_policies_keep_from_writes_are_forbidden() {
    let file = "[[resource]]\nname = 'notes'\ntable = 'note'\nrow_security = 'as-larder'";
    let larder = TestService::start(
        "create table note (id int primary key, t text);
         insert into note values (1, 'fixed'), (2, 'free');
         alter table note enable row level security;
         create policy reads on note for select using (true);
         create policy inserts on note for insert with check (true);
         create policy updates on note for update using (t <> 'fixed');
         create policy deletes on note for delete using (t <> 'fixed')",
        file,
    )
    .await;
    let role = TestRole::create(&larder.url).await;
    let name = &role.name;
    let grants = format!(
        "{} grant select, insert, update, delete on note to {name}",
        grants_on_larder(name)
    );
    larder.execute(&grants).await;
    let writer = TestService::start_on(&role.url, file, &[("install", "manual")]).await;
    assert_eq!(writer.get("/notes/1").await.status, StatusCode::OK);
    for answer in [
        writer.patch("/notes/1", &json!({"t": "x"})).await,
        writer.put("/notes/1", &json!({"t": "x"})).await,
        writer.delete("/notes/1").await,
    ] {
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{}", answer.body);
        assert_eq!(answer.json()["code"], "42501");
    }
    let answer = writer.post("/notes", &json!({"id": 1})).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
    let answer = writer.delete("/notes/3").await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND, "{}", answer.body);
    let answer = writer.put("/notes/3", &json!({"t": "x"})).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let answer = writer.delete("/notes/2").await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
}

/// All conflicts were said to be with a unique or foreign key constraint.
#[tokio::test(flavor = "multi_thread")]
async fn conflicts_are_told_apart() {
    let larder = TestService::start(
        "create table room (id int primary key, at int4range, n int, exclude using gist (at with &&));
         create function own() returns trigger language plpgsql as $$ begin
           if new.n = 1 then update room set n = 2 where id = new.id; end if; return new; end $$;
         create trigger own before update on room for each row execute function own();
         insert into room values (1, '[1,5)', 0), (2, '[5,9)', 0)",
        "[[resource]]\nname = 'rooms'\ntable = 'room'",
    )
    .await;
    for (path, body, code, said) in [
        (
            "/rooms/2",
            json!({"at": "[4,9)"}),
            "23P01",
            "exclusion constraint",
        ),
        ("/rooms/1", json!({"n": 1}), "27000", "trigger"),
    ] {
        let answer = larder.patch(path, &body).await;
        assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
        assert_eq!(answer.json()["code"], code);
        assert!(answer.body.contains(said), "{}", answer.body);
    }
}

/// It was 503, as if the resource's own table had been altered.
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_that_names_what_is_missing_is_no_altered_table() {
    let broken = "create function broken() returns trigger language plpgsql as $$ begin
           if new.loc = 'TABLE' then insert into missing values (1); end if;
           if new.loc = 'COLUMN' then perform missing from dept; end if;
           return new; end $$;
         create trigger broken before insert on dept for each row execute function broken();";
    let larder = TestService::start(&format!("{SCHEMA}; {broken}"), CONFIG).await;
    for name in ["TABLE", "COLUMN"] {
        let document = json!({"no": 1, "name": "x", "loc": name});
        let answer = larder.post("/depts", &document).await;
        assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR, "{name}");
        assert!(!answer.body.contains("altered"), "{}", answer.body);
    }
}

const ACCOUNTS: &str = "create domain adult as int check (value >= 18);
         create table account (id int primary key, email text unique, nick text constraint one_nick unique,
           age int constraint grown check (age >= 18), invited_by int constraint inviter references account,
           start date, stop date, constraint in_order check (start < stop), span int4range, pause interval, years adult,
           secret text unique, hint text, constraint hinted check (hint <> secret));
         create unique index lower_nick on account (lower(nick));
         create table login (account_id int references account, no int, host inet, at int constraint late check (at > 0),
           primary key (account_id, no));
         insert into account (id, email, nick, secret) values (1, 'a@x', 'a', 's'), (3, 'c@x', 'c', null)";

const ACCOUNTS_CONFIG: &str = "[[resource]]\nname = 'account'\ntable = 'account'\nfields = { id = 'id', email = 'mail', nick = 'nick', \
         age = 'age', invited_by = 'invitedBy', start = 'start', stop = 'stop', span = 'span', pause = 'pause', \
         years = 'years', hint = 'hint' }\n\
         [[resource.children]]\nname = 'logins'\ntable = 'login'";

/// What is given, and the code, constraint and members of the refusal.
fn account_refusals() -> Vec<(Value, &'static str, &'static str, &'static [&'static str])> {
    let logins = json!([{"no": 1, "at": 1}, {"no": 2, "host": "nohost", "at": 1}]);
    vec![
        (
            json!({"mail": "a@x"}),
            "23505",
            "account_email_key",
            &["/mail"],
        ),
        (json!({"nick": "a"}), "23505", "one_nick", &["/nick"]),
        (json!({"nick": "A"}), "23505", "lower_nick", &["/nick"]),
        (
            json!({"invitedBy": 77}),
            "23503",
            "inviter",
            &["/invitedBy"],
        ),
        (json!({"age": 3}), "23514", "grown", &["/age"]),
        (json!({"years": 3}), "23514", "adult_check", &["/years"]),
        (
            json!({"start": "2026-01-02", "stop": "2026-01-01"}),
            "23514",
            "in_order",
            &["/start", "/stop"],
        ),
        (json!({"span": "nonsense"}), "22P02", "", &["/span"]),
        (json!({"pause": "nonsense"}), "22007", "", &["/pause"]),
        (
            json!({"logins": [{"no": 1, "at": 0}]}),
            "23514",
            "late",
            &["/logins/0/at"],
        ),
        (json!({"logins": logins}), "22P02", "", &["/logins/1/host"]),
    ]
}

/// All unique and foreign keys gave one sentence, and other constraints none.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_names_the_constraint_and_its_members() {
    let larder = TestService::start(ACCOUNTS, ACCOUNTS_CONFIG).await;
    for (given, code, constraint, pointers) in account_refusals() {
        let mut document = given.clone();
        document["id"] = json!(2);
        let posted = larder.post("/account", &document).await;
        let patched = larder.patch("/account/3", &given).await;
        let many = larder
            .write(
                Method::POST,
                "/account",
                &[],
                &json!([document]).to_string(),
            )
            .await;
        for (answer, prefix) in [(posted, ""), (patched, ""), (many, "/0")] {
            let problem = answer.json();
            assert_eq!(problem["code"], code, "{}", answer.body);
            let errors = problem["errors"].as_array().unwrap();
            let found: Vec<&str> = errors
                .iter()
                .map(|error| error["pointer"].as_str().unwrap())
                .collect();
            let wanted: Vec<String> = pointers
                .iter()
                .map(|pointer| format!("{prefix}{pointer}"))
                .collect();
            assert_eq!(found, wanted, "{}", answer.body);
            assert_eq!(errors[0]["code"], code);
            assert_eq!(
                errors[0]["constraint"].as_str().unwrap_or_default(),
                constraint
            );
            assert!(answer.body.contains(constraint), "{}", answer.body);
        }
    }
    // Columns that the document does not show are not named.
    larder
        .execute("update account set hint = 'h' where id = 1")
        .await;
    let answer = larder.patch("/account/1", &json!({"hint": "s"})).await;
    assert_eq!(
        answer.json()["errors"][0]["pointer"],
        "/hint",
        "{}",
        answer.body
    );
    assert!(!answer.body.contains("hinted"), "{}", answer.body);
}

/// The answer named neither the constraint nor the members, so that a client could not tell which value was taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_exists_is_named() {
    let larder = TestService::start(
        "create table place (shop int, no int, note text, constraint place_key primary key (shop, no)); insert into place values (1, 2)",
        "[[resource]]\nname = 'place'\ntable = 'place'\nfields = { shop = 'shop', no = 'number' }",
    )
    .await;
    let taken = json!({"shop": 1, "number": 2});
    let single = larder.post("/place", &taken).await;
    let bulk = larder
        .post("/place", &json!([{"shop": 1, "number": 1}, taken]))
        .await;
    for (answer, pointers) in [
        (single, ["/shop", "/number"]),
        (bulk, ["/1/shop", "/1/number"]),
    ] {
        assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.body);
        let problem = answer.json();
        for (number, pointer) in pointers.into_iter().enumerate() {
            let error = &problem["errors"][number];
            let found = (&error["pointer"], &error["constraint"], &error["code"]);
            let expected = (&json!(pointer), &json!("place_key"), &json!("23505"));
            assert_eq!(found, expected, "{}", answer.body);
        }
    }
}

/// A value within a composite type was told as that of another column with the same domain.
#[tokio::test(flavor = "multi_thread")]
async fn a_domain_within_a_type_is_told_as_its_own_column() {
    let larder = TestService::start(
        "create domain em as text constraint em_check check (value ~ '@'); create domain n as int constraint n_check check (value > 0);
         create type contact as (a n, e em);
         create table person (id int primary key, email em, c contact, cs contact[]);
         create table place (id int primary key, kind text, cs contact[])",
        "[[resource]]\nname = 'person'\ntable = 'person'\n[[resource]]\nname = 'place'\ntable = 'place'",
    )
    .await;
    for wrong in [
        json!({"c": {"a": 1, "e": "zz"}}),
        json!({"cs": [{"a": 1, "e": "zz"}]}),
    ] {
        let mut document = wrong.clone();
        document["id"] = json!(1);
        document["email"] = json!("a@b");
        let answer = larder.post("/person", &document).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert!(answer.body.contains("em_check"), "{}", answer.body);
        assert!(!answer.body.contains("/email"), "{}", answer.body);
    }
    let document = json!({"id": 1, "kind": "k", "cs": [{"a": 0}]});
    let answer = larder.post("/place", &document).await;
    let error = &answer.json()["errors"][0];
    assert_eq!(error["pointer"], "/cs", "{}", answer.body);
    assert_eq!(error["constraint"], "n_check");
}

/// PostgreSQL names no constraint where no partition takes a row, and the answer gave no reason.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_without_a_partition_is_told() {
    let larder = TestService::start(
        "create table reading (day date primary key, note text) partition by range (day);
         create table reading_2026 partition of reading for values from ('2026-01-01') to ('2027-01-01')",
        "[[resource]]\nname = 'reading'\ntable = 'reading'",
    )
    .await;
    let document = json!({"day": "2027-01-01", "note": "n"});
    let single = larder.post("/reading", &document).await;
    let bulk = larder.post("/reading", &json!([document])).await;
    for answer in [single, bulk] {
        let problem = answer.json();
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(problem["code"], "23514");
        assert!(answer.body.contains("no partition"), "{}", answer.body);
    }
}
