//! Refusals of requests: their status, and the schemes that a client may use instead.

use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, Response};

use crate::auth::AuthError;
use crate::auth::config::AuthConfig;
use crate::http::auth::Auth;
use crate::http::auth::credential::MalformedCredential;
use crate::http::full_body::FullBody;
use crate::http::problem::Problem;

const FORGED: &str = "a write that is authenticated by a cookie must have an Origin with this scheme, host and port, or one of cors.origins";
/// The longest host name that a message shows (RFC 1035, section 2.3.4).
const HOST_CHARS_MAX: usize = 255;
const BASIC: &str = "Basic realm=\"larder\", charset=\"UTF-8\"";
const BEARER: &str = "Bearer realm=\"larder\"";
/// RFC 6750, section 3.1.
pub(super) const INVALID_TOKEN: HeaderValue =
    HeaderValue::from_static("Bearer realm=\"larder\", error=\"invalid_token\"");

/// The schemes of `WWW-Authenticate` (RFC 9110, section 11.6.1).
pub(super) fn challenges(config: &AuthConfig) -> Vec<HeaderValue> {
    let bearer = !config.keys.is_empty() || config.jwt.is_on();
    let schemes = [(BASIC, !config.users.is_empty()), (BEARER, bearer)];
    let schemes = schemes.iter().filter(|(_, used)| *used);
    schemes
        .map(|(scheme, _)| HeaderValue::from_static(scheme))
        .collect()
}

/// Why a request is refused; the text is the problem's detail.
pub(super) enum AuthRefusal {
    /// 401 because of the token, which `WWW-Authenticate` then says.
    Token(&'static str),
    /// 401
    Unauthorized(&'static str),
    /// 403
    Forbidden(&'static str),
    /// 403, since a page of another origin may have sent the request.
    Forged(String),
    /// 429, and the client may try again after so many seconds.
    TooMany(&'static str, u64),
    /// 503
    Unavailable(&'static str),
}

impl Auth {
    /// The response to a request that is refused. Counts it.
    pub(super) fn refuse(&self, refusal: AuthRefusal) -> Response<FullBody> {
        let challenged = matches!(
            refusal,
            AuthRefusal::Token(_) | AuthRefusal::Unauthorized(_)
        );
        let (problem, is_token) = match refusal {
            AuthRefusal::Token(detail) => (Problem::unauthorized(detail), true),
            AuthRefusal::Unauthorized(detail) => (Problem::unauthorized(detail), false),
            AuthRefusal::Forbidden(detail) => (Problem::forbidden(detail), false),
            AuthRefusal::Forged(detail) => (Problem::forbidden(detail), false),
            AuthRefusal::TooMany(detail, seconds) => {
                (Problem::too_many_requests(detail, seconds), false)
            }
            AuthRefusal::Unavailable(detail) => (Problem::unavailable(detail), false),
        };
        let status = problem.status();
        let labels = ["", "auth", status.as_str()];
        self.metrics.requests.with_label_values(&labels).inc();
        self.metrics.failures.note("", status.as_u16());
        let mut response = problem.into_full_response();
        for challenge in self.challenges.iter().filter(|_| challenged) {
            let challenge = if is_token && challenge == BEARER {
                INVALID_TOKEN
            } else {
                challenge.clone()
            };
            response.headers_mut().append(WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

impl From<MalformedCredential> for AuthRefusal {
    fn from(MalformedCredential(why): MalformedCredential) -> Self {
        Self::Unauthorized(why)
    }
}

impl AuthRefusal {
    /// The refusal of a request to `host` by a page of another origin.
    pub(super) fn forged(host: Option<&str>) -> Self {
        let host: String = host
            .unwrap_or_default()
            .chars()
            .take(HOST_CHARS_MAX)
            .collect();
        Self::Forged(format!(
            "{FORGED}; the host of this request is `{host}` (Host, or X-Forwarded-Host from limits.trusted_proxies)"
        ))
    }
}

impl From<AuthError> for AuthRefusal {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::Token(detail) => Self::Token(detail),
            AuthError::Credential(detail) => Self::Unauthorized(detail),
            AuthError::TooManyChecks(detail, seconds) => Self::TooMany(detail, seconds),
            AuthError::Unavailable(detail) => Self::Unavailable(detail),
        }
    }
}
