//! Verdicts on credentials that were verified before, so that a hot one costs a hash and a comparison.
//!
//! A table of buckets of a few each: it never grows, nobody locks, and a look copies nothing. Where a bucket is full,
//! the oldest verdict makes room. Credentials are kept as they came: who can read this memory can read requests too.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use ring::rand::{SecureRandom, SystemRandom};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::clock::Boottime;
use crate::http::auth::Principal;
use crate::http::auth::credential::Kind;

/// Verdicts in a bucket.
const WAYS: usize = 8;
/// A longer credential is verified each time. So a full table of 1,024 buckets holds at most 16 MiB of them.
const CREDENTIAL_BYTES_MAX: usize = 2048;

/// What is known of credentials.
pub(super) struct Verdicts {
    buckets: Box<[ArcSwap<Bucket>]>,
    /// Nobody outside can tell which credentials share a hash: comparing one with another of the same hash tells nothing
    /// by the time it takes.
    seed: u64,
}

/// Oldest first.
type Bucket = Vec<Arc<Verdict>>;

/// A credential, and whose it is.
pub(super) struct Verdict {
    hash: u64,
    kind: Kind,
    credential: Box<[u8]>,
    /// From then on it has to be verified again.
    until: Boottime,
    /// Of the keys that it was verified with.
    generation: u64,
    /// `None`: nobody's.
    pub(super) principal: Option<Arc<Principal>>,
}

/// A verdict where it lies.
pub(in crate::http) struct Found {
    bucket: Guard<Arc<Bucket>>,
    at: usize,
}

impl Found {
    pub(super) fn principal(&self) -> Option<&Arc<Principal>> {
        self.bucket.get(self.at)?.principal.as_ref()
    }
}

impl Verdicts {
    /// A table of so many buckets, a power of two.
    pub(super) fn new(buckets: usize) -> Self {
        let mut seed = [0; 8];
        // Without random bytes nothing else of larder's, TLS first, works either.
        if SystemRandom::new().fill(&mut seed).is_err() {
            tracing::error!("no random bytes for the table of verdicts");
        }
        Self {
            buckets: (0..buckets.max(1)).map(|_| ArcSwap::default()).collect(),
            seed: u64::from_ne_bytes(seed),
        }
    }

    fn hash(&self, kind: Kind, credential: &[u8]) -> u64 {
        xxh3_64_with_seed(credential, self.seed ^ kind as u64)
    }

    fn bucket(&self, hash: u64) -> Option<&ArcSwap<Bucket>> {
        // The remainder fits.
        self.buckets
            .get((hash % self.buckets.len() as u64) as usize)
    }

    /// The verdict, if there is one that still holds.
    pub(super) fn get(
        &self,
        kind: Kind,
        credential: &[u8],
        generation: u64,
        now: Boottime,
    ) -> Option<Found> {
        let hash = self.hash(kind, credential);
        let bucket = self.bucket(hash)?.load();
        let at = bucket.iter().position(|verdict| {
            verdict.hash == hash
                && verdict.kind == kind
                && verdict.generation == generation
                && now < verdict.until
                && *verdict.credential == *credential
        })?;
        Some(Found { bucket, at })
    }

    /// Keeps a verdict, in place of an earlier one on the same credential.
    pub(super) fn put(
        &self,
        kind: Kind,
        credential: &[u8],
        generation: u64,
        until: Boottime,
        principal: Option<&Arc<Principal>>,
    ) {
        if credential.len() > CREDENTIAL_BYTES_MAX {
            return;
        }
        let verdict = Arc::new(Verdict {
            hash: self.hash(kind, credential),
            kind,
            credential: credential.into(),
            until,
            generation,
            principal: principal.map(Arc::clone),
        });
        let Some(bucket) = self.bucket(verdict.hash) else {
            return;
        };
        bucket.rcu(|old| {
            let others = old.iter().filter(|other| other.hash != verdict.hash);
            let mut new: Bucket = others.map(Arc::clone).collect();
            if new.len() >= WAYS {
                new.remove(0);
            }
            new.push(Arc::clone(&verdict));
            new
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(verdicts: &Verdicts, credential: &[u8], generation: u64, now: u64) -> Option<String> {
        let found = verdicts.get(Kind::Bearer, credential, generation, Boottime(now))?;
        found.principal().map(|principal| principal.name.clone())
    }

    fn put(verdicts: &Verdicts, credential: &[u8], generation: u64, until: u64) {
        let name = String::from_utf8_lossy(credential).into_owned();
        let principal = Arc::new(Principal::named(&name));
        let until = Boottime(until);
        verdicts.put(
            Kind::Bearer,
            credential,
            generation,
            until,
            Some(&principal),
        );
    }

    #[test]
    fn a_verdict_holds_for_its_time_its_keys_and_its_credential() {
        let verdicts = Verdicts::new(4);
        put(&verdicts, b"a", 1, 100);
        assert_eq!(seen(&verdicts, b"a", 1, 99).as_deref(), Some("a"));
        assert_eq!(seen(&verdicts, b"a", 1, 100), None);
        assert_eq!(seen(&verdicts, b"a", 2, 99), None);
        assert_eq!(seen(&verdicts, b"b", 1, 99), None);
        assert_eq!(seen(&verdicts, b"", 1, 99), None);
        assert!(verdicts.get(Kind::Cookie, b"a", 1, Boottime(99)).is_none());
        put(&verdicts, b"a", 2, 200);
        assert_eq!(seen(&verdicts, b"a", 2, 150).as_deref(), Some("a"));
    }

    #[test]
    fn a_full_bucket_gives_up_its_oldest() {
        let verdicts = Verdicts::new(1);
        for number in 0..20_u8 {
            put(&verdicts, &[number], 0, 100);
        }
        let kept: Vec<u8> = (0..20)
            .filter(|&number| {
                verdicts
                    .get(Kind::Bearer, &[number], 0, Boottime(1))
                    .is_some()
            })
            .collect();
        assert_eq!(kept, (12..20).collect::<Vec<u8>>());
        put(&verdicts, &[b'x'; CREDENTIAL_BYTES_MAX + 1], 0, 100);
        assert_eq!(verdicts.bucket(0).unwrap().load().len(), WAYS);
    }
}
