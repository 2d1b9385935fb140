//! How long does it take to read the body of a write: to parse it, to check its values and to convert it to rows?
//!
//! The bodies are a document with one department and ten employees, as in the demo, and a merge patch of it.

use std::borrow::Cow;
use std::fmt::Write as _;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use larder::resource::body::{Scratch, WriteMode, merge_patch, rows_of};
use larder::resource::catalogue::TableName;
use larder::resource::sql_type::{Equality, SqlType};
use larder::resource::value::ValueType;
use larder::resource::writable::{
    Level, MemberKind, Rows, Writable, WritableColumn, WritableMember,
};

fn level(name: &str, columns: &[(&str, ValueType)]) -> Level {
    let members = columns
        .iter()
        .enumerate()
        .map(|(at, (name, _))| WritableMember {
            name: (*name).to_owned(),
            kind: MemberKind::Column(at),
        });
    let columns = columns.iter().map(|(name, value)| WritableColumn {
        column: (*name).to_owned(),
        field: Some((*name).to_owned()),
        is_kept: false,
        stored_type: SqlType::Named(String::new()),
        plain_type: SqlType::Named(String::new()),
        equality: Equality::BUILT_IN,
        value: value.clone(),
        nullable: true,
        has_default: false,
        sequences: Vec::new(),
        generated: false,
        key_type: None,
        identity_always: false,
        has_one_spelling: true,
    });
    Level {
        name: name.to_owned(),
        parent: None,
        table: TableName {
            oid: 1,
            schema: "public".to_owned(),
            name: name.to_owned(),
        },
        condition: None,
        members: members.collect(),
        columns: columns.collect(),
        key: vec![0],
        key_name: None,
        link: Vec::new(),
        unique: Vec::new(),
        pointers: Vec::new(),
        has_before_insert: false,
        tables: Vec::new(),
        constraints: Vec::new(),
    }
}

fn depts() -> Writable {
    let text = ValueType::Text { max: None };
    let mut dept = level(
        "depts",
        &[
            ("deptNumber", ValueType::BigInt),
            ("deptName", text.clone()),
            ("deptLocation", text.clone()),
        ],
    );
    let mut emp = level(
        "emps",
        &[
            ("empNo", ValueType::BigInt),
            ("empName", text.clone()),
            ("job", text),
            ("mgr", ValueType::BigInt),
            ("hiredate", ValueType::Timestamp),
            ("sal", ValueType::BigInt),
            ("comm", ValueType::BigInt),
            ("deptNumber", ValueType::BigInt),
        ],
    );
    (emp.parent, emp.link) = (Some(0), vec![(7, 0)]);
    dept.members.push(WritableMember {
        name: "emps".to_owned(),
        kind: MemberKind::Rows(1),
    });
    Writable {
        levels: vec![dept, emp],
        has_triggers: false,
        has_before_delete: false,
        has_statement_delete: false,
        has_deferred: false,
        has_cross_references: false,
        forward_references: Vec::new(),
        owner: None,
    }
}

fn document() -> String {
    let mut json =
        r#"{"deptNumber":42,"deptName":"ACCOUNTING 42","deptLocation":"NEW YORK","emps":["#
            .to_owned();
    for number in 0..10 {
        let separator = if number == 0 { "" } else { "," };
        let _ = write!(
            json,
            r#"{separator}{{"empNo":{},"empName":"EMPLOYEE {number}","job":"SALESMAN","mgr":{},"#,
            4_200 + number,
            4_100 + number,
        );
        json.push_str(
            r#""hiredate":"1981-02-20T00:00:00+00:00","sal":1600,"comm":null,"deptNumber":42}"#,
        );
    }
    json + "]}"
}

fn bodies(criterion: &mut Criterion) {
    let (writable, document) = (depts(), document());
    let key = [Cow::Borrowed("42")];
    let (mut rows, mut scratch) = (Rows::of(&writable), Scratch::default());
    let mut group = criterion.benchmark_group("body of 11 rows");
    group.throughput(Throughput::Bytes(document.len() as u64));
    group.bench_function("rows", |bencher| {
        bencher.iter(|| {
            rows.clear();
            let mode = WriteMode::Replace(&key);
            rows_of(
                &writable,
                document.as_bytes(),
                mode,
                None,
                &mut scratch,
                &mut rows,
            )
        });
    });
    let patch = br#"{"deptLocation":"BOSTON"}"#;
    group.bench_function("merge patch", |bencher| {
        bencher.iter(|| {
            merge_patch(
                &writable,
                document.as_bytes(),
                patch,
                &mut scratch,
                &mut Vec::new(),
            )
        });
    });
    group.finish();
}

criterion_group!(benches, bodies);
criterion_main!(benches);
