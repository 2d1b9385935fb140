//! `larder prune`: deletes the rows of the change log that no larder needs, and prints which larders need the rest.

use std::io::stdout;

use anyhow::bail;

use crate::cli::PruneArgs;
use crate::commands::install::with_database;
use crate::commands::output::print;
use crate::config::Config;
use crate::feed::{self, Pruned};

/// Prunes the log of the configured database, after forgetting a larder if `args` name one.
///
/// # Errors
/// What PostgreSQL said; a larder to forget that is not there.
pub async fn run(config: &Config, args: &PruneArgs) -> anyhow::Result<()> {
    with_database(config, async |database| {
        if let Some(node) = args.forget
            && !feed::forget(&database, node).await?
        {
            bail!("no larder named {node} follows this database");
        }
        let pruned = feed::prune(&database, config.feed.retention).await?;
        print(&mut stdout(), &report(&pruned))?;
        Ok(())
    })
    .await
}

fn report(pruned: &Pruned) -> String {
    let mut text = format!(
        "{} rows deleted, {} left in larder.change\n",
        pruned.deleted, pruned.left
    );
    for node in &pruned.nodes {
        text.push_str(&format!(
            "larder {} was seen {} s ago and needs the log from transaction {} on\n",
            node.name,
            node.seen_ago.as_secs(),
            node.needs_from
        ));
    }
    text
}
