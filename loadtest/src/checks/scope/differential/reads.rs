//! Drawn reads: of one document in any spelling and by any alias, of many, and lists.

use std::fmt::Write;

use serde_json::Value;
use testkit::http::Request;

use crate::checks::scope::differential::rows::RowDraw;
use crate::checks::scope::differential::schema::{Role, Schema};
use crate::checks::scope::kinds::Kind;
use crate::checks::scope::text::encoded;

/// Values of no document; there is none with such a number.
const ABSENT: i64 = 900;
const KEYS_MAX: usize = 8;
/// Decimal numbers of a list's limit.
const LIMITS: [usize; 5] = [1, 2, 3, 5, 100];

/// A read.
#[derive(Clone, Debug)]
pub(super) struct Read {
    pub(super) of: ReadOf,
    /// Members of the root that are asked for; `None`: all.
    pub(super) fields: Option<Vec<String>>,
    pub(super) method: &'static str,
    pub(super) headers: Vec<(&'static str, String)>,
    /// Decides spellings.
    pub(super) spelling: u64,
}

#[derive(Clone, Debug)]
pub(super) enum ReadOf {
    One(Named),
    Many {
        by: Option<usize>,
        names: Vec<Vec<i64>>,
        form: ManyForm,
    },
    List {
        limit: usize,
        after: Option<Vec<i64>>,
        /// A field and the number of its value; `None`: null.
        filter: Option<(&'static str, Option<i64>)>,
    },
}

/// A key or an alias: the numbers of its parts.
#[derive(Clone, Debug)]
pub(super) struct Named {
    /// `None`: a key.
    pub(super) by: Option<usize>,
    pub(super) numbers: Vec<i64>,
}

/// How a request names many documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ManyForm {
    /// `?keys=`; keys of one part alone.
    Keys,
    /// `?key=` repeated.
    Key,
    /// `:batch`
    Body,
}

impl Read {
    /// Draws a read without the headers that need an answer first.
    pub(super) fn draw(rng: &mut fastrand::Rng, schema: &Schema) -> Self {
        let mut draw = RowDraw { rng, schema };
        let of = match draw.rng.u8(..8) {
            0..=3 => ReadOf::One(draw_named(&mut draw)),
            4 | 5 => draw_many(&mut draw),
            _ => draw_list(&mut draw),
        };
        let is_post = matches!(
            &of,
            ReadOf::Many {
                form: ManyForm::Body,
                ..
            }
        );
        let method = match rng.u8(..5) {
            _ if is_post => "POST",
            0 => "HEAD",
            _ => "GET",
        };
        let names: Vec<String> = schema.tables[0]
            .shown()
            .map(|column| column.name.clone())
            .collect();
        let fields = (rng.u8(..5) == 0).then(|| rng.choose_multiple(names, 2));
        let mut headers = Vec::new();
        if rng.bool() {
            let encoding = rng.choice(["gzip", "br", "zstd", "gzip, br;q=0.5", "*"]);
            headers.push(("accept-encoding", encoding.unwrap_or("gzip").to_owned()));
        }
        Self {
            of,
            fields,
            method,
            headers,
            spelling: rng.u64(..),
        }
    }

    /// The request.
    pub(super) fn request(&self, schema: &Schema) -> Request {
        let mut rng = fastrand::Rng::with_seed(self.spelling);
        let mut query: Vec<String> = Vec::new();
        let (mut path, mut body) = (format!("/{}", schema.name), String::new());
        match &self.of {
            ReadOf::One(named) => {
                // Writing to a string can't fail.
                let _infallible = write!(path, "/{}", named.path(schema, &mut rng));
            }
            ReadOf::Many { by, names, form } => {
                if let Some(by) = by {
                    query.push(format!("by={}", schema.aliases[*by].name));
                }
                let kinds = kinds_of(schema, *by);
                let texts = names
                    .iter()
                    .map(|name| spelled_parts(&kinds, name, &mut rng));
                let texts: Vec<String> = texts.collect();
                match form {
                    ManyForm::Keys => query.push(format!("keys={}", texts.join(","))),
                    ManyForm::Key => query.extend(texts.iter().map(|text| format!("key={text}"))),
                    ManyForm::Body => {
                        path += ":batch";
                        let keys = names.iter().map(|name| key_json(&kinds, name));
                        body = serde_json::json!({"keys": keys.collect::<Vec<_>>()}).to_string();
                    }
                }
            }
            ReadOf::List {
                limit,
                after,
                filter,
            } => {
                query.push(format!("limit={limit}"));
                if let Some(after) = after {
                    query.push(format!(
                        "after={}",
                        spelled_parts(&schema.key_kinds(), after, &mut rng)
                    ));
                }
                query.extend(filter.map(|(field, number)| match (number, field) {
                    (None, _) => format!("{field}=is.null"),
                    (Some(number), "a") => format!(
                        "a=eq.{}",
                        encoded(&Kind::Integer.spelled(number, &mut rng), &mut rng)
                    ),
                    (Some(number), _) => format!(
                        "{field}=eq.{}",
                        encoded(&Kind::Text.canonical(number), &mut rng)
                    ),
                }));
            }
        }
        query.extend(
            self.fields
                .iter()
                .map(|fields| format!("fields={}", fields.join(","))),
        );
        if !query.is_empty() {
            let _infallible = write!(path, "?{}", query.join("&"));
        }
        let mut request = Request::new(self.method, path);
        request.body = body.into();
        for (name, value) in &self.headers {
            request = request.with(name, value.clone());
        }
        request
    }

    /// The same read with absent documents in place of those that `is_hidden` names; `None` if there are none of these.
    pub(super) fn with_absent(
        &self,
        schema: &Schema,
        is_hidden: impl Fn(&Named) -> bool,
    ) -> Option<Self> {
        let mut other = self.clone();
        let mut next = ABSENT;
        let mut has_replaced = false;
        let mut replace = |by: Option<usize>, numbers: &mut Vec<i64>| {
            let named = Named {
                by,
                numbers: numbers.clone(),
            };
            if !is_hidden(&named) {
                return;
            }
            // Repeated names stay repeated.
            next += 1;
            *numbers = vec![next; kinds_of(schema, by).len()];
            has_replaced = true;
        };
        match &mut other.of {
            ReadOf::One(named) => replace(named.by, &mut named.numbers),
            ReadOf::Many { by, names, .. } => names.iter_mut().for_each(|name| replace(*by, name)),
            ReadOf::List { .. } => {}
        }
        has_replaced.then_some(other)
    }
}

impl Named {
    /// Its path below the resource, in any spelling.
    fn path(&self, schema: &Schema, rng: &mut fastrand::Rng) -> String {
        let text = spelled_parts(&kinds_of(schema, self.by), &self.numbers, rng);
        match self.by {
            None => text,
            Some(by) => format!("by/{}/{text}", schema.aliases[by].name),
        }
    }

    /// Canonical texts of its parts.
    pub(super) fn parts(&self, schema: &Schema) -> Vec<String> {
        let kinds = kinds_of(schema, self.by);
        let parts = kinds.iter().zip(&self.numbers);
        parts
            .map(|(kind, number)| kind.canonical(*number))
            .collect()
    }

    /// As `missing` has it.
    pub(super) fn json(&self, schema: &Schema) -> Value {
        key_json(&kinds_of(schema, self.by), &self.numbers)
    }
}

/// The types of the parts of an alias, or of a key.
fn kinds_of(schema: &Schema, by: Option<usize>) -> Vec<Kind> {
    match by {
        None => schema.key_kinds(),
        Some(by) => schema.aliases[by]
            .columns
            .iter()
            .map(|(_, kind)| *kind)
            .collect(),
    }
}

fn key_json(kinds: &[Kind], numbers: &[i64]) -> Value {
    let mut parts: Vec<Value> = kinds
        .iter()
        .zip(numbers)
        .map(|(kind, number)| kind.json(*number))
        .collect();
    match parts.len() {
        1 => parts.remove(0),
        _ => Value::Array(parts),
    }
}

fn spelled_parts(kinds: &[Kind], numbers: &[i64], rng: &mut fastrand::Rng) -> String {
    let mut parts = Vec::new();
    for (kind, number) in kinds.iter().zip(numbers) {
        let text = kind.spelled(*number, rng);
        parts.push(encoded(&text, rng));
    }
    parts.join(",")
}

/// The canonical path of a document.
pub(super) fn canonical_path(schema: &Schema, key: &[String]) -> String {
    let encode = |part: &String| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let bytes = part.bytes().map(|byte| match byte {
            byte if plain(byte) => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        });
        bytes.collect::<String>()
    };
    format!(
        "/{}/{}",
        schema.name,
        key.iter().map(encode).collect::<Vec<_>>().join(",")
    )
}

fn draw_named(draw: &mut RowDraw<'_>) -> Named {
    let aliases = draw.schema.aliases.len();
    let by = (aliases > 0 && draw.rng.bool()).then(|| draw.rng.usize(..aliases));
    Named {
        by,
        numbers: draw_numbers(draw, by),
    }
}

fn draw_numbers(draw: &mut RowDraw<'_>, by: Option<usize>) -> Vec<i64> {
    match by {
        None => draw.key(),
        Some(by) => draw.alias(by),
    }
}

fn draw_many(draw: &mut RowDraw<'_>) -> ReadOf {
    let by = draw_named(draw).by;
    let count = draw.rng.usize(1..KEYS_MAX);
    let names: Vec<Vec<i64>> = (0..count).map(|_| draw_numbers(draw, by)).collect();
    let is_single = kinds_of(draw.schema, by).len() == 1;
    let form = match draw.rng.u8(..3) {
        // `:batch` knows keys alone.
        0 if by.is_none() => ManyForm::Body,
        1 if is_single => ManyForm::Keys,
        _ => ManyForm::Key,
    };
    ReadOf::Many { by, names, form }
}

fn draw_list(draw: &mut RowDraw<'_>) -> ReadOf {
    let limit = LIMITS[draw.rng.usize(..LIMITS.len())];
    let after = draw.rng.bool().then(|| draw.key());
    let plain = draw.schema.tables[0]
        .of_role(Role::Plain)
        .find(|column| column.name == "a")
        .cloned();
    let filter = match (draw.rng.u8(..4), plain) {
        (0, Some(column)) => Some((["a", "b"][draw.rng.usize(..2)], draw.number(&column))),
        _ => None,
    };
    ReadOf::List {
        limit,
        after,
        filter,
    }
}
