//! pgbench: PostgreSQL's own client, asking for one document a statement and doing nothing with it.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::process::find_program;
use crate::tools::{Invocation, Measured};

const INSTALL: &str = "on Debian: apt-get install postgresql-contrib";

/// pgbench on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Pgbench {
    program: PathBuf,
    directory: PathBuf,
    cores: String,
    threads: usize,
    url: String,
}

/// How it asks for `:key`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Statement {
    /// PostgreSQL makes the document, byte by byte as larder answers with it.
    ///
    /// The fastest of four ways: with `json_agg` or `json_build_object` it makes 5 to 15 % fewer, put together as text
    /// about as many (2026-11-22).
    Document,
    /// PostgreSQL gives the rows that a document is made of, and nobody makes it.
    Rows,
}

impl Statement {
    /// Name of its script.
    fn file(self) -> &'static str {
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

impl Pgbench {
    /// Finds it and puts its scripts into `directory`.
    pub(crate) fn new(
        directory: &Path,
        cores: &str,
        threads: usize,
        url: &str,
        depts: u32,
    ) -> anyhow::Result<Self> {
        for statement in [Statement::Document, Statement::Rows] {
            let script = format!("\\set key random(1, {depts})\n{};\n", statement.sql());
            std::fs::write(directory.join(statement.file()), script)?;
        }
        Ok(Self {
            program: find_program("pgbench", INSTALL)?,
            directory: directory.to_owned(),
            cores: cores.to_owned(),
            threads,
            url: url.to_owned(),
        })
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    pub(crate) fn invocation(
        &self,
        statement: Statement,
        clients: usize,
        seconds: u64,
    ) -> Invocation {
        let threads = self.threads.min(clients);
        let line = format!(
            "-n -M prepared -c {clients} -j {threads} -T {seconds} -f {} {}&options=-c%20TimeZone%3DUTC",
            statement.file(),
            self.url
        );
        Invocation {
            program: self.program.clone(),
            arguments: line.split(' ').map(str::to_owned).collect(),
            cores: Some(self.cores.clone()),
            directory: self.directory.clone(),
        }
    }
}

/// Reads pgbench's output.
pub(crate) fn parse(output: &str) -> anyhow::Result<Measured> {
    let figure = |before: &str| {
        let line = output.lines().find_map(|line| line.strip_prefix(before));
        let word = line.and_then(|rest| rest.split_whitespace().next());
        word.with_context(|| format!("pgbench told no {before:?}"))
    };
    Ok(Measured {
        requests: figure("number of transactions actually processed:")?.parse()?,
        errors: figure("number of failed transactions:")?.parse()?,
        per_second: figure("tps =")?.parse()?,
        mean_ms: figure("latency average =")?.parse()?,
        times: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_report_is_read() {
        let page = "\
pgbench (15.18 (Debian 15.18-0+deb12u1))
transaction type: rows.sql
scaling factor: 1
query mode: prepared
number of clients: 4
number of threads: 2
maximum number of tries: 1
duration: 1 s
number of transactions actually processed: 5541
number of failed transactions: 0 (0.000%)
latency average = 0.688 ms
initial connection time = 48.609 ms
tps = 5815.460666 (without initial connection time)
";
        let measured = parse(page).unwrap();
        assert_eq!((measured.requests, measured.errors), (5541, 0));
        assert!(
            (measured.per_second - 5815.46).abs() < 0.01 && (measured.mean_ms - 0.688).abs() < 1e-9
        );
        assert!(parse("pgbench: error: connection failed").is_err());
    }
}
