//! A document as the tiers keep it: key, kept values, body, digest, epoch and encodings in one block of memory.

use std::fmt;
use std::mem::size_of;
use std::ops::Range;
use std::sync::atomic::Ordering;

use triomphe::{Arc, ThinArc};
use xxhash_rust::xxh3::xxh3_128;

use crate::cache::encoding::Encoding;
use crate::cache::generation::Epoch;
use crate::clock::Boottime;
use crate::resource::kept::Kept;
use crate::sync::AtomicU8;

/// The length of an entity tag: 128 bits in hexadecimal, and the quotes.
pub const ETAG_BYTES: usize = 34;

/// More touches than this make no difference (Yang et al., "FIFO queues are all you need for cache eviction", SOSP
/// 2023: two bits).
const TOUCHES_MAX: u8 = 3;

/// What a block has before key and body. It is kept small, because each document in memory has one.
struct DocumentHead {
    /// XXH3 over the body.
    digest: [u8; 16],
    epoch: u64,
    read_at: Boottime,
    key_bytes: u32,
    exists: bool,
    touches: AtomicU8,
    /// Bytes of the kept values between key and body; [`LONG_KEPT`]: so many or more, they tell their length themselves.
    kept_bytes: u8,
    /// One bit for each encoding that was made, or found to be no smaller. The encoded bodies follow the body.
    encoded: u8,
}

impl DocumentHead {
    fn new(key_bytes: usize, epoch: u64, kept: Kept<'_>, body: &[u8], exists: bool) -> Self {
        Self {
            digest: digest(body),
            epoch,
            read_at: Boottime::now(),
            // Keys are bounded by KEY_BYTES_MAX for each part, far below 2^32.
            key_bytes: key_bytes as u32,
            exists,
            kept_bytes: u8::try_from(kept.as_bytes().len()).unwrap_or(LONG_KEPT),
            touches: AtomicU8::new(0),
            encoded: 0,
        }
    }
}

/// See [`DocumentHead::kept_bytes`].
const LONG_KEPT: u8 = u8::MAX;

/// A block without key and body: the head, the reference count and the length.
const BLOCK_BYTES: usize = size_of::<DocumentHead>() + 2 * size_of::<usize>();

/// The end of a block with encodings: the length of each, in the order of [`Encoding::ALL`].
const LENGTHS_BYTES: usize = Encoding::ALL.len() * size_of::<u32>();

/// What jemalloc takes for a block: multiples of 16 bytes up to 128, then four sizes for each doubling (jemalloc(3),
/// "Implementation notes").
const fn allocated_bytes(bytes: usize) -> usize {
    let step = if bytes <= 128 {
        16
    } else {
        bytes.next_power_of_two() / 8
    };
    bytes.next_multiple_of(step)
}

/// One JSON document, or an absence, with its key and the epoch under which it was read. A clone is a reference to the
/// same block.
#[derive(Clone)]
pub struct Document(ThinArc<DocumentHead, u8>);

/// The result of reading a key: its document, or `None` if there is no such document.
pub type Found = Option<Document>;

impl Document {
    /// The document of `key`, compact JSON, read under `epoch`.
    pub fn new(key: &str, epoch: Epoch, body: &[u8]) -> Self {
        Self::with_kept(key, epoch, Kept::default(), body)
    }

    /// The same, with kept values.
    pub fn with_kept(key: &str, epoch: Epoch, kept: Kept<'_>, body: &[u8]) -> Self {
        Self::of(key.as_bytes(), epoch, kept, body)
    }

    /// A hint that the alias called `name` leads to the document of `key`.
    pub(super) fn hint(name: &[u8], epoch: Epoch, key: &str) -> Self {
        Self::of(name, epoch, Kept::default(), key.as_bytes())
    }

    fn of(key: &[u8], epoch: Epoch, kept: Kept<'_>, body: &[u8]) -> Self {
        let head = DocumentHead::new(key.len(), epoch.number(true), kept, body, true);
        let kept = kept.as_bytes();
        // No temporary buffer: one as large as a document would fragment the memory between documents.
        let zeros = std::iter::repeat_n(0, key.len() + kept.len() + body.len());
        let mut block = ThinArc::from_header_and_iter(head, zeros);
        block.with_arc_mut(|block| {
            if let Some(block) = Arc::get_mut(block) {
                let (key_place, rest) = block.slice_mut().split_at_mut(key.len());
                let (kept_place, body_place) = rest.split_at_mut(kept.len());
                key_place.copy_from_slice(key);
                kept_place.copy_from_slice(kept);
                body_place.copy_from_slice(body);
            }
        });
        Self(block)
    }

    /// The absence of a document of `key`.
    pub(super) fn absent(key: &str, epoch: Epoch) -> Self {
        let head = DocumentHead::new(key.len(), epoch.number(false), Kept::default(), b"", false);
        Self(ThinArc::from_header_and_slice(head, key.as_bytes()))
    }

    /// A document out of `text`: the key, of `key_bytes` bytes, then the kept values `kept`, and then the body.
    pub(super) fn from_text(key_bytes: usize, epoch: u64, kept: Kept<'_>, text: &[u8]) -> Self {
        let body = &text[key_bytes + kept.as_bytes().len()..];
        let head = DocumentHead::new(key_bytes, epoch, kept, body, true);
        Self(ThinArc::from_header_and_slice(head, text))
    }

    /// Who owns it, and the aliases that lead to it.
    #[inline]
    pub fn kept(&self) -> Kept<'_> {
        let head = self.head();
        let behind_key = &self.0.slice[head.key_bytes as usize..];
        match head.kept_bytes {
            0 => Kept::default(),
            LONG_KEPT => Kept::parse(behind_key).unwrap_or_default(),
            bytes => Kept::whole(&behind_key[..usize::from(bytes)]),
        }
    }

    /// Compact JSON.
    pub fn body(&self) -> &[u8] {
        let text = &self.0.slice[self.before_body()..];
        match self.head().encoded {
            0 => text,
            _ => {
                let encoded: usize = self.lengths().iter().sum();
                &text[..text.len() - LENGTHS_BYTES - encoded]
            }
        }
    }

    /// The body in this encoding; `None` if that has not been made yet.
    pub fn encoded(&self, encoding: Encoding) -> Option<Encoded> {
        if self.head().encoded & bit(encoding) == 0 {
            return None;
        }
        let lengths = self.lengths();
        let place = encoding as usize;
        let behind: usize = lengths[place + 1..].iter().sum();
        let end = self.0.slice.len() - LENGTHS_BYTES - behind;
        Some(Encoded {
            document: self.clone(),
            text: end - lengths[place]..end,
        })
    }

    /// The same document with its body in one more encoding; an empty `encoded` says that it would not be smaller.
    pub(super) fn with_encoded(&self, encoding: Encoding, encoded: &[u8]) -> Self {
        let mut lengths = self.lengths();
        let place = encoding as usize;
        let before: usize = lengths[..place].iter().sum();
        let text = self.0.slice.len() - self.tail_bytes();
        let (before, behind) = self.0.slice[..text].split_at(self.text_bytes() + before);
        lengths[place] = encoded.len();
        // Documents are bounded by document_max, at most 1 GiB.
        let lengths = lengths.map(|length| (length as u32).to_ne_bytes());
        let parts = [before, encoded, behind, lengths.as_flattened()];
        let head = self.head();
        let head = DocumentHead {
            // Not the same moment, so that tickets tell it from the document that it replaces.
            read_at: Boottime(head.read_at.0 + 1),
            touches: AtomicU8::new(head.touches.load(Ordering::Relaxed)),
            encoded: head.encoded | bit(encoding),
            ..*head
        };
        Self(ThinArc::from_header_and_slice(head, &parts.concat()))
    }

    /// Whether both are references to one block.
    pub(super) fn is_same_block(&self, other: &Self) -> bool {
        std::ptr::eq(self.head(), other.head())
    }

    /// Bytes of key and kept values.
    fn before_body(&self) -> usize {
        self.head().key_bytes as usize + self.kept().as_bytes().len()
    }

    /// Bytes of key, kept values and body.
    fn text_bytes(&self) -> usize {
        self.before_body() + self.body().len()
    }

    fn tail_bytes(&self) -> usize {
        match self.head().encoded {
            0 => 0,
            _ => LENGTHS_BYTES,
        }
    }

    /// The length of the body in each encoding; 0 for those that are not there.
    fn lengths(&self) -> [usize; Encoding::ALL.len()] {
        let mut lengths = [0; Encoding::ALL.len()];
        let tail = &self.0.slice[self.0.slice.len() - self.tail_bytes()..];
        for (length, bytes) in lengths.iter_mut().zip(tail.as_chunks().0) {
            *length = u32::from_ne_bytes(*bytes) as usize;
        }
        lengths
    }

    /// The strong entity tag, quotes included: 128 bits of XXH3 over the body.
    pub fn etag(&self) -> [u8; ETAG_BYTES] {
        entity_tag(self.digest())
    }

    /// The digest of the body, of which the entity tag is made.
    pub fn digest(&self) -> [u8; 16] {
        self.head().digest
    }

    /// The canonical text of its key.
    pub fn key_text(&self) -> &str {
        std::str::from_utf8(self.key()).unwrap_or_default()
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.0.slice[..self.head().key_bytes as usize]
    }

    pub(super) fn epoch(&self) -> u64 {
        self.head().epoch
    }

    /// Whether it was read under this epoch.
    pub(super) fn has_epoch(&self, epoch: Epoch) -> bool {
        self.epoch() == epoch.number(self.exists())
    }

    /// When it was read.
    pub(super) fn read_at(&self) -> Boottime {
        self.head().read_at
    }

    /// Differs from the ID of an earlier or later document of the same key, except in one case in 65,536.
    pub(super) fn id(&self) -> u16 {
        self.head().read_at.0 as u16
    }

    /// False for an absence.
    pub(super) fn exists(&self) -> bool {
        self.head().exists
    }

    /// The bytes of memory that its block takes.
    pub(super) fn block_bytes(&self) -> usize {
        allocated_bytes(BLOCK_BYTES + self.0.slice.len())
    }

    /// Counts a touch. Writes only up to the bound, so that a document that many cores read stays in their caches.
    pub(super) fn touch(&self) {
        let touches = &self.head().touches;
        if touches.load(Ordering::Relaxed) < TOUCHES_MAX {
            touches.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Subtracts one touch. Returns false if there is none.
    pub(super) fn use_up_touch(&self) -> bool {
        let touches = &self.head().touches;
        let touched = touches.load(Ordering::Relaxed);
        touches.store(touched.saturating_sub(1), Ordering::Relaxed);
        touched > 0
    }

    fn head(&self) -> &DocumentHead {
        &self.0.header.header
    }
}

fn bit(encoding: Encoding) -> u8 {
    1 << encoding as u8
}

/// A document's body in one encoding, to be sent without a copy. Empty if it would not be smaller.
#[derive(Clone)]
pub struct Encoded {
    document: Document,
    text: Range<usize>,
}

impl AsRef<[u8]> for Encoded {
    fn as_ref(&self) -> &[u8] {
        &self.document.0.slice[self.text.clone()]
    }
}

/// The digest of a body: 128 bits of XXH3.
pub fn digest(body: &[u8]) -> [u8; 16] {
    xxh3_128(body).to_be_bytes()
}

/// The strong entity tag, quotes included, of a body with this digest.
pub fn entity_tag(digest: [u8; 16]) -> [u8; ETAG_BYTES] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'"'; ETAG_BYTES];
    let pairs = text[1..ETAG_BYTES - 1].chunks_exact_mut(2);
    for (pair, byte) in pairs.zip(digest) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    text
}

/// The body, to be sent without a copy.
impl AsRef<[u8]> for Document {
    fn as_ref(&self) -> &[u8] {
        self.body()
    }
}

/// Documents are equal if their bodies are.
impl PartialEq for Document {
    fn eq(&self, other: &Self) -> bool {
        self.body() == other.body()
    }
}

impl Eq for Document {}

impl fmt::Debug for Document {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", String::from_utf8_lossy(self.body()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_keeps_key_and_body_apart() {
        for (key, body) in [("42", "{}"), ("", "{\"a\":1}"), ("7,NO", "")] {
            let document = Document::new(key, Epoch::both(9), body.as_bytes());
            assert_eq!(document.key(), key.as_bytes());
            assert_eq!(document.body(), body.as_bytes());
            assert_eq!((document.epoch(), document.exists()), (9, true));
        }
        let long =
            |bytes: u16| [&[1], &bytes.to_be_bytes()[..], &vec![b'7'; bytes.into()]].concat();
        for kept in [
            b"\x02\0\x01\xff\xff7".to_vec(),
            long(251),
            long(252),
            long(253),
        ] {
            let kept = Kept::parse(&kept).unwrap();
            let document = Document::with_kept("42", Epoch::both(9), kept, b"{}");
            assert_eq!((document.key(), document.body()), (&b"42"[..], &b"{}"[..]));
            assert_eq!(document.kept(), kept);
            assert_eq!(document.digest(), digest(b"{}"));
        }
        let absent = Document::absent("42", Epoch::both(9));
        assert_eq!((absent.key(), absent.exists()), (&b"42"[..], false));
    }

    #[test]
    fn an_entity_tag_is_the_hash_of_the_body_alone() {
        let etag = Document::new("1", Epoch::both(1), b"{}").etag();
        let text = format!("\"{:032x}\"", xxh3_128(b"{}"));
        assert_eq!(etag, text.as_bytes());
        assert_eq!(etag, Document::new("2", Epoch::both(2), b"{}").etag());
        assert_ne!(etag, Document::new("1", Epoch::both(1), b"[]").etag());
    }

    /// With its places in map and queues a document may take 150 bytes besides key and body.
    #[test]
    fn a_block_costs_little_more_than_its_bytes() {
        assert_eq!(BLOCK_BYTES, 56);
        assert_eq!(
            [1, 128, 129, 256, 257].map(allocated_bytes),
            [16, 128, 160, 256, 320]
        );
        let document = Document::new("123456", Epoch::both(1), &[b'x'; 1_650]);
        assert_eq!(document.block_bytes(), 1_792);
    }

    #[test]
    fn encodings_follow_the_body_in_any_order() {
        let kept = Kept::parse(b"\x01\0\x0217").unwrap();
        for kept in [Kept::default(), kept] {
            let plain = Document::with_kept("42", Epoch::both(9), kept, b"{\"a\":1}");
            plain.touch();
            check_encodings(&plain);
        }
    }

    fn check_encodings(plain: &Document) {
        let [zstd, brotli, gzip] = Encoding::ALL;
        assert!(plain.encoded(gzip).is_none());
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
            let mut document = plain.clone();
            for place in order {
                let text: &[u8] = [&b"zz"[..], b"", b"gggg"][place];
                document = document.with_encoded(Encoding::ALL[place], text);
                assert_eq!(
                    document.encoded(Encoding::ALL[place]).unwrap().as_ref(),
                    text
                );
                assert_eq!(document.body(), plain.body());
            }
            assert_eq!(document.encoded(zstd).unwrap().as_ref(), b"zz");
            assert_eq!(document.encoded(brotli).unwrap().as_ref(), b"");
            assert_eq!(document.encoded(gzip).unwrap().as_ref(), b"gggg");
            assert_eq!((document.key(), document.epoch()), (&b"42"[..], 9));
            assert_eq!(document.kept(), plain.kept());
            assert_eq!(document.etag(), plain.etag());
            assert_ne!(document.id(), plain.id());
            assert!(document.use_up_touch());
            // Two bytes, none, four, and the lengths.
            let grown = document.0.slice.len() - plain.0.slice.len();
            assert_eq!(grown, 6 + LENGTHS_BYTES);
            assert!(document.block_bytes() >= plain.block_bytes() + grown - 16);
        }
    }

    #[test]
    fn touches_are_counted_up_to_a_bound() {
        let document = Document::new("1", Epoch::both(1), b"{}");
        assert!(!document.use_up_touch());
        for _ in 0..300 {
            document.clone().touch();
        }
        for _ in 0..TOUCHES_MAX {
            assert!(document.use_up_touch());
        }
        assert!(!document.use_up_touch());
    }
}
