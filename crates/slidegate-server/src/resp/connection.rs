//! A connection: reads what has come, decides all commands in it, and writes the answers at once.
//!
//! Commands are read in place and answered into one buffer, so on the memory store a command costs no allocation, no task
//! and no lock but its key's. A shared store is asked for the decisions of a pipeline together.

use std::sync::Arc;
use std::time::Duration;

use slidegate::PolicySet;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::command::{self, Asking, Step};
use super::frame::{self, Frame, MAX_FRAME, Malformed};
use super::reply::{Reply, RespVersion};
use super::session::Session;
use super::transaction::Transaction;
use crate::app::App;

/// The read buffer of a connection that sends little: some 80 commands at once.
const FIRST_BUFFER: usize = 4096;
/// Most bytes of answers that wait to be written before more is decided. A single answer may be longer.
const MAX_ANSWERS: usize = 64 * 1024;
/// Most decisions of one connection that a shared store is asked for at once.
const MAX_WAVE: usize = 256;
/// A client that does not take its answers in this time is cut off.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that does not authenticate in this time is cut off.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long, and how much, a client may still send after its last answer: a connection that is closed with bytes unread is
/// reset, and the answer may be lost with it.
const LINGER: Duration = Duration::from_secs(1);
const MAX_LINGER: usize = 1024 * 1024;

/// Serves one client until it leaves, breaks the protocol, falls silent for `idle`, or the service stops.
pub(super) async fn serve<S>(
    stream: S,
    session: Session,
    app: Arc<App>,
    idle: Duration,
    mut stop: watch::Receiver<bool>,
) -> std::io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let stopped = async move { stop.wait_for(|stop| *stop).await.map_or((), drop) };
    tokio::pin!(stopped);
    let first = if session.is_authenticated() { idle } else { AUTHENTICATION_TIMEOUT.min(idle) };
    let alarm = sleep(first);
    tokio::pin!(alarm);
    let mut connection = Connection { stream, session, app, input: Input::new(), out: Vec::new() };
    let mut silence = Silence { idle, is_silent: true };
    let mut is_stopping = false;
    loop {
        if is_stopping && connection.input.is_empty() {
            break;
        }
        let read = tokio::select! {
            // What has come is answered before anything else is looked at.
            biased;
            read = connection.stream.read(connection.input.room()) => read?,
            () = &mut stopped, if !is_stopping => {
                is_stopping = true;
                continue;
            }
            () = &mut alarm => {
                if silence.goes_on(&connection.session, alarm.as_mut()) {
                    break;
                }
                connection.input.shrink();
                continue;
            }
        };
        if read == 0 {
            return Ok(());
        }
        connection.input.has_read(read);
        match connection.answer().await? {
            Progress::Waits => {}
            Progress::Answered => silence.is_silent = false,
            Progress::Ends => break,
        }
    }
    connection.close().await
}

/// Whether a client still says something. Looked at when the alarm rings and not at each command, which would read a clock.
struct Silence {
    idle: Duration,
    /// Whether no command has come since the alarm rang last. Bytes that never become one do not count.
    is_silent: bool,
}

impl Silence {
    /// Whether the client has been silent all the time; sets the alarm anew if not.
    fn goes_on(&mut self, session: &Session, alarm: std::pin::Pin<&mut Sleep>) -> bool {
        let goes_on = self.is_silent || !session.is_authenticated();
        self.is_silent = true;
        alarm.reset(Instant::now() + self.idle);
        goes_on
    }
}

/// What came of the bytes that were read.
enum Progress {
    /// No whole command yet.
    Waits,
    Answered,
    /// The last answer is written.
    Ends,
}

struct Connection<S> {
    stream: S,
    session: Session,
    app: Arc<App>,
    input: Input,
    /// Answers to be written.
    out: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Answers all whole commands that have come.
    async fn answer(&mut self) -> std::io::Result<Progress> {
        let policies = self.app.policies();
        let mut progress = Progress::Waits;
        let mut asking = Asking::new(&self.app);
        let mut at = 0;
        let ends = loop {
            if self.out.len() >= MAX_ANSWERS {
                write(&mut self.stream, &mut self.out).await?;
            }
            let (step, before) = match Frame::read(&self.input.bytes()[at..]) {
                Ok(Frame::Partial) => break false,
                Ok(Frame::Nothing(length)) => {
                    at += length;
                    continue;
                }
                Ok(Frame::Command(arguments, length)) => {
                    at += length;
                    progress = Progress::Answered;
                    let before = self.out.len();
                    let step =
                        command::step(&arguments, &mut self.session, &policies, &mut asking, &mut self.out);
                    (step, before)
                }
                Ok(Frame::Line(line, length)) => {
                    at += length;
                    progress = Progress::Answered;
                    settle(&mut asking, &mut self.out).await;
                    let (session, out) = (&mut self.session, &mut self.out);
                    match by_itself(line, session, &policies, &self.app, out).await {
                        Next::Command => continue,
                        Next::End => break true,
                        Next::Execute(transaction) => (Step::Execute(transaction), self.out.len()),
                    }
                }
                Err(malformed) => {
                    settle(&mut asking, &mut self.out).await;
                    refuse(malformed, &mut self.out);
                    break true;
                }
            };
            let next = match step {
                Step::Asked | Step::Answered if asking.waiting.is_empty() => continue,
                step => follow(step, before, self.session.protocol, &mut asking, &mut self.out).await,
            };
            match next {
                Next::Command => {}
                Next::End => break true,
                Next::Execute(transaction) => {
                    let (session, out) = (&mut self.session, &mut self.out);
                    let run = execute(&transaction, &mut self.stream, session, &policies, &self.app, out);
                    run.await?;
                }
            }
        };
        settle(&mut asking, &mut self.out).await;
        drop(asking);
        self.input.consume(at);
        write(&mut self.stream, &mut self.out).await?;
        Ok(if ends { Progress::Ends } else { progress })
    }

    /// Ends the connection so that the client has read its last answer.
    async fn close(mut self) -> std::io::Result<()> {
        let stream = &mut self.stream;
        let linger = async {
            stream.shutdown().await?;
            let mut left = MAX_LINGER;
            let mut unread = [0; FIRST_BUFFER];
            while left > 0 {
                match stream.read(&mut unread).await? {
                    0 => break,
                    read => left = left.saturating_sub(read),
                }
            }
            Ok(())
        };
        timeout(LINGER, linger).await.unwrap_or(Ok(()))
    }
}

/// What comes after a command.
enum Next {
    /// The next one.
    Command,
    /// The commands that were queued.
    Execute(Box<Transaction>),
    /// Nothing: the command was the last.
    End,
}

/// Carries out a transaction: its commands in their order, as a pipeline of their own.
async fn execute<S: AsyncWrite + Unpin>(
    transaction: &Transaction,
    stream: &mut S,
    session: &mut Session,
    policies: &PolicySet,
    app: &App,
    out: &mut Vec<u8>,
) -> std::io::Result<()> {
    Reply { out, protocol: session.protocol }.array(transaction.len());
    let mut asking = Asking::new(app);
    for arguments in transaction.commands() {
        if out.len() >= MAX_ANSWERS {
            write(stream, out).await?;
        }
        let before = out.len();
        let step = command::step(&arguments, session, policies, &mut asking, out);
        // What would end the connection, or another transaction, is never queued.
        follow(step, before, session.protocol, &mut asking, out).await;
    }
    settle(&mut asking, out).await;
    Ok(())
}

/// Answers a command that came as a line: its words lie elsewhere, so it is decided by itself.
async fn by_itself(
    line: &[u8],
    session: &mut Session,
    policies: &PolicySet,
    app: &App,
    out: &mut Vec<u8>,
) -> Next {
    let words = match frame::words(line) {
        Ok(words) => words,
        Err(malformed) => {
            refuse(malformed, out);
            return Next::End;
        }
    };
    let words: frame::Arguments<'_> = words.iter().map(Vec::as_slice).collect();
    let (mut asking, before) = (Asking::new(app), out.len());
    let step = command::step(&words, session, policies, &mut asking, out);
    let next = follow(step, before, session.protocol, &mut asking, out).await;
    settle(&mut asking, out).await;
    next
}

/// What is left of a step: to keep answers in the order of their commands, the first of which stand at `before`.
async fn follow(
    step: Step<'_>,
    before: usize,
    protocol: RespVersion,
    asking: &mut Asking<'_>,
    out: &mut Vec<u8>,
) -> Next {
    match step {
        Step::Asked => {
            let Some(ask) = asking.waiting.pop() else { return Next::Command };
            // What gives back, or only looks, comes after what was charged before it.
            let is_other = asking.waiting.last().is_some_and(|last| last.verb != ask.verb);
            if is_other || asking.waiting.len() == MAX_WAVE {
                settle(asking, out).await;
            }
            asking.waiting.push(ask);
            Next::Command
        }
        Step::Reset(request) => {
            settle(asking, out).await;
            let mut reply = Reply { out, protocol };
            match asking.app.reset(&request).await {
                Ok(existed) => reply.flag(existed),
                Err(error) => reply.error(format_args!(
                    "ERR RL.RESET: {error}; the key may be forgotten or not, so send it again"
                )),
            }
            Next::Command
        }
        Step::Execute(transaction) => {
            settle(asking, out).await;
            Next::Execute(transaction)
        }
        step @ (Step::Answered | Step::Goodbye) => {
            if !asking.waiting.is_empty() {
                let late = out.split_off(before);
                settle(asking, out).await;
                out.extend_from_slice(&late);
            }
            if matches!(step, Step::Goodbye) { Next::End } else { Next::Command }
        }
    }
}

/// Asks for all decisions that wait, at once, and tells them in their order.
async fn settle(asking: &mut Asking<'_>, out: &mut Vec<u8>) {
    if asking.waiting.is_empty() {
        return;
    }
    let asks = std::mem::take(&mut asking.waiting);
    let decided = asking.call.apply_each(asks.iter().map(|ask| (ask.verb, &ask.request))).await;
    asks.iter().zip(&decided).for_each(|(ask, decisions)| ask.tell(decisions, out));
}

fn refuse(malformed: Malformed, out: &mut Vec<u8>) {
    let mut reply = Reply { out, protocol: RespVersion::Resp2 };
    reply.error(format_args!("ERR Protocol error: {}", malformed.0));
}

/// Writes all answers.
async fn write<S: AsyncWrite + Unpin>(stream: &mut S, out: &mut Vec<u8>) -> std::io::Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    let all = async {
        stream.write_all(out).await?;
        stream.flush().await
    };
    timeout(WRITE_TIMEOUT, all).await.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    out.clear();
    out.shrink_to(2 * MAX_ANSWERS);
    Ok(())
}

/// Bytes that have come and are not answered.
struct Input {
    buffer: Vec<u8>,
    /// How many of them there are.
    filled: usize,
}

impl Input {
    fn new() -> Self {
        Self { buffer: vec![0; FIRST_BUFFER], filled: 0 }
    }

    fn is_empty(&self) -> bool {
        self.filled == 0
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }

    /// Where more may be read to. Never empty: a command that fills the largest buffer is refused.
    fn room(&mut self) -> &mut [u8] {
        &mut self.buffer[self.filled..]
    }

    fn has_read(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    /// Makes an empty buffer as small as it was.
    fn shrink(&mut self) {
        if self.is_empty() && self.buffer.len() > FIRST_BUFFER {
            *self = Self::new();
        }
    }

    /// Forgets so many bytes from the beginning. A buffer that was full grows.
    fn consume(&mut self, bytes: usize) {
        let was_full = self.filled == self.buffer.len();
        self.buffer.copy_within(bytes..self.filled, 0);
        self.filled -= bytes;
        if was_full {
            self.buffer.resize((2 * self.buffer.len()).min(2 * MAX_FRAME), 0);
        }
    }
}
