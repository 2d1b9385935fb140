//! `/`: the resources whose documents the client may read, with their paths and keys. A browser is sent to `/docs`.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, LOCATION, VARY};
use axum::http::{HeaderValue, Response, StatusCode};
use axum::routing::get;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::auth::{Principal, Right};
use crate::documents::Documents;
use crate::http::auth::Auth;
use crate::http::description::{Described, Description, ResourcePart};
use crate::http::negotiate::prefers_html;
use crate::http::page::NO_CACHE;
use crate::http::problem::Problem;
use crate::http::read::LIMIT;
use crate::http::router::with_options;
use crate::resource::key::KeyShape;
use crate::resource::{Resource, ResourceId};

/// Names of variables in URI templates have no other character (RFC 6570, section 2.3).
const VARIABLE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_');

/// Relative, since a proxy may serve larder below a path.
const DOCS: HeaderValue = HeaderValue::from_static("docs");
const BY_ACCEPT: HeaderValue = HeaderValue::from_static("accept");

/// The route of `/`.
pub(super) fn router<S: Clone + Send + Sync + 'static>(
    documents: Documents,
    auth: Option<Arc<Auth>>,
) -> Router<S> {
    let described = Arc::new(Described::new(Index, documents, auth));
    let respond = move |request: Request| {
        let described = Arc::clone(&described);
        async move { response(&described, request).await }
    };
    // The router adds Allow.
    Router::new()
        .route("/", with_options(get(respond)))
        .method_not_allowed_fallback(async || Problem::METHOD_NOT_ALLOWED.into_response())
}

async fn response(described: &Described<Index>, request: Request) -> Response<Body> {
    let (head, _) = request.into_parts();
    let mut response = if prefers_html(&head.headers) {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SEE_OTHER;
        response.headers_mut().insert(LOCATION, DOCS);
        response.headers_mut().insert(CACHE_CONTROL, NO_CACHE);
        response
    } else {
        described.response(&head).await
    };
    response.headers_mut().append(VARY, BY_ACCEPT);
    response
}

/// What `/` says.
struct Index;

impl Description for Index {
    type Part = Bytes;

    fn is_shown(auth: &Auth, principal: Option<&Principal>, id: ResourceId) -> bool {
        auth.allows(principal, id, Right::Read)
    }

    fn part(&self, _: ResourceId, resource: &Resource) -> Bytes {
        entry(resource).to_string().into()
    }

    fn join(&self, parts: &[Arc<ResourcePart<Bytes>>]) -> Vec<Bytes> {
        let entries: Vec<&[u8]> = parts.iter().map(|part| part.text.as_ref()).collect();
        let text = [
            br#"{"openapi":"/openapi.json","docs":"/docs","resources":["#.as_slice(),
            &entries.join(&b','),
            b"]}",
        ];
        vec![text.concat().into()]
    }
}

/// The paths of `resource` and the parts of its keys.
fn entry(resource: &Resource) -> Value {
    let name = &resource.name;
    let aliases = resource.by.iter().map(|alias| {
        let variables = variables(&alias.key);
        json!({
            "name": alias.name,
            "document": format!("/{name}/by/{}/{variables}", alias.name),
            "key": key(&alias.key)
        })
    });
    json!({
        "name": name,
        "path": format!("/{name}"),
        "list": format!("/{name}?limit={LIMIT}"),
        "document": format!("/{name}/{}", variables(&resource.key)),
        "batch": format!("/{name}:batch"),
        "key": key(&resource.key),
        "aliases": Value::from_iter(aliases)
    })
}

/// The variables of a URI template, one for each column, separated by commas as keys are.
fn variables(key: &KeyShape) -> String {
    let columns = key.columns.iter();
    let variables = columns.map(|column| {
        let name = utf8_percent_encode(&column.name, VARIABLE);
        format!("{{{name}}}")
    });
    variables.collect::<Vec<_>>().join(",")
}

/// The columns of a key, and their types in PostgreSQL.
fn key(key: &KeyShape) -> Value {
    let columns = key.columns.iter();
    columns
        .map(|column| json!({"name": column.name, "type": column.type_text}))
        .collect()
}
