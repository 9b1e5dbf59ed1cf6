//! Commands: the command table, and the dispatch of one command.
//!
//! The table finds commands, checks their argument counts, and is what `COMMAND` returns. Commands
//! that need a shared store are only queued here, so that a pipeline is decided as one batch.

use slidegate::{Decisions, PolicySet, Request, Verb};

use super::reply::{Escaped, Reply, RespVersion};
use super::session::{self, Session};
use super::transaction::{Queueing, Transaction};
use super::{decide, throttle};
use crate::access::Action;
use crate::app::App;
use crate::app::decide::Call;
use crate::caller::Protocol;

/// The result of dispatching a command.
#[derive(Debug)]
pub(super) enum Step<'b> {
    /// The reply is written.
    Replied,
    /// The reply is written; close the connection after it.
    Close,
    /// The decision is written, or pending in the batch.
    Submitted,
    /// Reset the request's keys. Boxed, so that this rare variant does not enlarge the enum.
    Reset(Box<Request<'b>>),
    /// Execute the commands of a transaction and reply with an array of their replies.
    Execute(Box<Transaction>),
}

/// Decisions of one pipeline: made at once on the memory store, batched on a shared store.
pub(super) struct Batch<'w> {
    pub(super) app: &'w App,
    /// Records each decision, and how long all of them took.
    pub(super) call: Call<'w>,
    /// Decisions to request from a shared store, in command order. Always empty on the memory
    /// store.
    pub(super) pending: Vec<PendingDecision<'w>>,
}

/// A decision to request from a shared store.
#[derive(Debug)]
pub(super) struct PendingDecision<'b> {
    pub(super) verb: Verb,
    pub(super) request: Request<'b>,
    format: ReplyFormat,
    version: RespVersion,
}

impl<'w> Batch<'w> {
    pub(super) fn new(app: &'w App) -> Self {
        Self { app, call: app.call(Protocol::Resp), pending: Vec::new() }
    }

    /// Decides a request and writes the reply, or adds it to the batch.
    // Inlined: a call would copy the request, about 400 bytes.
    #[inline(always)]
    pub(super) fn decide(
        &mut self,
        verb: Verb,
        request: Request<'w>,
        format: ReplyFormat,
        reply: &mut Reply<'_>,
    ) {
        if let Some(decisions) = self.call.try_apply(verb, &request) {
            format.write(&decisions, reply);
            return;
        }
        self.pending.push(PendingDecision { verb, request, format, version: reply.version });
    }
}

impl PendingDecision<'_> {
    pub(super) fn write(&self, decisions: &Decisions<'_>, out: &mut Vec<u8>) {
        self.format.write(decisions, &mut Reply { out, version: self.version });
    }
}

/// The format of a decision's reply.
#[derive(Debug, Clone, Copy)]
pub(super) enum ReplyFormat {
    /// The decision of one policy.
    OnePolicy,
    /// The decisions of all policies that apply.
    AllPolicies,
    /// The reply of redis-cell or throttlecrab.
    Throttle(throttle::ThrottleArguments),
}

impl ReplyFormat {
    fn write(&self, decisions: &Decisions<'_>, reply: &mut Reply<'_>) {
        match self {
            Self::OnePolicy => decide::write_one_policy(decisions, reply),
            Self::AllPolicies => decide::write_all_policies(decisions, reply),
            Self::Throttle(arguments) => arguments.write_reply(decisions, reply),
        }
    }
}

/// Why a command was rejected.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CommandError {
    /// The error code, if it is not `ERR`.
    code: Option<&'static str>,
    /// One line: what is invalid and what is expected.
    detail: String,
    /// Whether the connection closes after the error.
    closes: bool,
}

impl CommandError {
    pub(super) fn new(detail: impl Into<String>) -> Self {
        Self { code: None, detail: detail.into(), closes: false }
    }

    pub(super) fn coded(code: &'static str, detail: impl Into<String>) -> Self {
        Self { code: Some(code), detail: detail.into(), closes: false }
    }

    /// The same error, closing the connection.
    pub(super) fn closing(self) -> Self {
        Self { closes: true, ..self }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    Check,
    Request,
    Refund,
    Reset,
    Policies,
    CellThrottle,
    CrabThrottle,
    Ping,
    Echo,
    Hello,
    Auth,
    Client,
    Command,
    Select,
    Info,
    Multi,
    Exec,
    Discard,
    Unwatch,
    ResetConnection,
    Quit,
}

/// One entry of the command table.
pub(super) struct CommandSpec {
    name: Name,
    pub(super) word: &'static str,
    /// The arguments after the name.
    pub(super) syntax: &'static str,
    pub(super) summary: &'static str,
    /// Minimum number of arguments, the name included.
    min: usize,
    /// Maximum number of arguments.
    max: usize,
    /// Position of the argument that clients treat as the key, as Redis counts it; 0 if there is
    /// none.
    pub(super) key: u8,
}

const ANY: usize = super::frame::MAX_ARGUMENTS;

#[rustfmt::skip]
pub(super) const COMMANDS: [CommandSpec; 21] = [
    CommandSpec { name: Name::Check, word: "RL.CHECK", syntax: "policy key [key ...] [COST n] [PEEK]", min: 2, max: ANY, key: 2,
        summary: "Checks one policy; takes one key per attribute of its scope." },
    CommandSpec { name: Name::Request, word: "RL.REQUEST", syntax: "attribute value [attribute value ...] [COST n] [PEEK]",
        min: 1, max: ANY, key: 0, summary: "Checks all policies that apply; charges all of them or none." },
    CommandSpec { name: Name::Refund, word: "RL.REFUND", syntax: "policy key [key ...] [COST n]", min: 2, max: ANY, key: 2,
        summary: "Refunds cost." },
    CommandSpec { name: Name::Reset, word: "RL.RESET", syntax: "policy key [key ...]", min: 2, max: ANY, key: 2,
        summary: "Clears the usage of a key." },
    CommandSpec { name: Name::Policies, word: "RL.POLICIES", syntax: "", min: 1, max: 1, key: 0,
        summary: "Lists the policies." },
    CommandSpec { name: Name::CellThrottle, word: "CL.THROTTLE", syntax: "key max_burst count period [quantity]", min: 5, max: 6,
        key: 1, summary: "Checks an inline quota, as redis-cell does." },
    CommandSpec { name: Name::CrabThrottle, word: "THROTTLE", syntax: "key max_burst count period [quantity]", min: 5, max: 6,
        key: 1, summary: "Checks an inline quota, as throttlecrab does." },
    CommandSpec { name: Name::Ping, word: "PING", syntax: "[message]", min: 1, max: 2, key: 0, summary: "Returns PONG or the message." },
    CommandSpec { name: Name::Echo, word: "ECHO", syntax: "message", min: 2, max: 2, key: 0, summary: "Returns the message." },
    CommandSpec { name: Name::Hello, word: "HELLO", syntax: "[2|3 [AUTH default password] [SETNAME name]]", min: 1, max: 7, key: 0,
        summary: "Selects the protocol version." },
    CommandSpec { name: Name::Auth, word: "AUTH", syntax: "[default] password", min: 2, max: 3, key: 0, summary: "Authenticates." },
    CommandSpec { name: Name::Client, word: "CLIENT",
        syntax: "ID|INFO|GETNAME|SETNAME name|SETINFO attribute value|NO-EVICT on|off|NO-TOUCH on|off", min: 2, max: 4,
        key: 0, summary: "Names or describes this connection." },
    CommandSpec { name: Name::Command, word: "COMMAND", syntax: "[COUNT|LIST|INFO [name ...]|DOCS [name ...]]", min: 1, max: ANY,
        key: 0, summary: "Describes the commands." },
    CommandSpec { name: Name::Select, word: "SELECT", syntax: "0", min: 2, max: 2, key: 0, summary: "Does nothing: the only database is 0." },
    CommandSpec { name: Name::Info, word: "INFO", syntax: "[section ...]", min: 1, max: ANY, key: 0, summary: "Describes the server." },
    CommandSpec { name: Name::Multi, word: "MULTI", syntax: "", min: 1, max: 1, key: 0,
        summary: "Queues the following commands until EXEC." },
    CommandSpec { name: Name::Exec, word: "EXEC", syntax: "", min: 1, max: 1, key: 0,
        summary: "Executes the queued commands in order." },
    CommandSpec { name: Name::Discard, word: "DISCARD", syntax: "", min: 1, max: 1, key: 0, summary: "Discards the queued commands." },
    CommandSpec { name: Name::Unwatch, word: "UNWATCH", syntax: "", min: 1, max: 1, key: 0,
        summary: "Does nothing: no key can be watched." },
    CommandSpec { name: Name::ResetConnection, word: "RESET", syntax: "", min: 1, max: 1, key: 0,
        summary: "Resets the connection to its initial state." },
    CommandSpec { name: Name::Quit, word: "QUIT", syntax: "", min: 1, max: ANY, key: 0, summary: "Closes the connection." },
];

impl CommandSpec {
    /// The command of this name, in any case.
    pub(super) fn by_word(word: &[u8]) -> Option<&'static Self> {
        COMMANDS.iter().find(|spec| spec.word.as_bytes().eq_ignore_ascii_case(word))
    }

    /// The name and its arguments.
    fn usage(&self) -> String {
        format!("{} {}", self.word, self.syntax).trim_end().to_owned()
    }

    /// Redis's arity: the number of arguments, name included; negative if that is a minimum.
    pub(super) fn arity(&self) -> i64 {
        #[allow(clippy::cast_possible_wrap)] // at most 80
        let min = self.min as i64;
        if self.min == self.max { min } else { -min }
    }
}

/// Executes a command, queues it if a transaction is open, or adds its decision to the batch.
pub(super) fn step<'b>(
    arguments: &[&'b [u8]],
    session: &mut Session,
    policies: &'b PolicySet,
    batch: &mut Batch<'b>,
    out: &mut Vec<u8>,
) -> Step<'b> {
    let mut reply = Reply { out, version: session.version };
    let spec = match find_command(arguments, session, batch.app, &mut reply) {
        Ok(spec) => spec,
        Err(rejected) => {
            if let Some(transaction) = &mut session.transaction {
                transaction.fail();
            }
            return rejected;
        }
    };
    let args = &arguments[1..];
    let queueing = session.transaction.as_mut().map(|transaction| (Queueing::of(spec.name), transaction));
    let step = match (spec.name, queueing) {
        (_, Some((Queueing::Queued, transaction))) => {
            transaction.queue(arguments).map(|()| reply.simple("QUEUED")).map(|()| Step::Replied)
        }
        (_, Some((Queueing::Rejected, _))) => {
            Err(CommandError::new("not allowed between MULTI and EXEC; send it before MULTI"))
        }
        (Name::Check, _) => decide::check(args, policies, batch, &mut reply),
        (Name::Request, _) => decide::request(args, batch, &mut reply),
        (Name::Refund, _) => decide::refund(args, policies, batch, &mut reply),
        (Name::Reset, _) => decide::reset(args, policies, batch.app),
        (Name::Policies, _) => {
            decide::policies(policies, &mut reply);
            Ok(Step::Replied)
        }
        (Name::CellThrottle | Name::CrabThrottle, _) => {
            let dialect = throttle::Dialect::of(spec.name == Name::CellThrottle);
            throttle::throttle(dialect, args, &mut session.quota_cache, batch, &mut reply)
        }
        (name @ (Name::Multi | Name::Exec | Name::Discard), _) => {
            return session.transact(name, &mut reply);
        }
        (name, _) => session.execute(name, args, batch.app, &mut reply),
    };
    step.unwrap_or_else(|error| {
        // In a transaction, the error means that the command was not queued.
        if let Some(transaction) = &mut session.transaction {
            transaction.fail();
        }
        let reply = &mut Reply { out, version: session.version };
        match error.code {
            Some(code) => reply.error(format_args!("{code} {}", error.detail)),
            None => reply.error(format_args!("ERR {}: {}", spec.word, error.detail)),
        }
        if error.closes { Step::Close } else { Step::Replied }
    })
}

/// The command, if the client may send it with this number of arguments. Otherwise writes the
/// error.
fn find_command<'b>(
    arguments: &[&[u8]],
    session: &Session,
    app: &App,
    reply: &mut Reply<'_>,
) -> Result<&'static CommandSpec, Step<'b>> {
    let Some(spec) = CommandSpec::by_word(arguments[0]) else {
        // A web page can make a browser send HTTP to any port. Its lines must not run as commands.
        if arguments[0].eq_ignore_ascii_case(b"POST") || arguments[0].eq_ignore_ascii_case(b"Host:") {
            reply.error("ERR invalid request: this port serves RESP, not HTTP; send HTTP requests to the address of `listen`");
            return Err(Step::Close);
        }
        if arguments[0].eq_ignore_ascii_case(b"WATCH") {
            reply.error(
                "ERR WATCH is not supported: there are no values to watch; use RL.REQUEST to charge several limits atomically",
            );
        } else {
            reply.error(format_args!(
                "ERR unknown command `{}`; COMMAND LIST lists the supported commands",
                Escaped(arguments[0])
            ));
        }
        return Err(Step::Replied);
    };
    if !session.is_authenticated() && !session::before_authentication(spec.name) {
        reply.error("NOAUTH Authentication required; send `AUTH password` first");
        return Err(Step::Replied);
    }
    if !(spec.min..=spec.max).contains(&arguments.len()) {
        reply.error(format_args!(
            "ERR {}: too {} arguments ({}); write `{}`",
            spec.word,
            if arguments.len() < spec.min { "few" } else { "many" },
            arguments.len() - 1,
            spec.usage()
        ));
        return Err(Step::Replied);
    }
    if let Some(action) = action(spec.name)
        && !app.access.command(action, session.connection())
    {
        let word = spec.word;
        let reason = match action {
            Action::Decide => "admin.decisions is `token`",
            Action::Adjust => "tokens are configured or the port is not on loopback",
        };
        reply.error(format_args!(
            "NOPERM {word} requires a password because {reason}; set resp.password_file and send AUTH"
        ));
        return Err(Step::Replied);
    }
    Ok(spec)
}

/// The access right that a command needs, if any.
fn action(name: Name) -> Option<Action> {
    match name {
        Name::Check | Name::Request | Name::CellThrottle | Name::CrabThrottle => Some(Action::Decide),
        Name::Refund | Name::Reset => Some(Action::Adjust),
        _ => None,
    }
}

/// Parses an integer argument.
pub(super) fn parse_integer(name: &str, bytes: &[u8], min: u64, max: u64) -> Result<u64, CommandError> {
    let digits =
        std::str::from_utf8(bytes).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).filter(|number| (min..=max).contains(number)).ok_or_else(
        || {
            CommandError::new(format!(
                "{name} is `{}`; give a whole number from {min} to {max}",
                Escaped(bytes)
            ))
        },
    )
}
