//! Which pages of other origins may read answers and write (the Fetch standard's CORS protocol): none, unless configured.

use std::time::Duration;

use axum::http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};

use crate::http::full_body::FullBody;

/// What scripts may see besides the headers that they always may.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "age, cache-status, content-encoding, content-range, etag, larder-token, link, location, retry-after, warning",
);
const TRUE: HeaderValue = HeaderValue::from_static("true");
const ANY: HeaderValue = HeaderValue::from_static("*");
const BY_ORIGIN: HeaderValue = HeaderValue::from_static("origin");

/// `[cors]`: what pages of other origins may do.
#[derive(Clone, Debug)]
pub struct CorsConfig {
    /// Such as `https://app.example`, or `*` for all; empty: none.
    pub origins: Vec<String>,
    /// Methods that these pages may use.
    pub methods: Vec<String>,
    /// Headers that these pages may send.
    pub headers: Vec<String>,
    /// Whether they may send cookies and such; not with `*`.
    pub credentials: bool,
    /// How long browsers may remember this.
    pub max_age: Duration,
}

/// The same, ready to be said.
#[derive(Debug)]
pub(super) struct Cors {
    /// None: all.
    origins: Option<Vec<HeaderValue>>,
    methods: HeaderValue,
    headers: HeaderValue,
    credentials: bool,
    max_age: HeaderValue,
}

impl Cors {
    /// None where no other origin may do anything. The configuration has checked every value.
    pub(super) fn new(config: &CorsConfig) -> Option<Self> {
        let list = |values: &[String]| HeaderValue::try_from(values.join(", ")).ok();
        let origins = config.origins.iter();
        let named = origins.map(|origin| HeaderValue::from_str(origin).ok());
        let any = config.origins.iter().any(|origin| origin == "*");
        Some(Self {
            origins: if any {
                None
            } else {
                Some(named.collect::<Option<Vec<_>>>()?).filter(|named| !named.is_empty())
            },
            methods: list(&config.methods)?,
            headers: list(&config.headers)?,
            credentials: config.credentials,
            max_age: config.max_age.as_secs().into(),
        })
        .filter(|this| any || this.origins.is_some())
    }

    /// The answer to a preflight; none where the request is none. It needs no look at anything else.
    pub(super) fn preflight(
        &self,
        method: &Method,
        asked: &HeaderMap,
    ) -> Option<Response<FullBody>> {
        if *method != Method::OPTIONS || !asked.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
            return None;
        }
        let mut response = Response::new(FullBody::default());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let allowed = self.allowed(asked.get(ORIGIN)?);
        self.mark(allowed.clone(), response.headers_mut());
        if allowed.is_some() {
            let headers = response.headers_mut();
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, self.methods.clone());
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, self.headers.clone());
            headers.insert(ACCESS_CONTROL_MAX_AGE, self.max_age.clone());
        }
        Some(response)
    }

    /// What `Access-Control-Allow-Origin` is to say to a request with these headers, if anything.
    pub(super) fn origin(&self, asked: &HeaderMap) -> Option<HeaderValue> {
        self.allowed(asked.get(ORIGIN)?)
    }

    fn allowed(&self, origin: &HeaderValue) -> Option<HeaderValue> {
        match &self.origins {
            None => Some(ANY),
            Some(origins) => origins.iter().find(|allowed| *allowed == origin).cloned(),
        }
    }

    /// Says so on an answer. Caches must know that it depends on the origin, whether or not it names one.
    pub(super) fn mark(&self, allowed: Option<HeaderValue>, headers: &mut HeaderMap) {
        if self.origins.is_some() {
            headers.append(VARY, BY_ORIGIN);
        }
        if let Some(origin) = allowed {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
            if self.credentials {
                headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, TRUE);
            }
        }
    }
}
