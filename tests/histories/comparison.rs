//! Compares larder's answers with the oracle's documents, and tells a stale document from one whose change may still
//! come.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::documents::oracle::DocumentsByPath;
use crate::freshness::testbed::is_hit;
use crate::harness::service::{TestResponse, TestService};
use crate::histories::oracle::Oracle;
use crate::histories::plan::Plan;

/// `max_staleness` by default: a read that begins later than that after a change shows the change. The machine's speed
/// plays no part: larder compares the clock at the read with the time before its last pass.
const MAX_STALENESS: Duration = Duration::from_secs(1);
/// Until then a resource that fits has to answer again, and from its tiers.
const RIGHT_WITHIN: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// All documents that ever existed in a history, and since when each has its value.
#[derive(Default)]
pub(super) struct Comparison {
    known: BTreeSet<String>,
    since: HashMap<String, (Option<String>, Instant)>,
    pub(super) reads: u64,
}

/// The result of comparing a read.
enum ComparedRead {
    Right,
    /// Right, but not from a tier.
    Cold,
    /// May still come; why, for the case that it does not.
    Pending(String),
}

impl Comparison {
    /// Waits until every document of the resources that fit is right, and served from a tier unless policies may forbid
    /// that.
    ///
    /// # Errors
    /// A stale document, or one that never becomes right.
    pub(super) async fn settle(
        &mut self,
        service: &TestService,
        oracle: &mut Oracle,
        plan: &Plan,
        role: &str,
    ) -> Result<(), String> {
        let deadline = Instant::now() + RIGHT_WITHIN;
        loop {
            let now = self.update(oracle, plan, role).await;
            let mut reads = Vec::new();
            for path in self.since.keys() {
                let began = Instant::now();
                reads.push((path.clone(), began, service.get(path).await));
            }
            self.reads += reads.len() as u64;
            // Nothing changed meanwhile if all agrees; else the oracle may have.
            let agrees = reads
                .iter()
                .all(|(path, _, answer)| is_right(answer, now.get(path)));
            let then = if agrees {
                now.clone()
            } else {
                self.update(oracle, plan, role).await
            };
            let mut pending = Vec::new();
            for (path, began, answer) in &reads {
                if now.get(path) != then.get(path) || !self.since.contains_key(path) {
                    pending.push(format!("{path} changes by itself"));
                    continue;
                }
                match self.compare(path, *began, answer, then.get(path))? {
                    ComparedRead::Right => {}
                    ComparedRead::Cold if plan.policies => {}
                    ComparedRead::Cold => pending.push(format!(
                        "{path} comes from no tier: {}",
                        answer.cache_status()
                    )),
                    ComparedRead::Pending(why) => pending.push(why),
                }
            }
            if pending.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                pending.truncate(5);
                let ready = service.admin("/readyz").await.body;
                let pending = pending.join("\n");
                return Err(format!(
                    "unavailable: after {RIGHT_WITHIN:?} still\n{pending}\n{ready}"
                ));
            }
            sleep(PAUSE).await;
        }
    }

    /// Reads the documents of the oracle, and notes which have changed.
    async fn update(&mut self, oracle: &mut Oracle, plan: &Plan, role: &str) -> DocumentsByPath {
        let (documents, fitting) = oracle.documents(plan, role).await;
        let seen = Instant::now();
        self.known.extend(documents.keys().cloned());
        for path in &self.known {
            // `/name/key`
            if !fitting
                .iter()
                .any(|name| path[1..].starts_with(&format!("{name}/")))
            {
                self.since.remove(path);
                continue;
            }
            let document = documents.get(path).cloned();
            match self.since.get_mut(path) {
                Some((known, _)) if *known == document => {}
                Some(entry) => *entry = (document, seen),
                None => {
                    self.since.insert(path.clone(), (document, seen));
                }
            }
        }
        documents
    }

    fn compare(
        &self,
        path: &str,
        began: Instant,
        answer: &TestResponse,
        expected: Option<&String>,
    ) -> Result<ComparedRead, String> {
        if is_right(answer, expected) {
            return Ok(if is_hit(answer) {
                ComparedRead::Right
            } else {
                ComparedRead::Cold
            });
        }
        let since = self.since[path].1;
        let what = format!(
            "{path}\n  larder {} {}\n    {}\n  oracle, for {:?}\n    {}",
            answer.status,
            answer.cache_status(),
            answer.body,
            began.saturating_duration_since(since),
            expected.map_or("none", String::as_str)
        );
        let answered = answer.status == 200 || answer.status == 404;
        if answered && began > since + MAX_STALENESS {
            Err(format!("stale: {what}"))
        } else {
            Ok(ComparedRead::Pending(what))
        }
    }
}

fn is_right(answer: &TestResponse, expected: Option<&String>) -> bool {
    match expected {
        Some(document) => answer.status == 200 && answer.body == *document,
        None => answer.status == 404,
    }
}
