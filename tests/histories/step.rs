//! The steps of a history, chosen at random from those that apply to the tables as they are.

use std::fmt;

use fastrand::Rng;

use crate::histories::oracle::{DatabaseState, TableState};
use crate::histories::plan::{Plan, TableFamily, UNIVERSE, id_text};
use crate::histories::replication::SubscriptionPhase;
use crate::histories::{definitions, policies, replication, rows};

/// One message to the server.
#[derive(Clone, Debug)]
pub(super) enum Message {
    Sql(String),
    /// `copy … from stdin` and its lines.
    Copy(String, String),
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sql(sql) => write!(f, "{sql};"),
            Self::Copy(sql, lines) => write!(f, "{sql};\n{lines}\\."),
        }
    }
}

/// Where a step runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum StepTarget {
    /// In the database of larder, and before in the one without.
    Both,
    /// It concerns larder's own tables.
    BesideLarder,
    /// In the database that publishes.
    Publisher,
    /// In both as to what they subscribe to.
    Subscriber(replication::SubscriptionChange),
}

/// A change, after which every document has to become right.
#[derive(Clone, Debug)]
pub(super) struct HistoryStep {
    pub(super) kind: &'static str,
    pub(super) place: StepTarget,
    pub(super) messages: Vec<Message>,
    /// Another client changes rows by the ancestors meanwhile.
    pub(super) storm: bool,
    /// larder is stopped before and started afterwards.
    pub(super) while_down: bool,
    /// Until then the documents change by themselves.
    pub(super) pending_ms: u64,
}

impl HistoryStep {
    pub(super) fn new(kind: &'static str, messages: Vec<Message>) -> Self {
        Self {
            kind,
            place: StepTarget::Both,
            messages,
            storm: false,
            while_down: false,
            pending_ms: 0,
        }
    }

    pub(super) fn sql(kind: &'static str, sql: impl Into<String>) -> Self {
        Self::new(kind, vec![Message::Sql(sql.into())])
    }
}

/// What a random step is chosen with.
pub(super) struct StepGenerator<'a> {
    pub(super) rng: &'a mut Rng,
    pub(super) plan: &'a Plan,
    pub(super) state: &'a DatabaseState,
    /// Of larder's role, which owns the tables where policies are drawn.
    pub(super) role: &'a str,
    /// The number of the step, for names that are new.
    pub(super) number: usize,
    /// Of the subscription, where there may be one.
    pub(super) phase: Option<SubscriptionPhase>,
    /// Keys that this step inserts.
    pub(super) taken: Vec<String>,
}

/// A kind of step: how often it comes compared with others, and what draws it; `None` where it does not apply.
pub(super) struct StepKind {
    pub(super) name: &'static str,
    weight: usize,
    draw: fn(&mut StepGenerator<'_>) -> Option<HistoryStep>,
}

const fn kind(
    name: &'static str,
    weight: usize,
    draw: fn(&mut StepGenerator<'_>) -> Option<HistoryStep>,
) -> StepKind {
    StepKind { name, weight, draw }
}

/// Each can be left out by its name.
pub(super) const KINDS: [StepKind; 37] = [
    kind("rows", 40, rows::one),
    kind("transaction", 16, rows::transaction),
    kind("copy", 5, rows::copy),
    kind("truncate", 4, rows::truncate),
    kind("refill", 3, rows::refill),
    kind("replica role", 4, rows::replica_role),
    kind("untriggered", 3, rows::untriggered),
    kind("temporary", 2, rows::temporary),
    kind("log", 3, rows::log),
    kind("restart", 2, rows::restart),
    kind("attach", 6, definitions::attach),
    kind("attach again", 5, definitions::attach_again),
    kind("detach", 5, definitions::detach),
    kind("detach concurrently", 2, definitions::detach_concurrently),
    kind("detach and attach", 4, definitions::detach_and_attach),
    kind("create part", 4, definitions::create_part),
    kind("drop part", 2, definitions::drop_part),
    kind("replace", 3, definitions::replace),
    kind("swap", 2, definitions::swap),
    kind("new ancestor", 6, definitions::new_ancestor),
    kind("inherit", 4, definitions::inherit),
    kind("no inherit", 3, definitions::no_inherit),
    kind("new heir", 3, definitions::new_heir),
    kind("column", 5, definitions::column),
    kind("enum", 2, definitions::enum_value),
    kind("primary key", 4, definitions::primary_key),
    kind("away and back", 2, definitions::away_and_back),
    kind("quick pair", 5, definitions::quick_pair),
    kind("storage", 4, definitions::storage),
    kind("rule", 2, definitions::rule),
    kind("publication", 4, definitions::publication),
    kind("policy", 14, policies::policy),
    kind("policy's ground", 14, policies::ground),
    kind("subscribe", 14, replication::subscribe),
    kind("publish", 18, replication::publish),
    kind("refresh", 4, replication::refresh),
    kind("unsubscribe", 3, replication::unsubscribe),
];

impl<'a> StepGenerator<'a> {
    /// A step that applies, of a kind that is not in `without`.
    pub(super) fn step(&mut self, without: &[String]) -> HistoryStep {
        let total: usize = KINDS.iter().map(|kind| kind.weight).sum();
        loop {
            let mut at = self.rng.usize(..total);
            for kind in &KINDS {
                if at < kind.weight {
                    if !without.iter().any(|name| name == kind.name)
                        && let Some(step) = (kind.draw)(self)
                    {
                        return step;
                    }
                    break;
                }
                at -= kind.weight;
            }
        }
    }

    /// Once in so many times.
    pub(super) fn once_in(&mut self, times: usize) -> bool {
        self.rng.usize(..times) == 0
    }

    pub(super) fn one_of<'t, T>(&mut self, of: &'t [T]) -> Option<&'t T> {
        (!of.is_empty()).then(|| &of[self.rng.usize(..of.len())])
    }

    pub(super) fn family(&mut self) -> &'a TableFamily {
        // Roots change more often.
        let number = [0, 0, 1, 1, 2][self.rng.usize(..5)];
        &self.plan.families[number]
    }

    /// The tables of a family that are there, whether they belong to another or not.
    pub(super) fn tables(&self, prefix: char) -> Vec<&'a TableState> {
        let tables = self.state.tables.iter();
        tables
            .filter(|table| table.name.starts_with(prefix))
            .collect()
    }

    /// A table to write to: any that is there, or a view.
    pub(super) fn target(&mut self, prefix: char) -> String {
        let names: Vec<String> = self
            .tables(prefix)
            .iter()
            .map(|table| table.name.clone())
            .collect();
        match self.rng.usize(..12) {
            0 => format!("{prefix}0_v"),
            1..4 => format!("{prefix}0"),
            _ => names[self.rng.usize(..names.len())].clone(),
        }
    }

    /// The key of a row of the family, if it has any.
    pub(super) fn known_id(&mut self, prefix: char) -> Option<String> {
        let tables = self.tables(prefix);
        let rows: Vec<String> = tables
            .iter()
            .flat_map(|table| &table.rows)
            .map(|row| row.0.clone())
            .collect();
        self.one_of(&rows).cloned()
    }

    /// A key that no row of the family has; none of them is used twice in a row of tables that inherit.
    pub(super) fn fresh_id(&mut self, prefix: char) -> String {
        let id_type = self
            .plan
            .family(prefix)
            .map_or("int", |family| family.id_type);
        for _ in 0..200 {
            let id = id_text(id_type, self.rng.usize(..UNIVERSE));
            let tables = self.tables(prefix);
            let rows = tables.iter().flat_map(|table| &table.rows);
            if !rows
                .map(|row| &row.0)
                .chain(&self.taken)
                .any(|known| *known == id)
            {
                self.taken.push(id.clone());
                return id;
            }
        }
        id_text(id_type, UNIVERSE + 100 + self.number)
    }

    /// The name of a table that is to come.
    pub(super) fn new_name(&self, prefix: char) -> String {
        format!("{prefix}{}", 100 + self.number)
    }

    /// SQL that gives a new table the owner of the others.
    pub(super) fn owned(&self, table: &str) -> String {
        if self.plan.policies {
            format!("; alter table {table} owner to {}", self.role)
        } else {
            String::new()
        }
    }

    /// Whether `table` belongs to `upper`, by however many levels.
    pub(super) fn is_below(&self, table: &TableState, upper: &str) -> bool {
        table.parents.iter().any(|parent| {
            let found = self.state.tables.iter().find(|other| other.name == *parent);
            parent == upper || found.is_some_and(|found| self.is_below(found, upper))
        })
    }

    /// Whether a resource, child or lookup names the table.
    pub(super) fn is_followed(&self, table: &str) -> bool {
        self.plan.resources.iter().any(|resource| {
            let child = resource.child.as_ref();
            resource.table == table
                || resource.lookup.as_deref() == Some(table)
                || child.is_some_and(|child| {
                    child.table == table || child.lookup.as_deref() == Some(table)
                })
        })
    }
}
