//! What it costs to ask by an alias, with a key, and as the owner of documents: cases of one larder that has the demo's
//! resource several times.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::ensure;
use testkit::http::{HttpConnection, Request};

use crate::bench::compare::Compare;
use crate::bench::compare::case::{ComparedCase, Endpoint, Role};
use crate::harness::demo::{Demo, WarmTier};
use crate::harness::session::SqlSession;
use crate::harness::tools::wrk::WrkRequest;

const API_KEY: &str = "loadtest-owner-of-all-documents";
/// The key by its SHA-256.
const AUTH: &str = "\
[[auth.key]]
name = 'owner'
hash = 'd4487daed1ae0dd52653521257c5265fff8ff7dc63b62844162dc5c84f633449'
roles = ['customer']
claims = { sub = '17' }
";
/// The line of the demo's resource after which others follow.
const NAME: &str = "name = \"depts\"";
/// Keys of a request that fills memory.
const KEYS: u32 = 500;
const HIT: &str = "larder; hit; detail=memory";

/// Gives all documents one owner, which they do not show.
pub(super) async fn add_owner(demo: &Demo) -> anyhow::Result<()> {
    let sql = "alter table dept add column owner bigint not null default 17";
    Ok(SqlSession::new(demo.url(), 0)?.run(sql).await?)
}

/// The demo's resource three times: for everyone and with an alias, for clients with a key, and for owners.
fn settings(resource: &str) -> String {
    let with = |lines: &str| resource.replace(NAME, lines);
    let owner = "{ column = 'owner', claim = 'sub', roles = ['customer'] }";
    [
        AUTH,
        &with("name = 'depts'\nread = ['anonymous']\nby = [{ name = 'no', columns = 'deptno' }]"),
        &with("name = 'closed'\nread = ['customer']"),
        &with(&format!(
            "name = 'owned'\nread = ['customer']\nowner = {owner}"
        )),
    ]
    .concat()
}

impl Compare {
    /// Starts the larder and fills its memory.
    pub(super) async fn add_scopes(&mut self, binary: &Path) -> anyhow::Result<()> {
        let name = "scopes";
        let cores = self.args.cores.server_cores.clone();
        let mut config = self.demo.config(name, binary, Some(&cores))?;
        config.settings = settings(&config.settings);
        let memory = WarmTier::Memory;
        let larder = self.demo.start_filled(name, config, memory).await?;
        let listen = larder.config.listen;
        for path in ["/depts?by=no&keys=", "/closed?keys=", "/owned?keys="] {
            self.fill(listen, path).await?;
        }
        let by_key = WrkRequest::DOCUMENTS;
        let [by_alias, with_key, as_owner] =
            ["/depts/by/no/", "/closed/", "/owned/"].map(|path| WrkRequest {
                path,
                api_key: (path != "/depts/by/no/").then_some(API_KEY),
                tags: None,
            });
        let pid = Some(larder.pid()?);
        for (name, request, role) in [
            ("by key", by_key, Role::Beside("larder memory")),
            ("by alias", by_alias, Role::Beside("by key")),
            ("with API key", with_key, Role::Beside("by key")),
            ("as owner", as_owner, Role::Beside("with API key")),
        ] {
            self.cases.push(ComparedCase {
                name: name.to_owned(),
                endpoint: Endpoint::Http(listen, request),
                pid,
                role,
            });
        }
        self.larders.push((larder, memory));
        Ok(())
    }

    /// Requests all documents until memory has them.
    async fn fill(&self, listen: SocketAddr, path: &str) -> anyhow::Result<()> {
        let mut connection = HttpConnection::connect(listen).await?;
        for first in (1..=self.demo.depts).step_by(KEYS as usize) {
            let keys = first..(first + KEYS).min(self.demo.depts + 1);
            let keys: Vec<String> = keys.map(|key| key.to_string()).collect();
            let target = format!("{path}{}", keys.join(","));
            let request = Request::get(target).with("x-api-key", API_KEY);
            for is_filled in [false, true] {
                let answer = connection.send(&request).await?;
                let is_hit = answer.status == 200 && answer.header("cache-status") == HIT;
                ensure!(
                    is_hit || !is_filled,
                    "{path} was answered with {}",
                    answer.shown()
                );
            }
        }
        Ok(())
    }
}
