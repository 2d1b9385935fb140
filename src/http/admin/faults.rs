//! What is wrong with larder at the moment, since when, and what to do: the banner of the dashboard.

use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::cache::Status;
use crate::clock::Boottime;

/// An open transaction is named after this time: rows of the change log are kept for it.
const TRANSACTION_AGE_MAX: f64 = 300.0;
/// Another node is named that has not been seen for so long: four heartbeats without changes.
const NODE_AGE_MAX: f64 = 120.0;
/// So many keys that wait for PostgreSQL are named: several full statements of each connection.
const WAITING_KEYS_MAX: usize = 2_000;
/// A larger share of failed requests is an error.
const FAILED_SHARE_MAX: f64 = 0.01;
/// At most so many resources are named.
const NAMED_MAX: usize = 3;

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// Requests fail, or answers may be wrong.
    Error,
    /// Requests are slower than they need to be, or something will fail later.
    Warning,
}

/// Something that is wrong.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Fault {
    /// Its kind, the same as long as it lasts.
    pub(super) id: &'static str,
    pub(super) severity: Severity,
    /// What is wrong.
    pub(super) message: String,
    /// What to do.
    pub(super) remedy: String,
    /// How long it has been known.
    pub(super) seconds: f64,
}

/// Responses of the last minute.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rates {
    pub(super) requests: f64,
    pub(super) server_errors: f64,
    pub(super) too_many_requests: f64,
}

/// Since when each fault lasts, by its kind.
#[derive(Debug, Default)]
pub(super) struct FaultLog {
    since: Mutex<Vec<(&'static str, Boottime)>>,
}

impl FaultLog {
    /// What is wrong now, the worst first. Notes when it began.
    pub(super) fn observe(&self, status: &Status, rates: Rates) -> Vec<Fault> {
        let now = Boottime::now();
        let mut faults = faults(status, rates);
        faults.sort_by_key(|fault| fault.severity);
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.retain(|(id, _)| faults.iter().any(|fault| fault.id == *id));
        for fault in &mut faults {
            match since.iter().find(|(id, _)| *id == fault.id) {
                Some((_, began)) => fault.seconds = now.since(*began).as_secs_f64(),
                None => since.push((fault.id, now)),
            }
        }
        faults
    }
}

fn faults(status: &Status, rates: Rates) -> Vec<Fault> {
    let mut faults = Vec::new();
    faults.extend(feed_fault(status));
    faults.extend(source_faults(status));
    faults.extend(resource_faults(status));
    faults.extend(audit_fault(status));
    faults.extend(disk_fault(status));
    faults.extend(log_faults(status));
    faults.extend(rate_faults(rates));
    faults
}

fn fault(
    id: &'static str,
    severity: Severity,
    message: String,
    remedy: impl Into<String>,
) -> Fault {
    Fault {
        id,
        severity,
        message,
        remedy: remedy.into(),
        seconds: 0.0,
    }
}

/// The feed can't follow the database, or is behind.
fn feed_fault(status: &Status) -> Option<Fault> {
    let feed = &status.feed;
    let severity = if feed.fresh {
        Severity::Warning
    } else {
        Severity::Error
    };
    if let Some(reason) = &feed.lost {
        return Some(fault(
            "feed-lost",
            severity,
            format!("The database can't be followed: {reason}"),
            "Check that PostgreSQL runs and accepts larder over database.url and database.listen_url. larder tries again by \
             itself; after max_staleness, PostgreSQL answers every request.",
        ));
    }
    let age = feed.age_seconds;
    (!feed.fresh).then(|| {
        let message = match age {
            Some(age) => format!("The feed is {age:.1} s behind, so no tier may answer"),
            None => "The feed has not completed a pass yet, so no tier may answer".to_owned(),
        };
        let remedy = "If this lasts, look in the log of larder for what it waits for, and in PostgreSQL for long \
                      transactions and load.";
        fault("feed-behind", severity, message, remedy)
    })
}

/// Documents can't be read or written, or wait long.
fn source_faults(status: &Status) -> Vec<Fault> {
    let source = &status.source;
    let remedy = "Check database.url, the role's privileges and the limit of connections of PostgreSQL. larder tries again \
                  by itself.";
    let reads = source.reads_lost.as_ref().map(|reason| {
        let message = format!("Documents can't be read from PostgreSQL: {reason}");
        fault("reads-lost", Severity::Error, message, remedy)
    });
    let writes = source.writes_lost.as_ref().map(|reason| {
        let message = format!("Documents can't be written to PostgreSQL: {reason}");
        fault("writes-lost", Severity::Error, message, remedy)
    });
    let keys = status.source_waiting_keys;
    let waiting = (keys > WAITING_KEYS_MAX).then(|| {
        let message = format!("{keys} keys wait for PostgreSQL");
        let remedy =
            "Look at the slowest loads, and run `larder check`, which names missing indexes.";
        fault("waiting-keys", Severity::Warning, message, remedy)
    });
    [reads, writes, waiting].into_iter().flatten().collect()
}

/// Resources that are not served, or not cached.
fn resource_faults(status: &Status) -> Vec<Fault> {
    let unfit = status.resources.iter().filter_map(|resource| {
        let reason = resource.unfit.as_ref()?;
        Some((resource.name.as_str(), Some(reason.as_str())))
    });
    let unfit = named(unfit).map(|resources| {
        let message = format!("Does not fit the database or may not be read, and is not served: {resources}");
        let remedy = "Correct the configuration or the table, or run the grant that is named. `larder check` names every \
                      mistake and every missing privilege.";
        fault("unfit", Severity::Error, message, remedy)
    });
    let unready = status.resources.iter();
    let unready = unready.filter(|resource| !resource.ready && resource.unfit.is_none());
    let unready = named(unready.map(|resource| (resource.name.as_str(), None))).map(|resources| {
        let message = format!("Is being checked against the database: {resources}");
        let remedy =
            "Wait. If this lasts, the log of larder names the transaction whose lock it waits for.";
        fault("unready", Severity::Warning, message, remedy)
    });
    let uncached = status.resources.iter().filter_map(|resource| {
        let reason = resource.uncached.as_ref()?;
        Some((resource.name.as_str(), Some(reason.as_str())))
    });
    let uncached = named(uncached).map(|resources| {
        let message = format!("Is read from PostgreSQL each time: {resources}");
        let remedy = "Run `larder check`. It names what is missing, with the SQL that adds it.";
        fault("uncached", Severity::Warning, message, remedy)
    });
    [unfit, unready, uncached].into_iter().flatten().collect()
}

/// The first of the resources with their reasons, and the number of the others; `None` if there are none.
fn named<'s>(resources: impl Iterator<Item = (&'s str, Option<&'s str>)>) -> Option<String> {
    let mut named = Vec::new();
    let mut others = 0;
    for (name, reason) in resources {
        if named.len() == NAMED_MAX {
            others += 1;
            continue;
        }
        named.push(match reason {
            Some(reason) => format!("{name} ({reason})"),
            None => name.to_owned(),
        });
    }
    let more = match others {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    (!named.is_empty()).then(|| format!("{}{more}", named.join(", ")))
}

fn audit_fault(status: &Status) -> Option<Fault> {
    (status.audit_stale > 0).then(|| {
        let message = format!(
            "The audit has found {} stale answers since the start",
            status.audit_stale
        );
        let remedy = "This is a bug of larder. The documents were dropped; report the lines of the log that begin with `the \
                      audit found a stale document`.";
        fault("stale", Severity::Error, message, remedy)
    })
}

fn disk_fault(status: &Status) -> Option<Fault> {
    let is_off = status.disk.as_ref().is_some_and(|disk| !disk.in_use);
    is_off.then(|| {
        let message = "The disk tier does not answer".to_owned();
        let remedy = "After a start it is being opened. Else the log of larder has the reason, and an empty tier is opened by \
                      itself.";
        fault("disk-off", Severity::Warning, message, remedy)
    })
}

/// The change log can't be pruned.
fn log_faults(status: &Status) -> Vec<Fault> {
    let Some(log) = &status.feed.log else {
        return Vec::new();
    };
    let old = log.oldest_transaction.as_ref();
    let old = old.filter(|transaction| transaction.age_seconds > TRANSACTION_AGE_MAX);
    let transaction = old.map(|transaction| {
        let minutes = transaction.age_seconds / 60.0;
        let (which, remedy) = match (transaction.pid, &transaction.prepared) {
            (Some(pid), _) => (
                format!("of process {pid} has been open"),
                format!("End it if it is forgotten: select pg_terminate_backend({pid})"),
            ),
            (None, prepared) => (
                "has been prepared".to_owned(),
                format!(
                    "Commit it or roll it back: rollback prepared '{}'",
                    prepared.as_deref().unwrap_or_default().replace('\'', "''")
                ),
            ),
        };
        let message = format!(
            "A transaction {which} for {minutes:.0} minutes; rows of the change log are kept for it"
        );
        fault("old-transaction", Severity::Warning, message, remedy)
    });
    let gone = log.oldest_node.as_ref();
    let gone = gone.filter(|node| node.seen_seconds_ago > NODE_AGE_MAX);
    let node = gone.map(|node| {
        let minutes = node.seen_seconds_ago / 60.0;
        let message = format!(
            "The larder {} was last seen {minutes:.0} minutes ago; rows of the change log are kept for it",
            node.name
        );
        let remedy = format!(
            "Start it again; if it is gone for good: larder prune --forget {}",
            node.name
        );
        fault("lost-node", Severity::Warning, message, remedy)
    });
    [transaction, node].into_iter().flatten().collect()
}

fn rate_faults(rates: Rates) -> Vec<Fault> {
    let failed = (rates.server_errors >= 1.0).then(|| {
        let share = rates.server_errors / rates.requests.max(1.0);
        let severity = if share > FAILED_SHARE_MAX {
            Severity::Error
        } else {
            Severity::Warning
        };
        let message = format!(
            "{:.0} requests of the last minute failed (5xx)",
            rates.server_errors
        );
        let remedy = "The list of resources counts them (5xx). The log of larder has each 500 with its reason, and once each \
                      reason for which documents can't be read or written (503).";
        fault("server-errors", severity, message, remedy)
    });
    let refused = (rates.too_many_requests >= 1.0).then(|| {
        let message = format!(
            "{:.0} requests of the last minute were above a limit (429)",
            rates.too_many_requests
        );
        let remedy = "Find the client in the access log; if it may send as much, raise limits.requests_per_second and \
                      limits.burst.";
        fault("too-many-requests", Severity::Warning, message, remedy)
    });
    [failed, refused].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{FeedStatus, ResourceStatus, SourceStatus, TierStatus};
    use crate::clock::stopped;
    use crate::feed::backlog::{Backlog, OldestNode, OldestTransaction};

    fn resource(name: &str) -> ResourceStatus {
        ResourceStatus {
            name: name.into(),
            ready: true,
            unfit: None,
            uncached: None,
            lookups: 0,
            hits_memory: 0,
            hits_disk: 0,
            memory_entries: 0,
            key: None,
            bypassed: 0,
            too_many_requests: 0,
            server_errors: 0,
        }
    }

    fn sound() -> Status {
        let tier = TierStatus {
            in_use: true,
            entries: 0,
            bytes: 0,
            bytes_max: 0,
            hits: 0,
        };
        Status {
            resources: ["a", "b", "c", "d", "e"].map(resource).into(),
            memory: tier.clone(),
            disk: Some(tier),
            feed: FeedStatus {
                position: None,
                age_seconds: Some(0.1),
                fresh: true,
                lost: None,
                log: Some(Backlog {
                    bytes: 0,
                    rows_estimated: None,
                    oldest_node: Some(OldestNode {
                        name: "n".into(),
                        seen_seconds_ago: 31.0,
                        position: "1:1:".into(),
                    }),
                    oldest_transaction: Some(OldestTransaction {
                        pid: Some(7),
                        prepared: None,
                        age_seconds: 60.0,
                    }),
                    other_nodes: Vec::new(),
                }),
            },
            source_waiting_keys: 9,
            source: SourceStatus {
                reads_lost: None,
                writes_lost: None,
                connections: Vec::new(),
            },
            definition_changed: None,
            audit_stale: 0,
        }
    }

    #[track_caller]
    fn ids(change: impl FnOnce(&mut Status)) -> Vec<&'static str> {
        let mut status = sound();
        change(&mut status);
        let faults = faults(&status, Rates::default());
        faults.into_iter().map(|fault| fault.id).collect()
    }

    #[test]
    fn nothing_is_wrong_with_a_sound_larder() {
        assert!(ids(|_| ()).is_empty());
    }

    #[test]
    fn each_fault_is_named() {
        let log = |status: &mut Status, change: fn(&mut Backlog)| {
            change(status.feed.log.as_mut().unwrap());
        };
        assert_eq!(
            ids(|status| status.feed.lost = Some("gone".into())),
            ["feed-lost"]
        );
        assert_eq!(ids(|status| status.feed.fresh = false), ["feed-behind"]);
        assert_eq!(
            ids(|status| status.source.reads_lost = Some("gone".into())),
            ["reads-lost"]
        );
        assert_eq!(
            ids(|status| status.source.writes_lost = Some("gone".into())),
            ["writes-lost"]
        );
        assert_eq!(
            ids(|status| status.source_waiting_keys = 2_001),
            ["waiting-keys"]
        );
        assert_eq!(ids(|status| status.resources[0].ready = false), ["unready"]);
        assert_eq!(
            ids(|status| status.resources[0].unfit = Some("why".into())),
            ["unfit"]
        );
        assert_eq!(
            ids(|status| status.resources[0].uncached = Some("why".into())),
            ["uncached"]
        );
        assert_eq!(ids(|status| status.audit_stale = 1), ["stale"]);
        assert_eq!(
            ids(|status| status.disk.as_mut().unwrap().in_use = false),
            ["disk-off"]
        );
        let old = |log: &mut Backlog| log.oldest_transaction.as_mut().unwrap().age_seconds = 301.0;
        assert_eq!(ids(|status| log(status, old)), ["old-transaction"]);
        let gone = |log: &mut Backlog| log.oldest_node.as_mut().unwrap().seen_seconds_ago = 121.0;
        assert_eq!(ids(|status| log(status, gone)), ["lost-node"]);
    }

    #[test]
    fn many_resources_are_counted() {
        let mut status = sound();
        for resource in &mut status.resources {
            resource.unfit = Some("why".into());
        }
        let faults = faults(&status, Rates::default());
        let expected = "Does not fit the database or may not be read, and is not served: a (why), b (why), c (why) and 2 more";
        assert_eq!(faults[0].message, expected);
    }

    #[test]
    fn failures_are_errors_if_they_are_many() {
        let severity = |requests, server_errors| {
            let rates = Rates {
                requests,
                server_errors,
                too_many_requests: 0.0,
            };
            faults(&sound(), rates).first().map(|fault| fault.severity)
        };
        assert_eq!(severity(1_000.0, 0.0), None);
        assert_eq!(severity(1_000.0, 2.0), Some(Severity::Warning));
        assert_eq!(severity(1_000.0, 20.0), Some(Severity::Error));
    }

    #[test]
    fn a_fault_lasts_from_when_it_was_first_seen() {
        let log = FaultLog::default();
        let observe = |at: u64, status: &Status| {
            stopped::set(Boottime(at * 1_000_000_000));
            let faults = log.observe(status, Rates::default()).into_iter();
            faults
                .map(|fault| (fault.id, fault.seconds))
                .collect::<Vec<_>>()
        };
        let mut status = sound();
        status.resources[0].uncached = Some("why".into());
        assert_eq!(observe(10, &status), [("uncached", 0.0)]);
        status.audit_stale = 1;
        assert_eq!(observe(15, &status), [("stale", 0.0), ("uncached", 5.0)]);
        assert_eq!(observe(20, &sound()), []);
        assert_eq!(observe(25, &status), [("stale", 0.0), ("uncached", 0.0)]);
    }
}
