//! Several transactions at once, committed in every order, with documents read while they are open.

use sqlx::Connection;

use crate::freshness::testbed::{FreshnessTestbed, run};

/// Runs each of `changes` in a transaction of its own, all open at once, and commits them in the order `commits`.
async fn interleave(changes: &[&str], commits: &[usize]) {
    let mut testbed = FreshnessTestbed::start().await;
    let mut connections = Vec::new();
    for change in changes {
        let mut connection = testbed.connect().await;
        run(&mut connection, &format!("begin; {change}")).await;
        connections.push(connection);
        testbed.settle(&format!("{change}, not committed")).await;
    }
    for &number in commits {
        run(&mut connections[number], "commit").await;
        testbed
            .settle(&format!("the commit of {} in {commits:?}", changes[number]))
            .await;
    }
    for connection in connections {
        connection.close().await.unwrap();
    }
}

async fn interleave_both_ways(changes: [&str; 2]) {
    interleave(&changes, &[0, 1]).await;
    interleave(&changes, &[1, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_moves_while_its_children_change() {
    interleave_both_ways([
        "update \"Line\" set \"inBranch\" = '50%' where id = 1",
        "update note set body = 'new' where id = 1; delete from note where id = 2; \
         update tag set weight = 3 where note_id = 1; insert into note values (90, 'more', 3, 1)",
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_points_elsewhere_while_what_it_points_to_changes() {
    interleave_both_ways([
        "update \"Orders\" set region_id = 2 where ref in ('R1', 'R,5')",
        "update region set title = 'retitled', country = '50%' where id = 2; update country set title = 'C' where code = '50%'",
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_three_levels_move_in_three_transactions() {
    let changes = [
        "update \"Line\" set \"inBranch\" = 'plain', \"inOrder\" = -7 where id = 1",
        "update note set line_id = 1 where id = 4",
        "update tag set note_id = 4 where note_id = 1; update author set name = 'A' where id = 1",
    ];
    for commits in [[2, 1, 0], [1, 2, 0], [0, 2, 1]] {
        interleave(&changes, &commits).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_commits_counts_and_not_that_of_numbers() {
    interleave(
        &[
            "update \"Orders\" set title = 'smaller' where ref = 'R1'",
            "update \"Orders\" set title = 'middle' where ref = 'R2'",
            "update \"Orders\" set title = 'larger' where ref = 'R3'",
        ],
        &[2, 1, 0],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_transaction_delays_no_other() {
    let mut testbed = FreshnessTestbed::start().await;
    let mut long = testbed.connect().await;
    run(
        &mut long,
        "begin; update \"Line\" set qty = 1000 where id = 1; savepoint s; update note set line_id = 4 where id = 3",
    )
    .await;
    let mut short = testbed.connect().await;
    for number in 0..12 {
        let change = format!(
            "begin; savepoint s; update \"Orders\" set title = 'short {number}' where ref = 'R{}'; release s; commit; \
             update note set body = 'short {number}' where id in (1, 4)",
            1 + number % 3
        );
        run(&mut short, &change).await;
        testbed.settle(&change).await;
    }
    run(
        &mut long,
        "update tag set weight = 1000 where note_id = 2; commit",
    )
    .await;
    testbed.settle("the commit of the long transaction").await;
}
