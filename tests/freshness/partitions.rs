//! Partitions and inheriting tables.

use crate::freshness::testbed::FreshnessTestbed;

const PATH: &str = "set search_path = \"Sales\";";

const IN_PARTITIONS: &[(&str, &str)] = &[
    (
        "an insert by the top",
        "insert into sample values (20, '2024-05-05', 'south', 2, 9.90)",
    ),
    (
        "an insert by the middle",
        "insert into sample_a values (21, '2024-09-05', 'south', 2, 9)",
    ),
    (
        "an insert into a partition",
        "insert into sample_a1 values (22, '2024-05-06', 'n,w', 1, 9)",
    ),
    (
        "an update by the top",
        "update sample set value = value + 1",
    ),
    (
        "an update by the middle",
        "update sample_a set value = 0 where id = 1",
    ),
    (
        "an update of a partition",
        "update sample_b set value = 4.0",
    ),
    (
        "a row moved between partitions",
        "update sample set day = '2025-12-31' where id = 1",
    ),
    (
        "a row moved below the middle",
        "update sample_a set day = '2024-12-31' where id = 22",
    ),
    (
        "a row moved to another parent",
        "update sample set zone = 'south', meter = 2 where id = 2",
    ),
    (
        "both at once",
        "update sample set zone = 'north', meter = 1, day = '2025-06-06' where id = 21",
    ),
    (
        "a root moved between partitions",
        "update meter set zone = 'south', id = 9 where zone = 'n,w'",
    ),
    (
        "a root's key",
        "update meter set id = 7 where zone = 'north'",
    ),
    (
        "a root in its partition",
        "update meter_s set label = 'direct' where id = 1",
    ),
    (
        "a merge",
        "merge into sample s using (values (5), (30)) v (id) on s.id = v.id \
            when matched then update set day = '2024-01-01' \
            when not matched then insert values (v.id, '2024-07-01', 'south', 1, 3)",
    ),
    ("a delete by the top", "delete from sample where id = 3"),
    ("a delete in a partition", "delete from sample_a1"),
    ("a root's delete", "delete from meter_s where id = 9"),
    ("a truncate in the middle", "truncate sample_a"),
];

#[tokio::test(flavor = "multi_thread")]
async fn changes_in_partitions_are_seen() {
    let mut testbed = FreshnessTestbed::start().await;
    testbed
        .warm_absent(&["/meters/south,9", "/meters/south,1", "/meters/north,7"])
        .await;
    for (what, sql) in IN_PARTITIONS {
        testbed
            .step_beyond(what, &format!("{PATH}{sql}"), &["/meters/"])
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_comes_or_goes_is_seen() {
    let mut testbed = FreshnessTestbed::start().await;
    testbed.warm_absent(&["/meters/east,1"]).await;
    for (what, sql) in [
        (
            "a partition attached with rows",
            "create table sample_c (like sample); insert into sample_c values \
            (40, '2026-01-01', 'south', 1, 1); \
            alter table sample attach partition sample_c for values from ('2026-01-01') to ('2027-01-01')",
        ),
        ("a write to it", "update sample_c set value = 2"),
        (
            "a partition of roots",
            "create table meter_e partition of meter for values in ('east'); \
            insert into meter_e values ('east', 1, 'e')",
        ),
        ("a write to that", "update meter_e set label = 'f'"),
        (
            "a partition detached",
            "alter table sample detach partition sample_b",
        ),
        (
            "a write to what was detached",
            "update sample_b set value = 77",
        ),
        (
            "a partition below the middle",
            "create table sample_a3 (like sample); insert into sample_a3 values \
            (41, '2024-02-03', 'south', 2, 1); alter table sample_a detach partition sample_a1; \
            alter table sample_a attach partition sample_a3 for values from ('2024-01-01') to ('2024-07-01')",
        ),
        ("a write below the middle", "update sample_a3 set value = 5"),
        ("a partition dropped", "drop table sample_a2"),
    ] {
        crate::harness::service::execute(&testbed.url, &format!("{PATH}{sql}")).await;
        testbed.become_right(what).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_in_inheriting_tables_are_seen() {
    let mut testbed = FreshnessTestbed::start().await;
    for (what, sql) in [
        (
            "an insert into the parent",
            "insert into vehicle values (3, 1, 'sled')",
        ),
        (
            "an insert into the heir",
            "insert into car values (12, 2, 'coupé', 3)",
        ),
        (
            "an update of both",
            "update vehicle set name = name || '.' where garage_id = 1",
        ),
        (
            "an update of the parent only",
            "update only vehicle set name = 'only' where garage_id = 2",
        ),
        (
            "an update of the heir",
            "update car set name = 'car' where id = 11",
        ),
        (
            "moved by the parent",
            "update vehicle set garage_id = 3 - garage_id",
        ),
        (
            "moved by the heir",
            "update car set garage_id = 3 - garage_id",
        ),
        (
            "a delete by the parent",
            "delete from vehicle where id in (1, 12)",
        ),
        ("a delete in the heir", "delete from car where id = 10"),
    ] {
        testbed.step(what, &format!("{PATH}{sql}")).await;
    }
    testbed
        .step_beyond(
            "a truncate",
            &format!("{PATH} truncate vehicle"),
            &["/garages/"],
        )
        .await;
    let heir = format!(
        "{PATH} create table van (seats int) inherits (car); insert into van values (50, 1, 'v', 2, 9)"
    );
    crate::harness::service::execute(&testbed.url, &heir).await;
    testbed.become_right("a new heir of the heir").await;
    testbed
        .step(
            "a write to it",
            &format!("{PATH} update van set name = 'w'"),
        )
        .await;
}
