//! A web server that takes rows, and remembers them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::sleep;
use tower::ServiceExt;

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) at: SystemTime,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
    pub(super) json: Value,
}

impl Received {
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    pub(super) fn elements(&self) -> &[Value] {
        self.json["data"].as_array().unwrap()
    }
}

/// How a request is answered: by its number from 0, and its content.
type Answers = Arc<dyn Fn(usize, &Received) -> Answer + Send + Sync>;

/// A response, after a wait.
pub(super) struct Answer {
    pub(super) wait: Option<oneshot::Receiver<()>>,
    pub(super) response: Response,
}

impl Answer {
    pub(super) fn of(status: u16, body: &str) -> Self {
        let status = StatusCode::from_u16(status).unwrap();
        Self {
            wait: None,
            response: (status, body.to_owned()).into_response(),
        }
    }

    /// Takes all rows after `pause`.
    pub(super) fn after(pause: Duration) -> Self {
        let (asleep, wait) = oneshot::channel::<()>();
        tokio::spawn(async move {
            sleep(pause).await;
            drop(asleep);
        });
        Self {
            wait: Some(wait),
            ..Self::of(200, "")
        }
    }
}

/// The server. It runs until the test ends.
#[derive(Clone)]
pub(super) struct TestSink {
    pub(super) url: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl TestSink {
    /// Takes all rows.
    pub(super) async fn start() -> Self {
        Self::answering(|_, _| Answer::of(200, "")).await
    }

    pub(super) async fn answering(
        answers: impl Fn(usize, &Received) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let received = Arc::default();
        let answers: Answers = Arc::new(answers);
        let sink = Self {
            url,
            received: Arc::clone(&received),
        };
        let router = Router::new()
            .route("/hook", post(take))
            .with_state((received, answers));
        tokio::spawn(async move { axum_serve(listener, router).await });
        sink
    }

    /// Takes all rows, but answers the requests that `holds` says by their numbers only once the test drops what it receives
    /// for each request.
    pub(super) async fn holding(
        holds: impl Fn(usize) -> bool + Send + Sync + 'static,
    ) -> (Self, UnboundedReceiver<oneshot::Sender<()>>) {
        let (asked, requests) = unbounded_channel();
        let sink = Self::answering(move |number, _| {
            let (answer, wait) = oneshot::channel();
            asked.send(answer).unwrap();
            Answer {
                wait: Some(wait).filter(|_| holds(number)),
                ..Answer::of(200, "")
            }
        });
        (sink.await, requests)
    }

    /// What came until now.
    pub(super) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// All elements that came until now, in the order of their requests.
    pub(super) fn elements(&self) -> Vec<Value> {
        let received = self.received();
        received
            .iter()
            .flat_map(|one| one.elements().to_vec())
            .collect()
    }

    /// The `id` of the rows that came until now, sorted.
    pub(super) fn rows(&self) -> Vec<i64> {
        let elements = self.elements();
        let mut rows: Vec<i64> = elements
            .iter()
            .map(|one| one["row"]["id"].as_i64().unwrap())
            .collect();
        rows.sort_unstable();
        rows
    }
}

async fn take(
    State((received, answers)): State<(Arc<Mutex<Vec<Received>>>, Answers)>,
    headers: HeaderMap,
    text: String,
) -> Response {
    let json = serde_json::from_str(&text).unwrap();
    let one = Received {
        at: SystemTime::now(),
        headers,
        text,
        json,
    };
    let answer = {
        let mut received = received.lock().unwrap();
        received.push(one.clone());
        answers(received.len() - 1, &one)
    };
    if let Some(wait) = answer.wait {
        // The test may have dropped the sender instead.
        let _waited = wait.await;
    }
    answer.response
}

/// Serves `router` over HTTP/1.1.
async fn axum_serve(listener: TcpListener, router: Router) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let router = router.clone();
        let service = hyper::service::service_fn(move |request| router.clone().oneshot(request));
        tokio::spawn(async move {
            let io = hyper_util::rt::TokioIo::new(stream);
            // The client closes the connection when it likes to.
            let _ended = hyper::server::conn::http1::Builder::new()
                .serve_connection(io, service)
                .await;
        });
    }
}
