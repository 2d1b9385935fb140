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
use std::future::ready;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, VARY};
use axum::http::{HeaderValue, Response};
use axum::routing::get;
use serde_json::{Map, Value, json};

use crate::auth::Principal;
use crate::documents::Documents;
use crate::http::auth::Auth;
use crate::http::docs::tagged;
use crate::http::headers::JSON;
use crate::http::openapi::template::{Template, Values, reference};
use crate::http::problem::Problem;
use crate::http::request::RequestContext;
use crate::resource::{Resource, ResourceId};

/// The most descriptions that are kept, each of other resources.
const KEPT_MAX: usize = 16;
/// With authentication, each client may see another description.
const PRIVATE: HeaderValue = HeaderValue::from_static("private, no-cache");
const BY_CREDENTIAL: HeaderValue = HeaderValue::from_static("authorization, cookie, x-api-key");

/// The route of `/openapi.json`.
pub(super) fn router<S: Clone + Send + Sync + 'static>(
    documents: Documents,
    auth: Option<Arc<Auth>>,
) -> Router<S> {
    let description = Arc::new(Description {
        documents,
        auth,
        rendered: ArcSwap::default(),
    });
    let respond = move |request: Request| ready(description.response(&request));
    // The router adds Allow.
    Router::new()
        .route("/openapi.json", get(respond))
        .method_not_allowed_fallback(|| ready(Problem::METHOD_NOT_ALLOWED.into_response()))
}

/// The documents, rendered again when a resource has changed.
struct Description {
    documents: Documents,
    /// `None`: no operation requires authentication.
    auth: Option<Arc<Auth>>,
    /// Those of different resources, oldest first.
    rendered: ArcSwap<Vec<Arc<Rendered>>>,
}

struct Rendered {
    /// The resources that it describes.
    resources: Vec<Arc<Resource>>,
    text: Bytes,
}

impl Description {
    fn response(&self, request: &Request) -> Response<Body> {
        let context = request.extensions().get::<RequestContext>();
        let principal = context.and_then(RequestContext::principal);
        let mut response = match self.current(principal) {
            Ok(rendered) => tagged(request.headers(), JSON, rendered.text.clone()),
            Err(problem) => problem.into_response(),
        };
        if self.auth.is_some() {
            let headers = response.headers_mut();
            headers.insert(CACHE_CONTROL, PRIVATE);
            headers.append(VARY, BY_CREDENTIAL);
        }
        response
    }

    /// The document of the resources that `principal` may use and that fit the database; if none does, why the first one
    /// does not.
    fn current(&self, principal: Option<&Principal>) -> Result<Arc<Rendered>, Problem> {
        let ids = self.documents.names().zip(ResourceId::in_order());
        let is_visible = |id| {
            let auth = self.auth.as_ref();
            auth.is_none_or(|auth| auth.allows_any(principal, id))
        };
        let ids = ids.map(|(_, id)| id).filter(|id| is_visible(*id));
        let resources = ids.map(|id| self.documents.resource(id));
        let (fitting, others): (Vec<_>, Vec<_>) = resources.partition(Result::is_ok);
        let resources: Vec<Arc<Resource>> = fitting.into_iter().flatten().collect();
        if let (true, Some(Err(error))) = (resources.is_empty(), others.into_iter().next()) {
            return Err(Problem::from(error));
        }
        let kept = self.rendered.load();
        if let Some(rendered) = kept.iter().find(|rendered| rendered.is_of(&resources)) {
            return Ok(Arc::clone(rendered));
        }
        let repeatable = self.documents.keeps_answers();
        let document = document(&resources, self.auth.as_deref(), repeatable);
        let text = Bytes::from(document.to_string());
        let rendered = Arc::new(Rendered { resources, text });
        // Of two that are rendered at once, one is kept.
        let newest = kept.iter().rev().take(KEPT_MAX - 1).rev();
        let newest = newest.chain([&rendered]).map(Arc::clone);
        self.rendered.store(Arc::new(newest.collect()));
        Ok(rendered)
    }
}

impl Rendered {
    /// Whether it describes these resources.
    fn is_of(&self, resources: &[Arc<Resource>]) -> bool {
        let is_same = |(one, other)| Arc::ptr_eq(one, other);
        self.resources.len() == resources.len() && self.resources.iter().zip(resources).all(is_same)
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
