//! Reads of documents that have owners: a restricted client can't tell foreign documents from absent ones.

mod aliases;
mod outage;
mod own;
mod work;

use axum::http::{HeaderMap, Method};
use serde_json::json;

use crate::auth::now;
use crate::harness::cluster::TestCluster;
use crate::harness::service::{TestResponse, TestService, execute};

/// Order n has the number `N/n`. Orders 1 to 4 are those of customer 17, 5 to 8 those of customer 18; 9 and 10 have no owner.
const SCHEMA: &str = "
    create table orders (id int primary key, customer_id bigint, note text not null, number text not null unique);
    create index on orders (customer_id, id);
    insert into orders select n, case when n <= 8 then 17 + (n - 1) / 4 end, 'order ' || n || repeat('.', 3000), 'N/' || n
      from generate_series(1, 10) n";

/// One resource for each set of tiers. Its documents do not show their owners.
fn resources() -> String {
    let resource = |(name, tiers)| {
        format!(
            "[[resource]]\nname = '{name}'\ntable = 'orders'\ntiers = {tiers}\nfilters = ['note']\n\
             read = ['customer', 'staff', 'anonymous']\nwrite = ['staff']\ncache_control = 'public, max-age=5'\n\
             fields = {{ id = 'id', note = 'note' }}\n\
             [resource.owner]\ncolumn = 'customer_id'\nclaim = 'customer'\nroles = ['customer']\n\
             [[resource.by]]\nname = 'number'\ncolumns = ['number']\n"
        )
    };
    RESOURCES.map(resource).concat()
}

const RESOURCES: [(&str, &str); 4] = [
    ("orders", "['memory', 'disk']"),
    ("memory", "['memory']"),
    ("disk", "['disk']"),
    ("neither", "[]"),
];

const SECRET: &str = "a secret of thirty-two bytes long";

/// Everything that is queued is written at once.
const PROMPT: [(&str, &str); 2] = [("disk.linger", "1ms"), ("feed.poll_interval", "20ms")];

fn config() -> String {
    format!(
        "[auth.jwt]\nalgorithms = ['HS256']\nsecret = '{SECRET}'\nroles_claim = 'roles'\n{}",
        resources()
    )
}

async fn larder() -> TestService {
    let url = TestCluster::database().await.url;
    execute(&url, SCHEMA).await;
    TestService::start_on(&url, &config(), &PROMPT).await
}

/// A client of larder.
#[derive(Clone)]
struct Client(Option<String>);

/// The credential of a token with these claims.
fn client(mut claims: serde_json::Value) -> Client {
    claims["exp"] = (now() + 600).into();
    Client(Some(format!(
        "Bearer {}",
        crate::auth::token(SECRET, &claims)
    )))
}

fn customer(number: u32) -> Client {
    client(json!({"customer": number.to_string(), "roles": ["customer"]}))
}

fn staff() -> Client {
    client(json!({"customer": "17", "roles": ["customer", "staff"]}))
}

impl Client {
    async fn send(
        &self,
        larder: &TestService,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TestResponse {
        let mut all = headers.to_vec();
        if let Some(credential) = &self.0 {
            all.push(("authorization", credential));
        }
        larder.send(method, path, &all, body).await
    }

    async fn get(&self, larder: &TestService, path: &str) -> TestResponse {
        self.send(larder, Method::GET, path, &[], "").await
    }
}

/// All that a client learns, apart from the time.
fn learned(response: &TestResponse) -> (u16, HeaderMap, &[u8]) {
    let TestResponse {
        status,
        headers,
        bytes,
        ..
    } = response;
    (status.as_u16(), headers.clone(), bytes)
}
