//! What the tiers know of one key, as the admin address shows it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;

use crate::cache::Cache;
use crate::cache::disk::layout::DiskEntry;
use crate::cache::document::Document;
use crate::cache::recent::LastInvalidation;
use crate::clock::Boottime;
use crate::resource::ResourceId;

/// `GET /explain/RESOURCE/KEY`.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The resource.
    pub resource: String,
    /// The key's canonical text.
    pub key: String,
    /// Its entry in the memory tier.
    pub memory: Option<EntryStatus>,
    /// Its entry in the disk tier, if the disk tier may answer for it now.
    pub disk: Option<EntryStatus>,
    /// The generation of the key: how often its stripe was invalidated so far.
    pub generation: u64,
    /// Whether tiers may answer for the resource.
    pub fresh: bool,
    /// Why no tier keeps documents of the resource, which are read from PostgreSQL each time.
    pub uncached: Option<String>,
    /// The transactions in this snapshot have been applied.
    pub position: Option<String>,
    /// The last invalidation that the key may have been part of; `None` if none is known any more.
    pub invalidated: Option<LastInvalidation>,
}

/// A tier's entry of one key.
#[derive(Clone, Debug, Serialize)]
pub struct EntryStatus {
    /// True for a document, false for a remembered absence.
    pub found: bool,
    /// How long ago it was read or, on disk, written.
    pub age_seconds: f64,
    /// The canonical text of the owner's column; `None` for an absence, for null, and if the resource has no owner.
    pub owner: Option<String>,
    /// Bytes of the document; 0 for an absence.
    pub bytes: usize,
    /// The entity tag of the document, quotes included; `None` for an absence.
    pub etag: Option<String>,
}

impl EntryStatus {
    fn new(document: Option<&Document>, age: Duration) -> Self {
        let document = document.filter(|document| document.exists());
        let etag = |document: &Document| String::from_utf8_lossy(&document.etag()).into_owned();
        Self {
            found: document.is_some(),
            age_seconds: age.as_secs_f64(),
            owner: document.and_then(owner),
            bytes: document.map_or(0, |document| document.body().len()),
            etag: document.map(etag),
        }
    }
}

impl Cache {
    /// Which tiers have the document of `key`, and whether they may answer.
    pub async fn explain(&self, resource: ResourceId, key: &str) -> Explanation {
        let cached = self.cached(resource);
        let stripe = self.versions.stripe(resource, key);
        let (memory, disk) = self.entries(resource, key).await;
        Explanation {
            resource: cached.name.clone(),
            key: key.to_owned(),
            memory: memory.map(|document| {
                EntryStatus::new(Some(&document), Boottime::now().since(document.read_at()))
            }),
            disk: disk.map(|entry| {
                let age = entry.written_at.elapsed().unwrap_or_default();
                EntryStatus::new(entry.found.as_ref(), age)
            }),
            generation: self.versions.generation(stripe),
            fresh: self.is_fresh(cached, Boottime::now()),
            uncached: cached.why_uncached(),
            position: self
                .freshness
                .position()
                .map(|position| position.to_string()),
            invalidated: self.recent.last_of(resource, key),
        }
    }

    /// The document of `key` as a tier has it, whether it may answer or not. Counts no touch.
    pub async fn kept_document(&self, resource: ResourceId, key: &str) -> Option<Document> {
        let (memory, disk) = self.entries(resource, key).await;
        let document = memory.or_else(|| disk?.found)?;
        document.exists().then_some(document)
    }

    /// The entries of `key` in memory and on disk, that on disk only if the disk tier may answer for it now.
    async fn entries(
        &self,
        resource: ResourceId,
        key: &str,
    ) -> (Option<Document>, Option<DiskEntry>) {
        let epoch = self.versions.epoch(resource);
        let stripe = self.versions.stripe(resource, key);
        let disk = match &self.disk {
            Some(disk) if disk.is_in_use() && self.versions.clean_generation(stripe).is_some() => {
                let prefix = self.cached(resource).prefix.load(Ordering::SeqCst);
                disk.get(prefix, &Arc::from(key), epoch).await
            }
            _ => None,
        };
        (self.memory.peek(resource, key, epoch), disk)
    }
}

fn owner(document: &Document) -> Option<String> {
    let owner = document.kept().owner()?;
    Some(String::from_utf8_lossy(owner).into_owned())
}
