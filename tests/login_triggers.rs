//! Login event triggers (PostgreSQL 17), which run at each login of larder, before its first statement.

use std::time::Duration;

use larder::source::session::Database;

use crate::command::configured;
use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::larder_process::LarderProcess;
use crate::harness::service::{TestService, execute};

const SQL: &str = "
    create table item (id int primary key, name text); insert into item values (1, 'first');
    create table login (role text);";

const CONFIG: &str = "[[resource]]\nname = 'items'\ntable = 'item'";

/// SQL for a login trigger that runs `statement` for the role.
fn trigger(role: &str, statement: &str) -> String {
    format!(
        "create or replace function public.on_login() returns event_trigger language plpgsql as $$ begin
           if session_user = '{role}' then {statement}; end if; end $$;
         drop event trigger if exists at_login; create event trigger at_login on login execute function public.on_login()"
    )
}

/// The example of PostgreSQL's manual failed, since reading connections begin read only. A setting was blamed on a pooler,
/// and a refusal on the privilege to connect.
#[tokio::test(flavor = "multi_thread")]
async fn login_triggers_may_write_and_set_and_are_named_if_they_refuse() {
    let url = TestCluster::database().await.url;
    let database = Database::new(&url, false, Duration::from_secs(5)).unwrap();
    let version = database.connect_plain().await.unwrap().server_version_num();
    if version.is_none_or(|version| version < 170_000) {
        return;
    }
    execute(&url, SQL).await;
    TestService::start_on(&url, CONFIG, &[]).await.stop().await;
    let role = TestRole::create(&url).await;
    let grants = format!(
        "grant select on item to {name}; grant insert on login to {name};
         grant usage on schema larder to {name}; grant execute on function pg_control_system() to {name};
         grant execute on all functions in schema larder to {name};
         grant select, insert, update, delete on all tables in schema larder to {name}",
        name = role.name
    );
    execute(&url, &grants).await;
    for statement in [
        "insert into login values (session_user)",
        "perform set_config('statement_timeout', '30s', false), set_config('search_path', 'public', false)",
        "perform set_config('statement_timeout', '1ms', false)",
    ] {
        execute(&url, &trigger(&role.name, statement)).await;
        let larder = TestService::start_on(&role.url, CONFIG, &[("install", "manual")]).await;
        assert_eq!(
            larder.get("/items/1").await.body,
            r#"{"id":1,"name":"first"}"#
        );
        larder.stop().await;
    }
    // The last one is told, once for a process.
    let directory = configured(&format!("install = 'manual'\n{CONFIG}"));
    let larder = LarderProcess::start(directory.path(), Some(&role.url), &[]).await;
    larder.ready().await;
    let log = std::fs::read_to_string(directory.path().join("larder.log")).unwrap();
    let named = log.lines().find(|line| line.contains("at_login"));
    assert!(
        named.is_some_and(|line| line.contains("sets statement_timeout")),
        "{log}"
    );
    for (statement, message) in [
        (
            "raise exception 'no logins on Saturdays'",
            "no logins on Saturdays",
        ),
        ("delete from item", "permission denied for table item"),
    ] {
        execute(&url, &trigger(&role.name, statement)).await;
        let database = Database::new(&role.url, false, Duration::from_secs(5)).unwrap();
        let Err(error) = database.connect().await else {
            panic!("connected in spite of: {statement}");
        };
        let told = error.to_string();
        for part in [message, "on_login()", "login event trigger"] {
            assert!(told.contains(part), "{told}");
        }
        assert!(!told.contains("grant connect"), "{told}");
    }
}
