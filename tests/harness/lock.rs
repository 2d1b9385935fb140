//! Tables that are held, so that readers wait.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

/// A connection that holds `table` so that no reader gets on.
pub(crate) async fn hold(url: &str, table: &str) -> PgConnection {
    let mut holder = PgConnection::connect(url).await.unwrap();
    let sql = format!("begin; lock table {table}");
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut holder)
        .await
        .unwrap();
    holder
}

/// Ends the transaction of a connection that holds a table.
pub(crate) async fn let_go(mut holder: PgConnection) {
    sqlx::raw_sql("commit").execute(&mut holder).await.unwrap();
    holder.close().await.unwrap();
}
