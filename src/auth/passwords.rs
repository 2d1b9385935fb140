//! Users and their passwords, by argon2.
//!
//! A check takes tens of milliseconds and megabytes by design. It runs on threads for blocking work, on at most half of the
//! cores, so that checks do not delay other requests. Each client has only a few checks at a time. `turns` has those that
//! wait, `throttle` bounds how fast passwords can be guessed.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Argon2, Params};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use ring::rand::{SecureRandom, SystemRandom};

use crate::auth::Principal;
use crate::auth::config::UserDefinition;
use crate::auth::throttle::Throttle;
use crate::auth::turns::{Turn, Turns};
use crate::clock::Boottime;
use crate::server::client_network;

/// The most checks of one client that wait or run, each of another credential. All clients behind a proxy that is not
/// trusted count as one.
const CHECKS_PER_CLIENT_MAX: usize = 8;
/// A longer password is refused without a check.
const PASSWORD_BYTES_MAX: usize = 1024;
/// As RFC 9106, section 3.1, recommends.
const SALT_BYTES: usize = 16;

/// Why a password can't be hashed.
#[derive(Debug, thiserror::Error)]
pub enum HashError {
    /// It is empty.
    #[error("the password is empty")]
    Empty,
    /// It is longer than a check accepts.
    #[error("the password is longer than {PASSWORD_BYTES_MAX} bytes")]
    TooLong,
    /// The system gave no random bytes.
    #[error("the system gave no random bytes for the salt")]
    Random,
    /// argon2 failed.
    #[error("argon2: {0}")]
    Argon2(argon2::password_hash::Error),
}

/// The password's hash by argon2id as a PHC string, with a salt of its own.
///
/// Takes about 20 ms and 19 MiB: the crate's defaults are the parameters that OWASP recommends.
/// # Errors
/// [`HashError`]
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

/// Why a check is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TooManyChecks {
    /// Too many checks of this client.
    Client,
    /// Too many checks of all clients, which came first.
    All,
    /// Too many wrong passwords of this user from this client, which may try again after so many seconds.
    Wrong(u64),
}

/// A running check; its output is the principal if the password is right.
type Checking = BoxFuture<'static, Result<Option<Arc<Principal>>, TooManyChecks>>;
/// Requests with the same credential wait for the same check.
type Check = Shared<Checking>;

/// The users.
pub(super) struct Passwords {
    users: HashMap<String, User>,
    /// The hashes of all users. The password of an unknown user is compared with one of them, so that it takes the same
    /// time; the same name always with the same one, as that of a user.
    decoys: Vec<Arc<str>>,
    /// Its keys are random, so that no client knows which one.
    hasher: RandomState,
    turns: Turns,
    throttle: Arc<Throttle>,
    /// By credential. Checks that no request waits for any more are removed at the next check.
    checks: Mutex<HashMap<Box<[u8]>, RunningCheck>>,
}

struct RunningCheck {
    /// The client that it counts for.
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
        let users: HashMap<String, User> = users.iter().map(user).collect();
        Self {
            decoys: users.values().map(|user| Arc::clone(&user.hash)).collect(),
            hasher: RandomState::new(),
            users,
            turns: Turns::new((cores / 2).max(1)),
            throttle: Arc::default(),
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

    /// The principal of a name and a password; `None` if they are wrong. `credential` contains both, and was sent from
    /// `address`.
    pub(super) async fn check(
        &self,
        address: IpAddr,
        credential: &[u8],
        name: &str,
        password: &[u8],
    ) -> Result<Option<Arc<Principal>>, TooManyChecks> {
        if password.len() > PASSWORD_BYTES_MAX {
            return Ok(None);
        }
        let check = self.join(address, credential, name, password)?;
        check.await
    }

    /// The hash that a password of the unknown user `name` is compared with.
    fn decoy(&self, name: &str) -> Arc<str> {
        // The remainder fits.
        let at = self.hasher.hash_one(name) % (self.decoys.len().max(1) as u64);
        let decoy = self.decoys.get(at as usize);
        decoy.map_or_else(|| "".into(), Arc::clone)
    }

    /// The running check of `credential`, or a new one.
    fn join(
        &self,
        address: IpAddr,
        credential: &[u8],
        name: &str,
        password: &[u8],
    ) -> Result<Check, TooManyChecks> {
        // The map is consistent even if a thread has panicked while it held the lock.
        let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        checks.retain(|_, running| running.check.upgrade().is_some());
        let running = checks.get(credential);
        if let Some(check) = running.and_then(|running| running.check.upgrade()) {
            return Ok(check);
        }
        let client = client_network(address);
        let own = checks.values().filter(|check| check.client == client);
        if own.count() >= CHECKS_PER_CLIENT_MAX {
            return Err(TooManyChecks::Client);
        }
        let attempt = self.throttle.begin(name, client, Boottime::now());
        let attempt = attempt.map_err(TooManyChecks::Wrong)?;
        let delay = attempt.delay;
        let throttle = Arc::clone(&self.throttle);
        let refuse = move || {
            throttle.forgive(attempt);
            TooManyChecks::All
        };
        let place = self.turns.enter(attempt.wrong, !delay.is_zero());
        let place = place.ok_or_else(&refuse)?;
        let throttle = Arc::clone(&self.throttle);
        let user = self.users.get(name);
        let hash = user.map_or_else(|| self.decoy(name), |user| Arc::clone(&user.hash));
        let principal = user.map(|user| Arc::clone(&user.principal));
        let password = password.to_owned();
        let check = async move {
            let turn = place.turn(delay).await.ok_or_else(refuse)?;
            let verified = verify(turn, hash, password).await;
            let principal = principal.filter(|_| verified);
            if principal.is_some() {
                throttle.forgive(attempt);
            }
            Ok(principal)
        };
        let check = check.boxed().shared();
        if let Some(check) = check.downgrade() {
            checks.insert(credential.into(), RunningCheck { client, check });
        }
        Ok(check)
    }
}

/// Whether `hash` is of `password`.
async fn verify(turn: Turn, hash: Arc<str>, password: Vec<u8>) -> bool {
    // The turn is held until the work ends, even if no request waits for the result any more.
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;
    use crate::auth::config::Secret;
    use crate::auth::turns::WAITING_MAX;

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
            claims: Default::default(),
        };
        Passwords::new(&[user], |_| Arc::clone(&principal))
    }

    /// All turns, so that checks wait.
    async fn take_turns(passwords: &Passwords) -> Vec<Turn> {
        let mut turns = Vec::new();
        for _ in 0..passwords.turns.free() {
            let place = passwords.turns.enter(0, false).unwrap();
            turns.push(place.turn(Duration::ZERO).await.unwrap());
        }
        turns
    }

    #[tokio::test]
    async fn checks_beyond_the_limits_are_refused() {
        let passwords = of_anna();
        let turns = take_turns(&passwords).await;
        let all = turns.len();
        let cores = std::thread::available_parallelism().unwrap().get();
        assert!(all >= 1 && (all < cores || cores == 1), "{all} of {cores}");
        let check = |client, credential: &'static [u8]| {
            passwords.join(address(client), credential, "anna", b"anna's")
        };
        let numbers: [[u8; 1]; CHECKS_PER_CLIENT_MAX] = std::array::from_fn(|n| [n as u8]);
        let begin = |client, number: &[u8], name: &str| {
            passwords.join(address(client), number, name, b"anna's")
        };
        let mut first: Vec<Check> = numbers
            .iter()
            .map(|number| begin(1, number, "anna").unwrap())
            .collect();
        assert_eq!(check(1, b"another").err(), Some(TooManyChecks::Client));
        let joined = check(1, &[0]).unwrap();
        assert!(joined.ptr_eq(&first[0]));
        let mut others: Vec<Check> = (first.len()..WAITING_MAX)
            .map(|number| {
                let name = format!("user {number}");
                begin(number, &number.to_be_bytes(), &name).unwrap()
            })
            .collect();
        // A client's first check has a better place than the others of client 1.
        for number in 1..first.len() {
            let client = WAITING_MAX + number;
            others.push(begin(client, &client.to_be_bytes(), "zoe").unwrap());
        }
        assert_eq!(
            check(WAITING_MAX, b"another").err(),
            Some(TooManyChecks::All)
        );
        assert_eq!(first.pop().unwrap().await.err(), Some(TooManyChecks::All));
        // A request that stops waiting makes room for another.
        others.pop();
        let late = check(WAITING_MAX, b"another").unwrap();
        drop((first, others, turns));
        for check in [joined, late] {
            assert_eq!(check.await.unwrap().unwrap().name, "anna");
        }
        assert!(check(1, b"another").is_ok());
        let checks = passwords.checks.lock().unwrap().len();
        assert!(checks <= 1, "{checks}");
    }

    /// A sign-in took seconds beside clients that guessed the password of another user.
    #[tokio::test(start_paused = true)]
    async fn checks_that_are_slowed_down_hold_up_no_others() {
        let passwords = of_anna();
        for number in 0..200 {
            let now = Boottime::now();
            passwords
                .throttle
                .begin("bert", address(number), now)
                .unwrap();
        }
        let turns = take_turns(&passwords).await;
        let all = turns.len();
        let ended = Arc::new(AtomicUsize::new(0));
        let guesses: Vec<_> = (200..230_usize)
            .map(|number| {
                let guess = passwords.join(address(number), &number.to_be_bytes(), "bert", b"x");
                let (guess, ended) = (guess.unwrap(), Arc::clone(&ended));
                tokio::spawn(async move {
                    guess.await.unwrap();
                    ended.fetch_add(1, Ordering::Relaxed);
                })
            })
            .collect();
        // All of them wait for a turn now.
        sleep(Duration::from_secs(2)).await;
        let right = passwords.join(address(1), b"anna:anna's", "anna", b"anna's");
        let right = tokio::spawn(right.unwrap());
        tokio::task::yield_now().await;
        drop(turns);
        assert!(right.await.unwrap().unwrap().is_some());
        let before = ended.load(Ordering::Relaxed);
        assert!(before <= 2 * all, "{before} guesses were checked before");
        for guess in guesses {
            guess.await.unwrap();
        }
    }

    /// Beside guesses from 300 addresses a sign-in was refused for tens of seconds: they filled the queue of all.
    #[tokio::test(start_paused = true)]
    async fn guesses_from_many_addresses_lock_no_user_out() {
        let passwords = Arc::new(of_anna());
        let guess = |number: usize, round: usize| {
            let passwords = Arc::clone(&passwords);
            // Half of them guess the password of one user.
            let name = match number % 2 {
                0 => "anna".to_owned(),
                _ => format!("user {round}"),
            };
            tokio::spawn(async move {
                let credential = [number.to_be_bytes(), round.to_be_bytes()].concat();
                let address = address(number);
                passwords.check(address, &credential, &name, b"x").await
            })
        };
        // They have guessed for a while.
        for number in 0..900 {
            let (name, now) = (format!("user {number}"), Boottime::now());
            let address = address(number % 300);
            passwords.throttle.begin(&name, address, now).unwrap();
        }
        let turns = take_turns(&passwords).await;
        let mut guesses = Vec::new();
        for round in 0..2 {
            for number in 0..300 {
                guesses.push(guess(number, round));
                tokio::task::yield_now().await;
            }
        }
        // All that are waiting have passed their delay.
        sleep(Duration::from_secs(2)).await;
        let honest = Arc::clone(&passwords);
        let honest = tokio::spawn(async move {
            let credential = b"anna:anna's";
            honest
                .check(address(1_000), credential, "anna", b"anna's")
                .await
        });
        sleep(Duration::from_secs(2)).await;
        drop(turns);
        assert!(honest.await.unwrap().unwrap().is_some());
    }

    #[test]
    fn unknown_users_cost_as_much_time_as_different_known_ones() {
        let user = |number: u32| UserDefinition {
            name: format!("user {number}"),
            password: Secret::new(&format!("hash {number}")),
            roles: Vec::new(),
            claims: Default::default(),
        };
        let users: Vec<_> = (0..3).map(user).collect();
        let principal = Arc::new(Principal::named("any"));
        let passwords = Passwords::new(&users, |_| Arc::clone(&principal));
        let decoys: Vec<_> = (0..100)
            .map(|n| passwords.decoy(&format!("zoe {n}")))
            .collect();
        for user in &users {
            let chosen = decoys
                .iter()
                .filter(|decoy| ***decoy == *user.password.expose());
            assert!((5..70).contains(&chosen.count()), "{decoys:?}");
        }
        assert_eq!(passwords.decoy("zoe"), passwords.decoy("zoe"));
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
