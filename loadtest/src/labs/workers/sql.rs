//! Tables of SQL servers, whatever the server; and the native method, which has the rows of a worker in memory, so that a
//! match is no statement and a batch is one update.

use anyhow::{Context, Result};
use async_trait::async_trait;

use crate::labs::workers::store::{Match, Plan, Store, StoreKind};
use crate::labs::workers::subscriber::{Buffer, Columns, NUMBERS, SMALL, Slot, Subscriber, TEXTS};

/// A page has room for a second version of each row, so that updates can be HOT.
const HALF_FULL: &str = "with (fillfactor = 45)";
/// Rows of a page of the keyset.
const PAGE_ROWS: u32 = 8_000;

/// One connection to a SQL server.
#[async_trait]
pub(super) trait SqlConnection: Send {
    /// Runs a statement; returns how many rows it changed.
    async fn run(&mut self, statement: &str) -> Result<usize>;

    async fn insert(&mut self, table: &str, rows: &[Subscriber]) -> Result<()>;

    /// Adds the rows of a statement, which selects `columns`, to `found`.
    async fn select(&mut self, statement: &str, columns: Columns, found: &mut Buffer)
    -> Result<()>;

    /// Runs a statement and returns its plan.
    async fn explain(&mut self, statement: &str) -> Result<Plan>;
}

/// A connection to a table with its index. Each kind has a table of its own.
pub(super) struct SqlStore {
    pub(super) connection: Box<dyn SqlConnection>,
    pub(super) table: &'static str,
    storage: &'static str,
    index: Option<&'static str>,
    is_mariadb: bool,
    is_native: bool,
    /// Whose rows are in memory, by time zone and in the order of the ids.
    worker: Option<u32>,
    rows: Vec<Vec<Subscriber>>,
}

impl SqlStore {
    pub(super) fn new(connection: impl SqlConnection + 'static, kind: StoreKind) -> Self {
        let ascending = Some("(worker_id, timezone, notify_after)");
        let descending = Some("(worker_id desc, timezone desc, notify_after desc)");
        let (table, storage, index) = match kind {
            StoreKind::PostgresqlDescending => ("subscriber_descending", "", descending),
            StoreKind::PostgresqlSlots => {
                ("subscriber_slots", HALF_FULL, Some("(worker_id, timezone)"))
            }
            StoreKind::Native => ("subscriber_native", HALF_FULL, None),
            _ => ("subscriber", "", ascending),
        };
        Self {
            connection: Box::new(connection),
            table,
            storage,
            index,
            is_mariadb: kind.name() == "mariadb",
            is_native: kind == StoreKind::Native,
            worker: None,
            rows: Vec::new(),
        }
    }

    /// Runs a statement, with the table for `{}`; returns how many rows it changed.
    async fn run(&mut self, statement: &str) -> Result<usize> {
        let statement = statement.replace("{}", self.table);
        self.connection.run(&statement).await
    }

    /// Gathers what plans rest on.
    pub(super) async fn analyze(&mut self) -> Result<()> {
        let statement = ["analyze {}", "analyze table {}"][usize::from(self.is_mariadb)];
        self.run(statement).await.map(|_| ())
    }

    /// Creates the index `loading`.
    pub(super) async fn create_loading(&mut self, columns: &str) -> Result<()> {
        let statement = format!("create index loading on {{}} {columns}");
        self.run(&statement).await.map(|_| ())
    }

    pub(super) async fn drop_loading(&mut self) -> Result<()> {
        let statement = ["drop index loading", "drop index loading on {}"];
        self.run(statement[usize::from(self.is_mariadb)])
            .await
            .map(|_| ())
    }

    /// Returns the statement that reads a page of the rows of `worker`, from an id on.
    pub(super) fn page(&self, worker: u32, from: u32) -> String {
        let (table, columns) = (self.table, Columns::Full.list());
        format!(
            "select {columns} from {table} where worker_id = {worker} and id >= {from} \
             order by id limit {PAGE_ROWS}"
        )
    }

    /// Reads all rows of `worker`, by time zone.
    pub(super) async fn load(&mut self, worker: u32) -> Result<Vec<Vec<Subscriber>>> {
        let mut rows = vec![Vec::new(); 1 + usize::from(u8::MAX)];
        let (mut buffer, mut from) = (Buffer::default(), Some(0));
        while let Some(first) = from {
            buffer.clear();
            let statement = self.page(worker, first);
            let connection = &mut self.connection;
            connection
                .select(&statement, Columns::Full, &mut buffer)
                .await?;
            for row in buffer.rows() {
                rows[row.slot().1 as usize].push(row.clone());
            }
            from = buffer.ids().last().and_then(|last| last.checked_add(1));
        }
        Ok(rows)
    }

    /// Returns the rows of a slot in memory, once those of its worker are read.
    async fn slot(&mut self, slot: Slot) -> Result<&mut Vec<Subscriber>> {
        if self.worker != Some(slot.0) {
            self.rows = self.load(slot.0).await?;
            self.worker = Some(slot.0);
        }
        let rows = self.rows.get_mut(slot.1 as usize);
        rows.context("no such time zone")
    }
}

/// Returns the statement of a match on `table`.
pub(super) fn matching(table: &str, query: Match) -> String {
    let (Slot(worker, time_zone), due, columns) = (query.slot, query.due, query.columns.list());
    let limit = query.limit.map(|limit| format!(" limit {limit}"));
    let limit = limit.unwrap_or_default();
    format!(
        "select {columns} from {table} where worker_id = {worker} and timezone = {time_zone} \
         and notify_after <= {due}{limit}"
    )
}

#[async_trait]
impl Store for SqlStore {
    async fn create(&mut self, is_reset: bool) -> Result<()> {
        self.worker = None;
        if is_reset {
            self.run("drop table if exists {}").await?;
        }
        let mut columns = String::new();
        for (place, name) in NUMBERS.iter().enumerate() {
            let kind = ["bigint", "smallint"][usize::from(SMALL.contains(&place))];
            columns += &format!("{name} {kind} not null, ");
        }
        for (name, length) in TEXTS.iter().zip([255, 2, 2]) {
            columns += &format!("{name} varchar({length}) not null, ");
        }
        let storage = self.storage;
        let create =
            format!("create table if not exists {{}} ({columns}primary key (id)) {storage}");
        self.run(&create).await.map(|_| ())
    }

    async fn fill(&mut self, rows: &[Subscriber]) -> Result<()> {
        self.connection.insert(self.table, rows).await
    }

    async fn index(&mut self) -> Result<()> {
        if let Some(index) = self.index {
            let create = format!("create index if not exists on_{{}} on {{}} {index}");
            self.run(&create).await?;
        }
        self.analyze().await
    }

    async fn find(&mut self, query: Match, found: &mut Buffer) -> Result<()> {
        if !self.is_native {
            let statement = matching(self.table, query);
            let (connection, columns) = (&mut self.connection, query.columns);
            return connection.select(&statement, columns, found).await;
        }
        let limit = query.limit.unwrap_or(u32::MAX) as usize;
        let rows = self.slot(query.slot).await?.iter();
        let due = rows.filter(|row| row.notify_after() <= query.due);
        for row in due.take(limit) {
            found.add().copy(row, query.columns)?;
        }
        Ok(())
    }

    async fn move_due(&mut self, slot: Slot, ids: &[u32], due: u32) -> Result<usize> {
        // An array is parsed faster than a list.
        let [before, after] = [["= any ('{", "}')"], ["in (", ")"]][usize::from(self.is_mariadb)];
        let list: Vec<String> = ids.iter().map(u32::to_string).collect();
        let list = list.join(",");
        let update = format!("update {{}} set notify_after = {due} where id {before}{list}{after}");
        let moved = self.run(&update).await?;
        if self.is_native {
            let rows = self.slot(slot).await?;
            for id in ids {
                let place = rows.binary_search_by_key(id, Subscriber::id);
                rows[place.ok().context("a row is not of the slot")?].numbers[1] = due;
            }
        }
        Ok(moved)
    }

    async fn plan(&mut self, query: Match) -> Result<Option<Plan>> {
        if self.is_native {
            return Ok(None);
        }
        let statement = matching(self.table, query);
        self.connection.explain(&statement).await.map(Some)
    }

    fn sql(&mut self) -> Option<&mut SqlStore> {
        Some(self)
    }
}
