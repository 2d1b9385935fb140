//! Transactions that touch more than a pass reads.

use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};

/// Two resources of the same tables share their paths.
fn config() -> String {
    let resource = |name: &str| {
        format!(
            "[[resource]]\nname = '{name}'\ntable = 'orders'\n\
             [[resource.children]]\nname = 'lines'\ntable = 'line'\n\
             [[resource.children.lookups]]\nname = 'product'\ntable = 'product'\ncolumn = 'product_id'\n"
        )
    };
    resource("orders") + &resource("copies")
}

/// `orders` with as many lines each, all of one product.
async fn larder(orders: u32, lines: u32) -> TestService {
    let url = TestCluster::database().await.url;
    let sql = format!(
        "create table product (id int primary key, title text); insert into product values (1, 'old'); \
         create table orders (id int primary key, title text); \
         insert into orders select n, 'old' from generate_series(1, {orders}) n; \
         create table line (id int primary key, order_id int references orders, product_id int references product); \
         insert into line select (n - 1) * {lines} + m, n, 1 \
           from generate_series(1, {orders}) n, generate_series(1, {lines}) m; \
         create index on line (order_id); create index on line (product_id); analyze"
    );
    execute(&url, &sql).await;
    TestService::start_on(&url, &config(), &[]).await
}

/// Warms every `step`th of `orders`, runs `sql`, and sees that each of them comes to contain `new`.
async fn all_are_seen(larder: &TestService, orders: u32, step: usize, sql: &str, new: &str) {
    let paths: Vec<String> = (1..=orders)
        .step_by(step)
        .flat_map(|order| [format!("/orders/{order}"), format!("/copies/{order}")])
        .collect();
    for path in &paths {
        eventually("a hit", async || {
            let answer = larder.get(path).await;
            answer
                .cache_status()
                .starts_with("larder; hit")
                .then_some(())
        })
        .await;
    }
    larder.execute(sql).await;
    for path in &paths {
        eventually(&format!("{new} in {path}"), async || {
            larder.get(path).await.body.contains(new).then_some(())
        })
        .await;
    }
}

/// The rows that lead to documents are more than a pass reads, the documents far fewer.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_every_document_shows_many_times() {
    let larder = larder(300, 400).await;
    let sql = "update product set title = 'new'";
    all_are_seen(&larder, 300, 7, sql, r#""title":"new""#).await;
}

/// No statement names too many keys, but together they do, and each of them twice.
#[tokio::test(flavor = "multi_thread")]
async fn many_statements_of_one_transaction() {
    let larder = larder(60_000, 1).await;
    let statements: Vec<String> = (0..6)
        .map(|part| {
            let (from, to) = (part * 10_000 + 1, part * 10_000 + 10_000);
            format!(
                "update orders set title = 'new' where id between {from} and {to}; \
                 update line set id = -id where order_id between {from} and {to};"
            )
        })
        .collect();
    let sql = format!("begin; {} commit", statements.concat());
    all_are_seen(&larder, 60_000, 997, &sql, r#""id":-"#).await;
}
