//! One connection: reads a pipeline, decides its commands, and writes all replies together.
//!
//! Commands are parsed in place and replies go to one buffer. On the memory store a command costs no
//! allocation, no task, and no lock except its key's. On a shared store, a pipeline's decisions are requested
//! as one batch.

use std::future::pending;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use slidegate::PolicySet;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep};

use super::batch::{Batch, Step};
use super::commands::CommandSpec;
use super::frame::{self, Frame, MAX_FRAME, ProtocolError};
use super::reply::{Reply, RespVersion};
use super::session::Session;
use super::transaction::Transaction;
use super::turn::Turn;
use super::{dispatch, hold_arguments};
use crate::caller::Protocol;
use crate::engine::App;
use crate::listener::{Connection, Part, Slot, linger};
use crate::wire::malformed::{Flaw, Handling};

/// Initial size of the read buffer: about 80 commands.
const INITIAL_BUFFER: usize = 4096;
/// Size to which a larger read buffer shrinks when the client sends less.
const KEPT_BUFFER: usize = 4 * INITIAL_BUFFER;
/// Buffered reply bytes at which replies are written before more is decided. A single reply may be longer.
const MAX_BUFFERED_REPLIES: usize = 64 * 1024;
/// Maximum bytes read while a command waits for its turn. Of a client that has sent as many, it is not noticed that it
/// hangs up until then.
const MAX_AHEAD: usize = INITIAL_BUFFER;
/// Maximum decisions of one connection in one batch to a shared store.
const MAX_BATCH: usize = 256;
/// A client that does not authenticate within this time is disconnected.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes read after the last reply.
const MAX_LINGER: usize = 1024 * 1024;

/// Serves one client until it disconnects, violates the protocol, is idle for `idle`, or the
/// service stops.
pub(super) async fn serve<S>(
    stream: S,
    (session, slot): (Session, Arc<Slot>),
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
    let timer = sleep(first);
    tokio::pin!(timer);
    let mut connection = RespConnection {
        stream,
        session,
        app,
        input: Input::new(),
        out: Vec::new(),
        turn: Turn::default(),
        has_read_on: false,
    };
    let mut idle_check = IdleCheck { idle, is_idle: true };
    let mut is_stopping = false;
    loop {
        if is_stopping && connection.input.is_empty() {
            break;
        }
        let read = connection.stream.read(connection.input.free());
        let read = tokio::select! {
            // Commands that have arrived get replies before the connection stops or closes.
            biased;
            read = connection.turn.read(read) => read?,
            () = &mut stopped, if !is_stopping => {
                is_stopping = true;
                continue;
            }
            () = &mut timer => {
                if idle_check.has_expired(&connection.session, timer.as_mut()) {
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
        let mut progress = connection.process(&slot).await?;
        while matches!(progress, Progress::Replied) && std::mem::take(&mut connection.has_read_on) {
            progress = connection.process(&slot).await?;
        }
        if let Err(too_much) = slot.hold(Part::Buffers, connection.unfinished_bytes()) {
            slot.too_much();
            connection.refuse(&too_much.to_string()).await?;
            break;
        }
        match progress {
            Progress::Incomplete => {}
            Progress::Replied => idle_check.is_idle = false,
            Progress::Close => break,
            Progress::Gone => return Ok(()),
        }
    }
    // The client has time to read the last reply.
    linger(connection.stream, MAX_LINGER).await
}

/// Detects idle clients. Evaluated when the timer fires, not per command, which would read a clock.
struct IdleCheck {
    idle: Duration,
    /// Whether no command has arrived since the timer last fired. Incomplete commands do not count.
    is_idle: bool,
}

impl IdleCheck {
    /// Whether the client was idle for the whole interval. Restarts the timer.
    fn has_expired(&mut self, session: &Session, timer: std::pin::Pin<&mut Sleep>) -> bool {
        let has_expired = self.is_idle || !session.is_authenticated();
        self.is_idle = true;
        timer.reset(Instant::now() + self.idle);
        has_expired
    }
}

/// The result of processing the bytes that were read.
enum Progress {
    /// No complete command yet.
    Incomplete,
    Replied,
    /// The last reply is written.
    Close,
    /// The client hung up while it waited for its turn.
    Gone,
}

struct RespConnection<S> {
    stream: S,
    session: Session,
    app: Arc<App>,
    input: Input,
    /// Replies to be written.
    out: Vec<u8>,
    turn: Turn,
    /// Whether more has arrived while a command waited for its turn.
    has_read_on: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> RespConnection<S> {
    /// Bytes held between two reads, beyond the allowance of every connection: an incomplete command,
    /// commands queued since `MULTI`, and the reply buffer.
    fn unfinished_bytes(&self) -> usize {
        let queued = self.session.transaction.as_ref().map_or(0, |transaction| transaction.bytes());
        let input = self.input.buffer.len().saturating_sub(KEPT_BUFFER);
        input + queued + self.out.capacity().saturating_sub(KEPT_BUFFER)
    }

    /// Writes the last reply: there is no memory for what the client sends next.
    async fn refuse(&mut self, why: &str) -> std::io::Result<()> {
        Reply { out: &mut self.out, version: self.session.version }.error(format_args!("ERR {why}"));
        write(&mut self.stream, &mut self.out).await
    }

    /// Replies to all complete commands that have arrived.
    async fn process(&mut self, slot: &Slot) -> std::io::Result<Progress> {
        let policies = self.app.policies();
        let mut progress = Progress::Incomplete;
        let mut batch = Batch::new(&self.app, self.session.connection());
        let (mut at, mut ahead) = (0, Vec::new());
        let closes = loop {
            if self.out.len() >= MAX_BUFFERED_REPLIES {
                write(&mut self.stream, &mut self.out).await?;
                self.turn.long_step().await;
            }
            let frame = Frame::parse(&self.input.bytes()[at..]);
            let next = match &frame {
                Ok(Frame::Partial) => break false,
                Ok(Frame::Empty(length)) => {
                    at += length;
                    continue;
                }
                Ok(Frame::Command(arguments, length)) => {
                    at += length;
                    progress = Progress::Replied;
                    self.turn.command().await;
                    let before = self.out.len();
                    match dispatch::step(arguments, &mut self.session, &policies, &mut batch, &mut self.out) {
                        Step::Submitted | Step::Replied if batch.pending.is_empty() => continue,
                        step => complete(step, before, self.session.version, &mut batch, &mut self.out).await,
                    }
                }
                Ok(Frame::Inline(line, length)) => {
                    at += length;
                    progress = Progress::Replied;
                    self.turn.command().await;
                    flush(&mut batch, &mut self.out).await;
                    inline_command(line, &mut self.session, &policies, &self.app, &mut self.out).await
                }
                Err(error) => {
                    flush(&mut batch, &mut self.out).await;
                    write_error(*error, &self.app, &mut self.out);
                    break true;
                }
            };
            match next {
                Next::Continue => {}
                Next::Close => break true,
                Next::Wait(arguments) => {
                    // What was decided before does not wait.
                    write(&mut self.stream, &mut self.out).await?;
                    slot.serving();
                    let client = (self.session.connection(), self.session.version);
                    let waited = take_turn((&arguments, true), client, &policies, &self.app, &mut self.out);
                    let gone = async { read_on(&mut self.stream, &mut ahead).await };
                    let has_gone = tokio::select! {
                        () = waited => false,
                        gone = gone => gone,
                    };
                    if has_gone {
                        return Ok(Progress::Gone);
                    }
                }
                Next::Execute(transaction) => {
                    let (stream, session) = (&mut self.stream, &mut self.session);
                    let progress = (&mut self.out, &mut self.turn);
                    execute(&transaction, stream, session, &policies, &self.app, progress).await?;
                }
            }
        };
        flush(&mut batch, &mut self.out).await;
        drop(batch);
        self.input.consume(at);
        self.input.append(&ahead);
        self.has_read_on = !ahead.is_empty();
        write(&mut self.stream, &mut self.out).await?;
        Ok(if closes { Progress::Close } else { progress })
    }
}

/// The next step after a command.
enum Next {
    Continue,
    /// Wait for the turn of the command with these arguments.
    Wait(Vec<Vec<u8>>),
    Execute(Box<Transaction>),
    Close,
}

/// Executes the commands of a transaction in order, as a pipeline.
async fn execute<S: AsyncWrite + Unpin>(
    transaction: &Transaction,
    stream: &mut S,
    session: &mut Session,
    policies: &PolicySet,
    app: &App,
    (out, turn): (&mut Vec<u8>, &mut Turn),
) -> std::io::Result<()> {
    Reply { out, version: session.version }.array(transaction.len());
    let mut batch = Batch::new(app, session.connection());
    for arguments in transaction.commands() {
        if out.len() >= MAX_BUFFERED_REPLIES {
            write(stream, out).await?;
            turn.long_step().await;
        }
        turn.command().await;
        let before = out.len();
        let step = dispatch::step(&arguments, session, policies, &mut batch, out);
        // Commands that close the connection or open a transaction are never queued.
        if let Next::Wait(arguments) = complete(step, before, session.version, &mut batch, out).await {
            let client = (session.connection(), session.version);
            take_turn((&arguments, false), client, policies, app, out).await;
        }
    }
    flush(&mut batch, out).await;
    Ok(())
}

/// Executes a command of copied arguments, which were valid before: in its turn, or at once.
async fn take_turn(
    (arguments, may_wait): (&[Vec<u8>], bool),
    (connection, version): (Connection, RespVersion),
    policies: &PolicySet,
    app: &App,
    out: &mut Vec<u8>,
) {
    let words: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
    let Some(spec) = CommandSpec::by_word(words[0]) else { return };
    let (call, mut reply) = (app.call(Protocol::Resp), Reply { out, version });
    match hold_arguments::waiting(spec.name, &words[1..], policies, app, connection) {
        Ok(command) => {
            let command = if may_wait { command } else { command.without_wait() };
            command.execute(&call, connection, &mut reply).await;
        }
        Err(error) => reply.error(format_args!("ERR {}: {}", spec.word, error.detail)),
    }
}

/// Reads what the client sends while it waits, so that a client that hangs up is noticed. Completes when it has.
async fn read_on(stream: &mut (impl AsyncRead + Unpin), ahead: &mut Vec<u8>) -> bool {
    loop {
        let before = ahead.len();
        if before == MAX_AHEAD {
            return pending().await;
        }
        ahead.resize(MAX_AHEAD, 0);
        let read = stream.read(&mut ahead[before..]).await;
        ahead.truncate(before + read.as_ref().map_or(0, |read| *read));
        if !matches!(read, Ok(1..)) {
            return true;
        }
    }
}

/// Executes an inline command. Its arguments are not in the read buffer, so it cannot join the
/// batch.
async fn inline_command(
    line: &[u8],
    session: &mut Session,
    policies: &PolicySet,
    app: &App,
    out: &mut Vec<u8>,
) -> Next {
    let arguments = match frame::split_inline(line) {
        Ok(arguments) => arguments,
        Err(error) => {
            write_error(error, app, out);
            return Next::Close;
        }
    };
    let arguments: frame::Arguments<'_> = arguments.iter().map(Vec::as_slice).collect();
    let (mut batch, before) = (Batch::new(app, session.connection()), out.len());
    let step = dispatch::step(&arguments, session, policies, &mut batch, out);
    let next = complete(step, before, session.version, &mut batch, out).await;
    flush(&mut batch, out).await;
    next
}

/// Finishes a step and keeps replies in command order. `before` is where this command's reply
/// starts.
async fn complete(
    step: Step<'_>,
    before: usize,
    version: RespVersion,
    batch: &mut Batch<'_>,
    out: &mut Vec<u8>,
) -> Next {
    match step {
        Step::Submitted => {
            let Some(last) = batch.pending.pop() else { return Next::Continue };
            // A refund or peek must see the charges before it, so a batch has one verb.
            let is_other = batch.pending.last().is_some_and(|previous| previous.verb != last.verb);
            if is_other || batch.pending.len() == MAX_BATCH {
                flush(batch, out).await;
            }
            batch.pending.push(last);
            Next::Continue
        }
        Step::Reset(request) => {
            flush(batch, out).await;
            let mut reply = Reply { out, version };
            match batch.app.reset_for(&batch.connection.caller(), &request).await {
                Ok(existed) => reply.boolean(existed),
                Err(error) => reply.error(format_args!(
                    "ERR RL.RESET: {error}; the key may or may not have been reset; send the command again"
                )),
            }
            Next::Continue
        }
        Step::Hold(command) => {
            flush(batch, out).await;
            command.execute(&batch.call, batch.connection, &mut Reply { out, version }).await;
            Next::Continue
        }
        Step::Wait(arguments) => {
            flush(batch, out).await;
            Next::Wait(arguments)
        }
        Step::Execute(transaction) => {
            flush(batch, out).await;
            Next::Execute(transaction)
        }
        step @ (Step::Replied | Step::Close) => {
            if !batch.pending.is_empty() {
                let reply = out.split_off(before);
                flush(batch, out).await;
                out.extend_from_slice(&reply);
            }
            if matches!(step, Step::Close) { Next::Close } else { Next::Continue }
        }
    }
}

/// Requests all pending decisions at once and writes their replies in order.
async fn flush(batch: &mut Batch<'_>, out: &mut Vec<u8>) {
    if batch.pending.is_empty() {
        return;
    }
    let pending = std::mem::take(&mut batch.pending);
    let call = &batch.call;
    let decided = pending.iter().map(|one| call.apply(Some(one.verb), slice::from_ref(&one.request), None));
    let decided = join_all(decided).await;
    for (one, decisions) in pending.iter().zip(&decided) {
        batch.audit(one.verb, decisions);
        one.write(decisions, out);
    }
}

fn write_error(error: ProtocolError, app: &App, out: &mut Vec<u8>) {
    app.observer().malformed.record(Protocol::Resp, Flaw::Invalid, Handling::Refused);
    let mut reply = Reply { out, version: RespVersion::Resp2 };
    reply.error(format_args!("ERR Protocol error: {}", error.0));
}

/// Writes all buffered replies.
async fn write<S: AsyncWrite + Unpin>(stream: &mut S, out: &mut Vec<u8>) -> std::io::Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    // The connection budget ends the write if the client does not read.
    stream.write_all(out).await?;
    stream.flush().await?;
    out.clear();
    out.shrink_to(KEPT_BUFFER);
    Ok(())
}

/// Bytes received and not yet processed.
struct Input {
    buffer: Vec<u8>,
    /// Number of received bytes in `buffer`.
    filled: usize,
}

impl Input {
    fn new() -> Self {
        Self { buffer: vec![0; INITIAL_BUFFER], filled: 0 }
    }

    fn is_empty(&self) -> bool {
        self.filled == 0
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }

    /// The free part of the buffer. Never empty: a command that fills the largest buffer is rejected.
    fn free(&mut self) -> &mut [u8] {
        &mut self.buffer[self.filled..]
    }

    /// Adds what was read elsewhere.
    fn append(&mut self, bytes: &[u8]) {
        if bytes.len() >= self.free().len() {
            self.buffer.resize(self.filled + 2 * bytes.len(), 0);
        }
        self.free()[..bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
    }

    fn has_read(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    /// Shrinks an empty buffer to its initial size.
    fn shrink(&mut self) {
        if self.is_empty() && self.buffer.len() > INITIAL_BUFFER {
            *self = Self::new();
        }
    }

    /// Removes processed bytes from the start. A full buffer grows; a buffer that was not filled shrinks once
    /// its commands are processed.
    fn consume(&mut self, bytes: usize) {
        let was_full = self.filled == self.buffer.len();
        self.buffer.copy_within(bytes..self.filled, 0);
        self.filled -= bytes;
        if was_full {
            self.buffer.resize((2 * self.buffer.len()).min(2 * MAX_FRAME), 0);
        } else if self.buffer.len() > KEPT_BUFFER && self.filled < KEPT_BUFFER {
            self.buffer.truncate(KEPT_BUFFER);
            self.buffer.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use slidegate::{MemoryStore, Request, verb::Verb};

    use super::super::shared::ListenerState;
    use super::super::turn::MAX_COMMANDS;
    use super::*;
    use crate::config::{Config, Outside};
    use crate::listener::{self, ConnectionSpec, Timeouts};

    /// A client that streamed commands once delayed its neighbours by 140 ms. The test counts the decisions
    /// between two turns of a neighbour, because their duration depends on the machine.
    #[tokio::test]
    async fn a_giant_pipeline_is_served_beside_everybody_else() {
        const COMMANDS: u32 = 20 * MAX_COMMANDS;
        let policies = ["1000000/1h per user".to_owned()];
        let config = Config::from_sources(None, &policies, &Outside::default()).unwrap();
        let app = Arc::new(App::over(config, MemoryStore::new(), None).unwrap());
        let spec =
            ConnectionSpec { protocol: "resp", max: None, timeouts: Timeouts::default(), refusal: b"" };
        let connections = app.connections.protocol(spec);
        let slot = Arc::new(app.connections.admit(&connections, None).unwrap());
        let listener = ListenerState::new(None, 1, connections);
        let client = listener::Connection { peer: None, user: None, is_local: true, is_verified: false };
        let session = Session::new(Arc::new(listener), None, client);
        // All commands have arrived, and every reply is read at once.
        let commands = b"*3\r\n$8\r\nRL.CHECK\r\n$8\r\nper-user\r\n$5\r\nalice\r\n".repeat(COMMANDS as usize);
        let stream = tokio::io::join(Cursor::new(commands), Vec::new());
        let (_stop, stop) = watch::channel(false);
        let serving = serve(stream, (session, slot), Arc::clone(&app), Duration::from_secs(60), stop);
        let request = Request::new().with("user", "alice");
        let neighbour = async {
            let mut decided = 0;
            while decided < u64::from(COMMANDS) {
                tokio::task::yield_now().await;
                let peeked = app.store().apply(Some(Verb::Peek), slice::from_ref(&request), None).await;
                let now = peeked.iter().next().unwrap().decision().used();
                assert!(now - decided <= u64::from(MAX_COMMANDS), "{} commands in a turn", now - decided);
                decided = now;
            }
        };
        tokio::join!(serving, neighbour).0.unwrap();
    }
}
