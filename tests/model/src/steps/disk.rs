//! The disk tier's writer.

use crate::{Batch, Guard, Order, Protocol, State};

impl Protocol {
    pub(super) fn gather(&self, state: &mut State, count: usize) {
        let mut batch = Batch::default();
        for order in state.queue.drain(..count) {
            match order {
                Order::Put(content, version) => {
                    let valid = version == state.version || !self.has(Guard::PutCheck);
                    if state.disk_on && valid {
                        batch.content = Some(Some(content));
                    }
                }
                Order::Drop(generation) => {
                    batch.content = Some(None);
                    batch.clean = generation;
                }
                // The mark of the earlier run stays until its content may be used.
                Order::Mark(position) if state.disk_on => batch.mark = Some(position),
                Order::Mark(_) => {}
                Order::Enable(position, generation) => {
                    batch.mark = Some(position);
                    batch.clean = batch.clean.max(generation);
                    batch.enable = true;
                }
            }
        }
        if batch.content == Some(state.disk.content) {
            batch.content = None;
        }
        if !self.has(Guard::CleanAfterApply) {
            state.clean = state.clean.max(batch.clean);
        }
        // A batch that changes nothing needs no second step.
        state.batch = Some(batch).filter(|batch| *batch != Batch::default());
    }

    pub(super) fn apply(&self, state: &mut State) {
        let Some(batch) = state.batch.take() else {
            return;
        };
        if let Some(content) = batch.content {
            state.disk.content = content;
        }
        state.disk.mark = batch.mark.or(state.disk.mark);
        state.clean = state.clean.max(batch.clean);
        state.disk_on |= batch.enable;
        self.forget_mark(state);
    }

    /// If no crash is to come, the mark is never used.
    pub(super) fn forget_mark(&self, state: &mut State) {
        if state.disk_on && state.crashes == self.bounds.crashes {
            state.disk.mark = None;
        }
    }
}

impl State {
    /// The number of orders that one batch may take: none after an `Enable`.
    pub(super) fn orders_of_a_batch(&self) -> usize {
        let enable = |order: &Order| matches!(order, Order::Enable(..));
        let enable = self.queue.iter().position(enable);
        enable.map_or(self.queue.len(), |index| index + 1)
    }
}
