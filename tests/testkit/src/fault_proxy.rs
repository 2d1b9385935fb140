//! A TCP proxy between larder and PostgreSQL: the network between them, which fails on command.
//!
//! For the end-to-end tests and for `loadtest`.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

const CHUNK_BYTES: usize = 16 * 1024;
/// Type and length of a message of PostgreSQL's protocol.
const MESSAGE_HEAD_BYTES: usize = 5;
/// NotificationResponse.
const NOTIFICATION: u8 = b'A';

/// What the network does to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkFault {
    /// Everything passes.
    None,
    /// Every piece waits this long, in both directions, and so does the end of what the client sends.
    Delay(Duration),
    /// Connections end, new ones at once.
    Cut,
    /// The server's side of the connections there are has ended, and the client does not notice; new ones work.
    HalfOpen,
    /// Nothing passes; new connections are accepted and not answered. What was sent arrives when it ends.
    BlackHole,
    /// Nothing passes on the connections there are and on those that are made meanwhile, even after the fault has ended:
    /// a router has lost its state. `Cut` ends them.
    Silent,
    /// The server's notifications do not arrive; everything else does.
    NoNotifications,
}

/// A running proxy; it ends when dropped.
#[derive(Debug)]
pub struct FaultProxy {
    /// The server's URL with the proxy's address, without TLS: the proxy reads what passes.
    pub url: String,
    fault: watch::Sender<NetworkFault>,
    _tasks: JoinSet<()>,
}

impl FaultProxy {
    /// Starts a proxy to the server of `url`, which is of the form `postgres://user:password@host:port/database`; what
    /// follows the database is left out.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if the URL is of another form, or the error of binding a port of 127.0.0.1.
    pub async fn start(url: &str) -> io::Result<Self> {
        let parts = url.rsplit_once('@').and_then(|(credentials, rest)| {
            let (server, rest) = rest.split_once('/')?;
            Some((credentials, server, rest.split('?').next()?))
        });
        let (credentials, server, database) = parts.ok_or(io::ErrorKind::InvalidInput)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (fault, changes) = watch::channel(NetworkFault::None);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, server.to_owned(), changes));
        Ok(Self {
            url: format!("{credentials}@{address}/{database}?sslmode=disable"),
            fault,
            _tasks: tasks,
        })
    }

    /// From now on the network does this to all connections, those there are and those to come.
    pub fn set(&self, fault: NetworkFault) {
        self.fault.send_replace(fault);
    }
}

async fn accept(listener: TcpListener, server: String, fault: watch::Receiver<NetworkFault>) {
    let mut connections = JoinSet::new();
    loop {
        // An error such as EMFILE may be over at the next attempt.
        if let Ok((client, _)) = listener.accept().await {
            connections.spawn(connect(client, server.clone(), fault.clone()));
        } else {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Carries one connection; both of its ends close when this ends.
async fn connect(client: TcpStream, server: String, mut fault: watch::Receiver<NetworkFault>) {
    let is_passable = |fault: &NetworkFault| *fault != NetworkFault::BlackHole;
    let at_start = match fault.wait_for(is_passable).await {
        Ok(fault) => *fault,
        // The sender is gone: the proxy, and with it this task, is about to end.
        Err(_) => NetworkFault::Cut,
    };
    match at_start {
        NetworkFault::Cut => return,
        NetworkFault::Silent => return cut(&mut fault).await,
        _ => {}
    }
    // If the server is down, the client's connection ends, too.
    let Ok(upstream) = TcpStream::connect(&server).await else {
        return;
    };
    let nodelay = client.set_nodelay(true).and(upstream.set_nodelay(true));
    if nodelay.is_err() {
        return;
    }
    // Has seen the fault at the start: a connection that is made during a half-open fault is not affected by it.
    let mut breaks = fault.clone();
    carry(client, upstream, &fault, &mut breaks).await;
}

async fn carry(
    client: TcpStream,
    upstream: TcpStream,
    fault: &watch::Receiver<NetworkFault>,
    breaks: &mut watch::Receiver<NetworkFault>,
) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = upstream.into_split();
    let broken_by = {
        let requests = pump(&mut from_client, &mut to_server, fault.clone());
        let answers = pump_messages(&mut from_server, &mut to_client, fault.clone());
        tokio::select! {
            _ended = requests => return,
            _ended = answers => return,
            fault = broken(breaks) => fault,
        }
    };
    match broken_by {
        NetworkFault::HalfOpen => {
            drop((from_server, to_server));
            discard(&mut from_client, breaks).await;
        }
        // Both ends stay open.
        NetworkFault::Silent => cut(breaks).await,
        _ => {}
    }
}

/// Waits for a fault that affects the connections there are, and returns it.
async fn broken(breaks: &mut watch::Receiver<NetworkFault>) -> NetworkFault {
    while breaks.changed().await.is_ok() {
        let fault = *breaks.borrow_and_update();
        if let NetworkFault::Cut | NetworkFault::HalfOpen | NetworkFault::Silent = fault {
            return fault;
        }
    }
    NetworkFault::Cut
}

/// Waits until connections are to end.
async fn cut(fault: &mut watch::Receiver<NetworkFault>) {
    // An error says that the proxy is gone.
    let _cut = fault.wait_for(|fault| *fault == NetworkFault::Cut).await;
}

/// Loses what the client sends until it closes, or until the fault is no longer `HalfOpen`.
async fn discard(
    from_client: &mut (impl AsyncRead + Unpin),
    fault: &mut watch::Receiver<NetworkFault>,
) {
    let mut lost = [0; 1024];
    loop {
        tokio::select! {
            read = from_client.read(&mut lost) => if !matches!(read, Ok(1..)) { return },
            _ended = fault.wait_for(|fault| *fault != NetworkFault::HalfOpen) => return,
        }
    }
}

/// Waits for as long as the fault delays a piece.
async fn delay(fault: &watch::Receiver<NetworkFault>) {
    let delay = match *fault.borrow() {
        NetworkFault::Delay(delay) => delay,
        _ => return,
    };
    tokio::time::sleep(delay).await;
}

/// Delays a piece, or waits until the fault lets it pass.
async fn hold(fault: &mut watch::Receiver<NetworkFault>) {
    delay(fault).await;
    // The sender outlives this.
    let _passes = fault
        .wait_for(|fault| *fault != NetworkFault::BlackHole)
        .await;
}

async fn pump(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    mut fault: watch::Receiver<NetworkFault>,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = from.read(&mut chunk).await?;
        if read == 0 {
            delay(&fault).await;
            return Ok(());
        }
        hold(&mut fault).await;
        to.write_all(&chunk[..read]).await?;
    }
}

/// From the server: whole messages, of which some may be left out.
async fn pump_messages(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    mut fault: watch::Receiver<NetworkFault>,
) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(CHUNK_BYTES);
    loop {
        if from.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
        hold(&mut fault).await;
        let drops = *fault.borrow() == NetworkFault::NoNotifications;
        let (whole, passed) = messages(&buffer, drops);
        to.write_all(&passed).await?;
        buffer.drain(..whole);
    }
}

/// How many bytes of `buffer` are whole messages, and those of them that pass.
fn messages(buffer: &[u8], drop_notifications: bool) -> (usize, Vec<u8>) {
    let mut passed = Vec::with_capacity(buffer.len());
    let mut whole = 0;
    while let Some(head) = buffer.get(whole..whole + MESSAGE_HEAD_BYTES) {
        // The length counts itself, not the type.
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let end = whole + 1 + usize::try_from(length).unwrap_or(usize::MAX >> 1);
        let Some(message) = buffer.get(whole..end) else {
            break;
        };
        if !(drop_notifications && head[0] == NOTIFICATION) {
            passed.extend_from_slice(message);
        }
        whole = end;
    }
    (whole, passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, text: &[u8]) -> Vec<u8> {
        let length = u32::try_from(text.len() + 4).unwrap().to_be_bytes();
        [&[kind], &length[..], text].concat()
    }

    #[test]
    fn notifications_are_left_out_and_nothing_else() {
        let others = [message(b'Z', b"I"), message(b'D', b"AAAA")].concat();
        let all = [
            message(b'Z', b"I"),
            message(NOTIFICATION, b"larder"),
            message(b'D', b"AAAA"),
        ];
        let all = all.concat();
        assert_eq!(messages(&all, true), (all.len(), others));
        assert_eq!(messages(&all, false), (all.len(), all.clone()));
    }

    #[test]
    fn a_part_of_a_message_waits_for_the_rest() {
        let first = message(b'Z', b"I");
        let both = [first.clone(), message(b'D', b"AAAA")].concat();
        for length in first.len()..both.len() {
            assert_eq!(
                messages(&both[..length], true),
                (first.len(), first.clone())
            );
        }
    }

    #[tokio::test]
    async fn a_fault_acts_on_old_and_new_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        let proxy = FaultProxy::start(&format!("postgres://u:p@{server}/d"))
            .await
            .unwrap();
        let address = proxy
            .url
            .rsplit_once('@')
            .unwrap()
            .1
            .strip_suffix("/d?sslmode=disable")
            .unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut upstream, _) = listener.accept().await.unwrap();
        let mut byte = [0];
        client.write_all(b"x").await.unwrap();
        upstream.read_exact(&mut byte).await.unwrap();
        // The server's side ends, the client's does not.
        proxy.set(NetworkFault::HalfOpen);
        assert_eq!(upstream.read(&mut byte).await.unwrap(), 0);
        client.write_all(b"x").await.unwrap();
        proxy.set(NetworkFault::Cut);
        assert!(matches!(client.read(&mut byte).await, Ok(0) | Err(_)));
        // New connections end at once.
        let mut refused = TcpStream::connect(address).await.unwrap();
        assert!(matches!(refused.read(&mut byte).await, Ok(0) | Err(_)));
        // What is sent into a black hole arrives when it ends.
        proxy.set(NetworkFault::BlackHole);
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"y").await.unwrap();
        proxy.set(NetworkFault::None);
        let (mut upstream, _) = listener.accept().await.unwrap();
        upstream.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"y");
        // A connection that met with silence stays silent; one that is made afterwards works.
        proxy.set(NetworkFault::Silent);
        let before = proxy.fault.receiver_count();
        let mut silent = TcpStream::connect(address).await.unwrap();
        silent.write_all(b"z").await.unwrap();
        while proxy.fault.receiver_count() == before {
            tokio::task::yield_now().await;
        }
        // The new task has run as far as it gets.
        tokio::task::yield_now().await;
        proxy.set(NetworkFault::None);
        let mut other = TcpStream::connect(address).await.unwrap();
        other.write_all(b"o").await.unwrap();
        let (mut upstream, _) = listener.accept().await.unwrap();
        upstream.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"o");
        proxy.set(NetworkFault::Cut);
        assert!(matches!(silent.read(&mut byte).await, Ok(0) | Err(_)));
    }
}
