//! The statements that took the most time, from pg_stat_statements.

use larder::source::plans::{PlanOptions, PlanReport};

use super::report_with;
use crate::harness::cluster::{TestCluster, TestRole, has_statement_statistics, start_postgres};
use crate::harness::reachable_directory;
use crate::harness::service::execute;

async fn check(url: &str) -> PlanReport {
    let options = PlanOptions {
        statements: 100,
        ..PlanOptions::default()
    };
    report_with(url, "", &options).await
}

/// The tables for which an index is asked.
fn tables(report: &PlanReport) -> Vec<&str> {
    assert_eq!(report.unchecked, []);
    let findings = report.findings.iter();
    findings.map(|finding| finding.object.as_str()).collect()
}

/// PostgreSQL runs stable functions as it plans. What a role runs must not be run with the rights of a superuser.
#[tokio::test]
async fn statements_of_roles_are_checked_by_roles() {
    let url = TestCluster::database().await.url;
    let missing = check(&url).await;
    let reason = &missing.unchecked[0].reason;
    assert!(
        reason.contains("create extension pg_stat_statements;"),
        "{reason}"
    );
    if !has_statement_statistics().await {
        return;
    }
    let base = reachable_directory();
    let library = ("shared_preload_libraries", "pg_stat_statements");
    let postgres = start_postgres(base.path(), &[library]).await;
    let url = postgres.url();
    execute(
        url,
        "create extension pg_stat_statements; create table larder_item (a int); create table other (a int);
         create table unseen (a int); grant select on larder_item, other, unseen to public;
         create function one() returns int language sql stable as 'select 1'",
    )
    .await;
    let [application, checker] = [TestRole::create(url).await, TestRole::create(url).await];
    let statement = "/* web */ -- request\n select * from larder_item where a = one()";
    execute(&application.url, statement).await;
    execute(url, "(select * from other where a = 5)").await;
    execute(
        &application.url,
        "select * from pg_class join unseen on relname = 'x' and a = 1",
    )
    .await;

    // A superuser checks those of superusers.
    let report = check(url).await;
    assert_eq!(tables(&report), ["public.other"]);
    assert!(
        report.skipped[0].name.contains("no superusers"),
        "{report:?}"
    );
    // A role without privileges sees its own.
    let report = check(&checker.url).await;
    assert_eq!(tables(&report), [""; 0]);
    let grant = format!("grant pg_read_all_stats to {};", checker.name);
    assert_eq!(report.skipped[0].grant.replace('"', ""), grant);
    execute(url, &grant).await;
    for _ in 0..2 {
        let report = check(&checker.url).await;
        assert_eq!(tables(&report), ["public.larder_item", "public.other"]);
        assert_eq!(report.skipped, []);
    }
    postgres.stop().await;
}
