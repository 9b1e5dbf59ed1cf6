//! Free ports of 127.0.0.1.
//!
//! Below the range of ephemeral ports: otherwise a client that connects to a stopped server's port
//! could get that port itself, connect to itself, and prevent the server from binding it again.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// The range; `net.ipv4.ip_local_port_range` begins at 32768 on Linux and higher elsewhere.
const FIRST: u32 = 16_384;
const COUNT: u32 = 32_768 - FIRST;

/// Ports tried by this process so far. None is returned twice before all have been.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// A port without a listener. Another process may take it before it is used: whoever binds it must
/// be able to try another.
pub fn free() -> u16 {
    port_of(&listener())
}

/// A free port, already bound.
pub fn listener() -> TcpListener {
    // Two concurrent test binaries start at different ports.
    let start = std::process::id().wrapping_mul(251);
    for _ in 0..COUNT {
        let step = TAKEN.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(FIRST + start.wrapping_add(step) % COUNT).unwrap();
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return listener;
        }
    }
    panic!("no port of 127.0.0.1 from {FIRST} to {} is free", FIRST + COUNT - 1);
}

/// The port a listener is bound to.
pub fn port_of(listener: &TcpListener) -> u16 {
    listener.local_addr().unwrap().port()
}
