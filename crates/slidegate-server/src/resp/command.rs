//! Commands: what a client can say, and what becomes of it.
//!
//! One table names them all: it finds the command, counts its arguments, and is what `COMMAND` tells. Commands that decide
//! are not carried out here but handed back: those of a pipeline are decided together.

use slidegate::{Decisions, PolicySet, Request, Verb};

use super::reply::{Reply, RespVersion, Shown};
use super::session::{self, Session};
use super::transaction::{Queueing, Transaction};
use super::{decide, throttle};
use crate::access::Action;
use crate::app::App;
use crate::app::decide::Call;
use crate::caller::Protocol;

/// What becomes of a command.
#[derive(Debug)]
pub(super) enum Step<'b> {
    /// The reply is written.
    Answered,
    /// The reply is written, and is the last.
    Goodbye,
    /// The decision is told, or waits among others to be asked for.
    Asked,
    /// Forget the request's keys. Boxed, as it is rare and every step would be as large.
    Reset(Box<Request<'b>>),
    /// Carry out the commands of a transaction and answer an array of their replies.
    Execute(Box<Transaction>),
}

/// Where decisions are asked for.
pub(super) struct Asking<'w> {
    pub(super) app: &'w App,
    /// Records each decision, and how long all of them took.
    pub(super) call: Call<'w>,
    /// What a shared store is still to be asked for, in the order of the commands. Always empty on the memory store.
    pub(super) waiting: Vec<Ask<'w>>,
}

/// A decision that is to be asked for.
#[derive(Debug)]
pub(super) struct Ask<'b> {
    pub(super) verb: Verb,
    pub(super) request: Request<'b>,
    form: Form,
    protocol: RespVersion,
}

impl<'w> Asking<'w> {
    pub(super) fn new(app: &'w App) -> Self {
        Self { app, call: app.call(Protocol::Resp), waiting: Vec::new() }
    }

    /// Decides a request and tells the decision, or keeps it for later.
    // A request is some 400 bytes, which a call would copy.
    #[inline(always)]
    pub(super) fn decide(&mut self, verb: Verb, request: Request<'w>, form: Form, reply: &mut Reply<'_>) {
        if let Some(decisions) = self.call.try_apply(verb, &request) {
            form.tell(&decisions, reply);
            return;
        }
        self.waiting.push(Ask { verb, request, form, protocol: reply.protocol });
    }
}

impl Ask<'_> {
    pub(super) fn tell(&self, decisions: &Decisions<'_>, out: &mut Vec<u8>) {
        self.form.tell(decisions, &mut Reply { out, protocol: self.protocol });
    }
}

/// How the answer is told.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form {
    /// One policy's decision.
    One,
    /// All decisions of a request.
    All,
    /// In the words of another limiter.
    Told(throttle::Told),
}

impl Form {
    fn tell(&self, decisions: &Decisions<'_>, reply: &mut Reply<'_>) {
        match self {
            Self::One => decide::answer_one(decisions, reply),
            Self::All => decide::answer_all(decisions, reply),
            Self::Told(told) => told.answer(decisions, reply),
        }
    }
}

/// Why a command was not carried out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    /// The word that clients look at, where it is not the common one.
    code: Option<&'static str>,
    /// One line that names the argument and the way out.
    detail: String,
    /// Whether the connection is closed after the error.
    closes: bool,
}

impl Wrong {
    pub(super) fn new(detail: impl Into<String>) -> Self {
        Self { code: None, detail: detail.into(), closes: false }
    }

    pub(super) fn coded(code: &'static str, detail: impl Into<String>) -> Self {
        Self { code: Some(code), detail: detail.into(), closes: false }
    }

    /// The same error as the last reply of the connection.
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

/// A line of the table.
pub(super) struct Known {
    name: Name,
    pub(super) word: &'static str,
    /// What follows the name.
    pub(super) syntax: &'static str,
    pub(super) summary: &'static str,
    /// Fewest arguments, the name included.
    fewest: usize,
    /// Most of them.
    most: usize,
    /// Whether its second argument, or third, is a key in a client's eyes; 0 if none is.
    pub(super) key: u8,
}

const ANY: usize = super::frame::MAX_ARGUMENTS;

#[rustfmt::skip]
pub(super) const COMMANDS: [Known; 21] = [
    Known { name: Name::Check, word: "RL.CHECK", syntax: "policy key [key ...] [COST n] [PEEK]", fewest: 2, most: ANY, key: 2,
        summary: "Decides and charges under one policy: one key for each attribute of its scope." },
    Known { name: Name::Request, word: "RL.REQUEST", syntax: "attribute value [attribute value ...] [COST n] [PEEK]",
        fewest: 1, most: ANY, key: 0, summary: "Decides and charges under all policies that apply, or under none." },
    Known { name: Name::Refund, word: "RL.REFUND", syntax: "policy key [key ...] [COST n]", fewest: 2, most: ANY, key: 2,
        summary: "Gives cost back." },
    Known { name: Name::Reset, word: "RL.RESET", syntax: "policy key [key ...]", fewest: 2, most: ANY, key: 2,
        summary: "Forgets a key." },
    Known { name: Name::Policies, word: "RL.POLICIES", syntax: "", fewest: 1, most: 1, key: 0,
        summary: "Lists the policies." },
    Known { name: Name::CellThrottle, word: "CL.THROTTLE", syntax: "key max_burst count period [quantity]", fewest: 5, most: 6,
        key: 1, summary: "Decides as redis-cell does." },
    Known { name: Name::CrabThrottle, word: "THROTTLE", syntax: "key max_burst count period [quantity]", fewest: 5, most: 6,
        key: 1, summary: "Decides as throttlecrab does." },
    Known { name: Name::Ping, word: "PING", syntax: "[message]", fewest: 1, most: 2, key: 0, summary: "Answers." },
    Known { name: Name::Echo, word: "ECHO", syntax: "message", fewest: 2, most: 2, key: 0, summary: "Answers the message." },
    Known { name: Name::Hello, word: "HELLO", syntax: "[2|3 [AUTH default password] [SETNAME name]]", fewest: 1, most: 7, key: 0,
        summary: "Chooses the version of the protocol." },
    Known { name: Name::Auth, word: "AUTH", syntax: "[default] password", fewest: 2, most: 3, key: 0, summary: "Authenticates." },
    Known { name: Name::Client, word: "CLIENT",
        syntax: "ID|INFO|GETNAME|SETNAME name|SETINFO attribute value|NO-EVICT on|off|NO-TOUCH on|off", fewest: 2, most: 4,
        key: 0, summary: "Names this connection and tells about it." },
    Known { name: Name::Command, word: "COMMAND", syntax: "[COUNT|LIST|INFO [name ...]|DOCS [name ...]]", fewest: 1, most: ANY,
        key: 0, summary: "Tells the commands." },
    Known { name: Name::Select, word: "SELECT", syntax: "0", fewest: 2, most: 2, key: 0, summary: "Does nothing: there is one database." },
    Known { name: Name::Info, word: "INFO", syntax: "[section ...]", fewest: 1, most: ANY, key: 0, summary: "Tells about the server." },
    Known { name: Name::Multi, word: "MULTI", syntax: "", fewest: 1, most: 1, key: 0,
        summary: "Queues the commands that follow until EXEC." },
    Known { name: Name::Exec, word: "EXEC", syntax: "", fewest: 1, most: 1, key: 0,
        summary: "Carries out the queued commands, one after another." },
    Known { name: Name::Discard, word: "DISCARD", syntax: "", fewest: 1, most: 1, key: 0, summary: "Drops the queued commands." },
    Known { name: Name::Unwatch, word: "UNWATCH", syntax: "", fewest: 1, most: 1, key: 0,
        summary: "Does nothing: no key can be watched." },
    Known { name: Name::ResetConnection, word: "RESET", syntax: "", fewest: 1, most: 1, key: 0,
        summary: "Makes the connection as it was at first." },
    Known { name: Name::Quit, word: "QUIT", syntax: "", fewest: 1, most: ANY, key: 0, summary: "Ends the connection." },
];

impl Known {
    /// The command that this word names, in any case.
    pub(super) fn by_word(word: &[u8]) -> Option<&'static Self> {
        COMMANDS.iter().find(|known| known.word.as_bytes().eq_ignore_ascii_case(word))
    }

    /// How it is written.
    fn usage(&self) -> String {
        format!("{} {}", self.word, self.syntax).trim_end().to_owned()
    }

    /// How many arguments it takes, its name included; below zero for at least as many.
    pub(super) fn arity(&self) -> i64 {
        #[allow(clippy::cast_possible_wrap)] // at most 80
        let fewest = self.fewest as i64;
        if self.fewest == self.most { fewest } else { -fewest }
    }
}

/// Carries out a command, queues it if a transaction is open, or says what is to be decided for it.
pub(super) fn step<'b>(
    arguments: &[&'b [u8]],
    session: &mut Session,
    policies: &'b PolicySet,
    asking: &mut Asking<'b>,
    out: &mut Vec<u8>,
) -> Step<'b> {
    let mut reply = Reply { out, protocol: session.protocol };
    let known = match find(arguments, session, asking.app, &mut reply) {
        Ok(known) => known,
        Err(refused) => {
            if let Some(transaction) = &mut session.transaction {
                transaction.fail();
            }
            return refused;
        }
    };
    let given = &arguments[1..];
    let queueing = session.transaction.as_mut().map(|transaction| (Queueing::of(known.name), transaction));
    let step = match (known.name, queueing) {
        (_, Some((Queueing::Queued, transaction))) => {
            transaction.queue(arguments).map(|()| reply.simple("QUEUED")).map(|()| Step::Answered)
        }
        (_, Some((Queueing::Refused, _))) => {
            Err(Wrong::new("is not allowed between MULTI and EXEC; send it before MULTI"))
        }
        (Name::Check, _) => decide::check(given, policies, asking, &mut reply),
        (Name::Request, _) => decide::request(given, asking, &mut reply),
        (Name::Refund, _) => decide::refund(given, policies, asking, &mut reply),
        (Name::Reset, _) => decide::reset(given, policies, asking.app),
        (Name::Policies, _) => {
            decide::policies(policies, &mut reply);
            Ok(Step::Answered)
        }
        (Name::CellThrottle | Name::CrabThrottle, _) => {
            let dialect = throttle::Dialect::of(known.name == Name::CellThrottle);
            throttle::throttle(dialect, given, &mut session.told, asking, &mut reply)
        }
        (name @ (Name::Multi | Name::Exec | Name::Discard), _) => {
            return session.transact(name, &mut reply);
        }
        (name, _) => session.answer(name, given, asking.app, &mut reply),
    };
    step.unwrap_or_else(|wrong| {
        // With a transaction open, this command could not be queued.
        if let Some(transaction) = &mut session.transaction {
            transaction.fail();
        }
        let reply = &mut Reply { out, protocol: session.protocol };
        match wrong.code {
            Some(code) => reply.error(format_args!("{code} {}", wrong.detail)),
            None => reply.error(format_args!("ERR {}: {}", known.word, wrong.detail)),
        }
        if wrong.closes { Step::Goodbye } else { Step::Answered }
    })
}

/// The command that arguments name, if the client may send it and their number is right. Otherwise the error is written.
fn find<'b>(
    arguments: &[&[u8]],
    session: &Session,
    app: &App,
    reply: &mut Reply<'_>,
) -> Result<&'static Known, Step<'b>> {
    let Some(known) = Known::by_word(arguments[0]) else {
        // Browsers can be made to speak to any port; what they send must not be taken for commands line by line.
        if arguments[0].eq_ignore_ascii_case(b"POST") || arguments[0].eq_ignore_ascii_case(b"Host:") {
            reply.error("ERR this is no HTTP port; the address of the HTTP interface is another");
            return Err(Step::Goodbye);
        }
        if arguments[0].eq_ignore_ascii_case(b"WATCH") {
            reply.error(
                "ERR WATCH is not supported, as there are no values to watch; send RL.REQUEST to charge several limits or none",
            );
        } else {
            reply.error(format_args!(
                "ERR unknown command `{}`; COMMAND LIST says which there are",
                Shown(arguments[0])
            ));
        }
        return Err(Step::Answered);
    };
    if !session.is_authenticated() && !session::before_authentication(known.name) {
        reply.error("NOAUTH Authentication required: send AUTH and the password first");
        return Err(Step::Answered);
    }
    if !(known.fewest..=known.most).contains(&arguments.len()) {
        reply.error(format_args!(
            "ERR {}: too {} arguments ({}); write `{}`",
            known.word,
            if arguments.len() < known.fewest { "few" } else { "many" },
            arguments.len() - 1,
            known.usage()
        ));
        return Err(Step::Answered);
    }
    if let Some(action) = action(known.name)
        && !app.access.command(action, session.connection())
    {
        let word = known.word;
        let why = match action {
            Action::Decide => "as admin.decisions is `token`",
            Action::Adjust => "as tokens are configured, or the port is reachable from elsewhere",
        };
        reply.error(format_args!(
            "NOPERM {word} needs a password on this port, {why}; set resp.password_file and send AUTH"
        ));
        return Err(Step::Answered);
    }
    Ok(known)
}

/// What a command does with the usage of keys, if anything.
fn action(name: Name) -> Option<Action> {
    match name {
        Name::Check | Name::Request | Name::CellThrottle | Name::CrabThrottle => Some(Action::Decide),
        Name::Refund | Name::Reset => Some(Action::Adjust),
        _ => None,
    }
}

/// A whole number among the arguments.
pub(super) fn whole(name: &str, bytes: &[u8], least: u64, most: u64) -> Result<u64, Wrong> {
    let digits =
        std::str::from_utf8(bytes).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).filter(|number| (least..=most).contains(number)).ok_or_else(
        || Wrong::new(format!("{name} is `{}`; give a whole number from {least} to {most}", Shown(bytes))),
    )
}
