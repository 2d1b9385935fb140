//! What a query asks for.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::http::batch::KEYS_MAX;
use crate::http::list;
use crate::http::problem::Problem;
use crate::resource::Resource;
use crate::resource::key::KeyShape;
use crate::resource::projection::{Projection, listed};

/// The query of a list.
#[derive(Default)]
pub(super) struct Query {
    /// Canonical, in the query's order; none where it asks for a page.
    pub(super) keys: Option<Vec<String>>,
    pub(super) page: list::Asked,
    pub(super) fields: Option<Projection>,
}

impl Query {
    /// Reads the query of `/RESOURCE`.
    pub(super) fn parse(query: &str, resource: &Resource) -> Result<Self, Problem> {
        let mut this = Self::default();
        for (name, value) in parameters(query) {
            match &*name {
                "keys" | "key" => take_keys(&mut this.keys, &name, &value, &resource.key)?,
                "fields" => take_fields(&mut this.fields, &value, resource)?,
                name => this.page.take(name, &value, resource)?,
            }
        }
        if this.keys.is_some() && !this.page.is_empty() {
            return Err(Problem::bad_request("use either keys or a page, not both"));
        }
        Ok(this)
    }
}

/// What `fields` asks for where it is the only parameter that counts.
pub(super) fn fields(query: &str, resource: &Resource) -> Result<Option<Projection>, Problem> {
    let mut fields = None;
    for (_, value) in parameters(query).filter(|(name, _)| name == "fields") {
        take_fields(&mut fields, &value, resource)?;
    }
    Ok(fields)
}

/// Names, decoded, and values, still percent-encoded: commas and points in them are split at first.
fn parameters(query: &str) -> impl Iterator<Item = (Cow<'_, str>, String)> {
    let parameters = query.split('&').filter(|parameter| !parameter.is_empty());
    parameters.map(|parameter| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let name = percent_decode_str(name).decode_utf8_lossy();
        // As forms are encoded (WHATWG URL, section 5.1); a plus sign itself is %2B.
        (name, value.replace('+', "%20"))
    })
}

/// `keys` is a list for keys of one column; `key`, as often as need be, is one key of any.
fn take_keys(
    keys: &mut Option<Vec<String>>,
    name: &str,
    value: &str,
    shape: &KeyShape,
) -> Result<(), Problem> {
    let list: Vec<&str> = match name {
        "keys" if shape.columns.len() > 1 => {
            let why = "the key has several columns: use ?key=…,…&key=…,…";
            return Err(Problem::bad_request(why));
        }
        "keys" => value.split(',').collect(),
        _ => vec![value],
    };
    let keys = keys.get_or_insert_default();
    if keys.len() + list.len() > KEYS_MAX {
        return Err(Problem::too_many_keys(KEYS_MAX));
    }
    for key in list {
        keys.push(shape.canonical(key)?.into_owned());
    }
    Ok(())
}

fn take_fields(
    fields: &mut Option<Projection>,
    value: &str,
    resource: &Resource,
) -> Result<(), Problem> {
    let projection = Projection::parse(value, &resource.root);
    let projection = projection.map_err(|unknown| {
        let names = listed(&unknown);
        Problem::bad_request(format!("fields: documents have no {names}"))
    })?;
    match fields.replace(projection) {
        Some(_) => Err(Problem::bad_request("fields is given twice")),
        None => Ok(()),
    }
}
