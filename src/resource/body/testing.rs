//! Resources for the tests of bodies.

use crate::resource::catalogue::TableName;
use crate::resource::sql_type::{Equality, SqlType};
use crate::resource::value::ValueType;
use crate::resource::writable::{Level, MemberKind, Writable, WritableColumn, WritableMember};

pub(in crate::resource) fn column(name: &str, value: ValueType) -> WritableColumn {
    WritableColumn {
        column: name.to_owned(),
        field: Some(name.to_owned()),
        is_kept: false,
        stored_type: SqlType::Named(String::new()),
        plain_type: SqlType::Named(String::new()),
        equality: Equality::BUILT_IN,
        value,
        nullable: true,
        has_default: false,
        sequences: Vec::new(),
        generated: false,
        key_type: None,
        identity_always: false,
        has_one_spelling: true,
    }
}

fn not_null(name: &str, value: ValueType) -> WritableColumn {
    WritableColumn {
        nullable: false,
        ..column(name, value)
    }
}

/// A level whose columns are all shown; the first is its key.
pub(super) fn level(name: &str, columns: Vec<WritableColumn>) -> Level {
    let fields = columns.iter().enumerate();
    let members = fields.map(|(at, column)| WritableMember {
        name: column.column.clone(),
        kind: MemberKind::Column(at),
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
        columns,
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

/// Departments with employees. Employees have notes, and a department has a lookup of its site.
pub(in crate::resource) fn depts() -> Writable {
    let mut dept = level(
        "depts",
        vec![
            not_null("no", ValueType::BigInt),
            not_null("a/b", ValueType::Text { max: Some(10) }),
            column("loc", ValueType::Text { max: None }),
            WritableColumn {
                generated: true,
                ..column("upper", ValueType::Text { max: None })
            },
            column("data", ValueType::Jsonb),
        ],
    );
    let mut emp = level(
        "emps",
        vec![
            WritableColumn {
                has_default: true,
                ..not_null("empno", ValueType::Integer)
            },
            not_null("dept", ValueType::BigInt),
            column(
                "sal",
                ValueType::Numeric {
                    digits: Some((7, 2)),
                },
            ),
        ],
    );
    let mut note = level(
        "notes",
        vec![
            not_null("id", ValueType::Integer),
            not_null("text", ValueType::Text { max: None }),
        ],
    );
    let mut hidden = not_null("emp", ValueType::Integer);
    hidden.field = None;
    note.columns.push(hidden);
    (emp.parent, emp.link) = (Some(0), vec![(1, 0)]);
    (note.parent, note.link) = (Some(1), vec![(2, 0)]);
    let member = |name: &str, kind| WritableMember {
        name: name.to_owned(),
        kind,
    };
    emp.members.push(member("notes", MemberKind::Rows(2)));
    dept.members.push(member("emps", MemberKind::Rows(1)));
    dept.members.push(member("site", MemberKind::Lookup));
    Writable {
        levels: vec![dept, emp, note],
        has_triggers: false,
        has_before_delete: false,
        has_statement_delete: false,
        has_deferred: false,
        has_cross_references: false,
        forward_references: Vec::new(),
        owner: None,
    }
}
