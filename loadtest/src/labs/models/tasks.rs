//! A task of tokio for each connection, with our framing or hyper's.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use hyper::header::{CONTENT_LENGTH, DATE, HeaderName};
use hyper::http::response::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

use crate::labs::models::request::{Answer, Conversation, FIELDS_MAX, HEAD_BYTES_MAX, READ_BYTES};

/// Serves on a runtime, which has a thread for each core or one.
pub(super) fn serve(
    runtime: Builder,
    listener: std::net::TcpListener,
    answer: &Arc<Answer>,
) -> anyhow::Result<()> {
    accept(runtime, listener, move |stream| {
        converse(stream, Arc::clone(answer))
    })
}

/// Serves by hyper on a runtime of one thread.
pub(super) fn serve_hyper(
    listener: std::net::TcpListener,
    answer: &Arc<Answer>,
) -> anyhow::Result<()> {
    let parts = Arc::new(parts(answer)?);
    accept(Builder::new_current_thread(), listener, move |stream| {
        by_hyper(stream, Arc::clone(answer), Arc::clone(&parts))
    })
}

/// Makes a task of each connection, for ever.
fn accept<Task: Future<Output = anyhow::Result<()>> + Send + 'static>(
    mut runtime: Builder,
    listener: std::net::TcpListener,
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
        output.clear();
        conversation.advance(&input[..read], &answer, &mut output);
        stream.write_all(&output).await?;
    }
    Ok(stream.shutdown().await?)
}

async fn by_hyper(
    stream: TcpStream,
    answer: Arc<Answer>,
    parts: Arc<(Parts, Bytes)>,
) -> anyhow::Result<()> {
    let service = service_fn(|_| {
        let (head, ready) = &*parts;
        let body = match &*answer {
            Answer::Ready(_) => ready.clone(),
            Answer::Rendered { document, .. } => Bytes::from(document.to_string()),
        };
        std::future::ready(Ok::<_, Infallible>(Response::from_parts(
            head.clone(),
            Full::new(body),
        )))
    });
    let mut builder = http1::Builder::new();
    builder.max_header_size(HEAD_BYTES_MAX);
    Ok(builder
        .serve_connection(TokioIo::new(stream), service)
        .await?)
}

/// The head and the body that the other models send, but for the date and the length, which hyper adds.
fn parts(answer: &Answer) -> anyhow::Result<(Parts, Bytes)> {
    let mut bytes = Vec::new();
    answer.write(&mut bytes);
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(length) = parsed.parse(&bytes)? else {
        anyhow::bail!("the response has no end of its head");
    };
    let mut response = Response::new(());
    for field in parsed.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes())?;
        if ![DATE, CONTENT_LENGTH].contains(&name) {
            response.headers_mut().append(name, field.value.try_into()?);
        }
    }
    Ok((
        response.into_parts().0,
        Bytes::copy_from_slice(&bytes[length..]),
    ))
}
