//! Bound sockets: TCP with bounded buffers, and Unix sockets with a file mode.
//!
//! A TCP address may have one socket per accept loop: the kernel spreads new connections among them
//! and wakes one loop per connection.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{net, os::unix::net as unix};

use socket2::{Domain, Protocol, SockRef, Socket as RawSocket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Send buffer of a connection; Linux doubles it for overhead. Without a bound it grows to 4 MB for
/// a client that does not read.
const SEND_BUFFER: usize = 128 * 1024;
/// Receive buffer of a connection, doubled as well. Requests are small; excess bytes wait on the
/// client's side.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// Maximum connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Probes detect a vanished peer after this time; the connection closes some minutes later.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A bound address.
#[derive(Debug)]
pub(crate) enum BoundSocket {
    /// The sockets of one address, at least one.
    Tcp(Vec<net::TcpListener>),
    Unix(UnixSocket),
}

/// One socket of an address, not yet part of a runtime.
#[derive(Debug)]
pub(super) enum SingleSocket {
    Tcp(net::TcpListener),
    Unix(UnixSocket),
}

/// A listening socket on a runtime.
#[derive(Debug)]
pub(super) enum ListeningSocket {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _path: SocketPath },
}

/// Path and mode of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SocketFile {
    pub(crate) path: PathBuf,
    /// Permissions of the file. Clients need write permission.
    pub(crate) mode: u32,
}

impl SocketFile {
    /// Default permissions: the file's owner and group may connect.
    pub(crate) const DEFAULT_MODE: u32 = 0o660;
}

/// A bound Unix socket. Its file is removed on drop.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    listener: unix::UnixListener,
    path: SocketPath,
}

/// The file of a bound Unix socket.
#[derive(Debug)]
pub(super) struct SocketPath(PathBuf);

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl BoundSocket {
    /// Binds an address with up to `count` sockets. `option` is the flag or variable that selects
    /// another address.
    ///
    /// # Errors
    /// One line: the address cannot be bound.
    pub(crate) fn tcp(address: SocketAddr, count: usize, option: &str) -> Result<Self, String> {
        bind_tcp(address, count)
            .map(Self::Tcp)
            .map_err(|error| format!("cannot listen on {address}: {error}; choose another {option}"))
    }

    /// Binds a Unix socket and replaces one left behind by a dead process. `section` is the config
    /// section that selects another path.
    ///
    /// # Errors
    /// One line: the path cannot be bound.
    pub(crate) fn unix(file: &SocketFile, section: &str) -> Result<Self, String> {
        let SocketFile { path, mode } = file;
        bind_unix(path, *mode).map(Self::Unix).map_err(|error| {
            format!(
                "cannot listen on {}: {error}; choose another path with `{section}: {{socket: ...}}`",
                path.display()
            )
        })
    }

    /// Binds the TCP address, with up to `count` sockets, and a section's Unix socket, as
    /// configured. `option` selects another address.
    ///
    /// # Errors
    /// One line: one of them cannot be bound.
    pub(crate) fn bind(
        listen: Option<SocketAddr>,
        file: Option<&SocketFile>,
        count: usize,
        (section, option): (&str, &str),
    ) -> Result<Vec<Self>, String> {
        let tcp = listen.map(|listen| Self::tcp(listen, count, option));
        tcp.into_iter().chain(file.map(|file| Self::unix(file, section))).collect()
    }

    /// The address. `None` on a Unix socket.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listeners) => listeners.first()?.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    /// The address as text: `127.0.0.1:7979`, or `unix:` and a path.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Tcp(_) => self.address().map_or_else(String::new, |address| address.to_string()),
            Self::Unix(socket) => format!("unix:{}", socket.path.0.display()),
        }
    }

    pub(super) fn into_sockets(self) -> Vec<SingleSocket> {
        match self {
            Self::Tcp(listeners) => listeners.into_iter().map(SingleSocket::Tcp).collect(),
            Self::Unix(socket) => vec![SingleSocket::Unix(socket)],
        }
    }
}

impl SingleSocket {
    /// Registers it with this thread's runtime.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn listen(self) -> io::Result<ListeningSocket> {
        Ok(match self {
            Self::Tcp(listener) => ListeningSocket::Tcp(TcpListener::from_std(listener)?),
            Self::Unix(UnixSocket { listener, path }) => {
                ListeningSocket::Unix { listener: UnixListener::from_std(listener)?, _path: path }
            }
        })
    }
}

impl ListeningSocket {
    pub(super) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Socket, Option<SocketAddr>)>> {
        match self {
            Self::Tcp(listener) => {
                listener.poll_accept(cx).map_ok(|(stream, peer)| (Socket::Tcp(stream), Some(peer)))
            }
            Self::Unix { listener, .. } => {
                listener.poll_accept(cx).map_ok(|(stream, _)| (Socket::Unix(stream), None))
            }
        }
    }
}

/// An accepted socket of either kind.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A socket outside any runtime, for example on its way to another thread.
#[derive(Debug)]
pub(super) enum DetachedSocket {
    Tcp(net::TcpStream),
    Unix(unix::UnixStream),
}

impl Socket {
    /// Removes it from this thread's runtime.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn detach(self) -> io::Result<DetachedSocket> {
        Ok(match self {
            Self::Tcp(stream) => DetachedSocket::Tcp(stream.into_std()?),
            Self::Unix(stream) => DetachedSocket::Unix(stream.into_std()?),
        })
    }
}

impl DetachedSocket {
    /// Registers it with this thread's runtime.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn attach(self) -> io::Result<Socket> {
        Ok(match self {
            Self::Tcp(stream) => Socket::Tcp(TcpStream::from_std(stream)?),
            Self::Unix(stream) => Socket::Unix(UnixStream::from_std(stream)?),
        })
    }

    /// Writes as much as fits the send buffer.
    ///
    /// # Errors
    /// The buffer is full, or the client has disconnected.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).write(bytes),
            Self::Unix(stream) => (&*stream).write(bytes),
        }
    }
}

/// Binds up to `count` sockets to an address. Other processes cannot bind it, unless they belong to
/// the same user and share ports themselves (`SO_REUSEPORT`).
fn bind_tcp(address: SocketAddr, count: usize) -> io::Result<Vec<net::TcpListener>> {
    let first = new_tcp(address)?;
    // Without `SO_REUSEPORT`, this fails if another process uses the port.
    first.bind(&address.into())?;
    first.listen(BACKLOG)?;
    let mut sockets = vec![first];
    // Other systems do not distribute connections among an address's sockets.
    if cfg!(target_os = "linux") && count > 1 {
        sockets[0].set_reuse_port(true)?;
        // The chosen port, if the address has port 0.
        let bound = sockets[0].local_addr()?;
        for _ in 1..count {
            let socket = new_tcp(address)?;
            socket.set_reuse_port(true)?;
            socket.bind(&bound)?;
            socket.listen(BACKLOG)?;
            sockets.push(socket);
        }
    }
    Ok(sockets.into_iter().map(net::TcpListener::from).collect())
}

/// Accepted sockets inherit the listening socket's options.
fn new_tcp(address: SocketAddr) -> io::Result<RawSocket> {
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    // Replies are written whole; Nagle's algorithm would only delay them.
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn bind_unix(path: &Path, mode: u32) -> io::Result<UnixSocket> {
    let is_socket = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket {
        if unix::UnixStream::connect(path).is_ok() {
            return Err(io::Error::other("another process listens there"));
        }
        std::fs::remove_file(path)?;
    }
    let listener = unix::UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    let socket = UnixSocket { listener, path: SocketPath(path.to_owned()) };
    SockRef::from(&socket.listener).set_send_buffer_size(SEND_BUFFER)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(socket)
}
