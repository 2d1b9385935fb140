//! The query of `/RESOURCE`: keys, or the parameters of a page, and fields.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::http::problem::Problem;
use crate::resource::Resource;
use crate::resource::key::KeyShape;
use crate::resource::page::{PARAMETERS, Page};
use crate::resource::projection::{Projection, list_names};

/// The most keys in one request.
pub(in crate::http) const KEYS_MAX: usize = 1_000;

/// Documents of a page without `limit`.
pub(in crate::http) const LIMIT: usize = 100;

/// The largest `limit`. A larger one is refused, since a shorter page could be taken for all documents.
pub(in crate::http) const LIMIT_MAX: usize = 1_000;

/// The query of a list.
pub(super) struct ListQuery {
    /// Canonical, in the order of the query; `None` if it requests a page.
    pub(super) keys: Option<Vec<String>>,
    /// The number of the alias whose texts the keys are.
    pub(super) by: Option<usize>,
    pub(super) page: Page,
    pub(super) fields: Option<Projection>,
}

impl ListQuery {
    /// Reads the query of `/RESOURCE`.
    pub(super) fn parse(query: &str, resource: &Resource) -> Result<Self, Problem> {
        let (mut lists, mut page) = (Vec::new(), PageParams::default());
        let (mut fields, mut by) = (None, None);
        for (name, value) in parameters(query) {
            match &*name {
                "keys" | "key" => lists.push((name, value)),
                "fields" => set_fields(&mut fields, &value, resource)?,
                "by" => set_by(&mut by, &value, resource)?,
                name => page.add(name, &value, resource)?,
            }
        }
        // Their form depends on `by`, which may follow them.
        let shape = resource.shape_of(by);
        let mut keys = None;
        for (name, value) in lists {
            add_keys(&mut keys, &name, &value, shape)?;
        }
        if keys.is_some() && !page.is_empty() {
            return Err(Problem::bad_request(
                "keys can't be combined with limit, after or filters",
            ));
        }
        if keys.is_none() && by.is_some() {
            return Err(Problem::bad_request("by needs keys=… or key=…"));
        }
        Ok(Self {
            keys,
            by,
            page: page.into_page(),
            fields,
        })
    }
}

/// The parameters of a page.
#[derive(Default)]
struct PageParams {
    limit: Option<usize>,
    after: Option<String>,
    filters: Vec<(usize, Option<String>)>,
}

impl PageParams {
    /// Adds a parameter: its name, decoded, and its value, still percent-encoded.
    fn add(&mut self, name: &str, value: &str, resource: &Resource) -> Result<(), Problem> {
        let already = match name {
            "limit" => self.limit.replace(parse_limit(value)?).is_some(),
            "after" => {
                let key = resource.key.canonical(value);
                let key = key.map_err(|why| Problem::bad_request(format!("after: {why}")))?;
                self.after.replace(key.into_owned()).is_some()
            }
            _ => self.add_filter(name, value, resource)?,
        };
        if already {
            Err(Problem::bad_request(format!("{name} is given twice")))
        } else {
            Ok(())
        }
    }

    /// Adds a filter; true if there was one of this name already.
    fn add_filter(
        &mut self,
        name: &str,
        value: &str,
        resource: &Resource,
    ) -> Result<bool, Problem> {
        let filters = resource.filters.iter();
        let Some(place) = filters.clone().position(|filter| filter.name == name) else {
            let mut names: Vec<String> = PARAMETERS.map(str::to_owned).into();
            names.extend(filters.map(|filter| filter.name.clone()));
            let mut known = format!("the parameters of this list are {}", names.join(", "));
            if resource.root.fields.iter().any(|field| field.name == name) {
                known.push_str(
                    ", and `filters` of the resource has to name a field to filter by it",
                );
            }
            return Err(unknown(name, &known));
        };
        let refuse = |why: &str| Problem::bad_request(format!("{name} {why}"));
        let value = match value.split_once('.') {
            Some(("eq", value)) => {
                let value = percent_decode_str(value).decode_utf8();
                let value = value.map_err(|_| refuse("is not valid UTF-8"))?;
                let canonical = resource.filters[place].text(&value);
                Some(canonical.map_err(|why| refuse(&why))?)
            }
            Some(("is", "null")) => None,
            _ => return Err(refuse("must be eq.VALUE or is.null")),
        };
        let already = self.filters.iter().any(|(taken, _)| *taken == place);
        self.filters.push((place, value));
        Ok(already)
    }

    /// Whether the query has no parameter of a page.
    fn is_empty(&self) -> bool {
        self.limit.is_none() && self.after.is_none() && self.filters.is_empty()
    }

    fn into_page(self) -> Page {
        let mut filters = self.filters;
        filters.sort_unstable();
        Page {
            after: self.after,
            filters,
            owner: None,
            limit: self.limit.unwrap_or(LIMIT),
        }
    }
}

fn parse_limit(value: &str) -> Result<usize, Problem> {
    let limit = value.parse().ok();
    let limit = limit.filter(|limit| (1..=LIMIT_MAX).contains(limit));
    limit.ok_or_else(|| {
        Problem::bad_request(format!(
            "limit must be a whole number from 1 to {LIMIT_MAX}"
        ))
    })
}

/// The only parameter of a query of one document: `fields`.
pub(super) fn parse_fields(
    query: &str,
    resource: &Resource,
) -> Result<Option<Projection>, Problem> {
    let mut fields = None;
    for (name, value) in parameters(query) {
        match &*name {
            "fields" => set_fields(&mut fields, &value, resource)?,
            _ => return Err(unknown(&name, "the only parameter here is fields")),
        }
    }
    Ok(fields)
}

/// The parameters of a query of `:batch`: `fields`, and the number of the alias whose texts its keys are.
pub(super) fn parse_batch(
    query: &str,
    resource: &Resource,
) -> Result<(Option<Projection>, Option<usize>), Problem> {
    let (mut fields, mut by) = (None, None);
    for (name, value) in parameters(query) {
        match &*name {
            "fields" => set_fields(&mut fields, &value, resource)?,
            "by" => set_by(&mut by, &value, resource)?,
            _ => return Err(unknown(&name, "the parameters here are fields and by")),
        }
    }
    Ok((fields, by))
}

fn unknown(name: &str, known: &str) -> Problem {
    let names = [name.to_owned()];
    let name = list_names(&names);
    Problem::bad_request(format!("unknown parameter {name}; {known}"))
}

fn set_by(by: &mut Option<usize>, value: &str, resource: &Resource) -> Result<(), Problem> {
    let name = percent_decode_str(value).decode_utf8_lossy();
    let Some((number, _)) = resource.alias(&name) else {
        let names = resource.by.iter().map(|alias| alias.name.as_str());
        let names: Vec<&str> = names.collect();
        let known = match names.as_slice() {
            [] => "it has none".to_owned(),
            names => format!("it has {}", names.join(", ")),
        };
        return Err(Problem::bad_request(format!(
            "by: the resource has no alias of this name; {known}"
        )));
    };
    match by.replace(number) {
        Some(_) => Err(Problem::bad_request("by is given twice")),
        None => Ok(()),
    }
}

/// The parameters of a query: names, decoded, and values, still percent-encoded, since they are split at commas and
/// dots before they are decoded.
fn parameters(query: &str) -> impl Iterator<Item = (Cow<'_, str>, String)> {
    let parameters = query.split('&').filter(|parameter| !parameter.is_empty());
    parameters.map(|parameter| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let name = percent_decode_str(name).decode_utf8_lossy();
        // As HTML forms encode a space (WHATWG URL, section 5.1); a plus sign itself is %2B.
        (name, value.replace('+', "%20"))
    })
}

/// Adds the keys of a parameter: `keys` is a list of keys of one column, `key` is one key of any number of columns.
fn add_keys(
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

fn set_fields(
    fields: &mut Option<Projection>,
    value: &str,
    resource: &Resource,
) -> Result<(), Problem> {
    let projection = Projection::parse(value, &resource.root);
    let projection = projection.map_err(|unknown| {
        if unknown.iter().any(|path| path.split('.').any(str::is_empty)) {
            let why = "fields must be names, separated by commas, and dots before nested ones; one is empty";
            return Problem::bad_request(why);
        }
        let names = list_names(&unknown);
        Problem::bad_request(format!("fields: documents have no {names}"))
    })?;
    match fields.replace(projection) {
        Some(_) => Err(Problem::bad_request("fields is given twice")),
        None => Ok(()),
    }
}
