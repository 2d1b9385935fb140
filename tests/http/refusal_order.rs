//! Which error a request gets that is wrong in several ways: for each kind of request, the errors in their order, each
//! alone and in every pair.

use axum::http::Method;

use crate::harness::service::{TestResponse, TestService};

const SCHEMA: &str = "
    create table item (id int primary key, title text not null);
    insert into item values (42, 'answer'), (7, 'seven');
    create table note (id int primary key, item_id int not null references item, text text);
    create index on note (item_id);
    create table thing (id int primary key)";

/// The hash is that of `test`. Documents of `shown` can't be written, since their notes don't show their primary key.
const CONFIG: &str = "
    document_max = '4KiB'
    [[auth.key]]
    name = 'test'
    hash = '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08'
    roles = ['staff']
    [[resource]]
    name = 'items'
    table = 'item'
    read = ['anonymous']
    write = ['staff']
    filters = ['title']
    [[resource]]
    name = 'closed'
    table = 'item'
    read = []
    write = []
    [[resource]]
    name = 'shown'
    table = 'item'
    read = ['anonymous']
    write = ['staff']
    [[resource.children]]
    name = 'notes'
    table = 'note'
    fields = { text = 'text' }
    [[resource]]
    name = 'things'
    table = 'thing'
    read = ['anonymous']
    write = ['staff']";

const KEY: (&str, &str) = ("x-api-key", "test");

/// A request before it is sent.
#[derive(Clone)]
struct RequestDraft {
    method: Method,
    resource: &'static str,
    /// The path after the name of the resource.
    rest: &'static str,
    query: Vec<String>,
    headers: Vec<(&'static str, &'static str)>,
    body: String,
}

impl RequestDraft {
    fn new(method: Method, rest: &'static str, body: &str) -> Self {
        Self {
            method,
            resource: "items",
            rest,
            query: Vec::new(),
            headers: vec![KEY],
            body: body.to_owned(),
        }
    }

    fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.set(name, value);
        self
    }

    fn set(&mut self, name: &'static str, value: &'static str) {
        self.headers.retain(|(other, _)| *other != name);
        self.headers.push((name, value));
    }

    async fn send(&self, larder: &TestService) -> TestResponse {
        let query = if self.query.is_empty() {
            String::new()
        } else {
            format!("?{}", self.query.join("&"))
        };
        let path = format!("/{}{}{query}", self.resource, self.rest);
        let method = self.method.clone();
        larder.send(method, &path, &self.headers, &self.body).await
    }
}

/// An error of a request: how the request is made wrong, and the answer.
struct ExpectedRefusal {
    name: &'static str,
    give: fn(&mut RequestDraft),
    status: u16,
    detail: &'static str,
}

const fn refusal(
    name: &'static str,
    status: u16,
    detail: &'static str,
    give: fn(&mut RequestDraft),
) -> ExpectedRefusal {
    ExpectedRefusal {
        name,
        give,
        status,
        detail,
    }
}

impl ExpectedRefusal {
    fn is_of(&self, answer: &TestResponse) -> bool {
        answer.status.as_u16() == self.status && answer.body.contains(self.detail)
    }
}

/// Checks that a request with one error gets its answer, and a request with two that of the first.
async fn check(larder: &TestService, sent: &RequestDraft, refusals: &[ExpectedRefusal]) {
    let accepted = sent.send(larder).await;
    assert!(accepted.status.is_success(), "{accepted:?}");
    let mut wrong = Vec::new();
    for (place, first) in refusals.iter().enumerate() {
        for second in &refusals[place..] {
            // In this order, since a later one may look at what an earlier one changes.
            let mut sent = sent.clone();
            if first.name != second.name {
                (second.give)(&mut sent);
            }
            (first.give)(&mut sent);
            let answer = sent.send(larder).await;
            if !first.is_of(&answer) {
                let (status, body) = (answer.status, answer.body);
                wrong.push(format!(
                    "{} and {}: {status} {body}",
                    first.name, second.name
                ));
            }
        }
    }
    let method = &sent.method;
    assert!(wrong.is_empty(), "{method}:\n{}", wrong.join("\n"));
}

const WRONG_KEY: ExpectedRefusal = refusal("credential", 401, "", |sent| {
    sent.set("x-api-key", "wrong");
});
const CLOSED: ExpectedRefusal = refusal("role", 403, "", |sent| sent.resource = "closed");
const LONG_URI: ExpectedRefusal = refusal("length", 414, "", |sent| {
    sent.query.push(format!("x={}", "x".repeat(48 << 10)));
});
const NO_RESOURCE: ExpectedRefusal = refusal("resource", 404, "", |sent| sent.resource = "nothing");
const NOT_JSON: ExpectedRefusal =
    refusal("Accept", 406, "", |sent| sent.set("accept", "text/html"));
const TOKEN: ExpectedRefusal = refusal("Larder-Token", 400, "Larder-Token", |sent| {
    sent.set("larder-token", "x");
});
const UNFIT: ExpectedRefusal = refusal("unfit", 503, "", |sent| sent.resource = "things");
const FIELDS: ExpectedRefusal = refusal("fields", 400, "fields:", |sent| {
    sent.query.push("fields=nothing".into());
});
const BAD_KEY: ExpectedRefusal = refusal("key", 400, "id", |sent| sent.rest = "/x");
const IF_MATCH: ExpectedRefusal =
    refusal("If-Match", 412, "", |sent| sent.set("if-match", "\"x\""));
const MEDIA_TYPE: ExpectedRefusal = refusal("Content-Type", 415, "", |sent| {
    sent.set("content-type", "text/plain");
});
const ONLY_READ: ExpectedRefusal = refusal("only read", 405, "", |sent| sent.resource = "shown");
const LONG_BODY: ExpectedRefusal = refusal("length of the body", 413, "", |sent| {
    sent.body = format!("{{\"title\":\"{}\"}}", "x".repeat(2 << 20));
});
const UNFIT_BODY: ExpectedRefusal = refusal("body", 422, "/title", |sent| {
    sent.body = r#"{"title":7}"#.into();
});
const IDEMPOTENCY_KEY: ExpectedRefusal =
    refusal("Idempotency-Key", 400, "Idempotency-Key", |sent| {
        sent.set("idempotency-key", "a");
    });
const MISSING: ExpectedRefusal = refusal("absence", 404, "", |sent| sent.rest = "/404");

/// A resource without a key is 503.
async fn larder() -> TestService {
    let larder = TestService::start(SCHEMA, CONFIG).await;
    larder
        .execute("alter table thing drop constraint thing_pkey")
        .await;
    crate::harness::eventually("unfit", async || {
        let answer = larder.get("/things/1").await;
        (answer.status.as_u16() == 503).then_some(())
    })
    .await;
    larder
}

/// The errors of every read, then `others`.
fn read_refusals<const N: usize>(others: [ExpectedRefusal; N]) -> Vec<ExpectedRefusal> {
    let all = [
        WRONG_KEY,
        CLOSED,
        LONG_URI,
        NO_RESOURCE,
        NOT_JSON,
        TOKEN,
        UNFIT,
        FIELDS,
    ];
    all.into_iter().chain(others).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_are_refused_in_this_order() {
    let larder = larder().await;
    let range = refusal("Range", 416, "", |sent| sent.set("range", "bytes=999-"));
    let document = read_refusals([BAD_KEY, MISSING, IF_MATCH, range]);
    check(
        &larder,
        &RequestDraft::new(Method::GET, "/42", ""),
        &document,
    )
    .await;
    let both = refusal("keys and a page", 400, "combined", |sent| {
        sent.query.extend(["keys=7".into(), "limit=1".into()]);
    });
    let list = read_refusals([both, IF_MATCH]);
    check(&larder, &RequestDraft::new(Method::GET, "", ""), &list).await;
    let keys = refusal("keys", 422, "/keys/0", |sent| {
        sent.body = r#"{"keys":["x"]}"#.into()
    });
    let batch = read_refusals([MEDIA_TYPE, LONG_BODY, keys, IF_MATCH]);
    let sent = RequestDraft::new(Method::POST, ":batch", r#"{"keys":[42]}"#);
    check(&larder, &sent, &batch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_are_refused_in_this_order() {
    let larder = larder().await;
    let json = |method: Method, rest, body: &str| {
        RequestDraft::new(method, rest, body).with("content-type", "application/json")
    };
    let before = || [WRONG_KEY, CLOSED, LONG_URI, NO_RESOURCE, UNFIT, ONLY_READ];
    let body = || [MEDIA_TYPE, LONG_BODY, UNFIT_BODY, IDEMPOTENCY_KEY];
    let put = before()
        .into_iter()
        .chain([BAD_KEY])
        .chain(body())
        .chain([IF_MATCH]);
    let put: Vec<_> = put.collect();
    let sent = json(Method::PUT, "/42", r#"{"title":"answer"}"#);
    check(&larder, &sent, &put).await;
    let unfit = [
        MEDIA_TYPE,
        LONG_BODY,
        IDEMPOTENCY_KEY,
        IF_MATCH,
        MISSING,
        UNFIT_BODY,
    ];
    let patch: Vec<_> = before().into_iter().chain([BAD_KEY]).chain(unfit).collect();
    let sent = json(Method::PATCH, "/42", r#"{"title":"answer"}"#);
    check(&larder, &sent, &patch).await;
    let exists = refusal("conflict", 409, "", |sent| {
        sent.body = r#"{"id":42,"title":"answer"}"#.into();
    });
    let post: Vec<_> = before().into_iter().chain(body()).chain([exists]).collect();
    let sent = json(Method::POST, "", r#"{"id":9,"title":"nine"}"#);
    check(&larder, &sent, &post).await;
}
