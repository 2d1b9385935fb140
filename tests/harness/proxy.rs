//! A TCP proxy in front of the test cluster: the network between larder and PostgreSQL, which fails when told to.
//!
//! A connection that met with silence stays silent for ever, as after a router that forgot it.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What becomes of connections, those there are and those to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Forward,
    Cut,
    Silent,
}

/// A running proxy; it ends when dropped.
pub(crate) struct Proxy {
    /// The URL that was given, by way of the proxy.
    pub(crate) url: String,
    mode: watch::Sender<Mode>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// A proxy to the server of `url`, which is of the form `postgres://user:password@host:port/database`.
    pub(crate) async fn start(url: &str) -> Self {
        let (who, rest) = url.rsplit_once('@').unwrap();
        let (server, database) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, modes) = watch::channel(Mode::Forward);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, server.to_owned(), modes));
        Self {
            url: format!("{who}@{address}/{database}"),
            mode,
            _tasks: tasks,
        }
    }

    /// Ends every connection, and every new one at once.
    pub(crate) fn cut(&self) {
        self.mode.send_replace(Mode::Cut);
    }

    /// Forwards nothing any more; new connections are accepted and never answered.
    pub(crate) fn silence(&self) {
        self.mode.send_replace(Mode::Silent);
    }

    /// New connections reach the server.
    pub(crate) fn resume(&self) {
        self.mode.send_replace(Mode::Forward);
    }
}

async fn accept(listener: TcpListener, server: String, modes: watch::Receiver<Mode>) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        connections.spawn(forward(client, server.clone(), modes.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn forward(mut client: TcpStream, server: String, mut modes: watch::Receiver<Mode>) {
    if *modes.borrow_and_update() == Mode::Forward {
        // A server that is down refuses the client, too.
        let Ok(mut upstream) = TcpStream::connect(&server).await else {
            return;
        };
        tokio::select! {
            _ended = copy_bidirectional(&mut client, &mut upstream) => return,
            _ended = modes.wait_for(|&mode| mode != Mode::Forward) => {}
        }
        if *modes.borrow() == Mode::Silent {
            // Both ends keep waiting.
            let _gone = modes.wait_for(|&mode| mode == Mode::Cut).await;
        }
    } else if *modes.borrow() == Mode::Silent {
        let _gone = modes.wait_for(|&mode| mode == Mode::Cut).await;
    }
}
