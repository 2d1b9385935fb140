//! Content encodings of documents (RFC 9110, section 8.4.1): made once, kept in the document's block.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

/// A content encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// RFC 8878.
    Zstd,
    /// RFC 7932.
    Brotli,
    /// RFC 1952.
    Gzip,
}

/// The default of zstd.
const ZSTD_LEVEL: i32 = 3;
/// With a higher quality, time grows faster than size falls.
const BROTLI_QUALITY: u32 = 5;
/// A window of 256 KiB: brotli allocates several times that, however small the text is.
const BROTLI_WINDOW_BITS: u32 = 18;

impl Encoding {
    /// All encodings. If a client has no preference, the first is sent: zstd costs least and saves most.
    pub const ALL: [Self; 3] = [Self::Zstd, Self::Brotli, Self::Gzip];

    /// Its name in `Accept-Encoding` and `Content-Encoding`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }

    /// The concatenation of `parts`, encoded; `None` if that is not smaller.
    pub fn encode(self, parts: &[Bytes]) -> Option<Vec<u8>> {
        let bytes: usize = parts.iter().map(Bytes::len).sum();
        let encoded = match self {
            Self::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL).ok()?;
                // If the length is known, zstd allocates no more than it needs for that.
                encoder.set_pledged_src_size(Some(bytes as u64)).ok()?;
                write_all(&mut encoder, parts)?;
                encoder.finish().ok()?
            }
            Self::Brotli => {
                let buffer = bytes.clamp(1, 1 << 16);
                let (quality, window) = (BROTLI_QUALITY, BROTLI_WINDOW_BITS);
                let mut encoder =
                    brotli::CompressorWriter::new(Vec::new(), buffer, quality, window);
                write_all(&mut encoder, parts)?;
                encoder.into_inner()
            }
            Self::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
                write_all(&mut encoder, parts)?;
                encoder.finish().ok()?
            }
        };
        (encoded.len() < bytes).then_some(encoded)
    }
}

fn write_all(to: &mut impl Write, parts: &[Bytes]) -> Option<()> {
    // To write to a vector does not fail.
    parts.iter().try_for_each(|part| to.write_all(part)).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn decoded(encoding: Encoding, encoded: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        match encoding {
            Encoding::Zstd => zstd::stream::copy_decode(encoded, &mut text).unwrap(),
            Encoding::Brotli => {
                brotli::Decompressor::new(encoded, 4096)
                    .read_to_end(&mut text)
                    .map(|_| ())
                    .unwrap();
            }
            Encoding::Gzip => {
                flate2::read::GzDecoder::new(encoded)
                    .read_to_end(&mut text)
                    .map(|_| ())
                    .unwrap();
            }
        }
        text
    }

    #[test]
    fn parts_are_encoded_as_one_and_only_where_that_is_smaller() {
        let parts = [
            Bytes::from("a".repeat(3_000)),
            "b".into(),
            "c".repeat(99_999).into(),
        ];
        for encoding in Encoding::ALL {
            let encoded = encoding.encode(&parts).unwrap();
            assert!(encoded.len() < 1_000, "{encoding:?} {}", encoded.len());
            assert_eq!(decoded(encoding, &encoded), parts.concat());
            assert_eq!(encoding.encode(&["xyz".into()]), None, "{encoding:?}");
            assert_eq!(encoding.encode(&[]), None, "{encoding:?}");
        }
    }
}
