//! A limit on temporary files.

use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};

/// As decision 1 says: a table with an ancestor has no transition tables, which count against the limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_with_an_ancestor_needs_no_temporary_files() {
    let url = TestCluster::database().await.url;
    execute(
        &url,
        "create table item (id int primary key, name text); \
         insert into item select n, repeat('x', 100) from generate_series(1, 10000) n",
    )
    .await;
    let config = "[[resource]]\nname = 'items'\ntable = 'item'\n";
    let larder = TestService::start_on(&url, config, &[]).await;
    let mut connection = larder.connect().await;
    let limits = "set work_mem = '64kB'; set temp_file_limit = '64kB'";
    sqlx::raw_sql(limits)
        .execute(&mut connection)
        .await
        .unwrap();
    let update = "update item set name = 'new'";
    let refused = sqlx::raw_sql(update).execute(&mut connection).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("temp_file_limit"), "{refused}");
    larder
        .execute("create table ancestor (); alter table item inherit ancestor")
        .await;
    eventually("the statement passes", async || {
        let updated = sqlx::raw_sql(update).execute(&mut connection).await;
        updated.is_ok().then_some(())
    })
    .await;
    eventually("the change", async || {
        let answer = larder.get("/items/1").await;
        answer.body.contains("new").then_some(())
    })
    .await;
}
