//! `POST /signin`, `/refresh` and `/signout`: tokens that larder itself signs.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Response, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::auth::config::SameSite;
use crate::auth::{Credential, Principal, Scheme, unix_time};
use crate::http::auth::credential::credentials;
use crate::http::auth::refusal::AuthRefusal;
use crate::http::auth::{Auth, requested_host};
use crate::http::body::read_body;
use crate::http::decoding::content_coding;
use crate::http::full_body::FullBody;
use crate::http::headers::{APPLICATION_JSON, JSON, media_type};
use crate::http::origin::PageOrigin;
use crate::http::problem::Problem;
use crate::http::request::{RequestContext, RequestHead};
use crate::resource::body::{BYTE_ORDER_MARK, HAS_BYTE_ORDER_MARK};

/// The address of a request that did not pass the middleware.
const NO_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
/// The longest body: a name and a password in JSON.
const BODY_BYTES_MAX: usize = 4 << 10;

/// The body of `POST /signin` without HTTP Basic.
#[derive(Deserialize)]
struct SigninBody {
    name: String,
    password: String,
}

#[derive(Serialize)]
struct TokenBody<'t> {
    /// `None` if only the cookie has it, which scripts can't read.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'t str>,
    /// Seconds.
    expires_in: u64,
}

/// Answers with a token for a name and a password, from JSON or HTTP Basic.
pub(super) async fn signin(State(auth): State<Arc<Auth>>, request: Request) -> Response<Body> {
    let (head, body) = request.into_parts();
    let answer = match name_and_password(&head, body).await {
        Ok(pair) => auth.sign_in(&head, &pair).await,
        Err(problem) => return problem.into_response(),
    };
    answer
        .unwrap_or_else(|refusal| auth.refuse(refusal))
        .map(Body::new)
}

/// Answers with a new token for a valid one that larder has issued, until the session has reached its maximum length.
pub(super) async fn refresh(State(auth): State<Arc<Auth>>, request: Request) -> Response<Body> {
    let (head, _body) = request.into_parts();
    let answer = auth.renew(&head).await;
    answer
        .unwrap_or_else(|refusal| auth.refuse(refusal))
        .map(Body::new)
}

/// Removes the cookie with the token from the browser. The token stays valid until it expires.
pub(super) async fn signout(State(auth): State<Arc<Auth>>, request: Request) -> Response<Body> {
    let (head, _body) = request.into_parts();
    auth.sign_out(&head).map(Body::new)
}

/// The name and the password of a request, encoded as in HTTP Basic.
///
/// Only JSON or `Authorization` is accepted. A page of another site could send a form without a preflight request, and so
/// sign its visitor in as another user.
async fn name_and_password(head: &Parts, body: Body) -> Result<Vec<u8>, Problem> {
    let found = credentials(&head.headers, None).map(|mut found| found.next());
    if let Ok(Some(found)) = found
        && found.scheme == Scheme::Basic
    {
        return Ok(found.bytes.to_vec());
    }
    media_type(&head.headers, &[JSON]).map_err(|_| {
        let expected = "application/json with name and password, unless you sign in by HTTP Basic";
        Problem::unsupported_media_type(expected)
    })?;
    if !matches!(content_coding(&head.headers), Ok(None)) {
        return Err(Problem::encoded());
    }
    let body = read_body(body, BODY_BYTES_MAX).await?;
    let parsed = serde_json::from_slice::<SigninBody>(&body);
    // Without the error's text, which may contain the password.
    let parsed = parsed.map_err(|_| {
        Problem::bad_request(if body.starts_with(BYTE_ORDER_MARK) {
            HAS_BYTE_ORDER_MARK
        } else {
            "expected {\"name\": \"...\", \"password\": \"...\"}"
        })
    })?;
    let SigninBody { name, password } = parsed;
    Ok(STANDARD.encode(format!("{name}:{password}")).into())
}

/// What a trusted proxy was called by.
fn forwarded_host(head: &Parts) -> Option<&HeaderValue> {
    let context = head.extensions.get::<RequestContext>();
    context.and_then(RequestContext::forwarded_host)
}

impl Auth {
    async fn sign_in(&self, head: &Parts, bytes: &[u8]) -> Result<Response<FullBody>, AuthRefusal> {
        let scheme = Scheme::Basic;
        let credential = Credential { scheme, bytes };
        let client = head.extensions.get::<RequestContext>();
        let client = client.map_or(NO_CLIENT, RequestContext::client);
        let principal = self
            .authenticator
            .verify_password(credential, client)
            .await?;
        self.respond_with_token(head, scheme, &principal, unix_time())
    }

    async fn renew(&self, head: &Parts) -> Result<Response<FullBody>, AuthRefusal> {
        let mut refusal = AuthRefusal::Unauthorized("the token to renew is missing");
        for found in credentials(&head.headers, self.authenticator.cookie())? {
            let scheme = found.scheme;
            self.check_origin(scheme, RequestHead::of_parts(head), forwarded_host(head))?;
            if !matches!(scheme, Scheme::Bearer | Scheme::Cookie) {
                break;
            }
            match self.authenticator.renew(found.bytes).await {
                Ok(Some((principal, auth_time))) => {
                    return self.respond_with_token(head, scheme, &principal, auth_time);
                }
                Ok(None) => break,
                // Another cookie may hold a valid token.
                Err(error) => refusal = error.into(),
            }
        }
        Err(refusal)
    }

    fn sign_out(&self, head: &Parts) -> Response<FullBody> {
        let parts = RequestHead::of_parts(head);
        if self.page_origin(parts, forwarded_host(head)) == PageOrigin::Other {
            return self.refuse(AuthRefusal::forged(requested_host(
                parts,
                forwarded_host(head),
            )));
        }
        let mut response = Response::new(FullBody::default());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, NO_STORE);
        headers.extend(self.cookie(head, "", 0).map(|cookie| (SET_COOKIE, cookie)));
        response
    }

    /// The token that renews or begins a session, for a client that has sent a credential of this `scheme`.
    fn respond_with_token(
        &self,
        head: &Parts,
        scheme: Scheme,
        principal: &Principal,
        auth_time: u64,
    ) -> Result<Response<FullBody>, AuthRefusal> {
        let signed = self.authenticator.sign(principal, auth_time);
        let signed = signed.ok_or(AuthRefusal::Token("the session has ended; sign in again"))?;
        let fields = TokenBody {
            token: Some(signed.token.as_str()).filter(|_| scheme != Scheme::Cookie),
            expires_in: signed.expires_in,
        };
        // A text and a number always serialise.
        let body = simd_json::to_string(&fields).unwrap_or_default();
        let mut response = Response::new(FullBody::new(body.into()));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, APPLICATION_JSON);
        headers.insert(CACHE_CONTROL, NO_STORE);
        if let Some(cookie) = self.cookie(head, &signed.token, signed.expires_in) {
            headers.insert(SET_COOKIE, cookie);
        }
        Ok(response)
    }

    /// The cookie with the token: scripts can't read it, and browsers send it from pages of this site only, unless
    /// `same_site` is `none`.
    fn cookie(&self, head: &Parts, token: &str, expires_in: u64) -> Option<HeaderValue> {
        let name = self.authenticator.cookie()?;
        let same_site = match self.same_site {
            SameSite::None => "None; Secure",
            SameSite::Strict if self.is_over_tls(&head.headers) => "Strict; Secure",
            SameSite::Strict => "Strict",
        };
        let cookie =
            format!("{name}={token}; Max-Age={expires_in}; Path=/; HttpOnly; SameSite={same_site}");
        HeaderValue::from_str(&cookie).ok()
    }
}
