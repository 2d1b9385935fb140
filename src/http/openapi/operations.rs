//! What each path of a resource answers.

use serde_json::{Map, Value, json};

use crate::http::headers::NDJSON;
use crate::http::openapi::documents::{Purpose, key_example, read_example, written_example};
use crate::http::openapi::parts::{parameter, problems, schema};
use crate::http::openapi::{keys, parameters};
use crate::http::read::KEYS_MAX;
use crate::resource::Resource;
use crate::resource::writable::Writable;

/// The names of a resource's schemas.
pub(super) struct Schemas {
    /// A document as it is read.
    pub(super) document: String,
    /// Parts of it.
    pub(super) part: String,
    /// A document for `POST`.
    pub(super) new: String,
    /// A document for `PUT`.
    pub(super) replacement: String,
    /// A merge patch.
    pub(super) patch: String,
}

/// Problems of every body that is written.
const WRITING: [u16; 6] = [403, 408, 409, 413, 415, 422];

/// The headers of what is read.
const READ_HEADERS: [&str; 6] = [
    "ETag",
    "Cache-Status",
    "Cache-Control",
    "Vary",
    "Accept-Ranges",
    "Surrogate-Key",
];

/// The headers of a write of one document.
const CONDITIONS: [&str; 3] = ["if-match", "if-none-match-write", "prefer"];

/// The paths of `resource` and what they answer; writes may have an `Idempotency-Key` if they are `repeatable`.
pub(super) fn paths(
    resource: &Resource,
    schemas: &Schemas,
    repeatable: bool,
) -> [(String, Value); 3] {
    let operations = Operations {
        resource,
        schemas,
        repeatable,
    };
    let name = &resource.name;
    let mut all = Map::new();
    let mut one = Map::new();
    one.insert("parameters".into(), json!(keys::parameters(&resource.key)));
    all.insert("get".into(), operations.list());
    one.insert("get".into(), operations.get());
    if let Ok(writable) = &resource.writable {
        all.insert("post".into(), operations.post(writable));
        one.insert("put".into(), operations.put(writable));
        one.insert("patch".into(), operations.patch(writable));
        one.insert("delete".into(), operations.delete());
    }
    [
        (format!("/{name}"), Value::Object(all)),
        (
            format!("/{name}:batch"),
            json!({"post": operations.batch()}),
        ),
        (
            format!("/{name}/{}", keys::path(&resource.key)),
            Value::Object(one),
        ),
    ]
}

struct Operations<'r> {
    resource: &'r Resource,
    schemas: &'r Schemas,
    repeatable: bool,
}

impl Operations<'_> {
    fn operation(&self, verb: &str, summary: &str) -> Value {
        let name = &self.resource.name;
        json!({
            "operationId": format!("{name}.{verb}"),
            "tags": [name],
            "summary": summary
        })
    }

    fn list(&self) -> Value {
        let mut operation = self.operation("list", "A page of documents, or those of some keys");
        operation["description"] = json!(
            "A page in the order of the keys, an array; or with `keys` or `key` an object: \
             the documents of these keys in the order asked, and the keys that have none. \
             Both can't be asked at once. `HEAD` is answered as well."
        );
        let mut asked = parameters::page(self.resource);
        asked.extend(parameters::keys(&self.resource.key));
        asked.push(parameters::fields(&self.resource.root));
        asked.extend(["if-match", "if-none-match", "larder-token"].map(parameter));
        operation["parameters"] = json!(asked);
        let page = json!({"type": "array", "items": self.document()});
        let mut found = found(
            &json!({"anyOf": [page, self.batch_answer()]}),
            "The documents",
        );
        found["headers"]["Link"] = json!({"$ref": "#/components/headers/Link"});
        operation["responses"] = responses([(200, found), (304, not_modified())], &[406, 412, 413]);
        operation
    }

    /// A document, or parts of it where `fields` asks for them.
    fn document(&self) -> Value {
        json!({"anyOf": [schema(&self.schemas.document), schema(&self.schemas.part)]})
    }

    fn batch_answer(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "documents": {"type": "array", "items": self.document()},
                "missing": {"type": "array", "items": keys::json_key_read(&self.resource.key)}
            },
            "required": ["documents", "missing"],
            "additionalProperties": false
        })
    }

    fn batch(&self) -> Value {
        let mut operation = self.operation("batch", "The documents of many keys");
        let keys = json!({
            "type": "object",
            "properties": {
                "keys": {
                    "type": "array",
                    "items": keys::json_key(&self.resource.key),
                    "maxItems": KEYS_MAX
                }
            },
            "required": ["keys"],
            "additionalProperties": false
        });
        let example = json!({"keys": [self.key_example()]});
        operation["parameters"] = json!([
            parameters::fields(&self.resource.root),
            parameter("larder-token")
        ]);
        operation["requestBody"] = body([("application/json", keys, example)]);
        operation["responses"] = responses(
            [(
                200,
                found(
                    &self.batch_answer(),
                    "The documents, and the keys that have none",
                ),
            )],
            &[406, 408, 413, 415, 422],
        );
        operation
    }

    fn key_example(&self) -> Value {
        match self.resource.key.columns.as_slice() {
            [column] => key_example(column),
            columns => columns.iter().map(key_example).collect(),
        }
    }

    fn get(&self) -> Value {
        let mut operation = self.operation("get", "One document");
        operation["description"] = json!("`HEAD` is answered as well.");
        operation["parameters"] = json!([
            parameters::fields(&self.resource.root),
            parameter("if-match"),
            parameter("if-none-match"),
            parameter("larder-token")
        ]);
        operation["responses"] = responses(
            [
                (200, found(&self.document(), "The document")),
                (206, part()),
                (304, not_modified()),
            ],
            &[404, 406, 412, 416],
        );
        operation
    }

    /// The parameters of a write: `names`, and the one of every write.
    fn written_with(&self, names: &[&str]) -> Value {
        let every = self.repeatable.then_some("idempotency-key");
        json!(
            names
                .iter()
                .copied()
                .chain(every)
                .map(parameter)
                .collect::<Vec<_>>()
        )
    }

    fn post(&self, writable: &Writable) -> Value {
        let mut operation = self.operation("post", "Insert one document or many");
        operation["description"] = json!(
            "An array, or NDJSON, holds many documents, as many as one likes: all are inserted in one transaction, or \
             none is. With `Prefer: handling=lenient` each is inserted by itself, and each has its outcome, a line as \
             soon as it is known: read while you send. `Idempotency-Key` is for one document."
        );
        let example = written_example(self.resource, writable, Purpose::New);
        let new = schema(&self.schemas.new);
        let many = json!({"type": "array", "items": new});
        let one_or_many = json!({"anyOf": [new, many]});
        // As OpenAPI 3.2 has it: what follows each other is described as an array.
        let lines = json!([example]);
        operation["parameters"] = self.written_with(&["prefer"]);
        operation["requestBody"] = body([
            ("application/json", one_or_many, example),
            (NDJSON, many, lines),
        ]);
        let answers = [(200, outcomes()), (201, self.inserted())];
        operation["responses"] = responses(answers, &WRITING);
        operation
    }

    fn put(&self, writable: &Writable) -> Value {
        let mut operation = self.operation("put", "Insert or replace a document");
        operation["description"] = json!(
            "The document and the rows below it become exactly the body. \
             Rows that did not change are not touched."
        );
        let example = written_example(self.resource, writable, Purpose::Replacement);
        let replacement = schema(&self.schemas.replacement);
        operation["parameters"] = self.written_with(&CONDITIONS);
        operation["requestBody"] = body([("application/json", replacement, example)]);
        let mut problems = WRITING.to_vec();
        problems.push(412);
        operation["responses"] = responses(
            [
                (200, self.stored()),
                (201, self.created()),
                (204, done("Replaced; the client prefers no body")),
            ],
            &problems,
        );
        operation
    }

    fn patch(&self, writable: &Writable) -> Value {
        let mut operation = self.operation("patch", "Change a document");
        operation["description"] =
            json!("JSON merge patch (RFC 7396); an array takes the place of the whole array.");
        let example = written_example(self.resource, writable, Purpose::Patch);
        let patch = schema(&self.schemas.patch);
        operation["parameters"] = self.written_with(&CONDITIONS);
        operation["requestBody"] = body([
            (
                "application/merge-patch+json",
                patch.clone(),
                example.clone(),
            ),
            ("application/json", patch, example),
        ]);
        let mut problems = WRITING.to_vec();
        problems.extend([404, 412]);
        operation["responses"] = responses(
            [
                (200, self.stored()),
                (204, done("Changed; the client prefers no body")),
            ],
            &problems,
        );
        operation
    }

    fn delete(&self) -> Value {
        let mut operation = self.operation("delete", "Delete a document and the rows below it");
        operation["parameters"] = self.written_with(&["if-match", "if-none-match-write"]);
        operation["responses"] = responses([(204, done("Deleted"))], &[403, 404, 409, 412, 422]);
        operation
    }

    fn stored(&self) -> Value {
        json!({
            "description": "The document as it is stored",
            "headers": headers(&["ETag", "Larder-Token", "Preference-Applied"]),
            "content": content(&schema(&self.schemas.document))
        })
    }

    /// One document as [`Self::created`], or many.
    fn inserted(&self) -> Value {
        let document = schema(&self.schemas.document);
        let count = json!({
            "type": "object",
            "properties": {"count": {"type": "integer", "minimum": 0}},
            "required": ["count"],
            "additionalProperties": false
        });
        let mut inserted = self.created();
        inserted["description"] = json!(
            "Inserted; the document as it is stored, if not preferred otherwise. Of many their number, or with \
             `return=representation` all of them, at most 1,000"
        );
        inserted["content"] = content(&json!({
            "anyOf": [document, count, {"type": "array", "items": document}]
        }));
        inserted
    }

    fn created(&self) -> Value {
        json!({
            "description": "Inserted; the document as it is stored, if not preferred otherwise",
            "headers": headers(&["ETag", "Larder-Token", "Location", "Preference-Applied"]),
            "content": content(&schema(&self.schemas.document))
        })
    }
}

/// What became of each of many documents.
fn outcomes() -> Value {
    let outcome = json!({
        "type": "object",
        "properties": {
            "index": {"type": "integer", "minimum": 0},
            "status": {"type": "integer"},
            "location": {"type": "string", "format": "uri-reference"},
            "token": {"type": "string", "description": "As `Larder-Token`."},
            "problem": {"type": "object", "description": "A problem (RFC 9457)."}
        },
        "required": ["index", "status"]
    });
    json!({
        "description": "What became of each document, a line for each, in their order",
        "headers": headers(&["Preference-Applied"]),
        "content": {NDJSON: {"schema": {"type": "array", "items": outcome}}}
    })
}

/// Examples of both, for whoever looks at the schemas.
pub(super) fn with_example(mut schema: Value, resource: &Resource) -> Value {
    schema["examples"] = json!([read_example(resource)]);
    schema
}

fn body<const N: usize>(types: [(&str, Value, Value); N]) -> Value {
    let content = types.map(|(media_type, schema, example)| {
        (
            media_type.to_owned(),
            json!({"schema": schema, "example": example}),
        )
    });
    json!({"required": true, "content": Map::from_iter(content)})
}

fn content(schema: &Value) -> Value {
    json!({"application/json": {"schema": schema}})
}

pub(super) fn headers(names: &[&str]) -> Value {
    let named = names.iter().map(|name| {
        let reference = format!("#/components/headers/{name}");
        ((*name).to_owned(), json!({"$ref": reference}))
    });
    named.collect()
}

fn found(schema: &Value, description: &str) -> Value {
    json!({
        "description": description,
        "headers": headers(&READ_HEADERS),
        "content": content(schema)
    })
}

fn part() -> Value {
    let mut part = json!({
        "description": "The bytes of the document that Range asks for",
        "headers": headers(&READ_HEADERS),
        "content": {"application/json": {}}
    });
    part["headers"]["Content-Range"] = json!({"$ref": "#/components/headers/Content-Range"});
    part
}

fn not_modified() -> Value {
    json!({
        "description": "The client has it",
        "headers": headers(&READ_HEADERS)
    })
}

fn done(description: &str) -> Value {
    json!({"description": description, "headers": headers(&["Larder-Token"])})
}

/// Answers by status, in its order.
fn responses<const N: usize>(answers: [(u16, Value); N], wrong: &[u16]) -> Value {
    let mut all: Vec<(u16, Value)> = answers.into_iter().chain(problems(wrong)).collect();
    all.sort_by_key(|(status, _)| *status);
    let named = all
        .into_iter()
        .map(|(status, answer)| (status.to_string(), answer));
    Value::Object(named.collect())
}
