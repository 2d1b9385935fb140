//! The models by name, and the process that serves as one of them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use socket2::{Domain, Socket, Type};
use tokio::runtime::Builder;

use crate::labs::models::request::Answer;
use crate::labs::models::threads::POOL_THREADS;
use crate::labs::models::{selectors, tasks, threads, uring};

/// Connections that wait to be accepted: what larder asks for, by way of tokio.
pub(crate) const BACKLOG: i32 = 128;

/// How a server is built.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum Model {
    /// A pool of 20 threads; a connection keeps its thread, others wait in the backlog.
    #[value(name = "threads-20")]
    Threads20,
    /// A pool of 20 threads; a connection that finds none is closed.
    #[value(name = "threads-20-close")]
    Threads20Close,
    /// A thread for each connection.
    Threads,
    /// A thread that waits by select(2), and 20 workers.
    Select,
    /// A thread that waits by poll(2), and 20 workers.
    Poll,
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
    /// Java NIO, a thread that waits by poll(2), and 20 workers.
    NioPoll,
    /// Java NIO, a thread that waits by epoll(7), and 20 workers.
    NioEpoll,
}

impl Model {
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The provider of the selectors of Java's models.
    pub(crate) fn selector_provider(self) -> Option<&'static str> {
        match self {
            Self::NioPoll => Some("sun.nio.ch.PollSelectorProvider"),
            Self::NioEpoll => Some("sun.nio.ch.EPollSelectorProvider"),
            _ => None,
        }
    }

    /// Whether it can make JSON for each request.
    pub(crate) fn renders(self) -> bool {
        self != Self::Larder && self.selector_provider().is_none()
    }
}

/// Serves as `model` for the process that started this one, until stdin ends.
///
/// Writes the address to stdout, and at the end how many connections were closed without an answer.
pub(crate) fn run(model: Model, response: &Path, is_rendered: bool) -> anyhow::Result<()> {
    let response = std::fs::read_to_string(response).context("the response")?;
    let answer = if is_rendered {
        Answer::rendered(&response)?
    } else {
        Answer::Ready(response.into_bytes())
    };
    if model == Model::Uring {
        drop(uring::runtime().context("io_uring")?);
    }
    let listeners = listeners(model)?;
    let address = listeners.first().context("no listener")?.local_addr()?;
    say(address)?;
    let refused = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&refused);
    thread::spawn(move || {
        let ended = std::io::stdin().read_to_end(&mut Vec::new());
        let told = ended.and_then(|_| say(counted.load(Ordering::Relaxed)));
        std::process::exit(i32::from(told.is_err()));
    });
    serve(model, listeners, &Arc::new(answer), &refused)
}

fn say(line: impl std::fmt::Display) -> std::io::Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

/// Listens at a free port of the loopback address, for each thread that accepts.
///
/// Those of a pool accept from one backlog; where each core has one, the kernel gives each its share of the connections.
pub(crate) fn listeners(model: Model) -> anyhow::Result<Vec<TcpListener>> {
    let is_per_core = matches!(
        model,
        Model::EpollPerCore | Model::Uring | Model::TokioPerCore | Model::Hyper
    );
    let count = if is_per_core {
        thread::available_parallelism()?.get()
    } else {
        1
    };
    let mut address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut listeners = Vec::new();
    for _ in 0..count {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_port(is_per_core)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        address = listener.local_addr()?;
        listeners.push(listener);
    }
    while model == Model::Threads20 && listeners.len() < POOL_THREADS {
        listeners.push(listeners[0].try_clone()?);
    }
    Ok(listeners)
}

/// Serves by a thread for each of `listeners`, for ever; counts the connections that are closed without an answer.
pub(crate) fn serve(
    model: Model,
    listeners: Vec<TcpListener>,
    answer: &Arc<Answer>,
    refused: &AtomicU64,
) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let serve = |listener| scope.spawn(move || serve_by(model, listener, answer, refused));
        let threads: Vec<_> = listeners.into_iter().map(serve).collect();
        let mut ended = threads.into_iter().map(thread::ScopedJoinHandle::join);
        ended.try_for_each(|ended| ended.map_err(|_| anyhow!("a thread panicked"))?)
    })
}

fn serve_by(
    model: Model,
    listener: TcpListener,
    answer: &Arc<Answer>,
    refused: &AtomicU64,
) -> anyhow::Result<()> {
    match model {
        Model::Threads20 => threads::one_by_one(&listener, answer),
        Model::Threads20Close => threads::per_connection(&listener, answer, POOL_THREADS, refused),
        Model::Threads => threads::per_connection(&listener, answer, usize::MAX, refused),
        Model::Select | Model::Poll | Model::Epoll | Model::EpollPerCore => {
            selectors::serve(model, &listener, answer, refused)
        }
        Model::Uring => uring::serve(listener, answer),
        Model::Tokio => tasks::serve(Builder::new_multi_thread(), listener, answer),
        Model::TokioPerCore => tasks::serve(Builder::new_current_thread(), listener, answer),
        Model::Hyper => tasks::serve_hyper(listener, answer),
        Model::Larder | Model::NioPoll | Model::NioEpoll => {
            bail!("{} is a program of its own", model.name())
        }
    }
}
