//! Which keys there are: pages of a resource's keys, in PostgreSQL's order of them.
//!
//! No tier knows that, so PostgreSQL is asked each time, over connections apart from those that load documents: a slow
//! list holds up no document.

mod stored;

use std::sync::{Arc, Mutex, PoisonError};

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres, Row};
use tokio::sync::Semaphore;

use crate::resource::Resource;
use crate::resource::key::key_parts;
use crate::resource::page::Page;
use crate::resource::proof::Proved;
use crate::source::SourceError;
use crate::source::loader::link::{GRACE, Link, Statement};
use crate::source::loader::pages::stored::representable;
use crate::source::loader::{Loader, Shared};
use crate::source::session::Session;

/// Connections, opened when they are needed.
const CONNECTIONS_MAX: usize = 4;

/// Pages that may wait for a connection.
const WAITING_PAGES_MAX: usize = 256;

/// The connections, and who may use one.
pub(super) struct Pages {
    /// One permit for each page that is being read or waits to be.
    places: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    /// Between statements.
    idle: Mutex<Vec<Link>>,
}

impl Default for Pages {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX + WAITING_PAGES_MAX)),
            turns: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            idle: Mutex::default(),
        }
    }
}

impl Pages {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Link>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loader {
    /// The canonical keys of one page, in PostgreSQL's order of the key's columns.
    ///
    /// Cancel safe: the statement is a task of its own, which no request cancels.
    /// # Errors
    /// [`SourceError::Overloaded`] where too many pages wait; else why PostgreSQL gave none.
    pub async fn keys(
        &self,
        resource: Arc<Resource>,
        page: Page,
    ) -> Result<Vec<String>, SourceError> {
        let shared = Arc::clone(&self.shared);
        let place = Arc::clone(&shared.pages.places);
        let place = place
            .try_acquire_owned()
            .map_err(|_| SourceError::Overloaded)?;
        let reading = tokio::spawn(async move {
            let _place = place;
            let turns = Arc::clone(&shared.pages.turns);
            let ended = |_| SourceError::Unavailable("larder is stopping".into());
            let _turn = turns.acquire().await.map_err(ended)?;
            // What is taken last is warm.
            let mut link = shared.pages.idle().pop().unwrap_or_default();
            let statement = Keys {
                resource,
                page,
                persistent: !shared.database.pooler(),
            };
            let keys = match link.ask_again(&shared, &statement).await {
                Err(error) if error.is_of_encoding() => {
                    let limit = 2 * (shared.database.statement_timeout() + GRACE);
                    let representable = representable(&mut link, &shared, &statement);
                    let ended = tokio::time::timeout(limit, representable).await;
                    ended.unwrap_or(Err(SourceError::Timeout))
                }
                keys => keys,
            };
            shared.pages.idle().push(link);
            keys
        });
        reading
            .await
            .map_err(|error| SourceError::Unexpected(error.to_string()))?
    }
}

impl Shared {
    /// Lets no page begin any more, and closes the connections that read none.
    pub(super) fn close_pages(&self) {
        self.pages.turns.close();
        self.pages.idle().clear();
    }
}

struct Keys {
    resource: Arc<Resource>,
    page: Page,
    persistent: bool,
}

impl Keys {
    /// What comes before the limit's successors: the parts of the key before the first, the filters, the limit.
    fn bound<'q>(&self, sql: &'q Proved) -> Query<'q, Postgres, PgArguments> {
        let columns = self.resource.key.columns.len();
        let mut query = sqlx::query(AssertSqlSafe(sql.as_str())).persistent(self.persistent);
        if let Some(after) = &self.page.after {
            for part in key_parts(after, columns) {
                query = query.bind(part.into_owned());
            }
        }
        for (_, value) in &self.page.filters {
            if let Some(value) = value {
                query = query.bind(value.clone());
            }
        }
        query.bind(i64::try_from(self.page.limit).unwrap_or(i64::MAX))
    }
}

impl Statement for Keys {
    type Found = Vec<String>;

    async fn run(&self, session: &mut Session) -> Result<Vec<String>, SourceError> {
        let sql = self.page.sql(&self.resource);
        let rows = self.bound(&sql).fetch_all(&mut session.connection).await?;
        session.check_rows(sql.proof(), &rows)?;
        let keys = rows.first().map(|row| row.try_get("keys")).transpose()?;
        Ok(keys.unwrap_or_default())
    }
}
