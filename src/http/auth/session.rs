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

use crate::http::auth::credential::{Kind, Presented, is_forgery, presented};
use crate::http::auth::refusal::{Denied, FORGED};
use crate::http::auth::tokens::{Signed, unix_time};
use crate::http::auth::{Auth, Principal};
use crate::http::body::{Whole, read_whole};
use crate::http::problem::Problem;

pub(in crate::http) const SIGNIN: &str = "/signin";
pub(in crate::http) const REFRESH: &str = "/refresh";
/// Of a request that came over no connection.
const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// A name, a password, and what JSON needs around them.
const BODY_BYTES_MAX: usize = 4 << 10;
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

pub(super) fn is_path(path: &str) -> bool {
    path == SIGNIN || path == REFRESH
}

/// The body of `POST /signin` without HTTP Basic.
#[derive(Deserialize)]
struct Asked {
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
        Ok(credential) => auth.sign_in(&head, &credential).await,
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
    if let Ok(Some(shown)) = presented(&head.headers, None)
        && shown.kind == Kind::Basic
    {
        return Ok(shown.bytes.to_vec());
    }
    let media_type = head.headers.get(CONTENT_TYPE);
    let media_type = media_type.and_then(|value| value.to_str().ok()?.split(';').next());
    if !media_type.is_some_and(|name| name.trim().eq_ignore_ascii_case("application/json")) {
        let detail = "application/json with name and password, unless you sign in by HTTP Basic";
        return Err(Problem::unsupported_media_type(detail));
    }
    let body = read_whole(body, BODY_BYTES_MAX).await?;
    let asked = serde_json::from_slice::<Asked>(&body);
    // Without what was sent: it may hold a password.
    let asked = asked
        .map_err(|_| Problem::bad_request("expected {\"name\": \"...\", \"password\": \"...\"}"))?;
    let Asked { name, password } = asked;
    Ok(STANDARD.encode(format!("{name}:{password}")).into())
}

impl Auth {
    async fn sign_in(&self, head: &Parts, bytes: &[u8]) -> Result<Response<Whole>, Denied> {
        let presented = Presented {
            kind: Kind::Basic,
            bytes,
        };
        let address = head.extensions.get().copied().unwrap_or(NOWHERE);
        let principal = self.of_password(presented, address).await?;
        self.grant(head, &principal, unix_time())
    }

    async fn renew(&self, head: &Parts) -> Result<Response<Whole>, Denied> {
        let Parts {
            method,
            uri,
            headers,
            ..
        } = head;
        let shown = presented(headers, self.cookie.as_deref());
        let shown = shown.map_err(|malformed| Denied::Unauthorized(malformed.0))?;
        let token = "this takes the token to renew";
        let shown = shown.ok_or(Denied::Unauthorized(token))?;
        if is_forgery(shown.kind, method, uri, headers) {
            return Err(Denied::Forbidden(FORGED));
        }
        let tokens = self.tokens.as_ref();
        let tokens = tokens
            .filter(|_| matches!(shown.kind, Kind::Bearer | Kind::Cookie))
            .ok_or(Denied::Unauthorized(token))?;
        let claims = tokens.verify(shown.bytes).await?;
        // Who is no user any more, or has other roles by now, finds out here.
        let principal = self.passwords.user(&claims.name);
        match (principal, claims.auth_time) {
            (Some(principal), Some(auth_time)) => self.grant(head, principal, auth_time),
            _ => Err(Denied::Token("the token was not given out here")),
        }
    }

    fn grant(
        &self,
        head: &Parts,
        principal: &Principal,
        auth_time: u64,
    ) -> Result<Response<Whole>, Denied> {
        let tokens = self.tokens.as_ref();
        let signed = tokens
            .and_then(|tokens| tokens.sign(&principal.name, &principal.roles, auth_time))
            .ok_or(Denied::Token("the session is over: sign in again"))?;
        let granted = Granted {
            token: &signed.token,
            expires_in: signed.expires_in,
        };
        // A text and a number always serialise.
        let body = simd_json::to_string(&granted).unwrap_or_default();
        let mut response = Response::new(Whole::new(body.into()));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(cookie) = self.cookie(head, &signed) {
            headers.insert(SET_COOKIE, cookie);
        }
        Ok(response)
    }

    /// The token out of reach of the page's scripts, and sent back to this site's own pages alone.
    fn cookie(&self, head: &Parts, signed: &Signed) -> Option<HeaderValue> {
        let name = self.cookie.as_ref()?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Boottime;
    use crate::config::Config;
    use crate::http::auth::passwords;
    use crate::http::auth::refusal::WRONG;
    use crate::metrics::Metrics;

    #[tokio::test]
    async fn who_was_wrong_just_now_is_not_checked_again() {
        let hash = passwords::hash(b"anna's").unwrap();
        let text = format!(
            "[auth.jwt]\nalgorithms = ['HS256']\nsecret = 'a secret that is thirty-two bytes'\n\
             [[auth.user]]\nname = 'anna'\npassword = '{hash}'"
        );
        let config = Config::from_toml(&text, &[]).unwrap();
        let metrics = Arc::new(Metrics::new().unwrap());
        let auth = Auth::start(&config.auth, &[], false, metrics);
        let auth = auth.unwrap().unwrap();
        let (head, ()) = Request::new(()).into_parts();
        let credential = STANDARD.encode("anna:anna's");
        let credential = credential.as_bytes();
        let signed = auth.sign_in(&head, credential).await;
        assert!(signed.is_ok());
        let later = Boottime(u64::MAX);
        auth.refused.put(Kind::Basic, credential, 0, later, None);
        let refused = auth.sign_in(&head, credential).await;
        assert!(matches!(refused, Err(Denied::Unauthorized(WRONG))));
    }
}
