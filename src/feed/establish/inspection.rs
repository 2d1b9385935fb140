//! What one snapshot of the database shows: how the resources fit the catalogue, and what larder has yet to install.

use std::collections::BTreeMap;
use std::sync::Arc;

use sqlx::postgres::PgConnection;
use tokio::time::Instant;

use crate::feed::FeedConfig;
use crate::feed::definition::{Definitions, Fingerprints, WatchedTables};
use crate::feed::schema::{self, MissingParts, Part};
use crate::feed::triggers::{self, Logger, MissingTriggers, loggers, read_installed};
use crate::resource::Resource;
use crate::resource::catalogue::Catalogue;
use crate::resource::condition::WrittenCondition;
use crate::resource::definition::{
    ChildDefinition, LookupDefinition, Mistake, ResourceDefinition, RowDefinition,
};
use crate::resource::resolve::resolve;
use crate::resource::row_security::RowSecurity;
use crate::source::SourceError;
use crate::source::catalogue::conditions::{plan_conditions, read_conditions};
use crate::source::catalogue::read_catalogue;
use crate::source::loader::documents_query;
use crate::source::rights::{table_rights, with_grants};

/// Whether there are signs of a restore: pg_restore itself, or a statement that takes long in one. Not every restore
/// shows one of them.
const RESTORE_SIGNS_SQL: &str = "\
    select exists (select from pg_stat_activity where datname = current_database() and application_name = 'pg_restore') \
      or exists (select from pg_stat_progress_create_index where datname = current_database()) \
      or exists (select from pg_stat_progress_copy where datname = current_database())";

/// A configured resource that fits the database, or what is wrong with it.
pub(in crate::feed) type CheckedResource = Result<Arc<Resource>, Vec<Mistake>>;

/// The configured resources, checked against the catalogue.
pub(in crate::feed) struct Inspection {
    /// In the order of the configuration.
    pub(in crate::feed) resources: Vec<CheckedResource>,
    pub(in crate::feed) catalogue: Catalogue,
    /// The loggers that the fitting resources need.
    pub(in crate::feed) loggers: Vec<Logger>,
}

impl Inspection {
    pub(super) async fn read(
        connection: &mut PgConnection,
        definitions: &[ResourceDefinition],
        config: &FeedConfig,
    ) -> Result<Self, SourceError> {
        let mut catalogue = read_catalogue(connection, &table_names(definitions)).await?;
        read_conditions(connection, conditions(definitions), &mut catalogue).await?;
        Ok(Self::new(definitions, catalogue, config))
    }

    /// As [`Inspection::read`], in a transaction that may be read only. There PostgreSQL can only plan conditions; it does
    /// not judge what they depend on.
    pub(in crate::feed) async fn read_only(
        connection: &mut PgConnection,
        definitions: &[ResourceDefinition],
        config: &FeedConfig,
    ) -> Result<Self, SourceError> {
        let mut catalogue = read_catalogue(connection, &table_names(definitions)).await?;
        plan_conditions(connection, conditions(definitions), &mut catalogue).await?;
        Ok(Self::new(definitions, catalogue, config))
    }

    fn new(definitions: &[ResourceDefinition], catalogue: Catalogue, config: &FeedConfig) -> Self {
        let resources: Vec<CheckedResource> = definitions
            .iter()
            .map(|definition| {
                let mut resolved = resolve(std::slice::from_ref(definition), &catalogue)?;
                resolved.pop().map(Arc::new).ok_or_else(Vec::new)
            })
            .collect();
        let loggers = loggers(&fitting(&resources), &catalogue, config);
        Self {
            resources,
            catalogue,
            loggers,
        }
    }

    /// The resources that fit the database.
    pub(in crate::feed) fn fitting(&self) -> Vec<&Resource> {
        fitting(&self.resources)
    }

    /// The names of the logging functions, in schema larder.
    pub(in crate::feed) fn logger_names(&self) -> Vec<String> {
        self.loggers.iter().map(Logger::function_name).collect()
    }

    /// The tables of each fitting resource, with all their descendants.
    pub(super) fn watched_tables(&self) -> WatchedTables {
        let mut watched = WatchedTables::default();
        for (index, resource) in self.resources.iter().enumerate() {
            let Ok(resource) = resource else {
                continue;
            };
            // By oid, since a table that a resource names may also be a descendant of another one.
            let mut tables: BTreeMap<i64, bool> = BTreeMap::new();
            for name in resource.tables() {
                tables.insert(i64::from(name.oid), true);
                let table = self.catalogue.table(name);
                for part in table.iter().flat_map(|table| &table.descendants) {
                    tables.entry(i64::from(part.name.oid)).or_insert(false);
                }
            }
            for table in &resource.type_tables {
                tables.entry(i64::from(table.oid)).or_insert(false);
            }
            let number = i32::try_from(index).unwrap_or(i32::MAX);
            for (oid, is_named) in tables {
                watched.resources.push(number);
                watched.oids.push(oid);
                watched.named.push(is_named);
            }
        }
        watched
    }

    /// A text of all that a restore would change of the tables and of schema larder, to be compared with a later one.
    pub(super) async fn summary(
        &self,
        connection: &mut PgConnection,
        missing: &[Part],
    ) -> Result<String, SourceError> {
        let tables = self.catalogue.tables.iter();
        let mut tables: Vec<(&String, u32)> =
            tables.map(|(name, table)| (name, table.name.oid)).collect();
        tables.sort_unstable();
        let resources = self.resources.iter();
        let unfit: Vec<&Vec<Mistake>> = resources
            .filter_map(|resource| resource.as_ref().err())
            .collect();
        let definitions = Definitions::read(connection, self.watched_tables()).await?;
        let fingerprints = definitions.fingerprints(connection).await?;
        let is_restoring: bool = sqlx::query_scalar(RESTORE_SIGNS_SQL)
            .fetch_one(connection)
            .await?;
        // The time makes the text another one: while a restore builds a large index, nothing else changes.
        let now = is_restoring.then(Instant::now);
        Ok(format!(
            "{tables:?} {unfit:?} {missing:?} {fingerprints:?} {now:?}"
        ))
    }

    /// Empties the fingerprints of resources that were checked in another state of row security than the fingerprint
    /// has, so that the next pass has them checked again. Two statements of one snapshot may see different attributes
    /// and memberships of roles.
    pub(super) fn clear_differing(&self, fingerprints: &mut Fingerprints) {
        for (id, fingerprint) in fingerprints {
            let resource = self.resources.get(id.index());
            let row_security = resource
                .and_then(|resource| resource.as_ref().ok())
                .and_then(|resource| resource.row_security.as_ref());
            let checked = row_security.map(RowSecurity::state).unwrap_or_default();
            let (_, found) = fingerprint.split_once(' ').unwrap_or_default();
            if found != checked {
                fingerprint.clear();
            }
        }
    }
}

/// The conditions of all rows.
fn conditions(definitions: &[ResourceDefinition]) -> Vec<WrittenCondition> {
    definitions
        .iter()
        .flat_map(|definition| definition.row.conditions(&definition.table.value))
        .collect()
}

fn fitting(resources: &[CheckedResource]) -> Vec<&Resource> {
    let fitting = resources.iter().flatten();
    fitting.map(|resource| &**resource).collect()
}

/// What of larder's is not installed.
pub(super) struct Missing {
    /// In the order in which they are created.
    pub(super) parts: Vec<Part>,
    /// The version of schema larder, if it is of a later larder.
    pub(super) later_version: Option<i32>,
    pub(super) triggers: MissingTriggers,
}

impl Missing {
    pub(super) async fn read(
        connection: &mut PgConnection,
        loggers: &[Logger],
        answers: bool,
    ) -> Result<Self, SourceError> {
        let parts = schema::missing(connection, answers).await?;
        Self::with_parts(connection, loggers, parts).await
    }

    /// As [`Missing::read`], but [`Part::Epoch`] is not searched for, since the role may not read the log.
    pub(super) async fn read_objects(
        connection: &mut PgConnection,
        loggers: &[Logger],
        answers: bool,
    ) -> Result<Self, SourceError> {
        let parts = schema::missing_objects(connection, answers).await?;
        Self::with_parts(connection, loggers, parts).await
    }

    async fn with_parts(
        connection: &mut PgConnection,
        loggers: &[Logger],
        MissingParts {
            parts,
            later_version,
        }: MissingParts,
    ) -> Result<Self, SourceError> {
        let installed = read_installed(connection, loggers).await?;
        let triggers = triggers::missing(loggers, &installed);
        Ok(Self {
            parts,
            later_version,
            triggers,
        })
    }

    /// Whether schema larder or its log lacks something, other than because an older version of larder created it.
    pub(super) fn is_schema_damaged(&self) -> bool {
        let is_harmless = |part: &Part| matches!(part, Part::Epoch | Part::Answers);
        let is_older = self.parts.contains(&Part::Schema { older: true });
        !is_older && !self.parts.iter().all(is_harmless)
    }
}

/// Has PostgreSQL plan each resource's statement, so that a missing privilege is found now and not by the first
/// request. A resource whose statement PostgreSQL refuses does not fit.
pub(super) async fn plan_documents(
    connection: &mut PgConnection,
    resources: Vec<CheckedResource>,
) -> Result<Vec<CheckedResource>, SourceError> {
    let mut planned = Vec::with_capacity(resources.len());
    for resource in resources {
        let Ok(fitting) = resource else {
            planned.push(resource);
            continue;
        };
        let outcome = documents_query(&fitting, &fitting.documents_sql, &[], 0)?
            .persistent(false)
            .fetch_all(&mut *connection)
            .await;
        planned.push(match outcome.map_err(SourceError::from) {
            Ok(_) => Ok(fitting),
            // Another transaction alters a table. If a privilege is missing, requests will be refused.
            Err(error) if error.is_lock_timeout() => Ok(fitting),
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => {
                let otherwise = "`larder check` names what is missing";
                let rights = table_rights(&[fitting.as_ref()]);
                match with_grants(connection, error, rights, otherwise).await {
                    SourceError::Refused { code, message } => Err(vec![Mistake {
                        place: fitting.place.clone(),
                        message: format!("PostgreSQL refuses its documents with {code}: {message}"),
                    }]),
                    error => return Err(error),
                }
            }
        });
    }
    Ok(planned)
}

/// The tables that the definitions name, each once.
pub(super) fn table_names(definitions: &[ResourceDefinition]) -> Vec<String> {
    fn collect(row: &RowDefinition, names: &mut Vec<String>) {
        for ChildDefinition { table, row, .. } in &row.children {
            names.push(table.value.clone());
            collect(row, names);
        }
        for LookupDefinition { table, row, .. } in &row.lookups {
            names.push(table.value.clone());
            collect(row, names);
        }
    }
    let mut names = Vec::new();
    for definition in definitions {
        names.push(definition.table.value.clone());
        collect(&definition.row, &mut names);
    }
    names.sort_unstable();
    names.dedup();
    names
}
