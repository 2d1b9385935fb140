//! Two clients run random statements, while documents are read without pause.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fastrand::Rng;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::documents::oracle;
use crate::documents::shapes::documented;
use crate::freshness::testbed::FreshnessTestbed;

const SEED: u64 = 0x1a2d_e12b_ad5e_ed01;
const STATEMENTS: usize = 400;
/// After so many, all transactions end and every document is compared.
const STATEMENTS_PER_ROUND: usize = 50;

/// `#n` is a random number below n, `@b` a branch, `@p` a product.
const TEMPLATES: [&str; 40] = [
    "insert into \"Orders\" values (#9, @b, 't', 'Q#40', #4, null, null) on conflict do nothing",
    "insert into \"Line\" select #60, #9, null, \"Branch\", \"orderNo\" from \"Orders\" order by random() limit 2 on conflict do nothing",
    "insert into note select #80, 'r', null, id from \"Line\" where id % 3 = #3 limit 1 on conflict do nothing",
    "insert into tag select id, 't#5', #9 from note where id % 4 = #4 on conflict do nothing",
    "insert into region values (#9, 'r', null) on conflict (id) do update set title = 'again #9'",
    "insert into author values (#9, 'a', null) on conflict (id) do update set name = 'b#9'",
    "update \"Orders\" set title = 'u#99' where \"orderNo\" = #9",
    "update \"Orders\" set region_id = (select id from region order by random() limit 1) where \"orderNo\" = #9",
    "update \"Orders\" set \"orderNo\" = #9 where \"Branch\" = @b and \"orderNo\" = #9",
    "update \"Orders\" set \"Branch\" = @b where \"orderNo\" = #9 and \"Branch\" = @b",
    "update \"Orders\" o set up_no = u.\"orderNo\", \"up,Branch\" = u.\"Branch\" from \"Orders\" u where o.\"orderNo\" = #9 and u.\"orderNo\" = #9",
    "update \"Orders\" set ref = 'Q#40' where \"orderNo\" = #9 and \"Branch\" = @b",
    "update \"Line\" set qty = #99 where id % 5 = #5",
    "update \"Line\" l set \"inOrder\" = o.\"orderNo\", \"inBranch\" = o.\"Branch\" from \"Orders\" o where l.id = #9 and o.\"orderNo\" = #9",
    "update \"Line\" set product_id = @p where id = #60",
    "update \"Line\" set id = #60 where id = #60",
    "update note set line_id = (select id from \"Line\" order by random() limit 1) where id % 6 = #6",
    "update note set body = 'n#99' where id % 6 = #6",
    "update note set author = (select id from author order by random() limit 1) where id % 6 = #6",
    "update note set id = #80 where id = #80",
    "update tag set weight = #9 where note_id % 3 = #3",
    "update tag set note_id = #80 where note_id = #80",
    "update region set title = 'r#99' where id = #5",
    "update region set country = (select code from country order by random() limit 1) where id = #5",
    "update country set title = 'c#99' where title < 'd'",
    "update product set parent = @p, title = 'p#99' where id = @p",
    "delete from tag where note_id % 7 = #7",
    "delete from note where id = #80",
    "delete from \"Line\" where id = #60",
    "delete from \"Orders\" where \"orderNo\" = #9 and \"Branch\" = @b and \"orderNo\" > 3",
    "delete from region where id = 4 + #5",
    "insert into shipment select #30, ref, now() from \"Orders\" where ref is not null order by random() limit 1 on conflict do nothing",
    "update shipment set sent = null where id = #30",
    "insert into sample values (#40, date '2024-01-01' + #700, 'south', 1 + #2, #9) on conflict do nothing",
    "update sample set day = date '2024-01-01' + #700 where id = #40",
    "update sample set zone = 'north', meter = 1 where id = #40",
    "update sample_b set value = #99",
    "update vehicle set garage_id = 1 + #2 where id % 3 = #3",
    "with a as (update note set body = 'cte#9' where id = #9 returning line_id) update \"Line\" set qty = -1 where id in (select line_id from a)",
    "update entry set account = (select no from account order by random() limit 1), sum = #9",
];

/// Draws a statement from the templates.
fn draw_statement(rng: &mut Rng) -> String {
    let mut statement = String::new();
    let mut rest = TEMPLATES[rng.usize(..TEMPLATES.len())];
    while let Some(at) = rest.find(['#', '@']) {
        statement.push_str(&rest[..at]);
        let place = &rest[at + 1..];
        let length = if rest.starts_with('@') || rest[at..].starts_with('@') {
            1
        } else {
            place
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(place.len())
        };
        statement.push_str(&match &place[..length] {
            "b" => ["'a,b'", "'50%'", "'plain'", "'%2C'"][rng.usize(..4)].to_owned(),
            "p" => format!(
                "'{}0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
                ["a", "b", "c"][rng.usize(..3)]
            ),
            bound => rng.usize(..bound.parse::<usize>().unwrap()).to_string(),
        });
        rest = &place[length..];
    }
    statement + rest
}

/// One of the two clients that write.
struct RandomClient {
    connection: PgConnection,
    in_transaction: bool,
}

impl RandomClient {
    async fn run(&mut self, sql: &str) -> bool {
        let outcome = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(&mut self.connection)
            .await;
        outcome.is_ok()
    }

    /// Ends or begins a transaction every few statements; one that fails is rolled back.
    async fn act(&mut self, rng: &mut Rng) -> bool {
        match rng.usize(..6) {
            0 if self.in_transaction => self.end(rng.usize(..4) > 0).await,
            0 | 1 if !self.in_transaction => self.in_transaction = self.run("begin").await,
            2 if self.in_transaction => {
                self.run("savepoint s").await;
                let statement = draw_statement(rng);
                if !self.run(&statement).await || rng.usize(..2) == 0 {
                    self.run("rollback to s").await;
                }
            }
            _ => {}
        }
        let done = self.run(&draw_statement(rng)).await;
        if !done && self.in_transaction {
            self.end(false).await;
        }
        done
    }

    async fn end(&mut self, commit: bool) {
        self.run(if commit { "commit" } else { "rollback" }).await;
        self.in_transaction = false;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_right_after_random_changes_by_two_clients() {
    let mut testbed = FreshnessTestbed::start_with(&[("feed.keys_per_statement", "6")]).await;
    let mut rng = Rng::with_seed(SEED);
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = RandomClient {
            connection: testbed.connect().await,
            in_transaction: false,
        };
        let settings =
            "select setseed(0.5); set search_path = \"Sales\"; set lock_timeout = '15ms'";
        assert!(client.run(settings).await);
        clients.push(client);
    }
    let mut done = 0;
    for round in 0..STATEMENTS / STATEMENTS_PER_ROUND {
        let paths: Vec<String> = oracle::documents(&mut testbed.connect().await, &documented())
            .await
            .into_keys()
            .collect();
        let ended = Arc::new(AtomicBool::new(false));
        let read = AtomicUsize::new(0);
        let service = &testbed.larders[0].service;
        let reading = async {
            let mut rng = Rng::with_seed(SEED ^ u64::try_from(round).unwrap());
            while !ended.load(Ordering::SeqCst) {
                let answer = service.get(&paths[rng.usize(..paths.len())]).await;
                assert!(answer.status == 200 || answer.status == 404, "{answer:?}");
                read.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
        };
        let writing = async {
            for _ in 0..STATEMENTS_PER_ROUND {
                let client = &mut clients[rng.usize(..2)];
                done += usize::from(client.act(&mut rng).await);
            }
            for client in &mut clients {
                client.end(true).await;
            }
            ended.store(true, Ordering::SeqCst);
        };
        tokio::join!(reading, writing);
        assert!(read.load(Ordering::SeqCst) > 0);
        testbed
            .settle_beyond(&format!("round {round} of seed {SEED:#x}"), &["/"])
            .await;
    }
    assert!(done > STATEMENTS / 2, "only {done} statements succeeded");
}
