//! Transactions that were prepared before PostgreSQL crashed: their rows come, what they logged does not.
//!
//! The tables of schema larder are unlogged: a crash empties the log together with `larder.epoch`, and a larder that
//! finds no epoch begins one. A transaction that was prepared before the crash survives it without its rows of the log,
//! and may commit at any time. So an epoch begins with the *list* of the transactions that are prepared in this
//! database. Where one of them has become visible since a position, that position is not valid. [`Prepared`] is
//! explored in all its states, as it is and without each [`Guard`].
//!
//! # What is modelled
//! - *Transactions* that change the document, each with its row in the log. They commit, or are prepared and then
//!   committed or rolled back. PostgreSQL commits a prepared one in two steps: it becomes visible to new snapshots,
//!   then it leaves `pg_prepared_xacts`, which heeds no snapshot. *Another database* of the cluster prepares
//!   transactions, too.
//! - *A crash of PostgreSQL*: log and epoch are empty, unprepared transactions have ended, everything else stays.
//! - *A new epoch*, begun by this larder or another: `pg_prepared_xacts` is read, then the list commits with the nonce.
//!   `pg_prepared_xacts` has the lower half of transactions' numbers, the list has whole numbers. All snapshots here
//!   see the lower halves, as if the lower half had started from 0 again.
//! - *The feed*: where there is no position, or the nonce is another, it looks for position and nonce in one snapshot,
//!   then empties both tiers and takes both over. Otherwise a pass reads nonce, list and rows in one snapshot; if its
//!   position is not valid, it gives that up.
//! - *Loads* read in a snapshot and are stored in both tiers, unless an emptying or a pass with changes overtakes them.
//! - *The disk tier*: a pass marks it with the nonce and its position. An emptying makes entries on disk a miss, which
//!   the mark has yet to tell. *A crash of larder* leaves the disk tier and its mark; behind a new position, a pass
//!   from the mark comes back to it, or discards it.
//!
//! # What counts as stale
//! An answer without a transaction that is visible in the position.
//!
//! # What the exploration says
//! - What leaves `pg_prepared_xacts` before the list is read is visible to every load behind the emptying that the
//!   epoch brings. So the list may be read without regard to snapshots, if it commits with the nonce.
//! - Transactions prepared after the crash may be on the list. Each empties the tiers once, though the log has its
//!   rows.
//!
//! # What is left out
//! Two that begin an epoch at the same time (a lock lets one of them do so), the second larder's own tiers (which are
//! as the first one's), the horizon ([`crate::horizon`]), the steps of a pass and of the disk tier's writer
//! ([`crate::Protocol`]), and commits that PostgreSQL reported before they were on disk (`synchronous_commit = off`).

mod steps;
#[cfg(test)]
mod tests;

use stateright::Property;

/// What keeps answers true, each to be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// An epoch has the list of prepared transactions.
    List,
    /// The list commits together with the nonce.
    ListWithNonce,
    /// Numbers on it are whole.
    WholeNumbers,
    /// It leaves out other databases.
    ThisDatabase,
    /// A pass judges its position by the list.
    JudgeAtPass,
    /// So does the pass that resumes from the disk tier's mark.
    JudgeAtResume,
    /// Every transaction on the list counts, not only the first that becomes visible.
    EachCounts,
    /// Another nonce empties both tiers.
    CompareNonce,
    /// The disk tier's mark counts only under its nonce.
    CompareNonceAtResume,
    /// Both tiers are emptied behind a new position, not before it.
    EmptyBehindPosition,
    /// What is committed is visible before it leaves `pg_prepared_xacts`: PostgreSQL's own order.
    VisibleFirst,
}

impl Guard {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::List,
        Self::ListWithNonce,
        Self::WholeNumbers,
        Self::ThisDatabase,
        Self::JudgeAtPass,
        Self::JudgeAtResume,
        Self::EachCounts,
        Self::CompareNonce,
        Self::CompareNonceAtResume,
        Self::EmptyBehindPosition,
        Self::VisibleFirst,
    ];
}

/// How much of everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Transactions, those of the other database among them; four at most.
    pub transactions: u8,
    /// Transactions that the other database prepares.
    pub elsewhere: u8,
    /// Crashes of PostgreSQL.
    pub crashes: u8,
    /// Crashes of larder.
    pub stops: u8,
}

/// The model, whole or without one of its guards.
#[derive(Clone, Copy, Debug)]
pub struct Prepared {
    /// How much of everything there is.
    pub bounds: Bounds,
    /// What is taken out.
    pub without: Option<Guard>,
}

/// A set of transactions, one bit for each. The upper four are those of the model. The lower four ended long ago, and
/// have the same lower halves of numbers.
pub type Set = u8;

/// The row of `larder.epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// One for each life of the log.
    pub nonce: u8,
    /// What was prepared; only without a guard it is not there yet.
    pub list: Option<Set>,
}

/// What PostgreSQL holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Database {
    /// The next transaction's number.
    pub next: u8,
    /// What a snapshot sees: all that have ended, however they did.
    pub ended: Set,
    /// Those that have committed.
    pub committed: Set,
    /// Those that are prepared.
    pub prepared: Set,
    /// Those in `pg_prepared_xacts`.
    pub listed: Set,
    /// Those of the other database.
    pub elsewhere: Set,
    /// Those that are prepared, or were, and have lost their rows of the log.
    pub lost: Set,
    /// The rows of the log.
    pub rows: Set,
    /// None after a crash.
    pub epoch: Option<Epoch>,
    /// What the larder that begins an epoch has read from `pg_prepared_xacts`.
    pub read: Option<Set>,
    /// Crashes so far.
    pub crashes: u8,
}

/// The document in the disk tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The transactions that its snapshot saw.
    pub content: Set,
    /// It was put since the last emptying, which the mark does not tell of.
    pub unmarked: bool,
}

/// A position in the life of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The epoch's.
    pub nonce: u8,
    /// The transactions that its snapshot sees.
    pub seen: Set,
}

/// One state of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// What PostgreSQL holds.
    pub database: Database,
    /// The nonce that the feed knows.
    pub nonce: Option<u8>,
    /// What has been applied; none where the feed has to begin anew.
    pub position: Option<Set>,
    /// What the feed has found to begin anew from.
    pub looked: Option<Mark>,
    /// The load that has read and is not stored yet: the transactions that its snapshot saw.
    pub load: Option<Set>,
    /// The document in memory.
    pub memory: Option<Set>,
    /// The document in the disk tier.
    pub disk: Option<Entry>,
    /// Both tiers were emptied, which the disk tier's mark does not tell.
    pub unmarked: bool,
    /// How far the disk tier has followed.
    pub mark: Option<Mark>,
    /// larder has yet to come back to the disk tier.
    pub resumes: bool,
    /// Only without a guard: a transaction of the list was seen.
    pub judged: bool,
    /// Crashes of larder so far.
    pub stops: u8,
    /// A position was given up for a transaction of another database alone.
    pub emptied_for_another: bool,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A transaction gets the next number, and changes the document.
    Begin,
    /// This one commits.
    Commit(u8),
    /// It is prepared.
    Prepare(u8),
    /// Another database prepares a transaction.
    PrepareElsewhere,
    /// What was prepared is committed, and visible to new snapshots.
    CommitPrepared(u8),
    /// It leaves `pg_prepared_xacts`.
    Unlist(u8),
    /// What was prepared is rolled back.
    RollBackPrepared(u8),
    /// PostgreSQL crashes and starts.
    Crash,
    /// The larder that begins an epoch reads `pg_prepared_xacts`.
    ReadPrepared,
    /// The epoch commits.
    BeginEpoch,
    /// The feed looks for a position and the nonce.
    Look,
    /// It begins anew from there.
    Restart,
    /// A pass.
    Pass,
    /// A pass from the disk tier's mark.
    Resume,
    /// A load reads.
    Load,
    /// It is stored.
    Store,
    /// The document has to leave memory for others.
    Evict,
    /// larder crashes and starts anew.
    Stop,
}

/// The promise itself.
pub(crate) const NO_STALE_ANSWER: &str = "no answer is stale";

/// What it is good for that the list leaves out other databases.
pub(crate) const NOTHING_FOR_ANOTHER: &str = "another database empties nothing";

impl State {
    /// What the tiers would answer now.
    pub fn answer(&self) -> Option<Set> {
        let usable = |entry: &Entry| !self.resumes && entry.unmarked == self.unmarked;
        self.memory
            .or(self.disk.filter(usable).map(|entry| entry.content))
    }

    fn is_stale(&self) -> bool {
        let covered = self.position.unwrap_or(0) & self.database.document();
        self.answer().is_some_and(|answer| covered & !answer != 0)
    }
}

impl stateright::Model for Prepared {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![Self::begin()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // What must not happen ends the story.
        if !state.is_stale() && !state.emptied_for_another {
            self.enabled(state, actions);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_STALE_ANSWER, |_, state: &State| !state.is_stale()),
            Property::always(NOTHING_FOR_ANOTHER, |_, state: &State| {
                !state.emptied_for_another
            }),
            Property::sometimes(
                "tiers answer without what is prepared and has lost its rows",
                |_, state: &State| {
                    let waits = state.database.lost & state.database.prepared != 0;
                    waits && state.position.is_some() && state.answer().is_some()
                },
            ),
            Property::sometimes(
                "an answer has what has lost its rows",
                |_, state: &State| {
                    let has = |answer: Set| answer & state.database.lost != 0;
                    state.position.is_some() && state.answer().is_some_and(has)
                },
            ),
            Property::sometimes(
                "it is committed between the list and its epoch",
                |_, state: &State| {
                    let database = &state.database;
                    let read = database.read.unwrap_or(0);
                    read & database.lost & database.committed & !database.listed != 0
                },
            ),
            Property::sometimes(
                "it is committed before the list is read",
                |_, state: &State| {
                    let database = &state.database;
                    let committed = database.lost & database.committed;
                    database.read.is_some_and(|read| committed & !read != 0)
                },
            ),
            Property::sometimes(
                "what is prepared after the crash is on the list",
                |_, state: &State| {
                    let database = &state.database;
                    let read = database.read.unwrap_or(0);
                    read & database.rows != 0
                },
            ),
            Property::sometimes(
                "the disk tier is kept while one is prepared",
                |_, state: &State| {
                    let waits = state.database.lost & state.database.prepared != 0;
                    let disk = state.memory.is_none() && state.answer().is_some();
                    waits && disk && state.stops > 0 && state.position.is_some()
                },
            ),
            Property::sometimes(
                "larder crashes before a mark tells of an emptying",
                |_, state: &State| {
                    let visible = state.database.lost & state.database.committed;
                    let unseen = |mark: &Mark| visible & !mark.seen != 0;
                    let same = |mark: &Mark| Some(mark.nonce) == state.nonce;
                    let old = state.mark.filter(same).is_some_and(|mark| unseen(&mark));
                    state.resumes && state.position.is_some() && state.disk.is_some() && old
                },
            ),
        ]
    }
}
