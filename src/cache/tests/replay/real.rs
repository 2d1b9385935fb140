//! The real cache, led along a trace of the model.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use freshness_model::{Moment, State};
use tokio::sync::{mpsc, watch};

use crate::cache::disk::Store;
use crate::cache::disk::layout::Mark;
use crate::cache::disk_tier::DiskTier;
use crate::cache::disk_tier::lookups::LookupBatch;
use crate::cache::disk_tier::tests::config;
use crate::cache::generation::{Epoch, Versions};
use crate::cache::orders::{DiskOrder, DiskState};
use crate::cache::resumption::offer_mark;
use crate::cache::tests::gate::{Arrival, GatedThread, wait_pending};
use crate::cache::tests::{self, MAX_STALENESS};
use crate::cache::writer::Writer;
use crate::cache::{Answer, Cache, LookupError};
use crate::clock::{Boottime, stopped};
use crate::feed::position::Position;
use crate::feed::{Affected, Change, Event, Pass, PassCause};
use crate::metrics::Metrics;
use crate::resource::testing::{ITEMS, named};
use crate::source::loader::{Keep, Load, LoadedDocument};

pub(super) const KEY: &str = "1";

/// The result of a request.
pub(super) type Answered = Result<Answer, LookupError>;

/// The writer, back from a batch.
pub(super) struct Written(pub(super) Box<Writer>);

impl std::fmt::Debug for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the writer")
    }
}

/// A load, from the lease to its end.
pub(super) enum Loading {
    /// Its statement has not been answered.
    Waits(Load),
    /// Its document is on the way into the tiers.
    Fills(GatedThread<()>),
}

/// When what happened, on the stopped clock.
#[derive(Default)]
pub(super) struct Times {
    pub(super) now: u64,
    commits: Vec<u64>,
    began: u64,
    fresh: u64,
    sent: [u64; 2],
}

/// One run of larder, and what is under way in it.
pub(super) struct Run {
    pub(super) cache: Arc<Cache>,
    pub(super) shared: Arc<DiskState>,
    pub(super) orders: mpsc::Receiver<DiskOrder>,
    pub(super) lookups: mpsc::Receiver<LookupBatch>,
    /// What has been taken out of `orders` to be looked at.
    pub(super) queue: VecDeque<DiskOrder>,
    pub(super) writer: Option<Box<Writer>>,
    pub(super) writing: Option<GatedThread<Written>>,
    pub(super) pass: Option<GatedThread<()>>,
    pub(super) requests: [Option<GatedThread<Answered>>; 2],
    pub(super) disk_lookups: [Option<LookupBatch>; 2],
    pub(super) floors: [u8; 2],
    pub(super) loads: [Option<Loading>; 2],
    /// The epoch of the entries on disk.
    pub(super) epoch: Epoch,
    /// It is not driven, so its timers never fire.
    runtime: tokio::runtime::Runtime,
}

impl Times {
    pub(super) fn now(&self) -> Boottime {
        Boottime(self.now)
    }

    /// Time left until the earliest of the young moments is too old.
    pub(super) fn slack(&self, state: &State) -> u64 {
        let limit = u64::try_from(MAX_STALENESS.as_nanos()).unwrap();
        match state.young.first() {
            Some(moment) => self.at(state, *moment) + limit - self.now,
            None => limit,
        }
    }

    /// A new moment, before which none of the young moments has become too old.
    fn tick(&mut self, state: &State) -> u64 {
        self.now += self.slack(state) / 8;
        self.now
    }

    pub(super) fn commit(&mut self, state: &State) {
        let now = self.tick(state);
        self.commits.push(now);
    }

    pub(super) fn begin_pass(&mut self, state: &State) {
        self.began = self.tick(state);
    }

    pub(super) fn complete_pass(&mut self) {
        self.fresh = self.began;
    }

    pub(super) fn began(&self) -> Boottime {
        Boottime(self.began)
    }

    pub(super) fn send(&mut self, load: usize, state: &State) -> Boottime {
        self.sent[load] = self.tick(state);
        Boottime(self.now)
    }

    /// Transactions committed more than `max_staleness` ago.
    pub(super) fn old_commits(&self) -> u8 {
        let old = |at: &&u64| self.now().since(Boottime(**at)) > MAX_STALENESS;
        u8::try_from(self.commits.iter().filter(old).count()).unwrap()
    }

    /// Goes on until the earliest of the young moments is too old.
    pub(super) fn expire(&mut self, state: &State) {
        self.now += self.slack(state) + 1;
    }

    /// When it was; of the commits, the first of the young ones.
    fn at(&self, state: &State, moment: Moment) -> u64 {
        let is_commit = |moment: &&Moment| **moment == Moment::Commit;
        let young = state.young.iter().filter(is_commit).count();
        match moment {
            Moment::Commit => self.commits[self.commits.len() - young],
            Moment::Fresh => self.fresh,
            Moment::Began => self.began,
            Moment::Sent(load) => self.sent[load],
        }
    }
}

impl Run {
    /// Starts larder over what `store` holds.
    pub(super) fn start(store: Store, now: Boottime) -> Self {
        stopped::set(now);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let within = runtime.enter();
        let versions = Arc::new(Versions::with_stripes(1, 1));
        let config = config(std::path::Path::new("unused"), Duration::ZERO);
        let metrics = Arc::new(Metrics::new().unwrap());
        let (disk, orders, lookups) = DiskTier::detached(config, Arc::clone(&versions), metrics);
        let shared = Arc::clone(disk.shared());
        let cache = tests::cache(&versions, Some(disk));
        let mut writer = Writer::new(Arc::clone(&shared), mpsc::channel(1).1);
        match store.recover().unwrap() {
            Some(mark) => {
                shared
                    .in_use
                    .store(false, std::sync::atomic::Ordering::SeqCst);
                writer.resume_with(store, &mark);
                offer(&cache, mark);
            }
            None => {
                store.clear().unwrap();
                writer.start_with(store);
            }
        }
        cache.resources[0]
            .trusted
            .store(false, std::sync::atomic::Ordering::SeqCst);
        cache.freshness.set_fresh_at(Boottime::NEVER);
        drop(within);
        Self {
            cache,
            shared,
            orders,
            lookups,
            queue: VecDeque::new(),
            writer: Some(Box::new(writer)),
            writing: None,
            pass: None,
            requests: [None, None],
            disk_lookups: [None, None],
            floors: [0; 2],
            loads: [None, None],
            epoch: Epoch::both(0),
            runtime,
        }
    }

    /// The feed finds the database.
    pub(super) fn follow(&mut self, commits: u8) {
        let cache = &self.cache;
        let resumes = cache
            .resumption
            .found()
            .map(|mark| mark.resources[0].epoch());
        cache.apply_event(Event::Reached(tests::identity()));
        cache.apply_event(Event::Reset(position(commits)));
        cache.apply_event(Event::Defined {
            resource: ITEMS,
            definition: Arc::new(named("items")),
        });
        self.epoch = resumes.unwrap_or_else(|| cache.versions.epoch(ITEMS));
    }

    /// A request for the document, up to its first gate.
    pub(super) fn request(&self, now: Boottime) -> (GatedThread<Answered>, Arrival<Answered>) {
        let cache = Arc::clone(&self.cache);
        let handle = self.runtime.handle().clone();
        GatedThread::start(now, move || {
            let _within = handle.enter();
            let mut lookup = pin!(cache.lookup(ITEMS, KEY, None));
            loop {
                match lookup
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                {
                    Poll::Ready(answer) => return answer,
                    Poll::Pending => wait_pending(),
                }
            }
        })
    }

    /// A pass that saw `seen` transactions, up to its first gate.
    pub(super) fn pass(
        &self,
        times: &Times,
        pass: freshness_model::Pass,
    ) -> (GatedThread<()>, Arrival<()>) {
        let change = Change {
            resource: ITEMS,
            affected: Affected::Key(KEY.to_owned()),
        };
        let found = Pass {
            changes: Vec::from_iter(pass.changed.then_some(change)),
            position: position(pass.seen),
            began_at: times.began(),
            fresh_at: times.began(),
            cause: PassCause::Poll,
            verified: None,
            lag_from: None,
        };
        let event = if pass.resumes {
            Event::Resumed(found)
        } else {
            Event::Passed(found)
        };
        let cache = Arc::clone(&self.cache);
        GatedThread::start(times.now(), move || cache.apply_event(event))
    }

    /// A document on its way into the tiers, up to the first gate.
    pub(super) fn fill(load: Load, content: u8, now: Boottime) -> (GatedThread<()>, Arrival<()>) {
        GatedThread::start(now, move || {
            (load.done)(
                Ok(Some(LoadedDocument::new(
                    b"",
                    content.to_string().as_bytes(),
                ))),
                Keep::Yes,
            );
        })
    }

    /// Takes everything that waits out of the queue's channel.
    pub(super) fn drain(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            self.queue.push_back(order);
        }
    }

    /// larder is killed; its files stay.
    pub(super) fn crash(self) -> Store {
        let Self { shared, .. } = self;
        drop((self.requests, self.pass, self.writing, self.writer));
        drop((
            self.loads,
            self.disk_lookups,
            self.orders,
            self.lookups,
            self.queue,
        ));
        drop(self.cache);
        let store = shared.store.swap(None).expect("the tier is open");
        Arc::into_inner(store).expect("no other reference to the store")
    }
}

/// As `DiskTier::start` does it.
fn offer(cache: &Arc<Cache>, mark: Mark) {
    let (_sender, found) = watch::channel(Some(mark));
    let offered = pin!(offer_mark(Arc::downgrade(cache), found));
    let polled = offered.poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_ready());
}

pub(super) fn position(commits: u8) -> Position {
    Position::new(&format!("{commits}:{commits}:"))
}
