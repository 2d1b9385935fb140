//! Before the feed follows a database: is it the primary, do the resources fit it, is everything installed?
//!
//! All that is read comes from one snapshot, so that the fingerprints compared in every later pass belong to the very
//! catalogue that was checked.

use std::collections::BTreeMap;
use std::sync::Arc;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Postgres, Transaction};
use tokio::time::Instant;

use crate::feed::FeedConfig;
use crate::feed::definition::{Definitions, Fingerprints, Watched};
use crate::feed::install::{self, InstallError, Pending};
use crate::feed::messages::await_messages;
use crate::feed::position::Position;
use crate::feed::schema::{self, Part};
use crate::feed::standing::{Hold, Seen, Standing};
use crate::feed::triggers::{self, Logger, Missing, MissingTriggers, loggers, read_installed};
use crate::resource::catalogue::Catalogue;
use crate::resource::definition::{
    ChildDefinition, LookupDefinition, Mistake, ResourceDefinition, RowDefinition,
};
use crate::resource::index::missing_indexes;
use crate::resource::resolve::resolve;
use crate::resource::row_security::RowSecurity;
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::catalogue::read_catalogue;
use crate::source::loader::documents_query;
use crate::source::session::{Identity, identity, server};

/// Looks at what is installed: schema and epoch, functions and triggers are made between them, and another larder may
/// install or remove at the same time.
const LOOKS: usize = 5;

/// Signs that a restore is under way, though not all of them show: pg_restore itself, or what takes long in one.
const RESTORING_SQL: &str = "\
    select exists (select from pg_stat_activity where datname = current_database() and application_name = 'pg_restore') \
      or exists (select from pg_stat_progress_create_index where datname = current_database()) \
      or exists (select from pg_stat_progress_copy where datname = current_database())";

/// Why a database can't be followed.
#[derive(Debug, thiserror::Error)]
pub enum EstablishError {
    /// PostgreSQL is out of reach, a standby, or refuses a statement.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The triggers are not there, and `install = "manual"`.
    #[error(
        "larder's schema or triggers are missing or differ; run `larder install` as the owner of the tables"
    )]
    NotInstalled,
    /// Others hold locks that are needed to install, or to remove.
    #[error("waiting for {0}")]
    Held(String),
    /// Resources don't fit the database.
    #[error("the configuration does not fit the database")]
    Unfit(Vec<Mistake>),
}

impl From<InstallError> for EstablishError {
    fn from(error: InstallError) -> Self {
        match error {
            InstallError::Held(who) => Self::Held(who),
            InstallError::Source(error) => Self::Source(error),
        }
    }
}

/// What establishing may do and must find.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    /// Install what is missing.
    pub(super) install: bool,
    /// Do nothing for the other resources while one does not fit that never has.
    pub(super) new_must_fit: bool,
}

/// A database that is ready to be followed.
#[derive(Debug)]
pub(super) struct Established {
    pub(super) identity: Identity,
    /// Each configured resource, or what is wrong with it.
    pub(super) resources: Vec<Result<Arc<Resource>, Vec<Mistake>>>,
    /// The tables that lack triggers; the resources that need those are uncached.
    pub(super) pending: Vec<Pending>,
    /// Why resources that do not fit may fit soon.
    pub(super) held: Option<&'static str>,
    pub(super) definitions: Definitions,
    pub(super) fingerprints: Fingerprints,
    /// The names of the functions that log for these resources.
    pub(super) loggers: Vec<String>,
    /// Statements for the indexes that are missing.
    pub(super) missing_indexes: Vec<String>,
    /// The snapshot in which all this was read.
    pub(super) position: Position,
}

/// Resources against the catalogue, and the loggers that they need.
struct Checked {
    resources: Vec<Result<Arc<Resource>, Vec<Mistake>>>,
    catalogue: Catalogue,
    loggers: Vec<Logger>,
}

impl Checked {
    /// Statements for the indexes that are missing.
    fn missing_indexes(&self) -> Vec<String> {
        let fitting = self.resources.iter().flatten();
        fitting
            .flat_map(|resource| missing_indexes(resource, &self.catalogue))
            .collect()
    }
}

/// How establishing ended.
pub(super) enum Outcome {
    Established(Box<Established>),
    /// A restore may be under way, and schema larder is not whole: nothing may be installed yet.
    Standing {
        /// The server and the database; they have no epoch.
        identity: Identity,
        /// Each configured resource, or what is wrong with it.
        resources: Vec<Result<Arc<Resource>, Vec<Mistake>>>,
        /// For the log and the status.
        why: String,
    },
}

/// Checks the database and installs what is missing, if it may, and if `standing` does not have it wait.
pub(super) async fn establish(
    connection: &mut PgConnection,
    definitions: &[ResourceDefinition],
    config: &FeedConfig,
    policy: Policy,
    standing: Option<&mut Standing>,
) -> Result<Outcome, EstablishError> {
    let mut establishing = Establishing {
        definitions,
        config,
        policy,
        standing,
        names: table_names(definitions),
        hashes: definitions.iter().map(ResourceDefinition::hash).collect(),
        served: Vec::new(),
        left: None,
    };
    for _ in 0..LOOKS {
        if let Some(outcome) = establishing.step(connection).await? {
            return Ok(outcome);
        }
    }
    Err(EstablishError::NotInstalled)
}

/// What establishing knows from one look at the database to the next.
struct Establishing<'e> {
    definitions: &'e [ResourceDefinition],
    config: &'e FeedConfig,
    policy: Policy,
    standing: Option<&'e mut Standing>,
    /// The tables that the definitions name.
    names: Vec<String>,
    /// Of the definitions.
    hashes: Vec<String>,
    /// Those that have fitted before: what is about to be made anew forgets them.
    served: Vec<String>,
    /// What was left of the last attempt to create triggers.
    left: Option<Vec<Pending>>,
}

impl Establishing<'_> {
    /// Looks at the database, and makes something of what is missing unless all is done.
    async fn step(
        &mut self,
        connection: &mut PgConnection,
    ) -> Result<Option<Outcome>, EstablishError> {
        let (mut transaction, position) = look(connection).await?;
        let checked = check(&mut transaction, self.definitions, self.config).await?;
        if self.policy.new_must_fit {
            let served = schema::served(&mut transaction, &self.hashes).await?;
            self.served.extend(served);
            self.require(&checked.resources)?;
        }
        let parts = schema::missing(&mut transaction, self.config.answers).await?;
        let installed = read_installed(&mut transaction, &checked.loggers).await?;
        let missing = triggers::missing(&checked.loggers, &installed);
        let server = server(&mut transaction).await?;
        let holding = self.hold(&mut transaction, &server, &checked, &parts, &missing);
        let hold = holding.await?;
        if let Some(why) = stands(hold.as_ref(), &checked, &parts) {
            transaction.rollback().await.map_err(SourceError::from)?;
            return Ok(Some(Outcome::Standing {
                identity: server,
                resources: checked.resources,
                why: why.to_owned(),
            }));
        }
        let creates = self.policy.install && self.left.is_none() && !missing.tables.is_empty();
        if creates || !parts.is_empty() {
            transaction.rollback().await.map_err(SourceError::from)?;
            let loggers = &checked.loggers;
            let making = self.make(connection, parts, missing, loggers, hold.as_ref());
            return Ok(making.await?.map(|who| Outcome::Standing {
                identity: server,
                resources: checked.resources,
                why: format!("waiting for {who}"),
            }));
        }
        let identity = identity(&mut transaction).await?;
        if identity.nonce.is_nil() {
            transaction.rollback().await.map_err(SourceError::from)?;
            return Ok(None);
        }
        let watched = watched(&checked);
        let pending = pending(missing, self.left.as_deref().unwrap_or_default());
        let uncached = uncached(&watched, &pending);
        if let (Some(standing), None, true) = (&mut self.standing, &hold, pending.is_empty()) {
            let tables: Vec<_> = checked.loggers.iter().flat_map(Logger::tables).collect();
            standing.complete(&checked.catalogue, &tables);
        }
        let definitions = Definitions::read(&mut transaction, watched).await?;
        let mut fingerprints = definitions.fingerprints(&mut transaction).await?;
        clear_differing(&mut fingerprints, &checked.resources);
        transaction.commit().await.map_err(SourceError::from)?;
        await_messages(connection).await?;
        let missing_indexes = checked.missing_indexes();
        let mut resources = readable(connection, checked.resources).await?;
        self.require(&resources)?;
        for (resource, why) in uncached {
            if let Some(Ok(resource)) = resources.get_mut(resource.index()) {
                Arc::make_mut(resource).uncached.get_or_insert(why);
            }
        }
        Ok(Some(Outcome::Established(Box::new(Established {
            identity,
            resources,
            pending,
            held: hold.filter(|hold| hold.replaced).map(|hold| hold.why),
            definitions,
            fingerprints,
            loggers: checked.loggers.iter().map(Logger::function_name).collect(),
            missing_indexes,
            position,
        }))))
    }

    /// Makes the `parts` of schema larder that are missing, or where none is, functions and triggers. Returns whose locks
    /// keep it from a part.
    async fn make(
        &mut self,
        connection: &mut PgConnection,
        parts: Vec<Part>,
        missing: Missing,
        loggers: &[Logger],
        hold: Option<&Hold>,
    ) -> Result<Option<String>, EstablishError> {
        if parts.is_empty() {
            self.left = Some(create(connection, missing, loggers, self.config, hold).await?);
            return Ok(None);
        }
        // A new epoch needs no rights on definitions.
        if !self.policy.install && parts != [Part::Epoch] {
            return Err(EstablishError::NotInstalled);
        }
        for part in parts {
            match install::make(connection, part, self.config.answers).await {
                Err(InstallError::Held(who)) => return Ok(Some(who)),
                made => made?,
            }
        }
        Ok(None)
    }

    /// What must not be installed yet.
    async fn hold(
        &mut self,
        connection: &mut PgConnection,
        identity: &Identity,
        checked: &Checked,
        parts: &[Part],
        missing: &Missing,
    ) -> Result<Option<Hold>, SourceError> {
        let Some(standing) = self.standing.as_mut().filter(|_| self.policy.install) else {
            return Ok(None);
        };
        let name: String = sqlx::query_scalar("select current_database()::text")
            .fetch_one(&mut *connection)
            .await?;
        standing.look_at(&format!("{} {name}", identity.system));
        let fits = checked.resources.iter().all(Result::is_ok);
        if fits && parts.is_empty() && missing.tables.is_empty() {
            return Ok(None);
        }
        let lacking = missing.tables.iter().map(|missing| &missing.table);
        // What an older larder has left is no accident.
        let older = parts.contains(&Part::State { older: true });
        let whole = |part: &Part| matches!(part, Part::Epoch | Part::Answers);
        let seen = Seen {
            catalogue: &checked.catalogue,
            named: &self.names,
            lacking: lacking.collect(),
            damaged: !older && !parts.iter().all(whole),
            state: state(connection, checked, parts).await?,
        };
        Ok(standing.hold(seen))
    }

    /// Fails where a resource does not fit that is new, if those must.
    fn require(
        &self,
        resources: &[Result<Arc<Resource>, Vec<Mistake>>],
    ) -> Result<(), EstablishError> {
        let must = |resource: ResourceId| {
            let hash = self.hashes.get(resource.index());
            self.policy.new_must_fit && hash.is_some_and(|hash| !self.served.contains(hash))
        };
        require(resources, must)
    }
}

/// Why schema larder may not be made yet.
fn stands(hold: Option<&Hold>, checked: &Checked, parts: &[Part]) -> Option<&'static str> {
    match hold.filter(|hold| hold.damaged) {
        Some(hold) => Some(hold.why),
        // What is being restored may bring schema larder itself.
        None if !parts.is_empty() && !checked.resources.iter().any(Result::is_ok) => {
            Some("no resource fits the database")
        }
        None => None,
    }
}

/// Begins a transaction of one snapshot: its position.
async fn look(
    connection: &mut PgConnection,
) -> Result<(Transaction<'_, Postgres>, Position), SourceError> {
    let mut transaction = connection
        .begin_with("begin isolation level repeatable read")
        .await?;
    sqlx::raw_sql("set local statement_timeout = '30s'")
        .execute(&mut *transaction)
        .await?;
    let now: String = sqlx::query_scalar("select pg_current_snapshot()::text")
        .fetch_one(&mut *transaction)
        .await?;
    Ok((transaction, Position::new(&now)))
}

/// Creates the functions and triggers that are missing: the tables that are left, and why.
async fn create(
    connection: &mut PgConnection,
    missing: Missing,
    loggers: &[Logger],
    config: &FeedConfig,
    hold: Option<&Hold>,
) -> Result<Vec<Pending>, EstablishError> {
    let Missing { functions, tables } = missing;
    let is_held = |missing: &MissingTriggers| hold.is_some_and(|hold| hold.holds(&missing.table));
    let (held, tables): (Vec<_>, Vec<_>) = tables.into_iter().partition(is_held);
    let held = held.into_iter().map(|missing| Pending {
        table: missing.table,
        why: hold.map_or_else(String::new, |hold| hold.why.to_owned()),
        held: true,
    });
    let mut pending: Vec<Pending> = held.collect();
    if tables.is_empty() {
        return Ok(pending);
    }
    tracing::info!("creating triggers on {} tables", tables.len());
    let made = if functions.is_empty() {
        Ok(())
    } else {
        install::create_functions(connection, functions, loggers, config.retention).await
    };
    if let Err(InstallError::Held(who)) = made {
        let wait = |missing: MissingTriggers| Pending {
            table: missing.table,
            why: format!("waiting for {who}"),
            held: true,
        };
        pending.extend(tables.into_iter().map(wait));
        return Ok(pending);
    }
    made?;
    pending.extend(install::create_triggers(connection, tables).await?);
    Ok(pending)
}

/// All that a restore would change of what is followed, as a text that differs where it has changed.
async fn state(
    connection: &mut PgConnection,
    checked: &Checked,
    parts: &[Part],
) -> Result<String, SourceError> {
    let mut tables: Vec<(&String, u32)> = checked
        .catalogue
        .tables
        .iter()
        .map(|(name, table)| (name, table.name.oid))
        .collect();
    tables.sort_unstable();
    let unfit: Vec<&Vec<Mistake>> = checked
        .resources
        .iter()
        .filter_map(|resource| resource.as_ref().err())
        .collect();
    let definitions = Definitions::read(connection, watched(checked)).await?;
    let fingerprints = definitions.fingerprints(connection).await?;
    let restoring: bool = sqlx::query_scalar(RESTORING_SQL)
        .fetch_one(connection)
        .await?;
    // Never the same twice: while a large index is built nothing else changes.
    let now = restoring.then(Instant::now);
    Ok(format!(
        "{tables:?} {unfit:?} {parts:?} {fingerprints:?} {now:?}"
    ))
}

/// Has the next pass check those resources again whose fingerprint has another state of row security than they were
/// checked with: of roles, two statements of one snapshot may see different things.
fn clear_differing(
    fingerprints: &mut Fingerprints,
    resources: &[Result<Arc<Resource>, Vec<Mistake>>],
) {
    for (id, fingerprint) in fingerprints {
        let resource = resources.get(id.index()).and_then(|one| one.as_ref().ok());
        let row_security = resource.and_then(|resource| resource.row_security.as_ref());
        let known = row_security.map(RowSecurity::state).unwrap_or_default();
        let (_, found) = fingerprint.split_once(' ').unwrap_or_default();
        if found != known {
            fingerprint.clear();
        }
    }
}

/// The tables of `missing`, each with the reason that is known of the attempt before.
fn pending(missing: Missing, left: &[Pending]) -> Vec<Pending> {
    let tables = missing.tables.into_iter().map(|missing| missing.table);
    tables
        .map(|table| {
            let known = left.iter().find(|pending| pending.table == table);
            known.cloned().unwrap_or_else(|| Pending {
                table,
                why: "run `larder install` as their owner".to_owned(),
                held: false,
            })
        })
        .collect()
}

/// The resources that rest on tables without triggers, and why those are without.
fn uncached(watched: &Watched, pending: &[Pending]) -> BTreeMap<ResourceId, String> {
    let mut uncached = BTreeMap::new();
    for (resource, oid) in watched.resources.iter().zip(&watched.oids) {
        let lacking = pending
            .iter()
            .find(|pending| i64::from(pending.table.oid) == *oid);
        if let (Some(Pending { table, why, .. }), Ok(resource)) =
            (lacking, ResourceId::try_from(*resource))
        {
            let why = format!("{table} lacks triggers of larder: {why}");
            uncached.entry(resource).or_insert(why);
        }
    }
    uncached
}

async fn check(
    connection: &mut PgConnection,
    definitions: &[ResourceDefinition],
    config: &FeedConfig,
) -> Result<Checked, SourceError> {
    let catalogue = read_catalogue(connection, &table_names(definitions)).await?;
    let resources: Vec<Result<Arc<Resource>, Vec<Mistake>>> = definitions
        .iter()
        .map(|definition| {
            let mut resolved = resolve(std::slice::from_ref(definition), &catalogue)?;
            resolved.pop().map(Arc::new).ok_or_else(Vec::new)
        })
        .collect();
    let fitting: Vec<&Resource> = resources
        .iter()
        .flatten()
        .map(|resource| &**resource)
        .collect();
    let loggers = loggers(&fitting, &catalogue, config);
    Ok(Checked {
        resources,
        catalogue,
        loggers,
    })
}

/// Fails where a resource does not fit that is `required` to do so.
fn require(
    resources: &[Result<Arc<Resource>, Vec<Mistake>>],
    required: impl Fn(ResourceId) -> bool,
) -> Result<(), EstablishError> {
    let resources = ResourceId::in_order().zip(resources);
    let mistakes: Vec<Mistake> = resources
        .filter(|(id, _)| required(*id))
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

/// The SQL of `larder install --print`: what is missing, and the grants that the connecting role needs.
pub(super) async fn script(
    connection: &mut PgConnection,
    definitions: &[ResourceDefinition],
    config: &FeedConfig,
) -> Result<String, EstablishError> {
    let checked = check(connection, definitions, config).await?;
    require(&checked.resources, |_| true)?;
    let role: String = sqlx::query_scalar("select current_user::text")
        .fetch_one(&mut *connection)
        .await
        .map_err(SourceError::from)?;
    let parts = schema::missing(connection, config.answers).await?;
    let installed = read_installed(connection, &checked.loggers).await?;
    let missing = triggers::missing(&checked.loggers, &installed);
    let resources: Vec<&Resource> = checked
        .resources
        .iter()
        .flatten()
        .map(|resource| &**resource)
        .collect();
    let grants = triggers::grants_sql(&resources, &role, config.answers);
    let parts = parts.into_iter().map(Part::sql);
    let functions = Some(missing.functions).filter(|sql| !sql.is_empty());
    let functions = functions.map(|sql| {
        format!(
            "{sql}{}",
            install::need_sql(&checked.loggers, config.retention)
        )
    });
    let tables = missing.tables.into_iter().map(|missing| missing.sql);
    let steps: Vec<String> = parts
        .chain(functions)
        .chain(tables)
        .chain([grants])
        .collect();
    Ok(install::script(&steps))
}

/// Has PostgreSQL plan each resource's statement: a missing privilege shows here, not at the first request.
async fn readable(
    connection: &mut PgConnection,
    resources: Vec<Result<Arc<Resource>, Vec<Mistake>>>,
) -> Result<Vec<Result<Arc<Resource>, Vec<Mistake>>>, SourceError> {
    let mut checked = Vec::with_capacity(resources.len());
    for resource in resources {
        let Ok(fitting) = resource else {
            checked.push(resource);
            continue;
        };
        let outcome = documents_query(&fitting, &fitting.documents_sql, &[], 0)?
            .persistent(false)
            .fetch_all(&mut *connection)
            .await;
        checked.push(match outcome.map_err(SourceError::from) {
            Ok(_) => Ok(fitting),
            // Somebody alters a table of it. What larder may not read will be refused to whoever asks for it.
            Err(error) if error.is_of_lock() => Ok(fitting),
            Err(error) if error.is_passing() => return Err(error),
            Err(SourceError::Refused { code, message }) => Err(vec![Mistake {
                place: fitting.place.clone(),
                message: format!("PostgreSQL refuses its documents with {code}: {message}"),
            }]),
            Err(error) => return Err(error),
        });
    }
    Ok(checked)
}

/// The tables of each fitting resource with all their descendants.
fn watched(checked: &Checked) -> Watched {
    let mut watched = Watched::default();
    for (index, resource) in checked.resources.iter().enumerate() {
        let Ok(resource) = resource else {
            continue;
        };
        // By oid: a table may be named and a part of another that is named.
        let mut tables: BTreeMap<i64, bool> = BTreeMap::new();
        for name in resource.tables() {
            tables.insert(i64::from(name.oid), true);
            let table = checked
                .catalogue
                .tables
                .values()
                .find(|table| table.name == *name);
            for part in table.iter().flat_map(|table| &table.descendants) {
                tables.entry(i64::from(part.name.oid)).or_insert(false);
            }
        }
        let number = i32::try_from(index).unwrap_or(i32::MAX);
        for (oid, named) in tables {
            watched.resources.push(number);
            watched.oids.push(oid);
            watched.named.push(named);
        }
    }
    watched
}

/// Every table that the definitions name, once.
fn table_names(definitions: &[ResourceDefinition]) -> Vec<String> {
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
