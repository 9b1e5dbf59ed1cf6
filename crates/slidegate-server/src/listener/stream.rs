//! A connection's socket: records activity and fails once the connection must close.
//!
//! Below TLS and every protocol, only this layer sees that a client does not read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::budget::Slot;
use super::reasons::CloseReason;
use super::socket::{DetachedSocket, Socket};

/// An accepted connection.
#[derive(Debug)]
pub(crate) struct TrackedStream {
    socket: Socket,
    slot: Arc<Slot>,
}

impl TrackedStream {
    pub(super) fn new(socket: Socket, slot: Arc<Slot>) -> Self {
        Self { socket, slot }
    }

    /// The connection's place in the budget, freed once all clones are dropped.
    pub(crate) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// The user of the connected process, on a Unix socket.
    pub(super) fn user(&self) -> Option<u32> {
        match &self.socket {
            Socket::Tcp(_) => None,
            Socket::Unix(stream) => Some(stream.peer_cred().ok()?.uid()),
        }
    }

    /// Removes the socket from this thread's runtime, to move it to another.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn detach(self) -> io::Result<(DetachedSocket, Arc<Slot>)> {
        Ok((self.socket.detach()?, self.slot))
    }

    /// Waits for room until the next poll; fails if the connection must close.
    fn pending(&self, cx: &Context<'_>) -> Poll<io::Error> {
        let entry = &self.slot.entry;
        entry.waker.register(cx.waker());
        match entry.closing() {
            None => Poll::Pending,
            Some(reason) => Poll::Ready(closed(reason)),
        }
    }

    fn written(&self, cx: &Context<'_>, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &polled {
            Poll::Ready(Ok(bytes)) if *bytes > 0 => self.slot.sent(),
            Poll::Ready(_) => {}
            Poll::Pending => {
                self.slot.blocked();
                return self.pending(cx).map(Err);
            }
        }
        polled
    }
}

/// The error of a connection closed by the service.
fn closed(reason: CloseReason) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("closed: {}", reason.name()))
}

impl AsyncRead for TrackedStream {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = match &mut this.socket {
            Socket::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Socket::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        };
        match &polled {
            Poll::Ready(_) if buffer.filled().len() > before => this.slot.received(),
            Poll::Ready(_) => {}
            Poll::Pending => return this.pending(cx).map(Err),
        }
        polled
    }
}

impl AsyncWrite for TrackedStream {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = match &mut this.socket {
            Socket::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Socket::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        };
        this.written(cx, polled)
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = match &mut this.socket {
            Socket::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Socket::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        };
        this.written(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Socket::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
