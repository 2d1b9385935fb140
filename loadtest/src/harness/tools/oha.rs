//! oha: a number of requests, each for a random URL of a file.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::harness::process::find_program;
use crate::harness::tools::{Invocation, Latencies, Measured};

const INSTALL: &str = "cargo install oha --locked";
const URLS_FILE: &str = "urls.txt";
const MILLIS_PER_SECOND: f64 = 1e3;

/// oha on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Oha {
    program: PathBuf,
    directory: PathBuf,
    cores: String,
}

impl Oha {
    pub(crate) fn new(directory: &Path, cores: &str) -> anyhow::Result<Self> {
        Ok(Self {
            program: find_program("oha", INSTALL)?,
            directory: directory.to_owned(),
            cores: cores.to_owned(),
        })
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Writes the URLs of all documents; returns the command that does so.
    ///
    /// `--rand-regex-url` does not suit numbers: a regular expression that generates each number equally often is as
    /// long as the list.
    pub(crate) fn prepare(&self, target: SocketAddr, depts: u32) -> anyhow::Result<String> {
        let mut urls = String::new();
        for key in 1..=depts {
            writeln!(urls, "http://{target}/depts/{key}")?;
        }
        std::fs::write(self.directory.join(URLS_FILE), urls)?;
        Ok(format!(
            "seq 1 {depts} | sed 's|^|http://{target}/depts/|' > {URLS_FILE}"
        ))
    }

    pub(crate) fn invocation(&self, connections: usize, requests: u64) -> Invocation {
        let requests = requests.max(connections as u64);
        let line = format!(
            "--no-tui --output-format json -n {requests} -c {connections} --urls-from-file {URLS_FILE}"
        );
        Invocation {
            program: self.program.clone(),
            arguments: line.split(' ').map(str::to_owned).collect(),
            cores: Some(self.cores.clone()),
            directory: self.directory.clone(),
        }
    }
}

/// The fields of its JSON that are needed; times in seconds, null if there was no answer.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OhaReport {
    summary: Summary,
    latency_percentiles: Percentiles,
    status_code_distribution: BTreeMap<u16, u64>,
    error_distribution: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    slowest: Option<f64>,
    average: Option<f64>,
    requests_per_sec: f64,
}

#[derive(Deserialize)]
struct Percentiles {
    p50: Option<f64>,
    p90: Option<f64>,
    p99: Option<f64>,
}

/// Parses oha's output.
pub(crate) fn parse(output: &str) -> anyhow::Result<Measured> {
    let report: OhaReport = serde_json::from_str(output)?;
    let ms = |seconds: Option<f64>| seconds.map(|seconds| seconds * MILLIS_PER_SECOND);
    let requests = report.status_code_distribution.values().sum();
    let good = report
        .status_code_distribution
        .get(&200)
        .copied()
        .unwrap_or_default();
    let failed: u64 = report.error_distribution.values().sum();
    let (summary, percentiles) = (&report.summary, &report.latency_percentiles);
    let times = || {
        Some(Latencies {
            p50_ms: ms(percentiles.p50)?,
            p90_ms: ms(percentiles.p90)?,
            p99_ms: ms(percentiles.p99)?,
            max_ms: ms(summary.slowest)?,
        })
    };
    Ok(Measured {
        requests,
        errors: requests - good + failed,
        per_second: summary.requests_per_sec,
        mean_ms: ms(summary.average).unwrap_or_default(),
        times: times(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of oha 1.16, without its histograms and details.
    const GOOD: &str = r#"{
        "summary": {"successRate": 1.0, "total": 0.52581006, "slowest": 0.05476133, "fastest": 2.0181e-05,
            "average": 0.0016576647616000013, "requestsPerSec": 9509.13719680449, "totalData": 8055968,
            "sizePerRequest": 1611, "sizePerSec": 15321060.993013334},
        "latencyPercentiles": {"p10": 2.7381e-05, "p25": 5.3071e-05, "p50": 0.00014032, "p75": 0.001652783,
            "p90": 0.004231845, "p95": 0.007876698, "p99": 0.022285246, "p99.9": 0.041022385, "p99.99": 0.05476133},
        "statusCodeDistribution": {"200": 5000},
        "errorDistribution": {}}"#;

    const REFUSED: &str = r#"{
        "summary": {"successRate": 0.0, "total": 0.003982874, "slowest": null, "fastest": null, "average": null,
            "requestsPerSec": 50214.995503247155, "totalData": 0, "sizePerRequest": null, "sizePerSec": 0.0},
        "latencyPercentiles": {"p10": null, "p25": null, "p50": null, "p75": null, "p90": null, "p95": null,
            "p99": null, "p99.9": null, "p99.99": null},
        "statusCodeDistribution": {},
        "errorDistribution": {"Connection refused (os error 111)": 200}}"#;

    #[test]
    fn its_json_is_read() {
        let measured = parse(GOOD).unwrap();
        assert_eq!((measured.requests, measured.errors), (5000, 0));
        assert!((measured.per_second - 9509.1).abs() < 0.1);
        assert!((measured.mean_ms - 1.658).abs() < 0.001);
        let times = measured.times.unwrap();
        assert!((times.p50_ms - 0.140).abs() < 0.001 && (times.p90_ms - 4.232).abs() < 0.001);
        assert!((times.p99_ms - 22.285).abs() < 0.001 && (times.max_ms - 54.761).abs() < 0.001);
    }

    #[test]
    fn all_but_200_is_an_error() {
        let refused = parse(REFUSED).unwrap();
        assert_eq!(
            (refused.requests, refused.errors, refused.times),
            (0, 200, None)
        );
        let missing = GOOD.replace(r#"{"200": 5000}"#, r#"{"200": 4990, "404": 7, "503": 3}"#);
        assert_eq!(parse(&missing).unwrap().errors, 10);
        assert!(parse("oha: no").is_err());
    }
}
