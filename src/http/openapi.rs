//! `/openapi.json`: the public address's API as OpenAPI 3.1, rendered from the resources that fit the database and that
//! the client may read or write.
//!
//! `template.json` has the text of it. `schema` describes columns, `documents` whole documents, `keys` and `parameters`
//! what identifies and selects documents; `operations` fills them into the template's paths.

mod documents;
mod keys;
mod operations;
mod parameters;
mod schema;
mod security;
mod template;

use std::collections::HashSet;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::routing::get;
use serde_json::{Map, Value, json};

use crate::auth::Principal;
use crate::documents::Documents;
use crate::http::auth::Auth;
use crate::http::description::{Described, Description, ResourcePart};
use crate::http::openapi::documents::SCHEMAS;
use crate::http::openapi::template::{Template, Values, reference};
use crate::http::problem::Problem;
use crate::http::router::with_options;
use crate::resource::{Resource, ResourceId};

/// Stand in the text where the members of the resources are inserted. No name has a zero character.
const PATHS: &str = "\0paths";
const COMPONENTS: &str = "\0schemas";

/// The route of `/openapi.json`.
pub(super) fn router<S: Clone + Send + Sync + 'static>(
    documents: Documents,
    auth: Option<Arc<Auth>>,
) -> Router<S> {
    let description = OpenApi::new(&documents, auth.clone());
    let described = Arc::new(Described::new(description, documents, auth));
    let respond = move |request: Request| {
        let described = Arc::clone(&described);
        async move {
            let (head, _) = request.into_parts();
            described.response(&head).await
        }
    };
    // The router adds Allow.
    Router::new()
        .route("/openapi.json", with_options(get(respond)))
        .method_not_allowed_fallback(async || Problem::METHOD_NOT_ALLOWED.into_response())
}

/// What the text of all resources depends on.
struct OpenApi {
    /// `None`: no operation requires authentication.
    auth: Option<Arc<Auth>>,
    /// Writes may have an `Idempotency-Key`.
    repeatable: bool,
    /// The components with the schemas of each resource, in the order of [`SCHEMAS`].
    components: Vec<[String; SCHEMAS.len()]>,
    /// The component with the schema of problems.
    problem: String,
}

/// The members of `paths` and of `schemas` that describe a resource, each with a comma before it.
struct Members {
    paths: Bytes,
    schemas: Bytes,
}

impl OpenApi {
    fn new(documents: &Documents, auth: Option<Arc<Auth>>) -> Self {
        let mut names = Names::default();
        let of_documents: Vec<String> = documents.names().map(|name| names.claim(name)).collect();
        let components = of_documents.into_iter().map(|document| {
            SCHEMAS.map(|schema| match schema {
                "document" => document.clone(),
                schema => names.claim(&format!("{document}-{schema}")),
            })
        });
        Self {
            auth,
            repeatable: documents.keeps_answers(),
            components: components.collect(),
            problem: names.claim("problem"),
        }
    }
}

impl Description for OpenApi {
    type Part = Members;

    fn is_shown(auth: &Auth, principal: Option<&Principal>, id: ResourceId) -> bool {
        auth.allows_any(principal, id)
    }

    fn part(&self, id: ResourceId, resource: &Resource) -> Members {
        let template = Template::get();
        let mut values = operations::values(template, resource, self.repeatable);
        let mut schemas = Map::new();
        let components = self.components.get(id.index()).into_iter().flatten();
        let all = SCHEMAS.into_iter().zip(components);
        for ((name, component), schema) in all.zip(documents::schemas(resource)) {
            values.insert(name, reference("schemas", component));
            schemas.extend(schema.map(|schema| (component.clone(), schema)));
        }
        let paths = operations::paths(template, resource, &values, self.auth.as_deref());
        Members {
            paths: members(paths.collect()),
            schemas: members(schemas),
        }
    }

    fn join(&self, parts: &[Arc<ResourcePart<Members>>]) -> Vec<Bytes> {
        let text = self.document(parts).to_string();
        let (before, rest) = split_at(&text, PATHS);
        let (between, after) = split_at(rest, COMPONENTS);
        let schemes = self.auth.as_deref().map(Auth::schemes);
        let template = Template::get();
        let sessions = schemes.map(|schemes| security::paths(template, &schemes));
        let problem = template.fill("problem", &Values::new());
        let problem = Map::from_iter([(self.problem.clone(), problem)]);
        let paths = parts.iter().map(|part| part.text.paths.clone());
        let schemas = parts.iter().map(|part| part.text.schemas.clone());
        let mut pieces = vec![Bytes::copy_from_slice(before.as_bytes())];
        pieces.extend(object(paths.chain(sessions.map(members))));
        pieces.push(Bytes::copy_from_slice(between.as_bytes()));
        pieces.extend(object(schemas.chain([members(problem)])));
        pieces.push(Bytes::copy_from_slice(after.as_bytes()));
        pieces
    }
}

impl OpenApi {
    /// The description of the resources of `parts` without their members.
    fn document(&self, parts: &[Arc<ResourcePart<Members>>]) -> Value {
        let template = Template::get();
        let tags = parts.iter().map(|part| json!({"name": part.resource.name}));
        let values = Values::from([
            ("version", json!(env!("CARGO_PKG_VERSION"))),
            ("tags", tags.collect()),
            ("paths", json!(PATHS)),
            ("schemas", json!(COMPONENTS)),
            ("problems", template.problems(&self.problem)),
        ]);
        let mut document = template.fill("document", &values);
        if let Some(auth) = &self.auth {
            document["components"]["securitySchemes"] =
                security::schemes(template, &auth.schemes());
        }
        document
    }
}

/// What is before and after `place`, a value of `text`.
fn split_at<'t>(text: &'t str, place: &str) -> (&'t str, &'t str) {
    let place = json!(place).to_string();
    text.split_once(&place).unwrap_or((text, ""))
}

/// The members of an object, each with a comma before it.
fn members(object: Map<String, Value>) -> Bytes {
    if object.is_empty() {
        return Bytes::new();
    }
    let mut text = Value::Object(object).to_string();
    text.replace_range(..1, ",");
    text.pop();
    // Without the room that it grew into.
    text.into_boxed_str().into_boxed_bytes().into()
}

/// An object of these members.
fn object(members: impl Iterator<Item = Bytes>) -> impl Iterator<Item = Bytes> {
    let mut members = members.filter(|members| !members.is_empty());
    let first = members.next().map(|first| first.slice(1..));
    let begin = std::iter::once(Bytes::from_static(b"{"));
    begin
        .chain(first)
        .chain(members)
        .chain([Bytes::from_static(b"}")])
}

/// Names of schemas, which are unique.
#[derive(Default)]
struct Names(HashSet<String>);

impl Names {
    /// `wanted`, or a similar name if that is taken. Names of components must not have a tilde.
    fn claim(&mut self, wanted: &str) -> String {
        let mut name = wanted.replace('~', "_");
        while !self.0.insert(name.clone()) {
            name.push('_');
        }
        name
    }
}
