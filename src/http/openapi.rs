//! `/openapi.json`: what the public address answers, as OpenAPI 3.1, made from the resources as they fit the database.
//!
//! `schema` says what columns hold, `documents` what a whole document is, `operations` what the paths answer.

mod documents;
mod keys;
mod operations;
mod parameters;
mod parts;
mod schema;
mod security;

use std::collections::HashSet;
use std::future::ready;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Response};
use axum::routing::get;
use serde_json::{Map, Value, json};

use crate::cache::Cache;
use crate::http::auth::Auth;
use crate::http::docs::tagged;
use crate::http::openapi::documents::Purpose;
use crate::http::openapi::operations::Schemas;
use crate::http::problem::Problem;
use crate::resource::{Resource, ResourceId};

const DESCRIPTION: &str = "Documents out of PostgreSQL, by key. Errors are `application/problem+json` (RFC 9457). \
    A comma inside a part of a key is `%2C`. No text holds the zero character.";

/// Answers `/openapi.json`; writes may have an `Idempotency-Key` if they are `repeatable`.
pub(super) fn router<S: Clone + Send + Sync + 'static>(
    cache: Arc<Cache>,
    auth: Option<Arc<Auth>>,
    repeatable: bool,
) -> Router<S> {
    let description = Arc::new(Description {
        cache,
        auth,
        repeatable,
        made: ArcSwapOption::empty(),
    });
    let answer = move |asked: HeaderMap| ready(description.answer(&asked));
    // The router adds Allow, which it alone knows.
    Router::new()
        .route("/openapi.json", get(answer))
        .method_not_allowed_fallback(|| ready(Problem::wrong_method().into_response()))
}

/// The document, made again when a resource has changed.
struct Description {
    cache: Arc<Cache>,
    /// `None`: everyone may.
    auth: Option<Arc<Auth>>,
    /// Writes may have an `Idempotency-Key`.
    repeatable: bool,
    made: ArcSwapOption<Made>,
}

struct Made {
    of: Vec<Arc<Resource>>,
    text: Bytes,
}

impl Description {
    fn answer(&self, asked: &HeaderMap) -> Response<Body> {
        let made = match self.current() {
            Ok(made) => made,
            Err(problem) => return problem.into_response(),
        };
        tagged(asked, "application/json", made.text.clone())
    }

    /// Of the resources that fit the database, or why none does.
    fn current(&self) -> Result<Arc<Made>, Problem> {
        let count = self.cache.names().count();
        let found = (0..count).map(|index| self.cache.resource(ResourceId::new(index)));
        let (fitting, others): (Vec<_>, Vec<_>) = found.partition(Result::is_ok);
        let of: Vec<Arc<Resource>> = fitting.into_iter().flatten().collect();
        if let (true, Some(Err(error))) = (of.is_empty(), others.into_iter().next()) {
            return Err(Problem::from(error));
        }
        let known = self.made.load_full().filter(|made| {
            let same = |(one, other)| Arc::ptr_eq(one, other);
            made.of.len() == of.len() && made.of.iter().zip(&of).all(same)
        });
        Ok(known.unwrap_or_else(|| {
            let text =
                Bytes::from(document(&of, self.auth.as_deref(), self.repeatable).to_string());
            let made = Arc::new(Made { of, text });
            self.made.store(Some(Arc::clone(&made)));
            made
        }))
    }
}

/// The description of these resources, and of who may.
fn document(resources: &[Arc<Resource>], auth: Option<&Auth>, repeatable: bool) -> Value {
    let mut names = Names::default();
    let documents: Vec<String> = resources
        .iter()
        .map(|resource| names.claim(&resource.name))
        .collect();
    let mut paths = Map::new();
    let mut schemas = Map::new();
    for (resource, document) in resources.iter().zip(documents) {
        let named = Schemas {
            part: names.claim(&format!("{document}-part")),
            new: names.claim(&format!("{document}-new")),
            replacement: names.claim(&format!("{document}-replacement")),
            patch: names.claim(&format!("{document}-patch")),
            document,
        };
        let read = documents::read(&resource.root, true);
        let read = operations::with_example(read, resource);
        schemas.insert(named.document.clone(), read);
        let part = documents::read(&resource.root, false);
        schemas.insert(named.part.clone(), part);
        if let Ok(writable) = &resource.writable {
            for (name, purpose) in [
                (&named.new, Purpose::New),
                (&named.replacement, Purpose::Replacement),
                (&named.patch, Purpose::Patch),
            ] {
                schemas.insert(name.clone(), documents::written(writable, purpose));
            }
        }
        let mut described = operations::paths(resource, &named, repeatable);
        if let Some(auth) = auth {
            security::guard(auth, &resource.name, &mut described);
        }
        paths.extend(described);
    }
    let mut components = parts::components(schemas, &names.claim("problem"));
    if let Some(auth) = auth {
        let schemes = auth.schemes();
        components["securitySchemes"] = security::schemes(&schemes);
        paths.extend(security::paths(&schemes));
    }
    let tags: Vec<Value> = resources
        .iter()
        .map(|resource| json!({"name": resource.name}))
        .collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "larder",
            "version": env!("CARGO_PKG_VERSION"),
            "description": DESCRIPTION
        },
        "tags": tags,
        "paths": paths,
        "components": components
    })
}

/// Names of schemas: each is given once.
#[derive(Default)]
struct Names(HashSet<String>);

impl Names {
    /// `wanted`, or something like it where it is taken. Names of components hold no tilde.
    fn claim(&mut self, wanted: &str) -> String {
        let mut name = wanted.replace('~', "_");
        while !self.0.insert(name.clone()) {
            name.push('_');
        }
        name
    }
}
