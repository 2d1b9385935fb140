//! Servers that are used in larder's place, with the same documents.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::ensure;
use testkit::http::HttpConnection;

use crate::harness::demo::documents::{read, read_all};
use crate::harness::process::{find_program, open_files_max};
use crate::harness::tools::Invocation;

const NGINX_INSTALL: &str = "on Debian: apt-get install nginx-light";
const VARNISH_INSTALL: &str = "on Debian: apt-get install varnish";
const FILES_DIRECTORY: &str = "depts";

/// One of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum OtherServer {
    /// nginx with one document out of its configuration.
    Nginx,
    /// nginx with a file for each document.
    NginxFiles,
    /// Varnish in front of larder, with all documents in memory.
    Varnish,
}

/// Where it runs and what it serves.
pub(crate) struct ServerSetup<'a> {
    pub(crate) address: SocketAddr,
    /// Has the documents.
    pub(crate) larder: SocketAddr,
    /// For its files.
    pub(crate) directory: &'a Path,
    pub(crate) cores: &'a str,
    pub(crate) depts: u32,
}

impl OtherServer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx, one document",
            Self::NginxFiles => "nginx, files",
            Self::Varnish => "Varnish",
        }
    }

    pub(crate) fn version_flag(self) -> &'static str {
        match self {
            Self::Nginx | Self::NginxFiles => "-v",
            Self::Varnish => "-V",
        }
    }

    /// Writes its configuration and what it serves; returns how it is started.
    pub(crate) async fn prepare(self, setup: &ServerSetup<'_>) -> anyhow::Result<Invocation> {
        let directory = setup.directory.join(format!("{self:?}").to_lowercase());
        std::fs::create_dir_all(&directory)?;
        let (program, arguments) = match self {
            Self::Nginx => {
                let answer = one_document(setup.larder).await?;
                std::fs::write(directory.join("nginx.conf"), nginx(setup.address, &answer))?;
                (
                    find_program("nginx", NGINX_INSTALL)?,
                    nginx_arguments(&directory),
                )
            }
            Self::NginxFiles => {
                let files = directory.join(FILES_DIRECTORY);
                std::fs::create_dir_all(&files)?;
                read_all(setup.larder, 1..=setup.depts, move |key, answer| {
                    Ok(std::fs::write(files.join(key.to_string()), &answer.body)?)
                })
                .await?;
                let root = format!(
                    "root {}; open_file_cache max={} inactive=1d; open_file_cache_valid 1d;",
                    directory.display(),
                    // The rest is for connections.
                    open_files_max()? / 2
                );
                std::fs::write(directory.join("nginx.conf"), nginx(setup.address, &root))?;
                (
                    find_program("nginx", NGINX_INSTALL)?,
                    nginx_arguments(&directory),
                )
            }
            Self::Varnish => {
                std::fs::write(directory.join("larder.vcl"), varnish(setup.larder))?;
                let line = format!(
                    "-F -j none -n {0} -a {1} -f {0}/larder.vcl -s malloc,4G",
                    directory.display(),
                    setup.address
                );
                let arguments = line.split(' ').map(str::to_owned).collect();
                (find_program("varnishd", VARNISH_INSTALL)?, arguments)
            }
        };
        Ok(Invocation {
            program,
            arguments,
            cores: Some(setup.cores.to_owned()),
            directory,
        })
    }
}

/// Answers with the document of dept 1.
async fn one_document(larder: SocketAddr) -> anyhow::Result<String> {
    let mut connection = HttpConnection::connect(larder).await?;
    let answer = read(&mut connection, 1).await?;
    let document = answer.text();
    ensure!(
        !document.contains(['\'', '\\', '$']),
        "nginx would read this document as configuration"
    );
    Ok(format!(
        "location / {{ add_header ETag '{}'; add_header Cache-Status '{}'; return 200 '{document}'; }}",
        answer.header("etag"),
        answer.header("cache-status")
    ))
}

fn nginx_arguments(directory: &Path) -> Vec<String> {
    let line = format!("-p {0} -c {0}/nginx.conf -e stderr", directory.display());
    line.split(' ').map(str::to_owned).collect()
}

/// One process, nothing logged, connections kept for ever.
fn nginx(address: SocketAddr, location: &str) -> String {
    format!(
        "daemon off; master_process off; pid nginx.pid; error_log stderr crit;\n\
         events {{ worker_connections 100000; }}\n\
         http {{\n\
           access_log off; keepalive_requests 1000000000; keepalive_timeout 1h; sendfile on; tcp_nopush on;\n\
           client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;\n\
           scgi_temp_path scgi; default_type application/json;\n\
           server {{ listen {address} backlog=65535; {location} }}\n\
         }}\n"
    )
}

/// All that larder answers is kept for a day, whatever name the host is called by.
fn varnish(larder: SocketAddr) -> String {
    format!(
        "vcl 4.1;\nbackend larder {{ .host = \"{}\"; .port = \"{}\"; }}\n\
         sub vcl_hash {{ hash_data(req.url); return (lookup); }}\n\
         sub vcl_backend_response {{ set beresp.ttl = 1d; unset beresp.http.Cache-Control; return (deliver); }}\n",
        larder.ip(),
        larder.port()
    )
}
