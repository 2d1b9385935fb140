//! What is compared: how it is asked, and by which others its figures are divided.

use std::net::SocketAddr;

use nix::unistd::Pid;

use crate::harness::demo::WarmTier;
use crate::harness::tools::pgbench::ReadStatement;

/// A server, or PostgreSQL asked by its own client.
pub(crate) struct ComparedCase {
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
    /// The process whose CPU time counts.
    pub(crate) pid: Option<Pid>,
    pub(crate) role: Role,
}

/// How it is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Endpoint {
    Http(SocketAddr),
    /// With `If-None-Match`.
    Tagged(SocketAddr),
    /// PostgreSQL itself.
    Statement(ReadStatement),
}

/// Which figures are divided by which.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Role {
    /// The larder in question.
    Subject(WarmTier),
    /// The same with something added, which is divided by it.
    Variant(WarmTier),
    /// The same tier of another binary.
    Other(WarmTier),
    /// Divides what answers from memory.
    Server,
    /// Divides what answers from PostgreSQL.
    Client,
}

impl Role {
    /// Whether a ratio of the two answers a question.
    pub(crate) fn is_divided_by(self, other: Self) -> bool {
        match (self, other) {
            (Self::Subject(tier), Self::Other(its)) | (Self::Variant(tier), Self::Subject(its)) => {
                tier == its
            }
            (Self::Subject(tier), Self::Server) => tier == WarmTier::Memory,
            (Self::Subject(tier), Self::Client) => tier == WarmTier::None,
            (Self::Subject(tier), Self::Subject(its)) => its == WarmTier::Memory && tier != its,
            _ => false,
        }
    }
}
