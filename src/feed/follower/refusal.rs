//! Passes that PostgreSQL refuses, since it refuses to join tables of some resources: larder's role may not read or name
//! something, or a row makes an expression fail. The other resources go on being followed.
//!
//! The pass is read again without the joins of these resources, so that a row of the log that needs one of them stands for
//! all documents of its resource. These resources are distrusted before that pass is applied, and are defined again as
//! uncached. Later passes leave them out, and mean nothing for them: they get new epochs when they are defined again after
//! PostgreSQL has accepted their joins (`tests/model`, module `refusal`).

use std::collections::BTreeSet;
use std::sync::Arc;

use sqlx::postgres::PgConnection;

use crate::feed::Event;
use crate::feed::change_log;
use crate::feed::change_log::query::PassQuery;
use crate::feed::establish::inspection::CheckedResource;
use crate::feed::follower::{Feed, PASS_TIMEOUT, PassContext, with_timeout};
use crate::feed::position::Position;
use crate::resource::link::{KeyMapping, links};
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::rights::{table_rights, with_grants};

/// Whether PostgreSQL has refused the statement of a pass for a reason that may be that of one resource.
pub(super) fn is_refusal(error: &SourceError) -> bool {
    matches!(error, SourceError::Refused { .. }) && !error.is_transient() && !error.is_conflict()
}

/// Whether a pass joins tables of the resource.
fn has_joins(resource: &Resource) -> bool {
    let mut links = links(resource).into_iter();
    links.any(|link| matches!(link.mapping, KeyMapping::Query { .. }))
}

impl<F: FnMut(Event)> Feed<F> {
    /// Finds the resources whose joins PostgreSQL refuses, after it has refused a pass from `from` with `error`, and
    /// distrusts them. The message does not tell which they are, so halves are tried.
    ///
    /// # Errors
    /// `error` if PostgreSQL also refuses the pass without any joins, or accepts each half.
    pub(super) async fn refuse(
        &mut self,
        connection: &mut PgConnection,
        context: &PassContext,
        from: &Position,
        error: SourceError,
    ) -> Result<BTreeSet<ResourceId>, SourceError> {
        let joined = context.cached.iter();
        let joined = joined.filter(|(_, resource)| has_joins(resource));
        let joined: Vec<ResourceId> = joined.map(|(id, _)| *id).collect();
        if let Some(error) = refusal_of(connection, context, from, &[]).await? {
            return Err(error);
        }
        let mut groups = vec![joined];
        let mut refused = BTreeSet::new();
        while let Some(mut group) = groups.pop() {
            let Some(error) = refusal_of(connection, context, from, &group).await? else {
                continue;
            };
            let half = group.split_off(group.len() / 2);
            if let ([], [id]) = (&*group, &*half) {
                self.distrust_refused(connection, context, *id, error).await;
                refused.insert(*id);
            } else {
                groups.extend([half, group].into_iter().filter(|half| !half.is_empty()));
            }
        }
        if refused.is_empty() {
            return Err(error);
        }
        Ok(refused)
    }

    async fn distrust_refused(
        &mut self,
        connection: &mut PgConnection,
        context: &PassContext,
        id: ResourceId,
        error: SourceError,
    ) {
        (self.on_event)(Event::Distrusted { resource: id });
        // It is defined again, though its fingerprint may be the known one.
        self.fingerprints.retain(|(known, _)| *known != id);
        let mut cached = context.cached.iter();
        let Some((_, resource)) = cached.find(|(known, _)| *known == id) else {
            return;
        };
        let otherwise = "`larder check` names what is missing";
        let rights = table_rights(&[resource]);
        let error = with_grants(connection, error, rights, otherwise).await;
        let reason = format!("passes can't find the documents of changed rows, since {error}");
        self.refused.insert(id, reason);
        self.is_refusal_new = true;
    }

    /// Marks the resources whose joins PostgreSQL has refused as uncached. Those that do not fit any more will be tried again
    /// when they do.
    pub(super) fn mark_refused(&mut self, resources: &mut [CheckedResource]) {
        self.is_refusal_new = false;
        let mut refused = std::mem::take(&mut self.refused);
        refused.retain(|id, reason| match resources.get_mut(id.index()) {
            Some(Ok(resource)) => {
                let reason = reason.clone();
                Arc::make_mut(resource).uncached.get_or_insert(reason);
                true
            }
            _ => false,
        });
        self.refused = refused;
    }

    /// Whether PostgreSQL accepts the joins of a resource again that it has refused.
    pub(super) async fn has_accepted(
        &mut self,
        connection: &mut PgConnection,
        context: &PassContext,
    ) -> Result<bool, SourceError> {
        let Some(from) = self.position.clone() else {
            return Ok(false);
        };
        let mut accepted = Vec::new();
        for id in self.refused.keys() {
            let definition = self.last_definitions.get(id).cloned();
            let alone = definition.map(|definition| (*id, definition));
            let query = PassQuery::new(
                alone.as_slice(),
                &context.definitions.remainder,
                &BTreeSet::new(),
            );
            let error = read_error(connection, context, &from, &query).await?;
            if error.is_none() {
                accepted.push(*id);
            }
        }
        for id in &accepted {
            self.refused.remove(id);
            self.fingerprints.retain(|(known, _)| known != id);
        }
        Ok(!accepted.is_empty())
    }
}

/// Why PostgreSQL refuses a pass from `from` that joins tables of the resources `joined` alone; `None` if it does not.
async fn refusal_of(
    connection: &mut PgConnection,
    context: &PassContext,
    from: &Position,
    joined: &[ResourceId],
) -> Result<Option<SourceError>, SourceError> {
    let left_out = context.cached.iter().map(|(id, _)| *id);
    let left_out = left_out.filter(|id| !joined.contains(id)).collect();
    let query = PassQuery::new(&context.cached, &context.definitions.remainder, &left_out);
    read_error(connection, context, from, &query).await
}

/// Why PostgreSQL refuses a pass by `query`; `None` if it does not, or if another transaction holds a lock.
///
/// # Errors
/// Another error than a refusal.
async fn read_error(
    connection: &mut PgConnection,
    context: &PassContext,
    from: &Position,
    query: &PassQuery,
) -> Result<Option<SourceError>, SourceError> {
    let reading = change_log::read(connection, query, &context.definitions, from, false, true);
    match with_timeout(PASS_TIMEOUT, reading).await {
        Ok(_) => Ok(None),
        Err(error) if is_refusal(&error) => Ok(Some(error)),
        Err(error) if error.is_lock_timeout() => Ok(None),
        Err(error) => Err(error),
    }
}
