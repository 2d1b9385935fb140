//! Table `subscribers` for `larder dispatch`: 480 slots, whose rows became due within the last day.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection};

use crate::cli::SubscribersLayout;
use crate::commands::seed::{SeedError, progress_bar};
use crate::source::session::Database;

/// The `[[dispatch]]` of the table.
pub(super) const SECTION: &str = include_str!("subscribers.toml");

/// PostgreSQL's code of `duplicate_table`.
const DUPLICATE_TABLE: &str = "42P07";

const ROWS_PER_STATEMENT: usize = 100_000;

const TABLE: &str = "create table public.subscribers (\
    id bigint primary key, notify_after timestamptz, \
    partner bigint not null, stream bigint not null, widget bigint not null, \
    worker_id int2 not null, timezone int2 not null, os int2 not null, browser int2 not null, \
    country char(2) not null, language char(2) not null, endpoint varchar(255) not null)";

/// The rows from one id to another. Slots have equally many; other values are parts of a hash of the id.
const ROWS: &str = "insert into public.subscribers \
    select n, now() - h % 86400000 * interval '1 ms', h >> 8 & 1023, h >> 16 & 8191, h >> 24 & 65535, \
    n % 20, n / 20 % 24, h >> 32 & 7, h >> 36 & 15, \
    (array['BR', 'DE', 'ES', 'FR', 'IN', 'JP', 'PL', 'US'])[1 + (h >> 40 & 7)], \
    (array['pt', 'de', 'es', 'fr', 'hi', 'ja', 'pl', 'en'])[1 + (h >> 40 & 7)], \
    rpad('https://push.example/' || n || '/', 120 + (h >> 48 & 127)::int, md5(n::text)) \
    from generate_series($1::int8, $2) n, lateral (select hashint8extended(n, 0) & 9223372036854775807 as h) hash";

/// Creates and fills the table in one transaction. A progress bar is drawn if stderr is a terminal.
///
/// # Errors
/// [`SeedError::SubscribersExist`], or the database refuses; nothing was changed.
pub(super) async fn seed_subscribers(
    url: &str,
    rows: u32,
    layout: SubscribersLayout,
) -> Result<(), SeedError> {
    let database = Database::new(url, false, Duration::ZERO)?;
    let mut connection = database.connect_plain().await?;
    let mut transaction = connection.begin().await?;
    let (storage, due) = match layout {
        SubscribersLayout::Due => ("", ", notify_after"),
        // A page has room for a second version of each row, so that updates can be HOT.
        SubscribersLayout::Slot => (" with (fillfactor = 45)", ""),
    };
    let created = sqlx::raw_sql(AssertSqlSafe(format!("{TABLE}{storage}")))
        .execute(&mut *transaction)
        .await;
    created.map_err(|error| match error.as_database_error() {
        Some(refusal) if refusal.code().as_deref() == Some(DUPLICATE_TABLE) => {
            SeedError::SubscribersExist
        }
        _ => error.into(),
    })?;
    let progress = progress_bar(rows.into());
    for first in (1..=i64::from(rows)).step_by(ROWS_PER_STATEMENT) {
        let last = (first + ROWS_PER_STATEMENT as i64 - 1).min(rows.into());
        let inserted = sqlx::query(ROWS).bind(first).bind(last);
        let inserted = inserted.execute(&mut *transaction).await?;
        progress.inc(inserted.rows_affected());
    }
    let index = format!("create index on public.subscribers (worker_id, timezone{due})");
    sqlx::raw_sql(AssertSqlSafe(index))
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    progress.finish_and_clear();
    // Without statistics the first plans would be guesses.
    sqlx::raw_sql("analyze public.subscribers")
        .execute(&mut connection)
        .await?;
    connection.close().await?;
    tracing::info!(rows, "table public.subscribers was created");
    Ok(())
}
