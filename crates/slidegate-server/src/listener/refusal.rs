//! Refuses a connection in its own protocol, so the client knows how to react.
//!
//! Behind TLS no reply is possible before a handshake, which a full service does not begin.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::socket::{DetachedSocket, Socket};

/// Maximum refused connections kept open so their clients can read the reply. Further ones are
/// closed at once.
pub(super) const MAX_REFUSALS: usize = 32;
const LINGER: Duration = Duration::from_secs(1);
/// Maximum bytes read from a refused client.
const MAX_LINGER: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Refusals(Arc<Semaphore>);

impl Default for Refusals {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_REFUSALS)))
    }
}

impl Refusals {
    /// Sends the refusal and closes the connection.
    pub(super) fn refuse(&self, socket: DetachedSocket, refusal: &[u8]) {
        write_to(&socket, refusal);
        let Ok(permit) = Arc::clone(&self.0).try_acquire_owned() else { return };
        tokio::spawn(async move {
            // A client that has gone needs no reply.
            let _ = match socket.attach() {
                Ok(Socket::Tcp(stream)) => linger(stream, MAX_LINGER).await,
                Ok(Socket::Unix(stream)) => linger(stream, MAX_LINGER).await,
                Err(error) => Err(error),
            };
            drop(permit);
        });
    }
}

/// Writes the refusal without waiting: a new socket's buffer has room for it.
pub(super) fn write_to(socket: &DetachedSocket, refusal: &[u8]) {
    // A client that has gone needs no reply.
    let _ = socket.write(refusal);
}

/// Ends the reply, then reads until the client closes, for at most this many bytes and one second.
/// Closing a socket with unread bytes resets the connection, and the client may lose the reply.
pub(crate) async fn linger(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    max_bytes: usize,
) -> io::Result<()> {
    let rest = async {
        let mut left = max_bytes;
        let mut unread = [0; 1024];
        stream.shutdown().await?;
        while left > 0 {
            match stream.read(&mut unread).await? {
                0 => break,
                read => left = left.saturating_sub(read),
            }
        }
        Ok(())
    };
    timeout(LINGER, rest).await.unwrap_or(Ok(()))
}
