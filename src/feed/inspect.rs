//! What `larder check` asks: whether the resources fit the database, and what larder has not installed or may not do.

use std::sync::Arc;

use sqlx::postgres::PgConnection;

use crate::feed::FeedConfig;
use crate::feed::establish::EstablishError;
use crate::feed::establish::inspection::Inspection;
use crate::feed::logger_retention::need_sql;
use crate::feed::rights::{request_rights, rights};
use crate::feed::schema::{MissingParts, missing_objects};
use crate::feed::triggers::{self, MissingTriggers, read_installed};
use crate::resource::Resource;
use crate::resource::catalogue::Catalogue;
use crate::resource::definition::{Mistake, ResourceDefinition};
use crate::source::SourceError;
use crate::source::rights::{Right, lacking_of, types_of_filters};

/// A database as the configuration sees it, in one snapshot.
#[derive(Debug, Default)]
pub struct Inspected {
    /// The resources that fit it.
    pub resources: Vec<Arc<Resource>>,
    /// Why others do not.
    pub mistakes: Vec<Mistake>,
    /// What is not installed, or not as this version installs it.
    pub not_installed: Vec<Lack>,
    /// Privileges that larder's role lacks, and those that the role of requests lacks if it is another one.
    pub not_allowed: Vec<Lack>,
    /// Privileges that larder's role lacks, and that only indexes of filters need.
    pub not_needed: Vec<Lack>,
}

/// Checks `definitions` against the database behind `connection`, which is in a transaction that may be read only. Returns
/// the outcome of each, in order, with the catalogue.
///
/// # Errors
/// PostgreSQL can't be reached or refuses a statement.
pub(crate) async fn read_resources(
    connection: &mut PgConnection,
    definitions: &[ResourceDefinition],
    config: &FeedConfig,
) -> Result<(Vec<Result<Arc<Resource>, Vec<Mistake>>>, Catalogue), SourceError> {
    let inspection = Inspection::read_only(connection, definitions, config).await?;
    Ok((inspection.resources, inspection.catalogue))
}

/// Something that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// Where it is missing: a table `schema.name`, `schema larder`, a schema, a sequence.
    pub object: String,
    /// A sentence for the user.
    pub reason: String,
    /// The statements that add it; empty if none can.
    pub sql: String,
}

/// Inspects the database behind `connection`, which is in a transaction that may be read only. `requesting` is the role over
/// `database.url`, if the connection is to `listen_url`.
///
/// # Errors
/// PostgreSQL can't be reached or refuses a statement.
pub async fn inspect(
    connection: &mut PgConnection,
    definitions: &[ResourceDefinition],
    config: &FeedConfig,
    requesting: Option<&str>,
) -> Result<Inspected, SourceError> {
    let inspection = Inspection::read_only(connection, definitions, config).await?;
    let missing = missing_objects(connection, config.answers).await?;
    let installed = read_installed(connection, &inspection.loggers).await?;
    let triggers = triggers::missing(&inspection.loggers, &installed);
    let role: String = sqlx::query_scalar("select current_user::text")
        .fetch_one(&mut *connection)
        .await?;
    let fitting = inspection.fitting();
    let needed = rights(&fitting, config.answers);
    let lacked = lacking_of(connection, &role, needed, &fitting).await?;
    let mut lacks = not_allowed(lacked, &role, "");
    if let Some(requesting) = requesting.filter(|requesting| *requesting != role) {
        let needed = request_rights(&fitting, config.answers);
        let lacked = lacking_of(connection, requesting, needed, &fitting).await?;
        lacks.extend(not_allowed(lacked, requesting, " (over database.url)"));
    }
    let unused = types_of_filters(connection, &role, &fitting).await?;
    let not_needed = unused.into_iter().map(|right| Lack {
        reason: format!(
            "larder's role {role} lacks {}, which nothing needs but the index of a filter by a type there",
            right.privilege
        ),
        sql: right.sql(&role),
        object: right.object,
    });
    let not_needed = not_needed.collect();
    let loggers = inspection.logger_names();
    Ok(Inspected {
        not_allowed: lacks,
        not_needed,
        not_installed: not_installed(missing, triggers, &loggers, config),
        mistakes: inspection
            .resources
            .iter()
            .filter_map(|resource| resource.as_ref().err())
            .flatten()
            .cloned()
            .collect(),
        resources: inspection.resources.into_iter().flatten().collect(),
    })
}

/// The privileges that `role` lacks. `over` says by which connection larder has it, if that has to be said.
fn not_allowed(lacked: Vec<Right>, role: &str, over: &str) -> Vec<Lack> {
    let lacked = lacked.into_iter().map(|right| Lack {
        reason: format!("larder's role {role}{over} lacks {}", right.privilege),
        sql: right.sql(role),
        object: right.object,
    });
    lacked.collect()
}

fn not_installed(
    missing: MissingParts,
    triggers: MissingTriggers,
    loggers: &[String],
    config: &FeedConfig,
) -> Vec<Lack> {
    let in_schema = |reason: String, sql: String| Lack {
        object: "schema larder".to_owned(),
        reason,
        sql,
    };
    if let Some(version) = missing.later_version {
        let reason = EstablishError::LaterSchema(version).to_string();
        return vec![in_schema(reason, String::new())];
    }
    let parts = missing.parts.into_iter();
    let parts = parts.map(|part| in_schema(part.lack().to_owned(), part.sql()));
    let mut lacks: Vec<Lack> = parts.collect();
    if !triggers.functions.is_empty() {
        lacks.push(in_schema(
            "functions that the triggers of these resources call are missing or differ".to_owned(),
            triggers.functions + &need_sql(loggers, config.retention),
        ));
    }
    let tables = triggers.tables.into_iter();
    lacks.extend(tables.map(|lacking| Lack {
        object: lacking.table.to_string(),
        reason: "triggers of larder are missing, disabled or differ, so changes of this table are not noticed"
            .to_owned(),
        sql: lacking.sql,
    }));
    lacks
}
