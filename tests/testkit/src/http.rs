//! An HTTP/1.1 client: hyper's connection over a TCP socket, one request after the other.
//!
//! What is no HTTP, or several requests in one write, goes through [`raw`](crate::raw).

use std::borrow::Cow;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use anyhow::Context;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{HeaderMap, Method, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// Longer than larder's `request_timeout` and a pause of its process.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Of the brotli decoder.
const BUFFER_BYTES: usize = 4096;

/// A request; its connection adds `Host` and `Content-Length`.
#[derive(Clone, Debug)]
pub struct Request {
    /// `GET`, `POST` and so on.
    pub method: &'static str,
    /// Path and query.
    pub target: String,
    /// Names and values.
    pub headers: Vec<(&'static str, String)>,
    /// Without a length, there is none.
    pub body: Bytes,
}

/// A whole answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Of the status line.
    pub status: u16,
    /// In the order in which they came.
    pub headers: HeaderMap,
    /// Decoded, but for a part of an encoded body.
    pub body: Bytes,
}

impl Request {
    /// Creates a request without a body.
    pub fn new(method: &'static str, target: impl Into<String>) -> Self {
        Self {
            method,
            target: target.into(),
            headers: Vec::new(),
            body: Bytes::new(),
        }
    }

    /// Creates a `GET` request.
    pub fn get(target: impl Into<String>) -> Self {
        Self::new("GET", target)
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Sets a body of type `media_type`.
    #[must_use]
    pub fn with_body(mut self, media_type: &str, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self.with("content-type", media_type)
    }

    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers
            .find(|(known, _)| *known == name)
            .map(|(_, value)| &**value)
    }

    /// Formats it for a reader.
    pub fn shown(&self) -> String {
        let headers = self.headers.iter();
        let headers: String = headers
            .map(|(name, value)| format!("\n  {name}: {value}"))
            .collect();
        let body = String::from_utf8_lossy(&self.body);
        format!("{} {}{headers}\n  {body}", self.method, self.target)
    }

    fn to_hyper(&self) -> anyhow::Result<hyper::Request<Full<Bytes>>> {
        let mut request = hyper::Request::builder()
            .method(Method::from_bytes(self.method.as_bytes())?)
            .uri(self.target.as_str());
        if self.header("host").is_none() {
            request = request.header("host", "localhost");
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value.as_str());
        }
        Ok(request.body(Full::new(self.body.clone()))?)
    }
}

impl Answer {
    /// Returns the value of a header; empty if there is none, or if it is no ASCII.
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    /// Returns the body as text.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }

    /// Parses the body; null if it is no JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Formats it for a reader.
    pub fn shown(&self) -> String {
        let headers = self.headers.iter();
        let headers: String = headers
            .map(|(name, value)| {
                format!("\n  {name}: {}", String::from_utf8_lossy(value.as_bytes()))
            })
            .collect();
        format!("{}{headers}\n  {}", self.status, self.text().trim_end())
    }

    fn decode(&mut self) -> anyhow::Result<()> {
        let encoding = self.header("content-encoding");
        if encoding.is_empty() || self.body.is_empty() || self.status == StatusCode::PARTIAL_CONTENT
        {
            return Ok(());
        }
        let (mut decoded, body) = (Vec::new(), &self.body[..]);
        match encoding {
            "gzip" => {
                flate2::read::MultiGzDecoder::new(body).read_to_end(&mut decoded)?;
            }
            "br" => {
                brotli::Decompressor::new(body, BUFFER_BYTES).read_to_end(&mut decoded)?;
            }
            "zstd" => decoded = zstd::decode_all(body)?,
            other => anyhow::bail!("encoding {other}"),
        }
        self.body = decoded.into();
        Ok(())
    }
}

/// A connection, which is kept alive. It is closed when it is dropped, and can't be used after an error.
pub struct HttpConnection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// Reads and writes while it is polled; `None` once the connection has ended.
    driver: Option<http1::Connection<TokioIo<TcpStream>, Full<Bytes>>>,
    /// The time for one answer.
    pub answer_max: Duration,
}

impl HttpConnection {
    /// Opens a connection.
    ///
    /// # Errors
    /// The server can't be reached.
    pub async fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        Self::over(TcpStream::connect(address).await?).await
    }

    /// Opens a connection from the address `local`, which is a client of its own for larder's limits.
    ///
    /// It is reset at its end, so that its port need not wait for late packets.
    ///
    /// # Errors
    /// As [`HttpConnection::connect`].
    pub async fn connect_from(local: Ipv4Addr, address: SocketAddr) -> anyhow::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(local.into(), 0))?;
        socket.set_zero_linger()?;
        Self::over(socket.connect(address).await?).await
    }

    /// Uses a connection that is open and idle.
    ///
    /// # Errors
    /// An option of the socket can't be set.
    pub async fn over(stream: TcpStream) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Self {
            sender,
            driver: Some(driver),
            answer_max: ANSWER_MAX,
        })
    }

    /// Returns the idle connection without its buffers; `None` if it has ended.
    pub fn into_stream(self) -> Option<TcpStream> {
        Some(self.driver?.into_parts().io.into_inner())
    }

    /// Sends a `GET` request and receives the answer.
    ///
    /// # Errors
    /// As [`HttpConnection::send`].
    pub async fn get(&mut self, target: impl Into<String>) -> anyhow::Result<Answer> {
        self.send(&Request::get(target)).await
    }

    /// Sends a request and receives the answer.
    ///
    /// # Errors
    /// The request can't be sent as HTTP, the server closed the connection before the end of the answer, what it sent is no
    /// answer, or [`HttpConnection::answer_max`] is over.
    pub async fn send(&mut self, request: &Request) -> anyhow::Result<Answer> {
        let request = request.to_hyper()?;
        let mut driver = self.driver.take().context("the connection has ended")?;
        let mut exchange = pin!(async {
            self.sender.ready().await?;
            let (head, body) = self.sender.send_request(request).await?.into_parts();
            let body = body.collect().await?.to_bytes();
            anyhow::Ok((head, body))
        });
        let limited = timeout(self.answer_max, async {
            tokio::select! {
                biased;
                received = &mut exchange => Some(received),
                _ = &mut driver => None,
            }
        });
        let received = match limited.await.context("no answer in time")? {
            Some(received) => {
                self.driver = Some(driver);
                received
            }
            None => {
                // What the server sent before it closed the connection may be the whole answer.
                drop(driver);
                exchange.await
            }
        };
        let (head, body) = received?;
        let mut answer = Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
        };
        answer.decode().with_context(|| answer.shown())?;
        Ok(answer)
    }

    /// Waits until the server closes the connection, or sends something without a request.
    pub async fn closed(&mut self) {
        if let Some(driver) = &mut self.driver {
            driver.await.ok();
            self.driver = None;
        }
    }
}

/// A client with one connection, which is opened when it is needed.
pub struct Client {
    server: SocketAddr,
    local: Option<Ipv4Addr>,
    connection: Option<HttpConnection>,
}

impl Client {
    /// Creates a client of the address of this host.
    pub fn new(server: SocketAddr) -> Self {
        Self {
            server,
            local: None,
            connection: None,
        }
    }

    /// Creates a client with an address of its own.
    pub fn numbered(server: SocketAddr, number: usize) -> Self {
        Self {
            local: Some(local_address(number)),
            ..Self::new(server)
        }
    }

    /// Sends a request and receives the answer.
    ///
    /// # Errors
    /// As [`HttpConnection::connect`] and [`HttpConnection::send`]; the next request has a new connection.
    pub async fn send(&mut self, request: &Request) -> anyhow::Result<Answer> {
        let mut connection = match (self.connection.take(), self.local) {
            (Some(connection), _) => connection,
            (None, Some(local)) => HttpConnection::connect_from(local, self.server).await?,
            (None, None) => HttpConnection::connect(self.server).await?,
        };
        let answer = connection.send(request).await?;
        if answer.header("connection") != "close" {
            self.connection = Some(connection);
        }
        Ok(answer)
    }
}

/// Returns the loopback address of a client: clients of different numbers below 200 are different clients for larder's limits.
pub fn local_address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, u8::try_from(number % 200).unwrap_or(0))
}

/// Sends a request on a connection of its own, and receives the answer.
///
/// # Errors
/// As [`HttpConnection::connect`] and [`HttpConnection::send`], or all this takes longer than `limit`.
pub async fn fetch(
    address: SocketAddr,
    request: Request,
    limit: Duration,
) -> anyhow::Result<Answer> {
    let exchange = async {
        let mut connection = HttpConnection::connect(address).await?;
        connection.send(&request.with("connection", "close")).await
    };
    timeout(limit, exchange)
        .await
        .context("no answer in time")?
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const PLAIN: &str = "HTTP/1.1 200 OK\r\nB: 1\r\nETag: \"a\"\r\ncontent-length: 3\r\n\r\nabc";
    const CHUNKED: &str =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
    /// Without a body, whatever its length says.
    const UNCHANGED: &str = "HTTP/1.1 304 Not Modified\r\ncontent-length: 3\r\n\r\n";

    /// Sends one of `answers` after each request on its first connection, then closes that.
    async fn serve(answers: Vec<Vec<u8>>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for answer in answers {
                assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
                stream.write_all(&answer).await.unwrap();
            }
        });
        address
    }

    async fn connect(answers: &[&str]) -> HttpConnection {
        let answers = answers.iter().map(|answer| answer.as_bytes().to_vec());
        let address = serve(answers.collect()).await;
        HttpConnection::connect(address).await.unwrap()
    }

    #[tokio::test]
    async fn answers_are_received_one_after_the_other() {
        let to_head = UNCHANGED.replace("304 Not Modified", "200 OK");
        let mut connection = connect(&[PLAIN, CHUNKED, UNCHANGED, &to_head, PLAIN]).await;
        let first = connection.get("/").await.unwrap();
        assert_eq!(
            first.shown(),
            "200\n  b: 1\n  etag: \"a\"\n  content-length: 3\n  abc"
        );
        assert_eq!(first.header("ETag"), "\"a\"");
        assert_eq!(connection.get("/").await.unwrap().text(), "abc");
        let unchanged = connection.get("/").await.unwrap();
        assert_eq!((unchanged.status, unchanged.body.len()), (304, 0));
        let head = connection.send(&Request::new("HEAD", "/")).await.unwrap();
        assert_eq!((head.status, head.body.len()), (200, 0));
        // Without its buffers it is the same connection.
        let stream = connection.into_stream().unwrap();
        let mut connection = HttpConnection::over(stream).await.unwrap();
        assert_eq!(connection.get("/").await.unwrap().text(), "abc");
        connection.closed().await;
        assert!(connection.get("/").await.is_err());
    }

    #[tokio::test]
    async fn an_answer_without_its_end_is_an_error() {
        for answer in [PLAIN, CHUNKED] {
            for length in 0..answer.len() {
                let mut connection = connect(&[&answer[..length]]).await;
                assert!(connection.get("/").await.is_err(), "{}", &answer[..length]);
            }
        }
        assert!(
            connect(&["SMTP ready\r\n\r\n"])
                .await
                .get("/")
                .await
                .is_err()
        );
    }

    #[tokio::test]
    async fn an_answer_that_is_late_is_not_taken_for_the_next_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut connection = HttpConnection::connect(address).await.unwrap();
        connection.answer_max = Duration::from_millis(10);
        let error = connection.get("/").await.unwrap_err();
        assert_eq!(error.to_string(), "no answer in time");
        let (mut stream, _) = listener.accept().await.unwrap();
        // The client may have reset it.
        stream.write_all(PLAIN.as_bytes()).await.ok();
        assert!(connection.get("/").await.is_err());
    }

    #[tokio::test]
    async fn bodies_are_decoded() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"text").unwrap();
        let mut brotli = Vec::new();
        let mut encoder = brotli::CompressorWriter::new(&mut brotli, BUFFER_BYTES, 1, 20);
        encoder.write_all(b"text").unwrap();
        drop(encoder);
        for (encoding, body) in [
            ("gzip", gzip.finish().unwrap()),
            ("br", brotli),
            ("zstd", zstd::encode_all(&b"text"[..], 1).unwrap()),
        ] {
            for (status, wanted) in [("200 OK", &b"text"[..]), ("206 Partial Content", &body)] {
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-encoding: {encoding}\r\ncontent-length: {length}\r\n\r\n"
                );
                let address = serve(vec![[head.as_bytes(), &body].concat()]).await;
                let answer = fetch(address, Request::get("/"), ANSWER_MAX).await.unwrap();
                assert_eq!(answer.body, wanted);
            }
        }
    }

    #[tokio::test]
    async fn a_client_has_an_address_of_its_own_and_connects_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = Client::numbered(listener.local_addr().unwrap(), 7);
        for last in ["", "connection: close\r\n"] {
            let serving = async {
                let (mut stream, peer) = listener.accept().await.unwrap();
                assert_eq!(peer.ip(), local_address(7));
                let answer = format!("HTTP/1.1 204 No Content\r\n{last}\r\n");
                assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
                stream.write_all(answer.as_bytes()).await.unwrap();
            };
            let request = Request::get("/");
            let (answer, ()) = tokio::join!(client.send(&request), serving);
            assert_eq!(answer.unwrap().status, 204);
            if last.is_empty() {
                // The server has closed it meanwhile.
                assert!(client.send(&request).await.is_err());
            }
        }
        assert!(client.connection.is_none());
    }
}
