//! `/openapi.json`: the public address's API as OpenAPI 3.1, rendered from the resources that fit the database.
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
use std::future::ready;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Response};
use axum::routing::get;
use serde_json::{Map, Value, json};

use crate::documents::Documents;
use crate::http::auth::Auth;
use crate::http::docs::tagged;
use crate::http::headers::JSON;
use crate::http::openapi::template::{Template, Values, reference};
use crate::http::problem::Problem;
use crate::resource::{Resource, ResourceId};

/// The route of `/openapi.json`.
pub(super) fn router<S: Clone + Send + Sync + 'static>(
    documents: Documents,
    auth: Option<Arc<Auth>>,
) -> Router<S> {
    let description = Arc::new(Description {
        documents,
        auth,
        rendered: ArcSwapOption::empty(),
    });
    let respond = move |headers: HeaderMap| ready(description.response(&headers));
    // The router adds Allow.
    Router::new()
        .route("/openapi.json", get(respond))
        .method_not_allowed_fallback(|| ready(Problem::METHOD_NOT_ALLOWED.into_response()))
}

/// The document, rendered again when a resource has changed.
struct Description {
    documents: Documents,
    /// `None`: no operation requires authentication.
    auth: Option<Arc<Auth>>,
    rendered: ArcSwapOption<Rendered>,
}

struct Rendered {
    /// The resources that it describes.
    resources: Vec<Arc<Resource>>,
    text: Bytes,
}

impl Description {
    fn response(&self, request_headers: &HeaderMap) -> Response<Body> {
        match self.current() {
            Ok(rendered) => tagged(request_headers, JSON, rendered.text.clone()),
            Err(problem) => problem.into_response(),
        }
    }

    /// The document of the resources that fit the database; if none does, why the first one does not.
    fn current(&self) -> Result<Arc<Rendered>, Problem> {
        let ids = self.documents.names().zip(ResourceId::in_order());
        let resources = ids.map(|(_, id)| self.documents.resource(id));
        let (fitting, others): (Vec<_>, Vec<_>) = resources.partition(Result::is_ok);
        let resources: Vec<Arc<Resource>> = fitting.into_iter().flatten().collect();
        if let (true, Some(Err(error))) = (resources.is_empty(), others.into_iter().next()) {
            return Err(Problem::from(error));
        }
        let rendered = self.rendered.load_full().filter(|rendered| {
            let is_same = |(one, other)| Arc::ptr_eq(one, other);
            rendered.resources.len() == resources.len()
                && rendered.resources.iter().zip(&resources).all(is_same)
        });
        Ok(rendered.unwrap_or_else(|| {
            let repeatable = self.documents.keeps_answers();
            let document = document(&resources, self.auth.as_deref(), repeatable);
            let text = Bytes::from(document.to_string());
            let rendered = Arc::new(Rendered { resources, text });
            self.rendered.store(Some(Arc::clone(&rendered)));
            rendered
        }))
    }
}

/// The description of these resources, and of the roles that they require; writes may have an `Idempotency-Key` if they
/// are `repeatable`.
fn document(resources: &[Arc<Resource>], auth: Option<&Auth>, repeatable: bool) -> Value {
    let template = Template::parse();
    let mut names = Names::default();
    let documents: Vec<String> = resources
        .iter()
        .map(|resource| names.claim(&resource.name))
        .collect();
    let mut paths = Map::new();
    let mut schemas = Map::new();
    for (resource, document) in resources.iter().zip(documents) {
        let mut values = operations::values(&template, resource, repeatable);
        for (name, schema) in documents::schemas(resource) {
            let component = match name {
                "document" => document.clone(),
                name => names.claim(&format!("{document}-{name}")),
            };
            values.insert(name, reference("schemas", &component));
            schemas.extend(schema.map(|schema| (component, schema)));
        }
        paths.extend(operations::paths(&template, resource, &values, auth));
    }
    let problem = names.claim("problem");
    schemas.insert(problem.clone(), template.fill("problem", &Values::new()));
    let schemes = auth.map(Auth::schemes);
    if let Some(schemes) = &schemes {
        paths.extend(security::paths(&template, schemes));
    }
    let tags = resources
        .iter()
        .map(|resource| json!({"name": resource.name}));
    let values = Values::from([
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("tags", tags.collect()),
        ("paths", Value::Object(paths)),
        ("schemas", Value::Object(schemas)),
        ("problems", template.problems(&problem)),
    ]);
    let mut document = template.fill("document", &values);
    if let Some(schemes) = &schemes {
        document["components"]["securitySchemes"] = security::schemes(&template, schemes);
    }
    document
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
