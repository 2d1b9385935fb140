//! Row security with `row_security = "as-larder"`: documents are cached if policies depend on rows alone, else they are
//! read for each request.
//!
//! Documents under each policy here that depends on something else were once served from memory for ever.

use axum::http::StatusCode;

use super::mistakes;
use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};

const UNCACHED: &str = "larder; fwd=bypass; detail=uncached";

/// A database with table `paper`, on which row security is enabled, and a role of larder's that is subject to it.
pub(super) struct RowSecurityDatabase {
    /// Of a superuser.
    pub(super) url: String,
    pub(super) role: TestRole,
}

impl RowSecurityDatabase {
    /// Runs `sql`, in which `{role}` stands for larder's role, after the table was created with two rows.
    pub(super) async fn create(sql: &str) -> Self {
        let url = TestCluster::database().await.url;
        let role = TestRole::create(&url).await;
        let this = Self { url, role };
        let database = this.url.rsplit_once('/').unwrap().1;
        this.execute(&format!(
            "create table paper (id bigint primary key, owner text, until timestamptz);
             insert into paper values (1, 'a'), (2, 'b');
             alter table paper owner to {{role}}, enable row level security, force row level security;
             grant create on database {database} to {{role}};"
        ))
        .await;
        this.execute(sql).await;
        this
    }

    pub(super) async fn execute(&self, sql: &str) {
        execute(&self.url, &sql.replace("{role}", &self.role.name)).await;
    }

    /// Larder over `paper` as its role.
    async fn serve(&self) -> TestService {
        self.serve_at(&self.role.url, &[]).await
    }

    /// The same at another address of the database.
    pub(super) async fn serve_at(&self, url: &str, settings: &[(&str, &str)]) -> TestService {
        let file = "[[resource]]\nname = 'papers'\ntable = 'paper'\nrow_security = 'as-larder'";
        let told = mistakes(&self.role.url, file).await;
        assert!(told.is_empty(), "{told:?}");
        TestService::start_on(url, file, settings).await
    }
}

pub(super) async fn status(larder: &TestService, key: &str) -> StatusCode {
    larder.get(&format!("/papers/{key}")).await.status
}

/// Waits until `key` is answered with `expected`.
pub(super) async fn becomes(larder: &TestService, key: &str, expected: StatusCode) {
    eventually("the other answer", async || {
        (status(larder, key).await == expected).then_some(())
    })
    .await;
}

/// `/papers/1` has been read twice, and the second answer came from PostgreSQL, too; `/status` and `/explain` say why.
async fn assert_uncached(larder: &TestService, why: &str) {
    // What may have changed is checked first, and read from PostgreSQL meanwhile.
    eventually(why, async || {
        (larder.get("/papers/1").await.cache_status() == UNCACHED).then_some(())
    })
    .await;
    let again = larder.get("/papers/1").await;
    assert_eq!(again.cache_status(), UNCACHED, "{why}");
    let told = larder.admin("/status").await.json();
    assert_eq!(told["resources"][0]["uncached"], why);
    assert_eq!(told["resources"][0]["ready"], true);
    assert_eq!(told["resources"][0]["memory_entries"], 0);
    let explained = larder.admin("/explain/papers/1").await.json();
    assert_eq!(explained["uncached"], why);
    assert_eq!(explained["memory"], serde_json::Value::Null);
}

pub(super) async fn assert_cached(larder: &TestService) {
    eventually("an answer of memory", async || {
        let answer = larder.get("/papers/1").await;
        (answer.cache_status() == "larder; hit; detail=memory").then_some(())
    })
    .await;
    let told = larder.admin("/status").await.json();
    assert_eq!(told["resources"][0]["uncached"], serde_json::Value::Null);
}

/// Documents stayed when the text search configuration was altered that the expression of a policy's column reads.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_reads_a_virtual_column_that_reads_the_catalogue() {
    if !TestCluster::has(18, "virtual generated columns") {
        return;
    }
    let database = RowSecurityDatabase::create(
        "alter table paper add words int generated always as (length(to_tsvector('simple', owner))) virtual,
           add long bool generated always as (length(owner) > 0) virtual;
         create policy own on paper to {role} using (words > 0 and long)",
    )
    .await;
    let file = "[[resource]]\nname = 'papers'\ntable = 'paper'\nrow_security = 'as-larder'\nfields = ['id']";
    let larder = TestService::start_on(&database.role.url, file, &[]).await;
    let why = "policy own of public.paper depends on column words of public.paper, whose value may change without its row, \
        since its expression calls to_tsvector()";
    assert_uncached(&larder, why).await;
    database
        .execute("alter policy own on paper using (long)")
        .await;
    assert_cached(&larder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_depends_on_time() {
    let guarded = RowSecurityDatabase::create(
        "update paper set until = now() + interval '2 seconds' where id = 1;
         create policy shown on paper using (until > now())",
    )
    .await;
    let larder = guarded.serve().await;
    guarded
        .execute("update paper set until = clock_timestamp() + interval '2 seconds' where id = 1")
        .await;
    becomes(&larder, "1", StatusCode::OK).await;
    assert_uncached(&larder, "policy shown of public.paper calls now()").await;
    becomes(&larder, "1", StatusCode::NOT_FOUND).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_depends_on_a_session_setting() {
    let guarded = RowSecurityDatabase::create(
        "alter role {role} set app.tenant = 'a';
         create policy own on paper using (owner = current_setting('app.tenant', true))",
    )
    .await;
    let larder = guarded.serve().await;
    assert_eq!(status(&larder, "1").await, StatusCode::OK);
    assert_uncached(
        &larder,
        "policy own of public.paper calls current_setting()",
    )
    .await;
    // Sessions take over what a role has set when they begin.
    guarded
        .execute("alter role {role} set app.tenant = 'b'")
        .await;
    becomes(&larder, "1", StatusCode::NOT_FOUND).await;
    assert_eq!(status(&larder, "2").await, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_a_policy_calls_is_replaced() {
    let guarded = RowSecurityDatabase::create(
        "create function public.may_see(text) returns bool language sql immutable as 'select $1 = ''a''';
         create policy own on paper using (may_see(owner))",
    )
    .await;
    let larder = guarded.serve().await;
    assert_eq!(status(&larder, "1").await, StatusCode::OK);
    assert_uncached(&larder, "policy own of public.paper calls public.may_see()").await;
    guarded
        .execute("create or replace function public.may_see(text) returns bool language sql immutable as 'select $1 = ''b'''")
        .await;
    assert_eq!(status(&larder, "1").await, StatusCode::NOT_FOUND);
    assert_eq!(status(&larder, "2").await, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_reads_another_table() {
    let guarded = RowSecurityDatabase::create(
        "create table member (owner text); insert into member values ('a');
         grant select on member to {role};
         create policy own on paper using (owner in (select m.owner from member m))",
    )
    .await;
    let larder = guarded.serve().await;
    assert_eq!(status(&larder, "1").await, StatusCode::OK);
    assert_uncached(
        &larder,
        "policy own of public.paper reads other rows by a subquery",
    )
    .await;
    guarded.execute("update member set owner = 'b'").await;
    assert_eq!(status(&larder, "1").await, StatusCode::NOT_FOUND);
    assert_eq!(status(&larder, "2").await, StatusCode::OK);
    let listed = larder.get("/papers?keys=1,2").await;
    assert_eq!(listed.cache_status(), UNCACHED);
    assert_eq!(listed.json()["missing"], serde_json::json!([1]));
}

/// Restrictive policies and those of one command or role count as PostgreSQL counts them.
#[tokio::test(flavor = "multi_thread")]
async fn what_rows_decide_is_cached_and_follows_them() {
    let guarded = RowSecurityDatabase::create(
        "create policy own on paper using (owner in ('a', 'b') and until is null and not coalesce(id, 0) < 1
           and case when id is distinct from 7 then lower(owner) <> 'x' else true end);
         create policy no_b on paper as restrictive for select to {role} using (owner::varchar(3) <> 'b');
         create policy changed on paper for update using (owner = current_user);
         create policy made on paper for insert with check (until > now());
         create policy others on paper to pg_monitor using (owner = current_user)",
    )
    .await;
    let larder = guarded.serve().await;
    assert_eq!(status(&larder, "1").await, StatusCode::OK);
    assert_cached(&larder).await;
    assert_eq!(status(&larder, "2").await, StatusCode::NOT_FOUND);
    guarded
        .execute(
            "update paper set owner = 'b' where id = 1; update paper set owner = 'a' where id = 2",
        )
        .await;
    becomes(&larder, "1", StatusCode::NOT_FOUND).await;
    becomes(&larder, "2", StatusCode::OK).await;
    // A policy that comes to depend on something else ends it, and one that no longer does begins it again.
    guarded
        .execute("create policy late on paper as restrictive using (owner <> current_user)")
        .await;
    eventually("an answer that no tier gave", async || {
        (larder.get("/papers/2").await.cache_status() == UNCACHED).then_some(())
    })
    .await;
    guarded
        .execute("drop policy late on paper; update paper set owner = 'a' where id = 1")
        .await;
    becomes(&larder, "1", StatusCode::OK).await;
    assert_cached(&larder).await;
}

/// What is judged is each table that the document's statement names, children and lookups included.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_of_a_child_counts_and_one_of_a_partition_does_not() {
    let guarded = RowSecurityDatabase::create(
        "create policy own on paper using (true);
         create table part (id bigint primary key, paper_id bigint references paper) partition by range (id);
         create table part_1 partition of part default;
         create index on part (paper_id);
         insert into part values (1, 1), (2, 1);
         alter table part owner to {role};
         alter table part_1 owner to {role}, enable row level security, force row level security;
         create policy below on part_1 using (random() < 0);
         create table note (id bigint primary key, paper_id bigint references paper, until timestamptz);
         create index on note (paper_id);
         insert into note values (1, 1);
         alter table note owner to {role}, enable row level security, force row level security;
         create policy own on note using (until is null or until > now())",
    )
    .await;
    let with = |child: &str| {
        format!(
            "[[resource]]\nname = 'papers'\ntable = 'paper'\nrow_security = 'as-larder'\nfields = {{ id = 'id' }}\n\
             [[resource.children]]\nname = 'below'\ntable = '{child}'\nfields = {{ id = 'id' }}"
        )
    };
    let larder = TestService::start_on(&guarded.role.url, &with("part"), &[]).await;
    assert_eq!(
        larder.get("/papers/1").await.body,
        r#"{"id":1,"below":[{"id":1},{"id":2}]}"#
    );
    assert_cached(&larder).await;
    larder.stop().await;
    let larder = TestService::start_on(&guarded.role.url, &with("note"), &[]).await;
    assert_eq!(
        larder.get("/papers/1").await.body,
        r#"{"id":1,"below":[{"id":1}]}"#
    );
    assert_uncached(&larder, "policy own of public.note calls now()").await;
}

/// Each condition, with what `/status` says of it; nothing where documents are cached.
const CONDITIONS: &[(&str, &str)] = &[
    ("true", ""),
    ("owner = any ('{a,b}') and id % 2 = 1", ""),
    ("(owner, id) = ('a', 1)", ""),
    ("mood = 'glad' and brief = 'a' and tags[1] = 'x'", ""),
    (
        "until at time zone 'UTC' < '2100-01-01' and data ->> 'k' = 'v'",
        "",
    ),
    (
        "nullif(id, 2) is not null and owner ~ '^a' is not false",
        "",
    ),
    (
        "owner = current_user",
        "depends on the session or the time, as current_user and current_date do",
    ),
    ("until::date = current_date", "calls date()"),
    (
        "id::text = '1'",
        "converts a value to another type through its text",
    ),
    (
        "until + interval '1 day' > '2020-01-01'",
        "calls timestamptz_pl_interval()",
    ),
    ("clock_timestamp() > until", "calls clock_timestamp()"),
    ("pg_has_role('pg_monitor', 'usage')", "calls pg_has_role()"),
    (
        "exists (select from pg_class c where c.oid = paper.id)",
        "reads other rows by a subquery",
    ),
    (
        "to_tsvector('english', owner) @@ 'a'::tsquery",
        "calls to_tsvector()",
    ),
    (
        "paper is not null",
        "reads the whole row or a system column",
    ),
    ("ctid <> '(0,0)'", "reads the whole row or a system column"),
    ("marks = array[row(1)::mark]", "uses type public.mark[]"),
    (
        "greatest(id, 2) = 2",
        "contains an expression that larder does not know (MINMAXEXPR)",
    ),
    ("id operator(public.~~~) 1", "calls public.like_it()"),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_part_of_a_condition_is_judged() {
    let guarded = RowSecurityDatabase::create(
        "create type mood as enum ('glad', 'sad');
         create domain brief as varchar(10);
         create type mark as (n int);
         create function like_it(bigint, int) returns bool language internal immutable as 'int84eq';
         create operator ~~~ (leftarg = bigint, rightarg = int, function = like_it);
         alter table paper add mood mood, add brief brief, add tags text[], add data jsonb;",
    )
    .await;
    // As an array of a composite type in another table's column has it.
    guarded.execute("alter table paper add marks mark[]").await;
    for (condition, why) in CONDITIONS {
        guarded
            .execute(&format!("create policy p on paper using ({condition})"))
            .await;
        let larder = guarded.serve().await;
        let told = larder.admin("/status").await.json();
        let expected = if why.is_empty() {
            serde_json::Value::Null
        } else {
            // Its name until PostgreSQL 14.
            let node = ["MINMAXEXPR", "MINMAX"][usize::from(TestCluster::version() < 15)];
            format!(
                "policy p of public.paper {}",
                why.replace("MINMAXEXPR", node)
            )
            .into()
        };
        assert_eq!(told["resources"][0]["uncached"], expected, "{condition}");
        larder.stop().await;
        guarded.execute("drop policy p on paper").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_is_granted_and_revoked() {
    let guarded = RowSecurityDatabase::create(
        "create role {role}_group;
         create policy own on paper to {role}_group using (owner = 'a')",
    )
    .await;
    let larder = guarded.serve().await;
    assert_eq!(status(&larder, "1").await, StatusCode::NOT_FOUND);
    guarded.execute("grant {role}_group to {role}").await;
    becomes(&larder, "1", StatusCode::OK).await;
    assert_cached(&larder).await;
    guarded.execute("revoke {role}_group from {role}").await;
    becomes(&larder, "1", StatusCode::NOT_FOUND).await;
    // A policy that reads more than the row, and concerns larder's role from now on.
    guarded
        .execute("alter policy own on paper using (owner = 'a' and now() is not null); grant {role}_group to {role}")
        .await;
    becomes(&larder, "1", StatusCode::OK).await;
    assert_uncached(&larder, "policy own of public.paper calls now()").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_comes_to_bypass_row_security() {
    let guarded =
        RowSecurityDatabase::create("create policy own on paper using (until > now())").await;
    let larder = guarded.serve().await;
    assert_eq!(status(&larder, "1").await, StatusCode::NOT_FOUND);
    assert_uncached(&larder, "policy own of public.paper calls now()").await;
    guarded.execute("alter role {role} bypassrls").await;
    becomes(&larder, "1", StatusCode::OK).await;
    assert_cached(&larder).await;
    guarded.execute("alter role {role} nobypassrls").await;
    becomes(&larder, "1", StatusCode::NOT_FOUND).await;
}

/// A plan has what larder's role saw when it was made, and PostgreSQL kept it for as long as schema larder could not be
/// used, which has the check: hidden rows were served.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_bypasses_row_security_while_the_database_is_not_followed() {
    let guarded =
        RowSecurityDatabase::create("create policy own on paper using (owner = 'b')").await;
    let larder = guarded.serve().await;
    assert_eq!(status(&larder, "1").await, StatusCode::NOT_FOUND);
    let later = "alter table larder.node add column later int; create or replace function larder.version() returns int \
         language sql immutable parallel safe as 'select 1000'; update larder.epoch set nonce = gen_random_uuid()";
    guarded.execute(later).await;
    eventually("it is not followed", async || {
        let ready = larder.admin("/readyz").await;
        ready.body.contains("of a later larder").then_some(())
    })
    .await;
    for _ in 0..2 {
        guarded.execute("alter role {role} bypassrls").await;
        becomes(&larder, "1", StatusCode::OK).await;
        guarded.execute("alter role {role} nobypassrls").await;
        becomes(&larder, "1", StatusCode::NOT_FOUND).await;
    }
}

/// Between two definitions, neither of which row security concerns, connections plan by policies that hold for a
/// moment, and PostgreSQL keeps such plans when the role comes to bypass them.
#[tokio::test(flavor = "multi_thread")]
async fn plans_made_between_definitions_are_not_kept() {
    let guarded = RowSecurityDatabase::create(
        "alter table paper no force row level security, disable row level security",
    )
    .await;
    let larder = guarded.serve().await;
    for _ in 0..5 {
        assert_cached(&larder).await;
        guarded
            .execute("alter table paper enable row level security, force row level security")
            .await;
        becomes(&larder, "1", StatusCode::NOT_FOUND).await;
        guarded.execute("alter role {role} bypassrls").await;
        becomes(&larder, "1", StatusCode::OK).await;
        assert_cached(&larder).await;
        guarded
            .execute("alter table paper no force row level security, disable row level security")
            .await;
        guarded.execute("alter role {role} nobypassrls").await;
    }
}
