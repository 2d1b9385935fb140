//! `loadtest alerts`: does each alert of `contrib/prometheus` fire for its cause, and none before? Has each panel of
//! `contrib/grafana` data?
//!
//! A real Prometheus scrapes a larder with a few visitors once a second. Its rules are those of the repository, with seconds
//! for minutes. One cause after the other is provoked: something is done to the network, to PostgreSQL or to the data.
//! While it lasts, only its alert may fire, and those that are told beside it; all end before the next one.

mod causes;
mod prometheus;
mod rules;
mod site;
mod visitors;

use std::path::PathBuf;

use anyhow::ensure;
use tokio::time::Instant;

use crate::checks::alerts::causes::Cause;
use crate::checks::alerts::prometheus::Promtool;
use crate::checks::alerts::rules::panels;
use crate::checks::alerts::site::Site;
use crate::harness::progress;

/// What each alert has to say.
const ANNOTATIONS: [&str; 3] = ["summary", "description", "remedy"];

/// Whether all alerts fired for their causes alone.
pub(crate) async fn run(binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    println!("seed {seed}");
    let began = Instant::now();
    let mut site = Site::start(binary, seed).await?;
    let promtool = Promtool::find()?;
    promtool.check_rules(site.directory()).await?;
    println!("promtool: the rules are valid, and their tests pass");
    promtool.check_metrics(&site.metrics().await?).await?;
    println!("promtool: /metrics is valid");
    check_alerts(&site).await?;
    check_panels(&site).await?;
    for (done, cause) in Cause::ALL.into_iter().enumerate() {
        progress::note(done, Cause::ALL.len(), "alerts");
        site.await_quiet().await?;
        let provoked = Instant::now();
        let held = cause.begin(&mut site).await?;
        let beside = site.await_alert(cause.alert(), cause.beside()).await?;
        cause.end(&mut site, held).await?;
        println!(
            "{}: fired {:.1} s after {}{}",
            cause.alert(),
            provoked.elapsed().as_secs_f64(),
            cause.what(),
            beside
                .iter()
                .map(|name| format!(", beside {name}"))
                .collect::<String>(),
        );
    }
    site.await_quiet().await?;
    site.stop().await?;
    println!("{:.0} s", began.elapsed().as_secs_f64());
    Ok(true)
}

/// Each alert has a cause here, and says what it is and what to do.
async fn check_alerts(site: &Site) -> anyhow::Result<()> {
    let alerts = site.prometheus.alerting_rules().await?;
    for alert in &alerts {
        let name = &alert.name;
        ensure!(
            Cause::ALL.iter().any(|cause| cause.alert() == name),
            "{name} has no cause here"
        );
        for annotation in ANNOTATIONS {
            let text = alert.annotations.get(annotation);
            ensure!(
                text.is_some_and(|text| !text.is_empty()),
                "{name} has no {annotation}"
            );
        }
    }
    ensure!(alerts.len() == Cause::ALL.len(), "{} rules", alerts.len());
    Ok(())
}

/// Each query of the dashboard returns a number.
async fn check_panels(site: &Site) -> anyhow::Result<()> {
    let panels = panels()?;
    for panel in &panels {
        site.await_data(panel).await?;
    }
    println!("all {} queries of the dashboard return data", panels.len());
    Ok(())
}
