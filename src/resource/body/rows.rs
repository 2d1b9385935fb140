//! The rows of a document, out of its JSON.

use crate::resource::body::parse::{Scratch, Token, Tokens, with_tokens};
use crate::resource::body::{BodyError, Faults, Mode, values};
use crate::resource::writable::{Given, LevelRows, Means, Rows, Writable};

/// Adds the rows of the document `body` to `into`, which holds rows of `writable`.
///
/// Columns of links come from the row above, and those of the key in `mode` from there.
/// # Errors
/// [`BodyError`]; `into` is then as it was.
pub fn rows_of(
    writable: &Writable,
    body: &[u8],
    mode: Mode<'_>,
    scratch: &mut Scratch,
    into: &mut Rows,
) -> Result<(), BodyError> {
    let mut reader = Reader {
        writable,
        mode,
        before: into.levels.iter().map(LevelRows::count).collect(),
        rows: into,
        faults: Faults::default(),
        seen: Vec::new(),
    };
    let read = with_tokens(body, scratch, |tokens| reader.document(tokens));
    if read.is_ok() && reader.faults.found.is_empty() {
        return Ok(());
    }
    for (level, &before) in reader.rows.levels.iter_mut().zip(&reader.before) {
        level.truncate(before);
    }
    let faults = reader.faults.found;
    Err(read.map_or_else(BodyError::Malformed, |()| BodyError::Faults(faults)))
}

struct Reader<'r> {
    writable: &'r Writable,
    mode: Mode<'r>,
    rows: &'r mut Rows,
    /// The rows of each level that are of other documents.
    before: Vec<usize>,
    faults: Faults,
    /// Which members of the objects at hand have been met, the outermost first.
    seen: Vec<bool>,
}

impl<'r> Reader<'r> {
    fn document(&mut self, tokens: &mut Tokens<'_>) {
        let Token::Object(length) = tokens.next() else {
            return self.faults.add("must be an object");
        };
        let number = self.rows.documents() as u32;
        self.row(0, number, 0, length, tokens);
        self.take_key();
        self.require_hidden();
        for level in 1..self.writable.levels.len() {
            self.take_links(level);
        }
        for level in 1..self.writable.levels.len() {
            self.check_duplicates(level);
        }
    }

    /// The object of a row of level `number`, whose token has been read.
    fn row(
        &mut self,
        number: usize,
        parent: u32,
        place: u32,
        length: usize,
        tokens: &mut Tokens<'_>,
    ) {
        let level = &self.writable.levels[number];
        let row = self.rows.levels[number].add(parent, place);
        let outer = self.seen.len();
        self.seen.resize(outer + level.members.len(), false);
        let mut expected = 0;
        for _ in 0..length {
            if self.faults.are_full() {
                break;
            }
            let name = tokens.name();
            let refusal = match level.member_at(name, expected) {
                Some(at) if !self.seen[outer + at] => {
                    self.seen[outer + at] = true;
                    expected = at + 1;
                    self.member(number, row, at, tokens);
                    continue;
                }
                Some(_) => "is given twice",
                None => "is no member of this object",
            };
            tokens.raw(|_| {});
            self.faults.within(name, |faults| faults.add(refusal));
        }
        for (at, member) in level.members.iter().enumerate() {
            if let Means::Column(column) = member.means
                && !self.seen[outer + at]
                && self.is_required(number, column)
            {
                self.faults
                    .within(&member.name, |faults| faults.add("is required"));
            }
        }
        self.seen.truncate(outer);
    }

    /// The value of the member `at` of a row.
    fn member(&mut self, number: usize, row: usize, at: usize, tokens: &mut Tokens<'_>) {
        let level = &self.writable.levels[number];
        let member = &level.members[at];
        match member.means {
            Means::Column(at) if !level.columns[at].generated => {
                let column = &level.columns[at];
                // What a link or the path decides is compared with that later.
                let nullable = match self.is_decided(number, at) {
                    true => true,
                    false => column.nullable && !(number == 0 && level.key.contains(&at)),
                };
                let read =
                    |faults: &mut Faults| values::given(&column.value, nullable, tokens, faults);
                if let Some(given) = self.faults.within(&member.name, read) {
                    self.rows.levels[number].columns[at][row] = given;
                }
            }
            Means::Rows(below) => self.rows_below(below, row as u32, &member.name, tokens),
            // They are only read.
            Means::Column(_) | Means::Lookup => {
                tokens.raw(|_| {});
            }
        }
    }

    /// The array of the rows of level `number` below a row.
    fn rows_below(&mut self, number: usize, upper: u32, name: &str, tokens: &mut Tokens<'_>) {
        let outside = self.faults.enter(name);
        match tokens.next() {
            Token::Array(length) => {
                for place in 0..length {
                    if self.faults.are_full() {
                        break;
                    }
                    let array = self.faults.enter_place(place);
                    match tokens.next() {
                        Token::Object(length) => {
                            self.row(number, upper, place as u32, length, tokens)
                        }
                        token => {
                            tokens.leave(token, |_| {});
                            self.faults.add("must be an object");
                        }
                    }
                    self.faults.leave(array);
                }
            }
            token => {
                tokens.leave(token, |_| {});
                self.faults.add("must be an array");
            }
        }
        self.faults.leave(outside);
    }

    /// Whether the path or the row above says what the column `at` holds.
    fn is_decided(&self, number: usize, at: usize) -> bool {
        let level = &self.writable.levels[number];
        let in_path = matches!(self.mode, Mode::Replace(_));
        (number == 0 && in_path && level.key.contains(&at))
            || level.link.iter().any(|(own, _)| *own == at)
    }

    /// Whether a row must say what the column `at` holds.
    fn is_required(&self, number: usize, at: usize) -> bool {
        let level = &self.writable.levels[number];
        let column = &level.columns[at];
        let nullable = column.nullable && !(number == 0 && level.key.contains(&at));
        !nullable && column.default.is_none() && !column.generated && !self.is_decided(number, at)
    }

    /// A key that is not shown must come from the path or by default.
    fn require_hidden(&mut self) {
        let level = &self.writable.levels[0];
        for &at in &level.key {
            let column = &level.columns[at];
            if column.field.is_none() && self.is_required(0, at) {
                let name = &column.column;
                self.faults.add(format!(
                    "can't be inserted: its key's column {name} is no field and has no default"
                ));
            }
        }
    }

    /// Takes the root's key from the path, which the body may only repeat.
    fn take_key(&mut self) {
        let (Mode::Replace(parts), Some(level)) = (self.mode, self.writable.levels.first()) else {
            return;
        };
        for (part, &at) in parts.iter().zip(&level.key) {
            let Some(slot) = self.rows.levels[0].columns[at].last_mut() else {
                return;
            };
            let differs = match slot {
                Given::Absent => false,
                Given::Null => true,
                Given::Text(text) => *text != **part,
            };
            *slot = Given::Text(part.clone().into_owned());
            if let (true, Some(field)) = (differs, &level.columns[at].field) {
                let message = "must equal the key in the path, or be left out";
                self.faults.within(field, |faults| faults.add(message));
            }
        }
    }

    /// Takes the columns by which the rows of a level belong to the level above from there.
    fn take_links(&mut self, number: usize) {
        let level = &self.writable.levels[number];
        let Some(above) = level.parent else {
            return;
        };
        let blameless = self.faults.found.is_empty();
        for row in self.before[number]..self.rows.levels[number].count() {
            let upper_row = self.rows.levels[number].parents[row] as usize;
            for &(own, upper) in &level.link {
                let value = self.rows.levels[above].columns[upper][upper_row].clone();
                let told = &self.writable.levels[above].columns[upper];
                let slot = &mut self.rows.levels[number].columns[own][row];
                // What was faulty above is absent there.
                let fault = match (&*slot, &value) {
                    (_, Given::Text(_)) if *slot == value => None,
                    (Given::Absent, Given::Text(_)) => None,
                    (_, Given::Text(_)) => {
                        Some("must equal that of the object above, or be left out")
                    }
                    (_, Given::Null) if blameless => Some("needs a value in the object above"),
                    (_, Given::Absent) if !blameless || told.field.is_none() => None,
                    (_, Given::Absent) if told.default.is_none() => {
                        Some("needs a value in the object above")
                    }
                    (Given::Absent, _) => None,
                    _ => Some("must be left out, as the object above gets it by default"),
                };
                *slot = value;
                if let Some(message) = fault {
                    let field = level.columns[own].field.as_deref();
                    self.fault_at(number, row, field, message);
                }
            }
        }
    }

    /// Two rows of a document with the same key can't both be meant.
    fn check_duplicates(&mut self, number: usize) {
        let level = &self.writable.levels[number];
        let columns = &self.rows.levels[number].columns;
        let key = |row: &usize| {
            let row = *row;
            level.key.iter().map(move |&at| &columns[at][row])
        };
        let known = |row: &usize| key(row).all(|part| matches!(part, Given::Text(_)));
        let rows = self.before[number]..self.rows.levels[number].count();
        let mut rows: Vec<usize> = rows.filter(known).collect();
        rows.sort_by(|one, other| key(one).cmp(key(other)));
        let pairs = rows.array_windows();
        let same = pairs.filter(|[one, other]| key(one).eq(key(other)));
        let mut same: Vec<usize> = same.map(|[_, other]| *other).collect();
        same.sort_unstable();
        for row in same {
            self.fault_at(
                number,
                row,
                None,
                "has the same key as another object of this array",
            );
        }
    }

    /// A fault in a row that has been read.
    fn fault_at(&mut self, number: usize, row: usize, field: Option<&str>, message: &str) {
        self.faults.path = self.writable.pointer(self.rows, number, row);
        match field {
            Some(field) => self.faults.within(field, |faults| faults.add(message)),
            None => self.faults.add(message),
        }
        self.faults.path.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::resource::body::{FAULTS_MAX, testing};
    use crate::resource::value::ValueType;

    const INSERT: Mode<'_> = Mode::Insert;

    /// The rows of `body`, or its faults as `pointer message`.
    fn read(writable: &Writable, body: &str, mode: Mode<'_>) -> Result<Rows, Vec<String>> {
        let mut rows = Rows::of(writable);
        match rows_of(
            writable,
            body.as_bytes(),
            mode,
            &mut Scratch::default(),
            &mut rows,
        ) {
            Ok(()) => Ok(rows),
            Err(error) => {
                assert_eq!(rows, Rows::of(writable));
                Err(match error {
                    BodyError::Malformed(why) => vec![why],
                    BodyError::Faults(faults) => faults
                        .into_iter()
                        .map(|fault| format!("{} {}", fault.pointer, fault.message))
                        .collect(),
                })
            }
        }
    }

    fn text(text: &str) -> Given {
        Given::Text(text.to_owned())
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
        let absent = Given::Absent;
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
            rows_of(&writable, body.as_bytes(), INSERT, &mut scratch, &mut rows).is_ok()
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
        let replace = Mode::Replace(&parts);
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
    fn all_faults_are_told_with_their_places() {
        let writable = testing::depts();
        let body = r#"{"a/b":"12345678901","loc":5,"loc":6,"no":9223372036854775808,"x~":1,"data":"\u0000",
            "emps":[{"sal":99999.999},7,{"dept":3,"notes":{}},{"empno":null,"notes":[{"id":1.5}]},
            {"empno":2},{"empno":2}],"site":1}"#;
        assert_eq!(
            read(&writable, body, INSERT).unwrap_err(),
            [
                "/a~1b must be at most 10 characters long",
                "/loc must be a string",
                "/loc is given twice",
                "/no must be an integer from -9223372036854775808 to 9223372036854775807",
                "/x~0 is no member of this object",
                "/data must not contain \\u0000, which jsonb does not hold",
                "/emps/0/sal must be a number that numeric(7,2) holds, 5 digits before the point",
                "/emps/1 must be an object",
                "/emps/2/notes must be an array",
                "/emps/3/empno must not be null",
                "/emps/3/notes/0/id must be an integer from -2147483648 to 2147483647",
                "/emps/3/notes/0/text is required",
                "/emps/5 has the same key as another object of this array",
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
            FAULTS_MAX
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
        writable.levels[0].columns[2].default = Some("'y'".to_owned());
        let rows = read(&writable, &with(""), INSERT).unwrap();
        assert_eq!(rows.levels[1].columns[1], [Given::Absent]);
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
            if rows_of(&writable, &damaged, INSERT, &mut scratch, &mut rows).is_err() {
                assert_eq!(rows, before);
            }
            if rows.documents() > 50 {
                rows.clear();
            }
        }
    }
}
