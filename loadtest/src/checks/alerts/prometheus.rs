//! A Prometheus, and promtool.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::checks::alerts::rules::{RULES, TESTS, hastened};
use crate::harness::process::find_program;
use crate::harness::{await_listening, http};

const INSTALL: &str = "apt-get install prometheus";

/// A running Prometheus that scrapes one larder; it ends when dropped.
pub(super) struct Prometheus {
    address: SocketAddr,
    _child: Child,
}

/// An alert as a rule defines it.
#[derive(Deserialize)]
pub(super) struct AlertingRule {
    pub(super) name: String,
    pub(super) annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Response<D> {
    data: D,
}

#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<AlertingRule>,
}

#[derive(Deserialize)]
struct Alerts {
    alerts: Vec<Alert>,
}

#[derive(Deserialize)]
struct Alert {
    labels: BTreeMap<String, String>,
    state: String,
}

#[derive(Deserialize)]
struct QueryResult {
    result: Vec<Series>,
}

/// Time and value of a series.
#[derive(Deserialize)]
struct Series {
    value: (f64, String),
}

impl Prometheus {
    /// Starts it at `address`, in `directory`. It scrapes the admin address `target` every second.
    pub(super) async fn start(
        directory: &Path,
        address: SocketAddr,
        target: SocketAddr,
    ) -> anyhow::Result<Self> {
        let program = find_program("prometheus", INSTALL)?;
        let file = directory.join("prometheus.yml");
        std::fs::write(directory.join("hastened.yml"), hastened(RULES)?)?;
        std::fs::write(
            &file,
            format!(
                "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
                 rule_files: [hastened.yml]\n\
                 scrape_configs:\n  - job_name: larder\n    static_configs: [{{ targets: ['{target}'] }}]\n"
            ),
        )?;
        let log = std::fs::File::create(directory.join("prometheus.log"))?;
        let mut command = Command::new(&program);
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.join("prometheus").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // Ctrl-C in a terminal ends this program, which then ends Prometheus.
            .process_group(0)
            .kill_on_drop(true);
        let child = command
            .spawn()
            .with_context(|| format!("{} can't be run", program.display()))?;
        await_listening(address).await.context("Prometheus")?;
        Ok(Self {
            address,
            _child: child,
        })
    }

    /// The values of all series that `query` returns now, `NaN` left out.
    pub(super) async fn query(&self, query: &str) -> anyhow::Result<Vec<f64>> {
        let mut path = String::from("/api/v1/query?query=");
        for byte in query.bytes() {
            write!(path, "%{byte:02X}")?;
        }
        let response: Response<QueryResult> = self.get(&path).await?;
        let values = response
            .data
            .result
            .into_iter()
            .map(|series| series.value.1);
        let values = values.map(|value| value.parse::<f64>());
        let values: Vec<f64> = values.collect::<Result<_, _>>()?;
        Ok(values.into_iter().filter(|value| !value.is_nan()).collect())
    }

    /// The names of alerts whose condition holds, and of those the ones that fire.
    pub(super) async fn alerts(&self) -> anyhow::Result<(BTreeSet<String>, BTreeSet<String>)> {
        let response: Response<Alerts> = self.get("/api/v1/alerts").await?;
        let (mut active, mut firing) = (BTreeSet::new(), BTreeSet::new());
        for alert in response.data.alerts {
            let name = alert.labels.get("alertname").context("no alertname")?;
            active.insert(name.clone());
            if alert.state == "firing" {
                firing.insert(name.clone());
            }
        }
        Ok((active, firing))
    }

    pub(super) async fn alerting_rules(&self) -> anyhow::Result<Vec<AlertingRule>> {
        let response: Response<Rules> = self.get("/api/v1/rules?type=alert").await?;
        let groups = response.data.groups.into_iter();
        Ok(groups.flat_map(|group| group.rules).collect())
    }

    async fn get<D: DeserializeOwned>(&self, path: &str) -> anyhow::Result<D> {
        let (status, text) = http::get(self.address, path).await.context("Prometheus")?;
        ensure!(status == 200, "Prometheus: {status} {text}");
        serde_json::from_str(&text).with_context(|| format!("Prometheus: {text}"))
    }
}

/// Checks rules and metrics.
pub(super) struct Promtool(PathBuf);

impl Promtool {
    pub(super) fn find() -> anyhow::Result<Self> {
        Ok(Self(find_program("promtool", INSTALL)?))
    }

    /// Checks the rules and runs their tests, in `directory`.
    pub(super) async fn check_rules(&self, directory: &Path) -> anyhow::Result<()> {
        std::fs::write(directory.join("rules.yml"), RULES)?;
        std::fs::write(directory.join("rules.test.yml"), TESTS)?;
        self.run(directory, &["check", "rules", "rules.yml"], "")
            .await?;
        self.run(directory, &["test", "rules", "rules.test.yml"], "")
            .await
    }

    /// Checks what larder serves at `/metrics`.
    pub(super) async fn check_metrics(&self, metrics: &str) -> anyhow::Result<()> {
        self.run(Path::new("/"), &["check", "metrics"], metrics)
            .await
    }

    async fn run(&self, directory: &Path, args: &[&str], input: &str) -> anyhow::Result<()> {
        let mut command = Command::new(&self.0);
        command
            .args(args)
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().context("promtool can't be run")?;
        let mut stdin = child.stdin.take().context("stdin")?;
        stdin.write_all(input.as_bytes()).await?;
        drop(stdin);
        let output = child.wait_with_output().await?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        ensure!(
            output.status.success(),
            "promtool {}:\n{said}",
            args.join(" ")
        );
        Ok(())
    }
}
