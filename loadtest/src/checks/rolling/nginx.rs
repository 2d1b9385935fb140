//! nginx in front of several larders, configured as docs/interface.md, section 7.1, has it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use anyhow::Context;
use tokio::process::{Child, Command};

use crate::harness::await_listening;
use crate::harness::process::find_program;

const INSTALL: &str = "on Debian: apt-get install nginx-light";

/// A running nginx; it ends when dropped.
pub(super) struct Nginx {
    _child: Child,
}

impl Nginx {
    /// Starts one at `address` with its files in `directory`.
    pub(super) async fn start(
        directory: &Path,
        address: SocketAddr,
        nodes: &[SocketAddr],
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let file = directory.join("nginx.conf");
        std::fs::write(&file, configuration(directory, address, nodes))?;
        let log = directory.join("error.log");
        let child = Command::new(find_program("nginx", INSTALL)?)
            .arg("-p")
            .arg(directory)
            .arg("-c")
            .arg(&file)
            .arg("-e")
            .arg(&log)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("nginx can't be run")?;
        let nginx = Self { _child: child };
        let listening = await_listening(address).await;
        listening.with_context(|| format!("nginx does not answer, see {}", log.display()))?;
        Ok(nginx)
    }
}

/// One process, so that it ends with this program; its files are in its directory.
fn configuration(directory: &Path, address: SocketAddr, nodes: &[SocketAddr]) -> String {
    let nodes: String = nodes
        .iter()
        .map(|node| format!("    server {node} max_fails=0;\n"))
        .collect();
    let directory = directory.display();
    format!(
        "daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log {directory}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {directory}/body;
  proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  keepalive_requests 1000000000;
  upstream larder {{
{nodes}    keepalive 32;
    keepalive_timeout 60s;
  }}
  server {{
    listen {address};
    location / {{
      proxy_pass http://larder;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_connect_timeout 1s;
      proxy_next_upstream error timeout http_503;
      proxy_next_upstream_tries 2;
    }}
  }}
}}
"
    )
}
