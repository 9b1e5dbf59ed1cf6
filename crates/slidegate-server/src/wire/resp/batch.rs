//! The decisions of one pipeline: made at once on the memory store, batched on a shared store.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use slidegate::{Decisions, Request, verb::Verb};

use super::answer;
use super::holds::HoldCommand;
use super::reply::{Reply, RespVersion};
use super::throttle::ThrottleArguments;
use super::transaction::Transaction;
use crate::audit;
use crate::caller::Protocol;
use crate::engine::App;
use crate::engine::decide::Call;
use crate::listener::Connection;

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
    /// Reserve, or change a reservation. Boxed for the same reason.
    Hold(Box<HoldCommand<'b>>),
    /// Wait for the turn of the command with these arguments. Copied, as the connection reads on meanwhile.
    Wait(Vec<Vec<u8>>),
    /// Execute the commands of a transaction and reply with an array of their replies.
    Execute(Box<Transaction>),
}

/// Decisions of one pipeline: made at once on the memory store, batched on a shared store.
pub(super) struct Batch<'w> {
    pub(super) app: &'w App,
    pub(super) connection: Connection,
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
    pub(super) fn new(app: &'w App, connection: Connection) -> Self {
        Self { app, connection, call: app.call(Protocol::Resp), pending: Vec::new() }
    }

    /// Logs a client's refund.
    pub(super) fn audit(&self, verb: Verb, decisions: &Decisions<'_>) {
        if verb == Verb::Refund {
            let shown = |policy: &str, key: &str| self.app.observer().shown(policy, key);
            audit::moved(&self.connection.caller(), verb, decisions, shown);
        }
    }

    /// Decides a request and writes the reply, or adds it to the batch. By reference, because a
    /// request has 400 bytes.
    pub(super) fn decide(
        &mut self,
        verb: Verb,
        request: &mut Request<'w>,
        format: ReplyFormat,
        reply: &mut Reply<'_>,
    ) {
        if self.app.store().is_in_memory() {
            // Polled where it is made: it is larger than all that is decided with.
            let deciding = pin!(self.call.apply(Some(verb), std::slice::from_ref(request), None));
            let Poll::Ready(decisions) = deciding.poll(&mut Context::from_waker(Waker::noop())) else {
                unreachable!("a decision in memory does not wait");
            };
            self.audit(verb, &decisions);
            format.write(&decisions, reply);
            return;
        }
        let request = std::mem::take(request);
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
    Throttle(ThrottleArguments),
}

impl ReplyFormat {
    fn write(&self, decisions: &Decisions<'_>, reply: &mut Reply<'_>) {
        match self {
            Self::OnePolicy => answer::write_one_policy(decisions, reply),
            Self::AllPolicies => answer::write_all_policies(decisions, reply),
            Self::Throttle(arguments) => arguments.write_reply(decisions, reply),
        }
    }
}
