//! Parts of documents: the members that a request names with `fields`, copied from the document's bytes.
//!
//! The bytes are larder's own compact JSON, whose members have the order of the resource. Only values of `json` columns
//! may have another form. They are skipped or copied as a whole.

use std::borrow::Cow;
use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;

use crate::resource::Row;
use crate::resource::document::text::write_text;

/// The requested members of a row, in document order.
#[derive(Clone, Debug)]
pub struct Projection {
    members: Vec<ProjectedMember>,
}

#[derive(Clone, Debug)]
struct ProjectedMember {
    /// The name as it is written in a document, with quotes.
    name: Vec<u8>,
    /// The requested members of the rows below; `None` if the whole member is requested.
    below: Option<Projection>,
}

/// The most names in a path. Rows nest less deeply. The limit bounds the recursion of the code that reads and drops
/// paths.
const DEPTH_MAX: usize = 64;

/// The requested names of a row and of the rows below.
#[derive(Default)]
struct RequestedFields {
    whole: bool,
    below: BTreeMap<String, RequestedFields>,
}

impl Projection {
    /// Parses a list of paths such as `deptName,emps.empName`, whose names are percent-encoded, and looks them up in
    /// the root row.
    ///
    /// # Errors
    /// The paths that documents do not have.
    pub fn parse(fields: &str, root: &Row) -> Result<Self, Vec<String>> {
        let mut requested = RequestedFields::default();
        for path in fields.split(',') {
            if path.split('.').count() > DEPTH_MAX {
                return Err(vec!["names that deep".to_owned()]);
            }
            let mut place = &mut requested;
            for name in path.split('.') {
                let name = percent_decode_str(name).decode_utf8_lossy();
                place = place.below.entry(name.into_owned()).or_default();
            }
            place.whole = true;
        }
        let mut unknown = Vec::new();
        let projection = Self::of(requested, root, "", &mut unknown);
        if unknown.is_empty() {
            Ok(projection)
        } else {
            Err(unknown)
        }
    }

    fn of(
        mut requested: RequestedFields,
        row: &Row,
        path: &str,
        unknown: &mut Vec<String>,
    ) -> Self {
        let fields = row.fields.iter().map(|field| (&field.name, None));
        let children = row.children.iter();
        let children = children.map(|child| (&child.name, Some(&child.row)));
        let lookups = row.lookups.iter();
        let lookups = lookups.map(|lookup| (&lookup.name, Some(&lookup.row)));
        let mut members = Vec::new();
        for (name, row) in fields.chain(children).chain(lookups) {
            let Some(requested) = requested.below.remove(name) else {
                continue;
            };
            let path = format!("{path}{name}.");
            let whole = requested.whole;
            let below = match row {
                Some(row) => Some(Self::of(requested, row, &path, unknown)),
                None => {
                    unknown.extend(requested.below.keys().map(|name| format!("{path}{name}")));
                    None
                }
            };
            let mut text = Vec::new();
            write_text(name.as_bytes(), &mut text);
            members.push(ProjectedMember {
                name: text,
                below: below.filter(|_| !whole),
            });
        }
        unknown.extend(requested.below.keys().map(|name| format!("{path}{name}")));
        Self { members }
    }

    /// Appends the requested members of `document` to `out`. `None` if it is not a document of the resource.
    pub fn write(&self, document: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let rest = self.object(document, out)?;
        rest.is_empty().then_some(())
    }

    /// Writes the requested members of the object that `json` begins with. Returns the rest of `json`.
    fn object<'j>(&self, json: &'j [u8], out: &mut Vec<u8>) -> Option<&'j [u8]> {
        let mut rest = json.strip_prefix(b"{")?;
        let mut members = self.members.iter().peekable();
        out.push(b'{');
        let first = out.len();
        loop {
            if let Some(rest) = rest.strip_prefix(b"}") {
                out.push(b'}');
                return Some(rest);
            }
            let (name, value) = rest.split_at(text_bytes(rest)?);
            let value = value.strip_prefix(b":")?;
            rest = match members.next_if(|member| member.name == name) {
                None => &value[value_bytes(value)..],
                Some(member) => {
                    if out.len() > first {
                        out.push(b',');
                    }
                    out.extend_from_slice(name);
                    out.push(b':');
                    member.value(value, out)?
                }
            };
            rest = rest.strip_prefix(b",").unwrap_or(rest);
        }
    }
}

impl ProjectedMember {
    /// Writes the requested part of the value that `json` begins with. Returns the rest of `json`.
    fn value<'j>(&self, json: &'j [u8], out: &mut Vec<u8>) -> Option<&'j [u8]> {
        match (&self.below, json.first()?) {
            (Some(below), b'{') => below.object(json, out),
            (Some(below), b'[') => {
                let mut rest = &json[1..];
                out.push(b'[');
                while rest.first()? != &b']' {
                    rest = below.object(rest, out)?;
                    if let Some(next) = rest.strip_prefix(b",") {
                        out.push(b',');
                        rest = next;
                    }
                }
                out.push(b']');
                Some(&rest[1..])
            }
            // The whole value is requested, or it is null since there is no row.
            _ => {
                let (value, rest) = json.split_at(value_bytes(json));
                out.extend_from_slice(value);
                Some(rest)
            }
        }
    }
}

/// The length of the string that `json` begins with, with its quotes.
fn text_bytes(json: &[u8]) -> Option<usize> {
    let inner = json.strip_prefix(b"\"")?;
    let mut place = 0;
    loop {
        match inner.get(place)? {
            b'"' => return Some(place + 2),
            b'\\' => place += 2,
            _ => place += 1,
        }
    }
}

/// The length of the value that `json` begins with: up to the comma or the bracket that ends it.
fn value_bytes(json: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut place = 0;
    while let Some(byte) = json.get(place) {
        match byte {
            b'"' => {
                place += text_bytes(&json[place..]).unwrap_or(json.len() - place);
                continue;
            }
            b',' if depth == 0 => break,
            b'}' | b']' if depth == 0 => break,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        place += 1;
    }
    place
}

/// The first of `names`, each of limited length, for a message.
pub fn list_names(names: &[String]) -> Cow<'_, str> {
    const NAMES_MAX: usize = 10;
    const NAME_CHARS_MAX: usize = 64;
    let short = |name: &String| name.chars().take(NAME_CHARS_MAX).collect::<String>();
    let shown: Vec<String> = names.iter().take(NAMES_MAX).map(short).collect();
    shown.join(", ").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::catalogue::TableName;
    use crate::resource::definition::Place;
    use crate::resource::value::ValueType;
    use crate::resource::{Child, Field, Lookup, LookupTargets, Rendering};

    fn row(fields: &[&str], children: Vec<Child>, lookups: Vec<Lookup>) -> Row {
        let field = |name: &&str| Field {
            column: "c".into(),
            name: (*name).to_owned(),
            rendering: Rendering::Json,
            nullable: true,
            value: ValueType::Boolean,
            type_text: "boolean".to_owned(),
        };
        Row {
            table: TableName {
                oid: 1,
                schema: "s".into(),
                name: "t".into(),
            },
            place: Place {
                origin: "test".into(),
                line: 0,
                key: String::new(),
            },
            condition: None,
            fields: fields.iter().map(field).collect(),
            children,
            lookups,
        }
    }

    fn depts() -> Row {
        let emps = Child {
            name: "emps".into(),
            on: Vec::new(),
            order_by: Vec::new(),
            row: row(&["no", "a,b.c\""], Vec::new(), Vec::new()),
        };
        let site = Lookup {
            name: "site".into(),
            on: Vec::new(),
            targets: LookupTargets::None,
            row: row(&["city"], Vec::new(), Vec::new()),
        };
        row(&["no", "name", "extra"], vec![emps], vec![site])
    }

    const DOCUMENT: &str = r#"{"no":1.50,"name":"a\\\"}],","extra": {"no": [1, {"emps":"]"}], "x":"\\"} ,"emps":[{"no":7,"a,b.c\"":null},{"no":8,"a,b.c\"":"x"}],"site":null}"#;

    #[track_caller]
    fn projected(fields: &str) -> String {
        let projection = Projection::parse(fields, &depts()).unwrap();
        let mut out = Vec::new();
        projection.write(DOCUMENT.as_bytes(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn members_come_in_document_order_byte_for_byte() {
        assert_eq!(projected("no"), r#"{"no":1.50}"#);
        assert_eq!(projected("name,no,no"), r#"{"no":1.50,"name":"a\\\"}],"}"#);
        assert_eq!(
            projected("extra,site.city"),
            r#"{"extra": {"no": [1, {"emps":"]"}], "x":"\\"} ,"site":null}"#
        );
        assert_eq!(projected("emps.no"), r#"{"emps":[{"no":7},{"no":8}]}"#);
        assert_eq!(
            projected("emps.a%2Cb%2Ec%22"),
            r#"{"emps":[{"a,b.c\"":null},{"a,b.c\"":"x"}]}"#
        );
        assert_eq!(
            projected("emps.no,emps,emps.no"),
            r#"{"emps":[{"no":7,"a,b.c\"":null},{"no":8,"a,b.c\"":"x"}]}"#
        );
        assert_eq!(projected("no,name,extra,emps,site"), DOCUMENT);
        let site = r#"{"no":1,"name":"","extra":0,"emps":[],"site":{"city":"x"}}"#;
        let projection = Projection::parse("site.city,emps.no", &depts()).unwrap();
        let mut out = Vec::new();
        projection.write(site.as_bytes(), &mut out).unwrap();
        assert_eq!(out, br#"{"emps":[],"site":{"city":"x"}}"#);
    }

    #[test]
    fn unknown_names_are_reported_with_their_path() {
        let unknown = |fields: &str| Projection::parse(fields, &depts()).unwrap_err();
        assert_eq!(unknown("no,nam,emps.x"), ["emps.x", "nam"]);
        assert_eq!(unknown("extra.no"), ["extra.no"]);
        assert_eq!(unknown("site.city.x,"), ["site.city.x", ""]);
    }

    #[test]
    fn what_is_no_document_ends_the_scan() {
        let projection = Projection::parse("no,emps.no", &depts()).unwrap();
        for length in 0..DOCUMENT.len() {
            let cut = &DOCUMENT.as_bytes()[..length];
            assert_eq!(projection.write(cut, &mut Vec::new()), None, "{length}");
        }
    }
}
