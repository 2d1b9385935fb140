//! `POST /signin` and `POST /refresh`: tokens that larder signs itself.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::auth::{Credential, Principal, Scheme, Signed, unix_time};
use crate::http::auth::Auth;
use crate::http::auth::credential::{credential, is_forgery};
use crate::http::auth::refusal::{Denied, FORGED};
use crate::http::body::read_body;
use crate::http::full_body::FullBody;
use crate::http::headers::{APPLICATION_JSON, JSON, require_media_type};
use crate::http::problem::Problem;
use crate::http::request::Resolved;

/// Of a request that came over no connection.
const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// A name, a password, and what JSON needs around them.
const BODY_BYTES_MAX: usize = 4 << 10;
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The body of `POST /signin` without HTTP Basic.
#[derive(Deserialize)]
struct Credentials {
    name: String,
    password: String,
}

#[derive(Serialize)]
struct Granted<'t> {
    token: &'t str,
    /// Seconds.
    expires_in: u64,
}

/// Gives a token for name and password, by JSON or by HTTP Basic.
pub(super) async fn signin(State(auth): State<Arc<Auth>>, request: Request) -> Response<Body> {
    let (head, body) = request.into_parts();
    let answer = match name_and_password(&head, body).await {
        Ok(pair) => auth.sign_in(&head, &pair).await,
        Err(problem) => return problem.into_response(),
    };
    answer
        .unwrap_or_else(|denied| auth.refusal(denied))
        .map(Body::new)
}

/// Gives a new token for a good one that larder gave out, until the session has lasted long enough.
pub(super) async fn refresh(State(auth): State<Arc<Auth>>, request: Request) -> Response<Body> {
    let (head, _body) = request.into_parts();
    let answer = auth.renew(&head).await;
    answer
        .unwrap_or_else(|denied| auth.refusal(denied))
        .map(Body::new)
}

/// A page of another site can send a form, but no JSON and no header of its own without asking first: so none signs its
/// visitor in as somebody else.
///
/// Both come as HTTP Basic has them.
async fn name_and_password(head: &Parts, body: Body) -> Result<Vec<u8>, Problem> {
    if let Ok(Some(shown)) = credential(&head.headers, None)
        && shown.scheme == Scheme::Basic
    {
        return Ok(shown.bytes.to_vec());
    }
    require_media_type(&head.headers, &[JSON]).map_err(|_| {
        let expected = "application/json with name and password, unless you sign in by HTTP Basic";
        Problem::unsupported_media_type(expected)
    })?;
    let body = read_body(body, BODY_BYTES_MAX).await?;
    let asked = serde_json::from_slice::<Credentials>(&body);
    // Without what was sent: it may hold a password.
    let asked = asked
        .map_err(|_| Problem::bad_request("expected {\"name\": \"...\", \"password\": \"...\"}"))?;
    let Credentials { name, password } = asked;
    Ok(STANDARD.encode(format!("{name}:{password}")).into())
}

impl Auth {
    async fn sign_in(&self, head: &Parts, bytes: &[u8]) -> Result<Response<FullBody>, Denied> {
        let scheme = Scheme::Basic;
        let credential = Credential { scheme, bytes };
        let client = head.extensions.get::<Resolved>();
        let client = client.map_or(NOWHERE, Resolved::client);
        let principal = self.authenticator.of_password(credential, client).await?;
        self.grant(head, &principal, unix_time())
    }

    async fn renew(&self, head: &Parts) -> Result<Response<FullBody>, Denied> {
        let Parts {
            method,
            uri,
            headers,
            ..
        } = head;
        let shown = credential(headers, self.authenticator.cookie());
        let shown = shown.map_err(|malformed| Denied::Unauthorized(malformed.0))?;
        let token = "the token to renew is missing";
        let shown = shown.ok_or(Denied::Unauthorized(token))?;
        if is_forgery(shown.scheme, method, uri, headers) {
            return Err(Denied::Forbidden(FORGED));
        }
        if !matches!(shown.scheme, Scheme::Bearer | Scheme::Cookie) {
            return Err(Denied::Unauthorized(token));
        }
        let renewed = self.authenticator.renew(shown.bytes).await?;
        let (principal, auth_time) = renewed.ok_or(Denied::Unauthorized(token))?;
        self.grant(head, &principal, auth_time)
    }

    fn grant(
        &self,
        head: &Parts,
        principal: &Principal,
        auth_time: u64,
    ) -> Result<Response<FullBody>, Denied> {
        let signed = self.authenticator.sign(principal, auth_time);
        let signed = signed.ok_or(Denied::Token("the session has ended; sign in again"))?;
        let granted = Granted {
            token: &signed.token,
            expires_in: signed.expires_in,
        };
        // A text and a number always serialise.
        let body = simd_json::to_string(&granted).unwrap_or_default();
        let mut response = Response::new(FullBody::new(body.into()));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, APPLICATION_JSON);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(cookie) = self.cookie(head, &signed) {
            headers.insert(SET_COOKIE, cookie);
        }
        Ok(response)
    }

    /// The token out of reach of the page's scripts, and sent back to this site's own pages alone.
    fn cookie(&self, head: &Parts, signed: &Signed) -> Option<HeaderValue> {
        let name = self.authenticator.cookie()?;
        // A proxy may speak TLS instead. Who makes that up keeps nothing but their own cookie to themselves.
        let text = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
        let secure = self.tls || text(X_FORWARDED_PROTO) == Some("https");
        let Signed { token, expires_in } = signed;
        let secure = if secure { "; Secure" } else { "" };
        let cookie = format!(
            "{name}={token}; Max-Age={expires_in}; Path=/; HttpOnly; SameSite=Strict{secure}"
        );
        HeaderValue::from_str(&cookie).ok()
    }
}
