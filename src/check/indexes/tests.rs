use std::collections::BTreeSet;

use super::*;
use crate::check::facts::KeyColumn;
use crate::resource::catalogue::TableName;
use crate::resource::definition::Place;

fn column(name: &str) -> KeyColumn {
    KeyColumn {
        text: name.to_owned(),
        is_expression: false,
        operator_class: 1978,
        parameters: None,
        collation: 0,
        options: 0,
    }
}

fn index(name: &str, columns: &[&str]) -> IndexFacts {
    IndexFacts {
        schema: "public".to_owned(),
        name: name.to_owned(),
        method: "btree".to_owned(),
        columns: columns.iter().map(|name| column(name)).collect(),
        included: Vec::new(),
        predicate: None,
        is_unique: false,
        is_deferrable: false,
        nulls_are_equal: false,
        parameters: None,
        is_of_constraint: false,
        is_replica_identity: false,
        is_clustered: false,
        is_partitioned: false,
        unattached: Vec::new(),
        is_attached: false,
        is_valid: true,
        is_being_built: false,
        bytes: UNUSED_BYTES_MIN,
        scans: 1,
    }
}

fn facts(indexes: Vec<IndexFacts>) -> Facts {
    let table = TableFacts {
        name: TableName {
            oid: 1,
            schema: "public".to_owned(),
            name: "t".to_owned(),
        },
        kind: 'r',
        place: Some(Place {
            origin: "larder.toml".into(),
            line: 1,
            key: "resource[0]".to_owned(),
        }),
        live_rows: 0,
        dead_rows: 0,
        updates: 0,
        hot_updates: 0,
        fillfactor: 100,
        is_analysed: true,
        foreign_keys: Vec::new(),
        indexes,
    };
    Facts {
        tables: vec![table],
        locked: Vec::new(),
        counted_for: COUNTED_FOR_MIN,
        has_standby: false,
    }
}

fn found(facts: &Facts) -> Vec<String> {
    found_beside(facts, &PlannedIndexes::default())
}

fn found_beside(facts: &Facts, planned: &PlannedIndexes) -> Vec<String> {
    let findings = findings(facts, planned);
    let described = findings.iter().map(|finding| {
        let sql = &finding.remedies[0].sql;
        format!("{} {}: {sql}", finding.rule, finding.object)
    });
    described.collect()
}

/// What is found if the second of two indexes, which would be found, is changed like this.
fn near(facts: &Facts, change: fn(&mut IndexFacts)) -> Vec<String> {
    let mut facts = facts.clone();
    change(&mut facts.tables[0].indexes[1]);
    found(&facts)
}

/// What makes two indexes differ that have the same columns.
const DIFFERENCES: [fn(&mut IndexFacts); 5] = [
    |index| index.method = "hash".to_owned(),
    |index| index.columns[0].operator_class = 1,
    |index| index.columns[0].collation = 1,
    |index| index.columns[0].options = 1,
    |index| index.columns[0].parameters = Some("{siglen=8}".to_owned()),
];

/// What keeps an index whatever others there are.
const NEEDS: [fn(&mut IndexFacts); 4] = [
    |index| index.is_of_constraint = true,
    |index| index.is_replica_identity = true,
    |index| index.is_clustered = true,
    |index| index.is_attached = true,
];

#[test]
fn of_equal_indexes_one_stays() {
    let facts = facts(vec![index("a", &["x", "y"]), index("b", &["x", "y"])]);
    let expected = |name: &str| {
        [format!(
            "duplicate-index public.{name}: drop index concurrently \"public\".\"{name}\";"
        )]
    };
    assert_eq!(found(&facts), expected("b"));
    for change in DIFFERENCES {
        assert_eq!(near(&facts, change), [""; 0]);
    }
    let others: [fn(&mut IndexFacts); 8] = [
        |index| index.parameters = Some("{pages_per_range=16}".to_owned()),
        |index| index.included.push("z".to_owned()),
        |index| index.predicate = Some("(x > 0)".to_owned()),
        |index| index.is_unique = true,
        |index| index.is_deferrable = true,
        |index| index.nulls_are_equal = true,
        |index| index.is_valid = false,
        |index| index.columns[1] = column("z"),
    ];
    for change in others {
        let found = near(&facts, change);
        assert!(!found.concat().contains("duplicate"), "{found:?}");
    }
    for need in NEEDS {
        assert_eq!(near(&facts, need), expected("a"));
    }
}

#[test]
fn what_two_equal_indexes_are_needed_for_keeps_both() {
    for need in NEEDS {
        let mut facts = facts(vec![index("a", &["x"]), index("b", &["x"])]);
        for index in &mut facts.tables[0].indexes {
            need(index);
        }
        assert_eq!(found(&facts), [""; 0]);
    }
}

#[test]
fn a_beginning_of_another_index_is_found() {
    let facts = facts(vec![index("long", &["x", "y"]), index("short", &["x"])]);
    assert_eq!(
        found(&facts),
        ["prefix-index public.short: drop index concurrently \"public\".\"short\";"]
    );
    for change in DIFFERENCES.into_iter().chain(NEEDS) {
        assert_eq!(near(&facts, change), [""; 0]);
    }
    let others: [fn(&mut IndexFacts); 6] = [
        |index| index.included.push("z".to_owned()),
        |index| index.predicate = Some("(x > 0)".to_owned()),
        |index| index.is_unique = true,
        |index| index.columns[0].is_expression = true,
        |index| index.columns[0] = column("y"),
        |index| index.columns = vec![column("y"), column("x")],
    ];
    for change in others {
        assert_eq!(near(&facts, change), [""; 0]);
    }
    let mut partial = facts.clone();
    partial.tables[0].indexes[0].predicate = Some("(x > 0)".to_owned());
    assert_eq!(found(&partial), [""; 0]);
    for broken in 0..2 {
        let mut invalid = facts.clone();
        invalid.tables[0].indexes[broken].is_valid = false;
        assert!(!found(&invalid).concat().contains("prefix"));
    }
    let others: [fn(&mut IndexFacts); 2] = [
        |index| index.method = "gist".to_owned(),
        |index| {
            index.columns.truncate(1);
            index.is_unique = true;
            index.included.push("z".to_owned());
        },
    ];
    for change in others {
        let mut other = facts.clone();
        change(&mut other.tables[0].indexes[0]);
        assert_eq!(found(&other), [""; 0]);
    }
    let mut expressions = facts;
    for index in &mut expressions.tables[0].indexes {
        index.columns[0].is_expression = true;
    }
    assert_eq!(found(&expressions), [""; 0]);
}

/// Each of three is dropped at most once, and never the last one that serves a search.
#[test]
fn chains_leave_the_longest_one() {
    let facts = facts(vec![
        index("a", &["x"]),
        index("b", &["x"]),
        index("c", &["x", "y"]),
        index("d", &["x", "y"]),
        index("e", &["x", "y", "z"]),
    ]);
    assert_eq!(
        found(&facts),
        [
            "duplicate-index public.b: drop index concurrently \"public\".\"b\";",
            "duplicate-index public.d: drop index concurrently \"public\".\"d\";",
            "prefix-index public.a: drop index concurrently \"public\".\"a\";",
            "prefix-index public.c: drop index concurrently \"public\".\"c\";",
        ]
    );
}

/// The reason names an index that stays.
#[test]
fn the_one_that_stays_is_named() {
    let reason = |indexes: Vec<IndexFacts>| {
        let findings = findings(&facts(indexes), &PlannedIndexes::default());
        findings.last().unwrap().reason.clone()
    };
    let chain = ["a", "b", "c"].map(|name| index(name, &["x", "y", "z"]));
    let mut chain = chain.to_vec();
    chain[0].columns.truncate(2);
    chain[1].columns.truncate(1);
    assert_eq!(reason(chain), "c begins with its columns");
    let mut equal = ["a", "b", "c"].map(|name| index(name, &["x", "y"]));
    equal[0].columns.truncate(1);
    equal[2].is_of_constraint = true;
    assert_eq!(reason(equal.to_vec()), "c begins with its columns");
}

#[test]
fn the_index_of_a_partitioned_table_is_not_dropped_concurrently() {
    let mut facts = facts(vec![index("a", &["x"]), index("b", &["x"])]);
    for index in &mut facts.tables[0].indexes {
        index.is_partitioned = true;
    }
    assert_eq!(
        found(&facts),
        ["duplicate-index public.b: drop index \"public\".\"b\";"]
    );
}

#[test]
fn an_index_without_scans_is_found() {
    let mut used = facts(vec![index("a", &["y"]), index("b", &["x"])]);
    let unused = |index: &mut IndexFacts| index.scans = 0;
    assert_eq!(found(&used), [""; 0]);
    unused(&mut used.tables[0].indexes[1]);
    let facts = used;
    assert_eq!(
        found(&facts),
        ["unused-index public.b: drop index concurrently \"public\".\"b\";"]
    );
    let others: [fn(&mut IndexFacts); 5] = [
        |index| index.bytes -= 1,
        |index| index.is_unique = true,
        |index| index.columns[0].is_expression = true,
        |index| index.is_partitioned = true,
        |index| index.scans = 1,
    ];
    for change in others.into_iter().chain(NEEDS) {
        assert_eq!(near(&facts, change), [""; 0]);
    }
    assert!(
        !near(&facts, |index| index.is_valid = false)
            .concat()
            .contains("unused")
    );
    let mut young = facts.clone();
    young.counted_for -= Duration::from_secs(1);
    assert_eq!(found(&young), [""; 0]);
    let mut followed = facts.clone();
    followed.has_standby = true;
    assert_eq!(found(&followed), [""; 0]);
    let mut foreign = facts.clone();
    foreign.tables[0].place = None;
    assert_eq!(found(&foreign), [""; 0]);
    let planned = PlannedIndexes {
        used: named("b"),
        ..PlannedIndexes::default()
    };
    assert_eq!(found_beside(&facts, &planned), [""; 0]);
}

fn named(name: &str) -> BTreeSet<(String, String)> {
    BTreeSet::from([("public".to_owned(), name.to_owned())])
}

/// A plan has used the first index of a chain, whose last one stays.
#[test]
fn an_index_that_plans_will_use_instead_stays() {
    let chain = ["a", "b", "c"].map(|name| IndexFacts {
        scans: 0,
        ..index(name, &["x", "y", "z"])
    });
    let mut chain = chain.to_vec();
    chain[0].columns.truncate(1);
    chain[1].columns.truncate(2);
    let planned = PlannedIndexes {
        used: named("a"),
        ..PlannedIndexes::default()
    };
    let found = found_beside(&facts(chain), &planned);
    let rules: Vec<&str> = found.iter().map(|found| &found[..21]).collect();
    assert_eq!(rules, ["prefix-index public.a", "prefix-index public.b"]);
}

/// The finding that creates an index drops what it makes superfluous.
#[test]
fn what_the_findings_of_plans_drop_is_not_dropped_again() {
    let mut indexes = ["a", "b", "c"].map(|name| index(name, &["x", "y"]));
    indexes[1].columns.truncate(1);
    indexes[2].is_valid = false;
    let facts = facts(indexes.to_vec());
    assert_eq!(found(&facts).len(), 2, "{:?}", found(&facts));
    let planned = |name: &str| PlannedIndexes {
        dropped: named(name),
        ..PlannedIndexes::default()
    };
    let of = |name: &str| found_beside(&facts, &planned(name)).concat();
    assert!(!of("b").contains("public.b"), "{}", of("b"));
    assert!(!of("c").contains("public.c"), "{}", of("c"));
    // Nothing is left that it would be a beginning of, or equal to.
    assert!(!of("a").contains("prefix"), "{}", of("a"));
    assert!(of("a").contains("reindex"), "{}", of("a"));
}

/// It is no use beside a unique index of the same columns.
#[test]
fn a_plain_index_beside_a_unique_one_is_found() {
    let both = facts(vec![index("a", &["x"]), index("b", &["x"])]);
    assert_eq!(
        near(&both, |index| index.is_unique = true),
        ["prefix-index public.a: drop index concurrently \"public\".\"a\";"]
    );
}

/// What is dropped must not be missed by the statements of what was dropped before it.
#[test]
fn an_index_that_serves_the_statements_of_another_is_used() {
    let unused = |name: &str, columns: &[&str]| IndexFacts {
        scans: 0,
        ..index(name, columns)
    };
    let rules = |indexes: &[IndexFacts]| {
        let found = found(&facts(indexes.to_vec()));
        let names = found.iter().map(|found| found.split(':').next().unwrap());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        rules(&[unused("a", &["x"]), index("b", &["x"])]),
        ["duplicate-index public.b"]
    );
    assert_eq!(
        rules(&[index("a", &["x"]), unused("b", &["x", "y"])]),
        ["prefix-index public.a"]
    );
    assert_eq!(
        rules(&[
            unused("a", &["x"]),
            index("b", &["x"]),
            unused("c", &["x", "y"])
        ]),
        ["duplicate-index public.b", "prefix-index public.a"]
    );
    assert_eq!(
        rules(&[unused("a", &["x"]), unused("b", &["x", "y"])]),
        ["prefix-index public.a", "unused-index public.b"]
    );
}

#[test]
fn the_last_index_of_a_foreign_key_stays() {
    let mut facts = facts(vec![index("a", &["y"]), index("b", &["x", "z"])]);
    facts.tables[0].indexes[1].scans = 0;
    facts.tables[0].foreign_keys = vec![vec!["z".to_owned(), "x".to_owned()]];
    assert_eq!(found(&facts), [""; 0]);
    let mut part = facts.clone();
    part.tables[0].indexes[1].columns.truncate(1);
    assert_eq!(found(&part), [""; 0]);
    let mut without = facts.clone();
    without.tables[0].foreign_keys = vec![vec!["z".to_owned()]];
    assert_eq!(found(&without).len(), 1);
    let other = index("c", &["z", "x"]);
    facts.tables[0].indexes.push(other);
    assert_eq!(found(&facts).len(), 1);
    let worse: [fn(&mut IndexFacts); 4] = [
        |index| index.is_valid = false,
        |index| index.predicate = Some("(z > 0)".to_owned()),
        |index| index.method = "gin".to_owned(),
        |index| index.columns[0] = column("y"),
    ];
    for change in worse {
        let mut facts = facts.clone();
        change(&mut facts.tables[0].indexes[2]);
        assert!(!found(&facts).concat().contains("unused"));
    }
    // Of two that are unused, one has to stay.
    facts.tables[0].indexes[2].scans = 0;
    assert_eq!(
        found(&facts),
        ["unused-index public.b: drop index concurrently \"public\".\"b\";"]
    );
    facts.tables[0].indexes[1].columns = facts.tables[0].indexes[2].columns.clone();
    assert_eq!(
        found(&facts),
        ["duplicate-index public.c: drop index concurrently \"public\".\"c\";"]
    );
}

#[test]
fn an_invalid_index_is_built_again() {
    let mut broken = index("b", &["x"]);
    broken.is_valid = false;
    let mut facts = facts(vec![index("a", &["y"]), broken]);
    let expected = "invalid-index public.b: reindex index concurrently \"public\".\"b\";";
    assert_eq!(found(&facts), [expected]);
    let others: [fn(&mut IndexFacts); 3] = [
        |index| index.is_being_built = true,
        |index| index.is_partitioned = true,
        |index| index.is_valid = true,
    ];
    for change in others {
        assert_eq!(near(&facts, change), [""; 0]);
    }
    let mut equal = facts.clone();
    equal.tables[0].indexes[0].columns = vec![column("x")];
    let dropped = "invalid-index public.b: drop index concurrently \"public\".\"b\";";
    assert_eq!(found(&equal), [dropped]);
    for need in NEEDS {
        let found = near(&equal, need);
        assert_eq!(found, [expected]);
    }
    // Of two that are equal one is built, but none that is dropped.
    for (other, sql) in [("a", "drop"), ("b_ccnew", "reindex")] {
        let mut pair = equal.clone();
        pair.tables[0].indexes[0].is_valid = false;
        pair.tables[0].indexes[0].name = other.to_owned();
        assert!(found(&pair)[1].contains(sql), "{:?}", found(&pair));
    }
    // The copy that `reindex` leaves behind has the name of an index of the same kind.
    facts.tables[0].indexes[1].name = "a_ccnew".to_owned();
    assert!(found(&facts)[0].contains("reindex"));
    let mut copied = equal.clone();
    copied.tables[0].indexes[0].is_valid = false;
    for (original, copy) in [
        ("a".to_owned(), "a_ccnew".to_owned()),
        ("a".to_owned(), "a_ccold12".to_owned()),
        ("b".repeat(63), "b".repeat(57) + "_ccnew"),
    ] {
        let indexes = &mut copied.tables[0].indexes;
        indexes[0].name = original;
        indexes[1].name.clone_from(&copy);
        let expected = format!("drop index concurrently \"public\".\"{copy}\";");
        let found = found(&copied);
        assert!(
            found[0].contains("reindex") && found[1].ends_with(&expected),
            "{found:?}"
        );
    }
}

#[test]
fn equal_rows_may_keep_a_unique_index_from_being_built() {
    let mut facts = facts(vec![index("a", &["x"])]);
    facts.tables[0].indexes[0].is_valid = false;
    let reason = |facts: &Facts| {
        findings(facts, &PlannedIndexes::default())[0]
            .reason
            .clone()
    };
    assert!(!reason(&facts).contains("rows are equal"));
    facts.tables[0].indexes[0].is_unique = true;
    assert!(reason(&facts).contains("rows are equal"));
    // One that is dropped is not built.
    facts.tables[0].indexes.insert(0, index("a", &["x"]));
    facts.tables[0].indexes[0].is_unique = true;
    facts.tables[0].indexes[1].name = "b".to_owned();
    assert!(!reason(&facts).contains("rows are equal"));
}
