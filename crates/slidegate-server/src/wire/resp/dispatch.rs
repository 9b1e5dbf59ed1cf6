//! Dispatch: finds a client's command, checks that it is allowed, and executes or queues it.
//!
//! Requests to a shared store are not awaited here but added to a batch: a pipeline is decided
//! together.

use slidegate::{PolicySet, verb::Verb};

use super::batch::{Batch, Step};
use super::commands::{CommandSpec, Name};
use super::error::CommandError;
use super::reply::{Escaped, Reply};
use super::session::{self, Session};
use super::throttle::Dialect;
use super::transaction::Queueing;
use super::{answer, decide, hold_arguments};
use crate::access::Action;
use crate::caller::Protocol;
use crate::engine::App;
use crate::wire::malformed::{Flaw, Handling};

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
        (Name::Check, _) => decide::by_key(Verb::Check, args, policies, batch, &mut reply),
        (Name::Request, _) => decide::request(args, batch, &mut reply),
        (Name::Refund, _) => decide::by_key(Verb::Refund, args, policies, batch, &mut reply),
        (Name::Reset, _) => decide::reset(args, policies, batch.app),
        (Name::Acquire | Name::Reserve, _) => {
            hold_arguments::waiting(spec.name, args, policies, batch.app, session.connection()).map(
                |command| match command.waits() {
                    true => Step::Wait(arguments.iter().map(|argument| argument.to_vec()).collect()),
                    false => Step::Hold(Box::new(command)),
                },
            )
        }
        (Name::Settle, _) => hold_arguments::settle(args),
        (Name::Extend, _) => hold_arguments::extend(args),
        (Name::Cancel, _) => hold_arguments::cancel(args),
        (Name::Policies, _) => {
            answer::policies(policies, &mut reply);
            Ok(Step::Replied)
        }
        (Name::CellThrottle, _) => {
            decide::throttle(Dialect::RedisCell, args, &mut session.quota_cache, batch, &mut reply)
        }
        (Name::CrabThrottle, _) => {
            decide::throttle(Dialect::Throttlecrab, args, &mut session.quota_cache, batch, &mut reply)
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
        reject(spec, &error, batch.app, &mut Reply { out, version: session.version })
    })
}

fn reject<'b>(spec: &CommandSpec, error: &CommandError, app: &App, reply: &mut Reply<'_>) -> Step<'b> {
    match error.code {
        Some(code) => reply.error(format_args!("{code} {}", error.detail)),
        None => {
            app.observer().malformed.record(Protocol::Resp, Flaw::Invalid, Handling::Refused);
            reply.error(format_args!("ERR {}: {}", spec.word, error.detail));
        }
    }
    if error.closes { Step::Close } else { Step::Replied }
}

/// The command, if the client may send it with this number of arguments; otherwise writes the
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
        Name::Check | Name::Acquire | Name::Request | Name::CellThrottle | Name::CrabThrottle => {
            Some(Action::Decide)
        }
        Name::Reserve | Name::Settle | Name::Extend | Name::Cancel => Some(Action::Decide),
        Name::Refund | Name::Reset => Some(Action::Adjust),
        _ => None,
    }
}
