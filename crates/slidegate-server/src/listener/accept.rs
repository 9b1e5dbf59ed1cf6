//! The accept loop of every port. It never stops accepting: connections over the budget are
//! refused.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::io::Errno;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;

use super::budget::ConnectionBudget;
use super::certificates::Certificates;
use super::counters::{ConnectionSpec, ProtocolConnections};
use super::reasons::RefusalReason;
use super::refusal;
use super::socket::{BoundSocket, ListeningSocket, SingleSocket, Socket};
use super::stream::TrackedStream;
use crate::log_limit::log_limited;

/// Pause after a failed accept that the service cannot resolve, such as a lack of memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Admission to one protocol, shared by its accept loops.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Certificates of the TCP sockets.
    certificates: Option<Arc<Certificates>>,
    /// Hot-reloads the certificates.
    reload: Option<JoinHandle<()>>,
    budget: Arc<ConnectionBudget>,
    pub(crate) connections: Arc<ProtocolConnections>,
    /// Whether the TCP sockets are on loopback.
    is_local: bool,
}

/// An accept loop. Dropping it closes its sockets.
#[derive(Debug)]
pub(crate) struct Acceptor {
    sockets: Vec<ListeningSocket>,
    admission: Arc<Admission>,
    /// The next socket to poll, in turn.
    next: usize,
}

/// A connection's client, for access control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connection {
    /// `None` on a Unix socket.
    pub(crate) peer: Option<IpAddr>,
    /// The user of the connected process, on a Unix socket.
    pub(crate) user: Option<u32>,
    /// Whether the listener is on loopback or a Unix socket.
    pub(crate) is_local: bool,
    /// Whether the client authenticated, by a certificate or the RESP password.
    pub(crate) is_verified: bool,
}

/// An accepted connection.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) stream: TrackedStream,
    /// `None` on a Unix socket.
    pub(crate) peer: Option<SocketAddr>,
    /// Valid once the TLS handshake, if any, has succeeded.
    pub(crate) connection: Connection,
    /// `None`: no TLS.
    pub(crate) certificates: Option<Arc<Certificates>>,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.reload.take().inspect(JoinHandle::abort);
    }
}

impl Acceptor {
    /// An accept loop over these sockets, on this runtime.
    ///
    /// # Errors
    /// The system cannot watch the sockets.
    pub(crate) fn over(sockets: Vec<BoundSocket>, admission: &Arc<Admission>) -> io::Result<Self> {
        Self::new(sockets.into_iter().flat_map(BoundSocket::into_sockets), admission)
    }

    /// # Errors
    /// The system cannot watch the sockets.
    pub(super) fn new(
        sockets: impl IntoIterator<Item = SingleSocket>,
        admission: &Arc<Admission>,
    ) -> io::Result<Self> {
        let sockets = sockets.into_iter().map(SingleSocket::listen).collect::<io::Result<_>>()?;
        Ok(Self { sockets, admission: Arc::clone(admission), next: 0 })
    }

    /// The next admitted connection. Refuses others meanwhile. Cancel-safe.
    pub(crate) async fn accept(&mut self) -> Accepted {
        loop {
            match self.next_socket().await {
                Ok((socket, peer)) => {
                    self.admission.budget.descriptors.keep_spare();
                    if let Some(stream) = self.admission.admit(socket, peer) {
                        return self.admission.accepted(stream, peer);
                    }
                }
                Err(error) if has_no_descriptor(&error) && self.relieve() => {
                    log_limited!(WARN, None, %error, "no file descriptor for a connection: refused it");
                    // Meanwhile the closed connection's descriptor becomes free.
                    yield_now().await;
                }
                Err(error) => {
                    log_limited!(WARN, None, %error, "failed to accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn next_socket(&mut self) -> io::Result<(Socket, Option<SocketAddr>)> {
        poll_fn(|cx| {
            for turn in 0..self.sockets.len() {
                let at = (self.next + turn) % self.sockets.len();
                if let Poll::Ready(accepted) = self.sockets[at].poll_accept(cx) {
                    self.next = at + 1;
                    return Poll::Ready(accepted);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Without file descriptors: ends the longest-idle connection and refuses a waiting one, so
    /// that the loop does not spin. Returns whether it could.
    fn relieve(&self) -> bool {
        let Admission { budget, connections, .. } = &*self.admission;
        budget.shed();
        let mut has_refused = false;
        budget.descriptors.with_spare(|| {
            let mut cx = Context::from_waker(Waker::noop());
            let accepted = self.sockets.iter().find_map(|socket| match socket.poll_accept(&mut cx) {
                Poll::Ready(Ok((socket, _))) => Some(socket),
                _ => None,
            });
            if let Some(socket) = accepted {
                has_refused = true;
                connections.refused(RefusalReason::Descriptors);
                let refusal = self.admission.refusal(&socket);
                // Closed at once: the spare descriptor is needed again.
                if let (Some(refusal), Ok(socket)) = (refusal, socket.detach()) {
                    refusal::write_to(&socket, refusal);
                }
            }
        });
        has_refused
    }
}

impl Admission {
    /// `certificates` are for the TCP sockets. They are hot-reloaded on this runtime.
    pub(crate) fn new(
        sockets: &[BoundSocket],
        certificates: Option<Arc<Certificates>>,
        budget: &Arc<ConnectionBudget>,
        spec: ConnectionSpec,
    ) -> Arc<Self> {
        let connections = budget.protocol(spec);
        let reload = certificates.clone().map(|certificates| tokio::spawn(certificates.watch()));
        let mut addresses = sockets.iter().filter_map(BoundSocket::address);
        let is_local = addresses.all(|address| address.ip().is_loopback());
        Arc::new(Self { certificates, reload, budget: Arc::clone(budget), connections, is_local })
    }

    fn accepted(&self, stream: TrackedStream, peer: Option<SocketAddr>) -> Accepted {
        let certificates = self.certificates.clone().filter(|_| peer.is_some());
        let connection = Connection {
            peer: peer.map(|peer| peer.ip()),
            user: stream.user(),
            is_local: self.is_local || peer.is_none(),
            is_verified: certificates.as_ref().is_some_and(|certificates| certificates.verifies_clients()),
        };
        Accepted { stream, peer, connection, certificates }
    }

    /// The connection's stream; `None` if it was refused.
    fn admit(&self, socket: Socket, peer: Option<SocketAddr>) -> Option<TrackedStream> {
        let ip = peer.map(|peer| peer.ip());
        match self.budget.admit(&self.connections, ip) {
            Ok(slot) => Some(TrackedStream::new(socket, Arc::new(slot))),
            Err(reason) => {
                self.refuse(socket, reason);
                let (protocol, reason) = (self.connections.protocol, reason.name());
                log_limited!(
                    WARN,
                    ip,
                    protocol,
                    reason,
                    peer = ip.map(tracing::field::display),
                    "refused a connection: too many are open and in use"
                );
                None
            }
        }
    }

    fn refuse(&self, socket: Socket, reason: RefusalReason) {
        self.connections.refused(reason);
        let refusal = self.refusal(&socket);
        // The runtime does not yet know that the socket is writable.
        if let (Some(refusal), Ok(socket)) = (refusal, socket.detach()) {
            self.budget.refusals.refuse(socket, refusal);
        }
    }

    /// The refusal for this socket's client. None before a TLS handshake.
    fn refusal(&self, socket: &Socket) -> Option<&'static [u8]> {
        let is_encrypted = self.certificates.is_some() && matches!(socket, Socket::Tcp(_));
        (!is_encrypted).then_some(self.connections.refusal)
    }
}

/// Whether the process or the system has no file descriptor left.
fn has_no_descriptor(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| code == Some(errno.raw_os_error()))
}
