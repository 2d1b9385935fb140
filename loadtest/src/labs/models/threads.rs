//! A thread for each connection, with a pool of threads or without: reading and writing block the thread.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use crate::labs::models::request::{Answer, Conversation, READ_BYTES};

/// Threads of a pool, as in the original experiment.
pub(crate) const POOL_THREADS: usize = 20;

/// A connection whose socket blocks.
pub(super) struct BlockingConnection {
    pub(super) stream: TcpStream,
    conversation: Conversation,
}

impl BlockingConnection {
    pub(super) fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            conversation: Conversation::default(),
        })
    }

    /// Reads once and answers the requests that end there; returns whether the connection stays open.
    ///
    /// Waits until the client has sent something, and until it has taken the answers.
    pub(super) fn advance(
        &mut self,
        answer: &Answer,
        input: &mut [u8],
        output: &mut Vec<u8>,
    ) -> bool {
        let read = self.stream.read(input).unwrap_or(0);
        output.clear();
        self.conversation.advance(&input[..read], answer, output);
        read > 0 && self.stream.write_all(output).is_ok() && !self.conversation.is_over
    }

    /// Answers until the connection ends.
    fn serve(mut self, answer: &Answer) {
        let (mut input, mut output) = (vec![0; READ_BYTES], Vec::new());
        while self.advance(answer, &mut input, &mut output) {}
    }
}

/// Serves one connection after the other, as a thread of a pool: what finds no thread waits in the backlog.
pub(super) fn one_by_one(listener: &TcpListener, answer: &Answer) -> anyhow::Result<()> {
    loop {
        BlockingConnection::new(listener.accept()?.0)?.serve(answer);
    }
}

/// Serves each connection by a thread of its own; closes what comes while `threads_max` of them run, and counts it.
pub(super) fn per_connection(
    listener: &TcpListener,
    answer: &Arc<Answer>,
    threads_max: usize,
    refused: &AtomicU64,
) -> anyhow::Result<()> {
    let running = Arc::new(AtomicUsize::new(0));
    loop {
        let connection = BlockingConnection::new(listener.accept()?.0)?;
        let (answer, running_too) = (Arc::clone(answer), Arc::clone(&running));
        let serve = move || {
            connection.serve(&answer);
            running_too.fetch_sub(1, Ordering::Relaxed);
        };
        let is_full = running.fetch_add(1, Ordering::Relaxed) >= threads_max;
        // A thread that can't be started drops its connection, too.
        if is_full || thread::Builder::new().spawn(serve).is_err() {
            running.fetch_sub(1, Ordering::Relaxed);
            refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}
