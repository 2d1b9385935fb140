//! CORS (the Fetch standard): which pages of other origins may read responses and write. None may, unless configured.

use std::time::Duration;

use axum::http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};

use crate::http::full_body::FullBody;

/// Response headers that scripts may read, besides those that are always exposed.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "accept-ranges, age, cache-status, content-encoding, content-range, etag, larder-token, larder-unreadable, link, \
     location, preference-applied, retry-after, warning, x-request-id",
);
const TRUE: HeaderValue = HeaderValue::from_static("true");
const ANY: HeaderValue = HeaderValue::from_static("*");
const BY_ORIGIN: HeaderValue = HeaderValue::from_static("origin");

/// `[cors]`: what pages of other origins may do.
#[derive(Clone, Debug, Default)]
pub struct CorsConfig {
    /// Such as `https://app.example`, or `*` for all; empty: none.
    pub origins: Vec<String>,
    /// Methods that these pages may use.
    pub methods: Vec<String>,
    /// Headers that these pages may send.
    pub headers: Vec<String>,
    /// Whether they may send credentials such as cookies; not with `*`.
    pub credentials: bool,
    /// How long browsers may cache the response to a preflight request.
    pub max_age: Duration,
}

/// The values of the response headers.
#[derive(Debug)]
pub(super) struct Cors {
    /// `None`: all origins.
    origins: Option<Vec<HeaderValue>>,
    methods: HeaderValue,
    headers: HeaderValue,
    credentials: bool,
    max_age: HeaderValue,
}

impl Cors {
    /// `None` if no other origin may do anything. The configuration has checked every value.
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

    /// The response to a preflight request; `None` for another request.
    pub(super) fn preflight(
        &self,
        method: &Method,
        request_headers: &HeaderMap,
    ) -> Option<Response<FullBody>> {
        if *method != Method::OPTIONS
            || !request_headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
        {
            return None;
        }
        let mut response = Response::new(FullBody::default());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let allowed = self.allowed(request_headers.get(ORIGIN)?);
        self.add_headers(allowed.clone(), response.headers_mut());
        if allowed.is_some() {
            let headers = response.headers_mut();
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, self.methods.clone());
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, self.headers.clone());
            headers.insert(ACCESS_CONTROL_MAX_AGE, self.max_age.clone());
        }
        Some(response)
    }

    /// The value of `Access-Control-Allow-Origin` for a request with these headers; `None` if its origin is not allowed.
    pub(super) fn allowed_origin(&self, request_headers: &HeaderMap) -> Option<HeaderValue> {
        self.allowed(request_headers.get(ORIGIN)?)
    }

    /// Whether pages of `origin` may use the address.
    pub(super) fn allows(&self, origin: &HeaderValue) -> bool {
        self.allowed(origin).is_some()
    }

    fn allowed(&self, origin: &HeaderValue) -> Option<HeaderValue> {
        match &self.origins {
            None => Some(ANY),
            Some(origins) => origins.iter().find(|allowed| *allowed == origin).cloned(),
        }
    }

    /// Adds the headers to a response. `Vary` is added even if the origin is not allowed, since the response depends on it.
    pub(super) fn add_headers(&self, allowed: Option<HeaderValue>, headers: &mut HeaderMap) {
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
