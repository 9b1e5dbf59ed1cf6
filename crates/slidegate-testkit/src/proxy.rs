//! A TCP proxy in front of a server: simulates the network and its faults.
//!
//! A mode applies from the next bytes on, also to open connections.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::background::Background;
use crate::poll::until_true;
use crate::ports;

/// Maximum pieces of 16 kB in transit per direction of a connection; beyond it, the sender waits.
const MOST_PIECES: usize = 1024;

/// The proxy's behaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Forward everything at once.
    Pass,
    /// Forward each piece after a delay. Order and rate stay the same.
    Delay {
        /// From client to server.
        request: Duration,
        /// From server to client.
        reply: Duration,
    },
    /// Forward this many bytes to the server, then close. At zero, the first byte closes.
    CutRequestAfter(u64),
    /// Forward this many bytes to the client, then close. At zero, the server has executed
    /// something that the client never learns of.
    CutReplyAfter(u64),
    /// Accept connections and bytes but forward nothing, not even that the server has closed.
    ///
    /// A connection that lost bytes forwards none in later modes either: they would be out of
    /// place.
    BlackHole,
    /// Close all connections and stop listening.
    Refuse,
}

/// A running proxy. Stops when dropped.
pub struct Proxy {
    port: u16,
    mode: watch::Sender<Mode>,
    gauge: Arc<Gauge>,
    _background: Background,
}

#[derive(Default)]
struct Gauge {
    accepted: AtomicU64,
    open: AtomicU64,
    listening: AtomicBool,
}

/// Counts of client connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// Accepted since the start.
    pub accepted: u64,
    /// Currently open.
    pub open: u64,
}

impl Proxy {
    /// A proxy in front of this port of 127.0.0.1. Forwards everything at first.
    pub fn before(port: u16) -> Self {
        let listener = ports::listener();
        let (mode, watched) = watch::channel(Mode::Pass);
        let gauge = Arc::new(Gauge::default());
        let background = Background::start();
        let proxy =
            Self { port: ports::port_of(&listener), mode, gauge: gauge.clone(), _background: background };
        // The task binds it again, which it must be able to do anyway.
        drop(listener);
        proxy._background.spawn(serve(proxy.port, port, watched, gauge));
        proxy.settle();
        proxy
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Changes the mode and returns once it is active.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
        self.settle();
    }

    /// Open and accepted connections.
    pub fn connections(&self) -> Connections {
        let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        Connections { accepted: count(&self.gauge.accepted), open: count(&self.gauge.open) }
    }

    fn settle(&self) {
        let refuse = *self.mode.borrow() == Mode::Refuse;
        until_true("a proxy listens, or refuses and has closed everything", || {
            let listening = self.gauge.listening.load(Ordering::SeqCst);
            listening != refuse && (!refuse || self.connections().open == 0)
        });
    }
}

/// Listens unless connections are refused.
async fn serve(port: u16, server: u16, mut mode: watch::Receiver<Mode>, gauge: Arc<Gauge>) {
    while until_refusing(&mut mode, false).await {
        let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await else {
            sleep(Duration::from_millis(5)).await;
            continue;
        };
        gauge.listening.store(true, Ordering::SeqCst);
        loop {
            let client = tokio::select! {
                biased;
                _ = until_refusing(&mut mode, true) => break,
                accepted = listener.accept() => accepted,
            };
            let Ok((client, _)) = client else { continue };
            gauge.accepted.fetch_add(1, Ordering::SeqCst);
            gauge.open.fetch_add(1, Ordering::SeqCst);
            let (mode, gauge) = (mode.clone(), gauge.clone());
            tokio::spawn(async move {
                connection(client, server, mode).await;
                gauge.open.fetch_sub(1, Ordering::SeqCst);
            });
        }
        drop(listener);
        gauge.listening.store(false, Ordering::SeqCst);
    }
}

/// Waits for this state. False once the proxy is gone.
async fn until_refusing(mode: &mut watch::Receiver<Mode>, refusing: bool) -> bool {
    mode.wait_for(|mode| (*mode == Mode::Refuse) == refusing).await.is_ok()
}

/// Forwards in both directions until either ends.
async fn connection(client: TcpStream, server: u16, mut mode: watch::Receiver<Mode>) {
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (client, server) = (client.into_split(), server.into_split());
    tokio::select! {
        () = carry(Way::Request, client.0, server.1, mode.clone()) => {}
        () = carry(Way::Reply, server.0, client.1, mode.clone()) => {}
        _ = until_refusing(&mut mode, true) => {}
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Request,
    Reply,
}

async fn carry(way: Way, from: OwnedReadHalf, to: OwnedWriteHalf, mode: watch::Receiver<Mode>) {
    let (send, queue) = mpsc::channel(MOST_PIECES);
    tokio::join!(take_in(way, from, send, mode), hand_on(to, queue));
}

/// A piece and the time to send it.
type Piece = (Instant, Vec<u8>);

async fn take_in(
    way: Way,
    mut from: OwnedReadHalf,
    queue: mpsc::Sender<Piece>,
    mut mode: watch::Receiver<Mode>,
) {
    let mut buffer = vec![0; 16 * 1024];
    let (mut carried, mut lost) = (0, false);
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if mode.has_changed().unwrap_or(false) {
            carried = 0;
        }
        let now = *mode.borrow_and_update();
        lost |= now == Mode::BlackHole;
        if lost {
            continue;
        }
        let most = match (now, way) {
            (Mode::CutRequestAfter(most), Way::Request) | (Mode::CutReplyAfter(most), Way::Reply) => most,
            _ => u64::MAX,
        };
        let delay = match (now, way) {
            (Mode::Delay { request, .. }, Way::Request) => request,
            (Mode::Delay { reply, .. }, Way::Reply) => reply,
            _ => Duration::ZERO,
        };
        let fits = length.min(usize::try_from(most - carried).unwrap_or(usize::MAX));
        carried += fits as u64;
        let piece = (Instant::now() + delay, buffer[..fits].to_vec());
        if queue.send(piece).await.is_err() || carried == most {
            return;
        }
    }
    lost |= *mode.borrow() == Mode::BlackHole;
    if lost && way == Way::Reply {
        std::future::pending::<()>().await;
    }
}

async fn hand_on(mut to: OwnedWriteHalf, mut queue: mpsc::Receiver<Piece>) {
    while let Some((when, bytes)) = queue.recv().await {
        sleep_until(when).await;
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
