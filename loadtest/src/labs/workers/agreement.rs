//! What every store has to do before anything is timed: keep the extremes of each column, and match the ids that the rows
//! themselves tell, with and without a limit, before and after an update.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

use crate::labs::workers::store::{Match, Place, Store};
use crate::labs::workers::subscriber::{
    Buffer, Columns, DUE_WITHIN, FILLED, Population, Slot, Subscriber,
};

const ROWS: u32 = 10_000;
/// About half of the rows are due then.
const DUE: u32 = FILLED - DUE_WITHIN / 2;
const LIMIT: u32 = 3;

/// Checks each store, which is empty afterwards.
///
/// # Errors
/// Names the first store that differs, and what it matched instead.
pub(super) async fn check(places: &[Place], population: Population) -> Result<()> {
    for place in places {
        let checked = agree(&mut *place.open().await?, population).await;
        checked.with_context(|| format!("{} matches something else", place.kind.name()))?;
    }
    let stores = places.len();
    println!("{stores} stores keep all extremes and match identical ids of {ROWS} rows");
    Ok(())
}

async fn agree(store: &mut dyn Store, population: Population) -> Result<()> {
    store.create(true).await?;
    store.fill(&Subscriber::extremes()).await?;
    store.index().await?;
    for row in Subscriber::extremes() {
        for columns in [Columns::Full, Columns::Short] {
            let (mut expected, mut found) = (Subscriber::default(), Buffer::default());
            expected.copy(&row, columns)?;
            let query = Match::new(row.slot(), u32::MAX, None, columns);
            store.find(query, &mut found).await?;
            let found = found.rows();
            ensure!(found == [expected], "{row:?} became {found:?}");
        }
    }
    store.create(true).await?;
    let rows = population.subscribers(0..ROWS);
    store.fill(&rows).await?;
    store.index().await?;
    for slot in population.slots() {
        let matched = matches(store, slot, &rows).await;
        matched.with_context(|| format!("{slot:?}"))?;
    }
    store.create(true).await
}

/// Whether a store matches the due rows of a slot.
async fn matches(store: &mut dyn Store, slot: Slot, rows: &[Subscriber]) -> Result<()> {
    let due = rows.iter().filter(|row| row.is_due(slot, DUE));
    let due: BTreeSet<u32> = due.map(Subscriber::id).collect();
    let all = ids(store, slot, None).await?;
    ensure!(all == due, "{all:?} were matched instead of {due:?}");
    let some = ids(store, slot, Some(LIMIT)).await?;
    let is_some = some.len() == due.len().min(LIMIT as usize) && some.is_subset(&due);
    ensure!(is_some, "with a limit {some:?} of {due:?}");
    if !some.is_empty() {
        let moved: Vec<u32> = some.iter().copied().collect();
        let count = store.move_due(slot, &moved, DUE + 1).await?;
        let rest = ids(store, slot, None).await?;
        let is_rest = count == some.len() && rest == &due - &some;
        ensure!(is_rest, "{rest:?} after {some:?} were moved, {count} rows");
    }
    Ok(())
}

/// Returns the ids of a match, each of which has to be there once.
async fn ids(store: &mut dyn Store, slot: Slot, limit: Option<u32>) -> Result<BTreeSet<u32>> {
    let query = Match::new(slot, DUE, limit, Columns::Short);
    let mut found = Buffer::default();
    store.find(query, &mut found).await?;
    let ids: BTreeSet<u32> = found.ids().into_iter().collect();
    ensure!(ids.len() == found.rows().len(), "a row was matched twice");
    Ok(ids)
}

#[cfg(test)]
pub(super) mod tests {
    use async_trait::async_trait;

    use super::*;

    /// Rows in memory, which are due some seconds too early.
    #[derive(Default)]
    pub(in crate::labs::workers) struct MemoryStore(
        pub(in crate::labs::workers) Vec<Subscriber>,
        pub(in crate::labs::workers) u32,
    );

    #[async_trait]
    impl Store for MemoryStore {
        async fn create(&mut self, _: bool) -> Result<()> {
            self.0.clear();
            Ok(())
        }

        async fn fill(&mut self, rows: &[Subscriber]) -> Result<()> {
            self.0.extend_from_slice(rows);
            Ok(())
        }

        async fn index(&mut self) -> Result<()> {
            Ok(())
        }

        async fn find(&mut self, query: Match, found: &mut Buffer) -> Result<()> {
            let due = query.due.saturating_add(self.1);
            let rows = self.0.iter().filter(|row| row.is_due(query.slot, due));
            for row in rows.take(query.limit.unwrap_or(u32::MAX) as usize) {
                found.add().copy(row, query.columns)?;
            }
            Ok(())
        }

        async fn move_due(&mut self, _: Slot, ids: &[u32], due: u32) -> Result<usize> {
            let rows = self.0.iter_mut().filter(|row| ids.contains(&row.id()));
            Ok(rows.map(|row| row.numbers[1] = due).count())
        }
    }

    #[tokio::test]
    async fn a_store_that_matches_one_row_too_many_is_refused() {
        let mut store = MemoryStore::default();
        agree(&mut store, Population::of(1)).await.unwrap();
        store.1 = 1;
        let error = agree(&mut store, Population::of(1)).await.unwrap_err();
        assert!(error.to_string().contains("Slot"), "{error}");
    }
}
