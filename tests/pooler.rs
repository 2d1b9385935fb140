//! Connection poolers between larder and PostgreSQL, which share server connections among clients, with and without
//! `pooler = true`.

use axum::http::{Method, StatusCode};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use crate::harness::cluster::{TestCluster, TestRole};
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService, execute};
use crate::harness::swapping_pooler::SwappingPooler;
use crate::harness::table_locks::{OPEN_GATE, gate_sql};

const SQL: &str = "create table a (id int primary key, v text); insert into a select i, 'a' || i from generate_series(1, 60) i; \
     create table b (id int primary key, v text); insert into b select i, 'b' || i from generate_series(1, 60) i;";

const CONFIG: &str =
    "[[resource]]\nname = 'a'\ntable = 'public.a'\n[[resource]]\nname = 'b'\ntable = 'public.b'\n";

/// Waits until some session waits for a lock of this database.
async fn await_blocked_reader(connection: &mut PgConnection) {
    eventually("a session waits for a lock", async || {
        let row = sqlx::query(
            "select exists (select from pg_locks w join pg_locks h using (pid) join pg_database d on d.oid = h.database \
             where not w.granted and d.datname = current_database())",
        )
        .fetch_one(&mut *connection)
        .await
        .unwrap();
        row.get::<bool, _>(0).then_some(())
    })
    .await;
}

async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.unwrap()
}

async fn run(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await
        .unwrap();
}

/// A larder with two connections for loads, by way of the pooler.
async fn behind(pooler: &SwappingPooler, direct: &str) -> TestService {
    let settings = [
        ("database.connections", "7"),
        ("database.listen_url", direct),
    ];
    TestService::start_on(&pooler.url, CONFIG, &settings).await
}

/// The same, on which statement 1 reads `a` and `b`.
async fn crossed(pooler: &SwappingPooler, direct: &str) -> TestService {
    let larder = behind(pooler, direct).await;
    let mut holder = connect(direct).await;
    run(&mut holder, "begin; lock table a").await;
    let (first, ()) = tokio::join!(larder.get("/a/1"), async {
        await_blocked_reader(&mut holder).await;
        assert_eq!(larder.get("/b/1").await.status, StatusCode::OK);
        run(&mut holder, "rollback").await;
    });
    assert_eq!(first.status, StatusCode::OK, "{first:?}");
    larder
}

/// pgbouncer in transaction mode sent the messages of one of sqlx's statements to different server connections, and the
/// names of prepared statements are the same on each: more than half of the answers of one resource had rows of
/// another, which the client was not allowed to read, and they were kept in memory.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_another_statement_is_neither_sent_nor_kept() {
    let direct = TestCluster::database().await.url;
    execute(&direct, SQL).await;
    let pooler = SwappingPooler::start(&direct).await;
    let larder = crossed(&pooler, &direct).await;
    pooler.set_swapping(true);
    let mut refused = 0;
    for id in 2..=20 {
        for table in ["a", "b"] {
            let answer = larder.get(&format!("/{table}/{id}")).await;
            match answer.status {
                StatusCode::OK => {
                    assert_eq!(
                        answer.body,
                        format!("{{\"id\":{id},\"v\":\"{table}{id}\"}}")
                    );
                }
                status => {
                    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
                    refused += 1;
                }
            }
            let list = larder.get(&format!("/{table}?limit=1&after={id}")).await;
            assert!(
                list.status != StatusCode::OK || list.body.contains(&format!("\"{table}")),
                "{list:?}"
            );
        }
    }
    assert!(refused > 0, "no statement met another server");
    pooler.set_swapping(false);
    for id in 2..=20 {
        for table in ["a", "b"] {
            let path = format!("/{table}/{id}");
            let expected = format!("{{\"id\":{id},\"v\":\"{table}{id}\"}}");
            eventually("the right document", async || {
                let answer = larder.get(&path).await;
                if answer.status == StatusCode::OK {
                    assert_eq!(answer.body, expected);
                    return Some(());
                }
                None
            })
            .await;
        }
    }
}

/// The same statement on another server may run under other settings.
#[tokio::test(flavor = "multi_thread")]
async fn another_server_process_is_refused_though_it_has_the_statement() {
    // If one of the two connections was closed meanwhile, the read has a server of its own, and is answered.
    for _ in 0..8 {
        if let Some(answer) = read_over_swapped_connections().await {
            assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
            return;
        }
    }
    panic!("no read met another server");
}

/// Has two connections prepare a statement, and the pooler swap their servers. Returns the response to the next read if
/// it is refused.
async fn read_over_swapped_connections() -> Option<TestResponse> {
    let direct = TestCluster::database().await.url;
    execute(&direct, SQL).await;
    let role = TestRole::create(&direct).await;
    execute(&direct, &gate_sql(&role, &["a", "b"], "a")).await;
    let pooler = SwappingPooler::start(&role.url).await;
    let config = CONFIG.replacen("'public.a'", "'public.a'\nrow_security = 'as-larder'", 1);
    // Statements of one resource have a share of them, which is two.
    let settings = [
        ("database.connections", "8"),
        ("database.listen_url", &*role.url),
    ];
    let larder = TestService::start_on(&pooler.url, &config, &settings).await;
    let connections = async |count: usize| {
        eventually("connections load", async || {
            (pooler.connections() >= count).then_some(())
        })
        .await;
    };
    let (one, other) = tokio::join!(larder.get("/a/1"), async {
        connections(1).await;
        let other = tokio::join!(larder.get("/a/2"), async {
            connections(2).await;
            execute(&direct, OPEN_GATE).await;
        });
        other.0
    });
    assert_eq!((one.status, other.status), (StatusCode::OK, StatusCode::OK));
    pooler.set_swapping(true);
    let answer = larder.get("/a/3").await;
    (answer.status == StatusCode::SERVICE_UNAVAILABLE).then_some(answer)
}

/// A transaction stays on one server, where the names of its statements are those of another connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_by_another_statement_is_rolled_back() {
    let direct = TestCluster::database().await.url;
    execute(&direct, SQL).await;
    let pooler = SwappingPooler::start(&direct).await;
    let larder = behind(&pooler, &direct).await;
    let put = async |table: &str, id: u32| {
        let body = format!("{{\"id\":{id},\"v\":\"{table}!\"}}");
        let path = format!("/{table}/{id}");
        larder.write(Method::PUT, &path, &[], &body).await.status
    };
    let mut holder = connect(&direct).await;
    run(&mut holder, "begin; select from a where id = 1 for update").await;
    let (first, ()) = tokio::join!(put("a", 1), async {
        await_blocked_reader(&mut holder).await;
        assert_eq!(put("b", 1).await, StatusCode::OK);
        run(&mut holder, "rollback").await;
    });
    assert_eq!(first, StatusCode::OK);
    pooler.set_swapping(true);
    let before = pooler.connections();
    for id in 2..=6 {
        for table in ["a", "b"] {
            let status = put(table, id).await;
            assert!(
                [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE].contains(&status),
                "{status}"
            );
        }
    }
    assert!(
        pooler.connections() > before,
        "no statement met another server"
    );
    let strangers = "select (select count(*) from a where v like 'b%') + (select count(*) from b where v like 'a%')";
    let strangers: i64 = sqlx::query_scalar(strangers)
        .fetch_one(&mut holder)
        .await
        .unwrap();
    assert_eq!(strangers, 0);
}

/// The URL of a role whose transactions are repeatable read by default, and of a superuser.
async fn repeatable_read() -> (String, String) {
    let direct = TestCluster::database().await.url;
    execute(&direct, SQL).await;
    let role = TestRole::create(&direct).await;
    let sql = format!(
        "alter role {name} superuser; alter role {name} set default_transaction_isolation = 'repeatable read'",
        name = role.name
    );
    execute(&direct, &sql).await;
    (role.url, direct)
}

/// Behind a pooler a load is a transaction of several statements. Repeatable read by default, its snapshot was that of
/// the first one, from before the lock that the load waited for: a table that was truncated and filled again in one
/// transaction gave 404 for a key that always existed, and that was kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_load_behind_a_pooler_sees_what_it_waited_for() {
    let (url, direct) = repeatable_read().await;
    let settings = [
        ("database.pooler", "true"),
        ("database.listen_url", url.as_str()),
    ];
    let larder = TestService::start_on(&url, CONFIG, &settings).await;
    let mut holder = connect(&direct).await;
    run(
        &mut holder,
        "begin; truncate a; insert into a values (1, 'new')",
    )
    .await;
    let (answer, ()) = tokio::join!(larder.get("/a/1"), async {
        await_blocked_reader(&mut holder).await;
        run(&mut holder, "commit").await;
    });
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (StatusCode::OK, "{\"id\":1,\"v\":\"new\"}")
    );
}

/// A read with a token joins a load whose statement has not been sent. Its snapshot must not be older than that.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_joins_no_load_with_an_older_snapshot() {
    let (url, direct) = repeatable_read().await;
    let pooler = SwappingPooler::start(&url).await;
    // Passes come so late that the token is not covered by one.
    let settings = [
        ("database.pooler", "true"),
        ("database.listen_url", url.as_str()),
        ("feed.poll_interval", "5min"),
        ("feed.max_staleness", "10min"),
        ("feed.notify", "false"),
    ];
    let larder = TestService::start_on(&pooler.url, CONFIG, &settings).await;
    larder.feed_rests().await;
    let mut writer = connect(&direct).await;
    let nonce: String = sqlx::query_scalar("select nonce::text from larder.epoch")
        .fetch_one(&mut writer)
        .await
        .unwrap();
    // The load has proved which database it reaches, in a statement of its transaction, and does not know it yet.
    pooler.hold_answers_to("pg_control_system");
    let path = "/a/1";
    let ahead = async {
        pooler.await_held(1).await;
        run(&mut writer, "begin; update a set v = 'new' where id = 1").await;
        let xid: String = sqlx::query_scalar("select pg_current_xact_id()::text")
            .fetch_one(&mut writer)
            .await
            .unwrap();
        run(&mut writer, "commit").await;
        let token = format!("{nonce}.{xid}");
        let headers = [("larder-token", token.as_str())];
        let reading = larder.request(Method::GET, path, &headers);
        let release = async {
            // Longer than a read waits for a pass that covers its token.
            tokio::time::sleep(std::time::Duration::from_millis(400)).await;
            pooler.release();
        };
        tokio::join!(reading, release).0
    };
    let (_, answer) = tokio::join!(larder.get(path), ahead);
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (StatusCode::OK, "{\"id\":1,\"v\":\"new\"}")
    );
}
