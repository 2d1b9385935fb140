//! Arrays and composite values, as their input functions read them: every part in quotes.

use crate::resource::body::parse::{Json, JsonNode};
use crate::resource::body::{Faults, values};
use crate::resource::value::ValueType;
use crate::resource::writable::ColumnInput;

/// Dimensions of an array, at most (PostgreSQL's `MAXDIM`).
const DIMENSIONS_MAX: usize = 6;

/// An array of `length` values.
pub(super) fn array(
    element: &ValueType,
    node: JsonNode<'_>,
    length: usize,
    faults: &mut Faults,
) -> Option<String> {
    let before = faults.found.len();
    let mut array = Array {
        element,
        lengths: Vec::new(),
        innermost: None,
        text: String::new(),
    };
    array.dimension(0, node, length, faults);
    (faults.found.len() == before).then_some(array.text)
}

struct Array<'e> {
    element: &'e ValueType,
    /// The length of each dimension.
    lengths: Vec<usize>,
    /// The dimension of the elements, as soon as one is reached.
    innermost: Option<usize>,
    text: String,
}

impl Array<'_> {
    /// One array of dimension `depth`.
    fn dimension(&mut self, depth: usize, node: JsonNode<'_>, length: usize, faults: &mut Faults) {
        match self.lengths.get(depth) {
            None => self.lengths.push(length),
            Some(known) if *known == length => {}
            Some(_) => faults.add("must be as long as the arrays beside it"),
        }
        if depth > 0 && length == 0 {
            faults.add("must not be empty");
        }
        self.text.push('{');
        for (place, element) in node.elements().enumerate() {
            if faults.are_full() {
                return;
            }
            if place > 0 {
                self.text.push(',');
            }
            let outside = faults.enter_place(place);
            self.item(depth, element, faults);
            faults.leave(outside);
        }
        self.text.push('}');
    }

    fn item(&mut self, depth: usize, node: JsonNode<'_>, faults: &mut Faults) {
        if let ValueType::Json | ValueType::Jsonb = self.element {
            let given = values::given(self.element, true, node, faults);
            return self.push(given);
        }
        match node.json() {
            Json::Array(_) if self.innermost == Some(depth) => {
                faults.add("must not be an array, as the values beside it are none");
            }
            Json::Array(_) if depth + 1 == DIMENSIONS_MAX => {
                faults.add(format!("must not nest {DIMENSIONS_MAX} arrays or more"));
            }
            Json::Array(length) => self.dimension(depth + 1, node, length, faults),
            _ if self.lengths.len() > depth + 1 => {
                faults.add("must be an array, as those beside it are");
            }
            Json::Null => {
                self.innermost = Some(depth);
                self.push(Some(ColumnInput::Null));
            }
            json => {
                self.innermost = Some(depth);
                let text = values::text(self.element, node, json, faults);
                self.push(text.map(ColumnInput::Text));
            }
        }
    }

    fn push(&mut self, given: Option<ColumnInput>) {
        match given {
            Some(ColumnInput::Text(text)) => {
                self.text.push('"');
                for character in text.chars() {
                    if matches!(character, '"' | '\\') {
                        self.text.push('\\');
                    }
                    self.text.push(character);
                }
                self.text.push('"');
            }
            _ => self.text.push_str("NULL"),
        }
    }
}

/// The attributes of an object; those that it lacks are null.
pub(super) fn composite(
    attributes: &[(String, ValueType)],
    node: JsonNode<'_>,
    faults: &mut Faults,
) -> Option<String> {
    let before = faults.found.len();
    let mut given: Vec<Option<ColumnInput>> = vec![None; attributes.len()];
    for (name, value) in node.members() {
        if faults.are_full() {
            break;
        }
        let name = name.as_str();
        let known = attributes.iter().position(|(known, _)| known == name);
        let slot = known.and_then(|at| Some((&attributes[at].1, given.get_mut(at)?)));
        faults.within(name, |faults| match slot {
            Some((attribute, slot @ None)) => {
                let read = values::given(attribute, true, value, faults);
                *slot = Some(read.unwrap_or(ColumnInput::Null));
            }
            Some(_) => faults.add("is given twice"),
            None => faults.add("is no attribute of this column's type"),
        });
    }
    let mut text = String::from("(");
    for (place, given) in given.into_iter().enumerate() {
        if place > 0 {
            text.push(',');
        }
        if let Some(ColumnInput::Text(value)) = given {
            text.push('"');
            text.push_str(&value.replace('\\', "\\\\").replace('"', "\"\""));
            text.push('"');
        }
    }
    text.push(')');
    (faults.found.len() == before).then_some(text)
}
