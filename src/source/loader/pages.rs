//! Which keys there are: pages of a resource's keys, in PostgreSQL's order of them.
//!
//! No tier knows that, so PostgreSQL is asked each time, over connections apart from those that load documents: a slow
//! list holds up no document. Lists of one resource have half of these connections at most.

mod stored;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres, Row};
use tokio::sync::{AcquireError, Semaphore};
use tokio::time::Instant;

use crate::resource::Resource;
use crate::resource::key::key_parts;
use crate::resource::page::Page;
use crate::resource::proof::ProvedSql;
use crate::resource::row_security::RowSecurity;
use crate::source::SourceError;
use crate::source::loader::link::{GRACE, Link, Statement};
use crate::source::loader::pages::stored::representable;
use crate::source::loader::{Loader, PAUSE_MAX, PAUSE_MIN, Shared};
use crate::source::session::Session;

/// Connections, opened when they are needed.
const CONNECTIONS_MAX: usize = 4;

/// Pages that may wait for a connection.
const WAITING_PAGES_MAX: usize = 256;

/// The connections, and who may use one.
pub(super) struct Pages {
    all: Line,
    /// Those of each resource, by its name.
    lines: Mutex<HashMap<String, Line>>,
    /// Between statements.
    idle: Mutex<Vec<Link>>,
}

/// Pages that are being read or wait to be.
#[derive(Clone)]
struct Line {
    /// One permit for each page.
    places: Arc<Semaphore>,
    /// One permit for each page that is being read.
    turns: Arc<Semaphore>,
}

impl Line {
    /// With a share of all connections and places.
    fn new(share: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(
                (CONNECTIONS_MAX + WAITING_PAGES_MAX) / share,
            )),
            turns: Arc::new(Semaphore::new(CONNECTIONS_MAX / share)),
        }
    }
}

impl Default for Pages {
    fn default() -> Self {
        Self {
            all: Line::new(1),
            lines: Mutex::default(),
            idle: Mutex::default(),
        }
    }
}

impl Pages {
    fn idle(&self) -> MutexGuard<'_, Vec<Link>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self, resource: &Resource) -> Line {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        match lines.get(&resource.name) {
            Some(line) => line.clone(),
            None => {
                let line = Line::new(2);
                lines.insert(resource.name.clone(), line.clone());
                line
            }
        }
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
        let line = shared.pages.line(&resource);
        let place = |of: &Line| {
            let place = Arc::clone(&of.places).try_acquire_owned();
            place.map_err(|_| SourceError::Overloaded)
        };
        let places = (place(&line)?, place(&shared.pages.all)?);
        let statement = Keys {
            resource,
            page,
            persistent: !shared.database.pooler(),
            checked: true,
        };
        let reading = tokio::spawn(async move {
            let _places = places;
            shared.read_page(&line, &statement).await
        });
        reading
            .await
            .map_err(|error| SourceError::Unexpected(error.to_string()))?
    }
}

impl Shared {
    /// Reads a page when it is its turn. Where a lock is in the way, it is tried again as long as a statement may take.
    async fn read_page(&self, line: &Line, statement: &Keys) -> Result<Vec<String>, SourceError> {
        let until = Instant::now() + self.database.statement_timeout();
        // Kept from one try to the next: the other pages of the resource would meet the same lock.
        let _turn = line.turns.acquire().await.map_err(is_stopping)?;
        let mut pause = PAUSE_MIN;
        loop {
            match self.try_page(statement).await {
                Err(error) if error.is_lock_timeout() && Instant::now() >= until => {
                    return Err(SourceError::Timeout);
                }
                Err(error) if error.is_lock_timeout() => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                keys => return keys,
            }
        }
    }

    async fn try_page(&self, statement: &Keys) -> Result<Vec<String>, SourceError> {
        let _turn = self.pages.all.turns.acquire().await.map_err(is_stopping)?;
        // What is taken last is warm.
        let mut link = self.pages.idle().pop().unwrap_or_default();
        let keys = match self.ask_page(&mut link, statement).await {
            Err(error) if statement.row_security().is_some() && error.is_row_security_error() => {
                self.ask_page(&mut link, &statement.unchecked()).await
            }
            keys => keys,
        };
        self.pages.idle().push(link);
        keys
    }

    async fn ask_page(
        &self,
        link: &mut Link,
        statement: &Keys,
    ) -> Result<Vec<String>, SourceError> {
        match link.ask_again(self, statement).await {
            Err(error) if error.is_encoding_error() => {
                let limit = 2 * (self.database.statement_timeout() + GRACE);
                let representable = representable(link, self, statement);
                let ended = tokio::time::timeout(limit, representable).await;
                ended.unwrap_or(Err(SourceError::Timeout))
            }
            keys => keys,
        }
    }

    /// Lets no page begin any more, and closes the connections that read none.
    pub(super) fn close_pages(&self) {
        self.pages.all.turns.close();
        self.pages.idle().clear();
    }
}

fn is_stopping(_: AcquireError) -> SourceError {
    SourceError::Unavailable("larder is stopping".into())
}

struct Keys {
    resource: Arc<Resource>,
    page: Page,
    persistent: bool,
    /// PostgreSQL refuses the statement where row security is not as it was.
    checked: bool,
}

impl Keys {
    fn row_security(&self) -> Option<&RowSecurity> {
        let row_security = self.resource.row_security.as_ref();
        row_security.filter(|_| self.checked)
    }

    /// The same by whatever row security lets larder's role see, planned for this once.
    fn unchecked(&self) -> Self {
        Self {
            resource: Arc::clone(&self.resource),
            page: self.page.clone(),
            persistent: false,
            checked: false,
        }
    }

    /// What comes before the limit's successors: the parts of the key before the first, the filters, the limit.
    fn bound<'q>(&self, sql: &'q ProvedSql) -> Query<'q, Postgres, PgArguments> {
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
        let sql = self.page.sql(&self.resource, self.row_security());
        let rows = self.bound(&sql).fetch_all(&mut session.connection).await?;
        session.check_rows_proof(sql.proof(), &rows)?;
        let keys = rows.first().map(|row| row.try_get("keys")).transpose()?;
        Ok(keys.unwrap_or_default())
    }
}
