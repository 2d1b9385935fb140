//! What makes documents slow or could make them stale: the findings of `larder check` and the rules that find them.
//!
//! Nothing here does I/O: `source` and `feed` read the facts, `commands/check.rs` gathers them and prints the report.

pub mod condition;
pub mod cost;
pub mod create;
pub mod facts;
pub mod indexes;
pub mod judge;
pub mod plan;
pub mod queries;
pub mod question;
pub mod report;
pub mod table;
pub mod upkeep;

use std::fmt;

use crate::resource::definition::Place;

/// A rule, by which a finding is named, ignored and listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// The configuration does not fit the database, so `serve` refuses it.
    Unfit,
    /// larder's triggers or its schema are missing, disabled, different or outdated. It is before `Rights`, since
    /// privileges on the schema can be granted once it is there.
    Triggers,
    /// larder's role lacks a privilege.
    Rights,
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
        Self::Triggers,
        Self::Rights,
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

    /// What it looks for.
    pub fn summary(self) -> &'static str {
        match self {
            Self::Unfit => "a configuration that does not fit the database",
            Self::Rights => "privileges that larder's role lacks",
            Self::Triggers => {
                "triggers or parts of schema larder that are missing, disabled or differ"
            }
            Self::Pooler => "a pooler where larder needs a session of its own",
            Self::MissingIndex => "statements of larder that read a whole table or a whole index",
            Self::ForeignKey => "deletes that read a whole table to find rows that refer to theirs",
            Self::InvalidIndex => "indexes that were not built to their end",
            Self::DuplicateIndex => "indexes that are equal in every respect",
            Self::PrefixIndex => "indexes that are the beginning of another one",
            Self::UnusedIndex => "indexes that no statement uses",
            Self::ColumnOrder => "indexes whose order of columns a statement can't use in full",
            Self::HashRange => "hash indexes where a statement compares by order",
            Self::LikePrefix => "like 'x%' under a collation that an index can't serve",
            Self::ChangeLog => "a change log that grows, since no larder reads it",
            Self::Upkeep => "tables without statistics, with many dead rows, or without free space",
        }
    }

    /// The rule of this id.
    pub fn of_id(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.id() == id)
    }

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

impl Severity {
    /// All, the worst one last.
    pub const ALL: [Self; 3] = [Self::Info, Self::Warning, Self::Error];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Findings that are not to be reported: those of a rule, on one object or on all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    /// The rule.
    pub rule: Rule,
    /// [`Finding::object`]; `None`: every object.
    pub object: Option<String>,
}

impl Finding {
    /// A finding without a place, a plan and anything that mends it.
    pub fn new(rule: Rule, severity: Severity, object: String, reason: String) -> Self {
        Self {
            rule,
            severity,
            object,
            place: None,
            reason,
            plan_line: None,
            remedies: Vec::new(),
            cost: None,
            is_unproven: false,
        }
    }
}

impl Ignored {
    /// Parses `ID` or `ID:OBJECT`.
    ///
    /// # Errors
    /// A sentence if there is no rule of this id.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (id, object) = match text.split_once(':') {
            Some((id, object)) => (id, Some(object.to_owned())),
            None => (text, None),
        };
        let rule = Rule::of_id(id);
        let rule =
            rule.ok_or_else(|| format!("there is no rule {id:?}; larder check --list prints all"))?;
        Ok(Self { rule, object })
    }

    /// Whether `finding` is not to be reported.
    pub fn covers(&self, finding: &Finding) -> bool {
        let Self { rule, object } = self;
        *rule == finding.rule
            && object
                .as_ref()
                .is_none_or(|object| *object == finding.object)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}
