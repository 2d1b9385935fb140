//! Hypothetical indexes: the extension hypopg lets PostgreSQL plan as if an index existed.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, raw_sql};

use crate::check::judge::Advice;
use crate::check::question::{PlanSettings, PlannedStatement};
use crate::check::report::Unchecked;
use crate::resource::sql::{identifier, literal};
use crate::source::SourceError;
use crate::source::plans::{Hypothetical, PlanReport, SearchPath, plan};

/// An index has to bring the cost of a statement to this share of what it is without.
const COST_SHARE_MAX: f64 = 0.5;

/// Tries indexes before they are advised.
pub(super) struct Trial<'p> {
    /// The schema of the extension, quoted.
    schema: String,
    path: &'p SearchPath,
}

impl<'p> Trial<'p> {
    /// `None` if nothing is to be tried. If the extension is missing and wanted, that is noted in `report`.
    pub(super) async fn find(
        connection: &mut PgConnection,
        wanted: Hypothetical,
        path: &'p SearchPath,
        report: &mut PlanReport,
    ) -> Result<Option<Self>, SourceError> {
        if wanted == Hypothetical::Off {
            return Ok(None);
        }
        let schema: Option<String> = sqlx::query_scalar(
            "select n.nspname::text from pg_extension e join pg_namespace n on n.oid = e.extnamespace where e.extname = 'hypopg'",
        )
        .persistent(false)
        .fetch_optional(connection)
        .await?;
        if schema.is_none() && wanted == Hypothetical::On {
            report.unchecked.push(Unchecked {
                name: "hypothetical indexes".into(),
                place: None,
                reason: "extension hypopg is missing; run `create extension hypopg;`".into(),
            });
        }
        Ok(schema.map(|schema| Self {
            schema: identifier(&schema),
            path,
        }))
    }

    /// Of the advice about a statement what halves its cost. What can't be tried stays unproven.
    pub(super) async fn proven(
        &self,
        connection: &mut PgConnection,
        statement: &str,
        advice: Vec<Advice>,
    ) -> Result<Vec<Advice>, SourceError> {
        let statement = PlannedStatement {
            sql: statement.to_owned(),
            settings: PlanSettings::Unchanged,
        };
        let mut kept = Vec::new();
        for mut advice in advice {
            let Ok(before) = plan(connection, &statement, self.path).await? else {
                kept.push(advice);
                continue;
            };
            let is_created = self.create(connection, &advice.trial).await?;
            let after = plan(connection, &statement, self.path).await;
            self.reset(connection).await?;
            match after? {
                Ok(after) if is_created => {
                    if after.cost <= before.cost * COST_SHARE_MAX {
                        advice.finding.is_unproven = false;
                        kept.push(advice);
                    }
                }
                _ => kept.push(advice),
            }
        }
        Ok(kept)
    }

    /// Whether all hypothetical indexes could be created.
    async fn create(
        &self,
        connection: &mut PgConnection,
        statements: &[String],
    ) -> Result<bool, SourceError> {
        let calls: Vec<String> = statements
            .iter()
            .map(|sql| {
                format!(
                    "select {}.hypopg_create_index({})",
                    self.schema,
                    literal(sql)
                )
            })
            .collect();
        raw_sql("savepoint larder_trial")
            .execute(&mut *connection)
            .await?;
        let created = raw_sql(AssertSqlSafe(calls.join("; ")))
            .execute(&mut *connection)
            .await;
        let end = match created {
            Ok(_) => "release savepoint larder_trial",
            Err(_) => "rollback to savepoint larder_trial; release savepoint larder_trial",
        };
        raw_sql(end).execute(connection).await?;
        Ok(created.is_ok())
    }

    async fn reset(&self, connection: &mut PgConnection) -> Result<(), SourceError> {
        let reset = format!("select {}.hypopg_reset()", self.schema);
        raw_sql(AssertSqlSafe(reset)).execute(connection).await?;
        Ok(())
    }
}
