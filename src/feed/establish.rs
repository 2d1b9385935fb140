//! What comes before the feed follows a database. Is it the primary? Do the resources fit it? What is missing is
//! installed.
//!
//! One attempt (`Establishing::attempt`) inspects the database in one snapshot. Something that is missing is
//! installed, and the next attempt inspects it again. If nothing is missing, the definitions and fingerprints are read
//! in the same snapshot, so that the fingerprints which every later pass compares belong to the catalogue that was
//! checked.

pub(super) mod inspection;
pub(super) mod script;

use std::collections::BTreeMap;
use std::sync::Arc;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Postgres, Transaction};

use crate::feed::FeedConfig;
use crate::feed::ddl::DdlError;
use crate::feed::definition::{Definitions, Fingerprints, WatchedTables};
use crate::feed::establish::inspection::{CheckedResource, Inspection, Missing, plan_documents};
use crate::feed::install::{self, PendingTriggers};
use crate::feed::messages::await_invalidation_messages;
use crate::feed::position::Position;
use crate::feed::restore::{DatabaseState, InstallDelay, RestoreDetector};
use crate::feed::rights::rights;
use crate::feed::schema::{self, Part};
use crate::feed::triggers::{Logger, MissingTriggers};
use crate::resource::ResourceId;
use crate::resource::definition::{Mistake, ResourceDefinition};
use crate::source::SourceError;
use crate::source::rights::{Right, with_grants};
use crate::source::session::{Identity, read_identity, read_server_identity};

/// Attempts, each of which inspects the database. Schema, epoch, functions and triggers are installed between them, and
/// another larder may install or remove at the same time.
const ATTEMPTS_MAX: usize = 5;

/// Why a database can't be followed.
#[derive(Debug, thiserror::Error)]
pub enum EstablishError {
    /// PostgreSQL is out of reach, a standby, or refuses a statement.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Schema or triggers are missing, and `install = "manual"`.
    #[error(
        "larder's schema or triggers are missing or differ; run `larder install` as the owner of the tables"
    )]
    NotInstalled,
    /// A later version of larder has created schema larder, and this one can't use it. It changes nothing.
    #[error(
        "schema larder has version {0} of a later larder, and this larder ({version}) knows version {known}: start the \
         later one, or run its `larder uninstall` before this one is started",
        version = env!("CARGO_PKG_VERSION"),
        known = schema::VERSION
    )]
    LaterSchema(i32),
    /// Other transactions hold locks that are needed to install or to remove. Says which transactions.
    #[error("waiting for {0}")]
    Locked(String),
    /// Resources do not fit the database.
    #[error("the configuration does not fit the database")]
    Unfit(Vec<Mistake>),
}

impl From<DdlError> for EstablishError {
    fn from(error: DdlError) -> Self {
        match error {
            DdlError::Locked(holders) => Self::Locked(holders),
            DdlError::Source(error) => Self::Source(error),
        }
    }
}

/// What establishing may do and must find.
#[derive(Clone, Copy, Debug)]
pub(super) struct EstablishOptions {
    /// Install what is missing.
    pub(super) install: bool,
    /// Fail if a resource does not fit the database that has never fitted it.
    pub(super) new_must_fit: bool,
}

/// A database that is ready to be followed.
#[derive(Debug)]
pub(super) struct Established {
    pub(super) identity: Identity,
    /// One for each configured resource.
    pub(super) resources: Vec<CheckedResource>,
    /// The tables that lack triggers; resources that need those are uncached.
    pub(super) pending: Vec<PendingTriggers>,
    /// Resources that do not fit may fit soon: a table was replaced, maybe by a restore.
    pub(super) may_fit_soon: bool,
    pub(super) definitions: Definitions,
    pub(super) fingerprints: Fingerprints,
    /// The names of the functions that log for these resources.
    pub(super) loggers: Vec<String>,
    /// The snapshot in which all this was read.
    pub(super) position: Position,
}

/// How establishing ended.
pub(super) enum EstablishOutcome {
    Established(Box<Established>),
    /// Schema larder is not complete and may not be installed yet, or it is of a later version, so the database can't be
    /// followed.
    Delayed(Box<Delay>),
}

/// A database that can't be followed yet.
pub(super) struct Delay {
    /// The server and the database, without the identity of an epoch.
    pub(super) identity: Identity,
    /// One for each configured resource.
    pub(super) resources: Vec<CheckedResource>,
    /// What the resources were read from.
    pub(super) watched: WatchedTables,
    pub(super) fingerprints: Fingerprints,
    /// For the log and the status.
    pub(super) reason: String,
}

/// Checks the database and installs what is missing, if `options` allow that and `restore` does not ask for a delay.
///
/// # Errors
/// [`EstablishError::NotInstalled`] also if [`ATTEMPTS_MAX`] attempts were not enough.
pub(super) async fn establish(
    connection: &mut PgConnection,
    definitions: &[ResourceDefinition],
    config: &FeedConfig,
    options: EstablishOptions,
    restore: Option<&mut RestoreDetector>,
) -> Result<EstablishOutcome, EstablishError> {
    let mut establishing = Establishing {
        definitions,
        config,
        options,
        restore,
        tables: inspection::table_names(definitions),
        hashes: definitions.iter().map(ResourceDefinition::hash).collect(),
        rights: rights(&[], config.answers),
        served: Vec::new(),
        pending: None,
    };
    for attempts_left in (0..ATTEMPTS_MAX).rev() {
        match establishing.attempt(connection, attempts_left).await {
            Ok(Some(outcome)) => return Ok(outcome),
            Ok(None) => {}
            // A function that reads the newest catalogue did not find what the snapshot shows.
            Err(EstablishError::Source(error))
                if attempts_left > 0 && error.is_altered() && !error.is_privilege_error() => {}
            Err(EstablishError::Source(error)) => {
                let (rights, otherwise) =
                    (establishing.rights, "`larder check` names what is missing");
                return Err(with_grants(connection, error, rights, otherwise)
                    .await
                    .into());
            }
            Err(error) => return Err(error),
        }
    }
    Err(EstablishError::NotInstalled)
}

/// How `definitions` fit the database, as [`establish`] finds it. Installs nothing.
pub(super) async fn check_fit(
    connection: &mut PgConnection,
    definitions: &[ResourceDefinition],
    config: &FeedConfig,
) -> Result<Vec<CheckedResource>, SourceError> {
    let (mut snapshot, _) = begin_snapshot(connection).await?;
    let inspection = Inspection::read(&mut snapshot, definitions, config).await?;
    snapshot.rollback().await?;
    plan_documents(connection, inspection.resources).await
}

/// What establishing remembers from one attempt to the next.
struct Establishing<'e> {
    definitions: &'e [ResourceDefinition],
    config: &'e FeedConfig,
    options: EstablishOptions,
    restore: Option<&'e mut RestoreDetector>,
    /// The tables that the definitions name.
    tables: Vec<String>,
    /// Of the definitions, in their order.
    hashes: Vec<String>,
    /// What larder's role needs, as far as that is known.
    rights: Vec<Right>,
    /// Hashes of definitions that have fitted this database before. They are kept here, since an attempt that creates
    /// schema larder again empties their table.
    served: Vec<String>,
    /// The tables without triggers after the attempt that created triggers.
    pending: Option<Vec<PendingTriggers>>,
}

impl Establishing<'_> {
    /// Inspects the database, and installs something that is missing. `None` if it has to be inspected again.
    async fn attempt(
        &mut self,
        connection: &mut PgConnection,
        attempts_left: usize,
    ) -> Result<Option<EstablishOutcome>, EstablishError> {
        let (mut snapshot, position) = begin_snapshot(connection).await?;
        let inspection = Inspection::read(&mut snapshot, self.definitions, self.config).await?;
        self.rights = rights(&inspection.fitting(), self.config.answers);
        if self.options.new_must_fit {
            let served = schema::served(&mut snapshot, &self.hashes).await?;
            self.served.extend(served);
            self.require_new(&inspection.resources)?;
        }
        let missing =
            Missing::read(&mut snapshot, &inspection.loggers, self.config.answers).await?;
        let server = read_server_identity(&mut snapshot).await?;
        let delay = self
            .install_delay(&mut snapshot, &server, &inspection, &missing)
            .await?;
        let definitions = Definitions::read(&mut snapshot, inspection.watched_tables()).await?;
        let mut fingerprints = definitions.fingerprints(&mut snapshot).await?;
        let schema_delay = self.schema_delay(delay.as_ref(), &inspection, &missing)?;
        if schema_delay.is_some() || self.installs(&missing) {
            snapshot.rollback().await.map_err(SourceError::from)?;
            let install = self.install(connection, missing, &inspection.loggers, delay.as_ref());
            let reason = match schema_delay {
                Some(reason) => Some(reason),
                None => install
                    .await?
                    .map(|holders| format!("waiting for {holders}")),
            };
            let delay = reason.map(|reason| Delay {
                identity: server,
                resources: inspection.resources,
                watched: definitions.watched,
                fingerprints,
                reason,
            });
            return Ok(delay.map(|delay| EstablishOutcome::Delayed(Box::new(delay))));
        }
        let identity = read_identity(&mut snapshot).await?;
        if identity.nonce.is_nil() {
            snapshot.rollback().await.map_err(SourceError::from)?;
            return Ok(None);
        }
        let pending = self.pending(missing.triggers);
        if delay.is_none() && pending.is_empty() {
            self.record_complete(&inspection);
        }
        let read_fingerprints = fingerprints.clone();
        inspection.clear_differing(&mut fingerprints);
        snapshot.commit().await.map_err(SourceError::from)?;
        await_invalidation_messages(connection).await?;
        let loggers = inspection.logger_names();
        let resources = inspection.resources;
        let planning = plan_unaltered(connection, resources, &definitions, &read_fingerprints);
        let (mut resources, is_altered) = planning.await?;
        if is_altered && attempts_left > 0 {
            return Ok(None);
        }
        mark_uncached(&mut resources, &definitions.watched, &pending);
        self.require_new(&resources)?;
        Ok(Some(EstablishOutcome::Established(Box::new(Established {
            identity,
            resources,
            pending,
            may_fit_soon: delay.is_some_and(|delay| delay.is_table_replaced),
            definitions,
            fingerprints,
            loggers,
            position,
        }))))
    }

    /// Whether something is missing that this attempt installs.
    fn installs(&self, missing: &Missing) -> bool {
        let creates_triggers = self.options.install && self.pending.is_none();
        !missing.parts.is_empty() || (creates_triggers && !missing.triggers.tables.is_empty())
    }

    /// Remembers the tables as complete, by which a restore is noticed later.
    fn record_complete(&mut self, inspection: &Inspection) {
        if let Some(restore) = &mut self.restore {
            let tables: Vec<_> = inspection.loggers.iter().flat_map(Logger::tables).collect();
            restore.record_complete(&inspection.catalogue, &tables);
        }
    }

    /// Why schema larder may not be used, or not be installed yet.
    ///
    /// # Errors
    /// [`EstablishError::LaterSchema`] in a command. `serve` reads from PostgreSQL meanwhile.
    fn schema_delay(
        &self,
        delay: Option<&InstallDelay>,
        inspection: &Inspection,
        missing: &Missing,
    ) -> Result<Option<String>, EstablishError> {
        if let Some(version) = missing.later_version {
            let error = EstablishError::LaterSchema(version);
            return match &self.restore {
                None => Err(error),
                Some(_) => Ok(Some(error.to_string())),
            };
        }
        let reason = match delay.filter(|delay| delay.is_schema_damaged) {
            Some(delay) => Some(delay.reason),
            // A restore that is under way may contain schema larder itself.
            None if !missing.parts.is_empty()
                && !inspection.resources.iter().any(Result::is_ok) =>
            {
                Some("no resource fits the database")
            }
            None => None,
        };
        Ok(reason.map(str::to_owned))
    }

    /// What must not be installed yet, since a restore may be under way.
    async fn install_delay(
        &mut self,
        connection: &mut PgConnection,
        server: &Identity,
        inspection: &Inspection,
        missing: &Missing,
    ) -> Result<Option<InstallDelay>, SourceError> {
        let Some(restore) = self.restore.as_mut().filter(|_| self.options.install) else {
            return Ok(None);
        };
        let name: String = sqlx::query_scalar("select current_database()::text")
            .fetch_one(&mut *connection)
            .await?;
        restore.set_database(&format!("{} {name}", server.system));
        let fits = inspection.resources.iter().all(Result::is_ok);
        if fits && missing.parts.is_empty() && missing.triggers.tables.is_empty() {
            return Ok(None);
        }
        let without_triggers = missing.triggers.tables.iter().map(|missing| &missing.table);
        Ok(restore.delay(DatabaseState {
            catalogue: &inspection.catalogue,
            configured: &self.tables,
            without_triggers: without_triggers.collect(),
            is_schema_damaged: missing.is_schema_damaged(),
            summary: inspection.summary(connection, &missing.parts).await?,
        }))
    }

    /// Installs the parts of schema larder that are missing; if none is, functions and triggers. Returns the
    /// transactions whose locks keep it from a part.
    async fn install(
        &mut self,
        connection: &mut PgConnection,
        missing: Missing,
        loggers: &[Logger],
        delay: Option<&InstallDelay>,
    ) -> Result<Option<String>, EstablishError> {
        let Missing {
            parts, triggers, ..
        } = missing;
        if parts.is_empty() {
            let names: Vec<String> = loggers.iter().map(Logger::function_name).collect();
            let retention = self.config.retention;
            let creating = install::create_functions_and_triggers(
                connection, triggers, &names, retention, delay,
            );
            self.pending = Some(creating.await?);
            return Ok(None);
        }
        // A new epoch needs no rights on definitions.
        if !self.options.install && parts != [Part::Epoch] {
            return Err(EstablishError::NotInstalled);
        }
        for part in parts {
            match install::create_part(connection, part, self.config.answers).await {
                Err(DdlError::Locked(holders)) => return Ok(Some(holders)),
                outcome => outcome?,
            }
        }
        Ok(None)
    }

    /// The tables of `missing`, each with the reason that creating its triggers gave.
    fn pending(&self, missing: MissingTriggers) -> Vec<PendingTriggers> {
        let attempted = self.pending.as_deref().unwrap_or_default();
        let tables = missing.tables.into_iter().map(|missing| missing.table);
        tables
            .map(|table| {
                let known = attempted.iter().find(|pending| pending.table == table);
                known.cloned().unwrap_or_else(|| PendingTriggers {
                    table,
                    reason: "run `larder install` as the owner of the table".to_owned(),
                    is_waiting: false,
                })
            })
            .collect()
    }

    /// Fails if resources have to fit that have never fitted this database, and one of them does not.
    fn require_new(&self, resources: &[CheckedResource]) -> Result<(), EstablishError> {
        let must_fit = |resource: ResourceId| {
            let hash = self.hashes.get(resource.index());
            self.options.new_must_fit && hash.is_some_and(|hash| !self.served.contains(hash))
        };
        require(resources, must_fit)
    }
}

/// Plans the statements of `resources`, whose tables had these fingerprints. Returns also whether PostgreSQL refused one and
/// tables were altered meanwhile: the catalogue was read in a snapshot, and the statements are planned later.
async fn plan_unaltered(
    connection: &mut PgConnection,
    resources: Vec<CheckedResource>,
    definitions: &Definitions,
    fingerprints: &Fingerprints,
) -> Result<(Vec<CheckedResource>, bool), SourceError> {
    let fitting = resources.iter().flatten().count();
    let planned = plan_documents(connection, resources).await?;
    let is_refused = planned.iter().flatten().count() < fitting;
    let is_altered = is_refused && definitions.fingerprints(connection).await? != *fingerprints;
    Ok((planned, is_altered))
}

/// Begins a transaction of one snapshot. Returns it with that snapshot.
async fn begin_snapshot(
    connection: &mut PgConnection,
) -> Result<(Transaction<'_, Postgres>, Position), SourceError> {
    let mut transaction = connection
        .begin_with("begin isolation level repeatable read")
        .await?;
    sqlx::raw_sql("set local statement_timeout = '30s'")
        .execute(&mut *transaction)
        .await?;
    let snapshot: String = sqlx::query_scalar("select pg_current_snapshot()::text")
        .fetch_one(&mut *transaction)
        .await?;
    Ok((transaction, Position::new(&snapshot)))
}

/// Fails with all mistakes of the resources that `must_fit` and do not.
fn require(
    resources: &[CheckedResource],
    must_fit: impl Fn(ResourceId) -> bool,
) -> Result<(), EstablishError> {
    let resources = ResourceId::in_order().zip(resources);
    let mistakes: Vec<Mistake> = resources
        .filter(|(id, _)| must_fit(*id))
        .filter_map(|(_, resource)| resource.as_ref().err())
        .flatten()
        .cloned()
        .collect();
    if mistakes.is_empty() {
        Ok(())
    } else {
        Err(EstablishError::Unfit(mistakes))
    }
}

/// Marks the resources with tables that lack triggers as uncached. Where such a table is one that a type depends on, and
/// nothing but a right or an installation is missing, the resource does not fit.
fn mark_uncached(
    resources: &mut [CheckedResource],
    watched: &WatchedTables,
    pending: &[PendingTriggers],
) {
    let mut reasons: BTreeMap<ResourceId, String> = BTreeMap::new();
    for (resource, oid) in watched.resources.iter().zip(&watched.oids) {
        let lacking = pending
            .iter()
            .find(|pending| i64::from(pending.table.oid) == *oid);
        let (
            Some(PendingTriggers {
                table,
                reason,
                is_waiting,
            }),
            Ok(id),
        ) = (lacking, ResourceId::try_from(*resource))
        else {
            continue;
        };
        let reason = format!("{table} lacks triggers of larder: {reason}");
        let place = match resources.get(id.index()) {
            Some(Ok(resource)) if !is_waiting && resource.type_tables.contains(table) => {
                Some(resource.place.clone())
            }
            _ => None,
        };
        if let (Some(place), Some(checked)) = (place, resources.get_mut(id.index())) {
            let message =
                format!("the text of a type of its columns depends on {table}, and {reason}");
            *checked = Err(vec![Mistake { place, message }]);
        } else {
            reasons.entry(id).or_insert(reason);
        }
    }
    for (resource, reason) in reasons {
        if let Some(Ok(resource)) = resources.get_mut(resource.index()) {
            Arc::make_mut(resource).uncached.get_or_insert(reason);
        }
    }
}
