//! The figures as tables.

use crate::labs::indexes::gates::{best, failures, find, is_right};
use crate::labs::indexes::measure::{DELETE, OPERATIONS, ROWS, STEPS, Turn, VACUUM};
use crate::labs::indexes::persons::{
    EQUAL, NONE, NUMBER, NUMBER_HASH, ORDER, QUERIES, RIGHT_ORDER, WRONG_ORDER, is_hash, is_plain,
};
use crate::labs::indexes::{Population, Run};
use crate::report::plot::{self, Chart, ChartKind};
use crate::report::statistics::Spread;

const READS: &str = "\
Medians of 20 turns with `enable_seqscan = off`; chosen: PostgreSQL uses the index without that, too. Saved: buffers to the
best of scan and B-trees, by indexes that larder check never proposes. The last column: what it proposes beside the index.

| query | index | plan | chosen | buffers | saved | planning ms | execution ms | MB | build ms | WAL MB | larder check |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
";
const WRITES: &str = "
For each row, by the number of indexes: bytes of WAL, in parentheses those of full-page images after a checkpoint, and µs.

| | 0 | 1 | 3 | 5 |
| --- | --- | --- | --- | --- |
";

pub(super) fn readme(run: &Run) -> String {
    let (tables, environment) = (tables(&run.populations), run.environment.markdown());
    format!("# Indexes of PostgreSQL\n\n{tables}## Run\n\n{environment}")
}

/// Charts of the buffers of each query and of the WAL of each operation, as text.
pub(super) fn charts(populations: &[Population]) -> String {
    let mut charts = Vec::new();
    let kinds = [NONE, "best B-tree", "hash", "covering"];
    let is_kind: [fn(&str) -> bool; 4] = [
        |index| index == NONE,
        is_plain,
        is_hash,
        |index| index.contains("include"),
    ];
    for population in populations {
        let rows = population.rows;
        let title = format!("Buffers that a query of {rows} rows reads");
        let mut buffers = Chart::new(ChartKind::Bar, title, kinds);
        buffers.log_y = true;
        for (query, _) in QUERIES {
            // What does not serve has no bar.
            let of_query = population.reads.iter().filter(|read| {
                read.query == query && (read.index == NONE || read.turn.uses_index())
            });
            buffers.push(
                query,
                is_kind.map(|is_kind| {
                    let of_kind = of_query.clone().filter(|read| is_kind(&read.index));
                    Some(Spread::of(of_kind.map(|read| read.turn.buffers))?.min)
                }),
            );
        }
        let title = format!("Bytes of WAL for each row by the number of indexes, {rows} rows");
        let mut wal = Chart::new(ChartKind::Line, title, OPERATIONS);
        for (indexes, _) in STEPS {
            let writes = population.writes.iter();
            let of_step = writes.filter(|write| write.indexes == indexes);
            let bytes = of_step.map(|write| Some(write.turn.record_bytes()));
            wal.push(indexes.to_string(), bytes);
        }
        charts.extend([buffers, wal]);
    }
    plot::text(&charts)
}

/// All tables, and which gates fail.
pub(super) fn tables(populations: &[Population]) -> String {
    let mut text = String::new();
    for population in populations {
        text += &format!("## {} rows\n\n", population.rows);
        text += &reads(population);
        text += &writes(population);
        text += &ratios(population).unwrap_or_default();
        let failures = failures(population);
        text += &format!("{} gates failed.\n\n", failures.len());
        text.extend(failures.iter().map(|failure| format!("- {failure}\n")));
    }
    text
}

fn reads(population: &Population) -> String {
    let mut text = READS.to_owned();
    for read in &population.reads {
        let (turn, build) = (&read.turn, &read.build);
        let is_compared = turn.uses_index() && !is_plain(&read.index);
        let best = best(&population.reads, &read.query).filter(|_| is_compared);
        let saved = best.map(|best| (best.turn.buffers - turn.buffers).to_string());
        let is_right = is_right(read, &population.reads);
        let verdict = is_right.map_or("unproven", |right| if right { "right" } else { "wrong" });
        let advice = read.advice.as_ref();
        let advice = advice.map(|advice| format!("{}: {verdict}", advice.index));
        text += &format!(
            "| `{}` | {} | {} | {} | {} | {} | {:.2} | {:.2} | {:.1} | {:.0} | {:.1} | {} |\n",
            read.query,
            read.index,
            turn.nodes.join(", "),
            if read.is_chosen { "yes" } else { "" },
            turn.buffers,
            saved.unwrap_or_default(),
            turn.planning_ms,
            turn.execution_ms,
            read.index_bytes / 1e6,
            build.execution_ms,
            build.wal_bytes / 1e6,
            advice.unwrap_or_default()
        );
    }
    text
}

fn writes(population: &Population) -> String {
    let mut text = WRITES.to_owned();
    let rows = OPERATIONS.map(|operation| (operation.to_owned(), vec![operation]));
    let both = (format!("{DELETE}, {VACUUM}"), vec![DELETE, VACUUM]);
    for (name, operations) in rows.into_iter().chain([both]) {
        text += &format!("| {name} |");
        for (indexes, _) in STEPS {
            let writes = population.writes.iter();
            let of_row = writes.filter(|write| {
                write.indexes == indexes && operations.contains(&write.operation.as_str())
            });
            let sum =
                |of: fn(&Turn) -> f64| of_row.clone().map(|write| of(&write.turn)).sum::<f64>();
            let images = sum(|turn| turn.image_bytes) / f64::from(ROWS);
            let micros = sum(|turn| turn.execution_ms) * 1e3 / f64::from(ROWS);
            let records = sum(Turn::record_bytes);
            text += &format!(" {records:.0} ({images:.0}), {micros:.1} |");
        }
        text.push('\n');
    }
    text
}

/// Beside those of the experiment that this one repeats.
fn ratios(population: &Population) -> Option<String> {
    let ratio = |query, slow, fast| {
        let turn = |index| find(&population.reads, query, index).map(|read| &read.turn);
        let (slow, fast) = (turn(slow)?, turn(fast)?);
        let time = slow.execution_ms / fast.execution_ms;
        Some(format!("{time:.1} ({:.1})", slow.buffers / fast.buffers))
    };
    Some(format!(
        "\nTime (and buffers) of a scan for a number divided by those of the B-tree: {}; of the hash index: {}; of the wrong \
         order of columns by the right one: {}. The original experiment had times of 20, 46 and 1.7.\n\n",
        ratio(EQUAL, NONE, NUMBER)?,
        ratio(EQUAL, NONE, NUMBER_HASH)?,
        ratio(ORDER, WRONG_ORDER, RIGHT_ORDER)?
    ))
}
