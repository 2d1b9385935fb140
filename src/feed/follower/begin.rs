//! The beginning on a new connection: what is established, and what of it is new to the cache.

use std::collections::BTreeSet;
use std::sync::Arc;

use sqlx::postgres::PgConnection;

use crate::feed::change_log::query::PassQuery;
use crate::feed::ddl::LOCK_PAUSE_MAX;
use crate::feed::establish::{
    EstablishError, EstablishOptions, EstablishOutcome, Established, establish,
};
use crate::feed::follower::{
    ESTABLISH_TIMEOUT, Feed, Following, PASS_TIMEOUT, REFUSED_MAX, within,
};
use crate::feed::node::Needs;
use crate::feed::{Event, FeedSetup};
use crate::resource::definition::{Mistake, ResourceDefinition};
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::session::Identity;

/// `insufficient_privilege` (PostgreSQL manual, appendix A).
const INSUFFICIENT_PRIVILEGE: &str = "42501";

impl<F: FnMut(Event)> Feed<F> {
    /// Establishes what passes over `connection` need; loads may begin then. Or why nothing may be installed yet, and
    /// nothing be followed.
    pub(super) async fn begin(
        &mut self,
        connection: &mut PgConnection,
    ) -> Result<Result<Following, String>, EstablishError> {
        let mut established = match self.establish(connection).await? {
            EstablishOutcome::Established(established) => *established,
            EstablishOutcome::Delayed {
                identity,
                resources,
                reason,
            } => {
                self.publish_delay(identity, &resources, &reason);
                return Ok(Err(reason));
            }
        };
        self.compare_history(connection, &mut established).await?;
        // The mark of another plan is another.
        self.signs = None;
        self.process = None;
        self.marks_fail = false;
        Ok(Ok(self.settle(established)))
    }

    async fn establish(
        &mut self,
        connection: &mut PgConnection,
    ) -> Result<EstablishOutcome, EstablishError> {
        let FeedSetup {
            definitions,
            config,
            install,
            ..
        } = &self.setup;
        // What is new and does not fit is for whoever started larder; what ceases to fit must not harm the others.
        let options = EstablishOptions {
            install: *install,
            new_must_fit: !matches!(*self.first.borrow(), Some(Ok(()))),
        };
        let restore = Some(&mut self.restore);
        let establishing = establish(connection, definitions, config, options, restore);
        let outcome = tokio::time::timeout(ESTABLISH_TIMEOUT, establishing).await;
        let outcome = outcome.unwrap_or(Err(SourceError::Timeout.into()));
        if let Err(EstablishError::Unfit(mistakes)) = &outcome {
            self.first.send_replace(Some(Err(mistakes.clone())));
        }
        outcome
    }

    /// Finds out whether the database was put back to an earlier state, and names its history in the identity.
    async fn compare_history(
        &mut self,
        connection: &mut PgConnection,
        established: &mut Established,
    ) -> Result<(), SourceError> {
        let beginning = self
            .history
            .begin(connection, self.setup.node, &established.position);
        match within(PASS_TIMEOUT, beginning).await {
            Ok(()) => {}
            Err(SourceError::Refused { code, message }) if code == INSUFFICIENT_PRIVILEGE => {
                tracing::warn!(
                    "larder.node can't be written, so the tiers start empty with each connection: {message}"
                );
                self.history.lose();
            }
            Err(error) => return Err(error),
        }
        established.identity.history = self.history.id();
        Ok(())
    }

    /// Tells the cache what was established, and remembers it.
    fn settle(&mut self, established: Established) -> Following {
        let Established {
            identity,
            resources,
            pending,
            may_fit_soon,
            definitions,
            fingerprints,
            loggers,
            missing_indexes,
            position,
        } = established;
        if !matches!(*self.first.borrow(), Some(Ok(()))) {
            for statement in missing_indexes {
                tracing::warn!(
                    "documents, passes or lists will scan a table for want of an index: {statement}"
                );
            }
            self.first.send_replace(Some(Ok(())));
        }
        let known = self.identity.as_ref();
        let same = known.is_some_and(|known| known.is_same_history(&identity));
        let lost = std::mem::take(&mut self.lost);
        // Also where the server was started again between two connections.
        if !same || lost || self.identity.as_ref() != Some(&identity) {
            (self.follow)(Event::Reached(identity.clone()));
            self.identity = Some(identity);
        }
        // While nobody looked, larder's role may have come to bypass row security and ceased to, which leaves no trace.
        let watched = !lost || definitions.remainder.guarded.is_empty();
        self.define(&resources, &fingerprints, same && watched, may_fit_soon);
        self.fingerprints = fingerprints;
        if !same || self.position.is_none() {
            (self.follow)(Event::Restarted(position.clone()));
            self.position = Some(position);
        }
        let fitting: Vec<(ResourceId, &Arc<Resource>)> = ResourceId::in_order()
            .zip(&resources)
            .filter_map(|(id, resource)| Some((id, resource.as_ref().ok()?)))
            .collect();
        // Nothing of the others is kept. What their policies do must not end a pass.
        let cached: Vec<(ResourceId, Arc<Resource>)> = fitting
            .iter()
            .filter(|(_, resource)| resource.uncached.is_none())
            .map(|(id, resource)| (*id, Arc::clone(resource)))
            .collect();
        self.narrowed = None;
        Following {
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
            unfinished: if fitting.len() < resources.len()
                || pending.iter().any(|one| one.is_waiting)
            {
                Some(LOCK_PAUSE_MAX)
            } else {
                (!pending.is_empty()).then_some(REFUSED_MAX)
            },
        }
    }

    /// Has the cache ask PostgreSQL for everything, while schema larder is not whole and nothing may be installed.
    fn publish_delay(
        &mut self,
        identity: Identity,
        resources: &[Result<Arc<Resource>, Vec<Mistake>>],
        why: &str,
    ) {
        let identity = Identity {
            epoch_table: 0,
            history: self.history.id(),
            ..identity
        };
        self.first.send_replace(Some(Ok(())));
        if self.identity.as_ref() != Some(&identity) {
            (self.follow)(Event::Reached(identity.clone()));
            self.identity = Some(identity);
            self.position = None;
            self.fingerprints.clear();
            for resource in std::mem::take(&mut self.defined) {
                (self.follow)(Event::Distrusted { resource });
            }
        }
        for (id, resource) in ResourceId::in_order().zip(resources) {
            if let (Ok(resource), true) = (resource, self.defined.insert(id)) {
                let mut definition = Resource::clone(resource);
                definition.uncached = Some(why.to_owned());
                // What would check it is part of schema larder.
                definition.row_security = None;
                definition.checked_sql = None;
                (self.follow)(Event::Defined {
                    resource: id,
                    definition: Arc::new(definition),
                    fingerprint: String::new(),
                });
            }
        }
    }

    /// Tells the cache of each resource what is new: how it fits the database, or that it does not.
    fn define(
        &mut self,
        resources: &[Result<Arc<Resource>, Vec<Mistake>>],
        fingerprints: &[(ResourceId, String)],
        same: bool,
        may_fit_soon: bool,
    ) {
        for (id, resource) in ResourceId::in_order().zip(resources) {
            let fingerprint = fingerprints.iter().find(|(resource, _)| *resource == id);
            match (resource, fingerprint) {
                (Ok(_), Some(known))
                    if same
                        && self.fingerprints.contains(known)
                        && !self.unfit.contains_key(&id) => {}
                (Ok(definition), Some((_, fingerprint))) => {
                    self.unfit.remove(&id);
                    self.defined.insert(id);
                    (self.follow)(Event::Defined {
                        resource: id,
                        definition: Arc::clone(definition),
                        fingerprint: fingerprint.clone(),
                    });
                }
                (Ok(_), None) => {
                    let reason = "it has no fingerprint".to_owned();
                    (self.follow)(Event::Unfit {
                        resource: id,
                        reason,
                    });
                }
                // It is answered from PostgreSQL by what it was.
                (Err(_), _) if may_fit_soon && self.defined.contains(&id) => {
                    // It is defined again once it fits, though its fingerprint may be the same then.
                    self.unfit.entry(id).or_default();
                    (self.follow)(Event::Distrusted { resource: id });
                }
                (Err(mistakes), _) => {
                    self.defined.remove(&id);
                    let texts: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
                    let reason = texts.join("; ");
                    if self.unfit.insert(id, reason.clone()).as_ref() != Some(&reason) {
                        tracing::error!("a resource does not fit the database: {reason}");
                    }
                    (self.follow)(Event::Unfit {
                        resource: id,
                        reason,
                    });
                }
            }
        }
    }
}
