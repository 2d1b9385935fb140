//! Searches: which documents exist now, perhaps of one owner. PostgreSQL alone answers them.

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres, Row};

use crate::resource::Resource;
use crate::resource::find::Find;
use crate::resource::proof::ProvedSql;
use crate::resource::row_security::RowSecurity;
use crate::source::SourceError;
use crate::source::loader::connection::LoaderStatement;
use crate::source::loader::limits::LimitedRead;
use crate::source::loader::statement::{bind_keys, read_only_document};
use crate::source::loader::{LoadedDocument, Loader, Shared};
use crate::source::session::Session;

impl Loader {
    /// The keys of the documents that are looked for, in the order of the texts; `None` for texts without a document.
    ///
    /// Cancel safe: the statement runs in a task of its own, which no request cancels.
    /// # Errors
    /// [`SourceError::Overloaded`] if too many searches wait; else the error of the statement.
    pub async fn find(
        &self,
        resource: Arc<Resource>,
        find: Find,
    ) -> Result<Vec<Option<String>>, SourceError> {
        let place = self.shared.finds.place(&resource)?;
        let read = KeysOf { resource, find };
        self.run_limited(place, read).await
    }

    /// The document of the only text that is looked for, with its key.
    ///
    /// Cancel safe, as [`Loader::find`].
    /// # Errors
    /// As [`Loader::find`]; [`SourceError::Ambiguous`] if there are several documents.
    pub async fn read_found(
        &self,
        resource: Arc<Resource>,
        find: Find,
    ) -> Result<Option<(String, LoadedDocument)>, SourceError> {
        let place = self.shared.finds.place(&resource)?;
        let read = DocumentOf { resource, find };
        self.run_limited(place, read).await
    }
}

/// A search for keys.
struct KeysOf {
    resource: Arc<Resource>,
    find: Find,
}

impl LimitedRead for KeysOf {
    type Found = Vec<Option<String>>;

    /// If the database's encoding can't represent a text or a key, halves of the texts are looked for, down to the one
    /// that leads to no document.
    async fn read(&self, shared: &Shared) -> Result<Vec<Option<String>>, SourceError> {
        let mut found = Vec::with_capacity(self.find.texts.len());
        // A stack: the last part is looked for next.
        let mut parts = vec![self.find.clone()];
        while let Some(mut part) = parts.pop() {
            match shared.run_find(&self.resource, &part, KeysStatement).await {
                Ok(keys) => found.extend(keys),
                Err(error) if !error.is_encoding_error() => return Err(error),
                Err(_) if part.texts.len() > 1 => {
                    let texts = part.texts.split_off(part.texts.len() / 2);
                    let second = Find {
                        texts,
                        ..part.clone()
                    };
                    parts.extend([second, part]);
                }
                Err(_) => found.push(None),
            }
        }
        Ok(found)
    }
}

/// A search for the document of one text.
struct DocumentOf {
    resource: Arc<Resource>,
    find: Find,
}

impl LimitedRead for DocumentOf {
    type Found = Option<(String, LoadedDocument)>;

    async fn read(&self, shared: &Shared) -> Result<Self::Found, SourceError> {
        shared
            .run_find(&self.resource, &self.find, DocumentStatement)
            .await
    }
}

impl Shared {
    /// Runs a `statement`; without the check of row security if that fails.
    async fn run_find<'f, S: LoaderStatement>(
        &self,
        resource: &'f Resource,
        find: &'f Find,
        statement: impl Fn(FindStatement<'f>) -> S,
    ) -> Result<S::Found, SourceError> {
        let row_security = resource.checked_row_security();
        let checked = FindStatement {
            resource,
            find,
            row_security,
            persistent: resource.may_keep_plans() && !self.database().pooler(),
            document_bytes_max: self.document_bytes_max,
        };
        let found = self.run_with_retry(&statement(checked)).await;
        match found {
            Err(error) if row_security.is_some() && error.is_row_security_error() => {
                let unchecked = FindStatement {
                    row_security: None,
                    persistent: false,
                    ..checked
                };
                self.run_with_retry(&statement(unchecked)).await
            }
            found => found,
        }
    }
}

/// What both statements have in common.
#[derive(Clone, Copy)]
struct FindStatement<'f> {
    resource: &'f Resource,
    find: &'f Find,
    /// PostgreSQL refuses the statement unless larder's role sees this.
    row_security: Option<&'f RowSecurity>,
    persistent: bool,
    document_bytes_max: usize,
}

impl FindStatement<'_> {
    /// The statement `sql` with the parameters that both begin with: the texts and the owner.
    fn bind<'q>(
        &self,
        sql: &'q ProvedSql,
    ) -> Result<Query<'q, Postgres, PgArguments>, SourceError> {
        let Self { resource, find, .. } = self;
        let texts: Vec<&str> = find.texts.iter().map(String::as_str).collect();
        let query = sqlx::query(AssertSqlSafe(sql.as_str())).persistent(self.persistent);
        let query = bind_keys(query, find.shape(resource), &texts)?;
        Ok(match &find.owner {
            Some(owner) => query.bind(owner.clone()),
            None => query,
        })
    }
}

/// Finds keys.
struct KeysStatement<'f>(FindStatement<'f>);

impl LoaderStatement for KeysStatement<'_> {
    type Found = Vec<Option<String>>;

    async fn run(&self, session: &mut Session) -> Result<Vec<Option<String>>, SourceError> {
        let Self(statement) = self;
        let find = statement.find;
        let sql = find.sql(statement.resource, statement.row_security);
        let rows = session
            .fetch_checked(statement.bind(&sql)?, sql.proof())
            .await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let texts: Option<Vec<String>> = row.try_get("texts")?;
        let keys: Option<Vec<String>> = row.try_get("keys")?;
        let texts = texts.unwrap_or_default().into_iter();
        let mut found: HashMap<String, String> = texts.zip(keys.unwrap_or_default()).collect();
        let texts = find.texts.iter();
        Ok(texts.map(|text| found.remove(text)).collect())
    }
}

/// Reads the document of one text.
struct DocumentStatement<'f>(FindStatement<'f>);

impl LoaderStatement for DocumentStatement<'_> {
    type Found = Option<(String, LoadedDocument)>;

    async fn run(&self, session: &mut Session) -> Result<Self::Found, SourceError> {
        let Self(statement) = self;
        let resource = statement.resource;
        let sql = statement
            .find
            .documents_sql(resource, statement.row_security);
        let query = statement.bind(&sql)?;
        read_only_document(session, resource, &sql, query, statement.document_bytes_max).await
    }
}
