//! Refusing a connection in its own protocol, so that the client knows what to do.
//!
//! Behind TLS nothing can be said before a handshake, which a full service does not begin.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::counters::Refusal;
use super::socket::{DetachedSocket, Socket};

/// Refused connections that are open at once, so that their clients can read why. Further ones are
/// closed at once.
pub(super) const MAX_REFUSALS: usize = 32;
/// How long [`linger`] reads.
const LINGER: Duration = Duration::from_secs(1);
/// Maximum bytes that are read of a refused client.
const MAX_LINGER: usize = 64 * 1024;

const HTTP: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/problem+json\r\n\
    content-length: 116\r\n\
    cache-control: no-store\r\n\
    retry-after: 1\r\n\
    connection: close\r\n\r\n\
    {\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\"detail\":\"too many connections; retry in a second\"}";
/// Redis's own text, which clients know.
const RESP: &[u8] = b"-ERR max number of clients reached\r\n";
/// Empty SETTINGS, and GOAWAY with `ENHANCE_YOUR_CALM`: no stream was processed.
const GRPC: &[u8] = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00\
    \x00\x00\x1c\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0btoo many connections";

/// The connections that are being refused.
#[derive(Debug)]
pub(super) struct Refusals(Arc<Semaphore>);

impl Default for Refusals {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_REFUSALS)))
    }
}

impl Refusals {
    /// Tells the client that it is refused, and closes the connection.
    pub(super) fn refuse(&self, socket: DetachedSocket, refusal: Refusal) {
        refusal.tell(&socket);
        let Ok(permit) = Arc::clone(&self.0).try_acquire_owned() else { return };
        tokio::spawn(async move {
            // A client that is gone needs no reply.
            let _ = match socket.attach() {
                Ok(Socket::Tcp(stream)) => linger(stream, MAX_LINGER).await,
                Ok(Socket::Unix(stream)) => linger(stream, MAX_LINGER).await,
                Err(error) => Err(error),
            };
            drop(permit);
        });
    }
}

impl Refusal {
    /// Writes the refusal, without waiting: the buffer of a new socket has room for it.
    pub(super) fn tell(self, socket: &DetachedSocket) {
        let text = match self {
            Self::Http => HTTP,
            Self::Resp => RESP,
            Self::Grpc => GRPC,
        };
        // A client that is gone needs no reply.
        let _ = socket.write(text);
    }
}

/// Ends the reply and reads until the client closes, at most this many bytes and for a second.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that misreads the refusal reports a protocol error instead.
    #[test]
    fn the_lengths_of_the_refusals_are_right() {
        let text = std::str::from_utf8(HTTP).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("\r\ncontent-length: {}\r\n", body.len())), "{}", body.len());
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["status"], 503);
        // The 9 bytes of a frame's head do not count.
        assert_eq!(usize::from(GRPC[11]), GRPC.len() - 9 - 9);
    }
}
