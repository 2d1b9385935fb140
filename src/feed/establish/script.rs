//! The SQL of `larder install --print`.

use sqlx::postgres::PgConnection;

use crate::feed::establish::inspection::{Inspection, Missing};
use crate::feed::establish::{EstablishError, require};
use crate::feed::logger_retention::need_sql;
use crate::feed::rights::rights;
use crate::feed::schema::Part;
use crate::feed::{FeedConfig, ddl};
use crate::resource::definition::ResourceDefinition;
use crate::source::SourceError;
use crate::source::catalogue::conditions::read_grant;

/// A script that installs what is missing, and grants what the connecting role needs.
///
/// # Errors
/// All mistakes in the definitions; or PostgreSQL can't be reached or refuses a statement.
pub(in crate::feed) async fn install_script(
    connection: &mut PgConnection,
    definitions: &[ResourceDefinition],
    config: &FeedConfig,
) -> Result<String, EstablishError> {
    let mut definitions = definitions.to_vec();
    let mut has_condition = definitions.iter().map(|definition| &definition.row);
    let temporary = if has_condition.any(|row| !row.conditions("").is_empty()) {
        Some(read_grant(connection).await?)
    } else {
        None
    };
    // Without the privilege PostgreSQL can't check conditions. What the script installs does not depend on them.
    if temporary.as_ref().is_some_and(|grant| grant.is_missing) {
        let definitions = definitions.iter_mut();
        definitions.for_each(|definition| definition.row.remove_conditions());
    }
    let inspection = Inspection::read(connection, &definitions, config).await?;
    require(&inspection.resources, |_| true)?;
    let role: String = sqlx::query_scalar("select current_user::text")
        .fetch_one(&mut *connection)
        .await
        .map_err(SourceError::from)?;
    let missing = Missing::read(connection, &inspection.loggers, config.answers).await?;
    if let Some(version) = missing.later_version {
        return Err(EstablishError::LaterSchema(version));
    }
    let parts = missing.parts.into_iter().map(Part::sql);
    let functions = Some(missing.triggers.functions).filter(|sql| !sql.is_empty());
    let functions =
        functions.map(|sql| sql + &need_sql(&inspection.logger_names(), config.retention));
    let tables = missing.triggers.tables.into_iter();
    let rights = rights(&inspection.fitting(), config.answers);
    let grants: String = rights.iter().map(|right| right.sql(&role) + "\n").collect();
    let statements: Vec<String> = parts
        .chain(functions)
        .chain(tables.map(|triggers| triggers.sql))
        .chain([grants])
        .chain(temporary.map(|grant| format!("{};\n", grant.sql)))
        .collect();
    Ok(ddl::script(&statements))
}
