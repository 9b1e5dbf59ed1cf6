//! Notifications to systemd or another service manager that supports `sd_notify(3)`.
//!
//! A notification is one datagram to the Unix socket in `NOTIFY_SOCKET`. Not by the crate
//! `sd-notify`: it does not support abstract socket names, which containers use, and its sends may
//! block.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::log_limit::log_limited;

/// Maximum bytes of a status. `systemctl status` shows one line.
const MAX_STATUS_BYTES: usize = 512;

/// The service manager that started the process, if any.
#[derive(Debug, Clone)]
pub(crate) struct ServiceManager {
    socket: Option<OsString>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The service manager named by the environment.
    pub(crate) fn of_environment() -> Self {
        let variable = |name| std::env::var(name).ok();
        // `WATCHDOG_PID` is another process if a wrapper started this one.
        let is_watched = variable("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let watchdog = variable("WATCHDOG_USEC").filter(|_| is_watched);
        Self {
            socket: std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()),
            watchdog: watchdog.and_then(|us| us.parse().ok()).filter(|us| *us > 0).map(Duration::from_micros),
        }
    }

    /// Whether there is a service manager.
    pub(crate) fn is_present(&self) -> bool {
        self.socket.is_some()
    }

    /// Interval at which to call [`alive`](Self::alive): half of the watchdog's timeout. `None`
    /// without a watchdog.
    pub(crate) fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog.map(|timeout| timeout / 2)
    }

    /// Reports that listeners are bound and the config is active. Also ends a reload.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\n{}", line(status)));
    }

    /// Reports a new status text.
    pub(crate) fn status(&self, status: &str) {
        self.send(&line(status));
    }

    /// Reports a reload; [`ready`](Self::ready) follows, whatever the outcome.
    pub(crate) fn reloading(&self) {
        self.send("RELOADING=1\n");
    }

    /// Reports the shutdown, which may take `longest`.
    pub(crate) fn stopping(&self, longest: Duration, status: &str) {
        self.send(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}\n{}", longest.as_micros(), line(status)));
    }

    /// Reports a passed self-check.
    pub(crate) fn alive(&self) {
        self.send("WATCHDOG=1\n");
    }

    /// Sends a message. Failures are logged: the service works without its manager.
    fn send(&self, message: &str) {
        let Some(socket) = &self.socket else { return };
        if let Err(error) = send(socket.as_bytes(), message.as_bytes()) {
            log_limited!(WARN, None, socket = %socket.display(), %error, "cannot notify the service manager");
        }
    }
}

/// Formats a status for a message. A line end would begin another assignment.
fn line(status: &str) -> String {
    let mut end = status.len().min(MAX_STATUS_BYTES);
    while !status.is_char_boundary(end) {
        end -= 1;
    }
    format!("STATUS={}\n", status[..end].replace(['\n', '\r'], " "))
}

/// Connects for each message: the manager may have restarted.
fn send(name: &[u8], message: &[u8]) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(message, &address(name)?)?;
    Ok(())
}

/// The address of a path, or of an abstract name, which begins with `@`.
fn address(name: &[u8]) -> io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    if let Some(name) = name.strip_prefix(b"@") {
        use std::os::linux::net::SocketAddrExt;
        return SocketAddr::from_abstract_name(name);
    }
    SocketAddr::from_pathname(OsStr::from_bytes(name))
}
