//! `template.json`, the text of the description, and how it is filled.
//!
//! In the template
//! - `"$name"` is replaced by the value `name` if it is given, else by the template's own part `name`;
//! - a list of `headers` has names of components;
//! - a list of `parameters` has names of components and placeholders, whose values may be lists of parameters;
//! - `problems` next to an operation's `responses` are its problems besides those of every path.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

const TEMPLATE: &str = include_str!("template.json");

/// Problems of every path.
const EVERYWHERE: [&str; 6] = ["400", "414", "429", "500", "503", "504"];

/// The values of placeholders by name.
pub(super) type Values = HashMap<&'static str, Value>;

/// The template, parsed.
pub(super) struct Template(Value);

impl Template {
    /// `template.json`, which the first call parses.
    pub(super) fn get() -> &'static Self {
        static PARSED: LazyLock<Template> = LazyLock::new(|| {
            // A unit test parses it, so this does not fail.
            Template(serde_json::from_str(TEMPLATE).unwrap_or_default())
        });
        &PARSED
    }

    /// Its part `name` with `values` filled in.
    pub(super) fn fill(&self, name: &str, values: &Values) -> Value {
        self.filled(&self.0[name], values)
    }

    /// The same for a part that is an object.
    pub(super) fn fill_object(&self, name: &str, values: &Values) -> Map<String, Value> {
        match self.fill(name, values) {
            Value::Object(members) => members,
            _ => Map::new(),
        }
    }

    fn filled(&self, part: &Value, values: &Values) -> Value {
        match part {
            Value::String(text) => match text.strip_prefix('$') {
                Some(name) => match values.get(name) {
                    Some(value) => value.clone(),
                    None => self.fill(name, values),
                },
                None => part.clone(),
            },
            Value::Array(items) => items.iter().map(|item| self.filled(item, values)).collect(),
            Value::Object(members) => {
                let members = members.iter().map(|(name, member)| {
                    let member = match (name.as_str(), self.filled(member, values)) {
                        ("headers", Value::Array(names)) => header_references(&names),
                        ("parameters", Value::Array(items)) => parameters(items),
                        (_, member) => member,
                    };
                    (name.clone(), member)
                });
                members.collect()
            }
            other => other.clone(),
        }
    }

    /// Adds problems to the responses of an operation: those of every path, its own, and `others`.
    pub(super) fn add_problems(&self, operation: &mut Map<String, Value>, others: &[&str]) {
        let own = operation.shift_remove("problems").unwrap_or_default();
        let Some(Value::Object(responses)) = operation.get_mut("responses") else {
            return;
        };
        for (status, problem) in self.0["problems"].as_object().into_iter().flatten() {
            let status = status.as_str();
            let mut own = own.as_array().into_iter().flatten();
            if EVERYWHERE.contains(&status)
                || others.contains(&status)
                || own.any(|own| own == status)
            {
                let name = problem["name"].as_str().unwrap_or_default();
                responses.insert(status.to_owned(), reference("responses", name));
            }
        }
        responses.sort_keys();
    }

    /// The responses that [`Self::add_problems`] refers to, with a body as the schema `problem` says.
    pub(super) fn problems(&self, problem: &str) -> Value {
        let problems = self.fill_object("problems", &Values::new());
        let problems = problems.into_iter().map(|(_, mut response)| {
            let name = response["name"].take();
            response["content"] =
                json!({"application/problem+json": {"schema": reference("schemas", problem)}});
            if let Value::Object(members) = &mut response {
                members.shift_remove("name");
            }
            (name.as_str().unwrap_or_default().to_owned(), response)
        });
        problems.collect()
    }
}

/// A reference to a component of this kind.
pub(super) fn reference(kind: &str, name: &str) -> Value {
    json!({"$ref": format!("#/components/{kind}/{name}")})
}

fn header_references(names: &[Value]) -> Value {
    let names = names.iter().filter_map(Value::as_str);
    names
        .map(|name| (name.to_owned(), reference("headers", name)))
        .collect()
}

fn parameters(items: Vec<Value>) -> Value {
    let mut parameters = Vec::new();
    for item in items {
        match item {
            Value::String(name) => parameters.push(reference("parameters", &name)),
            Value::Array(several) => parameters.extend(several),
            one => parameters.push(one),
        }
    }
    Value::Array(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_json() {
        let template = Template::get();
        for part in ["document", "problem", "resource", "sessions"] {
            assert!(template.0[part].is_object(), "{part}");
        }
    }

    #[test]
    fn names_are_filled_and_referred_to() {
        let template = Template(json!({
            "whole": {
                "parameters": ["$two", "prefer"],
                "headers": ["ETag"],
                "text": "$text",
                "own": "$part"
            },
            "part": ["$text"]
        }));
        let values = Values::from([("two", json!([{}, {}])), ("text", json!("$two"))]);
        let expected = json!({
            "parameters": [{}, {}, {"$ref": "#/components/parameters/prefer"}],
            "headers": {"ETag": {"$ref": "#/components/headers/ETag"}},
            "text": "$two",
            "own": ["$two"]
        });
        assert_eq!(template.fill("whole", &values), expected);
    }
}
