//! Redis, alone or two of them behind twemproxy: a sorted set of the ids of each slot by due moment, and a string for each
//! row, which is read as a whole.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use fastrand::Rng;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, cmd, pipe};

use crate::harness::free_address;
use crate::labs::workers::store::{Match, Store};
use crate::labs::workers::subscriber::{Buffer, Columns, NUMBERS, Slot, Subscriber, TEXTS};

/// Between the values of a row.
const SEPARATOR: &str = "\t";

/// Returns the arguments of a server. As the others, it has written a change to disk when it answers.
pub(super) fn line(at: &str, address: SocketAddr) -> Result<String> {
    let (ip, port) = (address.ip(), address.port());
    // No value after --save: no snapshots.
    Ok(format!(
        "--bind {ip} --port {port} --dir {at} --logfile {at}/log --set-proc-title no --save  \
         --appendonly yes --appendfsync always --auto-aof-rewrite-percentage 0"
    ))
}

/// Writes the configuration of twemproxy before `servers`; returns its arguments.
pub(super) fn proxy_line(at: &str, address: SocketAddr, servers: [&str; 2]) -> Result<String> {
    let text = include_str!("twemproxy.yml").replace("{address}", &address.to_string());
    let text = text
        .replace("{one}", servers[0])
        .replace("{two}", servers[1]);
    std::fs::write(format!("{at}/workers.yml"), text)?;
    let statistics = free_address(&mut Rng::new())?.port();
    Ok(format!("-c {at}/workers.yml -a 127.0.0.1 -s {statistics}"))
}

/// A connection, and the servers behind it.
pub(super) struct RedisStore(MultiplexedConnection, Vec<String>);

impl RedisStore {
    /// Connects to the first of `addresses`, each `HOST:PORT`. If it is a proxy, its servers follow.
    pub(super) async fn open(addresses: &[String]) -> Result<Self> {
        let (first, behind) = addresses.split_first().context("no address")?;
        let servers = if behind.is_empty() { addresses } else { behind }.to_vec();
        Ok(Self(connect(first).await?, servers))
    }
}

async fn connect(address: &str) -> Result<MultiplexedConnection> {
    let info = format!("redis://{address}").into_connection_info()?;
    // twemproxy closes connections that send a command which it doesn't know.
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    let client = Client::open(info.set_redis_settings(settings))?;
    // The caller limits the time.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let connected = client.get_multiplexed_async_connection_with_config(&config);
    Ok(connected.await?)
}

fn slot_key(slot: Slot) -> String {
    format!("slot:{}:{}", slot.0, slot.1)
}

/// Reads what [`Subscriber::values`] wrote, but for the due moment, which updates leave as it was.
fn decode(value: &[u8], due: u32, columns: Columns, row: &mut Subscriber) -> Result<()> {
    let mut fields = [""; NUMBERS.len() + TEXTS.len()];
    let parts = std::str::from_utf8(value)?.split(SEPARATOR);
    for (field, part) in fields.iter_mut().zip(parts) {
        *field = part;
    }
    let number = |place: usize| match place {
        1 => Ok(due),
        _ => anyhow::Ok(fields[place].parse()?),
    };
    let before = NUMBERS.len() - columns.counts().0;
    row.read(columns, number, |place| Ok(fields[before + place]))
}

#[async_trait]
impl Store for RedisStore {
    async fn create(&mut self, is_reset: bool) -> Result<()> {
        for server in self.1.iter().filter(|_| is_reset) {
            let mut connection = connect(server).await?;
            cmd("FLUSHALL").exec_async(&mut connection).await?;
        }
        Ok(())
    }

    async fn fill(&mut self, rows: &[Subscriber]) -> Result<()> {
        let (mut set, mut add) = (cmd("MSET"), pipe());
        let mut slots: BTreeMap<Slot, Vec<(u32, u32)>> = BTreeMap::new();
        for row in rows {
            let (id, due) = (row.id(), row.notify_after());
            set.arg(format!("row:{id}")).arg(row.values(SEPARATOR, ""));
            slots.entry(row.slot()).or_default().push((due, id));
        }
        set.exec_async(&mut self.0).await?;
        for (slot, members) in slots {
            add.cmd("ZADD").arg(slot_key(slot)).arg(members).ignore();
        }
        Ok(add.exec_async(&mut self.0).await?)
    }

    /// Does nothing: the sorted sets are the index.
    async fn index(&mut self) -> Result<()> {
        Ok(())
    }

    async fn find(&mut self, query: Match, found: &mut Buffer) -> Result<()> {
        let mut range = cmd("ZRANGEBYSCORE");
        range.arg(slot_key(query.slot)).arg("-inf").arg(query.due);
        range.arg("WITHSCORES");
        if let Some(limit) = query.limit {
            range.arg("LIMIT").arg(0).arg(limit);
        }
        let due: Vec<(u32, u32)> = range.query_async(&mut self.0).await?;
        if due.is_empty() {
            return Ok(());
        }
        let mut get = cmd("MGET");
        for (id, _) in &due {
            get.arg(format!("row:{id}"));
        }
        let values: Vec<Vec<u8>> = get.query_async(&mut self.0).await?;
        ensure!(values.len() == due.len(), "a row is missing");
        for ((_, notify_after), value) in due.into_iter().zip(values) {
            decode(&value, notify_after, query.columns, found.add())?;
        }
        Ok(())
    }

    async fn move_due(&mut self, slot: Slot, ids: &[u32], due: u32) -> Result<usize> {
        let mut add = cmd("ZADD");
        add.arg(slot_key(slot)).arg("CH");
        for id in ids {
            add.arg(due).arg(*id);
        }
        Ok(add.query_async(&mut self.0).await?)
    }
}
