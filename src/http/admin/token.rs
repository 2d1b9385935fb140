//! Which requests may use the admin address: those with its token, or without one those of no other site's web page.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::middleware::Next;
use axum::response::Response;
use ring::hmac;
use ring::rand::SystemRandom;

use crate::auth::config::{AuthConfig, MASK};
use crate::auth::{file_mistake, read_file, without_line_break};
use crate::http::admin::dashboard;
use crate::http::internal_error::FailedRequest;
use crate::http::origin::{PageCheck, PageOrigin, host};
use crate::http::problem::Problem;
use crate::http::protocol::check_head;
use crate::http::request::RequestHead;
use crate::resource::definition::Mistake;

const FILE: &str = "auth.admin_token_file";
/// A shorter token could be guessed.
const BYTES_MIN: usize = 16;
const SCHEME: &[u8] = b"Bearer ";
/// Paths without authentication: probes have no credentials and name any host, and the responses contain nothing of any
/// document.
const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// The token. It is compared by its HMAC with a random key, so the time of a comparison says nothing about the token.
#[derive(Clone)]
pub struct AdminToken {
    key: Arc<hmac::Key>,
    tag: hmac::Tag,
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl AdminToken {
    /// Reads the token from the configuration or from the file that it names; `None` if none is configured. Blocks on the
    /// file system.
    ///
    /// # Errors
    /// The file can't be read; the token is too short, or can't be sent.
    pub fn read(config: &AuthConfig) -> Result<Option<Self>, Mistake> {
        let Some(bearer) = configured(config)? else {
            return Ok(None);
        };
        let token = token_of(&bearer).unwrap_or_default();
        let (path, setting) = source(config);
        if token.len() < BYTES_MIN {
            let message =
                format!("needs at least {BYTES_MIN} bytes; `openssl rand -hex 32` makes one");
            return Err(file_mistake(path, setting, message));
        }
        let random = |_| file_mistake(path, setting, "the system gave no random bytes".to_owned());
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map_err(random)?;
        Ok(Some(Self {
            tag: hmac::sign(&key, token),
            key: Arc::new(key),
        }))
    }

    fn admits(&self, request: &Request) -> bool {
        let token = request.headers().get(AUTHORIZATION).and_then(token_of);
        token.is_some_and(|token| hmac::verify(&self.key, token, self.tag.as_ref()).is_ok())
    }
}

/// The token in a value of `Authorization`.
fn token_of(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = value.as_bytes().split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(token)
}

/// The value of `Authorization` with the configured token; `None` if there is none. Blocks on the file system.
///
/// # Errors
/// The file can't be read; the token can't be sent.
pub(crate) fn configured(config: &AuthConfig) -> Result<Option<HeaderValue>, Mistake> {
    let token = match (&config.admin_token, &config.admin_token_file) {
        (Some(token), _) => token.expose().as_bytes().to_vec(),
        (None, Some(path)) => without_line_break(&read_file(path, FILE)?).to_vec(),
        (None, None) => return Ok(None),
    };
    // Blanks at the end of a header's line are no part of its value (RFC 9110, section 5.5).
    let bearer = HeaderValue::from_bytes(&[SCHEME, &token].concat());
    let bearer = bearer
        .ok()
        .filter(|_| !token.ends_with(b" ") && !token.ends_with(b"\t"));
    let (path, setting) = source(config);
    let message = "can't be sent in a header: it contains a control character, such as a second line break, or ends \
                   with a blank";
    let mistake = || file_mistake(path, setting, message.to_owned());
    bearer.ok_or_else(mistake).map(Some)
}

/// The place of the token in the configuration, for messages.
fn source(config: &AuthConfig) -> (&Path, &'static str) {
    match (&config.admin_token, &config.admin_token_file) {
        (None, Some(path)) => (path.as_path(), FILE),
        _ => (Path::new("configuration"), "auth.admin_token"),
    }
}

/// What a request to the admin address needs.
#[derive(Clone)]
pub(super) enum AdminAccess {
    /// The token.
    Token(AdminToken),
    /// To come from no web page of another site.
    Open(PageCheck),
}

impl AdminAccess {
    pub(super) fn new(token: Option<AdminToken>, hosts: &[String]) -> Self {
        token.map_or_else(|| Self::Open(PageCheck::for_admin(hosts)), Self::Token)
    }
}

/// Passes on requests that may use the address, and probes; answers 401 or 403 to others.
pub(super) async fn check(
    State(access): State<AdminAccess>,
    request: Request,
    next: Next,
) -> Response {
    let failed = FailedRequest::of(&request);
    let run = async |request| {
        let mut response = next.run(request).await;
        failed.log(&mut response);
        response
    };
    if PROBES.contains(&request.uri().path()) {
        return run(request).await;
    }
    if let Err(problem) = check_head(RequestHead::of(&request)) {
        return problem.into_response();
    }
    match &access {
        // The page has no data, and asks for the token.
        AdminAccess::Token(_) if dashboard::has_file(request.uri().path()) => {}
        AdminAccess::Token(token) if !token.admits(&request) => {
            let detail = "the admin address requires its token (Authorization: Bearer)";
            let mut response = Problem::unauthorized(detail).into_response();
            let bearer = HeaderValue::from_static("Bearer realm=\"larder admin\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, bearer);
            return response;
        }
        AdminAccess::Token(_) => {}
        AdminAccess::Open(pages) => {
            let head = RequestHead::of(&request);
            if let Err(problem) =
                pages.check(head, PageOrigin::of(head, host(head), false, |_| false))
            {
                return problem.into_response();
            }
        }
    }
    run(request).await
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::http::StatusCode;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;
    use crate::auth::config::Secret;

    #[test]
    fn a_token_that_no_header_can_carry_is_refused() {
        let read = |token: &str| {
            let config = AuthConfig {
                admin_token: Some(Secret::new(token)),
                ..AuthConfig::default()
            };
            AdminToken::read(&config).map(|token| token.is_some())
        };
        for token in ["0123456789abcdef", "0123456789 abcdef", "0123456789abcdé"] {
            assert_eq!(read(token), Ok(true), "{token:?}");
        }
        for end in [" ", "\t", "\n", "\r", "\0", "\u{7f}", "\nx"] {
            let mistake = read(&format!("0123456789abcdef{end}")).unwrap_err();
            assert_eq!(mistake.place.key, "auth.admin_token");
            assert!(mistake.message.starts_with("can't be sent"), "{end:?}");
        }
    }

    /// The log has the same id.
    #[tokio::test]
    async fn an_internal_error_has_the_id_of_its_request() {
        let access = AdminAccess::new(None, &[]);
        let router = Router::new()
            .route(
                "/status",
                get(async || Problem::internal("why").into_response()),
            )
            .route("/healthz", get(async || "ok"))
            .layer(from_fn_with_state(access, check));
        for (path, status) in [("/status", 500), ("/healthz", 200)] {
            let request = Request::get(path).header("host", "localhost");
            let request = request.header("x-request-id", "request-1");
            let request = request.body(Body::empty()).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::from_u16(status).unwrap());
            let id = response.headers().get("x-request-id");
            assert_eq!(
                id.is_some_and(|id| id == "request-1"),
                status == 500,
                "{path}"
            );
        }
    }
}
