//! Rows for tables of any schema, as far as that is easy.

use anyhow::Context;
use sqlx::Connection;
use sqlx::postgres::PgConnection;

use crate::checks::twins::run_sql;

/// The statement that fills each table: row number `n` has values that are made of `n`. Three rows refer to the same row.
/// Where a constraint names texts, all rows have the first of them.
const INSERTS_SQL: &str = "\
select format('insert into %s (%s) overriding system value select %s from generate_series(1, 3000) n on conflict do nothing', \
  t.oid::regclass, string_agg(quote_ident(a.attname), ', ' order by a.attnum), \
  string_agg(case \
    when allowed.text is not null then quote_literal(allowed.text) \
    when y.typname in ('int2', 'int4', 'int8', 'numeric', 'float4', 'float8') then number \
    when y.typname in ('text', 'varchar', 'bpchar') and a.atttypmod between 5 and 9 \
      then format('left(md5((%s)::text), %s)', number, a.atttypmod - 4) \
    when y.typname in ('text', 'varchar', 'bpchar', 'citext') then format('''v'' || %s', number) \
    when y.typname = 'bool' then 'n % 2 = 0' \
    when y.typname in ('timestamp', 'timestamptz', 'date') \
      then format('(''2026-01-01''::timestamp + %s * interval ''1 hour'')::%s', number, y.typname) \
    when y.typname = 'time' then '''00:00''::time + n * interval ''1 second''' \
    when y.typname = 'bytea' then format('decode(lpad(to_hex(%s), 8, ''0''), ''hex'')', number) \
    when y.typname = 'uuid' then format('md5((%s)::text)::uuid', number) \
    when y.typname = 'inet' then format('''10.0.0.0''::inet + (%s)', number) \
    when y.typname in ('json', 'jsonb') then '''{}''' \
    when y.typtype = 'e' then (select quote_literal(min(e.enumlabel)) from pg_enum e where e.enumtypid = y.oid) \
    else 'null' end, ', ' order by a.attnum)) \
from pg_class t join pg_attribute a on a.attrelid = t.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' \
  join pg_type y on y.oid = a.atttypid \
  cross join lateral (select case \
    when exists (select from pg_constraint f where f.contype = 'f' and f.conrelid = t.oid and f.conkey[1] = a.attnum) \
      or a.attname ~* 'id$' and a.attnum > 1 then '(n % 1000 + 1)' else 'n' end as number) value \
  cross join lateral (select min(substring(pg_get_constraintdef(k.oid) from '''([^'']+)''')) as text from pg_constraint k \
    where k.contype = 'c' and k.conrelid = t.oid and k.conkey = array[a.attnum]) allowed \
where t.relkind in ('r', 'p') and not t.relispartition and t.relnamespace = 'public'::regnamespace group by t.oid \
order by t.oid::regclass::text";

/// Fills the tables, without their triggers and without looking at foreign keys. Returns how many.
///
/// A table whose constraints refuse the rows stays empty.
pub(super) async fn fill(url: &str) -> anyhow::Result<usize> {
    let mut connection = PgConnection::connect(url).await?;
    run_sql(&mut connection, "set session_replication_role = replica").await?;
    let inserts: Vec<String> = sqlx::query_scalar(INSERTS_SQL)
        .fetch_all(&mut connection)
        .await?;
    let mut filled = 0;
    for insert in &inserts {
        filled += usize::from(run_sql(&mut connection, insert).await.is_ok());
    }
    run_sql(&mut connection, "analyze")
        .await
        .context("analyze")?;
    connection.close().await?;
    Ok(filled)
}
