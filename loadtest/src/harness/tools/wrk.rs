//! wrk: so many seconds, random keys by `keys.lua`, which also tells the result.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;

use crate::harness::process::{self, find_program};
use crate::harness::tools::{Invocation, Latencies, Measured};

const INSTALL: &str = "on Debian: apt-get install wrk";
const SCRIPT: &str = include_str!("../../../keys.lua");
const SCRIPT_NAME: &str = "keys.lua";
const MICROS_PER_MILLI: f64 = 1e3;
const MICROS_PER_SECOND: f64 = 1e6;

/// wrk on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Wrk {
    program: PathBuf,
    /// Where its script is.
    directory: PathBuf,
    cores: String,
    threads: usize,
    depts: u32,
}

/// What one run of it varies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrkRun<'a> {
    pub(crate) target: SocketAddr,
    pub(crate) connections: usize,
    pub(crate) seconds: u64,
    /// Requests sent at once on a connection.
    pub(crate) pipeline: usize,
    pub(crate) seed: u64,
    pub(crate) request: WrkRequest<'a>,
}

/// What it requests. No text has a blank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrkRequest<'a> {
    /// The path up to the key.
    pub(crate) path: &'a str,
    /// Sent as `X-API-Key`.
    pub(crate) api_key: Option<&'a str>,
    /// A file of entity tags in wrk's directory, a line a document, to be sent as `If-None-Match`.
    pub(crate) tags: Option<&'a str>,
}

impl WrkRequest<'_> {
    /// The demo's documents.
    pub(crate) const DOCUMENTS: Self = Self {
        path: "/depts/",
        api_key: None,
        tags: None,
    };
}

impl Wrk {
    /// Finds it and puts its script into `directory`.
    pub(crate) fn new(directory: &Path, cores: &str, depts: u32) -> anyhow::Result<Self> {
        std::fs::write(directory.join(SCRIPT_NAME), SCRIPT)?;
        Ok(Self {
            program: find_program("wrk", INSTALL)?,
            directory: directory.to_owned(),
            cores: cores.to_owned(),
            threads: process::cores(cores)?.len(),
            depts,
        })
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    pub(crate) fn invocation(&self, run: &WrkRun<'_>) -> Invocation {
        let WrkRun {
            target,
            connections,
            seconds,
            pipeline,
            seed,
            request,
        } = run;
        let threads = self.threads.min(*connections);
        let line = format!(
            "-t{threads} -c{connections} -d{seconds}s --timeout 10s -s {SCRIPT_NAME} http://{target} -- {} {pipeline} {seed} \
             {} {}",
            self.depts,
            request.path,
            request.api_key.unwrap_or("-")
        );
        Invocation {
            program: self.program.clone(),
            arguments: line
                .split(' ')
                .chain(request.tags)
                .map(str::to_owned)
                .collect(),
            cores: Some(self.cores.clone()),
            directory: self.directory.clone(),
        }
    }
}

/// What `keys.lua` writes at the end; times in microseconds.
#[derive(Deserialize)]
struct WrkReport {
    requests: u64,
    duration: f64,
    connect: u64,
    read: u64,
    write: u64,
    status: u64,
    timeout: u64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

/// Reads wrk's own counts of socket errors: a timeout is counted where an answer comes late, not where none comes.
pub(crate) fn socket_errors(output: &str) -> anyhow::Result<[(&'static str, u64); 4]> {
    let done = report(output)?;
    Ok([
        ("connect", done.connect),
        ("read", done.read),
        ("write", done.write),
        ("timeout", done.timeout),
    ])
}

fn report(output: &str) -> anyhow::Result<WrkReport> {
    let line = output.lines().find(|line| line.starts_with('{'));
    Ok(serde_json::from_str(
        line.context("wrk printed no result")?,
    )?)
}

/// Reads wrk's output.
pub(crate) fn parse(output: &str) -> anyhow::Result<Measured> {
    let done = report(output)?;
    let ms = |micros: f64| micros / MICROS_PER_MILLI;
    Ok(Measured {
        requests: done.requests,
        errors: done.connect + done.read + done.write + done.status + done.timeout,
        // Counts are far below 2^52, so the cast is exact.
        per_second: done.requests as f64 * MICROS_PER_SECOND / done.duration,
        mean_ms: ms(done.mean),
        times: Some(Latencies {
            p50_ms: ms(done.p50),
            p90_ms: ms(done.p90),
            p99_ms: ms(done.p99),
            max_ms: ms(done.max),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of wrk 4.1.0.
    const PAGE: &str = r#"Running 1s test @ http://127.0.0.1:18490
  1 threads and 4 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   218.99us  600.36us   6.58ms   92.74%
    Req/Sec    52.57k    10.99k   68.78k    63.64%
  57449 requests in 1.10s, 12.27MB read
  Non-2xx or 3xx responses: 57449
Requests/sec:  52242.99
Transfer/sec:     11.16MB
{"requests":57449,"duration":1099650,"connect":0,"read":2,"write":0,"status":57449,"timeout":1,"mean":219.0,"p50":54,"p90":350,"p99":3380,"max":6577}
"#;

    #[test]
    fn the_script_tells_the_result() {
        let measured = parse(PAGE).unwrap();
        assert_eq!((measured.requests, measured.errors), (57_449, 57_452));
        assert!((measured.per_second - 52_242.99).abs() < 1.0);
        assert!((measured.mean_ms - 0.219).abs() < 1e-9);
        let times = measured.times.unwrap();
        assert!((times.p99_ms - 3.38).abs() < 1e-9 && (times.max_ms - 6.577).abs() < 1e-9);
        let errors = socket_errors(PAGE).unwrap();
        assert_eq!(errors.map(|(_, count)| count), [0, 2, 0, 1]);
        assert!(parse("unable to connect").is_err());
    }
}
