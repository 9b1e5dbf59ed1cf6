//! The part of RESP that tests need: a blocking client, and a command parser for the fake server.
//!
//! Independent of the store and its client library, so it can verify both. RESP2 only.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A server's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A simple or a bulk string.
    Bytes(Vec<u8>),
    /// An error with its code, without the leading minus.
    Error(String),
    /// A number.
    Integer(i64),
    /// No value.
    Nil,
    /// An array.
    List(Vec<Reply>),
}

/// The format of `redis-cli` output in a pipe: one line per item, without decoration.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
            Self::Error(text) => f.write_str(text),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Nil => Ok(()),
            Self::List(items) => items
                .iter()
                .enumerate()
                .try_for_each(|(at, item)| write!(f, "{}{item}", ["", "\n"][at.min(1)])),
        }
    }
}

/// A connection that sends one command at a time and waits for its reply.
pub struct Connection(BufReader<Box<dyn Stream>>);

trait Stream: Read + Write + Send {
    fn limit(&self, patience: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn limit(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))?;
        self.set_write_timeout(Some(patience))
    }
}

impl Stream for UnixStream {
    fn limit(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))?;
        self.set_write_timeout(Some(patience))
    }
}

impl Connection {
    /// Connects to a port of 127.0.0.1. No step takes longer than `patience`.
    pub fn tcp(port: u16, patience: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), patience)?;
        stream.set_nodelay(true)?;
        Self::over(stream, patience)
    }

    /// Connects to a Unix socket.
    pub fn unix(path: &Path, patience: Duration) -> io::Result<Self> {
        Self::over(UnixStream::connect(path)?, patience)
    }

    fn over(stream: impl Stream + 'static, patience: Duration) -> io::Result<Self> {
        stream.limit(patience)?;
        Ok(Self(BufReader::new(Box::new(stream))))
    }

    /// Changes the connection's `patience`.
    pub fn within(self, patience: Duration) -> Self {
        self.0.get_ref().limit(patience).unwrap();
        self
    }

    /// Sends a command and reads its reply. After an error the connection is unusable.
    pub fn call(&mut self, command: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        self.send(command)?;
        self.reply()
    }

    /// Sends a command and returns its raw reply.
    pub(super) fn relay(&mut self, command: &[impl AsRef<[u8]>]) -> io::Result<Vec<u8>> {
        self.send(command)?;
        let mut reply = Vec::new();
        self.read_raw(&mut reply)?;
        Ok(reply)
    }

    fn send(&mut self, command: &[impl AsRef<[u8]>]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for argument in command {
            let argument = argument.as_ref();
            write!(bytes, "${}\r\n", argument.len())?;
            bytes.extend_from_slice(argument);
            bytes.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&bytes)
    }

    fn read_raw(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        let begin = bytes.len();
        self.0.read_until(b'\n', bytes)?;
        let line = str::from_utf8(&bytes[begin..]).unwrap_or_default();
        let length = line.get(1..).and_then(|rest| rest.trim().parse::<usize>().ok());
        let Some(kind) = line.chars().next() else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        match (kind, length) {
            ('$', Some(length)) => bytes.extend(self.bulk_with_end(length)?),
            ('*', Some(items)) => (0..items).try_for_each(|_| self.read_raw(bytes))?,
            // A line, or a missing value: a length of -1.
            _ => {}
        }
        Ok(())
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let Some(line) = line.strip_suffix("\r\n") else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        let number = |text: &str| text.parse::<i64>().map_err(|_| strange(line));
        Ok(match line.split_at_checked(1).ok_or_else(|| strange(line))? {
            ("+", text) => Reply::Bytes(text.into()),
            ("-", text) => Reply::Error(text.to_owned()),
            (":", text) => Reply::Integer(number(text)?),
            ("$", text) => match usize::try_from(number(text)?) {
                Ok(length) => Reply::Bytes(self.bulk(length)?),
                Err(_) => Reply::Nil,
            },
            ("*", text) => match usize::try_from(number(text)?) {
                Ok(length) => Reply::List((0..length).map(|_| self.reply()).collect::<io::Result<_>>()?),
                Err(_) => Reply::Nil,
            },
            _ => return Err(strange(line)),
        })
    }

    fn bulk(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = self.bulk_with_end(length)?;
        bytes.truncate(length);
        Ok(bytes)
    }

    fn bulk_with_end(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

fn strange(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a RESP2 reply: {line:?}"))
}

/// A command as received by a server: its name and arguments.
pub type Command = Vec<Vec<u8>>;

/// The first command in `bytes` and its length; `None` if incomplete.
///
/// Panics on input that no client library sends; only those talk to the fake server.
pub(super) fn command(bytes: &[u8]) -> Option<(Command, usize)> {
    let (count, mut at) = header(bytes, 0, b'*')?;
    let mut command = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, begin) = header(bytes, at, b'$')?;
        command.push(bytes.get(begin..begin + length)?.to_vec());
        at = begin + length + 2;
    }
    (at <= bytes.len()).then_some((command, at))
}

/// The number in the line at `at`, and the start of the next line.
fn header(bytes: &[u8], at: usize, kind: u8) -> Option<(usize, usize)> {
    let line = bytes.get(at..)?;
    let end = line.windows(2).position(|pair| pair == b"\r\n")?;
    assert_eq!(line[0], kind, "a command is an array of bulk strings");
    let number = str::from_utf8(&line[1..end]).unwrap().parse().unwrap();
    Some((number, at + end + 2))
}
