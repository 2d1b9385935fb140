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
/// Fields of a head.
pub(super) const FIELDS_MAX: usize = 64;
/// The field whose value is written anew where the document is.
const LENGTH: &str = "content-length: ";

const MALFORMED: &str = "400 Bad Request";
const HEAD_TOO_LARGE: &str = "431 Request Header Fields Too Large";

/// What every request is answered with.
pub(crate) enum Answer {
    /// Head and body as they are sent.
    Ready(Vec<u8>),
    /// The head up to the length of the body, the rest of the head, and the document that is made JSON each time.
    Rendered {
        before: String,
        after: String,
        document: Value,
    },
}

impl Answer {
    /// Reads the head and the document out of `response`, so that JSON is made for each request.
    ///
    /// # Errors
    /// `response` has no `content-length`, or its body is not JSON.
    pub(crate) fn rendered(response: &str) -> anyhow::Result<Self> {
        let (head, body) = response.split_once("\r\n\r\n").context("no body")?;
        let (before, length) = head.split_once(LENGTH).context("no content-length")?;
        let rest = length.trim_start_matches(|byte: char| byte.is_ascii_digit());
        Ok(Self::Rendered {
            before: format!("{before}{LENGTH}"),
            after: format!("{rest}\r\n\r\n"),
            document: serde_json::from_str(body).context("the document")?,
        })
    }

    /// Appends head and body to `output`.
    pub(crate) fn write(&self, output: &mut Vec<u8>) {
        match self {
            Self::Ready(response) => output.extend_from_slice(response),
            Self::Rendered {
                before,
                after,
                document,
            } => {
                let body = document.to_string();
                output.extend_from_slice(before.as_bytes());
                output.extend_from_slice(body.len().to_string().as_bytes());
                output.extend_from_slice(after.as_bytes());
                output.extend_from_slice(body.as_bytes());
            }
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
    /// Appends to `output` an answer to each request whose head ends in `bytes`, which follow those of the last call.
    pub(crate) fn advance(&mut self, bytes: &[u8], answer: &Answer, output: &mut Vec<u8>) {
        let mut all = std::mem::take(&mut self.partial);
        if all.is_empty() {
            let used = self.answer_all(bytes, answer, output);
            all.extend_from_slice(&bytes[used..]);
        } else {
            all.extend_from_slice(bytes);
            let used = self.answer_all(&all, answer, output);
            all.drain(..used);
        }
        self.partial = all;
    }

    /// Returns how many bytes the requests that are answered take.
    fn answer_all(&mut self, bytes: &[u8], answer: &Answer, output: &mut Vec<u8>) -> usize {
        let mut used = 0;
        while used < bytes.len() && !self.is_over {
            let mut fields = [EMPTY_HEADER; FIELDS_MAX];
            let mut request = httparse::Request::new(&mut fields);
            let refusal = match request.parse(&bytes[used..]) {
                Ok(Status::Complete(length)) if length <= HEAD_BYTES_MAX => {
                    used += length;
                    None
                }
                Ok(Status::Partial) if bytes.len() - used <= HEAD_BYTES_MAX => break,
                Ok(_) | Err(httparse::Error::TooManyHeaders) => Some(HEAD_TOO_LARGE),
                Err(_) => Some(MALFORMED),
            };
            match refusal {
                None => answer.write(output),
                Some(status) => {
                    self.is_over = true;
                    let text = format!(
                        "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                    );
                    output.extend_from_slice(text.as_bytes());
                }
            }
        }
        used
    }
}
