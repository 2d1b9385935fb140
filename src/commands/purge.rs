//! `larder purge`: removes documents from the tiers of a running larder, through its admin address.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use anyhow::{Context, bail};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{AUTHORIZATION, HeaderValue};

use crate::cli::PurgeArgs;
use crate::config::{Config, ConfigError};
use crate::http::admin::token::configured;

/// The longest wait for the response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Sent as they are: a comma is between the parts of a key, and `%2C` is one within a part.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b',')
    .remove(b'%');

/// Sends a purge of one document, or of all of a resource, to the configured admin address with the configured token.
///
/// # Errors
/// [`ConfigError`] for a token that can't be read; no response, or one that refuses.
pub async fn run(config: &Config, args: &PurgeArgs) -> anyhow::Result<()> {
    let mut admin = config.admin;
    if admin.ip().is_unspecified() {
        admin.set_ip(if admin.is_ipv4() {
            Ipv4Addr::LOCALHOST.into()
        } else {
            Ipv6Addr::LOCALHOST.into()
        });
    }
    let encoded = |text| utf8_percent_encode(text, ENCODED);
    let mut url = format!("http://{admin}/purge/{}", encoded(&args.resource));
    if let Some(key) = &args.key {
        url = format!("{url}/{}", encoded(key));
    }
    let token = configured(&config.auth).map_err(ConfigError::from)?;
    // reqwest needs a provider of cryptography even without TLS.
    drop(rustls::crypto::ring::default_provider().install_default());
    let client = reqwest::Client::builder()
        .timeout(RESPONSE_TIMEOUT)
        .no_proxy()
        .build()?;
    let mut request = client.post(url);
    if let Some(token) = token {
        let bearer = HeaderValue::from_bytes(&[b"Bearer ".as_slice(), &token].concat());
        request = request.header(
            AUTHORIZATION,
            bearer.context("the admin token can't be sent in a header")?,
        );
    }
    let answer = request.send().await;
    let answer = answer.with_context(|| format!("no response from the admin address {admin}"))?;
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let problem = answer.text().await.unwrap_or_default();
    let problem: serde_json::Value = serde_json::from_str(&problem).unwrap_or_default();
    match problem["detail"].as_str() {
        Some(detail) => bail!("{admin} answers {}: {detail}", status.as_u16()),
        None => bail!("{admin} answers {}", status.as_u16()),
    }
}
