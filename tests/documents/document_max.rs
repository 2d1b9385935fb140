//! `document_max` bounds what PostgreSQL sends for a document, also when its rows are compressed in the tables.

use larder::config::Config;
use larder::resource::resolve::resolve;
use larder::source::catalogue::read_catalogue;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use crate::harness::cluster::TestCluster;
use crate::harness::service::execute;

/// A hundred texts of 100 kB, compressed to a hundredth of that, in the rows below.
const SQL: &str = "create table folder (id int primary key); \
                   create table page (id int primary key, folder int references folder, body text); \
                   insert into folder values (1); \
                   insert into page select n, 1, repeat('x', 100000) from generate_series(1, 100) n";

const CONFIG: &str = "[[resource]]\nname = 'folders'\ntable = 'public.folder'\n\
                      [[resource.children]]\nname = 'pages'\ntable = 'public.page'\nfields = { body = 'body' }\n";

#[tokio::test(flavor = "multi_thread")]
async fn compressed_texts_count_at_their_whole_length() {
    let url = TestCluster::database().await.url;
    execute(&url, SQL).await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let stored = "select sum(pg_column_size(body))::bigint from page";
    let stored: i64 = sqlx::query_scalar(stored)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert!(stored < 200_000, "{stored} bytes are no compressed texts");
    let config = Config::from_toml(CONFIG, &[("database.url", &url)]).unwrap();
    let tables = ["public.folder".to_owned(), "public.page".to_owned()];
    let catalogue = read_catalogue(&mut connection, &tables).await.unwrap();
    let resources = resolve(&config.resources, &catalogue).unwrap();
    let mut sent = async |bytes_max: i64| {
        sqlx::query(AssertSqlSafe(resources[0].documents_sql.as_str()))
            .bind(vec![1])
            .bind(bytes_max)
            .fetch_all(&mut connection)
            .await
            .unwrap()
            .iter()
            // The row without a key is the statement's proof.
            .find(|row| row.get::<Option<&str>, _>(0).is_some())
            .unwrap()
            .try_get_raw(1)
            .unwrap()
            .as_bytes()
            .map_or(0, <[u8]>::len)
    };
    let whole = sent(i64::MAX).await;
    assert!((10_000_000..10_010_000).contains(&whole), "{whole} bytes");
    let whole = i64::try_from(whole).unwrap();
    assert_eq!(sent(whole - 1).await, 0);
    assert_eq!(sent(1_000_000).await, 0);
}
