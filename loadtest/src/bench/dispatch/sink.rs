//! A web server that takes all requests.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// A running server; it ends when dropped.
pub(super) struct HttpSink {
    pub(super) address: SocketAddr,
    _task: JoinSet<()>,
}

impl HttpSink {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut task = JoinSet::new();
        task.spawn(serve(listener));
        Ok(Self {
            address,
            _task: task,
        })
    }
}

async fn serve(listener: TcpListener) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(async move {
            let serving =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(take));
            // The client may close at any time.
            let _ended = serving.await;
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Reads a request, and takes all of its rows.
async fn take(request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    // What does not arrive as a whole is sent again.
    let _read = request.into_body().collect().await;
    Ok(Response::new(Empty::new()))
}
