//! Executes reservation commands, and those that wait for their turn, and writes the replies.
//!
//! Accepts tickets of the HTTP API too, which may cover several policies.

use std::time::Duration;

use slidegate::acquire::Patience;
use slidegate::{
    Request,
    clock::Timestamp,
    reserve::{HoldOptions, SettledKey, Settlement, Ticket},
    verb::Verb,
};

use super::answer;
use super::reply::Reply;
use crate::engine::decide::{Call, TurnTerms};
use crate::engine::ticket_change::{TicketChange, TicketChanged};
use crate::listener::Connection;

/// A command that reserves cost, changes a reservation, or waits for its turn.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // boxed in steps
pub(super) enum HoldCommand<'b> {
    Acquire { request: Request<'b>, wait: Duration },
    Reserve { request: Request<'b>, ttl: Option<Duration>, id: Option<String>, wait: Option<Duration> },
    Change { ticket: Ticket, change: TicketChange<'b> },
}

impl HoldCommand<'_> {
    /// Whether it may wait for its turn.
    pub(super) fn waits(&self) -> bool {
        matches!(self, Self::Acquire { .. } | Self::Reserve { wait: Some(_), .. })
    }

    /// Executes the command, at once instead of in its turn, as every command of a transaction.
    pub(super) fn without_wait(mut self) -> Self {
        match &mut self {
            Self::Acquire { wait, .. } | Self::Reserve { wait: Some(wait), .. } => *wait = Duration::ZERO,
            Self::Reserve { .. } | Self::Change { .. } => {}
        }
        self
    }

    /// Executes the command and writes the reply.
    pub(super) async fn execute(self, call: &Call<'_>, client: Connection, reply: &mut Reply<'_>) {
        let turn = |wait| TurnTerms { patience: Patience::AtMost(wait), client };
        match self {
            Self::Acquire { request, wait } => {
                let requests = std::slice::from_ref(&request);
                let decided = call.apply_in_turn(Some(Verb::Check), requests, None, turn(wait)).await;
                answer::write_one_policy(&decided, reply);
            }
            Self::Reserve { request, ttl, id, wait } => {
                let options = HoldOptions { ttl, id: id.as_deref() };
                let requests = std::slice::from_ref(&request);
                let reserved = match wait {
                    Some(wait) => call.reserve_in_turn(requests, options, turn(wait)).await,
                    None => call.reserve(requests, options).await,
                };
                match reserved {
                    Ok(reserved) => {
                        let Some(one) = reserved.decisions().iter().next() else {
                            return answer::undecided(reserved.decisions(), reply);
                        };
                        if answer::is_unavailable(&one) {
                            return answer::unavailable(&one, reply);
                        }
                        reply.fields(10);
                        answer::decision_fields(reserved.decisions().is_allowed(), &one, reply);
                        holding(one.decision().held(), reserved.ticket(), reply);
                    }
                    Err(error) => reply.error(format_args!("ERR RL.RESERVE: {error}")),
                }
            }
            Self::Change { ticket, change } => {
                let goes_on = !change.is_last();
                match call.change(&ticket, change).await {
                    Ok(TicketChanged::Now(settlement)) => write_settlement(&settlement, goes_on, reply),
                    Ok(TicketChanged::Later) => write_outcome(TicketChanged::QUEUED, None, reply),
                    Err(error) if error.is_unknown_cost() => reply.error(format_args!("ERR {error}")),
                    Err(error) => reply.error(format_args!(
                        "UNAVAILABLE {error}; the change may or may not be made, and repeating it is safe"
                    )),
                }
            }
        }
    }
}

/// Writes the outcome and the numbers of the binding key.
fn write_settlement(settlement: &Settlement, goes_on: bool, reply: &mut Reply<'_>) {
    let by_room = |one: &SettledKey<'_>| (one.decision().is_allowed(), one.decision().remaining());
    let Some(one) = settlement.iter().min_by_key(by_room) else {
        // No policy limits it, or its policies were removed.
        let ticket = goes_on.then(|| settlement.ticket());
        return write_outcome(settlement.status().name(), ticket, reply);
    };
    reply.fields(9);
    reply.field("outcome").text(settlement.status().name());
    answer::capacity_fields(one.decision(), reply);
    reply.field("cost").int(one.decision().cost());
    holding(one.decision().held(), goes_on.then(|| settlement.ticket()), reply);
}

/// Writes an outcome without a key.
fn write_outcome(outcome: &str, ticket: Option<&Ticket>, reply: &mut Reply<'_>) {
    reply.fields(9);
    reply.field("outcome").text(outcome);
    for name in ["limit", "remaining", "retry_after_ms", "reset_after_ms", "cost"] {
        reply.field(name).null();
    }
    holding(0, ticket, reply);
}

/// Writes the last three fields.
fn holding(held: u64, ticket: Option<&Ticket>, reply: &mut Reply<'_>) {
    reply.field("held").int(held);
    reply.field("until_ms");
    match ticket.and_then(Ticket::until).map(Timestamp::as_micros) {
        Some(until_us) => reply.int(until_us / 1000),
        None => reply.null(),
    }
    reply.field("ticket");
    match ticket {
        Some(ticket) => reply.text(&ticket.to_string()),
        None => reply.null(),
    }
}
