//! h2load: concurrent requests for the URLs in a file, over HTTP/1.1 or HTTP/2.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::harness::process::find_program;
use crate::harness::tools::{Invocation, Measured};

const INSTALL: &str = "on Debian: apt-get install nghttp2-client";

/// h2load on this machine.
#[derive(Clone, Debug)]
pub(crate) struct H2load {
    program: PathBuf,
    directory: PathBuf,
    cores: String,
}

impl H2load {
    /// Finds it; its files of URLs are in `directory`.
    pub(crate) fn new(directory: &Path, cores: &str) -> anyhow::Result<Self> {
        Ok(Self {
            program: find_program("h2load", INSTALL)?,
            directory: directory.to_owned(),
            cores: cores.to_owned(),
        })
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Requests the URLs of `file` in their order, again and again, for `seconds`.
    pub(crate) fn invocation(&self, file: &str, seconds: u64, arguments: &str) -> Invocation {
        let line = format!("-t1 -D {seconds} -i {file} {arguments}");
        Invocation {
            program: self.program.clone(),
            arguments: line.split(' ').map(str::to_owned).collect(),
            cores: Some(self.cores.clone()),
            directory: self.directory.clone(),
        }
    }
}

/// Parses h2load's report.
pub(crate) fn parse(report: &str) -> anyhow::Result<Measured> {
    let line = |name: &str| {
        let line = report.lines().find_map(|line| line.strip_prefix(name));
        line.with_context(|| format!("h2load printed no {name:?}"))
    };
    // finished in 1.00s, 66208.00 req/s, 13.31MB/s
    let words = line("finished in ")?.split(", ").nth(1);
    let per_second = words.and_then(|rate| rate.strip_suffix(" req/s"));
    // requests: 66208 total, 66336 started, 66208 done, 66208 succeeded, 0 failed, 0 errored, 0 timeout
    let counts = line("requests: ")?;
    let count = |name: &str| -> anyhow::Result<u64> {
        let mut words = counts.split(", ").map(|words| words.split(' '));
        let found = words.find_map(|mut words| {
            let count = words.next()?;
            (words.next()? == name).then_some(count)
        });
        let count = found.with_context(|| format!("h2load counted no {name}"))?;
        Ok(count.parse()?)
    };
    // time for request: min, max, mean, standard deviation, share within one of these
    let mean = line("time for request:")?.split_whitespace().nth(2);
    Ok(Measured {
        requests: count("done")?,
        errors: count("failed")? + count("errored")? + count("timeout")?,
        per_second: per_second.context("no requests per second")?.parse()?,
        mean_ms: millis(mean.context("no mean time")?)?,
        times: None,
    })
}

/// A time such as `1.94ms`.
fn millis(time: &str) -> anyhow::Result<f64> {
    for (unit, millis) in [("us", 1e-3), ("ms", 1.0), ("s", 1e3)] {
        if let Some(number) = time.strip_suffix(unit) {
            return Ok(number.parse::<f64>()? * millis);
        }
    }
    bail!("{time:?} is no time")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of h2load 1.52.0.
    const REPORT: &str = "
finished in 1.00s, 92.00 req/s, 10.59KB/s
requests: 92 total, 96 started, 92 done, 91 succeeded, 1 failed, 0 errored, 2 timeout
status codes: 96 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 10.59KB (10840) total, 7.50KB (7680) headers (space savings 0.00%), 184B (184) data
                     min         max         mean         sd        +/- sd
time for request:     4.48ms     48.03ms     42.68ms      7.08ms    95.65%
time for connect:       11us        66us        48us        25us    75.00%
";

    #[test]
    fn its_report_is_read() {
        let measured = parse(REPORT).unwrap();
        assert_eq!((measured.requests, measured.errors), (92, 3));
        assert!((measured.per_second - 92.0).abs() < 1e-9);
        assert!((measured.mean_ms - 42.68).abs() < 1e-9);
        assert!((millis("11us").unwrap() - 0.011).abs() < 1e-9);
        assert!(millis("11").is_err() && parse("unable to connect").is_err());
    }
}
