//! What has to hold of the figures on every machine: none is about time.

use crate::labs::indexes::Population;
use crate::labs::indexes::measure::{DELETE, HOT_UPDATE, INSERT, OPERATIONS, Read, UPDATE};
use crate::labs::indexes::persons::{
    EQUAL, NONE, ORDER, RANGES, RIGHT_ORDER, WRONG_ORDER, is_hash, is_plain,
};

/// A B-tree of ten million numbers has at most four levels; then the row is read.
const B_TREE_BUFFERS_MAX: f64 = 5.0;
/// The meta page, the bucket, a page to which that overflows, and the row.
const HASH_BUFFERS_MAX: f64 = 4.0;
/// The wrong order of columns reads so many times the pages of the right one.
const ORDER_RATIO_MIN: f64 = 5.0;
/// In a smaller table either order has few pages.
const ORDER_ROWS_MIN: u32 = 1_000_000;
/// Its skip scan finds rows by the second column, too.
const SKIP_SCAN_SINCE: u32 = 180_000;
/// For each row and index. An entry of a B-tree takes 50 bytes and more; turns differ by far less.
const ENTRY_WAL_BYTES_MIN: f64 = 32.0;

/// A sentence for each figure that is not as it has to be.
pub(super) fn failures(population: &Population) -> Vec<String> {
    let reads = population.reads.as_slice();
    let mut failures: Vec<String> = reads
        .iter()
        .filter_map(|read| of_read(read, reads))
        .collect();
    let buffers = |index| find(reads, ORDER, index).map_or(0.0, |read| read.turn.buffers);
    let (right, wrong) = (buffers(RIGHT_ORDER), buffers(WRONG_ORDER));
    let has_pages = population.rows >= ORDER_ROWS_MIN;
    if has_pages && population.server_version < SKIP_SCAN_SINCE && wrong < right * ORDER_RATIO_MIN {
        failures.push(format!(
            "{ORDER}: {WRONG_ORDER} reads {wrong} buffers, less than {ORDER_RATIO_MIN} times the {right} of {RIGHT_ORDER}"
        ));
    }
    for operation in OPERATIONS {
        failures.extend(of_writes(population, operation));
    }
    failures
}

fn of_read(read: &Read, reads: &[Read]) -> Option<String> {
    let (query, index, buffers) = (&read.query, &read.index, read.turn.buffers);
    let most = [B_TREE_BUFFERS_MAX, HASH_BUFFERS_MAX][usize::from(is_hash(index))];
    if query == EQUAL && (is_plain(index) || is_hash(index)) && buffers > most {
        return Some(format!(
            "{query}: {index} reads {buffers} buffers, more than {most}"
        ));
    }
    if RANGES.contains(&query.as_str()) && is_hash(index) && read.turn.uses_index() {
        return Some(format!(
            "{query}: PostgreSQL uses {index}, which has no order"
        ));
    }
    let (advice, best) = read.advice.as_ref().zip(best(reads, query))?;
    (is_right(read, reads) == Some(false)).then(|| {
        let (proposed, best, least) = (&advice.index, &best.index, best.turn.buffers);
        format!("{query}: larder check proposes {proposed} beside {index}, but {best} reads the fewest buffers, {least}")
    })
}

/// Whether `larder check` proposes what reads the fewest buffers; `None` if it proves or was asked nothing.
pub(super) fn is_right(read: &Read, reads: &[Read]) -> Option<bool> {
    let advice = read.advice.as_ref().filter(|advice| !advice.is_unproven)?;
    let proposed = find(reads, &read.query, &advice.index);
    let best = best(reads, &read.query)?;
    Some(proposed.is_some_and(|proposed| proposed.turn.buffers <= best.turn.buffers))
}

/// A scan or the B-tree that reads the fewest buffers; of equals the scan.
pub(super) fn best<'r>(reads: &'r [Read], query: &str) -> Option<&'r Read> {
    let of_query = reads.iter().filter(|read| read.query == query);
    let possible = of_query.filter(|read| read.index == NONE || is_plain(&read.index));
    possible.min_by(|one, other| one.turn.buffers.total_cmp(&other.turn.buffers))
}

pub(super) fn find<'r>(reads: &'r [Read], query: &str, index: &str) -> Option<&'r Read> {
    let mut reads = reads.iter();
    reads.find(|read| read.query == query && read.index == index)
}

/// Whether the WAL of an operation grows with each index, or with none.
fn of_writes(population: &Population, operation: &str) -> Vec<String> {
    let writes = population.writes.iter();
    let writes: Vec<_> = writes
        .filter(|write| write.operation == operation)
        .collect();
    let mut failures = Vec::new();
    for pair in writes.windows(2) {
        let [fewer, more] = pair else { continue };
        let (before, after) = (fewer.turn.record_bytes(), more.turn.record_bytes());
        let indexes = more.indexes.saturating_sub(fewer.indexes);
        let added = (after - before) / indexes.max(1) as f64;
        let expected = match operation {
            INSERT | UPDATE if added < ENTRY_WAL_BYTES_MIN => "more for each index",
            HOT_UPDATE | DELETE if added.abs() >= ENTRY_WAL_BYTES_MIN => "as many",
            _ => continue,
        };
        failures.push(format!(
            "{operation}: {before:.1} bytes of WAL for each row with {} indexes, {after:.1} with {}, not {expected}",
            fewer.indexes, more.indexes
        ));
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labs::indexes::persons::{NUMBER, NUMBER_HASH};
    use crate::labs::indexes::{Run, definition};

    /// Of a million rows; all gates hold.
    const RUN: &str = include_str!("../../../results/2026-11-29-indexes/indexes.json");

    /// A gate fails, by a sentence that has `part`, once the figures are changed.
    #[track_caller]
    fn fails(part: &str, change: impl Fn(&mut Population)) {
        let mut run: Run = serde_json::from_str(RUN).unwrap();
        let mut population = run.populations.pop().unwrap();
        assert_eq!(failures(&population), Vec::<String>::new());
        change(&mut population);
        let told = failures(&population).join("\n");
        assert!(told.contains(part), "{told}");
    }

    #[track_caller]
    fn fails_by_read(part: &str, query: &str, index: &str, change: impl Fn(&mut Read)) {
        fails(part, |population| {
            let mut reads = population.reads.iter_mut();
            let read = reads.find(|read| read.query == query && read.index == index);
            change(read.unwrap());
        });
    }

    #[test]
    fn gates_of_reads_fail_when_their_figures_are_turned_around() {
        let many = |read: &mut Read| read.turn.buffers = 6.0;
        fails_by_read("(number) reads 6 buffers, more than 5", EQUAL, NUMBER, many);
        fails_by_read("reads 6 buffers, more than 4", EQUAL, NUMBER_HASH, many);
        fails_by_read(
            "reads 6 buffers, less than 5 times",
            ORDER,
            WRONG_ORDER,
            many,
        );
        let hashes = [NUMBER_HASH, NUMBER_HASH, "using hash (lastname)"];
        for (query, index) in RANGES.into_iter().zip(hashes) {
            let part = format!("{query}: PostgreSQL uses {index}");
            let used = |read: &mut Read| read.turn.nodes = vec!["Index Scan".to_owned()];
            fails_by_read(&part, query, index, used);
        }
    }

    #[test]
    fn gates_of_wal_fail_when_their_figures_are_turned_around() {
        let turned = [
            (INSERT, 0.0),
            (UPDATE, 0.0),
            (HOT_UPDATE, 1e6),
            (DELETE, 1e6),
        ];
        for (operation, record_bytes) in turned {
            fails(&format!("{operation}: "), |population| {
                let mut writes = population.writes.iter_mut();
                let write = writes.find(|write| write.operation == operation && write.indexes == 3);
                let turn = &mut write.unwrap().turn;
                turn.wal_bytes = turn.image_bytes + record_bytes;
            });
        }
    }

    #[test]
    fn advice_that_is_turned_around_is_wrong() {
        let most = "age > 10";
        for (query, index) in [
            (ORDER, NONE),
            (ORDER, WRONG_ORDER),
            (ORDER, "(id)"),
            (most, "(age)"),
        ] {
            let part = format!("{query}: larder check proposes {index} beside no index");
            fails_by_read(&part, query, NONE, |read| {
                let advice = read.advice.as_mut().unwrap();
                index.clone_into(&mut advice.index);
            });
        }
        let sql = r#"create index concurrently "a" on "public"."person" ("age", "lastname");"#;
        assert_eq!(definition(sql).unwrap(), WRONG_ORDER);
        assert_eq!(definition(r#"drop index concurrently "public"."a";"#), None);
    }
}
