//! A larder under test: the real routers, the real tiers, a database of its own.

use std::convert::Infallible;
use std::fmt::Debug;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use larder::commands::serve;
use larder::config::Config;
use larder::http::middleware::stack::PublicService;
use larder::server::ServerConfig;
use larder::state::StateLock;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;
use testkit::http::Answer;
use tokio::runtime::Handle;
use tower::{Service, ServiceExt};

use crate::harness::cluster::{TestCluster, TestDatabase};
use crate::harness::eventually;

/// A running larder without sockets.
pub(crate) struct TestService {
    service: serve::Service,
    pub(crate) url: String,
    public: PublicService,
    admin: Router,
    /// Removed when dropped, unless the test keeps it.
    pub(crate) state: TempDir,
}

/// The response to a request, with its whole body.
#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// Empty where it is no text.
    pub(crate) body: String,
    pub(crate) bytes: Vec<u8>,
}

impl From<Answer> for TestResponse {
    fn from(answer: Answer) -> Self {
        let bytes = answer.body.to_vec();
        Self {
            status: StatusCode::from_u16(answer.status).unwrap(),
            headers: answer.headers,
            body: String::from_utf8(bytes.clone()).unwrap_or_default(),
            bytes,
        }
    }
}

impl TestResponse {
    /// The value of `cache-status`, empty where there is none.
    pub(crate) fn cache_status(&self) -> &str {
        self.header("cache-status")
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

impl TestService {
    /// Runs `sql` in a new database, then starts larder on it with the `larder.toml` in `toml`, and waits until it is
    /// ready.
    pub(crate) async fn start(sql: &str, toml: &str) -> Self {
        let TestDatabase { url } = TestCluster::database().await;
        execute(&url, sql).await;
        Self::start_on(&url, toml, &[]).await
    }

    /// The same on a database that is there; `overrides` are settings as flags would give them.
    pub(crate) async fn start_on(url: &str, toml: &str, overrides: &[(&str, &str)]) -> Self {
        Self::start_in(TempDir::new().unwrap(), url, toml, overrides).await
    }

    /// The same over the state of an earlier larder.
    pub(crate) async fn start_in(
        state: TempDir,
        url: &str,
        toml: &str,
        overrides: &[(&str, &str)],
    ) -> Self {
        let this = Self::begin_in(state, url, toml, overrides);
        eventually("ready", async || {
            let answer = this.admin("/readyz").await;
            (answer.status == StatusCode::OK).then_some(())
        })
        .await;
        this
    }

    /// The same without waiting until it is ready.
    pub(crate) fn begin_in(
        state: TempDir,
        url: &str,
        toml: &str,
        overrides: &[(&str, &str)],
    ) -> Self {
        let directory = state.path().to_str().unwrap().to_owned();
        // With thousands of hits the audit would drop the stale documents that a test is to find.
        let mut all = vec![
            ("database.url", url),
            ("state_dir", directory.as_str()),
            ("audit.sample", "0"),
        ];
        all.extend_from_slice(overrides);
        let config = Config::from_toml(toml, &all).unwrap();
        // The same node as the larder that left the state.
        let node = StateLock::acquire(state.path()).unwrap().node().unwrap();
        let service = serve::Service::start(&config, url, node, &[Handle::current()]).unwrap();
        Self {
            public: service.public(),
            admin: service.admin_router(None),
            service,
            url: url.to_owned(),
            state,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> TestResponse {
        self.request(Method::GET, path, &[]).await
    }

    /// As [`TestService::get`], with headers.
    pub(crate) async fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
    ) -> TestResponse {
        self.send(method, path, headers, "").await
    }

    /// As [`TestService::send`], the body JSON unless `headers` name another type.
    pub(crate) async fn write(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TestResponse {
        let json = ("content-type", "application/json");
        let mut all = vec![json];
        all.retain(|(name, _)| headers.iter().all(|(other, _)| other != name));
        all.extend_from_slice(headers);
        self.send(method, path, &all, body).await
    }

    /// As [`TestService::request`], with a body.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TestResponse {
        send(&self.public, method, path, headers, body.to_owned()).await
    }

    /// As [`TestService::send`], with a body that need not be text.
    pub(crate) async fn send_bytes(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> TestResponse {
        send(&self.public, method, path, headers, body).await
    }

    /// The public address's service, to be served over a socket.
    pub(crate) fn public(&self) -> PublicService {
        self.public.clone()
    }

    /// How it would be served there.
    pub(crate) fn server_config(&self) -> ServerConfig {
        let config = Config::from_toml("", &[]).unwrap();
        self.service.server_config(&config)
    }

    /// Any method on the admin address.
    pub(crate) async fn request_admin(&self, method: Method, path: &str) -> TestResponse {
        self.request_admin_with(method, path, &[]).await
    }

    /// The same with headers.
    pub(crate) async fn request_admin_with(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
    ) -> TestResponse {
        send(&self.admin, method, path, headers, Body::empty()).await
    }

    /// `GET` on the admin address.
    pub(crate) async fn admin(&self, path: &str) -> TestResponse {
        send(&self.admin, Method::GET, path, &[], Body::empty()).await
    }

    /// `POST` on the admin address.
    pub(crate) async fn post_admin(&self, path: &str) -> TestResponse {
        send(&self.admin, Method::POST, path, &[], Body::empty()).await
    }

    /// The value of the first metric of this name.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = self.admin("/metrics").await.body;
        let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
        let mut values = lines.filter(|(metric, _)| {
            *metric == name || metric.split_once('{').is_some_and(|(bare, _)| bare == name)
        });
        let (_, value) = values.next().unwrap();
        assert!(values.next().is_none(), "name the labels of {name}");
        value.parse().unwrap()
    }

    /// Waits until the feed rests for its `poll_interval`, which must be long. After its start, and as long as transactions of
    /// any database are open, one pass follows another.
    pub(crate) async fn feed_rests(&self) {
        eventually("the feed rests", async || {
            (self.metric("larder_feed_age_seconds").await >= 1.0).then_some(())
        })
        .await;
    }

    /// Runs SQL on a connection of its own.
    pub(crate) async fn execute(&self, sql: &str) {
        execute(&self.url, sql).await;
    }

    /// A connection of the test's own, for transactions that stay open.
    pub(crate) async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }

    /// Stops larder in good order and keeps its state directory.
    pub(crate) async fn stop(self) -> TempDir {
        self.service.stop().await;
        self.state
    }
}

/// Runs SQL, many statements if need be, on a connection of its own.
pub(crate) async fn execute(url: &str, sql: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}

async fn send<S, B>(
    service: &S,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> TestResponse
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone,
    B: HttpBody<Error: Debug>,
{
    let mut request = Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", "localhost");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(body.into()).unwrap();
    let response = service.clone().oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    TestResponse {
        status: head.status,
        headers: head.headers,
        body: String::from_utf8(body.to_vec()).unwrap_or_default(),
        bytes: body.to_vec(),
    }
}
