//! Bound sockets: TCP with bounded buffers, and Unix sockets with a file mode.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket as RawSocket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Send buffer of a connection; Linux doubles it for its own overhead. Without a bound it grows to
/// 4 MB for a client that does not read.
const SEND_BUFFER: usize = 128 * 1024;
/// Receive buffer of a connection, doubled as well. Requests are small; what a client sends beyond
/// it waits on the client's side.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// A peer that vanished is noticed by probes after this time, and closed after some minutes.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A socket that accepts connections.
#[derive(Debug)]
pub(crate) enum BoundSocket {
    Tcp(TcpListener),
    Unix(UnixSocket),
}

/// Where a Unix socket is to be bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SocketFile {
    pub(crate) path: PathBuf,
    /// Permissions of the file. Clients need write permission.
    pub(crate) mode: u32,
}

impl SocketFile {
    /// The default permissions: the owner and the group of the file may connect.
    pub(crate) const DEFAULT_MODE: u32 = 0o660;
}

/// A bound Unix socket, whose file is removed on drop.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl BoundSocket {
    /// Binds an address. `option` is the flag or variable that selects another address.
    ///
    /// # Errors
    /// One line: the address cannot be bound.
    pub(crate) fn tcp(address: SocketAddr, option: &str) -> Result<Self, String> {
        bind_tcp(address)
            .map(Self::Tcp)
            .map_err(|error| format!("cannot listen on {address}: {error}; choose another {option}"))
    }

    /// Binds a Unix socket, and replaces one that a dead process left behind. `section` is the one
    /// of the config that selects another path.
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

    /// Binds the TCP address and the Unix socket of a section, as far as they are configured.
    /// `option` selects another address.
    ///
    /// # Errors
    /// One line: one of them cannot be bound.
    pub(crate) fn bind(
        listen: Option<SocketAddr>,
        file: Option<&SocketFile>,
        (section, option): (&str, &str),
    ) -> Result<Vec<Self>, String> {
        let tcp = listen.map(|listen| Self::tcp(listen, option));
        tcp.into_iter().chain(file.map(|file| Self::unix(file, section))).collect()
    }

    /// Its address. `None` on a Unix socket.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    /// Its address as text: `127.0.0.1:7979`, or `unix:` and a path.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Tcp(_) => self.address().map_or_else(String::new, |address| address.to_string()),
            Self::Unix(socket) => format!("unix:{}", socket.path.display()),
        }
    }

    pub(super) fn poll_accept(
        &self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<(Socket, Option<SocketAddr>)>> {
        match self {
            Self::Tcp(listener) => {
                listener.poll_accept(cx).map_ok(|(stream, peer)| (Socket::Tcp(stream), Some(peer)))
            }
            Self::Unix(socket) => {
                socket.listener.poll_accept(cx).map_ok(|(stream, _)| (Socket::Unix(stream), None))
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

/// Accepted sockets inherit the options of the socket that listens.
fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn bind_unix(path: &Path, mode: u32) -> io::Result<UnixSocket> {
    let is_socket = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::Error::other("another process listens there"));
        }
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    let socket = UnixSocket { listener, path: path.to_owned() };
    SockRef::from(&socket.listener).set_send_buffer_size(SEND_BUFFER)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(socket)
}
