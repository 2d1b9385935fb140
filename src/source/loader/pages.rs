//! Pages of a resource's keys, in PostgreSQL's order.
//!
//! No tier knows which keys exist, so each page is read from PostgreSQL. Pages have at most half of the connections that
//! read, so that a slow list holds up no document. Lists of one resource have at most half of these.

mod stored;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

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
use crate::source::loader::connection::{LoaderStatement, TIMEOUT_MARGIN};
use crate::source::loader::pages::stored::read_representable_keys;
use crate::source::loader::{Loader, PAUSE_MAX, PAUSE_MIN, Shared};
use crate::source::session::Session;

/// The most pages that may wait for a connection.
const WAITING_PAGES_MAX: usize = 256;

/// The limits on reading pages.
pub(super) struct Pages {
    /// The most pages that are read at a time.
    running_max: usize,
    all: PageLimits,
    /// The limits of each resource, by its name.
    by_resource: Mutex<HashMap<String, PageLimits>>,
}

/// Limits the pages that are being read or wait.
#[derive(Clone)]
struct PageLimits {
    /// One permit for each page that is being read or waits.
    pending: Arc<Semaphore>,
    /// One permit for each page that is being read.
    running: Arc<Semaphore>,
}

impl PageLimits {
    /// Allows `running` pages to be read while `waiting` wait.
    fn new(running: usize, waiting: usize) -> Self {
        Self {
            pending: Arc::new(Semaphore::new(running + waiting)),
            running: Arc::new(Semaphore::new(running)),
        }
    }
}

impl Pages {
    /// For at most `running_max` pages at a time.
    pub(super) fn new(running_max: usize) -> Self {
        Self {
            running_max,
            all: PageLimits::new(running_max, WAITING_PAGES_MAX),
            by_resource: Mutex::default(),
        }
    }

    fn limits(&self, resource: &Resource) -> PageLimits {
        let mut by_resource = self
            .by_resource
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match by_resource.get(&resource.name) {
            Some(limits) => limits.clone(),
            None => {
                let running = self.running_max.div_ceil(2);
                let limits = PageLimits::new(running, WAITING_PAGES_MAX / 2);
                by_resource.insert(resource.name.clone(), limits.clone());
                limits
            }
        }
    }
}

impl Loader {
    /// Reads the canonical keys of one page, in PostgreSQL's order of the key's columns.
    ///
    /// Cancel safe: the statement runs in a task of its own, which no request cancels.
    /// # Errors
    /// [`SourceError::Overloaded`] if too many pages wait; else the error of the statement.
    pub async fn read_page(
        &self,
        resource: Arc<Resource>,
        page: Page,
    ) -> Result<Vec<String>, SourceError> {
        let shared = Arc::clone(&self.shared);
        let limits = shared.pages.limits(&resource);
        let acquire = |limits: &PageLimits| {
            let permit = Arc::clone(&limits.pending).try_acquire_owned();
            permit.map_err(|_| SourceError::Overloaded)
        };
        let permits = (acquire(&limits)?, acquire(&shared.pages.all)?);
        let statement = PageStatement {
            resource,
            page,
            persistent: !shared.database().pooler(),
            checked: true,
        };
        let reading = tokio::spawn(async move {
            let _permits = permits;
            shared.read_page(&limits, &statement).await
        });
        reading
            .await
            .map_err(|error| SourceError::Unexpected(error.to_string()))?
    }
}

impl Shared {
    /// Reads a page once its resource may read one. If the statement meets a lock, it is repeated for as long as one
    /// statement may take.
    async fn read_page(
        &self,
        limits: &PageLimits,
        statement: &PageStatement,
    ) -> Result<Vec<String>, SourceError> {
        let until = Instant::now() + self.database().statement_timeout();
        // Held between attempts, since other pages of the resource would meet the same lock.
        let _permit = limits.running.acquire().await.map_err(is_stopping)?;
        let mut pause = PAUSE_MIN;
        loop {
            match self.try_read_page(statement).await {
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

    async fn try_read_page(&self, statement: &PageStatement) -> Result<Vec<String>, SourceError> {
        let _permit = self
            .pages
            .all
            .running
            .acquire()
            .await
            .map_err(is_stopping)?;
        match self.read_page_once(statement).await {
            Err(error) if statement.row_security().is_some() && error.is_row_security_error() => {
                self.read_page_once(&statement.unchecked()).await
            }
            keys => keys,
        }
    }

    async fn read_page_once(&self, statement: &PageStatement) -> Result<Vec<String>, SourceError> {
        match self.run_with_retry(statement).await {
            Err(error) if error.is_encoding_error() => {
                let limit = 2 * (self.database().statement_timeout() + TIMEOUT_MARGIN);
                let reading = read_representable_keys(self, statement);
                let ended = tokio::time::timeout(limit, reading).await;
                ended.unwrap_or(Err(SourceError::Timeout))
            }
            keys => keys,
        }
    }

    /// Refuses further pages.
    pub(super) fn stop_pages(&self) {
        self.pages.all.running.close();
    }
}

fn is_stopping(_: AcquireError) -> SourceError {
    SourceError::Unavailable("larder is stopping".into())
}

struct PageStatement {
    resource: Arc<Resource>,
    page: Page,
    persistent: bool,
    /// PostgreSQL refuses the statement if row security is not as it was when the resource was checked.
    checked: bool,
}

impl PageStatement {
    fn row_security(&self) -> Option<&RowSecurity> {
        let row_security = self.resource.row_security.as_ref();
        row_security.filter(|_| self.checked)
    }

    /// The same statement without the check of row security. Its plan is not kept.
    fn unchecked(&self) -> Self {
        Self {
            resource: Arc::clone(&self.resource),
            page: self.page.clone(),
            persistent: false,
            checked: false,
        }
    }

    /// Binds the parameters that all statements of a page begin with: the key before the first one, the filters, the
    /// limit.
    fn bind<'q>(&self, sql: &'q ProvedSql) -> Query<'q, Postgres, PgArguments> {
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

impl LoaderStatement for PageStatement {
    type Found = Vec<String>;

    async fn run(&self, session: &mut Session) -> Result<Vec<String>, SourceError> {
        let sql = self.page.sql(&self.resource, self.row_security());
        let rows = session.fetch_checked(self.bind(&sql), sql.proof()).await?;
        let keys = rows.first().map(|row| row.try_get("keys")).transpose()?;
        Ok(keys.unwrap_or_default())
    }
}
