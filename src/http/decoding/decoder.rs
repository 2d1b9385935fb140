//! The decoders of one body, by the crates flate2 and zstd, which encode responses, too.

use std::io::{ErrorKind, Write};

use axum::body::Bytes;
use flate2::write::GzDecoder;
use zstd::zstd_safe::zstd_sys::ZSTD_ErrorCode;
use zstd::zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

/// The longest window of zstd, as a power of two: RFC 9659 allows no longer ones.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;
/// The code of zstd's error for a longer window.
const WINDOW_TOO_LARGE: usize =
    (ZSTD_ErrorCode::ZSTD_error_frameParameter_windowTooLarge as usize).wrapping_neg();

/// The most memory of a decoder: a window, and less than a MiB for everything else.
pub(in crate::http) const DECODER_BYTES_MAX: usize = (1 << ZSTD_WINDOW_LOG_MAX) + (1 << 20);
/// The most memory of a gzip decoder: a window and a buffer of 32 KiB each, its tables, and the three texts of a header,
/// of at most 64 KiB each.
const GZIP_BYTES: usize = 320 << 10;

/// A body whose decoded bytes are more than [`RATIO_MAX`] times as many as its encoded ones is refused once it has so many:
/// a few KiB would otherwise keep a thread busy for seconds. Documents of a KiB that differ in their key alone come to 570
/// (zstd 1.5.7, measured on 2026-11-25), spaces to 1,029 in gzip and to more than 10,000 in zstd.
const RATIO_BYTES_MIN: u64 = 16 << 20;
const RATIO_MAX: u64 = 1_000;
/// A body of so many encoded bytes is refused if they are more than [`EXPANSION_MAX`] times as many as the decoded ones:
/// empty frames and members would otherwise be received without end.
const EXPANSION_BYTES_MIN: u64 = 256 << 10;
const EXPANSION_MAX: u64 = 8;

/// A content coding that larder decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum ContentCoding {
    /// RFC 1952.
    Gzip,
    /// RFC 8878, with windows of at most 8 MiB (RFC 9659).
    Zstd,
}

/// Why a body could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::http) enum DecodingError {
    #[error("the body is not valid {0}")]
    Malformed(&'static str),
    #[error("the body ends in the middle of its {0} stream")]
    Truncated(&'static str),
    #[error("the window of the zstd frame is longer than 8 MiB")]
    WindowTooLarge,
    #[error("the decoded body is more than {RATIO_MAX} times as long as the encoded one")]
    TooDense,
    #[error("the encoded body is more than {EXPANSION_MAX} times as long as the decoded one")]
    TooSparse,
    /// A bug: the thread that decoded has panicked, or zstd had no memory.
    #[error("the body could not be decoded")]
    Failed,
}

/// The decoder of one body, and what it has not decoded yet.
pub(super) struct Decoder {
    format: Format,
    input: Bytes,
    /// There may be more output without more input.
    is_full: bool,
    received: u64,
    decoded: u64,
}

enum Format {
    /// `None` before the first byte of a member.
    Gzip(Option<Box<GzDecoder<Vec<u8>>>>),
    Zstd {
        /// `None` before the first byte.
        context: Option<DCtx<'static>>,
        is_in_frame: bool,
    },
}

impl Decoder {
    pub(super) fn new(coding: ContentCoding) -> Self {
        let format = match coding {
            ContentCoding::Gzip => Format::Gzip(None),
            ContentCoding::Zstd => Format::Zstd {
                context: None,
                is_in_frame: false,
            },
        };
        Self {
            format,
            input: Bytes::new(),
            is_full: false,
            received: 0,
            decoded: 0,
        }
    }

    /// Whether [`Decoder::decode`] may return something.
    pub(super) fn has_input(&self) -> bool {
        self.is_full || !self.input.is_empty()
    }

    /// The encoded bytes that have not been decoded yet.
    pub(super) fn input_bytes(&self) -> usize {
        self.input.len()
    }

    /// Adds encoded bytes. Those before must have been decoded.
    pub(super) fn push(&mut self, input: Bytes) {
        self.received += input.len() as u64;
        self.input = input;
    }

    /// The memory that the decoder takes.
    pub(super) fn memory_bytes(&self) -> usize {
        match &self.format {
            Format::Gzip(_) => GZIP_BYTES,
            Format::Zstd { context, .. } => context.as_ref().map_or(0, DCtx::sizeof),
        }
    }

    /// Decodes the bytes that were added, up to about `bytes_max` decoded ones; empty if there is nothing to decode before
    /// more is added.
    pub(super) fn decode(&mut self, bytes_max: usize) -> Result<Vec<u8>, DecodingError> {
        let decoded = match &mut self.format {
            Format::Gzip(member) => {
                let decoded = decode_gzip(member, &mut self.input, bytes_max)?;
                self.is_full = !self.input.is_empty();
                decoded
            }
            Format::Zstd {
                context,
                is_in_frame,
            } => {
                let context = context.get_or_insert_with(zstd_context);
                let decoded = decode_zstd(context, is_in_frame, &mut self.input, bytes_max)?;
                self.is_full = *is_in_frame && decoded.len() == decoded.capacity();
                decoded
            }
        };
        self.decoded += decoded.len() as u64;
        if self.decoded > RATIO_BYTES_MIN && self.decoded / RATIO_MAX > self.received {
            return Err(DecodingError::TooDense);
        }
        if self.received > EXPANSION_BYTES_MIN && self.received / EXPANSION_MAX > self.decoded {
            return Err(DecodingError::TooSparse);
        }
        Ok(decoded)
    }

    /// Ends the stream, and returns what is left of it.
    ///
    /// # Errors
    /// The stream is not complete.
    pub(super) fn finish(self) -> Result<Vec<u8>, DecodingError> {
        match self.format {
            Format::Gzip(None)
            | Format::Zstd {
                is_in_frame: false, ..
            } => Ok(Vec::new()),
            Format::Gzip(Some(member)) => finish_gzip(*member),
            Format::Zstd { .. } => Err(DecodingError::Truncated("zstd")),
        }
    }
}

/// Decodes members of gzip.
fn decode_gzip(
    member: &mut Option<Box<GzDecoder<Vec<u8>>>>,
    input: &mut Bytes,
    bytes_max: usize,
) -> Result<Vec<u8>, DecodingError> {
    let mut decoded = Vec::new();
    while !input.is_empty() && decoded.len() < bytes_max {
        let current = member.get_or_insert_with(|| Box::new(GzDecoder::new(Vec::new())));
        // Each call decodes at most 32 KiB.
        match current.write(input).map_err(|error| gzip_error(&error))? {
            // The member has ended; another one may follow.
            0 => {
                let ended = member.take();
                decoded.extend(ended.map_or(Ok(Vec::new()), |ended| finish_gzip(*ended))?);
            }
            consumed => {
                let _consumed = input.split_to(consumed);
                if input.is_empty() {
                    current.flush().map_err(|error| gzip_error(&error))?;
                }
                decoded.append(current.get_mut());
            }
        }
    }
    Ok(decoded)
}

/// The rest of a member. Checks its end and its checksum.
fn finish_gzip(member: GzDecoder<Vec<u8>>) -> Result<Vec<u8>, DecodingError> {
    member.finish().map_err(|error| gzip_error(&error))
}

fn gzip_error(error: &std::io::Error) -> DecodingError {
    match error.kind() {
        ErrorKind::UnexpectedEof => DecodingError::Truncated("gzip"),
        _ => DecodingError::Malformed("gzip"),
    }
}

fn zstd_context() -> DCtx<'static> {
    let mut context = DCtx::create();
    // The value is within zstd's bounds, so this does not fail. The default would be 128 MiB.
    let _within_bounds = context.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX));
    context
}

/// Decodes frames of zstd.
fn decode_zstd(
    context: &mut DCtx<'static>,
    is_in_frame: &mut bool,
    input: &mut Bytes,
    bytes_max: usize,
) -> Result<Vec<u8>, DecodingError> {
    let mut decoded = Vec::with_capacity(bytes_max);
    let mut from = InBuffer::around(input);
    let mut to = OutBuffer::around(&mut decoded);
    loop {
        let hint = context.decompress_stream(&mut to, &mut from);
        *is_in_frame = hint.map_err(zstd_error)? > 0;
        let is_at_end = from.pos() == input.len();
        if is_at_end || to.pos() == to.capacity() {
            break;
        }
    }
    let consumed = from.pos();
    let _consumed = input.split_to(consumed);
    Ok(decoded)
}

fn zstd_error(code: usize) -> DecodingError {
    if code == WINDOW_TOO_LARGE {
        DecodingError::WindowTooLarge
    } else {
        DecodingError::Malformed("zstd")
    }
}
