//! The models by name, and the process that serves as one of them.

use std::io::{Read, Write, stdin, stdout};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, bail};
use clap::ValueEnum;
use socket2::{Domain, Socket, Type};
use tokio::runtime::Builder;

use crate::labs::models::request::Answer;
use crate::labs::models::{selectors, tasks, threads, uring};

/// Connections that may wait to be accepted, as larder asks for them; the kernel lowers it to `net.core.somaxconn`.
pub(crate) const BACKLOG: u16 = u16::MAX;
/// Threads of a pool, as in the original experiment.
pub(crate) const POOL_THREADS: usize = 20;

/// A thread has four mappings of memory, and Rust ends a process that has more than `vm.max_map_count`, 65,530 by default.
const THREADS_MAX: usize = 16_000;

/// Connections that this process has closed without an answer.
pub(super) static REFUSED: AtomicU64 = AtomicU64::new(0);

/// How a server is built.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum Model {
    /// At most 20 threads; a connection keeps its thread, others wait in the backlog.
    #[value(name = "threads-20")]
    Threads20,
    /// At most 20 threads; a connection that finds none is closed.
    #[value(name = "threads-20-close")]
    Threads20Close,
    /// A thread for each connection, at most 16,000; others are closed.
    Threads,
    /// A thread that waits by select(2), and 20 workers.
    Select,
    /// A thread that waits by poll(2), and 20 workers.
    Poll,
    /// Java NIO, a thread that waits by poll(2), and 20 workers.
    NioPoll,
    /// Java NIO, a thread that waits by epoll(7), and 20 workers.
    NioEpoll,
    /// A thread that waits by epoll(7), and 20 workers.
    Epoll,
    /// A thread for each core that waits by epoll(7), reads and writes.
    EpollPerCore,
    /// A thread for each core with io_uring(7), by compio.
    Uring,
    /// tokio with a thread for each core; they take tasks from each other.
    Tokio,
    /// A runtime of tokio for each core.
    TokioPerCore,
    /// hyper on a runtime of tokio for each core.
    Hyper,
    /// larder, with its documents in memory.
    Larder,
}

impl Model {
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Names the selector of Java's models.
    pub(crate) fn java_selector(self) -> Option<&'static str> {
        match self {
            Self::NioPoll => Some("Poll"),
            Self::NioEpoll => Some("EPoll"),
            _ => None,
        }
    }

    /// Whether a thread ends with its connection.
    pub(crate) fn ends_threads(self) -> bool {
        matches!(self, Self::Threads20 | Self::Threads20Close | Self::Threads)
    }

    /// Whether it can make JSON for each request.
    pub(crate) fn renders(self) -> bool {
        self != Self::Larder && self.java_selector().is_none()
    }
}

/// Serves as `model` for the process that started this one, until stdin ends.
///
/// Writes the address to stdout, and at the end how many connections were closed without an answer.
pub(crate) fn run(model: Model, response: &Path, is_rendered: bool) -> anyhow::Result<()> {
    let response = std::fs::read_to_string(response).context("the response")?;
    let answer = Arc::new(Answer::new(&response, is_rendered)?);
    if model == Model::Uring {
        drop(compio::runtime::Runtime::new().context("io_uring")?);
    }
    writeln!(stdout(), "{}", start(model, &answer)?)?;
    stdin().read_to_end(&mut Vec::new())?;
    Ok(writeln!(stdout(), "{}", REFUSED.load(Ordering::Relaxed))?)
}

/// Starts threads that serve as `model` until this process ends; returns their address, which has a free port.
///
/// Where each core has a thread, each has a listener of its own, among which the kernel distributes the connections.
pub(super) fn start(model: Model, answer: &Arc<Answer>) -> anyhow::Result<SocketAddr> {
    let is_per_core = matches!(
        model,
        Model::EpollPerCore | Model::Uring | Model::TokioPerCore | Model::Hyper
    );
    let cores = thread::available_parallelism()?.get();
    let mut address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    for _ in 0..if is_per_core { cores } else { 1 } {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_port(is_per_core)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG.into())?;
        let listener = TcpListener::from(socket);
        address = listener.local_addr()?;
        let answer = Arc::clone(answer);
        thread::spawn(move || {
            if let Err(error) = serve(model, listener, &answer) {
                eprintln!("{}: {error:#}", model.name());
                std::process::exit(1);
            }
        });
    }
    Ok(address)
}

/// Serves for ever by the thread that calls it, and those that it starts.
fn serve(model: Model, listener: TcpListener, answer: &Arc<Answer>) -> anyhow::Result<()> {
    match model {
        Model::Threads20 => threads::serve(&listener, answer, POOL_THREADS, true),
        Model::Threads20Close => threads::serve(&listener, answer, POOL_THREADS, false),
        Model::Threads => threads::serve(&listener, answer, THREADS_MAX, false),
        Model::Uring => uring::serve(listener, answer),
        Model::Tokio => tasks::serve(Builder::new_multi_thread(), listener, answer),
        Model::TokioPerCore => tasks::serve(Builder::new_current_thread(), listener, answer),
        Model::Hyper => tasks::serve_hyper(listener, answer),
        Model::Larder | Model::NioPoll | Model::NioEpoll => bail!("a program of its own"),
        _ => selectors::serve(model, &listener, answer),
    }
}
