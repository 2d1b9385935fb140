//! What is compared: how it is asked, and by which others its figures are divided.

use std::net::SocketAddr;

use nix::unistd::Pid;

use crate::harness::demo::WarmTier;
use crate::harness::tools::pgbench::ReadStatement;
use crate::harness::tools::wrk::WrkRequest;

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
    Http(SocketAddr, WrkRequest<'static>),
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
    /// Asked for the same in another way than the case of this name, which it is divided by.
    Beside(&'static str),
    /// Divides what answers from memory.
    Server,
    /// Divides what answers from PostgreSQL.
    Client,
}

impl ComparedCase {
    /// Whether a ratio of the two answers a question.
    pub(crate) fn is_divided_by(&self, other: &Self) -> bool {
        match (self.role, other.role) {
            (Role::Beside(name), _) => other.name == name,
            (Role::Subject(tier), Role::Other(its)) | (Role::Variant(tier), Role::Subject(its)) => {
                tier == its
            }
            (Role::Subject(tier), Role::Server) => tier == WarmTier::Memory,
            (Role::Subject(tier), Role::Client) => tier == WarmTier::None,
            (Role::Subject(tier), Role::Subject(its)) => its == WarmTier::Memory && tier != its,
            _ => false,
        }
    }
}
