//! The answers of the service match `/openapi.json`. `schema-3.1.json` is the OpenAPI Initiative's schema of such
//! documents (Apache-2.0), of 2022-10-07.

use axum::http::Method;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jsonschema::Validator;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::documents::{self, oracle, shapes};
use crate::harness::service::{TestResponse, TestService};

const METASCHEMA: &str = include_str!("openapi/schema-3.1.json");

/// The description and the schemas in it.
struct OpenApiDescription(Value);

impl OpenApiDescription {
    async fn fetch(larder: &TestService) -> Self {
        Self::fetch_with(larder, &[]).await
    }

    /// What a client with these headers sees.
    async fn fetch_with(larder: &TestService, headers: &[(&str, &str)]) -> Self {
        let answer = larder.request(Method::GET, "/openapi.json", headers).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        Self(answer.json())
    }

    /// What checks values of `schema`, whose references are to this description.
    fn validator(&self, schema: &Value) -> Validator {
        let whole = json!({
            "allOf": [schema],
            "components": self.0["components"]
        });
        jsonschema::draft202012::new(&whole).unwrap()
    }

    fn component(&self, name: &str) -> Validator {
        self.validator(&json!({"$ref": format!("#/components/schemas/{name}")}))
    }

    /// What is described at `path` for `method` and the status of `answer`.
    fn response<'d>(&'d self, method: &str, path: &str, answer: &TestResponse) -> &'d Value {
        let responses = &self.0["paths"][path][method]["responses"];
        let response = &responses[answer.status.as_str()];
        assert!(!response.is_null(), "{method} {path}: {answer:?}");
        match response["$ref"].as_str() {
            Some(reference) => self.0.pointer(reference.trim_start_matches('#')).unwrap(),
            None => response,
        }
    }

    /// Whether `answer` is described: its status, its headers, its body.
    #[track_caller]
    fn assert_described(&self, method: &str, path: &str, answer: &TestResponse) {
        let response = self.response(method, path, answer);
        let what = format!("{method} {path}: {answer:?}");
        let unsaid = ["content-type", "content-length"];
        for name in answer.headers.keys().map(|name| name.as_str()) {
            let headers = response["headers"].as_object();
            let mut said = headers.into_iter().flat_map(|headers| headers.keys());
            let is_said = said.any(|said| said.eq_ignore_ascii_case(name));
            assert!(
                unsaid.contains(&name) || is_said || answer.status.is_client_error(),
                "{name}: {what}"
            );
        }
        // A part of JSON is none.
        if answer.body.is_empty() || answer.status == 206 {
            return;
        }
        let schema = &response["content"][answer.header("content-type")]["schema"];
        assert!(!schema.is_null(), "{what}");
        let found = self.validator(schema);
        let wrong: Vec<String> = found
            .iter_errors(&answer.json())
            .map(|error| error.to_string())
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}: {what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_description_is_openapi() {
    let sql = format!("{}{}", documents::SCHEMA, documents::ROWS);
    let larder = TestService::start(&sql, documents::CONFIG).await;
    let description = OpenApiDescription::fetch(&larder).await.0;
    let metaschema: Value = serde_json::from_str(METASCHEMA).unwrap();
    let metaschema = jsonschema::draft202012::new(&metaschema).unwrap();
    let wrong: Vec<String> = metaschema
        .iter_errors(&description)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (name, schema) in description["components"]["schemas"].as_object().unwrap() {
        let valid = jsonschema::draft202012::meta::is_valid(schema);
        assert!(valid, "{name}: {schema}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_document_matches_its_schema() {
    let sql = format!("{}{}", documents::SCHEMA, documents::ROWS);
    let larder = TestService::start(&sql, documents::CONFIG).await;
    let description = OpenApiDescription::fetch(&larder).await;
    let mut connection = PgConnection::connect(&larder.url).await.unwrap();
    let expected = oracle::documents(&mut connection, &shapes::documented()).await;
    let mut wrong = Vec::new();
    for (path, document) in expected {
        let name = path.split('/').nth(1).unwrap();
        let document: Value = serde_json::from_str(&document).unwrap();
        for schema in [name.to_owned(), format!("{name}-part")] {
            let errors = description.component(&schema);
            let errors = errors.iter_errors(&document);
            wrong.extend(errors.map(|error| format!("{path} {}: {error}", error.instance_path())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_match_their_schemas() {
    let sql = format!("{}{}", documents::SCHEMA, documents::ROWS);
    let larder = TestService::start(&sql, documents::CONFIG).await;
    let description = OpenApiDescription::fetch(&larder).await;
    for (name, schema) in description.0["components"]["schemas"].as_object().unwrap() {
        for example in schema["examples"].as_array().into_iter().flatten() {
            let errors: Vec<String> = description
                .component(name)
                .iter_errors(example)
                .map(|error| format!("{}: {error}", error.instance_path()))
                .collect();
            assert!(errors.is_empty(), "{name}: {errors:?}");
        }
    }
    for (path, operations) in description.0["paths"].as_object().unwrap() {
        for method in ["post", "put", "patch"] {
            let content = &operations[method]["requestBody"]["content"];
            for body in content
                .as_object()
                .into_iter()
                .flat_map(|content| content.values())
            {
                let wrong = description.validator(&body["schema"]);
                let wrong: Vec<String> = wrong
                    .iter_errors(&body["example"])
                    .map(|error| error.to_string())
                    .collect();
                assert!(wrong.is_empty(), "{method} {path}: {wrong:?}");
            }
        }
    }
}

const ITEMS: &str = "
    create table item (id bigint primary key, title varchar(5) not null unique, unique (id, title));
    insert into item values (1, 'a'), (2, 'b'), (42, 'c');";
const ITEMS_CONFIG: &str = "
    [[resource]]
    name = 'items'
    table = 'item'
    filters = ['title']
    [[resource.by]]
    name = 'title'
    columns = 'title'
    [[resource.by]]
    name = 'pair'
    columns = ['id', 'title']";

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_described() {
    let larder = TestService::start(ITEMS, ITEMS_CONFIG).await;
    let description = OpenApiDescription::fetch(&larder).await;
    let etag = larder.get("/items/42").await.header("etag").to_owned();
    for (path, template) in [
        ("/items/42", "/items/{key}"),
        ("/items/42?fields=title", "/items/{key}"),
        ("/items/404", "/items/{key}"),
        ("/items/x", "/items/{key}"),
        ("/items?limit=2", "/items"),
        ("/items?limit=2&fields=id", "/items"),
        ("/items?title=eq.b", "/items"),
        ("/items?limit=0", "/items"),
        ("/items?keys=1,404", "/items"),
        ("/items?keys=x", "/items"),
        ("/items?by=title&keys=c,x", "/items"),
        ("/items?by=pair&key=42,c&key=7,x", "/items"),
        ("/items?by=id&keys=1", "/items"),
        ("/items/by/title/c", "/items/by/title/{key}"),
        ("/items/by/title/c?fields=title", "/items/by/title/{key}"),
        ("/items/by/title/x", "/items/by/title/{key}"),
        ("/items/by/pair/42,c", "/items/by/pair/{id},{title}"),
        ("/items/by/pair/x,c", "/items/by/pair/{id},{title}"),
    ] {
        let answer = larder.get(path).await;
        description.assert_described("get", template, &answer);
        let again = larder
            .request(Method::GET, path, &[("if-none-match", &etag)])
            .await;
        description.assert_described("get", template, &again);
    }
    for headers in [
        [("range", "bytes=0-3")],
        [("range", "bytes=900-")],
        [("accept", "text/html")],
    ] {
        let answer = larder.request(Method::GET, "/items/42", &headers).await;
        description.assert_described("get", "/items/{key}", &answer);
    }
    let json = [("content-type", "application/json")];
    for (prefer, body) in [
        ("", r#"{"id":5,"title":"e"}"#),
        ("", r#"[{"id":6,"title":"f"}]"#),
        ("return=minimal", r#"[{"id":7,"title":"g"}]"#),
        ("return=representation", r#"[{"id":8,"title":"h"}]"#),
        ("", "[{}]"),
        ("", "[{"),
    ] {
        let headers = [json[0], ("prefer", prefer)];
        let answer = larder.send(Method::POST, "/items", &headers, body).await;
        description.assert_described("post", "/items", &answer);
    }
    for (headers, body) in [
        (&json[..], r#"{"keys":[1,404]}"#),
        (&json, r#"{"keys":["x"]}"#),
        (&json, "{"),
        (&[], "{}"),
    ] {
        let answer = larder
            .send(Method::POST, "/items:batch", headers, body)
            .await;
        description.assert_described("post", "/items:batch", &answer);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_in_bodies_are_described_as_they_are_accepted() {
    let larder = TestService::start(
        "create table text (id text primary key);
         create table n3 (id numeric(3) primary key);
         create table n19 (id numeric(19) primary key);
         create table n30 (id numeric(30) primary key);",
        "[[resource]]
         name = 'text'
         table = 'text'
         [[resource]]
         name = 'n3'
         table = 'n3'
         [[resource]]
         name = 'n19'
         table = 'n19'
         [[resource]]
         name = 'n30'
         table = 'n30'",
    )
    .await;
    let description = OpenApiDescription::fetch(&larder).await;
    for resource in ["text", "n3", "n19", "n30"] {
        let path = format!("/{resource}:batch");
        let body =
            &description.0["paths"][&path]["post"]["requestBody"]["content"]["application/json"];
        let schema = description.validator(&body["schema"]);
        for key in [
            json!(7),
            json!("-7"),
            json!(999),
            json!(1000),
            json!(i64::MIN),
            json!(u64::MAX),
            json!(9_999_999_999_999_999_999_u64),
            json!("1000000000000000000000"),
            json!(1.5),
            json!(null),
        ] {
            let keys = json!({"keys": [key]});
            let json = [("content-type", "application/json")];
            let answer = larder
                .send(Method::POST, &path, &json, &keys.to_string())
                .await;
            let accepted = answer.status == 200;
            assert_eq!(
                schema.is_valid(&keys),
                accepted,
                "{resource} {keys}: {answer:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_description_follows_the_tables() {
    let larder = TestService::start(ITEMS, ITEMS_CONFIG).await;
    let before = larder.get("/openapi.json").await;
    let etag = before.header("etag");
    let unchanged = [("if-none-match", etag)];
    let again = larder
        .request(Method::GET, "/openapi.json", &unchanged)
        .await;
    assert_eq!(again.status, 304);
    let length = |answer: &TestResponse| {
        answer.json()["components"]["schemas"]["items"]["properties"]["title"]["maxLength"].clone()
    };
    assert_eq!(length(&before), 5);
    larder
        .execute("alter table item alter column title type varchar(9)")
        .await;
    crate::harness::eventually("described anew", async || {
        let answer = larder.get("/openapi.json").await;
        (answer.status == 200 && length(&answer) == 9).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_and_what_it_loads_are_served() {
    let larder = TestService::start(ITEMS, ITEMS_CONFIG).await;
    let page = larder.get("/docs").await;
    assert_eq!(page.status, 200);
    let mut loaded = 0;
    for part in page
        .body
        .split('"')
        .filter(|part| part.starts_with("docs/"))
    {
        let head = larder.request(Method::HEAD, &format!("/{part}"), &[]).await;
        assert_eq!(head.status, 200, "{part}");
        let policy = head.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"));
        let unchanged = [("if-none-match", head.header("etag"))];
        let again = larder
            .request(Method::HEAD, &format!("/{part}"), &unchanged)
            .await;
        assert_eq!(again.status, 304, "{part}");
        loaded += 1;
    }
    assert_eq!(loaded, 3);
    let wrong = larder.request(Method::POST, "/docs", &[]).await;
    assert_eq!(wrong.status, 405);
    assert!(wrong.header("allow").contains("GET"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_description_can_be_turned_off() {
    let config = format!("docs = false\n{ITEMS_CONFIG}");
    let larder = TestService::start(ITEMS, &config).await;
    for path in ["/", "/openapi.json", "/docs", "/docs/start.js"] {
        assert_eq!(larder.get(path).await.status, 404, "{path}");
    }
}

/// A key and its SHA-256.
const PROGRAM: (&str, &str) = (
    "test",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
);

#[tokio::test(flavor = "multi_thread")]
async fn authorization_is_described() {
    let hash = larder::auth::passwords::hash(b"anna's").unwrap();
    let resource = |name: &str, roles: &str| {
        format!("[[resource]]\nname = '{name}'\ntable = 'item'\n{roles}\n")
    };
    let config = [
        "[auth.jwt]\nalgorithms = ['HS256']\nsecret = 'a secret that is thirty-two bytes'\n",
        "cookie = 'larder'\n",
        &format!("[[auth.user]]\nname = 'anna'\npassword = '{hash}'\nroles = ['b']\n"),
        &format!("[[auth.key]]\nname = 'job'\nhash = '{}'\n", PROGRAM.1),
        &resource("items", ""),
        &resource("open", "read = ['anonymous']\nwrite = []"),
        &resource("closed", "read = ['a', 'b']\nwrite = ['b']"),
    ];
    let larder = TestService::start(ITEMS, &config.concat()).await;
    // The description has the resources that a client may use: all of them for anna.
    let anna = format!("Basic {}", STANDARD.encode("anna:anna's"));
    let described = OpenApiDescription::fetch_with(&larder, &[("authorization", &anna)]).await;
    let metaschema: Value = serde_json::from_str(METASCHEMA).unwrap();
    let metaschema = jsonschema::draft202012::new(&metaschema).unwrap();
    assert!(metaschema.is_valid(&described.0), "{}", described.0);
    let schemes = &described.0["components"]["securitySchemes"];
    assert_eq!(schemes["basic"]["scheme"], "basic");
    assert_eq!(schemes["bearer"]["scheme"], "bearer");
    assert_eq!(schemes["apiKey"]["name"], "X-API-Key");
    assert_eq!(schemes["cookie"]["name"], "larder");
    let paths = &described.0["paths"];
    let any = json!([{"basic": []}, {"bearer": []}, {"apiKey": []}, {"cookie": []}]);
    assert_eq!(paths["/items"]["post"]["security"], any);
    assert_eq!(paths["/items:batch"]["post"]["security"], any);
    assert_eq!(paths["/open"]["get"]["security"][0], json!({}));
    assert!(paths["/open"].get("post").is_none(), "no role may write");
    let closed = &paths["/closed"];
    assert_eq!(closed["get"]["security"][1], json!({"basic": ["b"]}));
    assert_eq!(closed["post"]["security"][0], json!({"basic": ["b"]}));
    let path = "/closed/{key}";
    let refused = larder.get("/closed/1").await;
    described.assert_described("get", path, &refused);
    let key = [("x-api-key", PROGRAM.0)];
    let refused = larder.request(Method::GET, "/closed/1", &key).await;
    assert_eq!(refused.status, 403);
    described.assert_described("get", path, &refused);
    let granted = larder
        .write(
            Method::POST,
            "/signin",
            &[],
            r#"{"name":"anna","password":"anna's"}"#,
        )
        .await;
    assert_eq!(granted.status, 200);
    described.assert_described("post", "/signin", &granted);
    let bearer = format!("Bearer {}", granted.json()["token"].as_str().unwrap());
    let renewed = larder
        .request(Method::POST, "/refresh", &[("authorization", &bearer)])
        .await;
    described.assert_described("post", "/refresh", &renewed);
    let signed_out = larder.request(Method::POST, "/signout", &[]).await;
    described.assert_described("post", "/signout", &signed_out);
}
