//! Bounds how fast clients can guess passwords, by counts of wrong ones.
//!
//! A client that has sent too many wrong passwords of a user has to wait. Wrong passwords of one user from all clients
//! slow the checks of that user down, but refuse none: otherwise every client could lock a user out. Each wrong password
//! is forgotten after an interval. Names of unknown users count as those of known ones do, so that a refusal does not
//! tell them apart.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Boottime;

/// Wrong passwords of one user from one client that are checked without a pause.
const CLIENT_BURST: u64 = 10;
/// The time after which one of them is forgotten.
const CLIENT_INTERVAL: Duration = Duration::from_secs(30);
/// Wrong passwords of one user from all clients that slow nothing down.
const USER_BURST: u64 = 100;
const USER_INTERVAL: Duration = Duration::from_secs(10);
/// How long a check waits if there were more.
const DELAY: Duration = Duration::from_secs(1);
/// The most recent wrong passwords of one client, of all users together, that are told apart.
const ADDRESS_BURST: u64 = 20;
/// The most counts of each kind. Of more, those are dropped that would be forgotten first, so many at a time: finding them
/// takes a look at all counts.
const COUNTS_MAX: usize = 1 << 14;
const DROPPED_COUNTS: usize = COUNTS_MAX / 16;

/// The recent wrong passwords.
#[derive(Default)]
pub(super) struct Throttle {
    /// Its keys are random, so no client can find two names with one hash.
    hasher: RandomState,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    /// By the hash of the user's name and the client.
    clients: HashMap<u64, Count>,
    /// By the hash of the user's name.
    users: HashMap<u64, Count>,
    /// By the hash of the client, of all users together. They refuse and delay nothing, but come later.
    addresses: HashMap<u64, Count>,
}

/// A number of wrong passwords: the time, in nanoseconds on the boot-time clock, at which the last of them is forgotten.
type Count = u64;

/// A check of a password, which counts as wrong until it is found right. So a client gains nothing by leaving before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    client: u64,
    user: u64,
    address: u64,
    /// The recent wrong passwords of the client, of all users together, before this one.
    pub(super) wrong: u64,
    /// How long the check has to wait.
    pub(super) delay: Duration,
}

impl Throttle {
    /// Counts a check of a password of the user `name` from `client`.
    ///
    /// # Errors
    /// The seconds after which the client may try again.
    pub(super) fn begin(&self, name: &str, client: IpAddr, now: Boottime) -> Result<Attempt, u64> {
        let user = self.hasher.hash_one(name);
        let address = self.hasher.hash_one(client);
        let client = self.hasher.hash_one((name, client));
        // The maps are consistent even if a thread has panicked while it held the lock.
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        add(
            &mut counts.clients,
            client,
            now,
            CLIENT_BURST,
            CLIENT_INTERVAL,
        )
        .map_err(|wait| wait.as_secs() + 1)?;
        let is_slowed = add(&mut counts.users, user, now, USER_BURST, USER_INTERVAL).is_err();
        let delay = if is_slowed { DELAY } else { Duration::ZERO };
        let wrong = recent(&counts.addresses, address, now, CLIENT_INTERVAL);
        let addresses = &mut counts.addresses;
        // More are not told apart.
        let _is_most = add(addresses, address, now, ADDRESS_BURST, CLIENT_INTERVAL).is_err();
        Ok(Attempt {
            client,
            user,
            address,
            wrong,
            delay,
        })
    }

    /// Takes a check back whose password was right.
    pub(super) fn forgive(&self, attempt: Attempt) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        subtract(&mut counts.clients, attempt.client, CLIENT_INTERVAL);
        // A check that had to wait was not counted.
        if attempt.delay.is_zero() {
            subtract(&mut counts.users, attempt.user, USER_INTERVAL);
        }
        if attempt.wrong < ADDRESS_BURST {
            subtract(&mut counts.addresses, attempt.address, CLIENT_INTERVAL);
        }
    }
}

/// Adds one to the count of `key`.
///
/// # Errors
/// The count has reached `burst`: the time until it is less.
fn add(
    counts: &mut HashMap<u64, Count>,
    key: u64,
    Boottime(now): Boottime,
    burst: u64,
    interval: Duration,
) -> Result<(), Duration> {
    let interval = nanos(interval);
    let forgotten_at = counts.get(&key).map_or(now, |&at| at.max(now));
    let next = forgotten_at.saturating_add(interval);
    let most = now.saturating_add(interval.saturating_mul(burst));
    if next > most {
        return Err(Duration::from_nanos(next - most));
    }
    if counts.len() >= COUNTS_MAX && !counts.contains_key(&key) {
        counts.retain(|_, at| *at > now);
        if counts.len() >= COUNTS_MAX {
            let mut times: Vec<Count> = counts.values().copied().collect();
            let (_, &mut last, _) = times.select_nth_unstable(DROPPED_COUNTS);
            let mut left = DROPPED_COUNTS;
            counts.retain(|_, at| {
                let is_dropped = left > 0 && *at <= last;
                left -= usize::from(is_dropped);
                !is_dropped
            });
        }
    }
    counts.insert(key, next);
    Ok(())
}

/// The count of `key`.
fn recent(
    counts: &HashMap<u64, Count>,
    key: u64,
    Boottime(now): Boottime,
    interval: Duration,
) -> u64 {
    let left = counts.get(&key).map_or(0, |at| at.saturating_sub(now));
    left.div_ceil(nanos(interval).max(1))
}

fn subtract(counts: &mut HashMap<u64, Count>, key: u64, interval: Duration) {
    if let Some(at) = counts.get_mut(&key) {
        *at = at.saturating_sub(nanos(interval));
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64) -> Boottime {
        Boottime((1000 + seconds) * SECOND)
    }

    fn client(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn a_client_waits_after_wrong_passwords_of_one_user() {
        let throttle = Throttle::default();
        for _ in 0..CLIENT_BURST {
            assert!(throttle.begin("anna", client(1), at(0)).is_ok());
        }
        assert_eq!(throttle.begin("anna", client(1), at(0)).unwrap_err(), 31);
        assert_eq!(throttle.begin("anna", client(1), at(20)).unwrap_err(), 11);
        assert!(throttle.begin("anna", client(2), at(0)).is_ok());
        assert!(throttle.begin("bert", client(1), at(0)).is_ok());
        assert!(throttle.begin("anna", client(1), at(30)).is_ok());
        assert!(throttle.begin("anna", client(1), at(30)).is_err());
    }

    #[test]
    fn right_passwords_do_not_count() {
        let throttle = Throttle::default();
        for _ in 0..USER_BURST * 2 {
            let attempt = throttle.begin("anna", client(1), at(0)).unwrap();
            assert_eq!(attempt.delay, Duration::ZERO);
            throttle.forgive(attempt);
        }
    }

    #[test]
    fn many_clients_slow_a_user_down_and_lock_none_out() {
        let throttle = Throttle::default();
        let delay = |number: u64| {
            throttle
                .begin("anna", client(number as u32), at(0))
                .unwrap()
                .delay
        };
        for number in 0..USER_BURST {
            assert_eq!(delay(number), Duration::ZERO);
        }
        for number in USER_BURST..USER_BURST * 3 {
            assert_eq!(delay(number), DELAY);
        }
        let later = throttle.begin("anna", client(1), at(10)).unwrap();
        assert_eq!(later.delay, Duration::ZERO);
    }

    #[test]
    fn wrong_passwords_of_all_users_count_for_their_client() {
        let throttle = Throttle::default();
        let begin = |name: u64, client, seconds| {
            let name = format!("user {name}");
            throttle.begin(&name, client, at(seconds)).unwrap()
        };
        for number in 0..ADDRESS_BURST * 2 {
            let attempt = begin(number, client(1), 0);
            assert_eq!(attempt.wrong, number.min(ADDRESS_BURST));
        }
        let right = begin(1, client(2), 0);
        throttle.forgive(right);
        assert_eq!(begin(2, client(2), 0).wrong, 0);
        assert_eq!(begin(2, client(2), 30).wrong, 0);
        throttle.forgive(begin(3, client(1), 0));
        assert_eq!(begin(3, client(1), 45).wrong, ADDRESS_BURST - 1);
    }

    #[test]
    fn counts_are_bounded_and_the_highest_stay() {
        let throttle = Throttle::default();
        while throttle.begin("anna", client(1), at(0)).is_ok() {}
        for number in 0..COUNTS_MAX * 2 {
            throttle
                .begin(&format!("user {number}"), client(2), at(0))
                .unwrap();
        }
        let counts = throttle.counts.lock().unwrap();
        assert!(counts.clients.len() <= COUNTS_MAX && counts.users.len() <= COUNTS_MAX);
        drop(counts);
        assert!(throttle.begin("anna", client(1), at(0)).is_err());
    }
}
