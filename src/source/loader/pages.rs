//! Pages of a resource's keys, in PostgreSQL's order.
//!
//! No tier knows which keys exist, so each page is read from PostgreSQL. Pages have at most half of the connections that
//! read, so that a slow list holds up no document. Lists of one resource have at most half of these.

mod stored;

use std::sync::Arc;

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres, Row};

use crate::resource::Resource;
use crate::resource::key::key_parts;
use crate::resource::page::Page;
use crate::resource::proof::{PROOF, ProvedSql};
use crate::resource::row_security::RowSecurity;
use crate::source::SourceError;
use crate::source::loader::connection::{LoaderStatement, TIMEOUT_MARGIN};
use crate::source::loader::limits::LimitedRead;
use crate::source::loader::pages::stored::read_representable_keys;
use crate::source::loader::{Loader, Shared};
use crate::source::session::Session;

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
        let shared = &self.shared;
        let place = shared.pages.place(&resource)?;
        let statement = PageStatement {
            persistent: resource.may_keep_plans() && !shared.database().pooler(),
            resource,
            page,
            checked: true,
        };
        self.run_limited(place, statement).await
    }
}

impl LimitedRead for PageStatement {
    type Found = Vec<String>;

    async fn read(&self, shared: &Shared) -> Result<Vec<String>, SourceError> {
        shared.read_page(self).await
    }
}

impl Shared {
    async fn read_page(&self, statement: &PageStatement) -> Result<Vec<String>, SourceError> {
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
            Err(error) if error.may_be_of_text() => Err(self.explain(statement, error).await),
            keys => keys,
        }
    }

    /// The error for the first text of a page that PostgreSQL can't read as a value of its column's type; if it can read them
    /// all, `error`.
    async fn explain(&self, statement: &PageStatement, error: SourceError) -> SourceError {
        for (name, value, text) in statement.page.texts(&statement.resource) {
            let sql = ProvedSql::new(&format!("select {PROOF} as proof, count({value})"));
            match self.run(&TextStatement { sql, text }).await {
                Ok(()) => {}
                Err(SourceError::Refused { .. }) => return SourceError::NoValue(name),
                Err(_) => break,
            }
        }
        error
    }
}

/// Converts a text to a value, and reads no table.
struct TextStatement {
    sql: ProvedSql,
    text: String,
}

impl LoaderStatement for TextStatement {
    type Found = ();

    async fn run(&self, session: &mut Session) -> Result<(), SourceError> {
        let query = sqlx::query(AssertSqlSafe(self.sql.as_str())).bind(self.text.as_str());
        let query = query.persistent(false);
        session.fetch_checked(query, self.sql.proof()).await?;
        Ok(())
    }
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
        let row_security = self.resource.checked_row_security();
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
    /// owner, the limit.
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
        if let Some(owner) = &self.page.owner {
            query = query.bind(owner.clone());
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
