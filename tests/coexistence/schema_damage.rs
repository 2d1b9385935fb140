//! Schema larder damaged by hand or by an incomplete restore.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use crate::command::{configured, value};
use crate::freshness::testbed::is_hit;
use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::larder_process::{run, stderr};
use crate::harness::service::{TestService, execute};

const SQL: &str =
    "create table a (id int primary key, name text); insert into a values (1, 'first')";
const CONFIG: &str = "[[resource]]\nname = 'a'\ntable = 'a'\n";

/// How the tables of schema larder are stored, and what of columns, indexes and triggers they have.
const SHAPE: &str = "select string_agg(concat_ws(' ', c.relname, c.relpersistence, \
      (select count(*) from pg_attribute a where a.attrelid = c.oid and a.atthasdef), \
      (select count(*) from pg_index i where i.indrelid = c.oid), \
      (select string_agg(concat(t.tgname, t.tgenabled), ' ' order by t.tgname) from pg_trigger t where t.tgrelid = c.oid)), \
    '; ' order by c.relname) from pg_class c where c.relnamespace = 'larder'::regnamespace and c.relkind = 'r'";

/// A restore may be what damaged it, and is given half a minute.
const LATE: Duration = Duration::from_secs(90);

/// Waits until a tier answers with `text` in the document.
pub(super) async fn is_cached(larder: &TestService, text: &str) {
    let end = Instant::now() + LATE;
    loop {
        let answer = larder.get("/a/1").await;
        if is_hit(&answer) && answer.body.contains(text) {
            return;
        }
        assert!(Instant::now() < end, "{text}: {}", answer.body);
        sleep(Duration::from_millis(50)).await;
    }
}

/// Part of `coexistence::what_was_replaced_is_trusted_late`.
pub(crate) async fn damage_is_mended() {
    let damages = [
        "alter table larder.epoch drop constraint epoch_one_check; \
         insert into larder.epoch values (false, gen_random_uuid(), '{}')",
        "alter table larder.horizon drop constraint horizon_one_check; \
         insert into larder.horizon select false, snapshot from larder.horizon",
        "alter table larder.node drop constraint node_pkey; insert into larder.node table larder.node",
        "alter table larder.change alter xid drop default",
        "alter table larder.change set logged",
        "drop index larder.change_xid",
        "drop trigger larder_guard_update on larder.change",
        "alter table larder.change disable trigger larder_guard_delete",
        "drop function larder.token()",
    ];
    join_all(damages.map(async |damage| {
        let url = TestCluster::database().await.url;
        execute(&url, SQL).await;
        let larder = TestService::start_on(&url, CONFIG, &[]).await;
        is_cached(&larder, "first").await;
        let shape: String = value(&url, SHAPE).await;
        execute(&url, damage).await;
        let sound = "select count(*) from larder.epoch";
        let end = Instant::now() + LATE;
        // What is written while the log refuses rows fails, as the damage has it.
        let write = "update a set name = 'second'";
        loop {
            let mut connection = larder.connect().await;
            if sqlx::query(write).execute(&mut connection).await.is_ok() {
                break;
            }
            assert!(Instant::now() < end, "{damage}");
            sleep(Duration::from_millis(100)).await;
        }
        is_cached(&larder, "second").await;
        execute(&url, "update a set name = 'third'").await;
        is_cached(&larder, "third").await;
        assert_eq!(value::<i64>(&url, sound).await, 1, "{damage}");
        assert_eq!(value::<String>(&url, SHAPE).await, shape, "{damage}");
    }))
    .await;
}

/// The functions of schema larder run with their owner's rights, also after another role has created the tables anew.
#[tokio::test(flavor = "multi_thread")]
async fn reinstalling_makes_no_write_fail() {
    for damage in [
        "drop table larder.change cascade",
        "drop table larder.horizon",
    ] {
        let url = TestCluster::database().await.url;
        execute(&url, SQL).await;
        let role = TestRole::create(&url).await;
        let (_, database) = url.rsplit_once('/').unwrap();
        let own = format!(
            "alter table a owner to {0}; grant create on database {database} to {0}; \
             grant execute on function pg_control_system() to {0}",
            role.name
        );
        execute(&url, &own).await;
        let state = TestService::start_on(&role.url, CONFIG, &[])
            .await
            .stop()
            .await;
        execute(&url, damage).await;
        let directory = configured(CONFIG);
        let installed = run(directory.path(), Some(&url), &["install"]).await;
        assert_eq!(installed.status.code(), Some(0), "{}", stderr(&installed));
        for name in ["second", "third"] {
            execute(
                &url,
                &format!("update a set name = '{name}'; select larder.token()"),
            )
            .await;
            execute(
                &role.url,
                &format!("update a set name = '{name}'; select larder.token()"),
            )
            .await;
        }
        let larder = TestService::start_in(state, &role.url, CONFIG, &[]).await;
        is_cached(&larder, "third").await;
        execute(&url, "update a set name = 'fourth'").await;
        is_cached(&larder, "fourth").await;
    }
}
