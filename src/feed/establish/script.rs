//! The SQL of `larder install --print`.

use sqlx::postgres::PgConnection;

use crate::feed::establish::inspection::{Inspection, Missing};
use crate::feed::establish::{EstablishError, require};
use crate::feed::logger_retention::need_sql;
use crate::feed::rights::script_rights;
use crate::feed::schema::Part;
use crate::feed::{FeedConfig, ddl};
use crate::resource::definition::ResourceDefinition;
use crate::source::SourceError;
use crate::source::catalogue::conditions::read_grant;
use crate::source::rights::{lacking_of, types_of_filters};

/// A script that installs what is missing, and grants what the connecting role needs.
///
/// # Errors
/// All mistakes in the definitions; or PostgreSQL can't be reached or refuses a statement.
pub(in crate::feed) async fn install_script(
    connection: &mut PgConnection,
    definitions: &[ResourceDefinition],
    config: &FeedConfig,
) -> Result<String, EstablishError> {
    let mut has_condition = definitions.iter().map(|definition| &definition.row);
    let temporary = if has_condition.any(|row| !row.conditions("").is_empty()) {
        Some(read_grant(connection).await?)
    } else {
        None
    };
    // Without the privilege PostgreSQL can't check conditions, but only plan them.
    let inspection = if temporary.as_ref().is_some_and(|grant| grant.is_missing) {
        Inspection::read_only(connection, definitions, config).await?
    } else {
        Inspection::read(connection, definitions, config).await?
    };
    require(&inspection.resources, |_| true)?;
    let role: String = sqlx::query_scalar("select current_user::text")
        .fetch_one(&mut *connection)
        .await
        .map_err(SourceError::from)?;
    let missing = match Missing::read(connection, &inspection.loggers, config.answers).await {
        // The script has the grants that it lacks.
        Err(error) if error.is_privilege_error() => {
            Missing::read_objects(connection, &inspection.loggers, config.answers).await?
        }
        missing => missing?,
    };
    if let Some(version) = missing.later_version {
        return Err(EstablishError::LaterSchema(version));
    }
    let is_created = missing.parts.iter().any(|part| *part != Part::Epoch);
    let parts = missing.parts.into_iter().map(Part::sql);
    let functions = Some(missing.triggers.functions).filter(|sql| !sql.is_empty());
    let functions =
        functions.map(|sql| sql + &need_sql(&inspection.logger_names(), config.retention));
    let tables = missing.triggers.tables.into_iter();
    let needed = script_rights(&inspection.fitting(), config.answers, is_created);
    let lacking = lacking_of(connection, &role, needed, &inspection.fitting()).await?;
    let grants: String = lacking
        .iter()
        .map(|right| right.sql(&role) + "\n")
        .collect();
    let unused = types_of_filters(connection, &role, &inspection.fitting()).await?;
    let unused = unused.iter().map(|right| {
        let grant = right.sql(&role);
        format!("-- Only to filter by a type there with its index: {grant}\n")
    });
    let unused: String = unused.collect();
    let statements: Vec<String> = parts
        .chain(functions)
        .chain(tables.map(|triggers| triggers.sql))
        .chain(Some(grants).filter(|grants| !grants.is_empty()))
        .chain(
            temporary
                .filter(|grant| grant.is_missing)
                .map(|grant| format!("{};\n", grant.sql)),
        )
        .collect();
    Ok(ddl::script(&statements) + &unused)
}
