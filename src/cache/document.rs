//! A document as the tiers keep it: bytes that are ready to be sent.

use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

/// One JSON document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Compact JSON.
    pub body: Bytes,
    /// The strong entity tag, quotes included: 128 bits of XXH3 over the body.
    pub etag: Bytes,
}

/// A document, or that there is none.
pub type Found = Option<Arc<Document>>;

impl Document {
    /// The document of these bytes.
    pub fn new(body: Bytes) -> Self {
        let etag = entity_tag(xxh3_128(&body));
        Self { body, etag }
    }
}

/// A strong entity tag, quotes included, of bytes that have this hash.
pub fn entity_tag(hash: u128) -> Bytes {
    Bytes::from(format!("\"{hash:032x}\""))
}
