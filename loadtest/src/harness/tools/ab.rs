//! ab: a number of requests, all for one document, since it takes only one URL.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::harness::process::find_program;
use crate::harness::tools::{Invocation, Latencies, Measured};

const INSTALL: &str = "on Debian: apt-get install apache2-utils";
/// Its file of times, in microseconds; its report has whole milliseconds.
const TIMES_FILE: &str = "times.csv";

/// ab on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Ab {
    program: PathBuf,
    directory: PathBuf,
    cores: String,
}

impl Ab {
    pub(crate) fn new(directory: &Path, cores: &str) -> anyhow::Result<Self> {
        Ok(Self {
            program: find_program("ab", INSTALL)?,
            directory: directory.to_owned(),
            cores: cores.to_owned(),
        })
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    pub(crate) fn invocation(
        &self,
        target: SocketAddr,
        key: u32,
        connections: usize,
        requests: u64,
    ) -> Invocation {
        let requests = requests.max(connections as u64);
        // -r: count failures and go on.
        let line = format!(
            "-q -k -r -n {requests} -c {connections} -e {TIMES_FILE} http://{target}/depts/{key}"
        );
        Invocation {
            program: self.program.clone(),
            arguments: line.split(' ').map(str::to_owned).collect(),
            cores: Some(self.cores.clone()),
            directory: self.directory.clone(),
        }
    }

    /// The times of its last run.
    pub(crate) fn times(&self) -> anyhow::Result<String> {
        std::fs::read_to_string(self.directory.join(TIMES_FILE)).context("ab left no times")
    }
}

/// Parses ab's report and its file of times.
pub(crate) fn parse(output: &str, times: &str) -> anyhow::Result<Measured> {
    // ab leaves out lines whose count is 0.
    let count = |name: &str| figure(output, name).map_or(Ok(0), str::parse::<u64>);
    let printed =
        |name: &str| figure(output, name).with_context(|| format!("ab printed no {name:?}"));
    let ms = |percentage: &str| -> anyhow::Result<f64> {
        let line = times.lines().find_map(|line| line.strip_prefix(percentage));
        Ok(line
            .with_context(|| format!("ab printed no {percentage:?}"))?
            .parse()?)
    };
    Ok(Measured {
        requests: printed("Complete requests:")?.parse()?,
        errors: count("Failed requests:")? + count("Non-2xx responses:")? + count("Write errors:")?,
        per_second: printed("Requests per second:")?.parse()?,
        mean_ms: printed("Time per request:")?.parse()?,
        times: Some(Latencies {
            p50_ms: ms("50,")?,
            p90_ms: ms("90,")?,
            p99_ms: ms("99,")?,
            max_ms: ms("100,")?,
        }),
    })
}

/// The first word behind `name`.
fn figure<'a>(output: &'a str, name: &str) -> Option<&'a str> {
    let line = output.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of ab 2.3.
    const PAGE: &str = "\
Concurrency Level:      16
Time taken for tests:   0.091 seconds
Complete requests:      5000
Failed requests:        0
Keep-Alive requests:    5000
Total transferred:      9040015 bytes
HTML transferred:       7825000 bytes
Requests per second:    55082.46 [#/sec] (mean)
Time per request:       0.290 [ms] (mean)
Time per request:       0.018 [ms] (mean, across all concurrent requests)
Transfer rate:          97255.13 [Kbytes/sec] received
";
    const TIMES: &str = "Percentage served,Time in ms\n0,0.014\n5,0.017\n9,0.017\n50,0.179\n90,0.500\n98,1.036\n99,1.638\n100,15.009\n";

    #[test]
    fn its_page_and_its_times_are_read() {
        let measured = parse(PAGE, TIMES).unwrap();
        assert_eq!(
            measured,
            Measured {
                requests: 5000,
                errors: 0,
                per_second: 55_082.46,
                mean_ms: 0.29,
                times: Some(Latencies {
                    p50_ms: 0.179,
                    p90_ms: 0.5,
                    p99_ms: 1.638,
                    max_ms: 15.009
                }),
            }
        );
        assert!(parse("ab: Could not resolve host", TIMES).is_err());
    }

    #[test]
    fn all_that_failed_is_counted() {
        let page = PAGE.replace(
            "Failed requests:        0",
            "Failed requests:        3\n   (Connect: 0, Receive: 0, Length: 3, Exceptions: 0)\nNon-2xx responses:      200",
        );
        assert_eq!(parse(&page, TIMES).unwrap().errors, 203);
    }
}
