//! What can be seen of the real cache, beside what the model says.

use std::sync::atomic::Ordering;

use freshness_model::{Order, State, Version};

use super::PROTOCOL;
use super::real::{KEY, position};
use super::steps::Replay;
use crate::cache::disk::layout::Mark;
use crate::cache::document::Document;
use crate::cache::generation::Epoch;
use crate::cache::orders::DiskOrder;
use crate::clock::stopped;
use crate::resource::testing::ITEMS;

impl Replay<'_> {
    /// Compares everything that can be seen of the cache with the model's state; the files only if they may have
    /// changed.
    pub(super) fn compare(&mut self, state: &State, files: bool) {
        stopped::set(self.times.now());
        let now = self.times.now();
        let run = self.run();
        run.drain();
        let cache = &run.cache;
        let epoch = cache.versions.epoch(ITEMS);
        let memory = cache.memory.get(ITEMS, KEY, epoch, |_| true);
        let memory = memory.map(|found| content(found.as_ref()));
        assert_eq!(memory, state.memory, "memory");
        let stripe = cache.versions.stripe(ITEMS, KEY);
        let generation = cache.versions.generation(stripe);
        assert_eq!(
            generation,
            u64::from(state.version.generation),
            "generation"
        );
        let clean = cache.versions.clean_generation(stripe).is_some();
        assert_eq!(clean, state.clean == state.version.generation, "clean");
        assert_eq!(
            run.shared.in_use.load(Ordering::SeqCst),
            state.disk_on,
            "on"
        );
        assert_eq!(
            cache.is_fresh(&cache.resources[0], now),
            state.is_fresh(),
            "fresh"
        );
        if state.following {
            let applied = cache.freshness.position();
            assert_eq!(applied, Some(position(state.position)), "position");
        }
        let queue: Vec<Order> = run
            .queue
            .iter()
            .map(|order| in_model(order, epoch, state))
            .collect();
        assert_eq!(queue[..], state.queue[..], "queue");
        if files {
            let store = run.shared.store.load_full().expect("it is open");
            let prefix = cache.resources[0].prefix.load(Ordering::SeqCst);
            let entry = store.get(prefix, KEY, run.epoch, || true).unwrap();
            // Until the resource is defined, the prefix of its entries is not known.
            if state.following {
                let entry = entry.map(|entry| content(entry.found.as_ref()));
                assert_eq!(entry, state.disk.content, "disk");
            }
            // Behind the last crash the model forgets the mark.
            if state.crashes < PROTOCOL.bounds.crashes || !state.disk_on {
                let mark = store.recover().unwrap().map(|mark| mark.position());
                assert_eq!(mark, state.disk.mark.map(position), "mark");
            }
        }
    }
}

/// The order as the model has it.
fn in_model(order: &DiskOrder, epoch: Epoch, state: &State) -> Order {
    let commits = |mark: &Mark| {
        let at = (0..=2).find(|commits| position(*commits) == mark.position());
        at.expect("a position of this trace")
    };
    match order {
        DiskOrder::Put(put) => {
            let same = put.version.epoch == epoch;
            let version = Version {
                generation: u8::try_from(put.version.generation).unwrap(),
                epoch: if same { state.version.epoch } else { 1 },
            };
            Order::Put(content(put.found.as_ref()), version)
        }
        DiskOrder::Drop(dropped) => Order::Drop(u8::try_from(dropped[0].generation).unwrap()),
        DiskOrder::Mark(mark) => Order::Mark(commits(mark)),
        DiskOrder::Enable(mark, generations) => {
            Order::Enable(commits(mark), u8::try_from(generations[0]).unwrap())
        }
        _ => panic!("an order of no trace"),
    }
}

/// Documents are bare numbers: how many transactions their snapshot saw.
pub(super) fn content(found: Option<&Document>) -> u8 {
    let document = found.expect("there always is a document");
    std::str::from_utf8(document.body())
        .unwrap()
        .parse()
        .unwrap()
}
