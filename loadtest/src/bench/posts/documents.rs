//! The documents that are written, as JSON, as SQL and as CSV. Larder's have even keys, the others odd ones.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use testkit::http::Request;

use crate::bench::posts::CLIENT_KEYS;

/// Of a document, each with a row.
const EMPS: u64 = 10;
const NAME: &str = "ACCOUNTING";
const LOCATION: &str = "NEW YORK";
const HIRED: &str = "2026-01-02T03:04:05";

/// A document of a dept and its emps.
pub(super) fn document(key: u64) -> String {
    let emps: Vec<String> = (0..EMPS)
        .map(|emp| {
            format!(
                r#"{{"empNo":{},"empName":"EMPLOYEE {emp}","job":"CLERK","mgr":{key},"hiredate":"{HIRED}","sal":{},"comm":null,"deptNumber":{key}}}"#,
                key * EMPS + emp,
                salary(emp)
            )
        })
        .collect();
    format!(
        r#"{{"deptNumber":{key},"deptName":"{NAME}","deptLocation":"{LOCATION}","emps":[{}]}}"#,
        emps.join(",")
    )
}

fn salary(emp: u64) -> u64 {
    1_000 + emp
}

/// pgbench's script: a document in each transaction, with keys from `:first` on for the first client.
pub(super) fn inserts() -> String {
    let mut text = format!(
        "\\set n :n + 1\n\\set k :first + :client_id * {CLIENT_KEYS} + 2 * :n + 1\nbegin;\n\
         insert into dept (deptno, dname, loc) values (:k, '{NAME}', '{LOCATION}');\n\
         insert into emp (empno, ename, job, mgr, hiredate, sal, comm, deptno) values\n"
    );
    for emp in 0..EMPS {
        let end = if emp + 1 == EMPS { ';' } else { ',' };
        // Writing to a string can't fail.
        writeln!(
            text,
            "  (:k::bigint * {EMPS} + {emp}, 'EMPLOYEE {emp}', 'CLERK', :k, '{HIRED}', {}, null, :k){end}",
            salary(emp)
        )
        .unwrap_or_default();
    }
    text + "commit;\n"
}

/// A request that writes so many documents as one stream.
pub(super) fn bulk_request(first: u64, count: u64) -> Request {
    let mut body = String::new();
    for key in (first..)
        .step_by(2)
        .take(usize::try_from(count).unwrap_or(usize::MAX))
    {
        body += &document(key);
        body.push('\n');
    }
    Request::new("POST", "/depts").with_body("application/x-ndjson", body)
}

/// The same rows for `COPY`.
pub(super) struct CopyFiles {
    pub(super) dept: PathBuf,
    pub(super) emp: PathBuf,
}

impl CopyFiles {
    pub(super) fn write(directory: &Path, first: u64, count: u64) -> anyhow::Result<Self> {
        let files = Self {
            dept: directory.join("dept.csv"),
            emp: directory.join("emp.csv"),
        };
        let (mut depts, mut emps) = (String::new(), String::new());
        for key in (first + 1..)
            .step_by(2)
            .take(usize::try_from(count).unwrap_or(usize::MAX))
        {
            writeln!(depts, "{key},{NAME},{LOCATION}")?;
            for emp in 0..EMPS {
                writeln!(
                    emps,
                    "{},EMPLOYEE {emp},CLERK,{key},{HIRED},{},,{key}",
                    key * EMPS + emp,
                    salary(emp)
                )?;
            }
        }
        std::fs::write(&files.dept, depts)?;
        std::fs::write(&files.emp, emps)?;
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_the_same_rows() {
        let document = document(2);
        assert_eq!(document.matches("empNo").count(), 10);
        assert!(document.contains(r#""empNo":29,"empName":"EMPLOYEE 9""#));
        assert_eq!(inserts().matches("EMPLOYEE").count(), 10);
        let body = bulk_request(2, 3).body;
        assert!(body.ends_with(format!("{}\n", super::document(6)).as_bytes()));
        let directory = tempfile::tempdir().unwrap();
        let files = CopyFiles::write(directory.path(), 2, 3).unwrap();
        let depts = std::fs::read_to_string(files.dept).unwrap();
        assert_eq!(depts.lines().last(), Some("7,ACCOUNTING,NEW YORK"));
        let emps = std::fs::read_to_string(files.emp).unwrap();
        assert_eq!(emps.lines().count(), 30);
        assert!(emps.ends_with("79,EMPLOYEE 9,CLERK,7,2026-01-02T03:04:05,1009,,7\n"));
    }
}
