//! Strict reads: what they wait for, and which loads they join.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::cache::generation::Versions;
use crate::cache::tests::cache;
use crate::cache::{Cache, Demand, LookupError, Provenance, Strict};
use crate::clock::Boottime;
use crate::feed::position::Position;
use crate::feed::{Event, Pass, PassCause};
use crate::resource::testing::{ITEMS, named};
use crate::source::loader::{Keep, LoadedDocument};

fn strict() -> Demand {
    Demand {
        strict: Some(Strict::arriving()),
        ..Demand::default()
    }
}

/// Applies a pass that begins now.
fn apply_pass(cache: &Cache, is_verified: bool) {
    let (number, is_wanted) = cache.strict_passes().begin();
    assert!(is_wanted, "no strict read waits");
    finish_pass(cache, is_verified.then_some(number));
}

fn finish_pass(cache: &Cache, verified: Option<u64>) {
    let began_at = Boottime::now();
    cache.apply_event(Event::Passed(Pass {
        changes: Vec::new(),
        position: Position::new("10:10:"),
        began_at,
        fresh_at: began_at,
        verified,
        cause: PassCause::Poll,
        lag_from: None,
    }));
}

fn with_definition() -> Arc<Cache> {
    let cache = cache(&Arc::new(Versions::new(1)), None);
    let definition = Some(Arc::new(named("items")));
    cache.resources[0].current.store(definition);
    cache.keep(ITEMS, "1", b"{}");
    cache
}

macro_rules! poll {
    ($future:expr) => {
        $future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
    };
}

#[tokio::test(start_paused = true)]
async fn a_strict_read_waits_for_a_verified_pass_that_begins_later() {
    let cache = with_definition();
    let begun = cache.strict_passes().begin();
    assert_eq!(begun, (1, false));
    let demand = strict();
    let mut lookup = pin!(cache.lookup_after(ITEMS, "1", &demand, None));
    assert!(poll!(lookup).is_pending());
    finish_pass(&cache, Some(1));
    assert!(poll!(lookup).is_pending(), "it had begun before");
    apply_pass(&cache, false);
    assert!(poll!(lookup).is_pending(), "definitions may have changed");
    cache.apply_event(Event::Reset(Position::new("10:10:")));
    assert!(poll!(lookup).is_pending(), "a reset is no pass");
    cache.keep(ITEMS, "1", b"{}");
    apply_pass(&cache, true);
    let answer = lookup.await.unwrap();
    assert_eq!(answer.provenance, Provenance::Memory);
    assert!(!cache.strict_passes().begin().1, "no read waits");
}

/// Why no pass covers a strict read.
#[derive(Clone, Copy, PartialEq)]
enum Uncovered {
    Late,
    Lost,
    /// Passes leave the resource out.
    NotKept,
}

#[tokio::test(start_paused = true)]
async fn without_a_pass_postgres_answers_by_a_statement_of_its_own() {
    for why in [Uncovered::Late, Uncovered::Lost, Uncovered::NotKept] {
        let cache = with_definition();
        let not_kept = why == Uncovered::NotKept;
        cache.resources[0]
            .uncached
            .store(not_kept, Ordering::SeqCst);
        let plain = Demand::default();
        let mut other = pin!(cache.lookup_after(ITEMS, "2", &plain, None));
        assert!(poll!(other).is_pending());
        let mut loads = cache.loader.take_waiting();
        loads[0].sent_at.mark(Boottime::now());
        let demand = strict();
        let mut lookup = pin!(cache.lookup_after(ITEMS, "2", &demand, None));
        assert!(poll!(lookup).is_pending());
        let mut own = cache.loader.take_waiting();
        assert_eq!(own.is_empty(), !not_kept, "it waits for a pass");
        match why {
            Uncovered::Late => tokio::time::sleep(Duration::from_millis(101)).await,
            Uncovered::Lost => cache.apply_event(Event::Lost {
                reason: String::new(),
            }),
            Uncovered::NotKept => {}
        }
        assert!(poll!(lookup).is_pending());
        own.extend(cache.loader.take_waiting());
        assert_eq!(own.len(), 1, "it waits for the statement of the other");
        for load in loads.drain(..).chain(own) {
            (load.done)(Ok(Some(LoadedDocument::new(b"", b"{}"))), Keep::Yes);
        }
        let answer = lookup.await.unwrap();
        let from_tiers = cache.lookup_tiers(ITEMS, "1", &strict()).await;
        assert!(from_tiers.is_none(), "no pass covers it");
        let collapsed = false;
        let expected = if not_kept {
            Provenance::Uncached { collapsed }
        } else {
            Provenance::Bypass { collapsed }
        };
        assert_eq!(answer.provenance, expected);
    }
}

/// One that was not sent yet when the request arrived sees all that had committed then.
#[tokio::test(start_paused = true)]
async fn a_load_that_was_not_sent_yet_is_joined_without_a_pass() {
    let cache = with_definition();
    cache.resources[0].uncached.store(true, Ordering::SeqCst);
    let plain = Demand::default();
    let mut other = pin!(cache.lookup_after(ITEMS, "2", &plain, None));
    assert!(poll!(other).is_pending());
    let loads = cache.loader.take_waiting();
    let demand = strict();
    let mut lookup = pin!(cache.lookup_after(ITEMS, "2", &demand, None));
    assert!(poll!(lookup).is_pending());
    assert!(cache.loader.take_waiting().is_empty());
    loads[0].sent_at.mark(Boottime::now());
    for load in loads {
        (load.done)(Ok(Some(LoadedDocument::new(b"", b"{}"))), Keep::No);
    }
    assert!(lookup.await.is_ok());
}

/// One that was sent before the request, but whose version is current once a pass was applied.
#[tokio::test(start_paused = true)]
async fn after_a_pass_a_load_whose_version_is_current_is_joined() {
    let cache = with_definition();
    let plain = Demand::default();
    let mut other = pin!(cache.lookup_after(ITEMS, "2", &plain, None));
    assert!(poll!(other).is_pending());
    let loads = cache.loader.take_waiting();
    loads[0].sent_at.mark(Boottime::now());
    let demand = strict();
    let mut lookup = pin!(cache.lookup_after(ITEMS, "2", &demand, None));
    assert!(poll!(lookup).is_pending());
    apply_pass(&cache, true);
    assert!(poll!(lookup).is_pending());
    assert!(cache.loader.take_waiting().is_empty());
    for load in loads {
        (load.done)(Ok(Some(LoadedDocument::new(b"", b"{}"))), Keep::Yes);
    }
    assert!(lookup.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn only_if_cached_sends_no_statement() {
    let cache = with_definition();
    let demand = Demand {
        only_if_cached: true,
        ..Demand::default()
    };
    assert!(cache.lookup_after(ITEMS, "1", &demand, None).await.is_ok());
    let absent = cache.lookup_after(ITEMS, "2", &demand, None).await;
    assert!(matches!(absent, Err(LookupError::NotCached)));
    assert!(cache.loader.take_waiting().is_empty());
}
