//! How large a B-tree would be (PostgreSQL: `nbtree/README`, `nbtsort.c`, `nbtdedup.c`).

use crate::check::IndexCost;
use crate::check::table::{ColumnShape, TableShape};

const PAGE_BYTES: f64 = 8192.0;
/// What a page of a B-tree has for tuples: without its header (24 bytes) and special space (16).
const USABLE_BYTES: f64 = PAGE_BYTES - 24.0 - 16.0;
/// The default fillfactor of leaves, and the one of other pages (`BTREE_NONLEAF_FILLFACTOR`).
const LEAF_FILL: f64 = 0.9;
const UPPER_FILL: f64 = 0.7;
const LINE_POINTER_BYTES: f64 = 4.0;
/// The header of a tuple; with nulls it also has 32 bits, aligned.
const HEADER_BYTES: f64 = 8.0;
const HEADER_WITH_NULLS_BYTES: f64 = 16.0;
const ROW_POINTER_BYTES: f64 = 6.0;
/// A build puts so many bytes of row pointers of one value into one tuple (`_bt_load`: a tenth of a page).
const POSTING_BYTES_MAX: f64 = 812.0;
/// Longer values are compressed or refused.
const SHORT_VALUE_BYTES: f64 = 127.0;

/// The cost of an index of `columns`, which the table has; `None` if the number of its rows is not known. If
/// `deduplicates`, a B-tree keeps equal values once (PostgreSQL 13).
pub fn index_cost(table: &TableShape, columns: &[&str], deduplicates: bool) -> Option<IndexCost> {
    let known: Vec<&ColumnShape> = columns
        .iter()
        .filter_map(|name| table.column(name))
        .collect();
    if table.rows < 0.0 || known.len() < columns.len() {
        return None;
    }
    let tuple = tuple_bytes(&known);
    let distinct = known.iter().fold(1.0, |all, column| {
        all * (column.distinct.max(1.0) + f64::from(u8::from(column.nulls > 0.0)))
    });
    let can_share = deduplicates && known.iter().all(|column| column.is_deduplicated);
    let leaves = if can_share {
        shared_bytes(table.rows, distinct.clamp(1.0, table.rows.max(1.0)), tuple)
    } else {
        table.rows * (tuple + LINE_POINTER_BYTES)
    };
    Some(IndexCost {
        bytes: whole(pages(leaves, tuple) * PAGE_BYTES),
        bytes_per_row: whole(tuple + LINE_POINTER_BYTES),
    })
}

/// The mean size of a tuple with one row pointer.
fn tuple_bytes(columns: &[&ColumnShape]) -> f64 {
    let mut with_values = HEADER_BYTES;
    let mut values = 0.0;
    let mut without_nulls = 1.0;
    for column in columns {
        let is_short = column.is_variable && column.width < SHORT_VALUE_BYTES;
        if !is_short {
            with_values = aligned(with_values, column.alignment);
        }
        with_values += column.width;
        values += column.width * (1.0 - column.nulls);
        without_nulls *= 1.0 - column.nulls;
    }
    let varies = columns.iter().any(|column| column.is_variable);
    let aligned_tuple = |bytes: f64| {
        // Tuples of different lengths lose half of the alignment in the mean.
        if varies {
            bytes + 3.5
        } else {
            aligned(bytes, 8.0)
        }
    };
    let with_nulls =
        aligned_tuple(HEADER_WITH_NULLS_BYTES + values * f64::from(u8::from(columns.len() > 1)));
    without_nulls * aligned_tuple(with_values) + (1.0 - without_nulls) * with_nulls
}

/// The size of the leaves' tuples if `rows` rows have `distinct` values.
fn shared_bytes(rows: f64, distinct: f64, tuple: f64) -> f64 {
    let single = tuple + LINE_POINTER_BYTES;
    let rows_of_value = rows / distinct;
    if rows_of_value <= 1.0 {
        return rows * single;
    }
    let most = ((POSTING_BYTES_MAX - tuple) / ROW_POINTER_BYTES)
        .floor()
        .max(2.0);
    let tuples = (rows_of_value / most).ceil();
    // Row pointers are aligned with the tuple: 4 bytes in the mean.
    let of_value = tuples * (single + 2.0) + rows_of_value * ROW_POINTER_BYTES;
    distinct * of_value.min(rows_of_value * single)
}

/// The pages of all levels.
fn pages(leaf_bytes: f64, tuple: f64) -> f64 {
    if leaf_bytes <= 0.0 {
        return 1.0;
    }
    let high_key = tuple + LINE_POINTER_BYTES;
    let mut level = (leaf_bytes / (USABLE_BYTES * LEAF_FILL - high_key)).ceil();
    let mut all = 1.0 + level;
    let fanout = (USABLE_BYTES * UPPER_FILL / (tuple + LINE_POINTER_BYTES)).max(2.0);
    while level > 1.0 {
        level = (level / fanout).ceil();
        all += level;
    }
    all
}

fn aligned(bytes: f64, alignment: f64) -> f64 {
    (bytes / alignment).ceil() * alignment
}

/// Not negative, and far below the largest integer that it can have.
fn whole(bytes: f64) -> u64 {
    format!("{bytes:.0}").parse().unwrap_or(u64::MAX)
}
