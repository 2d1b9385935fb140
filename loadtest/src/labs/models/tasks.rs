//! A task of tokio for each connection, with our framing or hyper's.

use std::convert::Infallible;
use std::future;
use std::net;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

use crate::labs::models::request::{Answer, Conversation, HEAD_BYTES_MAX, READ_BYTES};

/// Serves on a runtime, which has a thread for each core or one.
pub(super) fn serve(
    runtime: Builder,
    listener: net::TcpListener,
    answer: &Arc<Answer>,
) -> anyhow::Result<()> {
    let task = |stream| converse(stream, Arc::clone(answer));
    accept(runtime, listener, task)
}

/// Serves by hyper on a runtime of one thread.
pub(super) fn serve_hyper(listener: net::TcpListener, answer: &Arc<Answer>) -> anyhow::Result<()> {
    let fields = answer.head.lines().filter_map(|line| line.split_once(": "));
    let response = fields.fold(Response::builder(), |response, (name, value)| {
        response.header(name, value)
    });
    let ready = response.body(Full::<Bytes>::from(answer.body.clone()))?;
    accept(Builder::new_current_thread(), listener, move |stream| {
        let (answer, ready) = (Arc::clone(answer), ready.clone());
        let service = service_fn(move |_| {
            let mut response = ready.clone();
            if let Some(document) = &answer.document {
                *response.body_mut() = Full::from(document.to_string());
            }
            future::ready(Ok::<_, Infallible>(response))
        });
        let mut builder = http1::Builder::new();
        builder.max_header_size(HEAD_BYTES_MAX);
        let served = builder.serve_connection(TokioIo::new(stream), service);
        async { Ok(served.await?) }
    })
}

/// Makes a task of each connection, for ever.
fn accept<Task: Future<Output = anyhow::Result<()>> + Send + 'static>(
    mut runtime: Builder,
    listener: net::TcpListener,
    task: impl Fn(TcpStream) -> Task,
) -> anyhow::Result<()> {
    runtime.enable_io().build()?.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(task(stream));
        }
    })
}

/// Answers until the connection ends.
async fn converse(mut stream: TcpStream, answer: Arc<Answer>) -> anyhow::Result<()> {
    let mut conversation = Conversation::default();
    let (mut input, mut output) = (vec![0; READ_BYTES], Vec::new());
    while !conversation.is_over {
        let read = stream.read(&mut input).await?;
        if read == 0 {
            break;
        }
        conversation.advance(&input[..read], &answer, &mut output);
        stream.write_all(&output).await?;
    }
    Ok(())
}
