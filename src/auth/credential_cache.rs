//! The cache of verified credentials, in which a lookup costs a hash and a comparison.
//!
//! The cache is a table with a fixed number of buckets, each of a few entries. Reads take no lock and copy nothing. In a
//! full bucket a new entry replaces the oldest one. Credentials are stored as they were sent: a program that can read
//! this memory can read requests too. Of a very long credential the SHA-256 is stored, which bounds the table; for shorter ones the
//! digest would cost more than the comparison.

use std::borrow::Cow;
use std::hint::black_box;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::auth::Principal;
use crate::auth::Scheme;
use crate::clock::Boottime;

/// Entries in a bucket.
const WAYS: usize = 8;
/// Of a longer credential the SHA-256 is stored. So a full table of 1,024 buckets has at most 16 MiB of credentials.
const KEPT_BYTES_MAX: usize = 2048;

/// The principals of credentials.
pub(super) struct CredentialCache {
    buckets: Box<[ArcSwap<Bucket>]>,
    /// Makes it impossible for clients to find credentials that share a bucket or a hash.
    seed: u64,
}

/// Entries, oldest first.
type Bucket = Vec<Arc<CachedCredential>>;

/// A credential and its principal.
pub(super) struct CachedCredential {
    hash: u64,
    scheme: Scheme,
    /// As [`kept`] says.
    credential: Box<[u8]>,
    /// The time from which it has to be verified again.
    until: Boottime,
    /// The generation of the keys that verified it.
    generation: u64,
    /// `None` for a wrong credential.
    pub(super) principal: Option<Arc<Principal>>,
}

/// A reference to an entry of the cache.
pub(crate) struct CachedPrincipal {
    bucket: Guard<Arc<Bucket>>,
    at: usize,
}

impl CachedPrincipal {
    pub(crate) fn principal(&self) -> Option<&Arc<Principal>> {
        self.bucket.get(self.at)?.principal.as_ref()
    }
}

impl CredentialCache {
    /// A table of so many buckets.
    pub(super) fn new(buckets: usize) -> Self {
        let mut seed = [0; 8];
        // Without random bytes TLS would not work either.
        if SystemRandom::new().fill(&mut seed).is_err() {
            tracing::error!("the system gave no random bytes for the credential cache");
        }
        Self {
            buckets: (0..buckets.max(1)).map(|_| ArcSwap::default()).collect(),
            seed: u64::from_ne_bytes(seed),
        }
    }

    fn hash(&self, scheme: Scheme, credential: &[u8]) -> u64 {
        xxh3_64_with_seed(credential, self.seed ^ scheme as u64)
    }

    fn bucket(&self, hash: u64) -> Option<&ArcSwap<Bucket>> {
        // The remainder fits.
        self.buckets
            .get((hash % self.buckets.len() as u64) as usize)
    }

    /// The entry of a credential, if there is a valid one.
    pub(super) fn get(
        &self,
        scheme: Scheme,
        credential: &[u8],
        generation: u64,
        now: Boottime,
    ) -> Option<CachedPrincipal> {
        let hash = self.hash(scheme, credential);
        let credential = kept(credential);
        let bucket = self.bucket(hash)?.load();
        let at = bucket.iter().position(|entry| {
            entry.hash == hash
                && entry.scheme == scheme
                && entry.generation == generation
                && now < entry.until
                && is_same(&entry.credential, &credential)
        })?;
        Some(CachedPrincipal { bucket, at })
    }

    /// Stores an entry, which replaces an earlier one of the same credential.
    pub(super) fn put(
        &self,
        scheme: Scheme,
        credential: &[u8],
        generation: u64,
        until: Boottime,
        principal: Option<&Arc<Principal>>,
    ) {
        let entry = Arc::new(CachedCredential {
            hash: self.hash(scheme, credential),
            scheme,
            credential: kept(credential).into(),
            until,
            generation,
            principal: principal.map(Arc::clone),
        });
        let Some(bucket) = self.bucket(entry.hash) else {
            return;
        };
        bucket.rcu(|old| {
            let others = old.iter().filter(|other| other.hash != entry.hash);
            let mut new: Bucket = others.map(Arc::clone).collect();
            if new.len() >= WAYS {
                new.remove(0);
            }
            new.push(Arc::clone(&entry));
            new
        });
    }
}

/// The bytes of a credential that are stored and compared.
fn kept(credential: &[u8]) -> Cow<'_, [u8]> {
    match credential.len() {
        0..=KEPT_BYTES_MAX => Cow::Borrowed(credential),
        _ => Cow::Owned(digest(&SHA256, credential).as_ref().to_vec()),
    }
}

/// Whether two credentials are the same. The time of the comparison depends only on their lengths.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let pairs = one.iter().zip(other);
    let difference = pairs.fold(0, |difference, (a, b)| difference | (a ^ b));
    one.len() == other.len() && black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::CREDENTIAL_BYTES_MAX as BYTES_MAX;

    fn seen(
        entries: &CredentialCache,
        credential: &[u8],
        generation: u64,
        now: u64,
    ) -> Option<String> {
        let found = entries.get(Scheme::Bearer, credential, generation, Boottime(now))?;
        found.principal().map(|principal| principal.name.clone())
    }

    fn put(entries: &CredentialCache, credential: &[u8], generation: u64, until: u64) {
        let name = String::from_utf8_lossy(credential).into_owned();
        let principal = Arc::new(Principal::named(&name));
        let until = Boottime(until);
        entries.put(
            Scheme::Bearer,
            credential,
            generation,
            until,
            Some(&principal),
        );
    }

    #[test]
    fn an_entry_holds_for_its_time_its_keys_and_its_credential() {
        let entries = CredentialCache::new(4);
        put(&entries, b"a", 1, 100);
        assert_eq!(seen(&entries, b"a", 1, 99).as_deref(), Some("a"));
        assert_eq!(seen(&entries, b"a", 1, 100), None);
        assert_eq!(seen(&entries, b"a", 2, 99), None);
        assert_eq!(seen(&entries, b"b", 1, 99), None);
        assert_eq!(seen(&entries, b"", 1, 99), None);
        assert!(entries.get(Scheme::Cookie, b"a", 1, Boottime(99)).is_none());
        put(&entries, b"a", 2, 200);
        assert_eq!(seen(&entries, b"a", 2, 150).as_deref(), Some("a"));
    }

    #[test]
    fn a_full_bucket_gives_up_its_oldest() {
        let entries = CredentialCache::new(1);
        for number in 0..20_u8 {
            put(&entries, &[number], 0, 100);
        }
        let kept: Vec<u8> = (0..20)
            .filter(|&number| {
                entries
                    .get(Scheme::Bearer, &[number], 0, Boottime(1))
                    .is_some()
            })
            .collect();
        assert_eq!(kept, (12..20).collect::<Vec<u8>>());
        assert_eq!(entries.buckets[0].load().len(), WAYS);
    }

    #[test]
    fn credentials_of_every_length_are_known_again() {
        for length in [0, 1, KEPT_BYTES_MAX, KEPT_BYTES_MAX + 1, BYTES_MAX] {
            let entries = CredentialCache::new(1);
            let credential = vec![b'x'; length];
            put(&entries, &credential, 0, 100);
            assert!(seen(&entries, &credential, 0, 1).is_some(), "{length}");
            let kept = entries.buckets[0].load()[0].credential.len();
            assert!(kept <= KEPT_BYTES_MAX, "{length}");
            assert!(seen(&entries, b"y", 0, 1).is_none(), "{length}");
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
