//! Migrations after which a resource no longer fits the database.

use axum::http::StatusCode;
use futures_util::future::join_all;

use crate::command::{configured, value};
use crate::freshness::testbed::is_hit;
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::larder_process::{run, stderr};
use crate::harness::service::{TestService, execute};
use crate::harness::table_locks::{lock_table, unlock};

const SQL: &str = "create table a (id int primary key, name text); create table b (id int primary key, name text); \
    create table part (id int primary key, a int constraint parent references a); create index on part (a); \
    insert into a values (1, 'first'); insert into b values (1, 'first'); insert into part values (1, 1)";
const CONFIG: &str = "[[resource]]\nname = 'a'\ntable = 'a'\n[[resource.children]]\nname = 'parts'\ntable = 'part'\n\
    [[resource]]\nname = 'b'\ntable = 'b'\n";

/// `a` is named as what does not fit, and `b` is served.
async fn is_out_alone(larder: &TestService) {
    eventually("a is not served", async || {
        let answer = larder.get("/a/1").await;
        (answer.status == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
    eventually("b is cached", async || {
        is_hit(&larder.get("/b/1").await).then_some(())
    })
    .await;
    let ready = larder.admin("/readyz").await;
    assert_eq!(ready.status, StatusCode::OK, "{}", ready.body);
    let status = larder.admin("/status").await.body;
    for text in [ready.body, status] {
        assert!(text.contains("foreign key"), "{text}");
    }
}

/// A running larder and one that starts report the same, and both serve the other resources.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_resource_that_no_longer_fits_is_unavailable() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let larder = TestService::start_on(&url, CONFIG, &[]).await;
    eventually("it is known to fit", async || {
        let served: i64 = value(&url, "select count(*) from larder.served").await;
        (served == 2).then_some(())
    })
    .await;
    execute(&url, "alter table part drop constraint parent").await;
    is_out_alone(&larder).await;
    let state = larder.stop().await;

    let larder = TestService::start_in(state, &url, CONFIG, &[]).await;
    is_out_alone(&larder).await;
    // Also to where the definition has moved in the file.
    let moved = TestService::start_on(&url, &format!("\n\n{CONFIG}"), &[]).await;
    is_out_alone(&moved).await;
    // Also if schema larder has to be created again.
    let damage = "alter table larder.node drop constraint node_pkey";
    execute(&url, damage).await;
    drop(moved);
    let moved = TestService::start_on(&url, CONFIG, &[]).await;
    is_out_alone(&moved).await;

    let directory = configured(&CONFIG.replace("'parts'", "'others'\nfields = { id = 'id' }"));
    let refused = run(directory.path(), Some(&url), &["install"]).await;
    assert_eq!(refused.status.code(), Some(78), "{}", stderr(&refused));

    let mend = "alter table part add constraint parent foreign key (a) references a";
    execute(&url, mend).await;
    for larder in [&larder, &moved] {
        eventually("a is cached", async || {
            is_hit(&larder.get("/a/1").await).then_some(())
        })
        .await;
    }
}

/// Each check of what did not fit took a new connection and checked everything, and with hundreds of resources the feed
/// fell behind.
#[tokio::test(flavor = "multi_thread")]
async fn the_feed_goes_on_while_a_resource_does_not_fit() {
    const FEED: &str = "select min(pid) from pg_stat_activity where datname = current_database() and application_name like 'larder % %'";
    const CHECKS: &str = "select last_value from checks";
    let url = TestCluster::database().await.url;
    // Each check of a condition creates a temporary table.
    let counting = "create sequence checks; create function note() returns event_trigger language plpgsql \
        as 'begin perform pg_catalog.nextval(''public.checks''); end'; \
        create event trigger note on ddl_command_start when tag in ('CREATE TABLE') execute function note()";
    execute(&url, &format!("{SQL}; {counting}")).await;
    let config = CONFIG.replacen("table = 'a'\n", "table = 'a'\nwhere = 'id > 0'\n", 1);
    let larder = TestService::start_on(&url, &config, &[]).await;
    execute(&url, "alter table part drop constraint parent").await;
    is_out_alone(&larder).await;
    let feed = eventually("the feed has a heartbeat", async || {
        value::<Option<i32>>(&url, FEED).await
    })
    .await;
    let before: i64 = value(&url, CHECKS).await;
    eventually("it was checked again, and again", async || {
        let checks: i64 = value(&url, CHECKS).await;
        (checks > before + 1).then_some(())
    })
    .await;
    assert_eq!(value::<Option<i32>>(&url, FEED).await, Some(feed));
    execute(
        &url,
        "alter table part add constraint parent foreign key (a) references a",
    )
    .await;
    eventually("a is cached", async || {
        is_hit(&larder.get("/a/1").await).then_some(())
    })
    .await;
}

/// While one table was altered again and again, changes of the others were read only after the last time.
#[tokio::test(flavor = "multi_thread")]
async fn changes_beside_an_altered_table_are_read_before_it_is_checked() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let config = format!("[feed]\nmax_staleness = '1h'\n{CONFIG}");
    let larder = TestService::start_on(&url, &config, &[]).await;
    let is_cached = async |name: &str| {
        let answer = larder.get("/b/1").await;
        (is_hit(&answer) && answer.body.contains(name)).then_some(())
    };
    eventually("b is cached", async || is_cached("first").await).await;
    // The check of everything reads it, and no pass.
    let holder = lock_table(&url, "larder.node").await;
    let both = "begin; update b set name = 'second'; alter table a add more int; commit";
    execute(&url, both).await;
    eventually("b is read again", async || is_cached("second").await).await;
    unlock(holder).await;
    eventually("a has its column", async || {
        let answer = larder.get("/a/1").await;
        (is_hit(&answer) && answer.body.contains("more")).then_some(())
    })
    .await;
}

/// Resources may have one definition, under names and with tiers of their own.
#[tokio::test(flavor = "multi_thread")]
async fn one_definition_of_two_resources_is_remembered() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let config = "[[resource]]\nname = 'b'\ntable = 'b'\n[[resource]]\nname = 'c'\ntable = 'b'\ntiers = []\n";
    let _larder = TestService::start_on(&url, config, &[]).await;
    eventually("it is known to fit", async || {
        let served: i64 = value(&url, "select count(*) from larder.served").await;
        (served == 1).then_some(())
    })
    .await;
}

/// Until larder has checked what was altered, answers say so, and are no internal errors.
#[tokio::test(flavor = "multi_thread")]
async fn unnoticed_alterations_are_no_internal_error() {
    for alteration in [
        "alter b alter name type bytea using name::bytea",
        "alter b alter name type names using (name, name)::names",
        "alter b alter id type uuid using gen_random_uuid()",
        "alter b alter id type text",
        "alter b alter id type numeric(9, 2)",
        "alter b rename to c; create view b as select * from c",
    ] {
        let url = TestCluster::database().await.url;
        let more =
            "create type names as (first text, last text); insert into b values (2, 'second')";
        execute(&url, &format!("{SQL}; {more}")).await;
        let brief = [("request_timeout", "1s")];
        let larder = TestService::start_on(&url, CONFIG, &brief).await;
        eventually("b is cached", async || {
            is_hit(&larder.get("/b/1").await).then_some(())
        })
        .await;
        let holder = lock_table(&url, "larder.change").await;
        execute(&url, &alteration.replace("alter b", "alter table b")).await;
        let paths = ["/b/2", "/b?keys=2,3", "/b"];
        for answer in join_all(paths.map(|path| larder.get(path))).await {
            let told =
                answer.status == StatusCode::SERVICE_UNAVAILABLE && answer.body.contains("altered");
            assert!(told, "{alteration}: {}", answer.body);
        }
        unlock(holder).await;
    }
}

/// A read that PostgreSQL refuses because of an alteration is repeated under the new definition.
#[tokio::test(flavor = "multi_thread")]
async fn reads_wait_for_the_definition_after_an_alteration() {
    for alteration in [
        "alter b rename name to title",
        "alter b drop name",
        "alter b alter id type text",
    ] {
        let url = TestCluster::database().await.url;
        let more = "insert into b values (2, 'second'), (3, 'third')";
        execute(&url, &format!("{SQL}; {more}")).await;
        let larder = TestService::start_on(&url, CONFIG, &[]).await;
        eventually("b is cached", async || {
            is_hit(&larder.get("/b/1").await).then_some(())
        })
        .await;
        let holder = lock_table(&url, "larder.change").await;
        execute(&url, &alteration.replace("alter b", "alter table b")).await;
        // The feed does not see the alteration before the lock is released, after the reads were sent.
        let reads = join_all(["/b/2", "/b?keys=2,3", "/b"].map(|path| larder.get(path)));
        let (answers, ()) = tokio::join!(reads, unlock(holder));
        for answer in answers {
            assert_eq!(
                answer.status,
                StatusCode::OK,
                "{alteration}: {}",
                answer.body
            );
        }
    }
}
