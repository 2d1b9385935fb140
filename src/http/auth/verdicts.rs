//! Verdicts on credentials that were verified before, so that a hot one costs a hash and a comparison.
//!
//! A table of buckets of a few each: it never grows, nobody locks, and a look copies nothing. Where a bucket is full,
//! the oldest verdict makes room. Credentials are kept as they came: who can read this memory can read requests too. Of
//! very long ones a SHA-256 is kept, so that the table stays small; it would cost the others more than their comparison.

use std::borrow::Cow;
use std::hint::black_box;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::clock::Boottime;
use crate::http::auth::Principal;
use crate::http::auth::credential::Kind;

/// Verdicts in a bucket.
const WAYS: usize = 8;
/// Of a longer credential its SHA-256 is kept. So a full table of 1,024 buckets holds at most 16 MiB of them.
const KEPT_BYTES_MAX: usize = 2048;

/// What is known of credentials.
pub(super) struct Verdicts {
    buckets: Box<[ArcSwap<Bucket>]>,
    /// Nobody outside can tell which credentials share a bucket or a hash.
    seed: u64,
}

/// Oldest first.
type Bucket = Vec<Arc<Verdict>>;

/// A credential, and whose it is.
pub(super) struct Verdict {
    hash: u64,
    kind: Kind,
    /// As [`kept`] says.
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
    /// A table of so many buckets.
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
        let credential = kept(credential);
        let bucket = self.bucket(hash)?.load();
        let at = bucket.iter().position(|verdict| {
            verdict.hash == hash
                && verdict.kind == kind
                && verdict.generation == generation
                && now < verdict.until
                && is_same(&verdict.credential, &credential)
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
        let verdict = Arc::new(Verdict {
            hash: self.hash(kind, credential),
            kind,
            credential: kept(credential).into(),
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

/// What is kept of a credential, and compared.
fn kept(credential: &[u8]) -> Cow<'_, [u8]> {
    match credential.len() {
        0..=KEPT_BYTES_MAX => Cow::Borrowed(credential),
        _ => Cow::Owned(digest(&SHA256, credential).as_ref().to_vec()),
    }
}

/// Whether two credentials are the same, in a time that depends on their lengths alone.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let pairs = one.iter().zip(other);
    let difference = pairs.fold(0, |difference, (a, b)| difference | (a ^ b));
    one.len() == other.len() && black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::auth::credential::BYTES_MAX;

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
        assert_eq!(verdicts.buckets[0].load().len(), WAYS);
    }

    #[test]
    fn credentials_of_every_length_are_known_again() {
        for length in [0, 1, KEPT_BYTES_MAX, KEPT_BYTES_MAX + 1, BYTES_MAX] {
            let verdicts = Verdicts::new(1);
            let credential = vec![b'x'; length];
            put(&verdicts, &credential, 0, 100);
            assert!(seen(&verdicts, &credential, 0, 1).is_some(), "{length}");
            let kept = verdicts.buckets[0].load()[0].credential.len();
            assert!(kept <= KEPT_BYTES_MAX, "{length}");
            assert!(seen(&verdicts, b"y", 0, 1).is_none(), "{length}");
        }
    }

    /// Beyond a hash of 64 bits, of which two credentials may share one.
    #[test]
    fn only_the_same_bytes_are_the_same() {
        assert!(is_same(b"", b"") && is_same(b"abc", b"abc"));
        for other in [&b""[..], b"ab", b"abd", b"bbc", b"abcd"] {
            assert!(!is_same(b"abc", other) && !is_same(other, b"abc"));
        }
        let long = [b'x'; BYTES_MAX];
        assert!(!is_same(&kept(&long), &kept(&long[1..])));
    }
}
