//! HTTP/1.1 in all models: where requests end, and what they are answered with.
//!
//! Every request has the same answer, whatever it asks for. It has no body, and the client closes the connection.

use anyhow::Context;
use httparse::{EMPTY_HEADER, Status};
use serde_json::Value;

/// The longest head that is read.
pub(crate) const HEAD_BYTES_MAX: usize = 8 * 1024;
/// What is read at once.
pub(crate) const READ_BYTES: usize = 16 * 1024;
const TOO_LARGE: &str = "431 Request Header Fields Too Large";

/// What every request is answered with.
pub(crate) struct Answer {
    /// Status line and fields, up to the body.
    pub(super) head: String,
    pub(super) body: String,
    /// What the body is made of for each request, where it is.
    pub(super) document: Option<Value>,
}

impl Answer {
    /// Reads head and body of `response`; where it `is_rendered`, JSON is made of the body for each request.
    pub(crate) fn new(response: &str, is_rendered: bool) -> anyhow::Result<Self> {
        let (head, ready) = response.split_once("\r\n\r\n").context("no body")?;
        let document = is_rendered.then(|| serde_json::from_str(ready));
        let document: Option<Value> = document.transpose().context("the document")?;
        // JSON of the same document always has the same length, but not always that of larder's.
        let body = document.as_ref().map_or(ready.to_owned(), Value::to_string);
        let length = |body: &str| format!("content-length: {}", body.len());
        Ok(Self {
            head: head.replace(&length(ready), &length(&body)) + "\r\n\r\n",
            body,
            document,
        })
    }

    /// Appends head and body to `output`.
    fn write(&self, output: &mut Vec<u8>) {
        output.extend_from_slice(self.head.as_bytes());
        match &self.document {
            None => output.extend_from_slice(self.body.as_bytes()),
            Some(document) => output.extend_from_slice(document.to_string().as_bytes()),
        }
    }
}

/// What a connection remembers from one read to the next.
#[derive(Default)]
pub(crate) struct Conversation {
    /// The beginning of a head, at most [`HEAD_BYTES_MAX`] long.
    partial: Vec<u8>,
    /// Whether the connection has to be closed once everything is sent: a request could not be read.
    pub(crate) is_over: bool,
}

impl Conversation {
    /// Replaces `output` by an answer to each request whose head ends in `bytes`, which follow those of the last call.
    pub(crate) fn advance(&mut self, bytes: &[u8], answer: &Answer, output: &mut Vec<u8>) {
        output.clear();
        self.partial.extend_from_slice(bytes);
        let mut used = 0;
        while used < self.partial.len() && !self.is_over {
            let rest = &self.partial[used..];
            let mut fields = [EMPTY_HEADER; 64];
            let status = match httparse::Request::new(&mut fields).parse(rest) {
                Ok(Status::Complete(length)) if length <= HEAD_BYTES_MAX => {
                    used += length;
                    answer.write(output);
                    continue;
                }
                Ok(Status::Partial) if rest.len() <= HEAD_BYTES_MAX => break,
                Ok(_) | Err(httparse::Error::TooManyHeaders) => TOO_LARGE,
                Err(_) => "400 Bad Request",
            };
            self.is_over = true;
            let refusal =
                format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            output.extend_from_slice(refusal.as_bytes());
        }
        self.partial.drain(..used);
    }
}
