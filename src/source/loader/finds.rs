//! Searches: which documents exist now, perhaps of one owner. They read no document, and are answered by PostgreSQL
//! alone.

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::{AssertSqlSafe, Row};

use crate::resource::Resource;
use crate::resource::find::Find;
use crate::resource::row_security::RowSecurity;
use crate::source::SourceError;
use crate::source::loader::connection::LoaderStatement;
use crate::source::loader::statement::bind_keys;
use crate::source::loader::{Loader, Shared};
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
        let shared = Arc::clone(&self.shared);
        let place = shared.finds.place(&resource)?;
        let finding = tokio::spawn(async move {
            let repeated = shared.database().statement_timeout();
            let mut read = place.begin(repeated).await?;
            loop {
                let turn = read.turn().await?;
                let found = shared.find(&resource, &find).await;
                drop(turn);
                match found {
                    Err(error) if error.is_lock_timeout() => read.pause().await?,
                    found => return found,
                }
            }
        });
        finding
            .await
            .map_err(|error| SourceError::Unexpected(error.to_string()))?
    }
}

impl Shared {
    /// Runs the statement. If the database's encoding can't represent a text or a key, halves of the texts are looked for,
    /// down to the one that leads to no document.
    async fn find(
        &self,
        resource: &Resource,
        find: &Find,
    ) -> Result<Vec<Option<String>>, SourceError> {
        let mut found = Vec::with_capacity(find.texts.len());
        // A stack: the last part is looked for next.
        let mut parts = vec![find.clone()];
        while let Some(mut part) = parts.pop() {
            match self.find_part(resource, &part).await {
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

    async fn find_part(
        &self,
        resource: &Resource,
        find: &Find,
    ) -> Result<Vec<Option<String>>, SourceError> {
        let checked = FindStatement {
            resource,
            find,
            checked: true,
            persistent: !self.database().pooler(),
        };
        match self.run_with_retry(&checked).await {
            Err(error) if checked.row_security().is_some() && error.is_row_security_error() => {
                let unchecked = FindStatement {
                    checked: false,
                    persistent: false,
                    ..checked
                };
                self.run_with_retry(&unchecked).await
            }
            found => found,
        }
    }
}

struct FindStatement<'f> {
    resource: &'f Resource,
    find: &'f Find,
    /// PostgreSQL refuses the statement if row security is not as it was when the resource was checked.
    checked: bool,
    persistent: bool,
}

impl FindStatement<'_> {
    fn row_security(&self) -> Option<&RowSecurity> {
        let row_security = self.resource.row_security.as_ref();
        row_security.filter(|_| self.checked)
    }
}

impl LoaderStatement for FindStatement<'_> {
    type Found = Vec<Option<String>>;

    async fn run(&self, session: &mut Session) -> Result<Vec<Option<String>>, SourceError> {
        let Self { resource, find, .. } = self;
        let sql = find.sql(resource, self.row_security());
        let texts: Vec<&str> = find.texts.iter().map(String::as_str).collect();
        let query = sqlx::query(AssertSqlSafe(sql.as_str())).persistent(self.persistent);
        let mut query = bind_keys(query, find.shape(resource), &texts)?;
        if let Some(owner) = &find.owner {
            query = query.bind(owner.as_str());
        }
        let rows = session.fetch_checked(query, sql.proof()).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let [found, keys] = ["texts", "keys"].map(|column| row.try_get(column));
        let found: Vec<String> = Option::unwrap_or_default(found?);
        let keys: Vec<String> = Option::unwrap_or_default(keys?);
        let mut keys: HashMap<String, String> = found.into_iter().zip(keys).collect();
        Ok(texts.into_iter().map(|text| keys.remove(text)).collect())
    }
}
