//! A fake server with scripted replies, including ones that no real server sends.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::resp::{self, Command};
use crate::background::Background;
use crate::ports;

/// The reaction to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FakeReply {
    /// Send these bytes, of any content. An empty list sends nothing.
    Send(Vec<u8>),
    /// Send these bytes and close.
    SendAndClose(Vec<u8>),
    /// Send the first bytes once, then the others repeatedly until the client closes.
    SendForever(Vec<u8>, Vec<u8>),
}

/// Bytes to be sent.
impl From<&str> for FakeReply {
    fn from(text: &str) -> Self {
        Self::Send(text.into())
    }
}

impl From<Vec<u8>> for FakeReply {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Send(bytes)
    }
}

/// A running fake server. Ends when dropped.
pub struct FakeRedis {
    port: u16,
    script: Arc<Script>,
    _background: Background,
}

type Say = dyn FnMut(&Command) -> FakeReply + Send;

struct Script {
    /// Under one lock for all connections, so that a test's script may count.
    answer: Mutex<Box<Say>>,
    heard: Mutex<Vec<Command>>,
}

impl FakeRedis {
    /// Calls `answer` for each command, from any connection.
    pub fn start(answer: impl FnMut(&Command) -> FakeReply + Send + 'static) -> Self {
        let listener = ports::listener();
        listener.set_nonblocking(true).unwrap();
        let port = ports::port_of(&listener);
        let script = Script { answer: Mutex::new(Box::new(answer)), heard: Mutex::default() };
        let script = Arc::new(script);
        let background = Background::start();
        let found = script.clone();
        background.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(converse(client, found.clone()));
            }
        });
        Self { port, script, _background: background }
    }

    /// Handles greetings like a server and calls `answer` for everything else.
    pub fn greeting(mut answer: impl FnMut(&Command) -> FakeReply + Send + 'static) -> Self {
        Self::start(move |command| greet(command).unwrap_or_else(|| answer(command)))
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// All commands so far, including greetings.
    pub fn heard(&self) -> Vec<Command> {
        self.script.heard.lock().unwrap().clone()
    }
}

/// The reply to a client's greeting.
pub(super) fn greet(command: &Command) -> Option<FakeReply> {
    let name = command.first()?.to_ascii_uppercase();
    let wants_resp3 = command.get(1).is_some_and(|version| version == b"3");
    Some(FakeReply::from(match name.as_slice() {
        b"HELLO" if wants_resp3 => "%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n",
        b"HELLO" => "*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:2\r\n",
        b"AUTH" | b"CLIENT" | b"SELECT" => "+OK\r\n",
        b"PING" => "+PONG\r\n",
        _ => return None,
    }))
}

async fn converse(mut client: TcpStream, script: Arc<Script>) {
    let mut unread = Vec::new();
    loop {
        while let Some((command, length)) = resp::command(&unread) {
            unread.drain(..length);
            script.heard.lock().unwrap().push(command.clone());
            // A script that panicked continues for other connections: the test notices from the end
            // of this one.
            let answer = script.answer.lock().unwrap_or_else(PoisonError::into_inner)(&command);
            let (bytes, close) = match answer {
                FakeReply::Send(bytes) => (bytes, false),
                FakeReply::SendAndClose(bytes) => (bytes, true),
                FakeReply::SendForever(bytes, again) => {
                    let mut sent = client.write_all(&bytes).await;
                    while sent.is_ok() {
                        sent = client.write_all(&again).await;
                    }
                    return;
                }
            };
            if client.write_all(&bytes).await.is_err() || close {
                return;
            }
        }
        if !matches!(client.read_buf(&mut unread).await, Ok(1..)) {
            return;
        }
    }
}
