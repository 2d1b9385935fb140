//! The rows of a document, out of its JSON.

#[cfg(test)]
mod tests;

use crate::resource::body::parse::{Json, JsonNode, Scratch, with_json};
use crate::resource::body::{BodyError, Faults, Mode, values};
use crate::resource::writable::{ColumnInput, LevelRows, MemberKind, Rows, Writable};

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
    let read = with_json(body, scratch, |body| reader.document(body));
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
    fn document(&mut self, body: JsonNode<'_>) {
        let Json::Object(_) = body.json() else {
            return self.faults.add("must be an object");
        };
        let number = self.rows.documents() as u32;
        self.row(0, number, 0, body);
        self.take_key();
        self.require_hidden();
        for level in 1..self.writable.levels.len() {
            self.take_links(level);
        }
        for level in 1..self.writable.levels.len() {
            self.check_duplicates(level);
        }
    }

    /// The row of level `number` that `object` means.
    fn row(&mut self, number: usize, parent: u32, place: u32, object: JsonNode<'_>) {
        let level = &self.writable.levels[number];
        let row = self.rows.levels[number].add(parent, place);
        let outer = self.seen.len();
        self.seen.resize(outer + level.members.len(), false);
        let mut expected = 0;
        for (name, value) in object.members() {
            if self.faults.are_full() {
                break;
            }
            let name = name.as_str();
            let refusal = match level.member_at(name, expected) {
                Some(at) if !self.seen[outer + at] => {
                    self.seen[outer + at] = true;
                    expected = at + 1;
                    self.member(number, row, at, value);
                    continue;
                }
                Some(_) => "is given twice",
                None => "is no member of this object",
            };
            self.faults.within(name, |faults| faults.add(refusal));
        }
        for (at, member) in level.members.iter().enumerate() {
            if let MemberKind::Column(column) = member.kind
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
    fn member(&mut self, number: usize, row: usize, at: usize, value: JsonNode<'_>) {
        let level = &self.writable.levels[number];
        let member = &level.members[at];
        match member.kind {
            MemberKind::Column(at) if !level.columns[at].generated => {
                let column = &level.columns[at];
                // What a link or the path decides is compared with that later.
                let nullable = if self.is_decided(number, at) {
                    true
                } else {
                    column.nullable && !(number == 0 && level.key.contains(&at))
                };
                let read =
                    |faults: &mut Faults| values::given(&column.value, nullable, value, faults);
                if let Some(given) = self.faults.within(&member.name, read) {
                    self.rows.levels[number].columns[at][row] = given;
                }
            }
            MemberKind::Rows(below) => self.rows_below(below, row as u32, &member.name, value),
            // They are only read.
            MemberKind::Column(_) | MemberKind::Lookup => {}
        }
    }

    /// The rows of level `number` below a row, which are the elements of `array`.
    fn rows_below(&mut self, number: usize, upper: u32, name: &str, array: JsonNode<'_>) {
        let outside = self.faults.enter(name);
        if !matches!(array.json(), Json::Array(_)) {
            self.faults.add("must be an array");
        }
        for (place, element) in array.elements().enumerate() {
            if self.faults.are_full() {
                break;
            }
            let array = self.faults.enter_place(place);
            match element.json() {
                Json::Object(_) => self.row(number, upper, place as u32, element),
                _ => self.faults.add("must be an object"),
            }
            self.faults.leave(array);
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
                ColumnInput::Absent => false,
                ColumnInput::Null => true,
                ColumnInput::Text(text) => *text != **part,
            };
            *slot = ColumnInput::Text(part.clone().into_owned());
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
                    (_, ColumnInput::Text(_)) if *slot == value => None,
                    (ColumnInput::Absent, ColumnInput::Text(_)) => None,
                    (_, ColumnInput::Text(_)) => {
                        Some("must equal that of the object above, or be left out")
                    }
                    (_, ColumnInput::Null) if blameless => {
                        Some("needs a value in the object above")
                    }
                    (_, ColumnInput::Absent) if !blameless || told.field.is_none() => None,
                    (_, ColumnInput::Absent) if told.default.is_none() => {
                        Some("needs a value in the object above")
                    }
                    (ColumnInput::Absent, _) => None,
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
        let known = |row: &usize| key(row).all(|part| matches!(part, ColumnInput::Text(_)));
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
                "has the same key as another object of this level",
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
