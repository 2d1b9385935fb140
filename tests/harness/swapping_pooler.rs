//! A small connection pooler that swaps server connections: it opens one for each client, and may swap those of clients
//! between messages, as poolers in statement or transaction mode do. Startup parameters have arrived by then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex as TurnMutex, OwnedMutexGuard, watch};
use tokio::task::JoinSet;

/// The code of an SSLRequest, sent in place of the protocol version.
const SSL_REQUEST: u32 = 80_877_103;

type ServerConnection = Arc<TurnMutex<TcpStream>>;

struct PoolerState {
    address: String,
    servers: Mutex<Vec<ServerConnection>>,
    /// The places in `servers` of those whose clients are connected.
    open: Mutex<Vec<usize>>,
    swap: AtomicBool,
    /// Answers to messages that contain this text are held back.
    hold: watch::Sender<Option<&'static str>>,
    held: watch::Sender<usize>,
}

/// A running pooler; it ends when dropped.
pub(crate) struct SwappingPooler {
    /// The server's URL with the pooler's address.
    pub(crate) url: String,
    shared: Arc<PoolerState>,
    _tasks: JoinSet<()>,
}

impl SwappingPooler {
    /// Starts a pooler in front of the server of `url`, which is of the form
    /// `postgres://user:password@host:port/database`.
    pub(crate) async fn start(url: &str) -> Self {
        let (credentials, rest) = url.rsplit_once('@').unwrap();
        let (server, database) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(PoolerState {
            address: server.to_owned(),
            servers: Mutex::default(),
            open: Mutex::default(),
            swap: AtomicBool::new(false),
            hold: watch::channel(None).0,
            held: watch::channel(0).0,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&shared)));
        Self {
            url: format!("{credentials}@{address}/{database}"),
            shared,
            _tasks: tasks,
        }
    }

    /// Gives each client that is connected the server connection of the next one, or its own again.
    pub(crate) fn set_swapping(&self, on: bool) {
        self.shared.swap.store(on, Ordering::SeqCst);
    }

    /// Connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.shared.servers.lock().unwrap().len()
    }

    /// From now on holds back the answers to messages that contain `text`.
    pub(crate) fn hold_answers_to(&self, text: &'static str) {
        self.shared.held.send_replace(0);
        self.shared.hold.send_replace(Some(text));
    }

    /// Waits until `count` answers are held back.
    pub(crate) async fn await_held(&self, count: usize) {
        let mut held = self.shared.held.subscribe();
        held.wait_for(|held| *held >= count).await.unwrap();
    }

    /// Passes on the answers that were held back.
    pub(crate) fn release(&self) {
        self.shared.hold.send_replace(None);
    }
}

async fn accept(listener: TcpListener, shared: Arc<PoolerState>) {
    let mut clients = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let shared = Arc::clone(&shared);
        // When either end closes, so does the other.
        clients.spawn(async move {
            let _ended = serve(client, &shared).await;
        });
        while clients.try_join_next().is_some() {}
    }
}

async fn serve(mut client: TcpStream, shared: &PoolerState) -> std::io::Result<()> {
    let startup = loop {
        let mut head = [0; 8];
        client.read_exact(&mut head).await?;
        if u32::from_be_bytes(head[4..].try_into().unwrap()) == SSL_REQUEST {
            client.write_all(b"N").await?;
            continue;
        }
        let length = u32::from_be_bytes(head[..4].try_into().unwrap()) as usize;
        let mut startup = head.to_vec();
        startup.resize(length, 0);
        client.read_exact(&mut startup[8..]).await?;
        break startup;
    };
    let mut server = TcpStream::connect(&shared.address).await?;
    server.write_all(&startup).await?;
    loop {
        let (kind, message) = message(&mut server).await?;
        client.write_all(&message).await?;
        // Authentication that asks for something: neither `ok` nor the end of SCRAM.
        if kind == b'R' && ![0, 12].contains(&u32::from_be_bytes(message[5..9].try_into().unwrap()))
        {
            server
                .write_all(&self::message(&mut client).await?.1)
                .await?;
        }
        match kind {
            b'Z' => break,
            b'E' => return Ok(()),
            _ => {}
        }
    }
    let own = {
        let mut servers = shared.servers.lock().unwrap();
        servers.push(Arc::new(TurnMutex::new(server)));
        servers.len() - 1
    };
    shared.open.lock().unwrap().push(own);
    let ended = exchange(&mut client, shared, own).await;
    shared.open.lock().unwrap().retain(|open| *open != own);
    let server = Arc::clone(&shared.servers.lock().unwrap()[own]);
    server.lock().await.shutdown().await?;
    ended
}

/// Passes on what the client sends up to each Sync or Query, and the answer up to ReadyForQuery.
async fn exchange(client: &mut TcpStream, shared: &PoolerState, own: usize) -> std::io::Result<()> {
    let mut turn: Option<OwnedMutexGuard<TcpStream>> = None;
    loop {
        let mut sent = Vec::new();
        loop {
            let read = message(client).await;
            let Ok((kind, message)) = read else {
                // A transaction that was not ended goes with its connection.
                if let Some(mut server) = turn {
                    server.shutdown().await?;
                }
                return Ok(());
            };
            sent.extend_from_slice(&message);
            if [b'S', b'Q', b'X'].contains(&kind) {
                break;
            }
        }
        let mut server = match turn.take() {
            Some(server) => server,
            None => shared.server(own).lock_owned().await,
        };
        server.write_all(&sent).await?;
        let mut answer = Vec::new();
        let status = loop {
            let (kind, message) = message(&mut server).await?;
            answer.extend_from_slice(&message);
            if kind == b'Z' {
                break message[5];
            }
        };
        let mut hold = shared.hold.subscribe();
        let is_held = hold
            .borrow()
            .is_some_and(|text| contains(&sent, text.as_bytes()));
        if is_held {
            shared.held.send_modify(|held| *held += 1);
            hold.wait_for(Option::is_none).await.unwrap();
        }
        client.write_all(&answer).await?;
        turn = (status != b'I').then_some(server);
    }
}

impl PoolerState {
    fn server(&self, own: usize) -> ServerConnection {
        let servers = self.servers.lock().unwrap();
        let open = self.open.lock().unwrap();
        let place = open.iter().position(|open| *open == own);
        let place = place.filter(|_| self.swap.load(Ordering::SeqCst));
        let next = place.map_or(own, |place| open[(place + 1) % open.len()]);
        Arc::clone(&servers[next])
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// One message: its kind, and all of it.
async fn message(stream: &mut TcpStream) -> std::io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    stream.read_exact(&mut head).await?;
    let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
    let mut message = head.to_vec();
    message.resize(length + 1, 0);
    stream.read_exact(&mut message[5..]).await?;
    Ok((head[0], message))
}
