//! What the path of a request names: parsed once, before the method decides.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::cache::Cache;
use crate::http::problem::Problem;
use crate::resource::ResourceId;

/// What follows the name of a resource where a body names its documents. No resource's name holds a colon.
const BATCH: &str = ":batch";

/// What any target answers.
pub(super) const METHODS: &str = "GET, HEAD, POST, OPTIONS";

/// A resource, and what of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target<'p> {
    pub(super) index: ResourceId,
    pub(super) part: Part<'p>,
}

/// What of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'p> {
    /// `/RESOURCE`: its documents.
    Collection,
    /// `/RESOURCE:batch`: those of its documents that a body names.
    Batch,
    /// `/RESOURCE/KEY`: one document; the key as it stands in the path.
    Document(&'p str),
}

impl<'p> Target<'p> {
    /// Splits `path`. The name may be percent-encoded; the key is split at its commas before it is decoded, so it stays
    /// as it is.
    pub(super) fn parse(path: &'p str, cache: &Cache) -> Result<Self, Problem> {
        let mut segments = path.split('/').skip(1);
        let name = segments.next().unwrap_or_default();
        let name = percent_decode_str(name)
            .decode_utf8()
            .unwrap_or(Cow::Borrowed(""));
        let (name, part) = match (segments.next(), segments.next()) {
            (None, _) => match name.strip_suffix(BATCH) {
                Some(name) => (name, Part::Batch),
                None => (&*name, Part::Collection),
            },
            (Some(key), None) => (&*name, Part::Document(key)),
            (Some(_), Some(_)) => return Err(Problem::no_such_path()),
        };
        match (cache.index_of(name), part) {
            (Some(index), part) => Ok(Self { index, part }),
            (None, Part::Document(_)) => Err(Problem::no_such_resource()),
            (None, _) => Err(Problem::no_such_path()),
        }
    }
}

impl Part<'_> {
    /// The methods that it answers, for `Allow`; fewer where the resource is not `writable`.
    pub(super) fn methods(self, writable: bool) -> &'static str {
        match self {
            Self::Batch => "POST, OPTIONS",
            _ if !writable => "GET, HEAD, OPTIONS",
            Self::Collection => "GET, HEAD, POST, OPTIONS",
            Self::Document(_) => "GET, HEAD, PUT, PATCH, DELETE, OPTIONS",
        }
    }
}
