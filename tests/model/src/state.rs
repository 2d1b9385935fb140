//! The state of the model: the database, larder's two tiers, and the requests, loads and passes under way.

use smallvec::SmallVec;

use crate::Protocol;

/// A list that is short enough to need no allocation.
pub type Few<T, const N: usize = 2> = SmallVec<[T; N]>;

/// A state of the document: the number of transactions that its snapshot saw committed.
pub type Content = u8;

/// What the transactions do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// Each of two edits the document.
    Edits,
    /// One moves the document to another parent, the other retitles that parent, at the same time.
    MovableParent,
}

/// A transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Txn {
    /// Edits the document.
    Edit,
    /// Points the document at its other parent.
    Move,
    /// Gives the second parent another title.
    Retitle,
}

/// A transaction that has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Open {
    pub(crate) txn: Txn,
    /// The document was found by its own snapshot; nothing but a trigger that maps asks for it.
    pub(crate) mapped: bool,
}

/// What PostgreSQL holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Database {
    /// In the order of their commits.
    pub(crate) committed: Few<Open>,
    pub(crate) open: Few<Open>,
    /// The document belonged to the second parent at first.
    pub(crate) second: bool,
}

/// The generation of the key and the epoch of the resource when a load began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version {
    /// Invalidations of the key so far.
    pub generation: u8,
    /// 1 from a crash until the disk tier's content is taken over.
    pub epoch: u8,
}

/// A moment whose age matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Moment {
    /// A transaction committed.
    Commit,
    /// The start of the last completed pass, which is `fresh_at`.
    Fresh,
    /// The start of the pass under way.
    Began,
    /// The statement of this load was sent.
    Sent(usize),
}

/// An order in the disk tier's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Keep the document.
    Put(Content, Version),
    /// Remove the document, which was invalidated at this generation.
    Drop(u8),
    /// The orders before reflect everything up to this position.
    Mark(u8),
    /// The content from before a crash has caught up with this position, at this generation.
    Enable(u8, u8),
}

/// What the disk tier holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Disk {
    /// The document.
    pub content: Option<Content>,
    /// The position from which a later run would resume.
    pub mark: Option<u8>,
}

/// What the writer has taken from the queue and checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Batch {
    /// The last change of the document, if there is one.
    pub content: Option<Option<Content>>,
    /// The mark that is written with it.
    pub mark: Option<u8>,
    /// The stripe will be clean up to here.
    pub clean: u8,
    /// The tier will be in use.
    pub enable: bool,
}

/// What a pass does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PassStep {
    /// Read the log in a snapshot.
    Read,
    /// Take over the epoch of the disk tier's content.
    TakeEpoch,
    /// Raise the generation.
    Raise,
    /// Drop the document from memory.
    Forget,
    /// Queue its drop.
    QueueDrop,
    /// Queue the mark.
    QueueMark,
    /// Move the position and `fresh_at`.
    Complete,
    /// Queue that the disk tier's content may be used.
    QueueEnable,
}

/// The feed's pass under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pass {
    /// What it does next.
    pub step: PassStep,
    /// Transactions that its snapshot saw.
    pub seen: u8,
    /// The document is among what they touched.
    pub changed: bool,
    /// It reads from the disk tier's mark.
    pub resumes: bool,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// There is none.
    Idle,
    /// The tiers are trusted; memory is asked next.
    Memory,
    /// Memory had nothing; is the disk tier clean?
    Clean,
    /// It is, at this version; its content is to be read.
    Disk(Version),
    /// The content has been read and is to be promoted and answered.
    Found(Content, Version),
    /// PostgreSQL has to answer; the version is to be noted.
    Load,
    /// Noted; a lease is to be led or joined.
    Noted(Version),
    /// It waits for this load.
    Waiting(usize),
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    /// Where it is.
    pub phase: Phase,
    /// The oldest content that it may be answered with.
    pub floor: u8,
}

/// Where a load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// There is none.
    Free,
    /// It waits for a connection.
    Granted,
    /// Its statement is sent; the snapshot is not taken yet.
    Sent,
    /// PostgreSQL has answered.
    Read(Content),
    /// Only without a guard: checked, and not yet installed; or read, and the generation noted late.
    Between(Content),
    /// In memory; whether to queue it for the disk is to be checked.
    Installed(Content),
    /// Checked; it is to be queued.
    Putting(Content),
    /// Overtaken, or left out of the queue; its waiters are to be answered.
    Ending(Content),
}

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Load {
    /// Where it is.
    pub stage: Stage,
    /// The version when it was granted.
    pub version: Version,
}

/// One state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) database: Database,
    /// Moments that are not too old, the earliest first; between two commits their order says nothing.
    pub young: Few<Moment, 8>,
    /// Of the tier in memory and of the stripe.
    pub version: Version,
    /// The generation up to which all drops are on disk.
    pub clean: u8,
    /// The memory tier.
    pub memory: Option<Content>,
    /// The disk tier.
    pub disk: Disk,
    /// The disk tier answers.
    pub disk_on: bool,
    /// The disk tier's orders, the oldest first.
    pub queue: Few<Order, 8>,
    /// What the writer has taken from the queue and not yet applied.
    pub batch: Option<Batch>,
    /// All up to here has been applied, in this run or in one before.
    pub position: u8,
    /// The feed has found the database, in this run.
    pub following: bool,
    /// The pass under way.
    pub pass: Option<Pass>,
    /// The requests.
    pub requests: Few<Request>,
    /// The loads.
    pub loads: Few<Load>,
    /// The load that may be joined.
    pub lease: Option<usize>,
    /// Crashes so far.
    pub crashes: u8,
    /// An answer was stale.
    pub stale: bool,
}

impl Database {
    fn new(second: bool) -> Self {
        Self {
            committed: Few::new(),
            open: Few::new(),
            second,
        }
    }

    /// The transactions that a snapshot taken now sees.
    pub(crate) fn commits(&self) -> u8 {
        // At most two.
        self.committed.len() as u8
    }

    /// Whether the document belongs to the second parent in this snapshot.
    pub(crate) fn at_second(&self, snapshot: u8) -> bool {
        let seen = self.committed.iter().take(usize::from(snapshot));
        let moves = seen.filter(|open| open.txn == Txn::Move).count();
        self.second ^ (moves % 2 == 1)
    }

    /// What the document says in this snapshot; equal numbers are equal documents.
    fn text(&self, snapshot: u8) -> (usize, bool, bool) {
        let seen = &self.committed[..usize::from(snapshot)];
        let edits = seen.iter().filter(|open| open.txn == Txn::Edit).count();
        let second = self.at_second(snapshot);
        let retitled = second && seen.iter().any(|open| open.txn == Txn::Retitle);
        (edits, second, retitled)
    }

    /// Whether `content` is what the document says in some snapshot not before `floor`.
    pub(crate) fn is_true_since(&self, content: Content, floor: u8) -> bool {
        (floor..=self.commits()).any(|snapshot| self.text(snapshot) == self.text(content))
    }
}

impl Request {
    pub(crate) const IDLE: Self = Self {
        phase: Phase::Idle,
        floor: 0,
    };
}

impl Load {
    pub(crate) const FREE: Self = Self {
        stage: Stage::Free,
        version: Version {
            generation: 0,
            epoch: 0,
        },
    };
}

impl State {
    pub(crate) fn initial(protocol: &Protocol) -> Vec<Self> {
        let seconds: &[bool] = match protocol.scene {
            Scene::Edits => &[false],
            Scene::MovableParent => &[false, true],
        };
        let state = |&second: &bool| Self {
            database: Database::new(second),
            young: Few::new(),
            version: Load::FREE.version,
            clean: 0,
            memory: None,
            disk: Disk::default(),
            disk_on: protocol.bounds.disk,
            queue: Few::new(),
            batch: None,
            position: 0,
            following: true,
            pass: None,
            requests: Few::from_elem(Request::IDLE, protocol.bounds.requests),
            loads: Few::from_elem(Load::FREE, protocol.bounds.loads),
            lease: None,
            crashes: 0,
            stale: false,
        };
        seconds.iter().map(state).collect()
    }

    /// Transactions committed so far.
    pub fn commits(&self) -> u8 {
        self.database.commits()
    }

    /// Whether tiers may answer.
    pub fn is_fresh(&self) -> bool {
        self.young.contains(&Moment::Fresh)
    }

    /// The mark that was queued last and is not lost, if there is one.
    pub(crate) fn last_mark(&self) -> Option<u8> {
        let queued = self.queue.iter().rev().find_map(|order| match order {
            Order::Mark(position) | Order::Enable(position, _) => Some(*position),
            _ => None,
        });
        let gathered = || self.batch.and_then(|batch| batch.mark);
        queued.or_else(gathered).or(self.disk.mark)
    }

    /// Transactions committed more than `max_staleness` ago.
    pub(crate) fn old_commits(&self) -> u8 {
        let young = self.young.iter();
        let young = young.filter(|moment| **moment == Moment::Commit).count();
        // At most two.
        self.commits() - young as u8
    }

    /// Moments that can be the next to be too old: those up to the first commit, in any order.
    pub(crate) fn moments_next_to_expire(&self) -> usize {
        let commit = |moment: &Moment| *moment == Moment::Commit;
        match self.young.iter().position(commit) {
            Some(first) => first.max(1),
            None => self.young.len(),
        }
    }
}
