//! From the JSON of a document to its rows.

#[cfg(test)]
mod tests;

use crate::resource::body::parse::{Json, JsonNode, Scratch, with_json};
use crate::resource::body::{BodyError, Mismatches, WriteMode, values};
use crate::resource::value::ValueType;
use crate::resource::writable::{ColumnInput, LevelRows, MemberKind, OwnerColumn, Rows, Writable};

/// Adds the rows of the document `body` to `into`, which has rows of `writable`.
///
/// The columns of links come from the row above. If `mode` has a key, the key's columns come from there. If there is a
/// `claim`, it is the owner of a document that names none.
/// # Errors
/// [`BodyError`]; `into` is then unchanged.
pub fn rows_of(
    writable: &Writable,
    body: &[u8],
    mode: WriteMode<'_>,
    claim: Option<&str>,
    scratch: &mut Scratch,
    into: &mut Rows,
) -> Result<(), BodyError> {
    let mut reader = RowReader {
        writable,
        mode,
        owner: writable.owner.as_ref().zip(claim),
        before: into.levels.iter().map(LevelRows::count).collect(),
        rows: into,
        mismatches: Mismatches::default(),
        seen: Vec::new(),
    };
    let read = with_json(body, scratch, |body| reader.document(body));
    if read.is_ok() && reader.mismatches.found.is_empty() {
        return Ok(());
    }
    for (level, &before) in reader.rows.levels.iter_mut().zip(&reader.before) {
        level.truncate(before);
    }
    let mismatches = reader.mismatches.found;
    Err(read.map_or_else(BodyError::Malformed, |()| BodyError::Mismatches(mismatches)))
}

struct RowReader<'r> {
    writable: &'r Writable,
    mode: WriteMode<'r>,
    /// The owner of a document that names none.
    owner: Option<(&'r OwnerColumn, &'r str)>,
    rows: &'r mut Rows,
    /// The number of rows of each level that belong to other documents.
    before: Vec<usize>,
    mismatches: Mismatches,
    /// Which members the objects that are being read have had so far, the outermost object first.
    seen: Vec<bool>,
}

impl<'r> RowReader<'r> {
    fn document(&mut self, body: JsonNode<'_>) {
        let Json::Object(_) = body.json() else {
            return self.mismatches.add("must be an object");
        };
        let number = self.rows.documents() as u32;
        self.row(0, number, 0, body);
        self.set_key();
        self.set_owner();
        self.require_hidden();
        for level in 1..self.writable.levels.len() {
            self.set_links(level);
        }
        for level in 1..self.writable.levels.len() {
            self.check_duplicates(level);
        }
    }

    /// Reads `object` as a row of level `number`.
    fn row(&mut self, number: usize, parent: u32, place: u32, object: JsonNode<'_>) {
        let level = &self.writable.levels[number];
        let row = self.rows.levels[number].add(parent, place);
        let outer = self.seen.len();
        self.seen.resize(outer + level.members.len(), false);
        let mut expected = 0;
        for (name, value) in object.members() {
            if self.mismatches.are_full() {
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
                None => "is not a member of this object",
            };
            self.mismatches
                .within(name, |mismatches| mismatches.add(refusal));
        }
        for (at, member) in level.members.iter().enumerate() {
            if let MemberKind::Column(column) = member.kind
                && !self.seen[outer + at]
                && self.is_required(number, column)
            {
                self.mismatches
                    .within(&member.name, |mismatches| mismatches.add("is required"));
            }
        }
        self.seen.truncate(outer);
    }

    /// Reads the value of the member `at` of a row.
    fn member(&mut self, number: usize, row: usize, at: usize, value: JsonNode<'_>) {
        let level = &self.writable.levels[number];
        let member = &level.members[at];
        match member.kind {
            MemberKind::Column(at) if !level.columns[at].generated => {
                let column = &level.columns[at];
                let is_new = matches!(self.mode, WriteMode::Insert) && value.json() != Json::Null;
                if let (true, false, Some(why)) = (is_new, column.is_inserted(), column.read_only())
                {
                    return self
                        .mismatches
                        .within(&member.name, |mismatches| mismatches.add(why));
                }
                // A value that a link or the path determines is compared with that later.
                let nullable = if self.is_determined(number, at) {
                    true
                } else {
                    // Where SQL's null is none, JSON's null is a value of `json`.
                    let is_json = matches!(column.value, ValueType::Json | ValueType::Jsonb);
                    level.may_be_null(at) && (column.nullable || !is_json)
                };
                let read = |mismatches: &mut Mismatches| {
                    let given = values::read_input(&column.value, nullable, value, mismatches)?;
                    let (Some(key_type), ColumnInput::Text(text)) = (column.key_type, &given)
                    else {
                        return Some(given);
                    };
                    let canonical = key_type.canonical_input(text);
                    let canonical = canonical.map_err(|why| mismatches.add(why)).ok()?;
                    Some(ColumnInput::Text(key_type.input(&canonical)))
                };
                if let Some(given) = self.mismatches.within(&member.name, read) {
                    self.rows.levels[number].columns[at][row] = given;
                }
            }
            MemberKind::Rows(below) => self.rows_below(below, row as u32, &member.name, value),
            // They are read-only.
            MemberKind::Column(_) | MemberKind::Lookup => {}
        }
    }

    /// Reads the elements of `array` as rows of level `number` below the row `upper`.
    fn rows_below(&mut self, number: usize, upper: u32, name: &str, array: JsonNode<'_>) {
        let outside = self.mismatches.enter(name);
        if !matches!(array.json(), Json::Array(_)) {
            self.mismatches.add("must be an array");
        }
        for (place, element) in array.elements().enumerate() {
            if self.mismatches.are_full() {
                break;
            }
            let array = self.mismatches.enter_element(place);
            match element.json() {
                Json::Object(_) => self.row(number, upper, place as u32, element),
                _ => self.mismatches.add("must be an object"),
            }
            self.mismatches.leave(array);
        }
        self.mismatches.leave(outside);
    }

    /// Whether the path or the row above determines the value of the column `at`.
    fn is_determined(&self, number: usize, at: usize) -> bool {
        let level = &self.writable.levels[number];
        let in_path = matches!(self.mode, WriteMode::Replace(_));
        (number == 0 && in_path && level.key.contains(&at))
            || level.link.iter().any(|(own, _)| *own == at)
    }

    /// Whether a row must have a value for the column `at`.
    fn is_required(&self, number: usize, at: usize) -> bool {
        let level = &self.writable.levels[number];
        let column = &level.columns[at];
        !level.may_be_null(at)
            && !column.has_default
            && column.is_inserted()
            && !self.is_determined(number, at)
            && !self.is_owner(number, at)
    }

    /// Whether the column `at` holds the owner. Its value is known: the claim.
    fn is_owner(&self, number: usize, at: usize) -> bool {
        number == 0 && self.owner.is_some_and(|(owner, _)| owner.column == at)
    }

    /// A key that the document does not show must come from the path, or have a default.
    fn require_hidden(&mut self) {
        let level = &self.writable.levels[0];
        for (number, &at) in level.key.iter().enumerate() {
            if level.columns[at].field.is_none() && self.is_required(0, at) {
                let part = match level.key.len() {
                    1 => "the key".to_owned(),
                    _ => format!("part {} of the key", number + 1),
                };
                self.mismatches.add(format!(
                    "can't be inserted: {part} is not a field of the document and has no default"
                ));
            }
        }
    }

    /// Sets the root's key to that in the path. If the body has the key, it must be the same.
    fn set_key(&mut self) {
        let (WriteMode::Replace(parts), Some(level)) = (self.mode, self.writable.levels.first())
        else {
            return;
        };
        for (part, &at) in parts.iter().zip(&level.key) {
            let Some(slot) = self.rows.levels[0].columns[at].last_mut() else {
                return;
            };
            let column = &level.columns[at];
            let part = match column.key_type {
                Some(key_type) => key_type.input(part),
                None => part.clone().into_owned(),
            };
            let differs = match slot {
                ColumnInput::Absent => false,
                ColumnInput::Null => true,
                ColumnInput::Text(text) => *text != part,
            };
            *slot = ColumnInput::Text(part.clone());
            if let ValueType::Text { max: Some(max) } = column.value
                && part.chars().count() > max as usize
                && part.trim_end_matches(' ').chars().count() <= max as usize
            {
                self.mismatches.add(format!(
                    "can't have the key in the path, since PostgreSQL would remove its blanks beyond {max} characters"
                ));
            }
            if let (true, Some(field)) = (differs, &column.field) {
                let message = "must equal the key in the path, or be left out";
                self.mismatches
                    .within(field, |mismatches| mismatches.add(message));
            }
        }
    }

    /// Sets the owner, unless the body has one.
    fn set_owner(&mut self) {
        let Some((owner, claim)) = self.owner else {
            return;
        };
        let is_inserted = self.writable.levels[0].columns[owner.column].is_inserted();
        let slot = self.rows.levels[0].columns[owner.column].last_mut();
        if let Some(slot) = slot.filter(|slot| is_inserted && **slot == ColumnInput::Absent) {
            *slot = ColumnInput::Text(owner.key_type.input(claim));
        }
    }

    /// Sets the columns that link the rows of a level to those of the level above.
    fn set_links(&mut self, number: usize) {
        let level = &self.writable.levels[number];
        let Some(above) = level.parent else {
            return;
        };
        let is_valid = self.mismatches.found.is_empty();
        for row in self.before[number]..self.rows.levels[number].count() {
            let upper_row = self.rows.levels[number].parents[row] as usize;
            for &(own, upper) in &level.link {
                let value = self.rows.levels[above].columns[upper][upper_row].clone();
                let upper_level = &self.writable.levels[above];
                let upper_column = &upper_level.columns[upper];
                // One that links the row above has the value of the row above that one, or was refused there.
                let is_given_later = upper_level.has_before_insert
                    || upper_column.has_default
                    || upper_level.link.iter().any(|(linked, _)| *linked == upper);
                let slot = &mut self.rows.levels[number].columns[own][row];
                // A value above that did not fit is absent.
                let mismatch = match (&*slot, &value) {
                    (_, ColumnInput::Text(_)) if *slot == value => None,
                    (ColumnInput::Absent, ColumnInput::Text(_)) => None,
                    (_, ColumnInput::Text(_)) => {
                        Some("must equal that of the object above, or be left out")
                    }
                    (_, ColumnInput::Null) if is_valid && !upper_level.has_before_insert => {
                        Some("needs a value in the object above")
                    }
                    (_, ColumnInput::Absent) if !is_valid || upper_column.field.is_none() => None,
                    (_, ColumnInput::Absent) if !is_given_later => {
                        Some("needs a value in the object above")
                    }
                    (ColumnInput::Absent, _) => None,
                    _ => Some("must be left out, as the object above gets it by default"),
                };
                *slot = value;
                if let Some(message) = mismatch {
                    let field = level.columns[own].field.as_deref();
                    self.mismatch_at(number, row, field, message);
                }
            }
        }
    }

    /// Adds a mismatch for each row that has the same key as an earlier row of the document.
    fn check_duplicates(&mut self, number: usize) {
        let level = &self.writable.levels[number];
        let columns = &self.rows.levels[number].columns;
        let key = |row: &usize| {
            let row = *row;
            level.key.iter().map(move |&at| &columns[at][row])
        };
        let is_text = |part: &ColumnInput| matches!(part, ColumnInput::Text(_));
        // A part of the link is absent while the row above has no value for it. Then its number stands for the value.
        let above = |row: &usize| {
            let has_link = key(row).all(is_text);
            (!has_link).then(|| self.rows.levels[number].parents[*row])
        };
        let is_linked = |at: &usize| level.link.iter().any(|(own, _)| own == at);
        let known = |row: &usize| {
            let mut parts = level.key.iter().zip(key(row));
            parts.all(|(at, part)| is_text(part) || is_linked(at))
        };
        let compare = |one: &usize, other: &usize| {
            let order = above(one).cmp(&above(other));
            order.then_with(|| key(one).cmp(key(other)))
        };
        let rows = self.before[number]..self.rows.levels[number].count();
        let mut rows: Vec<usize> = rows.filter(known).collect();
        rows.sort_by(compare);
        let pairs = rows.array_windows();
        let same = pairs.filter(|[one, other]| compare(one, other).is_eq());
        let mut same: Vec<usize> = same.map(|[_, other]| *other).collect();
        same.sort_unstable();
        for row in same {
            self.mismatch_at(
                number,
                row,
                None,
                "has the same key as another object of this level",
            );
        }
    }

    /// Adds a mismatch in a row that has been read.
    fn mismatch_at(&mut self, number: usize, row: usize, field: Option<&str>, message: &str) {
        self.mismatches.path = self.writable.pointer(self.rows, number, row);
        match field {
            Some(field) => self
                .mismatches
                .within(field, |mismatches| mismatches.add(message)),
            None => self.mismatches.add(message),
        }
        self.mismatches.path.clear();
    }
}
