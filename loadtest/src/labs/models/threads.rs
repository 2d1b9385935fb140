//! A thread for each connection: reading and writing block the thread.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use crate::labs::models::model::REFUSED;
use crate::labs::models::request::{Answer, Conversation, READ_BYTES};

/// A connection whose socket blocks.
pub(super) struct BlockingConnection {
    pub(super) stream: TcpStream,
    conversation: Conversation,
}

impl BlockingConnection {
    pub(super) fn accept(listener: &TcpListener) -> std::io::Result<Self> {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            conversation: Conversation::default(),
        })
    }

    /// Reads once and answers the requests that end there; returns whether the connection stays open.
    ///
    /// Waits until the client has sent something, and until it has taken the answers.
    pub(super) fn step(&mut self, answer: &Answer, input: &mut [u8], output: &mut Vec<u8>) -> bool {
        let read = self.stream.read(input).unwrap_or(0);
        self.conversation.advance(&input[..read], answer, output);
        read > 0 && self.stream.write_all(output).is_ok() && !self.conversation.is_over
    }
}

/// Serves each connection by a thread of its own, for ever.
///
/// While `threads_max` of them run, another connection waits in the backlog if it `may_wait`, or is closed and counted.
pub(super) fn serve(
    listener: &TcpListener,
    answer: &Arc<Answer>,
    threads_max: usize,
    may_wait: bool,
) -> anyhow::Result<()> {
    // Each thread holds one more.
    let running = Arc::new(());
    let is_full = || Arc::strong_count(&running) > threads_max;
    loop {
        while may_wait && is_full() {
            thread::park();
        }
        let mut connection = BlockingConnection::accept(listener)?;
        let is_refused = is_full();
        let (answer, held) = (Arc::clone(answer), Arc::clone(&running));
        let acceptor = thread::current();
        let converse = move || {
            let (mut input, mut output) = (vec![0; READ_BYTES], Vec::new());
            while connection.step(&answer, &mut input, &mut output) {}
            drop(held);
            acceptor.unpark();
        };
        // A thread that can't be started drops its connection, too.
        if is_refused || thread::Builder::new().spawn(converse).is_err() {
            REFUSED.fetch_add(1, Ordering::Relaxed);
        }
    }
}
