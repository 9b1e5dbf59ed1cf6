//! Free ports of 127.0.0.1.
//!
//! Below the range of ephemeral ports: otherwise a client that connects to a stopped server's port
//! could get that port itself, connect to itself, and prevent the server from binding it again.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// The range; `net.ipv4.ip_local_port_range` begins at 32768 on Linux and higher elsewhere.
const FIRST: u16 = 16_384;
const LAST: u16 = 32_767;

/// Ports of a process. A server binds its port some time after it was found free; no other test may find it free
/// meanwhile. The block is its who has the first one's UDP port, which is free again when the process ends.
const BLOCK: u16 = 256;

static OWN: LazyLock<UdpSocket> = LazyLock::new(|| {
    let mut blocks = (FIRST..=LAST).step_by(usize::from(BLOCK));
    let own = blocks.find_map(|first| UdpSocket::bind((Ipv4Addr::LOCALHOST, first)).ok());
    own.unwrap_or_else(|| panic!("other tests have all ports of 127.0.0.1 from {FIRST} to {LAST}"))
});

/// Ports returned so far. None is returned twice before all have been.
static TAKEN: AtomicU16 = AtomicU16::new(0);

/// A port without a listener. A program that is not a test may take it before it is used: whoever binds it must be able
/// to try another.
pub fn free() -> u16 {
    port_of(&listener())
}

/// A free port, already bound.
pub fn listener() -> TcpListener {
    let first = OWN.local_addr().unwrap().port();
    for _ in 0..BLOCK {
        let port = first + TAKEN.fetch_add(1, Ordering::Relaxed) % BLOCK;
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return listener;
        }
    }
    panic!("no port of 127.0.0.1 from {first} to {} is free", first + BLOCK - 1);
}

/// The port a listener is bound to.
pub fn port_of(listener: &TcpListener) -> u16 {
    listener.local_addr().unwrap().port()
}
