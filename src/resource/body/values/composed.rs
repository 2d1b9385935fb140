//! The texts of arrays and composite values for PostgreSQL's input functions, with every part in quotes.

use crate::resource::body::parse::{Json, JsonNode};
use crate::resource::body::values::scalar;
use crate::resource::body::{Mismatches, values};
use crate::resource::value::ValueType;
use crate::resource::writable::ColumnInput;

/// The most dimensions of an array (PostgreSQL's `MAXDIM`).
const DIMENSIONS_MAX: usize = 6;

/// The text of an array of `length` values.
pub(super) fn array(
    element: &ValueType,
    node: JsonNode<'_>,
    length: usize,
    mismatches: &mut Mismatches,
) -> Option<String> {
    let before = mismatches.found.len();
    let mut array = Array {
        element,
        lengths: Vec::new(),
        innermost: None,
        text: String::new(),
    };
    array.dimension(0, node, length, mismatches);
    (mismatches.found.len() == before).then_some(array.text)
}

struct Array<'e> {
    element: &'e ValueType,
    /// The length of each dimension.
    lengths: Vec<usize>,
    /// The dimension that the elements are in; `None` before the first element.
    innermost: Option<usize>,
    text: String,
}

impl Array<'_> {
    /// Adds one array of dimension `depth`.
    fn dimension(
        &mut self,
        depth: usize,
        node: JsonNode<'_>,
        length: usize,
        mismatches: &mut Mismatches,
    ) {
        match self.lengths.get(depth) {
            None => self.lengths.push(length),
            Some(known) if *known == length => {}
            Some(_) => mismatches.add("must be as long as the arrays beside it"),
        }
        if depth > 0 && length == 0 {
            mismatches.add("must not be empty");
        }
        self.text.push('{');
        for (place, element) in node.elements().enumerate() {
            if mismatches.are_full() {
                return;
            }
            if place > 0 {
                self.text.push(',');
            }
            let outside = mismatches.enter_element(place);
            self.item(depth, element, mismatches);
            mismatches.leave(outside);
        }
        self.text.push('}');
    }

    fn item(&mut self, depth: usize, node: JsonNode<'_>, mismatches: &mut Mismatches) {
        if let ValueType::Json | ValueType::Jsonb = self.element {
            let given = values::read_input(self.element, true, node, mismatches);
            return self.push(given);
        }
        match node.json() {
            Json::Array(_) if self.innermost == Some(depth) => {
                mismatches.add("must not be an array, since the values beside it are not");
            }
            Json::Array(_) if depth + 1 == DIMENSIONS_MAX => {
                mismatches.add(format!(
                    "must not be an array: PostgreSQL's arrays have at most {DIMENSIONS_MAX} dimensions"
                ));
            }
            Json::Array(length) => self.dimension(depth + 1, node, length, mismatches),
            _ if self.lengths.len() > depth + 1 => {
                mismatches.add("must be an array, since the values beside it are");
            }
            Json::Null => {
                self.innermost = Some(depth);
                self.push(Some(ColumnInput::Null));
            }
            json => {
                self.innermost = Some(depth);
                let text = values::text(self.element, node, json, mismatches);
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

/// The JSON that PostgreSQL's `to_json` makes of the value that a document has as `node`, as far as it is such a value.
pub(super) fn to_json_form(value: &ValueType, node: JsonNode<'_>) -> String {
    let json = node.json();
    match (value, json) {
        (ValueType::Array(element), Json::Array(_)) => {
            let elements = node.elements().map(|item| match item.json() {
                Json::Array(_) => to_json_form(value, item),
                _ => to_json_form(element, item),
            });
            format!("[{}]", elements.collect::<Vec<_>>().join(","))
        }
        (ValueType::Composite(attributes), Json::Object(_)) => {
            let members = node.members().map(|(name, item)| {
                let known = attributes.iter().find(|(known, _)| known == name.as_str());
                let attribute = known.map_or(&ValueType::Other, |(_, attribute)| attribute);
                let name = String::from_utf8_lossy(name.text());
                format!("{name}:{}", to_json_form(attribute, item))
            });
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
        _ => match (value, scalar::text(value, json)) {
            (ValueType::Timestamp, Ok(text)) => format!("\"{}\"", text.replacen("+00:00", "", 1)),
            (ValueType::Bytea, Ok(text)) => format!("\"\\{text}\""),
            _ => String::from_utf8_lossy(node.text()).into_owned(),
        },
    }
}

/// The text of a composite value. Attributes that the object lacks are null.
pub(super) fn composite(
    attributes: &[(String, ValueType)],
    node: JsonNode<'_>,
    mismatches: &mut Mismatches,
) -> Option<String> {
    let before = mismatches.found.len();
    let mut given: Vec<Option<ColumnInput>> = vec![None; attributes.len()];
    for (name, value) in node.members() {
        if mismatches.are_full() {
            break;
        }
        let name = name.as_str();
        let known = attributes.iter().position(|(known, _)| known == name);
        let slot = known.and_then(|at| Some((&attributes[at].1, given.get_mut(at)?)));
        mismatches.within(name, |mismatches| match slot {
            Some((attribute, slot @ None)) => {
                let read = values::read_input(attribute, true, value, mismatches);
                *slot = Some(read.unwrap_or(ColumnInput::Null));
            }
            Some(_) => mismatches.add("is given twice"),
            None => mismatches.add("is not an attribute of this column's type"),
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
    (mismatches.found.len() == before).then_some(text)
}
