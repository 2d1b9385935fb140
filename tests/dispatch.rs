//! `larder dispatch`: the built binary, a real PostgreSQL, and a web server that takes the rows.

mod attempts;
mod deliveries;
mod delivery;
mod failing;
mod kills;
mod locks;
mod misfits;
mod nats;
mod operation;
mod processes;
mod sink;

use tempfile::TempDir;

use crate::command::configured;
use crate::dispatch::sink::TestSink;
use crate::harness::cluster::TestCluster;
use crate::harness::larder_process::{run, stderr};
use crate::harness::service::execute;

/// A table of subscribers in two time zones, all due but those whose number is divisible by ten.
const SUBSCRIBERS: &str = "create table subscriber (id int primary key, worker int2 not null, zone int2 not null, \
    notify_after timestamptz, endpoint text not null); \
    insert into subscriber select n, n % 3, n % 2, case n % 10 when 0 then null else now() - n * interval '1 s' end, \
    'e' || n from generate_series(1, 200) n";

/// A database, a directory with the configuration, and what takes the rows.
struct Bed {
    url: String,
    directory: TempDir,
    sink: TestSink,
}

impl Bed {
    /// Runs `sql` in a new database. `toml` is the configuration; `SINK` in it stands for `type` and `url` of the sink.
    async fn new(sql: &str, toml: &str, sink: TestSink) -> Self {
        Self::on(TestCluster::database().await.url, sql, toml, sink).await
    }

    /// The same in the database at `url`.
    async fn on(url: String, sql: &str, toml: &str, sink: TestSink) -> Self {
        execute(&url, sql).await;
        let target = format!("type = 'http'\nurl = '{}'", sink.url);
        let directory = configured(&toml.replace("SINK", &target));
        Self {
            url,
            directory,
            sink,
        }
    }

    /// Runs a command to its end; it exits with `code`. Returns what it wrote to stdout and stderr.
    async fn run(&self, args: &[&str], code: i32) -> (String, String) {
        let output = run(self.directory.path(), Some(&self.url), args).await;
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{told}");
        (String::from_utf8(output.stdout).unwrap(), told)
    }

    /// Dispatches until no row is due.
    async fn once(&self, code: i32) -> String {
        let args = ["dispatch", "--once", "--admin", "127.0.0.1:0"];
        self.run(&args, code).await.1
    }

    async fn execute(&self, sql: &str) {
        execute(&self.url, sql).await;
    }

    async fn value<T>(&self, sql: &str) -> T
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
    {
        crate::command::value(&self.url, sql).await
    }
}

/// A dispatch of [`SUBSCRIBERS`], with `more` properties.
fn subscribers(more: &str) -> String {
    format!(
        "[[dispatch]]\nname = 'subscribers'\ntable = 'subscriber'\ndue = 'notify_after'\npoll_interval = '50ms'\n{more}\n\
         [dispatch.sink]\nSINK\n"
    )
}
