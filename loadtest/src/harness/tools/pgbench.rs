//! pgbench: PostgreSQL's benchmark client, which runs a script and discards the results.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::harness::process::find_program;
use crate::harness::tools::{Invocation, Measured};

const INSTALL: &str = "on Debian: apt-get install postgresql-contrib";

/// pgbench's time runs while it connects (512 clients took 1.1 to 1.9 s, measured on 2 cores), and a server process
/// that has just started fills its caches first. The transactions of these seconds do not count.
fn warm_up_seconds(clients: usize) -> u64 {
    1 + clients as u64 / 64
}

/// pgbench on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Pgbench {
    program: PathBuf,
    directory: PathBuf,
    cores: Option<String>,
    threads: usize,
    url: String,
}

/// The statement that reads the document of `:key`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReadStatement {
    /// Returns the document, byte for byte as larder answers with it.
    ///
    /// The fastest of four statements: with `json_agg` or `json_build_object` it returns 5 to 15 % fewer, concatenated
    /// as text about as many (2026-11-22).
    Document,
    /// Returns the rows of the document, without assembling it.
    Rows,
}

impl ReadStatement {
    /// Name of its script.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Document => "document.sql",
            Self::Rows => "rows.sql",
        }
    }

    pub(crate) fn sql(self) -> &'static str {
        match self {
            Self::Document => {
                r#"select row_to_json(r)::text from (
  select d.deptno as "deptNumber", d.dname as "deptName", d.loc as "deptLocation",
    array_to_json(array(
      select row_to_json(c) from emp e cross join lateral (
        select e.empno as "empNo", e.ename as "empName", e.job, e.mgr,
          e.hiredate at time zone 'UTC' as hiredate, e.sal, e.comm, e.deptno as "deptNumber") c
      where e.deptno = d.deptno order by e.empno)) as emps
  from dept d where d.deptno = :key) r"#
            }
            Self::Rows => {
                "select d.deptno, d.dname, d.loc, e.empno, e.ename, e.job, e.mgr, e.hiredate, e.sal, e.comm
from dept d left join emp e on e.deptno = d.deptno where d.deptno = :key order by e.empno"
            }
        }
    }
}

/// The parameters of a run; the warm-up is added to its seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PgbenchRun<'a> {
    /// A file in its directory.
    pub(crate) script: &'a str,
    pub(crate) clients: usize,
    pub(crate) seconds: u64,
    /// A setting of its sessions, such as `TimeZone=UTC`.
    pub(crate) setting: &'a str,
    /// Variables of the script, by name.
    pub(crate) variables: &'a [(&'a str, u64)],
}

impl Pgbench {
    /// Finds it; its scripts are in `directory`. Without `cores` it keeps to none.
    pub(crate) fn new(
        directory: &Path,
        cores: Option<&str>,
        threads: usize,
        url: &str,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            program: find_program("pgbench", INSTALL)?,
            directory: directory.to_owned(),
            cores: cores.map(str::to_owned),
            threads,
            url: url.to_owned(),
        })
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Writes a script to its directory.
    pub(crate) fn write_script(&self, name: &str, text: &str) -> anyhow::Result<()> {
        Ok(std::fs::write(self.directory.join(name), text)?)
    }

    /// Writes the scripts that read documents up to `depts` to its directory.
    pub(crate) fn write_reads(&self, depts: u32) -> anyhow::Result<()> {
        for statement in [ReadStatement::Document, ReadStatement::Rows] {
            let script = format!("\\set key random(1, {depts})\n{};\n", statement.sql());
            self.write_script(statement.file(), &script)?;
        }
        Ok(())
    }

    /// The command of a run; the warm-up is added to its seconds.
    pub(crate) fn invocation(&self, run: &PgbenchRun<'_>) -> Invocation {
        let PgbenchRun {
            script,
            clients,
            setting,
            variables,
            ..
        } = run;
        let threads = self.threads.min(*clients);
        // pgbench does not always report the last second.
        let seconds = warm_up_seconds(*clients) + run.seconds + 1;
        let mut line =
            format!("-n -M prepared -c {clients} -j {threads} -T {seconds} -P 1 -f {script}");
        for (name, value) in *variables {
            line += &format!(" -D {name}={value}");
        }
        let url = format!("{}&options=-c%20{}", self.url, setting.replace('=', "%3D"));
        Invocation {
            program: self.program.clone(),
            arguments: line.split(' ').map(str::to_owned).chain([url]).collect(),
            cores: self.cores.clone(),
            directory: self.directory.clone(),
        }
    }
}

/// The word after `before` on its line.
fn figure<'a>(report: &'a str, before: &str) -> anyhow::Result<&'a str> {
    let line = report.lines().find_map(|line| line.strip_prefix(before));
    let word = line.and_then(|rest| rest.split_whitespace().next());
    word.with_context(|| format!("pgbench printed no {before:?}"))
}

/// Reads pgbench's report, and its progress each second with so many clients; what was done while it warmed up counts
/// for errors only.
pub(crate) fn parse(report: &str, progress: &str, clients: usize) -> anyhow::Result<Measured> {
    let warm_up = warm_up_seconds(clients) as f64;
    let seconds: Vec<Second> = progress.lines().filter_map(Second::read).collect();
    let warm = || seconds.iter().filter(|second| second.end > warm_up + 0.5);
    let requests: f64 = warm().map(|second| second.per_second).sum();
    ensure!(requests > 0.0, "pgbench was never warm:\n{progress}");
    let waited_ms: f64 = warm()
        .map(|second| second.mean_ms * second.per_second)
        .sum();
    Ok(Measured {
        requests: figure(report, "number of transactions actually processed:")?.parse()?,
        errors: figure(report, "number of failed transactions:")?.parse()?,
        per_second: requests / warm().count() as f64,
        mean_ms: waited_ms / requests,
        times: None,
    })
}

/// One line of pgbench's progress.
struct Second {
    /// Since pgbench began to connect.
    end: f64,
    per_second: f64,
    mean_ms: f64,
}

impl Second {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("progress: ")?.split(' ');
        let mut next = |skipped| words.nth(skipped)?.parse().ok();
        Some(Self {
            end: next(0)?,
            per_second: next(1)?,
            mean_ms: next(2)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_report_is_read() {
        let report = "\
pgbench (15.18 (Debian 15.18-0+deb12u1))
transaction type: rows.sql
scaling factor: 1
query mode: prepared
number of clients: 4
number of threads: 2
maximum number of tries: 1
duration: 4 s
number of transactions actually processed: 5541
number of failed transactions: 0 (0.000%)
latency average = 0.688 ms
latency stddev = 2.727 ms
initial connection time = 48.609 ms
tps = 1385.460666 (without initial connection time)
";
        let progress = "\
progress: 1.0 s, 541.0 tps, lat 7.391 ms stddev 3.412, 0 failed
progress: 2.0 s, 1000.0 tps, lat 4.000 ms stddev 1.441, 0 failed
progress: 3.0 s, 3000.0 tps, lat 1.000 ms stddev 1.441, 0 failed
";
        let measured = parse(report, progress, 4).unwrap();
        assert_eq!((measured.requests, measured.errors), (5541, 0));
        assert!(
            (measured.per_second - 2_000.0).abs() < 1e-9 && (measured.mean_ms - 1.75).abs() < 1e-9
        );
        assert!(parse(report, progress, 400).is_err());
        assert!(parse("pgbench: error: connection failed", progress, 4).is_err());
    }
}
