//! Users and their passwords, by argon2.
//!
//! A check takes tens of milliseconds and megabytes by design: it runs off the workers, on half of the cores, so that
//! wrong passwords don't keep the others' requests from theirs. Each client has a few checks at a time, so that none
//! takes the queue from the others, and who would wait behind too many others is sent away.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Argon2, Params};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::Principal;
use crate::auth::config::UserDefinition;
use crate::server::client_network;

/// Checks that wait for a core. At some 20 ms each the last one waits for seconds.
const WAITING_MAX: usize = 256;
/// Checks of one client's address that wait or run, each of another credential. Behind a proxy that is not trusted all
/// are one client.
const CHECKS_PER_CLIENT_MAX: usize = 8;
/// A longer password is nobody's, and refused before it costs anything.
const PASSWORD_BYTES_MAX: usize = 1024;
/// What RFC 9106, section 3.1, recommends.
const SALT_BYTES: usize = 16;

/// Why a password has no hash.
#[derive(Debug, thiserror::Error)]
pub enum HashError {
    /// Nothing was given.
    #[error("the password is empty")]
    Empty,
    /// No check would take it.
    #[error("the password is longer than {PASSWORD_BYTES_MAX} bytes")]
    TooLong,
    /// The system gives no random bytes.
    #[error("no random bytes for the salt")]
    Random,
    /// argon2 refuses.
    #[error("argon2: {0}")]
    Argon2(argon2::password_hash::Error),
}

/// The password's hash by argon2id as a PHC string, with a salt of its own.
///
/// Takes some 20 ms and 19 MiB (the parameters that OWASP recommends are the crate's defaults).
/// # Errors
/// [`HashError::Empty`] and [`HashError::TooLong`]; else the system fails.
pub fn hash(password: &[u8]) -> Result<String, HashError> {
    match password.len() {
        0 => return Err(HashError::Empty),
        1..=PASSWORD_BYTES_MAX => {}
        _ => return Err(HashError::TooLong),
    }
    let mut salt = [0; SALT_BYTES];
    SystemRandom::new()
        .fill(&mut salt)
        .map_err(|_| HashError::Random)?;
    let salt = SaltString::encode_b64(&salt).map_err(HashError::Argon2)?;
    let hash = Argon2::default().hash_password(password, &salt);
    Ok(hash.map_err(HashError::Argon2)?.to_string())
}

/// Whether `text` is a hash by argon2 that a password can be checked against.
pub fn is_hash(text: &str) -> bool {
    PasswordHash::new(text).is_ok_and(|hash| {
        let argon2 = argon2::Algorithm::try_from(hash.algorithm).is_ok();
        argon2 && hash.salt.is_some() && hash.hash.is_some() && Params::try_from(&hash).is_ok()
    })
}

/// Who would have to wait for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Busy {
    /// Too many of the client's own passwords are being checked.
    Client,
    /// Too many of everybody's.
    All,
}

/// A check that is under way, and who has shown the password in the end.
type Checking = BoxFuture<'static, Option<Arc<Principal>>>;
/// All who show the same credential meanwhile wait for the same check.
type Check = Shared<Checking>;

/// The users.
pub(super) struct Passwords {
    users: HashMap<String, User>,
    /// What the password of an unknown user is compared with, so that it takes as long.
    decoy: Arc<str>,
    turns: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    /// By credential; those that nobody waits for any more are gone at the next one.
    checks: Mutex<HashMap<Box<[u8]>, UnderWay>>,
}

struct UnderWay {
    /// Whose address it counts for.
    client: IpAddr,
    check: WeakShared<Checking>,
}

struct User {
    hash: Arc<str>,
    principal: Arc<Principal>,
}

impl Passwords {
    pub(super) fn new(
        users: &[UserDefinition],
        principal: impl Fn(&UserDefinition) -> Arc<Principal>,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let user = |user: &UserDefinition| {
            let hash = user.password.expose().into();
            let principal = principal(user);
            (user.name.clone(), User { hash, principal })
        };
        let decoy = users.first().map_or("", |first| first.password.expose());
        Self {
            users: users.iter().map(user).collect(),
            decoy: decoy.into(),
            turns: Arc::new(Semaphore::new((cores / 2).max(1))),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            checks: Mutex::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// The user of this name, if there still is one.
    pub(super) fn user(&self, name: &str) -> Option<&Arc<Principal>> {
        self.users.get(name).map(|user| &user.principal)
    }

    /// Who it is, if that is their password. `credential`, sent from `address`, is both.
    pub(super) async fn check(
        &self,
        address: IpAddr,
        credential: &[u8],
        name: &str,
        password: &[u8],
    ) -> Result<Option<Arc<Principal>>, Busy> {
        if password.len() > PASSWORD_BYTES_MAX {
            return Ok(None);
        }
        let check = self.join(address, credential, name, password)?;
        Ok(check.await)
    }

    /// The check of `credential` that is under way, or a new one.
    fn join(
        &self,
        address: IpAddr,
        credential: &[u8],
        name: &str,
        password: &[u8],
    ) -> Result<Check, Busy> {
        // What is in it is whole whoever panicked.
        let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        checks.retain(|_, under_way| under_way.check.upgrade().is_some());
        let under_way = checks.get(credential);
        if let Some(check) = under_way.and_then(|under_way| under_way.check.upgrade()) {
            return Ok(check);
        }
        let client = client_network(address);
        let own = checks.values().filter(|check| check.client == client);
        if own.count() >= CHECKS_PER_CLIENT_MAX {
            return Err(Busy::Client);
        }
        let place = Arc::clone(&self.waiting).try_acquire_owned();
        let place = place.map_err(|_| Busy::All)?;
        let user = self.users.get(name);
        let hash = Arc::clone(user.map_or(&self.decoy, |user| &user.hash));
        let principal = user.map(|user| Arc::clone(&user.principal));
        let password = password.to_owned();
        let turns = Arc::clone(&self.turns);
        let check = async move {
            // Nobody closes it.
            let turn = turns.acquire_owned().await.ok()?;
            drop(place);
            let verified = verify(turn, hash, password).await;
            principal.filter(|_| verified)
        };
        let check = check.boxed().shared();
        if let Some(check) = check.downgrade() {
            checks.insert(credential.into(), UnderWay { client, check });
        }
        Ok(check)
    }
}

/// Whether `hash` is of `password`.
async fn verify(turn: OwnedSemaphorePermit, hash: Arc<str>, password: Vec<u8>) -> bool {
    // The turn ends with the work, even where nobody waits for the answer any more.
    let verified = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let hash = PasswordHash::new(&hash);
        hash.is_ok_and(|hash| Argon2::default().verify_password(&password, &hash).is_ok())
    });
    verified.await.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::auth::config::Secret;

    #[test]
    fn a_hash_is_of_its_password_alone() {
        let hash = hash(b"correct horse").unwrap();
        assert!(
            hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"),
            "{hash}"
        );
        assert!(is_hash(&hash));
        let parsed = PasswordHash::new(&hash).unwrap();
        let verify = |password: &[u8]| Argon2::default().verify_password(password, &parsed);
        assert!(verify(b"correct horse").is_ok());
        assert!(verify(b"correct horsf").is_err());
        assert_ne!(super::hash(b"correct horse").unwrap(), hash, "another salt");
        assert!(matches!(super::hash(b""), Err(HashError::Empty)));
        assert!(matches!(
            super::hash(&[b'x'; 1025]),
            Err(HashError::TooLong)
        ));
    }

    #[test]
    fn other_texts_are_no_hashes() {
        for text in [
            "",
            "***",
            "secret",
            "$argon2id$v=19$m=19456,t=2,p=1",
            "$argon2id$v=19$m=19456,t=2,p=1$c29tZXNhbHQ",
            "$2b$12$GhvMmNVjRW29ulnudl.LbuAnUtN/LRfe1JsBm1Xu6LE3059z5Tr8m",
        ] {
            assert!(!is_hash(text), "{text}");
        }
    }

    fn address(number: usize) -> IpAddr {
        Ipv4Addr::from_bits(number as u32).into()
    }

    /// One user, whose password is `anna's`.
    fn of_anna() -> Passwords {
        let principal = Arc::new(Principal::named("anna"));
        let user = UserDefinition {
            name: "anna".to_owned(),
            password: Secret::new(&hash(b"anna's").unwrap()),
            roles: Vec::new(),
        };
        Passwords::new(&[user], |_| Arc::clone(&principal))
    }

    #[tokio::test]
    async fn who_would_wait_behind_too_many_is_sent_away() {
        let passwords = of_anna();
        let all = passwords.turns.available_permits();
        let cores = std::thread::available_parallelism().unwrap().get();
        assert!(all >= 1 && (all < cores || cores == 1), "{all} of {cores}");
        let turns = passwords.turns.acquire_many(all as u32).await.unwrap();
        let check = |client, credential: &'static [u8]| {
            passwords.join(address(client), credential, "anna", b"anna's")
        };
        let numbers: [[u8; 1]; CHECKS_PER_CLIENT_MAX] = std::array::from_fn(|n| [n as u8]);
        let begin =
            |client, number: &[u8]| passwords.join(address(client), number, "anna", b"anna's");
        let first: Vec<Check> = numbers
            .iter()
            .map(|number| begin(1, number).unwrap())
            .collect();
        assert_eq!(check(1, b"another").err(), Some(Busy::Client));
        let joined = check(1, &[0]).unwrap();
        assert!(joined.ptr_eq(&first[0]));
        let mut others: Vec<Check> = (first.len()..WAITING_MAX)
            .map(|number| begin(number, &number.to_be_bytes()).unwrap())
            .collect();
        assert_eq!(check(WAITING_MAX, b"another").err(), Some(Busy::All));
        // Who leaves makes room.
        others.pop();
        let late = check(WAITING_MAX, b"another").unwrap();
        drop((first, others, turns));
        for check in [joined, late] {
            assert_eq!(check.await.unwrap().name, "anna");
        }
        assert!(check(1, b"another").is_ok());
        let checks = passwords.checks.lock().unwrap().len();
        assert!(checks <= 1, "{checks}");
    }

    #[tokio::test]
    async fn only_the_password_is_the_password() {
        let passwords = of_anna();
        let long = [b'x'; PASSWORD_BYTES_MAX + 1];
        for (name, password, right) in [
            ("anna", &b"anna's"[..], true),
            ("anna", b"anna", false),
            ("bert", b"anna's", false),
            ("anna", &long, false),
        ] {
            let credential = [name.as_bytes(), b":", password].concat();
            let found = passwords
                .check(address(1), &credential, name, password)
                .await;
            assert_eq!(found.unwrap().is_some(), right, "{name}");
        }
    }
}
