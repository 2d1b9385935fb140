//! The practical limit: what this machine can do for one document over HTTP/1.1 where nothing is computed.
//!
//! One thread, epoll, ready-made bytes: every request is answered with the same response, whatever it asks for. It
//! reads no head, it only finds where each ends, so it takes requests without bodies, and it leaves closing to the
//! client.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;

use anyhow::Context;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

/// What is read at once. A read that fills less has emptied the socket, so no second one is needed to learn that.
const READ_BYTES: usize = 64 * 1024;
/// Pipelined requests are answered by one write up to so many responses.
const COPIES: usize = 64;
const EVENTS: usize = 1024;
const LISTENER: Token = Token(usize::MAX);

/// Answers every request with `response`, head and body, for ever.
pub(crate) fn serve(mut listener: TcpListener, response: &[u8]) -> anyhow::Result<()> {
    let copies = ResponseCopies {
        copies: response.repeat(COPIES),
        length: response.len(),
    };
    let mut poll = Poll::new()?;
    let registry = poll.registry();
    registry.register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut events = Events::with_capacity(EVENTS);
    let mut buffer = vec![0; READ_BYTES];
    let mut connections: Vec<Option<LimitConnection>> = Vec::new();
    let mut vacant = Vec::new();
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            waited => waited?,
        }
        for event in &events {
            if event.token() == LISTENER {
                while let Some(mut stream) = accept(&listener)? {
                    let place = vacant.pop().unwrap_or_else(|| {
                        connections.push(None);
                        connections.len() - 1
                    });
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    poll.registry()
                        .register(&mut stream, Token(place), interest)?;
                    connections[place] = Some(LimitConnection::new(stream));
                }
                continue;
            }
            let place = event.token().0;
            if let Some(connection) = &mut connections[place] {
                connection.unread |= event.is_readable();
                if connection.advance(&copies, &mut buffer).is_err() {
                    connections[place] = None;
                    vacant.push(place);
                }
            }
        }
    }
}

/// Serves on `address`, as a process of its own.
pub(crate) fn run(address: SocketAddr, response: &[u8]) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("{address}"))?;
    serve(listener, response)
}

/// The next connection; none where no client waits.
fn accept(listener: &TcpListener) -> std::io::Result<Option<TcpStream>> {
    match listener.accept() {
        Ok((stream, _)) => {
            stream.set_nodelay(true)?;
            Ok(Some(stream))
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// The response, many times.
struct ResponseCopies {
    copies: Vec<u8>,
    /// Of one.
    length: usize,
}

struct LimitConnection {
    stream: TcpStream,
    /// How much of the empty line that ends a head has been seen.
    seen: HeadEnd,
    /// Bytes of responses that are still to be sent; the first of them is this far into a response.
    owed: usize,
    offset: usize,
    /// There may be something to read.
    unread: bool,
}

/// How much of `\r\n\r\n` has been seen.
#[derive(Clone, Copy)]
enum HeadEnd {
    Nothing,
    Return,
    Line,
    LineReturn,
}

impl LimitConnection {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            seen: HeadEnd::Nothing,
            owed: 0,
            offset: 0,
            unread: true,
        }
    }

    /// Sends what is owed, then reads, until one of them would have to wait. An error ends the connection.
    fn advance(&mut self, copies: &ResponseCopies, buffer: &mut [u8]) -> std::io::Result<()> {
        loop {
            while self.owed > 0 {
                let end = copies.copies.len().min(self.offset + self.owed);
                match self.stream.write(&copies.copies[self.offset..end]) {
                    Ok(sent) => {
                        self.owed -= sent;
                        self.offset = (self.offset + sent) % copies.length;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
            if !self.unread {
                return Ok(());
            }
            match self.stream.read(buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    self.unread = read == buffer.len();
                    self.owed += self.ends(&buffer[..read]) * copies.length;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.unread = false,
                Err(error) => return Err(error),
            }
        }
    }

    /// How many heads end in `bytes`.
    fn ends(&mut self, bytes: &[u8]) -> usize {
        let mut count = 0;
        for byte in bytes {
            self.seen = match (self.seen, byte) {
                (HeadEnd::Line, b'\r') => HeadEnd::LineReturn,
                (_, b'\r') => HeadEnd::Return,
                (HeadEnd::Return, b'\n') => HeadEnd::Line,
                (HeadEnd::LineReturn, b'\n') => {
                    count += 1;
                    HeadEnd::Nothing
                }
                _ => HeadEnd::Nothing,
            };
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream as Client;
    use std::time::Duration;

    use super::*;

    const REQUEST: &[u8] = b"GET /depts/42 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc";

    /// A server for the rest of the test, and a client of it that waits for no answer for ever.
    fn client() -> Client {
        let listener = TcpListener::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(listener, RESPONSE));
        let client = Client::connect(address).unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        client
    }

    /// Reads so many responses, and that nothing else has been sent.
    fn expect(client: &mut Client, count: usize) {
        let mut bytes = vec![0; count * RESPONSE.len()];
        client.read_exact(&mut bytes).unwrap();
        assert!(bytes.chunks(RESPONSE.len()).all(|chunk| chunk == RESPONSE));
        client.set_nonblocking(true).unwrap();
        let more = client.read(&mut [0]).unwrap_err();
        assert_eq!(more.kind(), ErrorKind::WouldBlock);
        client.set_nonblocking(false).unwrap();
    }

    #[test]
    fn a_connection_is_kept_for_the_next_request() {
        let mut client = client();
        for _ in 0..3 {
            client.write_all(REQUEST).unwrap();
            expect(&mut client, 1);
        }
    }

    #[test]
    fn pipelined_requests_are_each_answered() {
        let mut client = client();
        for count in [16, COPIES - 1, COPIES, COPIES + 1, 5 * COPIES] {
            client.write_all(&REQUEST.repeat(count)).unwrap();
            expect(&mut client, count);
        }
    }

    #[test]
    fn a_request_may_come_in_pieces() {
        let mut client = client();
        for at in 1..REQUEST.len() {
            client.write_all(&REQUEST[..at]).unwrap();
            client.write_all(&REQUEST[at..]).unwrap();
            expect(&mut client, 1);
        }
        for byte in REQUEST {
            client.write_all(&[*byte]).unwrap();
        }
        expect(&mut client, 1);
    }

    #[test]
    fn who_does_not_read_is_answered_later_and_hinders_nobody() {
        const COUNT: usize = 1_000_000;
        let mut greedy = client();
        let mut sender = greedy.try_clone().unwrap();
        let sending = std::thread::spawn(move || sender.write_all(&REQUEST.repeat(COUNT)));
        let mut other = Client::connect(greedy.peer_addr().unwrap()).unwrap();
        other.write_all(REQUEST).unwrap();
        expect(&mut other, 1);
        expect(&mut greedy, COUNT);
        sending.join().unwrap().unwrap();
    }
}
