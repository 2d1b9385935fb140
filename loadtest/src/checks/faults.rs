//! The faults: their names, and for each a function that injects it and restores the state before.

mod ancestors;
mod copies;
mod definitions;
pub(crate) mod disk;
mod foreign;
mod locks;
mod log;
mod migrations;
mod network;
mod policies;
mod processes;
mod publications;
mod restores;
mod subscriptions;
mod transactions;

use std::str::FromStr;
use std::time::Duration;

use nix::sys::signal::Signal;
use testkit::fault_proxy::NetworkFault;

use crate::harness::testbed::Testbed;

/// How an injection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Injection {
    Done,
    /// Not possible on this machine, for this reason.
    Impossible(String),
    /// It failed, with this error.
    Failed(String),
}

macro_rules! faults {
    ($($variant:ident $name:literal $help:literal)+) => {
        /// A fault that is injected.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Fault { $($variant),+ }

        impl Fault {
            /// All faults.
            pub(crate) const ALL: &[Fault] = &[$(Self::$variant),+];

            /// The name for `--faults`.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// What it does, for `--help`.
            fn help(self) -> &'static str {
                match self { $(Self::$variant => $help),+ }
            }
        }
    };
}

faults! {
    Backends "backends" "terminate larder's backends, again and again"
    PostgresStop "postgres-stop" "stop PostgreSQL in fast mode; it comes back"
    PostgresKill "postgres-kill" "SIGKILL PostgreSQL; it recovers"
    PostgresCrash "postgres-crash" "stop PostgreSQL in immediate mode; it recovers"
    FeedDelay "feed-delay" "everything on the feed's connections comes late"
    FeedCut "feed-cut" "the feed's connections are cut, and new ones at once"
    FeedHalfOpen "feed-half-open" "the server's side of the feed's connections ends, larder is not told"
    FeedBlackHole "feed-black-hole" "nothing passes on the feed's connections; it arrives later"
    LoaderDelay "loader-delay" "everything on the loader's connections comes late"
    LoaderCut "loader-cut" "the loader's connections are cut, and new ones at once"
    LoaderHalfOpen "loader-half-open" "the server's side of the loader's connections ends, larder is not told"
    LoaderBlackHole "loader-black-hole" "nothing passes on the loader's connections; it arrives later"
    NotifyDropped "notify-dropped" "no notification reaches larder, everything else does"
    LarderKill "larder-kill" "SIGKILL larder, change documents, start it again"
    LarderPause "larder-pause" "SIGSTOP larder for longer than max_staleness, SIGCONT"
    LarderTwo "larder-two" "a second larder on the same database; both are read"
    MemoryTiny "memory-tiny" "a memory tier of 16 KiB"
    ClockSteps "clock-steps" "larder's wall clock steps by hours and years, both ways (libfaketime)"
    TriggersDisabled "triggers-disabled" "disable larder's triggers"
    TriggersDropped "triggers-dropped" "drop larder's triggers"
    TriggersAltered "triggers-altered" "rename triggers, enable them for replicas only, replace their functions"
    TriggersBypassed "triggers-bypassed" "disable the triggers, update and enable them, in one transaction"
    ColumnType "column-type" "alter column … type … using, which changes every row and fires no trigger"
    Attach "attach" "tables get ancestors (partitions and inheritance, several levels), and change through them"
    Detach "detach" "tables change through ancestors that are being detached and attached"
    Subscribe "subscribe" "tables and their ancestors become targets of a subscription, with and without first copies"
    RestoredCopy "restored-copy" "a copy of the stopped database is put back, larder running or not; transactions are lost"
    Restore "restore" "pg_dump, and pg_restore --clean beside the running larder, of everything or of schema public"
    Migration "migration" "a transaction alters a child's table, and its parent's 1.5 s later"
    ForeignKeyDropped "foreign-key-dropped" "a foreign key is dropped and added again; its resource alone is 503 meanwhile"
    ForeignPartition "foreign-partition" "a foreign table is attached and inherited, and documents change through its parent"
    LockedTable "locked-table" "ACCESS EXCLUSIVE on a table for seconds; the other resource goes on"
    NotInstalled "not-installed" "a lock keeps a larder from its triggers; the next one finds those of the one before"
    Publication "publication" "bulk updates and deletes under a publication for all tables"
    LogEdited "log-edited" "rows of larder.change are deleted and updated before larder has read them"
    Policy "policy" "what row security shows larder's role changes: time, other rows, functions, settings, policies"
    RoleGranted "role-granted" "a policy's role is granted to larder's and revoked; BYPASSRLS is given and taken"
    LongTransaction "long-transaction" "a transaction that stays open across the others and commits at last"
    OtherDatabase "other-database" "a transaction in another database stays open for longer than retention"
    Prepared "prepared" "prepared transactions (2PC), committed and rolled back late"
    BulkUpdate "bulk-update" "update every row of each table"
    DiskFull "disk-full" "the disk tier's file system is full, then has space again (tmpfs; needs root)"
    DiskCorrupted "disk-corrupted" "flipped, overwritten and cut off bytes in the disk tier's files"
    DiskSwapped "disk-swapped" "files of the disk tier from earlier in their place"
}

impl Fault {
    /// All names with what they do, one on each line.
    pub(crate) fn list() -> String {
        let line = |fault: &Fault| format!("  {:<19} {}\n", fault.name(), fault.help());
        Self::ALL.iter().map(line).collect()
    }

    /// Injects the fault and restores the state before. After an error, [`Testbed::recover`] restores the rest.
    pub(crate) async fn inject(self, testbed: &mut Testbed) -> anyhow::Result<Injection> {
        match self {
            Self::Backends => network::terminate_backends(testbed).await?,
            Self::PostgresStop => processes::restart_postgres(testbed, Signal::SIGINT).await?,
            Self::PostgresKill => processes::restart_postgres(testbed, Signal::SIGKILL).await?,
            Self::PostgresCrash => processes::restart_postgres(testbed, Signal::SIGQUIT).await?,
            Self::FeedDelay => network::feed(testbed, NetworkFault::Delay(LATE)).await,
            Self::FeedCut => network::feed(testbed, NetworkFault::Cut).await,
            Self::FeedHalfOpen => network::feed(testbed, NetworkFault::HalfOpen).await,
            Self::FeedBlackHole => network::feed(testbed, NetworkFault::BlackHole).await,
            Self::LoaderDelay => network::loader(testbed, NetworkFault::Delay(LATE)).await,
            Self::LoaderCut => network::loader(testbed, NetworkFault::Cut).await,
            Self::LoaderHalfOpen => network::loader(testbed, NetworkFault::HalfOpen).await,
            Self::LoaderBlackHole => network::loader(testbed, NetworkFault::BlackHole).await,
            Self::NotifyDropped => network::feed(testbed, NetworkFault::NoNotifications).await,
            Self::LarderKill => processes::kill_larder(testbed).await?,
            Self::LarderPause => processes::pause_larder(testbed).await?,
            Self::LarderTwo => processes::two_larders(testbed).await?,
            Self::MemoryTiny => processes::tiny_memory(testbed).await?,
            Self::ClockSteps => return processes::step_clock(testbed).await,
            Self::TriggersDisabled => definitions::disable_triggers(testbed).await?,
            Self::TriggersDropped => definitions::drop_triggers(testbed).await?,
            Self::TriggersAltered => definitions::alter_triggers(testbed).await?,
            Self::TriggersBypassed => definitions::bypass_triggers(testbed).await?,
            Self::ColumnType => definitions::change_column_type(testbed).await?,
            Self::Attach => ancestors::attach(testbed).await?,
            Self::Detach => ancestors::detach(testbed).await?,
            Self::Subscribe => subscriptions::subscribe(testbed).await?,
            Self::RestoredCopy => copies::restore(testbed).await?,
            Self::Restore => restores::restore(testbed).await?,
            Self::Migration => migrations::migrate(testbed).await?,
            Self::ForeignKeyDropped => migrations::drop_foreign_key(testbed).await?,
            Self::ForeignPartition => return foreign::attach(testbed).await,
            Self::LockedTable => locks::lock(testbed).await?,
            Self::NotInstalled => locks::keep_from_installing(testbed).await?,
            Self::Publication => publications::publish(testbed).await?,
            Self::LogEdited => log::edit(testbed).await?,
            Self::Policy => policies::change(testbed).await?,
            Self::RoleGranted => policies::grant(testbed).await?,
            Self::LongTransaction => transactions::hold_open(testbed).await?,
            Self::OtherDatabase => transactions::hold_open_elsewhere(testbed).await?,
            Self::Prepared => transactions::prepare(testbed).await?,
            Self::BulkUpdate => transactions::update_all(testbed).await?,
            Self::DiskFull => return disk::fill_up(testbed).await,
            Self::DiskCorrupted => disk::corrupt(testbed).await?,
            Self::DiskSwapped => disk::swap(testbed).await?,
        }
        Ok(Injection::Done)
    }
}

/// A delay of every piece. A pass and a load need two or three pieces each: about `max_staleness`.
const LATE: Duration = Duration::from_millis(300);

/// The faults of `--faults`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FaultList {
    pub(crate) list: Vec<Fault>,
    /// Whether they were named, so that one that is impossible here is a failure.
    pub(crate) by_name: bool,
}

impl FromStr for FaultList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" || text == "none" {
            let list = if text == "all" { Fault::ALL } else { &[] };
            return Ok(Self {
                list: list.to_vec(),
                by_name: false,
            });
        }
        let mut list = Vec::new();
        for name in text.split(',').map(str::trim) {
            let fault = Fault::ALL.iter().find(|fault| fault.name() == name);
            let unknown = || {
                format!(
                    "no fault is called \"{name}\"; there are\n{}",
                    Fault::list()
                )
            };
            let fault = *fault.ok_or_else(unknown)?;
            if !list.contains(&fault) {
                list.push(fault);
            }
        }
        Ok(Self {
            list,
            by_name: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_named() {
        let named = |text: &str| text.parse::<FaultList>().map(|faults| faults.list);
        assert_eq!(named("all"), Ok(Fault::ALL.to_vec()));
        assert_eq!(named("none"), Ok(Vec::new()));
        let two = Ok(vec![Fault::FeedCut, Fault::Prepared]);
        assert_eq!(named("feed-cut, prepared,feed-cut"), two);
        let error = named("feed-cut,feed-out").unwrap_err();
        assert!(error.starts_with("no fault is called \"feed-out\""));
        for fault in Fault::ALL {
            assert!(error.contains(&format!("\n  {} ", fault.name())));
        }
    }
}
