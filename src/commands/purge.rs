//! `larder purge`: removes documents from the tiers of a running larder, through its admin address.

use hyper::Method;

use crate::cli::PurgeArgs;
use crate::commands::admin::{AdminClient, document_path};
use crate::config::Config;

/// Sends a purge of one document, or of all of a resource.
///
/// # Errors
/// [`ConfigError`](crate::config::ConfigError) for a token that can't be read; no response, or one that refuses.
pub async fn run(config: &Config, args: &PurgeArgs) -> anyhow::Result<()> {
    let path = document_path("purge", &args.resource, args.key.as_deref());
    let client = AdminClient::new(config)?;
    client.request(Method::POST, &path).await?;
    Ok(())
}
