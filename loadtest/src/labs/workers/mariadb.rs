//! MariaDB as a SQL server, over TCP as the others.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use async_trait::async_trait;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row, Value};
use nix::unistd::{User, geteuid};
use serde_json::Value as Json;

use crate::harness::process::find_program;
use crate::labs::workers::sql::SqlConnection;
use crate::labs::workers::store::Plan;
use crate::labs::workers::subscriber::{Buffer, Columns, Subscriber};

const DATABASE: &str = "create database if not exists workers character set utf8mb4";

/// Makes the files of a server in the directory `at`; returns the arguments of mariadbd.
pub(super) fn line(at: &str, address: SocketAddr) -> Result<String> {
    // It refuses to run as root unless it is told to.
    let user = User::from_uid(geteuid())?.context("no user")?.name;
    let files = format!("--no-defaults --datadir={at}/data --user={user}");
    let package = "on Debian: apt-get install mariadb-server-core mariadb-client-core";
    let mut install = Command::new(find_program("mariadb-install-db", package)?);
    install.args(files.split(' '));
    install.arg("--auth-root-authentication-method=normal");
    let output = install.output().context("mariadb-install-db")?;
    ensure!(output.status.success(), "mariadb-install-db: {output:?}");
    let (ip, port) = (address.ip(), address.port());
    Ok(format!(
        "{files} --socket={at}/socket --pid-file={at}/pid --bind-address={ip} --port={port} \
         --skip-grant-tables --skip-name-resolve --max-connections=300 \
         --innodb-buffer-pool-size=4G --innodb-log-file-size=1G --max-allowed-packet=64M"
    ))
}

/// A connection.
pub(super) struct Mariadb(Conn);

impl Mariadb {
    /// Connects to the server at `address`, `HOST:PORT`, as root without a password.
    pub(super) async fn open(address: &str) -> Result<Self> {
        let url = format!("mysql://root@{address}/?prefer_socket=false");
        let mut connection = Conn::from_url(url).await?;
        connection.query_drop(DATABASE).await?;
        connection.query_drop("use workers").await?;
        Ok(Self(connection))
    }
}

#[async_trait]
impl SqlConnection for Mariadb {
    async fn run(&mut self, statement: &str) -> Result<usize> {
        self.0.query_drop(statement).await?;
        Ok(self.0.affected_rows().try_into()?)
    }

    async fn insert(&mut self, table: &str, rows: &[Subscriber]) -> Result<()> {
        let rows: Vec<String> = rows.iter().map(|row| row.values(",", "'")).collect();
        let (columns, rows) = (Columns::Full.list(), rows.join("),("));
        let statement = format!("insert into {table} ({columns}) values ({rows})");
        Ok(self.0.query_drop(statement).await?)
    }

    async fn select(&mut self, sql: &str, of: Columns, found: &mut Buffer) -> Result<()> {
        let mut rows = self.0.exec_iter(sql, ()).await?;
        while let Some(row) = rows.next().await? {
            let number = |place: usize| match row.as_ref(place) {
                Some(Value::Int(number)) => Ok(u32::try_from(*number)?),
                Some(Value::UInt(number)) => Ok(u32::try_from(*number)?),
                other => bail!("column {place} is {other:?}, no number"),
            };
            let text = |place| text(&row, place);
            found.add().read(of, number, text)?;
        }
        Ok(())
    }

    async fn explain(&mut self, statement: &str) -> Result<Plan> {
        let analyze = format!("analyze format=json {statement}");
        let json: Option<String> = self.0.query_first(analyze).await?;
        let parsed = serde_json::from_str(json.as_deref().unwrap_or_default())?;
        plan(&parsed).with_context(|| format!("the plan was not understood: {json:?}"))
    }
}

fn text(row: &Row, place: usize) -> Result<&str> {
    match row.as_ref(place) {
        Some(Value::Bytes(bytes)) => Ok(std::str::from_utf8(bytes)?),
        other => bail!("column {place} is {other:?}, no text"),
    }
}

/// Reads the JSON of `analyze` of a statement on one table.
fn plan(json: &Json) -> Option<Plan> {
    let table = table(json)?;
    let mut text = table.get("access_type")?.as_str()?.to_owned();
    for name in ["key", "index_condition", "attached_condition"] {
        if let Some(value) = table.get(name).and_then(Json::as_str) {
            text += &format!("; {name}: {value}");
        }
    }
    let number = |name| table.get(name).and_then(Json::as_f64);
    let examined = number("r_rows")
        .zip(number("r_loops"))
        .map(|(rows, loops)| rows * loops);
    Some((text, examined))
}

/// Finds the first object `table` in the JSON of a plan.
fn table(json: &Json) -> Option<&Json> {
    match json {
        Json::Object(fields) => fields
            .get("table")
            .or_else(|| fields.values().find_map(table)),
        Json::Array(parts) => parts.iter().find_map(table),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_tells_its_index_and_what_it_examines() {
        let json = r#"{"query_block": {"select_id": 1, "nested_loop": [{"table": {"access_type": "range",
            "key": "due", "r_loops": 2, "rows": 20, "r_rows": 12, "attached_condition": "a <= 17"}}]}}"#;
        let (text, examined) = plan(&serde_json::from_str(json).unwrap()).unwrap();
        assert_eq!(text, "range; key: due; attached_condition: a <= 17");
        assert_eq!(examined, Some(24.0));
    }
}
