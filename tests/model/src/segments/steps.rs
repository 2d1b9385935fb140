//! What can happen next, and what it does.

use super::{Action, Content, Guard, Pass, Record, Segment, Segments, State};

impl Segments {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    pub(super) fn enabled(&self, state: &State, actions: &mut Vec<Action>) {
        if state.crashes < self.crashes {
            actions.push(Action::Crash);
            if state.deleted < self.deleted {
                let older = 0..state.segments.len() - 1;
                actions.extend(older.map(Action::Delete));
            }
        }
        if state.beginning {
            return actions.push(Action::Finish);
        }
        if state.committed < self.commits {
            actions.push(Action::Commit);
        }
        let unflushed =
            |index: &usize| state.segments[*index].now != state.segments[*index].flushed;
        let indexes = 0..state.segments.len();
        actions.extend(indexes.filter(unflushed).map(Action::Flush));
        if state.begun < self.begun {
            actions.push(Action::Begin);
        }
        if state.segments.len() > 1 {
            actions.push(Action::Remove);
        }
        match state.pass {
            Some(Pass { drop: true, .. }) => actions.push(Action::Drop),
            Some(_) => actions.push(Action::Mark),
            None if state.resumes || state.stored.is_none() || state.committed > state.position => {
                actions.push(Action::Pass);
            }
            None => {}
        }
        if !state.may_answer() {
            return;
        }
        if state.place.is_some() {
            actions.push(Action::Answer);
        } else {
            actions.push(Action::Put(state.position));
            if state.committed > state.position {
                actions.push(Action::Put(state.committed));
            }
        }
        let oldest = state.segments.first().map(|segment| segment.number);
        if state.segments.len() > 1 && state.place.is_some() && state.place == oldest {
            actions.push(Action::Rewrite);
        }
        if state.purges < self.purges {
            actions.push(Action::Purge);
        }
    }

    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Commit => state.committed += 1,
            Action::Pass => {
                state.pass = Some(Pass {
                    drop: state.committed > state.position,
                    mark: state.committed,
                });
                state.position = state.committed;
            }
            Action::Drop => {
                self.remove_key(state);
                if let Some(pass) = &mut state.pass {
                    pass.drop = false;
                }
            }
            Action::Mark => {
                state.stored = state.pass.take().map(|pass| pass.mark);
                state.youngest().now.mark = state.stored;
                if state.resumes && !self.has(Guard::IndexBeforeDrops) {
                    state.place = self.index(&state.segments);
                }
                state.resumes = false;
            }
            Action::Put(found) => state.put(Record::Entry(found, state.purges)),
            Action::Rewrite => {
                if let Some(record) = state.entry() {
                    state.put(record);
                }
            }
            Action::Purge => {
                self.remove_key(state);
                if self.has(Guard::FlushOfPurge) {
                    state.youngest().flush();
                }
                state.purges += 1;
            }
            Action::Begin => self.begin_segment(state),
            Action::Finish => self.finish_segment(state),
            Action::Remove => {
                let removed = state.segments.remove(0);
                state.place = state.place.filter(|place| *place != removed.number);
            }
            Action::Flush(index) => state.segments[index].flush(),
            Action::Answer => {
                if let Some(Record::Entry(found, purges)) = state.entry() {
                    state.stale = found < state.position || purges < state.purges;
                }
            }
            Action::Crash => self.restart(state),
            Action::Delete(index) => {
                state.deleted += 1;
                state.segments.remove(index);
                self.restart(state);
            }
        }
    }

    fn begin_segment(&self, state: &mut State) {
        if self.has(Guard::FlushBeforeNext) {
            state.youngest().flush();
        }
        let number = state.youngest().number + 1;
        state.segments.push(Segment {
            number,
            ..Segment::default()
        });
        state.begun += 1;
        state.beginning = true;
    }

    fn finish_segment(&self, state: &mut State) {
        let pending = state.pass.map(|pass| pass.mark);
        let pending = pending.filter(|_| !self.has(Guard::StoredMarkInNext));
        let mark = pending.or(state.stored);
        state.youngest().now.mark = mark;
        state.youngest().flush();
        state.beginning = false;
    }

    fn remove_key(&self, state: &mut State) {
        if state.place.take().is_some() {
            let is_alone = state.segments.len() == 1 || !self.has(Guard::RemovalInYoungest);
            state.youngest().now.record = (!is_alone).then_some(Record::Removal);
        }
    }

    fn restart(&self, state: &mut State) {
        state.crashes += 1;
        state.beginning = false;
        state.pass = None;
        for segment in &mut state.segments {
            segment.now = segment.flushed;
        }
        // It was begun, and has no mark yet.
        while state.segments.len() > 1 && state.youngest().now == Content::default() {
            state.segments.pop();
        }
        let numbers = || state.segments.iter().map(|segment| segment.number);
        let has_gap = !numbers().zip(numbers().skip(1)).all(|(a, b)| a + 1 == b);
        let is_used = !(has_gap && self.has(Guard::NoGaps));
        match state.youngest().now.mark.filter(|_| is_used) {
            Some(mark) => {
                state.resumes = true;
                state.position = mark;
                state.stored = Some(mark);
                let is_indexed = self.has(Guard::IndexBeforeDrops);
                let place = self.index(&state.segments);
                state.place = place.filter(|_| is_indexed);
            }
            None => {
                state.segments = vec![Segment::default()];
                state.resumes = false;
                state.position = state.committed;
                state.stored = None;
                state.place = None;
            }
        }
    }

    /// The number of the segment that has the key's entry.
    fn index(&self, segments: &[Segment]) -> Option<u8> {
        let mut records = segments
            .iter()
            .filter(|segment| segment.now.record.is_some());
        let deciding = if self.has(Guard::YoungestCounts) {
            records.next_back()
        } else {
            records.next()
        };
        let entry = deciding.filter(|segment| segment.now.record != Some(Record::Removal));
        entry.map(|segment| segment.number)
    }
}

impl Segment {
    fn flush(&mut self) {
        self.flushed = self.now;
    }
}

impl State {
    pub(super) fn begin() -> Self {
        Self {
            committed: 0,
            position: 0,
            purges: 0,
            segments: vec![Segment::default()],
            beginning: false,
            place: None,
            stored: None,
            pass: None,
            resumes: false,
            begun: 0,
            crashes: 0,
            deleted: 0,
            stale: false,
        }
    }

    /// Whether the tier answers, and takes documents in.
    pub(super) fn may_answer(&self) -> bool {
        !self.resumes && !self.beginning && self.pass.is_none()
    }

    fn youngest(&mut self) -> &mut Segment {
        let last = self.segments.len() - 1;
        &mut self.segments[last]
    }

    fn put(&mut self, record: Record) {
        self.youngest().now.record = Some(record);
        self.place = Some(self.youngest().number);
    }

    /// What the key's segment has of it.
    fn entry(&self) -> Option<Record> {
        let mut segments = self.segments.iter();
        let segment = segments.find(|segment| Some(segment.number) == self.place)?;
        segment.now.record
    }
}
