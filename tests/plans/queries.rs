//! Users' statements: what a file asks for, what it does not, and what is wrong with it.

use larder::check::queries::split;
use larder::source::plans::{Hypothetical, PlanOptions, PlanReport};
use sqlx::{Connection, PgConnection};

use super::{apply_all, described, report_with, version};
use crate::command::configured;
use crate::database_encodings::database_with;
use crate::harness::cluster::TestCluster;
use crate::harness::larder_process::{run, stderr, stdout};
use crate::harness::service::execute;

const TABLES: &str = "\
create table visit (id int primary key, day date, kind int, code int, name text collate \"und-x-icu\", \
  plain text collate \"C\", tags int[], short varchar(10), flag bool, doc jsonb, label name);
create table page (visit_id int, no int, title text, primary key (no, visit_id));
create table event (at int, kind int) partition by range (at);
create table event_1 partition of event for values from (0) to (10);
create table event_2 partition of event for values from (10) to (20);
create index visit_day on visit (day, kind); create index on visit using hash (code); \
create index on visit using gin (tags); create index on visit (lower(plain));";

/// PostgreSQL uses none of these indexes in a table without rows.
const JOINED: &str = "\
create table address (id int primary key, owner int, hidden int, name text collate \"und-x-icu\");
create index on address (owner, hidden); create index on address (lower(name), hidden); create unique index on address (name text_pattern_ops);
create table member (team int, address_id int references address, primary key (team, address_id)); analyze;";

async fn check(url: &str, sql: &str) -> PlanReport {
    let options = PlanOptions {
        queries: split("q.sql", sql.as_bytes()).unwrap(),
        hypothetical: Hypothetical::Off,
        ..PlanOptions::default()
    };
    report_with(url, "", &options).await
}

const FAULTS: [(&str, &str); 13] = [
    (
        "select * from visit where kind = $1",
        "missing-index public.visit: create index concurrently \"visit_kind_idx\" on \"public\".\"visit\" (\"kind\");",
    ),
    (
        "select * from visit where short = $1 and kind > 5",
        "missing-index public.visit: create index concurrently \"visit_short_kind_idx\" on \"public\".\"visit\" (\"short\", \"kind\");",
    ),
    (
        "select * from visit where day >= $1 and kind = $2",
        "column-order public.visit: create index concurrently \"visit_kind_day_idx\" on \"public\".\"visit\" (\"kind\", \"day\");",
    ),
    (
        "select * from visit where code between 3 and 5",
        "hash-range public.visit: create index concurrently \"visit_code_idx1\" on \"public\".\"visit\" (\"code\"); \
         drop index concurrently \"public\".\"visit_code_idx\";",
    ),
    (
        "select * from visit order by code desc limit 3",
        "hash-range public.visit: create index concurrently \"visit_code_idx1\" on \"public\".\"visit\" (\"code\"); \
         drop index concurrently \"public\".\"visit_code_idx\";",
    ),
    (
        "select * from visit where name like 'ab%'",
        "like-prefix public.visit: create index concurrently \"visit_name_idx\" on \"public\".\"visit\" (\"name\" text_pattern_ops);",
    ),
    (
        "select * from visit where plain like 'ab%'",
        "missing-index public.visit: create index concurrently \"visit_plain_idx\" on \"public\".\"visit\" (\"plain\");",
    ),
    (
        "select * from visit join page on visit_id = visit.id where visit.id = $1",
        "missing-index public.page: create index concurrently \"page_visit_id_idx\" on \"public\".\"page\" (\"visit_id\");",
    ),
    (
        "update visit set kind = 1 where name = 'x'",
        "missing-index public.visit: create index concurrently \"visit_name_idx\" on \"public\".\"visit\" (\"name\");",
    ),
    (
        "delete from page where title = $1",
        "missing-index public.page: create index concurrently \"page_title_idx\" on \"public\".\"page\" (\"title\");",
    ),
    (
        "select * from visit where flag = $1 and label = $2 and short = $3 and name = $4 and plain = $5 and kind > $6",
        "missing-index public.visit: create index concurrently \"visit_label_short_name_idx\" on \"public\".\"visit\" \
         (\"label\", \"short\", \"name\");",
    ),
    (
        "select * from event_1 where kind = $1",
        "missing-index public.event_1: create index concurrently \"event_1_kind_idx\" on \"public\".\"event_1\" (\"kind\");",
    ),
    (
        "select * from event where kind = $1",
        "missing-index public.event: create index \"event_kind_idx\" on only \"public\".\"event\" (\"kind\"); \
         create index concurrently \"event_1_kind_idx\" on \"public\".\"event_1\" (\"kind\"); \
         alter index \"public\".\"event_kind_idx\" attach partition \"public\".\"event_1_kind_idx\"; \
         create index concurrently \"event_2_kind_idx\" on \"public\".\"event_2\" (\"kind\"); \
         alter index \"public\".\"event_kind_idx\" attach partition \"public\".\"event_2_kind_idx\";",
    ),
];

const SILENT: &str = "\
select * from visit where id = $1;
select * from visit where day > $1;
select * from visit where day = $1 and kind > $2;
select * from visit where code = $1;
select * from visit where tags @> array[1];
select * from visit where lower(plain) = $1;
select * from visit where lower(name) = $1;
select * from visit where kind = $1 or code = $2;
select * from visit where kind is null;
select * from visit where kind <> 3;
select * from visit where name like '%ab';
select * from visit where name like $1;
select * from visit where name like 'ab%' || $1;
select * from visit where label like 'ab%';
select * from visit where flag = $1;
select * from visit where doc = $1;
select * from visit where ctid = '(0,1)' and kind = 3;
select * from visit tablesample system (1) where kind = $1;
select * from visit where kind = code;
select count(*) from visit;
select * from visit order by id limit 10;
select * from visit join page on visit_id = visit.id;
select * from page where no = $1;
insert into visit (id) values ($1);
select * from pg_class where relname = 'x';
select 1;";

#[tokio::test]
async fn statements_of_a_file_ask_for_indexes() {
    let url = TestCluster::database().await.url;
    for (sql, expected) in FAULTS {
        execute(&url, "drop table if exists visit, page, event").await;
        execute(&url, TABLES).await;
        let report = check(&url, &format!("\n{sql};")).await;
        let [finding] = report.findings.as_slice() else {
            panic!("{sql}: {report:?}");
        };
        assert_eq!(described(finding), expected, "{sql}");
        assert_eq!(finding.place.as_ref().unwrap().line, 2);
        assert!(finding.is_unproven);
        apply_all(&url, &report.findings).await;
        let after = check(&url, sql).await;
        assert!(after.findings.is_empty(), "{sql}: {after:?}");
    }
}

#[tokio::test]
async fn statements_that_ask_for_nothing_are_silent() {
    let url = TestCluster::database().await.url;
    execute(&url, TABLES).await;
    let report = check(&url, SILENT).await;
    assert!(report.findings.is_empty(), "{report:?}");
    assert!(
        report.unchecked.is_empty() && report.rejected.is_empty(),
        "{report:?}"
    );
}

/// `lc_collate` of a database says nothing if ICU orders its texts, and PostgreSQL's own provider (17) orders them by bytes.
#[tokio::test]
async fn the_provider_of_a_collation_decides_which_index_finds_prefixes() {
    let url = TestCluster::database().await.url;
    let version = version(&url).await;
    let icu = "locale_provider icu icu_locale 'en-US' locale 'C'";
    let builtin = "locale_provider builtin builtin_locale 'C.UTF-8' locale 'C.UTF-8'";
    for (since, options, collation, class) in [
        (150_000, icu, "", " text_pattern_ops"),
        (150_000, icu, " collate \"C\"", ""),
        (170_000, builtin, "", ""),
        (170_000, "", " collate pg_c_utf8", ""),
    ] {
        if version < since {
            continue;
        }
        let url = database_with(options).await;
        let table = format!("create table t (id int primary key, name text{collation})");
        execute(&url, &table).await;
        let rows = "insert into t select g, 'n' || g from generate_series(1, 20000) g";
        execute(&url, rows).await;
        execute(&url, "analyze").await;
        let sql = "select * from t where name like 'n1%'";
        let report = check(&url, sql).await;
        let [finding] = report.findings.as_slice() else {
            panic!("{options}: {report:?}");
        };
        let told = described(finding);
        let ending = format!("(\"name\"{class});");
        assert!(told.ends_with(&ending), "{options}{collation}: {told}");
        apply_all(&url, &report.findings).await;
        assert_eq!(check(&url, sql).await.findings, [], "{options}");
    }
}

/// An index of both columns finds few rows only if the range comes last.
#[tokio::test]
async fn the_order_of_columns_is_that_of_each_statement() {
    let url = TestCluster::database().await.url;
    execute(&url, "create table o (x int, y int, z int)").await;
    let sql = "select from o where x = $1 and y > $2; select from o where y = $1 and x > $2;
        select from o where z = $1 and x = $2; select from o where x = $1 and z = $2 and y > $3";
    let report = check(&url, sql).await;
    let found: Vec<String> = report.findings.iter().map(described).collect();
    let expected = ["x_y", "x_z_y", "y_x"].map(|columns| {
        let quoted = format!("\"{}\"", columns.replace('_', "\", \""));
        format!(
            "missing-index public.o: create index concurrently \"o_{columns}_idx\" on \"public\".\"o\" ({quoted});"
        )
    });
    assert_eq!(found, expected);
    apply_all(&url, &report.findings).await;
    assert_eq!(check(&url, sql).await.findings, []);
}

/// A B-tree may compare values as those of another type, which PostgreSQL writes as a cast.
#[tokio::test]
async fn columns_of_all_ordered_types_get_an_index() {
    let url = TestCluster::database().await.url;
    execute(
        &url,
        "create type mood as enum ('good'); create domain number as int; create domain age as number; create domain feeling as mood;
         create domain word as varchar(9); create table t (mood mood, ints int[], moods mood[], net cidr, age age, feeling feeling,
           word word, relation regclass, during int4range, point point, exact numeric(9, 2), fixed char(3))",
    )
    .await;
    for (condition, column) in [
        ("mood = $1", "mood"),
        ("ints = $1", "ints"),
        ("net = $1", "net"),
        ("age > 3", "age"),
        ("age = 3::bigint", "age"),
        ("feeling::mood = $1", "feeling"),
        ("word = $1", "word"),
        ("relation = 't'::regclass", "relation"),
        ("during = $1", "during"),
        ("fixed = $1", "fixed"),
        ("mood::text = $1", ""),
        ("ints @> $1", ""),
        ("ints[1] = $1", ""),
        ("age::bigint = $1", ""),
        ("exact::numeric(5, 1) = $1", ""),
        ("fixed::text = $1", ""),
        ("point ~= $1", ""),
    ] {
        let sql = format!("select from t where {condition}");
        let report = check(&url, &sql).await;
        let found: Vec<String> = report.findings.iter().map(described).collect();
        let expected = format!(
            "missing-index public.t: create index concurrently \"t_{column}_idx\" on \"public\".\"t\" (\"{column}\");"
        );
        assert_eq!(
            found.concat(),
            if column.is_empty() { "" } else { &expected },
            "{condition}"
        );
        apply_all(&url, &report.findings).await;
        let after = check(&url, &sql).await;
        assert!(
            after.findings.is_empty() && after.rejected.is_empty(),
            "{condition}: {after:?}"
        );
        if !column.is_empty() {
            execute(&url, &format!("drop index t_{column}_idx")).await;
        }
    }
}

/// A statement that reads only an inheriting table says nothing of its parent.
#[tokio::test]
async fn a_part_that_is_read_alone_is_named() {
    let url = TestCluster::database().await.url;
    execute(
        &url,
        "create table par (id int, kind int); create table kid () inherits (par)",
    )
    .await;
    for (from, object) in [
        ("only kid", "public.kid"),
        ("kid", "public.kid"),
        ("par", "public.par"),
    ] {
        let report = check(&url, &format!("select from {from} where kind = $1")).await;
        let objects: Vec<&String> = report.findings.iter().map(|found| &found.object).collect();
        assert_eq!(objects, [object], "{from}");
    }
}

/// Foreign tables have no indexes; beside one the other partitions get theirs.
#[tokio::test]
async fn no_index_is_advised_on_a_foreign_table() {
    let url = TestCluster::database().await.url;
    execute(
        &url,
        "create extension file_fdw; create server files foreign data wrapper file_fdw;
         create foreign table far (id int, kind int) server files options (filename '/dev/null');
         create table near (id int, kind int) partition by list (id);
         create table near_1 partition of near for values in (1);
         create foreign table near_2 partition of near for values in (2) server files options (filename '/dev/null')",
    )
    .await;
    let report = check(&url, "select from far where kind = $1").await;
    assert_eq!(report.findings, []);
    let sql = "select from near where kind = $1";
    let report = check(&url, sql).await;
    let found: Vec<String> = report.findings.iter().map(described).collect();
    assert_eq!(
        found,
        [
            "missing-index public.near: create index concurrently \"near_1_kind_idx\" on \"public\".\"near_1\" (\"kind\");"
        ]
    );
    apply_all(&url, &report.findings).await;
    assert_eq!(check(&url, sql).await.findings, []);
}

/// Without rows PostgreSQL may join in another order, or prefer an index that has the rows in order.
#[tokio::test]
async fn indexes_that_are_there_are_not_asked_for() {
    let url = TestCluster::database().await.url;
    execute(&url, JOINED).await;
    for sql in [
        "select * from member join address on id = address_id where team = $1 and hidden = 0",
        "select id from address where name like 'ab%' order by id",
        "select id from address where name = $1 order by id",
        "select id from address where owner is null and hidden = 0",
        "select id from address where lower(name) = $1 and hidden = 0",
    ] {
        let report = check(&url, sql).await;
        assert!(report.findings.is_empty(), "{sql}: {report:?}");
    }
}

/// The search path of the role in the database holds for statements, whatever it contains.
#[tokio::test]
async fn the_search_path_is_that_of_the_role() {
    let url = TestCluster::database().await.url;
    execute(&url, TABLES).await;
    let unknown = Some("relation \"visit\" does not exist");
    for (path, complaint) in [
        ("public", None),
        ("''", unknown),
        ("'public; select 1'", unknown),
        ("\"it's\", \"public\"", None),
    ] {
        let alter = format!(
            "do $do$ begin execute format('alter role current_user in database %I set search_path to %s', \
             current_database(), $path${path}$path$); end $do$"
        );
        execute(&url, &alter).await;
        let report = check(&url, "select * from visit where kind = $1").await;
        let rejected = report
            .rejected
            .first()
            .map(|rejected| rejected.message.as_str());
        assert_eq!(rejected, complaint, "{path}");
        assert_eq!(
            report.findings.len(),
            usize::from(complaint.is_none()),
            "{path}"
        );
    }
}

#[tokio::test]
async fn what_does_not_prepare_is_rejected_with_its_place() {
    let url = TestCluster::database().await.url;
    execute(&url, TABLES).await;
    let sql = "select 1;\n  select x\n from visit;\nselect 'é', y from visit; drop table visit; commit; \nselct 1";
    let report = check(&url, sql).await;
    let rejected: Vec<String> = report.rejected.iter().map(ToString::to_string).collect();
    assert_eq!(
        rejected,
        [
            "q.sql:2:10: column \"x\" does not exist",
            "q.sql:4:13: column \"y\" does not exist",
            "q.sql:4:27: syntax error at or near \"drop\"",
            "q.sql:4:45: syntax error at or near \"commit\"",
            "q.sql:5:1: syntax error at or near \"selct\"",
        ]
    );
    assert!(check(&url, "select * from visit").await.rejected.is_empty());
}

/// PostgreSQL's message repeats the value.
#[tokio::test]
async fn a_long_message_is_cut() {
    let url = TestCluster::database().await.url;
    let statement = format!("select '{}'::int", "x".repeat(100_000));
    let report = check(&url, &statement).await;
    let reason = &report.unchecked[0].reason;
    assert!(reason.contains("xxx") && reason.len() < 2_000, "{reason}");
}

/// With hypopg only advice that halves the cost is given. It is tried where the extension can be installed.
#[tokio::test]
async fn hypothetical_indexes_prove_advice() {
    let url = TestCluster::database().await.url;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let is_there: bool = sqlx::query_scalar(
        "select exists (select from pg_available_extensions where name = 'hypopg')",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    connection.close().await.unwrap();
    let mut options = PlanOptions {
        queries: split(
            "q.sql",
            b"select * from t where a = 7; select * from t where b = 7",
        )
        .unwrap(),
        hypothetical: Hypothetical::On,
        ..PlanOptions::default()
    };
    let table = "create table t (a int, b int); insert into t select n, 7 from generate_series(1, 20000) n; analyze t";
    execute(&url, table).await;
    if !is_there {
        let report = report_with(&url, "", &options).await;
        assert!(
            report.unchecked[0]
                .reason
                .contains("create extension hypopg;")
        );
        assert!(report.findings.iter().all(|finding| finding.is_unproven));
        return;
    }
    execute(
        &url,
        "create schema \"odd One\"; create extension hypopg schema \"odd One\"",
    )
    .await;
    for hypothetical in [Hypothetical::On, Hypothetical::Auto] {
        options.hypothetical = hypothetical;
        let findings = report_with(&url, "", &options).await.findings;
        let [finding] = findings.as_slice() else {
            panic!("{findings:?}");
        };
        assert!(finding.remedies[0].sql.ends_with("(\"a\");") && !finding.is_unproven);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_can_not_be_checked_are_wrong_usage() {
    let url = TestCluster::database().await.url;
    execute(
        &url,
        &format!("create table item (id int primary key); {TABLES}"),
    )
    .await;
    let directory = configured("[[resource]]\nname = 'items'\ntable = 'item'\n");
    let ignored = ["check", "--ignore", "triggers", "--queries", "q.sql"];
    for (content, code, message) in [
        (&b"select id from item"[..], 0, ""),
        (
            b"\nselect * from visit where kind = 1",
            1,
            "missing-index public.visit (q.sql:2)",
        ),
        (b"select x from item", 2, "q.sql:1:8: column"),
        (b"select '\xe4'", 2, "q.sql:1:9: the file is not UTF-8"),
        (b"", 2, "q.sql:1:1: the file has no statement"),
    ] {
        std::fs::write(directory.path().join("q.sql"), content).unwrap();
        let output = run(directory.path(), Some(&url), &ignored).await;
        let told = format!("{}{}", stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(code), "{told}");
        assert!(told.contains(message), "{told}");
    }
}

/// A foreign key between tables that no resource shows.
#[tokio::test(flavor = "multi_thread")]
async fn tables_without_a_resource_are_checked_by_pattern() {
    let url = TestCluster::database().await.url;
    execute(
        &url,
        "create table item (id int primary key); create schema \"o_d%\"; create table \"o_d%\".up (id int primary key); \
         create table \"o_d%\".down (up_id int references \"o_d%\".up)",
    )
    .await;
    let directory = configured("[[resource]]\nname = 'items'\ntable = 'item'\n");
    for (pattern, is_found) in [
        ("o_d%.u*", true),
        ("*", true),
        ("oxd%.up", false),
        ("u*", false),
    ] {
        let args = ["check", "--ignore", "triggers", "--table", pattern];
        let told = stdout(&run(directory.path(), Some(&url), &args).await);
        assert_eq!(told.contains("foreign-key o_d%.down"), is_found, "{told}");
    }
}
