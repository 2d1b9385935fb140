//! Locked tables, for which readers wait, and tables that are slow to read without a lock.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::harness::cluster::TestRole;
use crate::harness::eventually;

/// A connection with an open transaction that has locked `table` against readers.
pub(crate) async fn lock_table(url: &str, table: &str) -> PgConnection {
    let mut holder = PgConnection::connect(url).await.unwrap();
    let sql = format!("begin; lock table {table}");
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut holder)
        .await
        .unwrap();
    holder
}

/// Ends the transaction that has locked a table.
pub(crate) async fn unlock(mut holder: PgConnection) {
    sqlx::raw_sql("commit").execute(&mut holder).await.unwrap();
    holder.close().await.unwrap();
}

/// Waits until another session waits for `table`, as the connection that has locked it sees.
pub(crate) async fn await_waiter(holder: &mut PgConnection, table: &str) {
    let sql = format!(
        "select exists (select from pg_locks where relation = '{table}'::regclass and not granted)"
    );
    eventually("a session that waits", async || {
        let waiting = sqlx::query_scalar(AssertSqlSafe(sql.clone()));
        let waiting: bool = waiting.fetch_one(&mut *holder).await.unwrap();
        waiting.then_some(())
    })
    .await;
}

/// SQL that gives `tables` to `role`, for a larder of its own, and puts rows of `gated`, one of them, behind a gate: a
/// statement that comes to one runs on until the gate is open.
pub(crate) fn gate_sql(role: &TestRole, tables: &[&str], gated: &str) -> String {
    let name = &role.name;
    let (_, database) = role.url.rsplit_once('/').unwrap();
    let owned = tables.iter().chain(&["gate"]);
    let owned: String = owned
        .map(|table| format!("alter table {table} owner to {name}; "))
        .collect();
    format!(
        "create table gate (); \
         create function wait() returns bool language plpgsql as $$ begin \
           while not exists (select from public.gate) loop perform pg_sleep(0.01); end loop; \
           return true; end $$; \
         alter table {gated} enable row level security; alter table {gated} force row level security; \
         create policy gated on {gated} using (wait()); \
         {owned} grant create on database {database} to {name}"
    )
}

/// Opens the gate of [`gate_sql`].
pub(crate) const OPEN_GATE: &str = "insert into gate default values";
