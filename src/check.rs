//! What makes documents slow or could make them stale: the findings of `larder check` and the rules that find them.
//!
//! Nothing here does I/O: `source` and `feed` read the facts, `commands/check.rs` gathers them and prints the report.

pub mod condition;
pub mod cost;
pub mod create;
pub mod judge;
pub mod plan;
pub mod question;
pub mod table;

use std::fmt;

use crate::resource::definition::Place;

/// A rule, by which a finding is named, ignored and listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// The configuration does not fit the database, so `serve` refuses it.
    Unfit,
    /// larder's role lacks a privilege.
    Rights,
    /// larder's triggers or its schema are missing, disabled, different or outdated.
    Triggers,
    /// A pooler stands before PostgreSQL where larder needs a session.
    Pooler,
    /// One of larder's statements reads a whole table or a whole index.
    MissingIndex,
    /// Rows that refer to a deleted row are found by reading their whole table.
    ForeignKey,
    /// An index that PostgreSQL does not use since it was not built to its end.
    InvalidIndex,
    /// Two indexes that are equal in every respect.
    DuplicateIndex,
    /// An index that is the beginning of another one.
    PrefixIndex,
    /// An index that no statement uses.
    UnusedIndex,
    /// An index whose columns stand in an order that a statement can't use in full.
    ColumnOrder,
    /// A hash index where a statement compares by order.
    HashRange,
    /// `like 'x%'` under a collation whose order an index can't use for it.
    LikePrefix,
    /// A change log that grows, since no larder reads it.
    ChangeLog,
    /// Tables whose statistics, dead rows or free space make statements slow.
    Upkeep,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It may become slow.
    Info,
    /// It is slow.
    Warning,
    /// It is refused, or could go stale.
    Error,
}

/// Something that should be mended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule that found it.
    pub rule: Rule,
    /// How bad it is.
    pub severity: Severity,
    /// What it is found in, unquoted: a table `schema.name`, an index `schema.name`, a resource, a role.
    pub object: String,
    /// The line of the configuration or of the file with queries that leads to it.
    pub place: Option<Place>,
    /// A sentence for the user.
    pub reason: String,
    /// The line of PostgreSQL's plan that shows it.
    pub plan_line: Option<String>,
    /// What mends it, in order.
    pub remedies: Vec<Remedy>,
    /// What an index to be created takes.
    pub cost: Option<IndexCost>,
    /// Whether it was not tried by a hypothetical index that PostgreSQL uses it.
    pub is_unproven: bool,
}

/// A statement that mends a finding, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// The statement, with its semicolon.
    pub sql: String,
    /// The strongest lock that it takes on a table of users: `SHARE UPDATE EXCLUSIVE`; `None`: none that keeps anyone from
    /// reading or writing.
    pub lock: Option<&'static str>,
}

/// What an index to be created takes, estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexCost {
    /// On disk, in bytes.
    pub bytes: u64,
    /// For each row that is written, in bytes.
    pub bytes_per_row: u64,
}

impl Rule {
    /// All rules, in the order in which they are listed.
    pub const ALL: [Self; 15] = [
        Self::Unfit,
        Self::Rights,
        Self::Triggers,
        Self::Pooler,
        Self::MissingIndex,
        Self::ForeignKey,
        Self::InvalidIndex,
        Self::DuplicateIndex,
        Self::PrefixIndex,
        Self::UnusedIndex,
        Self::ColumnOrder,
        Self::HashRange,
        Self::LikePrefix,
        Self::ChangeLog,
        Self::Upkeep,
    ];

    /// Its id, as users write it.
    pub fn id(self) -> &'static str {
        match self {
            Self::Unfit => "unfit",
            Self::Rights => "rights",
            Self::Triggers => "triggers",
            Self::Pooler => "pooler",
            Self::MissingIndex => "missing-index",
            Self::ForeignKey => "foreign-key",
            Self::InvalidIndex => "invalid-index",
            Self::DuplicateIndex => "duplicate-index",
            Self::PrefixIndex => "prefix-index",
            Self::UnusedIndex => "unused-index",
            Self::ColumnOrder => "column-order",
            Self::HashRange => "hash-range",
            Self::LikePrefix => "like-prefix",
            Self::ChangeLog => "change-log",
            Self::Upkeep => "upkeep",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}
