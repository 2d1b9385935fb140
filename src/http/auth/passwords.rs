//! Users and their passwords, by argon2.
//!
//! A check takes tens of milliseconds and megabytes by design: it runs off the workers, on as many threads as there are
//! cores, and who would wait behind too many others is sent away.

use std::collections::HashMap;
use std::sync::Arc;

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Argon2, Params};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::auth::Principal;
use crate::http::auth::config::UserDefinition;

/// Checks that wait for a core. At some 20 ms each the last one waits for seconds.
const WAITING_MAX: usize = 256;
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
#[derive(Debug)]
pub(super) struct Busy;

/// One of the checks that run at a time.
pub(super) struct Turn(OwnedSemaphorePermit);

/// The users.
pub(super) struct Passwords {
    users: HashMap<String, User>,
    /// What the password of an unknown user is compared with, so that it takes as long.
    decoy: Arc<str>,
    turns: Arc<Semaphore>,
    waiting: Semaphore,
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
            turns: Arc::new(Semaphore::new(cores)),
            waiting: Semaphore::new(WAITING_MAX),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// The user of this name, if there still is one.
    pub(super) fn user(&self, name: &str) -> Option<&Arc<Principal>> {
        self.users.get(name).map(|user| &user.principal)
    }

    /// Waits for a core.
    pub(super) async fn turn(&self) -> Result<Turn, Busy> {
        let _place = self.waiting.try_acquire().map_err(|_| Busy)?;
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        // Nobody closes it.
        turn.map(Turn).map_err(|_| Busy)
    }

    /// Who it is, if that is their password.
    pub(super) async fn check(
        &self,
        turn: Turn,
        name: &str,
        password: &[u8],
    ) -> Option<Arc<Principal>> {
        if password.len() > PASSWORD_BYTES_MAX {
            return None;
        }
        let user = self.users.get(name);
        let hash = Arc::clone(user.map_or(&self.decoy, |user| &user.hash));
        let password = password.to_owned();
        // The turn ends with the work, even where nobody waits for the answer any more.
        let verified = tokio::task::spawn_blocking(move || {
            let _turn = turn.0;
            let hash = PasswordHash::new(&hash);
            hash.is_ok_and(|hash| Argon2::default().verify_password(&password, &hash).is_ok())
        });
        let verified = verified.await.unwrap_or(false);
        user.filter(|_| verified)
            .map(|user| Arc::clone(&user.principal))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

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

    #[tokio::test]
    async fn who_would_wait_behind_too_many_is_sent_away() {
        let passwords = Passwords::new(&[], |_| unreachable!());
        let mut turns = Vec::new();
        while passwords.turns.available_permits() > 0 {
            turns.push(passwords.turn().await.unwrap());
        }
        let mut waiting = Vec::new();
        for _ in 0..WAITING_MAX {
            let mut turn = Box::pin(passwords.turn());
            assert!(turn.as_mut().now_or_never().is_none());
            waiting.push(turn);
        }
        assert!(passwords.turn().await.is_err());
        drop(waiting);
        drop(turns);
        assert!(passwords.turn().await.is_ok());
    }
}
