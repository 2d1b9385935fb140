//! The beginning on a new connection: what is established, and what of it is new to the cache.

use std::sync::Arc;

use sqlx::postgres::PgConnection;

use crate::feed::change_log::PassQuery;
use crate::feed::establish::{EstablishError, Established, Policy, establish};
use crate::feed::follower::{ESTABLISH_TIMEOUT, Feed, Following};
use crate::feed::{Event, FeedSetup};
use crate::resource::Resource;
use crate::resource::definition::Mistake;
use crate::source::SourceError;

impl<F: FnMut(Event)> Feed<F> {
    pub(super) async fn establish(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Established, EstablishError> {
        let FeedSetup {
            definitions,
            config,
            install,
            ..
        } = &self.setup;
        // What does not fit at the start is for whoever started larder; what ceases to fit must not harm the others.
        let policy = Policy {
            install: *install,
            all_must_fit: !matches!(*self.first.borrow(), Some(Ok(()))),
        };
        let establishing = establish(connection, definitions, config, policy);
        let outcome = tokio::time::timeout(ESTABLISH_TIMEOUT, establishing).await;
        let outcome = outcome.unwrap_or(Err(SourceError::Timeout.into()));
        if let Err(EstablishError::Unfit(mistakes)) = &outcome {
            self.first.send_replace(Some(Err(mistakes.clone())));
        }
        outcome
    }

    /// Tells the cache what was established, and remembers it.
    pub(super) fn settle(&mut self, established: Established) -> Following {
        let Established {
            identity,
            resources,
            watched,
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
        let same = self.identity.as_ref() == Some(&identity);
        let lost = std::mem::take(&mut self.lost);
        if !same || lost {
            (self.follow)(Event::Reached(identity.clone()));
            self.identity = Some(identity);
        }
        self.define(&resources, &fingerprints, same);
        self.fingerprints = fingerprints;
        if !same || self.position.is_none() {
            (self.follow)(Event::Restarted(position.clone()));
            self.position = Some(position);
        }
        let fitting: Vec<(usize, &Resource)> = resources
            .iter()
            .enumerate()
            .filter_map(|(index, resource)| Some((index, &**resource.as_ref().ok()?)))
            .collect();
        Following {
            query: PassQuery::new(&fitting),
            watched,
            loggers,
            all_fit: fitting.len() == resources.len(),
        }
    }

    /// Tells the cache of each resource what is new: how it fits the database, or that it does not.
    fn define(
        &mut self,
        resources: &[Result<Arc<Resource>, Vec<Mistake>>],
        fingerprints: &[(usize, String)],
        same: bool,
    ) {
        for (index, resource) in resources.iter().enumerate() {
            let fingerprint = fingerprints.iter().find(|(resource, _)| *resource == index);
            match (resource, fingerprint) {
                (Ok(_), Some(known))
                    if same
                        && self.fingerprints.contains(known)
                        && !self.unfit.contains_key(&index) => {}
                (Ok(definition), Some((_, fingerprint))) => {
                    self.unfit.remove(&index);
                    (self.follow)(Event::Defined {
                        resource: index,
                        definition: Arc::clone(definition),
                        fingerprint: fingerprint.clone(),
                    });
                }
                (Ok(_), None) => {
                    let reason = "it has no fingerprint".to_owned();
                    (self.follow)(Event::Unfit {
                        resource: index,
                        reason,
                    });
                }
                (Err(mistakes), _) => {
                    let texts: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
                    let reason = texts.join("; ");
                    if self.unfit.insert(index, reason.clone()).as_ref() != Some(&reason) {
                        tracing::error!("a resource does not fit the database: {reason}");
                    }
                    (self.follow)(Event::Unfit {
                        resource: index,
                        reason,
                    });
                }
            }
        }
    }
}
