//! Statements that touch more keys than are logged one by one: documents outside the logged ranges stay in the tiers.

use crate::freshness::testbed::is_hit;
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};

/// `depts` in memory, the same as `archive` on disk.
const CONFIG: &str = r#"
[feed]
keys_per_statement = 3
max_staleness = "30s"
[[resource]]
name = "depts"
table = "dept"
tiers = ["memory"]
  [[resource.children]]
  name = "emps"
  table = "emp"
  foreign_key = "deptno"
[[resource]]
name = "archive"
table = "dept"
tiers = ["disk"]
  [[resource.children]]
  name = "emps"
  table = "emp"
  foreign_key = "deptno"
"#;

/// Statement triggers on plain tables, row triggers on partitioned ones.
const FORMS: [&str; 2] = [
    "create table dept (deptno int primary key, name text);
     create table emp (empno int primary key, deptno int);",
    "create table dept (deptno int primary key, name text) partition by range (deptno);
     create table dept_all partition of dept for values from (minvalue) to (maxvalue);
     create table emp (empno int primary key, deptno int) partition by range (empno);
     create table emp_all partition of emp for values from (minvalue) to (maxvalue);",
];

/// Departments 10001 and 20001, each with an employee.
const ROWS: &str = "
    create index on emp (deptno);
    insert into dept values (10001, 'old'), (20001, 'old');
    insert into emp values (1, 10001), (2, 20001);";

async fn larder(form: &str) -> TestService {
    let url = TestCluster::database().await.url;
    execute(&url, &format!("{form}{ROWS}")).await;
    TestService::start_on(&url, CONFIG, &[]).await
}

async fn warm(larder: &TestService, paths: &[&str]) {
    for path in paths {
        eventually("a hit", async || {
            is_hit(&larder.get(path).await).then_some(())
        })
        .await;
    }
}

/// Runs `sql`; waits until each of `changed` contains `new`, and sees that `kept` are still hits then.
async fn run(larder: &TestService, sql: &str, changed: &[&str], new: &str, kept: &[&str]) {
    warm(larder, kept).await;
    warm(larder, changed).await;
    larder.execute(sql).await;
    for path in changed {
        eventually(&format!("{new} in {path} after {sql}"), async || {
            larder.get(path).await.body.contains(new).then_some(())
        })
        .await;
    }
    for path in kept {
        // Until all that had to go is off the disk, nothing there answers; a lookup would fill it again.
        eventually(&format!("{path} kept after {sql}"), async || {
            let kept = larder.admin(&format!("/explain{path}")).await.json();
            let found = |tier: &str| kept[tier]["found"] == true;
            (found("memory") || found("disk")).then_some(())
        })
        .await;
        let answer = larder.get(path).await;
        assert!(is_hit(&answer), "{path} after {sql}");
        assert!(!answer.body.contains(new), "{path} after {sql}");
    }
}

/// A document that was there before can't be a new root's. So it stays however many the new ones are: their ranges are
/// logged, or, where even these are too many, that any may be new.
#[tokio::test(flavor = "multi_thread")]
async fn new_roots_end_absences_only() {
    for form in FORMS {
        let larder = larder(form).await;
        for (first, step) in [(10_002, 1), (100_001, 10_000)] {
            let absent = first + 30 * step;
            let absent = [format!("/depts/{absent}"), format!("/archive/{absent}")];
            let sql = format!(
                "insert into dept select {first} + n * {step}, 'new' from generate_series(0, 50) n"
            );
            let there = [
                "/depts/10001",
                "/archive/10001",
                "/depts/20001",
                "/archive/20001",
            ];
            run(
                &larder,
                &sql,
                &absent.each_ref().map(String::as_str),
                "new",
                &there,
            )
            .await;
        }
        // Two departments of the beginning, two of the new ones.
        eventually("overtaken absences don't count", async || {
            let status = larder.admin("/status").await.json();
            let memory = &status["resources"][0]["memory_entries"];
            (*memory == 4 && status["disk"]["entries"] == 4).then_some(())
        })
        .await;
    }
}

/// All documents in the ranges of the changed ones are read again.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_many_keys_end_their_ranges_only() {
    for form in FORMS {
        let larder = larder(form).await;
        let neighbours = "insert into dept select 10000 + n, 'old' from generate_series(2, 50) n";
        larder.execute(neighbours).await;
        let changed = ["/depts/10001", "/archive/10001"];
        let kept = ["/depts/20001", "/archive/20001"];
        for (sql, new) in [
            (
                "update dept set name = 'newer' where deptno < 20000",
                "newer",
            ),
            (
                "insert into emp select 100 + n, 10000 + n from generate_series(1, 50) n",
                "\"empno\":101",
            ),
            (
                "update emp set empno = -empno where deptno < 20000",
                "\"empno\":-101",
            ),
            ("delete from emp where deptno < 20000", "\"emps\":[]"),
            ("delete from dept where deptno < 20000", "404"),
        ] {
            run(&larder, sql, &changed, new, &kept).await;
        }
    }
}
