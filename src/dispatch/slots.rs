//! The slots of a dispatch, as this process knows them: which have due rows, and where reading goes on.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::dispatch::settlement::Settlement;

/// The values of the partition's columns as text.
pub(super) type Slot = Arc<[String]>;

/// Reading a slot begins anew after this many times the time that the last beginning took.
const ANEW_FACTOR: u32 = 10;

/// At the latest after this time.
const ANEW_MAX: Duration = Duration::from_secs(60);

/// The last row that was matched: reading goes on after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// Its due moment.
    pub(super) due: String,
    /// Its key.
    pub(super) key: String,
}

/// When something that reads old versions of rows was done last, and how long that took. It is repeated as rarely as it is
/// expensive: versions that another transaction still needs would be read again and again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beginning {
    at: Option<Instant>,
    took: Duration,
}

impl Beginning {
    /// Notes that it has just been done, and took so long.
    pub(super) fn note(&mut self, took: Duration) {
        *self = Self {
            at: Some(Instant::now()),
            took,
        };
    }

    /// Returns whether the pause since the last beginning is over. `pause_min` is the shortest pause.
    pub(super) fn is_over(&self, pause_min: Duration) -> bool {
        let pause = (self.took * ANEW_FACTOR).clamp(pause_min.min(ANEW_MAX), ANEW_MAX);
        self.at.is_none_or(|at| at.elapsed() >= pause)
    }
}

/// What is known of a slot.
#[derive(Debug, Default)]
pub(super) struct SlotState {
    /// `None`: from the first row on.
    pub(super) position: Option<Position>,
    pub(super) beginning: Beginning,
    /// How many seconds its oldest row had been due at the last look; 0 without a due row.
    pub(super) lag: f64,
    /// Without an index on the due moment: when the slot is read again.
    pub(super) look_at: Option<Instant>,
    /// Rows that were sent and are not rescheduled yet.
    unsettled: Vec<Settlement>,
    /// When they were put there.
    unsettled_since: Option<Instant>,
    is_queued: bool,
    is_worked: bool,
}

/// All slots.
#[derive(Default)]
pub(super) struct Slots {
    state: Mutex<SlotsState>,
    changed: Notify,
}

#[derive(Default)]
struct SlotsState {
    known: HashMap<Slot, SlotState>,
    /// Those that have due rows, in the order in which that was noticed.
    queue: VecDeque<Slot>,
    worked: usize,
    /// The rows of `unsettled` of all slots.
    unsettled: usize,
}

impl Slots {
    fn lock(&self) -> MutexGuard<'_, SlotsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over the slots that there are now. What is known of those that were there before stays.
    pub(super) fn replace(&self, slots: Vec<Slot>) {
        let mut state = self.lock();
        let mut former = std::mem::take(&mut state.known);
        let known = slots.into_iter().map(|slot| {
            let of_slot = former.remove(&slot).unwrap_or_default();
            (slot, of_slot)
        });
        let mut known: HashMap<Slot, SlotState> = known.collect();
        let busy = former
            .into_iter()
            .filter(|(_, slot)| slot.is_worked || slot.is_queued || !slot.unsettled.is_empty());
        known.extend(busy);
        state.known = known;
    }

    /// Returns the slots that no worker of this process has, with what `of` says of each.
    pub(super) fn idle<T>(&self, mut of: impl FnMut(&mut SlotState) -> T) -> Vec<(Slot, T)> {
        let mut state = self.lock();
        let idle = state
            .known
            .iter_mut()
            .filter(|(_, slot)| !slot.is_worked && !slot.is_queued);
        idle.map(|(values, slot)| (Arc::clone(values), of(slot)))
            .collect()
    }

    /// Reads all slots from their first rows on.
    pub(super) fn begin_anew(&self) {
        let mut state = self.lock();
        state.known.values_mut().for_each(|slot| {
            slot.position = None;
            slot.lag = 0.0;
        });
    }

    /// Queues the slots with rows that were sent and are not rescheduled yet.
    pub(super) fn queue_unsettled(&self) {
        let of_slots = self.idle(|slot| !slot.unsettled.is_empty());
        let waiting = of_slots.iter().filter(|(_, is_unsettled)| *is_unsettled);
        waiting.for_each(|(slot, _)| self.queue(slot));
    }

    /// Returns the greatest lag of a slot, also of those that a worker has and that are not looked at meanwhile.
    pub(super) fn lag(&self) -> f64 {
        let state = self.lock();
        state
            .known
            .values()
            .map(|slot| slot.lag)
            .fold(0.0, f64::max)
    }

    /// Queues a slot that has due rows.
    pub(super) fn queue(&self, values: &Slot) {
        let mut state = self.lock();
        let SlotsState { known, queue, .. } = &mut *state;
        if let Some(slot) = known.get_mut(values)
            && !slot.is_queued
            && !slot.is_worked
        {
            slot.is_queued = true;
            queue.push_back(Arc::clone(values));
            self.changed.notify_one();
        }
    }

    /// Waits for a slot to work on; `None` once `is_over` says so.
    pub(super) async fn take(&self, is_over: impl Fn() -> bool) -> Option<Slot> {
        loop {
            let changed = self.changed.notified();
            if is_over() {
                // The next one that waits shall know it, too.
                self.changed.notify_one();
                return None;
            }
            if let Some(slot) = self.take_first() {
                return Some(slot);
            }
            changed.await;
        }
    }

    fn take_first(&self) -> Option<Slot> {
        let mut state = self.lock();
        let slot = state.queue.pop_front()?;
        let is_more = !state.queue.is_empty();
        state.worked += 1;
        if let Some(of_slot) = state.known.get_mut(&slot) {
            of_slot.is_queued = false;
            of_slot.is_worked = true;
        }
        if is_more {
            self.changed.notify_one();
        }
        Some(slot)
    }

    /// Gives a slot back that [`Slots::take`] has returned.
    pub(super) fn give_back(&self, slot: &Slot) {
        let mut state = self.lock();
        state.worked -= 1;
        if let Some(slot) = state.known.get_mut(slot) {
            slot.is_worked = false;
        }
    }

    /// Reads or changes what is known of a slot.
    pub(super) fn with<T: Default>(
        &self,
        slot: &Slot,
        change: impl FnOnce(&mut SlotState) -> T,
    ) -> T {
        let mut state = self.lock();
        state.known.get_mut(slot).map(change).unwrap_or_default()
    }

    /// Takes the rows of a slot that were sent and are not rescheduled yet.
    pub(super) fn take_unsettled(&self, slot: &Slot) -> Vec<Settlement> {
        let mut state = self.lock();
        let of_slot = state.known.get_mut(slot);
        let unsettled = of_slot.map(|slot| std::mem::take(&mut slot.unsettled));
        let unsettled = unsettled.unwrap_or_default();
        state.unsettled -= unsettled.len();
        unsettled
    }

    /// Forgets the sent rows of a slot that could not be rescheduled for `age`, since another session has the slot.
    pub(super) fn forget_unsettled(&self, slot: &Slot, age: Duration) {
        let is_old = self.with(slot, |slot| {
            slot.unsettled_since.is_some_and(|at| at.elapsed() >= age)
        });
        if is_old {
            drop(self.take_unsettled(slot));
        }
    }

    /// Keeps such rows until the slot is worked on again.
    pub(super) fn keep_unsettled(&self, slot: &Slot, unsettled: Vec<Settlement>) {
        let mut state = self.lock();
        let SlotsState {
            known,
            unsettled: count,
            ..
        } = &mut *state;
        if let Some(slot) = known.get_mut(slot) {
            *count += unsettled.len();
            slot.unsettled_since = (!unsettled.is_empty()).then(Instant::now);
            slot.unsettled = unsettled;
        }
    }

    /// Returns how many rows were sent and are not rescheduled yet, but for those of slots that are worked on.
    pub(super) fn unsettled(&self) -> usize {
        self.lock().unsettled
    }

    /// Returns whether other slots wait for a worker.
    pub(super) fn has_waiting(&self) -> bool {
        !self.lock().queue.is_empty()
    }

    /// Returns the number of slots that are worked on.
    pub(super) fn worked(&self) -> usize {
        self.lock().worked
    }

    /// Returns whether none has due rows, as far as this process knows, and none is worked on.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.worked == 0 && state.queue.is_empty()
    }

    /// Wakes all that wait in [`Slots::take`].
    pub(super) fn wake_all(&self) {
        self.changed.notify_waiters();
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;

    use super::*;
    use crate::dispatch::batch::DueRow;
    use crate::dispatch::settlement::Fate;

    fn slot(name: &str) -> Slot {
        Arc::new([name.to_owned()])
    }

    #[tokio::test]
    async fn slots_are_worked_on_once_at_a_time_in_the_order_of_the_queue() {
        let slots = Slots::default();
        let [a, b, c] = ["a", "b", "c"].map(slot);
        slots.replace(vec![a.clone(), b.clone()]);
        for slot in [&b, &a, &b, &c] {
            slots.queue(slot);
        }
        assert_eq!(slots.take(|| false).await, Some(b.clone()));
        slots.queue(&b);
        assert!(slots.has_waiting());
        assert_eq!(slots.take(|| false).await, Some(a.clone()));
        assert!(!slots.has_waiting());
        assert_eq!((slots.worked(), slots.is_idle()), (2, false));
        // One that is worked on stays known.
        slots.replace(vec![c.clone()]);
        assert_eq!(slots.idle(|_| ()).len(), 1);
        for slot in [&a, &b] {
            slots.give_back(slot);
        }
        assert!(slots.is_idle());
        slots.replace(vec![c]);
        assert_eq!(slots.idle(|_| ()).len(), 1);
        assert_eq!(slots.take(|| true).await, None);
    }

    /// Such a slot has no due rows, if another process has rescheduled them.
    #[tokio::test(start_paused = true)]
    async fn slots_with_unsettled_rows_are_worked_on_and_forgotten_in_the_end() {
        let (slots, a) = (Slots::default(), slot("a"));
        slots.replace(vec![a.clone(), slot("b")]);
        let settlement = Settlement {
            row: DueRow {
                key: "1".to_owned(),
                due: String::new(),
                first_due: String::new(),
                attempt: 1,
                id: String::new(),
                element: Bytes::new(),
                fault: None,
            },
            fate: Fate::Delivered,
        };
        slots.keep_unsettled(&a, vec![settlement]);
        slots.queue_unsettled();
        assert_eq!(slots.take(|| false).await, Some(a.clone()));
        assert!(!slots.has_waiting());
        let second = Duration::from_secs(1);
        for (seconds, left) in [(0, 1), (2, 0)] {
            tokio::time::advance(seconds * second).await;
            slots.forget_unsettled(&a, 2 * second);
            assert_eq!(slots.unsettled(), left);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_is_repeated_rarely() {
        let second = Duration::from_secs(1);
        for (took, pause) in [(0, 1), (1, 10), (5, 50), (7, 60)] {
            let mut beginning = Beginning::default();
            assert!(beginning.is_over(second));
            beginning.note(took * second);
            tokio::time::advance(pause * second - Duration::from_millis(1)).await;
            assert!(!beginning.is_over(second), "{took}");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(beginning.is_over(second), "{took}");
        }
    }
}
