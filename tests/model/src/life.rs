//! How larder finds out that an older copy of the database was put back: by a random mark in `larder.node`.
//!
//! A data directory that is copied while PostgreSQL is stopped, and put back later, goes on with the identity, the
//! nonce and the numbers of transactions that it had. What larder read between the two never was, and a position from
//! that time covers transactions that are yet to come. [`Life`] is explored in all its states, as it is and without
//! each [`Guard`].
//!
//! # What is modelled
//! - *The database*: transactions that change the document, in a list whose length is what positions are compared by;
//!   a restart, in which it may be copied or the copy put back. Each start is a *run*. The mark is a row of it.
//! - *The feed*: a connection compares the database's mark with the file's acknowledged and next one. If it is
//!   neither, both tiers and the position are emptied. If it is the next one, that becomes the acknowledged one. Then
//!   a new mark is drawn, stored as next, sent, committed and acknowledged; the same for each heartbeat. The connection
//!   may be lost between any two steps, and may seem alive after its run has ended. Passes run once its first mark is
//!   acknowledged; a position that is ahead of the database empties both tiers, too.
//! - *A load* reads from any run, without the feed, and stores into both tiers later: only if the feed's connection has
//!   its mark acknowledged, and reaches the run from which the load has read.
//! - *A crash*: memory and connections are gone; the disk tier, its position and the file stay.
//!
//! # What counts as stale
//! Once the feed has completed a pass on a connection to the present run: an answer that is not what the document said
//! at the position or later. That includes whatever was read in the lost life. Until then `max_staleness` bounds it,
//! as [`crate::Protocol`] shows.
//!
//! # What the exploration says
//! - Loads need a proof of their own: [`Guard::SameRun`]. Loads use other connections than the feed. One that reads
//!   from a later run while the feed's connection seems alive, or has yet to be replaced, would store what a copy put
//!   back at once does not have, and the copy's mark is the acknowledged one. Comparing `pg_postmaster_start_time()` of
//!   the two connections is enough; comparing marks is not, since both runs have the same.
//! - Passes, too, wait for the acknowledgement: their position would outlive the run.
//! - Storing the next mark before it is sent, and counting it, keep no answer from being stale. Without either, an
//!   acknowledgement that is lost empties both tiers for nothing (the second property).
//! - Nor does a heartbeat's mark, for a copy made while PostgreSQL is stopped: stopping ends the connection. It is what
//!   a snapshot of a whole running machine would need.
//!
//! # What is left out
//! Time, the steps of a load and of the disk tier (what was stored is in both tiers at once; a load that an emptying or
//! a pass with changes overtakes ends), copies of a running database (PostgreSQL empties `larder.epoch` when it
//! recovers), a mark that is committed after its connection was lost and another was stored as next (it is neither, so
//! it empties), and poolers, behind which each statement has to prove its run.

mod steps;
#[cfg(test)]
mod tests;

use stateright::Property;

use crate::Few;

/// What keeps answers true, each to be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A feed that reconnects compares the mark.
    CompareAtReconnection,
    /// So does one that comes back to the disk tier after a crash.
    CompareAtResume,
    /// Each connection draws a new mark.
    NewMarkOnConnection,
    /// Loads store nothing before the connection's mark is acknowledged.
    LoadAfterAcknowledgement,
    /// No pass runs before that.
    PassAfterAcknowledgement,
    /// What is acknowledged is in the file before it counts as acknowledged.
    AcknowledgedInFile,
    /// A load stores only what it has read from the run that the feed's connection reaches.
    SameRun,
    /// The next mark is in the file before it is sent.
    NextStoredFirst,
    /// The next mark counts like the acknowledged one.
    NextCounts,
    /// A next mark that was found becomes the acknowledged one.
    NextAdopted,
}

impl Guard {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::CompareAtReconnection,
        Self::CompareAtResume,
        Self::NewMarkOnConnection,
        Self::LoadAfterAcknowledgement,
        Self::PassAfterAcknowledgement,
        Self::AcknowledgedInFile,
        Self::SameRun,
        Self::NextStoredFirst,
        Self::NextCounts,
        Self::NextAdopted,
    ];
}

/// How much of everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Transactions, of all lives together.
    pub commits: u8,
    /// Restarts of PostgreSQL.
    pub restarts: u8,
    /// The copy may be made, and put back this often.
    pub copies: u8,
    /// Crashes of larder.
    pub crashes: u8,
}

/// The model, whole or without one of its guards.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// How much of everything there is.
    pub bounds: Bounds,
    /// The feed sends heartbeats.
    pub heartbeats: bool,
    /// What is taken out.
    pub without: Option<Guard>,
}

/// A random mark: equal numbers are equal marks, and a number that is stored nowhere any more may be drawn again.
pub type Mark = u8;

/// A state of the document: the number of its transaction among those of all lives.
pub type Content = u8;

/// A data directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Data {
    /// What the document said, the newest last.
    pub history: Few<Content, 8>,
    /// The mark in `larder.node`.
    pub mark: Mark,
}

/// The file in larder's state directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct File {
    /// The last mark that is known to be committed.
    pub acknowledged: Mark,
    /// The one that was drawn behind it.
    pub next: Option<Mark>,
}

/// A mark on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sending {
    /// None is.
    Nothing,
    /// It is drawn, and to be sent.
    Drawn(Mark),
    /// It is sent.
    Sent(Mark),
    /// It is committed; larder has yet to learn it.
    Committed(Mark),
}

/// A connection of the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// The run that it reaches.
    pub run: u8,
    /// The mark has been compared.
    pub compared: bool,
    /// A mark that was drawn on it is acknowledged.
    pub acknowledged: bool,
    /// A pass has completed on it.
    pub passed: bool,
    /// A mark on its way.
    pub sending: Sending,
}

/// A load that has read and not stored yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Load {
    /// The run from which it has read.
    pub run: u8,
    /// What it has read.
    pub content: Content,
}

/// One state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// What PostgreSQL holds.
    pub data: Data,
    /// The copy.
    pub copy: Option<Data>,
    /// Starts of PostgreSQL.
    pub run: u8,
    /// Transactions so far.
    pub commits: u8,
    /// How often the copy was put back.
    pub put_back: u8,
    /// Crashes so far.
    pub crashes: u8,
    /// larder's file.
    pub file: File,
    /// The feed's connection.
    pub connection: Option<Connection>,
    /// What memory holds.
    pub memory: Option<Content>,
    /// What the disk tier holds.
    pub disk: Option<Content>,
    /// larder has yet to come back to the disk tier.
    pub resumes: bool,
    /// Transactions that have been applied, the disk tier's mark as well; none after an emptying.
    pub position: Option<u8>,
    /// The load under way.
    pub load: Option<Load>,
    /// Both tiers were emptied although no copy was ever put back.
    pub emptied_for_nothing: bool,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A transaction changes the document.
    Commit,
    /// PostgreSQL stops and starts.
    Restart,
    /// It stops, its data directory is copied, it starts.
    Copy,
    /// It stops, the copy takes the place of its data directory, it starts.
    PutBack,
    /// larder crashes and starts anew.
    Crash,
    /// The feed connects.
    Connect,
    /// It reads the database's mark and compares.
    Compare,
    /// It draws a new mark, and stores it as the next one.
    Draw,
    /// It sends the mark.
    Send,
    /// The database commits the mark.
    CommitMark,
    /// The acknowledgement arrives.
    Acknowledge,
    /// The feed's connection is lost, or found to be.
    Lose,
    /// A pass.
    Pass,
    /// A load reads.
    Load,
    /// It stores, or may not and ends.
    Store,
    /// The document has to leave memory for others.
    Evict,
}

/// The promise itself.
pub(crate) const NO_STALE_ANSWER: &str = "no answer is stale";

/// What the next mark is good for.
pub(crate) const NOTHING_FOR_NOTHING: &str = "nothing is emptied where no copy was put back";

impl State {
    /// What the tiers would answer now.
    pub fn answer(&self) -> Option<Content> {
        self.memory.or(self.disk.filter(|_| !self.resumes))
    }

    /// The feed has followed the present run.
    pub fn follows(&self) -> bool {
        let here = |connection: &Connection| connection.passed && connection.run == self.run;
        self.connection.as_ref().is_some_and(here)
    }

    fn is_stale(&self) -> bool {
        let Some(answer) = self.answer().filter(|_| self.follows()) else {
            return false;
        };
        // What the document said at the position is the last of what the position covers.
        let covered = usize::from(self.position.unwrap_or(0));
        let since = self.data.history.iter().skip(covered.saturating_sub(1));
        since.copied().all(|content| content != answer)
    }
}

impl stateright::Model for Life {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![Self::begin()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // What must not happen ends the story.
        if !state.is_stale() && !state.emptied_for_nothing {
            self.enabled(state, actions);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(NO_STALE_ANSWER, |_, state: &State| !state.is_stale()),
            Property::always(NOTHING_FOR_NOTHING, |_, state: &State| {
                !state.emptied_for_nothing
            }),
            Property::sometimes(
                "a position survives that is of a lost life",
                |_, state: &State| {
                    let lost = state.data.history.len() < usize::from(state.position.unwrap_or(0));
                    lost && state.put_back > 0
                },
            ),
            Property::sometimes(
                "as much was committed again as was lost",
                |_, state: &State| {
                    let covered = usize::from(state.position.unwrap_or(0));
                    let again = state.data.history.len() >= covered;
                    let lost = |content: Content| !state.data.history.contains(&content);
                    state.put_back > 0 && again && state.disk.is_some_and(lost)
                },
            ),
            Property::sometimes("memory is kept over a reconnection", |_, state: &State| {
                state.run > 0 && state.memory.is_some() && state.follows()
            }),
            Property::sometimes("an acknowledgement is lost", |_, state: &State| {
                state.connection.is_none() && state.file.next == Some(state.data.mark)
            }),
            Property::sometimes(
                "tiers answer from the life that was put back",
                |_, state: &State| {
                    state.put_back > 0 && state.follows() && state.answer().is_some()
                },
            ),
            Property::sometimes(
                "a copy is put back that nothing was lost to",
                |_, state: &State| {
                    let nothing_lost = state.file.acknowledged == state.data.mark;
                    state.put_back > 0 && nothing_lost && state.connection.is_none()
                },
            ),
        ];
        if self.bounds.crashes > 0 {
            let resumed = |_: &Self, state: &State| {
                let answers = state.memory.is_none() && state.answer().is_some();
                state.crashes > 0 && answers && state.follows()
            };
            let name = "the disk tier is kept over a crash";
            properties.push(Property::sometimes(name, resumed));
        }
        properties
    }
}
