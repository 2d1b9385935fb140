//! Rows that larder's role sees only for a moment between two passes, which leaves no trace in the catalogue: documents
//! that were loaded in that moment were served for ever.

use axum::http::StatusCode;

use super::policies::{RowSecurityDatabase, assert_cached, becomes, status};
use crate::harness::eventually;
use crate::harness::service::TestService;
use crate::harness::swapping_pooler::SwappingPooler;

/// How a moment begins and ends, and how the documents of owner `a` are answered in it, then those of owner `b`.
type VisibilityMoment = (&'static str, &'static str, [StatusCode; 2]);

const MOMENTS: [VisibilityMoment; 4] = [
    (
        "grant {role}_group to {role}",
        "revoke {role}_group from {role}",
        [StatusCode::OK, StatusCode::OK],
    ),
    (
        "alter role {role} bypassrls",
        "alter role {role} nobypassrls",
        [StatusCode::OK, StatusCode::OK],
    ),
    (
        "create policy late on paper using (true)",
        "drop policy late on paper",
        [StatusCode::OK, StatusCode::OK],
    ),
    (
        "create policy late on paper as restrictive using (owner = 'b')",
        "drop policy late on paper",
        [StatusCode::NOT_FOUND, StatusCode::NOT_FOUND],
    ),
];

/// Papers of one moment.
const PAPERS: usize = 20;

/// `paper` with more rows, by turns of owner `a`, which is shown, and of owner `b`.
async fn papers() -> RowSecurityDatabase {
    RowSecurityDatabase::create(
        "create role {role}_group;
         create policy own on paper using (owner = 'a');
         create policy more on paper to {role}_group using (true);
         insert into paper select n, case n % 2 when 0 then 'a' else 'b' end from generate_series(10, 89) n;",
    )
    .await
}

/// Reads papers in each moment, and again after it.
async fn read_in_moments(
    guarded: &RowSecurityDatabase,
    larder: &TestService,
    moments: &[VisibilityMoment],
) {
    for (number, (begin, end, [shown, hidden])) in moments.iter().enumerate() {
        assert_cached(larder).await;
        let first = 10 + PAPERS * number;
        let keys: Vec<String> = (first..first + PAPERS).map(|key| key.to_string()).collect();
        let is_hidden = |key: &String| key.parse::<u64>().unwrap() % 2 == 1;
        let list = format!("/papers?limit={}&after={}", PAPERS / 2, first - 1);
        guarded.execute(begin).await;
        for key in &keys {
            let expected = if is_hidden(key) { hidden } else { shown };
            assert_eq!(status(larder, key).await, *expected, "{begin}: {key}");
        }
        assert_eq!(larder.get(&list).await.status, StatusCode::OK, "{begin}");
        guarded.execute(end).await;
        for key in &keys {
            let expected = if is_hidden(key) {
                StatusCode::NOT_FOUND
            } else {
                StatusCode::OK
            };
            becomes(larder, key, expected).await;
        }
        let listed = larder.get(&list).await.json();
        let listed = listed.as_array().unwrap().iter();
        let listed: Vec<String> = listed.map(|paper| paper["id"].to_string()).collect();
        assert_eq!(listed.len(), PAPERS / 2, "{begin}");
        assert!(!listed.iter().any(is_hidden), "{begin}: {listed:?}");
    }
}

/// Passes come so late that hardly any falls into a moment.
#[tokio::test(flavor = "multi_thread")]
async fn documents_visible_for_a_moment_are_not_cached() {
    let guarded = papers().await;
    let rare = [("feed.poll_interval", "2s"), ("feed.max_staleness", "4s")];
    let larder = guarded.serve_at(&guarded.role.url, &rare).await;
    read_in_moments(&guarded, &larder, &MOMENTS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_visible_for_a_moment_are_not_cached_behind_a_pooler() {
    let guarded = papers().await;
    let exchange = SwappingPooler::start(&guarded.role.url).await;
    let rare = [
        ("database.pooler", "true"),
        ("database.listen_url", guarded.role.url.as_str()),
        ("feed.poll_interval", "2s"),
        ("feed.max_staleness", "4s"),
    ];
    let larder = guarded.serve_at(&exchange.url, &rare).await;
    read_in_moments(&guarded, &larder, &MOMENTS).await;
}

/// Passes map changes of a lookup to documents by a join over tables with row security.
#[tokio::test(flavor = "multi_thread")]
async fn passes_join_tables_with_row_security() {
    let guarded = papers().await;
    guarded
        .execute(
            "create table line (id bigint primary key, paper_id bigint references paper);
             create index on line (paper_id);
             insert into line values (1, 10);
             alter table line owner to {role}, enable row level security, force row level security;
             create policy own on line to {role}_group using (true);
             grant {role}_group to {role};",
        )
        .await;
    let file = "[[resource]]\nname = 'lines'\ntable = 'line'\nrow_security = 'as-larder'\n\
         [[resource.lookups]]\nname = 'paper'\ntable = 'paper'\ncolumn = 'paper_id'\nfields = { owner = 'owner' }";
    let larder = TestService::start_on(&guarded.role.url, file, &[]).await;
    for round in 0..10 {
        eventually("a document of memory", async || {
            let answer = larder.get("/lines/1").await;
            (answer.cache_status() == "larder; hit; detail=memory").then_some(())
        })
        .await;
        let owner = format!("a{round}");
        // The statement is analysed anew, in the moment or after it.
        guarded
            .execute(&format!(
                "revoke {{role}}_group from {{role}}; update paper set owner = '{owner}' where id = 10;
                 analyze line"
            ))
            .await;
        guarded.execute("grant {role}_group to {role}").await;
        let expected = format!(r#"{{"id":1,"paper_id":10,"paper":{{"owner":"{owner}"}}}}"#);
        eventually("the new owner", async || {
            (larder.get("/lines/1").await.body == expected).then_some(())
        })
        .await;
    }
}
