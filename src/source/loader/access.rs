//! Whether larder's role may read the documents of each resource over the connections of requests.
//!
//! The feed has PostgreSQL plan the statement of each definition, over `listen_url`. Requests may have another role, since
//! `database.url` is another URL: then each definition is checked here, by its statement for no key. A resource is also
//! checked after PostgreSQL has refused a request for it, since a role may lose a privilege by its memberships, which no
//! definition shows. While a resource is refused, it is checked again and again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::loader::connection::LoaderStatement;
use crate::source::loader::{Returned, Shared, read_documents};
use crate::source::rights::{table_rights, with_grants};
use crate::source::session::Session;

/// The pauses between checks while a resource is refused, or could not be checked.
const CHECK_PAUSE_MIN: Duration = Duration::from_millis(100);
const CHECK_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Whether documents of a resource may be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its first definition has not been checked yet.
    Unknown,
    /// They may.
    Granted,
    /// A privilege is missing. Says which, and what to run.
    Refused(String),
}

/// The access to all resources that are defined.
#[derive(Default)]
pub(super) struct AccessChecks {
    /// The feed has checked definitions by another URL.
    checks_definitions: AtomicBool,
    resources: Mutex<BTreeMap<ResourceId, CheckedAccess>>,
    /// Wakes [`Shared::check_access`] when a resource is in doubt.
    in_doubt: Notify,
}

struct CheckedAccess {
    /// `None` while it has none.
    definition: Option<Arc<Resource>>,
    access: Access,
    is_in_doubt: bool,
    /// Why a request was refused last, until the resource is checked.
    refusal: Option<SourceError>,
    /// It was logged that requests are refused though the check is not.
    is_refusal_logged: bool,
}

impl CheckedAccess {
    fn new(definition: Option<Arc<Resource>>, access: Access, is_in_doubt: bool) -> Self {
        Self {
            definition,
            access,
            is_in_doubt,
            refusal: None,
            is_refusal_logged: false,
        }
    }
}

impl AccessChecks {
    fn resources(&self) -> MutexGuard<'_, BTreeMap<ResourceId, CheckedAccess>> {
        self.resources
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on each definition is checked.
    pub(super) fn check_definitions(&self) {
        self.checks_definitions.store(true, Ordering::SeqCst);
    }

    /// A definition that the feed has checked. Until it is checked here, what is known of the one before holds.
    pub(super) fn define(&self, resource: ResourceId, definition: &Arc<Resource>) {
        let is_in_doubt = self.checks_definitions.load(Ordering::SeqCst);
        let mut resources = self.resources();
        let known = resources.remove(&resource).map(|known| known.access);
        let access = if is_in_doubt {
            known.unwrap_or(Access::Unknown)
        } else {
            Access::Granted
        };
        let checked = CheckedAccess::new(Some(Arc::clone(definition)), access, is_in_doubt);
        resources.insert(resource, checked);
        self.in_doubt.notify_one();
    }

    /// The resource has no definition any more, and is not checked. The next one is not the first.
    pub(super) fn undefine(&self, resource: ResourceId) {
        if let Some(checked) = self.resources().get_mut(&resource) {
            *checked = CheckedAccess::new(None, Access::Granted, false);
        }
    }

    /// Whether documents of the resource may be read, if it is defined.
    pub(super) fn get(&self, resource: ResourceId) -> Access {
        let resources = self.resources();
        let checked = resources.get(&resource);
        checked.map_or(Access::Granted, |checked| checked.access.clone())
    }

    /// Notes that PostgreSQL has refused a request with `error`.
    pub(super) fn note_refusal(&self, resource: ResourceId, error: &SourceError) {
        if let Some(checked) = self.resources().get_mut(&resource)
            && checked.definition.is_some()
        {
            checked.is_in_doubt = true;
            checked.refusal = Some(error.clone());
            self.in_doubt.notify_one();
        }
    }

    /// The resources to check now: those in doubt, and those that are refused.
    fn take_due(&self) -> Vec<(ResourceId, Arc<Resource>)> {
        let mut resources = self.resources();
        let due = resources.iter_mut().filter_map(|(id, checked)| {
            let is_in_doubt = std::mem::take(&mut checked.is_in_doubt);
            let is_due = is_in_doubt || checked.access != Access::Granted;
            let definition = checked.definition.as_ref().filter(|_| is_due)?;
            Some((*id, Arc::clone(definition)))
        });
        due.collect()
    }

    /// Notes what a check of `definition` has found; `None`: nothing, so that it stays in doubt.
    fn note(&self, id: ResourceId, definition: &Arc<Resource>, found: Option<Access>) {
        let mut resources = self.resources();
        let checked = resources.get_mut(&id);
        let is_current = |checked: &&mut CheckedAccess| {
            let current = checked.definition.as_ref();
            current.is_some_and(|current| Arc::ptr_eq(current, definition))
        };
        let Some(checked) = checked.filter(is_current) else {
            return;
        };
        let Some(found) = found else {
            checked.is_in_doubt = true;
            return;
        };
        let former = std::mem::replace(&mut checked.access, found);
        let refusal = checked.refusal.take();
        let name = &definition.name;
        match (&checked.access, refusal) {
            (Access::Refused(reason), _) if former != checked.access => {
                tracing::warn!("documents of {name} can't be read: {reason}");
            }
            (Access::Granted, _) if matches!(former, Access::Refused(_)) => {
                tracing::info!("documents of {name} can be read again");
            }
            (Access::Granted, Some(error)) if !checked.is_refusal_logged => {
                checked.is_refusal_logged = true;
                tracing::warn!(
                    "a request for documents of {name} was refused, though larder's role may read its tables: {error}"
                );
            }
            _ => {}
        }
    }

    /// Whether no resource has to be checked.
    fn is_settled(&self) -> bool {
        let resources = self.resources();
        let mut checked = resources.values();
        checked.all(|checked| checked.access == Access::Granted && !checked.is_in_doubt)
    }
}

impl Shared {
    /// Checks the resources in doubt, and those that are refused with growing pauses. Never returns.
    pub(super) async fn check_access(&self) {
        let mut pause = CHECK_PAUSE_MIN;
        loop {
            for (id, definition) in self.access.take_due() {
                let found = self.find_access(&definition).await;
                self.access.note(id, &definition, found);
            }
            let in_doubt = self.access.in_doubt.notified();
            if self.access.is_settled() {
                pause = CHECK_PAUSE_MIN;
                in_doubt.await;
            } else {
                // The end of the pause and a new doubt are the same.
                let _elapsed = tokio::time::timeout(pause, in_doubt).await;
                pause = (pause * 2).min(CHECK_PAUSE_MAX);
            }
        }
    }

    /// Whether documents of `definition` may be read; `None` if that can't be found out now.
    async fn find_access(&self, definition: &Arc<Resource>) -> Option<Access> {
        let error = self.run_with_retry(&NoDocuments(definition)).await.err();
        match error {
            Some(error) if error.is_privilege_error() => {
                let refusal = Refusal { definition, error };
                match self.run(&refusal).await {
                    Ok(reason) => Some(Access::Refused(reason)),
                    Err(_) => None,
                }
            }
            Some(error) if error.is_connection_error() => None,
            Some(SourceError::Overloaded | SourceError::Timeout) => None,
            // Another error is the feed's to judge, or that of a lock.
            _ => Some(Access::Granted),
        }
    }
}

/// Reads no document of a resource. PostgreSQL checks all privileges that its documents need.
struct NoDocuments<'d>(&'d Resource);

impl LoaderStatement for NoDocuments<'_> {
    type Found = ();

    async fn run(&self, session: &mut Session) -> Result<(), SourceError> {
        let (resource, sql) = (self.0, &self.0.documents_sql);
        let reading = read_documents(session, resource, sql, &[], false, 0, Returned::Nothing);
        reading.await.map(|_| ())
    }
}

/// Finds the grants that are missing, after `error`.
struct Refusal<'d> {
    definition: &'d Resource,
    error: SourceError,
}

impl LoaderStatement for Refusal<'_> {
    type Found = String;

    async fn run(&self, session: &mut Session) -> Result<String, SourceError> {
        let rights = table_rights(&[self.definition]);
        let otherwise = "`larder check` names what is missing";
        let connection = &mut session.connection;
        let error = with_grants(connection, self.error.clone(), rights, otherwise).await;
        Ok(format!(
            "larder's role may not read its tables over database.url: {error}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::testing::{ITEMS, named};

    /// Each time that one resource came to fit again, larder was not ready until it was checked.
    #[test]
    fn only_the_first_definition_is_unknown() {
        let checks = AccessChecks::default();
        checks.check_definitions();
        let (first, second) = (Arc::new(named("items")), Arc::new(named("items")));
        checks.define(ITEMS, &first);
        assert_eq!(checks.get(ITEMS), Access::Unknown);
        checks.note(ITEMS, &first, Some(Access::Refused("why".to_owned())));
        checks.undefine(ITEMS);
        // A check that had begun before.
        checks.note(ITEMS, &first, Some(Access::Refused("why".to_owned())));
        assert_eq!(checks.get(ITEMS), Access::Granted);
        assert!(checks.is_settled());
        checks.define(ITEMS, &second);
        assert_eq!(checks.get(ITEMS), Access::Granted);
        assert!(!checks.is_settled());
    }
}
