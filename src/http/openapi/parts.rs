//! What the operations of all resources share.

use serde_json::{Map, Value, json};

/// Problems: status, name and when they occur.
const PROBLEMS: [(u16, &str, &str); 17] = [
    (
        400,
        "malformed",
        "The request is malformed, or the key is not of the column's type",
    ),
    (
        401,
        "unauthorized",
        "The credentials are missing or wrong; WWW-Authenticate says which are taken",
    ),
    (
        403,
        "forbidden",
        "The client, or larder's role in PostgreSQL, may not do this",
    ),
    (404, "absent", "There is no such document"),
    (406, "not-acceptable", "Accept leaves JSON out"),
    (408, "slow", "The body came too slowly"),
    (
        409,
        "conflict",
        "Other rows stand against it: a unique or a foreign key",
    ),
    (
        412,
        "precondition-failed",
        "The document is not as If-Match or If-None-Match asks",
    ),
    (
        413,
        "too-large",
        "The body is too long, or asks for too many keys",
    ),
    (414, "uri-too-long", "The path with its query is too long"),
    (
        415,
        "unsupported-media-type",
        "The body is of another media type",
    ),
    (416, "beyond", "Range begins after the end"),
    (
        422,
        "unfit",
        "The body does not fit the table; `errors` says where",
    ),
    (
        429,
        "too-many",
        "The client asks too often, or too many passwords from its address are being checked",
    ),
    (500, "failure", "PostgreSQL gave an answer that is none"),
    (
        503,
        "unavailable",
        "PostgreSQL can't be reached and no tier may answer, or too many requests wait",
    ),
    (504, "timeout", "PostgreSQL did not answer in time"),
];

/// Of every path.
const EVERYWHERE: [u16; 6] = [400, 414, 429, 500, 503, 504];

/// A reference to a schema.
pub(super) fn schema(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// A reference to a parameter.
pub(super) fn parameter(name: &str) -> Value {
    json!({"$ref": format!("#/components/parameters/{name}")})
}

/// References to the problems of every path and those with these statuses.
pub(super) fn problems(statuses: &[u16]) -> impl Iterator<Item = (u16, Value)> {
    PROBLEMS
        .iter()
        .filter(move |(status, ..)| EVERYWHERE.contains(status) || statuses.contains(status))
        .map(|(status, name, _)| {
            let reference = format!("#/components/responses/{name}");
            (*status, json!({"$ref": reference}))
        })
}

/// What is referred to, with `schemas` and that of problems.
pub(super) fn components(mut schemas: Map<String, Value>, problem: &str) -> Value {
    schemas.insert(problem.to_owned(), problem_schema());
    json!({
        "schemas": schemas,
        "parameters": parameters(),
        "headers": headers(),
        "responses": responses(problem)
    })
}

/// RFC 9457, with what larder adds.
fn problem_schema() -> Value {
    json!({
        "type": "object",
        "description": "A problem (RFC 9457).",
        "properties": {
            "type": {"type": "string", "format": "uri-reference"},
            "title": {"type": "string"},
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": {"type": "string"},
            "code": {
                "type": "string",
                "description": "PostgreSQL's SQLSTATE.",
                "pattern": "^[0-9A-Z]{5}$"
            },
            "errors": {
                "type": "array",
                "description": "What does not fit, each with its place in the body.",
                "items": {
                    "type": "object",
                    "properties": {
                        "pointer": {"type": "string", "format": "json-pointer"},
                        "detail": {"type": "string"}
                    },
                    "required": ["pointer", "detail"]
                }
            }
        },
        "required": ["type", "title", "status", "detail"],
        "examples": [{
            "type": "about:blank",
            "title": "Not Found",
            "status": 404,
            "detail": "there is no document with this key"
        }]
    })
}

/// Headers of requests: the component's name, the header's, what it does.
const REQUEST_HEADERS: [(&str, &str, &str); 6] = [
    (
        "if-none-match",
        "If-None-Match",
        "Entity tags that the client has, or `*`: then 304.",
    ),
    (
        "if-none-match-write",
        "If-None-Match",
        "`*`: only where there is no document. Entity tags: only if it has none of them.",
    ),
    (
        "if-match",
        "If-Match",
        "Entity tags: only if the document still has one of them. `*`: only if there is one.",
    ),
    (
        "prefer",
        "Prefer",
        "`return=minimal`: without the stored document. `return=representation`: with it. `handling=lenient`: of many \
         documents each by itself.",
    ),
    (
        "larder-token",
        "Larder-Token",
        "What a write answered or `select larder.token()` gave: the answer is at least as new.",
    ),
    (
        "idempotency-key",
        "Idempotency-Key",
        "A repeat with the same key gets the first answer; another request with it is 422.",
    ),
];

/// One token; a list of them is taken as well.
const TOKEN: &str = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\\.[0-9]{1,18}$";

fn parameters() -> Value {
    let named = REQUEST_HEADERS.iter().map(|(name, header, description)| {
        let schema = match *name {
            "larder-token" => json!({"type": "string", "pattern": TOKEN}),
            "idempotency-key" => json!({"type": "string", "minLength": 1, "maxLength": 255}),
            _ => json!({"type": "string"}),
        };
        let parameter =
            json!({"name": header, "in": "header", "description": description, "schema": schema});
        ((*name).to_owned(), parameter)
    });
    Value::Object(named.collect())
}

/// Headers of answers: name and what it says.
const HEADERS: [(&str, &str); 12] = [
    ("ETag", "A hash of the bytes of the body, in quotes."),
    (
        "Cache-Status",
        "The way of the answer (RFC 9211), such as `larder; hit; detail=memory`.",
    ),
    ("Cache-Control", "`no-cache` unless configured."),
    (
        "Larder-Token",
        "A read that sends it is at least as new as this write, whichever larder answers.",
    ),
    (
        "Link",
        "The next page, where there is one: `<…>; rel=\"next\"` (RFC 8288).",
    ),
    ("Location", "The path of the document."),
    (
        "Preference-Applied",
        "What of `Prefer` was heeded (RFC 7240).",
    ),
    ("Retry-After", "Seconds after which to try again."),
    (
        "Vary",
        "`Accept-Encoding`, and `Origin` where pages of others may ask.",
    ),
    ("Accept-Ranges", "`bytes`."),
    ("Content-Range", "Which bytes these are, of how many."),
    ("Surrogate-Key", "Names for shared caches, as configured."),
];

fn headers() -> Value {
    let named = HEADERS.iter().map(|(name, description)| {
        let schema = match *name {
            "ETag" => json!({"type": "string", "pattern": "^\"[^\"]+\"$"}),
            "Location" => json!({"type": "string", "format": "uri-reference"}),
            "Retry-After" => json!({"type": "integer", "minimum": 0}),
            _ => json!({"type": "string"}),
        };
        let header = json!({"description": description, "schema": schema});
        ((*name).to_owned(), header)
    });
    Value::Object(named.collect())
}

fn responses(problem: &str) -> Value {
    let named = PROBLEMS.iter().map(|(status, name, description)| {
        let mut response = json!({
            "description": description,
            "content": {"application/problem+json": {"schema": schema(problem)}}
        });
        if matches!(*status, 429 | 503) {
            response["headers"] = super::operations::headers(&["Retry-After"]);
        }
        ((*name).to_owned(), response)
    });
    Value::Object(named.collect())
}
