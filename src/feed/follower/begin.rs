//! The beginning on a new connection: the database is established, and the cache is told what has changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use sqlx::postgres::PgConnection;

use crate::feed::Event;
use crate::feed::change_log::query::PassQuery;
use crate::feed::ddl::LOCK_PAUSE_MAX;
use crate::feed::definition::{Definitions, Fingerprints};
use crate::feed::establish::inspection::CheckedResource;
use crate::feed::establish::{
    Delay, EstablishError, EstablishOptions, EstablishOutcome, Established, check_fit, establish,
};
use crate::feed::follower::{
    ESTABLISH_TIMEOUT, Feed, PASS_TIMEOUT, PassContext, REFUSED_MAX, StopReason, with_timeout,
};
use crate::feed::node::Needs;
use crate::feed::rights::rights;
use crate::resource::changes::DefinitionChanges;
use crate::resource::definition::{Mistake, ResourceDefinition};
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::rights::with_grants;
use crate::source::session::Identity;

impl<F: FnMut(Event)> Feed<F> {
    /// Establishes the database. Passes can run on `connection` then, and loads may begin.
    pub(super) async fn begin(
        &mut self,
        connection: &mut PgConnection,
    ) -> Result<PassContext, StopReason> {
        let mut established = match self.establish(connection).await? {
            EstablishOutcome::Established(established) => *established,
            EstablishOutcome::Delayed(delay) => {
                let Delay { identity, .. } = delay.as_ref();
                self.publish_delay(identity.clone());
                return Err(StopReason::Delayed(self.define_delayed(*delay)));
            }
        };
        self.compare_history(connection, &mut established).await?;
        self.signs = None;
        self.process = None;
        self.is_plan_mark_unreliable = false;
        Ok(self.publish(established))
    }

    async fn establish(
        &mut self,
        connection: &mut PgConnection,
    ) -> Result<EstablishOutcome, EstablishError> {
        // At the first start a new resource that does not fit ends larder with an error. Later, it must not affect the
        // others.
        let options = EstablishOptions {
            install: self.setup.install,
            new_must_fit: !matches!(*self.first_outcome.borrow(), Some(Ok(()))),
        };
        let establishing = establish(
            connection,
            &self.setup.definitions,
            &self.setup.config,
            options,
            Some(&mut self.restore),
        );
        let outcome = tokio::time::timeout(ESTABLISH_TIMEOUT, establishing).await;
        let outcome = outcome.unwrap_or(Err(SourceError::Timeout.into()));
        if let Err(EstablishError::Unfit(mistakes)) = &outcome {
            self.first_outcome.send_replace(Some(Err(mistakes.clone())));
        }
        outcome
    }

    /// Finds out whether the database was put back to an earlier state, and adds the name of its history to the
    /// identity.
    async fn compare_history(
        &mut self,
        connection: &mut PgConnection,
        established: &mut Established,
    ) -> Result<(), SourceError> {
        let comparing = self
            .history
            .compare(connection, self.setup.node, &established.position);
        match with_timeout(PASS_TIMEOUT, comparing).await {
            Ok(()) => {}
            Err(error @ SourceError::Refused { .. }) if error.is_privilege_error() => {
                let rights = rights(&[], self.setup.config.answers);
                let otherwise = "`larder check` names what is missing";
                let error = with_grants(connection, error, rights, otherwise).await;
                tracing::warn!(
                    "larder.node can't be written, so the tiers start empty with each connection: {error}"
                );
                self.history.renew();
            }
            Err(error) => return Err(error),
        }
        established.identity.history = self.history.id();
        Ok(())
    }

    /// Notes that the database is followed. Returns whether it was lost.
    fn end_loss(&mut self) -> bool {
        if self.is_lost {
            tracing::info!("following the database again");
        }
        std::mem::take(&mut self.is_lost)
    }

    /// Tells the cache what was established, as far as it is new, and remembers it.
    fn publish(&mut self, established: Established) -> PassContext {
        let Established {
            identity,
            mut resources,
            pending,
            may_fit_soon,
            definitions,
            fingerprints,
            loggers,
            position,
        } = established;
        self.mark_refused(&mut resources);
        if !matches!(*self.first_outcome.borrow(), Some(Ok(()))) {
            self.first_outcome.send_replace(Some(Ok(())));
        }
        let known = self.identity.as_ref();
        let is_same_history = known.is_some_and(|known| known.is_same_history(&identity));
        let was_lost = self.end_loss();
        // The identity also differs if the server was started again between two connections.
        if !is_same_history || was_lost || self.identity.as_ref() != Some(&identity) {
            (self.on_event)(Event::Reached(identity.clone()));
            self.identity = Some(identity);
        }
        // While the database was not followed, larder's role may have bypassed row security for a time, which leaves no
        // trace.
        let is_row_security_known =
            !was_lost || definitions.remainder.row_security_tables.is_empty();
        let is_unchanged = is_same_history && is_row_security_known;
        self.define(
            &resources,
            &fingerprints,
            &definitions,
            is_unchanged,
            may_fit_soon,
        );
        self.fingerprints = fingerprints;
        if !is_same_history || self.position.is_none() {
            (self.on_event)(Event::Reset(position.clone()));
            self.position = Some(position);
        }
        let fitting: Vec<(ResourceId, &Arc<Resource>)> = ResourceId::in_order()
            .zip(&resources)
            .filter_map(|(id, resource)| Some((id, resource.as_ref().ok()?)))
            .collect();
        // The others are not kept, and an error in one of their policies must not end a pass.
        let cached: Vec<(ResourceId, Arc<Resource>)> = fitting
            .iter()
            .filter(|(_, resource)| resource.uncached.is_none())
            .map(|(id, resource)| (*id, Arc::clone(resource)))
            .collect();
        self.reduced = None;
        PassContext {
            query: PassQuery::new(&cached, &definitions.remainder, &BTreeSet::new()),
            cached,
            definitions,
            needs: Needs {
                loggers,
                served: fitting
                    .iter()
                    .filter_map(|(id, _)| self.setup.definitions.get(id.index()))
                    .map(ResourceDefinition::hash)
                    .collect(),
            },
            only_unfit: (pending.is_empty() && !may_fit_soon).then(|| unfit(&resources)),
            recheck_within: if fitting.len() < resources.len()
                || !self.refused.is_empty()
                || pending.iter().any(|one| one.is_waiting)
            {
                Some(LOCK_PAUSE_MAX)
            } else {
                (!pending.is_empty()).then_some(REFUSED_MAX)
            },
        }
    }

    /// Whether nothing would come of checking everything again: what has to be checked are only resources that do not fit,
    /// or that passes may not join, for the reasons that are known. That takes a fraction of the time, and goes on beside the
    /// passes.
    pub(super) async fn is_as_unfit(
        &mut self,
        connection: &mut PgConnection,
        context: &PassContext,
    ) -> Result<bool, SourceError> {
        let Some(only_unfit) = &context.only_unfit else {
            return Ok(false);
        };
        if self.has_accepted(connection, context).await? {
            return Ok(false);
        }
        let definitions = &self.setup.definitions;
        let unfit = only_unfit.iter();
        let unfit = unfit.filter_map(|id| definitions.get(id.index()).cloned());
        let unfit: Vec<ResourceDefinition> = unfit.collect();
        if unfit.is_empty() {
            return Ok(true);
        }
        let checking = check_fit(connection, &unfit, &self.setup.config);
        match with_timeout(PASS_TIMEOUT, checking).await {
            Ok(checked) => Ok(only_unfit.iter().zip(checked).all(|(id, checked)| {
                let found = checked.as_ref().err().map(|mistakes| reason(mistakes));
                found.as_ref() == self.unfit.get(id)
            })),
            Err(error) if error.is_connection_error() => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Tells the cache to read everything from PostgreSQL, while schema larder is not complete and may not be
    /// installed.
    fn publish_delay(&mut self, identity: Identity) {
        let identity = Identity {
            epoch_table: 0,
            history: self.history.id(),
            ..identity
        };
        self.first_outcome.send_replace(Some(Ok(())));
        if self.identity.as_ref() != Some(&identity) {
            (self.on_event)(Event::Reached(identity.clone()));
            self.identity = Some(identity);
            self.position = None;
            self.fingerprints.clear();
            for resource in std::mem::take(&mut self.defined) {
                (self.on_event)(Event::Distrusted { resource });
            }
        }
    }

    /// Tells the cache of the resources that fit, as far as their tables have changed since the last delay, to be read from
    /// PostgreSQL. Returns the reason.
    fn define_delayed(&mut self, delay: Delay) -> String {
        let Delay {
            resources,
            watched,
            fingerprints,
            reason,
            ..
        } = delay;
        let mut readable = watched.readable(&fingerprints, None);
        for (id, resource) in ResourceId::in_order().zip(&resources) {
            let fingerprint = fingerprints.iter().find(|(resource, _)| *resource == id);
            let is_known = fingerprint.is_some_and(|known| self.delayed.contains(known));
            if let Ok(resource) = resource
                && (self.defined.insert(id) || !is_known)
            {
                let mut definition = Resource::clone(resource);
                definition.uncached = Some(reason.clone());
                // The check of row security needs schema larder.
                definition.checked_sql = None;
                definition.fingerprint = readable.remove(&id).map(Arc::new);
                (self.on_event)(Event::Defined {
                    resource: id,
                    definition: Arc::new(definition),
                });
            }
        }
        self.delayed = fingerprints;
        reason
    }

    /// Logs what a definition differs in from the last one of the resource.
    fn log_changes(&mut self, id: ResourceId, definition: &Arc<Resource>) {
        let last = self.last_definitions.insert(id, Arc::clone(definition));
        let changes = last.map(|last| DefinitionChanges::between(&last, definition));
        let Some(changes) = changes.filter(|changes| !changes.is_empty()) else {
            return;
        };
        let DefinitionChanges {
            gained,
            lost,
            changed,
        } = changes;
        tracing::warn!(
            resource = definition.name,
            ?gained,
            ?lost,
            ?changed,
            "a table was altered, and with it the documents of a resource"
        );
    }

    /// Tells the cache of each resource how it fits the database, or that it does not. A resource with a known
    /// fingerprint is left out if nothing else may have changed (`is_unchanged`). One that no longer fits keeps its
    /// definition, by which PostgreSQL is asked, if it `may_fit_soon` or was found to be unfit for the first time: a
    /// migration may rename a table, and the next one back.
    fn define(
        &mut self,
        resources: &[CheckedResource],
        fingerprints: &Fingerprints,
        definitions: &Definitions,
        is_unchanged: bool,
        may_fit_soon: bool,
    ) {
        let mut readable = definitions
            .watched
            .readable(fingerprints, Some(&definitions.types));
        for (id, resource) in ResourceId::in_order().zip(resources) {
            let fingerprint = fingerprints.iter().find(|(resource, _)| *resource == id);
            match (resource, fingerprint) {
                (Ok(_), Some(known))
                    if is_unchanged
                        && self.fingerprints.contains(known)
                        && !self.unfit.contains_key(&id) => {}
                (Ok(definition), Some(_)) => {
                    self.unfit.remove(&id);
                    self.defined.insert(id);
                    self.log_changes(id, definition);
                    let mut definition = Resource::clone(definition);
                    definition.fingerprint = readable.remove(&id).map(Arc::new);
                    (self.on_event)(Event::Defined {
                        resource: id,
                        definition: Arc::new(definition),
                    });
                }
                (Ok(_), None) => {
                    let reason = "PostgreSQL returned no fingerprint for it".to_owned();
                    (self.on_event)(Event::Unfit {
                        resource: id,
                        reason,
                    });
                }
                (Err(_), _)
                    if (may_fit_soon || !self.unfit.contains_key(&id))
                        && self.defined.contains(&id) =>
                {
                    // So that it is defined again once it fits, though its fingerprint may be a known one then.
                    self.unfit.entry(id).or_default();
                    (self.on_event)(Event::Distrusted { resource: id });
                }
                (Err(mistakes), _) => {
                    self.defined.remove(&id);
                    let reason = reason(mistakes);
                    if self.unfit.insert(id, reason.clone()).as_ref() != Some(&reason) {
                        tracing::error!("a resource does not fit the database: {reason}");
                    }
                    (self.on_event)(Event::Unfit {
                        resource: id,
                        reason,
                    });
                }
            }
        }
    }
}

/// Why a resource does not fit the database.
fn reason(mistakes: &[Mistake]) -> String {
    let texts: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// The resources that do not fit.
fn unfit(resources: &[CheckedResource]) -> Vec<ResourceId> {
    let checked = ResourceId::in_order().zip(resources);
    let unfit = checked.filter(|(_, resource)| resource.is_err());
    unfit.map(|(id, _)| id).collect()
}
