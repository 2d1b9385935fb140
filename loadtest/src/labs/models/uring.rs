//! `io_uring` by compio: a runtime of one thread for each core, whose kernel reads into buffers that it is given.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use compio::BufResult;
use compio::io::{AsyncRead, AsyncWriteExt};
use compio::net::TcpStream;
use compio::runtime::{Runtime, spawn};

use crate::labs::models::request::{Answer, Conversation, READ_BYTES};

/// Serves for ever by one thread.
pub(super) fn serve(listener: TcpListener, answer: &Arc<Answer>) -> anyhow::Result<()> {
    Runtime::new()?.block_on(async {
        let listener = compio::net::TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            spawn(converse(stream, Arc::clone(answer))).detach();
        }
    })
}

/// Answers until the connection ends.
async fn converse(mut stream: TcpStream, answer: Arc<Answer>) -> io::Result<()> {
    let mut conversation = Conversation::default();
    let (mut input, mut output) = (Vec::with_capacity(READ_BYTES), Vec::<u8>::new());
    while !conversation.is_over {
        let BufResult(read, bytes) = stream.read(input).await;
        let read = read?;
        if read == 0 {
            break;
        }
        // A short read leaves the end of a longer one in place.
        conversation.advance(&bytes[..read], &answer, &mut output);
        let BufResult(written, sent) = stream.write_all(output).await;
        written?;
        (input, output) = (bytes, sent);
    }
    stream.close().await
}
