//! The rows that bodies lead to, and the mismatches that are reported for other bodies.

use std::borrow::Cow;

use super::*;
use crate::resource::body::{MISMATCHES_MAX, testing};
use crate::resource::key::KeyType;
use crate::resource::value::ValueType;

const INSERT: WriteMode<'_> = WriteMode::Insert;

/// The rows of `body`, or its mismatches as `pointer message`.
fn read(writable: &Writable, body: &str, mode: WriteMode<'_>) -> Result<Rows, Vec<String>> {
    let mut rows = Rows::of(writable);
    match rows_of(
        writable,
        body.as_bytes(),
        mode,
        None,
        &mut Scratch::default(),
        &mut rows,
    ) {
        Ok(()) => Ok(rows),
        Err(error) => {
            assert_eq!(rows, Rows::of(writable));
            Err(match error {
                BodyError::Malformed(why) | BodyError::Stored(why) => vec![why],
                BodyError::Mismatches(mismatches) => mismatches
                    .into_iter()
                    .map(|mismatch| format!("{} {}", mismatch.pointer, mismatch.message))
                    .collect(),
            })
        }
    }
}

fn text(text: &str) -> ColumnInput {
    ColumnInput::Text(text.to_owned())
}

#[test]
fn a_document_is_rows_of_every_level() {
    let writable = testing::depts();
    // Members in any order; what is only read is passed over; a link may be repeated.
    let body = r#"{"site":{"x":[1]},"emps":[{"sal":10.50,"notes":[{"id":5,"text":"a"},{"text":"b","id":6}]},
        {"empno":7,"dept":1,"notes":[{"id":8,"text":""}]}],"upper":3,"a/b":"Q","no":1.0,"data":{"a": [1.50]}}"#;
    let rows = read(&writable, body, INSERT).unwrap();
    let [dept, emp, note] = rows.levels.as_slice() else {
        panic!("{rows:?}");
    };
    let absent = ColumnInput::Absent;
    assert_eq!(
        dept.columns,
        [
            [text("1")],
            [text("Q")],
            [absent.clone()],
            [absent.clone()],
            [text(r#"{"a": [1.50]}"#)]
        ]
    );
    assert_eq!((&*emp.parents, &*emp.places), (&[0, 0][..], &[0, 1][..]));
    assert_eq!(emp.columns[0], [absent.clone(), text("7")]);
    assert_eq!(emp.columns[1], [text("1"), text("1")]);
    assert_eq!(emp.columns[2], [text("10.50"), absent.clone()]);
    assert_eq!(
        (&*note.parents, &*note.places),
        (&[0, 0, 1][..], &[0, 1, 0][..])
    );
    assert_eq!(note.columns[0], [text("5"), text("6"), text("8")]);
    // The first employee's number is not known yet.
    assert_eq!(note.columns[2], [absent.clone(), absent, text("7")]);
    assert_eq!(writable.pointer(&rows, 2, 1), "/emps/0/notes/1");
    assert_eq!(writable.pointer(&rows, 0, 0), "");
}

#[test]
fn documents_share_rows() {
    let writable = testing::depts();
    let mut rows = Rows::of(&writable);
    let mut scratch = Scratch::default();
    let mut add = |body: &str| {
        rows_of(
            &writable,
            body.as_bytes(),
            INSERT,
            None,
            &mut scratch,
            &mut rows,
        )
        .is_ok()
    };
    assert!(add(r#"{"no":1,"a/b":"","emps":[{"empno":1}]}"#));
    assert!(!add(
        r#"{"no":2,"a/b":"","emps":[{"empno":1},{"empno":1}]}"#
    ));
    assert!(!add(r#"{"no":2"#));
    // The same employee in another document is PostgreSQL's to judge.
    assert!(add(r#"{"no":3,"a/b":"","emps":[{"empno":1},{"dept":3}]}"#));
    assert_eq!(rows.documents(), 2);
    assert_eq!(rows.levels[1].parents, [0, 1, 1]);
    assert_eq!(rows.levels[1].columns[1], [text("1"), text("3"), text("3")]);
    rows.clear();
    assert_eq!(rows, Rows::of(&writable));
}

#[test]
fn the_path_says_the_key() {
    let writable = testing::depts();
    let parts = [Cow::Borrowed("7")];
    let replace = WriteMode::Replace(&parts);
    for body in [
        r#"{"a/b":"x","emps":[{}]}"#,
        r#"{"a/b":"x","no":7,"emps":[{"dept":7}]}"#,
    ] {
        let rows = read(&writable, body, replace).unwrap();
        assert_eq!(rows.levels[0].columns[0], [text("7")]);
        assert_eq!(rows.levels[1].columns[1], [text("7")]);
    }
    for no in ["8", "null"] {
        let body = format!(r#"{{"a/b":"x","no":{no}}}"#);
        assert_eq!(
            read(&writable, &body, replace).unwrap_err(),
            ["/no must equal the key in the path, or be left out"]
        );
    }
}

#[test]
fn all_mismatches_are_reported_with_their_places() {
    let writable = testing::depts();
    let body = r#"{"a/b":"12345678901","loc":5,"loc":6,"no":9223372036854775808,"x~":1,"data":"\u0000",
        "emps":[{"sal":99999.999},7,{"dept":3,"notes":{"id":1}},{"empno":null,"notes":[{"id":1.5}]},
        {"empno":2},{"empno":2}],"site":1}"#;
    assert_eq!(
        read(&writable, body, INSERT).unwrap_err(),
        [
            "/a~1b must be at most 10 characters long",
            "/loc must be a string",
            "/loc is given twice",
            "/no must be an integer from -9223372036854775808 to 9223372036854775807",
            "/x~0 is not a member of this object",
            "/data must not contain \\u0000, which jsonb does not hold",
            "/emps/0/sal must be a number that numeric(7,2) holds, 5 digits before the point",
            "/emps/1 must be an object",
            "/emps/2/notes must be an array",
            "/emps/3/empno must not be null",
            "/emps/3/notes/0/id must be an integer from -2147483648 to 2147483647",
            "/emps/3/notes/0/text is required",
            "/emps/5 has the same key as another object of this level",
        ]
    );
    assert_eq!(
        read(&writable, r#"{"emps":[{"dept":2}]}"#, INSERT).unwrap_err(),
        ["/no is required", "/a~1b is required"]
    );
    assert_eq!(
        read(
            &writable,
            r#"{"no":1,"a/b":"","emps":[{"dept":2}]}"#,
            INSERT
        )
        .unwrap_err(),
        ["/emps/0/dept must equal that of the object above, or be left out"]
    );
    for body in ["[]", "null", "1", "\"a\""] {
        assert_eq!(
            read(&writable, body, INSERT).unwrap_err(),
            [" must be an object"]
        );
    }
    let many = format!("{{{}\"a\":1}}", "\"b\":1,".repeat(10_000));
    assert_eq!(
        read(&writable, &many, INSERT).unwrap_err().len(),
        MISMATCHES_MAX
    );
}

#[test]
fn a_link_needs_a_value_above() {
    let mut writable = testing::depts();
    // Employees are linked by a column that may be null.
    writable.levels[1].link = vec![(1, 2)];
    writable.levels[1].columns[1] = testing::column("dept", ValueType::Text { max: None });
    let with = |loc: &str| format!(r#"{{"no":1,"a/b":""{loc},"emps":[{{}}]}}"#);
    for loc in ["", r#","loc":null"#] {
        assert_eq!(
            read(&writable, &with(loc), INSERT).unwrap_err(),
            ["/emps/0/dept needs a value in the object above"]
        );
    }
    let rows = read(&writable, &with(r#","loc":"x""#), INSERT).unwrap();
    assert_eq!(rows.levels[1].columns[1], [text("x")]);
    writable.levels[0].columns[2].has_default = true;
    let rows = read(&writable, &with(""), INSERT).unwrap();
    assert_eq!(rows.levels[1].columns[1], [ColumnInput::Absent]);
    assert_eq!(
        read(
            &writable,
            r#"{"no":1,"a/b":"","emps":[{"dept":"y"}]}"#,
            INSERT
        )
        .unwrap_err(),
        ["/emps/0/dept must be left out, as the object above gets it by default"]
    );
}

/// Bodies that are damaged by chance are read or refused; nothing else happens.
#[test]
fn no_bytes_do_harm() {
    let writable = testing::depts();
    let body = br#"{"no":12,"a/b":"Q\n\u00e9","loc":null,"data":{"a": [1.50e3,{"b":true}]},"emps":
        [{"empno":-7,"sal":1e400,"notes":[{"id":5,"text":"a"},{"text":"b","id":6}]}],"site":{"x":[]}}"#;
    const TOKENS: &[&str] = &[
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "\\",
        "\\u0000",
        "\\ud800",
        "null",
        "1e999999999999",
        "-",
        "0",
        "\"no\":",
        "\"emps\":[{",
        "}]",
        "\u{0}",
        "\u{ff}",
        "[[[[[[[[[",
        " ",
        "123456789012345678901234567890",
        "é",
    ];
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % bound
    };
    let mut scratch = Scratch::default();
    let mut rows = Rows::of(&writable);
    for _ in 0..30_000 {
        let mut damaged = body.to_vec();
        for _ in 0..=below(4) {
            let at = below(damaged.len());
            let end = (at + below(3)).min(damaged.len());
            match below(4) {
                0 => damaged[at] = below(256) as u8,
                1 => drop(damaged.splice(at..end, TOKENS[below(TOKENS.len())].bytes())),
                2 => drop(damaged.drain(at..end)),
                _ => damaged.truncate(at.max(1)),
            }
            if damaged.is_empty() {
                damaged.push(b'{');
            }
        }
        let before = rows.clone();
        if rows_of(&writable, &damaged, INSERT, None, &mut scratch, &mut rows).is_err() {
            assert_eq!(rows, before);
        }
        if rows.documents() > 50 {
            rows.clear();
        }
    }
}

/// PostgreSQL would remove the blanks of a claim that is too long for its column, and so make it that of another.
#[test]
fn a_document_that_names_no_owner_gets_the_claim() {
    let mut writable = testing::depts();
    let key_type = KeyType::Text;
    writable.owner = Some(OwnerColumn {
        column: 1,
        key_type,
    });
    let rows_with = |body: &str, claim| {
        let (mut rows, scratch) = (Rows::of(&writable), &mut Scratch::default());
        let read = rows_of(
            &writable,
            body.as_bytes(),
            INSERT,
            claim,
            scratch,
            &mut rows,
        );
        read.map(|()| rows)
    };
    assert!(rows_with(r#"{"no":1}"#, None).is_err());
    let rows = rows_with(r#"{"no":1}"#, Some("anna")).unwrap();
    assert_eq!(rows.levels[0].columns[1], [text("anna")]);
    assert_eq!(writable.foreign_document(&rows, Some("anna")), None);
    assert_eq!(writable.foreign_document(&rows, Some("bert")), Some(0));
    assert_eq!(writable.foreign_document(&rows, None), Some(0));
    let named = rows_with(r#"{"no":1,"a/b":"bert"}"#, Some("anna")).unwrap();
    assert_eq!(named.levels[0].columns[1], [text("bert")]);
    let long = "anna       ";
    let rows = rows_with(r#"{"no":1}"#, Some(long)).unwrap();
    assert_eq!(writable.foreign_document(&rows, Some(long)), Some(0));
}
